//! Where files from a sandbox arrive.
//!
//! All is named by one name from a directory that is held open, so that no link leads out of it, whether it was there
//! before or came meanwhile. A file has its name only once it is whole. What may come in all is bounded. Deliberately not
//! here: what is asked of the sandbox.

use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use offleash_core::text::Text;
use offleash_core::units::Bytes;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, mkdirat, openat, renameat, statat, unlinkat};
use rustix::io::Errno;

use super::copy::here;
use crate::failure::Failure;

/// Zeros are left out as holes in pieces of this many bytes, a block of most file systems.
const BLOCK: usize = 4096;
/// What a name costs, so that empty files and directories do not come without end.
const ENTRY: u64 = 4096;
/// How many names of files that are not whole yet are tried.
const ATTEMPTS: u32 = 1000;

/// What may still come, in bytes.
#[derive(Debug)]
pub(super) struct Budget {
    most: Bytes,
    left: u64,
    is_spent: bool,
}

impl Budget {
    pub(super) fn new(most: Bytes) -> Self {
        Self {
            most,
            left: most.0,
            is_spent: false,
        }
    }

    /// Counts a file or a directory of a directory.
    pub(super) fn take_entry(&mut self) -> Result<(), Failure> {
        self.take(ENTRY).map_err(|_| self.spent())
    }

    fn take(&mut self, bytes: u64) -> io::Result<()> {
        let Some(left) = self.left.checked_sub(bytes) else {
            self.is_spent = true;
            return Err(io::ErrorKind::QuotaExceeded.into());
        };
        self.left = left;
        Ok(())
    }

    fn spent(&self) -> Failure {
        Failure::new(format!("what is copied comes to more than {}", self.most))
            .with_hint("if that is to be expected, allow more with `--max-bytes`")
    }
}

/// A directory here, held open.
#[derive(Debug)]
pub(super) struct Directory {
    descriptor: OwnedFd,
    /// For messages.
    path: PathBuf,
}

