//! Who is asked for names, and SOCKS proxies through which everything goes: named by whoever runs a sandbox on this
//! machine, and by whoever makes one through a server.

use std::path::Path;

use serde_json::{Value, json};

use crate::server::Served;
use crate::support::processes::{finish, start};
use crate::support::{Site, stderr};
use crate::world::{Seen, World, is_from_host, world};

const OTHER_RESOLVER: &str = "93.184.216.35";
const PRIVATE_RESOLVER: &str = "10.0.0.5";
const PRIVATE_PROXY: &str = "172.16.0.10";

/// Adds the servers on the way out to the internet.
pub(crate) fn prepare(directory: &Path) {
    std::fs::write(directory.join("ways_out.py"), include_str!("ways_out.py")).unwrap();
}

impl World {
    /// Who was asked for `name` by the host.
    fn asked_for(&self, name: &str) -> Vec<String> {
        let met = self.met().into_iter();
        let questions = met.filter(|entry| entry["name"] == name && is_from_host(entry));
        questions
            .map(|entry| entry["server"].as_str().unwrap().to_owned())
            .collect()
    }

    /// What SOCKS proxies were asked for that has `text` in it.
    fn asked_of_socks(&self, text: &str) -> Vec<Value> {
        let met = self.met().into_iter();
        met.filter(|entry| entry["kind"] == "socks" && entry["asked"].as_str().unwrap().contains(text))
            .collect()
    }
}

#[test]
fn names_are_asked_of_the_servers_that_are_named() {
    let Some(world) = world() else { return };
    let name = "split.named.example.com";
    let attempt = format!("attempt(\"page\", get, {name:?})");
    let seen = world.inside(&["--allow", name], &attempt);
    seen.refused("page");
    assert_eq!(seen.connection(name)["verdict"], "failed", "the control");
    for servers in [
        &["--dns-server", OTHER_RESOLVER][..],
        &["--dns-server", "10.0.0.5:53"],
        // Where nobody answers, the next one is asked.
        &["--dns-server", "93.184.216.99", "--dns-server", OTHER_RESOLVER],
    ] {
        let before = world.asked_for(name);
        let seen = world.inside(&[&["--allow", name], servers].concat(), &attempt);
        seen.done("page");
        assert_eq!(seen.connection(name)["address"], "93.184.216.34");
        let asked = world.asked_for(name).split_off(before.len());
        assert!(!asked.is_empty() && !asked.contains(&"9.9.9.9".to_owned()), "{asked:?}");
    }
    let site = Site::new();
    let policy = format!("[network]\nallow = [{name:?}]\ndns_servers = [{OTHER_RESOLVER:?}]\n");
    let policy = site.write("named.toml", &policy);
    let flags = ["--policy", policy.to_str().unwrap()];
    Seen::of_output(&finish(start(&mut world.sandboxed(&site, &flags, &attempt)))).done("page");
}

#[test]
fn n4_what_a_named_server_answers_is_checked_as_ever() {
    let Some(world) = world() else { return };
    let flags = [
        "--dns-server",
        PRIVATE_RESOLVER,
        "--allow",
        "*.example.com",
        "--allow",
        "split.open.example.com",
    ];
    let seen = world.inside(
        &flags,
        r#"
attempt("the control", get, "split.open.example.com")
attempt("private", get, "split.inside.example.com")
attempt("loopback", get, "loopback.example.com")
attempt("metadata", get, "metadata.example.com")
attempt("the server itself", echoed, "10.0.0.5", 7)
attempt("unheard", get, "split.unheard-by-it.example")
"#,
    );
    seen.all_refused_but(&["the control"]);
    for name in [
        "split.inside.example.com",
        "loopback.example.com",
        "metadata.example.com",
    ] {
        assert_eq!(seen.connection(name)["verdict"], "refused", "{name}");
    }
    world.assert_never_asked("unheard-by-it.example");
}

