//! One address before the servers of several machines: a sandbox is made where there is room, and found where it is.
//!
//! A front keeps nothing: which node has a sandbox is what nodes say. It judges no key either; each request goes to a node
//! with the key that its client showed, and the node judges it. Deliberately not here: volumes, secrets, templates, keys and
//! everything else that belongs to one node.

mod address;
mod budget;
mod creating;
mod discovery;
mod forwarding;
mod kept;
mod listing;
mod moving;
mod node;
mod nodes;
mod placement;
mod polling;
mod remembered;
mod routing;
mod status;
mod unreachable;

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{CONNECTION, EXPECT};
use http::request::Parts;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use offleash_daemon::{ApiKey, DaemonError, client_tls};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};

pub use self::address::{NodeAddress, NodeAddressError, NodesName};
use self::node::{MAX_READ, NodeError};
use self::nodes::{ClientTls, FrontNodes, MAX_OF_CLIENT};
use self::placement::{NodeNumber, SandboxPlace};
use self::routing::FrontRoute;
use self::unreachable::{ASK_AGAIN, unreachable};
use crate::control;
use crate::http::answer::{self, ApiRefusal};
use crate::http::body::{self, Body};
use crate::http::clients::{ClientSlots, TooManyClients};
use crate::http::destination;
use crate::http::failure;
use crate::http::peer::ClientConnection;
use crate::journal::{Event, Journal, RequestEvent};
use crate::server::connection::{self, ConnectionHold, RequestService};
use crate::server::figures::AnswerTally;
use crate::server::listen;
use crate::server::{Certificate, Listen, ListenError, ServeError, TlsFiles, tls};
use crate::ui;

/// How many clients that are too many are told so at once; further ones are cut.
const MAX_TURNED_AWAY: usize = 64;
/// How long to wait after an accept that failed for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Connections at a time, and from one address: half of those that a node takes of the front.
const MAX_CONNECTIONS: usize = 16 * 1024;
const MAX_OF_ADDRESS: usize = 2 * MAX_OF_CLIENT;
/// How long whoever asks for a sandbox waits while it goes from one node to another, and how often it is looked whether it is there.
const MOVING_PATIENCE: Duration = Duration::from_secs(30);
const MOVING_LOOK: Duration = Duration::from_millis(50);
/// How long a node may take to say what the front asks of it in a client's name: names, versions, whether it knows something.
const ASK_TIMEOUT: Duration = Duration::from_secs(10);

/// What the owner of a front can set.
#[derive(Debug)]
pub struct FrontConfig {
    /// Where to listen.
    pub listen: Listen,
    /// What TLS is spoken with; none is spoken if absent.
    pub tls: Option<TlsFiles>,
    /// Whether an address that others can reach may be listened on without TLS.
    pub insecure_public: bool,
    /// The domain below which `PORT-ID.DOMAIN` names a port inside a sandbox; the nodes have the same.
    pub domain: Option<String>,
    /// The nodes that were named.
    pub nodes: Vec<NodeAddress>,
    /// Names that lead to further nodes.
    pub names: Vec<NodesName>,
    /// Files with authorities that certificates of nodes may have, PEM, beside those of the machine.
    pub authorities: Vec<PathBuf>,
    /// A key of the scope `overview`, which every node takes: their lists are asked for with it.
    pub key: ApiKey,
    /// How long requests may go on once the front is told to end.
    pub drain: Duration,
}

/// A front that listens.
#[derive(Debug)]
pub struct Front {
    listener: TcpListener,
    drain: Duration,
    state: Arc<FrontState>,
}

#[derive(Debug)]
struct FrontState {
    nodes: Arc<FrontNodes>,
    domain: Option<String>,
    url: String,
    tls: Option<Arc<rustls::ServerConfig>>,
    slots: Arc<ClientSlots>,
    tally: AnswerTally,
    refusals: status::RefusalTally,
    /// Held while a node is drained.
    drains: Arc<tokio::sync::Mutex<()>>,
    journal: Arc<dyn Journal>,
}

