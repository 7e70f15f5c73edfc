//! Sandboxes of level `simulated` on a server.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use offleash_core::error::{ErrorKind, Explained as _};
use offleash_core::exec::ExecEnd;
use offleash_daemon::{
    Caller, CreateRequest, Daemon, ForkRequest, LEVEL_LABEL, SandboxView, VolumeMountRequest, VolumeRequest,
};
use offleash_interpreter::language::Language;
use offleash_supervisor::service::error::SupervisorError;
use offleash_supervisor::service::message::{Selector, StartExec};
use offleash_supervisor::service::{ExecNews, SupervisorClient};

use super::carried::{as_root, supervisor};
use super::snapshots::snapshot;
use super::world::{World, create_with, eventually, output, test, within};

fn label(request: &mut CreateRequest) {
    level_of(request, "simulated");
}

fn level_of(request: &mut CreateRequest, level: &str) {
    request.metadata.insert(LEVEL_LABEL.to_owned(), level.to_owned());
}

async fn simulated(daemon: &Daemon) -> (SandboxView, SupervisorClient) {
    let sandbox = create_with(daemon, label).await;
    assert_eq!(sandbox.level, "simulated");
    let client = supervisor(daemon, &sandbox).await;
    (sandbox, client)
}

fn shell(script: &str) -> StartExec {
    StartExec {
        argv: ["/bin/bash", "-l", "-c", script]
            .map(|word| word.as_bytes().to_vec())
            .into(),
        ..StartExec::default()
    }
}

/// What came of a command: what it wrote, and how it ended.
async fn ended(client: &SupervisorClient, start: StartExec) -> (String, ExecEnd) {
    let mut stream = within(client.start(start)).await.unwrap();
    let mut text = String::new();
    loop {
        match within(stream.next()).await.unwrap() {
            Some(ExecNews::Output { bytes, .. }) => text.push_str(&String::from_utf8_lossy(&bytes)),
            Some(ExecNews::Ended(end)) => return (text, end),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn commands_run_at_once_each_with_its_own_user_directory_and_variables_over_the_same_files() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let (sandbox, client) = simulated(&daemon).await;
        let mut waiting = Vec::new();
        for number in 0..5 {
            let mut start =
                shell("echo $WHO > $PWD/$WHO; until test -e ~user/go; do sleep 0.02; done; cat ~user/go; echo $WHO");
            start.env = vec![(b"WHO".to_vec(), format!("w{number}").into_bytes())];
            start.cwd = Some(b"/tmp".to_vec());
            waiting.push(within(client.start(start)).await.unwrap());
        }
        output(
            &client,
            "until test -e /tmp/w4 -a -e /tmp/w0; do sleep 0.02; done; echo on > ~/go",
        )
        .await;
        for (number, mut stream) in waiting.into_iter().enumerate() {
            let mut text = String::new();
            loop {
                match within(stream.next()).await.unwrap() {
                    Some(ExecNews::Output { bytes, .. }) => text.push_str(&String::from_utf8_lossy(&bytes)),
                    Some(ExecNews::Ended(end)) => break assert_eq!(end, ExecEnd::Exited { code: 0 }, "{text}"),
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(text, format!("on\nw{number}\n"));
        }
        assert_eq!(
            output(&client, "whoami; pwd; echo $HOME").await,
            "user\n/home/user\n/home/user\n"
        );
        as_root(&client, "echo of root > /etc/made; chmod 600 /etc/made; cat /etc/made").await;
        if super::support::is_root() {
            // Users are told apart where the superuser made the sandbox.
            let (said, end) = ended(
                &client,
                shell("cat /etc/made; echo x > /etc/made; rm /tmp/w0 /etc/made"),
            )
            .await;
            assert_eq!(end, ExecEnd::Exited { code: 1 });
            assert_eq!(said.matches("Permission denied").count(), 3, "{said}");
        }
        within(daemon.kill(&Caller::local(), &sandbox.id)).await.unwrap();
        world.emptied().await;
    });
}

#[test]
fn a_pause_holds_workers_and_files_still_and_a_fork_and_a_sleep_keep_the_files() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let (me, (sandbox, client)) = (Caller::local(), simulated(&daemon).await);
        let ticks = shell("while :; do echo x >> ~/ticks; sleep 0.01; done");
        let _ticking = within(client.start(ticks)).await.unwrap();
        output(&client, "until test -s ~/ticks; do sleep 0.02; done").await;
        within(daemon.pause(&me, &sandbox.id)).await.unwrap();
        let size = || {
            let scratch = world.site.state().join("scratch").join(&sandbox.id);
            std::fs::metadata(scratch.join("root/upper/home/user/ticks"))
                .unwrap()
                .len()
        };
        let before = size();
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(size(), before);
        within(daemon.resume(&me, &sandbox.id, None)).await.unwrap();
        eventually("more ticks", || (size() > before).then_some(())).await;

        output(&client, "mkdir -p ~/d; echo kept > ~/d/f; rm -f ~/.bashrc").await;
        let request = ForkRequest {
            count: 1,
            ..ForkRequest::default()
        };
        let mut forks = within(daemon.fork(&me, &sandbox.id, request)).await.unwrap();
        let forked = forks.remove(0).unwrap();
        let copy = supervisor(&daemon, &forked).await;
        assert_eq!(forked.level, "simulated");
        assert_eq!(
            output(&copy, "cat ~/d/f; ls ~; ls -A ~ | grep -c bashrc || true").await,
            "kept\nd\nticks\n0\n"
        );
        output(&copy, "echo own > ~/d/f").await;
        assert_eq!(output(&client, "cat ~/d/f").await, "kept\n");
        for sandbox in [&sandbox, &forked] {
            within(daemon.kill(&me, &sandbox.id)).await.unwrap();
        }
        world.emptied().await;
    });
}

