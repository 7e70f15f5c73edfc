//! What can be read about a sandbox while it lives and when it has ended.

use std::time::Duration;

use offleash_daemon::{Caller, CreateRequest, Daemon, DaemonError, LogLevel, LogsRequest, Quota, Scope, Scopes};
use offleash_supervisor::service::ExecNews;
use offleash_supervisor::service::message::StartExec;

use super::world::{World, create, create_with, eventually, kill, output, supervisors_below, test, within};

/// The lines of a sandbox.
async fn lines(daemon: &Daemon, caller: &Caller, id: &str) -> Result<Vec<(LogLevel, String)>, DaemonError> {
    let lines = within(daemon.logs(caller, id, LogsRequest::default())).await?;
    Ok(lines.into_iter().map(|line| (line.level, line.line)).collect())
}

/// The last line of one that ended, once that is known.
async fn last_line(daemon: &Daemon, id: &str) -> (LogLevel, String) {
    within(daemon.drain()).await;
    lines(daemon, &Caller::local(), id).await.unwrap().pop().unwrap()
}

#[test]
fn the_log_of_a_sandbox_tells_its_life_also_when_it_has_ended() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let caller = |key_id: &str| Caller {
            key_id: key_id.to_owned(),
            scopes: Scopes(vec![Scope::Create]),
            quota: Quota::default(),
            tools: None,
        };
        let (owner, other) = (caller("k1"), caller("k2"));
        let made = within(daemon.create(&owner, CreateRequest::default())).await.unwrap();
        let id = made.id.as_str();
        let supervisor = daemon.supervisor(id).await.unwrap();
        let start = StartExec {
            argv: ["/bin/sh", "-c", "exit 3 # told-to-nobody"]
                .map(|word| word.as_bytes().to_vec())
                .into(),
            env: vec![(b"PASSWORD".to_vec(), b"told-to-nobody".to_vec())],
            ..StartExec::default()
        };
        let mut stream = within(supervisor.start(start)).await.unwrap();
        while !matches!(within(stream.next()).await.unwrap(), None | Some(ExecNews::Ended(_))) {}
        // Whoever waits for it hears of its end first.
        within(async {
            let is_told = |line: &(LogLevel, String)| line.1.contains("ended with exit code 3");
            while !lines(&daemon, &owner, id).await.unwrap().iter().any(is_told) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
        within(daemon.pause(&owner, id)).await.unwrap();
        within(daemon.connect(&owner, id, None)).await.unwrap();
        within(daemon.set_timeout(&owner, id, 200)).await.unwrap();
        let expected = [
            "created by key `k1` from template `base`",
            "started as user: /bin/sh -c exit 3 # ****",
            "ended with exit code 3",
            "paused by key `k1`",
            "resumed by key `k1`",
            "key `k1` had it end at 2",
        ];
        let check = |told: &[(LogLevel, String)]| {
            let all = told.iter().map(|(_, line)| format!("{line}\n")).collect::<String>();
            let mut rest = all.as_str();
            for part in expected {
                let (_, after) = rest
                    .split_once(part)
                    .unwrap_or_else(|| panic!("`{part}` is not in {all}"));
                rest = after;
            }
            assert!(!all.contains("told-to-nobody"), "{all}");
        };
        check(&lines(&daemon, &owner, id).await.unwrap());
        let hidden = lines(&daemon, &other, id).await;
        assert!(matches!(hidden, Err(DaemonError::NotFound { .. })), "{hidden:?}");

        within(daemon.kill(&owner, id)).await.unwrap();
        // At once, and no line twice while its files are being removed.
        let at_once = lines(&daemon, &owner, id).await.unwrap();
        within(daemon.drain()).await;
        assert_eq!(lines(&daemon, &owner, id).await.unwrap(), at_once);
        drop(daemon);
        let next = world.daemon().await;
        let told = lines(&next, &owner, id).await.unwrap();
        check(&told);
        assert_eq!(told, at_once);
        assert_eq!(
            told.last().unwrap(),
            &(LogLevel::Info, "killed: by key `k1`".to_owned())
        );
        let hidden = lines(&next, &other, id).await;
        assert!(matches!(hidden, Err(DaemonError::NotFound { .. })), "{hidden:?}");
        let end = within(next.events(&owner, Some(id), 0, true, 1)).await.unwrap();
        assert_eq!(end[0].reason.as_deref(), Some("by key `k1`"));
        drop(next);

        let forgetful = world.daemon_with(|config| config.keep_logs = Duration::ZERO).await;
        let gone = lines(&forgetful, &owner, id).await;
        assert!(matches!(gone, Err(DaemonError::NotFound { .. })), "{gone:?}");
        eventually("the end of the lines", || {
            world.registry().logs(id).unwrap().is_empty().then_some(())
        })
        .await;
    });
}

#[test]
fn it_is_told_why_a_sandbox_ended() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let me = Caller::local();
        let late = create_with(&daemon, |request| request.timeout_seconds = Some(1)).await;
        eventually("its end", || daemon.get(&me, &late.id).is_err().then_some(())).await;
        let told = last_line(&daemon, &late.id).await;
        assert_eq!(told, (LogLevel::Info, "killed: its time was up".to_owned()));
        drop(daemon);

        let daemon = world.daemon().await;
        let dead = create(&daemon).await;
        supervisors_below(world.site.root()).into_iter().for_each(kill);
        eventually("its end", || daemon.get(&me, &dead.id).is_err().then_some(())).await;
        // It is written down while others see already that it is gone.
        let told = within(async {
            loop {
                let last = lines(&daemon, &me, &dead.id).await.unwrap().pop().unwrap();
                if !last.1.starts_with("created") {
                    return last;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        assert_eq!(told.await, (LogLevel::Error, "died: its supervisor died".to_owned()));
        drop(daemon);

        let daemon = world.daemon().await;
        let dead = create(&daemon).await;
        world.close(daemon).await;
        supervisors_below(world.site.root()).into_iter().for_each(kill);
        let daemon = world.daemon().await;
        let (level, line) = last_line(&daemon, &dead.id).await;
        assert!(
            level == LogLevel::Error && line.starts_with("died: its supervisor was gone"),
            "{line}"
        );
    });
}

#[test]
fn what_the_network_refuses_is_told() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let me = Caller::local();
        let made = create_with(&daemon, |request| request.network.internet = Some(false)).await;
        let supervisor = daemon.supervisor(&made.id).await.unwrap();
        let script =
            "/bin/bash -c 'exec 3<>/dev/tcp/8.8.8.8/80; printf \"GET / HTTP/1.0\\r\\n\\r\\n\" >&3; cat <&3' || :";
        let deadline = std::time::Instant::now() + super::support::processes::TIMEOUT;
        loop {
            // Each command wakes the supervisor, which then writes down what the gateway told.
            let answer = output(&supervisor, script).await;
            // What can be done about it is what can be done about this sandbox.
            assert!(
                answer.contains("`allowOut`") && !answer.contains("offleash run"),
                "{answer}"
            );
            let told = lines(&daemon, &me, &made.id).await.unwrap();
            let refused = |(level, line): &(LogLevel, String)| {
                *level == LogLevel::Warn && line.starts_with("network: `8.8.8.8:80` was refused: ")
            };
            if told.iter().any(refused) {
                assert_eq!(told.iter().filter(|line| refused(line)).count(), 1, "{told:?}");
                break;
            }
            assert!(std::time::Instant::now() < deadline, "{told:?}");
        }
    });
}
