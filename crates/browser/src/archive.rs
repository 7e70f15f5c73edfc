//! Profiles as they are kept: encrypted, and bound to the context that they are of.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use rustix::rand::{GetRandomFlags, getrandom};

/// What an archive begins with; another form is not understood.
const MAGIC: &[u8; 8] = b"offlbp1\n";
const KEY_BYTES: usize = 32;

/// The key that profiles of a state directory are encrypted with.
pub struct ArchiveKey(LessSafeKey);

impl fmt::Debug for ArchiveKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ArchiveKey(****)")
    }
}

fn filled<const LENGTH: usize>() -> io::Result<[u8; LENGTH]> {
    let mut bytes = [0; LENGTH];
    match getrandom(&mut bytes[..], GetRandomFlags::empty())? {
        length if length == LENGTH => Ok(bytes),
        _ => Err(io::Error::other("the kernel gives too few random bytes")),
    }
}

impl ArchiveKey {
    /// The key in the file at `path`, which is made if it is not there.
    ///
    /// # Errors
    /// What the kernel refused, or a file that holds no key.
    pub fn load_or_make(path: &Path) -> io::Result<Self> {
        match File::open(path) {
            Ok(file) => Self::read(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Self::make(path)?;
                // Whoever else made one was first, or was not: there is one.
                Self::read(File::open(path)?)
            }
            Err(error) => Err(error),
        }
    }

    fn make(path: &Path) -> io::Result<()> {
        let name = format!("{:x}.new", u64::from_le_bytes(filled()?));
        let new = path.with_extension(name);
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(&filled::<KEY_BYTES>()?)?;
        file.sync_all()?;
        let linked = fs::hard_link(&new, path);
        fs::remove_file(&new)?;
        match linked {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            linked => linked,
        }
    }

    fn read(file: File) -> io::Result<Self> {
        let mut bytes = Vec::new();
        file.take(KEY_BYTES as u64 + 1).read_to_end(&mut bytes)?;
        let key = UnboundKey::new(&AES_256_GCM, &bytes);
        let key = key.map_err(|_| io::Error::other("the key of browser contexts is damaged"))?;
        Ok(Self(LessSafeKey::new(key)))
    }

    /// `bytes` encrypted, so that they are opened for `bound_to` alone.
    ///
    /// # Errors
    /// When there are no random bytes, or more bytes than the cipher takes.
    pub fn seal(&self, bound_to: &str, mut bytes: Vec<u8>) -> io::Result<Vec<u8>> {
        let nonce: [u8; NONCE_LEN] = filled()?;
        let tag = self
            .0
            .seal_in_place_separate_tag(Nonce::assume_unique_for_key(nonce), Aad::from(bound_to), &mut bytes)
            .map_err(|_| io::Error::other("the profile cannot be encrypted"))?;
        let mut sealed = Vec::with_capacity(MAGIC.len() + nonce.len() + bytes.len() + tag.as_ref().len());
        for part in [&MAGIC[..], &nonce, &bytes, tag.as_ref()] {
            sealed.extend_from_slice(part);
        }
        Ok(sealed)
    }

    /// What was sealed for `bound_to`; `None` if that was something else, or was changed since.
    pub fn open(&self, bound_to: &str, sealed: &[u8]) -> Option<Vec<u8>> {
        let rest = sealed.strip_prefix(MAGIC)?;
        let (nonce, rest) = rest.split_at_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut bytes = rest.to_vec();
        let length = self.0.open_in_place(nonce, Aad::from(bound_to), &mut bytes).ok()?.len();
        bytes.truncate(length);
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn what_is_sealed_is_opened_by_its_key_for_its_context_alone() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("key");
        let key = ArchiveKey::load_or_make(&path).unwrap();
        let sealed = key.seal("a", b"secret cookie".to_vec()).unwrap();
        assert!(!sealed.windows(6).any(|bytes| bytes == b"cookie"));
        let again = ArchiveKey::load_or_make(&path).unwrap();
        assert_eq!(again.open("a", &sealed).unwrap(), b"secret cookie");
        assert_eq!(again.open("b", &sealed), None);
        for place in [0, MAGIC.len(), sealed.len() - 1] {
            let mut other = sealed.clone();
            other[place] ^= 1;
            assert_eq!(again.open("a", &other), None, "{place}");
        }
        assert_eq!(again.open("a", &sealed[..10]), None);
        let other = ArchiveKey::load_or_make(&place.path().join("other")).unwrap();
        assert_eq!(other.open("a", &sealed), None);
        assert_ne!(key.seal("a", Vec::new()).unwrap(), key.seal("a", Vec::new()).unwrap());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_damaged_key_is_no_key() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("key");
        for bytes in [&b""[..], &[0; 31], &[0; 33]] {
            fs::write(&path, bytes).unwrap();
            assert!(ArchiveKey::load_or_make(&path).is_err());
        }
    }
}
