//! Packet filters that lead a namespace's connections to one listener, and refuse at once what is neither TCP nor DNS.
//!
//! Every address is the namespace's own by then (`routes`), so that packets of all connections come in over `lo`. A
//! chain at their arrival hands those of TCP to the listener, wherever they go (`tproxy`): nothing is rewritten and
//! nothing is kept for a connection but its two sockets. Where the kernel lacks that, `redirect` does it by rewriting
//! addresses as they leave; then the kernel remembers every connection (conntrack), in memory that no cgroup counts.
//!
//! All is sent in one transaction: it holds completely, or nothing of it does. The kernel loads modules that this
//! needs when an ordinary user asks for them in a namespace of their own, too (`nft_request_module`); where it may not,
//! `Missing` says which. Source: linux/netfilter/nf_tables.h.

mod rules;

use rustix::io::Errno;

use super::netlink::{NetlinkFamily, NetlinkSocket, RequestBatch, RequestRefusal};
use super::{Ipv6, NetworkError, SourceAddresses, queue};
use rules::{ChainHook, HeaderLayout, RuleProtocol, RulesetWriter};

/// Which connections are led where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RedirectFilters {
    /// The namespace's own addresses, which stay its own as those of loopback do.
    pub sources: SourceAddresses,
    /// Whether there is IPv6 to be filtered.
    pub ipv6: Ipv6,
    /// The port of the listener on 127.0.0.1 and `::1` that gets connections; it must be transparent
    /// ([`super::sockets::listen_transparent`]).
    pub listener: u16,
    /// The port of TCP and UDP whose listeners get what is sent to any address as it is: the one of DNS.
    pub dns: u16,
    /// Whether connections can be refused before they are made.
    pub first_packets: FirstPackets,
}

/// What becomes of the first packets of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FirstPackets {
    /// They go to the listener.
    Passed,
    /// They are held in the queue of the namespace, if connections get to the listener by [`RedirectMethod::Proxy`].
    Held,
}

/// How connections get to the listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RedirectMethod {
    /// As they are; what they wanted is the accepted socket's own address.
    Proxy,
    /// Rewritten; what they wanted is what the kernel remembers.
    Redirect,
}

/// Leads every connection that is not to the namespace itself to the listener, by the best method that there is; says
/// which, and whether first packets are held.
///
/// UDP to any other port than `dns` is answered with "port unreachable", so that a QUIC client falls back at once; all
/// other protocols with "prohibited". To be called once, by a process with `CAP_NET_ADMIN` over its network namespace.
///
/// # Errors
/// `Missing` when the kernel has neither method: nothing was changed then, and only listeners on single ports are
/// left. `Refused` with `EPERM` without the capability.
pub fn lead_to_listener(filters: &RedirectFilters) -> Result<(RedirectMethod, FirstPackets), NetworkError> {
    let by = |method, first_packets| {
        let filters = RedirectFilters {
            first_packets,
            ..*filters
        };
        lead_by(method, &filters).map(|()| (method, first_packets))
    };
    let passed = |error| match error {
        NetworkError::Missing { .. } => by(RedirectMethod::Proxy, FirstPackets::Passed),
        error => Err(error),
    };
    let redirected = |error| match error {
        NetworkError::Missing { .. } => by(RedirectMethod::Redirect, FirstPackets::Passed),
        error => Err(error),
    };
    match filters.first_packets {
        FirstPackets::Held => by(RedirectMethod::Proxy, FirstPackets::Held)
            .or_else(passed)
            .or_else(redirected),
        FirstPackets::Passed => by(RedirectMethod::Proxy, FirstPackets::Passed).or_else(redirected),
    }
}

/// Like [`lead_to_listener`], by this method.
///
/// # Errors
/// As there.
pub fn lead_by(method: RedirectMethod, filters: &RedirectFilters) -> Result<(), NetworkError> {
    let mut ruleset = RulesetWriter::new();
    write_family(&mut ruleset, method, filters, HeaderLayout::ipv4(filters.sources.v4));
    if filters.ipv6 == Ipv6::Ready {
        write_family(&mut ruleset, method, filters, HeaderLayout::ipv6(filters.sources.v6));
    }
    commit(&ruleset.finish())
}

