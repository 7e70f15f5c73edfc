//! Judge0's API, version 1.13: programs are submitted, run and judged, and what came of them is asked for by a token. Its routes are
//! in [`crate::routes`].
//!
//! What it means to run a program is said in [`crate::languages`], and how long a submission is kept in [`crate::submissions`]; here
//! are Judge0's words for it.

mod archive;
mod languages;
mod prepared;
mod shapes;

use std::sync::Arc;
use std::time::Duration;

use http::{Response, StatusCode};
use offleash_core::exec::OutputStream;
use offleash_daemon::DaemonError;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use self::languages::{LanguageAnswer, OfferedLanguage, offered};
use self::prepared::{LIMITS, PreparedSubmission, SubmissionDefaults, prepared, wrong};
use self::shapes::{NewBatch, NewSubmission, STATUSES, WantedFields, config, shown};
use crate::commands::CommandFailure;
use crate::control::{ApiRequest, LastingRequest};
use crate::http::answer::{self, ApiRefusal};
use crate::http::body::Body;
use crate::http::json::RequestBody;
use crate::http::query;
use crate::languages::{Program, ProgramOutcome, StageOutcome, StageStatus};
use crate::submissions::{JudgedOutcome, Submission, SubmissionError, SubmissionProgress, Verdict};

/// The most that the body of a submission may have, and of several.
pub(crate) const MAX_SUBMISSION_BODY: usize = 4 * 1024 * 1024;
pub(crate) const MAX_BATCH_BODY: usize = 16 * 1024 * 1024;
/// How many submissions may come, or be asked for, at once.
const MAX_BATCH: usize = 20;

/// The version whose words these are.
const SPOKEN: &str = "1.13.1";

/// Signals that limits send (signal(7)).
const SIGKILL: i32 = 9;
const SIGXFSZ: i32 = 25;

/// How long a submission tries again to have a sandbox where there are as many as there may be, and how often.
const ROOM_TIMEOUT: Duration = Duration::from_secs(300);
const AGAIN: Duration = Duration::from_millis(300);

pub(crate) fn about() -> Response<Body> {
    let told = json!({
        "version": SPOKEN,
        "homepage": "https://github.com/judge0/judge0",
        "source_code": "https://github.com/judge0/judge0",
        "maintainer": format!("offleash {}", env!("CARGO_PKG_VERSION")),
    });
    answer::json(StatusCode::OK, &told)
}

pub(crate) fn config_info() -> Response<Body> {
    answer::json(StatusCode::OK, &config(&LIMITS))
}

pub(crate) fn statuses() -> Response<Body> {
    answer::json(StatusCode::OK, &STATUSES)
}

pub(crate) async fn list_languages(asked: &ApiRequest<'_>) -> Result<Response<Body>, ApiRefusal> {
    let all = all(asked).await?;
    let shown: Vec<LanguageAnswer> = all.iter().map(OfferedLanguage::answer).collect();
    Ok(answer::json(StatusCode::OK, &shown))
}

pub(crate) async fn language(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    let all = all(asked).await?;
    let number = given.parse().ok();
    let found = number.and_then(|number: i64| all.iter().find(|one| one.number == number));
    let missing = || ApiRefusal::not_found("there is no such language").final_answer();
    Ok(answer::json(StatusCode::OK, &found.ok_or_else(missing)?.details()))
}

async fn all(asked: &ApiRequest<'_>) -> Result<Vec<OfferedLanguage>, ApiRefusal> {
    let all = asked.control.languages().all(asked.catalog_reader()).await;
    Ok(offered(&all.map_err(|failed| asked.failed(&failed))?))
}

/// How texts come and go, and which fields of a submission are wanted.
fn wanted(asked: &ApiRequest<'_>) -> Result<(bool, WantedFields), ApiRefusal> {
    let pairs = query::pairs(asked.query());
    let is_base64 = query::flag(&pairs, "base64_encoded")?;
    Ok((is_base64, WantedFields::of(query::value(&pairs, "fields"), is_base64)))
}

