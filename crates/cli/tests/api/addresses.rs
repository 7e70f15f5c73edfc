//! By which names the server may be called, and by whose pages (A12).

use crate::client::{ask, exchange, parse};
use crate::server::{QUIET, Server};

#[test]
fn a12_a_name_that_points_here_is_not_ours() {
    let server = Server::start_with(QUIET, &["--domain", "box.test:9000"]);
    let port = server.address.port();
    let key = server.key(&[]);
    let status = |host: &str| {
        ask(
            server.address,
            "GET /sandboxes",
            &[("Host", host), ("X-API-KEY", &key)],
            "",
        )
        .status
    };
    for host in [
        "localhost".to_owned(),
        format!("localhost:{port}"),
        format!("127.0.0.1:{port}"),
        format!("[::1]:{port}"),
        "api.box.test:9000".to_owned(),
        "BOX.test".to_owned(),
    ] {
        assert_eq!(status(&host), 200, "{host}");
    }
    for host in [
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "box.test.evil.example",
        "notbox.test",
        "10.0.0.1",
        "0.0.0.0",
        "2130706433",
        "é",
    ] {
        let answer = ask(server.address, "GET /healthz", &[("Host", host)], "");
        answer.assert_refused(421);
    }
}

#[test]
fn a12_nor_is_one_among_the_headers_of_a_sandbox() {
    let server = Server::start();
    let head = [
        ("Host", "evil.example"),
        ("E2b-Sandbox-Id", "i1"),
        ("E2b-Sandbox-Port", "80"),
    ];
    ask(server.address, "GET /", &head, "").assert_refused(421);
    ask(server.address, "GET /_port/i1/80/", &[("Host", "evil.example")], "").assert_refused(421);
}

#[test]
fn a12_pages_of_others_may_not_call() {
    let server = Server::start_with(QUIET, &["--allow-origin", "https://app.example"]);
    let key = server.key(&[]);
    let own = format!("http://{}", server.address);
    let status = |origin: &str| {
        ask(
            server.address,
            "GET /sandboxes",
            &[("Origin", origin), ("X-API-KEY", &key)],
            "",
        )
        .status
    };
    assert_eq!(status(&own), 200);
    assert_eq!(status("https://app.example"), 200);
    for origin in [
        "null",
        "http://evil.example",
        "https://app.example.evil",
        "http://localhost",
        "https://127.0.0.1",
    ] {
        assert_eq!(status(origin), 403, "{origin}");
    }
    let head = [("Origin", "http://evil.example"), ("E2b-Sandbox-Id", "i1")];
    ask(server.address, "GET /health", &head, "").assert_refused(403);
}

#[test]
fn a12_pages_of_a_sandbox_are_not_ours() {
    let flags = [
        "--domain",
        "localhost:9000",
        "--allow-origin",
        "http://8000-i3.localhost:9000",
    ];
    let server = Server::start_with(QUIET, &flags);
    let status = |line: &str, host: &str, fields: &[(&str, &str)]| {
        let mut head = vec![("Host", host)];
        head.extend_from_slice(fields);
        ask(server.address, line, &head, "").status
    };
    let host = "8000-i1.localhost:9000";
    let own = ("Origin", "http://8000-i1.localhost:9000");
    let key = ("X-API-KEY", "k");
    let (services, code) = (("E2b-Sandbox-Port", "49983"), ("E2b-Sandbox-Port", "49999"));
    let (other, same) = (("E2b-Sandbox-Id", "i2"), ("E2b-Sandbox-Id", "i1"));
    for (line, fields, expected) in [
        // To another sandbox, with what a browser says of the page and without.
        ("GET /_port/i2/49999/contexts", &[][..], 400),
        ("POST /_port/i2/49999/contexts", &[own], 400),
        ("GET /_port/i2/8000/", &[], 400),
        ("GET /files?path=/tmp/u", &[other], 400),
        ("GET /files?path=/tmp/u", &[other, own], 400),
        // To the services of its own: no sandbox is there, which only those hear who may ask.
        ("POST /_port/i1/49999/contexts", &[own], 403),
        ("POST /contexts", &[same, code, own], 403),
        ("GET /files?path=/tmp/u", &[same, services, own], 403),
        ("GET /files?path=/tmp/u", &[same, services], 502),
        ("GET /", &[own, key], 502),
    ] {
        assert_eq!(status(line, host, fields), expected, "{line} {fields:?}");
    }
    for host in ["49983-i1.localhost:9000", "49999-i1.localhost:9000"] {
        let page = format!("http://{host}");
        assert_eq!(status("GET /contexts", host, &[("Origin", &page)]), 403, "{host}");
        assert_eq!(status("GET /contexts", host, &[]), 502, "{host}");
    }
    // One that was allowed may, but not by the name of another sandbox.
    let allowed = ("Origin", "http://8000-i3.localhost:9000");
    assert_eq!(status("GET /health", "49983-i1.localhost:9000", &[allowed]), 502);
    // Below the name of the server all are reached.
    let page = ("Origin", "http://localhost:9000");
    assert_eq!(status("GET /health", "localhost:9000", &[other, page]), 502);
}

