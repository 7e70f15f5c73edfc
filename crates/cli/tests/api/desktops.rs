//! Desktops: who gets to a screen, what is kept of it, how it ends. The X server is a real one, of the machine's.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::client::{Answer, ask, connect, parse};
use crate::sandboxes::run;
use crate::server::{QUIET, Server};
use crate::support::processes::{eventually, program};
use crate::support::{sdks, skip, stderr};

/// What a desktop is made of, and what the tests look at it with.
const PROGRAMS: [&str; 8] = [
    "Xvfb",
    "xdpyinfo",
    "x11vnc",
    "websockify",
    "xsetroot",
    "xdotool",
    "xterm",
    "matchbox-window-manager",
];

fn has_programs() -> bool {
    let missing = PROGRAMS.iter().find(|name| program(name).is_none());
    if let Some(missing) = missing {
        skip(&format!("`{missing}` is missing"));
    }
    missing.is_none()
}

fn create(server: &Server, key: &str, body: &Value) -> Value {
    let answer = server.ask(key, "POST /v1/desktops", &body.to_string());
    assert_eq!(answer.status, 201, "{answer:?}");
    answer.json()
}

fn get(server: &Server, key: &str, path: &str) -> Value {
    let answer = server.ask(key, &format!("GET {path}"), "");
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

fn id_of(desktop: &Value) -> &str {
    desktop["id"].as_str().unwrap()
}

/// The path of the address at which a screen is looked at and driven.
fn path_of(desktop: &Value) -> String {
    path_in(&desktop["connect_url"])
}

fn path_in(url: &Value) -> String {
    let url = url.as_str().unwrap();
    let (_, rest) = url.split_once("://").unwrap();
    rest[rest.find('/').unwrap()..].to_owned()
}

/// Asks for a WebSocket; the answer, and the connection where that is one.
fn upgrade(server: &Server, path: &str, more: &str) -> (Answer, TcpStream) {
    let mut stream = connect(server.address);
    let head = format!(
        "GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{more}\r\n",
        server.address
    );
    stream.write_all(head.as_bytes()).unwrap();
    let (mut read, mut byte) = (Vec::new(), [0]);
    while !read.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        read.push(byte[0]);
    }
    (parse(&String::from_utf8(read).unwrap()), stream)
}

/// A viewer, who was told what the screen says first.
fn viewer(server: &Server, desktop: &Value) -> TcpStream {
    let (answer, mut stream) = upgrade(server, &path_of(desktop), "");
    assert_eq!(answer.status, 101, "{answer:?}");
    let mut said = [0; 14];
    stream.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"\x82\x0cRFB 003.008\n");
    stream
}

/// How a desktop ended, once it has.
fn ended(server: &Server, key: &str, id: &str) -> (String, String) {
    let desktop = eventually("the end of a desktop", || {
        Some(get(server, key, &format!("/v1/desktops/{id}"))).filter(|desktop| desktop["status"] != "RUNNING")
    });
    assert_eq!((desktop.get("stream_url"), desktop.get("connect_url")), (None, None));
    let field = |name: &str| desktop[name].as_str().unwrap().to_owned();
    (field("status"), field("reason"))
}

