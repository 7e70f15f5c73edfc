//! The other side of the channel, by hand: it says what it likes.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::JoinHandle;

use offleash_tree::{FileOwners, TreeError, TreeOptions};
use rustix::io::Errno;

pub const ROOT: u64 = 1;

pub const LOOKUP: u32 = 1;
pub const FORGET: u32 = 2;
pub const GETATTR: u32 = 3;
pub const SETATTR: u32 = 4;
pub const READLINK: u32 = 5;
pub const SYMLINK: u32 = 6;
pub const MKNOD: u32 = 8;
pub const MKDIR: u32 = 9;
pub const UNLINK: u32 = 10;
pub const RMDIR: u32 = 11;
pub const RENAME: u32 = 12;
pub const LINK: u32 = 13;
pub const OPEN: u32 = 14;
pub const READ: u32 = 15;
pub const WRITE: u32 = 16;
pub const STATFS: u32 = 17;
pub const RELEASE: u32 = 18;
pub const FSYNC: u32 = 20;
pub const SETXATTR: u32 = 21;
pub const GETXATTR: u32 = 22;
pub const LISTXATTR: u32 = 23;
pub const REMOVEXATTR: u32 = 24;
pub const INIT: u32 = 26;
pub const OPENDIR: u32 = 27;
pub const READDIR: u32 = 28;
pub const FSYNCDIR: u32 = 30;
pub const CREATE: u32 = 35;
pub const INTERRUPT: u32 = 36;
pub const DESTROY: u32 = 38;
pub const BATCH_FORGET: u32 = 42;
pub const FALLOCATE: u32 = 43;
pub const READDIRPLUS: u32 = 44;
pub const RENAME2: u32 = 45;
pub const LSEEK: u32 = 46;
pub const COPY_FILE_RANGE: u32 = 47;
pub const TMPFILE: u32 = 51;
pub const STATX: u32 = 52;

/// Bytes of a message's body.
#[derive(Debug, Clone, Default)]
pub struct Body(pub Vec<u8>);

impl Body {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn u32(mut self, value: u32) -> Self {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    pub fn u64(mut self, value: u64) -> Self {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub fn string(self, string: &[u8]) -> Self {
        self.bytes(string).bytes(b"\0")
    }
}

/// A whole message.
pub fn message(operation: u32, unique: u64, node: u64, ids: (u32, u32), body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(40 + body.len()).unwrap();
    let head = Body::new().u32(length).u32(operation).u64(unique).u64(node);
    let head = head.u32(ids.0).u32(ids.1).u32(1).u32(0);
    head.bytes(body).0
}

/// The body of `FUSE_INIT` as a kernel sends it.
pub fn init(major: u32, minor: u32) -> Body {
    Body::new()
        .u32(major)
        .u32(minor)
        .u32(1 << 20)
        .u32(u32::MAX)
        .bytes(&[0; 48])
}

/// Numbers of an answer.
pub fn number(answer: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(answer[at..at + 8].try_into().unwrap())
}

pub fn short(answer: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(answer[at..at + 4].try_into().unwrap())
}

/// A machine that speaks to a tree that is served.
#[derive(Debug)]
pub struct Machine {
    socket: UnixStream,
    serving: Option<JoinHandle<Result<(), TreeError>>>,
    unique: u64,
    pub ids: (u32, u32),
}

impl Machine {
    /// Before the first message.
    pub fn silent(root: &Path, options: TreeOptions) -> Self {
        let root: OwnedFd = std::fs::File::open(root).unwrap().into();
        let (socket, ours) = UnixStream::pair().unwrap();
        let serving = std::thread::spawn(move || offleash_tree::serve(root, ours.into(), &options));
        Self {
            socket,
            serving: Some(serving),
            unique: 0,
            ids: (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw()),
        }
    }

    pub fn new(root: &Path, options: TreeOptions) -> Self {
        let mut machine = Self::silent(root, options);
        let answer = machine.ask(INIT, 0, init(7, 37)).unwrap();
        assert_eq!(answer.len(), 64);
        machine
    }

    /// With what works for whoever runs the test.
    pub fn plain(root: &Path) -> Self {
        Self::new(root, plain())
    }

    pub fn send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.socket.write_all(bytes)
    }

    /// The next answer: its number, and its body or errno; `None` at the end.
    pub fn receive(&mut self) -> Option<(u64, Result<Vec<u8>, Errno>)> {
        let mut head = [0; 16];
        self.socket.read_exact(&mut head).ok()?;
        let length = usize::try_from(short(&head, 0)).unwrap();
        let mut body = vec![0; length - 16];
        self.socket.read_exact(&mut body).ok()?;
        let error = i32::from_ne_bytes(head[4..8].try_into().unwrap());
        let outcome = if error == 0 {
            Ok(body)
        } else {
            Err(Errno::from_raw_os_error(-error))
        };
        Some((number(&head, 8), outcome))
    }

