//! Volumes that have a bucket, on the command line and through a server, with a server of S3 that others have made (moto).

#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that cannot go on has failed, and starts programs itself"
)]

mod support;

#[path = "e2b/client.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod client;
#[path = "e2b/server.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod server;

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::server::{NO_POOL, Server};
use crate::support::processes::{eventually, signal, wait};
use crate::support::{Site, skip, stderr, stdout};

/// What the credentials are, which must be nowhere but with who synchronises.
const CREDENTIALS: &str = "AKIAREALREALREALREAL:real-secret/key+0123456789";
const PARTS: [&str; 2] = ["AKIAREALREALREAL", "real-secret/key"];

/// A server of S3 with one bucket, `shop`.
struct Moto {
    child: Child,
    endpoint: String,
}

const SERVE: &str = r#"
import logging, sys
logging.getLogger("werkzeug").disabled = True
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print("http://%s:%d" % server.get_host_and_port(), flush=True)
sys.stdin.read()
"#;

impl Moto {
    /// Starts one; a counted skip, where it is not installed.
    fn start() -> Option<Self> {
        let Some(packages) = installed() else {
            skip("`moto` is not installed, which `cargo xtask sdks` does");
            return None;
        };
        let mut child = Command::new("/usr/bin/python3")
            .args(["-s", "-c", SERVE])
            .env("PYTHONPATH", packages)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert!(line.starts_with("http://"), "moto did not start: {line}");
        let moto = Self {
            child,
            endpoint: line.trim().to_owned(),
        };
        moto.ask("PUT", "/shop", b"");
        Some(moto)
    }

    /// Asks as its owner, whose signature it does not look at.
    fn ask(&self, method: &str, path: &str, body: &[u8]) -> (u16, Vec<u8>) {
        let address = self.endpoint.strip_prefix("http://").unwrap().parse().unwrap();
        let owner = "Authorization: AWS4-HMAC-SHA256 Credential=owner/20260101/us-east-1/s3/aws4_request, \
                     SignedHeaders=host, Signature=0\r\n";
        client::ask(address, "", &format!("{method} {path}"), owner, body).unwrap()
    }

    fn put(&self, key: &str, body: &str) {
        assert_eq!(self.ask("PUT", &format!("/shop/{key}"), body.as_bytes()).0, 200);
    }

    fn get(&self, key: &str) -> Option<String> {
        let (status, body) = self.ask("GET", &format!("/shop/{key}"), b"");
        (status == 200).then(|| String::from_utf8_lossy(&body).into_owned())
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        signal(&self.child, Signal::KILL);
        wait(&mut self.child);
    }
}

fn installed() -> Option<PathBuf> {
    let built = Path::new(env!("CARGO_TARGET_TMPDIR")).ancestors();
    let named = std::env::var_os("OFFLEASH_SDKS").map(PathBuf::from);
    let places = named.into_iter().chain(built.map(|directory| directory.join("sdks")));
    places
        .map(|place| place.join("moto"))
        .find(|place| place.join("moto").is_dir())
}

/// A volume `data` with the bucket, its credentials in a file of the owner's.
fn site(moto: &Moto, flags: &[&str]) -> Site {
    let site = Site::new();
    let secret = site.root().join("credentials");
    std::fs::write(&secret, CREDENTIALS).unwrap();
    let secret = format!("file:{}", secret.display());
    let mut arguments = vec![
        "volume",
        "create",
        "data",
        "--endpoint",
        &moto.endpoint,
        "--secret",
        &secret,
    ];
    arguments.extend_from_slice(flags);
    site.succeed(arguments);
    site
}

#[track_caller]
fn run(site: &Site, flags: &[&str], script: &str) -> String {
    let output = site.run_shell(flags, script);
    assert!(output.status.success(), "{script}: {}", stderr(&output));
    stdout(&output)
}

