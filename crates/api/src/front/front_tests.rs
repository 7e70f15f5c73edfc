//! A front before nodes that hang, drip, lie and stop. Each node is a thread that answers by a table.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener as StdListener, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use super::*;

const KEY: &str = "e2b_0123456789abcdef0123456789abcdef01234567";
/// How long a test waits for what has to come.
const PATIENCE: Duration = Duration::from_secs(90);

#[derive(Debug)]
struct Deaf;

impl Journal for Deaf {
    fn record(&self, _event: &Event<'_>) {}
}

/// What a node does with a request.
#[derive(Debug, Clone, Copy)]
enum NodeDoing {
    Answers(u16, &'static str),
    Hangs,
    Drips,
    BreaksOff,
}

/// A node that answers by the first row whose text is in the request's first line.
struct FakeNode {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
    asked: Arc<Mutex<Vec<String>>>,
    is_stopped: Arc<AtomicBool>,
}

impl FakeNode {
    fn start(rows: &'static [(&'static str, NodeDoing)]) -> Self {
        let listener = StdListener::bind("127.0.0.1:0").unwrap();
        let node = Self {
            address: listener.local_addr().unwrap(),
            connections: Arc::default(),
            asked: Arc::default(),
            is_stopped: Arc::default(),
        };
        let (connections, asked) = (Arc::clone(&node.connections), Arc::clone(&node.asked));
        let is_stopped = Arc::clone(&node.is_stopped);
        thread::spawn(move || {
            for stream in listener.incoming() {
                connections.fetch_add(1, Ordering::SeqCst);
                let (asked, is_stopped) = (Arc::clone(&asked), Arc::clone(&is_stopped));
                thread::spawn(move || serve(stream.unwrap(), rows, &asked, &is_stopped));
            }
        });
        node
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

/// Reads heads, whose bodies are none or small, and answers each.
fn serve(mut stream: TcpStream, rows: &[(&str, NodeDoing)], asked: &Mutex<Vec<String>>, is_stopped: &AtomicBool) {
    let mut read = Vec::new();
    let mut part = [0; 4096];
    loop {
        let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") else {
            match stream.read(&mut part) {
                Ok(1..) if is_stopped.load(Ordering::SeqCst) => thread::sleep(PATIENCE),
                Ok(count @ 1..) => read.extend_from_slice(&part[..count]),
                _ => return,
            }
            continue;
        };
        let head = String::from_utf8_lossy(&read[..end]).into_owned();
        // What follows is the body of the one request.
        read.clear();
        let line = head.lines().next().unwrap().to_owned();
        asked.lock().unwrap().push(line.clone());
        let row = rows.iter().find(|(part, _)| line.contains(part));
        match row.map_or(NodeDoing::Answers(404, "{}"), |(_, does)| *does) {
            NodeDoing::BreaksOff => return,
            NodeDoing::Hangs => thread::sleep(PATIENCE),
            NodeDoing::Answers(status, body) => {
                let length = body.len();
                let told = format!("HTTP/1.1 {status} X\r\nContent-Length: {length}\r\n\r\n{body}");
                if stream.write_all(told.as_bytes()).is_err() {
                    return;
                }
            }
            NodeDoing::Drips => {
                let mut told = stream.write_all(b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n");
                while told.is_ok() {
                    told = stream.write_all(b"1\r\n \r\n");
                    thread::sleep(Duration::from_millis(200));
                }
                return;
            }
        }
    }
}

/// A front that runs as long as this is there.
struct RunningFront {
    address: SocketAddr,
    nodes: Arc<FrontNodes>,
    _runtime: tokio::runtime::Runtime,
}

impl RunningFront {
    /// Begins when all nodes have answered.
    fn before(nodes: &[&FakeNode]) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let config = FrontConfig {
            listen: Listen::Address("127.0.0.1:0".parse().unwrap()),
            tls: None,
            insecure_public: false,
            domain: None,
            nodes: nodes
                .iter()
                .map(|node| format!("http://{}", node.address).parse().unwrap())
                .collect(),
            key: KEY.parse().unwrap(),
            drain: Duration::ZERO,
        };
        let front = runtime.block_on(Front::bind(config, Arc::new(Deaf))).unwrap();
        runtime.block_on(front.check()).unwrap();
        let nodes = Arc::clone(&front.state.nodes);
        let address = front.url().strip_prefix("http://").unwrap().parse().unwrap();
        runtime.spawn(front.run(std::future::pending()));
        Self {
            address,
            nodes,
            _runtime: runtime,
        }
    }

    /// Sends `text` and leaves the connection open.
    fn send(&self, text: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(text).unwrap();
        stream
    }

    /// The answer to a request without a body, which ends with its connection.
    fn ask(&self, line: &str) -> String {
        answer(self.send(&head(line, "Connection: close\r\n")))
    }
}

fn head(line: &str, more: &str) -> Vec<u8> {
    format!("{line} HTTP/1.1\r\nHost: localhost\r\nX-API-KEY: {KEY}\r\n{more}\r\n").into_bytes()
}

/// What comes until the connection ends.
fn answer(mut stream: TcpStream) -> String {
    let mut text = Vec::new();
    stream.read_to_end(&mut text).unwrap();
    String::from_utf8_lossy(&text).into_owned()
}

fn status(answer: &str) -> &str {
    answer.get(9..12).unwrap_or(answer)
}

const EMPTY: (&str, NodeDoing) = ("/v1/overview/ids", NodeDoing::Answers(200, r#"{"ids": []}"#));

const HAS: (&str, NodeDoing) = ("/v1/overview/ids", NodeDoing::Answers(200, r#"{"ids": ["i1"]}"#));

#[test]
fn nothing_is_held_for_whoever_shows_no_key() {
    let node = FakeNode::start(&[EMPTY]);
    let front = RunningFront::before(&[&node]);
    for line in [
        "POST /sandboxes",
        "POST /v1/run",
        "GET /v1/sandboxes",
        "POST /v1/sandboxes/i1/run",
    ] {
        for key in ["", "X-API-KEY: e2b_12\r\n", "Authorization: Bearer x\r\n"] {
            // The body is announced and never sent.
            let text = format!("{line} HTTP/1.1\r\nHost: localhost\r\n{key}Content-Length: 900\r\n\r\n");
            let answer = answer(front.send(text.as_bytes()));
            assert_eq!(status(&answer), "401", "{line} {key}: {answer}");
        }
    }
    assert!(
        node.asked().iter().all(|line| line.contains("/v1/overview/ids")),
        "{:?}",
        node.asked()
    );
}

#[test]
fn bodies_that_are_held_are_bounded_for_each_client_and_their_room_comes_back() {
    let node = FakeNode::start(&[
        EMPTY,
        ("POST /sandboxes", NodeDoing::Answers(201, r#"{"sandboxID": "i1"}"#)),
    ]);
    let front = RunningFront::before(&[&node]);
    let mut begun = head("POST /sandboxes", "Content-Length: 1048576\r\n");
    begun.resize(begun.len() + 1_048_575, b' ');
    let mut held: Vec<TcpStream> = (0..8).map(|_| front.send(&begun)).collect();
    let began = Instant::now();
    while front.nodes.bodies.spent() < 8 * 1_048_575 {
        assert!(began.elapsed() < PATIENCE);
        thread::sleep(Duration::from_millis(10));
    }
    let small = head("POST /sandboxes", "Connection: close\r\nContent-Length: 9\r\n");
    let small = [small.as_slice(), b"123456789"].concat();
    let refused = answer(front.send(&small));
    assert!(
        status(&refused) == "429" && refused.contains("retry-after"),
        "{refused}"
    );
    let mut one = held.pop().unwrap();
    one.write_all(b" ").unwrap();
    let mut start = [0; 12];
    one.read_exact(&mut start).unwrap();
    assert_eq!(&start, b"HTTP/1.1 201");
    assert_eq!(status(&answer(front.send(&small))), "201");
}

#[test]
fn whoever_waits_for_a_node_that_stopped_is_told_and_lists_go_on_without_it() {
    let node = FakeNode::start(&[
        HAS,
        ("/sandboxes/i1", NodeDoing::Hangs),
        ("POST /sandboxes", NodeDoing::Hangs),
    ]);
    let other = FakeNode::start(&[
        EMPTY,
        ("GET /sandboxes", NodeDoing::Answers(200, r#"[{"sandboxID": "i2"}]"#)),
    ]);
    let front = RunningFront::before(&[&node, &other]);
    let waits = front.send(&head("GET /sandboxes/i1", "Connection: close\r\n"));
    let create = head(
        "POST /sandboxes",
        "Connection: close\r\nContent-Length: 2\r\nIdempotency-Key: a\r\n",
    );
    // The other one has fewer for its weight, and no route for it.
    assert_eq!(status(&answer(front.send(&[create.as_slice(), b"{}"].concat()))), "404");
    node.is_stopped.store(true, Ordering::SeqCst);
    let told = answer(waits);
    assert!(
        status(&told) == "503" && told.contains("does not answer any more"),
        "{told}"
    );
    let listed = front.ask("GET /sandboxes");
    assert!(status(&listed) == "200" && listed.contains("i2"), "{listed}");
    assert!(
        listed.contains(&format!("offleash-nodes-missing: {}", node.address)),
        "{listed}"
    );
}

#[test]
fn a_list_waits_for_no_node_that_drips_and_shows_each_sandbox_once() {
    const LIST: (&str, NodeDoing) = (
        "GET /v2/sandboxes",
        NodeDoing::Answers(200, r#"[{"sandboxID": "i1"}, {"sandboxID": "../x"}]"#),
    );
    let one = FakeNode::start(&[HAS, LIST]);
    let drips = FakeNode::start(&[EMPTY, ("GET /v2/sandboxes", NodeDoing::Drips)]);
    let again = FakeNode::start(&[EMPTY, LIST]);
    let breaks_off = FakeNode::start(&[EMPTY, ("GET /v2/sandboxes", NodeDoing::BreaksOff)]);
    let changes = FakeNode::start(&[EMPTY, ("GET /v2/sandboxes", NodeDoing::Answers(101, ""))]);
    let front = RunningFront::before(&[&one, &drips, &breaks_off, &changes, &again]);
    let first = front.ask("GET /v2/sandboxes");
    assert!(
        first.contains("x-next-token: 1.") && first.matches("sandboxID").count() == 1,
        "{first}"
    );
    let rest = front.ask("GET /v2/sandboxes?nextToken=1.");
    assert!(status(&rest) == "200" && rest.ends_with("\r\n\r\n[]"), "{rest}");
    for node in [&drips, &breaks_off, &changes] {
        let name = format!("offleash-nodes-missing: {}", node.address);
        assert!(rest.contains(&name), "{name}: {rest}");
    }
}

#[test]
fn what_has_ended_is_asked_for_at_every_node_before_it_is_not_there() {
    let one = FakeNode::start(&[EMPTY]);
    let other = FakeNode::start(&[
        EMPTY,
        ("/v1/sessions/i1", NodeDoing::Answers(200, r#"{"status": "released"}"#)),
    ]);
    let front = RunningFront::before(&[&one, &other]);
    let har = front.ask("GET /v1/sessions/i1/har");
    assert!(har.contains("released"), "{har}");
    let release = head(
        "POST /v1/sessions/i1/release",
        "Connection: close\r\nContent-Length: 2\r\n",
    );
    let release = answer(front.send(&[release.as_slice(), b"{}"].concat()));
    assert!(release.contains("released"), "{release}");
    assert_eq!(status(&front.ask("GET /v1/sessions/i2")), "404");
    for node in [&one, &other] {
        assert!(
            node.asked().iter().any(|line| line.contains("/v1/sessions/i2")),
            "a node was not asked"
        );
    }
    assert!(
        !one.asked().iter().any(|line| line.contains("POST")),
        "a request was sent to a node that does not know it"
    );
}

#[test]
fn a_name_is_that_of_the_node_that_knows_it() {
    let one = FakeNode::start(&[
        EMPTY,
        ("/v1/names/", NodeDoing::Answers(200, r#"{"id": null, "others": []}"#)),
    ]);
    let other = FakeNode::start(&[
        EMPTY,
        ("/v1/names/a", NodeDoing::Answers(200, r#"{"id": "i1", "others": []}"#)),
    ]);
    for order in [[&one, &other], [&other, &one]] {
        let front = RunningFront::before(&order);
        let known = front.ask("GET /v1/names/a");
        assert!(known.contains("i1"), "{known}");
    }
    let front = RunningFront::before(&[&one]);
    assert!(front.ask("GET /v1/names/b").contains("null"));
}

#[test]
fn a_node_is_asked_over_one_connection_and_every_answer_is_one() {
    let node = FakeNode::start(&[("/v1/overview/ids", NodeDoing::Answers(429, "{}"))]);
    let front = RunningFront::before(&[&node]);
    let began = Instant::now();
    while node.asked().len() < 4 {
        assert!(began.elapsed() < PATIENCE);
        thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(node.connections.load(Ordering::SeqCst), 1);
    assert_eq!(front.nodes.silent(), Vec::<&str>::new());
}

#[test]
fn a_client_has_no_more_requests_at_a_node_than_it_may() {
    let node = FakeNode::start(&[EMPTY, ("/sandboxes/i1", NodeDoing::Hangs)]);
    let front = RunningFront::before(&[&node]);
    let number = front.nodes.table().node(0).unwrap();
    let client = ClientConnection {
        peer: crate::http::peer::ClientPeer::Anybody("192.0.2.1:9".parse().unwrap()),
        secure: false,
        busy: crate::http::pace::BusyFlag::default(),
        held: None,
    };
    let mut headers = HeaderMap::new();
    headers.insert("x-api-key", http::HeaderValue::from_static(KEY));
    // As if the same key were shown from another address that often.
    let mut held = front.nodes.places_of(number, &client, &headers);
    held.take(MAX_OF_CLIENT).unwrap();
    let told = front.ask("GET /sandboxes/i1");
    assert!(status(&told) == "429" && told.contains("retry-after"), "{told}");
    let waits = front.send(b"GET /_port/i1/80/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert_eq!(status(&answer(waits)), "404", "another client is kept out");
    drop(held);
    assert_eq!(status(&front.ask("GET /sandboxes/i2")), "404");
}
