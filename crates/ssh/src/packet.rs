//! Packets (RFC 4253, section 6), in the open until keys are there and by `chacha20-poly1305@openssh.com` afterwards.

use std::io;

use ring::aead::chacha20_poly1305_openssh::{KEY_LEN, OpeningKey, SealingKey, TAG_LEN};
use ring::rand::{SecureRandom as _, SystemRandom};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::error::SshError;

/// The longest packet that is read. A client that keeps to what we say it may send stays below (section 6.1).
const MAX_PACKET: usize = 40_000;
/// The longest line before the first packet (section 4.2).
const MAX_LINE: usize = 255;
/// Lengths of packets are multiples of this.
const BLOCK: usize = 8;
/// Long before their numbers begin anew, keys have to be exchanged again.
const MAX_PACKETS: u32 = 1 << 31;

/// Reads packets of the other side. What was read is kept when reading is given up in the middle.
pub(crate) struct PacketReader<R> {
    stream: R,
    buffer: Vec<u8>,
    sequence: u32,
    since_keys: u32,
    key: Option<OpeningKey>,
}

impl<R: AsyncRead + Unpin> PacketReader<R> {
    pub(crate) fn new(stream: R) -> Self {
        Self {
            stream,
            buffer: Vec::new(),
            sequence: 0,
            since_keys: 0,
            key: None,
        }
    }

    /// The first line: how the other side calls itself.
    pub(crate) async fn identification(&mut self) -> Result<Vec<u8>, SshError> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let mut line: Vec<u8> = self.buffer.drain(..=end).collect();
                line.pop();
                if line.last() == Some(&b'\r') {
                    line.pop();
                }
                return match line.starts_with(b"SSH-2.0-") {
                    true => Ok(line),
                    false => Err(SshError::Protocol("it does not begin with `SSH-2.0-`")),
                };
            }
            if self.buffer.len() > MAX_LINE {
                return Err(SshError::Protocol("it does not begin with a line"));
            }
            if !self.fill().await? {
                return Err(SshError::Stream(io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }

    /// The next packet's payload; `None` when the other side has gone.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<u8>>, SshError> {
        loop {
            if let Some(payload) = self.taken()? {
                return Ok(Some(payload));
            }
            if !self.fill().await? {
                return match self.buffer.is_empty() {
                    true => Ok(None),
                    false => Err(SshError::Stream(io::ErrorKind::UnexpectedEof.into())),
                };
            }
        }
    }

    /// Packets from here on are opened with another key; numbers begin anew where both sides are `strict`.
    pub(crate) fn rekey(&mut self, key: &[u8; KEY_LEN], strict: bool) {
        self.key = Some(OpeningKey::new(key));
        self.since_keys = 0;
        if strict {
            self.sequence = 0;
        }
    }

    async fn fill(&mut self) -> io::Result<bool> {
        Ok(self.stream.read_buf(&mut self.buffer).await? > 0)
    }

    fn taken(&mut self) -> Result<Option<Vec<u8>>, SshError> {
        let Some(head) = self.buffer.first_chunk::<4>().copied() else {
            return Ok(None);
        };
        let (length, tag) = match &self.key {
            Some(key) => (key.decrypt_packet_length(self.sequence, head), TAG_LEN),
            None => (head, 0),
        };
        let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
        // Of what is sealed the length is sealed by itself, and counts for no block.
        let in_blocks = if tag > 0 { length } else { length.saturating_add(4) };
        if !(BLOCK..=MAX_PACKET).contains(&length) || in_blocks % BLOCK != 0 {
            return Err(SshError::Protocol("a packet has a length that none may have"));
        }
        if self.buffer.len() < 4 + length + tag {
            return Ok(None);
        }
        let mut packet: Vec<u8> = self.buffer.drain(..4 + length + tag).collect();
        if let Some(key) = &self.key {
            let sealed = packet.split_off(4 + length);
            let tag = sealed.first_chunk::<TAG_LEN>().ok_or(SshError::Unsealed)?;
            key.open_in_place(self.sequence, &mut packet, tag)
                .map_err(|_| SshError::Unsealed)?;
        }
        self.sequence = self.sequence.wrapping_add(1);
        self.since_keys += 1;
        if self.since_keys > MAX_PACKETS {
            return Err(SshError::Protocol("it does not exchange keys again"));
        }
        let padding = usize::from(packet.get(4).copied().unwrap_or_default());
        let end = (4 + length).checked_sub(padding).filter(|end| *end > 5);
        let payload = end.and_then(|end| packet.get(5..end));
        let payload = payload.ok_or(SshError::Protocol("a packet is nothing but padding"))?;
        Ok(Some(payload.to_vec()))
    }
}

/// Writes packets to the other side.
pub(crate) struct PacketWriter<W> {
    stream: W,
    sequence: u32,
    key: Option<SealingKey>,
    random: SystemRandom,
}

impl<W: AsyncWrite + Unpin> PacketWriter<W> {
    pub(crate) fn new(stream: W) -> Self {
        Self {
            stream,
            sequence: 0,
            key: None,
            random: SystemRandom::new(),
        }
    }

