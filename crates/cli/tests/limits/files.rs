//! Limits on disk, files and directories in memory.

use offleash_core::limits::LimitName;
use serde_json::json;

use super::support::{Site, record_of, stderr};
use super::{assert_ended_by, hits, stdout_of};

#[test]
fn more_bytes_in_the_workspace_than_allowed_end_the_run() {
    let site = Site::new();
    let script = "i=0; while :; do head -c 1000000 /dev/zero > file$i; i=$((i+1)); done";
    let record = site.record(&["--workspace-size", "8M", "--wall-time", "60s"], script);
    assert_ended_by(&record, LimitName::Workspace, 8 << 20, 137);
    // The watcher is no quota: it may see it late, but not by an order of magnitude more.
    assert!(
        record["usage"]["workspace_bytes"].as_u64().unwrap() < 2 << 30,
        "{record}"
    );
}

#[test]
fn what_is_more_than_allowed_is_told_and_not_written_back_also_when_it_is_found_in_the_end() {
    let site = Site::new();
    let script = |rest: &str| format!("{rest}; exit 0");
    for (flag, value, limit, told, work) in [
        (
            "--workspace-size",
            "64K",
            LimitName::Workspace,
            64 << 10,
            "head -c 3000000 /dev/zero > large",
        ),
        (
            "--inodes",
            "16",
            LimitName::Inodes,
            16,
            "for i in $(seq 60); do : > file$i; done",
        ),
        (
            "--depth",
            "16",
            LimitName::Depth,
            16,
            "mkdir -p 1/2/3/4/5/6/7/8/9/a/b/c/d/e/f/g/h/i/j/k",
        ),
    ] {
        let record = site.record(&["-w", ".:rw", flag, value], &script(work));
        assert_ended_by(&record, limit, told, 137);
        assert_eq!(record["changes"]["applied"], json!(false), "{record}");
        assert_eq!(std::fs::read_dir(site.workspace()).unwrap().count(), 0, "{flag}");
    }
}

#[test]
fn bytes_of_files_without_a_name_count_too() {
    let site = Site::new();
    let script = "exec 9> hidden; rm hidden; while :; do head -c 1000000 /dev/zero >&9; done";
    let record = site.record(&["--workspace-size", "8M", "--wall-time", "60s"], script);
    assert_ended_by(&record, LimitName::Workspace, 8 << 20, 137);
}

#[test]
fn more_files_than_allowed_end_the_run() {
    let site = Site::new();
    let script = "i=0; while :; do : > file$i; i=$((i+1)); done";
    let record = site.record(&["--inodes", "200", "--wall-time", "60s"], script);
    assert_ended_by(&record, LimitName::Inodes, 200, 137);
}

#[test]
fn directories_nested_deeper_than_allowed_end_the_run() {
    let site = Site::new();
    let script = "while :; do mkdir d && cd -P d; done";
    let record = site.record(&["--depth", "100", "--wall-time", "60s"], script);
    assert_ended_by(&record, LimitName::Depth, 100, 137);
}

#[test]
fn a_file_that_grows_too_large_ends_its_writer() {
    let site = Site::new();
    let output = site
        .offleash([
            "run",
            "--json",
            "--file-size",
            "1M",
            "--",
            "head",
            "-c",
            "3000000",
            "/dev/zero",
        ])
        .output()
        .unwrap();
    assert_eq!(record_of(&output)["exit_code"], 0, "output is no file");
    let record = record_of(
        &site
            .offleash([
                "run",
                "--json",
                "--file-size",
                "1M",
                "--",
                "dd",
                "if=/dev/zero",
                "of=big",
                "bs=64k",
                "count=100",
            ])
            .output()
            .unwrap(),
    );
    assert_ended_by(&record, LimitName::FileSize, 1 << 20, 137);
    // Below a shell, which says what became of it.
    let flags = ["run", "--json", "--file-size", "1M", "-c"];
    let script = "head -c 3000000 /dev/zero > more; exit $?";
    let record = record_of(&site.offleash([&flags[..], &[script]].concat()).output().unwrap());
    assert_eq!(record["outcome"], json!({ "kind": "exited", "code": 153 }));
    assert_eq!(
        record["limits_hit"],
        json!([{ "limit": "file_size", "value": 1 << 20, "effect": "ended" }])
    );
    let said = site
        .offleash(["run", "--file-size", "1M", "-c", script])
        .output()
        .unwrap();
    assert!(
        stderr(&said).contains(
            "a process was ended: it reached the limit `file_size`, which is 1M; raise it with `--file-size`"
        ),
        "{}",
        stderr(&said)
    );
    // A sparse file is as large as it says.
    let record = record_of(
        &site
            .offleash([
                "run",
                "--json",
                "--file-size",
                "1M",
                "--",
                "truncate",
                "-s",
                "1G",
                "sparse",
            ])
            .output()
            .unwrap(),
    );
    assert_ne!(record["exit_code"], 0, "{record}");
}

