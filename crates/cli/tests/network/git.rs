//! Git over HTTPS: the gateway signs in, so a sandbox clones and pushes with a password that it never has.

use serde_json::{Value, json};

use crate::kits::Kit;
use crate::secrets::{REAL, assert_free_of_values, in_base64, with_values};
use crate::server::Served;
use crate::support::processes::{finish, program, start};
use crate::support::{Site, record_of, skip};
use crate::world::{World, world};

const FLAGS: [&str; 8] = [
    "--allow",
    "web.clients.example.net:9643/tls",
    "--allow",
    "web.clients.example.net:9680/http",
    "--allow",
    "other.clients.example.net:9643/tls",
    "--secret",
    "GIT_PASSWORD=env:REAL_KEY@web.clients.example.net#basic:me",
];

/// What every script begins with; each has a repository of its own.
const BEGIN: &str = r#"
set -e
export HOME=/tmp GIT_TERMINAL_PROMPT=0 GIT_AUTHOR_NAME=me GIT_AUTHOR_EMAIL=me@example.com
export GIT_COMMITTER_NAME=me GIT_COMMITTER_EMAIL=me@example.com
cd /tmp
"#;

/// The internet, where there is git.
fn world_with_git() -> Option<&'static World> {
    if program("git").is_none() {
        skip("`git` is missing");
        return None;
    }
    world()
}

fn url(name: &str) -> String {
    format!(
        "https://web.clients.example.net:9643/git/{name}-{}.git",
        std::process::id()
    )
}

/// Runs a script of a shell in a sandbox; answers its exit code, what it wrote, and its record.
#[track_caller]
fn script(world: &World, flags: &[&str], text: &str) -> (i64, String, Value) {
    let site = Site::new();
    let text = format!("{BEGIN}\n{text}");
    let mut arguments = vec!["run", "--json"];
    arguments.extend_from_slice(&FLAGS);
    arguments.extend_from_slice(flags);
    arguments.extend_from_slice(&["--", "/bin/sh", "-c", &text]);
    let output = finish(start(&mut with_values(world, world.offleash(&site, &arguments))));
    assert_free_of_values(&site, &output);
    let record = record_of(&output);
    let said = |stream: &str| record[stream]["data"].as_str().unwrap_or_default().to_owned();
    let code = record["outcome"]["code"].as_i64().unwrap_or(-1);
    (code, format!("{}{}", said("stdout"), said("stderr")), record)
}

/// Requests of git and others that the servers met, with `mark` in their path.
fn requests(world: &World, mark: &str) -> Vec<Value> {
    let met = world.met().into_iter().filter(|entry| entry["kind"] == "client");
    met.filter(|entry| entry["path"].as_str().is_some_and(|path| path.contains(mark)))
        .collect()
}

#[test]
fn git_clones_and_pushes_with_a_password_that_is_nowhere_in_the_sandbox() {
    let Some(world) = world_with_git() else { return };
    let (plain, dummy) = (
        url("signed-in"),
        url("signed-in").replace("https://", "https://you:dummy@"),
    );
    let (code, said, record) = script(
        world,
        &["--env", "DECOY=decoy-for-the-search"],
        &format!(
            r#"
git clone --quiet {plain} one 2>/dev/null
cd one
head -c 3000000 /dev/urandom > big
git add big
git commit --quiet -m 'hello from git'
git push --quiet origin HEAD:main
cd ..
git -c credential.helper=store clone --quiet --branch main {dummy} two
git -C two log --format=%s -1
git -C two config --list
python3 - <<'END'
import os
words = [b"decoy-for-" + b"the-search", b"REAL" + b"0123", b"c2stUk" + b"VBTDAx"]
found = {{word: [] for word in words}}
for top, directories, names in os.walk("/"):
    directories[:] = [name for name in directories if os.path.join(top, name) not in ("/usr", "/sys", "/proc/self", "/proc/thread-self")]
    for name in names:
        path = os.path.join(top, name)
        try:
            if os.path.islink(path) or not os.path.isfile(path):
                continue
            with open(path, "rb", buffering=0) as file:
                os.set_blocking(file.fileno(), False)
                contents = file.read(1 << 20) or b""
        except OSError:
            continue
        for word in words:
            if word in contents:
                found[word].append(path)
print("decoy", len(found[words[0]]) > 0, "value", found[words[1]], found[words[2]])
END
"#
        ),
    );
    assert_eq!(code, 0, "{said}\n{:#}", record["network"]);
    assert!(said.contains("hello from git"), "{said}");
    assert!(said.contains("decoy True value [] []"), "{said}");
    let uses = record["network"]["secrets"].as_array().unwrap();
    assert!(
        uses.iter()
            .all(|one| one["secret"] == "GIT_PASSWORD" && one["refused"].is_null()),
        "{uses:#?}"
    );
    assert!(!uses.is_empty());
    for request in requests(world, "/git/signed-in-") {
        let sent = request["authorization"].as_str().unwrap_or_default();
        let encoded = in_base64(&format!("me:{REAL}"));
        assert_eq!(sent, format!("Basic {encoded}"), "{request}");
    }
}

