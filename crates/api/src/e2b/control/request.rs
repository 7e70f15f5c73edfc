//! From E2B's requests to the daemon's: what is asked for, and what cannot be had.

use std::collections::{BTreeMap, BTreeSet};

use offleash_daemon::{
    CreateRequest, EgressProxy, LifecycleRequest, ListFilter, LogLevel, LogsRequest, NetworkSettings, OnTimeout,
    PauseMode, VisibleState, VolumeMountRequest,
};
use serde_json::Value;

use super::shapes::{NetworkBody, NetworkRule, NewEgressProxy, NewSandbox, TextMap, VolumeMount};
use crate::control::listing::list_filter;
use crate::control::tools::tools;
use crate::http::answer::ApiRefusal;
use crate::http::destination::ENVD_PORT;
use crate::http::query;
use crate::http::time;

/// How long a sandbox lives when its creator does not say: as E2B has it, seconds.
const TIMEOUT: u64 = 300;
/// And when its creator asks by the first version of the call.
const FIRST_TIMEOUT: u64 = 15;

/// Which version of the call was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallVersion {
    First,
    Second,
}

/// The sandbox that a request asks for.
pub(super) fn create(
    new: NewSandbox,
    version: CallVersion,
    idempotency_key: Option<String>,
) -> Result<CreateRequest, ApiRefusal> {
    refuse_present("`iam` is", new.iam.as_ref())?;
    let pauses = new.auto_pause == Some(true);
    let mut settings = network(new.network.unwrap_or_default())?;
    settings.internet = new.internet.or(settings.internet);
    let usual = match version {
        CallVersion::First => FIRST_TIMEOUT,
        CallVersion::Second => TIMEOUT,
    };
    Ok(CreateRequest {
        template: new.template,
        timeout_seconds: Some(new.timeout.unwrap_or(usual)),
        metadata: new.metadata.unwrap_or_default(),
        env: new.env_vars.unwrap_or_default(),
        secure: new.secure.unwrap_or(true),
        on_timeout: if pauses { OnTimeout::Pause } else { OnTimeout::Kill },
        auto_resume: new.auto_resume.is_some_and(|resume| resume.enabled),
        lifecycle: LifecycleRequest {
            timeout_mode: PauseMode::of_memory(new.auto_pause_memory.unwrap_or(true)),
            ..LifecycleRequest::default()
        },
        network: settings,
        volumes: new.volume_mounts.unwrap_or_default().into_iter().map(mount).collect(),
        tools: tools(new.tools),
        idempotency_key,
        ..CreateRequest::default()
    })
}

fn mount(mount: VolumeMount) -> VolumeMountRequest {
    VolumeMountRequest {
        volume: mount.name,
        path: mount.path,
        read_only: false,
    }
}

/// What a sandbox may reach; every list that is absent is empty.
pub(super) fn network(network: NetworkBody) -> Result<NetworkSettings, ApiRefusal> {
    Ok(NetworkSettings {
        internet: network.internet,
        allow_out: network.allow_out.unwrap_or_default(),
        deny_out: network.deny_out.unwrap_or_default(),
        allow_public_traffic: network.allow_public_traffic,
        mask_request_host: network.mask_request_host.filter(|mask| !mask.is_empty()),
        headers: headers(network.rules.unwrap_or_default())?,
        dns_servers: network.dns_servers.unwrap_or_default(),
        egress_proxy: network.egress_proxy.map(egress_proxy).transpose()?,
        https_ports: https_ports(network.https_ports.unwrap_or_default())?,
        ..NetworkSettings::default()
    })
}

fn egress_proxy(asked: NewEgressProxy) -> Result<EgressProxy, ApiRefusal> {
    if asked.tls.is_some_and(|tls| tls.enabled) {
        return Err(ApiRefusal::unsupported("`network.egressProxy.tls` is"));
    }
    Ok(EgressProxy {
        address: asked.address,
        username: asked.username,
        password: asked.password,
    })
}

/// The ports where programs speak TLS; the services of a sandbox do not.
fn https_ports(ports: Vec<u16>) -> Result<BTreeSet<u16>, ApiRefusal> {
    match ports.iter().find(|port| [0, ENVD_PORT].contains(port)) {
        None => Ok(ports.into_iter().collect()),
        Some(port) => Err(ApiRefusal::bad_request(format!(
            "network.httpsPorts: {port} cannot be one"
        ))),
    }
}

/// What is set in requests to each host.
fn headers(rules: BTreeMap<String, Vec<NetworkRule>>) -> Result<BTreeMap<String, TextMap>, ApiRefusal> {
    let mut all = BTreeMap::new();
    for (host, rules) in rules {
        let mut transforms = rules.into_iter().filter_map(|rule| rule.transform);
        if let Some(transform) = transforms.next() {
            all.insert(host.clone(), transform.headers);
        }
        if transforms.next().is_some() {
            let host = host.escape_debug();
            return Err(ApiRefusal::bad_request(format!(
                "network.rules: `{host}` may have one transform"
            )));
        }
    }
    Ok(all)
}

