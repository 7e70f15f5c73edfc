//! Both sides of an opened connection in one process, in every pair of versions.

mod by_hand;
mod frames;
mod origin;

use std::cell::Cell;
use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::{HeaderMap, Request, Response, Version};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use offleash_core::limits::Limits;
use offleash_core::network::secret::{NamedSecret, Placeholder, SecretValue};
use offleash_core::network::{HeaderRule, NetworkPolicy, NetworkRule, RequestRules, RuleVerdict};
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpListener;
use tokio::task::{LocalSet, spawn_local};
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use self::origin::{Met, server};
use super::client::LocalExecutor;
use super::*;
use crate::approvals::Approvals;
use crate::http_head::Scheme;
use crate::journal::Journal;
use crate::journal_entries::Request as Told;
use crate::limits::Budget;
use crate::names::Names;
use crate::policy::{Policy, Unknown};
use crate::questions::Questions;
use crate::relay::Pipes;
use crate::secrets::Secrets;
use crate::upstream::{Upstream, WayOut};

const HTTP1: &[u8] = b"http/1.1";
const HTTP2: &[u8] = b"h2";

/// A body of many pieces, and trailers.
struct Pieces(usize, HeaderMap);

const PIECE: usize = 16 * 1024;

/// One that may stand behind a body, those that rules are about, and one with a placeholder; with HTTP/2, where no two
/// readers differ in where they stand, those that belong in a head, too.
fn trailers(protocol: &[u8]) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    let placeholder = secret().placeholder.to_string();
    for (name, value) in [
        ("x-sum", "all"),
        ("x-http-method-override", "DELETE"),
        ("x_http_method", "DELETE"),
        ("x-original-url", "/admin"),
        ("x-removed", "1"),
        ("x_set", "theirs"),
        ("authorization", "Bearer theirs"),
        ("x-key", &placeholder),
    ] {
        trailers.insert(http::HeaderName::from_static(name), value.parse().unwrap());
    }
    if protocol == HTTP1 {
        trailers.remove("authorization");
        trailers.remove("x-http-method-override");
    }
    trailers
}

/// A secret for another host, with the same placeholder every time.
fn secret() -> NamedSecret {
    let value = SecretValue::new(b"sk-REALREALREALREAL".to_vec()).unwrap();
    let random = |bytes: &mut [u8]| {
        bytes.fill(7);
        Ok::<(), Infallible>(())
    };
    NamedSecret {
        spec: "KEY=env:A@api.example.com".parse().unwrap(),
        placeholder: Placeholder::plausible(&value, random).unwrap(),
        value,
    }
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0 = match self.0.checked_sub(1) {
            None => return Poll::Ready(None),
            Some(left) => left,
        };
        let frame = if self.0 == 0 {
            Frame::trailers(std::mem::take(&mut self.1))
        } else {
            Frame::data(Bytes::from_static(&[b'x'; PIECE]))
        };
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.0 == 0
    }
}

fn list_of_trailers(protocol: &[u8]) -> String {
    let names = trailers(protocol);
    let names: Vec<&str> = names.keys().map(http::HeaderName::as_str).collect();
    names.join(", ")
}

/// The internet, the gateway between, and what the gateway saw.
struct Setting {
    port: u16,
    trust: Arc<GatewayTrust>,
    met: Rc<Met>,
    log: Rc<Log>,
    gateway: SocketAddr,
}

/// A gateway whose sandbox may only use what `rule` lets through, of a server at `port`.
async fn gateway(rule: &str, port: u16, roots: CertificateDer<'static>, more_servers: usize, met: Rc<Met>) -> Setting {
    let trust = Arc::new(GatewayTrust::with_roots(vec![roots]).unwrap());
    let mut requests = RequestRules::default();
    requests.methods.rules.push(rule.parse().unwrap());
    requests.headers = vec![
        HeaderRule::parse_set("127.0.0.1 X-Set: ours").unwrap(),
        HeaderRule::parse_remove("127.0.0.1 X-Removed").unwrap(),
    ];
    let rules = NetworkPolicy {
        rules: vec![NetworkRule::parse(RuleVerdict::Allow, &format!("127.0.0.1:{port}/tls")).unwrap()],
        ..NetworkPolicy::default()
    };
    let journal = Journal::default();
    let shared = crate::current::Current::new(0, |successor| Shared {
        policy: Policy::new(rules, Vec::new(), Unknown::Denied).with_requests(requests),
        approvals: Rc::new(Approvals::new(Questions::new().unwrap(), std::time::Duration::ZERO)),
        is_closed: false,
        closures: 0,
        successor,
        names: Rc::new(RefCell::new(Names::default())),
        entrances: Rc::new(crate::entrance::Entrances::default()),
        upstream: Rc::new(Upstream::new(
            WayOut::default(),
            &crate::upstream::SystemNames::default(),
        )),
        budget: Budget::new(&Limits::default(), journal.clone()),
        secrets: Secrets::new(Arc::from([secret()]), journal.clone()),
        audience: crate::Audience::Run,
        journal: journal.clone(),
        pipes: Rc::new(Pipes::new(0)),
        opening: Some(Rc::new(Opening::new(&trust, more_servers).unwrap())),
    })
    .now();
    let log = Rc::new(Log::new(journal));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let seen = Rc::clone(&log);
    spawn_local(async move {
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            let (shared, seen) = (Rc::clone(&shared), Rc::clone(&seen));
            spawn_local(async move {
                let to = Destination {
                    host: "127.0.0.1".parse().unwrap(),
                    port,
                    scheme: Scheme::Https,
                    clear_is_meant: false,
                };
                let counts = Counts::new(&shared.budget);
                let _ = serve(&shared, to, &seen, &mut client, &counts, Vec::new()).await;
            });
        }
    });
    Setting {
        port,
        trust,
        met,
        log,
        gateway: address,
    }
}

