//! Asks again and again where names of nodes lead.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::address::NodesName;
use super::node::NodeError;
use super::nodes::{FrontNodes, MAX_FOUND};
use super::polling;
use crate::http::connect;
use crate::journal::{Event, Journal};

/// How often a name is asked for, and how long the answer may take.
const EVERY: Duration = Duration::from_secs(5);
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);

/// Asks once for all names, so that there are nodes when the front begins.
pub(super) async fn first(nodes: &FrontNodes) {
    for name in &nodes.names {
        // What is wrong with it is told by who asks it again and again.
        if let Ok(found) = addresses(name).await {
            let _new = nodes.take_in(name, &found);
        }
    }
}

/// Follows a name for as long as the front lives.
pub(super) async fn follow(nodes: Arc<FrontNodes>, name: NodesName, journal: Arc<dyn Journal>) {
    let mut polls = JoinSet::new();
    let mut before = String::new();
    loop {
        let wrong = match addresses(&name).await {
            Ok(found) => {
                for number in nodes.take_in(&name, &found) {
                    polls.spawn(polling::poll(Arc::clone(&nodes), number, Arc::clone(&journal)));
                }
                misplaced(&name, &found)
            }
            Err(error) => Some(error),
        };
        while polls.try_join_next().is_some() {}
        let news = wrong.as_ref().map(ToString::to_string).unwrap_or_default();
        if let Some(cause) = wrong.filter(|_| news != before) {
            let told = "a name of nodes does not lead where it should: what is wrong of it is left out";
            journal.record(&Event::Failure { told, cause: &cause });
        }
        before = news;
        sleep(EVERY).await;
    }
}

/// What is not taken of where a name leads.
fn misplaced(name: &NodesName, found: &BTreeSet<IpAddr>) -> Option<NodeError> {
    let called = || name.to_string();
    let refused = found
        .iter()
        .find_map(|address| Some((*address, name.node_at(*address).err()?)));
    if let Some((address, class)) = refused {
        let name = called();
        return Some(NodeError::Misplaced { name, address, class });
    }
    (found.len() > MAX_FOUND).then(|| NodeError::TooMany {
        name: called(),
        found: found.len(),
        most: MAX_FOUND,
    })
}

/// The addresses that a name leads to, each machine once: those of IPv6 count where there are no others.
async fn addresses(name: &NodesName) -> Result<BTreeSet<IpAddr>, NodeError> {
    let resolved = timeout(RESOLVE_TIMEOUT, connect::resolved(name.host())).await;
    let resolved = resolved.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()));
    let found = resolved.map_err(|source| NodeError::Unresolved {
        name: name.to_string(),
        source,
    })?;
    let (four, six): (BTreeSet<IpAddr>, BTreeSet<IpAddr>) = found.into_iter().partition(IpAddr::is_ipv4);
    Ok(if four.is_empty() { six } else { four })
}

#[cfg(test)]
#[path = "discovery_tests.rs"]
mod tests;
