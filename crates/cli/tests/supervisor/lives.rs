//! How a sandbox that is kept ends, and what is left when somebody dies.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use offleash_core::error::ErrorKind;
use offleash_protocol::encode;
use offleash_supervisor::frames::frame;
use offleash_supervisor::roles::{SUPERVISE_COMMAND, SupervisorRole};
use offleash_supervisor::service::answer::{LaunchAnswer, MadeSandbox};
use offleash_supervisor::service::message::{
    EndReason, Ended, Hello, Selector, SupervisorReply, SupervisorRequest, VERSION,
};
use offleash_supervisor::service::order::{ENDED, SOCKET};
use offleash_supervisor::service::{SupervisorClient, SupervisorError};
use rustix::process::{Pid, Signal, kill_process};

use super::support::Site;
use super::support::processes::{eventually, long_sleep, processes_with};
use super::world::{Kept, collect, exists, id, is_supervisor, launch, order, remains, shell, test, until, within};

#[test]
fn a_supervisor_says_who_it_is() {
    test(async {
        let kept = Kept::new().await;
        let hello = kept.supervisor.hello().await.unwrap();
        assert_eq!(hello, kept.hello);
        assert_eq!(
            (hello.version, hello.id.as_str(), hello.paused),
            (VERSION, &*id(&kept.site), false)
        );
        assert_eq!(hello.users[0].home, "/home/user");
        assert!(is_supervisor(hello.pid));
    });
}

#[test]
fn a_supervisor_of_another_version_is_told_from_one_that_is_gone() {
    test(async {
        let site = Site::new();
        let directory = site.root().join("other");
        std::fs::create_dir(&directory).unwrap();
        let listener = std::os::unix::net::UnixListener::bind(directory.join(SOCKET)).unwrap();
        let hello = Hello {
            version: VERSION + 1,
            id: "iother".parse().unwrap(),
            pid: std::process::id(),
            paused: false,
            level: offleash_core::level::Level::Process,
            started_at: String::new(),
            users: Vec::new(),
            enforced: [].into(),
            not_enforced: [].into(),
        };
        let other = std::thread::spawn(move || {
            use std::io::{Read as _, Write as _};

            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = vec![0; encode(&SupervisorRequest::Hello).unwrap().len()];
            stream.read_exact(&mut asked).unwrap();
            stream
                .write_all(&encode(&SupervisorReply::Hello(hello)).unwrap())
                .unwrap();
        });
        let error = SupervisorClient::in_directory(&directory).hello().await.unwrap_err();
        other.join().unwrap();
        assert!(
            matches!(error, SupervisorError::OtherVersion { found } if found == VERSION + 1),
            "{error:?}"
        );
    });
}

#[test]
fn killing_a_sandbox_ends_its_streams_and_leaves_nothing() {
    test(async {
        let kept = Kept::new().await;
        let mut stream = kept.shell("echo up; exec sleep 1777.25").await;
        until(&mut stream, "up").await;
        let ended = kept.supervisor.kill().await.unwrap();
        assert_eq!(ended.reason, EndReason::Killed);
        assert_eq!(within(stream.next()).await.unwrap(), None);
        assert!(!exists(&kept.directory().join(SOCKET)));
        let noted = std::fs::read(kept.directory().join(ENDED)).unwrap();
        assert_eq!(serde_json::from_slice::<Ended>(&noted).unwrap(), ended);
        assert_eq!(remains(&kept.site), Vec::<PathBuf>::new());
        for error in [
            kept.supervisor.kill().await.unwrap_err(),
            kept.supervisor.hello().await.unwrap_err(),
            kept.supervisor.start(shell("true")).await.unwrap_err(),
        ] {
            assert!(matches!(error, SupervisorError::Gone), "{error:?}");
        }
        eventually("the supervisor ends", || (!is_supervisor(kept.hello.pid)).then_some(()));
    });
}

/// What a client says of a request of `length` bytes, none of which it has sent.
fn head(length: u32) -> [u8; 4] {
    length.to_le_bytes()
}

