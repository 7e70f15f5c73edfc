//! A snapshot of the layer of a sandbox that runs, made by a process of its own: first while the sandbox goes on, then, when
//! somebody holds it still, once more what has changed since.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, chown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use offleash_core::id::RunId;
use offleash_core::text::Text;
use offleash_isolation::process;
use offleash_protocol::Dialogue;
use offleash_store::{
    CopyBudget, CopyError, CopyRound, FileError, HeldSnapshot, LayerIndex, LayerRefresh, OwnerShift, SharedLayer,
    SnapshotDirectories, link_layer,
};
use serde::{Deserialize, Serialize};

use super::BaseError;
use super::layer::{remove_layer, scratch_of};

/// Layers up to this size, with as many files at most, are copied once, for which the sandbox stands still: that takes no
/// longer than looking at what has changed.
const SMALL_BYTES: u64 = 16 << 20;
const SMALL_ENTRIES: u64 = 1_000;
/// Another round is made while the sandbox runs if the one before took longer than this, and so many at most.
const SHORT_ROUND: Duration = Duration::from_millis(250);
const MAX_ROUNDS: u32 = 3;
/// How much earlier than now a file must have been changed: the kernel's clock for files stands still between its ticks.
const CLOCK_STEP: Duration = Duration::from_millis(50);
/// File systems on which a file's time of change tells of every write: ext4, xfs and btrfs.
const TELLING: [i64; 3] = [0xEF53, 0x5846_5342, 0x9123_683E];
/// What overlayfs shows of a layer.
const UPPER: &str = "upper";

/// Which snapshot is to be made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotOrder {
    /// The state directory.
    pub state: Text,
    /// Whose layer is copied.
    pub from: RunId,
    /// The snapshot that lies below it, whose files the new one has, too.
    pub below: Option<RunId>,
    /// An earlier one of the same sandbox, with which files are shared that are the same.
    pub before: Option<RunId>,
    /// The new one, of which there is nothing.
    pub to: RunId,
    /// Most bytes on disk.
    pub bytes: u64,
    /// Most files, directories and links.
    pub entries: u64,
    /// Whether it is to outlive a loss of power.
    pub is_durable: bool,
}

impl Dialogue for SnapshotOrder {
    const MAX_FRAME: usize = 64 * 1024;
}

/// How making a snapshot goes on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SnapshotStep {
    /// The sandbox is to stand still now.
    Ready,
    /// All is copied; it may go on.
    Copied {
        /// Bytes on disk that its files take, also those that it shares.
        bytes: u64,
        /// Files, directories and links.
        entries: u64,
    },
    /// The snapshot is whole.
    Kept,
    /// There is more of it than was allowed.
    TooLarge {
        /// Of what.
        what: String,
    },
    /// Something failed.
    Failed {
        /// What was tried, and why it failed; it may name what is in the layer.
        reason: String,
        /// What the kernel said, if it did.
        errno: Option<i32>,
    },
}

impl Dialogue for SnapshotStep {
    const MAX_FRAME: usize = 64 * 1024;
}

impl SnapshotStep {
    fn of(error: &CopyError) -> Self {
        match error {
            CopyError::TooLarge { what } => Self::TooLarge {
                what: (*what).to_owned(),
            },
            error => Self::Failed {
                errno: match error {
                    CopyError::File(error) => error.source.raw_os_error(),
                    _ => None,
                },
                reason: offleash_core::error::with_causes(error),
            },
        }
    }
}

/// Makes a snapshot, and has `told` told of each step; the last round waits for `may_go_on`. What was made of one that failed
/// stays for the caller to remove.
///
/// It is done in another process, which is the superuser of the caller's ids, unless the caller is root. The calling process
/// must have one thread.
///
/// # Errors
/// What `told` and `may_go_on` answer.
pub fn make_snapshot(
    order: &SnapshotOrder,
    told: impl Fn(&SnapshotStep) -> io::Result<()>,
    may_go_on: impl Fn() -> io::Result<()>,
) -> io::Result<()> {
    let work = || match SnapshotCopy::begin(order).and_then(|copy| copy.carry_out(order, &told, &may_go_on)) {
        Ok(()) => Ok(()),
        Err(error) => told(&SnapshotStep::of(&error)),
    };
    if offleash_sys::process::is_root() {
        return work();
    }
    process::as_superuser_of_own(work).or_else(|error| {
        told(&SnapshotStep::Failed {
            reason: offleash_core::error::with_causes(&error),
            errno: None,
        })
    })
}

