//! Asks the proxy of somebody's network for a connection (`CONNECT`, RFC 9110, 9.3.6).

use std::io;
use std::time::Duration;

use offleash_core::network::Host;
use offleash_core::network::upstream_proxy::{ProxyCredentials, UpstreamProxy};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use zeroize::Zeroizing;

/// The longest head of an answer.
const HEAD: usize = 16 * 1024;
/// The most fields of an answer.
const FIELDS: usize = 100;

/// Asks for `port` of `host` on a connection to the proxy, which afterwards is one to that host.
///
/// # Errors
/// Why not, as a sentence about the proxy without its name: it is shown in the sandbox.
pub(super) async fn ask(
    patience: Duration,
    proxy: &UpstreamProxy,
    mut connection: TcpStream,
    host: &Host,
    port: u16,
) -> Result<TcpStream, String> {
    let asked = question(proxy, host, port);
    let answer = async {
        connection.write_all(asked.as_bytes()).await.map_err(broken)?;
        let head = head(&mut connection).await?;
        judge(&head)
    };
    timeout(patience, answer)
        .await
        .unwrap_or_else(|_| Err("took too long to answer".to_owned()))?;
    Ok(connection)
}

fn broken(error: io::Error) -> String {
    format!("hung up: {error}")
}

fn question(proxy: &UpstreamProxy, host: &Host, port: u16) -> String {
    let credentials = proxy.credentials.as_ref().map_or_else(String::new, |credentials| {
        format!(
            "Proxy-Authorization: Basic {}\r\n",
            base64(plain(credentials).as_bytes())
        )
    });
    format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n{credentials}\r\n")
}

/// What `Basic` makes of credentials (RFC 7617, 2).
fn plain(credentials: &ProxyCredentials) -> Zeroizing<String> {
    let (name, password) = (credentials.expose_name(), credentials.expose_password());
    Zeroizing::new(format!("{name}:{password}"))
}

/// Reads to the end of the head and not a byte further: what follows is the host's.
async fn head(connection: &mut TcpStream) -> Result<Vec<u8>, String> {
    const END: &[u8] = b"\r\n\r\n";
    let mut head = Vec::new();
    let mut ahead = vec![0; 2048];
    loop {
        let seen = connection.peek(&mut ahead).await.map_err(broken)?;
        if seen == 0 {
            return Err("hung up".to_owned());
        }
        let before = head.len();
        head.extend_from_slice(ahead.get(..seen).unwrap_or_default());
        let from = before.saturating_sub(END.len() - 1);
        let end = head
            .get(from..)
            .and_then(|part| part.windows(END.len()).position(|window| window == END));
        if let Some(end) = end {
            head.truncate(from + end + END.len());
        }
        let taken = ahead.get_mut(..head.len() - before).unwrap_or_default();
        connection.read_exact(taken).await.map_err(broken)?;
        if end.is_some() {
            return Ok(head);
        }
        if head.len() > HEAD {
            return Err("answers something endless".to_owned());
        }
    }
}

fn judge(head: &[u8]) -> Result<(), String> {
    let mut room = [httparse::EMPTY_HEADER; FIELDS];
    let mut answer = httparse::Response::new(&mut room);
    let whole = matches!(answer.parse(head), Ok(httparse::Status::Complete(_)));
    match answer.code.filter(|_| whole) {
        Some(200..=299) => Ok(()),
        Some(407) => Err("wants a name and a password that it knows (407)".to_owned()),
        Some(403) => Err("does not allow it (403)".to_owned()),
        Some(code) => Err(format!("does not make it ({code})")),
        None => Err("does not answer as a proxy does".to_owned()),
    }
}

