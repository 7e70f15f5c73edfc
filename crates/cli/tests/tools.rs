//! Tools: what code inside may have done outside, by whom it is judged, and what it cannot get by them.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use support::processes::{eventually, finish, program};
use support::terminal::Terminal;
use support::{Site, record_of, skip, stderr, stdout};

/// A program outside that notes what it is called with, and answers it.
const NOTES: &str = "#!/bin/sh\nread -r line; echo \"$line\" >>'@notes'; echo \"{\\\"paid\\\": $line}\"\n";

/// A site with a policy of tools; notes of calls are in `notes`.
fn site(more: &str) -> Site {
    let site = Site::new();
    let notes = site.root().join("notes");
    executable(
        &site.root().join("pay"),
        &NOTES.replace("@notes", notes.to_str().unwrap()),
    );
    let root = site.root().display();
    let policy = format!(
        r#"
[[tool]]
name = "pay"
description = "Pays somebody."
program = ["{root}/pay"]
where = "amount <= 1000 and currency in [EUR, USD]"
calls = 3
[tool.parameters]
type = "object"
required = ["amount", "currency"]
additionalProperties = false
[tool.parameters.properties]
amount = {{ type = "number" }}
currency = {{ type = "string" }}
{more}"#
    );
    std::fs::write(site.root().join("policy.toml"), policy).unwrap();
    site
}

