//! Sandboxes for OpenSSH's own clients.

use std::fs;
use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};

use crate::server::{QUIET, Server};
use crate::support::processes::{feed, finish, program, start, wait};
use crate::support::terminal::Terminal;
use crate::support::{skip, stderr, stdout};

/// OpenSSH's clients with what `ssh-config` says.
struct OpenSsh<'a> {
    server: &'a Server,
    config: String,
    host: String,
}

impl OpenSsh<'_> {
    fn command(&self, name: &str, arguments: &[&str]) -> Command {
        // With the environment of our own commands.
        let ours = self.server.site.offleash::<_, &str>([]);
        let mut command = Command::new(name);
        command
            .env_clear()
            .envs(ours.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.current_dir(self.server.site.root()).stdin(Stdio::null());
        command.args(["-F", &self.config]).args(arguments);
        command
    }

    fn ssh(&self, arguments: &[&str]) -> Command {
        self.command("ssh", &[&[self.host.as_str()], arguments].concat())
    }

    fn said(&self, script: &str) -> String {
        let output = self.ssh(&[script]).output().unwrap();
        assert!(output.status.success(), "{script}: {}", stderr(&output));
        stdout(&output)
    }
}

#[test]
fn ssh_scp_and_sftp_of_openssh_reach_a_sandbox() {
    if ["ssh", "scp", "sftp"].iter().any(|name| program(name).is_none()) {
        return skip("OpenSSH's clients are not installed");
    }
    // Its clients ask the database of users who starts them.
    if !Command::new("ssh")
        .args(["-G", "localhost"])
        .output()
        .unwrap()
        .status
        .success()
    {
        return skip("OpenSSH's clients do not work for a user that is in no database");
    }
    let server = Server::start_with(QUIET, &[]);
    let id = server.say(&["create", "--name", "work"]).trim().to_owned();
    let root = server.site.root().to_owned();
    let config = root.join("ssh_config");
    fs::write(&config, server.say(&["ssh-config"])).unwrap();
    let open = OpenSsh {
        server: &server,
        config: config.to_str().unwrap().to_owned(),
        host: "work.offleash".to_owned(),
    };

    let output = open.ssh(&["echo out; echo no >&2; exit 7"]).output().unwrap();
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    assert_eq!((stdout(&output).as_str(), stderr(&output).as_str()), ("out\n", "no\n"));
    assert_eq!(open.said("id -un; pwd"), "user\n/home/user\n");
    let as_root = open.command("ssh", &["root@work.offleash", "id -un"]).output().unwrap();
    assert_eq!(stdout(&as_root), "root\n", "{}", stderr(&as_root));
    let with_variable = open.command(
        "ssh",
        &["-o", "SetEnv=GREETING=hello", "work.offleash", "echo $GREETING"],
    );
    assert_eq!(stdout(&{ with_variable }.output().unwrap()), "hello\n");
    // More than every window, both ways, of a command that says back what it reads.
    let long: Vec<u8> = (0..6_000_000_u32).map(|number| number.to_le_bytes()[0]).collect();
    let output = feed(&mut open.ssh(&["cat"]), long.clone());
    assert!(
        output.stdout == long,
        "{} bytes: {}",
        output.stdout.len(),
        stderr(&output)
    );
    // One that does not read is not waited for.
    let output = feed(&mut open.ssh(&["exit 3"]), long.clone());
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));

    // scp, which is SFTP.
    let file = root.join("file");
    fs::write(&file, &long).unwrap();
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    let copied = |arguments: &[&str]| {
        let output = open.command("scp", arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
    };
    copied(&["-p", "file", "work.offleash:copied"]);
    assert_eq!(
        open.said("stat -c '%a %s' copied").trim(),
        format!("755 {}", long.len())
    );
    copied(&["work.offleash:copied", "back"]);
    assert!(fs::read(root.join("back")).unwrap() == long);
    fs::create_dir_all(root.join("tree/below")).unwrap();
    fs::write(root.join("tree/below/a"), "a").unwrap();
    copied(&["-r", "tree", "work.offleash:/tmp/"]);
    assert_eq!(open.said("cat /tmp/tree/below/a"), "a");

    // sftp, each of its verbs.
    let batch = "cd /tmp\nmkdir made\nput tree/below/a made/a\nrename made/a made/b\nchmod 600 made/b\nsymlink made/b link\nls -l made\n\
        get link linked\nrm link\n-rmdir made\nrm made/b\nrmdir made\n-get none\npwd\n";
    let output = feed(&mut open.command("sftp", &["-q", "-b", "-", "work.offleash"]), batch);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(
        stdout(&output).contains("-rw-------") && stdout(&output).contains("/tmp"),
        "{}",
        stdout(&output)
    );
    assert_eq!(fs::read_to_string(root.join("linked")).unwrap(), "a");
    assert!(
        stderr(&output).contains("not found") && stderr(&output).contains("Directory not empty")
            || stderr(&output).contains("Failure")
    );
    assert_eq!(
        open.said("ls -d /tmp/made /tmp/link 2>/dev/null || echo gone"),
        "gone\n"
    );

    // Ports of the sandbox, and no others.
    let listening = "python3 -c \"import socket; s = socket.create_server(('127.0.0.1', 7777)); print('listens', flush=True)\n\
        p, _ = s.accept(); p.sendall(p.recv(9)[::-1])\"";
    let mut child = start(open.ssh(&[listening]).stdout(Stdio::piped()).stderr(Stdio::null()));
    let mut first = [0; 8];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    let output = feed(
        &mut open.command("ssh", &["-W", "localhost:7777", "work.offleash"]),
        "abc",
    );
    assert_eq!(stdout(&output), "cba", "{}", stderr(&output));
    wait(&mut child);
    let output = open
        .command("ssh", &["-W", "192.0.2.1:80", "work.offleash"])
        .output()
        .unwrap();
    assert!(
        !output.status.success() && stderr(&output).contains("ports of the sandbox itself"),
        "{}",
        stderr(&output)
    );

    // A terminal, by our own command.
    let mut terminal = Terminal::new(31, 101);
    let mut shell = terminal.start(&mut server.site.offleash(["ssh", &id]));
    terminal.type_keys(b"stty size; echo $TERM; exit 4\r");
    terminal.wait_for("31 101");
    assert_eq!(wait(&mut shell).code(), Some(4), "{}", terminal.screen());

    // What is no SSH client is let go; a sandbox that is not there is told of.
    let mut stranger = start(
        server
            .site
            .offleash(["ssh", "--stdio", &id])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped()),
    );
    stranger
        .stdin
        .take()
        .unwrap()
        .write_all(b"GET / HTTP/1.1\r\n\r\n")
        .unwrap();
    let output = finish(stranger);
    assert!(
        stderr(&output).contains("does not keep to the protocol"),
        "{}",
        stderr(&output)
    );
    let output = open.command("ssh", &["inothere.offleash", "true"]).output().unwrap();
    assert!(stderr(&output).contains("not found"), "{}", stderr(&output));
}
