//! The descriptors of a command.

use offleash_core::exec::OutputStream;
use offleash_simulated::engine::{FileKind, MountPoint};
use rustix::io::Errno;

use super::paths::{Files, ReadAhead, TreePath};

/// How many a command can have.
const MAX_DESCRIPTORS: usize = 1024;

/// What a command can have open.
#[derive(Debug)]
pub(super) enum Descriptor {
    Input,
    Output(OutputStream),
    Directory(OpenDirectory),
    File(OpenFile),
}

/// A directory.
#[derive(Debug)]
pub(super) struct OpenDirectory {
    pub(super) path: TreePath,
    /// Its name, if the command had it from the beginning.
    pub(super) preopened: Option<String>,
    /// What was listed of it.
    pub(super) listed: Option<Vec<(Vec<u8>, FileKind)>>,
}

/// A file.
#[derive(Debug)]
pub(super) struct OpenFile {
    pub(super) path: TreePath,
    pub(super) position: u64,
    pub(super) appends: bool,
    pub(super) reads: bool,
    pub(super) writes: bool,
    pub(super) ahead: ReadAhead,
}

/// All that a command has open.
#[derive(Debug)]
pub(super) struct Descriptors {
    open: Vec<Option<Descriptor>>,
    input: Vec<u8>,
    input_position: usize,
}

impl Descriptors {
    /// Standard streams, the working directory as `.`, and each served tree under its path.
    pub(super) fn new(cwd: &TreePath, mounts: &[MountPoint], input: Vec<u8>) -> Self {
        let mut open = vec![
            Some(Descriptor::Input),
            Some(Descriptor::Output(OutputStream::Stdout)),
            Some(Descriptor::Output(OutputStream::Stderr)),
        ];
        open.extend(preopened(cwd, mounts).into_iter().map(|(name, path)| {
            Some(Descriptor::Directory(OpenDirectory {
                path,
                preopened: Some(name),
                listed: None,
            }))
        }));
        Self {
            open,
            input,
            input_position: 0,
        }
    }

    /// Standard streams, and the root of all trees under that name.
    pub(super) fn rooted(root: TreePath, input: Vec<u8>) -> Self {
        let root = OpenDirectory {
            path: root,
            preopened: Some("/".to_owned()),
            listed: None,
        };
        Self {
            open: vec![
                Some(Descriptor::Input),
                Some(Descriptor::Output(OutputStream::Stdout)),
                Some(Descriptor::Output(OutputStream::Stderr)),
                Some(Descriptor::Directory(root)),
            ],
            input,
            input_position: 0,
        }
    }

    pub(super) fn get(&mut self, number: u32) -> Result<&mut Descriptor, i32> {
        let number = usize::try_from(number).map_err(|_| Errno::BADF.raw_os_error())?;
        let slot = self.open.get_mut(number).and_then(Option::as_mut);
        slot.ok_or(Errno::BADF.raw_os_error())
    }

    pub(super) fn directory(&mut self, number: u32) -> Result<&mut OpenDirectory, i32> {
        match self.get(number)? {
            Descriptor::Directory(directory) => Ok(directory),
            _ => Err(Errno::NOTDIR.raw_os_error()),
        }
    }

    pub(super) fn file(&mut self, number: u32) -> Result<&mut OpenFile, i32> {
        match self.get(number)? {
            Descriptor::File(file) => Ok(file),
            Descriptor::Directory(_) => Err(Errno::ISDIR.raw_os_error()),
            _ => Err(Errno::SPIPE.raw_os_error()),
        }
    }

    /// Its number, which is the lowest that is free.
    pub(super) fn add(&mut self, descriptor: Descriptor) -> Result<u32, i32> {
        let free = self.open.iter().position(Option::is_none);
        let number = free.unwrap_or(self.open.len());
        if number >= MAX_DESCRIPTORS {
            return Err(Errno::MFILE.raw_os_error());
        }
        match self.open.get_mut(number) {
            Some(slot) => *slot = Some(descriptor),
            None => self.open.push(Some(descriptor)),
        }
        u32::try_from(number).map_err(|_| Errno::MFILE.raw_os_error())
    }

    pub(super) fn close(&mut self, number: u32) -> Result<Descriptor, i32> {
        self.get(number)?;
        let number = usize::try_from(number).unwrap_or(usize::MAX);
        let slot = self.open.get_mut(number).and_then(Option::take);
        slot.ok_or(Errno::BADF.raw_os_error())
    }

    /// Has `to` stand for what `from` stands for, which is closed.
    pub(super) fn renumber(&mut self, from: u32, to: u32) -> Result<(), i32> {
        self.get(to)?;
        let moved = self.close(from)?;
        *self.get(to)? = moved;
        Ok(())
    }

    /// The directories that it had from the beginning, with their names.
    pub(super) fn preopened(&self) -> Vec<(String, TreePath)> {
        let directories = self.open.iter().flatten().filter_map(|descriptor| match descriptor {
            Descriptor::Directory(directory) => Some((directory.preopened.clone()?, directory.path.clone())),
            _ => None,
        });
        directories.collect()
    }

    /// Takes what is next of standard input, at most this much.
    pub(super) fn input(&mut self, most: usize) -> &[u8] {
        let start = self.input_position;
        let end = self.input.len().min(start.saturating_add(most));
        self.input_position = end;
        self.input.get(start..end).unwrap_or_default()
    }
}

/// What a command has from the beginning, with its names.
fn preopened(cwd: &TreePath, mounts: &[MountPoint]) -> Vec<(String, TreePath)> {
    let mut all = vec![(".".to_owned(), cwd.clone())];
    for mount in mounts {
        let name = String::from_utf8_lossy(&mount.path).into_owned();
        if let Some(path) = TreePath::root(mounts, &mount.path) {
            all.push((name, path));
        }
    }
    all
}

impl OpenFile {
    pub(super) fn read(&mut self, files: &Files, offset: u64, buffer: &mut [u8]) -> Result<usize, i32> {
        match self.reads {
            true => files.read(&self.path, &mut self.ahead, offset, buffer),
            false => Err(Errno::BADF.raw_os_error()),
        }
    }

    /// Writes at an offset; at the end if it appends.
    pub(super) fn write(&mut self, files: &Files, offset: u64, bytes: &[u8]) -> Result<usize, i32> {
        match (self.writes, self.appends) {
            (false, _) => Err(Errno::BADF.raw_os_error()),
            (true, true) => files.write(&self.path, None, bytes),
            (true, false) => files.write(&self.path, Some(offset), bytes),
        }
    }
}
