//! The door of a build: output as lines to whoever shows progress, and the signals that end it.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};

use offleash_core::approval::{ApprovalAnswer, ApprovalQuestion};
use offleash_core::build::secrets::StepSecrets;
use offleash_core::exec::OutputStream;
use offleash_core::text;
use offleash_sys::signals::SignalQueue;
use rustix::event::PollFlags;

use super::build::Progress;
use crate::run_client::{ExecIo, ExecIoEvent};

/// SIGHUP, SIGINT, SIGQUIT and SIGTERM.
const SIGNALS: [i32; 4] = [1, 2, 3, 15];
/// Longest line that is kept, bytes.
const MAX_LINE: usize = 1024;
/// How many lines are told with a failure.
const LAST_LINES: usize = 12;
/// The shortest value that is taken out of lines: of shorter ones words would be missing that are none.
const MIN_SECRET: usize = 6;

/// The signals that end a build, for all of its steps.
pub(crate) fn signals() -> io::Result<SignalQueue> {
    SignalQueue::new(&SIGNALS)
}

/// Gives a step no input, and its output to `progress`, a line at a time.
pub(super) struct LinesIo<'a> {
    signals: &'a SignalQueue,
    progress: &'a mut dyn Progress,
    /// What has no end of line yet, of each stream.
    begun: [Vec<u8>; 2],
    last: VecDeque<String>,
    has_ended_input: bool,
    was_interrupted: bool,
    /// What no line has, the longest first.
    hidden: Vec<String>,
}

/// What a door has seen of a step.
#[derive(Debug)]
pub(super) struct Seen {
    /// The last lines, what has no end included.
    pub(super) last_lines: Vec<String>,
    /// Whether the user wanted it to end.
    pub(super) was_interrupted: bool,
}

impl<'a> LinesIo<'a> {
    /// Tells of output without the values of `secrets`: a command that says what it does says those, too.
    pub(super) fn hiding(signals: &'a SignalQueue, progress: &'a mut dyn Progress, secrets: &StepSecrets) -> Self {
        let lines = secrets.iter().flat_map(|(_, value)| value.lines()).map(str::trim);
        let mut hidden: Vec<String> = lines
            .filter(|line| line.len() >= MIN_SECRET)
            .map(str::to_owned)
            .collect();
        hidden.sort_by_key(|line| std::cmp::Reverse(line.len()));
        Self {
            signals,
            progress,
            begun: Default::default(),
            last: VecDeque::new(),
            has_ended_input: false,
            was_interrupted: false,
            hidden,
        }
    }

    /// Tells the rest.
    pub(super) fn finish(mut self) -> Seen {
        for begun in std::mem::take(&mut self.begun) {
            self.tell(&begun);
        }
        Seen {
            last_lines: self.last.into(),
            was_interrupted: self.was_interrupted,
        }
    }

    fn tell(&mut self, line: &[u8]) {
        // What a program overwrites on a terminal is not told.
        let line = line
            .rsplit(|byte| *byte == b'\r')
            .find(|part| !part.is_empty())
            .unwrap_or_default();
        // Programs indent; with its blanks a line would come quoted.
        let line = line.trim_ascii();
        if line.is_empty() {
            return;
        }
        let line = self.masked(line);
        let line = text::one_line(line.get(..MAX_LINE).unwrap_or(&line).trim_ascii_end()).into_owned();
        self.progress.line(&line);
        if self.last.len() == LAST_LINES {
            self.last.pop_front();
        }
        self.last.push_back(line);
    }

    fn masked<'l>(&self, line: &'l [u8]) -> Cow<'l, [u8]> {
        let has = |value: &String| line.windows(value.len()).any(|part| part == value.as_bytes());
        if !self.hidden.iter().any(has) {
            return Cow::Borrowed(line);
        }
        let text = String::from_utf8_lossy(line).into_owned();
        let masked = self.hidden.iter().fold(text, |text, value| text.replace(value, "****"));
        Cow::Owned(masked.into_bytes())
    }
}

