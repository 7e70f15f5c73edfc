//! Level `simulated`, from the command line: what it carries out, what holds it and what it refuses.

#![cfg(target_os = "linux")]

#[path = "simulated/hostile.rs"]
mod hostile;
mod support;

use std::process::Output;

use support::{Site, processes, record_of, stderr, stdout};

const LEVEL: [&str; 2] = ["--level", "simulated"];

/// Runs a script at the level.
fn simulated(site: &Site, flags: &[&str], script: &str) -> Output {
    let all: Vec<&str> = LEVEL.iter().chain(flags).copied().collect();
    site.run_shell(&all, script)
}

#[test]
fn a_script_sees_the_workspace_and_its_changes_are_kept_aside() {
    let site = Site::new();
    site.write("a", "TODO one\n");
    site.write("sub/b", "x\nTODO two\n");
    let counted = simulated(&site, &[], "grep -r TODO . | wc -l");
    assert_eq!((stdout(&counted).as_str(), counted.status.code()), ("2\n", Some(0)));

    let record = site.record(
        &LEVEL,
        "echo new > n; rm a; mkdir -p d/e; echo q > d/e/q; mv sub moved; chmod 600 moved/b; ln -s n l; exit 3",
    );
    assert_eq!(record["level"], "simulated");
    assert_eq!(record["exit_code"], 3);
    let id = support::id_of(&record);
    assert!(site.workspace().join("a").exists(), "nothing has changed yet");
    let shown = site.succeed(["diff", &id]);
    for line in ["+++ b/n", "--- a/a", "# deleted directory: sub", "+++ b/d/e/q"] {
        assert!(shown.contains(line), "{line} in {shown}");
    }
    site.succeed(["apply", &id]);
    let here = |name: &str| site.workspace().join(name);
    assert!(!here("a").exists() && !here("sub").exists());
    assert_eq!(std::fs::read_to_string(here("moved/b")).unwrap(), "x\nTODO two\n");
    assert_eq!(std::fs::read_link(here("l")).unwrap(), std::path::Path::new("n"));
}

#[test]
fn what_is_removed_and_made_anew_hides_what_the_host_has() {
    let site = Site::new();
    site.write("d/old", "old\n");
    site.write("f", "first\n");
    let script = "rm -r d; mkdir d; echo new > d/new; ls d; rm f; mkdir f; touch f/x; ls f; echo a >> d/new; cat d/new";
    let run = simulated(&site, &["--json"], script);
    let record = record_of(&run);
    assert_eq!(record["stdout"]["data"], "new\nx\nnew\na\n", "{}", stderr(&run));
    let id = support::id_of(&record);
    site.succeed(["apply", &id]);
    assert!(!site.workspace().join("d/old").exists());
    assert!(site.workspace().join("f/x").exists());
}

#[test]
fn commands_input_status_and_environment_are_those_of_a_run() {
    let site = Site::new();
    let echoed = site.succeed([
        "run",
        "--level",
        "simulated",
        "--",
        "printf",
        "%s|",
        "a b",
        "it's",
        "$x",
    ]);
    assert_eq!(echoed, "a b|it's|$x|");
    let mut fed = site.offleash(["run", "--level", "simulated", "--", "sort"]);
    assert_eq!(stdout(&processes::feed(&mut fed, "b\na\n")), "a\nb\n");
    let told = simulated(&site, &["--env", "X=1"], "echo $X; echo oops >&2; exit 7");
    assert_eq!((stdout(&told).as_str(), told.status.code()), ("1\n", Some(7)));
    assert!(stderr(&told).contains("oops"));
}

#[test]
fn what_the_level_does_not_have_is_refused_before_anything_starts() {
    let site = Site::new();
    for (flags, words) in [
        (&["--allow", "example.com"][..], "a network"),
        (&["--gpu", "all"], "graphics cards"),
        (&["-t"], "a terminal"),
        (&["--min-level", "process"], "process"),
    ] {
        let arguments = [&["run"][..], &LEVEL, flags, &["--", "touch", "made"]].concat();
        let refused = site.offleash(arguments).output().unwrap();
        assert_eq!(refused.status.code(), Some(125), "{flags:?}: {}", stderr(&refused));
        assert!(stderr(&refused).contains(words), "{flags:?}: {}", stderr(&refused));
    }
}

#[test]
fn a_program_that_only_processes_have_is_named_and_put_on_record() {
    let site = Site::new();
    let run = simulated(&site, &["--json"], "id-of-nobody; perl -v; echo $?");
    let record = record_of(&run);
    assert_eq!(record["stdout"]["data"], "126\n");
    let said = record["stderr"]["data"].as_str().unwrap();
    assert!(said.contains("perl: needs level process"), "{said}");
    assert!(said.contains("id-of-nobody: command not found"), "{said}");
    let denial = &record["denials"].as_array().unwrap()[0];
    let told = ["subject", "name", "rule"].map(|key| denial[key].as_str().unwrap());
    assert_eq!(told, ["command", "perl", "needs level process"]);
}