impl Front {
    /// Listens; requests wait until [`Front::run`].
    ///
    /// # Errors
    /// When it cannot listen there, or should not, and when authorities cannot be read.
    pub async fn bind(config: FrontConfig, journal: Arc<dyn Journal>) -> Result<Self, ServeError> {
        let certificate = config.tls.map(Certificate::read).transpose()?;
        let tls = certificate.map(tls::config).transpose()?;
        let (listener, address) = listen::tcp(config.listen).await?;
        if !address.ip().is_loopback() && tls.is_none() && !config.insecure_public {
            return Err(ListenError::Public { address }.into());
        }
        let url = listen::url(address, tls.is_some());
        let domain = config
            .domain
            .as_deref()
            .map(|domain| destination::without_port(domain).to_ascii_lowercase());
        let speaks_tls = config.nodes.iter().any(NodeAddress::is_tls) || config.names.iter().any(NodesName::is_tls);
        let nodes_tls = speaks_tls.then(|| client_tls(&config.authorities)).transpose()?;
        let nodes = FrontNodes::new(config.nodes, config.names, nodes_tls.map(ClientTls), config.key);
        let nodes = Arc::new(nodes);
        let state = Arc::new(FrontState {
            nodes,
            domain: domain.or_else(|| Some("localhost".to_owned()).filter(|_| address.ip().is_loopback())),
            url,
            tls,
            slots: ClientSlots::new(MAX_CONNECTIONS, MAX_OF_ADDRESS),
            tally: AnswerTally::default(),
            refusals: status::RefusalTally::default(),
            drains: Arc::default(),
            journal,
        });
        Ok(Self {
            listener,
            drain: config.drain,
            state,
        })
    }

    /// What clients on this machine call the front, as in `http://127.0.0.1:3000`.
    pub fn url(&self) -> &str {
        &self.state.url
    }

    /// Asks every node once, so that what does not do is found out before anybody needs it.
    ///
    /// # Errors
    /// When a node answers that does not take the key, or shows a certificate that is not its own. Nodes that names lead to
    /// come and go: it is an error if none of all does. Nodes that do not answer are asked again by [`Front::run`].
    pub async fn check(&self) -> Result<(), ServeError> {
        let nodes = &self.state.nodes;
        discovery::first(nodes).await;
        let named = |error: &NodeError| {
            let name = error.node();
            nodes
                .all()
                .iter()
                .any(|(_, node)| !node.address().is_found() && Some(node.name()) == name)
        };
        let count = nodes.all().len();
        let wrong: Vec<NodeError> = polling::ask_all(nodes).await.into_iter().filter(is_for_good).collect();
        let is_all = wrong.len() == count;
        match wrong.into_iter().find(|error| is_all || named(error)) {
            Some(error) => Err(start_refused(error)),
            None => Ok(()),
        }
    }

    /// Answers requests until `end` is there; then takes no more and lets those go on that began.
    pub async fn run(self, end: impl Future<Output = ()>) {
        let mut polls = tokio::task::JoinSet::new();
        for number in self.state.nodes.numbers() {
            polls.spawn(polling::poll(
                Arc::clone(&self.state.nodes),
                number,
                Arc::clone(&self.state.journal),
            ));
        }
        for name in &self.state.nodes.names {
            polls.spawn(discovery::follow(
                Arc::clone(&self.state.nodes),
                name.clone(),
                Arc::clone(&self.state.journal),
            ));
        }
        let (ending, hears) = watch::channel(false);
        tokio::select! {
            () = end => {}
            () = self.accept(&hears) => {}
        }
        drop((self.listener, hears));
        // Nobody may be there to be told.
        let _told = ending.send(true);
        // What is not done by then is cut.
        let _drained = tokio::time::timeout(self.drain, ending.closed()).await;
    }

    async fn accept(&self, hears: &watch::Receiver<bool>) {
        let away = Arc::new(Semaphore::new(MAX_TURNED_AWAY));
        loop {
            let (stream, peer) = match self.listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    // A client that was gone before it was taken is none of our troubles.
                    if error.kind() != std::io::ErrorKind::ConnectionAborted {
                        self.state.journal.record(&Event::Accept { error: &error });
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                    continue;
                }
            };
            match self.state.slots.admit(Some(peer.ip())) {
                Ok(place) => {
                    let ending = hears.clone();
                    let held = ConnectionHold { place, ending };
                    tokio::spawn(connection::serve_tcp(stream, peer, Arc::clone(&self.state), held));
                }
                Err(why) => {
                    let address = matches!(why, TooManyClients::OfAddress(_)).then_some(peer.ip());
                    let most = why.most();
                    self.state.journal.record(&Event::Full { most, address });
                    if let Ok(turn) = Arc::clone(&away).try_acquire_owned() {
                        tokio::spawn(connection::turn_away(stream, why, turn));
                    }
                }
            }
        }
    }
}

