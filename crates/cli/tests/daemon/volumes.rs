//! Volumes of the daemon: whose they are, what counts, and that they stay with their sandboxes whatever happens.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use offleash_core::error::{ErrorKind, Explained as _};
use offleash_core::spec::MountAccess;
use offleash_daemon::{
    Caller, CreateRequest, Daemon, DaemonError, ForkRequest, KeyStore, Quota, SandboxView, Scope, Scopes, VisibleState,
    VolumeMountRequest, VolumeRequest,
};

use super::world::{World, config, eventually, kill, output, supervisors_below, test, within};

/// Says to the test's own program that it is to be a daemon, and for which state directory.
const STATE: &str = "OFFLEASH_TEST_VOLUMES_STATE";

fn request(name: &str) -> VolumeRequest {
    VolumeRequest {
        name: name.to_owned(),
        size_mib: Some(64),
        inodes: None,
        shared: false,
        bucket: None,
    }
}

fn mount(volume: &str, read_only: bool) -> VolumeMountRequest {
    VolumeMountRequest {
        volume: volume.to_owned(),
        path: "/data".to_owned(),
        read_only,
    }
}

fn with(volume: &str, read_only: bool) -> CreateRequest {
    CreateRequest {
        volumes: vec![mount(volume, read_only)],
        ..CreateRequest::default()
    }
}

fn caller(key_id: &str, quota: Quota) -> Caller {
    Caller {
        key_id: key_id.to_owned(),
        scopes: Scopes(vec![Scope::Create]),
        quota,
        tools: None,
    }
}

async fn said(daemon: &Daemon, sandbox: &SandboxView, script: &str) -> String {
    output(&daemon.supervisor(&sandbox.id).await.unwrap(), script).await
}

#[test]
fn a_volume_is_its_key_s_alone() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let keys = KeyStore::open(Some(&world.site.state())).unwrap();
        let [owner, other] = ["one", "other"].map(|name| {
            let (_, row) = keys
                .create(name, Scopes(vec![Scope::Create]), Quota::default())
                .unwrap();
            caller(&row.id, Quota::default())
        });
        let made = within(daemon.create_volume(&owner, request("data"))).await.unwrap();
        let id = made.record.id.as_str();
        for which in ["data", id] {
            for error in [
                daemon.volume(&other, which).await.err(),
                daemon.remove_volume(&other, which).await.err(),
                within(daemon.create(&other, with(which, true))).await.err(),
            ] {
                let error = error.unwrap();
                assert!(matches!(error, DaemonError::Volume(_)), "{error:?}");
                assert_eq!(error.kind(), ErrorKind::NotFound);
            }
        }
        assert!(daemon.list_volumes(&other).await.unwrap().is_empty());
        // One of the same name is another one.
        let others = within(daemon.create_volume(&other, request("data"))).await.unwrap();
        assert_ne!(others.record.id, made.record.id);
        for (id, token) in [
            (id, others.record.token.reveal()),
            (others.record.id.as_str(), ""),
            ("v0", ""),
        ] {
            let opened = daemon.open_volume(id, token).await;
            assert!(matches!(opened, Err(DaemonError::Unauthorized)), "{opened:?}");
        }
        daemon.open_volume(id, made.record.token.reveal()).await.unwrap();
        let reader = Caller {
            scopes: Scopes(vec![Scope::Read]),
            ..owner.clone()
        };
        assert_eq!(daemon.list_volumes(&reader).await.unwrap().len(), 1);
        assert!(
            matches!(daemon.volume(&reader, id).await, Err(DaemonError::Forbidden { .. })),
            "it tells the token"
        );
        // The token goes with the key.
        keys.revoke(&other.key_id).unwrap();
        let opened = daemon
            .open_volume(others.record.id.as_str(), others.record.token.reveal())
            .await;
        assert!(matches!(opened, Err(DaemonError::Unauthorized)), "{opened:?}");
        daemon.remove_volume(&owner, "data").await.unwrap();
        daemon.remove_volume(&other, "data").await.unwrap();
    });
}

#[test]
fn the_quota_of_a_volume_counts_as_a_disk() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let disk = daemon.config().default_limits.disk_mib;
        let quota = Quota {
            disk_mib: Some(disk + 100),
            ..Quota::default()
        };
        let owner = caller("k1", quota);
        let exceeded = |error: DaemonError| assert!(matches!(error, DaemonError::QuotaExceeded { .. }), "{error:?}");
        within(daemon.create_volume(&owner, request("a"))).await.unwrap();
        exceeded(
            within(daemon.create_volume(
                &owner,
                VolumeRequest {
                    size_mib: Some(disk + 37),
                    ..request("b")
                },
            ))
            .await
            .unwrap_err(),
        );
        let sandbox = within(daemon.create(&owner, CreateRequest::default())).await.unwrap();
        exceeded(within(daemon.create_volume(&owner, request("b"))).await.unwrap_err());
        within(daemon.kill(&owner, &sandbox.id)).await.unwrap();
        // It counts until nothing of it is left.
        eventually("the end of a sandbox", || {
            let counts = daemon.counts();
            (counts.running + counts.changing == 0).then_some(())
        })
        .await;
        within(daemon.create_volume(&owner, request("b"))).await.unwrap();
        exceeded(
            within(daemon.create(&owner, CreateRequest::default()))
                .await
                .unwrap_err(),
        );
        within(daemon.remove_volume(&owner, "b")).await.unwrap();
        let sandbox = within(daemon.create(&owner, CreateRequest::default())).await.unwrap();
        within(daemon.kill(&owner, &sandbox.id)).await.unwrap();
        world.emptied().await;
    });
}

