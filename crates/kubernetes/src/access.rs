//! Requests over connections of `images`, for the API server and for daemons.
//!
//! `kube` is handed a service instead of its own client: names would be asked of the C library there, which a static program cannot
//! carry, and there is one place that trusts authorities already.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, HeaderValue};
use http::{Request, Response};
use hyper::body::Incoming;
use kube::Client;
use kube::client::Body;
use offleash_images::{Connector, ImageError, RegistryAddress, RegistrySettings};

use crate::config::{ControllerConfig, PodAccount};
use crate::error::ControllerError;

/// How long the head of an answer may take.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest token that is read.
const MAX_TOKEN: u64 = 64 * 1024;

/// Why there was no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AccessError {
    /// No answer came.
    #[error("`{server}` cannot be reached: {reason}")]
    Unreachable { server: String, reason: String },
    /// The token cannot be read.
    #[error("reading `{}`", .path.display())]
    Token { path: PathBuf, source: std::io::Error },
    /// The request's own body failed.
    #[error("reading the body of a request: {0}")]
    Body(String),
    /// The request is none.
    #[error("asking for `{0}`")]
    Address(String),
}

/// Makes connections: one for each request.
#[derive(Debug)]
pub(crate) struct HttpAccess {
    connector: Connector,
    base: String,
}

impl HttpAccess {
    /// Access to what is below `base`, where the head of an answer may take `timeout`.
    pub(crate) fn new(base: &str, authority: Option<&Path>, timeout: Duration) -> Result<Self, ControllerError> {
        let settings = RegistrySettings {
            authorities: authority.map(Path::to_owned).into_iter().collect(),
            stall_timeout: timeout,
            ..RegistrySettings::default()
        };
        let connector = Connector::new(&settings).map_err(|error| ControllerError::Settings {
            what: "the API server's authority",
            reason: error.to_string(),
        })?;
        Ok(Self {
            connector,
            base: base.trim_end_matches('/').to_owned(),
        })
    }

    /// Sends a request for a path, and answers when the head of the answer is there.
    pub(crate) async fn send(&self, mut request: Request<Bytes>) -> Result<Response<Incoming>, AccessError> {
        let path = request
            .uri()
            .path_and_query()
            .map_or("/", |path| path.as_str())
            .to_owned();
        let wrong = |reason: String| AccessError::Address(format!("{path}: {reason}"));
        let address = RegistryAddress::parse(&format!("{}{path}", self.base)).map_err(wrong)?;
        // The connection is to one server, which is asked for a path.
        *request.uri_mut() = path
            .parse()
            .map_err(|error: http::uri::InvalidUri| wrong(error.to_string()))?;
        let answered = self.connector.send(&address, request, &self.base).await;
        answered.map_err(|error| AccessError::Unreachable {
            server: self.base.clone(),
            reason: in_our_words(error),
        })
    }

    /// The whole body of a short answer.
    pub(crate) async fn read(&self, response: Response<Incoming>, limit: u64) -> Result<Vec<u8>, AccessError> {
        let read = self.connector.read(response, limit, &self.base).await;
        read.map_err(|error| AccessError::Unreachable {
            server: self.base.clone(),
            reason: in_our_words(error),
        })
    }
}

/// What happened, without the registry that `images` speaks of.
fn in_our_words(error: ImageError) -> String {
    match error {
        ImageError::Unreachable { reason, .. } => reason,
        ImageError::Stalled { seconds, .. } => format!("it has sent nothing for {seconds} seconds"),
        ImageError::NoTls { .. } => "it does not speak TLS".to_owned(),
        ImageError::TooLarge { .. } => "its answer is too long".to_owned(),
        other => other.to_string(),
    }
}

/// A client of the API server.
///
/// # Errors
/// `Settings`.
pub(crate) fn client(config: &ControllerConfig) -> Result<Client, ControllerError> {
    let PodAccount { url, token, authority } = config.account.clone();
    check(&url, token.is_some())?;
    let access = Arc::new(HttpAccess::new(&url, authority.as_deref(), HEAD_TIMEOUT)?);
    let service = tower::service_fn(move |request: Request<Body>| {
        let (access, token) = (Arc::clone(&access), token.clone());
        async move {
            let (mut head, body) = request.into_parts();
            if let Some(path) = token {
                head.headers.insert(AUTHORIZATION, bearer(&path)?);
            }
            let body = body.collect_bytes().await;
            let body = body.map_err(|error| AccessError::Body(error.to_string()))?;
            access.send(Request::from_parts(head, body)).await
        }
    });
    Ok(Client::new(service, config.namespace.clone()))
}

/// A token goes to an API server that is authenticated, or is on this machine.
fn check(url: &str, shows_token: bool) -> Result<(), ControllerError> {
    let wrong = |reason: String| ControllerError::Settings {
        what: "the API server",
        reason,
    };
    let address = RegistryAddress::parse(url).map_err(wrong)?;
    match address.is_encrypted() || address.is_loopback() {
        true => Ok(()),
        false if shows_token => Err(wrong(format!("`{url}` would be shown the token without encryption"))),
        false => Err(wrong(format!(
            "`{url}` is not on this machine, and nothing would be encrypted"
        ))),
    }
}

/// What is shown, read anew: Kubernetes replaces it before it expires.
fn bearer(path: &Path) -> Result<HeaderValue, AccessError> {
    let failed = |source| AccessError::Token {
        path: path.to_owned(),
        source,
    };
    let text = read_up_to(path, MAX_TOKEN).map_err(failed)?;
    let shown = HeaderValue::from_str(&format!("Bearer {}", text.trim()));
    let mut shown = shown.map_err(|_| failed(std::io::Error::other("it is no token")))?;
    shown.set_sensitive(true);
    Ok(shown)
}

fn read_up_to(path: &Path, limit: u64) -> std::io::Result<String> {
    use std::io::Read as _;
    let mut text = String::new();
    std::fs::File::open(path)?.take(limit).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_shown_to_nobody_in_the_clear() {
        for (url, is_fine) in [
            ("https://10.96.0.1", true),
            ("http://127.0.0.1:8001", true),
            ("http://10.96.0.1:8080", false),
            ("10.96.0.1", false),
        ] {
            assert_eq!(check(url, true).is_ok(), is_fine, "{url}");
        }
    }

    #[test]
    fn a_token_is_read_anew_and_is_one_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        assert!(bearer(&path).unwrap_err().to_string().contains("token"));
        std::fs::write(&path, "one\n").unwrap();
        assert_eq!(bearer(&path).unwrap(), "Bearer one");
        std::fs::write(&path, "two").unwrap();
        let shown = bearer(&path).unwrap();
        assert_eq!(shown, "Bearer two");
        assert!(!format!("{shown:?}").contains("two"));
    }
}
