//! Forks of running sandboxes: what they begin with, what they share (nothing), and what is left when somebody dies.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use offleash_core::error::{ErrorKind, Explained as _};
use offleash_daemon::{
    Caller, CarriedContexts, Daemon, DaemonError, ForkRequest, ListFilter, OnTimeout, Quota, SandboxView, Scope, Scopes,
};
use offleash_interpreter::language::Language;

use super::carried::{LEAVE, LEAVE_AS_ROOT, LOOK, as_root, cell, cell_in, supervisor};
use super::support::processes::TIMEOUT;
use super::world::{World, config, create, create_with, eventually, kill, output, test, within};

async fn fork(daemon: &Daemon, id: &str, count: u32) -> Vec<SandboxView> {
    let request = ForkRequest {
        count,
        ..ForkRequest::default()
    };
    let forks = within(daemon.fork(&Caller::local(), id, request)).await.unwrap();
    assert_eq!(forks.len(), usize::try_from(count).unwrap());
    forks.into_iter().map(Result::unwrap).collect()
}

#[test]
fn a_fork_begins_with_the_files_of_its_source_and_shares_none() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let me = Caller::local();
        let source = create_with(&daemon, |request| {
            request.name = Some("one".parse().unwrap());
            request.metadata = [("who".to_owned(), "me".to_owned())].into();
            request.env = [("GIVEN".to_owned(), "x".to_owned())].into();
            request.on_timeout = OnTimeout::Pause;
            request.auto_resume = true;
            request.network.allow_public_traffic = Some(false);
            request.limits.pids = Some(77);
        })
        .await;
        let of_source = supervisor(&daemon, &source).await;
        output(&of_source, LEAVE).await;
        as_root(&of_source, LEAVE_AS_ROOT).await;
        output(
            &of_source,
            "(i=0; while :; do i=$((i+1)); echo $i >/tmp/count; done) >/dev/null 2>&1 &",
        )
        .await;
        let seen = as_root(&of_source, &LOOK.replace("srv tmp", "srv")).await;
        assert!(
            seen.contains("home/user/closed f 0 ") && seen.contains("user.mark") || seen.contains("b'yes'"),
            "{seen}"
        );
        let forks = fork(&daemon, &source.id, 3).await;
        for sandbox in &forks {
            assert_ne!(sandbox.id, source.id);
            for (mine, its) in [
                (&sandbox.access_token, &source.access_token),
                (&sandbox.traffic_token, &source.traffic_token),
            ] {
                assert!(mine.is_some() && mine != its);
            }
            // A name is one sandbox's.
            assert_eq!(sandbox.metadata, [("who".to_owned(), "me".to_owned())].into());
            assert_eq!((&sandbox.env, &sandbox.template), (&source.env, &source.template));
            assert_eq!((sandbox.limits, sandbox.on_timeout), (source.limits, source.on_timeout));
            assert_eq!((sandbox.auto_resume, &sandbox.network), (true, &source.network));
            assert_eq!(sandbox.level, source.level);
            let its = supervisor(&daemon, sandbox).await;
            assert_eq!(as_root(&its, &LOOK.replace("srv tmp", "srv")).await, seen);
            assert_eq!(
                output(&its, "ps ax 2>/dev/null | grep -c '[w]hile' || true")
                    .await
                    .trim(),
                "0"
            );
        }
        // The source goes on.
        let count = output(&of_source, "cat /tmp/count").await;
        while output(&of_source, "cat /tmp/count").await == count {}
        // What one writes no other sees.
        let all: Vec<&SandboxView> = forks.iter().chain([&source]).collect();
        for sandbox in &all {
            let its = supervisor(&daemon, sandbox).await;
            let write = format!("echo {0} >~/deep/er/file; echo {0} >~/own", sandbox.id);
            output(&its, &write).await;
        }
        for sandbox in &all {
            let its = supervisor(&daemon, sandbox).await;
            assert_eq!(
                output(&its, "cat ~/deep/link ~/own").await,
                format!("{0}\n{0}\n", sandbox.id)
            );
        }
        // A fork of a fork, and each ends by itself.
        let again = fork(&daemon, &forks[0].id, 1).await;
        within(daemon.kill(&me, &source.id)).await.unwrap();
        within(daemon.kill(&me, &forks[1].id)).await.unwrap();
        for sandbox in [&again[0], &forks[2]] {
            let its = supervisor(&daemon, sandbox).await;
            assert_ne!(output(&its, "cat ~/own").await, "");
            within(daemon.pause(&me, &sandbox.id)).await.unwrap();
            within(daemon.resume(&me, &sandbox.id, None)).await.unwrap();
        }
        for sandbox in [&again[0], &forks[0], &forks[2]] {
            within(daemon.kill(&me, &sandbox.id)).await.unwrap();
        }
        world.emptied().await;
        nothing_left(&world).await;
    });
}

