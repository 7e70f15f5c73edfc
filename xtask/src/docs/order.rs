//! The documents as mdBook wants them: one tree with `SUMMARY.md` at its top, and what is for language models beside it.

use std::fs;
use std::path::{Path, PathBuf};

use super::{copy, read, write};
use crate::error::TaskError;

/// The line of `SUMMARY.md` below which the design decisions stand.
const ABOVE_DECISIONS: &str = "(../ARCHITECTURE.md)";

/// Copies the documents into `source` with the paths that they have, and writes its `SUMMARY.md`. Answers the pages, in order.
///
/// # Errors
/// A file that cannot be read or written.
pub(super) fn put(documents: &Path, source: &Path) -> Result<Vec<PathBuf>, TaskError> {
    for file in files(documents, false)? {
        if file.extension().is_some_and(|extension| extension == "md") {
            copy(&documents.join(&file), &source.join(&file))?;
        }
    }
    for file in files(&documents.join("docs"), true)? {
        copy(&documents.join("docs").join(&file), &source.join("docs").join(&file))?;
    }
    let summary = with_decisions(
        &read(&documents.join("docs/SUMMARY.md"))?,
        &documents.join("docs/design"),
    )?;
    let summary = from_the_top(&summary);
    write(&source.join("SUMMARY.md"), &summary)?;
    Ok(targets(&summary).into_iter().map(PathBuf::from).collect())
}

/// Puts beside the pages what is read without a browser: each document as it is, `llms.txt`, and all of it in `llms-full.txt`.
///
/// # Errors
/// A file that cannot be read or written.
pub(super) fn add_text(pages: &[PathBuf], source: &Path, site: &Path) -> Result<(), TaskError> {
    let mut full = String::new();
    for page in pages {
        copy(&source.join(page), &site.join(page))?;
        // What was decided and measured on some day is for who asks, not for who is to use it.
        let is_history = ["docs/design", "docs/measurements"]
            .iter()
            .any(|part| page.starts_with(part));
        if !is_history {
            full.push_str(&format!(
                "<!-- {} -->\n\n{}\n",
                page.display(),
                read(&source.join(page))?
            ));
        }
    }
    write(&site.join("llms-full.txt"), &full)?;
    let index = read(&source.join("docs/llms.txt"))?;
    write(&site.join("llms.txt"), &from_the_top(&index))
}

/// The files in a directory, and with `below` in those in it; sorted, relative to it.
fn files(directory: &Path, below: bool) -> Result<Vec<PathBuf>, TaskError> {
    let mut found = Vec::new();
    let entries = fs::read_dir(directory).map_err(TaskError::file("reading", directory))?;
    for entry in entries.flatten() {
        let (path, name) = (entry.path(), PathBuf::from(entry.file_name()));
        if path.is_file() {
            found.push(name);
        } else if below {
            found.extend(files(&path, true)?.into_iter().map(|file| name.join(file)));
        }
    }
    found.sort();
    Ok(found)
}

/// The summary with a line for each design decision, which has its title.
fn with_decisions(summary: &str, decisions: &Path) -> Result<String, TaskError> {
    let mut text = String::new();
    for line in summary.lines() {
        text.push_str(line);
        text.push('\n');
        if !line.contains(ABOVE_DECISIONS) {
            continue;
        }
        for file in files(decisions, false)? {
            let document = read(&decisions.join(&file))?;
            let title = document
                .lines()
                .next()
                .unwrap_or_default()
                .trim_start_matches('#')
                .trim();
            text.push_str(&format!("  - [{title}](design/{})\n", file.display()));
        }
    }
    Ok(text)
}

/// A text of `docs/` with its links as they are one directory above.
fn from_the_top(text: &str) -> String {
    let mut pieces = text.split("](");
    let mut moved = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        moved.push_str("](");
        match piece.strip_prefix("../") {
            Some(rest) => moved.push_str(rest),
            None if piece.contains("://") && piece.find("://") < piece.find(')') => moved.push_str(piece),
            None => {
                moved.push_str("docs/");
                moved.push_str(piece);
            }
        }
    }
    moved
}

/// Where the links of a text lead.
fn targets(text: &str) -> Vec<&str> {
    let pieces = text.split("](").skip(1);
    pieces.filter_map(|piece| Some(piece.split_once(')')?.0)).collect()
}

#[cfg(test)]
mod tests {
    use super::{from_the_top, targets};

    #[test]
    fn links_are_moved_up_and_addresses_stay() {
        let moved = from_the_top("[a](cli.md) and [b](../README.md), [c](https://example.com/x)");
        assert_eq!(moved, "[a](docs/cli.md) and [b](README.md), [c](https://example.com/x)");
        assert_eq!(targets(&moved), ["docs/cli.md", "README.md", "https://example.com/x"]);
    }
}
