//! The files that a simulated shell has in memory, asked about as those are that its supervisor serves.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use offleash_bashkit::{Error, FileSystem, FileType, InMemoryFs, Metadata};
use rustix::io::Errno;

use crate::wire::{FileAnswer, FileEntry, FileFacts, FileKind, FileOperation};

/// How much of a file is given at once: what is read next is often elsewhere.
const PIECE: usize = 64 * 1024;

/// What the file system answers at once, as one in memory does.
fn now<T>(asked: impl Future<Output = offleash_bashkit::Result<T>>) -> Result<T, Errno> {
    match pin!(asked).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer.map_err(|error| errno_of(&error)),
        Poll::Pending => Err(Errno::AGAIN),
    }
}

fn errno_of(error: &Error) -> Errno {
    use std::io::ErrorKind;
    let Error::Io(error) = error else {
        return Errno::NOSPC;
    };
    match error.kind() {
        ErrorKind::NotFound => Errno::NOENT,
        ErrorKind::AlreadyExists => Errno::EXIST,
        ErrorKind::PermissionDenied => Errno::ACCESS,
        ErrorKind::IsADirectory => Errno::ISDIR,
        ErrorKind::NotADirectory => Errno::NOTDIR,
        ErrorKind::DirectoryNotEmpty => Errno::NOTEMPTY,
        ErrorKind::InvalidInput => Errno::INVAL,
        ErrorKind::Unsupported => Errno::OPNOTSUPP,
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Errno::NOSPC,
        ErrorKind::FileTooLarge => Errno::FBIG,
        _ => errno_in_words(&error.to_string()),
    }
}

/// Some are told in words alone.
fn errno_in_words(words: &str) -> Errno {
    let words = words.to_ascii_lowercase();
    let known = [
        ("not empty", Errno::NOTEMPTY),
        ("is a directory", Errno::ISDIR),
        ("not a directory", Errno::NOTDIR),
        ("limit", Errno::NOSPC),
        ("too large", Errno::FBIG),
    ];
    known
        .iter()
        .find(|(part, _)| words.contains(part))
        .map_or(Errno::IO, |(_, errno)| *errno)
}

fn facts_of(metadata: &Metadata) -> FileFacts {
    let since = metadata.modified.duration_since(UNIX_EPOCH).unwrap_or_default();
    FileFacts {
        kind: match metadata.file_type {
            FileType::File => FileKind::File,
            FileType::Directory => FileKind::Directory,
            FileType::Symlink => FileKind::Symlink,
            FileType::Fifo => FileKind::Special,
        },
        mode: metadata.mode,
        size: metadata.size,
        seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        nanoseconds: since.subsec_nanos(),
    }
}

/// Without a slash at its end, as the tree knows it.
fn path_of(path: &[u8]) -> PathBuf {
    Path::new("/").join(OsStr::from_bytes(path)).components().collect()
}

/// Carries an operation out; nothing follows a link, and paths are below the root.
pub(super) fn answer(files: &InMemoryFs, path: &[u8], operation: FileOperation) -> FileAnswer {
    let answered = carry_out(files, &path_of(path), operation);
    answered.unwrap_or_else(|errno| FileAnswer::Failed {
        errno: errno.raw_os_error(),
    })
}

