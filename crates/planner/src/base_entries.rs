//! The entries of the base template: a root of the sandbox's own, to be written to anywhere.

use std::path::{Path, PathBuf};

use offleash_core::limits::Limits;
use offleash_core::plan::{Environment, PlanEntry, PlanNode, SandboxUser};
use offleash_core::spec::{IdChoice, RootChoice};
use offleash_core::units::Bytes;

use super::image;
use super::system::{bind, inodes_in_memory, superuser, system, usual};

/// To tmpfs a size of less than a page is none, and no limit.
const SMALLEST_TMPFS: u64 = 64 << 10;

/// What a root of the sandbox's own is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaseTemplate {
    /// Its parts; that of the root directory is one of them.
    pub parts: Vec<BasePart>,
    /// Variables of every command, unless the owner says otherwise.
    pub variables: Environment,
}

impl BaseTemplate {
    /// One for questions, of which nothing is made.
    pub(super) fn nominal(state_directory: &Path) -> Self {
        let part = |target: &str, lower: PathBuf| BasePart {
            target: target.into(),
            lower,
            stack: Vec::new(),
            template: None,
            snapshot: None,
            skeleton: None,
            layer: state_directory.join("scratch"),
        };
        Self {
            parts: vec![part("/", state_directory.join("base")), part("/usr", "/usr".into())],
            variables: Vec::new(),
        }
    }
}

/// A directory of the base template: what is read, and where the sandbox's changes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BasePart {
    /// Where it is inside.
    pub target: PathBuf,
    /// The host's directory, resolved.
    pub lower: PathBuf,
    /// Directories in it that are meant instead, the topmost first: the layers of an image.
    pub stack: Vec<PathBuf>,
    /// The layer in which a template was built, which holds what it has of the directory; see [`PlanNode::Base`].
    pub template: Option<PathBuf>,
    /// The layer of a snapshot, likewise.
    pub snapshot: Option<PathBuf>,
    /// The same directories, which belong to the sandbox's superuser; see [`PlanNode::Base`].
    pub skeleton: Option<PathBuf>,
    /// The writable layer.
    pub layer: PathBuf,
}

/// The name under which the guest's program acts as `sudo`.
const SUDO: &str = "/usr/bin/sudo";

/// The users of a sandbox, the usual one first.
///
/// Where it has one id, both names of the base template mean that.
pub fn users(root: &RootChoice, ids: IdChoice) -> Vec<SandboxUser> {
    let usual = usual(ids);
    match (root, ids) {
        (RootChoice::System, _) => vec![usual],
        (RootChoice::Image(image), ids) => image::users(image, ids),
        (RootChoice::Base { .. }, IdChoice::Range) => vec![usual, superuser()],
        (RootChoice::Base { .. }, IdChoice::Single | IdChoice::Zero) => {
            let same = SandboxUser {
                uid: usual.uid,
                gid: usual.gid,
                ..superuser()
            };
            vec![usual, same]
        }
    }
}

/// The user that the first process is: the superuser, where there is one.
pub fn first_user(root: &RootChoice, ids: IdChoice) -> SandboxUser {
    match (root, ids) {
        (RootChoice::Base { .. } | RootChoice::Image(_), IdChoice::Range) => superuser(),
        _ => usual(ids),
    }
}

/// How large a directory in memory may become: what is in it counts as memory, and files alone must not use all of that, or
/// the kernel would end the sandbox instead of telling whoever writes that there is no room. Linux itself gives `/dev/shm`
/// a half (tmpfs(5), `size`).
fn in_memory(limits: &Limits, part: u64) -> Option<Bytes> {
    let share = limits.memory.map(|memory| Bytes((memory.0 / part).max(SMALLEST_TMPFS)));
    limits.tmp.into_iter().chain(share).min_by_key(|size| size.0)
}

/// The parts of a root of its own, what is the kernel's, and what is in memory.
pub(super) fn entries_of_kernel(template: &BaseTemplate, limits: &Limits) -> Vec<PlanEntry> {
    let part = |part: &BasePart| {
        let node = PlanNode::Base {
            lower: part.lower.clone(),
            stack: part.stack.clone(),
            template: part.template.clone(),
            snapshot: part.snapshot.clone(),
            skeleton: part.skeleton.clone(),
            layer: part.layer.clone(),
        };
        system(&part.target, node)
    };
    let memory = |mode, part| PlanNode::Tmpfs {
        size: in_memory(limits, part),
        inodes: inodes_in_memory(limits),
        mode,
    };
    let mut entries: Vec<PlanEntry> = template.parts.iter().map(part).collect();
    entries.extend([
        system("/proc", PlanNode::Proc),
        system("/dev", PlanNode::Dev),
        system("/dev/shm", memory(0o1777, 2)),
        system("/run", memory(0o755, 4)),
    ]);
    entries
}

/// The entries of the system, without what of `/etc` depends on the sandbox.
pub(super) fn entries(template: &BaseTemplate, users: &[SandboxUser], limits: &Limits) -> Vec<PlanEntry> {
    let home = |user: &SandboxUser| {
        // Servers that run as users of their own serve what is in it, and contexts of code may work in that of the superuser.
        let (owner, mode) = (user.ids(), 0o755);
        system(&user.home, PlanNode::Home { owner, mode })
    };
    let nix = Path::new("/nix/store");
    let mut entries = entries_of_kernel(template, limits);
    entries.extend([system("/run/lock", PlanNode::Directory), system(SUDO, PlanNode::Guest)]);
    entries.extend(nix.is_dir().then(|| bind(nix)));
    entries.extend(users.iter().map(home));
    entries
}
