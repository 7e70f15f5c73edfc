//! A whole head: its first line, and what its fields say together.

use super::fields::{Fields, is_token};
use super::{Authority, Body, HttpHeadError, MAX_FIELDS, MAX_METHOD, RequestHead, Scheme, Target, Version};

/// What `Connection` may name: itself, and fields that concern one connection only (RFC 9110, 7.6.1).
///
/// Any other name there asks the next reader to remove a field, and with it perhaps what was decided upon.
const CONNECTION_OPTIONS: [&str; 6] = ["close", "keep-alive", "upgrade", "http2-settings", "te", "trailer"];

/// Digits of the longest length that is below 2^63, which signed numbers hold too.
const MAX_LENGTH_DIGITS: usize = 19;

/// Parses a head whose lines have proper ends, the last of them empty.
pub(super) fn parse(head: &[u8], scheme: Scheme) -> Result<RequestHead, HttpHeadError> {
    let first = head
        .iter()
        .position(|byte| *byte == b'\n')
        .ok_or(HttpHeadError::RequestLine)?;
    let line = RequestLine::parse(&head[..first - 1])?;
    let fields = Fields::parse(head, first + 1)?;
    check_with_httparse(head, &line, &fields)?;

    let (target, named) = parse_target(&line, scheme)?;
    let authority = agreed_authority(&fields, named, line.version, scheme)?;
    let body = body_of(&fields, line.version)?;
    let connection = Connection::of(&fields)?;
    let upgrade = upgrade_of(&fields, &connection, line.version)?;
    Ok(RequestHead {
        method: line.method.to_owned(),
        target,
        version: line.version,
        authority,
        body,
        keep_alive: !connection.close && (line.version == Version::Http11 || connection.keep_alive),
        upgrade,
        expects_continue: expects_continue(&fields, line.version)?,
        fields: fields.all,
        length: head.len(),
    })
}

struct RequestLine<'a> {
    method: &'a str,
    target: &'a str,
    version: Version,
}

impl<'a> RequestLine<'a> {
    fn parse(line: &'a [u8]) -> Result<Self, HttpHeadError> {
        let text = std::str::from_utf8(line).map_err(|_| HttpHeadError::Target)?;
        let mut words = text.split(' ');
        let (Some(method), Some(target), Some(version), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(HttpHeadError::RequestLine);
        };
        let version = match version {
            "HTTP/1.0" => Version::Http10,
            "HTTP/1.1" => Version::Http11,
            _ => return Err(HttpHeadError::Version),
        };
        if method == "CONNECT" {
            return Err(HttpHeadError::Connect);
        }
        check_words(method, target)?;
        Ok(Self {
            method,
            target,
            version,
        })
    }
}

/// Checks of what characters the method and the target of a request are, in whatever version it came.
///
/// # Errors
/// [`HttpHeadError::Method`] and [`HttpHeadError::Target`].
pub(crate) fn check_words(method: &str, target: &str) -> Result<(), HttpHeadError> {
    let is_method_byte = |byte: u8| byte.is_ascii_uppercase() || byte == b'-';
    if !(1..=MAX_METHOD).contains(&method.len()) || !method.bytes().all(is_method_byte) {
        return Err(HttpHeadError::Method);
    }
    if target.is_empty() || !target.bytes().all(is_target_byte) {
        return Err(HttpHeadError::Target);
    }
    Ok(())
}

/// Visible ASCII without what some readers cut at or turn around; clients do send `|`, `{` and the like unescaped.
fn is_target_byte(byte: u8) -> bool {
    byte.is_ascii_graphic() && !b"#\\\"<>".contains(&byte)
}

/// The target, and the authority in it where it is absolute.
fn parse_target(line: &RequestLine<'_>, scheme: Scheme) -> Result<(Target, Option<Authority>), HttpHeadError> {
    if line.target == "*" && line.method == "OPTIONS" {
        return Ok((Target::Asterisk, None));
    }
    if line.target.starts_with('/') {
        return Ok((Target::Origin(line.target.to_owned()), None));
    }
    let (named, rest) = line.target.split_once("://").ok_or(HttpHeadError::Target)?;
    if !named.eq_ignore_ascii_case(scheme.name()) {
        return Err(HttpHeadError::TargetScheme);
    }
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let authority = Authority::parse(authority.as_bytes(), scheme).ok_or(HttpHeadError::Host("the request target"))?;
    Ok((Target::Absolute(path.to_owned()), Some(authority)))
}

