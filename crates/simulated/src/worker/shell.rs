//! The engine: bashkit, with what it is told and what becomes of what it cuts.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use offleash_bashkit::cuts::Told;
use offleash_bashkit::{
    Bash, Error, ExecOptions, ExecResult, ExecutionLimits, FileSystem, FsLimits, InMemoryFs, MemoryLimits,
    SessionLimits,
};
use offleash_core::exec::OutputStream;
use rustix::io::Errno;
use tokio::runtime::Runtime;

use crate::engine::{
    EngineCommand, EngineEnd, EngineHost, EngineLimits, ScriptLanguage, ScriptRunner, ShellEngine, ShellOutcome,
    ShortfallKind,
};
use crate::wire::{MountPoint, WorkerSetup};
use crate::worker::remote_files::RemoteFiles;
use crate::worker::root_files::RootFiles;
use crate::worker::scripts::{ScriptCommand, ScriptSetting};
use crate::worker::unresolved::{Noted, ProgramsElsewhere};

/// What a shell answers when it gives up.
const EXIT_LIMIT: u8 = 1;
const EXIT_SYNTAX: u8 = 2;
/// Longer than anything that its supervisor lets run.
const TIMEOUT: Duration = Duration::from_secs(10 * 366 * 24 * 3600);
/// How deep functions, sourced files and traps may call each other.
const MAX_FUNCTION_DEPTH: usize = 1_024;
/// How deep substitutions and subshells may be.
const MAX_NESTING: usize = 100;
/// What is not counted here, since time and memory bound it.
const UNCOUNTED: usize = usize::MAX / 4;
/// As much of files in memory and of what a command holds where there is no limit.
const NO_LIMIT: u64 = 1 << 40;
/// How much is said of one thing.
const MAX_COMPLAINT: usize = 500;
/// Directories that are there before anything is written.
const DIRECTORIES: [&str; 5] = ["/tmp", "/var/tmp", "/dev", "/usr/bin", "/bin"];

/// A served tree, and where it is.
type ServedMount = (PathBuf, RemoteFiles);

/// The engine.
pub(super) struct BashEngine {
    host: Arc<dyn EngineHost>,
    limits: EngineLimits,
    mounts: Vec<MountPoint>,
    user: String,
    home: PathBuf,
    hostname: String,
    /// What runs scripts of other languages.
    scripts: Option<Arc<dyn ScriptRunner>>,
}

impl BashEngine {
    pub(super) fn new(
        host: Arc<dyn EngineHost>,
        limits: EngineLimits,
        setup: &WorkerSetup,
        scripts: Option<Arc<dyn ScriptRunner>>,
    ) -> Self {
        Self {
            scripts,
            host,
            limits,
            mounts: setup.mounts.clone(),
            user: setup.user.clone(),
            home: String::from_utf8_lossy(&setup.home).into_owned().into(),
            hostname: setup.hostname.clone(),
        }
    }

    fn execution_limits(&self) -> ExecutionLimits {
        let output = usize::try_from(self.limits.output.unwrap_or(NO_LIMIT)).unwrap_or(UNCOUNTED);
        // One more than its supervisor takes: that is what ends it.
        let output = output.saturating_add(1).min(UNCOUNTED);
        let mut limits = ExecutionLimits::new()
            .max_work_units(u64::MAX / 2)
            .max_aggregate_input_bytes(u64::MAX / 2)
            .max_live_intermediate_bytes(self.limits.memory.unwrap_or(NO_LIMIT))
            .max_commands(UNCOUNTED)
            .max_loop_iterations(UNCOUNTED)
            .max_total_loop_iterations(UNCOUNTED)
            .max_function_depth(MAX_FUNCTION_DEPTH)
            .timeout(TIMEOUT)
            .parser_timeout(TIMEOUT)
            .max_input_bytes(64 * 1024 * 1024)
            .max_parser_operations(UNCOUNTED)
            .max_stdout_bytes(output)
            .max_stderr_bytes(output)
            .max_word_split_fields(UNCOUNTED)
            .max_word_split_bytes(UNCOUNTED)
            .max_history_entries(0);
        limits.max_subst_depth = MAX_NESTING;
        limits.max_subshell_depth = MAX_NESTING;
        limits
    }

    /// The commands that run scripts of other languages.
    fn script_commands(&self, own: &Arc<InMemoryFs>, noted: &Arc<Noted>) -> Vec<ScriptCommand> {
        let Some(runner) = &self.scripts else {
            return Vec::new();
        };
        let output = usize::try_from(self.limits.output.unwrap_or(NO_LIMIT)).unwrap_or(UNCOUNTED);
        let setting = ScriptSetting {
            runner: runner.clone(),
            host: self.host.clone(),
            own: own.clone(),
            mounts: self.mounts.clone(),
            memory: self.limits.memory,
            output,
            noted: noted.clone(),
        };
        let names = ScriptLanguage::ALL.into_iter().flat_map(|language| {
            let names = language.commands().iter();
            names.map(move |name| (language, *name))
        });
        let command = |(language, name)| ScriptCommand {
            language,
            name,
            setting: setting.clone(),
        };
        names.map(command).collect()
    }

