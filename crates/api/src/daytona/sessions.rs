//! Sessions: shells that keep their state between commands.
//!
//! A session is a shell in the sandbox, found by its tag. Each of its commands has a directory in the sandbox, with what was asked
//! for, what it wrote and how it ended: the server keeps nothing, and a server that is started again finds all of it.

use std::time::{SystemTime, UNIX_EPOCH};

use data_encoding::HEXLOWER;
use http::{Response, StatusCode};
use offleash_core::exec::{ExecEnd, OutputStream};
use offleash_supervisor::service::client::{ExecNews, ExecStream};
use offleash_supervisor::service::error::SupervisorError;
use offleash_supervisor::service::message::{Selector, StartExec};
use percent_encoding::percent_decode_str;
use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};

use super::files::contents;
use super::process::write;
use super::toolbox::{ToolCommand, Toolbox};
use super::{done, followed};
use crate::commands::{self, MAX_OUTPUT, OutputBounds, output_text};
use crate::control::ApiRequest;
use crate::http::answer::{self, ApiRefusal};
use crate::http::body::Body;
use crate::http::destination::PathSegments;
use crate::http::json::RequestBody;
use crate::http::path::name;

/// What the tags of shells begin with.
const TAG: &str = "daytona.session.";
/// Where the directories of sessions are.
pub(super) const DIRECTORY: &str = "/tmp/.offleash-sessions";
/// Commands of a session that are listed, the latest.
const MAX_LISTED: usize = 200;
/// Names in the directory of a session that are looked at: what is inside may have made more.
const MAX_PLACES: usize = 20_000;
/// What is read of a command's own text, and how long that may be.
const MAX_COMMAND: usize = 1024 * 1024;
/// What the texts of all commands in one answer may have together: further ones are empty.
const MAX_TEXTS: usize = 1024 * 1024;
/// What is read of how it ended.
const MAX_CODE: usize = 16;
/// What a shell may say beside what it was told to, without being followed any more.
const MAX_LINE: usize = 4096;
/// Input in one request, and how long a command may take to take it.
const MAX_INPUT: usize = 64 * 1024;
const INPUT_MS: u64 = 10_000;

