//! Contexts of code in sandboxes: what `interpreter` needs of a sandbox, by way of its supervisor.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use offleash_core::error::{ErrorKind, Explained as _};
use offleash_core::level::Level;
use offleash_core::template::PythonModule;
use offleash_interpreter::contexts::{Contexts, is_driver};
use offleash_interpreter::error::ContextError;
use offleash_interpreter::language::Language;
use offleash_interpreter::limits::CellLimits;
use offleash_interpreter::process::{
    EndedProcess, ProcessError, ProcessHost, ProcessNews, ProcessStart, ProcessStream, RunningProcess,
};
use offleash_supervisor::service::client::{ExecNews, ExecStream, SupervisorClient};
use offleash_supervisor::service::error::{SupervisorError, reason};
use offleash_supervisor::service::message::{Selector, StartExec};

use crate::host::SandboxHost;
use crate::sandboxes::SandboxEntry;

/// The contexts of one sandbox.
pub type SandboxContexts = Contexts<SandboxProcesses>;

/// The contexts of all sandboxes in which somebody asked for some.
#[derive(Debug)]
pub(crate) struct ContextTable {
    host: Arc<SandboxHost>,
    by_sandbox: Mutex<HashMap<String, KnownContexts>>,
}

/// The contexts of a sandbox, and the variables that their drivers are given.
#[derive(Debug)]
struct KnownContexts {
    contexts: Arc<SandboxContexts>,
    env: Arc<RwLock<Environment>>,
}

/// Variables that every command in a sandbox gets.
type Environment = Arc<BTreeMap<String, String>>;

impl ContextTable {
    pub(crate) fn new(host: Arc<SandboxHost>) -> Self {
        Self {
            host,
            by_sandbox: Mutex::default(),
        }
    }

    fn by_sandbox(&self) -> MutexGuard<'_, HashMap<String, KnownContexts>> {
        self.by_sandbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The contexts of the sandbox of `entry`. For those that are not known, drivers get `env`, and copies of a zygote's
    /// process if it `has_zygote`.
    fn get_or_make(&self, entry: &SandboxEntry, env: Environment, has_zygote: bool) -> Arc<SandboxContexts> {
        let mut all = self.by_sandbox();
        if let Some(known) = all.get(entry.name()) {
            return Arc::clone(&known.contexts);
        }
        let env = Arc::new(RwLock::new(env));
        let processes = SandboxProcesses {
            supervisor: self.host.supervisor(entry.id()),
            env: Arc::clone(&env),
            has_zygote,
            level: entry.specification().level.parse().ok(),
        };
        let contexts = Contexts::new(processes, CellLimits::default());
        let contexts = contexts.working_in(entry.specification().work_directory().to_owned());
        // Nobody has started a driver in one of ours before.
        let contexts = Arc::new(match entry.is_adopted() {
            true => contexts,
            false => contexts.without_others(),
        });
        let known = KnownContexts {
            contexts: Arc::clone(&contexts),
            env,
        };
        all.insert(entry.name().to_owned(), known);
        contexts
    }

    /// The contexts of a sandbox that runs.
    pub(crate) fn of(&self, entry: &SandboxEntry) -> Arc<SandboxContexts> {
        let specification = entry.specification();
        // A copy has read them when they were others.
        let is_late = specification
            .env
            .keys()
            .any(|name| Language::is_read_by_python_at_start(name));
        let has_zygote = specification.zygote.is_some() && !is_late;
        self.get_or_make(entry, Arc::new(specification.env.clone()), has_zygote)
    }

    /// Starts the interpreter of a sandbox that waits, and has it import what its first cells are likely to want.
    ///
    /// # Errors
    /// When the interpreter cannot be started, or cannot import that.
    pub(crate) async fn prepare(&self, entry: &SandboxEntry, imports: &[PythonModule]) -> Result<(), ContextError> {
        let contexts = self.get_or_make(entry, Environment::default(), entry.zygote().is_some());
        let modules: Vec<String> = imports.iter().map(PythonModule::to_string).collect();
        contexts.prepare(&modules).await
    }

    /// Starts the interpreter of a sandbox that was just made for somebody, who does not wait for it.
    pub(crate) fn begin(&self, entry: &SandboxEntry) {
        let contexts = self.of(entry);
        // Whoever runs the first cell tries again if it fails, and is told.
        tokio::spawn(async move { contexts.begin(Language::Python).await });
    }

    /// Gives a sandbox that was made ahead its variables, before it is anybody's.
    pub(crate) fn hand_out(&self, id: &str, env: &BTreeMap<String, String>) {
        if let Some(known) = self.by_sandbox().get(id) {
            *known.env.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(env.clone());
        }
    }

    /// The sandbox is gone.
    pub(crate) fn forget(&self, id: &str) {
        self.by_sandbox().remove(id);
    }
}

/// The contexts of the sandbox of that level that `supervisor` holds, in which every command has the variables of `env`.
pub(crate) fn contexts_of(
    supervisor: SupervisorClient,
    env: BTreeMap<String, String>,
    level: Level,
) -> SandboxContexts {
    let env = Arc::new(RwLock::new(Arc::new(env)));
    let processes = SandboxProcesses {
        supervisor,
        env,
        has_zygote: false,
        level: Some(level),
    };
    Contexts::new(processes, CellLimits::default())
}

