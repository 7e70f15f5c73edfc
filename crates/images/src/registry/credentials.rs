//! Credentials of who runs us, as Docker keeps them: in its `config.json`, or with programs that it names.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::Duration;

use data_encoding::BASE64;
use zeroize::Zeroizing;

use super::secret::SecretText;
use super::settings::RegistrySettings;
use crate::error::ImageError;
use crate::reference::DEFAULT_REGISTRY;

/// How Docker calls its own registry in its configuration.
const DEFAULT_KEY: &str = "https://index.docker.io/v1/";
const MAX_CONFIG: u64 = 1 << 20;
const MAX_ANSWER: usize = 64 << 10;
const HELPER_TIMEOUT: Duration = Duration::from_secs(60);

/// What a user shows a registry.
#[derive(Debug)]
pub(super) enum Credentials {
    Password { name: String, password: SecretText },
    IdentityToken(SecretText),
}

#[derive(Default, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct DockerConfig {
    #[serde(default)]
    auths: BTreeMap<String, AuthEntry>,
    #[serde(default)]
    cred_helpers: BTreeMap<String, String>,
    #[serde(default)]
    creds_store: Option<String>,
}

#[derive(Default, serde::Deserialize)]
struct AuthEntry {
    #[serde(default)]
    auth: SecretText,
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: SecretText,
    #[serde(default)]
    identitytoken: SecretText,
}

/// The credentials for a registry, if there are any: those that were given for it, or those of who runs us.
pub(super) fn of_settings(registry: &str, settings: &RegistrySettings) -> Result<Option<Credentials>, ImageError> {
    let given = settings.login.as_ref().filter(|login| login.registry == registry);
    match given {
        Some(login) => Ok(Some(Credentials::Password {
            name: login.username.clone(),
            password: SecretText::new(login.password.clone()),
        })),
        None => find(registry, settings.docker_config.as_deref()),
    }
}

/// The credentials of who runs us for a registry, if there are any.
fn find(registry: &str, config: Option<&Path>) -> Result<Option<Credentials>, ImageError> {
    let Some(path) = config else { return Ok(None) };
    let wrong = |reason: String| ImageError::Credentials {
        registry: registry.to_owned(),
        reason,
    };
    let text = match crate::store::read_up_to(path, MAX_CONFIG) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        read => Zeroizing::new(read.map_err(|error| wrong(format!("reading `{}`: {error}", path.display())))?),
    };
    // What is wrong with it is said by its place alone: it holds secrets.
    let config: DockerConfig = serde_json::from_slice(&text)
        .map_err(|error| wrong(format!("`{}` is malformed at line {}", path.display(), error.line())))?;
    let helper = config
        .cred_helpers
        .iter()
        .find(|(key, _)| is_for(key, registry))
        .map(|(_, helper)| helper);
    let helper = helper
        .or(config.creds_store.as_ref())
        .filter(|helper| !helper.is_empty());
    let found = helper
        .map(|helper| ask_helper(helper, registry))
        .transpose()
        .map_err(wrong)?;
    if let Some(found) = found.flatten() {
        return Ok(Some(found));
    }
    let entry = config.auths.into_iter().find(|(key, _)| is_for(key, registry));
    entry.map_or(Ok(None), |(_, entry)| of_entry(entry).map_err(wrong))
}

/// Whether a key of the configuration is about this registry: `host`, `https://host`, `https://host/v1/`.
fn is_for(key: &str, registry: &str) -> bool {
    let host = key.trim_start_matches("https://").trim_start_matches("http://");
    let host = host.split('/').next().unwrap_or_default();
    match registry {
        DEFAULT_REGISTRY => ["docker.io", "index.docker.io", "registry-1.docker.io"].contains(&host),
        registry => host.eq_ignore_ascii_case(registry),
    }
}

fn of_entry(entry: AuthEntry) -> Result<Option<Credentials>, String> {
    if !entry.identitytoken.is_empty() {
        return Ok(Some(Credentials::IdentityToken(entry.identitytoken)));
    }
    if !entry.username.is_empty() {
        return Ok(Some(Credentials::Password {
            name: entry.username,
            password: entry.password,
        }));
    }
    if entry.auth.is_empty() {
        return Ok(None);
    }
    let decoded = BASE64.decode(entry.auth.trim().as_bytes()).map(Zeroizing::new);
    let pair = decoded.ok().and_then(|decoded| {
        let text = str::from_utf8(&decoded).ok()?;
        let (name, password) = text.split_once(':')?;
        let password = SecretText::new(password.trim_end_matches('\0').to_owned());
        Some(Credentials::Password {
            name: name.to_owned(),
            password,
        })
    });
    pair.map(Some)
        .ok_or_else(|| "its `auth` is not the base64 of `name:password`".to_owned())
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "PascalCase")]
struct HelperAnswer {
    username: String,
    secret: SecretText,
}

