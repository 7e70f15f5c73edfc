//! The filter on the running kernel. A filter holds for one thread, so each test gives one up.

use std::io;
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};

use crate::seccomp::{FilterOptions, compile};
use libc::{EAFNOSUPPORT, ENOSYS, EPERM, EPROTONOSUPPORT, c_long};

/// Runs `body` in a thread under the filter.
pub(super) fn under<T: Send + 'static>(options: FilterOptions, body: impl FnOnce() -> T + Send + 'static) -> T {
    let filter = compile(&options);
    let filtered = thread::spawn(move || {
        filter.install().expect("seccomp filters are supported");
        body()
    });
    filtered.join().expect("the filtered thread ends well")
}

/// The error of a raw call, 0 if it succeeds. Only for calls that cannot do harm, whoever answers them.
pub(super) fn errno(number: c_long, arguments: [u64; 5]) -> i32 {
    let [a, b, c, d, e] = arguments;
    // SAFETY: the callers pass no pointers except null and those of strings that outlive the call.
    let result = unsafe { libc::syscall(number, a, b, c, d, e) };
    if result == -1 {
        io::Error::last_os_error().raw_os_error().unwrap_or(0)
    } else {
        0
    }
}

fn number(number: i64, first: &[u64]) -> i32 {
    let mut arguments = [0; 5];
    arguments[..first.len()].copy_from_slice(first);
    errno(number, arguments)
}

/// Each call would have another answer from the kernel itself, for root as for anybody else.
#[test]
fn refused_calls_fail_with_the_filters_error() {
    under(FilterOptions::default(), || {
        assert_eq!(number(libc::SYS_unshare, &[0]), EPERM);
        assert_eq!(number(libc::SYS_setns, &[u64::MAX, 0]), EPERM);
        assert_eq!(
            number(libc::SYS_clone, &[0x0002_0200]),
            EPERM,
            "CLONE_NEWNS with CLONE_FS is EINVAL otherwise"
        );
        assert_eq!(number(libc::SYS_clone3, &[0, 0]), ENOSYS);
        assert_eq!(number(libc::SYS_openat2, &[0, 0, 0, 0]), ENOSYS);
        assert_eq!(number(libc::SYS_io_uring_setup, &[0, 0]), ENOSYS);
        assert_eq!(number(libc::SYS_umount2, &[0, 0]), EPERM);
        assert_eq!(number(libc::SYS_bpf, &[u64::MAX, 0, 0]), EPERM);
        assert_eq!(number(libc::SYS_seccomp, &[2, 0, 0]), ENOSYS);
        assert_eq!(number(500, &[]), ENOSYS);
        assert_eq!(number(0x4000_0000 | libc::SYS_getpid, &[]), ENOSYS);
    });
}

#[test]
fn only_the_allowed_socket_families_open() {
    under(FilterOptions::default(), || {
        let open = |family: i32, kind: u64, protocol: u64| {
            number(libc::SYS_socket, &[u64::from(family.cast_unsigned()), kind, protocol])
        };
        assert_eq!(open(libc::AF_UNIX, 1, 0), 0);
        assert_eq!(open(libc::AF_NETLINK, 3, 0), 0);
        assert_eq!(open(libc::AF_NETLINK, 3, 12), EPROTONOSUPPORT);
        assert_ne!(open(libc::AF_INET, 1, 0), EPERM);
        assert_eq!(open(libc::AF_INET, 3, 1), EPERM);
        assert_eq!(open(libc::AF_INET, 2, 1), EPROTONOSUPPORT);
        for family in [
            libc::AF_VSOCK,
            libc::AF_PACKET,
            libc::AF_ALG,
            libc::AF_XDP,
            libc::AF_TIPC,
        ] {
            assert_eq!(open(family, 1, 0), EAFNOSUPPORT, "family {family}");
        }
    });
}

#[test]
fn tiocsti_is_refused_with_high_bits_too() {
    under(FilterOptions::default(), || {
        for command in [0x5412, 0x1_0000_5412, 0xffff_ffff_0000_5412_u64] {
            assert_eq!(number(libc::SYS_ioctl, &[u64::MAX, command, 0]), EPERM, "{command:#x}");
        }
        assert_eq!(number(libc::SYS_ioctl, &[u64::MAX, 0x5401, 0]), libc::EBADF);
    });
}

/// A user without processes: `setpriority` for one who has some would change them all.
const NOBODYS: u64 = 4_000_000_000;

