//! The guest as a program; everything is in the library.

fn main() -> std::process::ExitCode {
    let argument = std::env::args_os()
        .nth(1)
        .map(std::os::unix::ffi::OsStringExt::into_vec);
    let argument = argument.and_then(|word| std::ffi::CString::new(word).ok());
    offleash_guest::run(argument.as_deref()).into()
}
