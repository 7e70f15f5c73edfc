//! The way to the browser of a session, by whoever shows its token in the address: clients of the Chrome DevTools Protocol
//! are given an address and nothing else.
//!
//! What leads there is a port of the sandbox like any other, behind its traffic token. The browser gets none of what was
//! between the client and us: it would refuse a page's origin, and any host but its own.

use http::header::{HeaderValue, ORIGIN, UPGRADE};
use http::request::Parts;
use http::{Request, Response, Uri};
use hyper::body::Incoming;
use offleash_daemon::{AccessRules, BROWSER_PORT, VisibleState};

use super::{PortTarget, TrafficRefusal, TrafficService, check_token, forward};
use crate::http::body::Body;
use crate::http::destination::{self, BROWSER_PREFIX};
use crate::http::failure;
use crate::http::peer::ClientConnection;
use crate::http::query;

/// What the browser is to be called, or it would not answer.
const OWN_HOST: &str = "localhost:${PORT}";

/// The session whose browser a request is for.
pub(crate) fn session_of(parts: &Parts) -> Option<String> {
    let id = parts.uri.path().strip_prefix(BROWSER_PREFIX)?;
    destination::is_id(id).then(|| id.to_owned())
}

impl TrafficService {
    /// Answers a request to the browser of a session.
    pub(crate) async fn browser(
        &self,
        client: &ClientConnection,
        id: &str,
        request: Request<Incoming>,
    ) -> Response<Body> {
        let (port, by_path) = (BROWSER_PORT, true);
        let to = PortTarget { id, port, by_path };
        match self.reach_browser(client, &to, request).await {
            Ok(response) => response,
            Err(unreached) => unreached.answer(&to),
        }
    }

    async fn reach_browser(
        &self,
        client: &ClientConnection,
        to: &PortTarget<'_>,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, TrafficRefusal> {
        let access = self.daemon.access(to.id).map_err(|error| self.unreached(&error))?;
        let pairs = query::pairs(request.uri().query());
        // One whose ports are open to everybody is no session.
        let expected = access.traffic_token.as_deref().ok_or(TrafficRefusal::NotFound)?;
        check_token(expected, query::value(&pairs, "token"))?;
        if access.state == VisibleState::Paused {
            return Err(TrafficRefusal::NotFound);
        }
        let asked = request.headers().get(UPGRADE).map(HeaderValue::as_bytes);
        if !asked.is_some_and(|asked| asked.eq_ignore_ascii_case(b"websocket")) {
            return Err(TrafficRefusal::NoWebSocket);
        }
        let place = self.slots.take(to.id).ok_or(TrafficRefusal::Full)?;
        let supervisor = self.daemon.supervisor_unless_paused(to.id).await;
        let supervisor = supervisor.map_err(|error| self.unreached(&error))?;
        let place = place.used_by(supervisor.usage_guard());
        let path = self.daemon.session_endpoint(to.id).await;
        let path = path.map_err(|error| self.unreached(&error))?;
        let stream = supervisor.port(to.port).await.map_err(|error| self.no_port(&error))?;
        // Not being able to is being slower.
        let _set = stream.set_nodelay(true);
        let access = AccessRules {
            mask_request_host: Some(OWN_HOST.to_owned()),
            ..access
        };
        let way = forward::ForwardPath {
            client,
            access: &access,
            to,
        };
        let mut request = request;
        request.headers_mut().remove(ORIGIN);
        *request.uri_mut() = Uri::try_from(path.as_str()).map_err(|_| TrafficRefusal::Failed)?;
        forward::forward(&way, request, stream, place).await.map_err(|error| {
            failure::record(&*self.journal, "The browser cannot be reached", &error);
            TrafficRefusal::Failed
        })
    }
}
