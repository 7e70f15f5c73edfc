//! What follows when both sides have agreed on a WebSocket: bytes, which nobody looks at but for secrets.

use hyper::body::Bytes;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, copy, split};

use crate::secrets::{Mask, Masker};

/// How much is taken in one go, each way.
const CHUNK: usize = 16 * 1024;

/// Carries everything both ways; `read` was read from the client already. What `mask` finds is taken out of what the
/// server sends: frames keep their lengths.
pub(super) async fn carry(
    mut client: impl AsyncRead + AsyncWrite + Unpin,
    server: Upgraded,
    mask: Option<&Mask>,
    read: &[u8],
) {
    let mut server = TokioIo::new(server);
    if server.write_all(read).await.is_err() {
        return;
    }
    // How it ends is the two sides' business.
    let _ = match mask {
        None => tokio::io::copy_bidirectional_with_sizes(&mut client, &mut server, CHUNK, CHUNK)
            .await
            .map(drop),
        Some(mask) => carry_masked(client, server, mask.body()).await,
    };
}

async fn carry_masked(
    client: impl AsyncRead + AsyncWrite,
    server: impl AsyncRead + AsyncWrite,
    mut masker: Masker,
) -> std::io::Result<()> {
    let (mut client_reads, mut client_writes) = split(client);
    let (mut server_reads, mut server_writes) = split(server);
    let out = async {
        copy(&mut client_reads, &mut server_writes).await?;
        server_writes.shutdown().await
    };
    let back = async {
        let mut buffer = Vec::with_capacity(CHUNK);
        loop {
            buffer.clear();
            let ended = server_reads.read_buf(&mut buffer).await? == 0;
            let going = if ended {
                masker.finish()
            } else {
                masker.push(Bytes::copy_from_slice(&buffer))
            };
            client_writes.write_all(&going).await?;
            client_writes.flush().await?;
            if ended {
                return client_writes.shutdown().await;
            }
        }
    };
    tokio::try_join!(out, back).map(drop)
}
