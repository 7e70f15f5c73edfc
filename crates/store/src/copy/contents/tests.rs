use std::io::Write as _;

use super::*;

/// Longer than what is in memory at a time, and no multiple of it.
const LONG: usize = 3 * BUFFER + 4321;

fn some_bytes() -> Vec<u8> {
    (0..LONG).map(|at| u8::try_from(at * 7 % 251).unwrap()).collect()
}

/// A file without a name that holds these bytes.
fn file(bytes: &[u8]) -> OwnedFd {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file.into()
}

fn held_by(file: OwnedFd) -> Vec<u8> {
    let file = File::from(file);
    let mut bytes = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

#[test]
fn whichever_way_bytes_go_they_arrive_in_their_places() {
    type Way = fn(&OwnedFd, &OwnedFd, u64, u64) -> Result<(), Errno>;
    let bytes = some_bytes();
    let end = u64::try_from(LONG).unwrap();
    for (name, copy) in [("by the kernel", copy_range as Way), ("through memory", read_and_write)] {
        for start in [0, 1, end - 1] {
            let to = file(b"");
            copy(&file(&bytes), &to, start, end).unwrap();
            let mut expected = bytes.clone();
            expected[..usize::try_from(start).unwrap()].fill(0);
            assert!(held_by(to) == expected, "{name} from {start}");
        }
        // One that became shorter meanwhile is no endless loop.
        let to = file(b"");
        copy(&file(b"short"), &to, 0, end).unwrap();
        assert_eq!(held_by(to), b"short", "{name}");
    }
}

#[test]
fn between_file_systems_a_file_is_copied_with_its_holes() {
    let memory = rustix::fs::memfd_create("from", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let from = File::from(memory);
    let hole = 1 << 30;
    from.set_len(hole * 2).unwrap();
    from.write_all_at(&some_bytes(), hole).unwrap();
    let from = OwnedFd::from(from);
    let to = file(b"");
    copy_contents(&from, &to, i64::try_from(hole * 2).unwrap()).unwrap();
    let to = File::from(to);
    assert_eq!(to.metadata().unwrap().len(), hole * 2);
    let mut found = vec![0; LONG];
    to.read_exact_at(&mut found, hole).unwrap();
    assert!(found == some_bytes());
    let on_disk = std::os::unix::fs::MetadataExt::blocks(&to.metadata().unwrap()) * 512;
    assert!(on_disk < 64 << 20, "{on_disk}");
}

#[test]
fn a_copy_is_not_the_file_that_it_was_copied_from() {
    let bytes = some_bytes();
    let (from, to) = (file(&bytes), file(b""));
    copy_contents(&from, &to, i64::try_from(LONG).unwrap()).unwrap();
    File::from(from).write_all_at(b"changed", 0).unwrap();
    assert!(held_by(to) == bytes);
}

#[test]
fn a_full_disk_is_said_to_be_one() {
    let full = OwnedFd::from(File::options().write(true).open("/dev/full").unwrap());
    let end = u64::try_from(LONG).unwrap();
    assert_eq!(copy_range(&file(&some_bytes()), &full, 0, end), Err(Errno::NOSPC));
}
