//! Where attacks are fought: the same program inside a sandbox and beside it, and what came of each attempt.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;

use crate::support::processes::{eventually, finish, processes_with, start};
use crate::support::{Site, binary, record_of, skip};

/// The interpreter of the attacks; the sandbox has it because it belongs to the system.
pub(crate) const PYTHON: &str = "/usr/bin/python3";

/// What every attack has at hand.
const PRELUDE: &str = include_str!("prelude.py");

/// The kernel's system calls by their numbers, on x86-64, which is how attacks name them, and on aarch64.
const CALLS_OF_X86_64: &str = include_str!("../../../sys/src/seccomp/tests/x86_64.calls");
const CALLS_OF_AARCH64: &str = include_str!("../../../sys/src/seccomp/tests/aarch64.calls");

/// What the prelude's `native` goes by.
fn numbers() -> String {
    if cfg!(target_arch = "x86_64") {
        return "NUMBERS = None".to_owned();
    }
    let lines = |calls: &'static str| calls.lines().filter_map(|line| line.split_once(' '));
    let there: BTreeMap<_, _> = lines(CALLS_OF_AARCH64).map(|(number, name)| (name, number)).collect();
    let pairs = lines(CALLS_OF_X86_64).filter(|(number, _)| number.parse::<u32>().is_ok());
    let pairs = pairs.map(|(number, name)| format!("{number}: {}", there.get(name).unwrap_or(&"-1")));
    format!("NUMBERS = {{{}}}", pairs.collect::<Vec<_>>().join(", "))
}

/// A program that makes attempts and says of each what came of it.
pub(crate) struct Attack<'a> {
    pub(crate) site: &'a Site,
    program: String,
    arguments: Vec<OsString>,
    flags: Vec<OsString>,
}

impl<'a> Attack<'a> {
    /// A program in Python, after the prelude.
    pub(crate) fn new(site: &'a Site, program: &str) -> Self {
        let program = format!("{}\n{PRELUDE}\n{program}\nend()\n", numbers());
        Self {
            site,
            program,
            arguments: Vec::new(),
            flags: Vec::new(),
        }
    }

    /// One more argument of the program: `arguments[0]`, `arguments[1]` …
    pub(crate) fn argument(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Options of `offleash run`.
    pub(crate) fn flags<S: Into<OsString>>(mut self, flags: impl IntoIterator<Item = S>) -> Self {
        self.flags.extend(flags.into_iter().map(Into::into));
        self
    }

    /// The same program with other arguments.
    pub(crate) fn with_arguments<S: Into<OsString>>(&self, arguments: impl IntoIterator<Item = S>) -> Self {
        Self {
            arguments: arguments.into_iter().map(Into::into).collect(),
            ..self.again()
        }
    }

    /// The same attack once more, to be given other options.
    pub(crate) fn again(&self) -> Self {
        self.at(self.site)
    }

    /// The same attack at another site.
    pub(crate) fn at<'b>(&self, site: &'b Site) -> Attack<'b> {
        let Self {
            program,
            arguments,
            flags,
            ..
        } = self;
        Attack {
            site,
            program: program.clone(),
            arguments: arguments.clone(),
            flags: flags.clone(),
        }
    }

    /// The command line that runs the program.
    pub(crate) fn command_line(&self) -> Vec<OsString> {
        let mut line: Vec<OsString> = [PYTHON, "-I", "-S", "-c"].map(OsString::from).into();
        line.push(self.program.clone().into());
        line.extend(self.arguments.iter().cloned());
        line
    }

    /// `offleash run` of it, to be started.
    pub(crate) fn sandboxed(&self) -> Command {
        let mut line: Vec<OsString> = vec!["run".into(), "--json".into()];
        line.extend(self.flags.iter().cloned());
        line.push("--".into());
        line.extend(self.command_line());
        self.site.offleash(line)
    }

    /// Runs it in a sandbox.
    pub(crate) fn inside(&self) -> Findings {
        let output = run(&mut self.sandboxed());
        let record = record_of(&output);
        let findings = Findings::parse(record["stdout"]["data"].clone().as_str().unwrap_or_default(), record);
        assert!(
            findings.ended,
            "the attack did not come to its end: {:#}",
            findings.record
        );
        findings
    }

    /// Runs it without a sandbox, in the workspace, as the user of the test.
    pub(crate) fn outside(&self) -> Findings {
        let line = self.command_line();
        let mut command = Command::new(&line[0]);
        command.args(&line[1..]).current_dir(self.site.workspace()).env_clear();
        command
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("HOME", self.site.root());
        Findings::of_output(&run(&mut command))
    }
}

