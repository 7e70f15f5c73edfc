//! What the flags of the network ask for.

use offleash_core::network::{Asks, NetworkRule, RuleVerdict};
use offleash_core::spec::{NetworkSpec, SandboxSpec};
use offleash_core::text::Text;

use super::bad_flag;
use crate::args::NetworkArgs;
use crate::failure::Failure;

/// Adds what the flags say of the network to what the policy says.
pub(super) fn apply_flags(arguments: &NetworkArgs, spec: &mut SandboxSpec) -> Result<(), Failure> {
    for (flag, verdict, texts) in [
        ("--allow", RuleVerdict::Allow, &arguments.allow),
        ("--ask", RuleVerdict::Ask, &arguments.ask),
        ("--deny-host", RuleVerdict::Deny, &arguments.deny_host),
    ] {
        for text in texts {
            let rule = NetworkRule::parse(verdict, &text.to_string_lossy());
            let rule = rule.map_err(|error| bad_flag(flag, text, &error))?;
            spec.network.policy.rules.push(rule);
        }
    }
    if let Some(text) = &arguments.ask_timeout {
        spec.network.asks.timeout = Asks::timeout_of(text).map_err(|error| {
            Failure::new(format!(
                "`--ask-timeout {}` is not valid: {error}",
                Text::from(text.as_str())
            ))
            .with_hint("write a time such as `30s` or `5m`")
        })?;
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
