//! From E2B's lists of what may be reached to the rules of a gateway.
//!
//! There, what is allowed wins over what is denied; in a policy of ours it is the other way round. So what both lists
//! name is taken out of what is denied, address by address, before there are rules. Addresses that are not public are
//! taken out of what is allowed: whoever may use the API may not reach the machine's own network by it. Who has a key names public ones
//! alone, and the gateway takes his rules for no consent to others; the owner may name what is in none of [`NEVER`].

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use offleash_core::network::address::has_public;
use offleash_core::network::cidr::Cidr;
use offleash_core::network::host_pattern::HostPattern;
use offleash_core::network::pattern::NetworkPattern;
use offleash_core::network::{NetworkRule, RuleVerdict};
use offleash_supervisor::service::order::{HeaderOrder, WayOutOrder};

use crate::error::DaemonError;
use crate::request::NetworkSettings;
use crate::{egress_route, secret_use};

/// What a gateway is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GatewayRules {
    /// Whether what no rule names may be reached.
    pub(crate) internet: bool,
    /// Rules that allow, in the words of a policy.
    pub(crate) allow: Vec<String>,
    /// Rules that deny.
    pub(crate) deny: Vec<String>,
    /// Rules that ask.
    pub(crate) ask: Vec<String>,
    /// Headers that are set.
    pub(crate) headers: Vec<HeaderOrder>,
    /// How names are resolved, and through what everything is reached.
    pub(crate) way_out: WayOutOrder,
    /// Whether the owner of the machine allows something.
    pub(crate) named_by_owner: bool,
}

/// Most entries of a list, and most rules that come of them.
const MAX_ENTRIES: usize = 1000;
const MAX_RULES: usize = 4000;

/// Most hosts for whose requests headers are set, and most headers of each, as E2B has it.
const MAX_HOSTS: usize = 10;
const MAX_HEADERS: usize = 20;

/// What is not reached through the API, whatever is allowed (E2B's own list; the gateway refuses these and more).
const NEVER: [(IpAddr, u8); 9] = [
    (IpAddr::V4(Ipv4Addr::new(0, 0, 0, 0)), 8),
    (IpAddr::V4(Ipv4Addr::new(10, 0, 0, 0)), 8),
    (IpAddr::V4(Ipv4Addr::new(100, 64, 0, 0)), 10),
    (IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)), 8),
    (IpAddr::V4(Ipv4Addr::new(169, 254, 0, 0)), 16),
    (IpAddr::V4(Ipv4Addr::new(172, 16, 0, 0)), 12),
    (IpAddr::V4(Ipv4Addr::new(192, 168, 0, 0)), 16),
    (IpAddr::V6(Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0)), 7),
    (IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0)), 10),
];

/// The rules of `settings`.
///
/// # Errors
/// `Invalid` for what is no address, network or name, and for names without `0.0.0.0/0` among what is denied;
/// `Unsupported` for headers with what would have to be minted.
pub(crate) fn order(settings: &NetworkSettings) -> Result<GatewayRules, DaemonError> {
    let headers = headers(&settings.headers)?;
    let way_out = egress_route::order(settings)?;
    check_mask(settings.mask_request_host.as_deref())?;
    let lists = [
        ("allowOut", &settings.allow_out),
        ("denyOut", &settings.deny_out),
        ("ask", &settings.ask_out),
    ];
    for (field, list) in lists {
        if list.len() > MAX_ENTRIES {
            return Err(DaemonError::invalid(field, format!("more than {MAX_ENTRIES} entries")));
        }
    }
    let ask = asked(&settings.ask_out)?;
    let mut denied = networks("denyOut", &settings.deny_out)?;
    let AllowedTargets {
        rules,
        networks: allowed,
        at_ports,
    } = split_allowed(&settings.allow_out)?;
    if settings.internet == Some(false) {
        denied.extend(everything());
    }
    let all_denied = denied.contains(&everything()[0]);
    let is_narrow = !rules.is_empty() || !at_ports.is_empty();
    if is_narrow && !all_denied {
        let what = if rules.is_empty() { "a port" } else { "a name" };
        let why = format!("{what} needs `0.0.0.0/0` in `denyOut`: it could not make anything reachable that is not");
        return Err(DaemonError::invalid("allowOut", why));
    }
    if allowed.contains(&everything()[0]) || !all_denied {
        let deny = subtracted("denyOut", &denied, &allowed)?;
        return Ok(GatewayRules {
            internet: true,
            allow: Vec::new(),
            deny: deny.iter().map(Cidr::to_string).collect(),
            ask,
            headers,
            way_out,
            named_by_owner: false,
        });
    }
    let public = subtracted("allowOut", &allowed, &never())?;
    if public.is_empty() && !allowed.is_empty() && rules.is_empty() && at_ports.is_empty() {
        return Err(DaemonError::invalid("allowOut", "names no public address"));
    }
    let any_port = |network: &Cidr| format!("{network}:1-65535/tcp");
    let mut allow = rules;
    allow.extend(public.iter().map(any_port));
    for (network, rest) in &at_ports {
        let public = subtracted("allowOut", &[*network], &never())?;
        allow.extend(public.iter().map(|network| format!("{network}{rest}")));
        if allow.len() > MAX_RULES {
            let why = format!("says in more than {MAX_RULES} rules what may be reached");
            return Err(DaemonError::invalid("allowOut", why));
        }
    }
    Ok(GatewayRules {
        internet: false,
        named_by_owner: settings.named_by_owner && !allow.is_empty(),
        allow,
        deny: Vec::new(),
        ask,
        headers,
        way_out,
    })
}

