//! Browsers that wait for sessions, and proxies of sessions. The browser is the one of `browsers`.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::browsers::{Driver, FAKE, create, get, id_of, release};
use crate::server::{QUIET, Server};
use crate::support::processes::{eventually, program};
use crate::support::skip;

/// A server that has one browser wait, whose arguments have `mark` among them.
fn server(mark: &str, more: &str) -> Option<Server> {
    if program("python3").is_none() {
        skip("`python3` is missing");
        return None;
    }
    let command = json!(["python3", "-c", FAKE, mark]);
    let config = format!("{QUIET}[sandboxes]\nbrowser_command = {command}\nbrowser_pool = 1\n{more}");
    Some(Server::start_with(&config, &[]))
}

/// Waits until so many browsers wait.
fn wait_for_browsers(server: &Server, key: &str, count: usize) {
    eventually("browsers that wait", || {
        let metrics = server.ask(key, "GET /metrics", "").body;
        metrics
            .contains(&format!("\noffleash_pool_browsers {count}\n"))
            .then_some(())
    });
}

fn from_pool(session: &Value) -> bool {
    session["fromPool"].as_bool().unwrap()
}

/// The processes of this machine that have `mark` among their arguments.
fn marked(mark: &str) -> Vec<Pid> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let pids = all.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let arguments = fs::read(entry.path().join("cmdline")).ok()?;
        let is_it = arguments.split(|byte| *byte == 0).any(|word| word == mark.as_bytes());
        is_it.then(|| Pid::from_raw(pid)).flatten()
    });
    pids.collect()
}

#[test]
fn a_session_takes_a_browser_that_waited_and_one_that_asks_for_more_does_not() {
    let Some(mut server) = server("--waits", "") else {
        return;
    };
    let key = server.key(&[]);
    wait_for_browsers(&server, &key, 1);
    // It is nobody's, and nobody sees it.
    assert_eq!(get(&server, &key, "/v1/sandboxes")["sandboxes"], json!([]));
    let asked = json!({ "timeout": 600, "allow": ["shop.test"], "userMetadata": { "team": "a" } });
    let first = create(&server, &key, &asked);
    assert!(from_pool(&first), "{first}");
    assert_eq!(
        (&first["userMetadata"]["team"], &first["browserSandbox"]),
        (&json!("a"), &json!(false))
    );
    let mut driver = Driver::connect(&server, &first);
    assert_eq!(driver.call("Fake.state")["visits"], 1);
    // It has the rules that were asked for, and the memory of a session.
    let sandbox = get(&server, &key, &format!("/v1/sandboxes/{}", id_of(&first)));
    assert_eq!(sandbox["limits"]["memory_mib"], 1024, "{sandbox}");
    driver.call("Fake.login");
    wait_for_browsers(&server, &key, 1);
    // What a browser is told when it starts is none that waited told.
    let other = create(&server, &key, &json!({ "userAgent": "mine/1" }));
    let larger = create(&server, &key, &json!({ "limits": { "memory_mib": 1100 } }));
    assert!(!from_pool(&other) && !from_pool(&larger));
    // Nor has it what a context has kept; one in which nothing is needs nothing.
    server.ask(&key, "POST /v1/contexts", r#"{"name": "shop"}"#);
    let with = json!({ "browserSettings": { "context": { "id": "shop", "persist": true } } });
    let second = create(&server, &key, &with);
    assert!(from_pool(&second), "{second}");
    // Another one's browser: nothing of the first is in it.
    let state = Driver::connect(&server, &second).call("Fake.state");
    assert_eq!((&state["visits"], &state["cookies"]), (&json!(1), &json!([])));
    let released = release(&server, &key, &id_of(&second));
    assert!(
        !released["message"].as_str().unwrap().contains("not saved"),
        "{released}"
    );
    let third = create(&server, &key, &with);
    assert!(!from_pool(&third), "{third}");
    assert_eq!(Driver::connect(&server, &third).call("Fake.state")["visits"], 2);
    // The next server has those that are somebody's, and makes others wait.
    wait_for_browsers(&server, &key, 1);
    server.restart();
    wait_for_browsers(&server, &key, 1);
    let found = get(&server, &key, &format!("/v1/sessions/{}", id_of(&first)));
    assert_eq!((&found["status"], from_pool(&found)), (&json!("RUNNING"), true));
    assert_eq!(
        get(&server, &key, "/v1/sandboxes")["sandboxes"]
            .as_array()
            .unwrap()
            .len(),
        4
    );
}

#[test]
fn a_browser_that_died_or_hangs_while_it_waited_is_handed_to_nobody() {
    let mark = format!("--hangs-{}", std::process::id());
    let Some(server) = server(&mark, "") else { return };
    let key = server.key(&[]);
    wait_for_browsers(&server, &key, 1);
    let stopped = marked(&mark);
    assert!(!stopped.is_empty());
    for pid in &stopped {
        kill_process(*pid, Signal::STOP).unwrap();
    }
    let session = create(&server, &key, &json!({}));
    assert!(!from_pool(&session), "{session}");
    assert_eq!(Driver::connect(&server, &session).call("Fake.state")["visits"], 1);
    wait_for_browsers(&server, &key, 1);
    let of_session = id_of(&session);
    release(&server, &key, &of_session);
    for pid in marked(&mark) {
        // One that is gone by now is gone.
        let _killed = kill_process(pid, Signal::KILL);
    }
    wait_for_browsers(&server, &key, 0);
    assert!(!from_pool(&create(&server, &key, &json!({}))));
}

#[test]
fn a_session_names_a_proxy_that_the_owner_lists_and_nobody_is_told_its_password() {
    let Some(server) = server("--proxied", "egress_proxies = [\"proxy.example:1080\"]\n") else {
        return;
    };
    let key = server.key(&[]);
    wait_for_browsers(&server, &key, 1);
    let with = |url: &str| json!({ "proxyUrl": url }).to_string();
    for (url, status) in [
        ("socks5://other.example:1080", 403),
        ("socks5://10.0.0.1:1080", 400),
        ("http://proxy.example:1080", 501),
    ] {
        server.ask(&key, "POST /v1/sessions", &with(url)).assert_refused(status);
    }
    let proxy =
        json!({ "type": "external", "server": "socks5://proxy.example:1080", "username": "me", "password": "s3cret" });
    let session = create(&server, &key, &json!({ "proxies": [proxy] }));
    assert_eq!(
        (&session["proxy"], from_pool(&session)),
        (&json!("proxy.example:1080"), true)
    );
    let id = id_of(&session);
    let state = Driver::connect(&server, &session).call("Fake.state");
    let told = [
        state.to_string(),
        get(&server, &key, &format!("/v1/sessions/{id}")).to_string(),
        get(&server, &key, &format!("/v1/sandboxes/{id}")).to_string(),
        release(&server, &key, &id).to_string(),
    ];
    assert!(told.iter().all(|text| !text.contains("s3cret")), "{told:?}");
    // The owner names any, in a place that no other user of the machine sees.
    let file = server.site.root().join("proxy");
    fs::write(&file, "socks5://me:s3cret@other.example:1080\n").unwrap();
    let named = format!("file:{}", file.display());
    let url = server.site.succeed(["browser", "create", "--proxy", &named]);
    assert!(url.starts_with("ws://"), "{url}");
    let in_sight = server
        .site
        .offleash(["browser", "create", "--proxy", "socks5://me:s3cret@p.example:1"])
        .output()
        .unwrap();
    assert!(!in_sight.status.success());
}
