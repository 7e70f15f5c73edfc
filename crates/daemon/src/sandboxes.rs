//! The sandboxes that there are, in memory.
//!
//! The registry has the same beside; what is here is also what goes on with each ([`SandboxEntry`]), and who is counted
//! for it before it is there.

mod activity;
mod entry;
mod quota;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

pub(crate) use self::activity::SandboxUseGuard;
pub(crate) use self::entry::{LayersBelow, SandboxEntry, SandboxFacts, SandboxTurn};
use self::quota::QuotaUse;
use crate::caller::Caller;
use crate::error::DaemonError;
use crate::registry::{Quota, SandboxState};
use crate::view::{NameMatches, SandboxCounts, SandboxLimits};

/// Who wants one more sandbox, and what stands against it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SandboxClaim<'a> {
    pub(crate) owner: &'a str,
    pub(crate) quota: &'a Quota,
    pub(crate) limits: &'a SandboxLimits,
    /// What the owner's volumes count, MiB of disk.
    pub(crate) volumes_mib: u64,
    /// How many there may be of all owners.
    pub(crate) max: usize,
    pub(crate) idempotency_key: Option<&'a str>,
    /// What no other of the owner may be called.
    pub(crate) name: Option<&'a str>,
}

/// What came of a claim.
#[derive(Debug)]
pub(crate) enum Reservation {
    /// A sandbox that is the owner's from now on.
    Now(Arc<SandboxEntry>),
    /// The one that the same request made before, or is making.
    Before(Arc<SandboxEntry>),
}

/// What a paused sandbox needs to run is its owner's, until this is dropped; from then on its state says whether.
#[derive(Debug)]
pub(crate) struct ResumeReservation<'a> {
    entry: &'a SandboxEntry,
}

impl Drop for ResumeReservation<'_> {
    fn drop(&mut self) {
        self.entry.set_resuming(false);
    }
}

/// A build that goes on, and what its commands have of its key's quota, until this is dropped.
#[derive(Debug)]
pub(crate) struct BuildReservation {
    table: Arc<SandboxTable>,
    build: String,
    pub(crate) usage: SandboxLimits,
}

impl Drop for BuildReservation {
    fn drop(&mut self) {
        self.table.builds().remove(&self.build);
    }
}

#[derive(Debug)]
struct ReservedBuild {
    owner: String,
    usage: SandboxLimits,
}

/// All sandboxes, by id.
#[derive(Debug, Default)]
pub(crate) struct SandboxTable {
    entries: Mutex<BTreeMap<String, Arc<SandboxEntry>>>,
    /// Builds that go on, by id: they count as sandboxes. Taken after `entries`.
    builds: Mutex<BTreeMap<String, ReservedBuild>>,
    /// Told when another one may be the next whose time is up.
    end_changed: Notify,
}

impl SandboxTable {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<SandboxEntry>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn builds(&self) -> MutexGuard<'_, BTreeMap<String, ReservedBuild>> {
        self.builds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a build that is about to go on to its owner, unless the quota leaves it less than `least`. It gets what the quota
    /// leaves of what builds usually have.
    ///
    /// # Errors
    /// `QuotaExceeded`.
    pub(crate) fn reserve_build(
        self: &Arc<Self>,
        build: &str,
        claim: &SandboxClaim<'_>,
        least: SandboxLimits,
    ) -> Result<BuildReservation, DaemonError> {
        let entries = self.lock();
        let mut used = QuotaUse::of_volumes(claim.volumes_mib);
        for entry in entries.values() {
            let facts = entry.facts();
            if facts.owner() == Some(claim.owner) {
                used.add(&facts);
            }
        }
        self.add_builds(claim.owner, &mut used);
        let usage = used.left(claim.quota, *claim.limits, least);
        used.check(claim.quota, &usage)?;
        let owner = claim.owner.to_owned();
        self.builds().insert(build.to_owned(), ReservedBuild { owner, usage });
        Ok(BuildReservation {
            table: Arc::clone(self),
            build: build.to_owned(),
            usage,
        })
    }

    fn add_builds(&self, owner: &str, used: &mut QuotaUse) {
        for build in self.builds().values().filter(|build| build.owner == owner) {
            used.add_build(&build.usage);
        }
    }

    pub(crate) fn get(&self, id: &str) -> Option<Arc<SandboxEntry>> {
        self.lock().get(id).cloned()
    }

    /// Whether `entry` is there, and no other one in its place.
    pub(crate) fn has(&self, entry: &Arc<SandboxEntry>) -> bool {
        let found = self.get(entry.name());
        found.is_some_and(|found| Arc::ptr_eq(&found, entry))
    }

    /// The sandbox `id`, if the caller may know of it.
    pub(crate) fn find(&self, caller: &Caller, id: &str) -> Result<Arc<SandboxEntry>, DaemonError> {
        let seen = |entry: &Arc<SandboxEntry>| {
            let facts = entry.facts();
            facts.visible_state().is_some() && caller.sees(facts.key_id())
        };
        self.get(id).filter(seen).ok_or_else(|| DaemonError::not_found(id))
    }

