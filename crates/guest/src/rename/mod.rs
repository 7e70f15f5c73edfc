//! Rename workers: a copy of the guest that acts as one user and gives a directory another name, where an overlay answers
//! `EXDEV` because the directory was there before the sandbox.
//!
//! What the kernel does by itself it does. Otherwise a copy of the directory is made beside the new name, hidden ([`copy`]);
//! one call gives it the new name, so that it is there as a whole or not at all; then the old one is taken away
//! ([`removal`]). From before that call until after the end a link says where the old one was, so that whoever finds both,
//! because everything was killed in the middle, knows which is no more. Paths are resolved and judged by the kernel, as the
//! user and from the directories of whoever asked; within the tree nothing is followed. Deliberately not here: who may ask
//! and who waits, which is the host's.

mod attributes;
mod contents;
mod copy;
mod place;
mod removal;

use alloc::ffi::CString;
use alloc::vec::Vec;
use core::mem::MaybeUninit;

use offleash_protocol::rename::{COPY, GONE, RenameOrder, RenameWay, name};
use offleash_protocol::{GuestIds, MessageDecoder};
use offleash_sys::{rename, spawn};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, Mode};
use rustix::io::{Errno, IoSliceMut};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags};

use crate::execution::user_of;
use place::{DirectoryEntry, FileIdentity};

/// The directories from which the two paths lead.
const DIRECTORIES: usize = 2;

/// How often an old name is looked at again in which something appeared meanwhile.
const MAX_ROUNDS: u32 = 64;

/// Starts a worker for the request that comes over `socket`; answers its process id.
pub(crate) fn start(socket: OwnedFd, user: Option<GuestIds>) -> Result<i32, Errno> {
    let user = user.map(|ids| user_of(ids).map_err(|_| Errno::INVAL)).transpose()?;
    spawn::fork_worker(socket, user, work)
}

/// What a worker does from its first instruction on; answers its exit code.
fn work(became: Result<(), Errno>, socket: OwnedFd) -> u8 {
    rustix::process::umask(Mode::empty());
    let Some(task) = became.and_then(|()| RenameTask::receive(&socket)).ok() else {
        // Whoever waits sees the end of the socket.
        return 1;
    };
    let errno = task.carry_out().err().map_or(0, Errno::raw_os_error);
    match rustix::net::send(&socket, &errno.to_ne_bytes(), SendFlags::NOSIGNAL) {
        Ok(_) => 0,
        Err(_) => 1,
    }
}

/// One renaming.
struct RenameTask {
    how: RenameWay,
    token: u64,
    replaces: bool,
    from: [OwnedFd; DIRECTORIES],
    paths: [CString; DIRECTORIES],
}

impl RenameTask {
    fn receive(socket: &OwnedFd) -> Result<Self, Errno> {
        let (mut decoder, mut directories) = (MessageDecoder::new(), Vec::new());
        let mut buffer = alloc::vec![0; 16 * 1024];
        let request: RenameOrder = loop {
            if let Some(request) = decoder.next().map_err(|_| Errno::BADMSG)? {
                break request;
            }
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DIRECTORIES))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let pieces = &mut [IoSliceMut::new(&mut buffer)];
            let received = rustix::io::retry_on_intr(|| {
                rustix::net::recvmsg(socket, pieces, &mut control, RecvFlags::CMSG_CLOEXEC)
            })?;
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(rights) = message {
                    directories.extend(rights);
                }
            }
            match received.bytes {
                0 => return Err(Errno::PIPE),
                count => decoder.push(&buffer[..count]),
            }
        };
        let path = |bytes| CString::new(bytes).map_err(|_| Errno::INVAL);
        Ok(Self {
            how: request.how,
            token: request.token,
            replaces: request.replaces,
            from: directories.try_into().map_err(|_| Errno::BADMSG)?,
            paths: [path(request.old)?, path(request.new)?],
        })
    }

    fn carry_out(&self) -> Result<(), Errno> {
        if self.how == RenameWay::Settle {
            return self.named()?.settle();
        }
        let [old, new] = &self.paths;
        let [from_old, from_new] = &self.from;
        match rename::by_kernel(from_old.as_fd(), old, from_new.as_fd(), new, self.replaces) {
            Err(Errno::XDEV) if self.how == RenameWay::ByCopy => self.named()?.by_copy(),
            answered => answered,
        }
    }

    /// The same with its paths resolved, but for their last names.
    fn named(&self) -> Result<NamedRename, Errno> {
        let hidden = |prefix| CString::new(name(prefix, self.token)).map_err(|_| Errno::INVAL);
        Ok(NamedRename {
            old: DirectoryEntry::resolve(self.from[0].as_fd(), self.paths[0].to_bytes())?,
            new: DirectoryEntry::resolve(self.from[1].as_fd(), self.paths[1].to_bytes())?,
            replaces: self.replaces,
            copy: hidden(COPY)?,
            gone: hidden(GONE)?,
        })
    }
}

