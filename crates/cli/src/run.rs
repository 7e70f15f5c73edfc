//! `offleash run`.

use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Instant;

use offleash_core::exec::TerminalSize;
use offleash_core::level::{Level, LevelChoice};
use offleash_core::limits::LimitName;
use offleash_core::network::RuleVerdict;
use offleash_core::record::{LimitHit, Outcome, RunRecord};
use offleash_core::spec::{NetworkSpec, SandboxSpec};
use offleash_core::text::Text;
use offleash_core::units::Bytes;
use offleash_supervisor::lifecycle::{LifecycleError, RunReport, RunRequest, run as run_sandbox};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::args::{RunArgs, SandboxArgs};
use crate::failure::{EXIT_FAILURE, Failure};
use crate::image::ImageSource;
use crate::learn::Learning;
use crate::policy_file::PolicyFile;
use crate::python::{self, Python};
use crate::terminal::{self, Destination, Prompt, RememberRule, TerminalIo};
use crate::{bucket, image, refusals, specify, template};

/// How much of each output stream a record keeps.
const CAPTURED: usize = 1024 * 1024;

pub(crate) fn run(arguments: &RunArgs, state: Option<&Path>) -> Result<u8, Failure> {
    let started = Instant::now();
    let (mut spec, python) = specify_run(arguments, state)?;
    let learning = Learning::begin(&arguments.learn, &mut spec)?;
    // What is learned is written when the run is over.
    let remember = match learning {
        Some(_) => None,
        None => remembering(&arguments.sandbox, &spec.network),
    };
    let request = request(arguments, spec, state, started)?;
    tell_which(python, arguments);
    bucket::fetch(&request.spec.volumes, state, arguments.quiet || arguments.json)?;
    let door = |destination| {
        let prompt = Prompt::new(&program(&request), arguments.tty, remember);
        TerminalIo::open(destination, arguments.tty, prompt)
    };
    let report = carry_out(arguments, door, |door| run_sandbox(&request, door))?;
    let code = conclude(arguments, &request, report, learning)?;
    Ok(match bucket::send(&request.spec.volumes, state) {
        false if code == 0 => EXIT_FAILURE,
        _ => code,
    })
}

/// What the arguments of a run ask for, and which Python, if any.
// In a frame of its own, which is not there while the command runs.
#[inline(never)]
pub(crate) fn specify_run(arguments: &RunArgs, state: Option<&Path>) -> Result<(SandboxSpec, Option<Python>), Failure> {
    let mut spec = specify::specify(&arguments.sandbox)?;
    if let Some(warm) = arguments.warm {
        spec.warm = warm;
    }
    if spec.warm > 0 && !spec.volumes.is_empty() {
        return Err(Failure::new(
            "`--warm` and `--volume` do not go together: a sandbox that waits would have the volume",
        )
        .with_hint("leave one of the two out"));
    }
    let is_without_processes = matches!(
        spec.level,
        LevelChoice::Escalating | LevelChoice::Exactly(Level::Simulated | Level::Wasm)
    );
    if spec.warm > 0 && is_without_processes {
        return Err(Failure::new(
            "`--warm` is of no use at levels `simulated` and `wasm`: there is nothing that could wait",
        )
        .with_hint("leave it out"));
    }
    if let Some(name) = &arguments.image {
        let source = ImageSource {
            pull: arguments.pull,
            registry: &arguments.registry,
            is_quiet: arguments.quiet || arguments.json,
            state,
        };
        spec.root = image::root(name, source)?;
    }
    let python = arguments
        .python
        .then(|| Python::choose(&arguments.sandbox, &mut spec, state))
        .transpose()?;
    template::find_image(&mut spec, state)?;
    Ok((spec, python))
}

/// Says it where the libraries of a template might be missed.
pub(crate) fn tell_which(python: Option<Python>, arguments: &RunArgs) {
    if let Some(Python::OfTheHost) = python.filter(|_| !arguments.quiet) {
        terminal::complain(&format!("offleash: {}", python::not_built()));
    }
}

/// The run of what was specified.
// In a frame of its own, which is not there while the command runs.
#[inline(never)]
pub(crate) fn request(
    arguments: &RunArgs,
    spec: SandboxSpec,
    state: Option<&Path>,
    started: Instant,
) -> Result<RunRequest, Failure> {
    let reports = arguments.json || arguments.report.is_some();
    let command = match (arguments.python, image::own_command(arguments, &spec.root, state)?) {
        (true, _) => python::command(arguments.shell.as_ref(), &arguments.command),
        (false, _) if arguments.js => python::javascript_command(arguments.shell.as_ref(), &arguments.command),
        (false, Some(command)) => command,
        (false, None) => specify::command(arguments.shell.as_ref(), &arguments.command)?,
    };
    Ok(RunRequest {
        spec,
        command,
        purpose: None,
        cwd: arguments
            .sandbox
            .cwd
            .as_deref()
            .map(specify::directory_inside)
            .transpose()?,
        user: arguments.user.clone(),
        tty: arguments
            .tty
            .then(|| TerminalIo::size().unwrap_or(TerminalSize { rows: 24, columns: 80 })),
        capture: if reports { CAPTURED } else { 0 },
        state: state.map(Path::to_owned),
        started,
    })
}

