//! Secrets: the sandbox has placeholders, the named hosts get the values, nobody else gets either.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::support::processes::{finish, program, start};
use crate::support::{Site, skip};
use crate::world::{Seen, World, openssl, world};

const SERVERS: &str = include_str!("secrets.py");

/// The value of the secret, which has all that is written differently in URLs, JSON and base64.
pub(crate) const REAL: &str = "sk-REAL0123456789/REAL+REAL=\"REAL\"&0123456789REAL";
/// As `secrets.py` has them.
const KEY_ID: &str = "AKIAREALREALREALREAL";
const KEY: &str = "real-signing-key/with+signs=0123456789ab";

const ALLOWED: [&str; 8] = [
    "--allow",
    "api.vault.example.net:9443/tls",
    "--allow",
    "other.vault.example.net:9443/tls",
    "--allow",
    "api.vault.example.net:9080/http",
    "--allow",
    "other.vault.example.net:9080/http",
];

/// What attempts use: a request to a server of secrets, and what it answered.
const ASK: &str = r#"
import base64, urllib.parse, urllib.request
PLACEHOLDER = os.environ.get("API_KEY", "")
def ask(path="/", headers={}, host="api", scheme="https", method="GET", body=None):
    url = "%s://%s.vault.example.net:%d%s" % (scheme, host, 9443 if scheme == "https" else 9080, path)
    request = urllib.request.Request(url, headers=headers, method=method, data=body)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            return "%d %s\n%s" % (answer.status, answer.headers.as_string(), answer.read().decode("latin-1"))
    except urllib.error.HTTPError as failure:
        raise Refused("%d %s" % (failure.code, failure.read().decode("latin-1")))
def basic(credentials):
    return "Basic " + base64.b64encode(credentials.encode()).decode()
"#;

/// Makes the certificate of the servers and its authority, and puts their program where the internet finds it.
pub(crate) fn prepare(directory: &Path) -> Result<(), String> {
    std::fs::write(directory.join("secrets.py"), SERVERS).unwrap();
    let curve = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2";
    for words in [
        format!("req -x509 {curve} -subj /CN=authority -keyout vault-ca.key -out vault-ca.pem"),
        format!(
            "req -x509 {curve} -subj /CN=vault -CA vault-ca.pem -CAkey vault-ca.key -keyout vault.key -out vault.pem \
             -addext basicConstraints=critical,CA:FALSE -addext subjectAltName=DNS:*.vault.example.net,DNS:*.clients.example.net"
        ),
    ] {
        openssl(directory, &words)?;
    }
    Ok(())
}

/// `offleash run --json` of attempts with the secrets.
fn command(world: &World, site: &Site, flags: &[&str], attempts: &str) -> Command {
    let all = [&ALLOWED, flags].concat();
    with_values(world, world.sandboxed(site, &all, &format!("{ASK}\n{attempts}")))
}

/// The command with the values in its environment, on a host that trusts the authority of the servers.
pub(crate) fn with_values(world: &World, mut command: Command) -> Command {
    command
        .env("SSL_CERT_FILE", world.file("vault-ca.pem"))
        .env("REAL_KEY", REAL)
        .env("OTHER_REAL_KEY", "other-REAL0123456789")
        .env("REAL_KEY_ID", KEY_ID)
        .env("REAL_SIGNING_KEY", KEY);
    command
}

#[track_caller]
fn inside(world: &World, flags: &[&str], attempts: &str) -> (Seen, Site) {
    let site = Site::new();
    let output = finish(start(&mut command(world, &site, flags, attempts)));
    assert_free_of_values(&site, &output);
    (Seen::of_output(&output), site)
}

/// Asserts that neither what the run said and recorded nor what is kept of it has a value in it.
#[track_caller]
pub(crate) fn assert_free_of_values(site: &Site, output: &Output) {
    let kept = Command::new("grep")
        .args(["-rlaF", "-e", "REAL0123", "-e", KEY_ID, "-e", "real-signing-key"])
        .arg(site.state())
        .arg(site.workspace())
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&kept.stdout), "");
    for said in [&output.stdout, &output.stderr] {
        let said = String::from_utf8_lossy(said);
        for part in ["REAL0123", "REAL+REAL", KEY_ID, "real-signing-key"] {
            assert!(!said.contains(part), "{part}: {said}");
        }
    }
}

