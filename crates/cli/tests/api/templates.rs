//! Templates by way of the control plane: made into sandboxes, listed, removed, and built when they are asked for.

use serde_json::{Value, json};

use crate::client::Answer;
use crate::server::{QUIET, Server};
use crate::support::processes::eventually;
use crate::support::terminal::Terminal;
use crate::support::{Site, stderr, stdout};

const CREATE: &str = "POST /v2/sandboxes";

/// A site with template `tiny`.
fn site() -> Site {
    let site = Site::sharing_templates();
    let script = "echo built > /usr/local/made; echo x > /etc/made";
    let arguments = [
        "template",
        "build",
        "-q",
        "--name",
        "tiny",
        "--run",
        script,
        "--env",
        "FLAVOUR=mint",
    ];
    site.succeed(arguments);
    site
}

fn create(server: &Server, key: &str, template: &str) -> Answer {
    let body = json!({ "templateID": template, "timeout": 120 });
    server.ask(key, CREATE, &body.to_string())
}

fn retry_after(answer: &Answer) -> Option<&str> {
    answer.header("retry-after")
}

#[test]
fn a_sandbox_is_of_the_template_that_is_asked_for() {
    let server = Server::start_on(site(), QUIET, &[]);
    let key = server.key(&["--scope", "admin"]);
    let answer = create(&server, &key, "tiny");
    assert_eq!(answer.status, 201, "{answer:?}");
    assert_eq!(answer.json()["templateID"], "tiny");
    let id = answer.json()["sandboxID"].as_str().unwrap().to_owned();
    let look = json!({ "shell": "cat /usr/local/made /etc/made; echo $FLAVOUR; touch /home/user/x && id -un" });
    let answer = server.ask(&key, &format!("POST /v1/sandboxes/{id}/run"), &look.to_string());
    assert_eq!(answer.json()["stdout"], "built\nx\nmint\nuser\n", "{answer:?}");
    assert_eq!(
        server.ask(&key, &format!("GET /sandboxes/{id}"), "").json()["templateID"],
        "tiny"
    );
    let found = server.ask(&key, "GET /v2/sandboxes?template=tiny", "").json();
    assert_eq!(found.as_array().unwrap().len(), 1);
    assert!(server.site.succeed(["ls"]).contains(" tiny "));

    let listed = server.ask(&key, "GET /templates", "").json();
    assert_eq!(
        (&listed[0]["templateID"], &listed[0]["buildStatus"]),
        (&json!("tiny"), &json!("ready"))
    );
    assert_eq!(
        server.ask(&key, "GET /templates/aliases/tiny", "").json()["templateID"],
        "tiny"
    );
    server.ask(&key, "DELETE /templates/tiny", "").assert_refused(409);
    server.ask(&key, "DELETE /templates/base", "").assert_refused(409);
    server.ask(&key, "DELETE /templates/..%2Ftiny", "").assert_refused(404);
    server
        .ask(&server.key(&[]), "DELETE /templates/tiny", "")
        .assert_refused(403);
    assert_eq!(server.ask(&key, &format!("DELETE /sandboxes/{id}"), "").status, 204);
    eventually("the end of the sandbox", || {
        (server.ask(&key, "DELETE /templates/tiny", "").status == 204).then_some(())
    });
    assert_eq!(server.ask(&key, "GET /templates", "").json(), json!([]));
    create(&server, &key, "tiny").assert_refused(404);
    server.ask(&key, "GET /templates/aliases/tiny", "").assert_refused(404);
    server.ask(&key, "DELETE /templates/tiny", "").assert_refused(404);
}

#[test]
fn the_verbs_know_templates() {
    let server = Server::start_on(site(), QUIET, &[]);
    let id = server.site.succeed(["create", "--template", "tiny"]);
    let id = id.trim();
    assert_eq!(server.site.succeed(["exec", id, "cat", "/etc/made"]), "x\n");
    let shown: Value = serde_json::from_str(&server.site.succeed(["inspect", id])).unwrap();
    assert_eq!(shown[0]["templateID"], "tiny", "{shown}");
    let said = server.site.refuse(["template", "rm", "tiny"]);
    assert!(said.contains("is used by sandboxes"), "{said}");
    let output = server
        .site
        .offleash(["create", "--template", "other"])
        .output()
        .unwrap();
    let said = stderr(&output);
    assert!(
        !output.status.success() && said.contains("template `other` not found"),
        "{}{said}",
        stdout(&output)
    );
}

/// Configuration of a server that builds the code interpreter's template of nothing that exists: its only index is this
/// machine itself, where no build comes.
fn nothing_to_install(wait: u32) -> String {
    format!(
        "{QUIET}[templates]\npip = [\"numpy\", \"pandas\"]\nwait_seconds = {wait}\nindex_url = \"http://127.0.0.1:9/simple\"\n\
         build_env = [\"PIP_RETRIES=0\", \"PIP_TIMEOUT=1\"]\n"
    )
}

