//! TLS greetings beyond the first: a second one, an encrypted one, and ones that come at once.

use crate::world::{Seen, World, world};

/// Greetings by hand.
const GREETING: &str = r#"
def greeting_of(name):
    """What a client of today sends first."""
    context = ssl.create_default_context()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname=name)
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return outgoing.read()

def with_extension(hello, kind, content):
    """The same with one extension more, before the others."""
    at = 5 + 4 + 2 + 32
    at += 1 + hello[at]
    at += 2 + struct.unpack(">H", hello[at:at + 2])[0]
    at += 1 + hello[at]
    extension = struct.pack(">HH", kind, len(content)) + content
    length = struct.unpack(">H", hello[at:at + 2])[0] + len(extension)
    body = hello[9:at] + struct.pack(">H", length) + extension + hello[at + 2:]
    message = b"\1" + struct.pack(">I", len(body))[1:] + body
    return hello[:3] + struct.pack(">H", len(message)) + message

RETRY = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")

def answered(connection):
    """Whether a server answers with a greeting of its own, and whether it asks for another one."""
    head = connection.recv(11 + 32, socket.MSG_WAITALL)
    if len(head) < 43 or head[0] != 22 or head[5] != 2:
        raise Ended("answered %r" % head)
    return "retry" if head[11:] == RETRY else "hello"

def greeted(port, hello):
    with dial("www.example.com", port) as connection:
        connection.sendall(hello)
        return answered(connection)

def twice(name, at_once=False, between=b""):
    """A second greeting that names this server; what a server says to it, be it only that it does not like it."""
    first, second = greeting_of("www.example.com"), greeting_of(name)
    with dial("www.example.com", 8444) as connection:
        connection.sendall(first + (between + second if at_once else b""))
        if answered(connection) != "retry":
            raise ValueError("the control: it asks for a second greeting")
        if not at_once:
            connection.sendall(between + second)
        connection.shutdown(socket.SHUT_WR)
        while read := connection.recv(1 << 16):
            back = read
        # An alert is the end of what the server had to say.
        return back[-7:-2].hex()
"#;

fn inside(world: &World, attempts: &str) -> Seen {
    world.inside(
        &["--allow", "www.example.com:443,8443,8444"],
        &format!("{GREETING}{attempts}"),
    )
}

#[test]
fn a_server_may_ask_for_a_second_greeting() {
    let Some(world) = world() else { return };
    let seen = inside(
        world,
        r#"
attempt("it asks", greeted, 8444, greeting_of("www.example.com"))
attempt("page", get_secure, "www.example.com", 8444, authority="certificate")
def much():
    with dial("www.example.com", 8444) as connection, secured(connection, "www.example.com") as tunnel:
        tunnel.sendall(b"GET /big/3000000 HTTP/1.1\r\nHost: www.example.com\r\n\r\n")
        return len(response(tunnel)[1])
attempt("much", much)
"#,
    );
    assert_eq!(seen.done("it asks"), "retry");
    assert!(seen.done("page").contains(r#""greeting": "www.example.com""#));
    assert_eq!(seen.done("much"), "3000000");
}

#[test]
fn n8_a_second_greeting_may_not_name_another_server() {
    let Some(world) = world() else { return };
    let seen = inside(
        world,
        r#"
change = b"\x14\3\3\0\1\1"
early = b"\x17\3\3\0\5early"
attempt("the control", twice, "www.example.com")
attempt("the control at once", twice, "www.example.com", at_once=True)
for name, options in [("later", {}), ("at once", {"at_once": True}), ("behind a change", {"between": change}),
                      ("behind early data", {"between": early}), ("behind both", {"between": early + change}),
                      ("behind an alert", {"between": b"\x15\3\3\0\2\1\x5a"})]:
    attempt(name, twice, "secret.example.com", **options)
"#,
    );
    for name in seen.names() {
        match name {
            "the control" | "the control at once" => {
                assert_eq!(seen.done(name), "1503030002", "an alert of the server's");
            }
            // The client has given up then, and it is the end of its connection.
            "behind an alert" => {}
            _ => {
                seen.refused(name);
            }
        }
    }
    let connections = seen.connections("www.example.com");
    let refused = connections.iter().filter(|one| one["verdict"] == "refused");
    let reasons: Vec<_> = refused.map(|one| one["reason"].as_str().unwrap()).collect();
    assert_eq!(reasons.len(), 5, "{connections:#?}");
    assert!(
        reasons
            .iter()
            .all(|reason| reason.contains("names another server than the first")),
        "{reasons:?}"
    );
    let met = world.met();
    assert!(
        met.iter()
            .all(|entry| entry["greeting"] != "secret.example.com" || entry["port"] != 8444),
        "{met:?}"
    );
}

#[test]
fn n8_an_encrypted_greeting_counts_by_what_can_be_read() {
    let Some(world) = world() else { return };
    let seen = inside(
        world,
        r#"
# What browsers send when they have no key (RFC 9849, 6.2): a suite, a number, a key, as many bytes as a greeting has.
grease = b"\0\0\1\0\1\x42" + struct.pack(">H", 32) + bytes(range(32)) + struct.pack(">H", 176) + b"\x99" * 176
attempt("grease", greeted, 443, with_extension(greeting_of("www.example.com"), 0xfe0d, grease))
attempt("grease elsewhere", greeted, 8443, with_extension(greeting_of("www.example.com"), 0xfe0d, grease))
for port in [443, 8443]:
    attempt("other outside %d" % port, greeted, port, with_extension(greeting_of("secret.example.com"), 0xfe0d, grease))
attempt("inner", greeted, 443, with_extension(greeting_of("www.example.com"), 0xfe0d, b"\1"))
"#,
    );
    assert_eq!(seen.done("grease"), "hello");
    assert_eq!(seen.done("grease elsewhere"), "hello");
    for name in ["other outside 443", "other outside 8443", "inner"] {
        seen.refused(name);
    }
}
