//! One channel: a command, a terminal, files or a port of the sandbox, between its client and the sandbox's services.
//!
//! Each has a task of its own. How much it may say is the client's to grant, how much it is told is granted as it is taken in:
//! no channel makes another wait, and none keeps more than a window.

use std::collections::BTreeMap;
use std::sync::Arc;

use offleash_api::client::{ClientError, ExecStart, News, SandboxServices};
use offleash_core::exec::{OutputStream, TerminalSize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::{Semaphore, mpsc};

use crate::requests::SessionSetup;

/// What one message may have of a channel's data.
pub(crate) const MAX_DATA: usize = 32 << 10;

/// The user's own shell, which is bash where there is one.
const SHELL: &str = "if [ -x /bin/bash ]; then exec /bin/bash -l; else exec /bin/sh -l; fi";
const COMMAND: &str = "if [ -x /bin/bash ]; then exec /bin/bash -c \"$1\"; else exec /bin/sh -c \"$1\"; fi";

/// What a channel has for the client.
#[derive(Debug)]
pub(crate) enum ChannelEvent {
    /// It leads to where it should.
    Opened,
    /// It leads nowhere, and is none.
    NotOpened(String),
    Output(OutputStream, Vec<u8>),
    /// So many bytes were taken in, and as many more may come.
    TakenIn(usize),
    Exit(u8),
    /// Nothing follows from us.
    Eof,
    /// It has ended.
    Close,
}

/// What a client has for a channel.
#[derive(Debug)]
pub(crate) enum ChannelInput {
    Data(Vec<u8>),
    Eof,
}

/// What a client asks of a command that runs.
#[derive(Debug)]
pub(crate) enum ChannelControl {
    Resize(TerminalSize),
    Signal(i32),
}

/// The way from a channel to the client.
#[derive(Debug, Clone)]
pub(crate) struct ChannelOutput {
    pub(crate) id: u32,
    pub(crate) events: mpsc::Sender<(u32, ChannelEvent)>,
    /// Bytes that the client takes.
    pub(crate) window: Arc<Semaphore>,
    /// Of one message.
    pub(crate) most: usize,
}

/// What a channel begins with.
#[derive(Debug)]
pub(crate) struct ChannelStreams {
    pub(crate) input: mpsc::UnboundedReceiver<ChannelInput>,
    pub(crate) control: mpsc::Receiver<ChannelControl>,
    pub(crate) output: ChannelOutput,
}

impl ChannelOutput {
    pub(crate) async fn tell(&self, event: ChannelEvent) {
        // With the connection everything ends.
        let _gone = self.events.send((self.id, event)).await;
    }

    /// Writes as the client takes it.
    pub(crate) async fn write(&self, stream: OutputStream, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let most = rest.len().min(self.most).min(self.window.available_permits().max(1));
            let Ok(wanted) = u32::try_from(most) else { return };
            let Ok(granted) = self.window.acquire_many(wanted).await else {
                return;
            };
            granted.forget();
            let (now, later) = rest.split_at(most);
            rest = later;
            self.tell(ChannelEvent::Output(stream, now.to_vec())).await;
        }
    }

    async fn end(&self, exit: Option<u8>) {
        if let Some(code) = exit {
            self.tell(ChannelEvent::Exit(code)).await;
        }
        self.tell(ChannelEvent::Eof).await;
        self.tell(ChannelEvent::Close).await;
    }
}