    /// The living sandboxes called `name` of which the caller may know: its own, else those of others.
    pub(crate) fn called(&self, caller: &Caller, name: &str) -> NameMatches {
        let (mut own, mut others) = (None, Vec::new());
        for entry in self.lock().values() {
            let facts = entry.facts();
            let key_id = facts.key_id();
            if facts.visible_state().is_some() && facts.is_called(Some(name)) && caller.sees(key_id) {
                let id = facts.row().id.clone();
                match caller.is(key_id) {
                    true => own = Some(id),
                    false => others.push(id),
                }
            }
        }
        if own.is_some() {
            others.clear();
        }
        NameMatches { own, others }
    }

    pub(crate) fn all(&self) -> Vec<Arc<SandboxEntry>> {
        self.lock().values().cloned().collect()
    }

    /// The time of a sandbox is up sooner or later than it was.
    pub(crate) fn note_end_changed(&self) {
        self.end_changed.notify_one();
    }

    /// Waits until another sandbox may be the next whose time is up.
    pub(crate) async fn end_changed(&self) {
        self.end_changed.notified().await;
    }

    pub(crate) fn insert(&self, entry: Arc<SandboxEntry>) {
        self.lock().insert(entry.name().to_owned(), entry);
    }

    /// Removes `entry`, unless another is there by now.
    pub(crate) fn remove(&self, entry: &Arc<SandboxEntry>) {
        let mut entries = self.lock();
        if entries.get(entry.name()).is_some_and(|found| Arc::ptr_eq(found, entry)) {
            entries.remove(entry.name());
        }
    }

    /// Counts `entry` to its owner, who is about to have it made, unless the quota or the most sandboxes that there may be
    /// stand against it. Nothing is counted for a request that made one before.
    ///
    /// # Errors
    /// `QuotaExceeded`, `NameTaken`, `Full`.
    pub(crate) fn reserve_new(
        &self,
        claim: &SandboxClaim<'_>,
        entry: &Arc<SandboxEntry>,
    ) -> Result<Reservation, DaemonError> {
        let mut entries = self.lock();
        if let Some(before) = self.check(&entries, claim)? {
            return Ok(Reservation::Before(before));
        }
        if entries.contains_key(entry.name()) {
            return Err(DaemonError::conflict(entry.name(), "is here already"));
        }
        entries.insert(entry.name().to_owned(), Arc::clone(entry));
        Ok(Reservation::Now(Arc::clone(entry)))
    }

    /// As [`Self::reserve_new`], for one that `take` finds among those that there are, and promises to the owner.
    ///
    /// # Errors
    /// As [`Self::reserve_new`].
    pub(crate) fn reserve_ready(
        &self,
        claim: &SandboxClaim<'_>,
        take: impl FnOnce() -> Option<Arc<SandboxEntry>>,
    ) -> Result<Option<Reservation>, DaemonError> {
        // Held until it is promised, so that it is counted by whoever comes next.
        let entries = self.lock();
        if let Some(before) = self.check(&entries, claim)? {
            return Ok(Some(Reservation::Before(before)));
        }
        Ok(take().map(Reservation::Now))
    }

    /// Fails if something stands against one more; the one that the same request made before, if it did.
    fn check(
        &self,
        entries: &BTreeMap<String, Arc<SandboxEntry>>,
        claim: &SandboxClaim<'_>,
    ) -> Result<Option<Arc<SandboxEntry>>, DaemonError> {
        let mut used = QuotaUse::of_volumes(claim.volumes_mib);
        let mut all = 0;
        for entry in entries.values() {
            let facts = entry.facts();
            all += usize::from(facts.owner().is_some());
            if facts.owner() != Some(claim.owner) {
                continue;
            }
            if facts.is_of_request(claim.idempotency_key) {
                drop(facts);
                return Ok(Some(Arc::clone(entry)));
            }
            if facts.is_called(claim.name) {
                return Err(DaemonError::NameTaken {
                    name: claim.name.unwrap_or_default().to_owned(),
                    id: facts.row().id.clone(),
                });
            }
            used.add(&facts);
        }
        if all >= claim.max {
            return Err(DaemonError::Full { most: claim.max });
        }
        self.add_builds(claim.owner, &mut used);
        used.check(claim.quota, claim.limits)?;
        Ok(None)
    }

    /// Whether the quota of `owner` leaves room for so many MiB of disk more, beside its sandboxes and volumes.
    ///
    /// # Errors
    /// `QuotaExceeded`.
    pub(crate) fn check_disk(
        &self,
        owner: &str,
        quota: &Quota,
        volumes_mib: u64,
        asked_mib: u64,
    ) -> Result<(), DaemonError> {
        let mut used = QuotaUse::of_volumes(volumes_mib);
        for entry in self.lock().values() {
            let facts = entry.facts();
            if facts.owner() == Some(owner) {
                used.add(&facts);
            }
        }
        self.add_builds(owner, &mut used);
        used.check_disk(quota, asked_mib)
    }

