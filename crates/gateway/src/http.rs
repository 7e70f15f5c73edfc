//! Plain HTTP: every request on a connection must be for the host that the connection was made to.

use std::time::Duration;

use offleash_core::network::Host;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::time::timeout;

use crate::http_body::BodyReader;
use crate::http_head::{Progress, RequestHead, RequestHeadReader, Scheme};
use crate::http_requests::RequestError;
use crate::limits::Counts;
use crate::relay;
use crate::secrets::{Recipient, Secrets};
use crate::stopped::{Stopped, broken};

/// How long a client that was answered by us may take to read it.
const LINGER: Duration = Duration::from_secs(1);
/// How much is read in one go.
const CHUNK: usize = 64 * 1024;

/// What the first bytes of a client look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Looks {
    /// The record of a TLS handshake.
    Tls,
    /// A request.
    Http,
    /// The beginning of either, or not.
    Unknown,
    /// Neither.
    Other,
}

/// What the first bytes of a client, of which there is at least one, look like.
pub(crate) fn looks_like(bytes: &[u8]) -> Looks {
    const METHODS: [&[u8]; 9] = [
        b"GET ",
        b"HEAD ",
        b"POST ",
        b"PUT ",
        b"DELETE ",
        b"OPTIONS ",
        b"PATCH ",
        b"TRACE ",
        b"CONNECT ",
    ];
    if bytes.first() == Some(&0x16) {
        Looks::Tls
    } else if METHODS.iter().any(|method| bytes.starts_with(method)) {
        Looks::Http
    } else if METHODS.iter().any(|method| method.starts_with(bytes)) {
        Looks::Unknown
    } else {
        Looks::Other
    }
}

/// An answer of ours in plain text.
pub(crate) fn answer(status: &str, reason: &str, hint: Option<&str>) -> Vec<u8> {
    let body = words(reason, hint);
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {length}\r\nConnection: \
         close\r\n\r\n{body}"
    )
    .into_bytes()
}

/// Why something is refused, and what could be done, as text for the program that asked.
pub(crate) fn words(reason: &str, hint: Option<&str>) -> String {
    let hint = hint.map(|hint| format!("hint: {hint}\n")).unwrap_or_default();
    format!("offleash: {reason}\n{hint}")
}

/// Says the last words on a connection, and waits until they were read: to close with unread bytes would take them back.
pub(crate) async fn say(client: &mut TcpStream, words: &[u8]) -> std::io::Result<()> {
    client.write_all(words).await?;
    client.shutdown().await?;
    let mut rest = [0; 4096];
    while matches!(timeout(LINGER, client.read(&mut rest)).await, Ok(Ok(length)) if length > 0) {}
    Ok(())
}

/// The requests of one connection.
#[derive(Debug)]
pub(crate) struct Requests {
    host: Host,
    port: u16,
    secrets: Secrets,
    /// Read and not sent on yet.
    read: Vec<u8>,
    first: Option<Box<RequestHead>>,
}

impl Requests {
    pub(crate) fn new(host: Host, port: u16, secrets: Secrets, read: Vec<u8>) -> Self {
        Self {
            host,
            port,
            secrets,
            read,
            first: None,
        }
    }

    /// Reads and judges the first request.
    pub(crate) async fn first(&mut self, client: &mut TcpStream, patience: Duration) -> Result<(), Stopped> {
        let (mut reads, _) = client.split();
        let head = match timeout(patience, self.next_head(&mut reads)).await {
            Ok(head) => head?,
            Err(_) => return Err(Stopped::Refused("it sent no whole request in time".to_owned())),
        };
        match head {
            Some(head) => self.first = Some(head),
            None => return Err(Stopped::Failed("it ended before it asked for anything".to_owned())),
        }
        Ok(())
    }

