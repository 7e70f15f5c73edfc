//! Programs that a simulated shell does not have, run at level `process`: each in a sandbox of that level that is made for it, of the
//! same plan and over the same layer, and is gone before the shell goes on. So nothing is written beside a mount.

use std::ffi::OsString;
use std::fs::Permissions;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use offleash_core::error::with_causes;
use offleash_core::exec::{ExecEnd, ExecEvent, ExecRequest, OutputStream, Stdin};
use offleash_core::level::Level;
use offleash_core::plan::Plan;
use offleash_core::record::LimitHit;
use offleash_core::units::Millis;
use offleash_isolation::error::IsolationError;
use offleash_isolation::process::ProcessBackend;
use offleash_isolation::sandbox::{
    Backend as _, DescriptorInterest, ExecId, FinalReport, LeftoverKeeper, Sandbox, SandboxEvent,
};

use crate::wire::{MAX_PROGRAM_BYTES, ProgramRequest, ProgramRun};

/// What a shell answers of a command that could not be started, or was not found.
const EXIT_NOT_EXECUTABLE: u8 = 126;
const EXIT_NOT_FOUND: u8 = 127;
/// Of one that a signal ended: this, and its number.
const EXIT_SIGNAL: u8 = 128;

/// Makes sandboxes of level `process` for programs.
#[derive(Debug)]
pub(crate) struct NextLevel {
    plan: Plan,
    running: Option<RunningProgram>,
}

#[derive(Debug)]
struct RunningProgram {
    sandbox: Box<dyn Sandbox>,
    exec: ExecId,
    /// What it has not been given of its input.
    input: Vec<u8>,
    is_input_closed: bool,
    run: ProgramRun,
    is_too_long: bool,
}

/// What a turn of a program brought.
#[derive(Debug, Default)]
pub(crate) struct ProgramTurn {
    /// It ended.
    pub(crate) ended: Option<ProgramRun>,
    /// What its sandbox had used and been refused.
    pub(crate) last: Option<FinalReport>,
    /// Limits that were hit.
    pub(crate) hits: Vec<LimitHit>,
}

/// The sandbox is gone, or killed, before this process ends; what of a cgroup a crash leaves is empty.
struct NothingIsLeft;

impl LeftoverKeeper for NothingIsLeft {
    fn cgroups(&mut self, _: &[PathBuf]) -> io::Result<()> {
        Ok(())
    }
}

impl NextLevel {
    pub(crate) fn new(plan: &Plan) -> Self {
        Self {
            plan: Plan {
                level: Level::Process,
                ..plan.clone()
            },
            running: None,
        }
    }

    /// Makes a sandbox and starts the program in it, which has what CPU time is left when `spent` was.
    ///
    /// # Errors
    /// As [`ProcessBackend::create`](offleash_isolation::sandbox::Backend::create), or when one runs.
    pub(crate) fn start(&mut self, request: ProgramRequest, spent: Duration) -> Result<(), IsolationError> {
        if self.running.is_some() || request.input.len() > MAX_PROGRAM_BYTES {
            return Err(IsolationError::Guest {
                reason: "it asks for two programs at once, or with more input than one may have".to_owned(),
            });
        }
        for layer in self.plan.layers() {
            let cleared = clear_mark(&layer);
            cleared.map_err(|source| IsolationError::Step {
                level: Level::Process,
                step: "removing the mark of an earlier mount in".to_owned(),
                subject: layer.to_string_lossy().into_owned(),
                source,
            })?;
        }
        let mut plan = self.plan.clone();
        plan.limits.cpu_time = plan.limits.cpu_time.map(|most| left_of(most, spent));
        let mut sandbox = ProcessBackend::default().create(&plan, &mut NothingIsLeft)?;
        let command = request.command;
        let exec = sandbox.exec(&ExecRequest {
            argv: command
                .argv
                .into_iter()
                .map(|word| OsString::from_vec(word.0))
                .collect(),
            env: command
                .env
                .into_iter()
                .map(|(name, value)| (OsString::from_vec(name.0), OsString::from_vec(value.0)))
                .collect(),
            cwd: OsString::from_vec(command.cwd.0).into(),
            stdin: Stdin::Stream,
            tty: None,
            user: None,
        })?;
        self.running = Some(RunningProgram::new(sandbox, exec, request.input));
        Ok(())
    }

    /// As if it had made this sandbox and started this in it.
    #[cfg(test)]
    pub(crate) fn running_in(plan: &Plan, sandbox: Box<dyn Sandbox>, exec: ExecId) -> Self {
        Self {
            running: Some(RunningProgram::new(sandbox, exec, Vec::new())),
            ..Self::new(plan)
        }
    }