/// No layer is left of any sandbox.
async fn nothing_left(world: &World) {
    eventually("the end of all layers", || layers(world).is_empty().then_some(())).await;
}

fn layers(world: &World) -> Vec<std::ffi::OsString> {
    let scratch = std::fs::read_dir(world.site.state().join("scratch"));
    scratch
        .into_iter()
        .flatten()
        .flatten()
        .map(|found| found.file_name())
        .collect()
}

/// Writes one number into two files, again and again.
const PAIRS: &str = "i=0; while :; do i=$((i+1)); echo $i >~/first.new; mv ~/first.new ~/first; echo $i >~/second.new; \
    mv ~/second.new ~/second; done";

#[test]
fn a_fork_is_its_source_at_one_moment() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let source = create(&daemon).await;
        let of_source = supervisor(&daemon, &source).await;
        output(
            &of_source,
            &format!("({PAIRS}) >/dev/null 2>&1 & until test -e ~/second; do :; done"),
        )
        .await;
        for _ in 0..5 {
            let forks = fork(&daemon, &source.id, 2).await;
            let mut pairs = Vec::new();
            for sandbox in &forks {
                let its = supervisor(&daemon, sandbox).await;
                let read = output(&its, "cat ~/first ~/second").await;
                let numbers: Vec<u64> = read.lines().map(|line| line.parse().unwrap()).collect();
                assert!(numbers[0] == numbers[1] || numbers[0] == numbers[1] + 1, "{numbers:?}");
                pairs.push(numbers);
                within(daemon.kill(&Caller::local(), &sandbox.id)).await.unwrap();
            }
            assert_eq!(pairs[0], pairs[1], "all forks of one request are of one moment");
        }
    });
}

#[test]
fn what_is_asked_of_a_source_waits_while_it_is_copied() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let source = create(&daemon).await;
        let of_source = supervisor(&daemon, &source).await;
        output(&of_source, "mkdir ~/many; cd ~/many; seq 3000 | xargs touch").await;
        let forking = {
            let (daemon, id) = (daemon.clone(), source.id.clone());
            tokio::spawn(async move { fork(&daemon, &id, 1).await })
        };
        // Nobody is told that it is paused.
        while !forking.is_finished() {
            assert_eq!(output(&of_source, "echo here").await, "here\n");
        }
        let forks = forking.await.unwrap();
        let its = supervisor(&daemon, &forks[0]).await;
        assert_eq!(output(&its, "ls ~/many | wc -l").await.trim(), "3000");
    });
}

