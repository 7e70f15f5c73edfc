//! What whoever hands out a sandbox's supervisor wants to know of its use.

use std::fmt;
use std::pin::Pin;

use super::error::SupervisorError;
use super::message::StartExec;

/// A use of a sandbox: there as long as a client of its supervisor lives that was handed out with it, or a stream or a channel
/// that comes from such a client.
pub trait SandboxUse: fmt::Debug + Send + Sync {
    /// Is asked for a command before that is started, which waits for the answer.
    ///
    /// # Errors
    /// Why it is not to be started: `NotAllowed`.
    fn before_start<'a>(
        &'a self,
        start: &'a StartExec,
    ) -> Pin<Box<dyn Future<Output = Result<(), SupervisorError>> + Send + 'a>>;
}
