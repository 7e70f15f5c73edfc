//! The server as its owner sees it: its start, its pages, its socket, its end.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::client::{ask, connect, parse, read_all};
use crate::server::{QUIET, Server};
use crate::support::processes::{TIMEOUT, eventually, program, read_until, signal};
use crate::support::{Site, binary, skip, stdout};

#[test]
fn the_server_says_how_it_is() {
    let mut server = Server::start();
    for page in ["GET /healthz", "GET /readyz"] {
        assert_eq!(ask(server.address, page, &[], "").status, 204);
    }
    let numbers = ask(server.address, "GET /metrics", &[], "");
    assert_eq!(
        numbers.header("content-type"),
        Some("text/plain; version=0.0.4; charset=utf-8")
    );
    for line in numbers.body.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        assert!(
            name.starts_with("offleash_") && value.parse::<f64>().is_ok_and(|value| value >= 0.0),
            "{line}"
        );
    }
    let (status, log) = server.end();
    assert!(status.success(), "{status}: {log}");
    let told: Vec<&str> = log.lines().filter(|line| !line.contains("\"not_enforced\"")).collect();
    let [signal, done, ended] = told[..] else {
        panic!("{log}");
    };
    assert!(signal.contains("told to end by SIGTERM"), "{signal}");
    assert!(done.contains("requests are done with"), "{done}");
    assert!(ended.contains("ended; sandboxes live on"), "{ended}");
}

#[test]
fn what_is_not_enforced_here_is_told_at_the_start_and_of_each_sandbox() {
    let mut server = Server::start();
    let report = server.site.offleash(["doctor", "--json"]).output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).unwrap();
    let groups = report["checks"]
        .as_array()
        .unwrap()
        .iter()
        .find(|check| check["name"] == "cgroups");
    let are_whole = groups.unwrap()["status"] == "ok";
    let key = server.key(&[]);
    let made = server.ask(&key, "POST /v1/sandboxes", "{}").json();
    let not_enforced = made["not_enforced"].as_object().unwrap();
    assert!(!are_whole || not_enforced.is_empty(), "{made}");
    let logs = server.ask(
        &key,
        &format!("GET /sandboxes/{}/logs", made["id"].as_str().unwrap()),
        "",
    );
    for control in not_enforced.keys() {
        assert!(
            logs.body
                .contains(&format!("not enforced on this machine: `{control}`")),
            "{logs:?}"
        );
    }
    server.ask(
        &key,
        &format!("DELETE /v1/sandboxes/{}", made["id"].as_str().unwrap()),
        "",
    );
    let (_, log) = server.end();
    let warnings: Vec<&str> = log.lines().filter(|line| line.contains("\"not_enforced\"")).collect();
    assert_eq!(warnings.len(), usize::from(!are_whole), "{log}");
    assert!(
        warnings.iter().all(|line| line.contains("\"sandboxes.degrade\"")),
        "{log}"
    );
}

#[test]
fn a_server_that_can_make_no_sandbox_is_not_ready() {
    let ready = |server: &Server| ask(server.address, "GET /readyz", &[], "");
    let short = Server::start_with(&format!("[admission]\nmin_disk_mib = 1000000000\n{QUIET}"), &[]);
    let told = ready(&short);
    told.assert_refused(503);
    assert!(told.body.contains("the machine is short of disk space"), "{told:?}");
    assert_eq!(ask(short.address, "GET /healthz", &[], "").status, 204);
    let broken = Server::start();
    std::fs::write(broken.site.state().join("ready"), "in the way").unwrap();
    let told = ready(&broken);
    told.assert_refused(503);
    assert!(told.body.contains("the state directory cannot be written"), "{told:?}");
    let good = Server::start();
    assert_eq!(ready(&good).status, 204);
    assert!(!good.site.state().join("ready").exists());
}

