//! Signals that are waited for on an event loop.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::Failure;

/// Resolves when somebody wants this process to end, to the signal that said so.
pub(crate) fn end_signal() -> Result<impl Future<Output = &'static str>, Failure> {
    let mut terminated = waiting(SignalKind::terminate())?;
    let mut interrupted = waiting(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminated.recv() => "SIGTERM",
            _ = interrupted.recv() => "SIGINT",
        }
    })
}

/// Takes signals of a kind from here on.
pub(crate) fn waiting(kind: SignalKind) -> Result<Signal, Failure> {
    signal(kind).map_err(|error| Failure::new(format!("cannot wait for signals: {error}")))
}
