//! The server: listens, bounds how many clients there are, and hands their requests on.

mod config;
pub(crate) mod connection;
mod cut;
pub(crate) mod figures;
pub(crate) mod listen;
mod pages;
mod requests;
pub(crate) mod tls;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use offleash_daemon::Daemon;
use rustix::process::{Resource, getrlimit};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};

pub use self::config::{ServeError, ServerConfig};
use self::connection::ConnectionHold;
use self::figures::AnswerTally;
pub use self::listen::{Listen, ListenError};
use self::requests::{ServerEntrance, ServerState};
pub use self::tls::{Certificate, TlsError, TlsFiles};
use crate::control::{ControlPlane, ServerAddress};
use crate::http::clients::{ClientSlots, TooManyClients};
use crate::http::destination;
use crate::http::guard::OriginGuard;
use crate::journal::{Event, Journal};
use crate::languages::RuntimeCatalog;
use crate::mcp::http::McpService;
use crate::telemetry::Telemetry;
use crate::traffic::TrafficService;

/// How long to wait after an accept that failed for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How many clients that are too many are told so at once; further ones are cut.
const MAX_TURNED_AWAY: usize = 64;

/// The domain of a server that only this machine reaches and that was given none: names below it are this machine's
/// (RFC 6761, section 6.3).
const LOCAL_DOMAIN: &str = "localhost";

/// A server that listens.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    local: Option<UnixListener>,
    drain: Duration,
    certificate: Option<Arc<Certificate>>,
    state: Arc<ServerState>,
}

impl Server {
    /// Listens; requests wait until [`Server::run`].
    ///
    /// # Errors
    /// When it cannot listen there, or should not.
    pub async fn bind(config: ServerConfig, daemon: Daemon, journal: Arc<dyn Journal>) -> Result<Self, ServeError> {
        let certificate = config.tls.map(Certificate::read).transpose()?;
        let tls = certificate.clone().map(tls::config).transpose()?;
        let (listener, address) = listen::tcp(config.listen).await?;
        let is_public = !address.ip().is_loopback();
        if is_public && tls.is_none() && !config.insecure_public {
            return Err(ListenError::Public { address }.into());
        }
        let local = config.local.as_deref().map(listen::local).transpose()?;
        let usual = || (!is_public).then(|| format!("{LOCAL_DOMAIN}:{}", address.port()));
        let domain = config.domain.map(|domain| domain.to_ascii_lowercase()).or_else(usual);
        let guard = OriginGuard {
            local_only: !is_public,
            domain: domain
                .as_deref()
                .map(|domain| destination::without_port(domain).to_owned()),
            origins: config.allow_origins,
        };
        let telemetry = Telemetry::start(config.telemetry, &journal);
        let journal = telemetry.journal(journal);
        telemetry.tell_events(|| daemon.listen());
        let address = ServerAddress {
            url: listen::url(address, tls.is_some()),
            domain,
        };
        let entrance = ServerEntrance {
            guard,
            tls,
            clients: ClientSlots::new(affordable(config.max_connections), config.max_connections_per_address),
            tally: AnswerTally::default(),
            metrics_need_key: config.metrics_need_key,
        };
        let state = Arc::new(ServerState {
            traffic: TrafficService::new(daemon.clone(), Arc::clone(&journal), config.max_connections_per_sandbox),
            mcp: McpService::new(daemon.clone(), Arc::clone(&journal)),
            control: Arc::new(ControlPlane::new(
                daemon,
                Arc::clone(&journal),
                address,
                RuntimeCatalog::new(config.language_templates),
            )),
            entrance,
            journal,
            telemetry,
        });
        let weak = Arc::downgrade(&state);
        state
            .telemetry
            .tell_metrics(move || weak.upgrade().map(|state| state.numbers()));
        Ok(Self {
            listener,
            local,
            drain: config.drain,
            certificate,
            state,
        })
    }

