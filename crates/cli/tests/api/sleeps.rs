//! Pauses without memory, sleep and checkpoints that are made by themselves, by our own commands and over HTTP.

use std::fs;

use super::server::{QUIET, Server};
use super::support::processes::TIMEOUT;
use super::support::stderr;

#[test]
fn a_sandbox_is_paused_without_memory_and_sleeps_by_the_same_words() {
    let server = Server::start_with(QUIET, &[]);
    let policy = server.site.root().join("policy.toml");
    fs::write(
        &policy,
        "[lifecycle]\nidle = \"1h\"\ncheckpoint_before = [\"rm -rf\"]\n",
    )
    .unwrap();
    let policy = policy.to_str().unwrap();
    let id = server.say(&[
        "create",
        "--policy",
        policy,
        "--checkpoint-before",
        "git reset --hard",
        "--checkpoint-keep",
        "2",
    ]);
    let id = id.trim();
    let inspected = |id: &str| {
        let all: serde_json::Value = serde_json::from_str(&server.say(&["inspect", id])).unwrap();
        all[0].clone()
    };
    let lifecycle = inspected(id)["lifecycle"].clone();
    assert_eq!(lifecycle["idle_seconds"], 3600.0, "{lifecycle}");
    assert_eq!(
        lifecycle["checkpoint_before"],
        serde_json::json!(["rm -rf", "git reset --hard"])
    );
    assert_eq!(lifecycle["checkpoint_keep"], 2, "{lifecycle}");
    server.say(&[
        "exec",
        id,
        "sh",
        "-c",
        "mkdir work; echo kept >work/note; sleep 3600 >/dev/null 2>&1 &",
    ]);
    assert_eq!(server.say(&["pause", "--no-memory", id]).trim(), id);
    assert_eq!(
        (inspected(id)["state"].as_str(), inspected(id)["pauseMode"].as_str()),
        (Some("paused"), Some("filesystem"))
    );
    let refused = server.say_anyway(&["exec", id, "true"]);
    assert!(stderr(&refused).contains("is paused"), "{}", stderr(&refused));
    assert_eq!(server.say(&["resume", id]).trim(), id);
    assert_eq!(
        server.say(&["exec", id, "sh", "-c", "cat work/note; pgrep -c sleep || true"]),
        "kept\n0\n"
    );
    server.say(&["exec", id, "rm", "-r", "-f", "work"]);
    let checkpoints = server.say(&["checkpoints", "--json", id]);
    let checkpoints: serde_json::Value = serde_json::from_str(&checkpoints).unwrap();
    let made = checkpoints["checkpoints"]
        .as_array()
        .or_else(|| checkpoints.as_array())
        .unwrap();
    assert_eq!(
        (made.len(), made[0]["automatic"].as_str()),
        (1, Some("before `rm -rf`")),
        "{checkpoints}"
    );
    server.say(&["restore", id, "--checkpoint", made[0]["id"].as_str().unwrap()]);
    assert_eq!(server.say(&["exec", id, "cat", "work/note"]), "kept\n");
    // Frozen, and gone on with files alone.
    server.say(&["exec", id, "sh", "-c", "sleep 3600 >/dev/null 2>&1 &"]);
    server.say(&["pause", id]);
    server.say(&["resume", "--no-memory", id]);
    assert_eq!(server.say_anyway(&["exec", id, "pgrep", "-c", "sleep"]).stdout, b"0\n");

    let sleeper = server.say(&["create", "--idle", "1s", "--auto-pause", "--no-memory"]);
    let sleeper = sleeper.trim();
    let deadline = std::time::Instant::now() + TIMEOUT;
    while inspected(sleeper)["asleep"] != true {
        assert!(std::time::Instant::now() < deadline, "{}", inspected(sleeper));
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(server.say(&["exec", sleeper, "echo", "awake"]), "awake\n");
    for arguments in [
        &["create", "--idle", "soon"][..],
        &["create", "--checkpoint-before", "-rf"],
        &["create", "--checkpoint-keep", "0"],
        &["create", "--no-memory"],
        &["create", "--policy", "/nowhere"],
    ] {
        let refused = server.say_anyway(arguments);
        assert!(!refused.status.success(), "{arguments:?}");
        assert!(
            stderr(&refused).starts_with("error: "),
            "{arguments:?}: {}",
            stderr(&refused)
        );
    }
}
