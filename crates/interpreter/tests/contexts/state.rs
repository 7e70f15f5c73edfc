//! What cells left, carried from contexts to those of another sandbox: whoever saves runs no cell meanwhile, all or none,
//! and nothing stays behind.

use std::process::Command;
use std::time::Duration;

use super::cells::{TIMEOUT, begin, cell, contexts, first_output, outcome, patient, run};
use super::local::Local;
use offleash_core::error::{ErrorKind, Explained as _};
use offleash_interpreter::cell::CellEnd;
use offleash_interpreter::contexts::{ContextState, Contexts};
use offleash_interpreter::error::ContextError;
use offleash_interpreter::language::Language;
use offleash_interpreter::limits::CellLimits;
use offleash_interpreter::obstacle::NotSaved;
use offleash_interpreter::state::{SaveOptions, SavedContext};
use tempfile::TempDir;

fn place() -> (TempDir, SaveOptions) {
    let directory = tempfile::tempdir().unwrap();
    let options = SaveOptions {
        time: TIMEOUT,
        wait: TIMEOUT,
        ..SaveOptions::new(directory.path().to_str().unwrap())
    };
    (directory, options)
}

fn files(directory: &TempDir) -> usize {
    std::fs::read_dir(directory.path()).unwrap().count()
}

/// Waits until there is nothing in a directory: whoever is told to remove it does so when it has the time.
async fn empty(directory: &TempDir) {
    let gone = async {
        while files(directory) > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, gone).await.unwrap();
}

#[tokio::test]
async fn contexts_of_another_sandbox_find_what_cells_left() {
    let (directory, options) = place();
    let here = contexts(patient());
    assert!(run(&here, "x = [1]").await.errors.is_empty());
    let second = here.create(Language::Python, Some("/usr".to_owned())).await.unwrap();
    let mut events = here.execute(&second.id, cell("y = 2")).await.unwrap();
    assert!(outcome(&mut events).await.errors.is_empty());
    let unused = here.create(Language::Python, None).await.unwrap();

    let held = here.save(&options).await.unwrap();
    let saved: Vec<SavedContext> = held.contexts().to_vec();
    assert_eq!(saved.iter().filter(|one| one.file.is_some()).count(), 2);
    let written = serde_json::to_string(&saved).unwrap();
    assert_eq!(serde_json::from_str::<Vec<SavedContext>>(&written).unwrap(), saved);
    let sandbox = Local::default();
    sandbox.set_environment("OF_THE_OTHER", "1");
    let there = Contexts::new(sandbox, patient());
    // One that waits there already gives way.
    there.prepare(&[]).await.unwrap();
    assert_eq!(there.restore(&saved).await.unwrap(), []);
    drop(held);
    empty(&directory).await;

    let mut ids: Vec<String> = there.list().await.unwrap().into_iter().map(|one| one.id).collect();
    let mut expected: Vec<String> = here.list().await.unwrap().into_iter().map(|one| one.id).collect();
    ids.sort();
    expected.sort();
    assert_eq!(ids, expected);
    assert!(ids.contains(&unused.id));
    let found = run(&there, "x.append(2); x").await;
    assert_eq!((found.text.as_deref(), found.count), (Some("[1, 2]"), 2));
    let variable = run(&there, "import os; os.environ['OF_THE_OTHER']").await;
    assert_eq!(
        variable.text.as_deref(),
        Some("'1'"),
        "what a sandbox has of its own stays"
    );
    let mut events = there
        .execute(&second.id, cell("import os; y, os.getcwd()"))
        .await
        .unwrap();
    assert_eq!(outcome(&mut events).await.text.as_deref(), Some("(2, '/usr')"));
    assert_eq!(
        run(&here, "x").await.text.as_deref(),
        Some("[1]"),
        "what one does the other does not see"
    );
}

#[tokio::test]
async fn no_cell_runs_from_the_saving_to_its_end() {
    let (directory, options) = place();
    let contexts = contexts(patient());
    run(&contexts, "x = 1").await;
    let held = contexts.save(&options).await.unwrap();
    let mut events = begin(&contexts, cell("x = 2; x")).await;
    let early = tokio::time::timeout(Duration::from_millis(300), events.recv()).await;
    assert!(early.is_err(), "{early:?}");
    assert_eq!(files(&directory), 1);
    drop(held);
    assert_eq!(outcome(&mut events).await.text.as_deref(), Some("2"));
    assert_eq!(files(&directory), 0);
}

