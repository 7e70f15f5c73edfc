//! What parameters a call may have: comparisons of single parameters, joined by `and` and `or`.

use std::fmt;

use serde_json::Value;

use super::decimal::Decimal;

/// A condition on the parameters of a call. There is no negation of a whole condition, so that more parameters never make
/// a call pass that would not pass without.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Constraint {
    /// Every call passes.
    Always,
    /// One parameter is compared.
    One(Requirement),
    /// All of these hold.
    All(Vec<Constraint>),
    /// One of these holds.
    Any(Vec<Constraint>),
}

/// A parameter, and what is required of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirement {
    /// Which.
    pub parameter: ParameterPath,
    /// What.
    pub comparison: Comparison,
}

/// Where a parameter is: names of members from the outermost on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ParameterPath(pub Vec<String>);

/// What a parameter is compared with. A parameter that is missing, or of another type, passes none of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Comparison {
    /// It is a number below this one.
    Below(Decimal),
    /// It is a number up to this one.
    AtMost(Decimal),
    /// It is a number above this one.
    Above(Decimal),
    /// It is a number from this one on.
    AtLeast(Decimal),
    /// It is one of these.
    OneOf(Vec<Scalar>),
    /// It is a string, number or truth value, and none of these.
    NoneOf(Vec<Scalar>),
    /// It is a string that begins so.
    Prefix(String),
    /// It is an absolute path without `.` or `..`, of this directory or below it.
    Beneath(String),
    /// It is there, and not null.
    Exists,
}

/// A single value.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Scalar {
    /// A number.
    Number(Decimal),
    /// A string.
    Text(String),
    /// A truth value.
    Truth(bool),
}

impl Scalar {
    /// The same of a JSON value; `None` for lists, objects, null and numbers that cannot be compared.
    pub fn of(value: &Value) -> Option<Self> {
        match value {
            Value::Number(number) => Decimal::of(number).map(Self::Number),
            Value::String(text) => Some(Self::Text(text.clone())),
            Value::Bool(truth) => Some(Self::Truth(*truth)),
            Value::Null | Value::Array(_) | Value::Object(_) => None,
        }
    }
}

impl Constraint {
    /// Whether a call with these parameters passes.
    pub fn allows(&self, parameters: &Value) -> bool {
        match self {
            Self::Always => true,
            Self::One(requirement) => requirement.is_met_by(parameters),
            Self::All(parts) => parts.iter().all(|part| part.allows(parameters)),
            Self::Any(parts) => parts.iter().any(|part| part.allows(parameters)),
        }
    }
}

impl Requirement {
    fn is_met_by(&self, parameters: &Value) -> bool {
        let found = self.parameter.0.iter().try_fold(parameters, |value, name| match value {
            Value::Object(members) => members.get(name),
            _ => None,
        });
        match found {
            None | Some(Value::Null) => false,
            Some(value) => match &self.comparison {
                Comparison::Exists => true,
                other => Scalar::of(value).is_some_and(|value| other.is_met_by(&value)),
            },
        }
    }
}

impl Comparison {
    /// Whether a single value passes.
    pub(super) fn is_met_by(&self, value: &Scalar) -> bool {
        match (self, value) {
            (Self::Below(bound), Scalar::Number(number)) => number < bound,
            (Self::AtMost(bound), Scalar::Number(number)) => number <= bound,
            (Self::Above(bound), Scalar::Number(number)) => number > bound,
            (Self::AtLeast(bound), Scalar::Number(number)) => number >= bound,
            (Self::OneOf(values), value) => values.contains(value),
            (Self::NoneOf(values), value) => !values.contains(value),
            (Self::Prefix(prefix), Scalar::Text(text)) => text.starts_with(prefix.as_str()),
            (Self::Beneath(directory), Scalar::Text(text)) => is_beneath(text, directory),
            (Self::Exists, _) => true,
            _ => false,
        }
    }
}

/// Whether `path` is `directory` or below it, without anything in it that leads elsewhere by its name.
pub(super) fn is_beneath(path: &str, directory: &str) -> bool {
    let is_plain =
        path.starts_with('/') && !path.contains('\0') && path.split('/').all(|name| name != "." && name != "..");
    let below = path.strip_prefix(directory.trim_end_matches('/'));
    is_plain && below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl fmt::Display for ParameterPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("."))
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => write_text(text, f),
            Self::Truth(truth) => truth.fmt(f),
        }
    }
}

fn write_text(text: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    use fmt::Write as _;
    f.write_char('"')?;
    for character in text.chars() {
        if matches!(character, '"' | '\\') {
            f.write_char('\\')?;
        }
        f.write_char(character)?;
    }
    f.write_char('"')
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.parameter)?;
        let list = |values: &[Scalar]| values.iter().map(Scalar::to_string).collect::<Vec<_>>().join(", ");
        match &self.comparison {
            Comparison::Below(bound) => write!(f, "< {bound}"),
            Comparison::AtMost(bound) => write!(f, "<= {bound}"),
            Comparison::Above(bound) => write!(f, "> {bound}"),
            Comparison::AtLeast(bound) => write!(f, ">= {bound}"),
            Comparison::OneOf(values) => write!(f, "in [{}]", list(values)),
            Comparison::NoneOf(values) => write!(f, "not in [{}]", list(values)),
            Comparison::Prefix(prefix) => {
                f.write_str("prefix ")?;
                write_text(prefix, f)
            }
            Comparison::Beneath(directory) => {
                f.write_str("below ")?;
                write_text(directory, f)
            }
            Comparison::Exists => f.write_str("exists"),
        }
    }
}

impl fmt::Display for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let joined = |parts: &[Constraint], word: &str, f: &mut fmt::Formatter<'_>| {
            for (index, part) in parts.iter().enumerate() {
                if index > 0 {
                    write!(f, " {word} ")?;
                }
                match part {
                    Self::All(_) | Self::Any(_) => write!(f, "({part})")?,
                    Self::Always | Self::One(_) => write!(f, "{part}")?,
                }
            }
            Ok(())
        };
        match self {
            Self::Always => f.write_str("always"),
            Self::One(requirement) => requirement.fmt(f),
            Self::All(parts) => joined(parts, "and", f),
            Self::Any(parts) => joined(parts, "or", f),
        }
    }
}
