//! Disks that are soon full, which only root can make.

use std::ffi::CString;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// A small tmpfs, unmounted at the end.
#[derive(Debug)]
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts one of that size, unless that is not possible here.
    pub fn mount(at: &Path, mebibytes: u64) -> Option<Self> {
        let options = CString::new(format!("size={mebibytes}m,mode=755")).unwrap();
        let mounted = mount(
            "offleash-test",
            at,
            "tmpfs",
            MountFlags::NOSUID,
            Some(options.as_c_str()),
        );
        mounted.ok().map(|()| Self(at.to_owned()))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        unmount(&self.0, UnmountFlags::DETACH).unwrap();
    }
}
