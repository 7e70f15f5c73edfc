//! A port of a sandbox as bytes, for who has the sandbox: `GET /v1/sandboxes/ID/ports/PORT`, upgraded to `offleash-tcp`.
//!
//! Whose the sandbox is was found out before; no token of its traffic is asked for. What is said is nobody's here: it is
//! carried until both sides are silent or one is gone, and counts as a connection to the sandbox's ports.

use http::header::{CONNECTION, HeaderValue, UPGRADE};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use offleash_daemon::VisibleState;
use tokio::io::copy_bidirectional;

use super::{PortTarget, TrafficRefusal, TrafficService};
use crate::http::answer::ApiRefusal;
use crate::http::body::{self, Body};
use crate::http::destination;
use crate::http::peer::ClientConnection;

/// What the connection becomes.
pub(crate) const PROTOCOL: HeaderValue = HeaderValue::from_static("offleash-tcp");

const PREFIX: &str = "/v1/sandboxes/";

/// Which port of which sandbox a request is for, if it is for one.
///
/// # Errors
/// What is no port; another method; a request that does not ask for the protocol.
pub(crate) fn asked_for(parts: &Parts) -> Option<Result<(String, u16), ApiRefusal>> {
    let (id, rest) = parts.uri.path().strip_prefix(PREFIX)?.split_once('/')?;
    let port = rest.strip_prefix("ports/")?;
    destination::is_id(id).then(|| checked(parts, port).map(|port| (id.to_owned(), port)))
}

fn checked(parts: &Parts, port: &str) -> Result<u16, ApiRefusal> {
    let digits = port.bytes().all(|byte| byte.is_ascii_digit());
    let port = port.parse().ok().filter(|port| digits && *port != 0);
    let port = port.ok_or_else(|| ApiRefusal::bad_request("the port is no number from 1 to 65535"))?;
    if parts.method != Method::GET {
        return Err(ApiRefusal::wrong_method(&parts.method));
    }
    let asked = parts.headers.get(UPGRADE).map(HeaderValue::as_bytes);
    if !asked.is_some_and(|asked| asked.eq_ignore_ascii_case(PROTOCOL.as_bytes())) {
        let message = "ports are reached by a connection that is upgraded to `offleash-tcp`";
        return Err(ApiRefusal::new(StatusCode::UPGRADE_REQUIRED, message).final_answer());
    }
    Ok(port)
}

impl TrafficService {
    /// Answers a request for the port of a sandbox, which is the caller's.
    pub(crate) async fn tunnel(&self, client: &ClientConnection, id: &str, port: u16, parts: &Parts) -> Response<Body> {
        let by_path = true;
        let to = PortTarget { id, port, by_path };
        match self.open_tunnel(client, &to, parts).await {
            Ok(response) => response,
            Err(unreached) => unreached.answer(&to),
        }
    }

    async fn open_tunnel(
        &self,
        client: &ClientConnection,
        to: &PortTarget<'_>,
        parts: &Parts,
    ) -> Result<Response<Body>, TrafficRefusal> {
        let access = self.daemon.access(to.id).map_err(|error| self.unreached(&error))?;
        if access.state == VisibleState::Paused && !access.auto_resume {
            return Err(TrafficRefusal::NotFound);
        }
        let place = self.slots.take(to.id).ok_or(TrafficRefusal::Full)?;
        let supervisor = self.daemon.supervisor(to.id).await;
        let supervisor = supervisor.map_err(|error| self.unreached(&error))?;
        let place = place.used_by(supervisor.usage_guard());
        let mut stream = supervisor.port(to.port).await.map_err(|error| self.no_port(&error))?;
        // Not being able to is being slower.
        let _set = stream.set_nodelay(true);
        let theirs = hyper::upgrade::on(Request::from_parts(parts.clone(), ()));
        let held = (place, client.held.clone());
        tokio::spawn(async move {
            if let Ok(theirs) = theirs.await {
                // How a connection ends that nobody answers for is no news.
                let _carried = copy_bidirectional(&mut TokioIo::new(theirs), &mut stream).await;
            }
            drop(held);
        });
        let mut response = Response::new(body::empty());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = response.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, PROTOCOL);
        Ok(response)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_asked_for_by_an_upgrade_alone() {
        let asked = |method: Method, path: &str, protocol: &str| {
            let request = Request::builder().method(method).uri(path).header(UPGRADE, protocol);
            let (parts, ()) = request.body(()).unwrap().into_parts();
            asked_for(&parts).map(|asked| asked.map_err(|refusal| refusal.status.as_u16()))
        };
        let tcp = "offleash-tcp";
        let ok = asked(Method::GET, "/v1/sandboxes/i1/ports/80", "Offleash-TCP");
        assert_eq!(ok, Some(Ok(("i1".to_owned(), 80))));
        for (method, path, protocol, status) in [
            (Method::POST, "/v1/sandboxes/i1/ports/80", tcp, 405),
            (Method::GET, "/v1/sandboxes/i1/ports/80", "websocket", 426),
            (Method::GET, "/v1/sandboxes/i1/ports/0", tcp, 400),
            (Method::GET, "/v1/sandboxes/i1/ports/+80", tcp, 400),
            (Method::GET, "/v1/sandboxes/i1/ports/65536", tcp, 400),
            (Method::GET, "/v1/sandboxes/i1/ports/", tcp, 400),
            (Method::GET, "/v1/sandboxes/i1/ports/80/x", tcp, 400),
        ] {
            assert_eq!(asked(method, path, protocol), Some(Err(status)), "{path}");
        }
        for path in [
            "/v1/sandboxes/../ports/80",
            "/v1/sandboxes/i1/usage",
            "/v1/sandboxes/i1",
            "/_port/i1/80/",
        ] {
            assert_eq!(asked(Method::GET, path, tcp), None, "{path}");
        }
    }
}
