//! What a submission asks for, checked: a program with limits, and what it is to write.

use std::time::Duration;

use data_encoding::BASE64;
use http::StatusCode;
use serde_json::{Map, Value, json};

use super::archive;
use super::languages::OfferedLanguage;
use super::shapes::NewSubmission;
use crate::http::answer::ApiRefusal;
use crate::languages::{Program, ProgramExtras, ProgramFile, StageLimits};
use crate::submissions::SubmittedProgram;

/// What each stream of a stage may write, and what a program may read.
const MAX_OUTPUT: usize = 1024 * 1024;
const MAX_STDIN: usize = 1024 * 1024;
/// What may be said of arguments, and of options.
const MAX_WORDS: usize = 512;
/// How long compiling may take.
const COMPILE_TIMEOUT: Duration = Duration::from_secs(30);

/// A limit: the least, what is so if nothing is said, and the most.
#[derive(Debug, Clone, Copy)]
pub(super) struct LimitRange {
    least: f64,
    pub(super) usual: f64,
    pub(super) most: f64,
}

/// All limits, as Judge0 has them in its configuration, but for the usual memory, which compilers share.
#[derive(Debug, Clone, Copy)]
pub(super) struct SubmissionDefaults {
    pub(super) cpu_seconds: LimitRange,
    pub(super) extra_seconds: LimitRange,
    pub(super) wall_seconds: LimitRange,
    pub(super) memory_kib: LimitRange,
    pub(super) stack_kib: LimitRange,
    pub(super) file_kib: LimitRange,
    pub(super) pids: LimitRange,
}

const fn limit(least: f64, usual: f64, most: f64) -> LimitRange {
    LimitRange { least, usual, most }
}

pub(super) const LIMITS: SubmissionDefaults = SubmissionDefaults {
    cpu_seconds: limit(0.0, 5.0, 15.0),
    extra_seconds: limit(0.0, 1.0, 5.0),
    wall_seconds: limit(1.0, 10.0, 20.0),
    memory_kib: limit(2048.0, 512_000.0, 512_000.0),
    stack_kib: limit(0.0, 64_000.0, 128_000.0),
    file_kib: limit(0.0, 1024.0, 4096.0),
    pids: limit(1.0, 60.0, 120.0),
};

/// What a caller is told of a field that is wrong.
pub(super) fn wrong(field: &str, why: impl std::fmt::Display) -> ApiRefusal {
    ApiRefusal::new(StatusCode::UNPROCESSABLE_ENTITY, format!("{field}: {why}")).final_answer()
}

impl LimitRange {
    fn checked(self, field: &str, given: Option<f64>) -> Result<f64, ApiRefusal> {
        let LimitRange { least, usual, most } = self;
        match given.unwrap_or(usual) {
            value if (least..=most).contains(&value) => Ok(value),
            _ => Err(wrong(field, format_args!("it may be {least} to {most}"))),
        }
    }

    /// Whole ones.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "what was checked is not negative and no larger than some hundred thousand"
    )]
    fn whole(self, field: &str, given: Option<f64>) -> Result<u32, ApiRefusal> {
        Ok(self.checked(field, given)?.ceil() as u32)
    }

    fn seconds(self, field: &str, given: Option<f64>) -> Result<Duration, ApiRefusal> {
        Ok(Duration::from_secs_f64(self.checked(field, given)?))
    }
}

/// A submission whose fields are right.
#[derive(Debug)]
pub(super) struct PreparedSubmission {
    pub(super) program: Program,
    /// More CPU time than this is too late, whatever came of it.
    pub(super) cpu: Duration,
    pub(super) submitted: SubmittedProgram,
}

/// Texts come as they are, or in base64.
fn bytes(field: &str, text: Option<&str>, is_base64: bool) -> Result<Option<Vec<u8>>, ApiRefusal> {
    let Some(text) = text else { return Ok(None) };
    if !is_base64 {
        return Ok(Some(text.as_bytes().to_vec()));
    }
    // Some break it into lines.
    let packed: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let decoded = BASE64.decode(&packed);
    Ok(Some(decoded.map_err(|_| wrong(field, "it is no base64"))?))
}

