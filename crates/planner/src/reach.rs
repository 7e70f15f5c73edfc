//! Which host paths may be given to a sandbox at all, and where they may be put.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Component, Path, PathBuf};

use offleash_core::plan::{PlanEntry, PlanNode};
use offleash_core::text::Text;

use super::error::PlanError;
use super::host::PlanningHost;
use super::view::{PlanView, source_of};

/// What the workspace is called in messages.
pub(super) const WORKSPACE: &str = "workspace";

/// Kernel interfaces and devices: nothing of them is ever taken from the host.
const KERNEL: [&str; 3] = ["/proc", "/sys", "/dev"];

/// Directories of the root that the sandbox's own system consists of.
const SYSTEM: [&str; 10] = [
    "/usr",
    "/etc",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/boot",
    "/lost+found",
];

/// Resolves a host path as given: `~/` is the home directory, relative paths begin at the current directory.
pub(super) fn resolve(role: &'static str, given: &Path, host: &PlanningHost) -> Result<(PathBuf, Metadata), PlanError> {
    let unreachable = |source| PlanError::Unreachable {
        role,
        path: Text::from(given),
        source,
    };
    if given.as_os_str().as_bytes().contains(&0) {
        return Err(unreachable(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the path contains a NUL byte",
        )));
    }
    let path = fs::canonicalize(absolute(given, host)).map_err(unreachable)?;
    let metadata = fs::metadata(&path).map_err(unreachable)?;
    Ok((path, metadata))
}

/// A path of the host as its owner wrote it: `~` is the owner's home directory, which no shell has put there behind an
/// equals sign or in a policy; what is relative is below the current directory.
pub fn absolute(given: &Path, host: &PlanningHost) -> PathBuf {
    host.cwd.join(from_home(given, host.home.as_deref()))
}

/// The same, where what is relative stays so.
pub fn from_home(given: &Path, home: Option<&Path>) -> PathBuf {
    match (given.strip_prefix("~"), home) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => given.to_owned(),
    }
}

/// Refuses a path in the workspace that a link leads out of it: whoever wrote the workspace wrote the link.
pub(super) fn check_stays(
    role: &'static str,
    given: &Path,
    resolved: &Path,
    host: &PlanningHost,
    workspace: Option<&Path>,
) -> Result<(), PlanError> {
    let Some(workspace) = workspace else { return Ok(()) };
    let mut written = PathBuf::new();
    for component in absolute(given, host).components() {
        if component == Component::ParentDir {
            written.pop();
        } else {
            written.push(component)
        }
    }
    if written.starts_with(workspace) && !resolved.starts_with(workspace) {
        return Err(PlanError::Target {
            role,
            path: Text::from(given),
            reason: format!("leads out of the workspace, to `{}`", Text::from(resolved)),
            hint: "name the path that is meant, if you trust the link",
        });
    }
    Ok(())
}

/// Refuses what is neither a file nor a directory.
pub(super) fn check_kind(role: &'static str, path: &Path, metadata: &Metadata) -> Result<(), PlanError> {
    let kind = metadata.file_type();
    let found = if kind.is_dir() || kind.is_file() {
        return Ok(());
    } else if kind.is_socket() {
        "a socket"
    } else if kind.is_fifo() {
        "a named pipe"
    } else {
        "a device"
    };
    Err(PlanError::WrongKind {
        role,
        path: Text::from(path),
        found,
    })
}

/// Refuses host paths that no sandbox may have, read-only or not: the whole root, kernel interfaces, our own state.
pub(super) fn check_source(role: &'static str, path: &Path, host: &PlanningHost) -> Result<(), PlanError> {
    let reserved = |reason, hint| PlanError::Reserved {
        role,
        path: Text::from(path),
        reason,
        hint,
    };
    if path == Path::new("/") {
        return Err(reserved(
            "the root directory, with everything on this machine",
            "name the directory that is needed",
        ));
    }
    if KERNEL.iter().any(|kernel| path.starts_with(kernel)) {
        return Err(reserved(
            "an interface of the host's kernel",
            "the sandbox has its own /proc and /dev",
        ));
    }
    if path.starts_with(existing(&host.state_directory)) {
        return Err(reserved(
            "in offleash's own state directory",
            "keep data of sandboxes elsewhere",
        ));
    }
    Ok(())
}

/// Refuses host paths that must not be written from a sandbox as a whole.
pub(super) fn check_writable_source(role: &'static str, path: &Path, host: &PlanningHost) -> Result<(), PlanError> {
    check_source(role, path, host)?;
    let reserved = |reason, hint| PlanError::Reserved {
        role,
        path: Text::from(path),
        reason,
        hint,
    };
    if SYSTEM.iter().any(|system| path == Path::new(system)) || is_beneath_any(path, &["/etc", "/boot"]) {
        return Err(reserved(
            "a directory of the host's system",
            "name a directory of your own",
        ));
    }
    let in_it = match role {
        WORKSPACE => {
            "`cd` to a directory in it, or name one with `--workspace DIR`; with `--no-workspace` there is none"
        }
        _ => "name a directory in it",
    };
    if let Some(home) = &host.home {
        let home = existing(home);
        if home == path {
            return Err(reserved("the home directory", in_it));
        }
        if home.starts_with(path) {
            return Err(reserved("a directory that contains the home directory", in_it));
        }
    }
    if existing(&host.state_directory).starts_with(path) {
        return Err(reserved(
            "a directory that contains offleash's own state",
            "name a directory in it",
        ));
    }
    Ok(())
}

