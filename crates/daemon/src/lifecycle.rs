//! When a sandbox sleeps, what a pause keeps of it, when checkpoints of it are made by themselves, and before what a person is
//! asked: what is asked for, by fields or by labels, and what is settled.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use offleash_core::command_trigger::CommandTrigger;
use offleash_core::units::Millis;
use serde::{Deserialize, Serialize};

use crate::error::DaemonError;

/// The label by which a sandbox is asked for that sleeps when nobody used it for so long: `10m`, or `0` for never.
pub const IDLE_LABEL: &str = "offleash.idle";
/// The label that says what sleep keeps: `filesystem` or `full`.
pub const IDLE_MODE_LABEL: &str = "offleash.idle_mode";
/// The label that says how often a checkpoint is made by itself: `10m`, or `0` for never.
pub const CHECKPOINT_EVERY_LABEL: &str = "offleash.checkpoint_every";
/// The label that says before which commands: `rm -rf; git reset --hard`.
pub const CHECKPOINT_BEFORE_LABEL: &str = "offleash.checkpoint_before";
/// The label that says how many of those are kept.
pub const CHECKPOINT_KEEP_LABEL: &str = "offleash.checkpoint_keep";
/// The label that says before which commands a person is asked: `git push; terraform apply`.
pub const ASK_BEFORE_LABEL: &str = "offleash.ask_before";
/// The label that says whether a person is asked before it is put back to a checkpoint: `true` or `false`.
pub const ASK_BEFORE_RESTORE_LABEL: &str = "offleash.ask_before_restore";

/// The shortest time after which a sandbox sleeps, and after which another checkpoint is made.
const MIN_IDLE: Duration = Duration::from_secs(1);
const MIN_CHECKPOINT_EVERY: Duration = Duration::from_secs(1);
/// The longest of both.
const MAX_TIME: Duration = Duration::from_secs(366 * 24 * 60 * 60);
/// The most commands before which checkpoints are made, or a person is asked, and the most checkpoints of that kind that are kept.
const MAX_TRIGGERS: usize = 64;
const MAX_KEPT: u64 = 1_000;

/// What a pause keeps, in E2B's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PauseMode {
    /// Memory and all processes: they are frozen.
    #[default]
    Full,
    /// Files alone: processes end, and the sandbox is made again when it goes on.
    Filesystem,
}

impl PauseMode {
    /// What those that ask may say.
    pub const WORDS: [&str; 2] = ["full", "filesystem"];

    /// As in `filesystem`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Filesystem => "filesystem",
        }
    }

    /// Whether memory is kept, or not.
    pub fn of_memory(keeps_memory: bool) -> Self {
        if keeps_memory { Self::Full } else { Self::Filesystem }
    }
}

impl FromStr for PauseMode {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "full" => Ok(Self::Full),
            "filesystem" => Ok(Self::Filesystem),
            _ => Err(format!("must be one of {}", Self::WORDS.join(", "))),
        }
    }
}

/// When sandboxes sleep, and when checkpoints of them are made by themselves, where their creator does not say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LifecycleConfig {
    /// After how long one sleeps that nobody uses; never if `None`.
    pub idle: Option<Duration>,
    /// The same for sandboxes of some templates, by name; zero is never.
    pub idle_of_templates: BTreeMap<String, Duration>,
    /// What sleep keeps.
    pub idle_mode: PauseMode,
    /// Sandboxes of one key whose files alone are kept, at a time.
    pub max_put_away: u64,
    /// How often a checkpoint is made by itself; never if `None`.
    pub checkpoint_every: Option<Duration>,
    /// Before which commands.
    pub checkpoint_before: Vec<CommandTrigger>,
    /// How many of those that were made by themselves are kept of a sandbox.
    pub checkpoint_keep: u64,
    /// Before which commands in any sandbox a person is asked, beside those that its creator names.
    pub ask_before: Vec<CommandTrigger>,
    /// Whether a person is asked before any sandbox is put back to a checkpoint.
    pub ask_before_restore: bool,
}

