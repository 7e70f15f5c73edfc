//! One request to a program in a sandbox: passed on, answered by the program, both as they come.

use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use offleash_daemon::AccessRules;
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional};

use super::awaited::{AnswerProgress, awaited};
use super::slots::PortSlot;
use super::{PortTarget, headers, keys, view_only};
use crate::http::body::{self, Body};
use crate::http::peer::ClientConnection;

/// The most that the head of an answer may have, and fields in it.
const MAX_HEAD: usize = 64 * 1024;
const MAX_FIELDS: usize = 200;

/// From whom to whom.
#[derive(Debug, Clone, Copy)]
pub(super) struct ForwardPath<'a> {
    pub(super) client: &'a ClientConnection,
    pub(super) access: &'a AccessRules,
    pub(super) to: &'a PortTarget<'a>,
    /// Whether the client may ask a screen for pictures, and nothing else.
    pub(super) only_looks: bool,
}

/// Why a program's answer is not passed on.
#[derive(Debug, thiserror::Error)]
pub(super) enum ForwardError {
    /// It does not speak HTTP, or stopped.
    #[error("a program in the sandbox does not answer in HTTP")]
    Http(#[from] hyper::Error),
    /// It changes to a protocol that was not asked for: what follows would be the program's alone to say.
    #[error("a program in the sandbox changes to a protocol that was not asked for")]
    NotAskedFor,
}

/// Passes a request on over `stream`; `place` is held until the answer has ended.
///
/// # Errors
/// When the program does not speak HTTP, stops before it answers, says too much before, or changes the protocol without being asked.
pub(super) async fn forward(
    way: &ForwardPath<'_>,
    request: Request<Incoming>,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    place: PortSlot,
) -> Result<Response<Body>, ForwardError> {
    let progress = AnswerProgress::default();
    let stream = awaited(stream, progress.clone());
    let (mut sender, connection) = http1::Builder::new()
        .max_buf_size(MAX_HEAD)
        .max_headers(MAX_FIELDS)
        // As E2B's proxy writes them: a program may not know them otherwise.
        .title_case_headers(true)
        .handshake(TokioIo::new(stream))
        .await?;
    // It ends with the answer, or with the sender.
    tokio::spawn(connection.with_upgrades());
    let mut request = request;
    let asked = headers::upgrade(request.headers());
    let theirs = hyper::upgrade::on(&mut request);
    let mut request = prepared(way, request);
    let heads = progress.clone();
    hyper::ext::on_informational(&mut request, move |_| heads.head());
    let answered = sender.send_request(request).await;
    progress.answered();
    let mut response = answered?;
    // A program may speak the first version; the client's connection is another one.
    *response.version_mut() = http::Version::HTTP_11;
    let becomes = headers::upgrade(response.headers());
    let switches = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    if switches && !headers::is_among(becomes.as_ref(), asked.as_ref()) {
        return Err(ForwardError::NotAskedFor);
    }
    headers::to_client(response.headers_mut(), way.to, becomes.filter(|_| switches));
    if switches {
        let ours = hyper::upgrade::on(&mut response);
        let held = (place, way.client.held.clone());
        if way.only_looks {
            tokio::spawn(view_only::relay(theirs, ours, held));
        } else {
            tokio::spawn(relay(theirs, ours, held));
        }
        return Ok(response.map(|_| body::empty()));
    }
    Ok(response.map(|answer| body::until_end(answer.map_err(Into::into).boxed_unsync(), (place, sender))))
}

/// A request as the program gets it: with a path instead of an address.
fn prepared(way: &ForwardPath<'_>, request: Request<Incoming>) -> Request<Incoming> {
    let (mut parts, body) = request.into_parts();
    let upgrade = headers::upgrade(&parts.headers);
    let mask = way.access.mask_request_host.as_deref();
    headers::to_program(&mut parts.headers, &parts.uri, way.client, way.to, mask, upgrade);
    let path = parts.uri.path_and_query().cloned().map(keys::removed_from_query);
    parts.uri = path.map_or_else(Default::default, Into::into);
    parts.version = http::Version::HTTP_11;
    Request::from_parts(parts, body)
}

/// Carries what both say once the connection is no HTTP any more, until both are silent or one is gone. `held` are the
/// places that both connections have until then.
pub(crate) async fn relay<H>(theirs: OnUpgrade, ours: OnUpgrade, held: H) {
    if let (Ok(theirs), Ok(ours)) = tokio::join!(theirs, ours) {
        // How a connection ends that nobody answers for is no news.
        let _carried = copy_bidirectional(&mut TokioIo::new(theirs), &mut TokioIo::new(ours)).await;
    }
    drop(held);
}
