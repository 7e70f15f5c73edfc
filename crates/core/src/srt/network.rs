//! The table `network` of the settings: which domains are reached.
//!
//! In `srt` whatever `deniedDomains` names is denied, however specific an entry of `allowedDomains` is; here the more
//! specific rule counts. An allowed host that a denied pattern covers is therefore denied by a rule of its own.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::RefusedSettings;
use crate::network::host_pattern::HostPattern;
use crate::network::ports::PortSet;
use crate::network::{NetworkPattern, NetworkRule, RuleVerdict};
use crate::spec::NetworkSpec;

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default, expecting = "an object")]
pub(super) struct NetworkSettings {
    allowed_domains: Vec<String>,
    denied_domains: Vec<String>,
    denied_resolved_addresses: Vec<String>,
    #[serde(rename = "deniedDomainReasons")]
    _denied_domain_reasons: BTreeMap<String, String>,
    #[serde(rename = "strictAllowlist")]
    _strict_allowlist: bool,
    allow_unix_sockets: Vec<String>,
    allow_all_unix_sockets: bool,
    #[serde(rename = "allowLocalBinding")]
    _allow_local_binding: bool,
    #[serde(rename = "allowMachLookup")]
    _allow_mach_lookup: Vec<String>,
    http_proxy_port: Option<IgnoredAny>,
    socks_proxy_port: Option<IgnoredAny>,
    mitm_proxy: Option<IgnoredAny>,
    filter_request: Option<IgnoredAny>,
    tls_terminate: Option<IgnoredAny>,
    parent_proxy: Option<IgnoredAny>,
}

/// An entry of `deniedDomains`.
struct DeniedDomain {
    /// `None` denies every host.
    pattern: Option<NetworkPattern>,
    ports: PortSet,
}

impl NetworkSettings {
    /// What may be reached; no network at all when no domain is allowed.
    pub(super) fn into_spec(self, refusals: &mut RefusedSettings) -> NetworkSpec {
        self.check(refusals);
        let allowed: Vec<NetworkPattern> = self
            .allowed_domains
            .iter()
            .filter_map(|text| domain("network.allowedDomains", text, refusals))
            .collect();
        let denied: Vec<DeniedDomain> = self
            .denied_domains
            .iter()
            .filter_map(|text| DeniedDomain::parse(text, refusals))
            .collect();
        let mut rules = Vec::new();
        for pattern in allowed {
            for denied in denied.iter().filter(|denied| denied.covers(pattern.host())) {
                rules.extend(rule(
                    RuleVerdict::Deny,
                    pattern.clone().with_ports(denied.ports.clone()),
                    refusals,
                ));
            }
            let ports = pattern.ports().cloned().unwrap_or(PortSet::all());
            rules.extend(rule(RuleVerdict::Allow, pattern.with_ports(ports), refusals));
        }
        for DeniedDomain { pattern, ports } in denied {
            let pattern = pattern.map(|pattern| pattern.with_ports(ports));
            rules.extend(pattern.and_then(|pattern| rule(RuleVerdict::Deny, pattern, refusals)));
        }
        for text in &self.denied_resolved_addresses {
            rules.extend(address("network.deniedResolvedAddresses", text, refusals));
        }
        let mut spec = NetworkSpec::default();
        spec.policy.rules = rules;
        if let Err(error) = spec.check(false) {
            refusals.0.push(format!("network.allowedDomains ({error})"));
        }
        spec
    }

    fn check(&self, refusals: &mut RefusedSettings) {
        refusals.when(!self.allow_unix_sockets.is_empty(), "network.allowUnixSockets");
        refusals.when(self.allow_all_unix_sockets, "network.allowAllUnixSockets");
        refusals.when(self.http_proxy_port.is_some(), "network.httpProxyPort");
        refusals.when(self.socks_proxy_port.is_some(), "network.socksProxyPort");
        refusals.when(self.mitm_proxy.is_some(), "network.mitmProxy");
        refusals.when(self.filter_request.is_some(), "network.filterRequest");
        refusals.when(self.tls_terminate.is_some(), "network.tlsTerminate");
        refusals.when(self.parent_proxy.is_some(), "network.parentProxy");
    }
}

impl DeniedDomain {
    /// A domain, `*`, or `*:PORT`.
    fn parse(text: &str, refusals: &mut RefusedSettings) -> Option<Self> {
        const KEY: &str = "network.deniedDomains";
        let everything = match text.strip_prefix('*') {
            Some("") => Some(Ok(PortSet::all())),
            Some(rest) => rest.strip_prefix(':').map(PortSet::parse),
            None => None,
        };
        match everything {
            Some(Ok(ports)) => Some(Self { pattern: None, ports }),
            Some(Err(error)) => {
                refusals.0.push(format!("{KEY} (`{text}`: {error})"));
                None
            }
            None => {
                let pattern = domain(KEY, text, refusals)?;
                let ports = pattern.ports().cloned().unwrap_or(PortSet::all());
                Some(Self {
                    pattern: Some(pattern),
                    ports,
                })
            }
        }
    }

    fn covers(&self, host: &HostPattern) -> bool {
        self.pattern.as_ref().is_none_or(|pattern| pattern.host().covers(host))
    }
}

/// A name, `*.` before a name or an address, and a port if there is one.
fn domain(key: &str, text: &str, refusals: &mut RefusedSettings) -> Option<NetworkPattern> {
    let parsed = match text.contains(['/', ',']) {
        true => Err(format!("`{text}` is no domain")),
        false => NetworkPattern::parse_deny(text).map_err(|error| error.to_string()),
    };
    parsed
        .map_err(|reason| refusals.0.push(format!("{key} ({reason})")))
        .ok()
}

/// A rule that denies an address, or a network in CIDR form, IPv6 without brackets.
fn address(key: &str, text: &str, refusals: &mut RefusedSettings) -> Option<NetworkRule> {
    let (address, prefix) = text
        .split_once('/')
        .map_or((text, None), |(address, prefix)| (address, Some(prefix)));
    let bracketed = if address.contains(':') {
        format!("[{address}]")
    } else {
        address.to_owned()
    };
    let text = prefix.map_or(bracketed.clone(), |prefix| format!("{bracketed}/{prefix}"));
    let parsed = match address.parse::<core::net::IpAddr>() {
        Ok(_) => NetworkRule::parse(RuleVerdict::Deny, &text).map_err(|error| error.to_string()),
        Err(_) => Err(format!("`{text}` is no address")),
    };
    parsed
        .map_err(|reason| refusals.0.push(format!("{key} ({reason})")))
        .ok()
}

fn rule(verdict: RuleVerdict, pattern: NetworkPattern, refusals: &mut RefusedSettings) -> Option<NetworkRule> {
    let made = NetworkRule::new(verdict, pattern);
    made.map_err(|error| refusals.0.push(format!("network.allowedDomains ({error})")))
        .ok()
}
