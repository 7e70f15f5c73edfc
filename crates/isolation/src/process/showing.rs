//! Keeps up to date what a sandbox is shown of its limits.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use offleash_core::plan::Plan;
use offleash_sys::seccomp::MemoryFigures;
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::process::Pid;

use crate::limits::shown::{GroupForm, ShownLimits, UsedAmounts, stat_of};
use crate::sandbox::UsageMeasure;

/// The places below the directory that are written to, beside each other's parents.
pub(super) const GROUPS: &str = "sys/fs/cgroup";
pub(super) const MEMINFO: &str = "proc/meminfo";
pub(super) const STAT: &str = "proc/stat";

/// How often they change at most.
const PERIOD: Duration = Duration::from_secs(1);

/// The files of one sandbox.
#[derive(Debug)]
pub(super) struct ShownFiles {
    directory: OwnedFd,
    shown: ShownLimits,
    form: GroupForm,
    /// The processors whose times are shown, where they are not all.
    cpus: Option<Vec<usize>>,
    written: BTreeMap<String, String>,
    due: Instant,
}

impl ShownFiles {
    /// Those in `directory`, of the sandbox of this first process.
    pub(super) fn new(plan: &Plan, first: Pid, directory: OwnedFd) -> Option<Self> {
        let machine = rustix::system::sysinfo();
        let bytes = machine.totalram.saturating_mul(machine.mem_unit.into());
        let allowed = rustix::thread::sched_getaffinity(Some(first)).ok()?;
        let cpus = (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
        Self::of(ShownLimits::of(&plan.limits, cpus.collect(), bytes)?, directory)
    }

    fn of(shown: ShownLimits, directory: OwnedFd) -> Option<Self> {
        let has = |name: &Path| rustix::fs::statat(&directory, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).is_ok();
        let form = match has(&Path::new(GROUPS).join("cgroup.controllers")) {
            true => GroupForm::V2,
            false => GroupForm::V1,
        };
        Some(Self {
            cpus: has(Path::new(STAT)).then(|| shown.cpus().to_vec()),
            shown,
            form,
            written: BTreeMap::new(),
            due: Instant::now() + PERIOD,
            directory,
        })
    }

    /// The figures of memory with nothing in use, where it is limited.
    pub(super) fn figures(&self, used: &UsedAmounts) -> Option<MemoryFigures> {
        self.shown.figures(used)
    }

    /// Whether it is time for [`Self::refresh`].
    pub(super) fn is_due(&self, now: Instant) -> bool {
        now >= self.due
    }

    /// Writes what has changed; answers the figures of memory.
    pub(super) fn refresh(&mut self, now: Instant, measure: &UsageMeasure) -> Option<MemoryFigures> {
        self.due = now + PERIOD;
        let used = UsedAmounts {
            memory: measure.memory_bytes,
            peak: measure.memory_peak_bytes,
            cache: measure.memory_cache_bytes,
            pids: measure.pids,
            cpu_us: measure.cpu_us,
        };
        for (name, text) in self.shown.group(self.form, &used) {
            self.write(format!("{GROUPS}/{name}"), text);
        }
        if let Some(text) = self.shown.meminfo(&used) {
            self.write(MEMINFO.to_owned(), text);
        }
        if let Some(cpus) = &self.cpus
            && let Ok(text) = std::fs::read_to_string("/proc/stat")
        {
            let text = stat_of(&text, cpus);
            self.write(STAT.to_owned(), text);
        }
        self.figures(&used)
    }

    /// A sandbox that sees older numbers is none the worse for it.
    fn write(&mut self, name: String, text: String) {
        if self.written.get(&name) == Some(&text) {
            return;
        }
        if self.put(&name, text.as_bytes()).is_ok() {
            self.written.insert(name, text);
        }
    }

    /// In place, since what is mounted elsewhere is that very file; it is cut only after that, so that nobody finds it empty.
    fn put(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = rustix::fs::openat2(self.directory.as_fd(), name, flags, Mode::empty(), resolve)?;
        let file = File::from(file);
        file.write_all_at(bytes, 0)?;
        file.set_len(u64::try_from(bytes.len()).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use offleash_core::limits::Limits;
    use offleash_core::units::Bytes;

    use super::*;

    #[test]
    fn what_has_changed_is_written_in_place_and_nothing_is_followed_or_made() {
        let scratch = tempfile::tempdir().unwrap();
        let groups = scratch.path().join(GROUPS);
        std::fs::create_dir_all(&groups).unwrap();
        let outside = scratch.path().join("outside");
        for file in ["cgroup.controllers", "memory.current", "pids.current"] {
            std::fs::write(groups.join(file), "a longer text than follows\n".repeat(9)).unwrap();
        }
        std::fs::write(&outside, "untouched").unwrap();
        std::os::unix::fs::symlink(&outside, groups.join("memory.stat")).unwrap();
        let limits = Limits {
            memory: Some(Bytes::mib(100)),
            ..Limits::default()
        };
        let directory = File::open(scratch.path()).unwrap();
        let mut showing =
            ShownFiles::of(ShownLimits::of(&limits, vec![0, 1], 1 << 40).unwrap(), directory.into()).unwrap();
        assert_eq!(showing.form, GroupForm::V2);
        let now = Instant::now();
        assert!(!showing.is_due(now) && showing.is_due(now + PERIOD * 2));
        let measure = UsageMeasure {
            cpu_us: 5,
            memory_bytes: 30 << 20,
            memory_cache_bytes: 0,
            memory_peak_bytes: 40 << 20,
            pids: 3,
            disk_bytes: 0,
        };
        let figures = showing.refresh(now, &measure).unwrap();
        assert_eq!((figures.total, figures.free), (100 << 20, 70 << 20));
        let text = |file: &str| std::fs::read_to_string(groups.join(file)).unwrap();
        assert_eq!(
            (text("memory.current"), text("pids.current")),
            ("31457280\n".into(), "3\n".into())
        );
        assert_eq!(std::fs::read_to_string(&outside).unwrap(), "untouched");
        assert!(!groups.join("memory.peak").exists() && !scratch.path().join(MEMINFO).exists());
    }
}
