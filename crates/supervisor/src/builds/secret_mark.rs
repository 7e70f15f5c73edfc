//! What the key of a step has of its secrets: a digest that nobody can find out by trying values.
//!
//! It is made with a key of the state directory's own. Whoever reads names of steps alone, as in a list or a copy of images,
//! learns nothing of a value.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use data_encoding::HEXLOWER;
use offleash_core::build::secrets::StepSecrets;
use ring::hmac;

/// The file of the key in the state directory.
const FILE: &str = "step-secrets.key";
const LENGTH: usize = 32;

/// The mark of a step's secrets, the same for the same names and values in one state directory; nothing for none.
///
/// # Errors
/// When the key can be neither read nor made.
pub(super) fn mark_of(state: &Path, secrets: &StepSecrets) -> io::Result<String> {
    if secrets.is_empty() {
        return Ok(String::new());
    }
    let key = hmac::Key::new(hmac::HMAC_SHA256, &kept_key(&state.join(FILE))?);
    let mut context = hmac::Context::with_key(&key);
    for part in secrets.iter().flat_map(|(name, value)| [name, value]) {
        // So that no two lists of parts are the same bytes.
        context.update(format!("{}:", part.len()).as_bytes());
        context.update(part.as_bytes());
    }
    Ok(HEXLOWER.encode(context.sign().as_ref()))
}

/// The key, which is made if it is not there. Of two that are made at once the first stays.
fn kept_key(path: &Path) -> io::Result<Vec<u8>> {
    if let Some(key) = read(path)? {
        return Ok(key);
    }
    let mut key = [0; LENGTH];
    rustix::rand::getrandom(&mut key, rustix::rand::GetRandomFlags::empty())?;
    let new = path.with_extension(format!("{}.new", std::process::id()));
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(&new)?;
    let written = file.write_all(&key).and_then(|()| file.sync_all());
    let linked = written.and_then(|()| fs::hard_link(&new, path));
    let removed = fs::remove_file(&new);
    match linked {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => removed?,
    }
    read(path)?.ok_or_else(|| io::ErrorKind::NotFound.into())
}

fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(key) if key.len() == LENGTH => Ok(Some(key)),
        Ok(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "it is no key")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn secrets(pairs: &[(&str, &str)]) -> StepSecrets {
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn a_mark_is_of_names_values_and_the_state_directory() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mark = |site: &tempfile::TempDir, pairs| mark_of(site.path(), &secrets(pairs)).unwrap();
        assert_eq!(mark(&one, &[]), "");
        assert!(!one.path().join(FILE).exists());
        let marks = [
            mark(&one, &[("A", "x")]),
            mark(&one, &[("A", "y")]),
            mark(&one, &[("B", "x")]),
            mark(&one, &[("A", "x"), ("B", "")]),
            mark(&one, &[("A", ""), ("B", "x")]),
            mark(&other, &[("A", "x")]),
        ];
        let different: std::collections::BTreeSet<_> = marks.iter().collect();
        assert_eq!(different.len(), marks.len());
        assert_eq!(mark(&one, &[("A", "x")]), marks[0]);
        let mode = fs::metadata(one.path().join(FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        fs::write(one.path().join(FILE), "short").unwrap();
        assert!(mark_of(one.path(), &secrets(&[("A", "x")])).is_err());
    }
}
