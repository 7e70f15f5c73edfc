//! One request and its answer.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::rc::Rc;

use http::header::{CONNECTION, HeaderName, HeaderValue, UPGRADE};
use http::{Method, Request, Response, StatusCode, Uri, Version};
use hyper::body::{Body as _, Incoming};
use hyper::upgrade::Upgraded;
use tokio::time::Instant;

use super::answers::{self, Unanswered};
use super::bodies::{AnswerBody, Masking, RequestBody};
use super::judged_stream::Framing;
use super::log::{Entry, Log};
use super::requests::{self, Destination};
use super::servers::Servers;
use super::trailers::Trailers;
use super::{Opening, hops, lengths, secrets};
use crate::journal_entries::Outcome;
use crate::secrets::Mask;
use crate::shared::Shared;

/// What the requests of one connection share.
#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) shared: Rc<Shared>,
    pub(super) to: Destination,
    servers: Servers,
    log: Rc<Log>,
    activity: Rc<Activity>,
    /// What is known of how the client's requests are to be read.
    pub(super) framing: Rc<Framing>,
    /// The server's side of a connection that is not HTTP any more, as the client is told by the last answer.
    pub(super) upgraded: RefCell<Option<(Upgraded, Option<Mask>)>>,
}

/// Whether anything is going on.
#[derive(Debug)]
pub(super) struct Activity {
    requests: Cell<usize>,
    last: Cell<Instant>,
}

/// Lasts as long as a request is being answered.
#[derive(Debug)]
pub(super) struct Underway {
    activity: Rc<Activity>,
    entry: Rc<Entry>,
}

impl Activity {
    fn begin(self: &Rc<Self>, entry: &Rc<Entry>) -> Underway {
        self.requests.set(self.requests.get() + 1);
        Underway {
            activity: Rc::clone(self),
            entry: Rc::clone(entry),
        }
    }

    /// Since when nothing has been going on.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        (self.requests.get() == 0).then(|| self.last.get())
    }
}

impl Drop for Underway {
    fn drop(&mut self) {
        self.entry.end();
        self.activity
            .requests
            .set(self.activity.requests.get().saturating_sub(1));
        self.activity.last.set(Instant::now());
    }
}

impl Exchange {
    pub(super) fn new(shared: Rc<Shared>, to: Destination, log: Rc<Log>, opening: &Opening) -> Self {
        Self {
            servers: Servers::new(Rc::clone(&shared), to.clone(), Rc::clone(&log), opening),
            shared,
            to,
            log,
            activity: Rc::new(Activity {
                requests: Cell::new(0),
                last: Cell::new(Instant::now()),
            }),
            framing: Rc::default(),
            upgraded: RefCell::new(None),
        }
    }

    pub(super) fn trailers(&self) -> Trailers {
        Trailers::new(Rc::clone(&self.shared), self.to.clone())
    }

    pub(super) fn activity(&self) -> &Activity {
        &self.activity
    }

    /// Answers a request: with what the server says, or why it is not asked.
    pub(super) async fn answer(self: Rc<Self>, request: Request<Incoming>) -> Result<Response<AnswerBody>, Infallible> {
        if let Some(error) = self.framing.refused_for(request.method()) {
            return Ok(answers::unreadable(&error));
        }
        let is_upgrade = wants_websocket(&request);
        let (parts, body) = request.into_parts();
        let entry = self.log.begin(&parts);
        let underway = self.activity.begin(&entry);
        let answered = self.carry(Request::from_parts(parts, body), &entry, underway).await;
        if is_upgrade && self.upgraded.borrow().is_none() {
            self.framing.stays_http();
        }
        Ok(answered.unwrap_or_else(|unanswered| self.unanswered(unanswered, &entry)))
    }

    /// The answer of the gateway's own, and the record of why there is no other.
    fn unanswered(&self, unanswered: Unanswered, entry: &Entry) -> Response<AnswerBody> {
        // Whatever the server made of a body that broke off, that is why it did.
        let refused_body = self.framing.refused_body();
        let (unanswered, answer) = match &refused_body {
            Some(error) => (error.into(), answers::unreadable(error)),
            None => {
                let answer = unanswered.answer();
                (unanswered, answer)
            }
        };
        let outcome = match unanswered {
            Unanswered::Refused(refused) => {
                if refused.rule.is_some() {
                    entry.decided_by(refused.rule);
                }
                Outcome::Refused(refused.reason)
            }
            Unanswered::Failed(reason) => Outcome::Failed(reason),
        };
        entry.answered(answer.status().as_u16(), outcome);
        answer
    }

