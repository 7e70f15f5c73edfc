//! Processes of ours that do one thing for the daemon and end with it.

use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use offleash_supervisor::roles::SupervisorRole;
use offleash_sys::spawn::{OrphanFate, SessionChoice, SpawnCommand, spawn};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::launch::{OWN_PROGRAM, Process};

/// A process that is killed when this is dropped before it has ended.
pub(crate) struct HelperProcess(Option<Process>);

impl HelperProcess {
    /// Starts `program`, ours if `None`, in that role, with `descriptors` from 0 on.
    ///
    /// # Errors
    /// What the kernel refused.
    pub(crate) fn start(
        program: Option<&Path>,
        role: SupervisorRole,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<Self> {
        let program = program.unwrap_or(Path::new(OWN_PROGRAM));
        let spawned = spawn(&SpawnCommand {
            argv: &role.arguments(program.as_os_str().as_bytes()),
            env: &[],
            cwd: Some(b"/"),
            descriptors,
            user: None,
            session: SessionChoice::New,
            // Threads of the event loop end with the daemon.
            orphaned: OrphanFate::Dies,
        })
        .map_err(io::Error::other)?;
        // Not reaped yet, so its number is still its own.
        let pid = Pid::from_raw(spawned.pid.max(0)).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self(Some(Process::new(pidfd_open(pid, PidfdFlags::empty())?))))
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub(crate) async fn ended(mut self) -> io::Result<()> {
        match self.0.take() {
            Some(process) => process.ended().await.map(drop),
            None => Ok(()),
        }
    }

    /// Kills it, and waits until nothing of it goes on.
    pub(crate) async fn end(mut self) {
        if let Some(process) = self.0.take() {
            let _killed = process.kill();
            let _ended = process.ended().await;
        }
    }
}

impl Drop for HelperProcess {
    fn drop(&mut self) {
        if let Some(process) = self.0.take() {
            let _killed = process.kill();
            // Nobody waits for its end but the kernel.
            tokio::spawn(process.ended());
        }
    }
}
