//! The way to the browser of a session and to the screen of a desktop, by whoever shows its token in the address: clients of the Chrome
//! DevTools Protocol and viewers are given an address and nothing else.
//!
//! What leads there is a port of the sandbox like any other, behind its traffic token. What listens there gets none of what was
//! between the client and us: a browser would refuse a page's origin, and any host but its own. A page of the sandbox's is never
//! shown at our own address: what viewers run is ours (`ui`).

use http::header::{HeaderValue, ORIGIN, SEC_WEBSOCKET_EXTENSIONS, UPGRADE};
use http::request::Parts;
use http::{Request, Response, Uri};
use hyper::body::{Body as _, Incoming};
use offleash_daemon::{AccessRules, BROWSER_PORT, DESKTOP_PORT, VisibleState, view_only_token};

use super::{PortTarget, TrafficRefusal, TrafficService, forward, is_token};
use crate::http::body::Body;
use crate::http::destination::{self, BROWSER_PREFIX, DESKTOP_PREFIX};
use crate::http::failure;
use crate::http::peer::ClientConnection;
use crate::http::query;

/// What the listener is to be called, or a browser would not answer.
const OWN_HOST: &str = "localhost:${PORT}";
/// Where the server of a screen speaks WebSocket.
const SCREEN_SOCKET: &str = "/websockify";

/// What is reached by an address that has its token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Addressed {
    /// The browser of a session.
    Browser,
    /// The screen of a desktop: the Remote Framebuffer Protocol, as bytes of a WebSocket.
    Screen,
}

impl Addressed {
    /// What a request is for, and in which sandbox.
    pub(crate) fn of(parts: &Parts) -> Option<(Self, String)> {
        let below = |prefix: &str| parts.uri.path().strip_prefix(prefix);
        let browser = below(BROWSER_PREFIX).map(|id| (Self::Browser, id));
        let (what, id) = browser.or_else(|| below(DESKTOP_PREFIX).map(|id| (Self::Screen, id)))?;
        destination::is_id(id).then(|| (what, id.to_owned()))
    }

    fn port(self) -> u16 {
        match self {
            Self::Browser => BROWSER_PORT,
            Self::Screen => DESKTOP_PORT,
        }
    }

    /// What is answered to who speaks no WebSocket.
    fn no_socket(self) -> TrafficRefusal {
        match self {
            Self::Browser => TrafficRefusal::NoWebSocket,
            Self::Screen => TrafficRefusal::NoScreen,
        }
    }

    /// Whether who shows this token may look at a screen and not drive it.
    fn only_looks(self, expected: &str, given: Option<&str>) -> Result<bool, TrafficRefusal> {
        if is_token(expected, given) {
            return Ok(false);
        }
        match self == Self::Screen && is_token(&view_only_token(expected), given) {
            true => Ok(true),
            false => Err(TrafficRefusal::Forbidden),
        }
    }

    fn failure(self) -> &'static str {
        match self {
            Self::Browser => "The browser cannot be reached",
            Self::Screen => "The screen cannot be reached",
        }
    }
}

impl TrafficService {
    /// Answers a request to a browser or a screen.
    pub(crate) async fn addressed(
        &self,
        client: &ClientConnection,
        (what, id): (Addressed, &str),
        request: Request<Incoming>,
    ) -> Response<Body> {
        let (port, by_path) = (what.port(), true);
        let to = PortTarget { id, port, by_path };
        match self.reach_addressed(client, what, &to, request).await {
            Ok(response) => response,
            Err(unreached) => unreached.answer(&to),
        }
    }

    async fn reach_addressed(
        &self,
        client: &ClientConnection,
        what: Addressed,
        to: &PortTarget<'_>,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, TrafficRefusal> {
        let access = self.daemon.access(to.id).map_err(|error| self.unreached(&error))?;
        let pairs = query::pairs(request.uri().query());
        // One whose ports are open to everybody is neither a session nor a desktop.
        let expected = access.traffic_token.as_deref().ok_or(TrafficRefusal::NotFound)?;
        let only_looks = what.only_looks(expected, query::value(&pairs, "token"))?;
        if access.state == VisibleState::Paused {
            return Err(TrafficRefusal::NotFound);
        }
        let asked = request.headers().get(UPGRADE).map(HeaderValue::as_bytes);
        let is_socket = asked.is_some_and(|asked| asked.eq_ignore_ascii_case(b"websocket"));
        // What came as a body would be read as frames, by nobody judged.
        if !is_socket || !request.body().is_end_stream() {
            return Err(what.no_socket());
        }
        let place = self.slots.take(to.id).ok_or(TrafficRefusal::Full)?;
        let supervisor = self.daemon.supervisor_unless_paused(to.id).await;
        let supervisor = supervisor.map_err(|error| self.unreached(&error))?;
        let place = place.used_by(supervisor.usage_guard());
        let path = match what {
            Addressed::Browser => {
                let path = self.daemon.session_endpoint(to.id).await;
                let path = path.map_err(|error| self.unreached(&error))?;
                Uri::try_from(path.as_str()).map_err(|_| TrafficRefusal::Failed)?
            }
            Addressed::Screen => Uri::from_static(SCREEN_SOCKET),
        };
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
            only_looks,
        };
        let mut request = request;
        request.headers_mut().remove(ORIGIN);
        if only_looks {
            // Of what is packed nobody could say what it is.
            request.headers_mut().remove(SEC_WEBSOCKET_EXTENSIONS);
        }
        *request.uri_mut() = path;
        forward::forward(&way, request, stream, place).await.map_err(|error| {
            failure::record(&*self.journal, what.failure(), &error);
            TrafficRefusal::Failed
        })
    }
}
