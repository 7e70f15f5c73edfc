//! How many calls there were, in a file: what a sandbox had is what it has had, whoever judges its next call.
//!
//! Sandboxes that were forked of each other have one file. It is locked from the judgement of a call until the call is written
//! down, and a call that cannot be is refused.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

/// The longest file, bytes.
const MAX_FILE: usize = 4 << 20;

/// Calls that counted, by the tool and by the grant as it is written.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CallCounts {
    pub(crate) tools: BTreeMap<String, u64>,
    pub(crate) grants: BTreeMap<String, u64>,
}

/// The file.
#[derive(Debug)]
pub(crate) struct CallLedger {
    file: File,
}

impl CallLedger {
    /// The file at `path`, which is there.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = File::options().read(true).write(true).open(path)?;
        Ok(Self { file })
    }

    /// Has `work` see what there was, and keeps what it makes of that; nobody else counts meanwhile.
    ///
    /// # Errors
    /// When the file cannot be read, or what is new not be written: then nothing may be done that counts.
    pub(crate) fn hold<T>(&self, work: impl FnOnce(&mut CallCounts) -> T) -> io::Result<T> {
        flock(&self.file, FlockOperation::LockExclusive)?;
        let held = self.with_lock(work);
        let released = flock(&self.file, FlockOperation::Unlock);
        let value = held?;
        released?;
        Ok(value)
    }

    fn with_lock<T>(&self, work: impl FnOnce(&mut CallCounts) -> T) -> io::Result<T> {
        let mut counts = self.read()?;
        let before = counts.clone();
        let value = work(&mut counts);
        if counts != before {
            self.write(&counts)?;
        }
        Ok(value)
    }

    fn read(&self) -> io::Result<CallCounts> {
        let mut bytes = vec![
            0;
            usize::try_from(self.file.metadata()?.len())
                .unwrap_or(MAX_FILE)
                .min(MAX_FILE)
        ];
        self.file.read_exact_at(&mut bytes, 0)?;
        // What follows is what a longer text left.
        let mut texts = serde_json::Deserializer::from_slice(&bytes).into_iter();
        match texts.next() {
            None => Ok(CallCounts::default()),
            Some(counts) => counts.map_err(io::Error::other),
        }
    }

    fn write(&self, counts: &CallCounts) -> io::Result<()> {
        let mut text = serde_json::to_vec(counts).map_err(io::Error::other)?;
        text.push(b'\n');
        if text.len() > MAX_FILE {
            return Err(io::Error::other("there are too many grants to count"));
        }
        self.file.write_all_at(&text, 0)?;
        self.file.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_has_the_file_goes_on_counting_and_what_is_damaged_counts_nothing() {
        let directory = tempfile::tempdir().expect("a directory");
        let (path, other) = (directory.path().join("a"), directory.path().join("b"));
        std::fs::write(&path, "").expect("a file");
        std::fs::hard_link(&path, &other).expect("a link");
        let count = |path: &Path| {
            let ledger = CallLedger::open(path)?;
            ledger.hold(|counts| {
                let had = counts.tools.entry("pay".to_owned()).or_default();
                *had += 1;
                *had
            })
        };
        assert_eq!(count(&path).expect("counted"), 1);
        assert_eq!(count(&other).expect("counted"), 2);
        assert_eq!(count(&path).expect("counted"), 3);
        std::fs::write(&path, "{\"tools\": 1").expect("a file");
        assert!(count(&other).is_err());
        assert!(CallLedger::open(&directory.path().join("none")).is_err());
    }
}
