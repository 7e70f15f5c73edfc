//! File systems below the root: which are served, and how inodes of several are told apart by one number.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::Statx;
use rustix::io::Errno;

use crate::bounds::MAX_FILE_SYSTEMS;

/// Numbers of file systems (linux/magic.h).
const OVERLAYFS: u64 = 0x794c_7630;
/// Those that show the kernel's state and not files: never served, wherever they are mounted.
const OF_THE_KERNEL: [u64; 13] = [
    0x9fa0,      // proc
    0x6265_6572, // sysfs
    0x0027_e0eb, // cgroup
    0x6367_7270, // cgroup2
    0x1cd1,      // devpts
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
    0x7363_6673, // securityfs
    0xcafe_4a11, // bpf
    0x1980_0202, // mqueue
    0x4249_4e4d, // binfmt_misc
    0x6e73_6673, // nsfs
    0x6265_6570, // configfs
];

/// Bits of an inode number that stay the file's own beside the number of its file system.
const OWN_BITS: u32 = 48;
/// What marks a number that was mixed, because it did not fit.
const MIXED: u64 = 1 << 63;

/// What is known of a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MountFacts {
    /// Whether its files may be served.
    pub(crate) is_served: bool,
    /// Whether it is an overlay, whose inodes get another number when they are first written.
    pub(crate) is_overlay: bool,
}

/// What is known of file systems and mounts.
#[derive(Debug, Default)]
pub(crate) struct MountTable {
    mounts: HashMap<u64, MountFacts>,
    devices: HashMap<u64, u64>,
}

impl MountTable {
    pub(crate) fn known(&self, mount: u64) -> Option<MountFacts> {
        self.mounts.get(&mount).copied()
    }

    pub(crate) fn learn(&mut self, mount: u64, facts: MountFacts) {
        if self.mounts.len() >= MAX_FILE_SYSTEMS {
            self.mounts.clear();
        }
        self.mounts.insert(mount, facts);
    }

    /// The number that the other side sees for an inode: its own for the file system of the root, and for each further
    /// one out of another range, so that no two files have the same.
    pub(crate) fn number(&mut self, device: u64, inode: u64) -> u64 {
        let place = match self.devices.get(&device) {
            Some(place) => *place,
            None if self.devices.len() >= MAX_FILE_SYSTEMS => return mixed(device, inode),
            None => {
                let place = u64::try_from(self.devices.len()).unwrap_or(0);
                self.devices.insert(device, place);
                place
            }
        };
        if inode >> OWN_BITS == 0 {
            place << OWN_BITS | inode
        } else {
            mixed(device, inode)
        }
    }
}

fn mixed(device: u64, inode: u64) -> u64 {
    MIXED | (inode ^ device.wrapping_mul(0x9e37_79b9_7f4a_7c15)) >> 1
}

/// Asks the kernel what a descriptor's file system is.
pub(crate) fn examine(descriptor: BorrowedFd<'_>) -> Result<MountFacts, Errno> {
    let kind = rustix::fs::fstatfs(descriptor.as_fd())?.f_type;
    // Compared as the 32 bits that the numbers are.
    let kind = u64::from_ne_bytes(kind.to_ne_bytes()) & u64::from(u32::MAX);
    Ok(MountFacts {
        is_served: !OF_THE_KERNEL.contains(&kind),
        is_overlay: kind == OVERLAYFS,
    })
}

/// The device of a file as one number.
pub(crate) fn device(stat: &Statx) -> u64 {
    u64::from(stat.stx_dev_major) << 32 | u64::from(stat.stx_dev_minor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inodes_of_different_file_systems_have_different_numbers() {
        let mut mounts = MountTable::default();
        assert_eq!(mounts.number(5, 77), 77);
        assert_ne!(mounts.number(6, 77), 77);
        assert_eq!(mounts.number(6, 77), mounts.number(6, 77));
        assert_ne!(mounts.number(5, 1 << 60), mounts.number(6, 1 << 60));
        assert_eq!(mounts.number(5, 78), 78);
    }

    #[test]
    fn file_systems_are_bounded() {
        let mut mounts = MountTable::default();
        let count = u64::try_from(MAX_FILE_SYSTEMS).unwrap();
        for device in 0..2 * count {
            mounts.number(device, 1);
            let facts = MountFacts {
                is_served: true,
                is_overlay: false,
            };
            mounts.learn(device, facts);
        }
        assert_eq!(mounts.devices.len(), MAX_FILE_SYSTEMS);
        assert!(mounts.mounts.len() <= MAX_FILE_SYSTEMS);
    }

    #[test]
    fn what_shows_the_kernel_is_not_served() {
        let file = std::fs::File::open("/proc").unwrap();
        assert!(!examine(file.as_fd()).unwrap().is_served);
        let file = std::fs::File::open("/").unwrap();
        assert!(examine(file.as_fd()).unwrap().is_served);
    }
}