impl RequestService for FrontState {
    fn answer(
        &self,
        client: &ClientConnection,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<Body>> + Send {
        self.told(client, request)
    }

    fn tls(&self) -> Option<Arc<rustls::ServerConfig>> {
        self.tls.clone()
    }
}

impl FrontState {
    async fn told(&self, client: &ClientConnection, request: Request<Incoming>) -> Response<Body> {
        let answering = client.busy.begin();
        let began = Instant::now();
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let mut sandbox = None;
        let response = match self.answered(client, request, &mut sandbox).await {
            Ok(response) => response,
            Err(refusal) => {
                let answer = refusal.answer();
                self.refusals.refused(answer.status());
                answer
            }
        };
        self.tally.answered(&method, response.status(), began.elapsed());
        self.journal.record(&Event::Request(&RequestEvent {
            peer: client.peer.address(),
            key: None,
            sandbox: sandbox.as_deref(),
            port: None,
            method: method.as_str(),
            path: &path,
            status: response.status().as_u16(),
            took: began.elapsed(),
        }));
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            answering.forever();
            return response;
        }
        response.map(|body| body::until_end(body, answering))
    }

    async fn answered(
        &self,
        client: &ClientConnection,
        request: Request<Incoming>,
        sandbox: &mut Option<String>,
    ) -> Result<Response<Body>, ApiRefusal> {
        let (parts, body) = request.into_parts();
        if matches!(parts.method, Method::CONNECT | Method::TRACE) {
            return Err(ApiRefusal::wrong_method(&parts.method).closing());
        }
        if routing::is_addressed_twice(&parts) {
            let told = "the request is addressed to more than one host";
            return Err(ApiRefusal::bad_request(told).closing());
        }
        let route = routing::route(&parts, self.domain.as_deref());
        let route = route.map_err(|error| ApiRefusal::bad_request(error.to_string()))?;
        // Browsers ask without a key whether they may show one.
        if route.needs_key() && parts.method != Method::OPTIONS {
            self.shows_key(&parts.headers)?;
        }
        match route {
            FrontRoute::Health => Ok(answer::empty(StatusCode::NO_CONTENT)),
            FrontRoute::Ready => self.ready(),
            FrontRoute::Sandbox(id) => {
                let node = self.node_of(&id).await;
                *sandbox = Some(id);
                let node = match node? {
                    Some(node) => node,
                    // One that answers says in its own words that nobody has it.
                    None => self.nobody_silent().and_then(|()| self.any())?,
                };
                self.forwarded(client, node, parts, body).await
            }
            FrontRoute::SandboxApi(id) => {
                let node = self.node_of(&id).await;
                *sandbox = Some(id.clone());
                match node? {
                    Some(node) => self.forwarded(client, node, parts, body).await,
                    None => self.asked_of_all(client, &id, parts, body).await,
                }
            }
            FrontRoute::Create => creating::create(&self.nodes, client, parts, body).await,
            FrontRoute::List(form) => listing::list(&self.nodes, client, &parts, form).await,
            FrontRoute::Name => self.called(client, parts).await,
            FrontRoute::Version => self.version(client, parts).await,
            FrontRoute::Viewer => ui::answer(&parts).ok_or_else(|| ApiRefusal::not_found("there is no such file")),
            FrontRoute::Nodes => self.overseen(client, &parts, Self::nodes_told).await,
            FrontRoute::Drain => self.drain_node(client, &parts, body).await,
            FrontRoute::Metrics => self.overseen(client, &parts, Self::metrics).await,
            FrontRoute::Any => self.forwarded(client, self.any()?, parts, body).await,
            FrontRoute::OfOneNode => {
                let told = "this belongs to one node, of which the front knows nothing; ask the node itself";
                Err(ApiRefusal::new(StatusCode::NOT_IMPLEMENTED, told).final_answer())
            }
        }
    }

    fn ready(&self) -> Result<Response<Body>, ApiRefusal> {
        self.any().map(|_| answer::empty(StatusCode::NO_CONTENT))
    }

    /// A node that answers.
    fn any(&self) -> Result<NodeNumber, ApiRefusal> {
        let first = self.nodes.alive().first().copied();
        first.ok_or_else(|| ApiRefusal::new(StatusCode::SERVICE_UNAVAILABLE, "no node answers").retry_after(ASK_AGAIN))
    }

