//! Arguments, environment, the end, clocks and randomness.

use std::time::Duration;

use wasmtime::component::{ComponentType, Lift, Linker, Lower, Resource, ResourceType};
use wasmtime::{Error, Result, StoreContextMut};

use super::super::ExitCode;
use super::super::command::{CommandState, fill_randomly, wall_clock};
use super::interface;
use super::streams::{InputStream, OutputSink, Pollable};
use offleash_core::exec::OutputStream;

/// How much randomness one call gives, in bytes.
const MAX_RANDOM: u64 = 1024 * 1024;

type Context<'a> = StoreContextMut<'a, CommandState>;

/// A time since 1970.
#[derive(Debug, Clone, Copy, ComponentType, Lift, Lower)]
#[component(record)]
pub(super) struct Datetime {
    pub(super) seconds: u64,
    pub(super) nanoseconds: u32,
}

/// Handles of a terminal, of which there is none.
enum TerminalInput {}
enum TerminalOutput {}

pub(super) fn add_to(linker: &mut Linker<CommandState>) -> Result<()> {
    let mut here = linker.instance(&interface("wasi:cli/environment"))?;
    here.func_wrap("get-environment", |c: Context<'_>, (): ()| Ok((c.data().env.clone(),)))?;
    here.func_wrap("get-arguments", |c: Context<'_>, (): ()| Ok((c.data().argv.clone(),)))?;
    here.func_wrap("initial-cwd", |_: Context<'_>, (): ()| Ok((Some(".".to_owned()),)))?;

    let mut here = linker.instance(&interface("wasi:cli/exit"))?;
    here.func_wrap("exit", |_: Context<'_>, (status,): (Result<(), ()>,)| -> Result<()> {
        Err(Error::new(ExitCode(u32::from(status.is_err()))))
    })?;
    here.func_wrap("exit-with-code", |_: Context<'_>, (code,): (u8,)| -> Result<()> {
        Err(Error::new(ExitCode(u32::from(code))))
    })?;

    let mut here = linker.instance(&interface("wasi:cli/stdin"))?;
    here.func_wrap("get-stdin", |mut c: Context<'_>, (): ()| {
        Ok((c.data_mut().table.push(InputStream::Standard)?,))
    })?;
    for (name, call, stream) in [
        ("wasi:cli/stdout", "get-stdout", OutputStream::Stdout),
        ("wasi:cli/stderr", "get-stderr", OutputStream::Stderr),
    ] {
        let mut here = linker.instance(&interface(name))?;
        here.func_wrap(call, move |mut c: Context<'_>, (): ()| {
            Ok((c.data_mut().table.push(OutputSink::Standard(stream))?,))
        })?;
    }
    add_terminals(linker)?;
    add_clocks(linker)?;
    add_randomness(linker)
}

fn add_terminals(linker: &mut Linker<CommandState>) -> Result<()> {
    let mut here = linker.instance(&interface("wasi:cli/terminal-input"))?;
    here.resource("terminal-input", ResourceType::host::<TerminalInput>(), |_, _| Ok(()))?;
    let mut here = linker.instance(&interface("wasi:cli/terminal-output"))?;
    here.resource("terminal-output", ResourceType::host::<TerminalOutput>(), |_, _| Ok(()))?;
    let mut here = linker.instance(&interface("wasi:cli/terminal-stdin"))?;
    here.func_wrap("get-terminal-stdin", |_: Context<'_>, (): ()| {
        Ok((None::<Resource<TerminalInput>>,))
    })?;
    for (name, call) in [
        ("wasi:cli/terminal-stdout", "get-terminal-stdout"),
        ("wasi:cli/terminal-stderr", "get-terminal-stderr"),
    ] {
        let mut here = linker.instance(&interface(name))?;
        here.func_wrap(call, |_: Context<'_>, (): ()| Ok((None::<Resource<TerminalOutput>>,)))?;
    }
    Ok(())
}

fn add_clocks(linker: &mut Linker<CommandState>) -> Result<()> {
    let mut here = linker.instance(&interface("wasi:clocks/monotonic-clock"))?;
    here.func_wrap("now", |c: Context<'_>, (): ()| Ok((c.data().monotonic(),)))?;
    here.func_wrap("resolution", |_: Context<'_>, (): ()| Ok((1_u64,)))?;
    here.func_wrap("subscribe-instant", |mut c: Context<'_>, (at,): (u64,)| {
        let wait = at.saturating_sub(c.data().monotonic());
        Ok((c.data_mut().table.push(Pollable::after(Duration::from_nanos(wait)))?,))
    })?;
    here.func_wrap("subscribe-duration", |mut c: Context<'_>, (wait,): (u64,)| {
        Ok((c.data_mut().table.push(Pollable::after(Duration::from_nanos(wait)))?,))
    })?;
    let mut here = linker.instance(&interface("wasi:clocks/wall-clock"))?;
    here.func_wrap("now", |_: Context<'_>, (): ()| Ok((datetime(wall_clock()),)))?;
    here.func_wrap("resolution", |_: Context<'_>, (): ()| Ok((datetime(1),)))?;
    Ok(())
}

fn datetime(nanoseconds: u64) -> Datetime {
    Datetime {
        seconds: nanoseconds / 1_000_000_000,
        nanoseconds: u32::try_from(nanoseconds % 1_000_000_000).unwrap_or(0),
    }
}

fn random(length: u64) -> Result<Vec<u8>> {
    let length = usize::try_from(length.min(MAX_RANDOM))?;
    let mut bytes = vec![0; length];
    fill_randomly(&mut bytes).map_err(std::io::Error::from_raw_os_error)?;
    Ok(bytes)
}

fn random_number() -> Result<u64> {
    let bytes: [u8; 8] = random(8)?.try_into().unwrap_or_default();
    Ok(u64::from_le_bytes(bytes))
}

fn add_randomness(linker: &mut Linker<CommandState>) -> Result<()> {
    for (name, bytes, number) in [
        ("wasi:random/random", "get-random-bytes", "get-random-u64"),
        (
            "wasi:random/insecure",
            "get-insecure-random-bytes",
            "get-insecure-random-u64",
        ),
    ] {
        let mut here = linker.instance(&interface(name))?;
        here.func_wrap(bytes, |_: Context<'_>, (length,): (u64,)| {
            match length <= MAX_RANDOM {
                true => Ok((random(length)?,)),
                // Fewer than were asked for would be taken for as many.
                false => Err(Error::msg("more randomness at once than 1 MiB")),
            }
        })?;
        here.func_wrap(number, |_: Context<'_>, (): ()| Ok((random_number()?,)))?;
    }
    let mut here = linker.instance(&interface("wasi:random/insecure-seed"))?;
    here.func_wrap("insecure-seed", |_: Context<'_>, (): ()| {
        Ok(((random_number()?, random_number()?),))
    })
}
