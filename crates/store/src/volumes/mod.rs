//! Volumes on disk: `volumes` in the state directory, which may be a link to where there is more room.
//!
//! ```text
//! volumes/ID/volume.json   what it is
//! volumes/ID/data          what is in it; nothing else of it is ever seen by a sandbox
//! volumes/ID/incoming      files that the host is writing, before they have their names
//! volumes/ID/writer        locked by who writes to it, unless many may
//! volumes/ID/sync          locked by who brings it and its bucket to the same
//! volumes/ID/objects.json  what volume and bucket had in common then
//! volumes/ID/unsent        there while somebody may have written what is not in the bucket
//! volumes/.new-ID          one that is being made, locked by who makes it
//! volumes/.old-ID          one that is being removed
//! volumes/.lock            held while names are given
//! ```
//!
//! Whoever uses a volume holds a shared lock on its directory. Locks are the kernel's and end with who holds them, so
//! nothing says that a volume is in use when nobody uses it. Deliberately not here: how much is in one (`isolation`
//! measures), and whose ids a sandbox has (`isolation` maps them).

mod content;
mod error;
mod record;
mod stamp;
mod transfer;
mod uploads;

use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use offleash_core::spec::MountAccess;
use offleash_core::volume::{VolumeId, VolumeKey, VolumeName, VolumeQuota};
use rustix::fs::{FlockOperation, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

pub use self::content::{EntryOwner, VolumeContent, VolumeEntry, VolumePath, VolumeWriter};
pub use self::error::VolumeError;
pub use self::record::{NewVolume, VolumeOwners, VolumeRecord, VolumeToken};
pub use self::stamp::{FileStamp, FoundFiles};
pub use self::transfer::{TransferBudget, TransferReport, copy_in, copy_out};
use crate::StateDirectory;
use crate::failure::{FailedCall, FileError};
use crate::removal::remove_directory;
use crate::state::StateError;

const VOLUMES: &str = "volumes";
const DATA: &str = "data";
const INCOMING: &str = "incoming";
const WRITER: &str = "writer";
const SYNC: &str = "sync";
const OBJECTS: &str = "objects.json";
const UNSENT: &str = "unsent";
const LOCK: &str = ".lock";
const NEW: &str = ".new-";
const OLD: &str = ".old-";

/// The owner of volumes that no key has: whoever has the state directory.
pub const LOCAL_OWNER: &str = "local";
/// How many volumes there can be in one state directory: lists read the record of each.
pub const MAX_VOLUMES: usize = 4096;
/// How many of them can be one key's. What no key has, the owner of the machine may make until there are [`MAX_VOLUMES`].
const MAX_VOLUMES_OF_KEY: usize = 256;
/// How often a lock is tried that somebody may have for a moment only, to look whether anybody has it.
const TRIES: usize = 10;
const BETWEEN_TRIES: Duration = Duration::from_millis(10);

/// The volumes of a state directory.
#[derive(Debug, Clone)]
pub struct VolumeStore {
    path: PathBuf,
}

/// A volume that is not removed as long as this lives, and that nobody else writes to if this may.
#[derive(Debug)]
pub struct HeldVolume {
    record: VolumeRecord,
    path: PathBuf,
    _lock: OwnedFd,
    _writer: Option<OwnedFd>,
}

/// A volume in a list.
#[derive(Debug, Clone)]
pub struct VolumeListing {
    /// What it is.
    pub record: VolumeRecord,
    /// Whether somebody has it.
    pub in_use: bool,
}

/// What was a volume and is none any more, to be removed with all that is in it.
#[derive(Debug)]
pub struct RemovedVolume {
    path: PathBuf,
    /// Nobody can begin to use it.
    _lock: OwnedFd,
}

impl StateDirectory {
    /// The volumes; the directory is made if it is not there.
    ///
    /// # Errors
    /// If there is no place for them and none can be made.
    pub fn volumes(&self) -> Result<VolumeStore, StateError> {
        let path = self.path().join(VOLUMES);
        let made = match private(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => fs::canonicalize(&path),
        };
        let path = made.tried("making", VOLUMES).map_err(|source| StateError::Unusable {
            path: self.path().to_owned(),
            source,
        })?;
        Ok(VolumeStore { path })
    }
}

impl VolumeStore {
    /// Makes a volume. It is there as a whole or not at all.
    ///
    /// # Errors
    /// `Exists` for a name that the owner has given before, `Quota`, `TooMany`, `TooManyOfKey`; when it cannot be made.
    pub fn create(&self, new: NewVolume) -> Result<VolumeRecord, VolumeError> {
        check_quota(&new.quota)?;
        let _naming = self.naming()?;
        let records = self.records()?;
        check_count(&records, &new.owner)?;
        if records
            .iter()
            .any(|other| (&other.owner, &other.name) == (&new.owner, &new.name))
        {
            return Err(VolumeError::Exists {
                name: new.name.to_string(),
            });
        }
        let id = VolumeId::from_random(random().tried("drawing an id in", &self.path)?);
        let unfinished = UnfinishedVolume::new(self.path.join(format!("{NEW}{id}")))?;
        let made = unfinished.fill(new, id)?;
        let place = self.path.join(made.id.as_str());
        rename_new(&unfinished.path, &place).tried("naming", &place)?;
        unfinished.finish();
        sync(&self.path)?;
        Ok(made)
    }

    /// All volumes, by owner and name. What no record can be read of is left out.
    ///
    /// # Errors
    /// If the list cannot be read.
    pub fn list(&self, owner: Option<&str>) -> Result<Vec<VolumeListing>, VolumeError> {
        let mut records = self.records()?;
        records.retain(|record| owner.is_none_or(|owner| record.owner == owner));
        let listing = |record: VolumeRecord| {
            let in_use = self.is_used(&record.id)?;
            Ok(VolumeListing { record, in_use })
        };
        records.into_iter().map(listing).collect()
    }

    /// What is known of a volume of `owner`, by its name or its id; an id of anybody's if `owner` is absent.
    ///
    /// # Errors
    /// `Missing`, also for what is somebody else's.
    pub fn find(&self, owner: Option<&str>, which: &str) -> Result<VolumeRecord, VolumeError> {
        let missing = || VolumeError::Missing {
            which: which.to_owned(),
        };
        if let Ok(id) = which.parse::<VolumeId>() {
            let record = self.record(&id)?.ok_or_else(missing)?;
            let is_theirs = owner.is_none_or(|owner| record.owner == owner);
            return is_theirs.then_some(record).ok_or_else(missing);
        }
        let name: VolumeName = which.parse()?;
        let records = self.records()?;
        let own = owner.unwrap_or(LOCAL_OWNER);
        let mut called = records.into_iter().filter(|record| record.name == name);
        let mut others = Vec::new();
        match called.find(|record| {
            record.owner == own || {
                others.push(record.id.to_string());
                false
            }
        }) {
            Some(found) => Ok(found),
            // Who owns the machine may know of those of keys.
            None if owner.is_none() && !others.is_empty() => Err(VolumeError::OfKeys {
                name: which.to_owned(),
                ids: others,
            }),
            None => Err(missing()),
        }
    }

    /// Keeps a volume in place and says what it is.
    ///
    /// # Errors
    /// `Missing`; `HasWriter` when it is to be written to, another writes to it, and it is not for many.
    pub fn hold(&self, which: &VolumeKey, access: MountAccess) -> Result<HeldVolume, VolumeError> {
        let id = match which {
            VolumeKey::Id(id) => id.clone(),
            VolumeKey::Name(name) => self.find(Some(LOCAL_OWNER), name.as_str())?.id,
        };
        let missing = || VolumeError::Missing {
            which: which.to_string(),
        };
        let path = self.path.join(id.as_str());
        let opened = open(&path)?.ok_or_else(missing)?;
        rustix::fs::flock(&opened, FlockOperation::LockShared).tried("locking", &path)?;
        if !is_at(&opened, &path).tried("examining", &path)? {
            return Err(missing());
        }
        let record = VolumeRecord::read(&opened).tried("reading the record of", &path)?;
        let writer = match access {
            MountAccess::Rw if !record.shared => Some(take_writer(&opened, &record)?),
            _ => None,
        };
        Ok(HeldVolume {
            record,
            path,
            _lock: opened,
            _writer: writer,
        })
    }

    /// Changes how much a volume may hold. Sandboxes that have it keep what they were started with.
    ///
    /// # Errors
    /// `Missing`, `Quota`; when its record cannot be written.
    pub fn resize(&self, owner: Option<&str>, which: &str, quota: VolumeQuota) -> Result<VolumeRecord, VolumeError> {
        check_quota(&quota)?;
        let _naming = self.naming()?;
        let mut record = self.find(owner, which)?;
        record.quota = quota;
        let path = self.path.join(record.id.as_str());
        let (new, written) = (path.join(record::NEW_RECORD), path.join(record::RECORD));
        // What somebody left who was killed.
        let _removed = fs::remove_file(&new);
        record.write(&new).tried("writing", &new)?;
        fs::rename(&new, &written).tried("naming", &written)?;
        sync(&path)?;
        Ok(record)
    }

    /// Takes a volume away unless it is in use. What was taken is to be removed.
    ///
    /// # Errors
    /// `Missing`, `InUse`; when it cannot be moved.
    pub fn take(&self, owner: Option<&str>, which: &str) -> Result<RemovedVolume, VolumeError> {
        let _naming = self.naming()?;
        let record = self.find(owner, which)?;
        let path = self.path.join(record.id.as_str());
        let opened = open(&path)?.ok_or_else(|| VolumeError::Missing {
            which: which.to_owned(),
        })?;
        if !lock_alone(&opened).tried("locking", &path)? {
            return Err(VolumeError::InUse {
                name: record.name.to_string(),
                sandboxes: Vec::new(),
            });
        }
        let gone = self.path.join(format!("{OLD}{}", record.id));
        fs::rename(&path, &gone).tried("moving", &path)?;
        sync(&self.path)?;
        Ok(RemovedVolume {
            path: gone,
            _lock: opened,
        })
    }

    /// What makers and removers left that died, to be removed.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn abandoned(&self) -> Result<Vec<RemovedVolume>, VolumeError> {
        // So that none is between having its directory and its lock.
        let _naming = self.naming()?;
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.path).tried("listing", &self.path)?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if !name.starts_with(NEW) && !name.starts_with(OLD) {
                continue;
            }
            let path = entry.path();
            if let Some(opened) = open(&path)?
                && lock_alone(&opened).tried("locking", &path)?
                && is_at(&opened, &path).tried("examining", &path)?
            {
                found.push(RemovedVolume { path, _lock: opened });
            }
        }
        Ok(found)
    }

    /// Removes files that writers of the host left that died, from volumes that nobody has.
    ///
    /// # Errors
    /// If the directory cannot be read, or something not be removed.
    pub fn clear_incoming(&self) -> Result<(), VolumeError> {
        let entries = fs::read_dir(&self.path).tried("listing", &self.path)?.flatten();
        for entry in entries.filter(|entry| is_id(&entry.file_name())) {
            let path = entry.path();
            let incoming = path.join(INCOMING);
            let left = fs::read_dir(&incoming).is_ok_and(|mut left| left.next().is_some());
            if left
                && let Some(opened) = open(&path)?
                && try_alone(&opened).tried("locking", &path)?
            {
                for file in fs::read_dir(&incoming).tried("listing", &incoming)?.flatten() {
                    fs::remove_file(file.path()).tried("removing", file.path())?;
                }
            }
        }
        Ok(())
    }

    /// Whether somebody has the volume.
    fn is_used(&self, id: &VolumeId) -> Result<bool, VolumeError> {
        let path = self.path.join(id.as_str());
        match open(&path)? {
            Some(opened) => Ok(!try_alone(&opened).tried("locking", &path)?),
            None => Ok(false),
        }
    }

    fn record(&self, id: &VolumeId) -> Result<Option<VolumeRecord>, VolumeError> {
        let path = self.path.join(id.as_str());
        let Some(opened) = open(&path)? else { return Ok(None) };
        Ok(Some(VolumeRecord::read(&opened).tried("reading the record of", &path)?))
    }

    fn records(&self) -> Result<Vec<VolumeRecord>, VolumeError> {
        let entries = fs::read_dir(&self.path).tried("listing", &self.path)?.flatten();
        let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<VolumeId>().ok());
        let mut records: Vec<VolumeRecord> = ids.filter_map(|id| self.record(&id).ok().flatten()).collect();
        records.sort_by(|one, other| (&one.owner, &one.name).cmp(&(&other.owner, &other.name)));
        Ok(records)
    }

    /// Nobody else gives or takes a name as long as this is held.
    fn naming(&self) -> Result<OwnedFd, VolumeError> {
        let path = self.path.join(LOCK);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let lock = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR).tried("opening", &path)?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive).tried("locking", &path)?;
        Ok(lock)
    }
}

