//! What a path inside the sandbox will be, seen from the host before the sandbox exists.
//!
//! Follows the links of the sandbox's own tree, not the host's: `/usr/bin/awk` may lead through `/etc/alternatives`
//! only if the sandbox has that. What it says is a forecast for hints and rules; what holds is what is mounted.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use offleash_core::plan::{PlanEntry, PlanNode};

use super::image_stack;

/// As many links as the kernel follows (path_resolution(7)).
const MAX_LINKS: usize = 40;

/// The entries of a plan, in any order as long as no two have one target.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlanView<'a> {
    entries: &'a [PlanEntry],
}

/// A file or directory that the sandbox takes from the host.
#[derive(Debug, Clone)]
pub(super) struct HostNode {
    /// The path inside, free of links.
    pub(super) inside: PathBuf,
    /// The host's path.
    pub(super) host: PathBuf,
    /// What it is.
    pub(super) metadata: Metadata,
}

impl<'a> PlanView<'a> {
    pub(super) fn new(entries: &'a [PlanEntry]) -> Self {
        Self { entries }
    }

    /// The entry at exactly this path.
    pub(super) fn entry_at(&self, inside: &Path) -> Option<&'a PlanEntry> {
        self.entries.iter().find(|entry| entry.target == inside)
    }

    /// The deepest entry at or above this path.
    pub(super) fn entry_above(&self, inside: &Path) -> Option<&'a PlanEntry> {
        let above = self.entries.iter().filter(|entry| inside.starts_with(&entry.target));
        above.max_by_key(|entry| entry.target.components().count())
    }

    /// The host's path of what is at `inside`, if it comes from the host; links are not looked at.
    pub(super) fn host_path(&self, inside: &Path) -> Option<PathBuf> {
        let entry = self.entry_above(inside)?;
        let rest = inside.strip_prefix(&entry.target).ok()?;
        let source = source_of(&entry.node)?;
        if let PlanNode::Base { lower, stack, .. } = &entry.node
            && !stack.is_empty()
        {
            return image_stack::path_in(lower, stack, rest);
        }
        if rest.as_os_str().is_empty() {
            return Some(source.to_path_buf());
        }
        let lower = source.join(rest);
        let mut built = uppers_built(&entry.node).into_iter().map(|upper| upper.join(rest));
        Some(built.find(|path| covers(path, &lower)).unwrap_or(lower))
    }

    /// The names in a directory that was resolved, from wherever they come.
    pub(super) fn names_in(&self, directory: &HostNode) -> BTreeSet<OsString> {
        let rest = |entry: &'a PlanEntry| directory.inside.strip_prefix(&entry.target).ok();
        if let Some(entry) = self.entry_above(&directory.inside)
            && let PlanNode::Base { lower, stack, .. } = &entry.node
            && !stack.is_empty()
        {
            return rest(entry).map_or_else(BTreeSet::new, |rest| image_stack::names_in(lower, stack, rest));
        }
        let parts = self.entry_above(&directory.inside).map(|entry| {
            let source = source_of(&entry.node).map(Path::to_owned);
            let roots = source.into_iter().chain(uppers_built(&entry.node));
            roots.map(move |root| Some(root.join(rest(entry)?)))
        });
        let parts = parts.into_iter().flatten().flatten();
        let entries = parts.flat_map(|path| fs::read_dir(path).into_iter().flatten().flatten());
        entries.map(|found| found.file_name()).collect()
    }

    /// What `inside` leads to, following links as they lead inside.
    pub(super) fn resolve(&self, inside: &Path) -> Option<HostNode> {
        let mut current = PathBuf::from("/");
        let mut todo = names(inside);
        let mut links = 0;
        while let Some(name) = todo.pop_front() {
            if name == ".." {
                current.pop();
                continue;
            }
            current.push(name);
            let Some(to) = self.link_at(&current) else { continue };
            links += 1;
            if links > MAX_LINKS {
                return None;
            }
            current.pop();
            if to.is_absolute() {
                current = PathBuf::from("/");
            }
            for name in names(&to).into_iter().rev() {
                todo.push_front(name);
            }
        }
        let host = self.host_path(&current)?;
        let metadata = fs::symlink_metadata(&host).ok()?;
        Some(HostNode {
            inside: current,
            host,
            metadata,
        })
    }

    fn link_at(&self, inside: &Path) -> Option<PathBuf> {
        if let Some(entry) = self.entry_at(inside) {
            return if let PlanNode::Symlink { to } = &entry.node {
                Some(to.clone())
            } else {
                None
            };
        }
        fs::read_link(self.host_path(inside)?).ok()
    }

    /// The trees that come from the host: where they are inside, and where on the host.
    pub(super) fn host_trees(&self) -> impl Iterator<Item = (&'a Path, &'a Path)> {
        self.entries
            .iter()
            .filter_map(|entry| Some((entry.target.as_path(), source_of(&entry.node)?)))
    }
}

