use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::*;

fn open(path: &Path) -> OwnedFd {
    rustix::fs::open(
        path,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .unwrap()
}

fn walk(path: &Path) -> LayerWalk {
    LayerWalk::new(open(path).as_fd()).unwrap()
}

fn count(path: &Path) -> WalkCounts {
    let mut walk = walk(path);
    assert!(walk.advance(None));
    walk.counts()
}

/// Makes `depth` directories within each other, without a path longer than a name; the deepest one holds a file.
fn nest(root: &Path, depth: usize) {
    let mut directory = open(root);
    for _ in 0..depth {
        rustix::fs::mkdirat(&directory, "d", Mode::RWXU).unwrap();
        directory = rustix::fs::openat(&directory, "d", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
    let flags = OFlags::CREATE | OFlags::WRONLY;
    drop(rustix::fs::openat(&directory, "deepest", flags, Mode::RUSR).unwrap());
}

#[test]
fn nothing_counts_as_nothing() {
    let root = tempfile::tempdir().unwrap();
    assert_eq!(count(root.path()), WalkCounts::default());
}

#[test]
fn everything_below_counts_by_what_it_takes_on_disk() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join("a/b")).unwrap();
    fs::write(root.path().join("a/b/file"), vec![1; 100_000]).unwrap();
    let sparse = fs::File::create(root.path().join("sparse")).unwrap();
    sparse.set_len(1 << 40).unwrap();
    symlink("/usr", root.path().join("link")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, root.path().join("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    let counts = count(root.path());
    assert_eq!(counts.inodes, 6);
    assert!((100_000..200_000).contains(&counts.bytes), "{}", counts.bytes);
}

#[test]
fn a_link_out_of_the_directory_is_not_followed() {
    let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(outside.path().join("large"), vec![1; 1 << 20]).unwrap();
    symlink(outside.path(), root.path().join("out")).unwrap();
    symlink("..", root.path().join("up")).unwrap();
    let counts = count(root.path());
    assert_eq!(counts.inodes, 2);
    assert!(counts.bytes < 1 << 20);
}

#[test]
fn hard_links_take_their_bytes_once_and_their_names_each() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("d")).unwrap();
    fs::write(root.path().join("first"), vec![1; 1 << 20]).unwrap();
    for number in 0..10 {
        fs::hard_link(root.path().join("first"), root.path().join(format!("d/{number}"))).unwrap();
    }
    let counts = count(root.path());
    assert_eq!((counts.inodes, counts.names), (2, 12));
    assert!((1 << 20..2 << 20).contains(&counts.bytes), "{}", counts.bytes);
}

#[test]
fn a_directory_with_more_entries_than_any_buffer_is_read_to_the_end() {
    let root = tempfile::tempdir().unwrap();
    for number in 0..1500 {
        fs::create_dir(root.path().join(format!("directory-with-a-longer-name-{number}"))).unwrap();
        fs::write(root.path().join(format!("file-{number}")), "").unwrap();
        fs::write(
            root.path().join(format!("directory-with-a-longer-name-{number}/inner")),
            "",
        )
        .unwrap();
    }
    assert_eq!(count(root.path()).inodes, 4500);
}

#[test]
fn a_walk_in_slices_finds_the_same() {
    let root = tempfile::tempdir().unwrap();
    for number in 0..300 {
        fs::create_dir_all(root.path().join(format!("{}/{number}", number % 7))).unwrap();
        fs::write(root.path().join(format!("{}/{number}/f", number % 7)), "x").unwrap();
    }
    let mut walk = walk(root.path());
    let mut slices = 1;
    while !walk.advance(Some(Instant::now())) {
        slices += 1;
        assert!(slices < 10_000);
    }
    assert!(slices > 100, "{slices}");
    assert_eq!(walk.counts(), count(root.path()));
}

#[test]
fn a_deep_tree_is_walked_with_few_descriptors_and_up_to_a_bound() {
    let root = tempfile::tempdir().unwrap();
    nest(root.path(), 600);
    // Siblings, so that the levels that were closed on the way down are needed again on the way up.
    fs::create_dir_all(root.path().join("d/d/sibling/inner")).unwrap();
    fs::create_dir_all(root.path().join("d/another/inner")).unwrap();
    let mut walk = walk(root.path());
    let mut most_open = 0;
    while !walk.advance(Some(Instant::now())) {
        most_open = most_open.max(walk.levels.iter().filter(|level| level.directory.is_some()).count());
    }
    assert!(most_open <= OPEN_LEVELS + 1, "{most_open}");
    assert_eq!(walk.counts().inodes, 600 + 1 + 4);
    assert_eq!(walk.counts().depth, 600);
}

#[test]
fn deeper_than_the_bound_is_told_and_not_walked() {
    let root = tempfile::tempdir().unwrap();
    let levels = usize::try_from(MAX_DEPTH).unwrap();
    nest(root.path(), levels);
    let counts = count(root.path());
    assert_eq!((counts.depth, counts.inodes), (MAX_DEPTH, MAX_DEPTH + 1));
    let root = tempfile::tempdir().unwrap();
    nest(root.path(), levels + 5);
    let counts = count(root.path());
    assert_eq!((counts.depth, counts.inodes), (MAX_DEPTH + 1, MAX_DEPTH + 1));
}

#[test]
fn a_closed_directory_of_ours_is_measured_and_keeps_its_mode() {
    let root = tempfile::tempdir().unwrap();
    let directories = ["none", "read-only", "search-only"];
    for (name, mode) in directories.into_iter().zip([0o000, 0o444, 0o111]) {
        fs::create_dir(root.path().join(name)).unwrap();
        fs::write(root.path().join(name).join("f"), vec![1; 1 << 20]).unwrap();
        fs::set_permissions(root.path().join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let counts = count(root.path());
    let modes: Vec<u32> = directories
        .iter()
        .map(|name| {
            fs::symlink_metadata(root.path().join(name))
                .unwrap()
                .permissions()
                .mode()
                & 0o7777
        })
        .collect();
    for name in directories {
        fs::set_permissions(root.path().join(name), fs::Permissions::from_mode(0o700)).unwrap();
    }
    assert_eq!(modes, [0o000, 0o444, 0o111]);
    assert_eq!(counts.inodes, 6);
    assert!(counts.bytes >= 3 << 20, "{}", counts.bytes);
    assert!(!counts.hidden && !counts.foreign);
}

#[test]
fn a_name_that_becomes_a_link_and_back_never_leads_out() {
    let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::create_dir_all(outside.path().join("inner")).unwrap();
    for number in 0..50 {
        fs::write(outside.path().join(format!("inner/{number}")), vec![1; 1 << 16]).unwrap();
    }
    let mode_outside = fs::Permissions::from_mode(0o111);
    fs::set_permissions(outside.path().join("inner"), mode_outside).unwrap();
    fs::create_dir_all(root.path().join("real")).unwrap();
    symlink(outside.path().join("inner"), root.path().join("link")).unwrap();
    let stop = AtomicBool::new(false);
    let mut most = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let directory = open(root.path());
            while !stop.load(Ordering::Relaxed) {
                let flags = rustix::fs::RenameFlags::EXCHANGE;
                rustix::fs::renameat_with(&directory, "real", &directory, "link", flags).unwrap();
            }
        });
        let until = Instant::now() + Duration::from_millis(300);
        while Instant::now() < until {
            most = most.max(count(root.path()).inodes);
        }
        stop.store(true, Ordering::Relaxed);
    });
    let after = fs::symlink_metadata(outside.path().join("inner"))
        .unwrap()
        .permissions()
        .mode()
        & 0o777;
    fs::set_permissions(outside.path().join("inner"), fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(after, 0o111, "the mode of a directory outside was changed");
    assert!(most <= 2, "{most} entries were counted where there are two");
}

