//! The protocol over a connection to the owner's socket, as over standard streams: what `offleash mcp --server` speaks.
//!
//! The connection begins as a request (`GET /mcp` that asks to be upgraded), so that whoever speaks is known and counted as
//! with any other, and is one session until either side ends it.

use http::header::{CONNECTION, UPGRADE};
use http::request::Parts;
use http::{HeaderValue, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;

use super::http::McpService;
use crate::control::ApiRequest;
use crate::http::answer::ApiRefusal;
use crate::http::body::{self, Body};
use crate::http::peer::{ClientConnection, ClientPeer};

/// What the connection becomes.
pub(crate) const PROTOCOL: HeaderValue = HeaderValue::from_static("offleash-mcp");

/// Whether a request is for this. Others than the owner have HTTP, where sessions in which nothing is said end.
pub(crate) fn is_asked_for(client: &ClientConnection, parts: &Parts) -> bool {
    client.peer == ClientPeer::Owner && parts.headers.get(UPGRADE) == Some(&PROTOCOL)
}

/// Begins a session of a caller who may make sandboxes; it is spoken in when this is answered.
pub(crate) fn answer(
    mcp: &McpService,
    asked: &ApiRequest<'_>,
    client: &ClientConnection,
) -> Result<Response<Body>, ApiRefusal> {
    let (session, ending) = mcp.begin(asked)?;
    let theirs = hyper::upgrade::on(Request::from_parts(asked.parts.clone(), ()));
    let place = client.held.clone();
    tokio::spawn(async move {
        let conversation = async {
            if let Ok(stream) = theirs.await {
                let (input, output) = tokio::io::split(TokioIo::new(stream));
                // A client that goes in the middle of a word is one that has gone.
                let _ended = super::converse(session, input, output).await;
            }
        };
        tokio::select! {
            () = conversation => {}
            () = ending => {}
        }
        drop(place);
    });
    let mut response = Response::new(body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, PROTOCOL);
    Ok(response)
}
