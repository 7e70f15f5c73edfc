//! What is the level `container`'s alone: how it is asked for, what is told, and what is left of it.

use std::fs;
use std::process::Command;

use rustix::process::Signal;

use super::Column;
use super::support::levels::runsc;
use super::support::processes::{eventually, signal, start, wait};
use super::support::{Site, is_root, skip, stderr};

#[test]
fn a_runtime_that_is_not_there_or_none_is_refused_with_a_hint() {
    let site = Site::new();
    for wanted in ["/no/such/runsc", "runsc-of-nobody", "/bin/true", ""] {
        let said = site.refuse(["run", "--level", "container", "--runtime", wanted, "--", "true"]);
        assert!(
            said.contains("OCI runtime") && said.contains("--runtime"),
            "{wanted}: {said}"
        );
    }
}

#[test]
fn a_runtime_that_fails_is_told_with_what_it_says() {
    let site = Site::new();
    let broken = site.root().join("runsc");
    fs::write(&broken, "#!/bin/sh\necho it is broken >&2\nexit 3\n").unwrap();
    let mut command = Command::new("chmod");
    assert!(
        command
            .args(["a+rx"])
            .arg(&broken)
            .arg(site.root())
            .status()
            .unwrap()
            .success()
    );
    let output = site
        .offleash([
            "run",
            "--level",
            "container",
            "--runtime",
            broken.to_str().unwrap(),
            "--",
            "true",
        ])
        .output()
        .unwrap();
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(125), "{said}");
    // There is no shell where a runtime runs.
    assert!(said.contains("starting the runtime"), "{said}");
}

#[test]
fn a_floor_is_met_by_what_is_above_it_alone() {
    let site = Site::new();
    let said = site.refuse(["run", "--min-level", "container", "--level", "process", "--", "true"]);
    assert!(said.contains("weaker than"), "{said}");
    let Some(flags) = Column::Gvisor.flags() else { return };
    let flags: Vec<&str> = flags
        .iter()
        .map(String::as_str)
        .filter(|flag| *flag != "--level" && *flag != "container")
        .collect();
    let record = site.record(&[flags.as_slice(), &["--min-level", "container"]].concat(), "true");
    assert_eq!(record["level"], "container", "{record}");
}

/// The processes below one, by their numbers.
fn below(pid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let mut todo = vec![pid];
    while let Some(parent) = todo.pop() {
        let threads = fs::read_dir(format!("/proc/{parent}/task"))
            .into_iter()
            .flatten()
            .flatten();
        for thread in threads {
            let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            let children = children.split_whitespace().filter_map(|word| word.parse::<u32>().ok());
            todo.extend(children.clone());
            found.extend(children);
        }
    }
    found
}

#[test]
fn nothing_is_left_of_a_sandbox_whose_supervisor_is_killed() {
    for column in [Column::Gvisor, Column::Crun] {
        let Some(flags) = column.flags() else { continue };
        let site = Site::new();
        let mut arguments = vec!["run".to_owned()];
        arguments.extend(flags);
        arguments.extend(["--", "/bin/sh", "-c", "echo begun; sleep 600"].map(str::to_owned));
        let mut child = start(&mut site.offleash(arguments));
        let begun = super::support::processes::read_until(child.stdout.as_mut().unwrap(), "begun\n");
        assert!(begun.contains("begun"), "{begun}");
        let processes = below(child.id());
        signal(&child, Signal::KILL);
        wait(&mut child);
        if processes.len() < 2 {
            return skip("the kernel does not tell the children of processes");
        }
        for pid in processes {
            eventually("a process of the sandbox is gone", || {
                (!std::path::Path::new(&format!("/proc/{pid}")).exists()).then_some(())
            });
        }
    }
}

#[test]
fn threads_of_a_runtime_are_bounded_where_no_group_counts_them() {
    if is_root() {
        return skip("a control group counts the processes of a sandbox of root's");
    }
    for column in [Column::Gvisor, Column::Crun] {
        let Some(flags) = column.flags() else { continue };
        let site = Site::new();
        let mut arguments = vec!["run".to_owned(), "--pids".to_owned(), "100".to_owned()];
        arguments.extend(flags);
        arguments.extend(["--", "/bin/sh", "-c", "echo begun; sleep 600"].map(str::to_owned));
        let mut child = start(&mut site.offleash(arguments));
        let begun = super::support::processes::read_until(child.stdout.as_mut().unwrap(), "begun\n");
        assert!(begun.contains("begun"), "{begun}");
        let limits = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/limits")).ok();
        let found: Vec<String> = below(child.id()).iter().filter_map(limits).collect();
        signal(&child, Signal::KILL);
        wait(&mut child);
        // The supervisor's own child, which becomes the runtime, and all below it.
        let is_bounded = |limits: &String| {
            let line = limits.lines().find(|line| line.starts_with("Max processes")).unwrap();
            line.split_whitespace().nth(2).unwrap().parse::<u64>().unwrap() <= 164
        };
        if found.is_empty() {
            return skip("the kernel does not tell the children of processes");
        }
        assert!(found.iter().all(is_bounded), "{found:?}");
    }
}

#[test]
fn large_files_are_whole_when_the_sandbox_is_gone() {
    let Some(flags) = Column::Gvisor.flags() else { return };
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let site = Site::new();
    let flags = [flags.as_slice(), &["-w", ".:rw"]].concat();
    let output = site.run_shell(
        &flags,
        "head -c 40000000 /dev/urandom > large; sha256sum large > sum; rm -f other; cp large other",
    );
    assert!(output.status.success(), "{}", stderr(&output));
    let check = Command::new("sha256sum")
        .args(["--check", "--status", "sum"])
        .current_dir(site.workspace())
        .status();
    assert!(check.unwrap().success());
    let same = Command::new("cmp")
        .args(["large", "other"])
        .current_dir(site.workspace())
        .status();
    assert!(same.unwrap().success());
}

#[test]
fn gvisor_keeps_its_code_from_doors_of_the_kernel() {
    if runsc().is_none() {
        return;
    }
    let flags = Column::Gvisor.flags().unwrap();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let site = Site::new();
    // What each prints if it works; the first and the last show that the script runs to its end.
    let script = "echo begin; \
        mount -t tmpfs none /mnt 2>/dev/null && echo mounted; \
        ls /bundle /state /runtime /tree 2>/dev/null && echo housing; \
        [ -e /dev/kvm ] && echo kvm; [ -e /dev/sda ] && echo disk; [ -e /dev/vda ] && echo disk; \
        cat /proc/kcore 2>/dev/null | head -c 1 | grep -q . && echo kcore; \
        echo end";
    let output = site.run_shell(&flags, script);
    assert_eq!(super::support::stdout(&output), "begin\nend\n", "{}", stderr(&output));
}
