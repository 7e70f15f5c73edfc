//! What a program that wants to run a command as another user says to the guest, over a unix socket inside.
//!
//! Both ends are the same program, but whoever lives in the sandbox may speak in place of either. The first message is
//! [`SudoRequest::Run`], with the descriptors that become 0, 1 and 2 of the command (`SCM_RIGHTS`); the last one is the
//! answer. Whoever closes the socket before ends the command.

use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::message::{Dialogue, ExitReport, GuestIds};

/// Where the guest listens in a sandbox.
pub const SOCKET: &str = "/run/offleash/sudo";

/// What the guest is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SudoRequest {
    /// Run a command; once.
    Run(SudoRun),
    /// Send its process group a signal.
    Signal {
        /// The signal's number.
        signal: i32,
    },
}

/// A command to run as a user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SudoRun {
    /// Program and arguments; a program without a slash is looked up in the `PATH` of `env`.
    #[serde(with = "crate::bytes::list")]
    pub argv: Vec<Vec<u8>>,
    /// The whole environment: names and values.
    #[serde(with = "crate::bytes::pairs")]
    pub env: Vec<(Vec<u8>, Vec<u8>)>,
    /// Working directory.
    #[serde(with = "crate::bytes")]
    pub cwd: Vec<u8>,
    /// As whom.
    pub user: GuestIds,
    /// Whether descriptor 0 is a terminal that nobody has, and becomes that of the command's session.
    pub terminal: bool,
}

impl Dialogue for SudoRequest {
    const MAX_FRAME: usize = 256 * 1024;
}

/// What the guest answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SudoReply {
    /// How the command ended.
    pub end: ExitReport,
}

impl Dialogue for SudoReply {
    const MAX_FRAME: usize = 1024;
}
