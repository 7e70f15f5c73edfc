//! Hosts that were allowed for good by an answer: how they are kept, and what they change of a sandbox's rules.
//!
//! A rule is one host and one port, for sandboxes of one key that are made of one template. It opens nothing that would not be
//! asked about: what a sandbox's own rules deny stays denied.

use std::time::SystemTime;

use offleash_core::approval::ApprovalSubject;
use offleash_core::network::{Host, NetworkRule, RuleVerdict, SpokenProtocol};
use offleash_supervisor::clock::{from_ms, now_ms};
use offleash_supervisor::service::order::NetworkOrder;

use crate::caller::{Caller, LOCAL_KEY};
use crate::daemon_core::DaemonCore;
use crate::error::DaemonError;
use crate::random;
use crate::registry::{AllowedHostRow, Change, Scope};
use crate::sandboxes::SandboxEntry;

/// How many hosts are allowed for good for the sandboxes of one key.
pub const MAX_ALLOWED_HOSTS: usize = 1000;

/// A host that was allowed for good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedHost {
    /// Its id.
    pub id: String,
    /// The key for whose sandboxes; `None` for those of the owner of the daemon.
    pub key: Option<String>,
    /// For those of which template.
    pub template: String,
    /// What is allowed, in the words of a policy.
    pub rule: String,
    /// The sandbox that asked.
    pub sandbox: String,
    /// When it was allowed.
    pub created_at: SystemTime,
}

impl AllowedHost {
    fn of(row: AllowedHostRow) -> Self {
        Self {
            id: row.id,
            key: (row.key_id != LOCAL_KEY).then_some(row.key_id),
            template: row.template,
            rule: row.rule,
            sandbox: row.sandbox,
            created_at: from_ms(row.created_ms),
        }
    }
}

/// Those that a caller sees: its own, and with the scope `admin` all.
///
/// # Errors
/// `Forbidden`, `Store`.
pub(crate) fn list(core: &DaemonCore, caller: &Caller) -> Result<Vec<AllowedHost>, DaemonError> {
    caller.require(Scope::Read)?;
    let all = core.registry.look_up(|registry| registry.allowed_hosts(None))?;
    let seen = all.into_iter().filter(|row| caller.sees(Some(&row.key_id)));
    Ok(seen.map(AllowedHost::of).collect())
}

/// Has a host asked about again, in sandboxes that are made from now on.
///
/// # Errors
/// `Forbidden`; `UnknownAllowedHost`, also for another key's; `Store`.
pub(crate) async fn forget(core: &DaemonCore, caller: &Caller, id: &str) -> Result<(), DaemonError> {
    caller.require(Scope::Create)?;
    let all = list(core, caller)?;
    let found = all.into_iter().find(|host| host.id == id);
    let host = found.ok_or_else(|| DaemonError::UnknownAllowedHost { id: id.to_owned() })?;
    Ok(core.registry.apply(vec![Change::ForgetAllowedHost(host.id)]).await?)
}

/// Puts on record, before a question is answered by it, that its host is allowed for good; answers the record's id.
///
/// # Errors
/// `Unsupported` for a question about a tool; `Invalid` where there are too many.
pub(crate) async fn keep(
    core: &DaemonCore,
    entry: &SandboxEntry,
    about: &ApprovalSubject,
) -> Result<String, DaemonError> {
    let ApprovalSubject::Connection { host, port, protocol } = about else {
        let (what, why) = match about {
            ApprovalSubject::ToolCall { .. } => ("a tool", "what a key may call is in its grants"),
            _ => ("a command or a restore", "the rule that asks about it is to be changed"),
        };
        return Err(DaemonError::Unsupported {
            what: format!("to allow {what} for good by an answer"),
            why: why.into(),
        });
    };
    let key_id = entry.key_id().unwrap_or_else(|| LOCAL_KEY.to_owned());
    let before = core
        .registry
        .look_up(|registry| registry.allowed_hosts(Some(&key_id)))?;
    if before.len() >= MAX_ALLOWED_HOSTS {
        let why = format!("{MAX_ALLOWED_HOSTS} hosts are allowed for good already, and a key has no more");
        return Err(DaemonError::invalid("scope", why));
    }
    let row = AllowedHostRow {
        id: random::allowed_host_id()?,
        key_id,
        template: entry.template(),
        host: host.to_string(),
        port: *port,
        rule: rule_of(host, *port, *protocol),
        sandbox: entry.name().to_owned(),
        created_ms: now_ms(),
    };
    let id = row.id.clone();
    core.registry.apply(vec![Change::AllowHost(row)]).await?;
    Ok(id)
}

/// Takes back what [`keep`] put on record, where the question was not open any more.
///
/// # Errors
/// `Store`.
pub(crate) async fn take_back(core: &DaemonCore, id: String) -> Result<(), DaemonError> {
    Ok(core.registry.apply(vec![Change::ForgetAllowedHost(id)]).await?)
}