impl HeldVolume {
    /// What it is.
    pub fn record(&self) -> &VolumeRecord {
        &self.record
    }

    /// The directory that sandboxes see.
    pub fn data(&self) -> PathBuf {
        self.path.join(DATA)
    }

    /// Keeps others from synchronising it as long as what is answered lives; who does is waited for so long.
    ///
    /// # Errors
    /// `Synchronising` when somebody still does.
    pub fn lock_sync(&self, wait: Duration) -> Result<OwnedFd, VolumeError> {
        let path = self.path.join(SYNC);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let lock = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR).tried("opening", &path)?;
        let until = Instant::now() + wait;
        while !try_alone(&lock).tried("locking", &path)? {
            if Instant::now() >= until {
                return Err(VolumeError::Synchronising {
                    name: self.record.name.to_string(),
                });
            }
            std::thread::sleep(BETWEEN_TRIES);
        }
        Ok(lock)
    }

    /// Notes that somebody may write what is not in the bucket, or that all of it is there.
    ///
    /// # Errors
    /// When it cannot be noted.
    pub fn note_unsent(&self, is_unsent: bool) -> Result<(), VolumeError> {
        let path = self.path.join(UNSENT);
        let noted = match is_unsent {
            true => fs::File::create(&path).map(drop),
            false => fs::remove_file(&path),
        };
        match noted {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            noted => Ok(noted.tried("noting what is to be sent in", &path)?),
        }
    }

    /// Whether that was noted, and nobody has sent it since.
    pub fn is_unsent(&self) -> bool {
        self.path.join(UNSENT).exists()
    }

    /// Where is written what it and its bucket have in common.
    pub fn objects_file(&self) -> PathBuf {
        self.path.join(OBJECTS)
    }

    /// What is in it, as the host reads and writes it.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn content(&self) -> Result<VolumeContent, VolumeError> {
        VolumeContent::open(&self.data(), &self.path.join(INCOMING), self.record.owners)
    }
}

