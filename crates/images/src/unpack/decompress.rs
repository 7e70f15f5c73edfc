//! Layers come compressed or not; what they begin with says how, whatever their media type does.

use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

const GZIP: &[u8] = &[0x1f, 0x8b];
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
/// What frames of zstd begin with that are to be passed over, but for the lowest four bits.
const ZSTD_SKIPPED: [u8; 3] = [0x2a, 0x4d, 0x18];
const BUFFER: usize = 128 << 10;
/// The largest window of zstd, which is kept in memory; what `zstd --ultra` takes without `--long`.
const MAX_WINDOW: u64 = 128 << 20;

/// The archive in `source`, without compression.
pub(crate) fn decompressed<R: Read + 'static>(source: R) -> io::Result<Box<dyn Read>> {
    let mut source = BufReader::with_capacity(BUFFER, source);
    let start = source.fill_buf()?;
    if start.starts_with(GZIP) {
        return Ok(Box::new(MultiGzDecoder::new(source)));
    }
    if start.starts_with(ZSTD) || is_skipped(start) {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(MAX_WINDOW);
        return Ok(Box::new(Frames {
            decoder,
            is_within: false,
            source,
        }));
    }
    Ok(Box::new(source))
}

fn is_skipped(start: &[u8]) -> bool {
    matches!(start, [first, rest @ ..] if first & 0xf0 == 0x50 && rest.starts_with(&ZSTD_SKIPPED))
}

/// One frame of zstd after another (RFC 8878, 3.1).
struct Frames<R> {
    decoder: FrameDecoder,
    is_within: bool,
    source: R,
}

impl<R: BufRead> Frames<R> {
    /// Begins the next frame; whether there is one.
    fn begin(&mut self) -> io::Result<bool> {
        while !self.source.fill_buf()?.is_empty() {
            match self.decoder.init(&mut self.source) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                    let skipped = io::copy(&mut (&mut self.source).take(length.into()), &mut io::sink())?;
                    if skipped < u64::from(length) {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        Ok(false)
    }
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            if !self.is_within {
                if !self.begin()? {
                    return Ok(0);
                }
                self.is_within = true;
            }
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                let decoded = self
                    .decoder
                    .decode_blocks(&mut self.source, BlockDecodingStrategy::UptoBlocks(1));
                decoded.map_err(io::Error::other)?;
            }
            let read = self.decoder.read(buffer)?;
            if read > 0 {
                return Ok(read);
            }
            self.is_within = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::write::GzEncoder;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    fn read(bytes: Vec<u8>) -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        decompressed(io::Cursor::new(bytes))?.read_to_end(&mut text)?;
        Ok(text)
    }

    fn zstd(bytes: &[u8]) -> Vec<u8> {
        compress_to_vec(bytes, CompressionLevel::Fastest)
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn several_members_and_frames_are_one_archive() {
        let text = b"some words that are repeated, words that are repeated".repeat(5_000);
        assert_eq!(read(text.clone()).unwrap(), text);
        assert_eq!(read([gzip(&text[..9]), gzip(&text[9..])].concat()).unwrap(), text);
        let skipped = [&[0x5a, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"any"].concat();
        let frames = [
            skipped.clone(),
            zstd(&text[..99]),
            skipped.clone(),
            zstd(&text[99..]),
            skipped,
        ]
        .concat();
        assert_eq!(read(frames).unwrap(), text);
        assert_eq!(read(Vec::new()).unwrap(), b"");
    }

    #[test]
    fn what_was_cut_is_an_error_and_not_a_shorter_archive() {
        let text: Vec<u8> = (0..40_000_u32)
            .flat_map(|number| number.wrapping_mul(0x9e37_79b9).to_le_bytes())
            .collect();
        for whole in [gzip(&text), zstd(&text)] {
            for cut in [5, whole.len() / 2, whole.len() - 9] {
                assert!(read(whole[..cut].to_vec()).is_err(), "{cut}");
            }
        }
    }
}