#[test]
fn what_would_only_be_said_to_be_done_is_refused() {
    let site = Site::new();
    site.write("file", "text\n");
    let run = simulated(
        &site,
        &["--json"],
        "flock lock true; echo $?; chown 0:0 file; echo $?; chgrp 0 file; echo $?",
    );
    let record = record_of(&run);
    assert_eq!(record["stdout"]["data"], "126\n126\n126\n");
    let named: Vec<_> = record["denials"]
        .as_array()
        .unwrap()
        .iter()
        .map(|denial| denial["name"].as_str().unwrap())
        .collect();
    assert_eq!(named, ["chgrp", "chown", "flock"]);
}

#[test]
fn rules_of_monitoring_watch_its_files_as_at_other_levels() {
    let site = Site::new();
    for number in 0..60 {
        site.write(format!("f{number}"), "text\n");
    }
    let policy = site.root().join("watched.toml");
    std::fs::write(
        &policy,
        "[[monitor]]\nname = \"mass-removal\"\nthreshold = 50\naction = \"kill\"\n",
    )
    .unwrap();
    let flags = ["--json", "--policy", policy.to_str().unwrap()];
    let record = record_of(&simulated(&site, &flags, "rm f*; while :; do :; done"));
    assert_eq!(record["outcome"]["rule"], "mass-removal", "{record}");
}

#[test]
fn hidden_names_are_there_and_cannot_be_read_or_replaced() {
    let site = Site::new();
    site.write("secret", "value\n");
    site.write("keys/one", "value\n");
    let script = "cat secret; echo x > secret; rm secret; mv secret other; ls keys; cat keys/one; rm -r keys; ls";
    let run = simulated(&site, &["--deny", "secret", "--deny", "keys", "--json"], script);
    let record = record_of(&run);
    assert_eq!(record["stdout"]["data"], "keys\nsecret\n");
    assert_eq!(record["changes"]["modified"], 0);
    assert_eq!(record["changes"]["deleted"], 0);
}

#[test]
fn protected_names_are_applied_only_if_they_are_named() {
    let site = Site::new();
    site.write(".git/config", "[core]\n");
    let record = site.record(&LEVEL, "echo evil >> .git/config; echo fine > ok");
    let id = support::id_of(&record);
    let applied = site.offleash(["apply", &id]).output().unwrap();
    assert!(site.workspace().join("ok").exists(), "{}", stderr(&applied));
    let config = std::fs::read_to_string(site.workspace().join(".git/config")).unwrap();
    assert_eq!(config, "[core]\n");
}

#[test]
fn links_lead_nowhere_but_to_what_is_served() {
    let site = Site::new();
    site.write("inside", "in\n");
    let outside = site.root().join("outside");
    std::fs::write(&outside, "out\n").unwrap();
    std::os::unix::fs::symlink(&outside, site.workspace().join("out")).unwrap();
    std::os::unix::fs::symlink("inside", site.workspace().join("in")).unwrap();
    std::os::unix::fs::symlink("/etc", site.workspace().join("etc")).unwrap();
    let run = simulated(
        &site,
        &[],
        "cat in; cat out; cat etc/shadow; echo x > out; cat /etc/shadow; ls /root",
    );
    assert_eq!(stdout(&run), "in\n", "{}", stderr(&run));
    assert_eq!(std::fs::read_to_string(&outside).unwrap(), "out\n");
}

#[test]
fn a_program_runs_at_the_next_level_where_that_is_asked_for() {
    let site = Site::new();
    site.write("a", "one\n");
    let script = "echo two > b; perl -e 'print \"perl sees \", join(\",\", sort glob(\"*\")), \"\\n\"; open F, \">c\"; print F \"three\\n\"' && \
                  cat c | perl -ne 'print uc' | tr -d '\\n'; perl -e 'exit 3'; echo $?";
    let arguments = ["run", "--level", "auto:simulated", "--json", "-c", script];
    let run = site.offleash(arguments).output().unwrap();
    let record = record_of(&run);
    assert_eq!(record["level"], "simulated");
    assert_eq!(record["stdout"]["data"], "perl sees a,b\nTHREE3\n", "{record}");
    let denials = record["denials"].as_array().unwrap();
    let ran = denials.iter().find(|denial| denial["name"] == "perl").unwrap();
    assert_eq!(ran["rule"], "ran at level process");
    assert_eq!(ran["count"], 3);
    site.succeed(["apply", &support::id_of(&record)]);
    assert_eq!(std::fs::read_to_string(site.workspace().join("c")).unwrap(), "three\n");
}