#[test]
fn requests_that_never_end_take_a_bounded_part_of_memory_and_keep_nobody_waiting() {
    const LENGTH: usize = 7 * 1024 * 1024;
    // More than 450 MiB in all.
    const CLIENTS: usize = 64;
    const MAX_RESIDENT_KIB: u64 = 192 * 1024;
    test(async {
        let kept = Kept::new().await;
        let path = kept.directory().join(SOCKET);
        let connect = || {
            let client = UnixStream::connect(&path).unwrap();
            client.set_nonblocking(true).unwrap();
            (client, 0)
        };
        let mut clients: Vec<(UnixStream, usize)> = (0..CLIENTS).map(|_| connect()).collect();
        let piece = vec![1; 256 * 1024];
        let announced = head(u32::try_from(LENGTH + 1).unwrap());
        for (client, _) in &mut clients {
            client.write_all(&announced).unwrap();
        }
        let mut sent = 0;
        for _ in 0..200 {
            for (client, of_client) in &mut clients {
                let left = (LENGTH - *of_client).min(piece.len());
                // It takes no more now, or it has hung up.
                let taken = client.write(&piece[..left]).unwrap_or(0);
                *of_client += taken;
                sent += taken;
            }
            // Others are answered, small requests at once.
            within(kept.supervisor.hello()).await.unwrap();
            let resident = resident_kib(kept.hello.pid);
            assert!(resident < MAX_RESIDENT_KIB, "{resident} KiB");
        }
        assert!(sent > 60 * 1024 * 1024, "{sent}: nothing was to be bounded");
        drop(clients);
        // A large one gets its turn.
        let mut start = shell("exec wc -c");
        start.stdin = true;
        let stream = within(kept.supervisor.start(start)).await.unwrap();
        let which = Selector::Pid(stream.pid());
        within(kept.supervisor.input(&which, vec![b'x'; 1024 * 1024]))
            .await
            .unwrap();
        within(kept.supervisor.close_input(&which)).await.unwrap();
        assert_eq!(collect(stream).await.0.trim(), "1048576");
    });
}

fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn nothing_outlives_a_supervisor_that_is_killed() {
    test(async {
        let kept = Kept::new().await;
        let sleep = long_sleep();
        let mut stream = kept.shell(&format!("setsid sleep {sleep} & echo up; wait")).await;
        until(&mut stream, "up").await;
        eventually("the sleep starts", || {
            (!processes_with(&sleep).is_empty()).then_some(())
        });
        kept.kill_supervisor();
        assert_eq!(within(stream.next()).await.unwrap(), None);
        eventually("everything inside dies", || {
            processes_with(&sleep).is_empty().then_some(())
        });
        for error in [
            kept.supervisor.hello().await.unwrap_err(),
            kept.supervisor.processes().await.unwrap_err(),
        ] {
            assert!(matches!(error, SupervisorError::Gone), "{error:?}");
        }
        eventually("the supervisor is gone", || {
            (!is_supervisor(kept.hello.pid)).then_some(())
        });
        kept.site.succeed(["run", "--quiet", "--", "true"]);
        assert_eq!(remains(&kept.site), Vec::<PathBuf>::new());
    });
}

#[test]
fn a_sandbox_whose_first_process_dies_is_over() {
    test(async {
        let kept = Kept::new().await;
        let stream = kept.shell("sleep 1000").await;
        let supervisor = kept.hello.pid;
        let children = std::fs::read_to_string(format!("/proc/{supervisor}/task/{supervisor}/children")).unwrap();
        let first: i32 = children.split_whitespace().next().unwrap().parse().unwrap();
        kill_process(Pid::from_raw(first).unwrap(), Signal::KILL).unwrap();
        assert_eq!(collect(stream).await.1, None);
        eventually("the supervisor ends", || (!is_supervisor(supervisor)).then_some(()));
        let noted = std::fs::read(kept.directory().join(ENDED)).unwrap();
        assert_eq!(serde_json::from_slice::<Ended>(&noted).unwrap().reason, EndReason::Lost);
        assert_eq!(remains(&kept.site), Vec::<PathBuf>::new());
    });
}

#[test]
fn a_sandbox_whose_directory_is_removed_is_over() {
    test(async {
        let kept = Kept::new().await;
        let stream = kept.shell("sleep 1000").await;
        std::fs::remove_dir_all(kept.directory()).unwrap();
        assert_eq!(collect(stream).await.1, None);
        eventually("the supervisor ends", || (!is_supervisor(kept.hello.pid)).then_some(()));
        assert_eq!(remains(&kept.site), Vec::<PathBuf>::new());
    });
}

