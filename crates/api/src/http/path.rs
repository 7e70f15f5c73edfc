//! Paths as callers write them: absolute, below a home, or beginning with `~`.
//!
//! Strings are joined and nothing else: what a path leads to is found out inside the sandbox, by its own process.

/// Longest path that Linux takes (PATH_MAX, with the byte that ends it).
pub(crate) const MAX_PATH_LENGTH: usize = 4095;

/// Where a path points, as far as it says by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PathStart {
    /// The whole path, as it was written.
    Absolute(Vec<u8>),
    /// Below the home of the user.
    Home(Vec<u8>),
}

/// Why a path is no path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PathError {
    #[error("the path contains a NUL byte")]
    Nul,
    #[error("the path is longer than {MAX_PATH_LENGTH} bytes")]
    TooLong,
    #[error("cannot expand user-specific home dir: only `~` and `~/…` are known")]
    OtherHome,
}

impl PathStart {
    /// Reads a path; an empty one is the home.
    pub(crate) fn parse(path: &[u8]) -> Result<Self, PathError> {
        if path.contains(&0) {
            return Err(PathError::Nul);
        }
        if path.len() > MAX_PATH_LENGTH {
            return Err(PathError::TooLong);
        }
        match path {
            [b'/', ..] => Ok(Self::Absolute(path.to_vec())),
            [b'~'] => Ok(Self::Home(Vec::new())),
            [b'~', b'/', rest @ ..] => Ok(Self::Home(rest.to_vec())),
            [b'~', ..] => Err(PathError::OtherHome),
            relative => Ok(Self::Home(relative.to_vec())),
        }
    }
}

/// `rest` below `home`, without `.`, `..`, and doubled slashes.
///
/// # Errors
/// `TooLong` if the whole is no path any more.
pub(crate) fn below(home: &str, rest: &[u8]) -> Result<Vec<u8>, PathError> {
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in home
        .as_bytes()
        .split(|byte| *byte == b'/')
        .chain(rest.split(|byte| *byte == b'/'))
    {
        match part {
            b"" | b"." => {}
            b".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    let mut whole = Vec::new();
    for part in &parts {
        whole.push(b'/');
        whole.extend_from_slice(part);
    }
    if whole.is_empty() {
        whole.push(b'/');
    }
    if whole.len() > MAX_PATH_LENGTH {
        return Err(PathError::TooLong);
    }
    Ok(whole)
}

/// The last part of a path, for people.
pub(crate) fn name(path: &[u8]) -> String {
    let trimmed = path
        .iter()
        .rposition(|byte| *byte != b'/')
        .map_or(path, |last| &path[..=last]);
    let name = trimmed.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    if name.is_empty() {
        return "/".to_owned();
    }
    text(name)
}

/// Bytes of a sandbox as text; what is no text is replaced.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(path: &str) -> String {
        let whole = match PathStart::parse(path.as_bytes()).unwrap() {
            PathStart::Absolute(path) => path,
            PathStart::Home(rest) => below("/home/user", &rest).unwrap(),
        };
        String::from_utf8(whole).unwrap()
    }

    #[test]
    fn paths_are_joined_to_the_home() {
        for (path, expected) in [
            ("", "/home/user"),
            (".", "/home/user"),
            ("~", "/home/user"),
            ("~/", "/home/user"),
            ("~/a/b", "/home/user/a/b"),
            ("a//b/./c/", "/home/user/a/b/c"),
            ("../x", "/home/x"),
            ("../../../x", "/x"),
            ("../../..", "/"),
            ("/", "/"),
            // As they are: what `..` means after a link is known inside only.
            ("/a/../b/", "/a/../b/"),
            ("a\n..%2e%2e", "/home/user/a\n..%2e%2e"),
            ("..\\x", "/home/user/..\\x"),
        ] {
            assert_eq!(resolved(path), expected, "{path:?}");
        }
    }

    #[test]
    fn what_is_no_path_is_refused() {
        assert_eq!(PathStart::parse(b"a\0b"), Err(PathError::Nul));
        assert_eq!(PathStart::parse(b"~root/x"), Err(PathError::OtherHome));
        assert_eq!(PathStart::parse(&[b'a'; 4096]), Err(PathError::TooLong));
        assert_eq!(below("/home/user", &[b'a'; 4095]), Err(PathError::TooLong));
    }

    #[test]
    fn names_are_the_last_part() {
        for (path, expected) in [
            ("/a/b", "b"),
            ("/a/b/", "b"),
            ("/", "/"),
            ("//", "/"),
            ("/a\u{301}/é", "é"),
        ] {
            assert_eq!(name(path.as_bytes()), expected);
        }
        assert_eq!(name(b"/a/\xff"), "\u{fffd}");
    }
}
