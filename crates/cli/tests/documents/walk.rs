//! Walks a document: runs its `console` blocks in order, as whoever reads it does, and compares what is said.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use crate::root;
use crate::support::{Site, binary};

/// A command of a document, and what it says there.
#[derive(Debug, PartialEq, Eq)]
struct Step {
    command: String,
    said: Vec<String>,
}

/// What follows `$ ` in blocks of the language `console`; lines that begin with `> ` go on with it, others are what it says.
fn steps(text: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut in_block = false;
    for line in text.lines() {
        if line.starts_with("```") {
            in_block = line == "```console";
        } else if let Some(command) = line.strip_prefix("$ ").filter(|_| in_block) {
            steps.push(Step {
                command: command.to_owned(),
                said: Vec::new(),
            });
        } else if let Some(step) = steps.last_mut().filter(|_| in_block) {
            let more = if line == ">" { Some("") } else { line.strip_prefix("> ") };
            match more.filter(|_| step.said.is_empty()) {
                Some(more) => step.command.push_str(&format!("\n{more}")),
                None => step.said.push(line.to_owned()),
            }
        }
    }
    steps
}

/// Whether a line is as a document has it, where `…` stands for any text.
fn is_line(expected: &str, line: &str) -> bool {
    let mut pieces = expected.split('…');
    let Some(mut rest) = line.strip_prefix(pieces.next().unwrap_or_default()) else {
        return false;
    };
    let pieces: Vec<&str> = pieces.collect();
    for (number, piece) in pieces.iter().enumerate() {
        let is_last = number + 1 == pieces.len();
        let found = if is_last {
            rest.strip_suffix(piece).map(|_| rest.len() - piece.len())
        } else {
            rest.find(piece)
        };
        let Some(at) = found else { return false };
        rest = &rest[at + piece.len()..];
    }
    rest.is_empty()
}

/// The same for lines, where one that is `…` alone stands for any lines.
fn is_said(expected: &[String], lines: &[&str]) -> bool {
    match (expected.split_first(), lines.split_first()) {
        (None, none) => none.is_none(),
        (Some((first, rest)), _) if first == "…" => (0..=lines.len()).any(|skipped| is_said(rest, &lines[skipped..])),
        (Some((first, rest)), Some((line, others))) => is_line(first, line) && is_said(rest, others),
        (Some(_), None) => false,
    }
}

/// Marks the end of what a step said.
const END: char = '\u{1e}';

/// One script, so that directory and variables are kept. `RUN` in a command is the run that was told last.
fn script(steps: &[Step]) -> String {
    let mut script = "told=/dev/null\n".to_owned();
    for (number, step) in steps.iter().enumerate() {
        let command = step.command.replace(" RUN", " \"$RUN\"");
        script.push_str(&format!(
            "RUN=$(grep -o 'offleash diff r[a-z0-9]*' \"$told\" | tail -1 | cut -d ' ' -f 3) || true\n\
             RUN=${{RUN:-$EARLIER}}; EARLIER=$RUN\n\
             told=$STEPS/{number}\n\
             {{ {command}\n}} >\"$told\" 2>&1\n\
             cat \"$told\"; printf '{END}'\n"
        ));
    }
    script
}

#[expect(clippy::disallowed_methods, reason = "a reader's shell starts programs as any does")]
fn walk(name: &str) {
    let steps = steps(&fs::read_to_string(root().join("docs").join(name)).unwrap());
    assert!(!steps.is_empty());
    let site = Site::new();
    let (home, programs, said) = (
        site.root().join("home"),
        site.root().join("bin"),
        site.root().join("steps"),
    );
    for directory in [&home, &programs, &said] {
        fs::create_dir(directory).unwrap();
    }
    std::os::unix::fs::symlink(binary(), programs.join("offleash")).unwrap();
    let file = site.root().join("walk.sh");
    fs::write(&file, script(&steps)).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let output = Command::new("bash")
        .arg(&file)
        .current_dir(&home)
        .env_clear()
        .env("PATH", path)
        .env("HOME", &home)
        .env("STEPS", &said)
        .env("OFFLEASH_STATE", site.state())
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let answers: Vec<&str> = text.split(END).collect();
    for (step, answer) in steps.iter().zip(&answers) {
        let lines: Vec<&str> = answer.lines().collect();
        assert!(
            is_said(&step.said, &lines),
            "docs/{name}: `{}` said\n{answer}\nand not\n{}",
            step.command,
            step.said.join("\n")
        );
    }
    assert_eq!(
        answers.len(),
        steps.len() + 1,
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn what_is_said_is_compared_with_what_a_document_has() {
    let found = steps("```console\n$ cat <<E\n> a\n> E\na\n```\n```sh\n$ no\n```\n");
    assert_eq!(
        found,
        [Step {
            command: "cat <<E\na\nE".to_owned(),
            said: vec!["a".to_owned()]
        }]
    );
    let expected = ["one …, three".to_owned(), "…".to_owned(), "end".to_owned()];
    assert!(is_said(&expected, &["one two, three", "x", "y", "end"]));
    assert!(is_said(&expected, &["one , three", "end"]));
    assert!(!is_said(&expected, &["one two, three", "x"]));
    assert!(!is_said(&expected, &["one two, four", "end"]));
}

#[test]
fn the_tutorial_of_coding_agents_says_what_happens() {
    walk("tutorials/coding-agent.md");
}

#[test]
fn the_audit_log_is_put_away_as_the_page_on_compliance_says() {
    walk("compliance.md");
}