    async fn carry(
        &self,
        request: Request<Incoming>,
        entry: &Rc<Entry>,
        underway: Underway,
    ) -> Result<Response<AnswerBody>, Unanswered> {
        let is_upgrade = wants_websocket(&request);
        let (mut parts, body) = request.into_parts();
        let passed = requests::judge(&self.shared.policy, &self.to, &parts)?;
        requests::check_body(&self.shared.policy, &self.to, &parts.method, &body)?;
        entry.decided_by(passed.rule);
        let takes_trailers = hops::strip(&mut parts.headers);
        // The answer to it is given when the body is asked for.
        parts.headers.remove(http::header::EXPECT);
        parts.extensions.clear();
        parts.uri = Uri::from(passed.target);
        requests::rewrite(&self.shared.policy, &self.to, &mut parts)?;
        let body = RequestBody::new(body, self.trailers(), Rc::clone(entry));
        let (body, mask) = self.put_secrets(&mut parts, body).await?;
        let mut request = Request::from_parts(parts, body);
        if is_upgrade {
            request
                .headers_mut()
                .insert(UPGRADE, HeaderValue::from_static("websocket"));
            request
                .headers_mut()
                .insert(CONNECTION, HeaderValue::from_static("Upgrade"));
            let response = self.servers.send_upgrade(request).await?;
            return self.upgraded(response, mask, entry, underway).await;
        }
        let (response, place) = self.servers.send(request, takes_trailers).await?;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return Err(Unanswered::Failed(format!(
                "`{}` changes to another protocol, which it was not asked for",
                self.to.authority()
            )));
        }
        told(&self.to, response, mask, entry, underway, place)
    }

    /// What the server says to the wish for another protocol.
    async fn upgraded(
        &self,
        mut response: Response<Incoming>,
        mask: Option<Mask>,
        entry: &Rc<Entry>,
        underway: Underway,
    ) -> Result<Response<AnswerBody>, Unanswered> {
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return told(&self.to, response, mask, entry, underway, None);
        }
        if !hops::has_token(response.headers(), &UPGRADE, "websocket") {
            return Err(Unanswered::Failed(format!(
                "`{}` changes to another protocol than it was asked for",
                self.to.authority()
            )));
        }
        let server = hyper::upgrade::on(&mut response).await;
        let server = server.map_err(|error| Unanswered::Failed(error.to_string()))?;
        let mut answer = told(&self.to, response, mask.clone(), entry, underway, None)?;
        answer
            .headers_mut()
            .insert(UPGRADE, HeaderValue::from_static("websocket"));
        answer
            .headers_mut()
            .insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        // Not before the answer has passed: where another one is given, what the client sends is the next request.
        *self.upgraded.borrow_mut() = Some((server, mask));
        Ok(answer)
    }
}

/// The server's answer as it is given to the client.
fn told(
    to: &Destination,
    response: Response<Incoming>,
    mask: Option<Mask>,
    entry: &Rc<Entry>,
    underway: Underway,
    place: Option<tokio::sync::OwnedSemaphorePermit>,
) -> Result<Response<AnswerBody>, Unanswered> {
    let (mut parts, body) = response.into_parts();
    lengths::check_answer(&mut parts.headers).map_err(|error| {
        Unanswered::Failed(format!(
            "the answer of `{}` is ambiguous: it has {error}",
            to.authority()
        ))
    })?;
    if let Some(mask) = &mask {
        secrets::take_out(mask, &mut parts)?;
    }
    hops::strip(&mut parts.headers);
    // Other ways to the server do not lead out.
    parts.headers.remove(HeaderName::from_static("alt-svc"));
    parts.version = Version::default();
    entry.answered(parts.status.as_u16(), Outcome::Allowed);
    let body = AnswerBody::Theirs {
        body,
        masking: mask.map(|mask| Box::new(Masking::new(mask))),
        entry: Rc::clone(entry),
        _underway: underway,
        _place: place,
    };
    Ok(Response::from_parts(parts, body))
}

/// Whether a request asks to become a WebSocket, as [`crate::http_head::RequestHead::wants_websocket`] has it.
pub(super) fn wants_websocket(request: &Request<Incoming>) -> bool {
    let mut protocols = request.headers().get_all(UPGRADE).iter();
    let protocol = protocols.next().map(HeaderValue::as_bytes);
    request.version() == Version::HTTP_11
        && request.method() == Method::GET
        && request.body().is_end_stream()
        && protocols.next().is_none()
        && protocol.is_some_and(|protocol| protocol.eq_ignore_ascii_case(b"websocket"))
        && hops::has_token(request.headers(), &CONNECTION, "upgrade")
}
