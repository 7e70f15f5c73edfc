//! Which TCP ports something listens on: read from the kernel's tables, which begin with those.

use alloc::vec::Vec;

use offleash_protocol::vm::MAX_LISTENING_PORTS;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};

/// How often the tables are looked at, milliseconds.
pub(super) const INTERVAL: i64 = 100;

/// `TCP_LISTEN`, as the tables have it.
const LISTENS: &[u8] = b"0A";

/// The kernel's tables, and what they said last.
pub(super) struct ListenerTables {
    tables: Vec<OwnedFd>,
    known: Vec<u16>,
}

impl ListenerTables {
    pub(super) fn open() -> Self {
        let open = |path| rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok();
        Self {
            tables: [c"/proc/net/tcp", c"/proc/net/tcp6"]
                .into_iter()
                .filter_map(open)
                .collect(),
            known: Vec::new(),
        }
    }

    /// All ports, in order, if they are others than before.
    pub(super) fn changed(&mut self) -> Option<Vec<u16>> {
        let mut ports = Vec::new();
        for table in &self.tables {
            collect(table, &mut ports);
        }
        ports.sort_unstable();
        ports.dedup();
        ports.truncate(MAX_LISTENING_PORTS);
        if ports == self.known {
            return None;
        }
        self.known.clone_from(&ports);
        Some(ports)
    }
}

/// Reads a table from its beginning to the first line that is no listener's.
fn collect(table: &OwnedFd, ports: &mut Vec<u16>) {
    let (mut text, mut offset) = (Vec::new(), 0);
    let mut piece = [0; 4096];
    let mut is_first = true;
    while let Ok(count @ 1..) = rustix::io::pread(table, &mut piece, offset) {
        offset += u64::try_from(count).unwrap_or(0);
        text.extend_from_slice(piece.get(..count).unwrap_or_default());
        while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = text.drain(..=end).collect();
            if core::mem::take(&mut is_first) {
                continue;
            }
            match listening(&line) {
                Some(port) => ports.push(port),
                None => return,
            }
        }
    }
}

/// The port of a line of a table, if it is a listener's: `sl local_address rem_address st …` (proc(5)).
fn listening(line: &[u8]) -> Option<u16> {
    let mut fields = line
        .split(|byte| *byte == b' ')
        .filter(|field| !field.is_empty())
        .skip(1);
    let (local, state) = (fields.next()?, fields.nth(1)?);
    if state != LISTENS {
        return None;
    }
    let port = local.rsplit(|byte| *byte == b':').next()?;
    u16::from_str_radix(core::str::from_utf8(port).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lines_of_listeners_have_a_port() {
        let rest = "00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0\n";
        let line = |head: &str| alloc::format!("{head} {rest}");
        assert_eq!(
            listening(line("   0: 0100007F:1F90 00000000:0000 0A").as_bytes()),
            Some(8080)
        );
        let six = "   1: 00000000000000000000000001000000:0016 00000000000000000000000000000000:0000 0A";
        assert_eq!(listening(line(six).as_bytes()), Some(22));
        assert_eq!(listening(line("   2: 0100007F:1F90 0100007F:9C40 01").as_bytes()), None);
        assert_eq!(listening(b"\n"), None);
        assert_eq!(listening(b"  0: x 00000000:0000 0A\n"), None);
    }
}
