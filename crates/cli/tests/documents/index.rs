//! The lists of documents: `docs/SUMMARY.md` for the site, `docs/llms.txt` and the skill for language models.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use crate::links::{documents, links};
use crate::{assert_committed, root};

/// Documents that are in no list: what is decided and the list itself, and what belongs to a directory of its own.
const NOT_LISTED: [&str; 6] = [
    "docs/design/",
    "docs/SUMMARY.md",
    "docs/llms.txt",
    "clients/",
    "packaging/",
    "skills/",
];
/// Sections that a reader with little room leaves out.
const OPTIONAL: &str = "How it is made";
const LLMS_BEGINNING: &str = "\
# offleash

> offleash runs code that an AI wrote, on any Linux machine. Whatever the code does, nothing outside its sandbox is harmed, read or reached unless the owner allowed it. It is one static binary: no Docker, no KVM, no root.

To use it from a shell, read the tutorial for coding agents and the commands. To build a product on it, read the tutorial for code interpreters and the server.
`skills/offleash/SKILL.md` of the repository is a skill for coding agents.
";

fn below_docs(link: &str) -> PathBuf {
    root().join("docs").join(link).canonicalize().unwrap()
}

#[test]
fn every_document_is_in_the_list() {
    let summary = fs::read_to_string(root().join("docs/SUMMARY.md")).unwrap();
    let listed: BTreeSet<PathBuf> = links(&summary).iter().map(|link| below_docs(link)).collect();
    for document in documents() {
        let name = document.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
        if NOT_LISTED.iter().any(|beginning| name.starts_with(beginning)) {
            continue;
        }
        assert!(listed.contains(&document), "{name} is not in docs/SUMMARY.md");
    }
}

/// The first sentence of a document, as text.
fn first_sentence(document: &Path) -> String {
    let text = fs::read_to_string(document).unwrap();
    let body = text.lines().skip_while(|line| !line.starts_with("# ")).skip(1);
    // What begins with a space is code.
    let is_text =
        |line: &&str| !line.is_empty() && !line.starts_with(['<', '|', '#', '!', ' ']) && !line.starts_with("```");
    let paragraph: Vec<&str> = body.skip_while(|line| !is_text(line)).take_while(is_text).collect();
    let paragraph = paragraph.join(" ");
    let end = [". ", ": "].iter().filter_map(|end| paragraph.find(end)).min();
    let sentence = paragraph[..end.unwrap_or(paragraph.len())].trim_end_matches(['.', ':']);
    // The text of a link, without where it leads.
    let mut plain = String::new();
    for (number, piece) in sentence.split("](").enumerate() {
        let rest = if number == 0 {
            piece
        } else {
            piece.split_once(')').map_or("", |(_, rest)| rest)
        };
        plain.push_str(rest);
    }
    format!("{}.", plain.replace('[', ""))
}

fn llms_document() -> String {
    let summary = fs::read_to_string(root().join("docs/SUMMARY.md")).unwrap();
    let mut text = LLMS_BEGINNING.to_owned();
    for line in summary.lines().skip(1) {
        if let Some(section) = line.strip_prefix("# ") {
            let name = if section == OPTIONAL { "Optional" } else { section };
            write!(text, "\n## {name}\n\n").unwrap();
        } else if let Some((title, link)) = line.trim().trim_start_matches("- ").split_once("](") {
            let (title, link) = (title.trim_start_matches('['), link.trim_end_matches(')'));
            // What was measured on some day is linked from where it is promised.
            if link.starts_with("measurements/") {
                continue;
            }
            if !text.contains("\n## ") {
                text.push_str("\n## Start\n\n");
            }
            writeln!(text, "- [{title}]({link}): {}", first_sentence(&below_docs(link))).unwrap();
        }
    }
    text
}

#[test]
fn the_list_for_language_models_is_that_of_the_site() {
    assert_committed("llms.txt", &llms_document());
}

/// The keys and values between the lines `---` at the beginning.
fn front_matter(text: &str) -> Vec<(&str, &str)> {
    let inner = text
        .strip_prefix("---\n")
        .and_then(|rest| rest.split_once("\n---\n"))
        .unwrap()
        .0;
    inner.lines().map(|line| line.split_once(": ").unwrap()).collect()
}

#[test]
fn the_skill_is_one_that_agents_load() {
    // As the specification of Agent Skills has it: names, their lengths, and a body that is read whole.
    let directory = root().join("skills/offleash");
    let text = fs::read_to_string(directory.join("SKILL.md")).unwrap();
    let keys = front_matter(&text);
    let value = |name: &str| keys.iter().find(|(key, _)| *key == name).map(|(_, value)| *value);
    assert_eq!(
        value("name").map(Path::new),
        Some(Path::new(directory.file_name().unwrap()))
    );
    let description = value("description").unwrap();
    assert!(
        description.len() <= 1024 && !description.contains(": "),
        "{description}"
    );
    assert!(value("compatibility").unwrap().len() <= 500);
    let known = [
        "name",
        "description",
        "license",
        "compatibility",
        "metadata",
        "allowed-tools",
    ];
    assert!(keys.iter().all(|(key, _)| known.contains(key)), "{keys:?}");
    assert!(text.lines().count() <= 500);
}
