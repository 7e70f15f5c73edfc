//! Connections whose requests are judged: TLS ends here, with a certificate that only this sandbox trusts, and begins
//! anew towards the server.
//!
//! Bodies are carried as they come, never gathered. What a message's framing says is read by one library and written
//! anew by it, so that both sides see the same messages; requests that could be read in another way as well are refused
//! before they reach it. Deliberately not here: which connections are opened
//! (`Policy`), and the trust stores of the sandbox (`supervisor` puts them there).

mod answers;
mod authority;
mod bodies;
mod client;
mod client_stream;
mod exchange;
mod gateway_trust;
mod hops;
mod judged_stream;
mod lengths;
mod log;
pub(crate) mod requests;
mod secrets;
mod server_stream;
mod servers;
mod trailers;
mod websocket;

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use offleash_core::network::Host;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use crate::limits::Counts;
use crate::shared::Shared;
use crate::stopped::Stopped;

pub(crate) use authority::{Authority, COMMON_NAME};
pub(crate) use gateway_trust::GatewayTrust;
pub(crate) use log::Log;
pub(crate) use requests::Destination;

/// What all opened connections of a sandbox share.
#[derive(Debug)]
pub(crate) struct Opening {
    leaves: RefCell<authority::Leaves>,
    connectors: servers::Connectors,
    more_servers: Arc<Semaphore>,
    /// Places for bodies that are gathered.
    gathered: Semaphore,
    /// Places for connections.
    places: Semaphore,
}

/// How many connections are open at once. Somebody who asks for much and reads nothing makes each hold some megabytes of
/// answers; others wait until one of them ends.
const PLACES: usize = 256;

impl Opening {
    /// Connections to servers may be `more_servers` in all beyond one for each connection of the sandbox.
    pub(crate) fn new(trust: &Arc<GatewayTrust>, more_servers: usize) -> io::Result<Self> {
        Ok(Self {
            leaves: RefCell::new(authority::Leaves::new(Arc::clone(trust))?),
            connectors: servers::Connectors::new(trust)?,
            more_servers: Arc::new(Semaphore::new(more_servers)),
            gathered: Semaphore::new(secrets::GATHERED),
            places: Semaphore::new(PLACES),
        })
    }
}

/// Serves a connection to `to`, of which `read` was read already.
pub(crate) async fn serve(
    shared: &Rc<Shared>,
    to: Destination,
    seen: &Rc<Log>,
    client: &mut TcpStream,
    counts: &Counts,
    read: Vec<u8>,
) -> Result<(), Stopped> {
    let Some(opening) = &shared.opening else {
        return Err(Stopped::Failed("there is nothing to open it with".to_owned()));
    };
    // An error says that the places were closed, which nobody does.
    let _place = opening.places.acquire().await.ok();
    let stream = client_stream::ClientStream::new(client, counts, read);
    let exchange = Rc::new(exchange::Exchange::new(Rc::clone(shared), to, Rc::clone(seen), opening));
    client::serve(opening, exchange, stream).await
}

/// The name of `host` as it stands in certificates.
fn server_name(host: &Host) -> Result<rustls::pki_types::ServerName<'static>, String> {
    match host {
        Host::Name(name) => rustls::pki_types::ServerName::try_from(name.as_str().to_owned())
            .map_err(|_| format!("`{name}` is no name for a certificate")),
        Host::Address(address) => Ok((*address).into()),
    }
}

#[cfg(test)]
mod tests;
