//! An interpreter that is started in a sandbox before its command is known, and is that command when it is one for it.

use std::time::{Duration, Instant};

use offleash_core::exec::{ExecEvent, ExecRequest, OutputStream};
use offleash_core::limits::Limits;
use offleash_core::record::Usage;
use offleash_interpreter::ahead;
use offleash_isolation::error::IsolationError;
use offleash_isolation::sandbox::{ExecId, Sandbox, SandboxEvent};

use crate::drive::{poll_until, what_is_awaited};

/// How long its imports may take.
const IMPORTS: Duration = Duration::from_secs(60);
/// How often it is asked whether anybody still wants it.
const ASKED_EVERY: Duration = Duration::from_millis(100);
/// Where it is started: nothing of the run's own is looked at before the run.
const DIRECTORY: &str = "/";
/// What it uses counts as the run's own, so it is to be no more than a small part of what that may use.
const LARGEST_PART: u64 = 8;

/// What one uses at least that has something to import.
const LEAST: Usage = Usage {
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
pub(crate) struct Ahead {
    exec: ExecId,
    /// As what it was started.
    started: ExecRequest,
}

impl Ahead {
    /// Starts one that imports `modules`, of which all but arguments and directory is as `like` says, and waits until it is
    /// ready. `None` if it does not come to that, or nobody wants it any more: then the sandbox is to be ended.
    ///
    /// # Errors
    /// When the sandbox fails.
    pub(super) fn start(
        like: ExecRequest,
        modules: Vec<String>,
        sandbox: &mut dyn Sandbox,
        is_wanted: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Self>, IsolationError> {
        let started = ExecRequest {
            argv: ahead::command(modules),
            cwd: DIRECTORY.into(),
            ..like
        };
        let exec = sandbox.exec(&started)?;
        let until = Instant::now() + IMPORTS;
        let mut said = Vec::new();
        while Instant::now() < until && is_wanted() {
            wait(sandbox, until.min(Instant::now() + ASKED_EVERY))?;
            for event in sandbox.turn(true)? {
                match event {
                    SandboxEvent::Exec { exec: of, event } if of == exec => match event {
                        ExecEvent::Output {
                            stream: OutputStream::Stdout,
                            bytes,
                        } => said.extend(bytes),
                        ExecEvent::Output { .. } | ExecEvent::Ended(_) => return Ok(None),
                        ExecEvent::Started { .. } | ExecEvent::InputTaken { .. } => {}
                    },
                    SandboxEvent::Limit(_) | SandboxEvent::Gone => return Ok(None),
                    SandboxEvent::Exec { .. } => {}
                }
            }
            if said == ahead::READY {
                return Ok(Some(Self { exec, started }));
            }
            if !ahead::READY.starts_with(&said) {
                break;
            }
        }
        Ok(None)
    }

    /// Whether it can be `command`: whatever else it was started with has to be the same.
    pub(super) fn can_be(&self, command: &ExecRequest, sandbox: &dyn Sandbox) -> bool {
        let is_as_started = ExecRequest {
            argv: self.started.argv.clone(),
            cwd: self.started.cwd.clone(),
            ..command.clone()
        } == self.started;
        is_as_started && ahead::can_run(&command.argv) && input(command).len() <= sandbox.input_window(self.exec)
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
pub(super) fn is_little(used: &Usage, limits: &Limits) -> bool {
    let is_part = |part: u64, whole: Option<u64>| whole.is_none_or(|whole| part.saturating_mul(LARGEST_PART) <= whole);
    is_part(
        used.user_cpu_us.saturating_add(used.system_cpu_us) / 1000,
        limits.cpu_time.map(|time| time.0),
    ) && is_part(
        used.peak_memory_bytes.unwrap_or(0),
        limits.memory.map(|memory| memory.0),
    ) && is_part(used.peak_pids.unwrap_or(0), limits.pids)
}

fn input(command: &ExecRequest) -> Vec<u8> {
    ahead::input(&command.cwd, &command.argv)
}

/// Waits until there is something to hear of the sandbox.
fn wait(sandbox: &dyn Sandbox, until: Instant) -> Result<(), IsolationError> {
    let interests = sandbox.wait_on(true);
    let mut waiting: Vec<_> = interests.iter().map(what_is_awaited).collect();
    poll_until(&mut waiting, until.min(sandbox.next_turn())).map(|_| ())
}

#[cfg(test)]
mod tests {
    use offleash_core::units::{Bytes, Millis};

    use super::*;

    #[test]
    fn what_is_a_large_part_of_a_limit_is_not_little() {
        let used = Usage {
            user_cpu_us: 600_000,
            system_cpu_us: 400_000,
            peak_memory_bytes: Some(80 << 20),
            peak_pids: Some(4),
            ..Usage::default()
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
