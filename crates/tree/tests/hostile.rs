//! The other side is hostile: what it says reaches nothing outside of the root, stops nothing, and takes no more than is
//! allowed. Each way out is proved to be one for whoever may walk it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(missing_docs, unreachable_pub, reason = "a test has no callers")]

mod support;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;

use offleash_tree::{MAX_MESSAGE, TreeError, TreeOptions};
use proptest::prelude::*;
use rustix::io::Errno;
use support::*;
use tempfile::TempDir;

const SECRET: &[u8] = b"what-nobody-inside-may-read";

/// A root, and beside it what nobody inside may reach.
struct Place {
    base: TempDir,
}

impl Place {
    fn new() -> Self {
        let base = TempDir::new().unwrap();
        fs::create_dir(base.path().join("outside")).unwrap();
        fs::write(base.path().join("outside/secret"), SECRET).unwrap();
        let root = base.path().join("root");
        fs::create_dir(&root).unwrap();
        fs::write(root.join("file"), b"inside").unwrap();
        fs::create_dir(root.join("dir")).unwrap();
        fs::write(root.join("dir/below"), b"below").unwrap();
        symlink("../outside", root.join("relative")).unwrap();
        symlink(base.path().join("outside"), root.join("absolute")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            root.join("fifo"),
            rustix::fs::FileType::Fifo,
            0o600.into(),
            0,
        )
        .unwrap();
        Self { base }
    }

    fn root(&self) -> PathBuf {
        self.base.path().join("root")
    }

    /// Names, contents, modes and times outside.
    fn outside(&self) -> Vec<(PathBuf, Vec<u8>, u32, std::time::SystemTime)> {
        let mut found = Vec::new();
        for entry in fs::read_dir(self.base.path().join("outside")).unwrap() {
            let path = entry.unwrap().path();
            let about = path.symlink_metadata().unwrap();
            let content = fs::read(&path).unwrap_or_default();
            found.push((path, content, about.permissions().mode(), about.modified().unwrap()));
        }
        // What would be made, moved or removed beside the root changes the directory above it.
        let above = self.base.path().metadata().unwrap();
        let mode = above.permissions().mode();
        found.push((self.base.path().to_owned(), Vec::new(), mode, above.modified().unwrap()));
        found
    }
}

#[test]
fn a_breach_of_the_framing_ends_serving() {
    let place = Place::new();
    for length in [0, 1, 39, u32::try_from(MAX_MESSAGE).unwrap() + 1, u32::MAX] {
        let mut machine = Machine::plain(&place.root());
        let mut bytes = message(LOOKUP, 2, ROOT, (0, 0), b"file\0");
        bytes[..4].copy_from_slice(&length.to_ne_bytes());
        machine.send(&bytes).unwrap();
        let ended = machine.join();
        assert!(
            matches!(ended, Err(TreeError::MessageLength { length: said, .. }) if said == length),
            "{ended:?}"
        );
    }
    for cut in [1, 39, 40, 44] {
        let mut machine = Machine::plain(&place.root());
        machine
            .send(&message(LOOKUP, 2, ROOT, (0, 0), b"file\0")[..cut])
            .unwrap();
        let ended = machine.end();
        assert!(
            matches!(ended, Err(TreeError::Truncated { have }) if have == cut),
            "{ended:?}"
        );
    }
    let machine = Machine::plain(&place.root());
    assert!(machine.end().is_ok());
}

#[test]
fn the_longest_message_is_heard() {
    let place = Place::new();
    let mut machine = Machine::plain(&place.root());
    let (node, handle) = machine.create(ROOT, "long", 1, 0o600).unwrap();
    let bytes = vec![7; offleash_tree::MAX_WRITE];
    assert_eq!(machine.write(node, handle, 0, (0, 0), &bytes), Ok(1 << 20));
    // More than a write may be, and no more than a message may.
    let more = vec![7; offleash_tree::MAX_WRITE + 1];
    assert_eq!(machine.write(node, handle, 0, (0, 0), &more), Err(Errno::INVAL));
    assert_eq!(machine.getattr(node).unwrap().0, 1 << 20);
    // What is said to be there, and is not.
    let lie = Body::new()
        .u64(handle)
        .u64(0)
        .u32(1000)
        .u32(0)
        .u64(0)
        .u32(0)
        .u32(0)
        .bytes(b"few");
    assert_eq!(machine.ask(WRITE, node, lie), Err(Errno::INVAL));
    let read = machine.open(node, 0).unwrap();
    assert_eq!(machine.read(node, read, 0, u32::MAX).unwrap().len(), 1 << 20);
}

