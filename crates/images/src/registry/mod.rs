//! Speaks to registries (OCI distribution specification; Docker's registry API v2).
//!
//! Nothing that a registry says is believed that its digest does not prove. Credentials go to the registry that they are
//! for, and to the place that it names for tokens; redirects to other hosts get none. Names are resolved here and never by
//! the C library. Deliberately not here: what becomes of what was fetched.

mod address;
mod auth;
mod challenge;
mod connection;
mod credentials;
mod download;
mod manifests;
mod proxy;
mod secret;
mod settings;

pub use self::settings::{MirrorSetting, RegistryLogin, RegistrySettings};

use std::cell::RefCell;

use http::header::{ACCEPT, AUTHORIZATION, LOCATION, RANGE, WWW_AUTHENTICATE};
use http::{HeaderValue, Method, StatusCode};
use hyper::Response;
use hyper::body::Incoming;

pub use self::address::RegistryAddress;
use self::auth::Token;
pub use self::connection::{Connector, client_tls};
pub(crate) use self::manifests::FetchedManifest;
use crate::error::ImageError;
use crate::reference::{DEFAULT_REGISTRY, ImageReference};

/// Where Docker Hub's registry is.
const DEFAULT_REGISTRY_HOST: &str = "registry-1.docker.io";
const MAX_REDIRECTS: usize = 5;
/// How often an answer that promises better is asked for again.
const MAX_ATTEMPTS: u32 = 5;

/// A repository at one registry, or at a mirror of it.
#[derive(Debug)]
pub(crate) struct Repository<'a> {
    settings: &'a RegistrySettings,
    connector: &'a Connector,
    /// The registry as messages name it.
    name: String,
    base: RegistryAddress,
    repository: String,
    token: RefCell<Option<Token>>,
}

/// What is asked for.
#[derive(Debug, Clone, Default)]
struct Question {
    accept: Option<String>,
    /// From this byte on.
    from: u64,
    /// Whether nothing but the head of the answer is wanted.
    is_head: bool,
}

impl<'a> Repository<'a> {
    /// Where `reference` can be had: mirrors first, then its registry.
    pub(crate) fn all_of(
        reference: &ImageReference,
        settings: &'a RegistrySettings,
        connector: &'a Connector,
    ) -> Result<Vec<Self>, ImageError> {
        let at = |name: String, base: RegistryAddress| Self {
            settings,
            connector,
            name,
            base,
            repository: reference.repository().to_owned(),
            token: RefCell::new(None),
        };
        let mut all = Vec::new();
        for mirror in settings
            .mirrors
            .iter()
            .filter(|mirror| mirror.registry == reference.registry())
        {
            let base = RegistryAddress::parse(&mirror.url).map_err(|reason| ImageError::Setting {
                what: "the address of a mirror",
                reason,
            })?;
            check_encryption(&base)?;
            all.push(at(base.authority(), base));
        }
        let host = match reference.registry() {
            DEFAULT_REGISTRY => DEFAULT_REGISTRY_HOST,
            other => other,
        };
        let address = |scheme| {
            RegistryAddress::parse(&format!("{scheme}://{host}/")).map_err(|reason| ImageError::Setting {
                what: "the registry",
                reason,
            })
        };
        // One that is elsewhere is asked with encryption, whatever is said of those on this machine.
        let plain = address("http")?;
        let base = match settings.plain_http && plain.is_loopback() {
            true => plain,
            false => address("https")?,
        };
        all.push(at(reference.registry().to_owned(), base));
        Ok(all)
    }

    /// What tells it from every other repository.
    fn source(&self) -> String {
        let path = self.base.join(&self.repository);
        format!("{}{}", self.base.authority(), path.path())
    }

