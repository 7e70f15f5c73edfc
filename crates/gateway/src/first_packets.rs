//! Connections that are refused before they are made, so that `connect(2)` fails as it does where nobody listens.
//!
//! Only what a first packet shows is judged here: where it goes. What passes is judged again when it is accepted, so
//! that nothing depends on this but how a refusal looks. A refusal that can be explained is not given here: on the port
//! of HTTP the client is told the reason in words.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use offleash_core::network::{Host, RuleVerdict};
use offleash_sys::network::queue::{Fate, Queue};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::sleep;

use crate::connection::host_at;
use crate::current::Current;
use crate::{Shared, policy};

/// The port of a protocol in which a refusal can be explained.
const HTTP: u16 = 80;

/// A queue whose packets can be waited for.
///
/// # Errors
/// When the event loop does not take it.
#[expect(
    deprecated,
    reason = "its successor asks for a promise that no descriptor but one is answered; a queue owns that one"
)]
pub(crate) fn watched(queue: Queue) -> io::Result<AsyncFd<Queue>> {
    AsyncFd::with_interest(queue, Interest::READABLE)
}

/// Decides first packets for as long as the gateway runs.
pub(crate) async fn serve(current: Rc<Current>, queue: &AsyncFd<Queue>) {
    loop {
        let Ok(waiting) = queue.async_io(Interest::READABLE, Queue::receive).await else {
            // More was told than there was room for; what was lost comes again.
            sleep(Duration::from_millis(10)).await;
            continue;
        };
        for packet in waiting {
            let refused = packet
                .destination
                .is_some_and(|destination| refuse(&current.now(), destination));
            let fate = if refused { Fate::Refused } else { Fate::Passed };
            // A packet that nobody decides is dropped with the queue, and its client asks again.
            let _ = queue.get_ref().decide(packet, fate);
        }
    }
}

/// Whether no connection to `destination` can be allowed; it is in the journal then.
fn refuse(shared: &Shared, destination: SocketAddr) -> bool {
    let Some((host, rule, reason)) = refusal(shared, destination) else {
        return false;
    };
    let unmade = (host.to_string(), destination.port(), rule, reason);
    shared.journal.unmade(SystemTime::now(), unmade);
    true
}

/// Which host is refused by which rule, and why.
fn refusal(shared: &Shared, destination: SocketAddr) -> Option<(Host, Option<String>, String)> {
    let port = destination.port();
    let Some(host) = host_at(shared, destination.ip()) else {
        let reason = "it stands for no name".to_owned();
        return Some((Host::Address(destination.ip()), None, reason));
    };
    let decision = shared.policy.decide(&host, port);
    let rule = decision.rule.map(ToString::to_string);
    if port == HTTP || decision.verdict != RuleVerdict::Deny {
        return None;
    }
    let reason = policy::reason(rule.as_deref());
    Some((host, rule, reason))
}
