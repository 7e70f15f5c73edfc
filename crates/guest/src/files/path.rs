//! Paths as the host sends them.

use alloc::vec::Vec;

use rustix::fs::Mode;
use rustix::io::Errno;

use super::failure::{FileFailure, failed};

/// Longest path that the kernel takes, with the zero byte at its end (limits.h).
const PATH_MAX: usize = 4096;

/// An absolute path without empty parts, `.` and `..`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GuestPath(Vec<u8>);

impl GuestPath {
    /// Cleans a path by its words alone: `..` takes the part before it away, wherever a link there would have led.
    pub(super) fn parse(text: &[u8]) -> Result<Self, FileFailure> {
        if text.first() != Some(&b'/') || text.contains(&0) {
            return Err(failed("read the path")(Errno::INVAL));
        }
        if text.len() >= PATH_MAX {
            return Err(failed("read the path")(Errno::NAMETOOLONG));
        }
        let mut path = Vec::with_capacity(text.len());
        for part in text.split(|byte| *byte == b'/') {
            match part {
                b"" | b"." => {}
                b".." => path.truncate(path.iter().rposition(|byte| *byte == b'/').unwrap_or(0)),
                part => {
                    path.push(b'/');
                    path.extend_from_slice(part);
                }
            }
        }
        if path.is_empty() {
            path.push(b'/');
        }
        Ok(Self(path))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// A path below this one, of which the rest is clean already.
    pub(super) fn below(&self, rest: &[u8]) -> Self {
        Self(joined(&self.0, rest))
    }

    pub(super) fn is_root(&self) -> bool {
        self.0 == b"/"
    }

    /// Makes the directories that lead here, for their owner to write and for all to enter.
    pub(super) fn make_parents(&self) -> Result<(), FileFailure> {
        let ends = self.0.iter().enumerate().skip(1).filter(|(_, byte)| **byte == b'/');
        for (end, _) in ends {
            match rustix::fs::mkdir(&self.0[..end], directory_mode()) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(failed("mkdir")(errno)),
            }
        }
        Ok(())
    }
}

/// What the umask makes 0755.
pub(super) fn directory_mode() -> Mode {
    Mode::from_raw_mode(0o777)
}

/// A name below a directory's path.
pub(super) fn joined(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(directory.len() + 1 + name.len());
    path.extend_from_slice(directory);
    if path.last() != Some(&b'/') {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_cleaned_by_their_words() {
        for (text, clean) in [
            (&b"/"[..], &b"/"[..]),
            (b"//", b"/"),
            (b"/a//b/./c/", b"/a/b/c"),
            (b"/a/../b", b"/b"),
            (b"/a/b/../../..", b"/"),
            (b"/..a/.b", b"/..a/.b"),
        ] {
            assert_eq!(GuestPath::parse(text).expect("absolute").bytes(), clean);
        }
        let long = [b"/".as_slice(), &[b'x'; PATH_MAX]].concat();
        for (text, errno) in [
            (&b""[..], Errno::INVAL),
            (b"a", Errno::INVAL),
            (b"/a\0b", Errno::INVAL),
            (&long, Errno::NAMETOOLONG),
        ] {
            assert_eq!(GuestPath::parse(text).expect_err("no path").errno, errno);
        }
    }

    #[test]
    fn names_are_joined_with_one_slash() {
        assert_eq!(joined(b"/", b"a"), b"/a");
        assert_eq!(joined(b"/a", b"b"), b"/a/b");
    }
}
