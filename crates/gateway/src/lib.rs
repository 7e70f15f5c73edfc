//! What a sandbox may reach: names are answered, connections judged, dialled and counted here, outside the sandbox.
//!
//! The sandbox has a network of its own in which everything leads to sockets that were made before any of its code ran.
//! They are served here, on a thread with an event loop. When that ends, the sandbox has no network; nothing falls open.
//!
//! Deliberately not here: the rules themselves (`core::network` decides) and the sandbox's side of the network
//! (`isolation` makes the namespace and its sockets).

mod approvals;
pub mod client_hello;
mod connection;
mod current;
mod dns;
mod ended;
mod entrance;
mod first_packets;
mod http;
pub mod http_body;
pub mod http_head;
pub mod http_requests;
mod inbound;
mod journal;
mod limits;
mod names;
mod opened;
mod orders;
mod own;
mod policy;
pub mod proxy_request;
mod questions;
mod relay;
mod secrets;
mod serve;
pub mod server_hello;
mod upstream;

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::thread::JoinHandle;

use offleash_core::limits::Limits;
use offleash_core::network::secret::Secret;
use offleash_core::network::{AddressClass, Asks, Host, HostPort, NetworkPolicy, RequestRules, RuleVerdict, classify};
use offleash_sys::network::NetworkSockets;
use rustix::pipe::PipeFlags;
use tokio::sync::{mpsc, oneshot};

pub use inbound::Published;
pub use journal::{Account, Connection, Inbound, News, Outcome, Request, SecretUse};
pub use opened::{Trust, TrustError};
pub use own::Own;
pub use questions::{Notice, Questions};
pub use serve::OPEN_FILES;
pub use upstream::{NamedBy, Resolvers, WayOut};

use approvals::Approvals;
use ended::Ended;
use entrance::Entrances;
use journal::Journal;
use limits::Budget;
use names::Names;
use orders::Order;
use policy::{Policy, Unknown};
use relay::Pipes;
use secrets::Secrets;
use upstream::Upstream;

/// What a gateway needs to know.
#[derive(Debug, Default)]
pub struct Config {
    /// What may be reached.
    pub rules: NetworkPolicy,
    /// Whether every public address may be reached of which no rule says anything.
    pub internet: bool,
    /// Which requests pass, and what becomes of their headers.
    pub requests: RequestRules,
    /// With what connections are opened; needed where there are rules for requests.
    pub trust: Option<Arc<Trust>>,
    /// The addresses of this machine, which no name may lead to.
    pub own: Own,
    /// Services of this machine that are given to the sandbox.
    pub host_ports: Vec<HostPort>,
    /// Ports of the sandbox that are published.
    pub published: Vec<Published>,
    /// Of which those of the network are kept here.
    pub limits: Limits,
    /// How it is asked about connections.
    pub asks: Asks,
    /// How the outside is reached.
    pub way_out: WayOut,
    /// Secrets that are put into requests.
    pub secrets: Arc<[Secret]>,
    /// Who reads what a refusal says can be done.
    pub audience: Audience,
}

/// Who can change what a sandbox may reach, and how.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Audience {
    /// Whoever typed `offleash run`.
    #[default]
    Run,
    /// Whoever made the sandbox through a server's API.
    Server,
}

impl Audience {
    /// What makes `host` reachable; `None` where nothing that they can do does.
    fn allowing(self, host: &Host) -> Option<String> {
        match (self, host) {
            (Self::Run, host) => Some(format!("`offleash run --allow {host}` allows it")),
            (Self::Server, Host::Address(address)) if classify(*address) != AddressClass::Public => None,
            (Self::Server, host) => Some(format!(
                "whoever made this sandbox can allow it if it is public: `{host}` in `allowOut` of its network, or `offleash \
                 create --allow {host}`"
            )),
        }
    }
}

/// What may be reached from now on.
#[derive(Debug, Default)]
pub struct Reach {
    /// What may be reached.
    pub rules: NetworkPolicy,
    /// Whether every public address may be reached of which no rule says anything.
    pub internet: bool,
    /// Which requests pass, and what becomes of their headers.
    pub requests: RequestRules,
    /// With what connections are opened, if the gateway has nothing for that yet; without either, none is made to hosts
    /// that there are rules for requests about.
    pub trust: Option<Arc<Trust>>,
    /// How the outside is reached. Connections that were made through another proxy are cut.
    pub way_out: WayOut,
    /// Secrets that are put into requests. Connections to hosts that others were for are cut.
    pub secrets: Arc<[Secret]>,
}

