//! A worker that is stopped for a while, and goes on.

use std::io;
use std::time::Duration;

use rustix::process::{Pid, Signal};

use super::SimulatedSandbox;

impl SimulatedSandbox {
    /// The number of its worker, which is not reaped before it is gone.
    pub(crate) fn worker_pid(&self) -> Pid {
        self.worker.pid()
    }

    /// Stops its worker.
    ///
    /// # Errors
    /// `EPERM`.
    pub(crate) fn stop_worker(&self) -> io::Result<()> {
        self.worker.signal(Signal::STOP)
    }

    /// Has its worker go on.
    ///
    /// # Errors
    /// `EPERM`.
    pub(crate) fn continue_worker(&self) -> io::Result<()> {
        self.worker.signal(Signal::CONT)
    }

    /// It was stopped for so long: what it had to take meanwhile it could not.
    pub(crate) fn postpone(&mut self, elapsed: Duration) {
        self.untaken_since = self.untaken_since.map(|since| since + elapsed);
    }
}
