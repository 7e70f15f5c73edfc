//! All sandboxes of a caller at a glance, with what they used last: one answer that costs little, for whoever looks again and
//! again.

use std::time::SystemTime;

use offleash_supervisor::clock::from_ms;

use crate::caller::Caller;
use crate::request::NAME_LABEL;
use crate::sandboxes::{SandboxEntry, SandboxTable};
use crate::template_names;
use crate::view::{SandboxLimits, UsageSample, VisibleState};

/// How many sandboxes are told of at most, the newest.
pub const MAX_OVERVIEW: usize = 2000;

/// A sandbox in few words.
#[derive(Debug, Clone, PartialEq)]
pub struct SandboxSummary {
    /// Its id.
    pub id: String,
    /// What it is called.
    pub name: Option<String>,
    /// Its template, or the name of its image behind [`crate::IMAGE_PREFIX`].
    pub template: String,
    /// What it does.
    pub state: VisibleState,
    /// Whether it is paused because nobody used it.
    pub asleep: bool,
    /// How it is isolated, as in `process`.
    pub level: String,
    /// When it was handed out.
    pub started_at: SystemTime,
    /// When its time is up.
    pub end_at: SystemTime,
    /// What it may use.
    pub limits: SandboxLimits,
    /// What it used when it was sampled last; `None` if it was not yet, or does not run.
    pub usage: Option<UsageSample>,
}

/// The caller's sandboxes, everybody's for one with the scope `admin`.
#[derive(Debug, Clone, PartialEq)]
pub struct SandboxOverview {
    /// The newest first, [`MAX_OVERVIEW`] at most.
    pub sandboxes: Vec<SandboxSummary>,
    /// How many there are.
    pub total: usize,
}

/// The caller's sandboxes in few words.
pub(crate) fn overview_of(sandboxes: &SandboxTable, caller: &Caller) -> SandboxOverview {
    let entries = sandboxes.all();
    let mut found: Vec<_> = entries
        .iter()
        .filter_map(|entry| {
            let seen = entry.read(|facts| caller.sees(facts.key_id()) && facts.visible_state().is_some());
            seen.then(|| (entry.read(|facts| facts.row().started_ms), entry))
        })
        .collect();
    let total = found.len();
    found.sort_by(|left, right| (right.0, right.1.name()).cmp(&(left.0, left.1.name())));
    let newest = found.iter().take(MAX_OVERVIEW);
    SandboxOverview {
        // One may have begun to end since it was found.
        sandboxes: newest.filter_map(|(_, entry)| summary_of(entry)).collect(),
        total,
    }
}

/// Whether a daemon takes new sandboxes, and what it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrainState {
    /// Whether it takes none.
    pub is_drained: bool,
    /// How many sandboxes there are, whosever they are.
    pub sandboxes: usize,
}

/// The ids of all sandboxes that callers see, in no order.
pub(crate) fn ids_of(sandboxes: &SandboxTable) -> Vec<String> {
    let entries = sandboxes.all();
    let there = entries
        .iter()
        .filter_map(|entry| entry.read(|facts| facts.visible_state().is_some().then(|| facts.row().id.clone())));
    there.collect()
}

fn summary_of(entry: &SandboxEntry) -> Option<SandboxSummary> {
    let sampled = entry.sampled();
    entry.read(|facts| {
        let state = facts.visible_state()?;
        let row = facts.row();
        Some(SandboxSummary {
            id: row.id.clone(),
            name: row.metadata.get(NAME_LABEL).cloned(),
            template: template_names::shown(&row.template).to_owned(),
            state,
            asleep: facts.specification().asleep,
            level: facts.specification().level.clone(),
            started_at: from_ms(row.started_ms),
            end_at: from_ms(row.end_ms),
            limits: facts.specification().limits,
            usage: sampled.filter(|_| state == VisibleState::Running),
        })
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::config::DaemonConfig;
    use crate::random;
    use crate::registry::{SandboxRow, SandboxState, Scope, Scopes};
    use crate::specification::Specification;

    fn add(table: &SandboxTable, change: impl FnOnce(&mut SandboxRow)) -> Arc<SandboxEntry> {
        let id = random::sandbox_id().unwrap();
        let specification = Specification::usual(&DaemonConfig::default());
        let mut row = specification.new_row(id.as_str(), "base");
        row.key_id = Some("k1".to_owned());
        row.state = SandboxState::Running;
        change(&mut row);
        let entry = Arc::new(SandboxEntry::new(id, row, specification));
        table.insert(Arc::clone(&entry));
        entry
    }

    fn caller(key_id: &str, scope: Scope) -> Caller {
        Caller {
            key_id: key_id.to_owned(),
            scopes: Scopes(vec![scope]),
            ..Caller::local()
        }
    }

    const SAMPLE: UsageSample = UsageSample {
        at: UNIX_EPOCH,
        cpus: 2,
        cpu_used_pct: 50.0,
        memory_used: 1,
        memory_total: 2,
        memory_cache: 0,
        disk_used: 3,
        disk_total: 4,
    };

    #[test]
    fn a_caller_is_told_of_its_own_that_are_there_the_newest_first() {
        let table = SandboxTable::default();
        add(&table, |row| row.started_ms = 1);
        let newer = add(&table, |row| {
            row.started_ms = 2;
            row.metadata.insert(NAME_LABEL.to_owned(), "named".to_owned());
        });
        newer.note_sample(SAMPLE);
        let paused = add(&table, |row| {
            row.started_ms = 3;
            row.state = SandboxState::Paused;
        });
        paused.note_sample(SAMPLE);
        add(&table, |row| row.state = SandboxState::Killing);
        add(&table, |row| row.state = SandboxState::Creating);
        add(&table, |row| row.key_id = Some("k2".to_owned()));
        add(&table, |row| row.key_id = None);
        let own = overview_of(&table, &caller("k1", Scope::Read));
        let told: Vec<_> = own
            .sandboxes
            .iter()
            .map(|one| (one.state, one.name.as_deref(), one.usage))
            .collect();
        // What one used that does not run is nothing of now.
        let expected = [
            (VisibleState::Paused, None, None),
            (VisibleState::Running, Some("named"), Some(SAMPLE)),
            (VisibleState::Running, None, None),
        ];
        assert_eq!((&told[..], own.total), (&expected[..], 3));
        assert_eq!(overview_of(&table, &caller("k2", Scope::Create)).total, 1);
        assert_eq!(overview_of(&table, &caller("k3", Scope::Create)).total, 0);
        assert_eq!(overview_of(&table, &caller("k3", Scope::Admin)).total, 4);
    }

    #[test]
    fn no_more_are_told_of_than_may_be_and_how_many_there_are() {
        let table = SandboxTable::default();
        for place in 0..=MAX_OVERVIEW {
            add(&table, |row| row.started_ms = i64::try_from(place).unwrap());
        }
        let overview = overview_of(&table, &Caller::local());
        assert_eq!(
            (overview.sandboxes.len(), overview.total),
            (MAX_OVERVIEW, MAX_OVERVIEW + 1)
        );
        assert!(overview.sandboxes[0].started_at > overview.sandboxes[1].started_at);
    }
}
