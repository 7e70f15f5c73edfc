//! A node of a front: connections to it, and requests over them.
//!
//! A connection may have been kept from an earlier request. What was not sent over it, because it had ended, goes over a new
//! one; what may have been sent is sent by nobody again.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{HOST, HeaderValue};
use http::response::Parts;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use offleash_core::network::AddressClass;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::address::NodeAddress;
use super::budget::BudgetShare;
use super::kept::KeptConnections;
use crate::http::body::Body;
use crate::http::certificates;
use crate::http::connect::connect;

/// How long a node may take to accept a connection, and as long again for TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// The most that the head of an answer may have, and fields in it.
const MAX_HEAD: usize = 64 * 1024;
const MAX_FIELDS: usize = 200;
/// What is read of an answer that the front reads itself.
pub(super) const MAX_READ: usize = 64 << 20;

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
    /// It shows no certificate that is its own: nothing of the request was sent.
    #[error("node {node} shows no certificate of the name that it has and of an authority that is trusted")]
    Untrusted {
        node: String,
        #[source]
        source: io::Error,
    },
    /// It is none any more: nothing of the request was sent.
    #[error("the node is none of the front's any more")]
    Gone,
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
    /// A name leads to an address that no name makes a node.
    #[error("the name {name} leads to {address}, {class}, which is no node unless `--node` names it")]
    Misplaced {
        name: String,
        address: IpAddr,
        class: AddressClass,
    },
    /// A name leads to more than a front takes.
    #[error("the name {name} leads to {found} addresses, and {most} nodes are taken")]
    TooMany { name: String, found: usize, most: usize },
    /// It is not known where a name leads.
    #[error("asking where the name {name} leads")]
    Unresolved {
        name: String,
        #[source]
        source: io::Error,
    },
}

impl NodeError {
    /// Which node it is about.
    pub(super) fn node(&self) -> Option<&str> {
        match self {
            Self::Connect { node, .. }
            | Self::Untrusted { node, .. }
            | Self::Http { node, .. }
            | Self::Refused { node, .. }
            | Self::Unreadable { node, .. }
            | Self::Late { node }
            | Self::Lost { node }
            | Self::Busy { node, .. }
            | Self::Doubled { node, .. } => Some(node),
            Self::Gone | Self::Misplaced { .. } | Self::TooMany { .. } | Self::Unresolved { .. } => None,
        }
    }

    /// Whether nothing of a request was sent, because there was no connection: another node can be asked.
    pub(super) fn is_unsent(&self) -> bool {
        matches!(self, Self::Connect { .. } | Self::Untrusted { .. } | Self::Gone)
    }
}

/// Where a node is, and how it is spoken with.
#[derive(Clone)]
pub(super) struct NodeEndpoint {
    pub(super) address: NodeAddress,
    /// Whom its certificate is vouched for by, where TLS is spoken.
    tls: Option<TlsConnector>,
}

impl std::fmt::Debug for NodeEndpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.address.fmt(f)
    }
}

impl NodeEndpoint {
    /// `tls` is there wherever an address wants it.
    pub(super) fn new(address: NodeAddress, tls: Option<&TlsConnector>) -> Self {
        let tls = tls.filter(|_| address.is_tls()).cloned();
        Self { address, tls }
    }

    fn connect_failed(&self, source: io::Error) -> NodeError {
        let node = self.address.name().to_owned();
        match certificates::is_refused(&source) {
            true => NodeError::Untrusted { node, source },
            false => NodeError::Connect { node, source },
        }
    }

    /// Connects, and begins HTTP.
    async fn open(&self) -> io::Result<SendRequest<Body>> {
        let (host, port) = self.address.host_and_port();
        let stream = in_time(connect(host, port)).await?;
        let _set = stream.set_nodelay(true);
        let _set = rustix::net::sockopt::set_socket_keepalive(&stream, true);
        match (&self.tls, self.address.is_tls()) {
            (Some(tls), _) => {
                let name = ServerName::try_from(self.address.verified_as().to_owned()).map_err(io::Error::other)?;
                begun(in_time(tls.connect(name, stream)).await?).await
            }
            (None, false) => begun(stream).await,
            (None, true) => Err(io::Error::other(
                "no authorities were read that certificates are checked by",
            )),
        }
    }
}

