//! `/files` and the paths that it is given.

use serde_json::json;

use crate::sandbox::{Answer, Sandbox};
use crate::support::processes::program;
use crate::support::skip;

const BYTES: (&str, &str) = ("Content-Type", "application/octet-stream");

fn write(sandbox: &Sandbox, path: &str, contents: &[u8]) -> Answer {
    sandbox.ask(&format!("POST /files?path={path}"), &[BYTES], contents)
}

#[test]
fn parts_of_a_file_can_be_asked_for() {
    let sandbox = Sandbox::new();
    let written = write(&sandbox, "/tmp/a.txt", b"0123456789");
    assert_eq!(
        written.json(),
        json!([{"name": "a.txt", "type": "file", "path": "/tmp/a.txt"}]),
        "{written:?}"
    );
    let get = |fields: &[(&str, &str)]| sandbox.ask("GET /files?path=/tmp/a.txt", fields, b"");
    let whole = get(&[]);
    assert_eq!((whole.status, whole.body.as_slice()), (200, &b"0123456789"[..]));
    assert_eq!(whole.header("content-length"), Some("10"));
    let tag = whole.header("etag").unwrap().to_owned();
    for (range, status, body, content_range) in [
        ("bytes=2-4", 206, &b"234"[..], "bytes 2-4/10"),
        ("bytes=-3", 206, b"789", "bytes 7-9/10"),
        ("bytes=8-", 206, b"89", "bytes 8-9/10"),
        ("bytes=10-", 416, b"", "bytes */10"),
    ] {
        let part = get(&[("Range", range)]);
        assert_eq!((part.status, part.body.as_slice()), (status, body), "{range}: {part:?}");
        assert_eq!(part.header("content-range"), Some(content_range), "{range}");
    }
    assert_eq!(get(&[("If-None-Match", &tag)]).status, 304);
    assert_eq!(get(&[("Range", "bytes=0-1"), ("If-Range", &tag)]).status, 206);
    assert_eq!(get(&[("Range", "bytes=0-1"), ("If-Range", "\"other\"")]).status, 200);
    let head = sandbox.ask("HEAD /files?path=/tmp/a.txt", &[], b"");
    assert_eq!(
        (head.status, head.header("content-length"), head.body.len()),
        (200, Some("10"), 0)
    );
    let packed = get(&[("Accept-Encoding", "gzip")]);
    assert_eq!(
        (packed.header("content-encoding"), &packed.body[..2]),
        (Some("gzip"), &b"\x1f\x8b"[..])
    );
    assert_eq!(
        get(&[("Accept-Encoding", "gzip, deflate")]).header("content-encoding"),
        None
    );
    assert_eq!(get(&[("Accept-Encoding", "identity;q=0, br")]).status, 406);
}

#[test]
fn a1_paths_lead_nowhere_but_inside() {
    let sandbox = Sandbox::new();
    for (path, status) in [
        ("/tmp/a%00b", 400),
        (&"a".repeat(5000), 400),
        ("~root/x", 400),
        ("/gone", 404),
        ("../../../../gone", 404),
        ("..%5cgone", 404),
        ("%2e%2e/%2e%2e/gone", 404),
        ("", 400),
        (".", 400),
        ("/", 400),
        ("/dev/null", 400),
    ] {
        let answer = sandbox.ask(&format!("GET /files?path={path}"), &[], b"");
        assert_eq!(answer.status, status, "{}: {answer:?}", &path[..path.len().min(40)]);
        assert_eq!(answer.json()["code"], status);
    }
    // What is not text is a name like any other.
    assert_eq!(write(&sandbox, "/tmp/%ff", b"x").status, 200);
    assert_eq!(sandbox.ask("GET /files?path=/tmp/%ff", &[], b"").body, b"x");
}

#[test]
fn a8_no_header_is_made_of_a_name() {
    let sandbox = Sandbox::new();
    for name in [
        "a%0d%0aSet-Cookie:%20b",
        "a%0aSet-Cookie:%20b",
        "%22;%20x=%22",
        "%e2%80%ae",
        "%1b%5d0;x%07",
    ] {
        assert_eq!(write(&sandbox, &format!("/tmp/{name}"), b"x").status, 200, "{name}");
        let answer = sandbox.ask(&format!("GET /files?path=/tmp/{name}"), &[], b"");
        assert_eq!(
            (answer.status, answer.header("set-cookie")),
            (200, None),
            "{name}: {answer:?}"
        );
        assert_eq!(answer.body, b"x", "{name}");
        let plain = |character: char| character.is_ascii() && (!character.is_control() || "\r\n".contains(character));
        assert!(answer.head.chars().all(plain), "{name}: {:?}", answer.head);
    }
}