impl Setting {
    async fn new(protocol: &'static [u8], most: usize, more_servers: usize) -> Self {
        Self::with_rule("* 127.0.0.1/v1/*", protocol, most, more_servers).await
    }

    /// One in which no rule is about requests to the server.
    async fn without_rule(protocol: &'static [u8]) -> Self {
        Self::with_rule("* elsewhere.example/v1/*", protocol, usize::MAX, 0).await
    }

    async fn with_rule(rule: &str, protocol: &'static [u8], most: usize, more_servers: usize) -> Self {
        let internet = Arc::new(GatewayTrust::with_roots(Vec::new()).unwrap());
        let root = internet.authority().der().clone();
        let met = Rc::<Met>::default();
        let port = server(protocol, internet, Rc::clone(&met), most).await;
        gateway(rule, port, root, more_servers, met).await
    }

    fn told(&self) -> Vec<Told> {
        self.log.requests().0
    }

    fn uri(&self, path: &str) -> String {
        format!("https://127.0.0.1:{}{path}", self.port)
    }

    /// A client that trusts the sandbox's authority.
    async fn client(&self, protocol: &'static [u8]) -> Client {
        let stream = self.stream(protocol).await;
        if protocol == HTTP2 {
            let (sender, connection) = http2::handshake(LocalExecutor, TokioIo::new(stream)).await.unwrap();
            spawn_local(connection);
            Client::Http2(sender)
        } else {
            let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
            spawn_local(connection);
            Client::Http1(sender)
        }
    }

    /// The connection of one, on which nothing was said yet.
    async fn stream(&self, protocol: &'static [u8]) -> TlsStream<TcpStream> {
        let mut roots = RootCertStore::empty();
        roots.add(self.trust.authority().der().clone()).unwrap();
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![protocol.to_vec()];
        let stream = TcpStream::connect(self.gateway).await.unwrap();
        let name = server_name(&"127.0.0.1".parse().unwrap()).unwrap();
        let stream = TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await
            .unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(protocol));
        stream
    }
}

enum Client {
    Http1(http1::SendRequest<Pieces>),
    Http2(http2::SendRequest<Pieces>),
}

