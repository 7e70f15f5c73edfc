//! Reads the log: every line, or every line and whether it can be trusted.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};

use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;

use super::append::{lock, open, read_head};
use super::line::{self, ChainHead, HEAD, LOG, MAX_LINE, NEXT};
use super::{AuditError, AuditLine, LogRecovery, rotate};
use crate::StateDirectory;
use crate::failure::{FailedCall, FileError};

/// Whether the log can be trusted.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct VerifyReport {
    /// Events in it.
    pub lines: u64,
    /// Whether no line is bad.
    pub ok: bool,
    /// Lines that a crash cut short, each vouched for by a `recovered` event.
    pub torn: u64,
    /// Events before the first that is here: those of logs that were set aside and are somewhere else.
    pub moved_away: u64,
    /// Whether there are logs that were set aside and nothing else: right where they were moved to, and nowhere else. That the log goes
    /// on is not seen then.
    pub is_archive: bool,
    /// The first line that cannot be trusted; nothing after it can.
    pub first_bad: Option<BadLine>,
}

/// A line that cannot be trusted.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct BadLine {
    /// The file, where that was set aside.
    pub file: Option<String>,
    /// Its number in the file, from 1; one more than there are if the end is missing.
    pub line: u64,
    /// What is wrong with it.
    pub why: String,
}

/// The lines of the log, in order: those of what was set aside and is here first.
#[derive(Debug)]
pub struct AuditLines {
    reader: Option<BufReader<File>>,
    /// What is read, where that was set aside, and what comes behind it.
    file: Option<String>,
    rest: VecDeque<(Option<String>, File)>,
    number: u64,
}

impl AuditLines {
    pub(super) fn open(state: &StateDirectory) -> Result<Self, AuditError> {
        let mut rest = VecDeque::new();
        for number in rotate::set_aside(state)? {
            let name = line::set_aside_name(number);
            let file = open(state, &name, OFlags::RDONLY)?;
            rest.push_back((Some(name), file));
        }
        // A crash may have left the next log under its first name.
        let log = match open_existing(state, LOG)? {
            None => open_existing(state, NEXT)?,
            log => log,
        };
        rest.extend(log.map(|log| (None, log)));
        let mut lines = Self {
            reader: None,
            file: None,
            rest,
            number: 0,
        };
        lines.next_file();
        Ok(lines)
    }

    /// Goes on to the next file; `false` behind the last.
    fn next_file(&mut self) -> bool {
        match self.rest.pop_front() {
            Some((name, file)) => {
                (self.file, self.number) = (name, 0);
                self.reader = Some(BufReader::new(file));
                true
            }
            None => false,
        }
    }

    /// The next line with its newline if it has one.
    fn next_raw(&mut self) -> Result<Option<Vec<u8>>, AuditError> {
        let Some(reader) = &mut self.reader else {
            return Ok(None);
        };
        let mut bytes = Vec::new();
        let longest = u64::try_from(MAX_LINE).unwrap_or(u64::MAX);
        reader
            .take(longest)
            .read_until(b'\n', &mut bytes)
            .tried("reading", LOG)?;
        if bytes.is_empty() {
            return match self.next_file() {
                true => self.next_raw(),
                false => Ok(None),
            };
        }
        self.number += 1;
        Ok(Some(bytes))
    }
}

impl Iterator for AuditLines {
    type Item = Result<AuditLine, AuditError>;

    fn next(&mut self) -> Option<Self::Item> {
        let bytes = match self.next_raw() {
            Ok(bytes) => bytes?,
            Err(error) => {
                self.reader = None;
                self.rest.clear();
                return Some(Err(error));
            }
        };
        let line = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
        Some(serde_json::from_slice(line).map_err(|error| AuditError::Damaged {
            line: self.number,
            why: error.to_string(),
        }))
    }
}

fn open_existing(state: &StateDirectory, name: &str) -> Result<Option<File>, FileError> {
    match open(state, name, OFlags::RDONLY) {
        Err(error) if error.errno() == Some(Errno::NOENT) => Ok(None),
        other => other.map(Some),
    }
}

pub(super) fn verify(state: &StateDirectory) -> Result<VerifyReport, AuditError> {
    // A log on a read-only file system has no writers to be kept out.
    let _lock = match lock(state, FlockOperation::LockShared) {
        Err(error) if error.errno() == Some(Errno::ROFS) => None,
        other => Some(other?),
    };
    let mut lines = AuditLines::open(state)?;
    let mut check = ChainCheck {
        head: ChainHead::genesis(),
        behind: None,
        torn: None,
        file: None,
        is_closed: false,
        report: VerifyReport {
            lines: 0,
            ok: true,
            torn: 0,
            moved_away: 0,
            is_archive: false,
            first_bad: None,
        },
    };
    while check.report.ok
        && let Some(bytes) = lines.next_raw()?
    {
        check.file.clone_from(&lines.file);
        check.line(lines.number, &bytes);
    }
    if check.report.ok {
        let head = match open_existing(state, HEAD)? {
            Some(file) => read_head(&file)?,
            None => None,
        };
        check.end(lines.number, head.as_ref());
    }
    Ok(check.report)
}

