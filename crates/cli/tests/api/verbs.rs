//! The commands that ask a daemon, as a person types them.

use std::fs;
use std::io::Write as _;
use std::process::{Output, Stdio};

use rustix::process::Signal;

use crate::server::{QUIET, Server};
use crate::support::processes::{eventually, finish, signal, start};
use crate::support::{stderr, stdout};

impl Server {
    /// What one of our commands says, which must succeed.
    pub(crate) fn say(&self, arguments: &[&str]) -> String {
        let output = self.say_anyway(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
        stdout(&output)
    }

    pub(crate) fn say_anyway(&self, arguments: &[&str]) -> Output {
        self.site.offleash(arguments).output().unwrap()
    }
}

#[test]
fn a_sandbox_is_made_used_and_removed() {
    let server = Server::start_with(QUIET, &[]);
    let id = server.say(&[
        "create",
        "--label",
        "team=a b",
        "--env",
        "GREETING=hello",
        "--timeout",
        "10m",
    ]);
    let id = id.trim();
    assert_eq!(server.say(&["ls", "-q"]).trim(), id);
    let listed = server.say(&["ls", "--label", "team=a b"]);
    assert!(listed.contains(id) && listed.contains("team=a b"), "{listed}");
    assert!(!server.say(&["ls", "--label", "team=c"]).contains(id));

    let output = server.say_anyway(&["exec", id, "sh", "-c", "echo $GREETING; echo no >&2; exit 7"]);
    assert_eq!(output.status.code(), Some(7));
    assert_eq!((stdout(&output).trim(), stderr(&output).trim()), ("hello", "no"));
    let output = server.say_anyway(&["exec", id, "sh", "-c", "kill -9 $$"]);
    assert_eq!(output.status.code(), Some(137), "{}", stderr(&output));
    assert_eq!(
        server.say(&["exec", "-w", "/tmp", "-e", "A=b c", id, "sh", "-c", "pwd; echo $A"]),
        "/tmp\nb c\n"
    );

    let mut child = server
        .site
        .offleash(["exec", "-i", id, "wc", "-c"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(&vec![b'x'; 300_000]).unwrap();
    assert_eq!(stdout(&child.wait_with_output().unwrap()).trim(), "300000");

    let url = server.say(&["port", id, "8000"]);
    assert_eq!(url.trim(), format!("http://{}/_port/{id}/8000/", server.address));
    assert!(server.say(&["stats", id]).contains(id));
    let inspected = server.say(&["inspect", id]);
    assert!(
        inspected.contains(id) && !inspected.contains("AccessToken"),
        "{inspected}"
    );
    let inspected: serde_json::Value = serde_json::from_str(&inspected).unwrap();
    assert!(
        inspected[0]["level"]
            .as_str()
            .is_some_and(|level| level.starts_with("process"))
    );
    assert!(inspected[0]["notEnforced"].is_object(), "{inspected}");
    assert_eq!(inspected[0]["interpreter"], "started", "{inspected}");

    assert_eq!(server.say(&["pause", id]).trim(), id);
    assert!(server.say(&["ls"]).contains("paused"));
    let file = server.site.root().join("file");
    fs::write(&file, "").unwrap();
    for arguments in [
        &["exec", id, "true"][..],
        &["port", id, "8000"],
        &["cp", file.to_str().unwrap(), &format!("{id}:/tmp/")],
        &["cp", &format!("{id}:/etc/passwd"), file.to_str().unwrap()],
    ] {
        let output = server.say_anyway(arguments);
        let expected = format!("error: sandbox `{id}` is paused\n\nhint: `offleash resume {id}`\n");
        assert_eq!(
            (output.status.code(), stderr(&output)),
            (Some(125), expected),
            "{arguments:?}"
        );
    }
    assert_eq!(server.say(&["resume", id]).trim(), id);
    let refused = server.say_anyway(&["rm", id]);
    assert!(
        stderr(&refused).contains("hint: `offleash rm -f`"),
        "{}",
        stderr(&refused)
    );
    assert_eq!(server.say(&["rm", "-f", id]).trim(), id);
    assert_eq!(server.say(&["ls", "-q"]), "");
    for arguments in [&["exec", id, "true"][..], &["stop", id], &["pause", id]] {
        let output = server.say_anyway(arguments);
        assert_eq!(output.status.code(), Some(125), "{arguments:?}");
        assert!(stderr(&output).starts_with("error: "), "{}", stderr(&output));
    }
}

#[test]
fn what_happened_is_told_while_it_happens_and_afterwards() {
    let server = Server::start_with(QUIET, &[]);
    let id = server.say(&["create"]);
    let id = id.trim();
    let followed = server
        .site
        .offleash(["logs", "-f", id])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    server.say_anyway(&["exec", id, "sh", "-c", "exit 7"]);
    server.say(&["stop", id]);
    // It ends with the sandbox.
    let followed = followed.wait_with_output().unwrap();
    assert!(followed.status.success());
    let later = server.say(&["logs", id]);
    for told in [&stdout(&followed), &later] {
        for expected in [
            "info  created by the owner",
            ": sh -c exit 7",
            "ended with exit code 7",
            "killed: by the owner",
        ] {
            assert_eq!(told.matches(expected).count(), 1, "`{expected}` in {told}");
        }
    }
    let inspected = server.say(&["inspect", id]);
    assert!(
        inspected.contains("\"ended\"") && inspected.contains("by the owner of the daemon"),
        "{inspected}"
    );
    for arguments in [&["logs", "i123"][..], &["inspect", "i123"]] {
        let output = server.say_anyway(arguments);
        assert_eq!(output.status.code(), Some(125), "{arguments:?}");
        assert!(stderr(&output).contains("not found"), "{}", stderr(&output));
    }
}

#[test]
fn a_command_that_is_not_there_ends_as_in_a_shell() {
    let server = Server::start_with(QUIET, &[]);
    let id = server.say(&["create"]);
    let id = id.trim();
    server.say(&["exec", id, "sh", "-c", "echo no program >plain"]);
    for (program, code) in [("nosuch", 127), ("/nowhere/nosuch", 127), ("/home/user/plain", 126)] {
        let output = server.say_anyway(&["exec", id, program]);
        let told = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{program}: {told}");
        assert!(told.contains(program), "{told}");
    }
    // That is a failure of ours, and the command is there.
    let output = server.say_anyway(&["exec", "-w", "/nowhere", id, "true"]);
    assert_eq!(output.status.code(), Some(125), "{}", stderr(&output));
}

#[test]
fn what_has_ended_is_said_to_have_ended_and_why() {
    let server = Server::start_with(QUIET, &[]);
    let id = server.say(&["create"]);
    let id = id.trim();
    assert!(!server.say(&["ls", "--all"]).contains("ended"));
    server.say(&["stop", id]);
    // Its files are removed first.
    eventually("the account of an end", || {
        server.say_anyway(&["inspect", id]).status.success().then_some(())
    });
    let file = server.site.root().join("file");
    fs::write(&file, "").unwrap();
    for arguments in [
        &["stop", id][..],
        &["rm", id],
        &["rm", "-f", id],
        &["exec", id, "true"],
        &["stats", id],
        &["pause", id],
        &["resume", id],
        &["port", id, "8000"],
        &["cp", file.to_str().unwrap(), &format!("{id}:/tmp/")],
    ] {
        let output = server.say_anyway(arguments);
        let told = stderr(&output);
        assert_eq!(output.status.code(), Some(125), "{arguments:?}: {told}");
        let expected = format!("error: sandbox `{id}` has ended: by the owner of the daemon");
        assert!(told.starts_with(&expected), "{arguments:?}: {told}");
    }
    let listed = server.say(&["ls", "--all"]);
    assert!(listed.contains(id) && listed.contains("ended"), "{listed}");
    assert!(!listed.contains('\''), "nothing is quoted twice, or at all: {listed}");
    assert_eq!(server.say(&["ls", "-a", "-q"]).trim(), id);
    assert_eq!(server.say(&["ls", "-q"]), "");
}

/// A command of `exec` that waits in the sandbox `id`, once it does.
fn waiting(server: &Server, id: &str) -> std::process::Child {
    let mut child = server
        .site
        .offleash(["exec", id, "sh", "-c", "echo begun; sleep 1000"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut begun = [0; 6];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut begun).unwrap();
    assert_eq!(&begun, b"begun\n");
    child
}

#[test]
fn what_was_typed_is_what_is_said() {
    let server = Server::start_with(QUIET, &[]);
    for (arguments, named) in [
        (&["stop", "../etc"][..], "`../etc`"),
        (&["exec", "i 1", "true"], "`i 1`"),
        (&["create", "--timeout", "0"], "--timeout 0"),
        (&["resume", "--timeout", "0s", "i1"], "--timeout 0s"),
    ] {
        let output = server.say_anyway(arguments);
        assert_eq!(output.status.code(), Some(125), "{arguments:?}");
        assert!(stderr(&output).contains(named), "{}", stderr(&output));
    }
    let output = server.say_anyway(&["port", "i1", "0"]);
    assert!(
        !output.status.success() && stderr(&output).contains("PORT"),
        "{}",
        stderr(&output)
    );
    assert_eq!(server.say(&["ls", "-q"]), "");
}

#[test]
fn the_end_of_a_sandbox_under_a_command_is_told() {
    let mut server = Server::start_with(&format!("drain_seconds = 1\n{QUIET}"), &[]);
    let id = server.say(&["create"]);
    let id = id.trim();
    let child = waiting(&server, id);
    server.say(&["stop", id]);
    let output = child.wait_with_output().unwrap();
    let expected = format!("error: sandbox `{id}` has ended: by the owner of the daemon");
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).starts_with(&expected), "{}", stderr(&output));

    // And the end of the server under one.
    let id = server.say(&["create"]);
    let id = id.trim();
    let child = waiting(&server, id);
    server.end();
    let output = child.wait_with_output().unwrap();
    // The next one finds the sandbox, and ends it.
    let next = start(
        server
            .site
            .offleash(["serve", "--listen", "127.0.0.1:0", "--config"])
            .arg(server.config()),
    );
    eventually("the next server", || {
        let removed = server.say_anyway(&["rm", "-f", id]);
        removed.status.success().then_some(())
    });
    signal(&next, Signal::TERM);
    finish(next);
    let expected = format!("error: the server ended before the command did; sandbox `{id}`");
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).starts_with(&expected), "{}", stderr(&output));
}

