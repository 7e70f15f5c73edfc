//! Volumes of callers that have a bucket: what is asked for is checked here, and another process does it.
//!
//! A caller names the endpoints alone that the owner of the daemon lists: the daemon's machine may reach what the caller may
//! not. Credentials are a secret of the key; the process that synchronises is told of them, and nobody else.

use std::sync::Arc;
use std::time::Duration;

use offleash_core::bucket::{BucketSecret, BucketSpec, SyncChoice};
use offleash_core::error::ErrorKind;
use offleash_core::log_level::LogLevel;
use offleash_core::network::secret::{SecretSource, SecretValue};
use offleash_core::spec::MountAccess;
use offleash_core::volume::{VolumeId, VolumeKey};
use offleash_store::VolumeRecord;
use offleash_supervisor::buckets::{SyncReport, SyncVolumeAnswer, SyncVolumeOrder};
use offleash_supervisor::roles::SupervisorRole;
use tokio::time::timeout;

use crate::caller::{Caller, LOCAL_KEY};
use crate::error::DaemonError;
use crate::one_order::carried_out;
use crate::sandboxes::SandboxEntry;
use crate::volume_mounts::{BucketRequest, SandboxVolume};
use crate::volumes::{VolumeService, owner_of};

/// How long a create waits for what is new in the buckets of its volumes. What has come by then stays.
const FETCH_TIMEOUT: Duration = Duration::from_secs(600);

impl VolumeService {
    /// The bucket that a new volume of the caller's is to have.
    ///
    /// # Errors
    /// `Invalid`, `NotAllowed` for an endpoint that the owner does not list, `UnknownSecret`.
    pub(crate) fn bucket(&self, caller: &Caller, asked: &BucketRequest) -> Result<BucketSpec, DaemonError> {
        let named = asked.secret.clone().map(BucketSecret::Named);
        let spec = BucketSpec::from_parts(
            &asked.url,
            asked.endpoint.as_deref(),
            asked.region.as_deref(),
            asked.read_only,
            named,
        );
        let spec = spec.map_err(|error| DaemonError::invalid("bucket", error.to_string()))?;
        if !caller.is_owner() {
            self.check_endpoint(&spec)?;
        }
        if let Some(secret) = &asked.secret {
            self.secrets.value(&caller.key_id, secret)?;
        }
        Ok(spec)
    }

    fn check_endpoint(&self, spec: &BucketSpec) -> Result<(), DaemonError> {
        match self.config.bucket_endpoints.contains(&spec.endpoint) {
            true => Ok(()),
            false => Err(DaemonError::NotAllowed {
                what: "buckets at this endpoint",
                setting: "volumes.bucket_endpoints",
            }),
        }
    }

    /// Brings one of the caller's volumes and its bucket to the same.
    ///
    /// # Errors
    /// `Volume`, `UnknownSecret`, `NotAllowed`, `NotSynchronised`, also where something was done before it ended early.
    pub(crate) async fn sync(
        &self,
        caller: &Caller,
        which: &str,
        choice: SyncChoice,
    ) -> Result<SyncReport, DaemonError> {
        let (owner, which) = (owner_of(caller, which), which.to_owned());
        let found = self.with_state("look for a volume", move |state| {
            state.volumes()?.find(owner.as_deref(), &which)
        });
        self.synchronise(&found.await?, choice).await
    }

    /// Fetches what is new in the buckets of a sandbox's volumes, before it has them.
    ///
    /// # Errors
    /// As [`Self::sync`]; `NotSynchronised` when it takes too long.
    pub(crate) async fn fetch(&self, volumes: &[SandboxVolume]) -> Result<(), DaemonError> {
        for record in self.with_buckets(volumes.to_vec()).await? {
            let is_written = |volume: &SandboxVolume| volume.id == record.id && volume.access == MountAccess::Rw;
            if volumes.iter().any(is_written) {
                self.note_unsent(&record.id, true).await?;
            }
            let fetched = timeout(FETCH_TIMEOUT, self.synchronise(&record, SyncChoice::PULL)).await;
            fetched.unwrap_or_else(|_| {
                Err(DaemonError::NotSynchronised {
                    kind: ErrorKind::Timeout,
                    message: format!(
                        "fetching what is in the bucket of volume `{}` takes too long",
                        record.name
                    ),
                    hint: Some("synchronise the volume first, which goes on from there".to_owned()),
                })
            })?;
        }
        Ok(())
    }

    /// Sends what a sandbox wrote to its volumes, once it has ended. What cannot be sent is told in its log, and sent with the next
    /// one or when somebody asks for it.
    pub(crate) fn send_in_background(self: &Arc<Self>, entry: &Arc<SandboxEntry>) {
        let mut written = entry.specification().volumes.clone();
        written.retain(|volume| volume.access == MountAccess::Rw);
        if written.is_empty() {
            return;
        }
        let (service, name) = (Arc::clone(self), entry.name().to_owned());
        self.core.jobs.spawn(async move {
            for record in service.with_buckets(written).await.unwrap_or_default() {
                if let Some((level, line)) = service.send(&record).await {
                    service.core.registry.log(&name, level, line);
                }
            }
        });
    }

