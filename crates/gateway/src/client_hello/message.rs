//! The ClientHello message itself (RFC 8446, 4.1.2; RFC 5246, 7.4.1.2).

use super::{ClientHelloError, is_known_version};

/// More than twice of what any known client sends; bounds the search for duplicates.
const MAX_EXTENSIONS: usize = 128;

/// Protocols offered; clients offer one to three, GREASE included.
const MAX_PROTOCOLS: usize = 64;

const RANDOM: usize = 32;
const MAX_SESSION_ID: usize = 32;

const SERVER_NAME: u16 = 0;
const ALPN: u16 = 16;
const PRE_SHARED_KEY: u16 = 41;
const ENCRYPTED_CLIENT_HELLO: u16 = 0xfe0d;
/// What drafts of the encrypted hello were called, and before them the encrypted name.
const ENCRYPTED_IN_DRAFTS: [u16; 6] = [0xffce, 0xfe08, 0xfe09, 0xfe0a, 0xfe0b, 0xfe0c];

const NAME_TYPE_HOST: u8 = 0;
const ENCRYPTED_OUTER: u8 = 0;

/// The longest host name and label (RFC 1035, 2.3.4; the name without its last dot).
const MAX_NAME: usize = 253;
const MAX_LABEL: usize = 63;

/// What a hello says that anybody here asks about.
#[derive(Default)]
pub(super) struct Said {
    pub(super) server_name: Option<String>,
    pub(super) encrypted: bool,
    pub(super) alpn: Vec<Vec<u8>>,
}

/// Parses the body of a ClientHello, in which every length must add up.
pub(super) fn parse(body: &[u8]) -> Result<Said, ClientHelloError> {
    let mut fields = Fields(body);
    let version = fields.take(2, "the version")?;
    if !is_known_version(version[0], version[1]) {
        let (major, minor) = (version[0], version[1]);
        return Err(ClientHelloError::Version { major, minor });
    }
    fields.take(RANDOM, "the random")?;
    if fields.vector8("the session id")?.len() > MAX_SESSION_ID {
        return Err(ClientHelloError::Length("the session id"));
    }
    let suites = fields.vector16("the cipher suites")?;
    if suites.is_empty() || !suites.len().is_multiple_of(2) {
        return Err(ClientHelloError::Length("the cipher suites"));
    }
    if fields.vector8("the compression methods")?.is_empty() {
        return Err(ClientHelloError::Length("the compression methods"));
    }
    // Before TLS 1.3 a hello may end here (RFC 5246, 7.4.1.2).
    if fields.is_empty() {
        return Ok(Said::default());
    }
    let extensions = fields.vector16("the extensions")?;
    fields.end("the extensions")?;
    parse_extensions(extensions)
}

fn parse_extensions(extensions: &[u8]) -> Result<Said, ClientHelloError> {
    let mut fields = Fields(extensions);
    let mut seen = [0; MAX_EXTENSIONS];
    let mut count = 0;
    let mut said = Said::default();
    while !fields.is_empty() {
        let kind = fields.number16("an extension")?;
        let content = fields.vector16("an extension")?;
        if count == MAX_EXTENSIONS {
            return Err(ClientHelloError::TooMany("the extensions"));
        }
        if seen[..count].contains(&kind) {
            return Err(ClientHelloError::DuplicateExtension(kind));
        }
        if count > 0 && seen[count - 1] == PRE_SHARED_KEY {
            return Err(ClientHelloError::BehindPreSharedKey);
        }
        seen[count] = kind;
        count += 1;
        match kind {
            SERVER_NAME => said.server_name = Some(parse_server_name(content)?),
            ALPN => said.alpn = parse_alpn(content)?,
            ENCRYPTED_CLIENT_HELLO => {
                check_encrypted(content)?;
                said.encrypted = true;
            }
            _ => said.encrypted |= ENCRYPTED_IN_DRAFTS.contains(&kind),
        }
    }
    Ok(said)
}

