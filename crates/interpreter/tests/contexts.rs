//! Contexts with real drivers, mostly that of Python, in processes of this machine: queues, limits, interrupts, ends, what a
//! later daemon finds, and cells that mean no good.

#![cfg(target_os = "linux")]
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a test that cannot go on has failed, and starts programs itself"
)]

#[path = "contexts/cells.rs"]
mod cells;
#[path = "contexts/hostile.rs"]
mod hostile;
#[path = "contexts/local.rs"]
mod local;
#[path = "contexts/state.rs"]
mod state;

use std::path::Path;
use std::time::Duration;

use cells::{begin, cell, contexts, first_output, outcome, patient, run};
use local::Local;
use offleash_core::error::{ErrorKind, Explained as _};
use offleash_core::exec::ExecEnd;
use offleash_interpreter::cell::{Cell, CellEnd, ContextDeath};
use offleash_interpreter::contexts::{ContextState, Contexts};
use offleash_interpreter::error::ContextError;
use offleash_interpreter::language::Language;
use offleash_interpreter::limits::CellLimits;
use offleash_interpreter::process::ProcessHost as _;
use offleash_interpreter::state::SaveOptions;

const FOR_EVER: &str = "print('on', flush=True)\nimport time\nwhile True: time.sleep(1000)";
/// Ends the driver with status 4 once there is a file, which is to be made when the cell is over.
fn ends_later(gate: &Path) -> String {
    format!(
        "import os, threading, time\n\
         def end():\n  while not os.path.exists({gate:?}): time.sleep(0.01)\n  os._exit(4)\n\
         threading.Thread(target=end).start()"
    )
}

