//! Words of other tools, and what is said of arguments that cannot be understood.

use crate::support::{Site, stderr, stdout};

#[test]
fn arguments_that_cannot_be_understood_leave_one_exit_code() {
    let site = Site::new();
    let commands: [&[&str]; 14] = [
        &[],
        &["run"],
        &["diff"],
        &["apply"],
        &["runs"],
        &["warm", "ls"],
        &["create"],
        &["exec"],
        &["ls"],
        &["mcp"],
        &["serve"],
        &["key", "create"],
        &["template", "build"],
        &["doctor"],
    ];
    for command in commands {
        for wrong in ["--no-such-flag", "--state="] {
            let output = site.offleash(command).arg(wrong).output().unwrap();
            assert_eq!(
                output.status.code(),
                Some(125),
                "{command:?} {wrong}: {}",
                stderr(&output)
            );
            assert!(stderr(&output).starts_with("error: "), "{}", stderr(&output));
        }
    }
    for missing in [
        &["exec"][..],
        &["diff"],
        &["port", "x"],
        &["port", "x", "0"],
        &["nothing"],
    ] {
        let output = site.offleash(missing).output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{missing:?}: {}", stderr(&output));
    }
}

#[test]
fn a_flag_of_another_tool_is_told_with_ours() {
    let site = Site::new();
    for (arguments, told) in [
        (&["run", "-d", "--", "true"][..], "`offleash create`"),
        (&["run", "--privileged", "true"], "cannot be granted"),
        (&["exec", "--timeout", "1s", "id", "true"], "`timeout TIME`"),
        (&["run", "--wall-tiem", "1s", "--", "true"], "--wall-time"),
    ] {
        let output = site.offleash(arguments).output().unwrap();
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(125), "{said}");
        assert!(said.contains(told) && said.contains("tip: "), "{arguments:?}: {said}");
    }
}

#[test]
fn flags_of_other_tools_do_what_ours_do() {
    let site = Site::new();
    site.write("given/file", "given");
    let given = site.workspace().join("given").display().to_string();
    let volume = format!("{given}:/data");
    for flags in [
        &["-v", &volume][..],
        &["--volume", &volume],
        &["--ro-bind", &given, "/data"],
        &["--bind", &given, "/data"],
    ] {
        let read = site.run_shell(&[flags, &["--rm", "-i", "--net", "none"]].concat(), "cat /data/file");
        assert_eq!(stdout(&read), "given", "{flags:?}: {}", stderr(&read));
        let written = site.run_shell(flags, "echo x >/data/new");
        assert_eq!(written.status.success(), flags[0] == "--bind", "{flags:?}");
    }
    assert!(site.workspace().join("given/new").exists());
    let flags = [
        "-m",
        "256M",
        "--timeout",
        "1m",
        "--disk",
        "64M",
        "--pids-limit",
        "64",
        "-u",
        "1000",
        "-e",
        "WORD=x",
    ];
    let ran = site.run_shell(&[&flags[..], &["--workdir", "/tmp"]].concat(), "pwd; id -u; echo $WORD");
    assert_eq!(stdout(&ran), "/tmp\n1000\nx\n", "{}", stderr(&ran));
    for (limit, value) in [
        ("memory", "256M"),
        ("wall_time", "1m"),
        ("workspace", "64M"),
        ("pids", "64"),
    ] {
        let told = site.succeed([&["explain", "limit", limit][..], &flags[..8]].concat());
        assert!(told.contains(value), "{limit}: {told}");
    }
}

#[test]
fn what_is_said_names_the_flag_that_was_typed() {
    let site = Site::new();
    for (flag, other) in [("--timeout", "--wall-time"), ("--wall-time", "--timeout")] {
        let output = site
            .offleash(["run", flag, "300ms", "--", "sleep", "60"])
            .output()
            .unwrap();
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(124), "{said}");
        assert!(
            said.contains(&format!("raise it with `{flag}`")) && !said.contains(other),
            "{said}"
        );
    }
    for (arguments, told) in [
        (["-v", "nothing"], "`-v nothing` names no volume and target"),
        (["--mount", "nothing"], "`--mount nothing` has no source and target"),
        (["--net", "host"], "`--net host` is no network"),
    ] {
        let said = site.refuse(["run", arguments[0], arguments[1], "--", "true"]);
        assert!(said.contains(told), "{said}");
    }
}

#[test]
fn a_user_that_there_is_not_is_told_with_those_that_there_are() {
    let site = Site::new();
    for (user, told) in [
        ("2000", "name `user`"),
        ("0", "`--root base`"),
        ("root", "`--root base`"),
    ] {
        let said = site.refuse(["run", "--user", user, "--", "id"]);
        assert!(
            said.contains(&format!("no user `{user}`")) && said.contains(told),
            "{said}"
        );
    }
    assert_eq!(
        site.succeed(["run", "--user", "1000:1000", "--", "id", "-un"]),
        "user\n"
    );
}

#[test]
fn what_is_kept_of_changes_that_are_too_large_is_said_once() {
    let site = Site::new();
    let arguments = [
        "run",
        "-w",
        ".:rw",
        "--disk",
        "128K",
        "-c",
        "head -c 4M /dev/zero >large; sleep 60",
    ];
    let output = site.offleash(arguments).output().unwrap();
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(137), "{said}");
    assert!(
        said.contains("nothing was written back") && said.contains("raise it with `--disk`"),
        "{said}"
    );
    assert_eq!(said.matches("`offleash diff ").count(), 1, "{said}");
}

#[test]
fn a_directory_takes_the_place_of_no_file_that_a_sandbox_has_for_itself() {
    let site = Site::new();
    let file = site.write("given/file", "given").display().to_string();
    let directory = site.workspace().join("given").display().to_string();
    for (target, source) in [("/etc/passwd", &directory), ("/etc/hosts", &directory)] {
        let said = site.refuse(["run", "-v", &format!("{source}:{target}"), "--", "true"]);
        assert!(said.contains(target) && said.contains("/mnt/data"), "{said}");
    }
    for target in ["/etc/passwd", "/etc/hosts"] {
        let shown = site.succeed(["run", "-v", &format!("{file}:{target}"), "--", "cat", target]);
        assert_eq!(shown, "given");
    }
}
