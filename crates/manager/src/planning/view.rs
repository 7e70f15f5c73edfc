//! What a path inside the sandbox will be, seen from the host before the sandbox exists.
//!
//! Follows the links of the sandbox's own tree, not the host's: `/usr/bin/awk` may lead through `/etc/alternatives`
//! only if the sandbox has that. What it says is a forecast for hints and rules; what holds is what is mounted.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use offleash_core::plan::{Entry, Node};

/// As many links as the kernel follows (path_resolution(7)).
const MOST_LINKS: usize = 40;

/// The entries of a plan, in any order as long as no two have one target.
#[derive(Debug, Clone, Copy)]
pub(super) struct View<'a> {
    entries: &'a [Entry],
}

/// A file or directory that the sandbox takes from the host.
#[derive(Debug, Clone)]
pub(super) struct Found {
    /// The path inside, free of links.
    pub(super) inside: PathBuf,
    /// The host's path.
    pub(super) host: PathBuf,
    /// What it is.
    pub(super) metadata: Metadata,
}

impl<'a> View<'a> {
    pub(super) fn new(entries: &'a [Entry]) -> Self {
        Self { entries }
    }

    /// The entry at exactly this path.
    pub(super) fn entry_at(&self, inside: &Path) -> Option<&'a Entry> {
        self.entries.iter().find(|entry| entry.target == inside)
    }

    /// The deepest entry at or above this path.
    pub(super) fn entry_above(&self, inside: &Path) -> Option<&'a Entry> {
        let above = self.entries.iter().filter(|entry| inside.starts_with(&entry.target));
        above.max_by_key(|entry| entry.target.components().count())
    }

    /// The host's path of what is at `inside`, if it comes from the host; links are not looked at.
    pub(super) fn host_path(&self, inside: &Path) -> Option<PathBuf> {
        let entry = self.entry_above(inside)?;
        let rest = inside.strip_prefix(&entry.target).ok()?;
        let source = source_of(&entry.node)?;
        Some(if rest.as_os_str().is_empty() {
            source.to_path_buf()
        } else {
            source.join(rest)
        })
    }

    /// What `inside` leads to, following links as they lead inside.
    pub(super) fn resolve(&self, inside: &Path) -> Option<Found> {
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
            if links > MOST_LINKS {
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
        Some(Found {
            inside: current,
            host,
            metadata,
        })
    }

    fn link_at(&self, inside: &Path) -> Option<PathBuf> {
        if let Some(entry) = self.entry_at(inside) {
            return if let Node::Symlink { to } = &entry.node {
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
pub(super) fn source_of(node: &Node) -> Option<&Path> {
    match node {
        Node::Bind { source, .. } => Some(source),
        Node::Overlay { lower, .. } | Node::Base { lower, .. } => Some(lower),
        _ => None,
    }
}

impl Found {
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

    use offleash_core::spec::Access;

    use super::*;

    fn entry(target: &str, node: Node) -> Entry {
        Entry {
            target: target.into(),
            node,
            rule: String::new(),
        }
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
                Node::Bind {
                    source: host.path().into(),
                    access: Access::Ro,
                },
            ),
            entry("/alternatives", Node::Directory),
            entry(
                "/alternatives/tool",
                Node::Symlink {
                    to: "../opt/real".into(),
                },
            ),
        ];
        let view = View::new(&entries);
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
