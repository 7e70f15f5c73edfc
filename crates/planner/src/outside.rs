//! Where a command that the sandbox does not have is on the host, for the hint.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use offleash_core::level::Level;
use offleash_core::text::Text;

use super::host::PlanningHost;
use super::toolchain;

/// What to add so that `command`, which is not found inside, would be; `None` when the host does not have it either. At a
/// level that runs no program of the host it is which one does.
pub fn find_outside(command: &OsStr, level: Level, host: &PlanningHost) -> Option<String> {
    match level {
        Level::Wasm => {
            return Some(
                "level `wasm` runs no program of the host: name a module of WebAssembly in the workspace (`./tool.wasm`), \
                 `python3` or `node`; level `process` runs the host's programs"
                    .to_owned(),
            );
        }
        Level::Simulated => {
            return Some(
                "level `simulated` runs no program of the host; `--level auto:simulated` runs those that its shell does not \
                 have at level `process`"
                    .to_owned(),
            );
        }
        _ => {}
    }
    let path = on_host(command, host)?;
    let shown = Text::from(&path);
    let name = Text::from(command);
    if is_inside(&path) {
        let directory = Text::from(path.parent().unwrap_or(&path));
        return Some(format!(
            "it is `{shown}`, inside as well, but the `PATH` of the command does not name `{directory}`"
        ));
    }
    if let Some(toolchain) = toolchain::owner_of(&path, host) {
        return Some(format!(
            "{}; grant it with `--toolchain {toolchain}`",
            found(&name, &shown)
        ));
    }
    let directory = path
        .parent()
        .filter(|directory| *directory != Path::new("/"))
        .unwrap_or(&path);
    Some(format!(
        "{}; grant it with `--toolchain {}`",
        found(&name, &shown),
        Text::from(directory)
    ))
}

fn found(name: &Text, path: &Text) -> String {
    match name == path {
        true => format!("`{name}` is on the host and not inside"),
        false => format!("`{name}` is `{path}` on the host"),
    }
}

/// Whether a program of the host is one of the system's, all of which are inside.
fn is_inside(path: &Path) -> bool {
    path.canonicalize().is_ok_and(|path| path.starts_with("/usr"))
        && path.parent().is_some_and(|directory| {
            ["/usr", "/bin", "/sbin"]
                .iter()
                .any(|system| directory.starts_with(system))
        })
}

fn on_host(command: &OsStr, host: &PlanningHost) -> Option<PathBuf> {
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
