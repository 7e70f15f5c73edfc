//! What the network refused, told after a run: a program often says no more than that a connection was reset.

use std::collections::BTreeMap;

use offleash_core::limits::LimitName;
use offleash_core::network::{AddressClass, DomainName, Host, NetworkPolicy, classify};
use offleash_core::record::{ConnectionRecord, ConnectionVerdict, LimitEffect, LimitHit, NetworkUse, RequestSeen};
use offleash_core::spec::NetworkSpec;
use offleash_core::text::Text;

/// How many hosts are named before the rest is only counted.
const NAMED: usize = 5;

/// Lines for the user about what was refused or failed, each once; `asked` has the rules that decided.
pub(crate) fn lines(network: &NetworkUse, asked: &NetworkSpec) -> Vec<String> {
    let mut told: BTreeMap<String, u64> = BTreeMap::new();
    for connection in &network.connections {
        if let Some(line) = line(connection, asked.internet) {
            *told.entry(line).or_default() += connection.times;
        }
        for request in &connection.requests {
            if let Some(line) = line_of_request(connection, request) {
                *told.entry(line).or_default() += 1;
            }
        }
    }
    for (name, times) in &network.refused_names {
        *told.entry(line_of_name(name, &asked.policy)).or_default() += times;
    }
    let more = u64::try_from(told.len().saturating_sub(NAMED)).unwrap_or(u64::MAX);
    let more = more + network.more_refused_names;
    let mut lines: Vec<String> = told
        .into_iter()
        .take(NAMED)
        .map(|(line, times)| match times {
            1 => format!("network: {line}"),
            times => format!("network: {line} ({times} times)"),
        })
        .collect();
    if more > 0 {
        lines.push(format!(
            "network: and {more} more; `--json` or `--report FILE` tells all"
        ));
    }
    lines
}

/// Lines for the user about limits that were hit of which programs see only what comes of them: those of the network, that of
/// processes, and those by which single processes were ended.
pub(crate) fn of_limits(hits: &[LimitHit]) -> impl Iterator<Item = String> + '_ {
    let of_processes = hits
        .iter()
        .filter(|hit| hit.limit == LimitName::Pids && hit.effect == LimitEffect::Refused);
    let of_processes = of_processes.map(|hit| {
        let row = hit.limit.row();
        let value = row.show(hit.value);
        format!(
            "processes: no more were started than may be at once: the limit `{}` is {value}; raise it with `{}`",
            row.word, row.flag
        )
    });
    of_processes
        .chain(of_the_ended(hits))
        .chain(of_the_reported(hits))
        .chain(of_the_network(hits))
}

/// What the command itself says: that it is this limit is likely, and not known.
fn of_the_reported(hits: &[LimitHit]) -> impl Iterator<Item = String> + '_ {
    let reported = hits.iter().filter(|hit| hit.effect == LimitEffect::Reported);
    reported.map(|hit| {
        let row = hit.limit.row();
        let what = match hit.limit {
            LimitName::OpenFiles => "it could open no more files",
            LimitName::Pids => "no more processes could be started",
            LimitName::Memory => "it got no more memory",
            LimitName::FileSize | LimitName::Workspace => "a file was too large",
            _ => "it was refused",
        };
        let value = row.show(hit.value);
        // That of whoever started this process holds, too.
        let more = match hit.limit {
            LimitName::OpenFiles => ", and `ulimit -n` where that is lower",
            _ => "",
        };
        format!(
            "the command says that {what}: the limit `{}` is {value}; raise it with `{}`{more}",
            row.word, row.flag
        )
    })
}

fn of_the_ended(hits: &[LimitHit]) -> impl Iterator<Item = String> + '_ {
    let of_one_process = [LimitName::FileSize, LimitName::Workspace, LimitName::CpuTime];
    let ended = hits
        .iter()
        .filter(move |hit| hit.effect == LimitEffect::Ended && of_one_process.contains(&hit.limit));
    ended.map(|hit| {
        let row = hit.limit.row();
        let value = row.show(hit.value);
        format!(
            "a process was ended: it reached the limit `{}`, which is {value}; raise it with `{}`",
            row.word, row.flag
        )
    })
}

