//! What follows when both sides have agreed on a WebSocket: bytes, which nobody looks at but for secrets. For their sake
//! it is known where frames end: what is held of one goes on with its end, so that no message waits for the next.

mod frames;

use hyper::body::Bytes;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, copy, split};

use crate::secrets::{Mask, Masker};
use frames::Frames;

/// How much is taken in one go, each way.
const CHUNK: usize = 16 * 1024;

/// Carries everything both ways; `read` was read from the client already. What `mask` finds is taken out of what the
/// server sends: frames keep their lengths.
pub(super) async fn carry(
    mut client: impl AsyncRead + AsyncWrite + Unpin,
    server: Upgraded,
    mask: Option<&Mask>,
    read: &[u8],
) {
    let mut server = TokioIo::new(server);
    if server.write_all(read).await.is_err() {
        return;
    }
    // How it ends is the two sides' business.
    let _ = match mask {
        None => tokio::io::copy_bidirectional_with_sizes(&mut client, &mut server, CHUNK, CHUNK)
            .await
            .map(drop),
        Some(mask) => carry_masked(client, server, mask.body()).await,
    };
}

async fn carry_masked(
    client: impl AsyncRead + AsyncWrite,
    server: impl AsyncRead + AsyncWrite,
    mut masker: Masker,
) -> std::io::Result<()> {
    let (mut client_reads, mut client_writes) = split(client);
    let (mut server_reads, mut server_writes) = split(server);
    let out = async {
        copy(&mut client_reads, &mut server_writes).await?;
        server_writes.shutdown().await
    };
    let back = async {
        let mut frames = Frames::default();
        let mut buffer = Vec::with_capacity(CHUNK);
        loop {
            buffer.clear();
            let read = server_reads.read_buf(&mut buffer).await;
            // Who hangs up without a word has said what came before.
            let ended = !matches!(read, Ok(1..));
            let going = match ended {
                true => masker.finish().to_vec(),
                false => masked(&mut masker, &mut frames, &buffer),
            };
            client_writes.write_all(&going).await?;
            client_writes.flush().await?;
            if ended {
                client_writes.shutdown().await?;
                return read.map(drop);
            }
        }
    };
    tokio::try_join!(out, back).map(drop)
}

/// What may go on of frames that came, and of what was held of the first.
fn masked(masker: &mut Masker, frames: &mut Frames, mut bytes: &[u8]) -> Vec<u8> {
    let mut going = Vec::with_capacity(bytes.len());
    while !bytes.is_empty() {
        let (part, ends) = frames.next(bytes);
        let (frame, rest) = bytes.split_at(part);
        going.extend_from_slice(&masker.push(Bytes::copy_from_slice(frame)));
        if ends {
            going.extend_from_slice(&masker.finish());
        }
        bytes = rest;
    }
    going
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::secrets::tests::{REAL, mask};

    fn frame(content: &[u8]) -> Vec<u8> {
        let length = content.len();
        let mut frame = vec![0x81];
        match u8::try_from(length).ok().filter(|length| *length < 126) {
            Some(length) => frame.push(length),
            None => {
                frame.push(126);
                frame.extend(u16::try_from(length).unwrap().to_be_bytes());
            }
        }
        frame.extend(content);
        frame
    }

    fn told(pieces: &[&[u8]]) -> Vec<Vec<u8>> {
        let (mut masker, mut frames) = (mask().body(), Frames::default());
        pieces
            .iter()
            .map(|piece| masked(&mut masker, &mut frames, piece))
            .collect()
    }

    #[test]
    fn a_message_does_not_wait_whatever_it_ends_with() {
        for content in [&b"hello"[..], &REAL.as_bytes()[..9], b"", &[b'x'; 5000]] {
            let message = frame(content);
            assert_eq!(told(&[&message]), [message]);
        }
    }

    #[test]
    fn how_a_long_message_is_cut_says_nothing_of_a_value() {
        let cut = |end: &[u8]| {
            let message = frame(&[&[b'x'; 300], end, &[b'y'; 300]].concat());
            let (first, second) = message.split_at(4 + 300 + end.len());
            let told = told(&[first, second]);
            assert_eq!(told.concat(), message);
            told.iter().map(Vec::len).collect::<Vec<_>>()
        };
        let beginning = &REAL.as_bytes()[..9];
        assert_eq!(cut(beginning), cut(&[b'z'; 9]));
    }

    proptest! {
        #[test]
        fn a_value_is_covered_however_a_message_is_cut(
            before in "[a-z]{0,200}",
            after in "[a-z]{0,200}",
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        ) {
            let message = frame(format!("{before}{REAL}{after}").as_bytes());
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(message.len())).collect();
            cuts.sort_unstable();
            let ends = cuts.iter().copied().chain([message.len()]);
            let starts = [0].into_iter().chain(cuts.iter().copied());
            let pieces: Vec<&[u8]> = starts.zip(ends).map(|(start, end)| &message[start..end]).collect();
            let told = told(&pieces).concat();
            prop_assert_eq!(told.len(), message.len());
            prop_assert!(memchr::memmem::find(&told, REAL.as_bytes()).is_none());
        }
    }
}