/// The heads that the servers of secrets met and that have `mark` in them.
fn heads(world: &World, mark: &str) -> Vec<String> {
    let met = world.met().into_iter().filter(|entry| entry["kind"] == "vault");
    met.filter_map(|entry| entry["head"].as_str().map(str::to_owned))
        .filter(|head| head.contains(mark))
        .collect()
}

#[track_caller]
fn only_head(world: &World, mark: &str) -> String {
    let mut heads = heads(world, mark);
    assert_eq!(heads.len(), 1, "{mark}: {heads:?}");
    heads.remove(0)
}

fn uses(seen: &Seen) -> Vec<(String, String, String, u64)> {
    let uses = seen.record["network"]["secrets"].as_array().unwrap();
    let text = |one: &Value, key: &str| one[key].as_str().unwrap().to_owned();
    uses.iter()
        .map(|one| {
            let requests = one["requests"].as_u64().unwrap();
            (text(one, "secret"), text(one, "host"), text(one, "verdict"), requests)
        })
        .collect()
}

#[test]
fn n13_the_named_host_gets_the_value_in_every_place_where_it_may_stand() {
    let Some(world) = world() else { return };
    let secret = "API_KEY=env:REAL_KEY@api.vault.example.net";
    let (seen, _) = inside(
        world,
        &["--secret", secret],
        r#"
attempt("bearer", ask, "/n13-bearer", {"Authorization": "Bearer " + PLACEHOLDER})
attempt("basic", ask, "/n13-basic", {"Authorization": basic("me:" + PLACEHOLDER)})
attempt("custom", ask, "/n13-custom", {"X-Api-Key": PLACEHOLDER})
attempt("body", ask, "/n13-body", {"X-Api-Key": PLACEHOLDER}, method="POST", body=b"hello" * 100000)
"#,
    );
    seen.all_done();
    assert!(only_head(world, "/n13-bearer").contains(&format!(": Bearer {REAL}")));
    let credentials = in_base64(&format!("me:{REAL}"));
    assert!(only_head(world, "/n13-basic").contains(&format!("Basic {credentials}")));
    assert!(only_head(world, "/n13-custom").contains(REAL));
    assert!(only_head(world, "/n13-body").contains(REAL));
    let expected = ("API_KEY", "api.vault.example.net", "allowed", 4);
    let told = uses(&seen);
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(
        (told[0].0.as_str(), told[0].1.as_str(), told[0].2.as_str(), told[0].3),
        expected
    );
    for connection in seen.connections("api.vault.example.net") {
        let requests = connection["requests"].as_array().unwrap();
        assert!(
            requests.iter().all(|request| request["secrets"][0] == "API_KEY"),
            "{connection:#}"
        );
    }

    let (seen, _) = inside(
        world,
        &["--secret", &format!("{secret}#query:key")],
        r#"attempt("query", ask, "/n13-query?a=b&key=%s&c=%%20" % PLACEHOLDER)"#,
    );
    seen.all_done();
    let head = only_head(world, "/n13-query");
    assert!(
        head.contains("?a=b&key=sk-REAL0123456789%2FREAL%2BREAL%3D%22REAL%22%260123456789REAL&c=%20 "),
        "{head}"
    );
}

pub(crate) fn in_base64(text: &str) -> String {
    let output = crate::support::processes::feed(Command::new("base64").arg("-w0"), text);
    String::from_utf8(output.stdout).unwrap()
}

/// A secret for the one host, and another so that requests to the other host are seen, too.
const TWO: [&str; 4] = [
    "--secret",
    "API_KEY=env:REAL_KEY@api.vault.example.net",
    "--secret",
    "OTHER_KEY=env:OTHER_REAL_KEY@other.vault.example.net",
];

