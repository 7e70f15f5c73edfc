//! What a plan grants of the host's files, as trees that a worker is served.

mod homes;
mod parts;

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use offleash_core::level::Level;
use offleash_core::plan::{Plan, PlanEntry, PlanNode};
use offleash_core::record::LimitHit;
use offleash_core::text::Text;
use offleash_isolation::error::IsolationError;
use rustix::io::Errno;

use crate::tree::{FileCaller, InnerPath, LayerQuota, ServedTree, SharedQuota, TreeChange};
use crate::wire::{FileAnswer, FileRequest, MountPoint};
pub(crate) use parts::usual_caller;

/// The rule of what every sandbox with processes has of the machine, and this one has not.
const SYSTEM_RULE: &str = "system";

/// The trees of one sandbox, as all that use them have them.
pub(crate) type SharedTrees = Rc<RefCell<ServedTrees>>;

/// The trees of one sandbox.
#[derive(Debug)]
pub(crate) struct ServedTrees {
    trees: Vec<(PathBuf, ServedTree)>,
}

impl ServedTrees {
    /// Opens what the plan grants.
    ///
    /// # Errors
    /// `NotEnforceable` for what this level does not have, `Step` when a directory cannot be opened.
    pub(crate) fn open(plan: &Plan) -> Result<Self, IsolationError> {
        refuse_covers(plan)?;
        // All parts of a root of its own count together.
        let of_root = SharedQuota::new(LayerQuota::new(&plan.limits));
        let mut trees = Vec::new();
        for entry in &plan.entries {
            let is_asked_for = !entry.rule.starts_with(SYSTEM_RULE);
            let tree = match &entry.node {
                PlanNode::Overlay { .. } | PlanNode::Bind { .. } if is_asked_for || parts::is_overlay(entry) => {
                    parts::of_the_host(plan, entry)
                }
                PlanNode::Volume { .. } => parts::of_volume(plan, entry),
                PlanNode::Base { .. } => parts::of_own_root(plan, entry, &of_root),
                _ => continue,
            }?;
            trees.extend(tree.map(|tree| (entry.target.clone(), tree)));
        }
        Ok(Self { trees })
    }

    /// Where they are.
    pub(crate) fn mount_points(&self) -> Vec<MountPoint> {
        let paths = self
            .trees
            .iter()
            .map(|(path, _)| path.as_os_str().as_encoded_bytes().to_vec());
        paths.map(|path| MountPoint { path }).collect()
    }

    /// Carries out what a worker asks for the usual user.
    pub(crate) fn answer(&mut self, request: FileRequest) -> FileAnswer {
        match self.tree(request.mount) {
            Some(tree) => tree.answer(&request.path, request.operation),
            None => no_tree(),
        }
    }

    /// Carries out what a worker asks.
    pub(crate) fn answer_to(&mut self, caller: FileCaller, request: FileRequest) -> FileAnswer {
        match self.tree(request.mount) {
            Some(tree) => tree.answer_to(caller, &request.path, request.operation),
            None => no_tree(),
        }
    }

    fn tree(&mut self, number: u32) -> Option<&mut ServedTree> {
        let number = usize::try_from(number).ok()?;
        self.trees.get_mut(number).map(|(_, tree)| tree)
    }

    /// The tree of that number, which is one of [`Self::locate`].
    pub(crate) fn numbered(&mut self, number: usize) -> Result<&mut ServedTree, Errno> {
        self.trees.get_mut(number).map(|(_, tree)| tree).ok_or(Errno::NOENT)
    }

    /// In which tree a path lies, and where there; `None` where nothing is served.
    pub(crate) fn locate(&self, path: &Path) -> Option<(usize, InnerPath)> {
        let of_tree = |(number, (target, _)): (usize, &(PathBuf, ServedTree))| {
            let below = path.strip_prefix(target).ok()?;
            Some((target.components().count(), number, below.to_owned()))
        };
        let deepest = self
            .trees
            .iter()
            .enumerate()
            .filter_map(of_tree)
            .max_by_key(|(depth, ..)| *depth);
        let (_, number, below) = deepest?;
        Some((number, InnerPath::parse(below.as_os_str().as_encoded_bytes()).ok()?))
    }

