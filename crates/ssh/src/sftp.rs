//! Files of a sandbox by SFTP, version 3 (draft-ietf-secsh-filexfer-02), as OpenSSH's `sftp` and `scp` speak it.
//!
//! What is read comes in large pieces of which the client is given small ones. What is written is put together here and has its
//! name inside once the client closes it.

mod attributes;
mod handles;

use std::collections::HashMap;

use offleash_api::client::{ClientError, ExecStart, FileEntry, Kind, News, SandboxServices};
use offleash_core::error::{ErrorKind, Explained as _};

use self::attributes::{Attributes, attributes_of, long_name};
use self::handles::{OpenDirectory, OpenFile, OpenHandle};
use crate::error::SshError;
use crate::wire::{WireReader, WireWriter};

/// The longest packet of a client, and the most that is read at once.
const MAX_PACKET: usize = 300 << 10;
pub(crate) const MAX_READ: usize = 255 << 10;
/// Files and directories that are open at once.
const MAX_HANDLES: usize = 128;
/// Entries of one answer about a directory.
const ENTRIES: usize = 100;

const INIT: u8 = 1;
const VERSION: u8 = 2;
const OPEN: u8 = 3;
const CLOSE: u8 = 4;
const READ: u8 = 5;
const WRITE: u8 = 6;
const LSTAT: u8 = 7;
const FSTAT: u8 = 8;
const SETSTAT: u8 = 9;
const FSETSTAT: u8 = 10;
const OPENDIR: u8 = 11;
const READDIR: u8 = 12;
const REMOVE: u8 = 13;
const MKDIR: u8 = 14;
const RMDIR: u8 = 15;
const REALPATH: u8 = 16;
const STAT: u8 = 17;
const RENAME: u8 = 18;
const READLINK: u8 = 19;
const SYMLINK: u8 = 20;
const STATUS: u8 = 101;
const HANDLE: u8 = 102;
const DATA: u8 = 103;
const NAME: u8 = 104;
const ATTRS: u8 = 105;
const EXTENDED: u8 = 200;

const OK: u32 = 0;
const EOF: u32 = 1;
const NO_SUCH_FILE: u32 = 2;
const DENIED: u32 = 3;
const FAILURE: u32 = 4;
const BAD_MESSAGE: u32 = 5;
const UNSUPPORTED: u32 = 8;

/// Why something was not done.
#[derive(Debug)]
pub(crate) struct SftpRefusal {
    code: u32,
    message: String,
}

impl SftpRefusal {
    fn new(code: u32, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    pub(crate) fn failure(message: impl Into<String>) -> Self {
        Self::new(FAILURE, message)
    }

    fn no_such_file() -> Self {
        Self::new(NO_SUCH_FILE, "No such file")
    }
}

impl From<ClientError> for SftpRefusal {
    fn from(error: ClientError) -> Self {
        let code = match error.kind() {
            ErrorKind::NotFound => NO_SUCH_FILE,
            ErrorKind::Denied => DENIED,
            _ => FAILURE,
        };
        Self::new(code, error.to_string())
    }
}

impl From<SshError> for SftpRefusal {
    fn from(error: SshError) -> Self {
        Self::new(BAD_MESSAGE, error.to_string())
    }
}

impl From<std::io::Error> for SftpRefusal {
    fn from(error: std::io::Error) -> Self {
        Self::failure(format!("what is written cannot be kept here: {error}"))
    }
}

/// Takes the next whole packet out of what came.
///
/// # Errors
/// When it is longer than any may be.
pub(crate) fn packet(held: &mut Vec<u8>) -> Result<Option<Vec<u8>>, SshError> {
    let Some(head) = held.first_chunk::<4>() else {
        return Ok(None);
    };
    let length = usize::try_from(u32::from_be_bytes(*head)).unwrap_or(usize::MAX);
    if length == 0 || length > MAX_PACKET {
        return Err(SshError::Protocol("a packet of SFTP has a length that none may have"));
    }
    if held.len() < 4 + length {
        return Ok(None);
    }
    Ok(Some(held.drain(..4 + length).skip(4).collect()))
}

/// The files of a sandbox, for one client.
pub(crate) struct SftpServer {
    services: SandboxServices,
    handles: HashMap<u32, OpenHandle>,
    next_handle: u32,
    /// Where paths begin that are not absolute; known once it was asked for.
    home: Option<String>,
}

impl SftpServer {
    pub(crate) fn new(services: SandboxServices) -> Self {
        Self {
            services,
            handles: HashMap::new(),
            next_handle: 0,
            home: None,
        }
    }

