//! The engine behind the filter of its worker, with files in memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::thread;

use offleash_simulated::engine::{FileAnswer, FileEntry, FileFacts, FileKind, FileOperation, FileRequest};
use offleash_simulated::engine::{ProgramPlace, ProgramRequest, ProgramRun};
use offleash_sys::seccomp;

use super::*;

const PROGRAM: &str = "tool.wasm";

/// Imports that most of the modules below have.
const IMPORTS: &str = r#"
    (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
    (import "wasi_snapshot_preview1" "args_get" (func $args (param i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "path_open"
        (func $open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "fd_pwrite" (func $pwrite (param i32 i32 i32 i64 i32) (result i32)))
    (memory (export "memory") 2)
    (func $say (param $stream i32) (param $at i32) (param $length i32)
        (i32.store (i32.const 0) (local.get $at))
        (i32.store (i32.const 4) (local.get $length))
        (drop (call $write (local.get $stream) (i32.const 0) (i32.const 1) (i32.const 8))))
"#;

/// A supervisor whose files are in memory, and that keeps what was compiled.
#[derive(Default)]
struct FakeHost(Mutex<FakeState>);

#[derive(Default)]
struct FakeState {
    files: BTreeMap<Vec<u8>, Vec<u8>>,
    links: BTreeMap<Vec<u8>, Vec<u8>>,
    compiled: Option<Vec<u8>>,
    compiled_times: usize,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

fn facts(kind: FileKind, size: usize) -> FileFacts {
    FileFacts {
        kind,
        mode: 0o644,
        size: size as u64,
        seconds: 0,
        nanoseconds: 0,
    }
}

impl FakeState {
    fn answer(&mut self, path: &[u8], operation: FileOperation) -> Result<FileAnswer, Errno> {
        if let FileOperation::Stat = operation {
            return match (path, self.links.contains_key(path), self.files.get(path)) {
                (b"", ..) => Ok(FileAnswer::Facts(facts(FileKind::Directory, 0))),
                (_, true, _) => Ok(FileAnswer::Facts(facts(FileKind::Symlink, 0))),
                (_, _, Some(file)) => Ok(FileAnswer::Facts(facts(FileKind::File, file.len()))),
                _ => Err(Errno::NOENT),
            };
        }
        match operation {
            FileOperation::Replace { bytes, .. } => {
                self.files.insert(path.to_vec(), bytes);
                return Ok(FileAnswer::Done);
            }
            FileOperation::ReadLink => {
                return self
                    .links
                    .get(path)
                    .cloned()
                    .map(FileAnswer::Target)
                    .ok_or(Errno::INVAL);
            }
            FileOperation::List => {
                let entry = |(name, file): (&Vec<u8>, &Vec<u8>)| FileEntry {
                    name: name.clone(),
                    facts: facts(FileKind::File, file.len()),
                };
                return Ok(FileAnswer::Entries(self.files.iter().map(entry).collect()));
            }
            _ => {}
        }
        let file = self.files.get_mut(path).ok_or(Errno::NOENT)?;
        match operation {
            FileOperation::Read { offset } => {
                let bytes = file
                    .get(usize::try_from(offset).expect("it fits")..)
                    .unwrap_or_default()
                    .to_vec();
                let total = file.len() as u64;
                return Ok(FileAnswer::Piece { bytes, total });
            }
            FileOperation::Write { offset, bytes } => {
                let offset = usize::try_from(offset).expect("it fits");
                file.resize(file.len().max(offset + bytes.len()), 0);
                file[offset..offset + bytes.len()].copy_from_slice(&bytes);
            }
            FileOperation::Append(bytes) => file.extend_from_slice(&bytes),
            FileOperation::Resize { size } => file.resize(usize::try_from(size).expect("it fits"), 0),
            _ => return Err(Errno::NOSYS),
        }
        Ok(FileAnswer::Done)
    }
}

impl ScriptHost for FakeHost {
    fn files(&self, request: FileRequest) -> FileAnswer {
        let mut state = self.0.lock().expect("nobody panicked");
        let answered = state.answer(&request.path, request.operation);
        answered.unwrap_or_else(|errno| FileAnswer::Failed {
            errno: errno.raw_os_error(),
        })
    }

    fn output(&self, stream: OutputStream, bytes: Vec<u8>) -> bool {
        let mut state = self.0.lock().expect("nobody panicked");
        match stream {
            OutputStream::Stdout => state.stdout.extend(bytes),
            OutputStream::Stderr => state.stderr.extend(bytes),
        }
        true
    }

    fn interpreter(&self, _: ScriptLanguage) -> Result<std::os::fd::OwnedFd, String> {
        Err("there is none here".to_owned())
    }
}

impl EngineHost for FakeHost {
    fn find_program(&self, _: &str) -> ProgramPlace {
        ProgramPlace::Nowhere
    }

    fn run_program(&self, _: ProgramRequest) -> Option<ProgramRun> {
        None
    }

    fn code(&self, _: u32, path: &[u8], anew: bool) -> Result<EngineCode, i32> {
        let state = self.0.lock().expect("nobody panicked");
        match (&state.compiled, state.files.get(path)) {
            (Some(compiled), _) if !anew => Ok(EngineCode::Compiled(compiled.clone())),
            (_, Some(source)) => Ok(EngineCode::Source(source.clone())),
            (_, None) => Err(Errno::NOENT.raw_os_error()),
        }
    }

    fn keep_compiled(&self, compiled: &[u8]) {
        let mut state = self.0.lock().expect("nobody panicked");
        state.compiled = Some(compiled.to_vec());
        state.compiled_times += 1;
    }
}

/// What became of a command.
struct Told {
    outcome: ShellOutcome,
    shortfalls: Vec<Shortfall>,
    stdout: String,
    stderr: String,
}

/// Runs the program of these files as a worker does: on a thread that can do no more than a worker.
fn told_by(host: &Arc<FakeHost>) -> Told {
    let engine_host: Arc<dyn EngineHost> = host.clone();
    let mut engine = WasmEngine {
        host: engine_host,
        memory: Some(16 * 1024 * 1024),
        tmp: None,
        scripts: ScriptEngine::default(),
        mounts: vec![MountPoint {
            path: b"/work".to_vec(),
        }],
    };
    let command = EngineCommand {
        argv: vec![format!("./{PROGRAM}"), "a b".to_owned()],
        env: vec![("X".to_owned(), "1".to_owned())],
        cwd: "/work".into(),
        input: b"input".to_vec(),
    };
    let filtered = thread::Builder::new().stack_size(64 * 1024 * 1024).spawn(move || {
        seccomp::compile_code_worker().install().expect("filters are supported");
        engine.exec(command)
    });
    let end = filtered.expect("a thread").join().expect("it ends well");
    let mut state = host.0.lock().expect("nobody panicked");
    Told {
        outcome: end.outcome,
        shortfalls: end.shortfalls,
        stdout: String::from_utf8(std::mem::take(&mut state.stdout)).expect("it is text"),
        stderr: String::from_utf8(std::mem::take(&mut state.stderr)).expect("it is text"),
    }
}

fn host_with(program: &[u8]) -> Arc<FakeHost> {
    let host = FakeHost::default();
    let mut state = host.0.lock().expect("nobody panicked");
    state.files.insert(PROGRAM.as_bytes().to_vec(), program.to_vec());
    drop(state);
    Arc::new(host)
}

fn module(fields: &str) -> Vec<u8> {
    wat::parse_str(format!("(module {IMPORTS} {fields})")).expect("it is a module")
}

fn told(program: &[u8]) -> Told {
    told_by(&host_with(program))
}

#[test]
fn a_command_has_its_arguments_input_and_exit_code_and_is_compiled_once() {
    let fields = r#"
        (func (export "_start")
            (drop (call $args (i32.const 1024) (i32.const 2048)))
            (call $say (i32.const 1) (i32.const 2048) (i32.const 16))
            (i32.store (i32.const 0) (i32.const 1024))
            (i32.store (i32.const 4) (i32.const 512))
            (drop (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 12)))
            (call $say (i32.const 2) (i32.const 1024) (i32.load (i32.const 12)))
            (call $exit (i32.const 263)))"#;
    let host = host_with(&module(fields));
    for _compiled_and_loaded in 0..2 {
        let told = told_by(&host);
        assert_eq!(told.outcome, ShellOutcome::Exited(7), "{}", told.stderr);
        assert_eq!(told.stdout, "./tool.wasm\0a b\0");
        assert_eq!(told.stderr, "input");
    }
    assert_eq!(host.0.lock().expect("nobody panicked").compiled_times, 1);
    // What no engine made is compiled anew.
    host.0.lock().expect("nobody panicked").compiled = Some(b"garbage".to_vec());
    assert_eq!(told_by(&host).outcome, ShellOutcome::Exited(7));
    assert_eq!(host.0.lock().expect("nobody panicked").compiled_times, 2);
}

#[test]
fn files_are_reached_below_the_directory_and_nowhere_else() {
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
    let host = host_with(&module(fields));
    let mut state = host.0.lock().expect("nobody panicked");
    state.files.insert(b"old".to_vec(), b"0123456789".to_vec());
    state.links.insert(b"link".to_vec(), b"../outside".to_vec());
    drop(state);
    let told = told_by(&host);
    // Three times `perm`.
    assert_eq!(
        (told.stdout.as_str(), told.outcome),
        ("636363", ShellOutcome::Exited(0))
    );
    let state = host.0.lock().expect("nobody panicked");
    assert_eq!(state.files[&b"old"[..]], b"0123XY6789");
    assert_eq!(state.files[&b"new"[..]], b"XY");
}

#[test]
fn traps_are_signals_and_say_so() {
    for (body, signal) in [
        ("unreachable", 4),
        ("(drop (i32.div_s (i32.const 1) (i32.const 0)))", 8),
        ("(i32.store (i32.const -8) (i32.const 0))", 11),
        ("(call $deeper)", 11),
    ] {
        let told = told(&module(&format!(
            r#"(func $deeper (call $deeper)) (func (export "_start") {body})"#
        )));
        assert_eq!(told.outcome, ShellOutcome::Signaled { signal }, "{body}");
        assert!(told.stderr.contains("wasm: trap: "), "{}", told.stderr);
    }
}

#[test]
fn memory_and_tables_do_not_grow_beyond_their_bounds() {
    let grows = told(&module(
        r#"(table $t 0 funcref) (func (export "_start")
            (loop $again (br_if $again (i32.ne (memory.grow (i32.const 16)) (i32.const -1))))
            (loop $again (br_if $again (i32.ne (table.grow $t (ref.null func) (i32.const 10000)) (i32.const -1))))
            (call $exit (i32.div_u (memory.size) (i32.const 16))))"#,
    ));
    assert_eq!(grows.outcome, ShellOutcome::Exited(15), "{}", grows.stderr);
    let limits = grows
        .shortfalls
        .iter()
        .filter(|shortfall| shortfall.kind == ShortfallKind::Limit);
    assert_eq!(limits.count(), 2);
    let too_much = wat::parse_str(r#"(module (memory 60000) (func (export "_start")))"#).expect("it is a module");
    let refused = told(&too_much);
    assert_eq!(refused.outcome, ShellOutcome::Exited(1), "{}", refused.stderr);
    assert_eq!(
        refused.shortfalls.first().map(|shortfall| shortfall.kind),
        Some(ShortfallKind::Limit)
    );
}

#[test]
fn what_is_no_command_does_not_start_and_what_is_not_here_is_named() {
    let whole = module(r#"(func (export "_start"))"#);
    let mut locals = String::from(r#"(func (export "_start") (local"#);
    locals.push_str(&" i64".repeat(50_001));
    locals.push_str("))");
    for bytes in [
        &b"#!/bin/sh\n"[..],
        b"",
        whole.get(..whole.len() - 3).expect("it is longer"),
        b"\0asm\x0d\0\x01\0garbage",
        // More locals than an implementation takes.
        &module(&locals),
    ] {
        let told = told(bytes);
        assert_eq!(told.outcome, ShellOutcome::NotExecutable, "{}", told.stderr);
        assert!(told.stderr.starts_with("offleash: wasm: "), "{}", told.stderr);
    }
    for (text, name) in [
        (
            r#"(module (import "env" "system" (func)) (func (export "_start")))"#,
            "system",
        ),
        (r#"(component (import "evil:os/system" (func)))"#, "evil:os/system"),
        ("(module (memory (export \"memory\") 1))", "_start"),
        ("(component)", "wasi:cli/run"),
        (
            r#"(component (import "wasi:http/outgoing-handler@0.2.0" (instance (export "handle" (func)))))"#,
            "wasi:http",
        ),
        // Which only a call would miss.
        (
            r#"(component (import "wasi:sockets/tcp@0.2.0" (instance (export "f" (func)))))"#,
            "wasi:cli/run",
        ),
    ] {
        let told = told(&wat::parse_str(text).expect("it is one"));
        assert_eq!(told.outcome, ShellOutcome::Exited(1), "{}", told.stderr);
        let lacks = told
            .shortfalls
            .first()
            .map(|shortfall| (shortfall.kind, shortfall.what.contains(name)));
        assert_eq!(lacks, Some((ShortfallKind::Unsupported, true)), "{}", told.stderr);
    }
}

#[test]
fn a_component_of_preview_2_is_told_by_its_bytes() {
    let host = host_with(&wat::parse_str(COMPONENT).expect("it is a component"));
    for _compiled_and_loaded in 0..2 {
        let told = told_by(&host);
        assert_eq!(told.stdout, "hello from a component\n", "{}", told.stderr);
        assert_eq!(told.outcome, ShellOutcome::Exited(1));
    }
}

/// Says hello and ends with the error of `run`.
const COMPONENT: &str = r#"
(component
    (import "wasi:io/error@0.2.0" (instance $error (export "error" (type (sub resource)))))
    (alias export $error "error" (type $error-type))
    (import "wasi:io/streams@0.2.0" (instance $streams
        (export "output-stream" (type $stream (sub resource)))
        (alias outer 1 $error-type (type $outer-error))
        (export "error" (type $e (eq $outer-error)))
        (type $stream-error' (variant (case "last-operation-failed" (own $e)) (case "closed")))
        (export "stream-error" (type $stream-error (eq $stream-error')))
        (export "[method]output-stream.blocking-write-and-flush" (func
            (param "self" (borrow $stream)) (param "contents" (list u8))
            (result (result (error $stream-error)))))))
    (alias export $streams "output-stream" (type $output-stream))
    (import "wasi:cli/stdout@0.2.0" (instance $stdout
        (alias outer 1 $output-stream (type $outer-stream))
        (export "output-stream" (type $s (eq $outer-stream)))
        (export "get-stdout" (func (result (own $s))))))
    (core module $libc (memory (export "memory") 1)
        (data (i32.const 16) "hello from a component\n"))
    (core instance $libc (instantiate $libc))
    (core func $get-stdout (canon lower (func $stdout "get-stdout")))
    (core func $write (canon lower (func $streams "[method]output-stream.blocking-write-and-flush")
        (memory (core memory $libc "memory"))))
    (core module $main
        (import "host" "get-stdout" (func $get-stdout (result i32)))
        (import "host" "write" (func $write (param i32 i32 i32 i32)))
        (func (export "run") (result i32)
            (call $write (call $get-stdout) (i32.const 16) (i32.const 23) (i32.const 64))
            (i32.const 1)))
    (core instance $main (instantiate $main (with "host" (instance
        (export "get-stdout" (func $get-stdout))
        (export "write" (func $write))))))
    (func $run (result (result)) (canon lift (core func $main "run")))
    (instance $exported (export "run" (func $run)))
    (export "wasi:cli/run@0.2.0" (instance $exported)))
"#;