impl Default for LifecycleConfig {
    fn default() -> Self {
        Self {
            idle: None,
            idle_of_templates: BTreeMap::new(),
            idle_mode: PauseMode::Filesystem,
            max_put_away: 500,
            checkpoint_every: None,
            checkpoint_before: Vec::new(),
            checkpoint_keep: 5,
            ask_before: Vec::new(),
            ask_before_restore: false,
        }
    }
}

/// When a sandbox is to sleep, and when checkpoints of it are made; the configuration says what is `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LifecycleRequest {
    /// What is kept of it when it is paused because its time was up.
    pub timeout_mode: PauseMode,
    /// After how long it sleeps while nobody uses it; zero is never.
    pub idle: Option<Duration>,
    /// What its sleep keeps.
    pub idle_mode: Option<PauseMode>,
    /// How often a checkpoint is made by itself; zero is never.
    pub checkpoint_every: Option<Duration>,
    /// Before which commands.
    pub checkpoint_before: Option<Vec<String>>,
    /// How many of those that were made by themselves are kept.
    pub checkpoint_keep: Option<u64>,
    /// Before which commands a person is asked.
    pub ask_before: Option<Vec<String>>,
    /// Whether a person is asked before it is put back to a checkpoint.
    pub ask_before_restore: Option<bool>,
}

/// What became of that.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lifecycle {
    /// What is kept of it when it is paused because its time was up.
    pub timeout_mode: PauseMode,
    /// After how long it sleeps while nobody uses it.
    pub idle: Option<Duration>,
    /// What its sleep keeps.
    pub idle_mode: PauseMode,
    /// How often a checkpoint is made by itself.
    pub checkpoint_every: Option<Duration>,
    /// Before which commands.
    pub checkpoint_before: Vec<CommandTrigger>,
    /// How many of those that were made by themselves are kept.
    pub checkpoint_keep: u64,
    /// Before which commands a person is asked, beside those of the configuration.
    #[serde(default)]
    pub ask_before: Vec<CommandTrigger>,
    /// Whether a person is asked before it is put back to a checkpoint.
    #[serde(default)]
    pub ask_before_restore: bool,
}

impl Lifecycle {
    /// Settles what a request leaves open: labels say it, and what they do not say the configuration does, for sandboxes of
    /// `template` by itself.
    ///
    /// # Errors
    /// `Invalid`.
    pub(crate) fn of(
        request: &LifecycleRequest,
        labels: &BTreeMap<String, String>,
        template: &str,
        config: &LifecycleConfig,
    ) -> Result<Self, DaemonError> {
        let request = request.completed(labels)?;
        let usual_idle = config.idle_of_templates.get(template).copied().or(config.idle);
        let before = match request.checkpoint_before {
            Some(commands) => triggers("checkpoint_before", &commands)?,
            None => config.checkpoint_before.clone(),
        };
        let keep = request.checkpoint_keep.unwrap_or(config.checkpoint_keep);
        if keep == 0 || keep > MAX_KEPT {
            let why = format!("must be between 1 and {MAX_KEPT}");
            return Err(DaemonError::invalid("checkpoint_keep", why));
        }
        Ok(Self {
            timeout_mode: request.timeout_mode,
            idle: time("idle", request.idle.or(usual_idle), MIN_IDLE)?,
            idle_mode: request.idle_mode.unwrap_or(config.idle_mode),
            checkpoint_every: time(
                "checkpoint_every",
                request.checkpoint_every.or(config.checkpoint_every),
                MIN_CHECKPOINT_EVERY,
            )?,
            checkpoint_before: before,
            checkpoint_keep: keep,
            ask_before: triggers("ask_before", &request.ask_before.unwrap_or_default())?,
            ask_before_restore: request.ask_before_restore.unwrap_or(false),
        })
    }

