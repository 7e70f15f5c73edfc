//! The command line as a person meets it: help, completions, explanations, and what typical mistakes look like.

mod support;

use std::process::Stdio;

use offleash_core::limits::LIMITS;
use support::processes::{feed, finish, program, start};
use support::{Site, skip, stderr, stdout};

#[test]
fn help_says_what_there_is() {
    // The help of every command is compared with docs/cli.md; this is the first thing that anybody sees.
    let site = Site::new();
    let help = site.offleash(["--help"]).env_remove("OFFLEASH_STATE").output().unwrap();
    insta::assert_snapshot!(stdout(&help), @r"
    Runs code that an AI wrote so that nothing outside is harmed, read or reached unless you allowed it

    Usage: offleash [OPTIONS] <COMMAND>

    Commands:
      run           Run a command in a sandbox
      diff          Show what a run changed in its workspace
      apply         Write the changes of a run to its workspace
      discard       Throw the changes of a run away
      runs          List runs that go on or whose changes are kept
      warm          Work with sandboxes that `run --warm` keeps ready
      serve         Serve sandboxes to E2B's SDKs and to programs of your own
      front         Stand before the servers of several machines as one: sandboxes are made where there
                    is room, and found where they are
      drain         Have the server take no new sandboxes until it is started anew, or take some again;
                    those that are there live on
      controller    Serve Sandbox, SandboxClaim and SandboxWarmPool of kubernetes-sigs/agent-sandbox by
                    the daemons of a cluster's nodes
      mcp           Give an agent host tools that run code in sandboxes: speaks the Model Context
                    Protocol on standard input and output
      key           Work with the keys of `serve`
      template      Build templates of sandboxes, and look after them
      image         Fetch images of containers, and look after them
      volume        Make directories that outlive sandboxes, and look after them
      vm            Prepare virtual machines for level `microvm`
      create        Make a sandbox in the daemon, and print its id
      ls            List the sandboxes of the daemon [alias: ps]
      exec          Run a command in a sandbox of the daemon
      cp            Copy files to a sandbox of the daemon, or from it
      logs          Show what the daemon noted about a sandbox
      stop          End sandboxes of the daemon [alias: kill]
      rm            Remove sandboxes of the daemon that are paused, or with `--force` any
      inspect       Show all that the daemon knows of sandboxes, as JSON
      stats         Show what sandboxes of the daemon use
      top           Show what sandboxes of the daemon use, again and again, the busiest first
      pause         Pause sandboxes of the daemon
      resume        Continue sandboxes of the daemon
      fork          Make sandboxes in the daemon with the files of one that runs, and print their ids
      snapshot      Make snapshots of sandboxes of the daemon, and look after them
      checkpoint    Make a checkpoint of a sandbox of the daemon, to which it can be put back, and print
                    its id
      checkpoints   List the checkpoints of a sandbox of the daemon, or remove one
      restore       Put a sandbox of the daemon back to a checkpoint: its processes end, and its files
                    are those of then
      browser       Work with browsers in sandboxes of the daemon, which Playwright, Puppeteer and
                    others drive
      desktop       Work with desktops in sandboxes of the daemon, whose screens are seen and driven in
                    a browser
      port          Print the address at which a port of a sandbox is reached
      port-forward  Have ports of a sandbox at ports of this machine's loopback, until Ctrl-C
      ssh           Enter a sandbox by OpenSSH's client, for a shell, a command or `-L`
      ssh-config    Print what OpenSSH's configuration needs, so that `ssh`, `scp`, `sftp` and what
                    starts them reach sandboxes as ID.offleash
      sync          Bring a directory here and one in a sandbox to the same, one way
      login         Try the key of a server, and keep it for `--host`
      logout        Forget the keys that `login` kept
      doctor        Say what this machine offers, what is missing, and how to mend it
      self-check    Try each level that this machine offers with a real `true`, and say which work: what
                    to do after an installation
      explain       Say what would be decided about a path, variable, limit, system call or connection,
                    and by which rule
      tools         Work with the tools that a policy offers to code in sandboxes
      approvals     Answer questions about calls of tools in sandboxes
      policy        Work with policy files
      audit         Check or show the audit log, or set it aside
      completions   Print completions for a shell
      man           Print the manual page of a command
      help          Print this message or the help of the given subcommand(s)

    Options:
          --state <DIR>  Directory that keeps runs and the audit log [env: OFFLEASH_STATE=]
          --host <URL>   Ask the server at URL, `https://HOST[:PORT]`, instead of this machine's. Its
                         key is `OFFLEASH_API_KEY`, or what `offleash login` kept. Variable
                         `OFFLEASH_HOST` says it, too
          --ca <FILE>    With `--host`: trust the certificate authorities in FILE (PEM) beside the
                         system's. Variable `OFFLEASH_CA` says it, too
          --insecure     With `--host`: send the key without TLS also to others than this machine.
                         Certificates are verified all the same
      -h, --help         Print help
      -V, --version      Print version
    ");
}

#[test]
fn without_arguments_the_help_is_shown() {
    let site = Site::new();
    let output = site.offleash::<_, &str>([]).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).contains("Usage: offleash"), "{}", stderr(&output));
}

