use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::StoredRun;
use crate::testing::{TestScratch, all, applied, chmod, is_root, named, upper, write};

/// The changes that are held back, and why.
fn held_back(run: &StoredRun) -> Vec<(String, String)> {
    let changes = run.changes().unwrap();
    let held = changes.into_iter().filter_map(|change| {
        let path = change.path.to_str().unwrap().to_owned();
        Some((path, change.protected?))
    });
    held.collect()
}

fn paths(held: &[(String, String)]) -> Vec<&str> {
    held.iter().map(|(path, _)| path.as_str()).collect()
}

/// A run that wrote these files in a workspace that was furnished like this.
fn wrote(scratch: &TestScratch, files: &[&str]) -> StoredRun {
    scratch.ran(|upper| {
        for file in files {
            write(upper.join(file), "changed");
        }
    })
}

fn link(target: &str, path: impl AsRef<Path>) {
    fs::create_dir_all(path.as_ref().parent().unwrap()).unwrap();
    symlink(target, path).unwrap();
}

#[test]
fn f7_what_a_protected_name_leads_to_is_protected() {
    let scratch = TestScratch::new();
    link("../../scripts/h", scratch.host(".git/hooks/pre-commit"));
    link("dot/sh", scratch.host(".bashrc"));
    link("dot/config", scratch.host(".config"));
    link("../shared", scratch.host("sub/.vscode"));
    link(
        &format!("{}/absolute", scratch.workspace.display()),
        scratch.host(".envrc"),
    );
    link("../one", scratch.host("chain/.husky"));
    link("two", scratch.host("one"));
    for path in ["scripts/h", "dot/sh", "dot/config/x", "shared/a", "absolute", "two/h"] {
        write(scratch.host(path), "as it was");
    }
    link("../far/away", scratch.host("two/linked"));
    let mut run = wrote(
        &scratch,
        &[
            "absolute",
            "dot/config/fish/x",
            "dot/config/x",
            "dot/sh",
            "far/away",
            "far/other",
            "scripts/h",
            "scripts/other",
            "shared/a",
            "two/h",
        ],
    );
    let held = held_back(&run);
    assert_eq!(
        paths(&held),
        [
            "absolute",
            "dot/config/fish",
            "dot/config/fish/x",
            "dot/sh",
            "far/away",
            "scripts/h",
            "shared/a",
            "two/h"
        ]
    );
    let why = |path: &str| held.iter().find(|(held, _)| held == path).unwrap().1.as_str();
    assert_eq!(
        why("scripts/h"),
        "`.git/hooks/pre-commit` leads here: protected name .git/hooks: git runs hooks"
    );
    assert!(why("shared/a").starts_with("`sub/.vscode/a` leads here: "), "{held:?}");
    let report = run.apply(&all()).unwrap();
    assert_eq!(
        applied(&report),
        [
            "Modified dot/config/x",
            "Added far",
            "Added far/other",
            "Added scripts/other"
        ]
    );
    let report = run.apply(&named(&["scripts/h", "dot/config/fish", "two"])).unwrap();
    assert_eq!(
        applied(&report),
        [
            "Added dot/config/fish",
            "Added dot/config/fish/x",
            "Modified scripts/h",
            "Modified two/h"
        ]
    );
}

#[test]
fn f7_what_the_run_makes_a_protected_name_lead_to_is_protected() {
    let scratch = TestScratch::new();
    write(scratch.host(".git/config"), "[core]\nbare = false\n");
    write(scratch.host("dot/sh"), "as it was");
    let mut run = scratch.ran(|upper| {
        link("dot/sh", upper.join(".bashrc"));
        write(upper.join("dot/sh"), "changed");
        link("../a", upper.join(".git/hooks"));
        link("b", upper.join("a"));
        write(upper.join("b/pre-commit"), "x");
        write(upper.join(".git/config"), "[core]\nhooksPath = evil\n");
        write(upper.join("evil/post-checkout"), "x");
        write(upper.join("fine"), "x");
    });
    let held = held_back(&run);
    assert_eq!(
        paths(&held),
        [
            ".bashrc",
            ".git/config",
            ".git/hooks",
            "a",
            "b",
            "b/pre-commit",
            "dot/sh",
            "evil",
            "evil/post-checkout"
        ]
    );
    assert_eq!(applied(&run.apply(&all()).unwrap()), ["Added fine"]);
    // The name alone is applied first; what it leads to still is not.
    assert_eq!(applied(&run.apply(&named(&[".bashrc"])).unwrap()), ["Added .bashrc"]);
    assert_eq!(applied(&run.apply(&all()).unwrap()), [""; 0]);
    assert_eq!(fs::read_to_string(scratch.host("dot/sh")).unwrap(), "as it was");
}

