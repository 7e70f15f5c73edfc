//! By what a run finds a sandbox that waits: everything by which two runs of one request could differ.

use std::ffi::OsString;
use std::hash::{DefaultHasher, Hasher as _};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::{FileType, Stat};

/// The variables that decide which plan a run makes: a supervisor has these and no others.
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

/// What a run and the supervisor of its sandbox have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    text: Vec<u8>,
}

impl Key {
    /// The key of this process for a run with these arguments, the command left out, in its current directory, whose path is
    /// `cwd`.
    ///
    /// # Errors
    /// When the kernel does not say; `Unsupported` for a process with a system call filter or no_new_privs, of which not all
    /// can be told.
    pub fn of_this_process(arguments: &[OsString], has_script: bool, cwd: &Path) -> io::Result<Self> {
        let mut text = offleash_sys::origin::describe()?;
        add_file(&mut text, &rustix::fs::stat("/proc/self/exe")?);
        add(&mut text, cwd.as_os_str().as_bytes());
        add_file(&mut text, &rustix::fs::stat(".")?);
        text.push(u8::from(has_script));
        for argument in arguments {
            add(&mut text, argument.as_bytes());
        }
        for name in VARIABLES {
            // What is set differs from what is empty.
            if let Some(value) = std::env::var_os(name) {
                add(&mut text, name.as_bytes());
                add(&mut text, value.as_bytes());
            }
        }
        Ok(Self { text })
    }

    /// All of it, to be compared.
    pub(super) fn text(&self) -> &[u8] {
        &self.text
    }

    /// The name of the directory in which sandboxes of this key wait. Two keys may have one name.
    pub(super) fn name(&self) -> String {
        let mut hasher = DefaultHasher::new();
        hasher.write(&self.text);
        format!("{:016x}", hasher.finish())
    }
}

/// Adds a byte string with its length.
fn add(text: &mut Vec<u8>, part: &[u8]) {
    text.extend_from_slice(&(part.len() as u64).to_le_bytes());
    text.extend_from_slice(part);
}

/// Which file it is; a program that was replaced or written to is another one.
fn add_file(text: &mut Vec<u8>, found: &Stat) {
    let mut add_number = |number: u64| text.extend_from_slice(&number.to_le_bytes());
    add_number(found.st_dev);
    add_number(found.st_ino);
    if FileType::from_raw_mode(found.st_mode) == FileType::RegularFile {
        add_number(found.st_size.cast_unsigned());
        add_number(found.st_mtime.cast_unsigned());
        add_number(found.st_mtime_nsec);
        add_number(found.st_ctime.cast_unsigned());
        add_number(found.st_ctime_nsec);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_differ_by_arguments_script_and_directory() {
        let key = |arguments: &[&str], has_script, cwd: &str| {
            let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
            Key::of_this_process(&arguments, has_script, Path::new(cwd))
        };
        let one = match key(&["--warm", "2"], false, "/") {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                return println!("SKIP: this process has a filter of system calls, or may gain no privileges");
            }
            key => key.unwrap(),
        };
        let again = key(&["--warm", "2"], false, "/").unwrap();
        assert_eq!(again, one);
        assert_eq!(again.name(), one.name());
        for other in [
            key(&["--warm2"], false, "/"),
            key(&["--warm", "2", ""], false, "/"),
            key(&["--warm", "2"], true, "/"),
            key(&["--warm", "2"], false, "/usr"),
        ] {
            let other = other.unwrap();
            assert_ne!(other, one);
            assert_ne!(other.name(), one.name());
        }
    }
}
