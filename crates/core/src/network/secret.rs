//! Secrets that a sandbox may use without having them.
//!
//! Inside, a variable holds a [`Placeholder`]; outside, the gateway puts the [`SecretValue`] into requests to the hosts
//! that the secret is for, at the places where it may stand. Pure: where the value comes from is said here
//! ([`SecretSource`]) and read by the caller.

mod place;
mod placeholder;
#[cfg(test)]
mod tests;
mod value;

use core::fmt;
use core::str::FromStr;

use crate::error::{ErrorKind, Explained};
use crate::network::host::Host;
use crate::network::host_pattern::{HostPattern, HostPatternError};
use crate::text::Text;

pub use place::{PlaceError, SecretPlace, SigningPart};
pub use placeholder::Placeholder;
pub use value::{MAX_VALUE, MIN_VALUE, SecretValue, ValueError};

/// A secret as its owner described it: `API_KEY=env:REAL_KEY@api.example.com,*.example.org#header:x-api-key`.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SecretSpec {
    /// The variable inside, which holds the placeholder. By it the secret is known in records.
    pub name: String,
    /// Where the value is.
    pub source: SecretSource,
    /// For which hosts it is; at least one.
    pub hosts: Vec<HostPattern>,
    /// Where in a request it may stand; none stands for any header in which credentials are sent.
    pub places: Vec<SecretPlace>,
}

/// Where the value of a secret is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub enum SecretSource {
    /// In a variable of whoever starts offleash.
    Variable(String),
    /// In a file of the host; a relative path is below the current directory, `~/` the home directory.
    File(String),
}

/// A secret with its value, as the gateway has it.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub struct NamedSecret {
    /// What was asked for.
    pub spec: SecretSpec,
    /// What is put into requests.
    pub value: SecretValue,
    /// What the sandbox has in its place.
    pub placeholder: Placeholder,
}

/// Text that describes no secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// There is no `=`, or nothing in front of it.
    #[error("secret `{0}` is not NAME=SOURCE@HOST")]
    Shape(Text),
    /// The name is not one of a variable.
    #[error("`{0}` is no name of a variable")]
    Name(Text),
    /// The name is one by which programs find what they load.
    #[error("variable `{0}` changes what programs load, and is no secret")]
    Loader(String),
    /// No host is named.
    #[error("secret `{0}` names no host")]
    NoHost(String),
    /// A host cannot be read.
    #[error("secret `{name}`: {reason}")]
    Host {
        /// The secret.
        name: String,
        /// What is wrong with the host.
        reason: HostPatternError,
    },
    /// A host is a pattern of hosts that have nothing to do with each other.
    #[error("secret `{name}` would go to hosts that have nothing to do with each other: `{pattern}`")]
    TooWide {
        /// The secret.
        name: String,
        /// The pattern.
        pattern: HostPattern,
    },
    /// The source is neither a variable nor a file.
    #[error("secret `{name}`: `{given}` is no source")]
    Source {
        /// The secret.
        name: String,
        /// What was given for one.
        given: Text,
    },
    /// A place cannot be read.
    #[error("secret `{name}`: {reason}")]
    Place {
        /// The secret.
        name: String,
        /// What is wrong with the place.
        reason: PlaceError,
    },
    /// Two secrets have one name.
    #[error("secret `{0}` is given twice")]
    Twice(String),
    /// A secret for signing has a name that does not say which part of a key it is.
    #[error("the name of secret `{0}` does not say which part of a signing key it is")]
    SigningName(String),
    /// The id of a signing key is without its key, or the reverse, or they are for different hosts.
    #[error("secret `{name}` needs a secret `{missing}` for the same hosts")]
    SigningPart {
        /// The secret.
        name: String,
        /// The one that belongs to it.
        missing: String,
    },
    /// The gateway would sign in to a host with either of two.
    #[error("secrets `{name}` and `{other}` both sign in to `{host}`")]
    SignInTwice {
        /// The secret.
        name: String,
        /// The other one.
        other: String,
        /// The host.
        host: HostPattern,
    },
}