/// A renaming between two directories.
struct NamedRename {
    old: DirectoryEntry,
    new: DirectoryEntry,
    replaces: bool,
    /// What the copy is called beside the new name.
    copy: CString,
    /// What the link to the old name is called there.
    gone: CString,
}

impl NamedRename {
    fn by_copy(&self) -> Result<(), Errno> {
        let source = self.source()?;
        self.new.check_vacant()?;
        let target = match self.copied(&source) {
            Ok(target) => target,
            Err(errno) => {
                self.undo();
                return Err(outward(errno));
            }
        };
        if let Err(errno) = self.commit(&source, &target) {
            self.undo();
            return Err(errno);
        }
        self.finish(&source, &target);
        Ok(())
    }

    /// The directory, opened, if it is one that an overlay does not rename.
    fn source(&self) -> Result<OwnedFd, Errno> {
        if self.old.is_on_overlay()? && self.old.mount()? == self.new.mount()? {
            self.old.open().map_err(outward)
        } else {
            Err(Errno::XDEV)
        }
    }

    fn copied(&self, source: &OwnedFd) -> Result<OwnedFd, Errno> {
        copy::copy(source, self.new.parent.as_fd(), &self.copy)
    }

    /// Gives the copy the new name.
    fn commit(&self, source: &OwnedFd, target: &OwnedFd) -> Result<(), Errno> {
        // Somebody may have made other names of these meanwhile.
        if self.old.identity(&self.old.name)? != FileIdentity::of(source)? {
            return Err(Errno::NOENT);
        }
        if self.new.identity(&self.copy)? != FileIdentity::of(target)? {
            return Err(Errno::XDEV);
        }
        let way = place::way(&self.new, &self.old).map_err(outward)?;
        rustix::fs::symlinkat(way.as_c_str(), &self.new.parent, &self.gone).map_err(outward)?;
        let parent = self.new.parent.as_fd();
        rename::by_kernel(parent, &self.copy, parent, &self.new.name, self.replaces)
    }

    /// Takes the old name away. Where that does not work both names stay, and nothing is lost.
    fn finish(&self, source: &OwnedFd, target: &OwnedFd) {
        for _ in 0..MAX_ROUNDS {
            if removal::empty(source, Some(target)).is_err() {
                break;
            }
            let (named, emptied) = (self.old.identity(&self.old.name), FileIdentity::of(source));
            if named.is_err() || named != emptied {
                // Another one by now, which is not ours to remove, or none.
                break;
            }
            match rustix::fs::unlinkat(&self.old.parent, &self.old.name, AtFlags::REMOVEDIR) {
                Err(Errno::NOTEMPTY) => {}
                Ok(()) | Err(_) => break,
            }
        }
        self.unlink_gone();
    }

    /// Takes away what was made before the copy had the new name.
    fn undo(&self) {
        if let Ok(target) = place::open_directory(self.new.parent.as_fd(), &self.copy) {
            // What is left is hidden from whoever reads the changes.
            let _ = removal::empty(&target, None);
            let _ = rustix::fs::unlinkat(&self.new.parent, &self.copy, AtFlags::REMOVEDIR);
        }
        self.unlink_gone();
    }

    fn unlink_gone(&self) {
        // Perhaps it was never there.
        let _ = rustix::fs::unlinkat(&self.new.parent, &self.gone, AtFlags::empty());
    }

    /// Finishes what a worker that was ended began, or undoes it.
    fn settle(&self) -> Result<(), Errno> {
        let has_copy = self.new.identity(&self.copy).is_ok();
        let has_gone = self.new.identity(&self.gone).is_ok();
        if has_copy || !has_gone {
            let is_over = !has_copy && self.old.identity(&self.old.name) == Err(Errno::NOENT);
            self.undo();
            return if is_over { Ok(()) } else { Err(Errno::XDEV) };
        }
        match (self.old.open(), self.new.open()) {
            (Ok(source), Ok(target)) => self.finish(&source, &target),
            (Err(Errno::NOENT), _) => self.unlink_gone(),
            _ => {}
        }
        Ok(())
    }
}

/// What whoever asked is told: an error that a renaming can have, or that the overlay does not do it.
fn outward(errno: Errno) -> Errno {
    match errno {
        Errno::NOSPC | Errno::DQUOT | Errno::BUSY | Errno::IO | Errno::NOMEM | Errno::ROFS => errno,
        _ => Errno::XDEV,
    }
}
