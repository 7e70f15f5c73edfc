//! What Judge0's clients send and read.

use data_encoding::BASE64;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::SubmissionDefaults;
use crate::http::answer::ApiRefusal;
use crate::http::time;
use crate::submissions::{Submission, SubmissionProgress, Verdict};

/// A program that is to be run and judged.
#[derive(Debug, Default, Clone, Deserialize)]
pub(super) struct NewSubmission {
    pub(super) source_code: Option<String>,
    pub(super) language_id: Option<i64>,
    pub(super) compiler_options: Option<String>,
    pub(super) command_line_arguments: Option<String>,
    pub(super) stdin: Option<String>,
    pub(super) expected_output: Option<String>,
    /// Seconds, these three.
    pub(super) cpu_time_limit: Option<f64>,
    pub(super) cpu_extra_time: Option<f64>,
    pub(super) wall_time_limit: Option<f64>,
    /// KiB.
    pub(super) memory_limit: Option<f64>,
    pub(super) stack_limit: Option<f64>,
    pub(super) max_file_size: Option<f64>,
    pub(super) max_processes_and_or_threads: Option<f64>,
    pub(super) number_of_runs: Option<f64>,
    pub(super) enable_per_process_and_thread_time_limit: Option<bool>,
    pub(super) enable_per_process_and_thread_memory_limit: Option<bool>,
    pub(super) redirect_stderr_to_stdout: Option<bool>,
    pub(super) enable_network: Option<bool>,
    pub(super) callback_url: Option<String>,
    /// An archive of ZIP, always in base64.
    pub(super) additional_files: Option<String>,
}

/// Several of them.
#[derive(Debug, Default, Deserialize)]
pub(super) struct NewBatch {
    /// Each is read by itself: one that is wrong does not keep others from being run.
    pub(super) submissions: Option<Vec<Value>>,
}

#[derive(Debug, Serialize)]
pub(super) struct StatusAnswer {
    pub(super) id: u8,
    pub(super) description: &'static str,
}

/// All that a submission can be.
pub(super) const STATUSES: [StatusAnswer; 14] = [
    status(1, "In Queue"),
    status(2, "Processing"),
    status(3, "Accepted"),
    status(4, "Wrong Answer"),
    status(5, "Time Limit Exceeded"),
    status(6, "Compilation Error"),
    status(7, "Runtime Error (SIGSEGV)"),
    status(8, "Runtime Error (SIGXFSZ)"),
    status(9, "Runtime Error (SIGFPE)"),
    status(10, "Runtime Error (SIGABRT)"),
    status(11, "Runtime Error (NZEC)"),
    status(12, "Runtime Error (Other)"),
    status(13, "Internal Error"),
    status(14, "Exec Format Error"),
];

const fn status(id: u8, description: &'static str) -> StatusAnswer {
    StatusAnswer { id, description }
}

/// The number of what a submission is.
pub(super) fn status_of(progress: &SubmissionProgress) -> u8 {
    match progress {
        SubmissionProgress::Waiting => 1,
        SubmissionProgress::Running => 2,
        SubmissionProgress::Over { outcome, .. } => match outcome.verdict {
            Verdict::Accepted => 3,
            Verdict::WrongAnswer => 4,
            Verdict::TimeLimitExceeded => 5,
            Verdict::CompilationError => 6,
            Verdict::Signaled(11) => 7,
            Verdict::Signaled(25) => 8,
            Verdict::Signaled(8) => 9,
            Verdict::Signaled(6) => 10,
            Verdict::NonZeroExit => 11,
            Verdict::Signaled(_) => 12,
            Verdict::InternalError => 13,
        },
    }
}

/// What is told of a submission if nothing is said.
const USUAL_FIELDS: [&str; 8] = [
    "stdout",
    "time",
    "memory",
    "stderr",
    "token",
    "compile_output",
    "message",
    "status",
];

/// Which fields of submissions a client wants, and how it wants texts.
#[derive(Debug, Clone)]
pub(super) struct WantedFields {
    /// Those; all if absent.
    names: Option<Vec<String>>,
    is_base64: bool,
}

impl WantedFields {
    /// As the query says.
    pub(super) fn of(names: Option<&str>, is_base64: bool) -> Self {
        let names = match names.filter(|names| !names.is_empty()) {
            None => Some(USUAL_FIELDS.map(str::to_owned).to_vec()),
            Some("*") => None,
            Some(names) => Some(names.split(',').map(|name| name.trim().to_owned()).collect()),
        };
        Self { names, is_base64 }
    }

    fn has(&self, name: &str) -> bool {
        let names = self.names.as_ref();
        names.is_none_or(|names| names.iter().any(|wanted| wanted == name))
    }
}

/// A text as it is wanted; one that is none can be had in base64 alone.
fn text(bytes: &[u8], wanted: &WantedFields) -> Result<Value, ApiRefusal> {
    if wanted.is_base64 {
        return Ok(BASE64.encode(bytes).into());
    }
    let not_text = |_| {
        ApiRefusal::bad_request("some of the submission is no UTF-8: ask with `base64_encoded=true`").final_answer()
    };
    Ok(std::str::from_utf8(bytes).map_err(not_text)?.into())
}

