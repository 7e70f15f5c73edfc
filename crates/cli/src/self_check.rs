//! `offleash self-check`: whether what was installed works here. Each level runs a real `true`.
//!
//! What a level lacks, and what mends it, is the report of `doctor`; this tries the levels that it calls available, and those
//! that need no more than a filter. A try is a run as any other: it is on record, and leaves nothing else.

use std::borrow::Cow;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use offleash_core::approval::{ApprovalAnswer, ApprovalQuestion};
use offleash_core::exec::OutputStream;
use offleash_core::level::{Level, LevelChoice};
use offleash_core::record::{Outcome, RunRecord};
use offleash_core::spec::{SandboxSpec, WorkspaceMode, WorkspaceSpec};
use offleash_core::text::one_line;
use offleash_core::units::Millis;
use offleash_images::ImageDigest;
use offleash_isolation::probe::{FeatureRemedy, ProbeReport};
use offleash_store::HostIdentity;
use offleash_supervisor::lifecycle::{RunRequest, run as run_sandbox};
use offleash_supervisor::run_client::{ExecIo, ExecIoEvent};
use offleash_sys::signals::{PASSED_ON, SignalQueue};
use rustix::event::PollFlags;
use rustix::fs::Access;
use rustix::io::Errno;
use tempfile::TempDir;

use crate::args::{ReportFormat, SelfCheckArgs};
use crate::failure::Failure;
use crate::terminal;

/// Exit code when nothing at level `process` or above works, or not all that was named.
const EXIT_WEAK: u8 = 1;
/// From this level on, code is held well enough for what offleash is for.
const ENOUGH: Level = Level::Process;
/// How long one try may take: an emulated machine boots in it.
const TRY_TIME: Millis = Millis(180_000);
/// All that is tried, weakest first.
const LEVELS: [Level; 6] = [
    Level::Simulated,
    Level::Wasm,
    Level::ProcessLandlock,
    Level::Process,
    Level::Container,
    Level::Microvm,
];
/// The `true` of level `wasm`: `(module (memory (export "memory") 1) (func (export "_start")))`.
const TRUE_MODULE: &[u8] = b"\0asm\x01\0\0\0\x01\x04\x01\x60\0\0\x03\x02\x01\0\x05\x03\x01\0\x01\
\x07\x13\x02\x06memory\x02\0\x06_start\0\0\x0a\x04\x01\x02\0\x0b";
/// Its name in the workspace of that try.
const TRUE_FILE: &str = "true.wasm";

/// What was found.
#[derive(Debug, serde::Serialize)]
struct SelfCheck {
    /// The version of the program.
    version: &'static str,
    /// Where it is.
    binary: String,
    /// Its digest, `sha256:` and 64 digits.
    digest: String,
    /// Processor and system that it is for.
    platform: String,
    /// Whether [`ENOUGH`] or better works; where levels were named, whether each of them does.
    works: bool,
    /// The strongest level that works.
    strongest: Option<Level>,
    /// One entry for each level that was asked about, weakest first.
    levels: Vec<LevelCheck>,
}

/// What came of a level.
#[derive(Debug, serde::Serialize)]
struct LevelCheck {
    level: Level,
    outcome: LevelOutcome,
    /// Milliseconds that the try took; absent when there was none.
    took_ms: Option<u64>,
    /// Why it does not work; absent when it does.
    why: Option<String>,
    /// What mends it.
    mend: Vec<LevelRemedy>,
}

/// How it stands with a level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
enum LevelOutcome {
    /// `true` ran.
    Works,
    /// The machine lacks something that it needs, so it was not tried.
    Unavailable,
    /// The machine seems to have it all, and `true` did not run.
    Failed,
}

/// What makes a level work.
#[derive(Debug, serde::Serialize)]
struct LevelRemedy {
    /// The check of `doctor`; absent when a try failed.
    check: Option<&'static str>,
    #[serde(flatten)]
    remedy: FeatureRemedy,
}

