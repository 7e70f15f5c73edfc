use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::PathBuf;

use proptest::prelude::*;
use rustix::fs::FileType;
use rustix::fs::{CWD, XattrFlags};

use super::*;
use crate::testing::{chmod, is_root, name, write};

const PLENTY: CopyBudget = CopyBudget {
    bytes: 1 << 40,
    entries: 1 << 20,
};

/// A directory with `from`, filled by `fill`, and an empty `to`.
struct Pair {
    directory: tempfile::TempDir,
}

impl Pair {
    fn new(fill: impl FnOnce(&Path)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        for name in ["from", "to"] {
            fs::create_dir(directory.path().join(name)).unwrap();
        }
        let pair = Self { directory };
        fill(&pair.from());
        pair
    }

    fn from(&self) -> PathBuf {
        self.directory.path().join("from")
    }

    fn to(&self) -> PathBuf {
        self.directory.path().join("to")
    }

    fn copy_within(&self, mut budget: CopyBudget) -> Result<CopyBudget, CopyError> {
        let copied = copy_layer(&self.from(), &self.to(), &mut budget);
        let mut beside: Vec<_> = fs::read_dir(self.directory.path())
            .unwrap()
            .map(|found| found.unwrap().file_name())
            .collect();
        beside.sort();
        assert_eq!(beside, ["from", "to"], "nothing is left beside it");
        copied.map(|()| budget)
    }

    /// Copies, and compares.
    fn copy(&self) {
        let before = seen(&self.from());
        self.copy_within(PLENTY).unwrap();
        assert_eq!(seen(&self.to()), before);
        assert_eq!(seen(&self.from()), before, "the source is as it was");
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let parent = rustix::fs::open(self.directory.path(), flags, Mode::empty()).unwrap();
        for name in ["from", "to"] {
            let _ = remove_tree(&parent, name.as_ref());
        }
    }
}

/// What can be seen of an entry: type and mode, owner, device, times, contents, attributes, and which entry it is a link of.
type Seen = (
    u32,
    u32,
    u32,
    u64,
    i64,
    i64,
    Vec<u8>,
    BTreeMap<Vec<u8>, Vec<u8>>,
    PathBuf,
);

fn seen(root: &Path) -> BTreeMap<PathBuf, Seen> {
    let mut all = BTreeMap::new();
    let mut first = BTreeMap::new();
    let mut next = vec![PathBuf::new()];
    while let Some(path) = next.pop() {
        let full = root.join(&path);
        let meta = fs::symlink_metadata(&full).unwrap();
        let kind = meta.file_type();
        if kind.is_dir() {
            next.extend(
                fs::read_dir(&full)
                    .unwrap()
                    .map(|found| path.join(found.unwrap().file_name())),
            );
            next.sort();
            next.reverse();
        }
        let contents = match () {
            () if kind.is_symlink() => fs::read_link(&full).unwrap().into_os_string().into_encoded_bytes(),
            () if kind.is_file() && meta.len() < 1 << 20 => fs::read(&full).unwrap(),
            () => Vec::new(),
        };
        let link = if kind.is_dir() {
            path.clone()
        } else {
            first.entry(meta.ino()).or_insert(path.clone()).clone()
        };
        let size_or_device = if kind.is_char_device() {
            meta.rdev()
        } else if kind.is_dir() {
            0
        } else {
            meta.len()
        };
        let entry = (
            meta.mode(),
            meta.uid(),
            meta.gid(),
            size_or_device,
            meta.mtime(),
            meta.mtime_nsec(),
            contents,
            attributes_of(&full),
            link,
        );
        all.insert(path, entry);
    }
    all
}

fn attributes_of(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 4096];
    let length = rustix::fs::llistxattr(path, &mut names).unwrap();
    let names = names[..length]
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty() && !name.starts_with(b"security.selinux"));
    let value = |name: &[u8]| {
        let mut value = vec![0; 4096];
        let length = rustix::fs::lgetxattr(path, name, &mut value).unwrap();
        value[..length].to_vec()
    };
    names.map(|name| (name.to_vec(), value(name))).collect()
}