#[test]
fn a_second_writer_is_refused_until_the_first_is_gone() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let me = Caller::local();
        within(daemon.create_volume(&me, request("data"))).await.unwrap();
        let first = within(daemon.create(&me, with("data", false))).await.unwrap();
        assert_eq!(first.volumes[0].access, MountAccess::Rw);
        said(&daemon, &first, "echo one >/data/f").await;
        let error = within(daemon.create(&me, with("data", false))).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error:?}");
        let reader = within(daemon.create(&me, with("data", true))).await.unwrap();
        assert_eq!(
            said(&daemon, &reader, "cat /data/f; touch /data/x 2>/dev/null || echo no").await,
            "one\nno\n"
        );
        let error = daemon.remove_volume(&me, "data").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error:?}");
        within(daemon.kill(&me, &first.id)).await.unwrap();
        let second = within(daemon.create(&me, with("data", false))).await.unwrap();
        said(&daemon, &second, "echo two >>/data/f").await;
        for sandbox in [reader, second] {
            within(daemon.kill(&me, &sandbox.id)).await.unwrap();
        }
        within(daemon.remove_volume(&me, "data")).await.unwrap();
        world.emptied().await;
    });
}

#[test]
fn what_a_killed_supervisor_had_is_free() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let me = Caller::local();
        within(daemon.create_volume(&me, request("data"))).await.unwrap();
        within(daemon.create(&me, with("data", false))).await.unwrap();
        supervisors_below(world.site.root()).into_iter().for_each(kill);
        world.emptied().await;
        let again = within(daemon.create(&me, with("data", false))).await.unwrap();
        within(daemon.kill(&me, &again.id)).await.unwrap();
        within(daemon.remove_volume(&me, "data")).await.unwrap();
    });
}

#[test]
fn pauses_and_the_next_daemon_leave_it_where_it_is() {
    test(async {
        let world = World::new();
        let me = Caller::local();
        let first = world.daemon().await;
        within(first.create_volume(&me, request("data"))).await.unwrap();
        let sandbox = within(first.create(&me, with("data", false))).await.unwrap();
        said(&first, &sandbox, "echo kept >/data/f").await;
        let can_pause = within(first.pause(&me, &sandbox.id)).await.is_ok();
        drop(first);
        let second = world.daemon().await;
        let view = second.get(&me, &sandbox.id).unwrap();
        assert_eq!(view.volumes, sandbox.volumes);
        let error = within(second.create(&me, with("data", false))).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error:?}");
        assert!(second.list_volumes(&me).await.unwrap()[0].in_use);
        if can_pause {
            assert_eq!(view.state, VisibleState::Paused);
            within(second.resume(&me, &sandbox.id, None)).await.unwrap();
        }
        assert_eq!(
            said(&second, &sandbox, "echo more >>/data/f; cat /data/f").await,
            "kept\nmore\n"
        );
        within(second.kill(&me, &sandbox.id)).await.unwrap();
        within(second.remove_volume(&me, "data")).await.unwrap();
        world.emptied().await;
    });
}

#[test]
fn a_fork_reads_what_its_source_writes_and_shares_what_is_shared() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let me = Caller::local();
        for shared in [false, true] {
            let name = if shared { "many" } else { "one" };
            let new = VolumeRequest {
                shared,
                ..request(name)
            };
            within(daemon.create_volume(&me, new)).await.unwrap();
            let source = within(daemon.create(&me, with(name, false))).await.unwrap();
            said(&daemon, &source, "echo before >/data/f").await;
            let forks = within(daemon.fork(&me, &source.id, ForkRequest::default()))
                .await
                .unwrap();
            let fork = forks.into_iter().next().unwrap().unwrap();
            said(&daemon, &source, "echo after >>/data/f").await;
            assert_eq!(said(&daemon, &fork, "cat /data/f").await, "before\nafter\n");
            let writes = said(&daemon, &fork, "echo x >>/data/f && echo yes || echo no").await;
            assert_eq!(writes.trim() == "yes", shared, "{writes}");
            let access = if shared { MountAccess::Rw } else { MountAccess::Ro };
            assert_eq!(fork.volumes[0].access, access);
            for sandbox in [fork, source] {
                within(daemon.kill(&me, &sandbox.id)).await.unwrap();
            }
        }
        world.emptied().await;
    });
}

