//! One connection of the sandbox: judged, dialled, looked at and carried.

mod greeted;
mod opened;
pub(crate) mod proxied;
pub(crate) mod service;

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use offleash_core::approval::ApprovalAnswer;
use offleash_core::monitor::is_stratum;
use offleash_core::network::{Host, RuleDecision, RuleVerdict, SpokenProtocol};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::client_hello::{ClientHello, ClientHelloReader, Progress};
use crate::current::{Leading, PAUSED};
use crate::http;
use crate::journal::Journal;
use crate::journal_entries::{Connection, Outcome};
use crate::limits::Counts;
use crate::opened::Log;
use crate::policy;
use crate::proxy_request::Way;
use crate::relay;
use crate::shared::Shared;
use crate::stopped::{Stopped, TIMEOUT, broken};

/// Serves a connection that the sandbox made to `destination`, and tells the journal.
pub(crate) async fn serve(shared: Rc<Shared>, client: TcpStream, destination: SocketAddr) {
    let named = host_at(&shared, destination.ip());
    let host = named.clone().unwrap_or(Host::Address(destination.ip()));
    let mut session = Session::new(&shared, client, host, destination.port());
    let ended = match named {
        Some(_) => session.run().await,
        None => session.refuse_unknown(),
    };
    session.end(ended);
}

/// What is meant by an address inside.
pub(crate) fn host_at(shared: &Shared, address: IpAddr) -> Option<Host> {
    shared.names.borrow().host_at(address)
}

/// Tells the journal of a connection that begins as a miner's does.
fn look_at_first(journal: &Journal, (host, port): &(String, u16), first: &[u8]) {
    if is_stratum(first) {
        journal.speak_stratum(host, *port);
    }
}

/// Ends a connection so that the client sees it refused and not ended.
fn reset(client: &TcpStream) {
    // Only how it looks to the client depends on it.
    let _ = client.set_zero_linger();
}

struct Session<'a> {
    shared: &'a Rc<Shared>,
    client: TcpStream,
    at: SystemTime,
    begun: Instant,
    host: Host,
    port: u16,
    /// Whether it was dialled.
    made: bool,
    /// The address that was, unless a proxy has resolved the name.
    address: Option<IpAddr>,
    rule: Option<String>,
    asked: Option<ApprovalAnswer>,
    counts: Counts,
    /// How a client of the proxy asked, until it was answered.
    way: Option<Way>,
    /// What the client said already, which is for the server.
    read: Vec<u8>,
    /// The server, where it was dialled before it was looked at what the client says.
    dialled: Option<TcpStream>,
    /// That it leads there.
    leading: Option<Leading>,
    /// What was seen on it if it was opened.
    seen: Rc<Log>,
    /// `None` until it has ended.
    outcome: Option<Outcome>,
}

impl Drop for Session<'_> {
    /// Tells the journal: of a connection that is cut off with the gateway, too, which has carried what it has carried.
    fn drop(&mut self) {
        self.address = self.address.or(self.seen.address.get());
        let (requests, more_requests) = self.seen.requests();
        let outcome = self.outcome.take().unwrap_or_else(|| {
            if self.is_made() {
                Outcome::Allowed
            } else {
                Outcome::Failed("the sandbox ended before it was made".to_owned())
            }
        });
        self.shared.journal.connection(Connection {
            at: self.at,
            times: 1,
            host: self.host.to_string(),
            port: self.port,
            address: self.address,
            outcome,
            rule: self.rule.take(),
            sent: self.counts.sent.bytes(),
            received: self.counts.received.bytes(),
            asked: self.asked,
            duration: self.begun.elapsed(),
            requests,
            more_requests,
        });
    }
}

impl<'a> Session<'a> {
    fn new(shared: &'a Rc<Shared>, client: TcpStream, host: Host, port: u16) -> Self {
        Self {
            shared,
            client,
            at: SystemTime::now(),
            begun: Instant::now(),
            host,
            port,
            made: false,
            address: None,
            rule: None,
            counts: Counts::new(&shared.budget),
            asked: None,
            way: None,
            read: Vec::new(),
            dialled: None,
            leading: None,
            seen: Rc::new(Log::new(shared.journal.clone())),
            outcome: None,
        }
    }