#[test]
fn the_version_is_that_of_the_package() {
    let site = Site::new();
    assert_eq!(
        site.succeed(["--version"]),
        format!("offleash {}\n", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn typical_mistakes_look_like_this() {
    let site = Site::new();
    let mistakes: [&[&str]; 8] = [
        &["run"],
        &["run", "-w", "/proc/nothing", "--", "true"],
        &["run", "--memory", "lots", "--", "true"],
        &["run", "--mount", "/proc/nothing:/mnt", "--", "true"],
        &["run", "--network", "all", "--", "true"],
        &["run", "--toolchain", "nothing", "--", "true"],
        &["apply", "r0000000000000000"],
        &["explain", "syscall", "no_such_call"],
    ];
    let said: Vec<_> = mistakes
        .iter()
        .map(|arguments| {
            format!(
                "$ offleash {}\n{}",
                arguments.join(" "),
                site.plain(&site.refuse(*arguments))
            )
        })
        .collect();
    insta::assert_snapshot!(said.join("\n"), @r"
    $ offleash run
    error: there is no command to run

    hint: write `offleash run -- COMMAND`, or `offleash run -c 'SHELL STRING'`

    $ offleash run -w /proc/nothing -- true
    error: cannot open workspace `/proc/nothing`
      caused by: No such file or directory (os error 2)

    hint: check the spelling; nothing is created on the host

    $ offleash run --memory lots -- true
    error: limit `memory`: `lots` is not a number: expected a size such as 512M, 1.5G or 4096 (units K, M, G, T)

    hint: `offleash explain limit memory` says what is accepted

    $ offleash run --mount /proc/nothing:/mnt -- true
    error: cannot open mount source `/proc/nothing`
      caused by: No such file or directory (os error 2)

    hint: check the spelling; nothing is created on the host

    $ offleash run --network all -- true
    error: `--network all` is no network

    hint: `none` is the only word here; `--allow HOST` says what may be reached

    $ offleash run --toolchain nothing -- true
    error: `nothing` is not a toolchain

    hint: known toolchains are pyenv, nvm, uv, cargo, conda, asdf, mise, volta, go, deno, bun; anything else is given as a path with a slash

    $ offleash apply r0000000000000000
    error: there is no run `[run]`

    hint: `offleash runs` lists the runs that are kept; one that changed nothing is not

    $ offleash explain syscall no_such_call
    error: `no_such_call` is not a system call that the filter knows

    hint: whatever the filter does not know is answered with ENOSYS, as by a kernel that does not have it
    ");
}

#[test]
fn what_a_run_says_of_itself_looks_like_this() {
    let site = Site::new();
    let mut said = String::new();
    for arguments in [
        &["run", "-c", "echo x > x; echo y > y"][..],
        &["run", "--wall-time", "100ms", "--", "sleep", "60"],
        &["run", "-c", "kill -SEGV $$"],
        &["run", "--output", "3", "--", "echo", "more"],
        &["run", "--", "offleash-test-no-such-command"],
        &["run", "--", "./no-such-file"],
        &["run", "--", "/etc"],
        &["run", "--deny-command", "cat", "--", "cat"],
    ] {
        let output = site.offleash(arguments).output().unwrap();
        let line = format!(
            "$ offleash {}\n{}[{}]\n\n",
            arguments.join(" "),
            stderr(&output),
            output.status.code().unwrap()
        );
        said.push_str(&site.plain(&line));
    }
    insta::assert_snapshot!(said, @r"
    $ offleash run -c echo x > x; echo y > y
    offleash: 2 changes kept: `offleash diff [run]` shows, `offleash apply [run]` writes, `offleash discard [run]` drops them
    [0]

    $ offleash run --wall-time 100ms -- sleep 60
    offleash: the run was ended: it reached its limit of wall_time (100ms); raise it with `--wall-time`
    [124]

    $ offleash run -c kill -SEGV $$
    offleash: the command was ended by SIGSEGV
    [139]

    $ offleash run --output 3 -- echo more
    offleash: the run was ended: it reached its limit of output (3); raise it with `--output`
    [137]

    $ offleash run -- offleash-test-no-such-command
    offleash: `offleash-test-no-such-command`: command not found in the sandbox

    hint: install it on the host below /usr, or grant the directory it is in with `--toolchain PATH`
    [127]

    $ offleash run -- ./no-such-file
    offleash: `./no-such-file`: there is no such file in the sandbox

    hint: `offleash explain path PATH` says what is there of the host's
    [127]

    $ offleash run -- /etc
    offleash: `/etc` cannot be executed: Is a directory (os error 21)

    hint: name a program in it; `--cwd DIR` says where a command starts
    [126]

    $ offleash run --deny-command cat -- cat
    offleash: `cat` was refused by the rule `commands.deny: cat`

    hint: change `commands` in the policy if it should run
    [126]
    ");
}

#[test]
fn paths_are_explained_as_they_are_inside() {
    let site = Site::new();
    site.write("hidden", "x");
    std::os::unix::fs::symlink("dot/shell", site.workspace().join(".bashrc")).unwrap();
    let explain = |path: &str, flags: &[&str]| {
        let mut arguments = vec!["explain", "path", path];
        arguments.extend_from_slice(flags);
        site.plain(&site.succeed(arguments))
    };
    let mut said = String::new();
    for (path, flags) in [
        ("file", &[][..]),
        ("hidden", &["--deny", "hidden"]),
        (".envrc", &[]),
        ("dot/shell", &[]),
        ("/usr/bin/env", &[]),
        ("/etc/shadow", &[]),
        ("/root", &[]),
        ("/tmp/x", &[]),
        ("/proc/1", &[]),
        ("/dev/null", &[]),
        ("/mnt/data/x", &["--mount", "/usr/share:/mnt/data"]),
        ("/scratch", &["--tmpfs", "/scratch"]),
        ("/home", &[]),
    ] {
        said.push_str(&explain(path, flags));
    }
    insta::assert_snapshot!(said, @r"
    file: read and written; the change is kept aside until `offleash apply`
    rule: workspace
    hidden: hidden: neither read nor written nor replaced
    rule: filesystem.deny: hidden
    .envrc: read and written inside; the change is not applied unless named
    rule: protected: .envrc (direnv runs it when the directory is entered)
    dot/shell: read and written inside; the change is not applied unless named
    rule: protected: `.bashrc` leads here: protected name .bashrc: a shell runs it when it starts
    /usr/bin/env: read, not written
    rule: system: /usr
    /etc/shadow: does not exist inside
    rule: default: nothing of the host is visible unless it is granted
    /root: does not exist inside
    rule: default: nothing of the host is visible unless it is granted
    /tmp/x: read and written, in memory, gone when the run ends
    rule: system: /tmp
    /proc/1: the sandbox's own procfs; what concerns the machine is covered or read-only
    rule: system: /proc
    /dev/null: one of six devices, or does not exist
    rule: system: /dev
    /mnt/data/x: read, not written
    rule: mount: /mnt/data
    /scratch: read and written, in memory, gone when the run ends
    rule: tmpfs: /scratch
    /home: a directory that can be listed, and not written
    rule: system: the sandbox's own root
    ");
}

#[test]
fn what_is_explained_about_a_path_is_what_happens() {
    let site = Site::new();
    site.write("hidden", "x");
    for (path, flags) in [
        ("hidden", &["--deny", "hidden"][..]),
        ("/etc/shadow", &[]),
        ("/root/x", &[]),
        ("file", &[]),
        ("/usr/x", &[]),
    ] {
        let mut arguments = vec!["explain", "path", path];
        arguments.extend_from_slice(flags);
        let said = site.succeed(arguments);
        let writable = site.run_shell(flags, &format!("echo x > {path}")).status.success();
        assert_eq!(said.contains("read and written"), writable, "{path}: {said}");
    }
}

#[test]
fn variables_are_explained() {
    let site = Site::new();
    let mut said = String::new();
    for arguments in [
        &["TERM"][..],
        &["EDITOR"],
        &["PATH"],
        &["PATH", "-e", "PATH"],
        &["HOME"],
        &["GITHUB_TOKEN"],
        &["GITHUB_TOKEN", "-e", "GITHUB_*"],
        &["GITHUB_TOKEN", "-e", "GITHUB_TOKEN"],
        &["CI", "-e", "CI=1"],
        &["LD_PRELOAD"],
    ] {
        said.push_str(&site.succeed(["explain", "env"].iter().chain(arguments)));
    }
    insta::assert_snapshot!(said, @r"
    TERM: passed
    rule: default: TERM
    EDITOR: not passed
    rule: default: not in the allowlist
    PATH: set, not to the host's value
    rule: system: every sandbox has its own
    PATH: passed
    rule: env.pass: PATH
    HOME: set, not to the host's value
    rule: system: every sandbox has its own
    GITHUB_TOKEN: not passed
    rule: withheld: the name looks like a secret (`TOKEN`) and env.pass does not name it in full
    GITHUB_TOKEN: not passed
    rule: withheld: the name looks like a secret (`TOKEN`) and env.pass does not name it in full
    GITHUB_TOKEN: passed
    rule: env.pass: GITHUB_TOKEN
    CI: passed
    rule: env.set: CI
    LD_PRELOAD: not passed
    rule: withheld: it changes what programs load and env.pass does not name it in full
    ");
    for (name, word) in [("", "empty"), ("A=B", "`=`"), ("A\nB", "newline")] {
        let said = site.refuse(["explain", "env", name]);
        assert!(said.contains(word), "{said}");
    }
}

#[test]
fn every_limit_is_explained_under_each_of_its_names() {
    let site = Site::new();
    // Those of volumes belong to them.
    for row in LIMITS.iter().filter(|row| row.flag.starts_with("--")) {
        for name in [row.word, row.flag.trim_start_matches('-')] {
            let said = site.succeed(["explain", "limit", name]);
            assert!(
                said.contains(row.doc) && said.contains(row.flag) && said.contains(&row.name.default_text()),
                "{said}"
            );
        }
    }
    insta::assert_snapshot!(site.succeed(["explain", "limit", "memory", "--memory", "64M"]), @r"
    memory: 64M
    memory of all processes together: anonymous, page cache, files in memory and kernel memory
    default: 4G; flag: --memory; policy: limits.memory
    at least 8M: with less, not even the sandbox's own first process starts
    ");
    let said = site.refuse(["explain", "limit", "speed"]);
    assert!(said.contains("speed"), "{said}");
    assert_eq!(said.matches("cpu_time").count(), 1, "{said}");
}

#[test]
fn a_limit_without_a_least_value_says_no_more_than_that() {
    let said = Site::new().succeed(["explain", "limit", "swap"]);
    assert!(!said.contains(": \n"), "{said}");
}

#[test]
fn system_calls_are_explained() {
    let site = Site::new();
    for (name, word) in [
        ("openat", "allowed"),
        ("mount", "refused"),
        ("bpf", "refused"),
        ("io_uring_setup", "refused"),
        ("clone3", ""),
    ] {
        let said = site.succeed(["explain", "syscall", name]);
        assert!(
            said.contains(name) && said.contains(word) && said.contains("reason: "),
            "{said}"
        );
        assert!(!said.contains("reason: \n"), "{said}");
    }
    let said = site.refuse(["explain", "syscall", "no_such_call"]);
    assert!(said.contains("no_such_call") && said.contains("ENOSYS"), "{said}");
}

#[test]
fn completions_are_what_the_shell_reads() {
    let site = Site::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = site.succeed(["completions", shell]);
        for word in ["offleash", "workspace-size", "doctor", "completions"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    if program("bash").is_none() {
        return skip("bash is not installed");
    }
    #[expect(clippy::disallowed_methods, reason = "the shell that is to read the script")]
    let mut bash = std::process::Command::new("bash");
    let script = site.succeed(["completions", "bash"])
        + "\nCOMP_WORDS=(offleash doc); COMP_CWORD=1; _offleash offleash doc offleash; printf '%s\\n' \"${COMPREPLY[@]}\"\n";
    let output = feed(bash.arg("--norc").current_dir(site.workspace()), script);
    assert_eq!(stdout(&output), "doctor\n", "{}", stderr(&output));
}

#[test]
fn a_reader_that_leaves_early_is_no_failure() {
    let site = Site::new();
    for arguments in [
        &["completions", "bash"][..],
        &["run", "--help"],
        &["doctor"],
        &["explain", "limit", "memory"],
    ] {
        let mut command = site.offleash(arguments);
        let mut child = start(&mut command);
        drop(child.stdout.take());
        let output = finish(child);
        assert!(
            !stderr(&output).contains("panicked"),
            "{arguments:?}: {}",
            stderr(&output)
        );
        assert_ne!(output.status.code(), Some(101), "{arguments:?}");
    }
}

#[test]
fn the_state_directory_can_be_named_by_flag_and_variable() {
    let site = Site::new();
    let other = site.root().join("other");
    site.succeed(["--state", other.to_str().unwrap(), "run", "-q", "-c", "echo x > x"]);
    assert_eq!(site.succeed(["runs"]), "");
    assert_eq!(
        site.succeed(["runs", "--state", other.to_str().unwrap()])
            .lines()
            .count(),
        1
    );
    // By default it is in the home directory, but for root, of whose real one tests keep away.
    if support::is_root() {
        return skip("the state directory of root is one for the whole machine");
    }
    let mut command = site.offleash(["run", "-q", "-c", "echo x > x"]);
    command.env_remove("OFFLEASH_STATE").stdout(Stdio::null());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(site.root().join(".local/state/offleash/audit.jsonl").exists());
}

#[test]
fn looking_makes_no_state_directory() {
    let site = Site::new();
    let run = "r0000000000000000";
    let listing: [&[&str]; 7] = [
        &["runs"],
        &["runs", "--json"],
        &["audit", "verify"],
        &["audit", "show"],
        &["template", "ls"],
        &["warm", "ls"],
        &["key", "ls"],
    ];
    let naming: [&[&str]; 7] = [
        &["diff", run],
        &["apply", run],
        &["discard", run],
        &["template", "inspect", "none"],
        &["template", "rm", "none"],
        &["key", "rm", "none"],
        &["ls"],
    ];
    let mistyped = site.root().join("mistyped");
    for arguments in listing.iter().chain(&naming) {
        let said = site.refuse([&["--state", mistyped.to_str().unwrap()], *arguments].concat());
        assert!(said.contains("mistyped` does not exist"), "{arguments:?}: {said}");
    }
    assert!(!mistyped.exists());
    if support::is_root() {
        return skip("root's default state directory is that of the machine");
    }
    let fresh = |arguments: &[&str]| {
        let mut command = site.offleash(arguments);
        command.env_remove("OFFLEASH_STATE").output().unwrap()
    };
    for arguments in listing {
        let output = fresh(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
    }
    for arguments in naming {
        let output = fresh(arguments);
        assert_eq!(output.status.code(), Some(125), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains("hint: "), "{arguments:?}: {}", stderr(&output));
    }
    assert!(!site.root().join(".local").exists());
}

#[test]
fn usage_does_not_depend_on_the_variable_of_the_state_directory() {
    let site = Site::new();
    for arguments in [&["diff"][..], &["run", "--none"], &["template", "rm"], &["exec"]] {
        let with = site.offleash(arguments).output().unwrap();
        let without = site.offleash(arguments).env_remove("OFFLEASH_STATE").output().unwrap();
        assert_eq!(stderr(&with), stderr(&without), "{arguments:?}");
        assert_eq!(with.status.code(), Some(125), "{arguments:?}");
        let usage = stderr(&with)
            .lines()
            .find(|line| line.starts_with("Usage: "))
            .map(str::to_owned);
        assert!(
            usage.is_some_and(|usage| !usage.contains("--state")),
            "{}",
            stderr(&with)
        );
    }
    // One that is empty names nothing, as that of a server.
    let empty = site.offleash(["policy", "keys"]).env("OFFLEASH_STATE", "").output();
    let empty = empty.unwrap();
    assert!(empty.status.success(), "{}", stderr(&empty));
}
