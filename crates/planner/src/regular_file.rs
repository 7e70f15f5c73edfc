//! Reads files that came with a workspace: whoever wrote them may want the reader to wait, to swell, or to look elsewhere.
//!
//! No link is followed in the last component, nothing but a regular file is read, nothing is waited for, and no more
//! than [`MAX_BYTES`] are taken. Not here: files that the user names, which may be pipes and links.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use offleash_core::error::{ErrorKind, Explained};
use offleash_core::text::Text;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// More than any configuration is long; in bytes.
pub(super) const MAX_BYTES: u64 = 1 << 20;

/// A file that is not read.
#[derive(Debug, thiserror::Error)]
pub enum RegularFileError {
    /// Nothing has this name.
    #[error("`{path}` does not exist")]
    Missing {
        /// The file.
        path: Text,
    },
    /// The name is that of a symbolic link.
    #[error("`{path}` is a symbolic link, and links in a workspace are not followed")]
    Link {
        /// The link.
        path: Text,
    },
    /// It is a directory, a pipe, a device or a socket.
    #[error("`{path}` is not a regular file")]
    NotRegular {
        /// The file.
        path: Text,
    },
    /// It is longer than what is read.
    #[error("`{path}` is larger than {most} bytes")]
    TooLarge {
        /// The file.
        path: Text,
        /// What is read at most, in bytes.
        most: u64,
    },
    /// The kernel refused to open or to read it.
    #[error("cannot read `{path}`")]
    Unreadable {
        /// The file.
        path: Text,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
}

impl Explained for RegularFileError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Missing { .. } => ErrorKind::NotFound,
            Self::Link { .. } | Self::NotRegular { .. } | Self::TooLarge { .. } => ErrorKind::Invalid,
            Self::Unreadable { .. } => ErrorKind::Denied,
        }
    }

    fn hint(&self) -> Option<String> {
        Some(
            match self {
                Self::Missing { .. } => "name a file that exists",
                Self::Link { .. } => "put the file itself there",
                Self::NotRegular { .. } | Self::TooLarge { .. } => "put a regular file of at most 1 MiB there",
                Self::Unreadable { .. } => "make it readable for yourself",
            }
            .to_owned(),
        )
    }
}

/// The contents of a regular file of at most 1 MiB that is no link; waits for nothing.
///
/// # Errors
/// `Missing` if there is none, otherwise why it is not read.
pub fn read_regular_file(path: &Path) -> Result<Vec<u8>, RegularFileError> {
    read_file(path, OFlags::NOFOLLOW)
}

/// As [`read_regular_file`], of a file that the user names: links are followed, and what they lead to is a regular file.
///
/// # Errors
/// As [`read_regular_file`].
pub fn read_named_file(path: &Path) -> Result<Vec<u8>, RegularFileError> {
    read_file(path, OFlags::empty())
}

fn read_file(path: &Path, links: OFlags) -> Result<Vec<u8>, RegularFileError> {
    let mut contents = Vec::new();
    // One byte more than allowed tells a file that is too large, also when it grows meanwhile or says it has no length.
    open_file(path, links)?
        .take(MAX_BYTES + 1)
        .read_to_end(&mut contents)
        .map_err(|source| unreadable(path, source))?;
    if contents.len() as u64 > MAX_BYTES {
        return Err(RegularFileError::TooLarge {
            path: Text::from(path),
            most: MAX_BYTES,
        });
    }
    Ok(contents)
}

/// Opens a regular file that is no link for reading; waits for nothing.
pub(super) fn open_regular_file(path: &Path) -> Result<File, RegularFileError> {
    open_file(path, OFlags::NOFOLLOW)
}

fn open_file(path: &Path, links: OFlags) -> Result<File, RegularFileError> {
    let flags = OFlags::RDONLY | links | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty()).map_err(|error| not_opened(path, error))?);
    let found = file.metadata().map_err(|source| unreadable(path, source))?;
    if found.is_file() {
        Ok(file)
    } else {
        Err(RegularFileError::NotRegular { path: Text::from(path) })
    }
}

fn not_opened(path: &Path, error: Errno) -> RegularFileError {
    let text = Text::from(path);
    match error {
        Errno::NOENT | Errno::NOTDIR => RegularFileError::Missing { path: text },
        Errno::LOOP => RegularFileError::Link { path: text },
        // A socket, or a device without a driver (open(2)).
        Errno::NXIO | Errno::NODEV => RegularFileError::NotRegular { path: text },
        other => unreadable(path, other.into()),
    }
}

fn unreadable(path: &Path, source: io::Error) -> RegularFileError {
    RegularFileError::Unreadable {
        path: Text::from(path),
        source,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use rustix::fs::{CWD, FileType, mknodat};

    use super::*;

    #[test]
    fn a_regular_file_is_read_up_to_the_most() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        let most = usize::try_from(MAX_BYTES).unwrap();
        for length in [0, 1, most] {
            fs::write(&file, vec![b'x'; length]).unwrap();
            assert_eq!(read_regular_file(&file).unwrap().len(), length);
        }
        fs::write(&file, vec![b'x'; most + 1]).unwrap();
        let error = read_regular_file(&file).unwrap_err();
        assert!(matches!(error, RegularFileError::TooLarge { .. }), "{error}");
    }

    #[test]
    fn what_is_no_regular_file_is_refused_without_waiting() {
        let directory = tempfile::tempdir().unwrap();
        let named = |name: &str| directory.path().join(name);
        mknodat(CWD, named("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        let _socket = UnixListener::bind(named("socket")).unwrap();
        for path in [
            named("pipe"),
            named("socket"),
            directory.path().into(),
            "/dev/zero".into(),
        ] {
            let error = read_regular_file(&path).unwrap_err();
            assert!(matches!(error, RegularFileError::NotRegular { .. }), "{error}");
        }
    }

    #[test]
    fn what_the_user_names_may_be_a_link_and_nothing_to_wait_for() {
        let directory = tempfile::tempdir().unwrap();
        let named = |name: &str| directory.path().join(name);
        fs::write(named("file"), "x").unwrap();
        symlink("file", named("link")).unwrap();
        assert_eq!(read_named_file(&named("link")).unwrap(), b"x");
        mknodat(CWD, named("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        symlink("pipe", named("to-pipe")).unwrap();
        for path in [named("pipe"), named("to-pipe"), "/dev/zero".into()] {
            let error = read_named_file(&path).unwrap_err();
            assert!(matches!(error, RegularFileError::NotRegular { .. }), "{error}");
        }
    }

    #[test]
    fn links_are_not_followed_wherever_they_lead() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("file"), "x").unwrap();
        for (name, to) in [
            ("zero", "/dev/zero"),
            ("inside", "file"),
            ("dangling", "nothing"),
            ("loop", "loop"),
        ] {
            let link = directory.path().join(name);
            symlink(to, &link).unwrap();
            let error = read_regular_file(&link).unwrap_err();
            assert!(matches!(error, RegularFileError::Link { .. }), "{name}: {error}");
        }
    }

    #[test]
    fn a_missing_file_is_told_apart() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("file"), "x").unwrap();
        for name in ["nothing", "no/thing", "file/below"] {
            let error = read_regular_file(&directory.path().join(name)).unwrap_err();
            assert!(matches!(error, RegularFileError::Missing { .. }), "{name}: {error}");
        }
    }
}
