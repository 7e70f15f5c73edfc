//! A connection that can be cut: its end is a reset, which no client takes for an end in good order.
//!
//! E2B's proxy does the same when a sandbox is gone in the middle of an answer, and SDKs look whether it is only then.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Says that a connection is to be cut once nobody holds it any more.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cut(Arc<AtomicBool>);

impl Cut {
    pub(crate) fn order(&self) {
        self.0.store(true, Ordering::Release);
    }
}

/// The connection.
#[derive(Debug)]
pub(crate) struct Cuttable {
    stream: TcpStream,
    cut: Cut,
}

impl Cuttable {
    pub(crate) fn new(stream: TcpStream, cut: Cut) -> Self {
        Self { stream, cut }
    }
}

impl Drop for Cuttable {
    fn drop(&mut self) {
        if self.cut.0.load(Ordering::Acquire) {
            // Without it, it ends as every other one.
            let _set = rustix::net::sockopt::set_socket_linger(&self.stream, Some(Duration::ZERO));
        }
    }
}

impl AsyncRead for Cuttable {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Cuttable {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
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
                let cut = Cut::default();
                let mut server = Cuttable::new(listener.accept().await.unwrap().0, cut.clone());
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