impl Client {
    /// The status and the text of an answer.
    async fn ask(&mut self, setting: &Setting, method: &str, path: &str, pieces: usize) -> (u16, String) {
        let protocol = match self {
            Self::Http1(_) => HTTP1,
            Self::Http2(_) => HTTP2,
        };
        let builder = Request::builder()
            .method(method)
            .header("cookie", "a=1")
            .header("te", "trailers")
            .header("trailer", list_of_trailers(protocol));
        let builder = match self {
            Self::Http1(_) => {
                let builder = builder.uri(path).header("connection", "te");
                builder.header("host", format!("127.0.0.1:{}", setting.port))
            }
            // Several cookies are several headers there.
            Self::Http2(_) => builder.uri(setting.uri(path)).header("cookie", "b=2"),
        };
        let request = builder.body(Pieces(pieces, trailers(protocol))).unwrap();
        let answer = match self {
            Self::Http1(sender) => {
                sender.ready().await.unwrap();
                sender.send_request(request).await.unwrap()
            }
            Self::Http2(sender) => {
                sender.ready().await.unwrap();
                sender.send_request(request).await.unwrap()
            }
        };
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    LocalSet::new().block_on(&runtime, test);
}

#[test]
fn every_pair_of_versions_carries_requests_bodies_and_trailers() {
    for (inside, outside) in [(HTTP1, HTTP1), (HTTP1, HTTP2), (HTTP2, HTTP1), (HTTP2, HTTP2)] {
        run(async {
            let setting = Setting::new(outside, usize::MAX, 0).await;
            let mut client = setting.client(inside).await;
            let (status, text) = client.ask(&setting, "POST", "/v1/items?page=2", 65).await;
            let (version, place) = match outside {
                HTTP2 => (
                    Version::HTTP_2,
                    format!("authority=Some(\"127.0.0.1:{}\") host=None", setting.port),
                ),
                _ => (
                    Version::HTTP_11,
                    format!("authority=None host=Some(\"127.0.0.1:{}\")", setting.port),
                ),
            };
            // Cookies that came as several headers leave as one for HTTP/1.1.
            let cookies = if inside == HTTP2 && outside == HTTP2 { 2 } else { 1 };
            let bytes = 64 * PIECE;
            assert_eq!(status, 200, "{text}");
            assert_eq!(
                text,
                format!(
                    "POST {version:?} /v1/items?page=2 {place} cookies={cookies} bytes={bytes} trailers=[\"x-sum\"]"
                )
            );
            let (status, text) = client.ask(&setting, "GET", "/admin", 0).await;
            assert_eq!(status, 403, "{text}");
            let (status, _) = client.ask(&setting, "GET", "/v1/after", 0).await;
            assert_eq!(status, 200);
            assert_eq!(setting.met.connections.get(), 1);
            let told = setting.told();
            assert_eq!(told.len(), 3);
            assert_eq!(told[0].sent, bytes as u64);
            assert_eq!(told[1].status, Some(403));
        });
    }
}

#[test]
fn requests_at_once_share_the_connections_that_there_may_be() {
    for (more_servers, most) in [(0, 1), (3, 4), (100, 8)] {
        run(async {
            let setting = Setting::new(HTTP1, usize::MAX, more_servers).await;
            let Client::Http2(sender) = setting.client(HTTP2).await else {
                panic!()
            };
            let setting = Rc::new(setting);
            let asked: Vec<_> = (0..50)
                .map(|number| {
                    let (mut client, setting) = (Client::Http2(sender.clone()), Rc::clone(&setting));
                    spawn_local(async move { client.ask(&setting, "POST", &format!("/v1/{number}"), 3).await })
                })
                .collect();
            for answer in asked {
                let (status, text) = answer.await.unwrap();
                assert_eq!(status, 200, "{text} {:?} {most}", setting.met);
            }
            assert!(setting.met.most_open.get() <= most, "{:?} {most}", setting.met);
        });
    }
}

#[test]
fn a_server_that_hangs_up_between_requests_is_dialled_again() {
    for inside in [HTTP1, HTTP2] {
        run(async {
            let setting = Setting::new(HTTP1, 1, 0).await;
            let mut client = setting.client(inside).await;
            for number in 0..5 {
                let (status, text) = client.ask(&setting, "GET", &format!("/v1/{number}"), 0).await;
                assert_eq!(status, 200, "{text}");
            }
            assert_eq!(setting.met.connections.get(), 5);
        });
    }
}

#[test]
fn a_server_that_is_not_there_or_not_trusted_is_told() {
    run(async {
        let internet = Arc::new(GatewayTrust::with_roots(Vec::new()).unwrap());
        let stranger = GatewayTrust::with_roots(Vec::new()).unwrap().authority().der().clone();
        let met = Rc::<Met>::default();
        let port = server(HTTP1, internet, Rc::clone(&met), 1).await;
        let setting = gateway("* 127.0.0.1/v1/*", port, stranger, 0, met).await;
        let (status, text) = setting.client(HTTP2).await.ask(&setting, "GET", "/v1/x", 0).await;
        assert_eq!(status, 502);
        assert!(
            text.contains("is not trusted: nobody whom this machine trusts"),
            "{text}"
        );
        assert_eq!(setting.met.connections.get(), 0);
    });
}

#[test]
fn many_that_give_up_leave_the_connection_to_others() {
    run(async {
        let setting = Setting::new(HTTP1, usize::MAX, 0).await;
        let Client::Http2(mut sender) = setting.client(HTTP2).await else {
            panic!()
        };
        for number in 0..300 {
            let uri = setting.uri(&format!("/v1/given-up/{number}"));
            let asked = sender.send_request(Request::get(uri).body(Pieces(0, HeaderMap::new())).unwrap());
            // It is on its way, and nobody waits for it.
            let _ = tokio::time::timeout(std::time::Duration::from_micros(200), asked).await;
        }
        let mut client = Client::Http2(sender);
        let (status, text) = client.ask(&setting, "GET", "/v1/last", 0).await;
        assert_eq!(status, 200, "{text}");
    });
}
