//! A root in memory, below which the served trees lie: what scripts at level `wasm` have beside the files of the plan.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use offleash_core::exec::OutputStream;
use offleash_simulated::engine::{
    FileAnswer, FileEntry, FileFacts, FileKind, FileOperation, FileRequest, MAX_PIECE, MountPoint, ScriptHost,
    ScriptLanguage,
};
use rustix::io::Errno;

/// How many names there may be.
const MAX_NODES: usize = 100_000;
/// Directories that are there before anything is written.
const DIRECTORIES: [&str; 3] = ["tmp", "var/tmp", "usr/local/lib"];

/// What asks the supervisor about its trees, and answers about the root itself.
pub(super) struct RootedHost {
    outer: Arc<dyn ScriptHost>,
    mounts: Vec<MountPoint>,
    root: u32,
    tree: Mutex<RootTree>,
}

impl RootedHost {
    /// With at most this many bytes of files.
    pub(super) fn new(outer: Arc<dyn ScriptHost>, served: &[MountPoint], most: Option<u64>) -> Self {
        let mut tree = RootTree::new(most.unwrap_or(u64::MAX));
        for directory in DIRECTORIES {
            tree.make_all(directory.as_bytes());
        }
        for mount in served {
            tree.make_all(mount.path.strip_prefix(b"/").unwrap_or(&mount.path));
        }
        let mut mounts = served.to_vec();
        let root = u32::try_from(mounts.len()).unwrap_or(u32::MAX);
        mounts.push(MountPoint { path: b"/".to_vec() });
        let tree = Mutex::new(tree);
        Self {
            outer,
            mounts,
            root,
            tree,
        }
    }

    /// The served trees, and the root.
    pub(super) fn mounts(&self) -> &[MountPoint] {
        &self.mounts
    }
}

impl ScriptHost for RootedHost {
    fn files(&self, request: FileRequest) -> FileAnswer {
        if request.mount != self.root {
            return self.outer.files(request);
        }
        let mut tree = self.tree.lock().unwrap_or_else(PoisonError::into_inner);
        let answered = tree.answer(&request.path, request.operation);
        answered.unwrap_or_else(|errno| FileAnswer::Failed {
            errno: errno.raw_os_error(),
        })
    }

    fn interpreter(&self, language: ScriptLanguage) -> Result<OwnedFd, String> {
        self.outer.interpreter(language)
    }

    fn output(&self, stream: OutputStream, bytes: Vec<u8>) -> bool {
        self.outer.output(stream, bytes)
    }
}

/// Something in the tree.
#[derive(Debug)]
struct RootNode {
    content: NodeContent,
    mode: u32,
    modified: (i64, u32),
}

#[derive(Debug)]
enum NodeContent {
    Directory,
    File(Vec<u8>),
    Link(Vec<u8>),
}

impl RootNode {
    fn new(content: NodeContent) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mode = match content {
            NodeContent::Directory => 0o755,
            NodeContent::File(_) => 0o644,
            NodeContent::Link(_) => 0o777,
        };
        let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
        Self {
            content,
            mode,
            modified: (seconds, since.subsec_nanos()),
        }
    }

    fn facts(&self) -> FileFacts {
        let (kind, size) = match &self.content {
            NodeContent::Directory => (FileKind::Directory, 0),
            NodeContent::File(bytes) => (FileKind::File, bytes.len()),
            NodeContent::Link(target) => (FileKind::Symlink, target.len()),
        };
        FileFacts {
            kind,
            mode: self.mode,
            size: size as u64,
            seconds: self.modified.0,
            nanoseconds: self.modified.1,
        }
    }
}

/// Files by their paths from the root, which has the empty one.
#[derive(Debug)]
struct RootTree {
    nodes: BTreeMap<Vec<u8>, RootNode>,
    /// Bytes of all files, and how many there may be.
    used: u64,
    most: u64,
}

impl RootTree {
    fn new(most: u64) -> Self {
        let root = (Vec::new(), RootNode::new(NodeContent::Directory));
        Self {
            nodes: BTreeMap::from([root]),
            used: 0,
            most,
        }
    }

    /// Makes a directory and all above it.
    fn make_all(&mut self, path: &[u8]) {
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        let ends: Vec<usize> = ends.map(|(end, _)| end).chain([path.len()]).collect();
        for end in ends {
            let above = path.get(..end).unwrap_or(path).to_vec();
            let directory = || RootNode::new(NodeContent::Directory);
            self.nodes.entry(above).or_insert_with(directory);
        }
    }

    fn node(&self, path: &[u8]) -> Result<&RootNode, Errno> {
        self.nodes.get(path).ok_or(Errno::NOENT)
    }

    fn file(&mut self, path: &[u8]) -> Result<&mut RootNode, Errno> {
        self.nodes.get_mut(path).ok_or(Errno::NOENT)
    }

