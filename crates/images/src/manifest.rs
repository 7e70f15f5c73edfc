//! The documents of an image: index, manifest, configuration. Nothing of them is believed that is not checked here.

use std::collections::BTreeMap;

use offleash_core::processor::ImagePlatform;

use crate::digest::ImageDigest;
use crate::error::ImageError;

/// The largest manifest or index (what registries themselves take).
pub(crate) const MAX_MANIFEST: u64 = 4 << 20;
/// The largest configuration.
pub(crate) const MAX_CONFIG: u64 = 8 << 20;
/// The largest layer, as it is sent.
pub(crate) const MAX_LAYER: u64 = 64 << 30;
/// More layers do not fit the options of an overlay.
pub(crate) const MAX_LAYERS: usize = 80;

const INDEXES: [&str; 2] = [
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
];
const MANIFESTS: [&str; 2] = [OCI_MANIFEST, "application/vnd.docker.distribution.manifest.v2+json"];
pub(crate) const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIGS: [&str; 2] = [OCI_CONFIG, "application/vnd.docker.container.image.v1+json"];
pub(crate) const OCI_CONFIG: &str = "application/vnd.oci.image.config.v1+json";
/// Compressed or not is seen from what they begin with.
const LAYERS: [&str; 7] = [
    OCI_LAYER,
    "application/vnd.oci.image.layer.v1.tar+gzip",
    "application/vnd.oci.image.layer.v1.tar+zstd",
    "application/vnd.docker.image.rootfs.diff.tar",
    "application/vnd.docker.image.rootfs.diff.tar.gzip",
    "application/vnd.docker.image.rootfs.diff.tar.zstd",
    "application/vnd.docker.container.image.rootfs.diff+x-gtar",
];
pub(crate) const OCI_LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
const SCHEMA_ONE: &str = "application/vnd.docker.distribution.manifest.v1+";

/// What a registry is asked to answer with.
pub(crate) fn accepted() -> String {
    [INDEXES, MANIFESTS].concat().join(", ")
}

/// What names a part of an image.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    #[serde(default)]
    pub(crate) media_type: String,
    pub(crate) digest: ImageDigest,
    pub(crate) size: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) platform: Option<Platform>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) annotations: Option<BTreeMap<String, String>>,
}

/// What a part is for.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Platform {
    #[serde(default)]
    os: String,
    #[serde(default)]
    architecture: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    variant: Option<String>,
}

/// The manifest of one image.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ImageManifest {
    pub(crate) schema_version: u32,
    #[serde(default)]
    pub(crate) media_type: String,
    pub(crate) config: Descriptor,
    pub(crate) layers: Vec<Descriptor>,
}

/// What a manifest's address leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ManifestDocument {
    Image(ImageManifest),
    Index(Vec<Descriptor>),
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct AnyDocument {
    schema_version: Option<u32>,
    media_type: Option<String>,
    manifests: Option<serde_json::Value>,
    config: Option<serde_json::Value>,
    layers: Option<serde_json::Value>,
}

impl ManifestDocument {
    /// Reads a document that was sent as `sent_as`, if that was said.
    pub(crate) fn read(bytes: &[u8], sent_as: Option<&str>) -> Result<Self, ImageError> {
        const WHAT: &str = "the manifest";
        let malformed = |error: serde_json::Error| ImageError::malformed(WHAT, error);
        let any: AnyDocument = serde_json::from_slice(bytes).map_err(malformed)?;
        let sent_as = sent_as.map(|sent_as| sent_as.split(';').next().unwrap_or_default().trim());
        let own = any.media_type.as_deref().filter(|own| !own.is_empty());
        if any.schema_version == Some(1) || own.or(sent_as).is_some_and(|kind| kind.starts_with(SCHEMA_ONE)) {
            return Err(ImageError::SchemaOne);
        }
        let is_known = |kind: &str| INDEXES.contains(&kind) || MANIFESTS.contains(&kind);
        if let (Some(own), Some(sent_as)) = (own, sent_as)
            && own != sent_as
            && is_known(sent_as)
        {
            let reason = format!("it was sent as `{sent_as}` and says that it is `{own}`");
            return Err(ImageError::malformed(WHAT, reason));
        }
        let is_index = any.manifests.is_some();
        if is_index && (any.config.is_some() || any.layers.is_some()) {
            return Err(ImageError::malformed(WHAT, "it is of one image and a list of several"));
        }
        let kind = own.or(sent_as.filter(|kind| is_known(kind)));
        match kind {
            Some(kind) if INDEXES.contains(&kind) && is_index => {}
            Some(kind) if MANIFESTS.contains(&kind) && !is_index => {}
            None if is_index || any.layers.is_some() => {}
            Some(kind) if is_known(kind) => {
                return Err(ImageError::malformed(WHAT, "it does not hold what its kind must"));
            }
            kind => {
                return Err(ImageError::UnknownMediaType {
                    what: WHAT,
                    media_type: kind.or(sent_as).unwrap_or_default().to_owned(),
                });
            }
        }
        if let Some(manifests) = any.manifests {
            return Ok(Self::Index(serde_json::from_value(manifests).map_err(malformed)?));
        }
        let manifest: ImageManifest = serde_json::from_slice(bytes).map_err(malformed)?;
        manifest.check()?;
        Ok(Self::Image(manifest))
    }
}