#[test]
fn pitfall_a_placeholder_is_not_laundered_through_another_host() {
    let Some(world) = world() else { return };
    let (seen, _) = inside(
        world,
        &TWO,
        r#"
attempt("control", ask, "/laundry-control", {"Authorization": "Bearer " + os.environ["OTHER_KEY"]}, host="other")
attempt("bearer", ask, "/laundry-1", {"Authorization": "Bearer " + PLACEHOLDER}, host="other")
attempt("basic", ask, "/laundry-2", {"Authorization": basic(PLACEHOLDER + ":")}, host="other")
attempt("query", ask, "/laundry-3?a=" + PLACEHOLDER, host="other")
attempt("path", ask, "/laundry-4/" + PLACEHOLDER)
attempt("escaped path", ask, "/laundry-5/" + "".join("%%%02x" % ord(one) for one in PLACEHOLDER))
attempt("agent", ask, "/laundry-6", {"User-Agent": PLACEHOLDER})
attempt("redirect", ask, "/redirect-laundry", {"Authorization": "Bearer " + PLACEHOLDER})
attempt("clear", ask, "/laundry-7", {"X-Api-Key": PLACEHOLDER}, scheme="http")
attempt("clear, other", ask, "/laundry-8?" + PLACEHOLDER, host="other", scheme="http")
attempt("clear, basic", ask, "/laundry-9", {"Authorization": basic("me:" + PLACEHOLDER)}, scheme="http")
"#,
    );
    assert!(seen.done("control").contains("200"));
    seen.all_refused_but(&["control"]);
    for name in ["bearer", "basic", "query", "path", "escaped path", "agent", "redirect"] {
        let reason = seen.refused(name);
        assert!(reason.contains("403") && reason.contains("API_KEY"), "{name}: {reason}");
    }
    let met = heads(world, "laundry");
    assert_eq!(met.len(), 2, "{met:?}");
    for head in met {
        assert!(
            head.contains("/redirect-laundry") || head.contains("/laundry-control"),
            "{head}"
        );
    }
    let refused = uses(&seen)
        .into_iter()
        .filter(|(secret, _, verdict, _)| secret == "API_KEY" && verdict == "refused");
    assert_eq!(
        refused.map(|(.., requests)| requests).sum::<u64>(),
        10,
        "{:#}",
        seen.record["network"]["secrets"]
    );
}

#[test]
fn a_host_whose_tls_is_not_opened_gets_no_more_than_the_placeholder() {
    let Some(world) = world() else { return };
    let (seen, _) = inside(
        world,
        &["--secret", "API_KEY=env:REAL_KEY@api.vault.example.net"],
        r#"
import ssl
def unopened():
    with dial("other.vault.example.net", 9443) as connection, secured(connection, "other.vault.example.net") as tunnel:
        head = "GET /unopened HTTP/1.1\r\nHost: other.vault.example.net:9443\r\nAuthorization: %s\r\n\r\n"
        return say(tunnel, head % PLACEHOLDER)
attempt("unopened", unopened)
"#,
    );
    seen.done("unopened");
    assert!(!only_head(world, "/unopened").contains("REAL"));
}

#[test]
fn a_name_that_tells_a_placeholder_does_not_exist() {
    let Some(world) = world() else { return };
    let (seen, _) = inside(
        world,
        &[
            "--secret",
            "API_KEY=env:REAL_KEY@api.vault.example.net",
            "--allow",
            "*.wild.example.org",
        ],
        r#"
attempt("control", socket.getaddrinfo, "told.wild.example.org", 80)
attempt("placeholder", socket.getaddrinfo, PLACEHOLDER + ".wild.example.org", 80)
"#,
    );
    seen.done("control");
    seen.refused("placeholder");
}

#[test]
fn no_answer_has_the_value_in_it() {
    let Some(world) = world() else { return };
    let (seen, _) = inside(
        world,
        &["--secret", "API_KEY=env:REAL_KEY@api.vault.example.net"],
        r#"
bearer = {"Authorization": "Bearer " + PLACEHOLDER}
attempt("json", ask, "/echo", bearer)
attempt("slowly", ask, "/slowly", bearer)
attempt("slowly, basic", ask, "/slowly", {"Authorization": basic("me:" + PLACEHOLDER)})
attempt("header", ask, "/header", bearer)
attempt("packed", ask, "/packed", {**bearer, "Accept-Encoding": "gzip"})
attempt("own", lambda: PLACEHOLDER)
"#,
    );
    let own = seen.done("own");
    assert!(own.starts_with("sk-") && own.len() == REAL.len(), "{own}");
    for name in ["json", "slowly", "header"] {
        assert!(seen.done(name).contains(own), "{name}: {}", seen.done(name));
    }
    // Nothing of the credentials is left, which were encoded together.
    assert!(
        !seen.done("slowly, basic").contains("UkVBTDAxMjM0"),
        "{}",
        seen.done("slowly, basic")
    );
    assert!(seen.refused("packed").contains("502"), "{}", seen.refused("packed"));
    assert!(
        only_head(world, "GET /packed")
            .to_lowercase()
            .contains("accept-encoding: identity")
    );
}

