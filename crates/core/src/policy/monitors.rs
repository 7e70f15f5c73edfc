//! Rules of monitoring, as a policy has them: each `[[monitor]]`.

use serde::Deserialize;
use toml::Spanned;

use crate::monitor::{MonitorRule, MonitorRuleDraft, MonitorRuleError, check_rules};
use crate::written::{WrongText, one, wrong};

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct MonitorEntry {
    name: Spanned<String>,
    watch: Option<Spanned<String>>,
    threshold: Option<Spanned<i64>>,
    window: Option<Spanned<String>>,
    action: Option<Spanned<String>>,
}

impl MonitorEntry {
    fn rule(&self) -> Result<MonitorRule, WrongText> {
        let threshold = self.threshold.as_ref().map(|number| {
            let whole = u64::try_from(*number.get_ref());
            whole.map_err(|_| wrong(number, &MonitorRuleError::Threshold))
        });
        let draft = MonitorRuleDraft {
            name: self.name.get_ref().clone(),
            watch: self.watch.as_ref().map(one).transpose()?,
            threshold: threshold.transpose()?,
            window: self.window.as_ref().map(one).transpose()?,
            action: self.action.as_ref().map(one).transpose()?,
        };
        draft
            .into_rule()
            .map_err(|error| match (&error, &self.window, &self.threshold) {
                (MonitorRuleError::Window, Some(window), _) => wrong(window, &error),
                (MonitorRuleError::Threshold, _, Some(threshold)) => wrong(threshold, &error),
                _ => wrong(&self.name, &error),
            })
    }
}

/// The rules of all entries.
pub(super) fn rules(entries: &[MonitorEntry]) -> Result<Vec<MonitorRule>, WrongText> {
    let mut rules = Vec::new();
    for entry in entries {
        rules.push(entry.rule()?);
        check_rules(&rules).map_err(|error| wrong(&entry.name, &error))?;
    }
    Ok(rules)
}
