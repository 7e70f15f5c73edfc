//! Whole machines as they are found in the field, as a few files below a temporary directory.

use std::fs;

use super::*;

const OWN: i32 = 4242;

/// A file tree in which `/proc/self` and the mounted hierarchies can be made up.
struct Machine(tempfile::TempDir);

impl Machine {
    fn new(memberships: &str, mounts: &[&str]) -> Self {
        let machine = Self(tempfile::tempdir().unwrap());
        machine.file("proc/self/cgroup", memberships);
        machine.file("proc/self/mountinfo", &mounts.join("\n"));
        machine
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn file(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// A version 2 group; only the root has no type.
    fn group(&self, path: &str, root: bool, controllers: &str, enabled: &str, processes: &str) {
        self.file(&format!("{path}/cgroup.controllers"), controllers);
        self.file(&format!("{path}/cgroup.subtree_control"), enabled);
        self.file(&format!("{path}/cgroup.procs"), processes);
        if !root {
            self.file(&format!("{path}/cgroup.type"), "domain\n");
        }
    }

    fn discover(&self) -> ControlHierarchies {
        ControlHierarchies::discover_below(self.0.path(), &[OWN], None).unwrap()
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap()
    }
}

const UNIFIED: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate";

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn a_machine_without_any_hierarchy_has_no_controller() {
    let hierarchy = Machine::new("", &["22 27 0:21 / /proc rw - proc proc rw"]).discover();
    assert_eq!(hierarchy.mode(), HierarchyMode::None);
    assert_eq!(
        hierarchy.availability(Controller::Memory),
        Err(ControllerProblem::NotMounted)
    );
}

#[test]
fn version_1_in_a_container_is_found_below_the_root_of_its_mount() {
    let machine = Machine::new(
        "4:cpu,cpuacct:/docker/ab\n3:memory:/docker/ab\n1:name=systemd:/docker/ab\n",
        &[
            "40 31 0:37 /docker/ab /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct",
            "41 31 0:38 /docker/ab /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory",
        ],
    );
    for directory in ["cpu,cpuacct", "memory"] {
        fs::create_dir_all(machine.path(&format!("sys/fs/cgroup/{directory}"))).unwrap();
    }
    let hierarchy = machine.discover();
    assert_eq!(hierarchy.mode(), HierarchyMode::V1);
    let together = machine.path("sys/fs/cgroup/cpu,cpuacct");
    for controller in [Controller::Cpu, Controller::CpuAccounting] {
        assert_eq!(hierarchy.availability(controller), Ok(HierarchyVersion::V1));
        assert_eq!(hierarchy.parent(controller), Some(together.as_path()));
    }
    let memory = machine.path("sys/fs/cgroup/memory");
    assert_eq!(
        hierarchy.availability(Controller::Memory),
        Err(ControllerProblem::ReadOnly { path: memory })
    );
    assert_eq!(
        hierarchy.availability(Controller::Pids),
        Err(ControllerProblem::NotMounted)
    );
}

#[test]
fn a_group_that_the_mount_does_not_show_is_out_of_reach() {
    let mount = "41 31 0:38 /docker/other /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory";
    let hierarchy = Machine::new("3:memory:/docker/ab\n", &[mount]).discover();
    let expected = Err(ControllerProblem::OutsideView {
        path: "/docker/ab".into(),
    });
    assert_eq!(hierarchy.availability(Controller::Memory), expected);
}

#[test]
fn on_a_hybrid_machine_a_controller_is_where_it_is_mounted() {
    let machine = Machine::new(
        "4:memory:/\n0::/\n",
        &[
            "41 31 0:38 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory",
            "42 31 0:39 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw",
        ],
    );
    fs::create_dir_all(machine.path("sys/fs/cgroup/memory")).unwrap();
    machine.group("sys/fs/cgroup/unified", true, "pids\n", "", "1\n4242\n");
    let hierarchy = machine.discover();
    assert_eq!(hierarchy.mode(), HierarchyMode::Hybrid);
    assert_eq!(hierarchy.availability(Controller::Memory), Ok(HierarchyVersion::V1));
    assert_eq!(hierarchy.availability(Controller::Pids), Ok(HierarchyVersion::V2));
    let unified = machine.path("sys/fs/cgroup/unified");
    assert_eq!(
        hierarchy.availability(Controller::Cpu),
        Err(ControllerProblem::NotDelegated { path: unified })
    );
}

#[test]
fn of_the_hierarchies_those_are_looked_at_that_hold_what_is_wanted() {
    let machine = Machine::new(
        "5:freezer:/\n4:memory:/\n0::/\n",
        &[
            "40 31 0:37 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer",
            "41 31 0:38 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory",
            "42 31 0:39 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw",
        ],
    );
    for directory in ["freezer", "memory"] {
        fs::create_dir_all(machine.path("sys/fs/cgroup").join(directory)).unwrap();
    }
    machine.group("sys/fs/cgroup/unified", true, "pids\n", "", "1\n4242\n");
    let discover =
        |wanted: &[Controller]| ControlHierarchies::discover_below(machine.0.path(), &[OWN], Some(wanted)).unwrap();
    let memory = discover(&[Controller::Memory]);
    assert_eq!(memory.mode(), HierarchyMode::V1);
    assert_eq!(memory.availability(Controller::Memory), Ok(HierarchyVersion::V1));
    assert_eq!(
        memory.availability(Controller::Freezer),
        Err(ControllerProblem::NotMounted)
    );
    let both = discover(&[Controller::Memory, Controller::Pids]);
    assert_eq!(both.availability(Controller::Memory), Ok(HierarchyVersion::V1));
    assert_eq!(both.availability(Controller::Pids), Ok(HierarchyVersion::V2));
}

#[test]
fn a_delegated_group_with_nobody_else_in_it_hands_down_after_we_moved_to_a_leaf() {
    let machine = Machine::new("0::/box\n", &[UNIFIED]);
    machine.group("sys/fs/cgroup/box", false, "cpu memory pids\n", "", "4242\n");
    let hierarchy = machine.discover();
    assert_eq!(hierarchy.mode(), HierarchyMode::V2);
    for controller in Controller::ALL {
        assert_eq!(
            hierarchy.availability(controller),
            Ok(HierarchyVersion::V2),
            "{controller}"
        );
    }
    // The leaf that `mkdir` would fill with these files.
    machine.file("sys/fs/cgroup/box/offleash-supervisor/cgroup.procs", "");
    let tree = hierarchy.tree(Controller::Memory).unwrap();
    delegation::enable(tree, &[Controller::Memory, Controller::Pids, Controller::Freezer], &[]).unwrap();
    assert_eq!(machine.read("sys/fs/cgroup/box/offleash-supervisor/cgroup.procs"), "0");
    assert_eq!(
        machine.read("sys/fs/cgroup/box/cgroup.subtree_control"),
        "+memory +pids"
    );
}

#[test]
fn children_of_ours_are_taken_along_and_are_not_in_the_way() {
    const CHILD: i32 = 4243;
    let machine = Machine::new("0::/box\n", &[UNIFIED]);
    machine.group("sys/fs/cgroup/box", false, "memory\n", "", "4242\n4243\n");
    let of_both = ControlHierarchies::discover_below(machine.0.path(), &[OWN, CHILD], None).unwrap();
    assert_eq!(of_both.availability(Controller::Memory), Ok(HierarchyVersion::V2));
    let refused = machine.discover().availability(Controller::Memory);
    assert!(
        matches!(refused, Err(ControllerProblem::OtherProcesses { count: 1, .. })),
        "{refused:?}"
    );

    machine.file("sys/fs/cgroup/box/offleash-supervisor/cgroup.procs", "");
    let tree = of_both.tree(Controller::Memory).unwrap();
    delegation::enable(tree, &[Controller::Memory], &[Pid::from_raw(CHILD).unwrap()]).unwrap();
    // A file keeps what was written last, over what was longer before.
    assert_eq!(
        machine.read("sys/fs/cgroup/box/offleash-supervisor/cgroup.procs"),
        "4243"
    );
    assert_eq!(machine.read("sys/fs/cgroup/box/cgroup.subtree_control"), "+memory");
}

#[test]
fn a_move_that_fails_leaves_no_leaf_and_hands_nothing_down() {
    let machine = Machine::new("0::/box\n", &[UNIFIED]);
    machine.group("sys/fs/cgroup/box", false, "memory\n", "", "4242\n");
    let hierarchy = machine.discover();
    // The new leaf has no `cgroup.procs` here, so moving fails.
    delegation::enable(hierarchy.tree(Controller::Memory).unwrap(), &[Controller::Memory], &[]).unwrap_err();
    assert!(!machine.path("sys/fs/cgroup/box/offleash-supervisor").exists());
    assert_eq!(machine.read("sys/fs/cgroup/box/cgroup.subtree_control"), "");
}

#[test]
fn from_the_leaf_the_group_above_is_used() {
    let machine = Machine::new("0::/box/offleash-supervisor\n", &[UNIFIED]);
    machine.group("sys/fs/cgroup/box", false, "cpu memory pids\n", "memory\n", "");
    machine.group("sys/fs/cgroup/box/offleash-supervisor", false, "memory\n", "", "4242\n");
    let hierarchy = machine.discover();
    assert_eq!(
        hierarchy.parent(Controller::Memory),
        Some(machine.path("sys/fs/cgroup/box").as_path())
    );
    let tree = hierarchy.tree(Controller::Pids).unwrap();
    delegation::enable(tree, &[Controller::Memory], &[]).unwrap();
    assert_eq!(machine.read("sys/fs/cgroup/box/cgroup.subtree_control"), "memory\n");
    delegation::enable(tree, &[Controller::Memory, Controller::Pids], &[]).unwrap();
    assert!(
        machine
            .read("sys/fs/cgroup/box/cgroup.subtree_control")
            .starts_with("+pids")
    );
}

#[test]
fn a_group_that_others_are_in_hands_nothing_down() {
    let machine = Machine::new("0::/box\n", &[UNIFIED]);
    machine.group("sys/fs/cgroup/box", false, "cpu memory pids\n", "", "1\n4242\n0\n");
    let path = machine.path("sys/fs/cgroup/box");
    let expected = Err(ControllerProblem::OtherProcesses { path, count: 2 });
    assert_eq!(machine.discover().availability(Controller::Memory), expected);
}

#[test]
fn a_directory_that_is_ours_without_the_files_of_delegation_is_not_delegated() {
    let machine = Machine::new("0::/box\n", &[UNIFIED]);
    machine.file("sys/fs/cgroup/box/cgroup.controllers", "memory\n");
    let path = machine.path("sys/fs/cgroup/box");
    assert_eq!(
        machine.discover().availability(Controller::Memory),
        Err(ControllerProblem::NotPermitted { path })
    );
}

#[test]
fn the_root_group_needs_no_leaf() {
    let machine = Machine::new("0::/\n", &[UNIFIED]);
    machine.group("sys/fs/cgroup", true, "memory pids\n", "", "1\n2\n4242\n");
    let hierarchy = machine.discover();
    delegation::enable(hierarchy.tree(Controller::Pids).unwrap(), &[Controller::Pids], &[]).unwrap();
    assert_eq!(machine.read("sys/fs/cgroup/cgroup.subtree_control"), "+pids");
    assert!(!machine.path("sys/fs/cgroup/offleash-supervisor").exists());
}

#[test]
fn in_a_login_session_the_top_is_used_with_what_is_enabled_there_and_is_not_changed() {
    let machine = Machine::new("0::/user.slice/user-0.slice/session-3.scope\n", &[UNIFIED]);
    machine.group("sys/fs/cgroup", true, "cpu memory pids\n", "memory pids\n", "");
    machine.group(
        "sys/fs/cgroup/user.slice/user-0.slice/session-3.scope",
        false,
        "memory pids\n",
        "",
        "7\n4242\n",
    );
    let hierarchy = machine.discover();
    let top = machine.path("sys/fs/cgroup");
    assert_eq!(hierarchy.parent(Controller::Memory), Some(top.as_path()));
    assert_eq!(hierarchy.availability(Controller::Memory), Ok(HierarchyVersion::V2));
    assert_eq!(
        hierarchy.availability(Controller::Cpu),
        Err(ControllerProblem::NotDelegated { path: top })
    );
    delegation::enable(
        hierarchy.tree(Controller::Pids).unwrap(),
        &[Controller::Memory, Controller::Pids],
        &[],
    )
    .unwrap();
    assert_eq!(machine.read("sys/fs/cgroup/cgroup.subtree_control"), "memory pids\n");
}

#[test]
fn a_service_is_not_left_for_the_top_because_its_limits_would_be_left_too() {
    let machine = Machine::new("0::/system.slice/agent.service\n", &[UNIFIED]);
    machine.group("sys/fs/cgroup", true, "memory\n", "memory\n", "");
    machine.group(
        "sys/fs/cgroup/system.slice/agent.service",
        false,
        "memory\n",
        "",
        "7\n4242\n",
    );
    let path = machine.path("sys/fs/cgroup/system.slice/agent.service");
    let expected = Err(ControllerProblem::OtherProcesses { path, count: 1 });
    assert_eq!(machine.discover().availability(Controller::Memory), expected);
}

#[test]
fn for_root_a_unit_counts_as_delegated_only_when_systemd_marked_it() {
    let machine = Machine::new("0::/system.slice/agent.service\n", &[UNIFIED]);
    machine.group(
        "sys/fs/cgroup/system.slice/agent.service",
        false,
        "memory\n",
        "",
        "4242\n",
    );
    let path = machine.path("sys/fs/cgroup/system.slice/agent.service");
    let unmarked = machine.discover().availability(Controller::Memory);
    if is_root() {
        assert_eq!(
            unmarked,
            Err(ControllerProblem::UnitNotDelegated { path: path.clone() })
        );
    } else {
        assert_eq!(unmarked, Ok(HierarchyVersion::V2));
    }
    rustix::fs::setxattr(&path, "user.delegate", b"1", rustix::fs::XattrFlags::empty()).unwrap();
    assert_eq!(
        machine.discover().availability(Controller::Memory),
        Ok(HierarchyVersion::V2)
    );
}

#[test]
fn a_hierarchy_that_belongs_to_another_user_is_not_ours_to_change() {
    if is_root() {
        use std::io::Write;
        let _ = writeln!(std::io::stderr(), "SKIP: root may write everywhere");
        return;
    }
    use std::os::unix::fs::PermissionsExt;
    let machine = Machine::new("3:memory:/\n", &["41 31 0:38 / /cg rw - cgroup cgroup rw,memory"]);
    let path = machine.path("cg");
    fs::create_dir(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o555)).unwrap();
    assert_eq!(
        machine.discover().availability(Controller::Memory),
        Err(ControllerProblem::NotPermitted { path })
    );
}