    /// Says how we call ourselves.
    pub(crate) async fn identify(&mut self, name: &str) -> Result<(), SshError> {
        self.stream.write_all(format!("{name}\r\n").as_bytes()).await?;
        self.stream.flush().await?;
        Ok(())
    }

    pub(crate) async fn send(&mut self, payload: &[u8]) -> Result<(), SshError> {
        let counted = if self.key.is_some() { 1 } else { 5 } + payload.len();
        // At least four bytes of it.
        let padding = match BLOCK - counted % BLOCK {
            short if short < 4 => short + BLOCK,
            enough => enough,
        };
        let length =
            u32::try_from(1 + payload.len() + padding).map_err(|_| SshError::Protocol("a message is too long"))?;
        let mut packet = Vec::with_capacity(4 + 1 + payload.len() + padding + TAG_LEN);
        packet.extend(length.to_be_bytes());
        packet.push(u8::try_from(padding).unwrap_or(u8::MAX));
        packet.extend(payload);
        let begin = packet.len();
        packet.resize(begin + padding, 0);
        let filled = self.random.fill(packet.get_mut(begin..).unwrap_or_default());
        filled.map_err(|_| SshError::Key)?;
        if let Some(key) = &self.key {
            let mut tag = [0; TAG_LEN];
            key.seal_in_place(self.sequence, &mut packet, &mut tag);
            packet.extend(tag);
        }
        self.sequence = self.sequence.wrapping_add(1);
        self.stream.write_all(&packet).await?;
        self.stream.flush().await?;
        Ok(())
    }

    /// As [`PacketReader::rekey`].
    pub(crate) fn rekey(&mut self, key: &[u8; KEY_LEN], strict: bool) {
        self.key = Some(SealingKey::new(key));
        if strict {
            self.sequence = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap()
            .block_on(work)
    }

    async fn sent(key: Option<&[u8; KEY_LEN]>, payloads: &[&[u8]]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut writer = PacketWriter::new(&mut bytes);
        if let Some(key) = key {
            writer.rekey(key, true);
        }
        for payload in payloads {
            writer.send(payload).await.unwrap();
        }
        bytes
    }

    #[test]
    fn packets_are_read_as_they_are_written() {
        run(async {
            let key = [7; KEY_LEN];
            let long = vec![1; 32_768];
            for key in [None, Some(&key)] {
                let bytes = sent(key, &[b"a", b"bcdefghi", &long]).await;
                let mut reader = PacketReader::new(&bytes[..]);
                if let Some(key) = key {
                    reader.rekey(key, true);
                }
                assert_eq!(reader.next().await.unwrap().unwrap(), b"a");
                assert_eq!(reader.next().await.unwrap().unwrap(), b"bcdefghi");
                assert_eq!(reader.next().await.unwrap().unwrap(), long);
                assert!(reader.next().await.unwrap().is_none());
            }
        });
    }

    #[test]
    fn what_was_changed_on_its_way_is_not_opened() {
        run(async {
            let key = [7; KEY_LEN];
            let bytes = sent(Some(&key), &[b"a message"]).await;
            for place in 4..bytes.len() {
                let mut bytes = bytes.clone();
                bytes[place] ^= 1;
                let mut reader = PacketReader::new(&bytes[..]);
                reader.rekey(&key, true);
                assert!(matches!(reader.next().await, Err(SshError::Unsealed)), "{place}");
            }
            // Neither is one that was said before.
            let twice = [&bytes[..], &bytes[..]].concat();
            let mut reader = PacketReader::new(&twice[..]);
            reader.rekey(&key, true);
            assert!(reader.next().await.is_ok());
            assert!(reader.next().await.is_err());
        });
    }

    #[test]
    fn lengths_that_none_may_have_are_refused_before_anything_is_kept() {
        run(async {
            for head in [[0, 0, 0, 0], [0, 0, 0, 5], [255; 4], [0, 1, 0, 4]] {
                let bytes = [&head[..], &[4; 64]].concat();
                assert!(
                    matches!(PacketReader::new(&bytes[..]).next().await, Err(SshError::Protocol(_))),
                    "{head:?}"
                );
            }
            // More padding than there is.
            let bytes = [&[0, 0, 0, 12, 200][..], &[0; 11]].concat();
            assert!(PacketReader::new(&bytes[..]).next().await.is_err());
        });
    }

    #[test]
    fn the_first_line_is_short_and_names_the_protocol() {
        run(async {
            let line = PacketReader::new(&b"SSH-2.0-x y\r\nrest"[..]).identification().await;
            assert_eq!(line.unwrap(), b"SSH-2.0-x y");
            for bytes in [&b"SSH-1.0-x\r\n"[..], b"GET / HTTP/1.1\r\n", b"SSH-2.0-", &[b'a'; 400]] {
                assert!(PacketReader::new(bytes).identification().await.is_err());
            }
        });
    }
}
