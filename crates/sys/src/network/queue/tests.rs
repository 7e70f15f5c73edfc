use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpStream};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;
use crate::namespaces;
use crate::network::nftables::{FirstPackets, RedirectFilters, RedirectMethod, lead_by};
use crate::network::routes::deliver_everything_here;
use crate::network::sockets::{listen_transparent, original_destination};
use crate::network::tests::{SOURCES, in_namespace};

const LISTENER: u16 = 1;
const TIMEOUT: Duration = Duration::from_secs(90);

/// Makes a network in which first packets are held.
fn held() -> PacketQueue {
    namespaces::unshare_network().unwrap();
    let ipv6 = deliver_everything_here(SOURCES).unwrap();
    let filters = RedirectFilters {
        sources: SOURCES,
        ipv6,
        listener: LISTENER,
        dns: 53,
        first_packets: FirstPackets::Held,
    };
    let queue = PacketQueue::open().unwrap();
    lead_by(RedirectMethod::Proxy, &filters).unwrap();
    queue
}

/// Decides so many packets by the port that they go to, elsewhere: port 443 is passed on.
fn decide_outside(queue: PacketQueue, mut packets: usize) -> thread::JoinHandle<Vec<SocketAddr>> {
    thread::spawn(move || {
        namespaces::unshare_network().unwrap();
        let queue = PacketQueue::from_descriptor(queue.into_descriptor());
        let mut seen = Vec::new();
        while packets > 0 {
            let waits = Timespec {
                tv_sec: TIMEOUT.as_secs().cast_signed(),
                tv_nsec: 0,
            };
            assert_eq!(poll(&mut [PollFd::new(&queue, PollFlags::IN)], Some(&waits)), Ok(1));
            for packet in queue.receive().unwrap() {
                let to = packet.destination.unwrap();
                seen.push(to);
                let fate = if to.port() == 443 {
                    PacketFate::Passed
                } else {
                    PacketFate::Refused
                };
                queue.decide(packet, fate).unwrap();
                packets -= 1;
            }
        }
        seen
    })
}

#[test]
fn who_is_refused_gets_it_from_connect_and_who_is_not_gets_through() {
    in_namespace(|| {
        let outside = decide_outside(held(), 4);
        let v4 = listen_transparent(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), LISTENER)).unwrap();
        let v6 = listen_transparent(SocketAddr::new(Ipv6Addr::LOCALHOST.into(), LISTENER)).unwrap();
        let mut asked = Vec::new();
        for (text, listener) in [
            ("93.184.216.34:443", Some(&v4)),
            ("93.184.216.34:80", None),
            ("[2606:2800::1]:443", Some(&v6)),
            ("[2606:2800::1]:22", None),
        ] {
            let to: SocketAddr = text.parse().unwrap();
            asked.push(to);
            let connected = TcpStream::connect_timeout(&to, TIMEOUT);
            match listener {
                Some(listener) => {
                    connected.unwrap();
                    let (accepted, _) = listener.accept().unwrap();
                    assert_eq!(original_destination(&accepted).unwrap(), to);
                }
                None => assert_eq!(connected.unwrap_err().kind(), ErrorKind::ConnectionRefused, "{to}"),
            }
        }
        assert_eq!(outside.join().unwrap(), asked);
    });
}

#[test]
fn the_namespaces_own_addresses_are_not_held() {
    in_namespace(|| {
        let _queue = held();
        for own in ["127.0.0.1:3000", "[::1]:3000", "192.0.2.1:3000"] {
            let server = std::net::TcpListener::bind(own).unwrap();
            TcpStream::connect_timeout(&own.parse().unwrap(), TIMEOUT).unwrap();
            server.accept().unwrap();
        }
    });
}

#[test]
fn without_a_holder_nothing_gets_through() {
    in_namespace(|| {
        drop(held());
        let listener = listen_transparent(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), LISTENER)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let to = "93.184.216.34:443".parse().unwrap();
        assert!(TcpStream::connect_timeout(&to, Duration::from_millis(500)).is_err());
        assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    });
}

#[test]
fn destinations_are_read_behind_options() {
    let mut packet = vec![0x47, 0, 0, 48, 0, 0, 0, 0, 64, 6, 0, 0, 192, 0, 2, 1, 93, 184, 216, 34];
    packet.extend([1; 8]);
    packet.extend([0x9c, 0x40, 0x01, 0xbb]);
    assert_eq!(destination_of(&packet), Some("93.184.216.34:443".parse().unwrap()));
    packet.truncate(31);
    assert_eq!(destination_of(&packet), None);
}

#[test]
fn a_message_that_is_cut_or_spoilt_is_read_without_harm() {
    let mut packet = vec![0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 192, 0, 2, 1, 93, 184, 216, 34];
    packet.extend([0x9c, 0x40, 0x01, 0xbb]);
    let mut message = header().to_vec();
    for (kind, value) in [(PACKET_HEADER, &[0, 0, 0, 7, 8, 0, 0, 0][..]), (PAYLOAD, &packet)] {
        let length = u16::try_from(value.len() + 4).unwrap();
        message.extend(length.to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend(value);
    }
    let whole = read(&message).unwrap();
    assert_eq!(
        (whole.id, whole.destination),
        (7, Some("93.184.216.34:443".parse().unwrap()))
    );
    for end in 0..message.len() {
        let _ = read(&message[..end]);
        for byte in [0, 1, 0x60, 0xff] {
            let mut spoilt = message.clone();
            spoilt[end] = byte;
            let _ = read(&spoilt);
        }
    }
}
