//! The proxy inside a sandbox: the same rules by whichever way a program asks, and nothing for whoever asks oddly.

use crate::support::processes::{finish, start};
use crate::support::{Site, stderr};
use crate::world::{Seen, World, times, world};

/// How programs ask a proxy, by hand.
const ASKING: &str = r#"
PROXY = ("127.0.0.1", 1)

def proxy(address=PROXY):
    return socket.create_connection(address, timeout=TIMEOUT)

def whole(connection, length):
    read = b""
    while len(read) < length:
        more = connection.recv(length - len(read))
        if not more:
            raise Ended("after %r" % read)
        read += more
    return read

def tunnelled(asked, address=PROXY):
    """By CONNECT; `asked` is a host and a port, or a whole head."""
    connection = proxy(address)
    head = asked if "\r\n" in asked else "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n" % (asked, asked)
    connection.sendall(head.encode("latin-1"))
    answer = b""
    while b"\r\n\r\n" not in answer:
        # One by one: what comes behind is the server's.
        answer += whole(connection, 1)
    if answer.split(b" ")[1] != b"200":
        response(connection, answer)
        raise Refused(answer.decode())
    return connection

def sock5(host, port, command=1, methods=b"\0"):
    connection = proxy()
    connection.sendall(bytes([5, len(methods)]) + methods)
    method = whole(connection, 2)
    if method != b"\5\0":
        raise Refused("method %d" % method[1])
    try:
        packed = socket.inet_pton(socket.AF_INET6, host) if ":" in host else socket.inet_aton(host)
        name = bytes([4 if len(packed) == 16 else 1]) + packed
    except (OSError, ValueError):
        name = b"\3" + bytes([len(host)]) + host.encode("latin-1")
    connection.sendall(bytes([5, command, 0]) + name + struct.pack(">H", port))
    reply = whole(connection, 10)
    if reply[1]:
        raise Refused("reply %d" % reply[1])
    return connection

def sock4(host, port, command=1):
    connection = proxy()
    try:
        question = socket.inet_aton(host) + b"me\0"
    except (OSError, ValueError):
        question = b"\0\0\0\1me\0" + host.encode("latin-1") + b"\0"
    connection.sendall(struct.pack(">BBH", 4, command, port) + question)
    reply = whole(connection, 8)
    if reply[1] != 90:
        raise Refused("reply %d" % reply[1])
    return connection

def by_request(url, host):
    with proxy() as connection:
        return say(connection, "GET %s HTTP/1.1\r\nHost: %s\r\nProxy-Connection: keep-alive\r\n\r\n" % (url, host))

def echo_in(connection):
    with connection:
        connection.sendall(b"hello")
        return whole(connection, 5) == b"hello"

def greeting_in(connection):
    with connection:
        return connection.recv(100)

