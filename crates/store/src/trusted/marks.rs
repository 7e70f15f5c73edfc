//! What was found to be trusted, by path.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

use offleash_core::protected::folded_names;
use offleash_core::text::Text;

use super::LayerPath;
use crate::change::shown_path;
use crate::protection::ProtectionRules;

/// A tree of names, folded as protected names are. It has no recursion: paths can be thousands of names long.
#[derive(Debug, Default)]
pub(super) struct MarkTree {
    entries: Vec<MarkEntry>,
    roots: HashMap<usize, usize>,
}

#[derive(Debug, Default)]
struct MarkEntry {
    below: HashMap<Vec<u8>, usize>,
    /// Why it and everything beneath is trusted.
    whole: Option<Rc<str>>,
    /// Other names of it: what is beneath is trusted as it would be beneath those.
    names: Vec<LayerPath>,
}

impl MarkTree {
    /// It and everything beneath is trusted.
    pub(super) fn whole(&mut self, place: &LayerPath, why: &Rc<str>) {
        let entry = self.entry(place);
        self.entries[entry].whole.get_or_insert_with(|| why.clone());
    }

    /// It is what `name` leads to.
    pub(super) fn name(&mut self, place: &LayerPath, name: &LayerPath) {
        let entry = self.entry(place);
        let names = &mut self.entries[entry].names;
        if !names.contains(name) {
            names.push(name.clone());
        }
    }

    fn entry(&mut self, place: &LayerPath) -> usize {
        let mut at = match self.roots.get(&place.layer) {
            Some(root) => *root,
            None => {
                let root = self.add();
                self.roots.insert(place.layer, root);
                root
            }
        };
        for name in folded_names(place.path.as_os_str().as_bytes()) {
            at = match self.entries[at].below.get(&name) {
                Some(below) => *below,
                None => {
                    let below = self.add();
                    self.entries[at].below.insert(name, below);
                    below
                }
            };
        }
        at
    }

    fn add(&mut self) -> usize {
        self.entries.push(MarkEntry::default());
        self.entries.len() - 1
    }

    pub(super) fn rule(
        &self,
        protection: &ProtectionRules,
        roots: &[PathBuf],
        (layer, path): (usize, &Path),
        becomes_directory: bool,
    ) -> Option<String> {
        let mut at = *self.roots.get(&layer)?;
        let names = folded_names(path.as_os_str().as_bytes());
        let real = |depth| -> PathBuf {
            let normal = path.components().filter(|name| matches!(name, Component::Normal(_)));
            normal.skip(depth).collect()
        };
        for depth in 0..=names.len() {
            let entry = &self.entries[at];
            if let Some(why) = &entry.whole {
                return Some(why.to_string());
            }
            for name in &entry.names {
                let other = match depth == names.len() {
                    true => name.path.clone(),
                    false => name.path.join(real(depth)),
                };
                let root = roots.get(name.layer)?;
                if let Some(rule) = protection.rule(name.layer, root, &other, becomes_directory) {
                    let shown = Text::from(shown_path(roots, name.layer, &other));
                    return Some(format!("`{shown}` leads here: {rule}"));
                }
            }
            match names.get(depth).and_then(|name| entry.below.get(name)) {
                Some(below) => at = *below,
                None => return None,
            }
        }
        None
    }
}
