use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use offleash_core::build::patterns::IgnoreRules;

use super::*;
use crate::store::ImageRoot;
use crate::tar::EntryKind;

struct NoIds;

impl IdNamespace for NoIds {
    fn run(&self, body: &mut dyn FnMut() -> io::Result<()>) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        Ok(body()?)
    }
}

struct Bench {
    scratch: tempfile::TempDir,
    store: ImageStore,
}

impl Bench {
    fn new() -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let store = ImageStore::at(&scratch.path().join("images")).unwrap();
        fs::create_dir(scratch.path().join("context")).unwrap();
        Self { scratch, store }
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.scratch.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn context(&self) -> LayerTree {
        LayerTree::of_directory(&self.scratch.path().join("context")).unwrap()
    }

    /// An image with an archive as its only layer, or above another.
    fn compose(&self, base: Option<ImageDigest>, layer: LayerArchive, name: u8) -> ImageDigest {
        let config = ImageConfig {
            env: vec![("A".to_owned(), "b=c".to_owned())],
            user: "app".to_owned(),
            ..ImageConfig::default()
        };
        let order = ComposeOrder {
            base,
            layer: Some(layer),
            config: &config,
            ownership: LayerOwnership::Flat,
            kept: &KeptName::Step(ImageDigest::of(&[name])),
        };
        self.store.compose(order, &NoIds).unwrap()
    }

    fn captured(&self, base: Option<ImageDigest>, upper: &str, name: u8, excluded: &[ExcludedFile]) -> ImageDigest {
        let layer = self.store.new_layer(1 << 30).unwrap();
        let order = CaptureOrder {
            upper: self.scratch.path().join(upper),
            owner: CapturedOwner::Single,
            excluded,
        };
        layer.fill_captured(&order, &NoIds).unwrap();
        self.compose(base, layer, name)
    }

    fn open(&self, digest: &ImageDigest) -> ImageRoot {
        let name = digest.to_string();
        self.store
            .open_image(&name, LayerOwnership::Flat, &NoIds, &NoProgress)
            .unwrap()
    }

    fn read(&self, digest: &ImageDigest, path: &str) -> Option<String> {
        let bytes = self.open(digest).read_file(path, 1000).unwrap()?;
        Some(String::from_utf8(bytes).unwrap())
    }

    fn select(&self, sources: &[&str], extracts: bool, ignore: &str) -> Result<CopySelection, ImageError> {
        let sources: Vec<String> = sources.iter().map(|source| (*source).to_owned()).collect();
        CopySelection::of(&CopyOrder {
            tree: &self.context(),
            sources: &sources,
            ignore: &IgnoreRules::parse(ignore).unwrap(),
            extracts,
        })
    }

    /// What is copied onto an image: kinds and owners by path.
    fn copied(&self, base: &ImageDigest, sources: &[&str], destination: &str) -> BTreeMap<String, (EntryKind, u64)> {
        let selection = self.select(sources, true, "*.out").unwrap();
        let layer = self.store.new_layer(1 << 30).unwrap();
        let target = CopyTarget {
            below: &LayerTree::of_image(&self.open(base)).unwrap(),
            destination,
            owner: Some((7, 8)),
            mode: None,
        };
        layer.fill_copied(Some(&self.context()), &selection, &target).unwrap();
        let mut bytes = Vec::new();
        let mut file = &layer.staged.file;
        file.seek(SeekFrom::Start(0)).unwrap();
        file.read_to_end(&mut bytes).unwrap();
        let mut archive = crate::tar::Archive::new(bytes.as_slice());
        let mut found = BTreeMap::new();
        while let Some(entry) = archive.next().unwrap() {
            found.insert(String::from_utf8(entry.path).unwrap(), (entry.kind, entry.uid));
        }
        found
    }
}

fn made(path: &Path) -> rustix::fs::Stat {
    rustix::fs::lstat(path).unwrap()
}

