//! The bytes of an upload, as they arrive or unpacked on the way; never more of them at hand than one piece.

use std::collections::VecDeque;
use std::fmt::Display;
use std::io::Write as _;
use std::time::Duration;

use bytes::Bytes;
use flate2::write::MultiGzDecoder;
use http_body::Body;
use http_body_util::BodyExt as _;
use tokio::time::timeout;

/// Packed bytes that are unpacked at once: deflate makes at most 1032 bytes of one.
const PACKED_PIECE: usize = 1024;

/// How long the next bytes of an upload may take.
const IDLE: Duration = Duration::from_secs(120);

/// Why an upload cannot be read to its end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SourceError {
    /// The client stopped.
    #[error("reading the request: {0}")]
    Broken(String),
    /// Nothing came for a long time.
    #[error("the request's next bytes took longer than {} s", IDLE.as_secs())]
    Slow,
    /// It is not packed as it says.
    #[error("error decompressing request body: {0}")]
    Packed(String),
}

/// Pieces of an upload, in order.
pub(crate) trait UploadSource {
    /// The next piece, which is never empty; `None` at the end.
    async fn piece(&mut self) -> Result<Option<Bytes>, SourceError>;
}

/// A request's body.
#[derive(Debug)]
pub(crate) struct PlainUpload<B> {
    body: B,
}

impl<B> UploadSource for PlainUpload<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Display,
{
    async fn piece(&mut self) -> Result<Option<Bytes>, SourceError> {
        while let Some(frame) = timeout(IDLE, self.body.frame()).await.map_err(|_| SourceError::Slow)? {
            let frame = frame.map_err(|error| SourceError::Broken(error.to_string()))?;
            if let Ok(bytes) = frame.into_data()
                && !bytes.is_empty()
            {
                return Ok(Some(bytes));
            }
        }
        Ok(None)
    }
}

/// A request's body, unpacked if it is packed.
#[derive(Debug)]
pub(crate) struct PackedUpload<B> {
    plain: PlainUpload<B>,
    unpacking: Option<UploadUnpacker>,
}

impl<B> PackedUpload<B> {
    /// A body as it is.
    pub(crate) fn plain(body: B) -> Self {
        Self {
            plain: PlainUpload { body },
            unpacking: None,
        }
    }

    /// A body that is packed with gzip.
    pub(crate) fn gzip(body: B) -> Self {
        Self {
            plain: PlainUpload { body },
            unpacking: Some(UploadUnpacker {
                decoder: MultiGzDecoder::new(Vec::new()),
                packed: VecDeque::new(),
            }),
        }
    }
}

impl<B> PackedUpload<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Display,
{
    /// Takes what is left of the packed or plain bytes, up to `most`, so that a client that still sends can read
    /// the answer.
    pub(crate) async fn drain(&mut self, most: usize) {
        let mut taken = 0;
        while taken < most
            && let Ok(Some(piece)) = self.plain.piece().await
        {
            taken += piece.len();
        }
    }
}

impl<B> UploadSource for PackedUpload<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Display,
{
    async fn piece(&mut self) -> Result<Option<Bytes>, SourceError> {
        let Some(unpacking) = &mut self.unpacking else {
            return self.plain.piece().await;
        };
        loop {
            if let Some(piece) = unpacking.next()? {
                return Ok(Some(piece));
            }
            match self.plain.piece().await? {
                Some(packed) => unpacking.packed.push_back(packed),
                None => return unpacking.finish(),
            }
        }
    }
}

#[derive(Debug)]
struct UploadUnpacker {
    decoder: MultiGzDecoder<Vec<u8>>,
    packed: VecDeque<Bytes>,
}

impl UploadUnpacker {
    /// What can be unpacked of what is there.
    fn next(&mut self) -> Result<Option<Bytes>, SourceError> {
        while let Some(packed) = self.packed.front_mut() {
            let piece = packed.split_to(packed.len().min(PACKED_PIECE));
            if packed.is_empty() {
                self.packed.pop_front();
            }
            self.decoder.write_all(&piece).map_err(packed_wrong)?;
            if let Some(unpacked) = self.unpacked() {
                return Ok(Some(unpacked));
            }
        }
        Ok(None)
    }

    fn finish(&mut self) -> Result<Option<Bytes>, SourceError> {
        self.decoder.try_finish().map_err(packed_wrong)?;
        Ok(self.unpacked())
    }

    fn unpacked(&mut self) -> Option<Bytes> {
        let unpacked = std::mem::take(self.decoder.get_mut());
        (!unpacked.is_empty()).then(|| Bytes::from(unpacked))
    }
}

fn packed_wrong(error: std::io::Error) -> SourceError {
    SourceError::Packed(error.to_string())
}

#[cfg(test)]
pub(crate) mod tests {
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use http_body_util::{Full, StreamBody};

    use super::*;

    /// A body that arrives in pieces of `size` bytes.
    pub(crate) fn in_pieces(
        bytes: &[u8],
        size: usize,
    ) -> impl Body<Data = Bytes, Error = std::convert::Infallible> + Unpin + use<> {
        let pieces: Vec<_> = bytes
            .chunks(size)
            .map(|piece| Ok(http_body::Frame::data(Bytes::copy_from_slice(piece))))
            .collect();
        StreamBody::new(Pieces(pieces.into_iter()))
    }

    struct Pieces<I>(I);

    impl<I: Iterator + Unpin> futures_core::Stream for Pieces<I> {
        type Item = I::Item;

        fn poll_next(
            mut self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<I::Item>> {
            std::task::Poll::Ready(self.0.next())
        }
    }

    pub(crate) fn block_on<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap()
            .block_on(work)
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    async fn all(mut source: impl UploadSource) -> Result<(Vec<u8>, usize), SourceError> {
        let (mut whole, mut largest) = (Vec::new(), 0);
        while let Some(piece) = source.piece().await? {
            assert!(!piece.is_empty());
            largest = largest.max(piece.len());
            whole.extend_from_slice(&piece);
        }
        Ok((whole, largest))
    }

    #[test]
    fn what_was_packed_is_unpacked_however_it_arrives() {
        let bytes: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
        let packed = gzip(&bytes);
        for size in [1, 7, 4096, packed.len()] {
            let (whole, _) = block_on(all(PackedUpload::gzip(in_pieces(&packed, size)))).unwrap();
            assert!(whole == bytes, "pieces of {size} bytes");
        }
        let twice = [gzip(b"one, "), gzip(b"two")].concat();
        let (whole, _) = block_on(all(PackedUpload::gzip(in_pieces(&twice, 5)))).unwrap();
        assert_eq!(whole, b"one, two");
    }

    #[test]
    fn a_bomb_is_unpacked_piece_by_piece() {
        let packed = gzip(&vec![0; 64 << 20]);
        let (whole, largest) = block_on(all(PackedUpload::gzip(Full::new(Bytes::from(packed))))).unwrap();
        assert_eq!(whole.len(), 64 << 20);
        assert!(largest < 4 << 20, "{largest} bytes at once");
    }

    #[test]
    fn what_is_not_packed_as_it_says_is_an_error() {
        let whole = gzip(b"hello");
        for bytes in [&b"hello"[..], &whole[..whole.len() - 3], &[0x1f, 0x8b]] {
            let result = block_on(all(PackedUpload::gzip(in_pieces(bytes, 4))));
            assert!(matches!(result, Err(SourceError::Packed(_))), "{result:?}");
        }
    }
}
