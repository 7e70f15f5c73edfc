use std::path::Path;

use super::*;
use crate::path_rules::{PathAccess, PatternAnchors};

fn access(policy: &Policy, path: &str) -> Option<PathAccess> {
    let anchors = PatternAnchors {
        workspace: Some(Path::new("/home/u/w")),
        home: Some(Path::new("/home/u")),
    };
    policy
        .paths
        .decide(Path::new(path), anchors)
        .map(|verdict| verdict.access)
}

#[test]
fn file_rules_keep_their_meaning() {
    let policy = parse(
        r#"{
            "network": { "allowedDomains": [], "deniedDomains": ["x.example"], "allowLocalBinding": true },
            "filesystem": {
                "denyRead": ["~/.ssh", "/home", "**/.env", "/srv/both"],
                "allowRead": [".", "/srv/both"],
                "allowWrite": [".", "src/", "/tmp", "/srv/out"],
                "denyWrite": ["config/production.json", "/srv/out/keep"]
            },
            "credentials": { "files": [{ "path": "~/.netrc", "mode": "deny" }],
                             "envVars": [{ "name": "A_TOKEN", "mode": "deny" }] },
            "git": { "safeDirectories": ["/home/u/w"] },
            "ignoreViolations": { "*": ["/usr/bin"] }, "mandatoryDenySearchDepth": 3, "allowPty": true
        }"#,
    )
    .unwrap();
    assert_eq!(policy.workspace, Some(WorkspaceChoice::Mode(WorkspaceMode::Rw)));
    for (path, expected) in [
        ("/home/u/.ssh/id", Some(PathAccess::Denied)),
        ("/home/other", Some(PathAccess::Denied)),
        ("/home/u/w/a", Some(PathAccess::Read)),
        ("/home/u/w/a/.env", Some(PathAccess::Denied)),
        ("/home/u/w/src/x", Some(PathAccess::Write)),
        ("/home/u/w/config/production.json", Some(PathAccess::Protected)),
        ("/home/u/.netrc", Some(PathAccess::Denied)),
        ("/srv/both", Some(PathAccess::Read)),
        ("/srv/out/x", Some(PathAccess::Write)),
        ("/srv/out/keep", Some(PathAccess::Protected)),
        ("/tmp/x", None),
    ] {
        assert_eq!(access(&policy, path), expected, "{path}");
    }
    assert_eq!(policy.env.set[2], ("GIT_CONFIG_VALUE_0".into(), "/home/u/w".into()));
}

#[test]
fn nothing_is_written_where_nothing_is_allowed() {
    let policy = parse(r#"{"filesystem":{"denyRead":[],"allowWrite":[],"denyWrite":[]}}"#).unwrap();
    assert_eq!(policy.workspace, Some(WorkspaceChoice::Mode(WorkspaceMode::Ro)));
    assert!(policy.paths.write.is_empty());
}

#[test]
fn everything_that_cannot_be_honoured_is_named_at_once() {
    let error = parse(
        r#"{
            "network": { "allowedDomains": ["*.com", "localhost:3000", "a.example/x"], "allowUnixSockets": ["/run/docker.sock"],
                         "allowAllUnixSockets": true, "httpProxyPort": 3128, "tlsTerminate": {} },
            "filesystem": { "disabled": true, "allowGitConfig": true, "allowWrite": ["../x"] },
            "credentials": { "envVars": [{ "name": "A", "mode": "mask", "injectHosts": ["x.y"] }] }
        }"#,
    )
    .unwrap_err();
    assert_eq!(
        error.to_string(),
        "settings that cannot be honoured: network.allowUnixSockets, network.allowAllUnixSockets, \
         network.httpProxyPort, network.tlsTerminate, network.allowedDomains (`a.example/x` is no domain), \
         network.allowedDomains (network rule `*.com:*` would mean all that anybody registers below `com`), \
         network.allowedDomains (the rule `network.allow: localhost:3000` is of no use: inside, `localhost` is the \
         sandbox itself), credentials.envVars (mode mask), \
         filesystem.disabled, filesystem.allowGitConfig, filesystem.allowWrite (path pattern `../x` contains `..`: \
         write the path that is meant)"
    );
}

#[test]
fn domains_are_reached_as_there() {
    let policy = parse(
        r#"{ "network": {
            "allowedDomains": ["a.example", "*.b.example", "c.example:8443", "x.d.example", "93.184.216.34", "[2001:db8::1]:22"],
            "deniedDomains": ["no.b.example", "*.d.example", "c.example:22", "*:25", "10.0.0.1"],
            "deniedResolvedAddresses": ["203.0.113.0/24", "fc00::/7"], "strictAllowlist": true } }"#,
    )
    .unwrap();
    let network = policy.network.unwrap();
    assert_eq!(network.check(false), Ok(()));
    for (host, port, allowed) in [
        ("a.example", 443, true),
        ("a.example", 22, true),
        ("a.example", 25, false),
        ("w.a.example", 443, false),
        ("w.b.example", 443, true),
        ("b.example", 443, false),
        ("no.b.example", 443, false),
        ("c.example", 8443, true),
        ("c.example", 443, false),
        // The less specific entry denies, as it does there.
        ("x.d.example", 443, false),
        ("93.184.216.34", 7, true),
        ("93.184.216.34", 25, false),
        ("[2001:db8::1]", 22, true),
        ("other.example", 443, false),
    ] {
        let decision = network.policy.decide(&host.parse().unwrap(), port);
        assert_eq!(
            decision.verdict == crate::network::RuleVerdict::Allow,
            allowed,
            "{host}:{port}"
        );
    }
    let name = "a.example".parse().unwrap();
    for (address, port, dialled) in [
        ("93.184.216.35", 443, true),
        ("203.0.113.7", 443, false),
        ("fc00::1", 443, false),
    ] {
        let checked = network
            .policy
            .may_dial(Some(&name), address.parse().unwrap(), port, &[]);
        assert_eq!(checked.is_ok(), dialled, "{address}");
    }
    let none = parse(r#"{"network":{"allowedDomains":["a.example"],"deniedDomains":["*"]}}"#).unwrap();
    let decision = none.network.unwrap();
    let decision = decision.policy.decide(&"a.example".parse().unwrap(), 443).verdict;
    assert_eq!(decision, crate::network::RuleVerdict::Deny);
}

#[test]
fn unknown_keys_and_wrong_types_are_refused_with_their_place() {
    for (text, expected) in [
        ("{\"filesytem\": {}}", "line 1, column 12: unknown field `filesytem`"),
        (
            "{\"network\": {\"allowDomains\": []}}",
            "line 1, column 27: unknown field `allowDomains`",
        ),
        (
            "{\n\"filesystem\": {\"denyRead\": \"x\"}}",
            "line 2, column 30: invalid type: string",
        ),
        ("{", "line 1, column 1: EOF"),
        ("[]", "line 1, column "),
    ] {
        let message = parse(text).unwrap_err().to_string();
        assert!(
            message.starts_with(expected),
            "{text}\n got: {message}\nwant: {expected}"
        );
    }
}
