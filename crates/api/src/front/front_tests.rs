//! A front before nodes that hang, drip, lie and stop. Each node is a thread that answers by a table.

#[path = "fake_node_tests.rs"]
mod fake_node;
#[path = "moving_tests.rs"]
mod moving;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::Ordering;
use std::thread;

use self::fake_node::{FakeNode, NodeDoing, PATIENCE};
use super::*;
use crate::http::certificates::tests::self_signed;

const KEY: &str = "e2b_0123456789abcdef0123456789abcdef01234567";

#[derive(Debug)]
struct Deaf;

impl Journal for Deaf {
    fn record(&self, _event: &Event<'_>) {}
}

/// What a front before nodes is told.
fn config(nodes: &[&FakeNode], authorities: &[PathBuf]) -> FrontConfig {
    FrontConfig {
        listen: Listen::Address("127.0.0.1:0".parse().unwrap()),
        tls: None,
        insecure_public: false,
        domain: None,
        nodes: nodes.iter().map(|node| node.url().parse().unwrap()).collect(),
        names: Vec::new(),
        authorities: authorities.to_vec(),
        key: KEY.parse().unwrap(),
        drain: Duration::ZERO,
    }
}

/// Waits for what has to come.
fn until(what: &str, mut happened: impl FnMut() -> bool) {
    let began = Instant::now();
    while !happened() {
        assert!(began.elapsed() < PATIENCE, "{what} did not come");
        thread::sleep(Duration::from_millis(20));
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
        Self::start(config(nodes, &[])).unwrap()
    }

    fn start(config: FrontConfig) -> Result<Self, ServeError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let front = runtime.block_on(Front::bind(config, Arc::new(Deaf)))?;
        runtime.block_on(front.check())?;
        let nodes = Arc::clone(&front.state.nodes);
        let address = front.url().strip_prefix("http://").unwrap().parse().unwrap();
        runtime.spawn(front.run(std::future::pending()));
        Ok(Self {
            address,
            nodes,
            _runtime: runtime,
        })
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
    until("all bodies", || front.nodes.bodies.spent() >= 8 * 1_048_575);
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
    until("four questions", || node.asked().len() >= 4);
    assert_eq!(node.connections.load(Ordering::SeqCst), 1);
    assert_eq!(front.nodes.silent(), Vec::<String>::new());
}

#[test]
fn a_client_has_no_more_requests_at_a_node_than_it_may() {
    let node = FakeNode::start(&[EMPTY, ("/sandboxes/i1", NodeDoing::Hangs)]);
    let front = RunningFront::before(&[&node]);
    let (_, known) = front.nodes.all().remove(0);
    let client = ClientConnection {
        peer: crate::http::peer::ClientPeer::Anybody("192.0.2.1:9".parse().unwrap()),
        secure: false,
        busy: crate::http::pace::BusyFlag::default(),
        held: None,
    };
    let mut headers = HeaderMap::new();
    headers.insert("x-api-key", http::HeaderValue::from_static(KEY));
    // As if the same key were shown from another address that often.
    let mut held = nodes::places_of(&known, &client, &headers);
    held.take(MAX_OF_CLIENT).unwrap();
    let told = front.ask("GET /sandboxes/i1");
    assert!(status(&told) == "429" && told.contains("retry-after"), "{told}");
    let waits = front.send(b"GET /_port/i1/80/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert_eq!(status(&answer(waits)), "404", "another client is kept out");
    drop(held);
    assert_eq!(status(&front.ask("GET /sandboxes/i2")), "404");
}

/// A file with authorities.
fn authority(directory: &tempfile::TempDir, name: &str, certificate: &str) -> PathBuf {
    let path = directory.path().join(name);
    std::fs::write(&path, certificate).unwrap();
    path
}

#[test]
fn a_node_is_reached_by_tls_when_its_certificate_has_its_name_and_by_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let (shown, certificate) = self_signed("127.0.0.1");
    let (other_name, other) = self_signed("node.test");
    let trusted = [
        authority(&directory, "a.pem", &certificate),
        authority(&directory, "b.pem", &other),
    ];
    let node = FakeNode::encrypted(
        &shown,
        &[
            HAS,
            ("/sandboxes/i1", NodeDoing::Answers(200, "here")),
            ("/_port/i1/80/", NodeDoing::Echoes),
        ],
    );
    let front = RunningFront::start(config(&[&node], &trusted)).unwrap();
    let answer = front.ask("GET /sandboxes/i1");
    assert!(status(&answer) == "200" && answer.ends_with("here"), "{answer}");
    // What a connection becomes goes through TLS as well.
    let mut stream = front.send(&head("GET /_port/i1/80/", "Connection: upgrade\r\nUpgrade: echo\r\n"));
    let mut told = [0; 12];
    stream.read_exact(&mut told).unwrap();
    assert_eq!(&told, b"HTTP/1.1 101");
    stream.write_all(b"there and back").unwrap();
    let mut read = Vec::new();
    while !read.ends_with(b"there and back") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        read.push(byte[0]);
    }

