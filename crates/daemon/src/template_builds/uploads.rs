//! Archives that keys upload for their builds: `uploads/KEY/HASH` in the state directory, each written once and by whoever
//! shows a token that was given for it.
//!
//! They are bytes of a stranger's. Nothing here looks into them but at their beginning; a builder unpacks them, in a process of
//! its own. What was not used for a day goes.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, FileTimes, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use offleash_core::build::instruction::UploadHash;

use crate::error::DaemonError;
use crate::jobs::blocking;
use crate::random;

/// The directory in the state directory.
const UPLOADS: &str = "uploads";
/// What is before the name of one that is being written.
const UNFINISHED: &str = ".new-";
/// The largest archive, bytes.
pub const MAX_UPLOAD_BYTES: u64 = 1 << 30;
/// What the archives of one key take at most, bytes.
pub const MAX_UPLOADS_OF_KEY: u64 = 4 << 30;
/// How many archives of a key there are at most.
const MAX_UPLOAD_COUNT_OF_KEY: u64 = 10_000;
/// How many tokens of a key may be unused.
const MAX_TOKENS_OF_KEY: usize = 100;
/// How long a token is good, and how long an archive may take to arrive: as long as SDKs take at most.
const TOKEN_TIMEOUT: Duration = Duration::from_secs(3600);
/// How long an archive stays that no build has asked for.
const KEPT: Duration = Duration::from_secs(24 * 60 * 60);
/// How archives begin: gzip, zstd; and what stands in the first block of a tar.
const MAGIC: [&[u8]; 2] = [&[0x1f, 0x8b], &[0x28, 0xb5, 0x2f, 0xfd]];
const TAR_MAGIC: (usize, &[u8]) = (257, b"ustar");

/// The archives of a state directory.
#[derive(Debug)]
pub(crate) struct UploadStore {
    directory: PathBuf,
    tokens: Mutex<BTreeMap<String, UploadToken>>,
    arriving: Arc<ArrivingBytes>,
}

/// What is on its way, of each key, bytes.
#[derive(Debug, Default)]
struct ArrivingBytes(Mutex<BTreeMap<String, u64>>);

impl ArrivingBytes {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Clone)]
struct UploadToken {
    key: String,
    hash: UploadHash,
    until: Instant,
}

/// An archive that arrives.
#[derive(Debug)]
pub struct UploadWriter {
    file: Option<Arc<Mutex<File>>>,
    unfinished: PathBuf,
    place: PathBuf,
    written: u64,
    /// How many bytes it has, which are counted to its key.
    announced: u64,
    key: String,
    arriving: Arc<ArrivingBytes>,
}

impl UploadStore {
    pub(super) fn new(state: &Path) -> Self {
        Self {
            directory: state.join(UPLOADS),
            tokens: Mutex::default(),
            arriving: Arc::default(),
        }
    }

    fn tokens(&self) -> MutexGuard<'_, BTreeMap<String, UploadToken>> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The archives of a key.
    pub(super) fn of_key(&self, key: &str) -> PathBuf {
        self.directory.join(key)
    }

    /// Whether the key has uploaded it. It is used then, and stays for a while.
    pub(super) async fn has(&self, key: &str, hash: &UploadHash) -> Result<bool, DaemonError> {
        let path = self.of_key(key).join(hash.as_str());
        blocking("look for an upload", move || {
            match File::options().write(true).open(&path) {
                Ok(file) => {
                    // Should it fail, it goes a little earlier.
                    let _touched = file.set_times(FileTimes::new().set_modified(SystemTime::now()));
                    true
                }
                Err(_) => false,
            }
        })
        .await
    }