/// Takes a submission; answers its token, or what came of it where that is waited for.
pub(crate) async fn create(asked: &ApiRequest<'_>, body: RequestBody) -> Result<Response<Body>, ApiRefusal> {
    let (is_base64, wanted) = wanted(asked)?;
    let waits = query::flag(&query::pairs(asked.query()), "wait")?;
    let new: NewSubmission = body.read().await?;
    let one = taken(asked, &all(asked).await?, &new, is_base64)?;
    if waits {
        one.wait().await;
        return Ok(answer::json(StatusCode::CREATED, &shown(&one, &wanted)?));
    }
    Ok(answer::json(StatusCode::CREATED, &json!({ "token": one.token })))
}

/// Takes several, each by itself.
pub(crate) async fn create_batch(asked: &ApiRequest<'_>, body: RequestBody) -> Result<Response<Body>, ApiRefusal> {
    let (is_base64, _) = wanted(asked)?;
    let NewBatch { submissions } = body.read().await?;
    let submissions = submissions.ok_or_else(|| ApiRefusal::bad_request("submissions: there must be some"))?;
    if submissions.is_empty() || submissions.len() > MAX_BATCH {
        return Err(ApiRefusal::bad_request(format!(
            "submissions: there may be 1 to {MAX_BATCH}"
        )));
    }
    let languages = all(asked).await?;
    let mut told = Vec::new();
    for given in submissions {
        let new = serde_json::from_value::<NewSubmission>(given);
        let one = match new {
            Ok(new) => taken(asked, &languages, &new, is_base64),
            Err(error) => Err(ApiRefusal::bad_request(format!(
                "the submission is not what it must be: {error}"
            ))),
        };
        told.push(match one {
            Ok(one) => json!({ "token": one.token }),
            Err(refusal) => json!({ "error": refusal.message }),
        });
    }
    Ok(answer::json(StatusCode::CREATED, &told))
}

/// Takes one and has it run.
fn taken(
    asked: &ApiRequest<'_>,
    languages: &[OfferedLanguage],
    new: &NewSubmission,
    is_base64: bool,
) -> Result<Arc<Submission>, ApiRefusal> {
    let number = new
        .language_id
        .ok_or_else(|| wrong("language_id", "it must be there"))?;
    let language = languages.iter().find(|one| one.number == number);
    let unknown = || wrong("language_id", format_args!("there is no language with id {number}"));
    let PreparedSubmission {
        program,
        cpu,
        submitted,
    } = prepared(new, language.ok_or_else(unknown)?, is_base64)?;
    let one = asked.control.submissions().add(&asked.caller.key_id, submitted);
    let one = one.map_err(full)?;
    let (lasting, running) = (asked.detached(), Arc::clone(&one));
    tokio::spawn(async move {
        let asked = lasting.asked();
        let turns = asked.control.submissions().turns(&asked.caller.key_id);
        let _turn = turns.acquire().await;
        running.begin();
        let outcome = judged(&lasting, program, cpu, running.program.expected.as_deref()).await;
        asked.control.submissions().finish(&running, outcome);
    });
    Ok(one)
}

fn full(error: SubmissionError) -> ApiRefusal {
    ApiRefusal::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()).retry_after(Duration::from_secs(1))
}

/// Runs a program and says what came of it.
async fn judged(lasting: &LastingRequest, program: Program, cpu: Duration, expected: Option<&[u8]>) -> JudgedOutcome {
    let asked = lasting.asked();
    let until = Instant::now() + ROOM_TIMEOUT;
    loop {
        let program = program.clone();
        // Goes on to its end, and to that of its sandbox, also while the server drains.
        let ran = asked.whole(|daemon, caller| async move { Ok(program.run(&daemon, &caller).await) });
        match ran.await {
            Ok(Ok(outcome)) => return verdict(outcome, cpu, expected),
            Ok(Err(failed)) if has_no_room(&failed) && Instant::now() < until => sleep(AGAIN).await,
            Ok(Err(failed)) => {
                let told = asked.failed(&failed).message;
                return JudgedOutcome::of(Verdict::InternalError, Some(told));
            }
            Err(refusal) => return JudgedOutcome::of(Verdict::InternalError, Some(refusal.message)),
        }
    }
}

