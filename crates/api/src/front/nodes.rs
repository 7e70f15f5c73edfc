//! The nodes of a front: what is known of them, and how many requests each has under way.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http::HeaderMap;
use offleash_daemon::ApiKey;
use tokio::time::sleep;

use super::budget::{self, BudgetOwner, BudgetShare, BudgetSpent, SharedBudget};
use super::node::{NodeAddress, NodeConnection, NodeError};
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

/// The nodes of a front, and what is known of them.
#[derive(Debug)]
pub(super) struct FrontNodes {
    addresses: Vec<NodeAddress>,
    lines: Vec<NodeLine>,
    places: Vec<Arc<SharedBudget>>,
    pub(super) bodies: Arc<SharedBudget>,
    pub(super) key: ApiKey,
    began: Instant,
    table: Mutex<PlacementTable>,
    pub(super) creates: RememberedCreates,
    pub(super) turns: RefreshTurns,
}

/// The connection by which the front asks a node, kept from one question to the next: a node that is full answers on it.
pub(super) type NodeLine = tokio::sync::Mutex<Option<NodeConnection>>;

/// What somebody waits for who asks for a sandbox that is not known: when all nodes were asked last.
pub(super) type RefreshTurns = tokio::sync::Mutex<Option<tokio::time::Instant>>;

impl FrontNodes {
    pub(super) fn new(addresses: Vec<NodeAddress>, key: ApiKey) -> Self {
        Self {
            table: Mutex::new(PlacementTable::new(addresses.iter().map(NodeAddress::weight))),
            lines: addresses.iter().map(|_| NodeLine::default()).collect(),
            places: addresses
                .iter()
                .map(|_| SharedBudget::new(MAX_OF_NODE, MAX_OF_CLIENT))
                .collect(),
            bodies: SharedBudget::new(MAX_HELD, MAX_HELD_OF_CLIENT),
            addresses,
            key,
            began: Instant::now(),
            creates: RememberedCreates::default(),
            turns: RefreshTurns::default(),
        }
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

    // Numbers are those of the table, which was made of the addresses; so were the others.
    pub(super) fn address(&self, number: NodeNumber) -> &NodeAddress {
        &self.addresses[number.index()]
    }

    pub(super) fn line(&self, number: NodeNumber) -> &NodeLine {
        &self.lines[number.index()]
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
    pub(super) fn silent(&self) -> Vec<&str> {
        let (table, now) = (self.table(), self.now());
        let silent = table
            .nodes()
            .filter(|node| table.health(*node, now) != NodeHealth::Alive);
        silent.map(|node| self.address(node).name()).collect()
    }

    /// A share of the bytes that may be held of bodies.
    pub(super) fn held_body(&self, client: &ClientConnection) -> BudgetShare {
        self.bodies.share(BudgetOwner::of_peer(client.peer))
    }

    /// A share of the requests that a node may have under way.
    pub(super) fn places_of(&self, number: NodeNumber, client: &ClientConnection, headers: &HeaderMap) -> BudgetShare {
        let address = BudgetOwner::of_peer(client.peer);
        let key = budget::caller(headers).map(BudgetOwner::Key);
        self.places[number.index()].share(address.into_iter().chain(key))
    }

    /// Connects to a node in the name of a client, which shows `headers`.
    ///
    /// # Errors
    /// `Busy`, `Connect`: nothing was sent.
    pub(super) async fn connect(
        &self,
        number: NodeNumber,
        client: &ClientConnection,
        headers: &HeaderMap,
    ) -> Result<NodeConnection, NodeError> {
        let node = self.address(number);
        let mut place = self.places_of(number, client, headers);
        place.take(1).map_err(|spent| NodeError::Busy {
            node: node.name().to_owned(),
            whose: match spent {
                BudgetSpent::ByOne => "of this client",
                BudgetSpent::ByAll => "of all clients",
            },
        })?;
        Ok(NodeConnection::open(node).await?.at(place))
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
        let node = || self.address(number).name().to_owned();
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