/// Checks what is newly asked for: beside what [`order`] refuses, to be allowed what can never be reached.
///
/// # Errors
/// As [`order`]; `Invalid` for an address or a network among what is allowed of which no part is public.
pub(crate) fn check(settings: &NetworkSettings) -> Result<(), DaemonError> {
    order(settings)?;
    let allowed = split_allowed(&settings.allow_out)?;
    let at_ports = allowed.at_ports.iter().map(|(network, _)| *network);
    for network in allowed.networks.iter().copied().chain(at_ports) {
        let is_reachable = match settings.named_by_owner {
            true => {
                let is_loopback = network == Cidr::single(IpAddr::V6(Ipv6Addr::LOCALHOST));
                !is_loopback && !subtracted("allowOut", &[network], &never())?.is_empty()
            }
            false => has_public(&network),
        };
        if !is_reachable {
            let why = format!("`{network}` is not public, and nothing that is not can be reached from a sandbox");
            return Err(DaemonError::invalid("allowOut", why));
        }
    }
    Ok(())
}

/// The hosts that are asked about.
fn asked(list: &[String]) -> Result<Vec<String>, DaemonError> {
    let rule = |text: &String| {
        let rule = NetworkRule::parse(RuleVerdict::Ask, text);
        let rule = rule.map_err(|error| DaemonError::invalid("ask", error.to_string()))?;
        Ok(rule.pattern().to_string())
    };
    list.iter().map(rule).collect()
}

/// The headers that are set, in the words of a supervisor. They open no host: that is for the lists to say.
fn headers(asked: &BTreeMap<String, BTreeMap<String, String>>) -> Result<Vec<HeaderOrder>, DaemonError> {
    let invalid = |why: String| DaemonError::invalid("network.rules", why);
    if asked.len() > MAX_HOSTS {
        return Err(invalid(format!("more than {MAX_HOSTS} hosts")));
    }
    let mut orders = Vec::new();
    for (host, headers) in asked {
        if headers.len() > MAX_HEADERS {
            let host = host.escape_debug();
            return Err(invalid(format!("more than {MAX_HEADERS} headers for `{host}`")));
        }
        for (name, value) in headers {
            if secret_use::names_in(value).is_err() {
                return Err(DaemonError::Unsupported {
                    what: "a placeholder in `network.rules` that is none of a secret".into(),
                    why: "there are no workload identities here".into(),
                });
            }
            let order = HeaderOrder {
                host: host.clone(),
                name: name.clone(),
                value: value.clone(),
            };
            order.rule().map_err(|error| invalid(error.to_string()))?;
            orders.push(order);
        }
    }
    check_twice(&orders)?;
    Ok(orders)
}

