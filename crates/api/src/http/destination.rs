//! Which sandbox and port a request is for, or that it is for the control plane.
//!
//! Pure: reads the head of a request, looks nothing up. Three ways name a port inside: the SDKs' headers, a host name
//! `PORT-ID.DOMAIN`, and a path `/_port/ID/PORT/…` that needs neither.

use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, Uri};

/// The port at which the SDKs expect the services of a sandbox; nothing inside listens on it.
pub(crate) const ENVD_PORT: u16 = 49983;
/// The port at which SDKs expect a sandbox's contexts of code.
pub(crate) const CODE_PORT: u16 = 49999;

/// Below this path the browser of a session is reached: `/_browser/ID`.
pub(crate) const BROWSER_PREFIX: &str = "/_browser/";
/// Below this path the screen of a desktop is reached: `/_desktop/ID`.
pub(crate) const DESKTOP_PREFIX: &str = "/_desktop/";

const ID_HEADER: &str = "e2b-sandbox-id";
const PORT_HEADER: &str = "e2b-sandbox-port";
const PATH_PREFIX: &str = "/_port/";
const MAX_ID_LENGTH: usize = 64;

/// Whom a request is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RequestDestination {
    /// The control plane, the native REST or a page about the server.
    ControlPlane,
    /// A port inside a sandbox, or [`ENVD_PORT`]. The id has the shape of one; whether it exists is not known.
    /// `by_path` when a path named it.
    Sandbox { id: String, port: u16, by_path: bool },
}

/// A request that names a sandbox in a way that cannot be one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DestinationError {
    #[error("the sandbox id in `{0}` is not an id: expected 1 to 64 characters a-z and 0-9")]
    Id(&'static str),
    #[error("the port in `{0}` is not a port: expected a number from 1 to 65535")]
    Port(&'static str),
    #[error("`{0}` is there more than once")]
    Twice(&'static str),
    #[error("`host` names another sandbox than the path or `e2b-sandbox-id`")]
    Another,
}

/// Says whom a request is for; a path `/_port/ID/PORT/…` is shortened to what follows.
///
/// # Errors
/// When a sandbox is named in a way that cannot be one, or `host` names another one than the rest does: below the host
/// name of a sandbox are its pages, and what a browser says for them is said to no other sandbox.
pub(crate) fn destination(parts: &mut Parts, domain: Option<&str>) -> Result<RequestDestination, DestinationError> {
    let by_host = by_host(host(&parts.uri, &parts.headers), domain);
    let closer = match by_path(&mut parts.uri)? {
        Some(route) => Some(route),
        None => by_headers(&parts.headers)?,
    };
    let Some(closer) = closer else {
        return Ok(by_host?.unwrap_or(RequestDestination::ControlPlane));
    };
    match (&closer, by_host) {
        (RequestDestination::Sandbox { id, .. }, Ok(Some(RequestDestination::Sandbox { id: host, .. })))
            if *id != host =>
        {
            Err(DestinationError::Another)
        }
        _ => Ok(closer),
    }
}

/// Whether the host that a request is addressed to is that of a sandbox, whose pages are not ours.
pub(crate) fn is_at_sandbox(uri: &Uri, headers: &HeaderMap, domain: Option<&str>) -> bool {
    matches!(by_host(host(uri, headers), domain), Ok(Some(_)))
}

/// The host that a request is addressed to, without its port.
pub(crate) fn host<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Option<&'a str> {
    authority(uri, headers).map(without_port)
}

/// What a request is addressed to: a host, and a port unless it is the usual one.
pub(crate) fn authority<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Option<&'a str> {
    match uri.authority() {
        Some(authority) => Some(authority.as_str()),
        // What is no text is no name that we know.
        None => headers.get(http::header::HOST).map(|host| host.to_str().unwrap_or("")),
    }
}

/// A host without its port.
pub(crate) fn without_port(authority: &str) -> &str {
    if let Some(rest) = authority.strip_prefix('[') {
        return rest.split_once(']').map_or(authority, |(address, _)| address);
    }
    authority.rsplit_once(':').map_or(authority, |(host, _)| host)
}

