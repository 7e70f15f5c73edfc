//! API keys: `e2b_` and 40 hexadecimal digits, shown once; the registry keeps their hash.

use std::fmt;
use std::str::FromStr;

use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};

use super::Registry;
use super::error::RegistryError;
use super::reading::key_row;
use super::rows::{KeyRow, SandboxState};

/// What every key begins with: SDKs of E2B look for it.
const BEGINNING: &str = "e2b_";
const RANDOM_BYTES: usize = 20;

/// How many characters of a key are kept and shown: the beginning and 8 digits; 128 bits stay secret.
pub const KEY_PREFIX_CHARS: usize = BEGINNING.len() + 8;

/// An API key. Neither `Debug` nor `Display` show it.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey(String);

/// Text that is no API key; what it is is not said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an API key: expected `e2b_` and 40 hexadecimal digits")]
pub struct BadApiKey;

impl ApiKey {
    /// Makes a new one.
    ///
    /// # Errors
    /// If the kernel gives no random bytes.
    pub fn generate() -> std::io::Result<Self> {
        let mut random = [0_u8; RANDOM_BYTES];
        let mut filled = 0;
        while filled < random.len() {
            let flags = rustix::rand::GetRandomFlags::empty();
            filled += rustix::rand::getrandom(&mut random[filled..], flags)?;
        }
        Ok(Self(format!("{BEGINNING}{}", HEXLOWER.encode(&random))))
    }

    /// The key itself, to be shown to its owner.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Its first characters.
    pub fn prefix(&self) -> &str {
        &self.0[..KEY_PREFIX_CHARS]
    }

    /// What is kept of it. A plain hash suffices for 160 random bits.
    pub fn hash(&self) -> [u8; 32] {
        Sha256::digest(self.0.as_bytes()).into()
    }
}

impl FromStr for ApiKey {
    type Err = BadApiKey;

    fn from_str(text: &str) -> Result<Self, BadApiKey> {
        let digits = text.strip_prefix(BEGINNING).ok_or(BadApiKey)?;
        let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if digits.len() == 2 * RANDOM_BYTES && digits.bytes().all(digit) {
            Ok(Self(text.to_owned()))
        } else {
            Err(BadApiKey)
        }
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(****)")
    }
}

impl Registry {
    /// The row of a key that is there and was not revoked.
    ///
    /// Found by its prefix, which is no secret, and compared by its hash in constant time.
    ///
    /// # Errors
    /// When the registry cannot be read.
    pub fn authenticate(&self, key: &ApiKey) -> Result<Option<KeyRow>, RegistryError> {
        let hash = key.hash();
        let reader = self.reader();
        let tried = |error| RegistryError::of("looking up an API key", error);
        let mut statement = reader
            .prepare_cached("SELECT * FROM keys WHERE prefix = ?1 AND revoked_ms IS NULL")
            .map_err(tried)?;
        let mut rows = statement.query([key.prefix()]).map_err(tried)?;
        let mut found = None;
        while let Some(row) = rows.next().map_err(tried)? {
            let row = key_row(row)?;
            if same(&row.hash, &hash) {
                found = Some(row);
            }
        }
        Ok(found)
    }

    /// The key `id`, revoked or not.
    ///
    /// # Errors
    /// When the registry cannot be read.
    pub fn key(&self, id: &str) -> Result<Option<KeyRow>, RegistryError> {
        let reader = self.reader();
        let tried = |error| RegistryError::of("looking up an API key", error);
        let mut statement = reader
            .prepare_cached("SELECT * FROM keys WHERE id = ?1")
            .map_err(tried)?;
        let mut rows = statement.query([id]).map_err(tried)?;
        rows.next().map_err(tried)?.map(key_row).transpose()
    }

    /// The ids of keys whose sandboxes are to end.
    ///
    /// # Errors
    /// When the registry cannot be read.
    pub fn keys_without_sandboxes(&self) -> Result<Vec<String>, RegistryError> {
        let reader = self.reader();
        let tried = |error| RegistryError::of("listing removed API keys", error);
        let mut statement = reader
            .prepare_cached("SELECT id FROM keys WHERE ends_sandboxes")
            .map_err(tried)?;
        let ids = statement.query_map([], |row| row.get(0)).map_err(tried)?;
        ids.collect::<Result<_, _>>().map_err(tried)
    }

    /// How many sandboxes a key has that do not end already.
    ///
    /// # Errors
    /// When the registry cannot be read.
    pub fn sandboxes_of(&self, key: &str) -> Result<usize, RegistryError> {
        let reader = self.reader();
        let tried = |error| RegistryError::of("counting sandboxes", error);
        let mut statement = reader
            .prepare_cached("SELECT count(*) FROM sandboxes WHERE key_id = ?1 AND state <> ?2")
            .map_err(tried)?;
        let parameters = (key, SandboxState::Killing.as_str());
        let count: i64 = statement.query_row(parameters, |row| row.get(0)).map_err(tried)?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// All keys, revoked ones too, the oldest first.
    ///
    /// # Errors
    /// When the registry cannot be read.
    pub fn keys(&self) -> Result<Vec<KeyRow>, RegistryError> {
        let reader = self.reader();
        let tried = |error| RegistryError::of("listing API keys", error);
        let mut statement = reader
            .prepare_cached("SELECT * FROM keys ORDER BY created_ms, id")
            .map_err(tried)?;
        let mut rows = statement.query([]).map_err(tried)?;
        let mut keys = Vec::new();
        while let Some(row) = rows.next().map_err(tried)? {
            keys.push(key_row(row)?);
        }
        Ok(keys)
    }
}

/// Compares in a time that does not depend on where the two differ.
fn same(one: &[u8; 32], other: &[u8; 32]) -> bool {
    let difference = one.iter().zip(other).fold(0, |sum, (a, b)| sum | (a ^ b));
    // The optimiser must not see that one bit decides, or it may leave the loop early.
    std::hint::black_box(difference) == 0
}