/// Runs a command, or the user's shell if none is said.
pub(crate) async fn run(
    services: SandboxServices,
    user: String,
    command: Option<String>,
    setup: SessionSetup,
    streams: ChannelStreams,
) {
    let words: Vec<String> = match command {
        None => ["/bin/sh", "-c", SHELL].map(str::to_owned).into(),
        Some(command) => ["/bin/sh", "-c", COMMAND, "sh", &command].map(str::to_owned).into(),
    };
    let start = ExecStart {
        argv: words,
        env: setup.env.into_iter().collect::<BTreeMap<_, _>>(),
        cwd: None,
        user: Some(user),
        tty: setup.tty,
        stdin: true,
    };
    let ChannelStreams {
        mut input,
        mut control,
        output,
    } = streams;
    let is_terminal = start.tty.is_some();
    let mut exec = match services.exec(start) {
        Ok(exec) => exec,
        Err(error) => return failed(&output, &error).await,
    };
    let (given, steered) = (exec.input(), exec.input());
    let feeding = async {
        while let Some(piece) = input.recv().await {
            match piece {
                ChannelInput::Data(bytes) => {
                    let length = bytes.len();
                    given.give(bytes).await;
                    output.tell(ChannelEvent::TakenIn(length)).await;
                }
                // A terminal has no end of its input but one that is typed.
                ChannelInput::Eof if is_terminal => {}
                ChannelInput::Eof => given.close(),
            }
        }
        std::future::pending::<()>().await;
    };
    let steering = async {
        while let Some(asked) = control.recv().await {
            match asked {
                ChannelControl::Resize(size) => steered.resize(size),
                ChannelControl::Signal(signal) => steered.signal(signal),
            }
        }
        std::future::pending::<()>().await;
    };
    let following = async {
        loop {
            match exec.next().await {
                Some(Ok(News::Started(_))) => {}
                Some(Ok(News::Output(stream, bytes))) => output.write(stream, &bytes).await,
                Some(Ok(News::Ended(code))) => return output.end(Some(code)).await,
                Some(Err(error)) => return failed(&output, &error).await,
                None => return output.end(None).await,
            }
        }
    };
    tokio::select! {
        () = feeding => {}
        () = steering => {}
        () = following => {}
    }
}

/// Says why a command did not run, or is not followed any longer.
async fn failed(output: &ChannelOutput, error: &ClientError) {
    let (message, code) = match error {
        ClientError::NotStarted { message, exit_code } => (message.clone(), *exit_code),
        other => (other.to_string(), u8::MAX),
    };
    output
        .write(OutputStream::Stderr, format!("offleash: {message}\n").as_bytes())
        .await;
    output.end(Some(code)).await;
}

/// Serves files, until the client has no more to ask.
pub(crate) async fn files(services: SandboxServices, streams: ChannelStreams) {
    let ChannelStreams { mut input, output, .. } = streams;
    let mut server = crate::sftp::SftpServer::new(services);
    let mut held = Vec::new();
    while let Some(ChannelInput::Data(bytes)) = input.recv().await {
        let length = bytes.len();
        held.extend(bytes);
        loop {
            match crate::sftp::packet(&mut held) {
                Ok(Some(packet)) => {
                    let answer = server.answer(&packet).await;
                    output.write(OutputStream::Stdout, &answer).await;
                }
                Ok(None) => break,
                Err(_) => return output.end(Some(1)).await,
            }
        }
        output.tell(ChannelEvent::TakenIn(length)).await;
    }
    server.end().await;
    output.end(Some(0)).await;
}

/// Carries a connection to a port inside.
pub(crate) async fn port(services: SandboxServices, port: u16, streams: ChannelStreams) {
    let ChannelStreams { mut input, output, .. } = streams;
    let tunnel = match services.tunnel(port).await {
        Ok(tunnel) => tunnel,
        Err(error) => return output.tell(ChannelEvent::NotOpened(error.to_string())).await,
    };
    output.tell(ChannelEvent::Opened).await;
    let (mut reading, mut writing) = tokio::io::split(tunnel);
    let up = async {
        while let Some(piece) = input.recv().await {
            let ChannelInput::Data(bytes) = piece else { break };
            if writing.write_all(&bytes).await.is_err() || writing.flush().await.is_err() {
                return;
            }
            output.tell(ChannelEvent::TakenIn(bytes.len())).await;
        }
        // How a connection ends is told by the programs at both ends.
        let _gone = writing.shutdown().await;
    };
    let down = async {
        let mut buffer = vec![0; MAX_DATA];
        while let Ok(length @ 1..) = reading.read(&mut buffer).await {
            output
                .write(OutputStream::Stdout, buffer.get(..length).unwrap_or_default())
                .await;
        }
        output.tell(ChannelEvent::Eof).await;
    };
    tokio::join!(up, down);
    output.tell(ChannelEvent::Close).await;
}
