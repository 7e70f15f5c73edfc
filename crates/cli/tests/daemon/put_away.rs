//! Pauses without memory: what is kept, who counts it, and who may die meanwhile.

use std::time::Duration;

use offleash_core::error::{ErrorKind, Explained as _};
use offleash_daemon::registry::{Change, EventsQuery, SandboxState};
use offleash_daemon::{
    Caller, Daemon, DaemonError, EventKind, ForkRequest, ListFilter, OnTimeout, PauseMode, Quota, SandboxView, Scope,
    Scopes, SnapshotRequest, VisibleState, VolumeMountRequest,
};

use super::carried::{LEAVE, LEAVE_AS_ROOT, LOOK, as_root, cell, supervisor};
use super::world::{World, create, create_with, eventually, output, supervisors_below, test, within};

pub(super) fn state(daemon: &Daemon, id: &str) -> VisibleState {
    daemon.get(&Caller::local(), id).unwrap().state
}

async fn put_away(daemon: &Daemon, id: &str) {
    within(daemon.put_away(&Caller::local(), id)).await.unwrap();
    let view = daemon.get(&Caller::local(), id).unwrap();
    assert_eq!(
        (view.state, view.pause_mode),
        (VisibleState::Paused, Some(PauseMode::Filesystem))
    );
}

async fn connect(daemon: &Daemon, id: &str) -> SandboxView {
    let (view, resumed) = within(daemon.connect(&Caller::local(), id, None)).await.unwrap();
    assert!(resumed && view.state == VisibleState::Running);
    view
}

/// What a script writes in a sandbox, which is used no longer than that.
pub(super) async fn said(daemon: &Daemon, id: &str, script: &str) -> String {
    let supervisor = within(daemon.supervisor(id)).await.unwrap();
    output(&supervisor, script).await
}

pub(super) fn events(world: &World, kind: EventKind) -> Vec<String> {
    let query = EventsQuery {
        limit: 100,
        ..EventsQuery::default()
    };
    let all = world.registry().events(&query).unwrap();
    let of_kind = all.into_iter().filter(|event| event.kind == kind);
    of_kind.map(|event| event.detail.unwrap_or_default()).collect()
}

#[test]
fn one_that_is_put_away_takes_no_process_and_goes_on_with_its_files() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let me = Caller::local();
        let made = create_with(&daemon, |request| {
            request.metadata.insert("label".to_owned(), "kept".to_owned());
            request.env.insert("VARIABLE".to_owned(), "kept".to_owned());
            request.network.internet = Some(false);
        })
        .await;
        let held = supervisor(&daemon, &made).await;
        as_root(&held, LEAVE_AS_ROOT).await;
        output(&held, LEAVE).await;
        output(&held, "sleep 3600 >/dev/null 2>&1 & echo memory >/dev/shm/note").await;
        let before = as_root(&held, LOOK).await;
        drop(held);
        put_away(&daemon, &made.id).await;
        assert!(supervisors_below(world.site.root()).is_empty());
        assert_eq!(
            std::fs::read_dir(world.site.state().join("sandboxes")).unwrap().count(),
            0
        );
        let again = within(daemon.put_away(&me, &made.id)).await;
        assert!(matches!(again, Err(DaemonError::Conflict { .. })), "{again:?}");
        assert!(matches!(
            within(daemon.supervisor(&made.id)).await,
            Err(DaemonError::Conflict { .. })
        ));
        let filter = ListFilter {
            states: vec![VisibleState::Paused],
            ..ListFilter::default()
        };
        assert_eq!(daemon.list(&me, &filter).unwrap().sandboxes[0].id, made.id);
        let view = connect(&daemon, &made.id).await;
        let expected = SandboxView {
            end_at: view.end_at,
            ..made.clone()
        };
        assert_eq!(view, expected);
        let held = supervisor(&daemon, &made).await;
        assert_eq!(as_root(&held, LOOK).await, before);
        assert_eq!(
            output(&held, "cat /dev/shm/note 2>&1 || true; pgrep -c sleep || true")
                .await
                .lines()
                .last(),
            Some("0")
        );
        assert!(events(&world, EventKind::Paused)[0].contains("paused without memory by the owner of the daemon"));
        assert!(events(&world, EventKind::Resumed)[0].contains("resumed by the owner of the daemon, without memory"));
        // And once more, what was there before, and what is new.
        output(&held, "echo new >>~/new").await;
        drop(held);
        put_away(&daemon, &made.id).await;
        connect(&daemon, &made.id).await;
        assert_eq!(said(&daemon, &made.id, "cat ~/new ~/deep/er/file").await, "new\ntext\n");
        put_away(&daemon, &made.id).await;
        within(daemon.kill(&me, &made.id)).await.unwrap();
        world.emptied().await;
        eventually("the end of its files", || {
            let left = std::fs::read_dir(world.site.state().join("scratch")).unwrap().count();
            (left == 0).then_some(())
        })
        .await;
    });
}

