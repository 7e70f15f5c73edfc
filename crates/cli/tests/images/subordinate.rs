//! An ordinary user with subordinate ids: files of an image belong to whom it says.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::Path;
use std::process::{Command, Output};

use super::layout::Busybox;
use super::support::{Site, binary, is_root, skip, stderr, stdout};

/// A user that no machine has.
const UID: u32 = 54_243;
const FIRST: u32 = 0x6100_0000;

/// What `UID` runs, in a mount namespace where these files lie over those of `/etc`.
const IN_NAMESPACE: &str = r#"set -e
for name in passwd group subuid subgid; do mount --bind "$1/$name" "/etc/$name"; done
home=$1/home; uid=$2; shift 2
exec setpriv --reuid="$uid" --regid="$uid" --clear-groups env -i PATH=/usr/sbin:/usr/bin:/bin HOME="$home" "$@"
"#;

fn offleash(site: &Site, arguments: &[&str]) -> Output {
    let mut command = Command::new("unshare");
    command
        .args(["-m", "--propagation", "private", "sh", "-c", IN_NAMESPACE, "sh"])
        .arg(site.root())
        .arg(UID.to_string())
        .arg(binary())
        .arg("--state")
        .arg(site.root().join("home/state"))
        .args(arguments)
        .current_dir("/");
    command.output().unwrap()
}

#[test]
fn a_user_with_subordinate_ids_has_the_owners_of_the_image_and_removes_them() {
    let programs = ["/usr/bin/newuidmap", "/usr/bin/unshare", "/usr/bin/setpriv"];
    if !is_root() || !programs.iter().all(|program| Path::new(program).exists()) {
        return skip("only root, with newuidmap, can give subordinate ids to a user of its own");
    }
    let site = Site::new();
    let Some(layout) = Busybox::layout(site.root()) else {
        return;
    };
    fs::set_permissions(site.root(), fs::Permissions::from_mode(0o755)).unwrap();
    let read = |file| fs::read_to_string(file).unwrap_or_default();
    for (name, text) in [
        (
            "passwd",
            format!("{}images:x:{UID}:{UID}::/nonexistent:/bin/sh\n", read("/etc/passwd")),
        ),
        ("group", format!("{}images:x:{UID}:\n", read("/etc/group"))),
        ("subuid", format!("{UID}:{FIRST}:65536\n")),
        ("subgid", format!("{UID}:{FIRST}:65536\n")),
    ] {
        fs::write(site.root().join(name), text).unwrap();
        fs::set_permissions(site.root().join(name), fs::Permissions::from_mode(0o644)).unwrap();
    }
    let home = site.root().join("home");
    fs::create_dir(&home).unwrap();
    chown(&home, Some(UID), Some(UID)).unwrap();
    let loaded = offleash(&site, &["image", "load", "-q", layout.to_str().unwrap()]);
    assert!(loaded.status.success(), "{}", stderr(&loaded));
    let script = "id -u; stat -c %u:%g /work /bin; touch /root/new && stat -c %u /root/new";
    let run = [
        "run",
        "-q",
        "--no-workspace",
        "--image",
        "localhost/box:t",
        "--",
        "sh",
        "-c",
        script,
    ];
    let output = offleash(&site, &run);
    if stdout(&output).starts_with("1000\n") {
        return skip("newuidmap does not work here, not even for who has subordinate ids");
    }
    assert_eq!(stdout(&output), "0\n33:33\n0:0\n0\n", "{}", stderr(&output));
    let layers = home.join("state/images/layers/owned");
    let uppers = fs::read_dir(&layers)
        .unwrap()
        .map(|entry| entry.unwrap().path().join("upper/work"));
    let owners: Vec<u32> = uppers.filter_map(|work| Some(fs::metadata(work).ok()?.uid())).collect();
    assert_eq!(
        owners,
        [FIRST + 32],
        "the 33rd id of the range is the 32nd of the subordinate ones"
    );
    let context = site.root().join("context");
    fs::create_dir(&context).unwrap();
    let dockerfile = "FROM localhost/box:t\nRUN touch /opt/roots\nCOPY --chown=app Dockerfile /opt/copied\nUSER app\nRUN touch /work/x || touch /tmp/apps\n";
    fs::write(context.join("Dockerfile"), dockerfile).unwrap();
    let built = offleash(
        &site,
        &["template", "build", "-q", "--name", "made", context.to_str().unwrap()],
    );
    assert!(built.status.success(), "{}", stderr(&built));
    let script = "id -u; stat -c %u:%g /opt/roots /opt/copied /tmp/apps";
    let flags = [
        "run",
        "-q",
        "--no-workspace",
        "--template",
        "made",
        "--",
        "sh",
        "-c",
        script,
    ];
    let output = offleash(&site, &flags);
    assert_eq!(
        stdout(&output),
        "1234\n0:0\n1234:1234\n1234:1234\n",
        "{}",
        stderr(&output)
    );
    // With one id all belongs to that, and can be written.
    let flat = [
        "run",
        "-q",
        "--no-workspace",
        "--ids",
        "single",
        "--template",
        "made",
        "--",
        "sh",
        "-c",
        "echo x >> /opt/roots && whoami",
    ];
    assert_eq!(stdout(&offleash(&site, &flat)), "app\n");
    for arguments in [&["template", "rm", "made"][..], &["template", "prune", "--all"]] {
        let output = offleash(&site, arguments);
        assert!(output.status.success(), "{}", stderr(&output));
    }
    let pruned = offleash(&site, &["image", "prune", "--all"]);
    assert!(pruned.status.success(), "{}", stderr(&pruned));
    let left = fs::read_dir(&layers).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(left.collect::<Vec<_>>(), [".unpacking"]);
}
