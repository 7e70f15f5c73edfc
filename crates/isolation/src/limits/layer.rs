//! Measures how much disk the writable layer of an overlay takes, cheaply enough to do it all the time.
//!
//! Overlay file systems have no quota. Asking the file system for its free space costs microseconds, so that is done
//! at every tick; the layer is walked only when free space went down by enough to matter, or anything changed and the
//! last walk is a while ago. A walk is done in slices, so that it takes a small part of the time however large the
//! layer is.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};

use super::walk::{LayerWalk, WalkCounts};

/// A drop in free space that is looked into however much room is left.
const DROP_BYTES: u64 = 4 * 1024 * 1024;
/// The same for inodes.
const DROP_INODES: u64 = 10_000;
/// How long a change that is too small for that may wait.
const LATEST: Duration = Duration::from_secs(2);
/// A walk's slice in each tick: a tenth of the time between ticks.
const SLICE: Duration = Duration::from_millis(2);
/// The slice when the limit may have been passed already: about half of the time.
const URGENT_SLICE: Duration = Duration::from_millis(10);
/// The time between ticks while a walk is under way.
const TICK: Duration = Duration::from_millis(20);
/// So many walks in a row in which a directory was hidden from us are no accident.
const HIDDEN_WALKS: u32 = 3;

/// What a layer takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LayerUsage {
    /// Bytes on disk, each file once however many names it has.
    pub bytes: u64,
    /// Files, directories, links and others, each once.
    pub inodes: u64,
    /// Names, hard links included.
    pub names: u64,
    /// The largest number of directories in one another; those below [`MAX_DEPTH`] others were not measured.
    ///
    /// [`MAX_DEPTH`]: offleash_core::limits::MAX_DEPTH
    pub depth: u64,
    /// Some of it is withheld from measurement on purpose: walk after walk a directory's permissions change under us.
    pub hidden: bool,
    /// Directories of other users, such as subordinate ids, could not be read and are missing in the sums, unless somebody
    /// inside has measured them.
    pub incomplete: bool,
}

impl LayerUsage {
    /// Of everything the larger, with the flags of `self`.
    fn at_least(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.max(other.bytes),
            inodes: self.inodes.max(other.inodes),
            names: self.names.max(other.names),
            depth: self.depth.max(other.depth),
            ..self
        }
    }
}

/// Measures a directory to its end.
///
/// # Errors
/// When it cannot be read.
pub(super) fn measure_once(upper: BorrowedFd<'_>) -> rustix::io::Result<LayerUsage> {
    let mut walk = LayerWalk::new(upper)?;
    walk.advance(None);
    Ok(usage_of(walk.counts(), 0))
}

/// How much may be added before a limit is reached; `None` where there is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct LayerRoom {
    pub(super) bytes: Option<u64>,
    pub(super) inodes: Option<u64>,
}

/// Measures one layer.
#[derive(Debug)]
pub struct LayerMeter {
    upper: OwnedFd,
    last: LayerUsage,
    /// What the file system had free when the last walk began.
    free_then: FreeSpace,
    last_walk_began: Option<Instant>,
    walk: Option<UnderWay>,
    hidden_walks: u32,
    /// What a walk that may enter everything found, as long as ours may not.
    inside: Option<LayerUsage>,
    /// Whether a walk of ours that was incomplete has ended since such a walk began.
    wants_inside: bool,
    device: u64,
    /// What the file system had free at the start.
    free_at_start: FreeSpace,
    /// By how many bytes that had gone down since, at the last walk.
    dropped_since_start: u64,
}

/// A walk that was begun and not finished.
#[derive(Debug)]
struct UnderWay {
    walk: LayerWalk,
    urgent: bool,
    free: FreeSpace,
    began: Instant,
}

/// Free space of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FreeSpace {
    bytes: u64,
    inodes: u64,
}

/// Whether to walk now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WalkNeed {
    No,
    Soon,
    Urgent,
}

impl LayerMeter {
    /// A meter of the directory `upper` in `layer`.
    ///
    /// # Errors
    /// When it cannot be opened or is not a directory.
    pub fn new(layer: &Path) -> io::Result<Self> {
        Self::of_directory(&layer.join("upper"))
    }

    /// A meter of a directory.
    ///
    /// # Errors
    /// When it cannot be opened or is not a directory.
    pub fn of_directory(directory: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let upper = rustix::fs::open(directory, flags, Mode::empty())?;
        let free_then = free(&upper)?;
        let device = rustix::fs::fstat(&upper)?.st_dev;
        Ok(Self {
            upper,
            last: LayerUsage::default(),
            free_then,
            last_walk_began: None,
            walk: None,
            hidden_walks: 0,
            inside: None,
            wants_inside: false,
            device,
            free_at_start: free_then,
            dropped_since_start: 0,
        })
    }

    /// The same for a directory of which it is known what is in it.
    pub(super) fn starting_with(mut self, bytes: u64, inodes: u64) -> Self {
        self.last = LayerUsage {
            bytes,
            inodes,
            names: inodes,
            ..LayerUsage::default()
        };
        self
    }