/// Checks a submission in a language; `is_base64` says how its texts come.
///
/// # Errors
/// 422 for a field that is wrong, and what names it.
pub(super) fn prepared(
    new: &NewSubmission,
    language: &OfferedLanguage,
    is_base64: bool,
) -> Result<PreparedSubmission, ApiRefusal> {
    refuse_others(new)?;
    let source = bytes("source_code", new.source_code.as_deref(), is_base64)?;
    let source = source.unwrap_or_default();
    if source.is_empty() && !language.brings_scripts() {
        return Err(wrong("source_code", "there must be some"));
    }
    let stdin = bytes("stdin", new.stdin.as_deref(), is_base64)?;
    if stdin.as_ref().is_some_and(|stdin| stdin.len() > MAX_STDIN) {
        return Err(wrong("stdin", format_args!("it may have {MAX_STDIN} bytes")));
    }
    let archive = bytes("additional_files", new.additional_files.as_deref(), true)?;
    let archive = archive.filter(|archive| !archive.is_empty());
    let mut files = match &archive {
        Some(archive) => archive::files(archive).map_err(|error| wrong("additional_files", error))?,
        None => Vec::new(),
    };
    if language.brings_scripts() {
        let has_run = files.iter().any(|file| file.is_called("run"));
        if !has_run {
            return Err(wrong("additional_files", "there must be a script called `run`"));
        }
    } else {
        let main = ProgramFile::code(language.known.file.to_owned(), source.clone());
        files.push(main.map_err(|error| wrong("source_code", error))?);
    }
    let options = new.compiler_options.clone().unwrap_or_default();
    if !options.is_empty() && language.runtime.language.is_interpreted() {
        return Err(wrong("compiler_options", "nothing of this language is compiled"));
    }
    if options.len() > MAX_WORDS || options.contains('\0') {
        return Err(wrong("compiler_options", format_args!("{MAX_WORDS} bytes without NUL")));
    }
    let cpu = LIMITS.cpu_seconds.seconds("cpu_time_limit", new.cpu_time_limit)?;
    let extra = LIMITS.extra_seconds.seconds("cpu_extra_time", new.cpu_extra_time)?;
    let memory_kib = LIMITS.memory_kib.whole("memory_limit", new.memory_limit)?;
    let program = Program {
        runtime: language.runtime.clone(),
        files,
        stdin: stdin.clone().unwrap_or_default(),
        arguments: arguments(new.command_line_arguments.as_deref().unwrap_or_default())?,
        compile: StageLimits {
            wall: COMPILE_TIMEOUT,
            cpu: None,
        },
        run: StageLimits {
            wall: LIMITS.wall_seconds.seconds("wall_time_limit", new.wall_time_limit)?,
            cpu: Some(cpu + extra),
        },
        memory_bytes: Some(u64::from(memory_kib) * 1024),
        max_output: MAX_OUTPUT,
        extras: ProgramExtras {
            network: new.enable_network.unwrap_or(false),
            pids: Some(
                LIMITS
                    .pids
                    .whole("max_processes_and_or_threads", new.max_processes_and_or_threads)?,
            ),
            stack_kib: Some(LIMITS.stack_kib.whole("stack_limit", new.stack_limit)?.into()),
            file_kib: Some(LIMITS.file_kib.whole("max_file_size", new.max_file_size)?.into()),
            merges_streams: new.redirect_stderr_to_stdout.unwrap_or(false),
            compiler_options: options,
        },
    };
    let of_program = program.files.iter().map(ProgramFile::len).sum::<usize>() + program.stdin.len();
    Ok(PreparedSubmission {
        program,
        cpu,
        submitted: SubmittedProgram {
            of_program,
            source,
            stdin,
            expected: bytes("expected_output", new.expected_output.as_deref(), is_base64)?,
            archive,
            settings: settings(new, language),
        },
    })
}

/// What there is not.
fn refuse_others(new: &NewSubmission) -> Result<(), ApiRefusal> {
    if new.callback_url.as_ref().is_some_and(|url| !url.is_empty()) {
        return Err(wrong(
            "callback_url",
            "nobody is called back: ask for the token, or wait with `wait=true`",
        ));
    }
    if new.number_of_runs.is_some_and(|runs| runs != 1.0) {
        return Err(wrong("number_of_runs", "a program is run once"));
    }
    for (field, given) in [
        (
            "enable_per_process_and_thread_time_limit",
            new.enable_per_process_and_thread_time_limit,
        ),
        (
            "enable_per_process_and_thread_memory_limit",
            new.enable_per_process_and_thread_memory_limit,
        ),
    ] {
        if given == Some(true) {
            return Err(wrong(field, "limits are those of all processes together"));
        }
    }
    Ok(())
}

