//! What a sandbox's writable layers hold, files without a name among it, and what others did to the same file systems.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use offleash_core::limits::{LimitName, MAX_DEPTH};
use offleash_core::record::LimitHit;

use super::{LimitWatcher, NAMELESS_LATEST, NAMES_PER_INODE, SLOW_PART, killed};
use crate::limits::deleted;
use crate::limits::inside::InsideMeasurement;
use crate::limits::layer::{LayerMeter, LayerRoom, LayerUsage};

/// How many searches in a row, and for how long, must have seen everything before what they did not find counts as others'.
const CLEAR_SEARCHES: u32 = 4;
const CLEAR_FOR: Duration = Duration::from_secs(5);
/// How often at most a layer is measured by a process of its own, and after one that failed.
const INSIDE_EVERY: Duration = Duration::from_secs(1);
const INSIDE_AFTER_FAILURE: Duration = Duration::from_secs(10);
/// Unexplained growth of a file system that is worth a search for open files without a name.
const UNEXPLAINED_BYTES: u64 = 16 * 1024 * 1024;

/// How much of the growth of the layers' file systems is of others, as far as that is certain.
///
/// A search that saw everything says that what it did not find is not the sandbox's. One such search can be had by luck,
/// when a file is handed on while it goes from process to process; so many of them in a row cannot.
#[derive(Debug, Default)]
pub(super) struct ForeignGrowth {
    pub(super) bytes: u64,
    /// Since when every search saw everything, how many there were, and the least that was left over.
    clear: Option<(Instant, u32, u64)>,
}

impl ForeignGrowth {
    pub(super) fn note(&mut self, now: Instant, unseen: u64, concealed: bool) {
        self.bytes = self.bytes.min(unseen);
        if concealed {
            self.clear = None;
            return;
        }
        let (since, count, least) = self.clear.map_or((now, 1, unseen), |(since, count, least)| {
            (since, count.saturating_add(1), least.min(unseen))
        });
        self.clear = Some((since, count, least));
        if count >= CLEAR_SEARCHES && now.saturating_duration_since(since) >= CLEAR_FOR {
            self.bytes = self.bytes.max(least);
            // What grows from here on has to be clear for as long again.
            self.clear = Some((now, 1, unseen));
        }
    }
}

impl LimitWatcher {
    pub(super) fn check_layers(&mut self, now: Instant, hits: &mut Vec<LimitHit>) {
        if self.layers.is_empty() && self.unmeasured.is_none() {
            return;
        }
        let used = self.layers_usage();
        let room = LayerRoom {
            bytes: self.limits.workspace.map(|limit| limit.0.saturating_sub(used.bytes)),
            inodes: self.limits.inodes.map(|limit| limit.saturating_sub(used.inodes)),
        };
        for meter in &mut self.layers {
            meter.tick(now, room);
        }
        self.measure_inside(now);
        if let Some(limit) = self.limits.workspace {
            self.search_nameless(now, limit.0);
        }
        self.compare_layers(hits);
    }

    /// Has layers measured that we may not enter all of.
    fn measure_inside(&mut self, now: Instant) {
        if let Some((layer, measuring)) = &mut self.measuring {
            let Some(found) = measuring.poll() else { return };
            self.measuring_due = now + INSIDE_AFTER_FAILURE;
            if let (Ok((usage, took)), Some(meter)) = (found, self.layers.get_mut(*layer)) {
                meter.note_inside(usage);
                self.measuring_due = now + (took * SLOW_PART).max(INSIDE_EVERY);
            }
            self.measuring = None;
        }
        if now < self.measuring_due {
            return;
        }
        for (number, meter) in self.layers.iter_mut().enumerate() {
            let Some(upper) = meter.take_wanted() else { continue };
            match InsideMeasurement::begin(self.init, upper) {
                Ok(measuring) => self.measuring = Some((number, measuring)),
                Err(_) => self.measuring_due = now + INSIDE_AFTER_FAILURE,
            }
            return;
        }
    }

