//! Bodies of real clients, every refusal, and whatever else may come.

use proptest::prelude::*;
use proptest::sample::Index;

use super::{BodyReader, ChunkedReader, HttpBodyError as Error, MAX_TRAILERS, Taken};
use crate::http_head::Body;

/// How many bytes belong to the body and whether it ends, or why it is refused, when `parts` come one after the other.
fn read_in_parts(bytes: &[u8], mut parts: impl Iterator<Item = usize>) -> Result<Taken, Error> {
    let mut reader = ChunkedReader::default();
    let mut at = 0;
    loop {
        let part = parts.next().unwrap_or(1).max(1).min(bytes.len() - at);
        let taken = reader.read(&bytes[at..at + part])?;
        at += taken.length;
        if taken.ended || at == bytes.len() {
            return Ok(Taken { length: at, ..taken });
        }
        assert_eq!(taken.length, part, "all is taken until the end");
    }
}

fn read(bytes: &[u8]) -> Result<Taken, Error> {
    let at_once = ChunkedReader::default().read(bytes);
    assert_eq!(
        read_in_parts(bytes, std::iter::empty()),
        at_once,
        "{:?}",
        String::from_utf8_lossy(bytes)
    );
    at_once
}

fn ended(length: usize) -> Result<Taken, Error> {
    Ok(Taken { length, ended: true })
}

#[test]
fn chunks_end_with_the_empty_line_behind_the_last() {
    for body in [
        "0\r\n\r\n",
        "5\r\nhello\r\n0\r\n\r\n",
        "5\r\nhello\r\nA\r\n\r\n0\r\n\r\n5\r\n\r\n000\r\n\r\n",
        "000000000000000a\r\n0123456789\r\n0000000000000000\r\n\r\n",
        "0\r\nX-Checksum: abc\r\nExpires:\r\n\r\n",
    ] {
        assert_eq!(read(body.as_bytes()), ended(body.len()), "{body:?}");
        let more = [body, "GET / HTTP/1.1\r\n"].concat();
        assert_eq!(read(more.as_bytes()), ended(body.len()), "{body:?}");
        let unfinished = &body.as_bytes()[..body.len() - 1];
        let all = Taken {
            length: unfinished.len(),
            ended: false,
        };
        assert_eq!(read(unfinished), Ok(all), "{body:?}");
    }
}

#[test]
fn content_of_any_bytes_is_passed_over() {
    let content: Vec<u8> = (0..=255).collect();
    let body = [b"100\r\n", &content[..], b"\r\n0\r\n\r\n"].concat();
    assert_eq!(read(&body), ended(body.len()));
}

#[test]
fn a_size_below_two_to_the_63_is_counted() {
    let taken = read(b"7fffffffffffffff\r\nabc");
    assert_eq!(
        taken,
        Ok(Taken {
            length: 21,
            ended: false
        })
    );
}

#[test]
fn n9_chunks_that_can_be_read_in_two_ways_are_refused() {
    for (body, error) in [
        ("\r\n", Error::Size),
        ("x\r\n", Error::Size),
        ("-1\r\n", Error::Size),
        ("+1\r\n", Error::Size),
        (" 1\r\n", Error::Size),
        ("\n1\r\n", Error::Size),
        ("0x5\r\n", Error::Extension),
        ("5 \r\n", Error::Extension),
        ("5\t\r\n", Error::Extension),
        ("5;a=b\r\n", Error::Extension),
        ("5;\r\n", Error::Extension),
        ("5;\n", Error::Extension),
        ("5g\r\n", Error::Extension),
        ("5_0\r\n", Error::Extension),
        ("5\0\r\n", Error::Extension),
        ("5\n", Error::LineEnd),
        ("5\r\r\n", Error::LineEnd),
        ("5\rhello", Error::LineEnd),
        ("5\r\nhello0\r\n", Error::LineEnd),
        ("5\r\nhello\n", Error::LineEnd),
        ("5\r\nhello\r0", Error::LineEnd),
        ("5\r\nhello\r\n\r\n", Error::Size),
        ("0\n\r\n", Error::LineEnd),
        ("0\r\n\n", Error::LineEnd),
        ("0\r\n\rG", Error::LineEnd),
        ("0\r\nX: a\nY", Error::LineEnd),
        ("0\r\nX: a\rb", Error::LineEnd),
        ("8000000000000000\r\n", Error::TooLarge),
        ("ffffffffffffffff\r\n", Error::TooLarge),
        ("10000000000000005\r\n", Error::TooLarge),
        ("00000000000000005\r\n", Error::TooLarge),
        ("0\r\nGET / HTTP/1.1\r\n", Error::Trailer),
        ("0\r\nX : a\r\n", Error::Trailer),
        ("0\r\n X: a\r\n", Error::Trailer),
        ("0\r\n: a\r\n", Error::Trailer),
        ("0\r\nX: \0", Error::Trailer),
        ("0\r\nX: \x7f", Error::Trailer),
        ("0\r\nContent-Length: 5\r\n", Error::ForbiddenTrailer),
        ("0\r\ncontent_length: 5\r\n", Error::ForbiddenTrailer),
        ("0\r\nTransfer-Encoding: chunked\r\n", Error::ForbiddenTrailer),
        ("0\r\nhOst: evil.example\r\n", Error::ForbiddenTrailer),
        ("0\r\nConnection: close\r\n", Error::ForbiddenTrailer),
        ("0\r\nX: a\r\nAuthorization: b\r\n", Error::ForbiddenTrailer),
    ] {
        assert_eq!(read(body.as_bytes()), Err(error), "{body:?}");
    }
}

