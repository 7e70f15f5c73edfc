//! Connections that a program asks a proxy for: the same as others once it is known whereto.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use offleash_core::network::Host;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{Session, Stopped, TIMEOUT, broken, host_at, reset};
use crate::http;
use crate::proxy_request::{Failing, Progress, ProxyRequestError, ProxyRequestReader, Way};
use crate::shared::Shared;

/// How long a client may take to read why it was refused.
const LINGER: Duration = Duration::from_secs(2);

/// Serves a connection that the sandbox made to `listener` itself, which is a proxy then, and tells the journal.
pub(crate) async fn serve(shared: Rc<Shared>, client: TcpStream, listener: SocketAddr) {
    let mut session = Session::new(&shared, client, Host::Address(listener.ip()), listener.port());
    let ended = session.ask_and_run().await;
    session.end(ended);
}

impl Session<'_> {
    async fn ask_and_run(&mut self) -> Result<(), Stopped> {
        let question = timeout(TIMEOUT, self.question()).await;
        match question.unwrap_or_else(|_| Err(Stopped::Refused("it did not say what it wanted in time".to_owned()))) {
            Ok(Some(named)) => {
                self.host = named;
                self.run().await
            }
            Ok(None) => self.refuse(Stopped::Refused("it stands for no name".to_owned())).await,
            Err(stopped) => {
                reset(&self.client);
                Err(stopped)
            }
        }
    }

    /// Reads what is asked for; `None` for an address that stands for names, and for none yet.
    async fn question(&mut self) -> Result<Option<Host>, Stopped> {
        let mut reader = ProxyRequestReader::default();
        let mut received = Vec::with_capacity(1024);
        loop {
            match reader.read(&received) {
                Progress::NeedMore => {
                    if self.client.read_buf(&mut received).await.map_err(broken)? == 0 {
                        return Err(Stopped::Failed("it ended before it said what it wanted".to_owned()));
                    }
                }
                Progress::Answer { answer, length } => {
                    self.client.write_all(&answer).await.map_err(broken)?;
                    received.drain(..length);
                }
                Progress::Refused { way, error } => return Err(self.turn_away(way, &error).await),
                Progress::Wanted(wanted) => {
                    received.drain(..wanted.length);
                    if let Way::Request { head } = &wanted.way {
                        received.splice(..0, head.iter().copied());
                    }
                    self.read = received;
                    self.port = wanted.port;
                    self.way = Some(wanted.way);
                    return Ok(match wanted.host {
                        Host::Address(address) => host_at(self.shared, address),
                        name => Some(name),
                    });
                }
            }
        }
    }

    /// Answers a question that is not even one about a host, and says why.
    async fn turn_away(&mut self, way: Option<Way>, error: &ProxyRequestError) -> Stopped {
        let reason = format!("what it asked of the proxy is refused: {error}");
        let unsupported = matches!(error, ProxyRequestError::Command(_) | ProxyRequestError::AddressType(_));
        let failing = if unsupported {
            Failing::Unsupported
        } else {
            Failing::Refused
        };
        let status = match error {
            ProxyRequestError::Head(crate::http_head::HttpHeadError::TooLong) => "431 Request Header Fields Too Large",
            ProxyRequestError::Itself => "403 Forbidden",
            _ => "400 Bad Request",
        };
        let answer = match (&way, error) {
            (Some(way), _) => way
                .not_made(failing)
                .unwrap_or_else(|| http::answer(status, &reason, None)),
            (None, ProxyRequestError::Authentication) => crate::proxy_request::NO_METHOD.to_vec(),
            (None, _) => Vec::new(),
        };
        let _ = timeout(LINGER, http::say(&mut self.client, &answer)).await;
        Stopped::Refused(reason)
    }

    /// Dials before anything else, and says that the connection is there; to be called once it is allowed.
    pub(super) async fn open_tunnel(&mut self) -> Result<(), Stopped> {
        if matches!(self.way, None | Some(Way::Request { .. })) {
            return Ok(());
        }
        let server = self.dial().await?;
        self.dialled = Some(server);
        if let Some(way) = self.way.take() {
            self.client.write_all(way.made()).await.map_err(broken)?;
        }
        Ok(())
    }

    /// Says that the connection is there before anything is dialled: requests are judged first.
    pub(super) async fn accept_tunnel(&mut self) -> Result<(), Stopped> {
        match &self.way {
            None | Some(Way::Request { .. }) => Ok(()),
            Some(way) => {
                self.client.write_all(way.made()).await.map_err(broken)?;
                self.way = None;
                Ok(())
            }
        }
    }

    /// Tells a client of the proxy that its connection was not made; whether it was such a client.
    pub(super) async fn tell_of_refusal(&mut self, stopped: &Stopped) -> bool {
        let Some(way) = self.way.take() else {
            return false;
        };
        if self.counts.received.bytes() > 0 {
            reset(&self.client);
            return true;
        }
        let failing = match stopped {
            Stopped::Refused(_) | Stopped::Limited(_) | Stopped::Cut(_) => Failing::Refused,
            Stopped::Failed(_) => Failing::Failed,
        };
        let answer = way.not_made(failing).unwrap_or_else(|| self.explanation(stopped));
        let _ = timeout(LINGER, http::say(&mut self.client, &answer)).await;
        true
    }
}

/// Whether a program meant a server in the sandbox, to which no proxy leads.
pub(super) fn is_local(host: &Host) -> bool {
    match host {
        Host::Address(address) => address.is_loopback() || address.is_unspecified(),
        Host::Name(name) => name.as_str() == "localhost" || name.as_str().ends_with(".localhost"),
    }
}
