//! What a client is told of a node that does not answer. Causes name addresses of nodes, which are no secret of anybody's.

use std::time::Duration;

use http::StatusCode;

use super::node::NodeError;
use crate::http::answer::ApiRefusal;

/// When it is worth asking again what a node that does not answer has.
pub(super) const ASK_AGAIN: Duration = Duration::from_secs(2);

/// A refusal for a node that was asked, and what that means: `what`.
pub(super) fn unreachable(error: &NodeError, what: &str) -> ApiRefusal {
    if let NodeError::Busy { .. } = error {
        return busy(error);
    }
    let told = format!("{error}: {what}");
    ApiRefusal::new(StatusCode::SERVICE_UNAVAILABLE, told).retry_after(ASK_AGAIN)
}

/// A refusal for a node that was not asked, because it has enough to do.
pub(super) fn busy(error: &NodeError) -> ApiRefusal {
    ApiRefusal::new(StatusCode::TOO_MANY_REQUESTS, error.to_string()).retry_after(ASK_AGAIN)
}