    /// Asks for something below the repository, with a token where the registry wants one, and follows redirects.
    async fn get(&self, path: &str, question: &Question) -> Result<Response<Incoming>, ImageError> {
        let address = self.base.join(&format!("v2/{}/{path}", self.repository));
        let mut attempt = 0;
        let mut has_asked_for_token = false;
        loop {
            let response = self.follow(&address, question).await?;
            match response.status() {
                StatusCode::UNAUTHORIZED if !has_asked_for_token => {
                    has_asked_for_token = true;
                    let challenges = challenges_of(&response);
                    let token = self.answer_challenge(&challenges).await?;
                    *self.token.borrow_mut() = Some(token);
                }
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                    return Err(ImageError::Denied {
                        registry: self.name.clone(),
                        said: self.said(response).await,
                    });
                }
                status if is_passing(status) && attempt < MAX_ATTEMPTS => {
                    tokio::time::sleep(self.settings.pause(attempt)).await;
                    attempt += 1;
                }
                _ => return Ok(response),
            }
        }
    }

    async fn follow(&self, address: &RegistryAddress, question: &Question) -> Result<Response<Incoming>, ImageError> {
        let mut address = address.clone();
        for _ in 0..=MAX_REDIRECTS {
            let method = if question.is_head { Method::HEAD } else { Method::GET };
            let mut request = http::Request::builder().method(method).uri(address.path());
            if let Some(accept) = &question.accept {
                request = request.header(ACCEPT, accept);
            }
            if question.from > 0 {
                request = request.header(RANGE, format!("bytes={}-", question.from));
            }
            // Whoever is elsewhere gets nothing that is for the registry.
            if let Some(token) = &*self.token.borrow()
                && address.is_same_host(&self.base)
            {
                request = request.header(AUTHORIZATION, token.header());
            }
            let request = request.body(bytes::Bytes::new()).map_err(|error| self.bad(error))?;
            let response = self.connector.send(&address, request, &self.name).await?;
            if !response.status().is_redirection() || response.status() == StatusCode::NOT_MODIFIED {
                return Ok(response);
            }
            let location = response
                .headers()
                .get(LOCATION)
                .and_then(|location| location.to_str().ok());
            let location = location.ok_or_else(|| self.bad("a redirect that leads nowhere"))?;
            let next = address.resolve(location).map_err(|reason| self.bad(reason))?;
            if address.is_encrypted() && !next.is_encrypted() {
                return Err(self.bad("a redirect to where nothing is encrypted"));
            }
            check_encryption(&next)?;
            address = next;
        }
        Err(self.bad(format!("more than {MAX_REDIRECTS} redirects")))
    }

    fn bad(&self, reason: impl ToString) -> ImageError {
        ImageError::BadAnswer {
            registry: self.name.clone(),
            reason: reason.to_string(),
        }
    }

    /// What an answer says went wrong.
    async fn said(&self, response: Response<Incoming>) -> String {
        const MAX_LENGTH: u64 = 16 << 10;
        const SHOWN: usize = 200;
        #[derive(serde::Deserialize)]
        struct Errors {
            errors: Vec<Said>,
        }
        #[derive(serde::Deserialize)]
        struct Said {
            #[serde(default)]
            code: String,
            #[serde(default)]
            message: String,
        }
        let status = response.status();
        let body = self.connector.read(response, MAX_LENGTH, &self.name).await;
        let errors = body.ok().and_then(|body| serde_json::from_slice::<Errors>(&body).ok());
        let said = errors.into_iter().flat_map(|errors| errors.errors).next();
        let text = match said {
            Some(Said { code, message }) if message.is_empty() => code,
            Some(Said { message, .. }) => message,
            None => status.canonical_reason().unwrap_or_default().to_owned(),
        };
        text.chars()
            .filter(|character| !character.is_control())
            .take(SHOWN)
            .collect()
    }

    async fn status(&self, response: Response<Incoming>) -> ImageError {
        let status = response.status().as_u16();
        ImageError::Status {
            registry: self.name.clone(),
            status,
            said: self.said(response).await,
        }
    }
}

/// Without encryption only this machine is asked.
fn check_encryption(address: &RegistryAddress) -> Result<(), ImageError> {
    match address.is_encrypted() || address.is_loopback() {
        true => Ok(()),
        false => Err(ImageError::PlainHttp {
            registry: address.authority(),
        }),
    }
}

/// Whether the same question may be answered a moment later.
fn is_passing(status: StatusCode) -> bool {
    status == StatusCode::TOO_MANY_REQUESTS || matches!(status.as_u16(), 500 | 502..=504)
}

fn challenges_of(response: &Response<Incoming>) -> Vec<String> {
    let all = response.headers().get_all(WWW_AUTHENTICATE).iter();
    all.filter_map(|value: &HeaderValue| value.to_str().ok().map(str::to_owned))
        .collect()
}

#[cfg(test)]
mod endless_tests;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
