//! The worker's own process: it gives up all but its socket, and then carries out what it is told.
//!
//! It is this program, started anew by its supervisor with nothing but a socket, so that nothing of the supervisor's memory is
//! in it. Before the first command it has an id of its own where there is one, no capability, no file system, no way to start
//! anything, limits, and a filter of system calls ([`offleash_sys::seccomp::compile_worker`]).

#[cfg(all(test, feature = "shell"))]
#[expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that cannot go on has failed, and starts bash itself"
)]
#[path = "conformance_tests.rs"]
mod conformance;
mod link;
#[cfg(feature = "shell")]
mod own_files;
#[cfg(feature = "shell")]
mod remote_files;
#[cfg(feature = "shell")]
mod root_files;
#[cfg(feature = "shell")]
mod scripts;
#[cfg(feature = "shell")]
mod shell;
#[cfg(feature = "shell")]
mod unresolved;

use std::ffi::CStr;
use std::io;
use std::sync::Arc;

use offleash_sys::rlimit::{self, LimitedResource, RlimitError};
use offleash_sys::seccomp::SeccompFilter;
use offleash_sys::{process, seccomp, seclusion};

use crate::engine::{
    EngineCommand, EngineEnd, EngineHost, EngineLimits, ScriptHost as _, ScriptRunner, ShellEngine, ShellOutcome,
    Shortfall,
};
use crate::wire::{FromWorker, ShellCommand, ShellEnd, ShortfallKind, ToWorker, WorkerSetup, WorkerWalls};
use link::Link;

/// The word of its role behind `offleash supervise`.
pub const WORKER_ROLE: &str = "simulated";
/// What lists of processes show.
const SHORT_NAME: &CStr = c"simulated";
/// What it has open: its socket, standard error, and nothing of the rest.
const MAX_OPEN_FILES: u64 = 16;
/// How much stack a command has. Only what is used of it is memory.
const STACK: usize = 512 * 1024 * 1024;
/// What the worker itself takes beside what a command allocates, its threads' stacks above all.
const OWN_MEMORY: u64 = STACK as u64 + 64 * 1024 * 1024;
/// Limits of what it has no need for at all.
const NOTHING: [LimitedResource; 6] = [
    LimitedResource::Core,
    LimitedResource::FileSize,
    LimitedResource::LockedMemory,
    LimitedResource::MessageQueues,
    LimitedResource::Nice,
    LimitedResource::RealtimePriority,
];

/// Is the worker of a simulated shell whose supervisor's socket is descriptor 0, until the supervisor is gone. With something
/// that runs scripts its filter lets memory become code.
///
/// # Errors
/// What keeps it from being one; standard error says it to the supervisor.
pub fn run(scripts: Option<Arc<dyn ScriptRunner>>) -> io::Result<()> {
    let filter = match scripts {
        Some(_) => script_filter,
        None => |_| seccomp::compile_worker(),
    };
    run_with(SHORT_NAME, filter, move |host, setup| engine(host, setup, scripts))
}

/// The filter of a worker that runs scripts, with an empty root directory or without one: there it takes no file of code.
pub fn script_filter(has_empty_root: bool) -> SeccompFilter {
    match has_empty_root {
        true => seccomp::compile_script_worker(),
        false => seccomp::compile_code_worker(),
    }
}

/// The same with another engine, if the build has it, under a name of its own. The filter is told whether there is an empty root
/// directory.
///
/// # Errors
/// As [`run`].
pub fn run_with<E>(name: &'static CStr, filter: fn(bool) -> SeccompFilter, engine: E) -> io::Result<()>
where
    E: FnOnce(&Arc<dyn EngineHost>, &WorkerSetup) -> Option<Box<dyn ShellEngine>> + Send + 'static,
{
    let link = Arc::new(Link::new(rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 0)?));
    let Some(ToWorker::Setup(setup)) = link.next()? else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let walls = seclude(name, filter, &setup)?;
    let work = move || {
        link.send(&FromWorker::Ready(walls))?;
        let host: Arc<dyn EngineHost> = link.clone();
        let engine = engine(&host, &setup);
        serve(&link, engine)
    };
    // After the filter is installed, so that no thread is without it.
    let thread = std::thread::Builder::new().name("shell".to_owned()).stack_size(STACK);
    thread
        .spawn(work)?
        .join()
        .map_err(|_| io::Error::other("it panicked"))?
}

