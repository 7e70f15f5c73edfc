//! What a person is asked, about a connection, a call of a tool, a command or a checkpoint, and what the answer was.

use core::fmt;
use core::time::Duration;

use crate::network::{Host, SpokenProtocol};
use crate::text::Text;
use crate::units::Millis;

/// How long somebody may take to answer when nothing else is said.
pub const ASK_TIMEOUT: Duration = Duration::from_secs(60);

/// What is asked about, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct ApprovalRules {
    /// When a question counts as denied, if it was said.
    pub timeout: Option<Duration>,
    /// Whether it is asked about whatever no rule is about, which is refused otherwise.
    pub about_the_unknown: bool,
}

impl ApprovalRules {
    /// When a question counts as denied.
    pub fn timeout(&self) -> Duration {
        self.timeout.unwrap_or(ASK_TIMEOUT)
    }

    /// Reads a time for questions, such as `30s`.
    ///
    /// # Errors
    /// For text that is no time, and for no time at all, in which nobody could answer.
    pub fn timeout_of(text: &str) -> Result<Duration, String> {
        match text.parse::<Millis>() {
            Ok(Millis(0)) => Err("nobody can answer in no time".to_owned()),
            Ok(Millis(time)) => Ok(Duration::from_millis(time)),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// What is asked about.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalSubject {
    /// A connection that waits.
    Connection {
        /// The name, or the address where none was used.
        host: Host,
        /// The port.
        port: u16,
        /// What the connection has to speak.
        protocol: SpokenProtocol,
    },
    /// A call of a tool that waits.
    ToolCall {
        /// The tool's name.
        tool: String,
        /// What it would be called with: a JSON object, all of it.
        parameters: String,
    },
    /// A command that is to be started by a request.
    Command {
        /// Its words, the executable first.
        argv: Vec<Text>,
    },
    /// A sandbox that is to be put back.
    Restore {
        /// To which of its checkpoints, by id.
        checkpoint: String,
    },
}

/// How much of what is asked about goes on record, in bytes; parameters of a tool may be long.
const MAX_ABOUT: usize = 1024;

impl ApprovalSubject {
    /// What goes on record of it: one line, cut.
    pub fn on_record(&self) -> String {
        let mut about = self.to_string();
        about.truncate(about.floor_char_boundary(MAX_ABOUT));
        about
    }
}

/// A question about what waits.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ApprovalQuestion {
    /// Its number in the run; an answer names it, so that a late one answers no other question.
    pub id: u64,
    /// What it is about.
    pub about: ApprovalSubject,
    /// The rule that asks; `None` when whatever no rule is about is asked about.
    pub rule: Option<String>,
    /// When the question counts as denied.
    pub timeout: Duration,
}

impl fmt::Display for ApprovalSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connection { host, port, .. } => write!(f, "{host}:{port}"),
            Self::ToolCall { tool, parameters } => {
                write!(
                    f,
                    "tool {} {}",
                    Text::from(tool.as_str()),
                    Text::from(parameters.as_str())
                )
            }
            Self::Command { argv } => {
                f.write_str("command")?;
                argv.iter().try_for_each(|word| write!(f, " {word}"))
            }
            Self::Restore { checkpoint } => write!(f, "restore of checkpoint {}", Text::from(checkpoint.as_str())),
        }
    }
}

/// How a question was decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalAnswer {
    /// Allowed for what waited for the answer.
    Once,
    /// Allowed for the rest of the run.
    Run,
    /// Allowed for this run, and for later ones by a rule.
    Always,
    /// Denied; the host, or a call like this, is not asked about again in this run.
    Denied,
    /// Denied, because nobody answered in time.
    Timeout,
    /// Denied, because there is no terminal to ask at.
    NoTerminal,
    /// Denied without a question, because there were too many already.
    TooMany,
}

impl ApprovalAnswer {
    /// Whether what waited may go on.
    pub fn allows(self) -> bool {
        match self {
            Self::Once | Self::Run | Self::Always => true,
            Self::Denied | Self::Timeout | Self::NoTerminal | Self::TooMany => false,
        }
    }
}

impl fmt::Display for ApprovalAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Once => "it was allowed once",
            Self::Run => "it was allowed for this run",
            Self::Always => "it was allowed for good",
            Self::Denied => "the answer was to deny it",
            Self::Timeout => "nobody answered in time",
            Self::NoTerminal => "there is no terminal to ask at",
            Self::TooMany => "there were too many questions already",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_for_questions_is_more_than_none() {
        assert_eq!(ApprovalRules::timeout_of("1.5s"), Ok(Duration::from_millis(1500)));
        for text in ["0", "0s", "", "-1", "soon"] {
            assert!(ApprovalRules::timeout_of(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn pitfall_only_three_answers_allow_and_text_is_none_of_them_unless_it_is_spelled_so() {
        for (text, allows) in [
            ("once", Some(true)),
            ("run", Some(true)),
            ("always", Some(true)),
            ("denied", Some(false)),
            ("timeout", Some(false)),
            ("no_terminal", Some(false)),
            ("too_many", Some(false)),
            ("yes", None),
            ("Once", None),
            ("", None),
        ] {
            let read = serde_json::from_value::<ApprovalAnswer>(serde_json::Value::from(text));
            assert_eq!(read.ok().map(ApprovalAnswer::allows), allows, "{text}");
        }
        for value in ["true", "1", "{}", "null", "{\"once\":false}"] {
            assert!(serde_json::from_str::<ApprovalAnswer>(value).is_err(), "{value}");
        }
    }
}
