//! Follows the requests of one connection: where the head and the body of each ends, and the first that is refused.
//!
//! Pure: bytes in, how many of them are of requests that may be read on. Heads are judged by [`crate::http_head`],
//! bodies by [`crate::http_body`]. A head is passed whole or not at all, a body as it comes; none is held.
//!
//! Deliberately not here: for whom a request may be, which is asked of each request by those who answer it.

#[cfg(test)]
pub(crate) mod tests;

use thiserror::Error;

use crate::http_body::{BodyReader, HttpBodyError};
use crate::http_head::{HttpHeadError, Progress, RequestHeadReader, Scheme};

/// Why what came on a connection is not read as a request.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RequestError {
    /// Not HTTP/1.
    #[error("it is not HTTP")]
    NotHttp,
    /// A head that two readers could understand differently.
    #[error("its request is ambiguous: {0}")]
    Head(#[from] HttpHeadError),
    /// Likewise a body. Its head and what came before of it may have been sent on.
    #[error("the body of its request is ambiguous: {0}")]
    Body(#[from] HttpBodyError),
}

impl RequestError {
    /// What can be done about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::NotHttp => "only requests of HTTP are let through here",
            Self::Head(_) | Self::Body(_) => {
                "servers differ in how they read this; another version of the program, or another client of HTTP, may \
                 say it in one way: one `Host`, one length, every line ended by CR LF"
            }
        }
    }
}

/// What comes behind the bytes that have passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// More of a request.
    More,
    /// Whatever the server's answer to a request for a WebSocket makes of it: nothing passes until that is known.
    Switching,
    /// A request that is refused, and all that follows it.
    Refused(RequestError),
}

/// How far the bytes of a connection were read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judged {
    /// So many bytes at the beginning are of requests that may be read on.
    pub passed: usize,
    /// What the rest is. Unless it is refused it is shown again, with what came behind it.
    pub next: Next,
}

#[derive(Debug)]
enum At {
    Head(RequestHeadReader),
    Body { body: BodyReader, switches: bool },
    Switching,
    Refused(RequestError),
}

/// Follows the requests of one connection.
#[derive(Debug)]
pub struct RequestsReader {
    scheme: Scheme,
    at: At,
}

impl RequestsReader {
    /// A reader of a connection on which nothing was read yet.
    #[must_use]
    pub fn new(scheme: Scheme) -> Self {
        Self {
            scheme,
            at: At::Head(RequestHeadReader::new(scheme)),
        }
    }

    /// Judges all bytes that have come and not passed; they only grow, at their end, by what comes.
    ///
    /// Which requests pass, and why one is refused, is the same however the bytes are cut.
    pub fn read(&mut self, bytes: &[u8]) -> Judged {
        let mut passed = 0;
        loop {
            let rest = bytes.get(passed..).unwrap_or_default();
            match self.step(rest) {
                Ok(length) => passed += length,
                Err((length, next)) => {
                    return Judged {
                        passed: passed + length,
                        next,
                    };
                }
            }
        }
    }

    /// The server stays with HTTP: what follows its answer is the next request.
    pub fn stays_http(&mut self) {
        if matches!(self.at, At::Switching) {
            self.at = At::Head(RequestHeadReader::new(self.scheme));
        }
    }

    /// How many bytes pass by one part of a message that ends with them, or how many do and what comes then.
    fn step(&mut self, rest: &[u8]) -> Result<usize, (usize, Next)> {
        let (passed, at) = match &mut self.at {
            At::Head(reader) => match reader.read(rest) {
                Progress::NeedMore => return Err((0, Next::More)),
                Progress::Head(head) => {
                    let body = BodyReader::new(head.body);
                    let switches = head.wants_websocket();
                    (head.length, At::Body { body, switches })
                }
                Progress::NotHttp => (0, At::Refused(RequestError::NotHttp)),
                Progress::Invalid(error) => (0, At::Refused(error.into())),
            },
            At::Body { body, switches } => match body.read(rest) {
                Ok(taken) if !taken.ended => return Err((taken.length, Next::More)),
                Ok(taken) if *switches => (taken.length, At::Switching),
                Ok(taken) => (taken.length, At::Head(RequestHeadReader::new(self.scheme))),
                Err(error) => (0, At::Refused(error.into())),
            },
            At::Switching => return Err((0, Next::Switching)),
            At::Refused(error) => return Err((0, Next::Refused(error.clone()))),
        };
        self.at = at;
        Ok(passed)
    }
}
