//! The protocol over HTTP, `/mcp` of the server ("Streamable HTTP").
//!
//! Clients of before 2026-07-28 have sessions, which are those of the key that began them: for any other key they do not
//! exist. Later ones have none, and name sandboxes. Whose request it is, and that no page of others makes it, has been
//! found out before.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use offleash_daemon::{Caller, Daemon};
use rmcp::ServerHandler;
use rmcp::transport::streamable_http_server::session::local::{LocalSessionManager, SessionConfig};
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tokio::sync::Semaphore;

use super::MAX_MESSAGE_LENGTH;
use super::served::{MAX_CALL_TIME, ServedSandboxes};
use super::session::ToolSession;
use crate::control::API_KEY;
use crate::control::ApiRequest;
use crate::http::answer::ApiRefusal;
use crate::http::body::Body;
use crate::http::json;
use crate::journal::Journal;

/// Where it is.
pub(crate) const PATH: &str = "/mcp";

/// The most sessions at a time, of all keys and of one; a request without a session counts while it is answered.
const MAX_SESSIONS: usize = 1024;
const MAX_OF_KEY: usize = 64;
/// How long a session lives in which nothing is said: longer than any call takes.
const IDLE: Duration = MAX_CALL_TIME.saturating_add(Duration::from_secs(10 * 60));
/// When another session may be possible.
const LATER: Duration = Duration::from_secs(30);

type Service = StreamableHttpService<ToolSession<ServedSandboxes>, LocalSessionManager>;

/// Begins a session, if there is a place for it.
type Begin = Arc<dyn Fn() -> io::Result<ToolSession<ServedSandboxes>> + Send + Sync>;

/// The tools over the daemon's sandboxes: the sessions of all keys.
pub(crate) struct McpService {
    daemon: Daemon,
    journal: Arc<dyn Journal>,
    all: Arc<Semaphore>,
    by_key: Mutex<HashMap<String, KeySessions>>,
}

/// Those of one key.
#[derive(Clone)]
struct KeySessions {
    service: Service,
    begin: Begin,
    places: Arc<Semaphore>,
}

impl std::fmt::Debug for McpService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let free = self.all.available_permits();
        f.debug_struct("McpService")
            .field("free", &free)
            .finish_non_exhaustive()
    }
}

impl McpService {
    pub(crate) fn new(daemon: Daemon, journal: Arc<dyn Journal>) -> Self {
        Self {
            daemon,
            journal,
            all: Arc::new(Semaphore::new(MAX_SESSIONS)),
            by_key: Mutex::default(),
        }
    }

    /// Ends all sessions.
    pub(crate) fn end(&self) {
        let by_key = self.by_key.lock().unwrap_or_else(PoisonError::into_inner);
        by_key
            .values()
            .for_each(|of_key| of_key.service.config.cancellation_token.cancel());
    }

    fn of(&self, caller: &Caller) -> KeySessions {
        let mut by_key = self.by_key.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = by_key.get(&caller.key_id) {
            return known.clone();
        }
        // Keys come and go; one without sessions has nothing to be kept.
        by_key.retain(|_, other| other.places.available_permits() < MAX_OF_KEY);
        let made = KeySessions::new(self, caller);
        by_key.insert(caller.key_id.clone(), made.clone());
        made
    }
}

impl KeySessions {
    fn new(mcp: &McpService, caller: &Caller) -> Self {
        let places = Arc::new(Semaphore::new(MAX_OF_KEY));
        let (all, own) = (Arc::clone(&mcp.all), Arc::clone(&places));
        let (daemon, caller, journal) = (mcp.daemon.clone(), caller.clone(), Arc::clone(&mcp.journal));
        let begin: Begin = Arc::new(move || {
            let place = |places: &Arc<Semaphore>| Arc::clone(places).try_acquire_owned().map_err(io::Error::other);
            Ok(ToolSession::new(ServedSandboxes {
                daemon: daemon.clone(),
                caller: caller.clone(),
                journal: Arc::clone(&journal),
                _places: [place(&all)?, place(&own)?],
            }))
        });
        let over_http = Arc::clone(&begin);
        Self {
            service: service(move || over_http()),
            begin,
            places,
        }
    }
}

/// Sessions that `begin` begins, and that end when nothing is said in them.
fn service<S>(
    begin: impl Fn() -> io::Result<S> + Send + Sync + 'static,
) -> StreamableHttpService<S, LocalSessionManager>
where
    S: ServerHandler + Send + 'static,
{
    let mut sessions = LocalSessionManager::default();
    sessions.session_config = SessionConfig::default();
    sessions.session_config.keep_alive = Some(IDLE);
    // Names and pages were looked at before, by rules of our own.
    let config = StreamableHttpServerConfig::default()
        .disable_allowed_hosts()
        .disable_allowed_origins()
        .with_max_request_body_bytes(MAX_MESSAGE_LENGTH);
    StreamableHttpService::new(begin, Arc::new(sessions), config)
}

