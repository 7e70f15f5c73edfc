//! A server of S3 that is made here, honest or not, and a volume that is brought to the same with its bucket.

use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use offleash_core::bucket::{BucketSpec, SyncChoice, SyncDirection};
use offleash_core::spec::MountAccess;
use offleash_core::volume::{VolumeKey, VolumeQuota};
use offleash_images::RegistrySettings;
use offleash_store::{HeldVolume, HostIdentity, LOCAL_OWNER, NewVolume, StateDirectory, TransferBudget};

use crate::digests::Digests;
use crate::sync::{SyncOrder, SyncOutcome, sync};

/// How long a client waits for anything that is to see a server stall, and one that is not.
pub(crate) const STALL: Duration = Duration::from_millis(400);
const PATIENCE: Duration = Duration::from_secs(60);

/// A request as it came.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) method: String,
    /// The key, whole; empty for the bucket.
    pub(crate) key: String,
    pub(crate) query: HashMap<String, String>,
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: Vec<u8>,
}

/// An answer, and how it ends.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// After so many bytes of the body …
    pub(crate) ends_at: usize,
    /// … nothing comes any more, or the connection is closed.
    pub(crate) stalls: bool,
}

impl Answer {
    pub(crate) fn status(status: u16, body: impl Into<Vec<u8>>) -> Self {
        let body = body.into();
        Self {
            status,
            headers: Vec::new(),
            ends_at: body.len(),
            body,
            stalls: false,
        }
    }

    pub(crate) fn error(status: u16, code: &str) -> Self {
        Self::status(
            status,
            format!("<Error><Code>{code}</Code><Message>said the server</Message></Error>"),
        )
    }

    pub(crate) fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.headers.push((name.to_owned(), value.to_string()));
        self
    }

    fn send(&self, stream: &mut TcpStream, has_body: bool) -> std::io::Result<()> {
        let mut head = format!("HTTP/1.1 {} X\r\nConnection: close\r\n", self.status);
        if !self.headers.iter().any(|(name, _)| name == "Content-Length") {
            head += &format!("Content-Length: {}\r\n", self.body.len());
        }
        for (name, value) in &self.headers {
            head += &format!("{name}: {value}\r\n");
        }
        stream.write_all(format!("{head}\r\n").as_bytes())?;
        if has_body {
            stream.write_all(&self.body[..self.ends_at])?;
        }
        stream.flush()?;
        if self.stalls {
            std::thread::sleep(STALL * 5);
        }
        Ok(())
    }
}

/// What a server does otherwise than it should; the number counts requests from 0.
pub(crate) type Fault = dyn Fn(&Request, usize) -> Option<Answer> + Send + Sync;

#[derive(Default)]
pub(crate) struct Contents {
    pub(crate) objects: BTreeMap<String, (Vec<u8>, String)>,
    uploads: HashMap<String, BTreeMap<u16, Vec<u8>>>,
    pub(crate) aborted: usize,
    pub(crate) requests: Vec<Request>,
    fault: Option<Arc<Fault>>,
    /// How many objects a page has.
    page: usize,
}

/// A server on loopback, which ends with the process.
pub(crate) struct Server {
    pub(crate) address: String,
    pub(crate) contents: Arc<Mutex<Contents>>,
}

impl Server {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let contents = Arc::new(Mutex::new(Contents {
            page: 1000,
            ..Contents::default()
        }));
        let shared = Arc::clone(&contents);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || serve(stream, &shared));
            }
        });
        Self { address, contents }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap()
    }

    /// Puts an object there, as somebody else does.
    pub(crate) fn put(&self, key: &str, bytes: impl Into<Vec<u8>>) {
        let bytes = bytes.into();
        let tag = tag_of(&bytes);
        self.lock().objects.insert(key.to_owned(), (bytes, tag));
    }

    pub(crate) fn get(&self, key: &str) -> Option<Vec<u8>> {
        self.lock().objects.get(key).map(|(bytes, _)| bytes.clone())
    }

    pub(crate) fn page(&self, objects: usize) {
        self.lock().page = objects;
    }

    pub(crate) fn fault(&self, fault: impl Fn(&Request, usize) -> Option<Answer> + Send + Sync + 'static) {
        self.lock().fault = Some(Arc::new(fault));
    }

    pub(crate) fn no_fault(&self) {
        self.lock().fault = None;
    }

    /// How many requests there were of a method.
    pub(crate) fn count(&self, method: &str) -> usize {
        self.lock()
            .requests
            .iter()
            .filter(|request| request.method == method)
            .count()
    }
}

pub(crate) fn tag_of(bytes: &[u8]) -> String {
    let digest = data_encoding::BASE64
        .decode(Digests::of(bytes).content_md5().as_bytes())
        .unwrap();
    format!("\"{}\"", data_encoding::HEXLOWER.encode(&digest))
}

