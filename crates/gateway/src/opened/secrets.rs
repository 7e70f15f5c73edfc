//! What secrets do to the requests that are carried, and to their answers.

use http::StatusCode;
use http::header::{ACCEPT_RANGES, CONTENT_ENCODING, HeaderValue};
use http::request::Parts;
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Body as _;

use super::answers::Unanswered;
use super::bodies::RequestBody;
use super::exchange::Exchange;
use super::requests::Refused;
use crate::http_head::Scheme;
use crate::secrets::{Mask, Misused, Prepared, Recipient};

/// The most of a body that is gathered where a signature covers it.
const SIGNED_BODY: usize = 4 * 1024 * 1024;

/// How many bodies are gathered at once.
pub(super) const GATHERED: usize = 4;

impl From<Misused> for Unanswered {
    fn from(misused: Misused) -> Self {
        Self::Refused(Refused {
            reason: misused.reason,
            rule: Some(format!("network.secret: {}", misused.secret)),
            hint: None,
        })
    }
}

impl Exchange {
    /// Puts secrets into a request, and says what is to be taken out of its answer.
    pub(super) async fn put_secrets(
        &self,
        parts: &mut Parts,
        body: RequestBody,
    ) -> Result<(RequestBody, Option<Mask>), Unanswered> {
        let to = Recipient {
            host: &self.to.host,
            port: self.to.port,
        };
        let secrets = &self.shared.secrets;
        if self.to.scheme == Scheme::Http {
            secrets.check_clear(to, parts)?;
            let mask = secrets.mask_in_the_clear(to.host, parts);
            return Ok((body, mask));
        }
        let entry = body.entry();
        let (body, used) = match secrets.prepare(to, parts, !body.is_end_stream())? {
            Prepared::Ready(used) => (body, used),
            Prepared::NeedsBody(signing) => {
                let bytes = self.gathered(body).await?;
                let used = signing.finish(parts, &bytes)?;
                (RequestBody::gathered(self.trailers(), entry.clone(), bytes), used)
            }
        };
        entry.has(used.names);
        Ok((body, used.mask))
    }

    async fn gathered(&self, body: RequestBody) -> Result<hyper::body::Bytes, Unanswered> {
        let Some(opening) = &self.shared.opening else {
            return Err(Unanswered::Failed("there is nothing to open it with".to_owned()));
        };
        let place = opening.gathered.acquire().await;
        let _place = place.map_err(|error| Unanswered::Failed(error.to_string()))?;
        let body = Limited::new(body, SIGNED_BODY).collect().await;
        body.map(http_body_util::Collected::to_bytes).map_err(|error| {
            let reason = if error.is::<http_body_util::LengthLimitError>() {
                format!("its signature covers a body of more than {SIGNED_BODY} bytes; leave the body unsigned")
            } else {
                format!("its body ended early: {error}")
            };
            Unanswered::from(Refused::because(reason))
        })
    }
}

/// Takes secrets out of the head of an answer.
///
/// # Errors
/// The body is encoded, or a part of one, so that they could not be found in it.
pub(super) fn take_out(mask: &Mask, parts: &mut http::response::Parts) -> Result<(), Unanswered> {
    let is_plain = |value: &HeaderValue| value.as_bytes().trim_ascii().eq_ignore_ascii_case(b"identity");
    if !parts.headers.get_all(CONTENT_ENCODING).iter().all(is_plain) {
        return Err(Unanswered::Failed(
            "the answer is encoded although none was asked for, and secrets could not be found in it".to_owned(),
        ));
    }
    if !mask.parts_were_asked_for() {
        if matches!(parts.status, StatusCode::PARTIAL_CONTENT | StatusCode::IM_USED) {
            return Err(Unanswered::Failed(
                "the answer is a part, although all of it was asked for, and of secrets only parts could be found in it"
                    .to_owned(),
            ));
        }
        parts.headers.remove(ACCEPT_RANGES);
    }
    mask.headers(&mut parts.headers);
    // What a server says in place of `OK`.
    parts.extensions.clear();
    Ok(())
}
