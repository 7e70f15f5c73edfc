//! mdBook: the one that is installed, if it is of the release that the site is made for, or one below `target`.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::error::TaskError;
use crate::program;

/// The release that is installed where there is none.
const VERSION: &str = "0.5.4";
/// How `mdbook --version` begins for releases that understand `docs/book.toml`.
const SERIES: &str = "mdbook v0.5.";

/// How it is started.
///
/// # Errors
/// `Start` and `Ended` where it has to be installed and cannot be.
pub(super) fn command() -> Result<Command, TaskError> {
    let place = program::target_directory().join("tools");
    let ours = place.join("bin/mdbook");
    let found = [program::find("mdbook"), Some(ours.clone())];
    if let Some(usable) = found.into_iter().flatten().find(|path| is_of_the_series(path)) {
        return Ok(Command::new(usable));
    }
    install(&place)?;
    Ok(Command::new(ours))
}

fn is_of_the_series(mdbook: &Path) -> bool {
    let output = Command::new(mdbook).arg("--version").stdin(Stdio::null()).output();
    output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).starts_with(SERIES))
}

/// Builds it from its source, with search and without its server.
fn install(place: &Path) -> Result<(), TaskError> {
    eprintln!(
        "installing mdBook {VERSION} into `{}`, which takes minutes, once",
        place.display()
    );
    let mut command = program::cargo();
    command.args(["install", "mdbook", "--version", VERSION, "--locked"]);
    command.args(["--no-default-features", "--features", "search", "--root"]);
    command.arg(place);
    // Not with the target and the flags of this workspace.
    command.current_dir("/").env_remove("CARGO_TARGET_DIR");
    program::run(&mut command)
}
