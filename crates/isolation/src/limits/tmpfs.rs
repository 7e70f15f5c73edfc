//! How full a sandbox's directories in memory are, seen from outside.
//!
//! Nobody inside is asked, so it takes microseconds and can be done once more when a command has ended. A directory that
//! was full and was emptied before anybody looked is not known of.

use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use offleash_core::limits::LimitName;
use offleash_core::plan::{Plan, PlanEntry, PlanNode};
use offleash_core::record::{LimitEffect, LimitHit};
use offleash_protocol::TmpfsUsage;
use rustix::fs::{Mode, OFlags, ResolveFlags, StatFs, fstatfs, open, openat2};
use rustix::process::Pid;

/// `TMPFS_MAGIC` in `include/uapi/linux/magic.h`.
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// The directories in memory of one sandbox that can be written to.
#[derive(Debug)]
pub(crate) struct TmpfsMounts {
    init: Pid,
    places: Vec<TmpfsMount>,
}

#[derive(Debug)]
struct TmpfsMount {
    /// Below the sandbox's root.
    path: PathBuf,
    bytes: Option<u64>,
    inodes: Option<u64>,
}

impl TmpfsMounts {
    /// Those of `plan` in the sandbox of this first process, which must not be waited for as long as they are looked at.
    pub(crate) fn new(init: Pid, plan: &Plan) -> Self {
        let place = |entry: &PlanEntry| match entry.node {
            PlanNode::Tmpfs { size, inodes, mode } if mode & 0o222 != 0 => Some(TmpfsMount {
                path: entry.target.strip_prefix("/").unwrap_or(&entry.target).to_owned(),
                bytes: size.map(|size| size.0),
                inodes,
            }),
            _ => None,
        };
        let places = plan.entries.iter().filter_map(place).collect();
        Self { init, places }
    }

    /// The limits that let nothing more into one of them.
    pub(crate) fn full(&self) -> Vec<LimitHit> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // Its root is the built one: it left the host's before it ran anything.
        let Ok(root) = open(format!("/proc/{}/root", self.init.as_raw_pid()), flags, Mode::empty()) else {
            return Vec::new();
        };
        self.places
            .iter()
            .filter_map(|place| Some((place, place.status(&root)?)))
            .flat_map(|(place, status)| place.refusals(&status))
            .collect()
    }

    /// The same, where the guest alone can look: what it `told`, of those of the plan.
    pub(crate) fn full_as_told(&self, told: &[TmpfsUsage]) -> Vec<LimitHit> {
        let of = |place: &TmpfsMount| {
            told.iter()
                .find(|usage| usage.path.strip_prefix(b"/") == Some(place.path.as_os_str().as_bytes()))
        };
        let full = self.places.iter().filter_map(|place| Some((place, of(place)?)));
        full.flat_map(|(place, usage)| {
            place.refusals_of(
                usage.total > 0 && usage.used >= usage.total,
                usage.files_total > 0 && usage.files_used >= usage.files_total,
            )
        })
        .collect()
    }
}

impl TmpfsMount {
    /// `None` if something else is there, as when the sandbox renamed what the mount lies in.
    fn status(&self, root: &OwnedFd) -> Option<StatFs> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let inside = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let found = openat2(root, &self.path, flags, Mode::empty(), inside).ok()?;
        fstatfs(&found).ok().filter(|status| status.f_type == TMPFS_MAGIC)
    }

    fn refusals(&self, status: &StatFs) -> Vec<LimitHit> {
        let no_bytes = status.f_blocks > 0 && status.f_bfree == 0;
        let no_inodes = status.f_files > 0 && status.f_ffree == 0;
        self.refusals_of(no_bytes, no_inodes)
    }

    fn refusals_of(&self, no_bytes: bool, no_inodes: bool) -> Vec<LimitHit> {
        let refused = |is_full: bool, limit, value: Option<u64>| {
            let effect = LimitEffect::Refused;
            value.filter(|_| is_full).map(|value| LimitHit { limit, value, effect })
        };
        let bytes = refused(no_bytes, LimitName::Tmp, self.bytes);
        bytes
            .into_iter()
            .chain(refused(no_inodes, LimitName::Inodes, self.inodes))
            .collect()
    }
}
