//! Images that callers ask for: whether they may, whether they are here, and pulled where the owner lets that be done.
//!
//! Pulling and unpacking takes a process with one thread, which is another one of our own program; whoever asks for the same
//! image meanwhile waits for the same one. Sandboxes keep their images by themselves: their supervisors, which outlive the
//! daemon, have locks on them. Deliberately not here: how images are kept (`images`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use offleash_core::error::ErrorKind;
use offleash_images::{HeldImage, ImageError, ImageReference, ImageStore, RegistrySettings};
use offleash_supervisor::images::{FetchAnswer, FetchOrder};
use offleash_supervisor::roles::SupervisorRole;
use tokio::sync::watch;

use crate::caller::Caller;
use crate::config::{ImageRule, ImagesConfig, PullMode};
use crate::error::DaemonError;
use crate::host::SandboxHost;
use crate::jobs::blocking;
use crate::one_order::carried_out;

/// After how long a create may be tried again whose image is being pulled. E2B's SDKs have a minute for all tries of a request.
const RETRY_AFTER: Duration = Duration::from_secs(20);
/// How long nothing is pulled after a failure: who asks again and again does not pull again and again.
const AFTER_FAILURE: Duration = Duration::from_secs(10);
/// How long one pull may take. Nobody who names a slow registry is to hold a place for ever.
const PULL_TIMEOUT: Duration = Duration::from_secs(3600);
/// How many images are pulled or unpacked at a time.
const MAX_FETCHING: usize = 4;
/// How many names are remembered that could not be pulled.
const MAX_FAILURES: usize = 1_000;

/// The images of the state directory, and what is being pulled.
#[derive(Debug)]
pub(crate) struct ImageService {
    host: Arc<SandboxHost>,
    config: ImagesConfig,
    fetches: Arc<Mutex<FetchTable>>,
}

#[derive(Debug, Default)]
struct FetchTable {
    /// Those that go on, by what was asked for; what is sent is that it has ended.
    going_on: BTreeMap<String, watch::Receiver<bool>>,
    /// Why those came to nothing that ended lately.
    failed: BTreeMap<String, FetchFailure>,
    /// Digests of images that are unpacked as sandboxes need it.
    ready: BTreeSet<String>,
}

#[derive(Debug, Clone)]
struct FetchFailure {
    at: Instant,
    kind: ErrorKind,
    message: String,
    hint: Option<String>,
    is_about_image: bool,
}

impl ImageService {
    pub(crate) fn new(host: Arc<SandboxHost>, config: ImagesConfig) -> Self {
        Self {
            host,
            config,
            fetches: Arc::default(),
        }
    }

