//! Takes values out of answers, so that a server cannot tell them to the sandbox.
//!
//! What is put in their place in a body has the same length: nothing that says how long a body is has to change. A
//! body is not held but for bytes at the end of what came, with which a value could begin. How many are held does not
//! depend on whether one does: code that has a host repeat what it is told would see it by how an answer is cut, and
//! find out a value byte by byte.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, HeaderMap, HeaderValue, SEC_WEBSOCKET_EXTENSIONS};
use http::request::Parts;
use memchr::memmem;
use offleash_core::network::secret::NamedSecret;

use super::{put, query};

/// How long a part of a value is, of characters that are nowhere escaped, that is taken out of answers by itself: no
/// word of a text, and most of a key. The ways to write the characters between are too many (`\u003d`, `&#61;`, `%3d`).
const LONG_RUN: usize = 16;

/// What is to be taken out of the answers to one request.
#[derive(Debug, Clone)]
pub(crate) struct Mask {
    needles: Arc<[Needle]>,
    parts_were_asked_for: bool,
}

/// Bytes that must not reach the sandbox, and what stands for them.
struct Needle {
    bytes: Vec<u8>,
    /// In headers.
    placeholder: Vec<u8>,
    /// In bodies: as long as `bytes`.
    cover: Vec<u8>,
}

impl std::fmt::Debug for Needle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("****")
    }
}

impl Needle {
    fn new(bytes: Vec<u8>, placeholder: &[u8]) -> Self {
        let padded = placeholder.iter().copied().chain(std::iter::repeat(b'*'));
        Self {
            cover: padded.take(bytes.len()).collect(),
            placeholder: placeholder.to_vec(),
            bytes,
        }
    }
}

/// Headers by which less than all of an answer is asked for, or the difference from another (RFC 9110, section 14; RFC
/// 3229), or characters of more than a byte.
const ASKS_FOR_LESS: [&str; 5] = ["range", "if-range", "request-range", "a-im", "accept-charset"];

/// Asks for an answer without encoding, and for a WebSocket without compression: values could not be found in another.
pub(super) fn ask_for_no_encoding(parts: &mut Parts) {
    parts.headers.remove(SEC_WEBSOCKET_EXTENSIONS);
    parts
        .headers
        .insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
}

/// Asks for all of an answer, without encoding: with a range that begins or ends within a value, a sandbox would get that
/// piece by piece. A server may answer with all of it whatever was asked for, and clients expect that (RFC 9110, 14.2).
pub(super) fn ask_for_all(parts: &mut Parts) {
    ask_for_no_encoding(parts);
    for name in ASKS_FOR_LESS {
        parts.headers.remove(name);
    }
}

/// How much is held is a multiple of this, less one: not how long a value is.
const HELD_STEP: usize = 64;

impl Mask {
    /// Finds the values of `secrets`, in the spellings in which they are sent and in which answers repeat them, and
    /// `encoded`, in which they are encoded.
    pub(super) fn new<'a>(secrets: impl Iterator<Item = &'a NamedSecret>, encoded: &[Vec<u8>]) -> Option<Self> {
        let mut needles = Vec::new();
        for secret in secrets {
            let placeholder = secret.placeholder.as_str().as_bytes();
            for spelling in spellings(secret.value.expose()) {
                needles.push(Needle::new(spelling, placeholder));
            }
            // A host to which it signs in may tell what it was told in an answer to any request.
            if let Some(credentials) = put::sign_in_credentials(secret) {
                needles.push(Needle::new(credentials.into_bytes(), b""));
            }
        }
        for credentials in encoded {
            needles.push(Needle::new(credentials.clone(), b""));
        }
        // Of two that begin alike, the longer one is found first.
        needles.sort_by_key(|needle| std::cmp::Reverse(needle.bytes.len()));
        (!needles.is_empty()).then(|| Self {
            needles: needles.into(),
            parts_were_asked_for: false,
        })
    }

    /// The same for the answer to a request that may ask for a part.
    pub(super) fn of_parts(self) -> Self {
        Self {
            parts_were_asked_for: true,
            ..self
        }
    }

    /// Whether the answer may be a part of one.
    pub(crate) fn parts_were_asked_for(&self) -> bool {
        self.parts_were_asked_for
    }

    /// Takes the values out of headers or trailers.
    pub(crate) fn headers(&self, headers: &mut HeaderMap) {
        let told: Vec<_> = headers
            .keys()
            .filter(|name| self.is_in_name(name.as_str()))
            .cloned()
            .collect();
        for name in told {
            headers.remove(name);
        }
        for value in headers.values_mut() {
            if let Some(masked) = self.masked(value.as_bytes()) {
                // Placeholders have nothing that a header cannot hold.
                *value = HeaderValue::from_bytes(&masked).unwrap_or(HeaderValue::from_static("****"));
            }
        }
    }

    fn is_in_name(&self, name: &str) -> bool {
        self.needles.iter().any(|needle| {
            name.len() >= needle.bytes.len()
                && memmem::find(name.as_bytes(), &needle.bytes.to_ascii_lowercase()).is_some()
        })
    }

    fn masked(&self, text: &[u8]) -> Option<Vec<u8>> {
        let mut masked: Option<Vec<u8>> = None;
        for needle in self.needles.iter() {
            let text = masked.as_deref().unwrap_or(text);
            let Some(first) = memmem::find(text, &needle.bytes) else {
                continue;
            };
            let mut without = text.get(..first).unwrap_or_default().to_vec();
            let mut from = first;
            for at in memmem::find_iter(text, &needle.bytes) {
                without.extend_from_slice(text.get(from..at).unwrap_or_default());
                without.extend_from_slice(&needle.placeholder);
                from = at + needle.bytes.len();
            }
            without.extend_from_slice(text.get(from..).unwrap_or_default());
            masked = Some(without);
        }
        masked
    }

    /// Takes the values out of a body that comes in pieces.
    pub(crate) fn body(&self) -> Masker {
        let longest = self.needles.iter().map(|needle| needle.bytes.len()).max();
        Masker {
            mask: self.clone(),
            held: Vec::new(),
            keeps: longest.unwrap_or(0).next_multiple_of(HELD_STEP).saturating_sub(1),
        }
    }
}

