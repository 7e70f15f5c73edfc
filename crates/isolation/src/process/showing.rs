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

use crate::limits::shown::{Amounts, Form, Shown, stat_of};
use crate::sandbox::Measure;

/// The places below the directory that are written to, beside each other's parents.
pub(super) const GROUPS: &str = "sys/fs/cgroup";
pub(super) const MEMINFO: &str = "proc/meminfo";
pub(super) const STAT: &str = "proc/stat";

/// How often they change at most.
const PERIOD: Duration = Duration::from_secs(1);

/// The files of one sandbox.
#[derive(Debug)]
pub(super) struct Showing {
    directory: OwnedFd,
    shown: Shown,
    form: Form,
    /// The processors whose times are shown, where they are not all.
    cpus: Option<Vec<usize>>,
    written: BTreeMap<String, String>,
    due: Instant,
}

impl Showing {
    /// Those in `directory`, of the sandbox of this first process.
    pub(super) fn new(plan: &Plan, first: Pid, directory: OwnedFd) -> Option<Self> {
        let machine = rustix::system::sysinfo();
        let bytes = machine.totalram.saturating_mul(machine.mem_unit.into());
        let allowed = rustix::thread::sched_getaffinity(Some(first)).ok()?;
        let cpus: Vec<usize> = (0..rustix::thread::CpuSet::MAX_CPU)
            .filter(|cpu| allowed.is_set(*cpu))
            .collect();
        let has = |name: &Path| rustix::fs::statat(&directory, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).is_ok();
        let form = match has(&Path::new(GROUPS).join("cgroup.controllers")) {
            true => Form::V2,
            false => Form::V1,
        };
        Some(Self {
            shown: Shown::of(&plan.limits, cpus.clone(), bytes)?,
            form,
            cpus: has(Path::new(STAT)).then_some(cpus),
            written: BTreeMap::new(),
            due: Instant::now() + PERIOD,
            directory,
        })
    }

    /// The figures of memory with nothing in use, where it is limited.
    pub(super) fn figures(&self, used: &Amounts) -> Option<MemoryFigures> {
        self.shown.figures(used)
    }

    /// Whether it is time for [`Self::refresh`].
    pub(super) fn is_due(&self, now: Instant) -> bool {
        now >= self.due
    }

    /// Writes what has changed; answers the figures of memory.
    pub(super) fn refresh(&mut self, now: Instant, measure: &Measure) -> Option<MemoryFigures> {
        self.due = now + PERIOD;
        let used = Amounts {
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