    /// Searches for files without a name when a file system grew by more than the walks explain.
    pub(super) fn search_nameless(&mut self, now: Instant, limit: u64) {
        let unexplained = self.unexplained_bytes();
        // Compared with the last search and not the last walk, or slow growth would stay below it for ever.
        self.searched_at_bytes = self.searched_at_bytes.min(unexplained);
        let enough = UNEXPLAINED_BYTES.min(limit / 4);
        let grown = unexplained.saturating_sub(self.searched_at_bytes);
        // Growth can hide behind somebody else who frees space at the same time; therefore now and then anyway.
        let overdue = now >= self.nameless_latest;
        let search = (grown > 0 && grown >= enough) || self.nameless_bytes > 0 || self.concealed || overdue;
        if !search || now < self.nameless_due {
            return;
        }
        let began = Instant::now();
        let found = deleted::search(&self.tree.processes(), self.measured_devices());
        self.nameless_due = now + (began.elapsed() * SLOW_PART).max(Duration::from_millis(100));
        self.nameless_latest = now + NAMELESS_LATEST.max(began.elapsed() * SLOW_PART);
        self.searched_at_bytes = unexplained;
        self.nameless_bytes = found.bytes;
        let unseen = unexplained.saturating_sub(found.bytes);
        self.foreign.note(began, unseen, found.concealed);
        // Twice in a row: programs pass descriptors, and end, all the time. Only with a hiding place, since others
        // write to the disk too.
        self.concealed_bytes = if found.concealed && self.concealed {
            unseen.saturating_sub(self.foreign.bytes)
        } else {
            0
        };
        self.concealed = found.concealed;
    }

    /// Those that layers and volumes are on.
    fn measured_devices(&self) -> Vec<u64> {
        let of_layers = self.layers.iter().map(LayerMeter::device);
        of_layers
            .chain(self.growth_of_volumes().map(|(device, _)| device))
            .collect()
    }

    /// By how much the layers' file systems grew since the start beyond what walks found in the layers.
    pub(super) fn unexplained_bytes(&self) -> u64 {
        let mut devices: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        let of_layers = self
            .layers
            .iter()
            .map(|meter| (meter.device(), meter.dropped_and_found_bytes()));
        for (device, (dropped, found)) in of_layers.chain(self.growth_of_volumes()) {
            let sum = devices.entry(device).or_insert((u64::MAX, 0));
            // The least: a walk of one layer long ago does not know what it grew by since.
            *sum = (sum.0.min(dropped), sum.1.saturating_add(found));
        }
        let each = devices.values().map(|(dropped, found)| dropped.saturating_sub(*found));
        each.fold(0, u64::saturating_add)
    }

    pub(super) fn layers_usage(&self) -> LayerUsage {
        let mut sum = LayerUsage {
            bytes: self.nameless_bytes.saturating_add(self.concealed_bytes),
            ..LayerUsage::default()
        };
        for usage in self.layers.iter().map(LayerMeter::usage) {
            sum.bytes = sum.bytes.saturating_add(usage.bytes);
            sum.inodes = sum.inodes.saturating_add(usage.inodes);
            sum.names = sum.names.saturating_add(usage.names);
            sum.depth = sum.depth.max(usage.depth);
            sum.hidden |= usage.hidden;
        }
        sum
    }

    pub(super) fn compare_layers(&self, hits: &mut Vec<LimitHit>) {
        let used = self.layers_usage();
        // What nobody bounds the depth of may hold anything below what is measured.
        let is_unmeasured = self.unmeasured.is_some() || (self.limits.depth.is_none() && used.depth > MAX_DEPTH);
        if let Some(limit) = self.limits.workspace.map(|limit| limit.0)
            && (used.bytes > limit || used.hidden || is_unmeasured)
        {
            hits.push(killed(LimitName::Workspace, limit));
        }
        if let Some(limit) = self.limits.inodes
            && (used.inodes > limit || is_unmeasured || used.names > limit.saturating_mul(NAMES_PER_INODE))
        {
            hits.push(killed(LimitName::Inodes, limit));
        }
        if let Some(limit) = self.limits.depth.filter(|limit| used.depth > *limit) {
            hits.push(killed(LimitName::Depth, limit));
        }
    }
}