/// What the kernel would do otherwise: reserve, lease and limit.
#[test]
fn space_leases_and_limits_of_others_are_refused_where_the_kernel_grants_them() {
    let path = std::env::temp_dir().join(format!("offleash-seccomp-reserve-{}", std::process::id()));
    let file = std::fs::File::create_new(&path).expect("a writable temporary directory");
    std::fs::remove_file(&path).expect("the file is still there");
    let descriptor = u64::try_from(file.as_raw_fd()).expect("an open file");
    // struct space_resv: whence and type 0, start 0, length 1 MiB.
    let reserve: [u64; 6] = [0, 0, 1 << 20, 0, 0, 0];
    // One that Linux ignores, so that no other test changes it.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Rss);
    let limit = [limit.current, limit.maximum].map(|bound| bound.unwrap_or(u64::MAX));
    let me = u64::from(std::process::id());
    let attempts = move || {
        let [reserve, limit] = [reserve.as_ptr().addr(), limit.as_ptr().addr()].map(|address| address as u64);
        let ignored = u64::from(libc::RLIMIT_RSS);
        [
            number(libc::SYS_fallocate, &[descriptor, 0, 0, 1 << 20]),
            number(libc::SYS_ioctl, &[descriptor, 0x4030_5828, reserve]),
            number(libc::SYS_ioctl, &[descriptor, 0x4030_582a, reserve]),
            number(libc::SYS_fcntl, &[descriptor, 1024, 2]),
            number(libc::SYS_prlimit64, &[me, ignored, limit, 0]),
            number(libc::SYS_prlimit64, &[me, ignored, 0, 0]),
            number(libc::SYS_prlimit64, &[0, ignored, limit, 0]),
            number(libc::SYS_setpriority, &[2, NOBODYS, 0]),
        ]
    };
    let refused = under(FilterOptions::default(), attempts);
    assert_eq!(file.metadata().expect("an open file").len(), 0);
    let unsupported = libc::EOPNOTSUPP;
    assert_eq!(
        refused,
        [unsupported, unsupported, unsupported, EPERM, EPERM, 0, 0, EPERM]
    );
    // The file system of the temporary directory may lack the first three; the others work everywhere.
    assert_eq!(attempts()[4..], [0, 0, 0, libc::ESRCH]);
    file.set_len(0).expect("an open file");
    // SAFETY: `descriptor` is open; posix_fallocate touches no memory of the program.
    let fallback = under(FilterOptions::default(), move || unsafe {
        libc::posix_fallocate(i32::try_from(descriptor).unwrap_or(-1), 0, 1 << 16)
    });
    if cfg!(target_env = "gnu") {
        assert_eq!(fallback, 0, "glibc writes where it cannot reserve");
        assert_eq!(file.metadata().expect("an open file").len(), 1 << 16);
    }
}

#[test]
fn files_do_not_become_setuid() {
    let path = std::env::temp_dir().join(format!("offleash-seccomp-setuid-{}", std::process::id()));
    let file = std::fs::File::create(&path).expect("a writable temporary directory");
    let descriptor = u64::try_from(file.as_raw_fd()).expect("an open file");
    let answers = under(FilterOptions::default(), move || {
        [0o4755, 0o2755, 0x1_0000_0000_0000 | 0o6755, 0o644].map(|mode| number(libc::SYS_fchmod, &[descriptor, mode]))
    });
    let mode = rustix::fs::fstat(&file).expect("an open file").st_mode;
    std::fs::remove_file(&path).expect("the file is still there");
    assert_eq!(answers, [EPERM, EPERM, EPERM, 0]);
    assert_eq!(mode & 0o7777, 0o644);
}

/// The table has no condition for `mkdir` because of this.
#[test]
fn the_kernel_itself_drops_setuid_from_new_directories() {
    let path = std::env::temp_dir().join(format!("offleash-seccomp-mkdir-{}", std::process::id()));
    rustix::fs::mkdir(&path, rustix::fs::Mode::from_raw_mode(0o6755)).expect("a writable temporary directory");
    let mode = rustix::fs::stat(&path).expect("the new directory").st_mode;
    std::fs::remove_dir(&path).expect("the directory is still there");
    assert_eq!(mode & 0o4000, 0);
}

#[test]
fn threads_files_and_own_filters_work() {
    under(FilterOptions::default(), || {
        assert_eq!(
            thread::spawn(|| 42)
                .join()
                .expect("clone serves where clone3 is absent"),
            42
        );
        assert!(std::fs::read_dir("/").expect("directories list").count() > 0);
        // Another filter on top, by the way that is open to programs.
        let allow = [libc::sock_filter {
            code: 6,
            jt: 0,
            jf: 0,
            k: libc::SECCOMP_RET_ALLOW,
        }];
        let program = libc::sock_fprog {
            len: 1,
            filter: allow.as_ptr().cast_mut(),
        };
        // SAFETY: `program` points at one instruction that outlives the call; the kernel copies it.
        let result = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
        assert_eq!(result, 0);
        assert_eq!(number(libc::SYS_unshare, &[0]), EPERM, "and it can only take away");
    });
}

