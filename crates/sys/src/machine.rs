//! What the first process of a whole machine does that nobody else does: randomness, addresses, and a first process of another
//! pid namespace, which becomes a program with no more than it is to have.
//!
//! For the guest as init of a virtual machine; needs neither the standard nor a C library.

use alloc::vec::Vec;
use core::ffi::{CStr, c_int, c_ulong};

use rustix::fd::{AsFd, AsRawFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::spawn::raw;

/// `RNDADDENTROPY` and `RNDRESEEDCRNG` (random(4)).
const ADD_ENTROPY: usize = 0x4008_5203;
const RESEED: usize = 0x5207;

/// Most bytes that are given to the kernel's random numbers at once.
pub const MAX_ENTROPY: usize = 256;

/// Gives the kernel randomness that it counts as such, and has it draw on that at once. `device` is `/dev/urandom`.
///
/// # Errors
/// `EINVAL` for none or more than [`MAX_ENTROPY`] bytes; `EPERM` without `CAP_SYS_ADMIN`.
pub fn seed(device: impl AsFd, entropy: &[u8]) -> Result<(), Errno> {
    if entropy.is_empty() || entropy.len() > MAX_ENTROPY {
        return Err(Errno::INVAL);
    }
    // `struct rand_pool_info`: bits, bytes, and as many of them.
    let length = c_int::try_from(entropy.len()).map_err(|_| Errno::INVAL)?;
    let mut pool = Vec::with_capacity(8 + entropy.len());
    pool.extend_from_slice(&(8 * length).to_ne_bytes());
    pool.extend_from_slice(&length.to_ne_bytes());
    pool.extend_from_slice(entropy);
    ioctl(&device, ADD_ENTROPY, pool.as_ptr().expose_provenance())?;
    ioctl(&device, RESEED, 0)
}

/// # Errors
/// What the kernel answered.
fn ioctl(descriptor: impl AsFd, request: usize, argument: usize) -> Result<(), Errno> {
    let number = usize::try_from(descriptor.as_fd().as_raw_fd()).map_err(|_| Errno::BADF)?;
    // SAFETY: private to this file, where each request is given the address of what it takes, complete and alive, or none.
    raw::checked(unsafe { raw::call(libc::SYS_ioctl, [number, request, argument, 0, 0, 0]) }).map(drop)
}

/// `struct ifreq` (netdevice(7)): a name of 16 bytes and a union of 24.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; 16],
    value: [u8; 24],
}

/// `struct rtentry` of 64 bits (net/route.h).
#[repr(C)]
#[derive(Default)]
struct RouteEntry {
    padding_1: c_ulong,
    destination: [u8; 16],
    gateway: [u8; 16],
    mask: [u8; 16],
    flags: u16,
    padding_2: u16,
    padding_3: c_ulong,
    padding_4: usize,
    metric: u16,
    device: usize,
    mtu: c_ulong,
    window: c_ulong,
    round_trip: u16,
}

const SET_FLAGS: usize = 0x8914;
const SET_ADDRESS: usize = 0x8916;
const SET_MASK: usize = 0x891c;
const ADD_ROUTE: usize = 0x890b;
/// `IFF_UP | IFF_RUNNING`, `RTF_UP | RTF_GATEWAY`.
const UP: u16 = 0x41;
const BY_GATEWAY: u16 = 0x3;
const FAMILY_INTERNET: u16 = 2;

fn socket_address(address: [u8; 4]) -> [u8; 16] {
    let mut bytes = [0; 16];
    let [family_0, family_1] = FAMILY_INTERNET.to_ne_bytes();
    let [a, b, c, d] = address;
    for (place, byte) in bytes.iter_mut().zip([family_0, family_1, 0, 0, a, b, c, d]) {
        *place = byte;
    }
    bytes
}

fn on_interface(request: usize, name: &CStr, value: &[u8]) -> Result<(), Errno> {
    let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    let mut filled = InterfaceRequest {
        name: [0; 16],
        value: [0; 24],
    };
    if name.count_bytes() >= filled.name.len() {
        return Err(Errno::NAMETOOLONG);
    }
    for (place, byte) in filled.name.iter_mut().zip(name.to_bytes()) {
        *place = *byte;
    }
    for (place, byte) in filled.value.iter_mut().zip(value) {
        *place = *byte;
    }
    ioctl(socket, request, (&raw const filled).expose_provenance())
}

/// Turns an interface on.
///
/// # Errors
/// `ENODEV` if there is none of that name, `EPERM` without `CAP_NET_ADMIN`.
pub fn interface_up(name: &CStr) -> Result<(), Errno> {
    on_interface(SET_FLAGS, name, &UP.to_ne_bytes())
}

/// Gives an interface its IPv4 address, turns it on, and leads all else to `gateway`.
///
/// # Errors
/// As [`interface_up`]; `EINVAL` for a prefix beyond 32.
pub fn set_address(name: &CStr, address: [u8; 4], prefix: u8, gateway: [u8; 4]) -> Result<(), Errno> {
    if prefix > 32 {
        return Err(Errno::INVAL);
    }
    let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0).to_be_bytes();
    on_interface(SET_ADDRESS, name, &socket_address(address))?;
    on_interface(SET_MASK, name, &socket_address(mask))?;
    interface_up(name)?;
    let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    let route = RouteEntry {
        destination: socket_address([0; 4]),
        gateway: socket_address(gateway),
        mask: socket_address([0; 4]),
        flags: BY_GATEWAY,
        ..RouteEntry::default()
    };
    ioctl(socket, ADD_ROUTE, (&raw const route).expose_provenance())
}

