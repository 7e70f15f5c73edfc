//! Templates that users of E2B's SDKs build, through the SDKs; and what tests of builds have in common.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::docker_registry::Registry;
use crate::kits::Kit;
use crate::languages;
use crate::layout::{self, Layout};
use crate::server::{NO_POOL, Server};
use crate::support::processes::eventually;
use crate::support::{Site, skip, stdout};

/// Programs of the image that do little more than to say that they were called, as users of the SDK call them.
const PROGRAMS: [(&str, &str); 8] = [
    ("pip", "echo \"pip $*\" >>/opt/called"),
    ("npm", "echo \"npm $*\" >>/opt/called"),
    ("bun", "echo \"bun $*\" >>/opt/called"),
    ("apt-get", "echo \"apt-get $*\" >>/opt/called"),
    ("git", "echo \"git $*\" >>/opt/called"),
    // `ss -Htuln sport = :PORT`
    (
        "ss",
        "grep -i \":$(printf %04X \"${4#:}\") 0*:0000 0A\" /proc/net/tcp /proc/net/tcp6",
    ),
    // `curl -s -o /dev/null -w FORMAT URL`
    (
        "curl",
        "for url; do :; done; wget -q -O /dev/null \"$url\" && printf 200",
    ),
    ("docker", "exit 1"),
];

/// Names that the SDKs know images by, below the registry that is asked for them first.
const NAMES: [&str; 4] = [
    "a/tools:t",
    "e2bdev/base:latest",
    "library/debian:stable",
    "library/python:3",
];

