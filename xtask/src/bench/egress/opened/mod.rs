//! Requests over TLS that the gateway opens, beside the same ones straight to the server: how many a second.
//!
//! The server has a name of its own, which the hosts file of this benchmark's mount namespace knows, and a certificate of
//! an authority that is made for it; client and gateway are told to trust that one.

mod certificates;
mod client;
mod report;

use std::ffi::OsString;
use std::fs;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;

use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::ADDRESS;
use super::contender::{DIRECT, OFFLEASH};
use super::server::requests;
use crate::bench::Shuffle;
use crate::bench::contender::Arena;
use crate::bench::sample::CommandLine;
use crate::error::TaskError;
pub(crate) use client::{TlsClientOptions, run as run_client};
pub(super) use report::Opened;
use report::Times;

const NAME: &str = "server.example.net";
const PORT: u16 = 443;
/// Names whom the gateway trusts.
const GATEWAY_TRUSTS: &str = "SSL_CERT_FILE";
/// Names whom the client trusts: in the sandbox only the sandbox's own authority, so that the client fails if nobody opens
/// its connections.
const CLIENT_TRUSTS: &str = "NODE_EXTRA_CA_CERTS";
const HOSTS: &str = "/etc/hosts";
/// Connections at the same time, and requests on each, in one round.
const LOADS: [(u32, u32); 2] = [(1, 2000), (8, 500)];

/// The ways to the server.
#[derive(Debug)]
pub(super) struct Ways([(&'static str, CommandLine); 2]);

impl Ways {
    /// Starts the server, until this process ends.
    ///
    /// # Errors
    /// `File` when this machine does not have what that needs.
    pub(super) fn prepare(arena: &Arena, client: &Path) -> Result<Self, TaskError> {
        let authority = arena.path("authority.pem");
        let config = certificates::certify(NAME, &authority)?;
        serve(SocketAddr::new(IpAddr::V4(ADDRESS), PORT), config)?;
        introduce(&arena.path("hosts"))?;
        let command = |trusts: &str, words| {
            let mut command = arena.command(words);
            command.environment.push((trusts.into(), authority.clone().into()));
            command
        };
        let sandboxed: [OsString; 8] = [
            arena.binary().into(),
            "run".into(),
            "--allow-method".into(),
            format!("GET {NAME}/*").into(),
            // The server's address is this machine's own, which a name alone does not lead to.
            "--allow".into(),
            format!("{ADDRESS}:{PORT}").into(),
            "--".into(),
            "./client".into(),
        ];
        Ok(Self([
            (DIRECT, command(CLIENT_TRUSTS, vec![client.into()])),
            (OFFLEASH, command(GATEWAY_TRUSTS, sandboxed.into())),
        ]))
    }

    /// Has each of them do a little, before anything is measured.
    ///
    /// # Errors
    /// When one does not do it.
    pub(super) fn check(&self) -> Result<(), TaskError> {
        self.0.iter().try_for_each(|(_, way)| time(way, 1, 1).map(drop))
    }

    /// Has each of them do its requests, in every round in another order.
    ///
    /// # Errors
    /// When one does not do them.
    pub(super) fn measure(&self, rounds: u32, shuffle: &mut Shuffle) -> Result<Opened, TaskError> {
        let mut all = Vec::new();
        for (connections, requests) in LOADS {
            let mut times = [const { Vec::new() }; 2];
            for _ in 0..rounds {
                for index in shuffle.order(times.len()) {
                    times[index].push(time(&self.0[index].1, connections, requests)?);
                }
            }
            all.extend(self.0.iter().zip(times).map(|((contender, _), ns)| Times {
                contender,
                connections,
                requests: connections.saturating_mul(requests),
                ns,
            }));
        }
        Ok(Opened::of(all))
    }
}

/// What the client's requests took, ns.
fn time(way: &CommandLine, connections: u32, requests: u32) -> Result<u64, TaskError> {
    let mut command = way.clone();
    let words = ["bench", "egress-part", "tls-client", NAME].map(OsString::from);
    command.arguments.extend(words);
    command
        .arguments
        .extend([connections, requests].map(|number| number.to_string().into()));
    serde_json::from_str(&command.output()?).map_err(|error| TaskError::Answer {
        from: "the client",
        why: error.to_string(),
    })
}

fn serve(address: SocketAddr, config: ServerConfig) -> Result<(), TaskError> {
    let listener = TcpListener::bind(address).map_err(TaskError::file("listening at", address.to_string()))?;
    let config = Arc::new(config);
    std::thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            let Ok(session) = ServerConnection::new(Arc::clone(&config)) else {
                continue;
            };
            // Whoever hangs up early has failed himself and says so.
            std::thread::spawn(move || {
                connection.set_nodelay(true)?;
                requests(StreamOwned::new(session, connection))
            });
        }
    });
    Ok(())
}

/// Tells programs in this mount namespace, which is the benchmark's own, the address of the server.
fn introduce(hosts: &Path) -> Result<(), TaskError> {
    fs::write(hosts, format!("127.0.0.1 localhost\n{ADDRESS} {NAME}\n")).map_err(TaskError::file("writing", hosts))?;
    let known = fs::canonicalize(HOSTS).map_err(TaskError::file("finding", HOSTS))?;
    rustix::mount::mount_bind(hosts, &known)
        .map_err(std::io::Error::from)
        .map_err(TaskError::file("replacing", known))
}
