//! Changes below a directory, told as they happen until the host closes the socket (inotify(7)).
//!
//! Directories that appear are watched as soon as they are heard of, and what is in them already is told as made, and as
//! written where there is something in it. When
//! the kernel has more to tell than it keeps, that is told too, and every directory is looked for again.

use alloc::vec::Vec;
use core::mem::MaybeUninit;

use offleash_protocol::files::{ChangeKind, ENTRIES_CHUNK, FileReply, WatchedChange};
use rustix::event::{PollFd, PollFlags};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::channel::HostChannel;
use super::entry;
use super::failure::{FileFailure, HostGone, RequestStop, failed};
use super::names::AccountNames;
use super::path::{GuestPath, joined};
use super::walk::TreeCursor;
use super::watched::WatchedDirectories;

/// Names that were told because they were found, and whose events may still come; beyond, some are told twice.
const MAX_FOUND: usize = 4096;

/// Bytes of changes after which they are sent.
const BATCH: usize = 512 * 1024;

/// What is asked of the kernel for each directory.
fn interests() -> WatchFlags {
    WatchFlags::CREATE
        | WatchFlags::MOVE
        | WatchFlags::MOVE_SELF
        | WatchFlags::MODIFY
        | WatchFlags::ATTRIB
        | WatchFlags::DELETE
        | WatchFlags::DELETE_SELF
        | WatchFlags::ONLYDIR
}

/// What each event is told as; one that is several is told in this order.
const KINDS: [(ReadFlags, ChangeKind); 5] = [
    (ReadFlags::CREATE.union(ReadFlags::MOVED_TO), ChangeKind::Create),
    (ReadFlags::MOVED_FROM.union(ReadFlags::MOVE_SELF), ChangeKind::Rename),
    (ReadFlags::ATTRIB, ChangeKind::Chmod),
    (ReadFlags::MODIFY, ChangeKind::Write),
    (ReadFlags::DELETE.union(ReadFlags::DELETE_SELF), ChangeKind::Remove),
];

/// What the kernel said.
struct WatchEvent {
    watch: i32,
    flags: ReadFlags,
    name: Option<Vec<u8>>,
}

struct TreeWatcher<'a> {
    channel: &'a mut HostChannel,
    inotify: OwnedFd,
    /// Not held open, because the kernel tells of a directory's end when nobody has it open any more.
    path: &'a GuestPath,
    recursive: bool,
    with_entries: bool,
    watched: WatchedDirectories,
    found: Vec<(i32, Vec<u8>)>,
    /// Changes that were not sent yet, and about how large they are.
    changes: Vec<WatchedChange>,
    size: usize,
}

/// Watches until the host closes the socket, or says anything on it.
pub(super) fn watch(
    channel: &mut HostChannel,
    path: &GuestPath,
    recursive: bool,
    with_entries: bool,
) -> Result<(), RequestStop> {
    let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(failed("inotify"))?;
    let mut watcher = TreeWatcher {
        channel,
        inotify,
        path,
        recursive,
        with_entries,
        watched: WatchedDirectories::default(),
        found: Vec::new(),
        changes: Vec::new(),
        size: 0,
    };
    watcher.take_in(Vec::new(), FoundEntries::Known)?;
    watcher.channel.send(&FileReply::Done)?;
    loop {
        watcher.wait()?;
        for event in watcher.events()? {
            watcher.tell(event)?;
        }
        watcher.send()?;
    }
}

/// Whether what a directory holds is news.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FoundEntries {
    Known,
    New,
}

/// A directory that is being looked through.
struct WatchLevel {
    /// The directories in it that are still to be watched.
    below: Vec<Vec<u8>>,
    /// Where it is, relative to the root.
    path: Vec<u8>,
}

