//! What holds now: the rules can be replaced, and the network be closed for a while, as connections go on.
//!
//! Each connection keeps what held when it was made, and hears of what holds now: one that is not allowed any more is
//! cut. What held in between is kept by nobody, so that rules may be replaced as often as somebody likes.

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::rc::{Rc, Weak};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use offleash_core::network::secret::NamedSecret;
use offleash_core::network::{Host, NetworkPolicy, RequestRules, RuleVerdict};
use tokio::sync::watch;

use crate::opened::{GatewayTrust, Opening};
use crate::policy::{self, Policy, Unknown};
use crate::secrets::Secrets;
use crate::shared::Shared;
use crate::upstream::{Judge, Made, SystemNames, Unreachable, Upstream, WayOut};

/// What a new connection finds.
#[derive(Debug)]
pub(crate) struct Current {
    now: RefCell<Rc<Shared>>,
    told: watch::Sender<Weak<Shared>>,
    /// Connections to servers beyond one for each that is opened.
    more_servers: usize,
}

/// What is to hold from now on.
#[derive(Debug, Default)]
pub(crate) struct NewRules {
    pub(crate) rules: NetworkPolicy,
    pub(crate) internet: bool,
    pub(crate) requests: RequestRules,
    /// With what connections are opened, if there is nothing for that yet.
    pub(crate) trust: Option<Arc<GatewayTrust>>,
    pub(crate) way_out: WayOut,
    pub(crate) system_names: SystemNames,
    pub(crate) secrets: Arc<[NamedSecret]>,
}

/// Where the connections to servers lead that one connection of the sandbox has, for as long as each of them is open.
/// Used on one thread; what an upgraded connection is made of must be fit for several.
#[derive(Debug, Default)]
pub(crate) struct LedTo(Mutex<Vec<IpAddr>>);

impl LedTo {
    fn all(&self) -> MutexGuard<'_, Vec<IpAddr>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection to a server that leads somewhere; no longer when this is dropped.
#[derive(Debug)]
pub(crate) struct Leading {
    to: Arc<LedTo>,
    address: IpAddr,
}

impl Leading {
    fn new(to: &Arc<LedTo>, address: IpAddr) -> Self {
        to.all().push(address);
        Self {
            to: Arc::clone(to),
            address,
        }
    }
}

impl Drop for Leading {
    fn drop(&mut self) {
        let mut all = self.to.all();
        if let Some(number) = all.iter().position(|address| *address == self.address) {
            all.swap_remove(number);
        }
    }
}

/// Tells those who have what is shared what holds now; nothing at first.
#[derive(Debug, Clone)]
pub(crate) struct Successor(watch::Receiver<Weak<Shared>>);

impl Current {
    /// What `make` makes holds, until something else does; connections that are opened may have `more_servers` beyond one
    /// for each.
    pub(crate) fn new(more_servers: usize, make: impl FnOnce(Successor) -> Shared) -> Self {
        let (told, heard) = watch::channel(Weak::new());
        Self {
            now: RefCell::new(Rc::new(make(Successor(heard)))),
            told,
            more_servers,
        }
    }

    pub(crate) fn now(&self) -> Rc<Shared> {
        Rc::clone(&self.now.borrow())
    }

    /// Replaces the rules.
    pub(crate) fn set_rules(&self, reach: NewRules) {
        let now = self.now();
        let unknown = Unknown::of(false, reach.internet);
        let policy = now.policy.with_rules(reach.rules, unknown, reach.requests);
        let opening = now.opening.clone().or_else(|| {
            // Without it, what would have to be opened is not made.
            let made = Opening::new(reach.trust.as_ref()?, self.more_servers).ok()?;
            Some(Rc::new(made))
        });
        let upstream = if *now.upstream.way() == reach.way_out {
            Rc::clone(&now.upstream)
        } else {
            Rc::new(Upstream::new(reach.way_out, &reach.system_names))
        };
        self.put(Shared {
            policy,
            opening,
            upstream,
            secrets: Secrets::new(reach.secrets, now.journal.clone()),
            ..Shared::clone(&now)
        });
    }

    /// Closes the network, so that every connection is cut and none is made, or opens it again.
    pub(crate) fn close(&self, is_closed: bool) {
        let now = self.now();
        if now.is_closed != is_closed {
            self.put(Shared {
                is_closed,
                closures: now.closures + u64::from(is_closed),
                ..Shared::clone(&now)
            });
        }
    }

