//! Rules that are replaced while connections are being made, and after.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::rc::Rc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{RData, Record, RecordType};
use offleash_core::limits::Limits;
use offleash_core::network::{NetworkPolicy, NetworkRule, RequestRules, RuleVerdict};
use offleash_sys::network::NetworkSockets;

use super::{Current, LedTo, NewRules, PAUSED, Policy, Shared, Successor, Unknown};
use crate::approvals::Approvals;
use crate::journal::Journal;
use crate::limits::Budget;
use crate::questions::Questions;
use crate::relay::Pipes;
use crate::secrets::Secrets;
use crate::upstream::{Upstream, WayOut};
use crate::{Config, Gateway, Outcome, Reach, Resolvers, Trust};

const TIMEOUT: Duration = Duration::from_secs(60);
const NAME: &str = "a.example";
/// Where it leads. Addresses of loopback can be used as they are, and rules for addresses open them.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 83, 0, 1);

/// Someone who answers questions for names, each when it is let.
struct Resolver {
    at: SocketAddr,
    asked: Receiver<()>,
    answers: Sender<()>,
}

impl Resolver {
    fn new() -> Self {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let at = socket.local_addr().unwrap();
        let (asks, asked) = channel();
        let (answers, may_answer) = channel::<()>();
        std::thread::spawn(move || {
            let mut question = [0; 1024];
            let mut is_first = true;
            while let Ok((length, peer)) = socket.recv_from(&mut question) {
                if is_first {
                    // Whoever listens is gone when the test has failed.
                    let _ = asks.send(());
                    if may_answer.recv().is_err() {
                        return;
                    }
                    is_first = false;
                }
                socket.send_to(&answer(&question[..length]), peer).unwrap();
            }
        });
        Self { at, asked, answers }
    }

    fn way_out(&self) -> WayOut {
        WayOut {
            resolvers: Resolvers::At(vec![self.at]),
            ..WayOut::default()
        }
    }
}

fn answer(question: &[u8]) -> Vec<u8> {
    let question = Message::from_vec(question).unwrap();
    let mut answer = Message::response(question.metadata.id, question.metadata.op_code);
    answer.metadata.response_code = ResponseCode::NoError;
    for query in &question.queries {
        answer.add_query(query.clone());
        if query.query_type() == RecordType::A {
            answer.add_answer(Record::from_rdata(query.name().clone(), 0, RData::A(A(ADDRESS))));
        }
    }
    answer.to_vec().unwrap()
}

/// What lets `NAME` be reached at `port`, and denies what `denied` says.
fn rules(port: u16, protocol: &str, denied: Option<&str>) -> NetworkPolicy {
    let allowed = [format!("{NAME}:{port}/{protocol}"), format!("127.0.0.0/8:{port}")];
    let allowed = allowed.map(|text| NetworkRule::parse(RuleVerdict::Allow, &text).unwrap());
    let denied = denied.map(|text| NetworkRule::parse(RuleVerdict::Deny, text).unwrap());
    NetworkPolicy {
        rules: allowed.into_iter().chain(denied).collect(),
        ..NetworkPolicy::default()
    }
}

/// A gateway in front of a server, and a program that has asked its proxy for that.
struct Setting {
    resolver: Resolver,
    server: TcpListener,
    gateway: Gateway,
    client: TcpStream,
}

impl Setting {
    /// With `is_opened`, requests are judged.
    fn new(protocol: &str, is_opened: bool) -> Self {
        let resolver = Resolver::new();
        let server = TcpListener::bind((ADDRESS, 0)).unwrap();
        server.set_nonblocking(true).unwrap();
        let port = server.local_addr().unwrap().port();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let at = listener.local_addr().unwrap();
        let mut requests = RequestRules::default();
        if is_opened {
            requests.methods.rules.push(format!("* {NAME}/*").parse().unwrap());
        }
        let config = Config {
            rules: rules(port, protocol, None),
            requests,
            trust: is_opened.then(|| Trust::with_roots(Vec::new()).unwrap().into()),
            way_out: resolver.way_out(),
            ..Config::default()
        };
        let sockets = NetworkSockets {
            connections: vec![listener.into()],
            ..NetworkSockets::default()
        };
        let gateway = Gateway::start(config, sockets).unwrap();
        let mut client = TcpStream::connect(at).unwrap();
        client.set_read_timeout(Some(TIMEOUT)).unwrap();
        let length = u8::try_from(NAME.len()).unwrap();
        let question = [&[5, 1, 0, 5, 1, 0, 3, length][..], NAME.as_bytes(), &port.to_be_bytes()].concat();
        client.write_all(&question).unwrap();
        let mut answer = [0; 2];
        client.read_exact(&mut answer).unwrap();
        assert_eq!(answer, [5, 0]);
        Self {
            resolver,
            server,
            gateway,
            client,
        }
    }

