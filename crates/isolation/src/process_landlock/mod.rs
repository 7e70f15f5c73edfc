//! The level `process-landlock`: Landlock, seccomp, rlimits and a watcher, in the host's own namespaces.
//!
//! For machines on which user namespaces are forbidden. Nothing is mounted, so the plan's tree cannot be built: what it
//! grants is granted where the host has it (`grants`), the workspace is a copy that is turned into a layer of
//! changes afterwards (`workspace`), and home and temporary files are a directory of the run (`places`). What the
//! level `process` has and this one lacks is listed in every record (`describe`).
//!
//! What a program can still do here: see the host's processes in `/proc`, though not look into them; ask for names,
//! sizes and times of any file that it knows the path of; use the user's own id.

mod attributes;
mod child;
mod create;
mod describe;
mod forks;
mod grants;
mod places;
mod remains;
mod running;
mod workspace;

use offleash_core::level::Level;
use offleash_core::plan::Plan;

use crate::error::IsolationError;
use crate::sandbox::{Backend, LeftoverKeeper, Sandbox};

/// Makes sandboxes of the level `process-landlock`. The calling process must have one thread, and becomes a subreaper.
#[derive(Debug, Default)]
pub struct ProcessLandlockBackend;

impl Backend for ProcessLandlockBackend {
    fn level(&self) -> Level {
        Level::ProcessLandlock
    }

    fn create(&mut self, plan: &Plan, leftovers: &mut dyn LeftoverKeeper) -> Result<Box<dyn Sandbox>, IsolationError> {
        Ok(Box::new(create::create(plan, leftovers)?))
    }
}

/// The error of a step at this level.
fn failed(step: impl Into<String>, subject: impl Into<String>, source: std::io::Error) -> IsolationError {
    IsolationError::Step {
        level: Level::ProcessLandlock,
        step: step.into(),
        subject: subject.into(),
        source,
    }
}