/// Whether there are as many sandboxes as there may be: a judge's queue waits for one to end.
fn has_no_room(failed: &CommandFailure) -> bool {
    let CommandFailure::Daemon(error) = failed else {
        return false;
    };
    matches!(
        error,
        DaemonError::QuotaExceeded { .. } | DaemonError::Overloaded { .. } | DaemonError::Full { .. }
    )
}

fn verdict(outcome: ProgramOutcome, cpu: Duration, expected: Option<&[u8]>) -> JudgedOutcome {
    let ProgramOutcome { compile, run } = outcome;
    let compile_output = compile.map(|stage| stage.command.both).unwrap_or_default();
    let Some(run) = run else {
        return JudgedOutcome {
            compile_output,
            ..JudgedOutcome::of(Verdict::CompilationError, None)
        };
    };
    let (verdict, message) = of_run(&run, cpu, expected);
    JudgedOutcome {
        verdict,
        message,
        compile_output,
        exit_code: run.command.exit_code,
        exit_signal: run.command.signal,
        cpu_ms: run.cpu_ms,
        wall_ms: Some(run.command.took_ms),
        memory_bytes: run.memory_bytes,
        stdout: run.command.stdout,
        stderr: run.command.stderr,
    }
}

fn of_run(run: &StageOutcome, cpu: Duration, expected: Option<&[u8]>) -> (Verdict, Option<String>) {
    let used = run.cpu_ms.map(Duration::from_millis);
    let late = || (Verdict::TimeLimitExceeded, Some("its time was over".to_owned()));
    match run.status {
        StageStatus::TimedOut => late(),
        // More than whole seconds, which the kernel bounds.
        _ if used.is_some_and(|used| used > cpu) => late(),
        StageStatus::Succeeded => match expected.is_none_or(|expected| is_as_expected(expected, &run.command.stdout)) {
            true => (Verdict::Accepted, None),
            false => (Verdict::WrongAnswer, None),
        },
        StageStatus::Failed => {
            let code = run.command.shell_code();
            (Verdict::NonZeroExit, Some(format!("it exited with code {code}")))
        }
        StageStatus::Signaled => {
            let signal = run.command.signal.unwrap_or_default();
            (Verdict::Signaled(signal), Some(format!("signal {signal} ended it")))
        }
        StageStatus::OutOfMemory => {
            let message = "it used more memory than it may".to_owned();
            (Verdict::Signaled(SIGKILL), Some(message))
        }
        StageStatus::TooMuch(stream) => {
            let stream = match stream {
                OutputStream::Stdout => "stdout",
                OutputStream::Stderr => "stderr",
            };
            let message = format!("it wrote more than it may to {stream}");
            (Verdict::Signaled(SIGXFSZ), Some(message))
        }
    }
}

/// Whether a program wrote what it should: blanks at the ends of lines and of all are no matter.
fn is_as_expected(expected: &[u8], written: &[u8]) -> bool {
    fn lines(text: &[u8]) -> Vec<&[u8]> {
        let mut lines: Vec<&[u8]> = text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii_end).collect();
        while lines.last().is_some_and(|line| line.is_empty()) {
            lines.pop();
        }
        lines
    }
    lines(expected) == lines(written)
}

fn found(asked: &ApiRequest<'_>, token: &str) -> Option<Arc<Submission>> {
    asked.control.submissions().find(&asked.caller.key_id, token)
}

