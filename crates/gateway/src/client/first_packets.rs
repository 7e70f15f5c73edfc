//! Connections that are refused before they are made, so that `connect(2)` fails as it does where nobody listens.
//!
//! Only what a first packet shows is judged here: where it goes. What passes is judged again when it is accepted, so
//! that nothing depends on this but how a refusal looks. A refusal that can be explained is not given here: on the port
//! of HTTP the client is told the reason in words.
//!
//! It is the supervisor's because the kernel takes a verdict only from who has `CAP_NET_ADMIN` over the sandbox's network,
//! which the gateway has not where it has an id of its own. All that is read are 64 bytes of a packet that the kernel has
//! checked; which names the gateway gave addresses to, it tells before anybody inside hears of them.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use offleash_core::network::{DomainName, Host, NetworkPolicy, RuleVerdict};
use offleash_sys::network::queue::{PacketFate, PacketQueue};

use crate::journal::Journal;
use crate::names::Names;
use crate::policy::{self, Unknown};

/// The port of a protocol in which a refusal can be explained.
const HTTP: u16 = 80;

/// The queue of first packets, if there is one, and by what they are judged.
#[derive(Debug)]
pub(super) struct FirstPackets {
    queue: Option<PacketQueue>,
    judged_by: Mutex<JudgedBy>,
}

#[derive(Debug)]
struct JudgedBy {
    rules: NetworkPolicy,
    unknown: Unknown,
    names: Names,
}

/// A connection that is not made: host, port, rule and reason.
type Unmade = (String, u16, Option<String>, String);

impl FirstPackets {
    pub(super) fn new(queue: Option<PacketQueue>, rules: NetworkPolicy, unknown: Unknown) -> Self {
        let names = Names::default();
        Self {
            queue,
            judged_by: Mutex::new(JudgedBy { rules, unknown, names }),
        }
    }

    pub(super) fn queue(&self) -> Option<&PacketQueue> {
        self.queue.as_ref()
    }

    pub(super) fn set_rules(&self, rules: NetworkPolicy, unknown: Unknown) {
        let mut judged_by = self.judged_by();
        judged_by.rules = rules;
        judged_by.unknown = unknown;
    }

    /// The next address stands for `name`.
    pub(super) fn name(&self, name: &DomainName) {
        if self.queue.is_some() {
            self.judged_by().names.address_of(name);
        }
    }

    /// Decides what waits; everything is refused where nobody `is_served` any more.
    pub(super) fn decide(&self, is_served: bool, journal: &Journal) {
        let Some(queue) = &self.queue else { return };
        // What was lost for want of room comes again.
        for packet in queue.receive().unwrap_or_default() {
            let unmade = packet.destination.and_then(|destination| match is_served {
                true => self.judged_by().refusal(destination),
                false => Some(self.judged_by().lost(destination)),
            });
            let fate = match unmade {
                Some(unmade) => {
                    journal.unmade(SystemTime::now(), unmade);
                    PacketFate::Refused
                }
                None => PacketFate::Passed,
            };
            // A packet that nobody decides is dropped with the queue, and its client asks again.
            let _ = queue.decide(packet, fate);
        }
    }

    fn judged_by(&self) -> MutexGuard<'_, JudgedBy> {
        self.judged_by.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl JudgedBy {
    /// Why no connection to `destination` can be allowed, if none can.
    fn refusal(&self, destination: SocketAddr) -> Option<Unmade> {
        let port = destination.port();
        let Some(host) = self.host_at(destination.ip()) else {
            let reason = "it stands for no name".to_owned();
            return Some((destination.ip().to_string(), port, None, reason));
        };
        let decision = policy::decide(&self.rules, self.unknown, &host, port);
        let rule = decision.rule.map(ToString::to_string);
        if port == HTTP || decision.verdict != RuleVerdict::Deny {
            return None;
        }
        let reason = policy::reason(rule.as_deref());
        Some((host.to_string(), port, rule, reason))
    }

    fn lost(&self, destination: SocketAddr) -> Unmade {
        let host = self.host_at(destination.ip());
        let host = host.unwrap_or(Host::Address(destination.ip()));
        let reason = "the gateway of its network has ended".to_owned();
        (host.to_string(), destination.port(), None, reason)
    }

    fn host_at(&self, address: IpAddr) -> Option<Host> {
        self.names.host_at(address)
    }
}
