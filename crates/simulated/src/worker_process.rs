//! A worker's process, as its supervisor has it.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use offleash_core::plan::{Plan, SandboxUser};
use offleash_isolation::limits::SUPERVISE_COMMAND;
use offleash_sys::process::{self, ResourceUsage};
use offleash_sys::socket;
use offleash_sys::spawn::{self, OrphanFate, SessionChoice, SpawnCommand};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitIdStatus};
use rustix::thread::CpuSet;

use crate::wire::{MountPoint, WorkerSetup};

/// How much is read of what a worker has to complain of.
const MAX_COMPLAINT: usize = 4096;

/// A worker. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct WorkerProcess {
    /// Our end of its socket, which does not block.
    pub(crate) socket: OwnedFd,
    pub(crate) pidfd: OwnedFd,
    pid: Pid,
    complaints: OwnedFd,
    is_reaped: bool,
}

/// How a worker ended.
#[derive(Debug)]
pub(crate) struct WorkerEnd {
    pub(crate) signal: Option<i32>,
    pub(crate) code: Option<i32>,
    pub(crate) usage: ResourceUsage,
    /// The first of what it said of itself, which is not to be believed further than a cause goes.
    pub(crate) complaint: String,
}

/// What a worker of a sandbox needs for commands of `user`.
pub(crate) fn worker_setup(plan: &Plan, mounts: Vec<MountPoint>, user: &SandboxUser) -> WorkerSetup {
    let limits = &plan.limits;
    WorkerSetup {
        memory: limits.memory.map(|bytes| bytes.0),
        cpu_seconds: limits.cpu_time.map(|time| time.0.div_ceil(1000)),
        output: limits.output.map(|bytes| bytes.0),
        tmp: limits.tmp.map(|bytes| bytes.0),
        file_size: limits.file_size.map(|bytes| bytes.0),
        mounts,
        user: user.name.clone(),
        home: user.home.as_os_str().as_encoded_bytes().to_vec(),
        hostname: plan.hostname.clone(),
    }
}

impl WorkerProcess {
    /// Starts this program anew, as a worker: with nothing of this process but a socket, in a session of its own, and ended by the
    /// kernel with the thread that calls this.
    ///
    /// # Errors
    /// When it cannot be executed, or there are no more processes or descriptors.
    pub(crate) fn start(role: &str) -> io::Result<Self> {
        let (ours, theirs) = socket::stream_pair()?;
        let words = ["offleash", SUPERVISE_COMMAND, role];
        Self::spawn(b"/proc/self/exe", &words, ours, theirs.as_fd())
    }

    /// Starts this program anew to compile an interpreter: with these arguments behind those of every such process, and the rest
    /// as [`Self::start`] has it. Nothing is said to it.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub(crate) fn start_maker(arguments: &[Vec<u8>]) -> io::Result<Self> {
        let (ours, theirs) = socket::stream_pair()?;
        let words = [b"offleash".as_slice(), SUPERVISE_COMMAND.as_bytes()];
        let words: Vec<&[u8]> = words.into_iter().chain(arguments.iter().map(Vec::as_slice)).collect();
        Self::spawn(b"/proc/self/exe", &words, ours, theirs.as_fd())
    }

    /// Whether it has ended by itself.
    pub(crate) fn has_ended(&self) -> bool {
        let mut pidfd = [rustix::event::PollFd::new(&self.pidfd, rustix::event::PollFlags::IN)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut pidfd, Some(&now)).is_ok_and(|count| count > 0)
    }

    /// One that does nothing, and the end of its socket, at which a test speaks for it.
    #[cfg(test)]
    pub(crate) fn scripted() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = socket::stream_pair()?;
        let nothing = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let worker = Self::spawn(b"/bin/sleep", &["sleep", "1000"], ours, nothing.as_fd())?;
        Ok((worker, theirs))
    }

    fn spawn(program: &[u8], words: &[impl AsRef<[u8]>], ours: OwnedFd, theirs: BorrowedFd<'_>) -> io::Result<Self> {
        let (complaints, complains) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&complaints, true)?;
        let nothing = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let argv: Vec<Vec<u8>> = words.iter().map(|word| word.as_ref().to_vec()).collect();
        let request = SpawnCommand {
            argv: &argv,
            env: &[],
            cwd: Some(b"/"),
            descriptors: &[theirs, nothing.as_fd(), complains.as_fd()],
            session: SessionChoice::New,
            orphaned: OrphanFate::Dies,
            user: None,
        };
        let spawned = spawn::spawn_file(program, &request).map_err(io::Error::other)?;
        let pid = Pid::from_raw(spawned.pid).ok_or(io::ErrorKind::NotFound)?;
        // It is not reaped before this, so that the number is its own.
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        Ok(Self {
            socket: ours,
            pidfd,
            pid,
            complaints,
            is_reaped: false,
        })
    }

    /// Its number, which is its own until it is reaped.
    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Sends it a signal. One that is gone is no error.
    ///
    /// # Errors
    /// `EPERM`.
    pub(crate) fn signal(&self, signal: Signal) -> io::Result<()> {
        match rustix::process::pidfd_send_signal(&self.pidfd, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Has it, and what threads it starts from now on, run on `count` of the processors that this process may use.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(crate) fn stay_on(&self, count: u64) -> io::Result<()> {
        let allowed = rustix::thread::sched_getaffinity(None)?;
        let mine: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        if count >= mine.len() {
            return Ok(());
        }
        // All of one sandbox are on the same ones, and those of others mostly on others.
        let first = usize::try_from(std::process::id()).unwrap_or(0) % mine.len();
        let mut some = CpuSet::new();
        mine.iter()
            .cycle()
            .skip(first)
            .take(count)
            .for_each(|cpu| some.set(*cpu));
        Ok(rustix::thread::sched_setaffinity(Some(self.pid), &some)?)
    }

    /// Kills it, if it has not ended, and says how it did; `None` when that was said.
    ///
    /// # Errors
    /// When the kernel does not know of it any more.
    pub(crate) fn end(&mut self) -> io::Result<Option<WorkerEnd>> {
        if self.is_reaped {
            return Ok(None);
        }
        // Its own end, if it is at it, comes first: a socket closes before a process has ended.
        process::kill(self.pidfd.as_fd())?;
        let status = self.status()?;
        self.is_reaped = true;
        let usage = process::reap(self.pid)?;
        let mut words = vec![0; MAX_COMPLAINT];
        let count = rustix::io::read(&self.complaints, words.as_mut_slice()).unwrap_or(0);
        words.truncate(count);
        Ok(Some(WorkerEnd {
            signal: status.as_ref().and_then(WaitIdStatus::terminating_signal),
            code: status.as_ref().and_then(WaitIdStatus::exit_status),
            usage,
            complaint: String::from_utf8_lossy(&words).into_owned(),
        }))
    }

    /// Waits, for a moment at most, until it has ended by itself.
    pub(crate) fn wait_a_moment(&self) {
        let pidfd = rustix::event::PollFd::new(&self.pidfd, rustix::event::PollFlags::IN);
        let moment = rustix::event::Timespec { tv_sec: 1, tv_nsec: 0 };
        // What it did by then is seen by its status.
        let _ready = rustix::event::poll(&mut [pidfd], Some(&moment));
    }

    fn status(&self) -> io::Result<Option<WaitIdStatus>> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        loop {
            match rustix::process::waitid(WaitId::PidFd(self.pidfd.as_fd()), options) {
                Err(rustix::io::Errno::INTR) => {}
                other => return Ok(other?),
            }
        }
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        // Whoever wants to know how it ended has asked.
        let _ended = self.end();
    }
}