#[test]
fn a_fork_goes_on_with_what_cells_left() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let source = create(&daemon).await;
        let code = "import math, random\nshared = [1]\nboth = {'one': shared, 'other': shared}\ndef twice(x): return 2 * x\nn = 1";
        assert_eq!(cell(&daemon, &source.id, code).await, "");
        let contexts = within(daemon.contexts(&source.id)).await.unwrap();
        let second = within(contexts.create(Language::Python, Some("/tmp".to_owned())))
            .await
            .unwrap();
        assert_eq!(cell_in(&contexts, &second.id, "mine = 'second'").await, "");
        let forks = fork(&daemon, &source.id, 3).await;
        let ask = "import os; both['other'].append(n); print(twice(n), both['one'], math.pi > 3, os.getcwd())";
        let mut drawn = Vec::new();
        for (number, sandbox) in forks.iter().enumerate() {
            cell(&daemon, &sandbox.id, &format!("n = {number}")).await;
            let said = cell(&daemon, &sandbox.id, ask).await;
            assert_eq!(said, format!("{} [1, {number}] True /home/user\n", 2 * number));
            drawn.push(cell(&daemon, &sandbox.id, "print(random.random())").await);
            // The same ids, and nothing left of how it came there.
            let its = within(daemon.contexts(&sandbox.id)).await.unwrap();
            assert_eq!(
                cell_in(&its, &second.id, "print(mine, os.getcwd() if 'os' in dir() else '')").await,
                "second \n"
            );
            let left = output(&supervisor(&daemon, sandbox).await, "ls -A ~ | grep offleash; true").await;
            assert_eq!(left, "");
        }
        drawn.push(cell(&daemon, &source.id, "print(random.random())").await);
        drawn.sort();
        drawn.dedup();
        assert_eq!(drawn.len(), 4, "two draw the same numbers");
        // The source has what it had.
        assert_eq!(cell(&daemon, &source.id, "print(n, shared)").await, "1 [1]\n");
        assert_eq!(
            output(&supervisor(&daemon, &source).await, "ls -A ~ | grep offleash; true").await,
            ""
        );
        // Forks of a fork, after the source.
        within(daemon.kill(&Caller::local(), &source.id)).await.unwrap();
        let again = fork(&daemon, &forks[2].id, 1).await;
        assert_eq!(cell(&daemon, &again[0].id, "print(n, shared)").await, "2 [1, 2]\n");
    });
}

#[test]
fn what_cannot_be_carried_is_told_or_left_out() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let source = create(&daemon).await;
        let code = "import socket\nconnection = socket.socket()\nn = 1";
        assert_eq!(cell(&daemon, &source.id, code).await, "");
        let ask = |contexts| ForkRequest {
            contexts,
            ..ForkRequest::default()
        };
        let me = Caller::local();
        let error = within(daemon.fork(&me, &source.id, ask(CarriedContexts::All)))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error:?}");
        let told = error.to_string();
        assert!(
            told.contains("`connection` (socket") && told.contains(&source.id),
            "{told}"
        );
        // Nothing of the fork remains, and the source goes on.
        assert_eq!(daemon.list(&me, &ListFilter::default()).unwrap().sandboxes.len(), 1);
        assert_eq!(cell(&daemon, &source.id, "print(n)").await, "1\n");
        for (contexts, says) in [
            (CarriedContexts::Possible, "1\nNameError"),
            (CarriedContexts::Nothing, "NameError"),
        ] {
            let mut forks = within(daemon.fork(&me, &source.id, ask(contexts))).await.unwrap();
            let made = forks.remove(0).unwrap();
            assert_eq!(cell(&daemon, &made.id, "print(n)\nconnection").await, says);
        }
    });
}