impl RemovedVolume {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// A volume that is being made; dropped before it has its name, it is removed again.
struct UnfinishedVolume {
    path: PathBuf,
    is_finished: std::cell::Cell<bool>,
    _lock: OwnedFd,
}

impl UnfinishedVolume {
    fn new(path: PathBuf) -> Result<Self, VolumeError> {
        private(&path).tried("making", &path)?;
        let lock = open(&path)?.ok_or_else(|| FileError::new("opening", &path, Errno::NOENT))?;
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).tried("locking", &path)?;
        Ok(Self {
            path,
            is_finished: false.into(),
            _lock: lock,
        })
    }

    fn fill(&self, new: NewVolume, id: VolumeId) -> Result<VolumeRecord, VolumeError> {
        let (data, incoming) = (self.path.join(DATA), self.path.join(INCOMING));
        for directory in [&data, &incoming] {
            private(directory).tried("making", directory)?;
        }
        let owners = give_away(&data).tried("giving away", &data)?;
        // Every user of a sandbox may make something in it; what is above it is closed to everybody.
        let mode = fs::Permissions::from_mode(0o777);
        fs::set_permissions(&data, mode).tried("opening up", &data)?;
        let record = VolumeRecord::new(new, id, owners).tried("drawing a token for", &self.path)?;
        let written = self.path.join(record::RECORD);
        record.write(&written).tried("writing", &written)?;
        sync(&self.path)?;
        Ok(record)
    }

