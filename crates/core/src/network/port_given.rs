//! Single ports that are given through the wall between a sandbox and its host: one of the sandbox's that the host's
//! programs may connect to ([`PublishRule`]), and one of the host's that the sandbox's may ([`HostPort`]).

use core::fmt;
use core::net::Ipv4Addr;
use core::str::FromStr;

use crate::text::Text;

/// The ports that the gateway itself has in a sandbox: for connections, and for names.
pub const GATEWAY_PORTS: [u16; 4] = [1, 2, 3, 53];
/// How many services of the host may be given to one sandbox.
pub const MAX_HOST_PORTS: usize = 8;
/// How many ports of one sandbox may be published.
pub const MAX_PUBLISHED: usize = 64;

/// A port of the sandbox to which programs outside may connect. As text `[ADDRESS:]HOSTPORT:PORT[/tcp]`, or `PORT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublishRule {
    /// The host's address that is listened on; loopback unless named.
    pub address: Ipv4Addr,
    /// The host's port; 0 is any that is free.
    pub host_port: u16,
    /// The port on the sandbox's loopback.
    pub port: u16,
}

/// A service on the host's loopback that is on the sandbox's loopback, too. As text `PORT[:INSIDE]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct HostPort {
    /// The port on the host's loopback.
    pub port: u16,
    /// The port on the sandbox's loopback.
    pub inside: u16,
}

/// Text that gives no port, or ports that cannot be given together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PortGivenError {
    /// Not a port.
    #[error("`{given}` is not a port: expected a number from 1 to 65535")]
    NotAPort {
        /// What stands where a port is expected.
        given: Text,
    },
    /// Not an address of IPv4.
    #[error("`{given}` is not an IPv4 address")]
    NotAnAddress {
        /// What stands where an address is expected.
        given: Text,
    },
    /// Another protocol than TCP.
    #[error("`{given}` is not a protocol that can be published: expected `tcp` or nothing")]
    NotTcp {
        /// What stands where the protocol is expected.
        given: Text,
    },
    /// A port that the gateway has inside.
    #[error("port {port} in a sandbox is the gateway's own")]
    OfTheGateway {
        /// The port.
        port: u16,
    },
    /// Two services at the same port inside.
    #[error("port {port} in the sandbox is given to two services of the host")]
    Twice {
        /// The port inside.
        port: u16,
    },
    /// The same port of the host twice.
    #[error("port {port} of {address} is published twice")]
    PublishedTwice {
        /// The address.
        address: Ipv4Addr,
        /// The port.
        port: u16,
    },
    /// A service of the host would be published as one of the sandbox.
    #[error("port {port} in the sandbox is a service of the host, which cannot be published from there")]
    Circle {
        /// The port inside.
        port: u16,
    },
    /// More than anybody needs.
    #[error("at most {most} {what}")]
    TooMany {
        /// How many are possible.
        most: usize,
        /// Of what.
        what: &'static str,
    },
}

fn port(text: &str) -> Result<u16, PortGivenError> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = if digits { text.parse().ok() } else { None };
    number.filter(|port| *port > 0).ok_or_else(|| PortGivenError::NotAPort {
        given: Text::from(text),
    })
}

fn inside(text: &str) -> Result<u16, PortGivenError> {
    let port = port(text)?;
    if GATEWAY_PORTS.contains(&port) {
        Err(PortGivenError::OfTheGateway { port })
    } else {
        Ok(port)
    }
}

impl FromStr for PublishRule {
    type Err = PortGivenError;

    fn from_str(text: &str) -> Result<Self, PortGivenError> {
        let ports = match text.split_once('/') {
            None | Some((_, "tcp")) => text.trim_end_matches("/tcp"),
            Some((_, given)) => {
                return Err(PortGivenError::NotTcp {
                    given: Text::from(given),
                });
            }
        };
        let address = |text: &str| {
            text.parse().map_err(|_| PortGivenError::NotAnAddress {
                given: Text::from(text),
            })
        };
        let host_port = |text: &str| if text == "0" { Ok(0) } else { port(text) };
        match ports
            .rsplit_once(':')
            .map(|(before, inside)| (before.rsplit_once(':'), before, inside))
        {
            None => Ok(Self {
                address: Ipv4Addr::LOCALHOST,
                host_port: port(ports)?,
                port: inside(ports)?,
            }),
            Some((None, outside, within)) => Ok(Self {
                address: Ipv4Addr::LOCALHOST,
                host_port: host_port(outside)?,
                port: inside(within)?,
            }),
            Some((Some((at, outside)), _, within)) => Ok(Self {
                address: address(at)?,
                host_port: host_port(outside)?,
                port: inside(within)?,
            }),
        }
    }
}

impl FromStr for HostPort {
    type Err = PortGivenError;

    fn from_str(text: &str) -> Result<Self, PortGivenError> {
        let (outside, within) = text.split_once(':').unwrap_or((text, text));
        Ok(Self {
            port: port(outside)?,
            inside: inside(within)?,
        })
    }
}

impl fmt::Display for PublishRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.address, self.host_port, self.port)
    }
}

/// As records call the rule: `network.host_ports: 5432`, or `5432:15432` where the port inside is another.
impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "network.host_ports: {}", self.port)?;
        if self.inside == self.port {
            Ok(())
        } else {
            write!(f, ":{}", self.inside)
        }
    }
}

