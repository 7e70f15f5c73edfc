//! The sandboxes that there are, in memory: what the registry says, and what goes on with each.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use offleash_core::id::RunId;
use offleash_store::registry::{Quota, SandboxRow, SandboxState};
use tokio::sync::watch;

use super::ENVD_VERSION;
use super::error::DaemonError;
use super::history::Cause;
use super::names::Called;
use super::request::{NAME, OnTimeout};
use super::secrets::Told;
use super::specification::Specification;
use super::view::{Access, Caller, Counts, Interpreter, Limits, SandboxView, State};
use crate::clock::from_ms;

/// One sandbox.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) id: RunId,
    facts: Mutex<Facts>,
    /// Held by whoever pauses, resumes, hands out or ends it.
    pub(super) transition: tokio::sync::Mutex<()>,
    /// Held while its row is written, so that writes come one after the other.
    pub(super) writing: tokio::sync::Mutex<()>,
    /// Whether its time was found to be up.
    pub(super) expiring: AtomicBool,
    /// Whether its keeper has ended.
    pub(super) ended: watch::Sender<bool>,
    /// Whether an earlier daemon made it, and may have started what this one knows nothing of.
    pub(super) is_adopted: bool,
}

/// What is known of a sandbox.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    pub(super) row: SandboxRow,
    pub(super) specification: Arc<Specification>,
    /// Whose it is, or is about to be: counted for quotas before it is in the row.
    pub(super) owner: Option<String>,
    /// Which secrets its gateway was told of; `None` where nobody knows.
    pub(super) told: Option<Told>,
    /// Why it is being ended.
    pub(super) cause: Option<Cause>,
    /// Whether its CPUs are counted although it is paused: it is about to run again.
    resuming: bool,
}

impl Entry {
    pub(super) fn new(id: RunId, row: SandboxRow, specification: Specification) -> Self {
        Self {
            id,
            facts: Mutex::new(Facts {
                owner: row.key_id.clone(),
                row,
                specification: Arc::new(specification),
                told: None,
                cause: None,
                resuming: false,
            }),
            transition: tokio::sync::Mutex::default(),
            writing: tokio::sync::Mutex::default(),
            expiring: AtomicBool::new(false),
            ended: watch::Sender::new(false),
            is_adopted: false,
        }
    }

    /// One that an earlier daemon made.
    pub(super) fn adopted(id: RunId, row: SandboxRow, specification: Specification) -> Self {
        Self {
            is_adopted: true,
            ..Self::new(id, row, specification)
        }
    }

