//! `filesystem.Filesystem`: files and directories of a sandbox, and what happens to them.

use http::{HeaderMap, Request, Response};
use hyper::body::Incoming;
use offleash_core::exec::ExecEnd;
use offleash_manager::keeper::client::ExecNews;
use offleash_manager::keeper::error::KeeperError;
use offleash_manager::keeper::files::{FileChannel, FileWatch};
use offleash_manager::keeper::message::StartExec;
use rustix::io::Errno;
use tokio::time::{Instant, sleep_until};

use super::entry::{entry_info, event};
use super::failure::{Failure, gone};
use super::filesystem_messages::{
    Empty, EntryResponse, GetWatcherEventsResponse, ListDirRequest, MoveRequest, PathRequest, WatchDirResponse,
    WatchRequest, WatcherId,
};
use super::listing::{self, Listed, Taken};
use super::path::{Place, below};
use super::{SandboxAccess, headers, read, unary};
use crate::body::Body;
use crate::connect::{Call, Code, ConnectError, Frames, Kind, Outgoing, StreamEnd, refuse, stream};

/// What is kept of what a program says about why it failed.
const LONGEST_MESSAGE: usize = 1024;

/// The methods, and how each is called.
pub(super) fn kind(method: &str) -> Option<Kind> {
    match method {
        "Stat" | "MakeDir" | "Move" | "ListDir" | "Remove" | "CreateWatcher" | "GetWatcherEvents" | "RemoveWatcher" => {
            Some(Kind::Unary)
        }
        "WatchDir" => Some(Kind::Stream),
        _ => None,
    }
}

/// Answers a call of a method that [`kind`] knows.
pub(super) async fn answer(
    sandbox: &SandboxAccess,
    method: &str,
    call: Call,
    request: Request<Incoming>,
) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let user = headers::user(&parts.headers);
    let caller = Caller {
        sandbox,
        user: user.as_deref(),
    };
    match method {
        "Stat" => {
            let done = async { caller.stat(read(call, body).await?).await };
            unary(sandbox, call, done.await)
        }
        "MakeDir" => {
            let done = async { caller.make_directory(read(call, body).await?).await };
            unary(sandbox, call, done.await)
        }
        "Move" => {
            let done = async { caller.rename(read(call, body).await?).await };
            unary(sandbox, call, done.await)
        }
        "ListDir" => {
            let done = async { listing::answer(call.codec, caller.list(read(call, body).await?).await?) };
            match done.await {
                Ok(response) => response,
                Err(Failure::Gone) => gone(&sandbox.id),
                Err(Failure::Told(error)) => refuse(call, &error),
            }
        }
        "Remove" => {
            let done = async { caller.remove(read(call, body).await?).await };
            unary(sandbox, call, done.await)
        }
        "CreateWatcher" => {
            let done = async { caller.create_watcher(read(call, body).await?).await };
            unary(sandbox, call, done.await)
        }
        "GetWatcherEvents" => {
            let done = async { caller.watcher_events(read(call, body).await?) };
            unary(sandbox, call, done.await)
        }
        "RemoveWatcher" => {
            let done = async { caller.remove_watcher(read(call, body).await?) };
            unary(sandbox, call, done.await)
        }
        _ => {
            let begun = async {
                let timeout = Call::timeout(&parts.headers)?;
                let request = Frames::new(call.codec, body).only::<WatchRequest>().await?;
                let request = request.ok_or_else(|| ConnectError::invalid("the request has no message"))?;
                Ok((caller.watch(request).await?, timeout))
            };
            match begun.await {
                Ok((watch, timeout)) => {
                    let until = timeout.map(|timeout| Instant::now() + timeout);
                    stream(call.codec, |outgoing| tell(watch, outgoing, parts.headers, until))
                }
                Err(Failure::Gone) => gone(&sandbox.id),
                Err(Failure::Told(error)) => refuse(call, &error),
            }
        }
    }
}

/// A sandbox and the user that a call is made as.
pub(super) struct Caller<'a> {
    pub(super) sandbox: &'a SandboxAccess,
    /// The usual one if absent.
    pub(super) user: Option<&'a str>,
}

