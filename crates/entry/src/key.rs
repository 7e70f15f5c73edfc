//! By what a run finds a sandbox that waits: everything by which two runs of one request could differ.

use crate::buffer::Buffer;
use crate::kernel::{self, File, HERE};
use crate::origin;
use crate::strings::{self, Strings};
use crate::words::Words;

/// The room that [`write()`] needs in each of its two buffers, besides arguments, variables and directory: the kernel tells all
/// groups of a process, of which there are 65,536 at most. What is not used of it is never touched.
pub const ROOM: usize = 1024 * 1024;

/// The variables that decide which plan a run makes: a holder has these and no others.
pub const VARIABLES: [&str; 25] = [
    "ASDF_DATA_DIR",
    "BUN_INSTALL",
    "CARGO_HOME",
    "CONDA_EXE",
    "CONDA_PREFIX",
    "DENO_INSTALL",
    "GOPATH",
    "GOROOT",
    "HOME",
    "MISE_DATA_DIR",
    "NVM_DIR",
    "OFFLEASH_STATE",
    "PATH",
    "PYENV_ROOT",
    "PYENV_VERSION",
    "RUSTUP_HOME",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "UV_PYTHON_INSTALL_DIR",
    "VOLTA_HOME",
    "XDG_BIN_HOME",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_RUNTIME_DIR",
    "XDG_STATE_HOME",
];

/// The key of this process for a run with the arguments of `words` in `list`, in its current directory, whose path is `cwd`,
/// with the variables of `env`. `scratch` is overwritten.
///
/// # Errors
/// The number of the kernel's error; `ENOTSUP` for a process of which not all can be told.
pub fn write<A: Strings + ?Sized, E: Strings + ?Sized>(
    text: &mut Buffer<'_>,
    scratch: &mut Buffer<'_>,
    (list, words): (&A, Words),
    cwd: &[u8],
    env: &E,
) -> Result<(), i32> {
    origin::describe(text, scratch)?;
    add_file(text, &kernel::stat(HERE, c"/proc/self/exe")?);
    text.add_sized(cwd);
    add_file(text, &kernel::stat(HERE, c".")?);
    text.add(&[u8::from(words.script.is_some())]);
    words.arguments(list).for_each(|argument| text.add_sized(argument));
    for name in &VARIABLES {
        // What is set differs from what is empty.
        if let Some(value) = strings::variable(env, name.as_bytes()) {
            text.add_sized(name.as_bytes());
            text.add_sized(value);
        }
    }
    Ok(())
}

/// The name of the directory in which sandboxes of a key wait: its hash (FNV-1a, 64 bits) in hexadecimal digits. Two keys may
/// have one name.
pub fn name(key: &[u8]) -> [u8; 16] {
    const START: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let hash = key
        .iter()
        .fold(START, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(PRIME));
    let mut name = [0; 16];
    for (digit, place) in name.iter_mut().zip((0..16).rev()) {
        *digit = match u8::try_from(hash >> (4 * place) & 0xf) {
            Ok(value @ 10..) => value - 10 + b'a',
            Ok(value) => b'0' + value,
            Err(_) => b'0',
        };
    }
    name
}

/// Which file it is; a program that was replaced or written to is another one.
fn add_file(text: &mut Buffer<'_>, file: &File) {
    text.add_number(file.device);
    text.add_number(file.inode);
    if file.mode & libc::S_IFMT == libc::S_IFREG {
        text.add_number(file.size);
        file.changed.into_iter().for_each(|number| text.add_number(number));
    }
}

#[cfg(test)]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use super::*;

    fn key(list: &[&str], env: &[&str]) -> Vec<u8> {
        let (mut text, mut scratch) = (vec![0; ROOM], vec![0; ROOM]);
        let (mut text, mut scratch) = (Buffer::new(&mut text), Buffer::new(&mut scratch));
        let words = Words::split(list, 0).unwrap();
        write(&mut text, &mut scratch, (list, words), b"/", env).unwrap();
        text.text().unwrap().to_vec()
    }

    #[test]
    fn keys_differ_by_arguments_script_and_variables() {
        let one = key(&["--warm", "2", "--", "a"], &["A=1", "HOME=/h"]);
        assert_eq!(
            key(&["--warm", "2", "--", "b"], &["HOME=/h", "HOME=/i", "HOMES=/j"]),
            one
        );
        for other in [
            key(&["--warm2", "--", "a"], &["HOME=/h"]),
            key(&["--warm", "2", "", "--", "a"], &["HOME=/h"]),
            key(&["--warm", "2", "-c", "a"], &["HOME=/h"]),
            key(&["--warm", "2", "--", "a"], &["HOME="]),
            key(&["--warm", "2", "--", "a"], &["HOMES=/h"]),
        ] {
            assert_ne!(other, one);
            assert_ne!(name(&other), name(&one));
        }
    }

    #[test]
    fn names_are_the_hash_in_digits() {
        // The first of the vectors that the authors of the hash give.
        assert_eq!(&name(b""), b"cbf29ce484222325");
        assert_eq!(&name(b"a"), b"af63dc4c8601ec8c");
    }
}