#[tokio::test]
async fn saving_waits_for_cells_that_came_before_and_not_for_ever() {
    let (directory, options) = place();
    let limits = CellLimits {
        grace: Duration::from_millis(1),
        ..patient()
    };
    let contexts = contexts(limits);
    let gate = directory.path().join("gate");
    let code = format!(
        "import os, time\nprint('on', flush=True)\nwhile not os.path.exists({gate:?}): time.sleep(0.01)\nx = 1"
    );
    let mut events = begin(&contexts, cell(&code)).await;
    first_output(&mut events).await;
    let hasty = SaveOptions {
        time: Duration::from_millis(1),
        wait: Duration::from_millis(1),
        ..options.clone()
    };
    let error = contexts.save(&hasty).await.unwrap_err();
    assert!(
        matches!(
            error,
            ContextError::NotSaved {
                why: NotSaved::Time,
                ..
            }
        ),
        "{error:?}"
    );
    std::fs::write(&gate, "").unwrap();
    let held = contexts.save(&options).await.unwrap();
    assert_eq!(outcome(&mut events).await.end, Some(CellEnd::Done));
    assert!(held.contexts()[0].file.is_some());
    drop(held);
    assert_eq!(run(&contexts, "x").await.text.as_deref(), Some("1"));
}

#[tokio::test]
async fn what_cannot_be_carried_is_a_typed_error_and_nothing_stays() {
    let (directory, options) = place();
    let contexts = contexts(patient());
    let good = contexts.create(Language::Python, None).await.unwrap();
    let mut events = contexts.execute(&good.id, cell("x = 1")).await.unwrap();
    outcome(&mut events).await;
    run(&contexts, "import threading; fine = 1; lock = threading.Lock()").await;
    let error = contexts.save(&options).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(
        error.to_string().contains("`lock` (_thread.lock): cannot pickle"),
        "{error}"
    );
    let ContextError::Unsavable { obstacles, .. } = error else {
        panic!("{error:?}");
    };
    assert_eq!(obstacles.len(), 1);
    empty(&directory).await;

    let held = contexts.save(&SaveOptions { skip: true, ..options }).await.unwrap();
    let saved = held.contexts().to_vec();
    assert_eq!(saved.iter().find(|one| one.is_default).unwrap().left_out, obstacles);
    let there = super::cells::contexts(patient());
    there.restore(&saved).await.unwrap();
    assert_eq!(
        run(&there, "fine, 'lock' in globals()").await.text.as_deref(),
        Some("(1, False)")
    );
}

