//! The command line of offleash: reads arguments, asks supervisors and the daemon, prints. Nothing else in the project prints.

mod approvals;
mod args;
mod audit;
mod browser;
mod bucket;
mod changes;
mod desktop;
mod doctor;
mod end_signal;
mod explain;
mod failure;
mod image;
mod key;
mod learn;
mod login;
mod logins;
mod manual;
mod mcp;
mod policy_file;
mod python;
mod refusals;
mod remote;
mod run;
mod self_check;
mod serve;
mod server_at;
mod specify;
mod ssh;
mod supervise;
mod template;
mod terminal;
mod tools;
mod vm;
mod volume;
mod warm;

use std::ffi::OsString;
use std::process::ExitCode;

use offleash_supervisor::gateway_process;
use offleash_supervisor::roles::SUPERVISE_COMMAND;

use crate::args::{Arguments, Command, PolicyCommand, RunInvocation};
use crate::failure::Failure;
use crate::server_at::ServerAt;

fn main() -> ExitCode {
    // The limit is the caller's, and what ran under it goes on record or is told of.
    offleash_sys::signals::outlive_file_sizes();
    let mut words = std::env::args_os();
    let name = words.next().unwrap_or_default();
    if name == gateway_process::PROCESS_NAME {
        return gateway();
    }
    match words.next() {
        Some(word) if word == "run" => alone(|| run_only(name, words.collect())),
        Some(word) if word == SUPERVISE_COMMAND => alone(|| supervise::supervise(words)),
        _ => any(),
    }
}

/// Not inlined: what all of them keep on their stacks together would else be on the stack of each as long as it runs.
#[inline(never)]
fn alone(run: impl FnOnce() -> ExitCode) -> ExitCode {
    run()
}

