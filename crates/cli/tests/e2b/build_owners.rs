//! Whose templates, archives and passwords are whose: what no SDK does with them.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::path::Path;

use serde_json::{Value, json};

use crate::builds::{ended, image, requested, run_steps, start, with_pool, with_registry};
use crate::client;
use crate::server::{NO_POOL, Server};
use crate::support::processes::eventually;
use crate::support::{skip, stdout};

/// `me:confidential`, as it is sent.
const SENT: &str = "bWU6Y29uZmlkZW50aWFs";

#[test]
fn templates_are_their_keys_own_until_they_are_public() {
    let Some((server, registry)) = with_registry("") else {
        return;
    };
    let which = requested(&server, "mine");
    start(
        &server,
        &which,
        &json!({ "fromImage": image(&registry), "steps": run_steps(&["echo one >/opt/one"]) }),
    );
    assert_eq!(ended(&server, &which)["status"], "ready");
    // The owner of the machine sees whose it is, and what it is called there.
    let listed = stdout(&server.site.offleash(["template", "ls"]).output().unwrap());
    let name = listed
        .lines()
        .find_map(|line| line.split_whitespace().find(|word| word.ends_with("/mine:default")));
    let name = name.unwrap_or_else(|| panic!("{listed}")).to_owned();
    let shown = stdout(&server.site.offleash(["template", "inspect", &name]).output().unwrap());
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!((&shown[0]["id"], &shown[0]["name"]), (&json!(which.0), &json!("mine")));
    let other = stdout(&server.site.offleash(["key", "create"]).output().unwrap());
    let as_other = |request: &str, body: &str| {
        let (status, answer) = client::ask(server.address, other.trim(), request, "", body.as_bytes()).unwrap();
        (status, String::from_utf8_lossy(&answer).into_owned())
    };
    let by_id = json!({ "templateID": which.0 }).to_string();
    let in_store = format!("{}_{}", which.0, which.1.replace('-', ""));
    let by_build = json!({ "templateID": in_store }).to_string();
    for body in [r#"{"templateID":"mine"}"#, &by_id, &by_build] {
        assert_eq!(as_other("POST /v2/sandboxes", body).0, 404, "{body}");
    }
    let build = format!("/templates/{}/builds/{}", which.0, which.1);
    for request in [
        format!("GET {build}/status"),
        format!("GET {build}/logs"),
        format!("GET /templates/{}", which.0),
        format!("GET /templates/{}/tags", which.0),
        format!("GET /templates/{}/files/{}", which.0, "a".repeat(64)),
        format!("PATCH /v2/templates/{}", which.0),
        format!("DELETE /templates/{}", which.0),
        "GET /templates/aliases/mine".to_owned(),
    ] {
        assert_eq!(as_other(&request, "{}").0, 404, "{request}");
    }
    // To build upon it is to read it.
    let (_, answer) = as_other("POST /v3/templates", r#"{"name":"upon"}"#);
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let path = |answer: &Value| {
        let text = |field: &str| answer[field].as_str().unwrap().to_owned();
        format!("POST /v2/templates/{}/builds/{}", text("templateID"), text("buildID"))
    };
    for from in [which.0.as_str(), &in_store, "mine"] {
        let body = json!({ "fromTemplate": from }).to_string();
        let (status, _) = as_other(&path(&answer), &body);
        assert!(status == 404 || from == "mine", "{from}");
    }
    // It has one of its own of that name.
    let (status, theirs) = as_other("POST /v3/templates", r#"{"name":"mine"}"#);
    assert!(status == 202 && !theirs.contains(&which.0), "{theirs}");
    let (status, answer) = server.ask(&format!("PATCH /v2/templates/{}", which.0), r#"{"public":true}"#);
    assert_eq!((status, &answer["names"]), (200, &json!(["mine"])));
    let (status, answer) = as_other("POST /v2/sandboxes", &by_id);
    assert_eq!(status, 201, "{answer}");
    let made: Value = serde_json::from_str(&answer).unwrap();
    // By its name it is still what is not there.
    assert_eq!(as_other("POST /v2/sandboxes", r#"{"templateID":"mine"}"#).0, 404);
    assert_eq!(as_other(&format!("DELETE /templates/{}", which.0), "").0, 404);
    assert_eq!(server.ask(&format!("DELETE /templates/{}", which.0), "").0, 409);
    let id = made["sandboxID"].as_str().unwrap();
    assert_eq!(as_other(&format!("DELETE /sandboxes/{id}"), "").0, 204);
    for native in ["GET /v1/templates/", "DELETE /v1/templates/"] {
        assert_eq!(as_other(&format!("{native}{}", which.0), "").0, 404);
    }
    assert!(!as_other("GET /v1/templates", "").1.contains(&which.0));
    assert_eq!(
        server.ask("GET /v1/templates", "").1["templates"][0]["tags"]["default"],
        json!(which.1)
    );
    // Of a sandbox that is gone, processes may be still.
    let removed = || server.site.offleash(["template", "rm", &name]).output();
    eventually("the template is used no more", || {
        removed().unwrap().status.success().then_some(())
    });
    assert_eq!(server.ask("GET /v1/templates", "").1["templates"], json!([]));
    server.end();
}

#[test]
fn a_build_counts_against_the_quota_of_its_key() {
    let Some((server, registry)) = with_registry("") else {
        return;
    };
    let flags = [
        "key",
        "create",
        "--max-sandboxes",
        "1",
        "--max-memory",
        "512",
        "--max-disk",
        "1024",
    ];
    let key = stdout(&server.site.offleash(flags).output().unwrap());
    let ask = |request: &str, body: &str| {
        let (status, answer) = client::ask(server.address, key.trim(), request, "", body.as_bytes()).unwrap();
        (status, serde_json::from_slice::<Value>(&answer).unwrap_or_default())
    };
    let (status, answer) = ask("POST /v3/templates", r#"{"name":"bounded"}"#);
    assert_eq!(status, 202, "{answer}");
    let text = |field: &str| answer[field].as_str().unwrap().to_owned();
    let build = format!("{}/builds/{}", text("templateID"), text("buildID"));
    let steps = run_steps(&["head -1 /proc/meminfo; while [ ! -e /opt/none ]; do sleep 0.1; done"]);
    let begin = json!({ "fromImage": image(&registry), "steps": steps }).to_string();
    // Its one sandbox leaves no room for a build, and its build none for a sandbox.
    let (status, sandbox) = ask("POST /v2/sandboxes", r#"{"templateID":"base"}"#);
    assert_eq!(status, 201, "{sandbox}");
    let (status, refused) = ask(&format!("POST /v2/templates/{build}"), &begin);
    assert!(
        status == 429 && refused["message"].as_str().unwrap().contains("quota"),
        "{refused}"
    );
    let id = sandbox["sandboxID"].as_str().unwrap();
    assert_eq!(ask(&format!("DELETE /sandboxes/{id}"), "").0, 204);
    // It counts until all of it has ended.
    crate::support::processes::eventually("room for a build", || {
        (ask(&format!("POST /v2/templates/{build}"), &begin).0 == 202).then_some(())
    });
    let seen = crate::support::processes::eventually("memory that a build sees", || {
        let (_, status) = ask(&format!("GET /templates/{build}/status"), "");
        let lines = status["logEntries"].as_array().unwrap().clone();
        let mut lines = lines.iter().filter_map(|line| line["message"].as_str());
        lines.find(|line| line.starts_with("MemTotal")).map(str::to_owned)
    });
    assert!(seen.contains(&(512 << 10).to_string()), "{seen}");
    assert_eq!(ask("POST /v2/sandboxes", r#"{"templateID":"base"}"#).0, 429);
    // It ends with its template, and counts no more.
    assert_eq!(ask(&format!("DELETE /templates/{}", text("templateID")), "").0, 204);
    let id = crate::support::processes::eventually("room for a sandbox", || {
        let (status, sandbox) = ask("POST /v2/sandboxes", r#"{"templateID":"base"}"#);
        (status == 201).then(|| sandbox["sandboxID"].as_str().unwrap().to_owned())
    });
    assert_eq!(ask(&format!("DELETE /sandboxes/{id}"), "").0, 204);
    server.end();
}

#[test]
fn layers_of_a_build_are_bounded_together() {
    let Some((server, registry)) = with_registry("") else {
        return;
    };
    let flags = ["key", "create", "--max-disk", "128"];
    let key = stdout(&server.site.offleash(flags).output().unwrap());
    let ask = |request: &str, body: &str| {
        let (status, answer) = client::ask(server.address, key.trim(), request, "", body.as_bytes()).unwrap();
        (status, serde_json::from_slice::<Value>(&answer).unwrap_or_default())
    };
    let (_, answer) = ask("POST /v3/templates", r#"{"name":"narrow"}"#);
    let text = |field: &str| answer[field].as_str().unwrap().to_owned();
    let build = format!("{}/builds/{}", text("templateID"), text("buildID"));
    // Each fits, and as many together as leave room for what is no contents.
    let step = |number: u32| format!("dd if=/dev/zero of=/opt/{number} bs=1M count=90 2>/dev/null");
    let steps: Vec<String> = (1..=4).map(step).collect();
    let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
    let begin = json!({ "fromImage": image(&registry), "steps": run_steps(&steps) }).to_string();
    assert_eq!(ask(&format!("POST /v2/templates/{build}"), &begin).0, 202);
    let ended = crate::support::processes::eventually("the end of a build", || {
        let (_, status) = ask(&format!("GET /templates/{build}/status"), "");
        (status["status"] == "error" || status["status"] == "ready").then_some(status)
    });
    let reason = &ended["reason"];
    assert!(
        reason["message"].as_str().unwrap_or_default().contains("on disk"),
        "{ended}"
    );
    assert_eq!(reason["step"], "3", "{ended}");
    server.end();
}

#[test]
fn who_asks_for_one_template_at_once_gets_one() {
    let server = Server::start(crate::server::NO_POOL);
    let ask = || server.ask("POST /v3/templates", r#"{"name":"same"}"#);
    let answers: Vec<(u16, Value)> = std::thread::scope(|scope| {
        let asking: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
        asking.into_iter().map(|asked| asked.join().unwrap()).collect()
    });
    let (_, first) = &answers[0];
    assert!(
        answers
            .iter()
            .all(|(status, answer)| *status == 202 && answer["templateID"] == first["templateID"]),
        "{answers:?}"
    );
    server.end();
}

/// Uploads to the address that the server gives, as SDKs do: without a key.
fn put(server: &Server, url: &str, body: &[u8]) -> u16 {
    let path = url.strip_prefix(&server.url()).unwrap_or_else(|| panic!("{url}"));
    client::ask(server.address, "", &format!("PUT {path}"), "", body)
        .unwrap()
        .0
}

fn archive(site: &Path, script: &str) -> Vec<u8> {
    let directory = site.join("archive");
    std::fs::create_dir_all(&directory).unwrap();
    let script = format!("set -e; cd \"$1\"; rm -rf * ; {script}");
    let made = std::process::Command::new("sh")
        .args(["-c", &script, "sh"])
        .arg(&directory)
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    made.stdout
}

#[test]
fn what_is_uploaded_is_a_strangers() {
    let Some((server, registry)) = with_registry("") else {
        return;
    };
    let site = server.site.root().to_owned();
    let hash = |digit: &str| digit.repeat(64);
    let place = |which: &(String, String), hash: &str| {
        let (status, answer) = server.ask(&format!("GET /templates/{}/files/{hash}", which.0), "");
        assert_eq!(status, 201, "{answer}");
        answer
    };
    let which = requested(&server, "upload");
    let answer = place(&which, &hash("a"));
    assert_eq!(answer["present"], false);
    let url = answer["url"].as_str().unwrap().to_owned();
    assert_eq!(put(&server, &url.replace("token=", "token=0"), b"\x1f\x8b"), 403);
    assert_eq!(put(&server, &url.replace(&hash("a"), &hash("b")), b"\x1f\x8b"), 403);
    // The token is used up by that.
    assert_eq!(put(&server, &url, b"\x1f\x8b"), 403);
    assert_eq!(
        server
            .ask(&format!("GET /templates/{}/files/..%2F..%2Fx", which.0), "")
            .0,
        400
    );
    let url = |hash: &str| place(&which, hash)["url"].as_str().unwrap().to_owned();
    assert_eq!(put(&server, &url(&hash("a")), b"no archive at all"), 400);
    assert_eq!(place(&which, &hash("a"))["present"], false);
    let good = archive(&site, "mkdir d; echo text >d/file; tar -czf - d");
    assert_eq!(put(&server, &url(&hash("a")), &good), 200);
    assert_eq!(place(&which, &hash("a"))["present"], true);
    let copy = |hash: &str| json!({ "type": "COPY", "args": ["d", "/opt/d", "", ""], "filesHash": hash });
    let from = |step: Value| json!({ "fromImage": image(&registry), "steps": [step] });
    // What was not uploaded is told before anything is done.
    let (status, answer) = server.ask(
        &format!("POST /v2/templates/{}/builds/{}", which.0, which.1),
        &from(copy(&hash("c"))).to_string(),
    );
    assert!(
        status == 400 && answer["message"].as_str().unwrap().contains("not uploaded"),
        "{answer}"
    );
    start(&server, &which, &from(copy(&hash("a"))));
    assert_eq!(ended(&server, &which)["status"], "ready");
    // Archives that mean harm: nothing of them is written outside, and the build says why.
    let outside = site.join("outside");
    for (digit, script) in [
        (
            "d",
            "mkdir d; echo x >d/y; tar --transform 's,^d/y,../../../../outside,' -P -czf - d/y",
        ),
        (
            "e",
            &*format!(
                "mkdir d; ln -s {} d/l; tar -cf a.tar d; rm d/l; mkdir d/l; echo x >d/l/outside; tar -rf a.tar d/l/outside; gzip -c a.tar",
                site.display()
            ),
        ),
        ("f", "mkdir d; head -c 400M /dev/zero >d/zeros; tar -cf - d | gzip -9"),
        ("0", "mkdir d; echo x >d/y; tar -czf - d | head -c 60"),
    ] {
        assert_eq!(
            put(&server, &url(&hash(digit)), &archive(&site, script)),
            200,
            "{digit}"
        );
        let which = requested(&server, "harm");
        start(&server, &which, &from(copy(&hash(digit))));
        let answer = ended(&server, &which);
        assert_eq!(answer["status"], "error", "{digit}: {answer}");
        assert_eq!(answer["reason"]["step"], "1", "{digit}: {answer}");
        let why = answer["reason"]["message"].as_str().unwrap();
        assert!(!why.contains(site.to_str().unwrap()), "{why}");
        assert!(!outside.exists(), "{digit}");
    }
    server.end();
}

#[test]
fn a_password_of_a_registry_is_for_one_pull_and_nobody_else() {
    // `me` with the password `word`.
    const PASSWORDS: &str = "me:$2y$05$TQDet70EWA1g1Hyul8OTUuyUsXOtVtSlSvLl9ZHQoqhHWQmSXlDfS\n";
    let Some((server, registry)) = with_registry(PASSWORDS) else {
        return;
    };
    let build = |name: &str, login: Option<&str>| {
        let which = requested(&server, name);
        let mut body = json!({ "fromImage": image(&registry), "steps": run_steps(&["echo ok"]) });
        if let Some(password) = login {
            body["fromImageRegistry"] = json!({ "type": "registry", "username": "me", "password": password });
        }
        start(&server, &which, &body);
        ended(&server, &which)
    };
    assert_eq!(build("none", None)["status"], "error");
    let wrong = build("wrong", Some("another-word"));
    assert_eq!(
        (&wrong["status"], &wrong["reason"]["step"]),
        (&json!("error"), &json!("base")),
        "{wrong}"
    );
    assert_eq!(build("right", Some("word"))["status"], "ready");
    // It was pulled for that build: by its name nobody finds it, and neither does who shows no password.
    assert_eq!(build("later", None)["status"], "error");
    let of_image = json!({ "templateID": format!("image:{}", image(&registry)) }).to_string();
    assert_ne!(server.ask("POST /v2/sandboxes", &of_image).0, 201);
    // Neither the state directory nor the log has the password.
    let found = std::process::Command::new("grep")
        .args(["-rlF", "another-word"])
        .arg(server.site.state())
        .arg(server.site.root().join("serve.log"))
        .output()
        .unwrap();
    assert_eq!(stdout(&found), "");
    let body = json!({ "fromImage": "a", "fromImageRegistry": { "type": "aws", "awsRegion": "x" } }).to_string();
    let (template, id) = requested(&server, "aws");
    let (status, answer) = server.ask(&format!("POST /v2/templates/{template}/builds/{id}"), &body);
    assert!(
        status == 501 && answer["message"].as_str().unwrap().contains("AWS"),
        "{answer}"
    );
    server.end();
}

/// An index in the owner's network, which answers with its credentials' name whoever has them.
fn index_with_credentials() -> Option<String> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    // Nothing is sent: the kernel only chooses the address.
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    let ip = socket.local_addr().ok()?.ip();
    let listener = TcpListener::bind((ip, 0)).ok()?;
    let address = listener.local_addr().ok()?;
    std::thread::spawn(move || {
        for mut connection in listener.incoming().flatten() {
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && connection.read_exact(&mut byte).is_ok() {
                head.push(byte[0]);
            }
            let answer = match String::from_utf8_lossy(&head).contains(SENT) {
                true => "HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nknown\n",
                false => "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            };
            let _sent = connection.write_all(answer.as_bytes());
        }
    });
    Some(address.to_string())
}

#[test]
fn builds_ask_the_owner_s_indexes_where_the_owner_says_so() {
    let Some(index) = index_with_credentials() else {
        return skip("this machine has no address but its loopback");
    };
    let allowed = format!("{NO_POOL}[templates]\nown_indexes = true\n");
    let Some((mut server, registry)) = with_pool(&allowed, "") else {
        return;
    };
    let configuration = server.site.root().join(".config/pip/pip.conf");
    std::fs::create_dir_all(configuration.parent().unwrap()).unwrap();
    let host = index.split(':').next().unwrap();
    let text = format!("[global]\nindex-url = http://me:confidential@{index}/simple\ntrusted-host = {host}\n");
    std::fs::write(&configuration, text).unwrap();
    let config = std::fs::read_to_string(server.site.root().join("serve.toml")).unwrap();
    // With its credentials, which the build has not.
    let steps = run_steps(&[
        &format!("test \"$(wget -q -O - http://{index}/simple/any/)\" = known"),
        "case \"$(env; cat /proc/self/environ)\" in *confidential*) exit 9;; esac",
        "test -n \"$PIP_INDEX_URL\"",
    ]);
    let build = |server: &Server, name: &str| {
        let which = requested(server, name);
        start(
            server,
            &which,
            &json!({ "fromImage": image(&registry), "steps": steps, "force": true }),
        );
        ended(server, &which)
    };
    let answer = build(&server, "told");
    assert_eq!(answer["status"], "ready", "{answer}");
    for confidential in ["me:confidential", SENT] {
        assert!(!answer.to_string().contains(confidential), "{answer}");
    }
    // Nobody else is there unless the owner says so.
    server.start_again_with(&config.replace("own_indexes = true", "own_indexes = false"));
    let answer = build(&server, "untold");
    assert_eq!(answer["status"], "error", "{answer}");
    server.end();
}
