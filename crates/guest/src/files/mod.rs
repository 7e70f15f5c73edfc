//! File workers: a copy of the guest that acts as one user and serves files on one socket until that closes.
//!
//! What a worker may do is what its user may do inside; the kernel decides, path by path. Nothing here recurses, and
//! everything that is kept is bounded, because whoever lives in the sandbox made the files. Deliberately not here: how
//! a copy is made and becomes the user, which is `sys::spawn`.

mod channel;
mod content;
mod entry;
mod failure;
mod list;
mod metadata;
mod names;
mod path;
mod remove;
mod requests;
mod walk;
mod watch;
mod watched;

use offleash_protocol::GuestIds;
use offleash_protocol::files::FileReply;
use offleash_sys::spawn;
use rustix::fd::OwnedFd;
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{SendFlags, send};

use crate::execution::user_of;
use channel::HostChannel;
use failure::failed;

/// Starts a worker on `socket`; answers its process id. Whoever waits on the socket is told why if there is none.
pub(crate) fn start(socket: OwnedFd, user: Option<GuestIds>) -> Result<i32, Errno> {
    let started = match user.map(|ids| user_of(ids).map_err(|_| Errno::INVAL)).transpose() {
        Ok(user) => {
            let copy = rustix::io::fcntl_dupfd_cloexec(&socket, 0);
            copy.and_then(|copy| spawn::fork_worker(copy, user, work))
        }
        Err(errno) => Err(errno),
    };
    if let Err(errno) = started {
        refuse(&socket, "start a file worker", errno);
    }
    started
}

/// Says why there is nobody to serve.
fn refuse(socket: &OwnedFd, step: &'static str, errno: Errno) {
    if let Ok(frame) = offleash_protocol::encode(&FileReply::from(failed(step)(errno))) {
        // The socket is new, so there is room; if not, its end is all there is to say.
        let _ = send(socket, &frame, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }
}

/// What a worker does from its first instruction on; answers its exit code.
fn work(became: Result<(), Errno>, socket: OwnedFd) -> u8 {
    if let Err(errno) = became {
        refuse(&socket, "change the user", errno);
        return 1;
    }
    rustix::process::umask(Mode::from_raw_mode(0o022));
    requests::serve(&mut HostChannel::new(socket));
    0
}
