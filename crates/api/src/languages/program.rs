//! One run of a program: its files are written into a sandbox of its own without network, compiled if the language is, and run.

use std::time::Duration;

use data_encoding::{BASE64, HEXLOWER_PERMISSIVE};
use offleash_core::exec::OutputStream;
use offleash_daemon::{Caller, CreateRequest, Daemon, LimitsRequest, NetworkSettings, SandboxLimits, SandboxView};
use offleash_supervisor::service::client::SupervisorClient;
use offleash_supervisor::service::error::SupervisorError;
use offleash_supervisor::service::message::StartExec;
use tokio::sync::mpsc;

use super::LanguageRuntime;
use super::catalog::no_network;
use super::table::COMPILER_OPTIONS;
use crate::commands::{self, CommandFailure, CommandOutcome, LiveInput, OutputBounds};
use crate::http::path::MAX_PATH_LENGTH;

/// Where files are, below the home of the user.
const DIRECTORY: &str = "program";
/// How long a sandbox lives beyond what its program may take.
const LEEWAY: Duration = Duration::from_secs(120);
const MIB: u64 = 1024 * 1024;
/// What a name of a file may have; the kernel's own bound for a part is 255.
const MAX_NAME_LENGTH: usize = MAX_PATH_LENGTH / 4;

/// Signals that limits send (signal(7)).
const SIGXCPU: i32 = 24;

/// A file of a program. Its name leads to a place below the program's directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProgramFile {
    name: String,
    contents: Vec<u8>,
    is_code: bool,
}

/// Why a file is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ProgramFileError {
    #[error(
        "the name must lead to a file below the program's directory: no `/` at its beginning, no `..`, no NUL, at most {MAX_NAME_LENGTH} bytes"
    )]
    Name,
    #[error("the contents are not {0}")]
    Encoding(&'static str),
}

impl ProgramFile {
    /// A file of code.
    ///
    /// # Errors
    /// For a name that leads elsewhere.
    pub(crate) fn code(name: String, contents: Vec<u8>) -> Result<Self, ProgramFileError> {
        Self::named(name, contents, true)
    }

    /// A file that is no code that is compiled.
    ///
    /// # Errors
    /// For a name that leads elsewhere.
    pub(crate) fn data(name: String, contents: Vec<u8>) -> Result<Self, ProgramFileError> {
        Self::named(name, contents, false)
    }

    /// Whether that is its name.
    pub(crate) fn is_called(&self, name: &str) -> bool {
        self.name == name
    }

    /// How many bytes it has, with its name.
    pub(crate) fn len(&self) -> usize {
        self.name.len() + self.contents.len()
    }

    fn named(name: String, contents: Vec<u8>, is_code: bool) -> Result<Self, ProgramFileError> {
        let leads_elsewhere = |part: &str| part.is_empty() || part == "." || part == "..";
        if name.contains('\0') || name.len() > MAX_NAME_LENGTH || name.split('/').any(leads_elsewhere) {
            return Err(ProgramFileError::Name);
        }
        Ok(Self {
            name,
            contents,
            is_code,
        })
    }

    /// A file whose contents are written in an encoding: `utf8`, `base64` or `hex`.
    ///
    /// # Errors
    /// For a name that leads elsewhere, and for contents that are not what they are said to be.
    pub(crate) fn new(name: String, contents: String, encoding: Option<&str>) -> Result<Self, ProgramFileError> {
        let (contents, is_code) = match encoding {
            Some("base64") => {
                let decoded = BASE64.decode(contents.trim().as_bytes());
                (decoded.map_err(|_| ProgramFileError::Encoding("base64"))?, false)
            }
            Some("hex") => {
                let decoded = HEXLOWER_PERMISSIVE.decode(contents.trim().as_bytes());
                (decoded.map_err(|_| ProgramFileError::Encoding("hexadecimal"))?, false)
            }
            _ => (contents.into_bytes(), true),
        };
        Self::named(name, contents, is_code)
    }
}

