//! Puts this process under a system call filter that was compiled elsewhere.
//!
//! For the guest, where no process of ours is before it that could: one that another program starts.

use alloc::vec::Vec;

use rustix::io::Errno;

use crate::spawn::raw;

/// Bytes of an instruction (`struct sock_filter`).
const INSTRUCTION: usize = 8;
/// The kernel's own limit (`BPF_MAXINSNS`).
const MAX_INSTRUCTIONS: usize = 4096;

/// Puts the calling process, which must have one thread, and all that it starts under the filter, for good. Sets
/// `no_new_privs`.
///
/// `program` is as the kernel takes it: instructions of 8 bytes.
///
/// # Errors
/// `EINVAL` for what is no program; what seccomp(2) answers.
pub fn install(program: &[u8]) -> Result<(), Errno> {
    let count = program.len() / INSTRUCTION;
    if count == 0 || count > MAX_INSTRUCTIONS || !program.len().is_multiple_of(INSTRUCTION) {
        return Err(Errno::INVAL);
    }
    let instruction = |bytes: &[u8]| match *bytes {
        [code_0, code_1, jt, jf, k_0, k_1, k_2, k_3] => Some(libc::sock_filter {
            code: u16::from_ne_bytes([code_0, code_1]),
            jt,
            jf,
            k: u32::from_ne_bytes([k_0, k_1, k_2, k_3]),
        }),
        _ => None,
    };
    let instructions: Vec<libc::sock_filter> = program.chunks_exact(INSTRUCTION).filter_map(instruction).collect();
    rustix::thread::set_no_new_privs(true)?;
    let filter = libc::sock_fprog {
        len: u16::try_from(instructions.len()).map_err(|_| Errno::INVAL)?,
        filter: instructions.as_ptr().cast_mut(),
    };
    let mode = usize::try_from(libc::SECCOMP_SET_MODE_FILTER).map_err(|_| Errno::INVAL)?;
    let arguments = [mode, 0, (&raw const filter).addr(), 0, 0, 0];
    // SAFETY: `filter` points at `len` instructions that outlive the call; the kernel copies and checks them and writes
    // nothing (seccomp(2), Linux 3.17).
    raw::checked(unsafe { raw::call(libc::SYS_seccomp, arguments) }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_program_is_refused() {
        for program in [&[][..], &[0; 7], &[0; 9], &[0; 8 * 4097]] {
            assert_eq!(install(program), Err(Errno::INVAL), "{} bytes", program.len());
        }
    }
}