/// Removes a snapshot that nobody holds; nothing happens if there is none.
///
/// # Errors
/// When somebody holds it, or something cannot be removed; the rest may be gone.
pub fn remove_snapshot(state: &Path, id: &RunId) -> Result<(), BaseError> {
    let snapshots = SnapshotDirectories::of(state)?;
    match snapshots.unless_held(id, remove_layer)? {
        true => Ok(()),
        false => Err(BaseError::at("locking", &snapshots.path_of(id))(
            io::ErrorKind::ResourceBusy.into(),
        )),
    }
}

/// What a layer consists of, each part with its copy.
struct SnapshotCopy {
    new: HeldSnapshot,
    parts: Vec<LayerRefresh>,
    /// Whether it is worth beginning while the sandbox runs.
    is_large: bool,
    layer: PathBuf,
    _below: Option<HeldSnapshot>,
    _before: Option<HeldSnapshot>,
}

impl SnapshotCopy {
    fn begin(order: &SnapshotOrder) -> Result<Self, CopyError> {
        let snapshots = SnapshotDirectories::of(order.state.as_path())?;
        let new = snapshots.make(&order.to)?;
        let hold = |id: &RunId| match snapshots.hold(id)? {
            Some(held) => Ok(held),
            None => Err(failed(
                "finding",
                &snapshots.path_of(id),
                io::ErrorKind::NotFound.into(),
            )),
        };
        let below = order.below.as_ref().map(hold).transpose()?;
        // One that is being removed shares nothing.
        let before = order.before.as_ref().and_then(|id| snapshots.hold(id).ok().flatten());
        let layer = scratch_of(order.state.as_path(), &order.from);
        let mut parts = Vec::new();
        for name in names_of_parts(&layer)? {
            parts.push(begin_part(
                &layer.join(&name),
                &name,
                &new,
                below.as_ref(),
                before.as_ref(),
            )?);
        }
        let is_large = tells_of_writes(&layer) && is_large(&layer);
        Ok(Self {
            new,
            parts,
            is_large,
            layer,
            _below: below,
            _before: before,
        })
    }

    fn carry_out(
        mut self,
        order: &SnapshotOrder,
        told: &impl Fn(&SnapshotStep) -> io::Result<()>,
        may_go_on: &impl Fn() -> io::Result<()>,
    ) -> Result<(), CopyError> {
        let asked = CopyBudget {
            bytes: order.bytes,
            entries: order.entries,
        };
        for _ in 0..if self.is_large { MAX_ROUNDS } else { 0 } {
            let begun = Instant::now();
            self.settle()?;
            let walked = Instant::now();
            self.round(CopyRound::Running, &mut asked.clone())?;
            if walked.elapsed() < SHORT_ROUND || begun.elapsed() < SHORT_ROUND {
                break;
            }
        }
        let step = |error| failed("asking for a sandbox that stands still", &self.layer, error);
        told(&SnapshotStep::Ready).and_then(|()| may_go_on()).map_err(step)?;
        let mut budget = asked;
        self.round(CopyRound::Still, &mut budget)?;
        told(&SnapshotStep::Copied {
            bytes: asked.bytes - budget.bytes,
            entries: asked.entries - budget.entries,
        })
        .map_err(|error| failed("telling of", &self.layer, error))?;
        self.keep(order.is_durable)?;
        told(&SnapshotStep::Kept).map_err(|error| failed("telling of", Path::new("the snapshot"), error))
    }