#[test]
fn a_filter_that_asks_is_not_installed_without_a_supervisor() {
    for options in [
        FilterOptions {
            notify: true,
            ..FilterOptions::default()
        },
        FilterOptions {
            observe_connect: true,
            ..FilterOptions::default()
        },
    ] {
        let outcome = thread::spawn(move || compile(&options).install())
            .join()
            .expect("no panic");
        assert_eq!(outcome.map_err(|error| error.kind()), Err(io::ErrorKind::InvalidInput));
    }
}

/// How a child process that runs `body` ends. `body` may only make system calls: the test harness has other threads,
/// whose locks a child never sees released.
fn status_of(body: impl Fn()) -> i32 {
    // SAFETY: the child makes system calls only, then leaves without running destructors.
    let child = unsafe { libc::fork() };
    if child == 0 {
        body();
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(0) }
    }
    let mut status = 0;
    // SAFETY: `child` is an own child that nobody else waits for; the kernel writes into `status`.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(waited, child);
    status
}

#[cfg(target_arch = "x86_64")]
#[test]
fn the_32_bit_way_into_the_kernel_kills() {
    fn getpid_by_int_0x80() {
        // SAFETY: getpid (20 in the 32-bit numbering) touches no memory; the interrupt preserves all other registers
        // but r8 to r11, which older kernels clear.
        unsafe {
            std::arch::asm!("int 0x80", inlateout("eax") 20 => _, out("r8") _, out("r9") _, out("r10") _, out("r11") _)
        };
    }
    if !libc::WIFEXITED(status_of(getpid_by_int_0x80)) {
        println!("skipped: this kernel has no 32-bit system calls");
        return;
    }
    let filter = compile(&FilterOptions::default());
    let status = status_of(|| {
        if filter.install().is_ok() {
            getpid_by_int_0x80();
        }
    });
    assert!(libc::WIFSIGNALED(status), "status {status:#x}");
    assert_eq!(libc::WTERMSIG(status), libc::SIGSYS);
}

#[test]
fn a_shell_pipeline_runs_under_the_filter() {
    let script = c"set -e; cd /; test \"$(echo one two | cat | tr a-z A-Z)\" = 'ONE TWO'; (exit 3) || test $? = 3";
    let arguments = [c"sh".as_ptr(), c"-c".as_ptr(), script.as_ptr(), std::ptr::null()];
    let environment = [c"PATH=/usr/bin:/bin".as_ptr(), std::ptr::null()];
    let filter = compile(&FilterOptions::default());
    let status = status_of(|| {
        if filter.install().is_ok() {
            // SAFETY: both arrays are live, end in null and hold C strings.
            unsafe { libc::execve(c"/bin/sh".as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
        }
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(99) }
    });
    assert!(libc::WIFEXITED(status), "status {status:#x}");
    assert_eq!(libc::WEXITSTATUS(status), 0);
}

/// A number for the reader; machines differ too much to bound it.
#[test]
fn compiling_and_installing_are_measured() {
    let compiled = median(|| {
        let start = Instant::now();
        std::hint::black_box(compile(&FilterOptions::default()));
        start.elapsed()
    });
    let filter = compile(&FilterOptions::default());
    let installed = median(|| {
        let filter = filter.clone();
        let installed = thread::spawn(move || {
            let start = Instant::now();
            filter.install().expect("seccomp filters are supported");
            start.elapsed()
        });
        installed.join().expect("no panic")
    });
    println!("compile {compiled:?}, install {installed:?}");
}

fn median(measure: impl FnMut() -> Duration) -> Duration {
    let mut times: Vec<Duration> = std::iter::repeat_with(measure).take(51).collect();
    times.sort_unstable();
    times[25]
}

#[test]
fn a_stream_pair_reaches_its_peer_alone_whatever_it_tries() {
    let options = FilterOptions {
        host_namespaces: true,
        ..FilterOptions::default()
    };
    let directory = std::env::temp_dir().join(format!("offleash-pair-{}", std::process::id()));
    let listener = std::os::unix::net::UnixListener::bind(&directory).expect("a socket can be bound");
    let mut address = [0_u8; 110];
    address[0] = 1; // AF_UNIX
    let path = directory.as_os_str().as_encoded_bytes();
    address[2..2 + path.len()].copy_from_slice(path);
    let outcomes = under(options, move || {
        let (one, other) = std::os::unix::net::UnixStream::pair().expect("stream pairs open");
        drop(other);
        let descriptor = u64::from(one.as_raw_fd().cast_unsigned());
        let pointer = address.as_ptr().addr() as u64;
        let connect = errno(libc::SYS_connect, [descriptor, pointer, 110, 0, 0]);
        (
            connect,
            std::os::unix::net::UnixDatagram::pair().map_err(|error| error.raw_os_error()),
        )
    });
    std::fs::remove_file(&directory).expect("the socket's file is ours");
    drop(listener);
    assert_eq!(outcomes.0, libc::EISCONN);
    assert_eq!(outcomes.1.expect_err("datagram pairs do not open"), Some(EPERM));
}