#[test]
fn one_that_is_put_away_outlives_the_daemon_and_is_killed_by_the_next() {
    test(async {
        let world = World::new();
        let first = world.daemon().await;
        let made = create(&first).await;
        said(&first, &made.id, "echo kept >~/note").await;
        put_away(&first, &made.id).await;
        let other = create(&first).await;
        put_away(&first, &other.id).await;
        world.close(first).await;
        let second = world.daemon().await;
        assert_eq!(state(&second, &made.id), VisibleState::Paused);
        within(second.kill(&Caller::local(), &other.id)).await.unwrap();
        connect(&second, &made.id).await;
        assert_eq!(said(&second, &made.id, "cat ~/note").await, "kept\n");
        within(second.kill(&Caller::local(), &made.id)).await.unwrap();
        world.emptied().await;
    });
}

#[test]
fn a_daemon_finishes_what_the_one_before_had_begun() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let made = create(&daemon).await;
        let second = create(&daemon).await;
        for id in [&made.id, &second.id] {
            said(&daemon, id, "echo kept >~/note").await;
        }
        world.close(daemon).await;
        // One had its files marked and its supervisor still runs; of the other that was not done yet.
        std::fs::write(world.site.state().join("scratch").join(&made.id).join("kept"), "").unwrap();
        let registry = world.registry();
        for mut row in registry.sandboxes().unwrap() {
            row.state = SandboxState::PuttingAway;
            row.generation += 1;
            registry.apply(vec![Change::SetSandbox(Box::new(row))]).unwrap();
        }
        drop(registry);
        let daemon = world.daemon().await;
        assert_eq!(
            (state(&daemon, &made.id), state(&daemon, &second.id)),
            (VisibleState::Paused, VisibleState::Running)
        );
        connect(&daemon, &made.id).await;
        for id in [&made.id, &second.id] {
            assert_eq!(said(&daemon, id, "cat ~/note").await, "kept\n");
        }
        put_away(&daemon, &made.id).await;
        world.close(daemon).await;
        let registry = world.registry();
        let mut row = registry
            .sandboxes()
            .unwrap()
            .into_iter()
            .find(|row| row.id == made.id)
            .unwrap();
        row.state = SandboxState::Waking;
        row.generation += 1;
        registry.apply(vec![Change::SetSandbox(Box::new(row))]).unwrap();
        drop(registry);
        let daemon = world.daemon().await;
        connect(&daemon, &made.id).await;
        assert_eq!(said(&daemon, &made.id, "cat ~/note").await, "kept\n");
        for id in [&made.id, &second.id] {
            within(daemon.kill(&Caller::local(), id)).await.unwrap();
        }
        world.emptied().await;
    });
}

#[test]
fn contexts_of_code_go_on_with_what_could_be_saved() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let made = create(&daemon).await;
        cell(&daemon, &made.id, "import threading\nn = 7\nlock = threading.Lock()").await;
        put_away(&daemon, &made.id).await;
        connect(&daemon, &made.id).await;
        assert_eq!(
            cell(&daemon, &made.id, "print(n, 'lock' in globals())").await,
            "7 False\n"
        );
        // A cell that runs is not waited for, and goes with memory.
        let contexts = within(daemon.contexts(&made.id)).await.unwrap();
        let endless = offleash_interpreter::cell::Cell {
            code: "while True: pass".to_owned(),
            ..Default::default()
        };
        let running =
            within(contexts.execute_in_default(offleash_interpreter::language::Language::Python, endless)).await;
        put_away(&daemon, &made.id).await;
        drop((running, contexts));
        connect(&daemon, &made.id).await;
        assert_eq!(cell(&daemon, &made.id, "print('n' in globals())").await, "False\n");
        assert_eq!(
            said(&daemon, &made.id, "ls -A ~ | grep -c offleash-state || true").await,
            "0\n"
        );
    });
}

