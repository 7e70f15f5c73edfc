//! Landlock on the running kernel. A restriction holds for one thread, so each test gives one up.

use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;

use super::{EnforcedRights, GrantAccess, LandlockRestriction, PathGrant, abi, restrict_self};

/// A directory of its own for one test, removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("offleash-landlock-{name}-{}", std::process::id()));
        for directory in ["inside/sub", "outside"] {
            fs::create_dir_all(path.join(directory)).expect("a writable temporary directory");
        }
        for file in ["inside/file", "inside/sub/file", "outside/file"] {
            fs::write(path.join(file), "content").expect("a writable temporary directory");
        }
        Scratch(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).expect("the directory is still there");
    }
}

/// Runs `body` in a thread that may use only these paths, or nothing where the kernel has no Landlock.
fn restricted<T: Send + 'static>(
    grants: &[(&Path, GrantAccess)],
    scope: LandlockRestriction<'static>,
    body: impl FnOnce(EnforcedRights) -> T + Send + 'static,
) -> Option<T> {
    if abi().expect("landlock answers").is_none() {
        println!("skipped: this kernel has no Landlock");
        return None;
    }
    let open = |(path, access): &(&Path, GrantAccess)| (File::open(path).expect("a path that exists"), *access);
    let files: Vec<(File, GrantAccess)> = grants.iter().map(open).collect();
    let thread = thread::spawn(move || {
        let grants: Vec<PathGrant<'_>> = files
            .iter()
            .map(|(file, access)| PathGrant {
                fd: file.as_fd(),
                access: *access,
            })
            .collect();
        let enforced = restrict_self(&LandlockRestriction {
            grants: &grants,
            ..scope
        })
        .expect("landlock is supported");
        body(enforced)
    });
    Some(thread.join().expect("the restricted thread ends well"))
}

const FILES_ONLY: LandlockRestriction<'static> = LandlockRestriction {
    grants: &[],
    scope_signals: false,
    scope_abstract_sockets: false,
    deny_tcp: false,
};

fn denied<T>(outcome: io::Result<T>) -> bool {
    outcome.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
}

#[test]
fn what_is_not_granted_is_denied() {
    let scratch = Scratch::new("none");
    let (inside, outside) = (scratch.path("inside"), scratch.path("outside"));
    restricted(&[(&inside, GrantAccess::Read)], FILES_ONLY, {
        let inside = inside.clone();
        move |_| {
            assert_eq!(fs::read(inside.join("sub/file")).expect("granted"), b"content");
            assert!(fs::read_dir(&inside).is_ok());
            assert!(denied(fs::read(outside.join("file"))));
            assert!(denied(fs::read_dir(&outside)));
            assert!(denied(fs::read(inside.join("../outside/file"))));
            assert!(denied(fs::read_dir("/")));
        }
    });
}

#[test]
fn reading_does_not_include_changing() {
    let scratch = Scratch::new("read");
    let inside = scratch.path("inside");
    restricted(
        &[(&inside.clone(), GrantAccess::ReadExecute)],
        FILES_ONLY,
        move |enforced| {
            assert!(denied(fs::write(inside.join("new"), "")));
            assert!(denied(File::options().append(true).open(inside.join("file"))));
            assert!(denied(fs::remove_file(inside.join("file"))));
            assert!(denied(fs::create_dir(inside.join("new"))));
            assert!(denied(fs::remove_dir(inside.join("sub"))));
            assert!(denied(std::os::unix::fs::symlink("file", inside.join("new"))));
            assert!(denied(UnixListener::bind(inside.join("new"))));
            if enforced.truncate {
                let truncated = rustix::fs::open(
                    inside.join("file"),
                    rustix::fs::OFlags::TRUNC,
                    rustix::fs::Mode::empty(),
                );
                assert_eq!(truncated.err(), Some(rustix::io::Errno::ACCESS));
            }
        },
    );
}

