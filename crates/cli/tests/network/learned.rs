//! Policies that are learned from a run.

use std::path::Path;
use std::process::Stdio;

use crate::asked::{AtTerminal, without_terminal};
use crate::support::processes::finish;
use crate::support::{Site, stderr};
use crate::world::{Seen, World, world};

const ATTEMPTS: &str = r#"
attempt("web", get, "www.example.com")
attempt("secure", get_secure, "www.example.com")
attempt("echo", echoed, "api.example.com")
attempt("other", get, "secret.example.com")
"#;

/// A run at a terminal that learns into `file`.
fn learning(world: &World, file: &Path, flags: &[&str], attempts: &str) -> AtTerminal {
    let learn = ["--learn", file.to_str().unwrap()];
    AtTerminal::start(world, &[&learn, flags].concat(), attempts)
}

#[test]
fn a_policy_is_learned_from_answers_and_does_for_the_next_run() {
    let Some(world) = world() else { return };
    let site = Site::new();
    let learned = site.root().join("learned.toml");
    let mut run = learning(world, &learned, &["--learn-allow", "*.example.com:443"], ATTEMPTS);
    run.answer(1, "www.example.com:80", "o\n");
    run.answer(1, "api.example.com:7", "r\n");
    run.answer(1, "secret.example.com:80", "d\n");
    let output = run.output();
    let seen = Seen::of_output(&output);
    for name in ["web", "secure", "echo"] {
        seen.done(name);
    }
    seen.refused("other");
    let said = stderr(&output);
    assert!(
        said.contains("+allow = [\"api.example.com:7\", \"www.example.com:80,443\"]"),
        "{said}"
    );
    let text = std::fs::read_to_string(&learned).unwrap();
    assert!(
        text.contains("\n[network]\nallow = [\"api.example.com:7\", \"www.example.com:80,443\"]\n"),
        "{text}"
    );
    assert!(
        text.contains("\n# refused while learning: secret.example.com:80: "),
        "{text}"
    );

    let later = without_terminal(world, &["--policy", learned.to_str().unwrap()], ATTEMPTS);
    for name in ["web", "secure", "echo"] {
        later.done(name);
    }
    later.refused("other");
    assert!(
        later
            .connections("www.example.com")
            .iter()
            .all(|seen| seen["asked"].is_null())
    );
}

#[test]
fn without_a_terminal_only_what_is_named_is_allowed_and_learned() {
    let Some(world) = world() else { return };
    let site = Site::new();
    let learned = site.root().join("policy.toml");
    let before = "# mine\n[limits]\npids = 99 # few\n";
    std::fs::write(&learned, before).unwrap();
    let attempts = r#"
attempt("named", get, "known.wild.example.org")
attempt("not named", get, "stray.example.org")
attempt("address", get, "93.184.216.34")
attempt("metadata", get, "169.254.169.254")
"#;
    let flags = [
        "--learn",
        learned.to_str().unwrap(),
        "--learn-allow",
        "*.wild.example.org",
        "--ask-timeout",
        "1h",
    ];
    let seen = without_terminal(world, &flags, attempts);
    seen.done("named");
    for name in ["not named", "address", "metadata"] {
        seen.refused(name);
    }
    world.assert_never_asked("stray.example.org");
    assert_eq!(
        std::fs::read_to_string(&learned).unwrap(),
        "# mine\n[limits]\npids = 99 # few\n\n[network]\nallow = [\"known.wild.example.org:80\"]\n\
         # refused while learning: 169.254.169.254:80: 169.254.169.254 is a metadata service of a cloud, and no rule allows it\n\
         # refused while learning: 93.184.216.34:80: no rule allows it, and there is no terminal to ask at\n\
         # refused while learning: stray.example.org:80: no rule allows it, and there is no terminal to ask at\n"
    );
}

#[test]
fn what_a_rule_denies_is_denied_while_learning_and_not_asked_about() {
    let Some(world) = world() else { return };
    let site = Site::new();
    let learned = site.root().join("learned.toml");
    let attempts = r#"
attempt("denied", get, "www.example.com")
attempt("control", get, "api.example.com")
"#;
    let run = learning(
        world,
        &learned,
        &["--learn-allow", "*.example.com", "--deny-host", "www.example.com"],
        attempts,
    );
    let (questions, seen) = run.end_with_questions();
    assert_eq!(questions, 0);
    seen.refused("denied");
    seen.done("control");
    let text = std::fs::read_to_string(&learned).unwrap();
    assert!(text.contains("allow = [\"api.example.com:80\"]"), "{text}");
    assert!(!text.contains("www.example.com:"), "{text}");
}

#[test]
fn what_ran_does_not_write_the_policy_that_is_learned() {
    let Some(world) = world() else { return };
    let site = Site::new();
    let learned = site.workspace().join("learned.toml");
    let attempts = r#"
attempt("web", get, "www.example.com")
open("learned.toml", "w").write("allow_ptrace = true\n")
"#;
    let command = world.sandboxed(
        &site,
        &[
            "--workspace",
            ".:rw",
            "--learn",
            "learned.toml",
            "--learn-allow",
            "www.example.com",
        ],
        attempts,
    );
    let mut command = World::in_session(&command, false);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let output = finish(command.spawn().unwrap());
    assert_eq!(output.status.code(), Some(125), "{}", stderr(&output));
    let said = stderr(&output);
    assert!(
        said.contains("nothing was learned") && said.contains("changed since"),
        "{said}"
    );
    assert_eq!(std::fs::read_to_string(&learned).unwrap(), "allow_ptrace = true\n");
}
