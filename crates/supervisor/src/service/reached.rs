//! What a sandbox reached, as its clients are told: each text short, and one line.

use offleash_core::text::one_line;
use offleash_gateway::{Gateway, Outcome, ReachedHost};

use super::message::{Reached, ReachedPlace};
use crate::clock::to_ms;

/// Longest text; what is longer is cut.
const MAX_LENGTH: usize = 512;

/// What the gateway knows.
pub(super) fn told(gateway: &Gateway) -> Reached {
    let reached = gateway.reached();
    Reached {
        hosts: reached.hosts.into_iter().map(place).collect(),
        more: reached.more,
    }
}

fn place(host: ReachedHost) -> ReachedPlace {
    let failure = match &host.outcome {
        Outcome::Allowed => None,
        Outcome::Refused(why) | Outcome::Failed(why) | Outcome::Cut(why) => Some(short(why)),
    };
    ReachedPlace {
        host: short(&host.host),
        port: host.port,
        rule: host.rule.as_deref().map(short),
        failure,
        methods: host.methods.iter().map(|method| short(method)).collect(),
        times: host.times,
        sent: host.sent,
        received: host.received,
        last_ms: to_ms(host.last),
    }
}

fn short(text: &str) -> String {
    let mut text = one_line(text.as_bytes()).into_owned();
    text.truncate(text.floor_char_boundary(MAX_LENGTH));
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn what_a_sandbox_chose_is_short_and_drives_no_terminal() {
        let hostile = format!("\u{1b}[2J{}", "é".repeat(1000));
        let told = place(ReachedHost {
            host: hostile.clone(),
            port: 443,
            rule: Some("allow *".to_owned()),
            outcome: Outcome::Cut(hostile.clone()),
            methods: BTreeSet::from([hostile]),
            times: 2,
            sent: 3,
            received: 4,
            last: UNIX_EPOCH + Duration::from_millis(5),
        });
        for text in [&told.host, &told.methods[0], told.failure.as_ref().unwrap()] {
            assert!(text.len() <= MAX_LENGTH && !text.contains('\u{1b}'), "{text:?}");
        }
        assert_eq!((told.rule.as_deref(), told.last_ms), (Some("allow *"), 5));
    }
}
