//! Adds a line: finds the end of the log by `audit.head`, or by the last line where the two do not agree.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;

use rustix::fs::{FlockOperation, Mode, OFlags};

use super::line::{self, ChainHead, HEAD, LOCK, LOG, MAX_LINE};
use super::{AuditError, AuditEvent, LogRecovery, rotate};
use crate::StateDirectory;
use crate::clock::rfc3339_now;
use crate::failure::{FailedCall, FileError};

pub(super) fn append(state: &StateDirectory, event: &AuditEvent) -> Result<Option<LogRecovery>, AuditError> {
    let _lock = lock(state, FlockOperation::LockExclusive)?;
    rotate::finish(state)?;
    append_locked(state, event).map(|(_, recovery)| recovery)
}

/// The same for who has the lock; answers where the chain is then, too.
pub(super) fn append_locked(
    state: &StateDirectory,
    event: &AuditEvent,
) -> Result<(ChainHead, Option<LogRecovery>), AuditError> {
    let mut log = open(state, LOG, OFlags::RDWR | OFlags::APPEND | OFlags::CREATE)?;
    let head_file = open(state, HEAD, OFlags::RDWR | OFlags::CREATE)?;
    let length = log.metadata().tried("examining", LOG)?.len();
    let end = find_end(&log, length, read_head(&head_file)?)?;
    let mut head = end.head;
    let mut bytes = Vec::new();
    if let Some(what) = end.recovery {
        if !end.torn.is_empty() && !end.is_ended {
            bytes.push(b'\n');
        }
        push(&mut bytes, &mut head, &line::recovered(what, &end.torn))?;
    }
    push(&mut bytes, &mut head, event)?;
    head.length = length + u64::try_from(bytes.len()).unwrap_or(0);
    // One write, so that readers and a crash see whole lines in all but the worst case.
    log.write_all(&bytes).tried("writing", LOG)?;
    write_head(&head_file, &head)?;
    Ok((head, end.recovery))
}

fn push(bytes: &mut Vec<u8>, head: &mut ChainHead, event: &AuditEvent) -> Result<(), AuditError> {
    let line = line::line_after(head, &rfc3339_now(), event);
    let (line, next) = line.map_err(std::io::Error::from).tried("encoding", LOG)?;
    bytes.extend_from_slice(&line);
    *head = next;
    Ok(())
}

/// Where the chain goes on.
struct ChainEnd {
    head: ChainHead,
    torn: Vec<u8>,
    /// Whether the torn line has a newline already.
    is_ended: bool,
    recovery: Option<LogRecovery>,
}

impl ChainEnd {
    fn at(head: ChainHead) -> Self {
        Self {
            head,
            torn: Vec::new(),
            is_ended: false,
            recovery: None,
        }
    }

    fn torn(head: ChainHead, torn: &[u8]) -> Self {
        Self {
            torn: torn.to_vec(),
            recovery: Some(LogRecovery::TornLine),
            ..Self::at(head)
        }
    }
}

fn find_end(log: &File, length: u64, head: Option<ChainHead>) -> Result<ChainEnd, AuditError> {
    match head {
        None if length == 0 => Ok(ChainEnd::at(ChainHead::genesis())),
        // The very first writer may have died between the log and the head.
        None => match end_after_head(log, length, ChainHead::genesis())? {
            end if end.recovery.is_none() && end.head.seq == 1 => Ok(end),
            end if end.head.seq == 0 && u64::try_from(end.torn.len()) == Ok(length) => Ok(end),
            _ => end_without_head(log, length),
        },
        Some(head) if head.length == length => Ok(ChainEnd::at(head)),
        Some(head) if head.length > length => Ok(ChainEnd {
            torn: torn_tail(&read_tail(log, length)?).to_vec(),
            recovery: Some(LogRecovery::Truncated),
            ..ChainEnd::at(head)
        }),
        Some(head) => end_after_head(log, length, head),
    }
}