#[test]
fn a_desktop_is_seen_by_its_address_recorded_and_released() {
    if !has_programs() {
        return;
    }
    let mut server = Server::start_with(QUIET, &[]);
    let (key, other, reader) = (server.key(&[]), server.key(&[]), server.key(&["--scope", "read"]));
    let asked =
        json!({ "width": 320, "height": 200, "timeout_seconds": 600, "record": true, "metadata": { "team": "a" } });
    let desktop = create(&server, &key, &asked);
    let id = id_of(&desktop);
    assert_eq!(
        (&desktop["status"], &desktop["metadata"]),
        (&json!("RUNNING"), &json!({ "team": "a" }))
    );
    let url = desktop["stream_url"].as_str().unwrap();
    let (page, named) = url.split_once('#').unwrap();
    assert_eq!(page, format!("http://{}/ui/desktop.html", server.address));
    assert!(named.starts_with(&format!("{id}/")), "{named}");

    // Two look at it, one leaves, and neither that nor a viewer who says nonsense ends it for the other.
    let (first, mut second) = (viewer(&server, &desktop), viewer(&server, &desktop));
    drop(first);
    second.write_all(b"nonsense").unwrap();
    drop(second);
    let _third = viewer(&server, &desktop);

    // Who may look alone gets in, and is hung up on once it says what nobody understands.
    let looking = path_in(&desktop["view_only_connect_url"]);
    assert_ne!(looking, path_of(&desktop));
    let (answer, mut looks) = upgrade(&server, &looking, "");
    assert_eq!(answer.status, 101, "{answer:?}");
    let mut said = [0; 14];
    looks.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"\x82\x0cRFB 003.008\n");
    looks.write_all(b"\x82\x8c\0\0\0\0RFB 004.001\n").unwrap();
    let mut rest = Vec::new();
    let _until_it_ends = looks.read_to_end(&mut rest);
    // What is sent as a body is judged by nobody, and gets nowhere.
    for body in ["Content-Length: 1000000\r\n", "Transfer-Encoding: chunked\r\n"] {
        for path in [&looking, &path_of(&desktop)] {
            assert_eq!(upgrade(&server, path, body).0.status, 426, "{body}");
        }
    }

    // Nobody comes in without its token, and pages of others do not either.
    let theirs = create(&server, &other, &json!({ "width": 64, "height": 64 }));
    let token = |desktop: &Value| path_of(desktop).split_once("token=").unwrap().1.to_owned();
    let status = |path: &str, more: &str| upgrade(&server, path, more).0.status;
    for wrong in [
        String::new(),
        "?token=".to_owned(),
        format!("?token={}", token(&theirs)),
        format!("?token={key}"),
    ] {
        assert_eq!(status(&format!("/_desktop/{id}{wrong}"), ""), 403, "{wrong}");
    }
    assert_eq!(status(&path_of(&desktop), "Origin: https://evil.example\r\n"), 403);
    assert_eq!(
        ask(server.address, &format!("GET {}", path_of(&desktop)), &[], "").status,
        426
    );
    for port in [5900, 6080] {
        assert_eq!(
            ask(server.address, &format!("GET /_port/{id}/{port}/"), &[], "").status,
            403
        );
    }
    for request in [
        "GET /v1/desktops/ID",
        "GET /v1/desktops/ID/recording",
        "POST /v1/desktops/ID/release",
    ] {
        server.ask(&other, &request.replace("ID", id), "").assert_refused(404);
    }
    assert_eq!(get(&server, &reader, "/v1/desktops")["desktops"], json!([]));
    server
        .ask(&reader, &format!("POST /v1/desktops/{id}/release"), "")
        .assert_refused(403);
    let label = json!({ "metadata": { "offleash.desktop": "{}" } }).to_string();
    server.ask(&key, "POST /v1/sandboxes", &label).assert_refused(400);

    // What is shown is recorded.
    let pictures = |server: &Server| {
        get(server, &key, &format!("/v1/desktops/{id}/recording"))["frames"]
            .as_array()
            .unwrap()
            .clone()
    };
    eventually("a picture", || (!pictures(&server).is_empty()).then_some(()));
    let before = pictures(&server).len();
    run(&server, &key, id, "xsetroot -solid '#336699'");
    let frames = eventually("another picture", || {
        Some(pictures(&server)).filter(|frames| frames.len() > before)
    });
    let last = frames.last().unwrap()["data"].as_str().unwrap();
    assert!(last.starts_with("iVBORw0KGgo"), "{last}");

    // It outlives its server, and its X server does not outlive a signal.
    server.restart();
    let found = get(&server, &key, &format!("/v1/desktops/{id}"));
    assert_eq!(
        (&found["status"], path_of(&found)),
        (&json!("RUNNING"), path_of(&desktop))
    );
    viewer(&server, &found);
    // Who ends it may end with it, so its answer may be that it is gone.
    server.ask(
        &other,
        &format!("POST /v1/sandboxes/{}/run", id_of(&theirs)),
        &json!({ "shell": "pkill -9 Xvfb" }).to_string(),
    );
    let (status, reason) = ended(&server, &other, id_of(&theirs));
    assert_eq!((&*status, &*reason), ("ERROR", "its X server was ended by signal 9"));
    let released = server.ask(&key, &format!("POST /v1/desktops/{id}/release"), "").json();
    assert_eq!(released["status"], "COMPLETED", "{released}");
    server
        .ask(&key, &format!("GET /v1/sandboxes/{id}"), "")
        .assert_refused(404);
    assert!(pictures(&server).len() > before);
    assert_eq!(upgrade(&server, &path_of(&desktop), "").0.status, 502);
    server
        .ask(&key, &format!("POST /v1/desktops/{id}/release"), "")
        .assert_refused(404);
}

