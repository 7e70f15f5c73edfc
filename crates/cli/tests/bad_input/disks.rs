//! Disks that are full or became read-only.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use super::assert_refused;
use super::support::disks::SmallDisk;
use super::support::listing::listing;
use super::support::{Site, id_of, is_root, skip, stderr, stdout};

#[test]
fn a_full_disk_is_told_and_loses_nothing() {
    let site = Site::new();
    if !is_root() {
        return skip("only root can mount a small file system to fill");
    }
    let small = site.root().join("small");
    fs::create_dir(&small).unwrap();
    let Some(_mounted) = SmallDisk::mount(&small, 2) else {
        return skip("a tmpfs cannot be mounted here");
    };
    let workspace = small.join("workspace");
    fs::create_dir(&workspace).unwrap();
    fs::write(workspace.join("kept"), "as it was\n").unwrap();
    // The state is on a large disk, the workspace on a small one that is full when the changes are applied.
    let record = site.record(
        &["-w", workspace.to_str().unwrap()],
        "head -c 3000000 /dev/zero > big; echo changed > kept",
    );
    let run = id_of(&record);
    fs::write(small.join("filler"), vec![0; 1 << 20]).unwrap();
    let before = listing(&workspace);
    let said = site.refuse(["apply", &run]);
    assert!(said.contains("No space left"), "{said}");
    assert_eq!(listing(&workspace), before);
    assert_eq!(
        stdout(&site.offleash(["diff", "-s", &run]).output().unwrap()),
        "A big\nM kept\n"
    );

    // A state directory on a disk that is full.
    fs::create_dir(small.join("state")).unwrap();
    fs::set_permissions(small.join("state"), fs::Permissions::from_mode(0o700)).unwrap();
    let filler = fs::File::create(small.join("filler2")).unwrap();
    while std::io::Write::write(&mut &filler, &[0; 4096]).is_ok() {}
    let said = site.refuse(["--state", small.join("state").to_str().unwrap(), "run", "--", "true"]);
    assert!(said.contains("No space left"), "{said}");
}

#[test]
fn a_run_that_filled_the_state_directory_can_be_discarded() {
    let site = Site::new();
    if !is_root() {
        return skip("only root can mount a small file system to fill");
    }
    let small = site.root().join("small");
    fs::create_dir(&small).unwrap();
    let Some(_mounted) = SmallDisk::mount(&small, 2) else {
        return skip("a tmpfs cannot be mounted here");
    };
    fs::set_permissions(&small, fs::Permissions::from_mode(0o700)).unwrap();
    let state = small.to_str().unwrap();
    let filled = site
        .offleash(["--state", state, "run", "-c", "head -c 99000000 /dev/zero > big"])
        .output()
        .unwrap();
    assert_eq!(filled.status.code(), Some(125), "{}", stderr(&filled));
    let runs = stdout(&site.offleash(["--state", state, "runs"]).output().unwrap());
    let run = runs
        .split_whitespace()
        .next()
        .unwrap_or_else(|| panic!("the run is not listed"))
        .to_owned();
    let discarded = site.offleash(["--state", state, "discard", &run]).output().unwrap();
    assert!(discarded.status.success(), "{}", stderr(&discarded));
    let verified = site.offleash(["--state", state, "audit", "verify"]).output().unwrap();
    assert!(verified.status.success(), "{}", stderr(&verified));
}

#[test]
fn a_state_directory_that_became_read_only_is_refused_and_keeps_what_it_has() {
    let site = Site::new();
    if !is_root() {
        return skip("only root can mount a file system to make it read-only");
    }
    let small = site.root().join("small");
    fs::create_dir(&small).unwrap();
    let Some(_mounted) = SmallDisk::mount(&small, 2) else {
        return skip("a tmpfs cannot be mounted here");
    };
    let state = small.join("state");
    fs::create_dir(&state).unwrap();
    fs::set_permissions(&state, fs::Permissions::from_mode(0o700)).unwrap();
    let state = state.to_str().unwrap();
    let run = id_of(&site.record(&["--state", state], "echo x > x"));
    let remount = |flags| rustix::mount::mount_remount(&small, flags, c"").unwrap();
    remount(rustix::mount::MountFlags::RDONLY | rustix::mount::MountFlags::NOSUID);
    for command in [&["run", "--", "true"][..], &["apply", &run], &["discard", &run]] {
        let mut arguments = vec!["--state", state];
        arguments.extend_from_slice(command);
        assert_refused(&site, &arguments, &["Read-only file system"]);
    }
    remount(rustix::mount::MountFlags::NOSUID);
    site.succeed(["--state", state, "apply", &run]);
    assert_eq!(fs::read_to_string(site.workspace().join("x")).unwrap(), "x\n");
}
