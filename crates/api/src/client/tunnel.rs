//! Ports of a sandbox at ports of this machine: each connection is carried to a program inside.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::header::{CONNECTION, UPGRADE};
use http::{Method, Request};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use offleash_core::error::{ErrorKind, Explained as _};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use super::{Client, ClientError, SandboxServices, encoded, transport};
use crate::http::body;
use crate::traffic::tunnel::PROTOCOL;

/// Connections that are carried at once; more wait to be taken.
const MAX_CONNECTIONS: usize = 512;

/// A connection to a program in a sandbox.
#[derive(Debug)]
pub struct Tunnel(TokioIo<Upgraded>);

impl AsyncRead for Tunnel {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Tunnel {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

impl SandboxServices {
    /// Connects to a port inside.
    ///
    /// # Errors
    /// `Refused` with `Unavailable` when nobody listens there, or the sandbox is not there any more.
    pub async fn tunnel(&self, port: u16) -> Result<Tunnel, ClientError> {
        let path = format!("/v1/sandboxes/{}/ports/{port}", encoded(&self.target.id));
        let request = Request::builder()
            .method(Method::GET)
            .uri(&path)
            .header("host", "localhost")
            .header(CONNECTION, "upgrade")
            .header(UPGRADE, PROTOCOL)
            .body(body::empty());
        let request = transport::built(request, &path)?;
        // Each has a connection of its own, which is nothing else afterwards.
        let transport = self.transport.for_another_loop();
        let upgraded = transport.become_other(request, &path).await?;
        Ok(Tunnel(TokioIo::new(upgraded)))
    }
}

/// What there is to tell of ports that are forwarded.
#[derive(Debug)]
pub enum ForwardNews {
    /// A connection was not carried, or broke off.
    Failed {
        /// The port inside.
        port: u16,
        /// Why.
        error: ClientError,
    },
}

impl Client {
    /// Carries connections to `listeners` to the ports of the sandbox `id` that stand beside them, until `end` is over. What goes
    /// wrong with one is told and ends no other; that the sandbox has ended ends all.
    ///
    /// # Errors
    /// `Local` when a listener cannot be used; `Ended` and others of [`Self::running`] once the sandbox is gone.
    pub fn forward(
        &self,
        id: &str,
        listeners: Vec<(std::net::TcpListener, u16)>,
        end: impl Future<Output = ()>,
        mut tell: impl FnMut(ForwardNews),
    ) -> Result<(), ClientError> {
        let services = self.services(id, None)?;
        let (send, mut failures) = mpsc::channel(1);
        let outcome = self.runtime.block_on(async {
            let mut accepting = tokio::task::JoinSet::new();
            for (listener, port) in listeners {
                let failed = |source| ClientError::Local {
                    tried: "listen for connections".to_owned(),
                    source,
                };
                listener.set_nonblocking(true).map_err(failed)?;
                let listener = TcpListener::from_std(listener).map_err(failed)?;
                accepting.spawn(accept(listener, port, services.clone(), send.clone()));
            }
            tokio::pin!(end);
            loop {
                tokio::select! {
                    () = &mut end => return Ok(None),
                    Some((port, error)) = failures.recv() => {
                        // A port that nobody listens on may be listened on later.
                        let is_over = matches!(error.kind(), ErrorKind::NotFound)
                            || error.to_string().contains("was not found");
                        tell(ForwardNews::Failed { port, error });
                        if is_over {
                            return Ok(Some(()));
                        }
                    }
                }
            }
        })?;
        match outcome {
            // Asked by itself: it says why.
            Some(()) => self.running(id).map(drop),
            None => Ok(()),
        }
    }
}

async fn accept(
    listener: TcpListener,
    port: u16,
    services: SandboxServices,
    failures: mpsc::Sender<(u16, ClientError)>,
) {
    let places = std::sync::Arc::new(tokio::sync::Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(place) = std::sync::Arc::clone(&places).acquire_owned().await else {
            return;
        };
        let Ok((stream, _)) = listener.accept().await else {
            // Too many descriptors: some will be free again.
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            continue;
        };
        let (services, failures) = (services.clone(), failures.clone());
        tokio::spawn(async move {
            if let Err(error) = carry(stream, port, &services).await {
                let _nobody_listens = failures.send((port, error)).await;
            }
            drop(place);
        });
    }
}

async fn carry(mut stream: TcpStream, port: u16, services: &SandboxServices) -> Result<(), ClientError> {
    // Not being able to is being slower.
    let _set = stream.set_nodelay(true);
    let mut tunnel = services.tunnel(port).await?;
    // How a connection ends is told by the programs at both ends.
    let _carried = copy_bidirectional(&mut stream, &mut tunnel).await;
    Ok(())
}

/// Listens at a port of the loopback; 0 is any that is free.
///
/// # Errors
/// When it cannot be listened at.
pub fn listen(port: u16) -> io::Result<(std::net::TcpListener, SocketAddr)> {
    let listener = std::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, port))?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}
