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
use super::listing::{self, Listed, Taken};
use super::messages::filesystem::{
    CreateWatcherRequest, CreateWatcherResponse, EntryInfo, GetWatcherEventsRequest, GetWatcherEventsResponse,
    KeepAlive, ListDirRequest, METHODS, MakeDirRequest, MakeDirResponse, MoveRequest, MoveResponse, RemoveRequest,
    RemoveResponse, RemoveWatcherRequest, RemoveWatcherResponse, StatRequest, StatResponse, WatchDirRequest,
    WatchDirResponse, WatchStart,
};
use super::path::{Place, below};
use super::{SandboxAccess, headers, read, unary};
use crate::body::Body;
use crate::connect::{Call, Code, ConnectError, Frames, Kind, Outgoing, StreamEnd, refuse, stream};

/// What is kept of what a program says about why it failed.
const LONGEST_MESSAGE: usize = 1024;

/// How a method is called, if there is one of that name.
pub(super) fn kind(method: &str) -> Option<Kind> {
    METHODS.iter().find(|(name, _)| *name == method).map(|(_, kind)| *kind)
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
            let done = async { caller.watcher_events(&read(call, body).await?) };
            unary(sandbox, call, done.await)
        }
        "RemoveWatcher" => {
            let done = async { caller.remove_watcher(&read(call, body).await?) };
            unary(sandbox, call, done.await)
        }
        _ => {
            let begun = async {
                let timeout = Call::timeout(&parts.headers)?;
                let request = Frames::new(call.codec, body).only::<WatchDirRequest>().await?;
                let request = request.ok_or_else(|| ConnectError::invalid("the request has no message"))?;
                let watch = caller.watch(&request.path, request.recursive, request.include_entry);
                Ok((watch.await?, timeout))
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

    async fn at(&self, path: &str) -> Result<(FileChannel, Vec<u8>), Failure> {
        let path = self.resolve(path.as_bytes()).await?;
        Ok((self.open().await?, path))
    }

    async fn stat(&self, request: StatRequest) -> Result<StatResponse, Failure> {
        let (mut files, path) = self.at(&request.path).await?;
        let entry = files.stat(&path).await.map_err(|error| about(error, "file", &path))?;
        Ok(StatResponse { entry: told(&entry) })
    }

    async fn make_directory(&self, request: MakeDirRequest) -> Result<MakeDirResponse, Failure> {
        let (mut files, path) = self.at(&request.path).await?;
        let entry = files
            .make_directory(&path)
            .await
            .map_err(|error| about(error, "directory", &path))?;
        Ok(MakeDirResponse { entry: told(&entry) })
    }

    async fn rename(&self, request: MoveRequest) -> Result<MoveResponse, Failure> {
        let destination = self.resolve(request.destination.as_bytes()).await?;
        let (mut files, source) = self.at(&request.source).await?;
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
        Ok(MoveResponse { entry: told(&entry) })
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
        let (mut files, path) = self.at(&request.path).await?;
        let depth = request.depth.max(1);
        let about = |error| about(error, "directory", &path);
        let listing = files.list(&path, depth).await.map_err(about)?;
        match self.sandbox.listings.take(&self.sandbox.key_id, listing).await {
            Ok(listed) => Ok(listed),
            Err(Taken::Keeper(error)) => Err(about(error)),
            Err(Taken::Told(error)) => Err(error.into()),
        }
    }

    async fn remove(&self, request: RemoveRequest) -> Result<RemoveResponse, Failure> {
        let (mut files, path) = self.at(&request.path).await?;
        files.remove(&path).await.map_err(|error| about(error, "file", &path))?;
        Ok(RemoveResponse {})
    }

    async fn watch(&self, path: &str, recursive: bool, entries: bool) -> Result<FileWatch, Failure> {
        let (files, path) = self.at(path).await?;
        let watch = files.watch(&path, recursive, entries).await;
        watch.map_err(|error| about_watching(error, &path))
    }

    async fn create_watcher(&self, request: CreateWatcherRequest) -> Result<CreateWatcherResponse, Failure> {
        let room = self.sandbox.watchers.room(&self.sandbox.id)?;
        let watch = self
            .watch(&request.path, request.recursive, request.include_entry)
            .await?;
        let watcher_id = room.fill(watch)?;
        Ok(CreateWatcherResponse { watcher_id })
    }

    fn watcher_events(&self, request: &GetWatcherEventsRequest) -> Result<GetWatcherEventsResponse, Failure> {
        let events = self.sandbox.watchers.take(&self.sandbox.id, &request.watcher_id)?;
        Ok(GetWatcherEventsResponse { events })
    }

    fn remove_watcher(&self, request: &RemoveWatcherRequest) -> Result<RemoveWatcherResponse, Failure> {
        self.sandbox.watchers.remove(&self.sandbox.id, &request.watcher_id)?;
        Ok(RemoveWatcherResponse {})
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
                let keepalive = Some(KeepAlive {});
                outgoing.send(&WatchDirResponse { keepalive, ..WatchDirResponse::default() }).await?;
            }
        }
        silent_until = Instant::now() + keepalive;
    }
}

fn told(entry: &offleash_protocol::files::Entry) -> Option<EntryInfo> {
    Some(entry_info(entry))
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