/// Base64 with padding (RFC 4648, 4).
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let bits = three.iter().fold(0_usize, |bits, byte| bits << 8 | usize::from(*byte)) << (8 * (3 - three.len()));
        for digit in 0..4 {
            if digit <= three.len() {
                text.push(char::from(ALPHABET[bits >> (18 - 6 * digit) & 63]));
            } else {
                text.push('=');
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::tests::{connection, rest};

    #[test]
    fn base64_is_that_of_the_rfc() {
        for (plain, coded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foobar", "Zm9vYmFy"),
            ("me:s@cret", "bWU6c0BjcmV0"),
        ] {
            assert_eq!(base64(plain.as_bytes()), coded);
        }
    }

    /// What comes of a proxy that answers with these pieces, and what is there to be read afterwards.
    async fn asked(pieces: &'static [&'static [u8]]) -> (String, Result<Vec<u8>, String>) {
        let proxy = UpstreamProxy::parse("http://me:s%40cret@proxy.example:3128").unwrap();
        let (ours, mut server) = connection().await;
        let answering = async {
            let mut question = Vec::new();
            while !question.ends_with(b"\r\n\r\n") {
                assert!(server.read_buf(&mut question).await.unwrap() > 0);
            }
            for piece in pieces {
                server.write_all(piece).await.unwrap();
                tokio::task::yield_now().await;
            }
            drop(server);
            String::from_utf8(question).unwrap()
        };
        let host = Host::parse("www.example.com").unwrap();
        let (question, made) = tokio::join!(answering, ask(Duration::from_secs(60), &proxy, ours, &host, 443));
        (question, rest(made).await)
    }

    #[tokio::test]
    async fn what_follows_the_answer_is_the_host_s() {
        let (question, rest) = asked(&[b"HTTP/1.1 200 Connection established\r\nVia: x\r\n\r\nSSH-2.0-x\r\n"]).await;
        assert_eq!(
            question,
            "CONNECT www.example.com:443 HTTP/1.1\r\nHost: www.example.com:443\r\n\
             Proxy-Authorization: Basic bWU6c0BjcmV0\r\n\r\n"
        );
        assert_eq!(rest.unwrap(), b"SSH-2.0-x\r\n");
        let (_, rest) = asked(&[b"HTTP/1.0 200 OK\r", b"\n", b"\r", b"\n", b"rest"]).await;
        assert_eq!(rest.unwrap(), b"rest");
    }

    #[tokio::test]
    async fn n12_a_proxy_that_does_not_come_to_the_end_of_an_answer_is_hung_up_on() {
        const BEGINNING: &[u8] = b"HTTP/1.1 200 Connection established\r\nX: ";
        for dribbles in [false, true] {
            let proxy = UpstreamProxy::parse("http://proxy.example:3128").unwrap();
            let (ours, mut server) = connection().await;
            let answering = tokio::spawn(async move {
                let mut question = Vec::new();
                let mut beginning = BEGINNING.iter().chain(std::iter::repeat(&b'x'));
                // Until it is hung up on; each byte comes long before it is given up.
                loop {
                    let read = tokio::time::timeout(Duration::from_millis(20), server.read_buf(&mut question)).await;
                    match read {
                        Ok(Ok(0) | Err(_)) => return question,
                        Err(_) if dribbles => drop(server.write_all(&[*beginning.next().unwrap()]).await),
                        _ => {}
                    }
                }
            });
            let host = Host::parse("www.example.com").unwrap();
            let asked = ask(Duration::from_millis(500), &proxy, ours, &host, 443);
            let asked = timeout(Duration::from_secs(60), asked).await.unwrap();
            assert_eq!(asked.unwrap_err(), "took too long to answer");
            let question = timeout(Duration::from_secs(60), answering).await.unwrap().unwrap();
            assert!(question.starts_with(b"CONNECT www.example.com:443"), "the control");
        }
    }

    #[tokio::test]
    async fn other_answers_are_failures_in_words() {
        const ANSWERS: [(&[&[u8]], &str); 6] = [
            (
                &[b"HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic\r\n\r\nx"],
                "wants a name",
            ),
            (&[b"HTTP/1.1 403 Filtered\r\n\r\n"], "does not allow it (403)"),
            (&[b"HTTP/1.1 500 Unable to connect\r\n\r\n"], "does not make it (500)"),
            (&[b"SSH-2.0-OpenSSH\r\n\r\n"], "does not answer as a proxy does"),
            (&[b"HTTP/1.1 200 OK\r\n"], "hung up"),
            (&[], "hung up"),
        ];
        for (pieces, reason) in ANSWERS {
            let (_, rest) = asked(pieces).await;
            let error = rest.unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }
}
