//! How a build goes on, for whoever watches: a bar with the latest line on a terminal, a line a step elsewhere.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use offleash_manager::templates::Progress;

use crate::terminal;

/// Longest line beside the bar, characters; it is cut to the terminal besides.
const LONGEST: usize = 200;

/// What is shown of a build.
pub(super) enum Shown {
    Nothing,
    /// A line for each step, and with `verbose` what it prints.
    Lines {
        verbose: bool,
    },
    /// It is drawn only when something happens: threads of its own a process that makes sandboxes cannot have.
    Bar(ProgressBar),
}

impl Shown {
    pub(super) fn new(quiet: bool, verbose: bool) -> Self {
        if quiet {
            Self::Nothing
        } else if verbose || !terminal::complains_to_a_person() {
            Self::Lines { verbose }
        } else {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            bar.set_style(ProgressStyle::default_spinner());
            Self::Bar(bar)
        }
    }

    /// Takes the bar away.
    pub(super) fn finish(self) {
        if let Self::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}

impl Progress for Shown {
    fn step(&mut self, number: usize, of: usize, title: &str) {
        let step = format!("[{number}/{of}] {title}");
        match self {
            Self::Nothing => {}
            Self::Lines { .. } => terminal::complain(&step),
            Self::Bar(bar) => {
                // What is in braces would be a part of the template.
                let plain = step.replace('{', "{{").replace('}', "}}");
                let style = ProgressStyle::with_template(&format!("{{spinner}} {plain} {{elapsed}} {{wide_msg:.dim}}"));
                bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
                bar.set_message(String::new());
                bar.tick();
            }
        }
    }

    fn line(&mut self, line: &str) {
        match self {
            Self::Nothing | Self::Lines { verbose: false } => {}
            Self::Lines { verbose: true } => terminal::complain(&format!("  {line}")),
            Self::Bar(bar) => bar.set_message(line.chars().take(LONGEST).collect::<String>()),
        }
    }

    fn idle(&mut self) {
        if let Self::Bar(bar) = self {
            bar.tick();
        }
    }
}
