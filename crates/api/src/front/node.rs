//! A node of a front: its address, and requests over connections of their own.

use std::fmt;
use std::io;
use std::str::FromStr;
use std::time::Duration;

use bytes::Bytes;
use http::header::{HOST, HeaderValue};
use http::response::Parts;
use http::uri::{Authority, Scheme};
use http::{Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::time::timeout;

use super::budget::BudgetShare;
use crate::http::body::Body;
use crate::http::connect::connect;

/// How long a node may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// The most that the head of an answer may have, and fields in it.
const MAX_HEAD: usize = 64 * 1024;
const MAX_FIELDS: usize = 200;
/// What is read of an answer that the front reads itself.
pub(super) const MAX_READ: usize = 64 << 20;
/// The highest weight of a node.
const MAX_WEIGHT: u32 = 1000;

/// Where `offleash serve` of a node listens, and its share: `http://10.0.0.7:3000`, or `http://10.0.0.7:3000=2` for one that
/// gets twice as many sandboxes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeAddress {
    authority: Authority,
    weight: u32,
}

/// Text that is no address of a node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is no address of a node: {reason}", .given.escape_debug())]
pub struct NodeAddressError {
    given: String,
    reason: &'static str,
}

impl NodeAddress {
    /// What the node is called in answers and in the log: its host and port.
    pub fn name(&self) -> &str {
        self.authority.as_str()
    }

    /// Its share of the sandboxes.
    pub fn weight(&self) -> u32 {
        self.weight
    }

    fn host_and_port(&self) -> (&str, u16) {
        let host = self.authority.host();
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        // It has a port: that is seen to where it is read.
        (bare.unwrap_or(host), self.authority.port_u16().unwrap_or_default())
    }
}

impl FromStr for NodeAddress {
    type Err = NodeAddressError;

    fn from_str(text: &str) -> Result<Self, NodeAddressError> {
        let bad = |reason| NodeAddressError {
            given: text.to_owned(),
            reason,
        };
        let (url, weight) = match text.trim().rsplit_once('=') {
            Some((url, weight)) => (
                url,
                weight.parse().ok().filter(|weight| (1..=MAX_WEIGHT).contains(weight)),
            ),
            None => (text.trim(), Some(1)),
        };
        let weight = weight.ok_or_else(|| bad("what follows `=` must be a weight from 1 to 1000"))?;
        let uri: Uri = url.parse().map_err(|_| bad("it is no URL"))?;
        if uri.scheme() == Some(&Scheme::HTTPS) {
            return Err(bad(
                "TLS to nodes is not there yet; reach it by a tunnel, or over a network of your own, with `http://`",
            ));
        }
        if uri.scheme() != Some(&Scheme::HTTP) {
            return Err(bad("it must begin with `http://`"));
        }
        let authority = uri.authority().ok_or_else(|| bad("it names no host"))?;
        if authority.as_str().contains('@') {
            return Err(bad("it must name no user"));
        }
        if authority.port_u16().is_none_or(|port| port == 0) {
            return Err(bad("it names no port, as in `http://10.0.0.7:3000`"));
        }
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(bad("nothing may follow the port"));
        }
        let authority = authority.clone();
        Ok(Self { authority, weight })
    }
}