    /// Looks whether the layer has grown, and walks for a few milliseconds if so.
    ///
    /// Between walks this is one system call. Returns what is known: the last walk's sums, or the present one's where
    /// they are larger already.
    pub(super) fn tick(&mut self, now: Instant, room: LayerRoom) -> LayerUsage {
        if self.walk.is_none()
            && let Ok(free) = free(&self.upper)
        {
            let waited = self
                .last_walk_began
                .map_or(LATEST, |began| now.saturating_duration_since(began));
            let need = need(self.free_then, free, room, waited);
            if need != WalkNeed::No {
                self.begin(now, free, need == WalkNeed::Urgent);
            }
        }
        let slice = self
            .walk
            .as_ref()
            .map(|under_way| if under_way.urgent { URGENT_SLICE } else { SLICE });
        if let Some(slice) = slice {
            self.advance(Some(Instant::now() + slice));
        }
        self.usage()
    }

    /// Walks over all of it, however long that takes: for the end, when nothing changes any more.
    pub fn measure(&mut self) -> LayerUsage {
        if let Ok(free) = free(&self.upper) {
            self.begin(Instant::now(), free, true);
            self.advance(None);
        }
        self.last
    }

    /// What is known now.
    pub fn usage(&self) -> LayerUsage {
        let mut known = self.last;
        if let Some(under_way) = &self.walk {
            known = known.at_least(usage_of(under_way.walk.counts(), 0));
        }
        match self.inside {
            Some(inside) => known.at_least(inside),
            None => known,
        }
    }

    /// The directory, where somebody should measure it who may enter what we may not; told once for each walk.
    pub(super) fn take_wanted(&mut self) -> Option<BorrowedFd<'_>> {
        std::mem::take(&mut self.wants_inside).then(|| self.upper.as_fd())
    }

    /// Takes note of what was found by who may enter everything.
    pub(super) fn note_inside(&mut self, found: LayerUsage) {
        // It may be none of ours any more.
        self.inside = self.last.incomplete.then_some(found);
    }

    /// The time to the next tick that a walk under way asks for.
    pub(super) fn wants_tick_in(&self) -> Option<Duration> {
        self.walk.as_ref().map(|_| TICK)
    }

    /// The file system that it is on.
    pub(super) fn device(&self) -> u64 {
        self.device
    }

    /// By how many bytes free space had gone down from the start to the last walk, and how many of them that found.
    ///
    /// What was in the layer at the start counts as found, which errs in favour of the sandbox.
    pub(super) fn dropped_and_found_bytes(&self) -> (u64, u64) {
        (self.dropped_since_start, self.last.bytes)
    }

    fn begin(&mut self, now: Instant, free: FreeSpace, urgent: bool) {
        let Ok(walk) = LayerWalk::new(self.upper.as_fd()) else {
            return;
        };
        self.walk = Some(UnderWay {
            walk,
            urgent,
            free,
            began: now,
        });
    }

    fn advance(&mut self, deadline: Option<Instant>) {
        let Some(mut under_way) = self.walk.take() else { return };
        if under_way.walk.advance(deadline) {
            self.finish(&under_way);
        } else {
            self.walk = Some(under_way);
        }
    }

    fn finish(&mut self, under_way: &UnderWay) {
        let counts = under_way.walk.counts();
        self.hidden_walks = if counts.hidden { self.hidden_walks + 1 } else { 0 };
        // The larger of before and after: files that were removed during the walk must not look like hidden ones.
        let after = free(&self.upper).map_or(0, |free| free.bytes);
        let most_free = under_way.free.bytes.max(after);
        self.dropped_since_start = self.free_at_start.bytes.saturating_sub(most_free);
        self.last = usage_of(counts, self.hidden_walks);
        self.wants_inside = self.last.incomplete;
        if !self.last.incomplete {
            self.inside = None;
        }
        self.free_then = under_way.free;
        self.last_walk_began = Some(under_way.began);
    }
}

fn usage_of(counts: WalkCounts, hidden_walks: u32) -> LayerUsage {
    LayerUsage {
        bytes: counts.bytes,
        inodes: counts.inodes,
        names: counts.names,
        depth: counts.depth,
        hidden: hidden_walks >= HIDDEN_WALKS,
        incomplete: counts.foreign || counts.hidden,
    }
}

/// Decides from the free space then and now whether the layer must be walked.
///
/// Whoever else writes to the file system makes us walk for nothing; who frees space at the same time can delay a walk
/// by [`LATEST`].
fn need(then: FreeSpace, now: FreeSpace, room: LayerRoom, waited: Duration) -> WalkNeed {
    let bytes = then.bytes.saturating_sub(now.bytes);
    let inodes = then.inodes.saturating_sub(now.inodes);
    let passed = |dropped: u64, room: Option<u64>| room.is_some_and(|room| dropped > room);
    let matters = |dropped: u64, room: Option<u64>, enough: u64| {
        room.is_some_and(|room| dropped > 0 && dropped >= (room / 4).min(enough))
    };
    if passed(bytes, room.bytes) || passed(inodes, room.inodes) {
        WalkNeed::Urgent
    } else if matters(bytes, room.bytes, DROP_BYTES)
        || matters(inodes, room.inodes, DROP_INODES)
        || (then != now && waited >= LATEST)
    {
        WalkNeed::Soon
    } else {
        WalkNeed::No
    }
}

fn free(upper: &OwnedFd) -> rustix::io::Result<FreeSpace> {
    let found = rustix::fs::fstatvfs(upper)?;
    Ok(FreeSpace {
        bytes: found.f_bfree.saturating_mul(found.f_frsize),
        inodes: found.f_ffree,
    })
}

#[cfg(test)]
#[path = "layer_tests.rs"]
mod tests;
