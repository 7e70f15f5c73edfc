//! Snapshots and checkpoints: what they hold, who may have them, and what is left of them.

use std::time::Duration;

use offleash_core::error::{ErrorKind, Explained as _};
use offleash_daemon::registry::{Change, SandboxState, SnapshotRow, SnapshotState};
use offleash_daemon::{
    Caller, CarriedContexts, Daemon, DaemonError, Quota, SandboxView, Scope, Scopes, SnapshotFilter, SnapshotRequest,
    SnapshotView,
};

use super::carried::{LEAVE, LEAVE_AS_ROOT, LOOK, as_root, cell, supervisor};
use super::support::processes::TIMEOUT;
use super::world::{World, create, create_with, eventually, output, test, within};

pub(super) async fn snapshot(daemon: &Daemon, id: &str) -> SnapshotView {
    let request = SnapshotRequest::default();
    within(daemon.create_snapshot(&Caller::local(), id, request))
        .await
        .unwrap()
}

pub(super) async fn of_snapshot(daemon: &Daemon, which: &str) -> SandboxView {
    create_with(daemon, |request| request.snapshot = Some(which.to_owned())).await
}

async fn checkpoint(daemon: &Daemon, id: &str, name: &str) -> SnapshotView {
    let name = Some(name.parse().unwrap());
    within(daemon.create_checkpoint(&Caller::local(), id, name))
        .await
        .unwrap()
}

async fn restore(daemon: &Daemon, id: &str, which: &str) -> SandboxView {
    within(daemon.restore(&Caller::local(), id, which)).await.unwrap()
}

fn listed(daemon: &Daemon, caller: &Caller) -> Vec<String> {
    let page = daemon.list_snapshots(caller, &SnapshotFilter::default()).unwrap();
    page.snapshots.into_iter().map(|view| view.id).collect()
}

/// The names of the directories of snapshots.
fn on_disk(world: &World) -> Vec<String> {
    let found = std::fs::read_dir(world.site.state().join("snapshots"));
    let found = found.into_iter().flatten().flatten();
    found.map(|found| found.file_name().into_string().unwrap()).collect()
}

pub(super) fn key(id: &str) -> Caller {
    Caller {
        key_id: id.to_owned(),
        scopes: Scopes(vec![Scope::Create, Scope::Read]),
        quota: Quota::default(),
        tools: None,
    }
}

#[test]
fn sandboxes_of_a_snapshot_begin_with_its_files_and_share_none() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let source = create_with(&daemon, |request| {
            request.env = [("GIVEN".to_owned(), "x".to_owned())].into();
            request.limits.pids = Some(77);
        })
        .await;
        let of_source = supervisor(&daemon, &source).await;
        output(&of_source, LEAVE).await;
        as_root(&of_source, LEAVE_AS_ROOT).await;
        let look = LOOK
            .replace("srv tmp", "srv")
            // Of a file with several names overlayfs shows one number of names for the layer, and another once it is written to.
            .replace("%n %T@", "%T@");
        let seen = as_root(&of_source, &look).await;
        let first = snapshot(&daemon, &source.id).await;
        within(daemon.kill(&Caller::local(), &source.id)).await.unwrap();
        let made = [
            of_snapshot(&daemon, &first.id).await,
            of_snapshot(&daemon, &first.id).await,
        ];
        for sandbox in &made {
            assert_eq!((&sandbox.env, sandbox.limits.pids), (&source.env, 77));
            assert_eq!(sandbox.snapshot.as_ref(), Some(&first.id));
            assert_ne!(sandbox.access_token, source.access_token);
            let its = supervisor(&daemon, sandbox).await;
            assert_eq!(as_root(&its, &look).await, seen);
        }
        // A snapshot of what was made of one has both, and what was removed stays so.
        let one = supervisor(&daemon, &made[0]).await;
        output(
            &one,
            "rm -rf ~/deep/er; mkdir ~/deep/er; echo again >~/deep/er/again; echo own >~/own",
        )
        .await;
        let second = snapshot(&daemon, &made[0].id).await;
        within(daemon.kill(&Caller::local(), &made[0].id)).await.unwrap();
        within(daemon.remove_snapshot(&Caller::local(), &first.id))
            .await
            .unwrap();
        let third = of_snapshot(&daemon, &second.id).await;
        let its = supervisor(&daemon, &third).await;
        let said = output(
            &its,
            "cd; ls deep/er; cat deep/er/again own; cat deep/link; ls /usr/bin/yes 2>&1; true",
        )
        .await;
        assert_eq!(said.lines().next(), Some("again"), "{said}");
        assert!(
            said.contains("again\nown\ntext\n") && said.contains("No such file"),
            "{said}"
        );
        let other = supervisor(&daemon, &made[1]).await;
        assert_eq!(
            output(&other, "cat ~/deep/er/file; ls ~/own 2>/dev/null; true").await,
            "text\n"
        );
    });
}

