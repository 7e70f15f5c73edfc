//! Where a command that the sandbox does not have is on the host, for the hint.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use offleash_core::text::Text;

use super::{Host, toolchain};

/// What to add so that `command`, which is not found inside, would be; `None` when the host does not have it either.
pub fn find_outside(command: &OsStr, host: &Host) -> Option<String> {
    let path = on_host(command, host)?;
    let shown = Text::from(&path);
    let name = Text::from(command);
    if let Some(toolchain) = toolchain::owner_of(&path, host) {
        return Some(format!(
            "`{name}` is `{shown}` on the host; grant it with `--toolchain {toolchain}`"
        ));
    }
    let directory = path
        .parent()
        .filter(|directory| *directory != Path::new("/"))
        .unwrap_or(&path);
    Some(format!(
        "`{name}` is `{shown}` on the host; grant it with `--toolchain {}`",
        Text::from(directory)
    ))
}

fn on_host(command: &OsStr, host: &Host) -> Option<PathBuf> {
    if command.as_bytes().contains(&b'/') {
        return Some(host.cwd.join(command)).filter(|path| is_executable(path));
    }
    let search_path = host.variable("PATH")?;
    let candidates = std::env::split_paths(search_path).filter(|directory| directory.is_absolute());
    candidates
        .map(|directory| directory.join(command))
        .find(|path| is_executable(path))
}

fn is_executable(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.is_file() && found.mode() & 0o111 != 0)
}
