//! A host in its one canonical form, whichever way it was written.
//!
//! Names from DNS questions, TLS, HTTP headers, proxies and policies all go through [`Host::parse`], so that what a
//! rule was compared with is what is dialled. What different programs read differently is refused, never guessed at.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::str::FromStr;

use crate::error::{ErrorKind, Explained};
use crate::network::name::{self, DomainName};
use crate::text::Text;

/// Longest text that is looked at: no name is longer, even when every character is escaped.
const MAX_TEXT: usize = 1024;

/// What a connection goes to. Displayed as in a URL, so that a port can follow: `example.com`, `192.0.2.1`,
/// `[2001:db8::1]`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(remote = "Self")]
pub enum Host {
    /// A name that is to be resolved.
    Name(DomainName),
    /// An address. [`Host::parse`] and `From` give the IPv4 form of a v4-mapped one (RFC 4291, section 2.5.5.2).
    Address(IpAddr),
}

/// Text that names no host, or not one that every program would take for the same.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// Nothing was written, or only the root's dot.
    #[error("a host is empty")]
    Empty,
    /// It is longer than any name.
    #[error("a host has {bytes} bytes, more than any name")]
    TooMuch {
        /// How many.
        bytes: usize,
    },
    /// It is not text.
    #[error("host `{0}` is not UTF-8")]
    NotText(Text),
    /// It contains what no host has: a control character, a space, `%`, `/`, `\`, `@`, `#`, `?`, `;`, `,` …
    #[error("host `{host}` contains {character:?}, which no host has")]
    Character {
        /// What was given.
        host: Text,
        /// The first such character.
        character: char,
    },
    /// It contains a character that canonicalisation drops, so that two names would look alike.
    #[error("host `{host}` contains U+{:04X}, which is invisible", u32::from(*character))]
    Invisible {
        /// What was given.
        host: Text,
        /// The first such character.
        character: char,
    },
    /// It is no international name (UTS 46), or its `xn--` form decodes to none.
    #[error("host `{0}` is no valid international name")]
    International(Text),
    /// It begins with a dot or has two in a row.
    #[error("host `{0}` has an empty label")]
    EmptyLabel(Text),
    /// A label has more than 63 bytes (RFC 1035, section 2.3.4).
    #[error("host `{0}` has a label of more than 63 bytes")]
    LongLabel(Text),
    /// It has more than 253 bytes (RFC 1035, section 2.3.4, without the length bytes of the wire).
    #[error("host `{0}` has more than 253 bytes")]
    LongName(Text),
    /// A label begins or ends with a hyphen (RFC 1123, section 2.1).
    #[error("host `{0}` has a label that begins or ends with a hyphen")]
    Hyphen(Text),
    /// A label of a DNS question has a dot or a byte that is not ASCII in it.
    #[error("label `{0}` of a name has a dot in it or is not ASCII")]
    Label(Text),
    /// It ends in a number, so that it is an IPv4 address, but none that can be read.
    #[error("host `{0}` ends in a number, as an IPv4 address does, and is none")]
    Ipv4(Text),
    /// It has a colon or brackets, as an IPv6 address has, and is none.
    #[error("host `{0}` is no IPv6 address")]
    Ipv6(Text),
    /// It is an address of one interface (RFC 4007, section 11), which means something else on every machine.
    #[error("host `{0}` has a zone id")]
    Zone(Text),
    /// It is an address where a name is expected.
    #[error("`{0}` is an address, not a name")]
    NotAName(IpAddr),
}

impl Host {
    /// Whether it means the machine itself to a program there: an address of its loopback, or the name `localhost`.
    pub fn is_loopback(&self) -> bool {
        match self {
            Self::Address(address) => address.to_canonical().is_loopback(),
            Self::Name(name) => name.as_str() == "localhost",
        }
    }

