//! Asks a SOCKS 5 proxy for a connection (RFC 1928), with a name and a password where there are any (RFC 1929).

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use offleash_core::network::Host;
use offleash_core::network::upstream_proxy::ProxyCredentials;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use zeroize::Zeroizing;

const VERSION: u8 = 5;
const BY_PASSWORD: u8 = 2;
/// The version of the dialogue about a name and a password.
const PASSWORD_VERSION: u8 = 1;
const CONNECT: u8 = 1;
const IPV4: u8 = 1;
const NAME: u8 = 3;
const IPV6: u8 = 4;

/// Asks for `port` of `host` on a connection to the proxy, which afterwards is one to that host. What it answers with is
/// read to its end and not a byte further.
///
/// # Errors
/// Why not, as a sentence about the proxy without its name: it is shown in the sandbox.
pub(super) async fn ask(
    patience: Duration,
    credentials: Option<&ProxyCredentials>,
    mut connection: TcpStream,
    host: &Host,
    port: u16,
) -> Result<TcpStream, String> {
    let asked = async {
        greet(&mut connection, credentials).await?;
        request(&mut connection, host, port).await
    };
    match timeout(patience, asked).await {
        Ok(Ok(())) => Ok(connection),
        Ok(Err(Failed::Broken(error))) if error.kind() == io::ErrorKind::UnexpectedEof => Err("hung up".to_owned()),
        Ok(Err(Failed::Broken(error))) => Err(format!("hung up: {error}")),
        Ok(Err(Failed::Answer(reason))) => Err(reason.to_owned()),
        Err(_) => Err("took too long to answer".to_owned()),
    }
}

/// Why there is no connection.
enum Failed {
    Broken(io::Error),
    Answer(&'static str),
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Self::Broken(error)
    }
}

const NO_SOCKS: Failed = Failed::Answer("does not answer as a SOCKS 5 proxy does");
const UNKNOWN: Failed = Failed::Answer("wants a name and a password that it knows");

async fn greet(connection: &mut TcpStream, credentials: Option<&ProxyCredentials>) -> Result<(), Failed> {
    let methods: &[u8] = match credentials {
        Some(_) => &[VERSION, 2, 0, BY_PASSWORD],
        None => &[VERSION, 1, 0],
    };
    connection.write_all(methods).await?;
    let mut chosen = [0; 2];
    connection.read_exact(&mut chosen).await?;
    match (chosen, credentials) {
        ([VERSION, 0], _) => Ok(()),
        ([VERSION, BY_PASSWORD], Some(credentials)) => introduce(connection, credentials).await,
        ([VERSION, 0xff], _) => Err(UNKNOWN),
        _ => Err(NO_SOCKS),
    }
}

async fn introduce(connection: &mut TcpStream, credentials: &ProxyCredentials) -> Result<(), Failed> {
    let mut said = Zeroizing::new(vec![PASSWORD_VERSION]);
    for text in [credentials.expose_name(), credentials.expose_password()] {
        // They are no longer than this (`ProxyCredentials::for_socks`).
        said.push(u8::try_from(text.len()).map_err(|_| UNKNOWN)?);
        said.extend_from_slice(text.as_bytes());
    }
    connection.write_all(&said).await?;
    let mut answer = [0; 2];
    connection.read_exact(&mut answer).await?;
    match answer {
        [PASSWORD_VERSION, 0] => Ok(()),
        // Some answer with the version of the protocol.
        [VERSION, 0] => Ok(()),
        [PASSWORD_VERSION | VERSION, _] => Err(UNKNOWN),
        _ => Err(NO_SOCKS),
    }
}

async fn request(connection: &mut TcpStream, host: &Host, port: u16) -> Result<(), Failed> {
    let mut asked = vec![VERSION, CONNECT, 0];
    match host {
        Host::Address(IpAddr::V4(address)) => {
            asked.push(IPV4);
            asked.extend_from_slice(&address.octets());
        }
        Host::Address(IpAddr::V6(address)) => {
            asked.push(IPV6);
            asked.extend_from_slice(&address.octets());
        }
        Host::Name(name) => {
            asked.push(NAME);
            let length = u8::try_from(name.as_str().len());
            asked.push(length.map_err(|_| Failed::Answer("is asked by no name of this length"))?);
            asked.extend_from_slice(name.as_str().as_bytes());
        }
    }
    asked.extend_from_slice(&port.to_be_bytes());
    connection.write_all(&asked).await?;
    let mut answer = [0; 4];
    connection.read_exact(&mut answer).await?;
    let [version, reply, _, kind] = answer;
    if version != VERSION {
        return Err(NO_SOCKS);
    }
    if reply != 0 {
        return Err(Failed::Answer(in_words(reply)));
    }
    // The address that it connects from, which is of no interest here.
    let length = match kind {
        IPV4 => 4,
        IPV6 => 16,
        NAME => usize::from(connection.read_u8().await?),
        _ => return Err(NO_SOCKS),
    };
    let mut bound = vec![0; length + 2];
    connection.read_exact(&mut bound).await?;
    Ok(())
}

