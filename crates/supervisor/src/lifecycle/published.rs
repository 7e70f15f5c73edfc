//! The ports of a sandbox that are published: listened on before anything of it runs.

use std::io;
use std::net::{SocketAddr, SocketAddrV4, TcpListener};

use offleash_core::network::PublishRule;
use offleash_core::record::PublishedPort;
use offleash_gateway::Published;

use super::LifecycleError;

/// What listens on the host for the ports of a sandbox.
#[derive(Debug, Default)]
pub(super) struct PublishedPorts(Vec<Listening>);

#[derive(Debug)]
struct Listening {
    /// Until the gateway has it.
    listener: Option<TcpListener>,
    address: SocketAddr,
    asked: PublishRule,
}

impl PublishedPorts {
    /// Listens for all of them.
    ///
    /// # Errors
    /// `Publish` with what keeps it from one of them.
    pub(super) fn listen(asked: &[PublishRule]) -> Result<Self, LifecycleError> {
        let listening = asked.iter().map(|asked| {
            let wanted = SocketAddrV4::new(asked.address, asked.host_port);
            let listen = || -> io::Result<Listening> {
                let listener = TcpListener::bind(wanted)?;
                let address = listener.local_addr()?;
                Ok(Listening {
                    listener: Some(listener),
                    address,
                    asked: *asked,
                })
            };
            listen().map_err(|source| LifecycleError::Publish { asked: *asked, source })
        });
        listening.collect::<Result<_, _>>().map(Self)
    }

    /// What a gateway serves. Nothing of it stays here, so that nobody listens any more when the gateway ends.
    pub(super) fn take_listeners(&mut self) -> Vec<Published> {
        let published = self.0.iter_mut().filter_map(|listening| {
            Some(Published {
                listener: listening.listener.take()?,
                port: listening.asked.port,
            })
        });
        published.collect()
    }

    /// Lines about those ports that nobody can know yet.
    pub(super) fn news(&self) -> impl Iterator<Item = String> {
        let any = self.0.iter().filter(|listening| listening.asked.host_port == 0);
        any.map(|Listening { address, asked, .. }| format!("port {} is published at {address}", asked.port))
    }

    /// What the record says, once nobody listens any more.
    pub(super) fn into_told(self) -> Vec<PublishedPort> {
        let told = self.0.into_iter().map(|listening| PublishedPort {
            host_address: listening.address.to_string(),
            port: listening.asked.port,
        });
        told.collect()
    }
}
