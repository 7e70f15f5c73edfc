//! Decides which variables of the host's environment a sandbox sees.
//!
//! Pure: an allowlist. Nothing is passed unless a rule says so, and what looks like a secret or reaches into the
//! dynamic loader is passed only when it is named in full, never by a pattern. The variables that every sandbox has
//! (`PATH`, `HOME`, `USER` …) are set by planning.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::str::FromStr;
use std::sync::LazyLock;

use crate::glob::Glob;
use crate::text::Text;

/// What is passed without being asked for: language, time zone and what the terminal can do.
pub const DEFAULT_PASS: [&str; 7] = ["COLORTERM", "LANG", "LANGUAGE", "LC_*", "NO_COLOR", "TERM", "TZ"];

/// Which variables are passed from the host, and which are set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EnvRules {
    /// Passed in addition to [`DEFAULT_PASS`].
    pub pass: Vec<EnvPattern>,
    /// Set to a value; wins over what is passed.
    pub set: Vec<(OsString, OsString)>,
}

/// A decision and the rule that made it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvVerdict {
    /// Whether the sandbox sees the variable.
    pub passed: bool,
    /// The rule, such as `env.pass: CI`.
    pub rule: String,
}

/// A variable that cannot exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvError {
    /// The name is empty.
    #[error("the name of an environment variable is empty")]
    EmptyName,
    /// The name contains `=`, which ends it.
    #[error("the name of environment variable `{0}` contains `=`")]
    EqualsInName(Text),
    /// The name contains a NUL byte, which ends everything.
    #[error("the name of environment variable `{0}` contains a NUL byte")]
    NulInName(Text),
    /// The name contains a newline, after which lists of variables show another one.
    #[error("the name of environment variable `{0}` contains a newline")]
    NewlineInName(Text),
    /// The value contains a NUL byte.
    #[error("the value of environment variable `{name}` contains a NUL byte")]
    NulInValue {
        /// The variable.
        name: Text,
    },
    /// A wildcard cannot be read.
    #[error("environment variable pattern `{pattern}`: {reason}")]
    Wildcard {
        /// The pattern.
        pattern: Text,
        /// What is wrong with it.
        reason: String,
    },
}

impl EnvRules {
    /// Adds a rule as flags write it: `NAME` passes a variable (or several, with wildcards), `NAME=VALUE` sets one.
    ///
    /// # Errors
    /// When the name is empty or has a newline, or either part has a NUL byte.
    pub fn add(&mut self, assignment: &OsStr) -> Result<(), EnvError> {
        let bytes = assignment.as_bytes();
        match bytes.iter().position(|byte| *byte == b'=') {
            Some(end) => {
                let value = OsStr::from_bytes(&bytes[end + 1..]);
                self.assign(OsStr::from_bytes(&bytes[..end]), value)
            }
            None => {
                self.pass.push(EnvPattern::parse(bytes)?);
                Ok(())
            }
        }
    }

    /// Sets a variable.
    ///
    /// # Errors
    /// When no such variable can exist.
    pub fn assign(&mut self, name: &OsStr, value: &OsStr) -> Result<(), EnvError> {
        check_variable(name, value)?;
        self.set.push((name.to_owned(), value.to_owned()));
        Ok(())
    }

    /// Whether the sandbox sees the host's variable `name`.
    pub fn decide(&self, name: &OsStr) -> EnvVerdict {
        let decision = self.decision(name);
        EnvVerdict {
            passed: decision.passes(),
            rule: decision.rule(name),
        }
    }

