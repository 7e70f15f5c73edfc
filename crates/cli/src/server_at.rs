//! Which daemon a command asks: the one of a state directory of this machine, or a server at a URL.
//!
//! What works on this machine alone asks here for its state directory, and is refused where a server was named.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use offleash_api::client::{Client, Endpoint, HostUrl, RemoteSettings, SOCKET};
use offleash_core::error::{ErrorKind, Explained};
use offleash_core::text::Text;
use offleash_daemon::{ApiKey, BadApiKey};
use offleash_store::{HostIdentity, StateDirectory};

use crate::args::HostArgs;
use crate::failure::Failure;
use crate::logins::Logins;

/// The variables that stand for flags, and the one with the key.
pub(crate) const HOST: &str = "OFFLEASH_HOST";
const CA: &str = "OFFLEASH_CA";
const KEY: &str = "OFFLEASH_API_KEY";

/// The daemon that a command asks.
#[derive(Debug)]
pub(crate) enum ServerAt<'a> {
    /// That of a state directory here, the usual one if none is named.
    Here(Option<&'a Path>),
    /// A server at a URL.
    There(NamedServer),
}

/// A server at a URL, and how it was named.
#[derive(Debug)]
pub(crate) struct NamedServer {
    pub(crate) url: HostUrl,
    pub(crate) authorities: Option<PathBuf>,
    pub(crate) is_insecure: bool,
    /// Whether a flag named it, not the variable.
    is_flag: bool,
}

/// A command that does its work on this machine, and was asked to do it on another.
#[derive(Debug)]
pub(crate) struct OnlyHere {
    command: &'static str,
    by: &'static str,
    url: HostUrl,
    instead: Option<&'static str>,
}

impl fmt::Display for OnlyHere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { command, by, url, .. } = self;
        write!(
            f,
            "`offleash {command}` works on this machine alone, and `{by}` names the server `{url}`"
        )
    }
}

impl std::error::Error for OnlyHere {}

impl Explained for OnlyHere {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Unsupported
    }

    fn hint(&self) -> Option<String> {
        let here = match self.by {
            HOST => "unset OFFLEASH_HOST to work here",
            _ => "leave `--host` out to work here",
        };
        Some(match self.instead {
            Some(instead) => format!("{instead}; or {here}"),
            None => here.to_owned(),
        })
    }
}

impl<'a> ServerAt<'a> {
    /// What the flags say, or else the variables.
    ///
    /// # Errors
    /// A URL that is none.
    pub(crate) fn of(flags: &HostArgs, state: Option<&'a Path>) -> Result<Self, Failure> {
        let Some((given, is_flag)) = named(flags, variable(HOST)) else {
            return Ok(Self::Here(state));
        };
        let url: HostUrl = given.parse().map_err(|error| Failure::explained(&error))?;
        Ok(Self::There(NamedServer {
            url,
            authorities: flags.ca.clone().or_else(|| variable(CA).map(PathBuf::from)),
            is_insecure: flags.insecure,
            is_flag,
        }))
    }

    /// A client of it.
    ///
    /// # Errors
    /// When no key of the server is known, its URL is refused, or the state directory is.
    pub(crate) fn client(&self) -> Result<Client, Failure> {
        match self {
            Self::Here(state) => {
                let host = HostIdentity::of_this_process();
                let path = match StateDirectory::open_existing(*state, &host)? {
                    Some(state) => state.path().to_owned(),
                    None => host.default_state(),
                };
                Ok(Client::new(&path.join(SOCKET))?)
            }
            Self::There(server) => {
                // Whom a key would be told is refused before one is looked for.
                server.endpoint(None)?;
                let Some(key) = server.key()? else {
                    return Err(
                        Failure::new(format!("no key of `{}` is known", server.url)).with_hint(format!(
                            "`offleash login {}` keeps one, and {KEY} gives one to one command; if that is not the server \
                             that is meant, {} names another",
                            server.url,
                            server.named_by()
                        )),
                    );
                };
                Ok(Client::of(server.endpoint(Some(key))?)?)
            }
        }
    }

