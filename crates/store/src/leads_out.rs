//! Whether a symbolic link leads out of the workspace, to where the sandbox did not see what the host has.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use offleash_core::text::Text;
use rustix::fs::{Mode, OFlags};

use crate::tree::magic_link;

/// A path of the host that a sandbox had, or had something else at, or nothing.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct HostPath {
    /// The path, resolved, with everything beneath.
    pub path: Text,
    /// Whether what the host has there was there inside at the same path, and could not be written.
    pub is_seen: bool,
}

/// Whether the link at `path` below `root` leads, or may lead, out of it, to what is not `seen`.
///
/// Within the workspace it is judged by its text alone. `..` is counted from the link's own directory, which is a real one.
/// After a name it is taken for leaving, because that name may be another link. What the sandbox saw of the host it could
/// not write, so that links there are the host's own, and may be followed: they must end in what it saw, too.
pub(crate) fn leads_out(root: &Path, path: &Path, target: &Path, seen: &[HostPath]) -> bool {
    match beyond(root, path, target) {
        Ok(()) => false,
        Err(None) => true,
        Err(Some(outside)) => !(is_seen(&outside, seen) && resolved(&outside).is_some_and(|end| is_seen(&end, seen))),
    }
}

/// Where the link leads outside of `root`, if that can be told; `Ok` if it leads into it.
fn beyond(root: &Path, path: &Path, target: &Path) -> Result<(), Option<PathBuf>> {
    let is_parent = |component: &Component<'_>| *component == Component::ParentDir;
    let mut names = target
        .components()
        .filter(|component| *component != Component::CurDir)
        .peekable();
    let mut whole = PathBuf::new();
    if !target.is_absolute() {
        whole.push(root);
        whole.extend(path.parent());
        while names.next_if(is_parent).is_some() {
            whole.pop();
        }
    }
    let rest: PathBuf = names.collect();
    if rest.components().any(|name| is_parent(&name)) {
        return Err(None);
    }
    // Nothing joined would end it in a slash.
    if !rest.as_os_str().is_empty() {
        whole.push(rest);
    }
    if whole.starts_with(root) {
        Ok(())
    } else {
        Err(Some(whole))
    }
}

/// Whether the innermost path that is known there is one that was seen.
fn is_seen(path: &Path, seen: &[HostPath]) -> bool {
    let around = seen.iter().filter(|known| path.starts_with(known.path.as_path()));
    let innermost = around.max_by_key(|known| known.path.as_path().components().count());
    innermost.is_some_and(|known| known.is_seen)
}

/// What the host has at `path`, by its own links; nothing is opened but as a place.
fn resolved(path: &Path) -> Option<PathBuf> {
    let place = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let found = rustix::fs::readlink(magic_link(&place), Vec::new()).ok()?;
    Some(PathBuf::from(OsString::from_vec(found.into_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_that_could_lead_out_are_recognised() {
        for (path, target, out) in [
            ("a", "b", false),
            ("a", "b/c", false),
            ("a", "./b", false),
            ("d/a", "../b", false),
            ("d/e/a", "../../b", false),
            ("a", "", false),
            ("a", "..", true),
            ("a", "../x", true),
            ("d/a", "../../x", true),
            ("a", "b/../c", true),
            ("a", "b/../../c", true),
            ("a", "../space/b", false),
            ("a", "../spaceship", true),
            ("a", "/etc/passwd", true),
            ("a", "/", true),
            ("a", "/work/space", false),
            ("a", "/work/space/b", false),
            ("a", "/work/space/../b", true),
            ("a", "/work/spaceship", true),
        ] {
            assert_eq!(
                leads_out(Path::new("/work/space"), Path::new(path), Path::new(target), &[]),
                out,
                "{path} -> {target}"
            );
        }
    }

    #[test]
    fn links_to_what_was_seen_of_the_host_do_not_lead_out() {
        use std::os::unix::fs::symlink;

        let directory = tempfile::tempdir().unwrap();
        let base = directory.path().canonicalize().unwrap();
        let at = |path: &str| base.join(path);
        for path in ["work", "seen/hidden", "secret"] {
            std::fs::create_dir_all(at(path)).unwrap();
        }
        for path in ["seen/program", "seen/hidden/key", "secret/key"] {
            std::fs::write(at(path), "").unwrap();
        }
        symlink("program", at("seen/link")).unwrap();
        symlink(at("secret"), at("seen/door")).unwrap();
        let known = |path, is_seen| HostPath {
            path: Text::from(at(path)),
            is_seen,
        };
        let seen = [known("seen", true), known("seen/hidden", false)];
        for (target, out) in [
            ("seen/program", false),
            ("seen/link", false),
            ("seen", false),
            ("seen/nothing", true),
            ("seen/hidden/key", true),
            ("seen/hidden", true),
            ("seen/door/key", true),
            ("seen/../secret/key", true),
            ("seenx", true),
            ("secret/key", true),
        ] {
            let absolute = leads_out(&at("work"), Path::new("a/link"), &at(target), &seen);
            let relative = Path::new("../..").join(target);
            let relative = leads_out(&at("work"), Path::new("a/link"), &relative, &seen);
            assert_eq!((absolute, relative), (out, out), "{target}");
        }
    }
}
