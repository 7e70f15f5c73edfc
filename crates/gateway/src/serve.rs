//! The event loop: accepts what arrives at the sandbox's sockets.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use offleash_core::network::NetworkPolicy;
use offleash_sys::network::queue::Queue;
use offleash_sys::network::{self, NetworkSockets, datagrams};
use offleash_sys::rlimit::{self, Resource};
use rustix::io::Errno;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, Interest};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinSet, LocalSet, spawn_local};
use tokio::time::{sleep, timeout};

use crate::approvals::Approvals;
use crate::connection::{self, proxied};
use crate::current::Current;
use crate::dns::{self, Asked};
use crate::ended::Ended;
use crate::entrance::Entrances;
use crate::inbound::{self, Published};
use crate::limits::Budget;
use crate::names::Names;
use crate::opened::Opening;
use crate::policy::{Policy, Unknown};
use crate::relay::Pipes;
use crate::secrets::Secrets;
use crate::upstream::Upstream;
use crate::{Config, Shared, Ties, first_packets, orders};

/// The longest question that is read; the names in it have 255 bytes.
const QUESTION: usize = 4096;
/// The most connections that are served at once, for the sake of memory. Others wait until one of them ends.
const CONNECTIONS: u64 = 1024;
/// How many descriptors of this process there must be for each: it takes two, three while a name is resolved, and the
/// supervisor needs its own to see whether limits hold.
const DESCRIPTORS: u64 = 4;
/// The most pipes, of two descriptors each, that connections share which carry much.
const PIPES: u64 = 32;
/// How many descriptors of this process there must be for each of them.
const SHARE_FOR_A_PIPE: u64 = 32;
/// How many files this process should be able to open, so that a sandbox gets all the connections that it may have.
pub const OPEN_FILES: u64 = CONNECTIONS * DESCRIPTORS + PIPES * 2;
/// For how many connections there is one to a server beyond one for each, where requests need several.
const SHARE_OF_MORE_SERVERS: usize = 4;
/// How long a client may be silent on a connection for questions.
const SILENCE: Duration = Duration::from_secs(10);

/// Runs what `begin` starts until it is told to stop.
pub(crate) fn run(mut ties: Ties, begin: impl FnOnce(&mut Ties) -> io::Result<Servers>) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return tell(&ties.ready, Err(error)),
    };
    let tasks = LocalSet::new();
    tasks.block_on(&runtime, async {
        match begin(&mut ties) {
            Ok(mut servers) => {
                let _told_before_connections_end = ties.ended.told_by();
                tell(&ties.ready, Ok(()));
                tokio::select! {
                    // An error says that the sender is gone, which means the same.
                    _ = ties.stopped => {}
                    // A socket that nobody serves any more: what is left ends, too, and it shows.
                    Some(_) = servers.tasks.join_next() => {}
                }
            }
            Err(error) => tell(&ties.ready, Err(error)),
        }
    });
}

fn tell(ready: &SyncSender<io::Result<()>>, outcome: io::Result<()>) {
    // Nobody listens when the one who started us has died; then we end, too.
    let _ = ready.send(outcome);
}

/// Those who serve a socket each, none of whom ends by itself.
#[derive(Debug)]
pub(crate) struct Servers {
    tasks: JoinSet<()>,
    ended: Ended,
}

impl Servers {
    fn new(ended: Ended) -> Self {
        Self {
            tasks: JoinSet::new(),
            ended,
        }
    }

    /// Has `serve` serve `socket`, which is closed after the end of that was told.
    fn add<S: 'static>(&mut self, socket: S, serve: impl AsyncFnOnce(&S) + 'static) {
        let ended = self.ended.clone();
        self.tasks.spawn_local(async move {
            let socket = socket;
            let _told_before_it_is_closed = ended.told_by();
            serve(&socket).await;
        });
    }
}

