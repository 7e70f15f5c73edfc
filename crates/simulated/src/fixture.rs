//! A plan for tests: a directory of the host as the workspace, below an empty layer.

use std::fs;
use std::path::{Path, PathBuf};

use offleash_core::id::RunId;
use offleash_core::level::{DegradeMode, Level};
use offleash_core::limits::Limits;
use offleash_core::plan::{NetworkDoors, Plan, PlanEntry, PlanNode, SandboxUser};
use offleash_core::spec::{IdChoice, MemoryEnd, ZygoteRole};
use tempfile::TempDir;

/// Where the workspace is inside.
pub(crate) const WORKSPACE: &str = "/workspace";

/// Directories on the host, and the plan that grants them.
pub(crate) struct PlanFixture {
    directory: TempDir,
    pub(crate) plan: Plan,
}

impl PlanFixture {
    pub(crate) fn new() -> Self {
        let directory = TempDir::new().unwrap();
        for name in ["lower", "layer/upper", "other"] {
            fs::create_dir_all(directory.path().join(name)).unwrap();
        }
        let workspace = PlanNode::Overlay {
            lower: directory.path().join("lower"),
            layer: directory.path().join("layer"),
        };
        let plan = Plan {
            id: RunId::from_parts(0, 0),
            level: Level::Simulated,
            runtime: None,
            vm: None,
            degrade: DegradeMode::Refuse,
            entries: vec![entry(WORKSPACE, workspace, "workspace")],
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
            network_doors: NetworkDoors::default(),
            allow_ptrace: false,
            pausable: false,
            memory_end: MemoryEnd::Sandbox,
            descent: ZygoteRole::Alone,
            executables: Vec::new(),
            guest: None,
            run_directory: directory.path().to_owned(),
        };
        Self { directory, plan }
    }

    /// Another directory of the host.
    pub(crate) fn other(&self) -> PathBuf {
        self.directory.path().join("other")
    }

    pub(crate) fn lower(&self) -> PathBuf {
        self.directory.path().join("lower")
    }

    pub(crate) fn upper(&self) -> PathBuf {
        self.directory.path().join("layer/upper")
    }

    pub(crate) fn with(mut self, entry: PlanEntry) -> Self {
        self.plan.entries.push(entry);
        self
    }
}

pub(crate) fn entry(target: impl AsRef<Path>, node: PlanNode, rule: &str) -> PlanEntry {
    PlanEntry {
        target: target.as_ref().to_owned(),
        node,
        rule: rule.to_owned(),
    }
}
