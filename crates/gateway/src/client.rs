//! The supervisor's side of a gateway: its process is started, ordered about and listened to.
//!
//! What comes from there is not trusted (`wire`): it is taken in within bounds, and a process that says what no gateway
//! says, or does not answer, is ended. A thread listens, because nothing that the supervisor waits for may depend on it.

mod connection;
mod first_packets;

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

use offleash_core::monitor::MonitorFigure;
use offleash_sys::network::NetworkSockets;
use offleash_sys::network::queue::PacketQueue;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;

use crate::config::{Config, Reach};
use crate::gateway_process::GatewayProcess;
use crate::journal::Account;
use crate::journal_entries::{GatewayLoss, News};
use crate::policy::Unknown;
use crate::questions::Questions;
use crate::reached::ReachedHosts;
use crate::traffic::TrafficTotals;
use crate::trust::{Trust, TrustError};
use crate::upstream::SystemNames;
use crate::wire::{Order, ReachOrder, SocketCounts, StartOrder};

use connection::Connection;
use first_packets::FirstPackets;

/// A running gateway. Dropping it ends it, and every connection with it.
#[derive(Debug)]
pub struct Gateway {
    connection: Arc<Connection>,
    thread: Option<JoinHandle<()>>,
    /// Hangs up when the thread is to end.
    stop: Option<OwnedFd>,
    /// The other end is the thread's, and closed when the gateway is lost.
    lives: OwnedFd,
}

impl Gateway {
    /// Serves `sockets` in a process of its own.
    ///
    /// # Errors
    /// When the process cannot be started, or what it needs cannot be made.
    pub fn start(mut config: Config, sockets: NetworkSockets) -> io::Result<Self> {
        let opens = !(config.requests.is_empty() && config.secrets.is_empty());
        let ahead = config.process.take();
        let process = match &config.trust {
            // The one that has the key.
            Some(trust) => trust.take_process(),
            None if opens => {
                return Err(io::Error::other(
                    "there are rules for requests or secrets, and nothing to open connections with",
                ));
            }
            None => None,
        };
        let process = process.or(ahead).map_or_else(GatewayProcess::start, Ok)?;
        Self::of_process(process, config, sockets)
    }

    /// Has `process` serve.
    pub(crate) fn of_process(process: GatewayProcess, config: Config, mut sockets: NetworkSockets) -> io::Result<Self> {
        let unknown = Unknown::of(config.asks.about_the_unknown, config.internet);
        let queue = sockets.first_packets.take().map(PacketQueue::from_descriptor);
        let first_packets = FirstPackets::new(queue, config.rules.clone(), unknown);
        let (order, descriptors) = start_order(config, sockets);
        let connection = Arc::new(Connection::of(process, first_packets)?);
        let (lives, end) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let (stopped, stop) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        let listening = Arc::clone(&connection);
        let thread = std::thread::Builder::new()
            .name("gateway".to_owned())
            .spawn(move || listen(&listening, &stopped, end))?;
        let gateway = Self {
            connection,
            thread: Some(thread),
            stop: Some(stop),
            lives,
        };
        gateway.connection.send(&Order::Start(Box::new(order)), &descriptors);
        drop(descriptors);
        gateway.connection.ready()?;
        Ok(gateway)
    }

    /// What it asks, and where answers go. Who takes none of it denies everything that is asked about.
    pub fn questions(&self) -> &Questions {
        self.connection.questions()
    }

