//! How a build goes on, for whoever watches: a bar with the latest line on a terminal, a line a step elsewhere.

use offleash_supervisor::templates::Progress;

use crate::terminal::{self, Bar};

/// What is shown of a build.
pub(super) enum Shown {
    Nothing,
    /// A line for each step, and with `verbose` what it prints.
    Lines {
        verbose: bool,
    },
    /// It is drawn only when something happens: threads of its own a process that makes sandboxes cannot have.
    /// What is to stay comes when the bar is gone.
    Bar(Bar, Vec<String>),
}

impl Shown {
    pub(super) fn new(quiet: bool, verbose: bool) -> Self {
        if quiet {
            return Self::Nothing;
        }
        let bar = if verbose { None } else { Bar::new() };
        bar.map_or(Self::Lines { verbose }, |bar| Self::Bar(bar, Vec::new()))
    }

    /// Takes the bar away.
    pub(super) fn finish(self) {
        if let Self::Bar(bar, kept) = self {
            bar.finish();
            kept.iter().for_each(|line| terminal::complain(line));
        }
    }
}

impl Progress for Shown {
    fn step(&mut self, number: usize, of: usize, title: &str) {
        match self {
            Self::Nothing => {}
            Self::Lines { .. } => terminal::complain(&format!("[{number}/{of}] {title}")),
            Self::Bar(bar, _) => bar.step(number, of, title),
        }
    }

    fn note(&mut self, told: &str) {
        match self {
            Self::Nothing => {}
            Self::Lines { .. } => terminal::complain(&format!("  {told}")),
            Self::Bar(bar, _) => bar.aside(|| terminal::complain(&format!("  {told}"))),
        }
    }

    fn line(&mut self, line: &str) {
        match self {
            Self::Nothing | Self::Lines { verbose: false } => {}
            Self::Lines { verbose: true } => terminal::complain(&format!("  {line}")),
            Self::Bar(bar, _) => bar.line(line),
        }
    }

    fn left_out(&mut self, packages: &str, why: &str) {
        let line = format!("left out: {packages}: {why}");
        match self {
            // It is less than what was asked for, and no error that anybody would see.
            Self::Nothing | Self::Lines { .. } => terminal::complain(&line),
            Self::Bar(_, kept) => kept.push(line),
        }
    }

    fn idle(&mut self) {
        if let Self::Bar(bar, _) = self {
            bar.tick();
        }
    }
}