#[test]
fn the_first_message_greets_and_no_other() {
    let place = Place::new();
    let mut machine = Machine::silent(&place.root(), plain());
    machine.send(&message(LOOKUP, 2, ROOT, (0, 0), b"file\0")).unwrap();
    assert!(matches!(
        machine.join(),
        Err(TreeError::NotInitialised { operation: LOOKUP })
    ));
    for (major, minor) in [(6, 40), (7, 30), (0, 0)] {
        let mut machine = Machine::silent(&place.root(), plain());
        machine
            .send(&message(INIT, 2, 0, (0, 0), &init(major, minor).0))
            .unwrap();
        assert!(
            matches!(machine.join(), Err(TreeError::Version { .. })),
            "{major}.{minor}"
        );
    }
    // A later one asks again with ours.
    let mut machine = Machine::silent(&place.root(), plain());
    assert_eq!(short(&machine.ask(INIT, 0, init(8, 0)).unwrap(), 0), 7);
    assert!(machine.ask(INIT, 0, init(7, 45)).is_ok());
    assert!(machine.lookup(ROOT, "file").is_ok());
    assert_eq!(machine.ask(INIT, 0, init(7, 45)), Err(Errno::IO));
    assert!(machine.lookup(ROOT, "file").is_ok());
}

#[test]
fn names_that_lead_elsewhere_are_refused_whatever_is_asked() {
    let place = Place::new();
    // Whoever takes them as paths is outside.
    assert_eq!(fs::read(place.root().join("dir/../../outside/secret")).unwrap(), SECRET);
    let mut machine = Machine::plain(&place.root());
    let file = machine.lookup(ROOT, "file").unwrap();
    let absolute = place.base.path().join("outside/secret");
    let absolute = absolute.to_str().unwrap().to_owned();
    for name in [
        "",
        ".",
        "..",
        "/",
        "../outside",
        "dir/../../outside/secret",
        &absolute,
        "dir/below",
        "a/",
    ] {
        let name = name.as_bytes();
        let named = || Body::new().string(name);
        let good = || Body::new().string(b"new");
        let attempts = [
            (LOOKUP, named()),
            (UNLINK, named()),
            (RMDIR, named()),
            (MKDIR, Body::new().u32(0o755).u32(0).string(name)),
            (MKNOD, Body::new().u32(0o100_644).u32(0).u32(0).u32(0).string(name)),
            (CREATE, Body::new().u32(0o101).u32(0o644).u32(0).u32(0).string(name)),
            (SYMLINK, named().string(b"target")),
            (LINK, Body::new().u64(file).string(name)),
            (RENAME, Body::new().u64(ROOT).string(name).string(b"new")),
            (RENAME, Body::new().u64(ROOT).string(b"file").string(name)),
            (
                RENAME2,
                Body::new().u64(ROOT).u32(2).u32(0).string(b"file").string(name),
            ),
            (LOOKUP, good().string(name)),
        ];
        for (operation, body) in attempts {
            let answer = machine.ask(operation, ROOT, body);
            assert_eq!(
                answer,
                Err(Errno::INVAL),
                "{operation} {:?}",
                String::from_utf8_lossy(name)
            );
        }
    }
    let long = vec![b'x'; 256];
    assert_eq!(
        machine.ask(LOOKUP, ROOT, Body::new().string(&long)),
        Err(Errno::NAMETOOLONG)
    );
    assert_eq!(machine.ask(LOOKUP, ROOT, Body::new().bytes(b"file")), Err(Errno::INVAL));
    let target = vec![b'x'; 4096];
    assert_eq!(
        machine.ask(SYMLINK, ROOT, Body::new().string(b"s").string(&target)),
        Err(Errno::NAMETOOLONG)
    );
    assert!(machine.lookup(ROOT, "file").is_ok());
}

