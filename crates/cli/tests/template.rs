//! Templates: built in a sandbox, used below others, and removed.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "template/index.rs"]
mod index;
mod support;

use std::io::Read as _;
use std::path::Path;
use std::process::{Child, ChildStderr, Output, Stdio};

use rustix::process::Signal;
use support::processes::{eventually, read_until, signal, start, wait};
use support::{Site, stderr, stdout};

/// Builds template `tiny` with flags; it must succeed.
#[track_caller]
fn build(site: &Site, flags: &[&str]) -> String {
    let output = attempt(site, flags);
    assert!(output.status.success(), "{}", stderr(&output));
    stderr(&output)
}

fn attempt(site: &Site, flags: &[&str]) -> Output {
    let arguments = [&["template", "build", "--from-host", "--name", "tiny"], flags].concat();
    site.offleash(arguments).output().unwrap()
}

/// What a script printed in a sandbox of the template; it must succeed.
#[track_caller]
fn printed(site: &Site, flags: &[&str], script: &str) -> String {
    let output = site.run_shell(&[&["--template", "tiny", "--no-workspace"], flags].concat(), script);
    assert!(output.status.success(), "{}{}", stdout(&output), stderr(&output));
    stdout(&output)
}

/// What is in the directory of templates, locks left out.
fn kept(site: &Site) -> Vec<String> {
    let found = std::fs::read_dir(site.state().join("templates")).unwrap();
    let names = found.map(|found| found.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| !name.starts_with(".building-")).collect();
    names.sort();
    names
}

/// A build that goes on until it is ended, and its standard error.
fn begin(site: &Site) -> (Child, ChildStderr) {
    let mut command = site.offleash(["template", "build", "--name", "tiny", "-v", "--run"]);
    command.arg("echo begun; sleep 1000");
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut builder = start(&mut command);
    let mut errors = builder.stderr.take().unwrap();
    read_until(&mut errors, "  begun\n");
    (builder, errors)
}

#[test]
fn what_is_built_is_in_every_sandbox_of_it_and_in_no_other() {
    let site = Site::sharing_templates();
    let script = "set -e; echo built > /usr/local/made; echo more > /etc/made; mkdir /opt/new; echo x > /opt/new/x; \
                  rm /usr/bin/env; echo left > /tmp/left; id -un; echo $FLAVOUR > /opt/flavour";
    let said = build(&site, &["--run", script, "--env", "FLAVOUR=mint"]);
    assert!(said.contains("[1/2] command 1") && said.contains("is built"), "{said}");
    let look = "cat /usr/local/made /etc/made /opt/new/x /opt/flavour; echo $FLAVOUR; test -e /usr/bin/env || echo gone; \
                ls -A /tmp; stat -c '%U' /usr/local/made /opt/new/x /opt/new; id -un";
    let single = printed(&site, &["--user", "root"], "id -u") != "0\n";
    let owner = if single { "user\n" } else { "root\n" };
    let expected = format!("built\nmore\nx\nmint\nmint\ngone\n{}user\n", owner.repeat(3));
    assert_eq!(printed(&site, &[], look), expected);
    assert_eq!(printed(&site, &["-e", "FLAVOUR=plum"], "echo $FLAVOUR"), "plum\n");

    // A sandbox writes to its own layer, and the next one sees nothing of it.
    let change = "rm -r /opt/new /usr/local/made; echo changed > /etc/made; ls /opt/new 2>&1 | wc -l";
    assert_eq!(printed(&site, &["--user", "root"], change), "1\n");
    assert_eq!(printed(&site, &[], look), expected);
    let plain = site.run_shell(
        &["--root", "base", "--no-workspace"],
        "ls /opt /usr/local/made; test -e /usr/bin/env",
    );
    assert!(
        plain.status.success() && !stdout(&plain).contains("new"),
        "{}",
        stdout(&plain)
    );
    assert!(!Path::new("/usr/local/made").exists() && Path::new("/usr/bin/env").exists());
    let left: Vec<_> = std::fs::read_dir(site.state().join("scratch")).unwrap().collect();
    assert_eq!(left.len(), 0);
}

