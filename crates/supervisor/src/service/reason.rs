//! Why a sandbox has ended, in words for whoever used it.

use offleash_core::limits::LimitName;
use offleash_core::record::{LimitEffect, LimitHit};

use super::message::{EndReason, Ended};

impl Ended {
    /// Why it ended, unless it was told to. What there is to say of failures of the host stays with its owner.
    pub fn why(&self) -> Option<String> {
        Some(match &self.reason {
            EndReason::Killed => return None,
            EndReason::Limit(hit) => exceeded(hit),
            EndReason::Rule(rule) => format!("rule `{rule}` of monitoring ended it"),
            // The kernel may have ended its first process before anybody counted.
            EndReason::Lost => match self.deadly_limit() {
                Some(hit) => exceeded(hit),
                None if self.out_of_memory => "it had no memory left".to_owned(),
                None => "its first process ended".to_owned(),
            },
            EndReason::Failed(_) => "its supervisor failed".to_owned(),
        })
    }

    fn deadly_limit(&self) -> Option<&LimitHit> {
        let is_of_memory = |hit: &LimitHit| self.out_of_memory && hit.limit == LimitName::Memory;
        let mut hits = self.limits_hit.iter();
        hits.find(|hit| hit.effect == LimitEffect::Killed || is_of_memory(hit))
    }
}

fn exceeded(hit: &LimitHit) -> String {
    let row = hit.limit.row();
    format!("it exceeded the limit `{}` of {}", row.word, row.show(hit.value))
}

#[cfg(test)]
mod tests {
    use offleash_core::record::RunUsage;

    use super::*;

    #[test]
    fn the_limit_that_ended_it_is_named_whoever_noticed_first() {
        let hit = LimitHit {
            limit: LimitName::Memory,
            value: 64 << 20,
            effect: LimitEffect::Killed,
        };
        let ended = |reason, limits_hit, out_of_memory| Ended {
            reason,
            at: String::new(),
            usage: RunUsage::default(),
            limits_hit,
            out_of_memory,
            untold_alerts: Vec::new(),
        };
        let why = |ended: Ended| ended.why();
        let words = Some("it exceeded the limit `memory` of 64M".to_owned());
        assert_eq!(why(ended(EndReason::Limit(hit.clone()), Vec::new(), true)), words);
        assert_eq!(why(ended(EndReason::Lost, vec![hit.clone()], true)), words);
        let with = |effect| LimitHit { effect, ..hit.clone() };
        let (refused, of_others) = (with(LimitEffect::Refused), with(LimitEffect::Ended));
        let lost = |hits, memory| why(ended(EndReason::Lost, hits, memory)).unwrap();
        assert_eq!(lost(vec![refused], false), "its first process ended");
        // Processes were killed for want of memory before; the first one was if that was just before the end.
        assert_eq!(lost(vec![of_others.clone()], false), "its first process ended");
        assert_eq!(Some(lost(vec![of_others], true)), words);
        assert_eq!(lost(Vec::new(), true), "it had no memory left");
        assert_eq!(why(ended(EndReason::Killed, Vec::new(), false)), None);
        let failed = EndReason::Failed("opening `/home/me/x`".to_owned());
        assert_eq!(why(ended(failed, Vec::new(), false)).unwrap(), "its supervisor failed");
    }
}
