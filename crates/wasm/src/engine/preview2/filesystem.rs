//! `wasi:filesystem`, over the files that the supervisor serves.

use offleash_simulated::engine::{FileFacts, FileKind, FileOperation, MAX_PIECE};
use rustix::io::Errno;
use wasmtime::component::{ComponentType, Lift, Linker, LinkerInstance, Lower, Resource, flags};
use wasmtime::{Result, StoreContextMut};

use super::super::command::{CommandState, wall_clock};
use super::super::errno;
use super::super::paths::{OpenWish, Opened, ReadAhead, TreePath};
use super::cli::Datetime;
use super::interface;
use super::streams::{InputStream, OutputSink, StreamFailure, resource};

type Context<'a> = StoreContextMut<'a, CommandState>;
/// A call's answer within what the component is answered.
type Answer<T> = std::result::Result<T, ErrorCode>;
/// Bytes, and whether the file ends with them.
type Piece = (Vec<u8>, bool);
type Handle = Resource<FileHandle>;

/// A file or a directory.
pub(super) struct FileHandle {
    path: TreePath,
    is_directory: bool,
    flags: DescriptorFlags,
    ahead: ReadAhead,
}

/// What is left to be told of a directory.
pub(super) struct DirectoryEntries(std::vec::IntoIter<(Vec<u8>, FileKind)>);

/// `error-code`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ComponentType, Lift, Lower)]
#[component(enum)]
#[repr(u8)]
#[expect(dead_code, reason = "the type has all of them")]
pub(crate) enum ErrorCode {
    #[component(name = "access")]
    Access,
    #[component(name = "would-block")]
    WouldBlock,
    #[component(name = "already")]
    Already,
    #[component(name = "bad-descriptor")]
    BadDescriptor,
    #[component(name = "busy")]
    Busy,
    #[component(name = "deadlock")]
    Deadlock,
    #[component(name = "quota")]
    Quota,
    #[component(name = "exist")]
    Exist,
    #[component(name = "file-too-large")]
    FileTooLarge,
    #[component(name = "illegal-byte-sequence")]
    IllegalByteSequence,
    #[component(name = "in-progress")]
    InProgress,
    #[component(name = "interrupted")]
    Interrupted,
    #[component(name = "invalid")]
    Invalid,
    #[component(name = "io")]
    Io,
    #[component(name = "is-directory")]
    IsDirectory,
    #[component(name = "loop")]
    Loop,
    #[component(name = "too-many-links")]
    TooManyLinks,
    #[component(name = "message-size")]
    MessageSize,
    #[component(name = "name-too-long")]
    NameTooLong,
    #[component(name = "no-device")]
    NoDevice,
    #[component(name = "no-entry")]
    NoEntry,
    #[component(name = "no-lock")]
    NoLock,
    #[component(name = "insufficient-memory")]
    InsufficientMemory,
    #[component(name = "insufficient-space")]
    InsufficientSpace,
    #[component(name = "not-directory")]
    NotDirectory,
    #[component(name = "not-empty")]
    NotEmpty,
    #[component(name = "not-recoverable")]
    NotRecoverable,
    #[component(name = "unsupported")]
    Unsupported,
    #[component(name = "no-tty")]
    NoTty,
    #[component(name = "no-such-device")]
    NoSuchDevice,
    #[component(name = "overflow")]
    Overflow,
    #[component(name = "not-permitted")]
    NotPermitted,
    #[component(name = "pipe")]
    Pipe,
    #[component(name = "read-only")]
    ReadOnly,
    #[component(name = "invalid-seek")]
    InvalidSeek,
    #[component(name = "text-file-busy")]
    TextFileBusy,
    #[component(name = "cross-device")]
    CrossDevice,
}