    pub(super) fn state(&self) -> SandboxState {
        self.lock().row.state
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Facts> {
        // Whoever holds it only assigns; a panic in between is a defect that must not take the daemon down.
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As its owner sees it; `None` while it is made, and once it is being ended.
    pub(super) fn view(&self) -> Option<SandboxView> {
        self.lock().view()
    }
}

impl Facts {
    fn is_of_request(&self, idempotency_key: Option<&str>) -> bool {
        idempotency_key.is_some()
            && self.row.idempotency_key.as_deref() == idempotency_key
            && self.row.state != SandboxState::Killing
    }

    fn is_called(&self, name: Option<&str>) -> bool {
        let own = self.row.metadata.get(NAME).map(String::as_str);
        name.is_some() && own == name && self.row.state != SandboxState::Killing
    }

    /// It is not handed out after all.
    pub(super) fn forget_owner(&mut self) {
        self.owner = None;
        self.row.idempotency_key = None;
        self.row.metadata.clear();
    }

    pub(super) fn visible_state(&self) -> Option<State> {
        self.row.key_id.as_ref()?;
        match self.row.state {
            SandboxState::Creating | SandboxState::Killing => None,
            SandboxState::Running | SandboxState::Pausing => Some(State::Running),
            SandboxState::Paused | SandboxState::Resuming => Some(State::Paused),
        }
    }

    pub(super) fn view(&self) -> Option<SandboxView> {
        let (row, specification) = (&self.row, &*self.specification);
        Some(SandboxView {
            state: self.visible_state()?,
            id: row.id.clone(),
            template: row.template.clone(),
            started_at: from_ms(row.started_ms),
            end_at: from_ms(row.end_ms),
            metadata: row.metadata.clone(),
            env: specification.env.clone(),
            access_token: row.access_token.clone(),
            traffic_token: row.traffic_token.clone(),
            on_timeout: OnTimeout::of(row),
            auto_resume: row.auto_resume,
            network: specification.network.clone(),
            limits: specification.limits,
            level: specification.level.clone(),
            not_enforced: specification.not_enforced.clone(),
            interpreter: match specification.zygote {
                Some(_) => Interpreter::Forked,
                None => Interpreter::Started,
            },
            fork_of: specification.fork_of.clone(),
            envd_version: ENVD_VERSION,
        })
    }

    pub(super) fn access(&self) -> Option<Access> {
        let (row, specification) = (&self.row, &*self.specification);
        Some(Access {
            state: self.visible_state()?,
            id: row.id.clone(),
            key_id: row.key_id.clone()?,
            auto_resume: row.auto_resume,
            access_token: row.access_token.clone(),
            traffic_token: row.traffic_token.clone(),
            mask_request_host: specification.network.mask_request_host.clone(),
            https_ports: specification.network.https_ports.clone(),
            env: specification.env.clone(),
            limits: specification.limits,
        })
    }
}

/// Who wants one more sandbox, and what stands against it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claim<'a> {
    pub(super) owner: &'a str,
    pub(super) quota: &'a Quota,
    pub(super) limits: &'a Limits,
    /// How many there may be of all owners.
    pub(super) most: usize,
    pub(super) idempotency_key: Option<&'a str>,
    /// What no other of the owner may be called.
    pub(super) name: Option<&'a str>,
}

/// What came of a claim.
#[derive(Debug)]
pub(super) enum Reserved {
    /// A sandbox that is the owner's from now on.
    Now(Arc<Entry>),
    /// The one that the same request made before, or is making.
    Before(Arc<Entry>),
}

/// What a paused sandbox needs to run is its owner's, until this is dropped; from then on its state says whether.
#[derive(Debug)]
pub(super) struct Resuming<'a> {
    entry: &'a Entry,
}

impl Drop for Resuming<'_> {
    fn drop(&mut self) {
        self.entry.lock().resuming = false;
    }
}

/// All sandboxes, by id.
#[derive(Debug, Default)]
pub(super) struct Table {
    entries: Mutex<BTreeMap<String, Arc<Entry>>>,
}

