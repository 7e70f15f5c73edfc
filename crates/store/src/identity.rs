//! Who runs offleash, and where their state belongs.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// What decides where the state directory is.
///
/// `HOME` and `XDG_STATE_HOME` are hints only: `sudo` and `setpriv` leave those of somebody else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostIdentity {
    /// Effective user id.
    pub euid: u32,
    /// `HOME`, as the environment has it.
    pub home_env: Option<PathBuf>,
    /// `XDG_STATE_HOME`, as the environment has it.
    pub xdg_state_home: Option<PathBuf>,
    /// The user database, `/etc/passwd`.
    pub passwd: PathBuf,
    /// Where root's state goes, `/var/lib/offleash`.
    pub root_state: PathBuf,
    /// Where users without a home keep theirs, `/var/tmp`.
    pub shared_temporary: PathBuf,
}

impl HostIdentity {
    /// The identity of this process.
    pub fn of_this_process() -> Self {
        let variable = |name| {
            std::env::var_os(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        Self {
            euid: rustix::process::geteuid().as_raw(),
            home_env: variable("HOME"),
            xdg_state_home: variable("XDG_STATE_HOME"),
            passwd: "/etc/passwd".into(),
            root_state: "/var/lib/offleash".into(),
            shared_temporary: "/var/tmp".into(),
        }
    }

    /// Where the state directory is unless one was named.
    pub fn default_state(&self) -> PathBuf {
        if self.euid == 0 {
            return self.root_state.clone();
        }
        let given = self.xdg_state_home.clone().filter(|path| self.would_own(path));
        let below_home = || self.home().map(|home| home.join(".local/state"));
        match given.or_else(below_home) {
            Some(base) => base.join("offleash"),
            None => self.shared_temporary.join(format!("offleash-{}", self.euid)),
        }
    }

    /// Where this user's configuration is: below `given`, what `XDG_CONFIG_HOME` says, or the home directory. `None` for who has
    /// neither.
    pub fn config_directory(&self, given: Option<PathBuf>) -> Option<PathBuf> {
        let given = given.filter(|path| self.would_own(path));
        let base = given.or_else(|| self.home().map(|home| home.join(".config")))?;
        Some(base.join("offleash"))
    }

    fn home(&self) -> Option<PathBuf> {
        let from_environment = self.home_env.clone().filter(|home| self.owns(home));
        from_environment.or_else(|| self.home_from_passwd().filter(|home| self.owns(home)))
    }

    /// The file is read, not asked for through `getpwuid`, which a static binary cannot carry.
    fn home_from_passwd(&self) -> Option<PathBuf> {
        let database = std::fs::read(&self.passwd).ok()?;
        let uid = self.euid.to_string();
        database.split(|byte| *byte == b'\n').find_map(|line| {
            let fields: Vec<&[u8]> = line.split(|byte| *byte == b':').collect();
            let (found, home) = (fields.get(2)?, fields.get(5)?);
            (*found == uid.as_bytes() && home.starts_with(b"/"))
                .then(|| offleash_core::text::Text::from(*home).as_path().to_owned())
        })
    }

    fn owns(&self, path: &Path) -> bool {
        path.is_absolute() && std::fs::metadata(path).is_ok_and(|found| found.is_dir() && found.uid() == self.euid)
    }

    /// Whether `path`, or the nearest directory above that exists, is ours.
    fn would_own(&self, path: &Path) -> bool {
        path.is_absolute()
            && path
                .ancestors()
                .find(|above| above.exists())
                .is_some_and(|above| self.owns(above))
    }
}
