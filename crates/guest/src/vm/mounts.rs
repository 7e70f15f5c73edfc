//! What is mounted in the tree: memory, processes, devices. Every place is opened below the tree, without following a link.

use alloc::vec::Vec;
use core::ffi::CStr;

use offleash_protocol::vm::{VmMount, VmMountKind};
use offleash_sys::spawn::append_decimal;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, makedev};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags};

use super::tree::TREE;
use super::{VmFailure, step};

/// What of `/proc` tells of the machine or steers it, covered by a file without content: as at level `process`.
const COVERED_FILES: [&[u8]; 18] = [
    b"config.gz",
    b"iomem",
    b"ioports",
    b"kallsyms",
    b"kcore",
    b"key-users",
    b"keys",
    b"kmsg",
    b"latency_stats",
    b"modules",
    b"sched_debug",
    b"slabinfo",
    b"sysrq-trigger",
    b"timer_list",
    b"timer_stats",
    b"vmallocinfo",
    b"cmdline",
    b"interrupts",
];

/// The same for directories.
const COVERED_DIRECTORIES: [&[u8]; 5] = [b"acpi", b"bus", b"irq", b"scsi", b"fs"];

/// Devices: name, major and minor number (Linux allocated devices).
const DEVICES: [(&CStr, u32, u32); 6] = [
    (c"null", 1, 3),
    (c"zero", 1, 5),
    (c"full", 1, 7),
    (c"random", 1, 8),
    (c"urandom", 1, 9),
    (c"tty", 5, 0),
];

const DEVICE_LINKS: [(&CStr, &CStr); 5] = [
    (c"fd", c"/proc/self/fd"),
    (c"stdin", c"/proc/self/fd/0"),
    (c"stdout", c"/proc/self/fd/1"),
    (c"stderr", c"/proc/self/fd/2"),
    (c"ptmx", c"pts/ptmx"),
];

const PLAIN: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOSUID.union(MountAttrFlags::MOUNT_ATTR_NODEV);

/// Mounts everything in the tree, in order; called in the pid namespace that `/proc` is to show.
pub(super) fn mount_all(mounts: &[VmMount]) -> Result<(), VmFailure> {
    let tree = open(CWD, TREE.to_bytes(), ResolveFlags::empty()).map_err(step("open the tree"))?;
    for mount in mounts {
        let path = mount.target.strip_prefix(b"/").unwrap_or(&mount.target);
        let place = || open_below(&tree, path);
        match mount.kind {
            VmMountKind::Tmpfs { bytes, inodes, mode } => {
                let made = place().and_then(|place| attach(&tmpfs(bytes, inodes, mode, PLAIN)?, &place));
                made.map_err(step("mount memory in the tree"))?;
            }
            VmMountKind::Proc => mount_proc(&tree, path).map_err(step("mount the processes in the tree"))?,
            VmMountKind::Devices { shm_bytes } => {
                mount_devices(&tree, path, shm_bytes).map_err(step("mount devices in the tree"))?;
            }
            VmMountKind::ReadOnly => {
                let made = place().and_then(|place| {
                    rustix::mount::mount_bind(path_of(&place), path_of(&place))?;
                    make_read_only(&open_below(&tree, path)?)
                });
                made.map_err(step("make a part of the tree read-only"))?;
            }
        }
    }
    Ok(())
}

/// Lets nothing be written through the mount that `place` is on the root of.
pub(super) fn make_read_only(place: &OwnedFd) -> Result<(), Errno> {
    let flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount_remount(path_of(place), flags, c"")
}

fn open(directory: impl AsFd, path: &[u8], resolve: ResolveFlags) -> Result<OwnedFd, Errno> {
    rustix::fs::openat2(directory, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)
}

fn open_below(tree: &OwnedFd, path: &[u8]) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    match path {
        b"" => rustix::io::fcntl_dupfd_cloexec(tree, 0),
        path => open(tree, path, resolve),
    }
}

/// A path that leads to what is open.
fn path_of(place: &OwnedFd) -> Vec<u8> {
    let mut path = Vec::from(&b"/proc/self/fd/"[..]);
    append_decimal(&mut path, place.as_raw_fd().unsigned_abs());
    path
}

fn new_mount(kind: &CStr, options: &[(&CStr, &[u8])], attributes: MountAttrFlags) -> Result<OwnedFd, Errno> {
    let context = rustix::mount::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        match value.is_empty() {
            true => rustix::mount::fsconfig_set_flag(&context, *key)?,
            false => rustix::mount::fsconfig_set_string(&context, *key, *value)?,
        }
    }
    rustix::mount::fsconfig_create(&context)?;
    rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

