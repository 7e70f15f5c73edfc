use std::path::Path;

use super::*;
use crate::path_rules::{Anchors, PathAccess};

fn access(policy: &Policy, path: &str) -> Option<PathAccess> {
    let anchors = Anchors {
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
            "network": { "allowedDomains": ["example.com"], "allowUnixSockets": ["/run/docker.sock"],
                         "allowAllUnixSockets": true, "httpProxyPort": 3128, "tlsTerminate": {} },
            "filesystem": { "disabled": true, "allowGitConfig": true, "allowWrite": ["../x"] },
            "credentials": { "envVars": [{ "name": "A", "mode": "mask", "injectHosts": ["x.y"] }] }
        }"#,
    )
    .unwrap_err();
    assert_eq!(
        error.to_string(),
        "settings that cannot be honoured: network.allowedDomains, network.allowUnixSockets, \
         network.allowAllUnixSockets, network.httpProxyPort, network.tlsTerminate, credentials.envVars (mode mask), \
         filesystem.disabled, filesystem.allowGitConfig, filesystem.allowWrite (path pattern `../x` contains `..`: \
         write the path that is meant)"
    );
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
