use std::fs;
use std::os::unix::fs::symlink;

use super::*;

/// Bytes that look encrypted, the same each time.
fn scrambled(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..length).map(|_| next()).collect()
}

struct Layers {
    _directory: tempfile::TempDir,
    upper: std::path::PathBuf,
    lower: std::path::PathBuf,
}

fn layers() -> Layers {
    let directory = tempfile::tempdir().unwrap();
    let [upper, lower] = ["upper", "lower"].map(|name| directory.path().join(name));
    fs::create_dir_all(upper.join("d")).unwrap();
    fs::create_dir_all(lower.join("d")).unwrap();
    for number in 0..20 {
        fs::write(
            lower.join(format!("d/f{number}.txt")),
            "words of a person, ".repeat(100),
        )
        .unwrap();
    }
    Layers {
        _directory: directory,
        upper,
        lower,
    }
}

fn counts(layers: &Layers) -> (WorkspaceCounts, WorkspaceWatch) {
    let mut watch = WorkspaceWatch::between(&layers.upper, &layers.lower).unwrap();
    watch.look(Instant::now());
    (watch.counts(), watch)
}

#[test]
fn files_that_become_noise_are_counted_and_edited_or_new_ones_are_not() {
    let layers = layers();
    for number in 0..5 {
        fs::write(layers.upper.join(format!("d/f{number}.txt")), scrambled(5000)).unwrap();
    }
    for number in 5..10 {
        fs::write(
            layers.upper.join(format!("d/f{number}.txt")),
            "other words, ".repeat(500),
        )
        .unwrap();
        fs::write(layers.upper.join(format!("d/new{number}.zip")), scrambled(5000)).unwrap();
    }
    // What was compressed before and is now is as it was.
    fs::write(layers.lower.join("d/a.zip"), scrambled(5000)).unwrap();
    fs::write(layers.upper.join("d/a.zip"), scrambled(6000)).unwrap();
    let (found, watch) = counts(&layers);
    assert_eq!((found.overwrites, found.removals, found.protected_names), (5, 0, 0));
    let examples = watch.examples(MonitorFigure::Overwrites);
    assert!(
        examples.len() == MAX_EXAMPLES && examples[0].starts_with("d/f"),
        "{examples:?}"
    );
}

#[test]
fn protected_names_are_counted_where_they_are_made() {
    let layers = layers();
    fs::create_dir_all(layers.upper.join("sub/.git/hooks")).unwrap();
    fs::write(layers.upper.join("sub/.git/hooks/post-commit"), "x").unwrap();
    fs::write(layers.upper.join("README.md"), "x").unwrap();
    let (found, watch) = counts(&layers);
    assert_eq!(found.protected_names, 1);
    assert_eq!(
        watch.examples(MonitorFigure::ProtectedNames),
        ["sub/.git/hooks/post-commit"]
    );
}

#[test]
fn a_file_that_is_gone_with_a_successor_beside_it_is_overwritten() {
    let names: HashSet<&[u8]> = [&b"a.txt.locked"[..], b"b.txt2"].into_iter().collect();
    assert!(has_successor(b"a.txt", &names));
    assert!(!has_successor(b"b.txt", &names) && !has_successor(b"c.txt", &names));
}

#[test]
fn links_are_not_followed_and_no_more_is_looked_at_than_may_be() {
    let layers = layers();
    symlink("/", layers.upper.join("root")).unwrap();
    symlink(layers.lower.join("d"), layers.upper.join("link")).unwrap();
    let mut deep = layers.upper.clone();
    for _ in 0..MAX_DEPTH + 5 {
        deep.push("x");
    }
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join(".envrc"), "x").unwrap();
    assert_eq!(counts(&layers).0, WorkspaceCounts::default());
    for number in 0..MAX_ENTRIES + 100 {
        fs::write(layers.upper.join(format!("{number}")), "").unwrap();
    }
    let mut watch = WorkspaceWatch::between(&layers.upper, &layers.lower).unwrap();
    let (upper, lower) = (
        rustix::fs::open(&layers.upper, DIRECTORY, Mode::empty()).unwrap(),
        rustix::fs::open(&layers.lower, DIRECTORY, Mode::empty()).unwrap(),
    );
    let mut look = WorkspaceLook {
        watch: &mut watch,
        counts: WorkspaceCounts::default(),
        entries: 0,
    };
    look.directory(&upper, Some(&lower), &mut Vec::new(), 0);
    assert_eq!(look.entries, MAX_ENTRIES);
}
