//! The engine: samples in, firings out. What it remembers is bounded, whatever the samples are.

use std::collections::VecDeque;

use super::{FigureKind, MonitorAction, MonitorFigure, MonitorRule};

/// How often a rule fires in the life of a sandbox; a program that goes on is one thing to know, not a thousand.
pub const MAX_FIRINGS: u32 = 50;
/// How many points of a window are told apart.
const MAX_POINTS: u64 = 32;
/// How long a rule that fired is quiet at least, in milliseconds; what only tells is quiet twice as long each time.
const QUIET_MS: u64 = 30_000;
/// The longest that it is quiet.
const MAX_QUIET_MS: u64 = 3600 * 1000;

/// What is known at one moment: totals since the sandbox was made for what counts, values for what is a level.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MonitorSample {
    at_ms: u64,
    values: Vec<(MonitorFigure, u64)>,
}

impl MonitorSample {
    /// A sample of `at_ms`, milliseconds since the sandbox was made, in which nothing is known.
    pub fn at(at_ms: u64) -> Self {
        let values = Vec::with_capacity(MonitorFigure::ALL.len());
        Self { at_ms, values }
    }

    /// The same with a figure; CPU time in microseconds.
    #[must_use]
    pub fn with(mut self, figure: MonitorFigure, value: u64) -> Self {
        self.values.push((figure, value));
        self
    }

    fn value(&self, figure: MonitorFigure) -> Option<u64> {
        let found = self.values.iter().find(|(known, _)| *known == figure);
        found.map(|(_, value)| *value)
    }
}

/// A rule that has fired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleFiring {
    /// Which.
    pub rule: MonitorRule,
    /// What the figure was, in its unit.
    pub value: u64,
}

/// Decides when rules fire.
#[derive(Debug, Clone, Default)]
pub struct MonitorEngine {
    rules: Vec<WatchedRule>,
    latest_ms: u64,
}

#[derive(Debug, Clone)]
struct WatchedRule {
    rule: MonitorRule,
    points: VecDeque<WindowPoint>,
    quiet_until_ms: u64,
    firings: u32,
}

/// A value at a moment; of a level, the smallest since the point before.
#[derive(Debug, Clone, Copy)]
struct WindowPoint {
    at_ms: u64,
    value: u64,
}

impl MonitorEngine {
    /// An engine for a sandbox that is made now.
    pub fn new(rules: Vec<MonitorRule>) -> Self {
        Self {
            rules: rules.into_iter().map(WatchedRule::new).collect(),
            latest_ms: 0,
        }
    }

    /// Whether any rule is about one of `figures`: what nobody watches need not be found out.
    pub fn watches(&self, figures: &[MonitorFigure]) -> bool {
        self.rules.iter().any(|watched| figures.contains(&watched.rule.watch))
    }

    /// Takes a sample in; the rules that fire. One that is older than the last says nothing.
    pub fn take(&mut self, sample: &MonitorSample) -> Vec<RuleFiring> {
        if sample.at_ms < self.latest_ms {
            return Vec::new();
        }
        self.latest_ms = sample.at_ms;
        let fires = |watched: &mut WatchedRule| watched.take(sample);
        self.rules.iter_mut().filter_map(fires).collect()
    }

    /// How many points are remembered in all.
    #[cfg(test)]
    pub(super) fn remembered(&self) -> usize {
        self.rules.iter().map(|watched| watched.points.len()).sum()
    }
}

impl WatchedRule {
    fn new(rule: MonitorRule) -> Self {
        let is_level = rule.watch.kind() == FigureKind::Level;
        let beginning = (!is_level).then_some(WindowPoint { at_ms: 0, value: 0 });
        Self {
            rule,
            points: beginning.into_iter().collect(),
            quiet_until_ms: 0,
            firings: 0,
        }
    }

    fn take(&mut self, sample: &MonitorSample) -> Option<RuleFiring> {
        let value = sample.value(self.rule.watch)?;
        self.note(sample.at_ms, value);
        let value = self.figure()?;
        let is_due = sample.at_ms >= self.quiet_until_ms && self.firings < MAX_FIRINGS;
        if value < self.rule.threshold || !is_due {
            return None;
        }
        self.rest(sample.at_ms);
        let rule = self.rule.clone();
        Some(RuleFiring { rule, value })
    }

    fn note(&mut self, at_ms: u64, value: u64) {
        let spacing = self.rule.window.0 / MAX_POINTS;
        let before_last = self
            .points
            .len()
            .checked_sub(2)
            .and_then(|place| self.points.get(place));
        let is_crowded = before_last.is_some_and(|before| at_ms.saturating_sub(before.at_ms) < spacing);
        match self.points.back_mut() {
            Some(last) if is_crowded => {
                last.value = match self.rule.watch.kind() {
                    FigureKind::Level => last.value.min(value),
                    FigureKind::Count | FigureKind::CpuTime => value,
                };
                last.at_ms = at_ms;
            }
            _ => self.points.push_back(WindowPoint { at_ms, value }),
        }
        // One point at or before the beginning of the window stays.
        let begins_ms = at_ms.saturating_sub(self.rule.window.0);
        while self.points.get(1).is_some_and(|second| second.at_ms <= begins_ms) {
            self.points.pop_front();
        }
    }

    /// The figure over the window that ends with the last point; `None` where a whole window is needed and not there yet.
    fn figure(&self) -> Option<u64> {
        let (first, last) = (self.points.front()?, self.points.back()?);
        let elapsed_ms = last.at_ms.saturating_sub(first.at_ms);
        let grown = last.value.saturating_sub(first.value);
        let window_ms = self.rule.window.0;
        let is_whole = elapsed_ms >= window_ms - window_ms / 10;
        match self.rule.watch.kind() {
            FigureKind::Count if elapsed_ms > window_ms => Some(scaled(grown, window_ms, elapsed_ms)),
            FigureKind::Count => Some(grown),
            // Microseconds of CPU for each millisecond, a tenth of which is percent.
            FigureKind::CpuTime => is_whole.then(|| scaled(grown, 1, elapsed_ms.saturating_mul(10).max(1))),
            FigureKind::Level if !is_whole => None,
            FigureKind::Level => self.points.iter().map(|point| point.value).min(),
        }
    }

    /// What was counted counts no more, and for a while nothing is told.
    fn rest(&mut self, at_ms: u64) {
        let only_tells = matches!(self.rule.action, MonitorAction::Log | MonitorAction::Alert);
        let doublings = if only_tells { self.firings.min(16) } else { 0 };
        let quiet_ms = self.rule.window.0.max(QUIET_MS) << doublings;
        self.quiet_until_ms = at_ms.saturating_add(quiet_ms.min(MAX_QUIET_MS));
        self.firings += 1;
        let last = self.points.pop_back();
        self.points.clear();
        self.points.extend(last);
    }
}

/// `value` × `part` / `whole`, without overflow.
fn scaled(value: u64, part: u64, whole: u64) -> u64 {
    let scaled = u128::from(value) * u128::from(part) / u128::from(whole.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}