    /// The command before which a checkpoint is made, if this is one.
    pub(crate) fn trigger_of(&self, argv: &[Vec<u8>]) -> Option<&CommandTrigger> {
        self.checkpoint_before.iter().find(|trigger| trigger.matches(argv))
    }
}

impl LifecycleRequest {
    /// With what labels say that fields do not.
    fn completed(&self, labels: &BTreeMap<String, String>) -> Result<Self, DaemonError> {
        Ok(Self {
            timeout_mode: self.timeout_mode,
            idle: or_label(self.idle, labels, IDLE_LABEL, duration)?,
            idle_mode: or_label(self.idle_mode, labels, IDLE_MODE_LABEL, PauseMode::from_str)?,
            checkpoint_every: or_label(self.checkpoint_every, labels, CHECKPOINT_EVERY_LABEL, duration)?,
            checkpoint_before: or_label(
                self.checkpoint_before.clone(),
                labels,
                CHECKPOINT_BEFORE_LABEL,
                commands_in,
            )?,
            checkpoint_keep: or_label(self.checkpoint_keep, labels, CHECKPOINT_KEEP_LABEL, |text| {
                text.parse().map_err(|_| "must be a number".to_owned())
            })?,
            ask_before: or_label(self.ask_before.clone(), labels, ASK_BEFORE_LABEL, commands_in)?,
            ask_before_restore: or_label(self.ask_before_restore, labels, ASK_BEFORE_RESTORE_LABEL, |text| {
                text.parse().map_err(|_| "must be `true` or `false`".to_owned())
            })?,
        })
    }
}

/// Commands as a label names them.
#[expect(clippy::unnecessary_wraps, reason = "other labels can be wrong")]
fn commands_in(text: &str) -> Result<Vec<String>, String> {
    let commands = text.split([';', '\n']).map(str::trim);
    Ok(commands
        .filter(|command| !command.is_empty())
        .map(str::to_owned)
        .collect())
}

