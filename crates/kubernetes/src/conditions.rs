//! Conditions of a status, as Kubernetes has them. Pure.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// The longest message that the kinds take.
const MAX_MESSAGE: usize = 32_768;

/// A condition that is to be set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    /// Which.
    pub(crate) kind: &'static str,
    /// `True`, `False` or `Unknown`.
    pub(crate) status: String,
    /// One word.
    pub(crate) reason: String,
    /// What a person reads.
    pub(crate) message: String,
}

impl Finding {
    /// A condition that holds, or does not.
    pub(crate) fn new(kind: &'static str, holds: bool, reason: &str, message: impl Into<String>) -> Self {
        Self {
            kind,
            status: if holds { "True" } else { "False" }.to_owned(),
            reason: reason.to_owned(),
            message: message.into(),
        }
    }
}

/// Sets a condition; the time of its transition changes with its status alone.
pub(crate) fn set(conditions: &mut Vec<Condition>, finding: &Finding, generation: Option<i64>, now: Timestamp) {
    let message = finding.message.chars().take(MAX_MESSAGE / 4).collect();
    let wanted = Condition {
        last_transition_time: Time(now),
        message,
        observed_generation: generation,
        reason: finding.reason.clone(),
        status: finding.status.clone(),
        type_: finding.kind.to_owned(),
    };
    match conditions.iter_mut().find(|there| there.type_ == finding.kind) {
        None => conditions.push(wanted),
        Some(there) => {
            let since = match there.status == wanted.status {
                true => there.last_transition_time.clone(),
                false => wanted.last_transition_time.clone(),
            };
            *there = Condition {
                last_transition_time: since,
                ..wanted
            };
        }
    }
}

/// Whether a condition is `True`.
pub(crate) fn holds(conditions: &[Condition], kind: &str) -> bool {
    conditions
        .iter()
        .any(|condition| condition.type_ == kind && condition.status == "True")
}

/// Now, in the precision of Kubernetes' times.
pub(crate) fn now() -> Timestamp {
    Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_transition_is_that_of_the_status() {
        let mut all = Vec::new();
        let at = |second| Timestamp::from_second(second).unwrap();
        set(&mut all, &Finding::new("Ready", false, "A", "a"), Some(1), at(10));
        set(&mut all, &Finding::new("Ready", false, "B", "b"), Some(2), at(20));
        assert_eq!(
            (all.len(), &*all[0].reason, all[0].last_transition_time.0),
            (1, "B", at(10))
        );
        assert_eq!(all[0].observed_generation, Some(2));
        assert!(!holds(&all, "Ready"));
        set(&mut all, &Finding::new("Ready", true, "C", "c"), Some(2), at(30));
        assert!(holds(&all, "Ready") && all[0].last_transition_time.0 == at(30));
    }
}
