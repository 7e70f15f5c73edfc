//! Images of containers: loaded, pulled from a registry, run, and compared with what another tool unpacks.

#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that cannot go on has failed, and starts programs itself"
)]

#[path = "images/comparison.rs"]
mod comparison;
#[path = "images/docker_registry.rs"]
mod docker_registry;
#[path = "images/full_disk.rs"]
mod full_disk;
#[path = "images/layout.rs"]
mod layout;
#[path = "images/registry.rs"]
mod registry;
#[path = "images/subordinate.rs"]
mod subordinate;
mod support;
#[path = "images/templates.rs"]
mod templates;

use std::path::Path;
use std::process::Output;

use layout::{Busybox, Layout};
use support::{Site, is_root, stderr, stdout};

/// A site with the image of busybox in it as `localhost/box:t`.
fn with_busybox() -> Option<Site> {
    let site = Site::new();
    let layout = Busybox::layout(site.root())?;
    site.succeed(["image", "load", "-q", layout.to_str().unwrap()]);
    Some(site)
}

fn run(site: &Site, flags: &[&str], command: &[&str]) -> Output {
    let arguments = [
        &["run", "--quiet", "--image", "localhost/box:t"],
        flags,
        &["--"],
        command,
    ]
    .concat();
    site.offleash(arguments).output().unwrap()
}

#[track_caller]
fn printed(site: &Site, flags: &[&str], script: &str) -> String {
    let output = run(site, flags, &["sh", "-c", script]);
    assert!(output.status.success(), "{}{}", stdout(&output), stderr(&output));
    stdout(&output)
}

#[test]
fn a_run_of_an_image_has_its_files_variables_user_and_directory() {
    let Some(site) = with_busybox() else { return };
    site.write("file", "of the workspace");
    assert_eq!(
        printed(&site, &[], "pwd; echo $OF_THE_IMAGE $HOME $USER; cat /etc/replaced"),
        "/work\nyes /root root\nnew\n"
    );
    // The second layer removed one, and made a directory anew.
    assert_eq!(
        printed(&site, &[], "ls -A /opt /etc/kept; test -e /bin/gone || echo gone"),
        "/etc/kept:\nnew\n\n/opt:\nfile\ngone\n"
    );
    let workspace = site.workspace();
    let script = format!(
        "cat {0}/file && touch {0}/made /root-file && ls /root-file",
        workspace.display()
    );
    assert_eq!(printed(&site, &[], &script), "of the workspace/root-file\n");
    assert!(!Path::new("/root-file").exists());
    assert!(
        site.succeed(["runs"]).lines().count() >= 1,
        "what it changed in the workspace is kept"
    );
    // Nothing of the host's system is there.
    assert_eq!(
        printed(&site, &[], "ls -d /usr /var 2>&1 | wc -l; ls /home 2>/dev/null; true"),
        "2\n"
    );
    if is_root() {
        assert_eq!(printed(&site, &[], "id -u; stat -c %u:%g /work"), "0\n33:33\n");
        assert_eq!(printed(&site, &["--user", "app"], "id -u; echo $HOME"), "1234\n/work\n");
    } else {
        assert_eq!(printed(&site, &[], "whoami; stat -c %U:%G /work"), "root\nroot:root\n");
    }
}

#[test]
fn an_image_runs_its_own_command_and_the_record_names_its_digest() {
    let Some(site) = with_busybox() else { return };
    let output = site
        .offleash(["run", "--image", "localhost/box:t", "--json"])
        .output()
        .unwrap();
    let record = support::record_of(&output);
    assert_eq!(record["stdout"]["data"], "its own\n", "{record}");
    assert_eq!(record["image"]["name"], "localhost/box:t");
    let shown: serde_json::Value =
        serde_json::from_str(&site.succeed(["image", "inspect", "localhost/box:t"])).unwrap();
    assert_eq!(record["image"]["digest"], shown[0]["digest"]);
    let plain = site.record(&[], "true");
    assert!(plain["image"].is_null());
}

#[test]
fn nothing_of_an_image_is_written_to_and_nothing_inside_gains_by_it() {
    let Some(site) = with_busybox() else { return };
    printed(&site, &[], "rm -rf /bin/[a-r]* /etc; echo x > /opt/file; mkdir /new");
    assert_eq!(
        printed(&site, &[], "cat /opt/file /etc/replaced; test -e /new || echo none"),
        "file\nnew\nnone\n"
    );
    let script = "stat -c %a /bin/setuid; grep NoNewPrivs /proc/self/status; ls /dev | grep -c sda";
    let output = run(&site, &[], &["sh", "-c", script]);
    assert_eq!(stdout(&output), "755\nNoNewPrivs:\t1\n0\n");
}