/// `descriptor-type`.
#[derive(Debug, Clone, Copy, ComponentType, Lift, Lower)]
#[component(enum)]
#[repr(u8)]
#[expect(dead_code, reason = "the type has all of them")]
enum DescriptorType {
    #[component(name = "unknown")]
    Unknown,
    #[component(name = "block-device")]
    BlockDevice,
    #[component(name = "character-device")]
    CharacterDevice,
    #[component(name = "directory")]
    Directory,
    #[component(name = "fifo")]
    Fifo,
    #[component(name = "symbolic-link")]
    SymbolicLink,
    #[component(name = "regular-file")]
    RegularFile,
    #[component(name = "socket")]
    Socket,
}

/// `advice`, which is not taken.
#[derive(Debug, Clone, Copy, ComponentType, Lift, Lower)]
#[component(enum)]
#[repr(u8)]
#[expect(dead_code, reason = "the type has all of them")]
enum Advice {
    #[component(name = "normal")]
    Normal,
    #[component(name = "sequential")]
    Sequential,
    #[component(name = "random")]
    Random,
    #[component(name = "will-need")]
    WillNeed,
    #[component(name = "dont-need")]
    DontNeed,
    #[component(name = "no-reuse")]
    NoReuse,
}

flags! {
    DescriptorFlags {
        #[component(name = "read")]
        const READ;
        #[component(name = "write")]
        const WRITE;
        #[component(name = "file-integrity-sync")]
        const FILE_INTEGRITY_SYNC;
        #[component(name = "data-integrity-sync")]
        const DATA_INTEGRITY_SYNC;
        #[component(name = "requested-write-sync")]
        const REQUESTED_WRITE_SYNC;
        #[component(name = "mutate-directory")]
        const MUTATE_DIRECTORY;
    }
}

flags! {
    PathFlags {
        #[component(name = "symlink-follow")]
        const SYMLINK_FOLLOW;
    }
}

flags! {
    OpenFlags {
        #[component(name = "create")]
        const CREATE;
        #[component(name = "directory")]
        const DIRECTORY;
        #[component(name = "exclusive")]
        const EXCLUSIVE;
        #[component(name = "truncate")]
        const TRUNCATE;
    }
}

/// `descriptor-stat`.
#[derive(Debug, Clone, Copy, ComponentType, Lift, Lower)]
#[component(record)]
struct DescriptorStat {
    #[component(name = "type")]
    kind: DescriptorType,
    #[component(name = "link-count")]
    link_count: u64,
    size: u64,
    #[component(name = "data-access-timestamp")]
    accessed: Option<Datetime>,
    #[component(name = "data-modification-timestamp")]
    modified: Option<Datetime>,
    #[component(name = "status-change-timestamp")]
    changed: Option<Datetime>,
}

/// `new-timestamp`.
#[derive(Debug, Clone, Copy, ComponentType, Lift, Lower)]
#[component(variant)]
enum NewTimestamp {
    #[component(name = "no-change")]
    NoChange,
    #[component(name = "now")]
    Now,
    #[component(name = "timestamp")]
    Timestamp(Datetime),
}

/// `directory-entry`.
#[derive(Debug, Clone, ComponentType, Lift, Lower)]
#[component(record)]
struct DirectoryEntry {
    #[component(name = "type")]
    kind: DescriptorType,
    name: String,
}

/// `metadata-hash-value`.
#[derive(Debug, Clone, Copy, ComponentType, Lift, Lower)]
#[component(record)]
struct MetadataHash {
    lower: u64,
    upper: u64,
}

fn type_of(kind: FileKind) -> DescriptorType {
    match kind {
        FileKind::File => DescriptorType::RegularFile,
        FileKind::Directory => DescriptorType::Directory,
        FileKind::Symlink => DescriptorType::SymbolicLink,
        FileKind::Special => DescriptorType::Unknown,
    }
}

fn stat_of(facts: FileFacts) -> DescriptorStat {
    let time = Some(Datetime {
        seconds: u64::try_from(facts.seconds).unwrap_or(0),
        nanoseconds: facts.nanoseconds.min(999_999_999),
    });
    DescriptorStat {
        kind: type_of(facts.kind),
        link_count: 1,
        size: facts.size,
        accessed: time,
        modified: time,
        changed: time,
    }
}

