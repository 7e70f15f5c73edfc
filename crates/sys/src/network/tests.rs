//! A namespace's network on the running kernel, with the standard library's sockets as programs.

mod measure;
mod namespace;

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;

use super::addresses::{OwnAddresses, own_addresses};
use super::nftables::{FirstPackets, RedirectFilters, RedirectMethod, lead_by, lead_to_listener};
use super::routes::deliver_everything_here;
use super::sockets::{bind_datagrams, listen, listen_transparent, original_destination};
use super::{Ipv6, NetworkError, SourceAddresses, datagrams};
use crate::{credentials, namespaces};
pub(super) use namespace::in_namespace;

pub(super) const SOURCES: SourceAddresses = SourceAddresses {
    v4: Ipv4Addr::new(192, 0, 2, 1),
    v6: Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1),
};
const LISTENER: u16 = 1;
const DNS: u16 = 53;

/// How long anything may take that should come at once; only a test that fails waits for it.
const TIMEOUT: Duration = Duration::from_secs(90);

/// What a gateway holds.
struct Gateway {
    v4: TcpListener,
    v6: TcpListener,
}

impl Gateway {
    fn listener(&self, of: SocketAddr) -> &TcpListener {
        if of.is_ipv4() { &self.v4 } else { &self.v6 }
    }
}

fn filters(ipv6: Ipv6) -> RedirectFilters {
    RedirectFilters {
        sources: SOURCES,
        ipv6,
        listener: LISTENER,
        dns: DNS,
        first_packets: FirstPackets::Passed,
    }
}

fn gateway() -> Gateway {
    let at = |address: IpAddr| listen_transparent(SocketAddr::new(address, LISTENER)).unwrap();
    Gateway {
        v4: at(Ipv4Addr::LOCALHOST.into()),
        v6: at(Ipv6Addr::LOCALHOST.into()),
    }
}