fn serve(mut stream: TcpStream, contents: &Mutex<Contents>) {
    let Some(request) = read(&stream) else { return };
    let (number, fault) = {
        let mut contents = contents.lock().unwrap();
        contents.requests.push(request.clone());
        (contents.requests.len() - 1, contents.fault.clone())
    };
    let answer = fault.and_then(|fault| fault(&request, number));
    let answer = answer.unwrap_or_else(|| honest(&request, &mut contents.lock().unwrap()));
    let _sent = answer.send(&mut stream, request.method != "HEAD");
}

fn read(stream: &TcpStream) -> Option<Request> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split(' ');
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        match line.trim_end().split_once(": ") {
            Some((name, value)) => headers.insert(name.to_ascii_lowercase(), value.to_owned()),
            None => break,
        };
    }
    let length = headers
        .get("content-length")
        .and_then(|text| text.parse().ok())
        .unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let query = query.split('&').filter_map(|pair| {
        let (name, value) = pair.split_once('=')?;
        Some((decoded(name), decoded(value)))
    });
    let key = path.strip_prefix("/bucket").unwrap_or_default();
    Some(Request {
        method,
        key: decoded(key.strip_prefix('/').unwrap_or_default()),
        query: query.collect(),
        headers,
        body,
    })
}

fn decoded(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((first, more)) = rest.split_first() {
        if let (b'%', Some(digits)) = (first, more.get(..2)) {
            let digits = std::str::from_utf8(digits).unwrap();
            bytes.push(u8::from_str_radix(digits, 16).unwrap());
            rest = &more[2..];
        } else {
            bytes.push(*first);
            rest = more;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

const XMLNS: &str = "xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"";

fn list(request: &Request, contents: &Contents) -> Answer {
    let prefix = request.query.get("prefix").map_or("", String::as_str);
    let after = request.query.get("continuation-token").map_or("", String::as_str);
    let objects = contents.objects.iter();
    let mut found = objects.filter(|(key, _)| key.starts_with(prefix) && key.as_str() > after);
    let page: Vec<_> = found.by_ref().take(contents.page).collect();
    let is_truncated = found.next().is_some();
    let mut body = format!(
        "<?xml version=\"1.0\"?><ListBucketResult {XMLNS}><IsTruncated>{is_truncated}</IsTruncated><EncodingType>url</EncodingType>"
    );
    if let (true, Some((last, _))) = (is_truncated, page.last()) {
        body += &format!("<NextContinuationToken>{last}</NextContinuationToken>");
    }
    for (key, (bytes, tag)) in page {
        body += &format!(
            "<Contents><Key>{}</Key><LastModified>2026-11-01T00:00:00.000Z</LastModified><ETag>{tag}</ETag><Size>{}</Size></Contents>",
            encoded(key),
            bytes.len()
        );
    }
    Answer::status(200, body + "</ListBucketResult>")
}

/// Whether the conditions of a request hold.
fn refused(request: &Request, tag: Option<&String>) -> Option<Answer> {
    let matches = |name: &str| request.headers.get(name);
    if matches("if-none-match").is_some_and(|_| tag.is_some()) {
        return Some(Answer::error(412, "PreconditionFailed"));
    }
    match (matches("if-match"), tag) {
        (Some(_), None) => Some(Answer::error(404, "NoSuchKey")),
        (Some(wanted), Some(tag)) if wanted != tag => Some(Answer::error(412, "PreconditionFailed")),
        _ => None,
    }
}

pub(crate) fn honest(request: &Request, contents: &mut Contents) -> Answer {
    if request.key.is_empty() {
        return list(request, contents);
    }
    let (key, query) = (&request.key, &request.query);
    let found = contents.objects.get(key).cloned();
    let tag = found.as_ref().map(|(_, tag)| tag);
    let write = |contents: &mut Contents, bytes: Vec<u8>, tag: String| {
        contents.objects.insert(key.clone(), (bytes, tag.clone()));
        tag
    };
    match (request.method.as_str(), query.get("uploadId"), query.get("partNumber")) {
        ("GET" | "HEAD", ..) => match (refused(request, tag), found) {
            (Some(refused), _) => refused,
            (None, None) => Answer::error(404, "NoSuchKey"),
            (None, Some((bytes, tag))) => Answer::status(200, bytes).with("ETag", tag),
        },
        ("PUT", Some(upload), Some(part)) => {
            let tag = tag_of(&request.body);
            let parts = contents.uploads.get_mut(upload).unwrap();
            parts.insert(part.parse().unwrap(), request.body.clone());
            Answer::status(200, "").with("ETag", tag)
        }
        ("PUT", ..) => {
            if request
                .headers
                .get("content-md5")
                .is_some_and(|md5| *md5 != Digests::of(&request.body).content_md5())
            {
                return Answer::error(400, "BadDigest");
            }
            if let Some(refused) = refused(request, tag) {
                return refused;
            }
            let tag = write(contents, request.body.clone(), tag_of(&request.body));
            Answer::status(200, "").with("ETag", tag)
        }
        ("POST", None, _) => {
            let id = format!("upload-{}", contents.uploads.len());
            contents.uploads.insert(id.clone(), BTreeMap::new());
            let body = format!(
                "<InitiateMultipartUploadResult {XMLNS}><UploadId>{id}</UploadId></InitiateMultipartUploadResult>"
            );
            Answer::status(200, body)
        }
        ("POST", Some(upload), _) => {
            if let Some(refused) = refused(request, tag) {
                return refused;
            }
            let parts = contents.uploads.remove(upload).unwrap();
            let bytes: Vec<u8> = parts.values().flatten().copied().collect();
            let tag = format!("\"{}-{}\"", tag_of(&bytes).trim_matches('"'), parts.len());
            let tag = write(contents, bytes, tag);
            Answer::status(
                200,
                format!(
                    "<CompleteMultipartUploadResult {XMLNS}><ETag>{}</ETag></CompleteMultipartUploadResult>",
                    tag.replace('"', "&quot;")
                ),
            )
        }
        ("DELETE", Some(upload), _) => {
            contents.uploads.remove(upload);
            contents.aborted += 1;
            Answer::status(204, "")
        }
        ("DELETE", None, _) => match refused(request, tag) {
            Some(refused) => refused,
            None => {
                contents.objects.remove(key);
                Answer::status(204, "")
            }
        },
        _ => Answer::error(405, "MethodNotAllowed"),
    }
}

/// A volume with a bucket.
pub(crate) struct Setting {
    pub(crate) server: Server,
    pub(crate) stall: std::cell::Cell<Duration>,
    state: StateDirectory,
    _directory: tempfile::TempDir,
}

pub(crate) fn way(direction: SyncDirection) -> SyncChoice {
    SyncChoice {
        direction,
        ..SyncChoice::default()
    }
}

impl Setting {
    pub(crate) fn new() -> Self {
        Self::of("s3://bucket", false)
    }

    pub(crate) fn of(location: &str, read_only: bool) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state");
        let state = StateDirectory::open(Some(&path), &HostIdentity::of_this_process()).unwrap();
        let server = Server::start();
        let bucket = BucketSpec::from_parts(location, Some(&server.address), None, read_only, None).unwrap();
        let new = NewVolume {
            name: "data".parse().unwrap(),
            owner: LOCAL_OWNER.to_owned(),
            quota: VolumeQuota::default(),
            shared: false,
            bucket: Some(bucket),
        };
        state.volumes().unwrap().create(new).unwrap();
        Self {
            server,
            stall: PATIENCE.into(),
            state,
            _directory: directory,
        }
    }

    pub(crate) fn volume(&self) -> HeldVolume {
        let key = VolumeKey::Name("data".parse().unwrap());
        self.state.volumes().unwrap().hold(&key, MountAccess::Ro).unwrap()
    }

    pub(crate) fn path(&self, name: &str) -> std::path::PathBuf {
        self.volume().data().join(name)
    }

    /// Writes a file, as a sandbox does.
    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> Option<Vec<u8>> {
        std::fs::read(self.path(name)).ok()
    }

    pub(crate) fn try_sync(&self, choice: SyncChoice) -> SyncOutcome {
        let bytes = 1 << 30;
        self.sync_within(choice, TransferBudget { bytes, entries: 10_000 })
    }

    pub(crate) fn sync_within(&self, choice: SyncChoice, room: TransferBudget) -> SyncOutcome {
        let settings = RegistrySettings {
            stall_timeout: self.stall.get(),
            first_pause: Duration::from_millis(1),
            ..RegistrySettings::default()
        };
        sync(SyncOrder {
            volume: &self.volume(),
            credentials: Some("key-id:the-secret-key".parse().unwrap()),
            settings: &settings,
            choice,
            room,
            wait: STALL,
        })
    }

    /// Brings both to the same; nothing must end it.
    #[track_caller]
    pub(crate) fn sync(&self, choice: SyncChoice) -> crate::SyncReport {
        let SyncOutcome { report, failure } = self.try_sync(choice);
        assert!(failure.is_none(), "{failure:?} {report:?}");
        report
    }

    /// The files of the volume that are not what they were made of, or half of it.
    pub(crate) fn incoming(&self) -> usize {
        let incoming = self.volume().data().parent().unwrap().join("incoming");
        std::fs::read_dir(incoming).unwrap().count()
    }
}

pub(crate) fn exists(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok()
}
