//! This side of a directory that is brought over.
//!
//! What is read is the user's own. What a sandbox named is written by directories that are held open ([`super::super::arrival`]).

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use offleash_core::text::Text;
use rustix::fs::{CWD, Mode, OFlags, openat};

use super::super::arrival::Directory;
use super::super::copy::{DEEPEST, here, joined};
use super::ignore::{IgnoreStack, is_heeded};
use crate::failure::Failure;
use crate::terminal;

/// What is at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum HereEntry {
    Directory,
    File(FileStamp),
}

/// How it is seen that a file changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileStamp {
    pub(super) size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
    inode: u64,
    mode: u32,
}

impl HereEntry {
    /// Whether its owner may run it.
    pub(super) fn is_executable(&self) -> bool {
        matches!(self, Self::File(stamp) if stamp.mode & 0o100 != 0)
    }
}

/// A directory here.
pub(super) struct HereTree {
    root: PathBuf,
    ignore_files: Vec<PathBuf>,
    /// The same by paths without links.
    whole_ignore_files: Vec<PathBuf>,
    heeds_files: bool,
    /// What each directory leaves out, as it was when the tree was read.
    stacks: RefCell<HashMap<String, IgnoreStack>>,
    /// What is neither a file nor a directory, or has a name that cannot be sent.
    odd: RefCell<BTreeSet<PathBuf>>,
    odd_now: Cell<usize>,
}

impl HereTree {
    pub(super) fn new(root: &Path, ignore_files: &[PathBuf], heeds_files: bool) -> Self {
        Self {
            root: root.to_owned(),
            ignore_files: ignore_files.to_vec(),
            // One that is not there is told of when it is read.
            whole_ignore_files: ignore_files
                .iter()
                .filter_map(|path| path.canonicalize().ok())
                .collect(),
            heeds_files,
            stacks: RefCell::default(),
            odd: RefCell::default(),
            odd_now: Cell::new(0),
        }
    }

    /// How much was left out because of what it is.
    pub(super) fn odd(&self) -> usize {
        self.odd_now.get()
    }

    /// Whether a path below is of a file that says what is left out, now or by its name the next time.
    pub(super) fn decides(&self, path: &str) -> bool {
        let name = path.rsplit_once('/').map_or(path, |(_, name)| name);
        is_heeded(name) || {
            let whole = self.path(path).canonicalize();
            whole.is_ok_and(|whole| self.whole_ignore_files.contains(&whole))
        }
    }

    /// Whether nothing at all is there yet.
    pub(super) fn is_new(&self) -> Result<bool, Failure> {
        match fs::read_dir(&self.root) {
            Ok(mut entries) => Ok(entries.next().is_none()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(true),
            Err(error) => Err(here("list", &self.root, &error)),
        }
    }

    /// Makes the directory, unless it is there.
    pub(super) fn make_root(&self) -> Result<(), Failure> {
        fs::create_dir_all(&self.root).map_err(|error| here("make", &self.root, &error))
    }

    /// All that is there and not left out, by its path. A directory that is not there is an empty one.
    pub(super) fn read(&self) -> Result<BTreeMap<String, HereEntry>, Failure> {
        self.stacks.borrow_mut().clear();
        self.odd_now.set(0);
        let mut found = BTreeMap::new();
        let mut left = vec![(String::new(), 0)];
        while let Some((directory, depth)) = left.pop() {
            if depth > DEEPEST {
                let shown = Text::from(self.path(&directory).as_path()).to_string();
                return Err(Failure::new(format!(
                    "more than {DEEPEST} directories below one another at `{shown}`"
                )));
            }
            let path = self.path(&directory);
            let entries = fs::read_dir(&path).map_err(|error| here("list", &path, &error))?;
            for entry in entries {
                let entry = entry.map_err(|error| here("list", &path, &error))?;
                let metadata = match entry.metadata() {
                    Ok(metadata) => metadata,
                    // It went meanwhile.
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                    Err(error) => return Err(here("examine", &entry.path(), &error)),
                };
                let Ok(name) = entry.file_name().into_string() else {
                    self.leave_out(entry.path(), "its name is no UTF-8");
                    continue;
                };
                let below = match directory.as_str() {
                    "" => name,
                    directory => joined(directory, &name),
                };
                if self.leaves_out(&below, metadata.is_dir())? {
                    continue;
                }
                if metadata.is_dir() {
                    left.push((below.clone(), depth + 1));
                    found.insert(below, HereEntry::Directory);
                } else if metadata.is_file() {
                    found.insert(below, HereEntry::File(stamp(&metadata)));
                } else {
                    self.leave_out(entry.path(), "it is no file");
                }
            }
        }
        Ok(found)
    }

    /// Whether a path is left out, on either side; what is above it is not.
    pub(super) fn leaves_out(&self, path: &str, is_directory: bool) -> Result<bool, Failure> {
        let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory);
        let stack = self.stack(directory)?;
        let names: Vec<&[u8]> = path.split('/').map(str::as_bytes).collect();
        Ok(stack.leaves_out(&names, is_directory))
    }

