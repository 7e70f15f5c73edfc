//! What a layer may take.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use offleash_core::limits::{LimitName, Limits};
use offleash_core::record::{LimitEffect, LimitHit};
use offleash_core::volume::{VolumeQuota, VolumeUsage};
use rustix::io::Errno;

/// What a file takes is a whole number of these.
const BLOCK: u64 = 4096;

/// What all trees take that count together.
#[derive(Debug, Clone)]
pub(crate) struct SharedQuota(Arc<Mutex<LayerQuota>>);

impl SharedQuota {
    pub(crate) fn new(quota: LayerQuota) -> Self {
        Self(Arc::new(Mutex::new(quota)))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, LayerQuota> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether both are one.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// What a layer takes, and how much it may.
#[derive(Debug)]
pub(crate) struct LayerQuota {
    /// Which limits they are.
    names: (LimitName, LimitName),
    bytes: u64,
    inodes: u64,
    max_bytes: Option<u64>,
    max_inodes: Option<u64>,
    max_depth: Option<u64>,
    max_file: Option<u64>,
    /// Whether all that is in the layer was counted here.
    has_counted_all: bool,
    hits: Vec<LimitHit>,
}

impl LayerQuota {
    /// Of a layer that is empty.
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            names: (LimitName::Workspace, LimitName::Inodes),
            bytes: 0,
            inodes: 0,
            max_bytes: limits.workspace.map(|bytes| bytes.0),
            max_inodes: limits.inodes,
            max_depth: limits.depth,
            max_file: limits.file_size.map(|bytes| bytes.0),
            has_counted_all: true,
            hits: Vec::new(),
        }
    }

    /// Of a volume.
    pub(crate) fn of_volume(quota: VolumeQuota, used: VolumeUsage, limits: &Limits) -> Self {
        Self {
            names: (LimitName::Volume, LimitName::VolumeInodes),
            bytes: used.bytes,
            inodes: used.inodes,
            max_bytes: Some(quota.bytes.0),
            max_inodes: Some(quota.inodes),
            ..Self::new(limits)
        }
    }

    /// Takes note of what is in the layer already.
    pub(crate) fn add_found(&mut self, bytes: u64, inodes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.inodes = self.inodes.saturating_add(inodes);
    }

    /// Something is in the layer from now on that was not counted here, so that nothing is given back for what is removed.
    pub(super) fn stop_giving_back(&mut self) {
        self.has_counted_all = false;
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn take_hits(&mut self) -> Vec<LimitHit> {
        std::mem::take(&mut self.hits)
    }

    /// Takes note of one more entry, at this depth.
    ///
    /// # Errors
    /// `EDQUOT` beyond a limit, which is noted.
    pub(super) fn add_entry(&mut self, depth: usize) -> Result<(), Errno> {
        self.check_depth(depth)?;
        self.check(self.names.1, self.max_inodes, self.inodes + 1, Errno::DQUOT)?;
        self.inodes += 1;
        Ok(())
    }

    pub(super) fn remove_entry(&mut self) {
        if !self.has_counted_all {
            return;
        }
        self.inodes = self.inodes.saturating_sub(1);
    }

    /// Takes note of a file whose size becomes `after` from `before`, in bytes.
    ///
    /// # Errors
    /// `EFBIG` or `EDQUOT` beyond a limit, which is noted.
    pub(super) fn resize(&mut self, before: u64, after: u64) -> Result<(), Errno> {
        self.check(LimitName::FileSize, self.max_file, after, Errno::FBIG)?;
        let taken = self.taken(before, after);
        if after > before {
            self.check(self.names.0, self.max_bytes, taken, Errno::DQUOT)?;
        }
        self.bytes = taken;
        Ok(())
    }

    /// Whether a file may become `after` bytes long from `before`; takes note of nothing but a limit.
    ///
    /// # Errors
    /// As [`Self::resize`].
    pub(super) fn would_fit(&mut self, before: u64, after: u64) -> Result<(), Errno> {
        self.check(LimitName::FileSize, self.max_file, after, Errno::FBIG)?;
        let taken = self.taken(before, after);
        self.check(
            self.names.0,
            self.max_bytes.filter(|_| after > before),
            taken,
            Errno::DQUOT,
        )
    }

    fn taken(&self, before: u64, after: u64) -> u64 {
        let given_back = if self.has_counted_all {
            on_disk(before)
        } else {
            on_disk(before.min(after))
        };
        self.bytes.saturating_sub(given_back).saturating_add(on_disk(after))
    }

    /// Whether something may be at this depth.
    ///
    /// # Errors
    /// `EDQUOT` beyond the limit, which is noted.
    pub(super) fn check_depth(&mut self, depth: usize) -> Result<(), Errno> {
        let depth = u64::try_from(depth).unwrap_or(u64::MAX);
        self.check(LimitName::Depth, self.max_depth, depth, Errno::DQUOT)
    }

    fn check(&mut self, limit: LimitName, most: Option<u64>, wanted: u64, refusal: Errno) -> Result<(), Errno> {
        let Some(value) = most.filter(|most| wanted > *most) else {
            return Ok(());
        };
        let effect = LimitEffect::Refused;
        let hit = LimitHit { limit, value, effect };
        if !self.hits.contains(&hit) {
            self.hits.push(hit);
        }
        Err(refusal)
    }
}

fn on_disk(size: u64) -> u64 {
    size.div_ceil(BLOCK).saturating_mul(BLOCK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use offleash_core::units::Bytes;

    fn quota(workspace: u64) -> LayerQuota {
        LayerQuota::new(&Limits {
            workspace: Some(Bytes(workspace)),
            inodes: Some(2),
            ..Limits::default()
        })
    }

    #[test]
    fn whole_blocks_count_and_what_is_removed_is_given_back() {
        let mut quota = quota(4 * BLOCK);
        quota.resize(0, 1).unwrap();
        assert_eq!(quota.bytes(), BLOCK);
        quota.resize(1, 4 * BLOCK).unwrap();
        assert_eq!(quota.resize(0, 1), Err(Errno::DQUOT));
        quota.resize(4 * BLOCK, 0).unwrap();
        assert_eq!((quota.bytes(), quota.take_hits().len()), (0, 1));
    }

    #[test]
    fn whether_something_fits_is_asked_without_taking_it() {
        let mut quota = quota(4 * BLOCK);
        quota.would_fit(0, 4 * BLOCK).unwrap();
        assert_eq!(quota.bytes(), 0);
        assert_eq!(quota.would_fit(0, 4 * BLOCK + 1), Err(Errno::DQUOT));
        // What becomes smaller always fits.
        quota.resize(0, 4 * BLOCK).unwrap();
        quota.would_fit(4 * BLOCK, 1).unwrap();
    }

    #[test]
    fn nothing_is_given_back_for_what_others_may_have_written() {
        let mut quota = quota(4 * BLOCK);
        quota.resize(0, BLOCK).unwrap();
        quota.add_entry(1).unwrap();
        quota.stop_giving_back();
        // A program made a large file, which was not counted; the shell removes it.
        quota.resize(3 * BLOCK, 0).unwrap();
        quota.remove_entry();
        assert_eq!(quota.bytes(), BLOCK);
        quota.add_entry(1).unwrap();
        assert_eq!(quota.add_entry(1), Err(Errno::DQUOT));
        // What stays of a file that shrinks is not counted twice.
        quota.resize(3 * BLOCK, BLOCK).unwrap();
        assert_eq!(quota.bytes(), BLOCK);
    }
}