    /// A token by which one archive of that hash can be uploaded, once. Of too many the oldest is of no use any more, and of one
    /// that is here already the latest alone is.
    ///
    /// # Errors
    /// When the kernel gives no random bytes.
    pub(super) fn grant(&self, key: &str, hash: &UploadHash, is_here: bool) -> Result<String, DaemonError> {
        let token = random::token()?;
        let mut tokens = self.tokens();
        let is_replaced = |known: &UploadToken| is_here && known.key == key && known.hash == *hash;
        tokens.retain(|_, known| known.until > Instant::now() && !is_replaced(known));
        let mut own: Vec<(Instant, String)> = tokens
            .iter()
            .filter(|(_, known)| known.key == key)
            .map(|(token, known)| (known.until, token.clone()))
            .collect();
        if own.len() >= MAX_TOKENS_OF_KEY {
            own.sort();
            tokens.remove(&own[0].1);
        }
        let given = UploadToken {
            key: key.to_owned(),
            hash: hash.clone(),
            until: Instant::now() + TOKEN_TIMEOUT,
        };
        tokens.insert(token.clone(), given);
        Ok(token)
    }

    /// Begins to take the archive that a token is for, of which `announced` bytes are to come; the token is used up.
    ///
    /// # Errors
    /// `Unauthorized`, `QuotaExceeded`, `Host`.
    pub(super) async fn receive(
        &self,
        token: &str,
        hash: &UploadHash,
        announced: u64,
    ) -> Result<UploadWriter, DaemonError> {
        let known = self.tokens().remove(token);
        let known = known.filter(|known| known.until > Instant::now() && known.hash == *hash);
        let UploadToken { key, .. } = known.ok_or(DaemonError::Unauthorized)?;
        if announced > MAX_UPLOAD_BYTES {
            let why = format!("an archive may have {MAX_UPLOAD_BYTES} bytes");
            return Err(DaemonError::TooLarge { why });
        }
        let (root, directory) = (self.directory.clone(), self.of_key(&key));
        let (unfinished, place) = (
            directory.join(format!("{UNFINISHED}{}", random::token()?)),
            directory.join(hash.as_str()),
        );
        let used = blocking("count uploads", {
            let directory = directory.clone();
            move || {
                for directory in [&root, &directory] {
                    match DirBuilder::new().mode(0o700).create(directory) {
                        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                        _ => {}
                    }
                }
                found_in(&directory)
            }
        });
        let (count, used) = used.await?.map_err(DaemonError::host("count uploads"))?;
        check_count(count)?;
        {
            let mut arriving = self.arriving.lock();
            let of_key = arriving.entry(key.clone()).or_default();
            let used = used.saturating_add(*of_key);
            if used.saturating_add(announced) > MAX_UPLOADS_OF_KEY {
                return Err(DaemonError::QuotaExceeded {
                    what: "bytes of uploads",
                    quota: MAX_UPLOADS_OF_KEY,
                    used,
                    asked: announced,
                });
            }
            *of_key += announced;
        }
        let mut writer = UploadWriter {
            file: None,
            unfinished,
            place,
            written: 0,
            announced,
            key,
            arriving: Arc::clone(&self.arriving),
        };
        let path = writer.unfinished.clone();
        let opened = blocking("begin an upload", move || {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create_new(true).mode(0o600).open(&path)
        });
        let file = opened.await?.map_err(DaemonError::host("begin an upload"))?;
        writer.file = Some(Arc::new(Mutex::new(file)));
        Ok(writer)
    }

    /// Removes what is left of uploads that were cut, and what was not used for a day.
    pub(super) async fn collect(&self) {
        let directory = self.directory.clone();
        let _removed = blocking("remove uploads", move || {
            for key in entries(&directory) {
                for path in entries(&key) {
                    let is_unfinished = path
                        .file_name()
                        .is_some_and(|name| name.to_string_lossy().starts_with(UNFINISHED));
                    let most = if is_unfinished { TOKEN_TIMEOUT } else { KEPT };
                    let changed = fs::symlink_metadata(&path).and_then(|found| found.modified());
                    let is_old = changed.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > most));
                    if is_old {
                        let _gone = fs::remove_file(&path);
                    }
                }
                // One with something in it stays.
                let _gone = fs::remove_dir(&key);
            }
        })
        .await;
    }

    /// Removes what uploads left that were under way when a daemon died.
    pub(super) async fn clean_up(&self) {
        let directory = self.directory.clone();
        let _removed = blocking("remove uploads", move || {
            for path in entries(&directory).iter().flat_map(|key| entries(key)) {
                let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
                if name.is_some_and(|name| name.starts_with(UNFINISHED)) {
                    let _gone = fs::remove_file(&path);
                }
            }
        })
        .await;
        self.collect().await;
    }
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let found = fs::read_dir(directory).into_iter().flatten().flatten();
    found.map(|entry| entry.path()).collect()
}

