//! Builds of templates that were asked for: told in the log, and shown by a bar where that is a terminal.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use offleash_core::template::TemplateName;
use offleash_supervisor::templates::{BuildEvent, BuildWatcher};
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

/// How many events may wait to be shown before lines are left out.
const MAX_WAITING: usize = 64;

/// Hands events to a thread of its own, which may be held up by a terminal that is: the server is not.
#[derive(Debug)]
pub(super) struct BuildTeller {
    events: Sender<(TemplateName, BuildEvent)>,
    waiting: Arc<AtomicUsize>,
}

impl BuildTeller {
    /// # Errors
    /// When there can be no thread.
    pub(super) fn start(lines: Arc<JsonLines>) -> io::Result<Self> {
        let (events, told) = channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let left = Arc::clone(&waiting);
        let show = move || show_all(&lines, &told, &left);
        std::thread::Builder::new().name("builds".to_owned()).spawn(show)?;
        Ok(Self { events, waiting })
    }
}

fn show_all(lines: &JsonLines, told: &Receiver<(TemplateName, BuildEvent)>, left: &AtomicUsize) {
    for (name, event) in told {
        left.fetch_sub(1, Ordering::Relaxed);
        lines.show(&name, &event);
    }
}

impl BuildWatcher for BuildTeller {
    fn tell(&self, name: &TemplateName, event: &BuildEvent) {
        let is_line = matches!(event, BuildEvent::Line { .. });
        if is_line && self.waiting.load(Ordering::Relaxed) >= MAX_WAITING {
            return;
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        // The thread ends with the last of these.
        let _told = self.events.send((name.clone(), event.clone()));
    }
}

impl JsonLines {
    fn show(&self, name: &TemplateName, event: &BuildEvent) {
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
            BuildEvent::Note { told } => self.build("info", name, told),
            BuildEvent::Line { line } => {
                if let Some(bar) = &*self.bar.lock() {
                    bar.line(line);
                }
            }
            BuildEvent::LeftOut { packages, why } => {
                self.build("warning", name, &format!("left out: {packages}: {why}"));
            }
            BuildEvent::Built { bytes, files } => {
                self.bar.end();
                self.build("info", name, &format!("built: {bytes} bytes in {files} files"));
            }
            BuildEvent::Failed { last_lines, told, .. } => {
                self.bar.end();
                last_lines.iter().for_each(|line| self.build("error", name, line));
                self.build("error", name, told);
            }
        }
    }
}
