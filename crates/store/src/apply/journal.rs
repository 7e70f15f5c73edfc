//! What is needed to undo, or to clean up after, an apply whose process died.
//!
//! `journal` is written and synced before anything is touched. A second line, with what was staged, is added before
//! anything is renamed. Renaming the file to `journal.committed` is the moment from which the apply counts as done.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;

use offleash_core::id::RunId;
use offleash_core::text::Text;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::plan::ApplyOperation;
use crate::change::LayerChange;
use crate::failure::{FailedCall, FileError};
use crate::node::NodeIdentity;
use crate::places::{self, LayerPaths};
use crate::run_file::LayerFile;

const JOURNAL: &str = "journal";
const COMMITTED: &str = "journal.committed";
pub(crate) const APPLIED: &str = "applied";

/// The first line.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct JournalHead {
    pub(crate) id: RunId,
    pub(crate) layers: Vec<LayerFile>,
    pub(crate) operations: Vec<ApplyOperation>,
    /// What counts as applied once it is committed.
    pub(crate) changes: Vec<(usize, Text)>,
}

/// The second line: what lies in each slot.
pub(crate) type StagedSlots = BTreeMap<u64, NodeIdentity>;

/// What a dead apply left.
#[derive(Debug)]
pub(crate) enum FoundJournal {
    Nothing,
    /// It did not get as far as touching anything.
    Unreadable,
    Open(JournalHead, Option<StagedSlots>),
    Committed(JournalHead),
}

impl JournalHead {
    pub(crate) fn write(&self, directory: &OwnedFd) -> Result<File, FileError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(directory, JOURNAL, flags, Mode::RUSR | Mode::WUSR);
        let mut file = File::from(opened.tried("creating", JOURNAL)?);
        append_line(&mut file, self)?;
        sync(directory)?;
        Ok(file)
    }
}

pub(crate) fn write_staged(file: &mut File, staged: &StagedSlots) -> Result<(), FileError> {
    append_line(file, staged)
}

fn append_line(file: &mut File, value: &impl serde::Serialize) -> Result<(), FileError> {
    let mut line = serde_json::to_vec(value)
        .map_err(std::io::Error::from)
        .tried("encoding", JOURNAL)?;
    line.push(b'\n');
    file.write_all(&line)
        .and_then(|()| file.sync_data())
        .tried("writing", JOURNAL)
}

/// Makes the apply count as done.
pub(crate) fn commit(directory: &OwnedFd) -> Result<(), FileError> {
    rustix::fs::renameat(directory, JOURNAL, directory, COMMITTED).tried("committing", JOURNAL)?;
    sync(directory)
}

fn sync(directory: &OwnedFd) -> Result<(), FileError> {
    rustix::fs::fsync(directory).tried("syncing", Path::new("."))
}

pub(crate) fn find(directory: &OwnedFd) -> Result<FoundJournal, FileError> {
    if let Some(bytes) = read(directory, COMMITTED)? {
        let mut lines = lines(&bytes);
        return match lines.next().map(serde_json::from_slice) {
            Some(Ok(journal)) => Ok(FoundJournal::Committed(journal)),
            _ => Err(FileError::new(
                "reading",
                COMMITTED,
                std::io::Error::from(std::io::ErrorKind::InvalidData),
            )),
        };
    }
    let Some(bytes) = read(directory, JOURNAL)? else {
        return Ok(FoundJournal::Nothing);
    };
    let mut lines = lines(&bytes);
    Ok(match lines.next().map(serde_json::from_slice) {
        Some(Ok(journal)) => {
            FoundJournal::Open(journal, lines.next().and_then(|line| serde_json::from_slice(line).ok()))
        }
        _ => FoundJournal::Unreadable,
    })
}

/// Only lines that were written to their end.
fn lines(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes
        .split_inclusive(|byte| *byte == b'\n')
        .filter(|line| line.ends_with(b"\n"))
}

/// Removes the journal, in whichever state it is.
pub(crate) fn remove(directory: &OwnedFd) -> Result<(), FileError> {
    for name in [JOURNAL, COMMITTED] {
        match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(FileError::new("removing", name, error)),
        }
    }
    Ok(())
}

fn read(directory: &OwnedFd, name: &str) -> Result<Option<Vec<u8>>, FileError> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(directory, name, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        other => other.tried("opening", name)?,
    };
    let mut bytes = Vec::new();
    File::from(file).read_to_end(&mut bytes).tried("reading", name)?;
    Ok(Some(bytes))
}

/// The changes that were applied already.
pub(crate) fn applied(directory: &OwnedFd) -> Result<LayerPaths, FileError> {
    let mut applied = places::read(directory, APPLIED)?;
    // One that was committed and not yet noted.
    if let FoundJournal::Committed(journal) = find(directory)? {
        applied.extend(
            journal
                .changes
                .iter()
                .map(|(layer, path)| (*layer, path.as_path().to_owned())),
        );
    }
    Ok(applied)
}

/// Notes changes as applied; repeating it does no harm.
pub(crate) fn note_applied(directory: &OwnedFd) -> Result<(), FileError> {
    places::replace(directory, APPLIED, &applied(directory)?)
}

/// The changes in the form in which they are noted.
pub(crate) fn noted(changes: &[LayerChange]) -> Vec<(usize, Text)> {
    changes
        .iter()
        .map(|change| (change.layer, Text::from(&change.path)))
        .collect()
}
