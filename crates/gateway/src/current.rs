//! What holds now: the rules can be replaced, and the network be closed for a while, as connections go on.
//!
//! Each connection keeps what held when it was made, and hears of what has replaced it: one that is not allowed any
//! more is cut.

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;

use offleash_core::network::{Host, NetworkPolicy, RuleVerdict};
use tokio::sync::watch;

use crate::Shared;
use crate::policy::{self, Unknown};

/// What a new connection finds.
#[derive(Debug)]
pub(crate) struct Current(RefCell<Rc<Shared>>);

/// What has replaced something that is shared, once something has.
#[derive(Debug, Default)]
pub(crate) struct Successor(watch::Sender<Option<Rc<Shared>>>);

impl Current {
    pub(crate) fn new(shared: Shared) -> Self {
        Self(RefCell::new(Rc::new(shared)))
    }

    pub(crate) fn now(&self) -> Rc<Shared> {
        Rc::clone(&self.0.borrow())
    }

    /// Replaces the rules; what is not said of any host becomes `unknown`.
    pub(crate) fn set_rules(&self, rules: NetworkPolicy, unknown: Unknown) {
        let now = self.now();
        self.replace(&now, now.policy.with_rules(rules, unknown), now.is_closed);
    }

    /// Closes the network, so that every connection is cut and none is made, or opens it again.
    pub(crate) fn close(&self, is_closed: bool) {
        let now = self.now();
        if now.is_closed != is_closed {
            self.replace(&now, now.policy.clone(), is_closed);
        }
    }

    fn replace(&self, before: &Shared, policy: policy::Policy, is_closed: bool) {
        let next = Rc::new(Shared {
            policy,
            is_closed,
            approvals: Rc::clone(&before.approvals),
            secrets: before.secrets.clone(),
            names: Rc::clone(&before.names),
            upstream: Rc::clone(&before.upstream),
            budget: Rc::clone(&before.budget),
            entrances: Rc::clone(&before.entrances),
            journal: before.journal.clone(),
            pipes: Rc::clone(&before.pipes),
            opening: before.opening.clone(),
            successor: Successor::default(),
        });
        *self.0.borrow_mut() = Rc::clone(&next);
        before.successor.0.send_replace(Some(next));
    }
}

impl Shared {
    /// Returns when a connection to `host` at `port` that was made by these rules must not go on, with the reason;
    /// `address` says where it leads, as soon as that is known.
    pub(crate) async fn no_longer_allowed(
        &self,
        host: &Host,
        port: u16,
        address: impl Fn() -> Option<IpAddr>,
    ) -> String {
        let name = match host {
            Host::Name(name) => Some(name),
            Host::Address(_) => None,
        };
        let mut next = self.successor.next().await;
        loop {
            if next.is_closed {
                return PAUSED.to_owned();
            }
            let decision = next.policy.decide(host, port);
            if decision.verdict == RuleVerdict::Deny {
                let rule = decision.rule.map(ToString::to_string);
                return policy::reason(rule.as_deref());
            }
            if let Some(address) = address()
                && let Err(reason) = next.policy.check(name, address, port)
            {
                return reason;
            }
            let after = next.successor.next().await;
            next = after;
        }
    }

    /// Returns when the network is closed, with the reason.
    pub(crate) async fn closed(&self) -> String {
        let mut next = self.successor.next().await;
        while !next.is_closed {
            let after = next.successor.next().await;
            next = after;
        }
        PAUSED.to_owned()
    }
}

/// Why nothing is carried while the network is closed.
pub(crate) const PAUSED: &str = "the sandbox is paused";

impl Successor {
    async fn next(&self) -> Rc<Shared> {
        let mut receiver = self.0.subscribe();
        let found = receiver
            .wait_for(Option::is_some)
            .await
            .ok()
            .and_then(|found| found.clone());
        match found {
            Some(found) => found,
            // The sender is in `self`: that does not happen.
            None => std::future::pending().await,
        }
    }
}
