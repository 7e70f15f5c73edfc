//! `offleash front` before real servers, each a node with a state directory of its own.

use std::collections::BTreeSet;
use std::fs::Permissions;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Stdio};

use rustix::process::Signal;
use serde_json::json;

use crate::client::{Answer, ask};
use crate::server::Server;
use crate::support::processes::{eventually, signal, wait};
use crate::support::{Site, stderr, stdout};

/// A front that runs until it is dropped.
struct FrontProcess {
    address: SocketAddr,
    child: Child,
}

impl FrontProcess {
    fn start(site: &Site, nodes: &[SocketAddr]) -> Self {
        let key_file = site.root().join("overview.key");
        let mut command = site.offleash(["front", "--listen", "127.0.0.1:0", "--key-file"]);
        command.arg(key_file);
        for node in nodes {
            command.args(["--node", &format!("http://{node}")]);
        }
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let line = BufReader::new(child.stdout.take().unwrap()).lines().next();
        let line = line.unwrap().unwrap();
        let address = line.split_once("://").unwrap().1.parse().unwrap();
        let front = Self { address, child };
        eventually("a node that answers", || {
            (front.ask("", "GET /readyz", "").status == 204).then_some(())
        });
        front
    }

    fn ask(&self, key: &str, line: &str, body: &str) -> Answer {
        ask(self.address, line, &[("X-API-KEY", key)], body)
    }

    /// The ids of all sandboxes, page by page.
    fn listed(&self, key: &str) -> Vec<String> {
        let (mut ids, mut next) = (Vec::new(), String::new());
        loop {
            let answer = self.ask(key, &format!("GET /v2/sandboxes?limit=1{next}"), "");
            assert_eq!(answer.status, 200, "{answer:?}");
            let page = answer.json();
            let page = page.as_array().unwrap();
            ids.extend(page.iter().map(|one| one["sandboxID"].as_str().unwrap().to_owned()));
            match answer.header("x-next-token") {
                Some(token) => next = format!("&nextToken={token}"),
                None => return ids,
            }
        }
    }
}

impl Drop for FrontProcess {
    fn drop(&mut self) {
        signal(&self.child, Signal::TERM);
        wait(&mut self.child);
    }
}

/// A node that takes the keys of others.
fn node(keys: &[(&str, &str)]) -> Server {
    let server = Server::start();
    for (scope, key) in keys {
        let file = server.site.root().join(format!("{scope}.key"));
        std::fs::write(&file, format!("{key}\n")).unwrap();
        std::fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        for _ in 0..2 {
            let file = file.to_str().unwrap();
            let printed = server
                .site
                .succeed(["key", "create", "--scope", scope, "--name", scope, "--key-file", file]);
            assert_eq!(printed, "", "a key was printed");
        }
    }
    server
}

