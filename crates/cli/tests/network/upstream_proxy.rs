//! The proxy of somebody's network, through which everything goes: Debian's tinyproxy, on a machine of the internet.

use crate::support::processes::{finish, program, start};
use crate::support::{Site, skip, stderr};
use crate::world::{Seen, World, is_from_host, world};

const OPEN: &str = "http://172.16.0.10:3128";
const CLOSED: &str = "http://me:s3cret@172.16.0.10:3129";

/// The internet with its proxies, or a counted skip.
fn proxied_world() -> Option<&'static World> {
    let world = world()?;
    if program("tinyproxy").is_none() {
        skip("`tinyproxy` is missing");
        return None;
    }
    Some(world)
}

#[test]
fn everything_goes_through_the_proxy_which_alone_resolves_names() {
    let Some(world) = proxied_world() else { return };
    let flags = [
        "--upstream-proxy",
        OPEN,
        "--allow",
        "*.wild.example.org:7,80,443",
        "--allow",
        "www.example.com",
        "--allow",
        "93.184.216.35:80",
    ];
    let seen = world.inside(
        &flags,
        r#"
attempt("http", get, "proxied-a.wild.example.org")
attempt("raw", echoed, "proxied-b.wild.example.org")
attempt("https", get_secure, "www.example.com", authority="certificate")
attempt("address", get, "93.184.216.35")
def big():
    with dial("proxied-c.wild.example.org", 80) as connection:
        connection.sendall(b"GET /big/3000000 HTTP/1.1\r\nHost: proxied-c.wild.example.org\r\n\r\n")
        return len(response(connection)[1])
attempt("big", big)
"#,
    );
    seen.all_done();
    assert_eq!(seen.done("big"), "3000000");
    for name in ["proxied-a.wild.example.org", "proxied-b.wild.example.org"] {
        let connection = seen.connection(name);
        assert_eq!(connection["verdict"], "allowed", "{connection:#}");
        assert_eq!(connection["address"], serde_json::Value::Null);
        let questions: Vec<_> = world.met().into_iter().filter(|entry| entry["name"] == name).collect();
        assert!(!questions.is_empty(), "the control: the proxy asks");
        assert!(!questions.iter().any(is_from_host), "{questions:#?}");
    }
    assert_eq!(seen.connection("93.184.216.35")["address"], "93.184.216.35");
}

#[test]
fn n3_n8_what_is_refused_without_a_proxy_is_refused_before_it() {
    let Some(world) = proxied_world() else { return };
    let flags = [
        "--upstream-proxy",
        OPEN,
        "--allow",
        "www.example.com",
        "--allow",
        "0.0.0.0/1:7",
        "--allow",
        "x.localhost:7",
    ];
    let seen = world.inside(
        &flags,
        r#"
attempt("the control", get_secure, "www.example.com")
attempt("private", echoed, "10.0.0.5")
attempt("loopback", echoed, "127.0.0.1")
attempt("the proxy's own", echoed, "x.localhost")
attempt("SNI", get_secure, "www.example.com", sni="secret.example.com")
attempt("Host", get, "www.example.com", asked="secret.example.com")
attempt("name", get, "upstream.unheard.example")
"#,
    );
    seen.all_refused_but(&["the control"]);
    assert_eq!(seen.connection("10.0.0.5")["verdict"], "refused");
    assert_eq!(seen.connection("x.localhost")["verdict"], "refused");
    world.assert_never_asked("unheard.example");
}

#[test]
fn hosts_that_are_named_are_reached_without_it() {
    let Some(world) = proxied_world() else { return };
    let attempts = r#"
attempt("direct", get, "www.example.com")
attempt("through", get, "api.example.com")
"#;
    let flags = [
        "--allow",
        "*.example.com",
        "--upstream-proxy",
        OPEN,
        "--no-proxy",
        "www.example.com",
    ];
    let seen = world.inside(&flags, attempts);
    seen.all_done();
    assert_eq!(seen.connection("www.example.com")["address"], "93.184.216.34");
    assert_eq!(seen.connection("api.example.com")["address"], serde_json::Value::Null);
    // The same from the environment, when that is asked for.
    let site = Site::new();
    let run = |flags: &[&str]| {
        let mut command = world.sandboxed(&site, flags, attempts);
        command
            .env("HTTPS_PROXY", OPEN)
            .env("NO_PROXY", "localhost,.www.example.com");
        Seen::of_output(&finish(start(&mut command)))
    };
    let seen = run(&["--allow", "*.example.com", "--upstream-proxy", "env"]);
    assert_eq!(seen.connection("www.example.com")["address"], "93.184.216.34");
    assert_eq!(seen.connection("api.example.com")["address"], serde_json::Value::Null);
    let seen = run(&["--allow", "*.example.com"]);
    assert_eq!(seen.connection("api.example.com")["address"], "151.101.0.223");
}

