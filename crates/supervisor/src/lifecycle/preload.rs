//! An interpreter that is started in a sandbox before its command is known, and is that command when it is one for it.

use std::time::{Duration, Instant};

use offleash_core::exec::{ExecEvent, ExecRequest, OutputStream};
use offleash_core::limits::Limits;
use offleash_core::record::{LimitHit, RunUsage};
use offleash_interpreter::ahead as waiting_python;
use offleash_isolation::error::IsolationError;
use offleash_isolation::sandbox::{ExecId, Sandbox};

use super::making::RunningSandbox;
use crate::sandbox_loop::{Ending, LoopSandbox, SandboxClient, SandboxLoop, WaitList};

/// How long its imports may take.
const IMPORT_TIMEOUT: Duration = Duration::from_secs(60);
/// How often it is asked whether anybody still wants it.
const ASKED_EVERY: Duration = Duration::from_millis(100);
/// Where it is started: nothing of the run's own is looked at before the run.
const DIRECTORY: &str = "/";
/// What it uses counts as the run's own, so it is to be no more than a small part of what that may use.
const MIN_LIMIT_PARTS: u64 = 8;

/// What one uses at least that has something to import.
const LEAST: RunUsage = RunUsage {
    wall_ms: 0,
    user_cpu_us: 250_000,
    system_cpu_us: 0,
    peak_memory_bytes: Some(32 << 20),
    peak_pids: Some(2),
    read_bytes: 0,
    written_bytes: 0,
    workspace_bytes: None,
};

/// An interpreter that has imported what it was to, and waits.
#[derive(Debug)]
pub(crate) struct Preload {
    exec: ExecId,
    /// As what it was started.
    started: ExecRequest,
}

impl Preload {
    /// Starts one that imports `modules`, of which all but arguments and directory is as `like` says, and waits until it is
    /// ready. `None` if it does not come to that, or nobody wants it any more: then the sandbox is to be ended.
    ///
    /// # Errors
    /// When the sandbox fails.
    pub(super) fn start(
        like: ExecRequest,
        modules: Vec<String>,
        running: &mut RunningSandbox,
        is_wanted: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Self>, IsolationError> {
        let started = ExecRequest {
            argv: waiting_python::command(modules),
            cwd: DIRECTORY.into(),
            ..like
        };
        let exec = running.sandbox.exec(&started)?;
        let mut client = PreloadClient {
            exec,
            until: Instant::now() + IMPORT_TIMEOUT,
            said: Vec::new(),
            is_ready: false,
            is_wanted,
        };
        let end = SandboxLoop::new(running).run(&mut client)?;
        let is_ready = client.is_ready && end.limits_hit.is_empty() && end.ending == Ending::ClientDone;
        Ok(is_ready.then_some(Self { exec, started }))
    }

    /// Whether it can be `command`: whatever else it was started with has to be the same.
    pub(super) fn can_be(&self, command: &ExecRequest, sandbox: &dyn Sandbox) -> bool {
        let is_as_started = ExecRequest {
            argv: self.started.argv.clone(),
            cwd: self.started.cwd.clone(),
            ..command.clone()
        } == self.started;
        is_as_started
            && waiting_python::can_run(&command.argv)
            && input(command).len() <= sandbox.input_window(self.exec)
    }

    /// Has it be `command`, which it can be.
    ///
    /// # Errors
    /// When the sandbox is gone.
    pub(super) fn become_command(
        self,
        command: &ExecRequest,
        sandbox: &mut dyn Sandbox,
    ) -> Result<ExecId, IsolationError> {
        sandbox.input(self.exec, &input(command))?;
        Ok(self.exec)
    }
}

/// Whether one may use little by what `limits` its run has, as far as can be told before it has imported anything.
pub(super) fn fits(limits: &Limits) -> bool {
    is_little(&LEAST, limits)
}

/// Whether what was used before the run is too little to be noticed by what `limits` the run has.
pub(super) fn is_little(used: &RunUsage, limits: &Limits) -> bool {
    let is_part =
        |part: u64, whole: Option<u64>| whole.is_none_or(|whole| part.saturating_mul(MIN_LIMIT_PARTS) <= whole);
    is_part(
        used.user_cpu_us.saturating_add(used.system_cpu_us) / 1000,
        limits.cpu_time.map(|time| time.0),
    ) && is_part(
        used.peak_memory_bytes.unwrap_or(0),
        limits.memory.map(|memory| memory.0),
    ) && is_part(used.peak_pids.unwrap_or(0), limits.pids)
}

fn input(command: &ExecRequest) -> Vec<u8> {
    waiting_python::input(&command.cwd, &command.argv)
}

/// Waits for an interpreter to have imported what it was to.
struct PreloadClient<'a> {
    exec: ExecId,
    until: Instant,
    /// What it has written to its standard output.
    said: Vec<u8>,
    is_ready: bool,
    is_wanted: &'a mut dyn FnMut() -> bool,
}

impl SandboxClient for PreloadClient<'_> {
    type Source = ();

    fn wait_on<'c>(&'c self, _sandbox: &dyn Sandbox, _waiting: &mut WaitList<'c, ()>) {}

    fn next_turn(&self) -> Option<Instant> {
        Some(self.until.min(Instant::now() + ASKED_EVERY))
    }

    fn exec_event(&mut self, held: &mut LoopSandbox<'_>, exec: ExecId, event: ExecEvent) {
        let stdout = OutputStream::Stdout;
        match event {
            _ if exec != self.exec => {}
            ExecEvent::Started { .. } | ExecEvent::InputTaken { .. } => {}
            ExecEvent::Output { stream, bytes } if stream == stdout => self.said.extend(bytes),
            // It is not what was expected.
            ExecEvent::Output { .. } | ExecEvent::Ended(_) => held.end(Ending::Lost),
        }
    }

    fn limit_hit(&mut self, held: &mut LoopSandbox<'_>, _hit: &LimitHit) {
        held.end(Ending::Lost);
    }

    fn turn(&mut self, held: &mut LoopSandbox<'_>) -> Result<(), IsolationError> {
        self.is_ready = self.said == waiting_python::READY;
        let goes_on = waiting_python::READY.starts_with(&self.said) && Instant::now() < self.until;
        if self.is_ready || !goes_on || !(self.is_wanted)() {
            held.end(Ending::ClientDone);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use offleash_core::units::{Bytes, Millis};

    use super::*;

    #[test]
    fn what_is_a_large_part_of_a_limit_is_not_little() {
        let used = RunUsage {
            user_cpu_us: 600_000,
            system_cpu_us: 400_000,
            peak_memory_bytes: Some(80 << 20),
            peak_pids: Some(4),
            ..RunUsage::default()
        };
        let limits = |cpu_ms: u64, memory: u64, pids: u64| Limits {
            cpu_time: Some(Millis(cpu_ms)),
            memory: Some(Bytes::mib(memory)),
            pids: Some(pids),
            ..Limits::default()
        };
        assert!(is_little(&used, &limits(8000, 640, 32)));
        for limits in [limits(7999, 640, 32), limits(8000, 639, 32), limits(8000, 640, 31)] {
            assert!(!is_little(&used, &limits), "{limits:?}");
        }
    }
}
