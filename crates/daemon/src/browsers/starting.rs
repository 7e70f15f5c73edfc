//! Starting a browser in the sandbox of a session, and waiting until it answers.

use std::pin::pin;
use std::time::Duration;

use offleash_browser::{
    BrowserCommand, CdpConnection, ContextRecord, DOWNLOADS, EndpointPath, OwnSandbox, PORT, TAG, browser_path,
    lacks_namespaces,
};
use offleash_core::exec::{ExecEnd, OutputStream};
use offleash_core::log_level::LogLevel;
use offleash_supervisor::service::client::{ExecNews, ExecStream, SupervisorClient};
use offleash_supervisor::service::message::StartExec;
use serde_json::json;
use tokio::time::{sleep, timeout};

use super::view::SessionSpec;
use super::{BrowserService, BrowserSessionView, browser_failed, locked};
use crate::error::DaemonError;
use crate::sandboxes::SandboxEntry;
use crate::session_error::SessionError;

/// How long a browser may take until it answers.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// How often it is asked.
const ASK_AGAIN: Duration = Duration::from_millis(20);
/// How much of what a browser says is looked at when it fails, bytes.
const MAX_SAID: usize = 16 * 1024;
/// What a shell ends with that finds no such program.
const NO_PROGRAM: u8 = 127;

/// The end of what a browser says.
#[derive(Debug, Default)]
pub(super) struct BrowserSaid(Vec<u8>);

impl BrowserSaid {
    pub(super) fn take(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
        let surplus = self.0.len().saturating_sub(MAX_SAID);
        self.0.drain(..surplus);
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0).into_owned()
    }
}

/// What a browser ended with, in words.
pub(super) fn end_in_words(end: &ExecEnd) -> String {
    match end {
        ExecEnd::Exited { code } => format!("its browser ended with exit code {code}"),
        ExecEnd::Signaled { signal } => format!("its browser was ended by signal {signal}"),
        ExecEnd::OutOfMemory { limit } => {
            format!(
                "its browser was ended because the sandbox has {} MiB of memory",
                limit >> 20
            )
        }
        ExecEnd::NotStarted(_) => "its browser could not be started".to_owned(),
        ExecEnd::Lost => "its sandbox ended".to_owned(),
    }
}

/// Where the browser of a sandbox is.
pub(crate) async fn endpoint(supervisor: &SupervisorClient) -> Result<EndpointPath, DaemonError> {
    let stream = supervisor.port(PORT).await.map_err(|error| browser_failed(&error))?;
    browser_path(stream).await.map_err(|error| browser_failed(&error))
}

/// A conversation with the browser of a sandbox.
pub(super) async fn connect(supervisor: &SupervisorClient) -> Result<CdpConnection, DaemonError> {
    let path = endpoint(supervisor).await?;
    let stream = supervisor.port(PORT).await.map_err(|error| browser_failed(&error))?;
    CdpConnection::open(stream, &path)
        .await
        .map_err(|error| browser_failed(&error))
}

impl BrowserService {
    /// Starts the browser of a session that was just made, with what its context has; answers what it goes on to say.
    pub(super) async fn start(
        &self,
        entry: &SandboxEntry,
        spec: &SessionSpec,
        context: Option<ContextRecord>,
    ) -> Result<ExecStream, DaemonError> {
        let supervisor = self.core.host.supervisor(entry.id());
        let cookies = match context {
            Some(context) => self.unpack(&supervisor, context).await?,
            None => None,
        };
        let stream = self.start_browser(entry, &supervisor, spec).await?;
        let mut connection = connect(&supervisor).await?;
        let downloads = json!({ "behavior": "allow", "downloadPath": DOWNLOADS });
        let set = connection.call("Browser.setDownloadBehavior", downloads).await;
        set.map_err(|error| browser_failed(&error))?;
        if let Some(cookies) = cookies {
            let set = connection
                .call("Storage.setCookies", json!({ "cookies": cookies }))
                .await;
            set.map_err(|error| browser_failed(&error))?;
        }
        Ok(stream)
    }

