//! What a node's daemon is asked, in the native REST.
//!
//! What a daemon answers is bounded and may be anything: a daemon that lies can hurt its own sandboxes alone.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::{Method, Request};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::access::{AccessError, HttpAccess};
use crate::config::DaemonKey;

/// The longest answer that is read.
const MAX_ANSWER: u64 = 1 << 20;
/// The most pages of a list, and the most sandboxes that are kept of it.
const MAX_PAGES: usize = 200;
const MAX_LISTED: usize = 10_000;
/// The longest label that is kept of a sandbox in a list.
const MAX_LABEL: usize = 256;
/// What is told of a daemon's refusal.
const MAX_MESSAGE: usize = 512;

/// Why a daemon did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NativeError {
    /// It does not answer.
    #[error("the daemon of node `{node}` does not answer: {reason}")]
    Unreachable { node: String, reason: String },
    /// It said no.
    #[error("the daemon of node `{node}` refuses ({status}): {message}")]
    Refused { node: String, status: u16, message: String },
    /// Its answer is none.
    #[error("the daemon of node `{node}` answered what cannot be read: {reason}")]
    Malformed { node: String, reason: String },
}

impl NativeError {
    /// Whether there is nothing of what was asked for.
    pub(crate) fn is_absence(&self) -> bool {
        matches!(self, Self::Refused { status: 404 | 410, .. })
    }

    /// Whether the name is another sandbox's already.
    pub(crate) fn is_conflict(&self) -> bool {
        matches!(self, Self::Refused { status: 409, .. })
    }

    /// Whether asking the same again cannot help.
    pub(crate) fn is_final(&self) -> bool {
        matches!(
            self,
            Self::Refused {
                status: 400 | 403 | 413 | 422 | 501,
                ..
            }
        )
    }
}

/// A sandbox that is asked for.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct NativeSandbox {
    /// The template, where it is one of offleash's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) template: Option<String>,
    /// The image, where it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) image: Option<String>,
    /// Its name, which no other sandbox of the key has.
    pub(crate) name: String,
    /// How long it lives unless that is extended.
    pub(crate) timeout_seconds: u64,
    /// Its labels.
    pub(crate) metadata: BTreeMap<String, String>,
    /// Its variables.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) env: BTreeMap<String, String>,
    /// That it is put away when nobody extends its time.
    pub(crate) pause_on_timeout: bool,
    /// What is kept of it then.
    pub(crate) pause_mode: &'static str,
    /// What it may use.
    pub(crate) limits: NativeLimits,
    /// What it may reach.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) policy: Option<NativePolicy>,
}

/// What a sandbox may use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NativeLimits {
    /// CPUs at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cpus: Option<u32>,
    /// Memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) memory_mib: Option<u64>,
    /// Disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) disk_mib: Option<u64>,
}

impl NativeLimits {
    /// The first of these that is more than what is `counted`, if one is; what is not counted is any.
    pub(crate) fn more_than(&self, counted: &Self) -> Option<&'static str> {
        let all = [
            ("cpu", self.cpus.map(u64::from), counted.cpus.map(u64::from)),
            ("memory", self.memory_mib, counted.memory_mib),
            ("ephemeral-storage", self.disk_mib, counted.disk_mib),
        ];
        let more = all
            .into_iter()
            .find(|(_, has, counted)| counted.is_some_and(|counted| *has > Some(counted)));
        more.map(|(name, ..)| name)
    }
}

/// What a sandbox may reach, and who may reach it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct NativePolicy {
    /// Any public address.
    pub(crate) internet: bool,
    /// What it may reach beside.
    pub(crate) allow: Vec<String>,
    /// What it may not reach.
    pub(crate) deny: Vec<String>,
    /// Whether its ports are open to whoever reaches the daemon.
    pub(crate) public_ports: bool,
}

/// A sandbox that there is.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct NativeView {
    /// Its id.
    pub(crate) id: String,
    /// `running` or `paused`.
    pub(crate) state: String,
    /// How it is isolated.
    #[serde(default)]
    pub(crate) level: String,
    /// When its time is up.
    #[serde(default)]
    pub(crate) ends_at: String,
    /// What is kept of it while it is paused: `full` or `filesystem`.
    #[serde(default)]
    pub(crate) pause_mode: Option<String>,
    /// What it may use.
    #[serde(default)]
    pub(crate) limits: NativeLimits,
    /// Its labels.
    #[serde(default)]
    pub(crate) metadata: BTreeMap<String, String>,
}

