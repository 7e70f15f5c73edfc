//! Tokens of registries (Docker's token authentication; RFC 7617 for passwords).

use std::fmt;

use data_encoding::BASE64;
use http::HeaderValue;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use zeroize::Zeroizing;

use super::address::RegistryAddress;
use super::challenge::{self, Challenge};
use super::credentials::{self, Credentials};
use super::secret::SecretText;
use super::{Repository, check_encryption};
use crate::error::ImageError;

const MAX_ANSWER: u64 = 1 << 20;
/// Who we are to the servers of tokens.
const CLIENT: &str = "offleash";

/// What a registry is shown.
pub(super) struct Token(HeaderValue);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(****)")
    }
}

impl Token {
    fn new(scheme: &str, secret: &str) -> Result<Self, String> {
        let header = Zeroizing::new(format!("{scheme} {secret}"));
        let mut value = HeaderValue::from_str(&header).map_err(|_| "a token that no header can hold".to_owned())?;
        value.set_sensitive(true);
        Ok(Self(value))
    }

    /// A name and a password.
    fn basic(name: &str, password: &str) -> Result<Self, String> {
        let plain = Zeroizing::new(format!("{name}:{password}"));
        Self::new("Basic", &Zeroizing::new(BASE64.encode(plain.as_bytes())))
    }

    pub(super) fn header(&self) -> HeaderValue {
        self.0.clone()
    }
}

#[derive(serde::Deserialize)]
struct TokenAnswer {
    token: Option<SecretText>,
    access_token: Option<SecretText>,
}

impl Repository<'_> {
    /// What the registry is to be shown, which has refused to answer without.
    pub(super) async fn answer_challenge(&self, headers: &[String]) -> Result<Token, ImageError> {
        let all: Vec<Challenge> = headers.iter().flat_map(|header| challenge::parse(header)).collect();
        let by = |scheme: &str| all.iter().find(|challenge| challenge.scheme == scheme);
        let credentials = credentials::of_settings(&self.name, self.settings)?;
        match (by("bearer"), by("basic")) {
            (Some(bearer), _) => self.token_of(bearer, credentials.as_ref()).await,
            (None, Some(_)) => match credentials {
                Some(Credentials::Password { name, password }) => {
                    Token::basic(&name, &password).map_err(|reason| self.bad(reason))
                }
                Some(Credentials::IdentityToken(_)) => Err(self.denied("it wants a name and a password")),
                None => Err(self.denied("it wants a name and a password, and there are none for it")),
            },
            (None, None) => Err(self.bad("it refuses access and does not say what it wants")),
        }
    }

    async fn token_of(&self, bearer: &Challenge, credentials: Option<&Credentials>) -> Result<Token, ImageError> {
        let realm = bearer.parameters.get("realm").map_or("", String::as_str);
        let realm = RegistryAddress::parse(realm).map_err(|reason| self.bad(format!("its tokens: {reason}")))?;
        check_encryption(&realm)?;
        // Else a registry elsewhere could have this machine's own services asked, since those need no encryption.
        if self.base.is_encrypted() && !realm.is_encrypted() {
            return Err(self.bad("its tokens are where nothing is encrypted"));
        }
        let scope = format!("repository:{}:pull", self.repository);
        let scope = bearer.parameters.get("scope").unwrap_or(&scope);
        let mut query = vec![("scope", scope.as_str())];
        query.extend(
            bearer
                .parameters
                .get("service")
                .map(|service| ("service", service.as_str())),
        );
        let request = match credentials {
            Some(Credentials::IdentityToken(token)) => {
                query.extend([
                    ("grant_type", "refresh_token"),
                    ("client_id", CLIENT),
                    ("refresh_token", token),
                ]);
                let form = Zeroizing::new(encoded(&query));
                http::Request::post(realm.path())
                    .header(http::header::CONTENT_TYPE, "application/x-www-form-urlencoded")
                    .body(bytes::Bytes::copy_from_slice(form.as_bytes()))
                    .map(|request| (realm.clone(), request))
            }
            other => {
                let address = realm.with_query(&encoded(&query));
                let mut request = http::Request::get(address.path());
                if let Some(Credentials::Password { name, password }) = other {
                    let basic = Token::basic(name, password).map_err(|reason| self.bad(reason))?;
                    request = request.header(http::header::AUTHORIZATION, basic.header());
                }
                request.body(bytes::Bytes::new()).map(|request| (address, request))
            }
        };
        let (address, request) = request.map_err(|error| self.bad(error))?;
        let response = self.connector.send(&address, request, &address.authority()).await?;
        match response.status().as_u16() {
            200 => {}
            400 | 401 | 403 => {
                return Err(ImageError::Denied {
                    registry: self.name.clone(),
                    said: self.said(response).await,
                });
            }
            _ => return Err(self.status(response).await),
        }
        let body = self.connector.read(response, MAX_ANSWER, &self.name).await?;
        let body = Zeroizing::new(body);
        // What is wrong with it is not said: it holds a secret.
        let answer: TokenAnswer = serde_json::from_slice(&body).map_err(|_| self.bad("a token that is none"))?;
        let token = answer.token.or(answer.access_token).filter(|token| !token.is_empty());
        let token = token.ok_or_else(|| self.bad("a token that is none"))?;
        Token::new("Bearer", &token).map_err(|reason| self.bad(reason))
    }

    fn denied(&self, said: &str) -> ImageError {
        ImageError::Denied {
            registry: self.name.clone(),
            said: said.to_owned(),
        }
    }
}

fn encoded(pairs: &[(&str, &str)]) -> String {
    let escaped = |text| utf8_percent_encode(text, NON_ALPHANUMERIC);
    let pairs = pairs.iter().map(|(key, value)| format!("{key}={}", escaped(value)));
    pairs.collect::<Vec<_>>().join("&")
}
