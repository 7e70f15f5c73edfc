//! Ports of a sandbox as clients use them for long: streams of events, WebSocket, TLS.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use serde_json::json;

use crate::client::{ask, connect, parse};
use crate::sandboxes::{made, run};
use crate::server::{QUIET, Server};
use crate::support::processes::program;
use crate::support::skip;

/// Sends each event when the one before was told to have arrived, and is a WebSocket that echoes.
const PROGRAM: &str = r#"
import base64, hashlib, socket, ssl, sys, threading
changed, seen = threading.Condition(), {}
def exactly(f, n):
    data = f.read(n)
    if len(data) < n: raise EOFError
    return data
def frames(c, f):
    while True:
        first, length = exactly(f, 2)
        length &= 127
        if length == 126: length = int.from_bytes(exactly(f, 2), "big")
        elif length == 127: length = int.from_bytes(exactly(f, 8), "big")
        mask, data = exactly(f, 4), exactly(f, length)
        data = bytes(byte ^ mask[i % 4] for i, byte in enumerate(data))
        head = bytes([first, 126]) + length.to_bytes(2, "big") if length > 125 else bytes([first, length])
        c.sendall(head + data)
        if first & 15 == 8: return
def serve(c):
    f = c.makefile("rb")
    line, fields = f.readline().decode(), {}
    while (field := f.readline().strip()):
        name, value = field.decode().split(":", 1)
        fields[name.lower()] = value.strip()
    path = line.split(" ")[1].strip("/").split("/")
    if "sec-websocket-key" in fields:
        accept = base64.b64encode(hashlib.sha1((fields["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()).decode()
        c.sendall(("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: %s\r\nSec-WebSocket-Protocol: %s\r\n\r\n" % (accept, fields["sec-websocket-protocol"])).encode())
        frames(c, f)
    elif path[0] == "heard":
        with changed:
            seen[path[1]] = int(path[2]); changed.notify_all()
        c.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok")
    elif path[0] == "events":
        c.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        for number in range(int(path[2])):
            c.sendall(b"data: %d\n\n" % number)
            with changed: changed.wait_for(lambda: seen.get(path[1], -1) >= number)
    else:
        c.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nplain")
    c.close()
def listen(port, wrap):
    s = socket.create_server(("127.0.0.1", port))
    def one(c):
        try: serve(wrap(c))
        except (OSError, EOFError): c.close()
    def accept():
        while True: threading.Thread(target=one, args=(s.accept()[0],), daemon=True).start()
    threading.Thread(target=accept).start()
listen(8000, lambda c: c)
if len(sys.argv) > 1:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER); context.load_cert_chain(sys.argv[1])
    listen(8443, lambda c: context.wrap_socket(c, server_side=True))
print("ready", flush=True)
"#;

/// Starts the program, with what is prepared by a line of shell, and waits until it listens.
fn start_program(server: &Server, key: &str, id: &str, prepared: &str, argument: &str) {
    let line = format!(
        "{prepared}cat >/tmp/p.py <<'END'\n{PROGRAM}END\n\
         (setsid python3 /tmp/p.py {argument} >/tmp/out 2>&1 </dev/null &)\n\
         until grep -q ready /tmp/out; do sleep 0.05; done"
    );
    run(server, key, id, &line);
}

/// The ways to a port: what comes before a path, and the head.
fn ways(id: &str) -> [(String, Vec<(&'static str, String)>); 3] {
    [
        (
            String::new(),
            vec![
                ("Host", "localhost".to_owned()),
                ("E2b-Sandbox-Id", id.to_owned()),
                ("E2b-Sandbox-Port", "8000".to_owned()),
            ],
        ),
        (String::new(), vec![("Host", format!("8000-{id}.box.test:9000"))]),
        (format!("/_port/{id}/8000"), vec![("Host", "localhost".to_owned())]),
    ]
}

/// Asks, and reads to the end of the head of the answer.
fn begun(server: &Server, path: &str, head: &[(&'static str, String)], more: &str) -> (TcpStream, String) {
    let mut stream = connect(server.address);
    let fields: String = head
        .iter()
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .collect();
    stream
        .write_all(format!("GET {path} HTTP/1.1\r\n{fields}{more}\r\n").as_bytes())
        .unwrap();
    let head = until(&mut stream, b"\r\n\r\n");
    (stream, String::from_utf8(head).unwrap())
}

/// Reads to `end` and not a byte further.
fn until(stream: &mut TcpStream, end: &[u8]) -> Vec<u8> {
    let mut read = Vec::new();
    let mut byte = [0];
    while !read.ends_with(end) {
        stream.read_exact(&mut byte).unwrap();
        read.push(byte[0]);
    }
    read
}

#[test]
fn contexts_of_a_private_sandbox_need_its_traffic_token() {
    let server = Server::start();
    let key = server.key(&[]);
    let id = made(&server, &key, &json!({ "network": { "allowPublicTraffic": false } }));
    let view = server.ask(&key, &format!("GET /v1/sandboxes/{id}"), "").json();
    let port = [("E2b-Sandbox-Id", id.as_str()), ("E2b-Sandbox-Port", "49999")];
    for line in [
        "GET /contexts",
        "POST /contexts",
        "DELETE /contexts/c",
        "POST /contexts/c/restart",
    ] {
        assert_eq!(ask(server.address, line, &port, "{}").status, 403, "{line}");
    }
    let token = ("E2b-Traffic-Access-Token", view["traffic_token"].as_str().unwrap());
    let [first, second] = port;
    let answer = ask(server.address, "GET /contexts", &[first, second, token], "");
    assert_eq!(answer.status, 200);
    let languages: Vec<_> = answer
        .json()
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["language"].clone())
        .collect();
    assert_eq!(languages, ["python", "javascript"]);
}

#[test]
fn events_arrive_one_by_one_and_websockets_carry_frames_on_every_way_to_a_port() {
    if program("python3").is_none() {
        return skip("no python3");
    }
    let server = Server::start_with(QUIET, &["--domain", "box.test:9000"]);
    let key = server.key(&[]);
    let id = made(&server, &key, &json!({}));
    start_program(&server, &key, &id, "", "");
    for (number, (before, head)) in ways(&id).iter().enumerate() {
        // None of them is sent before the one before has arrived: a buffer anywhere would be the end of it.
        let (mut stream, answer) = begun(
            &server,
            &format!("{before}/events/{number}/200"),
            head,
            "Connection: close\r\n",
        );
        assert_eq!(parse(&answer).status, 200, "{answer}");
        assert_eq!(
            parse(&answer).header("content-type"),
            Some("text/event-stream"),
            "{answer}"
        );
        for event in 0..200 {
            until(&mut stream, format!("data: {event}\n\n").as_bytes());
            let given: Vec<(&str, &str)> = head.iter().map(|(name, value)| (*name, value.as_str())).collect();
            let heard = ask(
                server.address,
                &format!("GET {before}/heard/{number}/{event}"),
                &given,
                "",
            );
            assert_eq!(heard.body, "ok", "{heard:?}");
        }
        echoes_frames(&server, &format!("{before}/socket"), head);
    }
}

/// A WebSocket (RFC 6455, with the key and the answer of its section 1.3), and a frame of each size.
fn echoes_frames(server: &Server, path: &str, head: &[(&'static str, String)]) {
    let upgrade = "Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                   Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: chat\r\n";
    let (mut stream, answer) = begun(server, path, head, upgrade);
    let answer = parse(&answer);
    assert_eq!(answer.status, 101, "{answer:?}");
    assert_eq!(
        (
            answer.header("sec-websocket-accept"),
            answer.header("sec-websocket-protocol")
        ),
        (Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), Some("chat")),
        "{answer:?}"
    );
    for length in [0_usize, 125, 126, 60_000] {
        let data = vec![b'x'; length];
        let mask = [1_u8, 2, 3, 4];
        let masked = data.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask);
        let mut frame = vec![0x82];
        let mut expected = vec![0x82];
        match u8::try_from(length).ok().filter(|length| *length <= 125) {
            Some(short) => {
                frame.push(0x80 | short);
                expected.push(short);
            }
            None => {
                let size = u16::try_from(length).unwrap().to_be_bytes();
                frame.extend([&[0x80 | 126][..], &size].concat());
                expected.extend([&[126][..], &size].concat());
            }
        }
        frame.extend(mask);
        frame.extend(masked);
        expected.extend(&data);
        stream.write_all(&frame).unwrap();
        let mut back = vec![0; expected.len()];
        stream.read_exact(&mut back).unwrap();
        assert!(back == expected, "a frame of {length} bytes");
    }
    stream.write_all(&[0x88, 0x80, 0, 0, 0, 0]).unwrap();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, [0x88, 0]);
}

#[test]
fn ports_that_speak_tls_are_reached_whatever_their_certificate() {
    if program("python3").is_none() || program("openssl").is_none() {
        return skip("no python3 or no openssl");
    }
    let server = Server::start();
    let key = server.key(&[]);
    let id = made(&server, &key, &json!({ "network": { "httpsPorts": [8443, 8000] } }));
    let detail = server.ask(&key, &format!("GET /sandboxes/{id}"), "").json();
    assert_eq!(detail["network"]["httpsPorts"], json!([8000, 8443]));
    let certificate = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=x \
                       -keyout /tmp/key -out /tmp/certificate 2>/dev/null && cat /tmp/key /tmp/certificate >/tmp/both\n";
    start_program(&server, &key, &id, certificate, "/tmp/both");
    let asked = |port: &str| {
        let head = [("E2b-Sandbox-Id", id.as_str()), ("E2b-Sandbox-Port", port)];
        ask(server.address, "GET /", &head, "")
    };
    assert_eq!((asked("8443").status, asked("8443").body), (200, "plain".to_owned()));
    let clear = asked("8000");
    assert_eq!(clear.status, 502, "{clear:?}");
    assert!(clear.body.contains("no TLS is spoken there"), "{clear:?}");
    clear.assert_silent();
    // What may be reached is replaced; how ports are reached stays.
    let set = server.ask(&key, &format!("PUT /sandboxes/{id}/network"), "{}");
    assert_eq!(set.status, 204, "{set:?}");
    assert_eq!(asked("8443").body, "plain");
}

/// Says early hints without an end, or a few and then an answer.
const HINTS: &str = r#"
import socket, threading
def serve(c):
    line = c.makefile("rb").readline()
    try:
        if b"endless" in line:
            while True: c.sendall(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 100)
        c.sendall(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 3)
        c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\nConnection: close\r\n\r\n" + b"x" * 1000000)
        c.close()
    except OSError: pass
s = socket.create_server(("127.0.0.1", 8000))
print("ready", flush=True)
while True: threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()
"#;

#[test]
fn heads_without_an_answer_are_given_up() {
    if program("python3").is_none() {
        return skip("no python3");
    }
    let server = Server::start();
    let key = server.key(&[]);
    let id = made(&server, &key, &json!({}));
    let line = format!(
        "cat >/tmp/h.py <<'END'\n{HINTS}END\n\
         (setsid python3 /tmp/h.py >/tmp/out 2>&1 </dev/null &)\n\
         until grep -q ready /tmp/out; do sleep 0.05; done"
    );
    run(&server, &key, &id, &line);
    let head = [
        ("Host", "localhost"),
        ("E2b-Sandbox-Id", &id),
        ("E2b-Sandbox-Port", "8000"),
    ];
    let answer = ask(server.address, "GET /endless", &head, "");
    assert_eq!(answer.status, 502, "{answer:?}");
    let answer = ask(server.address, "GET /few", &head, "");
    assert_eq!((answer.status, answer.body.len()), (200, 1_000_000));
}