/// Tries the levels and prints what came of it; success means that code can be held at level `process` or better, or at each that
/// was named.
pub(crate) fn self_check(arguments: &SelfCheckArgs, state: Option<&Path>) -> Result<ExitCode, Failure> {
    let asked = asked_levels(&arguments.level)?;
    let probed = state.map_or_else(|| HostIdentity::of_this_process().default_state(), PathBuf::from);
    let report = offleash_supervisor::probe::machine(probed).map_err(|error| Failure::from_error(&error))?;
    let (binary, digest) = this_program()?;
    let levels: Vec<LevelCheck> = asked.iter().map(|level| check(*level, &report, state)).collect();
    let strongest = levels.iter().rev().find(|level| level.outcome == LevelOutcome::Works);
    let strongest = strongest.map(|level| level.level);
    let found = SelfCheck {
        version: env!("CARGO_PKG_VERSION"),
        binary,
        digest,
        platform: format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS),
        works: match arguments.level.is_empty() {
            true => strongest.is_some_and(|level| level >= ENOUGH),
            false => levels.iter().all(|level| level.outcome == LevelOutcome::Works),
        },
        strongest,
        levels,
    };
    let shown = match arguments.format {
        ReportFormat::Text => text(&found).into_bytes(),
        ReportFormat::Json => terminal::json_document(&found).map_err(|error| Failure::from_error(&error))?,
    };
    terminal::print(&shown)?;
    match found.works {
        true => Ok(ExitCode::SUCCESS),
        false => Err(failure(&found)),
    }
}

fn asked_levels(words: &[String]) -> Result<Vec<Level>, Failure> {
    if words.is_empty() {
        return Ok(LEVELS.to_vec());
    }
    let parsed: Result<Vec<Level>, _> = words.iter().map(|word| word.parse()).collect();
    let mut levels = parsed.map_err(|error| {
        Failure::from_error(&error).with_hint("name one level, which `auto` is not, or leave `--level` out to try all")
    })?;
    levels.sort();
    levels.dedup();
    Ok(levels)
}

/// Where this program is, and its digest.
fn this_program() -> Result<(String, String), Failure> {
    let path = std::env::current_exe().map_err(|error| Failure::from_error(&error))?;
    let path = path.to_string_lossy().into_owned();
    // By the kernel's own link: the file may have been replaced since.
    let bytes = fs::read("/proc/self/exe")
        .map_err(|error| Failure::from_error(&error).while_trying(format!("cannot read `{}`", shown(&path))))?;
    Ok((path, ImageDigest::of(&bytes).to_string()))
}

fn failure(found: &SelfCheck) -> Failure {
    let failing = || found.levels.iter().filter(|level| level.outcome != LevelOutcome::Works);
    let hint = match failing().any(|level| !level.mend.is_empty()) {
        true => "what mends it is above; `offleash doctor` says all that was looked at",
        false => "`offleash doctor` says all that was looked at",
    };
    let failing: Vec<String> = failing().map(|level| format!("`{}`", level.level)).collect();
    let message = match found.strongest {
        Some(level) => format!(
            "{} not work here; the strongest level that does is `{level}`",
            do_or_does(&failing)
        ),
        None => format!("{} not work here", do_or_does(&failing)),
    };
    Failure::new(message).with_hint(hint).with_code(EXIT_WEAK)
}

fn do_or_does(levels: &[String]) -> String {
    match levels {
        [one] => format!("level {one} does"),
        many => format!("levels {} do", many.join(", ")),
    }
}

fn check(level: Level, report: &ProbeReport, state: Option<&Path>) -> LevelCheck {
    if let Some(lacking) = report.levels.iter().find(|one| one.level == level && !one.available) {
        let remedies = report.remedies(level).into_iter();
        return LevelCheck {
            level,
            outcome: LevelOutcome::Unavailable,
            took_ms: None,
            why: Some(lacking.why.clone()),
            mend: remedies
                .map(|(check, remedy)| LevelRemedy {
                    check: Some(check),
                    remedy: remedy.clone(),
                })
                .collect(),
        };
    }
    let started = Instant::now();
    let tried = try_level(level, state);
    let took_ms = u64::try_from(started.elapsed().as_millis()).ok();
    match tried {
        Ok(()) => LevelCheck {
            level,
            outcome: LevelOutcome::Works,
            took_ms,
            why: None,
            mend: Vec::new(),
        },
        Err(failure) => {
            let (why, hint) = failure.into_words();
            let kept = state.map_or_else(|| HostIdentity::of_this_process().default_state(), PathBuf::from);
            let mend = hint
                .into_iter()
                .chain(instead_of(&kept))
                .map(|explanation| LevelRemedy {
                    check: None,
                    remedy: FeatureRemedy {
                        explanation,
                        commands: Vec::new(),
                    },
                });
            LevelCheck {
                level,
                outcome: LevelOutcome::Failed,
                took_ms,
                why: Some(why),
                mend: mend.collect(),
            }
        }
    }
}

