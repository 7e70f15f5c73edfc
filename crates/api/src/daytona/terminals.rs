//! Terminals: shells in a sandbox that are typed into over a WebSocket.
//!
//! A terminal is a command of the sandbox, found by its tag, which says when it was made and how large. Nothing else is kept but what
//! size it was given since, in a file beside; who goes away leaves it running.

use std::collections::BTreeMap;
use std::future::{Future, pending};
use std::pin::Pin;
use std::time::{SystemTime, UNIX_EPOCH};

use data_encoding::BASE64URL_NOPAD;
use http::{Response, StatusCode};
use offleash_core::exec::ExecEnd;
use offleash_supervisor::service::client::{ExecNews, ExecStream, SupervisorClient};
use offleash_supervisor::service::message::{ProcessInfo, Selector, StartExec};
use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize};

use super::done;
use super::files::contents;
use super::process::write;
use super::sessions::{DIRECTORY, checked};
use super::socket::{self, ENVS, EXIT_CONTROL, NORMAL, WENT_WRONG};
use super::toolbox::{SIGKILL, ToolCommand, Toolbox};
use crate::control::ApiRequest;
use crate::http::answer::{self, ApiRefusal};
use crate::http::body::Body;
use crate::http::destination::PathSegments;
use crate::http::json::RequestBody;
use crate::http::time;
use crate::http::websocket::{SocketGone, SocketMessage, WebSocket, WebSocketRequest};

/// What the tags of terminals begin with; when they were made, their size and their name follow.
const TAG: &str = "daytona.pty.";
/// Where the sizes are that terminals were given, below the directories of sessions; no session is called so.
const SIZES: &str = ".terminals";
/// What is read of one.
const MAX_SIZE: usize = 32;
/// What a terminal has if nothing is said.
const USUAL_SIZE: TerminalSize = TerminalSize { cols: 80, rows: 24 };
/// The most of either.
const MAX_SIDE: u16 = 1000;
/// What may be typed at once.
const MAX_TYPED: usize = 1024 * 1024;
/// What is typed is for a terminal of this kind.
const TERM: &str = "xterm-256color";

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NewTerminal {
    id: Option<String>,
    cwd: Option<String>,
    envs: Option<BTreeMap<String, String>>,
    cols: Option<u16>,
    rows: Option<u16>,
    lazy_start: Option<bool>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
struct TerminalSize {
    cols: u16,
    rows: u16,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct MadeTerminal {
    session_id: String,
}

#[derive(Debug, Serialize)]
struct TerminalList {
    sessions: Vec<TerminalAnswer>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct TerminalAnswer {
    id: String,
    cwd: String,
    envs: BTreeMap<String, String>,
    cols: u16,
    rows: u16,
    created_at: String,
    active: bool,
    lazy_start: bool,
}

/// What is said of a terminal beside what it shows.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Control {
    r#type: &'static str,
    status: &'static str,
    #[serde(flatten)]
    end: Option<TerminalEnd>,
}

/// How a terminal ended.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct TerminalEnd {
    exit_code: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_reason: Option<String>,
}

/// A terminal that runs.
#[derive(Debug)]
struct Terminal {
    id: String,
    created_ms: u64,
    size: TerminalSize,
    process: ProcessInfo,
}

impl TerminalSize {
    fn checked(self) -> Result<Self, ApiRefusal> {
        let fits = |side: u16| (1..=MAX_SIDE).contains(&side);
        match fits(self.cols) && fits(self.rows) {
            true => Ok(self),
            false => Err(ApiRefusal::bad_request(format!(
                "cols, rows: each may be 1 to {MAX_SIDE}"
            ))),
        }
    }

    /// As in `80x24`.
    fn parse(text: &str) -> Option<Self> {
        let (cols, rows) = text.split_once('x')?;
        let size = Self {
            cols: cols.parse().ok()?,
            rows: rows.parse().ok()?,
        };
        size.checked().ok()
    }
}

impl std::fmt::Display for TerminalSize {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}x{}", self.cols, self.rows)
    }
}