/// Either of both forms of each may be on the host when something is named.
#[test]
fn f7_what_old_and_new_forms_lead_to_together_is_protected() {
    let scratch = TestScratch::new();
    write(scratch.host(".git/config"), "[core]\n");
    write(scratch.host("shared"), "[core]\nhooksPath = evil\n");
    let mut run = scratch.ran(|upper| {
        write(upper.join(".git/config"), "[include]\npath = ../shared\n");
        write(upper.join("shared"), "[core]\nhooksPath = harmless\n");
        write(upper.join("evil/pre-commit"), "x");
    });
    let report = run.apply(&named(&[".git/config"])).unwrap();
    assert_eq!(applied(&report), ["Modified .git/config"]);
}

#[test]
fn f7_directories_and_programs_that_git_configuration_names_are_protected() {
    for (config, file, held) in [
        ("[core]\nhooksPath = .githooks", ".githooks/pre-commit", true),
        ("[CORE]\nHOOKSPATH = .GitHooks", ".githooks/pre-commit", true),
        ("[core]\nhooksPath = ./x/../.githooks/", ".githooks/pre-commit", true),
        ("[core]\nhooksPath = .", "pre-commit", true),
        ("[core]\nhooksPath = .", "ordinary", false),
        ("[core]\nhooksPath = /elsewhere", "elsewhere/x", false),
        ("[core]\nhooksPath = ../../outside", "outside/x", false),
        ("[core]\nhooksPath =", "pre-commit", false),
        ("[core]\nhooksPath", "pre-commit", false),
        ("[core]\nhooksPath = \"a\\nb\"", "a\nb/pre-commit", true),
        ("[include]\npath = ../git.inc", "git.inc", true),
        ("[includeIf \"gitdir:/never\"]\npath = ../git.inc", "git.inc", true),
        ("[include]\npath = ../host.inc", "from-include/x", true),
        ("[include]\npath = config", "ordinary", false),
        ("[filter \"f\"]\nclean = tools/clean %f", "tools/clean", true),
        ("[filter \"f\"]\nprocess = python3 'tools/p.py' --x", "tools/p.py", true),
        (
            "[core]\nfsmonitor = \"$(git rev-parse --show-toplevel)/tools/watch\"",
            "tools/watch",
            true,
        ),
        ("[core]\neditor = ed", "ed", true),
        ("[core]\npager = less", "src/less", false),
        ("[credential]\nhelper = !./helper", "helper", true),
        ("[core]\nsshCommand = ssh -F ssh/config", "ssh/config", true),
        ("[diff \"x\"]\ntextconv = conv/x", "conv/x", true),
        ("[merge \"x\"]\ndriver = drive %O", "drive", true),
        ("[alias]\nx = !sh -c 'cd $HOME && scripts/x'", "scripts/x", true),
        ("[alias]\nx = log src", "src", false),
        ("[init]\ntemplateDir = tpl", "tpl/hooks/x", true),
        ("[core]\nworktree = ../inner\nhooksPath = hooks", "inner/hooks/x", true),
        ("[remote \"o\"]\nurl = ordinary", "ordinary", false),
    ] {
        let scratch = TestScratch::new();
        write(scratch.host(".git/config"), config);
        write(scratch.host("host.inc"), "[core]\nhooksPath = from-include");
        let run = wrote(&scratch, &[file]);
        let held_back = held_back(&run);
        let is_held = held_back.iter().any(|(path, _)| path == file);
        assert_eq!(is_held, held, "{config}: {held_back:?}");
        if held {
            assert!(held_back[0].1.contains(" leads here"), "{held_back:?}");
        }
    }
}

#[test]
fn f7_repositories_that_lie_elsewhere_are_protected_as_if_they_were_here() {
    let scratch = TestScratch::new();
    write(scratch.host("sub/.git"), "gitdir: ../real\n");
    write(scratch.host("real/config"), "[core]\nhooksPath = own\n");
    write(scratch.host("tree/.git"), "gitdir: ../main/.git/worktrees/tree\n");
    write(
        scratch.host("main/.git/worktrees/tree/commondir"),
        "../../../../common\n",
    );
    write(scratch.host("common/config"), "[core]\nhooksPath = shared\n");
    link("../../mods", scratch.host("main/.git/modules"));
    let run = wrote(
        &scratch,
        &[
            "common/config",
            "common/hooks/x",
            "common/objects/x",
            "mods/a/b/hooks/x",
            "mods/a/b/refs",
            "own/x",
            "real/config",
            "real/hooks/pre-commit",
            "real/objects/x",
            "sub/own/x",
            "tree/shared/x",
        ],
    );
    let held = held_back(&run);
    let files: Vec<&str> = paths(&held).into_iter().filter(|path| path.contains("/")).collect();
    for file in [
        "common/config",
        "common/hooks/x",
        "mods/a/b/hooks/x",
        "real/config",
        "real/hooks/pre-commit",
        "sub/own/x",
        "tree/shared/x",
    ] {
        assert!(files.contains(&file), "{file} in {held:?}");
    }
    for file in ["common/objects/x", "mods/a/b/refs", "own/x", "real/objects/x"] {
        assert!(!files.contains(&file), "{file} in {held:?}");
    }
}

