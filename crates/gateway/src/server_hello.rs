//! Whether a TLS server asks its client for a second greeting.
//!
//! A HelloRetryRequest (RFC 8446, 4.1.4) is a ServerHello with a certain random value. The client answers with another
//! ClientHello, in which it could name another server. Pure: bytes in, verdict out.

use crate::client_hello::{ClientHello, ClientHelloError, ClientHelloReader, Progress};

/// What a server's first bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerStart {
    /// The beginning of either.
    NeedMore,
    /// It asks for a second greeting.
    Retry,
    /// Anything else: no second greeting follows.
    Other,
}

/// What a client answers to a HelloRetryRequest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecondFlight {
    /// The beginning of it.
    NeedMore,
    /// So many bytes come before the greeting and are no part of it: a change of cipher spec, or data that was sent too
    /// early, which the server skips (RFC 8446, 4.2.10 and D.4).
    Skip(usize),
    /// The greeting.
    Hello(ClientHello),
    /// An alert: it gives up.
    GivesUp,
    /// None of these.
    Invalid(Option<ClientHelloError>),
}

const CHANGE_CIPHER_SPEC: u8 = 20;
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;
const RECORD_HEADER: usize = 5;
/// The longest record with encrypted content (RFC 8446, 5.2).
const MAX_ENCRYPTED: usize = (1 << 14) + 256;
const SERVER_HELLO: u8 = 2;

/// SHA-256 of "HelloRetryRequest".
const RETRY: [u8; 32] = [
    0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91, 0xc2, 0xa2, 0x11,
    0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
];

/// Judges everything that a server sent so far. There is a verdict at 38 bytes of its first message, or at the first
/// byte that is not as it must be; until then it has sent no more than 228 bytes.
pub fn server_start(received: &[u8]) -> ServerStart {
    let mut message = Vec::with_capacity(38);
    let mut rest = received;
    while message.len() < 38 {
        if rest.first().is_some_and(|kind| *kind != HANDSHAKE) || rest.get(1).is_some_and(|major| *major != 3) {
            return ServerStart::Other;
        }
        let Some((&[_, _, _, high, low], behind)) = rest.split_first_chunk::<RECORD_HEADER>() else {
            break;
        };
        let length = usize::from(u16::from_be_bytes([high, low]));
        if length == 0 {
            return ServerStart::Other;
        }
        let part = behind.get(..length).unwrap_or(behind);
        message.extend_from_slice(part.get(..38).unwrap_or(part));
        rest = behind.get(length..).unwrap_or_default();
    }
    // Type, length, version, random.
    let random = message.get(6..).unwrap_or_default();
    let random = random.get(..RETRY.len()).unwrap_or(random);
    match message.first() {
        Some(&kind) if kind != SERVER_HELLO => ServerStart::Other,
        _ if !RETRY.starts_with(random) => ServerStart::Other,
        _ if random.len() == RETRY.len() => ServerStart::Retry,
        _ => ServerStart::NeedMore,
    }
}

