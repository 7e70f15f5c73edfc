//! What a supervisor makes of a gateway that is not what it should be.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::mpsc::channel;
use std::time::Duration;

use offleash_sys::socket;

use super::*;
use crate::journal_entries::{JournalEntry, LossCause};
use crate::link::Link;
use crate::process::next_order;
use crate::wire::Report;
use crate::wire::frames::{Incoming, MAX_ORDER, MAX_REPORT};

const TIMEOUT: Duration = Duration::from_secs(60);

/// A gateway that serves, as it says, and then does what `rest` does.
fn gateway(rest: impl FnOnce(&Link) + Send + 'static) -> Gateway {
    let process = GatewayProcess::on_thread(move |link| {
        // As every gateway does: it is asked first.
        next_order(&link, &mut Incoming::new(MAX_ORDER)).unwrap().unwrap();
        link.send(&Report::Ready(Ok(())));
        rest(&link);
    });
    Gateway::of_process(process.unwrap(), Config::default(), NetworkSockets::default()).unwrap()
}

/// Waits until it is lost, and says how.
fn lost(gateway: Gateway) -> LossCause {
    let mut lives = [PollFd::from_borrowed_fd(gateway.lives(), PollFlags::empty())];
    let patience = rustix::event::Timespec::try_from(TIMEOUT).unwrap();
    assert_eq!(rustix::event::poll(&mut lives, Some(&patience)), Ok(1));
    assert!(gateway.has_ended());
    gateway.finish().lost.unwrap().cause
}

#[test]
fn one_that_says_what_no_gateway_says_is_given_up() {
    let too_long = u32::try_from(MAX_REPORT + 1).unwrap().to_le_bytes().to_vec();
    for bytes in [too_long, vec![4, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]] {
        let (done, is_done) = channel::<()>();
        let gateway = gateway(move |link| {
            socket::send_all(link.as_fd(), &bytes, &[]).unwrap();
            let _waits = is_done.recv();
        });
        assert_eq!(lost(gateway), LossCause::Misbehaved);
        drop(done);
    }
}

#[test]
fn one_that_never_stops_telling_is_given_up() {
    let (done, is_done) = channel::<()>();
    let gateway = gateway(move |link| {
        let name = "x".repeat(1 << 20);
        let entry = || JournalEntry::RefusedName {
            name: name.clone(),
            times: 1,
        };
        for _ in 0..8 {
            link.send(&Report::Entry(entry()));
            link.send_last();
        }
        let _waits = is_done.recv();
    });
    assert_eq!(lost(gateway), LossCause::Misbehaved);
    drop(done);
}

#[test]
fn one_that_ends_without_a_word_is_lost_and_orders_return() {
    let gateway = gateway(|_| {});
    gateway.set_rules(Reach::default());
    gateway.close();
    let (told, answer) = channel();
    gateway.connect(80, move |connected| told.send(connected).unwrap());
    assert!(answer.recv_timeout(TIMEOUT).is_err());
    assert!(gateway.authority().is_err());
    assert_eq!(lost(gateway), LossCause::Exited(1));
}

#[test]
fn what_is_handed_over_must_be_a_connection() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let pipe = rustix::pipe::pipe().unwrap().0;
    let (order, ordered) = channel::<()>();
    let (done, is_done) = channel::<()>();
    let gateway = gateway(move |link| {
        ordered.recv().unwrap();
        let connected = |number| Report::Connected { number, error: None };
        link.send_with(&connected(1), Some(pipe));
        link.send_with(&connected(2), Some(stream.into()));
        let _waits = is_done.recv();
    });
    let (told, answers) = channel();
    for _ in 0..2 {
        let told = told.clone();
        gateway.connect(80, move |connected| told.send(connected.is_ok()).unwrap());
    }
    order.send(()).unwrap();
    assert_eq!([(); 2].map(|()| answers.recv_timeout(TIMEOUT).unwrap()), [false, true]);
    drop(done);
}

#[test]
fn secrets_and_rules_arrive_as_they_were_and_answers_come_back() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let config = Config {
        way_out: crate::WayOut {
            resolvers: crate::Resolvers::At(Vec::new()),
            ..crate::WayOut::default()
        },
        ..Config::default()
    };
    let sockets = NetworkSockets {
        connections: vec![listener.into()],
        ..NetworkSockets::default()
    };
    let gateway = Gateway::start(config, sockets).unwrap();
    let trust = gateway.authority();
    // Where the machine has no authorities there is nothing to compare.
    if let (Ok(one), Ok(another)) = (&trust, &gateway.authority()) {
        assert_eq!(one.own_der(), another.own_der());
        assert!(one.own_pem().starts_with("-----BEGIN CERTIFICATE-----\n"));
    }
    // A greeting of SOCKS, and a question for what no rule allows.
    let mut client = std::net::TcpStream::connect(address).unwrap();
    client.set_read_timeout(Some(TIMEOUT)).unwrap();
    std::io::Write::write_all(&mut client, &[5, 1, 0, 5, 1, 0, 1, 192, 0, 2, 1, 0, 80]).unwrap();
    let mut answer = [0; 12];
    std::io::Read::read_exact(&mut client, &mut answer).unwrap();
    assert_eq!(answer[3], 2, "not allowed by the rules");
    // It is told at once.
    let until = std::time::Instant::now() + TIMEOUT;
    while gateway.news().is_empty() {
        assert!(std::time::Instant::now() < until);
        std::thread::yield_now();
    }
    let account = gateway.finish();
    assert_eq!((account.connections.len(), account.lost), (1, None));
}