impl Directory {
    /// The directory that a person named, by way of links if they named those.
    pub(super) fn open(path: &Path) -> Result<Self, Failure> {
        let path = if path.as_os_str().is_empty() {
            Path::new(".")
        } else {
            path
        };
        let opened = openat(CWD, path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        Ok(Self {
            descriptor: opened.map_err(|error| failed("open", path, error))?,
            path: path.to_owned(),
        })
    }

    /// The directory `name` in this one, which is made unless it is there. A link is none.
    pub(super) fn directory(&self, name: &str) -> Result<Self, Failure> {
        let path = self.path.join(name);
        match mkdirat(&self.descriptor, name, Mode::from_raw_mode(0o777)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(failed("make", &path, error)),
        }
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = openat(&self.descriptor, name, flags, Mode::empty());
        Ok(Self {
            descriptor: opened.map_err(|error| failed("open the directory", &path, error))?,
            path,
        })
    }

    /// The file `name` in this directory with what `fill` writes; what was there stays as it was until that is whole.
    ///
    /// # Errors
    /// Those of `fill`; that it is more than `budget` allows; that something is there that is no regular file.
    pub(super) fn file<E: Into<Failure>>(
        &self,
        name: &str,
        budget: &mut Budget,
        fill: impl FnOnce(&mut Arriving<'_>) -> Result<(), E>,
    ) -> Result<(), Failure> {
        let path = self.path.join(name);
        let mode = self.mode_of(name, &path)?;
        let (file, partial) = self.partial(&path)?;
        let mut arriving = Arriving {
            file,
            length: 0,
            budget,
        };
        let filled = fill(&mut arriving);
        let Arriving { file, length, budget } = arriving;
        if budget.is_spent {
            return Err(budget.spent());
        }
        filled.map_err(Into::into)?;
        // Zeros at the end were not written.
        file.set_len(length).map_err(|error| here("write", &path, &error))?;
        if let Some(mode) = mode {
            let kept = file.set_permissions(Permissions::from_mode(mode));
            kept.map_err(|error| here("set the mode of", &path, &error))?;
        }
        renameat(&self.descriptor, &partial.name, &self.descriptor, name).map_err(|error| failed("write", &path, error))
    }

    /// Lets whoever may read the file `name` run it, or nobody.
    pub(super) fn set_executable(&self, name: &str, is_executable: bool) -> Result<(), Failure> {
        let path = self.path.join(name);
        let Some(mode) = self.mode_of(name, &path)? else {
            return Ok(());
        };
        let wanted = match is_executable {
            true => mode | (mode & 0o444) >> 2,
            false => mode & !0o111,
        };
        if wanted == mode {
            return Ok(());
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = openat(&self.descriptor, name, flags, Mode::empty());
        let opened = opened.map_err(|error| failed("open", &path, error))?;
        rustix::fs::fchmod(opened, Mode::from_raw_mode(wanted)).map_err(|error| failed("set the mode of", &path, error))
    }

    /// Removes the file or the empty directory `name`.
    pub(super) fn remove(&self, name: &str, is_directory: bool) -> Result<(), Failure> {
        let flags = if is_directory {
            AtFlags::REMOVEDIR
        } else {
            AtFlags::empty()
        };
        match unlinkat(&self.descriptor, name, flags) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(failed("remove", &self.path.join(name), error)),
        }
    }

    /// The permissions of the file that is there; `None` if nothing is.
    fn mode_of(&self, name: &str, path: &Path) -> Result<Option<u32>, Failure> {
        match statat(&self.descriptor, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode).is_file() => Ok(Some(stat.st_mode & 0o777)),
            Ok(_) => Err(Failure::new(format!(
                "cannot write `{}`: something is there that is no file",
                Text::from(path)
            ))
            .with_hint("links are not followed; name a file, or a directory for it")),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(failed("examine", path, error)),
        }
    }

    /// A file of a name that nothing has, for what is not whole yet.
    fn partial(&self, path: &Path) -> Result<(File, Partial<'_>), Failure> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut attempt = 0;
        loop {
            let name = format!(".offleash-cp-{}-{attempt}", std::process::id());
            match openat(&self.descriptor, &*name, flags, Mode::from_raw_mode(0o666)) {
                Ok(file) => return Ok((file.into(), Partial { directory: self, name })),
                Err(Errno::EXIST) if attempt < ATTEMPTS => attempt += 1,
                Err(error) => return Err(failed("write", path, error)),
            }
        }
    }
}

/// A file that is removed unless it got its own name.
#[derive(Debug)]
struct Partial<'a> {
    directory: &'a Directory,
    name: String,
}

impl Drop for Partial<'_> {
    fn drop(&mut self) {
        // It is not there any more once it has its own name.
        let _gone = unlinkat(&self.directory.descriptor, &self.name, AtFlags::empty());
    }
}

/// A new file that is being written. Zeros are holes in it, but count.
#[derive(Debug)]
pub(super) struct Arriving<'a> {
    file: File,
    length: u64,
    budget: &'a mut Budget,
}

impl Write for Arriving<'_> {
    /// Writes as far as blocks are of one kind: all of them zeros, or none.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let offset = usize::try_from(self.length % BLOCK as u64).unwrap_or_default();
        let mut end = bytes.len().min(BLOCK - offset);
        let (first, rest) = bytes.split_at(end);
        let is_hole = is_zero(first);
        let alike = rest.chunks(BLOCK).take_while(|block| is_zero(block) == is_hole);
        end += alike.map(<[u8]>::len).sum::<usize>();
        self.budget.take(end as u64)?;
        if !is_hole {
            self.file
                .write_all_at(bytes.get(..end).unwrap_or_default(), self.length)?;
        }
        self.length += end as u64;
        Ok(end)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

