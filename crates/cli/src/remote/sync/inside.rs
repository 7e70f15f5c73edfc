//! The sandbox's side of a directory that is brought over: what is there, and what its files hold.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Duration;

use data_encoding::HEXLOWER;
use offleash_api::client::{ClientError, ExecStart, FileEntry, Kind, News, SandboxServices};
use offleash_core::text::Text;
use sha2::{Digest as _, Sha256};

use super::super::copy::{DEEPEST, checked, joined};
use crate::failure::Failure;

/// The most files and directories of a tree inside.
const MAX_ENTRIES: usize = 1_000_000;
/// What is said of the names of one command, in bytes.
const BATCH: usize = 64 << 10;
/// How much of a file is read at once where the sandbox has no program for digests.
const PIECE: u64 = 4 << 20;
/// The most that a program may say of the names of one command.
const MAX_SAID: usize = 4 << 20;
/// How long a program may take for the files of one command, and how much longer for each MiB that it has to read.
const PATIENCE: Duration = Duration::from_secs(600);
const PATIENCE_PER_MIB: Duration = Duration::from_millis(500);

/// The digest of a file.
pub(super) type FileDigest = [u8; 32];

/// A directory in a sandbox.
pub(super) struct Inside {
    services: SandboxServices,
    runtime: tokio::runtime::Runtime,
    root: String,
}