/// Starts serving every socket.
pub(crate) fn begin(config: Config, sockets: NetworkSockets, ties: &mut Ties) -> io::Result<Servers> {
    let (descriptors, _) = rlimit::current(Resource::OpenFiles);
    let room = Room::within(descriptors);
    let places = &Arc::new(Semaphore::new(room.connections));
    if config.trust.is_none() && !(config.requests.is_empty() && config.secrets.is_empty()) {
        return Err(io::Error::other(
            "there are rules for requests or secrets, and nothing to open connections with",
        ));
    }
    let more_servers = room.connections / SHARE_OF_MORE_SERVERS;
    let opening = config
        .trust
        .as_ref()
        .map(|trust| Opening::new(trust, more_servers).map(Rc::new))
        .transpose()?;
    let journal = ties.journal.clone();
    let upstream = Rc::new(Upstream::new(config.way_out)?);
    let entrances = Rc::new(Entrances::new(sockets.entrances)?);
    let current = Rc::new(Current::new(more_servers, |successor| Shared {
        pipes: Rc::new(Pipes::new(room.pipes)),
        is_closed: false,
        closures: 0,
        successor,
        policy: Policy::new(
            config.rules,
            config.own,
            Unknown::of(config.asks.about_the_unknown, config.internet),
        )
        .with_requests(config.requests)
        .with_host_ports(config.host_ports),
        approvals: Rc::new(Approvals::new(ties.questions.clone(), config.asks.timeout())),
        secrets: Secrets::new(config.secrets, journal.clone()),
        audience: config.audience,
        names: Rc::new(RefCell::new(Names::default())),
        upstream,
        entrances,
        budget: Budget::new(&config.limits, journal.clone()),
        journal,
        opening,
    }));
    let shared = &current;
    let mut servers = Servers::new(ties.ended.clone());
    if let Some(socket) = sockets.first_packets {
        let queue = first_packets::watched(Queue::from_descriptor(socket))?;
        let shared = Rc::clone(shared);
        servers.add(queue, async move |queue| first_packets::serve(shared, queue).await);
    }
    for socket in sockets.connections {
        let (shared, places) = (Rc::clone(shared), Arc::clone(places));
        servers.add(listener(socket)?, async move |listener| {
            connections(shared, listener, places).await;
        });
    }
    for socket in sockets.services {
        let (shared, places) = (Rc::clone(shared), Arc::clone(places));
        servers.add(listener(socket)?, async move |listener| {
            services(shared, listener, places).await;
        });
    }
    for Published { listener: socket, port } in config.published {
        let (shared, places) = (Rc::clone(shared), Arc::clone(places));
        servers.add(listener(socket.into())?, async move |listener| {
            published(shared, listener, port, places).await;
        });
    }
    for socket in sockets.questions {
        let socket = std::net::UdpSocket::from(socket);
        socket.set_nonblocking(true)?;
        let shared = Rc::clone(shared);
        servers.add(UdpSocket::from_std(socket)?, async move |socket| {
            questions(shared, socket).await;
        });
    }
    for socket in sockets.long_questions {
        let (shared, places) = (Rc::clone(shared), Arc::clone(places));
        servers.add(listener(socket)?, async move |listener| {
            long_questions(shared, listener, places).await;
        });
    }
    if let Some(orders) = ties.orders.take() {
        servers.tasks.spawn_local(orders::carry_out(current, orders));
    }
    Ok(servers)
}

/// How much may be open at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Room {
    connections: usize,
    pipes: usize,
}

impl Room {
    /// What `descriptors` of this process allow, `None` for as many as one likes.
    fn within(descriptors: Option<u64>) -> Self {
        let descriptors = descriptors.unwrap_or(u64::MAX);
        let pipes = (descriptors / SHARE_FOR_A_PIPE).min(PIPES);
        let connections = (descriptors.saturating_sub(2 * pipes) / DESCRIPTORS).clamp(8, CONNECTIONS);
        let count = |number| usize::try_from(number).unwrap_or(8);
        Self {
            connections: count(connections),
            pipes: count(pipes),
        }
    }
}

fn listener(socket: OwnedFd) -> io::Result<TcpListener> {
    let socket = std::net::TcpListener::from(socket);
    socket.set_nonblocking(true)?;
    TcpListener::from_std(socket)
}

async fn connections(current: Rc<Current>, listener: &TcpListener, places: Arc<Semaphore>) {
    let own = listener.local_addr().ok();
    loop {
        let Some((stream, place)) = accept(listener, &places).await else {
            return;
        };
        // The connection ended before it was looked at.
        if let Ok(destination) = network::sockets::original_destination(stream.as_fd()) {
            let shared = current.now();
            spawn_local(async move {
                if Some(destination) == own {
                    proxied::serve(shared, stream, destination).await;
                } else {
                    connection::serve(shared, stream, destination).await;
                }
                drop(place);
            });
        }
    }
}

