//! Creates: which node is asked, and which after it.

use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::request::Parts;
use http::{HeaderMap, Request, Response, StatusCode};
use hyper::body::Incoming;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use super::budget::{self, BudgetSpent};
use super::forwarding::{HEAD_TIMEOUT, for_node};
use super::node::{MAX_READ, NodeError};
use super::nodes::FrontNodes;
use super::placement::{NodeNumber, PlacedCreate};
use super::remembered::{CreateEnd, CreateIdentity};
use super::unreachable::{ASK_AGAIN, busy, unreachable};
use crate::http::answer::ApiRefusal;
use crate::http::body::{self, Body};
use crate::http::peer::ClientConnection;
use crate::http::{destination, json};

/// How long a node may take to make a sandbox and tell of it.
const CREATE_TIMEOUT: Duration = Duration::from_mins(3);
/// When it is worth trying again for a body that there was no room for.
const ROOM_AGAIN: Duration = Duration::from_secs(1);

const RUN: &str = "/v1/run";
/// What begins paths of Piston's API, all of which run something.
const PISTON: &str = "/api/v2/";

/// A create that counts until it is settled, also when its client goes away.
struct CountedCreate<'a> {
    nodes: &'a FrontNodes,
    create: Option<CreateIdentity>,
    placed: Option<PlacedCreate>,
}

impl<'a> CountedCreate<'a> {
    fn begin(nodes: &'a FrontNodes, create: Option<CreateIdentity>, placed: PlacedCreate) -> Self {
        if let Some(create) = create {
            nodes.creates.begin(create, placed.node());
        }
        let placed = Some(placed);
        Self { nodes, create, placed }
    }

    fn settle(mut self, end: CreateEnd, made: Option<String>) {
        self.over(end, made);
    }

    fn over(&mut self, end: CreateEnd, made: Option<String>) {
        let Some(placed) = self.placed.take() else {
            return;
        };
        let now = self.nodes.now();
        if let Some(create) = self.create {
            self.nodes.creates.end(create, placed.node(), end, now);
        }
        self.nodes.table().settle(&placed, made, now);
    }
}

impl Drop for CountedCreate<'_> {
    fn drop(&mut self) {
        self.over(CreateEnd::Unknown, None);
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
    body: Incoming,
) -> Result<Response<Body>, ApiRefusal> {
    let mut held = nodes.held_body(client);
    let body = json::unread_while(json::MAX_BODY, body, |more| held.take(more).map_err(no_room)).await?;
    let create = identity(&parts.headers);
    let before = create.and_then(|create| nodes.creates.node_of(create));
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
        let counted = CountedCreate::begin(nodes, create, placed);
        match asked(nodes, number, client, &parts, body.clone()).await {
            Ok((answer, id)) => {
                let end = match answer.status() {
                    status if status.is_success() => CreateEnd::Made,
                    status if status.is_client_error() || status == StatusCode::SERVICE_UNAVAILABLE => {
                        CreateEnd::Refused
                    }
                    _ => CreateEnd::Unknown,
                };
                counted.settle(end, id);
                let has_no_room = answer.status() == StatusCode::SERVICE_UNAVAILABLE && !runs(parts.uri.path());
                if !has_no_room {
                    return Ok(answer);
                }
                refused = Some(answer);
            }
            Err(error) if error.is_unsent() => counted.settle(CreateEnd::Refused, None),
            Err(error @ NodeError::Busy { .. }) => {
                counted.settle(CreateEnd::Refused, None);
                refused = Some(busy(&error).answer());
            }
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
    let parts = parts.clone();
    let within = match parts.uri.path() {
        RUN => HEAD_TIMEOUT,
        _ => CREATE_TIMEOUT,
    };
    let connection = nodes.connect(number, client, &parts.headers).await?;
    let request = for_node(client, Request::from_parts(parts, body::full(body)), None);
    let (mut head, text, connection) = nodes.waited(number, within, connection.ask(request, MAX_READ)).await?;
    connection.keep();
    crate::traffic::headers::remove_hop_by_hop(&mut head.headers);
    head.headers.remove(CONTENT_LENGTH);
    let made = head
        .status
        .is_success()
        .then(|| serde_json::from_slice::<MadeSandbox>(&text).ok());
    let id = made.flatten().and_then(MadeSandbox::id);
    Ok((Response::from_parts(head, body::full(text)), id))
}

fn no_room(spent: BudgetSpent) -> ApiRefusal {
    let (status, told) = match spent {
        BudgetSpent::ByAll => (
            StatusCode::SERVICE_UNAVAILABLE,
            "there is no room for the body: too many are sent at once",
        ),
        BudgetSpent::ByOne => (
            StatusCode::TOO_MANY_REQUESTS,
            "there is no room for the body: this address sends too many at once",
        ),
    };
    ApiRefusal::new(status, told).retry_after(ROOM_AGAIN)
}

/// Who asks for what, when the client says that it may ask twice.
fn identity(headers: &HeaderMap) -> Option<CreateIdentity> {
    let key = Sha256::digest(headers.get("idempotency-key")?.as_bytes()).into();
    let caller = budget::caller(headers)?;
    Some(CreateIdentity { caller, key })
}

fn nobody(nodes: &FrontNodes, before: Option<NodeNumber>) -> ApiRefusal {
    let told = match before {
        Some(node) => format!(
            "node {} was asked for this before, and does not answer",
            nodes.name(node)
        ),
        None if nodes.alive().is_empty() => "no node answers".to_owned(),
        None => "no node that answers takes new sandboxes".to_owned(),
    };
    ApiRefusal::new(StatusCode::SERVICE_UNAVAILABLE, told).retry_after(ASK_AGAIN)
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
        assert!(of("a", "1").is_some());
        assert_eq!(identity(&HeaderMap::new()), None);
        assert_eq!(of("a", "1"), of("a", "1"));
        assert_ne!(of("a", "1"), of("b", "1"));
        assert_ne!(of("a", "1"), of("a", "2"));
    }
}