impl Terminal {
    /// The tag of a new one.
    fn tag(id: &str, size: TerminalSize) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        format!("{TAG}{}.{size}.{id}", now.as_millis())
    }

    /// A process, if it is one of a terminal.
    fn of(process: ProcessInfo) -> Option<Self> {
        let mut parts = process.tag.as_deref()?.strip_prefix(TAG)?.splitn(3, '.');
        let created_ms = parts.next()?.parse().ok()?;
        let size = TerminalSize::parse(parts.next()?)?;
        let id = checked(parts.next()?).ok()?;
        Some(Self {
            id,
            created_ms,
            size,
            process,
        })
    }

    fn selector(&self) -> Selector {
        Selector::Pid(self.process.pid)
    }

    fn size_file(id: &str) -> String {
        format!("{DIRECTORY}/{SIZES}/{id}")
    }

    async fn answer(self, toolbox: &Toolbox<'_>) -> TerminalAnswer {
        let changed = contents(toolbox, Self::size_file(&self.id).as_bytes(), MAX_SIZE).await;
        // Code in the sandbox may have written it.
        let changed = changed
            .ok()
            .and_then(|text| TerminalSize::parse(&String::from_utf8_lossy(&text)));
        let size = changed.unwrap_or(self.size);
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let envs = self.process.env.into_iter();
        TerminalAnswer {
            id: self.id,
            cwd: text(self.process.cwd),
            envs: envs.map(|(name, value)| (text(name), text(value))).collect(),
            cols: size.cols,
            rows: size.rows,
            created_at: time::text(time::of_unix_ms(self.created_ms)),
            active: true,
            lazy_start: false,
        }
    }
}

/// The terminals that run.
async fn all(toolbox: &Toolbox<'_>) -> Result<Vec<Terminal>, ApiRefusal> {
    let running = toolbox.supervisor.processes().await;
    let running = running.map_err(|error| toolbox.refused(&error))?;
    Ok(running.into_iter().filter_map(Terminal::of).collect())
}

/// The sandbox, and the terminal in a path.
async fn found<'a>(
    asked: &'a ApiRequest<'a>,
    [given, terminal, _]: PathSegments<'_>,
) -> Result<(Toolbox<'a>, Terminal), ApiRefusal> {
    let toolbox = Toolbox::open(asked, given).await?;
    let id = percent_decode_str(terminal).decode_utf8_lossy();
    let found = all(&toolbox).await?.into_iter().find(|one| one.id == id);
    let missing = || ApiRefusal::not_found(format!("there is no terminal `{}`", id.escape_debug())).final_answer();
    Ok((toolbox, found.ok_or_else(missing)?))
}

/// Starts a terminal; answers what it shows.
async fn started(toolbox: &Toolbox<'_>, new: NewTerminal) -> Result<(String, ExecStream), ApiRefusal> {
    if new.lazy_start == Some(true) {
        return Err(ApiRefusal::unsupported(
            "terminals that wait for their first client are",
        ));
    }
    let id = checked(&new.id.unwrap_or_default())?;
    let size = TerminalSize {
        cols: new.cols.filter(|cols| *cols > 0).unwrap_or(USUAL_SIZE.cols),
        rows: new.rows.filter(|rows| *rows > 0).unwrap_or(USUAL_SIZE.rows),
    };
    let size = size.checked()?;
    if all(toolbox).await?.iter().any(|one| one.id == id) {
        let why = format!("terminal `{id}` is there already");
        return Err(ApiRefusal::new(StatusCode::CONFLICT, why).final_answer());
    }
    // Of one of this name that has ended.
    let _gone = toolbox.files().await?.remove(Terminal::size_file(&id).as_bytes()).await;
    let mut env = new.envs.unwrap_or_default();
    env.entry("TERM".to_owned()).or_insert_with(|| TERM.to_owned());
    let command = ToolCommand {
        env,
        cwd: new.cwd,
        ..ToolCommand::default()
    };
    let exec = StartExec {
        tty: Some((size.rows, size.cols)),
        tag: Some(Terminal::tag(&id, size)),
        ..toolbox.exec(command)?
    };
    Ok((id, toolbox.start_shell(exec).await?))
}

pub(crate) async fn create(
    asked: &ApiRequest<'_>,
    given: &str,
    body: RequestBody,
) -> Result<Response<Body>, ApiRefusal> {
    let new: NewTerminal = body.read().await?;
    let toolbox = Toolbox::open(asked, given).await?;
    let (session_id, _) = started(&toolbox, new).await?;
    Ok(answer::json(StatusCode::CREATED, &MadeTerminal { session_id }))
}

