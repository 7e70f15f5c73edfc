//! Reads the name that a TLS client asks for, without answering it.
//!
//! Pure: bytes in, verdict out. The caller keeps the bytes, because what was read here is sent on unchanged. Nothing
//! is decided here; whether a hello without a name, with another name than the connection's or with an encrypted part
//! is acceptable is the caller's question. What follows the hello is not looked at: a client may send early data and a
//! change of cipher spec before it has an answer (RFC 8446, 4.2.10 and D.4). After a HelloRetryRequest it sends a
//! second hello, which is to be read with a reader of its own by whoever wants to be sure that the name did not change.
//!
//! Strict where two readers could disagree about a name: RFC 8446 (TLS 1.3, 4.1.2 and 5.1), RFC 6066 (server name, 3),
//! RFC 7301 (ALPN), RFC 8701 (GREASE, tolerated), RFC 9849 (encrypted ClientHello).

mod message;
#[cfg(test)]
mod tests;

use thiserror::Error;

/// The longest ClientHello that is read, its four bytes of header included.
pub const MAX_HELLO: usize = 64 * 1024;

/// Records over which one hello may be spread; clients use one, those with large key shares two or three.
pub const MAX_RECORDS: usize = 64;

/// The most bytes that a reader wants to see before it has a verdict.
pub const MAX_RECEIVED: usize = MAX_HELLO + MAX_RECORDS * RECORD_HEADER;

/// Type, version and length.
const RECORD_HEADER: usize = 5;

/// The longest plaintext in a record (RFC 8446, 5.1).
const MAX_RECORD: usize = 1 << 14;

const CONTENT_HANDSHAKE: u8 = 22;
const HANDSHAKE_CLIENT_HELLO: u8 = 1;

/// Type and length of a handshake message.
const HANDSHAKE_HEADER: usize = 4;

/// What a TLS client says of itself before anything is encrypted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientHello {
    /// The host name of `server_name`, in lower case; letters, digits, `-`, `_` and single inner dots only.
    ///
    /// It may look like an address: RFC 6066 forbids that, but who compares it with a name finds out anyway.
    pub server_name: Option<String>,
    /// Whether there is an encrypted hello inside, whose name nobody but the server can read.
    ///
    /// Browsers send random bytes in its place when they have no key (RFC 9849, 6.2), and these cannot be told apart.
    pub encrypted: bool,
    /// The protocols offered by ALPN, in the client's order.
    pub alpn: Vec<Vec<u8>>,
    /// The bytes up to the end of the record in which the hello ends.
    pub length: usize,
}

/// What the bytes received so far are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// The beginning of a hello.
    NeedMore,
    /// A whole hello.
    Hello(ClientHello),
    /// Not the beginning of a TLS connection.
    NotTls,
    /// The beginning of a TLS connection that is refused.
    Invalid(ClientHelloError),
}

