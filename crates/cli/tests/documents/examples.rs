//! What documents show of the command line is there: every command, and every flag of it.
//!
//! What the program has is read from `docs/cli.md`, which another test compares with the program.

use std::collections::BTreeMap;
use std::fs;

use crate::links::documents;
use crate::root;

/// Documents of what was, the reference itself, and what names commands that are no user's.
const LEFT_OUT: [&str; 5] = [
    "docs/design/",
    "docs/measurements/",
    "docs/cli.md",
    "CHANGELOG.md",
    "ARCHITECTURE.md",
];

/// The help of each command, by its words.
fn helps() -> BTreeMap<String, String> {
    let reference = fs::read_to_string(root().join("docs/cli.md")).unwrap();
    let sections = reference.split("\n### offleash").skip(1);
    sections
        .map(|section| {
            let (name, rest) = section.split_once('\n').unwrap();
            let help = rest.split("```").nth(1).unwrap();
            (name.trim().to_owned(), help.to_owned())
        })
        .collect()
}

/// Pieces of a document that a shell is to read: lines of code, and code in text that begins with the program's name.
fn shown(text: &str) -> Vec<String> {
    let joined = text.replace("\\\n", " ");
    let (mut found, mut fence) = (Vec::new(), None);
    for line in joined.lines() {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            fence = fence.is_none().then(|| language.to_owned());
        } else if let Some(language) = &fence {
            if ["", "sh", "console"].contains(&language.as_str()) {
                found.push(line.to_owned());
            }
        } else if line.starts_with("    ") {
            found.push(line.to_owned());
        } else {
            let code = line.split('`').skip(1).step_by(2);
            found.extend(code.filter(|code| code.starts_with("offleash ")).map(str::to_owned));
        }
    }
    found
}

/// The words of a line up to its comment, as a shell divides them; quotation marks are kept together and taken off.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut mark) = (Vec::new(), String::new(), None);
    for character in line.chars() {
        match (mark, character) {
            (None, '\'' | '"') => mark = Some(character),
            (Some(opened), _) if opened == character => mark = None,
            (None, '#') if word.is_empty() => break,
            (None, ' ') => words.extend((!word.is_empty()).then(|| std::mem::take(&mut word))),
            (None, '|' | ';' | '(' | ')' | '&' | '<' | '>') => {
                words.extend((!word.is_empty()).then(|| std::mem::take(&mut word)));
                words.push(character.to_string());
            }
            _ => word.push(character),
        }
    }
    words.extend((!word.is_empty()).then_some(word));
    words
}

/// What is wrong with each use of the program in a line.
fn wrong(line: &str, helps: &BTreeMap<String, String>) -> Vec<String> {
    let words = words(line);
    let mut wrong = Vec::new();
    for (at, _) in words.iter().enumerate().filter(|(_, word)| *word == "offleash") {
        if at > 0 && words[at - 1] == "from" {
            continue; // `from offleash import` is Python.
        }
        let mut rest = words[at + 1..].iter();
        let is_command = rest
            .clone()
            .next()
            .is_some_and(|word| word != "offleash" && word.chars().all(|letter| letter.is_ascii_lowercase()));
        if !is_command {
            continue;
        }
        let mut command = rest.next().cloned().unwrap_or_default();
        if command == "help" {
            command = rest.next().cloned().unwrap_or_default();
        }
        let mut rest = rest.peekable();
        while let Some(longer) = rest.peek().map(|word| format!("{command} {word}")) {
            if !helps.contains_key(&longer) {
                break;
            }
            command = longer;
            rest.next();
        }
        match helps.get(&command) {
            Some(help) => wrong.extend(unknown_flags(&command, help, rest)),
            None => wrong.push(format!("no command `offleash {command}`")),
        }
    }
    wrong
}

fn unknown_flags<'a>(command: &str, help: &str, words: impl Iterator<Item = &'a String>) -> Vec<String> {
    let mut unknown = Vec::new();
    let mut before_is_flag = false;
    for word in words {
        let is_flag = word.starts_with('-');
        // A command that is run has flags of its own, and so has what stands behind in a shell.
        let is_over = word == "--" || ["|", ";", "&", ")", "<", ">"].contains(&word.as_str());
        if is_over || command == "run" && !is_flag && !before_is_flag {
            break;
        }
        let name = word.split(['=', '[']).next().unwrap();
        let is_there = help.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '-'));
        if name.starts_with("--") && !is_there.into_iter().any(|there| there == name) {
            unknown.push(format!("`offleash {command}` has no {name}"));
        }
        before_is_flag = is_flag;
    }
    unknown
}

#[test]
fn what_is_wrong_with_an_example_is_found() {
    let helps = helps();
    for (line, expected) in [
        ("offleash run --memory 1G -- ./x --own-flag", None),
        ("claude mcp add offleash -- offleash mcp --allow pypi.org", None),
        ("sudo -u offleash offleash key create --state /x   # --comment", None),
        ("export KEY=$(offleash key create) --elsewhere", None),
        (
            "offleash run --memroy 1G -- ./x",
            Some("`offleash run` has no --memroy"),
        ),
        (
            "offleash image pull --fast x",
            Some("`offleash image pull` has no --fast"),
        ),
        ("$ offleash jump", Some("no command `offleash jump`")),
    ] {
        assert_eq!(wrong(line, &helps).first().map(String::as_str), expected, "{line}");
    }
}

#[test]
fn commands_and_flags_in_documents_are_those_of_the_program() {
    let helps = helps();
    let mut found = Vec::new();
    for document in documents() {
        let name = document.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
        if LEFT_OUT.iter().any(|beginning| name.starts_with(beginning)) {
            continue;
        }
        for line in shown(&fs::read_to_string(&document).unwrap()) {
            found.extend(
                wrong(&line, &helps)
                    .into_iter()
                    .map(|why| format!("{name}: {why}: {line}")),
            );
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}
