//! Which level a run gets, and what makes sandboxes of it.

use offleash_core::level::{Level, LevelChoice};
use offleash_core::spec::SandboxSpec;
use offleash_isolation::process::ProcessBackend;
use offleash_isolation::sandbox::Backend;

use super::ManagerError;

/// The level for a spec: the one asked for, or the strongest that needs no image, if it is not below the floor.
///
/// # Errors
/// `LevelUnavailable` or `BelowFloor`.
pub fn choose(spec: &SandboxSpec) -> Result<Level, ManagerError> {
    let level = match spec.level {
        LevelChoice::Auto => Level::Process,
        LevelChoice::Exactly(level) => level,
    };
    backend(level)?;
    match spec.min_level {
        Some(floor) if level < floor => Err(ManagerError::BelowFloor { strongest: level, floor }),
        _ => Ok(level),
    }
}

/// What makes sandboxes of a level.
pub(super) fn backend(level: Level) -> Result<Box<dyn Backend>, ManagerError> {
    match level {
        Level::Process => Ok(Box::new(ProcessBackend)),
        Level::ProcessLandlock | Level::Container | Level::Microvm => Err(ManagerError::LevelUnavailable { level }),
    }
}
