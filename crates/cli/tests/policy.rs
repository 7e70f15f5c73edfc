//! Policy from the outside: files, flags, who may widen what, and what holds inside.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use offleash_core::policy::reference;
use serde_json::Value;
use support::processes::program;
use support::{Site, record_of, skip, stderr, stdout};

/// Runs a shell script under a policy that the user names.
fn under(policy: &str, site: &Site, script: &str) -> Value {
    let file = site.root().join("policy.toml");
    fs::write(&file, policy).unwrap();
    record_of(
        &site
            .offleash(["run", "--json", "--policy", file.to_str().unwrap(), "-c", script])
            .output()
            .unwrap(),
    )
}

fn out(record: &Value) -> &str {
    record["stdout"]["data"].as_str().unwrap()
}

#[test]
fn errors_point_at_the_place() {
    let site = Site::new();
    for (policy, place, word) in [
        ("levle = \"process\"\n", ":1:1", "levle"),
        ("[limits]\nmemory = \"512M\"\ncpu = 2\n", ":3:1", "cpu"),
        ("[limits]\nmemory = \"lots\"\n", ":2:10", "lots"),
        ("[filesystem]\nread = [\"/a\", \"\"]\n", ":2:", ""),
        ("[env.set]\n\"A=B\" = \"x\"\n", ":2:1", "A=B"),
        ("[commands]\ndeny = \"curl\"\n", ":2:8", ""),
        ("network = \"all\"\n", ":1:", "expected \"none\", or a table"),
        ("[network]\nallow = [\"*\"]\n", ":2:10", "*"),
        ("level = \"proces\"\n", ":1:9", "proces"),
        ("level = \n", ":1:", ""),
        ("[filesystem\n", ":1:", ""),
        ("level = \"process\"\nlevel = \"process\"\n", ":2:", "duplicate"),
    ] {
        let file = site.root().join("bad.toml");
        fs::write(&file, policy).unwrap();
        let file = file.to_str().unwrap();
        for arguments in [vec!["policy", "check", file], vec!["run", "--policy", file, "true"]] {
            let said = site.refuse(arguments);
            assert!(said.contains(&format!("{file}{place}")), "{policy:?}: {said}");
            assert!(said.contains(word), "{policy:?}: {said}");
        }
    }
}

