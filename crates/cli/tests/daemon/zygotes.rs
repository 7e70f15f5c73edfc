//! Interpreters that are copied: which sandboxes get one, and that none outlives its use.

use std::path::Path;
use std::time::Duration;

use offleash_daemon::{
    Caller, Daemon, DaemonConfig, InterpreterOrigin, LogsRequest, SandboxContexts, SandboxView, TemplatePool,
};
use offleash_interpreter::cell::{Cell, CellEnd, CellEvent};
use offleash_interpreter::contexts::ContextState;
use offleash_interpreter::language::Language;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::support::processes::is_gateway;
use super::world::{World, create_with, eventually, supervisors_below, test, within};

/// What a cell prints.
async fn printed(contexts: &SandboxContexts, context: &str, code: &str) -> String {
    let cell = Cell {
        code: code.to_owned(),
        ..Cell::default()
    };
    let mut events = within(contexts.execute(context, cell)).await.unwrap();
    let mut said = String::new();
    loop {
        match within(events.recv()).await {
            Some(CellEvent::Output { text, .. }) => said.push_str(&text),
            Some(CellEvent::End(CellEnd::Done)) => return said,
            Some(CellEvent::Error(error)) => panic!("{error:?}"),
            Some(CellEvent::End(end)) => panic!("{end:?}"),
            None => panic!("no end of {code}"),
            Some(_) => {}
        }
    }
}

const WHICH: &str = "import os; print('copy' if os.getppid() == 0 else 'program', end='')";

/// Answers as which process, and child of which, code runs in a new context: a copy has no parent that it can see.
async fn code_runs_in(daemon: &Daemon, sandbox: &str) -> String {
    let contexts = within(daemon.contexts(sandbox)).await.unwrap();
    let made = within(contexts.create(Language::Python, None)).await.unwrap();
    printed(&contexts, &made.id, WHICH).await
}

