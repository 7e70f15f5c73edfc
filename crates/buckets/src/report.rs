//! What became of the objects and the files.

use offleash_core::text::Text;
use serde::{Deserialize, Serialize};

/// How many of a list are named.
const NAMED: usize = 20;

/// What became of the objects and the files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncReport {
    /// Objects that went into the volume.
    pub fetched: u64,
    /// Their bytes.
    pub fetched_bytes: u64,
    /// Files that went into the bucket.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Files that were removed, since their objects are gone.
    pub removed_here: u64,
    /// Objects that were removed, since their files are gone.
    pub removed_there: u64,
    /// What is the same on both sides.
    pub same: u64,
    /// What has changed on the side that nothing is taken from.
    pub waiting: u64,
    /// What is gone on one side and stays on the other.
    pub kept: u64,
    /// What has changed on both sides. Each side keeps its own.
    pub conflicts: ObjectList,
    /// What cannot be on the other side: objects whose names are no paths, and what is no file.
    pub left_out: ObjectList,
    /// What could not be fetched or sent this time.
    pub failed: ObjectList,
}

/// Objects or files, some of them by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectList {
    /// How many there are.
    pub count: u64,
    /// Some of them.
    pub named: Vec<ObjectNote>,
}

/// An object or a file, and what there is to say of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectNote {
    /// Its key without the prefix, which is its path.
    pub name: Text,
    /// As in `a part of its name is empty`.
    pub why: String,
}

impl SyncReport {
    /// Whether everything is as it should be.
    pub fn is_complete(&self) -> bool {
        self.conflicts.count == 0 && self.failed.count == 0
    }
}

impl ObjectList {
    pub(crate) fn add(&mut self, name: impl Into<Text>, why: impl ToString) {
        self.count += 1;
        if self.named.len() < NAMED {
            self.named.push(ObjectNote {
                name: name.into(),
                why: why.to_string(),
            });
        }
    }
}
