//! Spans: what requests and their work in sandboxes took, for whoever collects them (OpenTelemetry).
//!
//! Without a collector there are none. With one, spans wait in a bounded queue for a task that sends them. Where that is full
//! they are dropped, and no request ever waits for it. A span has names of ours, ids, durations and outcomes. Paths, queries,
//! headers, commands and code are never in one.

mod endpoint;
mod export;
mod span;

use http::HeaderValue;

pub use endpoint::{BadEndpoint, TracesEndpoint};
pub(crate) use span::{Tracer, WorkSpan, carry};

/// What a request turned out to be about.
#[derive(Debug, Default)]
pub(crate) struct RequestSubject {
    pub(crate) key: Option<String>,
    pub(crate) sandbox: Option<String>,
    pub(crate) port: Option<u16>,
    /// The origin of a page that was allowed to call, and may read the answer.
    pub(crate) page: Option<HeaderValue>,
}

/// What is done in or with a sandbox for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SpanOperation {
    /// A sandbox is made or handed out.
    Create,
    /// A paused one goes on.
    Resume,
    /// A command, from its start to its end or to that of the connection that hears of it.
    Exec,
}

/// Does `work` and tells how long it took, whether it succeeded, and then with which sandbox.
pub(crate) async fn of<T, E>(
    operation: SpanOperation,
    work: impl Future<Output = Result<T, E>>,
    sandbox: impl Fn(&T) -> String,
) -> Result<T, E> {
    let mut span = WorkSpan::begin(operation);
    let done = work.await;
    if let Ok(done) = &done {
        span.sandbox(|| sandbox(done));
    }
    span.ended(done.is_ok());
    done
}