#[test]
fn no_trick_of_the_sandbox_brings_the_password_to_another_host_or_back() {
    let Some(world) = world_with_git() else { return };
    if program("curl").is_none() {
        return skip("`curl` is missing");
    }
    let mark = format!("mark-{}", std::process::id());
    let (code, said, record) = script(
        world,
        &[],
        &format!(
            r#"
web=web.clients.example.net other=other.clients.example.net
echo "echo: $(curl -sS https://$web:9643/echo)"
echo "range: $(curl -sS -r 10-30 https://$web:9643/echo)"
echo "own: $(curl -sS -u me:mine https://$web:9643/echo)"
echo "away: $(curl -sS -L --location-trusted -u me:mine https://$web:9643/away/{mark})"
echo "other: $(curl -sS https://$other:9643/echo?{mark})"
echo "host: $(curl -sS -H "Host: $other:9643" https://$web:9643/echo?{mark}-host)"
echo "clear: $(curl -sS -o /dev/null -w '%{{http_code}}' http://$web:9680/git/x-{mark}.git/info/refs)"
echo "clear echo: $(curl -sS http://$web:9680/echo)"
address=$(python3 -c "import socket; print(socket.gethostbyname('$other'))")
echo "address: $(curl -sS --resolve $web:9643:$address https://$web:9643/echo?{mark}-address 2>&1)"
echo "proxied: $(curl -sS -x http://127.0.0.1:1 --connect-to $web:9643:$other:9643 https://$web:9643/echo?{mark}-proxied 2>&1)"
echo "placeholder: $(curl -sS -H "X-Key: $GIT_PASSWORD" https://$web:9643/echo)"
echo "elsewhere: $(curl -sS -u "me:$GIT_PASSWORD" https://$other:9643/echo)"
"#
        ),
    );
    assert_eq!(code, 0, "{said}\n{:#}", record["network"]);
    let line = |name: &str| {
        let begin = format!("{name}: ");
        let found = said.lines().find_map(|line| line.strip_prefix(&begin));
        found.unwrap_or_else(|| panic!("{name}: {said}")).to_owned()
    };
    assert!(line("echo").starts_with("Basic ***"), "{said}");
    assert!(line("range").starts_with("Basic ***"), "{said}");
    assert!(line("own").starts_with("Basic ***"), "{said}");
    let mine = format!("Basic {}", in_base64("me:mine"));
    assert_eq!(line("away"), mine, "{said}");
    assert_eq!(line("other"), "nothing");
    assert_eq!(line("clear"), "401");
    assert_eq!(line("clear echo"), "nothing");
    // Where TLS is not opened, the placeholder passes, and is of no use to anybody.
    assert!(line("placeholder").contains("GIT_PASSWORD"), "{said}");
    assert!(line("elsewhere").starts_with("Basic bWU6"), "{said}");
    // Whoever was met as another host was sent nothing.
    let encoded = in_base64(&format!("me:{REAL}"));
    let at_others = requests(world, &mark)
        .into_iter()
        .filter(|one| !one["path"].as_str().unwrap().starts_with("/away/"));
    for request in at_others {
        assert!(!request.to_string().contains(&encoded), "{request}");
    }
    for refused in ["host", "address", "proxied"] {
        assert_eq!(
            requests(world, &format!("{mark}-{refused}")),
            Vec::<Value>::new(),
            "{}",
            line(refused)
        );
    }
}

