//! `filesystem.Filesystem`: files and directories of a sandbox, and what happens to them.

use http::{HeaderMap, Request, Response};
use hyper::body::Incoming;
use offleash_core::exec::ExecEnd;
use offleash_supervisor::service::client::ExecNews;
use offleash_supervisor::service::error::SupervisorError;
use offleash_supervisor::service::files::{FileChannel, FileWatch};
use offleash_supervisor::service::message::StartExec;
use rustix::io::Errno;
use tokio::time::{Instant, sleep_until};

use super::entry::{entry_info, event};
use super::failure::{ServiceFailure, gone};
use super::listing::{self, ListingFailure, TakenListing};
use super::messages::filesystem::{
    CreateWatcherRequest, CreateWatcherResponse, EntryInfo, GetWatcherEventsRequest, GetWatcherEventsResponse,
    KeepAlive, ListDirRequest, METHODS, MakeDirRequest, MakeDirResponse, MoveRequest, MoveResponse, RemoveRequest,
    RemoveResponse, RemoveWatcherRequest, RemoveWatcherResponse, StatRequest, StatResponse, WatchDirRequest,
    WatchDirResponse, WatchStart,
};
use super::{SandboxAccess, headers, read, unary};
use crate::e2b::connect::{
    CallKind, ConnectCall, ConnectCode, ConnectError, MessageFrames, MessageSender, StreamEnd, refuse, stream,
};
use crate::http::body::Body;
use crate::http::path::{PathStart, below};

/// What is kept of what a program says about why it failed.
const MAX_MESSAGE_LENGTH: usize = 1024;

/// How a method is called, if there is one of that name.
pub(super) fn kind(method: &str) -> Option<CallKind> {
    METHODS.iter().find(|(name, _)| *name == method).map(|(_, kind)| *kind)
}

/// Answers a call of a method that [`kind`] knows.
pub(super) async fn answer(
    sandbox: &SandboxAccess,
    method: &str,
    call: ConnectCall,
    request: Request<Incoming>,
) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let user = headers::user(&parts.headers);
    let caller = FileCaller {
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
                Err(ServiceFailure::Gone) => gone(&sandbox.id),
                Err(ServiceFailure::Told(error)) => refuse(call, &error),
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
            let done = async { caller.watcher_events(&read(call, body).await?) };
            unary(sandbox, call, done.await)
        }
        "RemoveWatcher" => {
            let done = async { caller.remove_watcher(&read(call, body).await?) };
            unary(sandbox, call, done.await)
        }
        _ => {
            let begun = async {
                let timeout = ConnectCall::timeout(&parts.headers)?;
                let request = MessageFrames::new(call.codec, body).only::<WatchDirRequest>().await?;
                let request = request.ok_or_else(|| ConnectError::invalid("the request has no message"))?;
                let watch = caller.watch(&request.path, request.recursive, request.include_entry);
                Ok((watch.await?, timeout))
            };
            match begun.await {
                Ok((watch, timeout)) => {
                    let until = timeout.map(|timeout| Instant::now() + timeout);
                    stream(call.codec, |outgoing| tell(watch, outgoing, parts.headers, until))
                }
                Err(ServiceFailure::Gone) => gone(&sandbox.id),
                Err(ServiceFailure::Told(error)) => refuse(call, &error),
            }
        }
    }
}

/// A sandbox and the user that a call is made as.
pub(super) struct FileCaller<'a> {
    pub(super) sandbox: &'a SandboxAccess,
    /// The usual one if absent.
    pub(super) user: Option<&'a str>,
}