/// A line that cannot be read, and where it is.
struct TornLine {
    file: Option<String>,
    number: u64,
    bytes: Vec<u8>,
}

struct ChainCheck {
    /// The end so far.
    head: ChainHead,
    /// The hash before that: where the head may be if a writer died between the log and the head.
    behind: Option<String>,
    /// A line that cannot be read and waits for its `recovered` event.
    torn: Option<TornLine>,
    /// The file, where that was set aside.
    file: Option<String>,
    /// Whether the last line is the one that a log is set aside with.
    is_closed: bool,
    report: VerifyReport,
}

impl ChainCheck {
    fn bad(&mut self, line: u64, why: impl Into<String>) {
        self.report.ok = false;
        self.report.first_bad = Some(BadLine {
            file: self.file.clone(),
            line,
            why: why.into(),
        });
    }

    fn line(&mut self, number: u64, bytes: &[u8]) {
        let torn = |file: &Option<String>, bytes: &[u8]| TornLine {
            file: file.clone(),
            number,
            bytes: bytes.to_vec(),
        };
        let Some(line) = bytes.strip_suffix(b"\n") else {
            self.torn = Some(torn(&self.file, bytes));
            return;
        };
        match (line::parse(line), self.torn.take()) {
            (Ok(parsed), None) => self.chained(number, parsed),
            (Ok(parsed), Some(torn)) if line::recovers(&parsed, &torn.bytes) => {
                self.report.torn += 1;
                self.chained(number, parsed);
            }
            (_, Some(torn)) => {
                // It may be the last one of the file before.
                self.file = torn.file;
                self.bad(torn.number, "it is damaged and no `recovered` event vouches for it");
            }
            (Err(_), None) => self.torn = Some(torn(&self.file, line)),
        }
    }

    fn chained(&mut self, number: u64, line: AuditLine) {
        if self.report.lines == 0 && number == 1 && line.event == line::ROTATED && line.seq > 1 {
            // What came before is somewhere else. Whoever has it sees whether it ends with that hash.
            self.report.moved_away = line.seq - 1;
            self.head = ChainHead {
                seq: line.seq - 1,
                hash: line.prev.clone(),
                length: 0,
            };
        }
        if line.prev != self.head.hash {
            return self.bad(
                number,
                "it does not follow the line before it; lines were changed, removed or cut off",
            );
        }
        if line.seq != self.head.seq + 1 {
            return self.bad(number, "its number does not follow that of the line before it");
        }
        let says_so = line
            .data
            .get("what")
            .and_then(|what| serde_json::from_value(what.clone()).ok());
        if line.event == line::RECOVERED && says_so == Some(LogRecovery::HeadLost) {
            return self.bad(
                number,
                "`audit.head` was lost before it, so that nothing shows where the log ended",
            );
        }
        self.report.lines += 1;
        self.is_closed = line.event == line::ROTATING;
        self.behind = Some(std::mem::replace(&mut self.head.hash, line.hash));
        self.head.seq = line.seq;
    }

    fn end(&mut self, last: u64, head: Option<&ChainHead>) {
        if self.torn.as_ref().is_some_and(|torn| torn.bytes.is_empty()) {
            return self.bad(last, "it is empty");
        }
        match head {
            // The very first writer died before it wrote the head.
            None if last <= 1 && self.head.seq <= 1 => self.torn_end(),
            // Logs that were moved away; the log that goes on elsewhere begins with the hash of this end.
            None if self.is_closed && self.file.is_some() && self.torn.is_none() => self.report.is_archive = true,
            None => self.bad(
                last + 1,
                "`audit.head` is missing, so that nothing shows where the log ended",
            ),
            Some(head) if head.hash == self.head.hash => self.torn_end(),
            Some(head) if Some(&head.hash) == self.behind.as_ref() && head.seq + 1 == self.head.seq => self.torn_end(),
            Some(head) => {
                let (ends, expected) = (self.head.seq, head.seq);
                // What is there in place of the next line, or the line that is not there.
                let number = last + u64::from(self.torn.is_none());
                self.bad(
                    number,
                    format!("the log ends with number {ends}, but `audit.head` says {expected}"),
                );
            }
        }
    }

    /// A crash just now: the next append recovers it.
    fn torn_end(&mut self) {
        self.report.torn += u64::from(self.torn.is_some());
    }
}