fn code(errno: i32) -> ErrorCode {
    errno::preview2(errno)
}

fn number(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

impl CommandState {
    fn handle(&self, handle: &Handle) -> Result<&FileHandle> {
        Ok(self.table.get(handle)?)
    }

    fn path_of(&self, handle: &Handle) -> Result<TreePath> {
        Ok(self.handle(handle)?.path.clone())
    }

    /// Where a path from a directory leads.
    fn reached(&self, handle: &Handle, flags: PathFlags, path: &str) -> Result<Answer<(TreePath, Option<FileFacts>)>> {
        let directory = self.handle(handle)?;
        if !directory.is_directory {
            return Ok(Err(ErrorCode::NotDirectory));
        }
        let follow = flags & PathFlags::SYMLINK_FOLLOW == PathFlags::SYMLINK_FOLLOW;
        let found = self.files.resolve(&directory.path, path.as_bytes(), follow);
        Ok(found.map(|found| (found.path, found.facts)).map_err(code))
    }

    fn change_at(&self, handle: &Handle, path: &str, operation: FileOperation) -> Result<(Answer<()>,)> {
        let reached = self.reached(handle, PathFlags::default(), path)?;
        Ok((reached.and_then(|(path, _)| self.files.change(&path, operation).map_err(code)),))
    }

    fn remove_at(&self, handle: &Handle, path: &str, is_directory: bool) -> Result<(Answer<()>,)> {
        let reached = self.reached(handle, PathFlags::default(), path)?;
        Ok((reached.and_then(|(path, _)| self.files.remove(&path, is_directory).map_err(code)),))
    }

    fn touch(&self, path: &TreePath, modified: NewTimestamp) -> Answer<()> {
        let (seconds, nanoseconds) = match modified {
            NewTimestamp::NoChange => return Ok(()),
            NewTimestamp::Now => (wall_clock() / 1_000_000_000, wall_clock() % 1_000_000_000),
            NewTimestamp::Timestamp(time) => (time.seconds, u64::from(time.nanoseconds)),
        };
        let operation = FileOperation::Touch {
            seconds: i64::try_from(seconds).unwrap_or(i64::MAX),
            nanoseconds: u32::try_from(nanoseconds).unwrap_or(0),
        };
        self.files.change(path, operation).map_err(code)
    }

    /// The file behind a handle that may be written to.
    fn writable(&self, handle: &Handle) -> Result<Answer<TreePath>> {
        let open = self.handle(handle)?;
        let is_writable = open.flags & DescriptorFlags::WRITE == DescriptorFlags::WRITE;
        Ok(match (open.is_directory, is_writable) {
            (true, _) => Err(ErrorCode::IsDirectory),
            (false, false) => Err(ErrorCode::BadDescriptor),
            (false, true) => Ok(open.path.clone()),
        })
    }
}

fn open_at(
    mut c: Context<'_>,
    (handle, path_flags, path, open, flags): (Handle, PathFlags, String, OpenFlags, DescriptorFlags),
) -> Result<(Answer<Handle>,)> {
    let state = c.data_mut();
    let directory = state.handle(&handle)?;
    if !directory.is_directory {
        return Ok((Err(ErrorCode::NotDirectory),));
    }
    let has = |flag: OpenFlags| open & flag == flag;
    let wish = OpenWish {
        follow: path_flags & PathFlags::SYMLINK_FOLLOW == PathFlags::SYMLINK_FOLLOW,
        create: has(OpenFlags::CREATE),
        exclusive: has(OpenFlags::EXCLUSIVE),
        truncate: has(OpenFlags::TRUNCATE),
        directory: has(OpenFlags::DIRECTORY),
        write: flags & DescriptorFlags::WRITE == DescriptorFlags::WRITE,
    };
    let opened = state.files.open(&directory.path, path.as_bytes(), wish);
    let (path, is_directory) = match opened {
        Ok(Opened::Directory(path)) => (path, true),
        Ok(Opened::File(path)) => (path, false),
        Err(errno) => return Ok((Err(code(errno)),)),
    };
    let handle = state.table.push(FileHandle {
        path,
        is_directory,
        flags,
        ahead: ReadAhead::default(),
    })?;
    Ok((Ok(handle),))
}

fn read(mut c: Context<'_>, (handle, length, offset): (Handle, u64, u64)) -> Result<(Answer<Piece>,)> {
    let state = c.data_mut();
    let open = state.table.get_mut(&handle)?;
    if open.is_directory {
        return Ok((Err(ErrorCode::IsDirectory),));
    }
    if open.flags & DescriptorFlags::READ != DescriptorFlags::READ {
        return Ok((Err(ErrorCode::BadDescriptor),));
    }
    let mut buffer = vec![0; usize::try_from(length).unwrap_or(usize::MAX).min(MAX_PIECE)];
    let taken = state.files.read(&open.path, &mut open.ahead, offset, &mut buffer);
    Ok((taken.map_err(code).map(|taken| {
        buffer.truncate(taken);
        (buffer, taken == 0 && length > 0)
    }),))
}

/// Defines the interfaces.
pub(super) fn add_to(linker: &mut Linker<CommandState>) -> Result<()> {
    let mut here = linker.instance(&interface("wasi:filesystem/types"))?;
    resource::<FileHandle>(&mut here, "descriptor")?;
    resource::<DirectoryEntries>(&mut here, "directory-entry-stream")?;
    add_contents(&mut here)?;
    add_facts(&mut here)?;
    add_paths(&mut here)?;
    let mut here = linker.instance(&interface("wasi:filesystem/preopens"))?;
    here.func_wrap("get-directories", |mut c: Context<'_>, (): ()| {
        let state = c.data_mut();
        let mut directories = Vec::new();
        for (name, path) in state.descriptors.preopened() {
            let handle = state.table.push(FileHandle {
                path,
                is_directory: true,
                flags: DescriptorFlags::READ | DescriptorFlags::MUTATE_DIRECTORY,
                ahead: ReadAhead::default(),
            })?;
            directories.push((handle, name));
        }
        Ok((directories,))
    })
}

