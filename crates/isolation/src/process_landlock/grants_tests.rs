use offleash_core::id::RunId;
use offleash_core::level::{DegradeMode, Level};
use offleash_core::limits::Limits;
use offleash_core::plan::SandboxUser;
use offleash_core::spec::{IdChoice, MemoryEnd, ZygoteRole};

use super::*;

fn entry(target: impl Into<PathBuf>, node: PlanNode) -> PlanEntry {
    PlanEntry {
        target: target.into(),
        node,
        rule: "a rule".to_owned(),
    }
}

fn bind(path: &Path, access: MountAccess) -> PlanEntry {
    entry(
        path,
        PlanNode::Bind {
            source: path.to_owned(),
            access,
        },
    )
}

fn hidden(path: PathBuf) -> PlanEntry {
    entry(path, PlanNode::Hidden { directory: false })
}

fn overlay(path: &Path) -> PlanEntry {
    entry(
        path,
        PlanNode::Overlay {
            lower: path.to_owned(),
            layer: "/state/layer-0".into(),
        },
    )
}

fn plan(entries: Vec<PlanEntry>, executables: Vec<PathBuf>) -> Plan {
    Plan {
        id: RunId::from_parts(0, 0),
        level: Level::ProcessLandlock,
        runtime: None,
        vm: None,
        degrade: DegradeMode::Refuse,
        entries,
        user: SandboxUser {
            uid: 1000,
            gid: 1000,
            name: "user".to_owned(),
            home: "/home/user".into(),
            shell: "/bin/sh".into(),
        },
        users: Vec::new(),
        ids: IdChoice::Single,
        hostname: "sandbox".to_owned(),
        limits: Limits::default(),
        network: false,
        network_ports: Vec::new(),
        network_doors: offleash_core::plan::NetworkDoors::default(),
        allow_ptrace: false,
        pausable: false,
        memory_end: MemoryEnd::Sandbox,
        descent: ZygoteRole::Alone,
        executables,
        guest: None,
        run_directory: "/state".into(),
    }
}

fn laid_out(entries: Vec<PlanEntry>) -> GrantLayout {
    lay_out(&plan(entries, Vec::new()))
}

/// A directory of the host with a file `file` in it.
fn host() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("file"), "x").unwrap();
    directory
}

#[test]
fn what_the_plan_shows_is_granted_where_the_host_has_it() {
    let (read, written) = (host(), host());
    let layout = laid_out(vec![
        bind(read.path(), MountAccess::Ro),
        bind(written.path(), MountAccess::Rw),
        entry("/proc", PlanNode::Proc),
        entry("/run", PlanNode::Directory),
        entry("/bin", PlanNode::Symlink { to: "usr/bin".into() }),
    ]);
    let expected = [
        (read.path().to_owned(), GrantAccess::ReadExecute),
        (written.path().to_owned(), GrantAccess::WriteExecute),
        (PathBuf::from("/proc"), GrantAccess::Read),
    ];
    assert_eq!(layout.grants, expected);
    assert_eq!(layout.impossible, []);
}

#[test]
fn no_terminal_and_no_directory_of_devices_is_granted() {
    let layout = laid_out(vec![entry("/dev", PlanNode::Dev)]);
    assert!(
        layout
            .grants
            .iter()
            .all(|(path, _)| !path.starts_with("/dev/pts") && !path.is_dir()),
        "{layout:?}"
    );
    assert!(
        !layout
            .grants
            .iter()
            .any(|(path, _)| path.ends_with("tty") || path.ends_with("ptmx")),
        "{layout:?}"
    );
}

#[test]
fn a_file_that_we_write_is_granted_only_if_the_host_s_says_the_same() {
    let host = host();
    let file = host.path().join("file");
    let layout = laid_out(vec![entry(
        &file,
        PlanNode::File {
            contents: b"x".to_vec(),
        },
    )]);
    assert_eq!(layout.grants, [(file.clone(), GrantAccess::Read)]);
    for other in [
        entry(
            &file,
            PlanNode::File {
                contents: b"y".to_vec(),
            },
        ),
        entry("/none", PlanNode::File { contents: vec![] }),
    ] {
        assert_eq!(laid_out(vec![other]).grants, []);
    }
}

