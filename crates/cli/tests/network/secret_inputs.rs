//! Secrets that are asked for wrongly, and what is said of those that are right. No network is needed for it.

use std::process::Command;

use crate::support::{Site, stderr, stdout};

const VALUE: &str = "value-that-is-nobodys-business";
const SECRET: &str = "API_KEY=env:REAL_KEY@api.example.com";

fn run(site: &Site, flags: &[&str]) -> Command {
    let mut arguments = vec!["run"];
    arguments.extend_from_slice(flags);
    arguments.extend_from_slice(&["--", "/bin/true"]);
    let mut command = site.offleash(arguments);
    command.env("REAL_KEY", VALUE).env("PLAIN", VALUE).env("EMPTY", "");
    command
}

/// Asserts that a run is refused with these words and a hint, and that nothing is said of the value.
#[track_caller]
fn assert_refused(mut command: Command, expected: &str) {
    let output = command.output().unwrap();
    let said = stderr(&output);
    assert!(!output.status.success(), "{said}");
    let helps = said.contains("hint:") || said.contains("--help");
    assert!(said.contains(expected) && helps, "{expected}: {said}");
    assert!(!said.contains(VALUE) && !said.contains("hunter2"), "{said}");
}

#[test]
fn a_secret_that_cannot_be_used_is_refused_and_says_why() {
    let site = Site::new();
    let allow = ["--allow", "api.example.com"];
    let cases: [(&[&str], &str); 14] = [
        (
            &["--secret", "API_KEY=env:REAL_KEY"],
            "`--secret` is not valid: secret `API_KEY` names no host",
        ),
        (
            &["--secret", "API_KEY=env:REAL_KEY@*.com"],
            "nothing to do with each other",
        ),
        (&["--secret", "API_KEY=hunter2@api.example.com"], "no source"),
        (&["--secret", "hunter2"], "NAME=SOURCE@HOST"),
        (&["--secret", "API_KEY=env:REAL_KEY@api.example.com#cookie"], "no place"),
        (
            &["--secret", "API_KEY=env:NOT_SET@api.example.com"],
            "variable `NOT_SET` is not set",
        ),
        (&["--secret", "API_KEY=env:EMPTY@api.example.com"], "empty"),
        (
            &["--secret", "API_KEY=file:/no/such/file@api.example.com"],
            "cannot read `/no/such/file`",
        ),
        (&["--secret", SECRET, "--secret", SECRET], "given twice"),
        (
            &["--secret", SECRET, "--env", "API_KEY=other"],
            "set already, by `env.set: API_KEY`",
        ),
        (&["--secret", "PATH=env:REAL_KEY@api.example.com"], "set already"),
        (
            &["--secret", SECRET, "--env", "PLAIN"],
            "would enter the sandbox in variable `PLAIN`",
        ),
        (
            &["--secret", SECRET, "--env", "REAL_KEY"],
            "would enter the sandbox in variable `REAL_KEY`",
        ),
        (
            &["--secret", "AWS_ACCESS_KEY_ID=env:REAL_KEY@api.example.com#sigv4"],
            "AWS_SECRET_ACCESS_KEY",
        ),
    ];
    for (flags, expected) in cases {
        assert_refused(run(&site, &[&allow, flags].concat()), expected);
    }
    assert_refused(run(&site, &["--secret", SECRET]), "nothing may be reached");
    assert_refused(
        run(&site, &["--secret", SECRET, "--network", "none"]),
        "cannot be used with",
    );
    let mut command = site.offleash([
        "run",
        "--allow",
        "api.example.com",
        "--secret",
        SECRET,
        "--",
        "echo",
        VALUE,
    ]);
    command.env("REAL_KEY", VALUE);
    assert_refused(command, "the command contains its value");
}

#[test]
fn values_of_more_than_one_line_and_files_that_show_inside_are_refused() {
    let site = Site::new();
    let file = |name: &str, contents: &str| {
        let path = site.root().join(name);
        std::fs::write(&path, contents).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let secret = |path: &str| format!("API_KEY=file:{path}@api.example.com");
    for (contents, expected) in [
        ("one-line-here\nanother-line\n", "more than one line"),
        ("short\n", "fewer than 8 bytes"),
        ("with-a-\u{7}-bell", "control character"),
        (&"long".repeat(4000), "more than 8192 bytes"),
    ] {
        let path = file("key", contents);
        assert_refused(
            run(&site, &["--allow", "api.example.com", "--secret", &secret(&path)]),
            expected,
        );
    }
    site.write("key-of-the-workspace", VALUE);
    let inside = [
        "--allow",
        "api.example.com",
        "--secret",
        "API_KEY=file:key-of-the-workspace@api.example.com",
    ];
    assert_refused(run(&site, &inside), "can be read inside");
}

#[test]
fn a_file_of_the_home_directory_is_found_where_no_shell_puts_its_name() {
    let site = Site::new();
    std::fs::write(site.root().join("key"), VALUE).unwrap();
    let secret = |file: &str| format!("API_KEY=file:{file}@api.example.com");
    let (there, gone) = (secret("~/key"), secret("~/gone"));
    let output = run(&site, &["--allow", "api.example.com", "--secret", &there])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let path = site.root().join("gone").display().to_string();
    assert_refused(run(&site, &["--allow", "api.example.com", "--secret", &gone]), &path);
}

#[test]
fn a_policy_gives_secrets_unless_it_lies_in_the_workspace() {
    let site = Site::new();
    let policy = "[network]\nallow = [\"api.example.com\"]\n\n[[network.secret]]\nname = \"API_KEY\"\n\
                  source = \"env:REAL_KEY\"\nhosts = [\"api.example.com\"]\nplaces = [\"bearer\"]\n";
    let named = site.root().join("policy.toml");
    std::fs::write(&named, policy).unwrap();
    let answer = site.succeed(["explain", "env", "API_KEY", "--policy", named.to_str().unwrap()]);
    assert_eq!(
        answer,
        "API_KEY: set to a placeholder; the gateway puts the value of `env:REAL_KEY` into requests to \
         api.example.com\nrule: API_KEY=env:REAL_KEY@api.example.com#bearer\n"
    );
    site.write("offleash.toml", policy);
    assert_refused(run(&site, &[]), "network.secret");
}

#[test]
fn explain_says_where_a_secret_is_used() {
    let site = Site::new();
    let flags = ["--allow", "*.example.com", "--secret", SECRET];
    let explain = |words: &[&str]| site.succeed([words, &flags].concat());
    let answer = explain(&["explain", "connect", "api.example.com:443"]);
    assert!(
        answer.ends_with("secret: API_KEY, over TLS that is opened\n"),
        "{answer}"
    );
    let answer = explain(&["explain", "connect", "other.example.com:443"]);
    assert!(!answer.contains("secret"), "{answer}");
    let answer = explain(&["explain", "env", "REAL_KEY"]);
    assert!(answer.starts_with("REAL_KEY: not passed"), "{answer}");
    let help = stdout(&site.offleash(["run", "--help"]).output().unwrap());
    assert!(help.contains("--secret"), "{help}");
}
