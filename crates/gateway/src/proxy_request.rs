//! What a program asks of a proxy: SOCKS 4, 4a and 5, `CONNECT`, and plain HTTP with the whole address in its target.
//!
//! Pure: bytes in, verdict out, however they are cut. The first byte tells which of them it is. Only connections are
//! asked for here: `BIND` and `UDP ASSOCIATE` are refused, and so is any request that is meant for the proxy itself.
//! Deliberately not here: whether the host may be reached, and who asks; the proxy is inside one sandbox, and whoever
//! can talk to it may ask.

mod http;
mod socks;
#[cfg(test)]
mod tests;

use offleash_core::network::{Host, HostError};
use thiserror::Error;

use crate::http_head::HttpHeadError;
pub(crate) use socks::NO_METHOD;

/// Whom the program wants to reach, and by which way of asking.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// The host, in its canonical form.
    pub host: Host,
    /// The port.
    pub port: u16,
    /// How it was asked for.
    pub way: Way,
    /// How many bytes the question has.
    pub length: usize,
}

/// How a program asks, and so how it is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    /// SOCKS 4, with an address or a name (4a).
    Socks4,
    /// SOCKS 5 (RFC 1928).
    Socks5,
    /// `CONNECT`.
    Connect,
    /// A request with an absolute target.
    Request {
        /// The head as the server is to get it: a target without authority, and one request on this connection.
        head: Vec<u8>,
    },
}

/// What the bytes received so far are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// The beginning of a question.
    NeedMore,
    /// The first part of a SOCKS 5 question: this is the answer to it, and these many bytes are done with.
    Answer {
        /// What is answered.
        answer: [u8; 2],
        /// What was asked with.
        length: usize,
    },
    /// A whole question.
    Wanted(Wanted),
    /// A question that is refused.
    Refused {
        /// In what form it is answered, if any.
        way: Option<Way>,
        /// Why.
        error: ProxyRequestError,
    },
}

/// Why a question is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ProxyRequestError {
    /// Neither SOCKS nor HTTP.
    #[error("neither SOCKS nor HTTP")]
    Unknown,
    /// No way to say who asks that is known here.
    #[error("no SOCKS method but with authentication")]
    Authentication,
    /// `BIND`, `UDP ASSOCIATE`, or a command that does not exist.
    #[error("SOCKS command {0}, where 1 (connect) is the only one")]
    Command(u8),
    /// Neither an address nor a name.
    #[error("SOCKS address of type {0}")]
    AddressType(u8),
    /// A byte that has to be nothing.
    #[error("a SOCKS question with another form than it must have")]
    Malformed,
    /// A user's name in SOCKS 4 without end.
    #[error("a SOCKS 4 question of more than {0} bytes")]
    TooLong(usize),
    /// A host that is none.
    #[error("{0}")]
    Host(#[from] HostError),
    /// Port 0.
    #[error("port 0")]
    Port,
    /// The proxy itself was asked for something.
    #[error("a request to the proxy itself")]
    Itself,
    /// A head of HTTP that is refused.
    #[error("{0}")]
    Head(#[from] HttpHeadError),
}

/// Reads one question; the bytes are the caller's.
#[derive(Debug, Default)]
pub struct ProxyRequestReader(State);

#[derive(Debug, Default)]
enum State {
    #[default]
    Beginning,
    /// SOCKS 5, after it was agreed how to say who asks.
    Socks5,
    Connect(crate::http_head::ConnectReader),
    Request(crate::http_head::RequestHeadReader),
}

impl ProxyRequestReader {
    /// Judges what was received so far, which only grows from call to call; behind an answer it is what follows that.
    pub fn read(&mut self, received: &[u8]) -> Progress {
        loop {
            let judged = match &mut self.0 {
                State::Socks5 => socks::question5(received),
                State::Connect(reader) => http::connect(reader, received),
                State::Request(reader) => http::request(reader, received),
                State::Beginning => match received {
                    [] => return Progress::NeedMore,
                    [4, ..] => socks::question4(received),
                    [5, ..] => return self.greeting(received),
                    _ => match http::kind(received) {
                        Ok(Some(state)) => {
                            self.0 = state;
                            continue;
                        }
                        Ok(None) => return Progress::NeedMore,
                        Err(refused) => Err(refused),
                    },
                },
            };
            return match judged {
                Ok(Some(wanted)) if wanted.port == 0 => Progress::Refused {
                    way: Some(wanted.way),
                    error: ProxyRequestError::Port,
                },
                Ok(Some(wanted)) => Progress::Wanted(wanted),
                Ok(None) => Progress::NeedMore,
                Err((way, error)) => Progress::Refused { way, error },
            };
        }
    }

    fn greeting(&mut self, received: &[u8]) -> Progress {
        match socks::greeting5(received) {
            None => Progress::NeedMore,
            Some((_, false)) => Progress::Refused {
                way: None,
                error: ProxyRequestError::Authentication,
            },
            Some((length, true)) => {
                self.0 = State::Socks5;
                Progress::Answer {
                    answer: socks::NO_AUTHENTICATION,
                    length,
                }
            }
        }
    }
}

/// A question that is whole, or not yet, or refused with an answer of its form.
type Judged = Result<Option<Wanted>, (Option<Way>, ProxyRequestError)>;

/// What is answered to whom a connection was not made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failing {
    /// It was refused.
    Refused,
    /// It could not be made.
    Failed,
    /// It was not asked for in a form that is served.
    Unsupported,
}

impl Way {
    /// What is answered when the connection was made; nothing to a request, which the server answers.
    #[must_use]
    pub fn made(&self) -> &'static [u8] {
        match self {
            Self::Socks4 => &socks::MADE4,
            Self::Socks5 => &socks::MADE5,
            Self::Connect => b"HTTP/1.1 200 Connection established\r\n\r\n",
            Self::Request { .. } => b"",
        }
    }

    /// What is answered when it was not made; `None` where that is an answer of HTTP.
    #[must_use]
    pub fn not_made(&self, failing: Failing) -> Option<Vec<u8>> {
        match self {
            Self::Socks4 => Some(socks::NOT_MADE4.to_vec()),
            Self::Socks5 => Some(socks::not_made5(failing).to_vec()),
            Self::Connect | Self::Request { .. } => None,
        }
    }
}