#[test]
fn a_sandbox_reads_objects_and_what_it_writes_becomes_some() {
    let Some(moto) = Moto::start() else { return };
    moto.put("models/a", "one");
    moto.put("models/deep/b", "two");
    moto.put("others/c", "three");
    let site = site(&moto, &["--bucket", "s3://shop/models"]);
    let said = run(
        &site,
        &["-v", "data:/data"],
        "cd /data; cat a deep/b; ls | tr '\\n' ' '; echo four >deep/d; echo changed >a; env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null; true",
    );
    assert!(said.starts_with("onetwo") && said.contains("a deep "), "{said}");
    for part in PARTS {
        assert!(!said.contains(part), "{said}");
    }
    assert_eq!(moto.get("models/deep/d").as_deref(), Some("four\n"));
    assert_eq!(moto.get("models/a").as_deref(), Some("changed\n"));
    assert_eq!(moto.get("others/c").as_deref(), Some("three"));

    // What others write is there the next time; a sandbox that only reads sends nothing.
    moto.put("models/a", "by others");
    assert_eq!(run(&site, &["-v", "data:/data:ro"], "cat /data/a"), "by others");
    let shown: Value = serde_json::from_str(&site.succeed(["volume", "inspect", "data"])).unwrap();
    assert_eq!(shown["bucket"]["location"], "s3://shop/models", "{shown}");
    // Nothing that is kept has the credentials.
    let kept = Command::new("grep")
        .args(["-rlaF", "-e", PARTS[0], "-e", PARTS[1]])
        .arg(site.state())
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&kept.stdout), "");
}

#[test]
fn tools_for_an_agent_host_have_what_is_in_the_bucket_and_send_what_they_wrote() {
    let Some(moto) = Moto::start() else { return };
    moto.put("models/a", "one");
    let site = site(&moto, &["--bucket", "s3://shop/models"]);
    let call = |command: &str| json!({ "name": "run_command", "arguments": { "command": command } });
    let told = support::tools::told(
        &site,
        &["-v", "data:/data"],
        &[call("cat /data/a; echo two >/data/b; env"), call("ls /data")],
    );
    assert!(told[0].starts_with("one") && told[1].contains('b'), "{told:?}");
    for part in PARTS {
        assert!(!told[0].contains(part), "{told:?}");
    }
    assert_eq!(moto.get("models/b").as_deref(), Some("two\n"));
}

#[test]
fn sync_goes_both_ways_and_says_what_it_left() {
    let Some(moto) = Moto::start() else { return };
    let site = site(&moto, &["--bucket", "s3://shop"]);
    moto.put("a", "one");
    let said = site.succeed(["volume", "sync", "data"]);
    assert!(said.starts_with("fetched 1 (3 bytes), sent 0 (0 bytes)"), "{said}");
    let large = site.write("large", vec![b'x'; 9 << 20]);
    site.succeed(["volume", "cp", large.to_str().unwrap(), "data:/"]);
    let report: Value = serde_json::from_str(&site.succeed(["volume", "sync", "--push", "--json", "data"])).unwrap();
    assert_eq!(
        (&report["sent"], &report["sent_bytes"]),
        (&json!(1), &json!(9 << 20)),
        "{report}"
    );
    assert_eq!(moto.get("large").unwrap().len(), 9 << 20);

    let ours = site.write("a", "ours");
    moto.put("a", "theirs");
    site.succeed(["volume", "cp", ours.to_str().unwrap(), "data:/a"]);
    let output = site.offleash(["volume", "sync", "data"]).output().unwrap();
    let (said, told) = (stdout(&output), stderr(&output));
    assert_eq!(output.status.code(), Some(125), "{said}{told}");
    assert!(
        told.contains("conflict: a (it was changed in the volume and in the bucket)"),
        "{told}"
    );
    assert_eq!(moto.get("a").as_deref(), Some("theirs"));
    site.succeed(["volume", "sync", "--push", "--overwrite", "data"]);
    assert_eq!(moto.get("a").as_deref(), Some("ours"));

    site.succeed(["volume", "rm", "data:/large"]);
    let said = site.succeed(["volume", "sync", "data"]);
    assert!(said.contains("1 gone on one side and kept on the other"), "{said}");
    let said = site.succeed(["volume", "sync", "--delete", "data"]);
    assert!(
        said.contains("1 removed in the bucket") && moto.get("large").is_none(),
        "{said}"
    );
}