fn is_beneath_any(path: &Path, directories: &[&str]) -> bool {
    directories.iter().any(|directory| path.starts_with(directory))
}

/// The path with the links of its longest existing part resolved.
pub(super) fn existing(path: &Path) -> PathBuf {
    match (fs::canonicalize(path), path.parent(), path.file_name()) {
        (Ok(resolved), ..) => resolved,
        (Err(_), Some(parent), Some(name)) => existing(parent).join(name),
        _ => path.to_path_buf(),
    }
}

/// Checks a path inside that the owner names: absolute, free of `.` and `..`, not the system's own.
pub(super) fn check_target(role: &'static str, target: &Path) -> Result<PathBuf, PlanError> {
    let refuse = |reason: &str, hint| PlanError::Target {
        role,
        path: Text::from(target),
        reason: reason.into(),
        hint,
    };
    if !target.is_absolute() {
        return Err(refuse("is not absolute", "write the path inside from its `/`"));
    }
    // `components()` drops `.`, so that the bytes are looked at.
    let has_dots = target
        .as_os_str()
        .as_bytes()
        .split(|byte| *byte == b'/')
        .any(|name| name == b"." || name == b"..");
    if has_dots || target.as_os_str().as_bytes().contains(&0) {
        return Err(refuse(
            "contains `.`, `..` or a NUL byte",
            "write the path that is meant",
        ));
    }
    let clean: PathBuf = target.components().collect();
    if clean == Path::new("/") {
        return Err(refuse("is the root directory", "name a directory in it"));
    }
    if is_beneath_any(&clean, &KERNEL) {
        return Err(refuse(
            "lies in an interface of the kernel",
            "name a directory elsewhere, such as /mnt/data",
        ));
    }
    if SYSTEM.iter().any(|system| clean == Path::new(system)) {
        return Err(refuse(
            "is a directory of the system",
            "choose one elsewhere, such as /mnt/data; a directory in it has to be there already",
        ));
    }
    Ok(clean)
}

/// Checks that something can be mounted at `target` among `entries` without making anything on the host, and without
/// covering what the sandbox consists of.
pub(super) fn check_place(
    role: &'static str,
    target: &Path,
    directory: bool,
    entries: &[PlanEntry],
) -> Result<(), PlanError> {
    let refuse = |reason: String, hint| PlanError::Target {
        role,
        path: Text::from(target),
        reason,
        hint,
    };
    let beneath = entries
        .iter()
        .find(|entry| entry.target != target && entry.target.starts_with(target));
    if let Some(entry) = beneath {
        let reason = format!("would cover `{}` ({})", Text::from(&entry.target), entry.rule);
        return Err(refuse(reason, "name a directory deeper down, or elsewhere"));
    }
    let Some(above) = target
        .parent()
        .and_then(|parent| PlanView::new(entries).entry_above(parent))
    else {
        return Ok(());
    };
    let rest = target.strip_prefix(&above.target).unwrap_or(Path::new(""));
    match &above.node {
        PlanNode::Tmpfs { .. } | PlanNode::Directory | PlanNode::Home { .. } => Ok(()),
        // What is not there is made, in its layer.
        PlanNode::Base { lower, .. } => match check_mount_point(lower, rest, directory) {
            Err(OTHER_KIND) => Err(refuse(
                format!(
                    "{OTHER_KIND} in the sandbox: a file takes the place of a file, and a directory that of a directory"
                ),
                "choose a target elsewhere, such as /mnt/data",
            )),
            _ => Ok(()),
        },
        node => match source_of(node) {
            Some(source) => check_mount_point(source, rest, directory).map_err(|reason| {
                refuse(
                    format!("{reason} in `{}`", Text::from(&above.target)),
                    "make it there first, or choose a target elsewhere, such as /mnt/data",
                )
            }),
            None => Err(refuse(
                format!(
                    "lies beneath `{}`, which is no directory ({})",
                    Text::from(&above.target),
                    above.rule
                ),
                "choose a target elsewhere, such as /mnt/data",
            )),
        },
    }
}

/// A file where a directory is to be mounted, or the reverse.
const OTHER_KIND: &str = "is of another kind";

fn check_mount_point(source: &Path, rest: &Path, directory: bool) -> Result<(), &'static str> {
    let mut path = source.to_path_buf();
    let mut metadata = None;
    for component in rest.components() {
        if let Component::Normal(name) = component {
            path.push(name);
        }
        let found = fs::symlink_metadata(&path).map_err(|_| "does not exist")?;
        if found.is_symlink() {
            return Err("leads through a symbolic link");
        }
        metadata = Some(found);
    }
    match metadata {
        Some(found) if found.is_dir() != directory => Err(OTHER_KIND),
        _ => Ok(()),
    }
}
