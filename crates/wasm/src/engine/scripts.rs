//! Scripts of other languages: interpreters that were compiled before, each run in an instance of its own.
//!
//! An interpreter is WebAssembly that this build has (`interpreters`). The supervisor hands its compiled file over; the
//! first script of a worker loads it, and each one begins with a private copy of its memory.

mod archive;
mod javascript;
mod python;

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use offleash_simulated::engine::{
    EngineCommand, EngineEnd, ScriptHost, ScriptLanguage, ScriptPlace, ScriptRunner, ShellOutcome, Shortfall,
    ShortfallKind,
};
use offleash_sys::compiled_code::OwnCodeFile;
use rustix::io::Errno;
use wasmtime::component::ResourceTable;
use wasmtime::{Engine, InstancePre, Linker, Store};

use super::command::CommandState;
use super::descriptors::Descriptors;
use super::limits::ModuleLimits;
use super::paths::Files;
use super::{EXIT_FAILED, complain, outcome, preview1, tell_limits};

/// A memory that begins as a copy of pages is one piece of them, however much of it is empty.
const DENSE_IMAGE: u64 = 128 * 1024 * 1024;

/// What an interpreter's own imports have.
#[derive(Debug, Default)]
pub(super) struct ScriptState {
    /// What is to be taken of the answer to a request.
    pub(super) answer: Vec<u8>,
    javascript: javascript::JavaScriptState,
}

/// An engine that interpreters are compiled for and loaded into.
pub(crate) fn interpreter_engine() -> wasmtime::Result<Engine> {
    let mut config = super::config();
    config.memory_init_cow(true);
    config.memory_guaranteed_dense_image_size(DENSE_IMAGE);
    Engine::new(&config)
}

/// Runs scripts.
#[derive(Default)]
pub(crate) struct ScriptEngine {
    /// By the language's place in [`ScriptLanguage::ALL`].
    loaded: Mutex<[Option<Arc<LoadedInterpreter>>; ScriptLanguage::ALL.len()]>,
}

/// An interpreter that was loaded, with its imports.
struct LoadedInterpreter {
    engine: Engine,
    module: InstancePre<CommandState>,
}

impl LoadedInterpreter {
    fn new(language: ScriptLanguage, file: OwnedFd) -> wasmtime::Result<Self> {
        let engine = interpreter_engine()?;
        let module = OwnCodeFile::of_supervisor(file).load_module(&engine)?;
        let mut linker = Linker::new(&engine);
        preview1::add_to(&mut linker)?;
        match language {
            ScriptLanguage::Python => python::add_to(&mut linker)?,
            ScriptLanguage::JavaScript => javascript::add_to(&mut linker)?,
        }
        let module = linker.instantiate_pre(&module)?;
        Ok(Self { engine, module })
    }
}

impl ScriptEngine {
    fn interpreter(&self, language: ScriptLanguage, host: &dyn ScriptHost) -> Result<Arc<LoadedInterpreter>, String> {
        let place = match language {
            ScriptLanguage::Python => 0,
            ScriptLanguage::JavaScript => 1,
        };
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = loaded.get_mut(place).ok_or("no such language")?;
        if let Some(interpreter) = slot {
            return Ok(interpreter.clone());
        }
        let file = host.interpreter(language)?;
        let interpreter = LoadedInterpreter::new(language, file);
        let interpreter = Arc::new(interpreter.map_err(|error| format!("it cannot be loaded: {error:#}"))?);
        Ok(slot.insert(interpreter).clone())
    }
}

impl ScriptRunner for ScriptEngine {
    fn run(&self, language: ScriptLanguage, command: EngineCommand, place: ScriptPlace) -> EngineEnd {
        let name = command.argv.first().cloned().unwrap_or_default();
        let mut shortfalls = Vec::new();
        let interpreter = match self.interpreter(language, place.host.as_ref()) {
            Ok(interpreter) => interpreter,
            Err(why) => return not_here(place.host.as_ref(), &name, &why),
        };
        let outer = place.host.clone();
        let outcome = match state_of(language, command, place) {
            Ok(state) => {
                let mut store = Store::new(&interpreter.engine, state);
                store.limiter(|state| &mut state.limits);
                let ended = match language {
                    ScriptLanguage::Python => python::run(&interpreter.module, &mut store),
                    ScriptLanguage::JavaScript => javascript::run(&interpreter.module, &mut store),
                };
                tell_limits(outer.as_ref(), &name, &store.data().limits, &mut shortfalls);
                outcome(outer.as_ref(), &name, ended, &mut shortfalls)
            }
            Err(errno) => ShellOutcome::NoDirectory { errno },
        };
        EngineEnd { outcome, shortfalls }
    }
}

fn not_here(host: &dyn ScriptHost, name: &str, why: &str) -> EngineEnd {
    complain(host, name, why);
    EngineEnd {
        outcome: ShellOutcome::Exited(EXIT_FAILED),
        shortfalls: vec![Shortfall {
            kind: ShortfallKind::Unsupported,
            what: format!("{name}: {why}"),
        }],
    }
}

/// What a script has when it begins.
fn state_of(language: ScriptLanguage, command: EngineCommand, place: ScriptPlace) -> Result<CommandState, i32> {
    let (host, mounts) = match language {
        ScriptLanguage::Python => archive::with_library(place.host, place.mounts),
        ScriptLanguage::JavaScript => (place.host, place.mounts),
    };
    let files = Files::whole(host.clone(), &mounts);
    let root = files.root().ok_or(Errno::NOENT.raw_os_error())?;
    let cwd = files.at(command.cwd.as_os_str().as_encoded_bytes());
    files.check_directory(&cwd.ok_or(Errno::NOENT.raw_os_error())?)?;
    let mut env = command.env;
    if !env.iter().any(|(name, _)| name == "PWD") {
        env.push(("PWD".to_owned(), command.cwd.to_string_lossy().into_owned()));
    }
    Ok(CommandState {
        host,
        files,
        argv: command.argv,
        env,
        descriptors: Descriptors::rooted(root, command.input),
        limits: ModuleLimits::new(place.memory),
        table: ResourceTable::new(),
        began: Instant::now(),
        is_output_full: false,
        script: ScriptState::default(),
    })
}
