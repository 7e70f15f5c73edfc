//! QuickJS: an engine whose functions are exports, and the part of Node.js that `prelude.js` makes of calls of ours.

mod calls;
mod values;

use std::time::Duration;

use wasmtime::{AsContextMut as _, Caller, InstancePre, Linker, Store};

use super::super::ExitCode;
use super::super::command::CommandState;
use values::{JsHandle, QuickJs};

/// What scripts have beside the language.
const PRELUDE: &str = include_str!("javascript/prelude.js");
const PRELUDE_NAME: &str = "node:internal";
/// The stack that the engine takes for its own: half of what it has, as its makers say.
const MAX_ENGINE_STACK: u32 = 512 * 1024;
/// How code is evaluated (`JS_EVAL_TYPE_GLOBAL`, `JS_EVAL_TYPE_MODULE`).
const GLOBAL: u32 = 0;
const MODULE: u32 = 1;
/// What a script ends with that let an error pass.
const EXIT_UNCAUGHT: u32 = 1;
/// After it a script is asked again how long it waits.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

type Called<'a> = Caller<'a, CommandState>;

/// What the engine's imports act on.
#[derive(Default)]
pub(super) struct JavaScriptState {
    engine: Option<QuickJs>,
    hooks: Option<PreludeHooks>,
    /// Promises that were rejected, by their identity, with the reasons; none of them is handled so far.
    rejected: Vec<(u32, JsHandle)>,
}

impl std::fmt::Debug for JavaScriptState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JavaScriptState").finish_non_exhaustive()
    }
}

/// Functions of the prelude.
#[derive(Debug, Clone, Copy)]
struct PreludeHooks {
    tick: JsHandle,
    reject: JsHandle,
    finish: JsHandle,
    resolve: JsHandle,
    source_of: JsHandle,
}

/// Defines the imports beside WASI.
pub(super) fn add_to(linker: &mut Linker<CommandState>) -> wasmtime::Result<()> {
    const ENV: &str = "env";
    linker.func_wrap(
        ENV,
        "host_call",
        |mut c: Called<'_>, name: u32, length: u32, _: u32, count: u32, arguments: u32| {
            calls::carry_out(&mut c, (name, length), count, arguments)
        },
    )?;
    // Limits of time end the process.
    linker.func_wrap(ENV, "host_interrupt", |_: Called<'_>| 0_u32)?;
    linker.func_wrap(ENV, "host_promise_rejection", rejection)?;
    linker.func_wrap(
        ENV,
        "host_module_normalize",
        |mut c: Called<'_>, base: u32, name: u32| {
            let engine = engine_of(&mut c)?;
            let words = [engine.c_string(&mut c, base)?, engine.c_string(&mut c, name)?];
            answer_text(&mut c, |hooks| hooks.resolve, &words, None)
        },
    )?;
    linker.func_wrap(
        ENV,
        "host_module_load",
        |mut c: Called<'_>, name: u32, length_at: u32| {
            let name = engine_of(&mut c)?.c_string(&mut c, name)?;
            answer_text(&mut c, |hooks| hooks.source_of, &[name], Some(length_at))
        },
    )?;
    // Times are shown as in UTC.
    linker.func_wrap(ENV, "host_get_timezone_offset", |_: Called<'_>, _: u32, _: u32| 0_u32)?;
    Ok(())
}

fn engine_of(caller: &mut Called<'_>) -> wasmtime::Result<QuickJs> {
    let engine = caller.data().script.javascript.engine.clone();
    engine.ok_or_else(|| wasmtime::Error::msg("the engine called before it began"))
}

/// Asks a function of the prelude for text, which the engine then has in memory of its own; zero when it threw.
fn answer_text(
    caller: &mut Called<'_>,
    hook: fn(&PreludeHooks) -> JsHandle,
    words: &[Vec<u8>],
    length_at: Option<u32>,
) -> wasmtime::Result<u32> {
    let engine = engine_of(caller)?;
    let Some(hook) = caller.data().script.javascript.hooks.as_ref().map(hook) else {
        return Ok(0);
    };
    let mut arguments = Vec::with_capacity(words.len());
    for word in words {
        arguments.push(engine.new_string(caller, word)?);
    }
    let Some(answer) = engine.call(caller, hook, &arguments)? else {
        return Ok(0);
    };
    let text = engine.text(caller, answer)?;
    engine.release(caller, answer)?;
    if let Some(at) = length_at {
        let length = u32::try_from(text.len())?;
        engine.write(caller, at, &length.to_le_bytes())?;
    }
    engine.place_c_string(caller, &text)
}

/// Notes that a promise was rejected and nothing handles it, or that something does now.
fn rejection(mut caller: Called<'_>, promise: u32, reason: u32, is_handled: u32) -> wasmtime::Result<()> {
    let engine = engine_of(&mut caller)?;
    let identity = engine.identity(&mut caller, JsHandle(promise))?;
    engine.release(&mut caller, JsHandle(promise))?;
    let reason = JsHandle(reason);
    let rejected = &mut caller.data_mut().script.javascript.rejected;
    if is_handled == 0 {
        rejected.push((identity, reason));
        return Ok(());
    }
    let known = rejected.iter().position(|(known, _)| *known == identity);
    let known = known.map(|place| rejected.remove(place).1);
    for handle in known.into_iter().chain([reason]) {
        engine.release(&mut caller, handle)?;
    }
    Ok(())
}