    fn finish(self) {
        self.is_finished.set(true);
    }
}

impl Drop for UnfinishedVolume {
    fn drop(&mut self) {
        if !self.is_finished.get() {
            // Whoever looks next removes what is left.
            let _removed = remove_directory(&self.path);
        }
    }
}

/// Gives a new directory to whoever works in sandboxes, where we may.
fn give_away(data: &Path) -> io::Result<VolumeOwners> {
    let euid = rustix::process::geteuid();
    let range = VolumeOwners::Range {
        first: VolumeOwners::FIRST,
    };
    let worker = range.outside((VolumeOwners::WORKER, VolumeOwners::WORKER));
    if let (true, Some((uid, gid))) = (euid.is_root(), worker) {
        match std::os::unix::fs::chown(data, Some(uid), Some(gid)) {
            Ok(()) => return Ok(range),
            // Few ids are mapped where we are: then one has to do, as in mounts.
            Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::INVAL | Errno::PERM)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(VolumeOwners::Single {
        uid: euid.as_raw(),
        gid: rustix::process::getegid().as_raw(),
    })
}

/// That there may be one more, of this owner.
fn check_count(records: &[VolumeRecord], owner: &str) -> Result<(), VolumeError> {
    if records.len() >= MAX_VOLUMES {
        return Err(VolumeError::TooMany { most: MAX_VOLUMES });
    }
    let of_owner = records.iter().filter(|record| record.owner == owner).count();
    match owner != LOCAL_OWNER && of_owner >= MAX_VOLUMES_OF_KEY {
        true => Err(VolumeError::TooManyOfKey {
            most: MAX_VOLUMES_OF_KEY,
        }),
        false => Ok(()),
    }
}

fn check_quota(quota: &VolumeQuota) -> Result<(), VolumeError> {
    let wrong = |what, why| Err(VolumeError::Quota { what, why });
    let least = VolumeQuota::LEAST;
    if quota.bytes < least.bytes {
        return wrong("the size", format!("{} is less than {}", quota.bytes, least.bytes));
    }
    if quota.bytes.0 > i64::MAX.unsigned_abs() {
        return wrong("the size", format!("{} is more than any disk has", quota.bytes));
    }
    if !(least.inodes..=VolumeQuota::MAX_INODES).contains(&quota.inodes) {
        let why = format!(
            "{} is not between {} and {}",
            quota.inodes,
            least.inodes,
            VolumeQuota::MAX_INODES
        );
        return wrong("the number of inodes", why);
    }
    Ok(())
}

fn is_id(name: &std::ffi::OsStr) -> bool {
    name.to_str().is_some_and(|name| name.parse::<VolumeId>().is_ok())
}

fn take_writer(directory: &OwnedFd, record: &VolumeRecord) -> Result<OwnedFd, VolumeError> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let writer = rustix::fs::openat(directory, WRITER, flags, Mode::RUSR | Mode::WUSR).tried("opening", WRITER)?;
    match rustix::fs::flock(&writer, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(writer),
        Err(Errno::WOULDBLOCK) => Err(VolumeError::HasWriter {
            name: record.name.to_string(),
            sandboxes: Vec::new(),
        }),
        Err(error) => Err(FileError::new("locking", WRITER, error).into()),
    }
}

