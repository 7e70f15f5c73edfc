//! What callers look at of sandboxes from outside, and of the machine's runs and its audit log.

use std::io;
use std::time::Duration;

use offleash_core::id::RunId;
use offleash_core::level::Level;
use offleash_core::text::Text;
use offleash_store::AuditLog;
use offleash_supervisor::process_list::{FIRST, ProcessList, SandboxProcesses};
use offleash_supervisor::service::error::SupervisorError;
use offleash_supervisor::service::message::Reached;
use offleash_supervisor::service::message::{ProcessInfo, Selector};
use rustix::process::Signal;
use tokio::time::timeout;

use super::Daemon;
use crate::caller::Caller;
use crate::changes::{AppliedChanges, ApplyOrder, ChangeList, DiffView, KeptRun};
use crate::error::DaemonError;
use crate::inspection_error::InspectionError;
use crate::jobs::blocking;
use crate::registry::Scope;
use crate::transitions::WhenPaused;

/// How long the kernel may take to show processes: it waits for what they do with their memory.
const PROCESSES_TIMEOUT: Duration = Duration::from_secs(5);
/// What is refused of a level.
const CHANGES: &str = "a list of changes";

/// Whether the audit log of the machine is as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditVerification {
    /// Lines in it.
    pub lines: u64,
    /// Lines that a crash cut short, each vouched for by a later one.
    pub torn: u64,
    /// The first line that cannot be trusted, and why; nothing after it can.
    pub first_bad: Option<(u64, String)>,
}

/// What is seen of the processes in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SeenProcesses {
    /// All of them, as the kernel shows them outside.
    Kernel(ProcessList),
    /// The commands that were started in it, without what these started: the kernel outside has others of them, or none.
    Commands(Vec<ProcessInfo>),
}

impl Daemon {
    /// What a running sandbox reached by connections that have ended.
    ///
    /// # Errors
    /// `NotFound`, `Forbidden`, `Conflict` if it is paused, `Supervisor`.
    pub async fn reached(&self, caller: &Caller, id: &str) -> Result<Reached, DaemonError> {
        caller.require(Scope::Read)?;
        self.services.core.sandboxes.find(caller, id)?;
        let supervisor = self.supervisor_unless_paused(id).await?;
        let reached = supervisor.reached().await;
        reached.map_err(|error| DaemonError::supervisor("say what was reached", error))
    }

    /// The processes of a running sandbox: as the kernel shows them outside where it has them, or else the commands that were
    /// started in it.
    ///
    /// # Errors
    /// `NotFound`, `Forbidden`, `Conflict` if it is paused, `Supervisor`, `Host`.
    pub async fn processes(&self, caller: &Caller, id: &str) -> Result<SeenProcesses, DaemonError> {
        caller.require(Scope::Create)?;
        if self.has_kernel_view(caller, id)? {
            let list = self.with_processes(caller, id, SandboxProcesses::list).await?;
            return Ok(SeenProcesses::Kernel(list));
        }
        let supervisor = self.supervisor_unless_paused(id).await?;
        let started = supervisor.processes().await;
        let mut started = started.map_err(|error| DaemonError::supervisor("list commands", error))?;
        started.sort_by_key(|command| command.pid);
        Ok(SeenProcesses::Commands(started))
    }

    /// Whether the kernel outside has the processes of a sandbox of the caller's.
    fn has_kernel_view(&self, caller: &Caller, id: &str) -> Result<bool, DaemonError> {
        let entry = self.services.core.sandboxes.find(caller, id)?;
        Ok(entry.read(|facts| facts.specification().level == Level::Process.name()))
    }

    /// Sends a signal to one of them, which was started at that time; of commands that is not known.
    ///
    /// # Errors
    /// As [`Self::processes`]; `Inspection` where there is none, `Invalid` for the first one, which is ours.
    pub async fn signal_process(
        &self,
        caller: &Caller,
        id: &str,
        (pid, started): (u32, u64),
        signal: Signal,
    ) -> Result<(), DaemonError> {
        caller.require(Scope::Create)?;
        if pid == FIRST {
            return Err(DaemonError::invalid("pid", "the first process ends with the sandbox"));
        }
        let gone = || DaemonError::from(InspectionError::NoSuchProcess { id: id.to_owned(), pid });
        if !self.has_kernel_view(caller, id)? {
            let supervisor = self.supervisor_unless_paused(id).await?;
            let sent = supervisor.signal(&Selector::Pid(pid), signal.as_raw()).await;
            return sent.map_err(|error| match error {
                SupervisorError::NoProcess => gone(),
                error => DaemonError::supervisor("send a signal", error),
            });
        }
        let sent = self.with_processes(caller, id, move |processes| processes.signal(pid, started, signal));
        match sent.await? {
            true => Ok(()),
            false => Err(gone()),
        }
    }