    /// Answers one packet.
    pub(crate) async fn answer(&mut self, packet: &[u8]) -> Vec<u8> {
        let mut fields = WireReader::new(packet);
        let answer = match (fields.byte(), fields.number()) {
            (Ok(INIT), Ok(_)) => WireWriter::message(VERSION)
                .number(3)
                .string("posix-rename@openssh.com")
                .string("1"),
            (Ok(kind), Ok(id)) => match self.carried_out(kind, id, fields).await {
                Ok(answer) => answer,
                Err(refusal) => status(id, refusal.code, &refusal.message),
            },
            _ => status(0, BAD_MESSAGE, "Bad message"),
        };
        WireWriter::default().string(answer.0).0
    }

    /// The client has gone: what it did not close is not written.
    pub(crate) async fn end(&mut self) {
        self.handles.clear();
    }

    async fn carried_out(&mut self, kind: u8, id: u32, mut fields: WireReader<'_>) -> Result<WireWriter, SftpRefusal> {
        match kind {
            OPEN => {
                let (path, flags) = (self.path(fields.string()?).await?, fields.number()?);
                let file = OpenFile::open(&self.services, path, flags, Attributes::read(&mut fields)?).await?;
                self.opened(id, OpenHandle::File(file))
            }
            OPENDIR => {
                let path = self.path(fields.string()?).await?;
                let entry = self.existing(&path).await?;
                if entry.kind != Kind::Directory {
                    return Err(SftpRefusal::failure("Not a directory"));
                }
                let entries = self.services.list(&path).await?;
                self.opened(id, OpenHandle::Directory(OpenDirectory::new(entries)))
            }
            CLOSE => {
                let handle = handle_id(&mut fields)?;
                let handle = self.handles.remove(&handle).ok_or_else(no_handle)?;
                if let OpenHandle::File(file) = handle
                    && let Some((path, attributes)) = file.close(&self.services).await?
                {
                    self.set(&path, &attributes).await?;
                }
                Ok(ok(id))
            }
            READ => {
                let (handle, offset, length) = (handle_id(&mut fields)?, fields.long()?, fields.number()?);
                let length = usize::try_from(length).unwrap_or(MAX_READ).min(MAX_READ);
                let Some(OpenHandle::File(file)) = self.handles.get_mut(&handle) else {
                    return Err(no_handle());
                };
                match file.read(&self.services, offset, length).await? {
                    bytes if bytes.is_empty() && length > 0 => Err(SftpRefusal::new(EOF, "End of file")),
                    bytes => Ok(WireWriter::message(DATA).number(id).string(bytes)),
                }
            }
            WRITE => {
                let (handle, offset, data) = (handle_id(&mut fields)?, fields.long()?, fields.string()?);
                let Some(OpenHandle::File(file)) = self.handles.get_mut(&handle) else {
                    return Err(no_handle());
                };
                file.write(offset, data)?;
                Ok(ok(id))
            }
            READDIR => {
                let handle = handle_id(&mut fields)?;
                let Some(OpenHandle::Directory(directory)) = self.handles.get_mut(&handle) else {
                    return Err(no_handle());
                };
                let entries = directory.next(ENTRIES);
                if entries.is_empty() {
                    return Err(SftpRefusal::new(EOF, "End of file"));
                }
                let count = u32::try_from(entries.len()).unwrap_or(u32::MAX);
                let names = WireWriter::message(NAME).number(id).number(count);
                Ok(entries.iter().fold(names, |names, entry| {
                    attributes_of(entry, true, names.string(&entry.name).string(long_name(entry)))
                }))
            }
            LSTAT | STAT => {
                let path = self.path(fields.string()?).await?;
                let is_own = kind == LSTAT;
                let entry = match is_own {
                    true => self.existing(&path).await?,
                    false => self.followed(&path).await?,
                };
                Ok(attributes_of(&entry, is_own, WireWriter::message(ATTRS).number(id)))
            }
            FSTAT => {
                let handle = handle_id(&mut fields)?;
                let Some(OpenHandle::File(file)) = self.handles.get(&handle) else {
                    return Err(no_handle());
                };
                Ok(attributes_of(
                    &file.entry()?,
                    false,
                    WireWriter::message(ATTRS).number(id),
                ))
            }
            SETSTAT => {
                let path = self.path(fields.string()?).await?;
                let attributes = Attributes::read(&mut fields)?;
                self.existing(&path).await?;
                self.set(&path, &attributes).await?;
                Ok(ok(id))
            }
            FSETSTAT => {
                let (handle, attributes) = (handle_id(&mut fields)?, Attributes::read(&mut fields)?);
                let Some(OpenHandle::File(file)) = self.handles.get_mut(&handle) else {
                    return Err(no_handle());
                };
                if let Some((path, attributes)) = file.set(attributes)? {
                    self.set(&path, &attributes).await?;
                }
                Ok(ok(id))
            }
            REMOVE => {
                let path = self.path(fields.string()?).await?;
                let entry = self.existing(&path).await?;
                if entry.kind == Kind::Directory && !entry.is_link {
                    return Err(SftpRefusal::failure("Is a directory"));
                }
                self.services.remove(&path).await?;
                Ok(ok(id))
            }
            RMDIR => {
                let path = self.path(fields.string()?).await?;
                let entry = self.existing(&path).await?;
                if entry.kind != Kind::Directory || entry.is_link {
                    return Err(SftpRefusal::failure("Not a directory"));
                }
                if !self.services.list(&path).await?.is_empty() {
                    return Err(SftpRefusal::failure("Directory not empty"));
                }
                self.services.remove(&path).await?;
                Ok(ok(id))
            }
            MKDIR => {
                let path = self.path(fields.string()?).await?;
                let attributes = Attributes::read(&mut fields)?;
                if self.services.entry(&path).await?.is_some() {
                    return Err(SftpRefusal::failure("File exists"));
                }
                handles::require_parent(&self.services, &path).await?;
                self.services.make_directory(&path).await?;
                if attributes.mode.is_some_and(|mode| mode != 0o755 && mode != 0o777) {
                    self.set(&path, &attributes).await?;
                }
                Ok(ok(id))
            }
            REALPATH => {
                let path = self.path(fields.string()?).await?;
                Ok(WireWriter::message(NAME)
                    .number(id)
                    .number(1)
                    .string(&path)
                    .string(&path)
                    .number(0))
            }
            RENAME => {
                let (from, to) = (self.path(fields.string()?).await?, self.path(fields.string()?).await?);
                if self.services.entry(&to).await?.is_some() {
                    return Err(SftpRefusal::failure("File exists"));
                }
                self.services.rename(&from, &to).await?;
                Ok(ok(id))
            }
            READLINK => {
                let path = self.path(fields.string()?).await?;
                let entry = self.existing(&path).await?;
                let target = entry.target.filter(|_| entry.is_link);
                let target = target.ok_or_else(|| SftpRefusal::failure("Not a link"))?;
                Ok(WireWriter::message(NAME)
                    .number(id)
                    .number(1)
                    .string(&target)
                    .string(&target)
                    .number(0))
            }
            SYMLINK => {
                // OpenSSH has them in this order, other than the draft.
                let (target, link) = (text(fields.string()?)?.to_owned(), self.path(fields.string()?).await?);
                self.run(&["ln", "-s", "--", &target, &link]).await?;
                Ok(ok(id))
            }
            EXTENDED => match fields.text()? {
                "posix-rename@openssh.com" => {
                    let (from, to) = (self.path(fields.string()?).await?, self.path(fields.string()?).await?);
                    self.services.rename(&from, &to).await?;
                    Ok(ok(id))
                }
                _ => Err(SftpRefusal::new(UNSUPPORTED, "Operation unsupported")),
            },
            _ => Err(SftpRefusal::new(UNSUPPORTED, "Operation unsupported")),
        }
    }