impl ExecIo for LinesIo<'_> {
    fn interests(&self, _take_input: bool) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        vec![(self.signals.as_fd(), PollFlags::IN)]
    }

    fn write(&mut self, stream: OutputStream, bytes: Vec<u8>) {
        let index = usize::from(stream == OutputStream::Stderr);
        for byte in bytes {
            if byte == b'\n' {
                let line = std::mem::take(&mut self.begun[index]);
                self.tell(&line);
            } else if byte == b'\r' && self.begun[index].len() > MAX_LINE {
                self.begun[index].clear();
            } else if self.begun[index].len() <= 4 * MAX_LINE {
                self.begun[index].push(byte);
            }
        }
    }

    fn note(&mut self, line: &str) {
        self.progress.line(line);
    }

    fn pending(&self) -> usize {
        0
    }

    fn turn(&mut self, _window: usize) -> io::Result<Vec<ExecIoEvent>> {
        let mut events = Vec::new();
        if !std::mem::replace(&mut self.has_ended_input, true) {
            events.push(ExecIoEvent::EndOfInput);
        }
        while let Some(signal) = self.signals.next()? {
            self.was_interrupted = true;
            events.push(ExecIoEvent::Signal(signal));
        }
        self.progress.idle();
        Ok(events)
    }

    fn ask(&mut self, _question: ApprovalQuestion) -> Option<ApprovalAnswer> {
        // Nobody is asked: what a build may reach is said before.
        Some(ApprovalAnswer::NoTerminal)
    }

    fn withdraw(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Told(Vec<String>);

    impl Progress for Told {
        fn step(&mut self, _number: usize, _of: usize, _title: &str) {}

        fn note(&mut self, _told: &str) {}

        fn line(&mut self, line: &str) {
            self.0.push(line.to_owned());
        }

        fn left_out(&mut self, _packages: &str, _why: &str) {}

        fn idle(&mut self) {}
    }

    #[test]
    fn output_comes_as_lines_however_it_is_divided_and_drives_no_terminal() {
        let signals = signals().unwrap();
        let mut told = Told::default();
        let mut door = LinesIo::hiding(&signals, &mut told, &StepSecrets::default());
        for piece in ["a", "b\nc", "d\n\n", "10%\r20%\r100%\n", "\u{1b}[31mred\n", "  in\t\n"] {
            door.write(OutputStream::Stdout, piece.into());
            door.write(OutputStream::Stderr, b"e".to_vec());
        }
        door.write(OutputStream::Stdout, vec![b'x'; 100_000]);
        let last = door.finish().last_lines;
        let x = "x".repeat(MAX_LINE);
        let expected = ["ab", "cd", "100%", r"$'\x1b[31mred'", "in", x.as_str(), "eeeeee"];
        assert_eq!(last, expected);
        assert_eq!(told.0, expected);
    }

    #[test]
    fn only_the_last_lines_are_kept() {
        let signals = signals().unwrap();
        let mut told = Told::default();
        let mut door = LinesIo::hiding(&signals, &mut told, &StepSecrets::default());
        for number in 0..100 {
            door.write(OutputStream::Stdout, format!("{number}\n").into());
        }
        assert_eq!(door.finish().last_lines.first().map(String::as_str), Some("88"));
        assert_eq!(told.0.len(), 100);
    }

    #[test]
    fn no_line_has_a_secret() {
        let signals = signals().unwrap();
        let mut told = Told::default();
        let value = |text: &str| (text.to_owned(), text.to_owned());
        let secrets = ["hunter2-hunter2", "hunter2", "key:\n  second-line\n", "no"]
            .map(value)
            .into_iter()
            .collect();
        let mut door = LinesIo::hiding(&signals, &mut told, &secrets);
        door.write(
            OutputStream::Stderr,
            b"+ curl -H hunter2-hunter2 hunter2\n  second-line no\n".to_vec(),
        );
        let last = door.finish().last_lines;
        assert_eq!(last, ["+ curl -H **** ****", "**** no"]);
        assert_eq!(told.0, last);
    }
}
