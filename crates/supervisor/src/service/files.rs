//! Files of a sandbox, by way of a process inside that acts as one user.
//!
//! What comes from there is a sandbox's word: sizes are bounded, and an answer that does not fit its question ends the
//! channel. Paths are only carried.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use offleash_protocol::files::{DATA_CHUNK, FileEntry, FileReply, FileRequest, WatchedChange};
use offleash_protocol::{MessageDecoder, encode_into};
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::client::SupervisorClient;
use super::error::SupervisorError;
use super::sandbox_use::SandboxUse;

/// How much is read at once.
const AT_ONCE: usize = 256 * 1024;
/// The most entries that one listing may have.
const MAX_ENTRIES: usize = 1_000_000;
/// And the most bytes in them, each with what it takes besides.
const MAX_BYTES: usize = 32 * 1024 * 1024;
/// What a name and a value take besides.
const ANNOTATION: usize = 48;

/// How long one step may take: the first answer to a request, the next piece of one, to take a piece. Code in a sandbox
/// can stop the process that answers, and so does a pause.
const STEP: Duration = Duration::from_secs(60);
/// How long what goes through a whole tree may take until its one answer.
const TREE: Duration = Duration::from_secs(600);

impl SupervisorClient {
    /// Opens a conversation about files with a process inside that acts as `user`, or as the usual user. That process
    /// ends when the channel is dropped.
    ///
    /// # Errors
    /// `InvalidUser`, `Unsupported` where the level cannot, `Paused`, `Gone`.
    pub async fn files(&self, user: Option<&str>) -> Result<FileChannel, SupervisorError> {
        let channel = FileChannel::over(self.files_socket(user).await?)?;
        Ok(FileChannel {
            _used: self.usage_guard(),
            ..channel
        })
    }
}

/// A conversation about files: one request at a time, in order.
///
/// A request that is given up in the middle (its future or stream is dropped) leaves answers behind; the next one fails
/// with `Protocol`, and the channel is of no more use.
#[derive(Debug)]
pub struct FileChannel {
    stream: UnixStream,
    decoder: MessageDecoder<FileReply>,
    outgoing: Vec<u8>,
    /// Whether an answer is not here in full, or one that nobody waits for is on its way.
    busy: bool,
    /// Knows that the sandbox is used.
    _used: Option<Arc<dyn SandboxUse>>,
}

impl FileChannel {
    /// A channel over the host's end of a worker's socket.
    ///
    /// # Errors
    /// When the socket cannot be waited for.
    pub fn over(socket: OwnedFd) -> Result<Self, SupervisorError> {
        let stream = std::os::unix::net::UnixStream::from(socket);
        let registered = stream.set_nonblocking(true).and_then(|()| UnixStream::from_std(stream));
        Ok(Self {
            stream: registered.map_err(SupervisorError::io("use a socket of the sandbox"))?,
            decoder: MessageDecoder::new(),
            outgoing: Vec::new(),
            busy: false,
            _used: None,
        })
    }

    /// What is at a path; a link itself.
    ///
    /// # Errors
    /// `File`, `Gone`.
    pub async fn stat(&mut self, path: &[u8]) -> Result<FileEntry, SupervisorError> {
        let path = path.to_vec();
        self.entry(&FileRequest::Stat { path }).await
    }