#[test]
fn what_was_written_comes_back_as_a_layer_of_an_image() {
    let bench = Bench::new();
    bench.write("one/etc/kept", "kept");
    bench.write("one/etc/gone", "gone");
    bench.write("one/opaque/old", "old");
    bench.write("one/etc/hosts", "of the sandbox");
    let excluded = [ExcludedFile {
        path: b"etc/hosts".to_vec(),
        contents: None,
    }];
    let base = bench.captured(None, "one", 1, &excluded);
    assert_eq!(bench.read(&base, "etc/kept").as_deref(), Some("kept"));
    assert_eq!(bench.read(&base, "etc/hosts"), None);

    bench.write("two/etc/new", "new");
    bench.write("two/opaque/new", "new");
    let two = bench.scratch.path().join("two");
    fs::hard_link(two.join("etc/new"), two.join("etc/same")).unwrap();
    symlink("/etc/new", two.join("link")).unwrap();
    fs::set_permissions(two.join("etc/new"), fs::Permissions::from_mode(0o640)).unwrap();
    let whiteout = rustix::fs::FileType::CharacterDevice;
    let none = rustix::fs::Mode::empty();
    rustix::fs::mknodat(rustix::fs::CWD, two.join("etc/gone"), whiteout, none, 0).unwrap();
    let opaque = fs::File::open(two.join("opaque")).unwrap();
    rustix::fs::fsetxattr(&opaque, "user.overlay.opaque", b"y", rustix::fs::XattrFlags::empty()).unwrap();
    let above = bench.captured(Some(base), "two", 2, &[]);
    let root = bench.open(&above);
    assert_eq!(root.layers.len(), 2);
    assert_eq!(
        (root.config.user.as_str(), root.config.env[0].1.as_str()),
        ("app", "b=c")
    );
    let read = |path: &str| bench.read(&above, path);
    assert_eq!(read("etc/kept").as_deref(), Some("kept"));
    assert_eq!((read("etc/gone"), read("opaque/old")), (None, None));
    assert_eq!(
        (read("etc/new"), read("opaque/new")),
        (Some("new".into()), Some("new".into()))
    );
    let top = &root.layers[0];
    assert_eq!(made(&top.join("etc/new")).st_ino, made(&top.join("etc/same")).st_ino);
    assert_eq!(made(&top.join("etc/new")).st_mode & 0o777, 0o640);
    assert_eq!(fs::read_link(top.join("link")).unwrap(), Path::new("/etc/new"));
    let tree = LayerTree::of_image(&root).unwrap();
    let names = tree
        .names(&crate::unpack::entry_path::EntryPath::of(b"etc").unwrap())
        .unwrap();
    let names: Vec<&str> = names.iter().map(|name| std::str::from_utf8(name).unwrap()).collect();
    assert_eq!(names, ["kept", "new", "same"]);
}

#[test]
fn what_builds_made_stays_until_nobody_keeps_it() {
    let bench = Bench::new();
    bench.write("one/file", "one");
    bench.write("two/file", "two");
    let base = bench.captured(None, "one", 1, &[]);
    let above = bench.captured(Some(base), "two", 2, &[]);
    let key = |name: u8| KeptName::Step(ImageDigest::of(&[name]));
    assert_eq!(bench.store.find_kept(&key(2)).unwrap(), Some(above));
    assert_eq!(bench.store.find_kept(&key(3)).unwrap(), None);
    assert_eq!(bench.store.prune(true, &NoIds).unwrap().layers, 0);
    let removed = bench.store.remove(&above.to_string(), &NoIds);
    assert!(matches!(removed, Err(ImageError::Missing { .. })), "{removed:?}");
    // What is used stays although it is forgotten.
    let held = bench.open(&above);
    bench.store.forget_kept(&key(2)).unwrap();
    bench.store.forget_kept(&key(2)).unwrap();
    assert_eq!(bench.store.prune(false, &NoIds).unwrap().layers, 0);
    assert_eq!(held.read_file("file", 100).unwrap().as_deref(), Some(&b"two"[..]));
    drop(held);
    assert_eq!(bench.store.prune(false, &NoIds).unwrap().layers, 1);
    assert!(bench.store.find(&above.to_string()).is_err());
    assert_eq!(bench.read(&base, "file").as_deref(), Some("one"));
    assert_eq!(bench.store.kept().unwrap(), [(key(1), base)]);
}