#[test]
fn templates_are_listed_shown_and_removed() {
    let site = Site::sharing_templates();
    build(&site, &["--run", "true", "--env", "A=b", "--quiet"]);
    let listed = site.succeed(["template", "ls"]);
    let row: Vec<&str> = listed.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(
        (row[0], row[3], &row[4..]),
        ("tiny", "ready", &["1", "command"][..]),
        "{listed}"
    );
    let shown: serde_json::Value = serde_json::from_str(&site.succeed(["template", "inspect", "tiny"])).unwrap();
    assert_eq!(shown[0]["recipe"]["run"][0], "true");
    assert_eq!(shown[0]["recipe"]["env"]["A"], "b");
    assert!(shown[0]["bytes"].as_u64().unwrap() > 0 && shown[0]["outdated"] == false);
    let document: serde_json::Value = serde_json::from_str(&site.succeed(["template", "ls", "--json"])).unwrap();
    assert_eq!(document, shown);
    assert_eq!(site.succeed(["template", "rm", "tiny"]), "tiny\n");
    assert_eq!(kept(&site), Vec::<String>::new());
    for command in [
        &["template", "rm", "tiny"][..],
        &["template", "inspect", "tiny"],
        &["run", "--template", "tiny", "--", "true"],
    ] {
        let said = site.refuse(command);
        assert!(said.contains("there is no template `tiny`"), "{said}");
    }
    let said = site.refuse(["template", "inspect", "../tiny"]);
    assert!(said.contains("not a template's name"), "{said}");
}

#[test]
fn tools_for_an_agent_host_do_not_begin_without_their_template() {
    let site = Site::sharing_templates();
    let output = site
        .offleash(["mcp", "--no-workspace", "--template", "tiny"])
        .output()
        .unwrap();
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(
        said.contains("error: there is no template `tiny`") && said.contains("\nhint: `offleash template ls`"),
        "{said}"
    );
    assert!(output.stdout.is_empty(), "{}", stdout(&output));

    build(&site, &["--run", "true"]);
    let begin = |flags: &[&str]| {
        let output = site
            .offleash([&["mcp", "--no-workspace", "--template", "tiny"], flags].concat())
            .output()
            .unwrap();
        assert!(
            output.status.success() && output.stdout.is_empty(),
            "{}",
            stderr(&output)
        );
        stderr(&output)
    };
    assert!(begin(&[]).contains("sandboxes have no network; `--allow HOST`"));
    assert_eq!(begin(&["--allow", "a.example"]), "");
}

#[test]
fn one_that_is_used_is_not_removed_and_may_be_replaced() {
    let site = Site::sharing_templates();
    build(&site, &["--run", "echo first > /opt/which"]);
    let mut command = site.offleash([
        "run",
        "--quiet",
        "--no-workspace",
        "--template",
        "tiny",
        "--",
        "sh",
        "-c",
    ]);
    command.arg("cat /opt/which; read line; cat /opt/which");
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut user = start(&mut command);
    let mut output = user.stdout.take().unwrap();
    assert_eq!(read_until(&mut output, "\n"), "first\n");
    let said = site.refuse(["template", "rm", "tiny"]);
    assert!(said.contains("is used by sandboxes"), "{said}");
    assert!(site.succeed(["template", "ls"]).contains(" used "));
    build(&site, &["--run", "echo second > /opt/which"]);
    assert_eq!(printed(&site, &[], "cat /opt/which"), "second\n");
    assert_eq!(kept(&site).len(), 2, "the replaced one is used");
    drop(user.stdin.take());
    assert_eq!(read_until(&mut output, "\n"), "first\n");
    assert!(wait(&mut user).success());
    eventually("removal of what was replaced", || {
        site.succeed(["template", "ls"]);
        (kept(&site) == ["tiny"]).then_some(())
    });
}

