//! Bodies that are too much, too deep, too slow or not what they say (A9).

use std::io::Write as _;

use crate::client::{Answer, connect, exchange, finish_sending, parse, read_all};
use crate::server::Server;

fn with_head(server: &Server, key: &str, head: &str) -> String {
    format!(
        "POST /v2/sandboxes HTTP/1.1\r\nHost: {}\r\nX-API-KEY: {key}\r\nConnection: close\r\n{head}\r\n",
        server.address
    )
}

fn posted(server: &Server, key: &str, body: &str) -> Answer {
    server.ask(key, "POST /v2/sandboxes", body)
}

#[test]
fn a9_what_is_announced_to_be_huge_is_refused_at_once() {
    let server = Server::start();
    let key = server.key(&[]);
    let request = with_head(&server, &key, "Content-Length: 2147483648\r\n") + "{";
    parse(&exchange(server.address, request.as_bytes())).assert_refused(413);
}

#[test]
fn a9_labels_are_bounded_by_what_lists_tell_of_them() {
    let server = Server::start();
    let key = server.key(&[]);
    let made = |text: &str, count: usize| {
        let labels = (0..count).map(|number| (number.to_string(), text.into()));
        let labels: serde_json::Map<String, serde_json::Value> = labels.collect();
        let fields = serde_json::json!({ "templateID": "base", "timeout": 120, "metadata": labels });
        posted(&server, &key, &fields.to_string())
    };
    // Characters that take six bytes in every list.
    made(&"\u{1}".repeat(30 * 1024), 4).assert_refused(400);
    // Together the answer is a large one, and whole all the same.
    let ids: Vec<serde_json::Value> = (0..2)
        .map(|_| made(&"x".repeat(30 * 1024), 2).json()["sandboxID"].clone())
        .collect();
    let listed = server.ask(&key, "GET /v1/sandboxes", "");
    assert!(
        listed.status == 200 && listed.body.len() > 120 * 1024,
        "{}",
        listed.head
    );
    assert!(ids.iter().all(|id| listed.body.contains(id.as_str().unwrap())));
}

