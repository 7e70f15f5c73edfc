//! WASI preview 1, which core modules import as `wasi_snapshot_preview1`. Sockets are absent: their calls answer `ENOTSUP`.

mod calls;

use std::time::Duration;

use offleash_simulated::engine::{FileFacts, FileKind, FileOperation, MAX_PIECE};
use rustix::io::Errno;
use wasmtime::{Caller, Extern};

pub(super) use calls::add_to;

use super::command::{CommandState, wall_clock};
use super::descriptors::{Descriptor, OpenDirectory, OpenFile};
use super::paths::{OpenWish, Opened, ReadAhead, TreePath};
use super::{Lacks, OutputFull, errno};

/// How many pieces one call can name, and how many events one can wait for.
const MAX_VECTORS: u32 = 1024;
const MAX_SUBSCRIPTIONS: u32 = 4096;
const CLOCK_REALTIME: u32 = 0;
const CLOCK_MONOTONIC: u32 = 1;
const O_CREAT: u32 = 1;
const O_DIRECTORY: u32 = 2;
const O_EXCL: u32 = 4;
const O_TRUNC: u32 = 8;
const FDFLAG_APPEND: u32 = 1;
const LOOKUP_FOLLOW: u32 = 1;
const RIGHT_READ: u64 = 1 << 1;
const RIGHT_WRITE: u64 = 1 << 6;
const ALL_RIGHTS: u64 = (1 << 30) - 1;
/// Seeking and telling, which no stream has.
const RIGHTS_TO_SEEK: u64 = (1 << 2) | (1 << 5);
const SET_ACCESS_NOW: u32 = 2;
const SET_MODIFIED: u32 = 4;
const SET_MODIFIED_NOW: u32 = 8;

/// The memory of a module, and what its imports act on.
struct Guest<'a> {
    memory: &'a mut [u8],
    state: &'a mut CommandState,
}

type Answer = Result<(), i32>;
type Called<'a> = Caller<'a, CommandState>;

/// Carries a call out; its answer as the preview numbers it.
fn answer(caller: &mut Called<'_>, call: impl FnOnce(&mut Guest<'_>) -> Answer) -> wasmtime::Result<u32> {
    let Some(Extern::Memory(memory)) = caller.get_export("memory") else {
        return Err(wasmtime::Error::new(Lacks(
            "a module without an export `memory`".to_owned(),
        )));
    };
    let (memory, state) = memory.data_and_store_mut(caller);
    let answered = call(&mut Guest { memory, state });
    if state.is_output_full {
        return Err(wasmtime::Error::new(OutputFull));
    }
    Ok(answered.map_or_else(|errno| u32::from(errno::preview1(errno)), |()| 0))
}

fn fault() -> i32 {
    Errno::FAULT.raw_os_error()
}