    /// Counts what `entry`, which is paused, does not use to its owner again, unless the quota stands against it: its CPUs,
    /// and its memory if that was not kept. Its disk is counted while it is paused, too.
    pub(crate) fn reserve_resume<'a>(
        &self,
        entry: &'a SandboxEntry,
        quota: &Quota,
    ) -> Result<ResumeReservation<'a>, DaemonError> {
        let entries = self.lock();
        let (owner, limits, has_memory) = {
            let facts = entry.facts();
            let limits = facts.specification().limits;
            (facts.owner().map(str::to_owned), limits, facts.uses_memory())
        };
        let mut used = QuotaUse::default();
        for other in entries.values() {
            let facts = other.facts();
            if facts.owner() == owner.as_deref() {
                used.add(&facts);
            }
        }
        if let Some(owner) = &owner {
            self.add_builds(owner, &mut used);
        }
        used.check_cpus(quota, &limits)?;
        if !has_memory {
            used.check_memory(quota, &limits)?;
        }
        // Still under the table's lock: nobody has counted in between.
        entry.set_resuming(true);
        Ok(ResumeReservation { entry })
    }

    /// As [`Self::reserve_resume`]; nothing where it runs, or is being made.
    pub(crate) fn reserve_if_paused<'a>(
        &self,
        entry: &'a SandboxEntry,
        quota: &Quota,
    ) -> Result<Option<ResumeReservation<'a>>, DaemonError> {
        match entry.state() {
            SandboxState::Paused | SandboxState::PutAway => self.reserve_resume(entry, quota).map(Some),
            _ => Ok(None),
        }
    }

    /// How many sandboxes of `owner` there are whose files alone are kept, or are about to be, without `entry`.
    pub(crate) fn put_away_of(&self, owner: &str, entry: &SandboxEntry) -> u64 {
        let is_one = |other: &&Arc<SandboxEntry>| {
            let facts = other.facts();
            let state = facts.row().state;
            let is_away = matches!(
                state,
                SandboxState::PuttingAway | SandboxState::PutAway | SandboxState::Waking
            );
            facts.owner() == Some(owner) && is_away
        };
        let others = self.lock();
        let count = others
            .values()
            .filter(|other| other.name() != entry.name())
            .filter(is_one)
            .count();
        u64::try_from(count).unwrap_or(u64::MAX)
    }

    /// How many there are; as pooled count all that run and are nobody's.
    pub(crate) fn counts(&self) -> SandboxCounts {
        let mut counts = SandboxCounts::default();
        for entry in self.lock().values() {
            let facts = entry.facts();
            match facts.row().state {
                SandboxState::Running if facts.owner().is_none() => counts.pooled += 1,
                SandboxState::Running => counts.running += 1,
                SandboxState::Paused | SandboxState::PutAway => counts.paused += 1,
                _ => counts.changing += 1,
            }
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim<'a>(quota: &'a Quota, limits: &'a SandboxLimits) -> SandboxClaim<'a> {
        SandboxClaim {
            owner: "k",
            quota,
            limits,
            volumes_mib: 100,
            max: 10,
            idempotency_key: None,
            name: None,
        }
    }

    #[test]
    fn a_build_counts_as_a_sandbox_of_its_key_and_has_what_the_quota_leaves() {
        let table = Arc::new(SandboxTable::default());
        let usual = SandboxLimits {
            cpus: 4,
            memory_mib: 4096,
            disk_mib: 8192,
            pids: 100,
        };
        let least = SandboxLimits::LEAST;
        let quota = Quota {
            sandboxes: Some(2),
            cpus: Some(3),
            memory_mib: Some(512),
            disk_mib: Some(1000),
        };
        let first = table.reserve_build("b1", &claim(&quota, &usual), least).unwrap();
        let SandboxLimits {
            cpus,
            memory_mib,
            disk_mib,
            ..
        } = first.usage;
        assert_eq!((cpus, memory_mib, disk_mib), (3, 512, 900));
        let refused = |limits: &SandboxLimits| table.check(&table.lock(), &claim(&quota, limits)).is_err();
        assert!(refused(&least) && table.reserve_build("b2", &claim(&quota, &usual), least).is_err());
        assert!(table.check_disk("k", &quota, 100, 1).is_err() && table.check_disk("other", &quota, 100, 1).is_ok());
        drop(first);
        assert!(!refused(&least));
        // Without a quota it has what builds have.
        let none = Quota::default();
        let usage = table.reserve_build("b3", &claim(&none, &usual), least).unwrap().usage;
        assert_eq!(usage, usual);
    }
}
