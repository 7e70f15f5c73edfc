use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind as Io;
use std::os::unix::fs::symlink;

use offleash_core::error::Explained;
use offleash_core::plan::{Entry, Node};
use offleash_core::spec::{Access, MountSpec, TmpfsSpec, WorkspaceMode, WorkspaceSpec};
use offleash_core::units::Bytes;

use super::*;

/// A host with a fresh home directory, `home`, beside which tests may put more; `state` does not exist.
pub(super) fn host_with_home() -> (tempfile::TempDir, Host) {
    let directory = tempfile::tempdir().unwrap();
    let root = fs::canonicalize(directory.path()).unwrap();
    fs::create_dir(root.join("home")).unwrap();
    let host = Host {
        euid: 0,
        egid: 0,
        home: Some(root.join("home")),
        cwd: root.clone(),
        env: Vec::new(),
        state_directory: root.join("state"),
    };
    (directory, host)
}

fn write(path: &Path, contents: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, contents).unwrap();
}

fn executable(path: &Path, contents: &str) {
    use std::os::unix::fs::PermissionsExt;
    write(path, contents);
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn plan_of(spec: &SandboxSpec, host: &Host, command: &str) -> Result<(Plan, ExecBasis), PlanError> {
    let id = "r1".parse().unwrap();
    resolve(spec, host, &[command.into()], id, &host.cwd.join("run"))
}

/// A spec whose workspace is `work` of the host's directory, with what the policy text says.
fn spec(host: &Host, policy: &str) -> SandboxSpec {
    let path = host.cwd.join("work");
    fs::create_dir_all(&path).unwrap();
    let mut spec = SandboxSpec {
        workspace: Some(WorkspaceSpec {
            path,
            mode: WorkspaceMode::Overlay,
        }),
        ..SandboxSpec::default()
    };
    offleash_core::policy::Policy::parse(policy)
        .unwrap()
        .apply_to(&mut spec);
    spec
}

fn at<'a>(plan: &'a Plan, target: &Path) -> Option<&'a Entry> {
    plan.entries.iter().find(|entry| entry.target == target)
}

fn is_hidden(plan: &Plan, target: &Path) -> bool {
    at(plan, target).is_some_and(|entry| matches!(entry.node, Node::Hidden { .. }))
}

#[test]
fn a_plain_run_has_the_system_and_the_workspace_and_nothing_else_of_the_host() {
    let (_directory, host) = host_with_home();
    let (plan, basis) = plan_of(&spec(&host, ""), &host, "true").unwrap();
    let work = host.cwd.join("work");
    assert_eq!(basis.cwd, work, "the caller stands outside the workspace");
    assert_eq!(
        at(&plan, &work).unwrap().node,
        Node::Overlay {
            lower: work.clone(),
            layer: host.cwd.join("run/layers/0")
        }
    );
    for entry in &plan.entries {
        let Some(source) = view::source_of(&entry.node) else {
            continue;
        };
        let expected = ["/usr", "/etc", "/bin", "/sbin", "/lib", "/nix/store"]
            .iter()
            .any(|own| source.starts_with(own));
        assert!(
            expected || source.to_str().unwrap().starts_with("/lib") || source == work,
            "{entry:?}"
        );
    }
    let targets: BTreeSet<_> = plan.entries.iter().map(|entry| &entry.target).collect();
    assert_eq!(targets.len(), plan.entries.len(), "no target twice");
    assert!(plan.entries.iter().all(|entry| !entry.rule.is_empty()));
    assert!(
        plan.entries.len() < 50,
        "each entry costs time at every start: {}",
        plan.entries.len()
    );
}

#[test]
fn the_environment_is_the_sandbox_s_own() {
    let (_directory, mut host) = host_with_home();
    host.env = vec![
        ("PATH".into(), "/evil".into()),
        ("A_TOKEN".into(), "t".into()),
        ("TERM".into(), "xterm".into()),
    ];
    let (_, basis) = plan_of(&spec(&host, "[env.set]\nB = \"b\""), &host, "true").unwrap();
    let get = |name: &str| {
        basis
            .env
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.to_str().unwrap())
    };
    assert_eq!(get("HOME"), Some("/home/user"));
    assert_eq!(
        get("PATH"),
        Some("/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin")
    );
    assert_eq!(
        (get("TERM"), get("B"), get("A_TOKEN")),
        (Some("xterm"), Some("b"), None)
    );
}

