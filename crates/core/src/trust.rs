//! Which parts of a policy only its owner may decide.
//!
//! A policy that is found lying in a workspace may have come with the code that is to be contained (THREATS: "agent
//! config in the repo is the escape"). Such a policy may take away; whatever gives more than the defaults give counts
//! only from a file that the user named.

use std::fmt;

use crate::level::{DegradeMode, LevelChoice};
use crate::limits::{LimitName, Limits};
use crate::monitor::BUILTIN_RULES;
use crate::network::{NetworkRule, RuleVerdict};
use crate::policy::{Policy, WorkspaceChoice};
use crate::spec::{NetworkSpec, TmpfsSpec, WorkspaceMode};
use crate::text::Text;

/// How many entries of a list are named; the rest is counted.
const NAMED: usize = 5;

/// What in `policy` gives more than the defaults do: keys, those that are lists with the entries that do, as in
/// ``network.allow (`example.com`)``.
pub fn widened(policy: &Policy) -> Vec<String> {
    let mut keys = Vec::new();
    let mut note = |widens: bool, key: &str| {
        if widens {
            keys.push(key.to_owned());
        }
    };
    // Whichever it is: one may be weaker than what the owner has without a word.
    note(policy.level.is_some_and(|level| level != LevelChoice::Auto), "level");
    note(policy.degrade == Some(DegradeMode::Allow), "degrade");
    note(
        policy.workspace == Some(WorkspaceChoice::Mode(WorkspaceMode::Rw)),
        "filesystem.workspace",
    );
    note(
        policy.ids.is_some_and(|ids| ids != crate::spec::IdChoice::Single),
        "ids",
    );
    note(policy.allow_ptrace == Some(true), "allow_ptrace");
    // The kernel's driver of a card is much that code can reach.
    note(policy.gpu.is_some(), "gpu");
    // They hold memory when the run is over.
    note(policy.warm.is_some_and(|warm| warm > 0), "warm");
    keys.extend(list("filesystem.read", &policy.paths.read));
    keys.extend(list("filesystem.write", &policy.paths.write));
    keys.extend(list(
        "mount",
        policy.mounts.iter().map(|mount| Text::from(&mount.source)),
    ));
    keys.extend(list("volume", policy.volumes.iter().map(|mount| &mount.volume)));
    keys.extend(list("tmpfs", larger_tmpfs(policy)));
    keys.extend(list("toolchains", policy.toolchains.iter().map(Text::from)));
    keys.extend(list("tool", policy.tools.iter().map(|tool| &tool.name)));
    keys.extend(list("env.pass", &policy.env.pass));
    // Of these the owner is told nothing any more, or less.
    let changes_builtin = |name: &str| BUILTIN_RULES.iter().any(|rule| rule.name == name);
    let monitors = policy.monitors.iter().map(|rule| rule.name.as_str());
    keys.extend(list("monitor", monitors.filter(|name| changes_builtin(name))));
    if let Some(network) = &policy.network {
        widened_network(network, &mut keys);
    }
    keys.extend(raised_limits(policy).map(|limit| format!("limits.{}", limit.name())));
    keys
}

fn widened_network(network: &NetworkSpec, keys: &mut Vec<String>) {
    let methods = &network.requests.methods.rules;
    for (verdict, key) in [(RuleVerdict::Allow, "network.allow"), (RuleVerdict::Ask, "network.ask")] {
        // A rule for requests opens its host with a rule that nobody wrote.
        let is_written = |rule: &&NetworkRule| {
            rule.pattern().ports().is_some() || !methods.iter().any(|method| method.host() == rule.pattern().host())
        };
        let rules = network.policy.rules.iter().filter(|rule| rule.verdict() == verdict);
        keys.extend(list(key, rules.filter(is_written).map(NetworkRule::pattern)));
    }
    keys.extend(list("network.methods", methods));
    for (sets, key) in [(true, "network.set_headers"), (false, "network.remove_headers")] {
        let rules = network
            .requests
            .headers
            .iter()
            .filter(|rule| rule.value().is_some() == sets);
        keys.extend(list(key, rules.map(|rule| format!("{} {}", rule.host(), rule.name()))));
    }
    if network.internet {
        keys.push("network.internet".to_owned());
    }
    // Whoever answers for names says where they lead.
    keys.extend(list("network.dns_servers", &network.dns_servers));
    // Whoever names the proxy sees where everything goes, and is told the credentials for it.
    keys.extend(list("network.upstream_proxy", &network.upstream_proxy));
    keys.extend(list(
        "network.secret",
        network.secrets.iter().map(|secret| &secret.name),
    ));
    keys.extend(list(
        "network.publish",
        network.publish.iter().map(|publish| publish.port),
    ));
    keys.extend(list(
        "network.host_ports",
        network.host_ports.iter().map(|given| given.port),
    ));
}

/// The key with its entries, if there are any.
fn list<T: fmt::Display>(key: &str, entries: impl IntoIterator<Item = T>) -> Option<String> {
    let mut entries = entries.into_iter();
    let named: Vec<String> = entries.by_ref().take(NAMED).map(|entry| format!("`{entry}`")).collect();
    let more = match entries.count() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    (!named.is_empty()).then(|| format!("{key} ({}{more})", named.join(", ")))
}

