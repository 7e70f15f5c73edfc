//! Whose the files of a layer are, and what whoever asks may do with them.

use rustix::fs::Stat;

/// How many ids a sandbox has that has several.
const RANGE: u32 = 65_536;
/// Who owns what belongs to no id of the sandbox.
const NOBODY: u32 = 65_534;
const STICKY: u32 = 0o1000;

/// Who asks, as ids inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileCaller {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// Whose the files of a layer are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LayerOwners {
    /// The sandbox's, which has one id: whoever asks may do what the kernel lets this process do.
    One,
    /// Those of this id of the host are the sandbox's; others have to be open to everybody, as they would have to be for the
    /// sandbox's user at other levels. This process may read those of all users.
    Only(u32),
    /// They belong to as many ids of the host as a sandbox has, from this one on.
    Range(u32),
}

impl LayerOwners {
    /// Whether a file's mode lets `caller` do something, of which `owner_bit` is what it asks for of the owner.
    pub(super) fn lets(self, caller: FileCaller, stat: &Stat, owner_bit: u32) -> bool {
        let bit = match self {
            Self::One => owner_bit,
            Self::Only(owner) if stat.st_uid == owner => owner_bit,
            Self::Only(_) => owner_bit >> 6,
            Self::Range(_) if caller.uid == 0 => return true,
            Self::Range(first) if inside(stat.st_uid, first) == caller.uid => owner_bit,
            Self::Range(first) if inside(stat.st_gid, first) == caller.gid => owner_bit >> 3,
            Self::Range(_) => owner_bit >> 6,
        };
        stat.st_mode & bit != 0
    }

    /// Whether `caller` is who may change a file's permissions.
    pub(super) fn is_owner(self, caller: FileCaller, stat: &Stat) -> bool {
        match self {
            Self::One => true,
            Self::Only(owner) => stat.st_uid == owner,
            Self::Range(first) => caller.uid == 0 || inside(stat.st_uid, first) == caller.uid,
        }
    }

    /// The ids inside of a file, where the sandbox's one user has those of `user`.
    pub(super) fn shown(self, stat: &Stat, user: FileCaller) -> (u32, u32) {
        let own = match self {
            Self::One => rustix::process::geteuid().as_raw(),
            Self::Only(owner) => owner,
            Self::Range(first) => return (inside(stat.st_uid, first), inside(stat.st_gid, first)),
        };
        match stat.st_uid == own {
            true => (user.uid, user.gid),
            false => (NOBODY, NOBODY),
        }
    }

    /// The host's ids for ids inside; `None` where files are the one user's as they are made.
    pub(super) fn outside(self, (uid, gid): (u32, u32)) -> Option<(u32, u32)> {
        match self {
            Self::One | Self::Only(_) => None,
            Self::Range(first) => Some((first + uid.min(RANGE - 1), first + gid.min(RANGE - 1))),
        }
    }
}

/// Whether only owners remove what is in the directory (inode(7), `S_ISVTX`).
pub(super) fn is_sticky(directory: &Stat) -> bool {
    directory.st_mode & STICKY != 0
}

fn inside(id: u32, first: u32) -> u32 {
    id.checked_sub(first).filter(|id| *id < RANGE).unwrap_or(NOBODY)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(uid: u32, gid: u32, mode: u32) -> Stat {
        let mut stat = rustix::fs::stat("/").unwrap();
        (stat.st_uid, stat.st_gid, stat.st_mode) = (uid, gid, mode);
        stat
    }

    #[test]
    fn a_files_mode_counts_for_its_owner_its_group_and_others() {
        let owners = LayerOwners::Range(1_000_000);
        let caller = |uid, gid| FileCaller { uid, gid };
        let file = stat(1_001_000, 1_000_050, 0o640);
        for (caller, reads, writes) in [
            (caller(1000, 1000), true, true),
            (caller(7, 50), true, false),
            (caller(7, 7), false, false),
            (caller(0, 0), true, true),
        ] {
            let may = (owners.lets(caller, &file, 0o400), owners.lets(caller, &file, 0o200));
            assert_eq!(may, (reads, writes), "{caller:?}");
        }
        assert!(owners.is_owner(caller(1000, 1), &file) && !owners.is_owner(caller(7, 50), &file));
    }

    #[test]
    fn ids_of_nobody_in_the_sandbox_are_nobodys() {
        let user = FileCaller { uid: 1000, gid: 1000 };
        let range = LayerOwners::Range(1_000_000);
        assert_eq!(range.shown(&stat(0, 1_000_000 + RANGE, 0), user), (NOBODY, NOBODY));
        assert_eq!(range.shown(&stat(1_000_000, 1_000_005, 0), user), (0, 5));
        assert_eq!(
            range.outside((1000, u32::MAX)),
            Some((1_001_000, 1_000_000 + RANGE - 1))
        );
        assert_eq!(LayerOwners::Only(4242).shown(&stat(4242, 1, 0), user), (1000, 1000));
        assert!(!LayerOwners::Only(4242).lets(user, &stat(1, 1, 0o700), 0o400));
    }
}