/// A program that is to be run once.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    pub(crate) runtime: LanguageRuntime,
    /// Those of code are compiled, and the first of them is run.
    pub(crate) files: Vec<ProgramFile>,
    pub(crate) stdin: Vec<u8>,
    pub(crate) arguments: Vec<String>,
    pub(crate) compile: StageLimits,
    pub(crate) run: StageLimits,
    /// What the sandbox may use, in bytes; as usual if absent.
    pub(crate) memory_bytes: Option<u64>,
    /// Bytes of each stream of output, beyond which a stage is ended.
    pub(crate) max_output: usize,
    pub(crate) extras: ProgramExtras,
}

/// What a program may have beside time and memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ProgramExtras {
    /// Whether it reaches what sandboxes of its key usually reach; nothing otherwise.
    pub(crate) network: bool,
    /// Processes and threads that its sandbox may have; as usual if absent.
    pub(crate) pids: Option<u32>,
    /// What its run may have of stack, and of each file that it writes, in KiB.
    pub(crate) stack_kib: Option<u64>,
    pub(crate) file_kib: Option<u64>,
    /// Whether its run writes both streams to standard output.
    pub(crate) merges_streams: bool,
    /// Words for its compiler.
    pub(crate) compiler_options: String,
}

impl ProgramExtras {
    /// Lines of a shell before the run.
    fn before_run(&self) -> String {
        let mut lines = String::new();
        if let Some(kib) = self.stack_kib {
            lines += &format!("ulimit -s {kib} 2>/dev/null; ");
        }
        if let Some(kib) = self.file_kib {
            // Blocks of 512 bytes, as POSIX has it.
            let blocks = kib.saturating_mul(2);
            lines += &format!("ulimit -f {blocks} 2>/dev/null; ");
        }
        if self.merges_streams {
            lines += "exec 2>&1; ";
        }
        lines
    }
}

/// How long a stage may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StageLimits {
    pub(crate) wall: Duration,
    pub(crate) cpu: Option<Duration>,
}

/// How a stage ended, in the words that judges have for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StageStatus {
    Succeeded,
    /// It exited with a code.
    Failed,
    /// A signal ended it.
    Signaled,
    /// It had more memory than it may.
    OutOfMemory,
    TimedOut,
    /// It wrote more than it may.
    TooMuch(OutputStream),
}

/// What came of a stage.
#[derive(Debug)]
pub(crate) struct StageOutcome {
    pub(crate) command: CommandOutcome,
    pub(crate) status: StageStatus,
    /// CPU time of the sandbox meanwhile.
    pub(crate) cpu_ms: Option<u64>,
    /// The most memory that the sandbox had so far.
    pub(crate) memory_bytes: Option<u64>,
}

/// A part of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StageName {
    Compile,
    Run,
}

/// What whoever watches a program is told.
#[derive(Debug)]
pub(crate) enum ProgramEvent {
    Began(StageName),
    Wrote(OutputStream, Vec<u8>),
    Ended(StageName, Box<StageOutcome>),
}

/// Who watches a program: gives it input and signals, and is told what it does.
#[derive(Debug)]
pub(crate) struct ProgramWatcher {
    pub(crate) input: LiveInput,
    pub(crate) events: mpsc::Sender<ProgramEvent>,
}

impl ProgramWatcher {
    /// Tells whoever watches; one that is gone has had its program ended.
    async fn tell(&self, event: ProgramEvent) {
        let _told = self.events.send(event).await;
    }
}

/// What came of a program.
#[derive(Debug)]
pub(crate) struct ProgramOutcome {
    /// Of languages that are compiled.
    pub(crate) compile: Option<StageOutcome>,
    /// Unless it could not be compiled.
    pub(crate) run: Option<StageOutcome>,
}

