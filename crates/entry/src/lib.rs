//! What a process of offleash does before it has a C library: hands a run to a sandbox that waits for it.
//!
//! A statically linked C library takes half a millisecond at each start to find out what the processor can do (`cpuid` is
//! slow in a virtual machine), the standard library's start and the pages of a large program take as much again, and a run that
//! only passes its words and streams on needs neither. So the program starts here ([`start`]); what is not handed over goes on
//! at the C library's own entry point as if nothing had been before it.
//!
//! Nothing here may call a function of a C library, not even `memcpy`, which is found when the library starts. So:
//! no structure is moved that is too large for registers, slices are neither copied nor compared by the standard's
//! functions but byte by byte, and the compiler may not take such loops for what they are (`no_builtins`). A test looks at
//! what the compiled code asks the linker for.
//!
//! What a run and the holder of its sandbox have to say in the same way is here, too, and used by both: how words are taken
//! apart ([`words`]), and the key by which they find each other ([`key`]).

#![no_std]
#![no_builtins]

#[cfg(test)]
extern crate std;

pub mod buffer;
mod find;
pub mod hand_over;
mod kernel;
pub mod key;
pub mod message;
mod origin;
pub mod start;
pub mod strings;
pub mod words;

/// The signals that a run passes on to what runs for it.
pub const SIGNALS: [i32; 8] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGPIPE,
    libc::SIGTERM,
    libc::SIGWINCH,
];