#[test]
fn a12_pages_that_were_allowed_are_told_so_and_no_others() {
    let server = Server::start_with(QUIET, &["--allow-origin", "https://app.example"]);
    let key = server.key(&[]);
    let page = ("Origin", "https://app.example");
    let asking = |route: &str, origin, fields: &[(&str, &str)]| {
        let mut head = vec![("Origin", origin)];
        head.extend_from_slice(fields);
        ask(server.address, route, &head, "")
    };
    let preflight = [
        ("Access-Control-Request-Method", "POST"),
        ("Access-Control-Request-Headers", "x-api-key,content-type"),
    ];
    for route in ["OPTIONS /v2/sandboxes", "OPTIONS /v1/run", "OPTIONS /nowhere"] {
        let told = asking(route, page.1, &preflight);
        assert_eq!(told.status, 204, "{told:?}");
        assert_eq!(told.header("access-control-allow-origin"), Some(page.1));
        assert_eq!(
            told.header("access-control-allow-headers"),
            Some("x-api-key,content-type")
        );
        assert!(told.header("access-control-allow-methods").unwrap().contains("DELETE"));
        assert_eq!(told.header("access-control-allow-credentials"), None);
    }
    // Of services too, whatever sandbox it is: no token is sent with the question.
    let services = [&preflight[..], &[("E2b-Sandbox-Id", "i1")]].concat();
    let told = asking("OPTIONS /files", page.1, &services);
    assert_eq!(
        (told.status, told.header("access-control-allow-origin")),
        (204, Some(page.1))
    );
    for (fields, status) in [(&[("X-API-KEY", key.as_str())][..], 200), (&[], 401)] {
        let told = asking("GET /sandboxes", page.1, fields);
        assert_eq!(
            (told.status, told.header("access-control-allow-origin")),
            (status, Some(page.1))
        );
        assert_eq!(told.header("vary"), Some("origin"));
    }
    for origin in ["https://other.example", "null"] {
        let told = asking("OPTIONS /v2/sandboxes", origin, &preflight);
        assert_eq!(
            (told.status, told.header("access-control-allow-origin")),
            (403, None),
            "{told:?}"
        );
    }
    let own = format!("http://{}", server.address);
    let told = asking("GET /sandboxes", &own, &[("X-API-KEY", &key)]);
    assert_eq!((told.status, told.header("access-control-allow-origin")), (200, None));
}

#[test]
fn numbers_are_not_passed_on_by_a_proxy_in_front() {
    let server = Server::start_with(QUIET, &["--domain", "box.test:9000"]);
    let metrics = |head: &[(&str, &str)]| ask(server.address, "GET /metrics", head, "");
    assert_eq!(metrics(&[]).status, 200);
    for head in [
        ("X-Forwarded-For", "192.0.2.1"),
        ("Forwarded", "for=192.0.2.1"),
        ("Via", "1.1 proxy"),
        ("Host", "api.box.test:9000"),
    ] {
        metrics(&[head]).assert_refused(401);
    }
    let old = format!("GET /metrics HTTP/1.0\r\nHost: {}\r\n\r\n", server.address);
    parse(&exchange(server.address, old.as_bytes())).assert_refused(401);
    let admin = server.key(&["--scope", "admin"]);
    let passed_on = metrics(&[("X-Forwarded-For", "192.0.2.1"), ("X-API-KEY", &admin)]);
    assert_eq!(passed_on.status, 200, "{passed_on:?}");
    let strict = Server::start_with(&format!("metrics_need_key = true\n{QUIET}"), &[]);
    ask(strict.address, "GET /metrics", &[], "").assert_refused(401);
}

#[test]
fn an_address_that_others_reach_is_refused_without_tls() {
    let site = crate::support::Site::new();
    let told = site.refuse(["serve", "--listen", "0.0.0.0:0"]);
    assert!(
        told.contains("--tls-cert") && told.contains("--insecure-public"),
        "{told}"
    );
    let config = site.write("serve.toml", QUIET);
    let mut command = site.offleash(["serve", "--listen", "0.0.0.0:0", "--insecure-public", "--config"]);
    command.arg(config);
    let server = Server::spawned(site, command);
    assert!(server.address.ip().is_loopback(), "{}", server.address);
    let answer = ask(server.address, "GET /healthz", &[("Host", "any.example")], "");
    assert_eq!(answer.status, 204);
    // Watchers elsewhere need a key.
    ask(server.address, "GET /metrics", &[], "").assert_refused(401);
}
