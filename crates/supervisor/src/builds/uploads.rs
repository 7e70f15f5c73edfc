//! Archives that a caller uploaded, as directories to copy from.

use std::cell::Cell;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use offleash_core::build::instruction::UploadHash;
use offleash_core::units::Bytes;
use offleash_images::{LayerOwnership, LayerReport, UnpackLimits, unpack_archive};

use super::ImageBuild;
use crate::templates::TemplateError;

/// The archives of one build, of which each is unpacked once, and all together take no more than one step may write.
#[derive(Debug)]
pub(super) struct UnpackedUploads {
    left: Cell<UnpackLimits>,
}

impl UnpackedUploads {
    pub(super) fn within(disk: Bytes) -> Self {
        let usual = UnpackLimits::default();
        Self {
            left: Cell::new(UnpackLimits {
                bytes: usual.bytes.min(disk.0),
                ..usual
            }),
        }
    }

    /// The files of an archive, in a directory of `scratch`, which goes with the build.
    ///
    /// Nobody vouches for it: nothing of it is written outside, and its sizes are bounded.
    ///
    /// # Errors
    /// `NotUploaded`, `Upload`; when no directory can be made.
    pub(super) fn files_of(
        &self,
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
        let unpacked = unpack_archive(&archive, &directory, &none, LayerOwnership::Flat, self.left.get());
        let report = unpacked.map_err(|source| TemplateError::Upload {
            step: step.to_owned(),
            source,
        })?;
        self.left.set(less(self.left.get(), report));
        Ok(directory)
    }
}

/// What is left of limits after an archive.
fn less(limits: UnpackLimits, report: LayerReport) -> UnpackLimits {
    UnpackLimits {
        bytes: limits.bytes.saturating_sub(report.bytes),
        entries: limits.entries.saturating_sub(report.entries),
        ..limits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_archive_took_the_next_one_has_less() {
        let first = UnpackedUploads::within(Bytes(1000));
        let report = LayerReport {
            bytes: 700,
            entries: 3,
            ..LayerReport::default()
        };
        let left = less(first.left.get(), report);
        assert_eq!((left.bytes, left.entries), (300, UnpackLimits::default().entries - 3));
        let left = less(left, report);
        assert_eq!(left.bytes, 0);
        // Whatever is asked for, no more than of any archive.
        let usual = UnpackLimits::default();
        assert_eq!(UnpackedUploads::within(Bytes(u64::MAX)).left.get(), usual);
    }
}
