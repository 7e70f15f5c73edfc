//! Bad input: each error says what was tried, on what, why, and what to do; and nothing is lost.

#[path = "bad_input/disks.rs"]
mod disks;
#[path = "bad_input/network.rs"]
mod network;
mod support;
#[path = "bad_input/words.rs"]
mod words;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use support::listing::listing;
use support::processes::through;
use support::{Site, id_of, is_root, skip, stderr};

/// Every line that offleash itself refuses, and the words by which the user finds the mistake.
fn assert_refused(site: &Site, arguments: &[&str], words: &[&str]) {
    let said = site.refuse(arguments);
    for word in words {
        assert!(said.contains(word), "{arguments:?}: no {word:?} in {said}");
    }
}

#[test]
fn a_workspace_that_cannot_be_one_is_refused() {
    let site = Site::new();
    let file = site.write("file", "x");
    let home = site.root().display().to_string();
    let state = site.state().display().to_string();
    for (workspace, words) in [
        ("/proc/nothing/workspace", ["/proc/nothing/workspace", "No such file"]),
        (file.to_str().unwrap(), ["file", "not a directory"]),
        ("/", ["`/`", "root directory"]),
        (home.as_str(), [home.as_str(), "home directory"]),
        ("/etc", ["/etc", "system"]),
        ("/usr", ["/usr", "system"]),
        ("/proc/self", ["/proc", "kernel"]),
        ("/dev", ["/dev", "kernel"]),
        ("/var/tmp", ["/var/tmp", "share"]),
        (state.as_str(), [state.as_str(), "state"]),
        ("", ["--workspace", "no directory"]),
        (":ro", ["--workspace", "no directory"]),
    ] {
        assert_refused(&site, &["run", "--workspace", workspace, "--", "true"], &words);
        for mode in ["rw", "ro"] {
            site.refuse(["run", "--workspace", &format!("{workspace}:{mode}"), "--", "true"]);
        }
    }
}

#[test]
fn a_suffix_that_means_nothing_is_told_with_those_that_do() {
    let site = Site::new();
    site.write("a:b/file", "x");
    assert_refused(
        &site,
        &["run", "-w", ".:foo", "--", "true"],
        &["`foo`", "`:overlay`, `:rw` and `:ro`"],
    );
    assert_refused(
        &site,
        &["run", "--mount", "/usr:/data:xx", "--", "true"],
        &["`xx`", "`:ro`", "`:rw`"],
    );
    site.succeed(["run", "-w", "a:b", "--", "test", "-f", "file"]);
}

#[test]
fn the_default_workspace_is_checked_as_well() {
    let site = Site::new();
    for directory in [Path::new("/"), site.root(), Path::new("/etc")] {
        let output = site
            .offleash(["run", "--", "true"])
            .current_dir(directory)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(125), "{}", directory.display());
        assert!(stderr(&output).contains("hint: "), "{}", stderr(&output));
    }
    let gone = site.root().join("gone");
    fs::create_dir(&gone).unwrap();
    let mut command = site.offleash(["--version"]);
    let script = format!(
        "rmdir '{}'; exec '{}' run -- true",
        gone.display(),
        support::binary().display()
    );
    #[expect(clippy::disallowed_methods, reason = "the shell removes its own directory")]
    let mut shell = std::process::Command::new("/bin/sh");
    shell.arg("-c").arg(script).current_dir(&gone);
    let output = shell
        .envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(125), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("current directory") && stderr(&output).contains("hint: "),
        "{}",
        stderr(&output)
    );
    assert!(command.output().unwrap().status.success());
}

#[test]
fn a_link_to_a_workspace_that_cannot_be_one_is_no_way_around() {
    let site = Site::new();
    symlink("/", site.workspace().join("root")).unwrap();
    symlink(site.root(), site.workspace().join("home")).unwrap();
    for name in ["root", "home", "root/etc"] {
        site.refuse(["run", "--workspace", name, "--", "true"]);
    }
}