#[test]
fn who_cannot_have_forks_is_told_why() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let me = Caller {
            key_id: "kone".to_owned(),
            scopes: Scopes(vec![Scope::Create]),
            quota: Quota {
                sandboxes: Some(2),
                ..Quota::default()
            },
            tools: None,
        };
        let other = Caller {
            key_id: "kother".to_owned(),
            ..me.clone()
        };
        let reader = Caller {
            scopes: Scopes(vec![Scope::Read]),
            ..me.clone()
        };
        let source = within(daemon.create(&me, Default::default())).await.unwrap();
        let ask = |count, timeout_seconds| ForkRequest {
            count,
            timeout_seconds,
            ..ForkRequest::default()
        };
        for (caller, id, request, kind) in [
            (&me, "inobody", ask(1, None), ErrorKind::NotFound),
            (&other, &*source.id, ask(1, None), ErrorKind::NotFound),
            (&reader, &*source.id, ask(1, None), ErrorKind::Denied),
            (&me, &*source.id, ask(0, None), ErrorKind::Invalid),
            (&me, &*source.id, ask(21, None), ErrorKind::Invalid),
            (&me, &*source.id, ask(1, Some(0)), ErrorKind::Invalid),
        ] {
            let error = within(daemon.fork(caller, id, request)).await.unwrap_err();
            assert_eq!(error.kind(), kind, "{error:?}");
        }
        // As many as the quota has room for.
        let forks = within(daemon.fork(&me, &source.id, ask(3, Some(60)))).await.unwrap();
        let made: Vec<&SandboxView> = forks.iter().flatten().collect();
        assert_eq!(made.len(), 1);
        let refused = |fork: &Result<SandboxView, DaemonError>| matches!(fork, Err(DaemonError::QuotaExceeded { .. }));
        assert_eq!(forks.iter().filter(|fork| refused(fork)).count(), 2);
        let lives = made[0].end_at.duration_since(made[0].started_at).unwrap();
        assert_eq!(lives.as_secs(), 60);
        let error = within(daemon.fork(&me, &source.id, ask(2, None))).await.unwrap_err();
        assert!(matches!(error, DaemonError::QuotaExceeded { .. }), "{error:?}");
        // Whose it is knows of what it was forked, and so does the next daemon; nobody else knows of either.
        assert_eq!(daemon.get(&me, &made[0].id).unwrap().fork_of.as_ref(), Some(&source.id));
        assert!(daemon.get(&other, &made[0].id).is_err());
        let of_owner = fork(&daemon, &source.id, 1).await;
        assert_eq!(of_owner[0].fork_of.as_ref(), Some(&source.id));
        for caller in [&me, &other] {
            assert!(daemon.get(caller, &of_owner[0].id).is_err(), "{caller:?}");
        }
        within(daemon.kill(&Caller::local(), &of_owner[0].id)).await.unwrap();
        within(daemon.kill(&me, &made[0].id)).await.unwrap();
        within(daemon.pause(&me, &source.id)).await.unwrap();
        // One that is killed counts until it is gone.
        let asking = async {
            loop {
                match daemon.fork(&me, &source.id, ask(1, None)).await {
                    Err(DaemonError::QuotaExceeded { .. }) => tokio::time::sleep(Duration::from_millis(10)).await,
                    forks => return forks.unwrap(),
                }
            }
        };
        let of_paused = within(asking).await.into_iter().next().unwrap().unwrap();
        within(daemon.kill(&me, &of_paused.id)).await.unwrap();
        within(daemon.kill(&me, &source.id)).await.unwrap();
        world.emptied().await;
        nothing_left(&world).await;
    });
}

#[test]
fn a_fork_that_cannot_be_copied_leaves_nothing_and_its_source_goes_on() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let source = create(&daemon).await;
        let of_source = supervisor(&daemon, &source).await;
        output(&of_source, "mkdir -p ~/a/b; seq 100000 >~/a/b/c").await;
        // Where the first copy is to be made there is no directory.
        let strange = world.site.state().join("scratch");
        let aside = world.site.state().join("scratch-aside");
        std::fs::rename(&strange, &aside).unwrap();
        std::fs::write(&strange, "").unwrap();
        let error = within(daemon.fork(&Caller::local(), &source.id, ForkRequest::default()))
            .await
            .unwrap_err();
        assert!(
            matches!(error, DaemonError::Host { .. } | DaemonError::NotCopied { .. }),
            "{error:?}"
        );
        std::fs::remove_file(&strange).unwrap();
        std::fs::rename(&aside, &strange).unwrap();
        assert_eq!(output(&of_source, "echo on").await, "on\n");
        assert_eq!(
            daemon
                .list(&Caller::local(), &ListFilter::default())
                .unwrap()
                .sandboxes
                .len(),
            1
        );
        fork(&daemon, &source.id, 1).await;
    });
}

/// Says to the test's own program that it is to be a daemon, and for which state directory, and what to fork.
const STATE: &str = "OFFLEASH_TEST_FORKING_STATE";
const SOURCE: &str = "OFFLEASH_TEST_FORKING_SOURCE";