/// Makes the next child of this process the init of a pid namespace.
///
/// # Errors
/// `EPERM` without `CAP_SYS_ADMIN`, `ENOSPC` when namespaces are too deep.
pub fn enclose_next_child() -> Result<(), Errno> {
    unshare(libc::CLONE_NEWPID)
}

/// Gives this process mounts and a view of cgroups of its own.
///
/// # Errors
/// `EPERM` without `CAP_SYS_ADMIN`.
pub fn separate_mounts() -> Result<(), Errno> {
    unshare(libc::CLONE_NEWNS | libc::CLONE_NEWCGROUP)
}

fn unshare(flags: c_int) -> Result<(), Errno> {
    let flags = usize::try_from(flags).map_err(|_| Errno::INVAL)?;
    // SAFETY: no address is passed, and none of the flags concerns memory or descriptors (unshare(2)).
    raw::checked(unsafe { raw::call(libc::SYS_unshare, [flags, 0, 0, 0, 0, 0]) }).map(drop)
}

/// Sets a resource limit of this process (prlimit(2)).
///
/// # Errors
/// `EINVAL` for an unknown resource or a soft limit above the hard one.
pub fn set_limit(resource: u32, soft: u64, hard: u64) -> Result<(), Errno> {
    let resource = usize::try_from(resource).map_err(|_| Errno::INVAL)?;
    let limit = [soft, hard];
    let arguments = [0, resource, (&raw const limit).expose_provenance(), 0, 0, 0];
    // SAFETY: the address is of a `struct rlimit64`, two 64-bit numbers, which the kernel reads; nothing is written.
    raw::checked(unsafe { raw::call(libc::SYS_prlimit64, arguments) }).map(drop)
}

/// Becomes the program that `program` is open at, with these descriptors as 0, 1, 2 and so on and no other, and without an
/// environment.
///
/// Returns only when it failed. The descriptors of this process are of no more use then.
pub fn become_program(program: impl AsFd, name: &CStr, descriptors: &[rustix::fd::BorrowedFd<'_>]) -> Errno {
    match place_and_execute(program.as_fd(), name, descriptors) {
        Ok(()) => Errno::INVAL,
        Err(errno) => errno,
    }
}

/// `CLOSE_RANGE_CLOEXEC` (close_range(2), Linux 5.11).
const AT_EXEC: usize = 4;

fn place_and_execute(
    program: rustix::fd::BorrowedFd<'_>,
    name: &CStr,
    descriptors: &[rustix::fd::BorrowedFd<'_>],
) -> Result<(), Errno> {
    let lowest = c_int::try_from(descriptors.len()).map_err(|_| Errno::MFILE)?;
    // Numbered so high that none is overwritten while they are put in their places.
    let program = rustix::io::fcntl_dupfd_cloexec(program, lowest)?;
    let mut copies = Vec::with_capacity(descriptors.len());
    for descriptor in descriptors {
        copies.push(rustix::io::fcntl_dupfd_cloexec(descriptor, lowest)?);
    }
    for (place, copy) in copies.iter().enumerate() {
        let from = usize::try_from(copy.as_raw_fd()).map_err(|_| Errno::BADF)?;
        // SAFETY: no address is passed; what had the number is given up, as the description says.
        raw::checked(unsafe { raw::call(libc::SYS_dup3, [from, place, 0, 0, 0, 0]) })?;
    }
    let range = [descriptors.len(), raw::LAST_DESCRIPTOR, AT_EXEC, 0, 0, 0];
    // SAFETY: no address is passed, and nothing is closed before the exec.
    raw::checked(unsafe { raw::call(libc::SYS_close_range, range) })?;
    let argv = [name.as_ptr(), core::ptr::null()];
    let envp: [*const core::ffi::c_char; 1] = [core::ptr::null()];
    let arguments = [
        usize::try_from(program.as_raw_fd()).map_err(|_| Errno::BADF)?,
        c"".as_ptr().expose_provenance(),
        argv.as_ptr().expose_provenance(),
        envp.as_ptr().expose_provenance(),
        usize::try_from(libc::AT_EMPTY_PATH).unwrap_or(0),
        0,
    ];
    // SAFETY: the arrays end with null pointers and what they point to are C strings; all outlive the call.
    raw::checked(unsafe { raw::call(libc::SYS_execveat, arguments) }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_the_sizes_that_the_kernel_takes() {
        assert_eq!(size_of::<InterfaceRequest>(), 40);
        // `struct rtentry` of a 64-bit machine.
        assert_eq!(size_of::<RouteEntry>(), 120);
        assert_eq!(socket_address([10, 0, 2, 15])[4..8], [10, 0, 2, 15]);
    }

    #[test]
    fn randomness_is_bounded_and_a_prefix_too() {
        let null = rustix::fs::open("/dev/null", rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty()).unwrap();
        assert_eq!(seed(&null, &[]), Err(Errno::INVAL));
        assert_eq!(seed(&null, &[0; MAX_ENTROPY + 1]), Err(Errno::INVAL));
        assert_eq!(set_address(c"lo", [127, 0, 0, 1], 33, [0; 4]), Err(Errno::INVAL));
        assert_eq!(interface_up(c"a-name-that-is-too-long"), Err(Errno::NAMETOOLONG));
    }
}
