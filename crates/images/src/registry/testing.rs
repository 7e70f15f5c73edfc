//! A registry that is made here, honest or not, and a store that pulls from it.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;

use super::*;
use crate::digest::ImageDigest;
use crate::manifest::{OCI_CONFIG, OCI_LAYER, OCI_MANIFEST};
use crate::progress::NoProgress;
use crate::store::{IdNamespace, ImageStore};
use crate::tar::testing::TarBuilder;
use crate::unpack::LayerOwnership;
use crate::{ImageProgress, PullOrder, PulledImage};

/// A request as it came.
#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) headers: HashMap<String, String>,
}

/// An answer, and how it ends.
#[derive(Debug, Clone)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
    /// After so many bytes of the body …
    pub(super) ends_at: usize,
    /// … nothing comes any more, or the connection is closed.
    pub(super) stalls: bool,
}

impl Answer {
    pub(super) fn ok(body: impl Into<Vec<u8>>) -> Self {
        Self::status(200, body)
    }

    pub(super) fn status(status: u16, body: impl Into<Vec<u8>>) -> Self {
        let body = body.into();
        Self {
            status,
            headers: Vec::new(),
            ends_at: body.len(),
            body,
            stalls: false,
        }
    }

    pub(super) fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.headers.push((name.to_owned(), value.to_string()));
        self
    }

    fn send(&self, stream: &mut TcpStream, is_head: bool) -> std::io::Result<()> {
        let mut head = format!("HTTP/1.1 {} X\r\nConnection: close\r\n", self.status);
        if !self.headers.iter().any(|(name, _)| name == "Transfer-Encoding") {
            head += &format!("Content-Length: {}\r\n", self.body.len());
        }
        for (name, value) in &self.headers {
            head += &format!("{name}: {value}\r\n");
        }
        // Else the body waits for the head to be acknowledged.
        stream.set_nodelay(true)?;
        stream.write_all(format!("{head}\r\n").as_bytes())?;
        if is_head {
            return stream.flush();
        }
        stream.write_all(&self.body[..self.ends_at])?;
        stream.flush()?;
        if self.stalls {
            std::thread::sleep(Duration::from_secs(5));
        }
        Ok(())
    }
}

pub(super) type Handler = dyn Fn(&Request, usize) -> Answer + Send + Sync;

/// A server on loopback, which ends with the process.
pub(super) struct Server {
    pub(super) port: u16,
    pub(super) seen: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    /// `handler` is told how often the same path was asked for before.
    pub(super) fn start(handler: impl Fn(&Request, usize) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (all, handler): (_, Arc<Handler>) = (Arc::clone(&seen), Arc::new(handler));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (all, handler) = (Arc::clone(&all), Arc::clone(&handler));
                std::thread::spawn(move || serve(stream, &all, &*handler));
            }
        });
        Self { port, seen }
    }

    pub(super) fn paths(&self) -> Vec<String> {
        self.seen
            .lock()
            .unwrap()
            .iter()
            .map(|request| request.path.clone())
            .collect()
    }
}

fn serve(mut stream: TcpStream, all: &Mutex<Vec<Request>>, handler: &Handler) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut line = String::new();
    if reader.read_line(&mut line).unwrap_or(0) == 0 {
        return;
    }
    let mut words = line.split(' ').map(str::to_owned);
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 || line == "\r\n" {
            break;
        }
        if let Some((name, value)) = line.trim_end().split_once(": ") {
            headers.insert(name.to_lowercase(), value.to_owned());
        }
    }
    if let Some(length) = headers.get("content-length").and_then(|length| length.parse().ok()) {
        let mut body = vec![0; length];
        let _read = reader.read_exact(&mut body);
    }
    let is_head = method == "HEAD";
    let request = Request { method, path, headers };
    let times = {
        let mut all = all.lock().unwrap();
        all.push(request.clone());
        all.iter().filter(|other| other.path == request.path).count() - 1
    };
    let _sent = handler(&request, times).send(&mut stream, is_head);
}

/// An image with one layer.
#[derive(Clone)]
pub(super) struct Image {
    pub(super) manifest: Vec<u8>,
    pub(super) config: Vec<u8>,
    pub(super) layer: Vec<u8>,
}

