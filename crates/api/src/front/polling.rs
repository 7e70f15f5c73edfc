//! Asks each node again and again which sandboxes it has.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode};
use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::node::{NodeConnection, NodeError};
use super::nodes::{FrontNode, FrontNodes};
use super::placement::{MAX_OF_NODE, NodeHealth, NodeNumber, NodeReport};
use crate::http::body;
use crate::http::destination;
use crate::journal::{Event, Journal};

/// How often a node is asked, and how long its answer may take: a node that says nothing is lost within ten seconds.
const EVERY: Duration = Duration::from_secs(2);
const LIST_TIMEOUT: Duration = Duration::from_secs(4);
/// How often all are asked because somebody asks for a sandbox that nobody has named.
const REFRESH_EVERY: Duration = Duration::from_secs(1);

/// For this the scope `overview` is needed: no other route tells of all sandboxes, and that scope has no other route.
const IDS: &str = "/v1/overview/ids";
/// The most that is read of its answer: [`MAX_OF_NODE`] ids, however long.
const MAX_LIST: usize = 8 << 20;

/// What is read of a node's list.
#[derive(Deserialize)]
struct IdList {
    ids: BoundedIds,
    #[serde(default)]
    draining: bool,
}

/// Ids of sandboxes, of which [`MAX_OF_NODE`] are kept, and how many there are.
#[derive(Default)]
struct BoundedIds {
    ids: HashSet<String>,
    total: u64,
}

impl<'de> Deserialize<'de> for BoundedIds {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Ids;
        impl<'de> Visitor<'de> for Ids {
            type Value = BoundedIds;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of ids")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<BoundedIds, A::Error> {
                let mut found = BoundedIds::default();
                while let Some(id) = all.next_element::<String>()? {
                    // Whatever a node says of itself, what is no id is none.
                    if !destination::is_id(&id) || found.ids.contains(&id) {
                        continue;
                    }
                    found.total += 1;
                    if found.ids.len() < MAX_OF_NODE {
                        found.ids.insert(id);
                    }
                }
                Ok(found)
            }
        }
        from.deserialize_seq(Ids)
    }
}

/// What the owner was told of a node last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ToldOfNode {
    Nothing,
    Lost,
    Refuses(StatusCode),
    Doubled(NodeNumber),
}

/// Asks a node for as long as it is one.
pub(super) async fn poll(nodes: Arc<FrontNodes>, number: NodeNumber, journal: Arc<dyn Journal>) {
    let mut before = ToldOfNode::Nothing;
    while let Ok(node) = nodes.node(number) {
        node.kept.expire();
        let asked = ask(&nodes, number).await;
        node.note_failure(asked.as_ref().err().map(ToString::to_string));
        let is_lost = nodes.health(number) == NodeHealth::Lost;
        let (news, told, cause) = match asked {
            Ok(None) => (ToldOfNode::Nothing, "", None),
            Ok(Some(other)) => (
                ToldOfNode::Doubled(other),
                "a node lists sandboxes of another one: each is shown once, as the other's",
                Some(NodeError::Doubled {
                    node: node.name().to_owned(),
                    other: nodes.name(other),
                }),
            ),
            Err(NodeError::Gone) => return,
            Err(error) if is_lost => (
                ToldOfNode::Lost,
                "a node is lost: its sandboxes are not reached, and it gets no new ones",
                Some(error),
            ),
            Err(NodeError::Refused { node, status }) => (
                ToldOfNode::Refuses(status),
                "a node does not list its sandboxes: what is made beside the front is found by asking all nodes",
                Some(NodeError::Refused { node, status }),
            ),
            // It has time left.
            Err(_) => (before, "", None),
        };
        if let Some(cause) = cause.filter(|_| news != before) {
            journal.record(&Event::Failure { told, cause: &cause });
        }
        before = news;
        sleep(EVERY).await;
    }
}

/// Asks all nodes at once, unless somebody else's asking answers this, too.
pub(super) async fn refresh(nodes: &Arc<FrontNodes>) {
    let wanted = Instant::now();
    let mut last = nodes.turns.lock().await;
    match *last {
        // It began after we wanted it.
        Some(began) if began >= wanted => return,
        Some(began) => sleep_until(began + REFRESH_EVERY).await,
        None => {}
    }
    *last = Some(Instant::now());
    // What is wrong with a node is told by who asks it again and again.
    let _told = ask_all(nodes).await;
}

