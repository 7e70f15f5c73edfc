//! A connection whose requests are judged one by one: what comes before the first of them.

use offleash_core::network::SpokenProtocol;

use super::{Session, Stopped};
use crate::http;
use crate::http_head::Scheme;
use crate::opened::{self, Destination};
use crate::policy::Policy;
use crate::proxy_request::Way;

impl Session<'_> {
    /// Finds out whether it has TLS, and judges the requests on it.
    pub(super) async fn opened(&mut self, protocol: SpokenProtocol) -> Result<(), Stopped> {
        let decision = self.shared.policy.decide(&self.host, self.port);
        let clear_is_meant = Policy::clear_is_meant(&decision, self.port);
        let read = std::mem::take(&mut self.read);
        let (scheme, read) = match &self.way {
            Some(Way::Request { .. }) if protocol == SpokenProtocol::Tls => {
                return Err(Stopped::Refused("it is not TLS".to_owned()));
            }
            // What is asked of a proxy as a request is one.
            Some(Way::Request { .. }) => (Scheme::Http, read),
            _ => self.begun(protocol, read).await?,
        };
        let to = Destination {
            host: self.host.clone(),
            port: self.port,
            scheme,
            clear_is_meant,
        };
        // Latency counts more than packets; it is the sandbox's own side that gathers.
        let _ = self.client.set_nodelay(true);
        opened::serve(self.shared, to, &self.seen, &mut self.client, &self.counts, read).await
    }

    /// Whether it has TLS, whose greeting is then read and checked, and what was read.
    async fn begun(&mut self, protocol: SpokenProtocol, mut read: Vec<u8>) -> Result<(Scheme, Vec<u8>), Stopped> {
        let has_tls = match protocol {
            SpokenProtocol::Tls => true,
            SpokenProtocol::Http => false,
            SpokenProtocol::Auto | SpokenProtocol::Tcp => {
                if read.is_empty() {
                    self.read_more(&mut read).await?;
                }
                http::looks_like(&read) == http::Looks::Tls
            }
        };
        if !has_tls {
            return Ok((Scheme::Http, read));
        }
        let (hello, read) = self.greeting(read).await?;
        self.check_greeting(&hello)?;
        Ok((Scheme::Https, read))
    }
}