/// How many archives there are, those that arrive included, and how many bytes the whole ones have.
fn found_in(directory: &Path) -> io::Result<(u64, u64)> {
    let (mut count, mut bytes) = (0, 0);
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        count += 1;
        // Those that arrive are counted as a whole, and one may go meanwhile.
        if !entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
            bytes += entry.metadata().map_or(0, |found| found.len());
        }
    }
    Ok((count, bytes))
}

fn check_count(count: u64) -> Result<(), DaemonError> {
    match count >= MAX_UPLOAD_COUNT_OF_KEY {
        true => Err(DaemonError::QuotaExceeded {
            what: "uploads",
            quota: MAX_UPLOAD_COUNT_OF_KEY,
            used: count,
            asked: 1,
        }),
        false => Ok(()),
    }
}

impl UploadWriter {
    /// Takes the next piece.
    ///
    /// # Errors
    /// `TooLarge`, `Host`, `Short`.
    pub async fn write(&mut self, piece: impl AsRef<[u8]> + Send + 'static) -> Result<(), DaemonError> {
        self.written = self.written.saturating_add(piece.as_ref().len() as u64);
        if self.written > self.announced {
            let why = "the body has more bytes than it announced".to_owned();
            return Err(DaemonError::TooLarge { why });
        }
        self.with_file("write an upload", move |file| file.write_all(piece.as_ref()))
            .await
    }

    /// All of it is here: it is the archive of its hash from now on, in the place of one that there was.
    ///
    /// # Errors
    /// `Invalid` for what is no archive, `Host`, `Short`.
    pub async fn finish(mut self) -> Result<(), DaemonError> {
        let is_archive = self.with_file("examine an upload", |file| {
            let mut start = vec![0; 512];
            file.seek(SeekFrom::Start(0))?;
            let read = file.read(&mut start)?;
            start.truncate(read);
            let (at, magic) = TAR_MAGIC;
            let is_tar = start.get(at..).is_some_and(|rest| rest.starts_with(magic));
            Ok(is_tar || MAGIC.iter().any(|magic| start.starts_with(magic)))
        });
        if !is_archive.await? {
            return Err(DaemonError::invalid("the body", "is no tar archive"));
        }
        let (from, to) = (self.unfinished.clone(), self.place.clone());
        let named = blocking("name an upload", move || fs::rename(from, to)).await?;
        named.map_err(DaemonError::host("name an upload"))?;
        self.file = None;
        Ok(())
    }

    async fn with_file<T: Send + 'static>(
        &self,
        tried: &'static str,
        work: impl FnOnce(&mut File) -> io::Result<T> + Send + 'static,
    ) -> Result<T, DaemonError> {
        let file = self.file.clone();
        let done = blocking(tried, move || match file {
            Some(file) => work(&mut file.lock().unwrap_or_else(PoisonError::into_inner)),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        });
        done.await?.map_err(DaemonError::host(tried))
    }
}

