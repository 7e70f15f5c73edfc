use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;

use super::*;
use crate::network::tests::in_namespace;
use crate::{namespaces, socket};

const FAMILIES: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];

/// One more socket.
fn made(entrance: &EntranceSockets, loopback: IpAddr) -> OwnedFd {
    let listener = TcpListener::from(entrance.listener.try_clone().unwrap());
    listener.set_nonblocking(false).unwrap();
    rustix::io::ioctl_fionbio(&entrance.asking, false).unwrap();
    rustix::net::connect(&entrance.asking, &EntranceSockets::address(loopback)).unwrap();
    let (accepted, peer) = listener.accept().unwrap();
    assert_eq!(peer, EntranceSockets::origin(loopback));
    disconnect(&accepted).unwrap();
    disconnect(&entrance.asking).unwrap();
    accepted.into()
}

#[test]
fn sockets_made_outside_connect_inside_and_nowhere_else() {
    in_namespace(|| {
        socket::loopback_up().unwrap();
        let outside = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let only_outside = outside.local_addr().unwrap();
        for loopback in FAMILIES {
            let (tell, told) = mpsc::channel();
            // The thread's namespace is the sandbox, this one's the host.
            let inside = thread::spawn(move || {
                namespaces::unshare_network().unwrap();
                socket::loopback_up().unwrap();
                let server = TcpListener::bind((loopback, 0)).unwrap();
                let entrance = EntranceSockets::make(loopback).unwrap();
                tell.send((entrance, server.local_addr().unwrap())).unwrap();
                for _ in 0..100 {
                    let (mut accepted, _) = server.accept().unwrap();
                    let mut read = [0; 5];
                    accepted.read_exact(&mut read).unwrap();
                    accepted.write_all(&read).unwrap();
                }
            });
            let (entrance, server) = told.recv().unwrap();
            let held: Vec<TcpStream> = (0..100)
                .map(|_| {
                    let socket = made(&entrance, loopback);
                    rustix::net::connect(&socket, &server).unwrap();
                    let mut stream = TcpStream::from(socket);
                    stream.write_all(b"hello").unwrap();
                    let mut read = [0; 5];
                    stream.read_exact(&mut read).unwrap();
                    assert_eq!(&read, b"hello");
                    stream
                })
                .collect();
            // All at once, and each from a port of its own.
            let mut ports: Vec<u16> = held.iter().map(|stream| stream.local_addr().unwrap().port()).collect();
            ports.sort_unstable();
            ports.dedup();
            assert_eq!(ports.len(), 100);
            inside.join().unwrap();
            if loopback.is_ipv4() {
                let refused = rustix::net::connect(made(&entrance, loopback), &only_outside).unwrap_err();
                assert_eq!(io::Error::from(refused).kind(), ErrorKind::ConnectionRefused);
            }
        }
        TcpStream::connect(only_outside).unwrap();
    });
}

#[test]
fn neither_end_can_be_shared() {
    in_namespace(|| {
        socket::loopback_up().unwrap();
        for loopback in FAMILIES {
            let _entrance = EntranceSockets::make(loopback).unwrap();
            assert!(EntranceSockets::make(loopback).is_err());
            for address in [EntranceSockets::address(loopback), EntranceSockets::origin(loopback)] {
                let taken = sockets::socket(address, SocketType::STREAM, SocketFlags::empty()).unwrap();
                rustix::net::sockopt::set_socket_reuseaddr(&taken, true).unwrap();
                rustix::net::sockopt::set_socket_reuseport(&taken, true).unwrap();
                assert!(rustix::net::bind(&taken, &address).is_err(), "{address}");
            }
        }
    });
}
