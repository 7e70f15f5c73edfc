//! A change as a patch in git's form.
//!
//! Directories have no place in such patches; they get a line that `git apply` skips. Contents are passed on byte by
//! byte, so the patch can be applied but must be escaped before it is shown on a terminal.

use std::io::Read as _;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use similar::{Algorithm, DiffOp, TextDiff};

use crate::change::{ChangeError, ChangeKind, LayerChange, LayerTrees};
use crate::failure::FileError;
use crate::node::{NodeKind, TreeNode};
use crate::quote::git_quoted;
use crate::tree::TreeRoot;

/// Files larger than this are summarised.
pub const MAX_TEXT_BYTES: u64 = 4 << 20;
/// As git: a file with a NUL among its first bytes is binary.
const BINARY_LOOK: usize = 8000;
const CONTEXT_LINES: usize = 3;
/// After this long the rest of a file is shown as replaced, so that a hostile file cannot keep us busy.
const TIMEOUT: Duration = Duration::from_secs(2);

/// A patch for one change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangePatch {
    /// What it holds.
    pub form: DiffForm,
    /// The patch, ending in a newline. Its lines may hold any byte, its headers only printable ASCII.
    pub bytes: Vec<u8>,
    /// Lines added.
    pub added_lines: usize,
    /// Lines removed.
    pub removed_lines: usize,
}

/// What a patch holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiffForm {
    /// Every changed line.
    Text,
    /// A note that binary files differ.
    Binary,
    /// A note that the files are larger than [`MAX_TEXT_BYTES`].
    TooLarge,
    /// A note that one of the files cannot be read, and why.
    Unreadable,
    /// Modes, directories, fifos, sockets or devices only.
    Metadata,
}

pub(crate) fn unified(trees: &LayerTrees, change: &LayerChange) -> Result<ChangePatch, ChangeError> {
    let mut patch = PatchText::new(change);
    let (before, after) = (change.before.as_ref(), change.after.as_ref());
    match (before, after) {
        // As git: a file that became something else is deleted and added.
        (Some(old), Some(new)) if old.kind != new.kind => {
            patch.side(trees, Some(old), None)?;
            patch.side(trees, None, Some(new))?;
        }
        _ => patch.side(trees, before, after)?,
    }
    Ok(patch.diff)
}

struct PatchText<'a> {
    path: &'a Path,
    kind: ChangeKind,
    diff: ChangePatch,
}

enum FileContent {
    Absent,
    Text(Vec<u8>),
    Binary,
    TooLarge,
    /// Its owner keeps it from us; what changed can be told nevertheless.
    Unreadable(Errno),
}

impl<'a> PatchText<'a> {
    fn new(change: &'a LayerChange) -> Self {
        let diff = ChangePatch {
            form: DiffForm::Metadata,
            bytes: Vec::new(),
            added_lines: 0,
            removed_lines: 0,
        };
        Self {
            path: &change.path,
            kind: change.kind,
            diff,
        }
    }

    fn side(
        &mut self,
        trees: &LayerTrees,
        before: Option<&TreeNode>,
        after: Option<&TreeNode>,
    ) -> Result<(), ChangeError> {
        let Some(kind) = after.or(before).map(|node| node.kind) else {
            return Ok(());
        };
        if !matches!(kind, NodeKind::File | NodeKind::Symlink) {
            self.note(kind, before, after);
            return Ok(());
        }
        self.header(before, after);
        if self.kind == ChangeKind::ModeChanged {
            return Ok(());
        }
        let old = self.content(&trees.host, before)?;
        let new = self.content(&trees.upper, after)?;
        self.body(&old, &new);
        Ok(())
    }

    fn note(&mut self, kind: NodeKind, before: Option<&TreeNode>, after: Option<&TreeNode>) {
        let name = match kind {
            NodeKind::Directory => "directory",
            NodeKind::Fifo => "fifo",
            NodeKind::Socket => "socket",
            _ => "device",
        };
        let what = match (before, after) {
            (None, Some(new)) => format!("added {name} (mode {:04o})", new.mode),
            (Some(_), None) => format!("deleted {name}"),
            (Some(old), Some(new)) => format!("{name} mode {:04o} to {:04o}", old.mode, new.mode),
            (None, None) => return,
        };
        let path = git_quoted("", self.path);
        self.line(&[format!("# {what}: ").as_bytes(), &path]);
    }

    fn header(&mut self, before: Option<&TreeNode>, after: Option<&TreeNode>) {
        let (old, new) = (git_quoted("a/", self.path), git_quoted("b/", self.path));
        self.line(&[b"diff --git ", &old, b" ", &new]);
        match (before, after) {
            (None, Some(node)) => self.line(&[format!("new file mode {}", git_mode(node)).as_bytes()]),
            (Some(node), None) => self.line(&[format!("deleted file mode {}", git_mode(node)).as_bytes()]),
            (Some(left), Some(right)) if left.kind == NodeKind::File && left.mode != right.mode => {
                self.line(&[format!("old mode {}", git_mode(left)).as_bytes()]);
                self.line(&[format!("new mode {}", git_mode(right)).as_bytes()]);
            }
            _ => {}
        }
    }