    // Of an authority that nobody trusts, of another name, and without any: nothing is said to it.
    let liar = FakeNode::encrypted(&other_name, &[HAS]);
    for authorities in [&[][..], &trusted] {
        let Err(ServeError::FrontNode(cause)) = RunningFront::start(config(&[&liar], authorities)).map(drop) else {
            panic!("a certificate was taken that is not the node's own");
        };
        assert!(cause.to_string().contains("no certificate of the name"), "{cause}");
    }
    let plain = FakeNode::start(&[HAS]);
    let speaks = FakeNode {
        scheme: "https",
        asked: Arc::clone(&plain.asked),
        ..plain
    };
    let front = RunningFront::start(config(&[&speaks], &trusted)).unwrap();
    let refused = front.ask("GET /sandboxes/i1");
    assert_eq!(status(&refused), "503", "{refused}");
    assert_eq!([liar.asked(), speaks.asked()], [const { Vec::<String>::new() }; 2]);
    let unread = config(&[&node], &[directory.path().join("nothing.pem")]);
    assert!(matches!(
        RunningFront::start(unread).map(drop),
        Err(ServeError::FrontAuthorities(_))
    ));
}

#[test]
fn connections_are_kept_and_what_may_have_arrived_is_sent_once() {
    let node = FakeNode::start(&[
        HAS,
        ("/sandboxes/i1/logs", NodeDoing::AnswersAndEnds("{}")),
        ("/sandboxes/i1/pause", NodeDoing::BreaksOff),
        ("/sandboxes/i1/stream", NodeDoing::Drips),
        ("/sandboxes/i1", NodeDoing::Answers(200, "{}")),
    ]);
    let front = RunningFront::before(&[&node]);
    let lines = || node.connections.load(Ordering::SeqCst);
    for _ in 0..5 {
        assert_eq!(status(&front.ask("GET /sandboxes/i1")), "200");
    }
    // One for the front's own questions, and one for those of clients: the end of an answer may be heard later than by a client.
    assert!(lines() <= 3, "{} connections", lines());
    // It ends after an answer without a word: the next request goes over another one, if nothing of it was sent.
    for round in 1..=3 {
        assert_eq!(status(&front.ask("GET /sandboxes/i1/logs")), "200");
        until("the end of it", || node.ended.load(Ordering::SeqCst) >= round);
    }
    assert_eq!(node.count("/logs"), 3);
    // It ends with the request: there may have been a pause.
    assert_eq!(status(&front.ask("GET /sandboxes/i1")), "200");
    let pause = head("POST /sandboxes/i1/pause", "Connection: close\r\nContent-Length: 2\r\n");
    let told = answer(front.send(&[pause.as_slice(), b"{}"].concat()));
    assert!(status(&told) == "503" && told.contains("may have been done"), "{told}");
    assert_eq!(node.count("/pause"), 1);
    // Whoever goes away in the middle takes the connection along.
    let ended = node.ended.load(Ordering::SeqCst);
    let mut given_up = front.send(&head("GET /sandboxes/i1/stream", ""));
    given_up.read_exact(&mut [0; 12]).unwrap();
    drop(given_up);
    until("the end of an answer that nobody reads", || {
        node.ended.load(Ordering::SeqCst) > ended
    });
    assert_eq!(status(&front.ask("GET /sandboxes/i1")), "200");
}

