//! Round trips between a program under the filter and its supervisor.

use std::io;
use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::kernel::errno;
use crate::seccomp::{
    CallNotification, FilterOptions, MemoryFigures, NotifyListener, PeerAddress, SeccompFilter, compile,
};
use libc::{EAFNOSUPPORT, ENOSYS, EPERM};

/// Starts `body` in a thread under a filter that asks, and returns the supervisor's end.
fn supervised<T: Send + 'static>(
    options: FilterOptions,
    body: impl FnOnce() -> T + Send + 'static,
) -> (NotifyListener, JoinHandle<T>) {
    supervised_by(compile(&options), body)
}

fn supervised_by<T: Send + 'static>(
    filter: SeccompFilter,
    body: impl FnOnce() -> T + Send + 'static,
) -> (NotifyListener, JoinHandle<T>) {
    let (sender, receiver) = mpsc::channel();
    let program = thread::spawn(move || {
        sender
            .send(filter.install_with_listener())
            .expect("the supervisor waits");
        body()
    });
    let listener = receiver
        .recv()
        .expect("the program sends")
        .expect("seccomp user notification is supported");
    (listener, program)
}

fn next(listener: &NotifyListener) -> CallNotification {
    let deadline = Instant::now() + Duration::from_secs(120);
    while Instant::now() < deadline {
        if let Some(notification) = listener.receive().expect("the listener is open") {
            return notification;
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("no call was told within 20 s");
}

#[test]
fn a_hypervisor_is_supplied_with_the_file_that_it_opens_for_both_and_punches_no_hole() {
    use std::io::{Read as _, Write as _};
    use std::os::fd::AsFd as _;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("memory");
    std::fs::write(&path, "template").unwrap();
    let given = std::fs::File::open(&path).unwrap();
    let supplied = crate::seccomp::HypervisorSupply {
        memory: true,
        device: false,
    };
    let (listener, program) = supervised_by(crate::seccomp::compile_hypervisor(supplied), || {
        let mut opened = rustix::fs::openat(
            rustix::fs::CWD,
            "/not/there",
            rustix::fs::OFlags::RDWR,
            rustix::fs::Mode::empty(),
        )
        .map(std::fs::File::from)
        .unwrap();
        let mut text = String::new();
        opened.read_to_string(&mut text).unwrap();
        let written = opened.write(b"x").map_err(|error| error.raw_os_error());
        let punched = rustix::fs::fallocate(&opened, rustix::fs::FallocateFlags::empty(), 0, 1 << 20);
        let other = rustix::fs::openat(
            rustix::fs::CWD,
            "/not/there",
            rustix::fs::OFlags::RDONLY,
            rustix::fs::Mode::empty(),
        );
        (text, written, punched, other.map(drop))
    });
    listener.supply(&next(&listener), given.as_fd()).unwrap();
    let (text, written, punched, other) = program.join().unwrap();
    assert_eq!(text, "template");
    assert_eq!(written, Err(Some(libc::EBADF)));
    assert_eq!(punched, Ok(()));
    assert_eq!(other, Err(rustix::io::Errno::NOENT));
    assert_eq!(std::fs::read(&path).unwrap(), b"template");
}

#[test]
fn a_hypervisor_is_supplied_with_a_device_that_it_opens_for_itself() {
    use std::os::fd::AsFd as _;

    use rustix::fs::{CWD, Mode, OFlags, openat};
    let [memory, device] = ["memory", "device"].map(|text| {
        let file = tempfile::tempfile().unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, text.as_bytes(), 0).unwrap();
        file
    });
    let supplied = crate::seccomp::HypervisorSupply {
        memory: true,
        device: true,
    };
    let (listener, program) = supervised_by(crate::seccomp::compile_hypervisor(supplied), || {
        [OFlags::RDWR | OFlags::CLOEXEC, OFlags::RDWR].map(|flags| {
            let opened = std::fs::File::from(openat(CWD, "/not/there", flags, Mode::empty()).unwrap());
            let mut text = [0; 6];
            std::os::unix::fs::FileExt::read_exact_at(&opened, &mut text, 0).unwrap();
            text
        })
    });
    let first = next(&listener);
    assert!(first.opens_device());
    listener.supply(&first, device.as_fd()).unwrap();
    let second = next(&listener);
    assert!(!second.opens_device());
    listener.supply(&second, memory.as_fd()).unwrap();
    assert_eq!(program.join().unwrap(), [*b"device", *b"memory"]);
}

#[test]
fn what_a_hypervisor_is_supplied_with_has_a_word_each() {
    use crate::seccomp::HypervisorSupply;
    for (memory, device) in [(false, false), (true, false), (false, true), (true, true)] {
        let supply = HypervisorSupply { memory, device };
        assert_eq!(HypervisorSupply::parse(supply.word()), Some(supply));
    }
    assert_eq!(HypervisorSupply::parse("memory-"), None);
}

const NOTIFY: FilterOptions = FilterOptions {
    allow_ptrace: false,
    notify: true,
    observe_connect: false,
    deny_memfd: false,
    host_namespaces: false,
    count_forks: false,
    hands_out: false,
    kept_to_cpus: false,
    show_memory: false,
    watch_reservations: false,
    superuser: false,
    allow_set_id: false,
    offer_renames: false,
};

#[test]
fn told_calls_are_named_and_refused_with_the_tables_error() {
    let cases: [(i64, [u64; 5], i32, &str); 7] = [
        (
            libc::SYS_mount,
            [0; 5],
            EPERM,
            "seccomp: mount (changes the mount table)",
        ),
        (
            libc::SYS_socket,
            [40, 1, 0, 0, 0],
            EAFNOSUPPORT,
            "seccomp: socket (AF_VSOCK reaches the hypervisor's host)",
        ),
        (
            libc::SYS_socket,
            [2, 3, 1, 0, 0],
            EPERM,
            "seccomp: socket (opens a raw network socket)",
        ),
        (
            libc::SYS_ioctl,
            [u64::MAX, 0x1_0000_5412, 0, 0, 0],
            EPERM,
            "seccomp: ioctl (TIOCSTI types into a terminal as if its user had)",
        ),
        (
            libc::SYS_unshare,
            [0; 5],
            EPERM,
            "seccomp: unshare (makes a namespace, in which the kernel offers far more to attack)",
        ),
        (
            libc::SYS_io_uring_setup,
            [0; 5],
            ENOSYS,
            "seccomp: io_uring_setup (opens and connects behind every filter's back; callers fall back to epoll)",
        ),
        (
            libc::SYS_fchmod,
            [u64::MAX, 0o4755, 0, 0, 0],
            EPERM,
            "seccomp: fchmod (makes a file setuid or setgid, for whoever runs it later)",
        ),
    ];
    let (listener, program) = supervised(NOTIFY, move || {
        let thread = rustix::thread::gettid().as_raw_pid().cast_unsigned();
        (thread, cases.map(|(number, arguments, _, _)| errno(number, arguments)))
    });
    let mut threads = Vec::new();
    for (number, arguments, _, rule) in cases {
        let notification = next(&listener);
        assert_eq!(i64::from(notification.number), number);
        assert_eq!(notification.args[..5], arguments);
        assert_eq!(notification.rule(), rule);
        threads.push(notification.pid);
        listener.refuse(&notification).expect("the program waits");
    }
    let (thread, errors) = program.join().expect("no panic");
    assert_eq!(errors, cases.map(|(_, _, error, _)| error));
    assert!(
        threads.iter().all(|told| *told == thread),
        "{threads:?} are not {thread}"
    );
}

#[test]
fn a_refused_call_is_refused_even_if_the_supervisor_says_proceed() {
    let (listener, program) = supervised(NOTIFY, || errno(libc::SYS_unshare, [0; 5]));
    listener.proceed(&next(&listener)).expect("the program waits");
    assert_eq!(program.join().expect("no panic"), EPERM);
}

#[test]
fn a_call_fails_when_its_supervisor_is_gone() {
    let (listener, program) = supervised(NOTIFY, || errno(libc::SYS_unshare, [0; 5]));
    drop(listener);
    assert_eq!(program.join().expect("no panic"), ENOSYS);
}

#[test]
fn nothing_is_told_of_ordinary_calls() {
    let (listener, program) = supervised(NOTIFY, || std::fs::read_dir("/").map(Iterator::count));
    while !program.is_finished() {
        assert_eq!(
            listener.receive().expect("the program is there, or was until now"),
            None
        );
        thread::sleep(Duration::from_millis(1));
    }
    assert!(program.join().expect("no panic").expect("directories list") > 0);
}

#[test]
fn the_supervisor_survives_a_program_that_is_gone() {
    let (listener, program) = supervised(NOTIFY, || ());
    program.join().expect("no panic");
    let number = u32::try_from(libc::SYS_connect).expect("a small number");
    let gone = CallNotification {
        id: u64::MAX,
        pid: 1,
        number,
        args: [0, 0, 16, 0, 0, 0],
    };
    match listener.refuse(&gone) {
        Ok(()) => {}
        Err(error) => panic!("{error}"),
    }
    assert_eq!(gone.peer_address(&listener).expect("not an error"), None);
}

#[test]
fn connections_are_observed_and_go_on() {
    let options = FilterOptions {
        notify: false,
        observe_connect: true,
        ..NOTIFY
    };
    let name = format!("offleash-seccomp-{}", std::process::id());
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).expect("a short name");
    let server = UnixListener::bind_addr(&address).expect("a name of our own");
    let (listener, program) = supervised(options, move || UnixStream::connect_addr(&address).map(drop));
    let notification = next(&listener);
    assert_eq!(notification.name(), "connect");
    let peer = notification
        .peer_address(&listener)
        .expect("the program's memory is readable");
    assert_eq!(peer, Some(PeerAddress::UnixAbstract(name.into_bytes())));
    listener.proceed(&notification).expect("the program waits");
    program.join().expect("no panic").expect("the connection was made");
    drop(server);
}