/// An image with busybox and those programs; `None`, and said so, where there is no static busybox.
fn tools(site: &Path) -> Option<PathBuf> {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    layout::Busybox::layout(&site.join("busybox"))?;
    let root = site.join("tools-root");
    for directory in ["bin", "etc", "opt", "tmp", "root", "home"] {
        fs::create_dir_all(root.join(directory)).unwrap();
    }
    fs::copy("/bin/busybox", root.join("bin/busybox")).unwrap();
    let listed = std::process::Command::new("/bin/busybox")
        .arg("--list")
        .output()
        .unwrap();
    for name in stdout(&listed).lines() {
        let is_ours = PROGRAMS.iter().any(|(own, _)| *own == name) || name == "busybox";
        if !is_ours {
            symlink("busybox", root.join("bin").join(name)).unwrap();
        }
    }
    for (name, script) in PROGRAMS {
        let path = root.join("bin").join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    fs::set_permissions(root.join("tmp"), fs::Permissions::from_mode(0o1777)).unwrap();
    fs::set_permissions(root.join("opt"), fs::Permissions::from_mode(0o777)).unwrap();
    fs::write(root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n").unwrap();
    fs::write(root.join("etc/group"), "root:x:0:\n").unwrap();
    fs::write(root.join("opt/called"), "").unwrap();
    fs::set_permissions(root.join("opt/called"), fs::Permissions::from_mode(0o666)).unwrap();
    let process = json!({ "Env": ["PATH=/bin", "OF_THE_IMAGE=yes"] });
    Some(Layout::write(
        &site.join("tools"),
        &[layout::layer(&root, "0")],
        &process,
    ))
}

/// A server that may pull what a registry has, and the registry, whose password is that of `passwords`.
pub(crate) fn with_registry(passwords: &str) -> Option<(Server, Registry)> {
    with_pool(NO_POOL, passwords)
}

/// The same with sandboxes that are made ahead as `pool` says.
pub(crate) fn with_pool(pool: &str, passwords: &str) -> Option<(Server, Registry)> {
    let site = Site::new();
    let layout = tools(site.root())?;
    let (more, flags) = match passwords {
        "" => (String::new(), Vec::new()),
        text => {
            let file = site.root().join("passwords");
            std::fs::write(&file, text).unwrap();
            let more = format!("auth:\n  htpasswd:\n    realm: tests\n    path: {}\n", file.display());
            (more, vec!["--dest-creds", "me:word"])
        }
    };
    let registry = Registry::start(site.root(), "", &more)?;
    let host = format!("127.0.0.1:{}", registry.port);
    for name in NAMES {
        let (from, to) = (format!("oci:{}:t", layout.display()), format!("docker://{host}/{name}"));
        let arguments = [&flags[..], &["--dest-tls-verify=false", &from, &to]].concat();
        if !layout::skopeo(&arguments) {
            skip("there is no skopeo to push with");
            return None;
        }
    }
    let server = Server::start_on(site, None, &config(pool, &host, passwords.is_empty()));
    Some((server, registry))
}

/// Without a password the registry is a mirror of itself, so that no other one is asked without encryption.
fn config(pool: &str, host: &str, is_mirror: bool) -> String {
    let how = match is_mirror {
        true => format!("[images.mirrors]\n\"docker.io\" = \"http://{host}\"\n\"{host}\" = \"http://{host}\"\n"),
        false => "plain_http = true\n".to_owned(),
    };
    format!("{pool}[images]\nallow = [\"{host}/a/*\", \"e2bdev/*\", \"debian\", \"python\"]\npull = \"missing\"\n{how}")
}

pub(crate) fn image(registry: &Registry) -> String {
    format!("127.0.0.1:{}/a/tools:t", registry.port)
}

/// Whether that SDK builds templates.
fn assert_builds(sdk: &str, modules: &[&str]) {
    let Some(kit) = Kit::find(sdk) else { return };
    let Some((server, registry)) = with_registry("") else {
        return;
    };
    let mut program = kit.program(server.site.root(), modules);
    program.env("OFFLEASH_TEST_IMAGE", image(&registry)).env(
        "OFFLEASH_TEST_HOST_IMAGE",
        format!("127.0.0.1:{}/b/other:t", registry.port),
    );
    languages::run(&server, program);
    server.end();
}

#[test]
fn the_newest_python_sdk_builds_templates() {
    assert_builds("python", &["builds"]);
}

#[test]
fn the_newest_asynchronous_python_sdk_builds_templates() {
    assert_builds("python", &["async_builds"]);
}

#[test]
fn the_newest_javascript_sdk_builds_templates() {
    assert_builds("javascript", &["builds"]);
}

#[test]
fn an_older_python_sdk_builds_templates() {
    assert_builds("python-2.45.1", &["builds", "async_builds"]);
}

#[test]
fn an_older_javascript_sdk_builds_templates() {
    assert_builds("javascript-2.45.0", &["builds"]);
}

/// A build that was asked for: the template's id and its own.
pub(crate) fn requested(server: &Server, name: &str) -> (String, String) {
    let (status, answer) = server.ask("POST /v3/templates", &json!({ "name": name }).to_string());
    assert_eq!(status, 202, "{answer}");
    let text = |field: &str| answer[field].as_str().unwrap().to_owned();
    (text("templateID"), text("buildID"))
}

pub(crate) fn start(server: &Server, (template, build): &(String, String), body: &Value) {
    let (status, answer) = server.ask(
        &format!("POST /v2/templates/{template}/builds/{build}"),
        &body.to_string(),
    );
    assert_eq!(status, 202, "{answer}");
}

pub(crate) fn status(server: &Server, (template, build): &(String, String)) -> Value {
    let (status, answer) = server.ask(&format!("GET /templates/{template}/builds/{build}/status"), "");
    assert_eq!(status, 200, "{answer}");
    answer
}

/// The status of a build once it has ended.
pub(crate) fn ended(server: &Server, which: &(String, String)) -> Value {
    eventually("the end of a build", || {
        let answer = status(server, which);
        ["ready", "error"]
            .contains(&answer["status"].as_str().unwrap())
            .then_some(answer)
    })
}

pub(crate) fn run_steps(lines: &[&str]) -> Value {
    lines
        .iter()
        .map(|line| json!({ "type": "RUN", "args": [line] }))
        .collect()
}

/// What the store has of builds of keys.
pub(crate) fn in_store(server: &Server) -> Vec<String> {
    let found = std::fs::read_dir(server.site.state().join("templates"))
        .into_iter()
        .flatten()
        .flatten();
    let names = found.filter_map(|entry| entry.file_name().into_string().ok());
    names
        .filter(|name| name.contains('_') && !name.starts_with(".building"))
        .collect()
}
