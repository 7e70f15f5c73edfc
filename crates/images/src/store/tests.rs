use std::fs;

use super::*;

pub(super) struct NoIds;

impl IdNamespace for NoIds {
    fn run(&self, _: &mut dyn FnMut() -> io::Result<()>) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        Err("not here".into())
    }
}

#[test]
fn what_somebody_left_who_was_ended_goes_with_the_next_removal() {
    let directory = tempfile::tempdir().unwrap();
    let store = ImageStore::at(&directory.path().join("images")).unwrap();
    let left = [
        "references/a.new-7",
        "blobs/b.new-7",
        "blobs/c",
        "partial/d",
        "partial/staged-e",
    ];
    for path in left {
        fs::write(store.path.join(path), "half").unwrap();
    }
    for path in ["layers/flat/.new-f/upper", "layers/owned/.gone-g/upper"] {
        fs::create_dir_all(store.path.join(path)).unwrap();
    }
    let report = store.prune(false, &NoIds).unwrap();
    assert_eq!((report.blobs, report.bytes), (4, 16));
    for path in ["references", "blobs", "partial", "layers/flat", "layers/owned"] {
        assert_eq!(fs::read_dir(store.path.join(path)).unwrap().count(), 0, "{path}");
    }
}

#[test]
fn who_removes_is_alone() {
    let directory = tempfile::tempdir().unwrap();
    let store = ImageStore::at(&directory.path().join("images")).unwrap();
    let one = store.lock_for_adding().unwrap();
    drop(store.lock_for_adding().unwrap());
    drop(one);
    drop(store.lock_for_removing().unwrap());
}

#[test]
fn who_writes_one_file_at_once_does_not_take_it_from_the_other() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.json");
    std::thread::scope(|scope| {
        for byte in [b'a', b'b', b'c', b'd'] {
            let path = &path;
            scope.spawn(move || {
                for _ in 0..50 {
                    write_whole(path, &[byte; 9]).unwrap();
                }
            });
        }
    });
    let whole = fs::read(&path).unwrap();
    assert_eq!(whole, [whole[0]; 9]);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "something was left");
}