#[test]
fn a_snapshot_goes_from_level_to_level_and_back() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let me = Caller::local();
        let (first, client) = simulated(&daemon).await;
        let make = "mkdir -p ~/d/e; echo one > ~/d/e/f; chmod 640 ~/d/e/f; ln -s e/f ~/d/l; rm -f ~/.profile";
        output(&client, make).await;
        as_root(&client, "rm -r /etc/skel; mkdir /etc/skel; echo s > /etc/skel/new").await;
        let one = snapshot(&daemon, &first.id).await;
        let above = of_snapshot_at(&daemon, &one.id, "process").await;
        let look = "cd; stat -c '%U %a' d/e/f; cat d/l; ls -A; ls -A /etc/skel";
        let client = supervisor(&daemon, &above).await;
        let seen = output(&client, look).await;
        assert!(seen.starts_with("user 640\none\n"), "{seen}");
        assert!(seen.ends_with("d\nnew\n") && !seen.contains(".profile"), "{seen}");
        output(
            &client,
            "echo two >> ~/d/e/f; mv ~/d/e ~/d/g; ln -sfn g/f ~/d/l; echo by >~/process",
        )
        .await;
        let two = snapshot(&daemon, &above.id).await;
        let back = of_snapshot_at(&daemon, &two.id, "simulated").await;
        let client = supervisor(&daemon, &back).await;
        let seen = output(
            &client,
            "cat ~/d/l ~/process; ls ~/d; ls /etc/skel; echo more >> ~/d/l; cat ~/d/g/f",
        )
        .await;
        assert_eq!(seen, "one\ntwo\nby\ng\nl\nnew\none\ntwo\nmore\n");
        for sandbox in [&first, &above, &back] {
            within(daemon.kill(&me, &sandbox.id)).await.unwrap();
        }
        world.emptied().await;
    });
}

async fn of_snapshot_at(daemon: &Daemon, which: &str, level: &str) -> SandboxView {
    let made = create_with(daemon, |request| {
        request.snapshot = Some(which.to_owned());
        level_of(request, level);
    })
    .await;
    assert_eq!(made.level, level);
    made
}