#[test]
fn a_snapshot_of_one_that_writes_is_of_one_moment() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let source = create(&daemon).await;
        let of_source = supervisor(&daemon, &source).await;
        // Enough that a first copy is made while it runs.
        output(
            &of_source,
            "mkdir ~/many; cd ~/many; seq 2000 | xargs touch; head -c 20M /dev/urandom >~/large",
        )
        .await;
        let write = "i=0; while :; do i=$((i+1)); echo $i >~/t; mv ~/t ~/first; echo $i >~/t; mv ~/t ~/second; rm -rf ~/d$((i%7)); \
                     mkdir ~/d$((i%7)); echo $i >~/d$((i%7))/x; mv ~/many/1 ~/many/one 2>/dev/null || mv ~/many/one ~/many/1; done";
        output(&of_source, &format!("({write}) >/dev/null 2>&1 &")).await;
        // From then on all that is read below is there at each moment.
        output(&of_source, "until [ -s ~/d3/x ]; do sleep 0.01; done").await;
        for _ in 0..3 {
            let made = snapshot(&daemon, &source.id).await;
            let sandbox = of_snapshot(&daemon, &made.id).await;
            let its = supervisor(&daemon, &sandbox).await;
            let read = output(
                &its,
                "cat ~/first ~/second; ls ~/many | wc -l; cat ~/d*/x | sort -n | tail -1",
            )
            .await;
            let numbers: Vec<u64> = read.lines().map(|line| line.parse().unwrap()).collect();
            assert!(numbers[0] == numbers[1] || numbers[0] == numbers[1] + 1, "{numbers:?}");
            assert_eq!(numbers[2], 2000);
            assert!(numbers[3] + 1 >= numbers[0].min(numbers[1]), "{numbers:?}");
            within(daemon.kill(&Caller::local(), &sandbox.id)).await.unwrap();
        }
    });
}

#[test]
fn later_snapshots_share_what_is_the_same_and_nothing_with_the_sandbox() {
    use std::os::unix::fs::MetadataExt as _;
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let source = create(&daemon).await;
        let of_source = supervisor(&daemon, &source).await;
        output(
            &of_source,
            "mkdir ~/many; cd ~/many; seq 2000 | xargs touch; head -c 20M /dev/urandom >~/large",
        )
        .await;
        // What was changed at this moment is told from nothing.
        tokio::time::sleep(Duration::from_millis(200)).await;
        let first = snapshot(&daemon, &source.id).await;
        output(&of_source, "echo new >~/many/7").await;
        let second = snapshot(&daemon, &source.id).await;
        let file = |id: &str, name: &str| {
            let layer = world
                .site
                .state()
                .join("snapshots")
                .join(id)
                .join("layer/root/upper/home/user");
            std::fs::metadata(layer.join(name)).unwrap()
        };
        let is_telling = file(&first.id, "large").ino() == file(&second.id, "large").ino();
        if !is_telling {
            println!("SKIP: this file system does not tell of writes");
            return;
        }
        assert_eq!(file(&first.id, "many/8").ino(), file(&second.id, "many/8").ino());
        assert_ne!(file(&first.id, "many/7").ino(), file(&second.id, "many/7").ino());
        assert_eq!(
            (file(&first.id, "many/7").len(), file(&second.id, "many/7").len()),
            (0, 4)
        );
        let live = world
            .site
            .state()
            .join("scratch")
            .join(&source.id)
            .join("root/upper/home/user/large");
        assert_ne!(std::fs::metadata(live).unwrap().ino(), file(&second.id, "large").ino());
        // What is written through a mapping tells of itself, too.
        output(
            &of_source,
            "python3 -c 'import mmap,os; f=os.open(os.path.expanduser(\"~/large\"),os.O_RDWR); m=mmap.mmap(f,0); m[:4]=b\"mark\"'",
        )
        .await;
        let third = snapshot(&daemon, &source.id).await;
        let its = supervisor(&daemon, &of_snapshot(&daemon, &third.id).await).await;
        assert_eq!(output(&its, "head -c4 ~/large").await, "mark");
    });
}

