//! How the screen of a desktop is started, and when it can be looked at.

use std::pin::pin;
use std::time::Duration;

use offleash_core::exec::{ExecEnd, OutputStream};
use offleash_desktop::{DesktopCommand, DesktopError, RFB_PORT, STREAM_PORT, ScreenObserver, TAG};
use offleash_supervisor::service::client::{ExecNews, ExecStream, SupervisorClient};
use offleash_supervisor::service::message::StartExec;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::DesktopService;
use super::view::DesktopSpec;
use crate::error::DaemonError;
use crate::sandboxes::SandboxEntry;
use crate::session_error::SessionError;

/// How long a desktop may take until its screen can be looked at.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// How often that is tried.
const ASK_AGAIN: Duration = Duration::from_millis(50);
/// How much of what its programs say is looked at when it fails, bytes.
const MAX_SAID: usize = 16 * 1024;
/// What the script ends with that finds no such program.
const NO_PROGRAM: u8 = 127;

/// What an X server ended with, in words.
pub(super) fn end_in_words(end: &ExecEnd) -> String {
    match end {
        ExecEnd::Exited { code } => format!("its X server ended with exit code {code}"),
        ExecEnd::Signaled { signal } => format!("its X server was ended by signal {signal}"),
        ExecEnd::OutOfMemory { limit } => {
            format!(
                "its X server was ended because the sandbox has {} MiB of memory",
                limit >> 20
            )
        }
        ExecEnd::NotStarted(_) => "its X server could not be started".to_owned(),
        ExecEnd::Lost => "its sandbox ended".to_owned(),
    }
}

/// Begins to look at the screen of a sandbox.
pub(super) async fn observer(supervisor: &SupervisorClient) -> Result<ScreenObserver<TcpStream>, DesktopError> {
    let stream = supervisor.port(RFB_PORT).await.map_err(std::io::Error::other)?;
    ScreenObserver::open(stream).await
}

impl DesktopService {
    /// Starts the screen of a desktop that was just made.
    ///
    /// # Errors
    /// `NoDesktop` where a program is missing, `DesktopFailed`.
    pub(super) async fn start(&self, entry: &SandboxEntry, spec: DesktopSpec) -> Result<(), DaemonError> {
        let supervisor = self.core.host.supervisor(entry.id());
        let command = DesktopCommand::new(spec.options);
        let of_sandbox = entry.specification().env.clone();
        let pair = |(name, value): (String, String)| (name.into_bytes(), value.into_bytes());
        let exec = StartExec {
            argv: command.argv.into_iter().map(String::into_bytes).collect(),
            env: of_sandbox.into_iter().chain(command.env).map(pair).collect(),
            tag: Some(TAG.to_owned()),
            ..StartExec::default()
        };
        let started = supervisor.start(exec).await;
        let mut stream = started.map_err(|error| failed(&error.to_string(), &[]))?;
        let mut said = Vec::new();
        match timeout(START_TIMEOUT, ready(&supervisor, &mut stream, &mut said)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(Some(ExecEnd::Exited { code: NO_PROGRAM }))) => Err(SessionError::NoDesktop {
                template: entry.template(),
                why: last_line(&said),
            }
            .into()),
            Ok(Err(Some(end))) => Err(failed(&end_in_words(&end), &said)),
            Ok(Err(None)) => Err(failed("its sandbox ended", &said)),
            Err(_) => Err(failed("its screen cannot be looked at", &said)),
        }
    }
}

/// Waits until the screen can be looked at, directly and over WebSocket; says how the X server ended if it cannot, `None`
/// where its sandbox ended.
async fn ready(
    supervisor: &SupervisorClient,
    stream: &mut ExecStream,
    said: &mut Vec<u8>,
) -> Result<(), Option<ExecEnd>> {
    let mut answers = pin!(async {
        while supervisor.port(STREAM_PORT).await.is_err() || observer(supervisor).await.is_err() {
            sleep(ASK_AGAIN).await;
        }
    });
    loop {
        tokio::select! {
            () = &mut answers => return Ok(()),
            news = stream.next() => match news {
                Ok(Some(ExecNews::Output { stream: OutputStream::Stdout | OutputStream::Stderr, bytes })) => {
                    said.extend_from_slice(&bytes);
                    said.drain(..said.len().saturating_sub(MAX_SAID));
                }
                Ok(Some(ExecNews::TimedOut)) => {}
                Ok(Some(ExecNews::Ended(end))) => return Err(Some(end)),
                Ok(None) | Err(_) => return Err(None),
            },
        }
    }
}

/// The last line of what programs of a sandbox said, which its owner may see.
fn last_line(said: &[u8]) -> String {
    let text = String::from_utf8_lossy(said);
    let last = text.lines().rfind(|line| !line.trim().is_empty());
    let last: String = last.unwrap_or("it said nothing").chars().take(300).collect();
    last.escape_debug().to_string()
}

fn failed(why: &str, said: &[u8]) -> DaemonError {
    SessionError::DesktopFailed {
        why: format!("{why}: {}", last_line(said)),
    }
    .into()
}
