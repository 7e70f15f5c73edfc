//! The key that a client knows us by.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

use data_encoding::BASE64;
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair as _};

use crate::wire::WireWriter;

/// The only kind of key.
pub(crate) const ALGORITHM: &str = "ssh-ed25519";

/// An Ed25519 key.
#[derive(Debug)]
pub struct HostKey(Ed25519KeyPair);

impl HostKey {
    /// The one in the file `path`, which is made if it is not there, for its owner alone.
    ///
    /// # Errors
    /// When the file cannot be read or written, or is no such key.
    pub fn kept(path: &Path) -> io::Result<Self> {
        let bytes = match fs::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => make(path)?,
            read => read?,
        };
        let invalid = |_| io::Error::new(io::ErrorKind::InvalidData, "it is no Ed25519 key (PKCS #8)");
        Ed25519KeyPair::from_pkcs8(&bytes).map(Self).map_err(invalid)
    }

    /// The public half as messages have it.
    pub(crate) fn blob(&self) -> Vec<u8> {
        WireWriter::default()
            .string(ALGORITHM)
            .string(self.0.public_key().as_ref())
            .0
    }

    /// The public half as `known_hosts` has it.
    pub fn public(&self) -> String {
        format!("{ALGORITHM} {}", BASE64.encode(&self.blob()))
    }

    pub(crate) fn sign(&self, message: &[u8]) -> Vec<u8> {
        WireWriter::default()
            .string(ALGORITHM)
            .string(self.0.sign(message).as_ref())
            .0
    }
}

fn make(path: &Path) -> io::Result<Vec<u8>> {
    let made = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new());
    let made = made.map_err(|_| io::Error::other("the kernel gives no random bytes"))?;
    if let Some(directory) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    }
    let new = path.with_extension(format!("{}.new", std::process::id()));
    let written = || -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(made.as_ref())?;
        file.sync_all()?;
        // Whoever made one meanwhile was first.
        match fs::hard_link(&new, path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        }
    };
    let written = written();
    // What is told is why it could not be written.
    let _gone = fs::remove_file(&new);
    written?;
    fs::read(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_key_is_made_once_and_for_its_owner() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("below/ssh_host_key");
        let first = HostKey::kept(&path).unwrap().public();
        assert_eq!(HostKey::kept(&path).unwrap().public(), first);
        assert!(first.starts_with("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI"), "{first}");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::write(&path, "nothing").unwrap();
        assert!(HostKey::kept(&path).is_err());
    }
}
