//! A conversation about files with somebody outside, on the trees that commands are served: what `offleash_protocol::files` says.
//!
//! At other levels a process inside answers. Here nothing is inside but shells, so the supervisor does: the files are
//! reached as a worker's are, for the user who is asked for. Each conversation has its turn among all others, and none is waited for.

mod change;
mod entry;
mod path;
#[cfg(test)]
mod tests;
mod walk;
mod watch;
mod write;

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use offleash_protocol::files::{DATA_CHUNK, FileReply, FileRequest};
use offleash_protocol::{MessageDecoder, encode_into};
use offleash_sys::socket;
use rustix::io::Errno;

pub(crate) use change::check_directory;
use change::{make_directory, rename};
pub(crate) use entry::UserNames;
use path::{CleanPath, LastLink, reach};
use walk::{TreeListing, TreeRemoval};
use watch::TreeWatch;
use write::FileWriting;

use crate::served::ServedTrees;
use crate::tree::{FileCaller, TreeChange};
use crate::wire::FileKind;

/// How many steps a conversation takes at one turn: then whoever else waits has one.
const MAX_STEPS: usize = 64;
/// How much is read of a socket at once.
const READ_AT_ONCE: usize = 256 * 1024;
/// Changes that wait for a watcher, in bytes; what is beyond is told as missing.
const MAX_UNTOLD: usize = 4 * 1024 * 1024;

/// One conversation.
#[derive(Debug)]
pub(crate) struct FileChannel {
    socket: OwnedFd,
    caller: FileCaller,
    incoming: MessageDecoder<FileRequest>,
    /// What the other end has not taken.
    unsent: Vec<u8>,
    work: ChannelWork,
    is_over: bool,
}

/// What is asked for.
#[derive(Debug)]
enum ChannelWork {
    Nothing,
    Sending { file: OwnedFd, offset: u64, left: u64 },
    Listing(Box<TreeListing>),
    Removing(Box<TreeRemoval>),
    Writing(Box<FileWriting>),
    Watching(Box<TreeWatch>),
}