/// Whether a command of a sandbox is the driver of a context, which nobody started as a command.
pub fn is_driver_tag(tag: Option<&str>) -> bool {
    tag.is_some_and(is_driver)
}

/// The processes of a sandbox, with the variables that every command in it gets.
#[derive(Debug, Clone)]
pub struct SandboxProcesses {
    supervisor: SupervisorClient,
    env: Arc<RwLock<Environment>>,
    /// Whether copies of a zygote's process can be had.
    has_zygote: bool,
    /// The sandbox's level, once it is made.
    level: Option<Level>,
}

/// A sandbox of this level runs no interpreter.
#[derive(Debug, thiserror::Error)]
#[error("level `{level}` cannot run interpreters of code; level `process` can")]
struct NoInterpreters {
    level: Level,
}

/// What a driver writes.
#[derive(Debug)]
pub struct SandboxStream {
    stream: ExecStream,
}

impl ProcessHost for SandboxProcesses {
    type Stream = SandboxStream;

    async fn start(&self, start: ProcessStart) -> Result<SandboxStream, ProcessError> {
        if let Some(level) = self.level.filter(|level| !level.has_processes()) {
            return Err(ProcessError::Other {
                kind: ErrorKind::Unsupported,
                error: Box::new(NoInterpreters { level }),
            });
        }
        let bytes = |(name, value): (&String, &String)| (name.clone().into_bytes(), value.clone().into_bytes());
        let exec = StartExec {
            argv: start.argv.into_iter().map(String::into_bytes).collect(),
            env: self.environment().iter().map(bytes).collect(),
            cwd: start.cwd.map(String::into_bytes),
            stdin: true,
            tag: Some(start.tag),
            ..StartExec::default()
        };
        let stream = match self.has_zygote && start.language == Language::Python {
            true => self.supervisor.start_copy(exec).await,
            false => self.supervisor.start(exec).await,
        };
        let stream = stream.map_err(told)?;
        Ok(SandboxStream { stream })
    }

    fn environment(&self) -> Environment {
        Arc::clone(&self.env.read().unwrap_or_else(PoisonError::into_inner))
    }

    async fn attach(&self, pid: u32) -> Result<SandboxStream, ProcessError> {
        let stream = self.supervisor.attach(&Selector::Pid(pid)).await.map_err(told)?;
        Ok(SandboxStream { stream })
    }

    async fn list(&self) -> Result<Vec<RunningProcess>, ProcessError> {
        let processes = self.supervisor.processes().await.map_err(told)?;
        let running = processes.into_iter().map(|process| RunningProcess {
            pid: process.pid,
            tag: process.tag,
            cwd: String::from_utf8_lossy(&process.cwd).into_owned(),
        });
        Ok(running.collect())
    }

    async fn input(&self, pid: u32, bytes: Vec<u8>) -> Result<(), ProcessError> {
        self.supervisor.input(&Selector::Pid(pid), bytes).await.map_err(told)
    }

    async fn signal(&self, pid: u32, signal: i32) -> Result<(), ProcessError> {
        self.supervisor.signal(&Selector::Pid(pid), signal).await.map_err(told)
    }

    async fn ended(&self) -> Result<Vec<EndedProcess>, ProcessError> {
        let ends = self.supervisor.ends().await.map_err(told)?;
        let ended = ends.into_iter().map(|past| EndedProcess {
            tag: past.tag,
            cwd: String::from_utf8_lossy(&past.cwd).into_owned(),
            end: past.end,
            note: past.note,
        });
        Ok(ended.collect())
    }

    async fn note_end(&self, tag: &str, note: Option<String>) -> Result<(), ProcessError> {
        self.supervisor.note_end(tag, note).await.map_err(told)
    }
}

impl ProcessStream for SandboxStream {
    fn pid(&self) -> u32 {
        self.stream.pid()
    }

    fn why_gone(&self) -> Option<String> {
        self.stream.why_gone().map(str::to_owned)
    }

    async fn next(&mut self) -> Result<Option<ProcessNews>, ProcessError> {
        loop {
            let news = self.stream.next().await.map_err(told)?;
            return Ok(match news {
                None => None,
                Some(ExecNews::Output { stream, bytes }) => Some(ProcessNews::Output(stream, bytes)),
                Some(ExecNews::Ended(end)) => Some(ProcessNews::Ended(end)),
                // Its end follows; none was started with a time.
                Some(ExecNews::TimedOut) => continue,
            });
        }
    }
}

fn told(error: SupervisorError) -> ProcessError {
    match error {
        SupervisorError::Gone => ProcessError::Gone,
        SupervisorError::Paused => ProcessError::Paused,
        SupervisorError::NotFound | SupervisorError::NotExecutable { .. } => ProcessError::NotFound,
        SupervisorError::NoProcess | SupervisorError::InputClosed => ProcessError::Ended,
        SupervisorError::Directory { errno } => ProcessError::Directory {
            reason: reason(errno).to_string(),
        },
        other => ProcessError::Other {
            kind: other.kind(),
            error: Box::new(other),
        },
    }
}
