//! Contexts: profiles of browsers that outlive their sessions, each a record and an encrypted archive.
//!
//! Deliberately not here: which session writes to one, and what is in a profile.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::archive::ArchiveKey;
use crate::bounds::{MAX_CONTEXTS, MAX_PROFILE};
use crate::files::read;

const KEY: &str = "key";
const RECORD_END: &str = ".json";
const ARCHIVE_END: &str = ".profile";
/// The longest record, bytes; the longest name and id, characters.
const MAX_RECORD: u64 = 4096;
const MAX_NAME: usize = 64;
const MAX_ID: usize = 64;
/// What an archive has besides.
const MAX_ARCHIVE: u64 = MAX_PROFILE as u64 + 4096;

/// What is known of a context.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextRecord {
    /// Its id.
    pub id: String,
    /// What its owner calls it.
    pub name: Option<String>,
    /// Whose it is, by the id of the key.
    pub owner: String,
    /// When it was made, milliseconds since 1970.
    pub created_ms: i64,
    /// When it was saved, or made.
    pub updated_ms: i64,
    /// Bytes of what was saved; none if nothing was.
    pub bytes: u64,
}

/// What is saved of a browser.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SavedProfile {
    /// Cookies that end with the browser, which keeps them in no file: JSON, as the browser said it.
    pub cookies: Vec<u8>,
    /// The files, as an archive that is unpacked in sandboxes alone.
    pub files: Vec<u8>,
}

/// Why a context cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum ContextError {
    /// It is no name.
    #[error("`{}` is no name: expected 1 to {MAX_NAME} letters, digits, `-`, `_` and `.`", .0.escape_debug())]
    Name(String),
    /// Another one has the name.
    #[error("there is a browser context `{}` already", .0.escape_debug())]
    Exists(String),
    /// There are as many as there may be.
    #[error("a key has {MAX_CONTEXTS} browser contexts at most")]
    TooMany,
    /// What was saved was changed, or the key was.
    #[error("what was saved of browser context `{0}` is damaged")]
    Damaged(String),
    /// It is larger than what is kept.
    #[error("the profile has more than {} MiB", MAX_PROFILE >> 20)]
    TooLarge,
    /// The kernel refused something.
    #[error("the browser contexts cannot be used")]
    File(#[from] io::Error),
}

/// The contexts of a state directory.
#[derive(Debug, Clone)]
pub struct ContextStore {
    directory: PathBuf,
}

impl SavedProfile {
    /// In one piece: the length of the cookies, these, and the files.
    fn joined(self) -> Result<Vec<u8>, ContextError> {
        let length = u32::try_from(self.cookies.len()).map_err(|_| ContextError::TooLarge)?;
        if self.cookies.len() + self.files.len() > MAX_PROFILE {
            return Err(ContextError::TooLarge);
        }
        let mut joined = length.to_le_bytes().to_vec();
        joined.extend(self.cookies);
        joined.extend(self.files);
        Ok(joined)
    }

    fn parted(joined: &[u8]) -> Option<Self> {
        let (length, rest) = joined.split_first_chunk()?;
        let (cookies, files) = rest.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)?;
        Some(Self {
            cookies: cookies.to_vec(),
            files: files.to_vec(),
        })
    }
}

impl ContextStore {
    /// Those in `directory`, which need not be there.
    pub fn in_directory(directory: PathBuf) -> Self {
        Self { directory }
    }

    fn path(&self, id: &str, end: &str) -> PathBuf {
        self.directory.join(format!("{id}{end}"))
    }

    /// All contexts of `owner`, by their ids.
    ///
    /// # Errors
    /// `File`.
    pub fn all_of(&self, owner: &str) -> Result<Vec<ContextRecord>, ContextError> {
        let mut all = self.all()?;
        all.retain(|record| record.owner == owner);
        Ok(all)
    }

