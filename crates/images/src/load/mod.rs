//! Loads images from files: what `docker save` writes, and layouts of OCI as archives or directories.
//!
//! The files may be of somebody hostile: they are read by name below one directory or out of one archive, bounded, and
//! each part has to have the digest that it is named by.

mod archive;
mod directory;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use self::archive::ArchiveLimits;
use crate::digest::ImageDigest;
use crate::error::ImageError;
use crate::manifest::{
    Descriptor, ImageConfig, ImageManifest, MAX_CONFIG, MAX_LAYER, MAX_LAYERS, MAX_MANIFEST, ManifestDocument,
    OCI_CONFIG, OCI_LAYER, OCI_MANIFEST, of_this_platform,
};
use crate::progress::ImageProgress;
use crate::reference::ImageReference;
use crate::store::{IdNamespace, ImageRecord, ImageStore};
use crate::unpack::LayerOwnership;

/// How many images a file may hold.
const MAX_IMAGES: usize = 100;
const FULL_NAME: &str = "io.containerd.image.name";
const SHORT_NAME: &str = "org.opencontainers.image.ref.name";

/// Where images are loaded from.
pub enum LoadSource {
    /// A directory with a layout of OCI.
    Directory(PathBuf),
    /// An archive, compressed or not.
    Archive(Box<dyn Read>),
}

impl std::fmt::Debug for LoadSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Directory(path) => f.debug_tuple("Directory").field(path).finish(),
            Self::Archive(_) => f.write_str("Archive"),
        }
    }
}

/// How images are loaded.
#[derive(Debug, Clone)]
pub struct LoadOrder {
    /// The name of the image, whatever the file says.
    pub name: Option<ImageReference>,
    /// What an image is called of which the file says a tag alone.
    pub stem: Option<String>,
    /// The form in which it is unpacked at once.
    pub ownership: LayerOwnership,
}

/// The parts of a file, by their names.
trait LayoutParts {
    fn has(&self, name: &str) -> bool;
    /// A small part.
    fn read(&mut self, name: &str, limit: u64) -> Result<Vec<u8>, ImageError>;
    /// Takes a part into the store; answers its digest and size.
    fn keep(
        &mut self,
        store: &ImageStore,
        what: &'static str,
        name: &str,
        expected: Option<&Descriptor>,
    ) -> Result<(ImageDigest, u64), ImageError>;
}

/// An image that a file holds, whose parts are in the store.
struct LoadedImage {
    name: Option<ImageReference>,
    digest: ImageDigest,
    index: Option<ImageDigest>,
    manifest: ImageManifest,
    /// The manifest as it is kept once its layers are what it says.
    bytes: Vec<u8>,
}

impl ImageStore {
    /// Loads the images of a file.
    ///
    /// # Errors
    /// When it holds none, or one that is malformed or not for this machine.
    pub fn load(
        &self,
        source: LoadSource,
        order: &LoadOrder,
        ids: &dyn IdNamespace,
        progress: &dyn ImageProgress,
    ) -> Result<Vec<ImageRecord>, ImageError> {
        let _adding = self.lock_for_adding()?;
        let mut parts: Box<dyn LayoutParts> = match source {
            LoadSource::Directory(path) => Box::new(directory::LayoutDirectory::open(&path)?),
            LoadSource::Archive(archive) => {
                Box::new(archive::StagedArchive::read(self, archive, ArchiveLimits::default())?)
            }
        };
        let mut loaded = match (parts.has("index.json"), parts.has("manifest.json")) {
            (true, _) => self.load_layout(&mut *parts, order)?,
            (false, true) => self.load_saved(&mut *parts)?,
            (false, false) => {
                let reason = "it has neither `index.json` nor `manifest.json`";
                return Err(ImageError::malformed("the file", reason));
            }
        };
        match (&order.name, loaded.as_mut_slice()) {
            (Some(name), [one]) => one.name = Some(name.clone()),
            (Some(_), several) => {
                let reason = format!("it holds {} images, which cannot all have one name", several.len());
                return Err(ImageError::malformed("the file", reason));
            }
            (None, _) => {}
        }
        for image in &loaded {
            let bytes = self.read_blob("the configuration", &image.manifest.config.digest, MAX_CONFIG)?;
            let config = ImageConfig::read(&bytes, image.manifest.layers.len())?;
            self.unpack_layers(&image.manifest, &config, order.ownership, ids, progress)?;
            self.verify_layers(&image.manifest, &config)?;
            self.write_blob(&image.digest, &image.bytes)?;
        }
        let named = loaded.into_iter().map(|image| {
            let record = ImageRecord::new(image.name, image.digest, image.index, &image.manifest);
            self.name_image(&record).map(|()| record)
        });
        named.collect()
    }