impl Program {
    /// Runs it; the sandbox is gone afterwards.
    ///
    /// # Errors
    /// Whatever the daemon refuses, and what keeps files or commands from the sandbox.
    pub(crate) async fn run(self, daemon: &Daemon, caller: &Caller) -> Result<ProgramOutcome, CommandFailure> {
        let request = self.request();
        let work = |_: SandboxView, supervisor: SupervisorClient| async move { self.run_in(&supervisor).await };
        let (_, outcome) = commands::in_new_sandbox(daemon, caller, request, false, work).await?;
        Ok(outcome)
    }

    /// Runs it as somebody watches, who is told what comes of it; the sandbox is gone afterwards.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub(crate) async fn run_watched(
        self,
        daemon: &Daemon,
        caller: &Caller,
        mut watcher: ProgramWatcher,
    ) -> Result<(), CommandFailure> {
        let request = self.request();
        let work = |_: SandboxView, supervisor: SupervisorClient| async move {
            self.watched_in(&supervisor, &mut watcher).await
        };
        commands::in_new_sandbox(daemon, caller, request, false, work).await?;
        Ok(())
    }

    /// The sandbox that it needs.
    fn request(&self) -> CreateRequest {
        let least = SandboxLimits::LEAST.memory_mib;
        let lives = self.compile.wall + self.run.wall + LEEWAY;
        CreateRequest {
            template: self.runtime.template.clone(),
            timeout_seconds: Some(lives.as_secs()),
            network: match self.extras.network {
                true => NetworkSettings::default(),
                false => no_network(),
            },
            limits: LimitsRequest {
                memory_mib: self.memory_bytes.map(|bytes| bytes.div_ceil(MIB).max(least)),
                pids: self.extras.pids.map(|pids| pids.max(SandboxLimits::LEAST.pids)),
                ..LimitsRequest::default()
            },
            ..CreateRequest::default()
        }
    }

    async fn run_in(self, supervisor: &SupervisorClient) -> Result<ProgramOutcome, SupervisorError> {
        let (place, code) = self.placed(supervisor).await?;
        let language = self.runtime.language;
        let mut compile = None;
        if let Some(script) = language.compile {
            let stage = self.compile_stage(&place, script, &code);
            let outcome = place.carry_out(stage, self.stdin_of(StageName::Compile)).await?;
            if outcome.status != StageStatus::Succeeded {
                return Ok(ProgramOutcome {
                    compile: Some(outcome),
                    run: None,
                });
            }
            compile = Some(outcome);
        }
        let stage = self.run_stage(&place, code);
        let run = Some(place.carry_out(stage, self.stdin_of(StageName::Run)).await?);
        Ok(ProgramOutcome { compile, run })
    }

    async fn watched_in(
        self,
        supervisor: &SupervisorClient,
        watcher: &mut ProgramWatcher,
    ) -> Result<(), SupervisorError> {
        let (place, code) = self.placed(supervisor).await?;
        let language = self.runtime.language;
        if let Some(script) = language.compile {
            let stage = self.compile_stage(&place, script, &code);
            if place.watch(StageName::Compile, stage, watcher).await? != StageStatus::Succeeded {
                return Ok(());
            }
        }
        let mut stage = self.run_stage(&place, code);
        stage.stdin = true;
        place.watch(StageName::Run, stage, watcher).await?;
        Ok(())
    }

    /// Puts the files into their place; answers those that are code, too.
    async fn placed<'a>(
        &self,
        supervisor: &'a SupervisorClient,
    ) -> Result<(ProgramPlace<'a>, Vec<String>), SupervisorError> {
        let home = supervisor.hello().await?.users.into_iter().next();
        let home = home.map_or_else(|| "/tmp".to_owned(), |user| user.home);
        let directory = format!("{}/{DIRECTORY}", home.trim_end_matches('/'));
        let code = self.write_files(supervisor, &directory).await?;
        let place = ProgramPlace {
            supervisor,
            directory,
            max_output: self.max_output,
        };
        Ok((place, code))
    }

    fn compile_stage(&self, place: &ProgramPlace<'_>, script: &str, code: &[String]) -> StartExec {
        let options = self.extras.compiler_options.as_bytes().to_vec();
        StartExec {
            env: vec![(COMPILER_OPTIONS.as_bytes().to_vec(), options)],
            ..place.stage(script, code, self.compile)
        }
    }

    fn run_stage(&self, place: &ProgramPlace<'_>, code: Vec<String>) -> StartExec {
        let main = code.into_iter().take(1);
        let words: Vec<String> = main.chain(self.arguments.iter().cloned()).collect();
        let script = format!("{}{}", self.extras.before_run(), self.runtime.language.run);
        place.stage(&script, &words, self.run)
    }

    /// What a stage reads.
    fn stdin_of(&self, stage: StageName) -> Option<Vec<u8>> {
        let is_read = stage == StageName::Run && !self.stdin.is_empty();
        is_read.then(|| self.stdin.clone())
    }

    /// Writes the files; answers the names of those that are code, the first one first.
    async fn write_files(
        &self,
        supervisor: &SupervisorClient,
        directory: &str,
    ) -> Result<Vec<String>, SupervisorError> {
        let language = self.runtime.language;
        let mut files = supervisor.files(None).await?;
        let mut code = Vec::new();
        for file in &self.files {
            let is_main = file.is_code && code.is_empty();
            let name = match is_main {
                true => language.file_name(&file.name),
                false => file.name.clone(),
            };
            let path = format!("{directory}/{name}");
            let mut writer = files.write(path.as_bytes(), Vec::new()).await?;
            writer.send(&file.contents).await?;
            writer.finish().await?;
            // What is included or imported is none that a compiler is given.
            if is_main || (file.is_code && language.file_name(&name) == name) {
                code.push(name);
            }
        }
        Ok(code)
    }
}

