//! What rules alone say, for questions before anything runs.

use offleash_core::network::{Host, NetworkPolicy, RequestRules, RuleVerdict};

use crate::dns;
use crate::names::Names;
use crate::policy::{self, Policy, Unknown};

/// What the rules alone say of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Why it would be refused; `None` if it would not.
    pub reason: Option<String>,
    /// The rule that decides, as it was written.
    pub rule: Option<String>,
    /// Whether it would be asked about first.
    pub asks: bool,
}

/// What would become of a connection to `host` at `port`, before anything is resolved; with `internet`, what is public is
/// reached unless a rule says otherwise.
pub fn refusal(rules: &NetworkPolicy, internet: bool, host: &Host, port: u16) -> Refusal {
    let policy = Policy::new(rules.clone(), Vec::new(), Unknown::of(false, internet));
    let decision = policy.decide(host, port);
    let rule = decision.rule.map(ToString::to_string);
    let reason = match (decision.verdict, host) {
        (RuleVerdict::Allow | RuleVerdict::Ask, Host::Address(address)) => policy::check_loopback(host)
            .and_then(|()| policy.check(None, *address, port))
            .err(),
        (RuleVerdict::Allow | RuleVerdict::Ask, Host::Name(_)) => policy::check_loopback(host).err(),
        (RuleVerdict::Deny, _) => Some(policy::reason(rule.as_deref())),
    };
    let asks = reason.is_none() && decision.verdict == RuleVerdict::Ask;
    Refusal { reason, rule, asks }
}

/// Whether the requests on a connection to `host` at `port` are seen, because rules are about them.
pub fn opens(rules: &NetworkPolicy, requests: &RequestRules, host: &Host, port: u16) -> bool {
    let policy = Policy::new(rules.clone(), Vec::new(), Unknown::Denied).with_requests(requests.clone());
    let protocol = policy.decide(host, port).protocol;
    policy.opens(host, port, protocol, false)
}

/// What a sandbox with these rules and without any name asked for yet is answered to a DNS question, by UDP; `None` if
/// it is no question.
pub fn answer_to(rules: &NetworkPolicy, question: &[u8]) -> Option<Vec<u8>> {
    let policy = Policy::new(rules.clone(), Vec::new(), Unknown::Denied);
    let (answer, _) = dns::answer(question, &policy, &mut Names::default());
    answer.map(|answer| dns::for_udp(question, answer))
}
