//! Addresses: those that no rule names, those of the host, and those that names lead to.

use crate::support::Site;
use crate::support::processes::{eventually, finish, start};
use crate::world::{Seen, is_from_host, times, world};

#[test]
fn an_allowed_name_is_reached_by_http_https_and_any_other_protocol() {
    let Some(world) = world() else { return };
    let flags = [
        "--allow",
        "www.example.com",
        "--allow",
        "www.example.com:7",
        "--allow",
        "www.example.com:22",
        "--allow",
        "api.example.com:7/tcp",
    ];
    let seen = world.inside(
        &flags,
        r#"
attempt("http", get, "www.example.com")
attempt("https", get_secure, "www.example.com", authority="certificate")
attempt("raw", echoed, "www.example.com")
def greeting():
    with dial("www.example.com", 22) as connection:
        return connection.recv(100)
attempt("banner", greeting)
def typed():
    with dial("api.example.com", 7) as connection:
        for letter in b"PUT it":
            connection.sendall(bytes([letter]))
            if connection.recv(1) != bytes([letter]):
                return False
    return True
attempt("letter by letter", typed)
"#,
    );
    assert!(
        seen.done("http").contains("Host: www.example.com"),
        "{}",
        seen.done("http")
    );
    assert!(seen.done("https").contains(r#""greeting": "www.example.com""#));
    assert_eq!(seen.done("raw"), "True");
    assert_eq!(seen.done("banner"), r"b'SSH-2.0-OpenSSH_9.2\r\n'");
    assert_eq!(seen.done("letter by letter"), "True");
}

/// Addresses on the internet and the host, by IPv4 and IPv6, in what ways sockets offer.
const DIRECT: &str = r#"
def to(family, *address):
    with dial_address(family, address) as connection:
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
        if not connection.recv(100).startswith(b"HTTP/1.1 200"):
            raise Ended("no server")
attempt("IPv4", to, socket.AF_INET, "93.184.216.35", 8080)
attempt("IPv6", to, socket.AF_INET6, "2606:2800:220:1::5", 8080)
attempt("mapped", to, socket.AF_INET6, "::ffff:93.184.216.35", 8080)
attempt("datagram", datagram, "93.184.216.35")
attempt("QUIC", datagram, "93.184.216.35", 443)
attempt("datagram by IPv6", datagram, "2606:2800:220:1::5")
"#;

#[test]
fn n1_addresses_that_no_rule_names_are_refused_at_once() {
    let Some(world) = world() else { return };
    // Bound to an address of IPv4, a socket of IPv6 cannot be a control; the mapped form needs none.
    let control = world.outside(&DIRECT.replace("\"::ffff:93.184.216.35\"", "\"2606:2800:220:1::5\""));
    control.all_done();
    let seen = world.inside(&["--allow", "www.example.com"], DIRECT);
    seen.all_refused();
    assert!(
        seen.refused("QUIC").starts_with("ECONNREFUSED"),
        "{}",
        seen.refused("QUIC")
    );
    for entry in world.met().iter().filter(|entry| is_from_host(entry)) {
        assert_ne!(
            (&entry["local"], &entry["port"]),
            (&"93.184.216.35".into(), &8080.into()),
            "{entry}"
        );
        assert_ne!(
            (&entry["local"], &entry["port"]),
            (&"2606:2800:220:1::5".into(), &8080.into()),
            "{entry}"
        );
        assert_ne!(entry["kind"], "datagram", "{entry}");
    }
    assert_eq!(seen.connection("[2606:2800:220:1::5]")["verdict"], "refused");
    // Both by IPv4, which are one refusal.
    assert_eq!(
        seen.connection("93.184.216.35")["times"],
        2,
        "{:#}",
        seen.record["network"]
    );
}

#[test]
fn n1_an_address_is_reached_when_a_rule_names_it() {
    let Some(world) = world() else { return };
    let flags = [
        "--allow",
        "93.184.216.34",
        "--allow",
        "[2606:2800:220:1::5]:80",
        "--allow",
        "151.101.0.0/16:7",
    ];
    let seen = world.inside(
        &flags,
        r#"
attempt("IPv4", get, "93.184.216.34")
attempt("IPv6", get, "2606:2800:220:1::5")
attempt("without a name in TLS", get_secure, "93.184.216.34", sni=None)
attempt("network", echoed, "151.101.0.223")
"#,
    );
    seen.all_done();
    let other = world.inside(
        &flags,
        r#"
attempt("other address", get, "93.184.216.35")
attempt("other port", get, "2606:2800:220:1::5", 8080)
attempt("other network", echoed, "93.184.216.34")
attempt("this machine in an allowed network", echoed, "151.101.64.2")
attempt("a name in TLS", get_secure, "93.184.216.34", sni="www.example.com")
"#,
    );
    other.all_refused();
    let own = other.connection("151.101.64.2");
    assert!(
        own["reason"].as_str().unwrap().contains("an address of this machine"),
        "{own:#}"
    );
    let rule = own["rule"].as_str().unwrap();
    assert_eq!(rule, "network.allow: 151.101.0.0/16:7");
}

#[test]
fn n1_raw_packets_and_pings_do_not_leave() {
    let Some(world) = world() else { return };
    let seen = world.inside(
        &["--allow", "www.example.com"],
        r#"
def raw(family, kind, protocol):
    with socket.socket(family, kind, protocol) as connection:
        connection.settimeout(TIMEOUT)
        connection.connect(("93.184.216.34", 0))
        connection.send(b"\x08\0\xf7\xff\0\0\0\0")
        connection.recv(100)
attempt("raw ICMP", raw, socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
attempt("ping", raw, socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
attempt("raw TCP", raw, socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP)
attempt("packets", socket.socket, socket.AF_PACKET, socket.SOCK_RAW, 3)
attempt("SCTP", raw, socket.AF_INET, socket.SOCK_STREAM, 132)
"#,
    );
    seen.all_refused();
}

/// The host's own servers, by every way that an address of it is written, and by names that lead there.
const HOST: &str = r#"
for address in ["127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "127.7.7.7", "0.0.0.0", "0", "::1",
                "::ffff:127.0.0.1", "::ffff:7f00:1", "151.101.64.2", "2606:2800:220::2", "localhost"]:
    for port in [7, 80]:
        attempt("%s port %d" % (address, port), get if port == 80 else echoed, address, port)
"#;

#[test]
fn n2_nothing_on_the_host_is_reached() {
    let Some(world) = world() else { return };
    let control = world.outside(HOST);
    for address in [
        "127.0.0.1",
        "127.1",
        "2130706433",
        "::1",
        "151.101.64.2",
        "2606:2800:220::2",
        "localhost",
    ] {
        control.done(&format!("{address} port 7"));
        control.done(&format!("{address} port 80"));
    }
    // Whatever is allowed elsewhere.
    let flags = [
        "--allow",
        "www.example.com:7,80",
        "--allow",
        "151.101.0.0/16:7,80",
        "--allow",
        "[2606::]/16:7,80",
    ];
    world.inside(&flags, HOST).all_refused();
    assert_untouched_host(world);
}

fn assert_untouched_host(world: &crate::world::World) {
    let touched = world.met().into_iter().find(|entry| entry["at"] == "host");
    assert!(touched.is_none(), "{touched:?}");
}

#[test]
fn n2_the_port_of_the_gateway_s_own_listener_gives_nothing() {
    let Some(world) = world() else { return };
    let attempts = r#"
for address in ["127.0.0.1", "::1", "93.184.216.34", "198.18.0.1", "198.18.0.2"]:
    attempt(address, echoed, address, 1)
"#;
    world
        .outside(r#"attempt("control", echoed, "127.0.0.1", 1)"#)
        .all_done();
    world.inside(&["--allow", "www.example.com"], attempts).all_refused();
    assert_untouched_host(world);
}

/// Names of ours that lead to where nobody may go, and the addresses.
const INSIDE: [(&str, &str); 16] = [
    ("loopback.example.com", "127.0.0.1"),
    ("loopback-six.example.com", "::1"),
    ("mapped.example.com", "127.0.0.1"),
    ("nat64.example.com", "64:ff9b::7f00:1"),
    ("zero.example.com", "0.0.0.0"),
    ("host.example.com", "151.101.64.2"),
    ("host-six.example.com", "2606:2800:220::2"),
    ("metadata.example.com", "169.254.169.254"),
    ("metadata-six.example.com", "fd00:ec2::254"),
    ("metadata-alibaba.example.com", "100.100.100.200"),
    ("metadata-azure.example.com", "168.63.129.16"),
    ("private.example.com", "10.0.0.5"),
    ("home.example.com", "192.168.1.1"),
    ("corporate.example.com", "172.16.0.9"),
    ("shared.example.com", "100.64.0.7"),
    ("alias-inside.example.com", "10.0.0.5"),
];

fn attempts_at<'a>(hosts: impl IntoIterator<Item = &'a str>) -> String {
    let lines = hosts
        .into_iter()
        .map(|host| format!("attempt({host:?}, echoed, {host:?})\n"));
    lines.collect()
}

#[test]
fn n3_n7_names_that_lead_inside_are_refused_and_the_record_says_so() {
    let Some(world) = world() else { return };
    let names = attempts_at(INSIDE.iter().map(|(name, _)| *name));
    let control = world.outside(&names);
    for (name, _) in INSIDE
        .iter()
        .filter(|(name, _)| *name != "nat64.example.com" && *name != "mapped.example.com")
    {
        control.done(name);
    }
    let seen = world.inside(&["--allow", "*.example.com:7"], &names);
    seen.all_refused();
    for (name, address) in INSIDE {
        let connection = seen.connection(name);
        assert_eq!(connection["verdict"], "refused", "{connection:#}");
        assert_eq!(connection["address"], serde_json::Value::Null);
        let reason = connection["reason"].as_str().unwrap();
        assert!(reason.contains(address), "{reason}");
        if address == "10.0.0.5" {
            assert!(reason.contains("with `--allow 10.0.0.5:7`"), "{reason}");
        }
        world.assert_untouched(address);
    }
    assert_untouched_host(world);
}

#[test]
fn n3_addresses_inside_are_refused_even_within_an_allowed_network() {
    let Some(world) = world() else { return };
    let literal = attempts_at([
        "169.254.169.254",
        "100.100.100.200",
        "168.63.129.16",
        "10.0.0.5",
        "fd00:ec2::254",
    ]);
    world.outside(&literal).all_done();
    let wide = [
        "--allow",
        "0.0.0.0/1:7",
        "--allow",
        "128.0.0.0/1:7",
        "--allow",
        "168.63.0.0/16:7",
    ];
    for flags in [&["--allow", "www.example.com:7"][..], &wide] {
        world.inside(flags, &literal).all_refused();
    }
    world.assert_untouched("169.254.169.254");
    world.assert_untouched("fd00:ec2::254");
}

#[test]
fn n7_a_private_address_is_reached_when_a_rule_names_it() {
    let Some(world) = world() else { return };
    let attempts = r#"attempt("name", echoed, "shared.example.com")"#;
    let flags = ["--allow", "shared.example.com:7"];
    world.inside(&flags, attempts).all_refused();
    // Not one of which another test says that nobody came.
    let seen = world.inside(
        &["--allow", "192.168.1.0/24:8080"],
        r#"attempt("address", get, "192.168.1.2", 8080)"#,
    );
    seen.all_done();
}

#[test]
fn n7_an_answer_with_one_private_address_among_public_ones_is_refused() {
    let Some(world) = world() else { return };
    let seen = world.inside(
        &["--allow", "*.example.com:7"],
        r#"
attempt("mixed", echoed, "mixed.example.com")
attempt("alias", echoed, "alias.example.com")
attempt("nothing", echoed, "nothing.example.com")
"#,
    );
    seen.refused("mixed");
    seen.done("alias");
    seen.refused("nothing");
    assert_eq!(seen.connection("nothing.example.com")["verdict"], "failed");
    assert_eq!(seen.connection("alias.example.com")["address"], "93.184.216.34");
}

#[test]
fn n7_a_name_that_changes_its_address_never_leads_inside() {
    let Some(world) = world() else { return };
    let attempts = r#"
for time_ in range(12):
    attempt("time %02d" % time_, echoed, "rebind.example.com")
"#;
    let seen = world.inside(&["--allow", "rebind.example.com:7"], attempts);
    let connections = seen.connections("rebind.example.com");
    let told = |verdict: &str| times(connections.iter().copied().filter(|one| one["verdict"] == verdict));
    assert!(
        told("allowed") > 0 && told("allowed") + told("refused") == 12,
        "{connections:#?}"
    );
    assert!(
        told("refused") > 0,
        "the control: the name does change\n{connections:#?}"
    );
    world.assert_untouched("10.0.0.5");
}

#[test]
fn n3_an_address_that_the_host_gets_while_a_sandbox_runs_is_refused_from_then_on() {
    const ADDRESS: &str = "93.184.216.99";
    let Some(world) = world() else { return };
    let site = Site::new();
    let attempts = r#"
attempt("elsewhere", echoed, "moved.example.com")
attempt("told", echoed, "moved-told.wild.example.org")
sys.stdin.read()
attempt("here", echoed, "moved.example.com")
attempt("others", echoed, "www.example.com")
"#;
    let flags = ["--allow", "*.example.com:7", "--allow", "*.wild.example.org:7"];
    let run = start(&mut world.sandboxed(&site, &flags, attempts));
    let told = |entry: &serde_json::Value| entry["name"] == "moved-told.wild.example.org";
    eventually("the end of the first attempt", || world.met().into_iter().find(told));
    let reached = world.met().into_iter().find(|entry| entry["local"] == ADDRESS).unwrap();
    assert_eq!(reached["at"], "internet", "the control: it is not the host's yet");
    world.add_address(ADDRESS);
    world
        .outside(&format!("attempt(\"control\", echoed, {ADDRESS:?})"))
        .all_done();
    // Its input ends.
    let seen = Seen::of_output(&finish(run));
    seen.done("elsewhere");
    seen.refused("here");
    seen.done("others");
    let connections = seen.connections("moved.example.com");
    let told: Vec<_> = connections.iter().map(|one| one["verdict"].as_str()).collect();
    assert_eq!(told, [Some("allowed"), Some("refused")], "{connections:#?}");
    let reason = connections[1]["reason"].as_str().unwrap();
    assert!(reason.contains(ADDRESS) && reason.contains("this machine"), "{reason}");
    assert_untouched_host(world);
}
