//! What the owner of a server can set, and why a server cannot begin.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use offleash_daemon::ImageError;

use super::listen::{Listen, ListenError};
use super::tls::{self, Certificate, TlsError, TlsFiles};
use crate::telemetry::TelemetryConfig;

/// What the owner of a server can set.
#[derive(Debug)]
pub struct ServerConfig {
    /// Where to listen.
    pub listen: Listen,
    /// Where the socket for the owner alone is to be; none if absent.
    pub local: Option<PathBuf>,
    /// What TLS is spoken with; none is spoken if absent.
    pub tls: Option<TlsFiles>,
    /// Whether an address that others can reach may be listened on without TLS.
    pub insecure_public: bool,
    /// The domain below which `PORT-ID.DOMAIN` names a port inside a sandbox; with the port that it is reached at,
    /// unless that is the usual one. `localhost` with the server's port if absent and only this machine reaches it.
    pub domain: Option<String>,
    /// Origins whose pages may call, as in `https://app.example`.
    pub allow_origins: Vec<String>,
    /// Whether `/metrics` asks for a key even of programs on this machine: where a proxy stands in front that does not say
    /// so.
    pub metrics_need_key: bool,
    /// Templates whose languages programs may be written in, beside those of the base.
    pub language_templates: Vec<String>,
    /// How many connections there may be at once, but for those of the owner's own socket.
    pub max_connections: usize,
    /// How many of them from one address; never more than three quarters of all.
    pub max_connections_per_address: usize,
    /// How many of them to the ports of one sandbox.
    pub max_connections_per_sandbox: usize,
    /// How long requests may go on once the server is told to end.
    pub drain: Duration,
    /// Who is told what happens, how often and how long it took.
    pub telemetry: TelemetryConfig,
}

impl ServerConfig {
    /// Listens at `listen`, and has the defaults for everything else.
    pub fn new(listen: Listen) -> Self {
        Self {
            listen,
            local: None,
            tls: None,
            insecure_public: false,
            domain: None,
            allow_origins: Vec::new(),
            metrics_need_key: false,
            language_templates: Vec::new(),
            max_connections: 16 * 1024,
            max_connections_per_address: 4096,
            max_connections_per_sandbox: 512,
            drain: Duration::from_secs(10),
            telemetry: TelemetryConfig::default(),
        }
    }

    /// Whether a server could begin with it, as far as that shows without listening.
    ///
    /// # Errors
    /// When it may not listen there, or its certificate cannot be used.
    pub fn check(&self) -> Result<(), ServeError> {
        if let Some(files) = &self.tls {
            tls::config(Certificate::read(files.clone())?)?;
        }
        match self.listen {
            Listen::Address(address) => self.check_public(address),
            Listen::Inherited(_) => Ok(()),
        }
    }

    /// Refuses an address at which others could read keys on their way.
    fn check_public(&self, address: SocketAddr) -> Result<(), ServeError> {
        if address.ip().is_loopback() || self.tls.is_some() || self.insecure_public {
            return Ok(());
        }
        Err(ListenError::Public { address }.into())
    }
}

/// Why a server cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// It cannot listen.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Its certificate cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A node of a front shows a certificate that is not its own.
    #[error("a node of the front cannot be trusted")]
    FrontNode(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Authorities that certificates of nodes are checked by cannot be read.
    #[error("reading the authorities of the nodes' certificates")]
    FrontAuthorities(#[from] ImageError),
    /// A node does not take the key of a front.
    #[error("node {node} refuses the key of the front: {why}")]
    FrontKey {
        /// The node's host and port.
        node: String,
        /// What is wrong with the key.
        why: &'static str,
    },
}

impl ServeError {
    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Listen(ListenError::Address { .. }) => {
                "another program may have it; `--listen ADDRESS:PORT` names another, port 0 takes any"
            }
            Self::Listen(ListenError::Public { .. }) => {
                "give `--tls-cert` and `--tls-key`, listen on 127.0.0.1 behind a proxy that speaks TLS, or say \
                 `--insecure-public`"
            }
            Self::Listen(ListenError::Inherited(_)) => "the socket unit must have one `ListenStream=` with an address",
            Self::Listen(ListenError::Local { .. }) => "the state directory must be one that this user can write to",
            Self::FrontKey { .. } => {
                "a front needs one key of the scope `overview` on all nodes; on each: `offleash key create --name front --scope \
                 overview --key-file FILE`"
            }
            Self::FrontNode(_) => {
                "its certificate must have the name behind `--node` or `--nodes-dns`; `--node-ca FILE` trusts an authority that \
                 the system does not"
            }
            Self::FrontAuthorities(_) => "`--node-ca` takes a file of certificates, PEM",
            Self::Tls(_) => "both files must be PEM, the certificate first among those that lead to its authority",
        }
    }
}