/// A page of sandboxes.
#[derive(Debug, Deserialize)]
struct Page {
    sandboxes: Vec<NativeView>,
    next: Option<String>,
}

impl NativeView {
    /// Whether it is paused.
    pub(crate) fn is_paused(&self) -> bool {
        self.state == "paused"
    }
}

/// The daemon of one node.
#[derive(Debug)]
pub(crate) struct NodeDaemon {
    /// The node.
    pub(crate) node: String,
    access: HttpAccess,
    key: DaemonKey,
}

impl NodeDaemon {
    /// The daemon at an address.
    pub(crate) fn new(node: &str, access: HttpAccess, key: DaemonKey) -> Self {
        Self {
            node: node.to_owned(),
            access,
            key,
        }
    }

    /// Makes a sandbox; asked with the same `idempotency_key` again it answers the same one.
    pub(crate) async fn create(
        &self,
        wanted: &NativeSandbox,
        idempotency_key: &str,
    ) -> Result<NativeView, NativeError> {
        let body = serde_json::to_value(wanted).map_err(|error| self.malformed(error))?;
        let request = self.request(Method::POST, "/v1/sandboxes", Some(&body))?;
        let (mut head, body) = request.into_parts();
        let key = idempotency_key
            .parse()
            .map_err(|_| self.malformed("an idempotency key"))?;
        head.headers.insert("idempotency-key", key);
        self.view(self.ask(Request::from_parts(head, body)).await?)
    }