/// Why a ClientHello is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ClientHelloError {
    /// An SSL 2.0 hello, also one that offers later versions.
    #[error("an SSL 2.0 hello")]
    Ssl2,
    /// The version of a record or of the hello is not among 3.1, 3.2 and 3.3.
    #[error("version {major}.{minor}, where 3.1 to 3.3 are known")]
    Version {
        /// The first byte.
        major: u8,
        /// The second byte.
        minor: u8,
    },
    /// A record of another kind between the records of the hello.
    #[error("a record of type {0} inside the hello")]
    Interrupted(u8),
    /// A record without content.
    #[error("an empty record")]
    EmptyRecord,
    /// A record longer than 16 KiB.
    #[error("a record of {0} bytes, where {MAX_RECORD} are allowed")]
    LongRecord(usize),
    /// The hello is spread over too many records.
    #[error("a hello spread over more than {MAX_RECORDS} records")]
    ManyRecords,
    /// The first handshake message is not a ClientHello.
    #[error("a handshake message of type {0} where a ClientHello is due")]
    NotClientHello(u8),
    /// The hello is longer than [`MAX_HELLO`].
    #[error("a hello of {0} bytes, where {MAX_HELLO} are allowed")]
    TooLong(usize),
    /// Something follows the hello in its record, or its last field inside it.
    #[error("bytes behind the end of {0}")]
    Trailing(&'static str),
    /// A length that points behind the end of what holds it.
    #[error("{0} is cut short")]
    CutShort(&'static str),
    /// A field that must hold something, or pairs of bytes, and does not.
    #[error("{0} has a length that it cannot have")]
    Length(&'static str),
    /// More extensions, or protocols in ALPN, than any client sends.
    #[error("too many entries in {0}")]
    TooMany(&'static str),
    /// Two extensions of one type.
    #[error("extension {0} twice")]
    DuplicateExtension(u16),
    /// A pre-shared key is not the last extension (RFC 8446, 4.2.11).
    #[error("an extension behind the pre-shared key")]
    BehindPreSharedKey,
    /// A server name of another type than host name.
    #[error("a server name of type {0}")]
    NameType(u8),
    /// More than one server name.
    #[error("several server names")]
    SeveralNames,
    /// A server name that is not the name of a host.
    #[error("a server name that is not a host name")]
    Name,
    /// An encrypted hello of another kind than the outer one.
    #[error("an encrypted hello of kind {0}, where 0 (outer) is due")]
    EncryptedKind(u8),
}

/// Reads one ClientHello from the beginning of a connection.
///
/// Each byte is looked at a bounded number of times however finely the client cuts its hello. Holds a copy of the
/// handshake message, at most [`MAX_HELLO`] and a record of bytes.
#[derive(Default)]
pub struct ClientHelloReader {
    /// What was received up to here is in `message`, or was the header of a record.
    taken: usize,
    /// How much of the present record is still to come.
    left_in_record: usize,
    records: usize,
    message: Vec<u8>,
}

impl std::fmt::Debug for ClientHelloReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientHelloReader")
            .field("taken", &self.taken)
            .field("records", &self.records)
            .finish_non_exhaustive()
    }
}

impl ClientHelloReader {
    /// Judges the beginning of a connection; `received` is everything so far, and only grows from call to call.
    ///
    /// The verdict is the same however the bytes are cut. At [`MAX_RECEIVED`] bytes there is one. Asked again after a
    /// verdict, the reader repeats it.
    pub fn read(&mut self, received: &[u8]) -> Progress {
        loop {
            match self.message_is_whole() {
                Ok(false) => {}
                Ok(true) => return self.parse(),
                Err(error) => return Progress::Invalid(error),
            }
            let rest = received.get(self.taken..).unwrap_or_default();
            if self.left_in_record == 0 {
                match read_record_header(rest, self.records) {
                    RecordHeader::Handshake(length) => {
                        self.taken += RECORD_HEADER;
                        self.left_in_record = length;
                        self.records += 1;
                    }
                    RecordHeader::Verdict(progress) => return progress,
                }
            } else if rest.is_empty() {
                return Progress::NeedMore;
            } else {
                let part = &rest[..rest.len().min(self.left_in_record)];
                self.message.extend_from_slice(part);
                self.taken += part.len();
                self.left_in_record -= part.len();
            }
        }
    }

    /// Whether the whole handshake message is there; what can be known from its header is checked before.
    fn message_is_whole(&self) -> Result<bool, ClientHelloError> {
        if let Some(&kind) = self.message.first()
            && kind != HANDSHAKE_CLIENT_HELLO
        {
            return Err(ClientHelloError::NotClientHello(kind));
        }
        let Some(&[_, high, middle, low]) = self.message.first_chunk::<HANDSHAKE_HEADER>() else {
            return Ok(false);
        };
        let length = HANDSHAKE_HEADER + (usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low));
        if length > MAX_HELLO {
            return Err(ClientHelloError::TooLong(length));
        }
        if self.message.len() + self.left_in_record > length {
            return Err(ClientHelloError::Trailing("the hello"));
        }
        Ok(self.message.len() == length)
    }

    fn parse(&self) -> Progress {
        match message::parse(&self.message[HANDSHAKE_HEADER..]) {
            Ok(said) => Progress::Hello(ClientHello {
                server_name: said.server_name,
                encrypted: said.encrypted,
                alpn: said.alpn,
                length: self.taken,
            }),
            Err(error) => Progress::Invalid(error),
        }
    }
}

enum RecordHeader {
    /// The length of a record of handshake bytes.
    Handshake(usize),
    Verdict(Progress),
}

/// Reads the header of the next record as far as it is there, and refuses it at the first byte that is wrong.
fn read_record_header(rest: &[u8], records: usize) -> RecordHeader {
    let refused = |error| RecordHeader::Verdict(Progress::Invalid(error));
    let first = records == 0;
    if let Some(&kind) = rest.first()
        && kind != CONTENT_HANDSHAKE
    {
        return if first {
            RecordHeader::Verdict(outside_of_tls(rest))
        } else {
            refused(ClientHelloError::Interrupted(kind))
        };
    }
    if first && rest.get(1).is_some_and(|major| *major != 3) {
        return RecordHeader::Verdict(Progress::NotTls);
    }
    if let Some(&[major, minor]) = rest.get(1..3)
        && !is_known_version(major, minor)
    {
        return refused(ClientHelloError::Version { major, minor });
    }
    let Some(&[_, _, _, high, low]) = rest.first_chunk::<RECORD_HEADER>() else {
        return RecordHeader::Verdict(Progress::NeedMore);
    };
    let length = usize::from(u16::from_be_bytes([high, low]));
    match length {
        0 => refused(ClientHelloError::EmptyRecord),
        1..=MAX_RECORD if records == MAX_RECORDS => refused(ClientHelloError::ManyRecords),
        1..=MAX_RECORD => RecordHeader::Handshake(length),
        _ => refused(ClientHelloError::LongRecord(length)),
    }
}

/// Tells an SSL 2.0 hello from what is no TLS at all (RFC 5246, E.2: length with the high bit set, type 1, version).
fn outside_of_tls(received: &[u8]) -> Progress {
    let expected: [fn(u8) -> bool; 5] = [
        |length| length & 0x80 != 0,
        |_| true,
        |kind| kind == 1,
        |major| major == 0 || major == 3,
        |minor| minor <= 3,
    ];
    if received.iter().zip(expected).any(|(byte, fits)| !fits(*byte)) {
        Progress::NotTls
    } else if received.len() < expected.len() {
        Progress::NeedMore
    } else {
        Progress::Invalid(ClientHelloError::Ssl2)
    }
}

/// TLS 1.0 to 1.2; 1.3 calls itself 1.2 here (RFC 8446, 4.1.2 and 5.1).
fn is_known_version(major: u8, minor: u8) -> bool {
    major == 3 && (1..=3).contains(&minor)
}
