//! The fields of a head: their lines, their names, and those that may come once only.

use std::ops::Range;

use super::{Field, HttpHeadError};

/// Fields that decide for whom a request is, how long it is, or what becomes of the connection.
pub(super) const DECIDING: [&str; 6] = [
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
    "upgrade",
    "expect",
];

/// A character of a token (RFC 9110, 5.6.2).
pub(super) fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

pub(crate) fn is_token(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|byte| is_token_byte(*byte))
}

/// The deciding field that `name` is, or is taken for by readers to which all punctuation is the same.
///
/// Environment variables of CGI have `_` for `-` (RFC 3875, 4.1.18), so `Content_Length` reaches a program as
/// `Content-Length` does.
pub(crate) fn imitated_field(name: &[u8]) -> Option<&'static str> {
    let plain = |byte: &u8| {
        if byte.is_ascii_alphanumeric() {
            byte.to_ascii_lowercase()
        } else {
            b'-'
        }
    };
    DECIDING
        .into_iter()
        .find(|field| field.len() == name.len() && name.iter().map(plain).eq(field.bytes()))
}

/// The fields of a head, of which those that decide are listed by what they are.
pub(super) struct Fields<'a> {
    head: &'a [u8],
    pub(super) all: Vec<Field>,
}

impl<'a> Fields<'a> {
    /// Cuts the lines between the first, which ends at `start`, and the empty one.
    pub(super) fn parse(head: &'a [u8], start: usize) -> Result<Self, HttpHeadError> {
        let mut all = Vec::new();
        let mut at = start;
        // Each line has its CR LF, and so has the empty one behind them.
        for line in head[start..head.len() - 2].split_inclusive(|byte| *byte == b'\n') {
            let field = parse_field(head, at..at + line.len())?;
            let name = &head[field.name.clone()];
            if let Some(imitated) = imitated_field(name)
                && !name.eq_ignore_ascii_case(imitated.as_bytes())
            {
                return Err(HttpHeadError::Imitated(imitated));
            }
            at += line.len();
            all.push(field);
        }
        Ok(Self { head, all })
    }

    /// The values of the fields of one deciding name, which have one space before them or none.
    pub(super) fn values(&self, name: &'static str) -> impl Iterator<Item = Result<&'a [u8], HttpHeadError>> {
        let head = self.head;
        let named = self
            .all
            .iter()
            .filter(move |field| head[field.name.clone()].eq_ignore_ascii_case(name.as_bytes()));
        named.map(move |field| {
            let before = &head[field.name.end + 1..field.value.start];
            let behind = &head[field.value.end..field.line.end];
            if (before.is_empty() || before == b" ") && behind == b"\r\n" {
                Ok(&head[field.value.clone()])
            } else {
                Err(HttpHeadError::Space(name))
            }
        })
    }

    /// The value of a field that may come once.
    pub(super) fn single(&self, name: &'static str) -> Result<Option<&'a [u8]>, HttpHeadError> {
        let mut values = self.values(name);
        let value = values.next().transpose()?;
        if values.next().is_some() {
            return Err(HttpHeadError::Duplicate(name));
        }
        Ok(value)
    }

    /// Whether another reader cut the same names and values.
    pub(super) fn agree_with(&self, others: &[httparse::Header<'_>]) -> bool {
        self.all.len() == others.len()
            && self.all.iter().zip(others).all(|(field, other)| {
                self.head[field.name.clone()] == *other.name.as_bytes()
                    && self.head[field.value.clone()] == *other.value
            })
    }
}

fn parse_field(head: &[u8], line: Range<usize>) -> Result<Field, HttpHeadError> {
    let text = &head[line.start..line.end - 2];
    let colon = text
        .iter()
        .position(|byte| *byte == b':')
        .ok_or(HttpHeadError::FieldName)?;
    if !is_token(&text[..colon]) {
        return Err(HttpHeadError::FieldName);
    }
    let is_space = |byte: &u8| *byte == b' ' || *byte == b'\t';
    let value = &text[colon + 1..];
    let before = value.iter().take_while(|byte| is_space(byte)).count();
    let behind = value[before..].iter().rev().take_while(|byte| is_space(byte)).count();
    Ok(Field {
        name: line.start..line.start + colon,
        value: line.start + colon + 1 + before..line.end - 2 - behind,
        line,
    })
}
