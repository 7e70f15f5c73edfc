//! What follows when both sides have agreed on a WebSocket: bytes, which nobody looks at.

use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};

/// How much is taken in one go, each way.
const CHUNK: usize = 16 * 1024;

/// Carries everything both ways; `read` was read from the client already.
pub(super) async fn carry(mut client: impl AsyncRead + AsyncWrite + Unpin, server: Upgraded, read: &[u8]) {
    let mut server = TokioIo::new(server);
    if server.write_all(read).await.is_ok() {
        // How it ends is the two sides' business.
        let _ = tokio::io::copy_bidirectional_with_sizes(&mut client, &mut server, CHUNK, CHUNK).await;
    }
}
