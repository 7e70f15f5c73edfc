//! What a program without the standard and without a C library needs to run: an entry point, a heap, copying of
//! memory, and an end for what cannot happen.
//!
//! Only for a statically linked program of one thread that is compiled with `panic = "abort"`: the guest. A C library
//! spends half a millisecond on finding out what the processor can do (`cpuid` is slow in a virtual machine) before
//! `main` runs, at every start of a sandbox.

mod heap;
mod memory;

use alloc::vec::Vec;
use core::ffi::{CStr, c_char};

use crate::spawn::raw;

pub use heap::BareHeap;

/// Makes `$main`, a `fn(&[&CStr], &[&CStr]) -> u8`, the program: it gets its arguments, its name first, and its
/// environment, and answers the exit code.
///
/// The memory that the program starts with is laid out as `execve` leaves it (the System V ABI's "initial process
/// stack"): the number of arguments, then pointers to them.
#[macro_export]
macro_rules! program {
    ($main:path) => {
        #[global_allocator]
        static HEAP: $crate::bare::BareHeap = $crate::bare::BareHeap::new();

        #[expect(unsafe_code, reason = "the linker finds the entry point by its name")]
        const _: () = {
            /// Where the kernel starts the program.
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            extern "C" fn _start() -> ! {
                #[cfg(target_arch = "x86_64")]
                ::core::arch::naked_asm!(
                    "xor ebp, ebp",
                    "mov rdi, rsp",
                    "lea rsi, [rip + {main}]",
                    "and rsp, -16",
                    "call {begin}",
                    "ud2",
                    main = sym $main,
                    begin = sym $crate::bare::begin,
                );
                #[cfg(target_arch = "aarch64")]
                ::core::arch::naked_asm!(
                    "mov x29, xzr",
                    "mov x30, xzr",
                    "mov x0, sp",
                    "adrp x1, {main}",
                    "add x1, x1, :lo12:{main}",
                    "bl {begin}",
                    "brk 1",
                    main = sym $main,
                    begin = sym $crate::bare::begin,
                );
            }
        };
    };
}

/// Runs the program; called by what [`program!`] writes, and by nothing else.
///
/// # Safety
/// `stack` is the stack pointer that the kernel started the program with.
#[expect(
    improper_ctypes_definitions,
    reason = "a function pointer is one register, and both sides are this program"
)]
pub unsafe extern "C" fn begin(stack: *const usize, main: fn(&[&'static CStr], &[&'static CStr]) -> u8) -> ! {
    // SAFETY: as the caller promises, the number of arguments is the first word.
    let count = unsafe { *stack };
    // SAFETY: the words behind it are pointers to as many arguments, and a null pointer.
    let argv = unsafe { strings(stack.wrapping_add(1)) };
    // SAFETY: behind them are pointers to the variables of the environment, and a null pointer.
    let env = unsafe { strings(stack.wrapping_add(count + 2)) };
    exit(main(&argv, &env))
}

/// The strings that an array of pointers leads to.
///
/// # Safety
/// The array ends with a null pointer, and each string with a zero byte; both stay where they are.
unsafe fn strings(array: *const usize) -> Vec<&'static CStr> {
    let (mut found, mut next) = (Vec::new(), array.cast::<*const c_char>());
    loop {
        // SAFETY: at most the null pointer at the end of the array, as the caller promises.
        let string = unsafe { *next };
        if string.is_null() {
            return found;
        }
        // SAFETY: as the caller promises.
        found.push(unsafe { CStr::from_ptr(string) });
        // SAFETY: this was not the last one.
        next = unsafe { next.add(1) };
    }
}

/// Ends the program.
fn exit(code: u8) -> ! {
    loop {
        // SAFETY: no address is passed, and the call does not return.
        unsafe { raw::call(libc::SYS_exit_group, [usize::from(code), 0, 0, 0, 0, 0]) };
    }
}

/// A defect: nobody could read a message, so the code is all there is.
#[cfg_attr(not(test), panic_handler)]
#[cfg_attr(test, expect(dead_code, reason = "the test program has its own"))]
fn panicked(_: &core::panic::PanicInfo<'_>) -> ! {
    exit(101)
}