/// Where a tmpfs may hold more than `/tmp` may unless its owner says so.
fn larger_tmpfs(policy: &Policy) -> impl Iterator<Item = Text> + '_ {
    let most = Limits::default().tmp;
    let is_larger = move |tmpfs: &&TmpfsSpec| most.is_some_and(|most| tmpfs.size.is_some_and(|size| size > most));
    policy
        .tmpfs
        .iter()
        .filter(is_larger)
        .map(|tmpfs| Text::from(&tmpfs.target))
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
    fn a_built_in_rule_of_monitoring_is_the_owners_to_change_and_more_rules_are_not() {
        let own = "[[monitor]]\nname = \"own\"\nwatch = \"sent\"\nthreshold = 1\naction = \"kill\"\n";
        let changed = "[[monitor]]\nname = \"port-scan\"\naction = \"off\"\n";
        let policy = Policy::parse(&format!("{own}{changed}")).unwrap();
        assert_eq!(widened(&policy), ["monitor (`port-scan`)"]);
    }

    #[test]
    fn hosts_that_may_be_reached_are_the_owners_to_name() {
        let keys = |policy: &str| widened(&Policy::parse(policy).unwrap());
        assert_eq!(
            keys("[network]\nallow = [\"example.com\"]"),
            ["network.allow (`example.com`)"]
        );
        assert_eq!(
            keys("[network]\nask = [\"example.com\"]"),
            ["network.ask (`example.com`)"]
        );
        let restrict = "[network]\ndeny = [\"example.com\"]\nask_timeout = \"1h\"";
        assert_eq!(keys(restrict), Vec::<String>::new());
        assert_eq!(
            keys("[network]\nmethods = [\"GET example.com/\"]"),
            ["network.methods (`GET example.com/`)"]
        );
        assert_eq!(
            keys("[network]\nset_headers = [\"example.com X-A: b\"]\nremove_headers = [\"example.com Cookie\"]"),
            [
                "network.set_headers (`example.com x-a`)",
                "network.remove_headers (`example.com cookie`)"
            ]
        );
        assert_eq!(
            keys("[network]\nupstream_proxy = \"http://evil.example:1\""),
            ["network.upstream_proxy (`http://evil.example:1`)"]
        );
        assert_eq!(keys("[network]\ninternet = true"), ["network.internet"]);
        let volume = "[[volume]]\nname = \"v\"\ntarget = \"/v\"\naccess = \"ro\"";
        assert_eq!(keys(volume), ["volume (`v`)"]);
        assert_eq!(keys("warm = 1"), ["warm"]);
        assert_eq!(keys("warm = 0"), Vec::<String>::new());
        assert_eq!(keys("[network]\nproxy_variables = true"), Vec::<String>::new());
        let secret = "[[network.secret]]\nname = \"K\"\nsource = \"env:V\"\nhosts = [\"a.example\"]";
        assert_eq!(keys(secret), ["network.secret (`K`)"]);
        assert_eq!(keys("[network]\npublish = [\"0:3000\"]"), ["network.publish (`3000`)"]);
        assert_eq!(keys("[network]\nhost_ports = [5432]"), ["network.host_ports (`5432`)"]);
    }

    #[test]
    fn which_level_it_is_is_the_owners_to_say_whichever_word_says_so() {
        let keys = |policy: &str| widened(&Policy::parse(policy).unwrap());
        for level in ["simulated", "auto:simulated", "process", "process-landlock"] {
            assert_eq!(keys(&format!("level = \"{level}\"")), ["level"]);
        }
        assert_eq!(
            keys("level = \"auto\"\nmin_level = \"container\""),
            Vec::<String>::new()
        );
    }

    #[test]
    fn of_many_entries_some_are_named_and_the_rest_is_counted() {
        let hosts: Vec<String> = (0..20).map(|number| format!("\"h{number}.example\"")).collect();
        let policy = format!("[network]\nallow = [{}]\ndeny = [\"d.example\"]", hosts.join(", "));
        assert_eq!(
            widened(&Policy::parse(&policy).unwrap()),
            ["network.allow (`h0.example`, `h1.example`, `h2.example`, `h3.example`, `h4.example` and 15 more)"]
        );
        let both = "[network]\nallow = [\"a.example:22\"]\nmethods = [\"GET a.example/\"]";
        assert_eq!(
            widened(&Policy::parse(both).unwrap()),
            ["network.allow (`a.example:22`)", "network.methods (`GET a.example/`)"]
        );
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
                "filesystem.read (`/root`)",
                "env.pass (`CI`)",
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
            ("size = \"1025M\"", vec!["tmpfs (`/scratch`)"]),
            ("size = \"64G\"", vec!["tmpfs (`/scratch`)"]),
        ] {
            let policy = format!("[[tmpfs]]\ntarget = \"/small\"\n[[tmpfs]]\ntarget = \"/scratch\"\n{size}\n");
            assert_eq!(widened(&Policy::parse(&policy).unwrap()), keys, "{size}");
        }
    }
}