#[test]
fn files_go_where_a_program_inside_would_find_them() {
    let bench = Bench::new();
    bench.write("one/usr/bin/sh", "");
    bench.write("one/srv/old", "");
    symlink("usr/bin", bench.scratch.path().join("one/bin")).unwrap();
    symlink("/../../usr/missing", bench.scratch.path().join("one/away")).unwrap();
    let base = bench.captured(None, "one", 1, &[]);
    bench.write("context/a", "a");
    bench.write("context/b.out", "left out");
    bench.write("context/tree/bin/tool", "");
    bench.write("context/tree/deep/x.out/y", "");
    bench.write("context/tree/deep/file", "");
    symlink("a", bench.scratch.path().join("context/link")).unwrap();
    let paths = |sources: &[&str], destination: &str| {
        let found = bench.copied(&base, sources, destination);
        found.into_keys().collect::<Vec<_>>().join(" ")
    };
    for (sources, destination, expected) in [
        (&["a"][..], "/new", "new"),
        (&["a"], "/new/", "new new/a"),
        (&["a"], "/bin", "usr/bin/a"),
        (&["a"], "/bin/tool", "usr/bin/tool"),
        (&["a"], "/srv", "srv/a"),
        (&["link"], "/srv/", "srv/link"),
        (
            &["a", "tree"],
            "/srv",
            "srv/a srv/bin srv/bin/tool srv/deep srv/deep/file srv/deep/x.out srv/deep/x.out/y",
        ),
        (&["tree"], "/", "deep deep/file deep/x.out deep/x.out/y usr/bin/tool"),
        (&["t*/d*"], "/d", "d d/file d/x.out d/x.out/y"),
        (&["?"], "/away/", "usr/missing usr/missing/a"),
        (
            &["."],
            "/all/",
            "all all/a all/link all/tree all/tree/bin all/tree/bin/tool all/tree/deep all/tree/deep/file all/tree/deep/x.out all/tree/deep/x.out/y",
        ),
        (&["/../a"], "../../up", "up"),
    ] {
        assert_eq!(paths(sources, destination), expected, "{sources:?} {destination}");
    }
    assert_eq!(bench.copied(&base, &["a"], "/x")["x"], (EntryKind::File, 7));
    assert_eq!(
        bench.copied(&base, &["link"], "/x")["x"].0,
        EntryKind::File,
        "a link that is named is followed"
    );
    for missing in ["none", "b.out", "n*"] {
        let error = bench.select(&[missing], false, "*.out").unwrap_err();
        assert!(matches!(error, ImageError::NothingToCopy { .. }), "{error:?}");
    }
}

#[test]
fn a_link_of_the_context_leads_nowhere_else() {
    let bench = Bench::new();
    bench.write("outside", "secret");
    symlink("../outside", bench.scratch.path().join("context/up")).unwrap();
    symlink(bench.scratch.path(), bench.scratch.path().join("context/away")).unwrap();
    symlink("loop", bench.scratch.path().join("context/loop")).unwrap();
    for source in ["up", "away/outside", "../outside", "away/*"] {
        let error = bench.select(&[source], false, "").unwrap_err();
        assert!(matches!(error, ImageError::NothingToCopy { .. }), "{source}: {error:?}");
    }
    assert!(bench.select(&["loop"], false, "").is_err());
}

#[test]
fn the_digest_is_of_names_modes_and_contents_and_not_of_times() {
    let bench = Bench::new();
    bench.write("context/d/a", "a");
    bench.write("context/d/b", "b");
    let digest = |ignore: &str| {
        let selection = bench.select(&["d"], false, ignore).unwrap();
        selection.digest(Some(&bench.context())).unwrap()
    };
    let first = digest("");
    let file = bench.scratch.path().join("context/d/a");
    fs::File::open(&file)
        .unwrap()
        .set_modified(std::time::SystemTime::UNIX_EPOCH)
        .unwrap();
    assert_eq!(digest(""), first);
    assert_ne!(digest("d/b"), first);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    let executable = digest("");
    assert_ne!(executable, first);
    fs::write(&file, "c").unwrap();
    assert_ne!(digest(""), executable);
    let text = |text: &str| {
        CopySelection::of_texts([("n".to_owned(), text.to_owned())])
            .digest(None)
            .unwrap()
    };
    assert_ne!(text("a"), text("b"));
}

