//! Writes images to an archive that `docker load`, `podman load` and [`crate::ImageStore::load`] take: a layout of OCI, with the
//! list beside it that older Dockers read.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write};

use offleash_core::processor::ImagePlatform;
use serde_json::{Value, json};

use crate::digest::ImageDigest;
use crate::error::ImageError;
use crate::manifest::ImageManifest;
use crate::store::{ImageRecord, ImageStore};
use crate::tar::{EntryKind, NewEntry, TarWriter};

/// How many images are written to one file; more are not loaded again.
const MAX_IMAGES: usize = 100;

impl ImageStore {
    /// Writes the images of these names to `out`. Nothing of them is removed meanwhile.
    ///
    /// # Errors
    /// `Missing`, `Ambiguous`, `MissingBlob`; when something cannot be read or written.
    pub fn save(&self, names: &[String], out: &mut dyn Write) -> Result<Vec<ImageRecord>, ImageError> {
        if names.len() > MAX_IMAGES {
            return Err(ImageError::TooLarge {
                what: "the list of images",
                found: names.len() as u64,
                limit: MAX_IMAGES as u64,
            });
        }
        let _adding = self.lock_for_adding()?;
        let mut images = Vec::new();
        for name in names {
            let record = self.find(name)?;
            let (manifest, _) = self.documents(&record.digest)?;
            images.push((record, manifest));
        }
        let mut saving = Saving {
            store: self,
            writer: TarWriter::new(out, u64::MAX),
            written: BTreeSet::new(),
        };
        for directory in ["blobs/", "blobs/sha256/"] {
            saving.entry(
                &NewEntry::empty(directory.as_bytes(), EntryKind::Directory),
                &mut io::empty(),
            )?;
        }
        for (record, manifest) in &images {
            saving.blob("the manifest", &record.digest)?;
            saving.blob("the configuration", &manifest.config.digest)?;
            for layer in &manifest.layers {
                saving.blob("a layer", &layer.digest)?;
            }
        }
        let mut index = Vec::new();
        for (record, manifest) in &images {
            index.push(self.indexed(record, manifest)?);
        }
        let index = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": index,
        });
        let list: Vec<Value> = images
            .iter()
            .map(|(record, manifest)| listed(record, manifest))
            .collect();
        saving.document("oci-layout", &json!({ "imageLayoutVersion": "1.0.0" }))?;
        saving.document("index.json", &index)?;
        saving.document("manifest.json", &Value::Array(list))?;
        saving.writer.finish().map_err(ImageError::writing_archive)?;
        Ok(images.into_iter().map(|(record, _)| record).collect())
    }

    /// An image as the index of a layout names it.
    fn indexed(&self, record: &ImageRecord, manifest: &ImageManifest) -> Result<Value, ImageError> {
        let path = self.blob_path(&record.digest);
        let size = std::fs::metadata(&path)
            .map_err(ImageError::file("examining", &path))?
            .len();
        let mut entry = json!({
            "mediaType": manifest.media_type(),
            "digest": record.digest,
            "size": size,
            "platform": { "os": "linux", "architecture": ImagePlatform::OURS.architecture },
        });
        if let Some(name) = &record.name {
            entry["annotations"] = json!({
                "io.containerd.image.name": name.to_string(),
                "org.opencontainers.image.ref.name": name.tag().unwrap_or_default(),
            });
        }
        Ok(entry)
    }
}

/// The same as `docker load` of older versions reads it.
fn listed(record: &ImageRecord, manifest: &ImageManifest) -> Value {
    let layers: Vec<String> = manifest.layers.iter().map(|layer| blob_name(&layer.digest)).collect();
    let tags: Vec<String> = record
        .name
        .iter()
        .filter(|name| name.digest().is_none())
        .map(crate::ImageReference::familiar)
        .collect();
    json!({ "Config": blob_name(&manifest.config.digest), "RepoTags": tags, "Layers": layers })
}

fn blob_name(digest: &ImageDigest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

struct Saving<'a> {
    store: &'a ImageStore,
    writer: TarWriter<&'a mut dyn Write>,
    written: BTreeSet<ImageDigest>,
}

impl Saving<'_> {
    fn entry(&mut self, entry: &NewEntry<'_>, contents: &mut dyn io::Read) -> Result<(), ImageError> {
        let added = self.writer.add(entry, contents);
        added.map_err(ImageError::writing_archive)
    }

    fn blob(&mut self, what: &'static str, digest: &ImageDigest) -> Result<(), ImageError> {
        if !self.written.insert(*digest) {
            return Ok(());
        }
        let path = self.store.blob_path(digest);
        let mut file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(ImageError::MissingBlob { what, digest: *digest });
            }
            opened => opened.map_err(ImageError::file("opening", &path))?,
        };
        let size = file.metadata().map_err(ImageError::file("examining", &path))?.len();
        let name = blob_name(digest);
        let entry = NewEntry {
            size,
            ..NewEntry::empty(name.as_bytes(), EntryKind::File)
        };
        self.entry(&entry, &mut file)
    }

    fn document(&mut self, name: &str, document: &Value) -> Result<(), ImageError> {
        let text = document.to_string();
        let entry = NewEntry {
            size: text.len() as u64,
            ..NewEntry::empty(name.as_bytes(), EntryKind::File)
        };
        self.entry(&entry, &mut text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::NoProgress;
    use crate::tar::testing::TarBuilder;
    use crate::{ImageReference, LayerOwnership, LoadOrder, LoadSource};

    struct NoIds;

    impl crate::IdNamespace for NoIds {
        fn run(&self, _: &mut dyn FnMut() -> io::Result<()>) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
            Err("not here".into())
        }
    }

    fn load(store: &ImageStore, bytes: Vec<u8>) -> Vec<ImageRecord> {
        let order = LoadOrder {
            name: None,
            stem: None,
            ownership: LayerOwnership::Flat,
        };
        let source = LoadSource::Archive(Box::new(io::Cursor::new(bytes)));
        store.load(source, &order, &NoIds, &NoProgress).unwrap()
    }

    #[test]
    fn what_is_saved_is_loaded_by_new_and_by_old_readers() {
        let scratch = tempfile::tempdir().unwrap();
        let store = ImageStore::at(&scratch.path().join("images")).unwrap();
        let layer = TarBuilder::default().file("file", b"text").end();
        let config = json!({
            "os": "linux", "architecture": ImagePlatform::OURS.architecture,
            "rootfs": { "type": "layers", "diff_ids": [ImageDigest::of(&layer)] },
        });
        let archive = TarBuilder::default()
            .file("c.json", config.to_string().as_bytes())
            .file("l.tar", &layer)
            .file(
                "manifest.json",
                br#"[{"Config":"c.json","RepoTags":["box:1"],"Layers":["l.tar"]}]"#,
            );
        let first = load(&store, archive.end()).remove(0);
        let second: ImageReference = "localhost/second:2".parse().unwrap();
        store.tag("box:1", &second).unwrap();
        let mut saved = Vec::new();
        store
            .save(&["box:1".to_owned(), "localhost/second:2".to_owned()], &mut saved)
            .unwrap();
        let other = ImageStore::at(&scratch.path().join("other")).unwrap();
        let names: Vec<_> = load(&other, saved).iter().map(|record| record.shown_name()).collect();
        assert_eq!(names, ["box:1", "localhost/second:2"]);
        assert_eq!(other.find("box:1").unwrap().digest, first.digest);
        let missing = store.save(&["none:1".to_owned()], &mut Vec::new()).unwrap_err();
        assert!(matches!(missing, ImageError::Missing { .. }), "{missing:?}");
    }
}