/// Runs `body` in a new namespace for each method.
fn with_each_method(body: impl Fn(&Gateway)) {
    for method in [RedirectMethod::Proxy, RedirectMethod::Redirect] {
        println!("{method:?}");
        namespaces::unshare_network().unwrap();
        let ipv6 = deliver_everything_here(SOURCES).unwrap();
        assert_eq!(ipv6, Ipv6::Ready);
        match lead_by(method, &filters(ipv6)) {
            Err(error @ NetworkError::Missing { .. }) => println!("SKIP: {error}"),
            led => {
                led.unwrap();
                body(&gateway());
            }
        }
    }
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn connect(to: SocketAddr) -> std::io::Result<TcpStream> {
    TcpStream::connect_timeout(&to, TIMEOUT)
}

fn exchange(one: &mut TcpStream, other: &mut TcpStream) {
    pass(one, other);
    pass(other, one);
}

fn pass(from: &mut TcpStream, to: &mut TcpStream) {
    from.write_all(b"hello").unwrap();
    to.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut read = [0; 5];
    to.read_exact(&mut read).unwrap();
    assert_eq!(&read, b"hello");
}

fn datagram_socket(to: SocketAddr) -> UdpSocket {
    let any: IpAddr = if to.is_ipv4() {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        Ipv6Addr::UNSPECIFIED.into()
    };
    let socket = UdpSocket::bind((any, 0)).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    socket
}

#[test]
fn connections_to_any_address_and_port_land_at_the_listener() {
    in_namespace(|| {
        with_each_method(|gateway| {
            for to in [
                "93.184.216.34:443",
                "169.254.169.254:80",
                "10.0.0.1:1",
                "8.8.8.8:65535",
                "192.0.2.2:22",
                "[2606:2800::1]:8443",
                "[fd00::2]:1",
                "[2001:db8::1]:80",
            ] {
                let to = address(to);
                let mut client = connect(to).unwrap();
                let (mut accepted, from) = gateway.listener(to).accept().unwrap();
                assert_eq!(original_destination(&accepted).unwrap(), to);
                assert_eq!(from, client.local_addr().unwrap());
                assert_eq!(client.peer_addr().unwrap(), to);
                let source: IpAddr = if to.is_ipv4() {
                    SOURCES.v4.into()
                } else {
                    SOURCES.v6.into()
                };
                assert_eq!(from.ip(), source);
                exchange(&mut client, &mut accepted);
            }
        });
    });
}

#[test]
fn a_v4_address_written_as_v6_is_taken_as_what_it_is() {
    in_namespace(|| {
        with_each_method(|gateway| {
            let _client = connect(address("[::ffff:93.184.216.34]:443")).unwrap();
            let (accepted, _) = gateway.v4.accept().unwrap();
            assert_eq!(original_destination(&accepted).unwrap(), address("93.184.216.34:443"));
        });
    });
}

#[test]
fn servers_of_the_namespaces_own_are_reached_untouched() {
    in_namespace(|| {
        with_each_method(|gateway| {
            for own in [
                "127.0.0.1:3000",
                "127.9.9.9:3000",
                "[::1]:3000",
                "192.0.2.1:3000",
                "[fd00::1]:3000",
            ] {
                let server = TcpListener::bind(own).unwrap();
                let mut client = connect(address(own)).unwrap();
                let (mut accepted, _) = server.accept().unwrap();
                assert_eq!(accepted.local_addr().unwrap(), address(own));
                exchange(&mut client, &mut accepted);
                let udp = UdpSocket::bind(own).unwrap();
                udp.set_read_timeout(Some(TIMEOUT)).unwrap();
                datagram_socket(address(own)).send_to(b"hello", own).unwrap();
                assert_eq!(udp.recv(&mut [0; 9]).unwrap(), 5);
            }
            let free = connect(address("127.0.0.1:3001")).unwrap_err();
            assert_eq!(free.kind(), ErrorKind::ConnectionRefused);
            for listener in [&gateway.v4, &gateway.v6] {
                listener.set_nonblocking(true).unwrap();
                assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
            }
        });
    });
}

/// A program's own server on all addresses, or on the very one, gets nothing that is for elsewhere.
#[test]
fn code_inside_cannot_take_connections_from_the_listener() {
    in_namespace(|| {
        with_each_method(|gateway| {
            for (own, to) in [
                ("0.0.0.0:443", "93.184.216.34:443"),
                ("93.184.216.34:8443", "93.184.216.34:8443"),
                ("[::]:444", "[2606:2800::1]:444"),
            ] {
                let _greedy = TcpListener::bind(own).unwrap();
                let _client = connect(address(to)).unwrap();
                let (accepted, _) = gateway.listener(address(to)).accept().unwrap();
                assert_eq!(original_destination(&accepted).unwrap(), address(to));
            }
            // The standard library sets SO_REUSEADDR here.
            for taken in [("127.0.0.1", LISTENER), ("0.0.0.0", LISTENER), ("::1", LISTENER)] {
                assert_eq!(TcpListener::bind(taken).unwrap_err().kind(), ErrorKind::AddrInUse);
            }
        });
    });
}

#[test]
fn the_listener_itself_is_told_from_what_was_led_there() {
    in_namespace(|| {
        with_each_method(|gateway| {
            let to = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), LISTENER);
            let _client = connect(to).unwrap();
            let (accepted, _) = gateway.v4.accept().unwrap();
            assert_eq!(original_destination(&accepted).unwrap(), to);
        });
    });
}

#[test]
fn without_a_listener_connections_are_refused() {
    in_namespace(|| {
        for method in [RedirectMethod::Proxy, RedirectMethod::Redirect] {
            namespaces::unshare_network().unwrap();
            let ipv6 = deliver_everything_here(SOURCES).unwrap();
            lead_by(method, &filters(ipv6)).unwrap();
            for to in ["93.184.216.34:443", "[2606:2800::1]:443"] {
                let error = connect(address(to)).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{method:?}");
            }
        }
    });
}

/// Connections that have the same source are kept apart by where they go.
#[test]
fn one_source_port_can_be_used_for_many_destinations() {
    in_namespace(|| {
        with_each_method(|gateway| {
            let mut pairs = Vec::new();
            for last in 1..=20 {
                let to = SocketAddr::new(Ipv4Addr::new(203, 0, 113, last).into(), 443);
                let family = rustix::net::AddressFamily::INET;
                let socket = rustix::net::socket(family, rustix::net::SocketType::STREAM, None).unwrap();
                rustix::net::sockopt::set_socket_reuseaddr(&socket, true).unwrap();
                rustix::net::bind(&socket, &address("192.0.2.1:40000")).unwrap();
                rustix::net::connect(&socket, &to).unwrap();
                let (accepted, _) = gateway.v4.accept().unwrap();
                assert_eq!(original_destination(&accepted).unwrap(), to);
                pairs.push((TcpStream::from(socket), accepted));
            }
            for (client, accepted) in &mut pairs {
                exchange(client, accepted);
            }
        });
    });
}