impl ImageManifest {
    fn check(&self) -> Result<(), ImageError> {
        if !CONFIGS.contains(&self.config.media_type.as_str()) {
            return Err(ImageError::UnknownMediaType {
                what: "the configuration",
                media_type: self.config.media_type.clone(),
            });
        }
        self.config.check("the configuration", MAX_CONFIG)?;
        if self.layers.len() > MAX_LAYERS {
            return Err(ImageError::TooManyLayers {
                found: self.layers.len(),
                limit: MAX_LAYERS,
            });
        }
        for layer in &self.layers {
            if !LAYERS.contains(&layer.media_type.as_str()) {
                return Err(ImageError::UnknownMediaType {
                    what: "a layer",
                    media_type: layer.media_type.clone(),
                });
            }
            layer.check("a layer", MAX_LAYER)?;
        }
        Ok(())
    }

    /// What it is; that is not always said.
    pub(crate) fn media_type(&self) -> &str {
        match self.media_type.as_str() {
            "" => OCI_MANIFEST,
            said => said,
        }
    }

    /// Bytes of configuration and layers, as they are sent.
    pub(crate) fn bytes(&self) -> u64 {
        let sizes = self.layers.iter().map(Descriptor::bytes);
        sizes.fold(self.config.bytes(), u64::saturating_add)
    }
}

impl Descriptor {
    pub(crate) fn check(&self, what: &'static str, limit: u64) -> Result<(), ImageError> {
        match u64::try_from(self.size) {
            Err(_) => Err(ImageError::malformed(what, "its size is negative")),
            Ok(found) if found > limit => Err(ImageError::TooLarge { what, found, limit }),
            Ok(_) => Ok(()),
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        u64::try_from(self.size).unwrap_or(0)
    }
}

/// The part of an index that is for this machine.
pub(crate) fn of_this_platform(index: &[Descriptor]) -> Result<&Descriptor, ImageError> {
    of_platform(index, ImagePlatform::OURS)
}

fn of_platform(index: &[Descriptor], ours: ImagePlatform) -> Result<&Descriptor, ImageError> {
    let named = |descriptor: &Descriptor| {
        let platform = descriptor.platform.as_ref()?;
        Some(format!("{}/{}", platform.os, platform.architecture))
    };
    let is_ours = |descriptor: &&Descriptor| named(descriptor).is_some_and(|named| named == ours.name);
    // Variants are of later processors; the plain one, if there is one, runs on all.
    let plain = index.iter().filter(is_ours).find(|descriptor| {
        let variant = descriptor
            .platform
            .as_ref()
            .and_then(|platform| platform.variant.as_deref());
        matches!(variant, None | Some("")) || variant == Some(ours.least_variant)
    });
    let alone = match index {
        [one] if one.platform.is_none() => Some(one),
        _ => None,
    };
    let chosen = plain.or_else(|| index.iter().find(is_ours)).or(alone);
    let chosen = chosen.ok_or_else(|| {
        let mut found: Vec<String> = index
            .iter()
            .filter_map(named)
            .filter(|name| name != "unknown/unknown")
            .collect();
        found.sort();
        found.dedup();
        match found.as_slice() {
            [] => ImageError::malformed("the index", "it names no image"),
            _ => ImageError::OtherPlatform { found, ours },
        }
    })?;
    chosen.check("the manifest", MAX_MANIFEST)?;
    Ok(chosen)
}

/// How an image's programs are started, and what else its configuration says.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ImageConfig {
    /// Variables.
    pub env: Vec<(String, String)>,
    /// What every command of it begins with.
    pub entrypoint: Vec<String>,
    /// What follows where the user says nothing else.
    pub command: Vec<String>,
    /// The directory in which it starts; empty for the root.
    pub working_directory: String,
    /// The user as whom it starts: a name or an id, with or without a group; empty for the superuser.
    pub user: String,
    /// What its authors wrote down.
    pub labels: BTreeMap<String, String>,
    /// When it was made, as it says.
    pub created: Option<String>,
    /// The digests of its layers without compression, the lowest first.
    pub diff_ids: Vec<ImageDigest>,
}