    fn own_files(&self) -> Arc<InMemoryFs> {
        let mut limits = FsLimits::unlimited();
        limits.max_total_bytes = self.limits.tmp.unwrap_or(NO_LIMIT);
        limits.max_file_size = self.limits.file_size.unwrap_or(NO_LIMIT);
        limits.max_path_depth = 1024;
        limits.max_filename_length = 255;
        limits.max_path_length = 4096;
        Arc::new(InMemoryFs::with_limits(limits))
    }

    /// The served trees, with where they are.
    fn served(&self, noted: &Arc<Noted>) -> Vec<ServedMount> {
        let mount = |(number, mount): (usize, &MountPoint)| {
            let path = PathBuf::from(String::from_utf8_lossy(&mount.path).into_owned());
            let files = RemoteFiles {
                mount: u32::try_from(number).unwrap_or(u32::MAX),
                host: self.host.clone(),
                noted: noted.clone(),
            };
            (path, files)
        };
        self.mounts.iter().enumerate().map(mount).collect()
    }

    async fn carry_out(&self, command: EngineCommand, noted: &Arc<Noted>) -> ShellOutcome {
        let own = self.own_files();
        for directory in DIRECTORIES.iter().map(Path::new).chain([self.home.as_path()]) {
            if let Err(error) = own.mkdir(directory, true).await {
                self.complain(&format!("{}: {error}", directory.display()));
            }
        }
        let (root, others): (Vec<ServedMount>, _) = self
            .served(noted)
            .into_iter()
            .partition(|(path, _)| path == Path::new("/"));
        for parent in others.iter().filter_map(|(path, _)| path.parent()) {
            // There already, or below another mount.
            let _made = own.mkdir(parent, true).await;
        }
        let scripts = self.script_commands(&own, noted);
        let root = root.into_iter().next().map(|(_, served)| RootFiles {
            served,
            memory: own.clone(),
        });
        let files: Arc<dyn FileSystem> = match root {
            Some(root) => Arc::new(root),
            None => own,
        };
        let elsewhere = ProgramsElsewhere {
            host: self.host.clone(),
            noted: noted.clone(),
        };
        let stand_ins: Vec<_> = elsewhere.in_place_of_gestures().collect();
        let mut builder = Bash::builder()
            .fs(files)
            .limits(self.execution_limits())
            .memory_limits(MemoryLimits::unlimited())
            .session_limits(SessionLimits::unlimited())
            .username(&self.user)
            .hostname(&self.hostname)
            .command_resolver(Arc::new(elsewhere))
            .cwd(command.cwd.clone());
        for (name, value) in &command.env {
            builder = builder.env(name, value);
        }
        for command in scripts {
            builder = builder.builtin(command.name, Box::new(command));
        }
        for (name, command) in stand_ins {
            builder = builder.builtin(name, command);
        }
        let mut bash = builder.build();
        for (path, files) in others {
            if let Err(error) = bash.mount(&path, Arc::new(files)) {
                self.complain(&format!("{}: {error}", path.display()));
                return ShellOutcome::Exited(EXIT_LIMIT);
            }
        }
        match bash.fs().stat(&command.cwd).await {
            Ok(found) if found.file_type.is_dir() => {}
            Ok(_) => return no_directory(Errno::NOTDIR),
            Err(_) => return no_directory(Errno::NOENT),
        }
        let words = ShellWords::of(command.argv);
        let mut options = ExecOptions::new().stdin(command.input);
        if let Some(name) = words.arg0 {
            options = options.arg0(name);
        }
        if !words.positional.is_empty() {
            options = options.positional(words.positional);
        }
        let (out, err) = (self.host.clone(), self.host.clone());
        let execution = bash
            .execute(&words.script)
            .options(options)
            .stdout_fn(move |bytes| {
                let _may_go_on = out.output(OutputStream::Stdout, bytes);
                std::future::ready(Ok(()))
            })
            .stderr_fn(move |bytes| {
                let _may_go_on = err.output(OutputStream::Stderr, bytes);
                std::future::ready(Ok(()))
            });
        let outcome = self.outcome(execution.await, noted);
        note_told(noted);
        let cuts = offleash_bashkit::cuts::take();
        for cut in &cuts {
            self.limit(noted, cut);
        }
        match outcome {
            ShellOutcome::Exited(0) if !cuts.is_empty() => ShellOutcome::Exited(EXIT_LIMIT),
            outcome => outcome,
        }
    }