#[test]
fn sandboxes_of_two_nodes_are_made_found_and_listed_as_those_of_one_server() {
    let [user, overview] = ['a', 'b'].map(|digit| format!("e2b_{}", digit.to_string().repeat(40)));
    let keys = [("create", user.as_str()), ("overview", overview.as_str())];
    let mut nodes = [node(&keys), node(&keys)];
    let addresses = nodes.each_ref().map(|node| node.address);
    let front = FrontProcess::start(&nodes[0].site, &addresses);
    let is_known = |at: &Server, id: &str| at.ask(&user, &format!("GET /v1/sandboxes/{id}"), "").status == 200;

    // With a key that may not ask what it has to there is no front.
    let file = nodes[0].site.root().join("create.key");
    let node = format!("http://{}", addresses[1]);
    let told = refused(
        &nodes[0].site,
        &["front", "--node", &node, "--key-file", file.to_str().unwrap()],
    );
    assert!(told.contains("has neither the scope `overview` nor `admin`"), "{told}");

    // No key, no sandbox.
    front
        .ask("", "POST /v2/sandboxes", "{\"templateID\":\"base\"}")
        .assert_refused(401);
    let body = json!({ "templateID": "base", "timeout": 120 }).to_string();
    let mut made: Vec<String> = Vec::new();
    // Each gets some as soon as it has answered once.
    let both = |made: &[String]| nodes.iter().all(|server| made.iter().any(|id| is_known(server, id)));
    while !both(&made) {
        assert!(made.len() < 50, "one of two nodes has all of {}", made.len());
        let key = format!("create-{}", made.len());
        let head = [("X-API-KEY", user.as_str()), ("Idempotency-Key", key.as_str())];
        let [first, again] = [(); 2].map(|()| {
            let answer = ask(front.address, "POST /v2/sandboxes", &head, &body);
            assert_eq!(answer.status, 201, "{answer:?}");
            answer.json()["sandboxID"].as_str().unwrap().to_owned()
        });
        assert_eq!(first, again, "a create that was sent twice made two");
        made.push(first);
    }
    let all: BTreeSet<String> = made.iter().cloned().collect();
    let listed = front.listed(&user);
    assert_eq!(
        (listed.len(), listed.into_iter().collect::<BTreeSet<_>>()),
        (made.len(), all)
    );
    assert_eq!(
        front.ask(&user, "GET /sandboxes", "").json().as_array().unwrap().len(),
        made.len()
    );
    for id in &made {
        let answer = front.ask(
            &user,
            &format!("POST /v1/sandboxes/{id}/run"),
            "{\"shell\":\"echo here\"}",
        );
        assert_eq!(answer.json()["stdout"], "here\n", "{answer:?}");
    }
    // One that was made without the front is found, too, and what is nobody's is so in a node's own words.
    let beside = nodes[1].ask(&user, "POST /v2/sandboxes", &body).json()["sandboxID"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(front.ask(&user, &format!("GET /sandboxes/{beside}"), "").status, 200);
    front
        .ask(&user, "GET /sandboxes/i0000000000000000000", "")
        .assert_refused(404);
    front.ask(&user, "GET /v1/volumes", "").assert_refused(501);
    let version = front.ask(&user, "GET /v1/version", "").json();
    assert_eq!(version["url"], format!("http://{}", front.address));

    // One is drained: what is new goes to the other, and what it has is reached.
    let drained = nodes[0].site.succeed(["drain"]);
    assert!(drained.starts_with("drained: takes no new sandboxes; "), "{drained}");
    ask(nodes[0].address, "GET /readyz", &[], "").assert_refused(503);
    let refused = nodes[0].ask(&user, "POST /v2/sandboxes", &body);
    refused.assert_refused(503);
    assert!(refused.body.contains("drained"), "{refused:?}");
    let of_one = made.iter().find(|id| is_known(&nodes[0], id)).unwrap();
    for _ in 0..2 {
        // A create that a node refuses for this goes to the next one, before and after the front has heard of it.
        let id = front.ask(&user, "POST /v2/sandboxes", &body).json()["sandboxID"]
            .as_str()
            .unwrap()
            .to_owned();
        assert!(is_known(&nodes[1], &id));
        assert_eq!(front.ask(&user, &format!("DELETE /sandboxes/{id}"), "").status, 204);
        eventually("the front to hear of it", || {
            let told = front.ask(&overview, "GET /v1/front/nodes", "").json();
            (told["nodes"][0]["state"] == "drained").then_some(())
        });
    }
    assert_eq!(front.ask(&user, &format!("GET /sandboxes/{of_one}"), "").status, 200);
    front.ask(&user, "GET /v1/front/nodes", "").assert_refused(403);
    assert!(nodes[0].site.succeed(["drain", "--undo"]).starts_with("open: "));
    assert_eq!(ask(nodes[0].address, "GET /readyz", &[], "").status, 204);
    eventually("the front to hear that it is open", || {
        let told = front.ask(&overview, "GET /v1/front/nodes", "").json();
        (told["nodes"][0]["state"] == "alive").then_some(())
    });

    // A node is gone: what it has is said to be there and not reached, and nothing new goes there.
    let lost = made.iter().find(|id| is_known(&nodes[1], id)).unwrap().clone();
    let name = nodes[1].address.to_string();
    let _ended = nodes[1].end();
    let told = eventually("a lost node", || {
        let answer = front.ask(&user, "GET /sandboxes", "");
        answer.header("offleash-nodes-missing").map(str::to_owned)
    });
    assert_eq!(told, name);
    let answer = front.ask(&user, &format!("GET /sandboxes/{lost}"), "");
    answer.assert_refused(503);
    assert!(answer.body.contains(&name), "{answer:?}");
    let after = front.ask(&user, "POST /v2/sandboxes", &body);
    assert_eq!(after.status, 201, "{after:?}");
    let after = after.json()["sandboxID"].as_str().unwrap().to_owned();
    assert!(is_known(&nodes[0], &after));

    // Its sandboxes outlived it, and are there again with it. Another port would be another node.
    let listen = ["serve", "--listen", &name, "--config"];
    let mut command = nodes[1].site.offleash(listen);
    command.arg(nodes[1].config());
    let site = std::mem::replace(&mut nodes[1].site, Site::new());
    let _again = Server::spawned(site, command);
    eventually("the node that is back", || {
        (front.ask(&user, &format!("GET /sandboxes/{lost}"), "").status == 200).then_some(())
    });
    for id in [&lost, &after, &beside] {
        assert_eq!(front.ask(&user, &format!("DELETE /sandboxes/{id}"), "").status, 204);
    }
}

#[test]
fn sandboxes_of_a_drained_node_are_at_another_one_with_their_files() {
    let [user, overview, admin] = ['a', 'b', 'c'].map(|digit| format!("e2b_{}", digit.to_string().repeat(40)));
    let keys = [
        ("create", user.as_str()),
        ("overview", overview.as_str()),
        ("admin", admin.as_str()),
    ];
    let nodes = [node(&keys), node(&keys)];
    let addresses = nodes.each_ref().map(|node| node.address);
    let front = FrontProcess::start(&nodes[0].site, &addresses);
    let made = |name: &str| {
        let body = json!({ "name": name, "metadata": {"a": "b"}, "env": {"GIVEN": "x"}, "timeout_seconds": 600 });
        let answer = nodes[0].ask(&user, "POST /v1/sandboxes", &body.to_string());
        assert_eq!(answer.status, 201, "{answer:?}");
        answer.json()["id"].as_str().unwrap().to_owned()
    };
    let run = |id: &str, shell: &str| {
        let answer = front.ask(
            &user,
            &format!("POST /v1/sandboxes/{id}/run"),
            &json!({ "shell": shell }).to_string(),
        );
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()["stdout"].as_str().unwrap().to_owned()
    };
    let shown = |id: &str| front.ask(&user, &format!("GET /sandboxes/{id}"), "").json();
    let ids = [made("runs"), made("rests")];
    for id in &ids {
        run(id, "echo kept >~/file; echo also >/tmp/also; ln ~/file ~/other");
    }
    let rests = format!("/v1/sandboxes/{}", ids[1]);
    assert_eq!(front.ask(&user, &format!("POST {rests}/pause"), "{}").status, 200);
    let tokens = ids.each_ref().map(|id| shown(id)["envdAccessToken"].clone());
    // The owner of a machine is nobody elsewhere: what is his is waited for.
    let own = nodes[0].site.succeed(["create"]);

    let drain = |node: SocketAddr| {
        let mut command = nodes[0]
            .site
            .offleash(["--host", &format!("http://{}", front.address), "drain"]);
        command.arg(node.to_string()).env("OFFLEASH_API_KEY", &admin);
        command.output().unwrap()
    };
    let output = drain(addresses[0]);
    let said = stdout(&output);
    assert!(
        said.ends_with("is drained: 2 moved, 1 waiting, 0 failed\n"),
        "{output:?}"
    );
    let why = stderr(&output);
    assert!(
        why.contains(own.trim()) && why.contains("is the machine's owner's"),
        "{why}"
    );
    assert!(output.status.success());

    for (id, token) in ids.iter().zip(&tokens) {
        nodes[0]
            .ask(&user, &format!("GET /v1/sandboxes/{id}"), "")
            .assert_refused(404);
        let there = nodes[1].ask(&user, &format!("GET /v1/sandboxes/{id}"), "");
        assert_eq!(there.status, 200, "{there:?}");
        assert_eq!(&shown(id)["envdAccessToken"], token);
        assert_eq!(shown(id)["metadata"]["a"], "b");
    }
    assert_eq!(shown(&ids[0])["state"], "running");
    assert_eq!(shown(&ids[1])["state"], "paused");
    assert_eq!(front.ask(&user, &format!("POST {rests}/resume"), "{}").status, 200);
    for id in &ids {
        assert_eq!(
            run(id, "cat ~/file ~/other /tmp/also; echo $GIVEN"),
            "kept\nkept\nalso\nx\n"
        );
    }
    let listed = front.listed(&user);
    let once: BTreeSet<String> = listed.iter().cloned().collect();
    assert_eq!((listed.len(), once), (2, ids.iter().cloned().collect()));
    let named = front.ask(&user, "GET /v1/names/runs", "").json();
    assert_eq!(named["id"], ids[0].as_str(), "{named}");
    // Nothing is left of what was carried.
    for node in &nodes {
        let left = node.ask(&admin, "GET /v1/snapshots", "").json();
        assert_eq!(left["snapshots"], json!([]), "{left}");
    }

    // No node takes them any more: they stay, and go on.
    let output = drain(addresses[1]);
    assert!(
        stdout(&output).ends_with("0 moved, 0 waiting, 2 failed\n") && !output.status.success(),
        "{output:?}"
    );
    assert_eq!(run(&ids[0], "cat ~/file"), "kept\n");
    for (key, expected) in [(&user, 403), (&overview, 403)] {
        let body = json!({ "node": addresses[0].to_string() }).to_string();
        front.ask(key, "POST /v1/front/drain", &body).assert_refused(expected);
    }
}

/// What a command says that is refused.
fn refused(site: &Site, words: &[&str]) -> String {
    let output = site.offleash(words).output().unwrap();
    assert_eq!(output.status.code(), Some(125), "{words:?}");
    crate::support::stderr(&output)
}

#[test]
fn a_front_that_cannot_be_one_says_why() {
    let site = Site::new();
    let key = site.write("key", format!("e2b_{}\n", "0".repeat(40)));
    let short = site.write("short", "e2b_12\n");
    for file in [&key, &short] {
        std::fs::set_permissions(file, Permissions::from_mode(0o600)).unwrap();
    }
    let key = key.to_str().unwrap();
    let open = site.write("open", format!("e2b_{}\n", "0".repeat(40)));
    std::fs::set_permissions(&open, Permissions::from_mode(0o644)).unwrap();
    let pipe = site.root().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
    for (words, why) in [
        (
            vec!["--node", "http://a:1", "--key-file", "/nonexistent"],
            "reading the key in `/nonexistent`",
        ),
        (
            vec!["--node", "http://a:1", "--key-file", short.to_str().unwrap()],
            "not an API key",
        ),
        (
            vec!["--node", "http://a:1", "--key-file", open.to_str().unwrap()],
            "everybody may read it",
        ),
        (
            vec!["--node", "http://a:1", "--key-file", pipe.to_str().unwrap()],
            "no regular file",
        ),
        (
            vec!["--node", "http://a:1", "--node", "http://a:1=2", "--key-file", key],
            "is named twice",
        ),
        (
            vec!["--node", "http://a:1", "--key-file", key, "--listen", "0.0.0.0:0"],
            "could read keys",
        ),
        (
            vec!["--node", "https://a:1", "--key-file", key, "--node-ca", "/nonexistent"],
            "reading the authorities",
        ),
        (
            vec![
                "--nodes-dns",
                "http://a:1",
                "--nodes-dns",
                "http://a:1=2",
                "--key-file",
                key,
            ],
            "is said twice",
        ),
    ] {
        let told = refused(&site, &[vec!["front"], words].concat());
        assert!(told.contains(why), "{told}");
    }
}

#[test]
fn a_key_that_was_removed_does_not_come_back_from_a_file() {
    let site = Site::new();
    let file = site.write("key", format!("e2b_{}\n", "1".repeat(40)));
    let take = ["key", "create", "--name", "given", "--key-file", file.to_str().unwrap()];
    assert_eq!(site.succeed(take), "");
    site.succeed(["key", "rm", "given"]);
    let told = refused(&site, &take);
    assert!(
        told.contains("was removed before") && !told.contains("1111111111"),
        "{told}"
    );
}
