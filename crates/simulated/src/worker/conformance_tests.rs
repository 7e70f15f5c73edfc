//! How often the shell is right where bash is right: each line of `conformance/cases/*.txt` is a script, which both are given in a
//! directory of its own. `known.txt` lists those that differ; one that differs no more is to be taken out of it.
//!
//! `OFFLEASH_UPDATE_DOCS=1 cargo test -p offleash-simulated --features shell conformance` writes the list anew. The rate is in
//! `SPECIFICATION.md`. The engine is asked here, without a process and a socket between: those are the same for every script.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use offleash_core::exec::OutputStream;
use tempfile::TempDir;

use super::shell::BashEngine;
use crate::engine::{
    EngineCode, EngineCommand, EngineHost, EngineLimits, FileAnswer, FileRequest, ProgramPlace, ProgramRequest,
    ProgramRun, ScriptHost, ScriptLanguage, ShellEngine as _, ShellOutcome,
};
use crate::fixture::{PlanFixture, WORKSPACE};
use crate::sandbox::is_program;
use crate::served::ServedTrees;
use crate::wire::WorkerSetup;

/// What stands for a line feed in a case.
const LINE_FEED: char = '¶';
/// What both are given of variables.
const ENVIRONMENT: [(&str, &str); 4] = [
    ("PATH", "/usr/local/bin:/usr/bin:/bin"),
    ("HOME", "/home/user"),
    ("LC_ALL", "C"),
    ("TZ", "UTC"),
];
/// How many of bash go on at once.
const WORKERS: usize = 2;

/// What a script said and answered; that it complained, since the words are each one's own.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    stdout: Vec<u8>,
    status: Option<i32>,
    complains: bool,
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance")
}

/// A case: its name, which is its group and script.
fn cases() -> Vec<(String, String)> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(directory().join("cases"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    let mut found = Vec::new();
    for file in files {
        let group = file.file_stem().unwrap().to_str().unwrap().to_owned();
        let text = std::fs::read_to_string(&file).unwrap();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with("## ")) {
            found.push((format!("{group}: {line}"), line.replace(LINE_FEED, "\n")));
        }
    }
    found
}

fn bash(script: &str, directory: &Path) -> Command {
    let mut command = Command::new("bash");
    command.args(["--norc", "--noprofile", "-c", script]);
    command.current_dir(directory).env_clear().stdin(Stdio::null());
    command.envs(ENVIRONMENT);
    command
}

fn by_bash(script: &str) -> Told {
    let workspace = TempDir::new().unwrap();
    let output = bash(script, workspace.path()).output().unwrap();
    Told {
        stdout: output.stdout,
        status: output.status.code(),
        complains: !output.stderr.is_empty(),
    }
}

/// What bash answers to each, in their order.
fn all_by_bash(cases: &[(String, String)]) -> Vec<Told> {
    let next = AtomicUsize::new(0);
    let told = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some((_, script)) = cases.get(number) else { return };
                    let answer = by_bash(script);
                    told.lock().unwrap().push((number, answer));
                }
            });
        }
    });
    let mut told = told.into_inner().unwrap();
    told.sort_by_key(|(number, _)| *number);
    told.into_iter().map(|(_, told)| told).collect()
}

/// What an engine has in place of a supervisor: files, and what it said.
struct TestHost {
    trees: Mutex<ServedTrees>,
    stdout: Mutex<Vec<u8>>,
    complains: Mutex<bool>,
}

impl ScriptHost for TestHost {
    fn files(&self, request: FileRequest) -> FileAnswer {
        self.trees.lock().unwrap().answer(request)
    }

    fn output(&self, stream: OutputStream, bytes: Vec<u8>) -> bool {
        match stream {
            OutputStream::Stdout => self.stdout.lock().unwrap().extend_from_slice(&bytes),
            OutputStream::Stderr => *self.complains.lock().unwrap() |= !bytes.is_empty(),
        }
        true
    }

    fn interpreter(&self, _: ScriptLanguage) -> Result<std::os::fd::OwnedFd, String> {
        Err("there is none here".to_owned())
    }
}

impl EngineHost for TestHost {
    fn find_program(&self, name: &str) -> ProgramPlace {
        match is_program(name) {
            true => ProgramPlace::OutOfReach,
            false => ProgramPlace::Nowhere,
        }
    }

    fn run_program(&self, _: ProgramRequest) -> Option<ProgramRun> {
        None
    }

    fn code(&self, _: u32, _: &[u8], _: bool) -> Result<EngineCode, i32> {
        unreachable!("the shell compiles nothing")
    }

