//! A server that is asked from elsewhere, by its address and a key: as the user of another machine does.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};

use rustix::process::Signal;

use crate::server::{QUIET, Server};
use crate::support::openssl::certify_loopback;
use crate::support::processes::{eventually, finish, signal, start, wait};
use crate::support::terminal::Terminal;
use crate::support::{Site, skip, stderr, stdout};

/// Who asks a server that is not on this machine, as far as it can tell: with a state directory and a home of their own.
struct Elsewhere {
    site: Site,
    url: String,
    key: String,
}

impl Elsewhere {
    fn new(server: &Server, scheme: &str) -> Self {
        Self {
            site: Site::new(),
            url: format!("{scheme}://{}", server.address),
            key: server.key(&[]),
        }
    }

    /// A command with the key in its environment.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.without_key(arguments);
        command.env("OFFLEASH_API_KEY", &self.key);
        command
    }

    fn without_key(&self, arguments: &[&str]) -> Command {
        let mut command = self.site.offleash(arguments);
        command.env("OFFLEASH_HOST", &self.url);
        command
    }

    fn say(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
        stdout(&output)
    }

    fn refused(&self, arguments: &[&str]) -> String {
        refusal(&self.command(arguments).output().unwrap())
    }
}

fn refusal(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(125), "{}", stdout(output));
    stderr(output)
}

#[test]
fn a_server_elsewhere_is_used_by_the_same_commands() {
    let server = Server::start_with(QUIET, &[]);
    let there = Elsewhere::new(&server, "http");
    let id = there.say(&["create", "--name", "work"]).trim().to_owned();
    assert_eq!(there.say(&["ls", "-q"]).trim(), id);
    let output = there
        .command(&["exec", "work", "sh", "-c", "echo out; echo no >&2; exit 7"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(7));
    assert_eq!((stdout(&output).trim(), stderr(&output).trim()), ("out", "no"));
    let file = there.site.root().join("file");
    fs::write(&file, "mine").unwrap();
    there.say(&["cp", file.to_str().unwrap(), "work:/tmp/copied"]);
    assert_eq!(there.say(&["cp", "work:/tmp/copied", "-"]), "mine");
    assert!(there.say(&["logs", "work"]).contains("created"));
    assert_eq!(
        there.say(&["port", "work", "80"]).trim(),
        format!("{}/_port/{id}/80/", there.url)
    );
    there.say(&["volume", "create", "data", "--size", "8M"]);
    assert!(there.say(&["volume", "ls"]).contains("data"));
    assert_eq!(there.say(&["volume", "rm", "data"]).trim(), "data");

    // A key has its own sandboxes, and no others; one that is none has nothing.
    let other = server.key(&[]);
    let of_other = there
        .without_key(&["exec", &id, "true"])
        .env("OFFLEASH_API_KEY", &other)
        .output()
        .unwrap();
    assert!(refusal(&of_other).contains("not found"), "{}", stderr(&of_other));
    assert!(there.refused(&["key", "ls"]).contains("admin"));
    let wrong = format!("e2b_{}", "0".repeat(40));
    let unknown = there
        .without_key(&["ls"])
        .env("OFFLEASH_API_KEY", wrong)
        .output()
        .unwrap();
    assert!(refusal(&unknown).contains("key"), "{}", stderr(&unknown));

    // What works on this machine alone says so, and does nothing here.
    for arguments in [
        &["run", "--", "true"][..],
        &["doctor"],
        &["runs"],
        &["volume", "prune"],
        &["mcp"],
    ] {
        let said = there.refused(arguments);
        assert!(
            said.contains("works on this machine alone") && said.contains("OFFLEASH_HOST"),
            "{said}"
        );
    }
    let flag = there
        .site
        .offleash(["--host", "https://a.example", "explain", "syscall", "mount"])
        .output()
        .unwrap();
    assert!(refusal(&flag).contains("`--host` names"), "{}", stderr(&flag));
    // The variable is for others.
    there.say(&["explain", "syscall", "mount"]);

    assert_eq!(there.say(&["rm", "-f", &id]).trim(), id);
    drop(server);
    let gone = there.refused(&["ls"]);
    assert!(gone.contains("cannot be reached"), "{gone}");
}

#[test]
fn a_key_is_kept_by_login_for_one_server_and_told_to_no_other() {
    let server = Server::start_with(QUIET, &[]);
    let there = Elsewhere::new(&server, "http");
    let said = refusal(&there.without_key(&["ls"]).output().unwrap());
    assert!(said.contains("offleash login"), "{said}");
    let mut login = there.site.offleash(["login", &there.url]);
    let mut child = start(
        login
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped()),
    );
    writeln!(child.stdin.take().unwrap(), "{}", there.key).unwrap();
    let output = finish(child);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(!stderr(&output).contains(&there.key));
    let listed = there.without_key(&["ls"]).output().unwrap();
    assert!(listed.status.success(), "{}", stderr(&listed));

    // What leads elsewhere is not followed, and elsewhere nothing is heard.
    let (listener, elsewhere) = (
        TcpListener::bind("127.0.0.1:0").unwrap(),
        TcpListener::bind("127.0.0.1:0").unwrap(),
    );
    elsewhere.set_nonblocking(true).unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let location = format!("http://{}/v2/sandboxes", elsewhere.local_addr().unwrap());
    let answering = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut heard = Vec::new();
        let mut buffer = [0; 4096];
        while !heard.ends_with(b"\r\n\r\n") {
            let length = stream.read(&mut buffer).unwrap();
            heard.extend_from_slice(&buffer[..length]);
        }
        let answer = format!("HTTP/1.1 307 Temporary Redirect\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n");
        stream.write_all(answer.as_bytes()).unwrap();
    });
    let redirected = there.command(&["--host", &address, "ls"]).output().unwrap();
    answering.join().unwrap();
    assert!(
        refusal(&redirected).contains("which is not asked"),
        "{}",
        stderr(&redirected)
    );
    assert!(elsewhere.accept().is_err());

    // A key that the server does not know is not kept.
    let file = there.site.root().join("key");
    fs::write(&file, format!("e2b_{}\n", "0".repeat(40))).unwrap();
    let output = there
        .site
        .offleash(["login", "--key-file", file.to_str().unwrap(), &there.url])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(125));
    let plain = there
        .site
        .offleash(["login", "--key-file", file.to_str().unwrap(), "http://192.0.2.1"])
        .output()
        .unwrap();
    assert!(refusal(&plain).contains("not encrypted"), "{}", stderr(&plain));
    assert!(there.without_key(&["ls"]).output().unwrap().status.success());

    let out = there.site.succeed(["logout"]);
    assert_eq!(out.trim(), there.url);
    refusal(&there.without_key(&["ls"]).output().unwrap());
}

