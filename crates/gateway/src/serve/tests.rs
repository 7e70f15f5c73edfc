//! How much is served at once, and how the end of a gateway is known.

use std::io::Read as _;
use std::net::{SocketAddr, TcpListener as StdListener, TcpStream as StdStream};

use super::*;
use crate::gateway_process::GatewayProcess;
use crate::{Config, Gateway, Resolvers, WayOut};

#[test]
fn connections_and_pipes_leave_descriptors_for_others() {
    let cases = [
        (Some(64), 15, 2),
        (Some(1024), 240, 32),
        (Some(20_000), 1024, 32),
        (Some(OPEN_FILES), 1024, 32),
        (None, 1024, 32),
    ];
    for (descriptors, connections, pipes) in cases {
        assert_eq!(
            Room::within(descriptors),
            Room { connections, pipes },
            "{descriptors:?}"
        );
    }
}

/// A connection that a gateway has accepted, as a proxy that waits for what is asked of it.
fn accepted(address: SocketAddr) -> StdStream {
    let mut client = StdStream::connect(address).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    // A greeting of SOCKS 5 without authentication, and what is answered to that.
    std::io::Write::write_all(&mut client, &[5, 1, 0]).unwrap();
    let mut answer = [0; 2];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(answer, [5, 0]);
    client
}

/// A gateway with one listener, another descriptor of that, and where it is.
fn gateway() -> (Gateway, StdListener, SocketAddr) {
    let listener = StdListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let sockets = NetworkSockets {
        connections: vec![listener.try_clone().unwrap().into()],
        ..NetworkSockets::default()
    };
    let config = Config {
        way_out: WayOut {
            resolvers: Resolvers::At(Vec::new()),
            ..WayOut::default()
        },
        ..Config::default()
    };
    (Gateway::start(config, sockets).unwrap(), listener, address)
}

/// A gateway that does what `serve` does.
fn on_thread(serve: impl FnOnce(Ties) + Send + 'static) -> io::Result<Gateway> {
    let process = GatewayProcess::on_thread(|link| {
        let ties = Ties::new(link, Incoming::new(usize::MAX), Keys::default());
        serve(ties.unwrap());
    });
    Gateway::of_process(process?, Config::default(), NetworkSockets::default())
}

#[test]
fn a_gateway_that_ends_by_itself_is_known_to_have_ended_before_its_connections_are() {
    for _ in 0..20 {
        let (gateway, listener, address) = gateway();
        let mut client = accepted(address);
        assert!(!gateway.has_ended());
        rustix::net::shutdown(&listener, rustix::net::Shutdown::Both).unwrap();
        assert_eq!(client.read(&mut [0]).unwrap_or(0), 0);
        assert!(gateway.has_ended());
        let account = gateway.finish();
        assert_eq!(account.connections.len(), 1);
    }
}

#[test]
fn a_panic_of_what_serves_a_socket_ends_all_of_it_and_is_known_before() {
    for _ in 0..20 {
        let listener = StdListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let started = on_thread(move |ties| {
            let _ended = run(ties, event_loop().unwrap(), |ties| {
                let mut servers = Servers::new(ties.link.clone());
                servers.add(super::listener(listener.into())?, async |listener: &TcpListener| {
                    let (first, _) = listener.accept().await.unwrap();
                    spawn_local(async move {
                        let _held = first;
                        std::future::pending::<()>().await;
                    });
                    let (_second, _) = listener.accept().await.unwrap();
                    panic!("as if something was wrong with the gateway");
                });
                Ok(servers)
            });
        });
        let gateway = started.unwrap();
        let mut first = StdStream::connect(address).unwrap();
        first.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert!(!gateway.has_ended());
        let _second = StdStream::connect(address).unwrap();
        // It is cut off, and nobody listens any more.
        assert_eq!(first.read(&mut [0]).unwrap_or(0), 0);
        assert!(gateway.has_ended());
        let refused = StdStream::connect(address).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        // What there was is told all the same.
        assert!(gateway.finish().connections.is_empty());
    }
}

#[test]
fn a_panic_outside_of_what_serves_a_socket_is_known_too() {
    let (may_panic, panics) = std::sync::mpsc::channel::<()>();
    let gateway = on_thread(move |ties| {
        ties.link.send(&Report::Ready(Ok(())));
        let _ = panics.recv();
        panic!("as if something was wrong with the event loop");
    });
    let gateway = gateway.unwrap();
    assert!(!gateway.has_ended());
    may_panic.send(()).unwrap();
    let mut lives = [rustix::event::PollFd::from_borrowed_fd(
        gateway.lives(),
        rustix::event::PollFlags::empty(),
    )];
    let patience = rustix::event::Timespec { tv_sec: 60, tv_nsec: 0 };
    assert_eq!(rustix::event::poll(&mut lives, Some(&patience)), Ok(1));
    drop(gateway.finish());
}

#[test]
fn a_gateway_that_panics_while_it_starts_is_an_error() {
    let error = on_thread(|_| panic!("as if something was wrong with the start")).unwrap_err();
    assert!(error.to_string().contains("ended while it started"), "{error}");
}
