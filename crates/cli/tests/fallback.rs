//! The weaker level for machines where user namespaces are forbidden: it does the same work, and says what it lacks.

mod support;

use std::fs;

use support::processes::{feed, long_sleep, processes_with, through};
use support::workspace::{CHANGE_ALL, furnished};
use support::{Site, id_of, skip, stderr, stdout};

const WEAKER: &[&str] = &["--level", "process-landlock"];

#[test]
fn it_is_named_and_lists_what_it_does_not_enforce() {
    let site = Site::new();
    let record = site.record(WEAKER, "true");
    assert_eq!(record["level"], "process-landlock");
    assert_eq!(record["exit_code"], 0, "{record}");
    for lacking in ["namespaces", "root", "proc", "uid"] {
        assert!(record["not_enforced"][lacking].is_string(), "{lacking}: {record}");
    }
    for control in ["landlock", "seccomp", "capabilities", "network"] {
        assert!(record["enforced"][control].is_string(), "{control}: {record}");
    }
    let output = site
        .offleash(["run", "--level", "process-landlock", "--", "true"])
        .output()
        .unwrap();
    assert!(
        stderr(&output).contains("not enforced: namespaces: "),
        "{}",
        stderr(&output)
    );
}

#[test]
fn it_is_never_taken_below_a_floor() {
    let site = Site::new();
    for flags in [
        &["--min-level", "process", "--level", "process-landlock"],
        &["--level", "process-landlock", "--min-level", "container"],
    ] {
        let mut arguments = vec!["run"];
        arguments.extend_from_slice(flags);
        arguments.extend_from_slice(&["--", "touch", "ran"]);
        site.refuse(arguments);
    }
    assert_eq!(site.succeed(["runs"]), "");
    assert_eq!(site.record(&["--level", "auto"], "true")["level"], "process");
}

/// As `unshare -r` and rootless containers without subordinate ids are.
#[test]
fn root_of_a_namespace_that_has_no_other_id_is_treated_as_an_ordinary_user() {
    let site = Site::new();
    let offleash = site.offleash(["run", "-c", "id -u; echo x > new; touch /usr/x"]);
    let output = through(&["unshare", "-U", "-r"], &offleash).output().unwrap();
    if stderr(&output).starts_with("unshare") {
        return skip("no user namespace can be made");
    }
    assert_eq!(stdout(&output), "1000\n", "{}", stderr(&output));
    assert!(stderr(&output).contains("1 change kept"), "{}", stderr(&output));
}

#[test]
fn changes_are_kept_aside_and_applied_as_at_the_stronger_level() {
    let site = furnished();
    let before = support::listing::listing(&site.workspace());
    let record = site.record(WEAKER, CHANGE_ALL);
    assert_eq!(record["exit_code"], 0, "{record}");
    assert_eq!(support::listing::listing(&site.workspace()), before);
    site.succeed(["apply", &id_of(&record)]);
    assert_eq!(
        fs::read_to_string(site.workspace().join("full")).unwrap(),
        "now a file\n"
    );
    assert!(!site.workspace().join("deleted").exists());
    let after = support::listing::listing(&site.workspace());
    let stronger = furnished();
    let run = support::workspace::run(&stronger, CHANGE_ALL);
    stronger.succeed(["apply", &run]);
    assert_eq!(after, support::listing::listing(&stronger.workspace()));
}

#[test]
fn what_is_not_granted_is_neither_read_nor_written() {
    let site = Site::new();
    let outside = site.root().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("secret"), "secret\n").unwrap();
    let outside_shown = outside.display();
    let script = format!(
        "cat {outside_shown}/secret; echo x > {outside_shown}/x; echo x > /tmp/offleash-test-x; ls /root /home; cat /etc/shadow; true"
    );
    let record = site.record(WEAKER, &script);
    assert_eq!(record["stdout"]["data"], "", "{record}");
    assert_eq!(support::listing::listing(&outside).len(), 1);
    assert!(!std::path::Path::new("/tmp/offleash-test-x").exists());
}

#[test]
fn streams_and_exit_codes_are_the_same() {
    let site = Site::new();
    let output = feed(
        &mut site.offleash([
            "run",
            "-q",
            "--level",
            "process-landlock",
            "-c",
            "cat; echo err >&2; exit 9",
        ]),
        vec![b'x'; 1_000_000],
    );
    assert_eq!(output.status.code(), Some(9), "{}", stderr(&output));
    assert_eq!(stdout(&output).len(), 1_000_000);
    assert_eq!(stderr(&output), "err\n");
    let output = site
        .offleash([
            "run",
            "-q",
            "--level",
            "process-landlock",
            "--",
            "offleash-test-no-such-command",
        ])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(127), "{}", stderr(&output));
}

#[test]
fn limits_end_it_and_nothing_stays() {
    let site = Site::new();
    let word = long_sleep();
    let mut flags = WEAKER.to_vec();
    flags.extend_from_slice(&["--wall-time", "500ms"]);
    let record = site.record(
        &flags,
        &format!("trap '' TERM; (setsid sleep {word} &) ; setsid sleep {word} & sleep {word}"),
    );
    assert_eq!(record["exit_code"], 124, "{record}");
    assert_eq!(processes_with(&word), Vec::<u32>::new());
    let mut flags = WEAKER.to_vec();
    flags.extend_from_slice(&["--output", "100K", "--wall-time", "60s"]);
    assert_eq!(site.record(&flags, "yes")["outcome"]["limit"], "output");
}

#[test]
fn nothing_is_reached_over_the_network() {
    let site = Site::new();
    if support::processes::program("python3").is_none() {
        return support::skip("python3 is not installed");
    }
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let script = format!("import socket; print(socket.socket().connect_ex(('127.0.0.1', {port})))");
    let output = site
        .offleash([
            "run",
            "-q",
            "--level",
            "process-landlock",
            "--",
            "python3",
            "-c",
            &script,
        ])
        .output()
        .unwrap();
    assert_ne!(stdout(&output).trim(), "0", "{}", stderr(&output));
}

#[test]
fn a_read_only_workspace_is_read_where_it_is() {
    let site = Site::new();
    let kept = site.write("kept", "as it was\n");
    let workspace = format!("{}:ro", site.workspace().display());
    let flags = [
        "run",
        "-q",
        "--level",
        "process-landlock",
        "-w",
        &workspace,
        "--",
        "sh",
        "-c",
    ];
    let output = site
        .offleash(flags.iter().copied().chain(["pwd; cat kept; echo x > kept"]))
        .output()
        .unwrap();
    let expected = format!("{}\nas it was\n", site.workspace().canonicalize().unwrap().display());
    assert_eq!(stdout(&output), expected, "{}", stderr(&output));
    assert_eq!(fs::read_to_string(kept).unwrap(), "as it was\n");
}