#[test]
fn no_part_of_an_answer_has_a_part_of_the_value() {
    let Some(world) = world() else { return };
    let (seen, _) = inside(
        world,
        &["--secret", "API_KEY=env:REAL_KEY@api.vault.example.net"],
        r#"
bearer = {"Authorization": "Bearer " + PLACEHOLDER}
attempt("control", ask, "/parts", {"Authorization": "Bearer nothing", "Range": "bytes=9-12"}, host="other")
for name in ["Range", "Request-Range"]:
    attempt(name, ask, "/parts", {**bearer, name: "bytes=9-12", "If-Range": '"1"', "A-IM": "range", "Accept-Charset": "utf-16"})
attempt("anyway", ask, "/parts-anyway", bearer)
attempt("recoded", ask, "/recoded", bearer)
attempt("own", lambda: PLACEHOLDER)
"#,
    );
    let control = seen.done("control");
    assert!(control.starts_with("206") && control.ends_with("\nthin"), "{control}");
    for name in ["Range", "Request-Range"] {
        let all = seen.done(name);
        let own = format!("\nBearer {}", seen.done("own"));
        assert!(all.starts_with("200") && all.ends_with(&own), "{name}: {all}");
        assert!(!all.to_lowercase().contains("-ranges"), "{name}: {all}");
    }
    for name in ["anyway", "recoded"] {
        assert!(seen.refused(name).contains("502"), "{name}: {}", seen.refused(name));
    }
    for head in heads(world, "GET /parts ")
        .iter()
        .filter(|head| !head.contains("nothing"))
    {
        let head = head.to_lowercase();
        for asks in ["range:", "a-im:", "accept-charset:"] {
            assert!(!head.contains(asks), "{head}");
        }
    }
}

#[test]
fn a_host_that_knows_the_value_does_not_tell_it_in_the_clear() {
    let Some(world) = world() else { return };
    let attempts = r#"
bearer = {"Authorization": "Bearer " + PLACEHOLDER}
attempt("told", ask, "/remember/%s", bearer)
attempt("asked", ask, "/remembered/%s", {"Range": "bytes=0-9"}, scheme="http")
attempt("own", lambda: PLACEHOLDER)
"#;
    let mark = format!("clear-{}", std::process::id());
    let (seen, _) = inside(
        world,
        &["--secret", "API_KEY=env:REAL_KEY@api.vault.example.net"],
        &attempts.replace("%s", &mark),
    );
    // The control: it does know it.
    assert!(only_head(world, &format!("GET /remember/{mark}")).contains(REAL));
    let told = seen.done("asked");
    assert!(told.ends_with(&format!("\nBearer {}", seen.done("own"))), "{told}");
}

