//! Reads the head of a plain HTTP request strictly enough that no two readers can disagree about it.
//!
//! Pure: bytes in, verdict out. The caller keeps the bytes, sends the head on and lets [`crate::http_body`] say where
//! the body ends and the next head begins. Whoever answers the request may be laxer than RFC 9110 and RFC 9112 allow,
//! so everything is refused over which implementations are known to differ (RFC 9112, 11.2): both lengths, folded
//! lines, bare CR and LF, space around names, unusual codings, lists of hosts. Lines are cut here, and `httparse` must
//! have cut them in the same way.
//!
//! Deliberately not here: which host or path is allowed; `CONNECT`, which is for proxies, refused among requests and
//! read by a reader of its own; HTTP/0.9 and HTTP/2; fields by which only the server's program might choose a host
//! (`X-Forwarded-Host`, `X-Original-URL`).

mod authority;
mod connect;
mod fields;
mod request;
mod scan;
#[cfg(test)]
mod tests;

use std::ops::Range;

use thiserror::Error;

pub use authority::Authority;
pub use connect::{ConnectProgress, ConnectReader};
pub(crate) use fields::{imitated_field, is_token};
pub(crate) use request::check_words;

/// The longest head that is read, its empty line included.
pub const MAX_HEAD: usize = 64 * 1024;

/// The most fields of a head.
pub const MAX_FIELDS: usize = 100;

/// The longest method; the longest registered one has 17 letters.
const MAX_METHOD: usize = 32;

/// Over what a request arrives; decides the default port and the scheme that a request target may name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// Plain TCP.
    Http,
    /// TLS that was opened.
    Https,
}

impl Scheme {
    /// The port that an authority without one means.
    #[must_use]
    pub fn default_port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }
}

/// The versions that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// HTTP/1.0.
    Http10,
    /// HTTP/1.1.
    Http11,
}

/// What a request asks for (RFC 9112, 3.2); the authority of an absolute target is in [`RequestHead::authority`].
///
/// The authority form belongs to `CONNECT` alone and is refused with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A path and perhaps a query, as sent: begins with `/`, visible ASCII, free of `#`, `\`, `"`, `<` and `>`.
    Origin(String),
    /// Likewise, behind a scheme and an authority; empty when nothing follows these.
    Absolute(String),
    /// `*`, of `OPTIONS`.
    Asterisk,
}

/// How long the body of a request is (RFC 9112, 6.3); one that lasts until the connection closes does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body {
    /// No body.
    None,
    /// Exactly so many bytes, possibly none.
    Length(u64),
    /// Chunks.
    Chunked,
}

/// Where a field stands in the bytes that were read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// The whole line with its end.
    pub line: Range<usize>,
    /// The name as sent; compare without case.
    pub name: Range<usize>,
    /// The value without the space around it.
    pub value: Range<usize>,
}

/// The head of one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestHead {
    /// Upper case letters and `-`, never `CONNECT`.
    pub method: String,
    /// What is asked for.
    pub target: Target,
    /// The version.
    pub version: Version,
    /// Whom the request is for: what `Host` and an absolute target, where both are, agree on.
    pub authority: Authority,
    /// What follows the head.
    pub body: Body,
    /// Whether the client expects the connection to stay open for another request.
    pub keep_alive: bool,
    /// The protocol to which the client would like to change; after an answer of 101 nothing is HTTP any more.
    pub upgrade: Option<String>,
    /// Whether the client may wait for an answer of 100 before it sends the body.
    pub expects_continue: bool,
    /// The fields in their order.
    pub fields: Vec<Field>,
    /// The bytes of the head, its empty line included.
    pub length: usize,
}

impl RequestHead {
    /// Whether it asks for a WebSocket (RFC 6455, 4.1), so that what follows may not be HTTP any more. Other protocols,
    /// and requests with a body, are sent on without the wish, which a server is free not to hear (RFC 9110, 7.8).
    #[must_use]
    pub fn wants_websocket(&self) -> bool {
        self.method == "GET"
            && matches!(self.body, Body::None | Body::Length(0))
            && self.upgrade.as_deref() == Some("websocket")
    }
}

/// What the bytes received so far are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// The beginning of a head.
    NeedMore,
    /// A whole head.
    Head(Box<RequestHead>),
    /// Not the beginning of an HTTP/1 request; HTTP/0.9 is none.
    NotHttp,
    /// A request that is refused.
    Invalid(HttpHeadError),
}