/// The process that wrote what comes after the head died before it wrote the head.
fn end_after_head(log: &File, length: u64, mut head: ChainHead) -> Result<ChainEnd, AuditError> {
    let size = usize::try_from(length - head.length).unwrap_or(usize::MAX);
    if size > 2 * MAX_LINE {
        return end_without_head(log, length);
    }
    let bytes = read_at(log, head.length, size)?;
    let mut torn: Option<&[u8]> = None;
    for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
        let Some(line) = piece.strip_suffix(b"\n") else {
            return Ok(ChainEnd::torn(head, piece));
        };
        match line::parse(line) {
            Ok(next) if next.prev == head.hash && torn.is_none_or(|torn| line::recovers(&next, torn)) => {
                head = ChainHead {
                    seq: next.seq,
                    hash: next.hash,
                    length,
                };
                torn = None;
            }
            Err(_) if torn.is_none() => torn = Some(line),
            // Somebody else wrote it. The chain goes on from what the head vouches for, so that `verify` tells.
            _ => {
                return Ok(ChainEnd {
                    recovery: Some(LogRecovery::HeadLost),
                    ..ChainEnd::at(head)
                });
            }
        }
    }
    Ok(match torn {
        None => ChainEnd::at(head),
        Some(torn) => ChainEnd {
            is_ended: true,
            ..ChainEnd::torn(head, torn)
        },
    })
}

fn end_without_head(log: &File, length: u64) -> Result<ChainEnd, AuditError> {
    let tail = read_tail(log, length)?;
    let torn = torn_tail(&tail).to_vec();
    let last = tail[..tail.len() - torn.len()]
        .split(|byte| *byte == b'\n')
        .rev()
        .find_map(|line| line::parse(line).ok());
    let head = last.map_or_else(ChainHead::genesis, |last| ChainHead {
        seq: last.seq,
        hash: last.hash,
        length,
    });
    Ok(ChainEnd {
        torn,
        recovery: Some(LogRecovery::HeadLost),
        ..ChainEnd::at(head)
    })
}

/// What follows the last newline.
fn torn_tail(bytes: &[u8]) -> &[u8] {
    let start = bytes
        .iter()
        .rposition(|byte| *byte == b'\n')
        .map_or(0, |newline| newline + 1);
    &bytes[start..]
}

fn read_tail(log: &File, length: u64) -> Result<Vec<u8>, FileError> {
    let longest = u64::try_from(2 * MAX_LINE).unwrap_or(u64::MAX);
    let size = length.min(longest);
    read_at(log, length - size, usize::try_from(size).unwrap_or(0))
}

fn read_at(log: &File, from: u64, size: usize) -> Result<Vec<u8>, FileError> {
    let mut bytes = vec![0; size];
    log.read_exact_at(&mut bytes, from).tried("reading", LOG)?;
    Ok(bytes)
}

/// Padded to a fixed length, so that one write replaces all of the former one.
pub(super) fn write_head(file: &File, head: &ChainHead) -> Result<(), AuditError> {
    let text = serde_json::to_string(head)
        .map_err(std::io::Error::from)
        .tried("encoding", HEAD)?;
    let text = format!("{text:HEAD_LENGTH$}\n");
    Ok(file.write_all_at(text.as_bytes(), 0).tried("writing", HEAD)?)
}

const HEAD_LENGTH: usize = 160;

pub(super) fn read_head(file: &File) -> Result<Option<ChainHead>, FileError> {
    let mut bytes = [0; HEAD_LENGTH + 1];
    let filled = file.read_at(&mut bytes, 0).tried("reading", HEAD)?;
    Ok(serde_json::from_slice(&bytes[..filled]).ok())
}

/// Held until dropped.
pub(super) fn lock(state: &StateDirectory, operation: FlockOperation) -> Result<OwnedFd, FileError> {
    let lock = open(state, LOCK, OFlags::RDWR | OFlags::CREATE)?;
    rustix::fs::flock(&lock, operation).tried("locking", LOCK)?;
    Ok(lock.into())
}

pub(super) fn open(state: &StateDirectory, name: &str, flags: OFlags) -> Result<File, FileError> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(&*state.root, name, flags, Mode::RUSR | Mode::WUSR)
        .tried("opening", name)
        .map(File::from)
}
