//! A supervisor for one program alone, which describes its sandbox as a run is described, and goes on record as one.
//!
//! It ends with that program: whoever starts it sees to that. What changed in the workspace is kept or written back, as
//! by a run.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::time::Instant;

use offleash_core::id::RunId;
use offleash_core::spec::SandboxSpec;
use offleash_core::text::Text;
use offleash_isolation::sandbox::EnforcementReport;
use offleash_protocol::Dialogue;
use serde::{Deserialize, Serialize};

use super::answer::LaunchAnswer;
use super::hold::{ServedSandbox, ServiceSpec, Start, detach, shell};
use super::order::MAX_HOLD;
use crate::lifecycle::making::{CallerEnvironment, LaunchSpec, PlannedCommand, StateSource};
use crate::lifecycle::{KeptSandbox, LifecycleError, RunReport, record_kept};
use crate::tools::ToolsPlace;

/// What the process is told that is to hold a sandbox for one program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalOrder {
    /// The id of the sandbox, which no other has.
    pub id: RunId,
    /// The sandbox's own directory, which exists and is private (mode 0700).
    pub directory: Text,
    /// The arguments of the program, which say what is to be made.
    pub arguments: Vec<Text>,
}

impl Dialogue for LocalOrder {
    // As much as a process may be started with (execve(2)).
    const MAX_FRAME: usize = 8 * 1024 * 1024;
}

/// A sandbox for one program.
#[derive(Debug)]
pub struct LocalSpec {
    /// What it is.
    pub spec: SandboxSpec,
    /// Its id, which no other has.
    pub id: RunId,
    /// The state directory, if not the usual one.
    pub state: Option<PathBuf>,
    /// The sandbox's own directory, which exists and is private (mode 0700): its socket is in there.
    pub directory: PathBuf,
    /// Where commands start, inside; where those of a run do if absent.
    pub cwd: Option<PathBuf>,
    /// What it is recorded as.
    pub command: Vec<OsString>,
}

/// Makes the sandbox of `order`, tells `answered` what came of it, and serves the sandbox until that ends; answers its
/// record, if there was a sandbox.
///
/// The calling process has one thread; it becomes a session of its own. When `answered` fails, the sandbox is ended again.
///
/// # Errors
/// When the audit log cannot be written.
pub fn hold_local(
    order: LocalSpec,
    answered: impl FnOnce(&LaunchAnswer) -> io::Result<()>,
) -> Result<Option<RunReport>, LifecycleError> {
    detach();
    let began = Instant::now();
    let LocalSpec {
        spec,
        id,
        state,
        directory,
        cwd,
        command,
    } = order;
    let shell = shell();
    let made = ServedSandbox::make(ServiceSpec {
        launch: LaunchSpec {
            spec,
            id,
            state: StateSource::Unswept(state.as_deref()),
            environment: CallerEnvironment::Own,
            planned_for: PlannedCommand::Known(&shell),
            user: None,
            recorded: &command,
            purpose: None,
            wants_copy: false,
            tools: ToolsPlace {
                directory: Some(&directory),
                ..ToolsPlace::default()
            },
        },
        directory: &directory,
        cwd: Some(cwd.map_or(Start::Usual, Start::At)),
        longest_hold: MAX_HOLD,
    });
    let held = match made {
        Ok(held) => held,
        Err(error) => {
            // Nobody may be there to hear it, and there is nothing to be undone.
            let _told = answered(&LaunchAnswer::not_made(&error));
            return Ok(None);
        }
    };
    let hello = &held.service.hello;
    let enforcement = EnforcementReport {
        enforced: hello.enforced.clone(),
        not_enforced: hello.not_enforced.clone(),
    };
    if answered(&held.answer()).is_err() {
        held.undo();
        return Ok(None);
    }
    let mut recorded = Ok(None);
    held.serve_for(|ended, remains, setup| {
        recorded = record_kept(KeptSandbox {
            setup,
            command,
            enforcement,
            began,
            ended,
            denials: remains.denials,
            account: remains.network,
            tools: remains.tools,
            alerts: remains.alerts,
        })
        .map(Some);
    });
    recorded
}
