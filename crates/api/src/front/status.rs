//! What a front tells of itself: its nodes, and its numbers, to whoever may look after it.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use http::request::Parts;
use http::{Response, StatusCode};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::FrontState;
use super::nodes::FrontNode;
use super::placement::{NodeHealth, NodeIntake, NodeNumber, PlacementTable};
use super::unreachable::unreachable;
use crate::control;
use crate::http::answer::{self, ApiRefusal};
use crate::http::body::Body;
use crate::http::peer::ClientConnection;
use crate::server::figures::{self, counter, gauge, labelled, plain_count};

/// Who may ask a node this is one of its admins.
const ASKS_ADMIN: &str = "/v1/drain";

/// How often the front said no by itself, by the status.
#[derive(Debug, Default)]
pub(super) struct RefusalTally(Mutex<BTreeMap<u16, u64>>);

impl RefusalTally {
    pub(super) fn refused(&self, status: StatusCode) {
        let mut refused = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *refused.entry(status.as_u16()).or_default() += 1;
    }

    fn counts(&self) -> Vec<(String, u64)> {
        let refused = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        refused
            .iter()
            .map(|(status, count)| (status.to_string(), *count))
            .collect()
    }
}

impl FrontState {
    /// Answers whoever shows the front's own key, or one that a node knows as an admin's.
    ///
    /// # Errors
    /// 503 if no node answers that could judge another key.
    pub(super) async fn overseen(
        &self,
        client: &ClientConnection,
        parts: &Parts,
        told: impl Fn(&Self) -> Response<Body>,
    ) -> Result<Response<Body>, ApiRefusal> {
        if self.is_own_key(parts) {
            return Ok(told(self));
        }
        let mut asked = parts.clone();
        asked.uri = http::Uri::from_static(ASKS_ADMIN);
        let judged = self.asked(self.any()?, client, asked).await;
        let (status, text) =
            judged.map_err(|error| unreachable(&error, "it was asked whether the key is an admin's"))?;
        match status {
            StatusCode::OK => Ok(told(self)),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Ok(answer::written(status, text.to_vec())),
            _ => {
                let told = format!("a node that was asked whether the key is an admin's answered {status}");
                Err(ApiRefusal::new(StatusCode::BAD_GATEWAY, told))
            }
        }
    }

    /// Whether a request shows the front's own key; how long that takes says nothing of it.
    fn is_own_key(&self, parts: &Parts) -> bool {
        let shown = control::key(&parts.headers).ok().flatten();
        shown.is_some_and(|shown| Sha256::digest(shown) == Sha256::digest(self.nodes.key.reveal()))
    }

    /// The nodes, and what is known of each.
    pub(super) fn nodes_told(&self) -> Response<Body> {
        let all = self.nodes.all();
        let (table, now) = (self.nodes.table(), self.nodes.now());
        let nodes: Vec<Value> = all
            .iter()
            .map(|(number, node)| described(*number, node, &table, now))
            .collect();
        answer::json(StatusCode::OK, &json!({ "nodes": nodes }))
    }

    /// The page of numbers.
    pub(super) fn metrics(&self) -> Response<Body> {
        let all = self.nodes.all();
        let (table, now) = (self.nodes.table(), self.nodes.now());
        let mut states = BTreeMap::from(["alive", "awaited", "drained", "leaving", "lost"].map(|state| (state, 0)));
        let mut sandboxes = Vec::new();
        for (number, node) in &all {
            *states.entry(state(*number, &table, now)).or_default() += 1;
            sandboxes.push((node.name().to_owned(), table.load(*number)));
        }
        drop(table);
        let requests = all.iter().map(|(_, node)| node.requests()).sum::<usize>();
        let states = states.into_iter().map(|(state, count)| (state.to_owned(), count));
        let families = vec![
            gauge(
                ("offleash.front.nodes", "offleash_front_nodes"),
                "{node}",
                "Nodes, by whether they answer; drained and leaving ones answer and get no new sandboxes.",
                labelled("state", states),
            ),
            gauge(
                ("offleash.front.sandboxes", "offleash_front_sandboxes"),
                "{sandbox}",
                "Sandboxes that a node told of last, those that it is making among them.",
                labelled("node", sandboxes),
            ),
            gauge(
                ("offleash.front.requests", "offleash_front_requests"),
                "{request}",
                "Requests that nodes have under way.",
                plain_count(requests),
            ),
            counter(
                ("offleash.front.refusals", "offleash_front_refusals_total"),
                "{answer}",
                "Answers in which the front itself said no, by status.",
                labelled("status", self.refusals.counts()),
            ),
            gauge(
                ("offleash.http.connections", "offleash_http_connections"),
                "{connection}",
                "Connections of clients.",
                plain_count(self.slots.count()),
            ),
        ];
        figures::page(families, &self.tally, self.tls.is_some())
    }
}

/// Whether a node answers and takes sandboxes, in a word.
fn state(number: NodeNumber, table: &PlacementTable, now: Duration) -> &'static str {
    match (table.health(number, now), table.intake(number)) {
        (NodeHealth::Lost, _) => "lost",
        (NodeHealth::Awaited, _) => "awaited",
        (NodeHealth::Alive, NodeIntake::Open) => "alive",
        (NodeHealth::Alive, NodeIntake::Drained) => "drained",
        (NodeHealth::Alive, NodeIntake::Leaving) => "leaving",
    }
}

fn described(number: NodeNumber, node: &FrontNode, table: &PlacementTable, now: Duration) -> Value {
    let address = node.address();
    let scheme = if address.is_tls() { "https" } else { "http" };
    let heard = table
        .heard_at(number)
        .map(|heard| now.saturating_sub(heard).as_millis());
    json!({
        "node": node.name(),
        "url": format!("{scheme}://{}", node.name()),
        "state": state(number, table, now),
        "found_by_name": address.is_found(),
        "weight": address.weight(),
        "sandboxes": table.load(number),
        "requests": node.requests(),
        "answered_ms_ago": heard.map(|heard| u64::try_from(heard).unwrap_or(u64::MAX)),
        "failure": node.failure(),
    })
}
