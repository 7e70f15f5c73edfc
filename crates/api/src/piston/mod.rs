//! Piston's API, version 2: programs in many languages, each run once. Its routes are in [`crate::routes`].
//!
//! What it means to run a program is said in [`crate::languages`]; here are Piston's words for it.

mod connect;
mod shapes;

use std::time::Duration;

use http::{Response, StatusCode};
use offleash_core::exec::OutputStream;
use offleash_daemon::{Caller, Daemon};

pub(crate) use self::connect::connect;
use self::shapes::{ExecuteAnswer, NewFile, NewJob, PackageAnswer, PackageBody, RuntimeAnswer, StageAnswer, StageWord};
use crate::commands::output_text;
use crate::control::ApiRequest;
use crate::http::answer::{self, ApiRefusal};
use crate::http::body::Body;
use crate::http::json::RequestBody;
use crate::languages::{
    LanguageRuntime, Program, ProgramExtras, ProgramFile, StageLimits, StageOutcome, StageStatus, VersionSelector,
};

/// The most that a job's body may have.
pub(crate) const MAX_JOB_BODY: usize = 4 * 1024 * 1024;
/// What a job may have of files, of arguments, and of bytes in those.
const MAX_FILES: usize = 256;
const MAX_ARGUMENTS: usize = 256;
const MAX_ARGUMENT_BYTES: usize = 64 * 1024;
/// What it may read.
const MAX_STDIN: usize = 512 * 1024;
/// What each stream of a stage may write.
const MAX_OUTPUT: usize = 1024 * 1024;

/// How long stages may take if nothing is said, as Piston has it, and at most; milliseconds.
const RUN_MS: u64 = 3000;
const COMPILE_MS: u64 = 10_000;
const MAX_STAGE_MS: u64 = 60_000;
/// The most memory that may be asked for, bytes: what a program needs that is larger is no job of a playground.
const MAX_MEMORY: u64 = 64 << 30;

pub(crate) async fn runtimes(asked: &ApiRequest<'_>) -> Result<Response<Body>, ApiRefusal> {
    let shown: Vec<RuntimeAnswer> = all(asked).await?.iter().map(RuntimeAnswer::of).collect();
    Ok(answer::json(StatusCode::OK, &shown))
}

/// What a host or a template has is installed; nothing else is.
pub(crate) async fn packages(asked: &ApiRequest<'_>) -> Result<Response<Body>, ApiRefusal> {
    let shown: Vec<PackageAnswer> = all(asked).await?.iter().map(PackageAnswer::of).collect();
    Ok(answer::json(StatusCode::OK, &shown))
}

/// Installing and removing: a package that is there stays, and none is brought.
pub(crate) async fn change_package(body: RequestBody) -> Result<Response<Body>, ApiRefusal> {
    let PackageBody { language, version } = body.read().await?;
    if language.is_none() || version.is_none() {
        return Err(ApiRefusal::bad_request("both `language` and `version` are required"));
    }
    let why = "packages are neither installed nor removed by this API: templates bring languages";
    Err(ApiRefusal::new(StatusCode::NOT_IMPLEMENTED, why).final_answer())
}

pub(crate) async fn execute(asked: &ApiRequest<'_>, body: RequestBody) -> Result<Response<Body>, ApiRefusal> {
    let program = program(asked, body.read().await?).await?;
    let runtime = program.runtime.clone();
    // Whoever goes away meanwhile leaves no sandbox behind.
    let work = |daemon: Daemon, caller: Caller| async move { Ok(program.run(&daemon, &caller).await) };
    let outcome = asked.whole(work).await?.map_err(|failed| asked.failed(&failed))?;
    let told = ExecuteAnswer {
        language: runtime.language.name,
        version: runtime.version.to_string(),
        run: outcome.run.map(stage),
        compile: outcome.compile.map(stage),
    };
    Ok(answer::json(StatusCode::OK, &told))
}

