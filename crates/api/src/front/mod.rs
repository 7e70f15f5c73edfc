//! One address before the servers of several machines: a sandbox is made where there is room, and found where it is.
//!
//! A front keeps nothing: which node has a sandbox is what nodes say. It judges no key either; each request goes to a node
//! with the key that its client showed, and the node judges it. Deliberately not here: volumes, secrets, templates, keys and
//! everything else that belongs to one node.

mod creating;
mod forwarding;
mod listing;
mod node;
mod placement;
mod polling;
mod routing;

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http::request::Parts;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use offleash_daemon::ApiKey;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};

use self::creating::RememberedCreates;
pub use self::node::{NodeAddress, NodeAddressError};
use self::node::{NodeConnection, NodeError};
use self::placement::{NodeHealth, NodeNumber, PlacementTable, SandboxPlace};
use self::polling::RefreshTurns;
use self::routing::FrontRoute;
use crate::http::answer::{self, ApiRefusal};
use crate::http::body::{self, Body};
use crate::http::clients::{ClientSlots, TooManyClients};
use crate::http::destination;
use crate::http::peer::ClientConnection;
use crate::journal::{Event, Journal, RequestEvent};
use crate::server::connection::{self, ConnectionHold, RequestService};
use crate::server::listen;
use crate::server::{Certificate, Listen, ListenError, ServeError, TlsFiles, tls};

/// How many clients that are too many are told so at once; further ones are cut.
const MAX_TURNED_AWAY: usize = 64;
/// How long to wait after an accept that failed for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Connections at a time, and from one address: agents often come from few.
const MAX_CONNECTIONS: usize = 16 * 1024;
const MAX_OF_ADDRESS: usize = 12 * 1024;
/// When it is worth asking again what a node that does not answer has.
const ASK_AGAIN: Duration = Duration::from_secs(2);

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
    /// The nodes.
    pub nodes: Vec<NodeAddress>,
    /// A key of the scope `admin`, which every node takes: their lists are asked for with it.
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
    slots: Arc<ClientSlots>,
}

/// The nodes of a front, and what is known of them.
#[derive(Debug)]
struct FrontNodes {
    addresses: Vec<NodeAddress>,
    key: ApiKey,
    began: Instant,
    table: Mutex<PlacementTable>,
    creates: RememberedCreates,
    turns: RefreshTurns,
}

#[derive(Debug)]
struct FrontState {
    nodes: Arc<FrontNodes>,
    domain: Option<String>,
    url: String,
    tls: Option<Arc<rustls::ServerConfig>>,
    journal: Arc<dyn Journal>,
}

