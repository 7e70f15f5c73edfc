//! File workers: each request, as whom they act, and what they make of what is not a request.

use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::harness::{Guest, Role, program, roles, start, start_program, stream_pair};
use crate::users::is_root;
use crate::worker::{Worker, bytes, pairs};
use offleash_protocol::files::{DATA_CHUNK, FileReply, FileRequest};
use offleash_protocol::{GuestIds, ToGuest, encode};
use rustix::io::Errno;

const SOMEBODY: GuestIds = GuestIds {
    uid: 54_321,
    gid: 54_322,
};

fn code(errno: Errno) -> i32 {
    errno.raw_os_error()
}

/// A guest with a worker of its own user, and a directory.
fn begin() -> (Guest, Worker, tempfile::TempDir) {
    let mut guest = start(Role::Subreaper);
    let worker = guest.open_files(None);
    (guest, worker, tempfile::tempdir().expect("a directory"))
}

fn names(root: &Path, entries: &[offleash_protocol::files::FileEntry]) -> Vec<String> {
    let root = bytes(root);
    let relative = |path: &[u8]| String::from_utf8_lossy(&path[root.len() + 1..]).into_owned();
    entries.iter().map(|entry| relative(&entry.path)).collect()
}

/// Numbers without a visible pattern.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (state >> 56) as u8
    };
    (0..length).map(|_| next()).collect()
}

#[test]
fn a_file_is_written_and_read_again() {
    for role in roles() {
        let mut guest = start(role);
        let mut worker = guest.open_files(None);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("deep/er/file");
        let content = noise(3 * DATA_CHUNK + 1234);
        let written = worker.write(&path, &content, &[]).expect("it is written");
        assert_eq!(
            (written.path.clone(), written.size),
            (bytes(&path), content.len() as u64)
        );
        assert_eq!(written.mode, 0o100_644);
        assert_eq!(std::fs::read(&path).unwrap(), content);
        assert_eq!(
            std::fs::metadata(path.parent().unwrap()).unwrap().mode() & 0o7777,
            0o755
        );
        let (entry, read) = worker.read(&path, 0, None).expect("it is read");
        assert!(read == content && entry.size == written.size);
        // In place: it is the same file, and longer contents are gone.
        let inode = std::fs::metadata(&path).unwrap().ino();
        assert_eq!(worker.write(&path, b"short", &[]).expect("it is overwritten").size, 5);
        assert_eq!(worker.write(&path, b"", &[]).expect("it is emptied").size, 0);
        assert_eq!(std::fs::metadata(&path).unwrap().ino(), inode);
    }
}

#[test]
fn parts_of_a_file_are_read() {
    let (_guest, mut worker, directory) = begin();
    let path = directory.path().join("file");
    let content = noise(DATA_CHUNK + 100);
    std::fs::write(&path, &content).unwrap();
    for (offset, length, range) in [
        (0, Some(0), 0..0),
        (10, Some(5), 10..15),
        (7, None, 7..content.len()),
        (content.len() as u64 - 1, Some(100), content.len() - 1..content.len()),
        (content.len() as u64 + 5, None, 0..0),
        (50, Some(u64::MAX), 50..content.len()),
    ] {
        let (_, read) = worker.read(&path, offset, length).expect("it is read");
        assert!(read == content[range], "{offset} {length:?}");
    }
}

#[test]
fn what_is_no_file_is_neither_read_nor_written() {
    let (_guest, mut worker, directory) = begin();
    let fifo = directory.path().join("fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o666),
        0,
    )
    .unwrap();
    let missing = directory.path().join("missing");
    std::fs::write(directory.path().join("file"), "").unwrap();
    let below_file = directory.path().join("file/below");
    for (path, read, write) in [
        (directory.path(), Errno::ISDIR, Some(Errno::ISDIR)),
        (&fifo, Errno::INVAL, Some(Errno::NXIO)),
        (&missing, Errno::NOENT, None),
        (&below_file, Errno::NOTDIR, Some(Errno::NOTDIR)),
    ] {
        assert_eq!(
            worker.read(path, 0, None).expect_err("no file").1,
            code(read),
            "{path:?}"
        );
        if let Some(errno) = write {
            let failed = worker.write(path, &noise(2 * DATA_CHUNK), &[]);
            assert_eq!(failed.expect_err("no file").1, code(errno), "{path:?}");
            // Nothing of the data was taken for a request.
            assert!(worker.stat(directory.path()).is_ok());
        }
    }
    let relative = worker.write(Path::new("relative"), b"data", &[]);
    assert_eq!(relative.expect_err("not absolute").1, code(Errno::INVAL));
    assert!(worker.stat(directory.path()).is_ok());
}

