//! A served tree as the engine's file system.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use offleash_bashkit::{DirEntry, FileSystem, FileSystemExt, FileType, Metadata};
use rustix::io::Errno;

use crate::engine::{EngineHost, FileAnswer, FileRequest, ShortfallKind};
use crate::wire::{FileFacts, FileKind, FileOperation, MAX_PIECE};
use crate::worker::unresolved::Noted;

/// The largest file that is read as a whole, as the engine does.
const MAX_FILE: u64 = 1024 * 1024 * 1024;

/// A served tree.
pub(super) struct RemoteFiles {
    pub(super) mount: u32,
    pub(super) host: Arc<dyn EngineHost>,
    pub(super) noted: Arc<Noted>,
}

/// The bytes of a path below the tree's root.
fn below(path: &Path) -> Vec<u8> {
    let bytes = path.as_os_str().as_encoded_bytes();
    let start = bytes.iter().position(|byte| *byte != b'/').unwrap_or(bytes.len());
    bytes.get(start..).unwrap_or_default().to_vec()
}

fn error_of(errno: i32) -> offleash_bashkit::Error {
    let system = io::Error::from_raw_os_error(errno);
    let words = match Errno::from_raw_os_error(errno) {
        Errno::NOENT => "No such file or directory",
        Errno::EXIST => "File exists",
        Errno::ISDIR => "Is a directory",
        Errno::NOTDIR => "Not a directory",
        Errno::NOTEMPTY => "Directory not empty",
        Errno::ACCESS => "Permission denied",
        Errno::PERM => "Operation not permitted",
        Errno::ROFS => "Read-only file system",
        Errno::DQUOT => "Disk quota exceeded",
        Errno::NOSPC => "No space left on device",
        Errno::FBIG => "File too large",
        Errno::LOOP => "Too many levels of symbolic links",
        Errno::NAMETOOLONG => "File name too long",
        Errno::NXIO => "No such device or address",
        Errno::INVAL => "Invalid argument",
        Errno::BUSY => "Device or resource busy",
        Errno::OVERFLOW => "Value too large for defined data type",
        _ => return io::Error::new(system.kind(), system.to_string()).into(),
    };
    io::Error::new(system.kind(), words).into()
}

fn metadata_of(facts: FileFacts) -> Metadata {
    let since = Duration::new(facts.seconds.unsigned_abs(), facts.nanoseconds.min(999_999_999));
    let modified = match facts.seconds >= 0 {
        true => UNIX_EPOCH.checked_add(since),
        false => UNIX_EPOCH.checked_sub(since),
    };
    let modified = modified.unwrap_or(UNIX_EPOCH);
    Metadata {
        file_type: match facts.kind {
            FileKind::File => FileType::File,
            FileKind::Directory => FileType::Directory,
            FileKind::Symlink => FileType::Symlink,
            FileKind::Special => FileType::Fifo,
        },
        size: facts.size,
        mode: facts.mode,
        modified,
        created: modified,
    }
}

impl RemoteFiles {
    fn ask(&self, path: &Path, operation: FileOperation) -> offleash_bashkit::Result<FileAnswer> {
        let request = FileRequest {
            mount: self.mount,
            path: below(path),
            operation,
        };
        match self.host.files(request) {
            FileAnswer::Failed { errno } => Err(error_of(errno)),
            answer => Ok(answer),
        }
    }

    fn tell(&self, path: &Path, operation: FileOperation) -> offleash_bashkit::Result<()> {
        self.ask(path, operation).map(drop)
    }

    fn facts(&self, path: &Path) -> offleash_bashkit::Result<FileFacts> {
        match self.ask(path, FileOperation::Stat)? {
            FileAnswer::Facts(facts) => Ok(facts),
            _ => Err(error_of(Errno::PROTO.raw_os_error())),
        }
    }

