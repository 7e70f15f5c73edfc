//! By what a run finds a sandbox that waits: everything by which two runs of one request could differ.

use std::ffi::OsStr;
use std::hash::{DefaultHasher, Hasher as _};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::Stat;

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

/// What a run and the holder of its sandbox have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    text: Vec<u8>,
}

impl Key {
    /// The key of this process for a run with these arguments, the command left out, in the directory `cwd`.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn of_this_process(arguments: &[impl AsRef<OsStr>], has_script: bool, cwd: &Path) -> io::Result<Self> {
        let mut text = offleash_sys::origin::describe()?;
        add_file(&mut text, &rustix::fs::stat("/proc/self/exe")?);
        add(&mut text, cwd.as_os_str().as_bytes());
        add_file(&mut text, &rustix::fs::stat(cwd)?);
        text.push(u8::from(has_script));
        for argument in arguments {
            add(&mut text, argument.as_ref().as_bytes());
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

/// With its length, so that nothing can be taken for a part of what stands beside it.
fn add(text: &mut Vec<u8>, part: &[u8]) {
    text.extend_from_slice(&part.len().to_le_bytes());
    text.extend_from_slice(part);
}

/// Which file it is; a program that was replaced or written to is another one.
fn add_file(text: &mut Vec<u8>, stat: &Stat) {
    text.extend_from_slice(&stat.st_dev.to_le_bytes());
    text.extend_from_slice(&stat.st_ino.to_le_bytes());
    if stat.st_mode & 0o170_000 == 0o100_000 {
        text.extend_from_slice(&stat.st_size.to_le_bytes());
        text.extend_from_slice(&stat.st_mtime.to_le_bytes());
        text.extend_from_slice(&stat.st_mtime_nsec.to_le_bytes());
        text.extend_from_slice(&stat.st_ctime.to_le_bytes());
        text.extend_from_slice(&stat.st_ctime_nsec.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_differ_by_arguments_script_and_directory() {
        let key =
            |arguments: &[&str], script, cwd: &str| Key::of_this_process(arguments, script, Path::new(cwd)).unwrap();
        let one = key(&["--warm", "2"], false, "/");
        assert_eq!(key(&["--warm", "2"], false, "/"), one);
        assert_eq!(key(&["--warm", "2"], false, "/").name(), one.name());
        for other in [
            key(&["--warm2"], false, "/"),
            key(&["--warm", "2", ""], false, "/"),
            key(&["--warm", "2"], true, "/"),
            key(&["--warm", "2"], false, "/usr"),
        ] {
            assert_ne!(other, one);
            assert_ne!(other.name(), one.name());
        }
    }
}