fn attach(mount: &OwnedFd, place: &OwnedFd) -> Result<(), Errno> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(mount, c"", place, c"", flags)
}

/// A number's digits.
pub(super) fn number(value: u64, radix: u64) -> Vec<u8> {
    let digit = |value: u64| b'0' + u8::try_from(value % radix).unwrap_or(0);
    let (mut text, mut rest) = (Vec::from([digit(value)]), value / radix);
    while rest > 0 {
        text.insert(0, digit(rest));
        rest /= radix;
    }
    text
}

fn tmpfs(bytes: u64, inodes: u64, mode: u32, attributes: MountAttrFlags) -> Result<OwnedFd, Errno> {
    let (size, inodes, mode) = (number(bytes, 10), number(inodes, 10), number(mode.into(), 8));
    new_mount(
        c"tmpfs",
        &[(c"size", &size), (c"nr_inodes", &inodes), (c"mode", &mode)],
        attributes,
    )
}

fn mount_proc(tree: &OwnedFd, path: &[u8]) -> Result<(), Errno> {
    let attributes = PLAIN | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    attach(&new_mount(c"proc", &[], attributes)?, &open_below(tree, path)?)?;
    let root = open_below(tree, path)?;
    let covers = cover()?;
    let below = |name: &[u8]| match open_below(&root, name) {
        Ok(place) => Ok(Some(place)),
        // Not every kernel has all.
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    };
    for (names, cover) in [(&COVERED_FILES[..], &covers.0), (&COVERED_DIRECTORIES[..], &covers.1)] {
        for name in names {
            if let Some(place) = below(name)? {
                rustix::mount::mount_bind(path_of(cover), path_of(&place))?;
            }
        }
    }
    if let Some(place) = below(b"sys")? {
        rustix::mount::mount_bind(path_of(&place), path_of(&place))?;
        make_read_only(&open_below(&root, b"sys")?)?;
    }
    Ok(())
}

/// A file and a directory without content, of a file system that nothing can be written to.
fn cover() -> Result<(OwnedFd, OwnedFd), Errno> {
    let _ = rustix::fs::mkdir(c"/cover", Mode::from_raw_mode(0o755));
    let place = open(CWD, b"/cover", ResolveFlags::empty())?;
    attach(&tmpfs(4096, 3, 0o555, PLAIN)?, &place)?;
    rustix::fs::mkdir(c"/cover/directory", Mode::empty())?;
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    rustix::fs::open(c"/cover/file", flags, Mode::empty())?;
    make_read_only(&open(CWD, b"/cover", ResolveFlags::empty())?)?;
    let opened = |path| open(CWD, path, ResolveFlags::empty());
    Ok((opened(b"/cover/file")?, opened(b"/cover/directory")?))
}

fn mount_devices(tree: &OwnedFd, path: &[u8], shm_bytes: u64) -> Result<(), Errno> {
    let devices = tmpfs(65_536, 64, 0o755, MountAttrFlags::MOUNT_ATTR_NOSUID)?;
    attach(&devices, &open_below(tree, path)?)?;
    let root = open_below(tree, path)?;
    for (name, major, minor) in DEVICES {
        let mode = Mode::from_raw_mode(0o666);
        rustix::fs::mknodat(&root, name, FileType::CharacterDevice, mode, makedev(major, minor))?;
        // Whatever the mask for new files is.
        rustix::fs::chmodat(&root, name, mode, rustix::fs::AtFlags::empty())?;
    }
    for (name, to) in DEVICE_LINKS {
        rustix::fs::symlinkat(to, &root, name)?;
    }
    for name in [c"pts", c"shm"] {
        rustix::fs::mkdirat(&root, name, Mode::from_raw_mode(0o755))?;
    }
    let options: [(&CStr, &[u8]); 3] = [(c"newinstance", b""), (c"ptmxmode", b"0666"), (c"mode", b"0620")];
    let no_suid_no_exec = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    attach(
        &new_mount(c"devpts", &options, no_suid_no_exec)?,
        &open_below(&root, b"pts")?,
    )?;
    attach(&tmpfs(shm_bytes, 0, 0o1777, PLAIN)?, &open_below(&root, b"shm")?)?;
    // Nothing more is made in it, though the devices can be written.
    let flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID;
    rustix::mount::mount_remount(path_of(&open_below(tree, path)?), flags, c"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_in_either_base() {
        assert_eq!(number(0, 10), b"0");
        assert_eq!(number(u64::MAX, 10), b"18446744073709551615");
        assert_eq!(number(0o1777, 8), b"1777");
    }
}
