//! `--learn`: a run that is asked about whatever no rule allows, and the smallest policy that would have done for it.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use offleash_core::network::{AddressClass, Host, NetworkPolicy, RequestRules, RuleVerdict, SpokenProtocol, classify};
use offleash_core::policy::Policy;
use offleash_core::record::{ConnectionRecord, ConnectionVerdict, NetworkUse};
use offleash_core::spec::SandboxSpec;
use offleash_core::text::Text;

use crate::args::LearnArgs;
use crate::failure::Failure;
use crate::policy_file::{self, Place, PolicyFile};
use crate::specify;
use crate::terminal;

/// What the first line of a new file says.
const HEAD: &str = "# Written by `offleash run --learn`: what the run reached, and no more.\n\n";
/// What a line about something that was not reached begins with; those of earlier runs are replaced.
const REFUSED: &str = "# refused while learning: ";
/// How many of those lines are written.
const MAX_REFUSED: usize = 100;

/// A run from which a policy is learned.
#[derive(Debug)]
pub(crate) struct Learning {
    file: PolicyFile,
    rules: NetworkPolicy,
    /// Rules for requests that the run has and the file has not.
    requests: RequestRules,
}

impl Learning {
    /// Lets `spec` ask about whatever no rule is about, and looks at the file before anything runs.
    ///
    /// # Errors
    /// When the file cannot be written later, or a pattern is none.
    pub(crate) fn begin(arguments: &LearnArgs, spec: &mut SandboxSpec) -> Result<Option<Self>, Failure> {
        let Some(path) = &arguments.learn else {
            return Ok(None);
        };
        let file = PolicyFile::look(path).map_err(|reason| {
            Failure::new(format!("cannot learn into `{}`: {reason}", Text::from(path)))
                .with_hint("name a policy, or a file that does not exist in a directory that you may write")
        })?;
        let there = Policy::parse(file.text()).ok().and_then(|policy| policy.network);
        if let Err(reason) = policy_file::allow(file.text(), &BTreeSet::from([anything()?])) {
            return Err(
                Failure::new(format!("cannot learn into `{}`: {reason}", Text::from(path)))
                    .with_hint("name another file with `--learn`"),
            );
        }
        let requests = match there {
            Some(there) if there.requests == spec.network.requests => RequestRules::default(),
            _ => spec.network.requests.clone(),
        };
        for text in &arguments.learn_allow {
            let rule = specify::network_rule("--learn-allow", RuleVerdict::Allow, text)?;
            spec.network.policy.rules.push(rule);
        }
        spec.network.asks.about_the_unknown = true;
        Ok(Some(Self {
            file,
            rules: spec.network.policy.clone(),
            requests,
        }))
    }

    /// Adds what was reached to the file; answers what is to be told, the difference included.
    ///
    /// # Errors
    /// When the file cannot be written, or is not as it was before the run.
    pub(crate) fn finish(mut self, used: &NetworkUse) -> Result<Vec<u8>, Failure> {
        let name = Text::from(self.file.path()).to_string();
        let failed = |reason: String| {
            Failure::new(format!("nothing was learned into `{name}`: {reason}"))
                .with_hint("name another file with `--learn`; the record (`--json`, `--report`) has all connections")
        };
        let (places, not_learned): (BTreeSet<Place>, BTreeSet<Place>) = used
            .connections
            .iter()
            .flat_map(|seen| places(&self.rules, seen))
            .partition(|place| !self.requests.concern(&place.host));
        let before = self.file.text().to_owned();
        let edited = policy_file::allow(&without_refusals(&before), &places).map_err(failed)?;
        let head = if before.is_empty() { HEAD } else { "" };
        let text = format!("{head}{}{}", edited.text, refusals(used));
        let mut told = Vec::new();
        for denied in edited.denied {
            note(
                &mut told,
                &format!("`{name}` denies {denied}, which was reached; no rule was added"),
            );
        }
        for Place { host, port, .. } in not_learned {
            note(
                &mut told,
                &format!(
                    "`{host}:{port}` was reached under rules for requests, which are not learned; write them to `{name}` \
                     (`network.methods`, `set_headers`, `remove_headers`)"
                ),
            );
        }
        if used.more_connections > 0 {
            note(
                &mut told,
                "there were more connections than the record tells; what only they reached is not learned",
            );
        }
        if text == before {
            note(
                &mut told,
                &format!("`{name}` allows all that was reached; nothing was written"),
            );
            return Ok(told);
        }
        told.extend(difference(&before, &text, &name));
        self.file.replace(text).map_err(failed)?;
        note(&mut told, &format!("written to `{name}`; `--policy {name}` uses it"));
        Ok(told)
    }
}