#[test]
fn a_file_that_is_moved_during_the_walk_counts_at_most_once() {
    let root = tempfile::tempdir().unwrap();
    for name in ["a", "b"] {
        fs::create_dir(root.path().join(name)).unwrap();
    }
    fs::write(root.path().join("a/large"), vec![1; 1 << 20]).unwrap();
    let stop = AtomicBool::new(false);
    let mut most = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                fs::rename(root.path().join("a/large"), root.path().join("b/large")).unwrap();
                fs::rename(root.path().join("b/large"), root.path().join("a/large")).unwrap();
            }
        });
        let until = Instant::now() + Duration::from_millis(200);
        while Instant::now() < until {
            most = most.max(count(root.path()).bytes);
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(most < 2 << 20, "{most}");
}

#[test]
fn a_tree_that_vanishes_during_the_walk_ends_it() {
    let root = tempfile::tempdir().unwrap();
    nest(root.path(), 200);
    let mut walk = walk(root.path());
    while walk.levels.len() < 150 {
        assert!(!walk.advance(Some(Instant::now())));
    }
    fs::remove_dir_all(root.path().join("d")).unwrap();
    assert!(walk.advance(None));
}

#[test]
fn names_of_any_bytes_are_counted() {
    use std::os::unix::ffi::OsStrExt;
    let root = tempfile::tempdir().unwrap();
    for name in [&b"new\nline"[..], b"\xff\xfe", b"\x1b[31m", &[b'n'; 255]] {
        let mut file = fs::File::create(root.path().join(std::ffi::OsStr::from_bytes(name))).unwrap();
        file.write_all(b"x").unwrap();
    }
    assert_eq!(count(root.path()).inodes, 4);
}