    fn deny(&self, protocol: &str) {
        let port = self.server.local_addr().unwrap().port();
        let denied = format!("{ADDRESS}:*");
        self.gateway.set_rules(Reach {
            rules: rules(port, protocol, Some(&denied)),
            way_out: self.resolver.way_out(),
            ..Reach::default()
        });
    }

    /// What the proxy says of the connection.
    fn told(&mut self) -> u8 {
        let mut answer = [0; 10];
        self.client.read_exact(&mut answer).unwrap();
        answer[1]
    }

    fn reason(self) -> String {
        let mut account = self.gateway.finish();
        assert_eq!(account.connections.len(), 1);
        match account.connections.remove(0).outcome {
            Outcome::Refused(reason) | Outcome::Cut(reason) => reason,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn what_is_dialled_is_judged_by_the_rules_of_that_moment() {
    let mut setting = Setting::new("tcp", false);
    setting.resolver.asked.recv_timeout(TIMEOUT).unwrap();
    setting.deny("tcp");
    setting.resolver.answers.send(()).unwrap();
    // "Connection not allowed by ruleset".
    assert_eq!(setting.told(), 2);
    let error = setting.server.accept().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    let reason = setting.reason();
    assert!(
        reason.contains("is denied") && reason.contains("127.83.0.1"),
        "{reason}"
    );
}

#[test]
fn a_request_on_an_old_connection_is_sent_by_the_rules_of_that_moment() {
    let mut setting = Setting::new("http", true);
    setting.deny("http");
    setting.resolver.answers.send(()).unwrap();
    assert_eq!(setting.told(), 0);
    let port = setting.server.local_addr().unwrap().port();
    write!(setting.client, "GET / HTTP/1.1\r\nHost: {NAME}:{port}\r\n\r\n").unwrap();
    let mut answer = [0; 12];
    setting.client.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 403");
    let error = setting.server.accept().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
}

#[test]
fn a_connection_whose_requests_are_judged_is_cut_when_it_leads_to_what_is_denied_now() {
    let mut setting = Setting::new("http", true);
    setting.resolver.answers.send(()).unwrap();
    assert_eq!(setting.told(), 0);
    setting.server.set_nonblocking(false).unwrap();
    let port = setting.server.local_addr().unwrap().port();
    write!(setting.client, "GET / HTTP/1.1\r\nHost: {NAME}:{port}\r\n\r\n").unwrap();
    let (mut served, _) = setting.server.accept().unwrap();
    let mut request = vec![0; 1024];
    assert!(served.read(&mut request).unwrap() > 0);
    served
        .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        .unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\nok") {
        let mut byte = [0];
        setting.client.read_exact(&mut byte).unwrap();
        answer.push(byte[0]);
    }
    setting.deny("http");
    match setting.client.read(&mut [0]) {
        Ok(0) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        other => panic!("{other:?}"),
    }
    let reason = setting.reason();
    assert!(
        reason.contains("is denied") && reason.contains("127.83.0.1"),
        "{reason}"
    );
}

#[test]
fn what_was_replaced_is_kept_by_no_connection_that_goes_on() {
    let current = Current::new(0, shared);
    let oldest = current.now();
    current.set_rules(NewRules::default());
    let between = Rc::downgrade(&current.now());
    current.set_rules(NewRules::default());
    assert!(between.upgrade().is_none());
    assert!(Rc::ptr_eq(&oldest.latest().unwrap(), &current.now()));
}

#[test]
fn a_network_that_was_closed_for_a_moment_has_cut_what_there_was() {
    let current = Current::new(0, shared);
    let before = current.now();
    current.close(true);
    current.close(false);
    let (name, led_to) = (NAME.parse().unwrap(), LedTo::default());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let cut = runtime.block_on(before.no_longer_allowed(&name, 443, &led_to));
    assert_eq!(cut, PAUSED);
    assert_eq!(runtime.block_on(before.closed()), PAUSED);
}

/// What a gateway without anything has.
fn shared(successor: Successor) -> Shared {
    let journal = Journal::default();
    Shared {
        policy: Policy::new(NetworkPolicy::default(), Vec::new(), Unknown::Denied),
        is_closed: false,
        closures: 0,
        approvals: Rc::new(Approvals::new(Questions::new().unwrap(), TIMEOUT)),
        secrets: Secrets::default(),
        names: Rc::default(),
        upstream: Rc::new(Upstream::new(
            WayOut::default(),
            &crate::upstream::SystemNames::default(),
        )),
        budget: Budget::new(&Limits::default(), journal.clone()),
        entrances: Rc::default(),
        journal,
        pipes: Rc::new(Pipes::new(0)),
        opening: None,
        successor,
        audience: crate::Audience::Run,
    }
}