#[test]
fn a_build_that_fails_says_why_and_leaves_what_there_was() {
    let site = Site::sharing_templates();
    build(&site, &["--run", "echo first > /opt/which"]);
    let output = attempt(
        &site,
        &[
            "--run",
            "echo second > /opt/which",
            "--run",
            "echo some; echo words >&2; exit 3",
        ],
    );
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(125), "{said}");
    for part in [
        "  some\n",
        "  words\n",
        "error: command 2 failed: exit code 3",
        "\nhint: ",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert_eq!(kept(&site), ["tiny"]);
    assert_eq!(printed(&site, &[], "cat /opt/which"), "first\n");

    let fill = "head -c 20000000 /dev/zero > /opt/large; sleep 60";
    let said = stderr(&attempt(&site, &["--disk", "4M", "--run", fill]));
    assert!(
        said.contains("may take 4M on disk") && said.contains("--disk"),
        "{said}"
    );
    let said = stderr(&attempt(&site, &[]));
    assert!(said.contains("installs, runs and sets nothing"), "{said}");
    let reach = "python3 -c 'import socket; socket.create_connection((\"pypi.org\", 443), 5)'";
    let said = stderr(&attempt(&site, &["--run", reach]));
    assert!(
        said.contains("command 1 failed") && said.contains("it has no network, and `--allow HOST`"),
        "nothing is reached without packages: {said}"
    );
    assert_eq!(kept(&site), ["tiny"]);
}

#[test]
fn what_a_killed_builder_left_goes_with_the_next_command() {
    let site = Site::sharing_templates();
    let (mut builder, _errors) = begin(&site);
    let said = stderr(&attempt(&site, &["--run", "true"]));
    assert!(said.contains("is being built already"), "{said}");
    signal(&builder, Signal::KILL);
    wait(&mut builder);
    assert_eq!(kept(&site).len(), 1);
    eventually("removal of what was half built", || {
        site.succeed(["template", "ls"]);
        kept(&site).is_empty().then_some(())
    });
    build(&site, &["--run", "true"]);
    assert_eq!(kept(&site), ["tiny"]);
}

#[test]
fn a_signal_ends_a_build() {
    let site = Site::sharing_templates();
    let (mut builder, mut errors) = begin(&site);
    signal(&builder, Signal::TERM);
    let mut rest = String::new();
    errors.read_to_string(&mut rest).unwrap();
    assert_eq!(wait(&mut builder).code(), Some(125));
    assert!(rest.contains("the build was interrupted"), "{rest}");
    assert_eq!(kept(&site), Vec::<String>::new());
}

#[test]
fn a_recipe_says_the_same_as_flags() {
    let site = Site::sharing_templates();
    site.write(
        "offleash-template.toml",
        "name = \"tiny\"\nrun = [\"echo of the file > /opt/a\"]\nenv = { B = \"b\", C = \"c\" }\n",
    );
    let flags = ["--run", "echo of a flag > /opt/b", "--env", "C=d"];
    let arguments = [&["template", "build", "-f", "offleash-template.toml"][..], &flags].concat();
    let output = site.offleash(arguments).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(
        printed(&site, &[], "cat /opt/a /opt/b; echo $B $C"),
        "of the file\nof a flag\nb d\n"
    );
    site.write("offleash-template.toml", "name = \"tiny\"\npop = 1\n");
    let said = site.refuse(["template", "build", "-f", "offleash-template.toml"]);
    assert!(
        said.contains("offleash-template.toml:2:1: unknown field `pop`"),
        "{said}"
    );
    assert!(said.contains("docs/templates.md"), "{said}");
}

#[test]
fn what_is_optional_is_left_out_and_said_to_be_where_it_cannot_be_installed() {
    let site = Site::sharing_templates();
    let recipe = "apt = ['no-such-font']\nnpm = ['no-such-module']\nrun = ['echo made > /usr/local/made']\n";
    // Neither has anything to install from, or a superuser or a program is missing.
    let nowhere = [
        "--build-env",
        "APT_CONFIG=/nowhere",
        "--build-env",
        "npm_config_registry=http://127.0.0.1:9/",
    ];
    site.write("strict.toml", recipe);
    let refused = attempt(&site, &[&["--file", "strict.toml"], &nowhere[..]].concat());
    assert!(!refused.status.success(), "{}", stderr(&refused));
    site.write("lenient.toml", format!("{recipe}optional = ['apt', 'npm']\n"));
    let said = build(&site, &[&["--file", "lenient.toml"], &nowhere[..]].concat());
    for package in ["no-such-font", "no-such-module"] {
        assert!(said.contains(&format!("left out: {package}: ")), "{said}");
    }
    assert_eq!(printed(&site, &[], "cat /usr/local/made"), "made\n");
}

