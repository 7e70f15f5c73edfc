//! Graphics cards: what a sandbox that is given one has of it, and what is said where there is none.
//!
//! A node of another device stands for a card, in a `/dev` that the test alone sees.

use std::path::Path;

use crate::Column;
use crate::support::{Site, is_root, skip, stderr, stdout};

/// Makes such a `/dev` below its first argument, in mounts of its own, and starts the rest.
const WITH_A_CARD: &str = r#"
set -e
mount -t tmpfs -o mode=755 tmpfs "$1"
for name in full null random tty urandom zero; do cp -a "/dev/$name" "$1/"; done
mkdir "$1/dri" "$1/pts" "$1/shm"
mknod -m 666 "$1/dri/renderD128" c 1 5
mount --move "$1" /dev
shift
exec "$@"
"#;

#[test]
fn a_card_is_there_where_it_was_asked_for() {
    if !is_root() {
        return skip("a device node can be made by root alone");
    }
    let script = "head -c 2 /dev/dri/renderD128 | od -An -tx1; test -e /dev/dri/card0 || echo no more";
    for column in [Column::Process, Column::Crun] {
        let Some(flags) = column.flags() else { continue };
        let site = Site::new();
        let started = |gpu: &[&str], script: &str| {
            let level: Vec<&str> = flags.iter().map(String::as_str).collect();
            let arguments = [&["run", "-q"], level.as_slice(), gpu, &["-c", script]].concat();
            inside_of_such(&site, &arguments)
        };
        let output = started(&["--gpu", "all"], script);
        assert_eq!(
            stdout(&output).trim(),
            "00 00\nno more",
            "{column:?}: {}",
            stderr(&output)
        );
        let output = started(&[], "test -e /dev/dri || echo none");
        assert_eq!(stdout(&output), "none\n", "{column:?}: {}", stderr(&output));
        let output = started(&["--gpu", "1"], "true");
        assert!(!output.status.success());
        assert!(
            stderr(&output).contains("no graphics card 1: the machine has 1"),
            "{}",
            stderr(&output)
        );
    }
}

/// Runs `offleash` where there is a card.
fn inside_of_such(site: &Site, arguments: &[&str]) -> std::process::Output {
    let dev = tempfile::tempdir().unwrap();
    let command = site.offleash(arguments);
    let mut wrapped = std::process::Command::new("unshare");
    wrapped.args(["-m", "sh", "-c", WITH_A_CARD, "sh"]).arg(dev.path());
    wrapped.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => wrapped.env(name, value),
            None => wrapped.env_remove(name),
        };
    }
    if let Some(directory) = command.get_current_dir() {
        wrapped.current_dir(directory);
    }
    wrapped.output().unwrap()
}

#[test]
fn a_machine_without_a_card_and_a_level_without_cards_say_so() {
    let has_card = |name: &str| Path::new(name).exists();
    if has_card("/dev/nvidia0") || has_card("/dev/dri/renderD128") {
        return skip("the machine has a graphics card");
    }
    let site = Site::new();
    let said = site.refuse(["run", "--gpu", "all", "--", "true"]);
    assert!(said.contains("there is no graphics card: the machine has 0"), "{said}");
    let said = site.refuse(["run", "--gpu", "first", "--", "true"]);
    assert!(said.contains("neither `all` nor a list of numbers"), "{said}");
    let Some(flags) = Column::Microvm.flags() else { return };
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let said = site.refuse([&["run", "--gpu", "all"], flags.as_slice(), &["--", "true"]].concat());
    assert!(said.contains("cannot give a sandbox graphics cards"), "{said}");
}
