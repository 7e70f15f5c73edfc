//! What the flags of the network ask for.

use offleash_core::network::{NetworkRule, RuleVerdict};
use offleash_core::spec::{NetworkSpec, SandboxSpec};

use super::bad_flag;
use crate::args::NetworkArgs;
use crate::failure::Failure;

/// Adds what the flags say of the network to what the policy says.
pub(super) fn apply_flags(arguments: &NetworkArgs, spec: &mut SandboxSpec) -> Result<(), Failure> {
    for (flag, verdict, texts) in [
        ("--allow", RuleVerdict::Allow, &arguments.allow),
        ("--deny-host", RuleVerdict::Deny, &arguments.deny_host),
    ] {
        for text in texts {
            let rule = NetworkRule::parse(verdict, &text.to_string_lossy());
            let rule = rule.map_err(|error| bad_flag(flag, text, &error))?;
            spec.network.policy.rules.push(rule);
        }
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