/// What a job asks to be run.
async fn program(asked: &ApiRequest<'_>, job: NewJob) -> Result<Program, ApiRefusal> {
    let (language, version) = wanted(&job)?;
    let prepared = prepared(job)?;
    let found = asked
        .control
        .languages()
        .find(asked.catalog_reader(), &language, &version.1)
        .await;
    let runtime = found.map_err(|failed| asked.failed(&failed))?.ok_or_else(|| {
        let unknown = format!("{}-{}", language.escape_debug(), version.0.escape_debug());
        ApiRefusal::bad_request(format!(
            "no runtime `{unknown}` is known; GET /api/v2/runtimes lists those that are"
        ))
    })?;
    Ok(prepared.of(runtime))
}

async fn all(asked: &ApiRequest<'_>) -> Result<Vec<LanguageRuntime>, ApiRefusal> {
    let all = asked.control.languages().all(asked.catalog_reader()).await;
    all.map_err(|failed| asked.failed(&failed))
}

/// The language and the version that a job names, which it must.
fn wanted(job: &NewJob) -> Result<(String, (String, VersionSelector)), ApiRefusal> {
    let required = |field: &str, given: &Option<String>| {
        let given = given.clone().filter(|text| !text.is_empty());
        given.ok_or_else(|| ApiRefusal::bad_request(format!("`{field}` is required, and must be a string")))
    };
    let language = required("language", &job.language)?;
    let version = required("version", &job.version)?;
    let selector = version.parse();
    let selector = selector.map_err(|error| ApiRefusal::bad_request(format!("version: {error}")))?;
    Ok((language, (version, selector)))
}

/// A job whose fields are right.
#[derive(Debug)]
struct PreparedJob {
    files: Vec<ProgramFile>,
    stdin: Vec<u8>,
    arguments: Vec<String>,
    compile: StageLimits,
    run: StageLimits,
    memory_bytes: Option<u64>,
}

impl PreparedJob {
    fn of(self, runtime: LanguageRuntime) -> Program {
        Program {
            runtime,
            files: self.files,
            stdin: self.stdin,
            arguments: self.arguments,
            compile: self.compile,
            run: self.run,
            memory_bytes: self.memory_bytes,
            max_output: MAX_OUTPUT,
            extras: ProgramExtras::default(),
        }
    }
}

fn prepared(job: NewJob) -> Result<PreparedJob, ApiRefusal> {
    let wrong = |why: String| ApiRefusal::bad_request(why);
    let given = job
        .files
        .ok_or_else(|| wrong("`files` is required, and must be an array".to_owned()))?;
    if given.is_empty() || given.len() > MAX_FILES {
        return Err(wrong(format!("files: there must be 1 to {MAX_FILES}")));
    }
    let is_code = |file: &NewFile| !matches!(file.encoding.as_deref(), Some("base64" | "hex"));
    if !given.iter().any(is_code) {
        return Err(wrong("files: one must be `utf8`, which is the program".to_owned()));
    }
    let mut files = Vec::new();
    for (number, file) in given.into_iter().enumerate() {
        let contents = file.content;
        let contents = contents.ok_or_else(|| wrong(format!("files[{number}]: `content` is required")))?;
        let name = file.name.filter(|name| !name.is_empty());
        let name = name.unwrap_or_else(|| format!("file{number}.code"));
        let file = ProgramFile::new(name, contents, file.encoding.as_deref());
        files.push(file.map_err(|error| wrong(format!("files[{number}]: {error}")))?);
    }
    let arguments = job.args.unwrap_or_default();
    let bytes: usize = arguments.iter().map(String::len).sum();
    let has_nul = arguments.iter().any(|argument| argument.contains('\0'));
    if arguments.len() > MAX_ARGUMENTS || bytes > MAX_ARGUMENT_BYTES || has_nul {
        let why = format!("args: there may be {MAX_ARGUMENTS} of {MAX_ARGUMENT_BYTES} bytes in all, without NUL");
        return Err(wrong(why));
    }
    let stdin = job.stdin.unwrap_or_default().into_bytes();
    if stdin.len() > MAX_STDIN {
        return Err(wrong(format!("stdin: it may have {MAX_STDIN} bytes")));
    }
    Ok(PreparedJob {
        files,
        stdin,
        arguments,
        compile: StageLimits {
            wall: time("compile_timeout", job.compile_timeout)?.unwrap_or(Duration::from_millis(COMPILE_MS)),
            cpu: time("compile_cpu_time", job.compile_cpu_time)?,
        },
        run: StageLimits {
            wall: time("run_timeout", job.run_timeout)?.unwrap_or(Duration::from_millis(RUN_MS)),
            cpu: time("run_cpu_time", job.run_cpu_time)?,
        },
        memory_bytes: memory(job.compile_memory_limit, job.run_memory_limit)?,
    })
}