async fn in_time<T>(connecting: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let connected = timeout(CONNECT_TIMEOUT, connecting).await;
    connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

async fn begun<S>(stream: S) -> io::Result<SendRequest<Body>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut http = http1::Builder::new();
    http.max_buf_size(MAX_HEAD).max_headers(MAX_FIELDS);
    let (sender, connection) = http.handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    // It ends with the answer, or with the sender.
    tokio::spawn(connection.with_upgrades());
    Ok(sender)
}

/// A connection to a node, for one request at a time.
#[derive(Debug)]
pub(super) struct NodeConnection {
    sender: SendRequest<Body>,
    node: NodeEndpoint,
    /// Whether there were requests over it before.
    is_used: bool,
    /// Where it is kept when it is free.
    home: Option<Arc<KeptConnections>>,
    /// Its place among the requests to the node.
    _place: Option<BudgetShare>,
}

impl NodeConnection {
    /// Connects to a node.
    ///
    /// # Errors
    /// One of those of which [`NodeError::is_unsent`] is true.
    pub(super) async fn open(node: &NodeEndpoint) -> Result<Self, NodeError> {
        let sender = node.open().await.map_err(|source| node.connect_failed(source))?;
        Ok(Self::over(sender, node, false))
    }

    fn over(sender: SendRequest<Body>, node: &NodeEndpoint, is_used: bool) -> Self {
        Self {
            sender,
            node: node.clone(),
            is_used,
            home: None,
            _place: None,
        }
    }

    /// A connection to a node that was kept, or a new one; it is kept again when it is free, and holds `place` until then.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub(super) async fn kept_or_new(
        node: &NodeEndpoint,
        home: &Arc<KeptConnections>,
        place: BudgetShare,
    ) -> Result<Self, NodeError> {
        let connection = match home.take() {
            Some(sender) => Self::over(sender, node, true),
            None => Self::open(node).await?,
        };
        Ok(Self {
            home: Some(Arc::clone(home)),
            _place: Some(place),
            ..connection
        })
    }

    /// Whether a further request can be sent over it, as far as is known.
    pub(super) fn is_open(&self) -> bool {
        !self.sender.is_closed()
    }

    /// The answer was read to its end: further requests may go over it.
    pub(super) fn keep(self) {
        if let Some(home) = self.home {
            home.put(self.sender);
        }
    }

    /// Sends a request, and waits for the head of its answer, which ends early if the connection is dropped.
    ///
    /// # Errors
    /// `Http`, after which the request may have got there; those of [`Self::open`].
    pub(super) async fn send(mut self, mut request: Request<Body>) -> Result<(Response<Incoming>, Self), NodeError> {
        if !request.headers().contains_key(HOST)
            && let Ok(host) = HeaderValue::from_str(self.node.address.name())
        {
            request.headers_mut().insert(HOST, host);
        }
        loop {
            let mut unsent = match self.sender.try_send_request(request).await {
                Ok(response) => return Ok((response, self)),
                Err(unsent) => unsent,
            };
            match unsent.take_message() {
                // It had ended, and nothing of the request was sent.
                Some(given_back) if self.is_used => {
                    request = given_back;
                    let opened = self.node.open().await;
                    self.sender = opened.map_err(|source| self.node.connect_failed(source))?;
                    self.is_used = false;
                }
                _ => {
                    return Err(NodeError::Http {
                        node: self.node.address.name().to_owned(),
                        source: unsent.into_error(),
                    });
                }
            }
        }
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
                node: connection.node.address.name().to_owned(),
                status: head.status,
            });
        }
        let read = Limited::new(answer, most).collect().await;
        let read = read.map_err(|source| NodeError::Unreadable {
            node: connection.node.address.name().to_owned(),
            source,
        })?;
        Ok((head, read.to_bytes(), connection))
    }
}
