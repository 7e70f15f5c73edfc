//! An image is made ready for sandboxes of a daemon: pulled, if that may be, and unpacked. It takes a process with one
//! thread, so a daemon has it done.

use offleash_core::error::{ErrorKind, Explained as _, with_causes};
use offleash_core::text::Text;
use offleash_images::{
    IdNamespace as _, ImageError, ImageReference, ImageStore, LayerOwnership, NoProgress, PullOrder, RegistrySettings,
};
use offleash_protocol::Dialogue;
use serde::{Deserialize, Serialize};

use super::CallerIds;

/// The role of a process that makes an image ready.
pub const FETCH_ROLE: &str = "fetch-image";

/// An image that is to be made ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetchOrder {
    /// The state directory.
    pub state: Text,
    /// Its name, or the digest of its manifest.
    pub name: String,
    /// How registries are reached, if it may be pulled where it is not here.
    pub pull: Option<RegistrySettings>,
}

impl Dialogue for FetchOrder {
    const MAX_FRAME: usize = 1024 * 1024;
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FetchAnswer {
    /// It is here and unpacked.
    Ready {
        /// The digest of its manifest.
        digest: String,
    },
    /// It is not.
    Failed {
        /// What kind of failure it is.
        kind: ErrorKind,
        /// What was tried, and why it failed, with its causes.
        message: String,
        /// What to do.
        hint: Option<String>,
        /// Whether it says nothing of this machine.
        is_about_image: bool,
    },
}

impl Dialogue for FetchAnswer {
    const MAX_FRAME: usize = 64 * 1024;
}

/// Makes an image ready. The calling process must have one thread.
pub fn fetch(order: &FetchOrder) -> FetchAnswer {
    match make_ready(order) {
        Ok(digest) => FetchAnswer::Ready { digest },
        Err(error) => FetchAnswer::Failed {
            kind: error.kind(),
            message: with_causes(&error),
            hint: error.hint(),
            is_about_image: error.is_about_image(),
        },
    }
}

fn make_ready(order: &FetchOrder) -> Result<String, ImageError> {
    let store = ImageStore::in_directory(order.state.as_path())?;
    let ownership = usual_ownership();
    let found = match (store.find(&order.name), &order.pull) {
        (Err(ImageError::Missing { .. }), Some(settings)) => {
            let reference: ImageReference = order.name.parse()?;
            let settings = settings.clone();
            let order = PullOrder {
                settings,
                ownership,
                kept: None,
            };
            store.pull(&reference, &order, &CallerIds, &NoProgress)?.record
        }
        (found, _) => found?,
    };
    let digest = found.digest.to_string();
    store.open_digest(&order.name, &digest, ownership, &CallerIds, &NoProgress)?;
    Ok(digest)
}

/// The form for sandboxes without a workspace, which have a range of ids where the caller has one.
fn usual_ownership() -> LayerOwnership {
    let has_range = offleash_sys::process::is_root() || CallerIds.run(&mut || Ok(())).is_ok();
    match has_range {
        true => LayerOwnership::Owned,
        false => LayerOwnership::Flat,
    }
}
