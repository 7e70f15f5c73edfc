//! Removes names, and what no name and no run needs.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::layers::{NEW, remove_layer};
use super::{BLOBS, IdNamespace, ImageStore, KEPT, PARTIAL, PROOFS, REFERENCES, lock};
use crate::digest::chain_ids;
use crate::error::ImageError;
use crate::unpack::LayerOwnership;

/// What the name of something begins with that is being removed.
const GONE: &str = ".gone-";

/// A name that was removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemovedImage {
    /// What it was called.
    pub name: String,
    /// What went with it.
    pub report: PruneReport,
}

/// What was removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PruneReport {
    /// Names.
    pub names: Vec<String>,
    /// Blobs, and what there was of some that never became whole.
    pub blobs: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// Unpacked layers.
    pub layers: u64,
}

impl ImageStore {
    /// Removes a name, and what of its image no other name and no run needs.
    ///
    /// # Errors
    /// [`ImageError::InUse`] when a run uses the image and it has no other name.
    pub fn remove(&self, name: &str, ids: &dyn IdNamespace) -> Result<RemovedImage, ImageError> {
        let _alone = self.lock_for_removing()?;
        let record = self.find(name)?;
        let others = self
            .records()?
            .into_iter()
            .filter(|other| other.digest == record.digest)
            .count();
        if others == 0 {
            // One that a build made is no image by name, and goes with what it is kept by.
            return Err(ImageError::Missing { name: name.to_owned() });
        }
        if others < 2 && !lock::is_free(&self.blob_path(&record.digest))? {
            return Err(ImageError::InUse {
                name: record.shown_name(),
            });
        }
        let path = self.record_path(&record);
        fs::remove_file(&path).map_err(ImageError::file("removing", &path))?;
        Ok(RemovedImage {
            name: record.shown_name(),
            report: self.collect(ids)?,
        })
    }

    /// Removes what no name needs; with `all` also the names of images that no run uses.
    ///
    /// # Errors
    /// When something cannot be removed; the rest may be gone.
    pub fn prune(&self, all: bool, ids: &dyn IdNamespace) -> Result<PruneReport, ImageError> {
        let _alone = self.lock_for_removing()?;
        let mut names = Vec::new();
        for record in self.records()?.into_iter().filter(|_| all) {
            if lock::is_free(&self.blob_path(&record.digest))? {
                let path = self.record_path(&record);
                fs::remove_file(&path).map_err(ImageError::file("removing", &path))?;
                names.push(record.shown_name());
            }
        }
        Ok(PruneReport {
            names,
            ..self.collect(ids)?
        })
    }

    fn collect(&self, ids: &dyn IdNamespace) -> Result<PruneReport, ImageError> {
        let (mut blobs, mut chains) = (BTreeSet::new(), BTreeSet::new());
        let named = self.records()?.into_iter().map(|record| record.digest);
        let kept = self.kept()?.into_iter().map(|(_, digest)| digest);
        for digest in named.chain(kept).collect::<BTreeSet<_>>() {
            blobs.insert(digest.hex());
            // Of an image that is damaged nothing but the manifest is kept; it has to be pulled again anyway.
            let Ok((manifest, config)) = self.documents(&digest) else {
                continue;
            };
            blobs.insert(manifest.config.digest.hex());
            blobs.extend(manifest.layers.iter().map(|layer| layer.digest.hex()));
            chains.extend(chain_ids(&config.diff_ids).iter().map(crate::ImageDigest::hex));
        }
        // What somebody was writing who was ended.
        let references = entries(&self.path.join(REFERENCES))?
            .into_iter()
            .chain(entries(&self.path.join(KEPT))?);
        for path in references.filter(|path| path.extension().is_none_or(|extension| extension != "json")) {
            fs::remove_file(&path).map_err(ImageError::file("removing", &path))?;
        }
        let mut report = PruneReport::default();
        for path in entries(&self.path.join(BLOBS))?
            .into_iter()
            .chain(entries(&self.path.join(PARTIAL))?)
        {
            let is_kept = path.starts_with(self.path.join(BLOBS)) && blobs.contains(name_of(&path));
            if !is_kept && lock::is_free(&path)? {
                report.bytes += fs::symlink_metadata(&path).map_or(0, |found| found.len());
                report.blobs += 1;
                fs::remove_file(&path).map_err(ImageError::file("removing", &path))?;
            }
        }
        for path in entries(&self.path.join(PROOFS))? {
            let of = name_of(&path).trim_end_matches(".json");
            let is_here = [BLOBS, PARTIAL].map(|place| self.path.join(place).join(of).exists());
            if is_here == [false, false] {
                fs::remove_file(&path).map_err(ImageError::file("removing", &path))?;
            }
        }
        for ownership in [LayerOwnership::Flat, LayerOwnership::Owned] {
            let directory = self.layers_path(ownership);
            for path in entries(&directory)?.into_iter().filter(|path| path.is_dir()) {
                let name = name_of(&path);
                let is_whole = !name.starts_with('.');
                if (is_whole && chains.contains(name)) || !lock::is_free(&path)? {
                    continue;
                }
                let mut gone = path.clone();
                if is_whole || name.starts_with(NEW) {
                    // What is half removed must not be taken for whole.
                    gone = directory.join(format!("{GONE}{}", name.trim_start_matches(NEW)));
                    fs::rename(&path, &gone).map_err(ImageError::file("moving", &path))?;
                }
                remove_layer(&gone, ids)?;
                report.layers += u64::from(is_whole);
            }
        }
        Ok(report)
    }
}

fn entries(directory: &Path) -> Result<Vec<PathBuf>, ImageError> {
    let found = fs::read_dir(directory).map_err(ImageError::file("listing", directory))?;
    let paths = found.map(|entry| entry.map(|entry| entry.path()));
    paths
        .collect::<Result<_, _>>()
        .map_err(ImageError::file("listing", directory))
}

fn name_of(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}