#[test]
fn directories_that_must_not_be_a_workspace_are_refused() {
    let (_directory, mut host) = host_with_home();
    let root = host.cwd.clone();
    fs::create_dir_all(root.join("state/runs")).unwrap();
    write(&root.join("file"), "");
    host.cwd = root.join("home");
    let with = |path: &Path| {
        let workspace = Some(WorkspaceSpec {
            path: path.into(),
            mode: WorkspaceMode::Overlay,
        });
        plan_of(
            &SandboxSpec {
                workspace,
                ..SandboxSpec::default()
            },
            &host,
            "true",
        )
        .unwrap_err()
    };
    for path in [
        "/",
        "/etc",
        "/usr",
        "/proc",
        "/dev",
        "/sys",
        "/boot",
        "/home",
        "/tmp",
        "/etc/ssl",
        "/proc/self",
    ] {
        if Path::new(path).exists() {
            assert!(matches!(with(Path::new(path)), PlanError::Reserved { .. }), "{path}");
        }
    }
    for path in ["home", "state", "state/runs", ""] {
        let error = with(&root.join(path));
        assert!(matches!(error, PlanError::Reserved { .. }), "{path}: {error}");
        assert!(error.hint().is_some());
    }
    assert!(
        matches!(with(Path::new(".")), PlanError::Reserved { .. }),
        "the current directory is the home directory"
    );
    assert!(matches!(with(&root.join("file")), PlanError::WrongKind { .. }));
    let missing = with(&root.join("none"));
    assert!(matches!(&missing, PlanError::Unreachable { source, .. } if source.kind() == Io::NotFound));
    assert_eq!(
        missing.to_string(),
        format!("cannot open workspace `{}`", root.join("none").display())
    );
}

#[test]
fn a_link_to_a_forbidden_workspace_is_forbidden() {
    let (_directory, host) = host_with_home();
    let link = host.cwd.join("link");
    symlink("/etc", &link).unwrap();
    let workspace = Some(WorkspaceSpec {
        path: link,
        mode: WorkspaceMode::Overlay,
    });
    let error = plan_of(
        &SandboxSpec {
            workspace,
            ..SandboxSpec::default()
        },
        &host,
        "true",
    )
    .unwrap_err();
    assert!(matches!(error, PlanError::Reserved { .. }));
}

#[test]
fn the_caller_s_place_in_the_workspace_is_kept() {
    let (_directory, mut host) = host_with_home();
    let spec = spec(&host, "");
    host.cwd = host.cwd.join("work/deep");
    fs::create_dir_all(&host.cwd).unwrap();
    assert_eq!(plan_of(&spec, &host, "true").unwrap().1.cwd, host.cwd);
    let without = SandboxSpec {
        workspace: None,
        ..spec
    };
    assert_eq!(plan_of(&without, &host, "true").unwrap().1.cwd, Path::new("/home/user"));
}

#[test]
fn mounts_are_checked_at_both_ends() {
    let (_directory, host) = host_with_home();
    write(&host.cwd.join("data/file"), "");
    write(&host.cwd.join("work/src/a"), "");
    fs::create_dir(host.cwd.join("state")).unwrap();
    let data = host.cwd.join("data");
    let work = host.cwd.join("work");
    let try_mount = |source: &Path, target: &Path, access| {
        let mut spec = spec(&host, "");
        spec.mounts = vec![MountSpec {
            source: source.into(),
            target: target.into(),
            access,
        }];
        plan_of(&spec, &host, "true")
    };
    for target in [
        "/data",
        "/mnt/deep/data",
        "/home/user/data",
        "/tmp/data",
        "/etc/data",
        "/home/user",
    ] {
        let plan = try_mount(&data, Path::new(target), Access::Rw);
        assert!(plan.is_ok(), "{target}: {:?}", plan.unwrap_err());
    }
    assert!(try_mount(&data, &work.join("src"), Access::Ro).is_ok());
    for target in [
        "data",
        "/",
        "/proc",
        "/proc/x",
        "/dev/shm/x",
        "/sys",
        "/usr",
        "/etc",
        "/bin",
        "/a/../b",
        "/a/./b",
        "/usr/nonexistent",
        "/usr/bin/env/x",
        "/bin/x",
        "/var/tmp/x",
        "/var",
        "/home",
    ] {
        let error = try_mount(&data, Path::new(target), Access::Ro).unwrap_err();
        assert!(matches!(error, PlanError::Target { .. }), "{target}: {error}");
    }
    for target in [work.clone(), work.join("none"), work.join("src/a"), host.cwd.clone()] {
        assert!(
            matches!(try_mount(&data, &target, Access::Ro), Err(PlanError::Target { .. })),
            "{target:?}"
        );
    }
    for (source, access) in [
        ("/", Access::Ro),
        ("/proc", Access::Ro),
        ("/dev", Access::Ro),
        ("/etc", Access::Rw),
        ("/usr", Access::Rw),
        ("state", Access::Ro),
        ("~", Access::Rw),
        (".", Access::Rw),
    ] {
        let error = try_mount(Path::new(source), Path::new("/data"), access).unwrap_err();
        assert!(matches!(error, PlanError::Reserved { .. }), "{source}: {error}");
    }
    let missing = try_mount(Path::new("none"), Path::new("/data"), Access::Ro).unwrap_err();
    assert!(matches!(
        missing,
        PlanError::Unreachable {
            role: "mount source",
            ..
        }
    ));
}

