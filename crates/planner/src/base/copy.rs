//! A copy of the layer of one sandbox for another one, made by a process of its own: for who has threads, and so that
//! nobody waits for it who has something else to do.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, chown};
use std::path::Path;

use offleash_core::id::RunId;
use offleash_core::text::Text;
use offleash_isolation::process;
use offleash_protocol::Dialogue;
use offleash_store::{CopyBudget, CopyError, copy_layer};
use serde::{Deserialize, Serialize};

use super::layer::{new_of, scratch_of};

/// Which layer is to be copied for whom.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyOrder {
    /// The state directory.
    pub state: Text,
    /// Whose layer it is. Its sandbox does not run, or was not made yet.
    pub from: RunId,
    /// Whether that is one that was copied itself, and has no sandbox.
    pub is_copy: bool,
    /// For whom it is copied.
    pub to: RunId,
    /// Most bytes on disk.
    pub bytes: u64,
    /// Most files, directories and links.
    pub entries: u64,
}

impl Dialogue for CopyOrder {
    const MAX_FRAME: usize = 64 * 1024;
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum CopyAnswer {
    /// It is there.
    Copied {
        /// Bytes on disk.
        bytes: u64,
        /// Files, directories and links.
        entries: u64,
    },
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

impl Dialogue for CopyAnswer {
    const MAX_FRAME: usize = 64 * 1024;
}

/// Copies a layer, and has `answered` told what came of it: in another process, which is the superuser of the caller's ids,
/// unless the caller is root. What was copied of one that failed stays for the caller to remove.
///
/// The calling process must have one thread.
///
/// # Errors
/// What `answered` answers.
pub fn copy(order: &CopyOrder, answered: impl Fn(&CopyAnswer) -> io::Result<()>) -> io::Result<()> {
    let work = || answered(&copied(order));
    if offleash_sys::process::is_root() {
        return work();
    }
    process::as_superuser_of_own(work).or_else(|error| {
        answered(&CopyAnswer::Failed {
            reason: offleash_core::error::with_causes(&error),
            errno: None,
        })
    })
}

fn copied(order: &CopyOrder) -> CopyAnswer {
    let state = order.state.as_path();
    let from = if order.is_copy { new_of } else { scratch_of }(state, &order.from);
    let asked = CopyBudget {
        bytes: order.bytes,
        entries: order.entries,
    };
    let mut budget = asked;
    match copy_parts(&from, &new_of(state, &order.to), &mut budget) {
        Ok(()) => CopyAnswer::Copied {
            bytes: asked.bytes - budget.bytes,
            entries: asked.entries - budget.entries,
        },
        Err(CopyError::TooLarge { what }) => CopyAnswer::TooLarge { what: what.to_owned() },
        Err(error) => CopyAnswer::Failed {
            errno: match &error {
                CopyError::File(error) => error.source.raw_os_error(),
                _ => None,
            },
            reason: offleash_core::error::with_causes(&error),
        },
    }
}

/// Copies what was written in each part of a layer; what overlayfs works in is made anew.
fn copy_parts(from: &Path, to: &Path, budget: &mut CopyBudget) -> Result<(), CopyError> {
    make(to)?;
    let parts = fs::read_dir(from).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    for part in parts.map_err(|error| failed("listing", from, error))? {
        let upper = part.path().join("upper");
        if !upper.is_dir() {
            continue;
        }
        let copy = to.join(part.file_name());
        make(&copy)?;
        let copied = copy.join("upper");
        make(&copied)?;
        copy_layer(&upper, &copied, budget)?;
        // It tells from whose ids the owners in it are to be mapped.
        let owner = part
            .metadata()
            .map_err(|error| failed("examining", &part.path(), error))?;
        chown(&copy, Some(owner.uid()), Some(owner.gid())).map_err(|error| failed("giving away", &copy, error))?;
    }
    Ok(())
}

fn make(directory: &Path) -> Result<(), CopyError> {
    let made = DirBuilder::new().mode(0o700).create(directory);
    made.map_err(|error| failed("creating", directory, error))
}

fn failed(tried: &'static str, path: &Path, source: io::Error) -> CopyError {
    CopyError::File(offleash_store::FileError {
        tried,
        path: path.to_owned(),
        source,
    })
}
