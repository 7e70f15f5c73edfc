//! Keeps a sandbox within its limits and accounts for what it used.
//!
//! Three walls, one behind the other: a control group (`sys::cgroup`), where the machine lets us make one; limits of
//! each process (`rlimits`); and the [`LimitWatcher`], which measures what neither bounds and tells when a limit is hit.
//! Deliberately not here: making the group and setting the
//! process limits (both happen while the sandbox is made), saying what is enforced, killing, the clock for wall time,
//! and the bytes of output, which whoever reads them counts.

mod deleted;
mod forks;
mod inside;
mod layer;
mod oom_score;
mod process_tree;
mod rlimits;
mod schedule;
pub(crate) mod shown;
#[cfg(test)]
mod testing;
mod tmpfs;
mod walk;
mod watcher;

pub use inside::{MEASURE_ROLE, SUPERVISE_COMMAND, measure_as_superuser};
pub use layer::{LayerMeter, LayerUsage};
pub(crate) use oom_score::{COMMAND_OOM_SCORE, OOM_SCORE, prefer_to_kill};
pub(crate) use process_tree::ProcessTree;
pub(crate) use rlimits::NO_CORE_DUMP;
pub use rlimits::{HeldByGroup, LargestFile, rlimits};
pub(crate) use tmpfs::TmpfsMounts;
pub(crate) use watcher::CountedInside;
pub use watcher::LimitWatcher;