    pub fn ask(&mut self, operation: u32, node: u64, body: Body) -> Result<Vec<u8>, Errno> {
        self.unique += 2;
        let message = message(operation, self.unique, node, self.ids, &body.0);
        self.send(&message).unwrap();
        let (unique, outcome) = self.receive().expect("an answer");
        assert_eq!(unique, self.unique);
        outcome
    }

    /// What is not answered.
    pub fn tell(&mut self, operation: u32, node: u64, body: Body) {
        let message = message(operation, 0, node, self.ids, &body.0);
        self.send(&message).unwrap();
    }

    pub fn lookup(&mut self, parent: u64, name: &str) -> Result<u64, Errno> {
        let answer = self.ask(LOOKUP, parent, Body::new().string(name.as_bytes()))?;
        match number(&answer, 0) {
            0 => Err(Errno::NOENT),
            node => Ok(node),
        }
    }

    pub fn create(&mut self, parent: u64, name: &str, flags: u32, mode: u32) -> Result<(u64, u64), Errno> {
        let body = Body::new().u32(flags).u32(mode).u32(0).u32(0).string(name.as_bytes());
        let answer = self.ask(CREATE, parent, body)?;
        Ok((number(&answer, 0), number(&answer, 128)))
    }

    pub fn open(&mut self, node: u64, flags: u32) -> Result<u64, Errno> {
        let answer = self.ask(OPEN, node, Body::new().u32(flags).u32(0))?;
        Ok(number(&answer, 0))
    }

    pub fn read(&mut self, node: u64, handle: u64, offset: u64, size: u32) -> Result<Vec<u8>, Errno> {
        let body = Body::new().u64(handle).u64(offset).u32(size).bytes(&[0; 20]);
        self.ask(READ, node, body)
    }

    pub fn write(
        &mut self,
        node: u64,
        handle: u64,
        offset: u64,
        flags: (u32, u32),
        bytes: &[u8],
    ) -> Result<u32, Errno> {
        let size = u32::try_from(bytes.len()).unwrap();
        let body = Body::new().u64(handle).u64(offset).u32(size).u32(flags.0);
        let answer = self.ask(WRITE, node, body.u64(0).u32(flags.1).u32(0).bytes(bytes))?;
        Ok(short(&answer, 0))
    }

    /// Size, mode and number of links.
    pub fn getattr(&mut self, node: u64) -> Result<(u64, u32, u32), Errno> {
        let answer = self.ask(GETATTR, node, Body::new().u32(0).u32(0).u64(0))?;
        Ok((number(&answer, 24), short(&answer, 16 + 60), short(&answer, 16 + 64)))
    }

    /// Names of a directory, read `size` bytes at a time.
    pub fn list(&mut self, node: u64, size: u32) -> Result<Vec<String>, Errno> {
        let handle = number(&self.ask(OPENDIR, node, Body::new().u32(0).u32(0))?, 0);
        let mut names = Vec::new();
        let mut offset = 0;
        loop {
            let body = Body::new().u64(handle).u64(offset).u32(size).bytes(&[0; 20]);
            let answer = self.ask(READDIR, node, body)?;
            if answer.is_empty() {
                return Ok(names);
            }
            let mut at = 0;
            while at < answer.len() {
                let length = usize::try_from(short(&answer, at + 16)).unwrap();
                let name = &answer[at + 24..at + 24 + length];
                names.push(String::from_utf8(name.to_vec()).unwrap());
                offset = number(&answer, at + 8);
                at += (24 + length).next_multiple_of(8);
            }
        }
    }

    /// Says nothing more, and how serving ended.
    pub fn end(mut self) -> Result<(), TreeError> {
        let _ = self.socket.shutdown(Shutdown::Write);
        self.join()
    }

    pub fn join(&mut self) -> Result<(), TreeError> {
        self.serving.take().unwrap().join().expect("serving does not panic")
    }
}

/// Options that work for whoever runs the test.
pub fn plain() -> TreeOptions {
    TreeOptions {
        owners: FileOwners::Server,
        ..TreeOptions::default()
    }
}

/// What this process has open below `root`.
pub fn open_below(root: &Path) -> usize {
    let root = root.canonicalize().unwrap();
    std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .filter(|target| target.starts_with(&root))
        .count()
}