    fn keep_compiled(&self, _: &[u8]) {
        unreachable!("the shell compiles nothing")
    }
}

fn by_us(script: &str, user: &str) -> Told {
    let fixture = PlanFixture::new();
    let trees = ServedTrees::open(&fixture.plan).unwrap();
    let limits = &fixture.plan.limits;
    let setup = WorkerSetup {
        memory: limits.memory.map(|bytes| bytes.0),
        cpu_seconds: None,
        output: limits.output.map(|bytes| bytes.0),
        tmp: limits.tmp.map(|bytes| bytes.0),
        file_size: limits.file_size.map(|bytes| bytes.0),
        mounts: trees.mount_points(),
        user: user.to_owned(),
        home: b"/home/user".to_vec(),
        hostname: "sandbox".to_owned(),
    };
    let host = Arc::new(TestHost {
        trees: Mutex::new(trees),
        stdout: Mutex::default(),
        complains: Mutex::default(),
    });
    let limits = EngineLimits {
        output: setup.output,
        tmp: setup.tmp,
        file_size: setup.file_size,
        memory: setup.memory,
    };
    let ended = BashEngine::new(host.clone(), limits, &setup, None).exec(EngineCommand {
        argv: ["bash", "-c", script].map(str::to_owned).to_vec(),
        env: ENVIRONMENT
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .to_vec(),
        cwd: WORKSPACE.into(),
        input: Vec::new(),
    });
    let stdout = std::mem::take(&mut *host.stdout.lock().unwrap());
    let complains = *host.complains.lock().unwrap();
    Told {
        stdout,
        complains,
        status: match ended.outcome {
            ShellOutcome::Exited(code) => Some(i32::from(code)),
            _ => None,
        },
    }
}

/// What we answer to each, in their order: on one thread, since the engine notes what it cuts for the whole process.
fn all_by_us(cases: &[(String, String)], user: &str) -> Vec<Told> {
    std::thread::scope(|scope| {
        let all = || cases.iter().map(|(_, script)| by_us(script, user)).collect();
        let builder = std::thread::Builder::new().stack_size(super::STACK);
        builder.spawn_scoped(scope, all).unwrap().join().unwrap()
    })
}

/// The name of who runs the test; none where there is no account.
fn account() -> Option<String> {
    let output = bash("whoami", Path::new("/")).output().unwrap();
    let name = String::from_utf8(output.stdout).unwrap().trim().to_owned();
    Some(name).filter(|name| !name.is_empty())
}

#[test]
fn it_is_right_where_bash_is_right() {
    let asked = Command::new("bash").args(["-c", "echo ${BASH_VERSINFO[0]}"]).output();
    if asked.map_or(true, |asked| asked.stdout != b"5\n") {
        return eprintln!("SKIP: there is no bash 5");
    }
    let Some(user) = account() else {
        return eprintln!("SKIP: whoever runs this has no account, of which bash is asked");
    };
    let cases = cases();
    let (theirs, ours) = std::thread::scope(|scope| {
        let theirs = scope.spawn(|| all_by_bash(&cases));
        let ours = all_by_us(&cases, &user);
        (theirs.join().unwrap(), ours)
    });
    let answers = cases.iter().zip(theirs.iter().zip(&ours));
    let differing: BTreeSet<String> = answers
        .filter(|(_, (theirs, ours))| theirs != ours)
        .map(|((name, _), _)| name.clone())
        .collect();
    let known_file = directory().join("known.txt");
    if std::env::var_os("OFFLEASH_UPDATE_DOCS").is_some() {
        let lines: String = differing.iter().flat_map(|name| [name.as_str(), "\n"]).collect();
        std::fs::write(&known_file, lines).unwrap();
    }
    let known = std::fs::read_to_string(&known_file).unwrap();
    let known: BTreeSet<String> = known.lines().map(str::to_owned).collect();
    let right = cases.len() - differing.len();
    eprintln!("{right} of {} cases are as bash has them", cases.len());
    let unexpected: Vec<_> = differing.difference(&known).collect();
    let mended: Vec<_> = known.difference(&differing).collect();
    assert!(unexpected.is_empty(), "these differ from bash: {unexpected:#?}");
    assert!(
        mended.is_empty(),
        "these do not differ any more; take them out of `known.txt`: {mended:#?}"
    );
    let told = format!("{right} of {} cases alike", cases.len());
    let specification = std::fs::read_to_string(directory().join("../../../SPECIFICATION.md")).unwrap();
    assert!(
        specification.contains(&told),
        "SPECIFICATION.md says another rate than: {told}"
    );
}
