//! Snapshots as archives: one that leaves, in pieces, and one that comes from who need not be trusted.
//!
//! Another process packs and unpacks; nothing of an archive is kept here but the piece that is on its way. A snapshot that comes is
//! on record before there is anything of it, and whole or gone afterwards. It counts for its key, and takes no more than that
//! may have, and than the disk has room for.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use offleash_core::id::{RunId, SandboxName};
use offleash_core::log_level::LogLevel;
use offleash_store::HeldSnapshot;
use offleash_supervisor::clock::own_ms;
use offleash_supervisor::frames::{Message, only, order_file};
use offleash_supervisor::roles::SupervisorRole;
use offleash_supervisor::service::order::MAX_FILES;
use offleash_supervisor::snapshot_archives::{ArchiveAnswer, PackOrder, UnpackOrder};
use rustix::pipe::{PipeFlags, pipe_with};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::pipe;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};

use super::{SnapshotSpec, SnapshotStore, SnapshotView, from_json, to_json};
use crate::caller::Caller;
use crate::error::DaemonError;
use crate::helper_process::HelperProcess;
use crate::origin::image_name;
use crate::random;
use crate::registry::{Change, SnapshotKind, SnapshotRow, SnapshotState};
use crate::specification::check_imported;
use crate::template_names;
use crate::view::SandboxLimits;

/// How many archives come at a time, and leave.
const MAX_COMING: usize = 4;
const MAX_LEAVING: usize = 8;
const MAX_LEAVING_OF_KEY: u64 = 3;
/// How long an archive may take from its beginning to its end.
const ARCHIVE_TIMEOUT: Duration = Duration::from_secs(3600);
/// How long what was sent may take to be taken, or to be written out at the end.
const PIECE_TIMEOUT: Duration = Duration::from_secs(120);
/// How much is passed on at a time.
const PIECE: usize = 128 << 10;
/// When it is worth asking again for a place.
const SOON: Duration = Duration::from_secs(5);
const PACK: &str = "pack a snapshot";
const UNPACK: &str = "take in a snapshot";
/// The field that refusals of an archive name.
const ARCHIVE: &str = "archive";

/// What an archive says of the sandbox of which it is.
#[derive(Debug, Serialize, Deserialize)]
struct ArchiveDescription {
    /// The template that it lies over.
    template: String,
    /// The digest of that, where it is an image.
    build: Option<String>,
    /// Variables for every command in sandboxes made of it.
    env: BTreeMap<String, String>,
    /// What they may use if nobody says.
    limits: Option<SandboxLimits>,
}

/// Places for archives that go one way.
#[derive(Debug)]
struct OneWay {
    places: Arc<Semaphore>,
    /// How many each key has on their way.
    keys: Arc<Mutex<BTreeMap<String, u64>>>,
    what: &'static str,
    of_key: u64,
}

/// Places for archives that are on their way.
#[derive(Debug)]
pub(super) struct ArchivePlaces {
    /// What two of a key took together would be counted too late.
    coming: OneWay,
    leaving: OneWay,
}

/// A key's place, as long as this lives.
#[derive(Debug)]
struct ArchivePlace {
    keys: Arc<Mutex<BTreeMap<String, u64>>>,
    key: String,
    _place: OwnedSemaphorePermit,
}

impl Drop for ArchivePlace {
    fn drop(&mut self) {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = keys.get_mut(&self.key) {
            *count -= 1;
        }
        keys.retain(|_, count| *count > 0);
    }
}

impl Default for ArchivePlaces {
    fn default() -> Self {
        let way = |what, of_all, of_key| OneWay {
            places: Arc::new(Semaphore::new(of_all)),
            keys: Arc::default(),
            what,
            of_key,
        };
        Self {
            coming: way("archives that come at a time", MAX_COMING, 1),
            leaving: way("archives that leave at a time", MAX_LEAVING, MAX_LEAVING_OF_KEY),
        }
    }
}