/// How a value may be written: as it is, in a URL, and in JSON.
fn spellings(value: &[u8]) -> Vec<Vec<u8>> {
    let mut spellings = vec![value.to_vec()];
    let mut add = |spelling: Vec<u8>| {
        if !spellings.contains(&spelling) {
            spellings.push(spelling);
        }
    };
    // Whatever else is escaped, and however, these stand as they are.
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~".contains(byte);
    for run in value.split(|byte| !is_plain(byte)).filter(|run| run.len() >= LONG_RUN) {
        add(run.to_vec());
    }
    let in_url = query::encoded(value);
    add(in_url.replace("%20", "+").into_bytes());
    add(in_url.into_bytes());
    for with_slash in [false, true] {
        let mut in_json = Vec::with_capacity(value.len());
        for byte in value {
            if matches!(byte, b'"' | b'\\') || (with_slash && *byte == b'/') {
                in_json.push(b'\\');
            }
            in_json.push(*byte);
        }
        add(in_json);
    }
    spellings
}

/// Takes values out of a stream of bytes.
#[derive(Debug)]
pub(crate) struct Masker {
    mask: Mask,
    /// The end of what came, with which a value may begin.
    held: Vec<u8>,
    /// How long it is, if so much came: no shorter than all but the last byte of the longest value.
    keeps: usize,
}

impl Masker {
    /// What may go on of what was held and of `bytes`, which came next: all of it at the end of a line, which no value
    /// goes beyond, so that who streams lines is not kept waiting.
    pub(crate) fn push(&mut self, bytes: Bytes) -> Bytes {
        let keep = |all: &[u8]| match all.last() {
            Some(b'\n') => 0,
            _ => self.keeps.min(all.len()),
        };
        if self.held.is_empty() && !self.is_in(&bytes) {
            let keep = keep(&bytes);
            let mut going = bytes;
            self.held = going.split_off(going.len() - keep).to_vec();
            return going;
        }
        let mut all = self.held.clone();
        all.extend_from_slice(&bytes);
        let going = all.len() - keep(&all);
        // What may become a longer one is not covered as a shorter one, behind which the rest would go on.
        self.cover(&mut all, going);
        self.held = all.split_off(going);
        all.into()
    }

    /// What may go on when nothing has come for long: all but the beginning of a value.
    pub(crate) fn pause(&mut self) -> Bytes {
        let mut all = std::mem::take(&mut self.held);
        let going = all.len() - self.beginning_at_end(&all);
        self.cover(&mut all, going);
        self.held = all.split_off(going);
        all.into()
    }

    /// Whether nothing is held.
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// What was held, when nothing follows.
    pub(crate) fn finish(&mut self) -> Bytes {
        let mut held = std::mem::take(&mut self.held);
        let all = held.len();
        self.cover(&mut held, all);
        held.into()
    }

    fn is_in(&self, bytes: &[u8]) -> bool {
        self.mask
            .needles
            .iter()
            .any(|needle| memmem::find(bytes, &needle.bytes).is_some())
    }

    /// Covers what begins before `end`.
    fn cover(&self, bytes: &mut [u8], end: usize) {
        for needle in self.mask.needles.iter() {
            let mut from = 0;
            while let Some(at) = bytes.get(from..).and_then(|rest| memmem::find(rest, &needle.bytes)) {
                let start = from + at;
                if start >= end {
                    break;
                }
                from = start + needle.bytes.len();
                if let Some(found) = bytes.get_mut(start..from) {
                    found.copy_from_slice(&needle.cover);
                }
            }
        }
    }

    /// How many bytes at the end are the beginning of a value.
    fn beginning_at_end(&self, bytes: &[u8]) -> usize {
        let of_needle = |needle: &Needle| {
            let longest = bytes.len().min(needle.bytes.len() - 1);
            let end = bytes.get(bytes.len() - longest..).unwrap_or_default();
            let first = needle.bytes.first().copied().unwrap_or_default();
            memchr::memchr_iter(first, end)
                .find(|at| end.get(*at..).is_some_and(|tail| needle.bytes.starts_with(tail)))
                .map_or(0, |at| end.len() - at)
        };
        self.mask.needles.iter().map(of_needle).max().unwrap_or(0)
    }
}