fn note(told: &mut Vec<u8>, line: &str) {
    told.extend_from_slice(format!("offleash: {line}\n").as_bytes());
}

/// Stands for whatever may be learned, to see whether the file takes it.
fn anything() -> Result<Place, Failure> {
    let host = Host::parse("host.example").map_err(|error| Failure::new(error.to_string()))?;
    Ok(Place {
        host,
        port: 443,
        protocol: SpokenProtocol::usual(443),
    })
}

/// What a connection needs to be allowed; nothing if it was not made, or made to a service of the host that was given.
fn places(rules: &NetworkPolicy, seen: &ConnectionRecord) -> Vec<Place> {
    let is_given = seen
        .rule
        .as_ref()
        .is_some_and(|rule| rule.starts_with("network.host_ports"));
    if seen.verdict != ConnectionVerdict::Allowed || is_given {
        return Vec::new();
    }
    let named = Host::parse(&seen.host).ok();
    // A name that leads to what is not public needs a rule for the address as well.
    let address = seen
        .address
        .filter(|address| classify(*address) != AddressClass::Public);
    let hosts: BTreeSet<Host> = named.into_iter().chain(address.map(Host::from)).collect();
    let place = |host: Host| {
        let decision = rules.decide(&host, seen.port);
        let protocol = decision
            .rule
            .map_or(SpokenProtocol::usual(seen.port), |_| decision.protocol);
        Place {
            host,
            port: seen.port,
            protocol,
        }
    };
    hosts.into_iter().map(place).collect()
}

/// The text without what an earlier run was refused.
fn without_refusals(text: &str) -> String {
    let lines = text.split_inclusive('\n');
    lines.filter(|line| !line.starts_with(REFUSED)).collect()
}

/// Lines about what was not reached, each once.
fn refusals(used: &NetworkUse) -> String {
    let refused = used
        .connections
        .iter()
        .filter(|seen| seen.verdict == ConnectionVerdict::Refused);
    let mut lines: BTreeSet<String> = refused
        .map(|seen| {
            let place = Text::from(format!("{}:{}", seen.host, seen.port));
            let reason = Text::from(seen.reason.as_deref().unwrap_or_default());
            format!("{place}: {reason}")
        })
        .collect();
    lines.extend(
        used.refused_names
            .keys()
            .map(|name| Text::from(name.as_str()).to_string()),
    );
    let more = lines.len().saturating_sub(MAX_REFUSED);
    let mut text = String::new();
    for line in lines.into_iter().take(MAX_REFUSED) {
        // Writing to a string cannot fail.
        let _written = writeln!(text, "{REFUSED}{line}");
    }
    if more > 0 {
        let _written = writeln!(text, "{REFUSED}and {more} more");
    }
    text
}