    fn answer(&mut self, path: &[u8], operation: FileOperation) -> Result<FileAnswer, Errno> {
        match operation {
            FileOperation::Stat => return self.node(path).map(|node| FileAnswer::Facts(node.facts())),
            FileOperation::List => return self.list(path),
            FileOperation::Read { offset } => return self.read(path, offset),
            FileOperation::ReadLink => {
                return match &self.node(path)?.content {
                    NodeContent::Link(target) => Ok(FileAnswer::Target(target.clone())),
                    _ => Err(Errno::INVAL),
                };
            }
            FileOperation::Replace { bytes, .. } => {
                self.change(path, true, |content| *content = bytes)?;
            }
            FileOperation::Append(bytes) => self.change(path, true, |content| content.extend_from_slice(&bytes))?,
            FileOperation::Write { offset, bytes } => self.write(path, offset, &bytes)?,
            FileOperation::Resize { size } => {
                self.check_room(size)?;
                let size = usize::try_from(size).map_err(|_| Errno::FBIG)?;
                self.change(path, false, |content| content.resize(size, 0))?;
            }
            FileOperation::MakeDirectory => self.add(path, NodeContent::Directory)?,
            FileOperation::Symlink { target } => self.add(path, NodeContent::Link(target))?,
            FileOperation::Remove => self.remove(path)?,
            FileOperation::Rename { to } => self.rename(path, to)?,
            FileOperation::Chmod { mode } => self.file(path)?.mode = mode & 0o1777,
            FileOperation::Touch { seconds, nanoseconds } => self.file(path)?.modified = (seconds, nanoseconds),
        }
        Ok(FileAnswer::Done)
    }

    fn below(&self, path: &[u8]) -> impl Iterator<Item = (&[u8], &RootNode)> {
        let start = match path {
            b"" => Vec::new(),
            path => [path, b"/"].concat(),
        };
        let all = self.nodes.range(start.clone()..);
        let below = all.map_while(move |(name, node)| Some((name.strip_prefix(start.as_slice())?, node)));
        below.filter(|(name, _)| !name.is_empty())
    }

    fn list(&self, path: &[u8]) -> Result<FileAnswer, Errno> {
        match self.node(path)?.content {
            NodeContent::Directory => {}
            _ => return Err(Errno::NOTDIR),
        }
        let direct = self.below(path).filter(|(name, _)| !name.contains(&b'/'));
        let entries = direct.map(|(name, node)| FileEntry {
            name: name.to_vec(),
            facts: node.facts(),
        });
        Ok(FileAnswer::Entries(entries.collect()))
    }

    fn read(&self, path: &[u8], offset: u64) -> Result<FileAnswer, Errno> {
        let content = match &self.node(path)?.content {
            NodeContent::File(content) => content,
            NodeContent::Directory => return Err(Errno::ISDIR),
            NodeContent::Link(_) => return Err(Errno::LOOP),
        };
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(content.len());
        let end = content.len().min(start + MAX_PIECE);
        Ok(FileAnswer::Piece {
            bytes: content.get(start..end).unwrap_or_default().to_vec(),
            total: content.len() as u64,
        })
    }

    /// Whether a file may be this long, counted on top of all others.
    fn check_room(&self, size: u64) -> Result<(), Errno> {
        match self.used.checked_add(size).is_some_and(|after| after <= self.most) {
            true => Ok(()),
            false => Err(Errno::NOSPC),
        }
    }

    fn write(&mut self, path: &[u8], offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        let end = offset.checked_add(bytes.len() as u64).ok_or(Errno::FBIG)?;
        let size = self.node(path)?.facts().size;
        self.check_room(end.saturating_sub(size))?;
        let start = usize::try_from(offset).map_err(|_| Errno::FBIG)?;
        self.change(path, false, |content| {
            let end = start + bytes.len();
            if content.len() < end {
                content.resize(end, 0);
            }
            if let Some(place) = content.get_mut(start..end) {
                place.copy_from_slice(bytes);
            }
        })
    }

    /// Changes what is in a file, and makes it if that is meant.
    fn change(&mut self, path: &[u8], makes: bool, change: impl FnOnce(&mut Vec<u8>)) -> Result<(), Errno> {
        if makes && !self.nodes.contains_key(path) {
            self.add(path, NodeContent::File(Vec::new()))?;
        }
        let (used, most) = (self.used, self.most);
        let node = self.file(path)?;
        let content = match &mut node.content {
            NodeContent::File(content) => content,
            NodeContent::Directory => return Err(Errno::ISDIR),
            NodeContent::Link(_) => return Err(Errno::LOOP),
        };
        let before = content.len();
        change(content);
        let used = used.saturating_sub(before as u64).saturating_add(content.len() as u64);
        let is_too_much = used > most && content.len() > before;
        if is_too_much {
            // At most one piece beyond; it is taken back.
            content.truncate(before);
            return Err(Errno::NOSPC);
        }
        node.modified = RootNode::new(NodeContent::Directory).modified;
        self.used = used;
        Ok(())
    }