    /// What is in a directory and, down to `depth`, in those below; depth first and by name.
    ///
    /// # Errors
    /// `Timeout`, `Gone`. That it cannot be listed is said by the listing.
    pub async fn list(&mut self, path: &[u8], depth: u32) -> Result<FileListing<'_>, SupervisorError> {
        let path = path.to_vec();
        self.begin(&FileRequest::List { path, depth }).await?;
        Ok(FileListing {
            channel: self,
            entries: 0,
            bytes: 0,
        })
    }

    /// Makes a directory and those that lead to it.
    ///
    /// # Errors
    /// `File` with `EEXIST` if it is there, `Gone`.
    pub async fn make_directory(&mut self, path: &[u8]) -> Result<FileEntry, SupervisorError> {
        let path = path.to_vec();
        self.entry(&FileRequest::MakeDirectory { path }).await
    }

    /// Renames, and makes the directories that lead to the destination; answers what is there then.
    ///
    /// # Errors
    /// `File`, `Gone`.
    pub async fn rename(&mut self, source: &[u8], destination: &[u8]) -> Result<FileEntry, SupervisorError> {
        let request = FileRequest::Rename {
            source: source.to_vec(),
            destination: destination.to_vec(),
        };
        self.entry(&request).await
    }

    /// Removes a file, or a directory with everything in it; what is not there is no error.
    ///
    /// # Errors
    /// `File`, `Gone`.
    pub async fn remove(&mut self, path: &[u8]) -> Result<(), SupervisorError> {
        let path = path.to_vec();
        self.begin(&FileRequest::Remove { path }).await?;
        match self.answer(TREE, "remove a file").await? {
            FileReply::Done => self.over_with(Ok(())),
            other => self.refused(other),
        }
    }

    /// The contents of a regular file from `offset` on, `length` bytes or to the end.
    ///
    /// # Errors
    /// `File` with `EISDIR` for a directory, `Gone`.
    pub async fn read(
        &mut self,
        path: &[u8],
        offset: u64,
        length: Option<u64>,
    ) -> Result<FileReader<'_>, SupervisorError> {
        let path = path.to_vec();
        let entry = self.first_entry(&FileRequest::Read { path, offset, length }).await?;
        Ok(FileReader { channel: self, entry })
    }

    /// As [`Self::read`], for a reader that outlives the borrow: the channel goes with it.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub async fn into_read(
        mut self,
        path: &[u8],
        offset: u64,
        length: Option<u64>,
    ) -> Result<OwnedFileReader, SupervisorError> {
        let path = path.to_vec();
        let entry = self.first_entry(&FileRequest::Read { path, offset, length }).await?;
        Ok(OwnedFileReader { channel: self, entry })
    }

    /// Makes or overwrites a regular file, and the directories that lead to it, with these annotations.
    ///
    /// # Errors
    /// `Gone`. That it cannot be made is said by the writer.
    pub async fn write(
        &mut self,
        path: &[u8],
        metadata: Vec<(Vec<u8>, Vec<u8>)>,
    ) -> Result<FileWriter<'_>, SupervisorError> {
        let path = path.to_vec();
        self.begin(&FileRequest::Write { path, metadata }).await?;
        Ok(FileWriter { channel: self })
    }

    /// Tells of changes below a directory from the moment at which this answers.
    ///
    /// # Errors
    /// `File` with `ENOTDIR` for anything else, `Gone`.
    pub async fn watch(mut self, path: &[u8], recursive: bool, entries: bool) -> Result<FileWatch, SupervisorError> {
        let path = path.to_vec();
        let request = FileRequest::Watch {
            path,
            recursive,
            entries,
        };
        self.begin(&request).await?;
        match self.answer(TREE, "watch a directory").await? {
            FileReply::Done => Ok(FileWatch { channel: self }),
            other => self.refused(other),
        }
    }

    async fn entry(&mut self, request: &FileRequest) -> Result<FileEntry, SupervisorError> {
        let entry = self.first_entry(request).await?;
        self.over_with(Ok(entry))
    }

    async fn first_entry(&mut self, request: &FileRequest) -> Result<FileEntry, SupervisorError> {
        self.begin(request).await?;
        match self.answer(STEP, "look at a file").await? {
            FileReply::Entry(entry) => Ok(entry),
            other => self.refused(other),
        }
    }

    async fn begin(&mut self, request: &FileRequest) -> Result<(), SupervisorError> {
        if self.busy {
            return Err(SupervisorError::Protocol {
                reason: "a request before was given up".to_owned(),
            });
        }
        self.busy = true;
        self.send(request).await
    }

    async fn send(&mut self, request: &FileRequest) -> Result<(), SupervisorError> {
        self.outgoing.clear();
        encode_into(request, &mut self.outgoing).map_err(|error| SupervisorError::Invalid {
            reason: format!("the request is too large: {error}"),
        })?;
        let sent = timeout(STEP, self.stream.write_all(&self.outgoing)).await;
        let operation = "take what is written";
        match sent.map_err(|_| SupervisorError::Timeout { operation })? {
            // What it said before it went is still to be read.
            Ok(()) => Ok(()),
            Err(error) if is_gone(&error) => Ok(()),
            Err(error) => Err(SupervisorError::io("ask for files of the sandbox")(error)),
        }
    }

    /// The next reply, if it comes in time. After one that does not the channel is of no more use.
    async fn answer(&mut self, patience: Duration, operation: &'static str) -> Result<FileReply, SupervisorError> {
        let replied = timeout(patience, self.reply()).await;
        replied.unwrap_or(Err(SupervisorError::Timeout { operation }))
    }

    async fn reply(&mut self) -> Result<FileReply, SupervisorError> {
        loop {
            if let Some(reply) = self.decoder.next()? {
                return Ok(reply);
            }
            if self.decoder.pending() == 0 {
                self.decoder = MessageDecoder::new();
            }
            // What waits, as a watch does for long, keeps no buffer.
            let waited = self.stream.readable().await;
            waited.map_err(SupervisorError::io("read files of the sandbox"))?;
            let mut buffer = Vec::with_capacity(AT_ONCE);
            match self.stream.try_read_buf(&mut buffer) {
                Ok(0) => return Err(SupervisorError::Gone),
                Ok(_) => self.decoder.push(&buffer),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) if is_gone(&error) => return Err(SupervisorError::Gone),
                Err(error) => return Err(SupervisorError::io("read files of the sandbox")(error)),
            }
        }
    }

    /// The request was answered in full.
    fn over_with<T>(&mut self, answer: Result<T, SupervisorError>) -> Result<T, SupervisorError> {
        self.busy = false;
        answer
    }

    fn refused<T>(&mut self, reply: FileReply) -> Result<T, SupervisorError> {
        match reply {
            FileReply::Failed { step, errno } => self.over_with(Err(SupervisorError::File { step, errno })),
            _ => Err(SupervisorError::unexpected("what the sandbox says of its files")),
        }
    }

    async fn next_data(&mut self) -> Result<Option<Vec<u8>>, SupervisorError> {
        if !self.busy {
            return Ok(None);
        }
        match self.answer(STEP, "read a file").await? {
            FileReply::Data { bytes } => Ok(Some(bytes)),
            FileReply::Done => self.over_with(Ok(None)),
            other => self.refused(other),
        }
    }
}