    /// What is answered of a program for which there can be no sandbox.
    pub(crate) fn not_run(error: &IsolationError) -> ProgramRun {
        ProgramRun {
            has_run: false,
            status: EXIT_NOT_EXECUTABLE,
            stdout: Vec::new(),
            stderr: format!("offleash: {}\n", with_causes(error)).into_bytes(),
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    pub(crate) fn wait_on(&self) -> Vec<DescriptorInterest<'_>> {
        self.running
            .as_ref()
            .map(|running| running.sandbox.wait_on(true))
            .unwrap_or_default()
    }

    pub(crate) fn next_turn(&self) -> Option<Instant> {
        self.running.as_ref().map(|running| running.sandbox.next_turn())
    }

    /// Takes in what happened.
    ///
    /// # Errors
    /// As [`Sandbox::turn`].
    pub(crate) fn turn(&mut self) -> Result<ProgramTurn, IsolationError> {
        let mut turn = ProgramTurn::default();
        let Some(running) = &mut self.running else {
            return Ok(turn);
        };
        running.feed()?;
        let mut ended = None;
        for event in running.sandbox.turn(true)? {
            match event {
                SandboxEvent::Exec { exec, event } if exec == running.exec => match event {
                    ExecEvent::Output { stream, bytes } => running.take(stream, &bytes),
                    ExecEvent::Ended(end) => ended = Some(status_of(&end)),
                    ExecEvent::Started { .. } | ExecEvent::InputTaken { .. } => {}
                },
                SandboxEvent::Exec { .. } => {}
                SandboxEvent::Limit(hit) => turn.hits.push(hit),
                SandboxEvent::Gone => ended = ended.or(Some(EXIT_NOT_EXECUTABLE)),
            }
        }
        if let Some(status) = ended.or(running.is_too_long.then_some(EXIT_NOT_EXECUTABLE)) {
            turn.last = self.end()?;
            turn.ended = self.running.take().map(|running| running.finish(status));
        }
        Ok(turn)
    }

    /// Ends the program, if one runs.
    ///
    /// # Errors
    /// As [`Sandbox::kill`].
    pub(crate) fn end(&mut self) -> Result<Option<FinalReport>, IsolationError> {
        self.running.as_mut().map(|running| running.sandbox.kill()).transpose()
    }
}

impl RunningProgram {
    fn new(sandbox: Box<dyn Sandbox>, exec: ExecId, input: Vec<u8>) -> Self {
        Self {
            sandbox,
            exec,
            input,
            is_input_closed: false,
            run: ProgramRun {
                has_run: true,
                status: 0,
                stdout: Vec::new(),
                stderr: Vec::new(),
            },
            is_too_long: false,
        }
    }

    fn feed(&mut self) -> Result<(), IsolationError> {
        let window = self.sandbox.input_window(self.exec).min(self.input.len());
        if window > 0 {
            let piece: Vec<u8> = self.input.drain(..window).collect();
            self.sandbox.input(self.exec, &piece)?;
        }
        if self.input.is_empty() && !self.is_input_closed {
            self.is_input_closed = true;
            self.sandbox.close_input(self.exec)?;
        }
        Ok(())
    }

    fn take(&mut self, stream: OutputStream, bytes: &[u8]) {
        if self.run.stdout.len() + self.run.stderr.len() + bytes.len() > MAX_PROGRAM_BYTES {
            self.is_too_long = true;
            return;
        }
        match stream {
            OutputStream::Stdout => self.run.stdout.extend_from_slice(bytes),
            OutputStream::Stderr => self.run.stderr.extend_from_slice(bytes),
        }
    }

    fn finish(mut self, status: u8) -> ProgramRun {
        if self.is_too_long {
            let line =
                format!("offleash: limit: a program of level process wrote more than {MAX_PROGRAM_BYTES} bytes\n");
            self.run.stderr.extend_from_slice(line.as_bytes());
        }
        self.run.status = status;
        self.run
    }
}

/// What is left of CPU time; something, since none at all would be no limit that can be told.
fn left_of(most: Millis, spent: Duration) -> Millis {
    let spent = u64::try_from(spent.as_millis()).unwrap_or(u64::MAX);
    Millis(most.0.saturating_sub(spent).max(1))
}

/// Removes the mark that a volatile mount of the layer left, with which no other is made. No sandbox reaches these directories.
fn clear_mark(layer: &Path) -> io::Result<()> {
    let work = layer.join("work").join("work");
    let incompatible = work.join("incompat");
    let mark = incompatible.join("volatile");
    let opened = |path: &Path| match std::fs::set_permissions(path, Permissions::from_mode(0o700)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        set => set.map(|()| true),
    };
    // Overlayfs lets nobody enter the first of them.
    if !(opened(&work)? && opened(&incompatible)? && opened(&mark)?) {
        return Ok(());
    }
    std::fs::remove_file(mark.join("dirty"))?;
    std::fs::remove_dir(&mark)?;
    std::fs::remove_dir(&incompatible)
}

fn status_of(end: &ExecEnd) -> u8 {
    use offleash_core::exec::StartFailure;
    match end {
        ExecEnd::Exited { code } => *code,
        ExecEnd::Signaled { signal } => EXIT_SIGNAL.saturating_add(u8::try_from(*signal).unwrap_or(127)),
        ExecEnd::OutOfMemory { .. } => EXIT_SIGNAL + 9,
        ExecEnd::NotStarted(StartFailure::NotFound) => EXIT_NOT_FOUND,
        ExecEnd::NotStarted(_) | ExecEnd::Lost => EXIT_NOT_EXECUTABLE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_has_the_cpu_time_that_is_left() {
        let left = |spent| left_of(Millis(5000), Duration::from_millis(spent)).0;
        assert_eq!((left(0), left(4999), left(5000), left(60_000)), (5000, 1, 1, 1));
    }
}
