//! What programs see of the limits, and that run-times which size themselves by it get along.

use super::support::processes::program;
use super::support::{Site, skip, stderr, stdout};
use serde_json::Value;

/// Under 512 MiB, one processor and 99 processes.
const LIMITS: [&str; 6] = ["--memory", "512M", "--cpus", "1", "--pids", "99"];
const MEMORY: u64 = 512 << 20;

fn lines(record: &Value) -> Vec<&str> {
    assert_eq!(record["exit_code"], 0, "{record}");
    record["stdout"]["data"].as_str().unwrap().lines().collect()
}

/// What a program of a run-time prints under these limits.
fn printed(site: &Site, limits: &[&str], command: &[&str]) -> String {
    let run = ["run", "--wall-time", "300s"];
    let output = site
        .offleash(run)
        .args(limits)
        .arg("--")
        .args(command)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}{}",
        stdout(&output),
        stderr(&output)
    );
    stdout(&output)
}

#[test]
fn programs_see_the_limits_as_they_would_in_a_container() {
    let site = Site::new();
    let script = "awk '/^MemTotal|^SwapTotal/ { print $2 }' /proc/meminfo; nproc; getconf _NPROCESSORS_ONLN
        grep -c ^processor /proc/cpuinfo; grep -c '^cpu[0-9]' /proc/stat
        cd /sys/fs/cgroup; cat memory.max cpu.max pids.max
        if [ -e cgroup.controllers ]; then grep -vc '^0::' /proc/self/cgroup
        else grep -c '^0::/.' /proc/self/cgroup; fi";
    let record = site.record(&LIMITS, script);
    let kib = (MEMORY / 1024).to_string();
    let expected = [&kib, "0", "1", "1", "1", "1", "536870912", "100000 100000", "99"];
    // By which form they say it is as the kernel has it.
    let found = record["stdout"]["data"].as_str().unwrap().lines().collect::<Vec<_>>();
    assert_eq!(found[..9], expected, "{record}");
    assert_eq!(found[9], "0", "{record}");
}

#[test]
fn the_processors_that_are_shown_are_those_that_it_may_use() {
    let site = Site::new();
    let script = "cat /sys/devices/system/cpu/online; awk '/^Cpus_allowed_list/ { print $2 }' /proc/self/status
        sed -n 's/^processor[^0-9]*//p' /proc/cpuinfo";
    let record = site.record(&["--cpus", "1"], script);
    let found = lines(&record);
    let all = std::fs::read_to_string("/proc/cpuinfo").unwrap();
    if all.lines().filter(|line| line.starts_with("processor")).count() < 2 {
        return skip("there is one processor");
    }
    assert!(
        found.len() == 3 && found[0] == found[1] && found[1] == found[2],
        "{record}"
    );
}

#[test]
fn without_a_limit_of_memory_that_of_the_machine_is_shown() {
    let site = Site::new();
    let record = site.record(
        &["--memory", "unlimited"],
        "grep MemTotal /proc/meminfo; cat /sys/fs/cgroup/memory.max",
    );
    let all = std::fs::read_to_string("/proc/meminfo").unwrap();
    assert_eq!(lines(&record), [all.lines().next().unwrap(), "max"]);
}

#[test]
fn what_is_shown_cannot_be_changed_from_inside() {
    let site = Site::new();
    let script = "for file in /proc/meminfo /sys/fs/cgroup/memory.max /sys/fs/cgroup/new; do
            (echo 1 > $file) 2>/dev/null && echo \"$file was written\"
        done
        rm -f /proc/meminfo /sys/fs/cgroup/memory.max 2>/dev/null && echo removed
        mv /sys/fs/cgroup /sys/fs/other 2>/dev/null && echo moved
        umount /sys/fs/cgroup 2>/dev/null && echo unmounted
        ls /sys /sys/fs; awk '/^MemTotal/ { print $2 }' /proc/meminfo";
    let record = site.record(&["--memory", "512M"], script);
    let expected = ["/sys:", "fs", "", "/sys/fs:", "cgroup", &(MEMORY / 1024).to_string()];
    assert_eq!(lines(&record), expected, "{record}");
}

#[test]
fn what_is_shown_follows_what_is_used() {
    let site = Site::new();
    let script = "head -c 100000000 /dev/zero > /tmp/a; i=0
        while [ $i -lt 900 ]; do
            free=$(awk '/^MemFree/ { print $2 }' /proc/meminfo); used=$(cat /sys/fs/cgroup/memory.current)
            if [ $free -lt 430000 ] && [ $used -gt 90000000 ]; then echo seen; break; fi
            sleep 0.1; i=$((i+1))
        done";
    let record = site.record(&["--memory", "512M", "--wall-time", "200s"], script);
    assert_eq!(lines(&record), ["seen"], "{record}");
}

