//! Templates on disk: `templates` in the state directory, which may be a link to where there is more room.
//!
//! ```text
//! templates/NAME/template.json      what it is; without it nothing is a template
//! templates/NAME/layer/PART/upper   what was written while it was built
//! templates/.building-NAME          the lock of who builds it
//! templates/.new-ID                 one that is being built, locked by its builder
//! templates/.old-ID                 one that was removed or replaced, as long as sandboxes use it
//! ```
//!
//! Whoever uses a template holds a shared lock on its directory. Deliberately not here: what is in a layer (`supervisor`
//! builds it, and removes it, since files of subordinate ids take their superuser).

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use offleash_core::spec::IdChoice;
use offleash_core::template::{Recipe, StartCommand, TemplateLimits, TemplateName};
use rustix::fs::{FlockOperation, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::failure::{FailedCall, FileError};
use crate::{HostIdentity, StateDirectory, StateError};

const TEMPLATES: &str = "templates";
const RECORD: &str = "template.json";
const LAYER: &str = "layer";
/// The form of [`TemplateRecord`]; another one is not understood.
const VERSION: u32 = 1;
/// Longest record, bytes: a recipe that is longer is none of a person's.
const MAX_RECORD: u64 = 1 << 20;

/// What is known of a template.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplateRecord {
    version: u32,
    /// Its name.
    pub name: TemplateName,
    /// Which build of it, another one each time.
    pub build: String,
    /// When it was built, RFC 3339.
    pub built_at: String,
    /// From what.
    pub recipe: Recipe,
    /// The state of the host's system that it was built on, as the supervisor writes it.
    pub base: String,
    /// How many ids the sandbox had that it was built in.
    pub ids: IdChoice,
    /// Bytes on disk.
    pub bytes: u64,
    /// Files, directories and links.
    pub files: u64,
    /// The image that it is, if it does not lie over the host's system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<TemplateImage>,
    /// What a server starts in its sandboxes.
    #[serde(default, skip_serializing_if = "StartCommand::is_empty")]
    pub start: StartCommand,
    /// What its sandboxes may use on a server.
    #[serde(default)]
    pub limits: TemplateLimits,
}

/// A template that is an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplateImage {
    /// The digest of its manifest.
    pub digest: String,
    /// What it was built from.
    pub from: String,
    /// The steps of its last stage, a line each.
    pub steps: Vec<String>,
}

impl TemplateRecord {
    /// The record of a template that was built now.
    pub fn new(name: TemplateName, recipe: Recipe, base: String, ids: IdChoice) -> Self {
        Self {
            version: VERSION,
            name,
            build: String::new(),
            built_at: crate::rfc3339_now(),
            recipe,
            base,
            ids,
            bytes: 0,
            files: 0,
            image: None,
            start: StartCommand::default(),
            limits: TemplateLimits::default(),
        }
    }
}

/// The templates of a state directory.
#[derive(Debug, Clone)]
pub struct TemplateStore {
    path: PathBuf,
}

/// A template that is not removed as long as this lives.
#[derive(Debug)]
pub struct HeldTemplate {
    record: TemplateRecord,
    path: PathBuf,
    _lock: OwnedFd,
}

/// A template that is being built; one that is dropped is left for [`TemplateStore::abandoned`].
#[derive(Debug)]
pub struct NewTemplate {
    templates: PathBuf,
    path: PathBuf,
    name: TemplateName,
    id: String,
    lock: OwnedFd,
    /// Held so that nobody else builds it meanwhile.
    _building: OwnedFd,
}

/// Something that nobody uses any more, to be removed with all that is in it.
#[derive(Debug)]
pub struct AbandonedLayer {
    path: PathBuf,
    /// Nobody can begin to use it.
    _lock: OwnedFd,
}

/// What came of an attempt to take a template away.
#[derive(Debug)]
pub enum TakeOutcome {
    /// It is no template any more.
    Taken(AbandonedLayer),
    /// Sandboxes use it.
    InUse,
    /// There is none.
    Missing,
}

impl StateDirectory {
    /// Whether the state directory that [`Self::open`] would open has a template; nothing is made, opened or locked.
    ///
    /// # Errors
    /// If it cannot be looked at.
    pub fn has_template(explicit: Option<&Path>, host: &HostIdentity, name: &TemplateName) -> Result<bool, FileError> {
        let state = explicit.map_or_else(|| host.default_state(), Path::to_owned);
        let path = state.join(TEMPLATES).join(name.as_str());
        match fs::symlink_metadata(&path) {
            Ok(found) => Ok(found.is_dir()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(FileError::new("looking for", &path, error)),
        }
    }

    /// The templates; the directory is made if it is not there.
    ///
    /// # Errors
    /// If there is no place for them and none can be made.
    pub fn templates(&self) -> Result<TemplateStore, StateError> {
        let path = self.path().join(TEMPLATES);
        let made = match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => fs::canonicalize(&path),
        };
        let path = made.tried("making", TEMPLATES).map_err(|source| StateError::Unusable {
            path: self.path().to_owned(),
            source,
        })?;
        Ok(TemplateStore { path })
    }
}

