//! Random trees and random edits: applying what a layer holds gives the tree that was edited.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::testing::opaque;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Entry {
    File { contents: Vec<u8>, mode: u32 },
    Link(&'static str),
    Directory { entries: Tree, mode: u32 },
}

type Tree = BTreeMap<&'static str, Entry>;

fn tree(depth: u32) -> BoxedStrategy<Tree> {
    let names = prop::sample::select(vec!["a", "b", "c", "new\nline", "é"]);
    prop::collection::btree_map(names, entry(depth), 0..4).boxed()
}

fn entry(depth: u32) -> BoxedStrategy<Entry> {
    let contents = prop::sample::select(vec![&b""[..], b"x", b"y", b"longer\n"]);
    let file = (contents, prop::sample::select(vec![0o644, 0o755, 0o400])).prop_map(|(contents, mode)| Entry::File {
        contents: contents.to_vec(),
        mode,
    });
    let link = prop::sample::select(vec!["a", "b/c"]).prop_map(Entry::Link);
    if depth == 0 {
        return prop_oneof![3 => file, 1 => link].boxed();
    }
    let directory = (tree(depth - 1), prop::sample::select(vec![0o755, 0o700, 0o555]))
        .prop_map(|(entries, mode)| Entry::Directory { entries, mode });
    prop_oneof![3 => file, 1 => link, 3 => directory].boxed()
}

fn build(root: &Path, tree: &Tree) {
    for (name, entry) in tree {
        let path = root.join(name);
        match entry {
            Entry::File { contents, mode } => {
                write(&path, contents);
                chmod(&path, *mode);
            }
            Entry::Link(target) => symlink(target, &path).unwrap(),
            Entry::Directory { entries, mode } => {
                fs::create_dir(&path).unwrap();
                build(&path, entries);
                chmod(&path, *mode);
            }
        }
    }
}

/// What overlayfs leaves when the tree `old` is turned into `new`.
fn layer(upper: &Path, old: &Tree, new: &Tree) {
    for name in old.keys().filter(|name| !new.contains_key(*name)) {
        whiteout(upper.join(name));
    }
    for (name, entry) in new {
        let path = upper.join(name);
        match (old.get(name), entry) {
            (Some(before), after) if before == after => {}
            (Some(Entry::Directory { entries: old, .. }), Entry::Directory { entries, mode }) => {
                fs::create_dir(&path).unwrap();
                layer(&path, old, entries);
                chmod(&path, *mode);
            }
            (replaced, Entry::Directory { entries, mode }) => {
                fs::create_dir(&path).unwrap();
                build(&path, entries);
                if replaced.is_some() {
                    opaque(&path);
                }
                chmod(&path, *mode);
            }
            _ => build(upper, &Tree::from([(*name, entry.clone())])),
        }
    }
}

fn unlock(root: &Path) {
    for entry in fs::read_dir(root).unwrap() {
        let path = entry.unwrap().path();
        if fs::symlink_metadata(&path).unwrap().is_dir() {
            chmod(&path, 0o755);
            unlock(&path);
        }
    }
}

/// Without times: those of the two trees differ.
fn found(root: &Path) -> Vec<(PathBuf, u32, Vec<u8>)> {
    snapshot(root)
        .into_iter()
        .map(|(path, (mode, contents, _))| (path, mode, contents))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn applying_gives_the_edited_tree(old in tree(2), new in tree(2), stop in 0_usize..60) {
        let scratch = TestScratch::new();
        build(&scratch.workspace, &old);
        let expected = scratch.base.join("expected");
        fs::create_dir(&expected).unwrap();
        build(&expected, &new);
        let live = scratch.start();
        layer(&upper(&live), &old, &new);
        if let Some(mut run) = live.finish().unwrap().run {
            let before = snapshot(&scratch.workspace);
            if run.apply_until(&all(), &mut ApplySteps::limited(stop, stop % 2 == 0)).is_err() {
                crate::reap(&scratch.state).unwrap();
                let now = snapshot(&scratch.workspace);
                prop_assert!(now == before || found(&scratch.workspace) == found(&expected));
            }
            let again = StoredRun::open(&scratch.state, run.id()).unwrap().apply(&all());
            prop_assert!(matches!(again, Ok(ApplyReport { pending: 0, .. }) | Err(ApplyError::Run(RunError::AlreadyApplied { .. }))), "{again:?}");
        }
        prop_assert_eq!(found(&scratch.workspace), found(&expected));
        unlock(&scratch.workspace);
        unlock(&expected);
    }
}
