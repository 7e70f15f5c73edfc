//! A cell: code that runs in a context, and what comes of it.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use offleash_core::exec::{ExecEnd, OutputStream};
use offleash_core::units::Bytes;

use crate::error::ContextError;
use crate::limits::CellLimits;
use crate::protocol::MAX_FROM_HOST;
use crate::result::CellResult;

/// A cell to run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cell {
    /// The code.
    pub code: String,
    /// Variables of the environment for this cell alone.
    pub env: BTreeMap<String, String>,
    /// After this time it is interrupted; it may take as long as it likes if absent.
    pub timeout: Option<Duration>,
}

/// What happens while a cell runs, in order; the last is [`CellEvent::End`].
#[derive(Debug, Clone, PartialEq)]
pub enum CellEvent {
    /// It begins, as the context's cell of this number, from 1.
    Begin {
        /// The number.
        count: u64,
    },
    /// It wrote something.
    Output {
        /// Where.
        stream: OutputStream,
        /// What; characters are whole.
        text: String,
        /// When that was heard of.
        at: SystemTime,
    },
    /// It has a value, or displays one.
    Result(Box<CellResult>),
    /// It failed.
    Error(CellError),
    /// It wrote more than it may: what came after `limit` bytes is left out.
    OutputTruncated {
        /// How many bytes it may write.
        limit: u64,
    },
    /// It has more results than it may: those after `limit` bytes are left out.
    ResultsTruncated {
        /// How many bytes they may have.
        limit: u64,
    },
    /// It is over; nothing follows.
    End(CellEnd),
}

/// Why a cell failed, in its language's words.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CellError {
    /// As in `ValueError`.
    pub name: String,
    /// What it says.
    pub value: String,
    /// Where it was raised, lines with newlines between.
    pub traceback: String,
}

/// How a cell ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CellEnd {
    /// By itself; whether it failed was told before.
    Done,
    /// Because it was interrupted; the context has what it had.
    Interrupted,
    /// Because its time was over; the context has what it had.
    TimedOut,
    /// With its context, which has lost what it had.
    Died(ContextDeath),
    /// Before it began: its context had ended when no cell ran, or ends as the cell comes, and has lost what it had. Nothing of
    /// the cell was run, and the next one finds a new context.
    DiedBefore(ContextDeath),
}

/// How a context lost what it had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContextDeath {
    /// Its driver ended.
    Ended(ExecEnd),
    /// It did not end within the time that an interrupted cell may take, and was ended.
    Stubborn {
        /// Whether it was interrupted because its time was over.
        timed_out: bool,
    },
    /// Its driver said what is not the protocol, and was ended.
    Protocol {
        /// What is wrong with it.
        reason: String,
    },
    /// It was restarted.
    Restarted,
    /// It was removed.
    Removed,
    /// It could not be started.
    NotStarted {
        /// Why.
        reason: String,
    },
    /// The sandbox is gone.
    SandboxGone {
        /// Why, where that is known.
        why: Option<String>,
    },
}

impl ContextDeath {
    /// Whether the sandbox is gone, and not its driver alone.
    pub fn is_of_the_sandbox(&self) -> bool {
        matches!(self, Self::SandboxGone { .. } | Self::Ended(ExecEnd::Lost))
    }
}

impl std::fmt::Display for ContextDeath {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ended(ExecEnd::Exited { code }) => write!(formatter, "its process exited with status {code}"),
            Self::Ended(ExecEnd::OutOfMemory { limit }) => write!(
                formatter,
                "its process was killed (signal {SIGKILL}, SIGKILL): the sandbox was out of memory, of which it may use {}",
                Bytes(*limit)
            ),
            Self::Ended(ExecEnd::Signaled { signal }) => match meaning(*signal) {
                Some((name, meaning)) => write!(formatter, "its process {meaning} (signal {signal}, {name})"),
                None => write!(formatter, "its process was ended by signal {signal}"),
            },
            Self::Ended(ExecEnd::NotStarted(_)) => formatter.write_str("its process could not be started"),
            Self::Stubborn { timed_out: true } => {
                formatter.write_str("the time of the cell was over and it did not react to an interrupt")
            }
            Self::Stubborn { timed_out: false } => formatter.write_str("it did not react to an interrupt"),
            Self::Protocol { reason } => write!(formatter, "what its process said was not understood: {reason}"),
            Self::Restarted => formatter.write_str("it was restarted"),
            Self::Removed => formatter.write_str("it was removed"),
            Self::NotStarted { reason } => write!(formatter, "it could not be started: {reason}"),
            Self::SandboxGone { why: Some(why) } => write!(formatter, "the sandbox is gone: {why}"),
            Self::Ended(ExecEnd::Lost) | Self::SandboxGone { why: None } => formatter.write_str("the sandbox is gone"),
        }
    }
}

