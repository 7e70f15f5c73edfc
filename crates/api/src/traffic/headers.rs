//! Headers on their way to a program in a sandbox and back: what holds for one connection is left behind, and so is
//! every secret that is not the program's.

use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_SECURITY_POLICY, COOKIE, HOST, HeaderName, HeaderValue, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, Uri};

use super::{PREVIEW_TOKEN, PortTarget, TRAFFIC_TOKEN, keys};
use crate::http::destination;
use crate::http::peer::ClientConnection;

/// What holds for one connection alone (RFC 9110, section 7.6.1).
const HOP_BY_HOP: [HeaderName; 7] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
];

/// What is between the client and us.
const OURS: [&str; 5] = [
    TRAFFIC_TOKEN,
    PREVIEW_TOKEN,
    "x-access-token",
    "e2b-sandbox-id",
    "e2b-sandbox-port",
];

/// What `Connection` names in vain: by these a request is led and judged, here and by who gets it.
const NEVER_OF_ONE_CONNECTION: [HeaderName; 4] = [
    HOST,
    AUTHORIZATION,
    HeaderName::from_static("x-api-key"),
    HeaderName::from_static("idempotency-key"),
];

/// What a program can say for all that has our address: a browser keeps it by host, and cookies whatever the port.
///
/// Passwords are among it: what a browser is asked for by one program it sends to every other. What is only advice to a
/// browser about its site (hints, dictionaries, sign-in) is, too.
const OF_THE_WHOLE_HOST: [&str; 22] = [
    "accept-ch",
    "accept-ch-lifetime",
    "activate-storage-access",
    "alt-svc",
    "attribution-reporting-register-source",
    "attribution-reporting-register-trigger",
    "clear-site-data",
    "critical-ch",
    "expect-ct",
    "nel",
    "origin-agent-cluster",
    "public-key-pins",
    "report-to",
    "reporting-endpoints",
    "secure-session-registration",
    "service-worker-allowed",
    "set-cookie",
    "set-login",
    "shared-storage-write",
    "strict-transport-security",
    "use-as-dictionary",
    "www-authenticate",
];

/// A page that a program shows below a path of ours is no page of ours: its scripts may neither read others nor call
/// us in the user's name.
const NOT_OUR_PAGE: HeaderValue =
    HeaderValue::from_static("sandbox allow-scripts allow-forms allow-popups allow-downloads");

/// What the program sees of a request: `upgrade` is what the connection is to become.
pub(super) fn to_program(
    headers: &mut HeaderMap,
    uri: &Uri,
    client: &ClientConnection,
    to: &PortTarget<'_>,
    mask: Option<&str>,
    upgrade: Option<HeaderValue>,
) {
    remove_hop_by_hop(headers);
    for name in OURS {
        headers.remove(name);
    }
    keys::remove_from_headers(headers);
    if to.by_path {
        // They are for whatever else has our address.
        headers.remove(COOKIE);
    }
    let addressed = destination::authority(uri, headers).and_then(|host| HeaderValue::from_str(host).ok());
    let host = mask.map(|mask| mask.replace("${PORT}", &to.port.to_string()));
    let host = host.and_then(|host| HeaderValue::from_str(&host).ok());
    let local = || HeaderValue::from_str(&format!("localhost:{}", to.port)).ok();
    if let Some(host) = host.or_else(|| addressed.clone()).or_else(local) {
        headers.insert(HOST, host);
    }
    forwarded(headers, client, addressed);
    if let Some(protocol) = upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol);
    }
}

/// What the client sees of an answer.
pub(super) fn to_client(headers: &mut HeaderMap, to: &PortTarget<'_>, upgrade: Option<HeaderValue>) {
    remove_hop_by_hop(headers);
    if to.by_path {
        for name in OF_THE_WHOLE_HOST {
            headers.remove(name);
        }
        headers.append(CONTENT_SECURITY_POLICY, NOT_OUR_PAGE);
    }
    if let Some(protocol) = upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol);
    }
}

