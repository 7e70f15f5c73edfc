//! The guest as a program; everything is in the library.
//!
//! With `panic = "abort"`, as the profile `guest` has it, it is the program that runs in sandboxes: without the
//! standard and without a C library. Otherwise it is an ordinary program, which is what tests of the crate start.

#![cfg_attr(panic = "abort", no_std, no_main)]

#[cfg(panic = "abort")]
offleash_sys::program!(offleash_guest::run);

#[cfg(not(panic = "abort"))]
fn main() -> std::process::ExitCode {
    let argument = std::env::args_os()
        .nth(1)
        .map(std::os::unix::ffi::OsStringExt::into_vec);
    let argument = argument.and_then(|word| std::ffi::CString::new(word).ok());
    offleash_guest::run(argument.as_deref()).into()
}
