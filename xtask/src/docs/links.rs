//! Looks up every link of the built pages: the file, and the place in it.
//!
//! The test `documents` does so with the sources. What mdBook makes of them, such as the names of headings, is seen here alone.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use super::read;
use crate::error::TaskError;

/// What was looked up.
#[derive(Debug, Default)]
pub(super) struct LinkReport {
    /// How many pages there are.
    pub(super) pages: usize,
    /// How many links lead from one to another, or to a place in the same.
    pub(super) links: usize,
    /// Those that lead nowhere, in words.
    pub(super) broken: Vec<String>,
}

/// Looks up all links between the pages below `site`.
///
/// # Errors
/// A page that cannot be read.
pub(super) fn check(site: &Path) -> Result<LinkReport, TaskError> {
    let mut pages = BTreeMap::new();
    for path in pages_below(site)? {
        pages.insert(path.clone(), read(&path)?);
    }
    let names: BTreeMap<&Path, BTreeSet<&str>> = pages
        .iter()
        .map(|(path, text)| (path.as_path(), values(text, " id=\"").collect()))
        .collect();
    let mut report = LinkReport {
        pages: pages.len(),
        ..LinkReport::default()
    };
    for (page, text) in &pages {
        for link in values(text, " href=\"").chain(values(text, " src=\"")) {
            if is_elsewhere(link) {
                continue;
            }
            report.links += 1;
            if let Some(why) = obstacle(page, link, &names) {
                let shown = page.strip_prefix(site).unwrap_or(page).display();
                report.broken.push(format!("{shown}: `{link}` {why}"));
            }
        }
    }
    Ok(report)
}

fn pages_below(directory: &Path) -> Result<Vec<PathBuf>, TaskError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)
        .map_err(TaskError::file("reading", directory))?
        .flatten()
    {
        let path = entry.path();
        if path.is_dir() {
            found.extend(pages_below(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "html") {
            found.push(path);
        }
    }
    Ok(found)
}

/// What stands in quotation marks behind `before`.
fn values<'a>(text: &'a str, before: &'static str) -> impl Iterator<Item = &'a str> {
    let pieces = text.split(before).skip(1);
    pieces.filter_map(|piece| Some(piece.split_once('"')?.0))
}

/// What is not looked up: other sites, and the top of this one as the page for wrong addresses names it, which is shown at any.
fn is_elsewhere(link: &str) -> bool {
    if link == "/" {
        return true;
    }
    ["http://", "https://", "mailto:", "data:", "javascript:"]
        .iter()
        .any(|scheme| link.starts_with(scheme))
}

/// Why a link leads nowhere.
fn obstacle(page: &Path, link: &str, names: &BTreeMap<&Path, BTreeSet<&str>>) -> Option<&'static str> {
    let (path, name) = link.split_once('#').unwrap_or((link, ""));
    let target = match path.split_once('?').map_or(path, |(path, _)| path) {
        "" => page.to_path_buf(),
        path => plain(&page.parent().unwrap_or(page).join(path)),
    };
    if !target.is_file() {
        return Some("leads to no file");
    }
    let known = names.get(target.as_path());
    let is_there = name.is_empty() || known.is_none_or(|known| known.contains(name));
    (!is_there).then_some("leads to no heading")
}

/// The path without `.` and `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                plain.pop();
            }
            Component::CurDir => {}
            other => plain.push(other),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::check;

    #[test]
    fn what_leads_nowhere_is_told() {
        let site = tempfile::tempdir().unwrap();
        fs::create_dir(site.path().join("docs")).unwrap();
        let index =
            r#"<a href="docs/a.html#here">x</a><a href="docs/a.html#gone">x</a><a href="https://example.com">x</a>"#;
        fs::write(site.path().join("index.html"), index).unwrap();
        let page = r#"<h1 id="here">x</h1><a href="../index.html">x</a><a href="b.html">x</a><img src="c.png">"#;
        fs::write(site.path().join("docs/a.html"), page).unwrap();
        let report = check(site.path()).unwrap();
        assert_eq!((report.pages, report.links), (2, 5));
        assert_eq!(
            report.broken,
            [
                "docs/a.html: `b.html` leads to no file",
                "docs/a.html: `c.png` leads to no file",
                "index.html: `docs/a.html#gone` leads to no heading"
            ]
        );
    }
}