impl Front {
    /// Listens; requests wait until [`Front::run`].
    ///
    /// # Errors
    /// When it cannot listen there, or should not.
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
        let nodes = Arc::new(FrontNodes {
            table: Mutex::new(PlacementTable::new(config.nodes.iter().map(NodeAddress::weight))),
            addresses: config.nodes,
            key: config.key,
            began: Instant::now(),
            creates: RememberedCreates::default(),
            turns: RefreshTurns::default(),
        });
        let state = Arc::new(FrontState {
            nodes,
            domain: domain.or_else(|| Some("localhost".to_owned()).filter(|_| address.ip().is_loopback())),
            url,
            tls,
            journal,
        });
        Ok(Self {
            listener,
            drain: config.drain,
            state,
            slots: ClientSlots::new(MAX_CONNECTIONS, MAX_OF_ADDRESS),
        })
    }

    /// What clients on this machine call the front, as in `http://127.0.0.1:3000`.
    pub fn url(&self) -> &str {
        &self.state.url
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
            match self.slots.admit(Some(peer.ip())) {
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

impl FrontNodes {
    fn table(&self) -> MutexGuard<'_, PlacementTable> {
        // Every step leaves it whole.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn numbers(&self) -> impl Iterator<Item = NodeNumber> + use<> {
        self.table().nodes()
    }

    fn address(&self, number: NodeNumber) -> &NodeAddress {
        // Numbers are those of the table, which was made of the addresses.
        &self.addresses[number.index()]
    }

    fn health(&self, number: NodeNumber) -> NodeHealth {
        self.table().health(number, self.now())
    }

    /// The nodes that answer, the one with the least to do first.
    fn alive(&self) -> Vec<NodeNumber> {
        let (table, now) = (self.table(), self.now());
        let mut alive: Vec<NodeNumber> = table
            .nodes()
            .filter(|node| table.health(*node, now) == NodeHealth::Alive)
            .collect();
        alive.sort_by_key(|node| table.load(*node));
        alive
    }

    /// The names of nodes that do not answer.
    fn silent(&self) -> Vec<&str> {
        let (table, now) = (self.table(), self.now());
        let silent = table
            .nodes()
            .filter(|node| table.health(*node, now) != NodeHealth::Alive);
        silent.map(|node| self.address(node).name()).collect()
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
            Err(refusal) => refusal.answer(),
        };
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
        if matches!(parts.method, http::Method::CONNECT | http::Method::TRACE) {
            return Err(ApiRefusal::wrong_method(&parts.method).closing());
        }
        let route = routing::route(&parts, self.domain.as_deref());
        match route.map_err(|error| ApiRefusal::bad_request(error.to_string()))? {
            FrontRoute::Health => Ok(answer::empty(StatusCode::NO_CONTENT)),
            FrontRoute::Ready => self.ready(),
            FrontRoute::Sandbox(id) => {
                let node = self.node_of(&id).await;
                *sandbox = Some(id);
                self.forwarded(client, node?, parts, body).await
            }
            FrontRoute::Create => creating::create(&self.nodes, client, parts, creating::read(body).await?).await,
            FrontRoute::List(form) => listing::list(&self.nodes, client, &parts, form).await,
            FrontRoute::Name => self.called(client, parts).await,
            FrontRoute::Version => self.version(client, parts).await,
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

    /// The node that has a sandbox. One that answers stands in when none of all has it: it says so in its own words.
    async fn node_of(&self, id: &str) -> Result<NodeNumber, ApiRefusal> {
        for is_last in [false, true] {
            let place = self.nodes.table().find(id, self.nodes.now());
            match place {
                SandboxPlace::At(node) => return Ok(node),
                SandboxPlace::Lost(node) => {
                    let told = format!(
                        "node {}, which has the sandbox, does not answer",
                        self.nodes.address(node)
                    );
                    return Err(ApiRefusal::new(StatusCode::SERVICE_UNAVAILABLE, told).retry_after(ASK_AGAIN));
                }
                SandboxPlace::Unknown if !is_last => polling::refresh(&self.nodes).await,
                SandboxPlace::Unknown => {}
            }
        }
        let silent = self.nodes.silent();
        if silent.is_empty() {
            return self.any();
        }
        let told = format!(
            "no node that answers has the sandbox; {} does not answer",
            silent.join(", ")
        );
        Err(ApiRefusal::new(StatusCode::SERVICE_UNAVAILABLE, told).retry_after(ASK_AGAIN))
    }

    async fn forwarded(
        &self,
        client: &ClientConnection,
        node: NodeNumber,
        parts: Parts,
        body: Incoming,
    ) -> Result<Response<Body>, ApiRefusal> {
        let request = Request::from_parts(parts, body.map_err(Into::into).boxed_unsync());
        let answered = forwarding::forward(self.nodes.address(node), client, request).await;
        answered.map_err(|error| unreachable(&error, "what was asked may have been done"))
    }

    /// Asks nodes for a name until one knows it.
    async fn called(&self, client: &ClientConnection, parts: Parts) -> Result<Response<Body>, ApiRefusal> {
        let mut last = None;
        for node in self.nodes.alive() {
            let request = Request::from_parts(parts.clone(), body::empty());
            let answered = forwarding::forward(self.nodes.address(node), client, request).await;
            let answered = answered.map_err(|error| unreachable(&error, "another node may have the name"))?;
            if answered.status() != StatusCode::NOT_FOUND {
                return Ok(answered);
            }
            last = Some(answered);
        }
        last.map_or_else(|| self.any().map(|_| answer::empty(StatusCode::NOT_FOUND)), Ok)
    }

    /// A node's version, to a client that the node knows, with the address of the front.
    async fn version(&self, client: &ClientConnection, parts: Parts) -> Result<Response<Body>, ApiRefusal> {
        let node = self.nodes.address(self.any()?);
        let request = Request::from_parts(parts, body::empty());
        let told = asked_for_version(node, client, request).await;
        let (status, text) = told.map_err(|error| unreachable(&error, "it was asked for its version"))?;
        if status != StatusCode::OK {
            return Ok(answer::written(status, text.to_vec()));
        }
        let version: Result<Value, _> = serde_json::from_slice(&text);
        let mut version = version.map_err(|_| {
            let told = format!("what node {node} said of its version cannot be read");
            ApiRefusal::new(StatusCode::BAD_GATEWAY, told)
        })?;
        if let Some(url) = version.get_mut("url") {
            *url = self.url.clone().into();
        }
        Ok(answer::json(StatusCode::OK, &version))
    }
}

async fn asked_for_version(
    node: &NodeAddress,
    client: &ClientConnection,
    request: Request<Body>,
) -> Result<(StatusCode, bytes::Bytes), NodeError> {
    let request = forwarding::for_node(client, request, None);
    let (response, _held) = NodeConnection::open(node).await?.send(request).await?;
    let status = response.status();
    Ok((status, node::whole(node, response.into_body()).await?))
}

/// What a client is told when a node does not answer; the cause names addresses of nodes, which are no secret of anybody's.
fn unreachable(error: &NodeError, what: &str) -> ApiRefusal {
    let told = format!("{error}: {what}");
    ApiRefusal::new(StatusCode::SERVICE_UNAVAILABLE, told).retry_after(ASK_AGAIN)
}
