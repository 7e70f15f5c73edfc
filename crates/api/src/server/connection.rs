//! One connection of a client: its handshake, its requests, its end.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::process::geteuid;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::cut::{CutOrder, CuttableStream};
use crate::http::body::Body;
use crate::http::clients::{ClientSlot, TooManyClients};
use crate::http::pace::{BusyFlag, paced};
use crate::http::peer::{ClientConnection, ClientPeer};

/// The most that the head of a request may have, and fields in it.
const MAX_HEAD: usize = 64 * 1024;
const MAX_FIELDS: usize = 100;
/// How long a kept connection may be without a further request; SDKs keep theirs for 300 s.
const IDLE: Duration = Duration::from_secs(320);
/// How long a TLS handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long whoever is turned away has to say what for.
const LINGER_TIMEOUT: Duration = Duration::from_secs(2);

/// Whoever is too many is told this; it fits the buffer of any socket.
const FULL: &str = "HTTP/1.1 503 Service Unavailable\r\n\
    Content-Type: application/json\r\nContent-Length: 54\r\nRetry-After: 1\r\nConnection: close\r\n\r\n\
    {\"code\":503,\"message\":\"the server is full of clients\"}";

/// And whoever is too many at one address, this.
const FULL_OF_ADDRESS: &str = "HTTP/1.1 429 Too Many Requests\r\n\
    Content-Type: application/json\r\nContent-Length: 71\r\nRetry-After: 1\r\nConnection: close\r\n\r\n\
    {\"code\":429,\"message\":\"this address has as many connections as it may\"}";

/// Who answers the requests of connections.
pub(crate) trait RequestService: Send + Sync + 'static {
    /// Answers one request.
    fn answer(
        &self,
        client: &ClientConnection,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<Body>> + Send;

    /// What TLS is spoken with; none is spoken if absent.
    fn tls(&self) -> Option<Arc<rustls::ServerConfig>>;
}

/// What a connection holds while it lasts: a slot, and the word that the server ends.
#[derive(Debug)]
pub(crate) struct ConnectionHold {
    pub(crate) place: ClientSlot,
    pub(crate) ending: watch::Receiver<bool>,
}

/// Answers the requests of one connection over TCP.
pub(crate) async fn serve_tcp(
    stream: TcpStream,
    peer: SocketAddr,
    state: Arc<impl RequestService>,
    held: ConnectionHold,
) {
    // Answers are small and awaited; without it they only get later.
    let _set = stream.set_nodelay(true);
    // A client whose machine vanished is found out in the end, however long a stream says nothing.
    let _set = rustix::net::sockopt::set_socket_keepalive(&stream, true);
    let peer = ClientPeer::Anybody(peer);
    let ConnectionHold { place, ending } = held;
    let cut = CutOrder::default();
    let stream = CuttableStream::new(stream, cut.clone());
    let Some(tls) = state.tls() else {
        return speak(stream, &cut, client(peer, false, place), state, ending).await;
    };
    // Who does not speak TLS hears of it from TLS.
    if let Ok(Ok(stream)) = timeout(HANDSHAKE, TlsAcceptor::from(tls).accept(stream)).await {
        speak(stream, &cut, client(peer, true, place), state, ending).await;
    }
}

/// Answers the requests of one connection of the owner's; of nobody else.
pub(crate) async fn serve_local(stream: UnixStream, state: Arc<impl RequestService>, held: ConnectionHold) {
    // The socket's mode keeps others out; this holds when somebody changed it.
    let owner = stream
        .peer_cred()
        .is_ok_and(|peer| peer.uid() == geteuid().as_raw() || peer.uid() == 0);
    if owner {
        let client = client(ClientPeer::Owner, false, held.place);
        speak(stream, &CutOrder::default(), client, state, held.ending).await;
    }
}

fn client(peer: ClientPeer, secure: bool, place: ClientSlot) -> ClientConnection {
    let busy = BusyFlag::default();
    let held = Some(Arc::new(place));
    ClientConnection {
        peer,
        secure,
        busy,
        held,
    }
}

async fn speak<S>(
    stream: S,
    cut: &CutOrder,
    client: ClientConnection,
    state: Arc<impl RequestService>,
    mut ending: watch::Receiver<bool>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let stream = paced(stream, client.busy.clone());
    let service = service_fn(move |request| {
        let (state, client) = (Arc::clone(&state), client.clone());
        async move { Ok::<_, Infallible>(state.answer(&client, request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE)
        .max_headers(MAX_FIELDS)
        .max_header_size(MAX_HEAD)
        .half_close(false)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let mut connection = std::pin::pin!(connection);
    // A client that goes away or sends nonsense ends its connection, and that is all.
    let ended = tokio::select! {
        ended = &mut connection => ended,
        // It changes once.
        _told = ending.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.as_mut().await
        }
    };
    // An answer that is not whole must not look like one that is.
    if ended.is_err_and(|error| error.is_user()) {
        cut.order();
    }
}

/// Tells a client that it is too many, as well as that can be done at once.
pub(crate) async fn turn_away(mut stream: TcpStream, why: TooManyClients, _turn: OwnedSemaphorePermit) {
    let told = match why {
        TooManyClients::Clients(_) => FULL,
        TooManyClients::OfAddress(_) => FULL_OF_ADDRESS,
    };
    let farewell = async {
        stream.write_all(told.as_bytes()).await?;
        stream.shutdown().await?;
        // Closing with a request unread would take the answer back.
        let mut unread = [0; 4096];
        while stream.read(&mut unread).await? > 0 {}
        Ok::<_, std::io::Error>(())
    };
    let _told = timeout(LINGER_TIMEOUT, farewell).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_to_whoever_is_too_many_has_the_length_that_it_says() {
        for text in [FULL, FULL_OF_ADDRESS] {
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            let length = body.len();
            assert!(head.contains(&format!("Content-Length: {length}\r\n")), "{length}");
            assert!(serde_json::from_str::<serde_json::Value>(body).is_ok());
        }
    }
}
