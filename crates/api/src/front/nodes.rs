//! The nodes of a front: what is known of them, and how many requests each has under way.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use http::HeaderMap;
use offleash_daemon::ApiKey;
use tokio::time::sleep;
use tokio_rustls::TlsConnector;

use super::address::{NodeAddress, NodesName};
use super::budget::{self, BudgetOwner, BudgetShare, BudgetSpent, SharedBudget};
use super::kept::{KeptConnections, KeptCount};
use super::node::{NodeConnection, NodeEndpoint, NodeError};
use super::placement::{NodeHealth, NodeNumber, PlacementTable};
use super::remembered::RememberedCreates;
use crate::http::peer::ClientConnection;

/// Requests that a node has under way through this front: below the 4096 connections of one address that it takes, so that
/// its own questions get there.
const MAX_OF_NODE: usize = 3584;
/// How many of them one client may have, by its address and by its key.
pub(super) const MAX_OF_CLIENT: usize = 1024;
/// Bytes of bodies that are held, because they may have to be sent twice: of all clients, and of one.
const MAX_HELD: usize = 64 << 20;
const MAX_HELD_OF_CLIENT: usize = 8 << 20;

/// How many nodes names may lead to.
pub(super) const MAX_FOUND: usize = 1000;

/// A node, and the connections to it.
#[derive(Debug)]
pub(super) struct FrontNode {
    pub(super) endpoint: NodeEndpoint,
    /// The connection by which the front asks it, kept from one question to the next: a node that is full answers on it.
    pub(super) line: tokio::sync::Mutex<Option<NodeConnection>>,
    pub(super) kept: Arc<KeptConnections>,
    places: Arc<SharedBudget>,
    /// Why it did not tell of its sandboxes when it was asked last.
    failure: Mutex<Option<String>>,
}

impl FrontNode {
    /// What the node is called.
    pub(super) fn name(&self) -> &str {
        self.address().name()
    }

    pub(super) fn address(&self) -> &NodeAddress {
        &self.endpoint.address
    }

    /// How many requests it has under way.
    pub(super) fn requests(&self) -> usize {
        self.places.spent()
    }

    /// Why it did not tell of its sandboxes when it was asked last.
    pub(super) fn failure(&self) -> Option<String> {
        self.lock_failure().clone()
    }

    pub(super) fn note_failure(&self, why: Option<String>) {
        *self.lock_failure() = why;
    }

    /// It is replaced whole.
    fn lock_failure(&self) -> MutexGuard<'_, Option<String>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The nodes of a front, and what is known of them.
#[derive(Debug)]
pub(super) struct FrontNodes {
    /// Those of the table, by the same numbers; changed with the table held.
    nodes: RwLock<BTreeMap<NodeNumber, Arc<FrontNode>>>,
    tls: Option<ClientTls>,
    kept: Arc<KeptCount>,
    pub(super) names: Vec<NodesName>,
    pub(super) bodies: Arc<SharedBudget>,
    pub(super) key: ApiKey,
    began: Instant,
    table: Mutex<PlacementTable>,
    pub(super) creates: RememberedCreates,
    pub(super) turns: RefreshTurns,
}

/// Whom certificates of nodes are vouched for by.
pub(super) struct ClientTls(pub(super) TlsConnector);

impl std::fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ClientTls")
    }
}

/// What somebody waits for who asks for a sandbox that is not known: when all nodes were asked last.
pub(super) type RefreshTurns = tokio::sync::Mutex<Option<tokio::time::Instant>>;

impl FrontNodes {
    /// Nodes at `addresses`, and those that `names` lead to later. `tls` is there if one of them wants it.
    pub(super) fn new(addresses: Vec<NodeAddress>, names: Vec<NodesName>, tls: Option<ClientTls>, key: ApiKey) -> Self {
        let nodes = Self {
            nodes: RwLock::default(),
            tls,
            kept: Arc::default(),
            names,
            bodies: SharedBudget::new(MAX_HELD, MAX_HELD_OF_CLIENT),
            key,
            began: Instant::now(),
            table: Mutex::new(PlacementTable::new([])),
            creates: RememberedCreates::default(),
            turns: RefreshTurns::default(),
        };
        for address in addresses {
            nodes.add(address);
        }
        nodes
    }

    fn add(&self, address: NodeAddress) -> NodeNumber {
        let tls = self.tls.as_ref().map(|tls| &tls.0);
        let mut table = self.table();
        let number = table.add(address.weight(), self.now());
        let node = FrontNode {
            endpoint: NodeEndpoint::new(address, tls),
            line: tokio::sync::Mutex::default(),
            kept: KeptConnections::new(&self.kept),
            places: SharedBudget::new(MAX_OF_NODE, MAX_OF_CLIENT),
            failure: Mutex::default(),
        };
        let mut nodes = self.nodes.write().unwrap_or_else(PoisonError::into_inner);
        nodes.insert(number, Arc::new(node));
        number
    }

    fn remove(&self, number: NodeNumber) {
        let mut table = self.table();
        table.remove(number);
        let mut nodes = self.nodes.write().unwrap_or_else(PoisonError::into_inner);
        nodes.remove(&number);
    }

