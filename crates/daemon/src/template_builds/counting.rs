//! What a build counts against its key: it is a sandbox like any other as long as it goes on, and its files stay.

use std::time::Duration;

use offleash_supervisor::builds::BuildUsage;
use tokio::time::{Instant, sleep};

use super::BuildService;
use crate::caller::Caller;
use crate::error::DaemonError;
use crate::registry::BuildState;
use crate::sandboxes::{BuildReservation, SandboxClaim};
use crate::view::SandboxLimits;

/// What commands of a build have where no quota says less, MiB.
const USUAL_MEMORY_MIB: u64 = 4 << 10;
const USUAL_DISK_MIB: u64 = 8 << 10;
/// With less than this no build begins.
const LEAST: SandboxLimits = SandboxLimits {
    memory_mib: 128,
    disk_mib: 128,
    ..SandboxLimits::LEAST
};
/// How long a build waits for other sandboxes and builds of its key to end.
const ROOM_TIMEOUT: Duration = Duration::from_secs(600);
const ROOM_INTERVAL: Duration = Duration::from_millis(500);

impl BuildService {
    /// Counts a build to its key, if there is room for it now.
    ///
    /// # Errors
    /// `QuotaExceeded`, `Store`.
    pub(super) async fn reserve(&self, caller: &Caller, build: &str) -> Result<BuildReservation, DaemonError> {
        let claim = SandboxClaim {
            owner: &caller.key_id,
            quota: &caller.quota,
            limits: &SandboxLimits {
                cpus: self.config.default_limits.cpus,
                memory_mib: USUAL_MEMORY_MIB,
                disk_mib: USUAL_DISK_MIB,
                pids: self.config.default_limits.pids,
            },
            volumes_mib: self.volumes.size_of(caller).await?,
            max: self.config.max_sandboxes,
            idempotency_key: None,
            name: None,
        };
        self.core.sandboxes.reserve_build(build, &claim, LEAST)
    }

    /// The same, once there is room.
    ///
    /// # Errors
    /// As [`Self::reserve`], when it waited for long.
    pub(super) async fn reserve_soon(&self, caller: &Caller, build: &str) -> Result<BuildReservation, DaemonError> {
        let until = Instant::now() + ROOM_TIMEOUT;
        loop {
            match self.reserve(caller, build).await {
                Err(DaemonError::QuotaExceeded { .. }) if Instant::now() < until => sleep(ROOM_INTERVAL).await,
                reserved => return reserved,
            }
        }
    }

    /// Whether what the key has built leaves room for more.
    ///
    /// # Errors
    /// `QuotaExceeded`, `Store`.
    pub(super) fn check_room(&self, key: &str) -> Result<(), DaemonError> {
        let all = self.templates.look_up(crate::registry::Registry::built_templates)?;
        let mut bytes = 0_u64;
        for template in all.iter().filter(|row| row.key_id == key) {
            let tags = self.templates.look_up(|registry| registry.tags_of(&template.id))?;
            let builds = self.templates.look_up(|registry| registry.builds_of(&template.id))?;
            let is_there = |id: &str| tags.iter().any(|tag| tag.build == id);
            let there = builds
                .iter()
                .filter(|build| build.state == BuildState::Ready && is_there(&build.id));
            bytes = there.fold(bytes, |sum, build| sum.saturating_add(build.bytes));
        }
        let (quota, used) = (self.config.templates.max_mib, bytes >> 20);
        match used >= quota {
            true => Err(DaemonError::QuotaExceeded {
                what: "MiB of templates",
                quota,
                used,
                asked: 1,
            }),
            false => Ok(()),
        }
    }
}

/// What a builder is told of a reservation: nothing where the key has no quota.
pub(super) fn usage_of(caller: &Caller, reservation: &BuildReservation) -> BuildUsage {
    let (quota, usage) = (&caller.quota, &reservation.usage);
    BuildUsage {
        cpus: quota.cpus.map(|_| usage.cpus),
        memory_mib: quota.memory_mib.map(|_| usage.memory_mib),
        disk_mib: quota.disk_mib.map(|_| usage.disk_mib),
    }
}
