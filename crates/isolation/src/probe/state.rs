//! The state directory: whether runs can be kept there, and overlay layers with them.

use std::path::{Path, PathBuf};

use rustix::fs::{Access, Mode, OFlags, access, open, statvfs};
use rustix::io::Errno;

use super::{FeatureCheck, FeatureRemedy, FeatureStatus, mounts, shown};

/// File systems that cannot hold the upper layer of an overlay
/// (<https://docs.kernel.org/filesystems/overlayfs.html>, "Upper and lower").
const NOT_FOR_LAYERS: [&str; 9] = [
    "overlay",
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "9p",
    "vfat",
    "exfat",
    "fuse.sshfs",
];
/// Below this much free space runs are likely to fail.
const SCARCE_MIB: u64 = 256;

pub(super) fn check(state_directory: &Path) -> FeatureCheck {
    let existing = existing_ancestor(state_directory);
    let shown = shown(state_directory);
    let check = |status, found: String| {
        FeatureCheck::new(
            "state-directory",
            status,
            found,
            "keeping runs, their changes and the audit log",
        )
    };
    if let Err(error) = try_writing(&existing, existing == state_directory) {
        let mend = FeatureRemedy::new(
            "name a directory that this user can write",
            &["export OFFLEASH_STATE=/some/writable/directory"],
        );
        return check(FeatureStatus::Missing, format!("{shown} cannot be written: {error}")).with_mend(Some(mend));
    }
    let resolved = existing.canonicalize().unwrap_or(existing);
    let mounts = mounts::all();
    let kind = mounts::containing(&mounts, &resolved).map_or("unknown", |mount| mount.kind.as_str());
    let found = format!("{shown}, {} MiB free on {kind}", free_mib(&resolved));
    if NOT_FOR_LAYERS.contains(&kind) {
        let mend = FeatureRemedy::new(
            format!(
                "{kind} cannot hold the changes of an overlay; keep the state on a local file system such as ext4, xfs or btrfs"
            ),
            &["export OFFLEASH_STATE=/some/local/directory"],
        );
        return check(FeatureStatus::Limited, found).with_mend(Some(mend));
    }
    if free_mib(&resolved) < SCARCE_MIB {
        let mend = FeatureRemedy::new(
            "little space is left; earlier runs can be discarded",
            &["offleash runs", "offleash discard RUN"],
        );
        return check(FeatureStatus::Limited, found).with_mend(Some(mend));
    }
    check(FeatureStatus::Ok, found)
}

/// The directory itself, or the nearest one above it that exists.
fn existing_ancestor(directory: &Path) -> PathBuf {
    directory
        .ancestors()
        .find(|ancestor| ancestor.exists())
        .unwrap_or(Path::new("/"))
        .to_path_buf()
}

/// Writes a file without a name, which leaves nothing, where runs are kept already; above it, where nothing of ours
/// is, only asks.
fn try_writing(directory: &Path, is_ours: bool) -> Result<(), Errno> {
    access(directory, Access::WRITE_OK | Access::EXEC_OK)?;
    if !is_ours {
        return Ok(());
    }
    match open(
        directory,
        OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC,
        Mode::RUSR | Mode::WUSR,
    ) {
        Ok(file) => rustix::io::write(file, &[0; 4096]).map(drop),
        // Some file systems have no files without a name; then the permission has to do.
        Err(Errno::OPNOTSUPP | Errno::ISDIR) => Ok(()),
        Err(error) => Err(error),
    }
}

fn free_mib(directory: &Path) -> u64 {
    statvfs(directory).map_or(0, |found| found.f_bavail.saturating_mul(found.f_frsize) / (1024 * 1024))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_directory_that_does_not_exist_yet_is_judged_by_the_one_above_it_and_not_made() {
        let above = tempfile::tempdir().unwrap();
        let state = above.path().join("a/b");
        assert_ne!(check(&state).status, FeatureStatus::Missing);
        assert!(!above.path().join("a").exists());
    }

    #[test]
    fn a_directory_that_cannot_be_written_is_missing_with_a_mend() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("state");
        // A file stands in the way, which stops root too; no mode does.
        std::fs::write(&state, "").unwrap();
        let found = check(&state);
        assert_eq!(
            (found.status, found.mend.is_some()),
            (FeatureStatus::Missing, true),
            "{found:?}"
        );

        if !rustix::process::geteuid().is_root() {
            std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o555)).unwrap();
            assert_eq!(check(&directory.path().join("other")).status, FeatureStatus::Missing);
            std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        }
    }
}
