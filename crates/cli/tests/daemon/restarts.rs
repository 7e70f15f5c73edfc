//! What one daemon leaves to the next.

use std::process::Command;
use std::time::Duration;

use offleash_core::exec::ExecEnd;
use offleash_daemon::registry::{Change, SandboxRow, SandboxState, SupervisorProcess};
use offleash_daemon::{Caller, Daemon, DaemonError, SandboxContexts, VisibleState};
use offleash_interpreter::cell::{CellEnd, ContextDeath};
use offleash_interpreter::contexts::ContextState;
use offleash_interpreter::language::Language;
use offleash_supervisor::service::SupervisorClient;
use offleash_supervisor::service::message::Selector;

use super::world::{World, config, create, create_with, end_of, kill, output, supervisors_below, test, within};

#[test]
fn sandboxes_outlive_the_daemon() {
    test(async {
        let world = World::new();
        let me = Caller::local();
        let first = world.daemon().await;
        let runs = create_with(&first, |request| drop(request.metadata.insert("a".into(), "b".into()))).await;
        let supervisor = first.supervisor(&runs.id).await.unwrap();
        output(
            &supervisor,
            "echo kept >/tmp/kept; (sleep 3600 & echo $! >/tmp/pid) >/dev/null 2>&1",
        )
        .await;
        let before = first.get(&me, &runs.id).unwrap();
        drop(first);

        let second = world.daemon().await;
        assert_eq!(second.get(&me, &runs.id).unwrap(), before);
        let supervisor = second.supervisor(&runs.id).await.unwrap();
        assert_eq!(
            output(&supervisor, "kill -0 $(cat /tmp/pid) && cat /tmp/kept").await,
            "kept\n"
        );
        within(second.kill(&me, &runs.id)).await.unwrap();
        world.emptied().await;
    });
}

#[test]
fn that_a_context_died_is_known_to_the_next_daemon() {
    test(async {
        let world = World::new();
        let me = Caller::local();
        let first = world.daemon().await;
        let sandbox = create(&first).await;
        let of_sandbox = first.supervisor(&sandbox.id).await.unwrap();
        let contexts = within(first.contexts(&sandbox.id)).await.unwrap();
        let mut made = Vec::new();
        for _ in 0..3 {
            let context = within(contexts.create(Language::Bash, Some("/tmp".to_owned()))).await;
            made.push(context.unwrap().id);
        }
        let [before, meanwhile, removed] = &made[..] else {
            unreachable!()
        };
        assert_eq!(end_of(&contexts, meanwhile, "kept=3").await, Some(CellEnd::Done));
        // Its cell is over before it ends.
        for id in [before, removed] {
            let later = format!("(until test -e /tmp/{id}; do sleep 0.05; done; kill -9 $$) >/dev/null 2>&1 &");
            assert_eq!(end_of(&contexts, id, &later).await, Some(CellEnd::Done));
            output(&of_sandbox, &format!("touch /tmp/{id}")).await;
            until_it_came_back(&of_sandbox, &contexts, id).await;
        }
        within(contexts.remove(removed)).await.unwrap();
        drop((contexts, first));
        let supervisor = SupervisorClient::in_directory(&world.site.state().join("sandboxes").join(&sandbox.id));
        let is_its = |tag: &Option<String>| tag.as_deref().is_some_and(|tag| tag.contains(meanwhile.as_str()));
        let processes = supervisor.processes().await.unwrap();
        for process in processes.iter().filter(|process| is_its(&process.tag)) {
            supervisor.signal(&Selector::Pid(process.pid), 9).await.unwrap();
        }

        let second = world.daemon().await;
        let contexts = within(second.contexts(&sandbox.id)).await.unwrap();
        let died = || {
            Some(CellEnd::DiedBefore(ContextDeath::Ended(ExecEnd::Signaled {
                signal: 9,
            })))
        };
        until_dead(&contexts, meanwhile).await;
        for id in [before, meanwhile] {
            assert_eq!(within(contexts.get(id)).await.unwrap().cwd, "/tmp");
            assert_eq!(end_of(&contexts, id, "true").await, died());
        }
        within(contexts.get(removed)).await.unwrap_err();
        drop((contexts, second));

        // Somebody was told, and one was started anew.
        let third = world.daemon().await;
        let contexts = within(third.contexts(&sandbox.id)).await.unwrap();
        assert_eq!(within(contexts.list()).await.unwrap().len(), 2);
        assert_eq!(end_of(&contexts, before, "true").await, Some(CellEnd::Done));
        drop((contexts, third));
        let fourth = world.daemon().await;
        let contexts = within(fourth.contexts(&sandbox.id)).await.unwrap();
        for id in [before, meanwhile] {
            assert_eq!(end_of(&contexts, id, "true").await, Some(CellEnd::Done));
        }
        within(fourth.kill(&me, &sandbox.id)).await.unwrap();
        world.emptied().await;
    });
}

