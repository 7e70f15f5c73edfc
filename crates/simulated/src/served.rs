//! What a plan grants of the host's files, as trees that a worker is served.

use std::path::{Path, PathBuf};

use offleash_core::level::Level;
use offleash_core::plan::{Plan, PlanEntry, PlanNode};
use offleash_core::record::LimitHit;
use offleash_core::spec::MountAccess;
use offleash_core::text::Text;
use offleash_isolation::error::IsolationError;

use crate::tree::{InnerPath, ServedTree};
use crate::wire::{FileAnswer, FileRequest, MountPoint};

/// The rule of what every sandbox with processes has of the machine, and this one has not.
const SYSTEM_RULE: &str = "system";
/// How a rule begins that the owner asked for by a mount.
const MOUNT_RULE: &str = "mount";

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
        let mut trees = Vec::new();
        for entry in &plan.entries {
            let is_asked_for = !entry.rule.starts_with(SYSTEM_RULE);
            let (lower, upper) = match &entry.node {
                PlanNode::Overlay { lower, layer } => (lower, Some(layer.join("upper"))),
                PlanNode::Bind {
                    source,
                    access: MountAccess::Ro,
                } if is_asked_for => {
                    if !source.is_dir() {
                        if entry.rule.starts_with(MOUNT_RULE) {
                            return Err(not_here("a mount of a single file", "it serves directories alone"));
                        }
                        continue;
                    }
                    (source, None)
                }
                PlanNode::Bind {
                    access: MountAccess::Rw,
                    ..
                } if is_asked_for => {
                    return Err(not_here(
                        "a mount that is written to",
                        "what is written goes into the run's layer",
                    ));
                }
                PlanNode::Volume { .. } => return Err(not_here("a volume", "it keeps files for the run alone")),
                PlanNode::Base { .. } => {
                    return Err(not_here("a root of its own", "it runs no program of an image"));
                }
                _ => continue,
            };
            let hidden = hidden_below(plan, &entry.target);
            let tree = ServedTree::open(lower, upper.as_deref(), hidden, &plan.limits);
            let tree = tree.map_err(|errno| IsolationError::Step {
                level: Level::Simulated,
                step: "opening a directory that is served".to_owned(),
                subject: lower.to_string_lossy().into_owned(),
                source: errno.into(),
            })?;
            trees.push((entry.target.clone(), tree));
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

    /// Carries out what a worker asks.
    pub(crate) fn answer(&mut self, request: FileRequest) -> FileAnswer {
        let tree = usize::try_from(request.mount)
            .ok()
            .and_then(|number| self.trees.get_mut(number));
        match tree {
            Some((_, tree)) => tree.answer(&request.path, request.operation),
            None => FileAnswer::Failed {
                errno: rustix::io::Errno::INVAL.raw_os_error(),
            },
        }
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
        self.trees.iter().map(|(_, tree)| tree.layer_bytes()).sum()
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
