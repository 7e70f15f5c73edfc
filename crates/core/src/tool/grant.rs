//! Grants: which tools may be called, with which parameters, how often; and whether one list of grants is no wider than
//! another.

use std::fmt;
use std::str::FromStr;

use serde_json::Value;

use super::constraint::Constraint;
use super::declared::{DeclaredTool, ToolName};
use super::domain;
use super::parse::MAX_TEXT;

/// Most grants of one sandbox.
pub const MAX_GRANTS: usize = 256;

/// A permission to call tools. As text: `NAMES [where CONSTRAINT] [calls N] [ask]`, NAMES with commas between.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ToolGrant {
    /// Which tools: one of these.
    pub tools: Vec<ToolPattern>,
    /// What their parameters have to be.
    pub constraint: Constraint,
    /// How many calls there may be; any number when absent.
    pub calls: Option<u64>,
    /// Whether a person is asked about each call.
    pub ask: bool,
}

/// A tool's name, or the beginning of names with `*` behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolPattern {
    text: String,
    is_prefix: bool,
}

/// What became of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GrantVerdict {
    /// It may be made, and counts against the grant with this number.
    Allowed {
        /// Of the list, from 0.
        grant: usize,
    },
    /// A person is asked, and it counts against this grant if they agree.
    Ask {
        /// Of the list, from 0.
        grant: usize,
    },
    /// No grant names the tool.
    NotGranted,
    /// Grants name the tool, and its parameters pass none of them.
    Parameters {
        /// What would pass.
        wanted: String,
    },
    /// A grant allows it, and its calls are used up.
    UsedUp {
        /// How many there were.
        calls: u64,
    },
}

/// A grant that was not proved to be within others.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{grant}` is not shown to be within what is granted already")]
pub struct WiderGrant {
    /// The grant.
    pub grant: String,
}

/// Judges a call of `tool`. `used` says how many calls each grant has had; one that it has no number for has had none.
pub fn judge(grants: &[ToolGrant], used: &[u64], tool: &ToolName, parameters: &Value) -> GrantVerdict {
    let mut verdict = GrantVerdict::NotGranted;
    let mut wanted: Vec<String> = Vec::new();
    for (index, grant) in grants.iter().enumerate() {
        if !grant.tools.iter().any(|pattern| pattern.covers(tool)) {
            continue;
        }
        if !grant.constraint.allows(parameters) {
            wanted.push(grant.constraint.to_string());
            continue;
        }
        let had = used.get(index).copied().unwrap_or(0);
        let next = match grant.calls.filter(|calls| had >= *calls) {
            Some(calls) => GrantVerdict::UsedUp { calls },
            None if !grant.ask => return GrantVerdict::Allowed { grant: index },
            None => GrantVerdict::Ask { grant: index },
        };
        if !matches!(verdict, GrantVerdict::Ask { .. }) {
            verdict = next;
        }
    }
    match verdict {
        GrantVerdict::NotGranted if !wanted.is_empty() => GrantVerdict::Parameters {
            wanted: wanted.join("; or "),
        },
        verdict => verdict,
    }
}

impl ToolGrant {
    /// A grant of one tool without a condition.
    pub fn of(tool: &ToolName) -> Self {
        Self {
            tools: vec![ToolPattern {
                text: tool.to_string(),
                is_prefix: false,
            }],
            constraint: Constraint::Always,
            calls: None,
            ask: false,
        }
    }

    /// Whether a person is asked about calls: by the grant of a tool, or by what is granted of them.
    pub fn ask_of(tools: &[DeclaredTool], grants: Option<&[Self]>) -> bool {
        let own = tools.iter().map(|tool| &tool.grant);
        own.chain(grants.unwrap_or_default()).any(|grant| grant.ask)
    }

    /// Whether whatever these grants allow is allowed by `wider` as well.
    ///
    /// # Errors
    /// The first grant for which that was not proved: its tools, its condition, its number of calls, or that nobody is asked.
    /// Grants within the same one share its calls.
    pub fn all_within(grants: &[Self], wider: &[Self]) -> Result<(), WiderGrant> {
        let mut left: Vec<Option<u64>> = wider.iter().map(|grant| grant.calls).collect();
        for grant in grants {
            let place = wider.iter().zip(&mut left).find_map(|(outer, left)| {
                let budget = match (*left, grant.calls) {
                    (None, _) => None,
                    (Some(left), Some(calls)) if calls <= left => Some(left - calls),
                    (Some(_), _) => return None,
                };
                grant.is_within(outer).then_some((left, budget))
            });
            match place {
                Some((left, budget)) => *left = budget,
                None => {
                    return Err(WiderGrant {
                        grant: grant.to_string(),
                    });
                }
            }
        }
        Ok(())
    }

