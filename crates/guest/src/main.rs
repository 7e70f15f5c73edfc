//! The guest as a program; everything is in the library.
//!
//! With `panic = "abort"`, as the profile `guest` has it, it is the program that runs in sandboxes: without the
//! standard and without a C library. Otherwise it is an ordinary program, which is what tests of the crate start.

#![cfg_attr(panic = "abort", no_std, no_main)]

#[cfg(panic = "abort")]
offleash_sys::program!(offleash_guest::run);

#[cfg(not(panic = "abort"))]
fn main() -> std::process::ExitCode {
    use std::os::unix::ffi::OsStringExt;
    let text = |bytes: Vec<u8>| std::ffi::CString::new(bytes).ok();
    let argv: Vec<_> = std::env::args_os().filter_map(|word| text(word.into_vec())).collect();
    let variable = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        text([name.into_vec(), b"=".to_vec(), value.into_vec()].concat())
    };
    let env: Vec<_> = std::env::vars_os().filter_map(variable).collect();
    let argv: Vec<_> = argv.iter().map(|word| word.as_c_str()).collect();
    let env: Vec<_> = env.iter().map(|variable| variable.as_c_str()).collect();
    offleash_guest::run(&argv, &env).into()
}
