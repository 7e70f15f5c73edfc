//! What a key may have at a time, against what it has.

use crate::error::DaemonError;
use crate::registry::Quota;
use crate::view::SandboxLimits;

use super::entry::SandboxFacts;

/// What the sandboxes of one key use of its quota.
#[derive(Debug, Default)]
pub(super) struct QuotaUse {
    sandboxes: u64,
    cpus: u64,
    memory_mib: u64,
    disk_mib: u64,
}

impl QuotaUse {
    /// With what the volumes of the key count, MiB of disk.
    pub(super) fn of_volumes(disk_mib: u64) -> Self {
        Self {
            disk_mib,
            ..Self::default()
        }
    }

    pub(super) fn add(&mut self, facts: &SandboxFacts) {
        let limits = &facts.specification().limits;
        self.sandboxes += 1;
        if facts.uses_memory() {
            self.memory_mib = self.memory_mib.saturating_add(limits.memory_mib);
        }
        self.disk_mib = self.disk_mib.saturating_add(limits.disk_mib);
        if facts.uses_cpus() {
            self.cpus += u64::from(limits.cpus);
        }
    }

    /// A build that goes on: it counts as a sandbox with what its commands have.
    pub(super) fn add_build(&mut self, usage: &SandboxLimits) {
        self.sandboxes += 1;
        self.cpus += u64::from(usage.cpus);
        self.memory_mib = self.memory_mib.saturating_add(usage.memory_mib);
        self.disk_mib = self.disk_mib.saturating_add(usage.disk_mib);
    }

    /// What a build may have: what builds usually have, or what of the quota is left, and never less than `least`.
    pub(super) fn left(&self, quota: &Quota, usual: SandboxLimits, least: SandboxLimits) -> SandboxLimits {
        let of = |quota: Option<u64>, used: u64, usual: u64, least: u64| match quota {
            Some(quota) => usual.min(quota.saturating_sub(used)).max(least),
            None => usual,
        };
        let cpus = of(
            quota.cpus.map(u64::from),
            self.cpus,
            u64::from(usual.cpus),
            u64::from(least.cpus),
        );
        SandboxLimits {
            cpus: u32::try_from(cpus).unwrap_or(usual.cpus),
            memory_mib: of(quota.memory_mib, self.memory_mib, usual.memory_mib, least.memory_mib),
            disk_mib: of(quota.disk_mib, self.disk_mib, usual.disk_mib, least.disk_mib),
            ..usual
        }
    }

    /// Whether another sandbox fits.
    pub(super) fn check(&self, quota: &Quota, limits: &SandboxLimits) -> Result<(), DaemonError> {
        self.check_cpus(quota, limits)?;
        self.check_memory(quota, limits)?;
        Self::check_rows([
            ("sandboxes", quota.sandboxes.map(u64::from), self.sandboxes, 1),
            ("MiB of disk", quota.disk_mib, self.disk_mib, limits.disk_mib),
        ])
    }

    /// Whether so many MiB of disk more fit.
    pub(super) fn check_disk(&self, quota: &Quota, asked_mib: u64) -> Result<(), DaemonError> {
        Self::check_rows([("MiB of disk", quota.disk_mib, self.disk_mib, asked_mib)])
    }

    /// Whether what a paused sandbox does not use and a running one does fits.
    pub(super) fn check_cpus(&self, quota: &Quota, limits: &SandboxLimits) -> Result<(), DaemonError> {
        Self::check_rows([("CPUs", quota.cpus.map(u64::from), self.cpus, u64::from(limits.cpus))])
    }

    /// Whether the memory of one whose files alone were kept fits.
    pub(super) fn check_memory(&self, quota: &Quota, limits: &SandboxLimits) -> Result<(), DaemonError> {
        Self::check_rows([("MiB of memory", quota.memory_mib, self.memory_mib, limits.memory_mib)])
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