#[test]
fn f7_programs_that_settings_of_package_managers_name_are_protected() {
    for (settings, text, file) in [
        (".npmrc", "script-shell=./tools/sh\n", "tools/sh"),
        ("sub/.npmrc", "script-shell=tools/sh\n", "sub/tools/sh"),
        (".npmrc", "node-options=--require ./hook.js\n", "hook.js"),
        (".npmrc", "pnpmfile=p.cjs\n", "p.cjs"),
        (".yarnrc", "yarn-path \"tools/y.js\"\n", "tools/y.js"),
        (".yarnrc.yml", "yarnPath: tools/y.cjs\n", "tools/y.cjs"),
        (".yarnrc.yml", "plugins:\n  - path: ./p.cjs\n", "p.cjs"),
        (
            ".cargo/config.toml",
            "[target.x]\nrunner = ['tools/run', '-v']\n",
            "tools/run",
        ),
        (".cargo/config", "[target.x]\nlinker = 'tools/ld'\n", "tools/ld"),
        ("bunfig.toml", "preload = ['./p.ts']\n", "p.ts"),
        (
            "lefthook.yml",
            "pre-commit:\n  commands:\n    a:\n      run: sh tools/a.sh\n",
            "tools/a.sh",
        ),
        (
            ".mcp.json",
            r#"{"mcpServers":{"a":{"command":"node","args":["tools/s.js"]}}}"#,
            "tools/s.js",
        ),
    ] {
        let scratch = TestScratch::new();
        write(scratch.host(settings), text);
        let run = wrote(&scratch, &[file, "ordinary"]);
        assert_eq!(paths(&held_back(&run)), [file], "{settings}");
    }
}

#[test]
fn f7_the_users_own_configuration_counts_in_every_repository() {
    let scratch = TestScratch::new();
    let home = scratch.base.join("home");
    write(
        home.join(".gitconfig"),
        "[core]\nhooksPath = .hooks\n[include]\npath = more\n",
    );
    write(home.join("more"), "[alias]\nx = !tools/x\n");
    link("../workspace/dots/bash", home.join(".bashrc"));
    link(
        &format!("{}/dots/git", scratch.workspace.display()),
        home.join(".config/git"),
    );
    write(scratch.host(".git/config"), "[core]\n");
    write(scratch.host("sub/.git/config"), "[core]\n");
    let mut live = scratch.start_with(&[&scratch.workspace], &[]);
    live.begin(Vec::new(), Some(home)).unwrap();
    let files = [
        ".hooks/a",
        "dots/bash",
        "dots/git/config",
        "dots/other",
        "sub/.hooks/a",
        "sub/tools/x",
        "tools/x",
        "tools/y",
    ];
    for file in files {
        write(upper(&live).join(file), "changed");
    }
    let run = live.finish().unwrap().run.unwrap();
    let held = held_back(&run);
    let held: Vec<&str> = paths(&held).into_iter().filter(|path| files.contains(path)).collect();
    assert_eq!(
        held,
        [
            ".hooks/a",
            "dots/bash",
            "dots/git/config",
            "sub/.hooks/a",
            "sub/tools/x",
            "tools/x"
        ]
    );
}

#[test]
fn f7_what_the_owner_protects_is_protected_by_other_names_too() {
    let scratch = TestScratch::new();
    link("build/mk", scratch.host("Makefile"));
    let live = scratch.start_with(&[&scratch.workspace], &["Makefile"]);
    write(upper(&live).join("build/mk"), "x");
    let run = live.finish().unwrap().run.unwrap();
    assert_eq!(
        held_back(&run),
        [(
            "build/mk".to_owned(),
            "`Makefile` leads here: filesystem.protect: Makefile".to_owned()
        )]
    );
}