impl OneWay {
    /// # Errors
    /// `Overloaded`, `QuotaExceeded`.
    fn take(&self, key: &str) -> Result<ArchivePlace, DaemonError> {
        let full = |_| DaemonError::Overloaded {
            what: "places for archives of snapshots",
            retry_after: SOON,
        };
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(full)?;
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        let count = keys.entry(key.to_owned()).or_default();
        if *count >= self.of_key {
            return Err(DaemonError::QuotaExceeded {
                what: self.what,
                quota: self.of_key,
                used: *count,
                asked: 1,
            });
        }
        *count += 1;
        Ok(ArchivePlace {
            keys: Arc::clone(&self.keys),
            key: key.to_owned(),
            _place: place,
        })
    }
}

/// A process that packs or unpacks, and what it says when it is done.
struct ArchiveProcess {
    process: HelperProcess,
    answer: pipe::Receiver,
}

impl ArchiveProcess {
    /// Starts one, whose descriptor 3 is `archive`.
    fn start<Order: Message>(
        store: &SnapshotStore,
        role: SupervisorRole,
        order: &Order,
        archive: &impl std::os::fd::AsFd,
    ) -> io::Result<Self> {
        let order = order_file(order)?;
        let (answer, their_answer) = pipe_with(PipeFlags::CLOEXEC)?;
        let null = OpenOptions::new().write(true).open("/dev/null")?;
        let descriptors = [order.as_fd(), their_answer.as_fd(), null.as_fd(), archive.as_fd()];
        let process = HelperProcess::start(store.core.host.program(), role, &descriptors)?;
        rustix::io::ioctl_fionbio(&answer, true)?;
        Ok(Self {
            process,
            answer: pipe::Receiver::from_owned_fd(answer)?,
        })
    }

    /// What came of it, once it has ended.
    async fn outcome(self) -> io::Result<ArchiveAnswer> {
        let mut answer = Vec::new();
        self.answer
            .take(longest::<ArchiveAnswer>())
            .read_to_end(&mut answer)
            .await?;
        self.process.ended().await?;
        only(&answer)
    }
}

/// More bytes than a frame with such a message has.
fn longest<A: Message>() -> u64 {
    u64::try_from(A::MAX_FRAME).unwrap_or(u64::MAX).saturating_add(64)
}

/// A snapshot that leaves as an archive.
pub struct SnapshotExport {
    id: String,
    pipe: Option<pipe::Receiver>,
    process: Option<ArchiveProcess>,
    until: Instant,
    /// It is not removed meanwhile.
    _held: HeldSnapshot,
    _place: ArchivePlace,
}

impl std::fmt::Debug for SnapshotExport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SnapshotExport({})", self.id)
    }
}

impl SnapshotExport {
    /// Its id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The next piece; `None` when all of it was given and is whole.
    ///
    /// # Errors
    /// `Host`, after which what was given is not a whole archive.
    pub async fn piece(&mut self) -> Result<Option<Bytes>, DaemonError> {
        let Some(pipe) = &mut self.pipe else { return Ok(None) };
        let mut piece = Vec::with_capacity(PIECE);
        let read = timeout_at(self.until, pipe.read_buf(&mut piece)).await;
        let late = |_| DaemonError::host(PACK)(io::ErrorKind::TimedOut.into());
        if read.map_err(late)?.map_err(DaemonError::host(PACK))? > 0 {
            return Ok(Some(piece.into()));
        }
        self.pipe = None;
        let Some(process) = self.process.take() else {
            return Ok(None);
        };
        match process.outcome().await.map_err(DaemonError::host(PACK))? {
            ArchiveAnswer::Packed => Ok(None),
            ArchiveAnswer::Failed { reason } => Err(DaemonError::host(PACK)(io::Error::other(reason))),
            ArchiveAnswer::Taken { .. } => Err(DaemonError::host(PACK)(io::ErrorKind::InvalidData.into())),
        }
    }
}