#[test]
fn links_are_read_and_never_followed() {
    let place = Place::new();
    let mut machine = Machine::plain(&place.root());
    for name in ["relative", "absolute"] {
        // Whoever follows them is outside.
        assert_eq!(fs::read(place.root().join(name).join("secret")).unwrap(), SECRET);
        let link = machine.lookup(ROOT, name).unwrap();
        assert!(machine.ask(READLINK, link, Body::new()).unwrap().ends_with(b"outside"));
        assert_eq!(machine.lookup(link, "secret"), Err(Errno::NOTDIR));
        assert_eq!(machine.create(link, "new", 1, 0o600), Err(Errno::NOTDIR));
        assert_eq!(machine.open(link, 0), Err(Errno::LOOP));
        assert_eq!(
            machine.ask(OPENDIR, link, Body::new().u32(0).u32(0)),
            Err(Errno::NOTDIR)
        );
        // Made over it, where it would be made outside.
        assert_eq!(machine.create(ROOT, name, 0o102, 0o600), Err(Errno::LOOP));
        let mode = Body::new().u32(1).u32(0).bytes(&[0; 60]).u32(0o777).bytes(&[0; 16]);
        assert_eq!(machine.ask(SETATTR, link, mode), Err(Errno::OPNOTSUPP));
        let size = Body::new().u32(8).u32(0).bytes(&[0; 80]);
        assert_eq!(machine.ask(SETATTR, link, size), Err(Errno::LOOP));
    }
    assert_eq!(place.outside().len(), 2);
}

#[test]
fn what_became_a_link_meanwhile_is_not_what_it_was() {
    let place = Place::new();
    // Few descriptors, so that it must be found again by its name.
    let options = TreeOptions {
        max_descriptors: Some(64),
        ..plain()
    };
    let mut machine = Machine::new(&place.root(), options);
    let directory = machine.lookup(ROOT, "dir").unwrap();
    let file = machine.lookup(ROOT, "file").unwrap();
    fs::rename(place.root().join("dir"), place.root().join("aside")).unwrap();
    symlink("../outside", place.root().join("dir")).unwrap();
    fs::remove_file(place.root().join("file")).unwrap();
    symlink("../outside/secret", place.root().join("file")).unwrap();
    assert_eq!(machine.lookup(directory, "secret"), Err(Errno::STALE));
    assert_eq!(machine.open(file, 0), Err(Errno::STALE));
    assert_eq!(machine.getattr(file), Err(Errno::STALE));
}

#[test]
fn what_is_no_file_is_not_opened() {
    let place = Place::new();
    let mut machine = Machine::plain(&place.root());
    // Opening it here would wait for somebody to write.
    let fifo = machine.lookup(ROOT, "fifo").unwrap();
    assert_eq!(machine.open(fifo, 0), Err(Errno::NXIO));
    assert_eq!(machine.create(ROOT, "fifo", 0o102, 0o600), Err(Errno::NXIO));
    let directory = machine.lookup(ROOT, "dir").unwrap();
    assert_eq!(machine.open(directory, 0), Err(Errno::ISDIR));
    for kind in [0o020_000, 0o060_000] {
        let body = Body::new().u32(kind | 0o666).u32(0x103).u32(0).u32(0).string(b"device");
        assert_eq!(machine.ask(MKNOD, ROOT, body), Err(Errno::PERM));
    }
}

#[test]
fn what_shows_the_kernel_is_not_served() {
    // Whoever serves would tell of itself there.
    assert!(fs::read("/proc/self/environ").is_ok());
    let mut machine = Machine::plain("/".as_ref());
    assert_eq!(machine.lookup(ROOT, "proc"), Err(Errno::ACCESS));
    assert!(machine.lookup(ROOT, "usr").is_ok());
    assert!(machine.list(ROOT, 4096).unwrap().contains(&"proc".to_owned()));
}