#[test]
fn f8_links_that_lead_round_or_out_stop_nothing() {
    let scratch = TestScratch::new();
    for (target, path) in [
        (".bashrc", ".bashrc"),
        ("b", "a"),
        ("a", "b"),
        ("a", ".envrc"),
        ("/etc/passwd", ".profile"),
        ("../../../..", ".zshrc"),
        (".", ".vscode/self"),
        ("..", ".vscode/up"),
        (".", ".git/modules/round"),
        ("..", ".git/modules/back"),
        ("nowhere/at/all", ".npmrc"),
        ("../.git", ".git/worktrees"),
    ] {
        link(target, scratch.host(path));
    }
    link(&"x/".repeat(2000), scratch.host(".gitconfig"));
    write(
        scratch.host(".git/config"),
        "[include]\npath = config\npath = ../more\n[core]\nhooksPath = a\n",
    );
    write(scratch.host("more"), "[include]\npath = .git/config\n");
    let run = wrote(&scratch, &["plain", "nowhere/at/all"]);
    let held = held_back(&run);
    // `.vscode/up` leads to all that there is, and so it is.
    let held: Vec<&str> = paths(&held);
    assert!(held.contains(&"plain") && held.contains(&"nowhere/at/all"), "{held:?}");
    fs::remove_file(scratch.host(".vscode/up")).unwrap();
    let held = held_back(&run);
    assert_eq!(paths(&held), ["nowhere/at/all"], "{held:?}");
}

#[test]
fn f8_a_run_that_makes_more_links_than_are_followed_gets_nothing_applied() {
    let scratch = TestScratch::new();
    let mut run = scratch.ran(|upper| {
        fs::create_dir_all(upper.join(".git/modules")).unwrap();
        // Each leads to all of them.
        for number in 0..20 {
            symlink(".", upper.join(format!(".git/modules/{number}"))).unwrap();
        }
        write(upper.join("plain"), "x");
    });
    let held = held_back(&run);
    let plain = held.iter().find(|(path, _)| path == "plain");
    assert_eq!(plain.unwrap().1, "more leads from protected names than is followed");
    assert_eq!(applied(&run.apply(&all()).unwrap()), [""; 0]);
    let report = run.apply(&named(&["plain"])).unwrap();
    assert_eq!(applied(&report), ["Added plain"]);
}

#[test]
fn f8_configuration_that_cannot_be_read_holds_everything_of_its_repository_back() {
    let scratch = TestScratch::new();
    let config = scratch.host("sub/.git/config");
    write(&config, "[core]\n");
    write(scratch.host(".npmrc"), "\u{0}\n=\n[");
    write(scratch.host(".cargo/config.toml"), b"runner = \xff");
    let run = wrote(&scratch, &["sub/plain", "elsewhere"]);
    let file = fs::OpenOptions::new().write(true).open(&config).unwrap();
    file.set_len((4 << 20) + 1).unwrap();
    let held = held_back(&run);
    assert_eq!(paths(&held), ["sub/plain"]);
    assert_eq!(
        held[0].1,
        "`sub/.git/config` cannot be read (longer than 4 MiB), so that what it names is not known"
    );
    file.set_len(0).unwrap();
    assert_eq!(paths(&held_back(&run)), [""; 0]);
    if !is_root() {
        chmod(&config, 0o000);
        assert_eq!(paths(&held_back(&run)), ["sub/plain"]);
    }
    fs::remove_file(&config).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &config,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    assert_eq!(paths(&held_back(&run)), [""; 0]);
}

/// The host's owner may change a configuration at any time: what is read is one form or the other, and never elsewhere.
#[test]
fn a2_configuration_that_changes_while_it_is_read_leads_nowhere_else() {
    let scratch = TestScratch::new();
    let outside = scratch.base.join("outside");
    write(&outside, "[core]\nhooksPath = never\n");
    let config = scratch.host(".git/config");
    write(&config, "[core]\nhooksPath = always\n");
    let run = wrote(&scratch, &["always/x", "never/x"]);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let other = scratch.host(".git/other");
            symlink(&outside, &other).unwrap();
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                rustix::fs::renameat_with(
                    rustix::fs::CWD,
                    &other,
                    rustix::fs::CWD,
                    &config,
                    rustix::fs::RenameFlags::EXCHANGE,
                )
                .unwrap();
            }
        });
        for _ in 0..200 {
            let held = held_back(&run);
            assert!(!paths(&held).contains(&"never/x"), "{held:?}");
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn what_is_gits_own_data_is_not_looked_at_twice() {
    let scratch = TestScratch::new();
    link("../index", scratch.host(".git/hooks/x"));
    assert_eq!(
        paths(&held_back(&wrote(&scratch, &[".git/index", ".git/objects/x"]))),
        [""; 0]
    );
}
