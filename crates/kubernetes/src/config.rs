//! What a controller is told when it starts.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::error::ControllerError;

/// Where Kubernetes puts what a pod shows to the API server.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// What a controller is told when it starts.
#[derive(Debug, Clone)]
pub struct ControllerConfig {
    /// What it is called: objects with this label are its own, and no others.
    pub name: String,
    /// Who this process is among those of the same name, as the Lease has it.
    pub identity: String,
    /// The API server.
    pub account: PodAccount,
    /// The namespace in which daemons and Lease are.
    pub namespace: String,
    /// The one namespace whose objects are served; all if absent.
    pub watched: Option<String>,
    /// Labels of the daemons' pods, as a selector.
    pub daemons: String,
    /// The daemons' port.
    pub daemon_port: u16,
    /// The key that daemons are shown.
    pub key: DaemonKey,
    /// The image of placeholder pods, which does nothing.
    pub pause_image: String,
    /// The domain of the cluster's names.
    pub cluster_domain: String,
    /// How long a Lease holds that nobody renews.
    pub lease_duration: Duration,
    /// How often what is at rest is looked at.
    pub resync: Duration,
    /// Who is told what happens.
    pub log: Arc<dyn ControllerLog>,
}

/// Takes lines about what a controller does.
pub trait ControllerLog: fmt::Debug + Send + Sync {
    /// Something happened.
    fn info(&self, told: &str);
    /// Something failed, and is tried again.
    fn warning(&self, told: &str);
}

/// The key that daemons are shown.
#[derive(Clone)]
pub struct DaemonKey(String);

impl DaemonKey {
    /// A key that was read.
    pub fn new(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// What is sent.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for DaemonKey {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DaemonKey(****)")
    }
}

/// How the API server is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodAccount {
    /// Its address, `https://10.96.0.1:443`; without encryption on this machine alone, as `kubectl proxy` has it.
    pub url: String,
    /// The file with the token that it is shown; read again, because Kubernetes replaces it.
    pub token: Option<PathBuf>,
    /// The file with its authority.
    pub authority: Option<PathBuf>,
}

impl PodAccount {
    /// Where the address, the token and the authority are in a pod.
    ///
    /// # Errors
    /// `Settings` outside of a cluster.
    pub fn of_pod(host: Option<&str>, port: Option<&str>) -> Result<Self, ControllerError> {
        let (Some(host), Some(port)) = (host, port) else {
            return Err(ControllerError::Settings {
                what: "the API server",
                reason: "this is no pod of a cluster (`KUBERNETES_SERVICE_HOST` is not set); say `--api-server URL`"
                    .to_owned(),
            });
        };
        let bracketed = if host.contains(':') {
            format!("[{host}]")
        } else {
            host.to_owned()
        };
        let file = |name: &str| Some(Path::new(ACCOUNT).join(name));
        Ok(Self {
            url: format!("https://{bracketed}:{port}"),
            token: file("token"),
            authority: file("ca.crt"),
        })
    }

    /// The file that names a pod's own namespace.
    pub fn namespace_file() -> PathBuf {
        Path::new(ACCOUNT).join("namespace")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_knows_its_api_server_by_variables() {
        let account = PodAccount::of_pod(Some("fd00::1"), Some("443")).unwrap();
        assert_eq!(account.url, "https://[fd00::1]:443");
        assert!(
            PodAccount::of_pod(None, Some("443"))
                .unwrap_err()
                .to_string()
                .contains("--api-server")
        );
    }

    #[test]
    fn a_key_cannot_be_printed() {
        assert!(!format!("{:?}", DaemonKey::new("e2b_00")).contains("e2b"));
    }
}
