//! The guest agent's program, which is part of this one.
//!
//! A sandbox can reach what its init was exec'd from through `/proc/1/exe` (CVE-2019-5736), so it is exec'd from a file
//! that lets nothing be changed: one of the state directory, by way of a mount that is read only and is the file alone, so
//! that all sandboxes share its pages; or, where no file can be executed there, a sealed memory file. Deliberately not
//! here: how it is started.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, SealFlags};

/// The program: a static ELF file that needs neither an interpreter nor relocation.
pub static GUEST: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/guest.bin"));

/// What tells the program of this build from those of others, for a file's name.
pub const DIGEST: &str = env!("OFFLEASH_GUEST_DIGEST");

/// The guest in a memory file that nobody can change any more, closed at exec.
///
/// One file may serve any number of sandboxes: it cannot be written, and each exec opens it anew.
///
/// # Errors
/// `EACCES` where executable memory files are forbidden (`vm.memfd_noexec=2`), `ENOMEM`, `EMFILE`.
pub fn sealed_memfd() -> io::Result<OwnedFd> {
    let file = create()?;
    let mut rest = GUEST;
    while !rest.is_empty() {
        let count = rustix::io::retry_on_intr(|| rustix::io::write(&file, rest))?;
        rest = rest.get(count..).unwrap_or_default();
    }
    rustix::fs::fcntl_add_seals(
        &file,
        SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE,
    )?;
    Ok(file)
}

fn create() -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match rustix::fs::memfd_create(c"offleash-guest", flags | MemfdFlags::EXEC) {
        // Before Linux 6.3 the flag is unknown, and every memory file can be executed (memfd_create(2)).
        Err(rustix::io::Errno::INVAL) => Ok(rustix::fs::memfd_create(c"offleash-guest", flags)?),
        created => Ok(created?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The 16-bit number at an offset.
    fn half(offset: usize) -> u16 {
        u16::from_le_bytes([GUEST[offset], GUEST[offset + 1]])
    }

    /// The type of each program header (elf(5), 64 bits, little-endian).
    fn segment_types() -> Vec<u32> {
        let table = usize::try_from(u64::from_le_bytes(GUEST[32..40].try_into().unwrap())).unwrap();
        let (size, count) = (usize::from(half(54)), usize::from(half(56)));
        let kind = |index| GUEST[table + index * size..][..4].try_into().unwrap();
        (0..count).map(|index| u32::from_le_bytes(kind(index))).collect()
    }

    #[test]
    fn the_guest_is_a_small_static_program_at_a_fixed_address() {
        const EXECUTABLE: u16 = 2;
        let (dynamic, interpreter, thread_local) = (2, 3, 7);
        assert_eq!(&GUEST[..6], b"\x7fELF\x02\x01");
        assert_eq!(half(16), EXECUTABLE);
        let types = segment_types();
        for refused in [dynamic, interpreter, thread_local] {
            assert!(
                !types.contains(&refused),
                "a segment of type {refused}: a C library slipped in"
            );
        }
        assert!(GUEST.len() < 280 * 1024, "{} bytes", GUEST.len());
    }

    #[test]
    fn the_memory_file_holds_the_guest_and_cannot_be_changed() {
        let file = sealed_memfd().unwrap();
        let mut content = vec![0; GUEST.len() + 1];
        assert_eq!(rustix::io::pread(&file, &mut content, 0), Ok(GUEST.len()));
        assert!(content[..GUEST.len()] == *GUEST);
        let refused = rustix::io::Errno::PERM;
        assert_eq!(rustix::io::pwrite(&file, b"x", 0), Err(refused));
        assert_eq!(rustix::fs::ftruncate(&file, 0), Err(refused));
        assert_eq!(rustix::fs::ftruncate(&file, 1 << 20), Err(refused));
        assert_eq!(rustix::fs::fcntl_add_seals(&file, SealFlags::WRITE), Err(refused));
        // Nor by way of a new opening of it, which is what a sandbox would try through `/proc/1/exe`.
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        let reopened = rustix::fs::open(path, rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty()).unwrap();
        assert_eq!(rustix::io::write(&reopened, b"x"), Err(refused));
    }
}