#[test]
fn archives_are_unpacked_where_they_are_added_and_stay_below_it() {
    use crate::tar::testing::TarBuilder;

    let bench = Bench::new();
    bench.write("one/srv/kept", "");
    let base = bench.captured(None, "one", 1, &[]);
    let archive = TarBuilder::default()
        .directory("sub/", 0o700)
        .file("sub/file", b"text")
        .hard_link("sub/same", "sub/file")
        .symlink("sub/link", "/etc")
        .end();
    fs::write(bench.scratch.path().join("context/a.tar"), &archive).unwrap();
    let found = bench.copied(&base, &["a.tar"], "/srv");
    let paths: Vec<&str> = found.keys().map(String::as_str).collect();
    assert_eq!(paths, ["srv/sub", "srv/sub/file", "srv/sub/link", "srv/sub/same"]);
    assert_eq!(found["srv/sub/same"].0, EntryKind::HardLink);

    let escaping = TarBuilder::default().file("../out", b"").end();
    for (name, bytes) in [
        ("up.tar", escaping.as_slice()),
        ("x.tar.xz", b"\xfd7zXZ\0rest"),
        ("x.bz2", b"BZh9"),
    ] {
        fs::write(bench.scratch.path().join("context").join(name), bytes).unwrap();
        let error = bench.select(&[name], true, "").and_then(|selection| {
            let layer = bench.store.new_layer(1 << 20).unwrap();
            let target = CopyTarget {
                below: &LayerTree::of_image(&bench.open(&base)).unwrap(),
                destination: "/srv",
                owner: None,
                mode: None,
            };
            layer.fill_copied(Some(&bench.context()), &selection, &target)
        });
        assert!(matches!(error, Err(ImageError::Archive { .. })), "{name}: {error:?}");
    }
    assert!(bench.select(&["up.tar"], false, "").is_ok(), "`COPY` unpacks nothing");
}

#[test]
fn a_file_that_is_copied_keeps_its_holes() {
    use std::os::unix::fs::{FileExt as _, MetadataExt as _};

    let bench = Bench::new();
    bench.write("context/d/plain", "plain");
    let sparse = bench.scratch.path().join("context/d/sparse");
    let file = fs::File::create(&sparse).unwrap();
    file.set_len(100 << 30).unwrap();
    file.write_all_at(b"end", (100 << 30) - 3).unwrap();
    let digest = || {
        let selection = bench.select(&["d"], false, "").unwrap();
        selection.digest(Some(&bench.context())).unwrap()
    };
    let first = digest();
    assert_eq!(digest(), first);
    let empty = bench.store.new_layer(1 << 20).unwrap();
    empty.fill_empty().unwrap();
    let base = bench.compose(None, empty, 1);
    let layer = bench.store.new_layer(1 << 20).unwrap();
    let target = CopyTarget {
        below: &LayerTree::of_image(&bench.open(&base)).unwrap(),
        destination: "/to",
        owner: None,
        mode: None,
    };
    let selection = bench.select(&["d"], false, "").unwrap();
    layer.fill_copied(Some(&bench.context()), &selection, &target).unwrap();
    let image = bench.compose(Some(base), layer, 2);
    let root = bench.open(&image);
    assert_eq!(bench.read(&image, "to/plain").as_deref(), Some("plain"));
    let there = root
        .layers
        .iter()
        .map(|layer| root.directory.join(layer).join("to/sparse"))
        .find(|path| path.exists())
        .unwrap();
    let found = fs::File::open(there).unwrap();
    let stat = found.metadata().unwrap();
    let mut end = [0; 3];
    found.read_exact_at(&mut end, (100 << 30) - 3).unwrap();
    assert!(
        stat.len() == 100 << 30 && stat.blocks() < 2_048 && end == *b"end",
        "{stat:?}"
    );
    // What is elsewhere between the same holes is something else.
    file.set_len(0).unwrap();
    file.set_len(100 << 30).unwrap();
    file.write_all_at(b"end", 1 << 30).unwrap();
    assert_ne!(digest(), first);
}
