//! The processes in a sandbox of level `process`, seen from outside: in the procfs that its first process has.
//!
//! Nothing inside is asked, so a guest that hangs hides nobody. Names and arguments are what programs chose.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, OwnedFd};

use offleash_core::spec::ProcessRef;
use offleash_core::text::Text;
use offleash_isolation::process::open_in_procfs;
use offleash_sys::process::start_ticks;
use rustix::fs::{Dir, Mode, OFlags, PROC_SUPER_MAGIC, ResolveFlags, openat2};
use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Signal, pidfd_send_signal};

/// How many processes are told of, those with the lowest numbers.
pub const MAX_PROCESSES: usize = 1000;
/// How many bytes of the arguments of one.
pub const MAX_COMMAND: usize = 4096;
/// How many bytes of any other file of one.
const MAX_FILE: u64 = 16 * 1024;
/// The first process, as the sandbox counts it: ours.
pub const FIRST: u32 = 1;
/// The numbers of proc_pid_stat(5), behind the name.
const PARENT: usize = 1;
const USER_TICKS: usize = 11;
const SYSTEM_TICKS: usize = 12;
const THREADS: usize = 17;
const STARTED: usize = 19;
const RESIDENT: usize = 21;

/// A process, as the kernel has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessEntry {
    /// Its number inside.
    pub pid: u32,
    /// That of its parent; 0 for one that came from outside.
    pub parent: u32,
    /// The first letter of what it does (proc_pid_stat(5)): `R`, `S`, `D`, `T`, `Z`.
    pub state: char,
    /// Its name, 15 bytes at most.
    pub name: Text,
    /// Program and arguments; empty where there are none any more.
    pub command: Vec<Text>,
    /// Whether arguments are missing in that.
    pub is_cut: bool,
    /// Its threads.
    pub threads: u64,
    /// CPU time so far, milliseconds.
    pub cpu_ms: u64,
    /// Memory that it has, bytes; what is shared counts for each.
    pub memory_bytes: u64,
    /// When it was started, in ticks: with its number what tells it from a later one.
    pub start_ticks: u64,
}

/// The processes of one sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessList {
    /// By number.
    pub processes: Vec<ProcessEntry>,
    /// How many there were beyond [`MAX_PROCESSES`].
    pub more: usize,
}

/// The procfs of a sandbox.
#[derive(Debug)]
pub struct SandboxProcesses {
    root: OwnedFd,
}