const SIGKILL: i32 = 9;

/// What a signal is called, and what it says of the process that it ended; `None` for those that say nothing (signal(7)).
fn meaning(signal: i32) -> Option<(&'static str, &'static str)> {
    Some(match signal {
        1 => ("SIGHUP", "was told that its terminal is gone"),
        2 => ("SIGINT", "was interrupted"),
        3 => ("SIGQUIT", "was told to quit"),
        4 => ("SIGILL", "crashed: illegal instruction"),
        5 => ("SIGTRAP", "crashed: breakpoint"),
        6 => ("SIGABRT", "gave up: it called `abort`"),
        7 => ("SIGBUS", "crashed: bus error"),
        8 => ("SIGFPE", "crashed: arithmetic error"),
        SIGKILL => ("SIGKILL", "was killed"),
        11 => ("SIGSEGV", "crashed: segmentation fault"),
        13 => ("SIGPIPE", "wrote where nobody reads"),
        14 => ("SIGALRM", "was ended by its own alarm"),
        15 => ("SIGTERM", "was told to end"),
        24 => ("SIGXCPU", "has used up its CPU time"),
        25 => ("SIGXFSZ", "wrote a file larger than files may be"),
        31 => ("SIGSYS", "made a system call that is forbidden"),
        _ => return None,
    })
}

impl Cell {
    /// Fails unless a driver can be given the cell.
    ///
    /// # Errors
    /// `Invalid`.
    pub(crate) fn check(&self, limits: &CellLimits) -> Result<(), ContextError> {
        let invalid = |reason: String| Err(ContextError::Invalid { reason });
        if self.code.len() > limits.code {
            return invalid(format!("the code of a cell may have {} bytes", limits.code));
        }
        for (name, value) in &self.env {
            let is_name = !name.is_empty() && !name.contains(['=', '\0']);
            if !is_name || value.contains('\0') || name.len() + value.len() >= MAX_FROM_HOST {
                let shown: String = name.chars().take(60).collect();
                return invalid(format!(
                    "`{}` cannot be a variable of the environment",
                    shown.escape_debug()
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_death_is_told_with_its_reason() {
        let signaled = |signal| ContextDeath::Ended(ExecEnd::Signaled { signal }).to_string();
        assert_eq!(
            signaled(11),
            "its process crashed: segmentation fault (signal 11, SIGSEGV)"
        );
        assert_eq!(
            signaled(6),
            "its process gave up: it called `abort` (signal 6, SIGABRT)"
        );
        assert_eq!(signaled(9), "its process was killed (signal 9, SIGKILL)");
        assert_eq!(
            ContextDeath::Ended(ExecEnd::OutOfMemory { limit: 64 << 20 }).to_string(),
            "its process was killed (signal 9, SIGKILL): the sandbox was out of memory, of which it may use 64M"
        );
        assert_eq!(signaled(40), "its process was ended by signal 40");
        let gone = |why: Option<&str>| ContextDeath::SandboxGone {
            why: why.map(str::to_owned),
        };
        assert_eq!(gone(None).to_string(), "the sandbox is gone");
        let why = gone(Some("it exceeded the limit `memory` of 64M"));
        assert_eq!(
            why.to_string(),
            "the sandbox is gone: it exceeded the limit `memory` of 64M"
        );
        assert!(why.is_of_the_sandbox());
    }
}
