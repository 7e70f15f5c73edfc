//! Connections to other servers, by name or address.

use std::io;
use std::net::{IpAddr, SocketAddr};

use hickory_resolver::TokioResolver;
use tokio::net::TcpStream;

/// Connects to a host, which is a name or an address.
pub(crate) async fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return TcpStream::connect(SocketAddr::new(address, port)).await;
    }
    let found = resolved(host).await?;
    if found.is_empty() {
        let why = format!("no address is known for `{}`", host.escape_debug());
        return Err(io::Error::new(io::ErrorKind::NotFound, why));
    }
    let addresses: Vec<SocketAddr> = found.iter().map(|address| SocketAddr::new(*address, port)).collect();
    TcpStream::connect(&addresses[..]).await
}

/// Where a name leads; nowhere, if there is no such name.
///
/// Names are asked of the machine's DNS servers and its `hosts`, never of the C library: it would load modules of the machine.
pub(crate) async fn resolved(name: &str) -> io::Result<Vec<IpAddr>> {
    let resolver = TokioResolver::builder_tokio().and_then(|builder| builder.build());
    match resolver.map_err(io::Error::other)?.lookup_ip(name).await {
        Ok(found) => Ok(found.iter().collect()),
        Err(error) if error.is_nx_domain() || error.is_no_records_found() => Ok(Vec::new()),
        Err(error) => Err(io::Error::other(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_host_without_an_address_is_named() {
        // What ends so has none, and no server is asked for it (RFC 6761).
        let error = connect("box.invalid", 80).await.unwrap_err();
        assert_eq!(error.to_string(), "no address is known for `box.invalid`");
    }
}