#[test]
fn files_and_directories_are_copied_both_ways() {
    let server = Server::start_with(QUIET, &[]);
    let id = server.say(&["create"]);
    let id = id.trim();
    let here = server.site.root();
    let tree = here.join("tree");
    fs::create_dir_all(tree.join("below")).unwrap();
    fs::write(tree.join("below/a b.bin"), [0, 255, 10]).unwrap();
    fs::write(tree.join("empty"), "").unwrap();
    let inside = |path: &str| format!("{id}:{path}");
    server.say(&["cp", tree.to_str().unwrap(), &inside("/home/user")]);
    assert_eq!(
        server.say(&["exec", id, "sh", "-c", "cd tree && find . -type f | sort"]),
        "./below/a b.bin\n./empty\n"
    );
    let back = here.join("back");
    server.say(&["cp", &inside("/home/user/tree"), back.to_str().unwrap()]);
    assert_eq!(fs::read(back.join("below/a b.bin")).unwrap(), [0, 255, 10]);
    assert_eq!(fs::read(back.join("empty")).unwrap(), b"");

    // One file, as it is, to standard output.
    assert_eq!(
        server
            .say_anyway(&["cp", &inside("/home/user/tree/below/a b.bin"), "-"])
            .stdout,
        [0, 255, 10]
    );
    assert!(!here.join("-").exists());
    // The kernel says of these that they are empty.
    assert!(server.say(&["cp", &inside("/proc/self/status"), "-"]).contains("Name:"));
    let status = here.join("status");
    server.say(&["cp", &inside("/proc/self/status"), status.to_str().unwrap()]);
    assert!(fs::read_to_string(status).unwrap().contains("Name:"));
    // What cannot be copied is named, and the exit code says that something is missing.
    std::os::unix::fs::symlink("empty", tree.join("a link")).unwrap();
    for (from, to, named) in [
        (tree.display().to_string(), inside("/home/user/partly"), "a link"),
        (
            inside("/home/user/dangling"),
            here.join("dangling").display().to_string(),
            "nowhere",
        ),
    ] {
        server.say(&[
            "exec",
            id,
            "sh",
            "-c",
            "mkdir -p dangling; ln -sfn /not/there dangling/nowhere",
        ]);
        let partly = server.say_anyway(&["cp", &from, &to]);
        assert_eq!(partly.status.code(), Some(1), "{}", stderr(&partly));
        assert!(
            stderr(&partly).contains("left out") && stderr(&partly).contains(named),
            "{}",
            stderr(&partly)
        );
    }

    // A link that is here is not followed, whatever a sandbox calls its files.
    let outside = here.join("outside");
    fs::write(&outside, "mine").unwrap();
    std::os::unix::fs::symlink(&outside, here.join("link")).unwrap();
    server.say(&["exec", id, "sh", "-c", "echo theirs > link"]);
    let refused = server.say_anyway(&["cp", &inside("/home/user/link"), here.join("link").to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(125), "{}", stderr(&refused));
    assert_eq!(fs::read_to_string(&outside).unwrap(), "mine");

    for (from, to) in [
        (inside("/nowhere"), here.join("x").display().to_string()),
        (here.join("nowhere").display().to_string(), inside("/tmp/")),
        ("a".to_owned(), "b".to_owned()),
        (inside("/a"), inside("/b")),
        (inside("/home/user/tree"), "-".to_owned()),
        ("-".to_owned(), inside("/tmp/x")),
    ] {
        let output = server.say_anyway(&["cp", &from, &to]);
        assert_eq!(output.status.code(), Some(125), "{from} {to}");
    }
}

/// No archive is unpacked on the way, and what would be one of the harmful things in one is left behind.
#[test]
fn a5_what_is_copied_out_is_plain_files_in_the_directory_that_was_named() {
    use std::os::unix::fs::PermissionsExt as _;

    let server = Server::start_with(QUIET, &[]);
    let id = server.say(&["create"]);
    let id = id.trim();
    let here = server.site.root();
    fs::write(here.join("outside"), "mine").unwrap();
    let script = "mkdir -p tree/sub; cd tree; echo plain >plain; chmod 6777 plain; mkfifo fifo; \
                  ln -s /etc absolute; ln -s ../outside up; ln -s ../../outside sub/up; \
                  printf x >\"$(printf 'new\\nline')\"; printf x >\"$(printf 'esc\\033]52;c;eA\\007')\"";
    server.say(&["exec", id, "sh", "-c", script]);
    let out = here.join("out");
    let copied = server.say_anyway(&["cp", &format!("{id}:/home/user/tree"), out.to_str().unwrap()]);
    let said = format!("{}{}", stdout(&copied), stderr(&copied));
    assert!(!said.contains('\u{1b}') && !said.contains('\u{7}'), "{said:?}");
    assert_eq!(fs::read_to_string(here.join("outside")).unwrap(), "mine");
    let mut left = vec![out.clone()];
    let mut files = 0;
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            let metadata = fs::symlink_metadata(entry.path()).unwrap();
            assert!(metadata.is_dir() || metadata.is_file(), "{:?}", entry.path());
            assert_eq!(metadata.permissions().mode() & 0o7000, 0, "{:?}", entry.path());
            if metadata.is_dir() {
                left.push(entry.path());
            } else {
                files += 1;
            }
        }
    }
    assert!(files >= 1, "{said}");
}