#[tokio::test]
async fn bounds_are_kept_and_the_context_goes_on() {
    let (directory, options) = place();
    let contexts = contexts(patient());
    run(
        &contexts,
        "class Bad:\n  def __reduce__(self):\n    while True: pass\nbad = Bad(); x = 5",
    )
    .await;
    for (bad, options, why, kind) in [
        (
            "",
            SaveOptions {
                time: Duration::from_secs(1),
                ..options.clone()
            },
            NotSaved::Time,
            ErrorKind::Timeout,
        ),
        (
            "bad = bytes(100_000)",
            SaveOptions {
                bytes: 50_000,
                ..options.clone()
            },
            NotSaved::TooLarge,
            ErrorKind::Exhausted,
        ),
        (
            "bad = 1",
            SaveOptions {
                directory: "/nowhere".to_owned(),
                ..options.clone()
            },
            NotSaved::Other,
            ErrorKind::Unavailable,
        ),
    ] {
        run(&contexts, bad).await;
        let error = contexts.save(&options).await.unwrap_err();
        assert_eq!(error.kind(), kind);
        assert!(
            matches!(error, ContextError::NotSaved { why: found, .. } if found == why),
            "{error:?}"
        );
        assert_eq!(run(&contexts, "x").await.text.as_deref(), Some("5"));
    }
    assert_eq!(files(&directory), 0);
    for directory in ["relative", "", "/a\nb"] {
        let error = contexts.save(&SaveOptions::new(directory)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{directory:?}");
    }
}

#[tokio::test]
async fn a_state_that_does_not_load_is_an_error_and_its_context_is_not_there() {
    let (directory, options) = place();
    let here = contexts(patient());
    run(
        &here,
        "class Bad:\n  def __reduce__(self): return (exec, ('raise OSError(\"no\")',))\nbad = Bad()",
    )
    .await;
    let held = here.save(&options).await.unwrap();
    let there = contexts(patient());
    let error = there.restore(held.contexts()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("OSError: no"), "{error}");
    drop(held);
    empty(&directory).await;
    // Whoever tries to make it again, or what is no context, is refused.
    let mut saved = SavedContext {
        id: "not an id".to_owned(),
        language: Language::Python,
        cwd: "/".to_owned(),
        is_default: false,
        file: None,
        left_out: Vec::new(),
    };
    let elsewhere = contexts(patient());
    assert_eq!(
        elsewhere
            .restore(std::slice::from_ref(&saved))
            .await
            .unwrap_err()
            .kind(),
        ErrorKind::Invalid
    );
    saved.id = "1".repeat(32);
    elsewhere.restore(std::slice::from_ref(&saved)).await.unwrap();
    assert_eq!(
        elsewhere.restore(&[saved]).await.unwrap_err().kind(),
        ErrorKind::Invalid
    );
}

#[tokio::test]
async fn a_daemon_that_ends_while_contexts_are_held_leaves_no_file() {
    let (directory, options) = place();
    let processes = Local::default();
    let contexts = Contexts::new(processes.clone(), patient());
    run(&contexts, "x = 3").await;
    let held = contexts.save(&options).await.unwrap();
    assert_eq!(files(&directory), 1);
    // As if nobody were there to drop it.
    std::mem::forget(held);
    drop(contexts);
    let next = Contexts::new(processes, patient());
    assert_eq!(run(&next, "x").await.text.as_deref(), Some("3"));
    assert_eq!(files(&directory), 0);
}

#[tokio::test]
async fn languages_that_cannot_write_down_their_state_say_so() {
    if Command::new("node").arg("--version").output().is_err() {
        return println!("SKIP: there is no `node`");
    }
    let (_directory, options) = place();
    let here = contexts(patient());
    let info = here.create(Language::JavaScript, None).await.unwrap();
    let held = here.save(&options).await.unwrap();
    assert_eq!(
        held.contexts()[0].file,
        None,
        "one that has run no cell has nothing to lose"
    );
    drop(held);
    let mut events = here.execute(&info.id, cell("let x = 1")).await.unwrap();
    assert_eq!(outcome(&mut events).await.end, Some(CellEnd::Done));
    let error = here.save(&options).await.unwrap_err();
    assert!(
        matches!(
            error,
            ContextError::Unsavable {
                language: Language::JavaScript,
                ..
            }
        ),
        "{error:?}"
    );
    let hint = error.hint().unwrap();
    assert_eq!(hint, "delete that context first, or leave it out");
    let held = here.save(&SaveOptions { skip: true, ..options }).await.unwrap();
    assert_eq!(held.contexts()[0].left_out.len(), 1);
    let there = contexts(patient());
    there.restore(held.contexts()).await.unwrap();
    let found = there.get(&info.id).await.unwrap();
    assert_eq!((found.state, found.count), (ContextState::Idle, 0));
}

#[tokio::test]
async fn cells_of_bash_are_carried_too() {
    let (directory, options) = place();
    let here = contexts(patient());
    let run = async |contexts: &Contexts<Local>, code| {
        let mut events = contexts.execute_in_default(Language::Bash, cell(code)).await.unwrap();
        outcome(&mut events).await
    };
    run(&here, "x=(1 2); f() { echo \"${x[@]}\"; }; cd /usr").await;
    let held = here.save(&options).await.unwrap();
    let there = contexts(patient());
    there.restore(held.contexts()).await.unwrap();
    drop(held);
    let found = run(&there, "f; pwd").await;
    assert_eq!((found.stdout.as_str(), found.count), ("1 2\n/usr\n", 2));
    empty(&directory).await;
}