#[test]
fn sandboxes_of_a_snapshot_go_on_with_what_cells_left() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let source = create(&daemon).await;
        assert_eq!(cell(&daemon, &source.id, "n = [1, 2]").await, "");
        let made = snapshot(&daemon, &source.id).await;
        assert_eq!(made.contexts.len(), 1);
        assert_eq!(cell(&daemon, &source.id, "n.append(3); print(n)").await, "[1, 2, 3]\n");
        within(daemon.kill(&Caller::local(), &source.id)).await.unwrap();
        for _ in 0..2 {
            let sandbox = of_snapshot(&daemon, &made.id).await;
            assert_eq!(cell(&daemon, &sandbox.id, "n.append(4); print(n)").await, "[1, 2, 4]\n");
        }
        let source = create(&daemon).await;
        assert_eq!(
            cell(&daemon, &source.id, "import socket; s = socket.socket(); n = 7").await,
            ""
        );
        let ask = |contexts| SnapshotRequest { name: None, contexts };
        let me = Caller::local();
        let refused = within(daemon.create_snapshot(&me, &source.id, ask(CarriedContexts::All))).await;
        assert!(matches!(refused, Err(DaemonError::Contexts { .. })), "{refused:?}");
        let made = within(daemon.create_snapshot(&me, &source.id, ask(CarriedContexts::Possible))).await;
        let sandbox = of_snapshot(&daemon, &made.unwrap().id).await;
        assert_eq!(cell(&daemon, &sandbox.id, "print(n)").await, "7\n");
        assert_eq!(listed(&daemon, &me).len(), 2, "what was refused is not there");
    });
}

#[test]
fn those_that_are_asked_for_at_once_are_counted_and_none_is_called_by_an_id() {
    test(async {
        let world = World::new();
        let daemon = world.daemon_with(|config| config.snapshots.max = 2).await;
        let source = create(&daemon).await;
        let me = Caller::local();
        let one = || within(daemon.create_snapshot(&me, &source.id, SnapshotRequest::default()));
        let made = tokio::join!(one(), one(), one(), one(), one(), one());
        let made = [made.0, made.1, made.2, made.3, made.4, made.5];
        let refused =
            |made: &&Result<SnapshotView, DaemonError>| matches!(made, Err(DaemonError::QuotaExceeded { .. }));
        assert_eq!(made.iter().filter(refused).count(), 4, "{made:?}");
        assert_eq!(made.iter().filter(|made| made.is_ok()).count(), 2);
        within(daemon.remove_snapshot(&me, &listed(&daemon, &me)[0]))
            .await
            .unwrap();
        // What another key's template or snapshot is, or will be called.
        for id in ["t0123456789abcdefghi", "s0123456789abcdefghi"] {
            let request = SnapshotRequest {
                name: Some(id.parse().unwrap()),
                ..SnapshotRequest::default()
            };
            let refused = within(daemon.create_snapshot(&me, &source.id, request)).await;
            assert!(matches!(refused, Err(DaemonError::Invalid { .. })), "{refused:?}");
        }
    });
}