fn of_the_network(hits: &[LimitHit]) -> impl Iterator<Item = String> + '_ {
    let of_network = [
        LimitName::NetBytes,
        LimitName::NetRate,
        LimitName::NetConnections,
        LimitName::NetAtOnce,
    ];
    let hits = hits.iter().filter(move |hit| of_network.contains(&hit.limit));
    hits.map(|hit| {
        let row = hit.limit.row();
        let effect = match hit.effect {
            LimitEffect::Killed => "the run was ended",
            LimitEffect::Refused => "connections were refused",
            LimitEffect::Cut => "connections were cut",
            LimitEffect::Slowed => "connections were slowed down",
            LimitEffect::Ended => "processes were ended",
            LimitEffect::Reported => "the command complains of it",
        };
        let value = row.show(hit.value);
        format!(
            "network: {effect}: the limit `{}` is {value}; raise it with `{}`",
            row.word, row.flag
        )
    })
}

fn line_of_request(connection: &ConnectionRecord, request: &RequestSeen) -> Option<String> {
    let reason = Text::from(request.reason.as_deref()?);
    let place = Text::from(format!("{}:{}", connection.host, connection.port).as_str());
    let what = match request.verdict {
        ConnectionVerdict::Allowed | ConnectionVerdict::Cut => return None,
        ConnectionVerdict::Failed => "was not answered",
        ConnectionVerdict::Refused => "was refused",
    };
    Some(format!("a request to `{place}` {what}: {reason}"))
}

fn line_of_name(name: &str, rules: &NetworkPolicy) -> String {
    let shown = Text::from(name);
    let parsed: Result<DomainName, _> = name.parse();
    match parsed.ok().and_then(|name| rules.names_possible(&name).rule) {
        Some(rule) => format!("the name `{shown}` does not exist for it: the rule `{rule}` refuses it"),
        None => format!("the name `{shown}` does not exist for it; `--allow {shown}` would let it be reached"),
    }
}

fn line(connection: &ConnectionRecord, internet: bool) -> Option<String> {
    let ConnectionRecord {
        host,
        port,
        reason,
        rule,
        ..
    } = connection;
    let reason = Text::from(reason.as_deref()?);
    let place = Text::from(format!("{host}:{port}").as_str());
    match connection.verdict {
        ConnectionVerdict::Allowed => None,
        // That connections were cut, and why, is told with the limit.
        ConnectionVerdict::Cut => None,
        ConnectionVerdict::Failed => Some(format!("`{place}` was not reached: {reason}")),
        ConnectionVerdict::Refused if rule.is_none() && Host::parse(host).is_ok_and(|host| host.is_loopback()) => {
            Some(format!(
                "`{place}` was refused: {reason}; `--host-port {port}` gives the sandbox a service of this machine's 127.0.0.1"
            ))
        }
        ConnectionVerdict::Refused if rule.is_none() && wants_a_rule(host, internet) => Some(format!(
            "`{place}` was refused: {reason}; `--allow {place}` would allow it"
        )),
        ConnectionVerdict::Refused => Some(format!("`{place}` was refused: {reason}")),
    }
}

