//! Sandboxes that go from a node that is drained to others, with the key of the admin who asks for that.
//!
//! A sandbox stands still at its node while its files go as a snapshot, streamed through the front and kept nowhere. It is made at
//! the other node under the same id, and ended at the first one when it is there, unless it was used meanwhile. Whichever
//! step fails, it stays where it was. Deliberately not here: what of a sandbox can go, which its node says.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use offleash_core::error::with_causes;
use serde::Deserialize;
use serde_json::{Value, json};

use super::FrontState;
use super::node::{MAX_READ, NodeError};
use super::nodes::FrontNodes;
use super::placement::{NodeNumber, PlacedCreate};
use super::polling;
use super::unreachable::unreachable;
use crate::control;
use crate::http::answer::{self, ApiRefusal};
use crate::http::body::{self, Body};
use crate::http::destination;
use crate::http::json as json_body;
use crate::http::peer::ClientConnection;

/// How long a node may take for what is done at once, to make a sandbox, to copy its files, and to send them.
const ASK_TIMEOUT: Duration = Duration::from_secs(60);
const MAKE_TIMEOUT: Duration = Duration::from_mins(3);
const SNAPSHOT_TIMEOUT: Duration = Duration::from_mins(11);
const SEND_TIMEOUT: Duration = Duration::from_hours(1);
/// What an archive of a snapshot is sent as.
const TAR: &str = "application/x-tar";

/// What is asked for.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct NewDrain {
    /// The node, as the front calls it.
    node: String,
}

/// Why a sandbox stays where it is.
#[derive(Debug)]
enum Stay {
    /// It has something that no other node has: it is waited for.
    Waiting(String),
    /// Something failed.
    Failed(String),
    /// It ended meanwhile.
    Gone,
}

/// What came of a drain.
#[derive(Debug, Default)]
struct DrainReport {
    moved: Vec<Value>,
    waiting: Vec<Value>,
    failed: Vec<Value>,
}

/// What a node says of a sandbox that can go.
#[derive(Debug, Deserialize)]
struct Transfer {
    state: String,
    changes: i64,
    left_seconds: Option<u64>,
    description: String,
}

impl FrontState {
    /// Has a node take no new sandboxes, and moves those that it has.
    ///
    /// # Errors
    /// 404 for a node that is none, 409 while another drain goes on, what the node says to the key; 503.
    pub(super) async fn drain_node(
        &self,
        client: &ClientConnection,
        parts: &Parts,
        body: Incoming,
    ) -> Result<Response<Body>, ApiRefusal> {
        let NewDrain { node: name } = json_body::read(body).await?;
        let found = self.nodes.all().into_iter().find(|(_, node)| node.name() == name);
        let Some((from, _)) = found else {
            return Err(ApiRefusal::not_found(
                "there is no such node; `/v1/front/nodes` lists them",
            ));
        };
        let Ok(turn) = Arc::clone(&self.drains).try_lock_owned() else {
            let told = "another node is being drained; ask again when that is over";
            return Err(ApiRefusal::new(StatusCode::CONFLICT, told));
        };
        let carrier = Carrier {
            nodes: Arc::clone(&self.nodes),
            client: client.clone(),
            key: shown_key(parts)?,
            from,
        };
        let drained = carrier.ask(from, Method::POST, "/v1/drain", Some(&json!({}))).await;
        let (status, told) = drained.map_err(|error| unreachable(&error, "it may be drained"))?;
        if status != StatusCode::OK {
            return Ok(answer::json(status, &told));
        }
        polling::refresh(&self.nodes).await;
        let listens = Arc::new(AtomicBool::new(true));
        let goes_on = Arc::clone(&listens);
        // A client that goes away cuts no move in two.
        let work = tokio::spawn(async move {
            let _turn = turn;
            carrier.move_all(&goes_on).await
        });
        let guard = ListeningClient(listens);
        let report = work.await;
        drop(guard);
        let failed = |_| ApiRefusal::new(StatusCode::INTERNAL_SERVER_ERROR, "the drain was cut off");
        let DrainReport { moved, waiting, failed } = report.map_err(failed)?;
        let told = json!({ "node": name, "moved": moved, "waiting": waiting, "failed": failed });
        Ok(answer::json(StatusCode::OK, &told))
    }
}