    /// A layout of OCI (OCI image layout specification).
    fn load_layout(&self, parts: &mut dyn LayoutParts, order: &LoadOrder) -> Result<Vec<LoadedImage>, ImageError> {
        let bytes = parts.read("index.json", MAX_MANIFEST)?;
        let ManifestDocument::Index(index) = ManifestDocument::read(&bytes, None)? else {
            return Err(ImageError::malformed("the index", "it is of one image"));
        };
        let mut by_name: BTreeMap<Option<ImageReference>, Vec<Descriptor>> = BTreeMap::new();
        for descriptor in index {
            by_name.entry(name_of(&descriptor, order)).or_default().push(descriptor);
        }
        if by_name.len() > MAX_IMAGES {
            return Err(ImageError::malformed(
                "the index",
                format!("it names more than {MAX_IMAGES} images"),
            ));
        }
        let mut loaded = Vec::new();
        for (name, descriptors) in by_name {
            let chosen = match descriptors.as_slice() {
                [one] => one,
                several => of_this_platform(several)?,
            };
            loaded.push(self.load_named(parts, name, chosen)?);
        }
        Ok(loaded)
    }

    fn load_named(
        &self,
        parts: &mut dyn LayoutParts,
        name: Option<ImageReference>,
        named: &Descriptor,
    ) -> Result<LoadedImage, ImageError> {
        let (bytes, document) = read_document(parts, named)?;
        let (digest, bytes, manifest, index) = match document {
            ManifestDocument::Image(manifest) => (named.digest, bytes, manifest, None),
            ManifestDocument::Index(index) => {
                let chosen = of_this_platform(&index)?;
                match read_document(parts, chosen)? {
                    (bytes, ManifestDocument::Image(manifest)) => (chosen.digest, bytes, manifest, Some(named.digest)),
                    _ => return Err(ImageError::malformed("the index", "it names another index")),
                }
            }
        };
        let config = &manifest.config;
        parts.keep(self, "the configuration", &blob_name(&config.digest), Some(config))?;
        for layer in &manifest.layers {
            if !self.has_blob(&layer.digest) {
                parts.keep(self, "a layer", &blob_name(&layer.digest), Some(layer))?;
            }
        }
        Ok(LoadedImage {
            name,
            digest,
            index,
            manifest,
            bytes,
        })
    }