    /// What clients on this machine call the server, as in `http://127.0.0.1:3000`.
    pub fn url(&self) -> &str {
        &self.state.control.address().url
    }

    /// The certificate that TLS is spoken with, to be read again when its files have changed.
    pub fn certificate(&self) -> Option<Arc<Certificate>> {
        self.certificate.clone()
    }

    /// Answers requests until `end` is there; then takes no more and lets those go on that began, for as long as
    /// [`ServerConfig::drain`] says.
    pub async fn run(self, end: impl Future<Output = ()>) {
        // Every connection holds a receiver: it hears of the end, and its own end is seen.
        let (ending, hears) = watch::channel(false);
        tokio::select! {
            () = end => {}
            () = self.accept(&hears) => {}
        }
        drop((self.listener, self.local, hears));
        self.state.traffic.end();
        // Nobody may be there to be told.
        let _told = ending.send(true);
        // Their streams would last as long as their clients like.
        self.state.mcp.end();
        // What is not done by then is cut.
        let _drained = tokio::time::timeout(self.drain, ending.closed()).await;
        self.state.telemetry.flush(|| self.state.numbers()).await;
    }

    async fn accept(&self, hears: &watch::Receiver<bool>) {
        let away = Arc::new(Semaphore::new(MAX_TURNED_AWAY));
        loop {
            tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, peer)) => self.take(stream, peer, hears, &away),
                    Err(error) => self.cannot_accept(&error).await,
                },
                accepted = accept_local(self.local.as_ref()) => match accepted {
                    Ok(stream) => self.take_local(stream, hears),
                    Err(error) => self.cannot_accept(&error).await,
                },
            }
        }
    }

    fn take(&self, stream: TcpStream, peer: SocketAddr, hears: &watch::Receiver<bool>, away: &Arc<Semaphore>) {
        let state = Arc::clone(&self.state);
        match state.entrance.clients.admit(Some(peer.ip())) {
            Ok(place) => {
                let ending = hears.clone();
                tokio::spawn(connection::serve_tcp(
                    stream,
                    peer,
                    state,
                    ConnectionHold { place, ending },
                ));
            }
            Err(why) => {
                let (most, address) = (
                    why.most(),
                    matches!(why, TooManyClients::OfAddress(_)).then_some(peer.ip()),
                );
                state.journal.record(&Event::Full { most, address });
                if let Ok(turn) = Arc::clone(away).try_acquire_owned() {
                    tokio::spawn(connection::turn_away(stream, why, turn));
                }
            }
        }
    }

    fn take_local(&self, stream: UnixStream, hears: &watch::Receiver<bool>) {
        let state = Arc::clone(&self.state);
        match state.entrance.clients.admit(None) {
            Ok(place) => {
                let ending = hears.clone();
                tokio::spawn(connection::serve_local(stream, state, ConnectionHold { place, ending }));
            }
            Err(why) => {
                let (most, address) = (why.most(), None);
                state.journal.record(&Event::Full { most, address });
            }
        }
    }

    async fn cannot_accept(&self, error: &std::io::Error) {
        // A client that was gone before it was taken is none of our troubles.
        if error.kind() != std::io::ErrorKind::ConnectionAborted {
            self.state.journal.record(&Event::Accept { error });
            tokio::time::sleep(ACCEPT_PAUSE).await;
        }
    }
}

/// How many clients the descriptors of this process are enough for: a client can need two, and what it asks for more.
fn affordable(asked: usize) -> usize {
    let files = getrlimit(Resource::Nofile).current;
    files.map_or(asked, |files| {
        asked.min(usize::try_from(files / 2).unwrap_or(usize::MAX).max(1))
    })
}

async fn accept_local(listener: Option<&UnixListener>) -> std::io::Result<UnixStream> {
    match listener {
        Some(listener) => Ok(listener.accept().await?.0),
        None => std::future::pending().await,
    }
}