#[test]
fn the_order_in_which_mounts_are_written_does_not_matter() {
    let (_directory, host) = host_with_home();
    write(&host.cwd.join("outer/inner/x"), "");
    let mount = |source: &str, target: &str| MountSpec {
        source: host.cwd.join(source),
        target: target.into(),
        access: Access::Ro,
    };
    let mut spec = spec(&host, "");
    spec.mounts = vec![mount("outer/inner", "/data/inner"), mount("outer", "/data")];
    let first = plan_of(&spec, &host, "true").unwrap().0;
    spec.mounts.reverse();
    assert_eq!(first.entries, plan_of(&spec, &host, "true").unwrap().0.entries);
    spec.mounts.push(mount("home", "/data"));
    assert!(
        matches!(plan_of(&spec, &host, "true"), Err(PlanError::Target { .. })),
        "one target, two sources"
    );
}

#[test]
fn our_own_state_is_hidden_where_a_mount_would_show_it() {
    let (_directory, host) = host_with_home();
    fs::create_dir(host.cwd.join("state")).unwrap();
    let mount = MountSpec {
        source: host.cwd.clone(),
        target: "/all".into(),
        access: Access::Ro,
    };
    let spec = SandboxSpec {
        mounts: vec![mount],
        ..SandboxSpec::default()
    };
    let (plan, _) = plan_of(&spec, &host, "true").unwrap();
    assert!(is_hidden(&plan, Path::new("/all/state")));
}

