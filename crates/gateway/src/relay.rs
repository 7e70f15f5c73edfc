//! Carries bytes between the sandbox and where it is connected to, and counts them.
//!
//! What nobody looks at goes through the kernel's pipes (`splice(2)`) once it is much: its bytes are not copied on their
//! way, which is most of what carrying them costs. Where that cannot be done they are copied as the first ones are.

mod pipes;

use std::cell::Cell;
use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, Interest};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};

use pipes::Pipe;
pub(crate) use pipes::Pipes;

/// How much is taken in one go where much is copied.
const CHUNK: usize = 64 * 1024;
/// How much is taken in one go until then; most connections never need more.
const FIRST: usize = 16 * 1024;
/// After how many bytes one way it is worth a pipe.
const MUCH: u64 = 128 * 1024;

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

/// Like [`both_ways`], through `pipes` where much is carried.
pub(crate) async fn tunnel(
    client: &mut TcpStream,
    server: &mut TcpStream,
    counts: &Counts,
    pipes: &Pipes,
) -> io::Result<()> {
    let (client_reads, client_writes) = client.split();
    let (server_reads, server_writes) = server.split();
    let out = one_way_piped(client_reads, server_writes, &counts.sent, pipes);
    let back = one_way_piped(server_reads, client_writes, &counts.received, pipes);
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
        write(&mut to, &buffer, count).await?;
    }
}

/// The same, through `pipes` where it is much.
async fn one_way_piped(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    count: &Cell<u64>,
    pipes: &Pipes,
) -> io::Result<()> {
    let before = count.get();
    let mut buffer = Vec::new();
    loop {
        // Whoever waits holds neither a pipe nor a buffer that it has not needed yet.
        from.as_ref().readable().await?;
        let much = count.get() - before >= MUCH;
        if much && let Some(pipe) = pipes.take() {
            match piece_piped(&from, &to, pipe, count).await {
                Ok(Piece::Carried) => continue,
                Ok(Piece::End) => return to.shutdown().await,
                Ok(Piece::Unsupported) => pipes.forbid(),
                Err(error) => return Err(error),
            }
        }
        buffer.clear();
        buffer.reserve(if much { CHUNK } else { FIRST });
        if from.read_buf(&mut buffer).await? == 0 {
            return to.shutdown().await;
        }
        write(&mut to, &buffer, count).await?;
    }
}

/// What became of what there was.
enum Piece {
    /// It was carried, or there was nothing after all.
    Carried,
    /// There was the end.
    End,
    /// It is still there: these sockets cannot be joined to a pipe.
    Unsupported,
}

/// Carries what there is through `pipe`, which is empty afterwards unless this fails.
async fn piece_piped(
    from: &ReadHalf<'_>,
    to: &WriteHalf<'_>,
    mut pipe: Pipe<'_>,
    count: &Cell<u64>,
) -> io::Result<Piece> {
    let (from, to) = (from.as_ref(), to.as_ref());
    match from.try_io(Interest::READABLE, || pipe.fill(from)) {
        Ok(0) => return Ok(Piece::End),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Piece::Carried),
        Err(error) if pipes::is_unsupported(&error) => return Ok(Piece::Unsupported),
        Err(error) => return Err(error),
    }
    while pipe.held() > 0 {
        let given = to.async_io(Interest::WRITABLE, || pipe.empty(to)).await?;
        count.set(count.get() + given as u64);
    }
    Ok(Piece::Carried)
}

/// Writes all of `bytes` and counts what was written, of a part as well.
async fn write(to: &mut (impl AsyncWrite + Unpin), bytes: &[u8], count: &Cell<u64>) -> io::Result<()> {
    let mut left = bytes;
    while !left.is_empty() {
        let written = to.write(left).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        count.set(count.get() + written as u64);
        left = left.get(written..).unwrap_or_default();
    }
    Ok(())
}

#[cfg(test)]
mod tests;