/// Gives its standard input to the command of a directory, once the shell has come to that, if it is one that reads.
const GIVES_INPUT: &str = "cd \"$1\" && [ -e reads ] || exit 1; \
    until [ -p stdin ]; do [ -e code ] && exit 1; sleep 0.02; done; exec cat >stdin";

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NewSession {
    session_id: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SessionCommand {
    command: Option<String>,
    run_async: Option<bool>,
    r#async: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
struct SessionInput {
    data: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct SessionAnswer {
    session_id: String,
    commands: Vec<CommandAnswer>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct CommandAnswer {
    id: String,
    command: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct CommandResult {
    cmd_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    #[serde(flatten)]
    logs: Option<CommandLogs>,
}

/// What a command wrote: standard output, then standard error, is all of it.
#[derive(Debug, Serialize)]
struct CommandLogs {
    output: String,
    stdout: String,
    stderr: String,
}

/// An id that sorts by time.
pub(super) fn new_id() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut bytes = [0; 4];
    // Two of one nanosecond are told apart by this, or not at all.
    let _filled = getrandom(&mut bytes[..], GetRandomFlags::empty());
    format!("{:016x}{}", now.as_nanos(), HEXLOWER.encode(&bytes))
}

pub(crate) async fn create(
    asked: &ApiRequest<'_>,
    given: &str,
    body: RequestBody,
) -> Result<Response<Body>, ApiRefusal> {
    let new: NewSession = body.read().await?;
    let id = checked(&new.session_id.unwrap_or_default())?;
    let toolbox = Toolbox::open(asked, given).await?;
    if ids(&toolbox).await?.contains(&id) {
        let why = format!("session `{id}` is there already");
        return Err(ApiRefusal::new(StatusCode::CONFLICT, why).final_answer());
    }
    // What a session of this name left that has ended.
    let _gone = toolbox.files().await?.remove(directory(&id).as_bytes()).await;
    let exec = StartExec {
        tag: Some(format!("{TAG}{id}")),
        ..toolbox.exec(ToolCommand::default())?
    };
    toolbox.start_shell(exec).await?;
    Ok(done(StatusCode::CREATED))
}

pub(crate) async fn list(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    let toolbox = Toolbox::open(asked, given).await?;
    let mut told = Vec::new();
    let mut left = MAX_TEXTS;
    for id in ids(&toolbox).await? {
        told.push(shown(&toolbox, id, &mut left).await?);
    }
    Ok(answer::json(StatusCode::OK, &told))
}

pub(crate) async fn get(
    asked: &ApiRequest<'_>,
    [given, session, _]: PathSegments<'_>,
) -> Result<Response<Body>, ApiRefusal> {
    let toolbox = Toolbox::open(asked, given).await?;
    let id = there(&toolbox, session).await?;
    Ok(answer::json(
        StatusCode::OK,
        &shown(&toolbox, id, &mut { MAX_TEXTS }).await?,
    ))
}

/// Ends its shell and whatever that started.
pub(crate) async fn delete(
    asked: &ApiRequest<'_>,
    [given, session, _]: PathSegments<'_>,
) -> Result<Response<Body>, ApiRefusal> {
    let toolbox = Toolbox::open(asked, given).await?;
    let id = there(&toolbox, session).await?;
    toolbox.end(&selector(&id)).await?;
    // It may never have had a command.
    let _gone = toolbox.files().await?.remove(directory(&id).as_bytes()).await;
    Ok(done(StatusCode::NO_CONTENT))
}

/// Has its shell run a command; waits for the end of that, unless it is asked not to.
pub(crate) async fn execute(
    asked: &ApiRequest<'_>,
    [given, session, _]: PathSegments<'_>,
    body: RequestBody,
) -> Result<Response<Body>, ApiRefusal> {
    let new: SessionCommand = body.read().await?;
    let goes_on = new.run_async.or(new.r#async).unwrap_or(false);
    let line = new.command.filter(|line| !line.trim().is_empty());
    let line = line.ok_or_else(|| ApiRefusal::bad_request("command: there must be one"))?;
    if line.contains('\0') || line.len() > MAX_COMMAND {
        let why = format!("command: no NUL may be in it, nor more than {MAX_COMMAND} bytes");
        return Err(ApiRefusal::bad_request(why));
    }
    let toolbox = Toolbox::open(asked, given).await?;
    let id = there(&toolbox, session).await?;
    let refused = |error| toolbox.refused(&error);
    // The shell is told it as input: who has to know of commands before is told here.
    let start = StartExec {
        argv: ["/bin/sh", "-c", &line].map(|word| word.as_bytes().to_vec()).into(),
        ..StartExec::default()
    };
    toolbox.supervisor.announce(&start).await.map_err(refused)?;
    let command = new_id();
    let place = format!("{}/{command}", directory(&id));
    write(&toolbox, &format!("{place}/command"), format!("{line}\n").as_bytes()).await?;
    if goes_on {
        write(&toolbox, &format!("{place}/reads"), b"").await?;
    }
    // Before the shell is told anything, so that nothing that it says is missed.
    let mut said = match goes_on {
        true => None,
        false => Some(toolbox.supervisor.attach(&selector(&id)).await.map_err(refused)?),
    };
    let told = told_to_shell(&place, &command, goes_on);
    let given = toolbox.supervisor.input(&selector(&id), told.into_bytes()).await;
    given.map_err(refused)?;
    let Some(said) = &mut said else {
        let begun = CommandResult {
            cmd_id: command,
            ..CommandResult::default()
        };
        return Ok(answer::json(StatusCode::ACCEPTED, &begun));
    };
    let ended = until_said(said, &command).await.map_err(refused)?;
    let result = CommandResult {
        exit_code: code(&toolbox, &place).await.or(ended),
        logs: Some(logs(&toolbox, &place).await?),
        cmd_id: command,
    };
    Ok(answer::json(StatusCode::OK, &result))
}

pub(crate) async fn command(asked: &ApiRequest<'_>, segments: PathSegments<'_>) -> Result<Response<Body>, ApiRefusal> {
    let (toolbox, place) = found(asked, segments).await?;
    let told = CommandAnswer {
        id: name(place.as_bytes()),
        command: text_of_command(&toolbox, &place, MAX_COMMAND + 1).await?,
        exit_code: code(&toolbox, &place).await,
    };
    Ok(answer::json(StatusCode::OK, &told))
}

/// What a command wrote so far; what it writes from its beginning to its end, over a WebSocket, if that is to be followed.
pub(crate) async fn command_logs(
    asked: &ApiRequest<'_>,
    segments: PathSegments<'_>,
) -> Result<Response<Body>, ApiRefusal> {
    let (toolbox, place) = found(asked, segments).await?;
    if toolbox.given("follow").is_some_and(|word| word == "true") {
        let id = there(&toolbox, segments[1]).await?;
        return followed::follow(asked, &toolbox, &selector(&id), place).await;
    }
    Ok(answer::json(StatusCode::OK, &logs(&toolbox, &place).await?))
}

/// Gives a command something to read.
pub(crate) async fn input(
    asked: &ApiRequest<'_>,
    segments: PathSegments<'_>,
    body: RequestBody,
) -> Result<Response<Body>, ApiRefusal> {
    let SessionInput { data } = body.read().await?;
    let data = data.unwrap_or_default().into_bytes();
    if data.len() > MAX_INPUT {
        return Err(ApiRefusal::bad_request(format!("data: it may have {MAX_INPUT} bytes")));
    }
    let (toolbox, place) = found(asked, segments).await?;
    let ended = || ApiRefusal::new(StatusCode::CONFLICT, "the command has ended, or reads nothing").final_answer();
    if code(&toolbox, &place).await.is_some() {
        return Err(ended());
    }
    let words = ["/bin/sh", "-c", GIVES_INPUT, "sh", &place];
    let command = ToolCommand {
        argv: words.map(str::to_owned).into(),
        timeout_ms: Some(INPUT_MS),
        ..ToolCommand::default()
    };
    let exec = StartExec {
        stdin: true,
        ..toolbox.exec(command)?
    };
    let written = commands::executed(&toolbox.supervisor, exec, Some(data), OutputBounds::default()).await;
    match written.map_err(|error| toolbox.refused(&error))?.exit_code {
        Some(0) => Ok(done(StatusCode::NO_CONTENT)),
        _ => Err(ended()),
    }
}

/// The lines by which a shell runs a command where it is: what the command does to it stays. A command that goes on can be given
/// input; one that is waited for reads nothing.
fn told_to_shell(place: &str, command: &str, goes_on: bool) -> String {
    let (made, input) = match goes_on {
        true => (format!("mkfifo '{place}/stdin'; "), format!("<>'{place}/stdin'")),
        false => (String::new(), "</dev/null".to_owned()),
    };
    format!(
        "{made}. '{place}/command' >'{place}/stdout' 2>'{place}/stderr' {input}; printf '%s' \"$?\" >'{place}/code'; \
         printf '\\n%s\\n' '{command}'\n"
    )
}

/// Waits until a shell says that a command has ended, or has ended itself, of which the code is answered.
async fn until_said(said: &mut ExecStream, command: &str) -> Result<Option<i32>, SupervisorError> {
    let mut tail = String::new();
    loop {
        match said.next().await?.ok_or(SupervisorError::Gone)? {
            ExecNews::Output {
                stream: OutputStream::Stdout,
                bytes,
            } => tail.push_str(&String::from_utf8_lossy(&bytes)),
            ExecNews::Output { .. } | ExecNews::TimedOut => {}
            ExecNews::Ended(ExecEnd::Exited { code }) => return Ok(Some(i32::from(code))),
            ExecNews::Ended(_) => return Ok(None),
        }
        if tail.lines().any(|line| line == command) && tail.ends_with('\n') {
            return Ok(None);
        }
        if tail.len() > MAX_LINE {
            let last = tail.rfind('\n').map_or(tail.len(), |end| end + 1);
            tail.drain(..last);
        }
    }
}

/// The name of a session: it is part of a path and of a tag.
pub(super) fn checked(id: &str) -> Result<String, ApiRefusal> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let is_name = (1..=64).contains(&id.len()) && id.bytes().all(plain) && !id.starts_with(['.', '-']);
    match is_name && id != "entrypoint" {
        true => Ok(id.to_owned()),
        false => Err(ApiRefusal::bad_request(
            "id: expected 1 to 64 characters of A-Z, a-z, 0-9, `.`, `_` and `-`, the first a letter, digit or `_`",
        )),
    }
}

fn directory(id: &str) -> String {
    format!("{DIRECTORY}/{id}")
}

fn selector(id: &str) -> Selector {
    Selector::Tag(format!("{TAG}{id}"))
}

/// The sessions whose shell runs.
async fn ids(toolbox: &Toolbox<'_>) -> Result<Vec<String>, ApiRefusal> {
    let running = toolbox.supervisor.processes().await;
    let running = running.map_err(|error| toolbox.refused(&error))?;
    let tags = running.into_iter().filter_map(|process| process.tag);
    Ok(tags
        .filter_map(|tag| tag.strip_prefix(TAG).map(str::to_owned))
        .collect())
}

/// The session in a path, whose shell runs.
async fn there(toolbox: &Toolbox<'_>, session: &str) -> Result<String, ApiRefusal> {
    let given = percent_decode_str(session).decode_utf8_lossy();
    let missing = || ApiRefusal::not_found(format!("there is no session `{}`", given.escape_debug())).final_answer();
    let id = checked(&given).map_err(|_| missing())?;
    match ids(toolbox).await?.contains(&id) {
        true => Ok(id),
        false => Err(missing()),
    }
}

/// Whether a name is that of a command's directory.
fn is_command(name: &str) -> bool {
    (1..=64).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The sandbox, and the directory of the command in a path.
async fn found<'a>(
    asked: &'a ApiRequest<'a>,
    [given, session, command]: PathSegments<'_>,
) -> Result<(Toolbox<'a>, String), ApiRefusal> {
    let toolbox = Toolbox::open(asked, given).await?;
    let id = there(&toolbox, session).await?;
    let place = format!("{}/{command}", directory(&id));
    let exists = is_command(command) && toolbox.files().await?.stat(place.as_bytes()).await.is_ok();
    match exists {
        true => Ok((toolbox, place)),
        false => Err(ApiRefusal::not_found("the session has no such command").final_answer()),
    }
}

/// A session with its commands, whose texts take of what is `left` for one answer.
async fn shown(toolbox: &Toolbox<'_>, id: String, left: &mut usize) -> Result<SessionAnswer, ApiRefusal> {
    let mut places = Vec::new();
    let mut files = toolbox.files().await?;
    // One without a command has no directory.
    if let Ok(mut listing) = files.list(directory(&id).as_bytes(), 1).await {
        while let Ok(Some(piece)) = listing.next().await {
            let names = piece.iter().map(|entry| name(&entry.path));
            places.extend(names.filter(|name| is_command(name)));
            if places.len() > MAX_PLACES {
                break;
            }
        }
    }
    places.sort_unstable();
    let mut commands = Vec::new();
    for command in places.split_off(places.len().saturating_sub(MAX_LISTED)) {
        let place = format!("{}/{command}", directory(&id));
        let text = text_of_command(toolbox, &place, *left).await.unwrap_or_default();
        *left = left.saturating_sub(text.len());
        commands.push(CommandAnswer {
            command: text,
            exit_code: code(toolbox, &place).await,
            id: command,
        });
    }
    Ok(SessionAnswer {
        session_id: id,
        commands,
    })
}

/// A command, if it has at most so many bytes.
async fn text_of_command(toolbox: &Toolbox<'_>, place: &str, most: usize) -> Result<String, ApiRefusal> {
    let most = most.min(MAX_COMMAND + 1);
    let command = contents(toolbox, format!("{place}/command").as_bytes(), most).await?;
    Ok(output_text(command).trim_end_matches('\n').to_owned())
}

/// How a command ended; `None` while it goes on.
async fn code(toolbox: &Toolbox<'_>, place: &str) -> Option<i32> {
    let code = contents(toolbox, format!("{place}/code").as_bytes(), MAX_CODE)
        .await
        .ok()?;
    std::str::from_utf8(&code).ok()?.trim().parse().ok()
}

async fn logs(toolbox: &Toolbox<'_>, place: &str) -> Result<CommandLogs, ApiRefusal> {
    let stdout = beginning(toolbox, &format!("{place}/stdout")).await?;
    let stderr = beginning(toolbox, &format!("{place}/stderr")).await?;
    Ok(CommandLogs {
        output: format!("{stdout}{stderr}"),
        stdout,
        stderr,
    })
}

/// What a stream begins with; nothing of one that is not there yet.
async fn beginning(toolbox: &Toolbox<'_>, path: &str) -> Result<String, ApiRefusal> {
    let mut files = toolbox.files().await?;
    let refused = |error| toolbox.refused(&error);
    let length = u64::try_from(MAX_OUTPUT).ok();
    let mut reader = match files.read(path.as_bytes(), 0, length).await {
        Ok(reader) => reader,
        Err(SupervisorError::File { .. }) => return Ok(String::new()),
        Err(error) => return Err(refused(error)),
    };
    let mut whole = Vec::new();
    while let Some(piece) = reader.next().await.map_err(refused)? {
        let left = MAX_OUTPUT - whole.len();
        whole.extend_from_slice(&piece[..piece.len().min(left)]);
    }
    Ok(output_text(whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_sessions_lead_nowhere_else() {
        for good in ["a", "my-session", "0b1c.2_3"] {
            assert!(checked(good).is_ok(), "{good}");
        }
        let long = "a".repeat(65);
        for bad in [
            "",
            ".",
            "..",
            "../a",
            "a/b",
            "a'b",
            "a b",
            "a\0",
            "-a",
            "entrypoint",
            &long,
        ] {
            assert!(checked(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn ids_sort_by_time_and_quote_nothing() {
        let (one, two) = (new_id(), new_id());
        assert!(one < two && one.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let told = told_to_shell("/tmp/x/1", "1", true);
        assert!(told.ends_with("'1'\n") && told.contains("<>'/tmp/x/1/stdin'"), "{told}");
    }
}