/// Somebody waits for the answer, until this is dropped.
struct ListeningClient(Arc<AtomicBool>);

impl Drop for ListeningClient {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// The key that a client shows, as nodes are shown it.
fn shown_key(parts: &Parts) -> Result<HeaderValue, ApiRefusal> {
    let shown = control::key(&parts.headers).ok().flatten();
    let key = shown.and_then(|key| HeaderValue::from_str(key).ok());
    let mut key = key.ok_or_else(|| ApiRefusal::bad_request("the key cannot be shown to a node"))?;
    key.set_sensitive(true);
    Ok(key)
}

/// Carries sandboxes away from a node.
struct Carrier {
    nodes: Arc<FrontNodes>,
    client: ClientConnection,
    key: HeaderValue,
    from: NodeNumber,
}

/// A sandbox that is on its way: nobody is led to it, and one counts as being made where it goes.
struct Moving<'a> {
    nodes: &'a FrontNodes,
    id: &'a str,
    placed: PlacedCreate,
    is_there: bool,
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        let now = self.nodes.now();
        let mut table = self.nodes.table();
        table.settle(&self.placed, None, now);
        table.end_move(self.id, self.is_there.then(|| self.placed.node()), now);
    }
}

impl Carrier {
    async fn move_all(&self, goes_on: &AtomicBool) -> DrainReport {
        let mut report = DrainReport::default();
        let mut ids = self.nodes.table().sandboxes_of(self.from);
        ids.sort();
        for id in ids {
            if !goes_on.load(Ordering::Acquire) {
                break;
            }
            match self.moved(&id).await {
                Ok(to) => report.moved.push(json!({ "id": id, "node": self.nodes.name(to) })),
                Err(Stay::Waiting(why)) => report.waiting.push(json!({ "id": id, "why": why })),
                Err(Stay::Failed(why)) => report.failed.push(json!({ "id": id, "why": why })),
                Err(Stay::Gone) => {}
            }
        }
        report
    }

    /// Moves one; answers to which node.
    async fn moved(&self, id: &str) -> Result<NodeNumber, Stay> {
        let before = self.described(id).await?;
        let placed = self.nodes.table().place(self.nodes.now(), &[self.from]);
        let placed = placed.ok_or_else(|| Stay::Failed("no other node that answers takes new sandboxes".to_owned()))?;
        let to = placed.node();
        self.nodes.table().begin_move(id);
        let mut moving = Moving {
            nodes: &self.nodes,
            id,
            placed,
            is_there: false,
        };
        let is_paused = before.state == "paused";
        if !is_paused {
            self.done(
                self.from,
                Method::POST,
                &path_of(id, "pause"),
                Some(&json!({})),
                ASK_TIMEOUT,
            )
            .await
            .map_err(Stay::Failed)?;
        }
        match self.carried(id, to, is_paused).await {
            Ok(()) => {
                moving.is_there = true;
                Ok(to)
            }
            Err(Stay::Failed(why)) if !is_paused => Err(Stay::Failed(self.resumed(id, why).await)),
            Err(stay) => Err(stay),
        }
    }

    /// One that stands still goes to another node, and is ended here.
    async fn carried(&self, id: &str, to: NodeNumber, is_paused: bool) -> Result<(), Stay> {
        // Whatever is changed from here on has it stay.
        let still = self.described(id).await?;
        let body = json!({ "contexts": "none" });
        let snapshot = self
            .done(
                self.from,
                Method::POST,
                &path_of(id, "snapshots"),
                Some(&body),
                SNAPSHOT_TIMEOUT,
            )
            .await
            .and_then(|made| id_in(&made))
            .map_err(Stay::Failed)?;
        let sent = self.sent(&snapshot, to).await;
        self.removed(self.from, &snapshot).await;
        let there = sent.map_err(Stay::Failed)?;
        let made = self.made(to, &there, &still, is_paused).await;
        // Sandboxes of one go on without it.
        self.removed(to, &there).await;
        if let Err(why) = made {
            return Err(Stay::Failed(self.ended(id, to, why).await));
        }
        self.left(id, to, still.changes).await
    }

