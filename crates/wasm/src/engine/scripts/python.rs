//! CPython: one export runs one command, which it reads, as its variables and its files, through WASI preview 1.

use offleash_simulated::engine::MAX_PIECE;
use wasmtime::{AsContextMut as _, Caller, Extern, InstancePre, Linker, Store};

use super::super::ExitCode;
use super::super::command::CommandState;

/// The export that runs a command and answers its status.
const RUN: &str = "bashkit_run";
/// What the module with its other imports is called.
const MODULE: &str = "bashkit";
/// What is answered to a request of HTTP: it failed, and words say why.
const NETWORK_ERROR: i32 = 1;
/// And where the module's memory is not what it says.
const FAULT: i32 = 4;
/// Why each request fails.
const NO_NETWORK: &[u8] = b"this level has no network";

type Called<'a> = Caller<'a, CommandState>;

/// Defines the imports beside WASI: requests of HTTP, which have no way out.
pub(super) fn add_to(linker: &mut Linker<CommandState>) -> wasmtime::Result<()> {
    linker.func_wrap(
        MODULE,
        "http_request",
        |mut c: Called<'_>, _: u32, _: u32, _: i64, length_at: u32| {
            let length = u32::try_from(NO_NETWORK.len()).unwrap_or(0);
            c.data_mut().script.answer = NO_NETWORK.to_vec();
            match put(&mut c, length_at, &length.to_le_bytes()) {
                Some(()) => NETWORK_ERROR,
                None => FAULT,
            }
        },
    )?;
    linker.func_wrap(MODULE, "http_take", |mut c: Called<'_>, at: u32, length: u32| {
        let answer = std::mem::take(&mut c.data_mut().script.answer);
        let is_asked_for = usize::try_from(length) == Ok(answer.len()) && answer.len() <= MAX_PIECE;
        match is_asked_for.then(|| put(&mut c, at, &answer)).flatten() {
            Some(()) => 0,
            None => FAULT,
        }
    })?;
    Ok(())
}

fn put(caller: &mut Called<'_>, at: u32, bytes: &[u8]) -> Option<()> {
    let Some(Extern::Memory(memory)) = caller.get_export("memory") else {
        return None;
    };
    memory.write(caller, usize::try_from(at).ok()?, bytes).ok()
}

/// Runs the command that the store's state has.
pub(super) fn run(module: &InstancePre<CommandState>, store: &mut Store<CommandState>) -> wasmtime::Result<()> {
    let instance = module.instantiate(store.as_context_mut())?;
    let run = instance.get_typed_func::<(), i32>(store.as_context_mut(), RUN)?;
    match run.call(store, ())? {
        0 => Ok(()),
        status => Err(wasmtime::Error::new(ExitCode(status.cast_unsigned()))),
    }
}