fn building(wait: u32) -> Server {
    Server::start_with(&nothing_to_install(wait), &[])
}

/// What a terminal shows, line by line, of which each has what was written after its cursor last went to its beginning.
fn lines_of(screen: &str) -> Vec<String> {
    let shown = screen.split('\n').map(|line| {
        let line = line.trim_end_matches('\r');
        let last = line.rsplit('\r').next().unwrap_or(line);
        let mut parts = last.split("\u{1b}[");
        let first = parts.next().unwrap_or_default().to_owned();
        parts.fold(first, |text, part| {
            let end = part
                .find(|end: char| end.is_ascii_alphabetic())
                .map_or(0, |end| end + 1);
            text + &part[end..]
        })
    });
    shown.collect()
}

#[test]
fn a_build_has_a_bar_on_the_terminal_of_the_server_and_the_log_stays_whole() {
    let site = Site::sharing_templates();
    let terminal = Terminal::new(24, 160);
    let file = site.root().join("offleash-serve.toml");
    // A name that nobody has, which pip looks for several times.
    let config = nothing_to_install(0).replace("127.0.0.1:9", "index.invalid");
    std::fs::write(&file, config.replace("RETRIES=0", "RETRIES=3")).unwrap();
    let mut command = site.offleash(["serve", "--listen", "127.0.0.1:0", "--log", "requests", "--config"]);
    command.arg(file).env("TERM", "xterm");
    let mut server = Server::at_terminal(site, command, &terminal);
    let key = server.key(&[]);
    create(&server, &key, "code-interpreter-v1").assert_refused(503);
    terminal.wait_for("] [1/2] code-interpreter: pip install ");
    for _ in 0..20 {
        assert_eq!(server.ask(&key, "GET /templates", "").status, 200);
    }
    terminal.wait_for("\"level\":\"error\"");
    let (status, _) = server.end();
    assert!(status.success());
    let screen = terminal.wait_for("sandboxes live on");
    let log: Vec<Value> = lines_of(&screen)
        .iter()
        .filter(|line| !line.trim().is_empty())
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line:?} of {screen:?}")))
        .collect();
    let about = |event: &str| log.iter().filter(|line| line["event"] == event).count();
    assert!(about("request") >= 21 && about("template") >= 3, "{screen:?}");
    let begins = log.iter().find(|line| line["event"] == "template").unwrap();
    assert!(
        begins["told"]
            .as_str()
            .unwrap()
            .starts_with("built on first use: pip numpy"),
        "{begins}"
    );
}

#[test]
fn one_that_cannot_be_built_is_told_of_once_and_in_the_log() {
    let mut server = building(300);
    let key = server.key(&[]);
    let alias = server.ask(&key, "GET /templates/aliases/code-interpreter-v1", "");
    assert_eq!(alias.json()["templateID"], "code-interpreter-v1");
    for _ in 0..2 {
        let answer = create(&server, &key, "code-interpreter-v1");
        answer.assert_refused(503);
        assert!(
            answer.json()["message"]
                .as_str()
                .unwrap()
                .contains("could not be built"),
            "{answer:?}"
        );
        assert_eq!(answer.header("should-retry"), Some("false"));
    }
    let (_, log) = server.end();
    let told: Vec<Value> = log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let about = |part: &str| {
        told.iter()
            .filter(|line| line["told"].as_str().unwrap_or_default().contains(part))
            .count()
    };
    assert_eq!(
        about("built on first use: pip numpy, pandas"),
        1,
        "one build for both: {log}"
    );
    // A system without pip fails at once, and for that.
    assert_eq!(about("pip install failed") + about("the host has no"), 1, "{log}");
}

#[test]
fn who_cannot_wait_is_told_to_come_back_and_who_forbids_it_has_none() {
    let server = building(0);
    let key = server.key(&[]);
    let answer = create(&server, &key, "code-interpreter-v1");
    answer.assert_refused(503);
    assert_eq!(retry_after(&answer), Some("20"));
    assert!(
        answer.json()["message"]
            .as_str()
            .unwrap()
            .contains("is being built (pip numpy"),
        "{answer:?}"
    );
    let forbidden = Server::start_with(&format!("{QUIET}[templates]\nbuild_on_first_use = false\n"), &[]);
    let key = forbidden.key(&[]);
    create(&forbidden, &key, "code-interpreter-v1").assert_refused(404);
    forbidden
        .ask(&key, "GET /templates/aliases/code-interpreter-v1", "")
        .assert_refused(404);
}