#[test]
fn python_counts_what_it_may_use_and_lives_in_it() {
    let site = Site::new();
    if program("python3").is_none() {
        return skip("python3 is not installed");
    }
    let script = "import os\n\
        print(os.cpu_count(), len(os.sched_getaffinity(0)), os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE'))\n\
        kept = [bytes(1 << 20) for _ in range(60)]\n\
        for _ in range(300): kept[_ % 60] = bytearray(1 << 20)\n\
        print(len(kept))\n";
    let found = printed(&site, &LIMITS, &["/usr/bin/python3", "-c", script]);
    assert_eq!(found, format!("1 1 {MEMORY}\n60\n"));
}

#[test]
fn node_counts_what_it_may_use_and_lives_in_it() {
    let site = Site::new();
    if program("node").is_none() {
        return skip("node is not installed");
    }
    let script = "const os = require('os'), v8 = require('v8');
        console.log(os.totalmem(), os.cpus().length, v8.getHeapStatistics().heap_size_limit <= 512 * 1024 * 1024);
        const kept = [];
        for (let i = 0; i < 6000; i++) kept[i % 600] = Array.from({ length: 12000 }, (_, n) => n + 0.5);
        console.log(kept.length);";
    let limits = [&LIMITS[..4], &["--pids", "200"]].concat();
    let found = printed(&site, &limits, &["node", "-e", script]);
    assert_eq!(found, format!("{MEMORY} 1 true\n600\n"));
}

#[test]
fn java_takes_a_part_of_the_limit_for_its_heap_and_lives_in_it() {
    let site = Site::new();
    if program("java").is_none() || program("javac").is_none() {
        return skip("java is not installed");
    }
    // Sixty mebibytes that live, and much more that does not.
    let source = "public class Heavy { static byte[][] kept = new byte[60][];
        public static void main(String[] arguments) {
            for (int i = 0; i < 6000; i++) kept[i % 60] = new byte[1 << 20];
            Runtime machine = Runtime.getRuntime();
            System.out.println((machine.maxMemory() <= 512L << 20) + \" \" + machine.availableProcessors());
        } }";
    let workspace = site.workspace();
    std::fs::write(workspace.join("Heavy.java"), source).unwrap();
    for (memory, fits) in [("512M", "true"), ("1G", "true")] {
        let limits = ["--memory", memory, "--cpus", "1", "--pids", "300"];
        let compile = "javac -J-Xshare:auto Heavy.java && java Heavy";
        let found = printed(&site, &limits, &["sh", "-c", compile]);
        assert_eq!(found, format!("{fits} 1\n"), "{memory}");
    }
}

#[test]
fn go_lives_in_what_it_is_given() {
    let site = Site::new();
    if program("go").is_none() {
        return skip("go is not installed");
    }
    let source = "package main\nimport (\"fmt\"; \"runtime\")\nvar kept [60][]byte\nfunc main() {\n\
        for i := 0; i < 3000; i++ { kept[i%60] = make([]byte, 1<<20); kept[i%60][i] = 1 }\n\
        fmt.Println(runtime.NumCPU(), runtime.GOMAXPROCS(0), len(kept))\n}\n";
    std::fs::write(site.workspace().join("heavy.go"), source).unwrap();
    let build = "GOCACHE=/tmp/cache GOTOOLCHAIN=local go build -o heavy heavy.go";
    printed(&site, &["--pids", "500", "--rw", "."], &["sh", "-c", build]);
    let found = printed(&site, &["--memory", "256M", "--cpus", "1"], &["./heavy"]);
    assert_eq!(found, "1 1 60\n");
}

#[test]
fn a_process_that_was_killed_for_want_of_memory_ends_the_run_whatever_the_command_makes_of_it() {
    let site = Site::new();
    if program("python3").is_none() {
        return skip("python3 is not installed");
    }
    let script = "/usr/bin/python3 -c 'x = b\"a\" * (1 << 29)' || true; exit 0";
    let report = site.root().join("report.json");
    let output = site
        .offleash([
            "run",
            "--memory",
            "64M",
            "--report",
            report.to_str().unwrap(),
            "-c",
            script,
        ])
        .output()
        .unwrap();
    let record: Value = serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap();
    let by_group = record["enforced"]["limit.memory"]
        .as_str()
        .is_some_and(|how| how.starts_with("cgroup"));
    if !by_group {
        // The allocation itself is refused, and nobody is killed.
        assert_eq!(output.status.code(), Some(0), "{record}");
        return;
    }
    assert_eq!(output.status.code(), Some(137), "{record}");
    let said = stderr(&output);
    assert!(
        said.lines()
            .next_back()
            .is_some_and(|last| last.contains("out of memory (limit 64M)")),
        "{said}"
    );
}