/// Gives up all that a worker does not need, for good.
fn seclude(name: &CStr, filter: fn(bool) -> SeccompFilter, setup: &WorkerSetup) -> io::Result<WorkerWalls> {
    let limited = |error: RlimitError| io::Error::from(error.source);
    // Where one of the libraries gets its randomness from must be known before nothing can be asked.
    let _some = std::collections::hash_map::RandomState::new();
    rlimit::lower(LimitedResource::OpenFiles, MAX_OPEN_FILES).map_err(limited)?;
    for resource in NOTHING {
        rlimit::lower(resource, 0).map_err(limited)?;
    }
    if let Some(memory) = setup.memory {
        rlimit::lower(LimitedResource::Data, memory.saturating_add(OWN_MEMORY)).map_err(limited)?;
    }
    if let Some(seconds) = setup.cpu_seconds {
        rlimit::lower(LimitedResource::CpuSeconds, seconds).map_err(limited)?;
    }
    let left = seclusion::leave_files();
    seclusion::become_own_user()?;
    seclusion::hide_memory(name)?;
    // Now, because another id clears it. A supervisor that is gone already is noticed by its socket.
    process::die_with_parent()?;
    filter(left.has_empty_root).install()?;
    Ok(WorkerWalls {
        has_empty_root: left.has_empty_root,
        has_landlock: left.has_landlock,
    })
}

#[cfg(feature = "shell")]
fn engine(
    host: &Arc<dyn EngineHost>,
    setup: &WorkerSetup,
    scripts: Option<Arc<dyn ScriptRunner>>,
) -> Option<Box<dyn ShellEngine>> {
    let host = host.clone();
    let limits = EngineLimits {
        output: setup.output,
        tmp: setup.tmp,
        file_size: setup.file_size,
        memory: setup.memory,
    };
    Some(Box::new(shell::BashEngine::new(host, limits, setup, scripts)))
}

#[cfg(not(feature = "shell"))]
fn engine(_: &Arc<dyn EngineHost>, _: &WorkerSetup, _: Option<Arc<dyn ScriptRunner>>) -> Option<Box<dyn ShellEngine>> {
    None
}

/// Carries commands out, one after another.
fn serve(link: &Link, mut engine: Option<Box<dyn ShellEngine>>) -> io::Result<()> {
    let mut input = Vec::new();
    while let Some(message) = link.next()? {
        match message {
            ToWorker::Input(bytes) => input.extend_from_slice(&bytes),
            ToWorker::Exec(command) => {
                let input = std::mem::take(&mut input);
                let end = match &mut engine {
                    Some(engine) => carry_out(link, engine.as_mut(), command, input),
                    None => ShellEnd {
                        outcome: ShellOutcome::NoEngine,
                        shortfalls: Vec::new(),
                    },
                };
                link.send(&FromWorker::Ended(end))?;
            }
            // It has asked for nothing.
            ToWorker::Setup(_)
            | ToWorker::Files(_)
            | ToWorker::Program(_)
            | ToWorker::Ran(_)
            | ToWorker::Code(_)
            | ToWorker::NoCode { .. }
            | ToWorker::Interpreter(_) => {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
    }
    Ok(())
}

fn carry_out(link: &Link, engine: &mut dyn ShellEngine, command: ShellCommand, input: Vec<u8>) -> ShellEnd {
    let mut shortfalls = Vec::new();
    let ended = match read(command, input, &mut shortfalls) {
        Some(command) => engine.exec(command),
        None => EngineEnd {
            outcome: ShellOutcome::Exited(EXIT_UNSUPPORTED),
            shortfalls: Vec::new(),
        },
    };
    for shortfall in &shortfalls {
        let line = format!("offleash: unsupported: {}\n", shortfall.what);
        link.output(offleash_core::exec::OutputStream::Stderr, line.into_bytes());
    }
    shortfalls.extend(ended.shortfalls);
    ShellEnd {
        outcome: ended.outcome,
        shortfalls,
    }
}

/// What a command is answered that the engine cannot be told.
const EXIT_UNSUPPORTED: u8 = 2;

/// The command as text, which is all that the engine knows. A variable that is none is left out, and said so.
fn read(command: ShellCommand, input: Vec<u8>, shortfalls: &mut Vec<Shortfall>) -> Option<EngineCommand> {
    let mut lacks = |what: String| {
        let kind = ShortfallKind::Unsupported;
        shortfalls.push(Shortfall { kind, what });
    };
    let mut argv = Vec::with_capacity(command.argv.len());
    for word in command.argv {
        match String::from_utf8(word.0) {
            Ok(word) => argv.push(word),
            Err(_) => {
                lacks("a command that is not UTF-8".to_owned());
                return None;
            }
        }
    }
    let mut env = Vec::with_capacity(command.env.len());
    for (name, value) in command.env {
        match (String::from_utf8(name.0), String::from_utf8(value.0)) {
            (Ok(name), Ok(value)) => env.push((name, value)),
            (Ok(name), Err(_)) => lacks(format!("the variable {name}, which is not UTF-8")),
            _ => lacks("a variable whose name is not UTF-8".to_owned()),
        }
    }
    let Ok(cwd) = String::from_utf8(command.cwd.0) else {
        lacks("a directory whose path is not UTF-8".to_owned());
        return None;
    };
    Some(EngineCommand {
        argv,
        env,
        cwd: cwd.into(),
        input,
    })
}