#[test]
fn a_volume_is_written_to_within_its_quota_and_read_at_every_level() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let me = Caller::local();
        let volume = VolumeRequest {
            name: "v".to_owned(),
            size_mib: Some(8),
            inodes: None,
            shared: false,
            bucket: None,
        };
        within(daemon.create_volume(&me, volume)).await.unwrap();
        let with = |level: &'static str, read_only: bool| {
            let daemon = &daemon;
            async move {
                let made = create_with(daemon, |request| {
                    level_of(request, level);
                    request.volumes = vec![VolumeMountRequest {
                        volume: "v".to_owned(),
                        path: "/data/v".to_owned(),
                        read_only,
                    }];
                })
                .await;
                let client = supervisor(daemon, &made).await;
                (made, client)
            }
        };
        let (first, client) = with("simulated", false).await;
        let fill = "mkdir /data/v/d && echo one > /data/v/d/f && ls /data/v; x=x; for i in $(seq 24); do x=$x$x; done; echo $x > /data/v/big; rm -f /data/v/big";
        let (said, _) = ended(&client, shell(fill)).await;
        assert!(
            said.starts_with("d\n") && said.contains("Disk quota exceeded"),
            "{said}"
        );
        within(daemon.kill(&me, &first.id)).await.unwrap();
        let (second, client) = with("process", false).await;
        assert_eq!(
            output(
                &client,
                "cat /data/v/d/f; echo two >> /data/v/d/f; echo own > /data/v/new"
            )
            .await,
            "one\n"
        );
        within(daemon.kill(&me, &second.id)).await.unwrap();
        let (third, client) = with("simulated", true).await;
        assert_eq!(output(&client, "cat /data/v/d/f /data/v/new").await, "one\ntwo\nown\n");
        let (said, end) = ended(&client, shell("echo x > /data/v/new")).await;
        assert!(
            said.contains("Read-only file system") && end != ExecEnd::Exited { code: 0 },
            "{said}"
        );
        within(daemon.kill(&me, &third.id)).await.unwrap();
        world.emptied().await;
    });
}

#[test]
fn code_that_means_no_good_ends_itself_alone() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let made = create_with(&daemon, |request| {
            label(request);
            request.limits.memory_mib = Some(128);
            request.limits.disk_mib = Some(64);
            request.limits.pids = Some(16);
        })
        .await;
        let client = supervisor(&daemon, &made).await;
        // Memory, in one command and in several that keep below the limit each.
        let (said, end) = ended(&client, shell("x=x; while :; do x=$x$x; done")).await;
        let is_ended = matches!(end, ExecEnd::OutOfMemory { limit } if limit == 128 << 20);
        assert!(is_ended || said.contains("memory limit exceeded"), "{end:?} {said}");
        // A loop without end.
        let late = StartExec {
            timeout_ms: Some(300),
            ..shell("while :; do :; done")
        };
        let mut stream = within(client.start(late)).await.unwrap();
        let is_late = loop {
            match within(stream.next()).await {
                Ok(Some(ExecNews::Output { .. } | ExecNews::TimedOut)) => {}
                Ok(Some(ExecNews::Ended(ExecEnd::Signaled { signal: 9 }))) | Err(SupervisorError::Timeout { .. }) => {
                    break true;
                }
                other => panic!("{other:?}"),
            }
        };
        assert!(is_late);
        // Output without end, and a reader that leaves.
        let endless = shell("while :; do printf '%01000d' 7; done");
        let mut stream = within(client.start(endless)).await.unwrap();
        let mut taken = 0;
        let pid = loop {
            if let Some(ExecNews::Output { bytes, .. }) = within(stream.next()).await.unwrap() {
                taken += bytes.len();
            }
            if taken > 4 << 20 {
                break within(client.processes()).await.unwrap()[0].pid;
            }
        };
        drop(stream);
        assert_eq!(output(&client, "echo others run").await, "others run\n");
        within(client.signal(&Selector::Pid(pid), 9)).await.unwrap();
        // A disk that is full, in one piece and in many.
        let (said, _) = ended(
            &client,
            shell("x=x; for i in $(seq 23); do x=$x$x; done; i=0; while printf %s \"$x\" > f$i; do i=$((i+1)); done; echo $i"),
        )
        .await;
        assert!(
            said.contains("Disk quota exceeded") || said.contains("File too large"),
            "{said}"
        );
        output(&client, "rm -rf ~/*").await;
        // As many commands as there may be, and one more.
        let mut running = Vec::new();
        for _ in 0..16 {
            running.push(within(client.start(shell("sleep 60"))).await.unwrap());
        }
        let refused = within(client.start(shell("true"))).await;
        let refused = match refused {
            Ok(mut stream) => within(stream.next()).await.map(drop),
            Err(error) => Err(error),
        };
        assert!(matches!(refused, Err(SupervisorError::Exhausted { .. })), "{refused:?}");
        for process in within(client.processes()).await.unwrap() {
            within(client.signal(&Selector::Pid(process.pid), 9)).await.unwrap();
        }
        drop(running);
        eventually("room", || Some(())).await;
        let deadline = Instant::now() + Duration::from_secs(10);
        while !within(client.processes()).await.unwrap().is_empty() {
            assert!(Instant::now() < deadline);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(output(&client, "echo alive").await, "alive\n");
        within(daemon.kill(&Caller::local(), &made.id)).await.unwrap();
        world.emptied().await;
    });
}

