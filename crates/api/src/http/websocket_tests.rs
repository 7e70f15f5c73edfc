use std::convert::Infallible;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

use super::*;
use crate::http::peer::ClientPeer;

const HANDSHAKE: &str = "GET /x HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\n\
    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: a, b\r\n\r\n";
/// What a message may have.
const MOST: usize = 1000;

fn run<T>(work: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_time().start_paused(true).build().unwrap().block_on(work)
}

fn client() -> ClientConnection {
    ClientConnection {
        peer: ClientPeer::Owner,
        secure: false,
        busy: crate::http::pace::BusyFlag::default(),
        held: None,
    }
}

/// A client of a server that says each message again, and says of the end what it saw.
fn server() -> DuplexStream {
    let (ours, theirs) = tokio::io::duplex(4096);
    let service = service_fn(|request: Request<Incoming>| async {
        let (parts, _) = request.into_parts();
        Ok::<_, Infallible>(match WebSocketRequest::of(&parts, &client()) {
            Ok(asked) => {
                let protocol = asked.offered().last().cloned();
                asked.speaking(protocol.as_deref()).answer(MOST, echoed)
            }
            Err(refusal) => refusal.answer(),
        })
    });
    let connection = http1::Builder::new().serve_connection(TokioIo::new(ours), service);
    tokio::spawn(connection.with_upgrades());
    theirs
}

async fn echoed(mut socket: WebSocket) {
    while let Some(message) = socket.next().await {
        let sent = match message {
            SocketMessage::Text(text) if text == "end" => return socket.close(4999, &"é".repeat(100)).await,
            SocketMessage::Text(text) => socket.text(text).await,
            SocketMessage::Binary(bytes) => socket.binary(bytes.to_vec()).await,
        };
        if sent.is_err() {
            return;
        }
    }
}

/// The head of an answer.
async fn head(client: &mut DuplexStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

/// A frame as clients send it, with a mask of zeros.
fn frame(opcode: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x80 | opcode];
    match u8::try_from(payload.len()) {
        Ok(length @ 0..=125) => frame.push(0x80 | length),
        _ => {
            frame.push(0x80 | 126);
            frame.extend(u16::try_from(payload.len()).unwrap().to_be_bytes());
        }
    }
    frame.extend([0; 4]);
    frame.extend(payload);
    frame
}

/// The next frame of the server's: its first byte and what is in it.
async fn answered(client: &mut DuplexStream) -> (u8, Vec<u8>) {
    let first = client.read_u8().await.unwrap();
    let length = match client.read_u8().await.unwrap() {
        126 => usize::from(client.read_u16().await.unwrap()),
        length => usize::from(length),
    };
    let mut payload = vec![0; length];
    client.read_exact(&mut payload).await.unwrap();
    (first, payload)
}

#[test]
fn messages_go_both_ways_and_an_end_says_why() {
    run(async {
        let mut client = server();
        client.write_all(HANDSHAKE.as_bytes()).await.unwrap();
        let head = head(&mut client).await;
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        // The example of RFC 6455, section 1.3.
        assert!(
            head.contains("sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"),
            "{head}"
        );
        assert!(head.contains("sec-websocket-protocol: b\r\n"), "{head}");
        for (opcode, payload) in [(1, &b"text"[..]), (2, b"\0\xff"), (1, b"")] {
            client.write_all(&frame(opcode, payload)).await.unwrap();
            assert_eq!(answered(&mut client).await, (0x80 | opcode, payload.to_vec()));
        }
        client.write_all(&frame(9, b"ping")).await.unwrap();
        assert_eq!(answered(&mut client).await, (0x8a, b"ping".to_vec()));
        client.write_all(&frame(1, b"end")).await.unwrap();
        let (first, payload) = answered(&mut client).await;
        assert_eq!((first, &payload[..2]), (0x88, &4999_u16.to_be_bytes()[..]));
        // Cut where a character ends.
        assert_eq!(std::str::from_utf8(&payload[2..]).unwrap(), "é".repeat(61));
    });
}

#[test]
fn what_asks_for_none_is_told_so() {
    for (from, to, status) in [
        ("Upgrade: WebSocket", "Upgrade: h2c", 426),
        ("keep-alive, Upgrade", "keep-alive", 426),
        ("GET", "POST", 426),
        ("Version: 13", "Version: 8", 426),
        ("dGhlIHNhbXBsZSBub25jZQ==", "dGhl", 400),
        ("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", "", 400),
    ] {
        run(async {
            let mut client = server();
            client.write_all(HANDSHAKE.replace(from, to).as_bytes()).await.unwrap();
            let head = head(&mut client).await;
            assert!(
                head.starts_with(&format!("HTTP/1.1 {status} ")),
                "{from} → {to}: {head}"
            );
        });
    }
}

#[test]
fn a12_messages_that_are_too_long_or_malformed_end_it() {
    let too_long = frame(2, &vec![0; MOST + 1]);
    // In pieces, each of which may be.
    let mut in_pieces = frame(2, &vec![0; MOST]);
    in_pieces[0] = 0x02;
    in_pieces.extend(frame(0, b"x"));
    let mut unmasked = frame(1, b"x");
    unmasked[1] = 1;
    let huge = vec![0x82, 0xff, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0];
    for (sent, code) in [
        (too_long, 1009_u16),
        (in_pieces, 1009),
        (huge, 1009),
        (unmasked, 1002),
        (frame(1, b"\xff"), 1007),
    ] {
        run(async {
            let mut client = server();
            client.write_all(HANDSHAKE.as_bytes()).await.unwrap();
            head(&mut client).await;
            client.write_all(&sent).await.unwrap();
            let mut all = Vec::new();
            client.read_to_end(&mut all).await.unwrap();
            let told = all.get(2..4).map(|code| u16::from_be_bytes([code[0], code[1]]));
            assert!(told.is_none_or(|told| told == code), "{code}: {all:?}");
        });
    }
}

#[test]
fn a12_pings_whose_answers_nobody_takes_are_not_read_on() {
    run(async {
        let mut client = server();
        client.write_all(HANDSHAKE.as_bytes()).await.unwrap();
        head(&mut client).await;
        let ping = frame(9, &[b'p'; 125]);
        let mut taken = 0_usize;
        // The clock goes on by itself once nobody does anything any more.
        while timeout(Duration::from_secs(60), client.write_all(&ping)).await.is_ok() {
            taken += ping.len();
            assert!(taken < 1024 * 1024, "they are read without end");
        }
        assert!(taken > 0);
    });
}
