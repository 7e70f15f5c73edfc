//! Asks the user about a connection or a call of a tool, at the terminal that this process belongs to.
//!
//! It is opened anew (`/dev/tty`), so that neither the command's input nor its output has a part in it. While a question
//! is open, nothing of the command is shown, and no key goes to the command. What was typed or sent by the terminal
//! before does not count, nor anything but a whole line that is one of the answers: a command can make a terminal type
//! (it answers requests for its state), and a person may be typing when the question comes.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::time::{Duration, Instant};

use offleash_core::approval::{ApprovalAnswer, ApprovalQuestion, ApprovalSubject};
use offleash_core::text::Text;
use rustix::event::PollFlags;
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::termios::{InputModes, LocalModes, OptionalActions, OutputModes, QueueSelector, Termios};

/// How long a question that follows one which was taken back takes no answer.
const DEAF: Duration = Duration::from_secs(2);
/// The most of a program's name that is shown.
const MAX_NAME: usize = 60;
/// Ends what a command may have begun: a sequence (CAN), a string (ST), another set of characters (SI, `ESC ( B`) and
/// attributes that hide text.
const PLAIN: &[u8] = b"\x18\x1b\\\x0f\x1b(B\x1b[0m\n";
/// For a command that draws by itself also: margins, insertion and the like (DECSTR), and what is below.
const PLAIN_SCREEN: &[u8] = b"\x18\x1b\\\x1b[!p\x0f\x1b(B\x1b[0m\n\x1b[J";

/// What asks the user.
#[derive(Debug)]
pub(crate) struct Prompt {
    program: String,
    draws: bool,
    remember: Option<Remember>,
    open: Option<Open>,
    /// Until when the next question takes no answer.
    deaf_until: Option<Instant>,
}

/// Writes a rule for good; says where, or why not.
type Remember = Box<dyn RememberRule>;

/// Something that keeps an allowed host and port for later runs.
pub(crate) trait RememberRule: std::fmt::Debug {
    /// Keeps it, and says where; or why not.
    fn remember(&mut self, question: &ApprovalQuestion) -> Result<String, String>;
}

/// A question that is open.
#[derive(Debug)]
struct Open {
    question: ApprovalQuestion,
    terminal: File,
    before: Termios,
    unsaid: Vec<u8>,
    typed: Vec<u8>,
    /// Until when a line is none: the one who types may answer the question before, which was taken back.
    deaf_until: Option<Instant>,
}

/// What a line that was typed says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line {
    Answer(ApprovalAnswer),
    Unclear,
}

impl Prompt {
    /// One for a run of `program`; with `draws` it has a terminal of its own, which is this one.
    pub(crate) fn new(program: &Text, draws: bool, remember: Option<Remember>) -> Self {
        let mut program = program.to_string();
        if let Some((end, _)) = program.char_indices().nth(MAX_NAME) {
            program.truncate(end);
            program.push('…');
        }
        Self {
            program,
            draws,
            remember,
            open: None,
            deaf_until: None,
        }
    }

    /// Whether a question is open.
    pub(crate) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Puts a question; answers it at once when there is nobody to be asked.
    pub(crate) fn ask(&mut self, question: ApprovalQuestion) -> Option<ApprovalAnswer> {
        self.withdraw();
        let mut text = if self.draws { PLAIN_SCREEN } else { PLAIN }.to_vec();
        text.extend_from_slice(self.text(&question).as_bytes());
        match Open::begin(question, text, self.deaf_until.take()) {
            Ok(open) => {
                self.open = Some(open);
                None
            }
            Err(_) => Some(ApprovalAnswer::NoTerminal),
        }
    }