fn or_label<T>(
    field: Option<T>,
    labels: &BTreeMap<String, String>,
    label: &str,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Result<Option<T>, DaemonError> {
    let Some(text) = labels.get(label).filter(|_| field.is_none()) else {
        return Ok(field);
    };
    let parsed = parse(text).map_err(|why| DaemonError::invalid("metadata", format!("label `{label}`: {why}")));
    parsed.map(Some)
}

fn duration(text: &str) -> Result<Duration, String> {
    let Millis(time) = text
        .parse()
        .map_err(|error: offleash_core::units::UnitError| error.to_string())?;
    Ok(Duration::from_millis(time))
}

/// A time that is not zero.
fn time(field: &'static str, asked: Option<Duration>, least: Duration) -> Result<Option<Duration>, DaemonError> {
    match asked.filter(|asked| !asked.is_zero()) {
        Some(asked) if asked < least || asked > MAX_TIME => {
            let why = format!(
                "must be from {} s to {} days, or 0 for never",
                least.as_secs(),
                MAX_TIME.as_secs() / 86_400
            );
            Err(DaemonError::invalid(field, why))
        }
        asked => Ok(asked),
    }
}

/// Commands before which a checkpoint is made.
///
/// # Errors
/// `Invalid`.
fn triggers(field: &'static str, commands: &[String]) -> Result<Vec<CommandTrigger>, DaemonError> {
    if commands.len() > MAX_TRIGGERS {
        let why = format!("more than {MAX_TRIGGERS} commands");
        return Err(DaemonError::invalid(field, why));
    }
    let parsed = commands.iter().map(|command| {
        let parsed = command.parse();
        parsed.map_err(|error: offleash_core::command_trigger::CommandTriggerError| {
            DaemonError::invalid(field, error.to_string())
        })
    });
    parsed.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settled(request: &LifecycleRequest, labels: &[(&str, &str)]) -> Result<Lifecycle, DaemonError> {
        let labels = labels
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let config = LifecycleConfig {
            idle: Some(Duration::from_secs(600)),
            idle_of_templates: BTreeMap::from([("tool".to_owned(), Duration::ZERO)]),
            checkpoint_before: vec!["rm -rf".parse().unwrap()],
            ..LifecycleConfig::default()
        };
        Lifecycle::of(request, &labels.collect(), "base", &config)
    }

    #[test]
    fn fields_win_over_labels_and_labels_over_the_configuration() {
        let nothing = settled(&LifecycleRequest::default(), &[]).unwrap();
        assert_eq!(nothing.idle, Some(Duration::from_secs(600)));
        assert_eq!(nothing.idle_mode, PauseMode::Filesystem);
        assert!(nothing.trigger_of(&[b"rm".to_vec(), b"-rf".to_vec()]).is_some());
        let labels = [
            (IDLE_LABEL, "1.5s"),
            (IDLE_MODE_LABEL, "full"),
            (CHECKPOINT_EVERY_LABEL, "10m"),
            (CHECKPOINT_BEFORE_LABEL, "git reset --hard; dd\n"),
            (CHECKPOINT_KEEP_LABEL, "3"),
            (ASK_BEFORE_LABEL, "git push"),
            (ASK_BEFORE_RESTORE_LABEL, "true"),
        ];
        let by_labels = settled(&LifecycleRequest::default(), &labels).unwrap();
        let expected = Lifecycle {
            timeout_mode: PauseMode::Full,
            idle: Some(Duration::from_millis(1500)),
            idle_mode: PauseMode::Full,
            checkpoint_every: Some(Duration::from_secs(600)),
            checkpoint_before: vec!["git reset --hard".parse().unwrap(), "dd".parse().unwrap()],
            checkpoint_keep: 3,
            ask_before: vec!["git push".parse().unwrap()],
            ask_before_restore: true,
        };
        assert_eq!(by_labels, expected);
        let request = LifecycleRequest {
            idle: Some(Duration::ZERO),
            checkpoint_before: Some(Vec::new()),
            ..LifecycleRequest::default()
        };
        let by_fields = settled(&request, &labels).unwrap();
        assert!(by_fields.idle.is_none() && by_fields.checkpoint_before.is_empty());
        assert_eq!(by_fields.idle_mode, PauseMode::Full);
    }

    #[test]
    fn a_template_may_have_a_time_of_its_own() {
        let config = LifecycleConfig {
            idle: Some(Duration::from_secs(600)),
            idle_of_templates: BTreeMap::from([("tool".to_owned(), Duration::ZERO)]),
            ..LifecycleConfig::default()
        };
        let none = BTreeMap::new();
        let of = |template: &str| {
            Lifecycle::of(&LifecycleRequest::default(), &none, template, &config)
                .unwrap()
                .idle
        };
        assert_eq!((of("tool"), of("base")), (None, Some(Duration::from_secs(600))));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (label, value) in [
            (IDLE_LABEL, "soon"),
            (IDLE_LABEL, "500ms"),
            (IDLE_LABEL, "400d"),
            (IDLE_MODE_LABEL, "memory"),
            (CHECKPOINT_EVERY_LABEL, "-1s"),
            (CHECKPOINT_BEFORE_LABEL, "-rf"),
            (CHECKPOINT_KEEP_LABEL, "0"),
            (CHECKPOINT_KEEP_LABEL, "many"),
            (ASK_BEFORE_LABEL, "./push"),
            (ASK_BEFORE_RESTORE_LABEL, "yes"),
        ] {
            let refused = settled(&LifecycleRequest::default(), &[(label, value)]);
            assert!(matches!(refused, Err(DaemonError::Invalid { .. })), "{label}: {value}");
        }
        let many = LifecycleRequest {
            checkpoint_before: Some(vec!["rm".to_owned(); MAX_TRIGGERS + 1]),
            ..LifecycleRequest::default()
        };
        settled(&many, &[]).unwrap_err();
    }
}