#[test]
fn an_image_in_use_stays_and_goes_afterwards() {
    let Some(site) = with_busybox() else { return };
    let mut command = site.offleash([
        "run",
        "--quiet",
        "--image",
        "localhost/box:t",
        "--",
        "sh",
        "-c",
        "echo begun; sleep 1000",
    ]);
    command
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null());
    let mut child = support::processes::start(&mut command);
    let mut output = child.stdout.take().unwrap();
    support::processes::read_until(&mut output, "begun\n");
    let said = site.refuse(["image", "rm", "localhost/box:t"]);
    assert!(said.contains("in use"), "{said}");
    assert_eq!(site.succeed(["image", "prune", "--all"]), "");
    assert!(site.succeed(["image", "ls"]).contains("used"));
    support::processes::signal(&child, rustix::process::Signal::TERM);
    support::processes::wait(&mut child);
    assert_eq!(site.succeed(["image", "rm", "localhost/box:t"]), "localhost/box:t\n");
    for name in ["blobs", "references", "partial"] {
        let left = std::fs::read_dir(site.state().join("images").join(name))
            .unwrap()
            .count();
        assert_eq!(left, 0, "{name}");
    }
}

#[test]
fn a_run_of_an_image_is_taken_by_a_sandbox_that_waits() {
    let Some(site) = with_busybox() else { return };
    let run = |flags: &[&str]| {
        let arguments = [
            &["run", "--json", "--image", "localhost/box:t", "--warm", "1"],
            flags,
            &[
                "--",
                "sh",
                "-c",
                "pwd; cat /etc/replaced; echo $OF_THE_IMAGE; echo x >/opt/file",
            ],
        ];
        support::record_of(&site.offleash(arguments.concat()).output().unwrap())
    };
    let waiting = || {
        let told = site.succeed(["warm", "ls", "--json"]);
        let told: Vec<serde_json::Value> = serde_json::from_str(&told).unwrap();
        Some(told.first()?["id"].as_str().unwrap().to_owned())
    };
    let cold = run(&[]);
    for _ in 0..2 {
        let id = support::processes::eventually("a sandbox that waits", waiting);
        let warm = run(&[]);
        assert_eq!(warm["id"], id.as_str(), "it was made anew");
        assert_eq!(warm["stdout"]["data"], "/work\nnew\nyes\n", "{warm}");
        for same in ["stdout", "exit_code", "image"] {
            assert_eq!(warm[same], cold[same]);
        }
    }
    support::processes::eventually("a sandbox that waits", waiting);
    assert!(site.refuse(["image", "rm", "localhost/box:t"]).contains("in use"));
    site.succeed(["warm", "stop"]);
    // Each of these would have its registry asked, so none waits for them.
    let mut asked = site.offleash([
        "run",
        "--image",
        "localhost/box:t",
        "--pull",
        "always",
        "--warm",
        "1",
        "--",
        "sh",
    ]);
    assert!(!asked.output().unwrap().status.success());
    assert_eq!(waiting(), None);
    site.succeed(["image", "rm", "localhost/box:t"]);
}

#[test]
fn what_is_asked_for_wrongly_is_refused_with_a_hint() {
    let Some(site) = with_busybox() else { return };
    for arguments in [
        &["run", "--image", "Upper/case", "--", "true"][..],
        &["run", "--image", "not-here", "--pull", "never", "--", "true"],
        &["image", "rm", "not-here"],
        &["image", "inspect", "not-here"],
        &["image", "pull", "a/b@sha256:0"],
        &["image", "pull", "--plain-http", "registry.example/a"],
        &["image", "pull", "--mirror", "nonsense", "a"],
        &["image", "load", "/nonexistent"],
        &["image", "load", "/etc/passwd"],
        &["run", "--image", "localhost/box:t", "--root", "base", "--", "true"],
    ] {
        let output = site.offleash(arguments).output().unwrap();
        assert!(
            matches!(output.status.code(), Some(125)),
            "{arguments:?}: {}",
            stderr(&output)
        );
        assert!(
            stderr(&output).contains("hint: ") || arguments.contains(&"base"),
            "{arguments:?}: {}",
            stderr(&output)
        );
    }
}

