//! Whatever comes, however it is cut: the same verdict, and never a fall.

use proptest::prelude::*;

use super::build::{Hello, in_records, server_name};
use super::{MAX_RECORDS, Progress, read, read_in_parts};

fn name() -> impl Strategy<Value = String> {
    "[a-zA-Z0-9_-]{1,20}(\\.[a-zA-Z0-9_-]{1,20}){0,4}"
}

fn hello() -> impl Strategy<Value = (Hello, Option<String>)> {
    let others = prop::collection::btree_map(100_u16..60_000, prop::collection::vec(any::<u8>(), 0..40), 0..10);
    (
        prop::option::of(name()),
        others,
        0..=10_usize,
        prop::collection::vec(any::<u8>(), 0..=32),
    )
        .prop_map(|(name, others, place, session_id)| {
            let mut hello = Hello {
                session_id,
                ..Hello::default()
            };
            let place = place.min(others.len());
            for (index, (kind, content)) in others.iter().enumerate() {
                if index == place
                    && let Some(name) = &name
                {
                    hello = hello.with(0, &server_name(name.as_bytes()));
                }
                hello = hello.with(*kind, content);
            }
            if place == others.len()
                && let Some(name) = &name
            {
                hello = hello.with(0, &server_name(name.as_bytes()));
            }
            (hello, name)
        })
}

/// A good hello in records, with some bytes changed, some cut out and some put in.
fn spoilt() -> impl Strategy<Value = Vec<u8>> {
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..4_u8), 0..4);
    (hello(), 20..400_usize, changes).prop_map(|((hello, _), size, changes)| {
        let mut bytes = in_records(&hello.message(), size);
        for (place, byte, how) in changes {
            let at = place.index(bytes.len());
            match how {
                0 | 1 => bytes[at] = byte,
                2 => bytes.insert(at, byte),
                _ => drop(bytes.remove(at)),
            }
        }
        bytes
    })
}

proptest! {
    #[test]
    fn a_hello_that_was_built_is_read((hello, name) in hello(), size in 5..500_usize) {
        let bytes = in_records(&hello.message(), size);
        let Progress::Hello(read) = read(&bytes) else { panic!("{:?}", read(&bytes)) };
        prop_assert_eq!(read.server_name, name.map(|name| name.to_ascii_lowercase()));
        prop_assert_eq!(read.length, bytes.len());
    }

    #[test]
    fn no_beginning_of_a_hello_has_a_verdict((hello, _) in hello(), size in 5..500_usize) {
        let bytes = in_records(&hello.message(), size);
        let (verdict, there) = read_in_parts(&bytes, std::iter::empty());
        prop_assert!(matches!(verdict, Progress::Hello(_)));
        prop_assert_eq!(there, bytes.len());
    }

    #[test]
    fn spoilt_hellos_have_one_verdict_however_they_are_cut(
        bytes in spoilt(),
        parts in prop::collection::vec(1..50_usize, 0..20),
    ) {
        let at_once = read(&bytes);
        prop_assert_eq!(&read_in_parts(&bytes, std::iter::empty()).0, &at_once);
        prop_assert_eq!(&read_in_parts(&bytes, parts.into_iter()).0, &at_once);
        if let Progress::Hello(read) = at_once {
            prop_assert!(read.length <= bytes.len());
        }
    }

    #[test]
    fn any_bytes_have_one_verdict_however_they_are_cut(
        tls in any::<bool>(),
        tail in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let bytes = if tls { [b"\x16\x03\x01\0\x64\x01\0\0\x60\x03\x03".as_slice(), &tail].concat() } else { tail };
        prop_assert_eq!(read_in_parts(&bytes, std::iter::empty()).0, read(&bytes));
    }
}

#[test]
fn every_byte_of_a_hello_may_have_any_value() {
    let bytes = Hello::named("example.com")
        .with(16, b"\0\x03\x02h2")
        .with(0xfe0d, b"\0\0\x01\0\x01\x07\0\x02kk\0\x03ppp")
        .record();
    assert!(bytes.len() > MAX_RECORDS);
    for at in 0..bytes.len() {
        for value in 0..=255 {
            let mut changed = bytes.clone();
            changed[at] = value;
            if let Progress::Hello(hello) = read(&changed) {
                assert_eq!(hello.length, changed.len());
            }
        }
    }
}
