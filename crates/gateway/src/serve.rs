//! The event loop: accepts what arrives at the sandbox's sockets.

mod keys;
mod orders;

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use offleash_core::approval::ApprovalRules;
use offleash_core::limits::Limits;
use offleash_core::network::{HostPort, NetworkPolicy};
use offleash_sys::network::{self, NetworkSockets, datagrams};
use offleash_sys::rlimit::{self, LimitedResource};
use rustix::io::Errno;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, Interest};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::runtime::Runtime;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinSet, LocalSet, spawn_local};
use tokio::time::{sleep, timeout};

use crate::approvals::Approvals;
use crate::audience::Audience;
use crate::connection::{self, proxied};
use crate::current::{Current, NewRules};
use crate::dns::{self, Asked};
use crate::ended::TellsOfEnd;
use crate::entrance::Entrances;
use crate::inbound::{self, Published};
use crate::journal::Journal;
use crate::limits::Budget;
use crate::link::Link;
use crate::names::Names;
use crate::opened::Opening;
use crate::own::Own;
use crate::policy::{Policy, Unknown};
use crate::questions::Questions;
use crate::relay::Pipes;
use crate::secrets::Secrets;
use crate::shared::Shared;
use crate::upstream::Upstream;
use crate::wire::Report;
use crate::wire::frames::Incoming;

pub(crate) use keys::{Keys, new_rules};

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
pub(crate) const OPEN_FILES: u64 = CONNECTIONS * DESCRIPTORS + PIPES * 2;
/// For how many connections there is one to a server beyond one for each, where requests need several.
const SHARE_OF_MORE_SERVERS: usize = 4;
/// How long a client may be silent on a connection for questions.
const SILENCE: Duration = Duration::from_secs(10);

/// What a gateway serves, and by what.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) rules: NewRules,
    pub(crate) own: Own,
    pub(crate) host_ports: Vec<HostPort>,
    pub(crate) published: Vec<Published>,
    pub(crate) limits: Limits,
    pub(crate) asks: ApprovalRules,
    pub(crate) audience: Audience,
}

/// What ties a gateway to its supervisor.
#[derive(Debug)]
pub(crate) struct Ties {
    pub(crate) link: Link,
    pub(crate) journal: Journal,
    pub(crate) questions: Questions,
    pub(crate) keys: Keys,
    pub(crate) incoming: Incoming,
}

impl Ties {
    /// # Errors
    /// When the kernel has no more descriptors.
    pub(crate) fn new(link: Link, incoming: Incoming, keys: Keys) -> io::Result<Self> {
        Ok(Self {
            journal: Journal::passed_on(link.clone()),
            questions: Questions::new()?,
            keys,
            incoming,
            link,
        })
    }
}

/// The event loop. Made before a gateway gives anything up: it may need a kind of socket that a gateway has no use for.
///
/// # Errors
/// When the kernel has no more descriptors.
pub(crate) fn event_loop() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// Runs what `begin` starts until it is told to stop, and tells what is left to be told.
///
/// # Errors
/// What kept it from starting, or ended it.
pub(crate) fn run(
    mut ties: Ties,
    runtime: Runtime,
    begin: impl FnOnce(&mut Ties) -> io::Result<Servers>,
) -> io::Result<()> {
    let (link, journal) = (ties.link.clone(), ties.journal.clone());
    let served = serve(&mut ties, &runtime, begin);
    drop(runtime);
    // Every connection has told the journal by now, those that were cut off with the rest as well.
    while !link.has_room() {
        link.send_last();
    }
    journal.pass_on();
    if served.is_ok() {
        link.send(&Report::Ended);
    }
    link.send_last();
    served
}

fn serve(ties: &mut Ties, runtime: &Runtime, begin: impl FnOnce(&mut Ties) -> io::Result<Servers>) -> io::Result<()> {
    let link = ties.link.clone();
    LocalSet::new().block_on(runtime, async {
        let mut servers = begin(ties).inspect_err(|error| link.send(&Report::Ready(Err(error.into()))))?;
        let _told_before_connections_end = TellsOfEnd::by(&link);
        link.send(&Report::Ready(Ok(())));
        spawn_local(orders::tell_in_time(link.clone(), ties.journal.clone()));
        spawn_local(orders::tell_questions(link.clone(), ties.questions.clone()));
        let orders = orders::carry_out(&link, servers.current.clone(), ties);
        tokio::select! {
            done = orders => done,
            // What is left ends, too, and it shows.
            Some(_) = servers.tasks.join_next() => Err(io::Error::other("a socket of the sandbox is not served any more")),
        }
    })
}

/// Those who serve a socket each, none of whom ends by itself.
#[derive(Debug)]
pub(crate) struct Servers {
    tasks: JoinSet<()>,
    link: Link,
    /// What orders are about.
    current: Option<Rc<Current>>,
}

impl Servers {
    pub(crate) fn new(link: Link) -> Self {
        Self {
            tasks: JoinSet::new(),
            link,
            current: None,
        }
    }

    /// Has `serve` serve `socket`, which is closed after the end of that was told.
    fn add<S: 'static>(&mut self, socket: S, serve: impl AsyncFnOnce(&S) + 'static) {
        let link = self.link.clone();
        self.tasks.spawn_local(async move {
            let socket = socket;
            let _told_before_it_is_closed = TellsOfEnd::by(&link);
            serve(&socket).await;
        });
    }
}

/// Starts serving every socket.
pub(crate) fn begin(setup: Setup, sockets: NetworkSockets, ties: &Ties) -> io::Result<Servers> {
    let (descriptors, _) = rlimit::current(LimitedResource::OpenFiles);
    let room = Room::within(descriptors);
    let places = &Arc::new(Semaphore::new(room.connections));
    let rules = setup.rules;
    let more_servers = room.connections / SHARE_OF_MORE_SERVERS;
    let opening = rules
        .trust
        .as_ref()
        .map(|trust| Opening::new(trust, more_servers).map(Rc::new))
        .transpose()?;
    let journal = ties.journal.clone();
    let upstream = Rc::new(Upstream::new(rules.way_out, &rules.system_names));
    let entrances = Rc::new(Entrances::new(sockets.entrances)?);
    let current = Rc::new(Current::new(more_servers, |successor| Shared {
        pipes: Rc::new(Pipes::new(room.pipes)),
        is_closed: false,
        closures: 0,
        successor,
        policy: Policy::new(
            rules.rules,
            setup.own,
            Unknown::of(setup.asks.about_the_unknown, rules.internet),
        )
        .with_requests(rules.requests)
        .with_host_ports(setup.host_ports),
        approvals: Rc::new(Approvals::new(ties.questions.clone(), setup.asks.timeout())),
        secrets: Secrets::new(rules.secrets, journal.clone()),
        audience: setup.audience,
        names: Rc::new(RefCell::new(Names::told_to(ties.link.clone()))),
        upstream,
        entrances,
        budget: Budget::new(&setup.limits, journal.clone()),
        journal,
        opening,
    }));
    let shared = &current;
    let mut servers = Servers::new(ties.link.clone());
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
    for Published { listener: socket, port } in setup.published {
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
    servers.current = Some(current);
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