/// The filters of one family. What most packets meet comes first.
fn write_family(ruleset: &mut RulesetWriter, method: RedirectMethod, filters: &RedirectFilters, layout: HeaderLayout) {
    let mut table = ruleset.table(layout);
    if filters.first_packets == FirstPackets::Held && method == RedirectMethod::Proxy {
        table.chain(ChainHook::Held);
        let part = "packet queue (NFT_COMPAT, NETFILTER_XT_TARGET_NFQUEUE)";
        table.rule(ChainHook::Held, "holding first packets", part, |rule| {
            rule.protocol(RuleProtocol::Tcp)
                .first_packet()
                .not_for_port(filters.dns)
                .not_for_loopback()
                .not_for_own()
                .hold();
        });
    }
    if method == RedirectMethod::Redirect {
        table.chain(ChainHook::Leaving);
        table.rule(
            ChainHook::Leaving,
            "redirecting connections",
            "redirect (NFT_REDIR)",
            |rule| {
                rule.protocol(RuleProtocol::Tcp)
                    .not_for_port(filters.dns)
                    .not_for_loopback()
                    .not_for_own()
                    .redirect(filters.listener);
            },
        );
    }
    table.chain(ChainHook::Arriving);
    let filter = "packet filter (NF_TABLES)";
    if filters.first_packets == FirstPackets::Held && method == RedirectMethod::Proxy {
        table.rule(
            ChainHook::Arriving,
            "resetting refused connections",
            "reject (NFT_REJECT)",
            |rule| {
                rule.marked(queue::REFUSED).protocol(RuleProtocol::Tcp).reset();
            },
        );
    }
    table.rule(ChainHook::Arriving, "letting own addresses be", filter, |rule| {
        rule.for_own().accept();
    });
    table.rule(ChainHook::Arriving, "letting loopback be", filter, |rule| {
        rule.for_loopback().accept();
    });
    if method == RedirectMethod::Proxy {
        table.rule(
            ChainHook::Arriving,
            "handing connections over",
            "tproxy (NFT_TPROXY)",
            |rule| {
                rule.protocol(RuleProtocol::Tcp)
                    .not_for_port(filters.dns)
                    .proxy(filters.listener)
                    .accept();
            },
        );
    }
    table.rule(ChainHook::Arriving, "letting TCP pass", filter, |rule| {
        rule.protocol(RuleProtocol::Tcp).accept();
    });
    table.rule(ChainHook::Arriving, "letting DNS pass", filter, |rule| {
        rule.protocol(RuleProtocol::Udp).for_port(filters.dns).accept();
    });
    let reject = "reject (NFT_REJECT)";
    table.rule(ChainHook::Arriving, "refusing UDP", reject, |rule| {
        rule.protocol(RuleProtocol::Udp).refuse_port();
    });
    table.rule(ChainHook::Arriving, "refusing other protocols", reject, |rule| {
        rule.refuse_all();
    });
}

/// Has the kernel take over all requests or none.
fn commit(requests: &RequestBatch) -> Result<(), NetworkError> {
    let step = "opening a socket for packet filters";
    let netlink =
        NetlinkSocket::open(NetlinkFamily::Netfilter).map_err(|source| match Errno::from_io_error(&source) {
            Some(Errno::PROTONOSUPPORT) => NetworkError::Missing {
                step,
                part: "NETFILTER_NETLINK",
                source,
            },
            _ => NetworkError::Talking { step, source },
        })?;
    // A transaction that failed as a whole says why at its first request; those behind a refused one fail for that.
    match netlink.send(requests, |_| {})?.into_iter().next() {
        None => Ok(()),
        Some(refusal) => Err(explain(refusal)),
    }
}

/// Which refusals mean that a part of the kernel is not there: a kind of table, chain or expression is unknown.
fn explain(refusal: RequestRefusal) -> NetworkError {
    let unknown = [
        Errno::NOENT,
        Errno::OPNOTSUPP,
        Errno::AFNOSUPPORT,
        Errno::PROTONOSUPPORT,
    ];
    match refusal.needs {
        Some(part) if unknown.contains(&refusal.source) => NetworkError::Missing {
            step: refusal.step,
            part,
            source: refusal.source.into(),
        },
        _ => refusal.into(),
    }
}

#[cfg(test)]
mod tests;