#[test]
fn numbers_that_nobody_gave_out_are_refused() {
    let place = Place::new();
    let mut machine = Machine::plain(&place.root());
    let file = machine.lookup(ROOT, "file").unwrap();
    let other = machine.lookup(ROOT, "dir").unwrap();
    let handle = machine.open(file, 2).unwrap();
    let directory = number(&machine.ask(OPENDIR, other, Body::new().u32(0).u32(0)).unwrap(), 0);
    for node in [0, 999, u64::MAX] {
        assert_eq!(machine.getattr(node), Err(Errno::STALE));
        assert_eq!(machine.lookup(node, "file"), Err(Errno::STALE));
        assert_eq!(machine.open(node, 0), Err(Errno::STALE));
        assert_eq!(
            machine.ask(LINK, ROOT, Body::new().u64(node).string(b"new")),
            Err(Errno::STALE)
        );
        let body = Body::new().u64(node).string(b"file").string(b"new");
        assert_eq!(machine.ask(RENAME, ROOT, body), Err(Errno::STALE));
        assert_eq!(machine.read(node, handle, 0, 10), Err(Errno::BADF));
    }
    for wrong in [0, handle + 100, u64::MAX, directory] {
        assert_eq!(machine.read(file, wrong, 0, 10), Err(Errno::BADF));
        assert_eq!(machine.write(file, wrong, 0, (0, 0), b"x"), Err(Errno::BADF));
        assert_eq!(
            machine.ask(FSYNC, file, Body::new().u64(wrong).u32(0).u32(0)),
            Err(Errno::BADF)
        );
    }
    // A handle of another node.
    assert_eq!(machine.read(other, handle, 0, 10), Err(Errno::BADF));
    let body = Body::new().u64(handle).u64(0).u32(4096).bytes(&[0; 20]);
    assert_eq!(machine.ask(READDIR, file, body), Err(Errno::BADF));
    assert_eq!(
        machine.ask(FSYNCDIR, ROOT, Body::new().u64(directory).u32(0).u32(0)),
        Err(Errno::BADF)
    );
    // Forgotten more often than told, and with a number of pairs that are not there.
    machine.tell(FORGET, file, Body::new().u64(u64::MAX));
    machine.tell(
        BATCH_FORGET,
        0,
        Body::new().u32(u32::MAX).u32(0).u64(ROOT).u64(u64::MAX),
    );
    machine.tell(INTERRUPT, 0, Body::new().u64(77));
    assert!(machine.lookup(ROOT, "file").is_ok());
    assert_eq!(machine.ask(4711, ROOT, Body::new()), Err(Errno::NOSYS));
}

#[test]
fn attributes_that_the_kernel_reads_are_not_written() {
    let place = Place::new();
    let mut machine = Machine::plain(&place.root());
    let file = machine.lookup(ROOT, "file").unwrap();
    for name in [
        &b"security.capability"[..],
        b"security.selinux",
        b"trusted.overlay.opaque",
    ] {
        let body = Body::new().u32(1).u32(0).string(name).bytes(b"y");
        assert_eq!(machine.ask(SETXATTR, file, body), Err(Errno::PERM));
        assert_eq!(
            machine.ask(GETXATTR, file, Body::new().u32(100).u32(0).string(name)),
            Err(Errno::NODATA)
        );
        assert_eq!(
            machine.ask(REMOVEXATTR, file, Body::new().string(name)),
            Err(Errno::PERM)
        );
    }
    let body = Body::new().u32(1).u32(0).string(b"system.posix_acl_access").bytes(b"y");
    assert_eq!(machine.ask(SETXATTR, file, body), Err(Errno::OPNOTSUPP));
    let body = Body::new().u32(1).u32(0).string(b"user.x").bytes(b"y");
    match machine.ask(SETXATTR, file, body) {
        Ok(_) => {
            assert_eq!(
                machine.ask(GETXATTR, file, Body::new().u32(9).u32(0).string(b"user.x")),
                Ok(b"y".to_vec())
            );
            assert_eq!(
                machine.ask(LISTXATTR, file, Body::new().u32(99).u32(0)),
                Ok(b"user.x\0".to_vec())
            );
            assert_eq!(
                machine.ask(LISTXATTR, file, Body::new().u32(3).u32(0)),
                Err(Errno::RANGE)
            );
        }
        Err(error) => {
            println!("SKIP: attributes of users on this file system: {error}");
        }
    }
}