#[test]
fn a_policy_error_reads_like_this() {
    let site = Site::new();
    site.write("bad.toml", "[limits]\nmemory = \"512M\"\ncpu = 2\n");
    insta::assert_snapshot!(site.plain(&site.refuse(["policy", "check", "bad.toml"])), @r"
    error: bad.toml:3:1: unknown variant `cpu`, expected one of `cpus`, `cpu_time`, `wall_time`, `memory`, `swap`, `pids`, `workspace`, `inodes`, `depth`, `file_size`, `tmp`, `open_files`, `output`, `net_bytes`, `net_rate`, `net_connections`, `net_at_once`

    hint: `offleash policy keys` lists every key
    ");
}

#[test]
fn every_key_of_a_policy_is_listed_with_an_example_that_is_valid() {
    let site = Site::new();
    let listed = site.succeed(["policy", "keys"]);
    for key in reference() {
        assert!(listed.contains(&format!("{} ", key.key)), "{}: {listed}", key.key);
        assert!(
            listed.contains(&format!("= {}\n", key.example)),
            "{}: {listed}",
            key.key
        );
    }
}

#[test]
fn a_valid_policy_is_said_to_be_valid_and_what_it_widens() {
    let site = Site::new();
    site.write(
        "narrow.toml",
        "[filesystem]\ndeny = [\".env\"]\n[limits]\nmemory = \"64M\"\n",
    );
    site.write("wide.toml", "[filesystem]\nread = [\"/srv\"]\n[env]\npass = [\"CI\"]\n");
    assert_eq!(site.succeed(["policy", "check", "narrow.toml"]), "narrow.toml: valid\n");
    let said = site.succeed(["policy", "check", "wide.toml"]);
    assert!(
        said.contains("(filesystem.read (`/srv`), env.pass (`CI`))") && said.contains("--policy"),
        "{said}"
    );
}

#[test]
fn a_policy_found_in_the_workspace_restricts() {
    let site = Site::new();
    site.write(
        "offleash.toml",
        "[limits]\nopen_files = 55\n[filesystem]\ndeny = [\"secret\"]\nworkspace = \"ro\"\n",
    );
    site.write("secret", "x\n");
    let record = site.record(&[], "ulimit -n; cat secret; echo x > y");
    assert_eq!(out(&record), "55\n", "{record}");
    assert!(
        record["stderr"]["data"].as_str().unwrap().contains("Read-only"),
        "{record}"
    );
    let record = site.record(&["--no-policy"], "cat secret; echo x > y");
    assert_eq!(out(&record), "x\n", "{record}");
    assert_eq!(record["exit_code"], 0);
}

#[test]
fn a_policy_found_in_the_workspace_may_not_widen() {
    let site = Site::new();
    for policy in [
        "degrade = \"allow\"\n",
        "[filesystem]\nread = [\"/root\"]\n",
        "[filesystem]\nwrite = [\"/srv\"]\n",
        "[filesystem]\nworkspace = \"rw\"\n",
        "[env]\npass = [\"GITHUB_TOKEN\"]\n",
        "[limits]\nmemory = \"64G\"\n",
        "[limits]\nwall_time = \"unlimited\"\n",
        "allow_ptrace = true\n",
        "gpu = \"all\"\n",
        "toolchains = [\"cargo\"]\n",
        "[[mount]]\nsource = \"/etc\"\ntarget = \"/mnt/etc\"\n",
        "ids = \"range\"\n",
    ] {
        site.write("offleash.toml", policy);
        let said = site.refuse(["run", "--", "true"]);
        assert!(
            said.contains("may only restrict") && said.contains("--policy"),
            "{policy}: {said}"
        );
        let output = site
            .offleash(["run", "-q", "--no-policy", "--", "true"])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
    }
}

#[test]
fn the_sandbox_cannot_loosen_the_next_run() {
    let site = Site::new();
    let record = site.record(&[], "echo 'degrade = \"allow\"' > offleash.toml");
    let output = site
        .offleash(["apply", record["id"].as_str().unwrap()])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(!site.workspace().join("offleash.toml").exists());
}

#[test]
fn flags_win_over_the_policy_and_denials_add_up() {
    let site = Site::new();
    site.write("a", "a\n");
    site.write("b", "b\n");
    let policy = site.write(
        "p.toml",
        "[filesystem]\ndeny = [\"a\"]\n[env.set]\nX = \"policy\"\nY = \"policy\"\n",
    );
    let policy = policy.to_str().unwrap();
    let record = site.record(
        &["--policy", policy, "--deny", "b", "-e", "X=flag"],
        "cat a b; echo $X $Y",
    );
    assert_eq!(out(&record), "flag policy\n", "{record}");
}

#[test]
fn the_most_specific_path_rule_wins() {
    let site = Site::new();
    let data = site.root().join("data");
    for path in ["open", "closed/inner", "closed/but/this"] {
        fs::create_dir_all(data.join(path).parent().unwrap()).unwrap();
        fs::write(data.join(path), format!("{path}\n")).unwrap();
    }
    let data = data.display().to_string();
    let policy = format!("[filesystem]\nread = [\"{data}\", \"{data}/closed/but\"]\ndeny = [\"{data}/closed\"]\n");
    let record = under(
        &policy,
        &site,
        &format!("cd {data}; cat open; cat closed/inner; cat closed/but/this"),
    );
    assert_eq!(out(&record), "open\nclosed/but/this\n", "{record}");
}

#[test]
fn writable_paths_of_a_policy_are_the_hosts() {
    let site = Site::new();
    let data = site.root().join("data");
    fs::create_dir(&data).unwrap();
    fs::write(data.join(".envrc"), "mine\n").unwrap();
    let shown = data.display().to_string();
    let script = format!("cd {shown}; echo new > new; echo evil > .envrc; mv .envrc away; true");
    let record = under(&format!("[filesystem]\nwrite = [\"{shown}\"]\n"), &site, &script);
    assert_eq!(fs::read_to_string(data.join("new")).unwrap(), "new\n", "{record}");
    assert_eq!(fs::read_to_string(data.join(".envrc")).unwrap(), "mine\n", "{record}");
}

#[test]
fn a_denied_command_is_the_file_and_not_its_name() {
    let site = Site::new();
    symlink("/bin/cat", site.workspace().join("harmless")).unwrap();
    let script = "cat /etc/hostname || echo 1; /bin/cat /etc/hostname || echo 2; ./harmless /etc/hostname || echo 3; \
                  /usr/bin/../bin/cat /etc/hostname || echo 4; c=c; ${c}at /etc/hostname || echo 5";
    let record = under("[commands]\ndeny = [\"cat\"]\n", &site, script);
    assert_eq!(out(&record), "1\n2\n3\n4\n5\n", "{record}");
    let said = stderr(
        &site
            .offleash(["run", "--deny-command", "cat", "--", "./harmless", "x"])
            .output()
            .unwrap(),
    );
    assert!(said.contains("commands.deny: cat") && said.contains("hint: "), "{said}");
}

#[test]
fn only_allowed_commands_run() {
    let site = Site::new();
    site.write("own", "#!/bin/sh\necho own\n");
    fs::set_permissions(site.workspace().join("own"), fs::Permissions::from_mode(0o755)).unwrap();
    let script = "cat /dev/null && echo cat; ls / >/dev/null && echo ls; ./own; cp /bin/ls mine 2>/dev/null && ./mine / > /dev/null && echo copy; true";
    let record = under("[commands]\nallow = [\"sh\", \"cat\"]\n", &site, script);
    assert_eq!(out(&record), "cat\n", "{record}");
    let output = site
        .offleash(["run", "--json", "--allow-command", "sh", "--", "ls"])
        .output()
        .unwrap();
    assert_eq!(record_of(&output)["outcome"]["kind"], "command_denied");
    assert_eq!(output.status.code(), Some(126));
}

#[test]
fn the_environment_is_an_allowlist() {
    let site = Site::new();
    let mut command = site.offleash(["run", "-q", "--", "env"]);
    command
        .env("TERM", "dumb")
        .env("LC_ALL", "C")
        .env("EDITOR", "vi")
        .env("LD_PRELOAD", "/tmp/evil.so");
    command
        .env("AWS_SECRET_ACCESS_KEY", "s3")
        .env("SSH_AUTH_SOCK", "/tmp/agent")
        .env("PYTHONPATH", "/tmp/evil");
    let output = command.output().unwrap();
    let mut names: Vec<_> = stdout(&output)
        .lines()
        .filter_map(|line| Some(line.split_once('=')?.0.to_owned()))
        // Where git is not the distribution's.
        .filter(|name| name != "GIT_CONFIG_SYSTEM")
        .collect();
    names.sort();
    assert_eq!(
        names,
        [
            "ASAN_OPTIONS",
            "HOME",
            "LANG",
            "LC_ALL",
            "LOGNAME",
            "LSAN_OPTIONS",
            "PATH",
            "PWD",
            "SHELL",
            "TERM",
            "USER"
        ],
        "{}",
        stdout(&output)
    );
}

#[test]
fn variables_are_passed_by_name_and_secrets_only_in_full() {
    let site = Site::new();
    let show = |flags: &[&str]| {
        let mut arguments = vec!["run", "-q"];
        arguments.extend_from_slice(flags);
        arguments.extend_from_slice(&["--", "sh", "-c", "echo ${CI-none} ${MY_TOKEN-none} ${MY_NAME-none}"]);
        let mut command = site.offleash(arguments);
        command.env("CI", "ci").env("MY_TOKEN", "token").env("MY_NAME", "name");
        stdout(&command.output().unwrap())
    };
    assert_eq!(show(&[]), "none none none\n");
    assert_eq!(show(&["-e", "CI"]), "ci none none\n");
    assert_eq!(show(&["-e", "MY_*"]), "none none name\n");
    assert_eq!(show(&["-e", "MY_TOKEN"]), "none token none\n");
    assert_eq!(show(&["-e", "CI=a=b", "-e", "MY_TOKEN="]), "a=b none\n");
}

#[test]
fn the_level_of_a_policy_is_kept_or_refused() {
    let site = Site::new();
    let record = under("level = \"process\"\nmin_level = \"process\"\n", &site, "true");
    assert_eq!(record["level"], "process");
    for flags in [["--min-level", "microvm"], ["--level", "microvm"]] {
        let said = site.refuse(["run", flags[0], flags[1], "--vm-kernel", "/no/such", "--", "true"]);
        assert!(said.contains(flags[1]), "{said}");
    }
    let said = site.refuse([
        "run",
        "--level",
        "process-landlock",
        "--min-level",
        "process",
        "--",
        "true",
    ]);
    assert!(said.contains("process"), "{said}");
}

#[test]
fn settings_of_sandbox_runtime_are_read() {
    let site = Site::new();
    site.write("secret", "x\n");
    site.write("open", "y\n");
    site.write("srt.json", r#"{ "filesystem": { "denyRead": ["secret"], "allowWrite": ["."], "denyWrite": [] }, "network": { "allowedDomains": [], "deniedDomains": [] } }"#);
    let output = site
        .offleash(["run", "-q", "--srt-settings", "srt.json", "-c", "cat open; cat secret"])
        .output()
        .unwrap();
    assert_eq!(stdout(&output), "y\n", "{}", stderr(&output));
    site.write(
        "srt.json",
        r#"{ "network": { "allowedDomains": ["*.example.com"], "deniedDomains": ["private.example.com"] } }"#,
    );
    for (target, answer) in [
        (
            "www.example.com:8443",
            "www.example.com:8443: allowed, if its addresses are public\nrule: network.allow: *.example.com:*\n",
        ),
        (
            "private.example.com:443",
            "private.example.com:443: refused: the rule `network.deny: private.example.com:*` refuses it\nrule: \
             network.deny: private.example.com:*\n",
        ),
    ] {
        let told = site.succeed(["explain", "connect", target, "--srt-settings", "srt.json"]);
        assert_eq!(told, answer);
    }
}

#[test]
fn settings_of_sandbox_runtime_that_cannot_be_honoured_are_named() {
    let site = Site::new();
    for (settings, word) in [
        (
            r#"{ "network": { "allowedDomains": ["*.com"] } }"#,
            "network.allowedDomains (network rule `*.com:*`",
        ),
        (r#"{ "filesystem": { "allowGitConfig": true } }"#, "allowGitConfig"),
        (r#"{ "something": 1 }"#, "something"),
        ("{", "line 1"),
    ] {
        site.write("srt.json", settings);
        let said = site.refuse(["run", "--srt-settings", "srt.json", "--", "true"]);
        assert!(said.contains(word) && said.contains("srt.json"), "{settings}: {said}");
    }
}

#[test]
fn toolchains_in_a_home_directory_are_granted_by_name_or_path() {
    let site = Site::new();
    let bin = site.root().join(".cargo/bin");
    fs::create_dir_all(&bin).unwrap();
    fs::write(bin.join("offleash-test-tool"), "#!/bin/sh\necho tool\n").unwrap();
    fs::set_permissions(bin.join("offleash-test-tool"), fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:/usr/bin:/bin", bin.display());
    let run = |flags: &[&str]| {
        let mut arguments = vec!["run"];
        arguments.extend_from_slice(flags);
        arguments.extend_from_slice(&["--", "offleash-test-tool"]);
        site.offleash(arguments).env("PATH", &path).output().unwrap()
    };
    let output = run(&[]);
    assert_eq!(output.status.code(), Some(127));
    let said = stderr(&output);
    assert!(said.contains("hint: ") && said.contains("--toolchain cargo"), "{said}");
    for flags in [["--toolchain", "cargo"], ["--toolchain", bin.to_str().unwrap()]] {
        let output = run(&flags);
        assert_eq!(stdout(&output), "tool\n", "{flags:?}: {}", stderr(&output));
    }
}

#[test]
fn nothing_is_reached_over_the_network() {
    let site = Site::new();
    if program("python3").is_none() {
        return skip("python3 is not installed");
    }
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    let script = format!("import socket; print(socket.socket().connect_ex(('127.0.0.1', {port})))");
    let output = site
        .offleash(["run", "-q", "--network", "none", "--", "python3", "-c", &script])
        .output()
        .unwrap();
    assert_ne!(stdout(&output).trim(), "0", "{}", stderr(&output));
    let said = site.refuse(["run", "--network", "all", "--", "true"]);
    assert!(said.contains("`--network all` is no network"), "{said}");
}

#[test]
fn what_would_become_of_a_connection_is_explained() {
    let site = Site::new();
    let wide = ["--allow", "*.example.com", "--deny-host", "Private.example.com."];
    for (arguments, answer) in [
        (
            vec!["example.com:443"],
            "example.com:443: refused\nrule: default: nothing is reached unless a rule allows it\n",
        ),
        (
            [vec!["WWW.Example.com.:443"], wide.to_vec()].concat(),
            "www.example.com:443: allowed, if its addresses are public\nrule: network.allow: *.example.com\n",
        ),
        (
            [vec!["private.example.com:443"], wide.to_vec()].concat(),
            "private.example.com:443: refused: the rule `network.deny: private.example.com` refuses it\nrule: \
             network.deny: private.example.com\n",
        ),
        (
            [vec!["www.example.com:22"], wide.to_vec()].concat(),
            "www.example.com:22: refused: no rule allows it\nrule: default: nothing is reached unless a rule allows it\n",
        ),
        (
            vec!["0x7f.1:80", "--allow", "0.0.0.0/1"],
            "127.0.0.1:80: refused: `127.0.0.1` is the sandbox itself, and a proxy leads to other machines\nrule: \
             network.allow: 0.0.0.0/1\n",
        ),
    ] {
        let output = site
            .offleash([vec!["explain", "connect"], arguments.clone()].concat())
            .output()
            .unwrap();
        assert_eq!(stdout(&output), answer, "{arguments:?}: {}", stderr(&output));
    }
    for (target, word) in [
        ("example.com", "is not a host and a port"),
        ("a b:80", "a b"),
        ("a:0", "is not a host"),
    ] {
        let said = site.refuse(["explain", "connect", target]);
        assert!(said.contains(word), "{target}: {said}");
    }
}

#[test]
fn a_path_of_the_home_directory_is_explained_as_that() {
    let site = Site::new();
    let home = site.root().join("home");
    std::fs::create_dir_all(home.join("data")).unwrap();
    let explained = |path: &str| {
        let mut command = site.offleash(["explain", "path", path, "--read", "~/data"]);
        stdout(&command.env("HOME", &home).output().unwrap())
    };
    let whole = explained(home.join("data").to_str().unwrap());
    let (_, whole) = whole.split_once(": ").unwrap();
    let short = explained("~/data");
    let (named, short) = short.split_once(": ").unwrap();
    assert_eq!((named, short), ("~/data", whole));
    assert!(short.contains("filesystem.read"), "{short}");
}

#[test]
fn a_path_to_read_that_does_not_exist_is_refused_by_hand_and_told_of_a_policy() {
    let site = Site::new();
    for (arguments, words) in [
        (
            &["--read", "/nothing/of/this"][..],
            "cannot open path to read `/nothing/of/this`",
        ),
        (&["--read", "~/nothing"], "cannot open path to read `~/nothing`"),
        (&["--read", "nothing"], "cannot open path to read `nothing`"),
        (&["--read", "/nothing/**"], "cannot open path to read `/nothing/**`"),
        (&["--no-workspace", "--read", "nothing"], "begins at the workspace"),
    ] {
        let said = site.refuse([&["run"], arguments, &["--", "true"]].concat());
        assert!(said.contains(words), "{arguments:?}: {said}");
    }
    // What has wildcards may mean nothing, and what is denied need not be there.
    site.succeed(["run", "--read", "/nothing/*", "--deny", "~/nothing", "--", "true"]);
    std::fs::create_dir(site.root().join("data")).unwrap();
    site.succeed(["run", "--read", "~/data", "--", "true"]);

    let policy = site.root().join("policy.toml");
    let text = "[filesystem]\nread = [\"~/data\", \"~/nothing\", \"later\"]\nwrite = [\"/nothing/of/this\"]\n";
    fs::write(&policy, text).unwrap();
    let arguments = ["run", "--policy", policy.to_str().unwrap(), "--", "true"];
    let output = site.offleash(arguments).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(
        stderr(&output),
        format!(
            "offleash: `filesystem.read: ~/nothing` grants nothing: `{}/nothing` does not exist\n\
             offleash: `filesystem.write: /nothing/of/this` grants nothing: `/nothing/of/this` does not exist\n",
            site.root().display()
        )
    );
}