/// Milliseconds; zero and less stand for what is usual.
fn time(field: &str, given: Option<i64>) -> Result<Option<Duration>, ApiRefusal> {
    let Some(ms) = given.and_then(|ms| u64::try_from(ms).ok()).filter(|ms| *ms > 0) else {
        return Ok(None);
    };
    if ms > MAX_STAGE_MS {
        let why = format!("{field}: it may be {MAX_STAGE_MS} at most");
        return Err(ApiRefusal::bad_request(why));
    }
    Ok(Some(Duration::from_millis(ms)))
}

/// Bytes that both stages have, as they have one sandbox: the larger of what each may. Without a limit, what is usual.
fn memory(compile: Option<i64>, run: Option<i64>) -> Result<Option<u64>, ApiRefusal> {
    let limit = |given: Option<i64>| {
        given
            .and_then(|bytes| u64::try_from(bytes).ok())
            .filter(|bytes| *bytes > 0)
    };
    // A stage that has no limit of its own keeps to the other's.
    let memory = limit(compile).max(limit(run));
    match memory.is_some_and(|bytes| bytes > MAX_MEMORY) {
        true => Err(ApiRefusal::bad_request(format!(
            "a memory limit may be {MAX_MEMORY} at most"
        ))),
        false => Ok(memory),
    }
}

/// A stage in Piston's words.
fn stage(outcome: StageOutcome) -> StageAnswer {
    let StageOutcome {
        command,
        status,
        cpu_ms,
        memory_bytes,
    } = outcome;
    let (status, message) = match status {
        StageStatus::Succeeded => (None, None),
        StageStatus::Failed => {
            let code = command.shell_code();
            (Some(StageWord::Re), Some(format!("it exited with code {code}")))
        }
        StageStatus::Signaled => {
            let signal = command.signal.unwrap_or_default();
            (Some(StageWord::Sg), Some(format!("signal {signal} ended it")))
        }
        StageStatus::OutOfMemory => (Some(StageWord::Sg), Some("it used more memory than it may".to_owned())),
        StageStatus::TimedOut => (Some(StageWord::To), Some("its time was over".to_owned())),
        StageStatus::TooMuch(OutputStream::Stdout) => (
            Some(StageWord::Ol),
            Some(format!("it wrote more than {MAX_OUTPUT} bytes to stdout")),
        ),
        StageStatus::TooMuch(OutputStream::Stderr) => (
            Some(StageWord::El),
            Some(format!("it wrote more than {MAX_OUTPUT} bytes to stderr")),
        ),
    };
    StageAnswer {
        code: command.exit_code,
        signal: command.signal.map(signal_name),
        wall_time: command.took_ms,
        stdout: output_text(command.stdout),
        stderr: output_text(command.stderr),
        output: output_text(command.both),
        message,
        status,
        cpu_time: cpu_ms,
        memory: memory_bytes,
    }
}