fn failed(action: &str, path: &Path, error: Errno) -> Failure {
    here(action, path, &error.into())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, symlink};

    use super::*;

    fn write(directory: &Directory, name: &str, budget: &mut Budget, pieces: &[&[u8]]) -> Result<(), Failure> {
        directory.file(name, budget, |arriving| {
            pieces
                .iter()
                .try_for_each(|piece| arriving.write_all(piece))
                .map_err(|error| Failure::new(error.to_string()))
        })
    }

    fn names(path: &Path) -> Vec<String> {
        let entries = fs::read_dir(path).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn no_link_leads_out_of_the_directory() {
        let site = tempfile::tempdir().unwrap();
        let (out, outside) = (site.path().join("out"), site.path().join("outside"));
        fs::create_dir(&out).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("file"), "mine").unwrap();
        symlink(&outside, out.join("directory")).unwrap();
        symlink(outside.join("file"), out.join("file")).unwrap();
        symlink(outside.join("new"), out.join("new")).unwrap();
        let directory = Directory::open(&out).unwrap();
        let mut budget = Budget::new(Bytes::mib(1));
        assert!(directory.directory("directory").is_err());
        for name in ["file", "new"] {
            assert!(directory.directory(name).is_err(), "{name}");
            assert!(write(&directory, name, &mut budget, &[b"theirs"]).is_err(), "{name}");
        }
        // One that takes the place of a directory afterwards is not followed either.
        let below = directory.directory("below").unwrap();
        fs::rename(out.join("below"), out.join("moved")).unwrap();
        symlink(&outside, out.join("below")).unwrap();
        write(&below, "file", &mut budget, &[b"theirs"]).unwrap();
        assert_eq!(names(&outside), ["file"]);
        assert_eq!(fs::read_to_string(outside.join("file")).unwrap(), "mine");
        assert_eq!(fs::read_to_string(out.join("moved/file")).unwrap(), "theirs");
    }

    #[test]
    fn what_was_there_stays_until_the_new_one_is_whole() {
        let site = tempfile::tempdir().unwrap();
        let kept = site.path().join("kept");
        fs::write(&kept, "mine").unwrap();
        fs::set_permissions(&kept, Permissions::from_mode(0o640)).unwrap();
        let directory = Directory::open(site.path()).unwrap();
        let mut budget = Budget::new(Bytes::mib(1));
        let broken = directory.file("kept", &mut budget, |arriving| {
            arriving.write_all(b"half").unwrap();
            Err(Failure::new("it broke off"))
        });
        assert!(broken.unwrap_err().to_string().contains("it broke off"));
        assert_eq!(fs::read_to_string(&kept).unwrap(), "mine");
        assert_eq!(names(site.path()), ["kept"]);
        write(&directory, "kept", &mut budget, &[b"theirs"]).unwrap();
        assert_eq!(fs::read_to_string(&kept).unwrap(), "theirs");
        assert_eq!(fs::metadata(&kept).unwrap().mode() & 0o777, 0o640);
        assert_eq!(names(site.path()), ["kept"]);
    }

    #[test]
    fn zeros_are_holes_wherever_pieces_end() {
        let site = tempfile::tempdir().unwrap();
        let directory = Directory::open(site.path()).unwrap();
        let mut content = vec![0; 4 << 20];
        content[5000] = 1;
        content[(2 << 20) + 4095] = 2;
        for size in [1000, BLOCK, 10_001, content.len()] {
            let pieces: Vec<_> = content.chunks(size).collect();
            write(&directory, "file", &mut Budget::new(Bytes::mib(4)), &pieces).unwrap();
            assert!(fs::read(site.path().join("file")).unwrap() == content, "{size}");
            let blocks = fs::metadata(site.path().join("file")).unwrap().blocks();
            assert!(blocks * 512 < 1 << 20, "{size}: {blocks}");
        }
    }

    #[test]
    fn all_files_together_have_one_bound() {
        let site = tempfile::tempdir().unwrap();
        let directory = Directory::open(site.path()).unwrap();
        let mut budget = Budget::new(Bytes(10_000));
        budget.take_entry().unwrap();
        write(&directory, "first", &mut budget, &[&[1; 5000]]).unwrap();
        // Zeros count, too.
        let refused = write(&directory, "second", &mut budget, &[&[0; 1000]]).unwrap_err();
        assert!(refused.to_string().contains("--max-bytes"), "{refused}");
        assert!(budget.take_entry().is_err());
        assert_eq!(names(site.path()), ["first"]);
    }
}
