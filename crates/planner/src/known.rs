//! What was read of the host's `/etc`, so that who plans again reads only what has changed since.
//!
//! A file or directory is the same as long as its inode, size and times are. One that had been changed shortly before it was
//! read is not kept: a change in the same tick of the clock could not be told.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::etc::{self, EtcOrigin};

/// For how long a file must have been what it is: longer than any tick of a clock, also of a file system over a network.
const SETTLED: Duration = Duration::from_secs(2);
const ETC: &str = "/etc";

/// Parts of `/etc` as they were when they were read.
#[derive(Debug, Default)]
pub struct KnownEtc {
    versioned: Option<(FileStamp, Vec<String>)>,
    files: Vec<(PathBuf, FileStamp, Vec<u8>)>,
}

impl KnownEtc {
    /// Reads what a plan is made of.
    pub fn read() -> Self {
        let now = SystemTime::now();
        let versioned = settled(Path::new(ETC), now, || Some(etc::versioned_names().collect()));
        let names = etc::FROM_HOST.iter().copied().map(str::to_owned);
        let names = names.chain(versioned.iter().flat_map(|(_, names): &(_, Vec<String>)| names.clone()));
        let file = |name: String| match etc::origin(&Path::new(ETC).join(name))? {
            EtcOrigin::Place(source, found) if etc::is_copied(&found) => {
                let (stamp, contents) = settled(&source, now, || etc::read(&source, found.len()).ok())?;
                Some((source, stamp, contents))
            }
            _ => None,
        };
        Self {
            files: names.filter_map(file).collect(),
            versioned,
        }
    }

    /// The names that carry a version, if the directory is what it was.
    pub(super) fn versioned(&self) -> Option<Vec<String>> {
        let (stamp, names) = self.versioned.as_ref()?;
        (FileStamp::of(&fs::symlink_metadata(ETC).ok()?) == *stamp).then(|| names.clone())
    }

    /// What is in the file `source`, if it is what it was: it has just been `found` so.
    pub(super) fn contents(&self, source: &Path, found: &Metadata) -> Option<&[u8]> {
        let (_, stamp, contents) = self.files.iter().find(|(known, ..)| known == source)?;
        (FileStamp::of(found) == *stamp).then_some(contents)
    }
}

/// What `read` answers of `path`, if that did not change meanwhile nor shortly before.
fn settled<T>(path: &Path, now: SystemTime, read: impl FnOnce() -> Option<T>) -> Option<(FileStamp, T)> {
    let stamp = FileStamp::of(&fs::symlink_metadata(path).ok()?);
    let is_settled = stamp.is_settled(now);
    let answer = read().filter(|_| is_settled)?;
    let after = FileStamp::of(&fs::symlink_metadata(path).ok()?);
    (after == stamp).then_some((stamp, answer))
}

/// Device and inode, mode, size, and when content and inode changed last, in seconds and nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FileStamp {
    file: (u64, u64),
    mode: u32,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileStamp {
    fn of(found: &Metadata) -> Self {
        Self {
            file: (found.dev(), found.ino()),
            mode: found.mode(),
            size: found.size(),
            modified: (found.mtime(), found.mtime_nsec()),
            changed: (found.ctime(), found.ctime_nsec()),
        }
    }

    fn is_settled(&self, now: SystemTime) -> bool {
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let changed = u64::try_from(self.changed.0).unwrap_or(u64::MAX);
        Duration::from_secs(changed).saturating_add(SETTLED) < now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn later() -> SystemTime {
        SystemTime::now() + SETTLED * 2
    }

    #[test]
    fn what_is_read_of_the_host_is_what_a_plan_would_read() {
        let known = KnownEtc::read();
        let names: Vec<String> = etc::versioned_names().collect();
        assert!(known.versioned().is_none_or(|known| known == names));
        for (source, _, contents) in &known.files {
            assert_eq!(*contents, fs::read(source).unwrap(), "{}", source.display());
            let found = fs::symlink_metadata(source).unwrap();
            assert_eq!(
                known.contents(source, &found),
                Some(&**contents),
                "{}",
                source.display()
            );
        }
    }

    #[test]
    fn a_file_that_was_changed_since_is_not_known() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "one").unwrap();
        let read = || fs::read(&file).ok();
        assert_eq!(settled(&file, SystemTime::now(), read), None);
        let (stamp, contents) = settled(&file, later(), read).unwrap();
        let known = KnownEtc {
            versioned: None,
            files: vec![(file.clone(), stamp, contents)],
        };
        let told = || {
            known
                .contents(&file, &fs::symlink_metadata(&file).unwrap())
                .map(<[u8]>::to_vec)
        };
        assert_eq!(told(), Some(b"one".to_vec()));
        fs::write(&file, "two").unwrap();
        assert_eq!(told(), None);
        // Another file with the same content is not the one that was read, either.
        let other = directory.path().join("other");
        fs::write(&other, "one").unwrap();
        fs::rename(&other, &file).unwrap();
        assert_eq!(told(), None);
    }

    #[test]
    fn what_changes_while_it_is_read_is_not_kept() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "one").unwrap();
        let read = |text: &str| settled(&file, later(), || fs::write(&file, text).ok());
        assert!(read("longer").is_none());
        assert!(settled(&file, later(), || Some(())).is_some());
    }
}
