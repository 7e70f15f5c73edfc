//! What a network costs a sandbox that starts.

use std::net::SocketAddr;
use std::time::Instant;

use super::*;

const ROUNDS: usize = 300;
const PARTS: [&str; 5] = ["loopback only", "routes", "filters", "sockets", "all"];

#[test]
#[ignore = "a measurement: run by name, alone, and read what it prints"]
fn measure_setting_a_network_up() {
    in_namespace(|| {
        for method in [RedirectMethod::Proxy, RedirectMethod::Redirect] {
            let mut times: [Vec<u128>; 5] = Default::default();
            for _ in 0..ROUNDS {
                namespaces::unshare_network().unwrap();
                let since = Instant::now();
                crate::socket::loopback_up().unwrap();
                times[0].push(since.elapsed().as_nanos());
                let start = Instant::now();
                let ipv6 = deliver_everything_here(SOURCES).unwrap();
                times[1].push(start.elapsed().as_nanos());
                let since = Instant::now();
                lead_by(method, &filters(ipv6)).unwrap();
                times[2].push(since.elapsed().as_nanos());
                let since = Instant::now();
                let sockets = open_all();
                times[3].push(since.elapsed().as_nanos());
                times[4].push(start.elapsed().as_nanos());
                drop(sockets);
            }
            for (part, times) in PARTS.iter().zip(&mut times) {
                times.sort_unstable();
                let us = |percent: usize| times[times.len() * percent / 100] / 1000;
                println!(
                    "{method:?}: {part}: median {} µs, p10 {}, p95 {}",
                    us(50),
                    us(10),
                    us(95)
                );
            }
        }
    });
}

fn open_all() -> (Gateway, Vec<TcpListener>, Vec<UdpSocket>) {
    let any: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
    let any = any.map(|address| SocketAddr::new(address, DNS));
    let tcp = any.iter().map(|address| listen(*address).unwrap()).collect();
    let udp = any.iter().map(|address| bind_datagrams(*address).unwrap()).collect();
    (gateway(), tcp, udp)
}

#[test]
#[ignore = "a measurement: run by name, alone, and read what it prints"]
fn measure_asking_for_our_own_addresses() {
    in_namespace(|| {
        deliver_everything_here(SOURCES).unwrap();
        for many in [0, 200] {
            for last in 0..many {
                let v4 = Ipv4Addr::new(192, 0, 3, last);
                let _outcome = deliver_everything_here(SourceAddresses { v4, ..SOURCES });
            }
            let mut own = OwnAddresses::watch().unwrap();
            let since = Instant::now();
            for _ in 0..ROUNDS {
                assert!(!own.now().unwrap().is_empty());
            }
            let watched = since.elapsed().as_nanos() / 300;
            let since = Instant::now();
            for _ in 0..ROUNDS {
                assert!(!own_addresses().unwrap().is_empty());
            }
            let listed = since.elapsed().as_nanos() / 300;
            println!("with {many} more: {watched} ns watched, {listed} ns listed anew");
        }
    });
}