    /// What `docker save` wrote before it wrote layouts, and still writes beside them.
    fn load_saved(&self, parts: &mut dyn LayoutParts) -> Result<Vec<LoadedImage>, ImageError> {
        #[derive(serde::Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct SavedImage {
            config: String,
            repo_tags: Option<Vec<String>>,
            layers: Vec<String>,
        }
        let bytes = parts.read("manifest.json", MAX_MANIFEST)?;
        let saved: Vec<SavedImage> =
            serde_json::from_slice(&bytes).map_err(|error| ImageError::malformed("`manifest.json`", error))?;
        if saved.len() > MAX_IMAGES {
            return Err(ImageError::malformed(
                "`manifest.json`",
                format!("it names more than {MAX_IMAGES} images"),
            ));
        }
        let mut loaded = Vec::new();
        for image in saved {
            if image.layers.len() > MAX_LAYERS {
                return Err(ImageError::TooManyLayers {
                    found: image.layers.len(),
                    limit: MAX_LAYERS,
                });
            }
            let config = parts.read(&image.config, MAX_CONFIG)?;
            ImageConfig::read(&config, image.layers.len())?;
            let config_digest = ImageDigest::of(&config);
            self.write_blob(&config_digest, &config)?;
            let descriptor = |media_type: &str, digest, size: u64| {
                let size = i64::try_from(size).map_err(|_| ImageError::TooLarge {
                    what: "a layer",
                    found: size,
                    limit: MAX_LAYER,
                })?;
                Ok::<_, ImageError>(Descriptor {
                    media_type: media_type.to_owned(),
                    digest,
                    size,
                    platform: None,
                    annotations: None,
                })
            };
            let mut layers = Vec::new();
            for layer in &image.layers {
                let (digest, size) = parts.keep(self, "a layer", layer, None)?;
                layers.push(descriptor(OCI_LAYER, digest, size)?);
            }
            let manifest = ImageManifest {
                schema_version: 2,
                media_type: OCI_MANIFEST.to_owned(),
                config: descriptor(OCI_CONFIG, config_digest, config.len() as u64)?,
                layers,
            };
            let bytes = serde_json::to_vec(&manifest).map_err(|error| ImageError::malformed("the manifest", error))?;
            let digest = ImageDigest::of(&bytes);
            let names = image.repo_tags.unwrap_or_default();
            let mut names: Vec<Option<ImageReference>> = names.iter().map(|name| name.parse().ok()).collect();
            names.retain(Option::is_some);
            if names.is_empty() {
                names.push(None);
            }
            if loaded.len() + names.len() > MAX_IMAGES {
                return Err(ImageError::malformed(
                    "`manifest.json`",
                    format!("it gives more than {MAX_IMAGES} names"),
                ));
            }
            loaded.extend(names.into_iter().map(|name| LoadedImage {
                name,
                digest,
                index: None,
                manifest: manifest.clone(),
                bytes: bytes.clone(),
            }));
        }
        match loaded.is_empty() {
            true => Err(ImageError::malformed("the file", "it holds no image")),
            false => Ok(loaded),
        }
    }
}

fn read_document(parts: &mut dyn LayoutParts, named: &Descriptor) -> Result<(Vec<u8>, ManifestDocument), ImageError> {
    named.check("the manifest", MAX_MANIFEST)?;
    let bytes = parts.read(&blob_name(&named.digest), MAX_MANIFEST)?;
    crate::store::check_digest("the manifest", &named.digest, &bytes)?;
    let sent_as = Some(named.media_type.as_str()).filter(|kind| !kind.is_empty());
    let document = ManifestDocument::read(&bytes, sent_as)?;
    Ok((bytes, document))
}

fn blob_name(digest: &ImageDigest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

/// What the index calls an image; of many tools that is a tag alone.
fn name_of(descriptor: &Descriptor, order: &LoadOrder) -> Option<ImageReference> {
    let annotations = descriptor.annotations.as_ref()?;
    if let Some(name) = annotations.get(FULL_NAME).and_then(|name| name.parse().ok()) {
        return Some(name);
    }
    let short = annotations.get(SHORT_NAME)?;
    if short.contains([':', '/']) {
        return short.parse().ok();
    }
    format!("localhost/{}:{short}", order.stem.as_ref()?).parse().ok()
}

/// What images of the file are called that have a tag alone, after the file's own name.
pub fn stem_of(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?.to_ascii_lowercase();
    let name = name.split(".tar").next().unwrap_or_default();
    let kept = name.chars().map(|character| {
        if character.is_ascii_alphanumeric() {
            character
        } else {
            '-'
        }
    });
    let stem = kept.collect::<String>().trim_matches('-').to_owned();
    (!stem.is_empty()).then_some(stem)
}

#[cfg(test)]
mod tests;
