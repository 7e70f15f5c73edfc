//! Connections to other servers, by name or address.

use std::io;
use std::net::{IpAddr, SocketAddr};

use hickory_resolver::TokioResolver;
use tokio::net::TcpStream;

/// Connects to a host, which is a name or an address.
///
/// Names are asked of the machine's DNS servers and its `hosts`, never of the C library: it would load modules of the machine.
pub(crate) async fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return TcpStream::connect(SocketAddr::new(address, port)).await;
    }
    let resolver = TokioResolver::builder_tokio().and_then(|builder| builder.build());
    let found = resolver.map_err(io::Error::other)?.lookup_ip(host).await;
    let addresses: Vec<SocketAddr> = found
        .map_err(io::Error::other)?
        .iter()
        .map(|address| SocketAddr::new(address, port))
        .collect();
    TcpStream::connect(&addresses[..]).await
}
