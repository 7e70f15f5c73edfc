//! Whether the kernel's virtual machines (KVM) run a guest: found out by running the least one there is.
//!
//! A device that opens says little: a kernel in a virtual machine of its own may have it and run nothing. Deliberately not
//! here: machines that do anything (<https://docs.kernel.org/virt/kvm/api.html>).

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags};

/// The version that every kernel since 2.6.22 has.
const VERSION: i32 = 12;
const GET_API_VERSION: libc::c_ulong = 0xae00;
const CREATE_VM: libc::c_ulong = 0xae01;
const GET_VCPU_MMAP_SIZE: libc::c_ulong = 0xae04;
const CREATE_VCPU: libc::c_ulong = 0xae41;
const SET_USER_MEMORY_REGION: libc::c_ulong = 0x4020_ae46;
const SET_TSS_ADDR: libc::c_ulong = 0xae47;
const RUN: libc::c_ulong = 0xae80;
const SET_REGS: libc::c_ulong = 0x4090_ae82;
const GET_SREGS: libc::c_ulong = 0x8138_ae83;
const SET_SREGS: libc::c_ulong = 0x4138_ae84;
/// Why a processor came back (`KVM_EXIT_HLT`), and where that is in what it shares with us.
const HALTED: u32 = 5;
const REASON_AT: usize = 8;
/// The guest's memory: one page, at this address.
const PAGE: usize = 4096;
const PAGE_AT: u64 = 0x1000;
/// `hlt`.
const CODE: u8 = 0xf4;
/// Three pages that older processors need for real mode, where nothing else is.
const TSS_AT: u64 = 0xfffb_d000;

/// The device.
pub const DEVICE: &str = "/dev/kvm";