/// A guest that a shell starts after it has run `before` with the directory as `$1`.
fn start_after(around: &[&str], before: &str, directory: &Path) -> Guest {
    let script = format!("{before} && exec \"$0\" subreaper");
    let mut argv: Vec<Vec<u8>> = around.iter().map(|word| word.as_bytes().to_vec()).collect();
    argv.extend([
        b"/bin/sh".to_vec(),
        b"-c".to_vec(),
        script.into_bytes(),
        program(),
        bytes(directory),
    ]);
    start_program(&argv)
}

#[test]
fn what_does_not_fit_is_said() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let mut cases = vec![(start_after(&[], "ulimit -f 1", directory.path()), Errno::FBIG)];
    if roles().contains(&Role::Init) {
        let around = ["/usr/bin/unshare", "--user", "--map-root-user", "--mount", "--"];
        let mount = "mount -t tmpfs -o size=64k none \"$1\"";
        cases.push((start_after(&around, mount, directory.path()), Errno::NOSPC));
    }
    for (mut guest, errno) in cases {
        let mut worker = guest.open_files(None);
        let failed = worker.write(&path, &noise(DATA_CHUNK), &[]);
        assert_eq!(failed.expect_err("too large"), ("write".to_owned(), code(errno)));
        assert!(worker.write(&path, b"little", &[]).is_ok());
    }
}

#[test]
fn what_is_there_is_told() {
    let (_guest, mut worker, directory) = begin();
    let root = directory.path().canonicalize().unwrap();
    let file = root.join("file");
    std::fs::write(&file, "four").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
    let metadata = std::fs::metadata(&file).unwrap();
    let entry = worker.stat(&file).expect("it is there");
    assert_eq!((entry.mode, entry.size), (0o100_640, 4));
    assert_eq!((entry.uid, entry.gid), (metadata.uid(), metadata.gid()));
    assert_eq!(
        (entry.modified_s, i64::from(entry.modified_ns)),
        (metadata.mtime(), metadata.mtime_nsec())
    );
    if metadata.uid() == 0 {
        assert_eq!((&entry.owner[..], &entry.group[..]), (&b"root"[..], &b"root"[..]));
    }
    // Paths are cleaned by their words.
    assert_eq!(
        worker.stat(&root.join("./x/..//file")).expect("the same").path,
        bytes(&file)
    );

    symlink("file", root.join("link")).unwrap();
    symlink("link", root.join("link to link")).unwrap();
    symlink("nowhere/../x", root.join("dangling")).unwrap();
    for link in ["link", "link to link"] {
        let entry = worker.stat(&root.join(link)).expect("a link");
        let target = entry.target.expect("it leads somewhere");
        assert_eq!((target.path, target.mode), (bytes(&file), Some(0o100_640)), "{link}");
        assert_eq!(entry.mode & 0o170_000, 0o120_000);
    }
    let target = worker
        .stat(&root.join("dangling"))
        .expect("a link")
        .target
        .expect("it says so");
    assert_eq!((&target.path[..], target.mode), (&b"nowhere/../x"[..], None));
    let missing = worker.stat(&root.join("missing")).expect_err("nothing there");
    assert_eq!(missing, ("stat".to_owned(), code(Errno::NOENT)));
}

