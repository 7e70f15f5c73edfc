//! What a sandbox would let a program do with a path, and by which rule: the plan, read backwards.

use std::ffi::{OsStr, OsString};
use std::path::{Component, Path, PathBuf};

use offleash_core::id::RunId;
use offleash_core::plan::{Plan, PlanEntry, PlanNode};
use offleash_core::protected::protected_rule;
use offleash_core::spec::{MountAccess, SandboxSpec, VolumeMount, WorkspaceMode};
use offleash_core::volume::{VolumeKey, VolumeQuota, VolumeUsage};
use offleash_store::led_to;
use std::os::unix::ffi::OsStrExt as _;

use super::base_entries::BaseTemplate;
use super::error::PlanError;
use super::host::{ExecBasis, FoundVolume, PlanningHost};
use super::resolve::resolve;

/// What may be done with a path inside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathAnswer {
    /// In words.
    pub access: String,
    /// The rule that decides.
    pub rule: String,
}

/// What a sandbox of this spec would let a program do with `path`, taken as a path inside; a relative one is below
/// the caller's current directory.
///
/// # Errors
/// As [`resolve`].
pub fn explain_path(spec: &SandboxSpec, host: &PlanningHost, path: &Path) -> Result<PathAnswer, PlanError> {
    // Which commands are allowed has no part in the question.
    let spec = SandboxSpec {
        commands: offleash_core::command::CommandRules::default(),
        ..spec.clone()
    };
    let (plan, _) = resolve_unnamed(&spec, host)?;
    let path = plain(&host.cwd.join(path));
    let deciding = plan.entries.iter().rev().find(|entry| path.starts_with(&entry.target));
    Ok(match deciding {
        Some(entry) => answer(entry, &path, &spec, host),
        None if plan.entries.iter().any(|entry| entry.target.starts_with(&path)) => PathAnswer {
            access: "a directory that can be listed, and not written".to_owned(),
            rule: "system: the sandbox's own root".to_owned(),
        },
        None => PathAnswer {
            access: "does not exist inside".to_owned(),
            rule: "default: nothing of the host is visible unless it is granted".to_owned(),
        },
    })
}

/// Resolves for a question: no run will have this id.
fn resolve_unnamed(spec: &SandboxSpec, host: &PlanningHost) -> Result<(Plan, ExecBasis), PlanError> {
    let id = RunId::from_parts(0, 0);
    let run_directory = host.state_directory.join("runs").join(id.as_str());
    let nominal = |mount: &VolumeMount| match &mount.volume {
        VolumeKey::Name(name) => Some(FoundVolume {
            key: mount.volume.clone(),
            name: name.clone(),
            data: host.state_directory.join("volumes").join(name.as_str()),
            quota: VolumeQuota::default(),
            used: VolumeUsage::default(),
        }),
        VolumeKey::Id(_) => None,
    };
    let host = PlanningHost {
        volumes: spec.volumes.iter().filter_map(nominal).collect(),
        base: host
            .base
            .clone()
            .or_else(|| Some(BaseTemplate::nominal(&host.state_directory))),
        ..host.clone()
    };
    resolve(spec, &host, &[OsString::from("true")], id, &run_directory)
}

/// Whether a sandbox of this spec has a variable `name` that does not come from the host, such as `PATH`.
///
/// # Errors
/// As [`resolve`], for toolchains.
pub fn has_variable_of_its_own(spec: &SandboxSpec, host: &PlanningHost, name: &OsStr) -> Result<bool, PlanError> {
    // The question can be asked anywhere, and the host's own values are no answer.
    let spec = SandboxSpec {
        toolchains: spec.toolchains.clone(),
        workspace: None,
        network: spec.network.clone(),
        ..SandboxSpec::default()
    };
    let host = PlanningHost {
        env: Vec::new(),
        ..host.clone()
    };
    let (_, basis) = resolve_unnamed(&spec, &host)?;
    Ok(basis.env.iter().any(|(variable, _)| variable == name))
}

/// Without `.` and `..`, by text alone: what links mean is for the kernel to say.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::from("/");
    for component in path.components() {
        match component {
            Component::Normal(name) => plain.push(name),
            Component::ParentDir => drop(plain.pop()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    plain
}

fn answer(entry: &PlanEntry, path: &Path, spec: &SandboxSpec, host: &PlanningHost) -> PathAnswer {
    let below = path != entry.target;
    let access = match &entry.node {
        PlanNode::Bind {
            access: MountAccess::Ro,
            ..
        } => "read, not written".to_owned(),
        PlanNode::Bind {
            access: MountAccess::Rw,
            ..
        } => "read and written, on the host itself".to_owned(),
        PlanNode::Volume {
            access: MountAccess::Ro,
            ..
        } => "read, not written; outlives the sandbox".to_owned(),
        PlanNode::Volume {
            access: MountAccess::Rw,
            ..
        } => "read and written; outlives the sandbox".to_owned(),
        PlanNode::Overlay { lower, .. } => return overlay_answer(entry, lower, path, (spec, host)),
        PlanNode::Base { .. } | PlanNode::Home { .. } => "read and written, in the sandbox's own layer".to_owned(),
        PlanNode::Guest => "read, executed and written; made by offleash".to_owned(),
        PlanNode::Tmpfs { .. } => "read and written, in memory, gone when the run ends".to_owned(),
        PlanNode::Proc => "the sandbox's own procfs; what concerns the machine is covered or read-only".to_owned(),
        PlanNode::Dev => "one of six devices, or does not exist".to_owned(),
        PlanNode::Device { .. } => {
            "a device of the host: opened, read and written, and told what its driver takes, in the host's kernel"
                .to_owned()
        }
        PlanNode::Symlink { to } => format!("a symbolic link to `{}`", to.display()),
        PlanNode::File { .. } => "read, not written; made by offleash".to_owned(),
        PlanNode::Hidden { .. } => "hidden: neither read nor written nor replaced".to_owned(),
        PlanNode::Directory if below => "does not exist inside".to_owned(),
        PlanNode::Directory => "an empty directory".to_owned(),
    };
    PathAnswer {
        access,
        rule: entry.rule.clone(),
    }
}

fn overlay_answer(
    entry: &PlanEntry,
    lower: &Path,
    path: &Path,
    (spec, host): (&SandboxSpec, &PlanningHost),
) -> PathAnswer {
    let written_back = spec
        .workspace
        .as_ref()
        .is_some_and(|workspace| workspace.mode == WorkspaceMode::Rw);
    let inner = path.strip_prefix(&entry.target).unwrap_or(path);
    let protected = match protected_rule(inner.as_os_str().as_bytes()) {
        Some(protected) => Some(format!("protected: {} ({})", protected.pattern, protected.why)),
        None => led_to(lower, inner, &spec.paths.protect, host.home.as_deref()).map(|why| format!("protected: {why}")),
    };
    if let Some(rule) = protected {
        return PathAnswer {
            access: "read and written inside; the change is not applied unless named".to_owned(),
            rule,
        };
    }
    let access = if written_back {
        "read and written; the change is written back when the run ends"
    } else {
        "read and written; the change is kept aside until `offleash apply`"
    };
    PathAnswer {
        access: access.to_owned(),
        rule: entry.rule.clone(),
    }
}