/// Runs the command that the store's state has.
pub(super) fn run(module: &InstancePre<CommandState>, store: &mut Store<CommandState>) -> wasmtime::Result<()> {
    let instance = module.instantiate(store.as_context_mut())?;
    let engine = QuickJs::of(&instance, store)?;
    store.data_mut().script.javascript.engine = Some(engine.clone());
    engine.begin(store, MAX_ENGINE_STACK)?;
    let run = prepare(&engine, store)?;
    let command = command_json(store.data());
    let command = engine.new_string(store, command.as_bytes())?;
    let Some(_) = engine.call(store, run, &[command])? else {
        return uncaught(&engine, store);
    };
    turn_until_idle(&engine, store)?;
    finish(&engine, store)
}

/// Evaluates the prelude, and keeps its functions; that which runs a command.
fn prepare(engine: &QuickJs, store: &mut Store<CommandState>) -> wasmtime::Result<JsHandle> {
    let thrown = || wasmtime::Error::msg("the prelude threw");
    let make = engine.evaluate(store, PRELUDE.as_bytes(), PRELUDE_NAME.as_bytes(), GLOBAL)?;
    let make = make.ok_or_else(thrown)?;
    let host = calls::host_object(engine, store)?;
    let made = engine.call(store, make, &[host])?.ok_or_else(thrown)?;
    let hooks = PreludeHooks {
        tick: engine.property(store, made, "tick")?,
        reject: engine.property(store, made, "reject")?,
        finish: engine.property(store, made, "finish")?,
        resolve: engine.property(store, made, "resolve")?,
        source_of: engine.property(store, made, "sourceOf")?,
    };
    store.data_mut().script.javascript.hooks = Some(hooks);
    engine.property(store, made, "run")
}

fn hooks_of(store: &Store<CommandState>) -> wasmtime::Result<PreludeHooks> {
    let hooks = store.data().script.javascript.hooks;
    hooks.ok_or_else(|| wasmtime::Error::msg("the prelude has not run"))
}

/// Carries out what promises and timers have to do, until nothing is left.
fn turn_until_idle(engine: &QuickJs, store: &mut Store<CommandState>) -> wasmtime::Result<()> {
    let hooks = hooks_of(store)?;
    loop {
        while engine.has_job(store)? {
            if !engine.run_job(store)? {
                return uncaught(engine, store);
            }
        }
        if let Some((_, reason)) = store.data_mut().script.javascript.rejected.pop() {
            if engine.call(store, hooks.reject, &[reason])?.is_none() {
                return uncaught(engine, store);
            }
            continue;
        }
        let Some(wait) = engine.call(store, hooks.tick, &[])? else {
            return uncaught(engine, store);
        };
        let wait = engine.number(store, wait)?;
        if wait < 0.0 && !engine.has_job(store)? {
            return Ok(());
        }
        if wait > 0.0 {
            // A script may have put its own in place of what counts: it may say any number.
            let wait = Duration::try_from_secs_f64(wait / 1000.0).unwrap_or(LONGEST_WAIT);
            std::thread::sleep(wait.min(LONGEST_WAIT));
        }
    }
}

/// Ends as the script said.
fn finish(engine: &QuickJs, store: &mut Store<CommandState>) -> wasmtime::Result<()> {
    let hooks = hooks_of(store)?;
    let Some(code) = engine.call(store, hooks.finish, &[])? else {
        return uncaught(engine, store);
    };
    let code = engine.number(store, code)?;
    match calls::exit_code(code) {
        0 => Ok(()),
        code => Err(wasmtime::Error::new(ExitCode(code))),
    }
}

/// Says what was thrown where nothing of the prelude could, and ends: the engine has no memory left, for one.
fn uncaught(engine: &QuickJs, store: &mut Store<CommandState>) -> wasmtime::Result<()> {
    let thrown = engine.exception(store)?;
    let text = engine.text(store, thrown)?;
    let line = [b"Uncaught ".as_slice(), &text, b"\n"].concat();
    store
        .data_mut()
        .output(offleash_core::exec::OutputStream::Stderr, &line);
    Err(wasmtime::Error::new(ExitCode(EXIT_UNCAUGHT)))
}

/// Arguments, variables and directory as JSON.
fn command_json(state: &CommandState) -> String {
    let list = |words: &[String]| words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(",");
    let env: Vec<String> = state
        .env
        .iter()
        .map(|(name, value)| format!("[{},{}]", quoted(name), quoted(value)))
        .collect();
    let cwd = state.env.iter().find(|(name, _)| name == "PWD");
    let cwd = cwd.map_or("/", |(_, cwd)| cwd.as_str());
    format!(
        r#"{{"argv":[{}],"env":[{}],"cwd":{}}}"#,
        list(&state.argv),
        env.join(","),
        quoted(cwd)
    )
}

/// Text as JSON has it.
fn quoted(text: &str) -> String {
    use std::fmt::Write as _;
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            control if control < ' ' => {
                // Writing to a string does not fail.
                let _written = write!(quoted, "\\u{:04x}", u32::from(control));
            }
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_quoted_as_json_has_it() {
        assert_eq!(quoted("a\"b\\c\nd\u{7f}é"), "\"a\\\"b\\\\c\\u000ad\u{7f}é\"");
    }
}