/// What came of the attempts of one program.
#[derive(Debug)]
pub(crate) struct Findings {
    attempts: BTreeMap<String, Result<String, String>>,
    ended: bool,
    /// The record of the run; null for a run without a sandbox.
    pub(crate) record: Value,
}

impl Findings {
    /// What an attack in a sandbox wrote, according to the record of its run.
    #[track_caller]
    pub(crate) fn of_record(record: Value) -> Self {
        let written = record["stdout"]["data"].clone();
        let findings = Self::parse(written.as_str().unwrap_or_default(), record);
        assert!(
            findings.ended,
            "the attack did not come to its end: {:#}",
            findings.record
        );
        findings
    }

    /// What an attack wrote.
    #[track_caller]
    pub(crate) fn of_output(output: &Output) -> Self {
        let findings = Self::parse(&String::from_utf8_lossy(&output.stdout), Value::Null);
        assert!(findings.ended, "the attack did not come to its end: {output:?}");
        findings
    }

    fn parse(text: &str, record: Value) -> Self {
        let mut findings = Self {
            attempts: BTreeMap::new(),
            ended: false,
            record,
        };
        for line in text.lines() {
            let mut fields = line.splitn(4, '\t');
            let (Some("@"), Some(name), Some(verdict)) = (fields.next(), fields.next(), fields.next()) else {
                continue;
            };
            let detail = fields.next().unwrap_or_default().to_owned();
            match verdict {
                "end" => findings.ended = true,
                "done" => drop(findings.attempts.insert(name.to_owned(), Ok(detail))),
                "broken" => panic!("the attack `{name}` itself is broken: {detail}"),
                _ => drop(findings.attempts.insert(name.to_owned(), Err(detail))),
            }
        }
        findings
    }

    /// The outcome of one attempt: what it got, or why it was refused.
    pub(crate) fn of(&self, name: &str) -> &Result<String, String> {
        self.attempts
            .get(name)
            .unwrap_or_else(|| panic!("`{name}` was not attempted: {self:?}"))
    }

    /// What an attempt got.
    pub(crate) fn got(&self, name: &str) -> &str {
        self.of(name)
            .as_ref()
            .unwrap_or_else(|error| panic!("`{name}` was refused: {error}"))
    }

    /// Every attempt, with its outcome.
    pub(crate) fn all(&self) -> &BTreeMap<String, Result<String, String>> {
        &self.attempts
    }

    /// Everything was refused, and something was attempted.
    #[track_caller]
    pub(crate) fn assert_all_refused(&self) {
        self.assert_refused_except(&[]);
    }

    /// Everything was refused but these, which may have succeeded within the sandbox.
    #[track_caller]
    pub(crate) fn assert_refused_except(&self, harmless: &[&str]) {
        let counts = |name: &str| !harmless.contains(&name);
        let judged: Vec<_> = self.attempts.iter().filter(|(name, _)| counts(name)).collect();
        let succeeded: Vec<_> = judged.iter().filter(|(_, outcome)| outcome.is_ok()).collect();
        assert!(
            !judged.is_empty() && succeeded.is_empty(),
            "succeeded inside: {succeeded:?}"
        );
    }

    /// The control: every attempt of a run without a sandbox succeeded; what did not is told, unless it `must` have.
    #[track_caller]
    pub(crate) fn prove(&self, must: &[&str]) {
        for name in must {
            let outcome = self.of(name);
            assert!(
                outcome.is_ok(),
                "without a sandbox `{name}` fails too, so that the test proves nothing: {outcome:?}"
            );
        }
        for (name, outcome) in &self.attempts {
            if let Err(why) = outcome {
                not_proven(name, why);
            }
        }
    }
}