fn add_contents(here: &mut LinkerInstance<'_, CommandState>) -> Result<()> {
    here.func_wrap("[method]descriptor.read", read)?;
    here.func_wrap(
        "[method]descriptor.write",
        |c: Context<'_>, (handle, bytes, offset): (Handle, Vec<u8>, u64)| {
            let state = c.data();
            let path = state.writable(&handle)?;
            let written = path.and_then(|path| state.files.write(&path, Some(offset), &bytes).map_err(code));
            Ok((written.map(number),))
        },
    )?;
    here.func_wrap(
        "[method]descriptor.read-via-stream",
        |mut c: Context<'_>, (handle, position): (Handle, u64)| {
            let state = c.data_mut();
            let open = state.handle(&handle)?;
            if open.is_directory {
                return Ok((Err(ErrorCode::IsDirectory),));
            }
            let path = open.path.clone();
            let ahead = ReadAhead::default();
            Ok((Ok(state.table.push(InputStream::File { path, position, ahead })?),))
        },
    )?;
    here.func_wrap(
        "[method]descriptor.write-via-stream",
        |mut c: Context<'_>, (handle, position): (Handle, u64)| {
            let state = c.data_mut();
            Ok((match state.writable(&handle)? {
                Ok(path) => {
                    let position = Some(position);
                    Ok(state.table.push(OutputSink::File { path, position })?)
                }
                Err(error) => Err(error),
            },))
        },
    )?;
    here.func_wrap(
        "[method]descriptor.append-via-stream",
        |mut c: Context<'_>, (handle,): (Handle,)| {
            let state = c.data_mut();
            Ok((match state.writable(&handle)? {
                Ok(path) => Ok(state.table.push(OutputSink::File { path, position: None })?),
                Err(error) => Err(error),
            },))
        },
    )?;
    here.func_wrap(
        "[method]descriptor.set-size",
        |c: Context<'_>, (handle, size): (Handle, u64)| {
            let state = c.data();
            let path = state.writable(&handle)?;
            let operation = FileOperation::Resize { size };
            Ok((path.and_then(|path| state.files.change(&path, operation).map_err(code)),))
        },
    )?;
    here.func_wrap(
        "[method]descriptor.advise",
        |c: Context<'_>, (handle, _, _, _): (Handle, u64, u64, Advice)| {
            c.data().handle(&handle)?;
            Ok((Answer::Ok(()),))
        },
    )?;
    for name in ["sync", "sync-data"] {
        here.func_wrap(
            &format!("[method]descriptor.{name}"),
            |c: Context<'_>, (handle,): (Handle,)| {
                c.data().handle(&handle)?;
                Ok((Answer::Ok(()),))
            },
        )?;
    }
    here.func_wrap(
        "[method]descriptor.read-directory",
        |mut c: Context<'_>, (handle,): (Handle,)| {
            let state = c.data_mut();
            let path = state.path_of(&handle)?;
            Ok((match state.files.entries(&path) {
                Ok(entries) => Ok(state.table.push(DirectoryEntries(entries.into_iter()))?),
                Err(errno) => Err(code(errno)),
            },))
        },
    )?;
    here.func_wrap(
        "[method]directory-entry-stream.read-directory-entry",
        |mut c: Context<'_>, (entries,): (Resource<DirectoryEntries>,)| {
            let next = c.data_mut().table.get_mut(&entries)?.0.next();
            let entry = next.map(|(name, kind)| match String::from_utf8(name) {
                Ok(name) => Ok(DirectoryEntry {
                    kind: type_of(kind),
                    name,
                }),
                Err(_) => Err(ErrorCode::IllegalByteSequence),
            });
            Ok((entry.transpose(),))
        },
    )
}