/// Judges what a client sent behind its first greeting, of which what was to be skipped is gone. `reader` is one that
/// has read nothing, or only the beginning of the same.
pub fn second_flight(received: &[u8], reader: &mut ClientHelloReader) -> SecondFlight {
    let Some(&kind) = received.first() else {
        return SecondFlight::NeedMore;
    };
    match kind {
        ALERT => SecondFlight::GivesUp,
        HANDSHAKE => match reader.read(received) {
            Progress::NeedMore => SecondFlight::NeedMore,
            Progress::Hello(hello) => SecondFlight::Hello(hello),
            Progress::NotTls => SecondFlight::Invalid(None),
            Progress::Invalid(error) => SecondFlight::Invalid(Some(error)),
        },
        CHANGE_CIPHER_SPEC | APPLICATION_DATA => {
            let Some(&[_, _, _, high, low]) = received.first_chunk::<RECORD_HEADER>() else {
                return SecondFlight::NeedMore;
            };
            let length = usize::from(u16::from_be_bytes([high, low]));
            if length > MAX_ENCRYPTED {
                SecondFlight::Invalid(None)
            } else if received.len() < RECORD_HEADER + length {
                SecondFlight::NeedMore
            } else {
                SecondFlight::Skip(RECORD_HEADER + length)
            }
        }
        _ => SecondFlight::Invalid(None),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record(kind: u8, content: &[u8]) -> Vec<u8> {
        let length = u16::try_from(content.len()).unwrap().to_be_bytes();
        [&[kind, 3, 3][..], &length, content].concat()
    }

    fn hello(random: [u8; 32]) -> Vec<u8> {
        [&[2, 0, 0, 88, 3, 3][..], &random, &[0; 54]].concat()
    }

    #[test]
    fn a_wish_for_a_second_greeting_is_told_from_the_answer_to_the_first() {
        let mut nearly = RETRY;
        nearly[31] ^= 1;
        for (bytes, verdict) in [
            (record(HANDSHAKE, &hello(RETRY)), ServerStart::Retry),
            (record(HANDSHAKE, &hello(nearly)), ServerStart::Other),
            (record(HANDSHAKE, &hello([7; 32])), ServerStart::Other),
            (record(ALERT, &[2, 40]), ServerStart::Other),
            (b"HTTP/1.1 400 Bad Request\r\n".to_vec(), ServerStart::Other),
            (record(HANDSHAKE, &[]), ServerStart::Other),
            (Vec::new(), ServerStart::NeedMore),
        ] {
            assert_eq!(server_start(&bytes), verdict, "{bytes:?}");
        }
    }

    #[test]
    fn it_is_told_however_finely_it_is_cut_into_records() {
        let bytes: Vec<u8> = hello(RETRY)
            .chunks(1)
            .flat_map(|part| record(HANDSHAKE, part))
            .collect();
        assert_eq!(server_start(&bytes), ServerStart::Retry);
        assert_eq!(server_start(&bytes[..228]), ServerStart::Retry);
        for there in 0..228 {
            assert_eq!(server_start(&bytes[..there]), ServerStart::NeedMore, "{there}");
        }
    }

    fn judged(bytes: &[u8]) -> SecondFlight {
        second_flight(bytes, &mut ClientHelloReader::default())
    }

    #[test]
    fn what_comes_before_a_second_greeting_is_skipped_and_nothing_else_is() {
        let change = record(CHANGE_CIPHER_SPEC, &[1]);
        let early = record(APPLICATION_DATA, &[0; 16_640]);
        assert_eq!(judged(&change), SecondFlight::Skip(6));
        assert_eq!(judged(&change[..5]), SecondFlight::NeedMore);
        assert_eq!(judged(&early), SecondFlight::Skip(16_645));
        assert_eq!(
            judged(&record(APPLICATION_DATA, &[0; 16_641])),
            SecondFlight::Invalid(None)
        );
        assert_eq!(judged(&record(ALERT, &[2, 47])), SecondFlight::GivesUp);
        assert_eq!(judged(&record(24, &[1])), SecondFlight::Invalid(None));
        assert!(matches!(
            judged(&record(HANDSHAKE, &[20, 0, 0, 0])),
            SecondFlight::Invalid(Some(_))
        ));
        assert_eq!(judged(&[]), SecondFlight::NeedMore);
    }

    proptest! {
        #[test]
        fn no_bytes_of_a_server_keep_it_undecided(bytes in prop::collection::vec(
            prop_oneof![Just(HANDSHAKE), Just(3), Just(0), Just(1), Just(2), any::<u8>()], 0..400)) {
            let first = (0..=bytes.len()).map(|there| server_start(&bytes[..there])).find(|one| *one != ServerStart::NeedMore);
            prop_assert_eq!(first.unwrap_or(ServerStart::NeedMore), server_start(&bytes));
            prop_assert!(bytes.len() < 228 || server_start(&bytes) != ServerStart::NeedMore);
        }
    }
}