    /// The state directory of a command that works on this machine alone.
    ///
    /// # Errors
    /// `OnlyHere` where a server was named.
    pub(crate) fn here(
        &self,
        command: &'static str,
        instead: Option<&'static str>,
    ) -> Result<Option<&'a Path>, Failure> {
        match self {
            Self::Here(state) => Ok(*state),
            Self::There(server) => Err(server.only_here(command, instead).into()),
        }
    }

    /// Refuses a server that a flag named for a command that asks none. The variable is for others.
    ///
    /// # Errors
    /// `OnlyHere`.
    pub(crate) fn asks_none(&self, command: &'static str) -> Result<(), Failure> {
        match self {
            Self::There(server) if server.is_flag => Err(server.only_here(command, None).into()),
            _ => Ok(()),
        }
    }
}

impl NamedServer {
    /// The flag or the variable that named it.
    fn named_by(&self) -> &'static str {
        if self.is_flag { "--host" } else { HOST }
    }

    fn only_here(&self, command: &'static str, instead: Option<&'static str>) -> OnlyHere {
        OnlyHere {
            command,
            by: self.named_by(),
            url: self.url.clone(),
            instead,
        }
    }

    /// Where it is, and what is shown to it.
    ///
    /// # Errors
    /// That nothing keeps a key secret on the way; authorities that cannot be read.
    pub(crate) fn endpoint(&self, key: Option<ApiKey>) -> Result<Endpoint, Failure> {
        let settings = RemoteSettings {
            key,
            authorities: self.authorities.clone(),
            is_insecure: self.is_insecure,
        };
        Ok(Endpoint::host(self.url.clone(), settings)?)
    }

    /// The key of the variable, or the one that was kept for this server.
    fn key(&self) -> Result<Option<ApiKey>, Failure> {
        match variable(KEY) {
            Some(given) => given
                .to_string_lossy()
                .trim()
                .parse()
                .map(Some)
                .map_err(|error: BadApiKey| Failure::from_error(&error).while_trying(format!("reading {KEY}"))),
            None => Logins::of_this_user()?.key(&self.url),
        }
    }

    /// The flags that name it, for another process of ours.
    pub(crate) fn flags(&self) -> Result<Vec<OsString>, Failure> {
        let mut flags = vec!["--host".into(), self.url.to_string().into()];
        if let Some(path) = &self.authorities {
            let absolute = std::path::absolute(path).map_err(|error| {
                Failure::from_error(&error).while_trying(format!("finding `{}`", Text::from(path.as_path())))
            })?;
            flags.extend(["--ca".into(), absolute.into()]);
        }
        if self.is_insecure {
            flags.push("--insecure".into());
        }
        Ok(flags)
    }
}

/// `run` alone, which has a parser of its own and no flag for it.
///
/// # Errors
/// `OnlyHere` where the variable names a server.
pub(crate) fn check_run() -> Result<(), Failure> {
    ServerAt::of(&HostArgs::default(), None)?
        .here("run", Some(crate::args::RUN_ELSEWHERE))
        .map(drop)
}

/// Whether the variable names a server.
pub(crate) fn is_elsewhere() -> bool {
    variable(HOST).is_some()
}

fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// The URL, and whether a flag gave it.
fn named(flags: &HostArgs, variable: Option<OsString>) -> Option<(String, bool)> {
    match &flags.host {
        Some(url) => Some((url.clone(), true)),
        None => variable.map(|url| (url.to_string_lossy().into_owned(), false)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_goes_before_the_variable() {
        let flag = HostArgs {
            host: Some("https://a.example".to_owned()),
            ..HostArgs::default()
        };
        assert_eq!(
            named(&flag, Some("https://b.example".into())),
            Some(("https://a.example".to_owned(), true))
        );
        let none = HostArgs::default();
        assert_eq!(
            named(&none, Some("https://b.example".into())),
            Some(("https://b.example".to_owned(), false))
        );
        assert_eq!(named(&none, None), None);
    }

    #[test]
    fn what_works_here_alone_refuses_a_server() {
        let flags = HostArgs {
            host: Some("https://a.example".to_owned()),
            ..HostArgs::default()
        };
        let at = ServerAt::of(&flags, None).unwrap();
        let refused = at.here("doctor", None).unwrap_err().to_string();
        assert!(
            refused.contains("offleash doctor") && refused.contains("https://a.example"),
            "{refused}"
        );
        assert!(at.asks_none("man").is_err());
        let here = ServerAt::Here(Some(Path::new("/state")));
        assert_eq!(here.here("doctor", None).unwrap(), Some(Path::new("/state")));
        assert!(here.asks_none("man").is_ok());
    }
}