#[test]
fn socks_proxies_are_asked_for_names_or_for_addresses() {
    let Some(world) = world() else { return };
    for (scheme, asked, address) in [
        ("socks5h", "socks5h-a.wild.example.org", Value::Null),
        ("socks5", "93.184.216.34", json!("93.184.216.34")),
    ] {
        let proxy = format!("{scheme}://{PRIVATE_PROXY}:1080");
        let names = ["a", "b"].map(|name| format!("{scheme}-{name}.wild.example.org"));
        let before = world.asked_of_socks(asked).len();
        let seen = world.inside(
            &[
                "--upstream-proxy",
                &proxy,
                "--allow",
                "*.wild.example.org:7,80",
                "--allow",
                "www.example.com",
            ],
            &format!(
                r#"
attempt("http", get, "{}")
attempt("raw", echoed, "{}")
attempt("https", get_secure, "www.example.com", authority="certificate")
"#,
                names[0], names[1]
            ),
        );
        seen.all_done();
        assert!(world.asked_of_socks(asked).len() > before, "{asked} of {scheme}");
        for name in &names {
            let connection = seen.connection(name);
            assert_eq!(
                (&connection["verdict"], &connection["address"]),
                (&json!("allowed"), &address)
            );
            assert_eq!(
                world.asked_for(name).is_empty(),
                scheme == "socks5h",
                "who resolves {name}"
            );
        }
    }
}

