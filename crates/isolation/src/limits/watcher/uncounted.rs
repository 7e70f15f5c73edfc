//! What the kernel refuses without counting it.

use offleash_core::limits::LimitName;
use offleash_core::record::LimitHit;

use super::{LimitWatcher, refused};

impl LimitWatcher {
    /// Counts processes a last time, before they are killed, where no group counts the refused ones: `ended` are those
    /// that ended by themselves a moment ago.
    ///
    /// A limit that was reached and left again between two looks is not known of; the kernel tells nobody.
    pub fn count_before_the_end(&mut self, ended: u64) -> Vec<LimitHit> {
        let Some(limit) = self.limits.pids.filter(|_| !self.held_by_group("pids")) else {
            return Vec::new();
        };
        let pids = self.tree.usage(&self.tree.processes()).pids;
        self.seen.pids = self.seen.pids.max(Some(pids));
        let is_reached = pids.saturating_add(ended) >= limit;
        self.not_told_yet(
            is_reached
                .then(|| refused(LimitName::Pids, limit))
                .into_iter()
                .collect(),
        )
    }

    /// Limits that the kernel keeps without counting what it refuses.
    pub(super) fn uncounted(&self) -> Vec<LimitName> {
        let always = [LimitName::OpenFiles, LimitName::FileSize];
        let without_group = [LimitName::Pids, LimitName::Memory];
        let without_group = without_group
            .into_iter()
            .filter(|limit| !self.held_by_group(limit.name()));
        always.into_iter().chain(without_group).collect()
    }
}
