//! Creates: which node is asked, and which after it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::request::Parts;
use http::{HeaderMap, Request, Response, StatusCode};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use super::forwarding::for_node;
use super::node::{self, NodeConnection, NodeError};
use super::placement::{NodeNumber, PlacedCreate};
use super::{FrontNodes, unreachable};
use crate::http::answer::ApiRefusal;
use crate::http::body::{self, Body};
use crate::http::peer::ClientConnection;
use crate::http::{destination, json};

/// How many creates with an idempotency key are remembered, and how long: a client that asks again gets the same sandbox.
const MAX_REMEMBERED: usize = 10_000;
const REMEMBERED: Duration = Duration::from_secs(600);

const RUN: &str = "/v1/run";
/// What begins paths of Piston's API, all of which run something.
const PISTON: &str = "/api/v2/";

/// Which node was asked by whom under which idempotency key. It holds digests, and no key.
#[derive(Debug, Default)]
pub(super) struct RememberedCreates {
    creates: Mutex<CreateMemory>,
}

#[derive(Debug, Default)]
struct CreateMemory {
    nodes: HashMap<[u8; 32], NodeNumber>,
    order: VecDeque<([u8; 32], Duration)>,
}

impl RememberedCreates {
    fn node_of(&self, create: Option<[u8; 32]>) -> Option<NodeNumber> {
        self.lock().nodes.get(&create?).copied()
    }

    fn remember(&self, create: Option<[u8; 32]>, node: NodeNumber, now: Duration) {
        let Some(create) = create else {
            return;
        };
        let mut memory = self.lock();
        if memory.nodes.insert(create, node).is_none() {
            memory.order.push_back((create, now));
        }
        while let Some((oldest, since)) = memory.order.front().copied()
            && (memory.order.len() > MAX_REMEMBERED || now.saturating_sub(since) > REMEMBERED)
        {
            memory.order.pop_front();
            memory.nodes.remove(&oldest);
        }
    }

    /// Every step leaves it whole.
    fn lock(&self) -> std::sync::MutexGuard<'_, CreateMemory> {
        self.creates.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A create that counts until it is settled, also when its client goes away.
struct CountedCreate<'a> {
    nodes: &'a FrontNodes,
    placed: Option<PlacedCreate>,
}

impl CountedCreate<'_> {
    fn settle(mut self, made: Option<String>) {
        if let Some(placed) = self.placed.take() {
            self.nodes.table().settle(&placed, made, self.nodes.now());
        }
    }
}

impl Drop for CountedCreate<'_> {
    fn drop(&mut self) {
        if let Some(placed) = self.placed.take() {
            self.nodes.table().settle(&placed, None, self.nodes.now());
        }
    }
}

/// What names the sandbox in an answer: of E2B's routes, of the native ones, and of a run.
#[derive(Deserialize)]
struct MadeSandbox {
    #[serde(rename = "sandboxID")]
    e2b: Option<String>,
    id: Option<String>,
    sandbox: Option<String>,
    kept: Option<bool>,
}

impl MadeSandbox {
    fn id(self) -> Option<String> {
        let kept = self.sandbox.filter(|_| self.kept == Some(true));
        self.e2b.or(self.id).or(kept).filter(|id| destination::is_id(id))
    }
}

/// Has a node make a sandbox: the one with the least to do, and another one where that cannot be reached or has no room.
///
/// A request that may have got to a node is sent to no other one: there may be a sandbox.
///
/// # Errors
/// 503 when no node answers, or when the one that was asked does not tell what came of it.
pub(super) async fn create(
    nodes: &FrontNodes,
    client: &ClientConnection,
    parts: Parts,
    body: Bytes,
) -> Result<Response<Body>, ApiRefusal> {
    let create = identity(&parts.headers);
    let before = nodes.creates.node_of(create);
    let (mut tried, mut refused) = (Vec::new(), None);
    loop {
        let placed = match before {
            Some(node) if tried.is_empty() => nodes.table().place_at(node, nodes.now()),
            // What was asked there must not be asked elsewhere.
            Some(_) => None,
            None => nodes.table().place(nodes.now(), &tried),
        };
        let Some(placed) = placed else {
            return refused.map_or_else(|| Err(nobody(nodes, before)), Ok);
        };
        let number = placed.node();
        tried.push(number);
        nodes.creates.remember(create, number, nodes.now());
        let placed = Some(placed);
        let counted = CountedCreate { nodes, placed };
        match asked(nodes, number, client, &parts, body.clone()).await {
            Ok((answer, id)) => {
                counted.settle(id);
                let has_no_room = answer.status() == StatusCode::SERVICE_UNAVAILABLE && !runs(parts.uri.path());
                if !has_no_room {
                    return Ok(answer);
                }
                refused = Some(answer);
            }
            Err(NodeError::Connect { .. }) => {}
            Err(error) => {
                return Err(unreachable(
                    &error,
                    "whether there is a sandbox is not known: ask again with the same idempotency key",
                ));
            }
        }
    }
}

