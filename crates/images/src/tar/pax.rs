//! Extended headers (POSIX.1-2001, pax): records of `LENGTH KEY=VALUE\n`.

use std::collections::BTreeMap;

use super::sparse::{SparseMap, decimal};
use crate::unpack::LayerRefusal;

/// Attributes of files, as GNU tar, star and Go write them.
const ATTRIBUTE: &[u8] = b"SCHILY.xattr.";
/// How many records an entry may have.
const MAX_RECORDS: usize = 4096;

/// What extended headers say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Records {
    values: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Offsets and lengths in the oldest form of a map, where keys are repeated.
    repeated: Vec<u64>,
}

impl Records {
    /// Takes up the records of one header; later ones win.
    pub(super) fn add(&mut self, text: &[u8]) -> Result<(), LayerRefusal> {
        let mut rest = text;
        while !rest.is_empty() {
            let (key, value);
            (key, value, rest) = record(rest).ok_or(LayerRefusal::BadExtendedHeader)?;
            match key {
                b"GNU.sparse.offset" | b"GNU.sparse.numbytes" => self.repeated.push(decimal(value)?),
                // An empty value takes back what was said before.
                _ if value.is_empty() => drop(self.values.remove(key)),
                _ => drop(self.values.insert(key.to_vec(), value.to_vec())),
            }
            if self.values.len() + self.repeated.len() / 32 > MAX_RECORDS {
                return Err(LayerRefusal::BadExtendedHeader);
            }
        }
        Ok(())
    }

    /// These, where `others` say nothing else.
    pub(super) fn below(&self, others: &Self) -> Self {
        let mut all = self.clone();
        all.values.extend(others.values.clone());
        all.repeated.clone_from(&others.repeated);
        all
    }

    fn value(&self, key: &str) -> Option<&[u8]> {
        self.values.get(key.as_bytes()).map(Vec::as_slice)
    }

    fn number(&self, key: &str) -> Result<Option<u64>, LayerRefusal> {
        self.value(key).map(decimal).transpose()
    }

    pub(super) fn path(&self) -> Option<Vec<u8>> {
        self.value("path").map(<[u8]>::to_vec)
    }

    pub(super) fn link(&self) -> Option<Vec<u8>> {
        self.value("linkpath").map(<[u8]>::to_vec)
    }

    pub(super) fn size(&self) -> Result<Option<u64>, LayerRefusal> {
        self.number("size")
    }

    pub(super) fn uid(&self) -> Result<Option<u64>, LayerRefusal> {
        self.number("uid")
    }

    pub(super) fn gid(&self) -> Result<Option<u64>, LayerRefusal> {
        self.number("gid")
    }

    /// Times that are none are left out: nothing depends on them.
    pub(super) fn modified(&self) -> Option<(i64, u32)> {
        let text = str::from_utf8(self.value("mtime")?).ok()?;
        let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
        let whole: i64 = seconds.parse().ok()?;
        let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
        let nanoseconds: u32 = digits.parse().ok()?;
        match (seconds.starts_with('-'), nanoseconds) {
            (false, _) | (true, 0) => Some((whole, nanoseconds)),
            (true, _) => Some((whole.checked_sub(1)?, 1_000_000_000 - nanoseconds)),
        }
    }

    pub(super) fn attributes(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let named = |(key, value): (&Vec<u8>, &Vec<u8>)| Some((key.strip_prefix(ATTRIBUTE)?.to_vec(), value.clone()));
        self.values.iter().filter_map(named).collect()
    }

    pub(super) fn sparse_name(&self) -> Option<Vec<u8>> {
        self.value("GNU.sparse.name").map(<[u8]>::to_vec)
    }

    /// The form 1.0 of a sparse file.
    pub(super) fn has_map_in_contents(&self) -> bool {
        self.value("GNU.sparse.major") == Some(b"1") && self.value("GNU.sparse.minor") == Some(b"0")
    }

    pub(super) fn real_size(&self) -> Result<u64, LayerRefusal> {
        let size = match self.number("GNU.sparse.realsize")? {
            Some(size) => Some(size),
            None => self.number("GNU.sparse.size")?,
        };
        size.ok_or(LayerRefusal::BadSparseMap)
    }

    /// The forms 0.0 and 0.1, of which there are still archives.
    pub(super) fn sparse_map(&self) -> Result<Option<SparseMap>, LayerRefusal> {
        let numbers = match self.value("GNU.sparse.map") {
            Some(map) => map
                .split(|byte| *byte == b',')
                .map(decimal)
                .collect::<Result<Vec<u64>, _>>()?,
            None if !self.repeated.is_empty() => self.repeated.clone(),
            None => return Ok(None),
        };
        SparseMap::of_numbers(&numbers, self.real_size()?).map(Some)
    }
}

fn record(text: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let space = text.iter().take(20).position(|byte| *byte == b' ')?;
    let length = usize::try_from(decimal(&text[..space]).ok()?).ok()?;
    let (record, rest) = text.split_at_checked(length)?;
    let record = record.get(space + 1..)?.strip_suffix(b"\n")?;
    let equals = record.iter().position(|byte| *byte == b'=')?;
    let (key, value) = (&record[..equals], &record[equals + 1..]);
    (!key.is_empty()).then_some((key, value, rest))
}