fn executable(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

fn run(site: &Site, flags: &[&str], script: &str) -> std::process::Output {
    let policy = site.root().join("policy.toml");
    let mut words = vec!["run", "--json", "--policy", policy.to_str().unwrap()];
    words.extend_from_slice(flags);
    words.extend_from_slice(&["-c", script]);
    site.offleash(words).output().unwrap()
}

fn said(record: &Value) -> &str {
    record["stdout"]["data"].as_str().unwrap()
}

fn noted(site: &Site) -> String {
    std::fs::read_to_string(site.root().join("notes")).unwrap_or_default()
}

#[test]
fn a_command_calls_what_runs_outside_within_its_grant() {
    let site = site("");
    let script = "pay --amount 10 --currency EUR; pay 20 USD; pay --amount 2000 --currency EUR; echo $?; pay 1 CHF; echo $?; \
                  pay --amount ten --currency EUR; echo $?; pay 30 EUR; pay 1 EUR; echo $?; pay --help";
    let output = run(&site, &[], script);
    let record = record_of(&output);
    let text = said(&record);
    assert!(
        text.starts_with("{\"paid\":{\"amount\":10,\"currency\":\"EUR\"}}\n{\"paid\":{\"amount\":20,"),
        "{text}"
    );
    assert!(
        text.contains("}}\n126\n126\n2\n{\"paid\":{\"amount\":30,\"currency\":\"EUR\"}}\n126\nPays somebody."),
        "{text}"
    );
    let notes = noted(&site);
    assert_eq!(notes.lines().count(), 3, "{notes}");
    assert_eq!(
        record["tools"],
        json!([{"tool": "pay", "calls": 3, "failed": 0, "refused": 4}])
    );
    let errors = record["stderr"]["data"].as_str().unwrap();
    assert!(
        errors.contains("pay: refused: its parameters have to be such that amount <= 1000 and currency in"),
        "{errors}"
    );
    assert!(errors.contains("its 3 calls are used up"), "{errors}");
}

#[test]
fn python_and_javascript_call_tools_as_functions() {
    let site = site("");
    let python = "from offleash_tools import pay, tools, ToolError\nprint(pay(amount=1, currency='EUR')['paid']['amount'], \
                  [t['name'] for t in tools()])\ntry:\n  pay(amount=5000, currency='EUR')\nexcept ToolError as e:\n  \
                  print(e.kind)\nimport offleash_tools\nprint(hasattr(offleash_tools, 'ship'))";
    let record = record_of(&run(&site, &[], &format!("python3 - <<'E'\n{python}\nE\n")));
    assert_eq!(said(&record), "1 ['pay']\nrefused\nFalse\n", "{record}");
    if program("node").is_none() {
        return skip("there is no node");
    }
    let javascript = "const t = require('offleash_tools'); t.pay({amount: 2, currency: 'USD'}).then(r => { \
                      console.log(r.paid.amount); return t.pay({amount: 1}); }).catch(e => console.log(e.kind))";
    let record = record_of(&run(&site, &[], &format!("node -e \"{javascript}\"")));
    assert_eq!(said(&record), "2\ninvalid\n", "{record}");
}

#[test]
fn grants_of_a_flag_narrow_and_never_widen() {
    let site = site("");
    let record = record_of(&run(
        &site,
        &["--tool-grant", "pay where amount < 5 and currency == EUR calls 1"],
        "pay 4 EUR; pay 4 EUR; echo $?; pay 6 EUR; echo $?",
    ));
    assert!(said(&record).ends_with("\n126\n126\n"), "{record}");
    for wider in [
        "pay",
        "* where amount <= 1000 and currency in [EUR, USD] calls 1",
        "pay where amount <= 2000 and currency == EUR calls 1",
    ] {
        let output = run(&site, &["--tool-grant", wider], "echo started >inside");
        assert!(!output.status.success());
        assert!(
            stderr(&output).contains("is not shown to be within what is granted"),
            "{}",
            stderr(&output)
        );
    }
    assert_eq!(noted(&site).lines().count(), 1);
}

#[test]
fn a_policy_of_the_workspace_may_not_declare_tools() {
    let site = Site::new();
    site.write(
        "offleash.toml",
        "[[tool]]\nname = \"x\"\nprogram = [\"/bin/sh\", \"-c\", \"echo out\"]\n",
    );
    let output = site.offleash(["run", "-c", "x"]).output().unwrap();
    assert!(!stdout(&output).contains("out"));
    assert!(stderr(&output).contains("tool (`x`)"), "{}", stderr(&output));
}

#[test]
fn an_endpoint_is_posted_to_and_its_header_stays_outside() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    listener.set_nonblocking(true).unwrap();
    let heard = std::thread::spawn(move || {
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        let mut stream = loop {
            match listener.accept() {
                Ok((stream, _)) => break stream,
                Err(_) if std::time::Instant::now() < until => std::thread::sleep(std::time::Duration::from_millis(20)),
                Err(error) => panic!("nobody calls: {error}"),
            }
        };
        stream.set_nonblocking(false).unwrap();
        let mut text = String::new();
        let mut piece = [0; 4096];
        while !text.contains("{\"q\":\"x\"}") {
            let count = stream.read(&mut piece).unwrap();
            text.push_str(&String::from_utf8_lossy(&piece[..count]));
        }
        stream
            .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n{\"hits\":3}")
            .unwrap();
        text
    });
    let more = format!(
        "[[tool]]\nname = \"find\"\nurl = \"http://127.0.0.1:{port}/find\"\nheaders = {{ x-key = \"env:FIND_KEY\" }}\ntimeout = \"10s\"\n"
    );
    let site = site(&more);
    let policy = site.root().join("policy.toml");
    let words = [
        "run",
        "--policy",
        policy.to_str().unwrap(),
        "-c",
        "find --q x; env; cat /proc/self/environ",
    ];
    let output = site.offleash(words).env("FIND_KEY", "outside-only").output().unwrap();
    let heard = heard.join().unwrap();
    assert!(
        heard.starts_with("POST /find HTTP/1.1\r\n") && heard.contains("x-key: outside-only"),
        "{heard}"
    );
    let text = stdout(&output);
    assert!(text.contains("\"hits\""), "{text}{}", stderr(&output));
    assert!(!text.contains("outside-only"), "{text}");
}