#[test]
fn a_host_that_has_changed_since_is_told_of() {
    let site = Site::sharing_templates();
    build(&site, &["--run", "echo x > /opt/x"]);
    let record = site.state().join("templates/tiny/template.json");
    let text = std::fs::read_to_string(&record).unwrap();
    let mut parsed: serde_json::Value = serde_json::from_str(&text).unwrap();
    parsed["base"] = "another".into();
    std::fs::write(&record, parsed.to_string()).unwrap();
    let arguments = ["run", "--no-workspace", "--template", "tiny", "--", "cat", "/opt/x"];
    let output = site.offleash(arguments).output().unwrap();
    assert_eq!(stdout(&output), "x\n");
    let said = stderr(&output);
    assert!(
        said.contains("have changed since template `tiny` was built") && said.contains("template build"),
        "{said}"
    );
    assert!(site.succeed(["template", "ls"]).contains("outdated"));
}

#[test]
fn rules_for_commands_hold_for_what_a_template_has() {
    let site = Site::sharing_templates();
    let script = "printf '#!/bin/sh\\necho tool\\n' > /usr/local/bin/tool; chmod 755 /usr/local/bin/tool; \
                  mkdir /opt/own; cp /usr/local/bin/tool /opt/own/other";
    build(&site, &["--run", script]);
    assert_eq!(printed(&site, &[], "tool; /opt/own/other"), "tool\ntool\n");
    let denied = printed(&site, &["--deny-command", "tool"], "tool 2>/dev/null || echo denied");
    assert_eq!(denied, "denied\n");
    let output = site
        .offleash([
            "run",
            "-q",
            "--no-workspace",
            "--template",
            "tiny",
            "--allow-command",
            "tool",
            "--",
            "tool",
        ])
        .output()
        .unwrap();
    assert_eq!(stdout(&output), "tool\n", "{}", stderr(&output));
}

#[test]
fn python_is_the_template_s_where_there_is_one() {
    let site = Site::sharing_templates();
    let python = |arguments: &[&str]| {
        let output = site
            .offleash([&["run", "--python"], arguments].concat())
            .output()
            .unwrap();
        (stdout(&output), stderr(&output))
    };
    let (out, said) = python(&["-c", "import sys; print(sys.argv)", "x"]);
    assert_eq!(out, "['-c', 'x']\n", "{said}");
    assert!(
        said.contains("offleash template build --name code-interpreter"),
        "{said}"
    );
    assert_eq!(python(&["-q", "-c", "pass"]).1, "");
    let module = "set -e; place=$(python3 -c 'import site; print(site.getsitepackages()[0])'); mkdir -p $place; \
                  echo 'WORD = \"of the template\"' > $place/offleash_word.py";
    let name = ["template", "build", "-q", "--name", "code-interpreter", "--run"];
    site.succeed([&name[..], &[module]].concat());
    let word = "import offleash_word; print(offleash_word.WORD)";
    let (out, said) = python(&["-c", word]);
    assert_eq!((out.as_str(), said.as_str()), ("of the template\n", ""));
    site.write("word.py", word);
    assert_eq!(python(&["word.py"]).0, "of the template\n");
    assert_eq!(
        python(&["--template", "code-interpreter-v1", "-c", word]).0,
        "of the template\n"
    );
    let (_, said) = python(&["--root", "system", "-c", word]);
    assert!(said.contains("No module named 'offleash_word'"), "{said}");
    let said = site.refuse([
        "run",
        "--template",
        "code-interpreter",
        "--root",
        "system",
        "--",
        "true",
    ]);
    assert!(said.contains("contradict"), "{said}");
}
