//! The proxy of a network that has no other way out (`CONNECT`, RFC 9110, 9.3.6).

use data_encoding::BASE64;
use offleash_core::network::Host;
use offleash_core::network::upstream_proxy::{ProxyKind, UpstreamProxy, parse_no_proxy};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::address::RegistryAddress;
use super::settings::RegistrySettings;
use crate::error::ImageError;

const MAX_HEAD: usize = 16 << 10;

/// The proxy that the settings name, if there is one.
pub(super) fn of_settings(settings: &RegistrySettings) -> Result<Option<UpstreamProxy>, ImageError> {
    let Some(text) = &settings.proxy else { return Ok(None) };
    let wrong = |reason: String| ImageError::Setting {
        what: "HTTPS_PROXY",
        reason,
    };
    let mut proxy = UpstreamProxy::parse(text).map_err(|error| wrong(error.to_string()))?;
    if proxy.kind != ProxyKind::Http {
        return Err(wrong("images are pulled through proxies of HTTP alone".to_owned()));
    }
    match parse_no_proxy(&settings.no_proxy).map_err(|error| wrong(error.to_string()))? {
        Some(direct) => proxy.direct.extend(direct),
        None => return Ok(None),
    }
    Ok(Some(proxy))
}

/// Whether a host is reached by way of the proxy.
pub(super) fn is_for(proxy: &UpstreamProxy, address: &RegistryAddress) -> bool {
    let host = Host::parse_bytes(address.host().as_bytes());
    !address.is_loopback() && host.is_ok_and(|host| !proxy.spares(&host))
}

/// Asks for a host on a connection to the proxy, which afterwards is one to that host.
pub(super) async fn ask(
    proxy: &UpstreamProxy,
    stream: &mut TcpStream,
    address: &RegistryAddress,
) -> Result<(), String> {
    let host = match address.host() {
        v6 if v6.contains(':') => format!("[{v6}]:{}", address.port()),
        name => format!("{name}:{}", address.port()),
    };
    let credentials = proxy.credentials.as_ref().map_or_else(String::new, |credentials| {
        let plain = format!("{}:{}", credentials.expose_name(), credentials.expose_password());
        format!("Proxy-Authorization: Basic {}\r\n", BASE64.encode(plain.as_bytes()))
    });
    let question = format!("CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n{credentials}\r\n");
    let broken = |error: std::io::Error| format!("the proxy hung up: {error}");
    stream.write_all(question.as_bytes()).await.map_err(broken)?;
    // One byte after another: what follows the head belongs to the host.
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() >= MAX_HEAD {
            return Err("the proxy answered with too long a head".to_owned());
        }
        head.push(stream.read_u8().await.map_err(broken)?);
    }
    let line = String::from_utf8_lossy(&head);
    let status = line.split(' ').nth(1).unwrap_or_default();
    match status.len() == 3 && status.starts_with('2') && line.starts_with("HTTP/1.") {
        true => Ok(()),
        false => Err(format!("the proxy refused with status {}", status.escape_debug())),
    }
}