#[test]
fn a9_who_sends_too_much_hears_so() {
    let server = Server::start();
    let key = server.key(&[]);
    let body = vec![b' '; 6 * 1024 * 1024];
    let head = with_head(&server, &key, &format!("Content-Length: {}\r\n", body.len()));
    for _ in 0..5 {
        let mut stream = connect(server.address);
        stream.write_all(head.as_bytes()).unwrap();
        // Not all at once, so that the answer is there long before the end.
        for piece in body.chunks(256 * 1024) {
            stream.write_all(piece).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        parse(&read_all(&mut stream)).assert_refused(413);
    }
}

#[test]
fn a9_a_body_that_never_ends_is_cut() {
    let server = Server::start();
    let key = server.key(&[]);
    let mut stream = connect(server.address);
    stream
        .write_all(with_head(&server, &key, "Transfer-Encoding: chunked\r\n").as_bytes())
        .unwrap();
    let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
    // Far more than is taken; the server ends it in the middle.
    let sent = (0..4096)
        .take_while(|_| stream.write_all(chunk.as_bytes()).is_ok())
        .count();
    assert!(sent < 4096, "all of it was taken");
    finish_sending(&stream);
    let answer = read_all(&mut stream);
    // Closing with chunks unread may take the answer back.
    if !answer.is_empty() {
        parse(&answer).assert_refused(413);
    }
}

#[test]
fn a9_what_is_no_json_of_the_shape_is_refused() {
    let server = Server::start();
    let key = server.key(&[]);
    let deep = format!("{{\"templateID\":\"base\",\"x\":{}", "[".repeat(10_000));
    let deep_whole = format!(
        "{{\"templateID\":\"base\",\"x\":{}{}}}",
        "[".repeat(10_000),
        "]".repeat(10_000)
    );
    for body in [
        "[]",
        "null",
        "3",
        "{",
        "{}",
        "\u{0}",
        "{\"templateID\":3}",
        "{\"templateID\":\"base\",\"templateID\":\"base\"}",
        "{\"templateID\":\"base\",\"timeout\":-1}",
        "{\"templateID\":\"base\",\"timeout\":1e308}",
        "{\"templateID\":\"base\",\"timeout\":1e999}",
        "{\"templateID\":\"base\",\"timeout\":NaN}",
        "{\"templateID\":\"base\",\"timeout\":9223372036854775808000}",
        "{\"templateID\":\"base\",\"timeout\":\"5\"}",
        "{\"templateID\":\"base\",\"timeout\":0}",
        "{\"templateID\":\"base\",\"timeout\":18446744073709551615}",
        "{\"templateID\":\"base\",\"metadata\":{\"a\":1}}",
        "{\"templateID\":\"base\",\"envVars\":{\"A=B\":\"c\"}}",
        "{\"templateID\":\"base\",\"envVars\":{\"A\":\"\\u0000\"}}",
        "{\"templateID\":\"\\ud800\"}",
        "{\"templateID\":\"base\",\"network\":{\"allowOut\":[\"a.test\"]}}",
        "{\"templateID\":\"base\",\"network\":{\"denyOut\":[\"a.test\"]}}",
        &deep,
        &deep_whole,
    ] {
        let answer = posted(&server, &key, body);
        assert_eq!(answer.status, 400, "{:?}: {answer:?}", &body[..body.len().min(80)]);
        answer.assert_refused(400);
    }
}

#[test]
fn a13_what_is_asked_of_a_sandbox_is_within_bounds_and_harms_no_helper() {
    let server = Server::start();
    let key = server.key(&[]);
    for field in ["cpus", "memory_mib", "disk_mib", "pids"] {
        for number in ["-1", "0", "9223372036854775808", "1e30", "0.5", "\"2\"", "NaN"] {
            let body = format!("{{\"limits\":{{\"{field}\":{number}}}}}");
            server.ask(&key, "POST /v1/sandboxes", &body).assert_refused(400);
        }
    }
    for body in [
        r#"{"templateID":"base","volumeMounts":[{"name":"/","path":"/host"}]}"#,
        r#"{"templateID":"base","volumeMounts":[{"name":"../..","path":"/"}]}"#,
    ] {
        let answer = posted(&server, &key, body);
        assert_eq!(answer.status, 400, "{body}: {answer:?}");
        answer.assert_silent();
    }
    for name in ["--flag", "-v", "/", "base --root /", "$(id)", "base;id"] {
        posted(&server, &key, &format!("{{\"templateID\":\"{name}\"}}")).assert_refused(404);
    }
    // Variables are for what runs inside: whoever makes the sandbox is not started with them.
    let variables =
        r#"{"LD_PRELOAD":"/nowhere.so","LD_LIBRARY_PATH":"/nowhere","PATH":"/nowhere","OFFLEASH_STATE":"/nowhere"}"#;
    let made = posted(
        &server,
        &key,
        &format!("{{\"templateID\":\"base\",\"envVars\":{variables}}}"),
    );
    assert_eq!(made.status, 201, "{made:?}");
    let id = made.json()["sandboxID"].as_str().unwrap().to_owned();
    let said = server.ask(
        &key,
        &format!("POST /v1/sandboxes/{id}/run"),
        r#"{"argv":["/bin/echo","alive"]}"#,
    );
    assert_eq!(said.json()["stdout"], "alive\n", "{said:?}");
}

#[test]
fn a9_unknown_templates_are_not_found() {
    let server = Server::start();
    let key = server.key(&[]);
    for name in ["nothing", "", "../../etc", "base\\u0000", "base:latest"] {
        let answer = posted(&server, &key, &format!("{{\"templateID\":\"{name}\"}}"));
        answer.assert_refused(404);
    }
}

#[test]
fn a9_two_requests_are_never_made_of_one() {
    let server = Server::start();
    let key = server.key(&[]);
    let inner = format!(
        "GET /v1/version HTTP/1.1\r\nHost: {}\r\nX-API-KEY: {key}\r\n\r\n",
        server.address
    );
    let heads = [
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding : chunked\r\n",
        "Content-Length: 4\r\nContent-Length: 5\r\n",
        "Content-Length: +4\r\n",
        "Content-Length: 0x4\r\n",
        "Content-Length: 4, 5\r\n",
        "Content-Length: 18446744073709551616\r\n",
        "X: a\r\n b\r\n",
        "X\u{0}: a\r\n",
        "Host: evil.example\r\n",
    ];
    for head in heads {
        let request = format!(
            "POST /v2/sandboxes HTTP/1.1\r\nHost: {}\r\nX-API-KEY: {key}\r\n{head}\r\n0\r\n\r\n{inner}",
            server.address
        );
        let mut stream = connect(server.address);
        stream.write_all(request.as_bytes()).unwrap();
        finish_sending(&stream);
        let answers = read_all(&mut stream);
        let versions = answers.matches("envd_version").count();
        assert_eq!(versions, 0, "{head:?}: {answers}");
        assert!(
            answers.is_empty() || answers.starts_with("HTTP/1.1 400") || answers.starts_with("HTTP/1.1 413"),
            "{head:?}: {answers}"
        );
    }
}

#[test]
fn a9_methods_that_are_no_business_of_ours_do_nothing() {
    let server = Server::start();
    let key = server.key(&[]);
    for line in [
        "TRACE /sandboxes",
        "CONNECT example.com:443",
        "PATCH /sandboxes",
        "POST /v1/version",
    ] {
        server.ask(&key, line, "").assert_refused(405);
    }
}