#[test]
fn reservations_are_told_with_their_size_and_go_on() {
    let options = FilterOptions {
        watch_reservations: true,
        ..NOTIFY
    };
    let (nothing, writable) = (0x4022, 3); // MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, PROT_READ | PROT_WRITE
    let (listener, program) = supervised(options, move || {
        errno(libc::SYS_mmap, [0, 1 << 44, 0, nothing, u64::MAX]);
        errno(libc::SYS_mmap, [0, 1 << 44, writable, nothing, u64::MAX])
    });
    let told = next(&listener);
    assert_eq!((told.reserves(), told.mediated()), (Some(1 << 44), false));
    listener.proceed(&told).expect("the program waits");
    let answer = program.join().expect("no panic");
    assert!(![EPERM, ENOSYS].contains(&answer), "{answer}");
}

#[test]
fn a_program_that_asks_for_memory_is_told_the_supervisors_figures() {
    let options = FilterOptions {
        show_memory: true,
        ..NOTIFY
    };
    let (listener, program) = supervised(options, || {
        let wrong = errno(libc::SYS_sysinfo, [16, 0, 0, 0, 0]);
        (wrong, rustix::system::sysinfo(), rustix::system::sysinfo())
    });
    let shown = MemoryFigures {
        total: 5 << 30,
        free: 3 << 30,
        cached: 0,
        swap_total: 1 << 30,
        swap_free: 1 << 20,
    };
    for _ in 0..2 {
        let told = next(&listener);
        assert!(told.asks_for_memory() && told.reserves().is_none());
        listener.tell_memory(&told, Some(&shown)).expect("the program waits");
    }
    listener.tell_memory(&next(&listener), None).expect("the program waits");
    let (wrong, found, own) = program.join().expect("no panic");
    assert_eq!(wrong, libc::EFAULT);
    let figures = [found.totalram, found.freeram, found.totalswap, found.freeswap];
    assert_eq!(figures, [5 << 30, 3 << 30, 1 << 30, 1 << 20]);
    assert_eq!(own.totalram, rustix::system::sysinfo().totalram);
    assert_eq!((found.mem_unit, found.bufferram), (1, 0));
    assert!(found.uptime > 0 && found.procs > 0);
}

