//! An ordinary user with subordinate ids. The machine need not give any to anybody: root makes a mount namespace in which
//! one user has some, and `newuidmap` believes it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use super::packages::{INSTALL, INSTALLED, tiny_package};
use super::support::{Site, binary, is_root, skip, stderr, stdout};

/// A user that no machine has.
const UID: u32 = 54_242;
const FIRST: u32 = 0x6000_0000;

/// What `UID` runs, in a mount namespace where these files lie over those of `/etc`.
const IN_NAMESPACE: &str = r#"set -e
for name in passwd group subuid subgid; do mount --bind "$1/$name" "/etc/$name"; done
home=$1; uid=$2; shift 2
exec setpriv --reuid="$uid" --regid="$uid" --clear-groups env -i PATH=/usr/sbin:/usr/bin:/bin HOME="$home/home" "$@"
"#;

struct Subordinate {
    site: Site,
}

impl Subordinate {
    /// `None`, and said so, where it cannot be tried.
    fn new() -> Option<Self> {
        let programs = [
            "/usr/bin/newuidmap",
            "/usr/bin/newgidmap",
            "/usr/bin/unshare",
            "/usr/bin/setpriv",
        ];
        if !is_root() || !programs.iter().all(|program| Path::new(program).exists()) {
            skip("only root, with newuidmap, can give subordinate ids to a user of its own");
            return None;
        }
        let site = Site::new();
        let root = site.root();
        fs::set_permissions(root, fs::Permissions::from_mode(0o755)).unwrap();
        let with = |file: &str, line: String| format!("{}{line}\n", fs::read_to_string(file).unwrap_or_default());
        for (name, text) in [
            (
                "passwd",
                with(
                    "/etc/passwd",
                    format!("subordinate:x:{UID}:{UID}::/nonexistent:/bin/sh"),
                ),
            ),
            ("group", with("/etc/group", format!("subordinate:x:{UID}:"))),
            ("subuid", format!("{UID}:{FIRST}:65536\n")),
            ("subgid", format!("{UID}:{FIRST}:65536\n")),
        ] {
            fs::write(root.join(name), text).unwrap();
            fs::set_permissions(root.join(name), fs::Permissions::from_mode(0o644)).unwrap();
        }
        fs::create_dir(root.join("home")).unwrap();
        std::os::unix::fs::chown(root.join("home"), Some(UID), Some(UID)).unwrap();
        Some(Self { site })
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let root = self.site.root();
        let state = root.join("home/state");
        Command::new("unshare")
            .args(["-m", "--propagation", "private", "sh", "-c", IN_NAMESPACE, "sh"])
            .arg(root)
            .arg(UID.to_string())
            .arg(binary())
            .arg("--state")
            .arg(&state)
            .args(["run", "--quiet", "--root", "base", "--no-workspace"])
            .args(arguments)
            .current_dir("/")
            .output()
            .unwrap()
    }
}

#[test]
fn subordinate_ids_give_a_superuser_packages_and_nothing_that_cannot_be_removed() {
    let Some(subordinate) = Subordinate::new() else { return };
    let script = "id -u; cut -c-40 /proc/self/uid_map; mkdir -m 700 /opt/closed; touch /opt/closed/f /usr/share/x; \
                  chown -R www-data:www-data /opt/closed; su -s /bin/sh -c 'id -un' daemon";
    let output = subordinate.run(&["--user", "root", "--", "sh", "-c", script]);
    let shown: Vec<String> = stdout(&output)
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    if shown.first().map(String::as_str) == Some("1000") {
        return skip("newuidmap does not work here, not even for who has subordinate ids");
    }
    let maps = [format!("0 {UID} 1"), format!("1 {FIRST} 65535")];
    assert_eq!(shown, ["0", &maps[0], &maps[1], "daemon"], "{}", stderr(&output));
    let as_user = subordinate.run(&["--", "sh", "-c", "id -u; touch ~/x; stat -c %U ~/x; touch /opt/x 2>&1"]);
    let expected = "1000\nuser\ntouch: cannot touch '/opt/x': Permission denied\n";
    assert_eq!(stdout(&as_user), expected, "{}", stderr(&as_user));
    if let Some(package) = tiny_package(subordinate.site.root()) {
        let mount = format!("{}:/mnt/tiny.deb", package.display());
        let output = subordinate.run(&["--user", "root", "--mount", &mount, "--", "sh", "-c", INSTALL]);
        assert_eq!(stdout(&output), INSTALLED, "{}", stderr(&output));
    }
    let left = fs::read_dir(subordinate.site.root().join("home/state/scratch"))
        .unwrap()
        .count();
    assert_eq!(left, 0, "a layer with files of subordinate ids stayed");
}
