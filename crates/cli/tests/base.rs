//! A root of the sandbox's own (`--root base`): what can be written and installed there, by whom, and what stays out of
//! reach.

#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that cannot go on has failed, and starts programs itself"
)]

mod support;

#[path = "base/packages.rs"]
mod packages;
#[path = "base/reach.rs"]
mod reach;
#[path = "base/subordinate.rs"]
mod subordinate;
#[path = "base/terminals.rs"]
mod terminals;

use std::path::Path;
use std::sync::{Arc, Mutex, Weak};

use support::processes::program;
use support::{Site, skip, stderr, stdout};

const BASE: [&str; 3] = ["--root", "base", "--no-workspace"];

/// A site for tests that run at the same time: for ordinary users making its template takes as long as a hundred runs.
fn shared() -> Arc<Site> {
    static SHARED: Mutex<Weak<Site>> = Mutex::new(Weak::new());
    let mut shared = SHARED.lock().unwrap();
    shared.upgrade().unwrap_or_else(|| {
        let site = Arc::new(Site::sharing_templates());
        *shared = Arc::downgrade(&site);
        site
    })
}

/// What a script of `user` printed; it must succeed.
#[track_caller]
fn printed(site: &Site, user: &str, script: &str) -> String {
    let flags = [&BASE[..], &["--user", user]].concat();
    let output = site.run_shell(&flags, script);
    assert!(output.status.success(), "{}{}", stdout(&output), stderr(&output));
    stdout(&output)
}

/// Whether the superuser of the sandbox is another user than the usual one: root, or who has subordinate ids.
fn has_superuser(site: &Site) -> bool {
    printed(site, "root", "id -u") == "0\n"
}

#[test]
fn the_workspace_is_the_usual_users() {
    let site = Site::sharing_templates();
    site.write("file", "x");
    let script = "stat -c %U . file; touch new && mkdir sub && touch sub/new && echo y >> file && echo written";
    let output = site.run_shell(&["--root", "base"], script);
    assert_eq!(stdout(&output), "user\nuser\nwritten\n", "{}", stderr(&output));
    let run = site.succeed(["runs"]);
    site.succeed(["apply", run.split_whitespace().next().unwrap()]);
    assert!(site.workspace().join("sub/new").exists());
}

#[test]
fn files_can_be_written_anywhere_and_nothing_reaches_the_host() {
    let site = shared();
    let mark = format!("offleash-test-{}", std::process::id());
    let places = [
        "",
        "/etc",
        "/opt",
        "/srv",
        "/var/lib",
        "/usr",
        "/usr/local/bin",
        "/usr/share",
        "/root",
        "/mnt",
    ];
    let script: String = places
        .iter()
        .map(|place| format!("echo x > {place}/{mark} && cat {place}/{mark} && "))
        .collect();
    let written = printed(&site, "root", &format!("set -e; {script} true"));
    assert_eq!(written, "x\n".repeat(places.len()));
    for place in places {
        assert!(!Path::new(&format!("{place}/{mark}")).exists(), "{place}");
    }
}

#[test]
fn what_the_host_has_can_be_replaced_and_removed() {
    let site = shared();
    let script = "set -e; rm /usr/bin/env; cp /bin/true /usr/bin/sort.new; mv /usr/bin/sort.new /usr/bin/sort; sort; \
                  sed -i s/^/#/ /etc/profile; rm -r /usr/share/doc; mkdir /usr/share/doc; ls /usr/share/doc; \
                  test ! -e /usr/bin/env";
    assert_eq!(printed(&site, "root", script), "");
    assert!(Path::new("/usr/bin/env").exists());
}

#[test]
fn the_usual_user_has_a_home_and_no_capability() {
    let site = shared();
    let script = "whoami; echo $HOME $USER $LOGNAME $SHELL; pwd; echo $PATH; id -u; id -g; touch ~/x; stat -c %U ~ ~/x; \
                  grep -E '^Cap(Inh|Prm|Eff|Amb|Bnd)' /proc/self/status | cut -f2 | sort -u; grep NoNewPrivs /proc/self/status";
    let expected = "user\n/home/user user user /bin/bash\n/home/user\n\
                    /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n1000\n1000\nuser\nuser\n\
                    0000000000000000\nNoNewPrivs:\t1\n";
    assert_eq!(printed(&site, "user", script), expected);
}