    fn decision(&self, name: &OsStr) -> VariableDecision<'_> {
        if self.set.iter().any(|(set, _)| set == name) {
            return VariableDecision::Set;
        }
        if self.pass.iter().any(|pattern| pattern.is_exactly(name)) {
            return VariableDecision::Named;
        }
        // Most variables match nothing; what is dear about a name is asked of the others only.
        let matched = match first_match(&self.pass, name) {
            Some(pattern) => Some(VariableDecision::Matched(pattern)),
            None => first_match(&DEFAULTS, name).map(VariableDecision::Default),
        };
        match matched {
            Some(decision) if secret_word(name).is_none() && !is_loader_variable(name) => decision,
            _ => VariableDecision::Refused,
        }
    }

    /// The variables that come from `host` and from `set`; later assignments win.
    pub fn resolve(&self, host: &[(OsString, OsString)]) -> BTreeMap<OsString, OsString> {
        let passed = host.iter().filter(|(name, _)| self.decision(name).passes());
        passed.chain(&self.set).cloned().collect()
    }

    /// The names in `host` that look like secrets and are not passed, in order.
    pub fn withheld<'a>(&self, host: &'a [(OsString, OsString)]) -> Vec<&'a OsStr> {
        let names = host.iter().map(|(name, _)| name.as_os_str());
        let mut withheld: Vec<&OsStr> = names
            .filter(|name| secret_word(name).is_some() && !self.decision(name).passes())
            .collect();
        withheld.sort_unstable();
        withheld
    }
}

/// What becomes of a variable of the host, and which rule says so.
enum VariableDecision<'a> {
    Set,
    Named,
    Matched(&'a EnvPattern),
    Default(&'a EnvPattern),
    Refused,
}

impl VariableDecision<'_> {
    fn passes(&self) -> bool {
        !matches!(self, VariableDecision::Refused)
    }

    fn rule(&self, name: &OsStr) -> String {
        match self {
            VariableDecision::Set => format!("env.set: {}", Text::from(name)),
            VariableDecision::Named => format!("env.pass: {}", Text::from(name)),
            VariableDecision::Matched(pattern) => format!("env.pass: {pattern}"),
            VariableDecision::Default(pattern) => format!("default: {pattern}"),
            VariableDecision::Refused => why_refused(name),
        }
    }
}

fn why_refused(name: &OsStr) -> String {
    if let Some(word) = secret_word(name) {
        format!("withheld: the name looks like a secret (`{word}`) and env.pass does not name it in full")
    } else if is_loader_variable(name) {
        "withheld: it changes what programs load and env.pass does not name it in full".to_owned()
    } else {
        "default: not in the allowlist".to_owned()
    }
}

/// [`DEFAULT_PASS`], read once: every variable of the host is compared with all of them.
static DEFAULTS: LazyLock<Vec<EnvPattern>> = LazyLock::new(|| patterns(&DEFAULT_PASS));

fn first_match<'a>(patterns: &'a [EnvPattern], name: &OsStr) -> Option<&'a EnvPattern> {
    patterns.iter().find(|pattern| pattern.matches(name))
}

fn patterns(texts: &[&str]) -> Vec<EnvPattern> {
    texts
        .iter()
        .filter_map(|text| EnvPattern::parse(text.as_bytes()).ok())
        .collect()
}

/// Checks that a variable can exist.
///
/// # Errors
/// The name is empty or has `=`, NUL or a newline, or the value has NUL.
pub fn check_variable(name: &OsStr, value: &OsStr) -> Result<(), EnvError> {
    check_name(name.as_bytes())?;
    if value.as_bytes().contains(&0) {
        return Err(EnvError::NulInValue { name: Text::from(name) });
    }
    Ok(())
}

fn check_name(name: &[u8]) -> Result<(), EnvError> {
    if name.is_empty() {
        Err(EnvError::EmptyName)
    } else if name.contains(&0) {
        Err(EnvError::NulInName(Text::from(name)))
    } else if name.contains(&b'=') {
        Err(EnvError::EqualsInName(Text::from(name)))
    } else if name.contains(&b'\n') {
        Err(EnvError::NewlineInName(Text::from(name)))
    } else {
        Ok(())
    }
}

/// The name of a variable, or several with wildcards: `CI`, `MYAPP_*`. Letter case matters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvPattern {
    text: OsString,
    glob: Glob,
}

impl EnvPattern {
    /// Reads a pattern.
    ///
    /// # Errors
    /// When it is empty, contains `=`, NUL or a newline, or a wildcard cannot be read.
    pub fn parse(text: &[u8]) -> Result<Self, EnvError> {
        check_name(text)?;
        let glob = Glob::parse(text).map_err(|error| EnvError::Wildcard {
            pattern: Text::from(text),
            reason: error.to_string(),
        })?;
        Ok(Self {
            text: OsString::from_vec(text.to_vec()),
            glob,
        })
    }