    /// Has what was written so far written out, so that times of change tell of what is written from now on.
    fn settle(&mut self) -> Result<(), CopyError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let before = now.saturating_sub(CLOCK_STEP);
        self.new.write_out()?;
        let seconds = i64::try_from(before.as_secs()).unwrap_or(i64::MAX);
        for part in &mut self.parts {
            part.settle((seconds, before.subsec_nanos().into()));
        }
        Ok(())
    }

    fn round(&mut self, round: CopyRound, budget: &mut CopyBudget) -> Result<(), CopyError> {
        self.parts.iter_mut().try_for_each(|part| part.round(round, budget))
    }

    fn keep(self, is_durable: bool) -> Result<(), CopyError> {
        for part in self.parts {
            let name = part.name().to_owned();
            self.new.write_index(&name, &part.into_index())?;
        }
        if is_durable {
            self.new.write_out()?;
        }
        Ok(())
    }
}

fn begin_part(
    source: &Path,
    name: &str,
    new: &HeldSnapshot,
    below: Option<&HeldSnapshot>,
    before: Option<&HeldSnapshot>,
) -> Result<LayerRefresh, CopyError> {
    let copy = new.layer().join(name);
    let target = copy.join(UPPER);
    make(&copy)?;
    make(&target)?;
    let own = owner_of(source)?;
    let below = below
        .map(|held| held.layer().join(name))
        .filter(|part| part.join(UPPER).is_dir());
    // All files of one layer belong to ids of one sandbox.
    let owner = below.as_deref().map_or(Ok(own), owner_of)?;
    if let Some(below) = &below {
        link_layer(&below.join(UPPER), &target)?;
    }
    let shared = before.and_then(|held| {
        let part = held.layer().join(name);
        let is_of_same = owner_of(&part).is_ok_and(|theirs| theirs == owner);
        let index: Option<LayerIndex> = is_of_same.then(|| held.index(name)).flatten();
        Some(SharedLayer {
            directory: part.join(UPPER),
            index: index?,
        })
    });
    chown(&copy, Some(owner.0), Some(owner.1)).map_err(|error| failed("giving away", &copy, error))?;
    let shift = OwnerShift {
        ids: (own != owner).then_some((own, owner)),
    };
    Ok(LayerRefresh::new(
        name.to_owned(),
        source.join(UPPER),
        target,
        shift,
        shared,
    ))
}

fn names_of_parts(layer: &Path) -> Result<Vec<String>, CopyError> {
    let found = fs::read_dir(layer).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    let found = found.map_err(|error| failed("listing", layer, error))?;
    let names = found.into_iter().filter(|found| found.path().join(UPPER).is_dir());
    Ok(names.filter_map(|found| found.file_name().into_string().ok()).collect())
}

fn owner_of(part: &Path) -> Result<(u32, u32), CopyError> {
    let found = fs::symlink_metadata(part).map_err(|error| failed("examining", part, error))?;
    Ok((found.uid(), found.gid()))
}

fn tells_of_writes(layer: &Path) -> bool {
    rustix::fs::statfs(layer).is_ok_and(|found| TELLING.contains(&found.f_type))
}

/// Whether there is more in a layer than is copied at once.
fn is_large(layer: &Path) -> bool {
    let (mut bytes, mut entries, mut left) = (0, 0, vec![layer.to_owned()]);
    while let Some(directory) = left.pop() {
        for found in fs::read_dir(directory).into_iter().flatten().flatten() {
            // What goes away meanwhile is nothing.
            let Ok(metadata) = found.metadata() else { continue };
            entries += 1;
            bytes += metadata.blocks().saturating_mul(512);
            if bytes > SMALL_BYTES || entries > SMALL_ENTRIES {
                return true;
            }
            if metadata.is_dir() {
                left.push(found.path());
            }
        }
    }
    false
}

fn make(directory: &Path) -> Result<(), CopyError> {
    let made = DirBuilder::new().mode(0o700).create(directory);
    made.map_err(|error| failed("creating", directory, error))
}

fn failed(tried: &'static str, path: &Path, source: io::Error) -> CopyError {
    CopyError::File(FileError {
        tried,
        path: path.to_owned(),
        source,
    })
}
