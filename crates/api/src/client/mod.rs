//! The other side: what our own commands ask of a daemon, over its unix socket or at a URL.
//!
//! A [`Client`] waits for its answers; a command that runs ([`Exec`]) is waited for with poll, like everything else that
//! has a terminal. Deliberately not here: arguments and printing.

mod ended;
mod endpoint;
mod exec;
mod files;
mod mcp;
mod services;
mod transport;
mod tunnel;

use std::path::{Path, PathBuf};
use std::time::Duration;

use http::{Method, Request};
use offleash_core::error::{ErrorKind, Explained};
use offleash_core::id::{RunId, SandboxName};
use serde::de::DeserializeOwned;
use serde_json::Value;

pub use ended::Ended;
pub use endpoint::{Endpoint, EndpointError, HostUrl, HostUrlError, RemoteSettings};
pub use exec::{Exec, ExecInput, ExecStart, News, RunningExec};
pub use files::Kind;
pub use services::{FileEntry, SandboxServices};
pub use tunnel::{ForwardNews, Tunnel, listen};

use self::transport::Transport;
use crate::http::answer::NODES_MISSING;
use crate::http::body;

/// The most pages of a list, and the most bytes that they have together.
const MAX_PAGES: usize = 10_000;
const MAX_LIST: usize = 256 << 20;

/// The name of the socket in the state directory at which a daemon serves its owner.
pub const SOCKET: &str = "api.sock";

/// Why a daemon did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens at the socket.
    #[error("no daemon answers at `{}`", .socket.display())]
    NotRunning {
        /// The socket.
        socket: PathBuf,
        /// Why it cannot be connected to.
        source: std::io::Error,
    },
    /// A server at a URL cannot be connected to.
    #[error("the server at `{url}` cannot be reached")]
    Unreachable {
        /// The server.
        url: HostUrl,
        /// Why not.
        source: std::io::Error,
    },
    /// A server at a URL accepts a connection and answers nothing.
    #[error("the server at `{url}` does not answer: nothing came of `{asked}` in {} s", .patience.as_secs())]
    Silent {
        /// The server.
        url: HostUrl,
        /// What was asked.
        asked: String,
        /// How long it was waited for.
        patience: Duration,
    },
    /// The server leads elsewhere, where no key is sent.
    #[error("the server leads to `{}`, which is not asked: keys go to the server that was named", .to.escape_debug())]
    Redirected {
        /// Where to.
        to: String,
    },
    /// Only sandboxes of keys have the name.
    #[error("no sandbox of yours is called `{name}`, but of keys: {}", .ids.join(", "))]
    OfOthers {
        /// The name.
        name: String,
        /// Their ids.
        ids: Vec<String>,
    },
    /// The sandbox is paused, and not resumed by being used.
    #[error("sandbox `{}` is paused", .id.escape_debug())]
    Paused {
        /// The sandbox.
        id: String,
    },
    /// The sandbox has ended, and the daemon still knows of it.
    #[error("sandbox `{}` has ended: {reason}", .id.escape_debug())]
    Ended {
        /// The sandbox.
        id: String,
        /// Why it ended.
        reason: String,
    },
    /// The server ended before its answer did.
    #[error("the server ended before the command did; sandbox `{}` goes on without it", .id.escape_debug())]
    ServerEnded {
        /// The sandbox.
        id: String,
    },
    /// The daemon ended a conversation of an agent host.
    #[error("the server ended the conversation; sandboxes of it that nobody kept have ended")]
    Hung,
    /// The answer ended before the command did.
    #[error("the connection to the command was cut: {reason}")]
    Cut {
        /// What was seen of it.
        reason: String,
    },
    /// The daemon, or the sandbox's services, said no.
    #[error("{message}")]
    Refused {
        /// What the answer says.
        message: String,
        /// What kind of refusal it is.
        kind: ErrorKind,
    },
    /// The command was not started.
    #[error("{message}")]
    NotStarted {
        /// What the answer says.
        message: String,
        /// What a shell would have ended with: 126 or 127.
        exit_code: u8,
    },
    /// What came is no answer, or ended in the middle.
    #[error("the daemon's answer to `{asked}` cannot be read: {reason}")]
    Malformed {
        /// What was asked.
        asked: String,
        /// What is wrong with the answer.
        reason: String,
    },
    /// A file or stream on this side failed.
    #[error("cannot {tried}")]
    Local {
        /// What was tried, as in `write the file`.
        tried: String,
        /// Why it failed.
        source: std::io::Error,
    },
}