    /// What its node says of a sandbox.
    async fn described(&self, id: &str) -> Result<Transfer, Stay> {
        let path = path_of(id, "transfer");
        let answered = self.ask(self.from, Method::GET, &path, None).await;
        let (status, told) = answered.map_err(|error| Stay::Failed(with_causes(&error)))?;
        match status {
            StatusCode::OK => {
                serde_json::from_value(told).map_err(|error| Stay::Failed(format!("the node's answer: {error}")))
            }
            StatusCode::NOT_FOUND => Err(Stay::Gone),
            StatusCode::CONFLICT => Err(Stay::Waiting(reason(id, &message(status, &told)))),
            status => Err(Stay::Failed(message(status, &told))),
        }
    }

    /// Has a snapshot go from one node to the other as it is read; answers its id there.
    async fn sent(&self, snapshot: &str, to: NodeNumber) -> Result<String, String> {
        let path = format!("/v1/snapshots/{snapshot}/export");
        let request = self.request(Method::GET, &path, body::empty())?;
        let told = |error: NodeError| with_causes(&error);
        let connection = self.connect(self.from).await.map_err(told)?;
        let exported = self.nodes.waited(self.from, ASK_TIMEOUT, connection.send(request));
        let (response, _connection) = exported.await.map_err(told)?;
        if response.status() != StatusCode::OK {
            return Err(format!("its node does not send its files: {}", response.status()));
        }
        let archive = response.into_body().map_err(Into::into).boxed_unsync();
        let mut request = self.request(Method::POST, "/v1/snapshots/import", archive)?;
        request
            .headers_mut()
            .insert(CONTENT_TYPE, HeaderValue::from_static(TAR));
        let connection = self.connect(to).await.map_err(told)?;
        let imported = self.nodes.waited(to, SEND_TIMEOUT, connection.ask(request, MAX_READ));
        let (head, text, connection) = imported.await.map_err(told)?;
        connection.keep();
        let made: Value = serde_json::from_slice(&text).unwrap_or_default();
        match head.status.is_success() {
            true => id_in(&made),
            false => Err(format!(
                "node {} does not take its files: {}",
                self.nodes.name(to),
                message(head.status, &made)
            )),
        }
    }

    /// Has a node make a sandbox of a snapshot and of what the other one said.
    async fn made(&self, to: NodeNumber, snapshot: &str, said: &Transfer, is_paused: bool) -> Result<(), String> {
        let body = json!({ "snapshot": snapshot, "description": said.description, "paused": is_paused });
        let made = self.done(to, Method::POST, "/v1/transfers", Some(&body), MAKE_TIMEOUT);
        made.await.map(drop)
    }

    /// Ends it at the node that it left, unless it was used there meanwhile.
    async fn left(&self, id: &str, to: NodeNumber, changes: i64) -> Result<(), Stay> {
        let path = format!("{}?changes={changes}", path_of(id, "transfer"));
        let answered = self.asked(self.from, Method::DELETE, &path, None, MAKE_TIMEOUT).await;
        let why = match answered {
            Ok((status, _)) if status.is_success() || status == StatusCode::NOT_FOUND => return Ok(()),
            Ok((status, told)) => message(status, &told),
            // It may have been ended. Whoever has it alone must not be ended as well.
            Err(error) => {
                let why = format!(
                    "{}; whether it ended there is not known, and it is at node {} as well",
                    with_causes(&error),
                    self.nodes.name(to)
                );
                return Err(Stay::Failed(why));
            }
        };
        Err(Stay::Failed(self.ended(id, to, why).await))
    }

