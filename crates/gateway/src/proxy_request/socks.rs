//! SOCKS 4, 4a and 5 (RFC 1928; `SOCKS4.protocol` and `SOCKS4A.protocol` of OpenSSH's sources describe the others).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use offleash_core::network::Host;

use super::{Failing, Judged, ProxyRequestError, Wanted, Way};

/// The longest question of SOCKS 4: a user's name and a host's name, each with what no name has.
const MAX_QUESTION4: usize = 1024;

pub(super) const NO_AUTHENTICATION: [u8; 2] = [5, 0];
/// No method was among those offered.
pub(crate) const NO_METHOD: [u8; 2] = [5, 0xff];

pub(super) const MADE4: [u8; 8] = [0, 90, 0, 0, 0, 0, 0, 0];
pub(super) const NOT_MADE4: [u8; 8] = [0, 91, 0, 0, 0, 0, 0, 0];
/// The address from which it was made is nobody's business inside: 0.0.0.0 port 0.
pub(super) const MADE5: [u8; 10] = [5, 0, 0, 1, 0, 0, 0, 0, 0, 0];

/// "Connection not allowed by ruleset", "host unreachable", "command not supported".
pub(super) fn not_made5(failing: Failing) -> [u8; 10] {
    let code = match failing {
        Failing::Refused => 2,
        Failing::Failed => 4,
        Failing::Unsupported => 7,
    };
    [5, code, 0, 1, 0, 0, 0, 0, 0, 0]
}

/// The methods by which a client could say who it is: how many bytes, and whether "not at all" is among them.
pub(super) fn greeting5(received: &[u8]) -> Option<(usize, bool)> {
    let count = usize::from(*received.get(1)?);
    let methods = received.get(2..2 + count)?;
    Some((2 + count, methods.contains(&0)))
}

/// Version, command, a reserved byte, the type of the address, the address, the port.
pub(super) fn question5(received: &[u8]) -> Judged {
    let refused = |error| Err((Some(Way::Socks5), error));
    match received.first() {
        None => return Ok(None),
        Some(5) => {}
        Some(_) => return Err((None, ProxyRequestError::Malformed)),
    }
    match received.get(1) {
        None => return Ok(None),
        Some(1) => {}
        Some(command) => return refused(ProxyRequestError::Command(*command)),
    }
    match received.get(2) {
        None => return Ok(None),
        Some(0) => {}
        Some(_) => return refused(ProxyRequestError::Malformed),
    }
    let Some(rest) = received.get(4..) else {
        return Ok(None);
    };
    let (host, behind) = match received.get(3) {
        Some(1) => match rest.split_first_chunk::<4>() {
            Some((address, behind)) => (Ok(Host::from(IpAddr::from(Ipv4Addr::from(*address)))), behind),
            None => return Ok(None),
        },
        Some(4) => match rest.split_first_chunk::<16>() {
            Some((address, behind)) => (Ok(Host::from(IpAddr::from(Ipv6Addr::from(*address)))), behind),
            None => return Ok(None),
        },
        Some(3) => {
            let Some((length, rest)) = rest.split_first() else {
                return Ok(None);
            };
            match rest.split_at_checked(usize::from(*length)) {
                Some((name, behind)) => (Host::parse_bytes(name), behind),
                None => return Ok(None),
            }
        }
        Some(kind) => return refused(ProxyRequestError::AddressType(*kind)),
        None => return Ok(None),
    };
    let Some((port, behind)) = behind.split_first_chunk::<2>() else {
        return Ok(None);
    };
    match host {
        Ok(host) => Ok(Some(Wanted {
            host,
            port: u16::from_be_bytes(*port),
            way: Way::Socks5,
            length: received.len() - behind.len(),
        })),
        Err(error) => refused(error.into()),
    }
}

/// Version, command, port, address, the user's name and its end; with an address of 0.0.0.x a host's name and its end.
pub(super) fn question4(received: &[u8]) -> Judged {
    let refused = |error| Err((Some(Way::Socks4), error));
    match received.get(1) {
        None => return Ok(None),
        Some(1) => {}
        Some(command) => return refused(ProxyRequestError::Command(*command)),
    }
    let received = received.get(..MAX_QUESTION4).unwrap_or(received);
    let not_yet = || {
        if received.len() == MAX_QUESTION4 {
            refused(ProxyRequestError::TooLong(MAX_QUESTION4))
        } else {
            Ok(None)
        }
    };
    let Some((&[_, _, high, low, a, b, c, d], rest)) = received.split_first_chunk::<8>() else {
        return Ok(None);
    };
    let Some((_user, rest)) = until_nothing(rest) else {
        return not_yet();
    };
    let (host, rest) = if [a, b, c] == [0, 0, 0] && d != 0 {
        match until_nothing(rest) {
            Some((name, rest)) => (Host::parse_bytes(name), rest),
            None => return not_yet(),
        }
    } else {
        (Ok(Host::from(IpAddr::from([a, b, c, d]))), rest)
    };
    match host {
        Ok(host) => Ok(Some(Wanted {
            host,
            port: u16::from_be_bytes([high, low]),
            way: Way::Socks4,
            length: received.len() - rest.len(),
        })),
        Err(error) => refused(error.into()),
    }
}

/// What stands before the next NUL, and behind it.
fn until_nothing(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|byte| *byte == 0)?;
    Some((bytes.get(..end)?, bytes.get(end + 1..)?))
}
