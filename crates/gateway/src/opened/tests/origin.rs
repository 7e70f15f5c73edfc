//! The server that the tests ask.

use super::*;

/// What a server did.
#[derive(Debug, Default)]
pub(super) struct Met {
    pub(super) connections: Cell<usize>,
    pub(super) requests: Cell<usize>,
    pub(super) answering: Cell<usize>,
    pub(super) most_answering: Cell<usize>,
    pub(super) open: Cell<usize>,
    pub(super) most_open: Cell<usize>,
    /// All that one was sent which does not know HTTP.
    pub(super) heard: RefCell<Vec<u8>>,
}

/// A request that is being answered.
struct Answering(Rc<Met>);

impl Answering {
    fn begin(met: &Rc<Met>) -> Self {
        met.requests.set(met.requests.get() + 1);
        met.answering.set(met.answering.get() + 1);
        met.most_answering
            .set(met.most_answering.get().max(met.answering.get()));
        Self(Rc::clone(met))
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.answering.set(self.0.answering.get() - 1);
    }
}

/// A server that says what it was asked, on connections of which each ends after `most` requests.
pub(super) async fn server(protocol: &'static [u8], internet: Arc<GatewayTrust>, met: Rc<Met>, most: usize) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let host: Host = "127.0.0.1".parse().unwrap();
    let config = authority::Leaves::new(internet).unwrap().config(&host).unwrap();
    let mut config = Arc::unwrap_or_clone(config);
    config.alpn_protocols = vec![protocol.to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    spawn_local(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (acceptor, met) = (acceptor.clone(), Rc::clone(&met));
            spawn_local(async move {
                let Ok(stream) = acceptor.accept(stream).await else {
                    return;
                };
                met.connections.set(met.connections.get() + 1);
                met.open.set(met.open.get() + 1);
                met.most_open.set(met.most_open.get().max(met.open.get()));
                let asked = Rc::new(Cell::new(0));
                let (counting, answering) = (Rc::clone(&asked), Rc::clone(&met));
                let service = service_fn(move |request| {
                    counting.set(counting.get() + 1);
                    let answering = Answering::begin(&answering);
                    async move {
                        let _until_it_is_answered = answering;
                        echo(request).await
                    }
                });
                let stream = TokioIo::new(stream);
                if protocol == HTTP2 {
                    let builder = hyper::server::conn::http2::Builder::new(LocalExecutor);
                    let _ = builder.serve_connection(stream, service).await;
                } else {
                    let mut connection = hyper::server::conn::http1::Builder::new().serve_connection(stream, service);
                    // It hangs up without saying so before.
                    std::future::poll_fn(|context| {
                        let ended = Pin::new(&mut connection).poll(context);
                        if asked.get() >= most && ended.is_pending() {
                            Pin::new(&mut connection).graceful_shutdown();
                        }
                        ended.map(drop)
                    })
                    .await;
                }
                met.open.set(met.open.get() - 1);
            });
        }
    });
    port
}

async fn echo(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await?;
    let trailers = body.trailers().cloned().unwrap_or_default();
    let trailers: Vec<&str> = trailers.keys().map(http::HeaderName::as_str).collect();
    let cookies = parts.headers.get_all("cookie").iter().count();
    let host = parts.headers.get("host").map(|host| host.to_str().unwrap().to_owned());
    let text = format!(
        "{} {:?} {} authority={:?} host={host:?} cookies={cookies} bytes={} trailers={trailers:?}",
        parts.method,
        parts.version,
        parts.uri.path_and_query().unwrap(),
        parts.uri.authority().map(ToString::to_string),
        body.to_bytes().len(),
    );
    let is_head = parts.method == http::Method::HEAD;
    Ok(Response::new(Full::new(Bytes::from(if is_head {
        String::new()
    } else {
        text
    }))))
}