#[test]
fn directories_are_listed_depth_first_and_by_name() {
    let (_guest, mut worker, directory) = begin();
    let root = directory.path();
    for path in ["b/d/e", "a/z", "a/B"] {
        std::fs::create_dir_all(root.join(path)).unwrap();
    }
    for path in ["c", "b/a", "b/d/e/f"] {
        std::fs::write(root.join(path), path).unwrap();
    }
    symlink("b", root.join("link")).unwrap();
    let all = ["a", "a/B", "a/z", "b", "b/a", "b/d", "b/d/e", "b/d/e/f", "c", "link"];
    for depth in [0, 1, 2, 3, 4, u32::MAX] {
        let listed = worker.list(root, depth).expect("a directory");
        let most = depth.max(1) as usize;
        let expected: Vec<_> = all.into_iter().filter(|path| path.split('/').count() <= most).collect();
        assert_eq!(names(root, &listed), expected, "{depth}");
    }
    assert_eq!(worker.list(&root.join("link"), 1).expect("a link to one").len(), 2);
    for (path, errno) in [("c", Errno::NOTDIR), ("missing", Errno::NOENT)] {
        assert_eq!(worker.list(&root.join(path), 1).expect_err("none").1, code(errno));
    }
    assert_eq!(worker.list(&root.join("a/z"), 9), Ok(Vec::new()));
}

#[test]
fn many_entries_come_in_pieces() {
    let (_guest, mut worker, directory) = begin();
    for number in 0..1000 {
        std::fs::write(directory.path().join(format!("{number:04}")), "").unwrap();
    }
    let listed = names(
        directory.path(),
        &worker.list(directory.path(), 1).expect("a directory"),
    );
    let expected: Vec<_> = (0..1000).map(|number| format!("{number:04}")).collect();
    assert_eq!(listed, expected);
}

/// Makes directories below each other, deeper than a path can be.
fn make_deep(root: &Path, levels: usize) {
    let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
    let mut current = rustix::fs::open(root, flags, rustix::fs::Mode::empty()).expect("a directory");
    for _ in 0..levels {
        rustix::fs::mkdirat(&current, "d", rustix::fs::Mode::from_raw_mode(0o755)).expect("mkdir");
        current = rustix::fs::openat(&current, "d", flags, rustix::fs::Mode::empty()).expect("it is there");
    }
    let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::CREATE;
    rustix::fs::openat(&current, "file", flags, rustix::fs::Mode::from_raw_mode(0o644)).expect("a file");
}

#[test]
fn trees_deeper_than_any_path_are_listed_and_removed() {
    let (_guest, mut worker, _) = begin();
    // In memory, if there is such a place: a disk takes its time for so many directories.
    let directory = tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .unwrap();
    let (root, levels) = (directory.path().join("deep"), 10_000);
    std::fs::create_dir(&root).unwrap();
    make_deep(&root, levels);
    let listed = worker.list(&root, u32::MAX).expect("however deep");
    assert_eq!(listed.len(), levels + 1);
    let last = listed.last().expect("the file");
    assert_eq!(last.path.len(), bytes(&root).len() + 2 * levels + "/file".len());
    worker.remove(&root).expect("however deep");
    assert!(!root.exists());
}

#[test]
fn everything_in_a_directory_is_removed_and_nothing_else() {
    let (_guest, mut worker, directory) = begin();
    let (root, outside) = (directory.path().join("root"), directory.path().join("outside"));
    for path in ["a/b/c", "a/d", "e"] {
        std::fs::create_dir_all(root.join(path)).unwrap();
    }
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("kept"), "").unwrap();
    symlink(&outside, root.join("a/b/link")).unwrap();
    for number in 0..500 {
        std::fs::write(root.join(format!("a/b/{number}")), "").unwrap();
    }
    worker.remove(&root.join("a/b/7")).expect("a file");
    worker.remove(&root).expect("a directory");
    assert!(!root.exists() && outside.join("kept").exists());
    worker.remove(&root).expect("it is not there");
    worker
        .remove(&outside.join("kept/below"))
        .expect("there can be nothing");
    let link = directory.path().join("link");
    symlink(&outside, &link).unwrap();
    worker.remove(&link).expect("the link alone");
    assert!(outside.join("kept").exists() && !link.is_symlink());
    assert_eq!(
        worker.remove(Path::new("/")).expect_err("everything").1,
        code(Errno::BUSY)
    );
}

