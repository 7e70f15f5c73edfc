//! `offleash vm`: what level `microvm` stands on.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use offleash_isolation::microvm::{images, kernel};
use offleash_supervisor::lifecycle::{LifecycleError, open_state};

use crate::args::{VmCommand, VmKernelArgs};
use crate::failure::Failure;
use crate::terminal;

pub(crate) fn vm(command: &VmCommand, state: Option<&Path>) -> Result<ExitCode, Failure> {
    match command {
        VmCommand::Kernel(arguments) => prepare_kernel(arguments, state),
    }
}

fn prepare_kernel(arguments: &VmKernelArgs, state: Option<&Path>) -> Result<ExitCode, Failure> {
    let state = open_state(state)?;
    let found = match &arguments.package {
        Some(package) => kernel::unpack(&absolute(package)?, state.path()),
        None => kernel::find(arguments.path.as_deref(), state.path()),
    };
    let found = found.map_err(LifecycleError::from)?;
    let images = images::prepare(&found, state.path()).map_err(LifecycleError::from)?;
    let line = format!(
        "{} ({}), {} modules; booted from {}\n",
        found.release,
        found.image.display(),
        found.modules.len(),
        images.display()
    );
    terminal::print(line.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// A name that is no option of who is given it.
fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|error| Failure::from_error(&error))
}
