use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use super::*;

/// A shell that has printed `ready` when what it starts is there.
struct ReadyShell(Child);

impl ReadyShell {
    fn start(script: &str) -> Self {
        #[expect(clippy::disallowed_methods, reason = "a test needs processes to look at")]
        let mut child = Command::new("/bin/sh")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert_eq!(line, "ready\n");
        Self(child)
    }

    fn tree(&self) -> ProcessTree {
        ProcessTree::new(Pid::from_child(&self.0))
    }
}

impl Drop for ReadyShell {
    fn drop(&mut self) {
        for pid in self.tree().processes().into_iter().rev() {
            if let Some(pid) = Pid::from_raw(pid.cast_signed()) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        let _ = self.0.wait();
    }
}

#[test]
fn grandchildren_are_found_by_both_ways() {
    let shell = ReadyShell::start("sleep 100 & (sleep 100 & sleep 100 & echo ready; wait) & wait");
    let tree = shell.tree();
    let mut found = tree.processes();
    assert_eq!(found.len(), 5, "{found:?}");
    assert_eq!(found[0], shell.0.id());
    let mut by_parent = tree.processes_by_parent();
    found.sort_unstable();
    by_parent.sort_unstable();
    assert_eq!(found, by_parent);
    assert_eq!(tree.usage(&found).pids, 5);
}

#[test]
fn a_name_that_is_no_text_hides_nothing() {
    let shell = ReadyShell::start(r"(printf '\377) \376' > /proc/self/comm; sleep 100 & echo ready; wait) & wait");
    let tree = shell.tree();
    let mut by_parent = tree.processes_by_parent();
    assert_eq!(by_parent.len(), 3, "{by_parent:?}");
    assert!(by_parent.iter().any(|pid| {
        let name = fs::read(format!("/proc/{pid}/comm")).unwrap();
        name == b"\xff) \xfe\n"
    }));
    let mut found = tree.processes();
    found.sort_unstable();
    by_parent.sort_unstable();
    assert_eq!(found, by_parent);
}

#[test]
fn time_of_children_that_were_waited_for_counts() {
    let spin = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";
    let shell = ReadyShell::start(&format!("({spin}); echo ready; read end"));
    let tree = shell.tree();
    let processes = tree.processes();
    assert_eq!(processes.len(), 1);
    let (user, system) = tree.cpu_us(&processes);
    assert!(user + system >= US_PER_TICK, "{user} {system}");
}

#[test]
fn memory_that_a_process_uses_is_seen_and_shared_pages_count_once_when_exact() {
    // The subshells share the variable's pages with their parent.
    let shell = ReadyShell::start(
        "x=$(head -c 30000000 /dev/zero | tr '\\0' a); exec 3<&0; (read e <&3) & (read e <&3) & (read e <&3) & echo ready; read end",
    );
    let tree = shell.tree();
    let processes = tree.processes();
    assert_eq!(processes.len(), 4);
    let quick = tree.usage(&processes).anonymous_bytes;
    assert!(quick > 4 * 25_000_000, "{quick}");
    let Some(exact) = tree.exact_memory(&processes) else {
        let _ = writeln!(
            std::io::stderr(),
            "SKIP: the memory of other processes may not be looked at"
        );
        return;
    };
    assert!(
        exact.anonymous_bytes > 25_000_000 && exact.anonymous_bytes < quick / 2,
        "{exact:?} {quick}"
    );
}

#[test]
fn a_zombie_still_tells_and_who_was_waited_for_does_not() {
    let mut shell = ReadyShell::start("echo ready; exit 3");
    let tree = shell.tree();
    while !tree.read_init("stat").unwrap().contains(") Z ") {
        std::thread::yield_now();
    }
    assert_eq!(tree.processes(), [shell.0.id()]);
    shell.0.wait().unwrap();
    assert!(tree.processes().is_empty());
    assert_eq!(tree.usage(&[shell.0.id()]), TreeUsage::default());
}

#[test]
fn a_process_that_never_was_has_no_tree() {
    let tree = ProcessTree::new(Pid::from_raw(i32::MAX).unwrap());
    assert!(tree.processes().is_empty());
}

#[test]
fn a_name_cannot_pretend_to_be_the_other_fields() {
    let tail = "S 7 1 1 0 -1 4194560 1 2 3 4 10 20 30 40 20 0 5 0 100 1000 2";
    for name in ["sh", "a b", "x) R 1 1", ") Z (("] {
        let stat = ProcessStat::parse(&format!("42 ({name}) {tail}")).unwrap();
        assert_eq!(
            stat,
            ProcessStat {
                parent: 7,
                user_ticks: 40,
                system_ticks: 60,
                threads: 5
            },
            "{name}"
        );
    }
    for bad in ["", "42", "42 (sh", "42 (sh) S 7", "42 (sh) S x 1 1 0 -1"] {
        assert_eq!(ProcessStat::parse(bad), None, "{bad}");
    }
}

#[test]
fn fields_are_found_by_their_whole_name() {
    let text = "Pss:  9 kB\nPss_Anon:             120 kB\nSwapPss: 4 kB\n";
    assert_eq!(kib_field(text, "Pss_Anon:"), Some(120 * 1024));
    assert_eq!(kib_field(text, "Pss_Shmem:"), None);
    assert_eq!(number_field("read_bytes: 7\nwrite_bytes: 8\n", "write_bytes:"), Some(8));
    assert_eq!(parse_statm("100 20 5 1 0 8 0\n"), (20, 5));
}