#[test]
fn descriptors_are_bounded() {
    let place = Place::new();
    for number in 0..400 {
        fs::create_dir(place.root().join(format!("d{number}"))).unwrap();
        fs::write(place.root().join(format!("d{number}/f")), b"x").unwrap();
    }
    let options = TreeOptions {
        max_descriptors: Some(100),
        ..plain()
    };
    let mut machine = Machine::new(&place.root(), options);
    let mut files = Vec::new();
    for number in 0..400 {
        let directory = machine.lookup(ROOT, &format!("d{number}")).unwrap();
        let file = machine.lookup(directory, "f").unwrap();
        assert!(machine.getattr(file).is_ok());
        files.push(file);
    }
    assert!(open_below(&place.root()) <= 34, "{}", open_below(&place.root()));
    // Each is found again.
    for file in &files {
        assert_eq!(machine.getattr(*file).unwrap().0, 1);
    }
    let opened: Vec<_> = files.iter().map(|file| machine.open(*file, 0)).collect();
    assert_eq!(opened.iter().filter(|opened| opened.is_ok()).count(), 67);
    assert_eq!(opened[67], Err(Errno::NFILE));
    assert!(open_below(&place.root()) <= 102);
    // One that is closed makes room for one.
    let release = Body::new().u64(*opened[0].as_ref().unwrap()).bytes(&[0; 16]);
    machine.ask(RELEASE, files[0], release).unwrap();
    assert!(machine.open(files[70], 0).is_ok());
    assert_eq!(machine.open(files[71], 0), Err(Errno::NFILE));
}

/// What a fuzzed message is about.
fn number_choice() -> impl Strategy<Value = u64> {
    prop_oneof![3 => Just(ROOT), 6 => 0..12_u64, 3 => 12..40_u64, 1 => any::<u64>()]
}

fn name_choice() -> impl Strategy<Value = Vec<u8>> {
    let known = [
        "file",
        "dir",
        "below",
        "relative",
        "absolute",
        "fifo",
        "new",
        "..",
        ".",
        "../outside/secret",
        "outside",
        "secret",
        "..",
        "..",
        "a/b",
    ];
    prop_oneof![
        8 => proptest::sample::select(known.to_vec()).prop_map(|name| name.as_bytes().to_vec()),
        1 => proptest::collection::vec(any::<u8>(), 0..20),
    ]
}

/// A piece of a body: as a kernel would say it, or anything.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => number_choice().prop_map(|number| number.to_ne_bytes().to_vec()),
        4 => prop_oneof![0..4096_u32, any::<u32>()].prop_map(|number| number.to_ne_bytes().to_vec()),
        4 => name_choice().prop_map(|mut name| { name.push(0); name }),
        1 => proptest::collection::vec(any::<u8>(), 0..100),
    ]
}

