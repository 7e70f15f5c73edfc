//! The head of a `CONNECT`, which asks a proxy for a tunnel (RFC 9110, 9.3.6).

use super::fields::Fields;
use super::request::agrees_with_httparse;
use super::scan::{Found, Scan};
use super::{Authority, HttpHeadError, Scheme, Version};

/// What the bytes received so far are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConnectProgress {
    /// The beginning of a head.
    NeedMore,
    /// A whole head: whom it names, and how many bytes it has.
    Head(Authority, usize),
    /// A head that is refused.
    Invalid(HttpHeadError),
}

/// Reads the head of a `CONNECT` as strictly as other heads are read.
#[derive(Debug, Default)]
pub struct ConnectReader(Scan);

impl ConnectReader {
    /// Judges the beginning of a connection; `received` is everything so far, and only grows from call to call.
    pub fn read(&mut self, received: &[u8]) -> ConnectProgress {
        let head = match self.0.find_end(received) {
            Found::NeedMore => return ConnectProgress::NeedMore,
            Found::NotHttp => return ConnectProgress::Invalid(HttpHeadError::RequestLine),
            Found::Invalid(error) => return ConnectProgress::Invalid(error),
            Found::End(length) => received.get(..length).unwrap_or_default(),
        };
        match parse(head) {
            Ok(authority) => ConnectProgress::Head(authority, head.len()),
            Err(error) => ConnectProgress::Invalid(error),
        }
    }
}

fn parse(head: &[u8]) -> Result<Authority, HttpHeadError> {
    let end = head.iter().position(|byte| *byte == b'\n');
    let first = end.ok_or(HttpHeadError::RequestLine)?;
    let line = head.get(..first - 1).unwrap_or_default();
    let line = std::str::from_utf8(line).map_err(|_| HttpHeadError::Target)?;
    let (target, version) = match line.split(' ').collect::<Vec<_>>().as_slice() {
        ["CONNECT", target, "HTTP/1.1"] => (*target, Version::Http11),
        ["CONNECT", target, "HTTP/1.0"] => (*target, Version::Http10),
        ["CONNECT", _, _] => return Err(HttpHeadError::Version),
        _ => return Err(HttpHeadError::RequestLine),
    };
    let fields = Fields::parse(head, first + 1)?;
    if !agrees_with_httparse(head, ("CONNECT", target, version), &fields) {
        return Err(HttpHeadError::Ambiguous);
    }
    let named = named_port(target.as_bytes()).ok_or(HttpHeadError::Target)?;
    if let Some(host) = fields.single("host")? {
        agree(host, &named)?;
    }
    // What follows the head is for the other end of the tunnel, and not a body.
    if fields.single("transfer-encoding")?.is_some() {
        return Err(HttpHeadError::TransferEncoding);
    }
    match fields.single("content-length")? {
        None | Some(b"0") => Ok(named),
        Some(_) => Err(HttpHeadError::ContentLength),
    }
}

/// An authority whose port is written, as it has to be.
fn named_port(target: &[u8]) -> Option<Authority> {
    let authority = Authority::parse(target, Scheme::Https)?;
    let port = format!(":{}", authority.port);
    target.ends_with(port.as_bytes()).then_some(authority)
}

/// `Host` names the same host, and the same port if it names any.
fn agree(host: &[u8], named: &Authority) -> Result<(), HttpHeadError> {
    let said = Authority::parse(host, Scheme::Https).ok_or(HttpHeadError::Host("`Host`"))?;
    let any_port = named_port(host).is_none();
    if said.host == named.host && (any_port || said.port == named.port) {
        Ok(())
    } else {
        Err(HttpHeadError::HostsDisagree)
    }
}
