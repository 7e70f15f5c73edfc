//! Types and permissions of files, as the kernel counts them and as Go writes them.

/// Types of files in `st_mode` (inode(7)).
const TYPE: u32 = 0o170_000;
const SOCKET: u32 = 0o140_000;
const LINK: u32 = 0o120_000;
const REGULAR: u32 = 0o100_000;
const BLOCK: u32 = 0o060_000;
const DIRECTORY_TYPE: u32 = 0o040_000;
const CHARACTER: u32 = 0o020_000;
const FIFO: u32 = 0o010_000;

/// The type among the bits of `st_mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileKind {
    Regular,
    Directory,
    Link,
    Other,
}

impl FileKind {
    /// What `st_mode` says.
    pub(crate) fn of(mode: u32) -> Self {
        match mode & TYPE {
            REGULAR => Self::Regular,
            DIRECTORY_TYPE => Self::Directory,
            LINK => Self::Link,
            _ => Self::Other,
        }
    }
}

/// Type and permissions in one word, as Go writes them (<https://pkg.go.dev/io/fs#FileMode.String>).
pub(crate) fn permissions(mode: u32) -> String {
    const BITS: &str = "rwxrwxrwx";
    let mut word = String::with_capacity(12);
    match mode & TYPE {
        DIRECTORY_TYPE => word.push('d'),
        LINK => word.push('L'),
        BLOCK => word.push('D'),
        CHARACTER => word.push_str("Dc"),
        FIFO => word.push('p'),
        SOCKET => word.push('S'),
        _ => {}
    }
    // The order of Go's letters: "dalTLDpSugct?", of which `c` comes before `t`.
    let is_character = word == "Dc";
    if is_character {
        word.pop();
    }
    for (bit, letter) in [(0o4000, 'u'), (0o2000, 'g')] {
        if mode & bit != 0 {
            word.push(letter);
        }
    }
    if is_character {
        word.push('c');
    }
    if mode & 0o1000 != 0 {
        word.push('t');
    }
    if word.is_empty() {
        word.push('-');
    }
    for (place, letter) in BITS.chars().enumerate() {
        let is_set = mode & (0o400 >> place) != 0;
        word.push(if is_set { letter } else { '-' });
    }
    word
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_are_written_as_go_writes_them() {
        for (mode, expected) in [
            (0o100_644, "-rw-r--r--"),
            (0o040_755, "drwxr-xr-x"),
            (0o120_777, "Lrwxrwxrwx"),
            (0o041_777, "dtrwxrwxrwx"),
            (0o104_755, "urwxr-xr-x"),
            (0o102_755, "grwxr-xr-x"),
            (0o106_711, "ugrwx--x--x"),
            (0o020_666, "Dcrw-rw-rw-"),
            (0o060_660, "Drw-rw----"),
            (0o010_600, "prw-------"),
            (0o140_755, "Srwxr-xr-x"),
            (0o100_000, "----------"),
        ] {
            assert_eq!(permissions(mode), expected, "{mode:o}");
        }
    }
}