#[test]
fn an_empty_directory_is_made_where_asked() {
    let (_directory, host) = host_with_home();
    let mut spec = spec(&host, "");
    spec.tmpfs = vec![TmpfsSpec {
        target: "/scratch".into(),
        size: Some(Bytes::mib(1)),
    }];
    let (plan, _) = plan_of(&spec, &host, "true").unwrap();
    let node = &at(&plan, Path::new("/scratch")).unwrap().node;
    assert!(matches!(
        node,
        Node::Tmpfs {
            size: Some(Bytes(1_048_576)),
            ..
        }
    ));
    spec.tmpfs[0].target = "/proc/x".into();
    assert!(matches!(plan_of(&spec, &host, "true"), Err(PlanError::Target { .. })));
}

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
        matches!(at(&plan, &secret).unwrap().node, Node::Tmpfs { mode: 0o555, .. }),
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
        ("home/data", Access::Ro),
        ("work/src", Access::Ro),
        ("out", Access::Rw),
        ("out/keep", Access::Ro),
    ] {
        let path = host.cwd.join(path);
        assert_eq!(
            at(&plan, &path).map(|entry| &entry.node),
            Some(&Node::Bind {
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
        access: Access::Ro,
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
        access: Access::Rw,
    }];
    let (plan, _) = plan_of(&spec, &host, "sh").unwrap();
    let hooks = at(&plan, Path::new("/other/.git/hooks")).unwrap();
    assert!(matches!(hooks.node, Node::Bind { access: Access::Ro, .. }));
    assert!(
        at(&plan, Path::new("/other/.envrc")).is_none(),
        "nothing is made on the host"
    );
}

#[test]
fn denied_commands_are_hidden_by_every_name() {
    let (_directory, host) = host_with_home();
    let bin = host.cwd.join("tool/bin");
    executable(&bin.join("real"), "#!/bin/sh\n");
    fs::hard_link(bin.join("real"), bin.join("twin")).unwrap();
    symlink("real", bin.join("alias")).unwrap();
    executable(&bin.join("other"), "#!/bin/sh\n");
    for denied in ["real", "twin", "alias", "al*", &format!("{}/alias", bin.display())] {
        let mut spec = spec(&host, &format!("[commands]\ndeny = [\"{denied}\"]"));
        spec.toolchains = vec![host.cwd.join("tool").into()];
        let (plan, _) = plan_of(&spec, &host, "other").unwrap();
        assert!(
            is_hidden(&plan, &bin.join("real")) && is_hidden(&plan, &bin.join("twin")),
            "{denied}"
        );
        assert!(
            !is_hidden(&plan, &bin.join("other")) && !is_hidden(&plan, &bin.join("alias")),
            "{denied}"
        );
        let name = if denied.starts_with('/') {
            denied
        } else {
            denied.trim_end_matches('*')
        };
        let name = if name == "al" { "alias" } else { name };
        assert!(
            matches!(plan_of(&spec, &host, name), Err(PlanError::CommandDenied { .. })),
            "{denied}"
        );
    }
}

#[test]
fn what_is_allowed_brings_its_interpreters() {
    let (_directory, host) = host_with_home();
    executable(&host.cwd.join("tool/bin/script"), "#!/usr/bin/env sh\n");
    let mut spec = spec(&host, "[commands]\nallow = [\"script\"]");
    spec.toolchains = vec![host.cwd.join("tool").into()];
    let (plan, _) = plan_of(&spec, &host, "script").unwrap();
    let names = |name: &str| {
        plan.executables
            .iter()
            .any(|path| path.file_name().is_some_and(|found| found == name))
    };
    let shell = fs::canonicalize("/bin/sh").unwrap();
    assert!(
        names("script") && names("env") && plan.executables.contains(&shell),
        "{:?}",
        plan.executables
    );
    assert!(
        plan.executables
            .iter()
            .any(|path| path.to_str().unwrap().contains("/ld-")),
        "{:?}",
        plan.executables
    );
    assert!(!names("ls"));
    assert!(matches!(
        plan_of(&spec, &host, "ls"),
        Err(PlanError::CommandDenied { .. })
    ));
}

#[test]
fn an_empty_allow_list_runs_nothing() {
    let (_directory, host) = host_with_home();
    for policy in ["[commands]\nallow = []", "[commands]\nallow = [\"no-such-program\"]"] {
        for command in ["true", "no-such-program"] {
            let result = plan_of(&spec(&host, policy), &host, command);
            assert!(
                matches!(result, Err(PlanError::CommandDenied { .. })),
                "{policy} {command}"
            );
        }
    }
    assert!(
        plan_of(&spec(&host, ""), &host, "true")
            .unwrap()
            .0
            .executables
            .is_empty()
    );
}

#[test]
fn commands_that_cannot_be_are_refused() {
    let (_directory, host) = host_with_home();
    let spec = spec(&host, "");
    let run = |command: &[OsString]| resolve(&spec, &host, command, "r1".parse().unwrap(), Path::new("/run"));
    assert!(matches!(run(&[]), Err(PlanError::NoCommand)));
    assert!(matches!(run(&["".into()]), Err(PlanError::NoCommand)));
    assert!(matches!(
        run(&["a".into(), "b\0".into()]),
        Err(PlanError::NulInArgument { position: 1 })
    ));
}

#[test]
fn a_level_below_the_floor_is_refused() {
    let (_directory, host) = host_with_home();
    let policy = "level = \"process-landlock\"\nmin_level = \"process\"";
    assert!(matches!(
        plan_of(&spec(&host, policy), &host, "true"),
        Err(PlanError::BelowMinimum { .. })
    ));
}

#[test]
fn a_command_that_is_only_outside_says_how_to_get_it_inside() {
    let (_directory, mut host) = host_with_home();
    let home = host.home.clone().unwrap();
    executable(&home.join(".cargo/bin/cargo"), "");
    executable(&home.join("mine/tool"), "");
    host.env = vec![(
        "PATH".into(),
        std::env::join_paths([home.join(".cargo/bin"), home.join("mine")]).unwrap(),
    )];
    let hint = |name: &str| find_outside(OsStr::new(name), &host);
    assert!(hint("cargo").unwrap().ends_with("grant it with `--toolchain cargo`"));
    assert!(
        hint("tool")
            .unwrap()
            .ends_with(&format!("grant it with `--toolchain {}`", home.join("mine").display()))
    );
    assert_eq!(hint("no-such-program"), None);
}

#[test]
fn a_pattern_that_means_too_much_is_an_error_and_not_a_hang() {
    let (_directory, host) = host_with_home();
    let started = std::time::Instant::now();
    let result = plan_of(
        &spec(&host, "[filesystem]\ndeny = [\"/**/no-such-name\"]"),
        &host,
        "true",
    );
    let is_bounded = matches!(result, Ok(_) | Err(PlanError::TooManyPaths { .. }));
    assert!(is_bounded && started.elapsed().as_secs() < 30);
}
