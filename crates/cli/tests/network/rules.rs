//! Who may allow what, and what holds when nothing is allowed.

use std::io::Read as _;

use crate::support::processes::{eventually, finish, long_sleep, processes_with, start};
use crate::support::{Site, stderr};
use crate::world::world;

const ATTEMPTS: &str = r#"
attempt("name", get, "www.example.com")
attempt("address", get, "93.184.216.34")
attempt("datagram", datagram, "93.184.216.35")
"#;

#[test]
fn only_the_ports_of_the_web_are_meant_when_a_rule_names_none() {
    let Some(world) = world() else { return };
    let attempts = r#"
for port, action in [(80, get), (443, get_secure), (8080, get), (8443, get_secure), (7, echoed)]:
    attempt(str(port), action, "www.example.com", port)
"#;
    world.outside(attempts).all_done();
    let seen = world.inside(&["--allow", "www.example.com"], attempts);
    for port in ["80", "443"] {
        seen.done(port);
    }
    for port in ["8080", "8443", "7"] {
        seen.refused(port);
    }
    let other = world.inside(&["--allow", "www.example.com:8000-9000"], attempts);
    for port in ["8080", "8443"] {
        other.done(port);
    }
    for port in ["80", "443", "7"] {
        other.refused(port);
    }
}

#[test]
fn pitfall_no_rule_means_no_network() {
    let Some(world) = world() else { return };
    world.outside(ATTEMPTS).all_done();
    let none: [&[&str]; 4] = [
        &[],
        &["--network", "none"],
        &["--deny-host", "secret.example.com"],
        &["--deny-host", "*.example.com"],
    ];
    for flags in none {
        world.inside(flags, ATTEMPTS).all_refused();
    }
    let site = Site::new();
    for text in ["[network]\n", "[network]\nallow = []\n", "network = \"none\"\n"] {
        let policy = site.root().join("policy.toml");
        std::fs::write(&policy, text).unwrap();
        let flags = ["--policy", policy.to_str().unwrap()];
        world.inside(&flags, ATTEMPTS).all_refused();
    }
}

#[test]
fn a_policy_allows_and_flags_add_to_it_or_take_all_of_it_back() {
    let Some(world) = world() else { return };
    let site = Site::new();
    let policy = site.root().join("policy.toml");
    std::fs::write(
        &policy,
        "[network]\nallow = [\"*.example.com\"]\ndeny = [\"api.example.com\"]\n",
    )
    .unwrap();
    let policy = policy.to_str().unwrap();
    let attempts = r#"
attempt("policy", get, "www.example.com")
attempt("denied", get, "api.example.com")
attempt("flag", get, "x.wild.example.org")
"#;
    let seen = world.inside(&["--policy", policy, "--allow", "x.wild.example.org"], attempts);
    seen.done("policy");
    seen.done("flag");
    seen.refused("denied");
    world
        .inside(&["--policy", policy, "--network", "none"], attempts)
        .all_refused();
}

#[test]
fn a_policy_that_lies_in_the_workspace_does_not_open_the_network() {
    let Some(world) = world() else { return };
    let site = Site::new();
    site.write("offleash.toml", "[network]\nallow = [\"www.example.com\"]\n");
    let output = finish(start(&mut world.sandboxed(&site, &[], ATTEMPTS)));
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(said.contains("network.allow") && said.contains("\nhint: "), "{said}");
}

#[test]
fn the_level_without_a_network_of_its_own_refuses_to_allow_anything() {
    let Some(world) = world() else { return };
    let site = Site::new();
    let flags = [
        "run",
        "--level",
        "process-landlock",
        "--allow",
        "www.example.com",
        "--",
        "/bin/true",
    ];
    let output = world.offleash(&site, &flags).output().unwrap();
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(said.contains("network") && said.contains("\nhint: "), "{said}");
    let degraded = [&flags[..1], &["--degrade", "allow"], &flags[1..]].concat();
    let output = world.offleash(&site, &degraded).output().unwrap();
    assert_eq!(output.status.code(), Some(125), "{}", stderr(&output));
}