/// Makes one and speaks for it at once: nothing of what it shows is missed.
pub(crate) async fn create_connected(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    let toolbox = Toolbox::open(asked, given).await?;
    let request = socket::asked_for(asked)?;
    let number = |name: &str| match toolbox.given(name).map(|text| text.parse::<u16>()) {
        None => Ok(None),
        Some(Ok(number)) => Ok(Some(number)),
        Some(Err(_)) => Err(ApiRefusal::bad_request(format!("{name}: it must be a number"))),
    };
    let new = NewTerminal {
        id: toolbox.given("id"),
        cwd: toolbox.given("cwd").filter(|cwd| !cwd.is_empty()),
        envs: envs(request.offered())?,
        cols: number("cols")?,
        rows: number("rows")?,
        lazy_start: None,
    };
    let (_, stream) = started(&toolbox, new).await?;
    Ok(spoken(request, toolbox.supervisor, stream))
}

/// The variables that a client offers behind a word.
fn envs(offered: &[String]) -> Result<Option<BTreeMap<String, String>>, ApiRefusal> {
    let Some(encoded) = offered.iter().find_map(|word| word.strip_prefix(ENVS)) else {
        return Ok(None);
    };
    let wrong = || ApiRefusal::bad_request("the variables of the terminal are not what they must be");
    let text = BASE64URL_NOPAD.decode(encoded.as_bytes()).map_err(|_| wrong())?;
    serde_json::from_slice(&text).map(Some).map_err(|_| wrong())
}

pub(crate) async fn list(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    let toolbox = Toolbox::open(asked, given).await?;
    let mut sessions = Vec::new();
    for terminal in all(&toolbox).await? {
        sessions.push(terminal.answer(&toolbox).await);
    }
    Ok(answer::json(StatusCode::OK, &TerminalList { sessions }))
}

pub(crate) async fn get(asked: &ApiRequest<'_>, segments: PathSegments<'_>) -> Result<Response<Body>, ApiRefusal> {
    let (toolbox, terminal) = found(asked, segments).await?;
    Ok(answer::json(StatusCode::OK, &terminal.answer(&toolbox).await))
}

pub(crate) async fn delete(asked: &ApiRequest<'_>, segments: PathSegments<'_>) -> Result<Response<Body>, ApiRefusal> {
    let (toolbox, terminal) = found(asked, segments).await?;
    toolbox.end(&terminal.selector()).await?;
    Ok(done(StatusCode::NO_CONTENT))
}

pub(crate) async fn resize(
    asked: &ApiRequest<'_>,
    segments: PathSegments<'_>,
    body: RequestBody,
) -> Result<Response<Body>, ApiRefusal> {
    let size = body.read::<TerminalSize>().await?.checked()?;
    let (toolbox, terminal) = found(asked, segments).await?;
    let resized = toolbox
        .supervisor
        .resize(&terminal.selector(), size.rows, size.cols)
        .await;
    resized.map_err(|error| toolbox.refused(&error))?;
    write(
        &toolbox,
        &Terminal::size_file(&terminal.id),
        size.to_string().as_bytes(),
    )
    .await?;
    Ok(answer::json(StatusCode::OK, &terminal.answer(&toolbox).await))
}

/// Speaks for one that runs, from now on.
pub(crate) async fn connect(asked: &ApiRequest<'_>, segments: PathSegments<'_>) -> Result<Response<Body>, ApiRefusal> {
    let (toolbox, terminal) = found(asked, segments).await?;
    let request = socket::asked_for(asked)?;
    let stream = toolbox.supervisor.attach(&terminal.selector()).await;
    let stream = stream.map_err(|error| toolbox.refused(&error))?;
    Ok(spoken(request, toolbox.supervisor, stream))
}

/// Has a client speak with a terminal.
fn spoken(request: WebSocketRequest, supervisor: SupervisorClient, stream: ExecStream) -> Response<Body> {
    let reads_control = request.offered().iter().any(|word| word == EXIT_CONTROL);
    request.answer(MAX_TYPED, move |mut socket| async move {
        let Ok(end) = talk(&mut socket, &supervisor, stream).await else {
            return;
        };
        let Some(end) = end else {
            return socket.close(WENT_WRONG, "the terminal is gone").await;
        };
        let reason = serde_json::to_string(&end).unwrap_or_default();
        let told = match reads_control {
            true => control(&mut socket, "exited", Some(end)).await,
            false => Ok(()),
        };
        if told.is_ok() {
            socket.close(NORMAL, &reason).await;
        }
    })
}