    /// What hangs up (`POLLHUP`) when it ends by itself, which it only does when it is broken or was killed.
    pub fn lives(&self) -> BorrowedFd<'_> {
        self.lives.as_fd()
    }

    /// Whether it has ended, so that the sandbox has no network any more. It has before any connection is closed by that.
    pub fn has_ended(&self) -> bool {
        self.connection.take_in();
        self.connection.is_gone()
    }

    /// How it ended, if nobody had ended it.
    pub fn loss(&self) -> Option<GatewayLoss> {
        self.has_ended().then(|| self.connection.loss()).flatten()
    }

    /// What was refused, and which limits were hit, since this was asked before: each once, and no more than a few
    /// hundred of a sandbox.
    pub fn news(&self) -> Vec<News> {
        self.connection.take_in();
        self.connection.journal().news()
    }

    /// What was reached by connections that have ended.
    pub fn reached(&self) -> ReachedHosts {
        self.connection.take_in();
        self.connection.journal().reached()
    }

    /// What the sandbox did with its network so far, in numbers.
    pub fn traffic(&self) -> TrafficTotals {
        // It is taken in by the thread that listens.
        self.connection.journal().traffic()
    }

    /// What was among it lately: hosts or names, as the sandbox gave them.
    pub fn examples(&self, figure: MonitorFigure) -> Vec<String> {
        self.connection.journal().examples(figure)
    }

    /// Replaces what may be reached and what becomes of requests. When this returns, nothing is judged by the old rules any
    /// more, and connections that are not allowed now are being cut, as are those to hosts whose requests are to be
    /// changed in other ways.
    pub fn set_rules(&self, reach: Reach) {
        let unknown = Unknown::of(false, reach.internet);
        self.connection.first_packets().set_rules(reach.rules.clone(), unknown);
        let reach = Box::new(reach_order(reach));
        self.connection.have_done(|number| Order::Rules { number, reach });
    }

    /// Cuts every connection to the outside, and has none made until [`Self::open`].
    pub fn close(&self) {
        let is_closed = true;
        self.connection.have_done(|number| Order::Close { number, is_closed });
    }

    /// Lets connections be made again.
    pub fn open(&self) {
        let is_closed = false;
        self.connection.have_done(|number| Order::Close { number, is_closed });
    }

    /// Connects to `port` on the sandbox's loopback, and tells `answer`, on another thread, what came of it: a
    /// connected socket that does not block, or an error, `ConnectionRefused` where nobody listens. When the gateway
    /// ends before, `answer` is dropped.
    pub fn connect(&self, port: u16, answer: impl FnOnce(io::Result<OwnedFd>) + Send + 'static) {
        self.connection.connect(port, Box::new(answer));
    }

    /// The authority of the sandbox, which the gateway makes if it has none, with those of the machine.
    ///
    /// # Errors
    /// [`TrustError`] when it cannot be made, or those cannot be read.
    pub fn authority(&self) -> Result<Trust, TrustError> {
        let certificate = self.connection.authority();
        Trust::of_gateway(certificate.map_err(|error| TrustError::Own(error.to_string()))?)
    }

    /// Ends it, and says what was reached and what was not.
    pub fn finish(mut self) -> Account {
        self.end();
        let mut account = self.connection.journal().take();
        account.lost = self.connection.loss();
        account
    }

    fn end(&mut self) {
        self.connection.end();
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It has told what it could; that it panicked is no reason to panic here.
            let _ = thread.join();
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.end();
    }
}

/// Listens until it is to stop; drops `end` when the gateway is lost. First packets are decided all the while: where nobody
/// serves a sandbox any more, its programs are to hear that at once.
fn listen(connection: &Connection, stopped: &OwnedFd, end: OwnedFd) {
    let mut end = Some(end);
    loop {
        if end.is_some() && connection.take_in() {
            end = None;
        }
        let queue = connection.first_packets().queue();
        let mut polled = vec![PollFd::new(stopped, PollFlags::empty())];
        polled.extend(
            end.is_some()
                .then(|| PollFd::from_borrowed_fd(connection.socket(), PollFlags::IN)),
        );
        polled.extend(queue.map(|queue| PollFd::new(queue, PollFlags::IN)));
        match rustix::event::poll(&mut polled, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return,
        }
        if polled.first().is_some_and(|stopped| !stopped.revents().is_empty()) {
            return;
        }
        if queue.is_some() && polled.last().is_some_and(|queue| !queue.revents().is_empty()) {
            connection.decide_first_packets();
        }
    }
}

fn start_order(config: Config, sockets: NetworkSockets) -> (StartOrder, Vec<OwnedFd>) {
    let (counts, mut descriptors) = SocketCounts::of(sockets);
    let (own, of_own) = config.own.into_order();
    descriptors.extend(of_own);
    let ports = config.published.iter().map(|published| published.port).collect();
    descriptors.extend(
        config
            .published
            .into_iter()
            .map(|published| OwnedFd::from(published.listener)),
    );
    let order = StartOrder {
        own,
        host_ports: config.host_ports,
        published: ports,
        limits: config.limits,
        asks: config.asks,
        audience: config.audience,
        sockets: counts,
        reach: reach_order(Reach {
            rules: config.rules,
            internet: config.internet,
            requests: config.requests,
            trust: config.trust,
            way_out: config.way_out,
            secrets: config.secrets,
        }),
    };
    (order, descriptors)
}

fn reach_order(reach: Reach) -> ReachOrder {
    ReachOrder {
        rules: reach.rules,
        internet: reach.internet,
        requests: reach.requests,
        roots: reach.trust.as_deref().map(Trust::roots),
        system_names: SystemNames::read(&reach.way_out.resolvers),
        way_out: reach.way_out,
        secrets: reach.secrets,
    }
}

#[cfg(test)]
mod tests;