#[test]
fn what_cannot_be_a_desktop_is_refused_and_a_template_that_is_missing_is_named() {
    let server = Server::start_with(QUIET, &[]);
    let key = server.key(&[]);
    for (body, status) in [
        (r#"{"width": 1, "height": 1}"#, 400),
        (r#"{"width": 640}"#, 400),
        (r#"{"dpi": 0}"#, 400),
        (r#"{"timeout_seconds": 0}"#, 400),
        (r#"{"unknown": 1}"#, 400),
        (r#"{"template": "none"}"#, 404),
        (r#"{"template": "desktop"}"#, 501),
    ] {
        server.ask(&key, "POST /v1/desktops", body).assert_refused(status);
    }
    server.ask(&key, "GET /v1/desktops/..%2f..", "").assert_refused(404);
    let refused = server
        .site
        .offleash(["desktop", "create", "--template", "desktop"])
        .output()
        .unwrap();
    assert!(!refused.status.success());
    let said = stderr(&refused);
    assert!(
        said.contains("offleash template build --name desktop --recipe desktop"),
        "{said}"
    );
    let refused = server
        .site
        .offleash(["desktop", "create", "--resolution", "9x9"])
        .output()
        .unwrap();
    assert!(
        stderr(&refused).contains("--resolution: `9x9` is not a resolution"),
        "{}",
        stderr(&refused)
    );
}

/// The command line, and the page that shows a screen, in a browser.
#[test]
fn a_person_takes_a_desktop_over_in_a_browser() {
    if !has_programs() {
        return;
    }
    let chromium = Path::new("/usr/bin/chromium");
    if !chromium.exists() {
        return skip("chromium is not installed");
    }
    let Some(kit) = sdks::find("browser-1.65.1", "node_modules/playwright-core") else {
        return;
    };
    let server = Server::start_with(QUIET, &[]);
    let url = server
        .site
        .succeed(["desktop", "create", "--resolution", "400x300", "--timeout", "10m"]);
    let id = url.split(['#', '/']).rev().nth(1).unwrap();
    assert_eq!(server.site.succeed(["desktop", "url", id]), url);
    let looking = server.site.succeed(["desktop", "url", "--view-only", id]);
    assert!(
        looking.trim().ends_with("/view") && !looking.contains(url.trim().rsplit('/').next().unwrap()),
        "{looking}"
    );
    assert!(
        server
            .site
            .succeed(["desktop", "url", "--websocket", id])
            .starts_with("ws://")
    );
    assert!(server.site.succeed(["desktop", "ls"]).contains("400x300"));
    // Half of the screen blue, and a window over the rest that keeps what is typed.
    let line = "xsetroot -solid '#336699'; (xterm -T typing -e sh -c 'cat >/tmp/typed' >/dev/null 2>&1 &) ; \
                until xdotool search --onlyvisible --class XTerm; do sleep 0.05; done";
    server.site.succeed(["exec", id, "--", "sh", "-c", line]);
    let place = server.site.root().join("view");
    std::fs::create_dir(&place).unwrap();
    std::fs::write(place.join("view.mjs"), include_str!("desktop_viewer.mjs")).unwrap();
    std::os::unix::fs::symlink(kit.join("node_modules"), place.join("node_modules")).unwrap();
    let mut browser = Command::new("node");
    let socket = server
        .site
        .succeed(["desktop", "url", "--view-only", "--websocket", id]);
    browser
        .args(["view.mjs", url.trim(), looking.trim(), socket.trim()])
        .current_dir(&place);
    browser
        .env("CHROMIUM", chromium)
        .env("HOME", &place)
        .env("TMPDIR", &place);
    let output = browser.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    eventually("what was typed", || {
        let typed = server.site.succeed(["exec", id, "--", "cat", "/tmp/typed"]);
        (typed == "it's <b>\n").then_some(())
    });
    server.site.succeed(["desktop", "release", id]);
    assert!(server.site.succeed(["desktop", "ls"]).contains("COMPLETED"));
    assert!(
        !server
            .site
            .offleash(["desktop", "url", id])
            .output()
            .unwrap()
            .status
            .success()
    );
}
