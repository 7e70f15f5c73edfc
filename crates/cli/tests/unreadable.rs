//! Runs whose changes are hard to read, or cannot be: they are in the record and in the log as all others are.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;

use serde_json::Value;
use support::processes::{finish, read_until, start};
use support::workspace::changes_of;
use support::{Site, id_of, stderr};

const LEVELS: [&str; 2] = ["process", "process-landlock"];

/// The data of the one line of the log.
fn logged(site: &Site) -> Value {
    let shown = site.succeed(["audit", "show"]);
    let line: Value = serde_json::from_str(&shown).unwrap_or_else(|error| panic!("{error}: {shown}"));
    assert_eq!(line["event"], "run_ended");
    line["data"].clone()
}

#[test]
fn a_run_cannot_close_its_changes_to_the_owner() {
    let scripts = [
        "chmod 000 .",
        "chmod 200 .",
        "chmod 000 n/m n",
        "chmod 200 n/m n .",
        "rm -r full; mkdir full; chmod 000 full .",
    ];
    for (level, script) in LEVELS.iter().flat_map(|level| scripts.map(|script| (level, script))) {
        let site = Site::new();
        site.write("full/old", "old");
        fs::set_permissions(site.workspace(), fs::Permissions::from_mode(0o755)).unwrap();
        let script = format!("mkdir -p n/m; echo important >n/m/result; {script}");
        let record = site.record(&["--level", level], &script);
        assert_eq!(record["exit_code"], 0, "{level}: {script}: {record}");
        let changes = &logged(&site)["changes"];
        assert!(changes["added"].as_u64().unwrap() >= 3, "{level}: {script}: {changes}");
        assert_eq!(changes["error"], Value::Null);
        let run = id_of(&record);
        let result = ("n/m/result".to_owned(), "added".to_owned());
        assert!(changes_of(&site, &run).contains(&result), "{level}: {script}");
        assert!(
            site.succeed(["diff", &run]).contains("\n+important\n"),
            "{level}: {script}"
        );
        site.succeed(["apply", &run]);
        for directory in ["", "n", "n/m"] {
            let path = site.workspace().join(directory);
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        assert_eq!(
            fs::read_to_string(site.workspace().join("n/m/result")).unwrap(),
            "important\n"
        );
        let staging = fs::read_dir(site.workspace())
            .unwrap()
            .map(|entry| entry.unwrap().file_name());
        assert_eq!(
            staging.filter(|name| name.as_encoded_bytes().starts_with(b".")).count(),
            0
        );
    }
}

#[test]
fn a_run_whose_changes_cannot_be_read_is_in_the_record_and_in_the_log() {
    let site = Site::new();
    let report = site.root().join("report.json");
    let (workspace, aside) = (site.workspace(), site.root().join("aside"));
    let script = "echo important >result; echo ready; read end; exit 3";
    let mut child = start(
        site.offleash(["run", "--quiet", "--report", report.to_str().unwrap(), "-c", script])
            .stdin(Stdio::piped()),
    );
    read_until(child.stdout.as_mut().unwrap(), "ready\n");
    // Another directory is where the workspace was.
    fs::rename(&workspace, &aside).unwrap();
    fs::create_dir(&workspace).unwrap();
    let output = finish(child);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(
        said.starts_with("error: ") && said.contains("is not the directory any more"),
        "{said}"
    );
    assert!(said.contains("\nhint: move the original directory back"), "{said}");
    let record: Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
    assert_eq!(record["exit_code"], 3);
    let why = record["changes"]["error"].as_str().unwrap();
    assert!(why.contains("is not the directory any more"), "{why}");
    assert_eq!(logged(&site)["changes"]["error"], why);
    // Nothing is lost.
    fs::remove_dir(&workspace).unwrap();
    fs::rename(&aside, &workspace).unwrap();
    site.succeed(["apply", &id_of(&record)]);
    assert_eq!(fs::read_to_string(workspace.join("result")).unwrap(), "important\n");
}

#[test]
fn what_is_kept_of_a_run_can_be_copied_by_its_owner() {
    let site = Site::new();
    let output = site
        .offleash(["run", "-q", "--", "sh", "-c", "echo x > made"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let runs = std::fs::read_dir(site.state().join("runs")).unwrap();
    let kept: Vec<_> = runs.map(|run| run.unwrap().path().join("layer-0")).collect();
    assert_eq!(kept.len(), 1);
    assert!(kept[0].join("upper/made").exists() && !kept[0].join("work").exists());
}
