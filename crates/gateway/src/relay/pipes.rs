//! Pipes through which bytes go from socket to socket without being copied, a bounded number for all connections.
//!
//! A pipe is held only while it has bytes in it, so that a few suffice for many connections.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags};

/// How much a pipe should hold, in pages of which a fast sender fills each: more of it takes less work for each byte,
/// and all pipes of a user together should stay far below what makes the kernel give him only small ones (64 MiB).
pub(super) const CAPACITY: usize = 512 * 1024;

/// Pipes that nobody uses, and how many more may be made.
#[derive(Debug)]
pub(crate) struct Pipes {
    idle: RefCell<Vec<Ends>>,
    left: Cell<usize>,
}

#[derive(Debug)]
struct Ends {
    read: OwnedFd,
    write: OwnedFd,
}

impl Pipes {
    /// No more than `most`, made when they are needed.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            idle: RefCell::new(Vec::new()),
            left: Cell::new(most),
        }
    }

    /// An empty pipe, if there is one to be had.
    pub(super) fn take(&self) -> Option<Pipe<'_>> {
        let idle = self.idle.borrow_mut().pop();
        let ends = idle.or_else(|| self.make())?;
        Some(Pipe {
            pipes: self,
            ends: Some(ends),
            held: 0,
        })
    }

    fn make(&self) -> Option<Ends> {
        let left = self.left.get().checked_sub(1)?;
        // Without a descriptor for it bytes are copied.
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
        // A user who has many pipes gets only small ones; those work, too.
        let _ = rustix::pipe::fcntl_setpipe_size(&write, CAPACITY);
        self.left.set(left);
        Some(Ends { read, write })
    }

    #[cfg(test)]
    pub(super) fn idle(&self) -> usize {
        self.idle.borrow().len()
    }

    /// No pipe is given out any more.
    pub(super) fn forbid(&self) {
        self.left.set(0);
        self.idle.borrow_mut().clear();
    }
}

/// A pipe that is in use. One that is empty at the end is kept for others; what is left in another is lost with it.
#[derive(Debug)]
pub(super) struct Pipe<'a> {
    pipes: &'a Pipes,
    ends: Option<Ends>,
    held: usize,
}

impl Pipe<'_> {
    /// How many bytes are in it.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// Takes from `socket` what fits, but no more than `most`; 0 at its end. Of a pipe that is empty, `WouldBlock` says that there is nothing.
    pub(super) fn fill(&mut self, socket: impl AsFd, most: usize) -> io::Result<usize> {
        let write = &self.ends()?.write;
        let taken = rustix::pipe::splice(socket, None, write, None, most, flags())?;
        self.held += taken;
        Ok(taken)
    }

    /// Gives `socket` as much as it takes of what is in it.
    pub(super) fn empty(&mut self, socket: impl AsFd) -> io::Result<usize> {
        let read = &self.ends()?.read;
        let given = rustix::pipe::splice(read, None, socket, None, self.held, flags())?;
        if given == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.held = self.held.saturating_sub(given);
        Ok(given)
    }

    fn ends(&self) -> io::Result<&Ends> {
        self.ends.as_ref().ok_or_else(|| io::ErrorKind::BrokenPipe.into())
    }
}

impl Drop for Pipe<'_> {
    fn drop(&mut self) {
        match self.ends.take() {
            Some(ends) if self.held == 0 => self.pipes.idle.borrow_mut().push(ends),
            _ => self.pipes.left.set(self.pipes.left.get() + 1),
        }
    }
}

/// The sockets are non-blocking themselves, the pipe is by this.
fn flags() -> SpliceFlags {
    SpliceFlags::MOVE | SpliceFlags::NONBLOCK
}

/// Whether it says that the kernel, or who filters its calls, has no `splice` for these sockets.
pub(super) fn is_unsupported(error: &io::Error) -> bool {
    let unsupported = [Errno::INVAL, Errno::NOSYS, Errno::PERM, Errno::OPNOTSUPP];
    Errno::from_io_error(error).is_some_and(|errno| unsupported.contains(&errno))
}