/// Says something to a port, and hears what is answered once nothing more is said.
fn conversation(address: &str, words: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    let mut heard = Vec::new();
    // What nobody inside takes is broken off.
    let _broken = stream
        .write_all(words)
        .and_then(|()| stream.shutdown(Shutdown::Write))
        .and_then(|()| stream.read_to_end(&mut heard).map(drop));
    heard
}

#[test]
fn by_tls_ports_come_to_this_machine_and_terminals_go_to_the_sandbox() {
    let site = Site::sharing_templates();
    if let Err(why) = certify_loopback(site.root()) {
        return skip(&why);
    }
    let path = |name: &str| site.root().join(name).to_str().unwrap().to_owned();
    let (certificate, key, ca) = (path("server.pem"), path("server.key"), path("ca.pem"));
    let server = Server::start_on(site, QUIET, &["--tls-cert", &certificate, "--tls-key", &key]);
    let there = Elsewhere::new(&server, "https");
    let distrusted = there.refused(&["ls"]);
    assert!(distrusted.contains("--ca FILE"), "{distrusted}");
    // Not being asked about it is no trust.
    assert!(there.refused(&["--insecure", "ls"]).contains("--ca FILE"));
    let say = |arguments: &[&str]| there.say(&[&["--ca", &ca], arguments].concat());
    let id = say(&["create"]).trim().to_owned();

    let program = "import socket, threading\n\
        listener = socket.create_server(('127.0.0.1', 7777))\n\
        def serve(peer):\n    said = b''.join(iter(lambda: peer.recv(65536), b''))\n    peer.sendall(said[::-1]); peer.close()\n\
        while True: threading.Thread(target=serve, args=(listener.accept()[0],)).start()";
    let forwarding = ["--ca", &ca, "port-forward", &id, "0:7777"];
    let mut child = start(there.command(&forwarding).stdout(Stdio::piped()).stderr(Stdio::piped()));
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = lines.next().unwrap().unwrap();
    let (local, leads_to) = line.split_once(" -> ").unwrap();
    assert_eq!(leads_to, format!("{id}:7777"));
    // Nobody listens yet: that connection ends, and later ones do not.
    assert_eq!(conversation(local, b""), b"");
    let mut listening = start(
        there
            .command(&["--ca", &ca, "exec", &id, "python3", "-c", program])
            .stdout(Stdio::null()),
    );
    eventually("the program listens", || {
        (conversation(local, b"ab") == b"ba").then_some(())
    });
    let long: Vec<u8> = (0..3_000_000_u32).map(|number| number.to_le_bytes()[0]).collect();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert!(conversation(local, &long).iter().rev().eq(&long)));
        }
    });
    signal(&child, Signal::INT);
    assert!(wait(&mut child).success());
    signal(&listening, Signal::KILL);
    wait(&mut listening);

    let script = "trap 'echo inter''rupted' INT; echo rea''dy; \
        while read line || [ $? -gt 128 ]; do stty size; done; exit 9";
    let mut terminal = Terminal::new(30, 100);
    let mut command = there.command(&["--ca", &ca, "exec", "-it", &id, "bash", "-c", script]);
    let mut shell = terminal.start(&mut command);
    terminal.wait_for("ready");
    terminal.type_keys(b"one\r");
    terminal.wait_for("30 100");
    terminal.resize(40, 120);
    signal(&shell, Signal::WINCH);
    eventually("the new size", || {
        terminal.type_keys(b"again\r");
        terminal.screen().contains("40 120").then_some(())
    });
    terminal.type_keys(b"\x03");
    terminal.wait_for("interrupted");
    terminal.type_keys(b"\x04");
    assert_eq!(wait(&mut shell).code(), Some(9), "{}", terminal.screen());
}

