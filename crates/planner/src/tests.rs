use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::ErrorKind as Io;
use std::os::unix::fs::symlink;
use std::path::Path;

use offleash_core::error::Explained;
use offleash_core::plan::{Plan, PlanEntry, PlanNode};
use offleash_core::spec::{IdChoice, MountAccess, MountSpec, SandboxSpec, TmpfsSpec, WorkspaceMode, WorkspaceSpec};
use offleash_core::units::Bytes;

use super::*;

mod commands;
mod mounts;
mod rules;

/// A host with a fresh home directory, `home`, beside which tests may put more; `state` does not exist.
pub(super) fn host_with_home() -> (tempfile::TempDir, PlanningHost) {
    let directory = tempfile::tempdir().unwrap();
    let root = fs::canonicalize(directory.path()).unwrap();
    fs::create_dir(root.join("home")).unwrap();
    let host = PlanningHost {
        euid: 0,
        egid: 0,
        home: Some(root.join("home")),
        cwd: root.clone(),
        env: Vec::new(),
        trust: None,
        volumes: Vec::new(),
        known: None,
        ids: IdChoice::Single,
        base: None,
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

fn plan_of(spec: &SandboxSpec, host: &PlanningHost, command: &str) -> Result<(Plan, ExecBasis), PlanError> {
    let id = "r1".parse().unwrap();
    resolve(spec, host, &[command.into()], id, &host.cwd.join("run"))
}

/// A spec whose workspace is `work` of the host's directory, with what the policy text says.
fn spec(host: &PlanningHost, policy: &str) -> SandboxSpec {
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

fn at<'a>(plan: &'a Plan, target: &Path) -> Option<&'a PlanEntry> {
    plan.entries.iter().find(|entry| entry.target == target)
}

fn is_hidden(plan: &Plan, target: &Path) -> bool {
    at(plan, target).is_some_and(|entry| matches!(entry.node, PlanNode::Hidden { .. }))
}

#[test]
fn a_plain_run_has_the_system_and_the_workspace_and_nothing_else_of_the_host() {
    let (_directory, host) = host_with_home();
    let (plan, basis) = plan_of(&spec(&host, ""), &host, "true").unwrap();
    let work = host.cwd.join("work");
    assert_eq!(basis.cwd, work, "the caller stands outside the workspace");
    assert_eq!(
        at(&plan, &work).unwrap().node,
        PlanNode::Overlay {
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
    let hint = with(&root.join("home")).hint().unwrap();
    assert!(
        hint.contains("`cd`") && hint.contains("`--workspace DIR`") && hint.contains("`--no-workspace`"),
        "{hint}"
    );
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
fn a_git_of_another_prefix_is_told_of_the_system_configuration_unless_it_has_one() {
    let (directory, host) = host_with_home();
    let prefix = fs::canonicalize(directory.path()).unwrap().join("tools");
    executable(&prefix.join("bin/git"), "");
    let mut spec = spec(&host, "");
    spec.toolchains = vec![prefix.clone().into_os_string()];
    let told = |spec: &SandboxSpec| {
        let env = plan_of(spec, &host, "true").unwrap().1.env;
        env.iter()
            .find(|(name, _)| name == "GIT_CONFIG_SYSTEM")
            .map(|(_, value)| value.clone())
    };
    assert_eq!(told(&spec), Some("/etc/gitconfig".into()));
    spec.env.set.push(("GIT_CONFIG_SYSTEM".into(), "/dev/null".into()));
    assert_eq!(told(&spec), Some("/dev/null".into()), "who sets it knows why");
    spec.env.set.clear();
    write(&prefix.join("etc/gitconfig"), "[core]\n");
    assert_eq!(told(&spec), None, "its own would be hidden");
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
