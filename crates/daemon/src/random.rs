//! Ids and tokens that nobody can guess.

use offleash_core::id::{RunId, SANDBOX_ID_DIGITS};

use crate::error::DaemonError;

const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";

/// Bytes of a token.
const TOKEN_BYTES: usize = 32;

/// The id of a new sandbox: `i` and 19 characters of `[a-z0-9]`.
pub(crate) fn sandbox_id() -> Result<RunId, DaemonError> {
    let id = name('i', SANDBOX_ID_DIGITS)?;
    id.parse().map_err(|error| DaemonError::Host {
        tried: "make an id",
        source: Box::new(error),
    })
}

/// The id of a new snapshot: `s` and 19 characters of `[a-z0-9]`.
pub(crate) fn snapshot_id() -> Result<RunId, DaemonError> {
    let id = name('s', SANDBOX_ID_DIGITS)?;
    id.parse().map_err(|error| DaemonError::Host {
        tried: "make an id",
        source: Box::new(error),
    })
}

/// Whether that could be such an id.
pub(crate) fn is_snapshot_id(text: &str) -> bool {
    is_id_of('s', text)
}

/// Whether that could be the id of a sandbox.
pub(crate) fn is_sandbox_id(text: &str) -> bool {
    is_id_of('i', text)
}

fn is_id_of(letter: char, text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    text.len() == 1 + SANDBOX_ID_DIGITS && text.starts_with(letter) && text.bytes().all(is_plain)
}

/// What a layer is called that is set aside: `x` and 19 characters of `[a-z0-9]`.
pub(crate) fn layer_id() -> Result<RunId, DaemonError> {
    let id = name('x', SANDBOX_ID_DIGITS)?;
    id.parse().map_err(|error| DaemonError::Host {
        tried: "make an id",
        source: Box::new(error),
    })
}

/// The id of a new key: `k` and 11 characters of `[a-z0-9]`.
pub(crate) fn key_id() -> Result<String, DaemonError> {
    name('k', 11)
}

/// The id of a new secret: `sec_` and 24 characters of `[a-z0-9]`.
pub(crate) fn secret_id() -> Result<String, DaemonError> {
    Ok(format!("sec_{}", name('s', 23)?))
}

/// The id of a host that was allowed for good: `h` and 11 characters of `[a-z0-9]`.
pub(crate) fn allowed_host_id() -> Result<String, DaemonError> {
    name('h', 11)
}

/// The id of a new webhook of a key: `w` and 19 characters of `[a-z0-9]`.
pub(crate) fn webhook_id() -> Result<String, DaemonError> {
    name('w', SANDBOX_ID_DIGITS)
}

/// A random UUID (RFC 9562, version 4), as E2B's SDKs want builds to be called.
pub(crate) fn uuid() -> Result<String, DaemonError> {
    let mut bytes = [0; 16];
    fill(&mut bytes)?;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let mut text = String::new();
    for (index, byte) in bytes.iter().enumerate() {
        if [4, 6, 8, 10].contains(&index) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    Ok(text)
}

/// A token of 256 bits, in hexadecimal digits.
pub(crate) fn token() -> Result<String, DaemonError> {
    let mut bytes = [0; TOKEN_BYTES];
    fill(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

pub(crate) fn name(letter: char, digits: usize) -> Result<String, DaemonError> {
    // The largest multiple of 36 in a byte; what is beyond would make some digits likelier than others.
    const FAIR: u8 = 252;
    let mut name = String::from(letter);
    let mut bytes = [0; 32];
    while name.len() <= digits {
        fill(&mut bytes)?;
        for byte in bytes.iter().filter(|byte| **byte < FAIR) {
            if name.len() <= digits {
                name.push(char::from(DIGITS[usize::from(byte % 36)]));
            }
        }
    }
    Ok(name)
}

fn fill(bytes: &mut [u8]) -> Result<(), DaemonError> {
    let mut filled = 0;
    while filled < bytes.len() {
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())
            .map_err(std::io::Error::from)
            .map_err(DaemonError::host("read random bytes"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_what_hosts_and_files_can_be_called() {
        let ids: std::collections::HashSet<String> =
            (0..200).map(|_| sandbox_id().unwrap().as_str().to_owned()).collect();
        assert_eq!(ids.len(), 200);
        assert!(ids.iter().all(|id| id.len() == 20 && id.starts_with('i')));
        let uuid = uuid().unwrap();
        assert!(uuid.len() == 36 && uuid.as_bytes()[14] == b'4', "{uuid}");
        let token = token().unwrap();
        assert!(token.len() == 64 && token.bytes().all(|byte| byte.is_ascii_hexdigit()));
    }
}