    /// Refuses whoever shows no key, before anything is held for it. Whether a key is valid is a node's to say.
    fn shows_key(&self, headers: &HeaderMap) -> Result<(), ApiRefusal> {
        let shown = control::key(headers).ok().flatten();
        if shown.is_some_and(|key| key.parse::<ApiKey>().is_ok()) {
            return Ok(());
        }
        Err(failure::refusal(&*self.journal, &DaemonError::Unauthorized, false).closing())
    }

    /// Where a sandbox is, once it has arrived; one that is on its way for long is said to be.
    async fn settled_place(&self, id: &str) -> SandboxPlace {
        let began = Instant::now();
        loop {
            let place = self.nodes.table().find(id, self.nodes.now());
            if place != SandboxPlace::Moving || began.elapsed() > MOVING_PATIENCE {
                return place;
            }
            tokio::time::sleep(MOVING_LOOK).await;
        }
    }

    /// The node that has a sandbox, as far as nodes have said.
    async fn node_of(&self, id: &str) -> Result<Option<NodeNumber>, ApiRefusal> {
        for is_last in [false, true] {
            let place = self.settled_place(id).await;
            match place {
                SandboxPlace::At(node) => return Ok(Some(node)),
                SandboxPlace::Lost(node) => {
                    let told = format!("node {}, which has the sandbox, does not answer", self.nodes.name(node));
                    return Err(ApiRefusal::new(StatusCode::SERVICE_UNAVAILABLE, told).retry_after(ASK_AGAIN));
                }
                SandboxPlace::Moving => {
                    let told = "the sandbox is on its way from one node to another";
                    return Err(ApiRefusal::new(StatusCode::SERVICE_UNAVAILABLE, told).retry_after(ASK_AGAIN));
                }
                SandboxPlace::Unknown if !is_last => polling::refresh(&self.nodes).await,
                SandboxPlace::Unknown => {}
            }
        }
        Ok(None)
    }

    /// Nobody is said not to have something while a node does not answer that may have it.
    fn nobody_silent(&self) -> Result<(), ApiRefusal> {
        let silent = self.nodes.silent();
        if silent.is_empty() {
            return Ok(());
        }
        let told = format!(
            "no node that answers has the sandbox; {} does not answer",
            silent.join(", ")
        );
        Err(ApiRefusal::new(StatusCode::SERVICE_UNAVAILABLE, told).retry_after(ASK_AGAIN))
    }

    /// Asks nodes one after the other for a sandbox that none has listed: it has ended, or its node has too many to list.
    async fn asked_of_all(
        &self,
        client: &ClientConnection,
        id: &str,
        parts: Parts,
        body: Incoming,
    ) -> Result<Response<Body>, ApiRefusal> {
        if !matches!(parts.method, Method::GET | Method::HEAD) {
            // What is sent along can be sent once.
            let mut asked = parts.clone();
            asked.method = Method::GET;
            asked.uri = routing::known_at(parts.uri.path(), id).parse().unwrap_or_default();
            for name in [EXPECT, CONNECTION] {
                asked.headers.remove(name);
            }
            let knows = self.first_that_knows(client, &asked).await?;
            let node = match knows {
                Some((node, _)) => node,
                None => self.nobody_silent().and_then(|()| self.any())?,
            };
            return self.forwarded(client, node, parts, body).await;
        }
        match self.first_that_knows(client, &parts).await? {
            Some((_, answer)) => Ok(answer),
            None => {
                self.nobody_silent()?;
                self.forwarded(client, self.any()?, parts, body).await
            }
        }
    }

