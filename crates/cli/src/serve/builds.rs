//! Builds of templates that were asked for: told in the log, and shown by a bar where that is a terminal.

use std::sync::{Mutex, MutexGuard, PoisonError};

use offleash_core::template::TemplateName;
use offleash_manager::templates::{BuildEvent, BuildWatcher};
use serde_json::json;

use super::journal::JsonLines;
use crate::terminal::Bar;

/// The bar of the build that goes on, if standard error is a terminal.
#[derive(Debug, Default)]
pub(super) struct BuildBar(Mutex<Option<Bar>>);

impl BuildBar {
    /// Has something written where the bar is drawn, and the bar drawn below that.
    pub(super) fn aside(&self, write: impl FnOnce()) {
        match &*self.lock() {
            Some(bar) => bar.aside(write),
            None => write(),
        }
    }

    fn begin(&self) {
        let bar = Bar::new();
        bar.iter().for_each(Bar::move_by_itself);
        *self.lock() = bar;
    }

    fn end(&self) {
        if let Some(bar) = self.lock().take() {
            bar.finish();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Bar>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl JsonLines {
    /// Takes the bar away of a build that ends with the server.
    pub(super) fn end_build(&self) {
        self.bar.end();
    }

    fn build(&self, level: &str, name: &TemplateName, told: &str) {
        self.write(json!({ "level": level, "event": "template", "template": name.as_str(), "told": told }));
    }
}

impl BuildWatcher for JsonLines {
    fn tell(&self, name: &TemplateName, event: &BuildEvent) {
        match event {
            BuildEvent::Begins { installs } => {
                self.build("info", name, &format!("built on first use: {installs}"));
                self.bar.begin();
            }
            BuildEvent::Step { number, of, title } => {
                self.build("info", name, &format!("[{number}/{of}] {title}"));
                if let Some(bar) = &*self.bar.lock() {
                    bar.step(*number, *of, &format!("{name}: {title}"));
                }
            }
            BuildEvent::Line { line } => {
                if let Some(bar) = &*self.bar.lock() {
                    bar.line(line);
                }
            }
            BuildEvent::Built { bytes, files } => {
                self.bar.end();
                self.build("info", name, &format!("built: {bytes} bytes in {files} files"));
            }
            BuildEvent::Failed { last_lines, told } => {
                self.bar.end();
                last_lines.iter().for_each(|line| self.build("error", name, line));
                self.build("error", name, told);
            }
        }
    }
}