#[test]
fn what_may_be_read_is_not_pushed_to_by_rules_for_requests() {
    let Some(world) = world_with_git() else { return };
    let url = url("read-only");
    let (code, said, record) = script(
        world,
        &[],
        &format!(
            "git clone --quiet {url} one 2>/dev/null; cd one; git commit --quiet --allow-empty -m first; git push --quiet origin HEAD:main"
        ),
    );
    assert_eq!(code, 0, "{said}\n{:#}", record["network"]);
    let pushed = requests(world, "/git/read-only-")
        .iter()
        .filter(|one| is_push(one))
        .count();
    let rules = [
        "--allow-method",
        "GET web.clients.example.net/git/*",
        "--allow-method",
        "POST web.clients.example.net/git/*/git-upload-pack",
    ];
    let (code, said, record) = script(
        world,
        &rules,
        &format!(
            r#"
git clone --quiet --branch main {url} one
cd one
git log --format=%s -1
git fetch --quiet
git commit --quiet --allow-empty -m second
git push --quiet origin HEAD:main && exit 3
echo "not pushed"
git -c http.postBuffer=1000 push --quiet origin HEAD:refs/heads/other && exit 4
curl -sS -X POST -H 'Content-Type: application/x-git-receive-pack-request' --data-binary 0000 {url}/git-upload-pack/../git-receive-pack --path-as-is || true
"#
        ),
    );
    assert_eq!(code, 0, "{said}\n{:#}", record["network"]);
    assert!(
        said.contains("first") && said.contains("not pushed") && said.contains("403"),
        "{said}"
    );
    let met = requests(world, "/git/read-only-");
    assert_eq!(met.iter().filter(|one| is_push(one)).count(), pushed, "{met:#?}");
}

fn is_push(request: &Value) -> bool {
    let path = request["path"].as_str().unwrap_or_default();
    request["method"] == "POST" && path.contains("git-receive-pack")
}

/// The modules of an SDK against the servers of the internet, as somebody on the host runs them.
fn assert_sdk_works(sdk: &str, module: &str, secret: bool) {
    let Some(world) = world_with_git() else { return };
    let Some(kit) = Kit::find(sdk) else { return };
    let served = Served::start_trusting(world, "vault-ca.pem");
    let key = served.key();
    let mut plain = kit.program(served.site().root(), &[module]);
    plain
        .env("E2B_API_URL", served.url())
        .env("E2B_SANDBOX_URL", served.url())
        .env("E2B_API_KEY", &key)
        .env("HOME", served.site().root())
        .env("PATH", std::env::var_os("PATH").unwrap_or_default());
    if secret {
        let value = json!({ "name": "git", "value": REAL });
        let (status, made) = served.ask_as(&key, "POST /secrets", &value);
        assert_eq!(status, 201, "{made}");
        plain
            .env("GIT_SECRET", "git")
            .env("GIT_URL", "https://web.clients.example.net:9643/git");
    } else {
        plain.env("GIT_URL", "http://web.clients.example.net:9680/git");
    }
    let mut command = world.command(served.site().root());
    command.arg(plain.get_program()).args(plain.get_args());
    command.env_clear();
    command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{errors}");
}

#[test]
fn the_python_sdk_speaks_to_git_servers_with_a_password() {
    assert_sdk_works("python", "git_remotes", false);
}

#[test]
fn the_asynchronous_python_sdk_speaks_to_git_servers_with_a_password() {
    assert_sdk_works("python", "async_git_remotes", false);
}

#[test]
fn the_javascript_sdk_speaks_to_git_servers_with_a_password() {
    assert_sdk_works("javascript", "git_remotes", false);
}

#[test]
fn the_python_sdk_speaks_to_git_servers_with_a_secret_that_only_the_gateway_has() {
    assert_sdk_works("python", "git_remotes", true);
}

#[test]
fn the_asynchronous_python_sdk_speaks_to_git_servers_with_a_secret_that_only_the_gateway_has() {
    assert_sdk_works("python", "async_git_remotes", true);
}

#[test]
fn the_javascript_sdk_speaks_to_git_servers_with_a_secret_that_only_the_gateway_has() {
    assert_sdk_works("javascript", "git_remotes", true);
}
