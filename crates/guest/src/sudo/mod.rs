//! `sudo` without setuid: a program inside asks the guest, which is more than it is, to start a command.
//!
//! Everybody inside may ask for every user, as in E2B's template: whoever is root inside has nothing over the host.
//! The program is the guest's own file under another name. Options, environment and accounts are the asking side's
//! business, which runs as the user who asks; the guest starts what it is told as whom it is told, and nothing more.

mod arguments;
mod client;
mod environment;
mod server;
mod terminal;

pub(crate) use client::run;
pub(crate) use server::SudoServer;

/// The name under which the guest is this program.
pub(crate) const NAME: &[u8] = b"sudo";

/// The variable that names another socket than the usual one. Whoever listens there learns what was asked, no more.
const SOCKET_VARIABLE: &[u8] = b"OFFLEASH_SUDO_SOCKET";
