//! Templates that are built from images and Dockerfiles: each step once, and nothing of one that failed.

use std::fs;
use std::path::Path;
use std::process::{Output, Stdio};

use rustix::process::Signal;

use super::support::processes::{eventually, read_until, signal, start, wait};
use super::support::{Site, is_root, stderr, stdout};
use super::with_busybox;

/// A line that no two runs print alike.
const RANDOM: &str = "cat /proc/sys/kernel/random/uuid";

/// Writes a file of the context `context`.
fn write(site: &Site, path: &str, text: &str) {
    let path = site.root().join("context").join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn attempt(site: &Site, name: &str, flags: &[&str]) -> Output {
    let context = site.root().join("context");
    let words = ["template", "build", "--name", name];
    let arguments = [&words, flags, &[context.to_str().unwrap()]].concat();
    site.offleash(arguments).output().unwrap()
}

/// Builds a template of the Dockerfile in the context; answers what was said.
#[track_caller]
fn build(site: &Site, name: &str, flags: &[&str]) -> String {
    let output = attempt(site, name, flags);
    assert!(output.status.success(), "{}", stderr(&output));
    stderr(&output)
}

/// What is said of a build that fails.
#[track_caller]
fn fail(site: &Site, dockerfile: &str) -> String {
    write(site, "Dockerfile", dockerfile);
    let output = attempt(site, "failing", &[]);
    assert_eq!(output.status.code(), Some(125), "{}", stderr(&output));
    stderr(&output)
}

#[track_caller]
fn printed(site: &Site, name: &str, command: &[&str]) -> String {
    let words = ["run", "-q", "--template", name];
    let separator: &[&str] = if command.is_empty() { &[] } else { &["--"] };
    let output = site.offleash([&words, separator, command].concat()).output().unwrap();
    assert!(output.status.success(), "{}{}", stdout(&output), stderr(&output));
    stdout(&output)
}

/// How many names are in a directory of the image store.
fn count(site: &Site, directory: &str) -> usize {
    let found = fs::read_dir(site.state().join("images").join(directory)).unwrap();
    found
        .filter(|entry| !entry.as_ref().unwrap().file_name().to_string_lossy().starts_with('.'))
        .count()
}

#[test]
fn a_dockerfile_becomes_a_template_with_its_files_user_directory_and_command() {
    let Some(site) = with_busybox() else { return };
    write(&site, "src/kept.txt", "kept\n");
    write(&site, "src/left.log", "left out\n");
    write(&site, ".dockerignore", "**/*.log\n");
    write(
        &site,
        "Dockerfile",
        "ARG BASE=localhost/box:t\nFROM $BASE AS builder\nWORKDIR /made\nCOPY src/ .\nARG WHO=nobody\n\
         RUN cat kept.txt > built && echo \"$WHO\" >> built && rm /etc/replaced\n\
         FROM localhost/box:t\nENV GREETING=\"good day\" PATH=/opt/bin:$PATH\nRUN echo 'other:x:77:78::/:/bin/sh' >> /etc/passwd\n\
         COPY --from=builder --chown=app --chmod=750 /made /opt/data\nCOPY <<END /opt/conf\n$GREETING\nEND\n\
         RUN <<END\nmkdir -p /opt/bin\ncat > /opt/bin/tool <<'INNER'\n#!/bin/sh\necho tool \"$@\" \"$GREETING\" $(pwd)\nINNER\n\
         chmod 755 /opt/bin/tool\nEND\nWORKDIR /work\nUSER app\nRUN touch /tmp/mine\nENTRYPOINT [\"tool\"]\nCMD [\"default\"]\nEXPOSE 80\n",
    );
    // The image has no `chmod` of its own.
    let dockerfile = fs::read_to_string(site.root().join("context/Dockerfile")).unwrap();
    write(
        &site,
        "Dockerfile",
        &dockerfile.replace("chmod 755", "/bin/busybox chmod 755"),
    );
    let said = build(&site, "made", &["--build-arg", "WHO=somebody"]);
    assert!(said.contains("`EXPOSE` changes nothing here"), "{said}");
    assert_eq!(printed(&site, "made", &[]), "tool default good day /work\n");
    let look = "cat /opt/data/built /opt/conf /etc/replaced; ls /opt/data; whoami; ls /tmp/mine; stat -c '%a %U' /opt/data/built; grep -c other /etc/passwd";
    assert_eq!(
        printed(&site, "made", &["sh", "-c", look]),
        "kept\nsomebody\ngood day\nnew\nbuilt\nkept.txt\napp\n/tmp/mine\n750 app\n1\n"
    );
    if is_root() {
        let owners = "stat -c %u:%g /opt/data/built /tmp/mine /opt/conf";
        assert_eq!(
            printed(&site, "made", &["sh", "-c", owners]),
            "1234:1234\n1234:1234\n0:0\n"
        );
        let other = site.offleash(["run", "-q", "--template", "made", "--user", "other", "--", "id", "-u"]);
        assert_eq!(stdout(&{ other }.output().unwrap()), "77\n");
    }
    let shown = site.succeed(["template", "inspect", "made"]);
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown[0]["image"]["from"], "localhost/box:t");
    assert_eq!(shown[0]["outdated"], false);
    let record = site
        .offleash(["run", "--template", "made", "--json", "--", "true"])
        .output()
        .unwrap();
    let record = super::support::record_of(&record);
    assert_eq!(record["image"]["name"], "template://made");
    assert_eq!(record["image"]["digest"], shown[0]["image"]["digest"]);
}

