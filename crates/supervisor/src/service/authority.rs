//! The certificate authority of a sandbox, with which its gateway opens TLS: there from the start, or made when rules
//! first ask for it.
//!
//! One that comes later has to be put into the sandbox by way of its own files: the host resolves no path in it. Programs
//! that have read their authorities already know nothing of it until they are started again.

use std::os::unix::ffi::OsStringExt as _;
use std::sync::Arc;
use std::time::Duration;

use offleash_gateway::{Gateway, Trust, TrustError};
use tokio::time::timeout;

use super::client::SupervisorClient;
use super::error::SupervisorError;
use super::files::FileChannel;
use crate::lifecycle::stores;
use offleash_planner::trust_files;

/// Files by path.
type Files = Vec<(Vec<u8>, Vec<u8>)>;

/// How long it may take to put the files into a sandbox.
const PLACED: Duration = Duration::from_secs(20);
/// Whose files they are.
const SUPERUSER: &str = "root";
/// What a new file is called until it is complete.
const NEW: &[u8] = b".offleash-new";

/// The authority of a sandbox.
#[derive(Debug)]
pub(super) struct Authority {
    trust: Option<Arc<Trust>>,
    /// Whether the sandbox was made with it.
    built_in: bool,
}

impl Authority {
    /// That of a sandbox that was made with `trust`, or with none.
    pub(super) fn of(trust: Option<&Arc<Trust>>) -> Self {
        Self {
            trust: trust.cloned(),
            built_in: trust.is_some(),
        }
    }

    /// What the gateway opens connections with.
    pub(super) fn trust(&self) -> Option<Arc<Trust>> {
        self.trust.clone()
    }

    /// What has to be in the sandbox so that its programs trust the authority, which is made if there is none. Nothing
    /// where the sandbox was made with it.
    pub(super) fn files(&mut self, gateway: &Gateway) -> Result<Files, TrustError> {
        if self.built_in {
            return Ok(Vec::new());
        }
        let trust = match &self.trust {
            Some(trust) => Arc::clone(trust),
            None => Arc::clone(self.trust.insert(Arc::new(gateway.authority()?))),
        };
        let bytes = |path: std::path::PathBuf| path.into_os_string().into_vec();
        let files = trust_files(&stores(&trust)).into_iter();
        Ok(files.map(|(path, contents)| (bytes(path), contents)).collect())
    }
}

/// Puts what an authority needs into the sandbox of `supervisor`.
///
/// # Errors
/// `Unsupported` where the sandbox has no superuser or a root that cannot be written to; `TrustStores` where what is in it is in
/// the way; `Paused`, `Gone`.
pub(super) async fn place(supervisor: &SupervisorClient, files: &[(Vec<u8>, Vec<u8>)]) -> Result<(), SupervisorError> {
    if files.is_empty() {
        return Ok(());
    }
    let late = SupervisorError::Timeout {
        operation: "put an authority into the sandbox",
    };
    let placed = async {
        let mut channel = supervisor.files(Some(SUPERUSER)).await.map_err(without_superuser)?;
        let put = async {
            for (path, contents) in files {
                replace(&mut channel, path, contents).await?;
            }
            Ok(())
        };
        // The other end of the channel is a process of the sandbox, and its files are the sandbox's: whatever goes wrong
        // with them is the doing of who is in there.
        timeout(PLACED, put).await.unwrap_or(Err(late)).map_err(in_the_way)
    };
    match placed.await {
        // The process that served the files is gone, and with it perhaps the sandbox.
        Err(error @ SupervisorError::TrustStores(_)) => supervisor.hello().await.and(Err(error)),
        other => other,
    }
}

fn in_the_way(error: SupervisorError) -> SupervisorError {
    match error {
        // Nothing of the sandbox's made it fail.
        SupervisorError::Io { .. } => error,
        other => SupervisorError::TrustStores(Box::new(other)),
    }
}

/// At no moment is a file there that is not complete.
async fn replace(channel: &mut FileChannel, path: &[u8], contents: &[u8]) -> Result<(), SupervisorError> {
    let new = [path, NEW].concat();
    // Whatever else is there by that name.
    channel.remove(&new).await?;
    let mut writer = channel.write(&new, Vec::new()).await?;
    writer.send(contents).await?;
    writer.finish().await?;
    channel.rename(&new, path).await?;
    Ok(())
}

fn without_superuser(error: SupervisorError) -> SupervisorError {
    match error {
        SupervisorError::InvalidUser(_) => SupervisorError::Unsupported {
            operation: "set headers in a sandbox that was made without rules for them".to_owned(),
        },
        other => other,
    }
}