#[test]
fn the_owner_needs_no_key_on_the_socket() {
    let server = Server::start();
    let mode = std::fs::metadata(server.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut stream = UnixStream::connect(server.socket()).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
        .write_all(b"GET /v1/keys HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        .unwrap();
    let answer = parse(&read_all(&mut stream));
    assert_eq!(answer.status, 200, "{answer:?}");
}

#[test]
fn requests_that_began_are_finished_when_the_server_ends() {
    let mut server = Server::start();
    let mut stream = connect(server.address);
    let head = format!(
        "POST /v1/run HTTP/1.1\r\nHost: localhost\r\nX-API-KEY: {}\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n",
        server.key(&[])
    );
    stream.write_all(head.as_bytes()).unwrap();
    // It says when it waits for the body.
    let waits = read_until(&mut stream, "\r\n\r\n");
    assert!(waits.starts_with("HTTP/1.1 100 "), "{waits}");
    rustix::process::kill_process(
        rustix::process::Pid::from_child(server.child()),
        rustix::process::Signal::TERM,
    )
    .unwrap();
    stream.write_all(b"{}").unwrap();
    parse(&read_all(&mut stream)).assert_refused(400);
    let (status, _) = server.end();
    assert!(status.success(), "{status}");
}

#[test]
fn a_configuration_is_checked() {
    let site = Site::new();
    let file = site.write("good.toml", format!("listen = \"127.0.0.1:0\"\n{QUIET}"));
    let good = site.succeed(["serve", "--config-check", "--config", file.to_str().unwrap()]);
    assert_eq!(good, "the configuration is good\n");
    for (text, named) in [
        ("lisen = 3\n", "lisen"),
        ("[limits]\ncpus = 1000\n", "limits.cpus"),
        ("[telemetry]\nendpoint = \"ftp://127.0.0.1\"\n", "telemetry.endpoint"),
        ("a = [", "unclosed array"),
    ] {
        let file = site.write("bad.toml", format!("# The first line.\n{text}"));
        let told = site.refuse(["serve", "--config-check", "--config", file.to_str().unwrap()]);
        assert!(told.contains(named), "{told}");
        assert!(told.contains("bad.toml:2:") || told.contains("bad.toml:3:"), "{told}");
    }
    // What only serving would refuse otherwise.
    let told = site.refuse(["serve", "--config-check", "--listen", "0.0.0.0:0"]);
    assert!(
        told.contains("can be reached by others") && told.contains("hint: "),
        "{told}"
    );
    site.succeed(["serve", "--config-check", "--listen", "0.0.0.0:0", "--insecure-public"]);
    site.write("no.pem", "nothing");
    let told = site.refuse([
        "serve",
        "--config-check",
        "--tls-cert",
        site.workspace().join("no.pem").to_str().unwrap(),
        "--tls-key",
        site.workspace().join("no.pem").to_str().unwrap(),
    ]);
    assert!(told.contains("the certificate"), "{told}");
    for (given, hinted) in [
        (":3000", "0.0.0.0:3000"),
        ("nowhere:3000", "127.0.0.1:3000"),
        ("3000", "127.0.0.1:3000"),
    ] {
        let output = site
            .offleash(["serve", "--config-check", "--listen", given])
            .output()
            .unwrap();
        let told = crate::support::stderr(&output);
        assert!(!output.status.success(), "{given}");
        assert!(told.contains(hinted), "{told}");
    }
    site.succeed(["serve", "--config-check", "--listen", "localhost:3000"]);
    site.refuse(["serve", "--config-check", "--config", "nowhere.toml"]);
    site.refuse(["serve", "--config-check", "--domain", "a b"]);
}

#[test]
fn a_template_that_is_not_there_is_told_and_keeps_nobody_from_serving() {
    let site = Site::new();
    let named = "[pool]\nmin = 0\n[pool.templates.base]\nmin = 0\n[pool.templates.nosuch]\nmin = 1\n\
                 [pool.templates.code-interpreter-v1]\nmin = 0\n";
    let file = site.write("serve.toml", named);
    let check = ["serve", "--config-check", "--config", file.to_str().unwrap()];
    let output = site.offleash(check).output().unwrap();
    assert_eq!(stdout(&output), "the configuration is good\n");
    let told = crate::support::stderr(&output);
    assert!(
        told.starts_with("warning: ") && told.contains("serve.toml:5:"),
        "{told}"
    );
    assert!(told.contains("pool.templates.nosuch: there is no template"), "{told}");
    assert!(told.contains("hint: `offleash template ls`"), "{told}");
    assert!(
        !told.contains("pool.templates.base") && !told.contains("code-interpreter"),
        "{told}"
    );
    let mut server = Server::start_on(site, named, &[]);
    let (status, log) = server.end();
    assert!(status.success(), "{status}");
    let told = log.lines().find(|line| line.contains(r#""event":"configuration""#));
    assert!(told.is_some_and(|line| line.contains("pool.templates.nosuch")), "{log}");
}

#[test]
fn a_certificate_is_renewed_while_the_server_runs() {
    if program("openssl").is_none() {
        return skip("no openssl");
    }
    let openssl = |arguments: &[&str]| {
        let output = Command::new("openssl")
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        stdout(&output)
    };
    let site = Site::sharing_templates();
    let [certificate, key] = ["certificate", "key"].map(|name| site.root().join(name).to_str().unwrap().to_owned());
    let renew = |name: &str| {
        let (new, curve, subject) = ("ec", "ec_paramgen_curve:P-256", format!("/CN={name}"));
        openssl(&[
            "req",
            "-x509",
            "-newkey",
            new,
            "-pkeyopt",
            curve,
            "-nodes",
            "-days",
            "1",
            "-subj",
            &subject,
            "-keyout",
            &key,
            "-out",
            &certificate,
        ]);
    };
    renew("first");
    let config = site.write("serve.toml", QUIET);
    let mut command = site.offleash(["serve", "--listen", "127.0.0.1:0", "--tls-cert", &certificate]);
    command.args(["--tls-key", &key, "--config"]).arg(config);
    let mut server = Server::spawned(site, command);
    let address = server.address.to_string();
    let shown = || openssl(&["s_client", "-connect", &address]);
    assert!(shown().contains("first"), "{}", shown());
    renew("second");
    signal(server.child(), Signal::HUP);
    eventually("the new certificate", || shown().contains("second").then_some(()));
    let (status, log) = server.end();
    assert!(status.success(), "{status}: {log}");
    // But for what this machine cannot enforce for this user.
    let told: Vec<&str> = log
        .lines()
        .filter(|line| !line.contains(r#""event":"not_enforced""#))
        .collect();
    assert!(told[0].contains("the certificate was read again"), "{log}");
    assert!(told.iter().all(|line| line.contains(r#""event":"server""#)), "{log}");
}

#[test]
fn one_state_directory_has_one_server() {
    let server = Server::start();
    let told = server.site.refuse(["serve", "--listen", "127.0.0.1:0"]);
    assert!(told.contains("another daemon"), "{told}");
}

#[test]
fn a_service_manager_hands_over_the_socket_and_is_told() {
    let site = Site::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let told = UnixDatagram::bind(site.root().join("notify")).unwrap();
    told.set_read_timeout(Some(TIMEOUT)).unwrap();
    let config = site.write("serve.toml", QUIET);
    let mut command = Command::new("/bin/sh");
    command
        .args([
            "-c",
            "exec 3<&0 </dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec \"$@\"",
            "sh",
        ])
        .arg(binary())
        .args(["serve", "--config"])
        .arg(config)
        .env_clear()
        .env("HOME", site.root())
        .env("OFFLEASH_STATE", site.state())
        .env("NOTIFY_SOCKET", site.root().join("notify"))
        .stdin(Stdio::from(OwnedFd::from(listener)));
    let mut server = Server::spawned(site, command);
    assert_eq!(server.address, address);
    let mut word = [0; 64];
    let mut heard = || {
        let length = told.recv(&mut word).unwrap();
        String::from_utf8_lossy(&word[..length]).into_owned()
    };
    assert_eq!(heard(), "READY=1");
    assert_eq!(ask(address, "GET /healthz", &[], "").status, 204);
    // What the unit sends to reload, where there is no certificate to read again.
    signal(server.child(), Signal::HUP);
    assert_eq!(ask(address, "GET /healthz", &[], "").status, 204);
    let (status, log) = server.end();
    assert!(status.success(), "{status}: {log}");
    assert_eq!(heard(), "STOPPING=1");
}

#[test]
fn the_configuration_that_is_shipped_is_good() {
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/offleash-serve.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let site = Site::new();
    let check = |file: &std::path::Path| {
        let flags = ["serve", "--config-check", "--config", file.to_str().unwrap()];
        assert_eq!(site.succeed(flags), "the configuration is good\n");
    };
    check(&file);
    // And so is every line of it that is there to be used.
    let lines = text.lines().map(|line| match line.strip_prefix("#") {
        Some(key) if !key.starts_with(' ') => key,
        _ => line,
    });
    check(&site.write("whole.toml", lines.collect::<Vec<_>>().join("\n")));
}

#[test]
fn the_units_are_what_systemd_understands() {
    let Some(systemd) = program("systemd-analyze") else {
        return skip("no systemd-analyze");
    };
    let site = Site::new();
    let packaging = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    let units = ["offleash.service", "offleash.socket"].map(|name| {
        let text = std::fs::read_to_string(packaging.join(name)).unwrap();
        // The program is not installed here.
        site.write(
            name,
            text.replace("/usr/local/bin/offleash", binary().to_str().unwrap()),
        )
    });
    let output = Command::new(systemd)
        .args(["verify", "--man=no"])
        .args(&units)
        .env("TMPDIR", site.root())
        .output()
        .unwrap();
    let said = crate::support::stderr(&output);
    // Others than ours are the machine's.
    let about_us: Vec<&str> = said.lines().filter(|line| line.contains("offleash")).collect();
    assert!(
        output.status.success() && about_us.is_empty(),
        "{}: {said}",
        output.status
    );
}

#[test]
fn a_server_whose_registry_cannot_be_written_is_not_ready() {
    let Some(python) = program("python3") else {
        return skip("no python3");
    };
    let server = Server::start();
    let ready = || ask(server.address, "GET /readyz", &[], "");
    let script = "import sqlite3, sys\n\
                  held = sqlite3.connect(sys.argv[1], isolation_level=None)\n\
                  held.execute('BEGIN IMMEDIATE')\n\
                  print('held', flush=True)\n\
                  sys.stdin.read()";
    let mut holder = Command::new(python)
        .args(["-c", script])
        .arg(server.site.state().join("registry.sqlite3"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = [0; 5];
    holder.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
    let told = ready();
    told.assert_refused(503);
    assert!(told.body.contains("the registry cannot be written"), "{told:?}");
    assert!(!told.body.contains(server.site.root().to_str().unwrap()), "{told:?}");
    assert_eq!(ask(server.address, "GET /healthz", &[], "").status, 204);
    drop(holder.stdin.take());
    assert!(holder.wait().unwrap().success());
    eventually("it is ready again", || (ready().status == 204).then_some(()));
}