#[test]
fn a_file_that_outgrows_the_workspace_is_told_as_that() {
    let site = Site::new();
    // Sparse, so that nothing but its size is larger than the workspace.
    for flags in [
        &["--workspace-size", "8M"][..],
        &["--workspace-size", "8M", "--file-size", "unlimited"],
    ] {
        let mut arguments = vec!["run", "--json"];
        arguments.extend(flags);
        arguments.extend(["--", "truncate", "-s", "1G", "sparse"]);
        let record = record_of(&site.offleash(arguments).output().unwrap());
        assert_ended_by(&record, LimitName::Workspace, 8 << 20, 137);
    }
}

#[test]
fn tmp_holds_no_more_than_allowed() {
    let site = Site::new();
    for place in ["/tmp", "/dev/shm", "$HOME"] {
        let record = site.record(
            &["--tmp-size", "1M"],
            &format!("head -c 3000000 /dev/zero > {place}/big; stat -c %s {place}/big"),
        );
        assert!(
            record["stderr"]["data"].as_str().unwrap().contains("No space left"),
            "{place}: {record}"
        );
        assert!(
            stdout_of(&record).trim().parse::<u64>().unwrap() <= 1 << 20,
            "{place}: {record}"
        );
    }
}

#[test]
fn a_tmp_that_is_full_is_told() {
    let site = Site::new();
    // The first is seen at the end, the second only while it is there.
    for script in [
        "head -c 3000000 /dev/zero > /tmp/big; true",
        "head -c 3000000 /dev/zero > /tmp/big; sleep 3; rm /tmp/big",
    ] {
        let record = site.record(&["--tmp-size", "1M"], script);
        assert_eq!(hits(&record, LimitName::Tmp), ["refused"], "{script}: {record}");
        assert_eq!(record["exit_code"], 0);
    }
}

#[test]
fn another_directory_in_memory_that_is_full_is_told_with_its_own_size() {
    let site = Site::new();
    for (flags, place, expected) in [
        (vec![], "/dev/shm", (LimitName::Tmp, 1 << 20)),
        (vec![], "$HOME", (LimitName::Tmp, 1 << 20)),
        (vec!["--tmpfs", "/scratch:2M"], "/scratch", (LimitName::Tmp, 2 << 20)),
    ] {
        let flags = [vec!["--tmp-size", "1M"], flags].concat();
        let record = site.record(&flags, &format!("head -c 3000000 /dev/zero > {place}/big; true"));
        let (limit, value) = expected;
        assert_eq!(
            record["limits_hit"],
            json!([{ "limit": limit.name(), "value": value, "effect": "refused" }]),
            "{place}: {record}"
        );
    }
    let script = "i=0; while [ $i -lt 300 ]; do : > /tmp/file$i || break; i=$((i+1)); done; true";
    let record = site.record(&["--inodes", "200"], script);
    assert_eq!(hits(&record, LimitName::Inodes), ["refused"], "{record}");
}

#[test]
fn open_files_are_bounded() {
    let site = Site::new();
    let record = site.record(
        &["--open-files", "64"],
        "ulimit -n; ulimit -Hn; ulimit -n 65 2>/dev/null || echo no more",
    );
    assert_eq!(stdout_of(&record), "64\n64\nno more\n", "{record}");
}