impl Explained for ClientError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NotRunning { .. }
            | Self::Unreachable { .. }
            | Self::ServerEnded { .. }
            | Self::Hung
            | Self::Cut { .. } => ErrorKind::Unavailable,
            Self::Silent { .. } => ErrorKind::Timeout,
            Self::Redirected { .. } => ErrorKind::Denied,
            Self::Ended { .. } => ErrorKind::NotFound,
            Self::Paused { .. } => ErrorKind::Conflict,
            Self::OfOthers { .. } => ErrorKind::Invalid,
            Self::Refused { kind, .. } => *kind,
            Self::NotStarted { .. } => ErrorKind::NotFound,
            Self::Malformed { .. } => ErrorKind::Internal,
            Self::Local { .. } => ErrorKind::Invalid,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::NotRunning { .. } | Self::ServerEnded { .. } | Self::Hung => {
                Some("start one with `offleash serve`, with the same `--state DIR` if it has one".to_owned())
            }
            Self::Unreachable { url, source } => Some(way_there(url, source)),
            Self::Silent { url, .. } => Some(format!(
                "is `{url}` right? what listens there speaks no HTTP, or has too much to do"
            )),
            Self::Redirected { to } => to
                .starts_with("https://")
                .then(|| "if that is the server that is meant, name it with `--host`".to_owned()),
            Self::Ended { id, .. } => Some(format!("`offleash logs {}` says what happened", id.escape_debug())),
            Self::OfOthers { .. } => Some("if one of these is meant, say its id".to_owned()),
            Self::Paused { id } => Some(format!("`offleash resume {}`", id.escape_debug())),
            Self::Refused { message, .. } => what_there_is(message),
            _ => None,
        }
    }
}

/// What to look at when a server cannot be reached.
fn way_there(url: &HostUrl, source: &std::io::Error) -> String {
    let inner = source.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match inner {
        Some(rustls::Error::InvalidCertificate(_)) => {
            "`--ca FILE` trusts the authority of its certificate, or the certificate itself".to_owned()
        }
        Some(rustls::Error::InvalidMessage(_)) => format!("what answers there does not speak TLS; is `{url}` right?"),
        _ => "`--host` and `OFFLEASH_HOST` say which server is asked; is `offleash serve` running there?".to_owned(),
    }
}

/// How to find what there is, where what was asked for is not there.
fn what_there_is(message: &str) -> Option<String> {
    if let Some((sandbox, _)) = message
        .strip_prefix("sandbox `")
        .and_then(|rest| rest.split_once("` has no checkpoint `"))
    {
        return Some(format!("`offleash checkpoints {sandbox}` lists its checkpoints"));
    }
    if message.starts_with("there is no volume `") {
        return Some("`offleash volume ls` lists the volumes, `offleash volume create NAME` makes one".to_owned());
    }
    let (what, _) = message.strip_suffix(" not found")?.split_once(' ')?;
    let hint = match what {
        "sandbox" => {
            "`offleash ls` lists the sandboxes that there are, and `offleash ls -a` also those that have ended"
        }
        "template" => {
            "`offleash template ls` lists what there is beside `base`; `offleash template build --name NAME --pip …` builds one"
        }
        "snapshot" => "`offleash snapshot ls` lists the snapshots",
        _ => return None,
    };
    Some(hint.to_owned())
}

/// A list that came in pages.
#[derive(Debug, Default)]
pub struct Listing {
    /// What is in it.
    pub entries: Vec<Value>,
    /// The servers behind a front whose part is not in it, because they are lost or did not answer.
    pub missing_nodes: Vec<String>,
}

/// What came of a request.
struct JsonAnswer {
    /// `Null` if it has no body.
    value: Value,
    /// What the next page of a list is asked for with.
    next: Option<String>,
    /// How long it was.
    bytes: usize,
    missing_nodes: Vec<String>,
}

/// Asks a daemon; each request has a connection of its own.
#[derive(Debug)]
pub struct Client {
    transport: Transport,
    runtime: tokio::runtime::Runtime,
}

/// A sandbox as its services are asked for.
#[derive(Debug, Clone)]
pub(crate) struct ClientTarget {
    id: String,
    token: Option<String>,
    user: Option<String>,
}

impl Client {
    /// A client of the daemon that listens at `socket`.
    ///
    /// # Errors
    /// `Local` when the event loop cannot be made.
    pub fn new(socket: &Path) -> Result<Self, ClientError> {
        Self::of(Endpoint::socket(socket))
    }

