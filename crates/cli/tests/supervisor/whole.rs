//! A sandbox that is kept as a whole: paused and resumed, its ports, its network, what it uses.

use std::time::{Duration, Instant};

use offleash_core::exec::ExecEnd;
use offleash_supervisor::service::SupervisorError;
use offleash_supervisor::service::message::Selector;
use offleash_supervisor::service::order::NetworkOrder;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::support::processes::eventually;
use super::world::{Kept, collect, is_supervisor, remains, shell, test, until, within};

/// Counts for as long as it runs, and catches every signal that can be caught.
const COUNTER: &str = "i=0; while :; do i=$((i+1)); echo $i > /tmp/count; done";

async fn paused_and_resumed(kept: &Kept) {
    let mut stream = kept.shell(&format!("({COUNTER}) & ({COUNTER}) & echo up; wait")).await;
    until(&mut stream, "up").await;
    let mut timed = shell("sleep 1000");
    timed.timeout_ms = Some(600_000);
    let timed = kept.supervisor.start(timed).await.unwrap();
    let before = kept.supervisor.usage().await.unwrap();
    kept.supervisor.pause().await.unwrap();
    kept.supervisor.pause().await.unwrap();
    assert!(kept.supervisor.hello().await.unwrap().paused);
    let paused = kept.supervisor.usage().await.unwrap();
    assert!(paused.cpu_us >= before.cpu_us);
    tokio::time::sleep(Duration::from_millis(300)).await;
    let later = kept.supervisor.usage().await.unwrap();
    assert_eq!(later.cpu_us, paused.cpu_us, "something ran");
    let which = Selector::Pid(stream.pid());
    for error in [
        kept.supervisor.start(shell("true")).await.unwrap_err(),
        kept.supervisor.input(&which, b"x".to_vec()).await.unwrap_err(),
        kept.supervisor.signal(&which, 9).await.unwrap_err(),
        kept.supervisor.files(None).await.unwrap_err(),
        kept.supervisor.port(80).await.unwrap_err(),
    ] {
        assert!(matches!(error, SupervisorError::Paused), "{error:?}");
    }
    assert_eq!(kept.supervisor.processes().await.unwrap().len(), 2);
    kept.supervisor.resume().await.unwrap();
    kept.supervisor.resume().await.unwrap();
    assert!(!kept.supervisor.hello().await.unwrap().paused);
    assert_eq!(kept.output("echo again").await, "again\n");
    let first = kept.output("cat /tmp/count").await;
    while kept.output("cat /tmp/count").await == first {}
    kept.supervisor.signal(&which, 9).await.unwrap();
    assert_eq!(collect(stream).await.1, Some(ExecEnd::Signaled { signal: 9 }));
    kept.supervisor.signal(&Selector::Pid(timed.pid()), 9).await.unwrap();
    assert_eq!(collect(timed).await.1, Some(ExecEnd::Signaled { signal: 9 }));
}

#[test]
fn nothing_runs_while_a_sandbox_is_paused_and_all_goes_on() {
    test(async {
        let kept = Kept::new().await;
        paused_and_resumed(&kept).await;
        paused_and_resumed(&kept).await;
    });
}

/// Starts a program by vfork(2), whose child waits for somebody to open the other end of a pipe before it runs it.
const WAITING_FOR_ITS_CHILD: &str = r#"
import os
os.mkfifo("/tmp/pipe")
print("up", flush=True)
child = os.posix_spawn("/bin/echo", ["echo", "started"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 3, "/tmp/pipe", os.O_RDONLY, 0)])
os.waitpid(child, 0)
"#;

#[test]
fn one_that_waits_for_its_child_to_start_can_be_paused() {
    test(async {
        let kept = Kept::new().await;
        let mut start = shell("exec python3 -c \"$PROGRAM\"");
        start.env = vec![(b"PROGRAM".to_vec(), WAITING_FOR_ITS_CHILD.as_bytes().to_vec())];
        let mut stream = kept.supervisor.start(start).await.unwrap();
        until(&mut stream, "up").await;
        let waiting = format!("until grep -q 'disk sleep' /proc/{}/status; do :; done", stream.pid());
        assert_eq!(kept.output(&waiting).await, "");
        kept.supervisor.pause().await.unwrap();
        kept.supervisor.resume().await.unwrap();
        assert_eq!(kept.output(": > /tmp/pipe").await, "");
        let (output, end) = collect(stream).await;
        assert_eq!(output, "started\n");
        assert_eq!(end, Some(ExecEnd::Exited { code: 0 }));
    });
}

#[test]
fn a_paused_sandbox_can_be_killed() {
    test(async {
        let kept = Kept::new().await;
        let stream = kept.shell(COUNTER).await;
        kept.supervisor.pause().await.unwrap();
        kept.supervisor.kill().await.unwrap();
        assert_eq!(collect(stream).await.1, None);
        assert_eq!(remains(&kept.site), Vec::<std::path::PathBuf>::new());
    });
}

