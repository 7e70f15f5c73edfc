use super::*;

#[test]
fn denied_paths_are_hidden_however_they_are_written() {
    let (_directory, host) = host_with_home();
    let work = host.cwd.join("work");
    for file in ["a/.env", ".env", "secrets/key", "keep/.env", "x/private/y"] {
        write(&work.join(file), "");
    }
    write(&host.cwd.join("elsewhere/token"), "");
    symlink(host.cwd.join("work/secrets/key"), work.join("link.pem")).unwrap();
    symlink(host.cwd.join("elsewhere/token"), work.join("out.pem")).unwrap();
    let policy = "[filesystem]\ndeny = [\"**/.env\", \"secrets/key\", \"*.pem\", \"x/**\", \"/usr/share\", \"/bin/true\"]\n\
                  read = [\"keep/.env\"]";
    let (plan, _) = plan_of(&spec(&host, policy), &host, "sh").unwrap();
    for hidden in ["a/.env", ".env", "secrets/key", "x"] {
        assert!(is_hidden(&plan, &work.join(hidden)), "{hidden}");
    }
    assert!(is_hidden(&plan, Path::new("/usr/share")));
    assert!(
        !is_hidden(&plan, &work.join("keep/.env")),
        "a more specific rule allows it"
    );
    assert!(
        plan.entries.iter().all(|entry| entry.target != work.join("out.pem")),
        "links are not mounted upon"
    );
    let whole = spec(&host, "[filesystem]\ndeny = [\".\"]");
    assert!(matches!(
        plan_of(&whole, &host, "sh"),
        Err(PlanError::WorkspaceDenied { .. })
    ));
}

#[test]
fn no_grant_uncovers_what_is_hidden_and_no_deny_swallows_a_deeper_grant() {
    let (_directory, host) = host_with_home();
    write(&host.cwd.join("data/secret/deep/open/x"), "");
    let policy = format!(
        "[filesystem]\nread = [\"{0}/data\", \"{0}/data/secret/deep/open\"]\ndeny = [\"{0}/data/secret\", \"{0}\"]",
        host.cwd.display()
    );
    let (plan, _) = plan_of(&spec(&host, &policy), &host, "sh").unwrap();
    let secret = host.cwd.join("data/secret");
    let position = |path: &Path| plan.entries.iter().position(|entry| entry.target == path).unwrap();
    assert!(
        matches!(at(&plan, &secret).unwrap().node, PlanNode::Tmpfs { mode: 0o555, .. }),
        "an empty cover"
    );
    assert!(position(&host.cwd.join("data")) < position(&secret));
    assert!(position(&secret) < position(&secret.join("deep/open")));
    assert!(
        at(&plan, &host.cwd.join("work")).is_some(),
        "the workspace is deeper than the deny above it"
    );
}

#[test]
fn rules_grant_host_paths_and_missing_ones_grant_nothing() {
    let (_directory, host) = host_with_home();
    write(&host.cwd.join("home/data/x"), "");
    write(&host.cwd.join("out/keep"), "");
    write(&host.cwd.join("work/src/a"), "");
    let policy = format!(
        "[filesystem]\nread = [\"~/data\", \"src\", \"~/none\", \"/usr/share\"]\nwrite = [\"{0}/out\"]\nprotect = [\"{0}/out/keep\"]",
        host.cwd.display()
    );
    let (plan, _) = plan_of(&spec(&host, &policy), &host, "sh").unwrap();
    for (path, access) in [
        ("home/data", MountAccess::Ro),
        ("work/src", MountAccess::Ro),
        ("out", MountAccess::Rw),
        ("out/keep", MountAccess::Ro),
    ] {
        let path = host.cwd.join(path);
        assert_eq!(
            at(&plan, &path).map(|entry| &entry.node),
            Some(&PlanNode::Bind {
                source: path.clone(),
                access
            }),
            "{path:?}"
        );
    }
    assert!(at(&plan, &host.cwd.join("home/none")).is_none());
    assert!(at(&plan, Path::new("/usr/share")).is_none(), "shown already");
    for refused in ["/", "~", "/etc"] {
        let policy = format!("[filesystem]\nwrite = [\"{refused}\"]");
        assert!(
            matches!(
                plan_of(&spec(&host, &policy), &host, "sh"),
                Err(PlanError::Reserved { .. })
            ),
            "{refused}"
        );
    }
}

#[test]
fn a_link_in_the_workspace_grants_nothing_outside_it() {
    let (_directory, host) = host_with_home();
    write(&host.cwd.join("home/.ssh/id"), "");
    fs::create_dir(host.cwd.join("work")).unwrap();
    symlink(host.cwd.join("home/.ssh"), host.cwd.join("work/src")).unwrap();
    for policy in ["read = [\"src\"]", "write = [\"src\"]"] {
        let result = plan_of(&spec(&host, &format!("[filesystem]\n{policy}")), &host, "sh");
        assert!(matches!(result, Err(PlanError::Target { .. })), "{policy}: {result:?}");
    }
    let (plan, _) = plan_of(&spec(&host, "[filesystem]\nread = [\"s*\"]"), &host, "sh").unwrap();
    assert!(
        plan.entries.iter().all(|entry| !entry.target.ends_with(".ssh")),
        "wildcards follow no link out"
    );
    let mut spec = spec(&host, "");
    spec.mounts = vec![MountSpec {
        source: host.cwd.join("work/src"),
        target: "/x".into(),
        access: MountAccess::Ro,
    }];
    assert!(matches!(plan_of(&spec, &host, "sh"), Err(PlanError::Target { .. })));
    spec.mounts.clear();
    spec.toolchains = vec![host.cwd.join("work/src").into()];
    assert!(matches!(plan_of(&spec, &host, "sh"), Err(PlanError::Target { .. })));
}

#[test]
fn what_runs_code_later_stays_read_only_in_a_writable_mount() {
    let (_directory, host) = host_with_home();
    write(&host.cwd.join("other/.git/hooks/pre-commit"), "");
    let mut spec = spec(&host, "");
    spec.mounts = vec![MountSpec {
        source: host.cwd.join("other"),
        target: "/other".into(),
        access: MountAccess::Rw,
    }];
    let (plan, _) = plan_of(&spec, &host, "sh").unwrap();
    let hooks = at(&plan, Path::new("/other/.git/hooks")).unwrap();
    assert!(matches!(
        hooks.node,
        PlanNode::Bind {
            access: MountAccess::Ro,
            ..
        }
    ));
    assert!(
        at(&plan, Path::new("/other/.envrc")).is_none(),
        "nothing is made on the host"
    );
}

#[test]
fn a_pattern_that_means_too_much_is_an_error_and_not_a_hang() {
    let (_directory, host) = host_with_home();
    let result = plan_of(
        &spec(&host, "[filesystem]\ndeny = [\"/**/no-such-name\"]"),
        &host,
        "true",
    );
    assert!(
        matches!(result, Ok(_) | Err(PlanError::TooManyPaths { .. })),
        "{result:?}"
    );
}
