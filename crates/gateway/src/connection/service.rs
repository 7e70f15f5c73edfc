//! Connections to a service of the host that the sandbox was given: to that service and to nothing else of the host.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::time::Duration;

use offleash_core::network::{Host, HostPort};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{Session, Stopped, reset};
use crate::current::PAUSED;
use crate::shared::Shared;

/// How long the service may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(10);
/// Where services are: nowhere but on loopback.
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Serves a connection that the sandbox made to `inside`, a port of its own, and tells the journal.
pub(crate) async fn serve(shared: Rc<Shared>, client: TcpStream, inside: u16) {
    let Some(given) = shared.policy.host_port(inside) else {
        // It leads nowhere, although there is a listener.
        return reset(&client);
    };
    let mut session = Session::new(&shared, client, Host::Address(LOOPBACK), given.port);
    session.rule = Some(given.to_string());
    let ended = session.use_service(given).await;
    if ended.is_err() {
        reset(&session.client);
    }
    session.end(ended);
}

impl Session<'_> {
    /// Until it ends or is cut because no more bytes may pass.
    async fn use_service(&mut self, given: HostPort) -> Result<(), Stopped> {
        let budget = Rc::clone(&self.shared.budget);
        let _place = budget.admit()?;
        if self.shared.is_closed {
            return Err(Stopped::Refused(PAUSED.to_owned()));
        }
        let shared = Rc::clone(self.shared);
        tokio::select! {
            biased;
            reached = budget.used_up() => Err(reached.into()),
            reason = shared.closed() => Err(Stopped::Cut(reason)),
            done = self.carry_to(given) => done,
        }
    }

    async fn carry_to(&mut self, given: HostPort) -> Result<(), Stopped> {
        let failed =
            |error: io::Error| Stopped::Failed(format!("connecting to port {} of this machine: {error}", given.port));
        let connected = timeout(CONNECT, TcpStream::connect((LOOPBACK, given.port))).await;
        let service = connected.map_err(|elapsed| failed(elapsed.into()))?.map_err(failed)?;
        self.shared.journal.begin(&LOOPBACK.to_string(), given.port);
        self.address = Some(LOOPBACK);
        let _ = service.set_nodelay(true);
        let _ = self.client.set_nodelay(true);
        self.carry(service, &[]).await
    }
}
