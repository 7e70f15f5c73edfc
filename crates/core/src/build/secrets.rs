//! Variables of one command of a build whose values nobody but that command is told.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Names and values. No title, record, log, kept template or key of a step has a value; `Debug` shows names alone.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StepSecrets(BTreeMap<String, String>);

impl StepSecrets {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Names and values, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

impl FromIterator<(String, String)> for StepSecrets {
    fn from_iter<T: IntoIterator<Item = (String, String)>>(pairs: T) -> Self {
        Self(pairs.into_iter().collect())
    }
}

impl fmt::Debug for StepSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.0.keys().map(|name| (name, "****"))).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_shown_to_nobody() {
        let secrets: StepSecrets = serde_json::from_str(r#"{"TOKEN":"hunter2"}"#).unwrap();
        assert_eq!(format!("{secrets:?}"), r#"{"TOKEN": "****"}"#);
        assert_eq!(secrets.iter().collect::<Vec<_>>(), [("TOKEN", "hunter2")]);
    }
}
