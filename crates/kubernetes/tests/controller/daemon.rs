//! A stand-in for a node's daemon: sandboxes in the native REST, and what goes wrong with them.

use std::collections::{BTreeMap, VecDeque};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::{Value, json};

use super::http::{self, Answers, Asked};

/// The key that it takes.
pub(crate) const KEY: &str = "e2b_0000000000000000000000000000000000000001";
/// Fields of a create; others are refused, as by the real one.
const FIELDS: [&str; 11] = [
    "template",
    "image",
    "name",
    "timeout_seconds",
    "metadata",
    "env",
    "pause_on_timeout",
    "pause_mode",
    "limits",
    "policy",
    "snapshot",
];

#[derive(Default)]
struct Sandboxes {
    all: BTreeMap<String, Value>,
    by_idempotency_key: BTreeMap<String, String>,
    next: u64,
    creates: u64,
    /// Commands that were run: sandbox, and the words.
    commands: Vec<(String, Vec<String>)>,
    policies: Vec<(String, Value)>,
    /// Requests that are carried out, and whose answers are lost.
    lost: usize,
    /// Answers instead: a status and a message.
    refusals: VecDeque<(u16, String)>,
    is_down: bool,
}

/// The stand-in.
#[derive(Clone)]
pub(crate) struct NodeDaemon {
    sandboxes: Arc<Mutex<Sandboxes>>,
    prefix: String,
    pub(crate) address: SocketAddr,
}

impl Answers for NodeDaemon {
    fn answer(&self, asked: Asked, stream: TcpStream) {
        if self.lock().is_down {
            return;
        }
        let (status, body) = self.ask(&asked);
        let mut sandboxes = self.lock();
        if asked.method == "POST" && sandboxes.lost > 0 {
            sandboxes.lost -= 1;
            return;
        }
        drop(sandboxes);
        http::write(&stream, status, &body);
    }
}

impl NodeDaemon {
    pub(crate) fn start(prefix: &str) -> Self {
        let mut daemon = Self {
            sandboxes: Arc::default(),
            prefix: prefix.to_owned(),
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
        };
        daemon.address = http::serve(Arc::new(daemon.clone()));
        daemon
    }

