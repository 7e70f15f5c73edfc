//! Sleep, and checkpoints that are made by themselves.

use std::time::Duration;

use offleash_daemon::{Caller, Daemon, DaemonError, EventKind, LifecycleRequest, PauseMode, VisibleState};

use super::carried::{cell, supervisor};
use super::put_away::{events, said, state};
use super::world::{World, create_with, eventually, supervisors_below, test, within};

fn sleeps_after(idle: Duration, mode: PauseMode) -> LifecycleRequest {
    LifecycleRequest {
        idle: Some(idle),
        idle_mode: Some(mode),
        ..LifecycleRequest::default()
    }
}

async fn asleep(daemon: &Daemon, id: &str) {
    eventually("its sleep", || {
        let view = daemon.get(&Caller::local(), id).unwrap();
        (view.state == VisibleState::Paused && view.asleep).then_some(())
    })
    .await;
}

#[test]
fn a_sandbox_that_nobody_uses_sleeps_and_its_next_use_wakes_it() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        for mode in [PauseMode::Filesystem, PauseMode::Full] {
            let made = create_with(&daemon, |request| {
                request.lifecycle = sleeps_after(Duration::from_secs(1), mode);
            })
            .await;
            said(&daemon, &made.id, "echo kept >~/note").await;
            asleep(&daemon, &made.id).await;
            let view = daemon.get(&Caller::local(), &made.id).unwrap();
            assert_eq!(view.pause_mode, Some(mode));
            assert!(daemon.access(&made.id).unwrap().auto_resume);
            assert_eq!(
                supervisors_below(world.site.root()).len(),
                usize::from(mode == PauseMode::Full)
            );
            // Who only looks wakes nobody.
            assert!(within(daemon.supervisor_unless_paused(&made.id)).await.is_err());
            let mut asking = tokio::task::JoinSet::new();
            for _ in 0..10 {
                let (daemon, id) = (daemon.clone(), made.id.clone());
                asking.spawn(async move { said(&daemon, &id, "cat ~/note").await });
            }
            assert!(asking.join_all().await.iter().all(|text| text == "kept\n"));
            let view = daemon.get(&Caller::local(), &made.id).unwrap();
            assert!(!view.asleep && view.pause_mode.is_none());
            // Cells wake it, too.
            cell(&daemon, &made.id, "n = 7").await;
            asleep(&daemon, &made.id).await;
            assert_eq!(cell(&daemon, &made.id, "print(n)").await, "7\n");
            within(daemon.kill(&Caller::local(), &made.id)).await.unwrap();
        }
        let (paused, resumed) = (events(&world, EventKind::Paused), events(&world, EventKind::Resumed));
        assert!(
            paused.iter().all(|detail| detail.contains("as nobody used it for 1 s")),
            "{paused:?}"
        );
        assert!(
            resumed.iter().all(|detail| detail.contains("woken by traffic")),
            "{resumed:?}"
        );
        assert_eq!((paused.len(), resumed.len()), (4, 4));
        world.emptied().await;
    });
}

#[test]
fn what_goes_on_keeps_a_sandbox_awake() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let idle = Duration::from_secs(1);
        let by_use = create_with(&daemon, |request| {
            request.lifecycle = sleeps_after(idle, PauseMode::Filesystem)
        })
        .await;
        let by_command = create_with(&daemon, |request| {
            request.lifecycle = sleeps_after(idle, PauseMode::Filesystem)
        })
        .await;
        let by_file = create_with(&daemon, |request| {
            request.lifecycle = sleeps_after(idle, PauseMode::Filesystem)
        })
        .await;
        let held = supervisor(&daemon, &by_use).await;
        let channel = within(supervisor(&daemon, &by_file).await.files(None)).await.unwrap();
        let start = offleash_supervisor::service::message::StartExec {
            argv: ["/bin/sleep", "3600"].map(|word| word.as_bytes().to_vec()).into(),
            ..Default::default()
        };
        // It goes on although nobody listens.
        drop(
            within(supervisor(&daemon, &by_command).await.start(start))
                .await
                .unwrap(),
        );
        tokio::time::sleep(Duration::from_millis(3500)).await;
        for id in [&by_use.id, &by_command.id, &by_file.id] {
            assert_eq!(state(&daemon, id), VisibleState::Running);
        }
        drop((held, channel));
        said(&daemon, &by_command.id, "pkill sleep").await;
        for id in [&by_use.id, &by_command.id, &by_file.id] {
            asleep(&daemon, id).await;
        }
        // A time that was set does not run while it sleeps.
        let ended = within(daemon.set_timeout(&Caller::local(), &by_use.id, 1)).await;
        assert!(matches!(ended, Err(DaemonError::Conflict { .. })), "{ended:?}");
    });
}