    fn entries(&self, path: &Path) -> offleash_bashkit::Result<Vec<DirEntry>> {
        let FileAnswer::Entries(entries) = self.ask(path, FileOperation::List)? else {
            return Err(error_of(Errno::PROTO.raw_os_error()));
        };
        let entry = |entry: crate::wire::FileEntry| DirEntry {
            name: String::from_utf8(entry.name).unwrap_or_else(|error| {
                let what = "a name that is not UTF-8";
                self.noted.note(ShortfallKind::Unsupported, what);
                self.host.output(
                    offleash_core::exec::OutputStream::Stderr,
                    format!("offleash: unsupported: {what}, in {}\n", path.display()).into_bytes(),
                );
                String::from_utf8_lossy(error.as_bytes()).into_owned()
            }),
            metadata: metadata_of(entry.facts),
        };
        Ok(entries.into_iter().map(entry).collect())
    }

    fn read(&self, path: &Path) -> offleash_bashkit::Result<Vec<u8>> {
        let mut contents = Vec::new();
        loop {
            let offset = u64::try_from(contents.len()).unwrap_or(u64::MAX);
            let FileAnswer::Piece { bytes, total } = self.ask(path, FileOperation::Read { offset })? else {
                return Err(error_of(Errno::PROTO.raw_os_error()));
            };
            if total > MAX_FILE {
                self.noted
                    .note(ShortfallKind::Limit, format!("a file of more than {MAX_FILE} bytes"));
                return Err(error_of(Errno::FBIG.raw_os_error()));
            }
            if contents.is_empty() {
                contents.reserve_exact(usize::try_from(total).unwrap_or(0));
            }
            let is_last = bytes.len() < MAX_PIECE;
            contents.extend_from_slice(&bytes);
            if is_last {
                return Ok(contents);
            }
        }
    }

    fn write(&self, path: &Path, content: &[u8]) -> offleash_bashkit::Result<()> {
        let (first, rest) = content.split_at(content.len().min(MAX_PIECE));
        let total = u64::try_from(content.len()).unwrap_or(u64::MAX);
        let bytes = first.to_vec();
        self.tell(path, FileOperation::Replace { total, bytes })?;
        for piece in rest.chunks(MAX_PIECE) {
            self.tell(path, FileOperation::Append(piece.to_vec()))?;
        }
        Ok(())
    }

    /// A directory that the host has is renamed as `mv` does between file systems: made anew, and filled.
    fn rename_by_copy(&self, from: &Path, to: &Path) -> offleash_bashkit::Result<()> {
        let mode = self.facts(from)?.mode;
        match self.facts(to) {
            Ok(facts) if facts.kind == FileKind::Directory => self.tell(to, FileOperation::Remove)?,
            Ok(_) => return Err(error_of(Errno::NOTDIR.raw_os_error())),
            Err(_) => {}
        }
        self.tell(to, FileOperation::MakeDirectory)?;
        for entry in self.entries(from)? {
            self.move_one(&from.join(&entry.name), &to.join(&entry.name))?;
        }
        self.tell(to, FileOperation::Chmod { mode })?;
        self.tell(from, FileOperation::Remove)
    }

    fn move_one(&self, from: &Path, to: &Path) -> offleash_bashkit::Result<()> {
        match self.tell(from, FileOperation::Rename { to: below(to) }) {
            Err(offleash_bashkit::Error::Io(error)) if error.kind() == io::ErrorKind::CrossesDevices => {
                self.rename_by_copy(from, to)
            }
            other => other,
        }
    }

    fn remove_all(&self, path: &Path) -> offleash_bashkit::Result<()> {
        if self.facts(path)?.kind == FileKind::Directory {
            for entry in self.entries(path)? {
                self.remove_all(&path.join(&entry.name))?;
            }
        }
        self.tell(path, FileOperation::Remove)
    }
}

impl FileSystemExt for RemoteFiles {
    fn backend_kind(&self) -> &'static str {
        "served"
    }
}

#[async_trait]
impl FileSystem for RemoteFiles {
    async fn read_file(&self, path: &Path) -> offleash_bashkit::Result<Vec<u8>> {
        self.read(path)
    }