    /// A client of the daemon at `endpoint`.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn of(endpoint: Endpoint) -> Result<Self, ClientError> {
        let runtime = transport::runtime()?;
        let transport = Transport::new(endpoint);
        Ok(Self { transport, runtime })
    }

    /// Calls `make` where the client's event loop is the current one, for what is to be waited for by it.
    pub fn within<T>(&self, make: impl FnOnce() -> T) -> T {
        let _entered = self.runtime.enter();
        make()
    }

    /// The services of the sandbox `id`, to be asked on an event loop of the caller's, as `user`.
    ///
    /// # Errors
    /// As [`Self::running`].
    pub fn services(&self, id: &str, user: Option<&str>) -> Result<SandboxServices, ClientError> {
        let target = self.target(id, user)?;
        Ok(SandboxServices::new(self.transport.for_another_loop(), target))
    }

    /// Reads `path`.
    ///
    /// # Errors
    /// `NotRunning`, `Refused`, `Malformed`.
    pub fn get(&self, path: &str) -> Result<Value, ClientError> {
        self.ask_for(Method::GET, path, None).map(|answer| answer.value)
    }

    /// Sends `body` to `path` and reads the answer, `Null` if it has no body.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn post(&self, path: &str, body: &Value) -> Result<Value, ClientError> {
        self.ask_for(Method::POST, path, Some(body)).map(|answer| answer.value)
    }

    /// Deletes what is at `path`.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn delete(&self, path: &str) -> Result<(), ClientError> {
        self.ask_for(Method::DELETE, path, None).map(drop)
    }

    /// Every entry of a list that comes in pages. A server that sends them without end is told of.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn list(&self, path: &str) -> Result<Listing, ClientError> {
        let mut list = PagedList::default();
        let mut token: Option<String> = None;
        loop {
            let separator = if path.contains('?') { '&' } else { '?' };
            let page = match &token {
                Some(token) => format!("{path}{separator}nextToken={}", encoded(token)),
                None => path.to_owned(),
            };
            let answer = self.ask_for(Method::GET, &page, None)?;
            let next = list.add(path, answer)?;
            if next.is_none() || next == token {
                return Ok(list.listing);
            }
            token = next;
        }
    }

    fn ask_for(&self, method: Method, path: &str, body: Option<&Value>) -> Result<JsonAnswer, ClientError> {
        // What makes or ends something takes as long as it takes.
        let patience = (method == Method::GET).then_some(transport::ANSWER);
        let mut request = Request::builder().method(method).uri(path).header("host", "localhost");
        if body.is_some() {
            request = request.header("content-type", "application/json");
        }
        let bytes = body.map(|value| value.to_string().into_bytes()).unwrap_or_default();
        let request = transport::built(request.body(body::full(bytes)), path)?;
        self.runtime.block_on(async {
            let answer = match patience {
                Some(patience) => self.transport.send_within(patience, request, path).await?,
                None => self.transport.send(request, path).await?,
            };
            let next = answer.header("x-next-token").filter(|token| !token.is_empty());
            let missing_nodes = answer.headers(NODES_MISSING);
            let bytes = answer.bytes().await?;
            let value = match bytes.is_empty() {
                true => Value::Null,
                false => parsed(&bytes, path)?,
            };
            Ok(JsonAnswer {
                value,
                next,
                bytes: bytes.len(),
                missing_nodes,
            })
        })
    }

    /// The id of the owner's own sandbox that `given` is the name of: the living one, or else the last that had it, of which
    /// whatever is asked for says that it has ended. `given` itself where there is none.
    ///
    /// # Errors
    /// As [`Self::get`], and `OfOthers`.
    pub fn id_of(&self, given: &str) -> Result<String, ClientError> {
        // What could be an id is no name.
        if given.parse::<SandboxName>().is_err() {
            return Ok(given.to_owned());
        }
        let answer = self.get(&format!("/v1/names/{}?ended=true", encoded(given)))?;
        if !answer["id"].is_null() {
            return id_in(&answer["id"]);
        }
        let ids = answer["others"].as_array().into_iter().flatten();
        let ids: Vec<String> = ids.map(id_in).collect::<Result<_, _>>()?;
        if ids.is_empty() {
            return Ok(given.to_owned());
        }
        Err(ClientError::OfOthers {
            name: given.to_owned(),
            ids,
        })
    }

    /// What there is to say of a sandbox that runs, or will when it is used.
    ///
    /// # Errors
    /// As [`Self::get`], and `Paused`.
    pub fn running(&self, id: &str) -> Result<Value, ClientError> {
        let detail = self.known(id, self.get(&format!("/sandboxes/{}", encoded(id))))?;
        let resumes = detail["lifecycle"]["autoResume"] == true || detail["asleep"] == true;
        if detail["state"] == "paused" && !resumes {
            return Err(ClientError::Paused { id: id.to_owned() });
        }
        Ok(detail)
    }

    /// A request to the services of a sandbox, by its id and access token, as a user.
    fn target(&self, id: &str, user: Option<&str>) -> Result<ClientTarget, ClientError> {
        let detail = self.running(id)?;
        let token = detail.get("envdAccessToken").and_then(Value::as_str);
        Ok(ClientTarget {
            id: id.to_owned(),
            token: token.map(str::to_owned),
            user: user.map(str::to_owned),
        })
    }
}