#[test]
fn a_sandbox_that_cannot_be_made_leaves_nothing_and_says_why() {
    let site = Site::new();
    let mut bad = order(&site);
    bad.network.allow = vec!["*.com".to_owned()];
    match launch(&bad) {
        LaunchAnswer::NotMade { kind, message, .. } => {
            assert_eq!(kind, ErrorKind::Invalid);
            assert!(message.contains("*.com"), "{message}");
        }
        made @ LaunchAnswer::Made(_) => panic!("{made:?}"),
    }
    let mut bad = order(&site);
    bad.level = Some(offleash_core::level::Level::Microvm);
    assert!(matches!(
        launch(&bad),
        LaunchAnswer::NotMade {
            kind: ErrorKind::Unsupported,
            ..
        }
    ));
    // A second one in the same place does not disturb the first.
    test(async {
        let kept = Kept::new().await;
        assert!(matches!(launch(&order(&kept.site)), LaunchAnswer::NotMade { .. }));
        assert_eq!(kept.output("echo lives").await, "lives\n");
    });
    assert_eq!(remains(&site), Vec::<PathBuf>::new());
    assert!(!exists(&order(&site).socket()));
}

#[test]
fn a_sandbox_of_which_nobody_has_heard_is_ended() {
    let site = Site::new();
    let order = order(&site);
    let mut command = Command::new(super::support::binary());
    command
        .args([SUPERVISE_COMMAND, SupervisorRole::Sandbox.word()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    let order_frame = frame(&order).unwrap();
    child.stdin.take().unwrap().write_all(&order_frame).unwrap();
    assert!(!child.wait().unwrap().success());
    assert_eq!(remains(&site), Vec::<PathBuf>::new());
    assert!(!exists(&order.socket()));
}

#[test]
fn hostile_bytes_on_the_socket_harm_only_whoever_sends_them() {
    test(async {
        let kept = Kept::new().await;
        let connect = || UnixStream::connect(kept.directory().join(SOCKET)).unwrap();
        let hello = encode(&SupervisorRequest::Hello).unwrap();
        let two = [hello.clone(), hello.clone()].concat();
        for hostile in [
            &[0xff_u8; 4096][..],
            &[0; 4],
            &[1, 0, 0, 0, 0xfe],
            b"GET / HTTP/1.1\r\n\r\n",
            &two,
        ] {
            let mut stream = connect();
            // It may have been hung up on already.
            let _sent = stream.write_all(hostile);
            let mut answer = Vec::new();
            let _read = stream.read_to_end(&mut answer);
            assert!(answer.is_empty(), "{hostile:?} {answer:?}");
        }
        // Requests that never come in full, and clients that go in the middle of one.
        let slow: Vec<UnixStream> = (0..100)
            .map(|number| {
                let mut stream = connect();
                stream.write_all(&hello[..number % hello.len()]).unwrap();
                stream
            })
            .collect();
        assert_eq!(kept.output("echo lives").await, "lives\n");
        drop(slow);
        assert_eq!(kept.supervisor.hello().await.unwrap(), kept.hello);
    });
}

#[test]
fn a_socket_that_nobody_serves_is_a_sandbox_that_is_gone() {
    test(async {
        let site = Site::new();
        let directory = site.root().join("x".repeat(200));
        let supervisor = SupervisorClient::in_directory(&directory);
        let gone = supervisor.hello().await.unwrap_err();
        assert!(matches!(gone, SupervisorError::Gone), "{gone:?}");
        std::fs::create_dir(&directory).unwrap();
        let gone = supervisor.hello().await.unwrap_err();
        assert!(matches!(gone, SupervisorError::Gone), "{gone:?}");
        std::fs::write(directory.join(SOCKET), "").unwrap();
        let gone = supervisor.start(shell("true")).await.unwrap_err();
        assert!(matches!(gone, SupervisorError::Gone), "{gone:?}");
    });
}

#[test]
fn a_sandbox_may_be_deep_in_the_file_system() {
    test(async {
        let site = Site::new();
        let mut order = order(&site);
        let directory = site.state().join("d".repeat(120)).join("e".repeat(120));
        std::fs::create_dir_all(&directory).unwrap();
        order.directory = directory.as_path().into();
        let MadeSandbox { hello, descent, .. } = launch(&order).into_result().unwrap();
        let supervisor = SupervisorClient::in_directory(&directory);
        let kept = Kept {
            site,
            supervisor,
            hello,
            descent,
        };
        assert_eq!(kept.output("echo deep").await, "deep\n");
    });
}
