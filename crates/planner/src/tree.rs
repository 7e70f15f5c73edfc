//! The entries of a plan while they are collected, and their final order.

use std::path::Path;

use offleash_core::plan::{PlanEntry, PlanNode};
use offleash_core::text::Text;
use offleash_core::units::Bytes;

use super::error::PlanError;
use super::reach;
use super::view::PlanView;

/// Entries of which no two have one target.
#[derive(Debug, Default)]
pub(super) struct EntryTree {
    entries: Vec<PlanEntry>,
}

impl EntryTree {
    pub(super) fn view(&self) -> PlanView<'_> {
        PlanView::new(&self.entries)
    }

    pub(super) fn entries(&self) -> &[PlanEntry] {
        &self.entries
    }

    /// Adds what does not depend on the owner's wishes.
    pub(super) fn add_system(&mut self, entries: impl IntoIterator<Item = PlanEntry>) {
        self.entries.extend(entries);
    }

    /// Adds what the owner asked for, after checking that it can be mounted there. What the sandbox has for itself
    /// (`/tmp`, a file that we write) gives way.
    ///
    /// # Errors
    /// When the place is taken or cannot be mounted upon.
    pub(super) fn add(&mut self, role: &'static str, entry: PlanEntry, directory: bool) -> Result<(), PlanError> {
        reach::check_place(role, &entry.target, directory, &self.entries)?;
        let own = self.entries.iter().find(|other| other.target == entry.target);
        if directory && own.is_some_and(|own| matches!(own.node, PlanNode::File { .. })) {
            return Err(PlanError::Target {
                role,
                path: Text::from(&entry.target),
                reason: "is a file that the sandbox has for itself, and a directory cannot take its place".to_owned(),
                hint: "name a file to take its place, or choose a target elsewhere, such as /mnt/data",
            });
        }
        match self.entries.iter().position(|other| other.target == entry.target) {
            None => self.entries.push(entry),
            Some(place) if gives_way(&self.entries[place]) => self.entries[place] = entry,
            Some(place) => {
                return Err(PlanError::Target {
                    role,
                    path: Text::from(&entry.target),
                    reason: format!("is taken by `{}`", self.entries[place].rule),
                    hint: "choose another target, or remove one of the two",
                });
            }
        }
        Ok(())
    }

    /// Adds a rule's entry in the place of whatever was there.
    pub(super) fn put(&mut self, entry: PlanEntry) {
        self.entries.retain(|other| other.target != entry.target);
        self.entries.push(entry);
    }

    /// Removes the entries at exactly the targets for which `drop` holds.
    pub(super) fn remove_where(&mut self, drop: impl Fn(&PlanEntry) -> bool) {
        self.entries.retain(|entry| !drop(entry));
    }

    /// Hides what is at `inside`, unless something above it is hidden already.
    pub(super) fn hide(&mut self, inside: &Path, directory: bool, rule: String) {
        let hidden_above = self
            .view()
            .entry_above(inside)
            .is_some_and(|above| matches!(above.node, PlanNode::Hidden { .. }));
        if !hidden_above {
            self.put(PlanEntry {
                target: inside.to_path_buf(),
                node: PlanNode::Hidden { directory },
                rule,
            });
        }
    }

    /// The entries in the order in which they are mounted: whatever is above comes first, so that no entry is covered
    /// by one that is mounted later, and a hidden directory stays hidden around what is granted inside it.
    pub(super) fn into_order(mut self) -> Vec<PlanEntry> {
        for index in 0..self.entries.len() {
            // Nothing can be mounted in what is hidden; an empty directory in its place shows as little.
            if matches!(self.entries[index].node, PlanNode::Hidden { .. })
                && self.holds_more(&self.entries[index].target)
            {
                self.entries[index].node = COVER;
            }
        }
        // Among those of one depth any order would do; this one is always the same.
        self.entries
            .sort_by_cached_key(|entry| (entry.target.components().count(), entry.target.as_os_str().to_owned()));
        self.entries
    }

    /// Whether there are entries below `target`.
    fn holds_more(&self, target: &Path) -> bool {
        let mut others = self.entries.iter().map(|entry| entry.target.as_path());
        others.any(|other| other != target && other.starts_with(target))
    }
}

/// Enough for mount points, too little for anything else.
const COVER: PlanNode = PlanNode::Tmpfs {
    size: Some(Bytes(64 << 10)),
    inodes: Some(64),
    mode: 0o555,
};

fn gives_way(entry: &PlanEntry) -> bool {
    entry.rule.starts_with("system: ")
        && matches!(
            entry.node,
            PlanNode::Tmpfs { .. } | PlanNode::File { .. } | PlanNode::Directory | PlanNode::Home { .. }
        )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry(target: &str, node: PlanNode) -> PlanEntry {
        PlanEntry {
            target: target.into(),
            node,
            rule: String::new(),
        }
    }

    #[test]
    fn what_is_hidden_stays_hidden_around_what_is_granted_in_it() {
        let mut tree = EntryTree::default();
        tree.add_system([entry("/a/b/c", PlanNode::Directory), entry("/a", PlanNode::Directory)]);
        tree.hide(Path::new("/a/b"), true, "deny".into());
        tree.hide(Path::new("/x"), true, "deny".into());
        let order = tree.into_order();
        let targets: Vec<_> = order.iter().map(|entry| entry.target.to_str().unwrap()).collect();
        assert_eq!(targets, ["/a", "/x", "/a/b", "/a/b/c"]);
        assert_eq!(order[1].node, PlanNode::Hidden { directory: true });
        assert_eq!(order[2].node, COVER);
    }

    #[test]
    fn a_file_of_the_sandbox_s_own_gives_way_to_a_file_and_to_no_directory() {
        let file = || PlanNode::File { contents: Vec::new() };
        let mut tree = EntryTree::default();
        let own = PlanEntry {
            rule: "system: /etc/passwd".to_owned(),
            ..entry("/etc/passwd", file())
        };
        tree.add_system([entry("/etc", PlanNode::Directory), own]);
        let refused = tree.add("mount", entry("/etc/passwd", COVER), true).unwrap_err();
        assert!(refused.to_string().contains("is a file"), "{refused}");
        assert!(tree.add("mount", entry("/etc/passwd", file()), false).is_ok());
        assert_eq!(tree.entries().len(), 2);
    }

    #[test]
    fn nothing_is_hidden_twice() {
        let mut tree = EntryTree::default();
        tree.hide(Path::new("/a"), true, "first".into());
        tree.hide(Path::new("/a/b"), true, "second".into());
        assert_eq!(tree.entries().len(), 1);
    }

    proptest! {
        #[test]
        fn nothing_is_mounted_before_what_is_above_it(
            targets in prop::collection::vec("(/(a|b|c)){1,4}", 1..12), hidden in prop::collection::vec("(/(a|b|c)){1,4}", 0..4),
        ) {
            let mut tree = EntryTree::default();
            for target in &targets {
                tree.put(entry(target, PlanNode::Directory));
            }
            for path in &hidden {
                tree.hide(Path::new(path), true, String::new());
            }
            let order = tree.into_order();
            for (index, later) in order.iter().enumerate() {
                for earlier in &order[..index] {
                    prop_assert!(!earlier.target.starts_with(&later.target), "{:?} covers {:?}", later, earlier);
                    let uncovers = later.target.starts_with(&earlier.target) && matches!(earlier.node, PlanNode::Hidden { .. });
                    prop_assert!(!uncovers, "{:?} uncovers {:?}", later, earlier);
                }
            }
        }
    }
}
