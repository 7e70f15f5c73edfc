//! What a browser answers over HTTP: where its WebSocket is, and which pages it has.

use std::time::Duration;

use bytes::Bytes;
use data_encoding::BASE64;
use http::header::{CONNECTION, HOST, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE};
use http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::client::conn::http1;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

use crate::bounds::{MAX_ANSWER, MAX_PAGES, MAX_TEXT};
use crate::error::BrowserError;

/// How long an answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The most that the head of an answer may have, and fields in it.
const MAX_HEAD: usize = 16 * 1024;
const MAX_FIELDS: usize = 50;
/// What a path of a browser begins with, and how long the rest may be.
const PREFIX: &str = "/devtools/browser/";
const MAX_ID: usize = 128;
/// By this name browsers answer: names of others are refused there, since pages can point them anywhere.
const LOCAL: &str = "localhost";

/// Where the WebSocket of a browser is: a path on its port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointPath(String);

/// A page of a browser, as the browser tells of it: texts are cut, and nobody's to trust.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PageInfo {
    /// Its id.
    pub id: String,
    /// Its title.
    pub title: String,
    /// Its address.
    pub url: String,
    /// Where its picture is.
    pub favicon_url: String,
    /// As in `page`.
    #[serde(rename = "type")]
    pub kind: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct VersionAnswer {
    web_socket_debugger_url: String,
}

impl EndpointPath {
    /// The path, which has letters, digits and `-` alone behind its beginning.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The path of such an address.
    fn of_url(url: &str) -> Option<Self> {
        let uri: Uri = url.parse().ok()?;
        let id = uri.path().strip_prefix(PREFIX)?;
        let is_plain = id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        (is_plain && (1..=MAX_ID).contains(&id.len())).then(|| Self(uri.path().to_owned()))
    }
}

/// Asks the browser at the other end of `stream` where its WebSocket is.
///
/// # Errors
/// `Unreachable`, `Malformed`, `Timeout`.
pub async fn browser_path<S>(stream: S) -> Result<EndpointPath, BrowserError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    const ASKED: &str = "/json/version";
    let body = get(stream, ASKED).await?;
    let answer: Option<VersionAnswer> = serde_json::from_slice(&body).ok();
    let path = answer.and_then(|answer| EndpointPath::of_url(&answer.web_socket_debugger_url));
    path.ok_or(BrowserError::Malformed { asked: ASKED })
}

/// Asks the browser at the other end of `stream` which pages it has, of which [`MAX_PAGES`] are told.
///
/// # Errors
/// `Unreachable`, `Malformed`, `Timeout`.
pub async fn pages<S>(stream: S) -> Result<Vec<PageInfo>, BrowserError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    const ASKED: &str = "/json/list";
    let body = get(stream, ASKED).await?;
    let all: Vec<PageInfo> = serde_json::from_slice(&body).map_err(|_| BrowserError::Malformed { asked: ASKED })?;
    let pages = all.into_iter().filter(|page| page.kind == "page").take(MAX_PAGES);
    Ok(pages.map(PageInfo::cut).collect())
}

impl PageInfo {
    fn cut(self) -> Self {
        Self {
            id: cut(&self.id),
            title: cut(&self.title),
            url: cut(&self.url),
            favicon_url: cut(&self.favicon_url),
            kind: cut(&self.kind),
        }
    }
}

/// The first [`MAX_TEXT`] characters.
pub(crate) fn cut(text: &str) -> String {
    text.chars().take(MAX_TEXT).collect()
}

fn request(path: &str) -> http::request::Builder {
    Request::builder().uri(path).header(HOST, LOCAL)
}

async fn handshake<S>(stream: S) -> Result<http1::SendRequest<Empty<Bytes>>, BrowserError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = http1::Builder::new()
        .max_buf_size(MAX_HEAD)
        .max_headers(MAX_FIELDS)
        .handshake(TokioIo::new(stream))
        .await?;
    // It ends with the answer, or with the sender.
    tokio::spawn(connection.with_upgrades());
    Ok(sender)
}

