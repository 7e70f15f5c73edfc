//! Why a driver ended, for a daemon that comes later: in few words, which are kept where the end itself is.

use crate::cell::ContextDeath;
use crate::process::EndedProcess;

/// Whoever ran a cell was told.
const TOLD: &str = "told";
const STUBBORN: &str = "stubborn";
const TIMED_OUT: &str = "timed-out";
const PROTOCOL: &str = "protocol: ";
const NOT_STARTED: &str = "not-started: ";

/// Most characters of a reason.
const MAX_LENGTH: usize = 200;

/// That nobody has to be told any more.
pub(crate) fn told() -> Option<String> {
    Some(TOLD.to_owned())
}

/// What the end of the driver does not say itself.
pub(crate) fn note_of(death: &ContextDeath) -> Option<String> {
    let with = |word: &str, reason: &str| word.chars().chain(reason.chars().take(MAX_LENGTH)).collect();
    match death {
        ContextDeath::Ended(_) | ContextDeath::SandboxGone { .. } => None,
        ContextDeath::Stubborn { timed_out: false } => Some(STUBBORN.to_owned()),
        ContextDeath::Stubborn { timed_out: true } => Some(TIMED_OUT.to_owned()),
        ContextDeath::Protocol { reason } => Some(with(PROTOCOL, reason)),
        ContextDeath::NotStarted { reason } => Some(with(NOT_STARTED, reason)),
        // Whoever wanted that knows it.
        ContextDeath::Restarted | ContextDeath::Removed => told(),
    }
}

/// What the next cell of a context is to be told whose driver has ended like this; nothing if somebody was.
pub(crate) fn untold(ended: &EndedProcess) -> Option<ContextDeath> {
    let Some(note) = ended.note.as_deref() else {
        return Some(ContextDeath::Ended(ended.end.clone()));
    };
    let rest = |word| note.strip_prefix(word).map(str::to_owned);
    match note {
        TOLD => None,
        STUBBORN => Some(ContextDeath::Stubborn { timed_out: false }),
        TIMED_OUT => Some(ContextDeath::Stubborn { timed_out: true }),
        _ => {
            let protocol = rest(PROTOCOL).map(|reason| ContextDeath::Protocol { reason });
            let not_started = || rest(NOT_STARTED).map(|reason| ContextDeath::NotStarted { reason });
            // A word of a later version says as much as its end does.
            let other = || Some(ContextDeath::Ended(ended.end.clone()));
            protocol.or_else(not_started).or_else(other)
        }
    }
}

#[cfg(test)]
mod tests {
    use offleash_core::exec::ExecEnd;

    use super::*;

    #[test]
    fn a_death_is_told_later_as_it_would_have_been() {
        let killed = || ExecEnd::Signaled { signal: 9 };
        let ended = |note| EndedProcess {
            tag: String::new(),
            cwd: String::new(),
            end: killed(),
            note,
        };
        for death in [
            ContextDeath::Ended(killed()),
            ContextDeath::Stubborn { timed_out: false },
            ContextDeath::Stubborn { timed_out: true },
            ContextDeath::Protocol {
                reason: "é: no frame".to_owned(),
            },
            ContextDeath::NotStarted {
                reason: "why".to_owned(),
            },
        ] {
            assert_eq!(untold(&ended(note_of(&death))), Some(death));
        }
        assert_eq!(untold(&ended(told())), None);
        assert_eq!(
            untold(&ended(Some("later".to_owned()))),
            Some(ContextDeath::Ended(killed()))
        );
        let endless = note_of(&ContextDeath::Protocol {
            reason: "é".repeat(10_000),
        });
        assert!(endless.unwrap().len() <= crate::process::MAX_NOTE);
    }
}
