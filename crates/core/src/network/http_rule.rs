//! Which HTTP requests pass to a host.
//!
//! Pure: requests come parsed, from connections that the gateway has opened. A host without such rules is not
//! restricted; to a host with some, only requests that match one pass. Of rules for overlapping hosts only those for
//! the most specific count, as for connections.

use core::fmt;
use core::str::FromStr;
use std::collections::BTreeSet;

use crate::error::{ErrorKind, Explained};
use crate::network::host::Host;
use crate::network::host_pattern::{HostPattern, HostPatternError};
use crate::network::http_path::{CanonicalPath, PathError};
use crate::text::Text;

/// Methods that no rule lets through: the one would echo the headers that the gateway adds (RFC 9110, section 9.3.8),
/// the other open a connection to somewhere else.
const NEVER: [&str; 2] = ["TRACE", "CONNECT"];

/// A rule that lets requests through, as text `GET,HEAD api.example.com/v1/*`: methods or `*`, a host (a name, a
/// wildcard or an address), a path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(remote = "Self")]
pub struct MethodRule {
    methods: MethodSet,
    host: HostPattern,
    path: PathPattern,
}

/// Rules for requests, in any order.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct MethodRules {
    /// The rules.
    pub rules: Vec<MethodRule>,
}

/// What the rules say about a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestDecision<'a> {
    /// No rule is about the host.
    Unrestricted,
    /// This rule lets it through.
    Allowed(&'a MethodRule),
    /// Rules are about the host, and none lets it through.
    Refused,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
enum MethodSet {
    Any,
    These(BTreeSet<String>),
}

/// A path in which a whole segment may be `*`, for any one segment, and the end, for whatever follows.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
struct PathPattern {
    directories: Vec<PathSegment>,
    last: LastSegment,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
enum PathSegment {
    Exactly(String),
    Any,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
enum LastSegment {
    Exactly(String),
    /// This and whatever follows, further segments included.
    Beginning(String),
}

/// Text that is no rule for requests.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MethodRuleError {
    /// It is not methods, a space, a host and a path.
    #[error("request rule `{0}` is not methods, a space, a host and a path")]
    Shape(Text),
    /// A method is none, or has small letters.
    #[error("request rule `{rule}`: `{method}` is no method")]
    Method {
        /// The rule.
        rule: Text,
        /// What was given for one.
        method: Text,
    },
    /// A method that no rule lets through.
    #[error("request rule `{rule}`: {method} is never let through")]
    Never {
        /// The rule.
        rule: Text,
        /// The method.
        method: String,
    },
    /// The host cannot be read.
    #[error("request rule `{rule}`: {reason}")]
    Host {
        /// The rule.
        rule: Text,
        /// What is wrong with it.
        reason: HostPatternError,
    },
    /// It is about the subdomains of a public suffix.
    #[error("request rule `{rule}` would mean hosts that have nothing to do with each other")]
    TooWide {
        /// The rule.
        rule: Text,
    },
    /// The path cannot be read.
    #[error("request rule `{rule}`: {reason}")]
    Path {
        /// The rule.
        rule: Text,
        /// What is wrong with it.
        reason: PathError,
    },
    /// A `*` is neither a whole segment nor the end.
    #[error("request rule `{0}` has a `*` that is neither a whole segment nor the end of the path")]
    Wildcard(Text),
    /// The path has a query.
    #[error("request rule `{0}` has a query")]
    Query(Text),
}

impl MethodRules {
    /// Whether any rule is about `host`, so that its requests have to be seen.
    pub fn concern(&self, host: &Host) -> bool {
        self.rules.iter().any(|rule| rule.host.matches(host))
    }

    /// The rules that count for `host`: those for the most specific hosts.
    pub fn counting_for<'a, 'h>(&'a self, host: &'h Host) -> impl Iterator<Item = &'a MethodRule> + use<'a, 'h> {
        let about = || self.rules.iter().filter(|rule| rule.host.matches(host));
        let most_specific = about().map(|rule| rule.host.specificity()).max();
        about().filter(move |rule| Some(rule.host.specificity()) == most_specific)
    }

    /// Whether a request passes. Methods are compared as they are (RFC 9110, section 9.1: they are case-sensitive).
    pub fn decide(&self, host: &Host, method: &str, path: &CanonicalPath) -> RequestDecision<'_> {
        if !self.concern(host) {
            return RequestDecision::Unrestricted;
        }
        let matching = self
            .counting_for(host)
            .filter(|rule| rule.methods.contain(method) && rule.path.matches(path));
        matching
            .min()
            .map_or(RequestDecision::Refused, RequestDecision::Allowed)
    }
}

impl MethodRule {
    /// The hosts that are meant.
    pub fn host(&self) -> &HostPattern {
        &self.host
    }
}

impl MethodSet {
    fn parse(text: &str, rule: &str) -> Result<Self, MethodRuleError> {
        if text == "*" {
            return Ok(Self::Any);
        }
        let methods = text.split(',').map(|method| parse_method(method, rule));
        methods.collect::<Result<_, _>>().map(Self::These)
    }