#[test]
fn peer_addresses_are_read_for_every_family() {
    let options = FilterOptions {
        notify: false,
        observe_connect: true,
        ..NOTIFY
    };
    let targets: [SocketAddr; 2] = [
        ([192, 0, 2, 7], 443).into(),
        (std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 7), 53).into(),
    ];
    let (listener, program) = supervised(options, move || {
        for target in targets {
            let domain = if target.is_ipv4() {
                rustix::net::AddressFamily::INET
            } else {
                rustix::net::AddressFamily::INET6
            };
            // Datagrams: `connect` sends nothing. It may fail without a route; the address was told all the same.
            if let Ok(socket) = rustix::net::socket(domain, rustix::net::SocketType::DGRAM, None) {
                let _ = rustix::net::connect(&socket, &target);
            }
        }
        UnixStream::connect(Path::new("/nonexistent/socket"))
            .map(drop)
            .map_err(|error| error.kind())
    });
    let mut seen = Vec::new();
    let path = PeerAddress::Unix("/nonexistent/socket".into());
    while seen.last() != Some(&path) {
        let notification = next(&listener);
        seen.extend(
            notification
                .peer_address(&listener)
                .expect("the program's memory is readable"),
        );
        listener.proceed(&notification).expect("the program waits");
    }
    assert_eq!(program.join().expect("no panic"), Err(io::ErrorKind::NotFound));
    let internet = seen[..seen.len() - 1].to_vec();
    let expected = targets.map(PeerAddress::Internet);
    assert!(internet.iter().all(|peer| expected.contains(peer)), "{internet:?}");
    assert!(!internet.is_empty() || !std::path::Path::new("/proc/net/tcp").exists());
}