fn rule_of(host: &Host, port: u16, protocol: SpokenProtocol) -> String {
    match protocol {
        SpokenProtocol::Auto => format!("{host}:{port}"),
        protocol if protocol == SpokenProtocol::usual(port) => format!("{host}:{port}"),
        protocol => format!("{host}:{port}/{protocol}"),
    }
}

/// Has a sandbox not ask about what was allowed for good for `key` and `template`.
///
/// # Errors
/// `Store`; `Invalid` for rules that cannot be read.
pub(crate) fn apply(
    core: &DaemonCore,
    order: &mut NetworkOrder,
    key: Option<&str>,
    template: &str,
) -> Result<(), DaemonError> {
    let Some(key) = key.filter(|_| !order.ask.is_empty()) else {
        return Ok(());
    };
    let all = core.registry.look_up(|registry| registry.allowed_hosts(Some(key)))?;
    for row in all.iter().filter(|row| row.template == template) {
        allow(order, row)?;
    }
    Ok(())
}

fn allow(order: &mut NetworkOrder, row: &AllowedHostRow) -> Result<(), DaemonError> {
    let invalid = |error: &dyn std::error::Error| DaemonError::invalid("ask", error.to_string());
    let Ok(host) = Host::parse(&row.host) else {
        return Ok(());
    };
    let rules = order.spec().map_err(|error| invalid(&error))?.policy;
    if rules.decide(&host, row.port).verdict != RuleVerdict::Ask {
        return Ok(());
    }
    let mut ask = Vec::new();
    for text in &order.ask {
        let rule = NetworkRule::parse(RuleVerdict::Ask, text).map_err(|error| invalid(&error))?;
        // It would ask although a rule allows just that.
        let rule = match rule.asks_exactly(&host, row.port) {
            true => rule.without_port(row.port),
            false => Some(rule),
        };
        ask.extend(rule.map(|rule| rule.pattern().to_string()));
    }
    order.ask = ask;
    order.allow.push(row.rule.clone());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(host: &str, port: u16) -> AllowedHostRow {
        AllowedHostRow {
            id: "a".to_owned(),
            key_id: "k".to_owned(),
            template: "base".to_owned(),
            host: host.to_owned(),
            port,
            rule: format!("{host}:{port}"),
            sandbox: "i".to_owned(),
            created_ms: 0,
        }
    }

    /// What is said about each of `asked` once `allowed` is allowed for good.
    fn verdicts(ask: &[&str], deny: &[&str], allowed: (&str, u16), asked: &[(&str, u16)]) -> Vec<RuleVerdict> {
        let words = |list: &[&str]| list.iter().map(ToString::to_string).collect();
        let mut order = NetworkOrder {
            ask: words(ask),
            deny: words(deny),
            ..NetworkOrder::default()
        };
        allow(&mut order, &row(allowed.0, allowed.1)).unwrap();
        let policy = order.spec().unwrap().policy;
        let one = |(host, port): &(&str, u16)| policy.decide(&Host::parse(host).unwrap(), *port).verdict;
        asked.iter().map(one).collect()
    }

    #[test]
    fn a_host_that_was_allowed_for_good_is_asked_about_no_more_and_nothing_else_is_opened() {
        use RuleVerdict::{Allow, Ask, Deny};
        let asked = [("a.example", 443), ("a.example", 80), ("b.example", 443)];
        // A rule that names it, and one that means it among others.
        assert_eq!(verdicts(&["a.example"], &[], asked[0], &asked), [Allow, Ask, Deny]);
        assert_eq!(
            verdicts(
                &["*.example.com"],
                &[],
                ("x.example.com", 443),
                &[("x.example.com", 443), ("y.example.com", 443)]
            ),
            [Allow, Ask]
        );
        assert_eq!(verdicts(&["a.example:443"], &[], asked[0], &asked), [Allow, Deny, Deny]);
        // What is denied, or not asked about, stays as it is.
        assert_eq!(verdicts(&["b.example"], &[], asked[0], &asked), [Deny, Deny, Ask]);
        assert_eq!(
            verdicts(&["a.example"], &["a.example"], asked[0], &asked),
            [Deny, Deny, Deny]
        );
        assert_eq!(
            verdicts(&["192.0.2.1:443"], &[], ("192.0.2.1", 443), &[("192.0.2.1", 443)]),
            [Allow]
        );
    }

    #[test]
    fn a_rule_says_the_protocol_where_it_is_not_the_usual_one() {
        let host = Host::parse("a.example").unwrap();
        assert_eq!(rule_of(&host, 443, SpokenProtocol::Tls), "a.example:443");
        assert_eq!(rule_of(&host, 8443, SpokenProtocol::Tls), "a.example:8443/tls");
        assert_eq!(
            rule_of(&Host::parse("::1").unwrap(), 80, SpokenProtocol::Auto),
            "[::1]:80"
        );
    }
}
