//! How a context saves what its cells left, and has what those of another left.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::ContextActor;
use crate::contexts::ContextState;
use crate::error::ContextError;
use crate::obstacle::CarryObstacle;
use crate::process::ProcessHost;
use crate::state::{SaveOptions, SavedContext};

/// That a context is to save what its cells left, and run none until it is released.
#[derive(Debug)]
pub(crate) struct SaveRequest {
    pub(crate) options: Arc<SaveOptions>,
    pub(crate) reply: oneshot::Sender<Result<SavedContext, ContextError>>,
    /// Ends when the file is not needed any more.
    pub(crate) released: oneshot::Receiver<()>,
}

/// That a context has run a cell before it was to be given those of another.
pub(crate) fn too_late() -> ContextError {
    ContextError::Invalid {
        reason: "a context can be given the state of another before its first cell, and has run one".to_owned(),
    }
}

impl<P: ProcessHost> ContextActor<P> {
    /// Has a driver that has loaded what cells of another left.
    pub(super) async fn load(&mut self, path: &str) -> Result<Vec<CarryObstacle>, ContextError> {
        self.make_ready().await?;
        let has_run = self.has_run();
        let Some(driver) = self.driver.as_mut().filter(|_| !has_run) else {
            return Err(too_late());
        };
        match driver.load(self.info.language, path, self.limits.load).await {
            Ok((count, left_out)) => {
                self.count(count);
                Ok(left_out)
            }
            Err(reason) => {
                // Nobody can say what it has now.
                let _ended = self.end_driver().await;
                self.driver = None;
                let id = self.info.id.clone();
                Err(ContextError::NotLoaded { id, reason })
            }
        }
    }

    /// Saves what cells left, and keeps it until nobody needs it any more.
    pub(super) async fn save(&mut self, asked: SaveRequest) {
        if asked.reply.is_closed() {
            return;
        }
        let saved = self.saved(&asked.options).await;
        let is_kept = saved.as_ref().is_ok_and(|saved| saved.file.is_some());
        if asked.reply.send(saved).is_ok() {
            // It fails when whoever asked is gone, which is the same.
            let _released = asked.released.await;
        }
        if is_kept && let Some(driver) = &mut self.driver {
            // The next thing that it is asked makes it remove the file. While it is paused that has to wait for a cell.
            driver.lose_track();
            let _later = self.settle().await;
        }
    }

    async fn saved(&mut self, options: &SaveOptions) -> Result<SavedContext, ContextError> {
        self.settle().await?;
        let nothing = SavedContext::new(&self.info);
        if self.driver.is_none() || !self.has_run() {
            return Ok(nothing);
        }
        let language = self.info.language;
        if let Some(reason) = language.cannot_be_saved() {
            return nothing.without(vec![CarryObstacle::whole_context(language, reason)], options.skip);
        }
        let file = options.new_file()?;
        self.note(ContextState::Busy);
        let Some(driver) = &mut self.driver else {
            return Ok(nothing);
        };
        match driver.save(language, options, &file).await {
            Ok(left_out) => {
                self.note(ContextState::Idle);
                Ok(SavedContext {
                    file: Some(file),
                    left_out,
                    ..nothing
                })
            }
            Err(unsaved) => {
                driver.lose_track();
                self.settle().await?;
                Err(unsaved.of(&self.info))
            }
        }
    }
}