#[test]
fn requests_to_aws_are_signed_anew() {
    let Some(world) = world() else { return };
    let keys = [
        "--secret",
        "AWS_ACCESS_KEY_ID=env:REAL_KEY_ID@api.vault.example.net#sigv4",
        "--secret",
        "AWS_SECRET_ACCESS_KEY=env:REAL_SIGNING_KEY@api.vault.example.net#sigv4",
    ];
    let (seen, _) = inside(
        world,
        &keys,
        r#"
import hmac
KEY_ID, KEY = os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]
HOST, DATE, SCOPE = "api.vault.example.net:9443", "20260102T030405Z", "20260102/eu-west-1/service/aws4_request"
EMPTY = hashlib.sha256(b"").hexdigest()

def signature(method, path, query, headers, payload):
    canonical = "\n".join([method, path, query, "".join("%s:%s\n" % pair for pair in headers),
                           ";".join(name for name, _ in headers), payload])
    key = ("AWS4" + KEY).encode()
    for part in SCOPE.split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    text = "AWS4-HMAC-SHA256\n%s\n%s\n%s" % (DATE, SCOPE, hashlib.sha256(canonical.encode()).hexdigest())
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()

def signed(path, query="", body=None, content=None, broken=False):
    method = "GET" if body is None else "POST"
    headers = [("host", HOST)] + ([("x-amz-content-sha256", content)] if content else []) + [("x-amz-date", DATE)]
    payload = content or hashlib.sha256(body or b"").hexdigest()
    made = signature(method, path, query, headers, payload)
    made = "0" * 64 if broken else made
    sent = {name: value for name, value in headers if name != "host"}
    sent["Authorization"] = "AWS4-HMAC-SHA256 Credential=%s/%s, SignedHeaders=%s, Signature=%s" % (
        KEY_ID, SCOPE, ";".join(name for name, _ in headers), made)
    return ask(path + ("?" + query if query else ""), sent, method=method, body=body)

def presigned(path):
    query = ("X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=%s&X-Amz-Date=%s&X-Amz-Expires=60&X-Amz-SignedHeaders=host"
             % (urllib.parse.quote(KEY_ID + "/" + SCOPE, safe=""), DATE))
    return ask("%s?%s&X-Amz-Signature=%s" % (path, query, signature("GET", path, query, [("host", HOST)], "UNSIGNED-PAYLOAD")))

attempt("get", signed, "/signed-get", content=EMPTY)
attempt("query", signed, "/signed-query", query="a=1&b=%2F")
attempt("unsigned payload", signed, "/signed-put", body=b"any", content="UNSIGNED-PAYLOAD")
attempt("body", signed, "/signed-body", body=b"Action=ListUsers" * 1000)
attempt("presigned", presigned, "/signed-before")
attempt("broken", signed, "/signed-broken", broken=True)
attempt("chunks", signed, "/signed-chunks", body=b"x", content="STREAMING-AWS4-HMAC-SHA256-PAYLOAD")
attempt("elsewhere", ask, "/signed-elsewhere", {"X-Key": KEY})
"#,
    );
    for name in ["get", "query", "unsigned payload", "body", "presigned"] {
        assert!(seen.done(name).ends_with("\nsigned"), "{name}: {}", seen.done(name));
    }
    for (name, expected) in [("broken", "signature"), ("chunks", "chunks"), ("elsewhere", "sigv4")] {
        assert!(seen.refused(name).contains(expected), "{name}: {}", seen.refused(name));
    }
    for mark in ["/signed-broken", "/signed-chunks", "/signed-elsewhere"] {
        assert_eq!(heads(world, mark), Vec::<String>::new());
    }
}

#[test]
fn k4_nothing_that_can_be_read_inside_has_the_value() {
    let Some(world) = world() else { return };
    let (seen, site) = inside(
        world,
        &[
            "--secret",
            "API_KEY=env:REAL_KEY@api.vault.example.net",
            "--env",
            "DECOY=decoy-for-the-search",
        ],
        r#"
def readable():
    for top, directories, names in os.walk("/"):
        directories[:] = [name for name in directories if os.path.join(top, name) not in ("/usr", "/sys", "/proc/self", "/proc/thread-self")]
        for name in names:
            path = os.path.join(top, name)
            try:
                if os.path.islink(path) or not os.path.isfile(path):
                    continue
                with open(path, "rb", buffering=0) as file:
                    os.set_blocking(file.fileno(), False)
                    yield path, file.read(1 << 20) or b""
            except OSError:
                pass
def having(text):
    return [path for path, contents in readable() if text in contents]
attempt("decoy", having, b"decoy-for-" + b"the-search")
attempt("value", having, b"REAL" + b"0123")
attempt("use", ask, "/k4", {"Authorization": "Bearer " + PLACEHOLDER})
"#,
    );
    assert!(seen.done("decoy").contains("/proc/"), "{}", seen.done("decoy"));
    assert_eq!(seen.done("value"), "[]");
    seen.done("use");
    // The record of the run and the log of all runs name the secret.
    let log = site.succeed(["audit", "show"]);
    assert!(log.contains("API_KEY") && !log.contains("REAL0123"), "{log}");
}

