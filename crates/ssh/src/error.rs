//! Why a client is not served any longer.

use std::io;

use offleash_core::error::{ErrorKind, Explained};

/// Why a connection ended before its client wanted.
#[derive(Debug, thiserror::Error)]
pub enum SshError {
    /// The streams failed.
    #[error("the connection to the SSH client failed")]
    Stream(#[from] io::Error),
    /// The client has none of the algorithms that are spoken here.
    #[error("the SSH client has no {what} in common with us: we have {ours}")]
    NoneInCommon {
        /// What kind of algorithm.
        what: &'static str,
        /// Which we have.
        ours: &'static str,
    },
    /// What came is not what the protocol allows.
    #[error("the SSH client does not keep to the protocol: {0}")]
    Protocol(&'static str),
    /// What came was changed on its way, or was never meant for us.
    #[error("a packet of the SSH client cannot be opened")]
    Unsealed,
    /// The kernel gives no random bytes, or a key cannot be used.
    #[error("no key can be made")]
    Key,
}

impl Explained for SshError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Stream(_) => ErrorKind::Unavailable,
            Self::NoneInCommon { .. } => ErrorKind::Unsupported,
            Self::Protocol(_) | Self::Unsealed => ErrorKind::Invalid,
            Self::Key => ErrorKind::Internal,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::NoneInCommon { .. } => {
                Some("OpenSSH has them since 6.5, unless its configuration takes them away".to_owned())
            }
            _ => None,
        }
    }
}
