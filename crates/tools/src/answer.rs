//! What a call is answered.

use offleash_protocol::tools::{CommandAnswer, MAX_ANSWER};
use serde_json::{Value, json};

/// Why a call has no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallFailure {
    /// There is no such tool.
    #[error("there is no tool `{0}` here")]
    Unknown(String),
    /// The request or its parameters are not what the tool takes.
    #[error("{0}")]
    Invalid(String),
    /// No grant allows it.
    #[error("refused: {0}")]
    Refused(String),
    /// The tool failed.
    #[error("{0}")]
    Failed(String),
    /// The client that is to answer is not there, or left, or has too much to do.
    #[error("{0}")]
    Unanswered(String),
    /// The tool did not answer in time.
    #[error("the tool did not answer within {0}")]
    TimedOut(offleash_core::units::Millis),
}

impl CallFailure {
    /// A word for it.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Unknown(_) => "unknown_tool",
            Self::Invalid(_) => "invalid",
            Self::Refused(_) => "refused",
            Self::Failed(_) => "failed",
            Self::Unanswered(_) => "unanswered",
            Self::TimedOut(_) => "timeout",
        }
    }

    /// What an answer in JSON says, which was given without a call.
    pub(crate) fn of_answer(answer: &[u8]) -> Result<Value, Self> {
        let mut answer: Value = serde_json::from_slice(answer).unwrap_or_default();
        if let Some(result) = answer.get_mut("result") {
            return Ok(result.take());
        }
        let text = |name: &str| answer["error"][name].as_str().unwrap_or_default().to_owned();
        let message = text("message");
        Err(match text("kind").as_str() {
            "unknown_tool" => Self::Unknown(message),
            "invalid" => Self::Invalid(message),
            "refused" => Self::Refused(message),
            _ => Self::Failed(message),
        })
    }

    /// The exit code of a command that fails so.
    fn status(&self) -> u8 {
        match self {
            Self::Unknown(_) => 127,
            Self::Refused(_) => 126,
            Self::TimedOut(_) => 124,
            Self::Invalid(_) => 2,
            Self::Failed(_) => 1,
            Self::Unanswered(_) => 125,
        }
    }
}

/// In which form a caller wants its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AnswerForm {
    /// As JSON.
    Json,
    /// As what the command of this tool writes.
    Command(String),
}

/// The bytes of an answer, no more than may be.
pub(crate) fn answer(form: &AnswerForm, outcome: &Result<Value, CallFailure>) -> Vec<u8> {
    let bytes = bytes(form, outcome);
    match bytes.len() > MAX_ANSWER {
        true => self::bytes(
            form,
            &Err(CallFailure::Failed(format!(
                "the tool's answer is longer than {} MiB",
                MAX_ANSWER >> 20
            ))),
        ),
        false => bytes,
    }
}

fn bytes(form: &AnswerForm, outcome: &Result<Value, CallFailure>) -> Vec<u8> {
    match (form, outcome) {
        (AnswerForm::Json, Ok(result)) => json!({ "result": result }).to_string().into_bytes(),
        (AnswerForm::Json, Err(failure)) => {
            json!({ "error": { "kind": failure.kind(), "message": failure.to_string() } })
                .to_string()
                .into_bytes()
        }
        (AnswerForm::Command(_), Ok(result)) => {
            let mut text = match result {
                Value::Null => String::new(),
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            if !text.is_empty() && !text.ends_with('\n') {
                text.push('\n');
            }
            let (status, stderr) = (0, &b""[..]);
            let stdout = text.as_bytes();
            CommandAnswer { status, stdout, stderr }.to_bytes()
        }
        (AnswerForm::Command(tool), Err(failure)) => {
            let said = format!("{tool}: {failure}\n");
            CommandAnswer {
                status: failure.status(),
                stdout: b"",
                stderr: said.as_bytes(),
            }
            .to_bytes()
        }
    }
}
