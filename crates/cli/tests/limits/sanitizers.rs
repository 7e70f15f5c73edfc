//! Programs that reserve far more memory than they use: they run, and what they use is bounded all the same.

use std::process::Command;

use super::support::processes::program;
use super::support::{Site, record_of, skip, stderr, stdout};

/// Compiles a program of C with a sanitizer into the workspace; `None` where the machine cannot.
fn compiled(site: &Site, source: &str) -> Option<()> {
    let compiler = program("cc")?;
    let workspace = site.workspace();
    std::fs::write(workspace.join("program.c"), source).unwrap();
    #[expect(clippy::disallowed_methods, reason = "a test needs a compiler")]
    let mut command = Command::new(compiler);
    let built = command
        .args(["-g", "-fsanitize=address", "-o", "program", "program.c"])
        .current_dir(workspace)
        .output();
    built.ok().filter(|output| output.status.success()).map(drop)
}

const READS_A_DIRECTORY: &str = "#include <dirent.h>\n#include <stdio.h>\n#include <stdlib.h>\n\
    int main(void) { DIR *d = opendir(\"/usr\"); int n = 0; while (readdir(d)) n++; closedir(d);\n\
    char *lost = malloc(7); lost[0] = n > 2; printf(\"%d\\n\", lost[0]); lost = 0; return 0; }\n";

#[test]
fn a_program_with_a_sanitizer_runs_and_does_not_fail_for_want_of_a_debugger() {
    let site = Site::new();
    if compiled(&site, READS_A_DIRECTORY).is_none() {
        return skip("no compiler with sanitizers");
    }
    for memory in ["300M", "4G"] {
        let output = site
            .offleash(["run", "--memory", memory, "--", "./program"])
            .output()
            .unwrap();
        assert_eq!(
            (stdout(&output).as_str(), output.status.code()),
            ("1\n", Some(0)),
            "{}",
            stderr(&output)
        );
        assert_eq!(stderr(&output), "");
    }
}

#[test]
fn leaks_are_found_where_debuggers_may_work() {
    let site = Site::new();
    if compiled(&site, READS_A_DIRECTORY).is_none() {
        return skip("no compiler with sanitizers");
    }
    let output = site
        .offleash(["run", "--allow-ptrace", "--", "./program"])
        .output()
        .unwrap();
    assert!(stderr(&output).contains("detected memory leaks"), "{}", stderr(&output));
    // What is set counts.
    let set = [
        "run",
        "--env",
        "ASAN_OPTIONS=detect_leaks=1:exitcode=9",
        "--",
        "sh",
        "-c",
        "echo $ASAN_OPTIONS",
    ];
    let output = site.offleash(set).output().unwrap();
    assert_eq!(stdout(&output), "detect_leaks=1:exitcode=9\n", "{}", stderr(&output));
}

#[test]
fn a_sanitizer_finds_what_it_is_there_for() {
    let site = Site::new();
    let source = "#include <stdlib.h>\nint main(void) { char *p = malloc(4); free(p); return p[1]; }\n";
    if compiled(&site, source).is_none() {
        return skip("no compiler with sanitizers");
    }
    let output = site.offleash(["run", "--", "./program"]).output().unwrap();
    assert_ne!(output.status.code(), Some(0));
    assert!(stderr(&output).contains("heap-use-after-free"), "{}", stderr(&output));
}

#[test]
fn what_a_sanitized_program_uses_is_bounded() {
    let site = Site::new();
    let source = "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n#include <unistd.h>\n\
        int main(void) { for (int i = 0; i < 64; i++) { char *p = malloc(16 << 20); memset(p, 1, 16 << 20); }\n\
        sleep(60); puts(\"survived\"); return 0; }\n";
    if compiled(&site, source).is_none() {
        return skip("no compiler with sanitizers");
    }
    let record = site.record(&["--memory", "200M", "--wall-time", "80s"], "./program");
    assert_ne!(record["exit_code"], 0, "{record}");
    assert_eq!(record["stdout"]["data"], "", "{record}");
    assert_ne!(
        record["outcome"]["kind"], "limit_exceeded",
        "the clock ended it: {record}"
    );
}

/// Whoever says that memory is only reserved may use all of it: then it is ended as anything else.
#[test]
fn memory_that_was_said_to_be_reserved_is_bounded_when_it_is_used() {
    let site = Site::new();
    if program("python3").is_none() {
        return skip("python3 is not installed");
    }
    let script = "import mmap, os, time\n\
        for _ in range(3): os.fork()\n\
        room = mmap.mmap(-1, 1 << 40, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)\n\
        for page in range(0, 1 << 30, 4096): room[page] = 1\n\
        time.sleep(60)\n\
        print('survived')\n";
    let run = [
        "run",
        "--json",
        "--memory",
        "200M",
        "--wall-time",
        "80s",
        "--",
        "/usr/bin/python3",
        "-c",
        script,
    ];
    let record = record_of(&site.offleash(run).output().unwrap());
    assert_eq!(record["outcome"]["kind"], "out_of_memory", "{record}");
    assert_eq!(record["exit_code"], 137, "{record}");
}

/// The limit of a process stays where it is for whoever does not reserve: it is told that there is no more.
#[test]
fn memory_that_is_asked_for_outright_is_refused_or_ended_as_before() {
    let site = Site::new();
    if program("python3").is_none() {
        return skip("python3 is not installed");
    }
    let script = "import resource\n\
        try: resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))\n\
        except (OSError, ValueError): pass\n\
        x = bytearray(1 << 30)\nprint('survived')\n";
    let run = [
        "run",
        "--json",
        "--memory",
        "200M",
        "--",
        "/usr/bin/python3",
        "-c",
        script,
    ];
    let record = record_of(&site.offleash(run).output().unwrap());
    assert_ne!(record["exit_code"], 0, "{record}");
    assert_eq!(record["stdout"]["data"], "", "{record}");
}

#[test]
fn a_debugger_works_where_it_may_and_nowhere_else() {
    let site = Site::new();
    if program("gdb").is_none() || program("true").is_none() {
        return skip("gdb is not installed");
    }
    let gdb = ["gdb", "-q", "-batch", "-ex", "run", "-ex", "quit", "/usr/bin/true"];
    let output = site
        .offleash(["run", "--allow-ptrace", "--"])
        .args(gdb)
        .output()
        .unwrap();
    let said = format!("{}{}", stdout(&output), stderr(&output));
    if said.contains("shared libraries") || said.contains("command not found") {
        return skip("gdb does not start in a sandbox here");
    }
    assert!(said.contains("exited normally"), "{said}");
    let output = site.offleash(["run", "--"]).args(gdb).output().unwrap();
    assert!(!stdout(&output).contains("exited normally"), "{}", stdout(&output));
}