    /// Those of every owner, by their ids.
    ///
    /// # Errors
    /// `File`.
    pub fn all(&self) -> Result<Vec<ContextRecord>, ContextError> {
        let entries = match fs::read_dir(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut all = Vec::new();
        for entry in entries {
            let name = entry?.file_name();
            let id = name.to_str().and_then(|name| name.strip_suffix(RECORD_END));
            let record = id.map(|id| self.get(id)).transpose()?.flatten();
            all.extend(record);
        }
        all.sort_by(|one, other| one.id.cmp(&other.id));
        Ok(all)
    }

    /// The context of that id; `None` if there is none.
    ///
    /// # Errors
    /// `File`.
    pub fn get(&self, id: &str) -> Result<Option<ContextRecord>, ContextError> {
        if !is_id(id) {
            return Ok(None);
        }
        let text = match read(&self.path(id, RECORD_END), MAX_RECORD)? {
            None => return Ok(None),
            Some(text) => text,
        };
        let record: Option<ContextRecord> = serde_json::from_slice(&text).ok();
        Ok(record.filter(|record| record.id == id))
    }

    /// Keeps a new one. Whoever calls it holds off others that do.
    ///
    /// # Errors
    /// `Name`, `Exists`, `TooMany`, `File`.
    pub fn add(&self, record: &ContextRecord) -> Result<(), ContextError> {
        let of_owner = self.all_of(&record.owner)?;
        if of_owner.len() >= MAX_CONTEXTS {
            return Err(ContextError::TooMany);
        }
        if let Some(name) = &record.name {
            if !is_name(name) {
                return Err(ContextError::Name(name.clone()));
            }
            if of_owner.iter().any(|other| other.name.as_ref() == Some(name)) {
                return Err(ContextError::Exists(name.clone()));
            }
        }
        DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)?;
        self.write_record(record)
    }

    fn write_record(&self, record: &ContextRecord) -> Result<(), ContextError> {
        let text = serde_json::to_vec(record).map_err(io::Error::other)?;
        Ok(replace(&self.path(&record.id, RECORD_END), &text)?)
    }

    /// Keeps `profile` in the place of what was saved.
    ///
    /// # Errors
    /// `TooLarge`, `File`; what was saved before stays.
    pub fn save(&self, record: &ContextRecord, profile: SavedProfile, now_ms: i64) -> Result<(), ContextError> {
        let joined = profile.joined()?;
        let bytes = joined.len() as u64;
        let sealed = self.key()?.seal(&bound_to(record), joined)?;
        replace(&self.path(&record.id, ARCHIVE_END), &sealed)?;
        self.write_record(&ContextRecord {
            updated_ms: now_ms,
            bytes,
            ..record.clone()
        })
    }

    /// What was saved; `None` if nothing was.
    ///
    /// # Errors
    /// `Damaged`, `File`.
    pub fn load(&self, record: &ContextRecord) -> Result<Option<SavedProfile>, ContextError> {
        let Some(sealed) = read(&self.path(&record.id, ARCHIVE_END), MAX_ARCHIVE)? else {
            return Ok(None);
        };
        let opened = self.key()?.open(&bound_to(record), &sealed);
        let profile = opened.and_then(|joined| SavedProfile::parted(&joined));
        profile
            .map(Some)
            .ok_or_else(|| ContextError::Damaged(record.id.clone()))
    }

    /// Removes a context with all that was saved.
    ///
    /// # Errors
    /// `File`.
    pub fn remove(&self, record: &ContextRecord) -> Result<(), ContextError> {
        for end in [ARCHIVE_END, RECORD_END] {
            match fs::remove_file(self.path(&record.id, end)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                removed => removed?,
            }
        }
        Ok(())
    }

    fn key(&self) -> io::Result<ArchiveKey> {
        ArchiveKey::load_or_make(&self.directory.join(KEY))
    }
}

/// What an archive is of: another context's, or another owner's, is none of it.
fn bound_to(record: &ContextRecord) -> String {
    format!("{}\n{}", record.owner, record.id)
}

fn is_id(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    (1..=MAX_ID).contains(&text.len()) && text.bytes().all(is_plain)
}

