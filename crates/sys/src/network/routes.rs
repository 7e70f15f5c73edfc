//! Routes that lead everywhere to here: in a namespace that has them, every address is one of its own.
//!
//! This is what `ip route add local 0.0.0.0/0 dev lo` and `ip -6 route add local ::/0 dev lo` do ("AnyIP"). Packets
//! stay on the loopback interface; they carry the route that they were sent by, so that neither `rp_filter` nor
//! `route_localnet` nor the test for strange sources is ever asked. Deliberately not here: which connections are
//! taken where (`nftables`).

use std::net::{Ipv4Addr, Ipv6Addr};

use rustix::io::Errno;

use super::netlink::{NetlinkFamily, NetlinkSocket, RequestBatch, RequestRefusal};
use super::{Ipv6, NetworkError};

/// The addresses that programs see as their own when they connect to somewhere.
///
/// Without them a connection's source would be its destination. They are addresses of `lo`, so that resolvers that
/// look for a configured family (`AI_ADDRCONFIG`) find both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceAddresses {
    /// For IPv4.
    pub v4: Ipv4Addr,
    /// For IPv6.
    pub v6: Ipv6Addr,
}

/// The loopback interface is the first one of every network namespace, and always has this number.
const LOOPBACK: u32 = 1;

/// Turns `lo` on and makes every address of IPv4, and of IPv6 where there is IPv6, lead to it.
///
/// The routes are in the table `local`, which the kernel also asks whether an address may be a socket's own: a listener
/// can answer from the address that was asked. Connections have a source out of `sources`. Must be called once, by a
/// process with `CAP_NET_ADMIN` over its network namespace.
///
/// # Errors
/// `Refused` with `EPERM` without that capability, with `EEXIST` the second time.
pub fn deliver_everything_here(sources: SourceAddresses) -> Result<Ipv6, NetworkError> {
    let netlink = NetlinkSocket::open(NetlinkFamily::Route).map_err(|source| NetworkError::Talking {
        step: "opening a socket for routes",
        source,
    })?;
    let mut requests = RequestBatch::default();
    loopback_up(&mut requests);
    let v4 = (libc::AF_INET, &sources.v4.octets()[..]);
    add_address(&mut requests, "giving `lo` an IPv4 address", v4);
    add_route(&mut requests, "routing all of IPv4 to `lo`", v4);
    let v6 = (libc::AF_INET6, &sources.v6.octets()[..]);
    add_address(&mut requests, STEPS_OF_IPV6[0], v6);
    add_route(&mut requests, STEPS_OF_IPV6[1], v6);

    let refusals = netlink.send(&requests, |_| {})?;
    let mut ipv6 = Ipv6::Ready;
    for refusal in refusals {
        if !is_absence_of_ipv6(&refusal) {
            return Err(refusal.into());
        }
        ipv6 = Ipv6::Absent;
    }
    Ok(ipv6)
}

const STEPS_OF_IPV6: [&str; 2] = ["giving `lo` an IPv6 address", "routing all of IPv6 to `lo`"];

/// Whether a request was refused because there is no IPv6: not in the kernel or switched off at its start
/// (`EOPNOTSUPP`, `EAFNOSUPPORT`), or for this interface (`net.ipv6.conf.lo.disable_ipv6`: `EACCES` for addresses,
/// and `ENODEV` or `EINVAL` for routes, whose source then is no address of ours).
fn is_absence_of_ipv6(refusal: &RequestRefusal) -> bool {
    let reasons = [
        Errno::OPNOTSUPP,
        Errno::AFNOSUPPORT,
        Errno::ACCESS,
        Errno::NODEV,
        Errno::INVAL,
    ];
    STEPS_OF_IPV6.contains(&refusal.step) && reasons.contains(&refusal.source)
}

/// `struct ifinfomsg` (rtnetlink(7)).
fn loopback_up(requests: &mut RequestBatch) {
    let up = libc::IFF_UP.to_ne_bytes();
    let mut header = Vec::with_capacity(16);
    header.extend([0; 4]);
    header.extend(LOOPBACK.to_ne_bytes());
    header.extend(up);
    // Which flags are meant.
    header.extend(up);
    requests.push(
        "turning the loopback interface on",
        libc::RTM_NEWLINK,
        libc::NLM_F_ACK,
        |request| {
            request.header(&header);
        },
    );
}

/// `struct ifaddrmsg`: the family, the length of the prefix, flags, the scope, the interface.
fn add_address(requests: &mut RequestBatch, step: &'static str, (family, address): (i32, &[u8])) {
    // Duplicates of an address are looked for on networks with neighbours, which `lo` is not.
    let flags = u8::try_from(libc::IFA_F_NODAD).unwrap_or(0);
    let mut header = vec![byte(family), bits(address), flags, libc::RT_SCOPE_UNIVERSE];
    header.extend(LOOPBACK.to_ne_bytes());
    let create = libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL;
    requests.push(step, libc::RTM_NEWADDR, create, |request| {
        request
            .header(&header)
            .attribute(libc::IFA_LOCAL, address)
            .attribute(libc::IFA_ADDRESS, address);
    });
}

/// `struct rtmsg`: the family, lengths of the destination's and source's prefixes (none: everything), type of service,
/// the table, who made it, the scope, the type, flags.
fn add_route(requests: &mut RequestBatch, step: &'static str, (family, source): (i32, &[u8])) {
    let mut header = vec![byte(family), 0, 0, 0, libc::RT_TABLE_LOCAL];
    header.extend([libc::RTPROT_STATIC, libc::RT_SCOPE_HOST, libc::RTN_LOCAL]);
    header.extend([0; 4]);
    let create = libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL;
    requests.push(step, libc::RTM_NEWROUTE, create, |request| {
        request
            .header(&header)
            .attribute(libc::RTA_OIF, &LOOPBACK.to_ne_bytes())
            .attribute(libc::RTA_PREFSRC, source);
    });
}

fn byte(number: i32) -> u8 {
    u8::try_from(number).unwrap_or(0)
}

/// The length of a prefix that is the whole address.
fn bits(address: &[u8]) -> u8 {
    u8::try_from(address.len() * 8).unwrap_or(0)
}