fn is_gone(error: &std::io::Error) -> bool {
    use std::io::ErrorKind;
    matches!(
        error.kind(),
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::NotConnected
    )
}

/// What is in a directory, piece by piece.
#[derive(Debug)]
pub struct FileListing<'a> {
    channel: &'a mut FileChannel,
    entries: usize,
    bytes: usize,
}

impl FileListing<'_> {
    /// The next entries; `None` after the last.
    ///
    /// # Errors
    /// `File`, `Exhausted` for more than a million entries or 32 MiB of them in all, `Timeout`, `Gone`.
    pub async fn next(&mut self) -> Result<Option<Vec<FileEntry>>, SupervisorError> {
        if !self.channel.busy {
            return Ok(None);
        }
        let entries = match self.channel.answer(STEP, "list a directory").await? {
            FileReply::Entries(entries) => entries,
            FileReply::Done => return self.channel.over_with(Ok(None)),
            other => return self.channel.refused(other),
        };
        self.entries += entries.len();
        self.bytes += entries.iter().map(size).sum::<usize>();
        if self.entries > MAX_ENTRIES || self.bytes > MAX_BYTES {
            return Err(SupervisorError::Exhausted {
                what: "entries in that directory, or too long ones".to_owned(),
            });
        }
        Ok(Some(entries))
    }
}