#[test]
fn curl_uses_secrets_over_both_versions_of_http() {
    let Some(world) = world() else { return };
    let Some(curl) = program("curl") else {
        return skip("`curl` is missing");
    };
    let site = Site::new();
    let script = format!(
        r#"for version in --http1.1 --http2; do
  {} -sS $version -o /dev/null -w '%{{http_version}} %{{http_code}}
' -H "Authorization: Bearer $API_KEY"      https://api.vault.example.net:9443/curl-bearer || exit 1
  {0} -sS $version -o /dev/null -w '%{{http_version}} %{{http_code}}
' -u "me:$API_KEY"      https://api.vault.example.net:9443/curl-basic || exit 1
done"#,
        curl.display()
    );
    let flags = [
        "run",
        "--json",
        "--allow",
        "api.vault.example.net:9443/tls",
        "--secret",
        "API_KEY=env:REAL_KEY@api.vault.example.net",
        "--",
        "/bin/sh",
        "-c",
        &script,
    ];
    let output = finish(start(&mut with_values(world, world.offleash(&site, &flags))));
    assert_free_of_values(&site, &output);
    let record = crate::support::record_of(&output);
    let said = record["stdout"]["data"].as_str().unwrap();
    assert_eq!(
        said.lines().filter(|line| line.ends_with(" 200")).count(),
        4,
        "{record:#}"
    );
    assert_eq!(heads(world, "/curl-bearer").len(), 2);
    for head in heads(world, "/curl-bearer") {
        assert!(head.contains(REAL), "{head}");
    }
    for head in heads(world, "/curl-basic") {
        assert!(head.contains(&in_base64(&format!("me:{REAL}"))), "{head}");
    }
}

#[test]
fn tls_is_opened_on_a_port_of_which_nothing_is_said() {
    let Some(world) = world() else { return };
    let site = Site::new();
    let attempts = format!(
        "{ASK}\n{}",
        r#"
attempt("secret", ask, "/unsaid", {"Authorization": "Bearer " + PLACEHOLDER})
attempt("clear", ask, "/unsaid-clear", {"Authorization": "Bearer " + PLACEHOLDER}, scheme="http")
attempt("neither", echoed, "api.vault.example.net", 7)
"#
    );
    let secret = "API_KEY=env:REAL_KEY@api.vault.example.net";
    let flags = ["--allow", "api.vault.example.net:7,9080,9443", "--secret", secret];
    let mut command = with_values(world, world.sandboxed(&site, &flags, &attempts));
    let seen = Seen::of_output(&finish(start(&mut command)));
    seen.done("secret");
    assert!(only_head(world, "/unsaid").contains(REAL));
    seen.refused("clear");
    assert_eq!(seen.done("neither"), "True");
}

#[test]
fn a_websocket_tells_no_value_that_its_greeting_had() {
    let Some(world) = world() else { return };
    let (seen, _) = inside(
        world,
        &["--secret", "API_KEY=env:REAL_KEY@api.vault.example.net"],
        r#"
def upgraded(key):
    with dial("api.vault.example.net", 9443) as connection:
        with ssl.create_default_context().wrap_socket(connection, server_hostname="api.vault.example.net") as tunnel:
            tunnel.sendall(("GET /socket HTTP/1.1\r\nHost: api.vault.example.net:9443\r\nConnection: Upgrade\r\n"
                            "Upgrade: websocket\r\nSec-WebSocket-Extensions: permessage-deflate\r\n"
                            "Authorization: Bearer %s\r\n\r\n" % key).encode())
            answer = b""
            while not answer.endswith(b"over"):
                read = tunnel.recv(1 << 16)
                if not read:
                    raise Ended("after %r" % answer)
                answer += read
            return answer.decode("latin-1")
attempt("own", lambda: PLACEHOLDER)
attempt("socket", upgraded, PLACEHOLDER)
"#,
    );
    let said = seen.done("socket");
    assert!(
        said.starts_with("HTTP/1.1 101") && said.contains(seen.done("own")),
        "{said}"
    );
    let head = only_head(world, "GET /socket");
    assert!(
        head.contains(REAL) && !head.to_lowercase().contains("extensions"),
        "{head}"
    );
}