#[test]
fn a_sandbox_that_writes_too_much_ends_and_no_other_begins() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let me = Caller::local();
        let new = VolumeRequest {
            size_mib: Some(2),
            ..request("data")
        };
        within(daemon.create_volume(&me, new)).await.unwrap();
        let sandbox = within(daemon.create(&me, with("data", false))).await.unwrap();
        let supervisor = daemon.supervisor(&sandbox.id).await.unwrap();
        let start = offleash_supervisor::service::message::StartExec {
            argv: ["/bin/sh", "-c", "head -c 32M /dev/zero >/data/f; sleep 3600"]
                .map(|word| word.as_bytes().to_vec())
                .into(),
            ..Default::default()
        };
        let _stream = within(supervisor.start(start)).await;
        world.emptied().await;
        let error = within(daemon.create(&me, with("data", false))).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Exhausted, "{error:?}");
        let reader = within(daemon.create(&me, with("data", true))).await.unwrap();
        within(daemon.kill(&me, &reader.id)).await.unwrap();
        within(daemon.remove_volume(&me, "data")).await.unwrap();
    });
}

#[test]
fn what_a_sandbox_cannot_have_is_the_caller_s_to_mend() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let me = Caller::local();
        within(daemon.create_volume(&me, request("data"))).await.unwrap();
        for path in [
            "data",
            "/",
            "/a/../b",
            "/usr",
            "/proc",
            "/dev/x",
            "/etc/passwd",
            "/home/user/../x",
        ] {
            let request = CreateRequest {
                volumes: vec![VolumeMountRequest {
                    path: path.to_owned(),
                    ..mount("data", false)
                }],
                ..CreateRequest::default()
            };
            let error = within(daemon.create(&me, request)).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{path}: {error:?}");
        }
        for name in ["", "..", "/etc", "a/b"] {
            assert!(
                within(daemon.create_volume(&me, request(name))).await.is_err(),
                "{name:?}"
            );
            assert!(within(daemon.create(&me, with(name, true))).await.is_err(), "{name:?}");
        }
        for size_mib in [Some(0), Some(u64::MAX)] {
            let new = VolumeRequest {
                size_mib,
                ..request("b")
            };
            assert_eq!(
                daemon.create_volume(&me, new).await.unwrap_err().kind(),
                ErrorKind::Invalid
            );
        }
        within(daemon.remove_volume(&me, "data")).await.unwrap();
        world.emptied().await;
    });
}

/// Not a test: what the test below starts, and kills.
#[test]
#[ignore = "the daemon that another test kills"]
fn a_daemon_that_makes_and_removes_volumes_without_end() {
    let Some(state) = std::env::var_os(STATE) else { return };
    test(async {
        let daemon = Daemon::open(config(Path::new(&state))).await.unwrap();
        eprintln!("ready");
        let me = Caller::local();
        for number in 0.. {
            let name = format!("v{number}");
            // An earlier one may have made it.
            if let Ok(made) = daemon.create_volume(&me, request(&name)).await {
                let held = daemon
                    .open_volume(made.record.id.as_str(), made.record.token.reveal())
                    .await
                    .unwrap();
                for file in 0..20 {
                    std::fs::write(held.data().join(file.to_string()), "x").unwrap();
                }
            }
            let _removed = daemon.remove_volume(&me, &name).await;
        }
    });
}

#[test]
fn a_daemon_that_is_killed_leaves_no_volume_that_is_half_there() {
    test(async {
        let world = World::new();
        for point in 0..15_u64 {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["--ignored", "--exact", "--nocapture"])
                .arg("volumes::a_daemon_that_makes_and_removes_volumes_without_end")
                .env(STATE, world.site.state())
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
            assert!(lines.any(|line| line.is_ok_and(|line| line == "ready")));
            std::thread::sleep(Duration::from_micros(point * 1_700));
            child.kill().unwrap();
            child.wait().unwrap();
            let daemon = world.daemon().await;
            let listed = daemon.list_volumes(&Caller::local()).await.unwrap();
            let volumes = world.site.state().join("volumes");
            let names: Vec<String> = std::fs::read_dir(&volumes)
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .filter(|name| name != ".lock")
                .collect();
            let mut ids: Vec<String> = listed.iter().map(|volume| volume.record.id.to_string()).collect();
            ids.sort();
            let mut sorted = names.clone();
            sorted.sort();
            assert_eq!(sorted, ids, "point {point}");
            for volume in listed {
                assert!(!volume.in_use);
                daemon
                    .remove_volume(&Caller::local(), volume.record.id.as_str())
                    .await
                    .unwrap();
            }
            world.close(daemon).await;
        }
    });
}
