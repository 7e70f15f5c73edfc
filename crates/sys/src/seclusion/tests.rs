//! Each step is taken in a child that is this test program again, since none can be undone.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use super::*;
use crate::seccomp;

/// Set in the child, to what it is to be.
const CHILD: &str = "OFFLEASH_TEST_SECLUSION";

/// Runs this very test in a process of its own, which `body` is the whole of.
fn in_a_child(test: &str, body: impl FnOnce()) {
    if std::env::var_os(CHILD).is_some() {
        return body();
    }
    #[expect(clippy::disallowed_methods, reason = "the test program starts itself")]
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, "1");
    let output = command.output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    assert!(told.contains("1 passed"), "{told}");
}

fn status(name: &str) -> String {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_start_matches(':').trim().to_owned()
}

#[test]
fn root_becomes_a_user_that_is_nobody_and_all_lose_their_capabilities() {
    in_a_child(
        "seclusion::tests::root_becomes_a_user_that_is_nobody_and_all_lose_their_capabilities",
        || {
            let before = rustix::process::getuid();
            become_own_user().unwrap();
            let now = rustix::process::getuid();
            match before.is_root() {
                true => assert!(now.as_raw() >= NOBODY, "{now:?}"),
                false => assert_eq!(now, before),
            }
            for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
                assert_eq!(status(set).trim_start_matches('0'), "", "{set}");
            }
            assert_eq!(status("NoNewPrivs"), "1");
            if before.is_root() {
                assert_eq!(status("CapBnd").trim_start_matches('0'), "");
                assert_eq!(status("Groups"), "");
            }
        },
    );
}

#[test]
fn nothing_of_the_machines_files_is_left_and_its_network_is() {
    in_a_child(
        "seclusion::tests::nothing_of_the_machines_files_is_left_and_its_network_is",
        || {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            assert!(std::fs::read_dir("/").unwrap().count() > 0);
            let left = leave_files();
            if left
                == (NoFiles {
                    has_empty_root: false,
                    has_landlock: false,
                })
            {
                println!("SKIP: neither an empty root nor Landlock can be had here");
                return;
            }
            for path in ["/etc/passwd", "/proc/self/status", "../../etc/passwd", "/tmp"] {
                assert!(std::fs::File::open(path).is_err(), "{path}");
            }
            assert!(std::fs::write("x", "x").is_err());
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut server, _) = listener.accept().unwrap();
            client.write_all(b"x").unwrap();
            server.read_exact(&mut [0]).unwrap();
        },
    );
}

#[test]
fn all_steps_together_leave_an_event_loop_of_sockets() {
    in_a_child(
        "seclusion::tests::all_steps_together_leave_an_event_loop_of_sockets",
        || {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            leave_files();
            become_own_user().unwrap();
            hide_memory(c"service").unwrap();
            seccomp::compile_service().install().unwrap();
            let denied = |error: io::Error| assert_eq!(error.raw_os_error(), Some(libc::EPERM));
            denied(std::fs::File::open("/").unwrap_err());
            denied(std::os::unix::net::UnixStream::pair().unwrap_err());
            denied(
                rustix::process::test_kill_process(rustix::process::getpid())
                    .unwrap_err()
                    .into(),
            );
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut server, _) = listener.accept().unwrap();
            client.write_all(b"x").unwrap();
            server.read_exact(&mut [0]).unwrap();
        },
    );
}