#[test]
fn writing_includes_every_change_but_device_nodes() {
    let scratch = Scratch::new("write");
    let inside = scratch.path("inside");
    restricted(&[(&inside.clone(), GrantAccess::Write)], FILES_ONLY, move |enforced| {
        fs::write(inside.join("new"), "x").expect("making and writing a file");
        fs::write(inside.join("file"), "").expect("truncating a file");
        fs::rename(inside.join("new"), inside.join("renamed")).expect("renaming a file");
        fs::create_dir(inside.join("directory")).expect("making a directory");
        std::os::unix::fs::symlink("file", inside.join("link")).expect("making a link");
        UnixListener::bind(inside.join("socket")).expect("making a socket");
        make(&inside.join("fifo"), rustix::fs::FileType::Fifo).expect("making a fifo");
        let moved = fs::rename(inside.join("renamed"), inside.join("sub/renamed"));
        assert_eq!(moved.is_ok(), enforced.refer, "{moved:?}");
        fs::remove_dir(inside.join("directory")).expect("removing a directory");
        fs::remove_file(inside.join("link")).expect("removing a link");
        assert!(make(&inside.join("null"), rustix::fs::FileType::CharacterDevice).is_err());
        assert!(make(&inside.join("disk"), rustix::fs::FileType::BlockDevice).is_err());
    });
}

fn make(path: &Path, kind: rustix::fs::FileType) -> rustix::io::Result<()> {
    let device = rustix::fs::makedev(1, 3);
    rustix::fs::mknodat(
        rustix::fs::CWD,
        path,
        kind,
        rustix::fs::Mode::from_raw_mode(0o600),
        device,
    )
}

#[test]
fn a_file_can_be_granted_by_itself() {
    let scratch = Scratch::new("file");
    let (file, sibling) = (scratch.path("inside/file"), scratch.path("inside/sub/file"));
    let grants = [
        (file.as_path(), GrantAccess::WriteExecute),
        (sibling.as_path(), GrantAccess::List),
    ];
    restricted(&grants, FILES_ONLY, {
        let (file, sibling) = (file.clone(), sibling.clone());
        move |_| {
            fs::write(&file, "changed").expect("granted");
            assert!(denied(fs::read(&sibling)), "listing a file gives nothing");
            assert!(denied(fs::remove_file(&file)), "which the directory decides");
        }
    });
}

#[test]
fn executing_needs_a_grant() {
    if abi().expect("landlock answers").is_none() {
        println!("skipped: this kernel has no Landlock");
        return;
    }
    let scratch = Scratch::new("execute");
    let program = scratch.path("inside/file");
    rustix::fs::chmod(&program, rustix::fs::Mode::from_raw_mode(0o755)).expect("an own file");
    let inside = File::open(scratch.path("inside")).expect("an own directory");
    let program = CString::new(program.into_os_string().into_encoded_bytes()).expect("no zero byte");
    // An exec of something that is no program ends in ENOEXEC, if it is allowed.
    for (access, errno) in [
        (GrantAccess::Read, libc::EACCES),
        (GrantAccess::Write, libc::EACCES),
        (GrantAccess::ReadExecute, libc::ENOEXEC),
        (GrantAccess::WriteExecute, libc::ENOEXEC),
        (GrantAccess::Execute, libc::ENOEXEC),
    ] {
        let grants = [PathGrant {
            fd: inside.as_fd(),
            access,
        }];
        assert_eq!(
            exec_error(
                &LandlockRestriction {
                    grants: &grants,
                    ..FILES_ONLY
                },
                &program
            ),
            errno,
            "{access:?}"
        );
    }
}

/// The error of an exec under a restriction, in a process of its own: while one thread of a process execs, the
/// others cannot start threads (clone(2), EAGAIN).
fn exec_error(restriction: &LandlockRestriction<'_>, program: &CStr) -> i32 {
    let nothing = [std::ptr::null()];
    // SAFETY: the child makes system calls only, then leaves without running destructors.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let outcome = restrict_self(restriction);
        // SAFETY: `program` is a live C string and both arrays are empty; the file is no program, so the call returns.
        unsafe { libc::execve(program.as_ptr(), nothing.as_ptr(), nothing.as_ptr()) };
        let error = io::Error::last_os_error().raw_os_error().filter(|_| outcome.is_ok());
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(error.unwrap_or(255)) }
    }
    let mut status = 0;
    // SAFETY: `child` is an own child that nobody else waits for; the kernel writes into `status`.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(waited, child);
    assert!(libc::WIFEXITED(status), "status {status:#x}");
    libc::WEXITSTATUS(status)
}

#[test]
fn tcp_is_denied_on_request() {
    for deny_tcp in [false, true] {
        restricted(&[], LandlockRestriction { deny_tcp, ..FILES_ONLY }, move |enforced| {
            assert_eq!(enforced.tcp, deny_tcp && enforced.abi >= 4);
            assert_eq!(denied(TcpListener::bind("127.0.0.1:0")), enforced.tcp);
            assert_eq!(denied(TcpStream::connect("127.0.0.1:1")), enforced.tcp);
        });
    }
}