/// What the rules alone say of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Why it would be refused; `None` if it would not.
    pub reason: Option<String>,
    /// The rule that decides, as it was written.
    pub rule: Option<String>,
    /// Whether it would be asked about first.
    pub asks: bool,
}

/// What would become of a connection to `host` at `port`, before anything is resolved; with `internet`, what is public is
/// reached unless a rule says otherwise.
pub fn refusal(rules: &NetworkPolicy, internet: bool, host: &Host, port: u16) -> Refusal {
    let policy = Policy::new(rules.clone(), Vec::new(), Unknown::of(false, internet));
    let decision = policy.decide(host, port);
    let rule = decision.rule.map(ToString::to_string);
    let reason = match (decision.verdict, host) {
        (RuleVerdict::Allow | RuleVerdict::Ask, Host::Address(address)) => policy::check_loopback(host)
            .and_then(|()| policy.check(None, *address, port))
            .err(),
        (RuleVerdict::Allow | RuleVerdict::Ask, Host::Name(_)) => policy::check_loopback(host).err(),
        (RuleVerdict::Deny, _) => Some(policy::reason(rule.as_deref())),
    };
    let asks = reason.is_none() && decision.verdict == RuleVerdict::Ask;
    Refusal { reason, rule, asks }
}

/// Whether the requests on a connection to `host` at `port` are seen, because rules are about them.
pub fn opens(rules: &NetworkPolicy, requests: &RequestRules, host: &Host, port: u16) -> bool {
    let policy = Policy::new(rules.clone(), Vec::new(), Unknown::Denied).with_requests(requests.clone());
    let protocol = policy.decide(host, port).protocol;
    policy.opens(host, port, protocol, false)
}

/// What a sandbox with these rules and without any name asked for yet is answered to a DNS question, by UDP; `None` if
/// it is no question.
pub fn answer_to(rules: &NetworkPolicy, question: &[u8]) -> Option<Vec<u8>> {
    let policy = Policy::new(rules.clone(), Vec::new(), Unknown::Denied);
    let (answer, _) = dns::answer(question, &policy, &mut Names::default());
    answer.map(|answer| dns::for_udp(question, answer))
}

/// A running gateway. Dropping it ends it, and every connection with it.
#[derive(Debug)]
pub struct Gateway {
    journal: Journal,
    questions: Questions,
    stop: Option<oneshot::Sender<()>>,
    orders: mpsc::UnboundedSender<Order>,
    thread: Option<JoinHandle<()>>,
    /// Told before anything is closed.
    ended: Ended,
    /// The other end is the thread's, and closed with it.
    lives: OwnedFd,
}

/// What the thread of a gateway shares with whoever started it.
#[derive(Debug)]
pub(crate) struct Ties {
    journal: Journal,
    questions: Questions,
    /// Tells when it is to end.
    stopped: oneshot::Receiver<()>,
    /// What it is to do, until somebody does it.
    orders: Option<mpsc::UnboundedReceiver<Order>>,
    /// Is told when everything is served, or why nothing is.
    ready: SyncSender<io::Result<()>>,
    ended: Ended,
}

impl Gateway {
    /// Serves `sockets` on a thread of its own.
    ///
    /// # Errors
    /// When the thread, its event loop or the resolver cannot be made.
    pub fn start(config: Config, sockets: NetworkSockets) -> io::Result<Self> {
        Self::on_thread(move |ties| serve::run(ties, |ties| serve::begin(config, sockets, ties)))
    }