#[test]
fn a_step_is_carried_out_again_when_something_that_it_depends_on_changes() {
    let Some(site) = with_busybox() else { return };
    let text = format!(
        "FROM localhost/box:t\nRUN {RANDOM} > /one\nCOPY file /file\nARG A=1\nRUN {RANDOM} > /two\nENV B=1\nRUN {RANDOM} > /three\n"
    );
    write(&site, "Dockerfile", &text);
    write(&site, "file", "first");
    let made = |flags: &[&str]| {
        let said = build(&site, "cached", flags);
        let lines = printed(&site, "cached", &["cat", "/one", "/two", "/three", "/file"]);
        let lines: Vec<String> = lines.lines().map(str::to_owned).collect();
        (said.matches("(unchanged)").count(), lines)
    };
    let same = |one: &[String], other: &[String]| -> Vec<bool> {
        one.iter().zip(other).map(|(one, other)| one == other).collect()
    };
    let (unchanged, first) = made(&[]);
    assert_eq!(unchanged, 0);
    let build_of = || {
        let shown = site.succeed(["template", "inspect", "cached"]);
        serde_json::from_str::<serde_json::Value>(&shown).unwrap()[0]["build"].clone()
    };
    let before = build_of();
    let (unchanged, again) = made(&[]);
    assert_eq!((unchanged, &again), (4, &first));
    assert_eq!(build_of(), before, "what lies over it goes on");
    assert_eq!(count(&site, "kept"), 4 + 1, "steps, and the template");

    let (_, with_argument) = made(&["--build-arg", "A=2"]);
    assert_eq!(same(&first, &with_argument), [true, false, false, true]);
    write(&site, "Dockerfile", &text.replace("B=1", "B=2"));
    let (_, with_variable) = made(&[]);
    assert_eq!(same(&first, &with_variable), [true, true, false, true]);
    write(&site, "file", "other");
    let (_, with_file) = made(&[]);
    assert_eq!(same(&first, &with_file), [true, false, false, false]);
    let (unchanged, anew) = made(&["--no-cache"]);
    assert_eq!(
        (unchanged, same(&with_file, &anew)),
        (0, vec![false, false, false, true])
    );
}

#[test]
fn a_failed_step_says_why_and_keeps_nothing_of_itself() {
    let Some(site) = with_busybox() else { return };
    write(&site, "Dockerfile", "FROM localhost/box:t\nRUN echo old > /opt/made\n");
    build(&site, "failing", &[]);
    let said = fail(
        &site,
        "FROM localhost/box:t\nRUN echo one > /one\nRUN echo left > /left; echo the reason >&2; exit 7\n",
    );
    assert!(
        said.contains("the reason\n") && said.contains("failed: exit code 7"),
        "{said}"
    );
    assert_eq!(
        printed(&site, "failing", &["cat", "/opt/made"]),
        "old\n",
        "the one from before is as it was"
    );
    let left = fs::read_dir(site.state().join("templates")).unwrap();
    let left: Vec<String> = left
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(left.iter().all(|name| !name.starts_with(".new-")), "{left:?}");
    write(
        &site,
        "Dockerfile",
        "FROM localhost/box:t\nRUN echo one > /one\nRUN ls / > /seen\n",
    );
    let said = build(&site, "failing", &[]);
    assert!(said.contains("RUN echo one > /one (unchanged)"), "{said}");
    let seen = printed(&site, "failing", &["cat", "/seen"]);
    assert!(seen.contains("one\n") && !seen.contains("left\n"), "{seen}");
}

