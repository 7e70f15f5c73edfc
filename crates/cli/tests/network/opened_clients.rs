//! Opened connections as programs make them: whatever they are written in, and wherever they look for authorities.

use std::path::Path;

use serde_json::Value;

use crate::opened::{command, inside};
use crate::support::processes::{finish, start};
use crate::support::{Site, skip};
use crate::world::{Seen, world};

const FLAGS: [&str; 2] = ["--allow-method", "GET,POST api.opened.example.net/v1/*"];

/// Whether a program that a test needs is there; if not, the test is a counted skip.
fn has(program: &str) -> bool {
    let is_there = ["/usr/bin", "/usr/local/bin"]
        .iter()
        .any(|directory| Path::new(directory).join(program).exists());
    if !is_there {
        skip(&format!("`{program}` is missing"));
    }
    is_there
}

#[test]
fn curl_speaks_both_versions() {
    let Some(world) = world() else { return };
    if !has("curl") {
        return;
    }
    let seen = inside(
        world,
        &FLAGS,
        r#"
def version(*arguments):
    return curl("-w", "\n%{http_version} %{http_code}", *arguments)
url = "https://api.opened.example.net"
attempt("HTTP/1.1", version, "--http1.1", url + "/v1/curl")
attempt("HTTP/2", version, "--http2", url + "/v1/curl")
attempt("refused", version, "--http2", url + "/not-for-curl")
attempt("after a refusal", version, "--http2", url + "/not-for-curl", url + "/v1/curl")
attempt("at once", curl, "--http2", "--parallel", "--parallel-immediate", "-o", "/dev/null", "-w", "%{http_code} ",
        url + "/v1/at-once/[1-40]")
attempt("a body", version, "--http2", "--data-binary", "@/etc/ssl/certs/ca-certificates.crt", url + "/v1/curl")
attempt("a big one", curl, "--http2", "-o", "/dev/null", "-w", "%{size_download}", url + "/v1/big/20000000")
attempt("another authority", version, "--http2", "-H", "Host: other.opened.example.net", url + "/v1/not-for-curl")
"#,
    );
    seen.all_done();
    let version = |name: &str| seen.done(name).lines().last().unwrap().to_owned();
    assert_eq!(version("HTTP/1.1"), "1.1 200");
    // Without HTTP/2 of its own, curl says so in its version; then it asks for less.
    let can_speak_2 = version("HTTP/2") == "2 200";
    if can_speak_2 {
        assert_eq!(version("refused"), "2 403");
        assert_eq!(version("after a refusal"), "2 200");
        assert_eq!(version("another authority"), "2 403");
    } else {
        skip("curl without HTTP/2");
    }
    assert_eq!(seen.done("at once").trim(), "200 ".repeat(40).trim());
    assert_eq!(seen.done("a big one"), "20000000");
    let leaked = world.met().into_iter().find(|entry| {
        let target = entry["target"].as_str().unwrap_or_default();
        target.contains("not-for-curl")
    });
    assert!(leaked.is_none(), "{leaked:?}");
}