/// Where stages are carried out.
struct ProgramPlace<'a> {
    supervisor: &'a SupervisorClient,
    directory: String,
    max_output: usize,
}

impl ProgramPlace<'_> {
    /// A stage, as it is started.
    fn stage(&self, script: &str, words: &[String], limits: StageLimits) -> StartExec {
        let bounded = match limits.cpu {
            // The soft limit is told by a signal of its own; who ignores that is killed by the hard one.
            Some(cpu) => {
                let seconds = cpu.as_millis().div_ceil(1000).max(1);
                let hard = seconds + 1;
                format!("ulimit -S -t {seconds} 2>/dev/null; ulimit -H -t {hard} 2>/dev/null; {script}")
            }
            None => script.to_owned(),
        };
        let argv = ["/bin/sh", "-c", &bounded, "sh"].map(str::to_owned);
        let argv = argv.iter().chain(words);
        StartExec {
            argv: argv.map(|word| word.as_bytes().to_vec()).collect(),
            cwd: Some(self.directory.clone().into_bytes()),
            timeout_ms: u64::try_from(limits.wall.as_millis()).ok(),
            ..StartExec::default()
        }
    }

    fn bounds(&self, in_order: bool) -> OutputBounds {
        OutputBounds {
            of_stream: self.max_output,
            in_order,
            ends: true,
        }
    }

    async fn carry_out(&self, mut stage: StartExec, stdin: Option<Vec<u8>>) -> Result<StageOutcome, SupervisorError> {
        stage.stdin = stdin.is_some();
        let before = self.cpu_us().await;
        let command = commands::executed(self.supervisor, stage, stdin, self.bounds(true)).await?;
        Ok(self.outcome(command, before).await)
    }

    /// The same as somebody watches.
    async fn watch(
        &self,
        name: StageName,
        stage: StartExec,
        watcher: &mut ProgramWatcher,
    ) -> Result<StageStatus, SupervisorError> {
        watcher.tell(ProgramEvent::Began(name)).await;
        let before = self.cpu_us().await;
        let events = watcher.events.clone();
        let told = |stream, bytes| {
            let events = events.clone();
            async move {
                let _told = events.send(ProgramEvent::Wrote(stream, bytes)).await;
            }
        };
        let command = commands::watched(self.supervisor, stage, &mut watcher.input, self.bounds(false), told).await?;
        let outcome = self.outcome(command, before).await;
        let status = outcome.status;
        watcher.tell(ProgramEvent::Ended(name, Box::new(outcome))).await;
        Ok(status)
    }

    async fn cpu_us(&self) -> Option<u64> {
        self.supervisor.usage().await.map(|usage| usage.cpu_us).ok()
    }

    async fn outcome(&self, command: CommandOutcome, before: Option<u64>) -> StageOutcome {
        let usage = self.supervisor.usage().await.ok();
        let cpu_us = usage.as_ref().map(|usage| usage.cpu_us).zip(before);
        StageOutcome {
            status: status(&command),
            command,
            cpu_ms: cpu_us.map(|(now, before)| now.saturating_sub(before) / 1000),
            memory_bytes: usage.map(|usage| usage.memory_peak_bytes),
        }
    }
}