    /// Ends what may have been made of it at another node; answers why, with what could not be done.
    async fn ended(&self, id: &str, at: NodeNumber, why: String) -> String {
        let path = format!("/v1/sandboxes/{id}");
        match self.asked(at, Method::DELETE, &path, None, MAKE_TIMEOUT).await {
            Ok((status, _)) if status.is_success() || status == StatusCode::NOT_FOUND => why,
            _ => format!(
                "{why}; what was made of it at node {} may be there",
                self.nodes.name(at)
            ),
        }
    }

    /// Has it go on at its node; answers why it stays, with what could not be done.
    async fn resumed(&self, id: &str, why: String) -> String {
        let left = self.described(id).await.ok().and_then(|said| said.left_seconds);
        let body = json!({ "timeout_seconds": left.map(|left| left.max(1)) });
        let path = path_of(id, "resume");
        let resumed = self.done(self.from, Method::POST, &path, Some(&body), MAKE_TIMEOUT);
        match resumed.await {
            Ok(_) => why,
            Err(error) => format!("{why}; it is paused: {error}"),
        }
    }

    async fn removed(&self, node: NodeNumber, snapshot: &str) {
        // One that stays is the admin's, and in his list.
        let path = format!("/v1/snapshots/{snapshot}");
        let _removed = self.asked(node, Method::DELETE, &path, None, ASK_TIMEOUT).await;
    }

    /// As [`Self::asked`]; an error is what the node said no with.
    async fn done(
        &self,
        node: NodeNumber,
        method: Method,
        path: &str,
        body: Option<&Value>,
        within: Duration,
    ) -> Result<Value, String> {
        match self.asked(node, method, path, body, within).await {
            Ok((status, told)) if status.is_success() => Ok(told),
            Ok((status, told)) => Err(message(status, &told)),
            Err(error) => Err(with_causes(&error)),
        }
    }

    async fn ask(
        &self,
        node: NodeNumber,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(StatusCode, Value), NodeError> {
        self.asked(node, method, path, body, ASK_TIMEOUT).await
    }

    /// Asks a node with the admin's key, and reads all that it answers.
    async fn asked(
        &self,
        node: NodeNumber,
        method: Method,
        path: &str,
        body: Option<&Value>,
        within: Duration,
    ) -> Result<(StatusCode, Value), NodeError> {
        let body = body.map_or_else(body::empty, |body| body::full(Bytes::from(body.to_string())));
        let request = self
            .request(method, path, body)
            .map_err(|error| NodeError::Unreadable {
                node: self.nodes.name(node),
                source: error.into(),
            })?;
        let asked = async { self.connect(node).await?.ask(request, MAX_READ).await };
        let (head, text, connection) = self.nodes.waited(node, within, asked).await?;
        connection.keep();
        Ok((head.status, serde_json::from_slice(&text).unwrap_or_default()))
    }

    async fn connect(&self, node: NodeNumber) -> Result<super::node::NodeConnection, NodeError> {
        let mut headers = http::HeaderMap::new();
        headers.insert(control::API_KEY, self.key.clone());
        self.nodes.connect(node, &self.client, &headers).await
    }

    fn request(&self, method: Method, path: &str, body: Body) -> Result<Request<Body>, String> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(control::API_KEY, self.key.clone())
            .header(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        request.body(body).map_err(|error| error.to_string())
    }
}

fn path_of(id: &str, what: &str) -> String {
    format!("/v1/sandboxes/{id}/{what}")
}

/// The id of a snapshot in an answer: it becomes a part of paths.
fn id_in(made: &Value) -> Result<String, String> {
    let id = made["id"].as_str().filter(|id| destination::is_id(id));
    id.map(str::to_owned)
        .ok_or_else(|| "a node's answer names no snapshot".to_owned())
}

/// What is said of a sandbox that is named beside it.
fn reason(id: &str, message: &str) -> String {
    let rest = message.strip_prefix(&format!("sandbox `{id}` "));
    rest.unwrap_or(message).to_owned()
}

/// What a node said no with.
fn message(status: StatusCode, told: &Value) -> String {
    let message = told["message"].as_str().filter(|message| !message.is_empty());
    message.map_or_else(|| format!("a node answered {status}"), str::to_owned)
}