/// Why a request is not carried out: what was tried, and what the kernel would say.
type Refusal = (&'static str, Errno);

fn refused(step: &'static str) -> impl Fn(Errno) -> Refusal {
    move |errno| (step, errno)
}

impl FileChannel {
    /// A conversation for `caller`, and the end of its socket for whoever asked.
    ///
    /// # Errors
    /// When there are no more descriptors.
    pub(crate) fn open(caller: FileCaller) -> io::Result<(Self, OwnedFd)> {
        let (socket, theirs) = socket::stream_pair()?;
        rustix::io::ioctl_fionbio(&socket, true)?;
        let channel = Self {
            socket,
            caller,
            incoming: MessageDecoder::new(),
            unsent: Vec::new(),
            work: ChannelWork::Nothing,
            is_over: false,
        };
        Ok((channel, theirs))
    }

    /// Its socket, and whether it is to be waited for until that takes something.
    pub(crate) fn interest(&self) -> (BorrowedFd<'_>, bool) {
        (self.socket.as_fd(), !self.unsent.is_empty())
    }

    /// Whether the other end is gone.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Whether it has more to do without anything happening.
    pub(crate) fn has_work(&self) -> bool {
        let goes_on = matches!(
            self.work,
            ChannelWork::Sending { .. } | ChannelWork::Listing(_) | ChannelWork::Removing(_)
        );
        goes_on && self.unsent.is_empty() && !self.is_over
    }

    /// Whether it is told of changes.
    pub(crate) fn watches(&self) -> bool {
        matches!(self.work, ChannelWork::Watching(_))
    }

    /// Takes its turn.
    pub(crate) fn turn(&mut self, trees: &mut ServedTrees, names: &UserNames) {
        for _ in 0..MAX_STEPS {
            self.flush();
            if self.is_over || !self.unsent.is_empty() {
                return;
            }
            let goes_on = match self.work {
                ChannelWork::Nothing | ChannelWork::Writing(_) | ChannelWork::Watching(_) => self.hear(trees, names),
                ChannelWork::Sending { .. } => self.send_piece(),
                ChannelWork::Listing(_) => self.list_on(trees, names),
                ChannelWork::Removing(_) => self.remove_on(trees),
            };
            if !goes_on {
                return;
            }
        }
        self.flush();
    }

    /// Tells of changes, if it watches.
    pub(crate) fn tell(
        &mut self,
        changes: &[(std::path::PathBuf, TreeChange)],
        trees: &mut ServedTrees,
        names: &UserNames,
    ) {
        let ChannelWork::Watching(watch) = &mut self.work else {
            return;
        };
        let mut told = Vec::new();
        for (target, change) in changes {
            if self.unsent.len() > MAX_UNTOLD {
                if !watch.has_missed {
                    told.push(TreeWatch::missed());
                }
                watch.has_missed = true;
                break;
            }
            watch.has_missed = false;
            told.extend(watch.told(target, change, trees, self.caller, names));
        }
        for few in told.chunks(offleash_protocol::files::ENTRIES_CHUNK) {
            self.say(&FileReply::Changed(few.to_vec()));
        }
        self.flush();
    }

    /// Takes the next message; whether there was one.
    fn hear(&mut self, trees: &mut ServedTrees, names: &UserNames) -> bool {
        match self.incoming.next() {
            Ok(Some(request)) => {
                self.take(request, trees, names);
                true
            }
            Ok(None) => self.read_more(),
            Err(_) => {
                self.is_over = true;
                false
            }
        }
    }

    fn read_more(&mut self) -> bool {
        let mut buffer = vec![0; READ_AT_ONCE];
        let flags = rustix::net::RecvFlags::empty();
        match rustix::net::recv(&self.socket, buffer.as_mut_slice(), flags) {
            Ok((0, _)) => self.is_over = true,
            Ok((count, _)) => {
                self.incoming.push(buffer.get(..count).unwrap_or_default());
                return true;
            }
            Err(Errno::INTR) => return true,
            Err(Errno::AGAIN) => {}
            Err(_) => self.is_over = true,
        }
        false
    }

    fn take(&mut self, request: FileRequest, trees: &mut ServedTrees, names: &UserNames) {
        if let ChannelWork::Writing(writing) = &mut self.work {
            let answer = writing.take(request, trees, self.caller, names);
            let is_finished = writing.is_finished();
            if is_finished {
                self.work = ChannelWork::Nothing;
            }
            if let Some(reply) = answer {
                self.say(&reply);
            }
            return;
        }
        if self.watches() {
            // Nothing may be said after the request to watch.
            self.is_over = true;
            return;
        }
        if let Err((step, errno)) = self.begin(request, trees, names) {
            self.say(&failed(step, errno));
        }
    }

    /// Begins what is asked for, and carries out what takes one step.
    fn begin(&mut self, request: FileRequest, trees: &mut ServedTrees, names: &UserNames) -> Result<(), Refusal> {
        let caller = self.caller;
        match request {
            FileRequest::Stat { path } => {
                let path = cleaned(&path)?;
                let found = entry::at(trees, caller, &path, names).map_err(refused("stat"))?;
                self.say(&FileReply::Entry(found));
            }
            FileRequest::List { path, depth } => {
                let listing = TreeListing::begin(trees, caller, cleaned(&path)?, depth).map_err(refused("open"))?;
                self.work = ChannelWork::Listing(Box::new(listing));
            }
            FileRequest::MakeDirectory { path } => {
                let path = cleaned(&path)?;
                make_directory(trees, caller, &path).map_err(refused("mkdir"))?;
                let found = entry::at(trees, caller, &path, names).map_err(refused("stat"))?;
                self.say(&FileReply::Entry(found));
            }
            FileRequest::Rename { source, destination } => {
                let (source, destination) = (cleaned(&source)?, cleaned(&destination)?);
                rename(trees, caller, &source, &destination).map_err(refused("rename"))?;
                let found = entry::at(trees, caller, &destination, names).map_err(refused("stat"))?;
                self.say(&FileReply::Entry(found));
            }
            FileRequest::Remove { path } => {
                self.work = ChannelWork::Removing(Box::new(TreeRemoval::begin(cleaned(&path)?)));
            }
            FileRequest::Read { path, offset, length } => self.begin_read(&path, offset, length, trees, names)?,
            FileRequest::Write { path, metadata } => {
                let writing = FileWriting::begin(&path, metadata, trees, caller);
                if let Some((step, errno)) = writing.failure() {
                    self.say(&failed(step, errno));
                }
                self.work = ChannelWork::Writing(Box::new(writing));
            }
            FileRequest::Watch {
                path,
                recursive,
                entries,
            } => {
                let asked = cleaned(&path)?;
                let root = reach(trees, caller, asked.path(), LastLink::Followed).map_err(refused("open"))?;
                match root.facts.map(|found| found.facts.kind) {
                    Some(FileKind::Directory) => {}
                    Some(_) => return Err(("open", Errno::NOTDIR)),
                    None => return Err(("open", Errno::NOENT)),
                }
                self.work = ChannelWork::Watching(Box::new(TreeWatch {
                    asked,
                    root: root.path,
                    is_recursive: recursive,
                    with_entries: entries,
                    has_missed: false,
                }));
                self.say(&FileReply::Done);
            }
            // Nothing is being written.
            FileRequest::Data { .. } | FileRequest::Finish => self.is_over = true,
        }
        Ok(())
    }

    fn begin_read(
        &mut self,
        path: &[u8],
        offset: u64,
        length: Option<u64>,
        trees: &mut ServedTrees,
        names: &UserNames,
    ) -> Result<(), Refusal> {
        let path = cleaned(path)?;
        let reached = reach(trees, self.caller, path.path(), LastLink::Followed).map_err(refused("open"))?;
        let found = reached.facts.ok_or(("open", Errno::NOENT))?;
        match found.facts.kind {
            FileKind::File => {}
            FileKind::Directory => return Err(("open", Errno::ISDIR)),
            FileKind::Symlink | FileKind::Special => return Err(("open", Errno::INVAL)),
        }
        let tree = trees.numbered(reached.tree).map_err(refused("open"))?;
        let file = tree.open_for(self.caller, &reached.inner).map_err(refused("open"))?;
        let entry = entry::of_reached(trees, self.caller, &path, &reached, found, names);
        self.say(&FileReply::Entry(entry));
        let left = length.unwrap_or(u64::MAX);
        self.work = ChannelWork::Sending { file, offset, left };
        Ok(())
    }

    fn send_piece(&mut self) -> bool {
        let ChannelWork::Sending { file, offset, left } = &mut self.work else {
            return false;
        };
        let most = usize::try_from(*left).unwrap_or(usize::MAX).min(DATA_CHUNK);
        let mut bytes = vec![0; most];
        let read = match most {
            0 => Ok(0),
            _ => rustix::io::retry_on_intr(|| rustix::io::pread(&*file, bytes.as_mut_slice(), *offset)),
        };
        let reply = match read {
            Ok(0) => FileReply::Done,
            Ok(count) => {
                bytes.truncate(count);
                (*offset, *left) = (*offset + count as u64, *left - count as u64);
                FileReply::Data { bytes }
            }
            Err(errno) => failed("read", errno),
        };
        if !matches!(reply, FileReply::Data { .. }) {
            self.work = ChannelWork::Nothing;
        }
        self.say(&reply);
        true
    }

    fn list_on(&mut self, trees: &mut ServedTrees, names: &UserNames) -> bool {
        let ChannelWork::Listing(listing) = &mut self.work else {
            return false;
        };
        match listing.step(trees, self.caller, names) {
            Ok((reply, is_all)) => {
                if is_all {
                    self.work = ChannelWork::Nothing;
                }
                if let Some(reply) = reply {
                    self.say(&reply);
                }
                if is_all {
                    self.say(&FileReply::Done);
                }
            }
            Err(errno) => self.give_up("list", errno),
        }
        true
    }

    fn remove_on(&mut self, trees: &mut ServedTrees) -> bool {
        let ChannelWork::Removing(removal) = &mut self.work else {
            return false;
        };
        match removal.step(trees, self.caller) {
            Ok(true) => {
                self.work = ChannelWork::Nothing;
                self.say(&FileReply::Done);
            }
            Ok(false) => {}
            Err(errno) => self.give_up("remove", errno),
        }
        true
    }

    fn give_up(&mut self, step: &'static str, errno: Errno) {
        self.work = ChannelWork::Nothing;
        self.say(&failed(step, errno));
    }

    fn say(&mut self, reply: &FileReply) {
        // What does not fit a frame is none of ours.
        if encode_into(reply, &mut self.unsent).is_err() {
            self.is_over = true;
        }
    }

    fn flush(&mut self) {
        let mut sent = 0;
        while let Some(rest) = self.unsent.get(sent..).filter(|rest| !rest.is_empty()) {
            match rustix::net::send(&self.socket, rest, rustix::net::SendFlags::NOSIGNAL) {
                Ok(count) => sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => {
                    self.is_over = true;
                    break;
                }
            }
        }
        self.unsent.drain(..sent);
    }
}

fn failed(step: &str, errno: Errno) -> FileReply {
    FileReply::Failed {
        step: step.to_owned(),
        errno: errno.raw_os_error(),
    }
}

fn cleaned(path: &[u8]) -> Result<CleanPath, Refusal> {
    CleanPath::parse(path).map_err(refused("read the path"))
}
