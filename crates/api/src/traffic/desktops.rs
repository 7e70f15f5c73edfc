//! The way to the screen of a desktop, by whoever shows its token in the address: viewers are given an address and nothing
//! else.
//!
//! What leads there is a port of the sandbox like any other, behind its traffic token: the Remote Framebuffer Protocol, as
//! bytes of a WebSocket. A page of the sandbox's is never shown at our own address: what viewers run is ours (`ui`).

use http::header::{HeaderValue, ORIGIN, UPGRADE};
use http::request::Parts;
use http::{Request, Response, Uri};
use hyper::body::Incoming;
use offleash_daemon::{AccessRules, DESKTOP_PORT, VisibleState};

use super::{PortTarget, TrafficRefusal, TrafficService, check_token, forward};
use crate::http::body::Body;
use crate::http::destination::{self, DESKTOP_PREFIX};
use crate::http::failure;
use crate::http::peer::ClientConnection;
use crate::http::query;

/// What the server of the screen is to be called.
const OWN_HOST: &str = "localhost:${PORT}";
/// Where it speaks WebSocket.
const WEB_SOCKET: &str = "/websockify";

/// The desktop whose screen a request is for.
pub(crate) fn desktop_of(parts: &Parts) -> Option<String> {
    let id = parts.uri.path().strip_prefix(DESKTOP_PREFIX)?;
    destination::is_id(id).then(|| id.to_owned())
}

impl TrafficService {
    /// Answers a request to the screen of a desktop.
    pub(crate) async fn desktop(
        &self,
        client: &ClientConnection,
        id: &str,
        request: Request<Incoming>,
    ) -> Response<Body> {
        let (port, by_path) = (DESKTOP_PORT, true);
        let to = PortTarget { id, port, by_path };
        match self.reach_desktop(client, &to, request).await {
            Ok(response) => response,
            Err(unreached) => unreached.answer(&to),
        }
    }

    async fn reach_desktop(
        &self,
        client: &ClientConnection,
        to: &PortTarget<'_>,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, TrafficRefusal> {
        let access = self.daemon.access(to.id).map_err(|error| self.unreached(&error))?;
        let pairs = query::pairs(request.uri().query());
        // One whose ports are open to everybody is no desktop.
        let expected = access.traffic_token.as_deref().ok_or(TrafficRefusal::NotFound)?;
        check_token(expected, query::value(&pairs, "token"))?;
        if access.state == VisibleState::Paused {
            return Err(TrafficRefusal::NotFound);
        }
        let asked = request.headers().get(UPGRADE).map(HeaderValue::as_bytes);
        if !asked.is_some_and(|asked| asked.eq_ignore_ascii_case(b"websocket")) {
            return Err(TrafficRefusal::NoScreen);
        }
        let place = self.slots.take(to.id).ok_or(TrafficRefusal::Full)?;
        let supervisor = self.daemon.supervisor_unless_paused(to.id).await;
        let supervisor = supervisor.map_err(|error| self.unreached(&error))?;
        let place = place.used_by(supervisor.usage_guard());
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
        *request.uri_mut() = Uri::from_static(WEB_SOCKET);
        forward::forward(&way, request, stream, place).await.map_err(|error| {
            failure::record(&*self.journal, "The screen cannot be reached", &error);
            TrafficRefusal::Failed
        })
    }
}
