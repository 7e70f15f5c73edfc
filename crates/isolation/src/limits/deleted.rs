//! Finds files that are in use but have no name any more: they take disk that no walk over directories sees.
//!
//! Looked through are the descriptors of every thread, since a thread can have a table of its own, and mappings. What
//! is on its way in a socket cannot be seen, nor can what a process does not let us look at: the search tells that such
//! a place exists, and whoever asked can hold the growth of the file system against it.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::hash::BuildHasher;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

/// How long a search may take; what was not looked at by then is as good as concealed.
const TIMEOUT: Duration = Duration::from_millis(200);

/// What a search found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct NamelessFiles {
    /// Bytes on disk, each file once, however many descriptors and mappings refer to it.
    pub(super) bytes: u64,
    /// There is a place in which files may be that were not seen.
    pub(super) concealed: bool,
}

/// Searches `processes`, the first of which is the sandbox's own first one, for files on a disk, and on `devices`, which are those of
/// what is measured: a layer may be in memory that is not the sandbox's.
///
/// That one may refuse to be looked at, and what runs its program: it is our agent, which is closed to the code in the
/// sandbox as well, and which no code can start. Nothing is opened for reading or writing that a descriptor or a mapping
/// refers to.
pub(super) fn search(processes: &[u32], devices: Vec<u64>) -> NamelessFiles {
    let Some((first, others)) = processes.split_first() else {
        return NamelessFiles::default();
    };
    let mut search = NamelessSearch {
        agent: *first,
        devices,
        found: NamelessFiles::default(),
        seen: HashSet::new(),
        inodes: HashSet::new(),
        deadline: Instant::now() + TIMEOUT,
    };
    let mut order = others.to_vec();
    // In an order that nobody can know, or a file would be handed from those that come later to those that came before.
    shuffle(&mut order);
    order.insert(0, *first);
    // What is cheap and usual first, since time may run out.
    for pid in &order {
        search.descriptors(*pid, *pid);
    }
    for pid in &order {
        search.other_threads(*pid);
        search.mappings(*pid);
    }
    search.found
}

fn shuffle(pids: &mut [u32]) {
    // Its keys are random, and differ from one another.
    let state = std::hash::RandomState::new();
    pids.sort_by_cached_key(|pid| state.hash_one(pid));
}

/// The file that a process runs, by device and inode; `None` where it has ended, or does not let us look.
fn program(pid: u32) -> Option<(u64, u64)> {
    let stat = rustix::fs::stat(format!("/proc/{pid}/exe")).ok()?;
    Some((stat.st_dev, stat.st_ino))
}

struct NamelessSearch {
    /// Our agent.
    agent: u32,
    /// Devices whose files count whatever they are made of.
    devices: Vec<u64>,
    found: NamelessFiles,
    /// Device and inode of files that were counted.
    seen: HashSet<(u64, u64)>,
    /// The inodes alone.
    inodes: HashSet<u64>,
    deadline: Instant,
}

impl NamelessSearch {
    fn other_threads(&mut self, pid: u32) {
        for thread in threads(pid).filter(|thread| *thread != pid) {
            self.descriptors(pid, thread);
        }
    }

    /// Whether a process is the agent, or one that it made to move files.
    fn may_refuse(&self, pid: u32) -> bool {
        pid == self.agent || program(pid).is_some_and(|program_of_it| program(self.agent) == Some(program_of_it))
    }

    fn descriptors(&mut self, pid: u32, thread: u32) {
        if self.is_late() {
            return;
        }
        let path = format!("/proc/{pid}/task/{thread}/fd");
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = fs::read_dir(&path).and_then(|entries| {
            let directory = rustix::fs::open(&path, flags, Mode::empty())?;
            Ok((entries, directory))
        });
        let Ok((entries, directory)) = opened else {
            self.found.concealed |= may_hold_files(pid, thread) && !self.may_refuse(pid);
            return;
        };
        for entry in entries.flatten() {
            if self.is_late() {
                return;
            }
            let fd = entry.file_name();
            // Following the link is meant: it leads to the open file itself, not along a path.
            let Ok(stat) = rustix::fs::statat(&directory, &fd, AtFlags::empty()) else {
                continue;
            };
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile if stat.st_nlink == 0 && self.is_on_a_disk(&stat, &directory, &fd) => {
                    self.count(&stat);
                }
                FileType::Socket => self.found.concealed |= descriptors_in_flight(pid, thread, &fd),
                _ => {}
            }
        }
    }

    fn mappings(&mut self, pid: u32) {
        if self.is_late() {
            return;
        }
        let Some(text) = maps(pid) else {
            self.found.concealed |= threads(pid).any(|thread| may_hold_files(pid, thread)) && !self.may_refuse(pid);
            return;
        };
        let mut in_memory = None;
        for mapping in text.lines().filter_map(NamelessMapping::parse) {
            if self.is_late() {
                return;
            }
            let link = format!("/proc/{pid}/map_files/{}", mapping.range);
            match rustix::fs::stat(&link) {
                Ok(stat) if stat.st_nlink == 0 && self.is_on_a_disk(&stat, rustix::fs::CWD, link.as_ref()) => {
                    self.count_mapped(&stat);
                }
                // Unmapped meanwhile, or in memory, or under another name still.
                Ok(_) | Err(Errno::NOENT | Errno::SRCH) => {}
                // Following the link takes a capability on the host.
                Err(_) => {
                    let in_memory = in_memory.get_or_insert_with(|| {
                        let mut devices = devices_in_memory(pid);
                        devices.retain(|device| !self.devices.iter().any(|own| numbers(*own) == *device));
                        devices
                    });
                    self.found.concealed |= !self.has_inode(mapping.inode) && !in_memory.contains(&mapping.device);
                }
            }
        }
    }

    fn is_on_a_disk(&self, stat: &Stat, directory: impl AsFd, name: &OsStr) -> bool {
        self.devices.contains(&stat.st_dev) || is_on_a_disk(directory, name)
    }

    /// By inode alone: before Linux 6.8 a mapping of a file in an overlay is one of the layer's file, whose device is
    /// another than the descriptor's.
    fn count_mapped(&mut self, stat: &Stat) {
        if !self.has_inode(stat.st_ino) {
            self.count(stat);
        }
    }

    fn has_inode(&self, inode: u64) -> bool {
        self.inodes.contains(&inode)
    }

    fn is_late(&mut self) -> bool {
        let late = Instant::now() >= self.deadline;
        self.found.concealed |= late;
        late
    }

    fn count(&mut self, stat: &Stat) {
        self.inodes.insert(stat.st_ino);
        if self.seen.insert((stat.st_dev, stat.st_ino)) {
            let bytes = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512);
            self.found.bytes = self.found.bytes.saturating_add(bytes);
        }
    }
}

