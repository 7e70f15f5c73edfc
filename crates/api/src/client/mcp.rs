//! A conversation of an agent host with the daemon, carried between it and our standard streams.

use http::header::{CONNECTION, UPGRADE};
use http::{Method, Request};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};

use super::{Client, ClientError, transport};
use crate::http::body;
use crate::mcp::{http::PATH, stream::PROTOCOL};

impl Client {
    /// Carries what an agent host says to the daemon and what that answers, until the host has said all and heard the
    /// answers. What reads `input` may be left reading when this returns.
    ///
    /// # Errors
    /// `NotRunning`, `Refused`; `Hung` when the daemon ended it.
    pub fn tools<R, W>(self, input: R, output: W) -> Result<(), ClientError>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        let carried = self.runtime.block_on(self.carry(input, output));
        // Nobody waits for what may still be read.
        self.runtime.shutdown_background();
        carried
    }

    async fn carry<R, W>(&self, mut input: R, mut output: W) -> Result<(), ClientError>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        let request = Request::builder()
            .method(Method::GET)
            .uri(PATH)
            .header("host", "localhost")
            .header(CONNECTION, "upgrade")
            .header(UPGRADE, PROTOCOL)
            .body(body::empty());
        let request = transport::built(request, PATH)?;
        let upgraded = self.transport.become_other(request, PATH).await?;
        let (mut answers, mut words) = tokio::io::split(TokioIo::new(upgraded));
        let mut said_all = false;
        let saying = async {
            let said = tokio::io::copy(&mut input, &mut words).await;
            // The daemon then answers what it was asked, and ends.
            words.shutdown().await.and(said)
        };
        let hearing = tokio::io::copy(&mut answers, &mut output);
        let (mut saying, mut hearing) = (std::pin::pin!(saying), std::pin::pin!(hearing));
        let heard = loop {
            tokio::select! {
                // That it cannot be said is told by the end of the answers.
                _said = &mut saying, if !said_all => said_all = true,
                heard = &mut hearing => break heard,
            }
        };
        heard.map_err(|source| ClientError::Local {
            tried: "carry what the server answers".to_owned(),
            source,
        })?;
        if said_all { Ok(()) } else { Err(ClientError::Hung) }
    }
}