fn refuse_present(what: &str, value: Option<&Value>) -> Result<(), ApiRefusal> {
    match value {
        None | Some(Value::Null) => Ok(()),
        Some(Value::Object(fields)) if fields.is_empty() => Ok(()),
        Some(_) => Err(ApiRefusal::unsupported(what)),
    }
}

/// How many lines are answered with at most.
const MAX_LINES: u32 = 1000;
/// The longest text that lines are searched for.
const MAX_SEARCH_LENGTH: usize = 256;

/// Which lines about a sandbox are wanted. Times are milliseconds since the beginning of 1970.
pub(super) fn logs(query: Option<&str>, version: CallVersion) -> Result<LogsRequest, ApiRefusal> {
    let pairs = query::pairs(query);
    let value = |name: &str| query::value(&pairs, name).filter(|value| !value.is_empty());
    let limit = query::number(&pairs, "limit", 0..=MAX_LINES)?.unwrap_or(MAX_LINES);
    let from = |name| Ok::<_, ApiRefusal>(query::number(&pairs, name, 0..=time::LATEST * 1000)?.map(time::of_unix_ms));
    if version == CallVersion::First {
        return Ok(LogsRequest {
            from: from("start")?,
            limit,
            ..LogsRequest::default()
        });
    }
    let descending = match value("direction") {
        None | Some("forward") => false,
        Some("backward") => true,
        Some(_) => return Err(ApiRefusal::bad_request("direction: must be `forward` or `backward`")),
    };
    let level = value("level").map(str::parse).transpose();
    let level = level.map_err(|error| ApiRefusal::bad_request(format!("level: {error}")))?;
    let containing = value("search").unwrap_or_default().to_owned();
    if containing.len() > MAX_SEARCH_LENGTH {
        let why = format!("search: must be at most {MAX_SEARCH_LENGTH} bytes");
        return Err(ApiRefusal::bad_request(why));
    }
    Ok(LogsRequest {
        from: from("cursor")?,
        descending,
        level: level.unwrap_or(LogLevel::Debug),
        containing,
        limit,
    })
}

