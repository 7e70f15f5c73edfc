//! Carries bytes between the sandbox and where it is connected to, and counts them.
//!
//! What nobody looks at goes through the kernel's pipes (`splice(2)`) once it is much: its bytes are not copied on their
//! way, which is most of what carrying them costs. Where that cannot be done they are copied as the first ones are.

mod pipes;

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, Interest};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};

use crate::limits::{Counts, Tally};
use pipes::Pipe;
pub(crate) use pipes::Pipes;

/// How much is taken in one go where much is copied.
const CHUNK: usize = 64 * 1024;
/// How much is taken in one go until then; most connections never need more.
const FIRST: usize = 16 * 1024;
/// After how many bytes one way it is worth a pipe.
const MUCH: u64 = 128 * 1024;

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

/// Like [`both_ways`], through `pipes` where much is carried; `look` is shown the first piece of what the client sends.
pub(crate) async fn tunnel(
    client: &mut TcpStream,
    server: &mut TcpStream,
    counts: &Counts,
    pipes: &Pipes,
    look: Option<impl FnOnce(&[u8])>,
) -> io::Result<()> {
    let (client_reads, client_writes) = client.split();
    let (server_reads, server_writes) = server.split();
    let out = one_way_piped(client_reads, server_writes, &counts.sent, pipes, look);
    let back = one_way_piped(server_reads, client_writes, &counts.received, pipes, None::<fn(&[u8])>);
    // Whoever cannot be read from any more is gone, and all that it said was read.
    let (out, back) = tokio::try_join!(unless_gone(out), unless_gone(back))?;
    out.and(back)
}

/// Why bytes were not carried further.
enum Broken {
    /// Who sent them is gone.
    Reading(io::Error),
    /// They are not taken; what was said before by who should take them may still be on its way.
    Writing(io::Error),
}

async fn unless_gone(way: impl Future<Output = Result<(), Broken>>) -> io::Result<io::Result<()>> {
    match way.await {
        Ok(()) => Ok(Ok(())),
        Err(Broken::Writing(error)) => Ok(Err(error)),
        Err(Broken::Reading(error)) => Err(error),
    }
}

/// Carries everything one way, and its end.
pub(crate) async fn one_way(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    tally: &Tally,
) -> io::Result<()> {
    let mut buffer = Vec::with_capacity(CHUNK);
    loop {
        buffer.clear();
        let mut piece = (&mut from).take(tally.piece(CHUNK) as u64);
        if piece.read_buf(&mut buffer).await? == 0 {
            return to.shutdown().await;
        }
        write(&mut to, &buffer, tally).await?;
    }
}

/// The same, through `pipes` where it is much.
async fn one_way_piped(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    tally: &Tally,
    pipes: &Pipes,
    mut look: Option<impl FnOnce(&[u8])>,
) -> Result<(), Broken> {
    let before = tally.bytes();
    let mut buffer = Vec::new();
    loop {
        // Whoever waits holds neither a pipe nor a buffer that it has not needed yet.
        from.as_ref().readable().await.map_err(Broken::Reading)?;
        let much = tally.bytes() - before >= MUCH;
        if much && let Some(pipe) = pipes.take() {
            match piece_piped(&from, &to, pipe, tally).await {
                Ok(Piece::Carried) => continue,
                Ok(Piece::End) => return to.shutdown().await.map_err(Broken::Writing),
                Ok(Piece::Unsupported) => pipes.forbid(),
                Err(error) => return Err(error),
            }
        }
        buffer.clear();
        let most = if much { CHUNK } else { FIRST };
        buffer.reserve(most);
        let mut piece = (&mut from).take(tally.piece(most) as u64);
        if piece.read_buf(&mut buffer).await.map_err(Broken::Reading)? == 0 {
            return to.shutdown().await.map_err(Broken::Writing);
        }
        if let Some(look) = look.take() {
            look(&buffer);
        }
        write(&mut to, &buffer, tally).await.map_err(Broken::Writing)?;
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
    tally: &Tally,
) -> Result<Piece, Broken> {
    let (from, to) = (from.as_ref(), to.as_ref());
    match from.try_io(Interest::READABLE, || pipe.fill(from, tally.piece(pipes::CAPACITY))) {
        Ok(0) => return Ok(Piece::End),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Piece::Carried),
        Err(error) if pipes::is_unsupported(&error) => return Ok(Piece::Unsupported),
        Err(error) => return Err(Broken::Reading(error)),
    }
    tally.pass(pipe.held()).await;
    while pipe.held() > 0 {
        let given = to.async_io(Interest::WRITABLE, || pipe.empty(to)).await;
        let given = given.map_err(Broken::Writing)?;
        tally.add(given);
    }
    Ok(Piece::Carried)
}

/// Writes all of `bytes` when they may pass, and counts what was written, of a part as well.
pub(crate) async fn write(to: &mut (impl AsyncWrite + Unpin), bytes: &[u8], tally: &Tally) -> io::Result<()> {
    tally.pass(bytes.len()).await;
    let mut left = bytes;
    while !left.is_empty() {
        let written = to.write(left).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        tally.add(written);
        left = left.get(written..).unwrap_or_default();
    }
    Ok(())
}

#[cfg(test)]
mod tests;
