//! Lists of C strings as execve takes them: one block of bytes and an array of pointers into it.

use alloc::vec::Vec;

/// Strings that end with a zero byte each, and pointers to them that end with a null pointer.
pub(crate) struct CStringArray {
    /// Never changed after `pointers` was made; moving the `Vec` does not move what it holds.
    bytes: Vec<u8>,
    pointers: Vec<*const u8>,
}

impl CStringArray {
    /// Copies the strings, each the concatenation of its parts; `None` if one contains a zero byte.
    pub(crate) fn new<'a, const PARTS: usize>(
        strings: impl Iterator<Item = [&'a [u8]; PARTS]> + Clone,
    ) -> Option<Self> {
        let size = strings
            .clone()
            .map(|parts| parts.iter().map(|part| part.len()).sum::<usize>() + 1)
            .sum();
        let mut bytes = Vec::with_capacity(size);
        let mut starts = Vec::with_capacity(strings.clone().count());
        for parts in strings {
            starts.push(bytes.len());
            for part in parts {
                if part.contains(&0) {
                    return None;
                }
                bytes.extend_from_slice(part);
            }
            bytes.push(0);
        }
        let mut pointers: Vec<*const u8> = Vec::with_capacity(starts.len() + 1);
        pointers.extend(starts.into_iter().map(|start| bytes[start..].as_ptr()));
        pointers.push(core::ptr::null());
        Some(Self { bytes, pointers })
    }

    /// How many strings.
    pub(crate) fn len(&self) -> usize {
        self.pointers.len() - 1
    }

    /// The array, which lives as long as this.
    pub(crate) fn as_ptr(&self) -> *const *const u8 {
        debug_assert!(self.bytes.last().is_none_or(|last| *last == 0));
        self.pointers.as_ptr()
    }

    /// Pointers to the strings behind the first one, and the null pointer.
    pub(crate) fn rest(&self) -> &[*const u8] {
        self.pointers.get(1..).unwrap_or_default()
    }
}