#[test]
fn root_is_a_user_of_its_own_where_ids_allow_it_and_the_same_one_elsewhere() {
    let site = shared();
    let script = "echo $HOME $USER; pwd; id -u; getent passwd root | cut -d: -f3; getent passwd user | cut -d: -f3; \
                  grep -E '^Cap(Prm|Eff|Bnd)' /proc/self/status | cut -f2 | sort -u; grep NoNewPrivs /proc/self/status";
    let (root, capabilities) = match has_superuser(&site) {
        // chown, dac_override, fowner, fsetid, kill, setgid, setuid, setpcap, net_bind_service, sys_chroot
        true => ("0", "00000000000405fb"),
        false => ("1000", "0000000000000000"),
    };
    let expected = format!("/root root\n/root\n{root}\n{root}\n1000\n{capabilities}\nNoNewPrivs:\t1\n");
    assert_eq!(printed(&site, "root", script), expected);
}

#[test]
fn sudo_makes_root_of_a_user_without_setuid() {
    let site = shared();
    let root = if has_superuser(&site) { "0" } else { "1000" };
    let script = "set -e; cd /usr; sudo id -u; sudo pwd; echo in | sudo cat; sudo -u user id -u; \
                  sudo sh -c 'echo $USER $HOME $SUDO_USER'; echo x | sudo tee /usr/local/bin/made; \
                  stat -c %u /usr/local/bin/made; sudo sh -c 'exit 7' || echo $?; sudo -u mallory true 2>&1 || echo $?; \
                  test ! -u $(command -v sudo) && sudo grep NoNewPrivs /proc/self/status";
    let expected = format!(
        "{root}\n/usr\nin\n1000\nroot /root user\nx\n{root}\n7\nsudo: unknown user mallory\n1\nNoNewPrivs:\t1\n"
    );
    assert_eq!(printed(&site, "user", script), expected);
}

#[test]
fn an_unknown_user_is_refused_by_name() {
    let site = shared();
    let said = site.refuse(["run", "--root", "base", "--user", "mallory", "--", "true"]);
    assert!(
        said.contains("no user `mallory`") && said.contains("user, root"),
        "{said}"
    );
}

#[test]
fn what_belongs_to_the_host_s_people_is_not_there() {
    let site = shared();
    let script = "ls -A /home /opt /srv /media /mnt; for f in /etc/ssh /etc/sudoers /etc/machine-id /etc/apt/auth.conf.d \
                  /etc/npmrc /etc/pip.conf /var/run/docker.sock /run/dbus; do test -e $f && echo $f; done; \
                  grep -cv ':[*]:' /etc/shadow; ls /.. | tr '\\n' ' '; ls / | tr '\\n' ' '";
    let shown = printed(&site, "root", script);
    let lines: Vec<_> = shown.lines().collect();
    assert_eq!(
        lines[..lines.len() - 1],
        [
            "/home:", "user", "", "/media:", "", "/mnt:", "", "/opt:", "", "/srv:", "0"
        ]
    );
    let (above, here) = lines[lines.len() - 1].split_at(lines[lines.len() - 1].len() / 2);
    assert_eq!(above, here, "nothing is above the root");
}

#[test]
fn git_s_system_configuration_is_the_sandbox_s_and_can_be_written_to() {
    let site = shared();
    if program("git").is_none() {
        return skip("git is not installed");
    }
    let script = "set -e; git config --system core.checkStat; git config --system user.name Inside; \
                  git config --global core.checkStat default; git config core.checkStat; git config user.name";
    assert_eq!(printed(&site, "root", script), "minimal\ndefault\nInside\n");
    let script = "git config --system core.checkStat; grep -c . /etc/gitconfig";
    assert_eq!(printed(&site, "user", script), "minimal\n4\n");
}

#[test]
fn p4_mounts_name_no_path_of_the_host() {
    let site = shared();
    let shown = printed(&site, "root", "cat /proc/self/mountinfo");
    let state = site.root().to_str().unwrap();
    assert!(!shown.contains(state) && !shown.contains("scratch"), "{shown}");
    let devices = ["full", "null", "random", "tty", "urandom", "zero"].map(|name| format!("/dev/{name}"));
    for line in shown.lines() {
        let fields: Vec<_> = line.split(' ').collect();
        let (root, target) = (fields[3], fields[4]);
        let is_own =
            root == "/" && line.contains(" - overlay ") || line.contains(" - tmpfs ") || line.contains(" - proc ");
        let is_device = devices.iter().any(|device| device == target);
        let is_programs = target == "/nix/store";
        assert!(is_own || is_device || target == "/dev/pts" || is_programs, "{line}");
    }
    assert_eq!(
        shown.lines().filter(|line| line.split(' ').nth(4) == Some("/")).count(),
        1,
        "{shown}"
    );
}

#[test]
fn a_plain_run_has_no_other_user() {
    let plain = Site::new();
    let said = plain.refuse(["run", "--user", "root", "--", "true"]);
    assert!(said.contains("no user `root`"), "{said}");
}