async fn get<S>(stream: S, asked: &'static str) -> Result<Bytes, BrowserError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let malformed = || BrowserError::Malformed { asked };
    let answered = async {
        let mut sender = handshake(stream).await?;
        let request = request(asked).body(Empty::new()).map_err(|_| malformed())?;
        let response = sender.send_request(request).await?;
        if response.status() != StatusCode::OK {
            return Err(malformed());
        }
        let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
        Ok(body.map_err(|_| malformed())?.to_bytes())
    };
    timeout(ANSWER_TIMEOUT, answered)
        .await
        .unwrap_or(Err(BrowserError::Timeout { asked }))
}

/// Has the browser at the other end of `stream` speak WebSocket.
///
/// What it shows for having understood is not looked at: whoever answers is the sandbox, whatever it shows.
pub(crate) async fn upgraded<S>(stream: S, path: &EndpointPath) -> Result<TokioIo<Upgraded>, BrowserError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    const ASKED: &str = "a WebSocket";
    let malformed = || BrowserError::Malformed { asked: ASKED };
    let mut key = [0; 16];
    let filled = rustix::rand::getrandom(&mut key[..], rustix::rand::GetRandomFlags::empty());
    if filled != Ok(key.len()) {
        return Err(BrowserError::Random);
    }
    let answered = async {
        let mut sender = handshake(stream).await?;
        let request = request(path.as_str())
            .header(CONNECTION, "Upgrade")
            .header(UPGRADE, "websocket")
            .header(SEC_WEBSOCKET_VERSION, "13")
            .header(SEC_WEBSOCKET_KEY, BASE64.encode(&key))
            .body(Empty::new())
            .map_err(|_| malformed())?;
        let response = sender.send_request(request).await?;
        match response.status() {
            StatusCode::SWITCHING_PROTOCOLS => Ok(TokioIo::new(hyper::upgrade::on(response).await?)),
            _ => Err(malformed()),
        }
    };
    timeout(ANSWER_TIMEOUT, answered)
        .await
        .unwrap_or(Err(BrowserError::Timeout { asked: ASKED }))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    fn run<T>(work: impl Future<Output = T>) -> T {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_time().start_paused(true).build().unwrap().block_on(work)
    }

    /// What comes of asking somebody who answers with `text`, and then stays.
    fn asked(text: String) -> Result<EndpointPath, BrowserError> {
        run(async {
            let (ours, mut theirs) = tokio::io::duplex(4096);
            tokio::spawn(async move {
                let mut head = [0; 1024];
                let _read = theirs.read(&mut head).await;
                let _written = theirs.write_all(text.as_bytes()).await;
                std::future::pending::<()>().await;
            });
            browser_path(ours).await
        })
    }

    fn answer(body: &str) -> String {
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    }

    #[test]
    fn a_browser_says_where_its_web_socket_is() {
        let told = answer(r#"{"Browser": "x", "webSocketDebuggerUrl": "ws://localhost:9222/devtools/browser/a-1"}"#);
        assert_eq!(asked(told).unwrap().as_str(), "/devtools/browser/a-1");
    }

    #[test]
    fn a_path_leads_to_the_browser_and_nowhere_else() {
        for url in [
            "ws://h/devtools/browser/",
            "ws://h/devtools/page/a",
            "ws://h/devtools/browser/../a",
            "ws://h/devtools/browser/a%20b",
            "ws://h/devtools/browser/a b",
            "\u{7f}",
            &format!("ws://h/devtools/browser/{}", "a".repeat(129)),
        ] {
            assert_eq!(EndpointPath::of_url(url), None, "{url}");
        }
    }

    #[test]
    fn whoever_lies_floods_or_says_nothing_is_no_browser() {
        let malformed = |text: String| matches!(asked(text), Err(BrowserError::Malformed { .. }));
        assert!(malformed(answer("{}")) && malformed(answer("[")));
        assert!(malformed(answer(&"x".repeat(MAX_ANSWER + 1))));
        assert!(malformed("HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n".to_owned()));
        assert!(matches!(asked(String::new()), Err(BrowserError::Timeout { .. })));
        let flood = format!("HTTP/1.1 200 OK\r\nA: {}\r\n\r\n", "x".repeat(MAX_HEAD));
        assert!(matches!(asked(flood), Err(BrowserError::Unreachable(_))));
    }

    #[test]
    fn texts_of_pages_are_cut() {
        let page = PageInfo {
            title: "é".repeat(MAX_TEXT + 1),
            ..PageInfo::default()
        };
        assert_eq!(page.cut().title.chars().count(), MAX_TEXT);
    }
}