/// Asks `docker-credential-NAME`, a program of the user's own, outside of any sandbox.
fn ask_helper(helper: &str, registry: &str) -> Result<Option<Credentials>, String> {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if !helper.bytes().all(is_name) {
        return Err(format!("`{}` is no name of a helper", helper.escape_debug()));
    }
    let program = format!("docker-credential-{helper}");
    let key = if registry == DEFAULT_REGISTRY {
        DEFAULT_KEY
    } else {
        registry
    };
    let asked = offleash_sys::process::ask_helper(&program, &["get"], key.as_bytes(), MAX_ANSWER, HELPER_TIMEOUT);
    let (has_answered, answer) = asked.map_err(|error| format!("running `{program}`: {error}"))?;
    let answer = Zeroizing::new(answer);
    if !has_answered {
        let said = String::from_utf8_lossy(&answer);
        let said = said.trim();
        // How every helper says that it has none.
        return match said.contains("credentials not found") {
            true => Ok(None),
            false => Err(format!(
                "`{program}` failed: {}",
                said.chars().take(200).collect::<String>().escape_debug()
            )),
        };
    }
    let answer: HelperAnswer =
        serde_json::from_slice(&answer).map_err(|_| format!("`{program}` answered what is no credentials"))?;
    Ok(Some(match answer.username.as_str() {
        "<token>" => Credentials::IdentityToken(answer.secret),
        _ => Credentials::Password {
            name: answer.username,
            password: answer.secret,
        },
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(config: &str, registry: &str) -> Result<Option<(String, String)>, ImageError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), config).unwrap();
        Ok(find(registry, Some(file.path()))?.map(|found| match found {
            Credentials::Password { name, password } => (name, password.to_string()),
            Credentials::IdentityToken(token) => ("<token>".to_owned(), token.to_string()),
        }))
    }

    #[test]
    fn credentials_are_those_of_the_registry_and_of_no_other() {
        let config = r#"{"auths": {
            "https://index.docker.io/v1/": {"auth": "aHViOnNlY3JldDp3aXRoIGNvbG9u"},
            "localhost:5000": {"username": "me", "password": "word"},
            "https://ghcr.io": {"identitytoken": "token"},
            "empty.example": {}
        }}"#;
        let pair = |name: &str, password: &str| Some((name.to_owned(), password.to_owned()));
        assert_eq!(found(config, "docker.io").unwrap(), pair("hub", "secret:with colon"));
        assert_eq!(found(config, "localhost:5000").unwrap(), pair("me", "word"));
        assert_eq!(found(config, "ghcr.io").unwrap(), pair("<token>", "token"));
        for other in [
            "localhost",
            "localhost:5001",
            "empty.example",
            "evil.example",
            "ghcr.io.evil.example",
        ] {
            assert_eq!(found(config, other).unwrap(), None, "{other}");
        }
        assert!(
            find("docker.io", Some(Path::new("/nonexistent/config.json")))
                .unwrap()
                .is_none()
        );
    }

    #[test]
    fn what_is_wrong_is_said_without_the_secret() {
        for config in [
            "{\"auths\": {\"a.example\": {\"auth\": \"confidential\"}}}",
            "{\"auths\": {\"a.example\": \"confidential\"}}",
        ] {
            let error = found(config, "a.example").unwrap_err();
            assert!(
                matches!(error, ImageError::Credentials { .. }) && !error.to_string().contains("confidential"),
                "{error}"
            );
        }
        let error = found(r#"{"credsStore": "../../bin/sh"}"#, "a.example").unwrap_err();
        assert!(error.to_string().contains("no name of a helper"), "{error}");
        let error = found(r#"{"credHelpers": {"a.example": "that-nobody-has"}}"#, "a.example").unwrap_err();
        assert!(
            error.to_string().contains("docker-credential-that-nobody-has"),
            "{error}"
        );
        assert_eq!(
            found(r#"{"credHelpers": {"a.example": "that-nobody-has"}}"#, "b.example").unwrap(),
            None
        );
    }
}
