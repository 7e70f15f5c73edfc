//! The daemon with real supervisors: what it makes, what becomes of it, and what `kill -9` of the daemon leaves.

#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that cannot go on has failed, and starts programs itself"
)]

mod support;

#[path = "daemon/approvals.rs"]
mod approvals;
#[path = "daemon/archives.rs"]
mod archives;
#[path = "daemon/bounds.rs"]
mod bounds;
#[path = "daemon/builds.rs"]
mod builds;
#[path = "daemon/callers.rs"]
mod callers;
#[path = "daemon/carried.rs"]
mod carried;
#[path = "daemon/crashes.rs"]
mod crashes;
#[path = "daemon/forks.rs"]
mod forks;
#[path = "daemon/full_disk.rs"]
mod full_disk;
#[path = "daemon/levels.rs"]
mod levels;
#[path = "daemon/lives.rs"]
mod lives;
#[path = "daemon/logs.rs"]
mod logs;
#[path = "daemon/memory.rs"]
mod memory;
#[path = "daemon/monitors.rs"]
mod monitors;
#[path = "daemon/pauses.rs"]
mod pauses;
#[path = "daemon/pools.rs"]
mod pools;
#[path = "daemon/put_away.rs"]
mod put_away;
#[path = "daemon/restarts.rs"]
mod restarts;
#[path = "daemon/simulated.rs"]
mod simulated;
#[path = "daemon/sleeps.rs"]
mod sleeps;
#[path = "daemon/snapshots.rs"]
mod snapshots;
#[path = "daemon/volumes.rs"]
mod volumes;
#[path = "daemon/webhooks.rs"]
mod webhooks;
#[path = "daemon/world.rs"]
mod world;
#[path = "daemon/zygotes.rs"]
mod zygotes;