fn by_path(uri: &mut Uri) -> Result<Option<RequestDestination>, DestinationError> {
    const NAME: &str = "/_port/ID/PORT/";
    let Some(rest) = uri.path().strip_prefix(PATH_PREFIX) else {
        return Ok(None);
    };
    let (id, rest) = rest.split_once('/').unwrap_or((rest, ""));
    let (port, rest) = rest.split_once('/').unwrap_or((rest, ""));
    let mut route = sandbox(id, port, NAME)?;
    if let RequestDestination::Sandbox { by_path, .. } = &mut route {
        *by_path = true;
    }
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let shortened = format!("/{rest}{query}");
    let mut parts = std::mem::take(uri).into_parts();
    parts.path_and_query = PathAndQuery::from_maybe_shared(shortened).ok();
    *uri = Uri::from_parts(parts).unwrap_or_default();
    Ok(Some(route))
}

fn by_headers(headers: &HeaderMap) -> Result<Option<RequestDestination>, DestinationError> {
    let Some(id) = only(headers, ID_HEADER)? else {
        return Ok(None);
    };
    match only(headers, PORT_HEADER)? {
        Some(port) => Ok(Some(sandbox(id, port, ID_HEADER)?)),
        None => Ok(Some(RequestDestination::Sandbox {
            id: checked_id(id, ID_HEADER)?,
            port: ENVD_PORT,
            by_path: false,
        })),
    }
}

/// A header that may stand there once.
fn only<'a>(headers: &'a HeaderMap, name: &'static str) -> Result<Option<&'a str>, DestinationError> {
    let mut all = headers.get_all(name).iter();
    let Some(first) = all.next() else {
        return Ok(None);
    };
    if all.next().is_some() {
        return Err(DestinationError::Twice(name));
    }
    // What is no text is no id and no port.
    Ok(Some(first.to_str().unwrap_or("")))
}

fn by_host(host: Option<&str>, domain: Option<&str>) -> Result<Option<RequestDestination>, DestinationError> {
    const NAME: &str = "PORT-ID.DOMAIN";
    let (Some(host), Some(domain)) = (host, domain) else {
        return Ok(None);
    };
    let host = host.to_ascii_lowercase();
    let label = host.strip_suffix(domain).and_then(|label| label.strip_suffix('.'));
    match label.and_then(|label| label.split_once('-')) {
        Some((port, id)) => sandbox(id, port, NAME).map(Some),
        None => Ok(None),
    }
}

fn sandbox(id: &str, port: &str, place: &'static str) -> Result<RequestDestination, DestinationError> {
    let id = checked_id(id, place)?;
    let digits = port.bytes().all(|byte| byte.is_ascii_digit());
    let port = port.parse().ok().filter(|port| digits && *port != 0);
    let port = port.ok_or(DestinationError::Port(place))?;
    let by_path = false;
    Ok(RequestDestination::Sandbox { id, port, by_path })
}

fn checked_id(id: &str, place: &'static str) -> Result<String, DestinationError> {
    if is_id(id) {
        Ok(id.to_owned())
    } else {
        Err(DestinationError::Id(place))
    }
}

/// The segments of a path that stand in place of those in braces of its route, in their order; empty where there are fewer.
pub(crate) type PathSegments<'a> = [&'a str; 3];