    /// Sends on the first request and those that follow it, and the answers.
    pub(crate) async fn carry(
        mut self,
        client: &mut TcpStream,
        mut server: TcpStream,
        counts: &Counts,
    ) -> Result<(), Stopped> {
        let Some(head) = self.first.take() else {
            return Ok(());
        };
        if head.wants_websocket() {
            if !self.change_protocol(&head, client, &mut server, counts).await? {
                return Ok(());
            }
            let rest = std::mem::take(&mut self.read);
            relay::write(&mut server, &rest, &counts.sent).await.map_err(broken)?;
            let _ = relay::both_ways(client, &mut server, counts).await;
            return Ok(());
        }
        let (mut client_reads, client_writes) = client.split();
        let (server_reads, mut server_writes) = server.split();
        let answers = relay::one_way(server_reads, client_writes, &counts.received);
        tokio::pin!(answers);
        tokio::select! {
            ended = self.requests(head, &mut client_reads, &mut server_writes, counts) => {
                ended?;
                let _ = server_writes.shutdown().await;
                let _ = answers.await;
            }
            // Whoever answers has hung up; what is still asked for is asked of nobody.
            _ = &mut answers => {}
        }
        Ok(())
    }

    async fn requests(
        &mut self,
        mut head: Box<RequestHead>,
        client: &mut ReadHalf<'_>,
        server: &mut WriteHalf<'_>,
        counts: &Counts,
    ) -> Result<(), Stopped> {
        loop {
            self.send_head(&head, server, counts).await?;
            self.send_body(&head, client, server, counts).await?;
            head = match self.next_head(client).await? {
                Some(next) => next,
                None => return Ok(()),
            };
            if head.wants_websocket() {
                return Err(Stopped::Refused(
                    "it asked for another protocol in the middle of a connection".to_owned(),
                ));
            }
        }
    }

    /// The next head, judged; `None` at the end of the connection.
    async fn next_head(&mut self, client: &mut ReadHalf<'_>) -> Result<Option<Box<RequestHead>>, Stopped> {
        let mut reader = RequestHeadReader::new(Scheme::Http);
        loop {
            match reader.read(&self.read) {
                Progress::Head(head) => {
                    self.check(&head)?;
                    self.check_secrets(&head)?;
                    return Ok(Some(head));
                }
                Progress::NeedMore => {
                    if client.read_buf(&mut self.read).await.map_err(broken)? == 0 {
                        return if self.read.is_empty() {
                            Ok(None)
                        } else {
                            Err(Stopped::Failed("it ended within a request".to_owned()))
                        };
                    }
                }
                Progress::NotHttp => return Err(RequestError::NotHttp.into()),
                Progress::Invalid(error) => return Err(RequestError::from(error).into()),
            }
        }
    }

    fn check(&self, head: &RequestHead) -> Result<(), Stopped> {
        let asked = &head.authority;
        match Host::parse(&asked.host) {
            Ok(host) if host == self.host && asked.port == self.port => Ok(()),
            _ => Err(Stopped::Refused(format!(
                "the request is for `{}:{}`, but the connection was made to `{}:{}`",
                asked.host, asked.port, self.host, self.port
            ))),
        }
    }

    /// Nothing that stands for a secret goes over a connection that anybody can read.
    fn check_secrets(&self, head: &RequestHead) -> Result<(), Stopped> {
        let to = Recipient {
            host: &self.host,
            port: self.port,
        };
        let bytes = self.read.get(..head.length).unwrap_or_default();
        self.secrets
            .check_plain(to, bytes)
            .map_err(|misused| Stopped::Refused(misused.reason))
    }

    async fn send_head(
        &mut self,
        head: &RequestHead,
        server: &mut WriteHalf<'_>,
        counts: &Counts,
    ) -> Result<(), Stopped> {
        let bytes: Vec<u8> = self.read.drain(..head.length).collect();
        let bytes = match &head.upgrade {
            Some(_) => without_upgrade(head, &bytes),
            None => bytes,
        };
        relay::write(server, &bytes, &counts.sent).await.map_err(broken)?;
        Ok(())
    }

    async fn send_body(
        &mut self,
        head: &RequestHead,
        client: &mut ReadHalf<'_>,
        server: &mut WriteHalf<'_>,
        counts: &Counts,
    ) -> Result<(), Stopped> {
        let mut body = BodyReader::new(head.body);
        loop {
            let taken = body.read(&self.read).map_err(RequestError::from)?;
            let read = self.read.get(..taken.length).unwrap_or_default();
            relay::write(server, read, &counts.sent).await.map_err(broken)?;
            self.read.drain(..taken.length);
            if taken.ended {
                return Ok(());
            }
            self.read.reserve(counts.sent.piece(CHUNK));
            if client.read_buf(&mut self.read).await.map_err(broken)? == 0 {
                return Err(Stopped::Failed("it ended within the body of a request".to_owned()));
            }
        }
    }