/// Hosts and names of headers may be written in several ways.
fn check_twice(orders: &[HeaderOrder]) -> Result<(), DaemonError> {
    let spelled = |order: &HeaderOrder| (order.host.to_ascii_lowercase(), order.name.to_ascii_lowercase());
    let mut seen = BTreeSet::new();
    match orders.iter().find(|order| !seen.insert(spelled(order))) {
        None => Ok(()),
        Some(twice) => {
            let (host, name) = (twice.host.escape_debug(), twice.name.escape_debug());
            let why = format!("header `{name}` of requests to `{host}` is set twice");
            Err(DaemonError::invalid("network.rules", why))
        }
    }
}

fn everything() -> [Cidr; 2] {
    [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)]
        .map(|first| Cidr::containing(first, 0).unwrap_or(Cidr::single(first)))
}

fn never() -> Vec<Cidr> {
    NEVER
        .iter()
        .filter_map(|(first, prefix)| Cidr::containing(*first, *prefix))
        .collect()
}

/// What is allowed.
#[derive(Debug, Default)]
struct AllowedTargets {
    /// Names and `*.names`, with ports where some are named, in the words of a policy.
    rules: Vec<String>,
    /// Addresses and networks, at every port.
    networks: Vec<Cidr>,
    /// Those of which only some ports are allowed, and what a rule says of these behind the host.
    at_ports: Vec<(Cidr, String)>,
}

/// Reads what is allowed. E2B's lists know no ports; `HOST:PORTS` is what a policy says, too.
fn split_allowed(list: &[String]) -> Result<AllowedTargets, DaemonError> {
    let mut allowed = AllowedTargets::default();
    for text in list {
        if let Some(network) = network(text) {
            allowed.networks.push(network);
            continue;
        }
        let bad = |why: String| DaemonError::invalid("allowOut", why);
        let pattern = NetworkPattern::parse_deny(text).map_err(|error| bad(error.to_string()))?;
        let network = match pattern.host() {
            HostPattern::Network(network) => Some(*network),
            HostPattern::Name(_) | HostPattern::Below(_) => None,
        };
        match network {
            Some(network) => {
                let rest = pattern.to_string().split_off(pattern.host().to_string().len());
                allowed.at_ports.push((network, rest));
            }
            None if pattern.host().is_too_wide() => {
                return Err(bad(format!("`{pattern}` would mean nearly everything")));
            }
            None => allowed.rules.push(pattern.to_string()),
        }
    }
    Ok(allowed)
}

fn networks(field: &'static str, list: &[String]) -> Result<Vec<Cidr>, DaemonError> {
    list.iter()
        .map(|text| {
            let why = || format!("`{}` is not an address or a network", text.escape_debug());
            network(text).ok_or_else(|| DaemonError::invalid(field, why()))
        })
        .collect()
}

/// `192.0.2.1`, `10.0.0.0/8`, `fd00::/8`; bits after the prefix do not matter.
fn network(text: &str) -> Option<Cidr> {
    let Some((address, prefix)) = text.split_once('/') else {
        return Some(Cidr::single(text.parse().ok()?));
    };
    let digits = !prefix.is_empty() && prefix.bytes().all(|byte| byte.is_ascii_digit());
    Cidr::containing(address.parse().ok()?, digits.then(|| prefix.parse().ok())??)
}

/// All addresses of `networks` that are in none of `holes`.
fn subtracted(field: &'static str, networks: &[Cidr], holes: &[Cidr]) -> Result<Vec<Cidr>, DaemonError> {
    let mut rest = Vec::new();
    let mut todo: Vec<Cidr> = networks.to_vec();
    while let Some(network) = todo.pop() {
        if rest.len() + todo.len() > MAX_RULES {
            return Err(DaemonError::invalid(field, "the two lists overlap in too many places"));
        }
        if holes.iter().any(|hole| hole.covers(&network)) {
            continue;
        }
        if holes.iter().any(|hole| network.covers(hole)) {
            todo.extend(network.halves());
        } else {
            rest.push(network);
        }
    }
    rest.sort_unstable();
    rest.dedup();
    Ok(rest)
}

/// What becomes a header must not be able to become two.
fn check_mask(mask: Option<&str>) -> Result<(), DaemonError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-:_[]${}".contains(&byte);
    match mask {
        Some(mask) if mask.is_empty() || mask.len() > 255 || !mask.bytes().all(plain) => {
            Err(DaemonError::invalid("maskRequestHost", "is not a host name"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
