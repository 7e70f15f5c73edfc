//! Work of the daemon for a caller.

use std::future::Future;

use http::StatusCode;
use offleash_daemon::{Caller, Daemon, DaemonError, ForkRequest, ForkResults, SandboxView};
use offleash_supervisor::service::client::SupervisorClient;
use offleash_supervisor::service::error::SupervisorError;

use super::ApiRequest;
use crate::commands::CommandFailure;
use crate::http::answer::ApiRefusal;
use crate::http::{destination, failure};
use crate::telemetry::{self, SpanOperation};

const IDEMPOTENCY_KEY: &str = "idempotency-key";

impl ApiRequest<'_> {
    /// The id in a path; what cannot be one is an id that nobody has.
    pub(crate) fn sandbox_id<'s>(&self, id: &'s str) -> Result<&'s str, ApiRefusal> {
        if destination::is_id(id) {
            return Ok(id);
        }
        // As it was typed, not as paths write it.
        let id = percent_encoding::percent_decode_str(id)
            .decode_utf8_lossy()
            .into_owned();
        Err(self.refused(&DaemonError::NotFound { id }))
    }

    /// What the creator calls its request, so that a repeated one makes no second sandbox.
    pub(crate) fn idempotency_key(&self) -> Option<String> {
        let key = self.parts.headers.get(IDEMPOTENCY_KEY)?;
        // What is no text is no such key, and refused as one.
        Some(key.to_str().unwrap_or("").to_owned())
    }

    /// Does something that goes on when the client goes away meanwhile.
    pub(crate) async fn whole<F, T>(&self, work: impl FnOnce(Daemon, Caller) -> F) -> Result<T, ApiRefusal>
    where
        F: Future<Output = Result<T, DaemonError>> + Send + 'static,
        T: Send + 'static,
    {
        let work = work(self.daemon().clone(), self.caller.clone());
        match tokio::spawn(telemetry::carry(work)).await {
            Ok(result) => result.map_err(|error| self.refused(&error)),
            Err(error) => {
                let told = "the request failed";
                failure::record(self.journal(), told, &error);
                Err(ApiRefusal::new(StatusCode::INTERNAL_SERVER_ERROR, told))
            }
        }
    }

    /// A sandbox of the caller's, with who does what is asked in it. One that sleeps is woken by this.
    ///
    /// # Errors
    /// 404 for one that is another key's, 409 for one that is paused, and whatever the daemon refuses.
    pub(crate) async fn own_sandbox(&self, given: &str) -> Result<(SandboxView, SupervisorClient), ApiRefusal> {
        let id = self.sandbox_id(given)?;
        // Only the owner of a sandbox may.
        let view = self
            .daemon()
            .get(&self.caller, id)
            .map_err(|error| self.refused(&error))?;
        let supervisor = self.daemon().supervisor(id).await;
        Ok((view, supervisor.map_err(|error| self.refused(&error))?))
    }

    /// What the caller is told when nothing came of a command in a sandbox of its own.
    pub(crate) fn failed(&self, failure: &CommandFailure) -> ApiRefusal {
        match failure {
            CommandFailure::Daemon(error) => self.refused(error),
            CommandFailure::Supervisor(error) => self.not_run(error),
        }
    }

    /// What the caller is told of a command that was not run.
    pub(crate) fn not_run(&self, error: &SupervisorError) -> ApiRefusal {
        failure::refusal_of_supervisor(self.journal(), "the command was not run", error)
    }

    /// Makes forks for a caller who may make sandboxes.
    pub(crate) async fn forks(
        &self,
        given: &str,
        request: ForkRequest,
    ) -> Result<Vec<Result<SandboxView, ApiRefusal>>, ApiRefusal> {
        let id = self.sandbox_id(given)?.to_owned();
        let forks = self.whole(|daemon, caller| async move { daemon.fork(&caller, &id, request).await });
        let first = |forks: &ForkResults| {
            forks
                .iter()
                .flatten()
                .next()
                .map(|view| view.id.clone())
                .unwrap_or_default()
        };
        let forks = telemetry::of(SpanOperation::Create, forks, first).await?;
        Ok(forks
            .into_iter()
            .map(|fork| fork.map_err(|error| self.refused(&error)))
            .collect())
    }
}