fn status(command: &CommandOutcome) -> StageStatus {
    match command {
        CommandOutcome { timed_out: true, .. } => StageStatus::TimedOut,
        CommandOutcome {
            overflowed: Some(stream),
            ..
        } => StageStatus::TooMuch(*stream),
        CommandOutcome {
            out_of_memory: true, ..
        } => StageStatus::OutOfMemory,
        CommandOutcome {
            signal: Some(SIGXCPU), ..
        } => StageStatus::TimedOut,
        CommandOutcome { signal: Some(_), .. } => StageStatus::Signaled,
        CommandOutcome { exit_code: Some(0), .. } => StageStatus::Succeeded,
        _ => StageStatus::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_below_the_programs_directory() {
        let file = |name: &str| ProgramFile::new(name.to_owned(), String::new(), None);
        for good in ["a", "a.py", "src/a.py", "...", "a b\n", "-x"] {
            assert!(file(good).is_ok(), "{good}");
        }
        let long = "a".repeat(MAX_NAME_LENGTH + 1);
        for bad in [
            "",
            "/",
            "/etc/passwd",
            "..",
            "../a",
            "a/../../b",
            "a/",
            "./a",
            "a//b",
            "a\0",
            &long,
        ] {
            assert_eq!(file(bad), Err(ProgramFileError::Name), "{bad:?}");
        }
    }

    #[test]
    fn contents_are_in_their_encoding() {
        let file =
            |contents: &str, encoding: &str| ProgramFile::new("a".to_owned(), contents.to_owned(), Some(encoding));
        assert_eq!(file("aGk=", "base64").unwrap().contents, b"hi");
        assert_eq!(file("6869", "hex").unwrap().contents, b"hi");
        let plain = file("aGk=", "utf8").unwrap();
        assert_eq!((plain.contents.as_slice(), plain.is_code), (&b"aGk="[..], true));
        assert_eq!(file("?", "base64"), Err(ProgramFileError::Encoding("base64")));
        assert_eq!(file("6", "hex"), Err(ProgramFileError::Encoding("hexadecimal")));
    }

    #[test]
    fn the_first_reason_of_an_end_is_its_status() {
        let command = |exit_code, signal| CommandOutcome {
            exit_code,
            signal,
            ..CommandOutcome::default()
        };
        assert_eq!(status(&command(Some(0), None)), StageStatus::Succeeded);
        assert_eq!(status(&command(Some(3), None)), StageStatus::Failed);
        assert_eq!(status(&command(None, Some(11))), StageStatus::Signaled);
        assert_eq!(status(&command(None, Some(SIGXCPU))), StageStatus::TimedOut);
        let mut late = command(None, Some(9));
        late.timed_out = true;
        assert_eq!(status(&late), StageStatus::TimedOut);
        let mut loud = command(None, Some(9));
        loud.overflowed = Some(OutputStream::Stderr);
        assert_eq!(status(&loud), StageStatus::TooMuch(OutputStream::Stderr));
    }
}
