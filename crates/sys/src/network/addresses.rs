//! The addresses of this machine, so that nobody is let through to the machine itself by one of them.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;

use rustix::io::Errno;

use super::NetworkError;
use super::netlink::{KernelMessage, NetlinkFamily, NetlinkSocket, RequestBatch, attributes, field};

/// `struct ifaddrmsg` (rtnetlink(7)), of which the first byte is the family.
const HEADER: usize = 8;

/// How often the list is asked for again when it changed meanwhile.
const ATTEMPTS: usize = 10;

const STEP: &str = "listing the addresses of this machine";

/// `struct rtmsg` (rtnetlink(7)), and which of its bytes says what a route is.
const ROUTE_HEADER: usize = 12;
const ROUTE_KIND: usize = 7;
const ROUTE_STEP: &str = "asking whether an address leads to this machine";

/// Every address that an interface of this network namespace has now, loopback and link-local ones included.
///
/// # Errors
/// If the kernel does not answer, or not in a form that we know; `EAGAIN` if the list changes all the time.
pub fn own_addresses() -> Result<BTreeSet<IpAddr>, NetworkError> {
    let failed = |source| NetworkError::Talking { step: STEP, source };
    list_all(&NetlinkSocket::open(NetlinkFamily::Route).map_err(failed)?)
}

/// The list once it did not change while it was told.
fn list_all(netlink: &NetlinkSocket) -> Result<BTreeSet<IpAddr>, NetworkError> {
    for _ in 0..ATTEMPTS {
        if let Some(found) = list(netlink)? {
            return Ok(found);
        }
    }
    Err(NetworkError::Talking {
        step: STEP,
        source: Errno::AGAIN.into(),
    })
}

/// The addresses of this machine at any time: the kernel tells when one comes or goes.
#[derive(Debug)]
pub struct OwnAddresses {
    changes: NetlinkSocket,
    routes: NetlinkSocket,
    known: Vec<IpAddr>,
}

impl OwnAddresses {
    /// Those of the network namespace of this thread, from now on.
    ///
    /// # Errors
    /// As [`own_addresses`].
    pub fn watch() -> Result<Self, NetworkError> {
        let changes = NetlinkSocket::open_to_hear(libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR)
            .map_err(|source| NetworkError::Talking { step: STEP, source })?;
        let routes = NetlinkSocket::open(NetlinkFamily::Route).map_err(|source| NetworkError::Talking {
            step: ROUTE_STEP,
            source,
        })?;
        // What changes from here on is told.
        let known = list_all(&routes)?.into_iter().collect();
        Ok(Self { changes, routes, known })
    }

    /// Those of another process of ours, which sent [`Self::into_descriptors`]. They are listed when they are asked for.
    pub fn from_descriptors([changes, routes]: [OwnedFd; 2]) -> Self {
        Self {
            changes: NetlinkSocket::from_descriptor(changes),
            routes: NetlinkSocket::from_descriptor(routes),
            known: Vec::new(),
        }
    }

    /// What another process needs to know them, though it may make no such sockets.
    pub fn into_descriptors(self) -> [OwnedFd; 2] {
        [self.changes.into_descriptor(), self.routes.into_descriptor()]
    }

    /// Every address that there is now. A system call where none came or went since the last time.
    ///
    /// # Errors
    /// As [`own_addresses`]; the next call tries again.
    pub fn now(&mut self) -> Result<&[IpAddr], NetworkError> {
        if self.have_changed() {
            // Until they could be listed, they count as unknown.
            self.known.clear();
            self.known.extend(list_all(&self.routes)?);
        }
        Ok(&self.known)
    }

