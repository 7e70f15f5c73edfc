//! One request passed on to a node, and its answer back, both as they come.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, HOST, HeaderValue, UPGRADE};
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Frame, Incoming, SizeHint};

use super::node::{NodeConnection, NodeError};
use super::nodes::FrontNodes;
use super::placement::NodeNumber;
use crate::http::body::{self, Body, BodyError};
use crate::http::destination;
use crate::http::peer::ClientConnection;
use crate::traffic::forward::relay;
use crate::traffic::headers;

/// How long a node may take to begin an answer: longer than a sandbox lives, whose command an answer may wait for.
pub(super) const HEAD_TIMEOUT: Duration = Duration::from_hours(25);

/// Passes a request on, and whatever its connection becomes.
///
/// # Errors
/// When the node cannot be reached or does not answer.
pub(super) async fn forward(
    nodes: &FrontNodes,
    number: NodeNumber,
    client: &ClientConnection,
    mut request: Request<Body>,
) -> Result<Response<Body>, NodeError> {
    let connection = nodes.connect(number, client, request.headers()).await?;
    let asked = headers::upgrade(request.headers());
    let theirs = hyper::upgrade::on(&mut request);
    let answered = connection.send(for_node(client, request, asked.clone()));
    let (mut response, connection) = nodes.waited(number, HEAD_TIMEOUT, answered).await?;
    let becomes = headers::upgrade(response.headers());
    headers::remove_hop_by_hop(response.headers_mut());
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(response.map(|answer| KeptAtEnd::over(answer, connection)));
    }
    // What follows would be the node's alone to say.
    if !headers::is_among(becomes.as_ref(), asked.as_ref()) {
        return Err(NodeError::Refused {
            node: nodes.name(number),
            status: response.status(),
        });
    }
    upgrading(response.headers_mut(), becomes);
    let ours = hyper::upgrade::on(&mut response);
    tokio::spawn(relay(theirs, ours, (client.held.clone(), connection)));
    Ok(response.map(|_| body::empty()))
}

/// The body of an answer, whose connection is kept once all of it was read; it is closed if the body is given up before.
struct KeptAtEnd {
    answer: Incoming,
    connection: Option<NodeConnection>,
}

impl KeptAtEnd {
    fn over(answer: Incoming, connection: NodeConnection) -> Body {
        let connection = Some(connection);
        let mut body = Self { answer, connection };
        body.keep_at_end();
        body.boxed_unsync()
    }

    fn keep_at_end(&mut self) {
        // Who reads it asks no further then.
        if self.answer.is_end_stream()
            && let Some(connection) = self.connection.take()
        {
            connection.keep();
        }
    }
}

impl hyper::body::Body for KeptAtEnd {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let polled = ready!(Pin::new(&mut self.answer).poll_frame(cx));
        match &polled {
            Some(Ok(_)) => self.keep_at_end(),
            Some(Err(_)) => self.connection = None,
            None => {
                if let Some(connection) = self.connection.take() {
                    connection.keep();
                }
            }
        }
        Poll::Ready(polled.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.answer.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.answer.size_hint()
    }
}

/// A request as a node gets it: with a path instead of an address, and who asked.
pub(super) fn for_node(
    client: &ClientConnection,
    request: Request<Body>,
    upgrade: Option<HeaderValue>,
) -> Request<Body> {
    let (mut parts, body) = request.into_parts();
    headers::remove_hop_by_hop(&mut parts.headers);
    if parts.headers.remove(CONTENT_LENGTH).is_some()
        && let Some(length) = body.size_hint().exact()
    {
        // Where another body was put in its place, what comes next on a connection that is kept would be taken for the one announced.
        parts.headers.insert(CONTENT_LENGTH, length.into());
    }
    let host = destination::authority(&parts.uri, &parts.headers).and_then(|host| HeaderValue::from_str(host).ok());
    if let Some(host) = &host {
        // By what the front was led, the node is, too.
        parts.headers.insert(HOST, host.clone());
    }
    headers::forwarded(&mut parts.headers, client, host);
    upgrading(&mut parts.headers, upgrade);
    parts.uri = parts
        .uri
        .path_and_query()
        .cloned()
        .map_or_else(Default::default, Into::into);
    parts.version = http::Version::HTTP_11;
    Request::from_parts(parts, body)
}

fn upgrading(headers: &mut http::HeaderMap, protocol: Option<HeaderValue>) {
    if let Some(protocol) = protocol {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol);
    }
}
