//! What a supervisor writes down of its sandbox as it happens, in the sandbox's directory, for `offleash logs`.
//!
//! Lines of JSON. When a file is full the one before goes, so that the two together have a bound. The daemon reads them
//! while the sandbox lives, and keeps them for a time when it has ended. Deliberately not here: what came of
//! transitions, which the daemon knows.

use std::borrow::Cow;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;

use offleash_core::exec::{ExecEnd, StartFailure};
use offleash_core::log_level::LogLevel;
use offleash_core::record::{LimitEffect, LimitHit};
use offleash_core::text::one_line;
use offleash_core::units::Bytes;
use offleash_gateway::News;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use super::message::ProcessInfo;
use super::refusals;
use crate::clock::UnixMs;

/// The file that is written to.
pub const FILE: &str = "log.jsonl";
/// The one that was full before it.
pub const EARLIER: &str = "log.1.jsonl";
/// Longest file, but for its last line.
pub const MAX_FILE: u64 = 128 * 1024;
/// Longest line; what is longer is cut.
pub(crate) const MAX_LINE: usize = 1024;
/// How much is told of a command.
const MAX_COMMAND: usize = 256;
/// Shorter values of variables are too likely to be something else.
const MIN_SECRET: usize = 6;

/// A line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Noted {
    /// When it was written.
    pub at_ms: UnixMs,
    level: String,
    /// The line.
    pub line: String,
}

impl Noted {
    /// How serious it is.
    pub fn level(&self) -> LogLevel {
        self.level.parse().unwrap_or(LogLevel::Info)
    }
}

/// The lines of such a file; what is none is left out.
pub fn parse(bytes: &[u8]) -> Vec<Noted> {
    let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.filter_map(|line| serde_json::from_slice(line).ok()).collect()
}

/// Where a supervisor writes.
#[derive(Debug)]
pub(super) struct Log {
    directory: OwnedFd,
    /// `None` until something is written, and after a failure.
    open: Option<(File, u64)>,
}

impl Log {
    /// The log in `directory`, which is the sandbox's.
    pub(super) fn in_directory(directory: OwnedFd) -> Self {
        Self { directory, open: None }
    }

    /// Notes a line. What cannot be written is lost: a full disk ends no sandbox.
    pub(super) fn note(&mut self, level: LogLevel, line: &str) {
        let end = line.floor_char_boundary(MAX_LINE);
        let noted = Noted {
            at_ms: crate::clock::now_ms(),
            level: level.as_str().to_owned(),
            line: line[..end].to_owned(),
        };
        let Ok(mut text) = serde_json::to_vec(&noted) else {
            return;
        };
        text.push(b'\n');
        if self.write(&text).is_err() {
            self.open = None;
        }
    }

    fn write(&mut self, text: &[u8]) -> io::Result<()> {
        let (mut file, size) = match self.open.take() {
            Some((_, size)) if size >= MAX_FILE => {
                rustix::fs::renameat(&self.directory, FILE, &self.directory, EARLIER)?;
                self.opened()?
            }
            Some(open) => open,
            None => self.opened()?,
        };
        // One call, so that a reader sees whole lines.
        file.write_all(text)?;
        let written = u64::try_from(text.len()).unwrap_or(u64::MAX);
        self.open = Some((file, size.saturating_add(written)));
        Ok(())
    }

    fn opened(&self) -> io::Result<(File, u64)> {
        let path = format!("/proc/self/fd/{}/{FILE}", self.directory.as_raw_fd());
        let no_link = i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or_default();
        let mut options = OpenOptions::new();
        options.append(true).create(true).mode(0o600).custom_flags(no_link);
        let file = options.open(path)?;
        let size = file.metadata()?.len();
        Ok((file, size))
    }

    /// A command runs.
    pub(super) fn started(&mut self, process: &ProcessInfo) {
        let line = format!(
            "command {} started as {}: {}",
            process.pid,
            process.user,
            command_line(process)
        );
        self.note(LogLevel::Info, &line);
    }

    /// A command has ended, or was never started.
    pub(super) fn ended(&mut self, process: &ProcessInfo, timed_out: bool, end: &ExecEnd) {
        let pid = process.pid;
        let line = match end {
            ExecEnd::Exited { code } => format!("command {pid} ended with exit code {code}"),
            ExecEnd::Signaled { signal } if timed_out => {
                format!("command {pid} was killed by signal {signal}: its time was up")
            }
            ExecEnd::Signaled { signal } => format!("command {pid} was ended by signal {signal}"),
            ExecEnd::OutOfMemory { limit } => {
                format!(
                    "command {pid} was killed: the sandbox was out of memory, of which it may use {}",
                    Bytes(*limit)
                )
            }
            ExecEnd::NotStarted(failure) => {
                let line = format!("a command was not started: {}: {}", why(failure), command_line(process));
                return self.note(LogLevel::Warn, &line);
            }
            // Told with the end of the sandbox.
            ExecEnd::Lost => return,
        };
        self.note(LogLevel::Info, &line);
    }