    /// The same, and those of `addresses` that no interface has and a route leads to this machine all the same, as after
    /// `ip route add local`: who connects to them from here, arrives here.
    ///
    /// # Errors
    /// As [`own_addresses`].
    pub fn now_and_of(&mut self, addresses: &[IpAddr]) -> Result<Cow<'_, [IpAddr]>, NetworkError> {
        let mut led_here = Vec::new();
        for address in addresses {
            if is_led_here(&self.routes, *address)? {
                led_here.push(*address);
            }
        }
        let own = self.now()?;
        if led_here.iter().all(|address| own.contains(address)) {
            return Ok(Cow::Borrowed(own));
        }
        Ok(Cow::Owned([own, &led_here].concat()))
    }

    /// Whether the kernel has told of a change, or of more than there was room for. There is always one address at
    /// least where a network is, so that an empty list is asked for again.
    fn have_changed(&self) -> bool {
        let mut changed = self.known.is_empty();
        loop {
            match self.changes.listen(|_| {}) {
                Ok(false) => return changed,
                Ok(true) => changed = true,
                Err(Errno::NOBUFS) => changed = true,
                Err(_) => return true,
            }
        }
    }
}

/// Whether this machine would take what it sends to `address` for its own. Asked anew each time: the kernel has the
/// answer at hand, and routes change more often than addresses.
fn is_led_here(netlink: &NetlinkSocket, address: IpAddr) -> Result<bool, NetworkError> {
    let (family, octets) = match &address {
        IpAddr::V4(address) => (libc::AF_INET, address.octets().to_vec()),
        IpAddr::V6(address) => (libc::AF_INET6, address.octets().to_vec()),
    };
    let byte = |number: usize| u8::try_from(number).unwrap_or(0);
    // `struct rtmsg`: the family, the length of the destination's prefix, and nothing that a question could say.
    let mut header = [0; ROUTE_HEADER];
    header[0] = u8::try_from(family).unwrap_or(0);
    header[1] = byte(octets.len() * 8);
    let mut requests = RequestBatch::default();
    requests.push(ROUTE_STEP, libc::RTM_GETROUTE, 0, |request| {
        request.header(&header).attribute(libc::RTA_DST, &octets);
    });
    let mut is_local = false;
    // A refusal says that nothing leads there, here included.
    netlink.send(&requests, |message| {
        let kind = message.payload.get(ROUTE_KIND).copied();
        is_local |= message.kind == libc::RTM_NEWROUTE && kind == Some(libc::RTN_LOCAL);
    })?;
    Ok(is_local)
}

/// The list, unless it changed while it was told.
fn list(netlink: &NetlinkSocket) -> Result<Option<BTreeSet<IpAddr>>, NetworkError> {
    let mut requests = RequestBatch::default();
    requests.push(STEP, libc::RTM_GETADDR, libc::NLM_F_DUMP, |request| {
        request.header(&[0; HEADER]);
    });
    let (mut found, mut whole) = (BTreeSet::new(), true);
    let refusals = netlink.send(&requests, |message| {
        whole &= !message.is_of_broken_list();
        if message.kind == libc::RTM_NEWADDR {
            found.extend(own(message));
        }
    })?;
    match refusals.into_iter().next() {
        Some(refusal) => Err(refusal.into()),
        None => Ok(whole.then_some(found)),
    }
}

/// The address that a message tells: `IFA_LOCAL`, or `IFA_ADDRESS` where there is only that; where there are both, the
/// latter is the machine at the other end of the link.
fn own(message: &KernelMessage<'_>) -> Option<IpAddr> {
    let family = message.payload.first().map(|family| i32::from(*family));
    let of_kind = |wanted| {
        let mut all = attributes(message.payload.get(HEADER..)?).flatten();
        all.find_map(|(kind, value)| (kind == wanted).then_some(value))
    };
    address(family, of_kind(libc::IFA_LOCAL).or_else(|| of_kind(libc::IFA_ADDRESS))?)
}

fn address(family: Option<i32>, value: &[u8]) -> Option<IpAddr> {
    match family? {
        libc::AF_INET => field(value, 0).map(|octets| Ipv4Addr::from_octets(octets).into()),
        libc::AF_INET6 => field(value, 0).map(|octets| Ipv6Addr::from_octets(octets).into()),
        _ => None,
    }
}