/// Why a head is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HttpHeadError {
    /// Longer than [`MAX_HEAD`].
    #[error("a head of more than {MAX_HEAD} bytes")]
    TooLong,
    /// More fields than [`MAX_FIELDS`].
    #[error("more than {MAX_FIELDS} fields")]
    ManyFields,
    /// A CR that no LF follows.
    #[error("a CR without LF")]
    BareCr,
    /// An LF before which there is no CR.
    #[error("an LF without CR")]
    BareLf,
    /// A control character or NUL.
    #[error("control character {0:#04x}")]
    Control(u8),
    /// A line that continues the one before.
    #[error("a folded line")]
    Folded,
    /// The first line is not method, target and version with one space between them.
    #[error("a request line that is not `METHOD target HTTP/version`")]
    RequestLine,
    /// A version other than 1.0 and 1.1.
    #[error("a version that is neither HTTP/1.0 nor HTTP/1.1")]
    Version,
    /// A method of other characters than upper case letters and `-`, or of too many.
    #[error("a method that is not of upper case letters")]
    Method,
    /// `CONNECT`.
    #[error("CONNECT, which is for proxies")]
    Connect,
    /// A target that is not of the form that belongs to the method, or has characters that no target has.
    #[error("a malformed request target")]
    Target,
    /// An absolute target of another scheme than the connection's.
    #[error("a request target of another scheme than the connection's")]
    TargetScheme,
    /// A field whose name is not a token that a colon follows directly.
    #[error("a malformed field name")]
    FieldName,
    /// A name that some readers take for one that decides about host or length.
    #[error("a field that imitates `{0}`")]
    Imitated(&'static str),
    /// A field twice that must come once.
    #[error("`{0}` twice")]
    Duplicate(&'static str),
    /// No `Host`, which only HTTP/1.0 with an absolute target may leave out.
    #[error("no `Host`")]
    NoHost,
    /// A host that is no name and no address, or a malformed port.
    #[error("a malformed host in {0}")]
    Host(&'static str),
    /// `Host` names another authority than the target.
    #[error("`Host` and the request target disagree")]
    HostsDisagree,
    /// Both `Content-Length` and `Transfer-Encoding`.
    #[error("both `Content-Length` and `Transfer-Encoding`")]
    TwoLengths,
    /// `Content-Length` is not a plain decimal number.
    #[error("a malformed `Content-Length`")]
    ContentLength,
    /// `Transfer-Encoding` is not exactly `chunked`.
    #[error("a `Transfer-Encoding` other than `chunked`")]
    TransferEncoding,
    /// `Transfer-Encoding` in HTTP/1.0.
    #[error("`Transfer-Encoding` in HTTP/1.0")]
    TransferEncodingIn10,
    /// Unusual space around a value that decides about host, length or connection.
    #[error("unusual space around the value of `{0}`")]
    Space(&'static str),
    /// `Connection` names something else than what concerns the connection.
    #[error("a `Connection` that names other fields")]
    Connection,
    /// `Upgrade` without `Connection: upgrade` or the reverse, a list, or in HTTP/1.0.
    #[error("a malformed `Upgrade`")]
    Upgrade,
    /// An expectation other than `100-continue`, or one in HTTP/1.0.
    #[error("an `Expect` other than `100-continue`")]
    Expect,
    /// Two readers of this program disagree.
    #[error("a head that can be read in two ways")]
    Ambiguous,
}

/// Reads one request head; for the next one on the connection a new reader is made.
///
/// Each byte is looked at a bounded number of times however finely the client cuts its head. Holds no bytes.
#[derive(Debug)]
pub struct RequestHeadReader {
    scheme: Scheme,
    scan: scan::Scan,
}

impl RequestHeadReader {
    /// A reader of a request that arrives over `scheme`.
    #[must_use]
    pub fn new(scheme: Scheme) -> Self {
        Self {
            scheme,
            scan: scan::Scan::default(),
        }
    }

    /// Judges the beginning of a request; `received` is everything of it so far, and only grows from call to call.
    ///
    /// The verdict is the same however the bytes are cut, and bytes behind the head do not change it. At [`MAX_HEAD`]
    /// bytes there is one. Asked again after a verdict, the reader repeats it.
    pub fn read(&mut self, received: &[u8]) -> Progress {
        let head = match self.scan.find_end(received) {
            scan::Found::NeedMore => return Progress::NeedMore,
            scan::Found::NotHttp => return Progress::NotHttp,
            scan::Found::Invalid(error) => return Progress::Invalid(error),
            scan::Found::End(length) => &received[..length],
        };
        match request::parse(head, self.scheme) {
            Ok(head) => Progress::Head(Box::new(head)),
            Err(error) => Progress::Invalid(error),
        }
    }
}
