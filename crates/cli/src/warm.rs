//! `offleash run --warm`: hands a run to a sandbox that waits for it, keeps such sandboxes, and is the process that holds
//! one. `offleash warm` lists and ends them.

use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use offleash_core::plan::Environment;
use offleash_core::spec::SandboxSpec;
use offleash_planner::PlanningHost;
use offleash_store::{StateDirectory, rfc3339};
use offleash_supervisor::frames::texts;
use offleash_supervisor::lifecycle::{
    CheckedRun, PrewarmedSandbox, RunRequest, open_existing_state, open_state, this_host,
};
use offleash_supervisor::prewarmed::{
    self, Asked as AskedOf, Caller, Described, HandedRun, Key, PrewarmedOrder, PrewarmedSocket, RunWords, SocketPlace,
};
use offleash_supervisor::templates;

use crate::args::{PullArg, RunArgs, RunInvocation, WarmCommand};
use crate::failure::{EXIT_FAILURE, Failure};
use crate::python::Python;
use crate::run;
use crate::supervise::read_order;
use crate::terminal::{self, Prompt, TerminalIo};

/// How long a sandbox waits for a run.
const IDLE: Duration = Duration::from_secs(5 * 60);
/// Stands between arguments and command.
const SEPARATOR: &str = "--";

/// Whether the parser understands words as they were taken apart without it.
fn agrees(words: &RunWords<'_>, parsed: &RunArgs) -> bool {
    parsed.shell.as_ref() == words.script && parsed.command == words.command
}

/// Hands the run with these words to a sandbox that waits for it, if there is one, and waits for its end; the exit code.
///
/// # Errors
/// When a sandbox was taken and nothing is known of what became of the run.
// In a frame of its own, which is not there while the command runs.
#[inline(never)]
pub(crate) fn handed_over(words: &[OsString]) -> Result<Option<u8>, Failure> {
    Ok(prewarmed::hand_over(words)?)
}

/// Sees to it that as many sandboxes wait for runs with these words as was asked for.
///
/// # Errors
/// When none can be made to.
pub(crate) fn keep_warm(words: &[OsString], parsed: &RunArgs, state: Option<&Path>) -> Result<(), Failure> {
    let Some(words) = RunWords::split(words).filter(|words| agrees(words, parsed)) else {
        return Ok(());
    };
    let (spec, _) = run::specify_run(parsed, state)?;
    let has_own_report = parsed
        .report
        .as_deref()
        .is_none_or(|path| !run::is_door_of_the_system(path));
    // A registry would be asked anew by whoever holds the sandbox.
    let pulls = parsed.pull == Some(PullArg::Always);
    let is_plain = !parsed.tty && parsed.learn.learn.is_none() && has_own_report && !pulls;
    if spec.warm == 0 || !is_plain || !PrewarmedSandbox::can_wait(&spec) {
        return Ok(());
    }
    // What reads from a terminal has to belong to it.
    if std::io::stdin().is_terminal() {
        return Ok(());
    }
    let cwd = std::env::current_dir().map_err(|error| Failure::from_error(&error))?;
    let (arguments, has_script) = (words.arguments, words.script.is_some());
    // One of which not all can be told has no like.
    let Ok(key) = Key::of_this_process(arguments, has_script, &cwd) else {
        return Ok(());
    };
    let variables = variables(parsed, &spec, std::env::vars_os().collect());
    let order = PrewarmedOrder::new(arguments, has_script, cwd, &key).with_variables(&variables);
    Ok(prewarmed::start(&open_state(state)?, &key, &order, spec.warm.into())?)
}
/// What an interpreter has of its caller's that is started before a run asks.
fn variables(arguments: &RunArgs, spec: &SandboxSpec, env: Environment) -> Environment {
    match arguments.python {
        true => spec.env.resolve(&env).into_iter().collect(),
        false => Environment::new(),
    }
}

/// Holds one sandbox until a run takes it (`offleash supervise prewarmed`).
pub(crate) fn hold() -> ExitCode {
    offleash_sys::process::keep_free_memory();
    let order: PrewarmedOrder = match read_order() {
        Ok(order) => order,
        Err(failure) => return failure.print(),
    };
    terminal::speak_as(&order.arguments());
    match Waiting::prepare(order) {
        Ok(Some(waiting)) => match waiting.wait() {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => failure.print(),
        },
        Ok(None) => ExitCode::from(EXIT_FAILURE),
        Err(failure) => failure.print(),
    }
}

/// A sandbox that waits, and what it waits for.
struct Waiting {
    order: PrewarmedOrder,
    key: Key,
    invocation: RunInvocation,
    state: StateDirectory,
    holder: PrewarmedSocket,
    prepared: PrewarmedSandbox,
    until: Instant,
}