#[test]
fn a_drained_node_gets_nothing_new_and_is_reached_and_told_of() {
    let drained = FakeNode::start(&[
        (
            "/v1/overview/ids",
            NodeDoing::Answers(200, r#"{"ids": ["i1"], "draining": true}"#),
        ),
        ("/sandboxes/i1", NodeDoing::Answers(200, "{}")),
        ("GET /v1/drain", NodeDoing::Answers(403, r#"{"code": 403}"#)),
    ]);
    let other = FakeNode::start(&[
        EMPTY,
        ("POST /sandboxes", NodeDoing::Answers(201, r#"{"sandboxID": "i2"}"#)),
        ("GET /v1/drain", NodeDoing::Answers(403, r#"{"code": 403}"#)),
    ]);
    let create = head("POST /sandboxes", "Connection: close\r\nContent-Length: 2\r\n");
    let create = [create.as_slice(), b"{}"].concat();
    let front = RunningFront::before(&[&drained, &other]);
    for _ in 0..3 {
        assert_eq!(status(&answer(front.send(&create))), "201");
    }
    assert_eq!(status(&front.ask("GET /sandboxes/i1")), "200");
    // The front's own key shows its nodes and numbers; of another one a node says what it is.
    let told = front.ask("GET /v1/front/nodes");
    let (_, told) = told.split_once("\r\n\r\n").unwrap();
    let told: Value = serde_json::from_str(told).unwrap();
    let states: Vec<_> = told["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|node| &node["state"])
        .collect();
    assert_eq!(states, ["drained", "alive"], "{told}");
    let numbers = front.ask("GET /metrics");
    for line in [
        "offleash_front_nodes{state=\"drained\"} 1",
        "offleash_front_nodes{state=\"lost\"} 0",
        &format!("offleash_front_sandboxes{{node=\"{}\"}} 1", drained.address),
        "offleash_http_responses_total{class=\"2xx\"}",
    ] {
        assert!(numbers.contains(line), "{line}: {numbers}");
    }
    for (path, key, expected) in [
        ("/metrics", KEY.replace('0', "1"), "403"),
        ("/v1/front/nodes", KEY.replace('0', "1"), "403"),
        ("/v1/front/nodes", String::new(), "401"),
    ] {
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nX-API-KEY: {key}\r\nConnection: close\r\n\r\n");
        assert_eq!(
            status(&answer(front.send(request.as_bytes()))),
            expected,
            "{path} {key}"
        );
    }
    let alone = RunningFront::before(&[&drained]);
    let refused = answer(alone.send(&create));
    assert!(
        status(&refused) == "503" && refused.contains("takes new sandboxes"),
        "{refused}"
    );
}

#[test]
fn sessions_and_desktops_of_all_nodes_are_one_list() {
    let [one, other] = [
        FakeNode::start(&[
            EMPTY,
            (
                "GET /v1/sessions?status=RUNNING",
                NodeDoing::Answers(200, r#"{"sessions": [{"id": "i1"}]}"#),
            ),
            ("GET /v1/desktops", NodeDoing::Answers(200, r#"{"desktops": []}"#)),
        ]),
        FakeNode::start(&[
            EMPTY,
            (
                "GET /v1/sessions?status=RUNNING",
                NodeDoing::Answers(200, r#"{"sessions": [{"id": "i2"}]}"#),
            ),
            (
                "GET /v1/desktops",
                NodeDoing::Answers(200, r#"{"desktops": [{"id": "i3"}]}"#),
            ),
            ("POST /v1/desktops", NodeDoing::Answers(201, r#"{"id": "i4"}"#)),
        ]),
    ];
    let front = RunningFront::before(&[&one, &other]);
    let listed = front.ask("GET /v1/sessions?status=RUNNING");
    assert!(
        listed.ends_with(r#"{"sessions":[{"id":"i1"},{"id":"i2"}]}"#),
        "{listed}"
    );
    let listed = front.ask("GET /v1/desktops");
    assert!(listed.ends_with(r#"{"desktops":[{"id":"i3"}]}"#), "{listed}");
    assert_eq!(status(&front.ask("GET /ui/desktop.html")), "200");
    assert_eq!(status(&front.ask("GET /ui/")), "501");
}

#[test]
fn no_request_announces_a_body_that_does_not_come() {
    let node = FakeNode::start(&[
        EMPTY,
        ("/v1/version", NodeDoing::Answers(200, "{}")),
        ("/v1/names/a", NodeDoing::Answers(200, r#"{"id": "i1"}"#)),
        ("/v2/sandboxes", NodeDoing::Answers(200, "[]")),
        ("POST /v1/sandboxes/i9/run", NodeDoing::Answers(200, "{}")),
        ("/v1/sandboxes/i9", NodeDoing::Answers(200, "{}")),
    ]);
    let front = RunningFront::before(&[&node]);
    let smuggled = b"GET /v1/secrets HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let length = smuggled.len();
    // What is asked in a client's name goes on without the body, over a connection that others use next.
    for (line, told) in [
        ("GET /v1/version", "0"),
        ("GET /v1/names/a", "0"),
        ("GET /v2/sandboxes", "0"),
        ("GET /v1/front/nodes", ""),
        ("POST /v1/sandboxes/i9/run", "45"),
    ] {
        let request = head(line, &format!("Connection: close\r\nContent-Length: {length}\r\n"));
        let told_to = answer(front.send(&[request.as_slice(), smuggled].concat()));
        assert_eq!(status(&told_to), "200", "{line}: {told_to}");
        let with = format!("{line} HTTP/1.1 with {told}");
        assert!(
            told.is_empty() || node.asked().contains(&with),
            "{with}: {:?}",
            node.asked()
        );
    }
    // Whether a node knows the sandbox was asked without it.
    assert!(
        node.asked()
            .iter()
            .any(|line| line == "GET /v1/sandboxes/i9 HTTP/1.1 with 0"),
        "{:?}",
        node.asked()
    );
    assert_eq!(node.count("secrets"), 0);
}