impl TemplateStore {
    /// The names of all that there are, sorted.
    ///
    /// # Errors
    /// If the list cannot be read.
    pub fn names(&self) -> Result<Vec<TemplateName>, FileError> {
        let found = fs::read_dir(&self.path).tried("listing", &self.path)?.flatten();
        let mut names: Vec<TemplateName> = found
            .filter_map(|found| found.file_name().to_str()?.parse().ok())
            .collect();
        names.sort();
        Ok(names)
    }

    /// The ids of all builds of which something is here, those under way and those that are replaced included.
    ///
    /// # Errors
    /// If the list cannot be read.
    pub fn builds(&self) -> Result<BTreeSet<String>, FileError> {
        let found = fs::read_dir(&self.path).tried("listing", &self.path)?.flatten();
        let builds = found.filter_map(|found| {
            let name = found.file_name();
            match name.to_str()?.strip_prefix(".new-") {
                Some(id) => Some(id.to_owned()),
                None => Some(read_record(&open(&found.path()).ok()??).ok()?.build),
            }
        });
        Ok(builds.collect())
    }

    /// Keeps the template in place and says what it is; `None` if there is none of this name.
    ///
    /// # Errors
    /// If it cannot be opened, or its record is none.
    pub fn hold(&self, name: &TemplateName) -> Result<Option<HeldTemplate>, FileError> {
        let path = self.path.join(name.as_str());
        // Again if it was replaced between the two.
        while let Some(opened) = open(&path)? {
            rustix::fs::flock(&opened, FlockOperation::LockShared).tried("locking", &path)?;
            if is_at(&opened, &path).tried("examining", &path)? {
                let record = read_record(&opened).tried("reading the record of", &path)?;
                return Ok(Some(HeldTemplate {
                    record,
                    path,
                    _lock: opened,
                }));
            }
        }
        Ok(None)
    }

    /// As [`Self::hold`], for one build of it, also if that was replaced and is still here, since somebody holds it.
    ///
    /// # Errors
    /// As [`Self::hold`].
    pub fn hold_build(&self, name: &TemplateName, build: &str) -> Result<Option<HeldTemplate>, FileError> {
        let is_it = |record: &TemplateRecord| record.name == *name && record.build == build;
        if let Some(held) = self.hold(name)?.filter(|held| is_it(&held.record)) {
            return Ok(Some(held));
        }
        let found = fs::read_dir(&self.path).tried("listing", &self.path)?.flatten();
        for found in found.filter(|found| found.file_name().to_string_lossy().starts_with(".old-")) {
            let path = found.path();
            let Some(opened) = open(&path)? else { continue };
            let lock = rustix::fs::flock(&opened, FlockOperation::NonBlockingLockShared);
            // Whoever has it alone removes it.
            if lock.is_err() || !is_at(&opened, &path).tried("examining", &path)? {
                continue;
            }
            if let Some(record) = read_record(&opened).ok().filter(|record| is_it(record)) {
                return Ok(Some(HeldTemplate {
                    record,
                    path,
                    _lock: opened,
                }));
            }
        }
        Ok(None)
    }