/// Signals by their numbers (signal(7)).
const SIGNALS: [(i32, &str); 31] = [
    (1, "SIGHUP"),
    (2, "SIGINT"),
    (3, "SIGQUIT"),
    (4, "SIGILL"),
    (5, "SIGTRAP"),
    (6, "SIGABRT"),
    (7, "SIGBUS"),
    (8, "SIGFPE"),
    (9, "SIGKILL"),
    (10, "SIGUSR1"),
    (11, "SIGSEGV"),
    (12, "SIGUSR2"),
    (13, "SIGPIPE"),
    (14, "SIGALRM"),
    (15, "SIGTERM"),
    (16, "SIGSTKFLT"),
    (17, "SIGCHLD"),
    (18, "SIGCONT"),
    (19, "SIGSTOP"),
    (20, "SIGTSTP"),
    (21, "SIGTTIN"),
    (22, "SIGTTOU"),
    (23, "SIGURG"),
    (24, "SIGXCPU"),
    (25, "SIGXFSZ"),
    (26, "SIGVTALRM"),
    (27, "SIGPROF"),
    (28, "SIGWINCH"),
    (29, "SIGIO"),
    (30, "SIGPWR"),
    (31, "SIGSYS"),
];

/// As in `SIGKILL`.
fn signal_name(signal: i32) -> String {
    let known = SIGNALS.iter().find(|(number, _)| *number == signal);
    known.map_or_else(|| format!("SIG{signal}"), |(_, name)| (*name).to_owned())
}

/// The number of a signal by its name.
fn signal_number(name: &str) -> Option<i32> {
    let known = SIGNALS.iter().find(|(_, known)| *known == name);
    known.map(|(number, _)| *number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(text: &str) -> Result<PreparedJob, ApiRefusal> {
        prepared(serde_json::from_str(text).unwrap())
    }

    #[test]
    fn what_is_not_said_is_as_piston_has_it() {
        let job = job(r#"{"files":[{"content":"1"}]}"#).unwrap();
        assert_eq!(job.run.wall, Duration::from_secs(3));
        assert_eq!(job.compile.wall, Duration::from_secs(10));
        assert_eq!((job.run.cpu, job.memory_bytes), (None, None));
        assert_eq!(
            job.files,
            [ProgramFile::new("file0.code".to_owned(), "1".to_owned(), None).unwrap()]
        );
    }

    #[test]
    fn limits_are_kept_to() {
        let text = r#"{"files":[{"content":"1"}],"run_timeout":60000,"compile_timeout":-1,"run_cpu_time":1500,
            "compile_memory_limit":-1,"run_memory_limit":100000000}"#;
        let prepared = job(text).unwrap();
        assert_eq!(prepared.run.wall, Duration::from_secs(60));
        assert_eq!(prepared.compile.wall, Duration::from_secs(10));
        assert_eq!(prepared.run.cpu, Some(Duration::from_millis(1500)));
        assert_eq!(prepared.memory_bytes, Some(100_000_000));
        for field in [
            r#""run_timeout":60001"#,
            r#""compile_timeout":9223372036854775807"#,
            r#""run_memory_limit":9223372036854775807"#,
            r#""args":["\u0000"]"#,
        ] {
            let text = format!(r#"{{"files":[{{"content":"1"}}],{field}}}"#);
            assert_eq!(job(&text).unwrap_err().status, StatusCode::BAD_REQUEST, "{field}");
        }
    }

    #[test]
    fn files_that_are_none_are_refused() {
        for files in [
            "[]",
            r"[{}]",
            r#"[{"name":"../a","content":""}]"#,
            r#"[{"name":"/etc/passwd","content":""}]"#,
            r#"[{"name":"a\u0000","content":""}]"#,
            r#"[{"content":"aGk=","encoding":"base64"}]"#,
            r#"[{"content":"1"},{"content":"?","encoding":"hex"}]"#,
        ] {
            let refusal = job(&format!(r#"{{"files":{files}}}"#)).unwrap_err();
            assert_eq!(refusal.status, StatusCode::BAD_REQUEST, "{files}");
        }
        assert!(job("{}").is_err());
    }

    #[test]
    fn a_job_names_language_and_version() {
        for text in [
            "{}",
            r#"{"language":"python"}"#,
            r#"{"language":"","version":"*"}"#,
            r#"{"language":"python","version":"latest"}"#,
        ] {
            assert!(wanted(&serde_json::from_str(text).unwrap()).is_err(), "{text}");
        }
        let job = serde_json::from_str(r#"{"language":"python","version":"3.x"}"#).unwrap();
        assert_eq!(wanted(&job).unwrap().0, "python");
    }
}