    fn fetches(&self) -> MutexGuard<'_, FetchTable> {
        lock(&self.fetches)
    }

    /// What the owner lets the caller do with images.
    fn rule(&self, caller: &Caller) -> &ImageRule {
        self.config.keys.get(&caller.key_id).unwrap_or(&self.config.rule)
    }

    /// Finds the image that `name` means for a caller, has it pulled where it is not here and may be, and unpacked.
    ///
    /// # Errors
    /// `Invalid`, `ImageNotAllowed`, `UnknownImage`, `ImageFetching`, `ImageFailed`, `Images`.
    pub(crate) async fn ready(&self, caller: &Caller, name: &str) -> Result<HeldImage, DaemonError> {
        let rule = self.rule(caller);
        let may_use = |image: Option<&ImageReference>| caller.is_owner() || rule.allows(image);
        let until = tokio::time::Instant::now() + self.config.wait;
        loop {
            let unknown = || DaemonError::UnknownImage { name: name.to_owned() };
            let (wanted, pulls) = match self.hold(name).await {
                // By an id, images could be found that are not to be known of.
                Ok(held) if !may_use(held.name.as_ref()) => {
                    let is_named = name.parse::<ImageReference>().ok() == held.name;
                    return Err(if is_named { not_allowed(name) } else { unknown() });
                }
                Ok(held) if self.fetches().ready.contains(&held.digest.to_string()) => return Ok(held),
                Ok(held) => (held.digest.to_string(), false),
                Err(ImageError::Missing { .. }) => {
                    let Ok(reference) = name.parse::<ImageReference>() else {
                        return Err(unknown());
                    };
                    if !may_use(Some(&reference)) {
                        return Err(not_allowed(name));
                    }
                    match rule.pull {
                        PullMode::Never => return Err(unknown()),
                        PullMode::Missing => (reference.to_string(), true),
                    }
                }
                Err(ImageError::Reference(error)) => return Err(DaemonError::invalid("image", error.to_string())),
                Err(error) => return Err(error.into()),
            };
            let mut ended = self.fetch_of(&wanted, pulls)?;
            let waited = tokio::time::timeout_at(until, ended.wait_for(|ended| *ended)).await;
            if waited.is_err() {
                return Err(DaemonError::ImageFetching {
                    name: name.to_owned(),
                    retry_after: RETRY_AFTER,
                });
            }
        }
    }

    /// The image that a sandbox is of, whatever its name means now, and whoever may use it now.
    ///
    /// # Errors
    /// `Images`.
    pub(crate) async fn pinned(&self, name: &str, digest: &str) -> Result<HeldImage, DaemonError> {
        let (store, pinned) = (self.store()?, digest.to_owned());
        let held = blocking("find an image", move || store.hold_digest(&pinned)).await??;
        Ok(HeldImage {
            name: name.parse().ok(),
            ..held
        })
    }

    /// The image of this digest that was called `name` and has any name here, for a caller who may use what is called so.
    ///
    /// # Errors
    /// `MissingOrigin`, `ImageNotAllowed`, `Images`.
    pub(crate) async fn of_digest(&self, caller: &Caller, name: &str, digest: &str) -> Result<HeldImage, DaemonError> {
        let reference = name.parse::<ImageReference>().ok();
        if !caller.is_owner() && !self.rule(caller).allows(reference.as_ref()) {
            return Err(not_allowed(name));
        }
        match self.hold(digest).await {
            Ok(held) => Ok(HeldImage {
                name: reference,
                ..held
            }),
            Err(ImageError::Missing { .. } | ImageError::MissingBlob { .. } | ImageError::Reference(_)) => {
                Err(DaemonError::MissingOrigin {
                    image: name.to_owned(),
                    digest: digest.to_owned(),
                })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The image that a caller wants to build upon, and how registries are reached if it may be pulled for it.
    ///
    /// # Errors
    /// `Invalid`, `ImageNotAllowed`.
    pub(crate) fn check(
        &self,
        caller: &Caller,
        name: &str,
    ) -> Result<(ImageReference, Option<RegistrySettings>), DaemonError> {
        let reference: ImageReference = name
            .parse()
            .map_err(|error: offleash_images::ReferenceError| DaemonError::invalid("fromImage", error.to_string()))?;
        let rule = self.rule(caller);
        if !caller.is_owner() && !rule.allows(Some(&reference)) {
            return Err(not_allowed(name));
        }
        let registries = match rule.pull {
            PullMode::Never => None,
            PullMode::Missing => Some(self.config.registries.clone()),
        };
        Ok((reference, registries))
    }

    fn store(&self) -> Result<ImageStore, ImageError> {
        ImageStore::open(self.host.state())
    }

    async fn hold(&self, name: &str) -> Result<HeldImage, ImageError> {
        let (store, name) = (self.store()?, name.to_owned());
        let held = blocking("find an image", move || store.hold_image(&name)).await;
        held.unwrap_or(Err(ImageError::Busy { doing: "ends" }))
    }

    /// The fetch that goes on, to be told of its end; begins one unless one has failed lately.
    fn fetch_of(&self, wanted: &str, pulls: bool) -> Result<watch::Receiver<bool>, DaemonError> {
        let mut fetches = self.fetches();
        if let Some(ended) = fetches.going_on.get(wanted) {
            return Ok(ended.clone());
        }
        fetches.failed.retain(|_, failure| failure.at.elapsed() < AFTER_FAILURE);
        if let Some(failure) = fetches.failed.get(wanted) {
            return Err(DaemonError::ImageFailed {
                name: wanted.to_owned(),
                kind: failure.kind,
                message: failure.message.clone(),
                hint: failure.hint.clone(),
                is_about_image: failure.is_about_image,
            });
        }
        if fetches.going_on.len() >= MAX_FETCHING {
            return Err(DaemonError::Overloaded {
                what: "images that are being pulled",
                retry_after: Duration::from_secs(1),
            });
        }
        let (ending, ended) = watch::channel(false);
        fetches.going_on.insert(wanted.to_owned(), ended.clone());
        drop(fetches);
        let order = FetchOrder {
            state: self.host.state_text(),
            name: wanted.to_owned(),
            pull: pulls.then(|| RegistrySettings {
                pull_timeout: Some(PULL_TIMEOUT),
                ..self.config.registries.clone()
            }),
        };
        let (table, program) = (Arc::clone(&self.fetches), self.host.program().map(ToOwned::to_owned));
        tokio::spawn(async move {
            let role = SupervisorRole::FetchImage;
            let fetched = carried_out(program.as_deref(), role, &order).await;
            lock(&table).note_end(&order.name, fetched);
            ending.send_replace(true);
        });
        Ok(ended)
    }
}

impl FetchTable {
    fn note_end(&mut self, wanted: &str, fetched: std::io::Result<FetchAnswer>) {
        self.going_on.remove(wanted);
        let failure = match fetched {
            Ok(FetchAnswer::Ready { digest }) => {
                self.ready.insert(digest);
                return;
            }
            Ok(FetchAnswer::Failed {
                kind,
                message,
                hint,
                is_about_image,
            }) => FetchFailure {
                at: Instant::now(),
                kind,
                message,
                hint,
                is_about_image,
            },
            Err(error) => FetchFailure {
                at: Instant::now(),
                kind: ErrorKind::Internal,
                message: format!("the process that does it came to nothing: {error}"),
                hint: None,
                is_about_image: false,
            },
        };
        if self.failed.len() >= MAX_FAILURES {
            self.failed.pop_first();
        }
        self.failed.insert(wanted.to_owned(), failure);
    }
}

fn lock(table: &Mutex<FetchTable>) -> MutexGuard<'_, FetchTable> {
    // Whoever holds it does one thing to it.
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

fn not_allowed(name: &str) -> DaemonError {
    DaemonError::ImageNotAllowed { name: name.to_owned() }
}
