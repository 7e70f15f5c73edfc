//! What the flags of the network ask for.

use std::ffi::OsStr;

use offleash_core::approval::ApprovalRules;
use offleash_core::error::Explained as _;
use offleash_core::network::secret::SecretSpec;
use offleash_core::network::upstream_proxy::{self, ProxySource};
use offleash_core::network::{DnsServer, HeaderRule, HeaderRuleError, MethodRule, NetworkRule, RuleVerdict};
use offleash_core::spec::{NetworkSpec, SandboxSpec};
use offleash_core::text::Text;

use super::{bad_flag_explained, parse};
use crate::args::NetworkArgs;
use crate::failure::Failure;

/// The rule that the value of `flag` is.
///
/// # Errors
/// When it is none; says what could be written.
pub(crate) fn rule(flag: &str, verdict: RuleVerdict, text: &OsStr) -> Result<NetworkRule, Failure> {
    NetworkRule::parse(verdict, &text.to_string_lossy()).map_err(|error| bad_flag_explained(flag, text, &error))
}

/// Adds what the flags say of the network to what the policy says.
pub(crate) fn apply_flags(arguments: &NetworkArgs, spec: &mut SandboxSpec) -> Result<(), Failure> {
    for (flag, verdict, texts) in [
        ("--allow", RuleVerdict::Allow, &arguments.allow),
        ("--ask", RuleVerdict::Ask, &arguments.ask),
        ("--deny-host", RuleVerdict::Deny, &arguments.deny_host),
    ] {
        for text in texts {
            spec.network.policy.rules.push(rule(flag, verdict, text)?);
        }
    }
    if let Some(text) = &arguments.ask_timeout {
        let timeout = ApprovalRules::timeout_of(text).map_err(|error| {
            Failure::new(format!(
                "`--ask-timeout {}` is not valid: {error}",
                Text::from(text.as_str())
            ))
            .with_hint("write a time such as `30s` or `5m`")
        })?;
        spec.network.asks.timeout = Some(timeout);
    }
    apply_request_flags(arguments, spec)?;
    apply_proxies(arguments, spec)?;
    for text in &arguments.secret {
        spec.network.secrets.push(secret(text)?);
    }
    for text in &arguments.publish {
        spec.network.publish.push(parse("--publish", text)?);
    }
    for text in &arguments.host_port {
        spec.network.host_ports.push(parse("--host-port", text)?);
    }
    match arguments.network.as_deref() {
        None => Ok(()),
        Some("none") => {
            spec.network = NetworkSpec::default();
            Ok(())
        }
        Some(other) => Err(Failure::new(format!("`--network {other}` is no network"))
            .with_hint("`none` is the only word here; `--allow HOST` says what may be reached")),
    }
}

/// Adds what the flags say of requests.
fn apply_request_flags(arguments: &NetworkArgs, spec: &mut SandboxSpec) -> Result<(), Failure> {
    const METHOD: &str = "--allow-method";
    for text in &arguments.allow_method {
        let rule = text.to_string_lossy().parse::<MethodRule>();
        let rule = rule.map_err(|error| bad_flag_explained(METHOD, text, &error))?;
        spec.network
            .add_method_rule(rule)
            .map_err(|error| bad_flag_explained(METHOD, text, &error))?;
    }
    type Parse = fn(&str) -> Result<HeaderRule, HeaderRuleError>;
    for (flag, texts, parse) in [
        ("--set-header", &arguments.set_header, HeaderRule::parse_set as Parse),
        ("--remove-header", &arguments.remove_header, HeaderRule::parse_remove),
    ] {
        for text in texts {
            let rule = parse(&text.to_string_lossy()).map_err(|error| bad_header(flag, &error))?;
            spec.network.requests.headers.push(rule);
        }
    }
    Ok(())
}

/// A header rule that cannot be read; it is not repeated, because its value may be confidential.
fn bad_header(flag: &str, error: &HeaderRuleError) -> Failure {
    let failure = Failure::new(format!("what `{flag}` was given is not valid: {error}"));
    match error.hint() {
        Some(hint) => failure.with_hint(hint),
        None => failure,
    }
}

fn apply_proxies(arguments: &NetworkArgs, spec: &mut SandboxSpec) -> Result<(), Failure> {
    let network = &mut spec.network;
    network.internet |= arguments.internet;
    network.proxy_variables |= arguments.proxy_variables;
    for text in &arguments.dns_server {
        const FLAG: &str = "--dns-server";
        let server = text.to_string_lossy().parse::<DnsServer>();
        let added = server.and_then(|server| network.add_dns_server(server));
        added.map_err(|error| bad_flag_explained(FLAG, text, &error))?;
    }
    if let Some(text) = &arguments.upstream_proxy {
        let source = text.to_string_lossy().parse::<ProxySource>();
        // What was given may have a password in it, and is not repeated.
        let source = source.map_err(|error| {
            let failure = Failure::new(format!("`--upstream-proxy`: {error}"));
            failure.with_hint(error.hint().unwrap_or_default())
        })?;
        network.upstream_proxy = Some(source);
    }
    for text in &arguments.no_proxy {
        let host = upstream_proxy::parse_direct(&text.to_string_lossy());
        network
            .no_proxy
            .push(host.map_err(|error| bad_flag_explained("--no-proxy", text, &error))?);
    }
    Ok(())
}

/// The value of `--secret`, of which an error repeats no more than the name: somebody may have given the secret itself.
fn secret(text: &OsStr) -> Result<SecretSpec, Failure> {
    let parsed: Result<SecretSpec, _> = text
        .to_str()
        .ok_or_else(|| Failure::new("the value of `--secret` is not UTF-8").with_hint("write it in UTF-8"))?
        .parse();
    parsed.map_err(|error| {
        let hint = error
            .hint()
            .unwrap_or_else(|| "`offleash help run` says what it takes".to_owned());
        Failure::new(format!("`--secret` is not valid: {error}")).with_hint(hint)
    })
}
