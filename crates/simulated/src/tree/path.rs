//! Paths that a worker names.

use rustix::io::Errno;

/// Longest name and longest path in bytes (limits.h).
const MAX_NAME: usize = 255;
const MAX_PATH: usize = 4096;

/// A path below the root of a tree: names, none of which is `.`, `..` or empty.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct InnerPath(Vec<Vec<u8>>);

impl InnerPath {
    /// Reads a path; the empty one is the root.
    ///
    /// # Errors
    /// `ENAMETOOLONG`, or `EINVAL` for what no path below a root is.
    pub(crate) fn parse(path: &[u8]) -> Result<Self, Errno> {
        if path.len() > MAX_PATH {
            return Err(Errno::NAMETOOLONG);
        }
        if path.is_empty() {
            return Ok(Self::default());
        }
        let names = path.split(|byte| *byte == b'/').map(|name| {
            if name.len() > MAX_NAME {
                return Err(Errno::NAMETOOLONG);
            }
            if matches!(name, b"" | b"." | b"..") || name.contains(&0) {
                return Err(Errno::INVAL);
            }
            Ok(name.to_vec())
        });
        names.collect::<Result<_, _>>().map(Self)
    }

    /// Its names.
    pub(crate) fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().map(Vec::as_slice)
    }

    /// How many names it has.
    pub(super) fn depth(&self) -> usize {
        self.0.len()
    }

    /// Its directory and its last name; none of the root.
    pub(super) fn split(&self) -> Option<(Self, &[u8])> {
        let (last, before) = self.0.split_last()?;
        Some((Self(before.to_vec()), last))
    }

    /// A name below it.
    pub(crate) fn join(&self, name: &[u8]) -> Self {
        let mut names = self.0.clone();
        names.push(name.to_vec());
        Self(names)
    }

    pub(super) fn starts_with(&self, other: &Self) -> bool {
        self.0.starts_with(&other.0)
    }
}