#[test]
fn archives_of_each_kind_are_loaded() {
    let site = Site::new();
    let Some(layout) = Busybox::layout(site.root()) else {
        return;
    };
    let tar = site.root().join("layout.tar");
    let made = std::process::Command::new("tar")
        .arg("-C")
        .arg(&layout)
        .arg("-cf")
        .arg(&tar)
        .arg(".")
        .status();
    assert!(made.unwrap().success());
    let file = std::fs::File::open(&tar).unwrap();
    let mut from_input = site.offleash(["image", "load", "-q", "--name", "from/input:1", "-"]);
    let output = from_input.stdin(file).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).starts_with("from/input:1 sha256:"));
    let saved = site.root().join("saved.tar");
    let to = format!("docker-archive:{}:saved/image:2", saved.display());
    if !layout::skopeo(&[&format!("oci:{}:t", layout.display()), &to]) {
        return support::skip("there is no skopeo to write what `docker save` writes");
    }
    assert!(
        site.succeed(["image", "load", "-q", saved.to_str().unwrap()])
            .starts_with("saved/image:2 sha256:")
    );
    let listed = site.succeed(["image", "ls"]);
    assert!(
        listed.contains("from/input:1") && listed.contains("saved/image:2"),
        "{listed}"
    );
    let output = site
        .offleash(["run", "-q", "--image", "saved/image:2"])
        .output()
        .unwrap();
    assert_eq!(stdout(&output), "its own\n", "{}", stderr(&output));
}

#[test]
fn a_hostile_layer_leaves_nothing() {
    let site = Site::new();
    let outside = site.root().join("outside");
    let directory = site.root().join("hostile");
    std::fs::create_dir(&directory).unwrap();
    std::os::unix::fs::symlink(site.root(), directory.join("out")).unwrap();
    let tar = site.root().join("hostile.tar");
    let archive = |arguments: &[&str]| {
        let mut command = std::process::Command::new("tar");
        let made = command
            .arg("-C")
            .arg(&directory)
            .arg("-f")
            .arg(&tar)
            .args(arguments)
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", stderr(&made));
    };
    archive(&["-c", "out"]);
    std::fs::remove_file(directory.join("out")).unwrap();
    std::fs::create_dir(directory.join("out")).unwrap();
    std::fs::write(directory.join("out/outside"), "hostile").unwrap();
    archive(&["-r", "out/outside"]);
    let layer = std::fs::read(&tar).unwrap();
    let layout = Layout::write(&site.root().join("layout"), &[layer], &serde_json::json!({}));
    let said = site.refuse(["image", "load", "-q", layout.to_str().unwrap()]);
    assert!(said.contains("symbolic link of the same layer"), "{said}");
    assert!(!outside.exists());
    assert_eq!(site.succeed(["image", "ls"]).lines().count(), 1);
}

#[test]
fn a_python_of_the_host_runs_as_an_image() {
    let site = Site::new();
    let Some(layout) = layout::python(site.root()) else {
        return;
    };
    site.succeed(["image", "load", "-q", layout.to_str().unwrap()]);
    let code = "import json, ssl, sys; print(json.dumps(sys.version_info[0]), sys.executable)";
    let output = site
        .offleash([
            "run",
            "-q",
            "--image",
            "localhost/python:t",
            "--",
            "python3",
            "-c",
            code,
        ])
        .output()
        .unwrap();
    assert_eq!(stdout(&output), "3 /usr/bin/python3\n", "{}", stderr(&output));
}

#[test]
fn tools_for_an_agent_host_work_in_an_image_and_say_what_it_lacks() {
    let Some(site) = with_busybox() else { return };
    let told = support::tools::told(
        &site,
        &["--image", "localhost/box:t"],
        &[
            serde_json::json!({ "name": "run_command", "arguments": { "command": "pwd; cat /etc/replaced; echo $OF_THE_IMAGE" } }),
            serde_json::json!({ "name": "run_code", "arguments": { "code": "1" } }),
        ],
    );
    assert!(told[0].starts_with("/work\nnew\nyes\n"), "{told:?}");
    assert!(
        told[1].contains("python is not installed in the sandbox") && told[1].contains("use an image that has it"),
        "{told:?}"
    );
    let said = stderr(
        &site
            .offleash(["mcp", "--image", "not-here", "--pull", "never"])
            .output()
            .unwrap(),
    );
    assert!(
        said.contains("there is no image `not-here` here") && said.contains("hint:"),
        "{said}"
    );
}
