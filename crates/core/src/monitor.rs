//! Rules over what is known of a sandbox from outside of it: which figure is watched, when a rule fires, what is done then.
//!
//! Pure: samples come in ([`MonitorSample`]), firings go out ([`MonitorEngine`]). Who samples, and who acts, is the
//! supervisor. What runs inside can neither see nor change a rule.

mod builtin;
mod engine;
mod figure;
mod shapes;
#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;

use crate::units::Millis;

pub use builtin::{BUILTIN_RULES, BuiltinRule};
pub use engine::{MAX_FIRINGS, MonitorEngine, MonitorSample, RuleFiring};
pub use figure::{FigureKind, MonitorFigure};
pub use shapes::{
    MINER_PORTS, entropy_millibits, is_generated_name, is_metadata_service, is_stratum, reaches_for_credentials,
};

/// How many rules a policy may have of its own, those that change built-in ones included.
pub const MAX_RULES: usize = 32;
/// The longest name of a rule, in bytes.
pub const MAX_NAME: usize = 64;
/// The shortest window; below it a sample more or less would decide.
pub const MIN_WINDOW: Millis = Millis(1000);
/// The longest window.
pub const MAX_WINDOW: Millis = Millis(3600 * 1000);

/// What is done when a rule fires. Each firing is on record, whatever is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MonitorAction {
    /// The rule is not watched.
    Off,
    /// Nothing more.
    Log,
    /// Its owner is told: at the terminal, as an event, by a webhook.
    Alert,
    /// The same, and the sandbox gets [`THROTTLED_CPUS_MILLIS`] from then on.
    Throttle,
    /// The same as `alert`, and every process of the sandbox stops until it is resumed.
    Pause,
    /// The same as `pause`, and a snapshot of the files is made.
    SnapshotAndPause,
    /// The sandbox is ended.
    Kill,
}

/// What a throttled sandbox has of the processors, in thousandths of one.
pub const THROTTLED_CPUS_MILLIS: u64 = 250;

impl MonitorAction {
    /// All of them, the mildest first.
    pub const ALL: [Self; 7] = [
        Self::Off,
        Self::Log,
        Self::Alert,
        Self::Throttle,
        Self::Pause,
        Self::SnapshotAndPause,
        Self::Kill,
    ];

    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Log => "log",
            Self::Alert => "alert",
            Self::Throttle => "throttle",
            Self::Pause => "pause",
            Self::SnapshotAndPause => "snapshot-and-pause",
            Self::Kill => "kill",
        }
    }

    /// Whether the sandbox stops until somebody resumes it.
    pub fn pauses(self) -> bool {
        matches!(self, Self::Pause | Self::SnapshotAndPause)
    }
}

impl fmt::Display for MonitorAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl FromStr for MonitorAction {
    type Err = MonitorRuleError;

    fn from_str(word: &str) -> Result<Self, MonitorRuleError> {
        let found = Self::ALL.into_iter().find(|action| action.word() == word);
        found.ok_or_else(|| MonitorRuleError::Action(word.to_owned()))
    }
}

/// A rule: it fires when its figure reaches the threshold within the window.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct MonitorRule {
    /// What it is called, as alerts name it.
    pub name: String,
    /// What it watches.
    pub watch: MonitorFigure,
    /// From which value on it fires, in the unit of the figure.
    pub threshold: u64,
    /// Over which time.
    pub window: Millis,
    /// What is done.
    pub action: MonitorAction,
}

