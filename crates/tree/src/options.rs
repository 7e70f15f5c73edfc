//! How a tree is served: by how many threads, for whom, and what the other side may remember.

use std::path::PathBuf;
use std::time::Duration;

/// How a tree is served.
#[derive(Debug, Clone)]
pub struct TreeOptions {
    /// How many threads answer, 1 to [`MAX_WORKERS`](crate::MAX_WORKERS).
    pub workers: usize,
    /// Whom new files belong to.
    pub owners: FileOwners,
    /// How long the other side may remember what it learned, where nobody else changes the tree.
    pub cache: CacheTimes,
    /// Directories and files, relative to the root, that others change too: volumes, files that the host writes. What
    /// lies below them is remembered for `shared_cache`. An empty path is the root.
    pub shared: Vec<PathBuf>,
    /// How long the other side may remember what it learned of those.
    pub shared_cache: CacheTimes,
    /// Most descriptors that are held together; three quarters of `RLIMIT_NOFILE` if `None`. A third of them names files that
    /// are not open.
    pub max_descriptors: Option<usize>,
}

impl Default for TreeOptions {
    fn default() -> Self {
        Self {
            workers: 3,
            owners: FileOwners::Requester,
            cache: CacheTimes::exclusive(),
            shared: Vec::new(),
            shared_cache: CacheTimes::shared(),
            max_descriptors: None,
        }
    }
}

/// Whom new files belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileOwners {
    /// Whoever asked for them. Takes `CAP_SETUID`, `CAP_SETGID` and `CAP_SETPCAP`.
    Requester,
    /// Whoever serves: where one id is mapped, all is that id's.
    Server,
}

/// How long the other side may remember.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheTimes {
    /// That a name is there, and what it is.
    pub entry: Duration,
    /// That a name is not there.
    pub negative: Duration,
    /// Size, mode, owner and times.
    pub attributes: Duration,
    /// Whether contents are remembered beyond the closing of a file.
    pub contents: bool,
}

impl CacheTimes {
    /// For what the other side alone changes.
    #[must_use]
    pub const fn exclusive() -> Self {
        let day = Duration::from_secs(24 * 60 * 60);
        Self {
            entry: day,
            negative: day,
            attributes: day,
            contents: true,
        }
    }

    /// For what others change too: nothing is remembered.
    #[must_use]
    pub const fn shared() -> Self {
        Self {
            entry: Duration::ZERO,
            negative: Duration::ZERO,
            attributes: Duration::ZERO,
            contents: false,
        }
    }
}