#[test]
fn forks_snapshots_and_checkpoints_are_made_of_paused_ones() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let me = Caller::local();
        for mode in [PauseMode::Full, PauseMode::Filesystem] {
            let made = create(&daemon).await;
            said(&daemon, &made.id, "echo kept >~/note").await;
            cell(&daemon, &made.id, "n = 7").await;
            match mode {
                PauseMode::Full => within(daemon.pause(&me, &made.id)).await.unwrap(),
                PauseMode::Filesystem => put_away(&daemon, &made.id).await,
            }
            let snapshot = within(daemon.create_snapshot(&me, &made.id, SnapshotRequest::default()))
                .await
                .unwrap();
            let checkpoint = within(daemon.create_checkpoint(&me, &made.id, None)).await.unwrap();
            let forks = within(daemon.fork(&me, &made.id, ForkRequest::default()))
                .await
                .unwrap();
            let fork = forks.into_iter().next().unwrap().unwrap();
            assert_eq!(state(&daemon, &made.id), VisibleState::Paused, "{mode:?}");
            assert!(!fork.asleep && fork.pause_mode.is_none());
            let copy = create_with(&daemon, |request| request.snapshot = Some(snapshot.id.clone())).await;
            for id in [&fork.id, &copy.id] {
                assert_eq!(said(&daemon, id, "cat ~/note").await, "kept\n", "{mode:?}");
                assert_eq!(cell(&daemon, id, "print(n)").await, "7\n", "{mode:?}");
            }
            connect(&daemon, &made.id).await;
            assert_eq!(cell(&daemon, &made.id, "print(n)").await, "7\n", "{mode:?}");
            said(&daemon, &made.id, "rm ~/note").await;
            match mode {
                PauseMode::Full => within(daemon.pause(&me, &made.id)).await.unwrap(),
                PauseMode::Filesystem => put_away(&daemon, &made.id).await,
            }
            let restored = within(daemon.restore(&me, &made.id, &checkpoint.id)).await.unwrap();
            assert_eq!((restored.state, restored.pause_mode), (VisibleState::Running, None));
            assert_eq!(said(&daemon, &made.id, "cat ~/note").await, "kept\n", "{mode:?}");
            for id in [&made.id, &fork.id, &copy.id] {
                within(daemon.kill(&me, id)).await.unwrap();
            }
        }
        world.emptied().await;
    });
}

#[test]
fn time_that_is_up_may_keep_files_alone_and_a_frozen_one_may_go_on_with_these() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let me = Caller::local();
        let made = create_with(&daemon, |request| {
            request.on_timeout = OnTimeout::Pause;
            request.auto_resume = true;
            request.lifecycle.timeout_mode = PauseMode::Filesystem;
        })
        .await;
        said(&daemon, &made.id, "echo kept >~/note").await;
        within(daemon.set_timeout(&me, &made.id, 0)).await.unwrap();
        eventually("its pause", || {
            (state(&daemon, &made.id) == VisibleState::Paused).then_some(())
        })
        .await;
        assert!(supervisors_below(world.site.root()).is_empty());
        // Traffic makes it again, once.
        let mut asking = tokio::task::JoinSet::new();
        for _ in 0..10 {
            let (daemon, id) = (daemon.clone(), made.id.clone());
            asking.spawn(async move { within(daemon.supervisor(&id)).await.map(|_| ()) });
        }
        assert!(asking.join_all().await.iter().all(Result::is_ok));
        assert_eq!(events(&world, EventKind::Resumed).len(), 1);
        said(&daemon, &made.id, "sleep 3600 >/dev/null 2>&1 &").await;
        within(daemon.pause(&me, &made.id)).await.unwrap();
        let (view, _) = within(daemon.connect_rebooted(&me, &made.id, None)).await.unwrap();
        assert_eq!(view.state, VisibleState::Running);
        assert_eq!(
            said(&daemon, &made.id, "cat ~/note; pgrep -c sleep || true").await,
            "kept\n0\n"
        );
    });
}

#[test]
fn a_wake_that_fails_is_told_and_keeps_the_files() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let me = Caller::local();
        let volume = offleash_daemon::VolumeRequest {
            name: "data".to_owned(),
            size_mib: Some(64),
            inodes: None,
            shared: false,
            bucket: None,
        };
        within(daemon.create_volume(&me, volume)).await.unwrap();
        let mount = || VolumeMountRequest {
            volume: "data".to_owned(),
            path: "/data".to_owned(),
            read_only: false,
        };
        let made = create_with(&daemon, |request| request.volumes = vec![mount()]).await;
        said(&daemon, &made.id, "echo kept >~/note; echo shared >/data/note").await;
        put_away(&daemon, &made.id).await;
        // Nobody writes to a volume twice.
        let thief = create_with(&daemon, |request| request.volumes = vec![mount()]).await;
        for _ in 0..2 {
            let failed = within(daemon.connect(&me, &made.id, None)).await.unwrap_err();
            assert!(matches!(failed, DaemonError::NotMounted { .. }), "{failed:?}");
            assert_eq!(failed.kind(), ErrorKind::Conflict);
            assert_eq!(state(&daemon, &made.id), VisibleState::Paused);
        }
        within(daemon.kill(&me, &thief.id)).await.unwrap();
        let note = eventually_connected(&daemon, &made.id).await;
        assert_eq!(note, "kept\nshared\n");
        within(daemon.kill(&me, &made.id)).await.unwrap();
        world.emptied().await;
    });
}

