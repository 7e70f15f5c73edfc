//! Forms with files (RFC 7578), read as a stream: a file is never at hand as a whole.

use bytes::{Buf as _, Bytes, BytesMut};
use memchr::memmem::Finder;

use crate::http::source::{SourceError, UploadSource};

/// Bytes that the fields before a part may take.
const MAX_HEAD_BYTES: usize = 16 * 1024;
/// Characters that a boundary may have (RFC 2046, section 5.1.1), and then some.
const MAX_BOUNDARY_LENGTH: usize = 200;

/// Names and values of parameters.
type FormParameters = Vec<(Vec<u8>, Vec<u8>)>;

/// Why a form cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FormError {
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error("error reading form: {0}")]
    Malformed(&'static str),
}

/// What is said before a part.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FormPart {
    /// The field of the form.
    pub(crate) name: Vec<u8>,
    /// What the client calls the file; directories and all.
    pub(crate) file_name: Option<Vec<u8>>,
}

/// Where the reader is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FormPosition {
    /// Inside a part, or before the first one.
    Data,
    /// At a boundary.
    Boundary,
    /// Behind the last one.
    End,
}

/// A form that is being read.
#[derive(Debug)]
pub(crate) struct UploadForm<'s, S> {
    source: &'s mut S,
    buffer: BytesMut,
    delimiter: Finder<'static>,
    at: FormPosition,
}

/// The boundary that a content type names.
pub(crate) fn boundary(content_type: &[u8]) -> Option<Vec<u8>> {
    let (kind, parameters) = split_parameters(content_type);
    if !kind.to_ascii_lowercase().starts_with(b"multipart/") {
        return None;
    }
    let boundary = parameters.into_iter().find(|(name, _)| name == b"boundary")?.1;
    (1..=MAX_BOUNDARY_LENGTH).contains(&boundary.len()).then_some(boundary)
}

impl<'s, S: UploadSource> UploadForm<'s, S> {
    pub(crate) fn new(source: &'s mut S, boundary: &[u8]) -> Self {
        let delimiter = [b"\r\n--", boundary].concat();
        Self {
            source,
            // The first boundary has nothing before it.
            buffer: BytesMut::from(&b"\r\n"[..]),
            delimiter: Finder::new(&delimiter).into_owned(),
            at: FormPosition::Data,
        }
    }

    /// The next part; what is left of the one before is passed over. `None` behind the last one.
    pub(crate) async fn next_part(&mut self) -> Result<Option<FormPart>, FormError> {
        while self.data().await?.is_some() {}
        if self.at == FormPosition::End {
            return Ok(None);
        }
        self.buffer.advance(self.delimiter.needle().len());
        loop {
            match &*self.buffer {
                [b'-', b'-', ..] => {
                    self.at = FormPosition::End;
                    return Ok(None);
                }
                [b'\r', b'\n', ..] => break,
                // Blanks may stand between a boundary and the end of its line.
                [b' ' | b'\t', ..] => self.buffer.advance(1),
                [] | [b'-' | b'\r'] => self.fill().await?,
                _ => return Err(FormError::Malformed("something follows a boundary")),
            }
        }
        let head = loop {
            if let Some(end) = memchr::memmem::find(&self.buffer, b"\r\n\r\n") {
                let head = self.buffer.split_to(end);
                self.buffer.advance(4);
                break head;
            }
            if self.buffer.len() > MAX_HEAD_BYTES {
                return Err(FormError::Malformed("the head of a part is too large"));
            }
            self.fill().await?;
        };
        self.at = FormPosition::Data;
        Ok(Some(part(&head)))
    }

    /// The next bytes of the part; `None` at its end.
    pub(crate) async fn data(&mut self) -> Result<Option<Bytes>, FormError> {
        if self.at != FormPosition::Data {
            return Ok(None);
        }
        loop {
            if let Some(end) = self.delimiter.find(&self.buffer) {
                if end == 0 {
                    self.at = FormPosition::Boundary;
                    return Ok(None);
                }
                return Ok(Some(self.buffer.split_to(end).freeze()));
            }
            // What may be the beginning of a boundary stays.
            let sure = self.buffer.len().saturating_sub(self.delimiter.needle().len() - 1);
            if sure > 0 {
                return Ok(Some(self.buffer.split_to(sure).freeze()));
            }
            self.fill().await?;
        }
    }