    fn outcome(&self, ended: offleash_bashkit::Result<ExecResult>, noted: &Noted) -> ShellOutcome {
        match ended {
            Ok(result) => {
                if result.stdout_truncated || result.stderr_truncated {
                    self.limit(noted, "output was cut");
                    return ShellOutcome::Exited(EXIT_LIMIT);
                }
                // As `exit` does: the low byte.
                ShellOutcome::Exited(u8::try_from(result.exit_code & 0xff).unwrap_or(EXIT_LIMIT))
            }
            Err(Error::Parse { message, line, .. }) => {
                self.complain(&format!("line {line}: {message}"));
                ShellOutcome::Exited(EXIT_SYNTAX)
            }
            Err(Error::ResourceLimit(limit)) => {
                self.limit(noted, &limit.to_string());
                ShellOutcome::Exited(EXIT_LIMIT)
            }
            Err(error) => {
                self.complain(&error.to_string());
                ShellOutcome::Exited(EXIT_LIMIT)
            }
        }
    }

    fn limit(&self, noted: &Noted, what: &str) {
        noted.note(ShortfallKind::Limit, what);
        self.complain(&format!("limit: {what}"));
    }

    fn complain(&self, what: &str) {
        // Some repeat what they complain of, which may be the whole script.
        let what: String = what.chars().take(MAX_COMPLAINT).collect();
        self.host
            .output(OutputStream::Stderr, format!("bash: {what}\n").into_bytes());
    }
}

/// Notes what commands of the engine cut or do not have, as they told where they did.
fn note_told(noted: &Noted) {
    for told in offleash_bashkit::cuts::take_told() {
        match told {
            Told::Limit(what) => noted.note(ShortfallKind::Limit, what),
            Told::Lacks(what) => noted.note(ShortfallKind::Unsupported, what),
        }
    }
}

fn no_directory(errno: Errno) -> ShellOutcome {
    ShellOutcome::NoDirectory {
        errno: errno.raw_os_error(),
    }
}

impl ShellEngine for BashEngine {
    fn exec(&mut self, command: EngineCommand) -> EngineEnd {
        let noted = Arc::new(Noted::default());
        let outcome = match runtime() {
            Ok(runtime) => runtime.block_on(self.carry_out(command, &noted)),
            Err(error) => {
                self.complain(&error.to_string());
                ShellOutcome::Exited(EXIT_LIMIT)
            }
        };
        EngineEnd {
            outcome,
            shortfalls: noted.take(),
        }
    }
}

/// Timers alone: there is nothing to wait for but them.
fn runtime() -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .max_blocking_threads(1)
        .thread_stack_size(64 * 1024 * 1024)
        .build()
}

/// A command as the engine takes it: a script, its name and its arguments.
#[derive(Debug, PartialEq, Eq)]
struct ShellWords {
    script: String,
    arg0: Option<String>,
    positional: Vec<String>,
}

impl ShellWords {
    /// `bash -c SCRIPT [NAME [ARGUMENT…]]` is that script; everything else a command of the shell.
    fn of(argv: Vec<String>) -> Self {
        let is_shell = |program: &str| matches!(program.rsplit('/').next(), Some("bash" | "sh"));
        match argv.as_slice() {
            // A login shell's files set up what a person at a terminal wants, and are not read.
            [program, login, rest @ ..] if is_shell(program) && matches!(login.as_str(), "-l" | "--login") => {
                Self::of([std::slice::from_ref(program), rest].concat())
            }
            [program, flag, script, rest @ ..] if is_shell(program) && matches!(flag.as_str(), "-c" | "-lc") => Self {
                script: script.clone(),
                arg0: Some(rest.first().unwrap_or(program).clone()),
                positional: rest.get(1..).unwrap_or_default().to_vec(),
            },
            words => Self {
                script: words.iter().fold(String::new(), |mut script, word| {
                    let between = if script.is_empty() { "" } else { " " };
                    // Writing to a string does not fail.
                    let _written = write!(script, "{between}{}", quoted(word));
                    script
                }),
                arg0: None,
                positional: Vec::new(),
            },
        }
    }
}

/// The word as a shell reads it.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(argv: &[&str]) -> ShellWords {
        ShellWords::of(argv.iter().map(|word| (*word).to_owned()).collect())
    }

    #[test]
    fn a_script_of_a_shell_is_the_script_and_anything_else_one_command() {
        let script = words(&["/bin/sh", "-c", "echo $1", "name", "a b"]);
        assert_eq!(script.script, "echo $1");
        assert_eq!(script.arg0.as_deref(), Some("name"));
        assert_eq!(script.positional, ["a b"]);
        for login in [&["bash", "-l", "-c", "x", "y"][..], &["bash", "-lc", "x", "y"]] {
            assert_eq!(words(login), words(&["bash", "-c", "x", "y"]));
        }
        assert_eq!(words(&["echo", "it's", "$x", ""]).script, r"'echo' 'it'\''s' '$x' ''");
        assert_eq!(words(&["bash", "x.sh"]).script, "'bash' 'x.sh'");
    }
}
