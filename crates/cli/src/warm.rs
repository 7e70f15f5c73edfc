//! `offleash run --warm`: hands a run to a sandbox that waits for it, keeps such sandboxes, and is the process that holds
//! one. `offleash warm` lists and ends them.

use std::ffi::OsString;
use std::io::{IsTerminal as _, Read as _};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use offleash_core::plan::Environment;
use offleash_core::spec::SandboxSpec;
use offleash_core::text::Text;
use offleash_manager::lifecycle::{Checked, Prepared, RunRequest, open_existing_state, open_state, this_host};
use offleash_manager::planning::Host;
use offleash_manager::templates;
use offleash_manager::warm::{
    self, Asked as AskedOf, Caller, Claim, Described, Ended, Given, Handover, Holder, Key, Order, Place,
};
use offleash_store::{StateDirectory, rfc3339};
use offleash_sys::signals::SignalQueue;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use crate::args::{RunArgs, RunInvocation, STATE, WarmCommand};
use crate::failure::{EXIT_FAILURE, Failure};
use crate::python::Python;
use crate::run;
use crate::terminal::{self, Prompt, SIGNALS, TerminalDoor};

/// How long a sandbox waits for a run.
const IDLE: Duration = Duration::from_secs(5 * 60);
/// Takes variables and arguments apart.
const SCRIPT: &str = "-c";
const SEPARATOR: &str = "--";

/// The words behind `offleash run`, taken apart without a parser: what decides about the sandbox, and what runs in it.
///
/// Whether a parser takes them apart in the same way is found out before a sandbox is kept for them ([`Asked::keep_warm`]),
/// so that one which waits was taken apart like that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Words<'a> {
    arguments: &'a [OsString],
    script: Option<&'a OsString>,
    command: &'a [OsString],
}

impl<'a> Words<'a> {
    fn split(words: &'a [OsString]) -> Option<Self> {
        let separator = words.iter().position(|word| word == SEPARATOR);
        let (before, command) = match separator {
            Some(place) => (&words[..place], &words[place + 1..]),
            None => (words, &words[words.len()..]),
        };
        match before {
            [arguments @ .., flag, script] if flag == SCRIPT && !script.as_encoded_bytes().starts_with(b"-") => {
                Some(Self {
                    arguments,
                    script: Some(script),
                    command,
                })
            }
            _ if command.is_empty() => None,
            arguments => Some(Self {
                arguments,
                script: None,
                command,
            }),
        }
    }

    /// The state directory that they name, or the environment does.
    fn state(&self) -> Option<PathBuf> {
        const FLAG: &str = "--state";
        let mut words = self.arguments.iter();
        while let Some(word) = words.next() {
            if word == FLAG {
                return words.next().map(PathBuf::from);
            }
            let value = word.as_encoded_bytes().strip_prefix(b"--state=");
            if let Some(value) = value {
                return Some(Text::from(value).as_path().to_owned());
            }
        }
        std::env::var_os(STATE).map(PathBuf::from)
    }

    /// Whether the parser understands them in the same way.
    fn are(&self, parsed: &RunArgs) -> bool {
        parsed.shell.as_ref() == self.script && parsed.command == self.command
    }
}

/// A run that was asked for at this moment.
#[derive(Debug)]
pub(crate) struct Asked<'a> {
    words: Option<Words<'a>>,
    started: Instant,
}

impl<'a> Asked<'a> {
    pub(crate) fn now(words: &'a [OsString]) -> Self {
        Self {
            words: Words::split(words),
            started: Instant::now(),
        }
    }