    /// Whether a tree begins at a path, or below it.
    pub(crate) fn has_tree_at_or_below(&self, path: &Path) -> bool {
        self.trees.iter().any(|(target, _)| target.starts_with(path))
    }

    /// The names in a directory that lead to trees below it.
    pub(crate) fn names_to_trees(&self, directory: &Path) -> Vec<Vec<u8>> {
        let name = |(target, _): &(PathBuf, ServedTree)| {
            let below = target.strip_prefix(directory).ok()?;
            let name = below.iter().next()?;
            Some(name.as_encoded_bytes().to_vec())
        };
        self.trees.iter().filter_map(name).collect()
    }

    /// Whether every path lies in a tree.
    pub(crate) fn has_root(&self) -> bool {
        self.locate(Path::new("/")).is_some()
    }

    /// Has changes told from now on, or no more.
    pub(crate) fn tell_changes(&mut self, is_wanted: bool) {
        self.trees.iter_mut().for_each(|(_, tree)| tree.tell_changes(is_wanted));
    }

    /// What has changed since this was asked last, each with where its tree is.
    pub(crate) fn take_changes(&mut self) -> Vec<(PathBuf, TreeChange)> {
        let of_tree = |(target, tree): &mut (PathBuf, ServedTree)| {
            let changes = tree.take_changes().into_iter();
            let target = target.clone();
            changes.map(move |change| (target.clone(), change)).collect::<Vec<_>>()
        };
        self.trees.iter_mut().flat_map(of_tree).collect()
    }

    /// Limits that were hit since this was asked last.
    pub(crate) fn take_hits(&mut self) -> Vec<LimitHit> {
        self.trees.iter_mut().flat_map(|(_, tree)| tree.take_hits()).collect()
    }

    /// A program of another level has written into the layers.
    pub(crate) fn changed_by_others(&mut self) {
        self.trees.iter_mut().for_each(|(_, tree)| tree.changed_by_others());
    }

    /// What the layers take, in bytes.
    pub(crate) fn layer_bytes(&self) -> u64 {
        let mut counted: Vec<&SharedQuota> = Vec::new();
        for (_, tree) in &self.trees {
            if !counted.iter().any(|quota| quota.is_same(tree.quota())) {
                counted.push(tree.quota());
            }
        }
        counted.iter().map(|quota| quota.lock().bytes()).sum()
    }
}

fn no_tree() -> FileAnswer {
    FileAnswer::Failed {
        errno: Errno::INVAL.raw_os_error(),
    }
}

/// Refuses directories in memory below what would be served. A denied directory with a grant inside it is one, too.
fn refuse_covers(plan: &Plan) -> Result<(), IsolationError> {
    let is_served = |entry: &PlanEntry| match &entry.node {
        PlanNode::Overlay { .. } => true,
        PlanNode::Bind { .. } => !entry.rule.starts_with(SYSTEM_RULE),
        _ => false,
    };
    let is_covered = |entry: &PlanEntry| {
        let mut served = plan.entries.iter().filter(|served| is_served(served));
        matches!(entry.node, PlanNode::Tmpfs { .. })
            && served.any(|served| entry.target != served.target && entry.target.starts_with(&served.target))
    };
    match plan.entries.iter().find(|entry| is_covered(entry)) {
        None => Ok(()),
        Some(entry) => Err(not_here(
            &format!("something else in the place of `{}`", Text::from(&entry.target)),
            "what is granted is served as it is, or hidden as a whole",
        )),
    }
}