#[test]
fn a_workspace_that_cannot_be_read_is_refused() {
    let site = Site::new();
    if is_root() {
        return skip("root may read every directory");
    }
    let closed = site.workspace().join("closed");
    fs::create_dir(&closed).unwrap();
    // Nothing may be done with it, not even entering it, or it may be entered and not read.
    for mode in [0o000, 0o600, 0o300] {
        fs::set_permissions(&closed, fs::Permissions::from_mode(mode)).unwrap();
        let said = site.refuse(["run", "-w", closed.to_str().unwrap(), "--", "true"]);
        let first = format!("workspace `{}`", closed.display());
        assert!(
            said.contains(&first) && said.contains("ermission denied"),
            "{mode:o}: {said}"
        );
        assert!(
            said.contains("`-w DIR`") && !said.contains("policy"),
            "{mode:o}: {said}"
        );
    }
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn what_is_no_policy_and_does_not_end_is_not_read_to_the_end() {
    let site = Site::new();
    for arguments in [
        vec!["policy", "check", "/dev/zero"],
        vec!["run", "--policy", "/dev/zero", "true"],
        vec!["run", "--srt-settings", "/dev/zero", "true"],
    ] {
        assert_refused(&site, &arguments, &["/dev/zero", "larger than 1048576 bytes"]);
    }
}

#[test]
fn a_current_directory_that_is_gone_is_missed_only_by_what_needs_it() {
    let site = Site::new();
    let workspace = site.workspace();
    let gone = site.root().join("gone");
    for (flags, expected) in [
        (vec!["--no-workspace"], Some(0)),
        (vec!["-w", workspace.to_str().unwrap()], Some(0)),
        (vec![], Some(125)),
    ] {
        fs::create_dir(&gone).unwrap();
        let script = "cd \"$1\" && rmdir \"$1\" && shift && exec \"$@\"";
        let shell = ["/bin/sh", "-c", script, "sh", gone.to_str().unwrap()];
        let mut command = through(&shell, &site.offleash(["run"]));
        let output = command.args(&flags).args(["--", "true"]).output().unwrap();
        assert_eq!(
            output.status.code(),
            expected,
            "{flags:?}: {}",
            support::stderr(&output)
        );
    }
}

#[test]
fn a_mount_that_cannot_be_is_refused() {
    let site = Site::new();
    let data = site.root().join("data");
    fs::create_dir(&data).unwrap();
    let data = data.to_str().unwrap();
    for (mount, words) in [
        ("/proc/nothing/source:/mnt/x", ["/proc/nothing/source", "No such file"]),
        ("nothing", ["nothing", "source and target"]),
        (":/mnt/x", ["--mount", "source and target"]),
        ("/tmp:", ["--mount", "source and target"]),
        ("/:/mnt/root", ["`/`", "root directory"]),
        ("/proc:/mnt/proc", ["/proc", "kernel"]),
        ("/dev/null:/mnt/null", ["/dev", ""]),
        ("/etc:/mnt/etc:rw", ["/etc", "system"]),
    ] {
        assert_refused(&site, &["run", "--mount", mount, "--", "true"], &words);
    }
    for (target, word) in [
        ("relative", "absolute"),
        ("/", "root"),
        ("/usr", "system"),
        ("/proc/x", "kernel"),
        ("/mnt/../etc", ".."),
        ("/usr/offleash-test-nowhere", "does not exist"),
    ] {
        assert_refused(
            &site,
            &["run", "--mount", &format!("{data}:{target}"), "--", "true"],
            &[target, word],
        );
        assert_refused(&site, &["run", "--tmpfs", target, "--", "true"], &[target, word]);
    }
    assert!(!Path::new("/usr/offleash-test-nowhere").exists());
}

#[test]
fn sizes_that_make_no_sense_are_refused() {
    let site = Site::new();
    for value in [
        "-1",
        "1e9G",
        "18446744073709551616",
        "",
        "0x10",
        "1.2.3M",
        "12 parsecs",
        "NaN",
        "inf",
        "+5",
        "9999999999999T",
        "0",
    ] {
        for flag in ["--memory", "--workspace-size", "--file-size", "--tmp-size"] {
            assert_refused(&site, &["run", flag, value, "--", "true"], &["limit `", value]);
        }
    }
    for (flag, value) in [
        ("--pids", "1.5"),
        ("--pids", "0"),
        ("--pids", "99999999999"),
        ("--open-files", "-3"),
        ("--inodes", "many"),
        ("--cpus", "0"),
        ("--cpus", "-1"),
        ("--cpus", "1e400"),
        ("--wall-time", "0"),
        ("--wall-time", "-5s"),
        ("--wall-time", "5 fortnights"),
        ("--cpu-time", "18446744073709551616h"),
        ("--output", "0"),
    ] {
        assert_refused(&site, &["run", flag, value, "--", "true"], &["limit `", value]);
    }
    for value in ["/scratch:-1", "/scratch:lots", "/scratch:18446744073709551616"] {
        assert_refused(&site, &["run", "--tmpfs", value, "--", "true"], &["--tmpfs", value]);
    }
}

#[test]
fn variables_that_cannot_exist_are_refused() {
    let site = Site::new();
    assert_refused(&site, &["run", "-e", "=x", "--", "true"], &["-e", "empty"]);
    assert_refused(&site, &["run", "-e", "", "--", "true"], &["-e", "empty"]);
    // Arguments cannot carry NUL; a policy can.
    for (policy, word) in [
        ("[env.set]\n\"A\\u0000B\" = \"x\"\n", "NUL"),
        ("[env.set]\n\"A=B\" = \"x\"\n", "contains `=`"),
        ("[env.set]\n\"\" = \"x\"\n", "empty"),
        ("[env.set]\nA = \"x\\u0000y\"\n", "NUL"),
        ("[env]\npass = [\"A=B\"]\n", "contains `=`"),
    ] {
        site.write("p.toml", policy);
        assert_refused(&site, &["run", "--policy", "p.toml", "--", "true"], &["p.toml:", word]);
    }
}

#[test]
fn a_command_is_needed() {
    let site = Site::new();
    assert_refused(&site, &["run"], &["no command"]);
    assert_refused(&site, &["run", "--"], &["no command"]);
    assert_refused(&site, &["run", "--", ""], &["no command"]);
}

#[test]
fn a_policy_that_is_broken_or_missing_is_refused() {
    let site = Site::new();
    assert_refused(
        &site,
        &["run", "--policy", "missing.toml", "--", "true"],
        &["missing.toml", "No such file"],
    );
    assert_refused(&site, &["run", "--policy", "/", "--", "true"], &["/: ", "directory"]);
    site.write("bytes.toml", b"level = \"\xff\"");
    assert_refused(
        &site,
        &["run", "--policy", "bytes.toml", "--", "true"],
        &["bytes.toml", "UTF-8"],
    );
    assert_refused(&site, &["policy", "check", "bytes.toml"], &["bytes.toml", "UTF-8"]);
    // One that is found is not passed over when it is broken.
    site.write("offleash.toml", "levle = 1\n");
    assert_refused(&site, &["run", "--", "true"], &["offleash.toml:1:1"]);
}

#[test]
fn a_state_directory_that_cannot_be_used_is_refused() {
    let site = Site::new();
    let file = site.root().join("file");
    fs::write(&file, "").unwrap();
    for command in [
        &["run", "--", "true"][..],
        &["runs"],
        &["audit", "show"],
        &["diff", "r1"],
    ] {
        let mut arguments = vec!["--state", file.to_str().unwrap()];
        arguments.extend_from_slice(command);
        assert_refused(&site, &arguments, &[file.to_str().unwrap()]);
    }
    if is_root() {
        return skip("root may write to every directory");
    }
    fs::set_permissions(site.state(), fs::Permissions::from_mode(0o500)).unwrap();
    assert_refused(&site, &["run", "--", "true"], &["state", "ermission denied"]);
    fs::set_permissions(site.state(), fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn a_state_directory_on_a_read_only_file_system_is_refused() {
    let site = Site::new();
    // These refuse new directories whoever asks.
    assert_refused(
        &site,
        &["--state", "/proc/offleash", "run", "--", "true"],
        &["/proc/offleash"],
    );
    assert_refused(
        &site,
        &["--state", "/sys/offleash", "run", "--", "true"],
        &["/sys/offleash"],
    );
}

#[test]
fn runs_that_are_not_there_are_said_not_to_be() {
    let site = Site::new();
    for command in ["diff", "apply", "discard"] {
        assert_refused(&site, &[command, "r0mwpxseugfeymwpa"], &["r0mwpxseugfeymwpa", "no run"]);
        assert_refused(&site, &[command, "../../etc"], &["not a run id"]);
        assert_refused(&site, &[command, ""], &["not a run id"]);
        assert_refused(&site, &[command, "r/x"], &["not a run id"]);
    }
}

#[test]
fn a_run_is_applied_or_discarded_once() {
    let site = Site::new();
    let run = id_of(&site.record(&[], "echo x > x"));
    site.succeed(["apply", &run]);
    for command in ["apply", "discard", "diff"] {
        assert_refused(&site, &[command, &run], &[&run, "applied already"]);
    }
    let run = id_of(&site.record(&[], "echo y > y"));
    site.succeed(["discard", &run]);
    for command in ["apply", "discard", "diff"] {
        assert_refused(&site, &[command, &run], &[&run, "discarded"]);
    }
}

#[test]
fn a_path_without_a_change_is_refused_and_nothing_is_applied() {
    let site = Site::new();
    let run = id_of(&site.record(&[], "echo x > x"));
    let before = listing(&site.workspace());
    assert_refused(&site, &["apply", &run, "x", "y"], &["`y`", &run]);
    assert_refused(&site, &["diff", &run, "y"], &["`y`", &run]);
    assert_refused(&site, &["apply", &run, "../x"], &[&run]);
    assert_eq!(listing(&site.workspace()), before);
    site.succeed(["apply", &run, "x"]);
}

#[test]
fn a_workspace_that_is_gone_loses_no_changes() {
    let site = Site::new();
    let run = id_of(&site.record(&[], "echo x > x"));
    let away = site.root().join("away");
    fs::rename(site.workspace(), &away).unwrap();
    for command in ["apply", "diff"] {
        let mut command = site.offleash([command, &run]);
        let output = command.current_dir(site.root()).output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{}", stderr(&output));
        assert!(
            stderr(&output).contains("hint: put the directory back"),
            "{}",
            stderr(&output)
        );
    }
    // Another directory in its place is not the workspace.
    fs::create_dir(site.workspace()).unwrap();
    site.refuse(["apply", &run]);
    assert_eq!(listing(&site.workspace()).len(), 0);
    fs::remove_dir(site.workspace()).unwrap();
    fs::rename(&away, site.workspace()).unwrap();
    site.succeed(["apply", &run]);
    assert_eq!(fs::read_to_string(site.workspace().join("x")).unwrap(), "x\n");
}

#[test]
fn arguments_that_are_wrong_are_125_too() {
    let site = Site::new();
    for arguments in [
        &["run", "--no-such-flag"][..],
        &["no-such-command"],
        &["apply"],
        &["explain", "syscall"],
        &["completions", "tcl"],
    ] {
        let output = site.offleash(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{arguments:?}");
        assert!(stderr(&output).starts_with("error: "), "{}", stderr(&output));
    }
    for arguments in [&["--help"][..], &["--version"], &["run", "--help"]] {
        let output = site.offleash(arguments).output().unwrap();
        assert_eq!(
            (output.status.code(), stderr(&output).as_str()),
            (Some(0), ""),
            "{arguments:?}"
        );
    }
}

#[test]
fn names_in_errors_cannot_drive_a_terminal() {
    let site = Site::new();
    let evil = OsStr::from_bytes(b"/proc/nothing/\x1b]0;title\x07\xff\nnext");
    for arguments in [
        vec![OsStr::new("run"), OsStr::new("-w"), evil, OsStr::new("true")],
        vec![OsStr::new("run"), OsStr::new("--policy"), evil, OsStr::new("true")],
        vec![OsStr::new("run"), OsStr::new("--report"), evil, OsStr::new("true")],
        vec![OsStr::new("run"), OsStr::new("--"), evil],
        vec![OsStr::new("run"), OsStr::new("--state"), evil, OsStr::new("true")],
        vec![
            OsStr::new("run"),
            OsStr::new("--srt-settings"),
            evil,
            OsStr::new("true"),
        ],
        vec![OsStr::new("run"), OsStr::new("--read"), evil, OsStr::new("true")],
        vec![OsStr::new("run"), OsStr::new("--toolchain"), evil, OsStr::new("true")],
    ] {
        let output = site.offleash(&arguments).output().unwrap();
        assert!(
            !output.stderr.contains(&0x1b) && !output.stderr.contains(&7),
            "{arguments:?}: {}",
            stderr(&output)
        );
    }
}

#[test]
fn a_tmpfs_that_holds_nothing_is_refused() {
    let site = Site::new();
    let said = site.refuse(["run", "--tmpfs", "/scratch:0", "--", "true"]);
    assert!(said.contains("a size of 0 holds nothing"), "{said}");
}
