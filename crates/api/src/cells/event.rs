//! What happens to a cell, rendered: times as text, what is cut named, an end with its outcome and reason.

use offleash_core::exec::{ExecEnd, OutputStream};
use offleash_interpreter::cell::{CellEnd, CellError, CellEvent, ContextDeath};
use offleash_interpreter::result::CellResult;

use crate::http::time;

/// Something that happened to a cell, in order; the last is [`RenderedEvent::End`].
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum RenderedEvent {
    /// It begins, as the context's cell of this number, from 1.
    Begin { count: u64 },
    /// It wrote something; characters are whole. `at` is a time of RFC 3339.
    Output {
        stream: OutputStream,
        text: String,
        at: String,
    },
    /// It has a value, or displays one.
    Result(Box<CellResult>),
    /// It failed.
    Error(CellError),
    /// What comes after `limit` bytes of `part` is left out.
    Truncated { part: TruncatedPart, limit: u64 },
    /// It is over; nothing follows.
    End(RenderedEnd),
}

/// Of what a cell has more than it may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TruncatedPart {
    Output,
    Results,
}

impl TruncatedPart {
    /// Its word in every form.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Output => "output",
            Self::Results => "results",
        }
    }
}

/// How a cell ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RenderedEnd {
    pub(crate) outcome: CellOutcome,
    /// How the context has lost its state, where it has.
    pub(crate) reason: Option<String>,
    /// Whether that was because the whole sandbox is gone, and why where it is known.
    pub(crate) lost_sandbox: Option<LostSandbox>,
}

/// In which of five ways a cell ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CellOutcome {
    /// By itself; whether it failed was told before.
    Done,
    Interrupted,
    TimedOut,
    /// With its context, which has lost its state.
    Died,
    /// Its context had lost its state before, and nothing of the cell was run.
    NotRun,
}

/// A sandbox that is gone with what ran in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LostSandbox {
    pub(crate) why: Option<String>,
}

impl From<CellEvent> for RenderedEvent {
    fn from(event: CellEvent) -> Self {
        match event {
            CellEvent::Begin { count } => Self::Begin { count },
            CellEvent::Output { stream, text, at } => Self::Output {
                stream,
                text,
                at: time::text(at),
            },
            CellEvent::Result(result) => Self::Result(result),
            CellEvent::Error(error) => Self::Error(error),
            CellEvent::OutputTruncated { limit } => Self::Truncated {
                part: TruncatedPart::Output,
                limit,
            },
            CellEvent::ResultsTruncated { limit } => Self::Truncated {
                part: TruncatedPart::Results,
                limit,
            },
            CellEvent::End(end) => Self::End(end.into()),
        }
    }
}

impl From<CellEnd> for RenderedEnd {
    fn from(end: CellEnd) -> Self {
        match end {
            CellEnd::Done => Self::of(CellOutcome::Done),
            CellEnd::Interrupted => Self::of(CellOutcome::Interrupted),
            CellEnd::TimedOut => Self::of(CellOutcome::TimedOut),
            CellEnd::Died(death) => Self::by_death(CellOutcome::Died, death),
            CellEnd::DiedBefore(death) => Self::by_death(CellOutcome::NotRun, death),
        }
    }
}

impl RenderedEnd {
    /// An end that took no state with it.
    fn of(outcome: CellOutcome) -> Self {
        Self {
            outcome,
            reason: None,
            lost_sandbox: None,
        }
    }

    fn by_death(outcome: CellOutcome, death: ContextDeath) -> Self {
        let reason = Some(death.to_string());
        let lost_sandbox = match death {
            ContextDeath::SandboxGone { why } => Some(LostSandbox { why }),
            ContextDeath::Ended(ExecEnd::Lost) => Some(LostSandbox { why: None }),
            _ => None,
        };
        Self {
            outcome,
            reason,
            lost_sandbox,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_says_whether_the_sandbox_is_lost_and_why() {
        let gone = |why: Option<&str>| ContextDeath::SandboxGone {
            why: why.map(str::to_owned),
        };
        for (end, outcome, reason, lost) in [
            (CellEnd::Done, CellOutcome::Done, None, None),
            (
                CellEnd::Died(gone(Some("killed"))),
                CellOutcome::Died,
                Some("the sandbox is gone: killed"),
                Some(Some("killed")),
            ),
            (
                CellEnd::DiedBefore(ContextDeath::Ended(ExecEnd::Lost)),
                CellOutcome::NotRun,
                Some("the sandbox is gone"),
                Some(None),
            ),
            (
                CellEnd::Died(ContextDeath::Restarted),
                CellOutcome::Died,
                Some("it was restarted"),
                None,
            ),
        ] {
            let death_is_lost = match &end {
                CellEnd::Died(death) | CellEnd::DiedBefore(death) => death.is_of_the_sandbox(),
                _ => false,
            };
            let rendered = RenderedEnd::from(end);
            assert_eq!(rendered.outcome, outcome);
            assert_eq!(rendered.reason.as_deref(), reason);
            assert_eq!(rendered.lost_sandbox.is_some(), death_is_lost);
            assert_eq!(rendered.lost_sandbox.as_ref().map(|lost| lost.why.as_deref()), lost);
        }
    }
}