impl Drop for UploadWriter {
    fn drop(&mut self) {
        if let Some(of_key) = self.arriving.lock().get_mut(&self.key) {
            *of_key = of_key.saturating_sub(self.announced);
        }
        if self.file.is_some() {
            // What stays is collected.
            let _gone = fs::remove_file(&self.unfinished);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(digit: char) -> UploadHash {
        digit.to_string().repeat(64).parse().unwrap()
    }

    async fn upload(store: &UploadStore, token: &str, hash: &UploadHash, bytes: &[u8]) -> Result<(), DaemonError> {
        let mut writer = store.receive(token, hash, bytes.len() as u64).await?;
        writer.write(bytes.to_vec()).await?;
        writer.finish().await
    }

    #[tokio::test]
    async fn a_token_is_for_one_archive_once() {
        let directory = tempfile::tempdir().unwrap();
        let store = UploadStore::new(directory.path());
        let (one, other) = (hash('a'), hash('b'));
        let token = store.grant("k1", &one, false).unwrap();
        let refused = upload(&store, &token, &other, b"\x1f\x8b").await;
        assert!(matches!(refused, Err(DaemonError::Unauthorized)), "{refused:?}");
        let token = store.grant("k1", &one, false).unwrap();
        upload(&store, &token, &one, b"\x1f\x8bmore").await.unwrap();
        assert!(store.has("k1", &one).await.unwrap());
        assert!(!store.has("k2", &one).await.unwrap());
        let again = upload(&store, &token, &one, b"\x1f\x8b").await;
        assert!(matches!(again, Err(DaemonError::Unauthorized)), "{again:?}");
    }

    #[tokio::test]
    async fn what_is_no_archive_or_too_large_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let store = UploadStore::new(directory.path());
        let one = hash('a');
        let refused = upload(&store, &store.grant("k1", &one, false).unwrap(), &one, b"plain text").await;
        assert!(matches!(refused, Err(DaemonError::Invalid { .. })), "{refused:?}");
        let token = store.grant("k1", &one, false).unwrap();
        let refused = store.receive(&token, &one, MAX_UPLOAD_BYTES + 1).await;
        assert!(matches!(refused, Err(DaemonError::TooLarge { .. })), "{refused:?}");
        assert!(entries(&store.of_key("k1")).is_empty());
        // One that is cut, and one that a daemon left.
        let token = store.grant("k1", &one, false).unwrap();
        drop(store.receive(&token, &one, 0).await.unwrap());
        fs::write(store.of_key("k1").join(".new-x"), b"").unwrap();
        store.clean_up().await;
        assert!(entries(&store.directory).is_empty());
    }

    #[tokio::test]
    async fn archives_of_a_key_are_counted_however_small_they_are() {
        let directory = tempfile::tempdir().unwrap();
        let store = UploadStore::new(directory.path());
        let one = hash('a');
        upload(&store, &store.grant("k1", &one, false).unwrap(), &one, b"\x1f\x8b")
            .await
            .unwrap();
        fs::write(store.of_key("k1").join(".new-x"), b"some").unwrap();
        assert_eq!(found_in(&store.of_key("k1")).unwrap(), (2, 2));
        assert!(check_count(MAX_UPLOAD_COUNT_OF_KEY - 1).is_ok());
        let refused = check_count(MAX_UPLOAD_COUNT_OF_KEY);
        assert!(matches!(refused, Err(DaemonError::QuotaExceeded { .. })), "{refused:?}");
    }

    #[tokio::test]
    async fn tokens_of_a_key_are_bounded() {
        let directory = tempfile::tempdir().unwrap();
        let store = UploadStore::new(directory.path());
        let (one, other) = (hash('a'), hash('b'));
        let first = store.grant("k1", &one, false).unwrap();
        let theirs = store.grant("k2", &one, false).unwrap();
        for _ in 0..MAX_TOKENS_OF_KEY {
            store.grant("k1", &other, false).unwrap();
        }
        let gone = store.receive(&first, &one, 0).await;
        assert!(matches!(gone, Err(DaemonError::Unauthorized)), "{gone:?}");
        store.receive(&theirs, &one, 0).await.unwrap();
        assert_eq!(store.tokens().len(), MAX_TOKENS_OF_KEY);
        // Of what is here, one token alone.
        let latest = store.grant("k1", &other, true).unwrap();
        assert_eq!(store.tokens().keys().collect::<Vec<_>>(), [&latest]);
    }
}