    fn content(&self, tree: &TreeRoot, node: Option<&TreeNode>) -> Result<FileContent, ChangeError> {
        let Some(node) = node else {
            return Ok(FileContent::Absent);
        };
        if let Some(target) = &node.target {
            return Ok(FileContent::Text(target.as_os_str().as_bytes().to_vec()));
        }
        if node.size > MAX_TEXT_BYTES {
            return Ok(FileContent::TooLarge);
        }
        let failed = |error| ChangeError::File {
            path: self.path.to_owned(),
            source: FileError::new("reading", self.path, error),
        };
        let file = match tree.file(self.path) {
            Err(errno @ (Errno::ACCESS | Errno::PERM)) => return Ok(FileContent::Unreadable(errno)),
            opened => opened.map_err(|error| failed(error.into()))?,
        };
        let mut bytes = Vec::new();
        // It may have grown since it was looked at.
        file.take(MAX_TEXT_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
        let is_binary = bytes.iter().take(BINARY_LOOK).any(|byte| *byte == 0);
        Ok(match bytes.len() {
            _ if is_binary => FileContent::Binary,
            length if u64::try_from(length).is_ok_and(|length| length <= MAX_TEXT_BYTES) => FileContent::Text(bytes),
            _ => FileContent::TooLarge,
        })
    }

    fn body(&mut self, old: &FileContent, new: &FileContent) {
        let absent = |content: &FileContent| matches!(content, FileContent::Absent);
        let dev_null = || b"/dev/null".to_vec();
        let left = if absent(old) {
            dev_null()
        } else {
            git_quoted("a/", self.path)
        };
        let right = if absent(new) {
            dev_null()
        } else {
            git_quoted("b/", self.path)
        };
        let unreadable = |content: &FileContent, of: &str| match content {
            FileContent::Unreadable(errno) => Some(format!("# {of} cannot be read: {errno}")),
            _ => None,
        };
        let why = unreadable(old, "the host's file").or_else(|| unreadable(new, "the sandbox's file"));
        if let Some(why) = why {
            self.diff.form = DiffForm::Unreadable;
            self.line(&[why.as_bytes()]);
        } else if matches!(old, FileContent::TooLarge) || matches!(new, FileContent::TooLarge) {
            self.diff.form = DiffForm::TooLarge;
            self.line(&[b"Large files ", &left, b" and ", &right, b" differ"]);
        } else if matches!(old, FileContent::Binary) || matches!(new, FileContent::Binary) {
            self.diff.form = DiffForm::Binary;
            self.line(&[b"Binary files ", &left, b" and ", &right, b" differ"]);
        } else {
            self.hunks((&left, text(old)), (&right, text(new)));
        }
    }

    fn hunks(&mut self, (left, old): (&[u8], &[u8]), (right, new): (&[u8], &[u8])) {
        if old == new {
            return;
        }
        self.diff.form = DiffForm::Text;
        self.line(&[b"--- ", left, tab_after_space(left)]);
        self.line(&[b"+++ ", right, tab_after_space(right)]);
        let (old, new) = (lines(old), lines(new));
        let compared = TextDiff::configure()
            .algorithm(Algorithm::Myers)
            .timeout(TIMEOUT)
            .diff_slices(&old, &new);
        for group in compared.grouped_ops(CONTEXT_LINES) {
            self.hunk(&group, &old, &new);
        }
    }

    fn hunk(&mut self, group: &[DiffOp], old: &[&[u8]], new: &[&[u8]]) {
        let (Some(first), Some(last)) = (group.first(), group.last()) else {
            return;
        };
        let from = range(first.old_range().start, last.old_range().end);
        let to = range(first.new_range().start, last.new_range().end);
        self.line(&[format!("@@ -{from} +{to} @@").as_bytes()]);
        for op in group {
            match op {
                DiffOp::Equal { .. } => self.lines(b" ", &old[op.old_range()]),
                _ => {
                    self.lines(b"-", &old[op.old_range()]);
                    self.lines(b"+", &new[op.new_range()]);
                    self.diff.removed_lines += op.old_range().len();
                    self.diff.added_lines += op.new_range().len();
                }
            }
        }
    }

    fn lines(&mut self, sign: &[u8], lines: &[&[u8]]) {
        for line in lines {
            match line.strip_suffix(b"\n") {
                Some(line) => self.line(&[sign, line]),
                None => {
                    self.line(&[sign, line]);
                    self.line(&[b"\\ No newline at end of file"]);
                }
            }
        }
    }

    fn line(&mut self, parts: &[&[u8]]) {
        parts.iter().for_each(|part| self.diff.bytes.extend_from_slice(part));
        self.diff.bytes.push(b'\n');
    }
}

fn text(content: &FileContent) -> &[u8] {
    if let FileContent::Text(bytes) = content {
        bytes
    } else {
        &[]
    }
}

/// Lines with their newlines. A lone carriage return ends no line in a patch.
fn lines(bytes: &[u8]) -> Vec<&[u8]> {
    bytes.split_inclusive(|byte| *byte == b'\n').collect()
}

/// As git: a name with a space is closed by a tab, or what follows the space would be taken for a date.
fn tab_after_space(name: &[u8]) -> &'static [u8] {
    if name.contains(&b' ') && !name.starts_with(b"\"") {
        b"\t"
    } else {
        b""
    }
}

/// The start, from 1 or 0 if empty, and the length.
fn range(start: usize, end: usize) -> String {
    match end - start {
        0 => format!("{start},0"),
        1 => format!("{}", start + 1),
        length => format!("{},{length}", start + 1),
    }
}

/// The file mode as git writes it, with every permission bit so that none is hidden.
fn git_mode(node: &TreeNode) -> String {
    if node.kind == NodeKind::Symlink {
        "120000".to_owned()
    } else {
        format!("10{:04o}", node.mode)
    }
}

#[cfg(test)]
mod tests;
