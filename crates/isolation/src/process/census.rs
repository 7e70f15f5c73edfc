//! Who is in a sandbox, by its own process ids: whether a zygote has put more there than the one copy that was asked for.
//!
//! Whoever was given the namespaces of a sandbox can start processes there at any time, and they need not take on what
//! the sandbox's own have. They are found in a procfs that was opened before anything but our own code was inside, since
//! who has the mounts may cover it later.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Dir, Mode, OFlags, PROC_SUPER_MAGIC, ResolveFlags, openat2};
use rustix::process::{Pid, Signal, pidfd_send_signal};

/// The first process, as the sandbox counts it.
const FIRST: u32 = 1;
/// As a parent or a session: one that is not in the sandbox.
const OUTSIDE: u32 = 0;
/// How often those that are to end are looked for, and how long after each time.
const ROUNDS: u32 = 100;
const BETWEEN_ROUNDS: Duration = Duration::from_millis(1);
/// The namespaces of a sandbox, as `/proc/PID/ns` names them.
pub(super) const NAMESPACES: [&str; 7] = ["user", "pid", "mnt", "net", "ipc", "uts", "cgroup"];
/// What a zygote has one of its own of.
const TIME: &str = "time";
/// The flag of one that is being ended, in `/proc/PID/stat` (`PF_EXITING` in the kernel's `sched.h`).
const EXITING: u64 = 0x4;
/// Every set of capabilities in `/proc/PID/status`.
pub(super) const CAPABILITIES: [&str; 5] = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"];

/// The processes of one sandbox.
#[derive(Debug)]
pub(super) struct ProcessAudit {
    /// The root of its procfs.
    processes: OwnedFd,
}

/// One of them, at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AuditedProcess {
    number: u32,
    session: u32,
    start_ticks: u64,
}

/// What `/proc/PID/stat` says of one (proc_pid_stat(5)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ProcessStat {
    is_dead: bool,
    /// Whether all of it is on its way to be that: the kernel then shows it in no cgroup any more.
    is_ending: bool,
    parent: u32,
    session: u32,
    start_ticks: u64,
}

/// Those that may be there beside the first process and the copy.
#[derive(Debug)]
pub(super) enum OtherProcesses {
    /// Nobody: nothing was ever started there.
    Nobody,
    /// These, which were there before, and what the sandbox's own processes start meanwhile.
    These(Vec<AuditedProcess>),
}

/// What was found, by numbers.
#[derive(Debug, Default)]
struct AuditResult {
    fine: Vec<u32>,
    strangers: Vec<u32>,
    dead: Vec<u32>,
    /// Of which something could not be seen, as that of one that is about to end.
    unclear: Vec<u32>,
}

