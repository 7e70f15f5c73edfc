//! Pulls from a real registry, with and without encryption and passwords, several at once, cut off, and without room.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use super::docker_registry::Registry;
use super::layout::{Busybox, Layout, layer};
use super::support::disks::SmallDisk;
use super::support::openssl::certify_loopback;
use super::support::{Site, is_root, skip, stderr, stdout};

/// `me` with the password `word`.
const PASSWORDS: &str = "me:$2y$05$TQDet70EWA1g1Hyul8OTUuyUsXOtVtSlSvLl9ZHQoqhHWQmSXlDfS\n";

/// How many pulls are killed, each a little later than the one before.
const KILLS: u32 = 40;

/// An image of one large layer that does not become smaller.
fn large(site: &Path) -> PathBuf {
    let directory = site.join("large-root");
    fs::create_dir(&directory).unwrap();
    let mut state = 1_u64;
    let mut noise = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    for number in 0..4 {
        let bytes: Vec<u8> = (0..150_000).flat_map(|_| noise()).collect();
        fs::write(directory.join(format!("file-{number}")), bytes).unwrap();
    }
    let layers = [layer(&directory, "0")];
    Layout::write(&site.join("large"), &layers, &serde_json::json!({ "Cmd": ["true"] }))
}

#[test]
fn an_image_is_pulled_without_encryption_from_this_machine_and_run() {
    let site = Site::new();
    let Some(layout) = Busybox::layout(site.root()) else {
        return;
    };
    let Some(registry) = Registry::start(site.root(), "", "") else {
        return;
    };
    if !registry.push(&layout, &[]) {
        return;
    }
    let name = registry.name();
    let run = |flags: &[&str]| {
        let arguments = [
            &["run", "--quiet", "--image", &name],
            flags,
            &["--", "cat", "/etc/replaced"],
        ]
        .concat();
        site.offleash(arguments).output().unwrap()
    };
    assert_eq!(run(&["--pull", "never"]).status.code(), Some(125));
    let encrypted = run(&[]);
    assert!(stderr(&encrypted).contains("TLS"), "{}", stderr(&encrypted));
    let output = run(&["--plain-http"]);
    assert_eq!(stdout(&output), "new\n", "{}", stderr(&output));
    // It is here now, and its registry need not be.
    drop(registry);
    assert_eq!(stdout(&run(&["--pull", "never"])), "new\n");
    assert_eq!(stdout(&run(&[])), "new\n");
    assert_eq!(run(&["--pull", "always", "--plain-http"]).status.code(), Some(125));
    let lines = stderr(
        &site
            .offleash(["image", "pull", "--plain-http", &name])
            .output()
            .unwrap(),
    );
    assert!(
        lines.contains("asking for the manifest") && lines.contains("cannot be reached"),
        "{lines}"
    );
}

