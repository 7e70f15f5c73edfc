//! Requests that are answered before they are done with: over a WebSocket, or for whoever asks later.

use std::sync::Arc;

use http::request::Parts;
use offleash_daemon::Caller;

use super::{ApiRequest, ControlPlane};
use crate::http::peer::ClientConnection;

/// A request that outlives its answer, with all that it was asked with.
#[derive(Debug)]
pub(crate) struct LastingRequest {
    control: Arc<ControlPlane>,
    client: ClientConnection,
    caller: Caller,
    parts: Parts,
}

impl LastingRequest {
    /// The request, for whoever does what it asks for.
    pub(crate) fn asked(&self) -> ApiRequest<'_> {
        ApiRequest {
            control: &self.control,
            client: &self.client,
            caller: self.caller.clone(),
            parts: &self.parts,
        }
    }
}

impl ApiRequest<'_> {
    /// The same for what goes on over the client's connection, which keeps its slot until that ends.
    pub(crate) fn lasting(&self) -> LastingRequest {
        LastingRequest {
            control: Arc::clone(self.control),
            client: self.client.clone(),
            caller: self.caller.clone(),
            parts: self.parts.clone(),
        }
    }

    /// The same for what goes on without the client.
    pub(crate) fn detached(&self) -> LastingRequest {
        let mut lasting = self.lasting();
        lasting.client.held = None;
        lasting
    }
}
