//! The files of a session: its log, of which the newest is kept, and its recording, of which the oldest is.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::bounds::{MAX_LOG, MAX_RECORDING};
use crate::files::read;
use crate::recorder::RecordedItem;

const LOG: &str = "log.jsonl";
const OLDER_LOG: &str = "log.1.jsonl";
const RECORDING: &str = "recording.jsonl";
const RECORD: &str = "session.json";
const NEW_RECORD: &str = "session.json.new";
/// The longest record, bytes.
const MAX_RECORD: u64 = 256 << 10;

/// Where the files of a session are.
#[derive(Debug, Clone)]
pub struct SessionFiles {
    directory: PathBuf,
}

/// Files of a session that are written to.
#[derive(Debug)]
pub struct SessionLog {
    files: SessionFiles,
    log: GrowingFile,
    recording: GrowingFile,
}

#[derive(Debug)]
struct GrowingFile {
    file: File,
    bytes: u64,
}

impl GrowingFile {
    fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
        let bytes = file.metadata()?.len();
        Ok(Self { file, bytes })
    }

    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        self.file.write_all(line)?;
        self.bytes += line.len() as u64;
        Ok(())
    }
}

impl SessionFiles {
    /// Those in `directory`, which need not be there.
    pub fn in_directory(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// Makes the directory, and those above it.
    ///
    /// # Errors
    /// What the kernel refused.
    pub fn make(&self) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)
    }

    /// Opens what is written to.
    ///
    /// # Errors
    /// What the kernel refused.
    pub fn log(&self) -> io::Result<SessionLog> {
        Ok(SessionLog {
            log: GrowingFile::open(&self.directory.join(LOG))?,
            recording: GrowingFile::open(&self.directory.join(RECORDING))?,
            files: self.clone(),
        })
    }

    /// Writes down what is known of the session, in one step.
    ///
    /// # Errors
    /// What the kernel refused.
    pub fn write_record(&self, record: &[u8]) -> io::Result<()> {
        let new = self.directory.join(NEW_RECORD);
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(record)?;
        fs::rename(new, self.directory.join(RECORD))
    }

    /// What is known of the session; `None` if nothing is.
    ///
    /// # Errors
    /// What the kernel refused.
    pub fn record(&self) -> io::Result<Option<Vec<u8>>> {
        read(&self.directory.join(RECORD), MAX_RECORD)
    }

    /// The lines of the log, the oldest first.
    ///
    /// # Errors
    /// What the kernel refused.
    pub fn log_lines(&self) -> io::Result<Vec<u8>> {
        let mut lines = read(&self.directory.join(OLDER_LOG), MAX_LOG)?.unwrap_or_default();
        lines.extend(read(&self.directory.join(LOG), MAX_LOG)?.unwrap_or_default());
        Ok(lines)
    }

    /// The lines of the recording, the oldest first.
    ///
    /// # Errors
    /// What the kernel refused.
    pub fn recording_lines(&self) -> io::Result<Vec<u8>> {
        Ok(read(&self.directory.join(RECORDING), MAX_RECORDING)?.unwrap_or_default())
    }

    /// Removes all of it.
    ///
    /// # Errors
    /// What the kernel refused.
    pub fn remove(&self) -> io::Result<()> {
        match fs::remove_dir_all(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }
}

impl SessionLog {
    /// Keeps something. The oldest lines of a log go, and the recording ends, when there is too much.
    ///
    /// # Errors
    /// What the kernel refused.
    pub fn keep(&mut self, item: &RecordedItem) -> io::Result<()> {
        let mut line = serde_json::to_vec(item)?;
        line.push(b'\n');
        let length = line.len() as u64;
        match item {
            RecordedItem::Entry { .. } => {
                if self.log.bytes + length > MAX_LOG / 2 {
                    let directory = &self.files.directory;
                    fs::rename(directory.join(LOG), directory.join(OLDER_LOG))?;
                    self.log = GrowingFile::open(&directory.join(LOG))?;
                }
                self.log.append(&line)
            }
            RecordedItem::Frame { .. } if self.recording.bytes + length > MAX_RECORDING => Ok(()),
            RecordedItem::Frame { .. } => self.recording.append(&line),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(number: u64, text: &str) -> RecordedItem {
        let params = serde_json::json!({ "text": text }).as_object().unwrap().clone();
        RecordedItem::Entry {
            timestamp: number,
            page: String::new(),
            method: "m".to_owned(),
            params,
        }
    }

    fn files() -> (tempfile::TempDir, SessionFiles) {
        let place = tempfile::tempdir().unwrap();
        let files = SessionFiles::in_directory(place.path().join("a/b"));
        files.make().unwrap();
        (place, files)
    }

    #[test]
    fn of_a_log_the_newest_lines_are_kept() {
        let (_place, files) = files();
        let mut log = files.log().unwrap();
        let text = "x".repeat(100_000);
        for number in 0..100 {
            log.keep(&entry(number, &text)).unwrap();
        }
        // Opened again, it goes on where it was.
        files.log().unwrap().keep(&entry(100, &text)).unwrap();
        let lines = files.log_lines().unwrap();
        assert!(lines.len() as u64 <= MAX_LOG && lines.len() as u64 > MAX_LOG / 3);
        let last = lines
            .split(|byte| *byte == b'\n')
            .rfind(|line| !line.is_empty())
            .unwrap();
        assert!(last.starts_with(br#"{"timestamp":100,"#));
    }

    #[test]
    fn of_a_recording_the_oldest_pictures_are_kept() {
        let (_place, files) = files();
        let mut log = files.log().unwrap();
        let frame = RecordedItem::Frame {
            timestamp: 1,
            page: String::new(),
            data: "a".repeat(1 << 20),
        };
        for _ in 0..20 {
            log.keep(&frame).unwrap();
        }
        let bytes = files.recording_lines().unwrap().len() as u64;
        assert!(bytes <= MAX_RECORDING && bytes > MAX_RECORDING - (2 << 20));
        files.remove().unwrap();
        files.remove().unwrap();
        assert!(files.log_lines().unwrap().is_empty() && files.record().unwrap().is_none());
    }

    #[test]
    fn a_record_is_replaced_as_a_whole() {
        let (_place, files) = files();
        files.write_record(b"longer than the other").unwrap();
        files.write_record(b"other").unwrap();
        assert_eq!(files.record().unwrap().unwrap(), b"other");
    }
}