impl Caller<'_> {
    /// A conversation with a process inside that acts as the user.
    pub(super) async fn open(&self) -> Result<FileChannel, KeeperError> {
        self.sandbox.keeper.files(self.user).await
    }

    /// The whole path of what a caller wrote.
    pub(super) async fn resolve(&self, path: &[u8]) -> Result<Vec<u8>, Failure> {
        match Place::parse(path)? {
            Place::Absolute(path) => Ok(path),
            Place::Home(rest) => Ok(below(&self.home().await?, &rest)?),
        }
    }

    async fn home(&self) -> Result<String, Failure> {
        let mut users = self.sandbox.keeper.hello().await?.users.into_iter();
        let found = match self.user {
            Some(name) => users.find(|user| user.name == name),
            None => users.next(),
        };
        match found {
            Some(user) => Ok(user.home),
            None => Err(KeeperError::InvalidUser(self.user.unwrap_or_default().to_owned()).into()),
        }
    }

    async fn at(&self, path: Option<String>) -> Result<(FileChannel, Vec<u8>), Failure> {
        let path = self.resolve(path.unwrap_or_default().as_bytes()).await?;
        Ok((self.open().await?, path))
    }

    async fn stat(&self, request: PathRequest) -> Result<EntryResponse, Failure> {
        let (mut files, path) = self.at(request.path).await?;
        let entry = files.stat(&path).await.map_err(|error| about(error, "file", &path))?;
        Ok(entry_response(&entry))
    }

    async fn make_directory(&self, request: PathRequest) -> Result<EntryResponse, Failure> {
        let (mut files, path) = self.at(request.path).await?;
        let entry = files
            .make_directory(&path)
            .await
            .map_err(|error| about(error, "directory", &path))?;
        Ok(entry_response(&entry))
    }

    async fn rename(&self, request: MoveRequest) -> Result<EntryResponse, Failure> {
        let destination = self.resolve(request.destination.unwrap_or_default().as_bytes()).await?;
        let (mut files, source) = self.at(request.source).await?;
        let entry = match files.rename(&source, &destination).await {
            Err(KeeperError::File { errno, .. }) if Errno::from_raw_os_error(errno) == Errno::XDEV => {
                // Whether it is there is asked first: the kernel looks at file systems before.
                let stat = files.stat(&source).await;
                stat.map_err(|error| about(error, "source file", &source))?;
                self.move_by_copying(&source, &destination).await?;
                files.stat(&destination).await
            }
            renamed => renamed,
        };
        let entry = entry.map_err(|error| about(error, "source file", &source))?;
        Ok(entry_response(&entry))
    }

    /// Moves to another file system, which takes a copy: `/tmp` is one of its own.
    async fn move_by_copying(&self, source: &[u8], destination: &[u8]) -> Result<(), Failure> {
        let words: [&[u8]; 5] = [b"mv", b"-T", b"--", source, destination];
        let start = StartExec {
            argv: words.map(<[u8]>::to_vec).to_vec(),
            user: self.user.map(str::to_owned),
            ..StartExec::default()
        };
        let mut exec = self.sandbox.keeper.start(start).await?;
        let mut said = Vec::new();
        loop {
            match exec.next().await? {
                Some(ExecNews::Output { bytes, .. }) if said.len() < LONGEST_MESSAGE => said.extend(bytes),
                Some(ExecNews::Output { .. } | ExecNews::TimedOut) => {}
                Some(ExecNews::Ended(ExecEnd::Exited { code: 0 })) => return Ok(()),
                Some(ExecNews::Ended(_)) => {
                    let said = String::from_utf8_lossy(&said);
                    let text = format!("error renaming: {}", said.trim().escape_debug());
                    return Err(ConnectError::new(Code::Internal, text).into());
                }
                None => return Err(Failure::Gone),
            }
        }
    }

    async fn list(&self, request: ListDirRequest) -> Result<Listed, Failure> {
        let (mut files, path) = self.at(request.path).await?;
        let depth = request.depth.unwrap_or_default().max(1);
        let about = |error| about(error, "directory", &path);
        let listing = files.list(&path, depth).await.map_err(about)?;
        match self.sandbox.listings.take(&self.sandbox.key_id, listing).await {
            Ok(listed) => Ok(listed),
            Err(Taken::Keeper(error)) => Err(about(error)),
            Err(Taken::Told(error)) => Err(error.into()),
        }
    }

    async fn remove(&self, request: PathRequest) -> Result<Empty, Failure> {
        let (mut files, path) = self.at(request.path).await?;
        files.remove(&path).await.map_err(|error| about(error, "file", &path))?;
        Ok(Empty {})
    }

    async fn watch(&self, request: WatchRequest) -> Result<FileWatch, Failure> {
        let (files, path) = self.at(request.path).await?;
        let recursive = request.recursive.unwrap_or_default();
        let entries = request.include_entry.unwrap_or_default();
        let watch = files.watch(&path, recursive, entries).await;
        watch.map_err(|error| about_watching(error, &path))
    }

    async fn create_watcher(&self, request: WatchRequest) -> Result<WatcherId, Failure> {
        let room = self.sandbox.watchers.room(&self.sandbox.id)?;
        let watch = self.watch(request).await?;
        let watcher_id = Some(room.fill(watch)?);
        Ok(WatcherId { watcher_id })
    }

    fn watcher_events(&self, request: WatcherId) -> Result<GetWatcherEventsResponse, Failure> {
        let id = request.watcher_id.unwrap_or_default();
        let events = self.sandbox.watchers.take(&self.sandbox.id, &id)?;
        Ok(GetWatcherEventsResponse { events })
    }

    fn remove_watcher(&self, request: WatcherId) -> Result<Empty, Failure> {
        let id = request.watcher_id.unwrap_or_default();
        self.sandbox.watchers.remove(&self.sandbox.id, &id)?;
        Ok(Empty {})
    }
}