/// What is in one once its volume is free.
async fn eventually_connected(daemon: &Daemon, id: &str) -> String {
    for _ in 0..200 {
        if within(daemon.connect(&Caller::local(), id, None)).await.is_ok() {
            return said(daemon, id, "cat ~/note /data/note").await;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("its volume is not free");
}

#[test]
fn one_that_is_put_away_keeps_the_build_of_its_template_as_long_as_a_server_runs() {
    test(async {
        let world = World::new();
        let build = |made: &str| {
            let script = format!("echo {made} > /usr/local/made");
            let build = ["template", "build", "-q", "--name", "one", "--run", &script];
            world.site.succeed(build);
        };
        build("first");
        let daemon = world.daemon().await;
        let made = create_with(&daemon, |request| request.template = "one".to_owned()).await;
        said(&daemon, &made.id, "echo kept >~/note").await;
        put_away(&daemon, &made.id).await;
        build("second");
        for _ in 0..2 {
            connect(&daemon, &made.id).await;
            assert_eq!(
                said(&daemon, &made.id, "cat /usr/local/made ~/note").await,
                "first\nkept\n"
            );
            put_away(&daemon, &made.id).await;
        }
        let refused = within(daemon.remove_template(&Caller::local(), "one")).await;
        assert!(matches!(refused, Err(DaemonError::TemplateInUse { .. })), "{refused:?}");
        // Nobody holds the first one while no server runs, and a command removes it.
        world.close(daemon).await;
        let mut builds = 0;
        eventually("the end of the first one", || {
            builds += 1;
            let name = format!("other-{builds}");
            world
                .site
                .succeed(["template", "build", "-q", "--name", &name, "--run", "true"]);
            let left = std::fs::read_dir(world.site.state().join("templates"))
                .unwrap()
                .flatten();
            let mut replaced = left.filter(|found| found.file_name().to_string_lossy().starts_with(".old-"));
            replaced.next().is_none().then_some(())
        })
        .await;
        let daemon = world.daemon().await;
        let refused = within(daemon.connect(&Caller::local(), &made.id, None))
            .await
            .unwrap_err();
        assert!(refused.to_string().contains("was built anew"), "{refused}");
        assert_eq!(state(&daemon, &made.id), VisibleState::Paused);
        within(daemon.kill(&Caller::local(), &made.id)).await.unwrap();
        world.emptied().await;
    });
}

#[test]
fn what_is_put_away_counts_disk_and_no_memory_and_is_bounded() {
    test(async {
        let world = World::new();
        let daemon = world.daemon_with(|config| config.lifecycle.max_put_away = 1).await;
        let limits = daemon.config().default_limits;
        let key = Caller {
            key_id: "k1".to_owned(),
            scopes: Scopes(vec![Scope::Create, Scope::Read]),
            quota: Quota {
                memory_mib: Some(limits.memory_mib),
                ..Quota::default()
            },
            tools: None,
        };
        let create = || within(daemon.create(&key, offleash_daemon::CreateRequest::default()));
        let first = create().await.unwrap();
        assert!(matches!(create().await, Err(DaemonError::QuotaExceeded { .. })));
        within(daemon.put_away(&key, &first.id)).await.unwrap();
        let second = create().await.unwrap();
        let refused = within(daemon.put_away(&key, &second.id)).await;
        assert!(
            matches!(
                refused,
                Err(DaemonError::QuotaExceeded {
                    what: "sandboxes paused without memory",
                    ..
                })
            ),
            "{refused:?}"
        );
        assert_eq!(daemon.get(&key, &second.id).unwrap().state, VisibleState::Running);
        let refused = within(daemon.connect(&key, &first.id, None)).await;
        assert!(matches!(refused, Err(DaemonError::QuotaExceeded { .. })), "{refused:?}");
        within(daemon.kill(&key, &second.id)).await.unwrap();
        eventually("the end of one", || daemon.get(&key, &second.id).is_err().then_some(())).await;
        loop {
            match within(daemon.connect(&key, &first.id, None)).await {
                Ok(_) => break,
                Err(DaemonError::QuotaExceeded { .. }) => tokio::time::sleep(Duration::from_millis(20)).await,
                Err(error) => panic!("{error:?}"),
            }
        }
    });
}
