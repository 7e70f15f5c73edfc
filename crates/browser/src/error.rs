//! Why a browser does not do what it is asked.

/// Why a browser does not do what it is asked.
#[derive(Debug, thiserror::Error)]
pub enum BrowserError {
    /// It does not speak HTTP, or hung up.
    #[error("the browser does not answer")]
    Unreachable(#[from] hyper::Error),
    /// It does not speak WebSocket, or says too much at once.
    #[error("the connection to the browser broke")]
    Broken(#[from] tokio_websockets::Error),
    /// It hung up.
    #[error("the browser hung up")]
    Closed,
    /// Its answer is not what it must be.
    #[error("the browser's answer to `{asked}` is not what it must be")]
    Malformed {
        /// What was asked.
        asked: &'static str,
    },
    /// It said no.
    #[error("the browser refused `{asked}`: {message}")]
    Refused {
        /// What was asked.
        asked: &'static str,
        /// What it said, cut.
        message: String,
    },
    /// It takes too long.
    #[error("the browser does not answer `{asked}` in time")]
    Timeout {
        /// What was asked.
        asked: &'static str,
    },
    /// The kernel gives no random bytes.
    #[error("there are no random bytes")]
    Random,
}