    fn put(&self, next: Shared) {
        let next = Rc::new(next);
        self.told.send_replace(Rc::downgrade(&next));
        *self.now.borrow_mut() = next;
    }
}

impl Shared {
    /// What counts now, if anything has ever been replaced.
    fn latest(&self) -> Option<Rc<Self>> {
        self.successor.0.borrow().upgrade()
    }

    /// Connects to `host` by the rules that count now, whatever counted when the sandbox asked for it: a program may
    /// take its time to say what it wants, and a server to answer. Where it leads is in `led_to` from then on.
    pub(crate) async fn dial(
        &self,
        host: &Host,
        port: u16,
        led_to: &Arc<LedTo>,
    ) -> Result<(Made, Option<Leading>), Unreachable> {
        let upstream = self
            .latest()
            .map_or_else(|| Rc::clone(&self.upstream), |latest| Rc::clone(&latest.upstream));
        let judge = ByNow {
            shared: self,
            host,
            port,
        };
        let made = upstream.connect(host, port, &judge).await?;
        let Some(address) = made.address else {
            return Ok((made, None));
        };
        // What has changed while it was being made nobody has compared with this address.
        judge.destination(address).map_err(Unreachable::Refused)?;
        Ok((made, Some(Leading::new(led_to, address))))
    }

    /// Returns when a connection to `host` at `port` that was made by these rules must not go on, with the reason;
    /// `led_to` says where it leads.
    pub(crate) async fn no_longer_allowed(&self, host: &Host, port: u16, led_to: &LedTo) -> String {
        let mut changes = self.successor.clone();
        loop {
            let next = changes.next().await;
            if next.closures != self.closures {
                return PAUSED.to_owned();
            }
            let decision = next.policy.decide(host, port);
            if decision.verdict == RuleVerdict::Deny {
                let rule = decision.rule.map(ToString::to_string);
                return policy::reason(rule.as_deref());
            }
            if self.upstream.way().proxy != next.upstream.way().proxy {
                return "connections are made in another way now".to_owned();
            }
            if !self.policy.changes_headers_as(&next.policy, host) {
                return format!("the rules for requests to `{host}` are other ones now");
            }
            if !self.secrets.are_as(&next.secrets, host) {
                return format!("the secrets for `{host}` are other ones now");
            }
            let refused = |address: &IpAddr| check(&next.policy, host, *address, port).err();
            let reason = led_to.all().iter().find_map(refused);
            if let Some(reason) = reason {
                return reason;
            }
        }
    }

    /// Returns when the network is closed, with the reason.
    pub(crate) async fn closed(&self) -> String {
        let mut changes = self.successor.clone();
        while changes.next().await.closures == self.closures {}
        PAUSED.to_owned()
    }
}

/// Judges by what counts when it is asked.
struct ByNow<'a> {
    shared: &'a Shared,
    host: &'a Host,
    port: u16,
}

impl ByNow<'_> {
    fn by<T>(&self, judge: impl FnOnce(&Policy) -> T) -> T {
        match self.shared.latest() {
            Some(latest) => judge(&latest.policy),
            None => judge(&self.shared.policy),
        }
    }
}

impl Judge for ByNow<'_> {
    fn destination(&self, address: IpAddr) -> Result<(), String> {
        self.by(|policy| check(policy, self.host, address, self.port))
    }

    fn on_the_way(&self, server: SocketAddr) -> Result<(), String> {
        self.by(|policy| policy.check_server(server))
    }
}

/// Why nothing is carried while the network is closed.
pub(crate) const PAUSED: &str = "the sandbox is paused";

/// Whether a connection to `host` may lead to `address`.
fn check(policy: &Policy, host: &Host, address: IpAddr, port: u16) -> Result<(), String> {
    let name = match host {
        Host::Name(name) => Some(name),
        Host::Address(_) => None,
    };
    policy.check(name, address, port)
}

impl Successor {
    /// What holds now, when that is news to this: a copy of one that nobody asks knows of nothing.
    async fn next(&mut self) -> Rc<Shared> {
        loop {
            let changed = self.0.changed().await;
            let latest = self.0.borrow_and_update().upgrade();
            match (changed, latest) {
                (Ok(()), Some(latest)) => return latest,
                (Ok(()), None) => {}
                // Nothing is replaced any more.
                (Err(_), _) => return std::future::pending().await,
            }
        }
    }
}

#[cfg(test)]
mod tests;
