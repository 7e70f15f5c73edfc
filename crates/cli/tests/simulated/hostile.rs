//! Scripts that mean harm end that shell, with a typed outcome, and nothing else.

use crate::support::{Site, id_of, record_of, stderr, stdout};
use crate::{LEVEL, simulated};

#[test]
fn a_loop_without_end_reaches_a_limit_of_time() {
    let site = Site::new();
    for (flags, limit, code) in [
        (["--wall-time", "1s"], "wall_time", 124),
        (["--cpu-time", "1s"], "cpu_time", 137),
    ] {
        let record = site.record(&[&LEVEL[..], &flags].concat(), "while :; do :; done");
        assert_eq!(record["outcome"]["kind"], "limit_exceeded", "{record}");
        assert_eq!(record["outcome"]["limit"], limit);
        assert_eq!(record["exit_code"], code);
    }
}

#[test]
fn functions_call_each_other_a_thousand_times_and_no_further_than_their_bound() {
    let site = Site::new();
    let script = "f() { [ $1 -le 0 ] || { f $(($1-1)); }; }; f 1000 && echo done";
    let deep = simulated(&site, &[], script);
    assert_eq!(stdout(&deep), "done\n", "{}", stderr(&deep));
    let endless = simulated(&site, &["--json"], "f() { f; }; f; echo not reached");
    let record = record_of(&endless);
    assert_eq!(record["stdout"]["data"], "");
    assert_ne!(record["exit_code"], 0);
    assert_eq!(record["denials"][0]["subject"], "limit", "{record}");
}

#[test]
fn memory_is_bounded() {
    let site = Site::new();
    let script = "x=aaaaaaaaaaaaaaaa; while :; do x=$x$x; done";
    let record = site.record(&[&LEVEL[..], &["--memory", "256M"]].concat(), script);
    assert_ne!(record["exit_code"], 0, "{record}");
    let told = record["outcome"]["kind"] == "out_of_memory" || record["denials"][0]["subject"] == "limit";
    assert!(told, "{record}");
}

#[test]
fn what_is_cut_is_said_and_ends_with_another_status() {
    let site = Site::new();
    let whole = simulated(&site, &[], "echo {1..20000} | wc -w; seq 300000 | wc -l");
    assert_eq!(stdout(&whole), "20000\n300000\n", "{}", stderr(&whole));
    let cut = simulated(&site, &[], "x=2000000; eval \"echo {1..$x} | wc -w\"");
    assert_ne!(cut.status.code(), Some(0), "{}", stdout(&cut));
    assert!(!stderr(&cut).is_empty());
}

#[test]
fn output_beyond_the_limit_ends_the_run() {
    let site = Site::new();
    let record = site.record(&[&LEVEL[..], &["--output", "1000"]].concat(), "seq 100000");
    assert_eq!(record["outcome"]["limit"], "output", "{record}");
    assert_eq!(record["stdout"]["bytes"], 1000);
}

#[test]
fn the_layer_is_bounded_and_what_was_written_before_is_kept() {
    let site = Site::new();
    let script = "echo small > small; seq 200000 > big; echo $?";
    let record = site.record(&[&LEVEL[..], &["--workspace-size", "1M"]].concat(), script);
    assert_eq!(record["stdout"]["data"], "1\n", "{record}");
    assert_eq!(record["limits_hit"][0]["limit"], "workspace");
    assert_eq!(record["limits_hit"][0]["effect"], "refused");
    site.succeed(["discard", &id_of(&record)]);
}

#[test]
fn nested_beyond_measure_is_an_error_and_not_a_crash() {
    let site = Site::new();
    let parentheses = "(".repeat(10_000);
    let substitutions = format!("echo {}x{}", "$(".repeat(2_000), ")".repeat(2_000));
    let document = "cat <<EOF\nwithout end\n";
    for script in [parentheses.as_str(), substitutions.as_str()] {
        let run = simulated(&site, &[], script);
        assert!(matches!(run.status.code(), Some(1 | 2)), "{:?}", run.status);
        assert!(!stderr(&run).is_empty());
    }
    let run = simulated(&site, &[], document);
    assert!(run.status.code().is_some());
}

#[test]
fn workers_end_with_their_runs() {
    let site = Site::new();
    let mut run = site.offleash(["run", "--level", "simulated", "--", "sleep", "1000"]);
    let child = crate::processes::start(&mut run);
    let parent = child.id();
    let worker = crate::processes::eventually("the worker is there", || {
        crate::processes::children_named(parent, "simulated").first().copied()
    });
    crate::processes::signal(&child, rustix::process::Signal::KILL);
    crate::processes::finish(child);
    crate::processes::eventually("the worker is gone", || {
        (!std::path::Path::new(&format!("/proc/{worker}")).exists()).then_some(())
    });
}
