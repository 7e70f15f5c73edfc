//! Carries a TLS connection whose greeting was judged: if the server asks for another one, that is judged as well.

use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

use super::{Session, Stopped, broken};
use crate::client_hello::{ClientHello, ClientHelloReader, MAX_RECEIVED};
use crate::relay;
use crate::server_hello::{SecondFlight, ServerStart, second_flight, server_start};

/// How much of what a client sends behind its greeting is kept until the server has answered.
const HELD: usize = 64 * 1024;
/// How much a client may have sent too early (RFC 8446, 4.2.10) before its second greeting.
const TOO_EARLY: usize = 1024 * 1024;

impl Session<'_> {
    /// Sends on the greeting `hello`, which ends in `read`, and holds back what is behind it until it is known whether
    /// that is a second one.
    pub(super) async fn carry_greeted(
        &mut self,
        mut server: TcpStream,
        hello: &ClientHello,
        mut read: Vec<u8>,
    ) -> Result<(), Stopped> {
        let mut held = read.split_off(hello.length.min(read.len()));
        self.send(&mut server, &read).await?;
        let mut answer = Vec::with_capacity(4096);
        let start = loop {
            match server_start(&answer) {
                ServerStart::NeedMore => {}
                known => break known,
            }
            tokio::select! {
                biased;
                read = server.read_buf(&mut answer) => if read.map_err(broken)? == 0 {
                    break ServerStart::Other;
                },
                // Who ends before an answer to a greeting has not made a connection.
                read = self.client.read_buf(&mut held), if held.len() < HELD => if read.map_err(broken)? == 0 {
                    return Ok(());
                },
            }
        };
        relay::write(&mut self.client, &answer, &self.counts.received)
            .await
            .map_err(broken)?;
        if start == ServerStart::Retry && !self.judge_second(&mut server, hello, &mut held).await? {
            return Ok(());
        }
        self.carry(server, &held).await
    }

    /// Waits for the second greeting, which must name the same server; whether there is one, as the client may give up.
    /// What may come before it is sent on.
    async fn judge_second(
        &mut self,
        server: &mut TcpStream,
        first: &ClientHello,
        held: &mut Vec<u8>,
    ) -> Result<bool, Stopped> {
        let refused = |reason: String| {
            Err(Stopped::Refused(format!(
                "its second TLS greeting is refused: {reason}"
            )))
        };
        let mut skipped = 0;
        let mut reader = ClientHelloReader::default();
        loop {
            match second_flight(held, &mut reader) {
                SecondFlight::NeedMore if held.len() > MAX_RECEIVED => return refused("it is too long".to_owned()),
                SecondFlight::NeedMore => self.read_more(held).await?,
                SecondFlight::Skip(length) => {
                    skipped += length;
                    if skipped > TOO_EARLY {
                        return refused("too much comes before it".to_owned());
                    }
                    let early: Vec<u8> = held.drain(..length.min(held.len())).collect();
                    self.send(server, &early).await?;
                }
                SecondFlight::GivesUp => return Ok(false),
                SecondFlight::Hello(second) if second.server_name == first.server_name => {
                    return self.check_greeting(&second).map(|()| true);
                }
                SecondFlight::Hello(_) => return refused("it names another server than the first".to_owned()),
                SecondFlight::Invalid(Some(error)) => return refused(error.to_string()),
                SecondFlight::Invalid(None) => return refused("it is none".to_owned()),
            }
        }
    }

    /// Sends something on and counts it.
    async fn send(&self, server: &mut TcpStream, bytes: &[u8]) -> Result<(), Stopped> {
        relay::write(server, bytes, &self.counts.sent).await.map_err(broken)
    }
}