/// Whether `id` has the shape of a sandbox's id: it then is safe wherever it is written.
pub(crate) fn is_id(id: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    (1..=MAX_ID_LENGTH).contains(&id.len()) && id.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn routed(request: http::request::Builder) -> (Result<RequestDestination, DestinationError>, String) {
        let (mut parts, ()) = request.body(()).unwrap().into_parts();
        let route = destination(&mut parts, Some("box.test"));
        (route, parts.uri.to_string())
    }

    fn to(id: &str, port: u16) -> Result<RequestDestination, DestinationError> {
        let id = id.to_owned();
        let by_path = false;
        Ok(RequestDestination::Sandbox { id, port, by_path })
    }

    #[test]
    fn a_request_without_a_sandbox_is_for_the_control_plane() {
        let (route, _) = routed(Request::get("/sandboxes").header("host", "127.0.0.1:3000"));
        assert_eq!(route, Ok(RequestDestination::ControlPlane));
    }

    #[test]
    fn headers_name_a_sandbox() {
        let request = Request::get("/x").header("E2b-Sandbox-Id", "i1");
        assert_eq!(routed(request).0, to("i1", ENVD_PORT));
        let request = Request::get("/x")
            .header("E2b-Sandbox-Id", "i1")
            .header("E2b-Sandbox-Port", "8000");
        assert_eq!(routed(request).0, to("i1", 8000));
    }

    #[test]
    fn a_host_names_a_sandbox() {
        for (host, expected) in [
            ("8000-i1.box.test", to("i1", 8000)),
            ("8000-I1.BOX.test:3000", to("i1", 8000)),
            ("api.box.test", Ok(RequestDestination::ControlPlane)),
            ("box.test", Ok(RequestDestination::ControlPlane)),
            ("8000-i1.elsewhere.test", Ok(RequestDestination::ControlPlane)),
            ("8000-i1xbox.test", Ok(RequestDestination::ControlPlane)),
            ("0-i1.box.test", Err(DestinationError::Port("PORT-ID.DOMAIN"))),
            ("80-a.b.box.test", Err(DestinationError::Id("PORT-ID.DOMAIN"))),
        ] {
            assert_eq!(routed(Request::get("/").header("host", host)).0, expected, "{host}");
        }
    }

    #[test]
    fn a_path_names_a_sandbox_and_is_shortened() {
        for (path, left) in [
            ("/_port/i1/80/a/b?c=d", "/a/b?c=d"),
            ("/_port/i1/80", "/"),
            ("/_port/i1/80/", "/"),
            ("/_port/i1/80//x", "//x"),
        ] {
            let (route, uri) = routed(Request::get(path));
            let id = "i1".to_owned();
            let (port, by_path) = (80, true);
            assert_eq!(route, Ok(RequestDestination::Sandbox { id, port, by_path }), "{path}");
            assert_eq!(uri, left);
        }
    }

    #[test]
    fn a_host_of_a_sandbox_leads_to_no_other() {
        let host = "8000-I1.box.test:3000";
        for (path, id, expected) in [
            ("/_port/i2/49999/contexts", None, Err(DestinationError::Another)),
            ("/files", Some("i2"), Err(DestinationError::Another)),
            ("/_port/i2/80/", Some("i1"), Err(DestinationError::Another)),
            ("/files", Some("i1"), to("i1", ENVD_PORT)),
        ] {
            let mut request = Request::get(path).header("host", host);
            if let Some(id) = id {
                request = request.header("e2b-sandbox-id", id);
            }
            assert_eq!(routed(request).0, expected, "{path} {id:?}");
        }
        let (id, port, by_path) = ("i1".to_owned(), 80, true);
        let same = routed(Request::get("/_port/i1/80/").header("host", host)).0;
        assert_eq!(same, Ok(RequestDestination::Sandbox { id, port, by_path }));
        // A name of ours that only looks like one is none.
        let odd = Request::get("/").header("host", "my-api.box.test");
        assert_eq!(routed(odd.header("e2b-sandbox-id", "i2")).0, to("i2", ENVD_PORT));
    }

    #[test]
    fn what_cannot_be_a_sandbox_is_refused() {
        for path in [
            "/_port/",
            "/_port/../80/",
            "/_port/I1/80/",
            "/_port/i1/",
            "/_port/i1/0/",
            "/_port/i1/65536/",
            "/_port/i1/+80/",
            "/_port/i%31/80/",
        ] {
            assert!(routed(Request::get(path)).0.is_err(), "{path}");
        }
        for id in ["", "..", "a/b", "i1 ", "é", &"i".repeat(65)] {
            let request = Request::get("/").header("e2b-sandbox-id", id);
            assert!(routed(request).0.is_err(), "{id:?}");
        }
        let twice = Request::get("/")
            .header("e2b-sandbox-id", "i1")
            .header("e2b-sandbox-id", "i2");
        assert_eq!(routed(twice).0, Err(DestinationError::Twice(ID_HEADER)));
    }
}