#[test]
fn a_tool_of_an_mcp_server_is_called_there() {
    let server = r#"
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message: continue
    if message["method"] == "initialize":
        result = {"protocolVersion": message["params"]["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": {"name": "t", "version": "1"}}
    elif message["method"] == "tools/call":
        given = message["params"]["arguments"]
        result = {"content": [{"type": "text", "text": str(given["a"] + given["b"])}], "isError": False}
        if given["a"] < 0: result = {"content": [{"type": "text", "text": "too small"}], "isError": True}
    else:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": "no"}}), flush=True)
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"#;
    let site = site("[[tool]]\nname = \"add\"\nmcp = [\"python3\", \"@server\"]\nwhere = \"a <= 10\"\n");
    let path = site.root().join("server.py");
    std::fs::write(&path, server).unwrap();
    let policy = site.root().join("policy.toml");
    let text = std::fs::read_to_string(&policy)
        .unwrap()
        .replace("@server", path.to_str().unwrap());
    std::fs::write(&policy, text).unwrap();
    let record = record_of(&run(
        &site,
        &[],
        "add --a 2 --b 3; add '{\"a\": -1, \"b\": 0}'; echo $?; add --a 11 --b 0; echo $?",
    ));
    assert_eq!(said(&record), "5\n1\n126\n", "{record}");
    assert!(
        record["stderr"]["data"].as_str().unwrap().contains("too small"),
        "{record}"
    );
}

#[test]
fn a_tool_that_fails_floods_or_never_ends_is_bounded_and_ends() {
    let more = |root: &str| {
        format!(
            "[[tool]]\nname = \"fail\"\nprogram = [\"sh\", \"-c\", \"echo why >&2; exit 3\"]\n\
             [[tool]]\nname = \"flood\"\nprogram = [\"sh\", \"-c\", \"head -c 6000000 /dev/zero | tr '\\\\0' x\"]\n\
             [[tool]]\nname = \"hang\"\nprogram = [\"sh\", \"-c\", \"echo $$ >{root}/hung; sleep 1000\"]\ntimeout = \"1s\"\n\
             [[tool]]\nname = \"none\"\nprogram = [\"/no/such/program\"]\n\
             [[tool]]\nname = \"asks\"\nprogram = [\"true\"]\nask = true\n"
        )
    };
    let site = site("");
    let policy = site.root().join("policy.toml");
    let text = std::fs::read_to_string(&policy).unwrap() + &more(site.root().to_str().unwrap());
    std::fs::write(&policy, text).unwrap();
    let record = record_of(&run(
        &site,
        &[],
        "fail; echo $?; flood | wc -c; hang; echo $?; none; echo $?; asks; echo $?; timeout 0.2 hang; echo $?",
    ));
    assert_eq!(said(&record), "1\n0\n124\n1\n126\n124\n", "{record}");
    let errors = record["stderr"]["data"].as_str().unwrap();
    assert!(
        errors.contains("fail: the tool failed (exit status: 3): why"),
        "{errors}"
    );
    assert!(
        errors.contains("flood: the tool's answer is longer than 4 MiB"),
        "{errors}"
    );
    assert!(errors.contains("asks: refused: a person is to be asked"), "{errors}");
    // What was given up is gone, with all that it had started.
    let hung: i32 = std::fs::read_to_string(site.root().join("hung"))
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let is_gone = || !Path::new(&format!("/proc/{hung}")).exists();
    eventually("its end", || is_gone().then_some(()));
}

/// Only a person at a terminal lets such a call through, and what they see is what is made.
#[test]
fn a_person_is_asked_about_calls() {
    let (site, policy) = asking_site();
    let script = "pay 1 EUR; echo $?; pay 2 EUR; echo $?; pay 2 EUR; echo $?; pay 3 EUR; echo $?; pay 4 EUR; echo $?; pay 5 EUR; echo $?";
    let asked = site.offleash(["run", "--json", "--policy", &policy, "-c", script]);
    #[expect(
        clippy::disallowed_methods,
        reason = "the program that makes a session is the system's"
    )]
    let mut command = Command::new("setsid");
    command.arg("--ctty").arg(asked.get_program()).args(asked.get_args());
    command.env_clear();
    command.envs(asked.get_envs().filter_map(|(name, value)| Some((name, value?))));
    if let Some(directory) = asked.get_current_dir() {
        command.current_dir(directory);
    }
    let mut terminal = Terminal::new(24, 200);
    command
        .stdin(terminal.stream())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = terminal.spawn(&mut command);
    for (amount, keys) in [(1, "o\n"), (2, "d\n"), (3, "r\n")] {
        terminal.wait_for(&format!(
            "sh wants tool pay {{\"amount\":{amount},\"currency\":\"EUR\"}} "
        ));
        terminal.type_keys(keys.as_bytes());
    }
    let record = record_of(&finish(child));
    // Once, denied, denied as before, for the run, and what the grant has left.
    let statuses: Vec<_> = said(&record)
        .lines()
        .filter(|line| !line.starts_with('{'))
        .map(str::to_owned)
        .collect();
    assert_eq!(statuses, ["0", "126", "126", "0", "0", "126"], "{record}");
    assert_eq!(
        terminal.screen().matches(" wants tool ").count(),
        3,
        "{}",
        terminal.screen()
    );
    assert_eq!(record["tools"][0]["calls"], 3);
    assert_eq!(record["tools"][0]["refused"], 3);
    assert_eq!(
        std::fs::read_to_string(site.root().join("notes"))
            .unwrap()
            .lines()
            .count(),
        3
    );
}