impl FileCaller<'_> {
    /// A conversation with a process inside that acts as the user.
    pub(super) async fn open(&self) -> Result<FileChannel, SupervisorError> {
        self.sandbox.supervisor.files(self.user).await
    }

    /// The whole path of what a caller wrote.
    pub(super) async fn resolve(&self, path: &[u8]) -> Result<Vec<u8>, ServiceFailure> {
        match PathStart::parse(path)? {
            PathStart::Absolute(path) => Ok(path),
            PathStart::Home(rest) => Ok(below(&self.home().await?, &rest)?),
        }
    }

    async fn home(&self) -> Result<String, ServiceFailure> {
        let mut users = self.sandbox.supervisor.hello().await?.users.into_iter();
        let found = match self.user {
            Some(name) => users.find(|user| user.name == name),
            None => users.next(),
        };
        match found {
            Some(user) => Ok(user.home),
            None => Err(SupervisorError::InvalidUser(self.user.unwrap_or_default().to_owned()).into()),
        }
    }

    async fn at(&self, path: &str) -> Result<(FileChannel, Vec<u8>), ServiceFailure> {
        let path = self.resolve(path.as_bytes()).await?;
        Ok((self.open().await?, path))
    }

    async fn stat(&self, request: StatRequest) -> Result<StatResponse, ServiceFailure> {
        let (mut files, path) = self.at(&request.path).await?;
        let entry = files.stat(&path).await.map_err(|error| about(error, "file", &path))?;
        Ok(StatResponse { entry: told(&entry) })
    }

    async fn make_directory(&self, request: MakeDirRequest) -> Result<MakeDirResponse, ServiceFailure> {
        let (mut files, path) = self.at(&request.path).await?;
        let entry = files
            .make_directory(&path)
            .await
            .map_err(|error| about(error, "directory", &path))?;
        Ok(MakeDirResponse { entry: told(&entry) })
    }

    async fn rename(&self, request: MoveRequest) -> Result<MoveResponse, ServiceFailure> {
        let destination = self.resolve(request.destination.as_bytes()).await?;
        let (mut files, source) = self.at(&request.source).await?;
        let entry = match files.rename(&source, &destination).await {
            Err(SupervisorError::File { errno, .. }) if Errno::from_raw_os_error(errno) == Errno::XDEV => {
                // Whether it is there is asked first: the kernel looks at file systems before.
                let stat = files.stat(&source).await;
                stat.map_err(|error| about(error, "source file", &source))?;
                self.move_by_copying(&source, &destination).await?;
                files.stat(&destination).await
            }
            renamed => renamed,
        };
        let entry = entry.map_err(|error| about(error, "source file", &source))?;
        Ok(MoveResponse { entry: told(&entry) })
    }

    /// Moves to another file system, which takes a copy: `/tmp` is one of its own.
    async fn move_by_copying(&self, source: &[u8], destination: &[u8]) -> Result<(), ServiceFailure> {
        let words: [&[u8]; 5] = [b"mv", b"-T", b"--", source, destination];
        let start = StartExec {
            argv: words.map(<[u8]>::to_vec).to_vec(),
            user: self.user.map(str::to_owned),
            ..StartExec::default()
        };
        let mut exec = self.sandbox.supervisor.start(start).await?;
        let mut said = Vec::new();
        loop {
            match exec.next().await? {
                Some(ExecNews::Output { bytes, .. }) if said.len() < MAX_MESSAGE_LENGTH => said.extend(bytes),
                Some(ExecNews::Output { .. } | ExecNews::TimedOut) => {}
                Some(ExecNews::Ended(ExecEnd::Exited { code: 0 })) => return Ok(()),
                Some(ExecNews::Ended(_)) => {
                    let said = String::from_utf8_lossy(&said);
                    let text = format!("error renaming: {}", said.trim().escape_debug());
                    return Err(ConnectError::new(ConnectCode::Internal, text).into());
                }
                None => return Err(ServiceFailure::Gone),
            }
        }
    }

    async fn list(&self, request: ListDirRequest) -> Result<TakenListing, ServiceFailure> {
        let (mut files, path) = self.at(&request.path).await?;
        let depth = request.depth.max(1);
        let about = |error| about(error, "directory", &path);
        let listing = files.list(&path, depth).await.map_err(about)?;
        match self.sandbox.listings.take(&self.sandbox.key_id, listing).await {
            Ok(listed) => Ok(listed),
            Err(ListingFailure::Supervisor(error)) => Err(about(error)),
            Err(ListingFailure::Told(error)) => Err(error.into()),
        }
    }

    async fn remove(&self, request: RemoveRequest) -> Result<RemoveResponse, ServiceFailure> {
        let (mut files, path) = self.at(&request.path).await?;
        files.remove(&path).await.map_err(|error| about(error, "file", &path))?;
        Ok(RemoveResponse {})
    }

    async fn watch(&self, path: &str, recursive: bool, entries: bool) -> Result<FileWatch, ServiceFailure> {
        let (files, path) = self.at(path).await?;
        let watch = files.watch(&path, recursive, entries).await;
        watch.map_err(|error| about_watching(error, &path))
    }

    async fn create_watcher(&self, request: CreateWatcherRequest) -> Result<CreateWatcherResponse, ServiceFailure> {
        let room = self.sandbox.watchers.room(&self.sandbox.id)?;
        let watch = self
            .watch(&request.path, request.recursive, request.include_entry)
            .await?;
        let watcher_id = room.fill(watch)?;
        Ok(CreateWatcherResponse { watcher_id })
    }

    fn watcher_events(&self, request: &GetWatcherEventsRequest) -> Result<GetWatcherEventsResponse, ServiceFailure> {
        let events = self.sandbox.watchers.take(&self.sandbox.id, &request.watcher_id)?;
        Ok(GetWatcherEventsResponse { events })
    }

    fn remove_watcher(&self, request: &RemoveWatcherRequest) -> Result<RemoveWatcherResponse, ServiceFailure> {
        self.sandbox.watchers.remove(&self.sandbox.id, &request.watcher_id)?;
        Ok(RemoveWatcherResponse {})
    }
}

