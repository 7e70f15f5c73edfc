//! Refused system calls, counted: a program that asks a million times is one line.

use std::collections::BTreeMap;

use offleash_core::monitor::{is_metadata_service, reaches_for_credentials};
use offleash_core::record::DenialRecord;
use offleash_core::text::Text;
use offleash_sys::seccomp::{CallNotification, NotifyListener, PeerAddress};

/// Kinds of refusals that are told apart; beyond, they are counted together.
const MAX_DENIALS: usize = 256;

/// What was refused so far.
#[derive(Debug, Default)]
pub(super) struct DenialCounts {
    counted: BTreeMap<(&'static str, String, String), u64>,
    calls: u64,
    strays: u64,
    credentials: u64,
}

impl DenialCounts {
    /// Counts a call that waits for its answer.
    pub(super) fn note(&mut self, call: &CallNotification, listener: &NotifyListener) {
        if call.mediated() {
            let rule = "default: modes, owners and times are changed only where files may be written";
            return self.count("syscall", call.name().to_owned(), rule.to_owned());
        }
        if !is_observation(call) {
            return self.count("syscall", call.name().to_owned(), call.rule());
        }
        match call.peer_address(listener) {
            Ok(Some(PeerAddress::Internet(peer))) if !peer.ip().is_loopback() => {
                if is_metadata_service(&peer.ip().to_string()) {
                    self.credentials = self.credentials.saturating_add(1);
                }
                self.count("network", peer.to_string(), "network: none".to_owned());
            }
            // Inside the sandbox, or a call that fails anyway.
            _ => {}
        }
    }

    fn count(&mut self, subject: &'static str, name: String, rule: String) {
        if subject == "syscall" && reaches_for_credentials(&name) {
            self.credentials = self.credentials.saturating_add(1);
        }
        let total = if subject == "network" {
            &mut self.strays
        } else {
            &mut self.calls
        };
        *total = total.saturating_add(1);
        let full = self.counted.len() >= MAX_DENIALS;
        let key = (subject, name, rule);
        let key = if full && !self.counted.contains_key(&key) {
            (subject, "others".to_owned(), "more than are told apart".to_owned())
        } else {
            key
        };
        *self.counted.entry(key).or_default() += 1;
    }

    /// System calls that were refused.
    pub(super) fn calls(&self) -> u64 {
        self.calls
    }

    /// Connections that were tried where there is no network.
    pub(super) fn strays(&self) -> u64 {
        self.strays
    }

    /// Refused calls that read keyrings or other processes, and connections to metadata services where there is no network.
    pub(super) fn credentials(&self) -> u64 {
        self.credentials
    }

    pub(super) fn into_list(self) -> Vec<DenialRecord> {
        let denial = |((subject, name, rule), count): ((&str, String, String), u64)| DenialRecord {
            subject: subject.to_owned(),
            name: Text::from(name),
            rule,
            count,
        };
        self.counted.into_iter().map(denial).collect()
    }
}

/// Whether the filter asks about a call only so that it can be recorded: nothing is decided by the answer, since the
/// sandbox has no way out of its network namespace.
pub(super) fn is_observation(call: &CallNotification) -> bool {
    call.name() == "connect"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_often_is_one_line_and_too_many_kinds_are_one_more() {
        let mut denials = DenialCounts::default();
        for _ in 0..3 {
            denials.count("syscall", "mount".to_owned(), "rule".to_owned());
        }
        denials.count("syscall", "keyctl".to_owned(), "rule".to_owned());
        for number in 0..MAX_DENIALS + 5 {
            denials.count("network", number.to_string(), "rule".to_owned());
        }
        assert_eq!((denials.calls(), denials.strays(), denials.credentials()), (4, 261, 1));
        let list = denials.into_list();
        assert_eq!(list.len(), MAX_DENIALS + 1);
        assert_eq!(
            list.iter()
                .find(|denial| denial.name == Text::from("mount"))
                .unwrap()
                .count,
            3
        );
        assert_eq!(
            list.iter()
                .find(|denial| denial.name == Text::from("others"))
                .unwrap()
                .count,
            7
        );
    }
}