impl McpService {
    /// Answers a request of a caller who may make sandboxes.
    pub(crate) async fn answer(&self, asked: &ApiRequest<'_>, body: Incoming) -> Result<Response<Body>, ApiRefusal> {
        let of_key = self.of(&asked.caller);
        let mut parts = asked.parts.clone();
        // Whose it is was found out, and nobody behind this needs to know the key.
        parts.headers.remove(AUTHORIZATION);
        parts.headers.remove(API_KEY);
        let ends = parts.method == Method::DELETE;
        let begins = !parts.headers.contains_key(super::session::SESSION_HEADER);
        let body = match parts.method {
            Method::POST => json::unread(MAX_MESSAGE_LENGTH, body).await?,
            _ => Bytes::new(),
        };
        if begins && parts.method == Method::POST {
            self.check_places(&of_key)?;
        }
        let request = Request::from_parts(parts, Full::new(body));
        let mut response = of_key.service.handle(request).await;
        if ends && response.status() == StatusCode::ACCEPTED {
            // It has ended by now, and clients complain of a word that says that it will.
            *response.status_mut() = StatusCode::NO_CONTENT;
        }
        Ok(response.map(|body| body.map_err(|never| match never {}).boxed_unsync()))
    }

    /// Begins a session that is not spoken to in requests; and what ends when it is to end.
    pub(super) fn begin(
        &self,
        asked: &ApiRequest<'_>,
    ) -> Result<(ToolSession<ServedSandboxes>, impl Future<Output = ()> + Send + 'static), ApiRefusal> {
        let of_key = self.of(&asked.caller);
        self.check_places(&of_key)?;
        let session = (of_key.begin)().map_err(|_| full())?;
        let ending = of_key.service.config.cancellation_token.clone();
        Ok((session, async move { ending.cancelled().await }))
    }

    fn check_places(&self, of_key: &KeySessions) -> Result<(), ApiRefusal> {
        if of_key.places.available_permits() == 0 {
            let message = format!("this key has {MAX_OF_KEY} sessions already, as many as it may; end some of them");
            return Err(ApiRefusal::new(StatusCode::TOO_MANY_REQUESTS, message).retry_after(LATER));
        }
        match self.all.available_permits() {
            0 => Err(full()),
            _ => Ok(()),
        }
    }
}

fn full() -> ApiRefusal {
    ApiRefusal::new(StatusCode::SERVICE_UNAVAILABLE, "the server is full of sessions").retry_after(LATER)
}

#[cfg(test)]
mod tests {
    use http::header::{ACCEPT, CONTENT_TYPE, HOST};
    use tokio::sync::OwnedSemaphorePermit;

    use super::super::session::SESSION_HEADER;
    use super::*;

    /// What holds a place as long as its session lives.
    struct Placed(#[expect(dead_code, reason = "it is held")] OwnedSemaphorePermit);

    impl ServerHandler for Placed {}

    /// A message of a session, or what begins one.
    async fn say(
        service: &StreamableHttpService<Placed, LocalSessionManager>,
        session: Option<&str>,
        message: &'static str,
    ) -> (StatusCode, Option<String>) {
        let mut request = Request::post(PATH)
            .header(HOST, "localhost")
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "application/json, text/event-stream");
        if let Some(session) = session {
            request = request.header(SESSION_HEADER, session);
        }
        let request = request.body(Full::new(Bytes::from_static(message.as_bytes()))).unwrap();
        let response = service.handle(request).await;
        let session = response.headers().get(SESSION_HEADER);
        let session = session.map(|id| id.to_str().unwrap().to_owned());
        let status = response.status();
        let _said = response.into_body().collect().await.unwrap();
        (status, session)
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_in_which_nothing_is_said_ends_and_gives_its_place_back() {
        const BEGIN: &str = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18",
            "capabilities":{},"clientInfo":{"name":"a","version":"1"}}}"#;
        const BEGUN: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
        const PING: &str = r#"{"jsonrpc":"2.0","id":2,"method":"ping"}"#;
        let places = Arc::new(Semaphore::new(1));
        let all = Arc::clone(&places);
        let service = service(move || {
            let place = Arc::clone(&all).try_acquire_owned();
            Ok(Placed(place.map_err(io::Error::other)?))
        });
        let (status, session) = say(&service, None, BEGIN).await;
        assert_eq!(status, StatusCode::OK);
        let session = session.unwrap();
        assert_eq!(say(&service, Some(&session), BEGUN).await.0, StatusCode::ACCEPTED);
        assert_eq!(places.available_permits(), 0);
        // Each word begins its time anew.
        for _ in 0..2 {
            tokio::time::sleep(IDLE - Duration::from_secs(1)).await;
            assert_eq!(say(&service, Some(&session), PING).await.0, StatusCode::OK);
        }
        assert_eq!(places.available_permits(), 0);
        tokio::time::sleep(IDLE + Duration::from_secs(1)).await;
        assert_eq!(places.available_permits(), 1);
        assert_eq!(say(&service, Some(&session), PING).await.0, StatusCode::NOT_FOUND);
    }
}
