//! Pause and resume, asked for, when time is up, and by traffic.

use std::time::Duration;

use offleash_daemon::{Caller, DaemonError, EventKind, ListFilter, OnTimeout, VisibleState};

use super::world::{World, create, create_with, eventually, output, test, within};

#[test]
fn one_whose_time_is_up_is_killed_or_paused() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let me = Caller::local();
        let killed = create_with(&daemon, |request| request.timeout_seconds = Some(1)).await;
        let paused = create_with(&daemon, |request| {
            request.timeout_seconds = Some(1);
            request.on_timeout = OnTimeout::Pause;
        })
        .await;
        let stays = create(&daemon).await;
        eventually("the end of one", || daemon.get(&me, &killed.id).is_err().then_some(())).await;
        let state = |id: &str| daemon.get(&me, id).unwrap().state;
        eventually("the pause of one", || {
            (state(&paused.id) == VisibleState::Paused).then_some(())
        })
        .await;
        assert_eq!(state(&stays.id), VisibleState::Running);
        assert!(matches!(
            daemon.supervisor(&paused.id).await,
            Err(DaemonError::Conflict { .. })
        ));
        let (view, resumed) = within(daemon.connect(&me, &paused.id, Some(300))).await.unwrap();
        assert!(resumed && view.state == VisibleState::Running);
        let supervisor = daemon.supervisor(&paused.id).await.unwrap();
        assert_eq!(output(&supervisor, "echo again").await, "again\n");
        within(daemon.set_timeout(&me, &paused.id, 0)).await.unwrap();
        within(daemon.set_timeout(&me, &stays.id, 0)).await.unwrap();
        eventually("the end of another", || {
            daemon.get(&me, &stays.id).is_err().then_some(())
        })
        .await;
        eventually("the pause of the first", || {
            (state(&paused.id) == VisibleState::Paused).then_some(())
        })
        .await;
        within(daemon.kill(&me, &paused.id)).await.unwrap();
        world.emptied().await;
    });
}

#[test]
fn pause_keeps_what_runs_and_traffic_resumes_who_asked_for_it() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let me = Caller::local();
        let made = create_with(&daemon, |request| request.auto_resume = true).await;
        let supervisor = daemon.supervisor(&made.id).await.unwrap();
        output(&supervisor, "(sleep 1; echo done >/tmp/done) >/dev/null 2>&1 &").await;
        within(daemon.pause(&me, &made.id)).await.unwrap();
        let again = within(daemon.pause(&me, &made.id)).await;
        assert!(matches!(again, Err(DaemonError::Conflict { .. })), "{again:?}");
        let timeout = within(daemon.set_timeout(&me, &made.id, 60)).await;
        assert!(matches!(timeout, Err(DaemonError::Conflict { .. })), "{timeout:?}");
        tokio::time::sleep(Duration::from_millis(1500)).await;
        // Many at once resume it once.
        let mut asking = tokio::task::JoinSet::new();
        for _ in 0..10 {
            let (daemon, id) = (daemon.clone(), made.id.clone());
            asking.spawn(async move { within(daemon.supervisor(&id)).await.map(|_| ()) });
        }
        assert!(asking.join_all().await.iter().all(Result::is_ok));
        output(&supervisor, "until test -e /tmp/done; do sleep 0.05; done").await;
        assert!(matches!(
            within(daemon.resume(&me, &made.id, None)).await,
            Err(DaemonError::Conflict { .. })
        ));
        let resumed = |event: &offleash_daemon::registry::EventRow| event.kind == EventKind::Resumed;
        let events = world.registry().events(&offleash_daemon::registry::EventsQuery {
            limit: 10,
            ..Default::default()
        });
        assert_eq!(events.unwrap().into_iter().filter(resumed).count(), 1);
    });
}

#[test]
fn a_pause_outlives_the_daemon() {
    test(async {
        let world = World::new();
        let me = Caller::local();
        let first = world.daemon().await;
        let made = create(&first).await;
        within(first.pause(&me, &made.id)).await.unwrap();
        drop(first);
        let second = world.daemon().await;
        let filter = ListFilter {
            states: vec![VisibleState::Paused],
            ..ListFilter::default()
        };
        assert_eq!(second.list(&me, &filter).unwrap().sandboxes[0].id, made.id);
        within(second.connect(&me, &made.id, None)).await.unwrap();
        let supervisor = second.supervisor(&made.id).await.unwrap();
        assert_eq!(output(&supervisor, "echo awake").await, "awake\n");
        within(second.kill(&me, &made.id)).await.unwrap();
        world.emptied().await;
    });
}