    fn text(&self, question: &ApprovalQuestion) -> String {
        let ApprovalQuestion { about, timeout, .. } = question;
        // What is allowed stands beside the answers: parameters may fill the screen above.
        let answers = match about {
            ApprovalSubject::Connection { .. } if self.can_remember(about) => {
                "allow (o)nce, for this (r)un, (a)lways, or (d)eny?".to_owned()
            }
            ApprovalSubject::Connection { .. } => "allow (o)nce, for this (r)un, or (d)eny?".to_owned(),
            ApprovalSubject::ToolCall { tool, .. } => {
                format!(
                    "allow this call of {} (o)nce, every call of it in this (r)un, or (d)eny?",
                    Text::from(tool.as_str())
                )
            }
            ApprovalSubject::Command { .. } | ApprovalSubject::Restore { .. } => {
                "allow (o)nce, for this (r)un, or (d)eny?".to_owned()
            }
        };
        format!(
            "[offleash] {} wants {about} – {answers} (denied in {}) ",
            self.program,
            offleash_core::units::Millis(u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX)),
        )
    }

    /// Whether an answer can be kept for later runs.
    fn can_remember(&self, about: &ApprovalSubject) -> bool {
        self.remember.is_some() && matches!(about, ApprovalSubject::Connection { .. })
    }

    /// What to wait for.
    pub(crate) fn interest(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let open = self.open.as_ref()?;
        let flags = if open.unsaid.is_empty() {
            PollFlags::IN
        } else {
            PollFlags::OUT
        };
        Some((open.terminal.as_fd(), flags))
    }

    /// Says what is still to be said and reads what was typed; the number of the question and the answer, if there is one.
    pub(crate) fn turn(&mut self) -> Option<(u64, ApprovalAnswer)> {
        let open = self.open.as_mut()?;
        let line = match open.turn() {
            Ok(line) => line?,
            // The terminal is gone, or belongs to another program now.
            Err(_) => Line::Answer(ApprovalAnswer::NoTerminal),
        };
        match line {
            Line::Answer(ApprovalAnswer::Always) => self.always(),
            Line::Answer(approval) => self.close(approval),
            Line::Unclear => {
                let keeps =
                    self.remember.is_some() && matches!(open.question.about, ApprovalSubject::Connection { .. });
                let always = if keeps { ", a" } else { "" };
                open.say(&format!("[offleash] please answer o, r{always} or d: "));
                None
            }
        }
    }

    /// Denies the open question, if there is one.
    pub(crate) fn deny(&mut self) -> Option<(u64, ApprovalAnswer)> {
        self.open.as_mut()?.say("\n");
        self.close(ApprovalAnswer::Denied)
    }

    /// Takes the open question back.
    pub(crate) fn withdraw(&mut self) {
        if let Some(mut open) = self.open.take() {
            open.say("\n[offleash] there was no answer: denied\n");
            self.deaf_until = Some(Instant::now() + DEAF);
        }
    }

    fn always(&mut self) -> Option<(u64, ApprovalAnswer)> {
        let open = self.open.as_mut()?;
        if !matches!(open.question.about, ApprovalSubject::Connection { .. }) {
            open.say("[offleash] a tool is allowed for good in the policy, by hand; o, r or d: ");
            return None;
        }
        let Some(remember) = self.remember.as_mut() else {
            open.say("[offleash] there is no policy to write it to (`--policy FILE` names one); o, r or d: ");
            return None;
        };
        let approval = match remember.remember(&open.question) {
            Ok(place) => {
                open.say(&format!("[offleash] written to {place}\n"));
                ApprovalAnswer::Always
            }
            Err(reason) => {
                open.say(&format!("[offleash] allowed for this run only: {reason}\n"));
                ApprovalAnswer::Run
            }
        };
        self.close(approval)
    }

    fn close(&mut self, approval: ApprovalAnswer) -> Option<(u64, ApprovalAnswer)> {
        self.open.take().map(|open| (open.question.id, approval))
    }
}

impl Open {
    fn begin(question: ApprovalQuestion, text: Vec<u8>, deaf_until: Option<Instant>) -> io::Result<Self> {
        let terminal = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags((OFlags::NOCTTY | OFlags::NONBLOCK).bits().cast_signed())
            .open("/dev/tty")?;
        if !is_ours(&terminal) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let before = rustix::termios::tcgetattr(&terminal)?;
        let mut lines = before.clone();
        lines.local_modes |= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ECHOE | LocalModes::ISIG;
        lines.input_modes |= InputModes::ICRNL;
        lines.input_modes -= InputModes::IGNCR | InputModes::INLCR;
        lines.output_modes |= OutputModes::OPOST | OutputModes::ONLCR;
        rustix::termios::tcsetattr(&terminal, OptionalActions::Now, &lines)?;
        let mut open = Self {
            question,
            terminal,
            before,
            unsaid: text,
            typed: Vec::new(),
            deaf_until,
        };
        rustix::termios::tcflush(&open.terminal, QueueSelector::IFlush)?;
        open.write()?;
        Ok(open)
    }

    fn say(&mut self, text: &str) {
        self.unsaid.extend_from_slice(text.as_bytes());
        // What cannot be written now is written when there is room; when there never is, nobody sees it.
        let _written = self.write();
    }

