//! Carries bytes between the sandbox and where it is connected to, and counts them.

use std::cell::Cell;
use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// How much is taken in one go.
const CHUNK: usize = 64 * 1024;

/// Bytes of one connection, each way.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) sent: Cell<u64>,
    pub(crate) received: Cell<u64>,
}

/// Carries everything both ways until both have ended; one that ends first is told to the other side. One that fails
/// leaves the other to its own end: who hangs up on what it is sent may have answered it.
pub(crate) async fn both_ways(client: &mut TcpStream, server: &mut TcpStream, counts: &Counts) -> io::Result<()> {
    let (client_reads, client_writes) = client.split();
    let (server_reads, server_writes) = server.split();
    let out = one_way(client_reads, server_writes, &counts.sent);
    let back = one_way(server_reads, client_writes, &counts.received);
    let (out, back) = tokio::join!(out, back);
    out.and(back)
}

/// Carries everything one way, and its end.
pub(crate) async fn one_way(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    count: &Cell<u64>,
) -> io::Result<()> {
    let mut buffer = Vec::with_capacity(CHUNK);
    loop {
        buffer.clear();
        if from.read_buf(&mut buffer).await? == 0 {
            return to.shutdown().await;
        }
        to.write_all(&buffer).await?;
        count.set(count.get() + buffer.len() as u64);
    }
}