/// The host's path behind a node.
pub(super) fn source_of(node: &PlanNode) -> Option<&Path> {
    match node {
        PlanNode::Bind { source, .. } | PlanNode::Volume { source, .. } => Some(source),
        PlanNode::Overlay { lower, .. } | PlanNode::Base { lower, .. } => Some(lower),
        _ => None,
    }
}

/// What a snapshot and a template hold of a part of a root, the topmost first.
fn uppers_built(node: &PlanNode) -> Vec<PathBuf> {
    let PlanNode::Base { template, snapshot, .. } = node else {
        return Vec::new();
    };
    let layers = [snapshot, template].into_iter().flatten();
    layers.map(|layer| layer.join("upper")).collect()
}

/// Whether what a template has at `path` is what is seen, and not the host's at `lower`: directories of both are one.
fn covers(path: &Path, lower: &Path) -> bool {
    let is_directory = |path| fs::symlink_metadata(path).map(|found| found.is_dir());
    match is_directory(path) {
        Ok(true) => !is_directory(lower).unwrap_or(false),
        Ok(false) => true,
        Err(_) => false,
    }
}

impl HostNode {
    /// Whether it is a file that somebody may execute.
    pub(super) fn is_executable(&self) -> bool {
        self.metadata.is_file() && self.metadata.mode() & 0o111 != 0
    }
}

fn names(path: &Path) -> VecDeque<OsString> {
    path.components()
        .filter_map(|component| match component {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use offleash_core::spec::MountAccess;

    use super::*;

    fn entry(target: &str, node: PlanNode) -> PlanEntry {
        PlanEntry {
            target: target.into(),
            node,
            rule: String::new(),
        }
    }

    #[test]
    fn a_template_covers_files_and_adds_to_directories() {
        let scratch = tempfile::tempdir().unwrap();
        let (host, layer) = (scratch.path().join("host"), scratch.path().join("layer"));
        for directory in [host.join("bin"), layer.join("upper/bin"), layer.join("upper/new")] {
            fs::create_dir_all(directory).unwrap();
        }
        for file in [
            "host/bin/a",
            "host/bin/b",
            "layer/upper/bin/b",
            "layer/upper/bin/c",
            "layer/upper/new/d",
        ] {
            fs::write(scratch.path().join(file), file).unwrap();
        }
        symlink("/usr/new/d", layer.join("upper/bin/e")).unwrap();
        let entries = [entry(
            "/usr",
            PlanNode::Base {
                lower: host.clone(),
                stack: Vec::new(),
                template: Some(layer.clone()),
                snapshot: None,
                skeleton: None,
                layer: scratch.path().into(),
            },
        )];
        let view = PlanView::new(&entries);
        let read = |path: &str| fs::read_to_string(view.resolve(Path::new(path))?.host).ok();
        for (path, expected) in [
            ("/usr/bin/a", "host/bin/a"),
            ("/usr/bin/b", "layer/upper/bin/b"),
            ("/usr/bin/c", "layer/upper/bin/c"),
            ("/usr/new/d", "layer/upper/new/d"),
            ("/usr/bin/e", "layer/upper/new/d"),
        ] {
            assert_eq!(read(path).as_deref(), Some(expected), "{path}");
        }
        let names = |path: &str| view.names_in(&view.resolve(Path::new(path)).unwrap());
        assert_eq!(names("/usr/bin"), ["a", "b", "c", "e"].map(OsString::from).into());
        assert_eq!(names("/usr/new"), [OsString::from("d")].into());
        assert!(view.resolve(Path::new("/usr/bin/f")).is_none());
    }

    #[test]
    fn links_lead_where_they_lead_inside() {
        let host = tempfile::tempdir().unwrap();
        fs::write(host.path().join("real"), "").unwrap();
        symlink("/alternatives/tool", host.path().join("tool")).unwrap();
        symlink("/etc/passwd", host.path().join("out")).unwrap();
        symlink("loop", host.path().join("loop")).unwrap();
        symlink("../../../opt/real", host.path().join("up")).unwrap();
        let entries = [
            entry(
                "/opt",
                PlanNode::Bind {
                    source: host.path().into(),
                    access: MountAccess::Ro,
                },
            ),
            entry("/alternatives", PlanNode::Directory),
            entry(
                "/alternatives/tool",
                PlanNode::Symlink {
                    to: "../opt/real".into(),
                },
            ),
        ];
        let view = PlanView::new(&entries);
        for (path, expected) in [
            ("/opt/real", Some("/opt/real")),
            ("/opt/tool", Some("/opt/real")),
            ("/opt/up", Some("/opt/real")),
            ("/opt/../opt/./real", Some("/opt/real")),
            ("/opt/out", None),
            ("/opt/loop", None),
            ("/opt/none", None),
            ("/alternatives", None),
        ] {
            let found = view.resolve(Path::new(path)).map(|found| found.inside);
            assert_eq!(found.as_deref(), expected.map(Path::new), "{path}");
        }
    }
}