    /// The first node that answers a request without a body otherwise than by 404, and its answer.
    async fn first_that_knows(
        &self,
        client: &ClientConnection,
        parts: &Parts,
    ) -> Result<Option<(NodeNumber, Response<Body>)>, ApiRefusal> {
        let mut failed = None;
        for node in self.nodes.alive() {
            let request = Request::from_parts(parts.clone(), body::empty());
            let asked = forwarding::forward(&self.nodes, node, client, request);
            match self.nodes.waited(node, ASK_TIMEOUT, asked).await {
                Ok(answer) if answer.status() == StatusCode::NOT_FOUND => {}
                Ok(answer) => return Ok(Some((node, answer))),
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(error) => Err(unreachable(&error, "it may have what is asked for")),
            None => Ok(None),
        }
    }

    async fn forwarded(
        &self,
        client: &ClientConnection,
        node: NodeNumber,
        parts: Parts,
        body: Incoming,
    ) -> Result<Response<Body>, ApiRefusal> {
        let request = Request::from_parts(parts, body.map_err(Into::into).boxed_unsync());
        let answered = forwarding::forward(&self.nodes, node, client, request).await;
        answered.map_err(|error| match error.is_unsent() {
            true => unreachable(&error, "nothing of the request was sent"),
            false => unreachable(&error, "what was asked may have been done"),
        })
    }

    /// Asks nodes for a name until one knows it; what the last one said, if none does.
    async fn called(&self, client: &ClientConnection, parts: Parts) -> Result<Response<Body>, ApiRefusal> {
        let (mut last, mut failed) = (None, None);
        for node in self.nodes.alive() {
            match self.asked(node, client, parts.clone()).await {
                Ok((status, text)) if is_no_name(status, &text) => last = Some((status, text)),
                Ok((status, text)) => return Ok(answer::written(status, text.to_vec())),
                Err(error) => failed = Some(error),
            }
        }
        match (failed, last) {
            (Some(error), _) => Err(unreachable(&error, "it may know the name")),
            (None, Some((status, text))) => Ok(answer::written(status, text.to_vec())),
            (None, None) => self.any().map(|_| answer::empty(StatusCode::NOT_FOUND)),
        }
    }

    /// Asks a node what has no body, and reads all that it answers.
    async fn asked(
        &self,
        number: NodeNumber,
        client: &ClientConnection,
        parts: Parts,
    ) -> Result<(StatusCode, Bytes), NodeError> {
        let asked = async {
            let connection = self.nodes.connect(number, client, &parts.headers).await?;
            let request = Request::from_parts(parts, body::empty());
            connection
                .ask(forwarding::for_node(client, request, None), MAX_READ)
                .await
        };
        let (head, text, connection) = self.nodes.waited(number, ASK_TIMEOUT, asked).await?;
        connection.keep();
        Ok((head.status, text))
    }

    /// A node's version, to a client that the node knows, with the address of the front.
    async fn version(&self, client: &ClientConnection, parts: Parts) -> Result<Response<Body>, ApiRefusal> {
        let number = self.any()?;
        let told = self.asked(number, client, parts).await;
        let (status, text) = told.map_err(|error| unreachable(&error, "it was asked for its version"))?;
        if status != StatusCode::OK {
            return Ok(answer::written(status, text.to_vec()));
        }
        let version: Result<Value, _> = serde_json::from_slice(&text);
        let mut version = version.map_err(|_| {
            let told = format!(
                "what node {} said of its version cannot be read",
                self.nodes.name(number)
            );
            ApiRefusal::new(StatusCode::BAD_GATEWAY, told)
        })?;
        if let Some(url) = version.get_mut("url") {
            *url = self.url.clone().into();
        }
        Ok(answer::json(StatusCode::OK, &version))
    }
}

/// Whether what a node did will be the same when it is asked again.
fn is_for_good(error: &NodeError) -> bool {
    let is_about_key = |status: &StatusCode| [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN].contains(status);
    match error {
        NodeError::Refused { status, .. } => is_about_key(status),
        error => matches!(error, NodeError::Untrusted { .. }),
    }
}

/// Why there is no front before nodes that do not do.
fn start_refused(error: NodeError) -> ServeError {
    match error {
        NodeError::Refused { node, status } => ServeError::FrontKey {
            node,
            why: match status {
                StatusCode::UNAUTHORIZED => "it has no such key",
                _ => "the key has neither the scope `overview` nor `admin`",
            },
        },
        error => ServeError::FrontNode(Box::new(error)),
    }
}

/// Whether a node says that it knows no sandbox of a name.
fn is_no_name(status: StatusCode, text: &[u8]) -> bool {
    let said = || serde_json::from_slice::<Value>(text).unwrap_or_default();
    let is_empty = |said: &Value| said["id"].is_null() && said["others"].as_array().is_none_or(Vec::is_empty);
    status == StatusCode::NOT_FOUND || (status == StatusCode::OK && is_empty(&said()))
}

#[cfg(test)]
#[path = "front_tests.rs"]
mod tests;
