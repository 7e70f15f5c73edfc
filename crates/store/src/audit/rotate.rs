//! Sets the log aside and begins another, which the chain goes on in.
//!
//! The next log is written under another name, with a first line that is chained to the last one of the log before. Then that is
//! renamed, `audit.head` says where the chain is, and the next log gets its name. Whoever has the lock first after a crash
//! finishes that, or begins anew: at each moment one file or the other has every line.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::PathBuf;

use rustix::fs::{AtFlags, Dir, FlockOperation, OFlags, RenameFlags, renameat, renameat_with, unlinkat};
use rustix::io::Errno;

use super::append::{append_locked, lock, open, write_head};
use super::line::{self, ChainHead, HEAD, LOG, MAX_LINE, NEXT, ROTATED, ROTATING};
use super::{AuditError, AuditEvent, AuditLine};
use crate::StateDirectory;
use crate::clock::rfc3339_now;
use crate::failure::{FailedCall, FileError};

/// Sets the log aside; answers where it is. `None` where nothing was ever written.
pub(super) fn rotate(state: &StateDirectory) -> Result<Option<PathBuf>, AuditError> {
    let _lock = lock(state, FlockOperation::LockExclusive)?;
    finish(state)?;
    let log = match open(state, LOG, OFlags::RDONLY) {
        Err(error) if error.errno() == Some(Errno::NOENT) => return Ok(None),
        opened => opened?,
    };
    let begins = first_line(&log, LOG)?.map(|line| line.seq);
    // Where that cannot be read, behind the last: nothing is written over in any case.
    let behind = set_aside(state)?.last().map_or(1, |last| last + 1);
    let name = line::set_aside_name(begins.unwrap_or(behind));
    // It mends what a crash left, and so the end is whole.
    let (head, _) = append_locked(state, &event(ROTATING, &name))?;
    let (bytes, next_head) = line::line_after(&ChainHead { length: 0, ..head }, &rfc3339_now(), &event(ROTATED, &name))
        .map_err(std::io::Error::from)
        .tried("encoding", NEXT)?;
    let mut next = open(state, NEXT, OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC)?;
    next.write_all(&bytes).tried("writing", NEXT)?;
    renameat_with(&*state.root, LOG, &*state.root, &name, RenameFlags::NOREPLACE).tried("renaming", LOG)?;
    name_next(state, &next_head)?;
    Ok(Some(state.path().join(name)))
}

/// Finishes what a crash left half done, or takes it back. The caller has the lock.
pub(super) fn finish(state: &StateDirectory) -> Result<(), AuditError> {
    let next = match open(state, NEXT, OFlags::RDONLY) {
        Err(error) if error.errno() == Some(Errno::NOENT) => return Ok(()),
        opened => opened?,
    };
    let length = next.metadata().tried("examining", NEXT)?.len();
    let begun = first_line(&next, NEXT)?.map(|line| ChainHead {
        seq: line.seq,
        hash: line.hash,
        length,
    });
    match (open(state, LOG, OFlags::RDONLY), begun) {
        // The log before was set aside, so the next one was whole.
        (Err(error), Some(head)) if error.errno() == Some(Errno::NOENT) => name_next(state, &head),
        (Err(error), _) if error.errno() != Some(Errno::NOENT) => Err(error.into()),
        _ => Ok(unlinkat(&*state.root, NEXT, AtFlags::empty()).tried("removing", NEXT)?),
    }
}

/// The numbers of the logs that were set aside and are here, in order.
pub(super) fn set_aside(state: &StateDirectory) -> Result<Vec<u64>, FileError> {
    let entries = Dir::read_from(&*state.root).tried("listing", ".")?;
    let mut numbers = Vec::new();
    for entry in entries {
        let entry = entry.tried("listing", ".")?;
        numbers.extend(line::set_aside_number(entry.file_name().to_bytes()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

fn name_next(state: &StateDirectory, head: &ChainHead) -> Result<(), AuditError> {
    write_head(&open(state, HEAD, OFlags::RDWR | OFlags::CREATE)?, head)?;
    Ok(renameat(&*state.root, NEXT, &*state.root, LOG).tried("renaming", NEXT)?)
}

/// The first line of a log; `None` where that is not whole.
fn first_line(log: &File, name: &str) -> Result<Option<AuditLine>, FileError> {
    let mut bytes = Vec::new();
    let longest = u64::try_from(MAX_LINE).unwrap_or(u64::MAX);
    BufReader::new(log)
        .take(longest)
        .read_until(b'\n', &mut bytes)
        .tried("reading", name)?;
    let line = bytes.strip_suffix(b"\n");
    Ok(line.and_then(|line| line::parse(line).ok()))
}

fn event(what: &str, file: &str) -> AuditEvent {
    AuditEvent {
        event: what.to_owned(),
        run: None,
        data: serde_json::json!({ "file": file }),
    }
}