/// Not a test: what the test below starts, and kills.
#[test]
#[ignore = "the daemon that another test kills"]
fn a_daemon_that_forks_without_end() {
    let (Some(state), Ok(source)) = (std::env::var_os(STATE), std::env::var(SOURCE)) else {
        return;
    };
    test(async {
        let daemon = Daemon::open(config(Path::new(&state))).await.unwrap();
        eprintln!("ready");
        loop {
            for made in fork(&daemon, &source, 2).await {
                daemon.kill(&Caller::local(), &made.id).await.unwrap();
            }
        }
    });
}

#[test]
fn a_daemon_that_is_killed_while_it_forks_leaves_the_source_running_and_nothing_half_made() {
    test(async {
        let world = World::new();
        let first = world.daemon().await;
        let source = create(&first).await;
        let of_source = supervisor(&first, &source).await;
        output(&of_source, "mkdir ~/many; cd ~/many; seq 2000 | xargs touch").await;
        within(first.drain()).await;
        drop(first);
        for point in 0..12 {
            let mut random = [0; 2];
            rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).unwrap();
            run_and_kill(
                &world,
                &source.id,
                Duration::from_micros(u64::from(u16::from_le_bytes(random)) * 10),
            );
            // Before any other daemon is there.
            assert_eq!(
                output(&of_source, "ls ~/many | wc -l").await.trim(),
                "2000",
                "point {point}"
            );
            let daemon = world.daemon().await;
            within(daemon.drain()).await;
            for sandbox in daemon.list(&Caller::local(), &ListFilter::default()).unwrap().sandboxes {
                let its = supervisor(&daemon, &sandbox).await;
                assert_eq!(output(&its, "ls ~/many | wc -l").await.trim(), "2000", "point {point}");
                if sandbox.id != source.id {
                    within(daemon.kill(&Caller::local(), &sandbox.id)).await.unwrap();
                }
            }
            within(daemon.drain()).await;
            eventually("the end of what was half made", || {
                (layers(&world).len() == 1).then_some(())
            })
            .await;
        }
    });
}

fn run_and_kill(world: &World, source: &str, wait: Duration) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "forks::a_daemon_that_forks_without_end",
            "--ignored",
            "--nocapture",
        ])
        .env(STATE, world.site.state())
        .env(SOURCE, source)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let stderr = child.stderr.take().unwrap();
    let (sender, ready) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        for line in std::io::BufRead::lines(std::io::BufReader::new(stderr)).map_while(Result::ok) {
            assert!(!line.contains("panicked"), "{line}");
            let _told = sender.send(());
        }
    });
    let _ready = ready.recv_timeout(TIMEOUT);
    std::thread::sleep(wait);
    child.kill().unwrap();
    child.wait().unwrap();
    reader.join().unwrap();
}

#[test]
fn a_source_whose_supervisor_dies_while_it_is_copied_is_gone_and_so_are_its_forks() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let source = create(&daemon).await;
        let of_source = supervisor(&daemon, &source).await;
        output(&of_source, "mkdir ~/many; cd ~/many; seq 5000 | xargs touch").await;
        let pid = of_source.hello().await.unwrap().pid;
        let forking = {
            let (daemon, id) = (daemon.clone(), source.id.clone());
            tokio::spawn(async move {
                let request = ForkRequest {
                    count: 2,
                    ..ForkRequest::default()
                };
                daemon.fork(&Caller::local(), &id, request).await
            })
        };
        eventually("the first copy", || (layers(&world).len() > 1).then_some(())).await;
        kill(pid.cast_signed());
        // It may have been copied in full before.
        match within(forking).await.unwrap() {
            Err(error) => assert!(
                matches!(error, DaemonError::NotFound { .. } | DaemonError::Host { .. }),
                "{error:?}"
            ),
            Ok(forks) => {
                for made in forks.into_iter().map(Result::unwrap) {
                    within(daemon.kill(&Caller::local(), &made.id)).await.unwrap();
                }
            }
        }
        world.emptied().await;
        nothing_left(&world).await;
    });
}