#[test]
fn hostile_callers_harm_nobody() {
    let site = site("");
    let attack = r#"
import socket, struct
def talk(raw):
    s = socket.socket(socket.AF_UNIX); s.connect("\0offleash-tools"); s.settimeout(5)
    try:
        s.sendall(raw)
        return s.recv(100)
    except OSError as e:
        return type(e).__name__.encode()
frame = lambda b: struct.pack("<I", len(b)) + b
print(talk(struct.pack("<I", 0xffffffff) + b"x"))
print(talk(struct.pack("<I", 0)))
print(talk(frame(b"\xff\xfe"))[:12])
print(talk(frame(b"[" * 200000))[4:12])
print(talk(frame(b'{"form":"json","tool":"../../bin/sh"}'))[4:12])
idle = []
for _ in range(63):
    s = socket.socket(socket.AF_UNIX); s.connect("\0offleash-tools"); idle.append(s)
from offleash_tools import pay
print(pay(amount=1, currency="EUR")["paid"]["amount"])
"#;
    let record = record_of(&run(&site, &[], &format!("python3 - <<'E'\n{attack}\nE\n")));
    let lines: Vec<&str> = said(&record).lines().collect();
    assert_eq!(lines.last(), Some(&"1"), "{record}");
    assert_eq!(lines.len(), 6, "{record}");
    assert_eq!(noted(&site).lines().count(), 1);
}

#[test]
fn the_owner_lists_and_calls_tools_too() {
    let site = site("");
    let policy = site.root().join("policy.toml");
    let policy = policy.to_str().unwrap();
    let listed = site.succeed(["tools", "ls", "--policy", policy]);
    assert!(
        listed.starts_with("pay\tpay where amount <= 1000 and currency in [\"EUR\", \"USD\"] calls 3\tPays somebody."),
        "{listed}"
    );
    let called = site.succeed([
        "tools",
        "call",
        "--policy",
        policy,
        "pay",
        "--amount",
        "7",
        "--currency",
        "EUR",
    ]);
    assert_eq!(called, "{\"paid\":{\"amount\":7,\"currency\":\"EUR\"}}\n");
    let refused = site
        .offleash(["tools", "call", "--policy", policy, "pay", "7000", "EUR"])
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(126));
}

/// An agent host that can ask its user.
struct Host {
    child: std::process::Child,
    input: std::process::ChildStdin,
    lines: std::io::Lines<std::io::BufReader<std::process::ChildStdout>>,
}

impl Host {
    /// One that begins a conversation with what it starts, if it `can_ask` with the ability to.
    fn begin(site: &Site, words: &[&str], can_ask: bool) -> Self {
        let mut child = site
            .offleash(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = std::io::BufReader::new(child.stdout.take().unwrap());
        let mut host = Self {
            input: child.stdin.take().unwrap(),
            lines: std::io::BufRead::lines(lines),
            child,
        };
        let capabilities = if can_ask { json!({"elicitation": {}}) } else { json!({}) };
        let about = json!({"protocolVersion": "2025-06-18", "capabilities": capabilities, "clientInfo": {"name": "t", "version": "1"}});
        host.ask(1, "initialize", &about);
        host.hear();
        host.say(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        host
    }

    fn say(&mut self, message: &Value) {
        writeln!(self.input, "{message}").unwrap();
    }

    fn ask(&mut self, id: u64, method: &str, parameters: &Value) {
        self.say(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": parameters}));
    }

    fn call(&mut self, id: u64, tool: &str, arguments: &Value) {
        self.ask(id, "tools/call", &json!({"name": tool, "arguments": arguments}));
    }

    fn hear(&mut self) -> Value {
        serde_json::from_str(&self.lines.next().unwrap().unwrap()).unwrap()
    }

    /// Has the user say so to a question about a call with that amount.
    fn answer(&mut self, amount: u64, action: &str) {
        let asked = self.hear();
        assert_eq!(asked["method"], "elicitation/create", "{asked}");
        let message = asked["params"]["message"].as_str().unwrap();
        let call = format!("tool pay with {{\"amount\":{amount},\"currency\":\"EUR\"}}?");
        assert!(message.contains(&call), "{message}");
        self.say(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"action": action}}));
    }

