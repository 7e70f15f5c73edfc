//! The way into a sandbox for connections from outside: sockets of its network, made as they are needed.
//!
//! See `sys::network::entrance` for how that is possible, and why no descriptor comes from inside and none goes there.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use offleash_sys::network::{EntranceSockets, entrance};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Mutex, mpsc};
use tokio::task::{AbortHandle, spawn_local};
use tokio::time::{sleep, timeout};

/// How long a socket may take to be made; code inside that keeps knocking at the entrance can delay it.
const MAKE: Duration = Duration::from_secs(5);
/// How long a program inside may take to accept a connection: its queue may be full.
const CONNECT: Duration = Duration::from_secs(10);

/// The ways into one sandbox.
#[derive(Debug, Default)]
pub(crate) struct Entrances(Vec<Way>);

impl Entrances {
    /// To be called on the event loop.
    pub(crate) fn new(entrances: Vec<EntranceSockets>) -> io::Result<Self> {
        let families = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
        let ways = entrances.into_iter().zip(families);
        let ways: io::Result<Vec<Way>> = ways.map(|(entrance, loopback)| Way::new(entrance, loopback)).collect();
        ways.map(Self)
    }

    /// Connects to `port` on the sandbox's loopback: 127.0.0.1, and `::1` where nobody listens there.
    pub(crate) async fn connect(&self, port: u16) -> io::Result<TcpStream> {
        let mut last = io::ErrorKind::Unsupported.into();
        for way in &self.0 {
            match way.connect(port).await {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => last = error,
                done => return done,
            }
        }
        Err(last)
    }
}

/// A way in for one family of addresses.
#[derive(Debug)]
struct Way {
    loopback: IpAddr,
    /// One socket at a time is made.
    making: Mutex<Making>,
    accepting: AbortHandle,
}

#[derive(Debug)]
struct Making {
    asking: OwnedFd,
    accepted: mpsc::Receiver<TcpStream>,
}

impl Drop for Way {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Way {
    fn new(entrance: EntranceSockets, loopback: IpAddr) -> io::Result<Self> {
        let listener = TcpListener::from_std(entrance.listener.into())?;
        let (accepts, accepted) = mpsc::channel(1);
        let accepting = spawn_local(accept(listener, EntranceSockets::origin(loopback), accepts)).abort_handle();
        Ok(Self {
            loopback,
            making: Mutex::new(Making {
                asking: entrance.asking,
                accepted,
            }),
            accepting,
        })
    }

    async fn connect(&self, port: u16) -> io::Result<TcpStream> {
        let socket = timeout(MAKE, self.socket()).await??;
        timeout(CONNECT, socket.connect(SocketAddr::new(self.loopback, port))).await?
    }

    /// A socket of the sandbox's network that is connected to nothing.
    async fn socket(&self) -> io::Result<TcpSocket> {
        let mut making = self.making.lock().await;
        // Where the last one was given up before it was finished, it is connected still.
        entrance::disconnect(&making.asking)?;
        let asking = TcpSocket::from_std_stream(making.asking.try_clone()?.into());
        let asked = asking.connect(EntranceSockets::address(self.loopback)).await?;
        let accepted = making.accepted.recv().await.ok_or(io::ErrorKind::BrokenPipe)?;
        // Any that was accepted will do, one of an earlier attempt as well.
        let socket = accepted.into_std()?;
        entrance::disconnect(&socket)?;
        drop(asked);
        entrance::disconnect(&making.asking)?;
        Ok(TcpSocket::from_std_stream(socket))
    }
}

/// Passes on connections from `origin`; everybody else is hung up on at once, so that the queue does not fill.
async fn accept(listener: TcpListener, origin: SocketAddr, accepts: mpsc::Sender<TcpStream>) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) if peer == origin => {
                if accepts.send(stream).await.is_err() {
                    return;
                }
            }
            Ok((stream, _)) => drop(stream),
            Err(_) => sleep(Duration::from_millis(10)).await,
        }
    }
}