/// Both ends of each are in this process.
fn allow_many_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    let current = maximum.map_or(Some(4096), |maximum| Some(maximum.min(4096)));
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
}

#[test]
fn a_thousand_connections_are_open_at_once() {
    in_namespace(|| {
        allow_many_descriptors();
        with_each_method(|gateway| {
            let clients = thread::spawn(|| {
                let to = |number: u16| SocketAddr::new(Ipv4Addr::new(198, 51, 100, 7).into(), 1000 + number);
                let open = |number| connect(to(number)).unwrap();
                (0..500).map(open).collect::<Vec<_>>()
            });
            let accept = |_| gateway.v4.accept().unwrap().0;
            let mut accepted: Vec<_> = (0..500).map(accept).collect();
            accepted.sort_by_key(|accepted| original_destination(accepted).unwrap().port());
            // Not by the source, which a redirection may change when the client uses one for two destinations.
            for (client, accepted) in clients.join().unwrap().iter_mut().zip(&mut accepted) {
                assert_eq!(client.peer_addr().unwrap(), original_destination(&*accepted).unwrap());
                exchange(client, accepted);
            }
            // As many wait when nobody accepts.
            let waiting: Vec<_> = (0..500).map(|_| connect(address("198.51.100.8:1")).unwrap()).collect();
            assert_eq!(waiting.len() + accepted.len(), 1000);
        });
    });
}

#[test]
fn sockets_work_from_outside_the_namespace() {
    in_namespace(|| {
        with_each_method(|gateway| {
            let listener = gateway.v4.try_clone().unwrap();
            let outside = thread::spawn(move || {
                namespaces::unshare_network().unwrap();
                let (mut accepted, _) = listener.accept().unwrap();
                let wanted = original_destination(&accepted).unwrap();
                accepted.write_all(b"hello").unwrap();
                wanted
            });
            let to = address("93.184.216.34:443");
            let mut client = connect(to).unwrap();
            client.read_exact(&mut [0; 5]).unwrap();
            assert_eq!(outside.join().unwrap(), to);
        });
    });
}

#[test]
fn questions_to_any_resolver_are_answered_from_its_address() {
    in_namespace(|| {
        with_each_method(|_| {
            let v4 = bind_datagrams(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), DNS)).unwrap();
            let v6 = bind_datagrams(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), DNS)).unwrap();
            for resolver in [
                "8.8.8.8:53",
                "192.0.2.1:53",
                "127.0.0.53:53",
                "[2001:4860::8888]:53",
                "[::1]:53",
            ] {
                let resolver = address(resolver);
                let server = if resolver.is_ipv4() { &v4 } else { &v6 };
                server.set_read_timeout(Some(TIMEOUT)).unwrap();
                let client = datagram_socket(resolver);
                client.connect(resolver).unwrap();
                client.send(b"question").unwrap();
                let mut buffer = [0; 5];
                let question = datagrams::receive(server, &mut buffer).unwrap();
                assert_eq!(&buffer, b"quest");
                assert!(question.truncated && question.length == 5);
                assert_eq!(
                    (question.from, question.to),
                    (client.local_addr().unwrap(), resolver.ip())
                );
                datagrams::answer(server, &question, b"answer").unwrap();
                let mut answer = [0; 9];
                let (length, from) = client.recv_from(&mut answer).unwrap();
                assert_eq!((&answer[..length], from), (&b"answer"[..], resolver));
            }
        });
    });
}

#[test]
fn questions_over_tcp_come_to_a_listener_of_their_own() {
    in_namespace(|| {
        with_each_method(|_| {
            let v4 = listen(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), DNS)).unwrap();
            let v6 = listen(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), DNS)).unwrap();
            for resolver in ["8.8.8.8:53", "127.0.0.53:53", "[2001:4860::8888]:53"] {
                let resolver = address(resolver);
                let mut client = connect(resolver).unwrap();
                let server = if resolver.is_ipv4() { &v4 } else { &v6 };
                let (mut accepted, _) = server.accept().unwrap();
                assert_eq!(original_destination(&accepted).unwrap(), resolver);
                exchange(&mut client, &mut accepted);
            }
        });
    });
}

/// What a program is told that sends a datagram to `to` and waits.
fn answer_to_datagram(to: SocketAddr) -> ErrorKind {
    let socket = datagram_socket(to);
    socket.connect(to).unwrap();
    socket.send(b"hello").unwrap();
    socket.recv(&mut [0; 9]).unwrap_err().kind()
}

