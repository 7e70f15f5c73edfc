//! How builds live and end: with the server, with their template, bounded; and what a template starts.

use serde_json::json;

use crate::builds::{ended, image, in_store, requested, run_steps, start, status, with_pool, with_registry};
use crate::client;
use crate::server::WITH_POOL;
use crate::support::processes::eventually;

#[test]
fn a_build_that_goes_on_when_the_server_dies_is_told_to_have_failed() {
    let Some((mut server, registry)) = with_registry("") else {
        return;
    };
    let which = requested(&server, "cut");
    start(
        &server,
        &which,
        &json!({ "fromImage": image(&registry), "steps": run_steps(&["echo begun; sleep 600"]) }),
    );
    eventually("the step has begun", || {
        let log = status(&server, &which);
        let lines = log["logEntries"].as_array().unwrap();
        lines.iter().any(|line| line["message"] == "begun").then_some(())
    });
    server.kill_now();
    server.wait_and_start_again();
    let answer = status(&server, &which);
    assert_eq!(answer["status"], "error", "{answer}");
    let why = answer["reason"]["message"].as_str().unwrap();
    assert!(why.contains("the server ended"), "{why}");
    // Nothing of it is there, and it can be built again.
    assert_eq!(in_store(&server), [""; 0]);
    assert_eq!(server.ask("POST /v2/sandboxes", r#"{"templateID":"cut"}"#).0, 404);
    let which = requested(&server, "cut");
    start(
        &server,
        &which,
        &json!({ "fromImage": image(&registry), "steps": run_steps(&["echo again"]) }),
    );
    assert_eq!(ended(&server, &which)["status"], "ready");
    let (status, answer) = server.ask("POST /v2/sandboxes", r#"{"templateID":"cut"}"#);
    assert_eq!(status, 201, "{answer}");
    server.end();
}

#[test]
fn a_build_ends_with_its_template() {
    let Some((server, registry)) = with_registry("") else {
        return;
    };
    let which = requested(&server, "gone");
    start(
        &server,
        &which,
        &json!({ "fromImage": image(&registry), "steps": run_steps(&["echo begun; sleep 600"]) }),
    );
    eventually("the step has begun", || {
        let log = status(&server, &which);
        let lines = log["logEntries"].as_array().unwrap();
        lines.iter().any(|line| line["message"] == "begun").then_some(())
    });
    assert_eq!(server.ask("DELETE /templates/gone", "").0, 204);
    assert_eq!(
        server
            .ask(&format!("GET /templates/{}/builds/{}/status", which.0, which.1), "")
            .0,
        404
    );
    eventually("the builder ends", || {
        let left = std::fs::read_dir(server.site.state().join("templates"))
            .unwrap()
            .flatten();
        let left = left.filter(|entry| entry.file_name().to_string_lossy().starts_with(".new-"));
        (left.count() == 0).then_some(())
    });
    assert_eq!(in_store(&server), [""; 0]);
    server.end();
}

#[test]
fn a_start_command_that_fails_is_told_and_leaves_no_sandbox() {
    let Some((server, registry)) = with_registry("") else {
        return;
    };
    let build = |name: &str, start_command: &str, ready: &str| {
        let which = requested(&server, name);
        let body = json!({ "fromImage": image(&registry), "startCmd": start_command, "readyCmd": ready });
        start(&server, &which, &body);
        assert_eq!(ended(&server, &which)["status"], "ready");
        server.ask("POST /v2/sandboxes", &json!({ "templateID": name }).to_string())
    };
    let (status, answer) = build("fails", "echo it is broken; exit 3", "false");
    let told = answer["message"].as_str().unwrap();
    assert!(
        status == 503 && told.contains("exit code 3") && told.contains("it is broken"),
        "{answer}"
    );
    eventually("no sandbox is left", || server.list().is_empty().then_some(()));
    // One that goes on in the background, as daemons do.
    let (status, answer) = build(
        "detaches",
        "(sleep 1; echo up >/tmp/up; sleep 600) & exit 0",
        "test -s /tmp/up",
    );
    assert_eq!(status, 201, "{answer}");
    let id = answer["sandboxID"].as_str().unwrap();
    assert_eq!(server.shell(id, "cat /tmp/up"), "up\n");
    // Somebody is asked before, where somebody is to be asked.
    let asking = json!({ "templateID": "detaches", "metadata": { "offleash.ask_before": "sleep" } });
    let (status, answer) = std::thread::scope(|scope| {
        let creating = scope.spawn(|| server.ask("POST /v2/sandboxes", &asking.to_string()));
        let open = eventually("a question", || {
            let (_, answer) = server.ask("GET /v1/approvals", "");
            answer["approvals"][0]["id"].as_str().map(str::to_owned)
        });
        assert_eq!(server.ask(&format!("POST /v1/approvals/{open}/deny"), "{}").0, 204);
        creating.join().unwrap()
    });
    assert_eq!(status, 403, "{answer}");
    eventually("it is gone", || (server.list().len() == 1).then_some(()));
    server.end();
}

#[test]
fn builds_are_bounded_and_what_no_tag_means_goes() {
    let Some((server, registry)) = with_registry("") else {
        return;
    };
    let mut made = Vec::new();
    for _ in 0..3 {
        let which = requested(&server, "many");
        start(
            &server,
            &which,
            &json!({ "fromImage": image(&registry), "steps": run_steps(&["sleep 1"]), "force": true }),
        );
        made.push(which);
    }
    // Two of a key go on at once; the third waits.
    let states: Vec<String> = made
        .iter()
        .map(|which| status(&server, which)["status"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(states[2], "waiting", "{states:?}");
    for which in &made {
        assert_eq!(ended(&server, which)["status"], "ready");
    }
    eventually("the builds that were replaced are gone", || {
        (in_store(&server).len() == 1).then_some(())
    });
    let (status, answer) = server.ask("GET /templates/many", "");
    assert_eq!(
        (status, answer["builds"].as_array().unwrap().len()),
        (200, 3),
        "{answer}"
    );
    let started = &made[0];
    let again = format!("POST /v2/templates/{}/builds/{}", started.0, started.1);
    assert_eq!(
        server
            .ask(&again, &json!({ "fromImage": image(&registry) }).to_string())
            .0,
        409
    );
    assert_eq!(server.ask("DELETE /templates/many", "").0, 204);
    eventually("nothing is left", || in_store(&server).is_empty().then_some(()));
    server.end();
}

#[test]
fn sandboxes_that_were_made_ahead_are_started_when_they_are_handed_out_and_go_with_their_template() {
    let Some((server, registry)) = with_pool(WITH_POOL, "") else {
        return;
    };
    let which = requested(&server, "ahead");
    let body = json!({
        "fromImage": image(&registry), "startCmd": "echo $OF_THE_IMAGE >/tmp/up; sleep 600", "readyCmd": "test -s /tmp/up",
    });
    start(&server, &which, &body);
    assert_eq!(ended(&server, &which)["status"], "ready");
    let create = || {
        let (status, answer) = server.ask("POST /v2/sandboxes", r#"{"templateID":"ahead"}"#);
        assert_eq!((status, &answer["templateID"]), (201, &json!(which.0)), "{answer}");
        answer["sandboxID"].as_str().unwrap().to_owned()
    };
    let first = create();
    eventually("one is made ahead", || {
        let (_, body) = client::ask(server.address, &server.key, "GET /metrics", "", b"").unwrap();
        let text = String::from_utf8_lossy(&body).into_owned();
        text.lines()
            .any(|line| line.contains(&which.0) && !line.ends_with(" 0"))
            .then_some(())
    });
    let second = create();
    for id in [&first, &second] {
        assert_eq!(server.shell(id, "cat /tmp/up"), "yes\n");
    }
    // A snapshot keeps what it lies over.
    let (status, snapshot) = server.ask(&format!("POST /sandboxes/{first}/snapshots"), "{}");
    assert_eq!(status, 201, "{snapshot}");
    let again = requested(&server, "ahead");
    start(&server, &again, &body);
    assert_eq!(ended(&server, &again)["status"], "ready");
    let snapshot = snapshot["snapshotID"].as_str().unwrap();
    let (status, answer) = server.ask("POST /v2/sandboxes", &json!({ "templateID": snapshot }).to_string());
    assert_eq!(status, 201, "{answer}");
    let third = answer["sandboxID"].as_str().unwrap().to_owned();
    assert_eq!(server.shell(&third, "cat /tmp/up"), "yes\n");
    for id in [&first, &second, &third] {
        assert_eq!(server.ask(&format!("DELETE /sandboxes/{id}"), "").0, 204);
    }
    assert_eq!(server.ask("DELETE /templates/ahead", "").0, 409);
    assert_eq!(server.ask(&format!("DELETE /templates/{snapshot}"), "").0, 204);
    eventually("the template can be removed", || {
        (server.ask("DELETE /templates/ahead", "").0 == 204).then_some(())
    });
    eventually("nothing is left", || in_store(&server).is_empty().then_some(()));
    server.end();
}