    fn contain(&self, method: &str) -> bool {
        // In any case: some servers are lenient about it.
        !NEVER.iter().any(|never| method.eq_ignore_ascii_case(never))
            && match self {
                Self::Any => true,
                Self::These(methods) => methods.contains(method),
            }
    }
}

fn parse_method(method: &str, rule: &str) -> Result<String, MethodRuleError> {
    // Every registered method is of this form (https://www.iana.org/assignments/http-methods).
    let is_method = method.starts_with(|first: char| first.is_ascii_uppercase())
        && method.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-');
    if !is_method {
        return Err(MethodRuleError::Method {
            rule: rule.into(),
            method: method.into(),
        });
    }
    if NEVER.contains(&method) {
        return Err(MethodRuleError::Never {
            rule: rule.into(),
            method: method.to_owned(),
        });
    }
    Ok(method.to_owned())
}

impl PathPattern {
    fn parse(text: &str, rule: &str) -> Result<Self, MethodRuleError> {
        let path = CanonicalPath::parse(text.as_bytes()).map_err(|reason| MethodRuleError::Path {
            rule: rule.into(),
            reason,
        })?;
        if path.query().is_some() {
            return Err(MethodRuleError::Query(rule.into()));
        }
        let (directories, last) = path.as_str().rsplit_once('/').unwrap_or_default();
        let last = match last.strip_suffix('*') {
            Some(beginning) => LastSegment::Beginning(beginning.to_owned()),
            None => LastSegment::Exactly(last.to_owned()),
        };
        let directories = directories.split('/').skip(1).map(|segment| match segment {
            "*" => PathSegment::Any,
            name => PathSegment::Exactly(name.to_owned()),
        });
        let directories: Vec<PathSegment> = directories.collect();
        let (LastSegment::Exactly(literal) | LastSegment::Beginning(literal)) = &last;
        let stray = |segment: &PathSegment| matches!(segment, PathSegment::Exactly(name) if name.contains('*'));
        if literal.contains('*') || directories.iter().any(stray) {
            return Err(MethodRuleError::Wildcard(rule.into()));
        }
        Ok(Self { directories, last })
    }

    fn matches(&self, path: &CanonicalPath) -> bool {
        let mut rest = path.as_str().strip_prefix('/').unwrap_or_default();
        for directory in &self.directories {
            let Some((name, after)) = rest.split_once('/') else {
                return false;
            };
            if matches!(directory, PathSegment::Exactly(expected) if expected != name) {
                return false;
            }
            rest = after;
        }
        match &self.last {
            LastSegment::Exactly(name) => rest == name,
            LastSegment::Beginning(beginning) => rest.starts_with(beginning),
        }
    }
}

impl FromStr for MethodRule {
    type Err = MethodRuleError;

    fn from_str(text: &str) -> Result<Self, MethodRuleError> {
        let shape = || MethodRuleError::Shape(text.into());
        let (methods, target) = text.split_once(' ').ok_or_else(shape)?;
        let slash = target.find('/').ok_or_else(shape)?;
        let (host, path) = target.split_at(slash);
        let methods = MethodSet::parse(methods, text)?;
        let host = HostPattern::parse(host).map_err(|reason| MethodRuleError::Host {
            rule: text.into(),
            reason,
        })?;
        if host.is_too_wide() {
            return Err(MethodRuleError::TooWide { rule: text.into() });
        }
        let path = PathPattern::parse(path, text)?;
        Ok(Self { methods, host, path })
    }
}

impl fmt::Display for MethodRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.methods {
            MethodSet::Any => f.write_str("*")?,
            MethodSet::These(methods) => {
                let methods: Vec<&str> = methods.iter().map(String::as_str).collect();
                f.write_str(&methods.join(","))?;
            }
        }
        write!(f, " {}", self.host)?;
        for directory in &self.path.directories {
            match directory {
                PathSegment::Exactly(name) => write!(f, "/{name}")?,
                PathSegment::Any => f.write_str("/*")?,
            }
        }
        match &self.path.last {
            LastSegment::Exactly(name) => write!(f, "/{name}"),
            LastSegment::Beginning(beginning) => write!(f, "/{beginning}*"),
        }
    }
}

string_in_serde!(MethodRule);

impl Explained for MethodRuleError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Invalid
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Shape(_) => "write `GET,HEAD api.example.com/v1/*`",
            Self::Method { .. } => "methods are in capitals, separated by commas without spaces; `*` is all",
            Self::Never { .. } => "leave it out",
            Self::Host { reason, .. } => return reason.hint(),
            Self::TooWide { .. } => "name a domain that belongs to somebody, such as *.example.com",
            Self::Path { reason, .. } => return reason.hint(),
            Self::Wildcard(_) => "write `/v1/*` or `/repos/*/issues`; a star that is meant itself is %2A",
            Self::Query(_) => "leave the query out; it is not compared",
        };
        Some(hint.to_owned())
    }
}

#[cfg(test)]
mod tests;
