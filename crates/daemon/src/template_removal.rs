//! Removes templates, with what was made ahead of them.

use std::sync::Arc;
use std::time::Duration;

use offleash_core::template::TemplateName;
use tokio::time::{Instant, sleep};

use crate::browser_pool::{BrowserPool, ClosedBrowsers};
use crate::ending::SandboxEnder;
use crate::error::DaemonError;
use crate::history::EndCause;
use crate::pool::{ClosedQueue, ReadyPool};
use crate::sandboxes::SandboxTable;
use crate::templates::{TemplateStore, named};
use crate::zygotes::ZygotePool;

/// How long members of the pool may take to end when their template is removed, and how often that is looked at.
const POOL_END_TIMEOUT: Duration = Duration::from_secs(60);
const POOL_END_LOOK: Duration = Duration::from_millis(10);

/// Removes templates.
#[derive(Debug)]
pub(crate) struct TemplateRemover {
    templates: Arc<TemplateStore>,
    sandboxes: Arc<SandboxTable>,
    pool: Arc<ReadyPool>,
    browsers: Arc<BrowserPool>,
    zygotes: Arc<ZygotePool>,
    ender: Arc<SandboxEnder>,
}

impl TemplateRemover {
    pub(crate) fn new(
        templates: Arc<TemplateStore>,
        sandboxes: Arc<SandboxTable>,
        pool: Arc<ReadyPool>,
        browsers: Arc<BrowserPool>,
        zygotes: Arc<ZygotePool>,
        ender: Arc<SandboxEnder>,
    ) -> Self {
        Self {
            templates,
            sandboxes,
            pool,
            browsers,
            zygotes,
            ender,
        }
    }

    /// Removes a template that no sandbox of anybody uses; members of the pool are ended.
    ///
    /// # Errors
    /// `UnknownTemplate`, `TemplateInUse`, `Templates`.
    pub(crate) async fn remove(&self, name: &str) -> Result<(), DaemonError> {
        let unknown = || DaemonError::UnknownTemplate { name: name.to_owned() };
        let wanted = named(name).ok().flatten().ok_or_else(unknown)?;
        if self.is_used(&wanted, |owner| owner.is_some()) {
            return Err(DaemonError::TemplateInUse { name: name.to_owned() });
        }
        let _closed = self.without_pool(&wanted).await;
        self.templates.remove(wanted, name).await
    }

    /// Whether there is a sandbox of a template whose owner, if it has one, is such.
    fn is_used(&self, name: &TemplateName, is_such: impl Fn(Option<&str>) -> bool) -> bool {
        let all = self.sandboxes.all();
        all.iter()
            .any(|entry| entry.read(|facts| facts.row().template == name.as_str() && is_such(facts.owner())))
    }

    /// Ends what the pools have of a template, which have no more of it as long as the answer lives.
    async fn without_pool(&self, name: &TemplateName) -> (ClosedQueue<'_>, ClosedBrowsers<'_>) {
        let (closed, mut members) = self.pool.close(name.as_str());
        let (without_browsers, waiting) = self.browsers.close(name.as_str());
        members.extend(waiting);
        self.zygotes.close(name.as_str()).await;
        for entry in members {
            self.ender
                .end_in_background(&entry, EndCause::killed("its template is being removed"));
        }
        // Those that are being made are ended then, too.
        let until = Instant::now() + POOL_END_TIMEOUT;
        while self.is_used(name, |owner| owner.is_none()) && Instant::now() < until {
            sleep(POOL_END_LOOK).await;
        }
        (closed, without_browsers)
    }
}
