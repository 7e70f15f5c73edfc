//! Asks each node again and again which sandboxes it has.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, StatusCode};
use serde::Deserialize;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::FrontNodes;
use super::node::{self, NodeConnection, NodeError};
use super::placement::{NodeHealth, NodeNumber};
use crate::http::body;
use crate::http::destination;
use crate::journal::{Event, Journal};

/// How often a node is asked, and how long its answer may take: a node that says nothing is lost within ten seconds.
const EVERY: Duration = Duration::from_secs(2);
const LIST_TIMEOUT: Duration = Duration::from_secs(4);
/// How often all are asked because somebody asks for a sandbox that nobody has named.
const REFRESH_EVERY: Duration = Duration::from_secs(1);

const OVERVIEW: &str = "/v1/overview";

/// What is read of a node's overview.
#[derive(Deserialize)]
struct OverviewList {
    total: u64,
    sandboxes: Vec<NamedSandbox>,
}

#[derive(Deserialize)]
struct NamedSandbox {
    id: String,
}

/// What somebody waits for who asks for a sandbox that is not known.
#[derive(Debug, Default)]
pub(super) struct RefreshTurns {
    last: Mutex<Option<Instant>>,
}

/// Asks a node for as long as the front lives.
pub(super) async fn poll(nodes: Arc<FrontNodes>, number: NodeNumber, journal: Arc<dyn Journal>) {
    let mut before = NodeHealth::Awaited;
    loop {
        let asked = ask(&nodes, number).await;
        let health = nodes.health(number);
        if let Err(error) = &asked
            && health == NodeHealth::Lost
            && before != NodeHealth::Lost
        {
            let told = "a node is lost: its sandboxes are not reached, and it gets no new ones";
            journal.record(&Event::Failure { told, cause: error });
        }
        before = health;
        sleep(EVERY).await;
    }
}

/// Asks all nodes at once, unless somebody else's asking answers this, too.
pub(super) async fn refresh(nodes: &Arc<FrontNodes>) {
    let wanted = Instant::now();
    let mut last = nodes.turns.last.lock().await;
    match *last {
        // It began after we wanted it.
        Some(began) if began >= wanted => return,
        Some(began) => sleep_until(began + REFRESH_EVERY).await,
        None => {}
    }
    *last = Some(Instant::now());
    let mut asking = tokio::task::JoinSet::new();
    for number in nodes.numbers() {
        let nodes = Arc::clone(nodes);
        // What is wrong with a node is told by who asks it again and again.
        asking.spawn(async move { ask(&nodes, number).await.is_ok() });
    }
    while asking.join_next().await.is_some() {}
}

async fn ask(nodes: &FrontNodes, number: NodeNumber) -> Result<(), NodeError> {
    let question = nodes.table().ask(number);
    let listed = timeout(LIST_TIMEOUT, list(nodes, question.node())).await;
    let node = nodes.address(number);
    let list = listed.unwrap_or_else(|_| {
        Err(NodeError::Late {
            node: node.name().to_owned(),
        })
    })?;
    // Whatever a node says of itself, what is no id is none.
    let ids: HashSet<String> = list.sandboxes.into_iter().map(|sandbox| sandbox.id).collect();
    let ids = ids.into_iter().filter(|id| destination::is_id(id)).collect();
    nodes.table().answered(question, nodes.now(), ids, list.total);
    Ok(())
}

async fn list(nodes: &FrontNodes, number: NodeNumber) -> Result<OverviewList, NodeError> {
    let node = nodes.address(number);
    let unreadable = |source: Box<dyn std::error::Error + Send + Sync>| NodeError::Unreadable {
        node: node.name().to_owned(),
        source,
    };
    let request = Request::get(OVERVIEW).header("x-api-key", nodes.key.reveal());
    let request = request.body(body::empty()).map_err(|error| unreadable(error.into()))?;
    let (response, _held) = NodeConnection::open(node).await?.send(request).await?;
    let status = response.status();
    if status != StatusCode::OK {
        let node = node.name().to_owned();
        return Err(NodeError::Refused { node, status });
    }
    let text = node::whole(node, response.into_body()).await?;
    serde_json::from_slice(&text).map_err(|error| unreadable(error.into()))
}