#[test]
fn other_datagrams_are_refused_at_once() {
    in_namespace(|| {
        with_each_method(|_| {
            // A program that listens everywhere gets nothing of it either.
            let everywhere = UdpSocket::bind("[::]:443").unwrap();
            for to in ["93.184.216.34:443", "8.8.8.8:123", "[2606:2800::1]:443"] {
                assert_eq!(answer_to_datagram(address(to)), ErrorKind::ConnectionRefused, "{to}");
            }
            everywhere.set_nonblocking(true).unwrap();
            let nothing = everywhere.recv(&mut [0; 9]).unwrap_err();
            assert_eq!(nothing.kind(), ErrorKind::WouldBlock);
        });
    });
}

/// What a program is told that sends an echo request to `to`, or that it got an answer.
fn answer_to_echo(to: SocketAddr) -> Result<(), Errno> {
    use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, ipproto, sockopt};
    let (family, protocol, request) = if to.is_ipv4() {
        (AddressFamily::INET, ipproto::ICMP, [8, 0, 0xf7, 0xff, 0, 0, 0, 0])
    } else {
        (AddressFamily::INET6, ipproto::ICMPV6, [128, 0, 0, 0, 0, 0, 0, 0])
    };
    let socket = rustix::net::socket(family, SocketType::RAW, Some(protocol)).unwrap();
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(TIMEOUT)).unwrap();
    rustix::net::connect(&socket, &to).unwrap();
    rustix::net::send(&socket, &request, SendFlags::empty())?;
    rustix::net::recv(&socket, &mut [0_u8; 99][..], RecvFlags::empty())?;
    Ok(())
}

#[test]
fn other_protocols_are_refused_at_once() {
    in_namespace(|| {
        with_each_method(|_| {
            assert_eq!(answer_to_echo(address("8.8.8.8:0")), Err(Errno::HOSTUNREACH));
            assert_eq!(answer_to_echo(address("[2606:2800::1]:0")), Err(Errno::ACCESS));
            assert_eq!(answer_to_echo(address("127.0.0.1:0")), Ok(()));
            assert_eq!(answer_to_echo(address("[::1]:0")), Ok(()));
        });
    });
}

/// What is left where the kernel has no packet filter.
#[test]
fn without_filters_a_listener_on_one_port_gets_it_for_every_address() {
    in_namespace(|| {
        deliver_everything_here(SOURCES).unwrap();
        for (own, to) in [("0.0.0.0:443", "93.184.216.34:443"), ("[::]:443", "[2606:2800::1]:443")] {
            let listener = listen(address(own)).unwrap();
            let mut client = connect(address(to)).unwrap();
            let (mut accepted, _) = listener.accept().unwrap();
            assert_eq!(original_destination(&accepted).unwrap(), address(to));
            exchange(&mut client, &mut accepted);
        }
        let other = connect(address("93.184.216.34:80")).unwrap_err();
        assert_eq!(other.kind(), ErrorKind::ConnectionRefused);
        assert_eq!(answer_to_datagram(address("8.8.8.8:443")), ErrorKind::ConnectionRefused);
        // This is why other protocols need a filter.
        assert_eq!(answer_to_echo(address("8.8.8.8:0")), Ok(()));
    });
}

/// Shows that the tests above test something.
#[test]
fn without_routes_nothing_is_reached() {
    in_namespace(|| {
        crate::socket::loopback_up().unwrap();
        let error = connect(address("93.184.216.34:443")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NetworkUnreachable);
    });
}

#[test]
fn where_ipv6_is_switched_off_ipv4_works() {
    in_namespace(|| {
        let conf = "/proc/sys/net/ipv6/conf";
        for interface in ["all", "default", "lo"] {
            std::fs::write(format!("{conf}/{interface}/disable_ipv6"), "1").unwrap();
        }
        let ipv6 = deliver_everything_here(SOURCES).unwrap();
        assert_eq!(ipv6, Ipv6::Absent);
        assert_eq!(
            lead_to_listener(&filters(ipv6)).unwrap(),
            (RedirectMethod::Proxy, FirstPackets::Passed)
        );
        let listener = listen_transparent(address("127.0.0.1:1")).unwrap();
        let _client = connect(address("93.184.216.34:443")).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        assert_eq!(original_destination(&accepted).unwrap(), address("93.184.216.34:443"));
        let none = connect(address("[2606:2800::1]:443")).unwrap_err();
        assert_eq!(none.raw_os_error(), Some(libc::EADDRNOTAVAIL));
    });
}