#[test]
fn who_comes_while_one_falls_asleep_is_served() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let made = create_with(&daemon, |request| {
            request.lifecycle = sleeps_after(Duration::from_secs(1), PauseMode::Filesystem);
        })
        .await;
        said(&daemon, &made.id, "echo 0 >~/count").await;
        for round in 1..=12_u64 {
            // About when it falls asleep, somewhat earlier or later each time.
            tokio::time::sleep(Duration::from_millis(940 + round * 12)).await;
            let add = "echo $(($(cat ~/count) + 1)) >~/count; cat ~/count";
            assert_eq!(said(&daemon, &made.id, add).await, format!("{round}\n"));
        }
    });
}

#[test]
fn checkpoints_are_made_from_time_to_time_and_before_commands_and_the_oldest_go() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let me = Caller::local();
        let made = create_with(&daemon, |request| {
            request.lifecycle = LifecycleRequest {
                checkpoint_every: Some(Duration::from_secs(1)),
                checkpoint_keep: Some(2),
                ..LifecycleRequest::default()
            };
        })
        .await;
        within(daemon.create_checkpoint(&me, &made.id, Some("mine".parse().unwrap())))
            .await
            .unwrap();
        let listed = || daemon.list_checkpoints(&me, &made.id).unwrap().0;
        let automatic = || listed().into_iter().filter(|view| view.automatic.is_some()).count();
        let mut last = Vec::new();
        for round in 0..4 {
            said(&daemon, &made.id, &format!("echo {round} >~/note")).await;
            last = eventually("another checkpoint", || {
                let now: Vec<String> = listed().into_iter().map(|view| view.id).collect();
                let newest = listed()
                    .into_iter()
                    .next_back()
                    .filter(|view| view.automatic.is_some())?;
                (now != last && newest.automatic.as_deref() == Some("every 1 s")).then_some(now)
            })
            .await;
            eventually("the end of the oldest", || (automatic() <= 2).then_some(())).await;
        }
        assert!(listed().iter().any(|view| view.name.as_deref() == Some("mine")));
        // What nobody touches is as it was.
        tokio::time::sleep(Duration::from_millis(1500)).await;
        let before: Vec<String> = listed().into_iter().map(|view| view.id).collect();
        tokio::time::sleep(Duration::from_millis(2500)).await;
        assert_eq!(listed().into_iter().map(|view| view.id).collect::<Vec<_>>(), before);
        within(daemon.kill(&me, &made.id)).await.unwrap();

        let made = create_with(&daemon, |request| {
            request.lifecycle.checkpoint_before = Some(vec!["rm -rf".to_owned()]);
        })
        .await;
        said(&daemon, &made.id, "mkdir ~/work; echo text >~/work/note").await;
        said(&daemon, &made.id, "ls ~/work; rm -r -f ~/work").await;
        let (all, _) = daemon.list_checkpoints(&me, &made.id).unwrap();
        assert_eq!(all.len(), 1);
        assert_eq!(all[0].automatic.as_deref(), Some("before `rm -rf`"));
        within(daemon.restore(&me, &made.id, &all[0].id)).await.unwrap();
        assert_eq!(said(&daemon, &made.id, "cat ~/work/note").await, "text\n");
        within(daemon.kill(&me, &made.id)).await.unwrap();
        world.emptied().await;
    });
}