fn add_facts(here: &mut LinkerInstance<'_, CommandState>) -> Result<()> {
    here.func_wrap(
        "[method]descriptor.get-flags",
        |c: Context<'_>, (handle,): (Handle,)| Ok((Answer::Ok(c.data().handle(&handle)?.flags),)),
    )?;
    here.func_wrap("[method]descriptor.get-type", |c: Context<'_>, (handle,): (Handle,)| {
        Ok((Answer::Ok(match c.data().handle(&handle)?.is_directory {
            true => DescriptorType::Directory,
            false => DescriptorType::RegularFile,
        }),))
    })?;
    here.func_wrap("[method]descriptor.stat", |c: Context<'_>, (handle,): (Handle,)| {
        let path = c.data().path_of(&handle)?;
        Ok((c.data().files.facts(&path).map(stat_of).map_err(code),))
    })?;
    here.func_wrap(
        "[method]descriptor.stat-at",
        |c: Context<'_>, (handle, flags, path): (Handle, PathFlags, String)| {
            let reached = c.data().reached(&handle, flags, &path)?;
            Ok((reached.and_then(|(_, facts)| facts.map(stat_of).ok_or(ErrorCode::NoEntry)),))
        },
    )?;
    here.func_wrap(
        "[method]descriptor.set-times",
        |c: Context<'_>, (handle, _, modified): (Handle, NewTimestamp, NewTimestamp)| {
            let path = c.data().path_of(&handle)?;
            Ok((c.data().touch(&path, modified),))
        },
    )?;
    here.func_wrap(
        "[method]descriptor.set-times-at",
        |c: Context<'_>,
         (handle, flags, path, _, modified): (Handle, PathFlags, String, NewTimestamp, NewTimestamp)| {
            let reached = c.data().reached(&handle, flags, &path)?;
            Ok((reached.and_then(|(path, _)| c.data().touch(&path, modified)),))
        },
    )?;
    here.func_wrap(
        "[method]descriptor.is-same-object",
        |c: Context<'_>, (one, other): (Handle, Handle)| Ok((c.data().path_of(&one)? == c.data().path_of(&other)?,)),
    )?;
    here.func_wrap(
        "[method]descriptor.metadata-hash",
        |c: Context<'_>, (handle,): (Handle,)| {
            let path = c.data().path_of(&handle)?;
            let facts = c.data().files.facts(&path);
            Ok((facts.map(|facts| hash_of(&path, facts)).map_err(code),))
        },
    )?;
    here.func_wrap(
        "[method]descriptor.metadata-hash-at",
        |c: Context<'_>, (handle, flags, path): (Handle, PathFlags, String)| {
            let reached = c.data().reached(&handle, flags, &path)?;
            Ok((reached.and_then(|(path, facts)| match facts {
                Some(facts) => Ok(hash_of(&path, facts)),
                None => Err(ErrorCode::NoEntry),
            }),))
        },
    )?;
    here.func_wrap(
        "filesystem-error-code",
        |c: Context<'_>, (error,): (Resource<StreamFailure>,)| Ok((Some(code(c.data().table.get(&error)?.0)),)),
    )
}