/// The same of the context that waits in a sandbox that was made ahead.
async fn code_waits_in(daemon: &Daemon, sandbox: &str) -> String {
    let contexts = within(daemon.contexts(sandbox)).await.unwrap();
    let all = within(contexts.list()).await.unwrap();
    let [waiting] = &all[..] else { panic!("{all:?}") };
    printed(&contexts, &waiting.id, WHICH).await
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

/// Two sandboxes of template `one` wait, each with a context that is ready.
fn pooled(config: &mut DaemonConfig) {
    config.pool.max_total = Some(2);
    let own = TemplatePool {
        min: Some(2),
        max: Some(2),
        interpreter: Some(true),
        imports: Some(vec!["json".parse().unwrap()]),
    };
    config.pool.templates.insert("one".to_owned(), own);
}

/// None waits, and all are to have a context that is ready.
fn on_request(config: &mut DaemonConfig) {
    pooled(config);
    if let Some(own) = config.pool.templates.get_mut("one") {
        (own.min, own.max) = (Some(0), Some(0));
    }
}

#[test]
fn what_is_made_on_request_has_an_interpreter_before_anybody_asks() {
    test(async {
        let world = World::new();
        let me = Caller::local();
        build(&world, "first");
        let daemon = world.daemon_with(on_request).await;
        let first = made(&daemon).await;
        let contexts = within(daemon.contexts(&first)).await.unwrap();
        assert!(within(contexts.list()).await.unwrap().is_empty());
        until_there_is_one(&daemon).await;
        let second = made(&daemon).await;
        let contexts = within(daemon.contexts(&second)).await.unwrap();
        loop {
            match &within(contexts.list()).await.unwrap()[..] {
                [one] if one.state == ContextState::Idle => break,
                _ => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
        assert_eq!(code_waits_in(&daemon, &second).await, "copy");
        // One that Python would have had to read at its start.
        let late = create_with(&daemon, |request| {
            request.template = "one".to_owned();
            request.env.insert("PYTHONOPTIMIZE".to_owned(), "1".to_owned());
        });
        let late = late.await.id;
        let contexts = within(daemon.contexts(&late)).await.unwrap();
        assert!(within(contexts.list()).await.unwrap().is_empty());
        for id in [first, second, late] {
            within(daemon.kill(&me, &id)).await.unwrap();
        }
        within(daemon.drain()).await;
        drop(daemon);
        world.emptied().await;
    });
}

async fn until_two_wait(daemon: &Daemon) {
    eventually("two that wait", || {
        daemon.waiting().contains(&("one".to_owned(), 2)).then_some(())
    })
    .await;
}

async fn view(daemon: &Daemon) -> SandboxView {
    create_with(daemon, |request| request.template = "one".to_owned()).await
}

/// The parent of a process, if it lives.
fn parent(pid: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split(' ').nth(1)?.parse().ok()
}

/// The interpreters that first processes of sandboxes have started: those of zygotes, and of sandboxes below none.
fn interpreters_below(root: &Path) -> Vec<i32> {
    let supervisors = supervisors_below(root);
    let numbers = std::fs::read_dir("/proc").unwrap().flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_one = |pid: &i32| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let supervisor = parent(*pid).and_then(parent);
        name.starts_with("python3") && supervisor.is_some_and(|supervisor| supervisors.contains(&supervisor))
    };
    numbers.filter(is_one).collect()
}

/// The first processes of sandboxes.
fn first_processes_below(root: &Path) -> Vec<i32> {
    let supervisors = supervisors_below(root);
    let numbers = std::fs::read_dir("/proc").unwrap().flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    numbers
        .filter(|pid| parent(*pid).is_some_and(|parent| supervisors.contains(&parent)))
        .filter(|pid| !is_gateway(*pid))
        .collect()
}

/// What a process is bounded in by a group of ours.
fn controllers(pid: i32) -> Vec<String> {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let ours = groups.lines().filter(|line| line.contains("/offleash-"));
    ours.filter_map(|line| Some(line.split(':').nth(1)?.to_owned()))
        .collect()
}

#[test]
fn what_waits_is_copied_from_a_zygote_that_is_made_first_and_again_when_it_dies() {
    test(async {
        let world = World::new();
        build(&world, "first");
        let daemon = world.daemon_with(pooled).await;
        // Those that wait have no program of their own.
        let zygotes = eventually("a zygote alone", || {
            let all = interpreters_below(world.site.root());
            (all.len() == 1 && daemon.with_zygote() == ["one"]).then_some(all)
        })
        .await;
        until_two_wait(&daemon).await;
        let sandboxes = first_processes_below(world.site.root());
        assert!(sandboxes.len() >= 3, "{sandboxes:?}");
        for sandbox in sandboxes {
            assert_eq!(controllers(sandbox), controllers(zygotes[0]), "what bounds a zygote");
        }
        let first = view(&daemon).await;
        assert_eq!(first.interpreter, InterpreterOrigin::Forked);
        assert_eq!(code_waits_in(&daemon, &first.id).await, "copy");
        until_two_wait(&daemon).await;

        let process = pidfd_open(Pid::from_raw(zygotes[0]).unwrap(), PidfdFlags::empty()).unwrap();
        pidfd_send_signal(&process, Signal::KILL).unwrap();
        // None is made for seconds after one that failed. What waits may have started a program of its own meanwhile.
        eventually("the end of the first zygote to be known", || {
            daemon.with_zygote().is_empty().then_some(())
        })
        .await;
        eventually("another zygote", || {
            let now = interpreters_below(world.site.root());
            (!now.contains(&zygotes[0]) && daemon.with_zygote() == ["one"]).then_some(())
        })
        .await;
        until_two_wait(&daemon).await;
        let warm = daemon.counts().created_warm;
        let second = view(&daemon).await;
        assert_eq!(daemon.counts().created_warm, warm + 1);
        assert_eq!(second.interpreter, InterpreterOrigin::Forked);
        assert_eq!(code_waits_in(&daemon, &second.id).await, "copy");
        within(daemon.drain()).await;
        for id in [first.id, second.id] {
            within(daemon.kill(&Caller::local(), &id)).await.unwrap();
        }
        drop(daemon);
        world.emptied().await;
    });
}

#[test]
fn a_zygote_of_an_earlier_build_goes_when_what_runs_in_its_copies_has_ended() {
    test(async {
        let world = World::new();
        let me = Caller::local();
        build(&world, "first");
        let daemon = world.daemon_with(pooled).await;
        until_two_wait(&daemon).await;
        let first = view(&daemon).await;
        let contexts = within(daemon.contexts(&first.id)).await.unwrap();
        let context = within(contexts.list()).await.unwrap()[0].id.clone();
        printed(&contexts, &context, "kept = 41").await;
        let old = interpreters_below(world.site.root());
        build(&world, "second");
        eventually("a zygote of the new build", || {
            let now = interpreters_below(world.site.root());
            now.iter().any(|pid| !old.contains(pid)).then_some(())
        })
        .await;
        until_two_wait(&daemon).await;
        let second = view(&daemon).await;
        assert_eq!(code_waits_in(&daemon, &second.id).await, "copy");
        // What its owner has in it is there as before.
        assert_eq!(printed(&contexts, &context, "print(kept + 1, end='')").await, "42");
        within(daemon.kill(&me, &first.id)).await.unwrap();
        eventually("the end of the old zygote", || {
            let now = interpreters_below(world.site.root());
            old.iter().all(|pid| !now.contains(pid)).then_some(())
        })
        .await;
        within(daemon.kill(&me, &second.id)).await.unwrap();
        within(daemon.drain()).await;
        drop(daemon);
        world.emptied().await;
    });
}

#[test]
fn without_zygotes_interpreters_are_started_and_sandboxes_say_so() {
    test(async {
        let world = World::new();
        build(&world, "first");
        let without = |config: &mut DaemonConfig| {
            pooled(config);
            config.zygotes.max = 0;
        };
        let daemon = world.daemon_with(without).await;
        until_two_wait(&daemon).await;
        assert!(daemon.with_zygote().is_empty());
        let made = view(&daemon).await;
        assert_eq!(made.interpreter, InterpreterOrigin::Started);
        assert_eq!(code_waits_in(&daemon, &made.id).await, "program");
        within(daemon.kill(&Caller::local(), &made.id)).await.unwrap();
        within(daemon.drain()).await;
        drop(daemon);
        world.emptied().await;
    });
}

#[test]
fn where_there_can_be_no_zygote_the_log_of_a_sandbox_says_why() {
    test(async {
        let world = World::new();
        let me = Caller::local();
        // An interpreter that ends at once.
        let script = "printf '#!/bin/sh\\nexit 9\\n' > /usr/local/bin/python3; chmod 755 /usr/local/bin/python3";
        world
            .site
            .succeed(["template", "build", "-q", "--name", "one", "--run", script]);
        let daemon = world.daemon_with(pooled).await;
        until_two_wait(&daemon).await;
        let made = view(&daemon).await;
        assert_eq!(made.interpreter, InterpreterOrigin::Started);
        let mut said = String::new();
        let deadline = std::time::Instant::now() + super::support::processes::TIMEOUT;
        while !said.contains("are started, not copied") {
            assert!(std::time::Instant::now() < deadline, "{said}");
            let lines = within(daemon.logs(&me, &made.id, LogsRequest::default()))
                .await
                .unwrap();
            said = lines.into_iter().map(|line| line.line + "\n").collect();
        }
        within(daemon.kill(&me, &made.id)).await.unwrap();
        within(daemon.drain()).await;
        drop(daemon);
        world.emptied().await;
    });
}