/// A snapshot that comes as an archive. One that is dropped before its end leaves nothing behind.
pub struct SnapshotImport {
    store: Arc<SnapshotStore>,
    caller: Caller,
    row: SnapshotRow,
    until: Instant,
    parts: Option<ImportParts>,
}

struct ImportParts {
    pipe: pipe::Sender,
    process: ArchiveProcess,
    _place: ArchivePlace,
}

impl std::fmt::Debug for SnapshotImport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SnapshotImport({})", self.row.id)
    }
}

impl SnapshotImport {
    /// Passes a piece on.
    ///
    /// # Errors
    /// `Invalid` when the archive is refused, which may be told of an earlier piece; `Host`. It is over then.
    pub async fn write(&mut self, piece: &[u8]) -> Result<(), DaemonError> {
        let Some(parts) = &mut self.parts else {
            return Err(DaemonError::host(UNPACK)(io::ErrorKind::BrokenPipe.into()));
        };
        let until = self.until.min(Instant::now() + PIECE_TIMEOUT);
        match timeout_at(until, parts.pipe.write_all(piece)).await {
            Ok(Ok(())) => Ok(()),
            // It has ended, and says why.
            Ok(Err(error)) if error.kind() == io::ErrorKind::BrokenPipe => self.refusal().await,
            Ok(Err(error)) => Err(DaemonError::host(UNPACK)(error)),
            Err(_) => Err(DaemonError::host(UNPACK)(io::ErrorKind::TimedOut.into())),
        }
    }

    async fn refusal(&mut self) -> Result<(), DaemonError> {
        let Some(ImportParts { process, _place, .. }) = self.parts.take() else {
            return Ok(());
        };
        let outcome = process.outcome().await;
        self.store.discard_archive(&self.row.id).await;
        match outcome {
            Ok(ArchiveAnswer::Failed { reason }) => Err(DaemonError::invalid(ARCHIVE, reason)),
            _ => Err(DaemonError::host(UNPACK)(io::ErrorKind::BrokenPipe.into())),
        }
    }

    /// All of it was passed on: checks it, and makes it a snapshot of the caller's.
    ///
    /// # Errors
    /// `Invalid` when it is refused, `UnknownTemplate`, `MissingOrigin`, `QuotaExceeded`, `Store`, `Host`. Nothing of it is left
    /// then.
    pub async fn finish(mut self) -> Result<SnapshotView, DaemonError> {
        let Some(ImportParts { pipe, process, _place }) = self.parts.take() else {
            return Err(DaemonError::host(UNPACK)(io::ErrorKind::BrokenPipe.into()));
        };
        let (store, caller, row) = (Arc::clone(&self.store), self.caller.clone(), self.row.clone());
        let jobs = Arc::clone(&self.store.core.jobs);
        let work = async move {
            let _until_done = _place;
            // The end of the archive.
            drop(pipe);
            let id = row.id.clone();
            let outcome = timeout(PIECE_TIMEOUT, process.outcome()).await;
            let outcome = outcome.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
            let finished = match outcome {
                Ok(answer) => store.finish_archive(&caller, row, answer).await,
                Err(error) => Err(DaemonError::host(UNPACK)(error)),
            };
            if finished.is_err() {
                store.discard_archive(&id).await;
            }
            finished
        };
        jobs.detached(work).await
    }
}

impl Drop for SnapshotImport {
    fn drop(&mut self) {
        let Some(ImportParts { process, _place, .. }) = self.parts.take() else {
            return;
        };
        let (store, id) = (Arc::clone(&self.store), self.row.id.clone());
        self.store.core.jobs.spawn(async move {
            let _until_done = _place;
            // Before its files are removed nobody may write any more.
            process.process.end().await;
            store.discard_archive(&id).await;
        });
    }
}