async fn control(socket: &mut WebSocket, status: &'static str, end: Option<TerminalEnd>) -> Result<(), SocketGone> {
    let r#type = "control";
    let message = Control { r#type, status, end };
    socket.text(serde_json::to_string(&message).unwrap_or_default()).await
}

/// What is typed, on its way.
type Typing = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Carries what is typed and what is shown; answers how the terminal ended, where that is known.
async fn talk(
    socket: &mut WebSocket,
    supervisor: &SupervisorClient,
    mut stream: ExecStream,
) -> Result<Option<TerminalEnd>, SocketGone> {
    control(socket, "connected", None).await?;
    let mut typing: Option<Typing> = None;
    loop {
        let hears = typing.is_none();
        let typed = async {
            match &mut typing {
                Some(typing) => typing.await,
                None => pending().await,
            }
        };
        tokio::select! {
            news = stream.next() => match news {
                Ok(Some(ExecNews::Output { bytes, .. })) => socket.binary(bytes).await?,
                Ok(Some(ExecNews::TimedOut)) => {}
                Ok(Some(ExecNews::Ended(end))) => return Ok(ended(&end)),
                Ok(None) | Err(_) => return Ok(None),
            },
            () = typed => typing = None,
            // No more is heard before the terminal has what came.
            message = socket.next(), if hears => {
                let bytes = match message.ok_or(SocketGone)? {
                    SocketMessage::Text(text) => text.into_bytes(),
                    SocketMessage::Binary(bytes) => bytes.to_vec(),
                };
                let (supervisor, which) = (supervisor.clone(), Selector::Pid(stream.pid()));
                typing = Some(Box::pin(async move {
                    // One that has ended reads nothing; its end comes.
                    let _given = supervisor.input(&which, bytes).await;
                }));
            }
        }
    }
}

fn ended(end: &ExecEnd) -> Option<TerminalEnd> {
    let by_signal = |signal: i32| TerminalEnd {
        exit_code: 128 + signal,
        exit_reason: Some(format!("signal {signal} ended it")),
    };
    match end {
        ExecEnd::Exited { code } => Some(TerminalEnd {
            exit_code: i32::from(*code),
            exit_reason: None,
        }),
        ExecEnd::Signaled { signal } => Some(by_signal(*signal)),
        ExecEnd::OutOfMemory { .. } => Some(by_signal(SIGKILL)),
        ExecEnd::NotStarted(_) | ExecEnd::Lost => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(tag: &str) -> ProcessInfo {
        ProcessInfo {
            pid: 7,
            tag: Some(tag.to_owned()),
            argv: Vec::new(),
            env: Vec::new(),
            cwd: b"/".to_vec(),
            user: "user".to_owned(),
            tty: true,
        }
    }

    #[test]
    fn a_tag_says_what_a_terminal_is() {
        let tag = Terminal::tag("my.pty-1", TerminalSize { cols: 120, rows: 30 });
        let found = Terminal::of(process(&tag)).unwrap();
        assert_eq!(
            (found.id.as_str(), found.size),
            ("my.pty-1", TerminalSize { cols: 120, rows: 30 })
        );
        assert!(found.created_ms > 1_700_000_000_000);
        for other in [
            "daytona.session.a",
            "daytona.pty.",
            "daytona.pty.1.80x24",
            "daytona.pty.1.80x24.../x",
            "daytona.pty.1.0x24.a",
        ] {
            assert!(Terminal::of(process(other)).is_none(), "{other}");
        }
    }

    #[test]
    fn variables_come_encoded_or_not_at_all() {
        let envs = |word: &str| envs(&[word.to_owned()]);
        assert_eq!(envs("a").unwrap(), None);
        let word = format!("{ENVS}{}", BASE64URL_NOPAD.encode(br#"{"A":"b"}"#));
        assert_eq!(
            envs(&word).unwrap(),
            Some(BTreeMap::from([("A".to_owned(), "b".to_owned())]))
        );
        for bad in ["X-Daytona-Pty-Envs~", "X-Daytona-Pty-Envs~?", "X-Daytona-Pty-Envs~W10"] {
            assert!(envs(bad).is_err(), "{bad}");
        }
    }
}