async fn services(current: Rc<Current>, listener: &TcpListener, places: Arc<Semaphore>) {
    loop {
        let Some((stream, place)) = accept(listener, &places).await else {
            return;
        };
        if let Ok(inside) = stream.local_addr() {
            let shared = current.now();
            spawn_local(async move {
                connection::service::serve(shared, stream, inside.port()).await;
                drop(place);
            });
        }
    }
}

async fn published(current: Rc<Current>, listener: &TcpListener, port: u16, places: Arc<Semaphore>) {
    loop {
        let Some((stream, place)) = accept(listener, &places).await else {
            return;
        };
        if let (Ok(peer), Ok(host_address)) = (stream.peer_addr(), stream.local_addr()) {
            let shared = current.now();
            spawn_local(async move {
                inbound::serve(shared, stream, peer, host_address, port).await;
                drop(place);
            });
        }
    }
}

/// Accepts the next connection when there is a place for it; `None` if there will never be one.
async fn accept(listener: &TcpListener, places: &Arc<Semaphore>) -> Option<(TcpStream, OwnedSemaphorePermit)> {
    // An error says that the places were closed, which nobody does.
    let place = Arc::clone(places).acquire_owned().await.ok()?;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return Some((stream, place)),
            Err(error) if is_for_good(&error) => return None,
            // What failed is that connection, or descriptors that are used up until others end.
            Err(_) => sleep(Duration::from_millis(10)).await,
        }
    }
}

/// Whether a socket that failed so does not listen any more (accept(2)).
fn is_for_good(error: &io::Error) -> bool {
    let for_good = [Errno::INVAL, Errno::BADF, Errno::NOTSOCK, Errno::OPNOTSUPP];
    Errno::from_io_error(error).is_some_and(|errno| for_good.contains(&errno))
}

async fn questions(current: Rc<Current>, socket: &UdpSocket) {
    let mut question = vec![0; QUESTION];
    loop {
        let received = socket
            .async_io(Interest::READABLE, || datagrams::receive(socket, &mut question))
            .await;
        let Ok(datagram) = received else {
            sleep(Duration::from_millis(10)).await;
            continue;
        };
        let question = question.get(..datagram.length).unwrap_or_default();
        if !datagram.truncated
            && let Some(answer) = answer(&current.now(), question)
        {
            // A client that does not hear asks again.
            let _ = datagrams::answer(socket, &datagram, &dns::for_udp(question, answer));
        }
    }
}

async fn long_questions(current: Rc<Current>, listener: &TcpListener, places: Arc<Semaphore>) {
    loop {
        let Some((stream, place)) = accept(listener, &places).await else {
            return;
        };
        let current = Rc::clone(&current);
        spawn_local(async move {
            // Whatever ends the conversation is the client's doing.
            let _ = conversation(&current, stream).await;
            drop(place);
        });
    }
}

/// Questions and answers with their lengths before them (RFC 7766).
async fn conversation(current: &Current, mut stream: TcpStream) -> io::Result<()> {
    loop {
        let length = usize::from(timeout(SILENCE, stream.read_u16()).await??);
        if length > QUESTION {
            return Ok(());
        }
        let mut question = vec![0; length];
        timeout(SILENCE, stream.read_exact(&mut question)).await??;
        let Some(answer) = answer(&current.now(), &question) else {
            return Ok(());
        };
        let length = u16::try_from(answer.len()).map_err(io::Error::other)?;
        let answer = [&length.to_be_bytes()[..], &answer].concat();
        timeout(SILENCE, stream.write_all(&answer)).await??;
    }
}

fn answer(shared: &Shared, question: &[u8]) -> Option<Vec<u8>> {
    // A name that tells a placeholder is one that may not be reached.
    let nothing;
    let policy = if shared.secrets.misused_in_question(question) {
        nothing = Policy::new(NetworkPolicy::default(), Vec::new(), Unknown::Denied);
        &nothing
    } else {
        &shared.policy
    };
    let (answer, asked) = dns::answer(question, policy, &mut shared.names.borrow_mut());
    if let Asked::Refused(name) = asked {
        shared.journal.refused_name(name);
    }
    answer
}

#[cfg(test)]
mod tests;
