//! A connection that can be cut: its end is a reset, which no client takes for an end in good order.
//!
//! E2B's proxy does the same when a sandbox is gone in the middle of an answer, and SDKs look whether it is only then.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::net::TcpStream;

use crate::http::watched::{StreamWatch, WatchedStream};

/// Says that a connection is to be cut once nobody holds it any more.
#[derive(Debug, Clone, Default)]
pub(crate) struct CutOrder(Arc<AtomicBool>);

impl CutOrder {
    pub(crate) fn order(&self) {
        self.0.store(true, Ordering::Release);
    }
}

/// A connection that can be cut.
pub(crate) type CuttableStream = WatchedStream<TcpStream, CutOrder>;

impl StreamWatch<TcpStream> for CutOrder {
    fn closes(&mut self, stream: &TcpStream) {
        if self.0.load(Ordering::Acquire) {
            // Without it, it ends as every other one.
            let _set = rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn what_is_cut_is_reset_after_what_was_sent() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            for is_cut in [true, false] {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
                let cut = CutOrder::default();
                let mut server = CuttableStream::new(listener.accept().await.unwrap().0, cut.clone());
                server.write_all(b"said").await.unwrap();
                let mut said = [0; 4];
                client.read_exact(&mut said).await.unwrap();
                if is_cut {
                    cut.order();
                }
                drop(server);
                let end = client.read(&mut said).await.map_err(|error| error.kind());
                let expected = if is_cut {
                    Err(io::ErrorKind::ConnectionReset)
                } else {
                    Ok(0)
                };
                assert_eq!(end, expected);
            }
        });
    }
}