    async fn fill(&mut self) -> Result<(), FormError> {
        match self.source.piece().await? {
            Some(piece) => {
                self.buffer.extend_from_slice(&piece);
                Ok(())
            }
            None => Err(FormError::Malformed("it ends before its last boundary")),
        }
    }
}

/// Reads the fields before a part; the first line is the end of the boundary's.
fn part(head: &[u8]) -> FormPart {
    let mut part = FormPart::default();
    for line in head.split(|byte| *byte == b'\n') {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else {
            continue;
        };
        let (name, value) = (line[..colon].trim_ascii(), line[colon + 1..].trim_ascii());
        if !name.eq_ignore_ascii_case(b"content-disposition") {
            continue;
        }
        for (name, value) in split_parameters(value).1 {
            match name.as_slice() {
                b"name" => part.name = value,
                // Its extended form is the better one and may come first.
                b"filename" if part.file_name.is_none() => part.file_name = Some(value),
                b"filename*" => part.file_name = extended(&value).or(part.file_name),
                _ => {}
            }
        }
    }
    part
}

/// A value with its parameters: `form-data; name="file"; filename="a"`.
fn split_parameters(value: &[u8]) -> (&[u8], FormParameters) {
    let end = value.iter().position(|byte| *byte == b';').unwrap_or(value.len());
    let (first, mut rest) = value.split_at(end);
    let mut parameters = Vec::new();
    while let [b';', after @ ..] = rest {
        let Some(equals) = after.iter().position(|byte| *byte == b'=') else {
            break;
        };
        let name = after[..equals].trim_ascii().to_ascii_lowercase();
        let (value, left) = parameter_value(after[equals + 1..].trim_ascii_start());
        parameters.push((name, value));
        rest = left.trim_ascii_start();
    }
    (first.trim_ascii(), parameters)
}

/// A parameter's value, in quotes or not, and what follows it.
fn parameter_value(bytes: &[u8]) -> (Vec<u8>, &[u8]) {
    let [b'"', quoted @ ..] = bytes else {
        let end = bytes.iter().position(|byte| *byte == b';').unwrap_or(bytes.len());
        return (bytes[..end].trim_ascii().to_vec(), &bytes[end..]);
    };
    let mut value = Vec::new();
    let mut rest = quoted;
    loop {
        match rest {
            [] => return (value, rest),
            [b'"', after @ ..] => return (value, after),
            [b'\\', escaped @ (b'"' | b'\\'), after @ ..] => {
                value.push(*escaped);
                rest = after;
            }
            [byte, after @ ..] => {
                value.push(*byte);
                rest = after;
            }
        }
    }
}

