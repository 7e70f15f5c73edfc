//! Volumes that a sandbox writes to: each may hold so much, whoever wrote it.

use std::time::Instant;

use offleash_core::limits::{LimitName, MAX_DEPTH};
use offleash_core::plan::WrittenVolume;
use offleash_core::record::LimitHit;
use offleash_core::volume::VolumeQuota;

use super::{LimitWatcher, NAMES_PER_INODE, killed};
use crate::limits::layer::{LayerMeter, LayerRoom};

/// Measures one volume.
#[derive(Debug)]
pub(super) struct VolumeMeter {
    meter: LayerMeter,
    quota: VolumeQuota,
    /// What was in it before the sandbox was.
    bytes_before: u64,
}

impl LimitWatcher {
    /// Watches these volumes, too. When one cannot be opened, the first tick
    /// ends the run, as with layers.
    #[must_use]
    pub fn with_volumes(mut self, volumes: Vec<WrittenVolume>) -> Self {
        for WrittenVolume { directory, quota, used } in volumes {
            match LayerMeter::of_directory(&directory) {
                Ok(meter) => self.volumes.push(VolumeMeter {
                    meter: meter.starting_with(used.bytes, used.inodes),
                    quota,
                    bytes_before: used.bytes,
                }),
                Err(error) => self.unmeasured = self.unmeasured.or(Some(error)),
            }
        }
        if !self.volumes.is_empty() {
            self.look_soon();
        }
        self
    }

    /// Everything that is measured on disk.
    pub(super) fn meters(&self) -> impl Iterator<Item = &LayerMeter> {
        self.layers
            .iter()
            .chain(self.volumes.iter().map(|volume| &volume.meter))
    }

    pub(super) fn check_volumes(&mut self, now: Instant, hits: &mut Vec<LimitHit>) {
        for VolumeMeter { meter, quota, .. } in &mut self.volumes {
            let used = meter.usage();
            let room = LayerRoom {
                bytes: Some(quota.bytes.0.saturating_sub(used.bytes)),
                inodes: Some(quota.inodes.saturating_sub(used.inodes)),
            };
            meter.tick(now, room);
        }
        // Otherwise that is done for the layers.
        if let Some(least) = self.least_quota().filter(|_| self.searches_for_volumes()) {
            self.search_nameless(now, least);
        }
        self.compare_volumes(hits);
    }

    /// Measures them to their end, when nothing of the sandbox changes them any more.
    pub(super) fn measure_volumes(&mut self, hits: &mut Vec<LimitHit>) {
        for volume in &mut self.volumes {
            volume.meter.measure();
        }
        self.compare_volumes(hits);
    }

    /// By how much file systems went down that volumes are on, and how much of it walks found there.
    pub(super) fn growth_of_volumes(&self) -> impl Iterator<Item = (u64, (u64, u64))> {
        self.volumes.iter().map(|volume| {
            let (dropped, found) = volume.meter.dropped_and_found_bytes();
            let found = found.saturating_sub(volume.bytes_before);
            (volume.meter.device(), (dropped, found))
        })
    }

    fn least_quota(&self) -> Option<u64> {
        self.volumes.iter().map(|volume| volume.quota.bytes.0).min()
    }

    /// Whether files without a name count to the volumes, because there is nothing else that they count to.
    fn searches_for_volumes(&self) -> bool {
        self.layers.is_empty() || self.limits.workspace.is_none()
    }

    fn compare_volumes(&self, hits: &mut Vec<LimitHit>) {
        let nameless = match self.searches_for_volumes() {
            true => self.nameless_bytes.saturating_add(self.concealed_bytes),
            false => 0,
        };
        for VolumeMeter { meter, quota, .. } in &self.volumes {
            let used = meter.usage();
            // What lies deeper is not measured, and may be anything.
            let is_unmeasured = used.hidden || used.depth > MAX_DEPTH;
            if used.bytes.saturating_add(nameless) > quota.bytes.0 || is_unmeasured {
                hits.push(killed(LimitName::Volume, quota.bytes.0));
            }
            if used.inodes > quota.inodes || used.names > quota.inodes.saturating_mul(NAMES_PER_INODE) {
                hits.push(killed(LimitName::VolumeInodes, quota.inodes));
            }
        }
    }
}