#[test]
fn what_cannot_be_built_is_refused_with_a_hint() {
    let Some(site) = with_busybox() else { return };
    for (dockerfile, told) in [
        (
            "FROM localhost/box:t\nADD https://example.test/x /x\n",
            "`ADD` of an address is not supported",
        ),
        ("FROM localhost/box:t\n\nNONSENSE\n", "line 3 of the Dockerfile"),
        ("FROM localhost/box:t\nCOPY none /x\n", "there is no `none`"),
        (
            "FROM localhost/box:t\nCOPY ../../etc/passwd /x\n",
            "there is no `../../etc/passwd`",
        ),
        (
            "FROM localhost/box:t\nUSER nobody-here\n",
            "the image has no user `nobody-here`",
        ),
        (
            "FROM localhost/box:t\nUSER nobody-here\nRUN true\n",
            "the image has no user `nobody-here`",
        ),
        ("FROM localhost/box:t\nRUN [\"/none\"]\n", "there is no program `/none`"),
        ("FROM template://none\n", "there is no template `none`"),
        ("FROM scratch\nRUN true\n", "there is no program `/bin/sh`"),
    ] {
        let said = fail(&site, dockerfile);
        assert!(said.contains(told) && said.contains("hint: "), "{dockerfile}: {said}");
    }
    let never = "FROM localhost/none:t\n";
    write(&site, "Dockerfile", never);
    let output = attempt(&site, "failing", &["--pull", "never"]);
    assert!(
        stderr(&output).contains("there is no image `localhost/none:t` here"),
        "{}",
        stderr(&output)
    );
    let mixed = attempt(&site, "failing", &["--pip", "x"]);
    assert!(stderr(&mixed).contains("cannot be used with"), "{}", stderr(&mixed));
}

#[test]
fn stages_scratch_archives_and_templates_are_built_upon() {
    let Some(site) = with_busybox() else { return };
    write(&site, "tree/inner", "inner\n");
    let archive = std::process::Command::new("tar")
        .arg("-C")
        .arg(site.root().join("context/tree"))
        .arg("-czf")
        .arg(site.root().join("context/tree.tar.gz"))
        .arg("inner")
        .status();
    assert!(archive.unwrap().success());
    write(
        &site,
        "Dockerfile",
        "FROM localhost/box:t AS tools\nFROM scratch AS small\nCOPY --from=tools /bin/busybox /bin/sh\nADD tree.tar.gz /data/\n\
         COPY tree.tar.gz /data/\nRUN [\"/bin/sh\", \"-c\", \"read line < /data/inner\"]\nFROM nowhere/at-all\nRUN never\n",
    );
    let said = build(&site, "small", &["--target", "small"]);
    assert!(!said.contains("never"), "{said}");
    // And one of an image as it is.
    site.succeed(["template", "build", "-q", "--from", "localhost/box:t", "--name", "same"]);
    assert_eq!(printed(&site, "same", &["cat", "/etc/replaced"]), "new\n");
    let script = "while read line; do echo $line; done < /data/inner; test -s /data/tree.tar.gz && echo whole";
    assert_eq!(printed(&site, "small", &["/bin/sh", "-c", script]), "inner\nwhole\n");

    site.succeed([
        "template",
        "build",
        "-q",
        "--name",
        "recipe",
        "--from",
        "localhost/box:t",
        "--run",
        "echo x > /opt/x",
        "-e",
        "K=v",
    ]);
    site.succeed([
        "template",
        "build",
        "-q",
        "--name",
        "above",
        "--from",
        "template://recipe",
        "--run",
        "echo $K > /opt/y",
    ]);
    assert_eq!(printed(&site, "above", &["cat", "/opt/x", "/opt/y"]), "x\nv\n");
    write(
        &site,
        "Dockerfile",
        "FROM template://above\nCOPY --from=template://small /data/inner /opt/z\n",
    );
    build(&site, "third", &[]);
    assert_eq!(printed(&site, "third", &["cat", "/opt/y", "/opt/z"]), "v\ninner\n");
}

#[test]
fn what_a_template_consists_of_stays_and_the_rest_goes() {
    let Some(site) = with_busybox() else { return };
    write(
        &site,
        "Dockerfile",
        "FROM localhost/box:t AS one\nRUN echo 1 > /one\nFROM localhost/box:t\nCOPY --from=one /one /two\nRUN echo 3 > /three\n",
    );
    build(&site, "made", &[]);
    assert_eq!(site.succeed(["image", "rm", "localhost/box:t"]), "localhost/box:t\n");
    site.succeed(["template", "prune"]);
    assert_eq!(
        count(&site, "kept"),
        2 + 1,
        "the steps of the last stage, and the template"
    );
    site.succeed(["template", "prune", "--all"]);
    assert_eq!(count(&site, "kept"), 1);
    assert_eq!(printed(&site, "made", &["cat", "/two", "/three"]), "1\n3\n");
    let mut command = site.offleash([
        "run",
        "-q",
        "--template",
        "made",
        "--",
        "sh",
        "-c",
        "echo begun; sleep 1000",
    ]);
    let mut child = start(command.stdout(Stdio::piped()).stderr(Stdio::null()));
    read_until(&mut child.stdout.take().unwrap(), "begun\n");
    let said = site.refuse(["template", "rm", "made"]);
    assert!(said.contains("is used by sandboxes"), "{said}");
    signal(&child, Signal::TERM);
    wait(&mut child);
    site.succeed(["template", "rm", "made"]);
    site.succeed(["template", "prune"]);
    for directory in ["kept", "blobs", "partial", "layers/flat", "layers/owned"] {
        assert_eq!(count(&site, directory), 0, "{directory}");
    }
}

