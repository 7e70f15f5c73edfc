//! The engine: wasmtime, with what it is told and what becomes of how it ends.

mod command;
mod descriptors;
mod errno;
mod limits;
mod paths;
mod preview1;
mod preview2;
mod root_tree;
pub(crate) mod scripts;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use offleash_core::exec::OutputStream;
use offleash_simulated::engine::{
    EngineCode, EngineCommand, EngineEnd, EngineHost, MountPoint, ScriptHost, ScriptLanguage, ScriptPlace,
    ScriptRunner as _, ShellEngine, ShellOutcome, Shortfall, ShortfallKind, WorkerSetup,
};
use offleash_sys::compiled_code::OwnCode;
use rustix::io::Errno;
use wasmtime::component::{Component, Linker as ComponentLinker, ResourceTable};
use wasmtime::{Config, Engine, Linker, Module, Store, Trap};

use command::CommandState;
use descriptors::Descriptors;
use limits::{MAX_STACK, ModuleLimits};
use paths::{Files, TreePath};
use root_tree::RootedHost;
use scripts::{ScriptEngine, ScriptState};

/// What a command is answered that the engine gave up.
const EXIT_FAILED: u8 = 1;
/// The layer of a binary: a core module's or a component's (Component Model, "Binary Format").
const MAGIC: &[u8] = b"\0asm";
const LAYER: usize = 6;
const COMPONENT_LAYER: [u8; 2] = [1, 0];
/// How much is said of one thing.
const MAX_COMPLAINT: usize = 500;

/// What a module's code ends with when it ends itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExitCode(pub(crate) u32);

impl std::fmt::Display for ExitCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "exit code {}", self.0)
    }
}

impl std::error::Error for ExitCode {}

/// The engine.
pub(crate) struct WasmEngine {
    host: Arc<dyn EngineHost>,
    memory: Option<u64>,
    /// Bytes of files in memory.
    tmp: Option<u64>,
    mounts: Vec<MountPoint>,
    scripts: ScriptEngine,
}

/// Something that was compiled.
enum Program {
    Module(Module),
    Component(Component),
}

impl WasmEngine {
    pub(crate) fn new(host: Arc<dyn EngineHost>, setup: &WorkerSetup) -> Self {
        Self {
            host,
            memory: setup.memory,
            tmp: setup.tmp,
            mounts: setup.mounts.clone(),
            scripts: ScriptEngine::default(),
        }
    }

    fn carry_out(&self, command: EngineCommand, shortfalls: &mut Vec<Shortfall>) -> ShellOutcome {
        let files = Files::new(self.host.clone(), &self.mounts);
        let Some(cwd) = files.at(command.cwd.as_os_str().as_encoded_bytes()) else {
            return ShellOutcome::NoDirectory {
                errno: Errno::NOENT.raw_os_error(),
            };
        };
        if let Err(errno) = files.check_directory(&cwd) {
            return ShellOutcome::NoDirectory { errno };
        }
        let name = command.argv.first().map_or("", String::as_str);
        let engine = match configured() {
            Ok(engine) => engine,
            Err(error) => return self.fail(&error.to_string()),
        };
        let program = match self.program(&engine, &files, &cwd, name) {
            Ok(program) => program,
            Err(LoadFailure::NotFound) => return ShellOutcome::NotFound,
            Err(LoadFailure::NotExecutable(why)) => {
                self.complain(&why);
                return ShellOutcome::NotExecutable;
            }
        };
        let descriptors = Descriptors::new(&cwd, &self.mounts, command.input);
        let state = CommandState {
            host: self.host.clone(),
            files,
            argv: command.argv,
            env: command.env,
            descriptors,
            limits: ModuleLimits::new(self.memory),
            table: ResourceTable::new(),
            began: std::time::Instant::now(),
            is_output_full: false,
            script: ScriptState::default(),
        };
        let mut store = Store::new(&engine, state);
        store.limiter(|state| &mut state.limits);
        let ended = match program {
            Program::Module(module) => run_module(&engine, &mut store, &module),
            Program::Component(component) => run_component(&engine, &mut store, &component),
        };
        let host = self.host.as_ref();
        tell_limits(host, WASM, &store.data().limits, shortfalls);
        outcome(host, WASM, ended, shortfalls)
    }

    /// Runs a script, on the files of the plan below a root in memory.
    fn run_script(&self, language: ScriptLanguage, command: EngineCommand) -> EngineEnd {
        let rooted = Arc::new(RootedHost::new(self.host.clone(), &self.mounts, self.tmp));
        let place = ScriptPlace {
            mounts: rooted.mounts().to_vec(),
            host: rooted,
            memory: self.memory,
        };
        self.scripts.run(language, command, place)
    }