    fn write(&mut self) -> io::Result<()> {
        while !self.unsaid.is_empty() {
            match rustix::io::write(&self.terminal, &self.unsaid) {
                Ok(written) => drop(self.unsaid.drain(..written)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn turn(&mut self) -> io::Result<Option<Line>> {
        self.write()?;
        if !self.unsaid.is_empty() {
            return Ok(None);
        }
        // Reading would stop this process if the terminal were another's.
        if !is_ours(&self.terminal) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let mut buffer = [0; 1024];
        match rustix::io::read(&self.terminal, &mut buffer) {
            Ok(0) => return Ok(Some(Line::Answer(ApprovalAnswer::Denied))),
            Ok(read) => self.typed.extend_from_slice(buffer.get(..read).unwrap_or_default()),
            Err(Errno::INTR | Errno::AGAIN) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        let Some(end) = self.typed.iter().position(|byte| *byte == b'\n') else {
            return Ok(None);
        };
        let is_deaf = self.deaf_until.is_some_and(|until| Instant::now() < until);
        let line = match is_deaf {
            true => Line::Unclear,
            false => meaning(self.typed.get(..end).unwrap_or_default()),
        };
        // What follows was typed before it was read what the answer is for.
        self.typed.clear();
        Ok(Some(line))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // Half a line is not for the command. The terminal may be gone.
        let _flushed = rustix::termios::tcflush(&self.terminal, QueueSelector::IFlush);
        let _restored = rustix::termios::tcsetattr(&self.terminal, OptionalActions::Now, &self.before);
    }
}

/// Whether this process may read from `terminal`, and change it, without being stopped.
fn is_ours(terminal: &File) -> bool {
    rustix::termios::tcgetpgrp(terminal).is_ok_and(|group| group == rustix::process::getpgrp())
}

/// What a line says: one of the answers and nothing else.
fn meaning(line: &[u8]) -> Line {
    match line.trim_ascii().to_ascii_lowercase().as_slice() {
        b"o" | b"once" => Line::Answer(ApprovalAnswer::Once),
        b"r" | b"run" => Line::Answer(ApprovalAnswer::Run),
        b"a" | b"always" => Line::Answer(ApprovalAnswer::Always),
        b"d" | b"deny" => Line::Answer(ApprovalAnswer::Denied),
        _ => Line::Unclear,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pitfall_only_whole_lines_that_are_an_answer_are_one() {
        for (line, approval) in [
            ("o", Some(ApprovalAnswer::Once)),
            (" Once ", Some(ApprovalAnswer::Once)),
            ("R", Some(ApprovalAnswer::Run)),
            ("run", Some(ApprovalAnswer::Run)),
            ("a", Some(ApprovalAnswer::Always)),
            ("always", Some(ApprovalAnswer::Always)),
            ("d", Some(ApprovalAnswer::Denied)),
            ("deny", Some(ApprovalAnswer::Denied)),
            ("", None),
            ("y", None),
            ("yes", None),
            ("true", None),
            ("oo", None),
            ("o r", None),
            ("\u{1b}[24;80Ro", None),
            ("\u{1b}]lo\u{1b}\\", None),
            ("o\u{0}", None),
        ] {
            let expected = approval.map_or(Line::Unclear, Line::Answer);
            assert_eq!(meaning(line.as_bytes()), expected, "{line:?}");
        }
    }

    #[test]
    fn a_question_is_one_line_whoever_chose_the_names() {
        let question = ApprovalQuestion {
            id: 1,
            about: ApprovalSubject::Connection {
                host: offleash_core::network::Host::parse("api.example.com").unwrap(),
                port: 443,
                protocol: offleash_core::network::SpokenProtocol::Tls,
            },
            rule: None,
            timeout: Duration::from_secs(60),
        };
        let text = |program: &str| Prompt::new(&Text::from(program), false, None).text(&question);
        assert_eq!(
            text("python3"),
            "[offleash] python3 wants api.example.com:443 – allow (o)nce, for this (r)un, or (d)eny? (denied in 1m) "
        );
        for program in ["x\n[offleash] y", "x\u{1b}[8m", "\u{202e}x", "x\r"] {
            let shown = text(program);
            assert!(!shown.contains(['\n', '\r', '\u{1b}', '\u{202e}']), "{shown:?}");
        }
        assert!(text(&"x".repeat(5000)).len() < 300);
        for parameters in ["{\"a\":\"\u{202e}\"}", "{\n}", "\u{1b}[8m"] {
            let about = ApprovalSubject::ToolCall {
                tool: "pay".to_owned(),
                parameters: parameters.to_owned(),
            };
            let question = ApprovalQuestion {
                about,
                ..question.clone()
            };
            let shown = Prompt::new(&Text::from("x"), false, None).text(&question);
            assert!(shown.starts_with("[offleash] x wants tool pay "), "{shown:?}");
            assert!(!shown.contains(['\n', '\r', '\u{1b}', '\u{202e}']), "{shown:?}");
        }
    }
}