#[test]
fn directories_are_made_with_those_that_lead_there() {
    let (_guest, mut worker, directory) = begin();
    let path = directory.path().join("a/b/c");
    let make = |path: &PathBuf| FileRequest::MakeDirectory { path: bytes(path) };
    assert_eq!(worker.entry(&make(&path)).expect("made").mode, 0o040_755);
    assert!(path.is_dir());
    assert_eq!(worker.entry(&make(&path)).expect_err("there").1, code(Errno::EXIST));
    let file = path.join("file");
    std::fs::write(&file, "").unwrap();
    assert_eq!(worker.entry(&make(&file)).expect_err("a file").1, code(Errno::NOTDIR));
    assert_eq!(
        worker.entry(&make(&file.join("x"))).expect_err("below one").1,
        code(Errno::NOTDIR)
    );
}

#[test]
fn files_are_renamed_into_directories_that_are_made() {
    let (_guest, mut worker, directory) = begin();
    let (from, to) = (directory.path().join("from"), directory.path().join("x/y/to"));
    std::fs::write(&from, "content").unwrap();
    let mut rename = |from: &Path, to: &Path| {
        worker.entry(&FileRequest::Rename {
            source: bytes(from),
            destination: bytes(to),
        })
    };
    assert_eq!(rename(&from, &to).expect("renamed").path, bytes(&to));
    assert_eq!(std::fs::read(&to).unwrap(), b"content");
    let nowhere = directory.path().join("new/place");
    assert_eq!(rename(&from, &nowhere).expect_err("it is gone").1, code(Errno::NOENT));
    assert!(
        !nowhere.parent().unwrap().exists(),
        "nothing is made for what is not there"
    );
}

#[test]
fn files_are_annotated_anew_at_each_writing() {
    let (_guest, mut worker, directory) = begin();
    let path = directory.path().join("file");
    let first = worker.write(&path, b"x", &[("author", "me"), ("empty", "")]);
    match first {
        Err((step, errno)) if errno == code(Errno::OPNOTSUPP) => {
            assert_eq!(step, "setxattr");
            return;
        }
        written => assert_eq!(
            written.expect("written").metadata,
            pairs(&[("author", "me"), ("empty", "")])
        ),
    }
    let stated = worker.stat(&path).expect("there").metadata;
    assert!(stated.len() == 2 && stated.contains(&(b"author".to_vec(), b"me".to_vec())));
    assert_eq!(worker.list(directory.path(), 1).expect("listed")[0].metadata.len(), 2);
    worker.write(&path, b"y", &[("author", "you")]).expect("written");
    let (entry, _) = worker.read(&path, 0, None).expect("read");
    assert_eq!(entry.metadata, pairs(&[("author", "you")]));
    worker.write(&path, b"z", &[]).expect("written");
    assert!(worker.stat(&path).expect("there").metadata.is_empty());
    for metadata in [
        ("", "x"),
        ("a\0b", "x"),
        (&"n".repeat(247), "x"),
        ("n", &"v".repeat(5000)),
    ] {
        let failed = worker.write(&directory.path().join("new"), b"x", &[metadata]);
        assert_eq!(
            failed.expect_err("no annotation"),
            ("setxattr".to_owned(), code(Errno::INVAL))
        );
    }
    assert!(!directory.path().join("new").exists());
}

