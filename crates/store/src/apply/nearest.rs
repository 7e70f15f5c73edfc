//! The directories of the host that new entries come into.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::failure::FileError;
use crate::node::TreeNode;
use crate::tree::TreeRoot;

/// What was found so far in one layer, so that a deep new tree is not climbed up again for each of its entries.
#[derive(Debug, Default)]
pub(crate) struct NearestDirectories {
    found: HashMap<PathBuf, TreeNode>,
}

impl NearestDirectories {
    /// The host's directory that is, or is above, the one that will hold `path`.
    pub(crate) fn of(&mut self, host: &TreeRoot, path: &Path) -> Result<&TreeNode, FileError> {
        let holding = path.parent().unwrap_or(Path::new(""));
        let mut nearest = None;
        let mut climbed = Vec::new();
        for above in holding.ancestors() {
            nearest = match self.found.get(above) {
                Some(node) => Some(node.clone()),
                None => directory(host, above)?,
            };
            climbed.push(above);
            if nearest.is_some() {
                break;
            }
        }
        let nearest = nearest.ok_or_else(|| FileError::new("examining", path, Errno::NOENT))?;
        for above in climbed {
            self.found.insert(above.to_owned(), nearest.clone());
        }
        Ok(self.found.entry(holding.to_owned()).or_insert(nearest))
    }
}

fn directory(host: &TreeRoot, path: &Path) -> Result<Option<TreeNode>, FileError> {
    match host.node(path) {
        // Anything else is going to be made, perhaps in place of a link.
        Ok(node) => Ok(node.filter(TreeNode::is_directory)),
        Err(Errno::LOOP) => Ok(None),
        Err(error) => Err(FileError::new("examining", path, error)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_was_found_is_not_looked_for_again() {
        let scratch = tempfile::tempdir().unwrap();
        let root = scratch.path().canonicalize().unwrap();
        fs::create_dir(root.join("d")).unwrap();
        let host = TreeRoot::host(&root).unwrap();
        let expected = host.node(Path::new("d")).unwrap();
        let mut nearest = NearestDirectories::default();
        let found = |node: Result<&TreeNode, FileError>| node.ok().cloned();
        assert_eq!(found(nearest.of(&host, Path::new("d/new/x"))), expected);
        fs::remove_dir(root.join("d")).unwrap();
        assert_eq!(found(nearest.of(&host, Path::new("d/new/x/y"))), expected);
        assert_eq!(found(nearest.of(&host, Path::new("d/z"))), expected);
    }
}