impl Waiting {
    /// Makes the sandbox. `None` when none is to be: when it is of no use, or this process is not like the one that
    /// started it.
    fn prepare(order: PrewarmedOrder) -> Result<Option<Self>, Failure> {
        let (arguments, cwd) = (order.arguments(), order.cwd());
        let entered = std::env::set_current_dir(&cwd);
        entered.map_err(|error| Failure::from_error(&error))?;
        let key = Key::of_this_process(&arguments, order.has_script, &cwd);
        let key = key.map_err(|error| Failure::from_error(&error))?;
        if !order.is_for(&key) {
            return Ok(None);
        }
        let command = [SEPARATOR, "true"].map(OsString::from);
        let words = arguments.into_iter().chain(command).collect();
        let invocation =
            RunInvocation::read("offleash".into(), words).map_err(|error| Failure::new(error.to_string()))?;
        let state = open_state(invocation.state.as_deref())?;
        let place = SocketPlace::take_over(&state, &key).map_err(|error| Failure::from_error(&error))?;
        let Some(prepared) = make_ready(&invocation, &order, &state, &place)? else {
            return Ok(None);
        };
        if !prepared.is_whole() {
            prepared.discard()?;
            return Ok(None);
        }
        let opened = PrewarmedSocket::open(place, key.clone(), prepared.id(), describe(&order, &prepared));
        let holder = match opened {
            Ok(holder) => holder,
            Err(error) => {
                prepared.discard()?;
                return Err(Failure::from_error(&error));
            }
        };
        Ok(Some(Self {
            until: Instant::now() + IDLE,
            holder,
            order,
            key,
            invocation,
            state,
            prepared,
        }))
    }

    fn discard(self) -> Result<(), Failure> {
        drop(self.holder);
        self.prepared.discard()?;
        remove_replaced(&self.state, &self.invocation);
        Ok(())
    }

    /// Waits for a run, carries it out, and leaves another holder in its place.
    fn wait(mut self) -> Result<(), Failure> {
        leave_directory()?;
        match self.holder.wait(&mut self.prepared, self.until) {
            AskedOf::Run(caller, given) => self.serve(&caller, *given),
            // Whoever asked for it waits until all is gone.
            AskedOf::End(_asked) => self.discard(),
        }
    }

    fn serve(mut self, caller: &Caller, given: HandedRun) -> Result<(), Failure> {
        let Ok(door) = caller.try_clone() else {
            return self.discard();
        };
        let Some((request, python, checked)) = self.accept(&given) else {
            return self.discard();
        };
        let Self {
            order,
            key,
            invocation,
            state,
            holder,
            prepared,
            ..
        } = self;
        if terminal::become_streams(&given.streams).is_err() || caller.take().is_err() {
            return Ok(prepared.discard()?);
        }
        drop(given.streams);
        run::tell_which(python, &invocation.run);
        let door = |destination| {
            let prompt = Prompt::new(&run::program(&request), false, None);
            TerminalIo::for_another(destination, prompt, door)
        };
        let mut remains = None;
        let carried_out = run::carry_out(&invocation.run, door, |door| {
            // Whoever asks in between hears that it is taken when this is dropped.
            prepared.run(&request, checked, door, || drop(holder), &mut remains)
        });
        let code = carried_out.and_then(|carried_out| run::conclude(&invocation.run, &request, carried_out, None));
        let code = code.unwrap_or_else(Failure::tell);
        // Whoever reads them waits for their end.
        let left = terminal::leave_streams();
        caller.end(code);
        drop(remains);
        left.map_err(|error| Failure::from_error(&error))?;
        leave_directory()?;
        remove_replaced(&state, &invocation);
        let order = order.with_variables(&variables(&invocation.run, &request.spec, given.handover.env()));
        Ok(prewarmed::start(&state, &key, &order, usize::from(request.spec.warm))?)
    }

    /// The run that was handed over, if it would make this sandbox.
    fn accept(&mut self, given: &HandedRun) -> Option<(RunRequest, Option<Python>, CheckedRun)> {
        let handover = &given.handover;
        rustix::process::fchdir(&given.cwd).ok()?;
        let started = Instant::now().checked_sub(handover.age)?;
        let arguments = &mut self.invocation.run;
        arguments.shell = handover.script();
        arguments.command = handover.command();
        let (spec, python) = run::specify_run(arguments, self.invocation.state.as_deref()).ok()?;
        let request = run::request(arguments, spec, self.invocation.state.as_deref(), started).ok()?;
        let env = handover.env();
        let home = env.iter().find(|(name, value)| name == "HOME" && !value.is_empty());
        let host = PlanningHost {
            home: home.map(|(_, home)| PathBuf::from(home)),
            cwd: handover.cwd(),
            env,
            ..this_host(self.state.path()).ok()?
        };
        let checked = self.prepared.check(&request, host)?;
        Some((request, python, checked))
    }
}