impl Table {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Entry>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self, id: &str) -> Option<Arc<Entry>> {
        self.lock().get(id).cloned()
    }

    /// The sandbox `id`, if the caller may know of it.
    pub(super) fn find(&self, caller: &Caller, id: &str) -> Result<Arc<Entry>, DaemonError> {
        let seen = |entry: &Arc<Entry>| {
            let facts = entry.lock();
            facts.visible_state().is_some() && caller.sees(facts.row.key_id.as_deref())
        };
        self.get(id).filter(seen).ok_or_else(|| DaemonError::not_found(id))
    }

    /// The living sandboxes called `name` of which the caller may know: its own, else those of others.
    pub(super) fn called(&self, caller: &Caller, name: &str) -> Called {
        let (mut own, mut others) = (None, Vec::new());
        for entry in self.lock().values() {
            let facts = entry.lock();
            let key_id = facts.row.key_id.as_deref();
            if facts.visible_state().is_some() && facts.is_called(Some(name)) && caller.sees(key_id) {
                let id = facts.row.id.clone();
                match caller.is(key_id) {
                    true => own = Some(id),
                    false => others.push(id),
                }
            }
        }
        if own.is_some() {
            others.clear();
        }
        Called { own, others }
    }

    pub(super) fn all(&self) -> Vec<Arc<Entry>> {
        self.lock().values().cloned().collect()
    }

    pub(super) fn insert(&self, entry: Arc<Entry>) {
        self.lock().insert(entry.id.as_str().to_owned(), entry);
    }

    /// Removes `entry`, unless another is there by now.
    pub(super) fn remove(&self, entry: &Arc<Entry>) {
        let mut entries = self.lock();
        if entries
            .get(entry.id.as_str())
            .is_some_and(|found| Arc::ptr_eq(found, entry))
        {
            entries.remove(entry.id.as_str());
        }
    }

    /// Counts one more sandbox to its owner, the one that `take` finds or makes, unless the quota or the most sandboxes
    /// that there may be stand against it. Nothing is counted for a request that made one before.
    pub(super) fn reserve(
        &self,
        claim: &Claim<'_>,
        take: impl FnOnce(&mut BTreeMap<String, Arc<Entry>>) -> Option<Arc<Entry>>,
    ) -> Result<Option<Reserved>, DaemonError> {
        let mut entries = self.lock();
        let mut used = Used::default();
        let mut all = 0;
        for entry in entries.values() {
            let facts = entry.lock();
            all += usize::from(facts.owner.is_some());
            if facts.owner.as_deref() != Some(claim.owner) {
                continue;
            }
            if facts.is_of_request(claim.idempotency_key) {
                drop(facts);
                return Ok(Some(Reserved::Before(Arc::clone(entry))));
            }
            if facts.is_called(claim.name) {
                return Err(DaemonError::NameTaken {
                    name: claim.name.unwrap_or_default().to_owned(),
                    id: facts.row.id.clone(),
                });
            }
            used.add(&facts);
        }
        if all >= claim.most {
            return Err(DaemonError::Full { most: claim.most });
        }
        used.check(claim.quota, claim.limits)?;
        Ok(take(&mut entries).map(Reserved::Now))
    }

    /// Counts the CPUs of `entry`, which is paused, to its owner again, unless the quota stands against it. Its memory and
    /// disk are counted while it is paused, too.
    pub(super) fn reserve_resume<'a>(&self, entry: &'a Entry, quota: &Quota) -> Result<Resuming<'a>, DaemonError> {
        let entries = self.lock();
        let (owner, limits) = {
            let facts = entry.lock();
            (facts.owner.clone(), facts.specification.limits)
        };
        let mut used = Used::default();
        for other in entries.values() {
            let facts = other.lock();
            if facts.owner == owner {
                used.add(&facts);
            }
        }
        used.check_cpus(quota, &limits)?;
        // Still under the table's lock: nobody has counted in between.
        entry.lock().resuming = true;
        Ok(Resuming { entry })
    }

    /// How many there are; as pooled count all that run and are nobody's.
    pub(super) fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for entry in self.lock().values() {
            let facts = entry.lock();
            match facts.row.state {
                SandboxState::Running if facts.owner.is_none() => counts.pooled += 1,
                SandboxState::Running => counts.running += 1,
                SandboxState::Paused => counts.paused += 1,
                _ => counts.changing += 1,
            }
        }
        counts
    }
}

/// What the sandboxes of one key use of its quota.
#[derive(Debug, Default)]
struct Used {
    sandboxes: u64,
    cpus: u64,
    memory_mib: u64,
    disk_mib: u64,
}

impl Used {
    fn add(&mut self, facts: &Facts) {
        let limits = &facts.specification.limits;
        self.sandboxes += 1;
        self.memory_mib = self.memory_mib.saturating_add(limits.memory_mib);
        self.disk_mib = self.disk_mib.saturating_add(limits.disk_mib);
        if facts.row.state != SandboxState::Paused || facts.resuming {
            self.cpus += u64::from(limits.cpus);
        }
    }

    /// Whether another sandbox fits.
    fn check(&self, quota: &Quota, limits: &Limits) -> Result<(), DaemonError> {
        self.check_cpus(quota, limits)?;
        Self::check_rows([
            ("sandboxes", quota.sandboxes.map(u64::from), self.sandboxes, 1),
            ("MiB of memory", quota.memory_mib, self.memory_mib, limits.memory_mib),
            ("MiB of disk", quota.disk_mib, self.disk_mib, limits.disk_mib),
        ])
    }

    /// Whether what a paused sandbox does not use and a running one does fits.
    fn check_cpus(&self, quota: &Quota, limits: &Limits) -> Result<(), DaemonError> {
        Self::check_rows([("CPUs", quota.cpus.map(u64::from), self.cpus, u64::from(limits.cpus))])
    }

    /// What is counted: its name, the quota, what is used and what is asked for.
    fn check_rows<const ROWS: usize>(rows: [(&'static str, Option<u64>, u64, u64); ROWS]) -> Result<(), DaemonError> {
        for (what, quota, used, asked) in rows {
            if let Some(quota) = quota
                && used.saturating_add(asked) > quota
            {
                return Err(DaemonError::QuotaExceeded {
                    what,
                    quota,
                    used,
                    asked,
                });
            }
        }
        Ok(())
    }
}
