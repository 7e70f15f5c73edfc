//! Doors for clients of other APIs than E2B's: their packages as they are released, against the real server.

use serde_json::{Value, json};

use crate::kits::Kit;
use crate::languages::run;
use crate::server::{NO_POOL, Server};

/// Runs a script that an SDK of Python's is imported in.
fn assert_works_in_python(sdk: &str, script: &str) {
    let Some(kit) = Kit::find(sdk) else {
        return;
    };
    let server = Server::start(NO_POOL);
    let file = server.site.root().join("door.py");
    std::fs::write(&file, script).unwrap();
    run(&server, kit.python(&file));
    server.end();
}

#[test]
fn the_newest_python_sdk_of_daytona_works_unchanged() {
    assert_works_in_python("python_daytona", include_str!("python/door_daytona.py"));
}

#[test]
fn the_newest_javascript_sdk_of_daytona_works_unchanged() {
    let Some(kit) = Kit::find("javascript_daytona") else {
        return;
    };
    let server = Server::start(NO_POOL);
    let file = server.site.root().join("door.mjs");
    std::fs::write(&file, include_str!("javascript/door_daytona.mjs")).unwrap();
    run(&server, kit.node(server.site.root(), &file));
    server.end();
}

#[test]
fn a_client_of_piston_works_unchanged() {
    assert_works_in_python("python_piston", include_str!("python/door_piston.py"));
}

#[test]
fn a_client_of_judge0_works_unchanged() {
    assert_works_in_python("python_judge0", include_str!("python/door_judge0.py"));
}

/// The client of WebSockets is one that an SDK brings.
#[test]
fn programs_of_piston_are_talked_with_over_a_web_socket() {
    assert_works_in_python("python_daytona", include_str!("python/door_piston_connect.py"));
}

/// What no client asks for: limits, names that lead elsewhere, output without end.
#[test]
fn programs_that_mean_no_good_leave_nothing() {
    let server = Server::start(NO_POOL);
    let execute = |fields: &Value| {
        let mut job = json!({ "language": "bash", "version": "*", "files": [{ "content": "true" }] });
        job.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        server.ask("POST /api/v2/execute", &job.to_string())
    };
    let content = |text: &str| json!({ "files": [{ "content": text }] });
    let stage = |(status, told): (u16, Value)| {
        assert_eq!(status, 200, "{told}");
        told["run"].clone()
    };
    let run = stage(execute(&content("yes")));
    assert_eq!(
        (run["status"].as_str(), run["signal"].as_str()),
        (Some("OL"), Some("SIGKILL")),
        "{}",
        run["message"]
    );
    assert_eq!(run["stdout"].as_str().unwrap().len(), 1024 * 1024);
    let run = stage(execute(&content("exec >&2; yes")));
    assert_eq!(run["status"], "EL");
    let run = stage(execute(&content("kill -SEGV $$")));
    assert_eq!(
        (run["status"].as_str(), run["signal"].as_str()),
        (Some("SG"), Some("SIGSEGV")),
        "{run}"
    );
    let run = stage(execute(&content("exit 7")));
    assert_eq!(
        (run["status"].as_str(), run["code"].as_i64()),
        (Some("RE"), Some(7)),
        "{run}"
    );
    let mut late = content("while :; do :; done");
    late["run_cpu_time"] = json!(1000);
    late["run_timeout"] = json!(60_000);
    assert_eq!(stage(execute(&late))["status"], "TO");
    // No network, and files in their places.
    let reach = format!(
        "cat sub/b; (exec 3<>/dev/tcp/127.0.0.1/{}) 2>/dev/null || echo none",
        server.address.port()
    );
    let mut files = content(&reach);
    files["files"]
        .as_array_mut()
        .unwrap()
        .push(json!({ "name": "sub/b", "content": "aGk=", "encoding": "base64" }));
    assert_eq!(stage(execute(&files))["stdout"], "hinone\n");
    for name in ["../a", "/etc/a", "a/../../b", "a\0"] {
        let (status, told) = execute(&json!({ "files": [{ "name": name, "content": "" }] }));
        assert_eq!(status, 400, "{name:?}: {told}");
    }
    let (status, told) = execute(&json!({ "run_timeout": 60_001 }));
    assert_eq!(status, 400, "{told}");
    let (status, packages) = server.ask("GET /api/v2/packages", "");
    assert_eq!(status, 200, "{packages}");
    assert!(
        packages
            .as_array()
            .unwrap()
            .iter()
            .all(|package| package["installed"] == true)
    );
    let package = r#"{"language":"cow","version":"1.0.0"}"#;
    assert_eq!(server.ask("POST /api/v2/packages", package).0, 501);
    // Clients write their paths in more ways than one.
    let (_, runtimes) = server.ask("GET /api/v2/piston/runtimes/", "");
    assert!(
        runtimes.as_array().unwrap().iter().any(|one| one["language"] == "bash"),
        "{runtimes}"
    );
    assert_eq!(server.list(), Vec::<String>::new());
    server.end();
}