#[test]
fn what_cannot_be_fetched_or_sent_is_said_and_nothing_is_lost() {
    let Some(moto) = Moto::start() else { return };
    let site = site(&moto, &["--bucket", "s3://shop"]);
    run(&site, &["-v", "data:/data"], "echo one >/data/a");
    assert_eq!(moto.get("a").as_deref(), Some("one\n"));
    let gone = moto.endpoint.clone();
    drop(moto);
    // A sandbox is not made of half of it.
    let output = site.run_shell(&["-v", "data:/data"], "true");
    assert_eq!(output.status.code(), Some(125));
    assert!(
        stderr(&output).contains(&format!("cannot reach `{gone}`")),
        "{}",
        stderr(&output)
    );
    let said = site.refuse(["volume", "sync", "data"]);
    assert!(said.contains("hint: "), "{said}");
    assert_eq!(site.succeed(["volume", "cp", "data:/a", "copy"]), "");
    for (flags, expected) in [
        (&["--bucket", "shop"][..], "s3://BUCKET"),
        (&["--bucket", "s3://Shop"], "no name of a bucket"),
        (
            &["--bucket", "s3://shop", "--endpoint", "http://s3.example.com"],
            "not encrypted",
        ),
        (&["--bucket", "s3://shop", "--secret", "the-secret-itself"], "no source"),
        (&["--bucket", "s3://shop", "--region", "a b"], "no region"),
        (&["--region", "eu-west-1"], "--bucket"),
    ] {
        let said = stderr(
            &site
                .offleash([&["volume", "create", "other"], flags].concat())
                .output()
                .unwrap(),
        );
        assert!(
            said.contains(expected) && !said.contains("secret-itself"),
            "{flags:?}: {said}"
        );
    }
    site.succeed(["volume", "create", "plain"]);
    assert!(site.refuse(["volume", "sync", "plain"]).contains("has no bucket"));
    site.succeed([
        "volume",
        "create",
        "none",
        "--bucket",
        "s3://shop",
        "--secret",
        "env:NOT_SET_ANYWHERE",
    ]);
    assert!(site.refuse(["volume", "sync", "none"]).contains("env:NOT_SET_ANYWHERE"));
}