#[test]
fn a_wrong_pointer_is_an_error_and_not_an_address() {
    let options = FilterOptions {
        notify: false,
        observe_connect: true,
        ..NOTIFY
    };
    let (listener, program) = supervised(options, || errno(libc::SYS_connect, [u64::MAX, 8, 16, 0, 0]));
    let notification = next(&listener);
    let error = notification
        .peer_address(&listener)
        .expect_err("nothing is mapped at 8");
    assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
    listener.proceed(&notification).expect("the program waits");
    assert_ne!(program.join().expect("no panic"), 0);
}

#[test]
fn what_is_left_to_the_supervisor_ends_as_it_says() {
    let options = FilterOptions {
        host_namespaces: true,
        ..NOTIFY
    };
    let path = c"/no such file at all";
    let address = path.as_ptr().addr() as u64;
    let call = move || errno(libc::SYS_fchmodat, [u64::MAX, address, 0o600, 0, 0]);
    let (listener, program) = supervised(options, move || [call(), call()]);
    for outcome in [Ok(()), Err(rustix::io::Errno::XDEV)] {
        let told = next(&listener);
        assert!(told.mediated());
        assert_eq!(told.text(1).expect("the pointer is right"), path.to_bytes());
        assert!(told.text(2).is_err(), "a mode is no pointer");
        assert!(listener.still_waits_for(&told));
        listener.complete(&told, outcome).expect("the program waits");
    }
    assert_eq!(program.join().expect("no panic"), [0, libc::EXDEV]);
}

#[test]
fn a_refused_call_cannot_be_completed() {
    let (listener, program) = supervised(NOTIFY, || errno(libc::SYS_unshare, [0; 5]));
    let told = next(&listener);
    assert!(!told.mediated());
    listener.complete(&told, Ok(())).expect("the program waits");
    assert_eq!(program.join().expect("no panic"), EPERM);
}

#[test]
fn a_new_process_is_admitted_or_put_off() {
    let options = FilterOptions {
        count_forks: true,
        ..NOTIFY
    };
    // A number that is no set of flags: the kernel's own answer is an error, and no process is made.
    let call = || {
        errno(
            libc::SYS_clone,
            [u64::from(libc::CLONE_THREAD.cast_unsigned()), 0, 0, 0, 0],
        )
    };
    let (listener, program) = supervised(options, move || [call(), call()]);
    let told = next(&listener);
    assert!(told.forks() && !told.mediated());
    listener.proceed(&told).expect("the program waits");
    listener.postpone(&next(&listener)).expect("the program waits");
    assert_eq!(program.join().expect("no panic"), [libc::EINVAL, libc::EAGAIN]);
}

#[test]
fn a_new_namespace_is_refused_whatever_the_supervisor_says() {
    let options = FilterOptions {
        count_forks: true,
        ..NOTIFY
    };
    let (listener, program) = supervised(options, || errno(libc::SYS_clone, [0x1000_0000, 0, 0, 0, 0]));
    let told = next(&listener);
    assert!(!told.forks());
    listener.proceed(&told).expect("the program waits");
    assert_eq!(program.join().expect("no panic"), EPERM);
}

#[test]
fn a_renaming_is_left_to_the_kernel_or_answered_in_its_stead_unless_it_is_marked() {
    let options = FilterOptions {
        offer_renames: true,
        ..NOTIFY
    };
    let at = libc::AT_FDCWD.cast_unsigned().into();
    let call = move || errno(libc::SYS_renameat2, [at, 0, at, 0, 0]);
    let (listener, program) = supervised(options, move || {
        let asked = [call(), call()];
        let here = rustix::fs::CWD;
        // Neither is told: a marked one, and an exchange of names.
        let marked = crate::rename::by_kernel(here, c"/nowhere/a", here, c"/nowhere/b", true);
        let exchanged = errno(libc::SYS_renameat2, [at, 0, at, 0, 2]);
        (asked, marked, exchanged)
    });
    let told = next(&listener);
    assert!(told.offered() && !told.mediated() && !told.forks());
    listener.proceed(&told).expect("the program waits");
    listener
        .complete(&next(&listener), Err(rustix::io::Errno::NOTEMPTY))
        .expect("the program waits");
    let (asked, marked, exchanged) = program.join().expect("no panic");
    assert_eq!(asked, [libc::EFAULT, libc::ENOTEMPTY]);
    assert_eq!(marked, Err(rustix::io::Errno::NOENT));
    assert_eq!(exchanged, libc::EFAULT);
}
