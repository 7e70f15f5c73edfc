//! The other end of a file worker's socket.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use offleash_protocol::files::{DATA_CHUNK, FileEntry, FileReply, FileRequest};
use offleash_protocol::{MessageDecoder, encode};
use rustix::net::SendFlags;
use rustix::net::sockopt::{Timeout, set_socket_timeout};

/// A conversation with a worker.
#[derive(Debug)]
pub(crate) struct Worker {
    socket: OwnedFd,
    decoder: MessageDecoder<FileReply>,
}

/// What was tried, and the error number.
pub(crate) type Failed = (String, i32);

impl Worker {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        let patience = Some(std::time::Duration::from_secs(60));
        for which in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&socket, which, patience).expect("a socket");
        }
        Self {
            socket,
            decoder: MessageDecoder::new(),
        }
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(crate) fn send(&self, request: &FileRequest) {
        self.send_bytes(&encode(request).expect("it fits"));
    }

    pub(crate) fn send_bytes(&self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let count = rustix::net::send(&self.socket, bytes, SendFlags::NOSIGNAL).expect("the worker listens");
            bytes = &bytes[count..];
        }
    }

    /// The next answer; `None` when the worker is gone.
    pub(crate) fn next(&mut self) -> Option<FileReply> {
        let mut buffer = vec![0; 256 * 1024];
        loop {
            if let Some(reply) = self.decoder.next().expect("the worker keeps to the protocol") {
                return Some(reply);
            }
            let count = match rustix::io::read(&self.socket, &mut buffer) {
                Ok(0) | Err(rustix::io::Errno::CONNRESET) => return None,
                count => count.expect("the worker answers in time"),
            };
            self.decoder.push(&buffer[..count]);
        }
    }

    pub(crate) fn ask(&mut self, request: &FileRequest) -> FileReply {
        self.send(request);
        self.next().expect("an answer")
    }

    /// Asks for something that is answered with what is there.
    pub(crate) fn entry(&mut self, request: &FileRequest) -> Result<FileEntry, Failed> {
        match self.ask(request) {
            FileReply::Entry(entry) => Ok(entry),
            FileReply::Failed { step, errno } => Err((step, errno)),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn stat(&mut self, path: &Path) -> Result<FileEntry, Failed> {
        self.entry(&FileRequest::Stat { path: bytes(path) })
    }

    pub(crate) fn remove(&mut self, path: &Path) -> Result<(), Failed> {
        match self.ask(&FileRequest::Remove { path: bytes(path) }) {
            FileReply::Done => Ok(()),
            FileReply::Failed { step, errno } => Err((step, errno)),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn list(&mut self, path: &Path, depth: u32) -> Result<Vec<FileEntry>, Failed> {
        self.send(&FileRequest::List {
            path: bytes(path),
            depth,
        });
        let mut entries = Vec::new();
        loop {
            match self.next().expect("an answer") {
                FileReply::Entries(some) => entries.extend(some),
                FileReply::Done => return Ok(entries),
                FileReply::Failed { step, errno } => return Err((step, errno)),
                other => panic!("{other:?}"),
            }
        }
    }

    /// What a file is and what is in it.
    pub(crate) fn read(
        &mut self,
        path: &Path,
        offset: u64,
        length: Option<u64>,
    ) -> Result<(FileEntry, Vec<u8>), Failed> {
        let path = bytes(path);
        let entry = self.entry(&FileRequest::Read { path, offset, length })?;
        let mut content = Vec::new();
        loop {
            match self.next().expect("an answer") {
                FileReply::Data { bytes } => {
                    assert!((1..=DATA_CHUNK).contains(&bytes.len()));
                    content.extend(bytes);
                }
                FileReply::Done => return Ok((entry, content)),
                FileReply::Failed { step, errno } => return Err((step, errno)),
                other => panic!("{other:?}"),
            }
        }
    }

    /// Writes a file in pieces.
    pub(crate) fn write(
        &mut self,
        path: &Path,
        content: &[u8],
        metadata: &[(&str, &str)],
    ) -> Result<FileEntry, Failed> {
        self.send(&FileRequest::Write {
            path: bytes(path),
            metadata: pairs(metadata),
        });
        for piece in content.chunks(DATA_CHUNK) {
            self.send(&FileRequest::Data { bytes: piece.to_vec() });
        }
        self.entry(&FileRequest::Finish)
    }
}

pub(crate) fn bytes(path: &Path) -> Vec<u8> {
    std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str()).to_vec()
}

pub(crate) fn pairs(metadata: &[(&str, &str)]) -> Vec<(Vec<u8>, Vec<u8>)> {
    metadata
        .iter()
        .map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()))
        .collect()
}
