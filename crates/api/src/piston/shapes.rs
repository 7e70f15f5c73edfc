//! What Piston's clients send and read.

use serde::{Deserialize, Serialize};

use crate::languages::LanguageRuntime;

/// A program that is to be run.
#[derive(Debug, Default, Deserialize)]
pub(super) struct NewJob {
    pub(super) language: Option<String>,
    pub(super) version: Option<String>,
    pub(super) files: Option<Vec<NewFile>>,
    pub(super) stdin: Option<String>,
    pub(super) args: Option<Vec<String>>,
    /// Milliseconds, all of these.
    pub(super) compile_timeout: Option<i64>,
    pub(super) run_timeout: Option<i64>,
    pub(super) compile_cpu_time: Option<i64>,
    pub(super) run_cpu_time: Option<i64>,
    /// Bytes; without a limit if negative.
    pub(super) compile_memory_limit: Option<i64>,
    pub(super) run_memory_limit: Option<i64>,
}

#[derive(Debug, Deserialize)]
pub(super) struct NewFile {
    pub(super) name: Option<String>,
    pub(super) content: Option<String>,
    /// `utf8` if absent, and for whatever else is said.
    pub(super) encoding: Option<String>,
}

/// A package that is to be installed or removed.
#[derive(Debug, Default, Deserialize)]
pub(super) struct PackageBody {
    pub(super) language: Option<String>,
    pub(super) version: Option<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct RuntimeAnswer {
    language: &'static str,
    version: String,
    aliases: &'static [&'static str],
    #[serde(skip_serializing_if = "Option::is_none")]
    runtime: Option<&'static str>,
}

impl RuntimeAnswer {
    pub(super) fn of(runtime: &LanguageRuntime) -> Self {
        Self {
            language: runtime.language.name,
            version: runtime.version.to_string(),
            aliases: runtime.language.aliases,
            runtime: runtime.language.runtime,
        }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct PackageAnswer {
    language: &'static str,
    language_version: String,
    installed: bool,
}

impl PackageAnswer {
    pub(super) fn of(runtime: &LanguageRuntime) -> Self {
        Self {
            language: runtime.language.runtime.unwrap_or(runtime.language.name),
            language_version: runtime.version.to_string(),
            installed: true,
        }
    }
}

/// What came of a program.
#[derive(Debug, Serialize)]
pub(super) struct ExecuteAnswer {
    pub(super) language: &'static str,
    pub(super) version: String,
    /// Unless it could not be compiled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) run: Option<StageAnswer>,
    /// Of languages that are compiled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) compile: Option<StageAnswer>,
}

/// What came of a stage. Times are milliseconds, memory is bytes.
#[derive(Debug, Serialize)]
pub(super) struct StageAnswer {
    pub(super) stdout: String,
    pub(super) stderr: String,
    pub(super) output: String,
    pub(super) code: Option<i32>,
    pub(super) signal: Option<String>,
    pub(super) message: Option<String>,
    pub(super) status: Option<StageWord>,
    pub(super) cpu_time: Option<u64>,
    pub(super) wall_time: u64,
    pub(super) memory: Option<u64>,
}

/// Why a stage did not succeed.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub(super) enum StageWord {
    /// It exited with a code.
    Re,
    /// A signal ended it.
    Sg,
    /// Its time was over.
    To,
    /// It wrote too much to standard output.
    Ol,
    /// It wrote too much to standard error.
    El,
}

/// What a client says in an interactive run.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(super) enum ClientMessage {
    /// What is to be run.
    Init(Box<NewJob>),
    /// Something to read.
    Data {
        stream: StreamName,
        data: String,
    },
    Signal {
        signal: String,
    },
    #[serde(other)]
    Unknown,
}

/// The only stream that a client may write to, and every other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum StreamName {
    Stdin,
    #[serde(other)]
    Other,
}

/// What it is told.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(super) enum ServerMessage {
    Runtime {
        language: &'static str,
        version: String,
    },
    Stage {
        stage: &'static str,
    },
    Data {
        stream: &'static str,
        data: String,
    },
    Exit {
        stage: &'static str,
        code: Option<i32>,
        signal: Option<String>,
        message: Option<String>,
        status: Option<StageWord>,
    },
    Error {
        message: String,
    },
}