fn is_name(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=MAX_NAME).contains(&text.len()) && text.bytes().all(is_plain)
}

/// Puts `bytes` in the place of a file, as a whole and on the disk.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(new, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store() -> (tempfile::TempDir, ContextStore) {
        let place = tempfile::tempdir().unwrap();
        let store = ContextStore::in_directory(place.path().join("a/contexts"));
        (place, store)
    }

    fn record(id: &str, owner: &str, name: Option<&str>) -> ContextRecord {
        ContextRecord {
            id: id.to_owned(),
            name: name.map(str::to_owned),
            owner: owner.to_owned(),
            created_ms: 1,
            updated_ms: 1,
            bytes: 0,
        }
    }

    fn profile(text: &str) -> SavedProfile {
        SavedProfile {
            cookies: b"[]".to_vec(),
            files: text.as_bytes().to_vec(),
        }
    }

    #[test]
    fn a_profile_is_read_as_it_was_saved_and_by_nobody_else() {
        let (_place, store) = store();
        let (one, other) = (record("c1", "k1", Some("shop")), record("c2", "k1", None));
        store.add(&one).unwrap();
        store.add(&other).unwrap();
        assert_eq!(store.load(&one).unwrap(), None);
        store.save(&one, profile("files of one"), 7).unwrap();
        assert_eq!(store.load(&one).unwrap().unwrap(), profile("files of one"));
        let known = store.get("c1").unwrap().unwrap();
        assert_eq!((known.updated_ms, known.bytes), (7, 4 + 2 + 12));
        let on_disk = fs::read(store.path("c1", ARCHIVE_END)).unwrap();
        assert!(!on_disk.windows(5).any(|bytes| bytes == b"files"));
        // Somebody puts the archive of one in the place of another's.
        fs::copy(store.path("c1", ARCHIVE_END), store.path("c2", ARCHIVE_END)).unwrap();
        assert!(matches!(store.load(&other), Err(ContextError::Damaged(_))));
        assert_eq!(store.all_of("k1").unwrap().len(), 2);
        assert!(store.all_of("k2").unwrap().is_empty());
        store.remove(&one).unwrap();
        assert_eq!(store.get("c1").unwrap(), None);
        assert!(!store.path("c1", ARCHIVE_END).exists());
    }

    #[test]
    fn names_are_one_contexts_of_an_owner_and_ids_lead_nowhere() {
        let (_place, store) = store();
        store.add(&record("c1", "k1", Some("shop"))).unwrap();
        assert!(matches!(
            store.add(&record("c2", "k1", Some("shop"))),
            Err(ContextError::Exists(_))
        ));
        store.add(&record("c3", "k2", Some("shop"))).unwrap();
        for bad in ["", "a/b", "a b", &"a".repeat(MAX_NAME + 1)] {
            assert!(
                matches!(store.add(&record("c4", "k1", Some(bad))), Err(ContextError::Name(_))),
                "{bad}"
            );
        }
        for id in ["", "..", "../c1", "C1", "key/", &"a".repeat(MAX_ID + 1)] {
            assert_eq!(store.get(id).unwrap(), None, "{id}");
        }
    }

    #[test]
    fn contexts_and_what_is_saved_have_bounds() {
        let (_place, store) = store();
        for number in 0..MAX_CONTEXTS {
            store.add(&record(&format!("c{number}"), "k1", None)).unwrap();
        }
        assert!(matches!(
            store.add(&record("one_more", "k1", None)),
            Err(ContextError::TooMany)
        ));
        store.add(&record("other", "k2", None)).unwrap();
        let large = SavedProfile {
            cookies: Vec::new(),
            files: vec![0; MAX_PROFILE + 1],
        };
        assert!(matches!(
            store.save(&record("c1", "k1", None), large, 1),
            Err(ContextError::TooLarge)
        ));
        assert_eq!(store.load(&record("c1", "k1", None)).unwrap(), None);
    }
}
