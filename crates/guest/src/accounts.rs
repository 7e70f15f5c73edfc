//! Users and groups, as `/etc/passwd` and `/etc/group` inside have them (passwd(5), group(5)).

use alloc::vec::Vec;

use offleash_sys::spawn;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

/// As much of a file is read; it is what somebody inside made of it.
const MAX_COUNT: usize = 1024 * 1024;

pub(crate) const PASSWD: &[u8] = b"/etc/passwd";
pub(crate) const GROUP: &[u8] = b"/etc/group";

/// One line of `/etc/passwd`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PasswdEntry {
    pub(crate) name: Vec<u8>,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) home: Vec<u8>,
    pub(crate) shell: Vec<u8>,
}

impl PasswdEntry {
    /// The first line that says what is asked for.
    pub(crate) fn find(text: &[u8], is_it: impl Fn(&PasswdEntry) -> bool) -> Option<Self> {
        lines(text).filter_map(Self::parse).find(is_it)
    }

    fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(|byte| *byte == b':');
        let name = fields.next().filter(|name| !name.is_empty())?.to_vec();
        let (uid, gid) = (number(fields.nth(1)?)?, number(fields.next()?)?);
        let (home, shell) = (fields.nth(1)?.to_vec(), fields.next()?.to_vec());
        Some(Self {
            name,
            uid,
            gid,
            home,
            shell,
        })
    }
}

/// The first field of the line whose third one is the number; the number in decimal if there is none.
pub(crate) fn name_of(text: &[u8], id: u32) -> Vec<u8> {
    /// Longest name that is taken over.
    const MAX_LENGTH: usize = 256;
    let of_line = |line: &[u8]| {
        let mut fields = line.split(|byte| *byte == b':');
        let name = fields.next().filter(|name| (1..=MAX_LENGTH).contains(&name.len()))?;
        (number(fields.nth(1)?)? == id).then(|| name.to_vec())
    };
    lines(text).find_map(of_line).unwrap_or_else(|| decimal(id))
}

/// A number as text.
pub(crate) fn decimal(number: u32) -> Vec<u8> {
    let mut text = Vec::new();
    spawn::append_decimal(&mut text, number);
    text
}

/// A number from text.
pub(crate) fn number(text: &[u8]) -> Option<u32> {
    core::str::from_utf8(text).ok()?.parse().ok()
}

fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| *byte == b'\n')
}

/// The beginning of a regular file.
pub(crate) fn read(path: &[u8]) -> Result<Vec<u8>, Errno> {
    // It need not be a regular file, and opening something else must not wait.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    if FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) != FileType::RegularFile {
        return Err(Errno::INVAL);
    }
    let (mut text, mut piece) = (Vec::new(), [0; 4096]);
    while text.len() < MAX_COUNT {
        match rustix::io::read(&file, &mut piece)? {
            0 => break,
            count => text.extend_from_slice(&piece[..count]),
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] =
        b"root:x:0:0:root:/root:/bin/sh\n\nbad\n:x:5:\nuser:x:1000:100:,:/home/user:/bin/bash\nother:x:1000:1:::";

    #[test]
    fn names_are_found_by_number() {
        for (id, name) in [
            (0, "root"),
            (1000, "user"),
            (5, "5"),
            (77, "77"),
            (u32::MAX, "4294967295"),
        ] {
            assert_eq!(name_of(TEXT, id), name.as_bytes());
        }
    }

    #[test]
    fn accounts_are_found_by_what_they_say() {
        let user = PasswdEntry::find(TEXT, |account| account.name == b"user").expect("it is there");
        assert_eq!((user.uid, user.gid), (1000, 100));
        assert_eq!(
            (&user.home[..], &user.shell[..]),
            (&b"/home/user"[..], &b"/bin/bash"[..])
        );
        assert_eq!(PasswdEntry::find(TEXT, |account| account.uid == 1000), Some(user));
        assert_eq!(PasswdEntry::find(TEXT, |account| account.name == b"bad"), None);
    }
}
