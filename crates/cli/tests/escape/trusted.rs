//! Other names of what the host runs later: F7, by links and by what configuration names.

use std::os::unix::fs::symlink;

use super::arena::{Attack, can_attack};
use super::support::{Site, stderr, stdout};

/// Files to which names lead that the host runs, and that have no such name themselves.
const LED_TO: [&str; 9] = [
    "scripts/hook",
    "dot/shell",
    "deep/two/hook",
    ".githooks/pre-commit",
    "included/post-merge",
    "tools/clean",
    "tools/npm-shell",
    "real/hooks/post-checkout",
    "shared/tasks.json",
];

/// A workspace in which those names lead there.
fn site_that_trusts() -> Site {
    let site = Site::new();
    site.write(
        ".git/config",
        "[core]\nhooksPath = .githooks\n[filter \"x\"]\nclean = tools/clean %f\n[include]\npath = ../git.inc\n",
    );
    site.write("git.inc", "[CORE]\nHooksPath = included\n");
    site.write("sub/.git", "gitdir: ../real\n");
    site.write(".npmrc", "script-shell=./tools/npm-shell\n");
    for directory in [
        "scripts",
        "dot",
        "deep/two",
        ".githooks",
        "tools",
        "real/hooks",
        "shared",
        ".git/hooks",
    ] {
        std::fs::create_dir_all(site.workspace().join(directory)).unwrap();
    }
    site.write("scripts/hook", "original\n");
    for (target, link) in [
        ("../../scripts/hook", ".git/hooks/pre-commit"),
        ("dot/shell", ".bashrc"),
        ("one", ".husky"),
        ("deep/two", "one"),
        ("../shared", "sub/.vscode"),
    ] {
        symlink(target, site.workspace().join(link)).unwrap();
    }
    site
}

#[test]
fn f7_what_names_lead_to_that_the_host_executes_is_not_written_back() {
    if !can_attack() {
        return;
    }
    let site = site_that_trusts();
    let program = r##"
for name in arguments:
    os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
    attempt(name, write, name)
write("ordinary")
"##;
    let mut attack = Attack::new(&site, program).flags(["-w", ".:rw"]);
    for name in LED_TO {
        attack = attack.argument(name);
    }
    let findings = attack.inside();
    let present = |name: &str| std::fs::read_to_string(site.workspace().join(name)).ok();
    assert_eq!(present("ordinary").as_deref(), Some("pwned"), "{:#}", findings.record);
    let protected = findings.record["changes"]["protected"].to_string();
    for name in LED_TO {
        assert_ne!(present(name).as_deref(), Some("pwned"), "{name}");
        assert!(
            protected.contains(name),
            "the record does not tell of `{name}`: {protected}"
        );
    }
    attack.outside().prove(&LED_TO);
}

/// The link, or the configuration, is made by the code inside, before, after or in place of what it leads to.
#[test]
fn f7_what_the_sandbox_itself_makes_a_name_lead_to_is_not_written_back() {
    let site = Site::new();
    site.write(".git/config", "[core]\n");
    site.write("dot/shell", "original\n");
    let script = "echo evil > dot/shell; ln -s dot/shell .bashrc; \
                  ln -s two one; ln -s one .husky; mkdir two; echo evil > two/pre-commit; \
                  printf '[core]\\nhooksPath = evil\\n' > .git/config; mkdir evil; echo evil > evil/pre-commit; \
                  mkdir -p .GIT/hooks; ln -s ../../other .GIT/hooks/x; echo evil > other; echo fine > ordinary && echo done";
    for attempt in 0..2 {
        let output = site.run_shell(&["-w", ".:rw"], script);
        // What is there already is no change any more.
        let answer = (output.status.code(), stdout(&output));
        assert_eq!(answer, (Some(1), "done\n".to_owned()), "{attempt}: {}", stderr(&output));
        let names = std::fs::read_dir(site.workspace()).unwrap();
        let mut names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, [".GIT", ".git", "dot", "ordinary"], "{}", stderr(&output));
        let shell = std::fs::read_to_string(site.workspace().join("dot/shell")).unwrap();
        assert_eq!(shell, "original\n");
    }
}

/// What was harmless when it was written back becomes trusted by a name that leads there later, also by the owner's hand.
#[test]
pub(crate) fn f7_what_becomes_trusted_after_the_run_is_not_applied() {
    let site = Site::new();
    site.write("scripts/hook", "original\n");
    let record = site.record(&[], "echo evil > scripts/hook; echo fine > ordinary");
    let run = super::support::id_of(&record);
    std::fs::create_dir_all(site.workspace().join(".git/hooks")).unwrap();
    symlink("../../scripts/hook", site.workspace().join(".git/hooks/pre-commit")).unwrap();
    let summary = site.succeed(["diff", "--summary", &run]);
    assert!(
        summary.contains("M scripts/hook  (protected: `.git/hooks/pre-commit` leads here: protected name .git/hooks"),
        "{summary}"
    );
    let output = site.offleash(["apply", &run]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let hook = site.workspace().join("scripts/hook");
    assert_eq!(std::fs::read_to_string(&hook).unwrap(), "original\n");
    assert!(site.workspace().join("ordinary").exists());
    site.succeed(["apply", &run, "scripts/hook"]);
    assert_eq!(std::fs::read_to_string(&hook).unwrap(), "evil\n");
}

/// Links to what is read-only of the host are applied; what leads on from there is not what the sandbox saw.
#[test]
fn f1_links_lead_nowhere_that_the_sandbox_did_not_see() {
    let site = Site::new();
    let (seen, secret) = (site.root().join("seen"), site.root().join("secret"));
    for directory in [&seen, &secret] {
        std::fs::create_dir(directory).unwrap();
        std::fs::write(directory.join("key"), "canary").unwrap();
    }
    std::fs::create_dir(seen.join("hidden")).unwrap();
    symlink(&secret, seen.join("door")).unwrap();
    let (seen, secret) = (seen.display(), secret.display());
    let script = format!(
        "ln -s {seen}/key good; ln -s {seen}/door/key a; ln -s {seen}/hidden b; ln -s {secret}/key c; \
         ln -s {seen}/../secret/key d; ln -s e2/passwd e; ln -s /etc e2; ln -s /usr/../etc/passwd f; ln -s ../secret/key g; \
         ln -s /proc/self/root/etc/passwd h; ln -s /dev/null i"
    );
    let flags = [
        "-w",
        ".:rw",
        "--read",
        &seen.to_string(),
        "--deny",
        &format!("{seen}/hidden"),
    ];
    let output = site.run_shell(&flags, &script);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let names = std::fs::read_dir(site.workspace()).unwrap();
    let mut names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    // `e` leads to a name in the workspace that is not there.
    assert_eq!(names, ["e", "good"], "{}", stderr(&output));
    assert!(!site.workspace().join("e").exists());
}