/// Says that something was not shown to work without a sandbox.
pub(crate) fn not_proven(what: &str, why: &str) {
    say(&format!("NOT PROVEN: {what}, without a sandbox: {why}"));
}

/// Says something that nothing depends on.
pub(crate) fn tell(what: &str) {
    say(&format!("INFO: {what}"));
}

/// Past the harness, which keeps what `println` writes for failed tests.
fn say(line: &str) {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{line}").unwrap();
}

/// Whether attacks can be run; says so if not.
pub(crate) fn can_attack() -> bool {
    let present = Path::new(PYTHON).exists();
    if !present {
        skip("no /usr/bin/python3, in which the attacks are written");
    }
    present
}

/// Whether this machine's system calls have the numbers that the attacks use; says so if not.
pub(crate) fn knows_numbers() -> bool {
    let known = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));
    if !known {
        skip("the attack uses system call numbers of x86_64 and aarch64");
    }
    known && can_attack()
}

/// Runs a command to its end, however it ends; one that does not is killed, and the test has failed.
#[track_caller]
pub(crate) fn run(command: &mut Command) -> Output {
    finish(start(command))
}

/// A word that occurs nowhere else on this machine, for finding what a sandbox leaves behind.
pub(crate) fn token(what: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!(
        "offleash-{what}-{}-{}",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    )
}

/// Nothing on the machine has the argument `word` any more.
#[track_caller]
pub(crate) fn assert_no_process(word: &str) {
    eventually(&format!("the end of all processes with `{word}`"), || {
        processes_with(word).is_empty().then_some(())
    });
}

/// What of the host the attacks of one test could have changed: the site, its state directory excepted, and the
/// files of the system that attacks like best.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct HostState {
    files: BTreeMap<PathBuf, (u32, u64, Vec<u8>)>,
}

impl HostState {
    /// As it is now.
    pub(crate) fn of(site: &Site) -> Self {
        let mut files = BTreeMap::new();
        let skipped = [site.state()];
        walk(site.root(), &skipped, &mut files);
        for path in [
            "/etc/passwd",
            "/etc/shadow",
            "/etc/ld.so.preload",
            "/etc/crontab",
            "/root/.bashrc",
            "/usr/bin/env",
        ] {
            walk(Path::new(path), &[], &mut files);
        }
        walk(&binary(), &[], &mut files);
        Self { files }
    }

    /// Nothing has changed since.
    #[track_caller]
    pub(crate) fn assert_unchanged(&self, site: &Site) {
        let now = Self::of(site);
        for (path, entry) in &now.files {
            assert!(
                self.files.get(path) == Some(entry),
                "{} was changed or made on the host",
                path.display()
            );
        }
        for path in self.files.keys() {
            assert!(
                now.files.contains_key(path),
                "{} was removed from the host",
                path.display()
            );
        }
    }
}

fn walk(path: &Path, skipped: &[PathBuf], files: &mut BTreeMap<PathBuf, (u32, u64, Vec<u8>)>) {
    let Ok(metadata) = path.symlink_metadata() else { return };
    if skipped.iter().any(|skipped| skipped == path) {
        return;
    }
    let kind = metadata.file_type();
    let contents = if kind.is_file() && metadata.len() < 1 << 20 {
        std::fs::read(path).unwrap_or_default()
    } else if kind.is_file() {
        format!("{:?}", metadata.modified().ok()).into_bytes()
    } else if kind.is_symlink() {
        std::fs::read_link(path).unwrap().as_os_str().as_bytes().to_vec()
    } else {
        Vec::new()
    };
    let size = if kind.is_file() { metadata.size() } else { 0 };
    files.insert(path.to_path_buf(), (metadata.permissions().mode(), size, contents));
    if kind.is_dir() {
        for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
            walk(&entry.path(), skipped, files);
        }
    }
}
