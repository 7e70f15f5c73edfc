//! The directories of a host tree without what is in them, so that they belong to us.

use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, Timespec, Timestamps};
use rustix::io::Errno;

use super::BaseError;

/// Directories in one another; a system has a few dozen.
const DEEPEST: usize = 128;

/// Copies the directories at and below `from` to `to`, which must not exist, with their modes and times.
///
/// What may not be read is left out, with what is in it: it could not be shown together with it. Modes lose the setgid
/// bit, since the group is another one.
///
/// # Errors
/// When a directory cannot be made.
pub(super) fn copy(from: &Path, to: &Path) -> Result<(), BaseError> {
    let source = open(CWD.as_fd(), from).map_err(|error| BaseError::at("opening", from)(error.into()))?;
    let copied = rustix::fs::mkdir(to, Mode::RWXU)
        .and_then(|()| open(CWD.as_fd(), to))
        .map_err(io::Error::from)
        .and_then(|made| fill(source.as_fd(), made.as_fd(), 0));
    copied.map_err(BaseError::at("copying the directories of", from))
}

/// Copies the regular files in the directory `from`, and none of those below it, to the directory `to`, if both are there.
/// Of what may not be read the copy is empty: locks, to which nothing is written.
///
/// # Errors
/// When a file cannot be made.
pub(super) fn copy_files(from: &Path, to: &Path) -> Result<(), BaseError> {
    if !to.is_dir() {
        return Ok(());
    }
    for found in fs::read_dir(from).into_iter().flatten().flatten() {
        let (path, copy) = (found.path(), to.join(found.file_name()));
        let Some(metadata) = found.metadata().ok().filter(std::fs::Metadata::is_file) else {
            continue;
        };
        let contents = fs::read(&path).unwrap_or_default();
        let permissions = Permissions::from_mode((metadata.mode() & 0o777) | 0o600);
        let copied = fs::write(&copy, contents).and_then(|()| fs::set_permissions(&copy, permissions));
        copied.map_err(BaseError::at("copying", &path))?;
    }
    Ok(())
}

fn open(parent: BorrowedFd<'_>, name: impl rustix::path::Arg) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty())
}

fn fill(from: BorrowedFd<'_>, to: BorrowedFd<'_>, depth: usize) -> io::Result<()> {
    let stat = rustix::fs::fstat(from)?;
    for entry in Dir::read_from(from)? {
        let entry = entry?;
        let name = entry.file_name();
        if depth >= DEEPEST || name == c"." || name == c".." || !is_directory(from, &entry)? {
            continue;
        }
        let source = match open(from, name) {
            // Closed to us, or gone meanwhile.
            Err(Errno::ACCESS | Errno::PERM | Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
            opened => opened?,
        };
        rustix::fs::mkdirat(to, name, Mode::RWXU)?;
        fill(source.as_fd(), open(to, name)?.as_fd(), depth + 1)?;
    }
    // At last, since making something in it would change its times.
    finish(to, &stat)
}

fn is_directory(parent: BorrowedFd<'_>, entry: &rustix::fs::DirEntry) -> io::Result<bool> {
    match entry.file_type() {
        FileType::Unknown => match rustix::fs::statat(parent, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(FileType::from_raw_mode(stat.st_mode) == FileType::Directory),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        },
        kind => Ok(kind == FileType::Directory),
    }
}

fn finish(made: BorrowedFd<'_>, like: &Stat) -> io::Result<()> {
    rustix::fs::fchmod(made, Mode::from_raw_mode(like.st_mode & 0o1777 | 0o700))?;
    let time = |seconds, nanoseconds: u64| Timespec {
        tv_sec: seconds,
        tv_nsec: i64::try_from(nanoseconds).unwrap_or(0),
    };
    let times = Timestamps {
        last_access: time(like.st_atime, like.st_atime_nsec),
        last_modification: time(like.st_mtime, like.st_mtime_nsec),
    };
    Ok(rustix::fs::futimens(made, &times)?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn directories_are_copied_with_modes_and_times_and_nothing_else_is() {
        let scratch = tempfile::tempdir().unwrap();
        let (from, to) = (scratch.path().join("from"), scratch.path().join("to"));
        fs::create_dir_all(from.join("a/b")).unwrap();
        fs::write(from.join("a/file"), "x").unwrap();
        symlink("/etc", from.join("link")).unwrap();
        fs::set_permissions(from.join("a"), fs::Permissions::from_mode(0o2755)).unwrap();
        fs::set_permissions(from.join("a/b"), fs::Permissions::from_mode(0o555)).unwrap();
        copy(&from, &to).unwrap();
        let names: Vec<_> = fs::read_dir(&to)
            .unwrap()
            .map(|found| found.unwrap().file_name())
            .collect();
        assert_eq!(names, ["a"]);
        assert_eq!(fs::read_dir(to.join("a")).unwrap().count(), 1);
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
        assert_eq!((mode(&to.join("a")), mode(&to.join("a/b"))), (0o755, 0o755));
        let time = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
        assert_eq!(time(&from.join("a")), time(&to.join("a")));
        assert!(copy(&from, &to).is_err(), "it exists");
    }
}
