//! The workspace from the outside: its modes, what else is made visible, and what a run leaves on the host.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;

use rustix::process::Signal;
use serde_json::{Value, json};
use support::listing::listing;
use support::processes::{finish, read_until, signal, start};
use support::workspace::{CHANGE_ALL, changes_of, furnished, run};
use support::{Site, id_of, skip, stderr, stdout};

#[test]
fn the_host_is_untouched_until_changes_are_applied() {
    let site = furnished();
    let before = listing(&site.workspace());
    let run = run(&site, CHANGE_ALL);
    assert_eq!(listing(&site.workspace()), before);
    let summary = site.succeed(["diff", "--summary", &run]);
    insta::assert_snapshot!(summary, @r"
    M changed
    D deleted
    T full
    D full/inner
    L link
    A new
    A new/deep
    A new/deep/file
    m script
    ");
    assert_eq!(listing(&site.workspace()), before);
}

#[test]
fn two_runs_at_once_do_not_see_each_other() {
    let site = furnished();
    let both = std::thread::scope(|scope| {
        let runs: Vec<_> = ["first", "second"]
            .map(|name| {
                let site = &site;
                let script =
                    format!("echo {name} > mine; echo {name} > changed; echo {name} > {name}; sleep 0.3; cat mine; ls");
                scope.spawn(move || site.record(&[], &script))
            })
            .into();
        runs.into_iter().map(|run| run.join().unwrap()).collect::<Vec<_>>()
    });
    let said = |record: &Value| record["stdout"]["data"].as_str().unwrap().to_owned();
    assert!(
        said(&both[0]).starts_with("first\n") && !said(&both[0]).contains("second"),
        "{}",
        both[0]
    );
    assert!(
        said(&both[1]).starts_with("second\n") && !said(&both[1]).contains("first"),
        "{}",
        both[1]
    );

    let (first, second) = (id_of(&both[0]), id_of(&both[1]));
    site.succeed(["apply", &first]);
    let said = site.conflict(&second);
    assert!(said.contains("changed on the host"), "{said}");
    site.succeed(["apply", &second, "second"]);
    assert_eq!(fs::read_to_string(site.workspace().join("changed")).unwrap(), "first\n");
}

#[test]
fn rw_writes_back_when_the_run_ends_and_holds_protected_names_back() {
    let site = furnished();
    let mut flags = vec!["run", "--workspace"];
    let workspace = format!("{}:rw", site.workspace().display());
    flags.extend([workspace.as_str(), "--", "/bin/sh", "-c", CHANGE_ALL]);
    let output = site.offleash(flags).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let after = listing(&site.workspace());
    assert_eq!(after[&PathBuf::from("full")], "file 644 now a file\n");
    assert!(!after.contains_key(&PathBuf::from("deleted")));
    assert_eq!(
        site.succeed(["runs"])
            .lines()
            .filter(|line| line.contains("kept"))
            .count(),
        0
    );

    let record = site.record(&["--workspace", &workspace], "echo evil > .envrc; echo good > good");
    assert_eq!(record["changes"]["applied"], true);
    assert_eq!(record["changes"]["protected"], json!([".envrc"]));
    assert!(site.workspace().join("good").exists());
    let names: Vec<_> = listing(&site.workspace()).into_keys().collect();
    assert!(!names.contains(&PathBuf::from(".envrc")), "{names:?}");
    assert_eq!(
        changes_of(&site, &id_of(&record)),
        [(".envrc".to_owned(), "added".to_owned())]
    );
}

#[test]
fn rw_says_what_it_held_back() {
    let site = Site::new();
    let workspace = format!("{}:rw", site.workspace().display());
    let output = site
        .offleash(["run", "-w", &workspace, "-c", "echo evil > .envrc"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let said = stderr(&output);
    assert!(
        said.contains("offleash: not applied: `.envrc`: protected (protected name .envrc: "),
        "{said}"
    );
    let last = "offleash: exit code 1, though the command succeeded: 1 change was not written back: `offleash diff ";
    assert!(said.lines().last().unwrap().starts_with(last), "{said}");
    // Whoever asked for quiet is told what the exit code is from, and no more.
    let output = site.run_shell(&["-w", &workspace], "ln -s /etc/passwd out");
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).starts_with(last), "{}", stderr(&output));
    assert_eq!(stderr(&output).lines().count(), 1);
    let output = site.run_shell(&["-w", &workspace], "ln -s /etc/passwd out; exit 4");
    assert_eq!((output.status.code(), stderr(&output)), (Some(4), String::new()));
    let record = site.record(&["-w", &workspace], "echo evil > .envrc; exit 3");
    assert_eq!(record["exit_code"], 3, "{record}");
}

#[test]
fn rw_says_that_it_wrote_back_what_a_run_left_that_was_ended() {
    let site = Site::new();
    let workspace = format!("{}:rw", site.workspace().display());
    let arguments = [
        "run",
        "-w",
        &workspace,
        "--wall-time",
        "300ms",
        "-c",
        "echo half > file; sleep 60",
    ];
    let output = site.offleash(arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(124), "{}", stderr(&output));
    let said = stderr(&output);
    assert!(
        said.contains("1 change was written back, as far as the command had got"),
        "{said}"
    );
    assert_eq!(fs::read_to_string(site.workspace().join("file")).unwrap(), "half\n");

    let script = "echo more > file; echo ready; sleep 60";
    let mut child = start(&mut site.offleash(["run", "-w", &workspace, "-c", script]));
    read_until(child.stdout.as_mut().unwrap(), "ready\n");
    // Of the two, the one that nobody has ignored whom this was started by.
    signal(&child, Signal::TERM);
    let output = finish(child);
    assert_eq!(output.status.code(), Some(143), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("1 change was written back"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn rw_that_conflicts_with_the_host_is_no_success() {
    let site = Site::new();
    let file = site.write("file", "before\n");
    let workspace = format!("{}:rw", site.workspace().display());
    let script = "echo inside > file; echo ready; read line; true";
    let mut child = start(&mut site.offleash(["run", "-w", &workspace, "-c", script]));
    read_until(child.stdout.as_mut().unwrap(), "ready\n");
    fs::write(&file, "by the user\n").unwrap();
    let output = finish(child);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("nothing was written back"),
        "{}",
        stderr(&output)
    );
    assert_eq!(fs::read_to_string(&file).unwrap(), "by the user\n");
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "what was made is started outside of any sandbox"
)]
fn a_virtual_environment_made_inside_works_outside() {
    const MAKE: &str = "python3 -m venv --without-pip .venv && .venv/bin/python -c 'print(1)'";
    let python = std::path::Path::new("/usr/bin/python3");
    if !python.exists() {
        return skip("there is no /usr/bin/python3");
    }
    let works = |site: &Site| {
        let venv = site.workspace().join(".venv");
        let asked = "import sys; print(sys.prefix)";
        let output = finish(start(Command::new(venv.join("bin/python")).args(["-c", asked])));
        assert_eq!(
            stdout(&output).trim(),
            venv.canonicalize().unwrap().to_str().unwrap(),
            "{}",
            stderr(&output)
        );
    };
    let site = Site::new();
    let output = site.offleash(["run", "-w", ".:rw", "-c", MAKE]).output().unwrap();
    assert_eq!(
        (output.status.code(), stdout(&output).trim()),
        (Some(0), "1"),
        "{}",
        stderr(&output)
    );
    assert_eq!(stderr(&output), "");
    works(&site);

    let site = Site::new();
    let run = run(&site, MAKE);
    let summary = site.succeed(["diff", "--summary", &run]);
    assert!(!summary.contains('('), "{summary}");
    site.succeed(["apply", &run]);
    works(&site);
}

#[test]
fn no_ghost_files_are_made_on_the_host() {
    for mode in ["overlay", "rw", "ro"] {
        let site = furnished();
        let before = listing(&site.workspace());
        let workspace = format!("{}:{mode}", site.workspace().display());
        let record = site.record(
            &["--workspace", &workspace, "--deny", "**/.env", "--protect", "absent"],
            "ls -la",
        );
        assert_eq!(record["exit_code"], 0, "{record}");
        assert_eq!(listing(&site.workspace()), before, "{mode}");
    }
}

#[test]
fn ro_can_be_read_and_not_written() {
    let site = furnished();
    let before = listing(&site.workspace());
    let workspace = format!("{}:ro", site.workspace().display());
    let script = "cat kept; echo x > kept; echo x > new; rm deleted; mkdir d; chmod 777 script; true";
    let record = site.record(&["--workspace", &workspace], script);
    assert_eq!(record["stdout"]["data"], "as it was\n");
    assert_eq!(
        record["stderr"]["data"]
            .as_str()
            .unwrap()
            .matches("Read-only file system")
            .count(),
        5,
        "{record}"
    );
    assert_eq!(listing(&site.workspace()), before);
}

#[test]
fn without_a_workspace_the_current_directory_is_not_there() {
    let site = furnished();
    let script = format!("pwd; ls -A; cat {}/kept", site.workspace().display());
    let record = site.record(&["--no-workspace"], &script);
    assert_eq!(record["changes"], Value::Null);
    assert!(!record["stdout"]["data"].as_str().unwrap().contains("kept"), "{record}");
    assert!(
        record["stderr"]["data"].as_str().unwrap().contains("No such file"),
        "{record}"
    );
}

#[test]
fn the_command_starts_where_the_caller_is() {
    let site = furnished();
    fs::create_dir_all(site.workspace().join("sub/dir")).unwrap();
    let workspace = site.workspace();
    let inner = workspace.join("sub/dir");
    let mut command = site.offleash(["run", "-q", "-w", workspace.to_str().unwrap(), "--", "/bin/pwd"]);
    let output = command.current_dir(&inner).output().unwrap();
    assert_eq!(stdout(&output).trim(), inner.to_str().unwrap(), "{}", stderr(&output));

    let output = site
        .offleash(["run", "-q", "--cwd", "/usr", "--", "/bin/pwd"])
        .output()
        .unwrap();
    assert_eq!(stdout(&output).trim(), "/usr", "{}", stderr(&output));
    let output = site
        .offleash(["run", "-q", "--cwd", "/usr", "--", "env"])
        .output()
        .unwrap();
    assert!(
        stdout(&output).lines().any(|line| line == "PWD=/usr"),
        "{}",
        stdout(&output)
    );
    let output = site
        .offleash(["run", "-q", "--cwd", "sub", "--", "/bin/pwd"])
        .output()
        .unwrap();
    assert_eq!(
        stdout(&output).trim(),
        workspace.join("sub").to_str().unwrap(),
        "{}",
        stderr(&output)
    );
}

#[test]
fn host_paths_are_mounted_where_asked() {
    let site = Site::new();
    let data = site.root().join("data");
    fs::create_dir(&data).unwrap();
    fs::write(data.join("file"), "data\n").unwrap();
    let (data, file) = (data.display().to_string(), data.join("file").display().to_string());
    let script =
        "cat /mnt/ro/file /mnt/file /mnt/rw/file; echo x > /mnt/ro/x; echo x > /mnt/file; echo new > /mnt/rw/new; true";
    let record = site.record(
        &[
            "--mount",
            &format!("{data}:/mnt/ro"),
            "--mount",
            &format!("{file}:/mnt/file"),
            "--mount",
            &format!("{data}:/mnt/rw:rw"),
        ],
        script,
    );
    assert_eq!(record["stdout"]["data"], "data\ndata\ndata\n", "{record}");
    assert_eq!(
        record["stderr"]["data"].as_str().unwrap().matches("Read-only").count(),
        2,
        "{record}"
    );
    assert_eq!(fs::read_to_string(format!("{data}/new")).unwrap(), "new\n");
    assert_eq!(fs::read_to_string(file).unwrap(), "data\n");
}

#[test]
fn a_tmpfs_holds_as_much_as_asked_and_leaves_nothing() {
    let site = Site::new();
    let script = "echo x > /scratch/x && cat /scratch/x; dd if=/dev/zero of=/scratch/big bs=1M count=4 2>&1 | tail -1";
    let record = site.record(&["--tmpfs", "/scratch:2M"], script);
    assert!(
        record["stdout"]["data"].as_str().unwrap().starts_with("x\n"),
        "{record}"
    );
    let out = record["stdout"]["data"].as_str().unwrap();
    assert!(
        out.contains("2097152") || out.contains("209") || out.contains("No space"),
        "{record}"
    );
    assert!(!PathBuf::from("/scratch").exists());
}

#[test]
fn a_denied_path_is_hidden_and_cannot_reach_the_host() {
    let site = Site::new();
    site.write(".env", "SECRET=1\n");
    site.write("sub/.env", "SECRET=2\n");
    site.write("plain", "plain\n");
    let record = site.record(
        &["--deny", "**/.env"],
        "cat plain; cat .env; cat sub/.env; rm -f .env; echo x > .env; true",
    );
    assert_eq!(record["stdout"]["data"], "plain\n");
    assert_eq!(fs::read_to_string(site.workspace().join(".env")).unwrap(), "SECRET=1\n");
    if record["changes"]["added"].as_u64() != Some(0) || record["changes"]["modified"].as_u64() != Some(0) {
        site.offleash(["apply", &id_of(&record)]).output().unwrap();
        assert_eq!(fs::read_to_string(site.workspace().join(".env")).unwrap(), "SECRET=1\n");
    }
}

#[test]
fn host_paths_can_be_granted_for_reading() {
    let site = Site::new();
    let data = site.root().join("granted");
    fs::create_dir(&data).unwrap();
    fs::write(data.join("file"), "granted\n").unwrap();
    let shown = data.display().to_string();
    let record = site.record(&[], &format!("cat {shown}/file"));
    assert_eq!(record["exit_code"], 1);
    let record = site.record(&["--read", &shown], &format!("cat {shown}/file; echo x > {shown}/file"));
    assert_eq!(record["stdout"]["data"], "granted\n", "{record}");
    assert_eq!(fs::read_to_string(data.join("file")).unwrap(), "granted\n");
}

#[test]
fn files_that_only_the_owner_may_read_can_be_read_and_changed_inside() {
    let site = Site::new();
    let path = site.write("private", "mine\n");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let run = run(&site, "cat private && echo changed > private");
    site.succeed(["apply", &run]);
    assert_eq!(fs::read_to_string(&path).unwrap(), "changed\n");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_unix_socket_below_a_read_only_mount_has_nobody_listening() {
    let site = Site::new();
    let shared = site.root().join("shared");
    fs::create_dir(&shared).unwrap();
    let host = std::os::unix::net::UnixListener::bind(shared.join("socket")).unwrap();
    host.set_nonblocking(true).unwrap();
    // Without a sandbox it can be reached.
    std::os::unix::net::UnixStream::connect(shared.join("socket")).unwrap();
    host.accept().unwrap();
    let script = "import socket; socket.socket(socket.AF_UNIX).connect('/mnt/shared/socket')";
    let mount = format!("{}:/mnt/shared:ro", shared.display());
    let output = site
        .offleash(["run", "-q", "--mount", &mount, "--", "python3", "-c", script])
        .output()
        .unwrap();
    assert!(stderr(&output).contains("Connection refused"), "{}", stderr(&output));
    assert_eq!(host.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
}

#[test]
fn a_workspace_named_by_a_link_is_what_the_link_leads_to() {
    let site = Site::new();
    let (real, link) = (site.root().join("real"), site.root().join("link"));
    fs::create_dir(&real).unwrap();
    fs::write(real.join("secret"), "SECRET").unwrap();
    std::os::unix::fs::symlink(&real, &link).unwrap();
    // The link is resolved before anything is planned; the place inside is the resolved one.
    let output = site
        .offleash(["run", "-q", "-w", link.to_str().unwrap(), "--", "pwd"])
        .output()
        .unwrap();
    assert_eq!(stdout(&output).trim(), real.canonicalize().unwrap().to_str().unwrap());
}

#[test]
fn nothing_of_a_run_that_changed_nothing_reaches_the_next() {
    let site = Site::new();
    fs::set_permissions(site.workspace(), fs::Permissions::from_mode(0o755)).unwrap();
    // Attributes and lists of access as far as the file system and the programs for them are there.
    let mark = "touch x; rm x; touch -d @1234 .; \
        python3 -c 'import os; os.setxattr(\".\", \"user.mark\", b\"x\")' 2> /dev/null; \
        setfacl -d -m u::rwx,g::rwx,o::rwx . 2> /dev/null; true";
    let look = "ls -A; stat -c %a .; test $(stat -c %Y .) -gt 1234 && echo new; umask 077; touch x; stat -c %a x; rm x; \
        python3 -c 'import os; print(*[name for name in os.listxattr(\".\") if \"overlay\" not in name])' 2> /dev/null \
        | grep .; true";
    let said = |record: Value| record["stdout"]["data"].as_str().unwrap().to_owned();
    let first = said(site.record(&[], look));
    assert_eq!(first, "755\nnew\n600\n");
    for _ in 0..4 {
        site.record(&[], mark);
        assert_eq!(said(site.record(&[], look)), first);
    }
    // Another mode is a change, which is kept and passed on to nobody.
    let changed = id_of(&site.record(&[], "chmod 700 ."));
    assert_eq!(said(site.record(&[], look)), first);
    fs::set_permissions(site.workspace(), fs::Permissions::from_mode(0o751)).unwrap();
    assert_eq!(said(site.record(&[], look)), "751\nnew\n600\n");
    fs::set_permissions(site.workspace(), fs::Permissions::from_mode(0o755)).unwrap();
    site.succeed(["discard", &changed]);
}

#[test]
fn the_state_directory_holds_a_few_empty_directories_at_rest() {
    let site = Site::new();
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| (0..4).for_each(|_| drop(site.record(&[], "true"))));
        }
    });
    for part in ["runs", "live"] {
        assert_eq!(fs::read_dir(site.state().join(part)).unwrap().count(), 0, "{part}");
    }
    let spares: Vec<_> = fs::read_dir(site.state().join("spare")).unwrap().flatten().collect();
    assert!((1..=8).contains(&spares.len()), "{spares:?}");
    for spare in spares {
        let upper = spare.path().join("layer-0/upper");
        // One whose tending was interrupted has none at the moment.
        let names = fs::read_dir(upper).into_iter().flatten().count();
        assert_eq!(names, 0, "{spare:?}");
    }
    assert_eq!(site.succeed(["runs"]), "");
}

#[test]
fn the_home_directory_is_meant_where_no_shell_has_put_it() {
    let site = Site::new();
    let home = site.root();
    for name in ["project", "a:b", "data"] {
        fs::create_dir(home.join(name)).unwrap();
        fs::write(home.join(name).join("file"), format!("in {name}\n")).unwrap();
    }
    for (arguments, file, found) in [
        (&["--workspace=~/project"][..], "file", "in project\n"),
        (&["-w=~/project:ro"], "file", "in project\n"),
        (&["-w", "~/a:b"], "file", "in a:b\n"),
        (&["--mount=~/data:/mnt"], "/mnt/file", "in data\n"),
        (&["--mount=~/a:b:/mnt:ro"], "/mnt/file", "in a:b\n"),
    ] {
        let said = site.succeed([&["run"], arguments, &["--", "cat", file]].concat());
        assert_eq!(said, found, "{arguments:?}");
    }
    let said = site.refuse(["run", "-w=~/project:none", "--", "true"]);
    assert!(said.contains("`none`, which is no mode"), "{said}");
    // A directory of that name is written in another way.
    site.write("~/file", "in the tilde\n");
    assert_eq!(site.succeed(["run", "-w=./~", "--", "cat", "file"]), "in the tilde\n");
}