#[test]
fn no_key_sees_the_snapshot_of_another() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let (alice, bob) = (key("kalice"), key("kbob"));
        let mine = within(daemon.create(&alice, offleash_daemon::CreateRequest::default()))
            .await
            .unwrap();
        let request = SnapshotRequest {
            name: Some("mine".parse().unwrap()),
            ..SnapshotRequest::default()
        };
        let refused = within(daemon.create_snapshot(&bob, &mine.id, request.clone()))
            .await
            .unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NotFound);
        let made = within(daemon.create_snapshot(&alice, &mine.id, request)).await.unwrap();
        for which in [made.id.as_str(), "mine"] {
            let unknown = |error: DaemonError| assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
            unknown(daemon.snapshot(&bob, which).unwrap_err());
            unknown(within(daemon.remove_snapshot(&bob, which)).await.unwrap_err());
            for by_template in [false, true] {
                let mut create = offleash_daemon::CreateRequest::default();
                match by_template {
                    true => create.template = which.to_owned(),
                    false => create.snapshot = Some(which.to_owned()),
                }
                unknown(within(daemon.create(&bob, create)).await.unwrap_err());
            }
            assert_eq!(daemon.snapshot(&alice, which).unwrap(), made);
        }
        assert!(listed(&daemon, &bob).is_empty());
        assert_eq!(listed(&daemon, &Caller::local()), [made.id.as_str()]);
        let looks = Caller {
            scopes: Scopes(vec![Scope::Read]),
            ..alice.clone()
        };
        let forbidden = within(daemon.remove_snapshot(&looks, &made.id)).await.unwrap_err();
        assert_eq!(forbidden.kind(), ErrorKind::Denied);
        let refused = within(daemon.create_checkpoint(&bob, &mine.id, None))
            .await
            .unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NotFound);
    });
}

#[test]
fn one_that_is_removed_is_nobodys_and_goes_with_the_last_sandbox_of_it() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let me = Caller::local();
        let source = create(&daemon).await;
        output(&supervisor(&daemon, &source).await, "echo kept >~/kept").await;
        let made = snapshot(&daemon, &source.id).await;
        let sandbox = of_snapshot(&daemon, &made.id).await;
        within(daemon.remove_snapshot(&me, &made.id)).await.unwrap();
        assert!(listed(&daemon, &me).is_empty());
        let again = within(daemon.remove_snapshot(&me, &made.id)).await.unwrap_err();
        assert!(matches!(again, DaemonError::UnknownSnapshot { .. }), "{again:?}");
        assert_eq!(on_disk(&world), [made.id.as_str()]);
        // Forks of it have it, too, and another daemon knows.
        let forks = within(daemon.fork(&me, &sandbox.id, offleash_daemon::ForkRequest::default())).await;
        let fork = forks.unwrap().remove(0).unwrap();
        world.close(daemon).await;
        let daemon = world.daemon().await;
        for one in [&sandbox, &fork] {
            assert_eq!(output(&supervisor(&daemon, one).await, "cat ~/kept").await, "kept\n");
            assert_eq!(on_disk(&world), [made.id.as_str()]);
            within(daemon.kill(&me, &one.id)).await.unwrap();
        }
        within(daemon.drain()).await;
        world.close(daemon).await;
        let _daemon = world.daemon().await;
        eventually("its end", || on_disk(&world).is_empty().then_some(())).await;
    });
}