/// Tells a caller of changes until it hangs up.
async fn tell(
    mut watch: FileWatch,
    outgoing: MessageSender,
    fields: HeaderMap,
    until: Option<Instant>,
) -> Result<(), StreamEnd> {
    let keepalive = headers::keepalive(&fields);
    let start = Some(WatchStart {});
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
                for filesystem in changes.map_err(ServiceFailure::from)?.iter().filter_map(event) {
                    let filesystem = Some(filesystem);
                    outgoing.send(&WatchDirResponse { filesystem, ..WatchDirResponse::default() }).await?;
                }
            }
            () = sleep_until(wait) => {
                if until.is_some_and(|until| until <= Instant::now()) {
                    let text = "the watch lasted longer than connect-timeout-ms";
                    return Err(ConnectError::new(ConnectCode::DeadlineExceeded, text).into());
                }
                let keepalive = Some(KeepAlive {});
                outgoing.send(&WatchDirResponse { keepalive, ..WatchDirResponse::default() }).await?;
            }
        }
        silent_until = Instant::now() + keepalive;
    }
}

fn told(entry: &offleash_protocol::files::FileEntry) -> Option<EntryInfo> {
    Some(entry_info(entry))
}

/// An error about a directory that is to be watched.
fn about_watching(error: SupervisorError, path: &[u8]) -> ServiceFailure {
    match about(error, "directory", path) {
        // What the kernel calls too many open files is the number of watches.
        ServiceFailure::Told(error) if error.code == ConnectCode::ResourceExhausted => {
            let text = format!(
                "{}; a sandbox can have 32 watches at once, its own programs' among them",
                error.message
            );
            ServiceFailure::Told(ConnectError::new(error.code, text))
        }
        other => other,
    }
}

/// An error about a file, with its path and in words that callers look for.
fn about(error: SupervisorError, what: &str, path: &[u8]) -> ServiceFailure {
    let shown = String::from_utf8_lossy(path);
    let shown = shown.escape_debug();
    match ServiceFailure::from(error) {
        ServiceFailure::Told(error) => {
            let message = match error.code {
                ConnectCode::NotFound => format!("{what} not found: path '{shown}' does not exist"),
                ConnectCode::AlreadyExists => format!("{what} already exists: {shown}"),
                _ => format!("path '{shown}': {}", error.message),
            };
            ServiceFailure::Told(ConnectError::new(error.code, message))
        }
        gone => gone,
    }
}