fn attribute(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::lsetxattr(path, name, value, XattrFlags::empty()).unwrap();
}

#[test]
fn f8_what_a_sandbox_can_leave_is_copied_as_it_is() {
    let pair = Pair::new(|from| {
        for evil in [&b"new\nline"[..], b"\xff", b".links", b"..x", b"-", &[b'x'; 255]] {
            write(from.join(name(evil)).join(name(evil)), evil);
        }
        write(from.join("bin/tool"), "x");
        chmod(from.join("bin/tool"), 0o6751);
        chmod(from.join("bin"), 0o1777);
        symlink("/etc/passwd", from.join("link")).unwrap();
        symlink("bin/tool", from.join("bin/again")).unwrap();
        symlink("x".repeat(4000), from.join("long")).unwrap();
        let times = fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH + std::time::Duration::new(7, 123_456_789));
        fs::File::options()
            .write(true)
            .open(from.join("bin/tool"))
            .unwrap()
            .set_times(times)
            .unwrap();
        fs::create_dir(from.join("empty")).unwrap();
        chmod(from.join("empty"), 0o500);
        write(from.join("attributes/file"), "x");
        attribute(&from.join("attributes/file"), "user.something", &[0, 1, 2]);
        attribute(&from.join("attributes/file"), "user.large", &[7; 3000]);
        attribute(&from.join("attributes"), "user.overlay.opaque", b"y");
        attribute(from, "user.overlay.impure", b"y");
        rustix::fs::mknodat(CWD, from.join("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        drop(std::os::unix::net::UnixListener::bind(from.join("socket")).unwrap());
        rustix::fs::mknodat(CWD, from.join("deleted"), FileType::CharacterDevice, Mode::empty(), 0).unwrap();
        chmod(from, 0o751);
    });
    pair.copy();
}

#[test]
fn links_of_one_file_stay_links_of_one_file() {
    let pair = Pair::new(|from| {
        write(from.join("a/one"), "x");
        fs::create_dir(from.join("b")).unwrap();
        for other in ["a/two", "b/three", "four"] {
            fs::hard_link(from.join("a/one"), from.join(other)).unwrap();
        }
        symlink("nowhere", from.join("b/link")).unwrap();
        rustix::fs::linkat(CWD, from.join("b/link"), CWD, from.join("link"), AtFlags::empty()).unwrap();
        // As overlayfs shares one whiteout.
        rustix::fs::mknodat(CWD, from.join("gone"), FileType::CharacterDevice, Mode::empty(), 0).unwrap();
        fs::hard_link(from.join("gone"), from.join("b/gone")).unwrap();
    });
    pair.copy();
    write(pair.to().join("four"), "changed");
    assert_eq!(fs::read(pair.to().join("a/one")).unwrap(), b"changed");
    assert_eq!(
        fs::read(pair.from().join("a/one")).unwrap(),
        b"x",
        "nothing is shared with the source"
    );
}

#[test]
fn holes_stay_holes() {
    let pair = Pair::new(|from| {
        let file = fs::File::create(from.join("sparse")).unwrap();
        file.set_len(1 << 40).unwrap();
        file.write_all_at(b"middle", 1 << 30).unwrap();
        file.write_all_at(b"end", (1 << 40) - 3).unwrap();
        fs::File::create(from.join("hole")).unwrap().set_len(1 << 39).unwrap();
    });
    let left = pair.copy_within(PLENTY).unwrap();
    assert!(PLENTY.bytes - left.bytes < 1 << 20, "{left:?}");
    let copied = fs::File::open(pair.to().join("sparse")).unwrap();
    assert_eq!(copied.metadata().unwrap().len(), 1 << 40);
    assert!(copied.metadata().unwrap().blocks() < 4096);
    for (at, expected) in [(1 << 30, &b"middle"[..]), ((1 << 40) - 3, b"end"), (5, b"\0\0")] {
        let mut found = vec![1; expected.len()];
        copied.read_exact_at(&mut found, at).unwrap();
        assert_eq!(found, expected);
    }
    assert_eq!(fs::metadata(pair.to().join("hole")).unwrap().len(), 1 << 39);
}

#[test]
fn what_is_too_large_is_refused_before_it_is_copied() {
    let pair = Pair::new(|from| {
        write(from.join("large"), vec![1; 1 << 20]);
        fs::File::open(from.join("large")).unwrap().sync_all().unwrap();
    });
    let few = CopyBudget {
        bytes: 1 << 19,
        ..PLENTY
    };
    assert!(matches!(
        pair.copy_within(few),
        Err(CopyError::TooLarge { what: "bytes" })
    ));
    assert!(!pair.to().join("large").exists());

    let pair = Pair::new(|from| (0..100).for_each(|number| write(from.join(format!("d{number}/f")), "")));
    let few = CopyBudget { entries: 150, ..PLENTY };
    let error = pair.copy_within(few).unwrap_err();
    assert!(matches!(error, CopyError::TooLarge { what: "files" }), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::Exhausted);
}

#[test]
fn f8_depth_costs_neither_descriptors_nor_stack() {
    let pair = Pair::new(|from| crate::change::make_deep(from, 5000));
    pair.copy_within(PLENTY).unwrap();
    let mut levels = 0;
    let mut current = open(&pair.to()).unwrap();
    while let Ok(next) = reopen(&current, c"some-name") {
        (current, levels) = (next, levels + 1);
    }
    assert_eq!(levels, 5000);
    assert!(stat_of(&current, c"file").is_ok());
}

#[test]
fn what_nobody_may_read_is_copied_by_who_may() {
    let pair = Pair::new(|from| {
        write(from.join("closed/file"), "secret");
        chmod(from.join("closed/file"), 0);
        chmod(from.join("closed"), 0);
    });
    if !is_root() {
        let error = pair.copy_within(PLENTY).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
        return;
    }
    for (path, owner) in [("closed/file", 1_879_048_192), ("closed", 70_000)] {
        std::os::unix::fs::chown(pair.from().join(path), Some(owner), Some(owner + 1)).unwrap();
    }
    write(pair.from().join("root-only"), "");
    attribute(&pair.from().join("root-only"), "trusted.overlay.origin", b"\0\x01");
    symlink("x", pair.from().join("sticky")).unwrap();
    std::os::unix::fs::lchown(pair.from().join("sticky"), Some(5), Some(6)).unwrap();
    pair.copy();
}

#[test]
fn a_directory_that_is_moved_meanwhile_leads_nowhere_else() {
    let pair = Pair::new(|from| write(from.join("a/b/c"), "x"));
    let moved = pair.directory.path().join("to/elsewhere");
    let (source, target) = (open(&pair.from().join("a")).unwrap(), open(&pair.to()).unwrap());
    let links = open(&pair.to()).unwrap();
    let mut copy = TreeCopy {
        source,
        target,
        links,
        above: Vec::new(),
        waiting: 0,
        shift: OwnerShift::default(),
        budget: &mut PLENTY.clone(),
    };
    let above = copy.descend(c"b", Vec::new()).unwrap();
    fs::rename(pair.from().join("a/b"), &moved).unwrap();
    assert!(matches!(copy.ascend(&above), Err(CopyError::Changed { .. })));
}

/// An entry of a tree that is made up.
#[derive(Debug, Clone)]
enum Made {
    File { contents: Vec<u8>, mode: u32 },
    Link(String),
    Same(prop::sample::Index),
    Hole(u64),
    Deleted,
    Directory(Vec<Made>, u32),
}

fn made() -> impl Strategy<Value = Made> {
    let leaf = prop_oneof![
        (prop::collection::vec(any::<u8>(), 0..6000), 0o600..0o1000_u32)
            .prop_map(|(contents, mode)| Made::File { contents, mode }),
        "[a-z/.]{1,40}".prop_map(Made::Link),
        any::<prop::sample::Index>().prop_map(Made::Same),
        (0..1_u64 << 33).prop_map(Made::Hole),
        Just(Made::Deleted),
    ];
    leaf.prop_recursive(5, 60, 8, |inner| {
        (prop::collection::vec(inner, 0..8), 0o700..0o1000_u32)
            .prop_map(|(entries, mode)| Made::Directory(entries, mode))
    })
}

fn make(at: &Path, what: &Made, files: &mut Vec<PathBuf>) {
    match what {
        Made::File { contents, mode } => {
            fs::write(at, contents).unwrap();
            chmod(at, *mode);
            files.push(at.to_owned());
        }
        Made::Link(target) => symlink(target, at).unwrap(),
        Made::Same(index) if !files.is_empty() => fs::hard_link(index.get(files), at).unwrap(),
        Made::Same(_) => fs::write(at, "").unwrap(),
        Made::Hole(size) => fs::File::create(at).unwrap().set_len(*size).unwrap(),
        Made::Deleted => rustix::fs::mknodat(CWD, at, FileType::CharacterDevice, Mode::empty(), 0).unwrap(),
        Made::Directory(entries, mode) => {
            fs::create_dir(at).unwrap();
            for (number, entry) in entries.iter().enumerate() {
                make(&at.join(number.to_string()), entry, files);
            }
            fs::set_permissions(at, fs::Permissions::from_mode(*mode)).unwrap();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn any_tree_is_copied_as_it_is(tree in made()) {
        Pair::new(|from| make(&from.join("tree"), &tree, &mut Vec::new())).copy();
    }
}

#[test]
fn a_file_of_many_names_counts_once() {
    let site = tempfile::tempdir().unwrap();
    let (from, to) = (site.path().join("from"), site.path().join("copy/to"));
    fs::create_dir(&from).unwrap();
    fs::create_dir_all(&to).unwrap();
    fs::write(from.join("0"), vec![1; 256 << 10]).unwrap();
    for number in 1..5 {
        fs::hard_link(from.join("0"), from.join(number.to_string())).unwrap();
    }
    let mut budget = CopyBudget {
        bytes: 300 << 10,
        entries: 5,
    };
    copy_layer(&from, &to, &mut budget).unwrap();
    let inode = |name: &str| std::os::unix::fs::MetadataExt::ino(&fs::metadata(to.join(name)).unwrap());
    assert_eq!(inode("0"), inode("4"));
    assert_eq!(budget.entries, 0);
}

mod refreshed {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;
    use crate::copy::{CopyRound, LayerRefresh, OwnerShift, SharedLayer, link_layer};

    /// A time that is after everything.
    const SETTLED: (i64, i64) = (i64::MAX, 0);

    fn budget() -> CopyBudget {
        CopyBudget {
            bytes: 1 << 30,
            entries: 1_000_000,
        }
    }

    fn refresh(from: &Path, to: &Path, shared: Option<SharedLayer>) -> LayerRefresh {
        std::fs::create_dir(to).unwrap();
        let mut refresh = LayerRefresh::new("root".to_owned(), from.into(), to.into(), OwnerShift::default(), shared);
        refresh.settle(SETTLED);
        refresh
    }

    fn inode(path: &Path) -> u64 {
        std::fs::symlink_metadata(path).unwrap().ino()
    }

    #[test]
    fn a_second_round_copies_what_has_changed_and_drops_what_is_gone() {
        let scratch = tempfile::tempdir().unwrap();
        let (from, to) = (scratch.path().join("from"), scratch.path().join("to"));
        std::fs::create_dir_all(from.join("a/b")).unwrap();
        for name in ["same", "changed", "gone", "a/b/same", "a/gone"] {
            std::fs::write(from.join(name), name).unwrap();
        }
        std::os::unix::fs::symlink("same", from.join("becomes")).unwrap();
        let mut refresh = refresh(&from, &to, None);
        refresh.round(CopyRound::Running, &mut budget()).unwrap();
        let kept = [inode(&to.join("same")), inode(&to.join("a/b/same"))];
        std::fs::write(from.join("changed"), "other").unwrap();
        std::fs::remove_file(from.join("gone")).unwrap();
        std::fs::remove_file(from.join("a/gone")).unwrap();
        std::fs::remove_file(from.join("becomes")).unwrap();
        std::fs::create_dir(from.join("becomes")).unwrap();
        std::fs::write(from.join("becomes/new"), "new").unwrap();
        refresh.round(CopyRound::Still, &mut budget()).unwrap();
        assert_eq!([inode(&to.join("same")), inode(&to.join("a/b/same"))], kept);
        let read = |name: &str| std::fs::read_to_string(to.join(name)).ok();
        assert_eq!(read("changed").as_deref(), Some("other"));
        assert_eq!(read("becomes/new").as_deref(), Some("new"));
        assert_eq!((read("gone"), read("a/gone")), (None, None));
        let time = |path: &Path| std::fs::metadata(path).unwrap().modified().unwrap();
        assert_eq!(time(&from.join("a")), time(&to.join("a")));
    }

    #[test]
    fn what_is_not_settled_is_copied_again_and_never_shared() {
        let scratch = tempfile::tempdir().unwrap();
        let path = |name: &str| scratch.path().join(name);
        std::fs::create_dir(path("from")).unwrap();
        std::fs::write(path("from").join("file"), "x").unwrap();
        let mut first = refresh(&path("from"), &path("first"), None);
        first.settle((0, 0));
        first.round(CopyRound::Still, &mut budget()).unwrap();
        let before = inode(&path("first").join("file"));
        // It keeps its number as long as it has a name.
        std::fs::hard_link(path("first").join("file"), path("kept")).unwrap();
        first.round(CopyRound::Still, &mut budget()).unwrap();
        assert_ne!(inode(&path("first").join("file")), before);
        let index = crate::copy::LayerIndex::from_bytes(&first.into_index().to_bytes()).unwrap();
        let shared = SharedLayer {
            directory: path("first"),
            index,
        };
        let mut second = refresh(&path("from"), &path("second"), Some(shared));
        second.round(CopyRound::Still, &mut budget()).unwrap();
        assert_ne!(inode(&path("second").join("file")), inode(&path("first").join("file")));
    }

    #[test]
    fn files_that_are_the_same_are_shared_between_copies_and_never_with_the_source() {
        let scratch = tempfile::tempdir().unwrap();
        let path = |name: &str| scratch.path().join(name);
        std::fs::create_dir_all(path("from").join("d")).unwrap();
        for name in ["same", "d/same", "d/changed"] {
            std::fs::write(path("from").join(name), "x").unwrap();
        }
        let mut first = refresh(&path("from"), &path("first"), None);
        first.round(CopyRound::Still, &mut budget()).unwrap();
        let index = crate::copy::LayerIndex::from_bytes(&first.into_index().to_bytes()).unwrap();
        std::fs::write(path("from").join("d/changed"), "y").unwrap();
        let shared = SharedLayer {
            directory: path("first"),
            index,
        };
        let mut second = refresh(&path("from"), &path("second"), Some(shared));
        second.round(CopyRound::Still, &mut budget()).unwrap();
        for name in ["same", "d/same"] {
            assert_eq!(
                inode(&path("second").join(name)),
                inode(&path("first").join(name)),
                "{name}"
            );
            assert_ne!(
                inode(&path("second").join(name)),
                inode(&path("from").join(name)),
                "{name}"
            );
        }
        let read = |layer: &str| std::fs::read_to_string(path(layer).join("d/changed")).unwrap();
        assert_eq!((read("first"), read("second")), ("x".to_owned(), "y".to_owned()));
    }

    #[test]
    fn what_a_copy_is_linked_from_leads_through_no_link() {
        let scratch = tempfile::tempdir().unwrap();
        let path = |name: &str| scratch.path().join(name);
        for directory in ["from/d/e", "elsewhere"] {
            std::fs::create_dir_all(path(directory)).unwrap();
        }
        std::fs::write(path("from/d/e/file"), "own").unwrap();
        std::fs::write(path("elsewhere/file"), "somebody else's").unwrap();
        let mut first = refresh(&path("from"), &path("first"), None);
        first.round(CopyRound::Still, &mut budget()).unwrap();
        let index = first.into_index();
        std::fs::rename(path("first/d/e"), path("moved")).unwrap();
        std::os::unix::fs::symlink(path("elsewhere"), path("first/d/e")).unwrap();
        let shared = SharedLayer {
            directory: path("first"),
            index,
        };
        let mut second = refresh(&path("from"), &path("second"), Some(shared));
        second.round(CopyRound::Still, &mut budget()).unwrap();
        assert_eq!(std::fs::read_to_string(path("second/d/e/file")).unwrap(), "own");
        assert_ne!(inode(&path("second/d/e/file")), inode(&path("elsewhere/file")));
    }

    #[test]
    fn what_lies_below_is_hidden_and_replaced_and_not_written_to() {
        let scratch = tempfile::tempdir().unwrap();
        let path = |name: &str| scratch.path().join(name);
        for directory in ["below/d", "below/opaque", "from/d", "from/opaque", "to"] {
            std::fs::create_dir_all(path(directory)).unwrap();
        }
        for name in ["below/kept", "below/changed", "below/d/kept", "below/opaque/hidden"] {
            std::fs::write(path(name), "below").unwrap();
        }
        std::fs::write(path("from/changed"), "above").unwrap();
        std::fs::write(path("from/opaque/own"), "above").unwrap();
        rustix::fs::setxattr(
            path("from/opaque"),
            "user.overlay.opaque",
            b"y",
            rustix::fs::XattrFlags::empty(),
        )
        .unwrap();
        let whiteout = rustix::fs::FileType::CharacterDevice;
        rustix::fs::mknodat(
            rustix::fs::CWD,
            path("from/d/kept"),
            whiteout,
            rustix::fs::Mode::empty(),
            0,
        )
        .unwrap();
        link_layer(&path("below"), &path("to")).unwrap();
        let mut refresh = LayerRefresh::new("root".to_owned(), path("from"), path("to"), OwnerShift::default(), None);
        refresh.round(CopyRound::Still, &mut budget()).unwrap();
        let read = |name: &str| std::fs::read_to_string(path(name)).ok();
        assert_eq!(read("to/changed").as_deref(), Some("above"));
        assert_eq!(read("below/changed").as_deref(), Some("below"));
        assert_eq!(inode(&path("to/kept")), inode(&path("below/kept")));
        assert_eq!(
            (read("to/opaque/hidden"), read("to/opaque/own").as_deref()),
            (None, Some("above"))
        );
        let hidden = rustix::fs::lstat(path("to/d/kept")).unwrap();
        assert!(crate::overlay::is_whiteout_device(&hidden) && read("below/d/kept").is_some());
    }

    #[test]
    fn bytes_that_are_of_no_index_are_refused() {
        for bytes in [
            &b""[..],
            b"offlidx",
            b"offlidx1x",
            b"offlidx1\xff\xff\xff\xff\0\0\0\0\x01",
        ] {
            assert!(crate::copy::LayerIndex::from_bytes(bytes).is_none(), "{bytes:?}");
        }
        assert!(crate::copy::LayerIndex::from_bytes(b"offlidx1").is_some());
    }
}
