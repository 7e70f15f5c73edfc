//! From the kernel's start to the greeting.

use alloc::ffi::CString;
use alloc::vec::Vec;

use offleash_protocol::vm::{CHANNEL_PORT, FromVm, Hello, TREE_PORT, VERSION};
use offleash_sys::machine;
use rustix::event::{PollFd, PollFlags};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Dir, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::MountFlags;
use rustix::process::DumpableBehavior;
use rustix::time::ClockId;

use super::channel::VmChannel;
use super::{VmFailure, now, pause, step};
use crate::processes::read;

/// Modules to load, in order, a path each.
const MODULES: &[u8] = b"/modules.list";

/// Longest wait for a port to be there and connected, milliseconds.
const PORT_TIMEOUT: i64 = 10_000;

/// Mounts what it takes to see the machine, loads modules, opens the channel and greets.
pub(super) fn boot() -> Result<VmChannel, VmFailure> {
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(step("hide memory"))?;
    let (hidden, devices) = (
        MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC,
        MountFlags::NOSUID,
    );
    for (kind, target, flags) in [
        (c"devtmpfs", c"/dev", devices),
        (c"proc", c"/proc", hidden),
        (c"sysfs", c"/sys", hidden),
    ] {
        // There already, in an initramfs that has it.
        let _ = rustix::fs::mkdir(target, Mode::from_raw_mode(0o755));
        match rustix::mount::mount(kind, target, kind, flags, None) {
            Ok(()) | Err(Errno::BUSY) => {}
            Err(errno) => return Err(step("mount devices, processes and the kernel's objects")(errno)),
        }
    }
    load_modules()?;
    // Nothing of the machine is killed for want of memory before all of the sandbox is.
    write_file(c"/proc/self/oom_score_adj", b"-1000").map_err(step("set the score for when memory runs out"))?;
    machine::interface_up(c"lo").map_err(step("turn the loopback interface on"))?;
    let mut channel = VmChannel::new(open_port(CHANNEL_PORT).map_err(step("open the channel's port"))?);
    let now = rustix::time::clock_gettime(ClockId::Boottime);
    let micros = u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0) / 1000;
    channel.mux.send(&FromVm::Hello(Hello {
        version: VERSION,
        guest: offleash_protocol::VERSION,
        uptime_us: micros,
    }));
    Ok(channel)
}

/// Loads what [`MODULES`] names, each with what the kernel's command line says for it.
fn load_modules() -> Result<(), VmFailure> {
    let words = read(b"/proc/cmdline");
    for path in read(MODULES)
        .split(|byte| *byte == b'\n')
        .filter(|path| !path.is_empty())
    {
        let parameters =
            CString::new(parameters(path, &words)).map_err(|_| step("load a kernel module")(Errno::INVAL))?;
        let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let loaded = file.and_then(|file| rustix::system::finit_module(file, &parameters, 0));
        match loaded {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(step("load a kernel module")(errno)),
        }
    }
    Ok(())
}

/// The parameters of a module: `module.parameter=value` on the command line. The kernel takes them for what is built in alone, and
/// that is how a machine without tables of its devices says where they are.
fn parameters(path: &[u8], words: &[u8]) -> Vec<u8> {
    let file = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let name: Vec<u8> = file
        .strip_suffix(b".ko")
        .unwrap_or(file)
        .iter()
        .map(|byte| same(*byte))
        .collect();
    let mut parameters = Vec::new();
    for word in words.trim_ascii().split(|byte| *byte == b' ') {
        let Some((module, parameter)) = word.iter().position(|byte| *byte == b'.').map(|dot| word.split_at(dot)) else {
            continue;
        };
        if module.iter().map(|byte| same(*byte)).eq(name.iter().copied()) {
            parameters.extend_from_slice(parameter.get(1..).unwrap_or_default());
            parameters.push(b' ');
        }
    }
    parameters
}

/// A module's file may have a hyphen where its name has a line.
fn same(byte: u8) -> u8 {
    match byte {
        b'-' => b'_',
        byte => byte,
    }
}

/// Opens the port for the tree.
pub(super) fn open_tree_port() -> Result<OwnedFd, VmFailure> {
    open_port(TREE_PORT).map_err(step("open the tree's port"))
}

/// Opens a virtio-serial port by its name and waits until somebody is at its other end. It makes nobody wait.
fn open_port(name: &str) -> Result<OwnedFd, Errno> {
    let latest = now().saturating_add(PORT_TIMEOUT);
    let wait = |error| match now() < latest {
        true => {
            pause(1);
            Ok(())
        }
        false => Err(error),
    };
    let path = loop {
        match find_port(name.as_bytes()) {
            Some(path) => break path,
            None => wait(Errno::NODEV)?,
        }
    };
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let port = rustix::fs::open(path, flags, Mode::empty())?;
    while is_alone(&port) {
        wait(Errno::TIMEDOUT)?;
    }
    Ok(port)
}

/// Whether nobody is at the other end.
fn is_alone(port: &OwnedFd) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(port.as_fd(), PollFlags::IN)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    let _ = rustix::event::poll(&mut polled, Some(&now));
    polled.iter().any(|polled| polled.revents().contains(PollFlags::HUP))
}

fn find_port(name: &[u8]) -> Option<CString> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(c"/sys/class/virtio-ports", flags, Mode::empty());
    let mut entries = opened.and_then(Dir::new::<OwnedFd>).ok()?;
    while let Some(Ok(entry)) = entries.read() {
        let device = entry.file_name().to_bytes();
        let its_name = read(&[b"/sys/class/virtio-ports/", device, b"/name"].concat());
        if its_name.trim_ascii() == name {
            let path: Vec<u8> = [b"/dev/", device].concat();
            return CString::new(path).ok();
        }
    }
    None
}

/// Writes a whole value to a file of the kernel's.
pub(super) fn write_file(path: &core::ffi::CStr, value: &[u8]) -> Result<(), Errno> {
    let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&file, value).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_gets_what_the_command_line_says_for_it() {
        let words =
            b"quiet virtio_mmio.device=512@0xfeb00e00:12 virtio-mmio.device=512@0xfeb00c00:11 fuse.x=1 reboot=t\n";
        let both = b"device=512@0xfeb00e00:12 device=512@0xfeb00c00:11 ";
        assert_eq!(parameters(b"/modules/virtio_mmio.ko", words), both);
        assert_eq!(parameters(b"/modules/virtio-mmio.ko", words), both);
        assert_eq!(parameters(b"/modules/virtio.ko", words), b"");
    }
}