    /// The canonical form of `text`: a [`DomainName`], or an address in any spelling.
    ///
    /// A name whose last label is a number, decimal, octal or hexadecimal, is an IPv4 address as `inet_aton` and
    /// browsers read it (<https://url.spec.whatwg.org/#ends-in-a-number-checker>): `127.1`, `0x7f.1` and `2130706433`
    /// are all
    /// `127.0.0.1`. IPv6 addresses (RFC 4291, section 2.2) come with brackets or without.
    ///
    /// # Errors
    /// [`HostError`] says what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, HostError> {
        if text.len() > MAX_TEXT {
            return Err(HostError::TooMuch { bytes: text.len() });
        }
        if text.contains([':', '[', ']']) {
            return parse_v6(text).map(Self::from);
        }
        let name = name::canonical(text)?;
        if ends_in_number(&name) {
            let address = parse_v4(&name).ok_or_else(|| HostError::Ipv4(text.into()))?;
            return Ok(Self::Address(address.into()));
        }
        Ok(Self::Name(DomainName::from_canonical(name)))
    }

    /// [`Host::parse`] for bytes off a wire.
    ///
    /// # Errors
    /// [`HostError::NotText`], or as there.
    pub fn parse_bytes(bytes: &[u8]) -> Result<Self, HostError> {
        if bytes.len() > MAX_TEXT {
            return Err(HostError::TooMuch { bytes: bytes.len() });
        }
        let text = core::str::from_utf8(bytes).map_err(|_| HostError::NotText(bytes.into()))?;
        Self::parse(text)
    }
}

fn parse_v6(text: &str) -> Result<IpAddr, HostError> {
    let inner = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let inner = inner.unwrap_or(text);
    if inner.contains('%') {
        return Err(HostError::Zone(text.into()));
    }
    let address = Ipv6Addr::from_str(inner).map_err(|_| HostError::Ipv6(text.into()))?;
    Ok(IpAddr::V6(address).to_canonical())
}

fn ends_in_number(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or_default();
    let decimal = !last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit());
    let hexadecimal = last
        .strip_prefix("0x")
        .is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    decimal || hexadecimal
}

/// An IPv4 address as inet_aton(3) reads it: one to four numbers, of which the last fills the bytes that are left.
fn parse_v4(name: &str) -> Option<Ipv4Addr> {
    let numbers = name.split('.').map(parse_number).collect::<Option<Vec<u32>>>()?;
    let (last, leading) = numbers.split_last()?;
    if leading.len() > 3 || leading.iter().any(|number| *number > 255) {
        return None;
    }
    let mut bits = 0_u32;
    for number in leading {
        bits = (bits << 8) | number;
    }
    let bits_left = 32 - 8 * leading.len();
    if bits_left == 32 {
        return Some(Ipv4Addr::from_bits(*last));
    }
    (*last < 1 << bits_left).then(|| Ipv4Addr::from_bits((bits << bits_left) | last))
}

/// A number in the notation of C; `0x` without digits is none.
fn parse_number(text: &str) -> Option<u32> {
    let (digits, radix) = match text.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None if text.len() > 1 && text.starts_with('0') => (&text[1..], 8),
        None => (text, 10),
    };
    // The standard library would take a sign.
    let plain = digits.bytes().all(|byte| byte.is_ascii_alphanumeric());
    u32::from_str_radix(digits, radix).ok().filter(|_| plain)
}

impl From<IpAddr> for Host {
    fn from(address: IpAddr) -> Self {
        Self::Address(address.to_canonical())
    }
}

impl From<DomainName> for Host {
    fn from(name: DomainName) -> Self {
        Self::Name(name)
    }
}

impl FromStr for Host {
    type Err = HostError;

    fn from_str(text: &str) -> Result<Self, HostError> {
        Self::parse(text)
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => name.fmt(f),
            Self::Address(IpAddr::V4(address)) => address.fmt(f),
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
        }
    }
}

string_in_serde!(Host);

impl Explained for HostError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Invalid
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Empty | Self::TooMuch { .. } | Self::NotText(_) | Self::LongLabel(_) | Self::LongName(_) => {
                "write a name such as example.com, or an address"
            }
            Self::Character { .. } => "write the host alone, without scheme, user, path or spaces",
            Self::Invisible { .. } => "type the name anew; it was probably copied with a hidden character",
            Self::International(_) => "write the name as a browser shows it, or in its xn-- form",
            Self::EmptyLabel(_) => "write the name without a leading dot; subdomains are `*.example.com`",
            Self::Hyphen(_) | Self::Label(_) => "labels are letters, digits, `_`, and hyphens in between",
            Self::Ipv4(_) => "write an IPv4 address as four numbers from 0 to 255",
            Self::Ipv6(_) => "write an IPv6 address in brackets, such as [2001:db8::1], and a port after it",
            Self::Zone(_) => "write the address without `%` and what follows",
            Self::NotAName(_) => "write a name",
        };
        Some(hint.to_owned())
    }
}

#[cfg(test)]
mod tests;