/// Whom the request is for (RFC 9112, 3.2 and 3.3).
fn agreed_authority(
    fields: &Fields<'_>,
    named: Option<Authority>,
    version: Version,
    scheme: Scheme,
) -> Result<Authority, HttpHeadError> {
    let host = match fields.single("host")? {
        Some(host) => Some(Authority::parse(host, scheme).ok_or(HttpHeadError::Host("`Host`"))?),
        None => None,
    };
    match (host, named) {
        (Some(host), Some(named)) if host != named => Err(HttpHeadError::HostsDisagree),
        (Some(host), _) => Ok(host),
        (None, Some(named)) if version == Version::Http10 => Ok(named),
        (None, _) => Err(HttpHeadError::NoHost),
    }
}

/// How long the body is (RFC 9112, 6.1 to 6.3), said in one way only.
fn body_of(fields: &Fields<'_>, version: Version) -> Result<Body, HttpHeadError> {
    let length = fields.single("content-length")?;
    let coding = fields.single("transfer-encoding")?;
    match (length, coding) {
        (None, None) => Ok(Body::None),
        (Some(_), Some(_)) => Err(HttpHeadError::TwoLengths),
        (None, Some(_)) if version == Version::Http10 => Err(HttpHeadError::TransferEncodingIn10),
        (None, Some(b"chunked")) => Ok(Body::Chunked),
        (None, Some(_)) => Err(HttpHeadError::TransferEncoding),
        (Some(length), None) => parse_length(length)
            .map(Body::Length)
            .ok_or(HttpHeadError::ContentLength),
    }
}

/// A decimal number without sign, list or leading zero, that also fits where numbers have a sign.
fn parse_length(digits: &[u8]) -> Option<u64> {
    let plain = digits.len() <= MAX_LENGTH_DIGITS
        && digits.iter().all(u8::is_ascii_digit)
        && (digits == b"0" || !digits.starts_with(b"0"));
    let number = plain.then(|| std::str::from_utf8(digits).ok()?.parse::<i64>().ok())??;
    u64::try_from(number).ok()
}

#[derive(Default)]
struct Connection {
    close: bool,
    keep_alive: bool,
    upgrade: bool,
}

impl Connection {
    fn of(fields: &Fields<'_>) -> Result<Self, HttpHeadError> {
        let mut connection = Self::default();
        for value in fields.values("connection") {
            for option in value?.split(|byte| *byte == b',') {
                let option = option.trim_ascii().to_ascii_lowercase();
                if !CONNECTION_OPTIONS.iter().any(|known| known.as_bytes() == option) {
                    return Err(HttpHeadError::Connection);
                }
                connection.close |= option == b"close";
                connection.keep_alive |= option == b"keep-alive";
                connection.upgrade |= option == b"upgrade";
            }
        }
        Ok(connection)
    }
}

/// The one protocol in `Upgrade`, which `Connection` must name, and which HTTP/1.0 does not know (RFC 9110, 7.8).
fn upgrade_of(fields: &Fields<'_>, connection: &Connection, version: Version) -> Result<Option<String>, HttpHeadError> {
    match (fields.single("upgrade")?, connection.upgrade) {
        (None, false) => Ok(None),
        (Some(protocol), true) if version == Version::Http11 && is_protocol(protocol) => {
            Ok(Some(String::from_utf8_lossy(protocol).to_ascii_lowercase()))
        }
        _ => Err(HttpHeadError::Upgrade),
    }
}

/// A name, and perhaps a version behind a slash.
fn is_protocol(protocol: &[u8]) -> bool {
    let mut parts = protocol.splitn(2, |byte| *byte == b'/');
    parts.all(is_token)
}

fn expects_continue(fields: &Fields<'_>, version: Version) -> Result<bool, HttpHeadError> {
    match fields.single("expect")? {
        None => Ok(false),
        Some(value) if version == Version::Http11 && value.eq_ignore_ascii_case(b"100-continue") => Ok(true),
        Some(_) => Err(HttpHeadError::Expect),
    }
}

/// A second reader, widely used and written by others, must have seen the same.
fn check_with_httparse(head: &[u8], line: &RequestLine<'_>, fields: &Fields<'_>) -> Result<(), HttpHeadError> {
    if agrees_with_httparse(head, (line.method, line.target, line.version), fields) {
        Ok(())
    } else {
        Err(HttpHeadError::Ambiguous)
    }
}

/// Whether `httparse` finds this method, target, version and these fields in a head.
pub(super) fn agrees_with_httparse(head: &[u8], line: (&str, &str, Version), fields: &Fields<'_>) -> bool {
    let mut room = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut other = httparse::Request::new(&mut room);
    let whole = other.parse(head) == Ok(httparse::Status::Complete(head.len()));
    let (method, target, version) = line;
    let minor = match version {
        Version::Http10 => 0,
        Version::Http11 => 1,
    };
    whole
        && other.method == Some(method)
        && other.path == Some(target)
        && other.version == Some(minor)
        && fields.agree_with(other.headers)
}
