//! Names of hosts: their one canonical form.

use core::fmt;
use core::str::FromStr;

use idna::uts46::{AsciiDenyList, DnsLength, Hyphens, Uts46};

use crate::network::host::{Host, HostError};
use crate::text::Text;

const MAX_LABEL: usize = 63;
const MAX_NAME: usize = 253;

/// A name in canonical form: lower-case ASCII, international labels as `xn--` (UTS 46, non-transitional), without the
/// dot of the root. Labels have 1 to 63 letters, digits, `_` and inner hyphens, the name at most 253 bytes
/// (RFC 1035, section 2.3.4; RFC 1123, section 2.1). It is no IPv4 address in any spelling.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(remote = "Self")]
pub struct DomainName(String);

impl DomainName {
    /// The name in a DNS question, given by its labels (RFC 1035, section 4.1.2). Only ASCII is read: on the wire,
    /// international names are `xn--`.
    ///
    /// # Errors
    /// [`HostError::Label`] for a label with a dot in it, which as text would be two, and as [`Host::parse`].
    pub fn from_labels<'a>(labels: impl IntoIterator<Item = &'a [u8]>) -> Result<Self, HostError> {
        let mut text = String::new();
        for label in labels {
            let plain = core::str::from_utf8(label).ok().filter(|label| label.is_ascii());
            let plain = plain.filter(|label| !label.is_empty() && !label.contains('.'));
            text.push_str(plain.ok_or_else(|| HostError::Label(label.into()))?);
            text.push('.');
        }
        text.parse()
    }

    /// Takes what [`canonical`] returned, unless that is an address.
    pub(crate) fn from_canonical(canonical: String) -> Self {
        Self(canonical)
    }

    /// The canonical text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is a subdomain of `base`, at any depth; no name is one of itself.
    pub fn is_below(&self, base: &DomainName) -> bool {
        self.0.strip_suffix(&base.0).is_some_and(|rest| rest.ends_with('.'))
    }
}

impl FromStr for DomainName {
    type Err = HostError;

    fn from_str(text: &str) -> Result<Self, HostError> {
        match Host::parse(text)? {
            Host::Name(name) => Ok(name),
            Host::Address(address) => Err(HostError::NotAName(address)),
        }
    }
}

impl fmt::Display for DomainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

string_in_serde!(DomainName);

/// The canonical form of `text`, which may still be an IPv4 address.
///
/// What is typed is looked at before and after the mapping of UTS 46: it drops invisible characters, and it makes ASCII
/// that no name has out of others (`℀` becomes `a/c`).
pub(crate) fn canonical(text: &str) -> Result<String, HostError> {
    refuse_characters(text, text)?;
    refuse_invisible(text)?;
    let mapped = Uts46::new()
        .to_ascii(text.as_bytes(), AsciiDenyList::EMPTY, Hyphens::Allow, DnsLength::Ignore)
        .map_err(|_| HostError::International(text.into()))?;
    refuse_characters(&mapped, text)?;
    // Only now: an ideographic full stop has become a dot.
    let name = mapped.strip_suffix('.').unwrap_or(&mapped);
    if name.is_empty() {
        return Err(HostError::Empty);
    }
    for label in name.split('.') {
        check_label(label, text)?;
    }
    if name.len() > MAX_NAME {
        return Err(HostError::LongName(text.into()));
    }
    Ok(name.to_owned())
}

fn refuse_characters(part: &str, host: &str) -> Result<(), HostError> {
    let is_allowed = |character: char| character.is_ascii_alphanumeric() || matches!(character, '-' | '_' | '.');
    let stray = |character: &char| character.is_ascii() && !is_allowed(*character);
    match part.chars().find(stray) {
        Some(character) => Err(HostError::Character {
            host: host.into(),
            character,
        }),
        None => Ok(()),
    }
}

/// Refuses what the mapping would drop: soft hyphens, zero-width spaces, variation selectors. Joiners are not among
/// them; where UTS 46 allows them, they make another name.
fn refuse_invisible(text: &str) -> Result<(), HostError> {
    match text.chars().find(|character| is_dropped(*character)) {
        Some(character) => Err(HostError::Invisible {
            host: text.into(),
            character,
        }),
        None => Ok(()),
    }
}

/// Whether the mapping drops `character`: it is asked, rather than a table of our own that would age.
fn is_dropped(character: char) -> bool {
    if character.is_ascii() {
        return false;
    }
    let between = format!("a{character}b");
    Uts46::new()
        .to_ascii(
            between.as_bytes(),
            AsciiDenyList::EMPTY,
            Hyphens::Allow,
            DnsLength::Ignore,
        )
        .is_ok_and(|mapped| mapped == "ab")
}

fn check_label(label: &str, host: &str) -> Result<(), HostError> {
    let host = || Text::from(host);
    if label.is_empty() {
        return Err(HostError::EmptyLabel(host()));
    }
    if label.len() > MAX_LABEL {
        return Err(HostError::LongLabel(host()));
    }
    if label.starts_with('-') || label.ends_with('-') {
        return Err(HostError::Hyphen(host()));
    }
    Ok(())
}