/// Runs `true` in a sandbox of that level.
fn try_level(level: Level, state: Option<&Path>) -> Result<(), Failure> {
    // The directory goes with the variable, after the run.
    let place = match level {
        Level::Wasm => Some(directory_of_module(&std::env::temp_dir())?),
        _ => None,
    };
    let command = match place {
        Some(_) => format!("./{TRUE_FILE}"),
        None => "true".to_owned(),
    };
    let workspace = place.as_ref().map(|place| place.path().to_owned());
    let mut spec = SandboxSpec {
        level: LevelChoice::Exactly(level),
        workspace: workspace.map(|path| WorkspaceSpec {
            path,
            mode: WorkspaceMode::Ro,
        }),
        ..SandboxSpec::default()
    };
    spec.limits.wall_time = Some(TRY_TIME);
    let request = RunRequest {
        spec,
        command: vec![OsString::from(command)],
        purpose: None,
        cwd: None,
        user: None,
        tty: None,
        capture: 0,
        state: state.map(Path::to_owned),
        started: Instant::now(),
    };
    let signals = SignalQueue::new(&PASSED_ON).map_err(|error| terminal_failure(&error))?;
    let report = run_sandbox(&request, &mut SilentIo::new(signals))?;
    match report.failure {
        Some(failure) => Err(Failure::from(failure)),
        None => judge(&report.record),
    }
}

/// What to do where the state directory is there and nothing can be written to it: then no run is kept, whatever its level.
fn instead_of(state: &Path) -> Option<String> {
    let refused = rustix::fs::access(state, Access::WRITE_OK).err()?;
    [Errno::ROFS, Errno::ACCESS].contains(&refused).then(|| {
        format!(
            "name a directory that can be written to, instead of `{}`, with `--state DIR` or OFFLEASH_STATE",
            shown(&state.to_string_lossy())
        )
    })
}

/// A directory in `temporary` with a module that is `true`.
fn directory_of_module(temporary: &Path) -> Result<TempDir, Failure> {
    let made = tempfile::tempdir_in(temporary).and_then(|place| {
        fs::write(place.path().join(TRUE_FILE), TRUE_MODULE)?;
        Ok(place)
    });
    made.map_err(|error| {
        Failure::from_error(&error)
            .while_trying(format!(
                "cannot write to the directory for temporary files, `{}`",
                shown(&temporary.to_string_lossy())
            ))
            .with_hint(
                "name one that can be written to with the variable TMPDIR, and with `--state DIR` one for what is kept",
            )
    })
}

fn terminal_failure(error: &io::Error) -> Failure {
    Failure::from_error(error).while_trying("cannot queue signals")
}

/// Whether it is `true` that ran.
fn judge(record: &RunRecord) -> Result<(), Failure> {
    match &record.outcome {
        Outcome::Exited { code: 0 } => Ok(()),
        outcome => Err(Failure::new(format!("`true` did not end well in it: {outcome:?}"))),
    }
}

/// For people: the program, then a line for each level, and below those that do not work what mends them.
fn text(found: &SelfCheck) -> String {
    let mut text = format!(
        "offleash {} ({})\n{}\n{}\n\n",
        found.version,
        found.platform,
        shown(&found.binary),
        found.digest
    );
    let width = found.levels.iter().map(|level| level.level.name().len()).max();
    let width = width.unwrap_or_default();
    for level in &found.levels {
        let word = match level.outcome {
            LevelOutcome::Works => "works",
            LevelOutcome::Unavailable => "not here",
            LevelOutcome::Failed => "failed",
        };
        let detail = match (&level.why, level.took_ms) {
            (Some(why), _) => shown(why).into_owned(),
            (None, Some(ms)) => format!("`true` ran in {ms} ms"),
            (None, None) => String::new(),
        };
        // Writing to a string cannot fail.
        let _written = writeln!(text, "{:<width$}  {word:<8}  {detail}", level.level.name());
        for LevelRemedy { remedy, .. } in &level.mend {
            let _written = writeln!(text, "    mend: {}", shown(&remedy.explanation));
            for command in &remedy.commands {
                // At the left margin: a here-document does not end at an indented word.
                let _written = writeln!(text, "{command}");
            }
        }
    }
    text
}

/// Findings name paths, which must not drive the terminal.
fn shown(text: &str) -> Cow<'_, str> {
    one_line(text.as_bytes())
}

/// No input, and output that nobody sees; signals are the command's.
struct SilentIo {
    signals: SignalQueue,
    has_ended_input: bool,
}