#[test]
fn forms_are_taken_as_they_are_sent() {
    let sandbox = Sandbox::new();
    let form = |files: &[(&str, &str)]| {
        let parts: String = files
            .iter()
            .map(|(name, contents)| {
                format!(
                    "--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\r\n{contents}\r\n"
                )
            })
            .collect();
        format!("{parts}--B--\r\n")
    };
    let send = |query: &str, body: &str| {
        let content = [("Content-Type", "multipart/form-data; boundary=B")];
        sandbox.ask(&format!("POST /files{query}"), &content, body.as_bytes())
    };
    let answer = send("", &form(&[("/tmp/new/a", "1"), ("/tmp/new/b", "\r\n--C")]));
    assert_eq!(answer.json().as_array().map(Vec::len), Some(2), "{answer:?}");
    assert_eq!(sandbox.ask("GET /files?path=/tmp/new/b", &[], b"").body, b"\r\n--C");
    for again in ["/tmp/c", "/tmp/./..//tmp/c", "/tmp/c/", "//tmp//c"] {
        assert_eq!(send("", &form(&[("/tmp/c", "1"), (again, "2")])).status, 400, "{again}");
    }
    assert_eq!(
        send(
            "?path=/tmp/c",
            "--B\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\nhalf"
        )
        .status,
        400
    );
    let wrong = sandbox.ask("POST /files?path=/tmp/c", &[("Content-Type", "text/plain")], b"x");
    assert_eq!(wrong.status, 400);
    assert_eq!(sandbox.ask("POST /files", &[BYTES], b"x").status, 400);
    let broken = sandbox.ask(
        "POST /files?path=/tmp/c",
        &[BYTES, ("Content-Encoding", "gzip")],
        b"not gzip",
    );
    assert_eq!(broken.status, 400, "{broken:?}");
}

#[test]
fn a9_forms_are_bounded_by_their_parts_and_by_what_is_told_of_them() {
    let sandbox = Sandbox::new();
    let form = |count: usize, field: &str, directory: &str| {
        let parts = (0..count).map(|number| {
            format!(
                "--B\r\nContent-Disposition: form-data; name=\"{field}\"; filename=\"{directory}/{number}\"\r\n\r\n\r\n"
            )
        });
        format!("{}--B--\r\n", parts.collect::<String>())
    };
    let send = |metadata: &str, body: &str| {
        let content = [
            ("Content-Type", "multipart/form-data; boundary=B"),
            ("X-Metadata-M", metadata),
        ];
        sandbox.ask("POST /files", &content, body.as_bytes())
    };
    let answer = send("", &form(1001, "other", "/tmp/many"));
    assert_eq!(answer.status, 413, "{}", answer.head);
    let told = |answer: &Answer| answer.json().as_array().map(Vec::len);
    assert_eq!(told(&send("m", &form(20, "file", "/tmp/few"))), Some(20));
    let deep = format!("/tmp/{}", vec!["\u{1}".repeat(200); 19].join("/"));
    let answer = send(&"m".repeat(4000), &form(200, "file", &deep));
    assert_eq!(answer.status, 413, "{}", answer.head);
}

/// Makes as many links as it is told, with a path and a target that are as long as they can be.
const LINKS: &str = r#"
import os, sys
os.chdir("/tmp"); os.mkdir("deep"); os.chdir("deep")
for _ in range(15): os.mkdir("d" * 250); os.chdir("d" * 250)
for number in range(int(sys.argv[1])): os.symlink("t" * 4000, str(number))
"#;