/// Asks all nodes at once, and tells what went wrong.
pub(super) async fn ask_all(nodes: &Arc<FrontNodes>) -> Vec<NodeError> {
    let mut asking = JoinSet::new();
    for number in nodes.numbers() {
        let nodes = Arc::clone(nodes);
        asking.spawn(async move { ask(&nodes, number).await.err() });
    }
    asking.join_all().await.into_iter().flatten().collect()
}

/// Asks a node for its list, and tells which other one has sandboxes that it names, if one has.
async fn ask(nodes: &FrontNodes, number: NodeNumber) -> Result<Option<NodeNumber>, NodeError> {
    let node = nodes.node(number)?;
    let late = |_| NodeError::Late {
        node: node.name().to_owned(),
    };
    let asking = async {
        // Its turn comes first: an answer must not be older than the question.
        let mut line = node.line.lock().await;
        let question = nodes.table().ask(number);
        list(nodes, &node, &mut line).await.map(|list| (question, list))
    };
    let asked = timeout(LIST_TIMEOUT, asking).await.map_err(late).flatten();
    if let Err(NodeError::Refused { status, .. }) = &asked
        && is_its_own(*status)
    {
        nodes.table().heard(number, nodes.now());
    }
    let (question, IdList { ids, draining }) = asked?;
    let report = NodeReport {
        ids: ids.ids,
        total: ids.total,
        is_drained: draining,
    };
    let now = nodes.now();
    Ok(nodes.table().answered(question, now, report))
}

/// Whether a status is a node's own word, and not that of a gateway before one that does not answer.
fn is_its_own(status: StatusCode) -> bool {
    !matches!(status, StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT)
}

async fn list(nodes: &FrontNodes, node: &FrontNode, line: &mut Option<NodeConnection>) -> Result<IdList, NodeError> {
    let unreadable = |source: Box<dyn std::error::Error + Send + Sync>| NodeError::Unreadable {
        node: node.name().to_owned(),
        source,
    };
    let question = || {
        let request = Request::get(IDS).header("x-api-key", nodes.key.reveal());
        request.body(body::empty()).map_err(|error| unreadable(error.into()))
    };
    let kept = match line.take().filter(NodeConnection::is_open) {
        Some(connection) => answered(connection, question()?).await.ok(),
        None => None,
    };
    let (status, text, connection) = match kept {
        Some(answer) => answer,
        // The kept one may have ended meanwhile; asking twice does no harm.
        None => answered(NodeConnection::open(&node.endpoint).await?, question()?).await?,
    };
    *line = Some(connection);
    if status != StatusCode::OK {
        let node = node.name().to_owned();
        return Err(NodeError::Refused { node, status });
    }
    serde_json::from_slice(&text).map_err(|error| unreadable(error.into()))
}

async fn answered(
    connection: NodeConnection,
    question: Request<body::Body>,
) -> Result<(StatusCode, Bytes, NodeConnection), NodeError> {
    let (head, text, connection) = connection.ask(question, MAX_LIST).await?;
    Ok((head.status, text, connection))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_those_that_can_be_ones_each_once_and_no_more_than_are_kept() {
        let read = |text: &str| serde_json::from_str::<IdList>(text).map(|list| (list.ids.ids.len(), list.ids.total));
        let long = "a".repeat(65);
        let odd = format!(r#"{{"ids": ["a", "a", "../x", "A", "{long}", "b"], "more": 1}}"#);
        assert_eq!(read(&odd).unwrap(), (2, 2));
        let drained = r#"{"ids": [], "draining": true}"#;
        assert!(serde_json::from_str::<IdList>(drained).unwrap().draining);
        assert!(read("{}").is_err() && read(r#"{"ids": [1]}"#).is_err());
        let many: Vec<String> = (0..MAX_OF_NODE + 5).map(|number| format!("\"{number}\"")).collect();
        let total = u64::try_from(MAX_OF_NODE + 5).unwrap();
        assert_eq!(
            read(&format!("{{\"ids\": [{}]}}", many.join(","))).unwrap(),
            (MAX_OF_NODE, total)
        );
    }

    #[test]
    fn what_a_gateway_says_is_no_answer_of_a_node() {
        assert!(is_its_own(StatusCode::TOO_MANY_REQUESTS) && is_its_own(StatusCode::UNAUTHORIZED));
        assert!(!is_its_own(StatusCode::BAD_GATEWAY));
    }
}
