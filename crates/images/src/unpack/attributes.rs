//! Owners, modes, times and extended attributes of what a layer makes.

use std::os::fd::AsFd;

use rustix::fs::{AtFlags, Gid, Mode, Stat, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use super::{LayerOwnership, LayerRefusal, LayerReport};
use crate::tar::TarEntry;

/// How many ids a sandbox has at most; `nobody` is the last but one of them.
const IDS: u64 = 65_536;
const NOBODY: u32 = 65_534;
const SETUID_AND_SETGID: u32 = 0o6000;
const SETUID: u32 = 0o4000;

/// What a file or directory is given.
#[derive(Debug, Clone, Default)]
pub(super) struct FileAttributes {
    mode: u32,
    uid: u64,
    gid: u64,
    /// Whether it is the image that says these; what is unpacked flat belongs to who unpacked it.
    is_of_image: bool,
    modified: (i64, u32),
    extended: Vec<(Vec<u8>, Vec<u8>)>,
}

impl FileAttributes {
    pub(super) fn of_entry(entry: &TarEntry) -> Self {
        Self {
            mode: entry.mode,
            uid: entry.uid,
            gid: entry.gid,
            is_of_image: true,
            modified: entry.modified,
            extended: entry.attributes.clone(),
        }
    }

    /// Those of a file of a lower layer.
    pub(super) fn of_stat(stat: &Stat) -> Self {
        Self {
            mode: stat.st_mode & 0o7777,
            uid: stat.st_uid.into(),
            gid: stat.st_gid.into(),
            is_of_image: false,
            modified: (
                stat.st_mtime,
                u32::try_from(stat.st_mtime_nsec).unwrap_or(0).min(999_999_999),
            ),
            extended: Vec::new(),
        }
    }

    /// Those of a directory that no layer says anything of.
    pub(super) fn implied() -> Self {
        Self {
            mode: 0o755,
            ..Self::default()
        }
    }
}

/// Gives files what belongs to them, and counts what they do not get.
#[derive(Debug)]
pub(super) struct AttributeWriter {
    pub(super) ownership: LayerOwnership,
    pub(super) report: LayerReport,
}

impl AttributeWriter {
    /// Gives an open file or directory its attributes. Programs lose what gives them another user: nothing in a sandbox
    /// gains privileges by exec, and outside nobody is to.
    pub(super) fn give(
        &mut self,
        opened: impl AsFd,
        attributes: &FileAttributes,
        is_directory: bool,
    ) -> Result<(), LayerRefusal> {
        let opened = opened.as_fd();
        if let Some((uid, gid)) = self.owner(attributes) {
            let given = rustix::fs::fchown(opened, Some(uid), Some(gid));
            given.map_err(|error| LayerRefusal::kernel("giving it its owner", error))?;
        }
        self.extended(opened, &attributes.extended)?;
        let mode = self.mode(attributes.mode, is_directory);
        rustix::fs::fchmod(opened, Mode::from_raw_mode(mode))
            .and_then(|()| rustix::fs::futimens(opened, &times(attributes.modified)))
            .map_err(|error| LayerRefusal::kernel("giving it its mode and time", error))
    }

    /// Gives what cannot be opened, a link or a pipe, its owner and time.
    pub(super) fn give_at(
        &mut self,
        parent: impl AsFd,
        name: &[u8],
        attributes: &FileAttributes,
    ) -> Result<(), LayerRefusal> {
        let parent = parent.as_fd();
        if let Some((uid, gid)) = self.owner(attributes) {
            let given = rustix::fs::chownat(parent, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW);
            given.map_err(|error| LayerRefusal::kernel("giving it its owner", error))?;
        }
        self.report.attributes += attributes.extended.len() as u64;
        rustix::fs::utimensat(parent, name, &times(attributes.modified), AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|error| LayerRefusal::kernel("giving it its time", error))
    }

    /// Permission bits that a file gets.
    pub(super) fn mode(&mut self, mode: u32, is_directory: bool) -> u32 {
        // On a directory setgid says whose group new files have; but with one owner for all there is one group.
        let lost = match (is_directory, self.ownership) {
            (true, LayerOwnership::Owned) => SETUID,
            _ => SETUID_AND_SETGID,
        };
        if mode & lost != 0 && !is_directory {
            self.report.setuid += 1;
        }
        mode & !lost
    }

    fn owner(&mut self, attributes: &FileAttributes) -> Option<(Uid, Gid)> {
        let FileAttributes { uid, gid, .. } = *attributes;
        if self.ownership == LayerOwnership::Flat {
            self.report.flattened += u64::from(attributes.is_of_image && (uid, gid) != (0, 0));
            return None;
        }
        self.report.foreign_ids += u64::from(uid >= IDS || gid >= IDS);
        let known = |id: u64| u32::try_from(id).ok().filter(|_| id < IDS).unwrap_or(NOBODY);
        Some((Uid::from_raw(known(uid)), Gid::from_raw(known(gid))))
    }

    /// Attributes of users are kept; those of the kernel, of security modules and of overlays are not.
    fn extended(&mut self, opened: impl AsFd, attributes: &[(Vec<u8>, Vec<u8>)]) -> Result<(), LayerRefusal> {
        for (name, value) in attributes {
            let is_kept = name.starts_with(b"user.") && !name.starts_with(b"user.overlay.") && name.len() <= 255;
            if !is_kept {
                match name.as_slice() {
                    b"security.capability" => self.report.capabilities += 1,
                    _ => self.report.attributes += 1,
                }
                continue;
            }
            match rustix::fs::fsetxattr(&opened, name.as_slice(), value, XattrFlags::empty()) {
                Ok(()) => {}
                // File systems differ in whether they have them, and in how much room there is.
                Err(Errno::OPNOTSUPP | Errno::NOSPC | Errno::TOOBIG | Errno::RANGE | Errno::PERM) => {
                    self.report.attributes += 1;
                }
                Err(error) => return Err(LayerRefusal::kernel("giving it an extended attribute", error)),
            }
        }
        Ok(())
    }
}

fn times((seconds, nanoseconds): (i64, u32)) -> Timestamps {
    let time = Timespec {
        tv_sec: seconds,
        tv_nsec: nanoseconds.into(),
    };
    Timestamps {
        last_access: time,
        last_modification: time,
    }
}