/// What was said beside texts, as it is told again.
fn settings(new: &NewSubmission, language: &OfferedLanguage) -> Map<String, Value> {
    let limit = |range: LimitRange, given: Option<f64>| given.unwrap_or(range.usual);
    let told = json!({
        "language_id": language.number,
        "language": language.answer(),
        "compiler_options": new.compiler_options,
        "command_line_arguments": new.command_line_arguments,
        "cpu_time_limit": limit(LIMITS.cpu_seconds, new.cpu_time_limit),
        "cpu_extra_time": limit(LIMITS.extra_seconds, new.cpu_extra_time),
        "wall_time_limit": limit(LIMITS.wall_seconds, new.wall_time_limit),
        "memory_limit": limit(LIMITS.memory_kib, new.memory_limit),
        "stack_limit": limit(LIMITS.stack_kib, new.stack_limit),
        "max_file_size": limit(LIMITS.file_kib, new.max_file_size),
        "max_processes_and_or_threads": limit(LIMITS.pids, new.max_processes_and_or_threads),
        "number_of_runs": 1,
        "enable_per_process_and_thread_time_limit": false,
        "enable_per_process_and_thread_memory_limit": false,
        "redirect_stderr_to_stdout": new.redirect_stderr_to_stdout.unwrap_or(false),
        "enable_network": new.enable_network.unwrap_or(false),
        "callback_url": null,
    });
    match told {
        Value::Object(told) => told,
        _ => Map::new(),
    }
}

/// Words as a shell takes them apart: by blanks, with quotes and backslashes, and nothing else of it.
fn arguments(line: &str) -> Result<Vec<String>, ApiRefusal> {
    const FIELD: &str = "command_line_arguments";
    if line.len() > MAX_WORDS || line.contains('\0') {
        return Err(wrong(FIELD, format_args!("{MAX_WORDS} bytes without NUL")));
    }
    let (mut words, mut word): (Vec<String>, Option<String>) = (Vec::new(), None);
    let mut quote = None;
    let mut rest = line.chars();
    while let Some(letter) = rest.next() {
        match (letter, quote) {
            (letter, Some(end)) if letter == end => quote = None,
            ('\'' | '"', None) => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            ('\\', None | Some('"')) => {
                let next = rest
                    .next()
                    .ok_or_else(|| wrong(FIELD, "there is nothing behind a backslash"))?;
                word.get_or_insert_default().push(next);
            }
            (blank, None) if blank.is_whitespace() => words.extend(word.take()),
            (letter, _) => word.get_or_insert_default().push(letter),
        }
    }
    match quote {
        Some(_) => Err(wrong(FIELD, "a quote has no end")),
        None => {
            words.extend(word);
            Ok(words)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_a_shell() {
        for (line, words) in [
            ("", &[][..]),
            ("  a  b ", &["a", "b"]),
            (
                r#"'a b' "c \" d" e\ f g'h'"i" ''"#,
                &["a b", "c \" d", "e f", "ghi", ""],
            ),
            (r"'\n' $x `y` *;", &[r"\n", "$x", "`y`", "*;"]),
        ] {
            assert_eq!(arguments(line).unwrap(), words, "{line}");
        }
        for line in ["'", "a\"", "\\", "a\0", &"a".repeat(MAX_WORDS + 1)] {
            assert!(arguments(line).is_err(), "{line:?}");
        }
    }

    #[test]
    fn limits_are_kept_to() {
        let cpu = LIMITS.cpu_seconds;
        assert_eq!(cpu.seconds("a", None).unwrap(), Duration::from_secs(5));
        assert_eq!(cpu.seconds("a", Some(0.5)).unwrap(), Duration::from_millis(500));
        for given in [-1.0, 15.1, f64::NAN, f64::INFINITY, f64::MAX] {
            assert_eq!(
                cpu.seconds("a", Some(given)).unwrap_err().status.as_u16(),
                422,
                "{given}"
            );
        }
        assert_eq!(LIMITS.pids.whole("a", Some(2.5)).unwrap(), 3);
    }

    #[test]
    fn what_there_is_not_is_refused_by_its_name() {
        for text in [
            r#"{"callback_url":"http://127.0.0.1/"}"#,
            r#"{"number_of_runs":2}"#,
            r#"{"enable_per_process_and_thread_time_limit":true}"#,
            r#"{"enable_per_process_and_thread_memory_limit":true}"#,
        ] {
            let refusal = refuse_others(&serde_json::from_str(text).unwrap()).unwrap_err();
            assert_eq!(refusal.status.as_u16(), 422);
            let field = text.split('"').nth(1).unwrap();
            assert!(refusal.message.starts_with(field), "{}", refusal.message);
        }
        let usual = r#"{"callback_url":"","number_of_runs":1,"enable_per_process_and_thread_time_limit":false}"#;
        refuse_others(&serde_json::from_str(usual).unwrap()).unwrap();
    }
}
