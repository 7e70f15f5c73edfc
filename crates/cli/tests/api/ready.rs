//! Sandboxes whose interpreter was started while they waited.

use serde_json::{Value, json};

use crate::client::Answer;
use crate::server::Server;
use crate::support::Site;
use crate::support::processes::eventually;

/// A pool that has one of template `quick`, and no others.
const ONE: &str = "[pool]\nmin = 0\nmax = 0\nmax_total = 1\n[pool.templates.quick]\nmin = 1\nmax = 1\n\
                   [sandboxes]\ncreate_timeout_seconds = 600\n";

/// What a ready interpreter has loaded, and what of that a cell sees without asking for it.
const LOOK: &str =
    "import os, sys; ('poplib' in sys.modules, 'poplib' in dir(), os.environ.get('FLAVOUR'), os.getcwd())";

/// A server with template `quick`, whose ready contexts have imported a module.
fn server() -> Server {
    let site = Site::sharing_templates();
    let recipe = "name = \"quick\"\nrun = [\"true\"]\nimports = [\"poplib\", \"not_there\"]\n";
    let file = site.write("recipe.toml", recipe);
    site.succeed(["template", "build", "-q", "--file", file.to_str().unwrap()]);
    Server::start_on(site, ONE, &[])
}

fn until_one_waits(server: &Server, key: &str) {
    eventually("a member of the pool", || {
        let metrics = server.ask(key, "GET /metrics", "");
        let waits = "offleash_pool_sandboxes{template=\"quick\"} 1";
        metrics.body.contains(waits).then_some(())
    });
}

fn create(server: &Server, key: &str, env: &Value) -> String {
    let body = json!({ "templateID": "quick", "timeout": 600, "envVars": env });
    let answer = server.ask(key, "POST /v2/sandboxes", &body.to_string());
    assert_eq!(answer.status, 201, "{answer:?}");
    answer.json()["sandboxID"].as_str().unwrap().to_owned()
}

fn contexts(server: &Server, key: &str, id: &str) -> Vec<Value> {
    let answer = server.ask(key, &format!("GET /v1/sandboxes/{id}/contexts"), "");
    answer.json()["contexts"].as_array().unwrap().clone()
}

/// The value of a cell in the default context, and its number.
fn value(server: &Server, key: &str, id: &str, code: &str) -> (String, u64) {
    let line = format!("POST /v1/sandboxes/{id}/execute");
    let answer: Answer = server.ask(key, &line, &json!({ "code": code }).to_string());
    let text = answer.body;
    let told: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let event = |kind: &str| {
        let found = told.iter().find(|event| event["kind"] == kind);
        found.unwrap_or_else(|| panic!("no {kind}: {text}"))
    };
    let form = &event("result")["result"]["forms"]["text/plain"];
    (
        form.as_str().unwrap().to_owned(),
        event("begin")["count"].as_u64().unwrap(),
    )
}

#[test]
fn one_that_waited_has_its_modules_and_the_variables_of_its_create() {
    let server = server();
    let key = server.key(&["--max-sandboxes", "1"]);
    until_one_waits(&server, &key);
    let listed = server.ask(&key, "GET /v2/sandboxes", "").json();
    assert_eq!(listed, json!([]), "what waits is nobody's");
    let id = create(&server, &key, &json!({ "FLAVOUR": "mint" }));
    let ready = contexts(&server, &key, &id);
    assert_eq!((ready.len(), &ready[0]["count"]), (1, &json!(0)), "{ready:?}");
    let seen = "(True, False, 'mint', '/home/user')".to_owned();
    assert_eq!(value(&server, &key, &id, LOOK), (seen, 1));
    // A child has them, too, and a command that knows nothing of the context.
    let child = "import subprocess; subprocess.check_output(['sh', '-c', 'echo $FLAVOUR'], text=True)";
    assert_eq!(value(&server, &key, &id, child).0, "'mint\\n'");
    let restart = format!(
        "POST /v1/sandboxes/{id}/contexts/{}/restart",
        ready[0]["id"].as_str().unwrap()
    );
    assert!(server.ask(&key, &restart, "").status < 300);
    let (seen, count) = value(&server, &key, &id, LOOK);
    // A copy has what its original has loaded; what is started has nothing.
    let (was_loaded, rest) = seen.split_once(", ").unwrap();
    assert!(["(True", "(False"].contains(&was_loaded), "{seen}");
    assert_eq!((rest, count), ("False, 'mint', '/home/user')", 1));
}

#[test]
fn a_variable_that_is_read_at_the_start_is_there_at_the_start() {
    let server = server();
    let key = server.key(&[]);
    until_one_waits(&server, &key);
    let id = create(&server, &key, &json!({ "PYTHONHASHSEED": "0" }));
    assert_eq!(contexts(&server, &key, &id), [] as [Value; 0], "not one that waited");
    let seed = "import os, sys; (sys.flags.hash_randomization, os.environ['PYTHONHASHSEED'])";
    assert_eq!(value(&server, &key, &id, seed).0, "(0, '0')");
}
