//! Other names of what is protected: files in a workspace to which a protected name leads.
//!
//! A hook that is a link, a shell's file that leads elsewhere, a directory of hooks or a program that configuration names:
//! what is there runs as the protected name would. So changes to it are held back as those of protected names are.
//!
//! 1. [`mod@search`]: which protected names the host has, and which the run made.
//! 2. [`follow`]: where they lead, by links, by a repository's files and by settings. Each entry is looked at in both forms
//!    that it may have when changes were applied: that of the host and that of the run. So it does not matter which
//!    changes are applied first, or which are named.
//! 3. [`marks`]: what was found, by path.
//!
//! All is looked up anew whenever changes are listed, shown or applied, by directory descriptor and without following a
//! link: links are read, and what they say is walked name by name, within the workspace only. What does not change in
//! the layer under the sandbox cannot change what is trusted. Everything is bounded; where a sandbox could exceed a bound,
//! nothing is applied unless named.
//!
//! Not here: what a named program itself starts or reads; conditions of includes, which count as met.

mod contents;
mod follow;
mod forms;
mod marks;
mod outside;
mod search;

use std::path::{Path, PathBuf};

use offleash_core::path_rules::PathPattern;

use crate::change::{LayerChange, LayerTrees};
use crate::protection::ProtectionRules;
use crate::tree::TreeRoot;

use follow::TrustFollower;
use forms::EntryForms;
use marks::MarkTree;
pub(crate) use search::search;

/// An entry in a layer; the path is empty for the layer's root.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct LayerPath {
    pub(crate) layer: usize,
    pub(crate) path: PathBuf,
}

impl LayerPath {
    fn new(layer: usize, path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        Self { layer, path }
    }

    fn join(&self, name: impl AsRef<Path>) -> Self {
        Self::new(self.layer, self.path.join(name))
    }

    /// The directory that it is in; a root's is itself.
    fn parent(&self) -> Self {
        Self::new(self.layer, self.path.parent().unwrap_or(Path::new("")))
    }
}

/// What is looked at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TrustSurroundings<'a> {
    pub(crate) trees: &'a [LayerTrees],
    /// Sorted by layer and path.
    pub(crate) changes: &'a [LayerChange],
    pub(crate) protection: &'a ProtectionRules,
    /// What `~` stands for on the host.
    pub(crate) home: Option<&'a Path>,
}

/// What protected names lead to.
#[derive(Debug, Default)]
pub(crate) struct TrustedPaths {
    marks: MarkTree,
    /// More was to be followed than is.
    too_much: bool,
}

impl TrustedPaths {
    /// Whether any change is one for which names have to be found: not of git's own data.
    pub(crate) fn matters_to(changes: &[LayerChange]) -> bool {
        changes
            .iter()
            .any(|change| change.protected.is_none() && !is_data_of_git(change))
    }

    /// Follows what leads from the protected names that the host has at `found`, and from those that changed.
    pub(crate) fn find(around: TrustSurroundings<'_>, found: &[LayerPath]) -> Self {
        let mut follow = TrustFollower::new(EntryForms::new(around), around.home);
        follow.starts(found);
        follow.starts(&search::changed(around));
        follow.finish()
    }

    /// Why the entry `path` of a layer is protected, where a directory or something else is to be.
    pub(crate) fn rule(
        &self,
        protection: &ProtectionRules,
        roots: &[PathBuf],
        (layer, path): (usize, &Path),
        becomes_directory: bool,
    ) -> Option<String> {
        if self.too_much {
            return Some("more leads from protected names than is followed".to_owned());
        }
        self.marks.rule(protection, roots, (layer, path), becomes_directory)
    }
}

/// Why a change to `path` in the workspace at `root` would be held back because of what leads there on the host now:
/// for who only asks.
pub fn led_to(root: &Path, path: &Path, protect: &[PathPattern], home: Option<&Path>) -> Option<String> {
    let trees = [LayerTrees {
        root: root.to_owned(),
        upper: TreeRoot::host(root).ok()?,
        host: TreeRoot::host(root).ok()?,
    }];
    let protection = ProtectionRules::new(protect.to_vec(), Some(root.to_owned()), home.map(Path::to_owned));
    let around = TrustSurroundings {
        trees: &trees,
        changes: &[],
        protection: &protection,
        home,
    };
    let trusted = TrustedPaths::find(around, &search(&trees, &protection));
    trusted.rule(&protection, &[root.to_owned()], (0, path), false)
}

/// What git keeps in a repository, of which nothing is ever run: in that of the workspace's top, or in another layer.
fn is_data_of_git(change: &LayerChange) -> bool {
    const DATA: [&str; 10] = [
        "index",
        "index.lock",
        "objects",
        "refs",
        "logs",
        "HEAD",
        "ORIG_HEAD",
        "FETCH_HEAD",
        "COMMIT_EDITMSG",
        "packed-refs",
    ];
    let mut names = change.path.components().map(|name| name.as_os_str());
    let is_git = change.layer > 0 || names.next().is_some_and(|name| name == ".git");
    is_git && names.next().is_some_and(|name| DATA.iter().any(|data| name == *data))
}

#[cfg(test)]
mod tests;
