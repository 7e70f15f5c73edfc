//! Every link between documents leads somewhere.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use crate::root;

/// All documents of the repository, and the list of them for language models.
pub(crate) fn documents() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut todo = vec![root()];
    while let Some(directory) = todo.pop() {
        for entry in fs::read_dir(&directory).unwrap().flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            if path.is_dir() {
                let is_ours = !["target", "node_modules"].contains(&&*name.to_string_lossy());
                let is_hidden = name.to_string_lossy().starts_with('.');
                todo.extend((is_ours && !is_hidden).then_some(path));
            } else if path.extension().is_some_and(|extension| extension == "md") || name == "llms.txt" {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The lines of a document that are no code between fences.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut in_code = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        !in_code && !is_fence
    })
}

/// The targets of `[text](target)`, code left out.
pub(crate) fn links(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in prose(text) {
        // What stands between backticks is code, too.
        let plain: String = line.split('`').step_by(2).collect::<Vec<_>>().join("`");
        for piece in plain.split("](").skip(1) {
            found.extend(piece.split_once(')').map(|(target, _)| target.to_owned()));
        }
    }
    found
}

/// How a heading is named in links.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text
        .chars()
        .filter(|character| character.is_alphanumeric() || matches!(character, ' ' | '-' | '_'));
    kept.map(|character| if character == ' ' { '-' } else { character })
        .collect()
}

/// The names of all headings; of those that are alike the later ones have a number.
fn anchors(text: &str) -> Vec<String> {
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    let headings = prose(text).filter(|line| line.starts_with('#'));
    headings
        .map(|heading| {
            let name = anchor(heading);
            let earlier = times.entry(name.clone()).or_default();
            *earlier += 1;
            match *earlier {
                1 => name,
                number => format!("{name}-{}", number - 1),
            }
        })
        .collect()
}

#[test]
fn headings_are_named_as_readers_of_markdown_name_them() {
    let text = "# One\n## `run`, two!\n```sh\n# no heading\n```\n## One\n";
    assert_eq!(anchors(text), ["one", "run-two", "one-1"]);
    assert_eq!(
        links("[a](b.md#c) `[no](link)` ![d](e.png)\n```\n[f](g)\n```\n"),
        ["b.md#c", "e.png"]
    );
}

#[test]
fn every_link_between_documents_leads_somewhere() {
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        for link in links(&text) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (path, fragment) = link.split_once('#').unwrap_or((&link, ""));
            let target = if path.is_empty() {
                document.clone()
            } else {
                document.parent().unwrap().join(path)
            };
            assert!(target.is_file(), "{}: `{link}` leads to no file", document.display());
            if !fragment.is_empty() && target.extension().is_some_and(|extension| extension == "md") {
                let target_text = fs::read_to_string(&target).unwrap();
                let there = anchors(&target_text).iter().any(|name| name == fragment);
                assert!(there, "{}: `{link}`: no such heading", document.display());
            }
        }
    }
}
