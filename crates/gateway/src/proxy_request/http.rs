//! `CONNECT`, and requests whose target is a whole address (RFC 9112, 3.2.2 and 3.2.3).

use offleash_core::network::{Host, HostError};

use super::{Judged, ProxyRequestError, State, Wanted, Way};
use crate::http_head::{
    Authority, ConnectProgress, ConnectReader, HttpHeadError, Progress, RequestHead, RequestHeadReader, Scheme, Target,
};

/// Fields that concern the connection to the proxy, in lower case: it has another one to the server.
const OF_THE_CONNECTION: [&[u8]; 9] = [
    b"connection",
    b"proxy-connection",
    b"proxy-authorization",
    b"proxy-authenticate",
    b"keep-alive",
    b"upgrade",
    b"http2-settings",
    b"te",
    b"host",
];

/// Which reader is right for what begins so; `None` while it could be either.
pub(super) fn kind(received: &[u8]) -> Result<Option<State>, (Option<Way>, ProxyRequestError)> {
    const CONNECT: &[u8] = b"CONNECT ";
    if received.starts_with(CONNECT) {
        Ok(Some(State::Connect(ConnectReader::default())))
    } else if CONNECT.starts_with(received) {
        Ok(None)
    } else if received.first().is_some_and(u8::is_ascii_uppercase) {
        Ok(Some(State::Request(RequestHeadReader::new(Scheme::Http))))
    } else {
        Err((None, ProxyRequestError::Unknown))
    }
}

pub(super) fn connect(reader: &mut ConnectReader, received: &[u8]) -> Judged {
    let refused = |error| Err((Some(Way::Connect), error));
    match reader.read(received) {
        ConnectProgress::NeedMore => Ok(None),
        ConnectProgress::Invalid(error) => refused(error.into()),
        ConnectProgress::Head(authority, length) => match parsed(&authority) {
            Ok(host) => Ok(Some(Wanted {
                host,
                port: authority.port,
                way: Way::Connect,
                length,
            })),
            Err(error) => refused(error.into()),
        },
    }
}

pub(super) fn request(reader: &mut RequestHeadReader, received: &[u8]) -> Judged {
    let refused = |error| Err((Some(Way::Request { head: Vec::new() }), error));
    let head = match reader.read(received) {
        Progress::NeedMore => return Ok(None),
        Progress::NotHttp => return Err((None, ProxyRequestError::Unknown)),
        Progress::Invalid(HttpHeadError::NoHost) => return refused(ProxyRequestError::Itself),
        Progress::Invalid(error) => return refused(error.into()),
        Progress::Head(head) => head,
    };
    let Target::Absolute(path) = &head.target else {
        return refused(ProxyRequestError::Itself);
    };
    match parsed(&head.authority) {
        Ok(host) => Ok(Some(Wanted {
            host,
            port: head.authority.port,
            way: Way::Request {
                head: for_server(&head, path, received),
            },
            length: head.length,
        })),
        Err(error) => refused(error.into()),
    }
}

fn parsed(authority: &Authority) -> Result<Host, HostError> {
    Host::parse(&authority.host)
}

/// The head as a server expects it: its own path alone for a target, and no further request behind this one, which
/// could be for another host.
fn for_server(head: &RequestHead, path: &str, received: &[u8]) -> Vec<u8> {
    let text = |range: &std::ops::Range<usize>| received.get(range.clone()).unwrap_or_default();
    let path = match (path, head.method.as_str()) {
        ("", "OPTIONS") => "*",
        ("", _) => "/",
        (path, _) => path,
    };
    let version = match head.version {
        crate::http_head::Version::Http10 => "HTTP/1.0",
        crate::http_head::Version::Http11 => "HTTP/1.1",
    };
    let Authority { host, port } = &head.authority;
    let host = match port {
        80 => host.clone(),
        port => format!("{host}:{port}"),
    };
    let mut own = format!("{} {path} {version}\r\nHost: {host}\r\n", head.method).into_bytes();
    for field in &head.fields {
        let name = text(&field.name).to_ascii_lowercase();
        if !OF_THE_CONNECTION.contains(&name.as_slice()) {
            own.extend_from_slice(text(&field.line));
        }
    }
    own.extend_from_slice(b"Connection: close\r\n\r\n");
    own
}
