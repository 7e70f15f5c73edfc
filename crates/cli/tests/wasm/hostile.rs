//! Modules that do not end by themselves are ended by limits of the run. How others end is tested with the engine.

use std::fmt::Write as _;

use crate::support::Site;
use crate::{module, run};

#[test]
fn a_loop_without_end_reaches_a_limit_of_time() {
    let site = Site::new();
    let endless = module(r#"(func (export "_start") (loop $again (br $again)))"#);
    for (flags, limit, code) in [
        (["--wall-time", "1s"], "wall_time", 124),
        (["--cpu-time", "1s"], "cpu_time", 137),
    ] {
        let record = run(&site, &endless, &flags, &[]);
        assert_eq!(record["outcome"]["kind"], "limit_exceeded", "{record}");
        assert_eq!(record["outcome"]["limit"], limit);
        assert_eq!(record["exit_code"], code);
    }
}

#[test]
fn compiling_counts_as_time_of_the_run() {
    let site = Site::new();
    let mut long = String::from(r#"(func (export "_start")"#);
    for number in 0..300_000 {
        write!(long, "(i32.store (i32.const {number}) (i32.const {number}))").unwrap();
    }
    long.push(')');
    let record = run(&site, &module(&long), &["--cpu-time", "1s"], &[]);
    assert_eq!(record["outcome"]["limit"], "cpu_time", "{record}");
}

#[test]
fn a_trap_is_a_signal_and_what_is_no_module_does_not_start() {
    let site = Site::new();
    let traps = module(r#"(func (export "_start") unreachable)"#);
    for (bytes, code) in [(traps.as_slice(), 132), (b"#!/bin/sh\necho evil\n", 126)] {
        let record = run(&site, bytes, &[], &[]);
        assert_eq!(record["exit_code"], code, "{record}");
        assert!(
            record["stderr"]["data"].as_str().unwrap().contains("offleash: wasm: "),
            "{record}"
        );
    }
}
