//! What a sandbox's network namespace needs so that every connection, whereto ever, ends at a gateway of ours.
//!
//! [`routes`] make every address one of the namespace's own, [`nftables`] leads TCP to one listener whatever the port,
//! and [`sockets`] are what listens: made inside before any code of the sandbox runs, used outside. Nothing can leave:
//! there is no interface but `lo`. All of it works without privilege over the host, by `CAP_NET_ADMIN` over the
//! namespace alone, and without the programs `ip` and `nft`. Deliberately not here: which ports and addresses, and
//! what may be reached.

pub mod addresses;
pub mod datagrams;
pub mod entrance;
mod netlink;
pub mod nftables;
pub mod queue;
pub mod routes;
pub mod sockets;

pub use entrance::EntranceSockets;
pub use routes::SourceAddresses;
pub use sockets::NetworkSockets;

use std::io;

/// Whether a namespace has IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ipv6 {
    /// It has, and it is set up.
    Ready,
    /// The kernel has none, or it is switched off.
    Absent,
}

/// What could not be set up or asked for.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// No request could be made, or the answer makes no sense.
    #[error("{step}")]
    Talking {
        /// What was tried.
        step: &'static str,
        /// What went wrong.
        #[source]
        source: io::Error,
    },
    /// The kernel refused.
    #[error("{step}{}{words}", if .words.is_empty() { "" } else { ": " })]
    Refused {
        /// What was asked for.
        step: &'static str,
        /// The kernel's own words, often none.
        words: String,
        /// Its error.
        #[source]
        source: io::Error,
    },
    /// The kernel lacks a part that this needs: it was built without, or has it as a module that is not loaded and was
    /// not loaded when it was asked for.
    #[error("{step}: this kernel has no {part}")]
    Missing {
        /// What was asked for.
        step: &'static str,
        /// What it needs, as the kernel's configuration calls it.
        part: &'static str,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
}

#[cfg(test)]
mod tests;