    fn end(self) {
        drop(self.input);
        assert!(finish(self.child).status.success());
    }
}

/// A site whose owner wants to be asked about calls of `pay`; and its policy.
fn asking_site() -> (Site, String) {
    let site = site("");
    let policy = site.root().join("policy.toml");
    let text = std::fs::read_to_string(&policy)
        .unwrap()
        .replace("calls = 3", "calls = 3\nask = true");
    std::fs::write(&policy, text).unwrap();
    (site, policy.to_str().unwrap().to_owned())
}

/// Judged as a call from inside is, and noted when the conversation ends; the host asks the person.
#[test]
fn an_agent_host_calls_them_outside_of_any_sandbox() {
    let (site, policy) = asking_site();
    let mut host = Host::begin(&site, &["tools", "serve", "--policy", &policy], true);
    host.ask(2, "tools/list", &json!({}));
    let listed = host.hear();
    let tool = &listed["result"]["tools"][0];
    assert_eq!(tool["name"], "pay", "{listed}");
    assert_eq!(tool["inputSchema"]["required"], json!(["amount", "currency"]));
    host.call(3, "pay", &json!({"amount": 5000, "currency": "EUR"}));
    let refused = host.hear();
    assert_eq!(refused["result"]["isError"], true, "{refused}");
    for (id, action) in [(4, "decline"), (5, "accept")] {
        host.call(id, "pay", &json!({"amount": id, "currency": "EUR"}));
        host.answer(id, action);
        let answered = host.hear();
        assert_eq!(answered["result"]["isError"] == true, action == "decline", "{answered}");
    }
    host.end();
    let mut host = Host::begin(&site, &["tools", "serve", "--policy", &policy], false);
    host.call(2, "pay", &json!({"amount": 1, "currency": "EUR"}));
    let refused = host.hear().to_string();
    assert!(refused.contains("this agent host cannot ask one"), "{refused}");
    host.end();
    assert_eq!(noted(&site), "{\"amount\":5,\"currency\":\"EUR\"}\n");
    let audit = site.succeed(["audit", "show"]);
    assert!(audit.contains("tools_served"), "{audit}");
}

#[test]
fn an_agent_host_asks_about_calls_from_its_sandboxes_or_the_command_line_is_asked() {
    let (site, policy) = asking_site();
    let words = ["mcp", "--no-workspace", "--policy", &policy];
    let mut host = Host::begin(&site, &words, true);
    host.call(2, "run_command", &json!({"command": "pay 7 EUR; echo $?"}));
    host.answer(7, "accept");
    let said = host.hear().to_string();
    assert!(said.contains("paid") && !said.contains("refused"), "{said}");
    host.end();
    let mut host = Host::begin(&site, &words, false);
    host.call(2, "run_command", &json!({"command": "pay 8 EUR; echo $?"}));
    let approval = eventually("a question", || {
        let output = site.offleash(["approvals", "ls", "--json"]).output().unwrap();
        let first = stdout(&output).lines().next()?.to_owned();
        serde_json::from_str::<Value>(&first).ok()
    });
    assert_eq!(approval["parameters"], json!({"amount": 8, "currency": "EUR"}));
    site.succeed(["approvals", "deny", approval["id"].as_str().unwrap()]);
    let said = host.hear().to_string();
    assert!(said.contains("the answer was to deny it"), "{said}");
    host.end();
    assert_eq!(noted(&site).lines().count(), 1);
}

#[test]
fn a_level_that_cannot_offer_tools_refuses_before_anything_runs() {
    let site = site("");
    let output = run(&site, &["--level", "process-landlock"], "echo ran");
    assert!(!output.status.success());
    assert!(stderr(&output).contains("offer tools"), "{}", stderr(&output));
}
