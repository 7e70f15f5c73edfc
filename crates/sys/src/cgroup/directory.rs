//! One directory of a control group file system, held open: its small files are read and written relative to it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir};

use super::error::CgroupError;

/// A directory held by a descriptor that can neither be read nor written by itself (`O_PATH`).
#[derive(Debug)]
pub(super) struct GroupDirectory {
    fd: OwnedFd,
    path: PathBuf,
}

impl GroupDirectory {
    /// Opens `path`, which is not a symbolic link.
    pub(super) fn open(path: PathBuf) -> Result<Self, CgroupError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::open(&path, flags, Mode::empty()) {
            Ok(fd) => Ok(Self { fd, path }),
            Err(errno) => Err(CgroupError::io("opening", path, errno)),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(super) fn has(&self, file: &str) -> bool {
        rustix::fs::accessat(&self.fd, file, rustix::fs::Access::EXISTS, AtFlags::empty()).is_ok()
    }

    /// Opens a file for writing.
    pub(super) fn open_to_write(&self, file: &str) -> Result<OwnedFd, CgroupError> {
        self.open_file(file, OFlags::WRONLY)
            .map_err(|errno| CgroupError::io("opening", self.path.join(file), errno))
    }

    /// Writes `value` with one call, as these files demand.
    pub(super) fn write(&self, file: &str, value: &str) -> Result<(), CgroupError> {
        let fail = |errno| CgroupError::io("writing", self.path.join(file), errno);
        let fd = self.open_file(file, OFlags::WRONLY).map_err(fail)?;
        rustix::io::write(&fd, value.as_bytes()).map_err(fail)?;
        Ok(())
    }

    /// Writes a number without an allocation on the way.
    pub(super) fn write_number(&self, file: &str, value: u64) -> Result<(), CgroupError> {
        self.write(file, &value.to_string())
    }

    /// The whole text of a file that holds one record, as all but the lists of processes do.
    ///
    /// Of such a file the kernel gives as much as there is room for (`seq_file`), so a piece that leaves room is the last.
    pub(super) fn read(&self, file: &str) -> Result<String, CgroupError> {
        self.read_pieces(file, |piece, room| piece < room)
    }

    /// The whole text of a list, of which the kernel may give less than there is room for before its end.
    pub(super) fn read_list(&self, file: &str) -> Result<String, CgroupError> {
        self.read_pieces(file, |piece, _| piece == 0)
    }

    fn read_pieces(&self, file: &str, is_last: impl Fn(usize, usize) -> bool) -> Result<String, CgroupError> {
        let fail = |errno| CgroupError::io("reading", self.path.join(file), errno);
        let fd = self.open_file(file, OFlags::RDONLY).map_err(fail)?;
        let mut text = Vec::new();
        loop {
            text.reserve(4096);
            let room = text.capacity() - text.len();
            match rustix::io::read(&fd, rustix::buffer::spare_capacity(&mut text)) {
                Ok(piece) if is_last(piece, room) => break,
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(fail(errno)),
            }
        }
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// The number that a file holds; `max` and negative numbers (no limit) are `None`.
    pub(super) fn read_limit(&self, file: &str) -> Result<Option<u64>, CgroupError> {
        let text = self.read(file)?;
        match text.trim() {
            "max" => Ok(None),
            negative if negative.starts_with('-') => Ok(None),
            number => number.parse().map(Some).map_err(|_| self.unexpected(file, &text)),
        }
    }

    /// The number that a file holds.
    pub(super) fn read_number(&self, file: &str) -> Result<u64, CgroupError> {
        let text = self.read(file)?;
        text.trim().parse().map_err(|_| self.unexpected(file, &text))
    }

    /// [`Self::read_number`], or `None` when this kernel has no such file.
    pub(super) fn read_number_if_there(&self, file: &str) -> Result<Option<u64>, CgroupError> {
        match self.read_number(file) {
            Ok(number) => Ok(Some(number)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The number behind `key` in a file of `key value` lines; `None` when there is no such line.
    pub(super) fn read_keyed(&self, file: &str, key: &str) -> Result<Option<u64>, CgroupError> {
        let text = self.read(file)?;
        keyed(&text, key).transpose().map_err(|()| self.unexpected(file, &text))
    }

    pub(super) fn unexpected(&self, file: &str, text: &str) -> CgroupError {
        CgroupError::Text {
            path: self.path.join(file),
            text: text.chars().take(80).collect(),
        }
    }

    /// The names of the groups directly below.
    pub(super) fn children(&self) -> Result<Vec<String>, CgroupError> {
        let fail = |errno| CgroupError::io("listing", &self.path, errno);
        let fd = self.open_file(".", OFlags::RDONLY | OFlags::DIRECTORY).map_err(fail)?;
        let mut names = Vec::new();
        let mut buffer = Vec::with_capacity(8192);
        let mut entries = RawDir::new(fd, buffer.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(fail)?;
            let name = entry.file_name().to_string_lossy();
            if entry.file_type() == FileType::Directory && name != "." && name != ".." {
                names.push(name.into_owned());
            }
        }
        Ok(names)
    }

    /// The ids in `cgroup.procs`; processes outside of our pid namespace, which read as 0, are left out.
    pub(super) fn processes(&self) -> Result<Vec<i32>, CgroupError> {
        let text = self.read_list("cgroup.procs")?;
        Ok(text
            .lines()
            .filter_map(|line| line.trim().parse().ok())
            .filter(|pid| *pid > 0)
            .collect())
    }

    fn open_file(&self, file: &str, access: OFlags) -> rustix::io::Result<OwnedFd> {
        rustix::fs::openat(
            &self.fd,
            file,
            access | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
        )
    }
}

/// The number behind `key` in `key value` lines; `Err` when it is no number.
pub(super) fn keyed(text: &str, key: &str) -> Option<Result<u64, ()>> {
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))?;
    Some(value.trim().parse().map_err(|_| ()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_matched_as_a_whole_word() {
        let text = "oom 3\noom_kill 5\nmax x\n";
        assert_eq!(keyed(text, "oom"), Some(Ok(3)));
        assert_eq!(keyed(text, "oom_kill"), Some(Ok(5)));
        assert_eq!(keyed(text, "max"), Some(Err(())));
        assert_eq!(keyed(text, "low"), None);
    }
}