#[test]
fn a_paused_sandbox_whose_supervisor_is_killed_is_gone_after_the_next_start() {
    test(async {
        let kept = Kept::new().await;
        let _stream = kept.shell(COUNTER).await;
        kept.supervisor.pause().await.unwrap();
        let supervisor = kept.hello.pid;
        let children = std::fs::read_to_string(format!("/proc/{supervisor}/task/{supervisor}/children")).unwrap();
        let first: u32 = children.split_whitespace().next().unwrap().parse().unwrap();
        kept.kill_supervisor();
        eventually("the supervisor dies", || (!is_supervisor(supervisor)).then_some(()));
        // What is still dying when one starts is left to the next.
        eventually("the next start removes what is left", || {
            kept.site.succeed(["run", "--quiet", "--", "true"]);
            remains(&kept.site).is_empty().then_some(())
        });
        eventually("everything inside dies", || {
            let stat = std::fs::read_to_string(format!("/proc/{first}/stat")).unwrap_or_default();
            let is_dead = stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'));
            is_dead.then_some(())
        });
    });
}

#[test]
fn what_is_used_is_told() {
    test(async {
        let kept = Kept::new().await;
        let mut stream = kept
            .shell("head -c 8388608 /dev/zero > /tmp/kept; echo up; while :; do :; done")
            .await;
        until(&mut stream, "up").await;
        // Of processes the kernel tells the time in hundredths of a second.
        let usage = within(async {
            loop {
                let usage = kept.supervisor.usage().await.unwrap();
                if usage.cpu_us > 0 {
                    break usage;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        assert!(usage.memory_bytes > 64 * 1024, "{usage:?}");
        assert!(usage.memory_peak_bytes >= usage.memory_bytes, "{usage:?}");
        assert_eq!(usage.memory_limit_bytes, 512 << 20);
        assert_eq!(usage.disk_limit_bytes, 512 << 20);
        assert!((2..128).contains(&usage.pids), "{usage:?}");
        assert!(usage.cpus_millis >= 1000, "{usage:?}");
    });
}

/// Answers each connection with what it says, in capitals.
const SERVER: &str = r#"
import socket, sys
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
while True:
    client, _ = server.accept()
    client.sendall(client.recv(100).upper())
    client.close()
"#;

#[test]
fn a_port_inside_is_reached_from_outside_and_one_where_nobody_listens_is_closed() {
    test(async {
        let kept = Kept::new().await;
        let mut start = shell("exec python3 -c \"$SERVER\"");
        start.env = vec![(b"SERVER".to_vec(), SERVER.as_bytes().to_vec())];
        let mut stream = kept.supervisor.start(start).await.unwrap();
        let port: u16 = until(&mut stream, "\n").await.trim().parse().unwrap();
        for word in ["one", "two", "three"] {
            let mut connection = within(kept.supervisor.port(port)).await.unwrap();
            connection.write_all(word.as_bytes()).await.unwrap();
            let mut answer = String::new();
            within(connection.read_to_string(&mut answer)).await.unwrap();
            assert_eq!(answer, word.to_uppercase());
        }
        let error = within(kept.supervisor.port(9)).await.unwrap_err();
        assert!(matches!(error, SupervisorError::PortClosed), "{error:?}");
        let error = within(kept.supervisor.port(0)).await.unwrap_err();
        assert!(matches!(error, SupervisorError::Invalid { .. }), "{error:?}");
        assert_eq!(kept.output("echo lives").await, "lives\n");
    });
}

/// Asks for a name, and says whether it has an address.
async fn knows(kept: &Kept, name: &str) -> bool {
    let script = format!("getent ahostsv4 {name} > /dev/null && echo yes || echo no");
    kept.output(&script).await == "yes\n"
}

#[test]
fn the_rules_of_the_network_are_replaced_while_it_runs() {
    test(async {
        let kept = Kept::with(|order| order.network.allow = vec!["first.example".to_owned()]).await;
        assert!(knows(&kept, "first.example").await);
        assert!(!knows(&kept, "second.example").await);
        let second = NetworkOrder {
            allow: vec!["second.example".to_owned()],
            ..NetworkOrder::default()
        };
        kept.supervisor.set_network(second).await.unwrap();
        // Asked in the same order as the rules are set.
        assert!(knows(&kept, "second.example").await);
        assert!(!knows(&kept, "first.example").await);
        let bad = NetworkOrder {
            allow: vec!["*.com".to_owned()],
            ..NetworkOrder::default()
        };
        let error = kept.supervisor.set_network(bad).await.unwrap_err();
        assert!(matches!(error, SupervisorError::Invalid { .. }), "{error:?}");
        assert!(knows(&kept, "second.example").await);
    });
}

#[test]
fn a_command_that_uses_too_much_memory_is_not_the_end_of_the_machine() {
    test(async {
        let kept = Kept::new().await;
        let stream = kept
            .shell("exec python3 -c 'b = bytearray(1 << 30); print(len(b))'")
            .await;
        let (text, end) = collect(stream).await;
        assert_eq!(text, "");
        assert_ne!(end, Some(ExecEnd::Exited { code: 0 }));
    });
}

#[test]
fn who_holds_a_sandbox_for_too_long_loses_it_and_it_goes_on() {
    test(async {
        let longest = Duration::from_millis(500);
        let kept = Kept::with(|order| order.longest_hold_ms = Some(500)).await;
        let mut stream = kept.shell("while sleep 0.01; do echo tick; done").await;
        until(&mut stream, "tick").await;
        let began = Instant::now();
        let held = within(kept.supervisor.hold_still()).await.unwrap();
        // Nobody else is heard meanwhile.
        assert_eq!(kept.output("echo on").await, "on\n");
        assert!(began.elapsed() >= longest, "{:?}", began.elapsed());
        assert!(matches!(held.release().await, Err(SupervisorError::Gone)));
        until(&mut stream, "tick").await;
        let held = within(kept.supervisor.hold_still()).await.unwrap();
        held.release().await.unwrap();
    });
}
