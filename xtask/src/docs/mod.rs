//! The site of the documents: put in order, built by mdBook, and every link in it looked up.
//!
//! Nothing here is shipped, and no test of the workspace needs it: what can be wrong with the documents themselves is
//! found by the test `documents` of the command line.

mod links;
mod mdbook;
mod order;

use std::fs;
use std::path::Path;

use crate::error::TaskError;
use crate::program;

/// What is built into `target/docs/site`.
///
/// # Errors
/// What mdBook, or a document, is missing.
pub(crate) fn build() -> Result<(), TaskError> {
    let (documents, place) = (program::workspace_root(), program::target_directory().join("docs"));
    let (source, site) = (place.join("source"), place.join("site"));
    remove(&source)?;
    remove(&site)?;
    let pages = order::put(&documents, &source)?;
    let book = place.join("book.toml");
    copy(&documents.join("docs/book.toml"), &book)?;
    program::run(mdbook::command()?.arg("build").arg(&place))?;
    order::add_text(&pages, &source, &site)?;
    let report = links::check(&site)?;
    for broken in &report.broken {
        eprintln!("{broken}");
    }
    println!(
        "{} pages, {} links between them: {}",
        report.pages,
        report.links,
        site.join("index.html").display()
    );
    match report.broken.len() {
        0 => Ok(()),
        count => Err(TaskError::Failed { count }),
    }
}

fn remove(directory: &Path) -> Result<(), TaskError> {
    if directory.exists() {
        fs::remove_dir_all(directory).map_err(TaskError::file("removing", directory))?;
    }
    Ok(())
}

fn read(path: &Path) -> Result<String, TaskError> {
    fs::read_to_string(path).map_err(TaskError::file("reading", path))
}

fn write(path: &Path, text: &str) -> Result<(), TaskError> {
    fs::write(path, text).map_err(TaskError::file("writing", path))
}

/// Copies a file, and makes the directories that it needs.
fn copy(from: &Path, to: &Path) -> Result<(), TaskError> {
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent).map_err(TaskError::file("creating", parent))?;
    }
    fs::copy(from, to).map_err(TaskError::file("copying", from))?;
    Ok(())
}