fn hash_of(path: &TreePath, facts: FileFacts) -> MetadataHash {
    let time = u64::try_from(facts.seconds).unwrap_or(0).rotate_left(30) ^ u64::from(facts.nanoseconds);
    MetadataHash {
        lower: path.number(),
        upper: time ^ facts.size.rotate_left(17),
    }
}

fn add_paths(here: &mut LinkerInstance<'_, CommandState>) -> Result<()> {
    here.func_wrap("[method]descriptor.open-at", open_at)?;
    here.func_wrap(
        "[method]descriptor.create-directory-at",
        |c: Context<'_>, (handle, path): (Handle, String)| {
            c.data().change_at(&handle, &path, FileOperation::MakeDirectory)
        },
    )?;
    here.func_wrap(
        "[method]descriptor.symlink-at",
        |c: Context<'_>, (handle, target, path): (Handle, String, String)| {
            let target = target.into_bytes();
            c.data().change_at(&handle, &path, FileOperation::Symlink { target })
        },
    )?;
    here.func_wrap(
        "[method]descriptor.link-at",
        |_: Context<'_>, _: (Handle, PathFlags, String, Handle, String)| {
            Ok((Answer::<()>::Err(ErrorCode::Unsupported),))
        },
    )?;
    here.func_wrap(
        "[method]descriptor.readlink-at",
        |c: Context<'_>, (handle, path): (Handle, String)| {
            let reached = c.data().reached(&handle, PathFlags::default(), &path)?;
            let target = reached.and_then(|(path, _)| c.data().files.link_target(&path).map_err(code));
            let target =
                target.and_then(|target| String::from_utf8(target).map_err(|_| code(Errno::ILSEQ.raw_os_error())));
            Ok((target,))
        },
    )?;
    here.func_wrap(
        "[method]descriptor.remove-directory-at",
        |c: Context<'_>, (handle, path): (Handle, String)| c.data().remove_at(&handle, &path, true),
    )?;
    here.func_wrap(
        "[method]descriptor.unlink-file-at",
        |c: Context<'_>, (handle, path): (Handle, String)| c.data().remove_at(&handle, &path, false),
    )?;
    here.func_wrap(
        "[method]descriptor.rename-at",
        |c: Context<'_>, (handle, from, to_handle, to): (Handle, String, Handle, String)| {
            let from = c.data().reached(&handle, PathFlags::default(), &from)?;
            let to = c.data().reached(&to_handle, PathFlags::default(), &to)?;
            Ok((match (from, to) {
                (Ok((from, _)), Ok((to, _))) => c.data().files.rename(&from, &to).map_err(code),
                (Err(error), _) | (_, Err(error)) => Err(error),
            },))
        },
    )
}
