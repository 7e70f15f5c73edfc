//! Archives that a caller uploaded, as directories to copy from.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use offleash_core::build::instruction::UploadHash;
use offleash_images::{LayerOwnership, unpack_archive};

use super::ImageBuild;
use crate::templates::TemplateError;

/// The files of an archive, in a directory of `scratch`, which goes with the build. Each is unpacked once.
///
/// Nobody vouches for it: nothing of it is written outside, and its sizes are bounded.
///
/// # Errors
/// `NotUploaded`, `Upload`; when no directory can be made.
pub(super) fn unpacked(
    build: &ImageBuild,
    scratch: &Path,
    hash: &UploadHash,
    step: &str,
) -> Result<PathBuf, TemplateError> {
    let directory = scratch.join(format!("upload-{}", hash.as_str()));
    if directory.is_dir() {
        return Ok(directory);
    }
    let archive = build.caller.uploads.as_ref().map(|uploads| uploads.join(hash.as_str()));
    let archive = archive.filter(|archive| archive.is_file());
    let archive = archive.ok_or_else(|| TemplateError::NotUploaded { step: step.to_owned() })?;
    let none = scratch.join("none");
    for path in [&directory, &none] {
        if !path.is_dir() {
            let made = DirBuilder::new().mode(0o700).create(path);
            made.map_err(|source| TemplateError::Host {
                action: "make the directory of an archive",
                source,
            })?;
        }
    }
    let unpacked = unpack_archive(&archive, &directory, &none, LayerOwnership::Flat);
    unpacked.map_err(|source| TemplateError::Upload {
        step: step.to_owned(),
        source,
    })?;
    Ok(directory)
}