#[test]
fn a_sandbox_does_not_fill_the_disk_of_who_copies_from_it() {
    use std::os::unix::fs::MetadataExt as _;

    let server = Server::start_with(QUIET, &[]);
    let id = server.say(&["create"]);
    let id = id.trim();
    let script = "mkdir -p d/below; cd d; truncate -s 64M sparse; printf end >>sparse; ln -s .. up; ln -s ../.. below/up; \
                  ln -s sparse alias; mkfifo fifo; printf small >below/small";
    server.say(&["exec", id, "sh", "-c", script]);
    let here = server.site.root();
    let (out, inside) = (here.join("out"), |path: &str| format!("{id}:/home/user/{path}"));
    let copied = server.say_anyway(&["cp", &inside("d"), out.to_str().unwrap()]);
    assert_ne!(copied.status.code(), Some(125), "{}", stderr(&copied));
    for (link, directory) in [("d/up", "up"), ("d/below/up", "below/up")] {
        assert!(stderr(&copied).contains(link), "{}", stderr(&copied));
        assert!(fs::symlink_metadata(out.join(directory)).is_err(), "{directory}");
    }
    for name in ["sparse", "alias"] {
        let metadata = fs::symlink_metadata(out.join(name)).unwrap();
        assert!(metadata.is_file() && metadata.len() == (64 << 20) + 3, "{name}");
        assert!(metadata.blocks() * 512 < 1 << 20, "{name}: {}", metadata.blocks());
    }
    assert_eq!(fs::read_to_string(out.join("below/small")).unwrap(), "small");
    // A link that was named is followed.
    let named = here.join("named");
    server.say(&["exec", id, "ln", "-s", "d/below", "to"]);
    server.say_anyway(&["cp", &inside("to"), named.to_str().unwrap()]);
    assert_eq!(fs::read_to_string(named.join("small")).unwrap(), "small");

    let bounded = here.join("bounded");
    let kept = here.join("kept");
    fs::write(&kept, "mine").unwrap();
    for (from, to) in [("d", &bounded), ("d/sparse", &kept)] {
        let refused = server.say_anyway(&["cp", "--max-bytes", "1M", &inside(from), to.to_str().unwrap()]);
        assert_eq!(refused.status.code(), Some(125), "{from}");
        assert!(stderr(&refused).contains("--max-bytes"), "{}", stderr(&refused));
    }
    assert!(!bounded.join("sparse").exists());
    // What cannot be copied leaves what is here as it was.
    let refused = server.say_anyway(&["cp", &inside("d/fifo"), kept.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(125), "{}", stderr(&refused));
    assert_eq!(fs::read_to_string(&kept).unwrap(), "mine");
    let left = fs::read_dir(here).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = left
        .filter(|name| name.to_string_lossy().contains("offleash-cp"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn without_a_daemon_it_is_said_how_to_start_one() {
    let mut server = Server::start_with(QUIET, &[]);
    server.end();
    for arguments in [&["ls"][..], &["create"], &["exec", "i123", "true"], &["stop", "i123"]] {
        let output = server.say_anyway(arguments);
        assert_eq!(output.status.code(), Some(125), "{arguments:?}");
        let told = stderr(&output);
        assert!(told.contains("hint: start one with `offleash serve`"), "{told}");
        // The cause is said once.
        let cause = if told.contains("refused") {
            "refused"
        } else {
            "No such file"
        };
        assert_eq!(told.matches(cause).count(), 1, "{told}");
        assert_eq!(told.matches("caused by").count(), 1, "{told}");
    }
}

#[test]
fn a_sandbox_is_forked() {
    let server = Server::start_with(QUIET, &[]);
    let source = server.say(&["create", "--timeout", "10m"]);
    let source = source.trim();
    server.say(&["exec", source, "sh", "-c", "echo of the source >~/note"]);
    let forks = server.say(&["fork", "--count", "2", "--timeout", "5m", source]);
    let forks: Vec<&str> = forks.lines().collect();
    assert_eq!(forks.len(), 2);
    for id in &forks {
        assert_eq!(
            server.say(&["exec", id, "sh", "-c", "cat ~/note; echo >~/note"]),
            "of the source\n"
        );
    }
    assert_eq!(
        server.say(&["exec", source, "cat", "/home/user/note"]),
        "of the source\n"
    );
    assert!(
        server
            .say(&["logs", forks[0]])
            .contains(&format!("from sandbox `{source}`"))
    );
    for arguments in [["fork", "inobody"].as_slice(), &["fork", "--count", "21", source]] {
        assert!(!server.say_anyway(arguments).status.success(), "{arguments:?}");
    }
    let inspected = |id: &str| {
        let told: Vec<serde_json::Value> = serde_json::from_str(&server.say(&["inspect", id])).unwrap();
        told[0].clone()
    };
    assert_eq!(inspected(forks[0])["forkOf"], source);
    assert!(inspected(source)["forkOf"].is_null());
    // Names: of one as it was said, of several with numbers, and none twice.
    let named = server.say(&["fork", "--name", "copy", source]);
    assert_eq!(inspected("copy")["sandboxID"], named.trim());
    let named = server.say(&["fork", "--name", "copy", "--count", "2", "copy"]);
    for (id, name) in named.lines().zip(["copy-1", "copy-2"]) {
        let told = inspected(name);
        assert_eq!(
            (told["sandboxID"].as_str(), &told["forkOf"]),
            (Some(id), &inspected("copy")["sandboxID"])
        );
    }
    let taken = server.say_anyway(&["fork", "--name", "copy", source]);
    assert!(
        stderr(&taken).contains("is called `copy` already"),
        "{}",
        stderr(&taken)
    );
    let partly = server.say_anyway(&["fork", "--name", "copy", "--count", "3", source]);
    let told = stderr(&partly);
    assert!(
        told.contains("2 of 3 forks were not made") && told.contains("is called `copy-1` already"),
        "{told}"
    );
    assert_eq!(
        format!("{}\n", inspected("copy-3")["sandboxID"].as_str().unwrap()),
        stdout(&partly)
    );
    let long = server.say_anyway(&["fork", "--name", &"x".repeat(62), "--count", "2", source]);
    assert!(stderr(&long).contains("is not a name"), "{}", stderr(&long));
    server.say(&["pause", source]);
    assert_eq!(server.say(&["fork", source]).lines().count(), 1);
    assert_eq!(inspected(source)["state"], "paused");
}