    fn add(&mut self, path: &[u8], content: NodeContent) -> Result<(), Errno> {
        if self.nodes.contains_key(path) {
            return Err(Errno::EXIST);
        }
        if self.nodes.len() >= MAX_NODES {
            return Err(Errno::NOSPC);
        }
        let above = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        match self.node(path.get(..above).unwrap_or_default())?.content {
            NodeContent::Directory => {}
            _ => return Err(Errno::NOTDIR),
        }
        self.nodes.insert(path.to_vec(), RootNode::new(content));
        Ok(())
    }

    fn remove(&mut self, path: &[u8]) -> Result<(), Errno> {
        self.node(path)?;
        if path.is_empty() {
            return Err(Errno::BUSY);
        }
        if self.below(path).next().is_some() {
            return Err(Errno::NOTEMPTY);
        }
        if let Some(node) = self.nodes.remove(path) {
            self.forget(&node);
        }
        Ok(())
    }

    fn forget(&mut self, node: &RootNode) {
        if let NodeContent::File(content) = &node.content {
            self.used = self.used.saturating_sub(content.len() as u64);
        }
    }

    fn rename(&mut self, from: &[u8], to: Vec<u8>) -> Result<(), Errno> {
        let is_directory = matches!(self.node(from)?.content, NodeContent::Directory);
        if from == to {
            return Ok(());
        }
        if from.is_empty() || to.starts_with(&[from, b"/"].concat()) {
            return Err(Errno::INVAL);
        }
        match self
            .nodes
            .get(&to)
            .map(|node| matches!(node.content, NodeContent::Directory))
        {
            Some(true) if !is_directory => return Err(Errno::ISDIR),
            Some(false) if is_directory => return Err(Errno::NOTDIR),
            Some(_) => self.remove(&to)?,
            None => {}
        }
        // Whether there may be such a name.
        self.add(&to, NodeContent::Directory)?;
        let moved: Vec<Vec<u8>> = self.below(from).map(|(name, _)| name.to_vec()).collect();
        for name in moved {
            if let Some(node) = self.nodes.remove(&[from, b"/", &name].concat()) {
                self.nodes.insert([&to, b"/".as_slice(), &name].concat(), node);
            }
        }
        if let Some(node) = self.nodes.remove(from) {
            self.nodes.insert(to, node);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(tree: &RootTree, path: &[u8]) -> Vec<String> {
        match tree.list(path) {
            Ok(FileAnswer::Entries(entries)) => entries
                .into_iter()
                .map(|entry| String::from_utf8(entry.name).expect("it is text"))
                .collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn directories_move_with_what_is_in_them() {
        let mut tree = RootTree::new(100);
        tree.make_all(b"tmp/a/b");
        let mut done = |path: &[u8], operation| assert_eq!(tree.answer(path, operation), Ok(FileAnswer::Done));
        let bytes = b"hello".to_vec();
        done(b"tmp/a/f", FileOperation::Replace { total: 5, bytes });
        done(b"tmp/a", FileOperation::Rename { to: b"tmp/z".to_vec() });
        assert_eq!(names(&tree, b"tmp"), ["z"]);
        assert_eq!(names(&tree, b"tmp/z"), ["b", "f"]);
        assert_eq!(tree.answer(b"tmp/z", FileOperation::Remove), Err(Errno::NOTEMPTY));
        let inside = FileOperation::Rename {
            to: b"tmp/z/y".to_vec(),
        };
        assert_eq!(tree.answer(b"tmp/z", inside), Err(Errno::INVAL));
    }

    #[test]
    fn bytes_and_names_are_bounded() {
        let mut tree = RootTree::new(10);
        let bytes = vec![0; 6];
        let write = FileOperation::Replace { total: 6, bytes };
        assert_eq!(tree.answer(b"a", write.clone()), Ok(FileAnswer::Done));
        assert_eq!(tree.answer(b"b", write.clone()), Err(Errno::NOSPC));
        let far = FileOperation::Write {
            offset: u64::MAX - 1,
            bytes: vec![0],
        };
        assert_eq!(tree.answer(b"a", far), Err(Errno::NOSPC));
        assert_eq!(
            tree.answer(b"a", FileOperation::Resize { size: 1 << 40 }),
            Err(Errno::NOSPC)
        );
        assert_eq!(tree.answer(b"a", FileOperation::Remove), Ok(FileAnswer::Done));
        assert_eq!(tree.answer(b"c", write), Ok(FileAnswer::Done));
        for number in tree.nodes.len()..MAX_NODES {
            let name = number.to_string().into_bytes();
            assert_eq!(tree.answer(&name, FileOperation::MakeDirectory), Ok(FileAnswer::Done));
        }
        assert_eq!(tree.answer(b"more", FileOperation::MakeDirectory), Err(Errno::NOSPC));
    }
}
