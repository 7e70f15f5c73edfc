//! Whether the machine has enough left for one more sandbox.
//!
//! Looked at before anything is made: a create that would drag everybody down is refused at once.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::config::AdmissionConfig;
use crate::error::DaemonError;

/// How long one look holds: a burst of creates does not read the same files again and again.
const HOLDS_FOR: Duration = Duration::from_millis(200);
/// What callers are told to wait.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// What the machine has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct MachineRoom {
    memory_mib: u64,
    pids: u64,
    disk_mib: u64,
}

/// The bounds, and the latest look.
#[derive(Debug)]
pub(crate) struct AdmissionControl {
    config: AdmissionConfig,
    state: PathBuf,
    latest: Mutex<Option<(Instant, MachineRoom)>>,
}

impl AdmissionControl {
    pub(crate) fn new(config: AdmissionConfig, state: PathBuf) -> Self {
        Self {
            config,
            state,
            latest: Mutex::default(),
        }
    }

    /// Fails if one more sandbox is too much now.
    pub(crate) fn check(&self) -> Result<(), DaemonError> {
        self.check_beside(0)
    }

    /// As [`Self::check`], where so many MiB of memory are about to be used by others.
    pub(crate) fn check_beside(&self, expected_mib: u64) -> Result<(), DaemonError> {
        let left = self.left();
        let least_mib = self.config.min_memory_mib.saturating_add(expected_mib);
        for (what, left, least) in [
            ("memory", left.memory_mib, least_mib),
            ("processes", left.pids, self.config.min_pids),
            ("disk space", left.disk_mib, self.config.min_disk_mib),
        ] {
            if left < least {
                return Err(DaemonError::Overloaded {
                    what,
                    retry_after: RETRY_AFTER,
                });
            }
        }
        Ok(())
    }

    /// Fails if the disk has no room for so many bytes more.
    pub(crate) fn check_disk(&self, bytes: u64) -> Result<(), DaemonError> {
        let least = self.config.min_disk_mib.saturating_add(bytes.div_ceil(1024 * 1024));
        if self.left().disk_mib < least {
            return Err(DaemonError::Overloaded {
                what: "disk space",
                retry_after: RETRY_AFTER,
            });
        }
        Ok(())
    }

    /// How many bytes more the disk has room for.
    pub(crate) fn disk_room(&self) -> u64 {
        let mib = self.left().disk_mib.saturating_sub(self.config.min_disk_mib);
        mib.saturating_mul(1024 * 1024)
    }

    fn left(&self) -> MachineRoom {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        match *latest {
            Some((when, left)) if when.elapsed() < HOLDS_FOR => left,
            _ => {
                let left = self.look();
                *latest = Some((Instant::now(), left));
                left
            }
        }
    }

    /// What cannot be found out does not stand in the way.
    fn look(&self) -> MachineRoom {
        let read = |path| std::fs::read_to_string(path).ok();
        MachineRoom {
            memory_mib: read("/proc/meminfo")
                .as_deref()
                .and_then(available_mib)
                .unwrap_or(u64::MAX),
            pids: pids_left(read).unwrap_or(u64::MAX),
            disk_mib: self.disk_mib().unwrap_or(u64::MAX),
        }
    }

    fn disk_mib(&self) -> Option<u64> {
        let disk = rustix::fs::statvfs(&self.state).ok()?;
        Some(disk.f_bavail.saturating_mul(disk.f_frsize) / (1024 * 1024))
    }
}

fn available_mib(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
    Some(kib / 1024)
}

/// Numbers that are free, or threads that are possible, whichever are fewer (proc_sys_kernel(5)).
fn pids_left(read: impl Fn(&'static str) -> Option<String>) -> Option<u64> {
    let number = |path| read(path)?.trim().parse::<u64>().ok();
    let most = number("/proc/sys/kernel/pid_max")?.min(number("/proc/sys/kernel/threads-max")?);
    let loadavg = read("/proc/loadavg")?;
    // `running/all`, threads counted.
    let all = loadavg.split_ascii_whitespace().nth(3)?.split_once('/')?.1;
    Some(most.saturating_sub(all.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_short_is_named() {
        let plenty = AdmissionConfig {
            min_memory_mib: 0,
            min_pids: 0,
            min_disk_mib: 0,
        };
        let check = |config| AdmissionControl::new(config, "/".into()).check();
        assert!(check(plenty).is_ok());
        for (config, expected) in [
            (
                AdmissionConfig {
                    min_memory_mib: u64::MAX,
                    ..plenty
                },
                "memory",
            ),
            (
                AdmissionConfig {
                    min_pids: u64::MAX,
                    ..plenty
                },
                "processes",
            ),
            (
                AdmissionConfig {
                    min_disk_mib: u64::MAX,
                    ..plenty
                },
                "disk space",
            ),
        ] {
            match check(config) {
                Err(DaemonError::Overloaded { what, .. }) => assert_eq!(what, expected),
                other => panic!("{expected}: {other:?}"),
            }
        }
    }

    #[test]
    fn what_is_about_to_be_used_is_counted() {
        let config = AdmissionConfig {
            min_memory_mib: 1,
            min_pids: 0,
            min_disk_mib: 0,
        };
        let admission = AdmissionControl::new(config, "/".into());
        assert!(admission.check_beside(0).is_ok());
        assert!(admission.check_beside(u64::MAX).is_err());
    }

    #[test]
    fn what_the_kernel_says_is_understood() {
        assert_eq!(available_mib("MemTotal: 8 kB\nMemAvailable:   2048 kB\n"), Some(2));
        let files = |path: &'static str| {
            Some(
                match path {
                    "/proc/sys/kernel/pid_max" => "1000\n",
                    "/proc/sys/kernel/threads-max" => "900\n",
                    _ => "0.5 0.5 0.5 2/300 1234\n",
                }
                .to_owned(),
            )
        };
        assert_eq!(pids_left(files), Some(600));
        assert_eq!(pids_left(|_| None), None);
    }
}