    async fn with_processes<T: Send + 'static>(
        &self,
        caller: &Caller,
        id: &str,
        work: impl FnOnce(&SandboxProcesses) -> io::Result<T> + Send + 'static,
    ) -> Result<T, DaemonError> {
        let services = &self.services;
        let entry = services.core.sandboxes.find(caller, id)?;
        let _used = services.changer.running(id, WhenPaused::Leave).await?;
        let first = services.core.host.supervisor(entry.id()).first_process().await;
        let first = first.map_err(|error| DaemonError::supervisor("name its first process", error))?;
        // As many at a time as there are places, whoever keeps the kernel busy.
        let place = services.process_looks.clone().acquire_owned().await;
        let place = place.map_err(|_| DaemonError::Draining)?;
        let looked = blocking("look at processes", move || {
            let _until_done = place;
            work(&SandboxProcesses::of(first)?)
        });
        let looked = timeout(PROCESSES_TIMEOUT, looked).await;
        let late = |_| DaemonError::conflict(id, "is too busy to be looked at");
        looked.map_err(late)??.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => DaemonError::not_found(id),
            _ => DaemonError::host("look at processes")(error),
        })
    }

    /// What was changed in a sandbox since it was made, running or paused.
    ///
    /// # Errors
    /// `NotFound`, `Forbidden`, `Unsupported` at levels without a layer, `Host`.
    pub async fn changes(&self, caller: &Caller, id: &str) -> Result<ChangeList, DaemonError> {
        let (id, level) = self.changed(caller, id)?;
        let found = self.services.changes.of_sandbox(&id).await?;
        found.ok_or_else(|| unsupported(CHANGES, &level))
    }

    /// One change as text; `path` is absolute inside.
    ///
    /// # Errors
    /// As [`Self::changes`]; `Inspection` where there is none.
    pub async fn change_diff(&self, caller: &Caller, id: &str, path: Text) -> Result<DiffView, DaemonError> {
        let (id, level) = self.changed(caller, id)?;
        let found = self.services.changes.diff_of_sandbox(&id, path).await?;
        found.ok_or_else(|| unsupported(CHANGES, &level))
    }

    /// Whose files are looked at: for that it takes as much as for reading them inside.
    fn changed(&self, caller: &Caller, id: &str) -> Result<(RunId, String), DaemonError> {
        caller.require(Scope::Create)?;
        let entry = self.services.core.sandboxes.find(caller, id)?;
        let level = entry.read(|facts| facts.specification().level.clone());
        Ok((entry.id().clone(), level))
    }

    /// Runs of this state directory whose changes are kept; with `all` also those that are over.
    ///
    /// # Errors
    /// `Forbidden` without the scope `admin`, `Inspection`.
    pub async fn kept_runs(&self, caller: &Caller, all: bool) -> Result<Vec<KeptRun>, DaemonError> {
        caller.require(Scope::Admin)?;
        self.services.changes.runs(all).await
    }

    /// What a run changed and was not applied.
    ///
    /// # Errors
    /// `Forbidden` without the scope `admin`, `Inspection`.
    pub async fn run_changes(&self, caller: &Caller, id: &str) -> Result<ChangeList, DaemonError> {
        caller.require(Scope::Admin)?;
        self.services.changes.of_run(id).await
    }

    /// One change of a run as text.
    ///
    /// # Errors
    /// `Forbidden` without the scope `admin`, `Inspection`.
    pub async fn run_diff(&self, caller: &Caller, id: &str, path: Text) -> Result<DiffView, DaemonError> {
        caller.require(Scope::Admin)?;
        self.services.changes.diff_of_run(id, path).await
    }

    /// Writes changes of a run back to the host: all that were asked for, or none.
    ///
    /// # Errors
    /// `Forbidden` without the scope `admin`; `Inspection`, also where the host changed meanwhile.
    pub async fn apply_run(&self, caller: &Caller, id: &str, order: ApplyOrder) -> Result<AppliedChanges, DaemonError> {
        caller.require(Scope::Admin)?;
        self.services.changes.apply(id, order).await
    }

    /// Drops the changes of a run.
    ///
    /// # Errors
    /// `Forbidden` without the scope `admin`, `Inspection`.
    pub async fn discard_run(&self, caller: &Caller, id: &str) -> Result<(), DaemonError> {
        caller.require(Scope::Admin)?;
        self.services.changes.discard(id).await
    }

    /// Whether the audit log of this machine is as it was written, every line of it.
    ///
    /// # Errors
    /// `Forbidden` without the scope `admin`; `Host` if it cannot be read.
    pub async fn verify_audit(&self, caller: &Caller) -> Result<AuditVerification, DaemonError> {
        caller.require(Scope::Admin)?;
        let log = AuditLog::new(self.services.core.host.state());
        let verified = blocking("verify the audit log", move || log.verify()).await?;
        let report = verified.map_err(|error| DaemonError::Host {
            tried: "verify the audit log",
            source: Box::new(error),
        })?;
        // Here the log is written: that it is missing is no archive.
        let missing = report.is_archive.then(|| {
            let why = "the log and `audit.head` are missing, so that nothing shows where the log ended";
            (report.lines + 1, why.to_owned())
        });
        Ok(AuditVerification {
            lines: report.lines,
            torn: report.torn,
            first_bad: report.first_bad.map(|bad| (bad.line, bad.why)).or(missing),
        })
    }
}

fn unsupported(what: &str, level: &str) -> DaemonError {
    DaemonError::Unsupported {
        what: what.to_owned(),
        why: format!("this sandbox of level `{level}` has none that is seen from outside"),
    }
}
