//! When sandboxes sleep, and when checkpoints of them are made by themselves.

use std::time::Duration;

use offleash_core::command_trigger::{CommandTrigger, CommandTriggerError};
use offleash_daemon::LifecycleConfig;

use super::keys::LifecycleKeys;
use super::set;
use super::written::Wrong;

/// What the table says.
///
/// # Errors
/// When a word means nothing, or a command is none.
pub(super) fn lifecycle(table: &LifecycleKeys, config: &mut LifecycleConfig) -> Result<(), Wrong> {
    let time = |seconds: Option<u64>| seconds.filter(|seconds| *seconds > 0).map(Duration::from_secs);
    config.idle = time(table.idle_seconds);
    let mode = table.idle_mode.as_deref().map(str::parse).transpose();
    set(
        &mut config.idle_mode,
        mode.map_err(|why: String| Wrong::new("lifecycle.idle_mode", why))?,
    );
    let of_templates = table.idle_seconds_of.iter().flatten();
    config.idle_of_templates = of_templates
        .map(|(name, seconds)| (name.clone(), Duration::from_secs(*seconds)))
        .collect();
    set(&mut config.max_put_away, table.max_put_away);
    config.checkpoint_every = time(table.checkpoint_every_seconds);
    config.checkpoint_before = commands("lifecycle.checkpoint_before", table.checkpoint_before.as_deref())?;
    config.ask_before = commands("lifecycle.ask_before", table.ask_before.as_deref())?;
    set(&mut config.ask_before_restore, table.ask_before_restore);
    if table.checkpoint_keep == Some(0) {
        return Err(Wrong::new(
            "lifecycle.checkpoint_keep",
            "it is 0, and must be 1 at least",
        ));
    }
    set(&mut config.checkpoint_keep, table.checkpoint_keep);
    Ok(())
}

/// The commands of a list.
fn commands(key: &'static str, given: Option<&[String]>) -> Result<Vec<CommandTrigger>, Wrong> {
    let given = given.unwrap_or_default().iter().enumerate();
    let parsed = given.map(|(number, command)| {
        let parsed = command.parse();
        parsed.map_err(|error: CommandTriggerError| Wrong::item(key, number, error.to_string()))
    });
    parsed.collect()
}
