//! Connections that the gateway opens: which requests pass, and that those that do are not changed on their way.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::Site;
use crate::support::processes::{finish, start};
use crate::world::{Seen, World, openssl, world};

const SERVERS: &str = include_str!("opened.py");
pub(crate) const API: &str = "api.opened.example.net";
const RULE: &str = "GET,HEAD,POST api.opened.example.net/v1/*";
pub(crate) const FLAGS: [&str; 2] = ["--allow-method", RULE];

/// What attempts use.
const HELPERS: &str = r#"
import http.client, subprocess, hashlib, base64

API = "api.opened.example.net"

def fetch(path, method="GET", host=API, body=None, headers={}, answered=200):
    """One request; its answer as the server saw it, or the text of a refusal."""
    connection = http.client.HTTPSConnection(host, timeout=TIMEOUT, context=ssl.create_default_context())
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
        openssl(directory, &words)?;
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
pub(crate) fn asked(world: &World, word: &str) -> Vec<Value> {
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

#[test]
fn paths_that_servers_read_differently_do_not_pass() {
    let Some(world) = world() else { return };
    let seen = inside(
        world,
        &FLAGS,
        r#"
attempt("control", fetch, "/v1/%63onfused-control")
for path in ["/v1/../confused", "/v1/%2e%2e/confused", "/v1/.%2e/confused", "//v1/confused", "/v1//confused",
             "/v1/..%2fconfused", "/v1/..%5cconfused", "/v1\\..\\confused", "/v1/..;/confused", "/v1/%252e%252e/confused",
             "/v1/%00confused", "/V1/confused", "/v1/%c0%ae%c0%ae/confused", "/confused?/v1/", "/confused#/v1/"]:
    attempt(path, refused, path)
attempt("asterisk", refused, "*", "OPTIONS", headers={"X-Confused": "1"})
"#,
    );
    seen.all_done();
    let met: Value = serde_json::from_str(seen.done("control")).unwrap();
    assert_eq!(met["target"], "/v1/confused-control");
    let through = asked(world, "confused");
    assert_eq!(through.len(), 1, "{through:#?}");
}

#[test]
fn n8_every_way_to_name_another_host_in_an_opened_connection_is_refused() {
    let Some(world) = world() else { return };
    let seen = inside(
        world,
        &FLAGS,
        r#"
def page(request):
    with tunnel() as connection:
        connection.sendall(request.encode("latin-1"))
        return response(connection)[0]

def kept_alive():
    """A second request to another host on the connection of the first."""
    with tunnel() as connection:
        first = say(connection, "GET /v1/n8-first HTTP/1.1\r\nHost: %s\r\n\r\n" % API)
        assert "200" in first, first
        return say(connection, "GET /v1/n8-second HTTP/1.1\r\nHost: other.opened.example.net\r\n\r\n")

attempt("kept alive", kept_alive)
for name, request in {
    "Host": "GET /v1/n8-second HTTP/1.1\r\nHost: other.opened.example.net\r\n\r\n",
    "URI": "GET https://other.opened.example.net/v1/n8-second HTTP/1.1\r\nHost: api.opened.example.net\r\n\r\n",
    "two": "GET /v1/n8-second HTTP/1.1\r\nHost: api.opened.example.net\r\nHost: other.opened.example.net\r\n\r\n",
    "none": "GET /v1/n8-second HTTP/1.1\r\n\r\n",
    "port": "GET /v1/n8-second HTTP/1.1\r\nHost: api.opened.example.net:80\r\n\r\n",
    "scheme": "GET http://api.opened.example.net/v1/n8-second HTTP/1.1\r\nHost: api.opened.example.net\r\n\r\n",
    "userinfo": "GET /v1/n8-second HTTP/1.1\r\nHost: api.opened.example.net@other.opened.example.net\r\n\r\n",
    "HTTP/1.0": "GET /v1/n8-second HTTP/1.0\r\n\r\n",
    "CONNECT": "CONNECT n8-second.example.net:443 HTTP/1.1\r\nHost: n8-second.example.net:443\r\n\r\n",
    "TRACE": "TRACE /v1/n8-second HTTP/1.1\r\nHost: api.opened.example.net\r\n\r\n",
    "folded": "GET /v1/n8-second HTTP/1.1\r\nHost: api.opened.example.net\r\n other.opened.example.net\r\n\r\n",
    "space before colon": "GET /v1/n8-second HTTP/1.1\r\nHost : api.opened.example.net\r\n\r\n",
    "HTTP/2": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nn8-second",
    "SSH": "SSH-2.0-n8-second\r\n",
}.items():
    attempt(name, page, request)
"#,
    );
    for name in seen.names() {
        assert!(seen.refused(name).contains("403"), "{name}: {}", seen.refused(name));
    }
    assert_eq!(asked(world, "n8-first").len(), 1);
    assert_eq!(asked(world, "n8-second").len(), 0);
}

#[test]
fn what_a_program_sends_and_is_sent_is_not_changed() {
    let Some(world) = world() else { return };
    let seen = inside(
        world,
        &FLAGS,
        r#"
SIZE = 100 * 1000 * 1000
def upload(length):
    """A body that is sent as it is made, without its length."""
    seen = hashlib.sha256()
    def parts():
        left, piece = length, os.urandom(1 << 20)
        while left:
            part = piece[:left]
            seen.update(part)
            left -= len(part)
            yield part
    connection = http.client.HTTPSConnection(API, timeout=TIMEOUT, context=ssl.create_default_context())
    connection.request("POST", "/v1/upload", parts(), encode_chunked=True, headers={"Transfer-Encoding": "chunked"})
    met = json.loads(told(connection.getresponse()))
    return [met["bytes"], met["sha256"] == seen.hexdigest()]

def download(length):
    connection = http.client.HTTPSConnection(API, timeout=TIMEOUT, context=ssl.create_default_context())
    connection.request("GET", "/v1/big/%d" % length)
    answer, seen, expected = connection.getresponse(), hashlib.sha256(), hashlib.sha256()
    while part := answer.read(1 << 20):
        seen.update(part)
    piece = b"0123456789abcdef" * 4096
    while length:
        expected.update(piece[:length])
        length -= len(piece[:length])
    return seen.hexdigest() == expected.hexdigest()

def events():
    """Each event has to come before the server says the next."""
    connection = http.client.HTTPSConnection(API, timeout=TIMEOUT, context=ssl.create_default_context())
    connection.request("GET", "/v1/events/%d" % os.getpid())
    answer, seen = connection.getresponse(), []
    while line := answer.readline():
        if line.strip():
            seen.append(line.decode().strip())
            fetch("/v1/heard/%d" % os.getpid())
    return seen

def websocket():
    with tunnel() as connection:
        key = base64.b64encode(os.urandom(16)).decode()
        connection.sendall(("GET /v1/socket HTTP/1.1\r\nHost: %s\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n"
                            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %s\r\n\r\nearly" % (API, key)).encode())
        head = b""
        while b"\r\n\r\n" not in head:
            head += connection.recv(1 << 16)
        head, early = head.split(b"\r\n\r\n", 1)
        accept = base64.b64encode(hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest())
        assert head.startswith(b"HTTP/1.1 101 ") and accept in head, head
        back = early
        connection.sendall(b"and late")
        while len(back) < len(b"earlyand late"):
            back += connection.recv(1 << 16)
        return back.decode()

def continued():
    """A client that waits to be told before it sends its body."""
    with tunnel() as connection:
        connection.sendall(("POST /v1/continued HTTP/1.1\r\nHost: %s\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n"
                            % API).encode())
        first = connection.recv(1 << 16)
        assert first == b"HTTP/1.1 100 Continue\r\n\r\n", first
        return json.loads(say(connection, "hello").split("\n", 1)[1])["bytes"]

def trailers():
    with tunnel() as connection:
        connection.sendall(("GET /v1/chunked/x HTTP/1.1\r\nHost: %s\r\nTE: trailers\r\nConnection: TE, close\r\n\r\n" % API).encode())
        whole = b""
        while read := connection.recv(1 << 16):
            whole += read
        return b"hello" in whole and whole.lower().endswith(b"0\r\nx-sum: 11\r\n\r\n") or whole

def cut():
    try:
        return fetch("/v1/cut/x")
    except http.client.IncompleteRead as failure:
        return "incomplete"

attempt("upload", upload, SIZE)
attempt("download", download, SIZE)
attempt("events", events)
attempt("websocket", websocket)
attempt("continued", continued)
attempt("trailers", trailers)
attempt("cut", cut)
attempt("head", fetch, "/v1/head", "HEAD")
attempt("headers", fetch, "/v1/headers", headers={"X-Kept": "1", "Keep-Alive": "5", "Connection": "keep-alive, TE", "TE": "deflate"})
"#,
    );
    seen.all_done();
    assert_eq!(seen.done("upload"), "[100000000, True]");
    assert_eq!(seen.done("download"), "True");
    assert_eq!(seen.done("events"), "['data: 0', 'data: 1', 'data: 2']");
    assert_eq!(seen.done("websocket"), "earlyand late");
    assert_eq!(seen.done("continued"), "5");
    assert_eq!(seen.done("trailers"), "True");
    assert_eq!(seen.done("cut"), "incomplete");
    let met: Value = serde_json::from_str(seen.done("headers")).unwrap();
    let names: Vec<&str> = met["fields"]
        .as_array()
        .unwrap()
        .iter()
        .map(|field| field[0].as_str().unwrap())
        .collect();
    assert!(names.contains(&"x-kept"), "{names:?}");
    assert!(!names.contains(&"te") && !names.contains(&"keep-alive"), "{names:?}");
    let upload = &seen.connections(API)[0]["requests"][0];
    assert_eq!(upload["sent_bytes"], 100_000_000, "{upload:#}");
}

#[test]
fn a_server_that_is_not_trusted_is_named_with_the_reason() {
    let Some(world) = world() else { return };
    let flags = [
        "--allow-method",
        "GET *.opened.example.net/*",
        "--allow",
        "*.opened.example.net",
    ];
    let seen = inside(
        world,
        &flags,
        r#"
attempt("control", fetch, "/v1/trusted")
for label in ["expired", "untrusted", "misnamed"]:
    attempt(label, fetch, "/v1/not-trusted", host=label + ".opened.example.net", answered=502)
"#,
    );
    seen.done("control");
    for (label, why) in [
        ("expired", "expired"),
        ("untrusted", "trusts"),
        ("misnamed", "another name"),
    ] {
        let text = seen.done(label);
        assert!(text.contains("is not trusted") && text.contains(why), "{text}");
        let host = format!("{label}.opened.example.net");
        assert_eq!(seen.connections(&host)[0]["requests"][0]["verdict"], "failed");
    }
    assert_eq!(asked(world, "not-trusted").len(), 0);
}

#[test]
fn headers_are_set_and_removed_and_other_hosts_are_left_alone() {
    let Some(world) = world() else { return };
    let flags = [
        "--allow",
        "*.opened.example.net",
        "--set-header",
        "api.opened.example.net X-Team: agents",
        "--remove-header",
        "api.opened.example.net Cookie",
    ];
    let site = Site::new();
    std::fs::copy(world.file("ca.pem"), site.workspace().join("ca.pem")).unwrap();
    let attempts = r#"
sent = {"X-Team": "mine", "Cookie": "a=1", "X-Kept": "1"}
attempt("set", fetch, "/a//path/%2e%2e/kept", headers=sent)
def unopened():
    """To another host with the authority of the servers alone: nobody stands between."""
    context = ssl.create_default_context(cafile="ca.pem")
    connection = http.client.HTTPSConnection("other.opened.example.net", timeout=TIMEOUT, context=context)
    connection.request("GET", "/a/path", headers=sent)
    return told(connection.getresponse())
attempt("unopened", unopened)
def clear():
    connection = http.client.HTTPConnection(API, timeout=TIMEOUT)
    connection.request("GET", "/a/clear", headers=sent)
    return told(connection.getresponse(), 403)
attempt("clear", clear)
"#;
    let seen = Seen::of_output(&finish(start(&mut command(world, &site, &flags, attempts))));
    seen.all_done();
    let fields = |name: &str| {
        let met: Value = serde_json::from_str(seen.done(name)).unwrap();
        met.to_string()
    };
    let set = fields("set");
    assert!(
        set.contains(r#"["x-team","agents"]"#) && set.contains(r#"["x-kept","1"]"#),
        "{set}"
    );
    assert!(!set.contains("cookie") && !set.contains("mine"), "{set}");
    assert!(set.contains("/a//path/%2e%2e/kept"), "{set}");
    let unopened = fields("unopened");
    assert!(unopened.contains("mine") && unopened.contains("cookie"), "{unopened}");
    assert!(seen.done("clear").contains("has no TLS"), "{}", seen.done("clear"));
    assert_eq!(asked(world, "/a/clear").len(), 0);
    assert_eq!(
        seen.connections("other.opened.example.net")[0]["requests"],
        Value::Array(Vec::new())
    );
}

#[test]
fn n12_heads_without_end_and_limits_end_an_opened_connection() {
    let Some(world) = world() else { return };
    let seen = inside(
        world,
        &FLAGS,
        r#"
def long(head):
    with tunnel() as connection:
        try:
            connection.sendall(head.encode())
        except OSError:
            pass
        return response(connection)[0]
attempt("a long header", long, "GET /v1/n12-long HTTP/1.1\r\nHost: %s\r\nX: %s\r\n\r\n" % (API, "a" * 300000))
attempt("many headers", long, "GET /v1/n12-long HTTP/1.1\r\nHost: %s\r\n%s\r\n" % (API, "X: a\r\n" * 5000))
attempt("a long target", long, "GET /v1/n12-long/%s HTTP/1.1\r\nHost: %s\r\n\r\n" % ("a" * 60000, API))
"#,
    );
    for name in seen.names() {
        assert!(!seen.told(name).contains(" 200 "), "{name}: {}", seen.told(name));
    }
    assert_eq!(asked(world, "n12-long").len(), 0);
    let limited = inside(
        world,
        &[&FLAGS[..], &["--net-bytes", "1M"]].concat(),
        r#"attempt("much", fetch, "/v1/big/20000000")"#,
    );
    assert!(!limited.told("much").starts_with("0123"), "it was not cut");
    let connection = limited.connections(API)[0];
    assert_eq!(connection["verdict"], "cut", "{connection:#}");
    assert!(
        connection["received_bytes"].as_u64().unwrap() <= 1 << 20,
        "{connection:#}"
    );
}