    /// Hands the run to a sandbox that waits for it, if there is one, and waits for its end; the exit code.
    ///
    /// # Errors
    /// When a sandbox was taken and nothing is known of what became of the run.
    pub(crate) fn hand_over(&self) -> Result<Option<u8>, Failure> {
        let Some(words) = self.words else { return Ok(None) };
        let handover = || Handover {
            age: self.started.elapsed(),
            cwd: std::env::current_dir().unwrap_or_default(),
            script: words.script.cloned(),
            command: words.command.to_vec(),
            env: std::env::vars_os().collect(),
        };
        let signals = std::cell::OnceCell::new();
        let handover = || {
            // Before anybody can be asked to end what was handed over. A run of its own goes on with them blocked.
            let _queue = signals.set(SignalQueue::new(&SIGNALS));
            handover()
        };
        let claim = Claim::take(
            words.state().as_deref(),
            || key_of(&words),
            handover,
            terminal::standard_streams(),
        )?;
        match (claim, signals.into_inner()) {
            (Some(claim), Some(signals)) => {
                follow(&claim, &signals.map_err(|error| run::terminal_failure(&error))?).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Sees to it that as many sandboxes wait for runs like this one as was asked for.
    ///
    /// # Errors
    /// When none can be made to.
    pub(crate) fn keep_warm(&self, parsed: &RunArgs, state: Option<&Path>) -> Result<(), Failure> {
        let Some(words) = self.words.filter(|words| words.are(parsed)) else {
            return Ok(());
        };
        let (spec, _) = run::specify_run(parsed, state)?;
        let has_own_report = parsed
            .report
            .as_deref()
            .is_none_or(|path| !run::is_door_of_the_system(path));
        let is_plain = !parsed.tty && parsed.learn.learn.is_none() && has_own_report;
        if spec.warm == 0 || !is_plain || !Prepared::can_wait(&spec) {
            return Ok(());
        }
        let Some(key) = key_of(&words) else { return Ok(()) };
        let cwd = std::env::current_dir().map_err(|error| Failure::from_error(&error))?;
        let order = Order::new(words.arguments.to_vec(), words.script.is_some(), cwd, &key).with_variables(variables(
            parsed,
            &spec,
            std::env::vars_os().collect(),
        ));
        Ok(warm::start(&open_state(state)?, &key, &order, spec.warm.into())?)
    }
}

/// What an interpreter has of its caller's that is started before a run asks.
fn variables(arguments: &RunArgs, spec: &SandboxSpec, env: Environment) -> Environment {
    match arguments.python {
        true => spec.env.resolve(&env).into_iter().collect(),
        false => Environment::new(),
    }
}

/// The key of a run from here. None has one whose keys are those of a terminal: what reads from it has to belong to it.
fn key_of(words: &Words<'_>) -> Option<Key> {
    if std::io::stdin().is_terminal() {
        return None;
    }
    let cwd = std::env::current_dir().ok()?;
    Key::of_this_process(words.arguments, words.script.is_some(), &cwd).ok()
}

/// Passes signals on until the run is over.
fn follow(claim: &Claim, signals: &SignalQueue) -> Result<u8, Failure> {
    loop {
        let mut waiting = [
            PollFd::new(claim, PollFlags::IN),
            PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN),
        ];
        match rustix::event::poll(&mut waiting, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(run::terminal_failure(&error.into())),
        }
        let has_ended = !waiting[0].revents().is_empty();
        while let Some(signal) = signals.next().map_err(|error| run::terminal_failure(&error))? {
            // Should it be over, it says so.
            let _passed = claim.signal(signal);
        }
        if has_ended && let Ended::With(code) = claim.ended()? {
            return Ok(code);
        }
    }
}

/// `offleash warm-holder`: holds one sandbox until a run takes it. Nobody calls it by hand, so no help names it.
pub(crate) fn hold() -> ExitCode {
    offleash_sys::process::keep_free_memory();
    let mut text = Vec::new();
    let order = match std::io::stdin().lock().read_to_end(&mut text) {
        Ok(_) => Order::decode(&text),
        Err(_) => None,
    };
    let Some(order) = order else {
        return Failure::new("expected the order for a sandbox that waits on standard input")
            .with_hint("`offleash run --warm 1` starts its holder")
            .print();
    };
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
    order: Order,
    key: Key,
    invocation: RunInvocation,
    state: StateDirectory,
    holder: Holder,
    prepared: Prepared,
    until: Instant,
}

impl Waiting {
    /// Makes the sandbox. `None` when none is to be: when it is of no use, or this process is not like the one that
    /// started it.
    fn prepare(order: Order) -> Result<Option<Self>, Failure> {
        let entered = std::env::set_current_dir(&order.cwd);
        entered.map_err(|error| Failure::from_error(&error))?;
        let key = Key::of_this_process(&order.arguments, order.has_script, &order.cwd);
        let key = key.map_err(|error| Failure::from_error(&error))?;
        if !order.is_for(&key) {
            return Ok(None);
        }
        let command = [SEPARATOR, "true"].map(OsString::from);
        let words = order.arguments.iter().cloned().chain(command).collect();
        let invocation =
            RunInvocation::read("offleash".into(), words).map_err(|error| Failure::new(error.to_string()))?;
        let state = open_state(invocation.state.as_deref())?;
        let place = Place::take_over(&state, &key).map_err(|error| Failure::from_error(&error))?;
        let Some(prepared) = make_ready(&invocation, &order, &state, &place)? else {
            return Ok(None);
        };
        if !prepared.is_whole() {
            prepared.discard()?;
            return Ok(None);
        }
        let holder = describe(&order, &prepared).and_then(|description| {
            let opened = Holder::open(place, key.clone(), prepared.id(), description);
            opened.map_err(|error| Failure::from_error(&error))
        });
        let holder = match holder {
            Ok(holder) => holder,
            Err(failure) => {
                prepared.discard()?;
                return Err(failure);
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

    fn serve(mut self, caller: &Caller, given: Given) -> Result<(), Failure> {
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
            TerminalDoor::for_another(destination, prompt, door)
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
        let order = order.with_variables(variables(&invocation.run, &request.spec, given.handover.env));
        Ok(warm::start(&state, &key, &order, usize::from(request.spec.warm))?)
    }

    /// The run that was handed over, if it would make this sandbox.
    fn accept(&mut self, given: &Given) -> Option<(RunRequest, Option<Python>, Checked)> {
        let Handover {
            age,
            cwd,
            script,
            command,
            env,
        } = &given.handover;
        rustix::process::fchdir(&given.cwd).ok()?;
        let started = Instant::now().checked_sub(*age)?;
        let arguments = &mut self.invocation.run;
        arguments.shell.clone_from(script);
        arguments.command.clone_from(command);
        let (spec, python) = run::specify_run(arguments, self.invocation.state.as_deref()).ok()?;
        let request = run::request(arguments, spec, self.invocation.state.as_deref(), started).ok()?;
        let home = env.iter().find(|(name, value)| name == "HOME" && !value.is_empty());
        let host = Host {
            home: home.map(|(_, home)| PathBuf::from(home)),
            cwd: cwd.clone(),
            env: env.clone(),
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
    order: &Order,
    state: &StateDirectory,
    place: &Place,
) -> Result<Option<Prepared>, Failure> {
    let named = invocation.state.as_deref();
    let (spec, _) = run::specify_run(&invocation.run, named)?;
    let request = run::request(&invocation.run, spec.clone(), named, Instant::now())?;
    let make = || {
        let mut host = this_host(state.path())?;
        host.env.extend(order.env.iter().cloned());
        Prepared::make(spec.clone(), state, host)
    };
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

/// What `offleash warm ls` says of a sandbox, as JSON.
fn describe(order: &Order, prepared: &Prepared) -> Result<String, Failure> {
    let now = SystemTime::now();
    let described = Described {
        id: prepared.id().to_string(),
        pid: std::process::id(),
        since: rfc3339(now),
        until: rfc3339(now + IDLE),
        cwd: Text::from(order.cwd.as_path()),
        arguments: order.arguments.iter().map(Text::from).collect(),
    };
    serde_json::to_string(&described).map_err(|error| Failure::from_error(&error))
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
    let all = state.map(warm::holders).transpose()?.unwrap_or_default();
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
        .map(|state| warm::stop(state, ids))
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
        for (text, arguments, script, command) in [
            ("--warm 2 -- echo -c x", "--warm 2", None, "echo -c x"),
            ("--warm 2 -c S", "--warm 2", Some("S"), ""),
            ("--warm 2 -c S -- a b", "--warm 2", Some("S"), "a b"),
            ("-- echo -- x", "", None, "echo -- x"),
        ] {
            let words_of = words(text);
            let split = Words::split(&words_of).unwrap();
            assert_eq!(split.arguments, words(arguments), "{text}");
            assert_eq!(split.script, script.map(OsString::from).as_ref(), "{text}");
            assert_eq!(split.command, words(command), "{text}");
            let parsed = RunInvocation::read("offleash".into(), words_of.clone()).unwrap();
            assert!(split.are(&parsed.run), "{text}");
        }
    }

    #[test]
    fn words_that_the_parser_takes_apart_otherwise_are_told() {
        for text in ["foo -c S", "-c S -c2 -- a", "foo -- bar", "-c S --json -- a"] {
            let words_of = words(text);
            let parsed = RunInvocation::read("offleash".into(), words_of.clone());
            let split = Words::split(&words_of);
            let agree = parsed.is_ok_and(|parsed| split.is_some_and(|split| split.are(&parsed.run)));
            assert!(!agree, "{text}");
        }
        for text in ["", "--warm 2 true", "--", "-c -x"] {
            assert_eq!(Words::split(&words(text)), None, "{text}");
        }
    }

    #[test]
    fn the_state_directory_is_found_in_both_forms() {
        for text in ["--warm 2 --state /s -- x", "--state=/s -- x"] {
            assert_eq!(Words::split(&words(text)).unwrap().state(), Some("/s".into()), "{text}");
        }
    }
}
