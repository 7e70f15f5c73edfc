//! The bar of a build on the user's terminal: how many steps are done, what is being done, since when, and its latest line.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Longest line beside the bar, characters; it is cut to the terminal besides.
const MAX_LENGTH: usize = 200;
/// How often one that moves by itself does.
const MOVES_EVERY: Duration = Duration::from_millis(200);

/// It is drawn only when something happens, unless it [moves by itself](Bar::move_by_itself).
#[derive(Debug)]
pub(crate) struct Bar(ProgressBar);

impl Bar {
    /// One on standard error; `None` if that is not a terminal on which it can be drawn.
    pub(crate) fn new() -> Option<Self> {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        bar.set_style(ProgressStyle::default_spinner());
        (!bar.is_hidden()).then_some(Self(bar))
    }

    /// Has a thread draw it, which a process that makes sandboxes cannot have.
    pub(crate) fn move_by_itself(&self) {
        self.0.enable_steady_tick(MOVES_EVERY);
    }

    /// Step `number`, from 1, of so many begins.
    pub(crate) fn step(&self, number: usize, of: usize, title: &str) {
        // What is in braces would be a part of the template.
        let plain = title.replace('{', "{{").replace('}', "}}");
        let form = format!("{{spinner}} [{{bar:12}}] [{number}/{of}] {plain} {{elapsed}} {{wide_msg:.dim}}");
        let style = ProgressStyle::with_template(&form).map(|style| style.progress_chars("=> "));
        self.0
            .set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        let count = |steps: usize| u64::try_from(steps).unwrap_or(u64::MAX);
        self.0.set_length(count(of));
        self.0.set_position(count(number.saturating_sub(1)));
        self.0.set_message(String::new());
        self.0.reset_elapsed();
        self.0.tick();
    }

    /// The step printed a line.
    pub(crate) fn line(&self, line: &str) {
        self.0.set_message(line.chars().take(MAX_LENGTH).collect::<String>());
    }

    /// Time has passed.
    pub(crate) fn tick(&self) {
        self.0.tick();
    }

    /// Has something written to the terminal while the bar is not there.
    pub(crate) fn aside(&self, write: impl FnOnce()) {
        self.0.suspend(write);
    }

    /// Takes the bar away.
    pub(crate) fn finish(&self) {
        self.0.finish_and_clear();
    }
}
