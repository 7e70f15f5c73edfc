//! An ordinary user with subordinate ids. The machine need not give any to anybody: root makes a mount namespace in which
//! one user has some, and `newuidmap` believes it.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal};

use super::packages::{INSTALL, INSTALLED, tiny_package};
use super::support::processes::eventually;
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
        let mut command = self.offleash(&["run", "--quiet", "--root", "base", "--no-workspace"]);
        command.args(arguments).output().unwrap()
    }

    /// Our program, as that user.
    fn offleash(&self, arguments: &[&str]) -> Command {
        let root = self.site.root();
        let mut command = Command::new("unshare");
        command
            .args(["-m", "--propagation", "private", "sh", "-c", IN_NAMESPACE, "sh"])
            .arg(root)
            .arg(UID.to_string())
            .arg(binary())
            .arg("--state")
            .arg(root.join("home/state"))
            .args(arguments)
            .current_dir("/");
        command
    }

    fn scratch(&self) -> Vec<PathBuf> {
        let layers = fs::read_dir(self.site.root().join("home/state/scratch"));
        layers
            .into_iter()
            .flatten()
            .flatten()
            .map(|layer| layer.path())
            .collect()
    }
}

#[test]
fn a_disk_limit_holds_for_what_subordinate_ids_close() {
    let Some(subordinate) = Subordinate::new() else { return };
    let script = "cut -c-40 /proc/self/uid_map; mkdir -m 700 ~/closed; for i in 1 2 3 4 5 6 7 8; do \
                  head -c 8M </dev/zero >~/closed/$i; done; sleep 300";
    let report = subordinate.site.root().join("home/report.json");
    let report_flag = format!("--report={}", report.display());
    let limits = ["--workspace-size", "32M", "--wall-time", "200s", &report_flag];
    let output = subordinate.run(&[&limits[..], &["--", "sh", "-c", script]].concat());
    if stdout(&output).lines().count() < 2 {
        return skip("newuidmap does not work here, not even for who has subordinate ids");
    }
    let report: serde_json::Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
    assert_eq!(
        report["limits_hit"][0]["limit"], "workspace",
        "{}",
        report["limits_hit"]
    );
}

/// A server that is killed with all its sandboxes when this is dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // Its parent's process became it: `unshare`, `sh`, `setpriv` and `env` each executed the next.
        let _killed = self.0.kill();
        let _reaped = self.0.wait();
    }
}

#[test]
fn the_daemon_removes_what_a_dead_sandbox_left_of_subordinate_ids() {
    let Some(subordinate) = Subordinate::new() else { return };
    let config = subordinate.site.root().join("serve.toml");
    fs::write(
        &config,
        "[pool]\nmin = 0\nmax = 0\n[sandboxes]\ncreate_timeout_seconds = 600\n",
    )
    .unwrap();
    fs::set_permissions(&config, fs::Permissions::from_mode(0o644)).unwrap();
    let config = config.to_str().unwrap();
    let mut server = subordinate.offleash(&["serve", "--listen", "127.0.0.1:0", "--config", config]);
    let mut server = Server(server.stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(server.0.stdout.take().unwrap()).lines();
    lines.next().unwrap().unwrap();
    let say = |arguments: &[&str]| {
        let output = subordinate.offleash(arguments).output().unwrap();
        (stdout(&output), stderr(&output))
    };
    let (id, why) = say(&["create"]);
    let id = id.trim();
    assert!(!id.is_empty(), "{why}");
    let (shown, why) = say(&[
        "exec",
        id,
        "sh",
        "-c",
        "mkdir -m 700 ~/closed && touch ~/closed/f && id -u && cat /proc/self/uid_map",
    ]);
    if shown.lines().count() < 3 {
        say(&["rm", "-f", id]);
        return skip("newuidmap does not work here, not even for who has subordinate ids");
    }
    assert!(shown.starts_with("1000\n"), "{shown}{why}");
    let layer = subordinate
        .scratch()
        .into_iter()
        .find(|layer| layer.ends_with(id))
        .unwrap();
    for supervisor in supervisors_of(&subordinate.site.root().join("home/state/sandboxes").join(id)) {
        rustix::process::kill_process(Pid::from_raw(supervisor).unwrap(), Signal::KILL).unwrap();
    }
    eventually("the end of its layer", || (!layer.exists()).then_some(()));
}

/// The supervisor whose sandbox has this directory.
fn supervisors_of(directory: &Path) -> Vec<i32> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let processes = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let has_open = |pid: &i32| {
        let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let is_supervisor =
            fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.ends_with(b"\0supervise\0sandbox\0"));
        is_supervisor
            && open
                .filter_map(|entry| fs::read_link(entry.path()).ok())
                .any(|target| target == directory)
    };
    processes.filter(has_open).collect()
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
    let left = subordinate.scratch();
    assert!(left.is_empty(), "a layer with files of subordinate ids stayed");
}

#[test]
fn a_workspace_is_the_usual_users_and_so_is_the_home_of_a_template() {
    let Some(subordinate) = Subordinate::new() else { return };
    let home = subordinate.site.root().join("home");
    let workspace = home.join("work");
    for (name, path) in [("", workspace.clone()), ("sub", workspace.join("sub"))] {
        fs::create_dir(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        std::os::unix::fs::chown(&path, Some(UID), Some(UID)).unwrap();
    }
    let built = subordinate
        .offleash(&[
            "template",
            "build",
            "--name",
            "t",
            "--run",
            "touch /home/user/of-root; install -d -o user -g user /home/user",
        ])
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", stderr(&built));
    let workspace = workspace.to_str().unwrap();
    for root in [["--root", "base"], ["--template", "t"]] {
        let script = "id -un; touch new sub/new ~/new && test ! -e ~/of-root -o -r ~/of-root && echo written";
        let arguments = [&["run", "--quiet", "-w", workspace], &root[..], &["-c", script]].concat();
        let output = subordinate.offleash(&arguments).output().unwrap();
        assert_eq!(stdout(&output), "user\nwritten\n", "{root:?}: {}", stderr(&output));
    }
    // Without one there are two users as before.
    let output = subordinate.run(&["--template", "t", "--", "sh", "-c", "id -un; touch ~/new && sudo id -u"]);
    if stdout(&output) != "user\n0\n" {
        skip("newuidmap does not work here, not even for who has subordinate ids");
    }
}