impl ProcessAudit {
    /// Of the sandbox of this first process, in which nothing but our own code may have run.
    ///
    /// # Errors
    /// What the kernel answered; `InvalidData` when its `/proc` is none.
    pub(super) fn of(first: Pid) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(format!("/proc/{}/root", first.as_raw_pid()), flags, Mode::empty())?;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let processes = openat2(&root, "proc", flags, Mode::empty(), resolve)?;
        match rustix::fs::fstatfs(&processes)?.f_type == PROC_SUPER_MAGIC {
            true => Ok(Self { processes }),
            false => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// All that are there now, but the first one.
    ///
    /// # Errors
    /// When that cannot be seen.
    pub(super) fn now(&self) -> io::Result<Vec<AuditedProcess>> {
        let found = self
            .numbers()?
            .into_iter()
            .filter_map(|number| Some(self.stat(number)?.of(number)));
        Ok(found.collect())
    }

    /// Ends whatever is there beside the first process, the `copy` and `others`, and waits until it has; answers how many
    /// there were.
    ///
    /// What was taken on by the copy before is what anything has that it starts from then on.
    ///
    /// # Errors
    /// When that cannot be seen; `WouldBlock` when the sandbox's own processes come and go too fast for that.
    pub(super) fn end_strangers(&self, copy: Option<u32>, others: &OtherProcesses) -> io::Result<usize> {
        let (mut ended, mut seen) = (0, None);
        let mut fine = BTreeSet::from_iter(copy);
        for _ in 0..ROUNDS {
            let numbers: BTreeSet<u32> = self
                .numbers()?
                .into_iter()
                .filter(|number| !fine.contains(number))
                .collect();
            let found = self.judge(&numbers, copy, others);
            // One that was listed may have started another one before it ended, which has not been listed then. And the kernel
            // lists them by their numbers, behind which one can come to be when these begin anew; they do not so soon again.
            let is_new = |number: &&u32| seen.as_ref().is_none_or(|seen: &BTreeSet<u32>| !seen.contains(number));
            let came = found.dead.iter().filter(is_new).count();
            let is_clear = found.strangers.is_empty() && found.unclear.is_empty();
            if is_clear && seen.is_some() && came == 0 {
                return Ok(ended);
            }
            if matches!(others, OtherProcesses::Nobody) && seen.is_some() {
                ended += came;
            }
            ended += found.strangers.len();
            found.strangers.iter().for_each(|number| self.end(*number));
            if !is_clear {
                std::thread::sleep(BETWEEN_ROUNDS);
            }
            fine.extend(found.fine);
            seen = Some(numbers);
        }
        let what = "processes in the sandbox come and go too fast to be looked at";
        match others {
            OtherProcesses::These(_) if ended == 0 => Err(io::Error::new(io::ErrorKind::WouldBlock, what)),
            OtherProcesses::Nobody | OtherProcesses::These(_) => Err(io::Error::other(what)),
        }
    }

    fn judge(&self, numbers: &BTreeSet<u32>, copy: Option<u32>, others: &OtherProcesses) -> AuditResult {
        let mut judged = AuditResult::default();
        let mut possible: Vec<(u32, ProcessStat)> = Vec::new();
        let before = match others {
            OtherProcesses::Nobody => [].as_slice(),
            OtherProcesses::These(before) => before,
        };
        for &number in numbers {
            let Some(stat) = self.stat(number).filter(|stat| !stat.is_dead) else {
                judged.dead.push(number);
                continue;
            };
            let was_there = before
                .iter()
                .any(|one| (one.number, one.start_ticks) == (number, stat.start_ticks));
            match others {
                OtherProcesses::These(_) if was_there => judged.fine.push(number),
                OtherProcesses::These(_) => possible.push((number, stat)),
                OtherProcesses::Nobody => judged.strangers.push(number),
            }
        }
        // In any order, since a process may have been started by one that has a greater number.
        let belongs = |judged: &AuditResult, (number, stat): &(u32, ProcessStat)| {
            let is_of = |other: u32| [stat.parent, stat.session].contains(&other);
            if is_of(OUTSIDE) || copy.is_some_and(is_of) {
                return Ok(false);
            }
            // Sessions are inherited, and nobody can join one; and a process without a parent is given to the first one.
            let is_kept = before.iter().any(|one| one.session == stat.session) || judged.fine.contains(&stat.parent);
            self.may_belong(*number, is_kept)
        };
        while let Some(at) = possible
            .iter()
            .position(|one| matches!(belongs(&judged, one), Ok(true)))
        {
            judged.fine.push(possible.swap_remove(at).0);
        }
        for one in possible {
            match belongs(&judged, &one) {
                Ok(true) => judged.fine.push(one.0),
                Ok(false) => judged.strangers.push(one.0),
                Err(_) => judged.unclear.push(one.0),
            }
        }
        judged
    }

    fn end(&self, number: u32) {
        // A process may be named by its directory in any procfs (pidfd_send_signal(2)). One that is gone has ended.
        let _killed = self
            .open(&number.to_string(), OFlags::RDONLY | OFlags::DIRECTORY)
            .and_then(|process| Ok(pidfd_send_signal(&process, Signal::KILL)?));
    }

    /// Whether a process that came meanwhile can be one that the sandbox's own have started: then it has all that they have.
    ///
    /// A zygote's time is counted in a namespace of its own, which nothing that it starts can leave for that of the sandbox. Of
    /// those there, only what is `of_others`, which were there before, can belong.
    ///
    /// # Errors
    /// When something cannot be seen, or no longer as it was.
    fn may_belong(&self, number: u32, of_others: bool) -> io::Result<bool> {
        let has_all = self.has_all(number, of_others)?;
        if !has_all && self.stat(number).is_none_or(|stat| stat.is_ending) {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(has_all)
    }

    fn has_all(&self, number: u32, of_others: bool) -> io::Result<bool> {
        if let (false, Ok(time)) = (of_others, self.namespace(FIRST, TIME))
            && self.namespace(number, TIME)? != time
        {
            return Ok(false);
        }
        for name in NAMESPACES {
            if self.namespace(number, name)? != self.namespace(FIRST, name)? {
                return Ok(false);
            }
        }
        if self.read(number, "cgroup")? != self.read(FIRST, "cgroup")? {
            return Ok(false);
        }
        let (its, first) = (self.read(number, "status")?, self.read(FIRST, "status")?);
        let most = capabilities(&first, "CapBnd");
        let within = |set: &str| {
            capabilities(&its, set)
                .zip(most)
                .is_some_and(|(its, most)| its & !most == 0)
        };
        let same = |name: &str| field(&its, name).is_some() && field(&its, name) == field(&first, name);
        Ok(CAPABILITIES.into_iter().all(within) && same("NoNewPrivs") && same("Seccomp"))
    }

    fn namespace(&self, number: u32, name: &str) -> io::Result<PathBuf> {
        let namespaces = self.open(&format!("{number}/ns"), OFlags::PATH | OFlags::DIRECTORY)?;
        let target = rustix::fs::readlinkat(&namespaces, name, Vec::new())?;
        Ok(target.to_string_lossy().into_owned().into())
    }

    /// The numbers of all but the first.
    fn numbers(&self) -> io::Result<Vec<u32>> {
        let mut found = Vec::new();
        for entry in Dir::read_from(&self.processes)? {
            let entry = entry?;
            let number = entry
                .file_name()
                .to_str()
                .ok()
                .and_then(|name| name.parse::<u32>().ok());
            found.extend(number.filter(|number| *number != FIRST));
        }
        Ok(found)
    }

    /// `None` for one that is gone.
    fn stat(&self, number: u32) -> Option<ProcessStat> {
        parse(&self.read(number, "stat").ok()?)
    }

    fn read(&self, number: u32, file: &str) -> io::Result<String> {
        let file = self.open(&format!("{number}/{file}"), OFlags::RDONLY)?;
        let mut text = Vec::new();
        io::Read::read_to_end(&mut std::fs::File::from(file), &mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    fn open(&self, path: &str, flags: OFlags) -> io::Result<OwnedFd> {
        open_in_procfs(self.processes.as_fd(), path, flags)
    }
}

/// Opens what the kernel has below a directory of a procfs: nothing that was mounted over it, and nothing that a link leads to.
///
/// # Errors
/// What openat2(2) answers.
pub fn open_in_procfs(from: BorrowedFd<'_>, path: &str, flags: OFlags) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let flags = flags | OFlags::CLOEXEC;
    Ok(openat2(from, Path::new(path), flags, Mode::empty(), resolve)?)
}

impl ProcessStat {
    fn of(self, number: u32) -> AuditedProcess {
        AuditedProcess {
            number,
            session: self.session,
            start_ticks: self.start_ticks,
        }
    }
}

fn parse(text: &str) -> Option<ProcessStat> {
    // The name before can hold anything.
    let (_, rest) = text.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let field = |at: usize| fields.get(at)?.parse::<u64>().ok();
    let number = |at: usize| u32::try_from(field(at)?).ok();
    let threads = number(17)?;
    Some(ProcessStat {
        is_ending: threads <= 1 && field(6)? & EXITING != 0,
        // Its other threads may go on when its first one has ended; and it has none when nobody waits for it any more.
        is_dead: threads == 0 || (threads == 1 && ["Z", "X"].contains(fields.first()?)),
        parent: number(1)?,
        session: number(3)?,
        start_ticks: field(19)?,
    })
}

fn field<'t>(status: &'t str, name: &str) -> Option<&'t str> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.map(str::trim)
}

fn capabilities(status: &str, set: &str) -> Option<u64> {
    u64::from_str_radix(field(status, set)?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_of_a_process_is_understood() {
        let line = |state: char, threads: u32| {
            format!("7 (a) S 1 (b)) {state} 2 3 4 0 -1 0 0 0 0 0 0 0 0 0 20 0 {threads} 0 9876 0 0\n")
        };
        let stat = parse(&line('S', 1)).unwrap();
        assert_eq!((stat.parent, stat.session, stat.start_ticks), (2, 4, 9876));
        for (state, threads, is_dead) in [
            ('S', 1, false),
            ('R', 2, false),
            ('Z', 1, true),
            ('Z', 2, false),
            ('X', 1, true),
            ('R', 0, true),
        ] {
            assert_eq!(
                parse(&line(state, threads)).unwrap().is_dead,
                is_dead,
                "{state} {threads}"
            );
        }
        assert_eq!(parse("7 (a) S"), None);
    }

    #[test]
    fn one_that_is_being_ended_is_known_unless_others_of_its_threads_go_on() {
        let line = |flags: u32, threads: u32| {
            format!("7 (a) R 2 3 4 0 -1 {flags} 0 0 0 0 0 0 0 0 20 0 {threads} 0 9876 0 0\n")
        };
        // What the kernel says of one that runs, and has other flags.
        let (running, ending) = (4_194_560, 4_228_108);
        for (flags, threads, is_ending) in [(running, 1, false), (ending, 1, true), (ending, 2, false)] {
            assert_eq!(
                parse(&line(flags, threads)).unwrap().is_ending,
                is_ending,
                "{flags} {threads}"
            );
        }
    }

    #[test]
    fn what_it_may_do_is_understood() {
        let status = "Name:\tCapPrm:\nCapPrm:\t000000000000000a\nSeccomp:\t2\n";
        assert_eq!(capabilities(status, "CapPrm"), Some(10));
        assert_eq!(field(status, "Seccomp"), Some("2"));
        assert_eq!(capabilities(status, "CapEff"), None);
    }
}