impl Image {
    pub(super) fn new() -> Self {
        let noise: Vec<u8> = (0..100_000_u32)
            .flat_map(|number| number.wrapping_mul(0x9e37_79b9).to_le_bytes())
            .collect();
        let layer = TarBuilder::default().file("bin/tool", &noise).end();
        let config = json!({
            "architecture": offleash_core::processor::ImagePlatform::OURS.architecture, "os": "linux",
            "rootfs": { "type": "layers", "diff_ids": [ImageDigest::of(&layer)] },
        });
        Self::of(config.to_string().into_bytes(), layer)
    }

    pub(super) fn of(config: Vec<u8>, layer: Vec<u8>) -> Self {
        let part = |kind: &str, bytes: &[u8]| json!({ "mediaType": kind, "digest": ImageDigest::of(bytes), "size": bytes.len() });
        let manifest = json!({
            "schemaVersion": 2, "mediaType": OCI_MANIFEST,
            "config": part(OCI_CONFIG, &config), "layers": [part(OCI_LAYER, &layer)],
        });
        Self {
            manifest: manifest.to_string().into_bytes(),
            config,
            layer,
        }
    }

    pub(super) fn layer_path(&self) -> String {
        format!("/v2/a/b/blobs/{}", ImageDigest::of(&self.layer))
    }

    /// What an honest registry answers.
    pub(super) fn answer(&self, request: &Request) -> Answer {
        let config = format!("/v2/a/b/blobs/{}", ImageDigest::of(&self.config));
        let by_digest = format!("/v2/a/b/manifests/{}", ImageDigest::of(&self.manifest));
        let path = request.path.as_str();
        if path == "/v2/a/b/manifests/t" || path == by_digest {
            return Answer::ok(&*self.manifest).with("Content-Type", OCI_MANIFEST);
        }
        if path == config {
            return Answer::ok(&*self.config);
        }
        if path == self.layer_path() {
            let from = request
                .headers
                .get("range")
                .and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
            return match from {
                Some(from) => {
                    let whole = self.layer.len();
                    let rest = &self.layer[from..];
                    Answer::status(206, rest).with("Content-Range", format!("bytes {from}-{}/{whole}", whole - 1))
                }
                None => Answer::ok(&*self.layer),
            };
        }
        Answer::status(
            404,
            r#"{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}"#,
        )
    }
}

pub(super) struct NoIds;

impl IdNamespace for NoIds {
    fn run(&self, _: &mut dyn FnMut() -> std::io::Result<()>) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        Err("not here".into())
    }
}

pub(super) struct Site {
    pub(super) directory: tempfile::TempDir,
    pub(super) store: ImageStore,
    pub(super) settings: RegistrySettings,
}

impl Site {
    pub(super) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = ImageStore::at(&directory.path().join("images")).unwrap();
        let settings = RegistrySettings {
            plain_http: true,
            first_pause: Duration::from_millis(1),
            ..RegistrySettings::default()
        };
        Self {
            directory,
            store,
            settings,
        }
    }

    pub(super) fn pull_as(&self, name: &str, progress: &dyn ImageProgress) -> Result<PulledImage, ImageError> {
        let order = PullOrder {
            settings: self.settings.clone(),
            ownership: LayerOwnership::Flat,
            kept: None,
        };
        self.store.pull(&name.parse().unwrap(), &order, &NoIds, progress)
    }

    pub(super) fn pull(&self, server: &Server) -> Result<PulledImage, ImageError> {
        self.pull_as(&format!("localhost:{}/a/b:t", server.port), &NoProgress)
    }

    pub(super) fn is_whole(&self, image: &Image) {
        let listed = self.store.list().unwrap();
        assert_eq!(listed.len(), 1);
        assert_eq!(listed[0].record.digest, ImageDigest::of(&image.manifest));
        let opened = self.store.open_image(
            &listed[0].record.digest.hex(),
            LayerOwnership::Flat,
            &NoIds,
            &NoProgress,
        );
        let opened = opened.unwrap();
        assert_eq!(
            std::fs::metadata(opened.layers[0].join("bin/tool")).unwrap().len(),
            400_000
        );
    }

    /// Nothing has a name, and nothing is half there under one.
    pub(super) fn is_empty(&self) {
        assert!(self.store.list().unwrap().is_empty());
        self.store.prune(false, &NoIds).unwrap();
        for name in ["blobs", "partial", "references"] {
            let left = std::fs::read_dir(self.store.path.join(name)).unwrap().count();
            assert_eq!(left, 0, "{name}");
        }
        for entry in std::fs::read_dir(self.store.path.join("layers/flat")).unwrap() {
            assert_eq!(entry.unwrap().file_name(), ".unpacking");
        }
    }
}