impl SecretSpec {
    /// The secret `name` from its parts, as a policy gives them.
    ///
    /// # Errors
    /// [`SecretError`] says what is wrong with it.
    pub fn from_parts(name: &str, source: &str, hosts: &[&str], places: &[&str]) -> Result<Self, SecretError> {
        let name = parse_name(name)?;
        let source = parse_source(&name, source)?;
        let parse = |text: &&str| parse_host(&name, text);
        let hosts = hosts.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
        if hosts.is_empty() {
            return Err(SecretError::NoHost(name));
        }
        let places: Result<Vec<SecretPlace>, PlaceError> = places.iter().map(|place| place.parse()).collect();
        let places = places
            .and_then(place::alone_where_needed)
            .map_err(|reason| SecretError::Place {
                name: name.clone(),
                reason,
            })?;
        let secret = Self {
            name,
            source,
            hosts,
            places,
        };
        if secret.signs() && secret.signing_part().is_none() {
            return Err(SecretError::SigningName(secret.name));
        }
        Ok(secret)
    }

    /// Whether it may be used for `host`.
    pub fn is_for(&self, host: &Host) -> bool {
        self.hosts.iter().any(|pattern| pattern.matches(host))
    }

    /// Whether it signs requests and is not sent itself.
    pub fn signs(&self) -> bool {
        self.places.contains(&SecretPlace::SigV4)
    }

    /// The user as whom the gateway signs in with it, by Basic authentication.
    pub fn signs_in_as(&self) -> Option<&str> {
        self.places.iter().find_map(|place| match place {
            SecretPlace::BasicAs(user) => Some(user.as_str()),
            _ => None,
        })
    }

    /// Which part of a signing key it is, and the beginning of the name that its parts have in common.
    pub fn signing_part(&self) -> Option<(&str, SigningPart)> {
        self.signs().then(|| SigningPart::of_name(&self.name)).flatten()
    }

    /// For which hosts it is, as text.
    pub fn hosts_text(&self) -> String {
        let hosts: Vec<String> = self.hosts.iter().map(ToString::to_string).collect();
        hosts.join(", ")
    }
}

/// Checks what can only be said of all secrets together.
///
/// # Errors
/// [`SecretError::Twice`], [`SecretError::SigningPart`] and [`SecretError::SignInTwice`].
pub fn check_together(secrets: &[SecretSpec]) -> Result<(), SecretError> {
    for (position, secret) in secrets.iter().enumerate() {
        if secrets[..position].iter().any(|other| other.name == secret.name) {
            return Err(SecretError::Twice(secret.name.clone()));
        }
        check_sign_in(secret, &secrets[..position])?;
        let Some((family, part)) = secret.signing_part() else {
            continue;
        };
        for needed in part.needs() {
            let belongs =
                |other: &&SecretSpec| other.signing_part() == Some((family, *needed)) && other.hosts == secret.hosts;
            if !secrets.iter().any(|other| belongs(&other)) {
                return Err(SecretError::SigningPart {
                    name: secret.name.clone(),
                    missing: format!("{family}{}", needed.ending()),
                });
            }
        }
    }
    Ok(())
}

/// That no other secret signs in to the same host; of two patterns that both mean it, the more specific one counts.
fn check_sign_in(secret: &SecretSpec, others: &[SecretSpec]) -> Result<(), SecretError> {
    if secret.signs_in_as().is_none() {
        return Ok(());
    }
    for other in others.iter().filter(|other| other.signs_in_as().is_some()) {
        if let Some(host) = secret.hosts.iter().find(|host| other.hosts.contains(host)) {
            return Err(SecretError::SignInTwice {
                name: secret.name.clone(),
                other: other.name.clone(),
                host: host.clone(),
            });
        }
    }
    Ok(())
}

fn parse_name(name: &str) -> Result<String, SecretError> {
    let starts = name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
    let is_name = starts && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if !is_name {
        return Err(SecretError::Name(name.into()));
    }
    if crate::env::is_loader_variable(name.as_ref()) {
        return Err(SecretError::Loader(name.to_owned()));
    }
    Ok(name.to_owned())
}

