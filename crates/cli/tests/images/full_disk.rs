//! Images and builds on a disk that is full at one moment or another: what has no room is refused, and nothing of it stays.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::layout::Busybox;
use super::support::disks::SmallDisk;
use super::support::{Site, is_root, skip, stderr};

/// Space that is left, KiB: nothing, and then more until all has room.
const FREE: [usize; 10] = [0, 8, 64, 256, 600, 1000, 1400, 1900, 2600, 3400];

/// Writes until the disk has no room, and then makes some.
fn leave_free(disk: &Path, kibibytes: usize) {
    let filler = disk.join("filler");
    let file = fs::File::create(&filler).unwrap();
    while std::io::Write::write(&mut &file, &[0; 4096]).is_ok() {}
    let length = file.metadata().unwrap().len();
    let room = u64::try_from(kibibytes << 10).unwrap();
    file.set_len(length.saturating_sub(room)).unwrap();
}

#[test]
fn an_image_or_a_build_without_room_is_refused_and_leaves_nothing() {
    let site = Site::new();
    let Some(layout) = Busybox::layout(site.root()) else {
        return;
    };
    if !is_root() {
        return skip("only root can mount a small file system to fill");
    }
    let small = site.root().join("small");
    fs::create_dir(&small).unwrap();
    let Some(_mounted) = SmallDisk::mount(&small, 12) else {
        return skip("a tmpfs cannot be mounted here");
    };
    let state = small.join("state");
    fs::create_dir(&state).unwrap();
    fs::set_permissions(&state, fs::Permissions::from_mode(0o700)).unwrap();
    let context = site.root().join("context");
    fs::create_dir(&context).unwrap();
    fs::write(
        context.join("Dockerfile"),
        "FROM localhost/box:t\nRUN head -c 700000 /dev/urandom > /one\nRUN head -c 700000 /dev/urandom > /two\n",
    )
    .unwrap();
    let load = ["image", "load", "-q", layout.to_str().unwrap()];
    let build = ["template", "build", "-q", "--name", "two", context.to_str().unwrap()];
    for words in [&load[..], &build] {
        let (mut refused, mut done) = (0, 0);
        for free in FREE {
            leave_free(&small, free);
            let arguments = [&["--state", state.to_str().unwrap()], words].concat();
            let output = site.offleash(&arguments).output().unwrap();
            let said = stderr(&output);
            fs::remove_file(small.join("filler")).unwrap();
            if output.status.success() {
                done += 1;
                break;
            }
            refused += 1;
            assert_eq!(output.status.code(), Some(125), "{said}");
            assert!(
                ["o space left", "no room", "failed: exit code"]
                    .iter()
                    .any(|word| said.contains(word)),
                "{free} KiB: {said}"
            );
        }
        assert!(refused > 2 && done == 1, "{refused} refused, {done} done");
    }
    let state = state.to_str().unwrap();
    let output = site.offleash([
        "--state",
        state,
        "run",
        "-q",
        "--template",
        "two",
        "--",
        "wc",
        "-c",
        "/one",
        "/two",
    ]);
    let output = { output }.output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    // What was begun is gone on with, so that nothing of it is left in the end.
    let partial = Path::new(state).join("images/partial");
    assert_eq!(fs::read_dir(partial).into_iter().flatten().count(), 0);
}