#[test]
fn k4_the_password_for_the_proxy_is_used_and_shown_nowhere() {
    let Some(world) = proxied_world() else { return };
    let site = Site::new();
    let file = site.root().join("proxy");
    std::fs::write(&file, format!("{CLOSED}\n")).unwrap();
    let file = format!("file:{}", file.display());
    let attempts = r#"
attempt("page", get, "www.example.com")
attempt("environment", lambda: "s3" + "cret" in str(os.environ))
attempt("other", get, "nothing.example.com")
"#;
    for source in [file.as_str(), "env:CORPORATE"] {
        let flags = ["--allow", "*.example.com", "--upstream-proxy", source];
        let mut command = world.sandboxed(&site, &flags, attempts);
        command.env("CORPORATE", CLOSED);
        let output = finish(start(&mut command));
        let seen = Seen::of_output(&output);
        seen.done("page");
        assert_eq!(seen.done("environment"), "False");
        seen.refused("other");
        let log = finish(start(&mut world.offleash(&site, &["audit", "show"])));
        assert!(String::from_utf8_lossy(&log.stdout).contains("www.example.com"));
        for text in [&output.stdout, &output.stderr, &log.stdout, &log.stderr] {
            let text = String::from_utf8_lossy(text);
            assert!(!text.contains("s3cret") && !text.contains("bWU6czNjcmV0"), "{text}");
        }
    }
}

#[test]
fn a_proxy_that_does_not_do_its_work_is_a_failure_that_names_the_flag() {
    let Some(world) = proxied_world() else { return };
    for (proxy, port, reason) in [
        (
            "http://172.16.0.10:3129",
            80,
            "wants a name and a password that it knows (407)",
        ),
        // It makes tunnels to certain ports alone.
        (OPEN, 8080, "does not allow it (403)"),
        ("http://172.16.0.10:26", 80, "cannot be reached"),
        ("http://172.16.0.10:22", 80, "does not answer as a proxy does"),
        ("http://172.16.0.10:10", 80, "hung up"),
        (
            "http://nobody.example.net:3128",
            80,
            "has a name that cannot be resolved",
        ),
    ] {
        let seen = world.inside(
            &["--allow", "www.example.com:80,8080", "--upstream-proxy", proxy],
            &format!(r#"attempt("page", get, "www.example.com", {port})"#),
        );
        let told = seen.refused("page");
        if port == 80 {
            assert!(told.contains("502 Bad Gateway"), "{told}");
            assert!(told.contains("the proxy of `--upstream-proxy`"), "{told}");
        }
        let connection = seen.connection("www.example.com");
        assert_eq!(connection["verdict"], "failed", "{connection:#}");
        let recorded = connection["reason"].as_str().unwrap();
        assert!(recorded.contains(reason), "{recorded}");
        assert_eq!(connection["address"], serde_json::Value::Null);
    }
}

/// It takes half a minute.
#[test]
fn n12_a_proxy_that_stays_silent_is_given_up() {
    let Some(world) = world() else { return };
    let seen = world.inside(
        &[
            "--allow",
            "www.example.com:80",
            "--upstream-proxy",
            "http://172.16.0.10:11",
        ],
        "TIMEOUT = 80\nattempt(\"page\", get, \"www.example.com\")",
    );
    assert!(
        seen.refused("page").contains("502 Bad Gateway"),
        "{}",
        seen.refused("page")
    );
    let connection = seen.connection("www.example.com");
    assert_eq!(connection["verdict"], "failed", "{connection:#}");
    let reason = connection["reason"].as_str().unwrap();
    assert!(
        reason.contains("the proxy of `--upstream-proxy` took too long to answer"),
        "{reason}"
    );
}

#[test]
fn a_proxy_that_cannot_be_used_is_refused_before_anything_runs() {
    let site = Site::new();
    let refused = |flags: &[&str], variables: &[(&str, &str)]| {
        let arguments = [&["run", "--allow", "example.com"], flags, &["--", "/bin/true"]].concat();
        let mut command = site.offleash(&arguments);
        command.envs(variables.iter().copied());
        let output = finish(start(&mut command));
        assert!(!output.status.success(), "{flags:?}");
        assert!(!stderr(&output).contains("s3cret"), "{}", stderr(&output));
        stderr(&output)
    };
    for (flags, variables, reason) in [
        (
            &["--upstream-proxy", CLOSED][..],
            &[][..],
            "a user name or a password would stand where others can read it",
        ),
        (
            &["--upstream-proxy", "socks4://127.0.0.1:1080"],
            &[],
            "an upstream proxy by `socks4` is not supported",
        ),
        (
            &["--upstream-proxy", "http://127.0.0.1:0"],
            &[],
            "is not a number from 1 to 65535",
        ),
        (&["--upstream-proxy", "env"], &[], "HTTPS_PROXY is not set"),
        (&["--upstream-proxy", "env:CORPORATE"], &[], "that variable is not set"),
        (
            &["--upstream-proxy", "env:CORPORATE"],
            &[("CORPORATE", "http://me:s3cret@:1")],
            "the host of the upstream proxy",
        ),
        (
            &["--upstream-proxy", "file:/nowhere/proxy"],
            &[],
            "the upstream proxy is to be read from file:/nowhere/proxy",
        ),
        (
            &["--upstream-proxy", "env", "--no-proxy", "*"],
            &[],
            "`*` would mean every host",
        ),
    ] {
        let told = refused(flags, variables);
        assert!(told.contains(reason), "{told}");
    }
    // A policy that lies in the workspace may not say through whom everything goes.
    site.write(
        "offleash.toml",
        "[network]\nupstream_proxy = \"http://evil.example:1\"\n",
    );
    assert!(refused(&[], &[]).contains("network.upstream_proxy"));
}