/// A body with the layout of its operation, or any.
fn any_message() -> impl Strategy<Value = (u32, u64, Vec<u8>)> {
    let shaped = (
        number_choice(),
        number_choice(),
        0..9000_u32,
        any::<u32>(),
        name_choice(),
        name_choice(),
    );
    let shaped =
        (0..40_usize, number_choice(), shaped).prop_map(|(which, node, (one, two, small, any, name, other))| {
            let body = Body::new();
            let (operation, body) = match which {
                0..5 => (LOOKUP, body.string(&name)),
                5..8 => (OPEN, body.u32(small & 0o3103).u32(0)),
                8..11 => (CREATE, body.u32(small & 0o3303).u32(0o666).u32(0).u32(0).string(&name)),
                11..14 => (READ, body.u64(one).u64(two).u32(small).bytes(&[0; 20])),
                14..17 => (
                    WRITE,
                    body.u64(one)
                        .u64(two)
                        .u32(3)
                        .u32(small & 7)
                        .u64(0)
                        .u32(small)
                        .u32(0)
                        .bytes(b"abc"),
                ),
                17 => (OPENDIR, body.u32(0).u32(0)),
                18 => (READDIR, body.u64(one).u64(two).u32(small).bytes(&[0; 20])),
                19 => (READDIRPLUS, body.u64(one).u64(two).u32(small).bytes(&[0; 20])),
                20..22 => (RENAME, body.u64(one).string(&name).string(&other)),
                22..24 => (
                    RENAME2,
                    body.u64(one).u32(small & 3).u32(0).string(&name).string(&other),
                ),
                24 => (LINK, body.u64(one).string(&name)),
                25 => (SYMLINK, body.string(&name).string(&other)),
                26 => (MKDIR, body.u32(0o755).u32(0).string(&name)),
                27 => (UNLINK, body.string(&name)),
                28 => (RMDIR, body.string(&name)),
                29 => (MKNOD, body.u32(any).u32(0).u32(0).u32(0).string(&name)),
                30 => (
                    SETATTR,
                    body.u32(any & 0xfff).u32(0).u64(one).u64(two % 10_000).bytes(&[0; 64]),
                ),
                31 => (GETATTR, body.u32(any & 1).u32(0).u64(one)),
                32 => (
                    FALLOCATE,
                    body.u64(one)
                        .u64(two % 10_000)
                        .u64(u64::from(small))
                        .u32(any & 3)
                        .u32(0),
                ),
                33 => (LSEEK, body.u64(one).u64(two).u32(any % 6).u32(0)),
                34 => (
                    COPY_FILE_RANGE,
                    body.u64(one)
                        .u64(0)
                        .u64(node)
                        .u64(two)
                        .u64(100)
                        .u64(u64::from(small))
                        .u64(0),
                ),
                35 => (FORGET, body.u64(two)),
                36 => (
                    TMPFILE,
                    body.u32(small & 0o203 | 2).u32(0o600).u32(0).u32(0).string(b""),
                ),
                37 => (RELEASE, body.u64(one).bytes(&[0; 16])),
                38 => (STATX, body.u32(any & 1).u32(0).u64(one).u32(0).u32(0)),
                _ => (STATFS, body),
            };
            (operation, node, body.0)
        });
    let free = (0..60_u32, number_choice(), proptest::collection::vec(piece(), 0..8));
    let free = free.prop_map(|(operation, node, pieces)| (operation, node, pieces.concat()));
    let shaped =
        (shaped, proptest::option::weighted(0.2, (any::<usize>(), any::<u8>()))).prop_map(|(mut made, change)| {
            if let Some((at, byte)) = change
                && !made.2.is_empty()
            {
                let at = at % made.2.len();
                made.2[at] = byte;
            }
            made
        });
    prop_oneof![4 => shaped, 1 => free]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, max_shrink_iters: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_said_nothing_outside_is_reached(messages in proptest::collection::vec(any_message(), 1..120)) {
        let place = Place::new();
        let before = place.outside();
        let mut machine = Machine::new(&place.root(), TreeOptions { max_descriptors: Some(200), ..plain() });
        for name in ["file", "dir", "relative"] {
            machine.lookup(ROOT, name).unwrap();
        }
        let mut expected = 0;
        for (number, (operation, node, body)) in messages.iter().enumerate() {
            // That would be the end.
            let operation = if *operation == DESTROY { 0 } else { *operation };
            let is_silent = [FORGET, BATCH_FORGET, INTERRUPT].contains(&operation);
            let unique = u64::try_from(number).unwrap() * 2 + 1000;
            machine.send(&message(operation, unique, *node, machine.ids, body)).unwrap();
            if !is_silent {
                expected += 1;
                let (answered, outcome) = machine.receive().expect("an answer");
                prop_assert_eq!(answered, unique);
                if let Ok(bytes) = outcome {
                    prop_assert!(!bytes.windows(SECRET.len()).any(|window| window == SECRET));
                }
            }
        }
        let open_outside = open_below(&place.base.path().join("outside"));
        prop_assert_eq!(open_outside, 0);
        machine.ask(DESTROY, 0, Body::new()).unwrap();
        prop_assert!(machine.join().is_ok());
        prop_assert_eq!(place.outside(), before);
        prop_assert!(expected <= messages.len());
    }
}