#[test]
fn what_landlock_cannot_take_away_again_is_impossible() {
    let host = host();
    let file = host.path().join("file");
    let overlaid = || overlay(host.path());
    for (what, entries, possible) in [
        (
            "hidden in a readable tree",
            vec![bind(host.path(), MountAccess::Ro), hidden(file.clone())],
            false,
        ),
        (
            "hidden in a writable tree",
            vec![bind(host.path(), MountAccess::Rw), hidden(file.clone())],
            false,
        ),
        (
            "absent in a readable tree",
            vec![bind(host.path(), MountAccess::Ro), hidden(host.path().join("none"))],
            true,
        ),
        (
            "absent in a writable tree",
            vec![bind(host.path(), MountAccess::Rw), hidden(host.path().join("none"))],
            false,
        ),
        ("hidden where nothing is granted", vec![hidden(file.clone())], true),
        ("hidden in the copy", vec![overlaid(), hidden(file.clone())], true),
        (
            "read-only in a writable tree",
            vec![bind(host.path(), MountAccess::Rw), bind(&file, MountAccess::Ro)],
            false,
        ),
        (
            "read-only in the copy",
            vec![overlaid(), bind(&file, MountAccess::Ro)],
            false,
        ),
        (
            "read-only in a readable tree",
            vec![bind(host.path(), MountAccess::Ro), bind(&file, MountAccess::Ro)],
            true,
        ),
    ] {
        let layout = laid_out(entries);
        assert_eq!(layout.impossible.is_empty(), possible, "{what}: {layout:?}");
    }
}

#[test]
fn what_would_need_a_mount_is_impossible() {
    let host = host();
    let elsewhere = PlanNode::Bind {
        source: host.path().to_owned(),
        access: MountAccess::Ro,
    };
    assert_eq!(laid_out(vec![entry("/mnt/elsewhere", elsewhere)]).impossible.len(), 1);
    let memory = || PlanNode::Tmpfs {
        size: None,
        inodes: None,
        mode: 0o1777,
    };
    assert_eq!(laid_out(vec![entry("/mnt/memory", memory())]).impossible.len(), 1);
    let own = PlanEntry {
        rule: "system: /tmp".to_owned(),
        ..entry("/tmp", memory())
    };
    assert!(laid_out(vec![own]).impossible.is_empty());
}

#[test]
fn a_link_of_the_host_does_for_a_mount() {
    let host = host();
    let link = host.path().join("link");
    std::os::unix::fs::symlink("file", &link).unwrap();
    let source = fs::canonicalize(host.path().join("file")).unwrap();
    let layout = laid_out(vec![entry(
        link,
        PlanNode::Bind {
            source: source.clone(),
            access: MountAccess::Ro,
        },
    )]);
    assert_eq!(layout.grants, [(source, GrantAccess::ReadExecute)]);
}

#[test]
fn the_workspace_is_granted_as_a_copy_and_what_is_hidden_in_it_is_left_out() {
    let (workspace, git) = (host(), host());
    let layout = laid_out(vec![
        overlay(workspace.path()),
        entry(
            git.path(),
            PlanNode::Overlay {
                lower: git.path().to_owned(),
                layer: "/state/layer-1".into(),
            },
        ),
        hidden(workspace.path().join("file")),
    ]);
    assert_eq!(layout.copies[0].hidden, [PathBuf::from("file")]);
    let expected = [
        (PathBuf::from("/state/layer-0/upper"), GrantAccess::WriteExecute),
        (git.path().to_owned(), GrantAccess::Read),
    ];
    assert_eq!(layout.grants, expected);
    assert!(layout.git_is_read_only);
}

#[test]
fn with_a_list_of_executables_nothing_else_may_be_executed() {
    let (tools, workspace) = (host(), host());
    let entries = vec![bind(tools.path(), MountAccess::Ro), overlay(workspace.path())];
    let layout = lay_out(&plan(
        entries,
        vec![tools.path().join("file"), workspace.path().join("file")],
    ));
    let expected = [
        (tools.path().to_owned(), GrantAccess::Read),
        (PathBuf::from("/state/layer-0/upper"), GrantAccess::Write),
        (tools.path().join("file"), GrantAccess::Execute),
        (PathBuf::from("/state/layer-0/upper/file"), GrantAccess::Execute),
    ];
    assert_eq!(layout.grants, expected);
}
