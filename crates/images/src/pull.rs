//! Pulls an image: what is missing of it is fetched, unpacked, and only then it has its name.

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};

use crate::digest::ImageDigest;
use crate::error::ImageError;
use crate::manifest::{Descriptor, ImageConfig, MAX_CONFIG};
use crate::progress::{ImageProgress, ProgressStep};
use crate::reference::ImageReference;
use crate::registry::{Connector, FetchedManifest, RegistrySettings, Repository};
use crate::store::{IdNamespace, ImageRecord, ImageStore, KeptName};
use crate::unpack::LayerOwnership;

/// How a pull is done.
#[derive(Debug, Clone)]
pub struct PullOrder {
    /// How registries are reached.
    pub settings: RegistrySettings,
    /// The form in which it is unpacked at once.
    pub ownership: LayerOwnership,
    /// What it is kept by instead of its name, so that nobody finds it by that.
    pub kept: Option<KeptName>,
}

/// What came of a pull.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PulledImage {
    /// What its name means now.
    pub record: ImageRecord,
    /// Whether the name meant the same before.
    pub was_current: bool,
}

impl ImageStore {
    /// Pulls an image. The calling process must have one thread.
    ///
    /// # Errors
    /// What the registry says or does not say; what is wrong with what it sent. What came of blobs is kept, and a next pull
    /// goes on from there.
    pub fn pull(
        &self,
        reference: &ImageReference,
        order: &PullOrder,
        ids: &dyn IdNamespace,
        progress: &dyn ImageProgress,
    ) -> Result<PulledImage, ImageError> {
        let _adding = self.lock_for_adding()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| ImageError::file("beginning a pull into", &self.path)(error))?;
        let fetched = runtime.block_on(self.fetch_in_time(reference, &order.settings, progress))?;
        // Unpacking may take a process of its own, which is made of one with a single thread.
        drop(runtime);
        let FetchedManifest {
            digest,
            bytes,
            manifest,
            index,
        } = fetched;
        let config = self.read_blob("the configuration", &manifest.config.digest, MAX_CONFIG)?;
        let config = ImageConfig::read(&config, manifest.layers.len())?;
        self.unpack_layers(&manifest, &config, order.ownership, ids, progress)?;
        self.verify_layers(&manifest, &config)?;
        self.write_blob(&digest, &bytes)?;
        let record = ImageRecord::new(Some(reference.clone()), digest, index, &manifest);
        let before = self.find(&reference.to_string());
        match &order.kept {
            Some(kept) => self.keep(kept, &record.digest)?,
            None => self.name_image(&record)?,
        }
        Ok(PulledImage {
            was_current: before.is_ok_and(|before| before.digest == digest),
            record,
        })
    }

    /// A registry that sends a byte now and then is never silent.
    async fn fetch_in_time(
        &self,
        reference: &ImageReference,
        settings: &RegistrySettings,
        progress: &dyn ImageProgress,
    ) -> Result<FetchedManifest, ImageError> {
        let fetched = self.fetch(reference, settings, progress);
        let Some(limit) = settings.pull_timeout else {
            return fetched.await;
        };
        let late = |_| ImageError::Late {
            registry: reference.registry().to_owned(),
            seconds: limit.as_secs(),
        };
        tokio::time::timeout(limit, fetched).await.map_err(late)?
    }

    async fn fetch(
        &self,
        reference: &ImageReference,
        settings: &RegistrySettings,
        progress: &dyn ImageProgress,
    ) -> Result<FetchedManifest, ImageError> {
        progress.step(ProgressStep::Resolving);
        let connector = Connector::new(settings)?;
        let repositories = Repository::all_of(reference, settings, &connector)?;
        let last = repositories.len() - 1;
        for repository in &repositories[..last] {
            // A mirror that has it not, or is not there, is no reason to fail; one that lies is.
            match self.fetch_from(repository, reference, progress).await {
                Err(error) if is_about_mirror(&error) => {}
                fetched => return fetched,
            }
        }
        self.fetch_from(&repositories[last], reference, progress).await
    }

    async fn fetch_from(
        &self,
        repository: &Repository<'_>,
        reference: &ImageReference,
        progress: &dyn ImageProgress,
    ) -> Result<FetchedManifest, ImageError> {
        let fetched = repository.fetch_manifest(reference).await?;
        let config = &fetched.manifest.config;
        repository
            .fetch_blob(self, "the configuration", config, progress)
            .await?;
        // Before all the layers: it says whether the image is for this machine at all.
        let bytes = self.read_blob("the configuration", &config.digest, MAX_CONFIG)?;
        ImageConfig::read(&bytes, fetched.manifest.layers.len())?;
        let mut seen: BTreeSet<ImageDigest> = BTreeSet::new();
        let layers = fetched.manifest.layers.iter().filter(|layer| seen.insert(layer.digest));
        let queue: RefCell<VecDeque<&Descriptor>> = RefCell::new(layers.collect());
        let next = || queue.borrow_mut().pop_front();
        let fetch_some = || async {
            while let Some(layer) = next() {
                repository.fetch_blob(self, "a layer", layer, progress).await?;
            }
            Ok::<(), ImageError>(())
        };
        tokio::try_join!(fetch_some(), fetch_some(), fetch_some())?;
        Ok(fetched)
    }
}

fn is_about_mirror(error: &ImageError) -> bool {
    matches!(
        error,
        ImageError::Unreachable { .. }
            | ImageError::Unknown { .. }
            | ImageError::Stalled { .. }
            | ImageError::Status { .. }
            | ImageError::Denied { .. }
            | ImageError::NoTls { .. }
            | ImageError::MissingBlob { .. }
    )
}