    /// Takes in where a name leads now, and tells which nodes are new.
    ///
    /// A node that it leads to no longer gets no new sandboxes, and is kept as long as it answers and has some. A name that
    /// leads nowhere takes nobody away who answers: who answers for names may be in trouble.
    pub(super) fn take_in(&self, name: &NodesName, found: &BTreeSet<IpAddr>) -> Vec<NodeNumber> {
        // Those that are refused are told of by who asked where it leads.
        let now_found = found.iter().filter_map(|address| name.node_at(*address).ok());
        let mut new: Vec<NodeAddress> = now_found.take(MAX_FOUND).collect();
        let leads_nowhere = new.is_empty();
        for (number, node) in self.all() {
            let address = node.address();
            let place = new.iter().position(|one| one.name() == address.name());
            if let Some(place) = place {
                new.swap_remove(place);
                self.table().set_leaving(number, false);
                continue;
            }
            if !address.is_found_by(name) {
                continue;
            }
            let answers = self.health(number) == NodeHealth::Alive;
            match (answers, leads_nowhere) {
                (true, true) => {}
                (true, false) if self.table().load(number) > 0 => self.table().set_leaving(number, true),
                _ => self.remove(number),
            }
        }
        new.sort_by(|one, other| one.name().cmp(other.name()));
        let room = MAX_FOUND.saturating_sub(self.all().len());
        new.into_iter().take(room).map(|address| self.add(address)).collect()
    }

    pub(super) fn table(&self) -> MutexGuard<'_, PlacementTable> {
        // Every step leaves it whole.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    pub(super) fn numbers(&self) -> impl Iterator<Item = NodeNumber> + use<> {
        self.table().nodes()
    }

    /// All nodes.
    pub(super) fn all(&self) -> Vec<(NodeNumber, Arc<FrontNode>)> {
        let nodes = self.nodes.read().unwrap_or_else(PoisonError::into_inner);
        nodes.iter().map(|(number, node)| (*number, Arc::clone(node))).collect()
    }

    /// A node.
    ///
    /// # Errors
    /// `Gone` for one that is none any more.
    pub(super) fn node(&self, number: NodeNumber) -> Result<Arc<FrontNode>, NodeError> {
        let nodes = self.nodes.read().unwrap_or_else(PoisonError::into_inner);
        nodes.get(&number).cloned().ok_or(NodeError::Gone)
    }

    /// What a node is called.
    pub(super) fn name(&self, number: NodeNumber) -> String {
        match self.node(number) {
            Ok(node) => node.name().to_owned(),
            Err(_) => "that is none any more".to_owned(),
        }
    }

    pub(super) fn health(&self, number: NodeNumber) -> NodeHealth {
        self.table().health(number, self.now())
    }

    /// The nodes that answer, the one with the least to do first.
    pub(super) fn alive(&self) -> Vec<NodeNumber> {
        let (table, now) = (self.table(), self.now());
        let mut alive: Vec<NodeNumber> = table
            .nodes()
            .filter(|node| table.health(*node, now) == NodeHealth::Alive)
            .collect();
        alive.sort_by_key(|node| table.load(*node));
        alive
    }

    /// The names of nodes that do not answer.
    pub(super) fn silent(&self) -> Vec<String> {
        let all = self.all();
        let (table, now) = (self.table(), self.now());
        let silent = all
            .iter()
            .filter(|(number, _)| table.health(*number, now) != NodeHealth::Alive);
        silent.map(|(_, node)| node.name().to_owned()).collect()
    }

    /// A share of the bytes that may be held of bodies.
    pub(super) fn held_body(&self, client: &ClientConnection) -> BudgetShare {
        self.bodies.share(BudgetOwner::of_peer(client.peer))
    }

    /// A connection to a node in the name of a client, which shows `headers`.
    ///
    /// # Errors
    /// `Busy`, and those of which [`NodeError::is_unsent`] is true: nothing was sent.
    pub(super) async fn connect(
        &self,
        number: NodeNumber,
        client: &ClientConnection,
        headers: &HeaderMap,
    ) -> Result<NodeConnection, NodeError> {
        let node = self.node(number)?;
        let mut place = places_of(&node, client, headers);
        place.take(1).map_err(|spent| NodeError::Busy {
            node: node.name().to_owned(),
            whose: match spent {
                BudgetSpent::ByOne => "of this client",
                BudgetSpent::ByAll => "of all clients",
            },
        })?;
        tokio::select! {
            biased;
            connection = NodeConnection::kept_or_new(&node.endpoint, &node.kept, place) => connection,
            // It is told as soon as it is known.
            () = self.lost(number) => Err(NodeError::Connect {
                node: node.name().to_owned(),
                source: io::ErrorKind::TimedOut.into(),
            }),
        }
    }

    /// Waits for a node until it is lost, and no longer than `within`.
    ///
    /// # Errors
    /// `Lost`, `Late`, and those of `work`.
    pub(super) async fn waited<T>(
        &self,
        number: NodeNumber,
        within: Duration,
        work: impl Future<Output = Result<T, NodeError>>,
    ) -> Result<T, NodeError> {
        let node = || self.name(number);
        tokio::select! {
            biased;
            done = work => done,
            () = self.lost(number) => Err(NodeError::Lost { node: node() }),
            () = sleep(within) => Err(NodeError::Late { node: node() }),
        }
    }

    async fn lost(&self, number: NodeNumber) {
        loop {
            let left = self.table().time_left(number, self.now());
            match left {
                Some(left) => sleep(left).await,
                None => return,
            }
        }
    }
}

/// A share of the requests that a node may have under way.
pub(super) fn places_of(node: &FrontNode, client: &ClientConnection, headers: &HeaderMap) -> BudgetShare {
    let address = BudgetOwner::of_peer(client.peer);
    let key = budget::caller(headers).map(BudgetOwner::Key);
    node.places.share(address.into_iter().chain(key))
}
