//! System calls by number, without a C library.
//!
//! The child of a `vfork` may not touch the C library's state (it is its parent's), and the guest has no C library at
//! all. Answers are the kernel's: a negative number is an error. Only what rustix does not offer is called this way.

use core::ffi::c_long;

use rustix::io::Errno;

/// As high as the number of a descriptor can be: gVisor takes no higher one as the end of a range, which Linux does.
pub(crate) const LAST_DESCRIPTOR: usize = i32::MAX as usize;

/// Calls the kernel.
///
/// # Safety
/// The arguments must be what system call `number` takes: every address among them valid for what the call does.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn call(number: c_long, arguments: [usize; 6]) -> isize {
    let result: isize;
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the x86_64 convention (syscall(2)); the kernel changes rax, rcx and r11 only. The rest is the caller's.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// Calls the kernel.
///
/// # Safety
/// The arguments must be what system call `number` takes: every address among them valid for what the call does.
#[cfg(target_arch = "aarch64")]
pub(crate) unsafe fn call(number: c_long, arguments: [usize; 6]) -> isize {
    let result: isize;
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the arm64 convention (syscall(2)); the kernel changes x0 only. The rest is the caller's.
    unsafe {
        core::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a => result,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
            options(nostack),
        );
    }
    result
}

/// Makes a child that shares this process's memory and runs `body(argument)` on `stack_top`, and waits until the child
/// has called execve or ended (clone(2), `CLONE_VM | CLONE_VFORK`).
///
/// # Safety
/// `stack_top` is the 16-byte aligned end of memory that nothing else uses meanwhile and that is enough for `body`;
/// `argument` is what `body` takes; `body` never returns, allocates nothing, takes no lock and touches no thread-local
/// variable, because all of these are its parent's.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn clone_and_wait(
    stack_top: *mut u8,
    body: unsafe extern "C" fn(*mut core::ffi::c_void) -> !,
    argument: *mut core::ffi::c_void,
) -> isize {
    let result: isize;
    // SAFETY: in the parent this is an ordinary system call. In the child the stack pointer is `stack_top` and all
    // other registers are as before, so that `body` is called with an aligned stack and does not come back.
    unsafe {
        core::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r12",
            "call r13",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone => result,
            in("rdi") CLONE_FLAGS,
            in("rsi") stack_top,
            in("rdx") 0, in("r10") 0, in("r8") 0,
            in("r12") argument,
            in("r13") body,
            lateout("rcx") _, lateout("r11") _,
        );
    }
    result
}

/// Makes a child that shares this process's memory and runs `body(argument)` on `stack_top`, and waits until the child
/// has called execve or ended (clone(2), `CLONE_VM | CLONE_VFORK`).
///
/// # Safety
/// `stack_top` is the 16-byte aligned end of memory that nothing else uses meanwhile and that is enough for `body`;
/// `argument` is what `body` takes; `body` never returns, allocates nothing, takes no lock and touches no thread-local
/// variable, because all of these are its parent's.
#[cfg(target_arch = "aarch64")]
pub(crate) unsafe fn clone_and_wait(
    stack_top: *mut u8,
    body: unsafe extern "C" fn(*mut core::ffi::c_void) -> !,
    argument: *mut core::ffi::c_void,
) -> isize {
    let result: isize;
    // SAFETY: in the parent this is an ordinary system call. In the child the stack pointer is `stack_top` and all
    // other registers are as before, so that `body` is called with an aligned stack and does not come back.
    unsafe {
        core::arch::asm!(
            "svc 0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "mov x30, xzr",
            "mov x0, x9",
            "blr x10",
            "brk 1",
            "2:",
            in("x8") libc::SYS_clone,
            inlateout("x0") CLONE_FLAGS => result,
            in("x1") stack_top,
            in("x2") 0, in("x3") 0, in("x4") 0,
            in("x9") argument,
            in("x10") body,
        );
    }
    result
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("system calls are written down for x86_64 and aarch64 only");

const CLONE_FLAGS: usize = (libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD) as usize;

/// The kernel's answer as a `Result`.
pub(crate) fn checked(answer: isize) -> Result<usize, Errno> {
    usize::try_from(answer).map_err(|_| Errno::from_raw_os_error(errno(answer)))
}

/// The error number in the kernel's answer; zero if it is none.
pub(crate) fn errno(answer: isize) -> i32 {
    if answer < 0 {
        i32::try_from(-answer).unwrap_or(libc::EIO)
    } else {
        0
    }
}