/// What is written, as a patch, in which nothing hides.
fn difference(before: &str, after: &str, name: &str) -> Vec<u8> {
    let difference = similar::TextDiff::from_lines(before, after);
    let patch = difference
        .unified_diff()
        .context_radius(3)
        .header(name, name)
        .to_string();
    terminal::literal(patch.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn seen(host: &str, port: u16, verdict: ConnectionVerdict) -> ConnectionRecord {
        ConnectionRecord {
            reason: (verdict != ConnectionVerdict::Allowed).then(|| "no rule allows it".to_owned()),
            ..ConnectionRecord::seen(host, port, verdict)
        }
    }

    fn learned(path: &std::path::Path, connections: Vec<ConnectionRecord>, names: &[&str]) -> Result<String, Failure> {
        let arguments = LearnArgs {
            learn: Some(path.to_owned()),
            learn_allow: vec!["*.example.com:443/tcp".into()],
        };
        let mut spec = SandboxSpec::default();
        let methods = "GET judged.example/*".parse().unwrap();
        spec.network.requests.methods.rules.push(methods);
        let learning = Learning::begin(&arguments, &mut spec)?.unwrap();
        assert!(spec.network.reaches_out() && spec.network.asks.about_the_unknown);
        let used = NetworkUse {
            connections,
            refused_names: names.iter().map(|name| ((*name).to_owned(), 1)).collect(),
            ..NetworkUse::default()
        };
        learning.finish(&used).map(|told| String::from_utf8(told).unwrap())
    }

    #[test]
    fn the_smallest_policy_is_what_was_reached() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("learned.toml");
        let connections = vec![
            seen("b.example", 80, ConnectionVerdict::Allowed),
            seen("b.example", 80, ConnectionVerdict::Allowed),
            seen("a.example.com", 443, ConnectionVerdict::Allowed),
            seen("never.example", 443, ConnectionVerdict::Refused),
            seen("gone.example", 443, ConnectionVerdict::Failed),
        ];
        let told = learned(&path, connections, &["odd\u{1b}]0;\n[network]"]).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(
            text,
            format!(
                "{HEAD}[network]\nallow = [\"a.example.com:443/tcp\", \"b.example:80\"]\n\
                 {REFUSED}$'odd\\x1b]0;\\n[network]'\n{REFUSED}never.example:443: no rule allows it\n"
            )
        );
        assert!(
            told.contains("+allow = [\"a.example.com:443/tcp\", \"b.example:80\"]\n"),
            "{told}"
        );
        assert!(!told.contains('\u{1b}'), "{told:?}");
        // Again: what was refused is told anew, and all else is there.
        let told = learned(&path, vec![seen("b.example", 80, ConnectionVerdict::Allowed)], &[]).unwrap();
        let again = fs::read_to_string(&path).unwrap();
        assert_eq!(again, without_refusals(&text));
        assert!(told.contains("-# refused while learning: never"), "{told}");
        let told = learned(&path, vec![seen("b.example", 80, ConnectionVerdict::Allowed)], &[]).unwrap();
        assert!(told.contains("nothing was written"), "{told}");
    }

    #[test]
    fn no_more_is_learned_than_the_run_was_allowed_and_nothing_less() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("learned.toml");
        let given = ConnectionRecord {
            rule: Some("network.host_ports: 8080".to_owned()),
            ..seen("127.0.0.1", 8080, ConnectionVerdict::Allowed)
        };
        let inside = ConnectionRecord {
            address: Some("10.0.0.5".parse().unwrap()),
            ..seen("in.example", 443, ConnectionVerdict::Allowed)
        };
        let outside = ConnectionRecord {
            address: Some("93.184.216.34".parse().unwrap()),
            ..seen("out.example", 443, ConnectionVerdict::Allowed)
        };
        let judged = seen("judged.example", 443, ConnectionVerdict::Allowed);
        let told = learned(&path, vec![given, inside, outside, judged], &[]).unwrap();
        assert!(
            told.contains("`judged.example:443` was reached under rules for requests"),
            "{told}"
        );
        assert_eq!(
            fs::read_to_string(&path).unwrap(),
            format!("{HEAD}[network]\nallow = [\"in.example:443\", \"out.example:443\", \"10.0.0.5:443\"]\n")
        );
    }

    #[test]
    fn a_policy_that_is_there_keeps_what_it_says() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("policy.toml");
        let before = "# mine\n[limits]\npids = 7 # few\n\n[network]\ndeny = [\"b.example\"]\nallow = [\"x.example\"]\n";
        fs::write(&path, before).unwrap();
        let connections = vec![
            seen("b.example", 80, ConnectionVerdict::Allowed),
            seen("c.example", 80, ConnectionVerdict::Allowed),
        ];
        let told = learned(&path, connections, &[]).unwrap();
        assert!(told.contains("denies `b.example:80`"), "{told}");
        let expected = before.replace("[\"x.example\"]", "[\"x.example\", \"c.example:80\"]");
        assert_eq!(fs::read_to_string(&path).unwrap(), expected);
    }

    #[test]
    fn a_file_that_cannot_be_learned_into_is_refused_before_the_run() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("policy.toml");
        fs::write(&path, "nonsense = 1\n").unwrap();
        for bad in [
            path.as_path(),
            directory.path(),
            &directory.path().join("none/policy.toml"),
        ] {
            let shown = learned(bad, Vec::new(), &[]).unwrap_err().to_string();
            assert!(
                shown.contains("cannot learn into") && shown.contains("hint:"),
                "{shown}"
            );
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "nonsense = 1\n");
        fs::write(&path, "network = \"none\"\n").unwrap();
        let shown = learned(&path, Vec::new(), &[]).unwrap_err().to_string();
        assert!(shown.contains("cannot learn into"), "{shown}");
    }
}