impl SilentIo {
    fn new(signals: SignalQueue) -> Self {
        Self {
            signals,
            has_ended_input: false,
        }
    }
}

impl ExecIo for SilentIo {
    fn interests(&self, _take_input: bool) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        vec![(self.signals.as_fd(), PollFlags::IN)]
    }

    fn write(&mut self, _stream: OutputStream, _bytes: Vec<u8>) {}

    fn note(&mut self, _line: &str) {}

    fn pending(&self) -> usize {
        0
    }

    fn turn(&mut self, _window: usize) -> io::Result<Vec<ExecIoEvent>> {
        let mut events = Vec::new();
        if !std::mem::replace(&mut self.has_ended_input, true) {
            events.push(ExecIoEvent::EndOfInput);
        }
        while let Some(signal) = self.signals.next()? {
            events.push(ExecIoEvent::Signal(signal));
        }
        Ok(events)
    }

    fn ask(&mut self, _question: ApprovalQuestion) -> Option<ApprovalAnswer> {
        Some(ApprovalAnswer::NoTerminal)
    }

    fn withdraw(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_module_is_a_command_that_does_nothing() {
        let expected = r#"(module (memory (export "memory") 1) (func (export "_start")))"#;
        assert_eq!(TRUE_MODULE, wat::parse_str(expected).unwrap());
    }

    #[test]
    fn levels_are_tried_weakest_first_and_once() {
        let asked = asked_levels(&["microvm".to_owned(), "process".to_owned(), "process".to_owned()]).unwrap();
        assert_eq!(asked, [Level::Process, Level::Microvm]);
        assert!(LEVELS.is_sorted());
        assert_eq!(asked_levels(&[]).unwrap(), LEVELS);
        let refused = asked_levels(&["auto".to_owned()]).unwrap_err().to_string();
        assert!(
            refused.contains("`auto` is not a level") && refused.contains("hint: "),
            "{refused}"
        );
    }

    #[test]
    fn where_nothing_can_be_written_it_is_said_what_names_a_directory() {
        let parent = tempfile::tempdir().unwrap();
        let missing = parent.path().join("none");
        let told = directory_of_module(&missing).unwrap_err().to_string();
        assert!(told.contains(&*missing.to_string_lossy()), "{told}");
        assert!(told.contains("TMPDIR") && told.contains("`--state DIR`"), "{told}");
        assert!(directory_of_module(parent.path()).is_ok());
        assert_eq!(instead_of(parent.path()), None);
        // Whoever is not root may not write there.
        let told = instead_of(Path::new("/proc/sys/kernel")).unwrap_or_default();
        let is_told = told.contains("`--state DIR`");
        assert!(is_told || rustix::process::geteuid().is_root(), "{told}");
    }

    #[test]
    fn what_does_not_work_stands_with_its_mend_and_cannot_drive_the_terminal() {
        let level = |level, outcome, took_ms, why: Option<&str>, mend| LevelCheck {
            level,
            outcome,
            took_ms,
            why: why.map(str::to_owned),
            mend,
        };
        let mend = LevelRemedy {
            check: Some("user-namespaces"),
            remedy: FeatureRemedy {
                explanation: "allow them".to_owned(),
                commands: vec!["sudo sysctl --system".to_owned()],
            },
        };
        let mut found = SelfCheck {
            version: "0.1.0",
            binary: "/opt/a\u{1b}b".to_owned(),
            digest: "sha256:00".to_owned(),
            platform: "x86_64-linux".to_owned(),
            works: false,
            strongest: Some(Level::Wasm),
            levels: vec![
                level(Level::Wasm, LevelOutcome::Works, Some(3), None, Vec::new()),
                level(
                    Level::Process,
                    LevelOutcome::Unavailable,
                    None,
                    Some("lacks user-namespaces"),
                    vec![mend],
                ),
            ],
        };
        let expected = "\
offleash 0.1.0 (x86_64-linux)
$'/opt/a\\x1bb'
sha256:00

wasm     works     `true` ran in 3 ms
process  not here  lacks user-namespaces
    mend: allow them
sudo sysctl --system
";
        assert_eq!(text(&found), expected);
        let failure = failure(&found).to_string();
        let expected = "error: level `process` does not work here; the strongest level that does is `wasm`\n";
        assert!(failure.starts_with(expected), "{failure}");
        assert!(failure.contains("what mends it is above"), "{failure}");
        for level in &mut found.levels {
            level.mend.clear();
        }
        let without = super::failure(&found).to_string();
        assert!(!without.contains("above"), "{without}");
    }
}