    /// Loads the program of this name, or compiles it.
    fn program(&self, engine: &Engine, files: &Files, cwd: &TreePath, name: &str) -> Result<Program, LoadFailure> {
        let path = files.program(cwd, name).map_err(|_| LoadFailure::NotFound)?;
        let (mount, below) = path.as_request();
        let code = |anew| {
            let code = self.host.code(mount, &below, anew);
            code.map_err(|errno| match Errno::from_raw_os_error(errno) {
                Errno::NOENT | Errno::NOTDIR => LoadFailure::NotFound,
                Errno::FBIG => LoadFailure::NotExecutable(format!("{name}: more code than a module may have")),
                other => LoadFailure::NotExecutable(format!("{name}: {other}")),
            })
        };
        let source = match code(false)? {
            EngineCode::Compiled(compiled) => match load(engine, &compiled) {
                Some(program) => return Ok(program),
                // Another machine's, or another configuration's.
                None => match code(true)? {
                    EngineCode::Source(source) => source,
                    EngineCode::Compiled(_) => return Err(LoadFailure::NotExecutable(name.to_owned())),
                },
            },
            EngineCode::Source(source) => source,
        };
        self.compile(engine, &source)
            .map_err(|error| LoadFailure::NotExecutable(format!("{name}: {error:#}")))
    }

    /// Compiles a module or a component, told apart by their bytes, and has the result kept before any of it is executed.
    fn compile(&self, engine: &Engine, source: &[u8]) -> wasmtime::Result<Program> {
        if !source.starts_with(MAGIC) {
            return Err(wasmtime::Error::msg("it is not WebAssembly"));
        }
        let is_component = source.get(LAYER..LAYER + 2) == Some(&COMPONENT_LAYER);
        let (program, compiled) = match is_component {
            true => {
                let component = Component::from_binary(engine, source)?;
                let compiled = component.serialize()?;
                (Program::Component(component), compiled)
            }
            false => {
                let module = Module::from_binary(engine, source)?;
                let compiled = module.serialize()?;
                (Program::Module(module), compiled)
            }
        };
        self.host.keep_compiled(&compiled);
        Ok(program)
    }

    fn fail(&self, what: &str) -> ShellOutcome {
        self.complain(what);
        ShellOutcome::Exited(EXIT_FAILED)
    }

    fn complain(&self, what: &str) {
        complain(self.host.as_ref(), WASM, what);
    }
}

/// What lines about modules begin with.
const WASM: &str = "wasm";

/// Says on standard error what became of a module, or of what is named.
fn complain(host: &dyn ScriptHost, name: &str, what: &str) {
    let what: String = what.chars().take(MAX_COMPLAINT).collect();
    let line = format!("offleash: {name}: {what}\n").into_bytes();
    host.output(OutputStream::Stderr, line);
}

/// What is told of limits that were hit.
fn tell_limits(host: &dyn ScriptHost, name: &str, limits: &ModuleLimits, shortfalls: &mut Vec<Shortfall>) {
    for limit in limits.hit() {
        complain(host, name, &format!("limit: {limit}"));
        shortfalls.push(Shortfall {
            kind: ShortfallKind::Limit,
            what: limit,
        });
    }
}

/// How a command ended whose code ended so; `name` begins the line that says why.
fn outcome(
    host: &dyn ScriptHost,
    name: &str,
    ended: wasmtime::Result<()>,
    shortfalls: &mut Vec<Shortfall>,
) -> ShellOutcome {
    let Err(error) = ended else {
        return ShellOutcome::Exited(0);
    };
    if let Some(ExitCode(code)) = error.downcast_ref() {
        // As `exit` does: the low byte.
        return ShellOutcome::Exited(u8::try_from(code & 0xff).unwrap_or(EXIT_FAILED));
    }
    if let Some(trap) = error.downcast_ref::<Trap>() {
        complain(host, name, &format!("trap: {trap}"));
        return ShellOutcome::Signaled {
            signal: signal_of(*trap),
        };
    }
    if let Some(lacks) = error.downcast_ref::<Lacks>() {
        shortfalls.push(Shortfall {
            kind: ShortfallKind::Unsupported,
            what: lacks.0.clone(),
        });
    }
    // Whoever takes no more has said so.
    if error.downcast_ref::<OutputFull>().is_none() {
        complain(host, name, &format!("{error:#}"));
    }
    ShellOutcome::Exited(EXIT_FAILED)
}

/// Nobody takes any more of a command's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OutputFull;

impl std::fmt::Display for OutputFull {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("more output than is taken")
    }
}