/// The sandbox that is to wait, with a Python in it where runs are for one and that comes to something. `None` when somebody
/// has said meanwhile that it is to end.
fn make_ready(
    invocation: &RunInvocation,
    order: &PrewarmedOrder,
    state: &StateDirectory,
    place: &SocketPlace,
) -> Result<Option<PrewarmedSandbox>, Failure> {
    let named = invocation.state.as_deref();
    let (spec, _) = run::specify_run(&invocation.run, named)?;
    let request = run::request(&invocation.run, spec.clone(), named, Instant::now())?;
    let env = order.env();
    let make = || PrewarmedSandbox::make(spec.clone(), state, &env);
    let mut prepared = make()?;
    if !invocation.run.python {
        return Ok(Some(prepared));
    }
    let mut asked = None;
    let mut is_wanted = || {
        asked = place.told_to_end();
        asked.is_none()
    };
    let imported = prepared.import_ahead(&request, &mut is_wanted);
    if matches!(imported, Ok(true)) {
        return Ok(Some(prepared));
    }
    prepared.discard()?;
    // Whoever asked for it waits until all is gone.
    match asked {
        Some(_asked) => {
            remove_replaced(state, invocation);
            Ok(None)
        }
        None => Ok(Some(make()?)),
    }
}

/// Sandboxes that wait hold templates for long, among them such as were built again meanwhile.
fn remove_replaced(state: &StateDirectory, invocation: &RunInvocation) {
    if invocation.run.python || invocation.run.sandbox.template.is_some() {
        // What cannot be removed now is left to the next command that works with templates.
        let _removed = templates::clean(state);
    }
}

/// The holder's directory is nobody's business, and its caller's may be unmounted.
fn leave_directory() -> Result<(), Failure> {
    std::env::set_current_dir("/").map_err(|error| Failure::from_error(&error))
}

/// What `offleash warm ls` says of a sandbox.
fn describe(order: &PrewarmedOrder, prepared: &PrewarmedSandbox) -> Described {
    let now = SystemTime::now();
    Described {
        id: prepared.id().to_string(),
        pid: std::process::id(),
        since: rfc3339(now),
        until: rfc3339(now + IDLE),
        cwd: order.cwd().into(),
        arguments: texts(&order.arguments()),
    }
}

/// `offleash warm`.
pub(crate) fn warm(command: &WarmCommand, state: Option<&Path>) -> Result<ExitCode, Failure> {
    let state = open_existing_state(state)?;
    match command {
        WarmCommand::Ls { json } => list(state.as_ref(), *json)?,
        WarmCommand::Stop { ids } => stop(state.as_ref(), ids)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn list(state: Option<&StateDirectory>, json: bool) -> Result<(), Failure> {
    let all = state.map(prewarmed::all).transpose()?.unwrap_or_default();
    if json {
        return terminal::print(&terminal::json_line(&all)?);
    }
    let mut text = String::new();
    for one in all {
        let words: Vec<String> = one.arguments.iter().map(ToString::to_string).collect();
        let line = [
            one.id,
            one.pid.to_string(),
            format!("until {}", one.until),
            one.cwd.to_string(),
            words.join(" "),
        ];
        text.push_str(line.join("  ").trim_end());
        text.push('\n');
    }
    terminal::print(text.as_bytes())
}

fn stop(state: Option<&StateDirectory>, ids: &[String]) -> Result<(), Failure> {
    let ended = state
        .map(|state| prewarmed::stop(state, ids))
        .transpose()?
        .unwrap_or_default();
    match ids.iter().find(|id| !ended.contains(id)) {
        None => Ok(()),
        Some(id) => Err(
            Failure::new(format!("no sandbox `{}` waits for a run", id.escape_debug()))
                .with_hint("`offleash warm ls` lists those that wait"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn words_are_taken_apart_as_the_parser_does() {
        for text in [
            "--warm 2 -- echo -c x",
            "--warm 2 -c S",
            "--warm 2 -c S -- a b",
            "-- echo -- x",
            "--warm 2 --rm -it -m 1G -- a -c b",
            "--timeout 1s --disk=1G --net none -c S",
            "-v /a:/b -p 1:2 -e A=B -u user -c S -- a",
            "--bind /a /b --ro-bind /c /d -w . --cpus 0.5 -- a",
            "--workdir /x --pids-limit 9 --volume /a:/b -c S",
        ] {
            let list = words(text);
            let split = RunWords::split(&list).unwrap();
            let parsed = RunInvocation::read("offleash".into(), list.clone()).unwrap();
            assert!(agrees(&split, &parsed.run), "{text}");
        }
    }

    #[test]
    fn words_that_the_parser_takes_apart_otherwise_are_told() {
        for text in [
            "foo -c S",
            "-c S -c2 -- a",
            "foo -- bar",
            "-c S --json -- a",
            "--bind /a -c -- b",
            "-itc S -- a",
            "-m -c S",
        ] {
            let list = words(text);
            let parsed = RunInvocation::read("offleash".into(), list.clone());
            let agree =
                parsed.is_ok_and(|parsed| RunWords::split(&list).is_some_and(|split| agrees(&split, &parsed.run)));
            assert!(!agree, "{text}");
        }
    }
}
