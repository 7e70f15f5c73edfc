//! The way to the zygote below which a sandbox was made.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

use offleash_core::spec::ProcessRef;
use offleash_interpreter::zygote::SOCKET;
use offleash_sys::process::start_ticks;
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, openat2};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// A connection to the zygote in the sandbox of that first process.
///
/// # Errors
/// What the kernel answered: `NotFound` when the zygote is gone, or is none.
pub(super) fn connect(zygote: ProcessRef) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // Its root is the built one: it left the host's before it ran anything.
    let root = rustix::fs::open(format!("/proc/{}/root", zygote.pid), flags, Mode::empty())?;
    // Only now: what was opened is of the process that has this number now.
    if start_ticks(zygote.pid.cast_signed())? != Some(zygote.start_ticks) {
        return Err(io::ErrorKind::NotFound.into());
    }
    // What is inside chooses neither another place nor another kind of file.
    let path = SOCKET.trim_start_matches('/');
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let place = openat2(&root, path, flags, Mode::empty(), resolve)?;
    if FileType::from_raw_mode(rustix::fs::fstat(&place)?.st_mode) != FileType::Socket {
        return Err(io::ErrorKind::NotFound.into());
    }
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let address = SocketAddrUnix::new(format!("/proc/self/fd/{}", place.as_raw_fd()))?;
    rustix::net::connect(&socket, &address)?;
    Ok(socket)
}
