//! Rules of monitoring in sandboxes of a daemon: what fires is an event, and what they ask for is done.

use std::time::Duration;

use offleash_core::monitor::{MonitorAction, MonitorFigure, MonitorRule};
use offleash_core::units::Millis;
use offleash_daemon::registry::{EventRow, EventsQuery};
use offleash_daemon::{Caller, DaemonConfig, EventKind, VisibleState};

use super::world::{World, create, eventually, output, test, within};

/// What is refused again and again, in the background.
const REFUSED: &str = "(while :; do unshare -m true; sleep 0.01; done) >/dev/null 2>&1 & echo begun";

fn with_rule(action: MonitorAction) -> impl FnOnce(&mut DaemonConfig) {
    move |config| {
        config.sample_every = Duration::from_millis(100);
        config.monitors = vec![MonitorRule {
            name: "own".to_owned(),
            watch: MonitorFigure::RefusedCalls,
            threshold: 5,
            window: Millis(5000),
            action,
        }];
    }
}

fn events(world: &World, kind: EventKind) -> Vec<EventRow> {
    let query = EventsQuery {
        limit: 100,
        ..EventsQuery::default()
    };
    let all = world.registry().events(&query).unwrap().into_iter();
    all.filter(|event| event.kind == kind).collect()
}

#[test]
fn a_rule_pauses_a_sandbox_with_a_checkpoint_and_it_can_be_resumed() {
    test(async {
        let world = World::new();
        let daemon = world.daemon_with(with_rule(MonitorAction::SnapshotAndPause)).await;
        let me = Caller::local();
        let made = create(&daemon).await;
        let supervisor = daemon.supervisor(&made.id).await.unwrap();
        assert_eq!(output(&supervisor, REFUSED).await, "begun\n");
        eventually("the pause", || {
            (daemon.get(&me, &made.id).unwrap().state == VisibleState::Paused).then_some(())
        })
        .await;
        let alerts = events(&world, EventKind::Alert);
        assert_eq!(alerts.len(), 1, "{alerts:?}");
        let detail = alerts[0].detail.clone().unwrap();
        assert!(detail.contains("rule `own` fired: refused-calls"), "{detail}");
        let paused = events(&world, EventKind::Paused)[0].detail.clone().unwrap();
        assert!(paused.contains("by rule `own` of monitoring"), "{paused}");
        assert_eq!(daemon.alert_counts().get("own"), Some(&1));
        eventually("the checkpoint", || {
            let logs = checkpoints_by_rule(&world, &made.id);
            (logs > 0).then_some(())
        })
        .await;
        within(daemon.connect(&me, &made.id, None)).await.unwrap();
        assert_eq!(output(&supervisor, "echo again").await, "again\n");
        within(daemon.kill(&me, &made.id)).await.unwrap();
        world.emptied().await;
    });
}

/// How many checkpoints of a sandbox are on record.
fn checkpoints_by_rule(world: &World, id: &str) -> usize {
    let logs = world.registry().logs(id).unwrap();
    let is_one = |line: &str| line.contains("made a checkpoint of it when rule `own` of monitoring fired");
    logs.iter().filter(|row| is_one(&row.line)).count()
}

#[test]
fn a_rule_ends_a_sandbox_and_its_end_says_so() {
    test(async {
        let world = World::new();
        let daemon = world.daemon_with(with_rule(MonitorAction::Kill)).await;
        let made = create(&daemon).await;
        let supervisor = daemon.supervisor(&made.id).await.unwrap();
        assert_eq!(output(&supervisor, REFUSED).await, "begun\n");
        let died = eventually("the end", || events(&world, EventKind::Died).into_iter().next()).await;
        let detail = died.detail.unwrap();
        assert!(detail.contains("rule `own` of monitoring ended it"), "{detail}");
        assert_eq!(events(&world, EventKind::Alert).len(), 1);
        world.emptied().await;
    });
}