#[test]
fn who_is_killed_while_it_synchronises_leaves_whole_files_and_objects() {
    let Some(moto) = Moto::start() else { return };
    let site = site(&moto, &["--bucket", "s3://shop", "--size", "256M"]);
    let (count, size) = (12, 3 << 20);
    for number in 0..count {
        moto.put(&format!("there/{number}"), &"t".repeat(size));
        let file = site.write(format!("here-{number}"), "h".repeat(size));
        site.succeed(["volume", "cp", file.to_str().unwrap(), "data:/"]);
    }
    for wait_ms in [30, 90, 180, 300] {
        let mut child = site
            .offleash(["volume", "sync", "data"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(wait_ms));
        signal(&child, Signal::KILL);
        wait(&mut child);
        let inspected: Value = serde_json::from_str(&site.succeed(["volume", "inspect", "data"])).unwrap();
        let data = PathBuf::from(inspected["data"].as_str().unwrap());
        let there = std::fs::read_dir(data.join("there")).into_iter().flatten().flatten();
        for file in there {
            assert_eq!(file.metadata().unwrap().len(), size as u64, "{file:?}");
        }
        for number in 0..count {
            if let Some(object) = moto.get(&format!("here-{number}")) {
                assert_eq!(object.len(), size);
            }
        }
    }
    site.succeed(["volume", "sync", "data"]);
    let report: Value = serde_json::from_str(&site.succeed(["volume", "sync", "--json", "data"])).unwrap();
    assert_eq!(report["same"], json!(2 * count), "{report}");
}

fn sandbox(server: &Server, volume: &str, read_only: bool) -> (u16, Value) {
    let volumes = json!([{ "volume": volume, "path": "/data", "read_only": read_only }]);
    server.ask("POST /v1/sandboxes", &json!({ "volumes": volumes }).to_string())
}

#[test]
fn a_server_synchronises_with_secrets_of_a_key_at_endpoints_that_its_owner_lists() {
    let Some(moto) = Moto::start() else { return };
    moto.put("a", "one");
    let config = format!("{NO_POOL}[volumes]\nbucket_endpoints = [{:?}]\n", moto.endpoint);
    let mut server = Server::start(&config);
    let create = |server: &Server, endpoint: &str| {
        let bucket = json!({ "url": "s3://shop", "endpoint": endpoint, "secret": "bucket" });
        server.ask(
            "POST /v1/volumes",
            &json!({ "name": "data", "bucket": bucket }).to_string(),
        )
    };
    assert_eq!(create(&server, &moto.endpoint).0, 404);
    let secret = json!({ "name": "bucket", "value": CREDENTIALS });
    assert_eq!(server.ask("POST /secrets", &secret.to_string()).0, 201);
    for endpoint in [
        "https://169.254.169.254",
        "https://s3.example.com",
        "http://127.0.0.1:1",
    ] {
        let (status, answer) = create(&server, endpoint);
        assert_eq!(status, 403, "{answer}");
        assert!(answer.to_string().contains("bucket"), "{answer}");
    }
    assert_eq!(create(&server, "http://s3.example.com").0, 400);
    let (status, made) = create(&server, &moto.endpoint);
    assert_eq!((status, &made["bucket"]["url"]), (201, &json!("s3://shop")), "{made}");

    let (status, made) = sandbox(&server, "data", false);
    assert_eq!(status, 201, "{made}");
    let id = made["id"].as_str().unwrap().to_owned();
    assert_eq!(server.shell(&id, "cat /data/a"), "one");
    server.shell(&id, "echo two >/data/b; echo changed >/data/a");
    let seen = server.shell(&id, "env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null; true");
    for part in PARTS {
        assert!(!seen.contains(part), "{seen}");
    }
    // On demand while it runs, and by itself when it ends.
    let (status, report) = server.ask("POST /v1/volumes/data/sync", r#"{"direction":"push"}"#);
    assert_eq!((status, &report["sent"]), (200, &json!(2)), "{report}");
    assert_eq!(moto.get("b").as_deref(), Some("two\n"));
    server.shell(&id, "echo three >/data/c");
    assert_eq!(server.ask(&format!("DELETE /sandboxes/{id}"), "").0, 204);
    eventually("what it wrote last", || {
        (moto.get("c").as_deref() == Some("three\n")).then_some(())
    });
    assert_eq!(moto.get("a").as_deref(), Some("changed\n"));

    // Also when it ends while no server is there.
    let (_, made) = sandbox(&server, "data", false);
    let id = made["id"].as_str().unwrap().to_owned();
    server.shell(&id, "echo four >/data/d");
    server.kill_now();
    server::send_kill(server::supervisor_of(&server, &id));
    server.wait_and_start_again();
    eventually("what was written before both were killed", || {
        (moto.get("d").as_deref() == Some("four\n")).then_some(())
    });

    // Who only reads sends nothing, and sees what is new.
    moto.put("a", "by others");
    let (_, made) = sandbox(&server, "data", true);
    let id = made["id"].as_str().unwrap().to_owned();
    assert_eq!(server.shell(&id, "cat /data/a"), "by others");
    assert_eq!(server.ask(&format!("DELETE /sandboxes/{id}"), "").0, 204);

    // What a server does not know it says.
    assert_eq!(server.ask("POST /v1/volumes/nothing/sync", "{}").0, 404);
    let (status, answer) = server.ask("POST /v1/volumes/data/sync", r#"{"overwrite":true}"#);
    assert_eq!(status, 400, "{answer}");
    assert_eq!(server.ask("POST /v1/volumes", r#"{"name":"plain"}"#).0, 201);
    assert_eq!(server.ask("POST /v1/volumes/plain/sync", "{}").0, 400);
    // Without its secret it is of no use.
    assert_eq!(server.ask("DELETE /secrets/bucket", "").0, 204);
    assert_eq!(server.ask("POST /v1/volumes/data/sync", "{}").0, 404);
    assert_eq!(sandbox(&server, "data", true).0, 404);
    server.end();
}