#[test]
fn a_killed_build_leaves_nothing_half_and_two_at_once_do_not_meet() {
    let Some(site) = with_busybox() else { return };
    write(
        &site,
        "Dockerfile",
        "FROM localhost/box:t\nRUN echo 1 > /one\nRUN echo half > /half; echo begun; sleep 1000\n",
    );
    let context = site.root().join("context");
    let begin = |name: &str| {
        let mut command = site.offleash(["template", "build", "-v", "--name", name]);
        start(command.arg(&context).stdout(Stdio::null()).stderr(Stdio::piped()))
    };
    let mut killed = begin("killed");
    read_until(&mut killed.stderr.take().unwrap(), "  begun\n");
    signal(&killed, Signal::KILL);
    wait(&mut killed);
    write(
        &site,
        "Dockerfile",
        &format!("FROM localhost/box:t\nRUN echo 1 > /one\nRUN {RANDOM} > /two; ls / > /three\n"),
    );
    let mut both = [begin("first"), begin("second")];
    for child in &mut both {
        let mut errors = child.stderr.take().unwrap();
        let mut said = String::new();
        std::io::Read::read_to_string(&mut errors, &mut said).unwrap();
        assert!(wait(child).success(), "{said}");
    }
    for name in ["first", "second"] {
        let seen = printed(&site, name, &["cat", "/one", "/three"]);
        assert!(seen.starts_with("1\n") && !seen.contains("half"), "{seen}");
    }
    assert!(!site.state().join("templates/killed").exists());
    assert!(!Path::new("/half").exists());
}

#[test]
fn sandboxes_of_a_server_are_made_of_such_templates() {
    let Some(site) = with_busybox() else { return };
    write(
        &site,
        "Dockerfile",
        "FROM localhost/box:t\nENV GREETING=hello\nRUN echo made > /opt/made\nUSER app\nWORKDIR /tmp\n",
    );
    build(&site, "served", &["-q"]);
    let mut serve = site.offleash(["serve", "--listen", "127.0.0.1:0"]);
    let mut server = start(serve.stdout(Stdio::null()).stderr(Stdio::null()));
    eventually("the server's socket", || {
        site.state().join("api.sock").exists().then_some(())
    });
    let id = site.succeed(["create", "--template", "served"]);
    let id = id.trim();
    let script = "whoami; echo $GREETING; cat /opt/made; echo mine > /tmp/mine";
    let seen = site.succeed(["exec", id, "--", "sh", "-c", script]);
    assert_eq!(seen, "app\nhello\nmade\n");
    assert!(
        site.refuse(["template", "rm", "served"])
            .contains("is used by sandboxes")
    );
    site.succeed(["pause", id]);
    site.succeed(["resume", id]);
    assert_eq!(site.succeed(["exec", id, "--", "cat", "/tmp/mine"]), "mine\n");
    site.succeed(["kill", id]);
    // What waits for a next create is of the build before, and ends.
    write(&site, "Dockerfile", "FROM localhost/box:t\nRUN echo anew > /opt/made\n");
    build(&site, "served", &["-q"]);
    let id = site.succeed(["create", "--template", "served"]);
    assert_eq!(site.succeed(["exec", id.trim(), "--", "cat", "/opt/made"]), "anew\n");
    site.succeed(["kill", id.trim()]);
    signal(&server, Signal::TERM);
    wait(&mut server);
}

#[test]
fn a_dockerfile_that_is_a_pipe_is_refused_and_not_waited_for() {
    let site = Site::new();
    write(&site, "file", "");
    let pipe = site.root().join("pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    let output = attempt(&site, "piped", &["-f", pipe.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).contains("is not a regular file"), "{}", stderr(&output));
    write(&site, "Dockerfile", "");
    let output = attempt(&site, "empty", &[]);
    assert!(
        stderr(&output).contains("the Dockerfile") && !stderr(&output).contains("line 0"),
        "{}",
        stderr(&output)
    );
}
