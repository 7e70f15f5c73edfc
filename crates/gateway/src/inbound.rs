//! Connections from outside to a port of the sandbox that was published.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::time::{Instant, SystemTime};

use tokio::net::TcpStream;

use crate::journal_entries::{Inbound, Outcome};
use crate::limits::{Counts, Reached};
use crate::relay;
use crate::shared::Shared;

/// A port of the sandbox that is published.
#[derive(Debug)]
pub struct Published {
    /// What listens on the host.
    pub listener: TcpListener,
    /// The port on the sandbox's loopback.
    pub port: u16,
}

/// Why a connection from outside ended before both sides had ended it.
#[derive(Debug)]
enum Stopped {
    Limited(Reached),
    Failed(io::Error),
}

/// Serves a connection that `peer` made to `port`, published at `host_address`, and tells the journal.
pub(crate) async fn serve(
    shared: Rc<Shared>,
    outside: TcpStream,
    peer: SocketAddr,
    host_address: SocketAddr,
    port: u16,
) {
    let mut session = Session {
        shared: &shared,
        outside,
        at: SystemTime::now(),
        begun: Instant::now(),
        peer,
        host_address,
        port,
        is_made: false,
        counts: Counts::new(&shared.budget),
        stopped: None,
    };
    if let Err(stopped) = session.run().await {
        // It was accepted before anybody inside was asked: an end would look like an answer.
        let _ = session.outside.set_zero_linger();
        session.stopped = Some(stopped);
    }
}

struct Session<'a> {
    shared: &'a Shared,
    outside: TcpStream,
    at: SystemTime,
    begun: Instant,
    peer: SocketAddr,
    host_address: SocketAddr,
    port: u16,
    /// Whether a program inside accepted it.
    is_made: bool,
    counts: Counts,
    stopped: Option<Stopped>,
}

impl Session<'_> {
    /// Until it ends or is cut because no more bytes may pass.
    async fn run(&mut self) -> Result<(), Stopped> {
        let budget = Rc::clone(&self.shared.budget);
        let _place = budget.admit().map_err(Stopped::Limited)?;
        tokio::select! {
            biased;
            reached = budget.used_up() => Err(Stopped::Limited(reached)),
            done = self.carry() => done,
        }
    }

    async fn carry(&mut self) -> Result<(), Stopped> {
        let connected = self.shared.entrances.connect(self.port).await;
        let mut inside = connected.map_err(Stopped::Failed)?;
        self.is_made = true;
        let _ = inside.set_nodelay(true);
        let _ = self.outside.set_nodelay(true);
        // How a connection ends that was carried is the two sides' business.
        let _ = relay::tunnel(
            &mut inside,
            &mut self.outside,
            &self.counts,
            &self.shared.pipes,
            None::<fn(&[u8])>,
        )
        .await;
        Ok(())
    }
}

impl Drop for Session<'_> {
    /// Tells the journal, of a connection that is cut off with the gateway, too.
    fn drop(&mut self) {
        let outcome = match (self.stopped.take(), self.is_made) {
            (None, true) => Outcome::Allowed,
            (None, false) => Outcome::Failed("the sandbox ended before it was made".to_owned()),
            (Some(Stopped::Limited(reached)), true) => Outcome::Cut(reached.to_string()),
            (Some(Stopped::Limited(reached)), false) => Outcome::Refused(reached.to_string()),
            (Some(Stopped::Failed(error)), _) => {
                Outcome::Failed(format!("connecting to port {} in the sandbox: {error}", self.port))
            }
        };
        self.shared.journal.inbound(Inbound {
            at: self.at,
            peer: self.peer,
            host_address: self.host_address,
            port: self.port,
            outcome,
            sent: self.counts.sent.bytes(),
            received: self.counts.received.bytes(),
            duration: self.begun.elapsed(),
        });
    }
}