#[test]
fn certificates_and_passwords_are_checked() {
    let site = Site::new();
    if certify_loopback(site.root()).is_err() {
        return skip("there is no openssl to certify a registry");
    }
    let Some(layout) = Busybox::layout(site.root()) else {
        return;
    };
    fs::write(site.root().join("passwords"), PASSWORDS).unwrap();
    let file = |name: &str| site.root().join(name).display().to_string();
    let encryption = format!(
        "  tls:\n    certificate: {}\n    key: {}\n",
        file("server.pem"),
        file("server.key")
    );
    let passwords = format!(
        "auth:\n  htpasswd:\n    realm: tests\n    path: {}\n",
        file("passwords")
    );
    let Some(registry) = Registry::start(site.root(), &encryption, &passwords) else {
        return;
    };
    if !registry.push(&layout, &["--dest-creds", "me:word"]) {
        return;
    }
    let name = registry.name();
    let authority = file("ca.pem");
    let said = site.refuse(["image", "pull", "-q", &name]);
    assert!(said.contains("TLS"), "{said}");
    let pull = ["image", "pull", "-q", "--registry-ca", &authority, &name];
    let said = site.refuse(pull);
    assert!(
        said.contains("refuses access") && said.contains("docker login"),
        "{said}"
    );
    let docker = site.root().join(".docker");
    fs::create_dir(&docker).unwrap();
    let host = format!("127.0.0.1:{}", registry.port);
    let configured = |config: serde_json::Value| fs::write(docker.join("config.json"), config.to_string()).unwrap();
    configured(serde_json::json!({ "auths": { &host: { "auth": "bWU6d3Jvbmc=" } } }));
    assert!(site.refuse(pull).contains("refuses access"));
    configured(serde_json::json!({ "auths": { "other.example": { "auth": "bWU6d29yZA==" } } }));
    assert!(site.refuse(pull).contains("refuses access"));
    configured(serde_json::json!({ "auths": { &host: { "auth": "bWU6d29yZA==" } } }));
    assert!(site.succeed(pull).contains("sha256:"));
    // The same by a program that keeps passwords.
    site.succeed(["image", "rm", &name]);
    let helper = site.root().join("docker-credential-tests");
    fs::write(
        &helper,
        "#!/bin/sh\ncat >asked\necho '{\"Username\":\"me\",\"Secret\":\"word\"}'\n",
    )
    .unwrap();
    fs::set_permissions(&helper, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    configured(serde_json::json!({ "credHelpers": { &host: "tests" } }));
    let path = format!("{}:/usr/bin:/bin", site.root().display());
    let output = site.offleash(pull).env("PATH", path).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(fs::read_to_string(site.workspace().join("asked")).unwrap(), host);
}

#[test]
fn pulls_that_are_killed_leave_nothing_that_a_next_one_minds() {
    let site = Site::new();
    let Some(registry) = Registry::start(site.root(), "", "") else {
        return;
    };
    if !registry.push(&large(site.root()), &[]) {
        return;
    }
    let name = registry.name();
    let pull = ["image", "pull", "-q", "--plain-http", &name];
    let whole = std::time::Instant::now();
    site.succeed(pull);
    let whole = whole.elapsed();
    site.succeed(["image", "rm", &name]);
    let mut killed = 0;
    for part in 1..=KILLS {
        let mut child = site
            .offleash(pull)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(whole * part / (KILLS + 1));
        child.kill().unwrap();
        killed += u32::from(!child.wait().unwrap().success());
        // Whatever has a name is whole.
        if site.succeed(["image", "ls"]).contains(&name) {
            site.succeed(["image", "rm", &name]);
        }
    }
    assert!(killed > 0, "no pull was killed");
    site.succeed(pull);
    let images = site.state().join("images");
    let form = if is_root() { "owned" } else { "flat" };
    let layers = fs::read_dir(images.join("layers").join(form)).unwrap();
    let layers: Vec<PathBuf> = layers
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .collect();
    assert_eq!(layers.len(), 1, "{layers:?}");
    for number in 0..4 {
        let file = format!("file-{number}");
        let unpacked = fs::read(layers[0].join("upper").join(&file)).unwrap();
        assert!(
            unpacked == fs::read(site.root().join("large-root").join(&file)).unwrap(),
            "{file}"
        );
    }
    site.succeed(["image", "rm", &name]);
    for place in ["blobs", "partial", "references"] {
        assert_eq!(fs::read_dir(images.join(place)).unwrap().count(), 0, "{place}");
    }
}

#[test]
fn several_at_once_end_well() {
    let site = Site::new();
    let Some(registry) = Registry::start(site.root(), "", "") else {
        return;
    };
    if !registry.push(&large(site.root()), &[]) {
        return;
    }
    let name = registry.name();
    let pulls: Vec<Child> = (0..4)
        .map(|_| {
            let mut command = site.offleash(["image", "pull", "-q", "--plain-http", &name]);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    for pull in pulls {
        let output = pull.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
    }
    let blobs = fs::read_dir(site.state().join("images/blobs")).unwrap().count();
    assert_eq!(blobs, 3);
}

#[test]
fn a_full_disk_is_said_and_its_room_is_given_back() {
    let site = Site::new();
    let Some(_disk) = is_root().then(|| SmallDisk::mount(&site.state(), 8)).flatten() else {
        return skip("only root can mount a small disk");
    };
    rustix::fs::chmod(site.state(), rustix::fs::Mode::RWXU).unwrap();
    let Some(registry) = Registry::start(site.root(), "", "") else {
        return;
    };
    if !registry.push(&large(site.root()), &[]) {
        return;
    }
    let said = site.refuse(["image", "pull", "-q", "--plain-http", &registry.name()]);
    assert!(
        said.contains("No space left") && said.contains("free some space"),
        "{said}"
    );
    assert_eq!(site.succeed(["image", "ls"]).lines().count(), 1);
    site.succeed(["image", "prune"]);
    let found = rustix::fs::statvfs(site.state()).unwrap();
    let free = found.f_bavail * found.f_frsize;
    assert!(free > 7 << 20, "{free}");
}

#[test]
fn a_registry_that_is_not_there_is_said_to_be_not() {
    let site = Site::new();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let begun = std::time::Instant::now();
    let said = site.refuse(["image", "pull", "-q", "--plain-http", &format!("localhost:{port}/a")]);
    assert!(said.contains("cannot be reached"), "{said}");
    assert!(begun.elapsed() < Duration::from_secs(60));
}