#[test]
fn a_directory_is_brought_to_a_sandbox_and_back_and_nothing_goes_beside_it() {
    let server = Server::start_with(QUIET, &[]);
    let id = server.say(&["create"]).trim().to_owned();
    let root = server.site.root().join("tree");
    let write = |name: &str, text: &str| {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("src/main.rs", "fn main() {}");
    write("run.sh", "#!/bin/sh\necho ran\n");
    write("build/out", "large");
    write(".gitignore", "/build/\n");
    write(".git/config", "mine");
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(root.join("run.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    let (here, there) = (root.to_str().unwrap(), format!("{id}:/home/user/app"));
    let first = server.say(&["sync", here, &there]);
    assert!(
        first.contains("+ src/main.rs\n") && !first.contains("build") && !first.contains(".git/"),
        "{first}"
    );
    assert_eq!(server.say(&["exec", &id, "app/run.sh"]), "ran\n");
    assert_eq!(server.say(&["sync", here, &there]), "");
    // Of the same size, and another.
    write("src/main.rs", "fn main() {;");
    fs::remove_file(root.join("run.sh")).unwrap();
    server.say(&[
        "exec",
        &id,
        "sh",
        "-c",
        "mkdir app/build; echo theirs >app/build/kept; echo x >app/extra",
    ]);
    assert_eq!(
        server.say(&["sync", "--dry-run", "--delete", here, &there]),
        "- run.sh\n- extra\n+ src/main.rs\n"
    );
    assert_eq!(server.say(&["sync", here, &there]), "+ src/main.rs\n");
    assert_eq!(server.say(&["sync", "--delete", here, &there]), "- run.sh\n- extra\n");
    let left = server.say(&[
        "exec",
        &id,
        "sh",
        "-c",
        "cd app; find . -type f | sort; cat src/main.rs",
    ]);
    assert_eq!(left, "./.gitignore\n./build/kept\n./src/main.rs\nfn main() {;");

    // Back: a sandbox that has links where directories are here, and names that lead out, writes nowhere else.
    let outside = server.site.root().join("outside");
    fs::create_dir(&outside).unwrap();
    std::os::unix::fs::symlink(&outside, root.join("linked")).unwrap();
    server.say(&["exec", &id, "sh", "-c",
        "cd app; echo >.gitignore; echo '!out' >src/.gitignore; echo changed >src/main.rs; mkdir linked; echo theirs >linked/file; ln -s /etc/passwd link; echo n >'a\nb'"]);
    let output = server.say_anyway(&["sync", "--delete", &there, here]);
    assert_eq!(output.status.code(), Some(125), "{}", stdout(&output));
    assert!(fs::read_dir(&outside).unwrap().next().is_none());
    fs::remove_file(root.join("linked")).unwrap();
    let output = server.say_anyway(&["sync", "--delete", &there, here]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("left out, because it is a link: link"),
        "{}",
        stderr(&output)
    );
    // What is left out here is not the sandbox's to say.
    assert_eq!(fs::read_to_string(root.join(".gitignore")).unwrap(), "/build/\n");
    assert!(!root.join("src/.gitignore").exists());
    assert!(
        stderr(&output).contains("`--replace-ignore-files` is not said: .gitignore"),
        "{}",
        stderr(&output)
    );
    assert_eq!(fs::read_to_string(root.join("src/main.rs")).unwrap(), "changed\n");
    assert_eq!(fs::read_to_string(root.join("linked/file")).unwrap(), "theirs\n");
    assert_eq!(fs::read_to_string(root.join("build/out")).unwrap(), "large");
    assert_eq!(fs::read_to_string(root.join(".git/config")).unwrap(), "mine");
    assert!(!root.join("link").exists());

    // Watched.
    let mut child = start(
        server
            .site
            .offleash(["sync", "--watch", "--delete", here, &there])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped()),
    );
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().starts_with("offleash: "));
    write("new/file", "new");
    fs::remove_file(root.join("src/main.rs")).unwrap();
    eventually("what changed is there", || {
        let there = server.say_anyway(&["exec", &id, "sh", "-c", "cat app/new/file; test ! -e app/src/main.rs"]);
        (there.status.success() && stdout(&there) == "new").then_some(())
    });
    signal(&child, Signal::TERM);
    wait(&mut child);
}