impl Inside {
    pub(super) fn new(services: SandboxServices, root: &str) -> Result<Self, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Failure::new(format!("cannot start an event loop: {error}")))?;
        Ok(Self {
            services,
            runtime,
            root: root.to_owned(),
        })
    }

    pub(super) fn path(&self, name: &str) -> String {
        match name {
            "" => self.root.clone(),
            name => joined(&self.root, name),
        }
    }

    /// What is at a path below; `None` if nothing is.
    pub(super) fn entry(&self, name: &str) -> Result<Option<FileEntry>, Failure> {
        Ok(self.runtime.block_on(self.services.entry(&self.path(name)))?)
    }

    /// All that is below, by its path, except what `leaves_out` says. Names are a sandbox's, and only names.
    pub(super) fn tree(
        &self,
        mut leaves_out: impl FnMut(&str, bool) -> Result<bool, Failure>,
    ) -> Result<BTreeMap<String, FileEntry>, Failure> {
        let mut found = BTreeMap::new();
        let mut left = vec![(String::new(), 0)];
        while let Some((directory, depth)) = left.pop() {
            if depth > DEEPEST {
                let shown = Text::from(self.path(&directory).as_str()).to_string();
                return Err(Failure::new(format!(
                    "more than {DEEPEST} directories below one another at `{shown}`"
                )));
            }
            for entry in self.runtime.block_on(self.services.list(&self.path(&directory)))? {
                let name = checked(&entry.name)?;
                let path = match directory.as_str() {
                    "" => name.to_owned(),
                    directory => joined(directory, name),
                };
                let is_directory = entry.kind == Kind::Directory && !entry.is_link;
                if leaves_out(&path, is_directory)? {
                    continue;
                }
                if is_directory {
                    left.push((path.clone(), depth + 1));
                }
                found.insert(path, entry);
                if found.len() > MAX_ENTRIES {
                    return Err(Failure::new(format!(
                        "more than {MAX_ENTRIES} files and directories in the sandbox"
                    )));
                }
            }
        }
        Ok(found)
    }

    pub(super) fn is_empty(&self, name: &str) -> Result<bool, Failure> {
        let entries = self.runtime.block_on(self.services.list(&self.path(name)))?;
        Ok(entries.is_empty())
    }

    pub(super) fn make_directory(&self, name: &str) -> Result<(), Failure> {
        Ok(self.runtime.block_on(self.services.make_directory(&self.path(name)))?)
    }

    pub(super) fn remove(&self, name: &str) -> Result<(), Failure> {
        Ok(self.runtime.block_on(self.services.remove(&self.path(name)))?)
    }

    pub(super) fn upload(&self, from: std::fs::File, name: &str) -> Result<(), Failure> {
        Ok(self.runtime.block_on(self.services.upload(from, &self.path(name)))?)
    }

    /// Writes what a file holds; whoever takes it bounds that.
    pub(super) fn download(&self, name: &str, to: &mut impl Write) -> Result<(), Failure> {
        let path = self.path(name);
        let mut offset = 0;
        loop {
            let bytes = self.runtime.block_on(self.services.read(&path, offset, PIECE))?;
            to.write_all(&bytes)
                .map_err(|error| Failure::from_error(&error).while_trying("writing a file"))?;
            offset += bytes.len() as u64;
            // Less than was asked for is the end of it.
            if (bytes.len() as u64) < PIECE {
                return Ok(());
            }
        }
    }

    /// The digests of files, which are said with their sizes. What the sandbox says of them decides which are brought over, and
    /// nothing else.
    pub(super) fn digests(&self, files: &[(&str, u64)]) -> Result<BTreeMap<String, FileDigest>, Failure> {
        let sizes: BTreeMap<&str, u64> = files.iter().copied().collect();
        let size_of = |name: &str| sizes.get(name).copied().unwrap_or_default();
        let names: Vec<&str> = files.iter().map(|(name, _)| *name).collect();
        let mut digests = BTreeMap::new();
        for batch in batches(&names) {
            let bytes = batch.iter().map(|name| size_of(name)).fold(0, u64::saturating_add);
            match self.said(&["sha256sum", "-z", "--"], &batch, patience(bytes))? {
                Some(said) => {
                    for record in said.split(|byte| *byte == 0) {
                        if let Some((path, digest)) = digest_of(record)
                            && let Some(name) = batch.iter().find(|name| self.path(name) == path)
                        {
                            digests.insert((*name).to_owned(), digest);
                        }
                    }
                }
                // It has no such program: they are read.
                None => {
                    for name in batch {
                        let mut hasher = Hasher::within(size_of(name));
                        match self.download(name, &mut hasher) {
                            // It is another file by now.
                            Err(_) if hasher.is_exceeded => continue,
                            read => read?,
                        }
                        digests.insert(name.to_owned(), hasher.hash.finalize().into());
                    }
                }
            }
        }
        Ok(digests)
    }

    /// Lets programs be run, or not.
    pub(super) fn set_executable(&self, names: &[&str], is_executable: bool) -> Result<bool, Failure> {
        let mode = if is_executable { "+x" } else { "-x" };
        for batch in batches(names) {
            if self.said(&["chmod", mode, "--"], &batch, PATIENCE)?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// What a program of the sandbox says of files; `None` if it is not there, or fails. It is the sandbox's own: what it says,
    /// and how long it takes, is bounded.
    fn said(&self, words: &[&str], names: &[&str], patience: Duration) -> Result<Option<Vec<u8>>, Failure> {
        let paths = names.iter().map(|name| self.path(name));
        let start = ExecStart {
            argv: words.iter().map(ToString::to_string).chain(paths).collect(),
            env: std::iter::once(("LC_ALL".to_owned(), "C".to_owned())).collect(),
            cwd: None,
            user: None,
            tty: None,
            stdin: false,
        };
        let program = words.first().copied().unwrap_or_default();
        let endless = |how: String| {
            Failure::new(format!("`{program}` of the sandbox {how}"))
                .with_hint("what is in the sandbox may be no such program")
        };
        let all = async {
            let mut exec = self.services.exec(start)?;
            let (mut said, mut length) = (Vec::new(), 0);
            loop {
                match exec.next().await {
                    Some(Ok(News::Ended(0))) => return Ok(Some(said)),
                    Some(Ok(News::Ended(_)) | Err(ClientError::NotStarted { .. })) | None => return Ok(None),
                    Some(Ok(News::Output(stream, bytes))) => {
                        length += bytes.len();
                        if length > MAX_SAID {
                            return Err(endless(format!("says more than {MAX_SAID} bytes of its files")));
                        }
                        if stream == offleash_core::exec::OutputStream::Stdout {
                            said.extend(bytes);
                        }
                    }
                    Some(Ok(News::Started(_))) => {}
                    Some(Err(error)) => return Err(error.into()),
                }
            }
        };
        self.runtime.block_on(async {
            let ended = tokio::time::timeout(patience, all).await;
            ended.unwrap_or_else(|_| Err(endless(format!("has not ended after {} seconds", patience.as_secs()))))
        })
    }
}

/// How long it may take to read so many bytes.
fn patience(bytes: u64) -> Duration {
    let mib = u32::try_from(bytes >> 20).unwrap_or(u32::MAX);
    PATIENCE.saturating_add(PATIENCE_PER_MIB.saturating_mul(mib))
}

/// As many names at a time as one command takes.
fn batches<'a>(names: &[&'a str]) -> Vec<Vec<&'a str>> {
    let mut batches: Vec<Vec<&str>> = Vec::new();
    let mut room = 0;
    for name in names {
        match batches.last_mut() {
            Some(batch) if room >= name.len() + 256 => batch.push(name),
            _ => {
                batches.push(vec![name]);
                room = BATCH;
            }
        }
        room = room.saturating_sub(name.len() + 256);
    }
    batches
}