/// What rules hide below `target`, each with whether it is a directory.
fn hidden_below(plan: &Plan, target: &Path) -> Vec<(InnerPath, bool)> {
    let hidden = plan.entries.iter().filter_map(|entry| match entry.node {
        PlanNode::Hidden { directory } => {
            let below = entry.target.strip_prefix(target).ok()?;
            Some((InnerPath::parse(below.as_os_str().as_encoded_bytes()).ok()?, directory))
        }
        _ => None,
    });
    hidden.collect()
}

/// Refuses what this level does not have.
pub(crate) fn not_here(what: &str, reason: &str) -> IsolationError {
    IsolationError::NotEnforceable {
        level: Level::Simulated,
        what: what.to_owned(),
        reason: reason.to_owned(),
        hint: "leave it out, or use `--level process`".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{PlanFixture, WORKSPACE, entry};
    use offleash_core::spec::MountAccess;

    fn read_only(fixture: &PlanFixture) -> PlanNode {
        PlanNode::Bind {
            source: fixture.other(),
            access: MountAccess::Ro,
        }
    }

    fn refusal(fixture: &PlanFixture) -> String {
        ServedTrees::open(&fixture.plan).unwrap_err().to_string()
    }

    #[test]
    fn directories_that_are_granted_are_served_where_they_are_asked_for() {
        let fixture = PlanFixture::new();
        let (node, of_the_machine) = (read_only(&fixture), read_only(&fixture));
        let fixture = fixture
            .with(entry("/data", node, "mount `/data`"))
            .with(entry("/usr", of_the_machine, "system"));
        let trees = ServedTrees::open(&fixture.plan).unwrap();
        let paths: Vec<Vec<u8>> = trees.mount_points().into_iter().map(|point| point.path).collect();
        assert_eq!(paths, [WORKSPACE.as_bytes(), b"/data"]);
    }

    #[test]
    fn a_grant_inside_a_denied_directory_is_refused_and_not_served_as_if_all_of_it_were_granted() {
        let fixture = PlanFixture::new();
        let node = read_only(&fixture);
        let denied = Path::new(WORKSPACE).join("denied");
        let empty = PlanNode::Tmpfs {
            mode: 0o755,
            size: None,
            inodes: None,
        };
        let fixture = fixture
            .with(entry(&denied, empty, "filesystem.deny `denied`"))
            .with(entry(denied.join("inside"), node, "filesystem.read `denied/inside`"));
        assert!(refusal(&fixture).contains("/workspace/denied"), "{}", refusal(&fixture));
    }

    #[test]
    fn what_is_hidden_is_hidden_in_the_tree_that_it_lies_in() {
        let hidden = PlanNode::Hidden { directory: false };
        let fixture = PlanFixture::new().with(entry(Path::new(WORKSPACE).join("secret"), hidden, "filesystem.deny"));
        std::fs::write(fixture.lower().join("secret"), "s").unwrap();
        let mut trees = ServedTrees::open(&fixture.plan).unwrap();
        let read = FileRequest {
            mount: 0,
            path: b"secret".to_vec(),
            operation: crate::wire::FileOperation::Read { offset: 0 },
        };
        let refused = FileAnswer::Failed {
            errno: rustix::io::Errno::ACCESS.raw_os_error(),
        };
        assert_eq!(trees.answer(read), refused);
    }

    #[test]
    fn what_the_level_cannot_serve_is_refused_by_name() {
        let bind = |access| {
            move |fixture: &PlanFixture| PlanNode::Bind {
                source: fixture.other(),
                access,
            }
        };
        let written = PlanFixture::new();
        let node = bind(MountAccess::Rw)(&written);
        let written = written.with(entry("/data", node, "mount `/data`"));
        assert!(refusal(&written).contains("a mount that is written to"));
        let file = PlanFixture::new();
        std::fs::write(file.other().join("f"), "").unwrap();
        let node = PlanNode::Bind {
            source: file.other().join("f"),
            access: MountAccess::Ro,
        };
        let file = file.with(entry("/data", node, "mount `/data`"));
        assert!(refusal(&file).contains("a mount of a single file"));
    }
}