/// A mapped file whose name is gone, in a line of `/proc/PID/maps` (`proc_pid_maps(5)`).
#[derive(Debug, PartialEq, Eq)]
struct NamelessMapping {
    /// Its name in `/proc/PID/map_files`.
    range: String,
    /// Major and minor number.
    device: (u64, u64),
    inode: u64,
}

impl NamelessMapping {
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.strip_suffix(" (deleted)")?.split_ascii_whitespace();
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let (start, end) = fields.next()?.split_once('-')?;
        // Here without the zeros that `maps` fills up with.
        let range = format!("{:x}-{:x}", hex(start)?, hex(end)?);
        let (major, minor) = fields.nth(2)?.split_once(':')?;
        Some(Self {
            range,
            device: (hex(major)?, hex(minor)?),
            inode: fields.next()?.parse().ok()?,
        })
    }
}

fn threads(pid: u32) -> impl Iterator<Item = u32> {
    let entries = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// What a process has mapped; `None` where we may not look. The memory is the same for all threads, but a first thread
/// that has ended shows none of it.
fn maps(pid: u32) -> Option<String> {
    let read = |thread: u32| {
        // A path may hold any bytes.
        let bytes = fs::read(format!("/proc/{pid}/task/{thread}/maps")).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    };
    let text = read(pid);
    if text.as_ref().is_some_and(|text| !text.is_empty()) {
        return text;
    }
    let others = threads(pid).filter(|thread| *thread != pid);
    others.filter_map(read).find(|text| !text.is_empty()).or(text)
}

/// Whether a thread that does not let us look is alive: one that has ended refuses too, and holds nothing.
fn may_hold_files(pid: u32, thread: u32) -> bool {
    let Ok(stat) = fs::read(format!("/proc/{pid}/task/{thread}/stat")) else {
        return false;
    };
    let stat = String::from_utf8_lossy(&stat);
    let state = stat
        .rsplit_once(')')
        .and_then(|(_, rest)| rest.trim_start().chars().next());
    !matches!(state, Some('Z' | 'X'))
}

/// Whether descriptors wait in a socket to be received (`scm_fds` in fdinfo, Linux 5.15; older kernels do not tell).
fn descriptors_in_flight(pid: u32, thread: u32, fd: &OsStr) -> bool {
    let path = format!("/proc/{pid}/task/{thread}/fdinfo/{}", fd.to_string_lossy());
    match fs::read_to_string(path) {
        Ok(text) => scm_fds(&text) > 0,
        // Closed meanwhile is no hiding place.
        Err(error) => error.kind() == std::io::ErrorKind::PermissionDenied,
    }
}

fn scm_fds(fdinfo: &str) -> u64 {
    let value = fdinfo.lines().find_map(|line| line.strip_prefix("scm_fds:"));
    value.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
}

/// The major and minor number of a device.
fn numbers(device: u64) -> (u64, u64) {
    (rustix::fs::major(device).into(), rustix::fs::minor(device).into())
}

/// The devices of file systems in memory that `pid` sees, with that of memfd and shared anonymous memory.
fn devices_in_memory(pid: u32) -> HashSet<(u64, u64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
    let mut devices: HashSet<_> = text.lines().filter_map(device_of_memory_mount).collect();
    let memfd = rustix::fs::memfd_create("offleash", rustix::fs::MemfdFlags::CLOEXEC);
    if let Ok(stat) = memfd.and_then(rustix::fs::fstat) {
        devices.insert(numbers(stat.st_dev));
    }
    devices
}

fn device_of_memory_mount(line: &str) -> Option<(u64, u64)> {
    let (mount, file_system) = line.split_once(" - ")?;
    if !matches!(
        file_system.split(' ').next()?,
        "tmpfs" | "ramfs" | "hugetlbfs" | "devtmpfs"
    ) {
        return None;
    }
    let (major, minor) = mount.split(' ').nth(2)?.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Whether the file is not in memory: those of tmpfs and memfd count as memory.
fn is_on_a_disk(directory: impl AsFd, name: &OsStr) -> bool {
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::openat(directory, name, flags, Mode::empty()) else {
        return false;
    };
    let Ok(found) = rustix::fs::fstatfs(&file) else {
        return false;
    };
    !matches!(u64::try_from(found.f_type), Ok(TMPFS_MAGIC | HUGETLBFS_MAGIC))
}

#[cfg(test)]
#[path = "deleted_tests.rs"]
mod tests;