#[test]
fn the_namespaces_own_addresses_are_listed() {
    in_namespace(|| {
        deliver_everything_here(SOURCES).unwrap();
        let expected: [IpAddr; 4] = [
            Ipv4Addr::LOCALHOST.into(),
            SOURCES.v4.into(),
            Ipv6Addr::LOCALHOST.into(),
            SOURCES.v6.into(),
        ];
        assert!(own_addresses().unwrap().into_iter().eq(expected));
    });
}

#[test]
fn addresses_that_come_later_are_known_at_once() {
    in_namespace(|| {
        let mut own = OwnAddresses::watch().unwrap();
        assert!(own.now().unwrap().is_empty());
        deliver_everything_here(SOURCES).unwrap();
        assert!(own.now().unwrap().contains(&SOURCES.v4.into()));
        assert!(own.now().unwrap().contains(&SOURCES.v6.into()));
        // More than there is room to be told of.
        for last in 2..=255 {
            for third in 0..4 {
                let v4 = Ipv4Addr::new(192, 1, third, last);
                let v6 = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, third.into(), last.into());
                let _outcome = deliver_everything_here(SourceAddresses { v4, v6 });
            }
        }
        assert!(own.now().unwrap().contains(&Ipv4Addr::new(192, 1, 3, 255).into()));
        assert!(own.now().unwrap().iter().copied().eq(own_addresses().unwrap()));
    });
}

#[test]
fn addresses_that_only_a_route_leads_here_are_our_own_as_well() {
    in_namespace(|| {
        let mut own = OwnAddresses::watch().unwrap();
        let anywhere: [IpAddr; 2] = ["93.184.216.34", "2606:2800:220:1::5"].map(|text| text.parse().unwrap());
        for address in anywhere {
            assert!(own.now_and_of(&[address]).unwrap().is_empty());
        }
        deliver_everything_here(SOURCES).unwrap();
        for address in anywhere {
            let own = own.now_and_of(&[address]).unwrap();
            assert!(own.contains(&address) && own.contains(&SOURCES.v4.into()), "{own:?}");
            assert!(!own.contains(&IpAddr::from([93, 184, 216, 35])), "{own:?}");
        }
    });
}

/// More than the kernel tells in one message.
#[test]
fn many_addresses_are_listed_to_the_last() {
    in_namespace(|| {
        for last in 0..=255 {
            let v4 = Ipv4Addr::new(192, 0, 2, last);
            let v6 = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2 + u16::from(last));
            // The second time the routes are there already, and the addresses are made all the same.
            let _outcome = deliver_everything_here(SourceAddresses { v4, v6 });
        }
        assert_eq!(own_addresses().unwrap().len(), 2 + 2 * 256);
    });
}

fn errno(error: &NetworkError) -> Option<i32> {
    let (NetworkError::Talking { source, .. }
    | NetworkError::Refused { source, .. }
    | NetworkError::Missing { source, .. }) = error;
    source.raw_os_error()
}

#[test]
fn what_is_there_already_is_an_error() {
    in_namespace(|| {
        let ipv6 = deliver_everything_here(SOURCES).unwrap();
        let error = deliver_everything_here(SOURCES).unwrap_err();
        assert_eq!(errno(&error), Some(libc::EEXIST), "{error:?}");
        assert!(error.to_string().contains("IPv4 address"), "{error}");
        lead_to_listener(&filters(ipv6)).unwrap();
        let error = lead_to_listener(&filters(ipv6)).unwrap_err();
        assert_eq!(errno(&error), Some(libc::EEXIST), "{error:?}");
    });
}

#[test]
fn without_capabilities_everything_is_refused() {
    in_namespace(|| {
        credentials::drop_capabilities().unwrap();
        let routes = deliver_everything_here(SOURCES).unwrap_err();
        let tables = lead_to_listener(&filters(Ipv6::Ready)).unwrap_err();
        for error in [routes, tables] {
            assert!(matches!(error, NetworkError::Refused { .. }), "{error:?}");
            assert_eq!(errno(&error), Some(libc::EPERM));
        }
        let listener = listen_transparent(address("127.0.0.1:5000")).unwrap_err();
        assert_eq!(listener.kind(), ErrorKind::PermissionDenied);
        assert!(own_addresses().unwrap().is_empty());
    });
}