#[test]
fn abstract_sockets_and_signals_stay_inside_on_request() {
    let name = format!("offleash-landlock-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(name).expect("a short name");
    let server = UnixListener::bind_addr(&address).expect("a name of our own");
    for scoped in [false, true] {
        let address = address.clone();
        let scope = LandlockRestriction {
            scope_abstract_sockets: scoped,
            scope_signals: scoped,
            ..FILES_ONLY
        };
        restricted(&[], scope, move |enforced| {
            assert_eq!(enforced.signals, scoped && enforced.abi >= 6);
            assert_eq!(enforced.abstract_sockets, scoped && enforced.abi >= 6);
            let connected = UnixStream::connect_addr(&address).map_err(|error| error.raw_os_error());
            let expected = if enforced.abstract_sockets {
                Err(Some(libc::EPERM))
            } else {
                Ok(())
            };
            assert_eq!(connected.map(drop), expected);
            let parent = rustix::process::getppid().expect("the harness has a parent");
            let signalled = rustix::process::test_kill_process(parent);
            if enforced.signals {
                assert_eq!(signalled, Err(rustix::io::Errno::PERM));
            }
        });
    }
    drop(server);
}

#[test]
fn device_commands_need_a_writing_grant() {
    let null = Path::new("/dev/null");
    for (access, needed) in [(GrantAccess::Read, true), (GrantAccess::Write, false)] {
        restricted(&[(null, access)], FILES_ONLY, move |enforced| {
            let file = File::open(null).expect("granted");
            let asked = rustix::termios::tcgetattr(&file).map(drop);
            let expected = if needed && enforced.ioctl_dev {
                rustix::io::Errno::ACCESS
            } else {
                rustix::io::Errno::NOTTY
            };
            assert_eq!(asked, Err(expected), "{access:?}");
        });
    }
}

#[test]
fn older_kernels_enforce_less_and_say_so() {
    let all = LandlockRestriction {
        scope_signals: true,
        scope_abstract_sockets: true,
        deny_tcp: true,
        ..FILES_ONLY
    };
    let by = |abi| {
        let e = EnforcedRights::by(abi, &all);
        [e.refer, e.truncate, e.tcp, e.ioctl_dev, e.signals, e.abstract_sockets]
    };
    assert_eq!(by(1), [false; 6]);
    assert_eq!(by(2), [true, false, false, false, false, false]);
    assert_eq!(by(3), [true, true, false, false, false, false]);
    assert_eq!(by(4), [true, true, true, false, false, false]);
    assert_eq!(by(5), [true, true, true, true, false, false]);
    assert_eq!(by(6), [true; 6]);
    assert_eq!(by(99), [true; 6]);
    assert_eq!(EnforcedRights::by(1, &all).file_rights(), 0x1fff);
    assert_eq!(EnforcedRights::by(7, &all).file_rights(), 0xffff);
}

/// A number for the reader; machines differ too much to bound it.
#[test]
fn restricting_is_measured() {
    let grants = [
        Path::new("/"),
        Path::new("/dev"),
        Path::new("/proc"),
        Path::new("/tmp"),
        Path::new("/dev/null"),
    ];
    let measured = |path| (path, GrantAccess::Read);
    if abi().expect("landlock answers").is_none() {
        println!("skipped: this kernel has no Landlock");
        return;
    }
    let files = grants
        .map(measured)
        .map(|(path, access)| (File::open(path).expect("a path that exists"), access));
    let mut times: Vec<_> = std::iter::repeat_with(|| {
        let files: Vec<_> = files
            .iter()
            .map(|(file, access)| (file.try_clone().expect("an open file"), *access))
            .collect();
        let thread = thread::spawn(move || {
            let grants: Vec<PathGrant<'_>> = files
                .iter()
                .map(|(file, access)| PathGrant {
                    fd: file.as_fd(),
                    access: *access,
                })
                .collect();
            let start = Instant::now();
            restrict_self(&LandlockRestriction {
                grants: &grants,
                ..FILES_ONLY
            })
            .expect("landlock is supported");
            start.elapsed()
        });
        thread.join().expect("no panic")
    })
    .take(31)
    .collect();
    times.sort_unstable();
    println!("five grants: {:?}", times[15]);
}