    /// Whether any server was dialled.
    fn is_made(&self) -> bool {
        self.made || self.seen.made.get()
    }

    fn end(&mut self, ended: Result<(), Stopped>) {
        match ended {
            Ok(()) => self.outcome = Some(Outcome::Allowed),
            Err(stopped) => self.note(&stopped),
        }
    }

    fn note(&mut self, stopped: &Stopped) {
        self.outcome = Some(match stopped {
            Stopped::Refused(reason) => Outcome::Refused(reason.clone()),
            // Whatever ended it, the server was reached and told something: a reset must not make that look undone.
            Stopped::Failed(_) if self.made && self.counts.sent.bytes() > 0 => Outcome::Allowed,
            Stopped::Failed(reason) => Outcome::Failed(reason.clone()),
            Stopped::Limited(reached) if self.is_made() => Outcome::Cut(reached.to_string()),
            Stopped::Limited(reached) => Outcome::Refused(reached.to_string()),
            Stopped::Cut(reason) if self.is_made() => Outcome::Cut(reason.clone()),
            Stopped::Cut(reason) => Outcome::Refused(reason.clone()),
        });
    }

    /// An address that stands for names, and for none yet.
    fn refuse_unknown(&self) -> Result<(), Stopped> {
        reset(&self.client);
        Err(Stopped::Refused("it stands for no name".to_owned()))
    }

    async fn run(&mut self) -> Result<(), Stopped> {
        if self.shared.is_closed {
            return self.refuse(Stopped::Refused(PAUSED.to_owned())).await;
        }
        let decision = self.shared.policy.decide(&self.host, self.port);
        self.rule = decision.rule.map(ToString::to_string);
        let protocol = decision.protocol;
        let permitted = match decision.verdict {
            RuleVerdict::Allow | RuleVerdict::Ask if self.host.is_loopback() => {
                policy::check_loopback(&self.host).map_err(Stopped::Refused)
            }
            RuleVerdict::Allow => Ok(()),
            RuleVerdict::Ask => self.ask(&decision).await,
            RuleVerdict::Deny => Err(Stopped::Refused(policy::reason(self.rule.as_deref()))),
        };
        if let Err(stopped) = permitted {
            return self.refuse(stopped).await;
        }
        match self.admitted(protocol).await {
            Err(stopped) => self.refuse(stopped).await,
            done => done,
        }
    }

    /// What the rules allow, until it ends or is cut because no more bytes may pass.
    async fn admitted(&mut self, protocol: SpokenProtocol) -> Result<(), Stopped> {
        let budget = Rc::clone(&self.shared.budget);
        let _place = budget.admit()?;
        self.shared.journal.begin(&self.host.to_string(), self.port);
        let shared = Rc::clone(self.shared);
        let (host, port, led_to) = (self.host.clone(), self.port, Arc::clone(&self.seen.led_to));
        tokio::select! {
            biased;
            reached = budget.used_up() => Err(reached.into()),
            reason = shared.no_longer_allowed(&host, port, &led_to) => Err(Stopped::Cut(reason)),
            done = self.open_and_carry(protocol) => done,
        }
    }

    async fn open_and_carry(&mut self, protocol: SpokenProtocol) -> Result<(), Stopped> {
        let has_secrets = self.shared.secrets.concern(&self.host);
        if self.shared.policy.opens(&self.host, self.port, protocol, has_secrets) {
            self.accept_tunnel().await?;
            return self.opened(protocol).await;
        }
        self.open_tunnel().await?;
        self.look_and_carry(protocol).await
    }

    async fn look_and_carry(&mut self, protocol: SpokenProtocol) -> Result<(), Stopped> {
        let read = std::mem::take(&mut self.read);
        match (protocol, &self.way) {
            (SpokenProtocol::Tls, _) => self.tls(read).await,
            // What is asked of a proxy as a request is one.
            (SpokenProtocol::Http, _) | (_, Some(Way::Request { .. })) => self.http(read).await,
            (SpokenProtocol::Tcp, _) => self.raw(&read).await,
            (SpokenProtocol::Auto, _) => self.whatever_it_is(read).await,
        }
    }

