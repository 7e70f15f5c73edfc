//! How registries are reached.

use std::path::PathBuf;
use std::time::Duration;

/// How registries are reached.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RegistrySettings {
    /// Files with certificate authorities that are trusted beside those of the machine.
    pub authorities: Vec<PathBuf>,
    /// Whether a registry on this machine is asked without encryption.
    pub plain_http: bool,
    /// Who is asked before a registry is.
    pub mirrors: Vec<MirrorSetting>,
    /// Docker's configuration, in which credentials are.
    pub docker_config: Option<PathBuf>,
    /// What one registry is shown instead.
    #[serde(default)]
    pub login: Option<RegistryLogin>,
    /// The proxy through which hosts are reached, as `HTTPS_PROXY` has it.
    pub proxy: Option<String>,
    /// Hosts that are reached without, as `NO_PROXY` has it.
    pub no_proxy: String,
    /// How long nothing may come.
    pub stall_timeout: Duration,
    /// How long all of a pull may take that nobody sits in front of.
    #[serde(default)]
    pub pull_timeout: Option<Duration>,
    /// How long it takes until it is tried again, at first.
    pub first_pause: Duration,
}

/// A name and a password that are shown to one registry, and to no mirror of it.
#[derive(Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RegistryLogin {
    /// The registry, as names of images have it.
    pub registry: String,
    /// Who asks.
    pub username: String,
    /// Never told again.
    pub password: String,
}

impl std::fmt::Debug for RegistryLogin {
    /// Without the password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RegistryLogin({:?} {:?}: ****)", self.registry, self.username)
    }
}

impl Drop for RegistryLogin {
    fn drop(&mut self) {
        zeroize::Zeroize::zeroize(&mut self.password);
    }
}

/// Who is asked before a registry is.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct MirrorSetting {
    /// The registry that it mirrors.
    pub registry: String,
    /// Its address, `https://mirror.example/`.
    pub url: String,
}

impl Default for RegistrySettings {
    fn default() -> Self {
        Self {
            authorities: Vec::new(),
            plain_http: false,
            mirrors: Vec::new(),
            docker_config: None,
            login: None,
            proxy: None,
            no_proxy: String::new(),
            stall_timeout: Duration::from_secs(60),
            pull_timeout: None,
            first_pause: Duration::from_millis(500),
        }
    }
}

impl RegistrySettings {
    /// Those of who runs this process: Docker's configuration and the variables of proxies.
    pub fn of_this_process() -> Self {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let text = |names: [&str; 2]| names.into_iter().find_map(variable)?.into_string().ok();
        let directory = variable("DOCKER_CONFIG")
            .map(PathBuf::from)
            .or_else(|| Some(PathBuf::from(variable("HOME")?).join(".docker")));
        Self {
            docker_config: directory.map(|directory| directory.join("config.json")),
            proxy: text(["HTTPS_PROXY", "https_proxy"]),
            no_proxy: text(["NO_PROXY", "no_proxy"]).unwrap_or_default(),
            ..Self::default()
        }
    }

    /// How long to wait after so many attempts.
    pub(super) fn pause(&self, attempt: u32) -> Duration {
        self.first_pause * 2_u32.pow(attempt.min(5))
    }
}
