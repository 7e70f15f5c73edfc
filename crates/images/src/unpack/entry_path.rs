//! Names of entries, as paths that stay below the root of an image.

use crate::unpack::LayerRefusal;

const MAX_NAME: usize = 255;
/// `PATH_MAX` without the closing NUL.
const MAX_PATH: usize = 4095;

/// A path below the root of an image; the root itself is empty.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct EntryPath(Vec<u8>);

impl EntryPath {
    /// Reads a name as archives have it: a slash at the beginning means the image's root.
    pub(crate) fn of(name: &[u8]) -> Result<Self, LayerRefusal> {
        if name.contains(&0) {
            return Err(LayerRefusal::BadName);
        }
        let mut path = Vec::with_capacity(name.len().min(MAX_PATH));
        for component in name.split(|byte| *byte == b'/') {
            match component {
                b"" | b"." => continue,
                b".." => return Err(LayerRefusal::Escapes),
                long if long.len() > MAX_NAME => return Err(LayerRefusal::NameTooLong),
                _ => {}
            }
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(component);
            if path.len() > MAX_PATH {
                return Err(LayerRefusal::NameTooLong);
            }
        }
        Ok(Self(path))
    }

    pub(crate) fn root() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The directory that it is in, and its name there; the root has neither.
    pub(crate) fn split(&self) -> (Self, &[u8]) {
        match self.0.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (Self(self.0[..slash].to_vec()), &self.0[slash + 1..]),
            None => (Self(Vec::new()), &self.0),
        }
    }

    /// It and all directories above it but the root, the outermost first.
    pub(crate) fn ancestors(&self) -> impl Iterator<Item = Self> {
        let slashes = self.0.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        let ends = slashes
            .map(|(index, _)| index)
            .chain((!self.0.is_empty()).then_some(self.0.len()));
        ends.map(|end| Self(self.0[..end].to_vec()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_way_out_is_refused_and_an_absolute_name_is_none() {
        for (name, path) in [
            ("/etc/passwd", "etc/passwd"),
            ("./a//b/./c/", "a/b/c"),
            ("./", ""),
            ("/", ""),
            ("a...", "a..."),
        ] {
            assert_eq!(EntryPath::of(name.as_bytes()).unwrap().bytes(), path.as_bytes());
        }
        for name in ["..", "../a", "a/..", "a/../b", "/..", "./../x"] {
            assert_eq!(EntryPath::of(name.as_bytes()), Err(LayerRefusal::Escapes), "{name}");
        }
        assert_eq!(EntryPath::of(&[b'a'; 256]), Err(LayerRefusal::NameTooLong));
        assert_eq!(EntryPath::of(&b"a/".repeat(2500)), Err(LayerRefusal::NameTooLong));
        assert_eq!(EntryPath::of(b"a\0b"), Err(LayerRefusal::BadName));
    }

    #[test]
    fn what_is_above_comes_in_order() {
        let path = EntryPath::of(b"a/b/c").unwrap();
        let all: Vec<Vec<u8>> = path.ancestors().map(|path| path.0).collect();
        assert_eq!(all, [&b"a"[..], b"a/b", b"a/b/c"]);
        assert_eq!(EntryPath::of(b"").unwrap().ancestors().count(), 0);
    }

    proptest! {
        #[test]
        fn no_name_leads_out(name in proptest::collection::vec(prop_oneof![Just(b'.'), Just(b'/'), any::<u8>()], 0..40)) {
            if let Ok(path) = EntryPath::of(&name) {
                let parts: Vec<&[u8]> = path.bytes().split(|byte| *byte == b'/').collect();
                prop_assert!(path.is_root() || parts.iter().all(|part| ![&b""[..], b".", b".."].contains(part)));
            }
        }
    }
}