fn carry_out(files: &InMemoryFs, path: &Path, operation: FileOperation) -> Result<FileAnswer, Errno> {
    let facts = || now(files.lstat(path)).map(|metadata| facts_of(&metadata));
    match operation {
        FileOperation::Stat => return Ok(FileAnswer::Facts(facts()?)),
        FileOperation::List => {
            let entries = now(files.read_dir(path))?.into_iter().map(|entry| FileEntry {
                name: entry.name.into_bytes(),
                facts: facts_of(&entry.metadata),
            });
            return Ok(FileAnswer::Entries(entries.collect()));
        }
        FileOperation::ReadLink => {
            let target = now(files.read_link(path))?;
            return Ok(FileAnswer::Target(target.as_os_str().as_bytes().to_vec()));
        }
        FileOperation::Read { offset } => {
            let content = now(files.read_file(path))?;
            let start = usize::try_from(offset).unwrap_or(usize::MAX).min(content.len());
            let end = content.len().min(start + PIECE);
            return Ok(FileAnswer::Piece {
                bytes: content.get(start..end).unwrap_or_default().to_vec(),
                total: content.len() as u64,
            });
        }
        FileOperation::Replace { bytes, .. } => now(files.write_file(path, &bytes))?,
        FileOperation::Append(bytes) => now(files.append_file(path, &bytes))?,
        FileOperation::Write { offset, bytes } => write(files, path, offset, &bytes)?,
        FileOperation::Resize { size } => {
            let mut content = now(files.read_file(path))?;
            content.resize(usize::try_from(size).map_err(|_| Errno::FBIG)?, 0);
            now(files.write_file(path, &content))?;
        }
        FileOperation::MakeDirectory => now(files.mkdir(path, false))?,
        FileOperation::Remove => now(files.remove(path, false))?,
        FileOperation::Rename { to } => now(files.rename(path, &path_of(&to)))?,
        FileOperation::Symlink { target } => now(files.symlink(Path::new(OsStr::from_bytes(&target)), path))?,
        FileOperation::Chmod { mode } => now(files.chmod(path, mode))?,
        FileOperation::Touch { seconds, nanoseconds } => {
            let since = Duration::new(u64::try_from(seconds).unwrap_or(0), nanoseconds.min(999_999_999));
            let time: SystemTime = UNIX_EPOCH.checked_add(since).ok_or(Errno::INVAL)?;
            now(files.set_modified_time(path, time))?;
        }
    }
    Ok(FileAnswer::Done)
}

fn write(files: &InMemoryFs, path: &Path, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
    let size = now(files.lstat(path))?.size;
    if offset == size {
        return now(files.append_file(path, bytes));
    }
    let mut content = now(files.read_file(path))?;
    let start = usize::try_from(offset).map_err(|_| Errno::FBIG)?;
    let end = start.checked_add(bytes.len()).ok_or(Errno::FBIG)?;
    if content.len() < end {
        content.resize(end, 0);
    }
    if let Some(place) = content.get_mut(start..end) {
        place.copy_from_slice(bytes);
    }
    now(files.write_file(path, &content))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(files: &InMemoryFs, path: &[u8]) -> Vec<u8> {
        match answer(files, path, FileOperation::Read { offset: 0 }) {
            FileAnswer::Piece { bytes, .. } => bytes,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn files_in_memory_are_written_at_offsets_cut_and_named_anew() {
        let files = InMemoryFs::new();
        let done = |path: &[u8], operation| assert_eq!(answer(&files, path, operation), FileAnswer::Done);
        let bytes = b"hello".to_vec();
        done(b"tmp/f", FileOperation::Replace { total: 5, bytes });
        let bytes = b" you".to_vec();
        done(b"tmp/f", FileOperation::Write { offset: 5, bytes });
        let bytes = b"J".to_vec();
        done(b"tmp/f", FileOperation::Write { offset: 0, bytes });
        assert_eq!(read(&files, b"tmp/f"), b"Jello you");
        done(b"tmp/f", FileOperation::Resize { size: 5 });
        done(b"tmp/f", FileOperation::Rename { to: b"tmp/g".to_vec() });
        assert_eq!(read(&files, b"tmp/g"), b"Jello");
        let absent = FileAnswer::Failed {
            errno: Errno::NOENT.raw_os_error(),
        };
        assert_eq!(answer(&files, b"tmp/f", FileOperation::Stat), absent);
        assert_eq!(answer(&files, b"tmp/f", FileOperation::Read { offset: 0 }), absent);
    }
}