    /// A sandbox by its id; `None` if there is none.
    pub(crate) async fn get(&self, id: &str) -> Result<Option<NativeView>, NativeError> {
        let asked = self
            .ask(self.request(Method::GET, &format!("/v1/sandboxes/{id}"), None)?)
            .await;
        match asked {
            Ok(answer) => self.view(answer).map(Some),
            Err(error) if error.is_absence() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The id of the sandbox of this key that is called `name`; `None` if there is none.
    pub(crate) async fn named(&self, name: &str) -> Result<Option<String>, NativeError> {
        let asked = self
            .ask(self.request(Method::GET, &format!("/v1/names/{name}"), None)?)
            .await;
        let answer = match asked {
            Ok(answer) => answer,
            Err(error) if error.is_absence() => return Ok(None),
            Err(error) => return Err(error),
        };
        Ok(answer["id"].as_str().filter(|id| is_id(id)).map(str::to_owned))
    }

    /// The sandboxes of the key, page after page, with these labels of theirs.
    pub(crate) async fn list(&self, labels: &[&str]) -> Result<Vec<NativeView>, NativeError> {
        let (mut all, mut next) = (Vec::new(), String::new());
        for _ in 0..MAX_PAGES {
            let path = format!("/v1/sandboxes?limit=100{next}");
            let page: Page = self.read(self.ask(self.request(Method::GET, &path, None)?).await?)?;
            let room = MAX_LISTED - all.len();
            all.extend(
                page.sandboxes
                    .into_iter()
                    .filter_map(|view| listed(view, labels))
                    .take(room),
            );
            match page.next.filter(|next| is_token(next) && all.len() < MAX_LISTED) {
                Some(token) => next = format!("&nextToken={token}"),
                None => break,
            }
        }
        Ok(all)
    }

    /// Ends a sandbox; that there is none is fine.
    pub(crate) async fn kill(&self, id: &str) -> Result<(), NativeError> {
        let asked = self
            .ask(self.request(Method::DELETE, &format!("/v1/sandboxes/{id}"), None)?)
            .await;
        match asked {
            Err(error) if error.is_absence() => Ok(()),
            other => other.map(drop),
        }
    }

    /// Pauses a sandbox; what is kept of it is `filesystem` or `full`.
    pub(crate) async fn pause(&self, id: &str, mode: &str) -> Result<NativeView, NativeError> {
        self.view(
            self.post(&format!("/v1/sandboxes/{id}/pause"), &json!({ "mode": mode }))
                .await?,
        )
    }

    /// Has a sandbox go on, or live longer.
    pub(crate) async fn resume(&self, id: &str, seconds: u64) -> Result<NativeView, NativeError> {
        let body = json!({ "timeout_seconds": seconds });
        self.view(self.post(&format!("/v1/sandboxes/{id}/resume"), &body).await?)
    }

    /// Says what a sandbox may reach from now on.
    pub(crate) async fn set_policy(&self, id: &str, policy: &NativePolicy) -> Result<(), NativeError> {
        let body = json!(policy);
        let request = self.request(Method::PUT, &format!("/v1/sandboxes/{id}/policy"), Some(&body))?;
        self.ask(request).await.map(drop)
    }

    /// Runs a command to its end; answers its exit code, and what it wrote to standard error.
    pub(crate) async fn run(&self, id: &str, command: &Value) -> Result<(Option<i64>, String), NativeError> {
        let answer = self.post(&format!("/v1/sandboxes/{id}/run"), command).await?;
        let told = answer["stderr"].as_str().unwrap_or_default();
        Ok((answer["exit_code"].as_i64(), shortened(told)))
    }

    async fn post(&self, path: &str, body: &Value) -> Result<Value, NativeError> {
        self.ask(self.request(Method::POST, path, Some(body))?).await
    }

    fn request(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Request<Bytes>, NativeError> {
        let builder = Request::builder()
            .method(method)
            .uri(path)
            .header("x-api-key", self.key.reveal())
            .header(http::header::CONTENT_TYPE, "application/json");
        let body = body.map(ToString::to_string).unwrap_or_default();
        builder.body(Bytes::from(body)).map_err(|error| self.malformed(error))
    }

    async fn ask(&self, request: Request<Bytes>) -> Result<Value, NativeError> {
        let unreachable = |error: AccessError| NativeError::Unreachable {
            node: self.node.clone(),
            reason: error.to_string(),
        };
        let response = self.access.send(request).await.map_err(unreachable)?;
        let status = response.status().as_u16();
        let body = self.access.read(response, MAX_ANSWER).await.map_err(unreachable)?;
        if !(200..300).contains(&status) {
            return Err(NativeError::Refused {
                node: self.node.clone(),
                status,
                message: message_of(&body),
            });
        }
        match body.is_empty() {
            true => Ok(Value::Null),
            false => serde_json::from_slice(&body).map_err(|error| self.malformed(error)),
        }
    }

    fn read<T: DeserializeOwned>(&self, answer: Value) -> Result<T, NativeError> {
        serde_json::from_value(answer).map_err(|error| self.malformed(error))
    }

    fn view(&self, answer: Value) -> Result<NativeView, NativeError> {
        let view: NativeView = self.read(answer)?;
        match is_id(&view.id) {
            true => Ok(view),
            false => Err(self.malformed("its id is none")),
        }
    }

    fn malformed(&self, reason: impl ToString) -> NativeError {
        NativeError::Malformed {
            node: self.node.clone(),
            reason: reason.to_string(),
        }
    }
}

/// Whether a text is an id: those go into paths, and come from annotations and answers.
pub(crate) fn is_id(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// What is kept of a sandbox in a list, which is read whole: what says whose it is.
fn listed(view: NativeView, labels: &[&str]) -> Option<NativeView> {
    let NativeView {
        id,
        state,
        mut metadata,
        ..
    } = view;
    metadata.retain(|name, value| labels.contains(&name.as_str()) && value.len() <= MAX_LABEL);
    let has_size = is_id(&id) && state.len() <= MAX_LABEL;
    has_size.then_some(NativeView {
        id,
        state,
        metadata,
        level: String::new(),
        ends_at: String::new(),
        pause_mode: None,
        limits: NativeLimits::default(),
    })
}

/// Whether a text can stand in a query as it is.
fn is_token(text: &str) -> bool {
    text.len() <= 512
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte))
}

/// What a refusal says, as a person reads it.
fn message_of(body: &[u8]) -> String {
    let parsed: Option<Value> = serde_json::from_slice(body).ok();
    let message = parsed.as_ref().and_then(|value| value["message"].as_str());
    shortened(message.unwrap_or("it says nothing more"))
}

fn shortened(text: &str) -> String {
    text.chars()
        .filter(|letter| !letter.is_control())
        .take(MAX_MESSAGE)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_kept_within_bounds_whatever_a_daemon_says() {
        let view = |id: &str, name: &str, value: &str| {
            let view = json!({ "id": id, "state": "running", "level": "x".repeat(9999), "metadata": { name: value } });
            listed(serde_json::from_value(view).unwrap(), &["kubernetes.uid"])
        };
        let kept = view("i1", "kubernetes.uid", "u-1").unwrap();
        assert_eq!(kept.metadata["kubernetes.uid"], "u-1");
        assert!(kept.level.is_empty());
        for (name, value) in [
            ("other", "a"),
            ("kubernetes.x", "a"),
            ("kubernetes.uid", &*"u".repeat(300)),
        ] {
            assert!(view("i1", name, value).unwrap().metadata.is_empty(), "{name}");
        }
        assert!(view("../x", "kubernetes.uid", "u-1").is_none());
    }
}