impl Guest<'_> {
    fn slice(&mut self, start: u32, length: u32) -> Result<&mut [u8], i32> {
        let start = usize::try_from(start).map_err(|_| fault())?;
        let length = usize::try_from(length).map_err(|_| fault())?;
        let end = start.checked_add(length).ok_or_else(fault)?;
        self.memory.get_mut(start..end).ok_or_else(fault)
    }

    fn put(&mut self, at: u32, bytes: &[u8]) -> Answer {
        let length = u32::try_from(bytes.len()).map_err(|_| fault())?;
        self.slice(at, length)?.copy_from_slice(bytes);
        Ok(())
    }

    fn put_u32(&mut self, at: u32, value: u32) -> Answer {
        self.put(at, &value.to_le_bytes())
    }

    fn put_u64(&mut self, at: u32, value: u64) -> Answer {
        self.put(at, &value.to_le_bytes())
    }

    fn take<const N: usize>(&mut self, at: u32) -> Result<[u8; N], i32> {
        let length = u32::try_from(N).map_err(|_| fault())?;
        let bytes: &[u8] = self.slice(at, length)?;
        bytes.try_into().map_err(|_| fault())
    }

    fn take_u32(&mut self, at: u32) -> Result<u32, i32> {
        self.take(at).map(u32::from_le_bytes)
    }

    fn take_u64(&mut self, at: u32) -> Result<u64, i32> {
        self.take(at).map(u64::from_le_bytes)
    }

    fn path(&mut self, at: u32, length: u32) -> Result<Vec<u8>, i32> {
        self.slice(at, length).map(|path| path.to_vec())
    }

    fn directory(&mut self, fd: u32) -> Result<TreePath, i32> {
        self.state
            .descriptors
            .directory(fd)
            .map(|directory| directory.path.clone())
    }

    /// The first of the pieces that is not empty, which all of a call may be cut to.
    fn first_piece(&mut self, vectors: u32, count: u32) -> Result<(u32, u32), i32> {
        if count > MAX_VECTORS {
            return Err(Errno::INVAL.raw_os_error());
        }
        for number in 0..count {
            let at = vectors.checked_add(number * 8).ok_or_else(fault)?;
            let (start, length) = (self.take_u32(at)?, self.take_u32(at.checked_add(4).ok_or_else(fault)?)?);
            self.slice(start, length)?;
            if length > 0 {
                return Ok((start, length.min(u32::try_from(MAX_PIECE).unwrap_or(u32::MAX))));
            }
        }
        Ok((0, 0))
    }

    /// Words, each ended by a zero, and where each begins.
    fn put_words(&mut self, words: &[Vec<u8>], pointers: u32, buffer: u32) -> Answer {
        let mut at = buffer;
        for (number, word) in words.iter().enumerate() {
            let number = u32::try_from(number).map_err(|_| fault())?;
            self.put_u32(pointers.checked_add(number * 4).ok_or_else(fault)?, at)?;
            self.put(at, word)?;
            let length = u32::try_from(word.len()).map_err(|_| fault())?;
            at = at.checked_add(length).ok_or_else(fault)?;
        }
        Ok(())
    }

    fn put_sizes(&mut self, words: &[Vec<u8>], count: u32, size: u32) -> Answer {
        let bytes: usize = words.iter().map(Vec::len).sum();
        self.put_u32(count, u32::try_from(words.len()).map_err(|_| fault())?)?;
        self.put_u32(size, u32::try_from(bytes).map_err(|_| fault())?)
    }

    fn arguments(&self) -> Vec<Vec<u8>> {
        let words = self.state.argv.iter();
        words.map(|word| [word.as_bytes(), b"\0"].concat()).collect()
    }

    fn environment(&self) -> Vec<Vec<u8>> {
        let variables = self.state.env.iter();
        variables
            .map(|(name, value)| format!("{name}={value}\0").into_bytes())
            .collect()
    }

    fn clock(&self, clock: u32) -> Result<u64, i32> {
        match clock {
            CLOCK_REALTIME => Ok(wall_clock()),
            CLOCK_MONOTONIC => Ok(self.state.monotonic()),
            _ => Err(Errno::INVAL.raw_os_error()),
        }
    }

    fn read(&mut self, fd: u32, at: Option<u64>, vectors: u32, count: u32, read: u32) -> Answer {
        let (start, length) = self.first_piece(vectors, count)?;
        let start_at = usize::try_from(start).map_err(|_| fault())?;
        let length = usize::try_from(length).map_err(|_| fault())?;
        let buffer = self.memory.get_mut(start_at..start_at + length).ok_or_else(fault)?;
        let state = &mut *self.state;
        let taken = match (state.descriptors.get(fd)?, at) {
            (Descriptor::Input, None) => {
                let bytes = state.descriptors.input(length);
                let taken = bytes.len();
                buffer.get_mut(..taken).ok_or_else(fault)?.copy_from_slice(bytes);
                taken
            }
            (Descriptor::File(file), at) => {
                let taken = file.read(&state.files, at.unwrap_or(file.position), buffer)?;
                if at.is_none() {
                    file.position = file.position.saturating_add(taken as u64);
                }
                taken
            }
            (Descriptor::Directory(_), _) => return Err(Errno::ISDIR.raw_os_error()),
            (Descriptor::Output(_), None) => return Err(Errno::BADF.raw_os_error()),
            (Descriptor::Input | Descriptor::Output(_), Some(_)) => return Err(Errno::SPIPE.raw_os_error()),
        };
        self.put_u32(read, u32::try_from(taken).map_err(|_| fault())?)
    }

    fn write(&mut self, fd: u32, at: Option<u64>, vectors: u32, count: u32, written: u32) -> Answer {
        let (start, length) = self.first_piece(vectors, count)?;
        let start = usize::try_from(start).map_err(|_| fault())?;
        let length = usize::try_from(length).map_err(|_| fault())?;
        let bytes = self.memory.get(start..start + length).ok_or_else(fault)?;
        let state = &mut *self.state;
        let given = match (state.descriptors.get(fd)?, at) {
            (Descriptor::Output(stream), None) => {
                let stream = *stream;
                state.output(stream, bytes)
            }
            (Descriptor::File(file), at) => {
                let given = file.write(&state.files, at.unwrap_or(file.position), bytes)?;
                if at.is_none() {
                    file.position = match file.appends {
                        true => state.files.facts(&file.path)?.size,
                        false => file.position.saturating_add(given as u64),
                    };
                }
                given
            }
            (Descriptor::Input | Descriptor::Directory(_), _) => return Err(Errno::BADF.raw_os_error()),
            (Descriptor::Output(_), Some(_)) => return Err(Errno::SPIPE.raw_os_error()),
        };
        self.put_u32(written, u32::try_from(given).map_err(|_| fault())?)
    }

    fn seek(&mut self, fd: u32, offset: i64, whence: u32, at: u32) -> Answer {
        let state = &mut *self.state;
        let file = state.descriptors.file(fd)?;
        let from = match whence {
            0 => 0,
            1 => file.position,
            2 => state.files.facts(&file.path)?.size,
            _ => return Err(Errno::INVAL.raw_os_error()),
        };
        let position = from.checked_add_signed(offset);
        let position = position.filter(|position| i64::try_from(*position).is_ok());
        file.position = position.ok_or(Errno::INVAL.raw_os_error())?;
        let position = file.position;
        self.put_u64(at, position)
    }

    fn put_status(&mut self, fd: u32, at: u32) -> Answer {
        let (kind, flags, rights): (u8, u16, u64) = match self.state.descriptors.get(fd)? {
            Descriptor::Input => (0, 0, ALL_RIGHTS & !(RIGHTS_TO_SEEK | RIGHT_WRITE)),
            Descriptor::Output(_) => (0, 0, ALL_RIGHTS & !(RIGHTS_TO_SEEK | RIGHT_READ)),
            Descriptor::Directory(_) => (3, 0, ALL_RIGHTS),
            Descriptor::File(file) => {
                let without = match (file.reads, file.writes) {
                    (true, true) => 0,
                    (true, false) => RIGHT_WRITE,
                    (false, _) => RIGHT_READ,
                };
                (4, u16::from(file.appends), ALL_RIGHTS & !without)
            }
        };
        let mut status = [0; 24];
        status[0] = kind;
        status[2..4].copy_from_slice(&flags.to_le_bytes());
        status[8..16].copy_from_slice(&rights.to_le_bytes());
        status[16..24].copy_from_slice(&ALL_RIGHTS.to_le_bytes());
        self.put(at, &status)
    }

    fn put_facts(&mut self, path: &TreePath, facts: FileFacts, at: u32) -> Answer {
        let mut stat = [0; 64];
        stat[8..16].copy_from_slice(&path.number().to_le_bytes());
        stat[16] = kind_of(facts.kind);
        stat[24..32].copy_from_slice(&1_u64.to_le_bytes());
        stat[32..40].copy_from_slice(&facts.size.to_le_bytes());
        let time = u64::try_from(facts.seconds).unwrap_or(0).saturating_mul(1_000_000_000);
        let time = time.saturating_add(u64::from(facts.nanoseconds)).to_le_bytes();
        for start in [40, 48, 56] {
            stat.get_mut(start..start + 8).ok_or_else(fault)?.copy_from_slice(&time);
        }
        self.put(at, &stat)
    }

    fn stat(&mut self, fd: u32, at: u32) -> Answer {
        let path = match self.state.descriptors.get(fd)? {
            Descriptor::Directory(directory) => directory.path.clone(),
            Descriptor::File(file) => file.path.clone(),
            Descriptor::Input | Descriptor::Output(_) => return self.put(at, &[0; 64]),
        };
        let facts = self.state.files.facts(&path)?;
        self.put_facts(&path, facts, at)
    }

    fn stat_path(&mut self, fd: u32, flags: u32, path: (u32, u32), at: u32) -> Answer {
        let (directory, path) = (self.directory(fd)?, self.path(path.0, path.1)?);
        let found = self
            .state
            .files
            .resolve(&directory, &path, flags & LOOKUP_FOLLOW != 0)?;
        let facts = found.facts.ok_or(Errno::NOENT.raw_os_error())?;
        self.put_facts(&found.path, facts, at)
    }

    #[expect(clippy::too_many_arguments, reason = "those of the call")]
    fn open(&mut self, fd: u32, lookup: u32, path: (u32, u32), open: u32, rights: u64, flags: u32, at: u32) -> Answer {
        let (directory, path) = (self.directory(fd)?, self.path(path.0, path.1)?);
        let wish = OpenWish {
            follow: lookup & LOOKUP_FOLLOW != 0,
            create: open & O_CREAT != 0,
            exclusive: open & O_EXCL != 0,
            truncate: open & O_TRUNC != 0,
            directory: open & O_DIRECTORY != 0,
            // Of a directory more rights are asked for than it has.
            write: false,
        };
        let opened = match self.state.files.open(&directory, &path, wish)? {
            Opened::Directory(path) => Descriptor::Directory(OpenDirectory {
                path,
                preopened: None,
                listed: None,
            }),
            Opened::File(path) => Descriptor::File(OpenFile {
                path,
                position: 0,
                appends: flags & FDFLAG_APPEND != 0,
                reads: rights & RIGHT_READ != 0,
                writes: rights & RIGHT_WRITE != 0,
                ahead: ReadAhead::default(),
            }),
        };
        let number = self.state.descriptors.add(opened)?;
        self.put_u32(at, number)
    }

    fn read_directory(&mut self, fd: u32, buffer: u32, length: u32, cookie: u64, used: u32) -> Answer {
        const HEAD: usize = 24;
        let state = &mut *self.state;
        let directory = state.descriptors.directory(fd)?;
        if cookie == 0 || directory.listed.is_none() {
            let mut entries = vec![
                (b".".to_vec(), FileKind::Directory),
                (b"..".to_vec(), FileKind::Directory),
            ];
            entries.extend(state.files.entries(&directory.path)?);
            directory.listed = Some(entries);
        }
        let entries = directory.listed.as_deref().unwrap_or_default();
        let number = directory.path.number();
        let most = usize::try_from(length).map_err(|_| fault())?;
        let mut written = Vec::new();
        let first = usize::try_from(cookie).unwrap_or(usize::MAX);
        for (place, (name, kind)) in entries.iter().enumerate().skip(first) {
            if written.len() >= most {
                break;
            }
            let mut head = [0; HEAD];
            head[..8].copy_from_slice(&(place as u64 + 1).to_le_bytes());
            head[8..16].copy_from_slice(&number.wrapping_add(place as u64 + 1).to_le_bytes());
            head[16..20].copy_from_slice(&u32::try_from(name.len()).map_err(|_| fault())?.to_le_bytes());
            head[20] = kind_of(*kind);
            written.extend_from_slice(&head);
            written.extend_from_slice(name);
        }
        written.truncate(most);
        self.put(buffer, &written)?;
        self.put_u32(used, u32::try_from(written.len()).map_err(|_| fault())?)
    }

    fn change_at(&mut self, fd: u32, path: (u32, u32), operation: FileOperation) -> Answer {
        let (directory, path) = (self.directory(fd)?, self.path(path.0, path.1)?);
        let found = self.state.files.resolve(&directory, &path, false)?;
        self.state.files.change(&found.path, operation)
    }

    fn remove(&mut self, fd: u32, path: (u32, u32), is_directory: bool) -> Answer {
        let (directory, path) = (self.directory(fd)?, self.path(path.0, path.1)?);
        let found = self.state.files.resolve(&directory, &path, false)?;
        self.state.files.remove(&found.path, is_directory)
    }

    fn rename(&mut self, from: (u32, u32, u32), to: (u32, u32, u32)) -> Answer {
        let (old, old_path) = (self.directory(from.0)?, self.path(from.1, from.2)?);
        let (new, new_path) = (self.directory(to.0)?, self.path(to.1, to.2)?);
        let old = self.state.files.resolve(&old, &old_path, false)?;
        let new = self.state.files.resolve(&new, &new_path, false)?;
        self.state.files.rename(&old.path, &new.path)
    }

    fn read_link(&mut self, fd: u32, path: (u32, u32), buffer: u32, length: u32, used: u32) -> Answer {
        let (directory, path) = (self.directory(fd)?, self.path(path.0, path.1)?);
        let found = self.state.files.resolve(&directory, &path, false)?;
        let mut target = self.state.files.link_target(&found.path)?;
        target.truncate(usize::try_from(length).map_err(|_| fault())?);
        self.put(buffer, &target)?;
        self.put_u32(used, u32::try_from(target.len()).map_err(|_| fault())?)
    }

    /// The time that flags and a number stand for; none if nothing is to be set.
    fn touch(&mut self, path: &TreePath, modified: u64, flags: u32) -> Answer {
        let time = match flags {
            flags if flags & SET_MODIFIED_NOW != 0 => wall_clock(),
            flags if flags & SET_MODIFIED != 0 => modified,
            _ => return Ok(()),
        };
        let operation = FileOperation::Touch {
            seconds: i64::try_from(time / 1_000_000_000).unwrap_or(i64::MAX),
            nanoseconds: u32::try_from(time % 1_000_000_000).unwrap_or(0),
        };
        self.state.files.change(path, operation)
    }

    fn resize(&mut self, fd: u32, size: impl FnOnce(u64) -> Option<u64>) -> Answer {
        let state = &mut *self.state;
        let file = state.descriptors.file(fd)?;
        if !file.writes {
            return Err(Errno::BADF.raw_os_error());
        }
        match size(state.files.facts(&file.path)?.size) {
            Some(size) => state.files.change(&file.path, FileOperation::Resize { size }),
            None => Ok(()),
        }
    }

    fn prestat(&mut self, fd: u32) -> Result<String, i32> {
        let bad = Errno::BADF.raw_os_error();
        match self.state.descriptors.get(fd)? {
            Descriptor::Directory(directory) => directory.preopened.clone().ok_or(bad),
            _ => Err(bad),
        }
    }

    /// Waits for the first of what was subscribed to. Streams and files are always ready.
    fn poll(&mut self, subscriptions: u32, events: u32, count: u32, happened: u32) -> Answer {
        const SUBSCRIPTION: u32 = 48;
        const EVENT: u32 = 32;
        const ABSOLUTE: u16 = 1;
        if count == 0 || count > MAX_SUBSCRIPTIONS {
            return Err(Errno::INVAL.raw_os_error());
        }
        let mut waits = Vec::new();
        for number in 0..count {
            let at = subscriptions.checked_add(number * SUBSCRIPTION).ok_or_else(fault)?;
            self.slice(at, SUBSCRIPTION)?;
            let user_data = self.take_u64(at)?;
            let [kind] = self.take::<1>(at + 8)?;
            let wait = match kind {
                0 => {
                    let (clock, timeout) = (self.take_u32(at + 16)?, self.take_u64(at + 24)?);
                    let flags = u16::from_le_bytes(self.take(at + 40)?);
                    let now = self.clock(clock)?;
                    match flags & ABSOLUTE {
                        0 => timeout,
                        _ => timeout.saturating_sub(now),
                    }
                }
                _ => 0,
            };
            waits.push((wait, user_data, kind));
        }
        let shortest = waits.iter().map(|(wait, ..)| *wait).min().unwrap_or(0);
        if shortest > 0 {
            std::thread::sleep(Duration::from_nanos(shortest));
        }
        let mut said = 0;
        for (_, user_data, kind) in waits.iter().filter(|(wait, ..)| *wait <= shortest) {
            let mut event = [0; 32];
            event[..8].copy_from_slice(&user_data.to_le_bytes());
            event[10] = *kind;
            // How much could be read or written: something.
            event[16..24].copy_from_slice(&u64::from(*kind != 0).to_le_bytes());
            self.put(events.checked_add(said * EVENT).ok_or_else(fault)?, &event)?;
            said += 1;
        }
        self.put_u32(happened, said)
    }
}

fn kind_of(kind: FileKind) -> u8 {
    match kind {
        FileKind::Special => 0,
        FileKind::Directory => 3,
        FileKind::File => 4,
        FileKind::Symlink => 7,
    }
}