/// Which sandboxes a list is to show: by the first version of the call, those that run.
pub(super) fn filter(query: Option<&str>, version: CallVersion) -> Result<ListFilter, ApiRefusal> {
    let mut filter = list_filter(query)?;
    if version == CallVersion::First {
        filter.states.insert(0, VisibleState::Running);
    }
    Ok(filter)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use http::StatusCode;

    use super::*;

    fn asked(text: &str, version: CallVersion) -> Result<CreateRequest, ApiRefusal> {
        create(serde_json::from_str(text).unwrap(), version, None)
    }

    #[test]
    fn what_is_not_said_is_as_e2b_has_it() {
        let request = asked(r#"{"templateID":"base"}"#, CallVersion::Second).unwrap();
        let expected = CreateRequest {
            timeout_seconds: Some(300),
            ..CreateRequest::default()
        };
        assert_eq!(request, expected);
        let request = asked(r#"{"templateID":"base"}"#, CallVersion::First).unwrap();
        assert_eq!(request.timeout_seconds, Some(15));
    }

    #[test]
    fn every_field_finds_its_place() {
        let text = r#"{"templateID":"base","timeout":7,"autoPause":true,"autoPauseMemory":true,"autoResume":{"enabled":true},
            "allow_internet_access":false,"secure":false,"metadata":{"a":"b"},"envVars":{"C":"d"},"mcp":null,"iam":{},
            "volumeMounts":[{"name":"v","path":"/v"}],"tools":{"grants":["t calls 1"]},"unknown":[1],"network":{"allowPublicTraffic":false,"allowOut":["a.test"],
            "denyOut":["0.0.0.0/0"],"maskRequestHost":"x:${PORT}","dnsServers":["9.9.9.9"],
            "egressProxy":{"address":"p.test:1080","username":"u","password":"w","tls":{"enabled":false}},"httpsPorts":[8443,443],"rules":{"a.test":[{"transform":{"headers":{"X":"y"}}}]}}}"#;
        let texts = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), value.to_owned())]);
        let expected = CreateRequest {
            timeout_seconds: Some(7),
            metadata: texts("a", "b"),
            env: texts("C", "d"),
            secure: false,
            on_timeout: OnTimeout::Pause,
            auto_resume: true,
            network: NetworkSettings {
                internet: Some(false),
                allow_out: vec!["a.test".to_owned()],
                deny_out: vec!["0.0.0.0/0".to_owned()],
                allow_public_traffic: Some(false),
                mask_request_host: Some("x:${PORT}".to_owned()),
                headers: BTreeMap::from([("a.test".to_owned(), texts("X", "y"))]),
                dns_servers: vec!["9.9.9.9".to_owned()],
                egress_proxy: Some(EgressProxy {
                    address: "p.test:1080".to_owned(),
                    username: Some("u".to_owned()),
                    password: Some("w".to_owned()),
                }),
                https_ports: BTreeSet::from([443, 8443]),
                ..NetworkSettings::default()
            },
            tools: offleash_daemon::ToolsRequest {
                grants: Some(vec!["t calls 1".to_owned()]),
                answered: Vec::new(),
            },
            volumes: vec![VolumeMountRequest {
                volume: "v".to_owned(),
                path: "/v".to_owned(),
                read_only: false,
            }],
            ..CreateRequest::default()
        };
        assert_eq!(asked(text, CallVersion::Second).unwrap(), expected);
    }

    #[test]
    fn a_pause_may_be_asked_for_that_keeps_files_alone() {
        let mode = |fields: &str| {
            let text = format!(r#"{{"templateID":"base","autoPause":true{fields}}}"#);
            asked(&text, CallVersion::Second).unwrap().lifecycle.timeout_mode
        };
        assert_eq!(mode(r#","autoPauseMemory":false"#), PauseMode::Filesystem);
        assert_eq!(mode(r#","autoPauseMemory":true"#), PauseMode::Full);
        assert_eq!(mode(""), PauseMode::Full);
    }

    #[test]
    fn what_is_not_there_is_not_pretended() {
        for field in [
            r#""iam":{"tokens":{"a":{}}}"#,
            r#""network":{"egressProxy":{"address":"a:1","tls":{"enabled":true}}}"#,
        ] {
            let refusal = asked(&format!(r#"{{"templateID":"base",{field}}}"#), CallVersion::Second).unwrap_err();
            assert_eq!(refusal.status, StatusCode::NOT_IMPLEMENTED, "{field}");
        }
        for ports in ["[0]", "[443,49983]"] {
            let text = format!(r#"{{"templateID":"base","network":{{"httpsPorts":{ports}}}}}"#);
            assert_eq!(
                asked(&text, CallVersion::Second).unwrap_err().status,
                StatusCode::BAD_REQUEST
            );
        }
        let two = r#"{"templateID":"base","network":{"rules":{"a.test":[{"transform":{}},{"transform":{}}]}}}"#;
        assert_eq!(
            asked(two, CallVersion::Second).unwrap_err().status,
            StatusCode::BAD_REQUEST
        );
    }

    #[test]
    fn lists_are_filtered() {
        let query = "metadata=a%3D1%252526%26b%3Dx&state=running,paused&order=asc&limit=3&nextToken=t&template=base\
            &startedAfter=2023-11-14T22:13:20Z";
        let filter = filter(Some(query), CallVersion::Second).unwrap();
        let expected = ListFilter {
            metadata: BTreeMap::from([("a".to_owned(), "1&".to_owned()), ("b".to_owned(), "x".to_owned())]),
            states: vec![VisibleState::Running, VisibleState::Paused],
            template: Some("base".to_owned()),
            started_after: Some(UNIX_EPOCH + Duration::from_secs(1_700_000_000)),
            ascending: true,
            limit: 3,
            after: Some("t".to_owned()),
        };
        assert_eq!(filter, expected);
    }

    #[test]
    fn lines_are_asked_for_in_two_ways() {
        let first = logs(Some("start=1700000000120&limit=3&level=error"), CallVersion::First).unwrap();
        let expected = LogsRequest {
            from: Some(UNIX_EPOCH + Duration::from_millis(1_700_000_000_120)),
            limit: 3,
            ..LogsRequest::default()
        };
        assert_eq!(first, expected);
        let second = "cursor=2&limit=3&direction=backward&level=warn&search=a%20b";
        let expected = LogsRequest {
            from: Some(UNIX_EPOCH + Duration::from_millis(2)),
            descending: true,
            level: LogLevel::Warn,
            containing: "a b".to_owned(),
            limit: 3,
        };
        assert_eq!(logs(Some(second), CallVersion::Second).unwrap(), expected);
        assert_eq!(logs(None, CallVersion::Second).unwrap(), LogsRequest::default());
        let long = format!("search={}", "x".repeat(257));
        for query in [
            "limit=1001",
            "cursor=-1",
            "cursor=x",
            "direction=up",
            "level=loud",
            &long,
        ] {
            assert!(logs(Some(query), CallVersion::Second).is_err(), "{query}");
        }
    }

    #[test]
    fn filters_that_mean_nothing_are_refused() {
        for query in [
            "limit=0",
            "limit=101",
            "limit=-1",
            "limit=x",
            "order=up",
            "state=dead",
            "startedAfter=now",
        ] {
            assert!(filter(Some(query), CallVersion::Second).is_err(), "{query}");
        }
    }
}
