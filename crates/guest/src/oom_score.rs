//! How much rather than others the kernel kills commands when memory runs out (`oom_score_adj`, proc(5)).
//!
//! A command inherits its score, so it has it, and whatever it starts has it, from its first instruction on. It cannot be
//! given one in time otherwise: until it runs its program its memory, hence its files in `/proc`, are this process's,
//! which nobody may look into.

use alloc::vec::Vec;

use offleash_sys::spawn;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// The score of this process, and the one with which it starts commands.
#[derive(Debug)]
pub(crate) struct OomScore {
    file: Result<OwnedFd, Errno>,
    own: i16,
    /// As the host asked for its last command; what those inside start gets the same.
    of_commands: Option<i16>,
}

impl OomScore {
    /// Of this process; to be called before it is not dumpable any more, and once descriptors 0 to 2 are occupied.
    pub(crate) fn of_this_process() -> Self {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let file = rustix::fs::open(c"/proc/self/oom_score_adj", flags, Mode::empty());
        let own = file.as_ref().ok().and_then(read).unwrap_or(0);
        Self {
            file,
            own,
            of_commands: None,
        }
    }

    /// Asks for the score of commands from now on; what is not higher than our own asks for nothing.
    pub(crate) fn ask(&mut self, score: Option<i16>) {
        self.of_commands = score.filter(|score| *score > self.own);
    }

    /// Starts something that inherits the score of commands; also answers whether it did.
    pub(crate) fn inherited<T>(&self, start: impl FnOnce() -> T) -> (T, bool) {
        let Some(score) = self.of_commands else {
            return (start(), true);
        };
        let written = self.write(score);
        let started = start();
        // Our own is never below what the kernel lets us have without privilege, so this is allowed.
        (started, written && self.write(self.own))
    }

    fn write(&self, score: i16) -> bool {
        let Ok(file) = &self.file else { return false };
        let mut text = Vec::with_capacity(8);
        if score < 0 {
            text.push(b'-');
        }
        spawn::append_decimal(&mut text, u32::from(score.unsigned_abs()));
        rustix::io::pwrite(file, &text, 0).is_ok()
    }
}

/// What a score's file says.
fn read(file: &OwnedFd) -> Option<i16> {
    let mut text = [0; 8];
    let (text, _) = rustix::io::pread(file, &mut text[..], 0)
        .ok()
        .map(|length| text.split_at(length))?;
    core::str::from_utf8(text).ok()?.trim_end().parse().ok()
}
