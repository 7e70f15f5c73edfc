//! A relay that judges nothing: what anybody in between costs at the least on this machine.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use rustix::pipe::{SpliceFlags, fcntl_setpipe_size, pipe, splice};

use super::contender::end_with_parent;
use crate::error::TaskError;

/// How much its pipes hold.
const CAPACITY: usize = 256 * 1024;

/// Arguments of the relay.
#[derive(Debug, clap::Args)]
pub(crate) struct RelayOptions {
    /// Where it is reached
    listen: SocketAddr,
    /// Where everything goes
    server: SocketAddr,
}

/// Relays until it is killed: two threads for each connection, which only `splice(2)`.
///
/// # Errors
/// `File` when nobody may listen there.
pub(crate) fn run(options: &RelayOptions) -> Result<(), TaskError> {
    end_with_parent();
    let failed = TaskError::file("listening at", options.listen.to_string());
    let listener = TcpListener::bind(options.listen).map_err(failed)?;
    for client in listener.incoming().flatten() {
        let server = options.server;
        // What fails is that connection, which its client notices.
        std::thread::spawn(move || relay(client, server));
    }
    Ok(())
}

fn relay(client: TcpStream, server: SocketAddr) -> io::Result<()> {
    let server = TcpStream::connect(server)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (client, server) = (Arc::new(client), Arc::new(server));
    let back = (Arc::clone(&server), Arc::clone(&client));
    std::thread::spawn(move || one_way(&back.0, &back.1));
    one_way(&client, &server)
}

fn one_way(from: &TcpStream, to: &TcpStream) -> io::Result<()> {
    let (read, write) = pipe()?;
    fcntl_setpipe_size(&write, CAPACITY)?;
    loop {
        let mut held = splice(from, None, &write, None, CAPACITY, SpliceFlags::MOVE)?;
        if held == 0 {
            return to.shutdown(Shutdown::Write);
        }
        while held > 0 {
            held -= splice(&read, None, to, None, held, SpliceFlags::MOVE)?;
        }
    }
}
