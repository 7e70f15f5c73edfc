//! Which directories are watched, and under which numbers.

use alloc::vec::Vec;

use rustix::io::Errno;

/// Directories that one request may watch; the kernel allows some user no more than 8192 in all (inotify(7)).
const MAX_COUNT: usize = 65_536;

/// Bytes that their paths may take.
const MAX_BYTES: usize = 16 * 1024 * 1024;

/// The directories, relative to where watching begins, by the kernel's number for each.
#[derive(Debug, Default)]
pub(super) struct WatchedDirectories {
    /// Sorted by number.
    directories: Vec<(i32, Vec<u8>)>,
    bytes: usize,
}

impl WatchedDirectories {
    fn place(&self, watch: i32) -> Result<usize, usize> {
        self.directories.binary_search_by_key(&watch, |(watch, _)| *watch)
    }

    /// Notes a directory, or its new path.
    ///
    /// # Errors
    /// `ENOSPC` when there are too many, as the kernel would say.
    pub(super) fn insert(&mut self, watch: i32, path: Vec<u8>) -> Result<(), Errno> {
        self.forget(watch);
        if self.directories.len() >= MAX_COUNT || self.bytes + path.len() > MAX_BYTES {
            return Err(Errno::NOSPC);
        }
        self.bytes += path.len();
        let (Ok(place) | Err(place)) = self.place(watch);
        self.directories.insert(place, (watch, path));
        Ok(())
    }

    /// The directory of that number.
    pub(super) fn path(&self, watch: i32) -> Option<&[u8]> {
        self.place(watch).ok().map(|place| &self.directories[place].1[..])
    }

    /// Forgets a directory that is not watched any more.
    pub(super) fn forget(&mut self, watch: i32) {
        if let Ok(place) = self.place(watch) {
            self.bytes -= self.directories.remove(place).1.len();
        }
    }

    /// Forgets a directory and all below it; answers their numbers.
    pub(super) fn forget_below(&mut self, path: &[u8]) -> Vec<i32> {
        let is_below = |of: &[u8]| {
            let rest = of.strip_prefix(path);
            rest.is_some_and(|rest| rest.first().is_none_or(|first| *first == b'/'))
        };
        let (mut forgotten, mut bytes) = (Vec::new(), 0);
        self.directories.retain(|(watch, of)| {
            let goes = is_below(of);
            if goes {
                forgotten.push(*watch);
                bytes += of.len();
            }
            !goes
        });
        self.bytes -= bytes;
        forgotten
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_known_by_number_until_they_are_forgotten() {
        let mut watched = WatchedDirectories::default();
        for (watch, path) in [(3, &b"a"[..]), (1, b""), (2, b"a/b"), (5, b"ab"), (4, b"a/b/c")] {
            watched.insert(watch, path.to_vec()).expect("few");
        }
        assert_eq!(watched.path(4), Some(&b"a/b/c"[..]));
        watched.insert(4, b"moved".to_vec()).expect("few");
        assert_eq!(watched.path(4), Some(&b"moved"[..]));
        assert_eq!(watched.forget_below(b"a"), [2, 3]);
        assert_eq!((watched.path(2), watched.path(5)), (None, Some(&b"ab"[..])));
        watched.forget(7);
        assert_eq!(watched.bytes, 7);
    }

    #[test]
    fn there_are_only_so_many() {
        let mut watched = WatchedDirectories::default();
        watched.insert(1, alloc::vec![b'x'; MAX_BYTES]).expect("just as much");
        assert_eq!(watched.insert(2, Vec::from(&b"x"[..])), Err(Errno::NOSPC));
        watched.forget(1);
        for watch in 0..65_536 {
            watched.insert(watch, Vec::new()).expect("just as many");
        }
        assert_eq!(watched.insert(65_536, Vec::new()), Err(Errno::NOSPC));
    }
}
