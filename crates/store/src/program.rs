//! A program of ours as a file of the state directory, so that all who execute it share its pages.

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use offleash_core::id::RunId;
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::state::StateDirectory;

/// Readable and executable for everybody who is given it, and writable for nobody.
const PROGRAM: Mode = Mode::from_raw_mode(0o555);

/// How the names of all programs begin.
const PROGRAMS: &str = "offleash-";

/// For how long what another build made is left alone, in seconds.
const KEPT_FOR: i64 = 24 * 60 * 60;

fn seconds_since_1970() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_secs()).unwrap_or(i64::MAX)
}

impl StateDirectory {
    /// The file `name` with `contents`, a program, made when it is not there; `maker` tells whoever makes it at the same
    /// time apart. `None` where files of the state directory cannot be executed.
    ///
    /// `name` has to say which contents they are: a file that is there is only looked at from outside. It belongs to the
    /// directory's owner, who is trusted with all that is in it.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn program(&self, name: &str, contents: &[u8], maker: &RunId) -> io::Result<Option<PathBuf>> {
        let flags = rustix::fs::fstatvfs(&self.root)?.f_flag;
        if flags.contains(rustix::fs::StatVfsMountFlags::NOEXEC) {
            return Ok(None);
        }
        if !self.has_program(name, contents.len()) {
            self.make_program(name, contents, maker)?;
            self.forget_programs_but(name);
        }
        Ok(Some(self.path().join(name)))
    }

    fn has_program(&self, name: &str, length: usize) -> bool {
        rustix::fs::statat(&self.root, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|found| {
            let mode = rustix::fs::Mode::from_raw_mode(found.st_mode);
            rustix::fs::FileType::from_raw_mode(found.st_mode).is_file()
                && mode == PROGRAM
                && found.st_uid == rustix::process::geteuid().as_raw()
                && u64::try_from(found.st_size).is_ok_and(|size| size == length as u64)
        })
    }

    /// Under another name first, so that nobody finds a part of it; on the disk before it has its name, so that no crash
    /// of the machine leaves a part of it either.
    fn make_program(&self, name: &str, contents: &[u8], maker: &RunId) -> io::Result<()> {
        let new = format!("{name}.{maker}");
        let made = self.write_program(&new, contents);
        let made = made.and_then(|()| self.place_program(&new, name, contents.len()));
        // It has its name, or what failed is what is told.
        let _removed = rustix::fs::unlinkat(&self.root, &*new, AtFlags::empty());
        made
    }

    /// Gives `new` its name, unless somebody else was faster: the kernel mounts no file that was replaced meanwhile.
    fn place_program(&self, new: &str, name: &str, length: usize) -> io::Result<()> {
        match rustix::fs::renameat_with(&self.root, new, &self.root, name, RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) if self.has_program(name, length) => Ok(()),
            // What is there is not what was made; or this file system cannot look before it renames.
            Err(Errno::EXIST | Errno::INVAL) => Ok(rustix::fs::renameat(&self.root, new, &self.root, name)?),
            renamed => Ok(renamed?),
        }
    }

    /// Removes what other builds made, or did not finish, unless they might be about to execute it: all that share what is
    /// before the last `-` of the name. Who executes one of them now keeps it, and who needs it again makes it again.
    fn forget_programs_but(&self, name: &str) {
        let Some(kind) = name.rfind('-').and_then(|end| name.get(..=end)) else {
            return;
        };
        let is_another = |found: &PathBuf| {
            let found = found.to_str();
            found.is_some_and(|found| found != name && found.starts_with(kind))
        };
        let is_old = |found: &PathBuf| {
            let stat = rustix::fs::statat(&self.root, found, AtFlags::SYMLINK_NOFOLLOW);
            stat.is_ok_and(|stat| seconds_since_1970() - stat.st_mtime > KEPT_FOR)
        };
        let names = crate::skeleton::names_of(&self.root, ".").unwrap_or_default();
        for found in names.iter().filter(|found| is_another(found) && is_old(found)) {
            // One that stays costs its size.
            let _removed = rustix::fs::unlinkat(&self.root, found, AtFlags::empty());
        }
    }

    /// Removes what `maker`, which is dead, had begun to make.
    pub(crate) fn forget_unfinished_programs(&self, maker: &RunId) {
        let end = format!(".{maker}");
        let names = crate::skeleton::names_of(&self.root, ".").unwrap_or_default();
        let is_its = |found: &&PathBuf| {
            found
                .to_str()
                .is_some_and(|found| found.starts_with(PROGRAMS) && found.ends_with(&end))
        };
        for found in names.iter().filter(is_its) {
            let _removed = rustix::fs::unlinkat(&self.root, found, AtFlags::empty());
        }
    }

    fn write_program(&self, name: &str, contents: &[u8]) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.root, name, flags, Mode::RUSR | Mode::WUSR)?;
        let mut file = std::fs::File::from(file);
        file.write_all(contents)?;
        rustix::fs::fchmod(&file, PROGRAM)?;
        file.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;

    use super::*;
    use crate::testing::*;

    fn program(scratch: &TestScratch, name: &str, contents: &[u8]) -> Option<PathBuf> {
        scratch.state.program(name, contents, &fresh_id()).unwrap()
    }

    /// As the machine's clock says it was then.
    fn age(path: &Path, seconds: u64) {
        let then = SystemTime::now() - std::time::Duration::from_secs(seconds);
        let file = fs::File::open(path).unwrap();
        file.set_times(fs::FileTimes::new().set_modified(then)).unwrap();
    }

    #[test]
    fn a_program_is_made_once_and_can_be_changed_by_nobody() {
        let scratch = TestScratch::new();
        let Some(path) = program(&scratch, "guest-1", b"x") else {
            return; // Temporary files cannot be executed here.
        };
        assert_eq!(fs::read(&path).unwrap(), b"x");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o555);
        let inode = |path: &Path| std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap());
        let first = inode(&path);
        assert_eq!(program(&scratch, "guest-1", b"y"), Some(path.clone()));
        assert_eq!(inode(&path), first);
    }

    #[test]
    fn what_a_dead_maker_had_begun_is_removed() {
        let scratch = TestScratch::new();
        let (dead, other) = (fresh_id(), fresh_id());
        let root = scratch.state.path();
        let left = |maker: &RunId| root.join(format!("offleash-guest-1.{maker}"));
        for maker in [&dead, &other] {
            fs::write(left(maker), "part").unwrap();
        }
        scratch.state.forget_unfinished_programs(&dead);
        assert!(!left(&dead).exists() && left(&other).exists());
    }

    #[test]
    fn what_is_not_as_it_was_made_is_made_anew() {
        let scratch = TestScratch::new();
        let Some(path) = program(&scratch, "guest-1", b"long") else {
            return;
        };
        let writable = || fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let cut = || {
            fs::remove_file(&path).unwrap();
            fs::write(&path, b"cut").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o555)).unwrap();
        };
        let linked = || {
            fs::remove_file(&path).unwrap();
            std::os::unix::fs::symlink("/bin/true", &path).unwrap();
        };
        let spoils: [&dyn Fn(); 3] = [&writable, &cut, &linked];
        for spoil in spoils {
            spoil();
            assert_eq!(program(&scratch, "guest-1", b"long"), Some(path.clone()));
            assert_eq!(fs::read(&path).unwrap(), b"long");
            assert!(fs::symlink_metadata(&path).unwrap().is_file());
        }
    }

    #[test]
    fn programs_of_other_builds_go_when_they_are_old() {
        let scratch = TestScratch::new();
        let Some(old) = program(&scratch, "guest-1", b"x") else {
            return;
        };
        let young = program(&scratch, "guest-2", b"x").unwrap();
        let other = scratch.state.path().join("audit.jsonl");
        fs::write(&other, "").unwrap();
        age(&old, 90_000);
        age(&other, 90_000);
        let newest = program(&scratch, "guest-3", b"x").unwrap();
        assert!(!old.exists());
        assert!(young.exists() && newest.exists() && other.exists());
    }
}