    async fn start_browser(
        &self,
        entry: &SandboxEntry,
        supervisor: &SupervisorClient,
        spec: &SessionSpec,
    ) -> Result<ExecStream, DaemonError> {
        let level = entry.specification().level.clone();
        let mut own_sandbox = match locked(&self.without_nesting).contains(&level) {
            true => OwnSandbox::Left,
            false => OwnSandbox::Kept,
        };
        let stream = loop {
            let exec = self.exec(entry, spec, own_sandbox);
            let mut stream = supervisor.start(exec).await.map_err(|error| browser_failed(&error))?;
            let mut said = BrowserSaid::default();
            let ready = timeout(START_TIMEOUT, ready(supervisor, &mut stream, &mut said)).await;
            let end = match ready {
                Ok(Ok(())) => break stream,
                Ok(Err(end)) => end,
                Err(_) => return Err(failed("it does not answer", &said)),
            };
            let text = said.text();
            if own_sandbox == OwnSandbox::Kept && lacks_namespaces(&text) {
                locked(&self.without_nesting).insert(level.clone());
                own_sandbox = OwnSandbox::Left;
                continue;
            }
            return Err(match end {
                Some(ExecEnd::Exited { code: NO_PROGRAM }) => SessionError::NoBrowser {
                    template: entry.template(),
                }
                .into(),
                Some(end) => failed(&end_in_words(&end), &said),
                None => failed("its sandbox ended", &said),
            });
        };
        let line = match own_sandbox {
            OwnSandbox::Kept => "its browser keeps a sandbox of its own",
            OwnSandbox::Left => "its browser has no sandbox of its own: namespaces do not nest at this level",
        };
        self.core.registry.log(entry.name(), LogLevel::Info, line);
        Ok(stream)
    }

    fn exec(&self, entry: &SandboxEntry, spec: &SessionSpec, own_sandbox: OwnSandbox) -> StartExec {
        let command = BrowserCommand::new(&self.config.browser_command, &spec.options, own_sandbox);
        let of_sandbox = entry.specification().env.clone();
        let pair = |(name, value): (String, String)| (name.into_bytes(), value.into_bytes());
        StartExec {
            argv: command.argv.into_iter().map(String::into_bytes).collect(),
            env: of_sandbox.into_iter().chain(command.env).map(pair).collect(),
            tag: Some(TAG.to_owned()),
            ..StartExec::default()
        }
    }

    /// With whether the browser keeps a sandbox of its own, as far as its sandbox can be asked.
    pub(super) async fn with_own_sandbox(&self, view: BrowserSessionView, entry: &SandboxEntry) -> BrowserSessionView {
        let processes = self
            .core
            .host
            .supervisor(entry.id())
            .processes()
            .await
            .unwrap_or_default();
        let browser = processes.iter().find(|process| process.tag.as_deref() == Some(TAG));
        BrowserSessionView {
            own_sandbox: browser.map(|browser| OwnSandbox::of_arguments(browser.argv.iter().map(Vec::as_slice))),
            ..view
        }
    }
}

/// Waits until a browser answers; says how it ended if it does not, `None` where its sandbox ended.
async fn ready(
    supervisor: &SupervisorClient,
    stream: &mut ExecStream,
    said: &mut BrowserSaid,
) -> Result<(), Option<ExecEnd>> {
    let mut answers = pin!(async {
        while endpoint(supervisor).await.is_err() {
            sleep(ASK_AGAIN).await;
        }
    });
    loop {
        tokio::select! {
            () = &mut answers => return Ok(()),
            news = stream.next() => match news {
                Ok(Some(ExecNews::Output { stream: OutputStream::Stdout | OutputStream::Stderr, bytes })) => said.take(&bytes),
                Ok(Some(ExecNews::TimedOut)) => {}
                Ok(Some(ExecNews::Ended(end))) => return Err(Some(end)),
                Ok(None) | Err(_) => return Err(None),
            },
        }
    }
}

/// With the last line that the browser said: it is the word of a sandbox's program, which its owner may see.
fn failed(why: &str, said: &BrowserSaid) -> DaemonError {
    let text = said.text();
    let last = text.lines().rfind(|line| !line.trim().is_empty());
    let last: String = last.unwrap_or("it said nothing").chars().take(300).collect();
    SessionError::Failed {
        why: format!("{why}: {}", last.escape_debug()),
    }
    .into()
}