/// The memory that an entry takes.
fn size(entry: &FileEntry) -> usize {
    let annotations = entry.metadata.iter();
    let annotations: usize = annotations
        .map(|(name, value)| name.len() + value.len() + ANNOTATION)
        .sum();
    let target = entry.target.as_ref().map_or(0, |target| target.path.len());
    size_of::<FileEntry>() + entry.path.len() + entry.owner.len() + entry.group.len() + target + annotations
}

/// The contents of a file, piece by piece.
#[derive(Debug)]
pub struct FileReader<'a> {
    channel: &'a mut FileChannel,
    entry: FileEntry,
}

impl FileReader<'_> {
    /// What is read, as it was when it was opened.
    pub fn entry(&self) -> &FileEntry {
        &self.entry
    }

    /// The next piece; `None` after the last.
    ///
    /// # Errors
    /// `File`, `Gone`.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, SupervisorError> {
        self.channel.next_data().await
    }
}

/// The contents of a file, piece by piece, with the channel that they come over.
#[derive(Debug)]
pub struct OwnedFileReader {
    channel: FileChannel,
    entry: FileEntry,
}

impl OwnedFileReader {
    /// What is read, as it was when it was opened.
    pub fn entry(&self) -> &FileEntry {
        &self.entry
    }

    /// The next piece; `None` after the last.
    ///
    /// # Errors
    /// `File`, `Gone`.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, SupervisorError> {
        self.channel.next_data().await
    }
}

/// A file that is being written. Dropping it before [`Self::finish`] leaves what was sent.
#[derive(Debug)]
pub struct FileWriter<'a> {
    channel: &'a mut FileChannel,
}

impl FileWriter<'_> {
    /// The next piece of the contents, of any length; waits as long as the sandbox does not take it.
    ///
    /// # Errors
    /// `File` when it cannot be written, after which nothing more is to be sent; `Gone`.
    pub async fn send(&mut self, bytes: &[u8]) -> Result<(), SupervisorError> {
        for piece in bytes.chunks(DATA_CHUNK) {
            self.check().await?;
            let bytes = piece.to_vec();
            self.channel.send(&FileRequest::Data { bytes }).await?;
        }
        Ok(())
    }

    /// The file is complete.
    ///
    /// # Errors
    /// `File` when it could not be written, `Gone`.
    pub async fn finish(self) -> Result<FileEntry, SupervisorError> {
        self.channel.send(&FileRequest::Finish).await?;
        match self.channel.answer(STEP, "finish a file").await? {
            FileReply::Entry(entry) => self.channel.over_with(Ok(entry)),
            other => self.channel.refused(other),
        }
    }

    /// A failure may be answered at any time; who sends gigabytes is told at once.
    async fn check(&mut self) -> Result<(), SupervisorError> {
        let answered = tokio::select! {
            biased;
            reply = self.channel.reply() => Some(reply?),
            () = std::future::ready(()) => None,
        };
        let Some(reply) = answered else { return Ok(()) };
        // The rest of this file is dropped up to here, and answered with nothing more.
        self.channel.send(&FileRequest::Finish).await?;
        self.channel.refused(reply)
    }
}

/// Changes below a directory, until it is dropped.
#[derive(Debug)]
pub struct FileWatch {
    channel: FileChannel,
}

impl FileWatch {
    /// The next changes, in order. May be dropped and called again: nothing is lost.
    ///
    /// # Errors
    /// `File` when the directory cannot be watched any more, `Gone`.
    pub async fn next(&mut self) -> Result<Vec<WatchedChange>, SupervisorError> {
        match self.channel.reply().await? {
            FileReply::Changed(changes) => Ok(changes),
            other => self.channel.refused(other),
        }
    }
}

#[cfg(test)]
#[path = "files_tests.rs"]
mod tests;