/// What the proxy says of why not (RFC 1928, 6).
fn in_words(reply: u8) -> &'static str {
    match reply {
        1 => "does not make it: something failed there",
        2 => "does not allow it",
        3 => "does not make it: the network cannot be reached from there",
        4 => "does not make it: the host cannot be reached from there",
        5 => "does not make it: the host refuses",
        6 => "does not make it: the host is too far",
        7 => "makes no connections",
        8 => "does not know such addresses",
        _ => "does not make it",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::tests::{connection, rest};

    const TIMEOUT: Duration = Duration::from_secs(60);

    /// What a proxy that answers with `pieces`, each when it was asked once more, is told, and what comes of it.
    async fn asked(
        pieces: &'static [&'static [u8]],
        credentials: Option<ProxyCredentials>,
        host: &str,
    ) -> (Vec<u8>, Result<Vec<u8>, String>) {
        let (ours, mut server) = connection().await;
        let answering = async {
            let mut told = Vec::new();
            for piece in pieces {
                assert!(server.read_buf(&mut told).await.unwrap() > 0);
                for byte in *piece {
                    // Who has heard enough hangs up.
                    let _heard = server.write_all(&[*byte]).await;
                    tokio::task::yield_now().await;
                }
            }
            drop(server);
            told
        };
        let host = Host::parse(host).unwrap();
        let (told, made) = tokio::join!(answering, ask(TIMEOUT, credentials.as_ref(), ours, &host, 443));
        (told, rest(made).await)
    }

    fn credentials() -> Option<ProxyCredentials> {
        Some(ProxyCredentials::for_socks("me", "s3cret").unwrap())
    }

    #[tokio::test]
    async fn names_are_left_to_it_and_what_follows_is_the_host_s() {
        const MADE: &[u8] = b"\x05\x00\x00\x01\x0a\x00\x00\x01\x00\x50SSH-2.0-x\r\n";
        let (told, rest) = asked(&[b"\x05\x00", MADE], None, "www.example.com").await;
        assert_eq!(told, b"\x05\x01\x00\x05\x01\x00\x03\x0fwww.example.com\x01\xbb");
        assert_eq!(rest.unwrap(), b"SSH-2.0-x\r\n");
    }

    #[tokio::test]
    async fn addresses_are_asked_for_as_they_are() {
        const MADE: &[u8] = b"\x05\x00\x00\x03\x02ab\x00\x50rest";
        let (told, rest) = asked(&[b"\x05\x00", MADE], None, "93.184.216.34").await;
        assert_eq!(told, b"\x05\x01\x00\x05\x01\x00\x01\x5d\xb8\xd8\x22\x01\xbb");
        assert_eq!(rest.unwrap(), b"rest");
        const MADE_BY_6: &[u8] = b"\x05\x00\x00\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\x00\x50";
        let (told, rest) = asked(&[b"\x05\x00", MADE_BY_6], None, "[2606:2800::5]").await;
        assert_eq!(
            told[3..],
            *b"\x05\x01\x00\x04\x26\x06\x28\x00\0\0\0\0\0\0\0\0\0\0\0\x05\x01\xbb"
        );
        assert_eq!(rest.unwrap(), b"");
    }

    #[tokio::test]
    async fn it_is_told_who_asks_where_it_wants_to_know() {
        const MADE: &[u8] = b"\x05\x00\x00\x01\0\0\0\0\0\0";
        let (told, rest) = asked(&[b"\x05\x02", b"\x01\x00", MADE], credentials(), "a.example").await;
        assert!(
            told.starts_with(b"\x05\x02\x00\x02\x01\x02me\x06s3cret\x05"),
            "{told:?}"
        );
        rest.unwrap();
        let (told, rest) = asked(&[b"\x05\x00", MADE], credentials(), "a.example").await;
        assert!(!told.windows(6).any(|part| part == b"s3cret"), "{told:?}");
        rest.unwrap();
    }

    #[tokio::test]
    async fn other_answers_are_failures_in_words() {
        const ANSWERS: [(&[&[u8]], bool, &str); 11] = [
            (&[b"\x05\xff"], false, "wants a name and a password"),
            (&[b"\x05\x02", b"\x01\x01"], true, "wants a name and a password"),
            // It asks for what it was not offered.
            (&[b"\x05\x02"], false, "does not answer as a SOCKS 5 proxy"),
            (&[b"\x04\x00"], false, "does not answer as a SOCKS 5 proxy"),
            (
                &[b"HTTP/1.1 400 Bad Request\r\n"],
                false,
                "does not answer as a SOCKS 5 proxy",
            ),
            (
                &[b"\x05\x00", b"\x05\x02\x00\x01\0\0\0\0\0\0"],
                false,
                "does not allow it",
            ),
            (
                &[b"\x05\x00", b"\x05\x05\x00\x01\0\0\0\0\0\0"],
                false,
                "the host refuses",
            ),
            (
                &[b"\x05\x00", b"\x05\x00\x00\x09\0\0"],
                false,
                "does not answer as a SOCKS 5 proxy",
            ),
            (&[b"\x05\x00", b"\x05\x00\x00\x01\0"], false, "hung up"),
            (&[b"\x05"], false, "hung up"),
            (&[], false, "hung up"),
        ];
        for (pieces, is_known, reason) in ANSWERS {
            let credentials = if is_known { credentials() } else { None };
            let (_, made) = asked(pieces, credentials, "a.example").await;
            let error = made.unwrap_err();
            assert!(error.contains(reason), "{pieces:?}: {error}");
            assert!(!error.contains("s3cret"));
        }
    }

    #[tokio::test]
    async fn n12_a_proxy_that_does_not_come_to_the_end_of_an_answer_is_given_up() {
        let (ours, mut server) = connection().await;
        server.write_all(b"\x05\x00\x05\x00").await.unwrap();
        let host = Host::parse("a.example").unwrap();
        let asked = ask(Duration::from_millis(300), None, ours, &host, 443);
        let given_up = timeout(TIMEOUT, asked).await.unwrap();
        assert_eq!(given_up.unwrap_err(), "took too long to answer");
    }
}
