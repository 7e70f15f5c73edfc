//! What is said on a connection: it must be for the host that the connection was made to, request by request.

use crate::world::{World, times, world};

const ALLOWED: [&str; 4] = ["--allow", "www.example.com", "--allow", "www.example.com:8080"];

/// Asserts that no request with `word` in it, and no TLS greeting with it, came to a server.
#[track_caller]
fn assert_never_said(world: &World, word: &str) {
    let heard = world.met().into_iter().find(|entry| {
        let said = |field: &str| entry[field].as_str().unwrap_or_default().contains(word);
        said("head") || said("greeting")
    });
    assert!(heard.is_none(), "{heard:?}");
}

#[test]
fn n8_the_name_in_the_greeting_of_tls_is_the_one_that_was_connected_to() {
    let Some(world) = world() else { return };
    let attempts = r#"
attempt("other name", get_secure, "www.example.com", sni="tls-fronted.example.com")
attempt("no name", get_secure, "www.example.com", sni=None)
attempt("address as name", get_secure, "www.example.com", sni="93.184.216.34")
attempt("raw bytes", echoed, "www.example.com", 443, b"SSH-2.0-x\r\n")
attempt("HTTP on 443", page, "www.example.com", "GET / HTTP/1.1\r\nHost: www.example.com\r\n\r\n", 443)
"#;
    world
        .outside(r#"attempt("other name", get_secure, "www.example.com", sni="control.example.com")"#)
        .all_done();
    let seen = world.inside(&ALLOWED, attempts);
    seen.all_refused();
    let reasons: Vec<_> = seen
        .connections("www.example.com")
        .iter()
        .map(|one| one["reason"].as_str().unwrap_or_default().to_owned())
        .collect();
    assert!(reasons[0].contains("names `tls-fronted.example.com`"), "{reasons:#?}");
    assert!(reasons[1].contains("names no server"), "{reasons:#?}");
    assert!(reasons[2].contains("it is not TLS"), "{reasons:#?}");
    assert_never_said(world, "tls-fronted");
    // Any other port has no protocol of its own; TLS that is seen there is looked at.
    let odd = world.inside(
        &["--allow", "www.example.com:8443"],
        r#"
attempt("right", get_secure, "www.example.com", 8443)
attempt("wrong", get_secure, "www.example.com", 8443, sni="odd-fronted.example.com")
"#,
    );
    odd.done("right");
    odd.refused("wrong");
    assert_never_said(world, "odd-fronted");
}

#[test]
fn n8_every_way_to_name_another_host_in_a_request_is_refused() {
    let Some(world) = world() else { return };
    let attempts = r#"
requests = {
    "Host": "GET / HTTP/1.1\r\nHost: n8-other.example.com\r\n\r\n",
    "URI": "GET http://n8-other.example.com/ HTTP/1.1\r\nHost: www.example.com\r\n\r\n",
    "Host beside URI": "GET http://www.example.com/ HTTP/1.1\r\nHost: n8-other.example.com\r\n\r\n",
    "two": "GET / HTTP/1.1\r\nHost: www.example.com\r\nHost: n8-other.example.com\r\n\r\n",
    "list": "GET / HTTP/1.1\r\nHost: www.example.com, n8-other.example.com\r\n\r\n",
    "userinfo": "GET / HTTP/1.1\r\nHost: www.example.com@n8-other.example.com\r\n\r\n",
    "none": "GET /n8-other HTTP/1.1\r\n\r\n",
    "folded": "GET / HTTP/1.1\r\nHost: www.example.com\r\n n8-other.example.com\r\n\r\n",
    "space before colon": "GET / HTTP/1.1\r\nHost: www.example.com\r\nHost : n8-other.example.com\r\n\r\n",
    "bare line feeds": "GET / HTTP/1.1\nHost: n8-other.example.com\n\n",
    "bare return": "GET / HTTP/1.1\r\nHost: www.example.com\r\nA: b\rHost: n8-other.example.com\r\n\r\n",
    "NUL": "GET / HTTP/1.1\r\nHost: www.example.com\0n8-other.example.com\r\n\r\n",
    "CONNECT": "CONNECT n8-other.example.com:443 HTTP/1.1\r\nHost: n8-other.example.com:443\r\n\r\n",
    "CONNECT here": "CONNECT www.example.com:80 HTTP/1.1\r\nHost: www.example.com\r\nA: n8-other\r\n\r\n",
    "HTTP/1.0": "GET / HTTP/1.0\r\nHost: n8-other.example.com\r\n\r\n",
    "HTTP/2": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nn8-other",
    "HTTP/0.9": "GET /n8-other\r\n\r\n",
    "other port": "GET / HTTP/1.1\r\nHost: www.example.com:81\r\nA: n8-other\r\n\r\n",
    "SOCKS5": "\5\1\0n8-other",
    "SOCKS4": "\4\1\0\x50\x0a\0\0\5n8-other\0",
    "line feed first": "\nGET / HTTP/1.1\r\nHost: n8-other.example.com\r\n\r\n",
}
for name, request in requests.items():
    attempt(name, page, "www.example.com", request)
"#;
    let control = r#"attempt("Host", page, "www.example.com", "GET / HTTP/1.1\r\nHost: control.example.com\r\n\r\n")"#;
    world.outside(control).all_done();
    let seen = world.inside(&ALLOWED, attempts);
    seen.all_refused();
    assert!(
        seen.refused("Host").contains("403 Forbidden"),
        "{}",
        seen.refused("Host")
    );
    assert_eq!(times(seen.connections("www.example.com")), 21);
    let allowed = seen
        .connections("www.example.com")
        .iter()
        .any(|one| one["verdict"] == "allowed");
    assert!(!allowed, "{:#}", seen.record["network"]);
    assert_never_said(world, "n8-other");
}

#[test]
fn n8_requests_on_other_ports_are_looked_at_when_they_look_like_http() {
    let Some(world) = world() else { return };
    let seen = world.inside(
        &ALLOWED,
        r#"
attempt("right", get, "www.example.com", 8080)
attempt("URI", page, "www.example.com", "GET http://www.example.com:8080/ HTTP/1.1\r\nHost: www.example.com:8080\r\n\r\n", 8080)
"#,
    );
    seen.all_done();
    let wrong = world.inside(
        &ALLOWED,
        r#"
attempt("Host", page, "www.example.com", "GET / HTTP/1.1\r\nHost: odd-port.example.com:8080\r\n\r\n", 8080)
attempt("port", page, "www.example.com", "GET / HTTP/1.1\r\nHost: www.example.com\r\nA: odd-port\r\n\r\n", 8080)
def slowly():
    with dial("www.example.com", 8080) as connection:
        for part in ["G", "E", "T / HTTP/1.1\r\nHo", "st: odd-port.example.com:8080\r\n\r\n"]:
            connection.sendall(part.encode())
            time.sleep(0.02)
        return response(connection)
attempt("slowly", slowly)
"#,
    );
    wrong.all_refused();
    assert_never_said(world, "odd-port");
}

#[test]
fn n9_the_second_request_of_a_connection_is_judged_like_the_first() {
    let Some(world) = world() else { return };
    let two = r#"
def two(first, second, together):
    with dial("www.example.com", 80) as connection:
        head = "GET / HTTP/1.1\r\nHost: %s\r\nA: n9-kept\r\n\r\n"
        if together:
            connection.sendall((head % first + head % second).encode())
        else:
            connection.sendall((head % first).encode())
            response(connection)
            connection.sendall((head % second).encode())
        answers = b""
        while answers.count(b"200 OK") < (2 if together else 1):
            read = connection.recv(1 << 16)
            if not read:
                raise Ended("after %d answers" % answers.count(b"200 OK"))
            answers += read
        return answers.count(b"n9-kept")
"#;
    let right = r#"
attempt("one after the other", two, "www.example.com", "WWW.example.com", False)
attempt("pipelined", two, "www.example.com", "www.example.com:80", True)
"#;
    world.inside(&ALLOWED, &format!("{two}{right}")).all_done();
    let wrong = r#"
attempt("one after the other", two, "www.example.com", "n9-second.example.com", False)
attempt("pipelined", two, "www.example.com", "n9-second.example.com", True)
"#;
    let seen = world.inside(&ALLOWED, &format!("{two}{wrong}"));
    seen.all_refused();
    for connection in seen.connections("www.example.com") {
        assert_eq!(connection["verdict"], "refused", "{connection:#}");
        assert!(
            connection["reason"].as_str().unwrap().contains("n9-second.example.com"),
            "{connection:#}"
        );
    }
    assert_never_said(world, "n9-second");
}

#[test]
fn n9_requests_that_two_servers_would_read_differently_are_refused() {
    let Some(world) = world() else { return };
    let attempts = r#"
inner = "GET /n9-smuggled HTTP/1.1\r\nHost: n9-smuggled.example.com\r\n\r\n"
size = len(inner)
post = "POST / HTTP/1.1\r\nHost: www.example.com\r\n"
requests = {
    "CL.TE": post + "Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" % (size + 5) + inner,
    "TE.CL": post + "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n%x\r\n" % size + inner + "\r\n0\r\n\r\n",
    "two lengths": post + "Content-Length: 0\r\nContent-Length: %d\r\n\r\n" % size + inner,
    "list of lengths": post + "Content-Length: 0, %d\r\n\r\n" % size + inner,
    "signed": post + "Content-Length: +%d\r\n\r\n" % size + inner,
    "odd coding": post + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + inner,
    "two codings": post + "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + inner,
    "coding after tab": post + "Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n" + inner,
    "coding in HTTP/1.0": post.replace("1.1", "1.0") + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + inner,
    "folded": post + "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n" + inner,
    "bare line feeds in chunks": post + "Transfer-Encoding: chunked\r\n\r\n1\nA\n0\n\n" + inner,
    "after the end": post + "Content-Length: 0\r\n\r\n" + inner,
}
def smuggle(request):
    with dial("www.example.com", 80) as connection:
        connection.sendall(request.encode("latin-1"))
        answers = b""
        while read := connection.recv(1 << 16):
            answers += read
            if b"smuggled" in answers and b"offleash: " not in answers:
                return answers
        raise Refused(str(answers))
for name, request in requests.items():
    attempt(name, smuggle, request)
"#;
    let seen = world.inside(&ALLOWED, attempts);
    seen.all_refused();
    for connection in seen.connections("www.example.com") {
        assert_eq!(connection["verdict"], "refused", "{connection:#}");
    }
    // A body is a body, whatever it looks like.
    let seen = world.inside(
        &ALLOWED,
        r#"
inner = "GET /within HTTP/1.1\r\nHost: other.example.com\r\n\r\n"
attempt("body", page, "www.example.com", "POST / HTTP/1.1\r\nHost: www.example.com\r\nContent-Length: %d\r\n\r\n" % len(inner) + inner)
"#,
    );
    seen.all_done();
    assert_never_said(world, "n9-smuggled");
}

#[test]
fn n9_a_websocket_is_carried_and_other_protocols_are_left_out_of_requests() {
    let Some(world) = world() else { return };
    let seen = world.inside(
        &ALLOWED,
        r#"
head = "GET / HTTP/1.1\r\nHost: www.example.com\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n"
def upgraded(host):
    with dial("www.example.com", 80) as connection:
        connection.sendall((head % "websocket").encode())
        answer = connection.recv(1 << 16)
        connection.sendall(b"\x81\x05frame")
        return answer.split(b"\r\n")[0] + connection.recv(100)
attempt("websocket", upgraded, "www.example.com")
def asked(protocol):
    with dial("www.example.com", 80) as connection:
        return say(connection, head % protocol)
attempt("h2c", asked, "h2c")
def late():
    with dial("www.example.com", 80) as connection:
        say(connection, "GET / HTTP/1.1\r\nHost: www.example.com\r\n\r\n")
        connection.sendall((head % "websocket").encode())
        if not connection.recv(100):
            raise Ended("no upgrade")
attempt("late", late)
"#,
    );
    assert_eq!(
        seen.done("websocket"),
        r"b'HTTP/1.1 101 Switching Protocols\x81\x05frame'"
    );
    assert!(!seen.done("h2c").contains("h2c"), "{}", seen.done("h2c"));
    seen.refused("late");
}

#[test]
fn n10_redirects_are_the_client_s_to_follow() {
    let Some(world) = world() else { return };
    let seen = world.inside(
        &ALLOWED,
        r#"
attempt("redirect", page, "www.example.com", "GET /redirect/10.0.0.5 HTTP/1.1\r\nHost: www.example.com\r\n\r\n")
attempt("follow", get, "10.0.0.5")
"#,
    );
    assert_eq!(seen.done("redirect"), "HTTP/1.1 302 Found");
    seen.refused("follow");
    world.assert_untouched("10.0.0.5");
}

#[test]
fn n12_heads_and_greetings_that_have_no_end_are_refused() {
    let Some(world) = world() else { return };
    let seen = world.inside(
        &ALLOWED,
        r#"
def endless(first, more, port):
    with dial("www.example.com", port) as connection:
        connection.sendall(first)
        for _ in range(300):
            connection.sendall(more)
        return response(connection)
attempt("request", endless, b"GET / HTTP/1.1\r\nHost: www.example.com\r\n", b"A: n12-endless%s\r\n" % (b"a" * 1000), 80)
attempt("line", endless, b"GET /n12-endless", b"a" * 1000, 80)
attempt("greeting", endless, b"\x16\3\1\x40\0\1\xff\xff\xff" + b"a" * 16380, b"\x16\3\1\x40\0" + b"a" * 16384, 443)
"#,
    );
    seen.all_refused();
    assert_never_said(world, "n12-endless");
}
