//! From create to the end.

use std::time::{Duration, SystemTime};

use offleash_daemon::{
    Caller, CreateRequest, DaemonError, EventKind, LimitsRequest, LogsRequest, NetworkSettings, VisibleState,
};
use rustix::process::{Pid, Signal};

use super::support::processes::children_named;
use super::world::{World, create, create_with, eventually, kill, output, supervisors_below, test, within};

#[test]
fn a_sandbox_is_made_used_and_killed() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let me = Caller::local();
        let made = create_with(&daemon, |request| {
            request.metadata.insert("who".into(), "me".into());
            request.env.insert("A".into(), "b".into());
        })
        .await;
        assert!(
            made.id.len() == 20 && made.state == VisibleState::Running && made.access_token.is_some(),
            "{made:?}"
        );
        assert!(made.end_at > SystemTime::now());
        assert_eq!(daemon.get(&me, &made.id).unwrap(), made);
        assert_eq!(daemon.access(&made.id).unwrap().env["A"], "b");
        let supervisor = daemon.supervisor(&made.id).await.unwrap();
        assert_eq!(output(&supervisor, "echo $((6 * 7))").await, "42\n");
        within(daemon.kill(&me, &made.id)).await.unwrap();
        assert!(matches!(daemon.get(&me, &made.id), Err(DaemonError::NotFound { .. })));
        assert!(matches!(
            within(daemon.kill(&me, &made.id)).await,
            Err(DaemonError::NotFound { .. })
        ));
        assert!(matches!(
            daemon.supervisor(&made.id).await,
            Err(DaemonError::NotFound { .. })
        ));
        world.emptied().await;
        let events = eventually("the event of the end", || {
            let events = world.registry().events(&offleash_daemon::registry::EventsQuery {
                limit: 10,
                ..Default::default()
            });
            Some(events.unwrap()).filter(|events| events.len() == 2)
        })
        .await;
        assert_eq!(
            [events[0].kind, events[1].kind],
            [EventKind::Created, EventKind::Killed]
        );
        eventually("the end of its row", || {
            world.registry().sandboxes().unwrap().is_empty().then_some(())
        })
        .await;
    });
}

#[test]
fn many_are_made_at_once() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let mut making = tokio::task::JoinSet::new();
        for _ in 0..50 {
            let daemon = daemon.clone();
            making.spawn(async move { create(&daemon).await.id });
        }
        let mut ids = making.join_all().await;
        ids.sort();
        ids.dedup();
        assert_eq!((ids.len(), daemon.counts().running), (50, 50));
        let mut ending = tokio::task::JoinSet::new();
        for id in ids {
            let daemon = daemon.clone();
            ending.spawn(async move { within(daemon.kill(&Caller::local(), &id)).await });
        }
        assert!(ending.join_all().await.iter().all(Result::is_ok));
        world.emptied().await;
    });
}

#[test]
fn a_timeout_can_be_shortened_and_connect_only_extends() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let me = Caller::local();
        let made = create_with(&daemon, |request| request.timeout_seconds = Some(600)).await;
        let left = || {
            let end = daemon.get(&me, &made.id).unwrap().end_at;
            end.duration_since(SystemTime::now()).unwrap()
        };
        let (_, resumed) = within(daemon.connect(&me, &made.id, Some(60))).await.unwrap();
        assert!(!resumed && left() > Duration::from_secs(300));
        within(daemon.set_timeout(&me, &made.id, 200)).await.unwrap();
        assert!(left() <= Duration::from_secs(200));
        within(daemon.refresh(&me, &made.id, Some(100))).await.unwrap();
        assert!(left() > Duration::from_secs(100));
        within(daemon.connect(&me, &made.id, Some(900))).await.unwrap();
        assert!(left() > Duration::from_secs(600));
        let too_long = within(daemon.set_timeout(&me, &made.id, u64::MAX)).await;
        assert!(matches!(too_long, Err(DaemonError::Invalid { field: "timeout", .. })));
    });
}

#[test]
fn one_whose_supervisor_dies_is_gone() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let me = Caller::local();
        let made = create(&daemon).await;
        supervisors_below(world.site.root()).into_iter().for_each(kill);
        eventually("that it is noticed", || {
            daemon.get(&me, &made.id).is_err().then_some(())
        })
        .await;
        world.emptied().await;
        within(daemon.drain()).await;
        let events = within(daemon.events(&me, Some(&made.id), 0, true, 1)).await.unwrap();
        assert_eq!(events[0].kind, EventKind::Died);
    });
}

#[test]
fn one_whose_gateway_is_killed_goes_on_without_a_network_and_says_so() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let me = Caller::local();
        let made = create(&daemon).await;
        let supervisor = daemon.supervisor(&made.id).await.unwrap();
        let held_by = within(supervisor.hello()).await.unwrap().pid;
        let gateway = children_named(held_by, "offleash: gateway")[0];
        let gateway = Pid::from_raw(gateway.cast_signed()).unwrap();
        rustix::process::kill_process(gateway, Signal::KILL).unwrap();
        let told = async {
            loop {
                let lines = daemon.logs(&me, &made.id, LogsRequest::default()).await.unwrap();
                let line = "the gateway of the sandbox's network was killed by signal 9";
                if lines.iter().any(|noted| noted.line.contains(line)) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        within(told).await;
        assert_eq!(output(&supervisor, "echo $((6 * 7))").await, "42\n");
        // A port inside is reached through the gateway.
        let refused = within(supervisor.port(8000)).await;
        assert!(refused.is_err(), "{refused:?}");
        within(daemon.kill(&me, &made.id)).await.unwrap();
        world.emptied().await;
    });
}