/// A path and its digest, as `sha256sum` says them.
fn digest_of(record: &[u8]) -> Option<(&str, FileDigest)> {
    let (digits, rest) = record.split_at_checked(64)?;
    let digest = HEXLOWER.decode(digits).ok()?;
    let path = rest.strip_prefix(b"  ").or_else(|| rest.strip_prefix(b" *"))?;
    Some((std::str::from_utf8(path).ok()?, digest.try_into().ok()?))
}

/// Takes as many bytes in as there may be, and keeps none.
struct Hasher {
    hash: Sha256,
    left: u64,
    is_exceeded: bool,
}

impl Hasher {
    fn within(bytes: u64) -> Self {
        Self {
            hash: Sha256::new(),
            left: bytes,
            is_exceeded: false,
        }
    }
}

impl Write for Hasher {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(left) = self.left.checked_sub(bytes.len() as u64) else {
            self.is_exceeded = true;
            return Err(io::ErrorKind::FileTooLarge.into());
        };
        self.left = left;
        self.hash.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The digest of a file here.
pub(super) fn digest_here(mut file: std::fs::File) -> io::Result<FileDigest> {
    let mut hasher = Hasher::within(u64::MAX);
    io::copy(&mut file, &mut hasher)?;
    Ok(hasher.hash.finalize().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_read_strictly() {
        let digits = "00".repeat(32);
        let record = format!("{digits}  /home/user/a b\nc");
        assert_eq!(digest_of(record.as_bytes()), Some(("/home/user/a b\nc", [0; 32])));
        for record in [
            "",
            "00  /a",
            &format!("{digits}/a"),
            &format!("{}  /a", "zz".repeat(32)),
            &format!("\\{digits}  /a"),
        ] {
            assert_eq!(digest_of(record.as_bytes()), None, "{record}");
        }
    }

    #[test]
    fn a_file_that_is_longer_than_it_was_said_to_be_has_no_end() {
        let mut hasher = Hasher::within(5);
        hasher.write_all(b"12345").unwrap();
        assert!(hasher.write_all(b"6").is_err() && hasher.is_exceeded);
        assert_eq!(patience(0), PATIENCE);
        assert!(patience(u64::MAX) > patience(100 << 30) && patience(100 << 30) > PATIENCE);
    }

    #[test]
    fn a_command_takes_no_more_names_than_fit() {
        let long = "a".repeat(1000);
        let names = vec![long.as_str(); 200];
        let batches = batches(&names);
        assert!(batches.len() > 1 && batches.iter().all(|batch| batch.len() * 1000 <= BATCH));
        assert_eq!(batches.iter().map(Vec::len).sum::<usize>(), 200);
    }
}