#[test]
fn a9_lists_are_bounded_by_their_bytes() {
    if program("python3").is_none() {
        return skip("no python3");
    }
    let sandbox = Sandbox::new();
    let path = format!("/tmp/deep/{}", vec!["d".repeat(250); 15].join("/"));
    let link = |count: u32| {
        let words = json!({"cmd": "/usr/bin/python3", "args": ["-c", LINKS, count.to_string()]});
        let started = sandbox.stream("process.Process/Start", &[], &json!({"process": words}).to_string());
        let ended = started.messages().pop().unwrap();
        assert_eq!(ended, json!({}), "{started:?}");
    };
    let list = |kind: &str| {
        let message = json!({"path": path}).to_string();
        let content = [("Content-Type", kind)];
        sandbox.ask("POST /filesystem.Filesystem/ListDir", &content, message.as_bytes())
    };
    // Large, and whole.
    link(1000);
    let whole = list("application/json");
    assert_eq!((whole.status, whole.is_whole), (200, true), "{}", whole.head);
    let entries = whole.json()["entries"].as_array().unwrap().len();
    assert_eq!(entries, 1000);
    sandbox.call(
        "filesystem.Filesystem/Remove",
        &json!({"path": "/tmp/deep"}).to_string(),
    );
    link(5000);
    let refused = list("application/json");
    assert_eq!(
        (refused.status, refused.json()["code"].as_str()),
        (429, Some("resource_exhausted")),
        "{}",
        refused.head
    );
    // And the next one is answered.
    assert_eq!(
        sandbox
            .call("filesystem.Filesystem/ListDir", r#"{"path":"/tmp"}"#)
            .status,
        200
    );
}

#[test]
fn a15_errors_name_what_was_asked_for_and_nothing_of_the_host() {
    let sandbox = Sandbox::new();
    let call = |method: &str, message: serde_json::Value| {
        let answer = sandbox.call(&format!("filesystem.Filesystem/{method}"), &message.to_string());
        let body = answer.json();
        (
            answer.status,
            body["code"].as_str().unwrap_or_default().to_owned(),
            body["message"].to_string(),
        )
    };
    let is = |found: (u16, String, String), status: u16, code: &str| {
        assert_eq!((found.0, found.1.as_str()), (status, code), "{found:?}");
        assert!(
            !found.2.contains("sandboxes/") && !found.2.contains("offleash-test"),
            "{found:?}"
        );
    };
    is(call("Stat", json!({"path": "/gone"})), 404, "not_found");
    is(call("ListDir", json!({"path": "/gone"})), 404, "not_found");
    is(call("ListDir", json!({"path": "/etc/passwd"})), 400, "invalid_argument");
    is(call("MakeDir", json!({"path": "/tmp"})), 409, "already_exists");
    is(call("MakeDir", json!({"path": "/etc/passwd"})), 400, "invalid_argument");
    is(
        call("Move", json!({"source": "/gone", "destination": "/tmp/x"})),
        404,
        "not_found",
    );
    is(call("Stat", json!({"path": "a\u{0}b"})), 400, "invalid_argument");
    assert_eq!(call("Remove", json!({"path": "/tmp/gone"})).0, 200);
}

#[test]
fn files_and_directories_are_moved_to_other_file_systems() {
    let sandbox = Sandbox::new();
    assert_eq!(write(&sandbox, "/tmp/from/a/b.txt", b"contents").status, 200);
    for (source, destination, found) in [
        ("/tmp/from/a", "/home/user/new/to", "/home/user/new/to/b.txt"),
        ("/home/user/new/to/b.txt", "/tmp/c.txt", "/tmp/c.txt"),
    ] {
        let message = json!({"source": source, "destination": destination}).to_string();
        let moved = sandbox.call("filesystem.Filesystem/Move", &message);
        assert_eq!(
            (moved.status, moved.json()["entry"]["path"].as_str()),
            (200, Some(destination)),
            "{moved:?}"
        );
        assert_eq!(
            sandbox.ask(&format!("GET /files?path={found}"), &[], b"").body,
            b"contents"
        );
        let left = sandbox.call("filesystem.Filesystem/Stat", &json!({"path": source}).to_string());
        assert_eq!(left.status, 404, "{left:?}");
    }
}

#[test]
fn a_directory_in_memory_that_is_full_refuses_the_file_and_ends_nothing() {
    // Less than the directories could hold by their own limit, all together and each.
    let sandbox = Sandbox::configured("[limits]\nmemory_mib = 64\n");
    let mebibyte = vec![1; 1 << 20];
    for (directory, user) in [("/dev/shm", "user"), ("/run", "root")] {
        let stored = |number: u32| {
            let path = format!("{directory}/{number}&username={user}");
            let answer = write(&sandbox, &path, &mebibyte);
            assert!([200, 507].contains(&answer.status), "{path}: {answer:?}");
            answer
        };
        let refused = (0..64).map(stored).find(|answer| answer.status != 200).unwrap();
        let said = refused.json();
        assert_eq!(said["code"], 507, "{said}");
        assert!(said["message"].as_str().unwrap().contains("disk space"), "{said}");
        // What came before it is whole, and the sandbox has memory left to work with.
        let first = sandbox.ask(&format!("GET /files?path={directory}/0&username={user}"), &[], b"");
        assert!((first.status, &first.body) == (200, &mebibyte), "{}", first.status);
    }
    let start = json!({"process": {"cmd": "/bin/sh", "args": ["-c", "rm /dev/shm/* && head -c 8000000 /dev/zero > /dev/shm/b && echo alive"]}});
    let messages = sandbox
        .stream("process.Process/Start", &[], &start.to_string())
        .messages();
    assert_eq!(messages[1]["event"]["data"]["stdout"], "YWxpdmUK", "{messages:?}");
    assert_eq!(write(&sandbox, "/dev/shm/again", &mebibyte).status, 200);
}