/// Tells a caller of changes until it hangs up.
async fn tell(
    mut watch: FileWatch,
    outgoing: Outgoing,
    fields: HeaderMap,
    until: Option<Instant>,
) -> Result<(), StreamEnd> {
    let keepalive = headers::keepalive(&fields);
    let start = Some(Empty {});
    outgoing
        .send(&WatchDirResponse {
            start,
            ..WatchDirResponse::default()
        })
        .await?;
    let mut silent_until = Instant::now() + keepalive;
    loop {
        let wait = until.map_or(silent_until, |until| until.min(silent_until));
        tokio::select! {
            changes = watch.next() => {
                for filesystem in changes.map_err(Failure::from)?.iter().filter_map(event) {
                    let filesystem = Some(filesystem);
                    outgoing.send(&WatchDirResponse { filesystem, ..WatchDirResponse::default() }).await?;
                }
            }
            () = sleep_until(wait) => {
                if until.is_some_and(|until| until <= Instant::now()) {
                    let text = "the watch lasted longer than connect-timeout-ms";
                    return Err(ConnectError::new(Code::DeadlineExceeded, text).into());
                }
                let keepalive = Some(Empty {});
                outgoing.send(&WatchDirResponse { keepalive, ..WatchDirResponse::default() }).await?;
            }
        }
        silent_until = Instant::now() + keepalive;
    }
}

fn entry_response(entry: &offleash_protocol::files::Entry) -> EntryResponse {
    EntryResponse {
        entry: Some(entry_info(entry)),
    }
}

/// An error about a directory that is to be watched.
fn about_watching(error: KeeperError, path: &[u8]) -> Failure {
    match about(error, "directory", path) {
        // What the kernel calls too many open files is the number of watches.
        Failure::Told(error) if error.code == Code::ResourceExhausted => {
            let text = format!(
                "{}; a sandbox can have 32 watches at once, its own programs' among them",
                error.message
            );
            Failure::Told(ConnectError::new(error.code, text))
        }
        other => other,
    }
}

/// An error about a file, with its path and in words that callers look for.
fn about(error: KeeperError, what: &str, path: &[u8]) -> Failure {
    let shown = String::from_utf8_lossy(path);
    let shown = shown.escape_debug();
    match Failure::from(error) {
        Failure::Told(error) => {
            let message = match error.code {
                Code::NotFound => format!("{what} not found: path '{shown}' does not exist"),
                Code::AlreadyExists => format!("{what} already exists: {shown}"),
                _ => format!("path '{shown}': {}", error.message),
            };
            Failure::Told(ConnectError::new(error.code, message))
        }
        gone => gone,
    }
}