/// Whether these ports can be given to one sandbox.
///
/// # Errors
/// [`PortGivenError`] says which contradict each other.
pub fn check_together(published: &[PublishRule], host_ports: &[HostPort]) -> Result<(), PortGivenError> {
    for (count, most, what) in [
        (published.len(), MAX_PUBLISHED, "ports can be published"),
        (
            host_ports.len(),
            MAX_HOST_PORTS,
            "services of the host can be given to a sandbox",
        ),
    ] {
        if count > most {
            return Err(PortGivenError::TooMany { most, what });
        }
    }
    for (index, given) in host_ports.iter().enumerate() {
        let port = given.inside;
        if host_ports.iter().skip(index + 1).any(|other| other.inside == port) {
            return Err(PortGivenError::Twice { port });
        }
        if published.iter().any(|published| published.port == port) {
            return Err(PortGivenError::Circle { port });
        }
    }
    for (index, publish) in published
        .iter()
        .enumerate()
        .filter(|(_, publish)| publish.host_port != 0)
    {
        let (address, port) = (publish.address, publish.host_port);
        let same = |other: &PublishRule| (other.address, other.host_port) == (address, port);
        if published.iter().skip(index + 1).any(same) {
            return Err(PortGivenError::PublishedTwice { address, port });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn published(text: &str) -> (Ipv4Addr, u16, u16) {
        let PublishRule {
            address,
            host_port,
            port,
        } = text.parse().unwrap();
        (address, host_port, port)
    }

    #[test]
    fn a_port_is_published_on_loopback_unless_an_address_is_named() {
        let loopback = Ipv4Addr::LOCALHOST;
        for (text, expected) in [
            ("3000", (loopback, 3000, 3000)),
            ("3000/tcp", (loopback, 3000, 3000)),
            ("8000:3000", (loopback, 8000, 3000)),
            ("0:3000", (loopback, 0, 3000)),
            ("0.0.0.0:8000:3000/tcp", (Ipv4Addr::UNSPECIFIED, 8000, 3000)),
            ("192.0.2.7:0:65535", (Ipv4Addr::new(192, 0, 2, 7), 0, 65535)),
        ] {
            assert_eq!(published(text), expected, "{text}");
        }
    }

    #[test]
    fn what_gives_no_port_is_refused() {
        for text in [
            "",
            "0",
            "x",
            "+80",
            " 80",
            "65536",
            ":80",
            "80:",
            "80:0",
            "80:x",
            "a:80:80",
            "1.2.3:80:80",
            "::1:80:80",
            "[::1]:80:80",
            "1.2.3.4:80:80:80",
            "80/udp",
            "80/",
            "80/tcp/tcp",
            "80-90:80",
            "80:53",
            "1",
            "0:2",
        ] {
            assert!(text.parse::<PublishRule>().is_err(), "{text:?}");
        }
        for text in [
            "",
            "0",
            "x",
            "80:",
            ":80",
            "80:0",
            "0:80",
            "1.2.3.4:80",
            "80:80:80",
            "53",
            "80:1",
            "80/tcp",
        ] {
            assert!(text.parse::<HostPort>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_service_of_the_host_may_have_another_port_inside() {
        let plain: HostPort = "11434".parse().unwrap();
        assert_eq!((plain.port, plain.inside), (11434, 11434));
        assert_eq!(plain.to_string(), "network.host_ports: 11434");
        let other: HostPort = "53:5353".parse().unwrap();
        assert_eq!((other.port, other.inside), (53, 5353));
        assert_eq!(other.to_string(), "network.host_ports: 53:5353");
    }

    #[test]
    fn ports_that_contradict_each_other_are_refused() {
        let publish = |texts: &[&str]| {
            texts
                .iter()
                .map(|text| text.parse().unwrap())
                .collect::<Vec<PublishRule>>()
        };
        let host = |texts: &[&str]| {
            texts
                .iter()
                .map(|text| text.parse().unwrap())
                .collect::<Vec<HostPort>>()
        };
        let check = |published: &[&str], given: &[&str]| check_together(&publish(published), &host(given));
        assert_eq!(
            check(
                &["0:80", "0:80", "8000:80", "127.0.0.2:8000:80"],
                &["80:8080", "80:8081"]
            ),
            Ok(())
        );
        assert_eq!(
            check(&[], &["80:8080", "81:8080"]),
            Err(PortGivenError::Twice { port: 8080 })
        );
        assert_eq!(
            check(&["0:8080"], &["80:8080"]),
            Err(PortGivenError::Circle { port: 8080 })
        );
        let twice = PortGivenError::PublishedTwice {
            address: Ipv4Addr::LOCALHOST,
            port: 8000,
        };
        assert_eq!(check(&["8000:80", "8000:81"], &[]), Err(twice));
        let many: Vec<String> = (1000..1009).map(|port| port.to_string()).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(matches!(check(&[], &many), Err(PortGivenError::TooMany { .. })));
        assert_eq!(check(&[], &many[..8]), Ok(()));
    }

    proptest! {
        #[test]
        fn no_text_is_a_panic(text in ".{0,40}") {
            let _ = (text.parse::<PublishRule>(), text.parse::<HostPort>());
        }

        #[test]
        fn what_is_displayed_is_read_again(address: [u8; 4], host_port: u16, port in 54_u16..) {
            let publish = PublishRule { address: address.into(), host_port, port };
            prop_assert_eq!(publish.to_string().parse(), Ok(publish));
        }
    }
}