/// Whether a request has a command run, too, which may have begun.
fn runs(path: &str) -> bool {
    path == RUN || path.starts_with(PISTON)
}

/// Asks one node, and reads all that it answers.
async fn asked(
    nodes: &FrontNodes,
    number: NodeNumber,
    client: &ClientConnection,
    parts: &Parts,
    body: Bytes,
) -> Result<(Response<Body>, Option<String>), NodeError> {
    let node = nodes.address(number);
    let mut parts = parts.clone();
    parts.headers.remove(CONTENT_LENGTH);
    let request = for_node(client, Request::from_parts(parts, body::full(body)), None);
    let (response, _held) = NodeConnection::open(node).await?.send(request).await?;
    let (mut head, answer) = response.into_parts();
    let text = node::whole(node, answer).await?;
    crate::traffic::headers::remove_hop_by_hop(&mut head.headers);
    head.headers.remove(CONTENT_LENGTH);
    let made = head
        .status
        .is_success()
        .then(|| serde_json::from_slice::<MadeSandbox>(&text).ok());
    let id = made.flatten().and_then(MadeSandbox::id);
    Ok((Response::from_parts(head, body::full(text)), id))
}

/// The body of a create, which may have to be sent twice.
///
/// # Errors
/// As [`json::unread`].
pub(super) async fn read(body: hyper::body::Incoming) -> Result<Bytes, ApiRefusal> {
    json::unread(json::MAX_BODY, body).await
}

/// Who asks for what, when the client says that it may ask twice.
fn identity(headers: &HeaderMap) -> Option<[u8; 32]> {
    let given = headers.get("idempotency-key")?;
    let mut digest = Sha256::new();
    for name in ["x-api-key", "authorization"] {
        for value in headers.get_all(name) {
            digest.update(value.as_bytes());
        }
        digest.update([0]);
    }
    digest.update(given.as_bytes());
    Some(digest.finalize().into())
}

fn nobody(nodes: &FrontNodes, before: Option<NodeNumber>) -> ApiRefusal {
    let told = match before {
        Some(node) => format!(
            "node {} was asked for this before, and does not answer",
            nodes.address(node)
        ),
        None => "no node answers".to_owned(),
    };
    ApiRefusal::new(StatusCode::SERVICE_UNAVAILABLE, told).retry_after(Duration::from_secs(2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_every_door_name_their_sandbox() {
        let id = |text: &str| serde_json::from_str::<MadeSandbox>(text).unwrap().id();
        for text in [
            r#"{"sandboxID": "i1", "templateID": "base"}"#,
            r#"{"id": "i1", "level": "process"}"#,
            r#"{"sandbox": "i1", "kept": true, "stdout": ""}"#,
        ] {
            assert_eq!(id(text).as_deref(), Some("i1"), "{text}");
        }
        for text in [r#"{"sandbox": "i1", "kept": false}"#, r#"{"id": "../x"}"#, "{}"] {
            assert_eq!(id(text), None, "{text}");
        }
    }

    #[test]
    fn a_create_is_known_by_its_caller_and_its_key() {
        let of = |key: &'static str, given: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert("x-api-key", http::HeaderValue::from_static(key));
            headers.insert("idempotency-key", http::HeaderValue::from_static(given));
            identity(&headers)
        };
        assert_eq!(identity(&HeaderMap::new()), None);
        assert_eq!(of("a", "1"), of("a", "1"));
        assert_ne!(of("a", "1"), of("b", "1"));
        assert_ne!(of("a", "1"), of("a", "2"));
    }

    #[test]
    fn the_memory_of_creates_is_bounded_in_number_and_time() {
        let memory = RememberedCreates::default();
        let create = |number: usize| Some(Sha256::digest(number.to_le_bytes()).into());
        let node = super::super::placement::PlacementTable::new([1]).node(0).unwrap();
        for number in 0..MAX_REMEMBERED + 10 {
            memory.remember(create(number), node, Duration::ZERO);
        }
        assert_eq!(memory.node_of(create(0)), None);
        assert_eq!(memory.node_of(create(MAX_REMEMBERED)), Some(node));
        assert_eq!(memory.lock().nodes.len(), MAX_REMEMBERED);
        memory.remember(create(0), node, REMEMBERED * 2);
        assert_eq!(memory.lock().nodes.len(), 1);
    }
}