    /// What is meant where `self` says names and nothing more: all that `ceiling` grants of them. Otherwise itself.
    ///
    /// What comes of it may still be wider: [`Self::all_within`] says.
    pub fn filled(&self, ceiling: &[Self]) -> Vec<Self> {
        if self.constraint != Constraint::Always || self.calls.is_some() || self.ask {
            return vec![self.clone()];
        }
        let of_both = |one: &ToolPattern, other: &ToolPattern| match (one.contains(other), other.contains(one)) {
            (true, _) => Some(other.clone()),
            (false, true) => Some(one.clone()),
            (false, false) => None,
        };
        let narrowed = |outer: &Self| {
            let pairs = self
                .tools
                .iter()
                .flat_map(|own| outer.tools.iter().map(move |other| (own, other)));
            let mut tools: Vec<ToolPattern> = Vec::new();
            for pattern in pairs.filter_map(|(own, other)| of_both(own, other)) {
                if !tools.contains(&pattern) {
                    tools.push(pattern);
                }
            }
            (!tools.is_empty()).then(|| Self { tools, ..outer.clone() })
        };
        let found: Vec<Self> = ceiling.iter().filter_map(narrowed).collect();
        match found.is_empty() {
            // There is nothing of that name, which is wider than nothing.
            true => vec![self.clone()],
            false => found,
        }
    }

    /// `wanted` within `ceiling`: names alone filled in, and all of it proved to be no wider.
    ///
    /// # Errors
    /// The first grant for which that was not proved.
    pub fn narrowed(wanted: &[Self], ceiling: &[Self]) -> Result<Vec<Self>, WiderGrant> {
        let filled: Vec<Self> = wanted.iter().flat_map(|grant| grant.filled(ceiling)).collect();
        Self::all_within(&filled, ceiling)?;
        Ok(filled)
    }

    fn is_within(&self, outer: &Self) -> bool {
        let named = |pattern: &ToolPattern| outer.tools.iter().any(|wider| wider.contains(pattern));
        self.tools.iter().all(named) && (self.ask || !outer.ask) && domain::implies(&self.constraint, &outer.constraint)
    }
}

impl ToolPattern {
    /// Whether it names this tool.
    pub fn covers(&self, tool: &ToolName) -> bool {
        match self.is_prefix {
            true => tool.as_str().starts_with(&self.text),
            false => tool.as_str() == self.text,
        }
    }

    /// Whether every name of `other` is one of these.
    fn contains(&self, other: &Self) -> bool {
        match (self.is_prefix, other.is_prefix) {
            (true, _) => other.text.starts_with(&self.text),
            (false, false) => self.text == other.text,
            (false, true) => false,
        }
    }
}

/// A text that is no grant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrantError {
    /// A pattern is none.
    #[error("`{}` is no name of a tool, nor the beginning of one with `*` behind it", .0.escape_debug())]
    Pattern(String),
    /// The condition is none.
    #[error("after `where`, {0}")]
    Constraint(#[from] super::parse::ConstraintError),
    /// Something else stands where it should end.
    #[error("expected NAMES [where CONSTRAINT] [calls N] [ask]: {0}")]
    Form(String),
}

impl FromStr for ToolPattern {
    type Err = GrantError;

    fn from_str(text: &str) -> Result<Self, GrantError> {
        let refused = || GrantError::Pattern(text.to_owned());
        match text.strip_suffix('*') {
            Some("") => {}
            Some(start) => drop(start.parse::<ToolName>().map_err(|_| refused())?),
            None => drop(text.parse::<ToolName>().map_err(|_| refused())?),
        }
        Ok(Self {
            text: text.trim_end_matches('*').to_owned(),
            is_prefix: text.ends_with('*'),
        })
    }
}

impl FromStr for ToolGrant {
    type Err = GrantError;

    fn from_str(text: &str) -> Result<Self, GrantError> {
        if text.len() > MAX_TEXT {
            return Err(GrantError::Form(format!("a grant is {MAX_TEXT} bytes at most")));
        }
        let mut rest = text.trim();
        let ask = match rest.strip_suffix("ask") {
            Some(before) if before.ends_with(char::is_whitespace) => {
                rest = before.trim_end();
                true
            }
            _ => false,
        };
        let mut calls = None;
        if let Some((before, number)) = rest.rsplit_once(char::is_whitespace)
            && let Some(before) = before.trim_end().strip_suffix("calls")
            && before.ends_with(char::is_whitespace)
        {
            let number = number
                .parse()
                .map_err(|_| GrantError::Form(format!("`{number}` is no number of calls")))?;
            calls = Some(number);
            rest = before.trim_end();
        }
        let (names, constraint) = match rest.split_once(" where ") {
            Some((names, constraint)) => (names, constraint.parse()?),
            None => (rest, Constraint::Always),
        };
        let tools: Result<Vec<ToolPattern>, _> = names.split(',').map(|name| name.trim().parse()).collect();
        Ok(Self {
            tools: tools?,
            constraint,
            calls,
            ask,
        })
    }
}

impl fmt::Display for ToolPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.text, if self.is_prefix { "*" } else { "" })
    }
}

impl fmt::Display for ToolGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.tools.iter().map(ToolPattern::to_string).collect();
        f.write_str(&names.join(","))?;
        if self.constraint != Constraint::Always {
            write!(f, " where {}", self.constraint)?;
        }
        if let Some(calls) = self.calls {
            write!(f, " calls {calls}")?;
        }
        f.write_str(if self.ask { " ask" } else { "" })
    }
}

impl TryFrom<String> for ToolGrant {
    type Error = GrantError;

    fn try_from(text: String) -> Result<Self, GrantError> {
        text.parse()
    }
}

impl From<ToolGrant> for String {
    fn from(grant: ToolGrant) -> Self {
        grant.to_string()
    }
}

#[cfg(test)]
mod tests;