    fn opened(&mut self, id: u32, handle: OpenHandle) -> Result<WireWriter, SftpRefusal> {
        if self.handles.len() >= MAX_HANDLES {
            return Err(SftpRefusal::failure("too many files are open"));
        }
        let number = self.next_handle;
        self.next_handle = self.next_handle.wrapping_add(1);
        self.handles.insert(number, handle);
        Ok(WireWriter::message(HANDLE).number(id).string(number.to_be_bytes()))
    }

    /// A path as the client means it, absolute and without `.` and `..`.
    async fn path(&mut self, given: &[u8]) -> Result<String, SftpRefusal> {
        let given = text(given)?;
        if given.starts_with('/') {
            return Ok(resolved("/", given));
        }
        let home = match &self.home {
            Some(home) => home.clone(),
            None => {
                let entry = self.services.entry(".").await?;
                let home = entry.map(|entry| entry.path).filter(|path| path.starts_with('/'));
                self.home.insert(home.unwrap_or_else(|| "/".to_owned())).clone()
            }
        };
        Ok(resolved(&home, given))
    }

    async fn existing(&self, path: &str) -> Result<FileEntry, SftpRefusal> {
        self.services.entry(path).await?.ok_or_else(SftpRefusal::no_such_file)
    }

    /// What a path leads to.
    async fn followed(&self, path: &str) -> Result<FileEntry, SftpRefusal> {
        let entry = self.existing(path).await?;
        match &entry.target {
            Some(target) if entry.is_link => self.existing(target).await,
            _ if entry.is_link => Err(SftpRefusal::no_such_file()),
            _ => Ok(entry),
        }
    }

