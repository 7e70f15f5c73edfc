//! How a build goes on, for whoever watches: a bar with the latest line on a terminal, a line a step elsewhere.

use offleash_manager::templates::Progress;

use crate::terminal::{self, Bar};

/// What is shown of a build.
pub(super) enum Shown {
    Nothing,
    /// A line for each step, and with `verbose` what it prints.
    Lines {
        verbose: bool,
    },
    /// It is drawn only when something happens: threads of its own a process that makes sandboxes cannot have.
    Bar(Bar),
}

impl Shown {
    pub(super) fn new(quiet: bool, verbose: bool) -> Self {
        if quiet {
            return Self::Nothing;
        }
        let bar = if verbose { None } else { Bar::new() };
        bar.map_or(Self::Lines { verbose }, Self::Bar)
    }

    /// Takes the bar away.
    pub(super) fn finish(self) {
        if let Self::Bar(bar) = self {
            bar.finish();
        }
    }
}

impl Progress for Shown {
    fn step(&mut self, number: usize, of: usize, title: &str) {
        match self {
            Self::Nothing => {}
            Self::Lines { .. } => terminal::complain(&format!("[{number}/{of}] {title}")),
            Self::Bar(bar) => bar.step(number, of, title),
        }
    }

    fn note(&mut self, told: &str) {
        match self {
            Self::Nothing => {}
            Self::Lines { .. } => terminal::complain(&format!("  {told}")),
            Self::Bar(bar) => bar.aside(|| terminal::complain(&format!("  {told}"))),
        }
    }

    fn line(&mut self, line: &str) {
        match self {
            Self::Nothing | Self::Lines { verbose: false } => {}
            Self::Lines { verbose: true } => terminal::complain(&format!("  {line}")),
            Self::Bar(bar) => bar.line(line),
        }
    }

    fn idle(&mut self) {
        if let Self::Bar(bar) = self {
            bar.tick();
        }
    }
}