/// Whether a rule would let a host be reached that no rule is about. With `internet`, what is public is refused for other
/// reasons, and so are the addresses that stand for names when they stand for none.
fn wants_a_rule(host: &str, internet: bool) -> bool {
    match Host::parse(host) {
        Ok(Host::Name(_)) => !internet,
        Ok(Host::Address(address)) => match classify(address) {
            AddressClass::Public => !internet,
            AddressClass::Benchmark => address.is_ipv6(),
            _ => true,
        },
        Err(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use offleash_core::network::{NetworkRule, RuleVerdict};

    use super::*;

    fn refused(host: &str, rule: Option<&str>) -> ConnectionRecord {
        ConnectionRecord {
            reason: Some("no rule allows it".to_owned()),
            rule: rule.map(ToOwned::to_owned),
            ..ConnectionRecord::seen(host, 443, ConnectionVerdict::Refused)
        }
    }

    #[test]
    fn requests_that_did_not_pass_are_told() {
        let request = |verdict, reason: &str| RequestSeen {
            method: "GET".to_owned(),
            path: "/".to_owned(),
            status: None,
            verdict,
            reason: Some(reason.to_owned()),
            rule: None,
            secrets: Vec::new(),
            sent_bytes: 0,
            received_bytes: 0,
            duration_ms: 0,
        };
        let network = NetworkUse {
            connections: vec![ConnectionRecord {
                verdict: ConnectionVerdict::Allowed,
                reason: None,
                requests: vec![
                    request(ConnectionVerdict::Refused, "no\u{1b}"),
                    request(ConnectionVerdict::Refused, "no\u{1b}"),
                    request(ConnectionVerdict::Failed, "it is down"),
                ],
                ..refused("a.example", None)
            }],
            ..NetworkUse::default()
        };
        assert_eq!(
            lines(&network, &NetworkSpec::default()),
            [
                "network: a request to `a.example:443` was not answered: it is down",
                "network: a request to `a.example:443` was refused: $'no\\x1b' (2 times)",
            ]
        );
    }

    #[test]
    fn each_refusal_is_told_once_with_what_to_do() {
        let network = NetworkUse {
            connections: vec![
                refused("1.2.3.4", None),
                refused("1.2.3.4", None),
                refused("127.0.0.1", None),
                refused("a.example", Some("network.deny: a.example")),
            ],
            refused_names: BTreeMap::from([("b.example".to_owned(), 2)]),
            ..NetworkUse::default()
        };
        assert_eq!(
            lines(&network, &NetworkSpec::default()),
            [
                "network: `1.2.3.4:443` was refused: no rule allows it; `--allow 1.2.3.4:443` would allow it (2 times)",
                "network: `127.0.0.1:443` was refused: no rule allows it; `--host-port 443` gives the sandbox a service of \
                 this machine's 127.0.0.1",
                "network: `a.example:443` was refused: no rule allows it",
                "network: the name `b.example` does not exist for it; `--allow b.example` would let it be reached (2 times)",
            ]
        );
    }

    #[test]
    fn many_are_counted_and_what_code_chose_is_neutral() {
        let names = (0..20).map(|number| (format!("n{number}\u{1b}]0;x"), 1)).collect();
        let network = NetworkUse {
            refused_names: names,
            more_refused_names: 7,
            ..NetworkUse::default()
        };
        let lines = lines(&network, &NetworkSpec::default());
        assert_eq!(lines.len(), NAMED + 1);
        assert!(lines.iter().all(|line| !line.contains('\u{1b}')), "{lines:?}");
        assert!(lines[NAMED].starts_with("network: and 22 more"), "{}", lines[NAMED]);
    }

    #[test]
    fn nothing_is_said_of_what_was_allowed() {
        let allowed = ConnectionRecord {
            verdict: ConnectionVerdict::Allowed,
            reason: None,
            ..refused("a.example", None)
        };
        let network = NetworkUse {
            connections: vec![allowed],
            ..NetworkUse::default()
        };
        assert_eq!(lines(&network, &NetworkSpec::default()), Vec::<String>::new());
    }

    #[test]
    fn a_name_that_a_rule_denies_is_not_said_to_want_another_rule() {
        let network = NetworkUse {
            refused_names: BTreeMap::from([("x.example.com".to_owned(), 1), ("y.example".to_owned(), 1)]),
            ..NetworkUse::default()
        };
        let deny = NetworkRule::parse(RuleVerdict::Deny, "*.example.com").unwrap();
        let mut denying = NetworkSpec::default();
        denying.policy.rules.push(deny);
        assert_eq!(
            lines(&network, &denying),
            [
                "network: the name `x.example.com` does not exist for it: the rule `network.deny: *.example.com` refuses it",
                "network: the name `y.example` does not exist for it; `--allow y.example` would let it be reached",
            ]
        );
    }

    #[test]
    fn where_the_whole_internet_is_reached_a_name_wants_no_rule_and_an_address_does() {
        let network = NetworkUse {
            connections: ["a.example", "10.0.0.5", "93.184.216.34", "198.18.1.7"]
                .map(|host| refused(host, None))
                .to_vec(),
            ..NetworkUse::default()
        };
        let internet = NetworkSpec {
            internet: true,
            ..NetworkSpec::default()
        };
        assert_eq!(
            lines(&network, &internet),
            [
                "network: `10.0.0.5:443` was refused: no rule allows it; `--allow 10.0.0.5:443` would allow it",
                "network: `198.18.1.7:443` was refused: no rule allows it",
                "network: `93.184.216.34:443` was refused: no rule allows it",
                "network: `a.example:443` was refused: no rule allows it",
            ]
        );
    }
}