/// Waits until a context has come back by itself, after it had run a cell.
async fn is_anew(contexts: &Contexts<Local>, id: &str) {
    loop {
        let found = contexts.get(id).await.unwrap();
        if (found.state, found.count) == (ContextState::Idle, 0) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

const STUBBORN: &str = "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('on', flush=True)\nwhile True: time.sleep(1000)";

#[tokio::test]
async fn cells_run_one_after_another_in_the_order_in_which_they_came() {
    let contexts = contexts(patient());
    assert_eq!(run(&contexts, "seen = []").await.end, Some(CellEnd::Done));
    let mut waiting = Vec::new();
    for number in 0..20 {
        waiting.push(begin(&contexts, cell(&format!("seen.append({number}); seen[-1]"))).await);
    }
    for (number, events) in waiting.iter_mut().enumerate() {
        let outcome = outcome(events).await;
        assert_eq!(
            (outcome.text, outcome.count),
            (Some(number.to_string()), number as u64 + 2)
        );
    }
    let all = run(&contexts, "seen == list(range(20))").await;
    assert_eq!(all.text.as_deref(), Some("True"));
}

#[tokio::test]
async fn a_language_that_is_not_installed_is_told_with_what_would_bring_it() {
    let directory = tempfile::tempdir().unwrap();
    let found = std::env::split_paths(&std::env::var_os("PATH").unwrap())
        .find(|place| place.join("bash").exists())
        .unwrap();
    for name in ["bash", "cat"] {
        std::os::unix::fs::symlink(found.join(name), directory.path().join(name)).unwrap();
    }
    let processes = Local::default();
    processes.set_environment("PATH", directory.path().to_str().unwrap());
    let contexts = Contexts::new(processes, patient());
    for (language, package) in [(Language::R, "r-base-core"), (Language::Java, "default-jdk-headless")] {
        let missing = contexts.create(language, None).await.unwrap_err();
        assert!(matches!(missing, ContextError::NotInstalled { .. }), "{missing:?}");
        let said = missing.to_string();
        assert!(said.contains("template build") && said.contains(package), "{said}");
    }
}

#[tokio::test]
async fn what_is_too_old_for_a_language_is_told_with_what_would_bring_it() {
    let directory = tempfile::tempdir().unwrap();
    let node = directory.path().join("node");
    // What the driver does where Node is older and has no package for it.
    std::fs::write(
        &node,
        "#!/bin/sh\necho 'this is Node 20 without it\u{1b}[2J' >&2\nexit 127\n",
    )
    .unwrap();
    std::fs::set_permissions(&node, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let processes = Local::default();
    processes.set_environment("PATH", directory.path().to_str().unwrap());
    let contexts = Contexts::new(processes, patient());
    let missing = contexts.create(Language::TypeScript, None).await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::Unsupported, "{missing:?}");
    let said = missing.to_string();
    for part in [
        "typescript is not installed",
        "this is Node 20 without it",
        "22.13",
        "--npm typescript@5",
    ] {
        assert!(said.contains(part), "{said}");
    }
    assert!(!said.contains('\u{1b}'), "{said:?}");
}

#[tokio::test]
async fn no_more_cells_wait_than_may() {
    let contexts = contexts(CellLimits {
        waiting: 2,
        ..patient()
    });
    let mut first = begin(&contexts, cell(FOR_EVER)).await;
    first_output(&mut first).await;
    let (mut second, third) = (begin(&contexts, cell("2")).await, begin(&contexts, cell("3")).await);
    let refused = contexts
        .execute_in_default(Language::Python, cell("4"))
        .await
        .unwrap_err();
    assert!(matches!(refused, ContextError::Exhausted { .. }), "{refused}");
    // A cell whose caller has gone away does not run.
    drop(third);
    drop(first);
    assert_eq!(outcome(&mut second).await.text.as_deref(), Some("2"));
}

#[tokio::test]
async fn the_default_contexts_have_places_of_their_own() {
    let contexts = contexts(CellLimits {
        contexts: Language::ALL.len() + 1,
        ..patient()
    });
    let cwd = Some("/tmp".to_owned());
    let made = contexts.create(Language::Python, cwd.clone()).await.unwrap();
    let refused = contexts.create(Language::Bash, cwd.clone()).await.unwrap_err();
    assert!(matches!(refused, ContextError::Exhausted { .. }), "{refused}");
    assert_eq!(
        refused.to_string(),
        "a sandbox may have 1 contexts besides the default one of each language"
    );
    assert_eq!(run(&contexts, "1 + 1").await.text.as_deref(), Some("2"));
    // With the default one there, too, and again when a place is free.
    contexts.create(Language::Python, cwd.clone()).await.unwrap_err();
    contexts.remove(&made.id).await.unwrap();
    contexts.create(Language::Python, cwd.clone()).await.unwrap();
    assert_eq!(contexts.list().await.unwrap().len(), 2);
}

#[tokio::test]
async fn output_and_results_are_bounded_and_nothing_is_cut_in_the_middle() {
    let limits = CellLimits {
        output: 1000,
        results: 2000,
        ..patient()
    };
    let contexts = contexts(limits);
    let flood = run(&contexts, "for _ in range(100_000): print('é' * 50)\n1").await;
    assert!(flood.truncated && flood.stdout.len() <= 1000 && flood.stdout.chars().all(|c| c == 'é' || c == '\n'));
    assert_eq!((flood.text.as_deref(), flood.end), (Some("1"), Some(CellEnd::Done)));
    let large = "class V:\n  def _repr_png_(self): return b'x' * 3000\n  def __repr__(self): return 'v'\nV()";
    let large = run(&contexts, large).await;
    assert_eq!(
        (large.text.as_deref(), large.omitted),
        (Some("v"), vec!["image/png".to_owned()])
    );
}

#[tokio::test]
async fn a_cell_whose_time_is_over_is_interrupted_and_its_context_goes_on() {
    let contexts = contexts(patient());
    run(&contexts, "x = 1").await;
    let late = Cell {
        timeout: Some(Duration::from_millis(300)),
        ..cell(FOR_EVER)
    };
    let late = outcome(&mut begin(&contexts, late).await).await;
    assert_eq!(
        (late.errors, late.end),
        (vec!["KeyboardInterrupt".to_owned()], Some(CellEnd::TimedOut))
    );
    assert_eq!(run(&contexts, "x").await.text.as_deref(), Some("1"));
}

#[tokio::test]
async fn a_cell_that_does_not_react_loses_its_context() {
    let contexts = contexts(CellLimits {
        grace: Duration::from_millis(300),
        ..patient()
    });
    // This stays, so that no interrupt comes too early to be ignored.
    let blocked = "import signal, time; blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])";
    run(&contexts, blocked).await;
    let late = Cell {
        timeout: Some(Duration::from_millis(100)),
        ..cell("while True: time.sleep(1000)")
    };
    let late = outcome(&mut begin(&contexts, late).await).await;
    assert_eq!(
        late.end,
        Some(CellEnd::Died(ContextDeath::Stubborn { timed_out: true }))
    );
    assert_eq!(run(&contexts, "5").await.text.as_deref(), Some("5"));
}

#[tokio::test]
async fn a_caller_that_goes_away_interrupts_its_cell() {
    let contexts = contexts(patient());
    run(&contexts, "x = 1").await;
    let mut events = begin(&contexts, cell(FOR_EVER)).await;
    first_output(&mut events).await;
    drop(events);
    assert_eq!(run(&contexts, "x").await.text.as_deref(), Some("1"));
}

#[tokio::test]
async fn an_end_is_told_to_the_cell_that_ran_or_else_to_the_next() {
    let contexts = contexts(patient());
    let ended = run(&contexts, "import os; print('last'); os._exit(7)").await;
    assert_eq!(ended.stdout, "last\n");
    assert_eq!(
        ended.end,
        Some(CellEnd::Died(ContextDeath::Ended(ExecEnd::Exited { code: 7 })))
    );
    let crashed = run(&contexts, "import os; os.kill(os.getpid(), 11)").await;
    assert_eq!(
        crashed.end,
        Some(CellEnd::Died(ContextDeath::Ended(ExecEnd::Signaled { signal: 11 })))
    );
    let directory = tempfile::tempdir().unwrap();
    let gate = directory.path().join("gate");
    assert_eq!(run(&contexts, &ends_later(&gate)).await.end, Some(CellEnd::Done));
    std::fs::write(gate, "").unwrap();
    // It comes back by itself.
    let id = contexts.list().await.unwrap()[0].id.clone();
    is_anew(&contexts, &id).await;
    let next = run(&contexts, "6").await;
    assert_eq!(
        next.end,
        Some(CellEnd::DiedBefore(ContextDeath::Ended(ExecEnd::Exited { code: 4 })))
    );
    let after = run(&contexts, "6").await;
    assert_eq!((after.text.as_deref(), after.count), (Some("6"), 1));
}

#[tokio::test]
async fn a_cell_that_comes_as_its_context_ends_was_not_run() {
    let processes = Local::default();
    let contexts = Contexts::new(processes.clone(), patient());
    for _ in 0..3 {
        run(&contexts, "x = 1").await;
        let pid = processes.list().await.unwrap()[0].pid;
        // Whoever is told first, the context of the end of its driver or that of a cell, the cell has not begun.
        processes.signal(pid, 9).await.unwrap();
        let next = run(&contexts, "x").await;
        let killed = ContextDeath::Ended(ExecEnd::Signaled { signal: 9 });
        assert_eq!((next.end, next.count), (Some(CellEnd::DiedBefore(killed)), 0));
        let after = run(&contexts, "1 + 1").await;
        assert_eq!((after.text.as_deref(), after.count), (Some("2"), 1));
    }
    assert!(!contexts.are_coming_back().await);
    assert_eq!(processes.list().await.unwrap().len(), 1);
}

#[tokio::test]
async fn one_that_ends_before_it_has_run_a_cell_again_is_not_started_for_ever() {
    let processes = Local::default();
    let contexts = Contexts::new(processes.clone(), patient());
    run(&contexts, "x = 1").await;
    for number in 0..2 {
        let pid = processes.list().await.unwrap()[0].pid;
        processes.signal(pid, 9).await.unwrap();
        loop {
            let (info, running) = (&contexts.list().await.unwrap()[0], processes.list().await.unwrap());
            let is_new = number == 0 && info.state == ContextState::Idle && info.count == 0 && running.len() == 1;
            if is_new || (number == 1 && info.state == ContextState::Dead && running.is_empty()) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    // What was lost with the first one is still told, once.
    let killed = ContextDeath::Ended(ExecEnd::Signaled { signal: 9 });
    assert_eq!(run(&contexts, "1").await.end, Some(CellEnd::DiedBefore(killed)));
    assert_eq!(run(&contexts, "2").await.text.as_deref(), Some("2"));
}

#[tokio::test]
async fn the_default_contexts_are_listed_first_and_start_with_their_first_cell() {
    let processes = Local::default();
    let contexts = Contexts::new(processes.clone(), patient());
    let made = contexts.create(Language::Bash, Some("/tmp".to_owned())).await.unwrap();
    let wanted = [Language::Python, Language::R];
    let listed = contexts.list_with_defaults(&wanted).await.unwrap();
    let shown: Vec<_> = listed
        .iter()
        .map(|one| (one.language, one.is_default, one.state.as_str()))
        .collect();
    let defaults = wanted.map(|language| (language, true, "idle"));
    assert_eq!(shown, [&defaults[..], &[(Language::Bash, false, "idle")]].concat());
    assert_eq!(processes.list().await.unwrap().len(), 1);
    assert_eq!(contexts.list_with_defaults(&wanted).await.unwrap(), listed);
    // Each is the one that cells run in which name none.
    let mut events = contexts.execute(&listed[0].id, cell("x = 3")).await.unwrap();
    assert_eq!(outcome(&mut events).await.end, Some(CellEnd::Done));
    assert_eq!(run(&contexts, "x").await.text.as_deref(), Some("3"));
    // What nobody has used is not saved, since there is nothing of it.
    let directory = tempfile::tempdir().unwrap();
    let options = SaveOptions::new(directory.path().to_str().unwrap());
    let held = contexts.save(&options).await.unwrap();
    let saved: Vec<_> = held.contexts().iter().map(|one| one.language).collect();
    drop(held);
    assert_eq!(saved, [Language::Bash, Language::Python]);
    contexts.remove(&listed[1].id).await.unwrap();
    contexts.remove(&made.id).await.unwrap();
    assert_eq!(contexts.list().await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_listed_context_whose_language_is_missing_says_so_when_it_is_used() {
    let processes = Local::default();
    let directory = tempfile::tempdir().unwrap();
    processes.set_environment("PATH", directory.path().to_str().unwrap());
    let contexts = Contexts::new(processes, patient());
    let listed = contexts.list_with_defaults(&[Language::JavaScript]).await.unwrap();
    let refused = contexts.execute(&listed[0].id, cell("1")).await.unwrap_err();
    assert!(!matches!(refused, ContextError::NotFound { .. }), "{refused}");
    let refused = contexts.execute_in_default(Language::JavaScript, cell("1")).await;
    refused.unwrap_err();
}

#[tokio::test]
async fn a_driver_that_says_what_is_no_frame_is_ended() {
    let contexts = contexts(patient());
    let find = "import os\nfds = [int(f) for f in os.listdir('/proc/self/fd') if int(f) >= 200]\n";
    let garbage = format!(
        "{find}for f in fds:\n  try: os.write(f, b'x' * 100)\n  except OSError: pass\nimport time; time.sleep(1000)"
    );
    let outcome = run(&contexts, &garbage).await;
    assert!(
        matches!(
            outcome.end,
            Some(CellEnd::Died(ContextDeath::Protocol { .. } | ContextDeath::Ended(_)))
        ),
        "{outcome:?}"
    );
    // The end of another cell is believed of that one alone.
    let forged = format!(
        "{find}for f in fds:\n  try: os.write(f, b'done {} 0\\n')\n  except OSError: pass\n8",
        "1".repeat(32)
    );
    let forged = run(&contexts, &forged).await;
    assert!(
        forged.text.as_deref() == Some("8") || matches!(forged.end, Some(CellEnd::Died(_))),
        "{forged:?}"
    );
    assert!(run(&contexts, "9").await.end.is_some());
}

#[tokio::test]
async fn contexts_outlive_who_started_them() {
    let processes = Local::default();
    let first = Contexts::new(processes.clone(), patient());
    run(&first, "x = 1").await;
    let other = first.create(Language::Python, Some("/tmp".to_owned())).await.unwrap();
    let mut events = first
        .execute(&other.id, cell("y = 2\nwhile True: print('on' * 1000)"))
        .await
        .unwrap();
    first_output(&mut events).await;
    // As when a daemon is killed: nobody hears what the cell says from here on.
    drop((events, first));
    let second = Contexts::new(processes, patient());
    let all = second.list().await.unwrap();
    assert_eq!(all.len(), 2);
    assert!(
        all.iter()
            .any(|one| one.id == other.id && one.cwd == "/tmp" && !one.is_default)
    );
    let kept = run(&second, "x").await;
    assert_eq!((kept.text.as_deref(), kept.count), (Some("1"), 2));
    let mut events = second.execute(&other.id, cell("y")).await.unwrap();
    assert_eq!(outcome(&mut events).await.text.as_deref(), Some("2"));
}

#[tokio::test]
async fn that_a_context_died_is_told_by_who_comes_later_unless_somebody_was_told() {
    let directory = tempfile::tempdir().unwrap();
    let processes = Local::default();
    let hasty = CellLimits {
        grace: Duration::from_millis(100),
        ..patient()
    };
    let first = Contexts::new(processes.clone(), hasty);
    let make = async || {
        first
            .create(Language::Python, Some("/tmp".to_owned()))
            .await
            .unwrap()
            .id
    };
    let (died, stubborn, told, removed, anew) = (make().await, make().await, make().await, make().await, make().await);
    let on = async |contexts: &Contexts<Local>, id: &str, code: &str| {
        outcome(&mut contexts.execute(id, cell(code)).await.unwrap()).await
    };
    for id in [&died, &told, &removed, &anew] {
        let gate = directory.path().join(id);
        assert_eq!(on(&first, id, &ends_later(&gate)).await.end, Some(CellEnd::Done));
        std::fs::write(gate, "").unwrap();
        is_anew(&first, id).await;
    }
    let four = || CellEnd::DiedBefore(ContextDeath::Ended(ExecEnd::Exited { code: 4 }));
    for id in [&told, &anew] {
        assert_eq!(on(&first, id, "1").await.end, Some(four()));
    }
    on(&first, &anew, "kept = 7").await;
    first.remove(&removed).await.unwrap();
    // Nobody is there any more who could be told how this one ends.
    let mut events = first.execute(&stubborn, cell(STUBBORN)).await.unwrap();
    first_output(&mut events).await;
    drop(events);
    while first.get(&stubborn).await.unwrap().state != ContextState::Dead {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(first);

    let second = Contexts::new(processes.clone(), patient());
    for (id, is_dead) in [(&died, false), (&stubborn, true), (&told, false)] {
        let found = second.get(id).await.unwrap();
        assert_eq!(
            (found.state == ContextState::Dead, &*found.cwd, found.is_default),
            (is_dead, "/tmp", false)
        );
    }
    second.get(&removed).await.unwrap_err();
    assert_eq!(on(&second, &died, "1").await.end, Some(four()));
    let unheard = CellEnd::DiedBefore(ContextDeath::Stubborn { timed_out: false });
    assert_eq!(on(&second, &stubborn, "1").await.end, Some(unheard));
    for id in [&died, &stubborn, &told] {
        assert_eq!(on(&second, id, "5").await.text.as_deref(), Some("5"), "{id}");
    }
    assert_eq!(on(&second, &anew, "kept").await.text.as_deref(), Some("7"));
    second.restart(&died).await.unwrap();
    drop(second);
    // All of them run.
    let third = Contexts::new(processes, patient());
    assert_eq!(third.list().await.unwrap().len(), 4);
    for id in [&died, &stubborn, &told, &anew] {
        assert_eq!(on(&third, id, "6").await.text.as_deref(), Some("6"));
    }
}

#[tokio::test]
async fn a_context_is_restarted_and_removed_whatever_it_does() {
    let contexts = contexts(patient());
    let context = contexts.create(Language::Python, None).await.unwrap();
    for expected in [ContextDeath::Restarted, ContextDeath::Removed] {
        let mut events = contexts.execute(&context.id, cell(STUBBORN)).await.unwrap();
        first_output(&mut events).await;
        let (ordered, outcome) = tokio::join!(
            async {
                match expected {
                    ContextDeath::Restarted => contexts.restart(&context.id).await,
                    _ => contexts.remove(&context.id).await,
                }
            },
            outcome(&mut events)
        );
        ordered.unwrap();
        assert_eq!(outcome.end, Some(CellEnd::Died(expected)));
    }
    let gone = contexts.execute(&context.id, cell("1")).await.unwrap_err();
    assert!(matches!(gone, ContextError::NotFound { .. }), "{gone}");
    assert!(contexts.list().await.unwrap().is_empty());
}

#[tokio::test]
async fn what_cannot_be_is_refused() {
    let contexts = contexts(CellLimits {
        code: 100,
        contexts: Language::ALL.len() + 1,
        ..patient()
    });
    let large = contexts
        .execute_in_default(Language::Python, cell(&"x".repeat(101)))
        .await;
    assert!(matches!(large, Err(ContextError::Invalid { .. })));
    for (name, value) in [("", "x"), ("a=b", "x"), ("a", "\0"), ("\0", "x")] {
        let env = [(name.to_owned(), value.to_owned())].into();
        let refused = contexts
            .execute_in_default(Language::Python, Cell { env, ..cell("1") })
            .await;
        assert!(matches!(refused, Err(ContextError::Invalid { .. })), "{name:?}");
    }
    let nowhere = contexts
        .create(Language::Python, Some("/nowhere/at/all".to_owned()))
        .await;
    assert!(nowhere.is_err());
    // One that could not be made takes no place.
    contexts.create(Language::Python, None).await.unwrap();
    let more = contexts.create(Language::Python, None).await.unwrap_err();
    assert!(matches!(more, ContextError::Exhausted { .. }), "{more}");
}

#[tokio::test]
async fn of_a_language_one_default_context_is_found_again() {
    let processes = Local::default();
    let one = Contexts::new(processes.clone(), patient());
    let other = Contexts::new(processes.clone(), patient());
    assert_eq!(other.list().await.unwrap().len(), 0);
    // The second knows nothing of the first's.
    for contexts in [&one, &other] {
        run(contexts, "1").await;
    }
    assert_eq!(processes.list().await.unwrap().len(), 2);
    assert_eq!(
        Contexts::new(processes.clone(), patient()).list().await.unwrap().len(),
        1
    );
}

#[tokio::test]
async fn a_context_that_was_made_ready_has_its_modules_its_variables_and_no_cell_behind_it() {
    const LOOK: &str =
        "import os, sys\nprint('poplib' in sys.modules, os.environ.get('FLAVOUR'), 'poplib' in globals())";
    let processes = Local::default();
    let contexts = Contexts::new(processes.clone(), patient());
    let modules = ["poplib", "no_such_module", "not a name"].map(str::to_owned);
    contexts.prepare(&modules).await.unwrap();
    let ready = contexts.list().await.unwrap();
    assert_eq!(
        (ready.len(), ready[0].state, ready[0].count),
        (1, ContextState::Idle, 0)
    );
    processes.set_environment("FLAVOUR", "mint");
    let first = run(&contexts, LOOK).await;
    assert_eq!((first.stdout.as_str(), first.count), ("True mint False\n", 1));
    // It is that of the first cell alone: what a cell sets stays.
    run(&contexts, "os.environ['FLAVOUR'] = 'own'").await;
    processes.set_environment("FLAVOUR", "other");
    assert_eq!(run(&contexts, LOOK).await.stdout, "True own False\n");
    // As it is for who finds the driver again.
    drop(contexts);
    let later = Contexts::new(processes.clone(), patient());
    assert_eq!(run(&later, LOOK).await.stdout, "True own False\n");
    // One that is started anew has what processes are given then.
    later.restart(&later.list().await.unwrap()[0].id).await.unwrap();
    assert_eq!(run(&later, LOOK).await.stdout, "False other False\n");
}

#[tokio::test]
async fn variables_reach_a_ready_context_that_another_daemon_made() {
    let processes = Local::default();
    let first = Contexts::new(processes.clone(), patient());
    first.prepare(&[]).await.unwrap();
    drop(first);
    processes.set_environment("FLAVOUR", "mint");
    let second = Contexts::new(processes, patient());
    let found = run(&second, "import os; print(os.environ['FLAVOUR'])").await;
    assert_eq!((found.stdout.as_str(), found.count), ("mint\n", 1));
}