/// Opens the device of that path to speak to it.
///
/// # Errors
/// What open(2) answers.
pub fn open(device: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(device, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}

/// Why no guest runs.
#[derive(Debug, thiserror::Error)]
#[error("{step}: {source}")]
pub struct KvmFault {
    /// What was tried.
    step: &'static str,
    /// What came of it.
    source: io::Error,
}

impl KvmFault {
    fn at(step: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self { step, source }
    }
}

/// Runs a guest of one page and one processor, whose only instruction is `hlt`. `device` is `/dev/kvm`. Blocks for as long as
/// the guest runs.
///
/// # Errors
/// The step that failed, and why; always on processors that are not x86.
pub fn run_least_guest(device: BorrowedFd<'_>) -> Result<(), KvmFault> {
    if !cfg!(target_arch = "x86_64") {
        return Err(KvmFault::at("running a guest")(io::ErrorKind::Unsupported.into()));
    }
    let version = number(device, GET_API_VERSION, 0).map_err(KvmFault::at("asking for the version"))?;
    if version != VERSION {
        let found = io::Error::other(format!("it is {version}, not {VERSION}"));
        return Err(KvmFault::at("asking for the version")(found));
    }
    let machine = descriptor(device, CREATE_VM, 0).map_err(KvmFault::at("making a machine"))?;
    let memory = SharedPages::anonymous().map_err(KvmFault::at("making its memory"))?;
    memory.write_first(CODE);
    let mut region = [0_u64; 4]; // slot and flags, guest_phys_addr, memory_size, userspace_addr
    region[1] = PAGE_AT;
    region[2] = PAGE as u64;
    region[3] = memory.address as u64;
    with(machine.as_fd(), SET_USER_MEMORY_REGION, &mut region).map_err(KvmFault::at("giving it memory"))?;
    number(machine.as_fd(), SET_TSS_ADDR, TSS_AT).map_err(KvmFault::at("preparing real mode"))?;
    let processor = descriptor(machine.as_fd(), CREATE_VCPU, 0).map_err(KvmFault::at("making a processor"))?;
    let size = number(device, GET_VCPU_MMAP_SIZE, 0).map_err(KvmFault::at("asking what it shares"))?;
    let size = usize::try_from(size).unwrap_or(0).max(PAGE);
    let shared = SharedPages::of(processor.as_fd(), size).map_err(KvmFault::at("mapping what it shares"))?;
    let setting = || KvmFault::at("setting its registers");
    let mut special = [0_u64; 39]; // struct kvm_sregs; `cs` comes first: base, limit, selector …
    with(processor.as_fd(), GET_SREGS, &mut special).map_err(setting())?;
    special[0] = 0;
    special[1] &= !(0xffff << 32);
    with(processor.as_fd(), SET_SREGS, &mut special).map_err(setting())?;
    let mut registers = [0_u64; 18]; // struct kvm_regs; `rip` and `rflags` come last
    registers[16] = PAGE_AT;
    registers[17] = 2;
    with(processor.as_fd(), SET_REGS, &mut registers).map_err(setting())?;
    number(processor.as_fd(), RUN, 0).map_err(KvmFault::at("running it"))?;
    match shared.word(REASON_AT) {
        HALTED => Ok(()),
        reason => Err(KvmFault::at("running it")(io::Error::other(format!(
            "it stopped for reason {reason}, not because it halted"
        )))),
    }
}

/// A call whose argument is a number.
fn number(of: BorrowedFd<'_>, request: libc::c_ulong, argument: u64) -> io::Result<i32> {
    // SAFETY: the requests that are made here take no address, and touch no memory of ours but what the guest was given,
    // which outlives it (docs.kernel.org/virt/kvm/api.html).
    let answer = unsafe { libc::ioctl(of.as_raw_fd(), request, argument) };
    match answer {
        0.. => Ok(answer),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The same that answers a new descriptor.
fn descriptor(of: BorrowedFd<'_>, request: libc::c_ulong, argument: u64) -> io::Result<OwnedFd> {
    let made = number(of, request, argument)?;
    // SAFETY: the requests that are made here answer a new descriptor, which nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(made) })
}

/// A call that reads or writes a structure of this size, which is part of the request's number.
fn with<const WORDS: usize>(of: BorrowedFd<'_>, request: libc::c_ulong, words: &mut [u64; WORDS]) -> io::Result<()> {
    // SAFETY: the kernel reads or writes as many bytes as the request's number says, and each caller passes an array of that
    // size.
    let answer = unsafe { libc::ioctl(of.as_raw_fd(), request, words.as_mut_ptr()) };
    match answer {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Memory that others write to, too.
struct SharedPages {
    address: *mut libc::c_void,
    size: usize,
}

impl SharedPages {
    fn anonymous() -> io::Result<Self> {
        let both = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses where; nothing of ours is mapped over.
        let address = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), PAGE, both, MapFlags::SHARED) }?;
        Ok(Self { address, size: PAGE })
    }

    fn of(descriptor: BorrowedFd<'_>, size: usize) -> io::Result<Self> {
        let both = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: as above.
        let address = unsafe { rustix::mm::mmap(std::ptr::null_mut(), size, both, MapFlags::SHARED, descriptor, 0) }?;
        Ok(Self { address, size })
    }

    fn write_first(&self, byte: u8) {
        // SAFETY: at least a page is mapped there for writing, and no reference to it exists.
        unsafe { self.address.cast::<u8>().write_volatile(byte) };
    }

    /// The word at this offset, which is within the first page and a multiple of four.
    fn word(&self, offset: usize) -> u32 {
        let place = self.address.cast::<u32>().wrapping_byte_add(offset);
        // SAFETY: at least a page is mapped there for reading; whoever writes to it is not running now.
        unsafe { place.read_volatile() }
    }
}

impl Drop for SharedPages {
    fn drop(&mut self) {
        // SAFETY: mapped by us with this size, and no reference to it exists.
        let _unmapped = unsafe { rustix::mm::munmap(self.address, self.size) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_kvm_is_told_by_the_step_that_failed() {
        let other = std::fs::File::open("/dev/null").unwrap();
        let fault = run_least_guest(other.as_fd()).unwrap_err();
        let expected = match cfg!(target_arch = "x86_64") {
            true => "asking for the version",
            false => "running a guest",
        };
        assert_eq!(fault.step, expected, "{fault}");
    }
}
