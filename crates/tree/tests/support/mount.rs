//! A tree that is served to this machine's own kernel, over a socket as to a virtual machine.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use offleash_tree::{MAX_MESSAGE, TreeOptions};
use rustix::io::Errno;
use rustix::mount::MountFlags;

/// Mounts `directory` at `at`, says so, and serves it until it is unmounted.
pub fn serve_at(
    directory: &Path,
    at: &Path,
    options: &TreeOptions,
    mounted: impl FnOnce() -> io::Result<()>,
) -> Result<(), Box<dyn std::error::Error>> {
    let device = File::options().read(true).write(true).open("/dev/fuse")?;
    let root: OwnedFd = File::open(directory)?.into();
    let data = CString::new(format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions",
        device.as_raw_fd()
    ))?;
    rustix::mount::mount("offleash", at, "fuse", MountFlags::empty(), Some(&*data))?;
    mounted()?;
    let (ours, theirs) = UnixStream::pair()?;
    let (to_tree, to_device) = (theirs.try_clone()?, device.try_clone()?);
    std::thread::spawn(move || carry_requests(device, to_tree));
    std::thread::spawn(move || carry_replies(theirs, to_device));
    offleash_tree::serve(root, ours.into(), options)?;
    Ok(())
}

/// From the kernel, which gives one whole message at a time.
fn carry_requests(mut device: File, mut to: UnixStream) -> io::Result<()> {
    let passing = [Errno::NOENT, Errno::INTR, Errno::AGAIN].map(Errno::raw_os_error);
    let mut message = vec![0; MAX_MESSAGE];
    loop {
        match device.read(&mut message) {
            Ok(count) => to.write_all(&message[..count])?,
            Err(error) if passing.contains(&error.raw_os_error().unwrap_or(0)) => {}
            // Unmounted.
            Err(error) => {
                to.shutdown(std::net::Shutdown::Both)?;
                return Err(error);
            }
        }
    }
}

/// To the kernel, which takes one whole answer at a time.
fn carry_replies(mut from: UnixStream, mut device: File) -> io::Result<()> {
    let mut reply = vec![0; MAX_MESSAGE];
    loop {
        from.read_exact(&mut reply[..4])?;
        let length =
            usize::try_from(u32::from_ne_bytes([reply[0], reply[1], reply[2], reply[3]])).unwrap_or(usize::MAX);
        from.read_exact(&mut reply[4..length])?;
        match device.write(&reply[..length]) {
            Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => {}
            done => {
                done?;
            }
        }
    }
}