/// A rule that cannot be one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MonitorRuleError {
    /// The name is none.
    #[error("`{}` is not the name of a rule: up to {MAX_NAME} lower-case letters, digits and dashes", .0.escape_debug())]
    Name(String),
    /// Nothing is called that.
    #[error("`{}` is nothing that is watched; what is: {}", .0.escape_debug(), MonitorFigure::words())]
    Figure(String),
    /// No action is called that.
    #[error("`{}` is no action (off, log, alert, throttle, pause, snapshot-and-pause, kill)", .0.escape_debug())]
    Action(String),
    /// A rule that always fires is none.
    #[error("a threshold is a number from 1 on")]
    Threshold,
    /// The window is too short or too long.
    #[error("a window is from {MIN_WINDOW} to {MAX_WINDOW}")]
    Window,
    /// It does not say what it watches, and is none of the built-in ones.
    #[error("the rule needs `{key}`: no built-in rule is called `{name}`")]
    Missing {
        /// The key that is missing.
        key: &'static str,
        /// The rule.
        name: String,
    },
    /// There are two of that name.
    #[error("there are two rules `{0}`")]
    Twice(String),
    /// There are more than there may be.
    #[error("there are more than {MAX_RULES} rules")]
    TooMany,
}

/// What a policy says of one rule; what it leaves out is that of the built-in rule of the same name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MonitorRuleDraft {
    /// The name.
    pub name: String,
    /// What it watches.
    pub watch: Option<MonitorFigure>,
    /// The threshold.
    pub threshold: Option<u64>,
    /// The window.
    pub window: Option<Millis>,
    /// What is done.
    pub action: Option<MonitorAction>,
}

impl MonitorRuleDraft {
    /// The rule.
    ///
    /// # Errors
    /// When the name, the threshold or the window are none, or something is missing.
    pub fn into_rule(self) -> Result<MonitorRule, MonitorRuleError> {
        let Self {
            name,
            watch,
            threshold,
            window,
            action,
        } = self;
        if !is_name(&name) {
            return Err(MonitorRuleError::Name(name));
        }
        let builtin = BUILTIN_RULES.iter().find(|rule| rule.name == name);
        let missing = |key| MonitorRuleError::Missing {
            key,
            name: name.clone(),
        };
        let watch = watch
            .or(builtin.map(|rule| rule.watch))
            .ok_or_else(|| missing("watch"))?;
        let threshold = threshold
            .or(builtin.map(|rule| rule.threshold))
            .ok_or_else(|| missing("threshold"))?;
        let window = window.or(builtin.map(|rule| rule.window)).unwrap_or(DEFAULT_WINDOW);
        let action = action
            .or(builtin.map(|rule| rule.action))
            .unwrap_or(MonitorAction::Alert);
        if threshold == 0 {
            return Err(MonitorRuleError::Threshold);
        }
        if !(MIN_WINDOW..=MAX_WINDOW).contains(&window) {
            return Err(MonitorRuleError::Window);
        }
        Ok(MonitorRule {
            name,
            watch,
            threshold,
            window,
            action,
        })
    }
}

/// The window of a rule that names none.
pub const DEFAULT_WINDOW: Millis = Millis(10_000);

fn is_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(fits)
}

/// The rules that are watched where an owner has said `own`: the built-in ones, each as it was changed, and the others.
pub fn effective_rules(own: &[MonitorRule]) -> Vec<MonitorRule> {
    let changed = |name: &str| own.iter().any(|rule| rule.name == name);
    let builtin = BUILTIN_RULES.iter().filter(|rule| !changed(rule.name));
    builtin
        .map(BuiltinRule::rule)
        .chain(own.iter().cloned())
        .filter(|rule| rule.action != MonitorAction::Off)
        .collect()
}

/// Checks that rules go together.
///
/// # Errors
/// `Twice` and `TooMany`.
pub fn check_rules(own: &[MonitorRule]) -> Result<(), MonitorRuleError> {
    if own.len() > MAX_RULES {
        return Err(MonitorRuleError::TooMany);
    }
    let is_second = |(place, rule): &(usize, &MonitorRule)| own.iter().take(*place).any(|one| one.name == rule.name);
    match own.iter().enumerate().find(is_second) {
        Some((_, rule)) => Err(MonitorRuleError::Twice(rule.name.clone())),
        None => Ok(()),
    }
}
