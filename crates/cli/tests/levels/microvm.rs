//! What is particular of the level `microvm`.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use super::Column;
use super::support::{Site, stdout};

#[test]
fn a_hypervisor_or_a_kernel_that_is_not_there_is_refused_with_a_hint() {
    let site = Site::new();
    for (flag, hint) in [("--hypervisor", "apt install"), ("--vm-kernel", "offleash vm kernel")] {
        let said = site.refuse(["run", "--level", "microvm", flag, "/no/such/thing", "--", "true"]);
        assert!(said.contains("level `microvm` takes"), "{said}");
        // Without QEMU that is what is missing first.
        assert!(said.contains(hint) || said.contains("apt install"), "{said}");
    }
}

#[test]
fn a_directory_without_a_kernel_is_told_and_nothing_is_left_of_a_package_that_is_none() {
    let site = Site::new();
    let empty = site.root().to_str().unwrap();
    let said = site.refuse(["vm", "kernel", empty]);
    assert!(said.contains("takes a kernel"), "{said}");
    let package = site.write("no.deb", "not a package");
    site.refuse(["vm", "kernel", "--package", package.to_str().unwrap()]);
    let left = std::fs::read_dir(site.state().join("vm")).unwrap().count();
    assert_eq!(left, 0);
}

/// A site, and the flags of the level; `None` where it is not to be had.
fn machine() -> Option<(Site, Vec<String>)> {
    let flags = Column::Microvm.flags()?;
    Some((Site::new(), flags))
}

#[test]
fn machines_of_one_template_draw_other_random_numbers_and_know_the_time() {
    let Some((site, flags)) = machine() else { return };
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let ask = "cat /proc/sys/kernel/random/uuid; head -c 16 /dev/urandom | od -An -tx1; \
               /usr/bin/python3 -c 'import random; print(random.random())'; date +%s";
    let record = || site.record(&flags, ask);
    let all = [record(), record(), record()];
    let how = |record: &serde_json::Value| record["enforced"]["machine"].as_str().unwrap().to_owned();
    assert!(how(&all[0]).ends_with("saved as a template"), "{}", all[0]);
    let drawn = |record: &serde_json::Value| -> Vec<String> {
        let text = record["stdout"]["data"].as_str().unwrap();
        text.lines().map(str::to_owned).collect()
    };
    let [first, second, third] = all.each_ref().map(drawn);
    assert_eq!(first.len(), 4, "{}", all[0]);
    for restored in &all[1..] {
        assert!(how(restored).ends_with("restored from its template"), "{restored}");
    }
    for line in 0..3 {
        let different = first[line] != second[line] && second[line] != third[line] && first[line] != third[line];
        assert!(different, "{first:?} {second:?} {third:?}");
    }
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_secs();
    let inside: u64 = third[3].parse().unwrap();
    assert!(now.abs_diff(inside) < 60, "{now} {inside}");
}

/// The processes that `parent` started.
fn children(parent: u32) -> Vec<u32> {
    let path = format!("/proc/{parent}/task/{parent}/children");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().map(|number| number.parse().unwrap()).collect()
}

#[test]
fn a_hypervisor_that_is_killed_ends_the_run_and_nothing_of_it_is_left() {
    let Some((site, flags)) = machine() else { return };
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let words = [
        &["run", "--quiet"],
        flags.as_slice(),
        &["--", "/bin/sh", "-c", "echo here; sleep 60"],
    ]
    .concat();
    let mut run = site
        .offleash(words)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(run.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "here\n");
    let first: Vec<u32> = children(run.id());
    let hypervisors: Vec<u32> = first.iter().flat_map(|first| children(*first)).collect();
    let [hypervisor] = hypervisors[..] else {
        panic!("{first:?} {hypervisors:?}");
    };
    let killed = Command::new("kill")
        .args(["-KILL", &hypervisor.to_string()])
        .output()
        .unwrap();
    assert!(killed.status.success(), "{}", stdout(&killed));
    let ended = run.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(125), "{ended:?}");
    for gone in first.iter().chain(&hypervisors) {
        assert!(!std::path::Path::new(&format!("/proc/{gone}")).exists(), "{gone}");
    }
}

#[test]
fn a_machine_that_cannot_be_restored_boots_and_says_so_and_its_template_goes() {
    let Some((site, flags)) = machine() else { return };
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let first = site.record(&flags, "echo here");
    assert!(first["not_enforced"].get("template").is_none(), "{first}");
    let templates = site.state().join("vm/templates");
    let all = || -> Vec<std::path::PathBuf> {
        let entries = std::fs::read_dir(&templates).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    };
    let is_memory = |path: &std::path::PathBuf| path.extension().is_some_and(|extension| extension == "memory");
    let state = all().into_iter().find(|path| !is_memory(path)).unwrap();
    assert!(all().iter().any(is_memory), "{:?}", all());
    // As long as it was, and with the mark of one that is whole.
    let mut bytes = std::fs::read(&state).unwrap();
    bytes[..64].fill(0);
    std::fs::write(&state, bytes).unwrap();
    let second = site.record(&flags, "echo here");
    assert_eq!(second["stdout"]["data"], "here\n", "{second}");
    let why = second["not_enforced"]["template"].as_str().unwrap();
    assert!(why.contains("is not restored from its template"), "{why}");
    assert!(
        second["enforced"]["machine"].as_str().unwrap().ends_with(", booted"),
        "{second}"
    );
    assert_eq!(all(), Vec::<std::path::PathBuf>::new());
}

#[test]
fn kvm_executes_instructions_where_a_machine_that_was_tried_boots_by_it_and_is_refused_elsewhere() {
    let Some((site, flags)) = machine() else { return };
    let mut arguments = vec!["run"];
    arguments.extend(flags.iter().map(String::as_str));
    arguments.extend(["--acceleration", "kvm", "--", "echo", "here"]);
    // What was found is kept, and said again.
    for _ in 0..2 {
        let output = site.offleash(&arguments).output().unwrap();
        let said = super::support::stderr(&output);
        match output.status.code() {
            Some(0) => assert_eq!(stdout(&output), "here\n"),
            code => {
                assert_eq!(code, Some(125), "{said}");
                assert!(said.contains("machines do not run by KVM here: "), "{said}");
                assert!(said.contains("the machine is emulated"), "{said}");
            }
        }
    }
}
