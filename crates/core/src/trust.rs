//! Which parts of a policy only its owner may decide.
//!
//! A policy that is found lying in a workspace may have come with the code that is to be contained (THREATS: "agent
//! config in the repo is the escape"). Such a policy may take away; whatever gives more than the defaults give counts
//! only from a file that the user named.

use crate::level::{Degrade, LevelChoice};
use crate::limits::{LimitName, Limits};
use crate::network::RuleVerdict;
use crate::policy::{Policy, WorkspaceChoice};
use crate::spec::WorkspaceMode;

/// The keys of `policy` that give more than the defaults do.
pub fn widened(policy: &Policy) -> Vec<String> {
    let mut keys = Vec::new();
    let mut note = |widens: bool, key: &str| {
        if widens {
            keys.push(key.to_owned());
        }
    };
    note(matches!(policy.level, Some(LevelChoice::Exactly(_))), "level");
    note(policy.degrade == Some(Degrade::Allow), "degrade");
    note(
        policy.workspace == Some(WorkspaceChoice::Mode(WorkspaceMode::Rw)),
        "filesystem.workspace",
    );
    note(!policy.paths.read.is_empty(), "filesystem.read");
    note(!policy.paths.write.is_empty(), "filesystem.write");
    note(!policy.mounts.is_empty(), "mount");
    note(has_larger_tmpfs(policy), "tmpfs");
    note(!policy.toolchains.is_empty(), "toolchains");
    note(!policy.env.pass.is_empty(), "env.pass");
    note(
        policy.ids.is_some_and(|ids| ids != crate::spec::IdChoice::Single),
        "ids",
    );
    note(policy.allow_ptrace == Some(true), "allow_ptrace");
    for (verdict, key) in [(RuleVerdict::Allow, "network.allow"), (RuleVerdict::Ask, "network.ask")] {
        let mut rules = policy.network.iter().flat_map(|network| &network.policy.rules);
        note(rules.any(|rule| rule.verdict() == verdict), key);
    }
    let requests = policy.network.as_ref().map(|network| &network.requests);
    note(
        requests.is_some_and(|requests| !requests.methods.rules.is_empty()),
        "network.methods",
    );
    let changes_headers = |sets: bool| {
        requests.is_some_and(|requests| requests.headers.iter().any(|rule| rule.value().is_some() == sets))
    };
    note(changes_headers(true), "network.set_headers");
    note(changes_headers(false), "network.remove_headers");
    // Whoever names the proxy sees where everything goes, and is told the credentials for it.
    let network = policy.network.as_ref();
    note(
        network.is_some_and(|network| network.upstream_proxy.is_some()),
        "network.upstream_proxy",
    );
    note(
        policy
            .network
            .as_ref()
            .is_some_and(|network| !network.secrets.is_empty()),
        "network.secret",
    );
    note(
        network.is_some_and(|network| !network.publish.is_empty()),
        "network.publish",
    );
    note(
        network.is_some_and(|network| !network.host_ports.is_empty()),
        "network.host_ports",
    );
    keys.extend(raised_limits(policy).map(|limit| format!("limits.{}", limit.name())));
    keys
}

/// Whether a tmpfs may hold more than `/tmp` may unless its owner says so.
fn has_larger_tmpfs(policy: &Policy) -> bool {
    let most = Limits::default().tmp;
    policy
        .tmpfs
        .iter()
        .any(|tmpfs| most.is_some_and(|most| tmpfs.size.is_some_and(|size| size > most)))
}

fn raised_limits(policy: &Policy) -> impl Iterator<Item = LimitName> + '_ {
    let defaults = Limits::default();
    policy.limits.iter().filter_map(move |(name, text)| {
        let mut set = Limits::default();
        let parsed = set.set(*name, text).is_ok();
        let raised = match (set.get(*name), defaults.get(*name)) {
            (_, None) => false,
            (None, Some(_)) => true,
            (Some(asked), Some(default)) => asked > default,
        };
        (!parsed || raised).then_some(*name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taking_away_needs_no_trust() {
        let policy = "[filesystem]\ndeny = [\".env\"]\nworkspace = \"ro\"\n[commands]\ndeny = [\"curl\"]\n[limits]\nmemory = \"64M\"\n";
        assert_eq!(widened(&Policy::parse(policy).unwrap()), Vec::<String>::new());
    }

    #[test]
    fn hosts_that_may_be_reached_are_the_owners_to_name() {
        let keys = |policy: &str| widened(&Policy::parse(policy).unwrap());
        assert_eq!(keys("[network]\nallow = [\"example.com\"]"), ["network.allow"]);
        assert_eq!(keys("[network]\nask = [\"example.com\"]"), ["network.ask"]);
        let restrict = "[network]\ndeny = [\"example.com\"]\nask_timeout = \"1h\"";
        assert_eq!(keys(restrict), Vec::<String>::new());
        assert_eq!(
            keys("[network]\nmethods = [\"GET example.com/\"]"),
            ["network.allow", "network.methods"]
        );
        assert_eq!(
            keys("[network]\nset_headers = [\"example.com X-A: b\"]\nremove_headers = [\"example.com Cookie\"]"),
            ["network.set_headers", "network.remove_headers"]
        );
        assert_eq!(
            keys("[network]\nupstream_proxy = \"http://evil.example:1\""),
            ["network.upstream_proxy"]
        );
        assert_eq!(keys("[network]\nproxy_variables = true"), Vec::<String>::new());
        let secret = "[[network.secret]]\nname = \"K\"\nsource = \"env:V\"\nhosts = [\"a.example\"]";
        assert_eq!(keys(secret), ["network.secret"]);
        assert_eq!(keys("[network]\npublish = [\"0:3000\"]"), ["network.publish"]);
        assert_eq!(keys("[network]\nhost_ports = [5432]"), ["network.host_ports"]);
    }

    #[test]
    fn giving_more_is_named_key_by_key() {
        let policy = "degrade = \"allow\"\n[filesystem]\nread = [\"/root\"]\nworkspace = \"rw\"\n[env]\npass = [\"CI\"]\n[limits]\nmemory = \"64G\"\npids = \"unlimited\"\n";
        let keys = widened(&Policy::parse(policy).unwrap());
        assert_eq!(
            keys,
            [
                "degrade",
                "filesystem.workspace",
                "filesystem.read",
                "env.pass",
                "limits.memory",
                "limits.pids"
            ]
        );
    }

    #[test]
    fn a_tmpfs_widens_beyond_the_size_that_tmp_has_by_default() {
        for (size, keys) in [
            ("", vec![]),
            ("size = \"64M\"", vec![]),
            ("size = \"1G\"", vec![]),
            ("size = \"1025M\"", vec!["tmpfs"]),
            ("size = \"64G\"", vec!["tmpfs"]),
        ] {
            let policy = format!("[[tmpfs]]\ntarget = \"/small\"\n[[tmpfs]]\ntarget = \"/scratch\"\n{size}\n");
            assert_eq!(widened(&Policy::parse(&policy).unwrap()), keys, "{size}");
        }
    }
}