    /// A limit was hit.
    pub(super) fn limit(&mut self, hit: &LimitHit) {
        let row = hit.limit.row();
        let (level, effect) = match hit.effect {
            LimitEffect::Killed => (LogLevel::Error, "the sandbox is ended"),
            LimitEffect::Refused => (LogLevel::Warn, "what goes beyond it is refused"),
            LimitEffect::Cut => (LogLevel::Warn, "connections were cut"),
            LimitEffect::Slowed => (LogLevel::Warn, "connections were slowed down"),
            LimitEffect::Ended => (LogLevel::Warn, "processes are ended"),
            LimitEffect::Reported => (LogLevel::Warn, "a command complains of it"),
        };
        let line = format!("the limit `{}` of {} was hit: {effect}", row.word, row.show(hit.value));
        self.note(level, &line);
    }

    /// Something happened at the sandbox's network.
    pub(super) fn network(&mut self, news: &News) {
        if let News::Limit(hit) = news {
            self.limit(hit);
        }
        // Whatever a sandbox does, this is told once.
        if matches!(news, News::More { is_first: false, .. }) {
            return;
        }
        if let Some(line) = refusals::line(news) {
            self.note(LogLevel::Warn, &line);
        }
    }
}

fn why(failure: &StartFailure) -> Cow<'static, str> {
    let told = |errno: i32| io::Error::from_raw_os_error(errno);
    match failure {
        StartFailure::NotFound => "there is no such program".into(),
        StartFailure::NotExecutable { errno } => format!("it cannot be executed: {}", told(*errno)).into(),
        StartFailure::Directory { errno } => {
            format!("its working directory cannot be entered: {}", told(*errno)).into()
        }
        StartFailure::Other { step, errno } => format!("{step}: {}", told(*errno)).into(),
    }
}

/// The beginning of a command as it was given, without the values of its variables: those may be secrets.
fn command_line(process: &ProcessInfo) -> String {
    let words: Vec<Cow<'_, str>> = process.argv.iter().map(|word| String::from_utf8_lossy(word)).collect();
    let mut line = words.join(" ");
    for (_, value) in &process.env {
        if let Ok(value) = str::from_utf8(value)
            && value.len() >= MIN_SECRET
            && line.contains(value)
        {
            line = line.replace(value, "****");
        }
    }
    if line.len() > MAX_COMMAND {
        line.truncate(line.floor_char_boundary(MAX_COMMAND));
        line.push('…');
    }
    one_line(line.as_bytes()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(directory: &std::path::Path) -> Log {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Log::in_directory(rustix::fs::open(directory, flags, rustix::fs::Mode::empty()).unwrap())
    }

    fn process(argv: &[&str], env: &[(&str, &str)]) -> ProcessInfo {
        let bytes = |text: &&str| text.as_bytes().to_vec();
        ProcessInfo {
            pid: 7,
            tag: None,
            argv: argv.iter().map(bytes).collect(),
            env: env.iter().map(|(name, value)| (bytes(name), bytes(value))).collect(),
            cwd: Vec::new(),
            user: "user".to_owned(),
            tty: false,
        }
    }

    #[test]
    fn two_files_hold_the_latest_lines_and_no_more() {
        let directory = tempfile::tempdir().unwrap();
        let mut written = log(directory.path());
        for number in 0..2_000 {
            written.note(LogLevel::Warn, &format!("{number} {}", "x".repeat(300)));
        }
        written.note(LogLevel::Info, &"y".repeat(10 * MAX_LINE));
        let read = |name: &str| std::fs::read(directory.path().join(name)).unwrap();
        let (earlier, latest) = (read(EARLIER), read(FILE));
        let most = usize::try_from(MAX_FILE).unwrap() + 2 * MAX_LINE;
        assert!(
            earlier.len() <= most && latest.len() <= most,
            "{} {}",
            earlier.len(),
            latest.len()
        );
        let lines: Vec<Noted> = [parse(&earlier), parse(&latest)].concat();
        let numbers: Vec<usize> = lines[..lines.len() - 1]
            .iter()
            .map(|noted| noted.line.split(' ').next().unwrap().parse().unwrap())
            .collect();
        assert!(numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]) && numbers.last() == Some(&1_999));
        assert_eq!(
            (lines[0].level(), lines.last().unwrap().line.len()),
            (LogLevel::Warn, MAX_LINE)
        );
        // Another supervisor of the same directory goes on where this one was.
        log(directory.path()).note(LogLevel::Info, "again");
        assert_eq!(parse(&read(FILE)).len(), parse(&latest).len() + 1);
        assert_eq!(parse(b"\nno json\n{}\n"), []);
    }

    #[test]
    fn a_command_is_told_without_what_its_variables_hold() {
        let shown = |argv: &[&str], env: &[(&str, &str)]| command_line(&process(argv, env));
        assert_eq!(
            shown(&["/bin/sh", "-c", "echo hi"], &[("A", "hi")]),
            "/bin/sh -c echo hi"
        );
        assert_eq!(
            shown(&["curl", "-H", "X: s3cret-value"], &[("KEY", "s3cret-value")]),
            "curl -H X: ****"
        );
        assert_eq!(shown(&["a\u{1b}[2J\nb"], &[]), "$'a\\x1b[2J\\nb'");
        let long = shown(&["é".repeat(1_000).as_str()], &[]);
        assert!(long.len() <= MAX_COMMAND + 3 && long.ends_with('…'), "{long}");
    }
}