    /// Waits for somebody's judgement, unless the connection would be refused whatever it is.
    async fn ask(&mut self, decision: &RuleDecision<'_>) -> Result<(), Stopped> {
        let shared = self.shared;
        if let Host::Address(address) = self.host {
            let checked = shared.policy.check(None, address, self.port);
            checked.map_err(Stopped::Refused)?;
        }
        let approval = shared.approvals.ask(&self.host, self.port, decision).await;
        self.asked = Some(approval);
        if approval.allows() {
            return Ok(());
        }
        Err(Stopped::Refused(policy::reason_asked(self.rule.as_deref(), approval)))
    }

    /// Tells the client, where it would understand.
    async fn refuse(&mut self, stopped: Stopped) -> Result<(), Stopped> {
        // Before the client knows it: the sandbox may end of it, and the gateway with the sandbox.
        self.note(&stopped);
        let told = self.tell_of_refusal(&stopped).await;
        if !told && self.port == 80 && self.counts.received.bytes() == 0 {
            let answer = self.explanation(&stopped);
            let _ = timeout(Duration::from_secs(2), http::say(&mut self.client, &answer)).await;
        } else if !told {
            reset(&self.client);
        }
        Err(stopped)
    }

    /// The answer of HTTP to a request that is not sent on.
    fn explanation(&self, stopped: &Stopped) -> Vec<u8> {
        let (host, port) = (&self.host, self.port);
        let reason = match stopped {
            Stopped::Refused(reason) | Stopped::Cut(reason) => reason,
            Stopped::Failed(reason) => return http::answer("502 Bad Gateway", reason, None),
            Stopped::Limited(reached) => return http::answer("429 Too Many Requests", &reached.to_string(), None),
        };
        let hint = if proxied::is_local(host) {
            Some("a server in the sandbox is reached without a proxy: `NO_PROXY=localhost,127.0.0.1,::1`".to_owned())
        } else {
            let allows = || self.shared.audience.allowing(host);
            self.shared.policy.would_need_a_rule(host, port).then(allows).flatten()
        };
        let reason = format!("`{host}` port {port}: {reason}");
        http::answer("403 Forbidden", &reason, hint.as_deref())
    }

    async fn dial(&mut self) -> Result<TcpStream, Stopped> {
        if let Some(dialled) = self.dialled.take() {
            return Ok(dialled);
        }
        let (made, leading) = self.shared.dial(&self.host, self.port, &self.seen.led_to).await?;
        self.made = true;
        self.address = made.address;
        self.leading = leading;
        let server = made.stream;
        // Latency counts more than packets; it is the sandbox's own side that gathers.
        let _ = server.set_nodelay(true);
        let _ = self.client.set_nodelay(true);
        Ok(server)
    }

    async fn raw(&mut self, read: &[u8]) -> Result<(), Stopped> {
        let server = self.dial().await?;
        self.carry(server, read).await
    }

    /// Sends on what was read already, then everything.
    async fn carry(&mut self, mut server: TcpStream, read: &[u8]) -> Result<(), Stopped> {
        if !read.is_empty() {
            self.look_at_first(read);
            relay::write(&mut server, read, &self.counts.sent)
                .await
                .map_err(broken)?;
        }
        // How a connection ends that was carried is the two sides' business.
        let journal = self.shared.journal.clone();
        let place = (self.host.to_string(), self.port);
        // What was read before was looked at.
        let look = read
            .is_empty()
            .then_some(move |first: &[u8]| look_at_first(&journal, &place, first));
        let _ = relay::tunnel(&mut self.client, &mut server, &self.counts, &self.shared.pipes, look).await;
        Ok(())
    }

    fn look_at_first(&self, first: &[u8]) {
        look_at_first(&self.shared.journal, &(self.host.to_string(), self.port), first);
    }

