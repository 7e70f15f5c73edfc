//! Commands of a simulated shell that run scripts of other languages: in the same process, on the files that the shell has.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use offleash_bashkit::{Builtin, BuiltinContext, ExecResult, InMemoryFs};
use offleash_core::exec::OutputStream;

use crate::engine::{
    EngineCommand, FileAnswer, FileRequest, MountPoint, ScriptHost, ScriptLanguage, ScriptPlace, ScriptRunner,
    ShellOutcome, ShortfallKind,
};
use crate::worker::own_files;
use crate::worker::root_files::IN_MEMORY;
use crate::worker::unresolved::Noted;

/// What a shell answers of a command that a signal ended: this, and its number.
const EXIT_SIGNAL: i32 = 128;
/// Of one that could not be run.
const EXIT_NOT_EXECUTABLE: i32 = 126;
/// Of one that it ended.
const EXIT_LIMIT: i32 = 1;

/// What all such commands of a shell share.
#[derive(Clone)]
pub(super) struct ScriptSetting {
    pub(super) runner: Arc<dyn ScriptRunner>,
    pub(super) host: Arc<dyn ScriptHost>,
    /// The shell's files in memory.
    pub(super) own: Arc<InMemoryFs>,
    pub(super) mounts: Vec<MountPoint>,
    pub(super) memory: Option<u64>,
    /// Bytes that one command may write to its streams.
    pub(super) output: usize,
    pub(super) noted: Arc<Noted>,
}

/// A command of one language.
pub(super) struct ScriptCommand {
    pub(super) language: ScriptLanguage,
    pub(super) name: &'static str,
    pub(super) setting: ScriptSetting,
}

impl ScriptCommand {
    fn run(&self, context: &BuiltinContext<'_>) -> ExecResult {
        let Some(cwd) = context.cwd.to_str() else {
            return ExecResult::err(format!("{}: a directory that is not UTF-8\n", self.name), EXIT_LIMIT);
        };
        let mut env: Vec<(String, String)> = context
            .env
            .iter()
            .filter(|(name, _)| name.as_str() != "PWD")
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        env.sort();
        env.push(("PWD".to_owned(), cwd.to_owned()));
        let words = std::iter::once(self.name).chain(context.args.iter().map(String::as_str));
        let command = EngineCommand {
            argv: words.map(str::to_owned).collect(),
            env,
            cwd: cwd.into(),
            input: context.stdin.map(|input| input.as_bytes().to_vec()).unwrap_or_default(),
        };
        let host = Arc::new(CommandHost::new(&self.setting));
        let place = ScriptPlace {
            host: host.clone(),
            mounts: host.mounts.clone(),
            memory: self.setting.memory,
        };
        let end = self.setting.runner.run(self.language, command, place);
        for shortfall in end.shortfalls {
            self.setting.noted.note(shortfall.kind, shortfall.what);
        }
        let status = match end.outcome {
            ShellOutcome::Exited(code) => i32::from(code),
            ShellOutcome::Signaled { signal } => EXIT_SIGNAL.saturating_add(signal),
            ShellOutcome::NoDirectory { .. }
            | ShellOutcome::NotFound
            | ShellOutcome::NotExecutable
            | ShellOutcome::NoEngine => EXIT_NOT_EXECUTABLE,
        };
        let written = host.take();
        let mut result = ExecResult::ok_bytes(written.stdout);
        result.stderr = written.stderr.into();
        result.exit_code = status;
        if written.is_cut {
            let what = format!("output of {} of more than {} bytes", self.name, self.setting.output);
            result.stderr = format!("bash: limit: {what}\n").into_bytes().into();
            self.setting.noted.note(ShortfallKind::Limit, what);
            result.exit_code = EXIT_LIMIT;
        }
        result
    }
}

#[async_trait]
impl Builtin for ScriptCommand {
    async fn execute(&self, context: BuiltinContext<'_>) -> offleash_bashkit::Result<ExecResult> {
        Ok(self.run(&context))
    }
}

/// What a script has written.
#[derive(Debug, Default)]
struct ScriptOutput {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    is_cut: bool,
}

/// What a script reaches: the files of the supervisor, those of the shell, and streams that the shell goes on with.
struct CommandHost {
    outer: Arc<dyn ScriptHost>,
    own: Arc<InMemoryFs>,
    mounts: Vec<MountPoint>,
    /// How many of the mounts are the supervisor's. Those behind them are the shell's own:
    served: usize,
    /// these directories of its tree in memory.
    in_memory: &'static [&'static str],
    output: Mutex<ScriptOutput>,
    most: usize,
}

impl CommandHost {
    fn new(setting: &ScriptSetting) -> Self {
        let mut mounts = setting.mounts.clone();
        let served = mounts.len();
        // Where the root is served, the shell keeps no more than this.
        let in_memory: &[&str] = match mounts.iter().any(|mount| mount.path == b"/") {
            true => &IN_MEMORY,
            false => &["/"],
        };
        mounts.extend(in_memory.iter().map(|path| MountPoint {
            path: path.as_bytes().to_vec(),
        }));
        Self {
            outer: setting.host.clone(),
            own: setting.own.clone(),
            mounts,
            served,
            in_memory,
            output: Mutex::default(),
            most: setting.output,
        }
    }

    fn take(&self) -> ScriptOutput {
        std::mem::take(&mut self.output.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl ScriptHost for CommandHost {
    fn files(&self, request: FileRequest) -> FileAnswer {
        let number = usize::try_from(request.mount).unwrap_or(usize::MAX);
        let own = number.checked_sub(self.served).and_then(|own| self.in_memory.get(own));
        match own {
            Some(directory) => {
                let path = [directory.as_bytes(), b"/", &request.path].concat();
                own_files::answer(&self.own, &path, request.operation)
            }
            None => self.outer.files(request),
        }
    }

    fn interpreter(&self, language: ScriptLanguage) -> Result<std::os::fd::OwnedFd, String> {
        self.outer.interpreter(language)
    }

    fn output(&self, stream: OutputStream, bytes: Vec<u8>) -> bool {
        let mut output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        if output.stdout.len() + output.stderr.len() + bytes.len() > self.most {
            output.is_cut = true;
            return false;
        }
        match stream {
            OutputStream::Stdout => output.stdout.extend_from_slice(&bytes),
            OutputStream::Stderr => output.stderr.extend_from_slice(&bytes),
        }
        true
    }
}
