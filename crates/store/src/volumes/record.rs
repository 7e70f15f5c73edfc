//! What is known of a volume, in a file beside its data.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use offleash_core::bucket::BucketSpec;
use offleash_core::volume::{VolumeId, VolumeName, VolumeQuota};
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

pub(super) const RECORD: &str = "volume.json";
/// One that is being written, before it takes the other's place.
pub(super) const NEW_RECORD: &str = "volume.json.new";
/// The form of [`VolumeRecord`]; another one is not understood.
const VERSION: u32 = 1;
/// Longest record, bytes.
const MAX_RECORD: u64 = 64 << 10;

/// What is known of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeRecord {
    version: u32,
    /// Its id.
    pub id: VolumeId,
    /// What its owner calls it.
    pub name: VolumeName,
    /// Whose it is: the id of a key, or the owner of the machine.
    pub owner: String,
    /// How much it may hold.
    pub quota: VolumeQuota,
    /// Whether many sandboxes may write to it at the same time.
    pub shared: bool,
    /// When it was made, RFC 3339.
    pub created_at: String,
    /// Whoever shows it may read and write the files.
    pub token: VolumeToken,
    /// Who the files belong to on the host.
    pub owners: VolumeOwners,
    /// The bucket that it is synchronised with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bucket: Option<BucketSpec>,
}

/// A secret that stands for the right to read and write a volume.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct VolumeToken(String);

/// Which ids of the host the files of a volume have.
///
/// As root, files of uid N of a sandbox belong to `first + N`: ids between those of sandboxes and 2³¹, which nobody has.
/// Otherwise all files belong to who made the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VolumeOwners {
    /// A range of ids, from this one on.
    Range {
        /// The id that stands for uid 0 of a sandbox.
        first: u32,
    },
    /// One.
    Single {
        /// Its user id.
        uid: u32,
        /// Its group id.
        gid: u32,
    },
}

impl VolumeOwners {
    /// The id that stands for uid 0, where there is a range: behind all that sandboxes have.
    pub const FIRST: u32 = 0x7fff_0000;
    /// How many ids a range has.
    pub const COUNT: u32 = 65_536;
    /// The id inside of whoever works in a sandbox.
    pub const WORKER: u32 = 1000;

    /// The host's ids of a file of `ids` of a sandbox; `None` where no file has them.
    pub fn outside(self, (uid, gid): (u32, u32)) -> Option<(u32, u32)> {
        match self {
            Self::Range { first } => {
                let outside = |id: u32| (id < Self::COUNT).then(|| first + id);
                Some((outside(uid)?, outside(gid)?))
            }
            Self::Single { uid: own, gid: group } => {
                ((uid, gid) == (Self::WORKER, Self::WORKER)).then_some((own, group))
            }
        }
    }

    /// The ids in a sandbox of a file with these ids of the host.
    pub fn inside(self, (uid, gid): (u32, u32)) -> (u32, u32) {
        /// Whoever is nobody here.
        const NOBODY: u32 = 65_534;
        match self {
            Self::Range { first } => {
                let inside = |id: u32| id.checked_sub(first).filter(|id| *id < Self::COUNT).unwrap_or(NOBODY);
                (inside(uid), inside(gid))
            }
            Self::Single { uid: own, gid: group } => {
                let inside = |id: u32, own: u32| if id == own { Self::WORKER } else { NOBODY };
                (inside(uid, own), inside(gid, group))
            }
        }
    }
}

impl VolumeToken {
    /// A new one.
    pub(super) fn random() -> Result<Self, rustix::io::Errno> {
        let mut bytes = [0; 32];
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
        let mut text = String::from("vt_");
        for byte in bytes {
            text.push_str(&format!("{byte:02x}"));
        }
        Ok(Self(text))
    }

    /// The secret itself.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Whether `given` is it, in a time that does not tell how much of it is right.
    pub fn is(&self, given: &str) -> bool {
        let (own, given) = (self.0.as_bytes(), given.as_bytes());
        let differing = own.iter().zip(given).fold(0, |all, (one, other)| all | (one ^ other));
        own.len() == given.len() && std::hint::black_box(differing) == 0
    }
}

impl fmt::Debug for VolumeToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("****")
    }
}

/// A volume that is to be made.
#[derive(Debug, Clone)]
pub struct NewVolume {
    /// What its owner calls it.
    pub name: VolumeName,
    /// Whose it is.
    pub owner: String,
    /// How much it may hold.
    pub quota: VolumeQuota,
    /// Whether many sandboxes may write to it at the same time.
    pub shared: bool,
    /// The bucket that it is to be synchronised with.
    pub bucket: Option<BucketSpec>,
}

impl VolumeRecord {
    pub(super) fn new(new: NewVolume, id: VolumeId, owners: VolumeOwners) -> Result<Self, rustix::io::Errno> {
        Ok(Self {
            version: VERSION,
            id,
            name: new.name,
            owner: new.owner,
            quota: new.quota,
            shared: new.shared,
            created_at: crate::rfc3339_now(),
            token: VolumeToken::random()?,
            owners,
            bucket: new.bucket,
        })
    }

    pub(super) fn read(directory: &OwnedFd) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::openat(directory, RECORD, flags, Mode::empty())?;
        let mut text = Vec::new();
        File::from(file).take(MAX_RECORD).read_to_end(&mut text)?;
        let record: Self = serde_json::from_slice(&text)?;
        match record.version {
            VERSION => Ok(record),
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "another version of offleash has made it",
            )),
        }
    }

    pub(super) fn write(&self, path: &Path) -> io::Result<()> {
        let mut options = fs::OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        file.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_go_out_and_come_back() {
        let range = VolumeOwners::Range {
            first: VolumeOwners::FIRST,
        };
        for ids in [(0, 0), (1000, 1000), (33, 65_535)] {
            assert_eq!(range.inside(range.outside(ids).unwrap()), ids);
        }
        assert_eq!(range.outside((65_536, 0)), None);
        assert_eq!(
            range.inside((0, 0)),
            (65_534, 65_534),
            "root of the host is nobody inside"
        );
        let single = VolumeOwners::Single { uid: 4242, gid: 7 };
        assert_eq!(single.outside((1000, 1000)), Some((4242, 7)));
        assert_eq!(single.outside((0, 0)), None);
        assert_eq!(single.inside((4242, 7)), (1000, 1000));
    }

    #[test]
    fn a_token_is_not_shown_and_known_as_a_whole() {
        let token = VolumeToken::random().unwrap();
        assert_eq!(format!("{token:?}"), "****");
        assert!(token.is(token.reveal()));
        for wrong in ["", "vt_", &token.reveal()[1..], &format!("{}0", token.reveal())] {
            assert!(!token.is(wrong), "{wrong}");
        }
    }
}
