//! A cell: code that runs in a context, and what comes of it.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use offleash_core::exec::{ExecEnd, OutputStream};

use crate::error::ContextError;
use crate::limits::Limits;
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
    Died(Death),
    /// Before it began: its context had ended when no cell ran, and has lost what it had. The next cell finds a new one.
    DiedBefore(Death),
}

/// How a context lost what it had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Death {
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
    SandboxGone,
}

impl Death {
    /// Whether the sandbox is gone, and not its driver alone.
    pub fn is_of_the_sandbox(&self) -> bool {
        matches!(self, Self::SandboxGone | Self::Ended(ExecEnd::Lost))
    }
}

impl std::fmt::Display for Death {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ended(ExecEnd::Exited { code }) => write!(formatter, "its process exited with status {code}"),
            Self::Ended(ExecEnd::Signaled { signal: SIGKILL }) => formatter
                .write_str("its process was killed (signal 9), as the kernel does when the sandbox has no memory left"),
            Self::Ended(ExecEnd::Signaled { signal: SIGSEGV }) => {
                formatter.write_str("its process crashed (signal 11, segmentation fault)")
            }
            Self::Ended(ExecEnd::Signaled { signal }) => write!(formatter, "its process was ended by signal {signal}"),
            Self::Ended(ExecEnd::NotStarted(_)) => formatter.write_str("its process could not be started"),
            Self::Stubborn { timed_out: true } => {
                formatter.write_str("the time of the cell was over and it did not react to an interrupt")
            }
            Self::Stubborn { timed_out: false } => formatter.write_str("it did not react to an interrupt"),
            Self::Protocol { reason } => write!(formatter, "what its process said was not understood: {reason}"),
            Self::Restarted => formatter.write_str("it was restarted"),
            Self::Removed => formatter.write_str("it was removed"),
            Self::NotStarted { reason } => write!(formatter, "it could not be started: {reason}"),
            Self::Ended(ExecEnd::Lost) | Self::SandboxGone => formatter.write_str("the sandbox is gone"),
        }
    }
}

const SIGKILL: i32 = 9;
const SIGSEGV: i32 = 11;

impl Cell {
    /// Fails unless a driver can be given the cell.
    ///
    /// # Errors
    /// `Invalid`.
    pub(crate) fn check(&self, limits: &Limits) -> Result<(), ContextError> {
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
