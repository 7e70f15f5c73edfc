//! The server that everybody reaches, each in his way: threads of this process, so that all meet the same one.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use super::client::{ANSWER, BLOCK, Work};
use crate::error::TaskError;

/// Serves at `address` until this process ends.
///
/// # Errors
/// `File` when nobody may listen there.
pub(super) fn serve(address: SocketAddr) -> Result<(), TaskError> {
    let listener = TcpListener::bind(address).map_err(TaskError::file("listening at", address.to_string()))?;
    std::thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            // Whoever hangs up early has failed himself and says so.
            std::thread::spawn(move || answer(connection));
        }
    });
    Ok(())
}

fn answer(mut connection: TcpStream) -> io::Result<()> {
    connection.set_nodelay(true)?;
    let mut kind = [0];
    connection.read_exact(&mut kind)?;
    match kind[0] {
        Work::DOWNLOAD => {
            let mut left = size(&mut connection)?;
            let block = vec![0x5a; BLOCK];
            while left > 0 {
                let part = block.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                connection.write_all(block.get(..part).unwrap_or_default())?;
                left -= part as u64;
            }
            Ok(())
        }
        Work::UPLOAD => {
            let mut left = size(&mut connection)?;
            let mut block = vec![0; BLOCK];
            while left > 0 {
                match connection.read(&mut block)? {
                    0 => return Ok(()),
                    part => left = left.saturating_sub(part as u64),
                }
            }
            connection.write_all(&[Work::UPLOAD])
        }
        Work::ECHO => {
            connection.write_all(&kind)?;
            connection.read(&mut kind).map(drop)
        }
        _ => requests(connection),
    }
}

fn size(connection: &mut TcpStream) -> io::Result<u64> {
    let mut size = [0; 8];
    connection.read_exact(&mut size)?;
    Ok(u64::from_be_bytes(size))
}

/// Answers every request on a connection with the same.
pub(super) fn requests(mut connection: impl Read + Write) -> io::Result<()> {
    let mut waiting = Vec::new();
    let mut part = [0; 4096];
    loop {
        let read = connection.read(&mut part)?;
        if read == 0 {
            return Ok(());
        }
        waiting.extend_from_slice(part.get(..read).unwrap_or_default());
        while let Some(end) = waiting.windows(4).position(|four| four == b"\r\n\r\n") {
            waiting.drain(..end + 4);
            connection.write_all(ANSWER)?;
        }
    }
}
