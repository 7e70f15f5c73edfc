//! Connections that the gateway opens: which requests pass, and that those that do are not changed on their way.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::Site;
use crate::support::processes::{finish, start};
use crate::world::{Seen, World, world};

const SERVERS: &str = include_str!("opened.py");
const API: &str = "api.opened.example.net";
const RULE: &str = "GET,HEAD,POST api.opened.example.net/v1/*";
const FLAGS: [&str; 2] = ["--allow-method", RULE];

/// What attempts use.
const HELPERS: &str = r#"
import http.client, subprocess, hashlib, base64

API = "api.opened.example.net"

def fetch(path, method="GET", host=API, body=None, headers={}, answered=200):
    """One request; its answer as the server saw it, or the text of a refusal."""
    connection = http.client.HTTPSConnection(host, timeout=PATIENCE, context=ssl.create_default_context())
    connection.putrequest(method, path, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name, value)
    if body is not None and "Content-Length" not in headers:
        connection.putheader("Content-Length", str(len(body)))
    connection.endheaders(body)
    return told(connection.getresponse(), answered)

def told(answer, answered=200):
    text = answer.read().decode()
    if answer.status != answered:
        raise AssertionError("%d: %s" % (answer.status, text))
    return text

def refused(*values, **more):
    return fetch(*values, answered=403, **more)

def curl(*arguments):
    done = subprocess.run(["curl", "-sS", "--max-time", "60", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise OSError("curl: %d: %s" % (done.returncode, done.stderr))
    return done.stdout

def tunnel():
    """TLS, without a library of HTTP."""
    return ssl.create_default_context().wrap_socket(dial(API, 443), server_hostname=API)
"#;

/// Makes the certificates of the servers, and puts their program where the internet finds it.
pub(crate) fn prepare(directory: &Path) -> Result<(), String> {
    std::fs::write(directory.join("opened.py"), SERVERS).unwrap();
    let extensions = |name: &str| format!("basicConstraints=CA:FALSE\nsubjectAltName=DNS:{name}\n");
    let files = [
        ("opened.ext", extensions("*.opened.example.net")),
        ("misnamed.ext", extensions("somebody.example.net")),
        (
            "ca.cnf",
            "[ca]\ndefault_ca=d\n[d]\ndatabase=index\nserial=serial\nnew_certs_dir=.\ndefault_md=sha256\npolicy=p\n\
             unique_subject=no\n[p]\ncommonName=supplied\n"
                .to_owned(),
        ),
        ("index", String::new()),
        ("serial", "01\n".to_owned()),
    ];
    for (name, contents) in files {
        std::fs::write(directory.join(name), contents).unwrap();
    }
    let curve = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    let sign = "ca -batch -notext -config ca.cnf -in opened.csr";
    let now = "-days 2";
    let past = "-startdate 20200101000000Z -enddate 20200102000000Z";
    let ours = "-cert ca.pem -keyfile ca.key";
    let others = "-cert stranger.pem -keyfile stranger.key";
    for words in [
        format!("req -x509 {curve} -days 2 -subj /CN=authority -keyout ca.key -out ca.pem"),
        format!("req -x509 {curve} -days 2 -subj /CN=stranger -keyout stranger.key -out stranger.pem"),
        format!("req -new {curve} -subj /CN=opened -keyout opened.key -out opened.csr"),
        format!("{sign} {ours} {now} -extfile opened.ext -out opened.pem"),
        format!("{sign} {ours} {now} -extfile misnamed.ext -out misnamed.pem"),
        format!("{sign} {ours} {past} -extfile opened.ext -out expired.pem"),
        format!("{sign} {others} {now} -extfile opened.ext -out untrusted.pem"),
    ] {
        let mut command = Command::new("openssl");
        command.args(words.split_ascii_whitespace()).current_dir(directory);
        let made = command
            .stdin(Stdio::null())
            .output()
            .map_err(|error| error.to_string())?;
        if !made.status.success() {
            return Err(format!("openssl {words}: {}", String::from_utf8_lossy(&made.stderr)));
        }
    }
    Ok(())
}

/// `offleash run --json` of attempts, on a host that trusts the authority of the servers.
pub(crate) fn command(world: &World, site: &Site, flags: &[&str], attempts: &str) -> Command {
    let mut command = world.sandboxed(site, flags, &format!("{HELPERS}{attempts}"));
    command.env("SSL_CERT_FILE", world.file("ca.pem"));
    command
}

#[track_caller]
pub(crate) fn inside(world: &World, flags: &[&str], attempts: &str) -> Seen {
    let site = Site::new();
    Seen::of_output(&finish(start(&mut command(world, &site, flags, attempts))))
}

/// What the servers were asked for, with `word` in the target.
fn asked(world: &World, word: &str) -> Vec<Value> {
    let met = world.met().into_iter();
    met.filter(|entry| entry["kind"] == "opened" && entry["target"].as_str().unwrap().contains(word))
        .collect()
}

#[test]
fn requests_pass_by_method_and_path_and_are_told() {
    let Some(world) = world() else { return };
    let seen = inside(
        world,
        &FLAGS,
        r#"
attempt("passes", fetch, "/v1/passing?token=hunter2")
attempt("posts", fetch, "/v1/passing", "POST", body=b"hello")
attempt("other path", refused, "/not-passing")
attempt("other method", refused, "/v1/not-passing", "DELETE")
"#,
    );
    seen.all_done();
    let met: Value = serde_json::from_str(seen.done("passes")).unwrap();
    assert_eq!(met["target"], "/v1/passing?token=hunter2");
    let posted: Value = serde_json::from_str(seen.done("posts")).unwrap();
    assert_eq!(posted["bytes"], 5);
    for name in ["other path", "other method"] {
        assert!(seen.done(name).contains(RULE), "{}", seen.done(name));
        assert!(seen.done(name).contains("hint: "), "{}", seen.done(name));
    }
    assert_eq!(asked(world, "not-passing").len(), 0);
    let told: Vec<_> = seen
        .connections(API)
        .iter()
        .map(|one| one["requests"][0].clone())
        .collect();
    assert_eq!(told.len(), 4, "{told:#?}");
    assert_eq!(
        (
            &told[0]["method"],
            &told[0]["path"],
            &told[0]["status"],
            &told[0]["verdict"]
        ),
        (&"GET".into(), &"/v1/passing".into(), &200.into(), &"allowed".into())
    );
    assert_eq!(told[1]["sent_bytes"], 5);
    assert_eq!(told[2]["status"], 403);
    assert_eq!(told[3]["verdict"], "refused");
    assert!(told[3]["rule"].as_str().unwrap().contains(RULE));
    assert!(!seen.record["network"].to_string().contains("hunter2"));
}