/// A value such as `UTF-8''a%20b` (RFC 8187).
fn extended(value: &[u8]) -> Option<Vec<u8>> {
    let mut parts = value.splitn(3, |byte| *byte == b'\'');
    let (charset, _, text) = (parts.next()?, parts.next()?, parts.next()?);
    charset
        .eq_ignore_ascii_case(b"utf-8")
        .then(|| percent_encoding::percent_decode(text).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::source::PackedUpload;
    use super::super::source::tests::{block_on, in_pieces};
    use super::*;

    type Parts = Vec<(FormPart, Vec<u8>)>;

    fn read(bytes: &[u8], boundary: &[u8], size: usize) -> Result<Parts, FormError> {
        block_on(async {
            let mut source = PackedUpload::plain(in_pieces(bytes, size));
            let mut form = UploadForm::new(&mut source, boundary);
            let mut parts = Vec::new();
            while let Some(part) = form.next_part().await? {
                let mut whole = Vec::new();
                while let Some(piece) = form.data().await? {
                    whole.extend_from_slice(&piece);
                }
                parts.push((part, whole));
            }
            Ok(parts)
        })
    }

    fn written(files: &[(&str, &[u8])], boundary: &str) -> Vec<u8> {
        let mut form = Vec::new();
        for (name, contents) in files {
            form.extend_from_slice(
                format!(
                    "--{boundary}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\
                     Content-Type: application/octet-stream\r\n\r\n"
                )
                .as_bytes(),
            );
            form.extend_from_slice(contents);
            form.extend_from_slice(b"\r\n");
        }
        form.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
        form
    }

    #[test]
    fn files_are_read_with_their_whole_names() {
        let contents: &[(&str, &[u8])] = &[
            ("/home/user/a.txt", b"hello"),
            ("dir/b \u{e9}\u{4e2d}.bin", b"\r\n--B\r\n--\r\n--BOUND"),
            ("empty", b""),
        ];
        let form = written(contents, "BOUNDARY");
        for size in 1..40 {
            let parts = read(&form, b"BOUNDARY", size).unwrap();
            let found: Vec<_> = parts
                .iter()
                .map(|(part, bytes)| (part.file_name.as_deref().unwrap(), bytes.as_slice()))
                .collect();
            let expected: Vec<_> = contents.iter().map(|(name, bytes)| (name.as_bytes(), *bytes)).collect();
            assert_eq!(found, expected, "in pieces of {size}");
            assert!(parts.iter().all(|(part, _)| part.name == b"file"));
        }
    }

    #[test]
    fn names_may_be_written_in_several_ways() {
        for (field, expected) in [
            (r#"form-data; name=file; filename=a.txt"#, &b"a.txt"[..]),
            (r#"form-data; name="file"; filename="a \"b\" \\ c""#, br#"a "b" \ c"#),
            (
                r#"form-data; filename*=UTF-8''%C3%A9%20x; filename="e"; name=file"#,
                "é x".as_bytes(),
            ),
            (r#"form-data; name="file"; filename="a;b=c""#, b"a;b=c"),
            (r#"FORM-DATA; NAME="file"; FileName="C:\dir\x""#, br"C:\dir\x"),
        ] {
            let part = part(format!("\r\nContent-DISPOSITION: {field}\r\nX: y").as_bytes());
            assert_eq!(part.name, b"file", "{field}");
            assert_eq!(part.file_name.as_deref(), Some(expected), "{field}");
        }
    }

    #[test]
    fn a_boundary_is_found_in_the_content_type() {
        for (content, expected) in [
            ("multipart/form-data; boundary=abc", Some("abc")),
            ("Multipart/Form-Data; charset=x; Boundary=\"a b\"", Some("a b")),
            ("multipart/form-data", None),
            ("multipart/form-data; boundary=", None),
            ("text/plain; boundary=abc", None),
        ] {
            assert_eq!(
                boundary(content.as_bytes()),
                expected.map(|text| text.as_bytes().to_vec()),
                "{content}"
            );
        }
    }

    #[test]
    fn a_form_that_is_cut_short_is_an_error() {
        let form = written(&[("a", b"hello")], "B");
        for length in 0..form.len() - 2 {
            let result = read(&form[..length], b"B", 3);
            assert!(matches!(result, Err(FormError::Malformed(_))), "{length}: {result:?}");
        }
        let endless = [&b"--B\r\nX: "[..], &[b'a'; MAX_HEAD_BYTES + 4096]].concat();
        let result = read(&endless, b"B", 1000);
        assert_eq!(result, Err(FormError::Malformed("the head of a part is too large")));
    }

    proptest! {
        #[test]
        fn nothing_that_is_sent_breaks_the_reader(bytes: Vec<u8>, size in 1_usize..50) {
            let _ = read(&bytes, b"B", size);
            let _ = read(&[b"--B\r\n", bytes.as_slice()].concat(), b"B", size);
            let _ = part(&bytes);
            let _ = boundary(&bytes);
        }

        #[test]
        fn every_file_comes_out_as_it_went_in(bytes: Vec<u8>, size in 1_usize..50) {
            let form = written(&[("x", &bytes)], "an unlikely boundary");
            let parts = read(&form, b"an unlikely boundary", size).unwrap();
            prop_assert_eq!(&parts[0].1, &bytes);
        }
    }
}
