//! File systems of this machine: what is mounted where, and whether overlays can be made.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::{FsOpenFlags, fsopen};

use super::kernel::{self, KernelVersion, OVERLAY_IN_USER_NAMESPACE};
use super::{FeatureCheck, FeatureRemedy, FeatureStatus};

/// One mount of this process's namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProbedMount {
    /// Where it is.
    pub(super) target: PathBuf,
    /// The file system's name.
    pub(super) kind: String,
}

/// All mounts that this process sees, in mount order.
pub(super) fn all() -> Vec<ProbedMount> {
    // The file holds no byte outside ASCII that matters here, and a path that is not UTF-8 must not hide the others.
    let text = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    text.split(|byte| *byte == b'\n').filter_map(parse).collect()
}

/// The mount that `path` is in: the last one whose target is the longest that `path` is below.
pub(super) fn containing<'a>(mounts: &'a [ProbedMount], path: &Path) -> Option<&'a ProbedMount> {
    mounts
        .iter()
        .filter(|mount| path.starts_with(&mount.target))
        .max_by_key(|mount| mount.target.as_os_str().len())
}

/// One line of mountinfo (proc_pid_mountinfo(5)): optional fields end at a lone hyphen.
fn parse(line: &[u8]) -> Option<ProbedMount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let target = path(fields.nth(4)?);
    let mut fields = fields.skip_while(|field| field != b"-").skip(1);
    let kind = String::from_utf8_lossy(fields.next()?).into_owned();
    Some(ProbedMount { target, kind })
}

/// A path in which blanks and backslashes are written as three octal digits.
fn path(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, after)) = rest.split_first() {
        let octal = (first == b'\\').then(|| after.first_chunk::<3>()).flatten();
        let byte = octal.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(byte.unwrap_or(first));
        rest = if byte.is_some() { &after[3..] } else { after };
    }
    OsString::from_vec(bytes).into()
}

/// Overlays in a user namespace, which hold what a run changes in its workspace.
pub(super) fn overlay() -> FeatureCheck {
    let needed_for = "the workspace as an overlay: `diff`, `apply`, `discard`";
    let is_new_enough = KernelVersion::running().is_some_and(|running| running >= OVERLAY_IN_USER_NAMESPACE);
    if !is_new_enough {
        let mend = FeatureRemedy::new(format!("Linux {OVERLAY_IN_USER_NAMESPACE} or newer allows them"), &[]);
        let check = FeatureCheck::new(
            "overlayfs",
            FeatureStatus::Missing,
            "not allowed in user namespaces by this kernel",
            needed_for,
        );
        return check.with_mend(Some(mend));
    }
    match find_overlay() {
        Some(found) => FeatureCheck::new("overlayfs", FeatureStatus::Ok, found, needed_for),
        None => FeatureCheck::new(
            "overlayfs",
            FeatureStatus::Missing,
            "not in this kernel and not among its modules",
            needed_for,
        )
        .with_mend(Some(FeatureRemedy::new(
            "the module comes with the distribution's kernel; this loads it",
            &["sudo modprobe overlay"],
        ))),
    }
}

fn find_overlay() -> Option<&'static str> {
    // Root can try; everyone else is refused before the kernel looks for the file system.
    match fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC) {
        Ok(_) => return Some("the kernel opened one"),
        Err(Errno::NODEV) => return None,
        Err(_) => {}
    }
    let registered = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    if registered.split_whitespace().any(|name| name == "overlay") {
        return Some("registered in the kernel");
    }
    let modules = format!("/lib/modules/{}/kernel/fs/overlayfs", kernel::release());
    Path::new(&modules).is_dir().then_some("a module, loaded at first use")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_lines_are_read_with_and_without_optional_fields() {
        let plain = b"36 35 98:0 /mnt1 /mnt2 rw,noatime - ext3 /dev/root rw,errors=continue";
        let shared = b"36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 shared:7 - ext3 /dev/root rw,errors=continue";
        for line in [&plain[..], &shared[..]] {
            let mount = parse(line).unwrap();
            assert_eq!((mount.target.to_str(), mount.kind.as_str()), (Some("/mnt2"), "ext3"));
        }
        assert_eq!(parse(b""), None);
        assert_eq!(parse(b"36 35 98:0 /mnt1"), None);
    }

    #[test]
    fn escaped_bytes_in_paths_are_undone() {
        for (field, expected) in [
            (&br"/a\040b"[..], "/a b"),
            (br"/a\134b", r"/a\b"),
            (br"/a\9", r"/a\9"),
            (br"/a\", r"/a\"),
        ] {
            assert_eq!(path(field), Path::new(expected));
        }
    }

    #[test]
    fn the_deepest_and_latest_mount_contains_a_path() {
        let mount = |target: &str, kind: &str| ProbedMount {
            target: target.into(),
            kind: kind.to_owned(),
        };
        let mounts = [
            mount("/", "ext4"),
            mount("/home", "btrfs"),
            mount("/home", "nfs4"),
            mount("/ho", "xfs"),
        ];
        for (path, kind) in [("/home/a", "nfs4"), ("/homes", "ext4"), ("/ho/a", "xfs"), ("/", "ext4")] {
            assert_eq!(containing(&mounts, Path::new(path)).unwrap().kind, kind, "{path}");
        }
    }

    #[test]
    fn this_process_has_a_root_mount() {
        assert!(containing(&all(), Path::new("/")).is_some());
    }
}