/// The name of the program that a run is for, as a question about it shows it.
pub(crate) fn program(request: &RunRequest) -> Text {
    let program = request.command.first().map(Path::new).and_then(Path::file_name);
    Text::from(program.unwrap_or_default())
}

/// What became of a run, and where its report goes.
pub(crate) struct CarriedOut<'a> {
    report: RunReport,
    file: Option<ReportFile<'a>>,
}

/// Has a run carried out through the door that `open` opens.
pub(crate) fn carry_out<'a>(
    arguments: &'a RunArgs,
    open: impl FnOnce(Destination) -> io::Result<TerminalIo>,
    run: impl FnOnce(&mut TerminalIo) -> Result<RunReport, LifecycleError>,
) -> Result<CarriedOut<'a>, Failure> {
    let file = arguments.report.as_deref().map(ReportFile::create).transpose()?;
    let destination = if arguments.json {
        Destination::Nowhere
    } else {
        Destination::Streams
    };
    let mut door = open(destination).map_err(|error| terminal_failure(&error))?;
    let result = run(&mut door);
    door.close();
    Ok(CarriedOut { report: result?, file })
}

/// Says what became of a run, and answers the exit code.
// In a frame of its own, which is not there while the command runs.
#[inline(never)]
pub(crate) fn conclude(
    arguments: &RunArgs,
    request: &RunRequest,
    carried_out: CarriedOut<'_>,
    learning: Option<Learning>,
) -> Result<u8, Failure> {
    let CarriedOut { report, file } = carried_out;
    let RunReport {
        record,
        notes,
        held_back,
        unkept,
        failure,
    } = report;
    if let Some(file) = file {
        file.write(&record)?;
    }
    let has_run = !matches!(record.outcome, Outcome::Failed { .. });
    if arguments.json {
        terminal::print(&terminal::json_line(&record)?)?;
    } else if !arguments.quiet && (failure.is_none() || has_run) {
        tell(&record, &request.spec.network, &notes);
    }
    if let (Some(learning), Some(network)) = (learning, &record.network) {
        let told = learning.finish(network)?;
        if !arguments.quiet {
            terminal::complain_at_length(&told);
        }
    }
    if let Some(failure) = failure {
        return Err(Failure::from(failure));
    }
    if let Some(error) = unkept {
        terminal::complain(&Failure::from(error).to_string());
    }
    if let Some(held_back) = held_back {
        last_word(arguments, &record, &held_back);
    }
    Ok(record.exit_code)
}

/// Says what was held back, and last of all that it decided the exit code: that also to whoever asked for quiet.
fn last_word(arguments: &RunArgs, record: &RunRecord, held_back: &str) {
    let decides = record.outcome == Outcome::Exited { code: 0 };
    let exit = match decides {
        true => format!("exit code {}, though the command succeeded: ", record.exit_code),
        false if arguments.quiet || arguments.json => return,
        false => String::new(),
    };
    terminal::complain(&format!("offleash: {exit}{held_back}"));
}

/// Where rules are kept that are agreed to for good: the policy that was named. One that lies in the workspace without
/// being named may only restrict, so that nothing could be written to it.
// In a frame of its own, which is not there while the command runs.
#[inline(never)]
fn remembering(arguments: &SandboxArgs, network: &NetworkSpec) -> Option<Box<dyn RememberRule>> {
    let asks = network
        .policy
        .rules
        .iter()
        .any(|rule| rule.verdict() == RuleVerdict::Ask);
    if !asks {
        return None;
    }
    // A pipe or a link is read as a policy, and not written to.
    let file = PolicyFile::look(arguments.policy.as_deref()?).ok()?;
    file.exists().then(|| Box::new(file) as Box<dyn RememberRule>)
}

pub(crate) fn terminal_failure(error: &io::Error) -> Failure {
    Failure::new(format!("cannot use the terminal: {error}"))
        .with_hint("leave `-t` out, or run it in a terminal of your own")
}

/// Where `--report` writes. Opened before the run, so that a path that cannot be written costs nothing.
struct ReportFile<'a> {
    path: &'a Path,
    file: std::fs::File,
}