def page_in(connection, host):
    with connection:
        return say(connection, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n" % host)

def secure_page_in(connection, host, sni=""):
    with connection, secured(connection, host if sni == "" else sni) as tunnel:
        return say(tunnel, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n" % host)

def sent(*pieces):
    """Everything that comes back for these bytes."""
    with proxy() as connection:
        for piece in pieces:
            connection.sendall(piece)
        back = b""
        while read := connection.recv(1 << 16):
            back += read
        return back.decode("latin-1")
"#;

fn inside(world: &World, flags: &[&str], attempts: &str) -> Seen {
    world.inside(flags, &format!("{ASKING}{attempts}"))
}

const RULES: [&str; 4] = [
    "--allow",
    "www.example.com:7,22,80,443,8080",
    "--allow",
    "api.example.com:80,443",
];

#[test]
fn every_way_of_asking_a_proxy_leads_to_an_allowed_host() {
    let Some(world) = world() else { return };
    let seen = inside(
        world,
        &RULES,
        r#"
name = "www.example.com"
attempt("request", by_request, "http://www.example.com/x?y=1", name)
attempt("request to a port", by_request, "http://www.example.com:8080/", name + ":8080")
attempt("tunnel", lambda: secure_page_in(tunnelled(name + ":443"), name))
attempt("tunnel without TLS", lambda: page_in(tunnelled(name + ":80"), name))
attempt("tunnel to who speaks first", lambda: greeting_in(tunnelled(name + ":22")))
attempt("SOCKS 5", lambda: secure_page_in(sock5(name, 443), name))
attempt("SOCKS 5 to an address that stands for it", lambda: echo_in(sock5(socket.gethostbyname(name), 7)))
attempt("SOCKS 4a", lambda: echo_in(sock4(name, 7)))
attempt("SOCKS 4", lambda: echo_in(sock4(socket.gethostbyname(name), 7)))
attempt("by IPv6", lambda: page_in(tunnelled("API.example.com.:80", ("::1", 1)), "api.example.com"))
"#,
    );
    seen.all_done();
    let request = seen.done("request");
    assert!(
        request.contains(r"GET /x?y=1 HTTP/1.1\r\nHost: www.example.com\r\nConnection: close"),
        "{request}"
    );
    assert_eq!(seen.done("tunnel to who speaks first"), r"b'SSH-2.0-OpenSSH_9.2\r\n'");
    assert_eq!(seen.connections("www.example.com").len(), 9);
    let connection = seen.connection("api.example.com");
    assert_eq!(connection["verdict"], "allowed", "{connection:#}");
    assert_eq!(connection["address"], "151.101.0.223");
    assert_eq!(connection["rule"], "network.allow: api.example.com:80,443");
}

#[test]
fn n4_n11_what_no_rule_allows_is_refused_by_every_way_and_nobody_is_asked_for_it() {
    let Some(world) = world() else { return };
    // What is refused here can be reached where there is no sandbox.
    let outside = world.outside(
        r#"
attempt("name", get, "secret.example.com")
attempt("address", get, "93.184.216.35")
attempt("IPv6", get, "2606:2800:220:1::5")
"#,
    );
    outside.all_done();
    let seen = inside(
        world,
        &RULES,
        r#"
for name in ["proxied.unheard.example", "93.184.216.35", "2606:2800:220:1::5", "169.254.169.254", "127.0.0.1", "10.0.0.5",
             "::ffff:10.0.0.5", "198.18.77.7"]:
    bracketed = "[%s]" % name if ":" in name else name
    attempt("tunnel " + name, tunnelled, bracketed + ":443")
    attempt("request " + name, by_request, "http://%s/" % bracketed, bracketed)
    attempt("SOCKS 5 " + name, sock5, name, 443)
    if not ":" in name:
        attempt("SOCKS 4 " + name, sock4, name, 443)
attempt("SOCKS 5 port", sock5, "www.example.com", 25)
attempt("tunnel port", tunnelled, "www.example.com:25")
"#,
    );
    seen.all_refused();
    assert!(
        seen.refused("SOCKS 5 port").contains("reply 2"),
        "{}",
        seen.refused("SOCKS 5 port")
    );
    assert!(seen.refused("SOCKS 4 10.0.0.5").contains("reply 91"));
    for way in ["tunnel", "request"] {
        let told = seen.refused(&format!("{way} proxied.unheard.example"));
        assert!(told.contains("403 Forbidden"), "{told}");
        assert!(told.contains("no rule allows it"), "{told}");
        assert!(told.contains("--allow proxied.unheard.example"), "{told}");
    }
    let local = seen.refused("request 127.0.0.1");
    assert!(local.contains("NO_PROXY"), "{local}");
    world.assert_never_asked("unheard.example");
    assert_eq!(times(seen.connections("proxied.unheard.example")), 4);
}

#[test]
fn n7_names_that_lead_inside_are_refused_through_the_proxy_too() {
    let Some(world) = world() else { return };
    let seen = inside(
        world,
        &["--allow", "*.example.com:7"],
        r#"
attempt("the control", lambda: echo_in(sock5("www.example.com", 7)))
for name in ["private.example.com", "metadata-six.example.com", "mixed.example.com", "host.example.com"]:
    attempt("tunnel " + name, tunnelled, name + ":7")
    attempt("SOCKS 5 " + name, sock5, name, 7)
"#,
    );
    seen.all_refused_but(&["the control"]);
    world.assert_untouched("fd00:ec2::254");
}

#[test]
fn n8_what_is_said_in_a_tunnel_must_agree_with_what_it_was_asked_for() {
    let Some(world) = world() else { return };
    let seen = inside(
        world,
        &[
            "--allow",
            "www.example.com:80,443,8080",
            "--allow",
            "secret.example.com",
        ],
        r#"
attempt("the control", lambda: secure_page_in(tunnelled("www.example.com:443"), "www.example.com"))
for way, ask in [("tunnel", lambda port: tunnelled("www.example.com:%d" % port)),
                 ("SOCKS 5", lambda port: sock5("www.example.com", port))]:
    attempt(way + " SNI", lambda: secure_page_in(ask(443), "www.example.com", sni="secret.example.com"))
    attempt(way + " no SNI", lambda: secure_page_in(ask(443), "www.example.com", sni=None))
    attempt(way + " no TLS", lambda: page_in(ask(443), "www.example.com"))
    attempt(way + " Host", lambda: page_in(ask(80), "secret.example.com"))
    attempt(way + " Host at another port", lambda: page_in(ask(8080), "secret.example.com:8080"))
    attempt(way + " tunnel in the tunnel", 
            lambda: say(ask(80), "CONNECT secret.example.com:443 HTTP/1.1\r\nHost: secret.example.com:443\r\n\r\n"))
attempt("Host of the question", tunnelled,
        "CONNECT www.example.com:443 HTTP/1.1\r\nHost: secret.example.com:443\r\n\r\n")
attempt("Host of a request", by_request, "http://www.example.com/", "secret.example.com")
attempt("scheme", by_request, "https://www.example.com/", "www.example.com")
attempt("a request to where TLS is due", by_request, "http://www.example.com:443/", "www.example.com:443")
attempt("name of an address", lambda: by_request("http://%s/" % socket.gethostbyname("www.example.com"),
                                                 socket.gethostbyname("www.example.com")))
"#,
    );
    seen.all_refused_but(&["the control"]);
}

#[test]
fn a_second_request_on_a_connection_to_the_proxy_reaches_no_other_host() {
    let Some(world) = world() else { return };
    let seen = inside(
        world,
        &["--allow", "www.example.com", "--allow", "api.example.com"],
        r#"
def two(second):
    asked = "GET http://www.example.com/first HTTP/1.1\r\nHost: www.example.com\r\n\r\n"
    asked += "GET http://%s/second HTTP/1.1\r\nHost: %s\r\n\r\n" % (second, second)
    with proxy() as connection:
        connection.sendall(asked.encode())
        back = b""
        try:
            while read := connection.recv(1 << 16):
                back += read
        except ConnectionResetError:
            pass
        return back.count(b"second")
attempt("other", two, "smuggled.unheard.example")
attempt("control", by_request, "http://www.example.com/second", "www.example.com")
"#,
    );
    assert_eq!(seen.done("other"), "0");
    assert!(seen.done("control").contains("GET /second"));
    world.assert_never_asked("smuggled.unheard.example");
}

#[test]
fn n11_listening_and_datagrams_are_not_to_be_had() {
    let Some(world) = world() else { return };
    let seen = inside(
        world,
        &RULES,
        r#"
attempt("the control", lambda: echo_in(sock5("www.example.com", 7)))
attempt("BIND", sock5, "www.example.com", 7, 2)
attempt("UDP ASSOCIATE", sock5, "www.example.com", 7, 3)
attempt("BIND of SOCKS 4", sock4, "www.example.com", 7, 2)
attempt("a password", sock5, "www.example.com", 7, 1, b"\2")
attempt("NUL in a name", sock5, "www.example.com\0.unheard.example", 7)
attempt("NUL in the other name", sock5, "unheard.example\0.www.example.com", 7)
"#,
    );
    seen.all_refused_but(&["the control"]);
    assert!(seen.refused("BIND").contains("reply 7"));
    assert!(seen.refused("UDP ASSOCIATE").contains("reply 7"));
    assert!(seen.refused("a password").contains("method 255"));
}

#[test]
fn n12_the_proxy_tells_nothing_of_itself_and_is_not_held_up() {
    let Some(world) = world() else { return };
    let seen = inside(
        world,
        &RULES,
        r#"
attempt("page", sent, b"GET / HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n")
attempt("status", sent, b"GET /stats HTTP/1.0\r\n\r\n")
attempt("itself", tunnelled, "127.0.0.1:1")
attempt("itself by IPv6", tunnelled, "[::1]:1")
attempt("itself by SOCKS", sock5, "localhost", 1)
attempt("long", sent, b"CONNECT www.example.com:443 HTTP/1.1\r\nX: ", *[b"x" * 1000] * 66)
# Half a question, and connections that say nothing, while others are served.
slow = [proxy() for _ in range(200)]
for number, connection in enumerate(slow):
    connection.sendall([b"\5", b"\4\1", b"CONN", b"GET http://www.example.com/ HTTP/1.1\r\n"][number % 4])
attempt("others", lambda: echo_in(sock5("www.example.com", 7)))
def all_end():
    for connection in slow:
        try:
            while connection.recv(4096):
                pass
        except ConnectionResetError:
            pass
    return True
attempt("all end", all_end)
"#,
    );
    for page in ["page", "status"] {
        let told = seen.done(page);
        assert!(told.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{told}");
        assert!(told.contains("a request to the proxy itself"), "{told}");
    }
    for itself in ["itself", "itself by IPv6", "itself by SOCKS"] {
        seen.refused(itself);
    }
    assert!(seen.done("long").starts_with("HTTP/1.1 431 "), "{}", seen.done("long"));
    seen.done("others");
    seen.done("all end");
}

#[test]
fn n14_a_proxy_serves_its_own_sandbox_alone() {
    let Some(world) = world() else { return };
    // One sandbox that may reach a host lives while another, which may not, looks for its proxy.
    let site = Site::new();
    let first = format!("{ASKING}\nsys.stdin.read()\nattempt(\"own\", lambda: echo_in(sock5(\"www.example.com\", 7)))");
    let mut command = world.sandboxed(&site, &["--allow", "www.example.com:7"], &first);
    let mut running = start(&mut command);
    let other = inside(
        world,
        &["--allow", "api.example.com:80"],
        r#"
attempt("its own rules", lambda: page_in(tunnelled("api.example.com:80"), "api.example.com"))
attempt("rules of the other", sock5, "www.example.com", 7)
for address in ["198.18.0.2", "151.101.64.2"]:
    attempt(address, tunnelled, "www.example.com:7", (address, 1))
"#,
    );
    other.done("its own rules");
    for name in ["rules of the other", "198.18.0.2", "151.101.64.2"] {
        other.refused(name);
    }
    drop(running.stdin.take());
    Seen::of_output(&finish(running)).done("own");
    // Nor does the host find anything there: its own server at that port answers, and it is no proxy.
    let host = world.outside(&format!("{ASKING}\nattempt(\"host\", sock5, \"www.example.com\", 7)\n"));
    assert!(host.refused("host").contains("method"), "{host:?}");
}

#[test]
fn n15_programs_that_forget_the_proxy_reach_no_more_than_with_it() {
    let Some(world) = world() else { return };
    let Some(_) = crate::support::processes::program("curl") else {
        return crate::support::skip("`curl` is missing");
    };
    let site = Site::new();
    let script = r#"
        for host in www.example.com secret.example.com; do
            for proxy in none http://127.0.0.1:1 socks5h://127.0.0.1:1 socks5://127.0.0.1:1 socks4a://127.0.0.1:1; do
                for url in http://$host/ https://$host/; do
                    if [ $proxy = none ]; then unset ALL_PROXY; else export ALL_PROXY=$proxy; fi
                    printf '%s %s %s ' $host $proxy ${url%%:*}
                    curl -k -s -o /dev/null -w '%{http_code}\n' --max-time 60 $url
                done
            done
        done
    "#;
    let run = |flags: &[&str]| {
        let arguments = [&["run", "--quiet"], flags, &["--", "/bin/sh", "-c", script]].concat();
        let output = finish(start(&mut world.offleash(&site, &arguments)));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(text.lines().count(), 20, "{text}{}", stderr(&output));
        text
    };
    for line in run(&["--allow", "www.example.com"]).lines() {
        let code = line.rsplit(' ').next().unwrap();
        if line.starts_with("www.") {
            assert_eq!(code, "200", "{line}");
        } else {
            assert!(["000", "403"].contains(&code), "{line}");
        }
    }
}

#[test]
fn variables_tell_programs_of_the_proxy_when_that_is_asked_for() {
    let Some(world) = world() else { return };
    let attempts = r#"
import http.server, urllib.request
attempt("variables", lambda: json.dumps({name: value for name, value in os.environ.items() if "proxy" in name.lower()}))
attempt("allowed", lambda: urllib.request.urlopen("http://www.example.com/").status)
attempt("refused", lambda: urllib.request.urlopen("http://variables.unheard.example/").status)
local = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=local.serve_forever, daemon=True).start()
attempt("local", lambda: urllib.request.urlopen("http://localhost:%d/" % local.server_port).status)
"#;
    for flags in [
        &["--allow", "www.example.com"][..],
        &["--allow", "www.example.com", "--proxy-variables"],
    ] {
        let seen = world.inside(flags, attempts);
        assert_eq!((seen.done("allowed"), seen.done("local")), ("200", "200"));
        let refused = seen.refused("refused");
        let variables = seen.done("variables");
        if flags.contains(&"--proxy-variables") {
            assert!(refused.contains("403"), "{refused}");
            assert!(
                variables.contains(r#""HTTPS_PROXY": "http://127.0.0.1:1""#),
                "{variables}"
            );
            assert!(
                variables.contains(r#""no_proxy": "localhost,127.0.0.1,::1""#),
                "{variables}"
            );
        } else {
            assert_eq!(variables, "{}");
        }
    }
}
