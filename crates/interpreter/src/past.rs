//! Why a driver ended, for a daemon that comes later: in few words, which are kept where the end itself is.

use crate::cell::Death;
use crate::process::Ended;

/// Whoever ran a cell was told.
const TOLD: &str = "told";
const STUBBORN: &str = "stubborn";
const TIMED_OUT: &str = "timed-out";
const PROTOCOL: &str = "protocol: ";
const NOT_STARTED: &str = "not-started: ";

/// Most characters of a reason.
const LONGEST: usize = 200;

/// That nobody has to be told any more.
pub(crate) fn told() -> Option<String> {
    Some(TOLD.to_owned())
}

/// What the end of the driver does not say itself.
pub(crate) fn note_of(death: &Death) -> Option<String> {
    let with = |word: &str, reason: &str| word.chars().chain(reason.chars().take(LONGEST)).collect();
    match death {
        Death::Ended(_) | Death::SandboxGone { .. } => None,
        Death::Stubborn { timed_out: false } => Some(STUBBORN.to_owned()),
        Death::Stubborn { timed_out: true } => Some(TIMED_OUT.to_owned()),
        Death::Protocol { reason } => Some(with(PROTOCOL, reason)),
        Death::NotStarted { reason } => Some(with(NOT_STARTED, reason)),
        // Whoever wanted that knows it.
        Death::Restarted | Death::Removed => told(),
    }
}

/// What the next cell of a context is to be told whose driver has ended like this; nothing if somebody was.
pub(crate) fn untold(ended: &Ended) -> Option<Death> {
    let Some(note) = ended.note.as_deref() else {
        return Some(Death::Ended(ended.end.clone()));
    };
    let rest = |word| note.strip_prefix(word).map(str::to_owned);
    match note {
        TOLD => None,
        STUBBORN => Some(Death::Stubborn { timed_out: false }),
        TIMED_OUT => Some(Death::Stubborn { timed_out: true }),
        _ => {
            let protocol = rest(PROTOCOL).map(|reason| Death::Protocol { reason });
            let not_started = || rest(NOT_STARTED).map(|reason| Death::NotStarted { reason });
            // A word of a later version says as much as its end does.
            let other = || Some(Death::Ended(ended.end.clone()));
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
        let ended = |note| Ended {
            tag: String::new(),
            cwd: String::new(),
            end: killed(),
            note,
        };
        for death in [
            Death::Ended(killed()),
            Death::Stubborn { timed_out: false },
            Death::Stubborn { timed_out: true },
            Death::Protocol {
                reason: "é: no frame".to_owned(),
            },
            Death::NotStarted {
                reason: "why".to_owned(),
            },
        ] {
            assert_eq!(untold(&ended(note_of(&death))), Some(death));
        }
        assert_eq!(untold(&ended(told())), None);
        assert_eq!(untold(&ended(Some("later".to_owned()))), Some(Death::Ended(killed())));
        let endless = note_of(&Death::Protocol {
            reason: "é".repeat(10_000),
        });
        assert!(endless.unwrap().len() <= crate::process::LONGEST_NOTE);
    }
}
