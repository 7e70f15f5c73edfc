//! Files that a sandbox prepares for those who ask for them (A2, A3, A4), and requests that mean harm (A8).

use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;

use serde_json::json;

use crate::sandbox::{Answer, Sandbox};
use crate::support::processes::eventually;

const BYTES: (&str, &str) = ("Content-Type", "application/octet-stream");
/// Uploads and as many downloads through a directory that is being exchanged.
const EXCHANGES: usize = 300;

/// Exchanges `/home/user/d`, a directory, for a link to `TARGET`, and says when it has begun (renameat2(2)).
const FLIP: &str = "
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
os.makedirs('/home/user/d', exist_ok=True)
os.symlink('TARGET', '/home/user/l')
done = False
while True:
    if libc.syscall(316, -100, b'/home/user/d', -100, b'/home/user/l', 2) != 0:
        raise OSError(ctypes.get_errno(), 'renameat2')
    if not done:
        open('/home/user/begun', 'w').close()
        done = True
";

/// Starts a program that runs on.
fn start(sandbox: &Sandbox, arguments: &[&str]) {
    let message = json!({"process": {"cmd": arguments[0], "args": &arguments[1..]}, "stdin": false}).to_string();
    let content = [("Content-Type", "application/connect+json")];
    let body = crate::sandbox::frame(message.as_bytes());
    let mut stream = sandbox.send("POST /process.Process/Start", true, &content, &body);
    let mut seen = Vec::new();
    // It is told of once it runs, and goes on without whoever started it.
    while !seen.windows(5).any(|word| word == b"\"pid\"") {
        let mut piece = [0; 1024];
        let length = stream.read(&mut piece).unwrap();
        assert!(length > 0, "{}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&piece[..length]);
    }
}

fn run(sandbox: &Sandbox, script: &str) -> Vec<serde_json::Value> {
    let message = json!({"process": {"cmd": "/bin/sh", "args": ["-c", script]}, "stdin": false}).to_string();
    sandbox.stream("process.Process/Start", &[], &message).messages()
}

fn read(sandbox: &Sandbox, path: &str) -> Answer {
    sandbox.ask(&format!("GET /files?path={path}"), &[], b"")
}

#[test]
fn a2_a_directory_that_becomes_a_link_at_any_moment_leads_nowhere_else() {
    let outside = tempfile::Builder::new().prefix("offleash-outside-").tempdir().unwrap();
    let secret = outside.path().join("secret");
    std::fs::write(&secret, "of the host").unwrap();
    // What the link leads to would be there for whoever resolved it here.
    assert_eq!(std::fs::read_to_string(&secret).unwrap(), "of the host");
    let sandbox = Sandbox::new();
    let flip = FLIP.replace("TARGET", outside.path().to_str().unwrap());
    start(&sandbox, &["/usr/bin/python3", "-c", &flip]);
    eventually("the first exchange", || {
        (read(&sandbox, "/home/user/begun").status == 200).then_some(())
    });
    let mut seen = [0; 2];
    for number in 0..EXCHANGES {
        let path = format!("POST /files?path=/home/user/d/mark{number}");
        let written = sandbox.ask(&path, &[BYTES], b"theirs").status;
        assert!([200, 400, 403, 404, 409].contains(&written), "{written}");
        let found = read(&sandbox, "/home/user/d/secret");
        assert_eq!(found.status, 404, "{found:?}");
        seen[usize::from(written != 200)] += 1;
    }
    let names: Vec<_> = std::fs::read_dir(outside.path()).unwrap().collect();
    assert_eq!(names.len(), 1, "{names:?}");
    assert_eq!(std::fs::read_to_string(&secret).unwrap(), "of the host");
    assert!(seen[0] > 0, "{seen:?}");
}

#[test]
fn a3_what_is_no_plain_file_neither_hangs_nor_floods() {
    let sandbox = Sandbox::new();
    run(
        &sandbox,
        "cd /home/user; mkfifo fifo; mkdir directory; ln -s /dev/zero device; ln -s loop loop; \
         python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"socket\")'",
    );
    for path in [
        "fifo",
        "socket",
        "directory",
        "device",
        "/dev/zero",
        "/dev/tty",
        "loop",
        "/proc/kmsg",
    ] {
        let answer = read(&sandbox, path);
        let refused = [400, 403, 404].contains(&answer.status);
        assert!(refused && answer.json()["code"] == answer.status, "{path}: {answer:?}");
    }
    // Files of /proc announce no length.
    let answer = read(&sandbox, "/proc/self/status");
    assert!(
        answer.status == 200 && answer.is_whole && !answer.body.is_empty(),
        "{answer:?}"
    );

    // A terabyte of nothing is more than a file may have.
    let messages = run(
        &sandbox,
        "truncate -s 1T /home/user/sparse; stat -c %s /home/user/sparse",
    );
    assert!(!format!("{messages:?}").contains("MTA5OTUxMTYyNzc3Ng"), "{messages:?}");

    // A file that grows while it is read ends where it ended when the answer began.
    start(
        &sandbox,
        &["/bin/sh", "-c", "while :; do echo growing; done >/home/user/grows"],
    );
    eventually("something to read", || {
        let answer = sandbox.ask("HEAD /files?path=/home/user/grows", &[], b"");
        let length = answer.header("content-length").filter(|_| answer.status == 200);
        length.filter(|length| *length != "0").map(|_| ())
    });
    let answer = read(&sandbox, "/home/user/grows");
    let announced: usize = answer.header("content-length").unwrap().parse().unwrap();
    assert_eq!((answer.status, answer.body.len()), (200, announced));
}

#[test]
fn a4_links_to_programs_with_privileges_change_nothing_outside() {
    let programs = ["/usr/bin/su", "/usr/bin/passwd", "/usr/bin/mount"];
    let Some(program) = programs.into_iter().find(|path| {
        let metadata = std::fs::metadata(path);
        metadata.is_ok_and(|metadata| metadata.mode() & 0o4000 != 0)
    }) else {
        return crate::support::skip("no program here has the setuid bit");
    };
    let facts = || {
        let metadata = std::fs::metadata(program).unwrap();
        (metadata.mode(), metadata.len(), metadata.nlink(), metadata.mtime())
    };
    let (before, contents) = (facts(), std::fs::read(program).unwrap());
    let sandbox = Sandbox::new();
    run(
        &sandbox,
        &format!("ln {program} /home/user/hard; ln -s {program} /home/user/soft"),
    );
    for path in ["/home/user/hard", "/home/user/soft", program] {
        for user in ["user", "root"] {
            // Whatever becomes of it: it is inside.
            let request = format!("POST /files?path={path}&username={user}");
            let written = sandbox.ask(&request, &[BYTES], b"#!/bin/sh\necho mine\n");
            assert!(written.status < 500, "{written:?}");
        }
    }
    assert_eq!(facts(), before);
    assert_eq!(std::fs::read(program).unwrap(), contents);
    // What is given the bit inside runs as whoever started it.
    let messages = run(
        &sandbox,
        "cp /usr/bin/id mine && chmod 6755 mine && test \"$(./mine -u)\" = \"$(id -u)\" && exit 7",
    );
    assert_eq!(
        messages[messages.len() - 2]["event"]["end"]["exitCode"],
        7,
        "{messages:?}"
    );
}

#[test]
fn a8_what_no_program_can_be_given_is_refused() {
    let sandbox = Sandbox::new();
    let started = |process: serde_json::Value| {
        let message = json!({"process": process, "stdin": false}).to_string();
        let messages = sandbox.stream("process.Process/Start", &[], &message).messages();
        messages.last().unwrap()["error"]["code"].as_str().map(str::to_owned)
    };
    for process in [
        json!({"cmd": "/bin/true", "envs": {"A=B": "c"}}),
        json!({"cmd": "/bin/true", "envs": {"": "c"}}),
        json!({"cmd": "/bin/true", "envs": {"A\u{0}B": "c"}}),
        json!({"cmd": "/bin/true", "envs": {"A": "b\u{0}c"}}),
        json!({"cmd": "/bin/true", "args": ["a\u{0}b"]}),
        json!({"cmd": "/bin/tr\u{0}ue"}),
        json!({"cmd": "/bin/true", "cwd": "/tmp\u{0}/x"}),
        json!({"cmd": ""}),
    ] {
        assert_eq!(
            started(process.clone()).as_deref(),
            Some("invalid_argument"),
            "{process}"
        );
    }
    assert_eq!(started(json!({"cmd": "/bin/true", "envs": {"A\r\nB": "c\r\nd"}})), None);
}