/// What a connection is to become, if `Connection` says that it is to become something.
pub(crate) fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let mut words = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok());
    let asked = words.any(|value| value.split(',').any(|word| word.trim().eq_ignore_ascii_case("upgrade")));
    asked.then(|| headers.get(UPGRADE).cloned())?
}

/// Whether an answer's protocol is one of those that a request asked for.
pub(crate) fn is_among(becomes: Option<&HeaderValue>, asked: Option<&HeaderValue>) -> bool {
    let (Some(becomes), Some(asked)) = (becomes, asked) else {
        return false;
    };
    let (Ok(becomes), Ok(asked)) = (becomes.to_str(), asked.to_str()) else {
        return false;
    };
    let mut asked = asked.split(',');
    asked.any(|protocol| protocol.trim().eq_ignore_ascii_case(becomes.trim()))
}

pub(crate) fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let listed: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .filter(|name: &HeaderName| !NEVER_OF_ONE_CONNECTION.contains(name) && !OURS.contains(&name.as_str()))
        .collect();
    for name in listed.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
    headers.remove(UPGRADE);
}

/// Says who asked, as every proxy does; what a client said of that itself does not count.
pub(crate) fn forwarded(headers: &mut HeaderMap, client: &ClientConnection, host: Option<HeaderValue>) {
    headers.remove("forwarded");
    let address = client.peer.address().map(|address| address.ip().to_string());
    let scheme = if client.secure { "https" } else { "http" };
    let told = [
        (
            "x-forwarded-for",
            address.and_then(|address| HeaderValue::from_str(&address).ok()),
        ),
        ("x-forwarded-host", host),
        ("x-forwarded-proto", Some(HeaderValue::from_static(scheme))),
    ];
    for (name, value) in told {
        headers.remove(name);
        if let Some(value) = value {
            headers.insert(name, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::pace::BusyFlag;
    use crate::http::peer::ClientPeer;

    const KEY: &str = "e2b_0123456789abcdef0123456789abcdef01234567";

    fn seen(fields: &[(&'static str, &str)], mask: Option<&str>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
        }
        let client = ClientConnection {
            peer: ClientPeer::Anybody("192.0.2.1:9".parse().unwrap()),
            secure: true,
            busy: BusyFlag::default(),
            held: None,
        };
        let to = PortTarget {
            id: "i1",
            port: 8000,
            by_path: false,
        };
        let asked = upgrade(&headers);
        to_program(&mut headers, &Uri::from_static("/"), &client, &to, mask, asked);
        headers
    }

    #[test]
    fn no_key_and_no_token_of_ours_goes_in() {
        let (bearing, token) = (format!("Bearer {KEY}"), format!("token {KEY}"));
        let cookie = format!("a=b; k={KEY}");
        let headers = seen(
            &[
                ("x-api-key", KEY),
                ("authorization", &bearing),
                ("x-copied", KEY),
                ("cookie", &cookie),
                ("x-token", &token),
                ("x-access-token", "t"),
                ("e2b-traffic-access-token", "t"),
                ("e2b-sandbox-id", "i1"),
                ("host", "h"),
            ],
            None,
        );
        let names: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        assert_eq!(names.len(), 4, "{names:?}");
    }

    #[test]
    fn keys_of_the_program_do() {
        let headers = seen(
            &[
                ("x-api-key", "mine"),
                ("authorization", "Bearer mine"),
                ("cookie", "a=b"),
            ],
            None,
        );
        assert_eq!(headers["x-api-key"], "mine");
        assert_eq!(headers["authorization"], "Bearer mine");
        assert_eq!(headers["cookie"], "a=b");
    }

    #[test]
    fn by_a_path_nothing_is_said_for_all_that_has_our_address() {
        let to = PortTarget {
            id: "i1",
            port: 8000,
            by_path: true,
        };
        let mut headers = HeaderMap::new();
        headers.insert(COOKIE, HeaderValue::from_static("other=secret"));
        let client = ClientConnection {
            peer: ClientPeer::Anybody("192.0.2.1:9".parse().unwrap()),
            secure: false,
            busy: BusyFlag::default(),
            held: None,
        };
        to_program(&mut headers, &Uri::from_static("/"), &client, &to, None, None);
        assert!(!headers.contains_key(COOKIE));
        let mut answer = HeaderMap::new();
        for name in OF_THE_WHOLE_HOST {
            answer.insert(HeaderName::from_static(name), HeaderValue::from_static("x"));
        }
        for name in [
            "www-authenticate",
            "accept-ch",
            "set-login",
            "use-as-dictionary",
            "origin-agent-cluster",
        ] {
            answer.insert(HeaderName::from_static(name), HeaderValue::from_static("x"));
        }
        answer.insert("x-mine", HeaderValue::from_static("x"));
        to_client(&mut answer, &to, None);
        let names: Vec<&str> = answer.keys().map(HeaderName::as_str).collect();
        assert_eq!(names, ["x-mine", "content-security-policy"]);
    }

    #[test]
    fn what_holds_for_one_connection_stays_behind() {
        let headers = seen(
            &[
                ("connection", "close, X-Mine"),
                ("x-mine", "1"),
                ("keep-alive", "5"),
                ("te", "trailers"),
                ("transfer-encoding", "chunked"),
                ("upgrade", "h2c"),
                ("x-yours", "2"),
            ],
            None,
        );
        for name in [
            "connection",
            "x-mine",
            "keep-alive",
            "te",
            "transfer-encoding",
            "upgrade",
        ] {
            assert!(!headers.contains_key(name), "{name}");
        }
        assert_eq!(headers["x-yours"], "2");
    }

    #[test]
    fn by_what_a_request_is_led_does_not_stay_behind() {
        let mut headers = HeaderMap::new();
        let listed = "Host, e2b-sandbox-id, E2B-Sandbox-Port, x-access-token, X-API-KEY, idempotency-key, x-mine";
        headers.insert(CONNECTION, HeaderValue::from_static(listed));
        let names = listed.split(", ").map(|name| name.parse::<HeaderName>().unwrap());
        for name in names.clone() {
            headers.insert(name, HeaderValue::from_static("1"));
        }
        remove_hop_by_hop(&mut headers);
        for name in names {
            assert_eq!(headers.contains_key(&name), name != "x-mine", "{name}");
        }
    }

    #[test]
    fn a_connection_may_become_something_else() {
        let headers = seen(&[("connection", "keep-alive, Upgrade"), ("upgrade", "websocket")], None);
        assert_eq!(
            (&headers["connection"], &headers["upgrade"]),
            (&"upgrade".parse().unwrap(), &"websocket".parse().unwrap())
        );
    }

    #[test]
    fn it_becomes_only_what_was_asked_for() {
        let value = HeaderValue::from_static;
        let (both, one) = (value("h2c, WebSocket"), value("websocket"));
        assert!(is_among(Some(&one), Some(&both)));
        for (becomes, asked) in [
            (Some(&one), None),
            (None, Some(&one)),
            (None, None),
            (Some(&value("h2c")), Some(&one)),
            (Some(&value("")), Some(&one)),
            (Some(&value("web")), Some(&one)),
        ] {
            assert!(!is_among(becomes, asked), "{becomes:?} {asked:?}");
        }
    }

    #[test]
    fn the_program_is_told_who_asked() {
        let headers = seen(
            &[
                ("host", "8000-i1.box.test"),
                ("x-forwarded-for", "1.1.1.1"),
                ("forwarded", "for=1.1.1.1"),
            ],
            None,
        );
        assert_eq!(headers["host"], "8000-i1.box.test");
        assert_eq!(headers["x-forwarded-for"], "192.0.2.1");
        assert_eq!(headers["x-forwarded-host"], "8000-i1.box.test");
        assert_eq!(headers["x-forwarded-proto"], "https");
        assert!(!headers.contains_key("forwarded"));
        let masked = seen(&[("host", "8000-i1.box.test")], Some("localhost:${PORT}"));
        assert_eq!(masked["host"], "localhost:8000");
    }
}
