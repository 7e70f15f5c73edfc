//! Trees of several places, as sandboxes of templates and snapshots have them.

use std::fs;
use std::path::Path;

use offleash_core::limits::Limits;
use rustix::io::Errno;
use tempfile::TempDir;

use super::{
    FileCaller, InnerPath, LayerOwners, LayerQuota, LowerPart, ServedTree, SharedQuota, TreeChangeKind, TreeParts,
    names,
};
use crate::wire::{FileAnswer, FileOperation};

const USER: FileCaller = FileCaller { uid: 1000, gid: 1000 };

/// A layer over a snapshot, a template and a directory of the host, which `fill` fills.
fn stacked(fill: impl FnOnce(&Path)) -> (TempDir, ServedTree) {
    let directory = TempDir::new().unwrap();
    for name in ["upper", "snapshot", "template", "host"] {
        fs::create_dir(directory.path().join(name)).unwrap();
    }
    fill(directory.path());
    let places = ["snapshot", "template", "host"].map(|name| directory.path().join(name));
    let lowers = places.iter().map(|path| LowerPart {
        path,
        owners: LayerOwners::One,
        is_layer: !path.ends_with("host"),
    });
    let tree = ServedTree::assemble(TreeParts {
        lowers: lowers.collect(),
        upper: Some((&directory.path().join("upper"), LayerOwners::One)),
        hidden: Vec::new(),
        quota: SharedQuota::new(LayerQuota::new(&Limits::default())),
        user: USER,
        is_shared: false,
    });
    let tree = tree.unwrap();
    (directory, tree)
}

fn names_in(tree: &mut ServedTree, path: &str) -> Vec<String> {
    match tree.answer(path.as_bytes(), FileOperation::List) {
        FileAnswer::Entries(entries) => entries
            .into_iter()
            .map(|entry| String::from_utf8(entry.name).unwrap())
            .collect(),
        answer => panic!("{path}: {answer:?}"),
    }
}

fn read(tree: &mut ServedTree, path: &str) -> Result<String, i32> {
    match tree.answer(path.as_bytes(), FileOperation::Read { offset: 0 }) {
        FileAnswer::Piece { bytes, .. } => Ok(String::from_utf8(bytes).unwrap()),
        FileAnswer::Failed { errno } => Err(errno),
        answer => panic!("{path}: {answer:?}"),
    }
}

fn whiteout(directory: &Path, name: &str) {
    let directory = super::open_directory(directory).unwrap();
    names::make_whiteout(std::os::fd::AsFd::as_fd(&directory), name.as_bytes()).unwrap();
}

fn opaque(directory: &Path) {
    names::make_opaque(&super::open_directory(directory).unwrap()).unwrap();
}

#[test]
fn each_place_hides_what_lies_below_it_by_name_mark_or_as_a_whole() {
    let (_directory, mut tree) = stacked(|root| {
        for (path, text) in [
            ("host/d/of_host", "h"),
            ("host/d/gone", "h"),
            ("host/d/same", "host"),
            ("host/whole/of_host", "h"),
            ("template/d/of_template", "t"),
            ("template/d/same", "template"),
            ("template/whole/of_template", "t"),
            ("snapshot/d/of_snapshot", "s"),
            ("snapshot/d/same", "snapshot"),
            ("host/file_below/x", "h"),
            ("template/file_below", "a file"),
        ] {
            fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
            fs::write(root.join(path), text).unwrap();
        }
        whiteout(&root.join("snapshot/d"), "gone");
        opaque(&root.join("template/whole"));
    });
    assert_eq!(
        names_in(&mut tree, "d"),
        ["of_host", "of_snapshot", "of_template", "same"]
    );
    assert_eq!(read(&mut tree, "d/same").as_deref(), Ok("snapshot"));
    assert_eq!(read(&mut tree, "d/gone"), Err(Errno::NOENT.raw_os_error()));
    assert_eq!(names_in(&mut tree, "whole"), ["of_template"]);
    assert_eq!(read(&mut tree, "file_below").as_deref(), Ok("a file"));
}

#[test]
fn what_is_removed_or_made_over_several_places_is_marked_once_and_for_all() {
    let (directory, mut tree) = stacked(|root| {
        for place in ["host", "template"] {
            fs::create_dir(root.join(place).join("d")).unwrap();
            fs::write(root.join(place).join("d/f"), place).unwrap();
        }
    });
    let mut done = |path: &str, operation| {
        assert_eq!(tree.answer(path.as_bytes(), operation), FileAnswer::Done, "{path}");
    };
    done("d/f", FileOperation::Remove);
    done("d", FileOperation::Remove);
    done("d", FileOperation::MakeDirectory);
    assert!(names_in(&mut tree, "d").is_empty());
    let made = super::open_directory(&directory.path().join("upper/d")).unwrap();
    assert!(names::is_opaque(&made).unwrap());
    assert_eq!(
        fs::read_to_string(directory.path().join("template/d/f")).unwrap(),
        "template"
    );
}

#[test]
fn changes_are_told_of_once_somebody_asks() {
    let (_directory, mut tree) = stacked(|_| {});
    let write = |text: &str| FileOperation::Replace {
        total: text.len() as u64,
        bytes: text.into(),
    };
    tree.answer(b"before", write("x"));
    tree.tell_changes(true);
    tree.answer(b"f", write("x"));
    tree.answer(b"f", write("y"));
    tree.answer(b"f", FileOperation::Rename { to: b"g".to_vec() });
    tree.answer(b"g", FileOperation::Remove);
    tree.answer(b"not/there", FileOperation::Remove);
    let told: Vec<_> = tree.take_changes().into_iter().map(|change| change.kind).collect();
    use TreeChangeKind::{Made, MovedAway, Removed, Written};
    assert_eq!(told, [Made, Written, Written, MovedAway, Made, Removed]);
    assert!(tree.take_changes().is_empty());
}

#[test]
fn annotations_are_kept_by_what_is_copied_and_bounded() {
    let (_directory, mut tree) = stacked(|root| fs::write(root.join("host/f"), "x").unwrap());
    let path = InnerPath::parse(b"f").unwrap();
    let write = FileOperation::Append(b"y".to_vec());
    assert_eq!(tree.answer(b"f", write), FileAnswer::Done);
    let given = vec![(b"name".to_vec(), b"value".to_vec())];
    match tree.annotate(USER, &path, &given) {
        // Many a file system has none.
        Err(Errno::OPNOTSUPP) => return,
        annotated => annotated.unwrap(),
    }
    assert_eq!(tree.annotations(USER, &path), given);
    tree.annotate(USER, &path, &Vec::new()).unwrap();
    assert!(tree.annotations(USER, &path).is_empty());
    for (wrong, errno) in [
        (vec![(Vec::new(), Vec::new())], Errno::INVAL),
        (vec![(b"n".to_vec(), vec![0; 5000])], Errno::INVAL),
        (
            (0..5).map(|name| (vec![b'a' + name], vec![0; 4096])).collect(),
            Errno::TOOBIG,
        ),
    ] {
        assert_eq!(tree.annotate(USER, &path, &wrong), Err(errno));
    }
}