    async fn write_file(&self, path: &Path, content: &[u8]) -> offleash_bashkit::Result<()> {
        self.write(path, content)
    }

    async fn append_file(&self, path: &Path, content: &[u8]) -> offleash_bashkit::Result<()> {
        if content.is_empty() {
            return self.tell(path, FileOperation::Append(Vec::new()));
        }
        for piece in content.chunks(MAX_PIECE) {
            self.tell(path, FileOperation::Append(piece.to_vec()))?;
        }
        Ok(())
    }

    async fn mkdir(&self, path: &Path, recursive: bool) -> offleash_bashkit::Result<()> {
        if !recursive {
            return self.tell(path, FileOperation::MakeDirectory);
        }
        let mut here = PathBuf::from("/");
        for name in path.components().skip(1) {
            here.push(name);
            match self.facts(&here) {
                Ok(facts) if matches!(facts.kind, FileKind::Directory | FileKind::Symlink) => {}
                Ok(_) => return Err(error_of(Errno::EXIST.raw_os_error())),
                Err(_) => self.tell(&here, FileOperation::MakeDirectory)?,
            }
        }
        Ok(())
    }

    async fn remove(&self, path: &Path, recursive: bool) -> offleash_bashkit::Result<()> {
        match recursive {
            true => self.remove_all(path),
            false => self.tell(path, FileOperation::Remove),
        }
    }

    async fn stat(&self, path: &Path) -> offleash_bashkit::Result<Metadata> {
        self.facts(path).map(metadata_of)
    }

    async fn read_dir(&self, path: &Path) -> offleash_bashkit::Result<Vec<DirEntry>> {
        self.entries(path)
    }

    async fn exists(&self, path: &Path) -> offleash_bashkit::Result<bool> {
        match self.facts(path) {
            Ok(_) => Ok(true),
            Err(offleash_bashkit::Error::Io(error))
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
            {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    async fn rename(&self, from: &Path, to: &Path) -> offleash_bashkit::Result<()> {
        self.move_one(from, to)
    }

    async fn copy(&self, from: &Path, to: &Path) -> offleash_bashkit::Result<()> {
        let facts = self.facts(from)?;
        if facts.kind == FileKind::Directory {
            return Err(error_of(Errno::ISDIR.raw_os_error()));
        }
        let content = self.read(from)?;
        let is_new = self.facts(to).is_err();
        self.write(to, &content)?;
        match is_new {
            true => self.tell(to, FileOperation::Chmod { mode: facts.mode }),
            false => Ok(()),
        }
    }

    async fn symlink(&self, target: &Path, link: &Path) -> offleash_bashkit::Result<()> {
        let target = target.as_os_str().as_encoded_bytes().to_vec();
        self.tell(link, FileOperation::Symlink { target })
    }

    async fn read_link(&self, path: &Path) -> offleash_bashkit::Result<PathBuf> {
        let FileAnswer::Target(target) = self.ask(path, FileOperation::ReadLink)? else {
            return Err(error_of(Errno::PROTO.raw_os_error()));
        };
        let target = String::from_utf8(target).map_err(|_| error_of(Errno::ILSEQ.raw_os_error()))?;
        Ok(target.into())
    }

    async fn chmod(&self, path: &Path, mode: u32) -> offleash_bashkit::Result<()> {
        self.tell(path, FileOperation::Chmod { mode })
    }

    async fn set_modified_time(&self, path: &Path, time: SystemTime) -> offleash_bashkit::Result<()> {
        let (seconds, nanoseconds) = match time.duration_since(UNIX_EPOCH) {
            Ok(since) => (i64::try_from(since.as_secs()).unwrap_or(i64::MAX), since.subsec_nanos()),
            Err(before) => (-i64::try_from(before.duration().as_secs()).unwrap_or(i64::MAX), 0),
        };
        self.tell(path, FileOperation::Touch { seconds, nanoseconds })
    }
}
