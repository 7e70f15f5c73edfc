//! Words of other tools in the commands that ask a daemon, and what is said of what is not there.

use crate::server::{QUIET, Server};
use crate::support::stderr;

#[test]
fn what_is_not_there_is_told_with_how_to_list_what_is() {
    let server = Server::start_with(QUIET, &[]);
    let file = server.site.write("file", "x").display().to_string();
    for arguments in [
        &["stop", "nobody"][..],
        &["rm", "nobody"],
        &["pause", "nobody"],
        &["resume", "nobody"],
        &["inspect", "nobody"],
        &["stats", "nobody"],
        &["logs", "nobody"],
        &["fork", "nobody"],
        &["exec", "nobody", "true"],
        &["port", "nobody", "80"],
        &["cp", &file, "nobody:/tmp/x"],
    ] {
        let said = server.site.refuse(arguments);
        assert!(
            said.contains("`nobody` not found") && said.contains("`offleash ls`"),
            "{arguments:?}: {said}"
        );
    }
    let said = server.site.refuse(["create", "--template", "nothing"]);
    assert!(said.contains("`offleash template ls`"), "{said}");
}

#[test]
fn create_takes_the_words_of_run_and_of_docker() {
    let server = Server::start_with(QUIET, &[]);
    let id = server.say(&[
        "create",
        "--rm",
        "--name",
        "box",
        "-m",
        "128M",
        "--cpus",
        "1",
        "--workspace-size",
        "128M",
        "--wall-time",
        "10m",
        "--pids-limit",
        "100",
        "--net",
        "none",
    ]);
    let listed = server.say(&["ps"]);
    assert!(listed.contains(id.trim()) && listed.contains("box"), "{listed}");
    assert_eq!(server.say(&["exec", "--cwd", "/tmp", "box", "pwd"]), "/tmp\n");
    let told: serde_json::Value = serde_json::from_str(&server.say(&["inspect", "box"])).unwrap();
    assert_eq!(
        (&told[0]["memoryMB"], &told[0]["diskSizeMB"]),
        (&128.into(), &128.into()),
        "{told}"
    );
    assert_eq!(told[0]["allowInternetAccess"], false, "{told}");
    // What the daemon has is in its own list, however it is called in that of runs.
    assert_eq!(server.say(&["runs"]), "");
    assert!(server.say(&["runs", "--all"]).contains("[sandbox of the daemon]"));
    server.say(&["kill", "box"]);
    let output = server.say_anyway(&["create", "--cpus", "0.5"]);
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).contains("whole CPUs"), "{}", stderr(&output));
}