/// What came of a list that comes in pages.
#[derive(Default)]
struct PagedList {
    listing: Listing,
    pages: usize,
    bytes: usize,
}

impl PagedList {
    /// Adds a page; answers the token of the next one.
    fn add(&mut self, path: &str, answer: JsonAnswer) -> Result<Option<String>, ClientError> {
        let Value::Array(entries) = answer.value else {
            return Err(malformed(path, "it is no list"));
        };
        self.pages += 1;
        self.bytes = self.bytes.saturating_add(answer.bytes);
        if self.pages > MAX_PAGES || self.bytes > MAX_LIST {
            let reason = format!("the list has more than {MAX_PAGES} pages, or {MAX_LIST} bytes");
            return Err(malformed(path, reason));
        }
        let Listing {
            entries: all,
            missing_nodes,
        } = &mut self.listing;
        all.extend(entries);
        for node in answer.missing_nodes {
            if !missing_nodes.contains(&node) {
                missing_nodes.push(node);
            }
        }
        Ok(answer.next)
    }
}

/// The id of a sandbox: what a server calls so goes into paths, terminals and commands of shells.
fn id_in(value: &Value) -> Result<String, ClientError> {
    let text = value.as_str().unwrap_or_default();
    let id = text.parse::<RunId>();
    id.map(String::from).map_err(|error| malformed("/v1/names", error))
}

impl ClientTarget {
    /// A request to the sandbox's services.
    fn request(&self, method: Method, path: &str, kind: &str) -> http::request::Builder {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "localhost")
            .header("e2b-sandbox-id", &self.id)
            .header("e2b-sandbox-port", "49983");
        if !kind.is_empty() {
            request = request.header("content-type", kind);
        }
        if let Some(token) = &self.token {
            request = request.header("x-access-token", token);
        }
        if let Some(user) = &self.user {
            let credentials = data_encoding::BASE64.encode(format!("{user}:").as_bytes());
            request = request.header("authorization", format!("Basic {credentials}"));
        }
        request
    }

    /// The same, as `user` if one is said.
    fn as_user(&self, user: Option<&str>) -> Self {
        Self {
            user: user.map(str::to_owned).or_else(|| self.user.clone()),
            ..self.clone()
        }
    }

    /// Calls a method that has one answer.
    async fn call(&self, transport: &Transport, method: &str, message: &Value) -> Result<Value, ClientError> {
        let path = format!("/{method}");
        let request = self
            .request(Method::POST, &path, "application/json")
            .header("connect-protocol-version", "1")
            .body(body::full(message.to_string().into_bytes()));
        let answer = transport.send(transport::built(request, &path)?, &path).await?;
        parsed(&answer.bytes().await?, &path)
    }
}

/// Text as it is written in a path or a query.
pub fn encoded(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
}

/// Milliseconds since the beginning of 1970 of a time as answers have it.
pub fn unix_ms(text: &str) -> Option<i64> {
    let stamp: jiff::Timestamp = text.parse().ok()?;
    Some(stamp.as_millisecond())
}

fn malformed(asked: &str, reason: impl std::fmt::Display) -> ClientError {
    ClientError::Malformed {
        asked: asked.to_owned(),
        reason: reason.to_string(),
    }
}

fn parsed<T: DeserializeOwned>(bytes: &[u8], asked: &str) -> Result<T, ClientError> {
    serde_json::from_slice(bytes).map_err(|error| malformed(asked, error))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_list_ends_whatever_a_server_says() {
        let page = |bytes| JsonAnswer {
            value: json!([{}]),
            next: Some("more".to_owned()),
            bytes,
            missing_nodes: Vec::new(),
        };
        let mut list = PagedList::default();
        for _ in 0..MAX_PAGES {
            assert_eq!(list.add("/x", page(2)).unwrap().as_deref(), Some("more"));
        }
        assert_eq!(list.listing.entries.len(), MAX_PAGES);
        assert!(list.add("/x", page(2)).is_err());
        let mut list = PagedList::default();
        list.add("/x", page(MAX_LIST)).unwrap();
        assert!(list.add("/x", page(1)).is_err());
    }

    #[test]
    fn an_id_of_a_server_is_read_as_one() {
        assert_eq!(id_in(&json!("i1234567890123456789")).unwrap(), "i1234567890123456789");
        for wrong in [
            json!("a;touch x"),
            json!("../x"),
            json!("-o"),
            json!("\u{1b}[2J"),
            json!(""),
            json!(7),
        ] {
            assert!(id_in(&wrong).is_err(), "{wrong}");
        }
    }
}