    /// Whether somebody holds the template.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn is_used(&self, name: &TemplateName) -> Result<bool, FileError> {
        let path = self.path.join(name.as_str());
        match open(&path)? {
            Some(opened) => Ok(!lock_alone(&opened).tried("locking", &path)?),
            None => Ok(false),
        }
    }

    /// Begins to build a template; `None` if somebody else builds one of this name.
    ///
    /// # Errors
    /// If its directory cannot be made.
    pub fn begin(&self, name: &TemplateName) -> Result<Option<NewTemplate>, FileError> {
        let mark = self.path.join(format!(".building-{name}"));
        let options = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let building = rustix::fs::open(&mark, options, Mode::RUSR | Mode::WUSR).tried("making", &mark)?;
        if !lock_alone(&building).tried("locking", &mark)? {
            return Ok(None);
        }
        let id = random_name().tried("drawing a name in", &self.path)?;
        let path = self.path.join(format!(".new-{id}"));
        private(&path).tried("making", &path)?;
        let lock = open(&path)?.ok_or_else(|| FileError::new("opening", &path, Errno::NOENT))?;
        lock_alone(&lock).tried("locking", &path)?;
        let layer = path.join(LAYER);
        private(&layer).tried("making", &layer)?;
        Ok(Some(NewTemplate {
            templates: self.path.clone(),
            path,
            name: name.clone(),
            id,
            lock,
            _building: building,
        }))
    }

    /// Takes a template away unless it is in use. What was taken is to be removed.
    ///
    /// # Errors
    /// If it cannot be moved.
    pub fn take(&self, name: &TemplateName) -> Result<TakeOutcome, FileError> {
        let path = self.path.join(name.as_str());
        let Some(opened) = open(&path)? else {
            return Ok(TakeOutcome::Missing);
        };
        if !lock_alone(&opened).tried("locking", &path)? {
            return Ok(TakeOutcome::InUse);
        }
        let gone = old_name(&self.path)?;
        fs::rename(&path, &gone).tried("moving", &path)?;
        Ok(TakeOutcome::Taken(AbandonedLayer {
            path: gone,
            _lock: opened,
        }))
    }

    /// What builders that died left, and what was replaced and is not used any more.
    ///
    /// # Errors
    /// If the list cannot be read.
    pub fn abandoned(&self) -> Result<Vec<AbandonedLayer>, FileError> {
        let found = fs::read_dir(&self.path).tried("listing", &self.path)?.flatten();
        let hidden = found.filter(|found| {
            let name = found.file_name();
            let name = name.to_string_lossy();
            name.starts_with(".new-") || name.starts_with(".old-")
        });
        let unused = hidden.filter_map(|found| {
            let path = found.path();
            let lock = open(&path).ok()??;
            // One that was made a moment ago may not be locked yet.
            let is_young = fs::symlink_metadata(&path)
                .and_then(|found| found.modified())
                .is_ok_and(|made| made.elapsed().is_ok_and(|age| age.as_secs() < 5));
            let is_new = found.file_name().to_string_lossy().starts_with(".new-");
            let is_free = !(is_new && is_young) && lock_alone(&lock).is_ok_and(|locked| locked);
            is_free.then_some(AbandonedLayer { path, _lock: lock })
        });
        Ok(unused.collect())
    }
}

impl HeldTemplate {
    /// What it is.
    pub fn record(&self) -> &TemplateRecord {
        &self.record
    }

    /// The directory of the layer that it was built in.
    pub fn layer(&self) -> PathBuf {
        self.path.join(LAYER)
    }
}

impl NewTemplate {
    /// The id of the build, which its record will have.
    pub fn build(&self) -> &str {
        &self.id
    }

    /// The directory of the layer that it is built in, which exists and is empty at first.
    pub fn layer(&self) -> PathBuf {
        self.path.join(LAYER)
    }

    /// Makes it the template of its name, in the place of one that there was; sandboxes that use that one go on to.
    ///
    /// # Errors
    /// If it cannot be written or moved; there is no new template then.
    pub fn commit(self, mut record: TemplateRecord) -> Result<TemplateRecord, FileError> {
        record.build.clone_from(&self.id);
        let written = self.path.join(RECORD);
        write_record(&written, &record).tried("writing", &written)?;
        let place = self.templates.join(self.name.as_str());
        let replaced = loop {
            match rename(&self.path, &place, RenameFlags::NOREPLACE) {
                Ok(()) => break false,
                Err(Errno::EXIST) => {}
                Err(error) => return Err(FileError::new("naming", &place, error)),
            }
            match rename(&self.path, &place, RenameFlags::EXCHANGE) {
                Ok(()) => break true,
                // It was removed meanwhile.
                Err(Errno::NOENT) => {}
                Err(error) => return Err(FileError::new("naming", &place, error)),
            }
        };
        if replaced {
            let old = old_name(&self.templates)?;
            fs::rename(&self.path, &old).tried("moving", &self.path)?;
        }
        // Whoever waits for it may have it from here on.
        drop(self.lock);
        Ok(record)
    }
}

impl AbandonedLayer {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory of its layer, which may not be there.
    pub fn layer(&self) -> PathBuf {
        self.path.join(LAYER)
    }
}

fn private(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)
}

fn rename(from: &Path, to: &Path, flags: RenameFlags) -> Result<(), Errno> {
    let here = rustix::fs::CWD;
    rustix::fs::renameat_with(here, from, here, to, flags)
}

fn old_name(templates: &Path) -> Result<PathBuf, FileError> {
    let id = random_name().tried("drawing a name in", templates)?;
    Ok(templates.join(format!(".old-{id}")))
}

fn random_name() -> Result<String, Errno> {
    let mut bytes = [0; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(format!("{:032x}", u128::from_le_bytes(bytes)))
}

fn open(path: &Path) -> Result<Option<OwnedFd>, FileError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(opened) => Ok(Some(opened)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(FileError::new("opening", path, error)),
    }
}

