//! Archives of snapshots: what comes back, and what is refused of those that lie.

use std::io::Cursor;
use std::os::unix::fs::symlink;

use super::*;

const SAID: &str = r#"{"template": "base"}"#;

/// The archive of a tree that `make` makes.
fn archive(said: &str, make: impl FnOnce(&Path)) -> Vec<u8> {
    let tree = tempfile::tempdir().unwrap();
    make(tree.path());
    let own = fs::metadata(tree.path()).unwrap();
    let part = PackedPart {
        place: Vec::new(),
        directory: tree.path().to_owned(),
        superuser: (own.uid(), own.gid()),
    };
    let mut bytes = Vec::new();
    pack_layer(&[part], (DESCRIPTION, said.as_bytes()), &mut bytes).unwrap();
    bytes
}

/// What comes of an archive, and the layer.
fn taken_of(bytes: Vec<u8>, limits: UnpackLimits) -> (tempfile::TempDir, io::Result<String>) {
    let layer = tempfile::tempdir().unwrap();
    let taken = take_in(layer.path(), Cursor::new(bytes), LayerOwnership::Flat, limits);
    (layer, taken)
}

fn refused(bytes: Vec<u8>, limits: UnpackLimits, expected: &str) {
    let (_layer, taken) = taken_of(bytes, limits);
    let told = with_causes(&taken.unwrap_err());
    assert!(told.contains(expected), "{told}");
}

fn tree(root: &Path) {
    for directory in ["usr/bin", "etc", "home/user", "tmp"] {
        fs::create_dir_all(root.join(directory)).unwrap();
    }
    fs::write(root.join("usr/bin/tool"), "tool").unwrap();
    fs::write(root.join("home/user/file"), "kept").unwrap();
}

#[test]
fn each_part_is_in_its_place_and_the_description_in_none() {
    let (layer, taken) = taken_of(archive(SAID, tree), UnpackLimits::default());
    assert_eq!(taken.unwrap(), SAID);
    for (name, place) in part_places() {
        let upper = layer.path().join(name).join(UPPER);
        for (file, said) in [("/usr/bin/tool", "tool"), ("/home/user/file", "kept")] {
            let nearest = part_places()
                .into_iter()
                .map(|(_, place)| place)
                .filter(|place| Path::new(file).starts_with(place))
                .max_by_key(|place| place.iter().count())
                .unwrap();
            if nearest == place {
                let file = upper.join(Path::new(file).strip_prefix(&place).unwrap());
                assert_eq!(fs::read_to_string(file).unwrap(), said);
            }
        }
    }
    assert!(!layer.path().join("root/upper").join(DESCRIPTION).exists());
    assert!(!layer.path().join(TAKEN).exists() && !layer.path().join("none").exists());
    let (files, bytes) = measured(layer.path()).unwrap();
    assert!(files > 5 && bytes > 0);
    // The root of an image has one part.
    let of_image = r#"{"template": "image:a", "more": 1}"#;
    let (layer, taken) = taken_of(archive(of_image, tree), UnpackLimits::default());
    assert_eq!(taken.unwrap(), of_image);
    assert!(layer.path().join("root/upper/usr/bin/tool").is_file());
}

#[test]
fn an_archive_that_was_cut_is_refused_wherever_that_was() {
    let whole = archive(SAID, tree);
    for cut in [1, 511, 512, 1024, whole.len() - 1500, whole.len() - 1023] {
        let (_layer, taken) = taken_of(whole[..cut].to_vec(), UnpackLimits::default());
        assert!(taken.is_err(), "{cut} of {}", whole.len());
    }
    let (_layer, taken) = taken_of(Vec::new(), UnpackLimits::default());
    assert!(taken.is_err());
    // All entries are there, and what says that they are all is not.
    let entries = whole.len() - 1024;
    refused(whole[..entries].to_vec(), UnpackLimits::default(), "ends too early");
}

#[test]
fn what_is_no_snapshot_says_so() {
    let no_description = {
        let mut bytes = archive(SAID, tree);
        // Another name of the same length, and a checksum that fits.
        bytes[0] = b'x';
        let sum: u32 = bytes[..512].iter().enumerate().fold(0, |sum, (at, byte)| {
            sum + u32::from(if (148..156).contains(&at) { b' ' } else { *byte })
        });
        bytes[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        bytes
    };
    refused(no_description, UnpackLimits::default(), "does not say what it is of");
    refused(
        b"no archive".repeat(100),
        UnpackLimits::default(),
        "a number in its header",
    );
    let long = format!("{{\"template\": \"{}\"}}", "x".repeat(MAX_DESCRIPTION));
    refused(archive(&long, tree), UnpackLimits::default(), "too long");
}

#[test]
fn a_link_in_the_place_of_what_every_sandbox_needs_is_refused() {
    for place in ["usr", "etc", "tmp", "dev", "proc"] {
        let linked = archive(SAID, |root| symlink("/", root.join(place)).unwrap());
        refused(linked, UnpackLimits::default(), &format!("`/{place}`"));
        let file = archive(SAID, |root| fs::write(root.join(place), "").unwrap());
        refused(file, UnpackLimits::default(), &format!("`/{place}`"));
    }
    let (_layer, fine) = taken_of(
        archive(SAID, |root| symlink("/", root.join("bin")).unwrap()),
        UnpackLimits::default(),
    );
    fine.unwrap();
}

#[test]
fn no_more_is_written_than_was_allowed() {
    let large = archive(SAID, |root| fs::write(root.join("large"), vec![7; 300 << 10]).unwrap());
    let limits = |bytes, entries| UnpackLimits {
        bytes,
        entries,
        ..UnpackLimits::default()
    };
    refused(large.clone(), limits(100 << 10, 1_000), "more than 102400 bytes");
    refused(large.clone(), limits(1 << 30, 2), "more than 2 entries");
    taken_of(large, limits(1 << 30, 1_000)).1.unwrap();
}