#[derive(serde::Deserialize)]
struct ConfigDocument {
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    os: String,
    created: Option<String>,
    config: Option<ProcessConfig>,
    rootfs: RootLayers,
}

#[derive(serde::Deserialize)]
struct RootLayers {
    diff_ids: Option<Vec<ImageDigest>>,
}

#[derive(Default, serde::Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ProcessConfig {
    user: Option<String>,
    env: Option<Vec<String>>,
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
    working_dir: Option<String>,
    labels: Option<BTreeMap<String, String>>,
}

impl ImageConfig {
    /// Reads the configuration of an image with so many layers.
    pub(crate) fn read(bytes: &[u8], layers: usize) -> Result<Self, ImageError> {
        const WHAT: &str = "the configuration";
        let document: ConfigDocument =
            serde_json::from_slice(bytes).map_err(|error| ImageError::malformed(WHAT, error))?;
        let platform = format!("{}/{}", document.os, document.architecture);
        let ours = ImagePlatform::OURS;
        if platform != ours.name && platform != "/" {
            let found = vec![platform];
            return Err(ImageError::OtherPlatform { found, ours });
        }
        let diff_ids = document.rootfs.diff_ids.unwrap_or_default();
        if diff_ids.len() != layers {
            let reason = format!("it names {} layers, and the manifest {layers}", diff_ids.len());
            return Err(ImageError::malformed(WHAT, reason));
        }
        let process = document.config.unwrap_or_default();
        let env = process.env.unwrap_or_default();
        let texts = [&process.entrypoint, &process.cmd]
            .into_iter()
            .flatten()
            .flatten()
            .chain(&env);
        if texts
            .chain(&process.user)
            .chain(&process.working_dir)
            .any(|text| text.contains('\0'))
        {
            return Err(ImageError::malformed(WHAT, "a NUL byte where none may be"));
        }
        let split = |variable: String| match variable.split_once('=') {
            Some(("", _)) | None => None,
            Some((name, value)) => Some((name.to_owned(), value.to_owned())),
        };
        Ok(Self {
            env: env.into_iter().filter_map(split).collect(),
            entrypoint: process.entrypoint.unwrap_or_default(),
            command: process.cmd.unwrap_or_default(),
            working_directory: process.working_dir.unwrap_or_default(),
            user: process.user.unwrap_or_default(),
            labels: process.labels.unwrap_or_default(),
            created: document.created,
            diff_ids,
        })
    }
}

impl ImageConfig {
    /// The document that says this.
    pub(crate) fn document(&self) -> Result<Vec<u8>, ImageError> {
        let env: Vec<String> = self.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let document = serde_json::json!({
            "architecture": ImagePlatform::OURS.architecture,
            "os": "linux",
            "created": self.created,
            "config": {
                "User": self.user,
                "Env": env,
                "Entrypoint": self.entrypoint,
                "Cmd": self.command,
                "WorkingDir": self.working_directory,
                "Labels": self.labels,
            },
            "rootfs": { "type": "layers", "diff_ids": self.diff_ids },
        });
        let bytes = serde_json::to_vec(&document).map_err(|error| ImageError::malformed("the configuration", error))?;
        // Whoever opens it reads it by the same rules.
        Self::read(&bytes, self.diff_ids.len()).map(|_| bytes)
    }
}

#[cfg(test)]
mod tests;