/// Waits until a context has another driver in the place of one that ended by itself.
async fn until_it_came_back(supervisor: &SupervisorClient, contexts: &SandboxContexts, id: &str) {
    let is_its_second = |tag: &str| tag.contains(id) && tag.ends_with("again");
    loop {
        let processes = supervisor.processes().await.unwrap();
        let has_second = processes
            .iter()
            .any(|process| process.tag.as_deref().is_some_and(is_its_second));
        if has_second && within(contexts.get(id)).await.unwrap().state == ContextState::Idle {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn until_dead(contexts: &SandboxContexts, id: &str) {
    while within(contexts.get(id)).await.unwrap().state != ContextState::Dead {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[test]
fn there_is_one_daemon_of_a_state_directory() {
    test(async {
        let world = World::new();
        let first = world.daemon().await;
        let second = within(Daemon::open(config(&world.site.state()))).await;
        assert!(matches!(second, Err(DaemonError::AlreadyRunning)), "{second:?}");
        drop(first);
        world.daemon().await;
    });
}

#[test]
fn what_died_meanwhile_is_cleaned_up() {
    test(async {
        let world = World::new();
        let me = Caller::local();
        let first = world.daemon().await;
        let dead = create(&first).await;
        let supervisors = supervisors_below(world.site.root());
        let lives = create(&first).await;
        drop(first);
        supervisors.into_iter().for_each(kill);

        let second = world.daemon().await;
        assert!(matches!(second.get(&me, &dead.id), Err(DaemonError::NotFound { .. })));
        assert_eq!(second.get(&me, &lives.id).unwrap().state, VisibleState::Running);
        within(second.drain()).await;
        assert!(!world.site.state().join("sandboxes").join(&dead.id).exists());
        drop(second);
        let third = world.daemon().await;
        within(third.kill(&me, &lives.id)).await.unwrap();
        world.emptied().await;
    });
}

#[test]
fn a_process_of_another_boot_is_not_taken_for_a_supervisor() {
    test(async {
        for boot in [Some("0badcafe-0000-4000-8000-00000000000f".parse().unwrap()), None] {
            let world = World::new();
            let first = world.daemon().await;
            let made = create(&first).await;
            drop(first);
            let supervisors = supervisors_below(world.site.root());
            // What has the number of the supervisor after a reboot, and happens to have been started at the same time.
            let mut bystander = Command::new("/bin/sleep").arg("3600").spawn().unwrap();
            let pid = i32::try_from(bystander.id()).unwrap();
            change_row(&world, |row| {
                row.supervisor = Some(SupervisorProcess {
                    pid,
                    start_ticks: start_ticks(pid),
                    boot,
                });
            });
            supervisors.into_iter().for_each(kill);

            let second = world.daemon().await;
            assert!(second.get(&Caller::local(), &made.id).is_err());
            within(second.drain()).await;
            let ended = bystander.try_wait().unwrap();
            bystander.kill().unwrap();
            bystander.wait().unwrap();
            assert_eq!(ended, None, "the daemon killed a process that is none of its own");
            world.emptied().await;
        }
    });
}

/// Changes the one row that there is, behind the back of the daemon.
fn change_row(world: &World, change: impl FnOnce(&mut SandboxRow)) {
    let registry = world.registry();
    let mut row = registry.sandboxes().unwrap().pop().unwrap();
    change(&mut row);
    row.generation += 1;
    registry.apply(vec![Change::SetSandbox(Box::new(row))]).unwrap();
}

/// When a process was started (proc_pid_stat(5)).
fn start_ticks(pid: i32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let rest = stat.rsplit_once(") ").unwrap().1;
    rest.split(' ').nth(19).unwrap().parse().unwrap()
}

#[test]
fn what_was_half_made_or_half_ended_is_undone() {
    test(async {
        for state in [SandboxState::Creating, SandboxState::Killing] {
            let world = World::new();
            let first = world.daemon().await;
            let made = create(&first).await;
            drop(first);
            change_row(&world, |row| row.state = state);
            // A directory that nothing is known of, as when the daemon dies before its first record.
            std::fs::create_dir(world.site.state().join("sandboxes/iunknown")).unwrap();

            let second = world.daemon().await;
            assert!(second.get(&Caller::local(), &made.id).is_err());
            within(second.drain()).await;
            world.emptied().await;
            assert_eq!(world.registry().sandboxes().unwrap(), []);
        }
    });
}

#[test]
fn a_change_that_was_begun_is_settled_by_what_the_sandbox_does() {
    test(async {
        for (state, settled) in [
            (SandboxState::Pausing, VisibleState::Running),
            (SandboxState::Resuming, VisibleState::Running),
        ] {
            let world = World::new();
            let first = world.daemon().await;
            let made = create(&first).await;
            drop(first);
            change_row(&world, |row| row.state = state);
            let second = world.daemon().await;
            assert_eq!(second.get(&Caller::local(), &made.id).unwrap().state, settled);
            within(second.kill(&Caller::local(), &made.id)).await.unwrap();
            world.emptied().await;
        }
    });
}

#[test]
fn the_warm_pool_is_filled_handed_out_adopted_and_ended_with_its_daemon() {
    test(async {
        let world = World::new();
        let me = Caller::local();
        let pooled = |config: &mut offleash_daemon::DaemonConfig| {
            config.pool.min = 2;
            config.pool.max = 2;
        };
        let first = world.daemon_with(pooled).await;
        super::world::eventually("a full pool", || (first.counts().pooled == 2).then_some(())).await;
        assert_eq!(first.list(&me, &Default::default()).unwrap().sandboxes, []);
        let made = create_with(&first, |request| drop(request.metadata.insert("a".into(), "b".into()))).await;
        assert_eq!((made.metadata["a"].as_str(), first.counts().created_warm), ("b", 1));
        let supervisor = first.supervisor(&made.id).await.unwrap();
        assert_eq!(output(&supervisor, "echo warm").await, "warm\n");
        super::world::eventually("a pool that is full again", || {
            (first.counts().pooled == 2).then_some(())
        })
        .await;
        let supervisors = supervisors_below(world.site.root()).len();
        // Without an end: as if it had been killed.
        drop(first);

        let second = world.daemon_with(pooled).await;
        assert_eq!(
            (second.counts().pooled, second.counts().running, supervisors),
            (2, 1, 3)
        );
        let other = create(&second).await;
        assert_ne!(other.id, made.id);
        assert_eq!(second.counts().created_warm, 1);
        within(second.drain()).await;
        // Those that are somebody's live on.
        assert_eq!(supervisors_below(world.site.root()).len(), 2);
    });
}
