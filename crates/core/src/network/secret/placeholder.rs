//! What a sandbox has in place of a secret.

use core::fmt;

use super::SecretValue;

/// Text that programs take for the secret: of the same kind by its beginning, its alphabet and, where that leaves room
/// enough, its length. Everything but the beginning is random, 128 bits and more; nothing is derived from the value.
///
/// It has letters, digits, `-`, `_` and `.` alone, so that it looks the same in a header and in a URL.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Placeholder(String);

/// Beginnings by which the makers of keys let them be known; of two that fit, the longer one comes first.
const PREFIXES: [&str; 34] = [
    "sk-ant-api03-",
    "sk-ant-oat01-",
    "sk-ant-",
    "sk-proj-",
    "sk-or-v1-",
    "sk_live_",
    "sk_test_",
    "rk_live_",
    "rk_test_",
    "sk-",
    "github_pat_",
    "ghp_",
    "gho_",
    "ghu_",
    "ghs_",
    "ghr_",
    "glpat-",
    "xoxb-",
    "xoxp-",
    "xapp-",
    "AKIA",
    "ASIA",
    "AIza",
    "ya29.",
    "npm_",
    "pypi-",
    "hf_",
    "gsk_",
    "xai-",
    "r8_",
    "dop_v1_",
    "SG.",
    "whsec_",
    "tvly-",
];

/// A JSON Web Token begins with its two readable parts; these say that it is one, and nothing else.
const TOKEN: &str = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.e30.";

const HEX: &[u8] = b"0123456789abcdef";
const UPPER_HEX: &[u8] = b"0123456789ABCDEF";
const BASE32: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
const LOWER: &[u8] = b"abcdefghijklmnopqrstuvwxyz0123456789";
const UPPER: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
const ALL: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";

/// How much of it nobody can guess.
const RANDOM_BITS: usize = 128;

impl Placeholder {
    /// A placeholder for `value`; `random` fills what it is given with bytes that nobody can guess.
    ///
    /// # Errors
    /// When `random` fails.
    pub fn plausible<E>(value: &SecretValue, mut random: impl FnMut(&mut [u8]) -> Result<(), E>) -> Result<Self, E> {
        let value = value.expose();
        let prefix = prefix_of(value);
        let rest = value.get(prefix.len()..).unwrap_or_default();
        let alphabet = if matches!(prefix, "AKIA" | "ASIA") {
            BASE32
        } else {
            alphabet_of(rest)
        };
        let length = rest.len().max(characters_for_random(alphabet));
        let mut text = String::with_capacity(prefix.len() + length);
        text.push_str(prefix);
        let mut bytes = [0; 64];
        while text.len() < prefix.len() + length {
            random(&mut bytes)?;
            let left = prefix.len() + length - text.len();
            text.extend(characters(&bytes, alphabet).take(left));
        }
        Ok(Self(text))
    }

    /// The text that a server gave out for a secret. Nothing of it need be random: it is no secret either.
    pub fn given(text: String) -> Self {
        Self(text)
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// How many characters of `alphabet` have [`RANDOM_BITS`].
fn characters_for_random(alphabet: &[u8]) -> usize {
    // At least 2 to the power of the bits of a character, rounded down to half a bit.
    match alphabet.len() {
        0..32 => RANDOM_BITS.div_ceil(4),
        32..46 => RANDOM_BITS.div_ceil(5),
        _ => (RANDOM_BITS * 2).div_ceil(11),
    }
}

/// Characters of `alphabet`, each as likely as any other.
fn characters<'a>(bytes: &'a [u8], alphabet: &'a [u8]) -> impl Iterator<Item = char> + 'a {
    // Bytes at the end that would make some characters likelier are left out.
    let fair = 256 - 256 % alphabet.len();
    bytes
        .iter()
        .map(|byte| usize::from(*byte))
        .filter(move |byte| *byte < fair)
        .filter_map(|byte| alphabet.get(byte % alphabet.len()).copied())
        .map(char::from)
}

fn prefix_of(value: &[u8]) -> &'static str {
    let is_token = value.starts_with(b"eyJ") && value.iter().filter(|byte| **byte == b'.').count() == 2;
    if is_token && value.len() > TOKEN.len() {
        return TOKEN;
    }
    let known = PREFIXES.iter().find(|prefix| value.starts_with(prefix.as_bytes()));
    known.copied().unwrap_or_default()
}

/// The smallest usual alphabet that has what `value` is made of.
fn alphabet_of(value: &[u8]) -> &'static [u8] {
    let usual = [HEX, UPPER_HEX, LOWER, UPPER];
    let made_of = |alphabet: &&[u8]| value.iter().all(|byte| alphabet.contains(byte));
    usual.into_iter().find(made_of).unwrap_or(ALL)
}

impl fmt::Display for Placeholder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
