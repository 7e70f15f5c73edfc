//! Level `wasm`, from the command line: what a module is given, what becomes of what it writes, and which limits end it. What
//! the engine does with modules and components is tested with it (`offleash-wasm`).

#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot go on has failed, and starts programs itself"
)]

#[path = "wasm/hostile.rs"]
mod hostile;
mod support;

use std::fs;

use serde_json::Value;
use support::{Site, id_of, processes, record_of, stderr, stdout};

const LEVEL: [&str; 2] = ["--level", "wasm"];

/// Imports that most of the modules below have.
const IMPORTS: &str = r#"
    (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
    (import "wasi_snapshot_preview1" "args_get" (func $args (param i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "args_sizes_get" (func $args_sizes (param i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "environ_get" (func $environ (param i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "environ_sizes_get" (func $environ_sizes (param i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "path_open"
        (func $open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "fd_pwrite" (func $pwrite (param i32 i32 i32 i64 i32) (result i32)))
    (memory (export "memory") 2)
    (func $say (param $stream i32) (param $at i32) (param $length i32)
        (i32.store (i32.const 0) (local.get $at))
        (i32.store (i32.const 4) (local.get $length))
        (drop (call $write (local.get $stream) (i32.const 0) (i32.const 1) (i32.const 8))))
"#;

/// A command of preview 1 with these further fields.
fn module(fields: &str) -> Vec<u8> {
    wat::parse_str(format!("(module {IMPORTS} {fields})")).unwrap()
}

/// Puts a module into the workspace and runs it with these arguments; what was printed as a record.
fn run(site: &Site, module: &[u8], flags: &[&str], arguments: &[&str]) -> Value {
    fs::write(site.workspace().join("tool.wasm"), module).unwrap();
    let all = [
        &["run"][..],
        &LEVEL,
        &["--json"],
        flags,
        &["--", "./tool.wasm"],
        arguments,
    ]
    .concat();
    let run = site.offleash(all).output().unwrap();
    assert!(!stdout(&run).is_empty(), "{}", stderr(&run));
    record_of(&run)
}

#[test]
fn a_command_has_its_arguments_environment_input_and_exit_code() {
    let site = Site::new();
    // Arguments to standard output, variables to standard error, and then its input.
    let fields = r#"
        (func (export "_start")
            (drop (call $args_sizes (i32.const 16) (i32.const 20)))
            (drop (call $args (i32.const 1024) (i32.const 2048)))
            (call $say (i32.const 1) (i32.const 2048) (i32.load (i32.const 20)))
            (drop (call $environ_sizes (i32.const 16) (i32.const 20)))
            (drop (call $environ (i32.const 16384) (i32.const 32768)))
            (call $say (i32.const 2) (i32.const 32768) (i32.load (i32.const 20)))
            (i32.store (i32.const 0) (i32.const 1024))
            (i32.store (i32.const 4) (i32.const 512))
            (drop (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 12)))
            (call $say (i32.const 1) (i32.const 1024) (i32.load (i32.const 12)))
            (call $exit (i32.const 7)))"#;
    fs::write(site.workspace().join("tool.wasm"), module(fields)).unwrap();
    for _compiled_and_loaded in 0..2 {
        let mut told = site.offleash(["run", "--level", "wasm", "--env", "X=1", "--", "./tool.wasm", "a b"]);
        let told = processes::feed(&mut told, "input");
        assert_eq!(stdout(&told), "./tool.wasm\0a b\0input", "{}", stderr(&told));
        assert!(stderr(&told).contains("X=1\0"), "{}", stderr(&told));
        assert_eq!(told.status.code(), Some(7));
    }
}

#[test]
fn files_are_those_of_the_overlay_and_nothing_above_is_reached() {
    let site = Site::new();
    site.write("old", "0123456789");
    fs::write(site.root().join("outside"), "secret").unwrap();
    std::os::unix::fs::symlink("../outside", site.workspace().join("link")).unwrap();
    // Opens `old`, writes two bytes at its fifth, and makes `new`; says which error `../outside` and the link end with.
    let fields = r#"
        (data (i32.const 100) "old" "new" "../outside" "link" "/etc/passwd" "XY")
        (func $open_or_say (param $at i32) (param $length i32) (param $flags i32) (result i32)
            (i32.store (i32.const 32)
                (call $open (i32.const 3) (i32.const 1) (local.get $at) (local.get $length) (local.get $flags)
                    (i64.const 66) (i64.const 0) (i32.const 0) (i32.const 16)))
            (if (i32.load (i32.const 32))
                (then
                    (i32.store8 (i32.const 40) (i32.add (i32.const 48) (i32.div_u (i32.load (i32.const 32)) (i32.const 10))))
                    (i32.store8 (i32.const 41) (i32.add (i32.const 48) (i32.rem_u (i32.load (i32.const 32)) (i32.const 10))))
                    (call $say (i32.const 1) (i32.const 40) (i32.const 2))))
            (i32.load (i32.const 16)))
        (func (export "_start") (local $file i32)
            (local.set $file (call $open_or_say (i32.const 100) (i32.const 3) (i32.const 0)))
            (i32.store (i32.const 0) (i32.const 131))
            (i32.store (i32.const 4) (i32.const 2))
            (drop (call $pwrite (local.get $file) (i32.const 0) (i32.const 1) (i64.const 4) (i32.const 8)))
            (call $say (call $open_or_say (i32.const 103) (i32.const 3) (i32.const 1)) (i32.const 131) (i32.const 2))
            (drop (call $open_or_say (i32.const 106) (i32.const 10) (i32.const 0)))
            (drop (call $open_or_say (i32.const 116) (i32.const 4) (i32.const 0)))
            (drop (call $open_or_say (i32.const 120) (i32.const 11) (i32.const 0))))"#;
    let record = run(&site, &module(fields), &[], &[]);
    assert_eq!(record["exit_code"], 0, "{record}");
    assert_eq!(record["level"], "wasm");
    // Three times `perm`.
    assert_eq!(record["stdout"]["data"], "636363", "{record}");
    assert_eq!(fs::read_to_string(site.workspace().join("old")).unwrap(), "0123456789");
    site.succeed(["apply", &id_of(&record)]);
    assert_eq!(fs::read_to_string(site.workspace().join("old")).unwrap(), "0123XY6789");
    assert_eq!(fs::read_to_string(site.workspace().join("new")).unwrap(), "XY");
}

#[test]
fn what_the_level_does_not_have_is_refused_before_anything_starts() {
    let site = Site::new();
    for (flags, words) in [
        (&["--allow", "example.com"][..], "a network"),
        (&["-t"], "a terminal"),
        (&["--min-level", "process"], "process"),
    ] {
        let arguments = [&["run"][..], &LEVEL, flags, &["--", "./tool.wasm"]].concat();
        let refused = site.offleash(arguments).output().unwrap();
        assert_eq!(refused.status.code(), Some(125), "{flags:?}: {}", stderr(&refused));
        assert!(stderr(&refused).contains(words), "{flags:?}: {}", stderr(&refused));
    }
}