impl<'a> ReportFile<'a> {
    fn create(path: &'a Path) -> Result<Self, Failure> {
        if let Some(again) = terminal::stream_again(path) {
            let file = again.map_err(|error| Self::failure(path, &error))?;
            return Ok(Self { path, file });
        }
        let mut options = std::fs::OpenOptions::new();
        // What an earlier run left there stays until there is something to take its place.
        options.write(true).create(true).truncate(false);
        if is_door_of_the_system(path) {
            // Behind what the command wrote there.
            options.append(true);
        } else {
            options.custom_flags(NO_LINK);
        }
        let file = options.open(path).map_err(|error| Self::not_opened(path, &error))?;
        Ok(Self { path, file })
    }

    fn not_opened(path: &Path, error: &io::Error) -> Failure {
        if error.raw_os_error() != Some(Errno::LOOP.raw_os_error()) {
            return Self::failure(path, error);
        }
        Failure::new(format!(
            "cannot write the report `{}`: it is a symbolic link, which an earlier run may have put there",
            Text::from(path)
        ))
        .with_hint("name the file that it should lead to, or remove the link")
    }

    fn write(mut self, record: &RunRecord) -> Result<(), Failure> {
        use std::io::Write as _;
        let line = terminal::json_line(record)?;
        // Only what is a file has a length.
        let is_its_own = self.path != Path::new("-") && !is_door_of_the_system(self.path);
        let emptied = match self.file.metadata() {
            Ok(found) if found.is_file() && is_its_own => self.file.set_len(0),
            _ => Ok(()),
        };
        emptied
            .and_then(|()| self.file.write_all(&line))
            .map_err(|error| Self::failure(self.path, &error))
    }

    fn failure(path: &Path, error: &io::Error) -> Failure {
        Failure::new(format!("cannot write the report `{}`: {error}", Text::from(path)))
            .with_hint("name a file in a directory that exists, that you may write and that has room")
    }
}

/// What stands in the record when the caller went away: nobody is there to be told.
const SIGKILL: i32 = 9;

/// `O_NOFOLLOW`, as the standard library takes it.
const NO_LINK: i32 = OFlags::NOFOLLOW.bits().cast_signed();

/// Whether the path is one of the system's links to what is open, such as `/dev/stderr`. Below `/dev/shm` everybody
/// makes links.
pub(crate) fn is_door_of_the_system(path: &Path) -> bool {
    let directory = path.parent();
    ["/dev", "/dev/fd", "/proc/self/fd"]
        .into_iter()
        .any(|known| directory == Some(Path::new(known)))
}

/// Says what the exit code alone does not. What there is to say of memory comes last, where it is not overlooked.
pub(crate) fn tell(record: &RunRecord, asked: &NetworkSpec, notes: &[String]) {
    let (of_memory, others): (Vec<LimitHit>, Vec<LimitHit>) = record
        .limits_hit
        .iter()
        .cloned()
        .partition(|hit| hit.limit == LimitName::Memory);
    let is_of_memory = matches!(record.outcome, Outcome::OutOfMemory { .. });
    let outcome = explain_outcome(record);
    if let Some(line) = outcome.iter().find(|_| !is_of_memory) {
        terminal::complain(&format!("offleash: {line}"));
    }
    for (control, reason) in &record.not_enforced {
        terminal::complain(&format!("offleash: not enforced: {control}: {reason}"));
    }
    for line in refusals::of_limits(&others) {
        terminal::complain(&format!("offleash: {line}"));
    }
    let network = record.network.iter();
    for line in network.flat_map(|network| refusals::lines(network, asked)) {
        terminal::complain(&format!("offleash: {line}"));
    }
    for note in notes {
        terminal::complain(&format!("offleash: {note}"));
    }
    if let Some(line) = kept_changes(record) {
        terminal::complain(&format!("offleash: {line}"));
    }
    let outcome = outcome.filter(|_| is_of_memory).into_iter();
    for line in outcome.chain(refusals::of_limits(&of_memory)) {
        terminal::complain(&format!("offleash: {line}"));
    }
}