impl std::error::Error for OutputFull {}

/// Why there is no program.
enum LoadFailure {
    NotFound,
    NotExecutable(String),
}

/// Something that a module wants and this level does not have.
#[derive(Debug)]
pub(crate) struct Lacks(pub(crate) String);

impl std::fmt::Display for Lacks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "unsupported: {}", self.0)
    }
}

impl std::error::Error for Lacks {}

/// An engine as every worker has it: what was compiled by one is loaded by another.
fn configured() -> wasmtime::Result<Engine> {
    let mut config = config();
    // It would need a file in memory, which a locked worker cannot make.
    config.memory_init_cow(false);
    Engine::new(&config)
}

/// What all engines here have.
fn config() -> Config {
    let mut config = Config::new();
    // A stack that overflows is a trap; the thread's own is far larger.
    config.max_wasm_stack(MAX_STACK);
    // Of stacks that nothing has here; yet it is compared with the other.
    config.async_stack_size(MAX_STACK);
    config.wasm_memory64(false);
    // What is said of an error is one line.
    config.wasm_backtrace_max_frames(None);
    config.generate_address_map(false);
    config.native_unwind_info(false);
    config
}

fn load(engine: &Engine, compiled: &[u8]) -> Option<Program> {
    let own = OwnCode::of_supervisor(compiled);
    match Engine::detect_precompiled(compiled)? {
        wasmtime::Precompiled::Module => own.load_module(engine).ok().map(Program::Module),
        wasmtime::Precompiled::Component => own.load_component(engine).ok().map(Program::Component),
    }
}

fn run_module(engine: &Engine, store: &mut Store<CommandState>, module: &Module) -> wasmtime::Result<()> {
    let mut linker = Linker::new(engine);
    preview1::add_to(&mut linker)?;
    for import in module.imports() {
        if linker.get_by_import(&mut *store, &import).is_none() {
            let lacks = format!("the import `{}` of `{}`", import.name(), import.module());
            return Err(wasmtime::Error::new(Lacks(lacks)));
        }
    }
    let instance = linker.instantiate(&mut *store, module)?;
    let Ok(start) = instance.get_typed_func::<(), ()>(&mut *store, "_start") else {
        return Err(wasmtime::Error::new(Lacks(
            "a module that is no command: it has no `_start`".to_owned(),
        )));
    };
    start.call(store, ())
}

fn run_component(engine: &Engine, store: &mut Store<CommandState>, component: &Component) -> wasmtime::Result<()> {
    let mut linker = ComponentLinker::new(engine);
    preview2::add_to(&mut linker)?;
    preview2::refuse_sockets(&mut linker, engine, component)?;
    let instance = linker
        .instantiate(&mut *store, component)
        .map_err(|error| match error.downcast_ref::<Trap>() {
            Some(_) => error,
            None if error.downcast_ref::<ExitCode>().is_some() => error,
            None => wasmtime::Error::new(Lacks(format!("{error:#}"))),
        })?;
    let run = preview2::find_run(component).ok_or_else(|| {
        wasmtime::Error::new(Lacks(
            "a component that is no command: it has no `wasi:cli/run`".to_owned(),
        ))
    })?;
    let run = instance.get_typed_func::<(), (Result<(), ()>,)>(&mut *store, run)?;
    match run.call(store, ())?.0 {
        Ok(()) => Ok(()),
        Err(()) => Err(wasmtime::Error::new(ExitCode(u32::from(EXIT_FAILED)))),
    }
}

/// The signal with which a program of the machine would have ended.
fn signal_of(trap: Trap) -> i32 {
    const SIGILL: i32 = 4;
    const SIGABRT: i32 = 6;
    const SIGFPE: i32 = 8;
    const SIGSEGV: i32 = 11;
    match trap {
        Trap::UnreachableCodeReached => SIGILL,
        Trap::IntegerDivisionByZero | Trap::IntegerOverflow | Trap::BadConversionToInteger => SIGFPE,
        Trap::StackOverflow | Trap::MemoryOutOfBounds | Trap::TableOutOfBounds | Trap::HeapMisaligned => SIGSEGV,
        _ => SIGABRT,
    }
}

impl ShellEngine for WasmEngine {
    fn exec(&mut self, command: EngineCommand) -> EngineEnd {
        let name = command.argv.first().map_or("", String::as_str);
        if let Some(language) = ScriptLanguage::of_command(name) {
            return self.run_script(language, command);
        }
        let mut shortfalls = Vec::new();
        let outcome = self.carry_out(command, &mut shortfalls);
        EngineEnd { outcome, shortfalls }
    }
}