#[test]
fn a_worker_acts_as_its_user() {
    if !is_root() {
        return;
    }
    let mut guest = start(Role::Subreaper);
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    std::fs::set_permissions(root, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut worker = guest.open_files(Some(SOMEBODY));
    let denied = worker
        .write(&root.join("file"), b"x", &[])
        .expect_err("root's directory");
    assert_eq!(denied, ("open".to_owned(), code(Errno::ACCESS)));
    std::fs::set_permissions(root, std::fs::Permissions::from_mode(0o777)).unwrap();
    let path = root.join("of/somebody");
    worker.write(&path, b"x", &[]).expect("written");
    for path in [&path, &root.join("of")] {
        let metadata = std::fs::metadata(path).unwrap();
        assert_eq!((metadata.uid(), metadata.gid()), (SOMEBODY.uid, SOMEBODY.gid));
    }
    let entry = worker.stat(&path).expect("there");
    assert_eq!((&entry.owner[..], &entry.group[..]), (&b"54321"[..], &b"54322"[..]));
}

#[test]
fn a_worker_that_cannot_become_its_user_says_so() {
    let mut guest = start(Role::Subreaper);
    let mut refused = |user, step: &str, errno| {
        let mut worker = guest.open_files(Some(user));
        let reply = worker.next().expect("a reason");
        let step = step.to_owned();
        let errno = code(errno);
        assert_eq!(reply, FileReply::Failed { step, errno });
        assert_eq!(worker.next(), None);
    };
    let nobody = GuestIds { uid: u32::MAX, gid: 1 };
    refused(nobody, "start a file worker", Errno::INVAL);
    if !rustix::process::geteuid().is_root() {
        refused(SOMEBODY, "change the user", Errno::PERM);
    }
}

#[test]
fn workers_come_and_go_with_their_sockets() {
    for role in roles() {
        let mut guest = start(role);
        let workers: Vec<_> = (0..20).map(|_| guest.open_files(None)).collect();
        for mut worker in workers {
            assert!(worker.stat(Path::new("/")).is_ok());
        }
        guest.wait_until_alone();
        assert_eq!(guest.run(crate::harness::shell("echo alive")).text(), "alive\n");
    }
}

#[test]
fn there_are_only_so_many_workers() {
    let mut guest = start(Role::Subreaper);
    let mut workers: Vec<_> = (0..257).map(|_| guest.open_files(None)).collect();
    let mut last = workers.pop().expect("the last one");
    assert_eq!(last.next(), None);
    guest.pump_until(|guest| !guest.problems.is_empty());
    assert_eq!(guest.problems, ["there are too many file workers"]);
    for mut worker in workers.drain(..) {
        assert!(worker.stat(Path::new("/")).is_ok());
    }
    guest.wait_until_alone();
    assert!(guest.open_files(None).stat(Path::new("/")).is_ok());
}

#[test]
fn workers_die_with_the_guest() {
    let mut guest = start(Role::Subreaper);
    let mut worker = guest.open_files(None);
    worker.stat(Path::new("/")).expect("it works");
    guest.hang_up();
    assert_eq!(worker.next(), None);
}

#[test]
fn what_is_no_request_ends_the_worker() {
    let mut guest = start(Role::Subreaper);
    let data = FileRequest::Data { bytes: b"x".to_vec() };
    let too_large = u32::MAX.to_le_bytes().to_vec();
    for bytes in [
        encode(&data).expect("it fits"),
        encode(&FileRequest::Finish).expect("it fits"),
        vec![0; 8],
        too_large,
        noise(100),
    ] {
        let mut worker = guest.open_files(None);
        worker.send_bytes(&bytes);
        // Random bytes may be the beginning of a frame whose rest is awaited.
        rustix::net::shutdown(worker.socket(), rustix::net::Shutdown::Write).expect("a socket");
        assert_eq!(worker.next(), None);
    }
    let directory = tempfile::tempdir().unwrap();
    let mut worker = guest.open_files(None);
    let path = bytes(&directory.path().join("cut"));
    let metadata = Vec::new();
    worker.send(&FileRequest::Write { path, metadata });
    worker.send(&FileRequest::Stat { path: b"/".to_vec() });
    assert_eq!(worker.next(), None, "data was due");
}

#[test]
fn descriptors_that_do_not_belong_to_a_request_end_the_guest() {
    let files = encode(&ToGuest::Files { user: None }).expect("it fits");
    let usage = encode(&ToGuest::Usage).expect("it fits");
    let protocol = i32::from(71_u8);
    let (_ours, theirs) = stream_pair();
    let one = theirs.as_fd();
    let mut guest = start(Role::Subreaper);
    guest.send_bytes(&files);
    assert_eq!(guest.exit_code(), protocol, "none came");
    let mut guest = start(Role::Subreaper);
    guest.send_with(&files[..1], &[one, one]);
    assert_eq!(guest.exit_code(), protocol, "two came");
    let mut guest = start(Role::Subreaper);
    guest.send_with(&usage, &[one]);
    assert_eq!(guest.exit_code(), protocol, "one came for something else");
    // Two requests in one piece after another, and a frame in parts, are well.
    let mut guest = start(Role::Subreaper);
    guest.send_with(&files, &[one]);
    guest.send_bytes(&usage);
    guest.send_with(&files, &[one]);
    assert!(guest.open_files(None).stat(Path::new("/")).is_ok());
}