    fn stack(&self, directory: &str) -> Result<IgnoreStack, Failure> {
        if let Some(known) = self.stacks.borrow().get(directory) {
            return Ok(known.clone());
        }
        let stack = match directory.rsplit_once('/') {
            _ if directory.is_empty() => IgnoreStack::of(&self.root, &self.ignore_files, self.heeds_files)?,
            Some((above, _)) => {
                let depth = directory.split('/').count();
                self.stack(above)?.below(&self.path(directory), depth)?
            }
            None => self.stack("")?.below(&self.path(directory), 1)?,
        };
        self.stacks.borrow_mut().insert(directory.to_owned(), stack.clone());
        Ok(stack)
    }

    /// A file, to be read.
    pub(super) fn open(&self, path: &str) -> Result<File, Failure> {
        let path = self.path(path);
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = openat(CWD, &path, flags, Mode::empty());
        opened
            .map(File::from)
            .map_err(|error| here("open", &path, &error.into()))
    }

    /// The directory that a path leads to, which is made; no link is followed.
    pub(super) fn directory(&self, path: &str) -> Result<Directory, Failure> {
        let root = Directory::open(&self.root)?;
        let mut names = path.split('/').filter(|name| !name.is_empty());
        names.try_fold(root, |directory, name| directory.directory(name))
    }

    /// The directory that a path is in, and its name there.
    pub(super) fn parent<'p>(&self, path: &'p str) -> Result<(Directory, &'p str), Failure> {
        let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
        Ok((self.directory(directory)?, name))
    }

    pub(super) fn is_empty(&self, path: &str) -> Result<bool, Failure> {
        let path = self.path(path);
        let mut entries = fs::read_dir(&path).map_err(|error| here("list", &path, &error))?;
        Ok(entries.next().is_none())
    }

    pub(super) fn remove(&self, path: &str, is_directory: bool) -> Result<(), Failure> {
        let (directory, name) = self.parent(path)?;
        directory.remove(name, is_directory)
    }

    fn path(&self, below: &str) -> PathBuf {
        match below {
            "" => self.root.clone(),
            below => self.root.join(below),
        }
    }

    /// Says once what is left out because of what it is.
    fn leave_out(&self, path: PathBuf, why: &str) {
        self.odd_now.set(self.odd_now.get() + 1);
        if !self.odd.borrow().contains(&path) {
            terminal::complain(&format!("left out, because {why}: {}", Text::from(path.as_path())));
            self.odd.borrow_mut().insert(path);
        }
    }
}

fn stamp(metadata: &fs::Metadata) -> FileStamp {
    FileStamp {
        size: metadata.len(),
        modified: (metadata.mtime(), metadata.mtime_nsec()),
        changed: (metadata.ctime(), metadata.ctime_nsec()),
        inode: metadata.ino(),
        mode: metadata.mode() & 0o777,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn what_is_left_out_is_so_on_both_sides_and_links_lead_nowhere() {
        let site = tempfile::tempdir().unwrap();
        let (root, outside) = (site.path().join("root"), site.path().join("outside"));
        fs::create_dir_all(root.join("src")).unwrap();
        fs::create_dir_all(root.join("target")).unwrap();
        fs::create_dir(&outside).unwrap();
        for file in ["src/a.rs", "src/b.log", "target/x"] {
            fs::write(root.join(file), file).unwrap();
        }
        fs::write(root.join(".gitignore"), "*.log\n/target/\n").unwrap();
        symlink(&outside, root.join("link")).unwrap();
        let tree = HereTree::new(&root, &[], true);
        let read = tree.read().unwrap();
        assert_eq!(read.keys().collect::<Vec<_>>(), [".gitignore", "src", "src/a.rs"]);
        assert_eq!(tree.odd(), 1);
        assert!(tree.leaves_out("target", true).unwrap() && tree.leaves_out("new/deep.log", false).unwrap());
        assert!(!tree.leaves_out("target", false).unwrap());
        // A sandbox that names what is a link here is refused.
        assert!(tree.directory("link").is_err() && tree.parent("link/file").is_err());
        assert!(tree.open("link").is_err());
        let (directory, name) = tree.parent("src/b.log").unwrap();
        directory.remove(name, false).unwrap();
        assert!(!root.join("src/b.log").exists() && fs::read_dir(&outside).unwrap().next().is_none());
    }

    #[test]
    fn files_that_say_what_is_left_out_are_known_wherever_they_are() {
        let site = tempfile::tempdir().unwrap();
        let root = site.path().join("root");
        let own = root.join("own.list");
        let tree = HereTree::new(&root, std::slice::from_ref(&own), false);
        assert!(tree.is_new().unwrap());
        fs::create_dir(&root).unwrap();
        assert!(tree.is_new().unwrap());
        fs::write(&own, ".env\n").unwrap();
        symlink(&own, root.join("also")).unwrap();
        let tree = HereTree::new(&root, &[own], false);
        assert!(!tree.is_new().unwrap());
        for decides in [".gitignore", "new/deep/.offleashignore", "own.list", "also"] {
            assert!(tree.decides(decides), "{decides}");
        }
        for other in ["gitignore", ".gitignore/file", "new/own.list"] {
            assert!(!tree.decides(other), "{other}");
        }
    }

    #[test]
    fn a_file_that_changed_has_another_stamp() {
        let site = tempfile::tempdir().unwrap();
        fs::write(site.path().join("a"), "1").unwrap();
        let tree = HereTree::new(site.path(), &[], true);
        let before = tree.read().unwrap();
        assert_eq!(tree.read().unwrap(), before);
        fs::write(site.path().join("a"), "22").unwrap();
        assert_ne!(tree.read().unwrap(), before);
    }
}