fn explain_outcome(record: &RunRecord) -> Option<String> {
    let program = record.command.first().cloned().unwrap_or_else(|| Text::from(""));
    match &record.outcome {
        Outcome::Exited { .. } => None,
        Outcome::Interrupted { signal } => (*signal != SIGKILL)
            .then(|| "the run was ended: it went on after a first interrupt, and a second one kills".to_owned()),
        Outcome::Signaled { name, .. } => (name != "SIGPIPE").then(|| format!("the command was ended by {name}")),
        Outcome::LimitExceeded {
            limit: limit @ (LimitName::Volume | LimitName::VolumeInodes),
            value,
        } => Some(format!(
            "the run was ended: a volume holds more than it may ({}); remove something from it, or use a larger one",
            limit.row().show(*value)
        )),
        Outcome::LimitExceeded { limit, value } => Some(format!(
            "the run was ended: it reached its limit of {} ({}); raise it with `{}`",
            limit.name(),
            limit.row().show(*value),
            limit.row().flag
        )),
        Outcome::EndedByRule { rule } => Some(format!("the run was ended by rule `{rule}` of monitoring")),
        Outcome::OutOfMemory { limit } => Some(format!(
            "the run was ended: out of memory (limit {}); raise it with `--memory`",
            Bytes(*limit)
        )),
        Outcome::CommandNotFound { hint: None } if record.image.is_some() => Some(format!(
            "`{program}`: command not found in the image\n\nhint: name a program that it has, or put this one into a template \
             of it, as with `offleash template build --name NAME --from IMAGE --run COMMAND`"
        )),
        Outcome::CommandNotFound { hint: None } if program.as_bytes().contains(&b'/') => Some(format!(
            "`{program}`: there is no such file in the sandbox\n\nhint: `offleash explain path PATH` says what is there of the host's"
        )),
        Outcome::CommandNotFound { hint: None } => Some(format!(
            "`{program}`: command not found in the sandbox\n\nhint: install it on the host below /usr, or grant the directory it is in with `--toolchain PATH`"
        )),
        Outcome::CommandNotFound { hint: Some(hint) } => {
            Some(format!("`{program}`: command not found in the sandbox\n\nhint: {hint}"))
        }
        Outcome::NotExecutable { reason } => {
            let hint = hint_to_execute(reason);
            Some(format!("`{program}` cannot be executed: {reason}\n\nhint: {hint}"))
        }
        Outcome::CommandDenied { rule } => Some(format!(
            "`{program}` was refused by the rule `{rule}`\n\nhint: change `commands` in the policy if it should run"
        )),
        Outcome::Failed { message } => Some(format!("the run failed: {message}")),
    }
}

fn hint_to_execute(reason: &str) -> &'static str {
    let is = |errno: Errno| reason == io::Error::from(errno).to_string();
    if reason.starts_with("the working directory") {
        "name a directory that exists inside with `--cwd`"
    } else if is(Errno::NOENT) {
        "the interpreter in its first line (`#!`), or the loader that it was built for, may not exist inside; grant the \
         directory it is in with `--toolchain PATH`, or start the program with an interpreter that is there"
    } else if is(Errno::ISDIR) {
        "name a program in it; `--cwd DIR` says where a command starts"
    } else {
        "name a program that has its x bit (`chmod +x`), or start it with its interpreter"
    }
}

fn kept_changes(record: &RunRecord) -> Option<String> {
    let changes = record.changes.as_ref().filter(|changes| !changes.applied)?;
    let total = changes.added + changes.modified + changes.deleted + changes.mode;
    let id = &record.id;
    (total > 0).then(|| {
        format!(
            "{total} change{} kept: `offleash diff {id}` shows, `offleash apply {id}` writes, `offleash discard {id}` drops {}",
            if total == 1 { "" } else { "s" },
            if total == 1 { "it" } else { "them" },
        )
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_report_is_not_written_through_a_link() {
        let directory = tempfile::tempdir().unwrap();
        let (precious, link) = (directory.path().join("precious"), directory.path().join("report"));
        fs::write(&precious, "precious").unwrap();
        for to in [precious.as_path(), Path::new("nothing"), Path::new("/dev/null")] {
            symlink(to, &link).unwrap();
            let shown = ReportFile::create(&link).err().unwrap().to_string();
            assert!(shown.contains("symbolic link") && shown.contains("hint:"), "{shown}");
            fs::remove_file(&link).unwrap();
        }
        assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
        assert!(!directory.path().join("nothing").exists());
    }

    #[test]
    fn a_report_goes_to_files_and_to_what_is_open() {
        use std::os::fd::AsRawFd as _;

        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("report");
        fs::write(&file, "of an earlier run").unwrap();
        assert!(ReportFile::create(&file).is_ok());
        assert_eq!(fs::read_to_string(&file).unwrap(), "of an earlier run");
        let open = fs::File::create(&file).unwrap();
        for path in [format!("/dev/fd/{}", open.as_raw_fd()), "/dev/null".to_owned()] {
            assert!(ReportFile::create(Path::new(&path)).is_ok(), "{path}");
        }
        assert!(!is_door_of_the_system(Path::new("/dev/shm/report")));
        assert!(!is_door_of_the_system(Path::new("/dev/../tmp/report")));
    }
}