    /// TLS: the name in the greeting must be the one that the connection was made to.
    async fn tls(&mut self, read: Vec<u8>) -> Result<(), Stopped> {
        let (hello, read) = self.greeting(read).await?;
        self.check_greeting(&hello)?;
        let server = self.dial().await?;
        self.carry_greeted(server, &hello, read).await
    }

    fn check_greeting(&self, hello: &ClientHello) -> Result<(), Stopped> {
        let asked = match &hello.server_name {
            Some(name) => Host::parse_bytes(name.as_bytes()).ok(),
            None => None,
        };
        match (&self.host, asked) {
            (host, Some(asked)) if asked == *host => Ok(()),
            // A server name cannot be an address (RFC 6066, 3).
            (Host::Address(_), None) if hello.server_name.is_none() => Ok(()),
            (host, Some(asked)) => Err(Stopped::Refused(format!(
                "the TLS greeting names `{asked}`, but the connection was made to `{host}`"
            ))),
            (host, None) => Err(Stopped::Refused(format!(
                "the TLS greeting names no server, but the connection was made to `{host}`"
            ))),
        }
    }

    /// Reads until the whole greeting is there.
    async fn greeting(&mut self, mut read: Vec<u8>) -> Result<(ClientHello, Vec<u8>), Stopped> {
        let mut reader = ClientHelloReader::default();
        loop {
            match reader.read(&read) {
                Progress::Hello(hello) => return Ok((hello, read)),
                Progress::NeedMore => self.read_more(&mut read).await?,
                Progress::NotTls => return Err(Stopped::Refused("it is not TLS".to_owned())),
                Progress::Invalid(error) => {
                    return Err(Stopped::Refused(format!("its TLS greeting is refused: {error}")));
                }
            }
        }
    }

    async fn read_more(&mut self, read: &mut Vec<u8>) -> Result<(), Stopped> {
        match timeout(TIMEOUT, self.client.read_buf(read)).await {
            Ok(Ok(0)) => Err(Stopped::Failed("it ended before it said what it wanted".to_owned())),
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(broken(error)),
            Err(_) => Err(Stopped::Refused("it did not say what it wanted in time".to_owned())),
        }
    }

    async fn http(&mut self, read: Vec<u8>) -> Result<(), Stopped> {
        let mut requests = http::Requests::new(self.host.clone(), self.port, self.shared.secrets.clone(), read);
        // The first request is read before anything is dialled.
        requests.first(&mut self.client, TIMEOUT).await?;
        let server = self.dial().await?;
        requests.carry(&mut self.client, server, &self.counts).await
    }

    /// A port without a protocol of its own: who speaks first decides what can be looked at.
    async fn whatever_it_is(&mut self, mut read: Vec<u8>) -> Result<(), Stopped> {
        let server = self.dial().await?;
        let mut first = [0];
        loop {
            match http::looks_like(&read) {
                http::Looks::Tls
                    if self.shared.secrets.concern(&self.host) || self.shared.policy.opens_tls(&self.host) =>
                {
                    // Its requests have to be seen: the server is asked anew, with TLS of our own.
                    drop(server);
                    self.leading = None;
                    self.read = read;
                    return self.opened(SpokenProtocol::Tls).await;
                }
                http::Looks::Tls => {
                    let (hello, read) = self.greeting(read).await?;
                    self.check_greeting(&hello)?;
                    return self.carry_greeted(server, &hello, read).await;
                }
                http::Looks::Http => {
                    let mut requests =
                        http::Requests::new(self.host.clone(), self.port, self.shared.secrets.clone(), read);
                    requests.first(&mut self.client, TIMEOUT).await?;
                    return requests.carry(&mut self.client, server, &self.counts).await;
                }
                http::Looks::Unknown => {}
                http::Looks::Other => return self.carry(server, &read).await,
            }
            // Bytes count, not readiness: that can be a false alarm, and the other side would wait forever.
            let taken = tokio::select! {
                biased;
                spoken = server.peek(&mut first) => {
                    spoken.map_err(broken)?;
                    return self.carry(server, &read).await;
                }
                taken = self.client.read_buf(&mut read) => taken.map_err(broken)?,
            };
            if taken == 0 {
                return self.carry(server, &read).await;
            }
        }
    }
}