impl fmt::Display for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a node did not answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum NodeError {
    /// No connection: nothing of the request was sent.
    #[error("connecting to node {node}")]
    Connect {
        node: String,
        #[source]
        source: io::Error,
    },
    /// The request may have got there.
    #[error("speaking with node {node}")]
    Http {
        node: String,
        #[source]
        source: hyper::Error,
    },
    /// The answer is not what was asked for.
    #[error("node {node} answered {status}")]
    Refused { node: String, status: StatusCode },
    /// The answer cannot be read.
    #[error("reading what node {node} answered")]
    Unreadable {
        node: String,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// It took too long.
    #[error("node {node} takes too long")]
    Late { node: String },
    /// It stopped answering meanwhile.
    #[error("node {node} does not answer any more")]
    Lost { node: String },
    /// It has as many requests of the front, or of this client, as it may: nothing was sent.
    #[error("node {node} has as many requests under way {whose} as it may have through this front")]
    Busy { node: String, whose: &'static str },
    /// It names sandboxes that another node has.
    #[error("node {node} lists sandboxes of node {other}: they are two names of one machine, or one of them lies")]
    Doubled { node: String, other: String },
}

/// A connection to a node, for one request at a time.
#[derive(Debug)]
pub(super) struct NodeConnection {
    sender: SendRequest<Body>,
    node: NodeAddress,
    /// Its place among the requests to the node.
    _place: Option<BudgetShare>,
}

impl NodeConnection {
    /// Connects to a node.
    ///
    /// # Errors
    /// `Connect`, after which the request can go to another node.
    pub(super) async fn open(node: &NodeAddress) -> Result<Self, NodeError> {
        let failed = |source| NodeError::Connect {
            node: node.name().to_owned(),
            source,
        };
        let (host, port) = node.host_and_port();
        let connected = timeout(CONNECT_TIMEOUT, connect(host, port)).await;
        let stream = connected
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            .map_err(failed)?;
        let _set = stream.set_nodelay(true);
        let _set = rustix::net::sockopt::set_socket_keepalive(&stream, true);
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(MAX_HEAD)
            .max_headers(MAX_FIELDS)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|source| failed(io::Error::other(source)))?;
        // It ends with the answer, or with the sender.
        tokio::spawn(connection.with_upgrades());
        let node = node.clone();
        let _place = None;
        Ok(Self { sender, node, _place })
    }

    /// The same connection, which holds a place until it ends.
    pub(super) fn at(mut self, place: BudgetShare) -> Self {
        self._place = Some(place);
        self
    }

    /// Whether a further request can be sent over it, as far as is known.
    pub(super) fn is_open(&self) -> bool {
        !self.sender.is_closed()
    }

    /// Sends a request, and waits for the head of its answer, which ends early if the connection is dropped.
    ///
    /// # Errors
    /// `Http`.
    pub(super) async fn send(mut self, mut request: Request<Body>) -> Result<(Response<Incoming>, Self), NodeError> {
        let failed = |source| NodeError::Http {
            node: self.node.name().to_owned(),
            source,
        };
        if !request.headers().contains_key(HOST)
            && let Ok(host) = HeaderValue::from_str(self.node.name())
        {
            request.headers_mut().insert(HOST, host);
        }
        self.sender.ready().await.map_err(failed)?;
        let response = self.sender.send_request(request).await.map_err(failed)?;
        Ok((response, self))
    }

    /// Sends a request, and reads all of its answer, of at most `most` bytes.
    ///
    /// # Errors
    /// `Http`; `Unreadable`, also for an answer that is longer; `Refused` for one that changes the protocol.
    pub(super) async fn ask(self, request: Request<Body>, most: usize) -> Result<(Parts, Bytes, Self), NodeError> {
        let (response, connection) = self.send(request).await?;
        let (head, answer) = response.into_parts();
        if head.status.is_informational() {
            // Nothing was asked that could become another protocol.
            return Err(NodeError::Refused {
                node: connection.node.name().to_owned(),
                status: head.status,
            });
        }
        let read = Limited::new(answer, most).collect().await;
        let read = read.map_err(|source| NodeError::Unreadable {
            node: connection.node.name().to_owned(),
            source,
        })?;
        Ok((head, read.to_bytes(), connection))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_host_a_port_and_perhaps_a_weight() {
        for (given, name, weight, reached) in [
            ("http://127.0.0.1:3000", "127.0.0.1:3000", 1, ("127.0.0.1", 3000)),
            ("http://node-1:3000/", "node-1:3000", 1, ("node-1", 3000)),
            ("http://[::1]:9=7", "[::1]:9", 7, ("::1", 9)),
        ] {
            let node: NodeAddress = given.parse().unwrap();
            assert_eq!(
                (node.name(), node.weight(), node.host_and_port()),
                (name, weight, reached)
            );
        }
        for given in [
            "",
            "127.0.0.1:3000",
            "https://a:3000",
            "http://a",
            "http://a:0",
            "http://u:p@a:3000",
            "http://a:3000/v1",
            "http://a:3000/?b=c",
            "http://a:3000=0",
            "http://a:3000=1001",
            "http://a:3000=x",
        ] {
            assert!(given.parse::<NodeAddress>().is_err(), "{given}");
        }
    }
}