fn private(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)
}

fn rename_new(from: &Path, to: &Path) -> Result<(), Errno> {
    rustix::fs::renameat_with(rustix::fs::CWD, from, rustix::fs::CWD, to, RenameFlags::NOREPLACE)
}

/// Has a directory's names written to the disk.
fn sync(path: &Path) -> Result<(), FileError> {
    fs::File::open(path)
        .and_then(|directory| directory.sync_all())
        .tried("writing", path)
}

fn random() -> Result<u128, Errno> {
    let mut bytes = [0; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(u128::from_le_bytes(bytes))
}

fn open(path: &Path) -> Result<Option<OwnedFd>, FileError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(opened) => Ok(Some(opened)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(FileError::new("opening", path, error)),
    }
}

/// Whether nobody else has a lock. Who only looks has one for a moment, so it is tried again.
fn lock_alone(opened: &OwnedFd) -> Result<bool, Errno> {
    for _ in 1..TRIES {
        if try_alone(opened)? {
            return Ok(true);
        }
        std::thread::sleep(BETWEEN_TRIES);
    }
    try_alone(opened)
}

fn try_alone(opened: &OwnedFd) -> Result<bool, Errno> {
    match rustix::fs::flock(opened, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error),
    }
}

fn is_at(opened: &OwnedFd, path: &Path) -> Result<bool, Errno> {
    let held = rustix::fs::fstat(opened)?;
    match rustix::fs::lstat(path) {
        Ok(there) => Ok((there.st_dev, there.st_ino) == (held.st_dev, held.st_ino)),
        Err(Errno::NOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod transfer_tests;
