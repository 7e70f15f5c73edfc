//! Servers that the gateway asks for the addresses of names, in place of the machine's own.

use core::fmt;
use core::net::{IpAddr, SocketAddr};
use core::str::FromStr;

use crate::error::{ErrorKind, Explained};
use crate::text::Text;

/// The port of DNS.
const PORT: u16 = 53;

/// The most servers that are named; the next one is asked where one does not answer.
pub const MAX_DNS_SERVERS: usize = 10;

/// A server for names: an address, and the port if it is not 53.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DnsServer(SocketAddr);

/// Text that names no server for names.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DnsServerError {
    /// It is no address.
    #[error("`{0}` is not an address of a DNS server")]
    Address(Text),
    /// It is an address that no server has.
    #[error("no DNS server has the address {0}")]
    NoServer(IpAddr),
    /// There are more than are asked.
    #[error("more than {MAX_DNS_SERVERS} DNS servers")]
    TooMany,
}

impl DnsServer {
    /// Where it is asked.
    pub fn address(self) -> SocketAddr {
        self.0
    }
}

impl FromStr for DnsServer {
    type Err = DnsServerError;

    /// Reads `IP`, `IP:PORT` or `[IPv6]:PORT`.
    fn from_str(text: &str) -> Result<Self, DnsServerError> {
        let alone = text.parse().map(|address: IpAddr| SocketAddr::new(address, PORT));
        let server = alone.or_else(|_| text.parse::<SocketAddr>());
        let server = server.map_err(|_| DnsServerError::Address(text.into()))?;
        let address = server.ip().to_canonical();
        let is_broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
        if address.is_unspecified() || address.is_multicast() || is_broadcast {
            return Err(DnsServerError::NoServer(address));
        }
        if server.port() == 0 {
            return Err(DnsServerError::Address(text.into()));
        }
        Ok(Self(server))
    }
}

impl fmt::Display for DnsServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.port() == PORT {
            self.0.ip().fmt(f)
        } else {
            self.0.fmt(f)
        }
    }
}

impl Explained for DnsServerError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Invalid
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::TooMany => "name those that know the names; the others would hardly be asked".to_owned(),
            _ => "write an address and a port if it is not 53: `192.0.2.53`, `192.0.2.53:5353`, `[2001:db8::53]:5353`"
                .to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_an_address_and_perhaps_a_port() {
        for (text, shown, address) in [
            ("9.9.9.9", "9.9.9.9", "9.9.9.9:53"),
            ("10.0.0.1:5353", "10.0.0.1:5353", "10.0.0.1:5353"),
            ("2620:fe::fe", "2620:fe::fe", "[2620:fe::fe]:53"),
            ("[2620:fe::fe]:53", "2620:fe::fe", "[2620:fe::fe]:53"),
            ("[2620:fe::fe]:54", "[2620:fe::fe]:54", "[2620:fe::fe]:54"),
        ] {
            let server: DnsServer = text.parse().unwrap();
            assert_eq!(server.to_string(), shown);
            assert_eq!(server.address(), address.parse().unwrap());
            assert_eq!(shown.parse(), Ok(server));
        }
    }

    #[test]
    fn what_is_no_server_is_refused_with_what_could_be_written() {
        for text in [
            "",
            "dns.example",
            "9.9.9.9:0",
            "9.9.9.9:65536",
            "9.9.9.9/32",
            " 9.9.9.9",
            "[2620:fe::fe]",
            "0.0.0.0",
            "::",
            "255.255.255.255",
            "224.0.0.251",
            "ff02::fb",
            "::ffff:224.0.0.251",
        ] {
            let error = text.parse::<DnsServer>().unwrap_err();
            assert!(error.hint().is_some(), "{text}");
        }
    }
}
