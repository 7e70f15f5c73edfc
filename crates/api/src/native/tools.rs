//! Calls of tools in the native REST: questions that wait for a person, and calls that clients answer.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use offleash_core::approval::{ApprovalAnswer, ApprovalSubject};
use offleash_daemon::{AllowedHost, ApprovalView, ClientCall};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::control::ApiRequest;
use crate::http::answer::{self, ApiRefusal};
use crate::http::body::Body;
use crate::http::destination::PathSegments;
use crate::http::driven::driven;
use crate::http::json::RequestBody;
use crate::http::time;

/// The type of an answer with events.
pub(crate) const EVENTS: &str = "text/event-stream";
/// How often a stream without calls shows that it is alive.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Questions that wait for an answer.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ApprovalList {
    /// Of tools and connections one for each sandbox at most: the next one comes when this one is decided.
    approvals: Vec<ApprovalAnswerShape>,
}

/// A question about what waits for the answer.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Approval")]
struct ApprovalAnswerShape {
    /// Its id.
    id: String,
    /// The sandbox that calls.
    sandbox: String,
    /// What the sandbox is called.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// The key whose sandbox it is; absent for the owner of the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    /// `tool`: a call of a tool; `connection`: a connection to a host; `command`: a command that is to be started; `restore`: a
    /// sandbox that is to be put back to a checkpoint.
    kind: String,
    /// The tool; `connect`, `start` or `restore` for the others.
    tool: String,
    /// What it would be called with, all of it; of a connection `host`, `port` and `protocol`, of a command its words (`argv`),
    /// of a restore the `checkpoint`.
    parameters: Value,
    /// The answers that allow it.
    scopes: Vec<String>,
    /// The scope of keys that may answer: `create`, or `admin` where a rule of the server's configuration asks.
    answered_by: String,
    /// The rule that asks, where one does.
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<String>,
    /// How long the question waits still before it is refused, milliseconds.
    left_ms: u64,
}

/// Hosts that are not asked about any more.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct AllowedHostList {
    /// By whose they are, template and rule.
    allowed: Vec<AllowedHostAnswer>,
}

/// A host that was allowed for good.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AllowedHost")]
struct AllowedHostAnswer {
    /// Its id.
    id: String,
    /// The key for whose sandboxes it is allowed; absent for the owner of the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    /// The template of these sandboxes.
    template: String,
    /// What is allowed, as a policy has it: one host and one port.
    rule: String,
    /// The sandbox that asked.
    sandbox: String,
    /// When it was allowed.
    created_at: String,
}

/// How a call is allowed.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Approve {
    /// `once`: this time; `sandbox`: the tool within its grant, the host and port, or what the rule asks about, in this sandbox; `always`:
    /// the host and port, in this sandbox and in those that the same key makes of the same template from now on. `once` if absent.
    scope: Option<String>,
}

/// How a call is refused.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Deny {}

/// What became of a call: its result, or why there is none.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CallAnswer {
    /// The result: any JSON value; `null` if absent.
    result: Option<Value>,
    /// Why there is none, for the code that called.
    error: Option<String>,
}

/// An event of the stream of calls: the `data` of a server-sent event.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct CallEvent {
    /// `call`, or `withdrawn`: its answer is needed no more. The name of the event, too.
    kind: String,
    /// The call's number in the sandbox, by which it is answered.
    id: u64,
    /// `call`: the tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    tool: Option<String>,
    /// `call`: what it is called with.
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<Value>,
}

impl From<ApprovalView> for ApprovalAnswerShape {
    fn from(view: ApprovalView) -> Self {
        let scopes: &[&str] = match view.about {
            ApprovalSubject::Connection { .. } => &["once", "sandbox", "always"],
            _ => &["once", "sandbox"],
        };
        let (kind, tool, parameters) = match view.about {
            ApprovalSubject::ToolCall { tool, parameters } => ("tool", tool, value_of(&parameters)),
            ApprovalSubject::Connection { host, port, protocol } => (
                "connection",
                "connect".to_owned(),
                json!({ "host": host.to_string(), "port": port, "protocol": protocol }),
            ),
            ApprovalSubject::Command { argv } => ("command", "start".to_owned(), json!({ "argv": argv })),
            ApprovalSubject::Restore { checkpoint } => {
                ("restore", "restore".to_owned(), json!({ "checkpoint": checkpoint }))
            }
        };
        Self {
            kind: kind.to_owned(),
            tool,
            parameters,
            scopes: scopes.iter().map(ToString::to_string).collect(),
            answered_by: view.answered_by.as_str().to_owned(),
            id: view.id,
            sandbox: view.sandbox,
            name: view.name,
            key: view.key,
            rule: view.rule,
            left_ms: u64::try_from(view.left.as_millis()).unwrap_or(u64::MAX),
        }
    }
}