/// The gateway of a sandbox, started by who holds that, to whom it tells what keeps it from being one.
fn gateway() -> ExitCode {
    match gateway_process::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn run_only(name: OsString, arguments: Vec<OsString>) -> ExitCode {
    offleash_sys::process::keep_free_memory();
    // A run that was asked for elsewhere is refused once its words are known.
    let handed_over = match server_at::is_elsewhere() {
        true => Ok(None),
        false => warm::handed_over(&arguments),
    };
    match handed_over {
        Ok(None) => run_parsed(name, &arguments),
        Ok(Some(code)) => ExitCode::from(code),
        Err(failure) => failure.print(),
    }
}

/// Not inlined: what it keeps on its stack would be touched by runs that hand over and never come here, a page after another.
#[inline(never)]
fn run_parsed(name: OsString, arguments: &[OsString]) -> ExitCode {
    match RunInvocation::read(name.clone(), arguments.to_vec()) {
        Ok(invocation) => finish(run_alone(&invocation, arguments)),
        Err(error) => {
            let words = std::iter::once(name).chain(arguments.iter().cloned());
            usage(&args::explained(args::as_written::<RunInvocation>(error, words), "run"))
        }
    }
}

/// Runs in a sandbox that is made for it, and sees to it that others wait for runs like it if that was asked for.
fn run_alone(invocation: &RunInvocation, words: &[OsString]) -> Result<ExitCode, Failure> {
    server_at::check_run()?;
    let state = invocation.state.as_deref();
    let code = run::run(&invocation.run, state)?;
    // The run is over: that none waits for the next one changes nothing of how it ended.
    if let Err(failure) = warm::keep_warm(words, &invocation.run, state) {
        terminal::complain(&format!("offleash: no sandbox waits for later runs: {failure}"));
    }
    Ok(ExitCode::from(code))
}

/// Not inlined, for the same reason.
#[inline(never)]
fn any() -> ExitCode {
    let arguments = match args::parsed::<Arguments>(std::env::args_os()) {
        Ok(arguments) => arguments,
        Err(error) => {
            let error = args::as_written::<Arguments>(error, std::env::args_os());
            return usage(&args::explained(error, &asked_for()));
        }
    };
    finish(carried_out(arguments))
}

/// Does what was asked, where it was asked for.
fn carried_out(arguments: Arguments) -> Result<ExitCode, Failure> {
    let flags = arguments.host;
    let at = &ServerAt::of(&flags, arguments.state.as_deref())?;
    let state = match placed(&arguments.command) {
        Placed::Anywhere => arguments.state.as_deref(),
        Placed::Here(command, instead) => at.here(command, instead)?,
        Placed::Nowhere(command) => {
            at.asks_none(command)?;
            arguments.state.as_deref()
        }
    };
    match arguments.command {
        Command::Run(run) => run::run(&run, state).map(ExitCode::from),
        Command::Diff(diff) => changes::diff(&diff, state),
        Command::Apply(apply) => changes::apply(&apply, state),
        Command::Discard(discard) => changes::discard(&discard, state),
        Command::Runs(runs) => changes::runs(&runs, state),
        Command::Create(create) => remote::create(&create, at),
        Command::Ls(ls) => remote::ls(&ls, at),
        Command::Exec(exec) => remote::exec(exec, at),
        Command::Cp(cp) => remote::cp(&cp, at),
        Command::Logs(logs) => remote::logs(&logs, at),
        Command::Stop(stop) => remote::stop(&stop, at),
        Command::Rm(rm) => remote::rm(&rm, at),
        Command::Inspect(inspect) => remote::inspect(&inspect, at),
        Command::Stats(stats) => remote::stats(&stats, at),
        Command::Top(top) => remote::top::top(&top, at),
        Command::Pause(pause) => remote::pause(&pause, at),
        Command::Resume(resume) => remote::resume(&resume, at),
        Command::Fork(fork) => remote::fork(&fork, at),
        Command::Snapshot(command) => remote::snapshots::snapshot(&command, at),
        Command::Checkpoint(checkpoint) => remote::snapshots::checkpoint(&checkpoint, at),
        Command::Checkpoints(checkpoints) => remote::snapshots::checkpoints(&checkpoints, at),
        Command::Restore(restore) => remote::snapshots::restore(&restore, at),
        Command::Browser(command) => browser::browser(&command, at),
        Command::Desktop(command) => desktop::desktop(&command, at),
        Command::Port(port) => remote::port(&port, at),
        Command::PortForward(arguments) => remote::port_forward(&arguments, at),
        Command::Ssh(arguments) => ssh::ssh(&arguments, at),
        Command::SshConfig => ssh::config(at),
        Command::Sync(arguments) => remote::sync(&arguments, at),
        Command::Login(login) => login::login(&login, &flags),
        Command::Logout(logout) => login::logout(&logout),
        Command::Doctor(options) => doctor::doctor(&options, state),
        Command::SelfCheck(options) => self_check::self_check(&options, state),
        Command::Explain(question) => explain::explain(&question),
        Command::Approvals(arguments) => approvals::approvals(&arguments, at),
        Command::Tools(command) => tools::tools(&command, state),
        Command::Policy(PolicyCommand::Check(check)) => explain::check_policy(&check),
        Command::Policy(PolicyCommand::Keys) => explain::list_policy_keys(),
        Command::Audit(audit) => audit::audit(&audit, state),
        Command::Warm(command) => warm::warm(&command, state),
        Command::Serve(arguments) => serve::serve(&arguments, state),
        Command::Front(arguments) => serve::front(&arguments),
        Command::Drain(arguments) => remote::drain(&arguments, at),
        Command::Controller(arguments) => serve::controller(&arguments),
        Command::Mcp(arguments) => mcp::mcp(&arguments, state),
        Command::Template(command) => match remote::resources::template(&command, at)? {
            Some(code) => Ok(code),
            None => template::template(&command, state),
        },
        Command::Image(command) => image::image(&command, state),
        Command::Vm(command) => vm::vm(&command, state),
        Command::Volume(command) => match remote::resources::volume(&command, at)? {
            Some(code) => Ok(code),
            None => volume::volume(&command, state),
        },
        Command::Key(command) => match remote::resources::key(&command, at)? {
            Some(code) => Ok(code),
            None => key::key(&command, state),
        },
        Command::Completions(completions) => args::completions(completions.shell),
        Command::Man(arguments) => manual::man(&arguments),
    }
}

/// Where a command does its work.
enum Placed {
    /// Where a daemon is that can be asked.
    Anywhere,
    /// On this machine alone: what it is called, and what does the same elsewhere.
    Here(&'static str, Option<&'static str>),
    /// In its arguments alone.
    Nowhere(&'static str),
}

fn placed(command: &Command) -> Placed {
    const RUNS: Option<&str> = Some("a server has sandboxes that stay, and `offleash ls` lists them");
    match command {
        Command::Run(_) => Placed::Here("run", Some(args::RUN_ELSEWHERE)),
        Command::Diff(_) => Placed::Here("diff", RUNS),
        Command::Apply(_) => Placed::Here("apply", RUNS),
        Command::Discard(_) => Placed::Here("discard", RUNS),
        Command::Runs(_) => Placed::Here("runs", RUNS),
        Command::Warm(_) => Placed::Here("warm", None),
        Command::Doctor(_) => Placed::Here(
            "doctor",
            Some("its route `/v1/machine` says what a server's machine offers"),
        ),
        Command::SelfCheck(_) => Placed::Here("self-check", None),
        Command::Tools(_) => Placed::Here("tools", None),
        Command::Audit(_) => Placed::Here("audit", None),
        Command::Serve(_) => Placed::Here("serve", None),
        Command::Front(_) => Placed::Here("front", None),
        Command::Controller(_) => Placed::Here("controller", None),
        Command::Mcp(_) => Placed::Here(
            "mcp",
            Some("agent hosts speak to a server at its address, below `/mcp`"),
        ),
        Command::Image(_) => Placed::Here("image", None),
        Command::Vm(_) => Placed::Here("vm", None),
        Command::Explain(_) => Placed::Nowhere("explain"),
        Command::Policy(_) => Placed::Nowhere("policy"),
        Command::Completions(_) => Placed::Nowhere("completions"),
        Command::Man(_) => Placed::Nowhere("man"),
        _ => Placed::Anywhere,
    }
}

/// The command among the arguments, as far as it can be told of arguments that cannot be understood.
fn asked_for() -> String {
    let mut words = std::env::args_os()
        .skip(1)
        .map(|word| word.to_string_lossy().into_owned());
    words.find(|word| !word.starts_with('-')).unwrap_or_default()
}

fn finish(result: Result<ExitCode, Failure>) -> ExitCode {
    result.unwrap_or_else(|failure| failure.print())
}

/// Help and version are no failure; anything else that clap says is about our own arguments.
fn usage(error: &clap::Error) -> ExitCode {
    let code = if error.use_stderr() { failure::EXIT_FAILURE } else { 0 };
    // Nothing can be told to anybody when this cannot be written.
    let _printed = error.print();
    ExitCode::from(code)
}