#[test]
fn n12_trailers_are_bounded() {
    let one = "X: ".len() + "\r\n\r\n".len();
    let longest = format!("0\r\nX: {}\r\n\r\n", "a".repeat(MAX_TRAILERS - one));
    assert_eq!(read(longest.as_bytes()), ended(longest.len()));
    let longer = format!("0\r\nX: {}\r\n\r\n", "a".repeat(MAX_TRAILERS - one + 1));
    assert_eq!(read(longer.as_bytes()), Err(Error::LongTrailers));
    let many = format!("0\r\n{}\r\n", "X: a\r\n".repeat(MAX_TRAILERS / 6 + 1));
    assert_eq!(read(many.as_bytes()), Err(Error::LongTrailers));
}

#[test]
fn an_end_and_a_refusal_are_repeated() {
    let mut reader = ChunkedReader::default();
    assert_eq!(reader.read(b"0\r\n\r\nGET"), ended(5));
    assert_eq!(reader.read(b"GET"), ended(0));
    let mut reader = ChunkedReader::default();
    assert_eq!(reader.read(b"x"), Err(Error::Size));
    assert_eq!(reader.read(b"0\r\n\r\n"), Err(Error::Size));
}

#[test]
fn bodies_of_a_length_end_with_it() {
    assert_eq!(BodyReader::new(Body::None).read(b"GET"), ended(0));
    assert_eq!(BodyReader::new(Body::Length(0)).read(b""), ended(0));
    let mut reader = BodyReader::new(Body::Length(5));
    assert_eq!(
        reader.read(b""),
        Ok(Taken {
            length: 0,
            ended: false
        })
    );
    assert_eq!(
        reader.read(b"hel"),
        Ok(Taken {
            length: 3,
            ended: false
        })
    );
    assert_eq!(reader.read(b"loGET"), ended(2));
    assert_eq!(reader.read(b"GET"), ended(0));
    let mut endless = BodyReader::new(Body::Length(u64::MAX));
    assert_eq!(
        endless.read(b"hello"),
        Ok(Taken {
            length: 5,
            ended: false
        })
    );
    assert_eq!(BodyReader::new(Body::Chunked).read(b"0\r\n\r\n"), ended(5));
}

#[test]
fn the_reader_does_not_print_what_it_holds() {
    let mut reader = ChunkedReader::default();
    reader.read(b"0\r\nX: secret").unwrap();
    assert!(!format!("{reader:?} {:?}", BodyReader::Chunked(ChunkedReader::default())).contains("line"));
}

fn body() -> impl Strategy<Value = Vec<u8>> {
    let content = prop::collection::vec(any::<u8>(), 1..40);
    let trailers = prop::collection::vec("X-[a-z]{1,8}: [ -~]{0,20}\r\n", 0..3);
    (
        prop::collection::vec((content, 0..3_usize, any::<bool>()), 0..6),
        trailers,
    )
        .prop_map(|(chunks, trailers)| {
            let mut body = Vec::new();
            for (content, zeros, upper) in chunks {
                let size = format!("{}{:x}\r\n", "0".repeat(zeros), content.len());
                body.extend(if upper { size.to_uppercase() } else { size }.into_bytes());
                body.extend(content);
                body.extend(b"\r\n");
            }
            body.extend(b"0\r\n");
            trailers.iter().for_each(|trailer| body.extend(trailer.bytes()));
            body.extend(b"\r\n");
            body
        })
}

proptest! {
    #[test]
    fn a_body_that_was_built_ends_where_it_ends(
        body in body(),
        next in prop::collection::vec(any::<u8>(), 0..20),
        parts in prop::collection::vec(1..30_usize, 0..30),
    ) {
        let both = [&body[..], &next].concat();
        prop_assert_eq!(read(&both), ended(body.len()));
        prop_assert_eq!(read_in_parts(&both, parts.into_iter()), ended(body.len()));
    }

    #[test]
    fn spoilt_bodies_have_one_verdict_however_they_are_cut(
        mut body in body(),
        changes in prop::collection::vec((any::<Index>(), any::<u8>(), 0..3_u8), 0..4),
        parts in prop::collection::vec(1..30_usize, 0..30),
    ) {
        for (place, byte, how) in changes {
            let at = place.index(body.len());
            match how {
                0 => body[at] = byte,
                1 => body.insert(at, byte),
                _ => drop(body.remove(at)),
            }
        }
        let at_once = read(&body);
        prop_assert_eq!(read_in_parts(&body, parts.into_iter()), at_once);
        if let Ok(taken) = at_once {
            prop_assert!(taken.length <= body.len());
            prop_assert!(!taken.ended || body[..taken.length].ends_with(b"\r\n"));
        }
    }

    #[test]
    fn any_bytes_have_one_verdict_however_they_are_cut(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        let _ = read(&bytes);
        let _ = read(&[b"0\r\n", &bytes[..]].concat());
    }
}
