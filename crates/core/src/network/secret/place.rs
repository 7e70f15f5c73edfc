//! Where in a request a secret may stand.

use core::fmt;
use core::str::FromStr;

use crate::error::{ErrorKind, Explained};
use crate::text::Text;

/// A place in a request, as text `bearer`, `basic`, `basic:USER`, `header:NAME`, `query:NAME` or `sigv4`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub enum SecretPlace {
    /// The token of `Authorization: Bearer` (RFC 6750, 2.1).
    Bearer,
    /// User or password of `Authorization: Basic` (RFC 7617).
    Basic,
    /// The password of this user in `Authorization: Basic`, in every request over TLS, whatever the sandbox sends there.
    BasicAs(String),
    /// The value of this header, whose name is in small letters.
    Header(String),
    /// The value of this parameter of the query.
    Query(String),
    /// The signature of a request to AWS (Signature Version 4); the secret itself is not sent.
    SigV4,
}

/// Which part of a signing key a secret is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SigningPart {
    /// The id of a key, which is sent.
    AccessKeyId,
    /// The key, which is not.
    SecretAccessKey,
    /// The token of a session, which is sent with the id of a temporary key.
    SessionToken,
}

/// Text that is no place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// The word is none.
    #[error("`{0}` is no place of a secret")]
    Unknown(Text),
    /// A header's name is no token (RFC 9110, 5.1).
    #[error("`{0}` is no name of a header")]
    Header(Text),
    /// A header that says where a request goes or where it ends.
    #[error("header `{0}` belongs to the connection and holds no secret")]
    OfTheConnection(String),
    /// A parameter without name.
    #[error("a parameter of the query has a name")]
    Query,
    /// What is to be the name of a user is none, or none that can be written in one line with the rest.
    #[error("`{0}` is no name of a user to sign in as")]
    User(Text),
    /// A place next to one that leaves no other.
    #[error("`{0}` is the only place of a secret that has it")]
    NotAlone(String),
}

/// The longest name of a user.
const MAX_USER: usize = 255;

/// Headers that say whom a request is for, where it ends or what becomes of the connection.
const OF_THE_CONNECTION: [&str; 12] = [
    "accept-encoding",
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-connection",
    "range",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Headers that servers write down or hand on as a matter of course, and in which no credentials are sent.
const WRITTEN_DOWN: [&str; 5] = ["from", "origin", "referer", "user-agent", "via"];

impl SecretPlace {
    /// Whether a header is one in which a secret without places may stand; `name` is in small letters.
    pub fn is_usual_header(name: &str) -> bool {
        !OF_THE_CONNECTION.contains(&name) && !WRITTEN_DOWN.contains(&name)
    }
}

impl SigningPart {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::AccessKeyId, Self::SecretAccessKey, Self::SessionToken];

    /// How the names of such variables end.
    pub fn ending(self) -> &'static str {
        match self {
            Self::AccessKeyId => "ACCESS_KEY_ID",
            Self::SecretAccessKey => "SECRET_ACCESS_KEY",
            Self::SessionToken => "SESSION_TOKEN",
        }
    }

    /// What a key of which this is a part has to have, too.
    pub fn needs(self) -> &'static [Self] {
        match self {
            Self::AccessKeyId => &[Self::SecretAccessKey],
            Self::SecretAccessKey => &[Self::AccessKeyId],
            Self::SessionToken => &[Self::AccessKeyId, Self::SecretAccessKey],
        }
    }

    /// The part that a variable holds, and what is in front of the ending of its name.
    pub(super) fn of_name(name: &str) -> Option<(&str, Self)> {
        Self::ALL
            .into_iter()
            .find_map(|part| Some((name.strip_suffix(part.ending())?, part)))
    }
}

/// The places, unless one that has to be alone is one of several: where the gateway itself signs or signs in, nothing that
/// the sandbox sends decides.
pub(super) fn alone_where_needed(places: Vec<SecretPlace>) -> Result<Vec<SecretPlace>, PlaceError> {
    let is_alone = |place: &&SecretPlace| matches!(place, SecretPlace::SigV4 | SecretPlace::BasicAs(_));
    match places.iter().find(is_alone) {
        Some(place) if places.len() > 1 => Err(PlaceError::NotAlone(place.to_string())),
        _ => Ok(places),
    }
}

/// A user-id has no colon (RFC 7617, 2), and this one nothing by which the text of a secret is divided.
fn is_user(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_graphic() && !b":,@#\"\\".contains(&byte);
    (1..=MAX_USER).contains(&text.len()) && text.bytes().all(fits)
}

fn is_token(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

impl FromStr for SecretPlace {
    type Err = PlaceError;

    fn from_str(text: &str) -> Result<Self, PlaceError> {
        match text.split_once(':') {
            None if text == "bearer" => Ok(Self::Bearer),
            None if text == "basic" => Ok(Self::Basic),
            None if text == "sigv4" => Ok(Self::SigV4),
            Some(("basic", user)) if is_user(user) => Ok(Self::BasicAs(user.to_owned())),
            Some(("basic", user)) => Err(PlaceError::User(user.into())),
            Some(("header", name)) => {
                if !is_token(name) {
                    return Err(PlaceError::Header(name.into()));
                }
                let name = name.to_ascii_lowercase();
                if OF_THE_CONNECTION.contains(&name.as_str()) {
                    return Err(PlaceError::OfTheConnection(name));
                }
                Ok(Self::Header(name))
            }
            Some(("query", name)) if !name.is_empty() => Ok(Self::Query(name.to_owned())),
            Some(("query", _)) => Err(PlaceError::Query),
            _ => Err(PlaceError::Unknown(text.into())),
        }
    }
}

impl fmt::Display for SecretPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bearer => f.write_str("bearer"),
            Self::Basic => f.write_str("basic"),
            Self::BasicAs(user) => write!(f, "basic:{user}"),
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Query(name) => write!(f, "query:{name}"),
            Self::SigV4 => f.write_str("sigv4"),
        }
    }
}

impl Explained for PlaceError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Invalid
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Unknown(_) => "places are bearer, basic, basic:USER, header:NAME, query:NAME and sigv4",
            Self::Header(_) => "write it as in `header:x-api-key`",
            Self::OfTheConnection(_) => "name the header in which the server expects the secret",
            Self::Query => "write it as in `query:key`",
            Self::User(_) => {
                "write it as in `basic:x-access-token`, without spaces and `:`, `,`, `@`, `#`; with a token most forges take any name"
            }
            Self::NotAlone(_) => "give it alone",
        };
        Some(hint.to_owned())
    }
}