/// Whether nobody else has a lock.
fn lock_alone(opened: &OwnedFd) -> Result<bool, Errno> {
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

fn read_record(directory: &OwnedFd) -> io::Result<TemplateRecord> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::openat(directory, RECORD, flags, Mode::empty())?;
    let mut text = Vec::new();
    File::from(file).take(MAX_RECORD).read_to_end(&mut text)?;
    let record: TemplateRecord = serde_json::from_slice(&text)?;
    if record.version == VERSION {
        Ok(record)
    } else {
        Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "another version of offleash has built it",
        ))
    }
}

fn write_record(path: &Path, record: &TemplateRecord) -> io::Result<()> {
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(&serde_json::to_vec(record)?)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HostIdentity;

    fn templates(directory: &Path) -> TemplateStore {
        let state = StateDirectory::open(Some(&directory.join("state")), &HostIdentity::of_this_process()).unwrap();
        state.templates().unwrap()
    }

    fn name() -> TemplateName {
        "tiny".parse().unwrap()
    }

    fn record() -> TemplateRecord {
        TemplateRecord::new(name(), Recipe::default(), "stamp".to_owned(), IdChoice::Range)
    }

    fn hidden(templates: &TemplateStore) -> Vec<String> {
        let names = fs::read_dir(&templates.path).unwrap();
        let names = names.map(|found| found.unwrap().file_name().into_string().unwrap());
        names
            .filter(|name| name.starts_with(".new-") || name.starts_with(".old-"))
            .collect()
    }

    #[test]
    fn one_is_built_held_replaced_and_taken_away() {
        let directory = tempfile::tempdir().unwrap();
        let templates = templates(directory.path());
        assert!(templates.hold(&name()).unwrap().is_none());
        let new = templates.begin(&name()).unwrap().unwrap();
        assert!(templates.begin(&name()).unwrap().is_none(), "one builder at a time");
        assert!(templates.begin(&"other".parse().unwrap()).unwrap().is_some());
        fs::write(new.layer().join("file"), "first").unwrap();
        assert_eq!(templates.names().unwrap(), []);
        let first = new.commit(record()).unwrap();
        assert_eq!(templates.names().unwrap(), [name()]);
        let held = templates.hold(&name()).unwrap().unwrap();
        assert_eq!(held.record(), &first);
        assert!(matches!(templates.take(&name()).unwrap(), TakeOutcome::InUse));

        let new = templates.begin(&name()).unwrap().unwrap();
        fs::write(new.layer().join("file"), "second").unwrap();
        let second = new.commit(record()).unwrap();
        assert_ne!(first.build, second.build);
        let again = templates.hold(&name()).unwrap().unwrap();
        assert_eq!(fs::read_to_string(again.layer().join("file")).unwrap(), "second");
        assert_eq!(hidden(&templates).len(), 1 + 1, "the replaced one, and `other`");
        assert_eq!(templates.abandoned().unwrap().len(), 0, "used, and young");
        drop((held, again));
        assert_eq!(templates.abandoned().unwrap().len(), 1);
        let TakeOutcome::Taken(taken) = templates.take(&name()).unwrap() else {
            panic!("nobody uses it")
        };
        assert_eq!(fs::read_to_string(taken.layer().join("file")).unwrap(), "second");
        assert!(matches!(templates.take(&name()).unwrap(), TakeOutcome::Missing));
        assert_eq!(templates.names().unwrap(), []);
    }

    #[test]
    fn what_a_dead_builder_left_is_found_and_is_no_template() {
        let directory = tempfile::tempdir().unwrap();
        let templates = templates(directory.path());
        let new = templates.begin(&name()).unwrap().unwrap();
        let path = new.path.clone();
        let an_hour_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
        File::open(&path).unwrap().set_modified(an_hour_ago).unwrap();
        assert_eq!(templates.abandoned().unwrap().len(), 0, "its builder lives");
        drop(new);
        let found = templates.abandoned().unwrap();
        assert_eq!(found.iter().map(AbandonedLayer::path).collect::<Vec<_>>(), [path]);
        assert!(templates.names().unwrap().is_empty());
    }

    #[test]
    fn a_record_that_is_none_is_an_error_and_not_a_template() {
        let directory = tempfile::tempdir().unwrap();
        let templates = templates(directory.path());
        let path = templates.path.join("tiny");
        private(&path).unwrap();
        assert!(templates.hold(&name()).is_err());
        for text in ["", "{}", "{\"version\":2}"] {
            fs::write(path.join(RECORD), text).unwrap();
            assert!(templates.hold(&name()).is_err(), "{text}");
        }
        let newer = TemplateRecord {
            version: VERSION + 1,
            ..record()
        };
        fs::write(path.join(RECORD), serde_json::to_vec(&newer).unwrap()).unwrap();
        let said = templates.hold(&name()).unwrap_err().source.to_string();
        assert!(said.contains("another version"), "{said}");
    }
}