impl SecretSource {
    /// Where the value of the secret `name` is, as text `env:VARIABLE` or `file:PATH`.
    ///
    /// # Errors
    /// [`SecretError::Source`].
    pub fn parse(name: &str, text: &str) -> Result<Self, SecretError> {
        parse_source(name, text)
    }
}

fn parse_source(name: &str, text: &str) -> Result<SecretSource, SecretError> {
    let wrong = || SecretError::Source {
        name: name.to_owned(),
        // A value given in place of a source must not be shown; a source begins with a word and a colon.
        given: text.split_once(':').map_or("…", |(word, _)| word).into(),
    };
    match text.split_once(':') {
        Some(("env", variable)) if !variable.is_empty() && !variable.contains(['=', '\0', '\n']) => {
            Ok(SecretSource::Variable(variable.to_owned()))
        }
        Some(("file", path)) if !path.is_empty() && !path.contains('\0') => Ok(SecretSource::File(path.to_owned())),
        _ => Err(wrong()),
    }
}

fn parse_host(name: &str, text: &str) -> Result<HostPattern, SecretError> {
    let pattern = HostPattern::parse(text).map_err(|reason| SecretError::Host {
        name: name.to_owned(),
        reason,
    })?;
    if pattern.is_too_wide() {
        return Err(SecretError::TooWide {
            name: name.to_owned(),
            pattern,
        });
    }
    Ok(pattern)
}

impl FromStr for SecretSpec {
    type Err = SecretError;

    /// `NAME=SOURCE@HOST[,HOST…][#PLACE[,PLACE…]]`. A path may have `@` and `#` in it; what follows the last `@` are hosts.
    fn from_str(text: &str) -> Result<Self, SecretError> {
        let Some((name, rest)) = text.split_once('=') else {
            // What has no name may be the value itself.
            return Err(SecretError::Shape("…".into()));
        };
        let name = parse_name(name)?;
        let Some((source, target)) = rest.rsplit_once('@') else {
            return Err(SecretError::NoHost(name));
        };
        let (hosts, places) = match target.split_once('#') {
            Some((hosts, places)) => (hosts, places.split(',').collect()),
            None => (target, Vec::new()),
        };
        let hosts: Vec<&str> = if hosts.is_empty() {
            Vec::new()
        } else {
            hosts.split(',').collect()
        };
        Self::from_parts(&name, source, &hosts, &places)
    }
}

impl fmt::Display for SecretSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}@", self.name, self.source)?;
        for (number, host) in self.hosts.iter().enumerate() {
            write!(f, "{}{host}", if number == 0 { "" } else { "," })?;
        }
        for (number, place) in self.places.iter().enumerate() {
            write!(f, "{}{place}", if number == 0 { "#" } else { "," })?;
        }
        Ok(())
    }
}

impl fmt::Display for SecretSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Variable(name) => write!(f, "env:{name}"),
            Self::File(path) => write!(f, "file:{path}"),
        }
    }
}

impl Explained for SecretError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Invalid
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Shape(_) => "write NAME=env:VARIABLE@HOST or NAME=file:PATH@HOST".to_owned(),
            Self::Name(_) => "a name has letters, digits and `_`, and begins with no digit".to_owned(),
            Self::Loader(_) => "choose another name".to_owned(),
            Self::NoHost(name) => {
                format!("say for which hosts it is: `{name}=env:VARIABLE@api.example.com`, several with commas")
            }
            Self::Source { .. } => {
                "a source is `env:VARIABLE` or `file:PATH`; the value itself would be seen in the list of processes"
                    .to_owned()
            }
            Self::TooWide { .. } => "name a domain that belongs to somebody, such as *.example.com".to_owned(),
            Self::Twice(_) => "give each variable once, with all of its hosts".to_owned(),
            Self::SigningName(_) => format!(
                "names of secrets for `sigv4` end in {}",
                SigningPart::ALL.map(SigningPart::ending).join(", ")
            ),
            Self::SigningPart { .. } => {
                "a request is signed with the id of a key and the key; give both, with the same hosts".to_owned()
            }
            Self::SignInTwice { .. } => "leave the host out of one of them".to_owned(),
            Self::Host { reason, .. } => return reason.hint(),
            Self::Place { reason, .. } => return reason.hint(),
        })
    }
}