impl From<ClientCall> for CallEvent {
    fn from(call: ClientCall) -> Self {
        match call {
            ClientCall::Call { id, tool, parameters } => Self {
                kind: "call".to_owned(),
                id,
                tool: Some(tool),
                parameters: Some(value_of(&parameters)),
            },
            ClientCall::Withdrawn(id) => Self {
                kind: "withdrawn".to_owned(),
                id,
                tool: None,
                parameters: None,
            },
        }
    }
}

impl CallEvent {
    fn bytes(&self) -> Bytes {
        format!("event: {}\ndata: {}\n\n", self.kind, json!(self)).into()
    }
}

/// JSON that the judge wrote.
fn value_of(json: &str) -> Value {
    serde_json::from_str(json).unwrap_or_default()
}

pub(crate) async fn approvals(asked: &ApiRequest<'_>) -> Result<Response<Body>, ApiRefusal> {
    let open = asked.daemon().approvals(&asked.caller).await;
    let open = open.map_err(|error| asked.refused(&error))?;
    let approvals = open.into_iter().map(ApprovalAnswerShape::from).collect();
    Ok(answer::json(StatusCode::OK, &ApprovalList { approvals }))
}

pub(crate) fn allowed_hosts(asked: &ApiRequest<'_>) -> Result<Response<Body>, ApiRefusal> {
    let all = asked.daemon().allowed_hosts(&asked.caller);
    let all = all.map_err(|error| asked.refused(&error))?;
    let shown = |host: AllowedHost| AllowedHostAnswer {
        id: host.id,
        key: host.key,
        template: host.template,
        rule: host.rule,
        sandbox: host.sandbox,
        created_at: time::text(host.created_at),
    };
    let allowed = all.into_iter().map(shown).collect();
    Ok(answer::json(StatusCode::OK, &AllowedHostList { allowed }))
}

pub(crate) async fn forget_allowed_host(asked: &ApiRequest<'_>, id: &str) -> Result<Response<Body>, ApiRefusal> {
    let forgotten = asked.daemon().forget_allowed_host(&asked.caller, id).await;
    forgotten.map_err(|error| asked.refused(&error))?;
    Ok(answer::empty(StatusCode::NO_CONTENT))
}

pub(crate) async fn approve(asked: &ApiRequest<'_>, id: &str, body: RequestBody) -> Result<Response<Body>, ApiRefusal> {
    let how: Approve = body.read().await?;
    let answer = match how.scope.as_deref() {
        None | Some("once") => ApprovalAnswer::Once,
        Some("sandbox") => ApprovalAnswer::Run,
        Some("always") => ApprovalAnswer::Always,
        Some(_) => return Err(ApiRefusal::bad_request("scope: must be `once`, `sandbox` or `always`")),
    };
    decide(asked, id, answer).await
}

pub(crate) async fn deny(asked: &ApiRequest<'_>, id: &str, body: RequestBody) -> Result<Response<Body>, ApiRefusal> {
    let Deny {} = body.read().await?;
    decide(asked, id, ApprovalAnswer::Denied).await
}

async fn decide(asked: &ApiRequest<'_>, id: &str, answer: ApprovalAnswer) -> Result<Response<Body>, ApiRefusal> {
    let decided = asked.daemon().decide(&asked.caller, id, answer).await;
    decided.map_err(|error| asked.refused(&error))?;
    Ok(answer::empty(StatusCode::NO_CONTENT))
}

/// Tells the calls that the client is to answer as they come; when it goes away, those fail that it has not answered.
pub(crate) async fn calls(asked: &ApiRequest<'_>, id: &str) -> Result<Response<Body>, ApiRefusal> {
    let calls = asked.daemon().client_calls(&asked.caller, id).await;
    let mut calls = calls.map_err(|error| asked.refused(&error))?;
    let body = driven(move |feed| async move {
        feed.send(Ok(Bytes::from_static(b": calls of tools\n\n"))).await;
        loop {
            let event = tokio::select! {
                call = calls.next() => match call {
                    Some(call) => CallEvent::from(call).bytes(),
                    None => return,
                },
                () = sleep(KEEPALIVE) => Bytes::from_static(b": \n\n"),
            };
            feed.send(Ok(event)).await;
        }
    });
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(EVENTS));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(response)
}

pub(crate) async fn answer_call(
    asked: &ApiRequest<'_>,
    [id, call, _]: PathSegments<'_>,
    body: RequestBody,
) -> Result<Response<Body>, ApiRefusal> {
    let number = call
        .parse()
        .map_err(|_| ApiRefusal::not_found("there is no such call"))?;
    let outcome = match body.read().await? {
        CallAnswer {
            error: Some(why),
            result: None,
        } => Err(why),
        CallAnswer { error: None, result } => Ok(result.unwrap_or_default().to_string()),
        CallAnswer { .. } => return Err(ApiRefusal::bad_request("`result` and `error` exclude each other")),
    };
    let answered = asked.daemon().answer_call(&asked.caller, id, number, outcome).await;
    answered.map_err(|error| asked.refused(&error))?;
    Ok(answer::empty(StatusCode::NO_CONTENT))
}