#[test]
fn n3_what_is_refused_without_a_socks_proxy_is_refused_before_it() {
    let Some(world) = world() else { return };
    for scheme in ["socks5h", "socks5"] {
        let proxy = format!("{scheme}://{PRIVATE_PROXY}:1080");
        let mut flags = vec![
            "--upstream-proxy",
            &proxy,
            "--allow",
            "www.example.com",
            "--allow",
            "0.0.0.0/1:7",
        ];
        flags.extend(["--allow", "x.localhost:7", "--allow", "private.example.com"]);
        let seen = world.inside(
            &flags,
            r#"
attempt("the control", get_secure, "www.example.com")
attempt("private", echoed, "10.0.0.5")
attempt("loopback", echoed, "127.0.0.1")
attempt("the proxy's own", echoed, "x.localhost")
attempt("SNI", get_secure, "www.example.com", sni="secret.example.com")
attempt("name", get, "socks.unheard.example")
"#,
        );
        seen.all_refused_but(&["the control"]);
        for asked in ["10.0.0.5", "127.0.0.1", "localhost", "unheard"] {
            assert!(world.asked_of_socks(asked).is_empty(), "{asked}");
        }
    }
    // Where names are resolved here, so is what they lead to.
    let proxy = format!("socks5://{PRIVATE_PROXY}:1080");
    let flags = ["--upstream-proxy", &proxy, "--allow", "private.example.com"];
    let seen = world.inside(&flags, r#"attempt("leads inside", get, "private.example.com")"#);
    seen.refused("leads inside");
    assert_eq!(seen.connection("private.example.com")["verdict"], "refused");
    assert!(world.asked_of_socks("private.example.com").is_empty());
    assert!(world.asked_of_socks("10.0.0.5").is_empty());
}

#[test]
fn k4_the_password_for_a_socks_proxy_is_used_and_shown_nowhere() {
    let Some(world) = world() else { return };
    let site = Site::new();
    let attempts = r#"
attempt("page", get, "known.wild.example.org")
attempt("environment", lambda: "s3" + "cret" in str(os.environ))
"#;
    for (password, passes) in [("s3cret", true), ("n0t-s3cret", false)] {
        let url = format!("socks5h://me:{password}@{PRIVATE_PROXY}:1081");
        let flags = ["--allow", "*.wild.example.org", "--upstream-proxy", "env:CORPORATE"];
        let mut command = world.sandboxed(&site, &flags, attempts);
        command.env("CORPORATE", &url);
        let output = finish(start(&mut command));
        let seen = Seen::of_output(&output);
        assert_eq!(seen.done("environment"), "False");
        let connection = seen.connection("known.wild.example.org");
        if passes {
            seen.done("page");
            assert_eq!(connection["verdict"], "allowed");
        } else {
            assert!(seen.refused("page").contains("502 Bad Gateway"));
            let reason = connection["reason"].as_str().unwrap();
            assert_eq!(
                reason,
                "the proxy of `--upstream-proxy` wants a name and a password that it knows"
            );
        }
        let log = finish(start(&mut world.offleash(&site, &["audit", "show"])));
        for text in [&output.stdout, &output.stderr, &log.stdout, &log.stderr] {
            assert!(!String::from_utf8_lossy(text).contains("s3cret"));
        }
    }
}

#[test]
fn a_socks_proxy_that_does_not_do_its_work_is_a_failure_and_nothing_goes_around_it() {
    let Some(world) = world() else { return };
    for (port, reason) in [
        (1081, "wants a name and a password that it knows"),
        (26, "cannot be reached"),
        (22, "does not answer as a SOCKS 5 proxy does"),
        (10, "does not answer as a SOCKS 5 proxy does"),
    ] {
        let proxy = format!("socks5h://{PRIVATE_PROXY}:{port}");
        let seen = world.inside(
            &["--allow", "www.example.com:80", "--upstream-proxy", &proxy],
            r#"attempt("page", get, "www.example.com")"#,
        );
        assert!(seen.refused("page").contains("502 Bad Gateway"));
        let connection = seen.connection("www.example.com");
        assert_eq!(connection["verdict"], "failed", "{connection:#}");
        let told = connection["reason"].as_str().unwrap();
        assert!(told.contains(reason), "{told}");
        assert_eq!(connection["address"], Value::Null);
    }
}

#[test]
fn servers_for_names_that_mean_nothing_are_refused_before_anything_runs() {
    let site = Site::new();
    for (flags, reason) in [
        (
            &["--allow", "a.example", "--dns-server", "dns.example"][..],
            "is not an address of a DNS server",
        ),
        (
            &["--allow", "a.example", "--dns-server", "0.0.0.0"],
            "no DNS server has the address",
        ),
        (&["--dns-server", "9.9.9.9"], "nothing may be reached"),
    ] {
        let output = finish(start(&mut site.offleash([&["run"], flags, &["--", "true"]].concat())));
        let told = stderr(&output);
        assert_eq!(output.status.code(), Some(125), "{told}");
        assert!(told.contains(reason) && told.contains("hint: "), "{told}");
    }
    // A policy that lies in the workspace may not say who answers for names.
    site.write("offleash.toml", "[network]\ndns_servers = [\"9.9.9.9\"]\n");
    let output = finish(start(&mut site.offleash(["run", "--allow", "a.example", "--", "true"])));
    assert!(!output.status.success());
    assert!(stderr(&output).contains("network.dns_servers"), "{}", stderr(&output));
}

/// Says what comes of a page of `HOST`.
const PAGE: &str = r#"
import http.client
connection = http.client.HTTPConnection("HOST", timeout=60)
try:
    connection.request("GET", "/")
    print(connection.getresponse().status)
except OSError as error:
    print("refused", error)
"#;

fn page(served: &Served, id: &str, host: &str) -> String {
    served.python(id, &PAGE.replace("HOST", host))
}

/// What may be reached by name.
fn reaching(more: &Value) -> Value {
    let mut network = json!({ "allowOut": ["*.example.com", "*.wild.example.org"], "denyOut": ["0.0.0.0/0"] });
    for (key, value) in more.as_object().unwrap() {
        network[key] = value.clone();
    }
    network
}

#[test]
fn whoever_makes_a_sandbox_may_name_public_servers_for_names_and_others_while_it_runs() {
    let Some(world) = world() else { return };
    let served = Served::start(world);
    let named = reaching(&json!({ "dnsServers": [OTHER_RESOLVER] }));
    let id = served.made(&named);
    let shown = served.ask(&format!("GET /sandboxes/{id}"), &json!({})).1;
    assert_eq!(shown["network"]["dnsServers"], named["dnsServers"]);
    assert_eq!(page(&served, &id, "split.served.example.com"), "200\n");
    assert!(
        world
            .asked_for("split.served.example.com")
            .iter()
            .all(|server| server == OTHER_RESOLVER)
    );
    // What is not said again does not hold any more.
    served.set_network(&id, &reaching(&json!({})));
    assert_eq!(page(&served, &id, "split.served.example.com"), "502\n");
    assert_eq!(page(&served, &id, "www.example.com"), "200\n");
    served.set_network(&id, &named);
    assert_eq!(page(&served, &id, "split.served.example.com"), "200\n");
    // An address of this machine is public here, and known to be its own only when it is asked.
    served.set_network(&id, &reaching(&json!({ "dnsServers": ["151.101.64.2"] })));
    assert_eq!(page(&served, &id, "www.example.com"), "403\n");
    let line = format!("PUT /sandboxes/{id}/network");
    for bad in [
        json!(["10.0.0.5"]),
        json!(["127.0.0.53"]),
        json!(["dns.example"]),
        json!(["::1"]),
    ] {
        let (status, answer) = served.ask(&line, &reaching(&json!({ "dnsServers": bad })));
        assert_eq!((status, answer["code"].as_u64()), (400, Some(400)), "{answer}");
    }
}

#[test]
fn whoever_makes_a_sandbox_may_name_a_public_proxy_and_change_it() {
    let Some(world) = world() else { return };
    let served = Served::start(world);
    let proxy = |address: &str, password: &str| {
        let proxy = json!({ "address": address, "username": "me", "password": password });
        reaching(&json!({ "egressProxy": proxy }))
    };
    let known = proxy("93.184.216.34:1081", "s3cret");
    let id = served.made(&known);
    let shown = served.ask(&format!("GET /sandboxes/{id}"), &json!({})).1;
    let expected = json!({ "address": "93.184.216.34:1081", "username": "me" });
    assert_eq!(shown["network"]["egressProxy"], expected);
    assert!(!shown.to_string().contains("s3cret"));
    assert_eq!(page(&served, &id, "served-a.wild.example.org"), "200\n");
    assert!(
        world.asked_for("served-a.wild.example.org").is_empty(),
        "the proxy resolves names"
    );
    assert!(
        world
            .asked_of_socks("served-a.wild.example.org")
            .iter()
            .all(|entry| entry["known"] == true)
    );
    assert!(
        !served
            .run(&id, "env; cat /proc/*/environ 2>/dev/null || true")
            .contains("s3cret")
    );

    served.keep_connection(&id, "kept", "http://served-b.wild.example.org/");
    // Without it, nothing that was made through it goes on.
    served.set_network(&id, &reaching(&json!({})));
    served.eventually_says(&id, "kept", "cut");
    assert_eq!(page(&served, &id, "served-c.wild.example.org"), "200\n");
    assert!(world.asked_of_socks("served-c").is_empty());

    for (network, status) in [
        (proxy("93.184.216.34:1081", "other"), "502\n"),
        (proxy("93.184.216.34:26", "s3cret"), "502\n"),
        // Names that lead inside are seen when they are resolved, and so are the machine's own addresses.
        (proxy("private.example.com:1080", "s3cret"), "403\n"),
        (proxy("151.101.64.2:7", "s3cret"), "403\n"),
        (proxy("api.example.com:1081", "s3cret"), "200\n"),
    ] {
        served.set_network(&id, &network);
        assert_eq!(page(&served, &id, "served-d.wild.example.org"), status, "{network}");
    }
    // What may not be reached is refused before the proxy is asked.
    served.set_network(&id, &known);
    assert_eq!(page(&served, &id, "93.184.216.35"), "403\n");
    assert!(world.asked_of_socks("93.184.216.35").is_empty());

    let line = format!("PUT /sandboxes/{id}/network");
    let with = |proxy: Value| reaching(&json!({ "egressProxy": proxy }));
    for (network, expected) in [
        (proxy("172.16.0.10:1081", "s3cret"), 400),
        (proxy("nonsense", "s3cret"), 400),
        (with(json!({ "address": "a.example:1", "password": "s3cret" })), 400),
        (
            with(json!({ "address": "a.example:1", "tls": { "enabled": true } })),
            501,
        ),
    ] {
        let (status, answer) = served.ask(&line, &network);
        assert_eq!(
            (status, answer["code"].as_u64()),
            (expected, Some(expected.into())),
            "{answer}"
        );
        assert!(!answer.to_string().contains("s3cret"), "{answer}");
    }
}