    fn lock(&self) -> MutexGuard<'_, Sandboxes> {
        self.sandboxes.lock().unwrap()
    }

    pub(crate) fn all(&self) -> Vec<Value> {
        self.lock().all.values().cloned().collect()
    }

    pub(crate) fn creates(&self) -> u64 {
        self.lock().creates
    }

    pub(crate) fn commands(&self) -> Vec<(String, Vec<String>)> {
        self.lock().commands.clone()
    }

    pub(crate) fn policies(&self) -> Vec<(String, Value)> {
        self.lock().policies.clone()
    }

    pub(crate) fn lose_answers(&self, count: usize) {
        self.lock().lost = count;
    }

    pub(crate) fn refuse_once(&self, status: u16, message: &str) {
        self.lock().refusals.push_back((status, message.to_owned()));
    }

    pub(crate) fn set_down(&self, is_down: bool) {
        self.lock().is_down = is_down;
    }

    /// As if the machine had been started anew with an empty directory.
    pub(crate) fn lose_everything(&self) {
        self.lock().all.clear();
    }

    fn ask(&self, asked: &Asked) -> (u16, Value) {
        let mut sandboxes = self.lock();
        if asked.head.get("x-api-key").map(String::as_str) != Some(KEY) {
            return told(401, "the key is not valid");
        }
        let words: Vec<&str> = asked.path.trim_matches('/').split('/').collect();
        match (asked.method.as_str(), &*words) {
            ("POST", ["v1", "sandboxes"]) => self.create(&mut sandboxes, asked),
            ("GET", ["v1", "sandboxes"]) => {
                // Two of them a page.
                let from = asked.query.get("nextToken").map_or(0, |token| token.parse().unwrap());
                let page: Vec<Value> = sandboxes.all.values().skip(from).take(2).cloned().collect();
                let next = (from + 2 < sandboxes.all.len()).then(|| (from + 2).to_string());
                (200, json!({ "sandboxes": page, "next": next }))
            }
            ("GET", ["v1", "names", name]) => {
                let found = sandboxes
                    .all
                    .values()
                    .find(|sandbox| sandbox["metadata"]["offleash.name"] == **name);
                found.map_or_else(
                    || (200, json!({ "id": null, "others": [] })),
                    |found| (200, json!({ "id": found["id"], "others": [] })),
                )
            }
            (method, ["v1", "sandboxes", id, rest @ ..]) => {
                let id = (*id).to_owned();
                if !sandboxes.all.contains_key(&id) {
                    return told(404, &format!("sandbox {id} not found"));
                }
                sandboxes.about(method, &id, rest, &asked.body)
            }
            _ => told(404, "no such route"),
        }
    }

    fn create(&self, sandboxes: &mut Sandboxes, asked: &Asked) -> (u16, Value) {
        if let Some((status, message)) = sandboxes.refusals.pop_front() {
            return told(status, &message);
        }
        let new = &asked.body;
        if let Some((name, _)) = new
            .as_object()
            .unwrap()
            .iter()
            .find(|(name, _)| !FIELDS.contains(&name.as_str()))
        {
            return told(400, &format!("unknown field `{name}`"));
        }
        let key = asked.head.get("idempotency-key").cloned().unwrap_or_default();
        if let Some(id) = sandboxes
            .by_idempotency_key
            .get(&key)
            .filter(|id| sandboxes.all.contains_key(*id))
        {
            return (201, sandboxes.all[id].clone());
        }
        if sandboxes
            .all
            .values()
            .any(|there| there["metadata"]["offleash.name"] == new["name"])
        {
            return told(409, &format!("a sandbox is called {} already", new["name"]));
        }
        sandboxes.next += 1;
        sandboxes.creates += 1;
        let id = format!("{}{:04}", self.prefix, sandboxes.next);
        let mut metadata = new["metadata"].clone();
        metadata["offleash.name"] = new["name"].clone();
        let mut sandbox = new.clone();
        for (name, value) in [
            ("id", json!(id)),
            ("state", json!("running")),
            ("level", json!("process")),
            ("ends_at", json!("2099-01-01T00:00:00Z")),
            ("metadata", metadata),
        ] {
            sandbox[name] = value;
        }
        sandboxes.all.insert(id.clone(), sandbox.clone());
        sandboxes.by_idempotency_key.insert(key, id);
        (201, sandbox)
    }
}

impl Sandboxes {
    fn about(&mut self, method: &str, id: &str, rest: &[&str], body: &Value) -> (u16, Value) {
        let sandbox = self.all.get_mut(id).unwrap();
        match (method, rest) {
            ("GET", []) => (200, sandbox.clone()),
            ("DELETE", []) => {
                self.all.remove(id);
                (204, Value::Null)
            }
            ("POST", ["pause"]) => {
                sandbox["state"] = json!("paused");
                sandbox["pause_mode"] = body["mode"].clone();
                (200, sandbox.clone())
            }
            ("POST", ["resume"]) => {
                sandbox["state"] = json!("running");
                (200, sandbox.clone())
            }
            ("PUT", ["policy"]) => {
                self.policies.push((id.to_owned(), body.clone()));
                (204, Value::Null)
            }
            ("POST", ["run"]) => {
                let words = body["argv"].as_array().unwrap().iter();
                let words = words.map(|word| word.as_str().unwrap().to_owned()).collect();
                self.commands.push((id.to_owned(), words));
                (200, json!({ "exit_code": 0, "stderr": "" }))
            }
            _ => told(405, "no such method"),
        }
    }
}

fn told(status: u16, message: &str) -> (u16, Value) {
    (status, json!({ "code": status, "message": message }))
}