/// A submission, in the fields that are wanted.
///
/// # Errors
/// 400 for what is no text, unless base64 is wanted.
pub(super) fn shown(one: &Submission, wanted: &WantedFields) -> Result<Value, ApiRefusal> {
    let progress = one.progress();
    let outcome = match &progress {
        SubmissionProgress::Over { outcome, at } => Some((outcome, *at)),
        SubmissionProgress::Waiting | SubmissionProgress::Running => None,
    };
    let mut all = Map::new();
    let mut put = |name: &str, value: Value| {
        if wanted.has(name) {
            all.insert(name.to_owned(), value);
        }
    };
    put("token", one.token.as_str().into());
    let program = &one.program;
    let given = [
        ("source_code", Some(&program.source)),
        ("stdin", program.stdin.as_ref()),
        ("expected_output", program.expected.as_ref()),
    ];
    for (name, bytes) in given {
        if wanted.has(name) {
            put(name, bytes.map_or(Ok(Value::Null), |bytes| text(bytes, wanted))?);
        }
    }
    let archive = program.archive.as_ref().map(|archive| BASE64.encode(archive));
    put("additional_files", archive.into());
    for (name, value) in &program.settings {
        put(name, value.clone());
    }
    let id = status_of(&progress);
    put("status_id", id.into());
    let status = STATUSES.iter().find(|one| one.id == id);
    put("status", json!(status));
    put("created_at", time::text(one.created_at).into());
    put("finished_at", json!(outcome.map(|(_, at)| time::text(at))));
    let outcome = outcome.map(|(outcome, _)| outcome);
    let written = |bytes: Option<&Vec<u8>>| match bytes.filter(|bytes| !bytes.is_empty()) {
        Some(bytes) => text(bytes, wanted),
        None => Ok(Value::Null),
    };
    for (name, bytes) in [
        ("stdout", outcome.map(|one| &one.stdout)),
        ("stderr", outcome.map(|one| &one.stderr)),
        ("compile_output", outcome.map(|one| &one.compile_output)),
    ] {
        if wanted.has(name) {
            put(name, written(bytes)?);
        }
    }
    let message = outcome.and_then(|one| one.message.as_ref());
    if wanted.has("message") {
        put(
            "message",
            message.map_or(Ok(Value::Null), |said| text(said.as_bytes(), wanted))?,
        );
    }
    let seconds = |ms: Option<u64>| ms.map(|ms| format!("{}.{:03}", ms / 1000, ms % 1000));
    put("time", json!(outcome.and_then(|one| seconds(one.cpu_ms))));
    put("wall_time", json!(outcome.and_then(|one| seconds(one.wall_ms))));
    put(
        "memory",
        json!(outcome.and_then(|one| one.memory_bytes).map(|bytes| bytes / 1024)),
    );
    put("exit_code", json!(outcome.and_then(|one| one.exit_code)));
    put("exit_signal", json!(outcome.and_then(|one| one.exit_signal)));
    Ok(all.into())
}

/// What this server does with submissions, in the words of Judge0's configuration.
pub(super) fn config(limits: &SubmissionDefaults) -> Value {
    json!({
        "maintenance_mode": false,
        "enable_wait_result": true,
        "enable_compiler_options": true,
        "allowed_languages_for_compile_options": ["C", "C++", "Go", "Rust"],
        "enable_command_line_arguments": true,
        "enable_submission_delete": true,
        "enable_callbacks": false,
        "callbacks_max_tries": 0,
        "callbacks_timeout": 0,
        "enable_additional_files": true,
        "max_queue_size": crate::submissions::MAX_WAITING,
        "cpu_time_limit": limits.cpu_seconds.usual,
        "max_cpu_time_limit": limits.cpu_seconds.most,
        "cpu_extra_time": limits.extra_seconds.usual,
        "max_cpu_extra_time": limits.extra_seconds.most,
        "wall_time_limit": limits.wall_seconds.usual,
        "max_wall_time_limit": limits.wall_seconds.most,
        "memory_limit": limits.memory_kib.usual,
        "max_memory_limit": limits.memory_kib.most,
        "stack_limit": limits.stack_kib.usual,
        "max_stack_limit": limits.stack_kib.most,
        "max_processes_and_or_threads": limits.pids.usual,
        "max_max_processes_and_or_threads": limits.pids.most,
        "enable_per_process_and_thread_time_limit": false,
        "allow_enable_per_process_and_thread_time_limit": false,
        "enable_per_process_and_thread_memory_limit": false,
        "allow_enable_per_process_and_thread_memory_limit": false,
        "max_file_size": limits.file_kib.usual,
        "max_max_file_size": limits.file_kib.most,
        "number_of_runs": 1,
        "max_number_of_runs": 1,
        "redirect_stderr_to_stdout": false,
        "enable_batched_submissions": true,
        "max_submission_batch_size": super::MAX_BATCH,
        "max_extract_size": super::archive::MAX_EXTRACTED / 1024,
        "submission_cache_duration": 0,
        "use_docs_as_homepage": false,
        "allow_enable_network": true,
        "enable_network": false,
    })
}