#[test]
fn a_sandbox_is_put_back_to_what_it_was() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let me = Caller::local();
        let made = create_with(&daemon, |request| {
            request.name = Some("one".parse().unwrap());
            request.network.allow_public_traffic = Some(false);
        })
        .await;
        let its = supervisor(&daemon, &made).await;
        output(&its, "mkdir ~/d; echo first >~/d/file; echo gone >~/gone").await;
        let first = checkpoint(&daemon, &made.id, "first").await;
        output(
            &its,
            "rm -rf ~/d ~/gone; echo second >~/other; (sleep 1000 >/dev/null 2>&1 &)",
        )
        .await;
        let second = checkpoint(&daemon, &made.id, "second").await;
        assert_eq!(cell(&daemon, &made.id, "n = 1").await, "");
        let back = restore(&daemon, &made.id, "first").await;
        for (is, was) in [
            (&back.id, &made.id),
            (back.access_token.as_ref().unwrap(), made.access_token.as_ref().unwrap()),
            (
                back.traffic_token.as_ref().unwrap(),
                made.traffic_token.as_ref().unwrap(),
            ),
        ] {
            assert_eq!(is, was);
        }
        assert_eq!(
            (&back.metadata, &back.network, back.end_at),
            (&made.metadata, &made.network, made.end_at)
        );
        let its = supervisor(&daemon, &back).await;
        let said = output(&its, "cd; cat d/file gone; ls other 2>/dev/null; pgrep -x sleep; true").await;
        assert_eq!(said, "first\ngone\n");
        assert_eq!(cell(&daemon, &made.id, "print('n' in dir())").await, "False\n");
        let third = checkpoint(&daemon, &made.id, "third").await;
        let (all, current) = daemon.list_checkpoints(&me, &made.id).unwrap();
        let parents: Vec<_> = all.iter().map(|view| view.parent.clone()).collect();
        assert_eq!(parents, [None, Some(first.id.clone()), Some(first.id.clone())]);
        assert_eq!(current, Some(third.id));
        // One that is paused, and one after another.
        within(daemon.pause(&me, &made.id)).await.unwrap();
        let back = restore(&daemon, &made.id, &second.id).await;
        assert_eq!(
            output(
                &supervisor(&daemon, &back).await,
                "cat ~/other; ls ~/d 2>/dev/null; true"
            )
            .await,
            "second\n"
        );
        let unknown = within(daemon.restore(&me, &made.id, "no-such")).await.unwrap_err();
        assert_eq!(unknown.kind(), ErrorKind::NotFound);
        let other = create(&daemon).await;
        let unknown = within(daemon.restore(&me, &other.id, &first.id)).await.unwrap_err();
        assert_eq!(unknown.kind(), ErrorKind::NotFound, "it is another one's");
        let of_checkpoint = offleash_daemon::CreateRequest {
            snapshot: Some(first.id.clone()),
            ..offleash_daemon::CreateRequest::default()
        };
        assert!(
            within(daemon.create(&me, of_checkpoint)).await.is_err(),
            "a checkpoint is no snapshot"
        );
        within(daemon.remove_checkpoint(&me, &made.id, "first")).await.unwrap();
        assert_eq!(daemon.list_checkpoints(&me, &made.id).unwrap().0.len(), 2);
        // They go with it.
        within(daemon.kill(&me, &made.id)).await.unwrap();
        within(daemon.kill(&me, &other.id)).await.unwrap();
        within(daemon.drain()).await;
        world.close(daemon).await;
        let _daemon = world.daemon().await;
        eventually("their end", || on_disk(&world).is_empty().then_some(())).await;
        world.emptied().await;
    });
}

#[test]
fn no_more_are_made_than_the_owner_allows() {
    test(async {
        let world = World::new();
        let daemon = world
            .daemon_with(|config| {
                config.snapshots.max = 1;
                config.snapshots.max_checkpoints = 2;
            })
            .await;
        let me = Caller::local();
        let source = create(&daemon).await;
        let first = snapshot(&daemon, &source.id).await;
        let refused = within(daemon.create_snapshot(&me, &source.id, SnapshotRequest::default())).await;
        assert!(matches!(refused, Err(DaemonError::QuotaExceeded { .. })), "{refused:?}");
        for name in ["one", "two"] {
            checkpoint(&daemon, &source.id, name).await;
        }
        let refused = within(daemon.create_checkpoint(&me, &source.id, None)).await;
        assert!(matches!(refused, Err(DaemonError::QuotaExceeded { .. })), "{refused:?}");
        within(daemon.remove_snapshot(&me, &first.id)).await.unwrap();
        snapshot(&daemon, &source.id).await;
        assert_eq!(on_disk(&world).len(), 3);
    });
}

