//! Keys of servers, kept in a file that its owner alone reads.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use offleash_api::client::HostUrl;
use offleash_core::text::Text;
use offleash_daemon::{ApiKey, BadApiKey};
use offleash_store::HostIdentity;

use crate::failure::Failure;

/// The most that is read of the file.
const MAX_FILE: u64 = 1 << 20;

/// Where the user's own files of offleash are.
///
/// # Errors
/// When the user has no home.
pub(crate) fn config_directory() -> Result<PathBuf, Failure> {
    let given = std::env::var_os("XDG_CONFIG_HOME").filter(|value| !value.is_empty());
    let host = HostIdentity::of_this_process();
    let found = host.config_directory(given.map(PathBuf::from));
    found.ok_or_else(|| {
        Failure::new("there is no directory for your configuration: you have no home directory")
            .with_hint("set HOME or XDG_CONFIG_HOME to a directory of yours")
    })
}

/// The keys that were kept, by the addresses of their servers.
#[derive(Debug)]
pub(crate) struct Logins {
    path: PathBuf,
    euid: u32,
}

impl Logins {
    /// Those of whoever runs this.
    ///
    /// # Errors
    /// When the user has no home.
    pub(crate) fn of_this_user() -> Result<Self, Failure> {
        Ok(Self {
            path: config_directory()?.join("keys.json"),
            euid: HostIdentity::of_this_process().euid,
        })
    }

    /// The key of a server, if one is kept.
    ///
    /// # Errors
    /// When the file cannot be read, others can read it, or it is no such file.
    pub(crate) fn key(&self, url: &HostUrl) -> Result<Option<ApiKey>, Failure> {
        let kept = self.read()?;
        let Some(text) = kept.get(&url.to_string()) else {
            return Ok(None);
        };
        let key: Result<ApiKey, BadApiKey> = text.parse();
        key.map(Some).map_err(|error| self.wrong(&error))
    }

    /// Keeps the key of a server.
    pub(crate) fn keep(&self, url: &HostUrl, key: &ApiKey) -> Result<(), Failure> {
        let mut kept = self.read()?;
        kept.insert(url.to_string(), key.reveal().to_owned());
        self.write(&kept)
    }

    /// Forgets the key of one server, or all; answers of which.
    pub(crate) fn forget(&self, url: Option<&HostUrl>) -> Result<Vec<String>, Failure> {
        let mut kept = self.read()?;
        let forgotten: Vec<String> = match url {
            Some(url) => kept
                .remove(&url.to_string())
                .map(|_| url.to_string())
                .into_iter()
                .collect(),
            None => std::mem::take(&mut kept).into_keys().collect(),
        };
        if !forgotten.is_empty() {
            self.write(&kept)?;
        }
        Ok(forgotten)
    }

    fn read(&self) -> Result<BTreeMap<String, String>, Failure> {
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
            Err(error) => return Err(self.wrong(&error)),
        };
        let metadata = file.metadata().map_err(|error| self.wrong(&error))?;
        if metadata.uid() != self.euid || metadata.mode() & 0o077 != 0 {
            let path = Text::from(self.path.as_path());
            return Err(
                Failure::new(format!("others can read the keys in `{path}`, or write them")).with_hint(format!(
                    "`chmod 600 {path}` makes it yours alone; the keys in it may be known to others"
                )),
            );
        }
        let mut text = Vec::new();
        file.take(MAX_FILE)
            .read_to_end(&mut text)
            .map_err(|error| self.wrong(&error))?;
        serde_json::from_slice(&text).map_err(|error| self.wrong(&error))
    }

    /// All of it or nothing: a new file takes the place of the one before.
    fn write(&self, kept: &BTreeMap<String, String>) -> Result<(), Failure> {
        let written = || -> io::Result<()> {
            let directory = self.path.parent().unwrap_or(Path::new("."));
            DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
            let new = directory.join(format!(".keys.{}.new", std::process::id()));
            let write = || -> io::Result<()> {
                let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
                file.write_all(&serde_json::to_vec_pretty(kept)?)?;
                file.sync_all()?;
                fs::rename(&new, &self.path)
            };
            write().inspect_err(|_| {
                // What is told is why it could not be written.
                let _gone = fs::remove_file(&new);
            })
        };
        written().map_err(|error| {
            Failure::from_error(&error).while_trying(format!("writing `{}`", Text::from(self.path.as_path())))
        })
    }

    fn wrong(&self, error: &dyn std::error::Error) -> Failure {
        Failure::new(format!("reading the keys in `{}`", Text::from(self.path.as_path()))).with_cause(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn logins(directory: &Path) -> Logins {
        Logins {
            path: directory.join("below/keys.json"),
            euid: HostIdentity::of_this_process().euid,
        }
    }

    fn key(digit: char) -> ApiKey {
        format!("e2b_{}", digit.to_string().repeat(40)).parse().unwrap()
    }

    #[test]
    fn keys_are_kept_each_for_its_server_and_for_nobody_else() {
        let directory = tempfile::tempdir().unwrap();
        let logins = logins(directory.path());
        let (one, other): (HostUrl, HostUrl) = (
            "https://a.example".parse().unwrap(),
            "https://a.example:8443".parse().unwrap(),
        );
        assert!(logins.key(&one).unwrap().is_none());
        logins.keep(&one, &key('1')).unwrap();
        logins.keep(&other, &key('2')).unwrap();
        let same = "HTTPS://A.Example:443/".parse().unwrap();
        assert_eq!(logins.key(&same).unwrap().unwrap().reveal(), key('1').reveal());
        assert_eq!(fs::metadata(&logins.path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(
            fs::metadata(logins.path.parent().unwrap()).unwrap().mode() & 0o777,
            0o700
        );
        assert!(logins.key(&"http://a.example".parse().unwrap()).unwrap().is_none());
        assert_eq!(logins.forget(Some(&one)).unwrap(), ["https://a.example"]);
        assert!(logins.key(&one).unwrap().is_none());
        assert_eq!(logins.forget(None).unwrap(), ["https://a.example:8443"]);
        assert!(logins.forget(None).unwrap().is_empty());
    }

    #[test]
    fn a_file_that_others_read_or_that_is_none_gives_no_key() {
        let directory = tempfile::tempdir().unwrap();
        let logins = logins(directory.path());
        let url: HostUrl = "https://a.example".parse().unwrap();
        logins.keep(&url, &key('1')).unwrap();
        fs::set_permissions(&logins.path, fs::Permissions::from_mode(0o640)).unwrap();
        let refused = logins.key(&url).unwrap_err().to_string();
        assert!(refused.contains("chmod 600"), "{refused}");
        fs::set_permissions(&logins.path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&logins.path, "{\"https://a.example\": \"secret-of-another-kind\"}").unwrap();
        let refused = logins.key(&url).unwrap_err().to_string();
        assert!(!refused.contains("secret-of"), "{refused}");
        fs::write(&logins.path, "nothing").unwrap();
        assert!(logins.key(&url).is_err());
    }
}