fn there(asked: &ApiRequest<'_>, token: &str) -> Result<Arc<Submission>, ApiRefusal> {
    found(asked, token).ok_or_else(|| ApiRefusal::not_found("there is no such submission").final_answer())
}

pub(crate) fn get(asked: &ApiRequest<'_>, token: &str) -> Result<Response<Body>, ApiRefusal> {
    let (_, wanted) = wanted(asked)?;
    let one = there(asked, token)?;
    Ok(answer::json(StatusCode::OK, &shown(&one, &wanted)?))
}

/// Those of several tokens, in their order; nothing for one that there is not.
pub(crate) fn get_batch(asked: &ApiRequest<'_>) -> Result<Response<Body>, ApiRefusal> {
    let (_, wanted) = wanted(asked)?;
    let pairs = query::pairs(asked.query());
    let tokens: Vec<&str> = query::value(&pairs, "tokens").unwrap_or_default().split(',').collect();
    if tokens.len() > MAX_BATCH {
        return Err(ApiRefusal::bad_request(format!("tokens: there may be {MAX_BATCH}")));
    }
    let one = |token: &&str| match found(asked, token.trim()) {
        Some(one) => shown(&one, &wanted),
        None => Ok(Value::Null),
    };
    let submissions = tokens.iter().map(one).collect::<Result<Vec<Value>, ApiRefusal>>()?;
    Ok(answer::json(StatusCode::OK, &json!({ "submissions": submissions })))
}

/// A page of those of the key, the latest first.
pub(crate) fn list(asked: &ApiRequest<'_>) -> Result<Response<Body>, ApiRefusal> {
    let (_, wanted) = wanted(asked)?;
    let pairs = query::pairs(asked.query());
    let number = |name, usual| match query::value(&pairs, name).map(str::parse::<usize>) {
        None => Ok(usual),
        Some(Ok(number)) if number > 0 => Ok(number),
        Some(_) => Err(ApiRefusal::bad_request(format!(
            "{name}: it must be a number from 1 on"
        ))),
    };
    let (page, size) = (number("page", 1)?, number("per_page", MAX_BATCH)?.min(MAX_BATCH));
    let all = asked.control.submissions().list(&asked.caller.key_id);
    let pages = all.len().div_ceil(size);
    let first = page.saturating_sub(1).saturating_mul(size);
    let one = |one: &Arc<Submission>| shown(one, &wanted);
    let submissions = all.iter().skip(first).take(size).map(one);
    let submissions = submissions.collect::<Result<Vec<Value>, ApiRefusal>>()?;
    let told = json!({
        "submissions": submissions,
        "meta": {
            "current_page": page,
            "next_page": (page < pages).then_some(page + 1),
            "prev_page": (page > 1).then_some(page - 1),
            "total_pages": pages,
            "total_count": all.len(),
        },
    });
    Ok(answer::json(StatusCode::OK, &told))
}

/// Forgets one that is over.
pub(crate) fn delete(asked: &ApiRequest<'_>, token: &str) -> Result<Response<Body>, ApiRefusal> {
    let (_, wanted) = wanted(asked)?;
    let one = there(asked, token)?;
    if !matches!(one.progress(), SubmissionProgress::Over { .. }) {
        let why = "the submission waits or runs: it can be deleted once it is over";
        return Err(ApiRefusal::bad_request(why).final_answer());
    }
    let shown = shown(&one, &wanted)?;
    asked.control.submissions().remove(&one);
    Ok(answer::json(StatusCode::OK, &shown))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanks_at_ends_are_no_matter() {
        for (expected, written, is_right) in [
            ("a\nb", "a\nb\n", true),
            ("a \nb\n\n", "a\r\nb", true),
            ("", "\n", true),
            ("a", "b", false),
            ("a b", "a  b", false),
            ("a\nb", "ab", false),
            ("\na", "a", false),
        ] {
            assert_eq!(
                is_as_expected(expected.as_bytes(), written.as_bytes()),
                is_right,
                "{expected:?}"
            );
        }
    }
}
