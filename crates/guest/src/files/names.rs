//! Names of users and groups, as the files inside have them.

use alloc::vec::Vec;

use offleash_sys::spawn;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

/// As much of `/etc/passwd` and `/etc/group` is read; they are what somebody inside made of them.
const MOST: usize = 1024 * 1024;

/// Longest name that is taken over.
const LONGEST: usize = 256;

/// The names for one request.
#[derive(Debug, Default)]
pub(super) struct Names {
    users: Table,
    groups: Table,
}

impl Names {
    pub(super) fn user(&mut self, id: u32) -> Vec<u8> {
        self.users.name(b"/etc/passwd", id)
    }

    pub(super) fn group(&mut self, id: u32) -> Vec<u8> {
        self.groups.name(b"/etc/group", id)
    }
}

/// One of the two files, read when it is needed first, and what was looked for last.
#[derive(Debug, Default)]
struct Table {
    text: Option<Vec<u8>>,
    last: Option<(u32, Vec<u8>)>,
}

impl Table {
    fn name(&mut self, path: &[u8], id: u32) -> Vec<u8> {
        match &self.last {
            Some((known, name)) if *known == id => name.clone(),
            _ => {
                let text = self.text.get_or_insert_with(|| read(path).unwrap_or_default());
                let name = found(text, id);
                self.last = Some((id, name.clone()));
                name
            }
        }
    }
}

/// The first field of the line whose third field is the number; the number if there is none (passwd(5), group(5)).
fn found(text: &[u8], id: u32) -> Vec<u8> {
    let mut number = Vec::new();
    spawn::append_decimal(&mut number, id);
    let of_line = |line: &[u8]| {
        let mut fields = line.split(|byte| *byte == b':');
        let name = fields.next().filter(|name| (1..=LONGEST).contains(&name.len()))?;
        (fields.nth(1)? == number).then(|| name.to_vec())
    };
    text.split(|byte| *byte == b'\n').find_map(of_line).unwrap_or(number)
}

fn read(path: &[u8]) -> Result<Vec<u8>, Errno> {
    // It need not be a regular file, and opening something else must not wait.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    if FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) != FileType::RegularFile {
        return Err(Errno::INVAL);
    }
    let (mut text, mut piece) = (Vec::new(), [0; 4096]);
    while text.len() < MOST {
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

    #[test]
    fn names_are_found_by_number() {
        let text =
            b"root:x:0:0:root:/root:/bin/sh\n\nbad\n:x:5:\nuser:x:1000:1000::/home/user:/bin/bash\nother:x:1000:1:::";
        for (id, name) in [
            (0, "root"),
            (1000, "user"),
            (5, "5"),
            (77, "77"),
            (u32::MAX, "4294967295"),
        ] {
            assert_eq!(found(text, id), name.as_bytes());
        }
    }
}