    /// Has the sandbox's own programs do what its services do not.
    async fn set(&self, path: &str, attributes: &Attributes) -> Result<(), SftpRefusal> {
        if let Some(size) = attributes.size {
            self.run(&["truncate", "-s", &size.to_string(), "--", path]).await?;
        }
        if let Some(mode) = attributes.mode {
            self.run(&["chmod", &format!("{mode:o}"), "--", path]).await?;
        }
        if let Some(modified) = attributes.modified {
            self.run(&["touch", "-m", "-d", &format!("@{modified}"), "--", path])
                .await?;
        }
        Ok(())
    }

    async fn run(&self, words: &[&str]) -> Result<(), SftpRefusal> {
        let start = ExecStart {
            argv: words.iter().map(ToString::to_string).collect(),
            env: std::iter::once(("LC_ALL".to_owned(), "C".to_owned())).collect(),
            cwd: None,
            user: None,
            tty: None,
            stdin: false,
        };
        let mut exec = self.services.exec(start)?;
        let mut said = Vec::new();
        loop {
            match exec.next().await {
                Some(Ok(News::Ended(0))) => return Ok(()),
                Some(Ok(News::Output(_, bytes))) if said.len() < 1000 => said.extend(bytes),
                Some(Ok(News::Started(_) | News::Output(..))) => {}
                Some(Ok(News::Ended(_))) | None => {
                    return Err(SftpRefusal::failure(String::from_utf8_lossy(&said).trim().to_owned()));
                }
                Some(Err(error)) => return Err(error.into()),
            }
        }
    }
}

/// A path below `base`, without `.` and `..`: what is above the root is the root.
fn resolved(base: &str, path: &str) -> String {
    let mut names: Vec<&str> = Vec::new();
    for name in base.split('/').chain(path.split('/')) {
        match name {
            "" | "." => {}
            ".." => {
                names.pop();
            }
            name => names.push(name),
        }
    }
    format!("/{}", names.join("/"))
}

fn text(bytes: &[u8]) -> Result<&str, SftpRefusal> {
    let text = std::str::from_utf8(bytes).ok().filter(|text| !text.contains('\0'));
    text.ok_or_else(|| SftpRefusal::failure("names of other bytes than UTF-8 cannot be sent"))
}

fn handle_id(fields: &mut WireReader<'_>) -> Result<u32, SftpRefusal> {
    let bytes: Result<[u8; 4], _> = fields.string()?.try_into();
    bytes.map(u32::from_be_bytes).map_err(|_| no_handle())
}

fn no_handle() -> SftpRefusal {
    SftpRefusal::failure("there is no such handle")
}

fn ok(id: u32) -> WireWriter {
    status(id, OK, "Success")
}

fn status(id: u32, code: u32, message: &str) -> WireWriter {
    WireWriter::message(STATUS)
        .number(id)
        .number(code)
        .string(message)
        .string("en")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_nowhere_above_the_root() {
        for (base, path, expected) in [
            ("/", "/a/../../../b", "/b"),
            ("/home/user", "", "/home/user"),
            ("/home/user", "./a//b/", "/home/user/a/b"),
            ("/home/user", "../..", "/"),
            ("/", "..", "/"),
        ] {
            assert_eq!(resolved(base, path), expected, "{path}");
        }
        assert!(text(b"a\0b").is_err() && text(b"\xff").is_err());
    }

    #[test]
    fn packets_are_whole_and_bounded() {
        let mut held = [&[0, 0, 0, 2, 7, 8][..], &[0, 0, 0, 3, 1]].concat();
        assert_eq!(packet(&mut held).unwrap(), Some(vec![7, 8]));
        assert_eq!(packet(&mut held).unwrap(), None);
        assert_eq!(held.len(), 5);
        assert!(packet(&mut vec![0, 0, 0, 0, 1]).is_err());
        assert!(packet(&mut vec![255, 255, 255, 255]).is_err());
    }
}
