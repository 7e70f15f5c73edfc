//! The sandbox's tree: FUSE between the kernel and a port, by two processes that know no more of it than where a message ends.

use alloc::vec::Vec;

use offleash_protocol::vm::VmTree;
use offleash_sys::spawn;
use rustix::event::{PollFd, PollFlags};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::MountFlags;

use super::{VmFailure, boot, step};

/// Where the tree is while the sandbox is made.
pub(super) const TREE: &core::ffi::CStr = c"/tree";

/// Largest message in either direction, bytes: a mebibyte of a file's content and what surrounds it.
const MAX_MESSAGE: usize = (1 << 20) + 4096;

/// `struct fuse_out_header`: length, error, number (linux/fuse.h).
const REPLY_HEADER: usize = 16;

/// Puts the tree at [`TREE`]; answers the processes without which it is gone.
pub(super) fn mount(tree: &VmTree) -> Result<Vec<i32>, VmFailure> {
    let _ = rustix::fs::mkdir(TREE, Mode::from_raw_mode(0o755));
    match tree {
        VmTree::Served => mount_served(),
        VmTree::Initramfs { path } => {
            rustix::mount::mount_bind(&path[..], TREE).map_err(step("mount a directory of the initramfs"))?;
            Ok(Vec::new())
        }
    }
}

fn mount_served() -> Result<Vec<i32>, VmFailure> {
    let port = boot::open_tree_port()?;
    let fuse = rustix::fs::open(c"/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(step("open /dev/fuse"))?;
    let mut options = Vec::from(&b"fd="[..]);
    spawn::append_decimal(&mut options, fuse.as_raw_fd().unsigned_abs());
    // The kernel checks permissions by what the server says of owners and modes.
    options.extend_from_slice(b",rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions\0");
    let options = core::ffi::CStr::from_bytes_with_nul(&options).map_err(|_| step("mount the tree")(Errno::INVAL))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount(c"offleash", TREE, c"fuse", flags, options).map_err(step("mount the tree"))?;
    // Not before: until it is mounted there is nothing to be read, which is an error. Mounting waits for no answer.
    let asks =
        spawn::fork_process(|| carry_requests(&fuse, &port)).map_err(step("start carrying requests for files"))?;
    let answers = spawn::fork_process(|| carry_replies(&fuse, &port)).map_err(step("start carrying files"))?;
    Ok(Vec::from([asks, answers]))
}

/// From the kernel to the port, until either ends.
fn carry_requests(fuse: &OwnedFd, port: &OwnedFd) -> u8 {
    let mut buffer = alloc::vec![0; MAX_MESSAGE];
    loop {
        match rustix::io::read(fuse, &mut buffer[..]) {
            Ok(count) => {
                if write_all(port, buffer.get(..count).unwrap_or_default()).is_err() {
                    return 1;
                }
            }
            // A request that was taken back before it was read.
            Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => {}
            Err(_) => return 1,
        }
    }
}

/// From the port to the kernel, until either ends.
fn carry_replies(fuse: &OwnedFd, port: &OwnedFd) -> u8 {
    let mut held = Vec::with_capacity(2 * MAX_MESSAGE);
    loop {
        while let Some(length) = message_length(&held) {
            if !(REPLY_HEADER..=MAX_MESSAGE).contains(&length) {
                return 1;
            }
            let Some(message) = held.get(..length) else { break };
            match rustix::io::write(fuse, message) {
                // What nobody waits for any more.
                Ok(_) | Err(Errno::NOENT) => {}
                Err(Errno::INTR | Errno::AGAIN) => continue,
                Err(_) => return 1,
            }
            held.drain(..length);
        }
        if read_more(port, &mut held).is_err() {
            return 1;
        }
    }
}

/// The length that the message at the beginning says it has.
fn message_length(held: &[u8]) -> Option<usize> {
    let length = held.first_chunk::<4>()?;
    Some(usize::try_from(u32::from_ne_bytes(*length)).unwrap_or(usize::MAX))
}

fn wait(port: &OwnedFd, flags: PollFlags) {
    let _ = rustix::event::poll(&mut [PollFd::from_borrowed_fd(port.as_fd(), flags)], None);
}

/// Appends what the port has, at least a byte.
fn read_more(port: &OwnedFd, held: &mut Vec<u8>) -> Result<(), Errno> {
    let mut piece = [0; 4096];
    loop {
        match rustix::io::read(port, &mut piece) {
            Ok(0) => return Err(Errno::PIPE),
            Ok(count) => {
                held.extend_from_slice(piece.get(..count).unwrap_or_default());
                return Ok(());
            }
            Err(Errno::AGAIN) => wait(port, PollFlags::IN),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

fn write_all(port: &OwnedFd, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match rustix::io::write(port, bytes) {
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(Errno::AGAIN) => wait(port, PollFlags::OUT),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    extern crate std;

    use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};

    use super::*;

    fn pair(kind: SocketType) -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).expect("a pair")
    }

    fn message(length: usize) -> Vec<u8> {
        let mut message = alloc::vec![7; length];
        message[..4].copy_from_slice(&u32::try_from(length).expect("short").to_ne_bytes());
        message
    }

    #[test]
    fn replies_reach_the_kernel_whole_however_they_come() {
        let ((kernel, fuse), (server, port)) = (pair(SocketType::SEQPACKET), pair(SocketType::STREAM));
        let replies = [message(16), message(5000), message(17)];
        send(&server, &replies.concat(), SendFlags::empty()).expect("room");
        drop(server);
        assert_eq!(carry_replies(&fuse, &port), 1);
        for reply in replies {
            let mut buffer = alloc::vec![0; 8192];
            let (count, _) = recv(&kernel, &mut buffer[..], RecvFlags::DONTWAIT).expect("a reply");
            assert_eq!(buffer[..count], reply);
        }
    }

    #[test]
    fn a_reply_that_lies_about_its_length_ends_the_tree() {
        for length in [0, 15, u32::try_from(MAX_MESSAGE + 1).expect("short"), u32::MAX] {
            let ((kernel, fuse), (server, port)) = (pair(SocketType::SEQPACKET), pair(SocketType::STREAM));
            send(&server, &length.to_ne_bytes(), SendFlags::empty()).expect("room");
            // The server is still there: nothing is waited for.
            assert_eq!(carry_replies(&fuse, &port), 1, "{length}");
            let mut buffer = [0; 16];
            assert_eq!(
                recv(&kernel, &mut buffer[..], RecvFlags::DONTWAIT).map(|_| ()),
                Err(Errno::AGAIN)
            );
            drop(server);
        }
    }

    #[test]
    fn requests_reach_the_server_and_its_end_is_the_end() {
        let ((kernel, fuse), (server, port)) = (pair(SocketType::SEQPACKET), pair(SocketType::STREAM));
        let carrying = std::thread::spawn(move || carry_requests(&fuse, &port));
        let requests = [message(80), message(40)];
        for request in &requests {
            send(&kernel, request, SendFlags::empty()).expect("room");
        }
        let (mut taken, mut buffer) = (Vec::new(), [0; 256]);
        while taken.len() < 120 {
            let count = rustix::io::read(&server, &mut buffer).expect("requests");
            taken.extend_from_slice(&buffer[..count]);
        }
        assert_eq!(taken, requests.concat());
        // The next one finds nobody.
        drop(server);
        send(&kernel, &message(40), SendFlags::empty()).expect("room");
        assert_eq!(carrying.join().expect("no panic"), 1);
    }
}
