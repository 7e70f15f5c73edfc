//! How much a cell and a sandbox's contexts may have.

use std::time::Duration;

use crate::language::Language;

/// What one cell may write, and how long a context waits for what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CellLimits {
    /// Bytes of output of a cell, standard output and standard error together.
    pub output: u64,
    /// Bytes of the results and errors of a cell together.
    pub results: u64,
    /// Bytes of the code of a cell.
    pub code: usize,
    /// Contexts of a sandbox; of these, one for each language is kept for its default context, which cells of that language
    /// run in that name none: whoever may make contexts must not keep others from running code.
    pub contexts: usize,
    /// Cells that wait for one context.
    pub waiting: usize,
    /// How long a cell may take to end after it was interrupted, before its context is ended.
    pub grace: Duration,
    /// How long a driver may take to start.
    pub start: Duration,
    /// How long a driver may take to answer when no cell runs.
    pub answer: Duration,
    /// How long a driver may take to load what cells of another left.
    pub load: Duration,
}

impl Default for CellLimits {
    fn default() -> Self {
        Self {
            output: 64 * 1024 * 1024,
            results: 32 * 1024 * 1024,
            code: 16 * 1024 * 1024,
            contexts: 28 + Language::ALL.len(),
            waiting: 64,
            grace: Duration::from_secs(5),
            start: Duration::from_secs(60),
            answer: Duration::from_secs(5),
            load: Duration::from_secs(120),
        }
    }
}

impl CellLimits {
    /// How many contexts there may be besides the default ones.
    pub fn contexts_besides_defaults(&self) -> usize {
        self.contexts.saturating_sub(Language::ALL.len())
    }
}

/// What is left of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitBudget {
    left: u64,
}

impl LimitBudget {
    /// All of it is left.
    pub fn new(limit: u64) -> Self {
        Self { left: limit }
    }

    /// Takes as much of `wanted` as is left, and says how much that is.
    pub fn take_some(&mut self, wanted: usize) -> usize {
        let taken = usize::try_from(self.left).unwrap_or(usize::MAX).min(wanted);
        self.left -= u64::try_from(taken).unwrap_or(self.left);
        taken
    }

    /// Takes `wanted` if that much is left, and nothing otherwise.
    pub fn take_all(&mut self, wanted: usize) -> bool {
        let wanted = u64::try_from(wanted).unwrap_or(u64::MAX);
        let fits = wanted <= self.left;
        if fits {
            self.left -= wanted;
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_gives_what_is_left() {
        let mut budget = LimitBudget::new(10);
        assert_eq!(budget.take_some(6), 6);
        assert!(!budget.take_all(5));
        assert!(budget.take_all(3));
        assert_eq!(budget.take_some(usize::MAX), 1);
        assert_eq!(budget.take_some(1), 0);
        assert!(budget.take_all(0));
    }
}