impl TreeWatcher<'_> {
    /// Waits for an event; stops when the host is gone.
    fn wait(&mut self) -> Result<(), HostGone> {
        let mut polled = [
            PollFd::from_borrowed_fd(self.channel.socket(), PollFlags::IN | PollFlags::RDHUP),
            PollFd::new(&self.inotify, PollFlags::IN),
        ];
        match rustix::event::poll(&mut polled, None) {
            // Nothing may be said after the request to watch, so all that it can be is the end.
            Ok(_) if !polled[0].revents().is_empty() => Err(HostGone),
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(_) => Err(HostGone),
        }
    }

    /// What one read of the kernel's queue gives.
    fn events(&mut self) -> Result<Vec<WatchEvent>, FileFailure> {
        let mut space = [MaybeUninit::uninit(); 8192];
        let mut reader = inotify::Reader::new(&self.inotify, &mut space);
        let mut events = Vec::new();
        loop {
            match reader.next() {
                Ok(event) => events.push(WatchEvent {
                    watch: event.wd(),
                    flags: event.events(),
                    name: event.file_name().map(|name| name.to_bytes().to_vec()),
                }),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    // Whatever was queued when a directory was looked through has been read.
                    self.found.clear();
                    return Ok(events);
                }
                Err(errno) => return Err(failed("read")(errno)),
            }
            if reader.is_buffer_empty() {
                return Ok(events);
            }
        }
    }

    fn tell(&mut self, event: WatchEvent) -> Result<(), RequestStop> {
        let WatchEvent { watch, flags, name } = event;
        if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            return self.recover();
        }
        if flags.contains(ReadFlags::IGNORED) {
            self.watched.forget(watch);
            return Ok(());
        }
        let Some(directory) = self.watched.path(watch) else {
            return Ok(());
        };
        let path = match &name {
            Some(name) => below(directory, name),
            // What becomes of a directory below is told by the one that it is in.
            None if directory.is_empty() => Vec::from(&b"."[..]),
            None => return Ok(()),
        };
        let is_made = flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO);
        if is_made
            && let Some(name) = &name
            && self.was_found(watch, name)
        {
            return Ok(());
        }
        for (kinds, kind) in KINDS {
            if flags.intersects(kinds) {
                self.push(&path, kind)?;
            }
        }
        if self.recursive && flags.contains(ReadFlags::ISDIR) && name.is_some() {
            if flags.contains(ReadFlags::MOVED_FROM) {
                // Wherever it went, what its directories are called now is not known here.
                for watch in self.watched.forget_below(&path) {
                    // It fails if the directory is gone, too.
                    let _ = inotify::remove_watch(&self.inotify, watch);
                }
            }
            if is_made {
                return self.take_in_late(path, FoundEntries::New);
            }
        }
        Ok(())
    }

    /// Whether this was told before, when the directory was looked through.
    fn was_found(&mut self, watch: i32, name: &[u8]) -> bool {
        let place = self.found.iter().position(|(of, found)| *of == watch && found == name);
        place.map(|place| self.found.swap_remove(place)).is_some()
    }

    /// Says that something was missed, and watches what was made meanwhile.
    fn recover(&mut self) -> Result<(), RequestStop> {
        self.push(b".", ChangeKind::Overflow)?;
        self.take_in_late(Vec::new(), FoundEntries::Known)
    }

    /// Watches what appeared. What cannot be watched is as good as missed.
    fn take_in_late(&mut self, path: Vec<u8>, found: FoundEntries) -> Result<(), RequestStop> {
        match self.take_in(path.clone(), found) {
            Err(RequestStop::Failed(_)) => {
                let path = if path.is_empty() { Vec::from(&b"."[..]) } else { path };
                self.push(&path, ChangeKind::Overflow)
            }
            taken => taken,
        }
    }

    /// Watches a directory and, if asked for, those below it; what is gone or not to be read is left out.
    fn take_in(&mut self, path: Vec<u8>, found: FoundEntries) -> Result<(), RequestStop> {
        let is_gone = |errno| matches!(errno, Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS);
        let is_root = path.is_empty();
        let mut place = match self.open(&path) {
            Err(errno) if is_gone(errno) && !is_root => return Ok(()),
            opened => TreeCursor::new(opened.map_err(failed("open"))?),
        };
        let mut levels = Vec::new();
        match self.enter(place.directory(), path, found) {
            Err(RequestStop::Failed(failure)) if is_gone(failure.errno) && !is_root => return Ok(()),
            entered => levels.push(entered?),
        }
        while let Some(level) = levels.last_mut() {
            let Some(name) = level.below.pop() else {
                levels.pop();
                if !levels.is_empty() {
                    place.up().map_err(failed("watch"))?;
                }
                continue;
            };
            let path = below(&level.path, &name);
            match place.down(&name) {
                Ok(()) => {}
                Err(errno) if is_gone(errno) => continue,
                Err(errno) => return Err(failed("open")(errno).into()),
            }
            match self.enter(place.directory(), path, found) {
                Err(RequestStop::Failed(failure)) if is_gone(failure.errno) => place.up().map_err(failed("watch"))?,
                entered => levels.push(entered?),
            }
        }
        Ok(())
    }

    /// Opens a directory; following a link is for the root alone.
    fn open(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match path.is_empty() {
            true => rustix::fs::open(self.path.bytes(), flags, Mode::empty()),
            false => rustix::fs::open(joined(self.path.bytes(), path), flags | OFlags::NOFOLLOW, Mode::empty()),
        }
    }

    /// Watches a directory that is open and looks what is in it.
    fn enter(
        &mut self,
        directory: BorrowedFd<'_>,
        path: Vec<u8>,
        found: FoundEntries,
    ) -> Result<WatchLevel, RequestStop> {
        let by_descriptor = entry::of_descriptor(directory);
        let watch = inotify::add_watch(&self.inotify, by_descriptor, interests()).map_err(failed("watch"))?;
        self.watched.insert(watch, path.clone()).map_err(failed("watch"))?;
        let mut below = Vec::new();
        if !self.recursive {
            return Ok(WatchLevel { below, path });
        }
        let mut entries = Dir::read_from(directory).map_err(failed("list"))?;
        while let Some(entry) = entries.read() {
            let entry = entry.map_err(failed("list"))?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let bytes = name.to_bytes();
            if found == FoundEntries::New {
                if self.found.len() < MAX_FOUND {
                    self.found.push((watch, bytes.to_vec()));
                }
                self.push(&self::below(&path, bytes), ChangeKind::Create)?;
            }
            let look = || rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW);
            let kind = match entry.file_type() {
                FileType::Unknown => look().map_or(FileType::Unknown, |status| entry::type_of(status.st_mode)),
                known => known,
            };
            // It may have been written before the directory was watched, which nothing tells; so it is told here, and again
            // if it was after.
            if found == FoundEntries::New
                && kind == FileType::RegularFile
                && look().is_ok_and(|status| status.st_size > 0)
            {
                self.push(&self::below(&path, bytes), ChangeKind::Write)?;
            }
            if kind == FileType::Directory {
                below.push(bytes.to_vec());
            }
        }
        Ok(WatchLevel { below, path })
    }

    /// Notes a change, and sends them when they are many.
    fn push(&mut self, name: &[u8], kind: ChangeKind) -> Result<(), RequestStop> {
        let may_be_there = !matches!(kind, ChangeKind::Remove | ChangeKind::Rename | ChangeKind::Overflow);
        let entry = if self.with_entries && may_be_there {
            let path = match name {
                b"." => self.path.clone(),
                name => self.path.below(name),
            };
            entry::at(&path, &mut AccountNames::default()).ok()
        } else {
            None
        };
        self.size += name.len() + entry.as_ref().map_or(0, entry::size);
        self.changes.push(WatchedChange {
            name: name.to_vec(),
            kind,
            entry,
        });
        match self.changes.len() == ENTRIES_CHUNK || self.size >= BATCH {
            true => self.send(),
            false => Ok(()),
        }
    }

    fn send(&mut self) -> Result<(), RequestStop> {
        if self.changes.is_empty() {
            return Ok(());
        }
        self.size = 0;
        self.channel
            .send(&FileReply::Changed(core::mem::take(&mut self.changes)))
    }
}

/// A name below a path that is relative itself, and empty for the root.
fn below(directory: &[u8], name: &[u8]) -> Vec<u8> {
    match directory.is_empty() {
        true => name.to_vec(),
        false => joined(directory, name),
    }
}
