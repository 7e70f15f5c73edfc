//! Keeps the beginning of each output stream for the record.

use offleash_core::exec::OutputStream;
use offleash_core::record::CapturedOutput;
use offleash_core::text;

/// Output kept for the record of a run.
#[derive(Debug, Default)]
pub struct Capture {
    /// How many bytes of each stream are kept.
    most: usize,
    stdout: Kept,
    stderr: Kept,
}

#[derive(Debug, Default)]
struct Kept {
    bytes: Vec<u8>,
    total: u64,
}

impl Capture {
    /// Keeps up to `most` bytes of each stream; with zero, only counts them.
    pub fn new(most: usize) -> Self {
        Self {
            most,
            ..Self::default()
        }
    }

    pub(crate) fn take(&mut self, stream: OutputStream, bytes: &[u8]) {
        let kept = match stream {
            OutputStream::Stdout => &mut self.stdout,
            OutputStream::Stderr => &mut self.stderr,
        };
        kept.total += bytes.len() as u64;
        let room = self.most.saturating_sub(kept.bytes.len());
        kept.bytes
            .extend_from_slice(bytes.get(..room.min(bytes.len())).unwrap_or_default());
    }

    pub(crate) fn into_records(self) -> (CapturedOutput, CapturedOutput) {
        (self.stdout.into_record(), self.stderr.into_record())
    }
}

impl Kept {
    fn into_record(self) -> CapturedOutput {
        let truncated = self.total > self.bytes.len() as u64;
        let (data, encoding) = match whole_characters(self.bytes, truncated) {
            Ok(text) => (text, "utf-8"),
            Err(bytes) => (text::encode_base64(&bytes), "base64"),
        };
        CapturedOutput {
            data,
            encoding: encoding.to_owned(),
            bytes: self.total,
            truncated,
        }
    }
}

/// The bytes as text; a character that was cut in two by the truncation is left out.
fn whole_characters(mut bytes: Vec<u8>, truncated: bool) -> Result<String, Vec<u8>> {
    if truncated && let Err(error) = std::str::from_utf8(&bytes) {
        let cut_at_the_end = error.error_len().is_none();
        if cut_at_the_end {
            bytes.truncate(error.valid_up_to());
        }
    }
    String::from_utf8(bytes).map_err(std::string::FromUtf8Error::into_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stdout_of(most: usize, writes: &[&[u8]]) -> CapturedOutput {
        let mut capture = Capture::new(most);
        for bytes in writes {
            capture.take(OutputStream::Stdout, bytes);
        }
        capture.into_records().0
    }

    #[test]
    fn truncation_is_marked_and_does_not_split_a_character() {
        let kept = stdout_of(4, &["aé".as_bytes(), "é!".as_bytes()]);
        assert_eq!((kept.data.as_str(), kept.truncated, kept.bytes), ("aé", true, 6));
    }

    #[test]
    fn bytes_that_are_no_text_are_base64() {
        let kept = stdout_of(10, &[b"\xff\xfe"]);
        assert_eq!((kept.data.as_str(), kept.encoding.as_str()), ("//4=", "base64"));
    }

    #[test]
    fn without_room_only_the_count_is_kept() {
        let kept = stdout_of(0, &[b"abc"]);
        assert_eq!((kept.data.as_str(), kept.truncated, kept.bytes), ("", true, 3));
    }
}
