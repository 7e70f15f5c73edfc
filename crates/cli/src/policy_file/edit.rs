//! Adds rules to the text of a policy, and leaves everything else as it was written: comments, order, spaces.

use std::collections::{BTreeMap, BTreeSet};

use offleash_core::approval::{ApprovalQuestion, ApprovalSubject};
use offleash_core::network::{Host, NetworkPolicy, NetworkRule, RuleVerdict, SpokenProtocol};
use offleash_core::policy::Policy;
use offleash_core::text::Text;
use toml_edit::{Array, DocumentMut, Item, Table, Value};

/// What is to be allowed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) host: Host,
    pub(crate) port: u16,
    pub(crate) protocol: SpokenProtocol,
}

/// The text with more rules.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Edited {
    pub(crate) text: String,
    /// What a rule of the policy denies, so that allowing it would change nothing.
    pub(crate) denied: Vec<String>,
}

impl Place {
    /// `None` for what is no place.
    pub(crate) fn of(question: &ApprovalQuestion) -> Option<Self> {
        match &question.about {
            ApprovalSubject::Connection { host, port, protocol } => Some(Self {
                host: host.clone(),
                port: *port,
                protocol: *protocol,
            }),
            ApprovalSubject::ToolCall { .. } | ApprovalSubject::Command { .. } | ApprovalSubject::Restore { .. } => {
                None
            }
        }
    }

    /// What a rule has to say of the protocol, if it is another than usual.
    fn suffix(&self) -> &'static str {
        match self.protocol {
            protocol if protocol == SpokenProtocol::usual(self.port) => "",
            SpokenProtocol::Auto => "",
            SpokenProtocol::Tcp => "/tcp",
            SpokenProtocol::Tls => "/tls",
            SpokenProtocol::Http => "/http",
        }
    }
}

/// The text of a policy with rules that allow `places`, those that it allows already left out.
///
/// A rule that asks about exactly such a host and port is narrowed or taken out: it would ask all the same.
///
/// # Errors
/// When the text is no policy, or one without a network; says why.
pub(crate) fn allow(text: &str, places: &BTreeSet<Place>) -> Result<Edited, String> {
    let mut document: DocumentMut = text.parse().map_err(|error: toml_edit::TomlError| error.to_string())?;
    let before = rules_of(text)?;
    let mut denied = Vec::new();
    let mut ports: BTreeMap<(&Host, &str), Vec<String>> = BTreeMap::new();
    let mut added = Vec::new();
    for place in places {
        let decision = before.decide(&place.host, place.port);
        match (decision.verdict, decision.rule) {
            (RuleVerdict::Allow, _) if decision.protocol == place.protocol => {}
            (RuleVerdict::Deny, Some(_)) => denied.push(format!("`{}:{}`", place.host, place.port)),
            _ => {
                let list = ports.entry((&place.host, place.suffix())).or_default();
                list.push(place.port.to_string());
                added.push(place);
            }
        }
    }
    if !ports.is_empty() {
        let network = network_of(&mut document)?;
        let list = list_of(network, "allow")?;
        for ((host, suffix), ports) in ports {
            push(list, &format!("{host}:{}{suffix}", ports.join(",")));
        }
        for place in added {
            no_longer_ask(network, place)?;
        }
    }
    Ok(Edited {
        text: document.to_string(),
        denied,
    })
}

fn rules_of(text: &str) -> Result<NetworkPolicy, String> {
    let policy = Policy::parse(text).map_err(|error| error.to_string())?;
    Ok(policy.network.map(|network| network.policy).unwrap_or_default())
}

fn network_of(document: &mut DocumentMut) -> Result<&mut dyn toml_edit::TableLike, String> {
    let network = document.entry("network").or_insert_with(|| Item::Table(Table::new()));
    network
        .as_table_like_mut()
        .ok_or_else(|| "its `network` is no table of rules".to_owned())
}

fn list_of<'a>(network: &'a mut dyn toml_edit::TableLike, key: &str) -> Result<&'a mut Array, String> {
    let list = network.entry(key).or_insert_with(|| Item::Value(Array::new().into()));
    list.as_array_mut()
        .ok_or_else(|| format!("its `network.{key}` is no list"))
}

/// Adds a value as the last, in a line of its own if the one before has one.
fn push(list: &mut Array, text: &str) {
    let last = list.iter().last().and_then(prefix).map(ToOwned::to_owned);
    let Some(indent) = last
        .as_deref()
        .and_then(|prefix| prefix.rfind('\n').map(|end| &prefix[end..]))
    else {
        list.push(text);
        return;
    };
    // What follows the last value, such as a comment, belongs to it.
    let mut trailing = list.trailing().as_str().unwrap_or_default().to_owned();
    if let Some(last) = list.iter_mut().last() {
        let behind = last.decor().suffix().and_then(|text| text.as_str()).unwrap_or_default();
        trailing.insert_str(0, behind);
        last.decor_mut().set_suffix("");
    }
    let end = trailing.rfind('\n').unwrap_or(0);
    let (kept, rest) = trailing.split_at(end);
    let mut value = Value::from(text);
    value.decor_mut().set_prefix(format!("{kept}{indent}"));
    let rest = if rest.is_empty() { "\n" } else { rest }.to_owned();
    list.push_formatted(value);
    list.set_trailing(rest);
    list.set_trailing_comma(true);
}

fn prefix(value: &Value) -> Option<&str> {
    value.decor().prefix()?.as_str()
}

/// Takes `place` out of every rule that asks about exactly its host.
fn no_longer_ask(network: &mut dyn toml_edit::TableLike, place: &Place) -> Result<(), String> {
    if network.get("ask").is_none() {
        return Ok(());
    }
    let list = list_of(network, "ask")?;
    let mut at = 0;
    while let Some(value) = list.get(at) {
        let text = value.as_str().unwrap_or_default();
        let rule = NetworkRule::parse(RuleVerdict::Ask, text)
            .map_err(|error| format!("`network.ask` has `{}`: {error}", Text::from(text)))?;
        if !rule.asks_exactly(&place.host, place.port) {
            at += 1;
            continue;
        }
        match rule.without_port(place.port) {
            Some(narrower) => {
                list.replace(at, narrower.pattern().to_string());
                at += 1;
            }
            None => remove(list, at),
        }
    }
    Ok(())
}

/// Takes a value out; the comments before it stay.
fn remove(list: &mut Array, at: usize) {
    let removed = list.remove(at);
    let before = prefix(&removed).unwrap_or_default();
    let Some(end) = before.rfind('\n').filter(|_| before.contains('#')) else {
        return;
    };
    let joined = |after: &str| {
        let kept = if after.starts_with('\n') {
            &before[..end]
        } else {
            &before[..=end]
        };
        format!("{kept}{after}")
    };
    match list.get_mut(at) {
        Some(next) => {
            let text = joined(prefix(next).unwrap_or_default());
            next.decor_mut().set_prefix(text);
        }
        None => {
            let text = joined(list.trailing().as_str().unwrap_or_default());
            list.set_trailing(text);
        }
    }
}

#[cfg(test)]
mod tests;
