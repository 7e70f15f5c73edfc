//! Interpreters that are copied: which sandboxes get one, and that none outlives its use.

use offleash_interpreter::cell::{Cell, CellEvent};
use offleash_interpreter::language::Language;
use offleash_manager::daemon::{Caller, Daemon};

use super::world::{World, create_with, eventually, test, within};

/// Answers as which process, and child of which, code runs in a new context: a copy has no parent that it can see.
async fn code_runs_in(daemon: &Daemon, sandbox: &str) -> String {
    let contexts = within(daemon.contexts(sandbox)).await.unwrap();
    let made = within(contexts.create(Language::Python, None)).await.unwrap();
    let cell = Cell {
        code: "import os; print('copy' if os.getppid() == 0 else 'program', end='')".to_owned(),
        ..Cell::default()
    };
    let mut events = within(contexts.execute(&made.id, cell)).await.unwrap();
    let mut said = String::new();
    loop {
        match within(events.recv()).await {
            Some(CellEvent::Output { text, .. }) => said.push_str(&text),
            Some(CellEvent::End(_)) | None => return said,
            Some(CellEvent::Error(error)) => panic!("{error:?}"),
            Some(_) => {}
        }
    }
}

fn build(world: &World, made: &str) {
    let script = format!("echo {made} > /usr/local/made");
    world
        .site
        .succeed(["template", "build", "-q", "--name", "one", "--run", &script]);
}

async fn made(daemon: &Daemon) -> String {
    create_with(daemon, |request| request.template = "one".to_owned())
        .await
        .id
}

async fn until_there_is_one(daemon: &Daemon) {
    eventually("a zygote", || (daemon.with_zygote() == ["one"]).then_some(())).await;
}

#[test]
fn code_runs_in_copies_once_it_was_run_in_a_sandbox_of_the_template() {
    test(async {
        let world = World::new();
        let me = Caller::local();
        build(&world, "first");
        let daemon = world.daemon().await;
        let first = made(&daemon).await;
        assert!(daemon.with_zygote().is_empty());
        assert_eq!(code_runs_in(&daemon, &first).await, "program");
        until_there_is_one(&daemon).await;
        let second = made(&daemon).await;
        assert_eq!(code_runs_in(&daemon, &second).await, "copy");
        assert_eq!(code_runs_in(&daemon, &second).await, "copy");
        // What was made before stays as it is.
        assert_eq!(code_runs_in(&daemon, &first).await, "program");
        // One of another build is nobody's any more, and those that lie below it go on.
        build(&world, "second");
        let third = made(&daemon).await;
        assert_eq!(code_runs_in(&daemon, &third).await, "program");
        until_there_is_one(&daemon).await;
        let fourth = made(&daemon).await;
        assert_eq!(code_runs_in(&daemon, &fourth).await, "copy");
        assert_eq!(code_runs_in(&daemon, &second).await, "program");
        for id in [first, second, third, fourth] {
            within(daemon.kill(&me, &id)).await.unwrap();
        }
        eventually("the end of the sandboxes", || {
            daemon.counts().changing.eq(&0).then_some(())
        })
        .await;
        within(daemon.remove_template(&me, "one")).await.unwrap();
        assert!(daemon.with_zygote().is_empty());
        within(daemon.drain()).await;
        drop(daemon);
        world.emptied().await;
    });
}

#[test]
fn sandboxes_go_on_below_a_zygote_whose_daemon_is_gone_and_it_ends_with_the_last_of_them() {
    test(async {
        let world = World::new();
        let me = Caller::local();
        build(&world, "first");
        let daemon = world.daemon().await;
        let first = made(&daemon).await;
        assert_eq!(code_runs_in(&daemon, &first).await, "program");
        until_there_is_one(&daemon).await;
        let second = made(&daemon).await;
        // As if it had been killed.
        drop(daemon);

        let daemon = world.daemon().await;
        assert_eq!(code_runs_in(&daemon, &second).await, "copy");
        for id in [first, second] {
            within(daemon.kill(&me, &id)).await.unwrap();
        }
        within(daemon.drain()).await;
        world.emptied().await;
    });
}