/// A list of exactly one host name (RFC 6066, 3: at most one of each type, and no other type was ever defined).
fn parse_server_name(content: &[u8]) -> Result<String, ClientHelloError> {
    const WHAT: &str = "the list of server names";
    let mut fields = Fields(content);
    let list = fields.vector16(WHAT)?;
    fields.end(WHAT)?;
    let mut entries = Fields(list);
    let kind = entries.number8(WHAT)?;
    if kind != NAME_TYPE_HOST {
        return Err(ClientHelloError::NameType(kind));
    }
    let name = entries.vector16("the server name")?;
    if !entries.is_empty() {
        return Err(ClientHelloError::SeveralNames);
    }
    match std::str::from_utf8(name) {
        Ok(name) if is_host_name(name) => Ok(name.to_ascii_lowercase()),
        _ => Err(ClientHelloError::Name),
    }
}

/// Labels of letters, digits, `-` and `_`, with single dots between them and none at the end (RFC 6066, 3).
fn is_host_name(name: &str) -> bool {
    let is_label = |label: &str| {
        !label.is_empty()
            && label.len() <= MAX_LABEL
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
    };
    name.len() <= MAX_NAME && name.split('.').all(is_label)
}

/// One protocol at least, none of them empty (RFC 7301, 3.1).
fn parse_alpn(content: &[u8]) -> Result<Vec<Vec<u8>>, ClientHelloError> {
    const WHAT: &str = "the list of protocols";
    let mut fields = Fields(content);
    let mut list = Fields(fields.vector16(WHAT)?);
    fields.end(WHAT)?;
    let mut protocols = Vec::new();
    while !list.is_empty() {
        let protocol = list.vector8("a protocol")?;
        if protocol.is_empty() {
            return Err(ClientHelloError::Length("a protocol"));
        }
        if protocols.len() == MAX_PROTOCOLS {
            return Err(ClientHelloError::TooMany(WHAT));
        }
        protocols.push(protocol.to_vec());
    }
    if protocols.is_empty() {
        return Err(ClientHelloError::Length(WHAT));
    }
    Ok(protocols)
}

/// The outer form: kind, cipher suite, configuration, key and a payload that is not empty (RFC 9849, 5).
fn check_encrypted(content: &[u8]) -> Result<(), ClientHelloError> {
    const WHAT: &str = "the encrypted hello";
    let mut fields = Fields(content);
    let kind = fields.number8(WHAT)?;
    if kind != ENCRYPTED_OUTER {
        return Err(ClientHelloError::EncryptedKind(kind));
    }
    fields.take(2 + 2 + 1, WHAT)?;
    fields.vector16(WHAT)?;
    if fields.vector16(WHAT)?.is_empty() {
        return Err(ClientHelloError::Length(WHAT));
    }
    fields.end(WHAT)
}

/// What is left of a sequence of fields; reads nothing behind its end.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn take(&mut self, length: usize, what: &'static str) -> Result<&'a [u8], ClientHelloError> {
        let (taken, rest) = self
            .0
            .split_at_checked(length)
            .ok_or(ClientHelloError::CutShort(what))?;
        self.0 = rest;
        Ok(taken)
    }

    fn number8(&mut self, what: &'static str) -> Result<u8, ClientHelloError> {
        Ok(self.take(1, what)?[0])
    }

    fn number16(&mut self, what: &'static str) -> Result<u16, ClientHelloError> {
        let bytes = self.take(2, what)?;
        Ok(u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    /// Bytes behind their length in one byte.
    fn vector8(&mut self, what: &'static str) -> Result<&'a [u8], ClientHelloError> {
        let length = self.number8(what)?;
        self.take(usize::from(length), what)
    }

    /// Bytes behind their length in two bytes.
    fn vector16(&mut self, what: &'static str) -> Result<&'a [u8], ClientHelloError> {
        let length = self.number16(what)?;
        self.take(usize::from(length), what)
    }

    fn end(&self, what: &'static str) -> Result<(), ClientHelloError> {
        if self.is_empty() {
            Ok(())
        } else {
            Err(ClientHelloError::Trailing(what))
        }
    }
}
