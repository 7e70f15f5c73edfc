//! Measures a layer with the rights of the sandbox's superuser: directories of subordinate ids may be closed to the
//! supervisor, whoever is in them.
//!
//! A process of its own enters the sandbox's user namespace for it, because who does that must have one thread: our
//! program in a role of its own ([`MEASURE_ROLE`]). It holds capabilities over the sandbox's ids alone, sees nothing of the
//! sandbox but the layer, reads names and sizes, and ends with the supervisor.

use std::fs::OpenOptions;
use std::io::{self, Read as _, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::time::{Duration, Instant};

use offleash_protocol::{Dialogue, MessageDecoder, encode};
use offleash_sys::namespaces::enter_user;
use offleash_sys::process;
use offleash_sys::spawn::{OrphanFate, SessionChoice, SpawnCommand, spawn};
use rustix::fs::OFlags;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions, pidfd_open, waitid};
use serde::{Deserialize, Serialize};

use super::layer::{LayerUsage, measure_once};

/// The hidden command of our program; the word behind it is the role of the process.
pub const SUPERVISE_COMMAND: &str = "supervise";
/// The role of a process that measures a layer; see [`measure_as_superuser`].
pub const MEASURE_ROLE: &str = "measure-layer";
/// Our program, even when its file was replaced or removed.
const OWN_PROGRAM: &[u8] = b"/proc/self/exe";
/// The layer, for the process that measures it: after the standard descriptors.
const LAYER: &str = "/proc/self/fd/3";
/// Longest answer.
const MAX_ANSWER: usize = 4096;

/// A measurement under way. Dropped, it is ended.
#[derive(Debug)]
pub(super) struct InsideMeasurement {
    process: OwnedFd,
    answer: std::fs::File,
    text: Vec<u8>,
    began: Instant,
}

impl InsideMeasurement {
    /// Begins to measure `layer`, a directory, as the superuser of the user namespace of `init`.
    pub(super) fn begin(init: Pid, layer: BorrowedFd<'_>) -> io::Result<Self> {
        let began = Instant::now();
        let namespace = std::fs::File::open(format!("/proc/{}/ns/user", init.as_raw_pid()))?;
        let null = OpenOptions::new().write(true).open("/dev/null")?;
        let (answer, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&answer, true)?;
        let spawned = spawn(&SpawnCommand {
            argv: &[OWN_PROGRAM.to_vec(), SUPERVISE_COMMAND.into(), MEASURE_ROLE.into()],
            env: &[],
            cwd: Some(b"/"),
            descriptors: &[namespace.as_fd(), theirs.as_fd(), null.as_fd(), layer],
            user: None,
            session: SessionChoice::Same,
            orphaned: OrphanFate::Dies,
        })
        .map_err(io::Error::other)?;
        // Not reaped yet, so its number is still its own.
        let pid = Pid::from_raw(spawned.pid.max(0)).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self {
            process: pidfd_open(pid, PidfdFlags::empty())?,
            answer: answer.into(),
            text: Vec::new(),
            began,
        })
    }

    /// What it found, and how long it took; `None` while it is under way. Does not wait.
    pub(super) fn poll(&mut self) -> Option<io::Result<(LayerUsage, Duration)>> {
        let mut piece = [0; 512];
        loop {
            match self.answer.read(&mut piece) {
                Ok(0) => {
                    let found = parse(&self.text).ok_or_else(|| io::ErrorKind::InvalidData.into());
                    return Some(found.map(|usage| (usage, self.began.elapsed())));
                }
                Ok(length) if self.text.len() + length <= MAX_ANSWER => {
                    self.text.extend_from_slice(&piece[..length]);
                }
                Ok(_) => return Some(Err(io::ErrorKind::InvalidData.into())),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

impl Drop for InsideMeasurement {
    fn drop(&mut self) {
        // It has ended, or is of no more use; killed, it ends at once.
        let _killed = process::kill(self.process.as_fd());
        let _reaped = waitid(WaitId::PidFd(self.process.as_fd()), WaitIdOptions::EXITED);
    }
}

/// Measures a layer as the superuser of a user namespace, and writes what was found to `answer`, in one frame.
///
/// The namespace is standard input, the layer the first descriptor after the standard ones. The calling process must have
/// one thread, and is the superuser's from then on.
///
/// # Errors
/// When the namespace cannot be entered, or the layer cannot be read.
pub fn measure_as_superuser(mut answer: impl Write) -> io::Result<()> {
    let flags = i32::try_from((OFlags::DIRECTORY | OFlags::CLOEXEC).bits()).unwrap_or_default();
    let layer = OpenOptions::new().read(true).custom_flags(flags).open(LAYER)?;
    enter_user(io::stdin().as_fd())?;
    let usage = measure_once(layer.as_fd())?;
    answer.write_all(&shown(&usage)?)?;
    answer.flush()
}

/// What the process says that measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct MeasureAnswer {
    bytes: u64,
    inodes: u64,
    names: u64,
    depth: u64,
}

impl Dialogue for MeasureAnswer {
    const MAX_FRAME: usize = 64;
}

fn shown(usage: &LayerUsage) -> io::Result<Vec<u8>> {
    let answer = MeasureAnswer {
        bytes: usage.bytes,
        inodes: usage.inodes,
        names: usage.names,
        depth: usage.depth,
    };
    encode(&answer).map_err(io::Error::other)
}

fn parse(frame: &[u8]) -> Option<LayerUsage> {
    let mut decoder = MessageDecoder::new();
    decoder.push(frame);
    let MeasureAnswer {
        bytes,
        inodes,
        names,
        depth,
    } = decoder.next().ok()??;
    (decoder.pending() == 0).then(|| LayerUsage {
        bytes,
        inodes,
        names,
        depth,
        ..LayerUsage::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_is_read_as_it_was_written() {
        let usage = LayerUsage {
            bytes: u64::MAX,
            inodes: 2,
            names: 3,
            depth: 4,
            ..LayerUsage::default()
        };
        let frame = shown(&usage).unwrap();
        assert_eq!(parse(&frame), Some(usage));
        for length in 0..frame.len() {
            assert_eq!(parse(&frame[..length]), None, "{length}");
        }
        for bad in [b"running 0 tests\n".to_vec(), [frame.as_slice(), b"x"].concat()] {
            assert_eq!(parse(&bad), None, "{bad:?}");
        }
    }
}