impl SandboxProcesses {
    /// Of the sandbox with this first process.
    ///
    /// # Errors
    /// `NotFound` when it has ended, `InvalidData` when what it has there is no procfs, and what the kernel answers.
    pub fn of(first: ProcessRef) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(format!("/proc/{}/root", first.pid), flags, Mode::empty())?;
        // Only now: what was opened is of the process that has this number now.
        if start_ticks(first.pid.cast_signed())? != Some(first.start_ticks) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat2(&root, "proc", flags, Mode::empty(), resolve)?;
        match rustix::fs::fstatfs(&root)?.f_type == PROC_SUPER_MAGIC {
            true => Ok(Self { root }),
            false => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Those that are there now.
    ///
    /// # Errors
    /// When the list cannot be read; one that ends meanwhile is left out.
    pub fn list(&self) -> io::Result<ProcessList> {
        let mut numbers = Vec::new();
        for entry in Dir::read_from(&self.root)? {
            let entry = entry?;
            numbers.extend(
                entry
                    .file_name()
                    .to_str()
                    .ok()
                    .and_then(|name| name.parse::<u32>().ok()),
            );
        }
        numbers.sort_unstable();
        let more = numbers.len().saturating_sub(MAX_PROCESSES);
        numbers.truncate(MAX_PROCESSES);
        let processes = numbers.into_iter().filter_map(|pid| self.entry(pid)).collect();
        Ok(ProcessList { processes, more })
    }

    /// Sends a signal to the process with that number which was started then; `false` where there is none.
    ///
    /// # Errors
    /// What the kernel answers.
    pub fn signal(&self, pid: u32, started: u64, signal: Signal) -> io::Result<bool> {
        let Ok(process) = self.open(&pid.to_string(), OFlags::RDONLY | OFlags::DIRECTORY) else {
            return Ok(false);
        };
        // The directory is that of one process and of no later one with its number (proc(5)).
        let stat = read(&process, "stat", MAX_FILE)?;
        if parse(&stat).is_none_or(|stat| stat.start_ticks != started) {
            return Ok(false);
        }
        match pidfd_send_signal(&process, signal) {
            Err(rustix::io::Errno::SRCH) => Ok(false),
            sent => Ok(sent.map(|()| true)?),
        }
    }

    fn entry(&self, pid: u32) -> Option<ProcessEntry> {
        let process = self.open(&pid.to_string(), OFlags::RDONLY | OFlags::DIRECTORY).ok()?;
        let stat = parse(&read(&process, "stat", MAX_FILE).ok()?)?;
        // Of one that has ended there is none.
        let most = u64::try_from(MAX_COMMAND + 1).unwrap_or(u64::MAX);
        let mut command = read(&process, "cmdline", most).unwrap_or_default();
        let is_cut = command.len() > MAX_COMMAND;
        command.truncate(MAX_COMMAND);
        Some(ProcessEntry {
            pid,
            command: arguments(&command),
            is_cut,
            ..stat
        })
    }

    fn open(&self, path: &str, flags: OFlags) -> io::Result<OwnedFd> {
        open_in_procfs(self.root.as_fd(), path, flags)
    }
}

fn read(process: &OwnedFd, file: &str, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = File::from(open_in_procfs(process.as_fd(), file, OFlags::RDONLY)?);
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// What is between zeros; the last one ends with one, too.
fn arguments(bytes: &[u8]) -> Vec<Text> {
    let bytes = bytes.strip_suffix(&[0]).unwrap_or(bytes);
    match bytes.is_empty() {
        true => Vec::new(),
        false => bytes.split(|byte| *byte == 0).map(Text::from).collect(),
    }
}

/// What `stat` says, without the arguments.
fn parse(stat: &[u8]) -> Option<ProcessEntry> {
    // The name can hold anything, brackets too.
    let begin = stat.iter().position(|byte| *byte == b'(')?;
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let name = stat.get(begin + 1..end)?;
    let pid = std::str::from_utf8(stat.get(..begin)?).ok()?.trim().parse().ok()?;
    let rest = std::str::from_utf8(stat.get(end + 1..)?).ok()?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    let ticks = number(USER_TICKS)?.saturating_add(number(SYSTEM_TICKS)?);
    let page = u64::try_from(page_size()).unwrap_or(0);
    Some(ProcessEntry {
        pid,
        parent: u32::try_from(number(PARENT)?).ok()?,
        state: fields.first()?.chars().next()?,
        name: Text::from(name),
        command: Vec::new(),
        is_cut: false,
        threads: number(THREADS)?,
        cpu_ms: ticks.saturating_mul(1000) / clock_ticks_per_second().max(1),
        memory_bytes: number(RESIDENT)?.saturating_mul(page),
        start_ticks: number(STARTED)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This process, whose root has a procfs, too.
    fn own() -> SandboxProcesses {
        let pid = std::process::id();
        let start_ticks = start_ticks(pid.cast_signed()).unwrap().unwrap();
        SandboxProcesses::of(ProcessRef { pid, start_ticks }).unwrap()
    }

    #[test]
    fn what_the_kernel_says_of_a_process_is_understood_whatever_its_name() {
        let line = "7 (a) S 1 (b)) R 2 3 4 0 -1 0 0 0 0 0 150 50 0 0 20 0 3 0 9876 1000 5 0\n";
        let entry = parse(line.as_bytes()).unwrap();
        assert_eq!((entry.pid, entry.parent, entry.state, entry.threads), (7, 2, 'R', 3));
        assert_eq!(entry.name, Text::from("a) S 1 (b)"));
        assert_eq!(entry.start_ticks, 9876);
        assert_eq!(entry.cpu_ms, 200 * 1000 / clock_ticks_per_second());
        assert_eq!(entry.memory_bytes, 5 * u64::try_from(page_size()).unwrap());
        for broken in ["", "7 (a) S", "7 a S 1", "(a) R 2 3 4", "7 (a) R x"] {
            assert_eq!(parse(broken.as_bytes()), None, "{broken}");
        }
    }

    #[test]
    fn arguments_are_told_apart_by_zeros() {
        let told = |bytes: &[u8]| arguments(bytes).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(told(b"sh\0-c\0a b\0"), ["sh", "-c", "a b"]);
        assert_eq!(told(b"a\0\0"), ["a", "$''"]);
        assert!(told(b"").is_empty());
        assert_eq!(told(b"\x1b[2J"), [r"$'\x1b[2J'"]);
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test starts programs itself")]
    fn long_arguments_are_cut() {
        let mut child = std::process::Command::new("sh")
            .args(["-c", "read -r line", &"x".repeat(2 * MAX_COMMAND)])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let listed = own().list().unwrap();
        let found = own().entry(child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        let found = found.unwrap();
        assert!(found.is_cut && found.command.iter().map(|one| one.0.len()).sum::<usize>() <= MAX_COMMAND);
        assert!(listed.processes.len() <= MAX_PROCESSES && !listed.processes.is_empty());
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test starts programs itself")]
    fn a_signal_reaches_the_process_that_is_meant_and_no_later_one_with_its_number() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let processes = own();
        let started = processes.entry(child.id()).unwrap().start_ticks;
        assert!(!processes.signal(child.id(), started + 1, Signal::KILL).unwrap());
        assert!(child.try_wait().unwrap().is_none());
        assert!(processes.signal(child.id(), started, Signal::KILL).unwrap());
        assert!(!child.wait().unwrap().success());
        assert!(!processes.signal(u32::MAX, 0, Signal::KILL).unwrap());
    }

    #[test]
    fn a_sandbox_that_has_ended_has_none() {
        let gone = ProcessRef {
            pid: std::process::id(),
            start_ticks: 0,
        };
        let error = SandboxProcesses::of(gone).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
