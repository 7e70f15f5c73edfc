//! SSH to a sandbox: a server of the protocol for one client that was let in before it says a word.
//!
//! It speaks over a pair of streams of whoever started it (`ProxyCommand` of OpenSSH), and asks the sandbox's services for all that
//! the client wants: commands, terminals, files (SFTP) and ports of the sandbox's own. One set of algorithms is spoken, that of
//! `ring`. Deliberately not here: listening for clients, and finding out who they are.

mod channel;
mod connection;
mod error;
mod host_key;
mod kex;
mod packet;
mod requests;
mod sftp;
mod wire;

pub use connection::serve;
pub use error::SshError;
pub use host_key::HostKey;
