//! The Model Context Protocol (<https://modelcontextprotocol.io>): tools by which the model of an agent host runs code and
//! works with files in sandboxes, and files of sandboxes as resources.
//!
//! The tools are written over `backing::SandboxBacking`, which has two forms: sandboxes of this process alone, spoken to over
//! its standard streams ([`speak`]), and those of the daemon, spoken to over HTTP (`http`) or, by `offleash mcp --server`,
//! over a connection to the owner's socket (`stream`). What goes wrong is an error of
//! the tool, which models read; an error of the protocol is what hosts show to nobody.

mod arguments;
mod asking;
mod backing;
mod content;
mod declared;
mod definitions;
mod failure;
mod files;
pub(crate) mod http;
mod kept;
mod local;
mod progress;
mod resources;
mod run;
mod served;
mod session;
pub(crate) mod stream;

use std::sync::Arc;
use std::time::Duration;

use offleash_daemon::local::LocalSandboxes;
use offleash_supervisor::tools::ToolBench;
use rmcp::ServerHandler;
use rmcp::transport::async_rw::AsyncRwTransport;
use tokio::io::{AsyncRead, AsyncWrite};

use self::declared::DeclaredTools;
use self::local::LocalBacking;
use self::session::ToolSession;

/// The longest message: code may have 16 MiB, and JSON writes some characters longer.
const MAX_MESSAGE_LENGTH: usize = 32 * 1024 * 1024;

/// What ended a conversation early.
#[derive(Debug, thiserror::Error)]
pub enum SpeakError {
    /// It never began.
    #[error("the conversation with the agent host did not begin")]
    Begin(#[source] Box<rmcp::service::ServerInitializeError>),
    /// What speaks has panicked.
    #[error("the conversation with the agent host broke off")]
    Broken(#[source] tokio::task::JoinError),
}

/// Speaks the protocol over two streams until the other side has said all, with tools that work in `sandboxes`; commands and
/// code may take `longest`.
///
/// The sandboxes are not ended: the caller does that.
///
/// # Errors
/// [`SpeakError`]; that the other side went before it said anything is none.
pub async fn speak<R, W>(
    sandboxes: Arc<LocalSandboxes>,
    longest: Duration,
    input: R,
    output: W,
) -> Result<(), SpeakError>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    converse(ToolSession::new(LocalBacking { sandboxes, longest }), input, output).await
}

/// As [`speak`], with the tools of `bench` themselves; where a person is to be asked, the host has `ask_timeout` to do so.
///
/// # Errors
/// As [`speak`].
pub async fn speak_tools<R, W>(
    bench: Arc<ToolBench>,
    ask_timeout: Duration,
    input: R,
    output: W,
) -> Result<(), SpeakError>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    converse(DeclaredTools::new(bench, ask_timeout), input, output).await
}

/// A conversation over two streams, from its first word to its last.
async fn converse<H, R, W>(session: H, input: R, output: W) -> Result<(), SpeakError>
where
    H: ServerHandler,
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let transport = AsyncRwTransport::new_server(input, output).with_max_line_length(MAX_MESSAGE_LENGTH);
    let service = match rmcp::serve_server(session, transport).await {
        Ok(service) => service,
        Err(rmcp::service::ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
        Err(error) => return Err(SpeakError::Begin(Box::new(error))),
    };
    service.waiting().await.map_err(SpeakError::Broken)?;
    Ok(())
}