#[test]
fn r8_nothing_stays_open_when_the_supervisor_is_killed() {
    let Some(world) = world() else { return };
    let site = Site::new();
    let (word, name) = (long_sleep(), "killed.wild.example.org");
    let attempts = format!(
        r#"
connection = dial("{name}", 7)
connection.sendall(b"hello")
connection.recv(5, socket.MSG_WAITALL)
sys.stderr.write("held")
sys.stderr.flush()
os.execv("/bin/sleep", ["sleep", "{word}"])
"#
    );
    let mut command = world.sandboxed(&site, &["--allow", "*.wild.example.org:7"], &attempts);
    // `--json` keeps what is written for the record; this is looked at while it runs.
    let mut child = start(&mut command);
    eventually("the connection", || (!processes_with(&word).is_empty()).then_some(()));
    let supervisor = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(supervisor, rustix::process::Signal::KILL).unwrap();
    child.wait().unwrap();
    eventually("the end of the sandbox", || {
        processes_with(&word).is_empty().then_some(())
    });
    let mut rest = String::new();
    // Whoever still held the pipe would keep this from ending.
    child.stdout.take().unwrap().read_to_string(&mut rest).unwrap();
    let closed = || {
        let mut sockets = world.command(site.root());
        sockets.args(["cat", "/proc/net/tcp"]).env("PATH", "/usr/bin:/bin");
        let text = String::from_utf8(sockets.output().unwrap().stdout).unwrap();
        // Established, from an address of ours, to port 7: only this test would still have one, in time.
        let open = text.lines().filter(|line| line.contains(":0007 01 ")).count();
        (open == 0).then_some(())
    };
    eventually("the end of its connections", closed);
}

#[test]
fn n14_two_sandboxes_have_nothing_of_each_other_s_network() {
    let Some(world) = world() else { return };
    let one = world.inside(
        &["--allow", "www.example.com:7"],
        r#"attempt("own", echoed, "www.example.com")"#,
    );
    one.all_done();
    let other = world.inside(
        &["--allow", "api.example.com:7"],
        r#"
attempt("address of the other's name", echoed, "198.18.1.1")
attempt("name", echoed, "www.example.com")
os.environ.clear()
attempt("own", echoed, "api.example.com")
"#,
    );
    other.refused("address of the other's name");
    other.refused("name");
    other.done("own");
}

#[test]
fn the_whole_internet_is_what_is_public_and_what_no_rule_denies() {
    let Some(world) = world() else { return };
    let attempts = r#"
attempt("name", get, "www.example.com")
attempt("any port", echoed, "www.example.com")
attempt("secure", get_secure, "api.example.com")
attempt("address", get, "93.184.216.34")
attempt("denied", get, "secret.example.com")
attempt("denied address", get, "93.184.216.35", 8080)
attempt("metadata", get, "169.254.169.254")
attempt("private", get, "10.0.0.5")
attempt("metadata by name", get, "metadata.example.com")
"#;
    let flags = [
        "--internet",
        "--deny-host",
        "secret.example.com",
        "--deny-host",
        "93.184.216.35",
    ];
    let seen = world.inside(&flags, attempts);
    for name in ["name", "any port", "secure", "address"] {
        seen.done(name);
    }
    for name in ["denied", "denied address", "metadata", "private", "metadata by name"] {
        seen.refused(name);
    }
}

#[test]
fn a_command_that_fails_for_want_of_a_network_is_told_how_to_have_one() {
    if world().is_none() {
        return;
    }
    let site = Site::new();
    let said = |flags: &[&str], program: &str| {
        let arguments = [&["run"], flags, &["--", "/usr/bin/python3", "-I", "-S", "-c", program]].concat();
        stderr(&site.offleash(&arguments).output().unwrap())
    };
    let hint = "`--allow HOST` lets a host be reached";
    let address = "import socket; socket.create_connection(('93.184.216.34', 80))";
    let version_6 = "import socket; socket.create_connection(('2606:2800:220:1::5', 80))";
    let name = "import socket; socket.getaddrinfo('www.example.com', 80)";
    for program in [address, version_6, name] {
        let told = said(&[], program);
        assert_eq!(told.matches(hint).count(), 1, "{program}: {told}");
        assert!(!said(&["-q"], program).contains(hint), "{program}");
    }
    let caught = format!("try:\n    {address}\nexcept OSError:\n    pass");
    let local = "import socket; socket.create_connection(('127.0.0.1', 9))";
    for program in [caught.as_str(), local, "raise SystemExit(3)"] {
        assert!(!said(&[], program).contains(hint), "{program}");
    }
}