    /// Sends what sandboxes wrote that ended while no daemon saw it, or one that was killed.
    pub(crate) fn send_unsent_in_background(self: &Arc<Self>) {
        let service = Arc::clone(self);
        self.core.jobs.spawn(async move {
            let unsent = service.with_state("look for volumes", |state| {
                let store = state.volumes()?;
                let mut found = Vec::new();
                for listing in store.list(None)? {
                    // Whoever has it sends it at the end.
                    if listing.in_use || listing.record.bucket.is_none() {
                        continue;
                    }
                    let held = store.hold(&VolumeKey::Id(listing.record.id.clone()), MountAccess::Ro)?;
                    found.extend(held.is_unsent().then_some(listing.record));
                }
                Ok(found)
            });
            for record in unsent.await.unwrap_or_default() {
                // It is tried again by the next one, and whoever asks is told why it cannot be.
                let _told = service.send(&record).await;
            }
        });
    }

    /// Sends what is new in a volume; answers what there is to say of it.
    async fn send(&self, record: &VolumeRecord) -> Option<(LogLevel, String)> {
        if record.bucket.as_ref().is_none_or(|bucket| bucket.read_only) {
            return None;
        }
        let name = &record.name;
        Some(match self.synchronise(record, SyncChoice::PUSH).await {
            Ok(report) if report.is_complete() => {
                // What cannot be noted is sent again.
                let _noted = self.note_sent(&record.id).await;
                let line = format!("volume `{name}`: {} files went into its bucket", report.sent);
                (LogLevel::Info, line)
            }
            Ok(report) => {
                let line = format!(
                    "volume `{name}`: {} files went into its bucket, {} could not, and {} have changed there, too",
                    report.sent, report.failed.count, report.conflicts.count
                );
                (LogLevel::Warn, line)
            }
            Err(error) => (
                LogLevel::Warn,
                format!("volume `{name}` was not sent to its bucket: {error}"),
            ),
        })
    }

    async fn note_unsent(&self, id: &VolumeId, is_unsent: bool) -> Result<(), DaemonError> {
        let id = id.clone();
        self.with_state("note what is to be sent", move |state| {
            let held = state.volumes()?.hold(&VolumeKey::Id(id), MountAccess::Ro)?;
            held.note_unsent(is_unsent)
        })
        .await
    }

    /// That all of it is in the bucket, unless somebody writes to it still.
    async fn note_sent(&self, id: &VolumeId) -> Result<(), DaemonError> {
        let wanted = id.clone();
        let in_use = self.with_state("look for volumes", move |state| {
            let store = state.volumes()?;
            let record = store.find(None, wanted.as_str())?;
            let listed = store.list(Some(&record.owner))?;
            Ok(listed
                .into_iter()
                .any(|listing| listing.in_use && listing.record.id == wanted))
        });
        match in_use.await? {
            true => Ok(()),
            false => self.note_unsent(id, false).await,
        }
    }

    /// What is known of those volumes that have a bucket.
    async fn with_buckets(&self, volumes: Vec<SandboxVolume>) -> Result<Vec<VolumeRecord>, DaemonError> {
        if volumes.is_empty() {
            return Ok(Vec::new());
        }
        self.with_state("look for volumes", move |state| {
            let store = state.volumes()?;
            let mut found = Vec::new();
            for volume in volumes {
                let record = store.find(None, volume.id.as_str())?;
                found.extend(record.bucket.is_some().then_some(record));
            }
            Ok(found)
        })
        .await
    }

    async fn synchronise(&self, record: &VolumeRecord, choice: SyncChoice) -> Result<SyncReport, DaemonError> {
        let choice = choice
            .check()
            .map_err(|error| DaemonError::invalid("overwrite", error.to_string()))?;
        let spec = record.bucket.as_ref();
        let spec = spec.ok_or_else(|| DaemonError::invalid("volume", format!("`{}` has no bucket", record.name)))?;
        if record.owner != LOCAL_KEY {
            // It may have been listed once.
            self.check_endpoint(spec)?;
        }
        let order = SyncVolumeOrder {
            state: self.core.host.state_text(),
            volume: record.id.clone(),
            choice,
            credentials: self.credentials(record, spec)?,
            settings: self.config.connections.clone(),
        };
        let program = self.core.host.program().map(ToOwned::to_owned);
        // Also when whoever asked goes away: what has begun comes to an end, and is reaped.
        let answer = tokio::spawn(async move {
            let role = SupervisorRole::SyncVolume;
            carried_out::<_, SyncVolumeAnswer>(program.as_deref(), role, &order).await
        });
        let answer = answer.await.map_err(std::io::Error::other).flatten();
        let answer = answer.map_err(DaemonError::host("synchronise a volume"))?;
        match answer.failure {
            None => Ok(answer.report),
            Some(failure) => Err(DaemonError::NotSynchronised {
                // It may name what is on the host.
                message: match failure.kind {
                    ErrorKind::Internal => "the volume or its bucket cannot be used".to_owned(),
                    _ => failure.message,
                },
                kind: failure.kind,
                hint: failure.hint,
            }),
        }
    }

    /// The credentials that the daemon has; others are read by who synchronises.
    fn credentials(&self, record: &VolumeRecord, spec: &BucketSpec) -> Result<Option<SecretValue>, DaemonError> {
        match &spec.credentials {
            Some(BucketSecret::Named(secret)) => self.secrets.value(&record.owner, secret).map(Some),
            // Its variables are not passed on.
            Some(BucketSecret::Source(SecretSource::Variable(variable))) => {
                let value = std::env::var(variable).ok();
                let value = value.and_then(|value| SecretValue::new(value.into_bytes()).ok());
                let missing = || DaemonError::invalid("bucket", "its credentials are in no variable of the server");
                value.ok_or_else(missing).map(Some)
            }
            Some(BucketSecret::Source(SecretSource::File(_))) | None => Ok(None),
        }
    }
}