#[test]
fn a_kill_in_the_middle_of_a_command_ends_it() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let me = Caller::local();
        let made = create(&daemon).await;
        let supervisor = daemon.supervisor(&made.id).await.unwrap();
        let start = offleash_supervisor::service::message::StartExec {
            argv: vec![b"/bin/sleep".to_vec(), b"3600".to_vec()],
            ..Default::default()
        };
        let mut stream = within(supervisor.start(start)).await.unwrap();
        let (first, second) = tokio::join!(daemon.kill(&me, &made.id), daemon.kill(&me, &made.id));
        assert!(first.is_ok() != second.is_ok(), "{first:?} {second:?}");
        while let Ok(Some(news)) = within(stream.next()).await {
            if matches!(news, offleash_supervisor::service::ExecNews::Ended(_)) {
                break;
            }
        }
        world.emptied().await;
    });
}

#[test]
fn a_create_that_nobody_waits_for_leaves_nothing() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let me = Caller::local();
        let mut creating = Box::pin(daemon.create(&me, CreateRequest::default()));
        let polled = tokio::time::timeout(Duration::from_millis(20), &mut creating).await;
        drop(creating);
        if polled.is_err() {
            within(daemon.drain()).await;
            eventually("its end", || (daemon.counts().running == 0).then_some(())).await;
            world.emptied().await;
        }
    });
}

#[test]
fn the_same_request_twice_makes_one() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let create = || create_with(&daemon, |request| request.idempotency_key = Some("once".into()));
        let (first, second) = tokio::join!(create(), create());
        assert_eq!((first.id.clone(), daemon.counts().running), (second.id, 1));
        assert_eq!(create().await.id, first.id);
    });
}

#[test]
fn requests_out_of_bounds_are_refused() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let many = |count: usize| (0..count).map(|number| (number.to_string(), String::new())).collect();
        type Wrong = Box<dyn Fn(&mut CreateRequest)>;
        let bad: [(&str, Wrong); 10] = [
            ("timeout", Box::new(|request| request.timeout_seconds = Some(0))),
            ("timeout", Box::new(|request| request.timeout_seconds = Some(u64::MAX))),
            ("metadata", Box::new(move |request| request.metadata = many(10_000))),
            (
                "envVars",
                Box::new(|request| drop(request.env.insert("A=B".into(), String::new()))),
            ),
            (
                "envVars",
                Box::new(|request| drop(request.env.insert("A".into(), "\0".into()))),
            ),
            (
                "envVars",
                Box::new(|request| drop(request.env.insert("A".into(), "x".repeat(1 << 20)))),
            ),
            (
                "memoryMB",
                Box::new(|request| request.limits.memory_mib = Some(u64::MAX)),
            ),
            (
                "cpuCount",
                Box::new(|request| {
                    request.limits = LimitsRequest {
                        cpus: Some(0),
                        ..request.limits
                    }
                }),
            ),
            (
                "Idempotency-Key",
                Box::new(|request| request.idempotency_key = Some("../x".into())),
            ),
            (
                "denyOut",
                Box::new(|request| {
                    request.network = NetworkSettings {
                        deny_out: vec!["example.com".into()],
                        ..NetworkSettings::default()
                    };
                }),
            ),
        ];
        for (expected, change) in bad {
            let mut request = CreateRequest::default();
            change(&mut request);
            match daemon.create(&Caller::local(), request).await {
                Err(DaemonError::Invalid { field, .. }) => assert_eq!(field, expected),
                other => panic!("{expected}: {other:?}"),
            }
        }
        let request = CreateRequest {
            template: "../base".into(),
            ..CreateRequest::default()
        };
        let unknown = daemon.create(&Caller::local(), request).await;
        assert!(matches!(unknown, Err(DaemonError::UnknownTemplate { .. })));
        for id in ["", "nope", "../x", "i/../../y", "i\0"] {
            assert!(
                matches!(daemon.get(&Caller::local(), id), Err(DaemonError::NotFound { .. })),
                "{id:?}"
            );
        }
        assert!(world.is_empty());
    });
}

#[test]
fn one_whose_time_is_up_is_killed() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let me = Caller::local();
        let short = create_with(&daemon, |request| request.timeout_seconds = Some(1)).await;
        let stays = create(&daemon).await;
        eventually("its end", || daemon.get(&me, &short.id).is_err().then_some(())).await;
        assert_eq!(daemon.get(&me, &stays.id).unwrap().state, VisibleState::Running);
        within(daemon.set_timeout(&me, &stays.id, 0)).await.unwrap();
        eventually("the end of the other", || {
            daemon.get(&me, &stays.id).is_err().then_some(())
        })
        .await;
        world.emptied().await;
        within(daemon.drain()).await;
        let events = within(daemon.events(&me, Some(&short.id), 0, false, 10)).await.unwrap();
        let kinds: Vec<EventKind> = events.iter().map(|event| event.kind).collect();
        assert_eq!(kinds, [EventKind::Created, EventKind::TimedOut, EventKind::Killed]);
    });
}