impl SnapshotStore {
    /// Begins to pack one of the caller's snapshots.
    ///
    /// # Errors
    /// `UnknownSnapshot`, `SnapshotUnusable`, `Overloaded`, `Host`.
    pub(crate) async fn export(&self, caller: &Caller, which: &str) -> Result<SnapshotExport, DaemonError> {
        let row = self.find(caller, which)?;
        let spec = from_json(&row.spec).ok_or_else(|| DaemonError::SnapshotUnusable {
            id: row.id.clone(),
            why: "was made by another version of offleash".to_owned(),
        })?;
        let place = self.archives.leaving.take(&caller.key_id)?;
        let held = self.core.host.hold_snapshot(Some(&row.id)).await?;
        let unknown = || DaemonError::UnknownSnapshot { name: row.id.clone() };
        let held = held.ok_or_else(unknown)?;
        let description = ArchiveDescription {
            template: template_names::shown(&row.template).to_owned(),
            // A build of a template means nothing elsewhere.
            build: spec.build.filter(|_| image_name(&row.template).is_some()),
            env: spec.env,
            limits: Some(spec.limits),
        };
        let order = PackOrder {
            state: self.core.host.state_text(),
            id: row.id.parse().map_err(|_| unknown())?,
            description: serde_json::to_string(&description)
                .map_err(io::Error::other)
                .map_err(DaemonError::host(PACK))?,
        };
        let started = || {
            let (archive, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
            let process = ArchiveProcess::start(self, SupervisorRole::PackSnapshot, &order, &theirs)?;
            rustix::io::ioctl_fionbio(&archive, true)?;
            io::Result::Ok((pipe::Receiver::from_owned_fd(archive)?, process))
        };
        let (pipe, process) = started().map_err(DaemonError::host(PACK))?;
        Ok(SnapshotExport {
            id: row.id,
            pipe: Some(pipe),
            process: Some(process),
            until: Instant::now() + ARCHIVE_TIMEOUT,
            _held: held,
            _place: place,
        })
    }

    /// Begins to take in a snapshot that is called so.
    ///
    /// # Errors
    /// `Invalid` for a name, `QuotaExceeded`, `Overloaded`, `Draining`, `Drained`, `Store`, `Host`.
    pub(crate) async fn import(
        self: &Arc<Self>,
        caller: &Caller,
        name: Option<SandboxName>,
    ) -> Result<SnapshotImport, DaemonError> {
        self.core.jobs.check_new()?;
        if let Some(name) = &name {
            self.check_name(caller, name.as_str()).await?;
        }
        self.admission.check_disk(0)?;
        let place = self.archives.coming.take(&caller.key_id)?;
        let id = random::snapshot_id()?;
        let (row, bytes) = {
            let _noting = self.noting.lock().await;
            let (row, bytes) = self.coming_row(caller, &id, name)?;
            let noted = vec![Change::AddSnapshot(Box::new(row.clone()))];
            self.core.registry.apply(noted).await?;
            (row, bytes)
        };
        let order = UnpackOrder {
            state: self.core.host.state_text(),
            id,
            bytes,
            entries: MAX_FILES,
        };
        let started = || {
            let (theirs, archive) = pipe_with(PipeFlags::CLOEXEC)?;
            let process = ArchiveProcess::start(self, SupervisorRole::UnpackSnapshot, &order, &theirs)?;
            rustix::io::ioctl_fionbio(&archive, true)?;
            io::Result::Ok((pipe::Sender::from_owned_fd(archive)?, process))
        };
        let (pipe, process) = match started() {
            Ok(started) => started,
            Err(error) => {
                self.discard_archive(&row.id).await;
                return Err(DaemonError::host(UNPACK)(error));
            }
        };
        Ok(SnapshotImport {
            store: Arc::clone(self),
            caller: caller.clone(),
            row,
            until: Instant::now() + ARCHIVE_TIMEOUT,
            parts: Some(ImportParts {
                pipe,
                process,
                _place: place,
            }),
        })
    }

    /// The record of one that comes, and how many bytes it may have.
    fn coming_row(
        &self,
        caller: &Caller,
        id: &RunId,
        name: Option<SandboxName>,
    ) -> Result<(SnapshotRow, u64), DaemonError> {
        let of_owner = self
            .core
            .registry
            .look_up(|registry| registry.snapshots_of_key(&caller.key_id))?;
        self.check_quota(SnapshotKind::Snapshot, &of_owner, &[])?;
        let used: u64 = of_owner.iter().map(|row| row.bytes).sum();
        let of_quota = (self.config.snapshots.max_mib.saturating_mul(1 << 20)).saturating_sub(used);
        let spec = SnapshotSpec {
            build: None,
            env: BTreeMap::new(),
            limits: self.config.default_limits,
            contexts: Vec::new(),
            automatic: None,
        };
        let row = SnapshotRow {
            id: id.as_str().to_owned(),
            key_id: caller.key_id.clone(),
            kind: SnapshotKind::Snapshot,
            sandbox: String::new(),
            name: name.map(|name| name.as_str().to_owned()),
            state: SnapshotState::Making,
            template: String::new(),
            spec: to_json(&spec),
            parent: None,
            bytes: 0,
            files: 0,
            held_us: 0,
            created_ms: own_ms(),
        };
        Ok((row, of_quota.min(self.admission.disk_room())))
    }

    /// Checks what an archive says of itself, and puts the snapshot on record as whole.
    async fn finish_archive(
        &self,
        caller: &Caller,
        mut row: SnapshotRow,
        answer: ArchiveAnswer,
    ) -> Result<SnapshotView, DaemonError> {
        let (said, files, bytes) = match answer {
            ArchiveAnswer::Taken {
                description,
                files,
                bytes,
            } => (description, files, bytes),
            ArchiveAnswer::Failed { reason } => return Err(DaemonError::invalid(ARCHIVE, reason)),
            ArchiveAnswer::Packed => return Err(DaemonError::host(UNPACK)(io::ErrorKind::InvalidData.into())),
        };
        let said: ArchiveDescription =
            serde_json::from_str(&said).map_err(|_| DaemonError::invalid(ARCHIVE, "it does not say what it is of"))?;
        if template_names::of_store(&said.template).is_some() {
            return Err(DaemonError::UnknownTemplate { name: said.template });
        }
        check_imported(&said.env, said.limits.as_ref(), &self.config)?;
        let origin = self
            .origins
            .of_snapshot(caller, &said.template, said.build.as_deref())
            .await?;
        let of_owner = self
            .core
            .registry
            .look_up(|registry| registry.snapshots_of_key(&caller.key_id))?;
        let others: u64 = of_owner.iter().map(|row| row.bytes).sum();
        let (quota, used) = (self.config.snapshots.max_mib, others >> 20);
        if used.saturating_add(bytes >> 20) > quota {
            return Err(DaemonError::QuotaExceeded {
                what: "MiB of snapshots",
                quota,
                used,
                asked: bytes >> 20,
            });
        }
        row.template = said.template;
        row.spec = to_json(&SnapshotSpec {
            build: origin.origin().build,
            env: said.env,
            limits: said.limits.unwrap_or(self.config.default_limits),
            contexts: Vec::new(),
            automatic: None,
        });
        (row.files, row.bytes, row.state) = (files, bytes, SnapshotState::Ready);
        let whole = vec![Change::CompleteSnapshot(Box::new(row.clone()))];
        self.core.registry.apply(whole).await?;
        drop(origin);
        Ok(SnapshotView::of(&row))
    }

    /// Nothing is to be left of one that is not whole.
    async fn discard_archive(&self, id: &str) {
        // On a full disk its record stays; the next daemon, or the next round, removes both.
        if let Err(error) = self.release(id).await {
            self.core.registry.log(
                id,
                LogLevel::Warn,
                format!("what is left of an archive is not removed yet: {error}"),
            );
        }
    }
}