    /// Whether `name` is meant.
    pub fn matches(&self, name: &OsStr) -> bool {
        self.glob.matches(name.as_bytes())
    }

    /// Whether this is `name` itself, without wildcards.
    fn is_exactly(&self, name: &OsStr) -> bool {
        self.glob.literal().is_some_and(|literal| literal == name.as_bytes())
    }
}

impl FromStr for EnvPattern {
    type Err = EnvError;

    fn from_str(text: &str) -> Result<Self, EnvError> {
        Self::parse(text.as_bytes())
    }
}

impl fmt::Display for EnvPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Text::from(self.text.as_os_str()).fmt(f)
    }
}

/// Words that make a name look like a secret when they stand alone between `_`, `-`, `.` and digits.
const SECRET_WORDS: [&str; 22] = [
    "AUTH",
    "AUTHORIZATION",
    "CERT",
    "CREDS",
    "DSN",
    "JWT",
    "KEY",
    "KEYS",
    "OAUTH",
    "OTP",
    "PASS",
    "PAT",
    "PIN",
    "PRIVATE",
    "PW",
    "PWD",
    "SALT",
    "SAS",
    "SESSION",
    "SID",
    "XAUTHORITY",
    "BEARER",
];

/// Words that make a name look like a secret wherever they stand (`PGPASSWORD`, `MYTOKEN`).
const SECRET_PARTS: [&str; 12] = [
    "TOKEN",
    "SECRET",
    "PASSWORD",
    "PASSWD",
    "PASSPHRASE",
    "PASSCODE",
    "CREDENTIAL",
    "COOKIE",
    "APIKEY",
    "DATABASE_URL",
    "CONNECTION_STRING",
    "SIGNATURE",
];

/// Names that have such a word and are no secrets: where one is, and where the certificates are that everybody trusts.
const NOT_SECRET: [&str; 6] = [
    "PWD",
    "OLDPWD",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "NIX_SSL_CERT_FILE",
    "PIP_CERT",
];

/// The word that makes `name` look like a secret, if one does.
pub fn secret_word(name: &OsStr) -> Option<&'static str> {
    let upper = name.as_bytes().to_ascii_uppercase();
    if NOT_SECRET.iter().any(|harmless| harmless.as_bytes() == upper) {
        return None;
    }
    let words: Vec<&[u8]> = upper.split(|byte| !byte.is_ascii_alphabetic()).collect();
    SECRET_PARTS
        .iter()
        .find(|part| contains(&upper, part.as_bytes()))
        .or_else(|| SECRET_WORDS.iter().find(|word| words.contains(&word.as_bytes())))
        .copied()
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    // The first byte tells most places apart, at a fraction of a comparison's cost.
    text.windows(part.len())
        .any(|window| window.first() == part.first() && window == part)
}

/// Variables by which whoever sets them runs code in every program that starts.
const LOADER_VARIABLES: [&str; 17] = [
    "LD_*",
    "DYLD_*",
    "GLIBC_TUNABLES",
    "GCONV_PATH",
    "LOCPATH",
    "BASH_ENV",
    "ENV",
    "BASH_FUNC_*",
    "SHELLOPTS",
    "PYTHONSTARTUP",
    "PYTHONHOME",
    "PYTHONPATH",
    "PERL5OPT",
    "PERL5LIB",
    "RUBYOPT",
    "NODE_OPTIONS",
    "*JAVA*_OPTIONS",
];

/// [`LOADER_VARIABLES`], read once.
static LOADERS: LazyLock<Vec<EnvPattern>> = LazyLock::new(|| patterns(&LOADER_VARIABLES));

/// Whether a variable makes programs load or run something.
pub fn is_loader_variable(name: &OsStr) -> bool {
    first_match(&LOADERS, name).is_some()
}

#[cfg(test)]
mod tests;
