//! The library behind the judge reads the requests that were judged, and no other.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use http::{Request, Response, Uri};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use proptest::prelude::*;

use super::*;
use crate::http_body::BodyReader;
use crate::http_head::{Body, Progress, RequestHeadReader};
use crate::http_requests::tests::spoilt;
use crate::opened::exchange::wants_websocket;

/// What comes in these parts, and then no more; what is answered.
#[derive(Debug, Default)]
struct Parts(VecDeque<Vec<u8>>, Vec<u8>);

impl AsyncRead for Parts {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if let Some(mut part) = self.0.pop_front() {
            let rest = part.split_off(part.len().min(into.remaining()));
            if !rest.is_empty() {
                self.0.push_front(rest);
            }
            into.put_slice(&part);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Parts {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.1.extend(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// A request as it was understood.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Understood {
    method: String,
    target: String,
    /// Names and values in the order of the names.
    fields: Vec<(String, Vec<u8>)>,
    content: Vec<u8>,
}

/// The requests that the library reads of these parts, and why it was given no more.
async fn read_behind_the_judge(parts: Vec<Vec<u8>>) -> (Vec<Understood>, Option<RequestError>) {
    let framing = Rc::<Framing>::default();
    let understood = Rc::<RefCell<Vec<Understood>>>::default();
    let (telling, reading) = (Rc::clone(&framing), Rc::clone(&understood));
    let service = service_fn(move |request: Request<Incoming>| {
        let (framing, understood) = (Rc::clone(&telling), Rc::clone(&reading));
        async move {
            if framing.refused_for(request.method()).is_none() {
                let asks = wants_websocket(&request);
                let (parts, body) = request.into_parts();
                if let Ok(body) = body.collect().await {
                    let fields = parts.headers.iter();
                    let mut fields: Vec<_> = fields
                        .map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()))
                        .collect();
                    fields.sort();
                    understood.borrow_mut().push(Understood {
                        method: parts.method.to_string(),
                        target: parts.uri.to_string(),
                        fields,
                        content: body.to_bytes().to_vec(),
                    });
                }
                if asks {
                    framing.stays_http();
                }
            }
            Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
        }
    });
    let stream = JudgedStream::new(Parts(parts.into(), Vec::new()), Scheme::Http, Rc::clone(&framing));
    let served = http1::Builder::new()
        .half_close(true)
        .serve_connection(TokioIo::new(stream), service);
    // How it ends was judged by what it has read.
    let _ = tokio::time::timeout(Duration::from_secs(60), served).await.unwrap();
    (understood.take(), framing.refused())
}

/// The content of a body in chunks that was judged.
fn unchunked(mut body: &[u8]) -> Vec<u8> {
    let mut content = Vec::new();
    loop {
        let end = body.windows(2).position(|two| two == b"\r\n").unwrap();
        let size = std::str::from_utf8(&body[..end]).unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            return content;
        }
        content.extend(&body[end + 2..end + 2 + size]);
        body = &body[end + 4 + size..];
    }
}

/// The requests that the judge has passed whole, whether each lets another follow, and why there are no more.
fn judged(bytes: &[u8]) -> (Vec<(Understood, bool)>, Option<RequestError>) {
    let mut requests = Vec::new();
    let mut at = 0;
    loop {
        let head = match RequestHeadReader::new(Scheme::Http).read(&bytes[at..]) {
            Progress::Head(head) => head,
            Progress::NeedMore => return (requests, None),
            Progress::NotHttp => return (requests, Some(RequestError::NotHttp)),
            Progress::Invalid(error) => return (requests, Some(error.into())),
        };
        let text = |range: &std::ops::Range<usize>| &bytes[at..][range.clone()];
        let mut fields: Vec<_> = head
            .fields
            .iter()
            .map(|field| {
                let name = String::from_utf8(text(&field.name).to_ascii_lowercase()).unwrap();
                (name, text(&field.value).to_vec())
            })
            .collect();
        fields.sort();
        let line = bytes[at..].split(|byte| *byte == b'\r').next().unwrap();
        let target = line.split(|byte| *byte == b' ').nth(1).unwrap();
        let target = String::from_utf8(target.to_vec()).unwrap();
        at += head.length;
        let taken = match BodyReader::new(head.body).read(&bytes[at..]) {
            Ok(taken) if taken.ended => taken,
            Ok(_) => return (requests, None),
            Err(error) => return (requests, Some(error.into())),
        };
        let body = &bytes[at..at + taken.length];
        at += taken.length;
        let content = match head.body {
            Body::Chunked => unchunked(body),
            Body::None | Body::Length(_) => body.to_vec(),
        };
        requests.push((
            Understood {
                method: head.method.clone(),
                target,
                fields,
                content,
            },
            head.keep_alive,
        ));
    }
}

fn run<T>(reading: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.unwrap().block_on(reading)
}

proptest! {
    #[test]
    fn n9_what_is_judged_is_what_the_library_reads(
        bytes in spoilt(),
        lengths in prop::collection::vec(1..200_usize, 0..12),
    ) {
        let mut rest = bytes.as_slice();
        let mut parts = Vec::new();
        for length in lengths {
            let (part, more) = rest.split_at(length.min(rest.len()));
            parts.push(part.to_vec());
            rest = more;
        }
        parts.push(rest.to_vec());
        // An empty part would be the end.
        parts.retain(|part| !part.is_empty());
        let (read, refused) = run(read_behind_the_judge(parts));
        let (judged, why) = judged(&bytes);
        for (number, read) in read.iter().enumerate() {
            prop_assert_eq!(Some(read), judged.get(number).map(|(judged, _)| judged));
        }
        // Behind the last request of a connection nothing is read, and nothing behind what is no URI to the library.
        let stopped_early = match judged.get(read.len()) {
            Some((next, _)) => next.target.parse::<Uri>().is_err() || judged[..read.len()].iter().any(|(_, on)| !on),
            None => judged.iter().any(|(_, on)| !on),
        };
        prop_assert!(stopped_early || read.len() == judged.len(), "{read:?} {judged:?}");
        prop_assert!(stopped_early || refused == why, "{refused:?} {why:?}");
    }
}

#[test]
fn large_heads_and_bodies_pass_through_small_buffers() {
    let long = "x".repeat(40_000);
    let head = format!("POST /{long} HTTP/1.1\r\nHost: a.example\r\nContent-Length: 100000\r\n\r\n");
    let bytes = [head.as_bytes(), &[b'y'; 100_000]].concat().repeat(3);
    for size in [997, 16 * 1024, bytes.len()] {
        let parts = bytes.chunks(size).map(<[u8]>::to_vec).collect();
        let (read, refused) = run(read_behind_the_judge(parts));
        assert_eq!(read.len(), 3);
        assert!(read.iter().all(|one| one.content == [b'y'; 100_000]));
        assert_eq!(refused, None);
    }
}