#[test]
fn a_name_is_the_latest_ones_and_no_templates() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let me = Caller::local();
        let source = create(&daemon).await;
        let named = |name: &str| SnapshotRequest {
            name: Some(name.parse().unwrap()),
            ..SnapshotRequest::default()
        };
        let first = within(daemon.create_snapshot(&me, &source.id, named("mine")))
            .await
            .unwrap();
        let second = within(daemon.create_snapshot(&me, &source.id, named("mine")))
            .await
            .unwrap();
        assert_eq!(daemon.snapshot(&me, "mine").unwrap().id, second.id);
        assert_eq!(daemon.snapshot(&me, &first.id).unwrap().name, None);
        let refused = within(daemon.create_snapshot(&me, &source.id, named("base")))
            .await
            .unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid);
    });
}

#[test]
fn what_a_daemon_left_half_made_is_removed_and_what_it_was_putting_back_is_put_back() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let source = create(&daemon).await;
        let its = supervisor(&daemon, &source).await;
        output(&its, "echo first >~/file").await;
        let at = checkpoint(&daemon, &source.id, "first").await;
        output(&its, "echo second >~/file").await;
        within(daemon.drain()).await;
        world.close(daemon).await;
        let registry = world.registry();
        let mut row = registry.sandboxes().unwrap().remove(0);
        row.state = SandboxState::Restoring;
        row.generation += 1;
        row.spec = row
            .spec
            .replace("\"snapshot\":null", &format!("\"snapshot\":\"{}\"", at.id));
        let half = SnapshotRow {
            id: "shalfmade".to_owned(),
            state: SnapshotState::Making,
            ..registry.snapshot(&at.id).unwrap().unwrap()
        };
        let batch = vec![Change::SetSandbox(Box::new(row)), Change::AddSnapshot(Box::new(half))];
        registry.apply(batch).unwrap();
        drop(registry);
        for id in ["shalfmade", "sunknown"] {
            std::fs::create_dir(world.site.state().join("snapshots").join(id)).unwrap();
        }
        let daemon = world.daemon().await;
        let found = daemon.get(&Caller::local(), &source.id).unwrap();
        assert_eq!(found.access_token, source.access_token);
        assert_eq!(
            output(&supervisor(&daemon, &found).await, "cat ~/file").await,
            "first\n"
        );
        assert_eq!(on_disk(&world), [at.id.as_str()]);
    });
}

#[test]
fn a_source_that_ends_or_has_no_room_leaves_nothing() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let me = Caller::local();
        let source = create_with(&daemon, |request| request.limits.disk_mib = Some(64)).await;
        let its = supervisor(&daemon, &source).await;
        output(&its, "head -c 30M /dev/urandom >~/large").await;
        let making = {
            let (daemon, id) = (daemon.clone(), source.id.clone());
            tokio::spawn(async move {
                daemon
                    .create_snapshot(&Caller::local(), &id, SnapshotRequest::default())
                    .await
            })
        };
        tokio::time::sleep(Duration::from_millis(20)).await;
        within(daemon.kill(&me, &source.id)).await.unwrap();
        let made = tokio::time::timeout(TIMEOUT, making).await.unwrap().unwrap();
        let expected = usize::from(made.is_ok());
        eventually("what is left", || (on_disk(&world).len() == expected).then_some(())).await;
        let gone = within(daemon.create_snapshot(&me, &source.id, SnapshotRequest::default())).await;
        assert_eq!(gone.unwrap_err().kind(), ErrorKind::NotFound);
    });
}