#[test]
fn programs_find_the_authority_where_they_look_for_it() {
    let Some(world) = world() else { return };
    let seen = inside(
        world,
        &FLAGS,
        r#"
variables = [name for name in os.environ if name.endswith(("_FILE", "_BUNDLE", "_CERTS", "_CERT", "_CAINFO", "_PATH"))]
def without_variables():
    """The library's own places."""
    for name in variables:
        os.environ.pop(name, None)
    return fetch("/v1/places")
attempt("by variable", fetch, "/v1/places")
attempt("variables", lambda: all(os.path.getsize(os.environ[name]) > 0 for name in ("SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS",
        "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "PIP_CERT", "AWS_CA_BUNDLE", "CARGO_HTTP_CAINFO", "DENO_CERT")))
def by_directory():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(capath="/etc/ssl/certs")
    with context.wrap_socket(dial(API, 443), server_hostname=API) as connection:
        return say(connection, "GET /v1/places HTTP/1.1\r\nHost: %s\r\n\r\n" % API)
attempt("by directory", by_directory)
attempt("without variables", without_variables)
def found(word):
    """Whether a word stands in any file that could be read."""
    for place in ("/etc", "/tmp", "/home", "/run", "/var"):
        for directory, _, files in os.walk(place):
            for name in files:
                path = os.path.join(directory, name)
                if os.path.islink(path) or not os.path.isfile(path) or path.endswith("-snakeoil.key"):
                    continue
                with open(path, "rb") as file:
                    if word in file.read():
                        return path
    return None
attempt("authority", found, b"BEGIN CERTIFICATE")
attempt("key", found, b"PRIVATE " + b"KEY")
attempt("environment", lambda: [name for name, value in os.environ.items() if "PRIVATE" in value])
"#,
    );
    seen.all_done();
    assert_eq!(seen.done("variables"), "True");
    assert_ne!(seen.done("authority"), "None");
    assert_eq!(seen.done("key"), "None");
    assert_eq!(seen.done("environment"), "[]");
}

#[test]
fn a_variable_that_the_owner_sets_is_the_owners() {
    let Some(world) = world() else { return };
    let mut flags = FLAGS.to_vec();
    flags.extend(["-e", "SSL_CERT_FILE=/nothing/here"]);
    let seen = inside(
        world,
        &flags,
        r#"
attempt("set", lambda: os.environ["SSL_CERT_FILE"])
attempt("not set", lambda: os.environ["CURL_CA_BUNDLE"])
"#,
    );
    assert_eq!(seen.done("set"), "/nothing/here");
    assert_eq!(seen.done("not set"), "/etc/ssl/certs/ca-certificates.crt");
    // Where nothing is opened, there is nothing of it.
    let plain = inside(
        world,
        &["--allow", "api.opened.example.net"],
        r#"
attempt("variables", lambda: [name for name in os.environ if "CERT" in name or "CA_" in name])
attempt("file", lambda: os.path.exists("/etc/ssl/certs/offleash.pem"))
"#,
    );
    assert_eq!(plain.done("variables"), "[]");
    assert_eq!(plain.done("file"), "False");
}

#[test]
fn node_and_java_trust_it() {
    let Some(world) = world() else { return };
    let node = has("node").then_some(
        r#"
script = """
fetch("https://api.opened.example.net/v1/node", {method: "POST", body: "hello"}).then(async (answer) => {
  console.log(answer.status, JSON.parse(await answer.text()).bytes);
}, (failure) => console.log(failure, failure.cause));
"""
attempt("node", lambda: subprocess.run(["node", "-e", script], capture_output=True, text=True, timeout=60).stdout.strip())
"#,
    );
    let java = (has("java") && Path::new("/etc/ssl/certs/java/cacerts").exists()).then_some(
        r#"
source = """
import java.net.*; import java.net.http.*;
public class Ask {
  public static void main(String[] arguments) throws Exception {
    for (var version : HttpClient.Version.values()) {
      var client = HttpClient.newBuilder().version(version).build();
      var request = HttpRequest.newBuilder(URI.create("https://api.opened.example.net/v1/java")).build();
      var answer = client.send(request, HttpResponse.BodyHandlers.ofString());
      System.out.println(answer.version() + " " + answer.statusCode());
    }
  }
}
"""
with open("/tmp/Ask.java", "w") as file:
    file.write(source)
attempt("java", lambda: (lambda done: done.stdout.strip() + done.stderr.strip())(
    subprocess.run(["java", "/tmp/Ask.java"], capture_output=True, text=True, timeout=300)))
"#,
    );
    let attempts = [node, java].into_iter().flatten().collect::<String>();
    if attempts.is_empty() {
        return;
    }
    let seen = inside(world, &FLAGS, &attempts);
    if node.is_some() {
        assert_eq!(seen.done("node"), "200 5");
    }
    // A runtime without its compiler cannot run sources.
    if java.is_some() && !seen.done("java").contains("ModuleNotFound") && !seen.done("java").contains("jdk.compiler") {
        assert_eq!(seen.done("java"), "HTTP_1_1 200\nHTTP_2 200");
    }
}

#[test]
fn requests_in_the_clear_and_through_the_proxy_are_judged_alike() {
    let Some(world) = world() else { return };
    let flags = ["--allow-method", "GET www.example.com/v1/*"];
    let seen = inside(
        world,
        &flags,
        r#"
def clear(path, answered=200):
    connection = http.client.HTTPConnection("www.example.com", timeout=TIMEOUT)
    connection.request("GET", path)
    return told(connection.getresponse(), answered)
attempt("clear", clear, "/v1/clear")
attempt("clear refused", clear, "/not-clear", 403)

def proxied(path, answered=200):
    connection = http.client.HTTPConnection("127.0.0.1", 1, timeout=TIMEOUT)
    connection.request("GET", "http://www.example.com" + path)
    return told(connection.getresponse(), answered)
attempt("proxied", proxied, "/v1/proxied")
attempt("proxied refused", proxied, "/not-clear", 403)
"#,
    );
    seen.all_done();
    assert!(seen.done("clear refused").contains("www.example.com/v1/*"));
    let met: Value = serde_json::from_str(seen.done("proxied")).unwrap();
    assert!(
        met["head"].as_str().unwrap().starts_with("GET /v1/proxied HTTP/1.1"),
        "{met}"
    );
    let tunnelled = inside(
        world,
        &FLAGS,
        r#"
def tunnelled(path, answered=200):
    connection = http.client.HTTPSConnection("127.0.0.1", 1, timeout=TIMEOUT, context=ssl.create_default_context())
    connection.set_tunnel(API, 443)
    connection.request("GET", path)
    return told(connection.getresponse(), answered)
attempt("tunnelled", tunnelled, "/v1/tunnelled")
attempt("tunnelled refused", tunnelled, "/not-clear", 403)
"#,
    );
    tunnelled.all_done();
    let leaked = world
        .met()
        .into_iter()
        .find(|entry| entry.to_string().contains("not-clear"));
    assert!(leaked.is_none(), "{leaked:?}");
}

#[test]
fn an_authority_that_cannot_be_read_keeps_the_sandbox_from_being_made() {
    let Some(world) = world() else { return };
    let site = Site::new();
    let mut run = command(world, &site, &FLAGS, "");
    run.env("SSL_CERT_FILE", "/nothing/here.pem");
    let output = finish(start(&mut run));
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(125), "{errors}");
    assert!(errors.contains("/nothing/here.pem"), "{errors}");
    // Where nothing is opened, it is not needed.
    let mut run = command(world, &site, &["--allow", "api.opened.example.net"], "");
    run.env("SSL_CERT_FILE", "/nothing/here.pem");
    assert_eq!(Seen::of_output(&finish(start(&mut run))).record["exit_code"], 0);
}

#[test]
fn explain_says_what_is_opened() {
    let Some(world) = world() else { return };
    let site = Site::new();
    let explained = |target: &str| {
        let mut arguments = vec!["explain", "connect", target];
        arguments.extend(FLAGS);
        let output = finish(start(&mut world.offleash(&site, &arguments)));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let opened = explained("api.opened.example.net:443");
    assert!(opened.contains("TLS is opened by the gateway"), "{opened}");
    assert!(
        opened.contains("network.methods: GET,POST api.opened.example.net/v1/*"),
        "{opened}"
    );
    let refused = explained("api.opened.example.net:8443");
    assert!(!refused.contains("opened by the gateway"), "{refused}");
}
