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
pub(crate) fn connect(zygote: ProcessRef) -> io::Result<OwnedFd> {
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

/// Whether sandboxes lie below that of this first process: whether there are, among the processes that it can see, some of
/// other process ids.
///
/// # Errors
/// When that cannot be seen.
pub(super) fn has_descendants(zygote: ProcessRef) -> io::Result<bool> {
    let own = std::fs::read_link(format!("/proc/{}/ns/pid", zygote.pid))?;
    for entry in std::fs::read_dir(format!("/proc/{}/root/proc", zygote.pid))? {
        let entry = entry?;
        let is_process = entry
            .file_name()
            .to_str()
            .is_some_and(|name| name.parse::<u32>().is_ok());
        if !is_process {
            continue;
        }
        // One that has just ended has none, and none is below it.
        if std::fs::read_link(entry.path().join("ns/pid")).is_ok_and(|other| other != own) {
            return Ok(true);
        }
    }
    Ok(false)
}