    /// Starts whatever `run` does on a thread of its own.
    fn on_thread(run: impl FnOnce(Ties) + Send + 'static) -> io::Result<Self> {
        let (journal, ended) = (Journal::default(), Ended::default());
        let questions = Questions::new()?;
        let (stop, stopped) = oneshot::channel();
        let (orders, ordered) = mpsc::unbounded_channel();
        let (ready, is_ready) = std::sync::mpsc::sync_channel(1);
        let ties = Ties {
            journal: journal.clone(),
            questions: questions.clone(),
            stopped,
            orders: Some(ordered),
            ready,
            ended: ended.clone(),
        };
        let (lives, end) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let thread = std::thread::Builder::new().name("gateway".to_owned()).spawn(move || {
            let _closed_even_by_a_panic: OwnedFd = end;
            run(ties);
        })?;
        let gateway = Self {
            journal,
            questions,
            stop: Some(stop),
            orders,
            thread: Some(thread),
            ended,
            lives,
        };
        match is_ready.recv() {
            Ok(Ok(())) => Ok(gateway),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(io::Error::other("the gateway ended while it started")),
        }
    }

    /// What it asks, and where answers go. Who takes none of it denies everything that is asked about.
    pub fn questions(&self) -> &Questions {
        &self.questions
    }

    /// What hangs up (`POLLHUP`) when it ends by itself, which it only does when it is broken.
    pub fn lives(&self) -> BorrowedFd<'_> {
        self.lives.as_fd()
    }

    /// Whether it has ended, so that the sandbox has no network any more. It has before any connection is closed by that.
    pub fn has_ended(&self) -> bool {
        self.ended.is_told() || self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// What was refused, and which limits were hit, since this was asked before: each once, and no more than a few
    /// hundred of a sandbox.
    pub fn news(&self) -> Vec<News> {
        self.journal.news()
    }

    /// Replaces what may be reached and what becomes of requests. When this returns, nothing is judged by the old rules any
    /// more, and connections that are not allowed now are being cut, as are those to hosts whose requests are to be
    /// changed in other ways.
    pub fn set_rules(&self, reach: Reach) {
        let reach = Box::new(reach);
        self.have_done(|done| Order::Rules { reach, done });
    }

    /// Cuts every connection to the outside, and has none made until [`Self::open`].
    pub fn close(&self) {
        let is_closed = true;
        self.have_done(|done| Order::Close { is_closed, done });
    }

    /// Lets connections be made again.
    pub fn open(&self) {
        let is_closed = false;
        self.have_done(|done| Order::Close { is_closed, done });
    }

    /// Connects to `port` on the sandbox's loopback, and tells `answer`, on the gateway's thread, what came of it: a
    /// connected socket that does not block, or an error, `ConnectionRefused` where nobody listens. When the gateway
    /// ends before, `answer` is dropped.
    pub fn connect(&self, port: u16, answer: impl FnOnce(io::Result<OwnedFd>) + Send + 'static) {
        let answer = Box::new(answer);
        self.order(Order::Connect { port, answer });
    }

    /// Gives an order and waits until it counts, which is not long: its thread waits for nobody.
    fn have_done(&self, order: impl FnOnce(orders::Done) -> Order) {
        let (done, is_done) = std::sync::mpsc::sync_channel(1);
        self.order(order(done));
        // Nothing is sent: the other end is dropped when it counts, and by a gateway that has ended.
        let _dropped = is_done.recv();
    }

    fn order(&self, order: Order) {
        // One that has ended has no connections either, and that it has is told in other ways.
        let _heard = self.orders.send(order);
    }

    /// Ends it, and says what was reached and what was not.
    pub fn finish(mut self) -> Account {
        self.end();
        self.journal.take()
    }

    fn end(&mut self) {
        // Either way it is told: by the message, or by the sender being gone.
        let _ = self.stop.take().map(|stop| stop.send(()));
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

/// What all connections of a sandbox share.
#[derive(Debug, Clone)]
pub(crate) struct Shared {
    policy: Policy,
    /// Whether nothing is carried for now.
    is_closed: bool,
    /// How often it was so.
    closures: u64,
    approvals: Rc<Approvals>,
    secrets: Secrets,
    audience: Audience,
    names: Rc<RefCell<Names>>,
    upstream: Rc<Upstream>,
    budget: Rc<Budget>,
    entrances: Rc<Entrances>,
    journal: Journal,
    pipes: Rc<Pipes>,
    /// With what connections are opened, if any are.
    opening: Option<Rc<opened::Opening>>,
    /// What has replaced this.
    successor: current::Successor,
}