#[test]
fn a_worker_that_is_killed_ends_its_command_and_the_supervisor_all_of_them() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let (sandbox, client) = simulated(&daemon).await;
        let mut stream = within(client.start(shell("echo here; sleep 60"))).await.unwrap();
        assert!(matches!(within(stream.next()).await, Ok(Some(ExecNews::Output { .. }))));
        let supervisor = super::world::supervisors_below(world.site.root())[0];
        let workers = || -> Vec<i32> {
            let path = format!("/proc/{supervisor}/task/{supervisor}/children");
            let text = std::fs::read_to_string(path).unwrap_or_default();
            text.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
        };
        let all = workers();
        assert!(!all.is_empty());
        for worker in &all {
            let pid = rustix::process::Pid::from_raw(*worker).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        }
        let end = loop {
            match within(stream.next()).await.unwrap() {
                Some(ExecNews::Output { .. }) => {}
                Some(ExecNews::Ended(end)) => break end,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(end, ExecEnd::Signaled { signal: 9 });
        // One that waited for a command was killed, too: whoever gets it is told.
        let (_, end) = ended(&client, shell("echo first")).await;
        assert!(
            matches!(end, ExecEnd::Signaled { .. } | ExecEnd::Exited { code: 0 }),
            "{end:?}"
        );
        assert_eq!(output(&client, "echo again").await, "again\n");
        let mut stream = within(client.start(shell("echo here; sleep 60"))).await.unwrap();
        assert!(matches!(within(stream.next()).await, Ok(Some(ExecNews::Output { .. }))));
        let left = workers();
        super::world::kill(supervisor);
        eventually("the end of the workers", || {
            let is_gone = |pid: &i32| {
                let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
                stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'))
            };
            left.iter().all(is_gone).then_some(())
        })
        .await;
        eventually("the sandbox's end", || {
            daemon.get(&Caller::local(), &sandbox.id).is_err().then_some(())
        })
        .await;
    });
}

#[test]
fn what_the_level_does_not_have_is_refused_with_the_level_that_has_it() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let (sandbox, client) = simulated(&daemon).await;
        let terminal = StartExec {
            tty: Some((24, 80)),
            ..shell("true")
        };
        let refused = within(client.start(terminal)).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
        assert!(refused.to_string().contains("simulated"), "{refused}");
        let port = within(client.port(80)).await.unwrap_err();
        assert_eq!(port.kind(), ErrorKind::Unsupported, "{port}");
        let contexts = daemon.contexts(&sandbox.id).await.unwrap();
        let made = within(contexts.create(Language::Python, None)).await.unwrap_err();
        assert_eq!(made.kind(), ErrorKind::Unsupported, "{made}");
        assert!(made.to_string().contains("level `process` can"), "{made}");
        let (said, end) = ended(&client, shell("perl -v")).await;
        assert_eq!(end, ExecEnd::Exited { code: 126 });
        assert!(said.contains("needs level process"), "{said}");
        // A key has what the server has, and no weaker level.
        let key = Caller {
            key_id: "k".to_owned(),
            ..Caller::local()
        };
        let mut request = CreateRequest {
            env: BTreeMap::new(),
            ..CreateRequest::default()
        };
        label(&mut request);
        let refused = within(daemon.create(&key, request)).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Denied, "{refused}");
    });
}