    /// Asks for another protocol; whether the server agreed, so that nothing that follows is HTTP. Otherwise its answer
    /// is sent on, and the connection ends with it.
    async fn change_protocol(
        &mut self,
        head: &RequestHead,
        client: &mut TcpStream,
        server: &mut TcpStream,
        counts: &Counts,
    ) -> Result<bool, Stopped> {
        const AGREED: &[u8] = b"HTTP/1.1 101";
        let request: Vec<u8> = self.read.drain(..head.length).collect();
        relay::write(server, &request, &counts.sent).await.map_err(broken)?;
        let mut answer = Vec::with_capacity(4096);
        while answer.len() < AGREED.len() {
            if server.read_buf(&mut answer).await.map_err(broken)? == 0 {
                break;
            }
        }
        relay::write(client, &answer, &counts.received).await.map_err(broken)?;
        if answer.starts_with(AGREED) {
            return Ok(true);
        }
        let (reads, _) = server.split();
        let (_, writes) = client.split();
        let _ = relay::one_way(reads, writes, &counts.received).await;
        Ok(false)
    }
}

/// The head without the wish for another protocol, which a server is free not to hear (RFC 9110, 7.8).
fn without_upgrade(head: &RequestHead, bytes: &[u8]) -> Vec<u8> {
    let text = |range: &std::ops::Range<usize>| bytes.get(range.clone()).unwrap_or_default();
    let mut kept = Vec::with_capacity(bytes.len());
    let mut from = 0;
    for field in &head.fields {
        let name = text(&field.name);
        let replacement = if name.eq_ignore_ascii_case(b"upgrade") || name.eq_ignore_ascii_case(b"http2-settings") {
            Vec::new()
        } else if name.eq_ignore_ascii_case(b"connection") {
            connection_without_upgrade(text(&field.value))
        } else {
            continue;
        };
        kept.extend_from_slice(bytes.get(from..field.line.start).unwrap_or_default());
        kept.extend(replacement);
        from = field.line.end;
    }
    kept.extend_from_slice(bytes.get(from..).unwrap_or_default());
    kept
}

fn connection_without_upgrade(value: &[u8]) -> Vec<u8> {
    let options: Vec<&[u8]> = value
        .split(|byte| *byte == b',')
        .map(<[u8]>::trim_ascii)
        .filter(|option| !option.eq_ignore_ascii_case(b"upgrade") && !option.eq_ignore_ascii_case(b"http2-settings"))
        .collect();
    if options.is_empty() {
        return Vec::new();
    }
    [b"Connection: ".as_slice(), &options.join(b", ".as_slice()), b"\r\n"].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bytes_tell_what_can_be_looked_at() {
        let cases: [(&[u8], Looks); 8] = [
            (b"\x16\x03\x01", Looks::Tls),
            (b"GET / HTTP/1.1\r\n", Looks::Http),
            (b"POS", Looks::Unknown),
            (b"P", Looks::Unknown),
            (b"SSH-2.0-x\r\n", Looks::Other),
            (b"GETX", Looks::Other),
            (b"\0\0\0\x08", Looks::Other),
            (b"OPTIONS * ", Looks::Http),
        ];
        for (bytes, expected) in cases {
            assert_eq!(looks_like(bytes), expected, "{bytes:?}");
        }
    }

    #[test]
    fn a_wish_for_another_protocol_is_left_out_and_nothing_else() {
        let request = b"GET / HTTP/1.1\r\nHost: a.example\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: \
                        h2c\r\nHTTP2-Settings: AAE\r\nUser-Agent: Java\r\n\r\n";
        let Progress::Head(head) = RequestHeadReader::new(Scheme::Http).read(request) else {
            panic!("no head");
        };
        let kept = without_upgrade(&head, request);
        assert_eq!(
            String::from_utf8(kept).unwrap(),
            "GET / HTTP/1.1\r\nHost: a.example\r\nUser-Agent: Java\r\n\r\n"
        );
    }

    #[test]
    fn other_options_of_the_connection_stay() {
        assert_eq!(
            connection_without_upgrade(b"keep-alive, Upgrade"),
            b"Connection: keep-alive\r\n"
        );
        assert_eq!(connection_without_upgrade(b"upgrade"), b"");
    }
}
