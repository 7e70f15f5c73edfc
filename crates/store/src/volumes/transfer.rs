//! Copies files and directories into a volume and out of it.
//!
//! Both sides are walked by directory descriptor, and no link is followed on either; a sandbox may change the volume at the
//! same time. Nothing is opened but directories and regular files. There is no recursion: names that wait for their turn are
//! bounded, as are entries, bytes and depth.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

use super::content::{VolumeContent, VolumePath, at, other_kind, too_large};
use super::error::VolumeError;
use super::record::VolumeOwners;
use crate::copy::next_data;
use crate::failure::FailedCall;
use crate::node::NodeKind;
use crate::removal::remove_tree;
use crate::tree::{TreeRoot, entries_in, node_at, stat_at};

/// How many directories in one another are copied.
const MAX_DEPTH: usize = 256;
/// How many things that were left out are named.
const NAMED: usize = 20;
const BUFFER: usize = 256 * 1024;
/// The permission bits that are copied.
const MODE_BITS: u32 = 0o777;

/// How much may be copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransferBudget {
    /// Bytes.
    pub bytes: u64,
    /// Files, directories and links.
    pub entries: u64,
}

/// What was copied.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TransferReport {
    /// Regular files.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic links.
    pub links: u64,
    /// Bytes of files, without holes.
    pub bytes: u64,
    /// What was left out, with the reason; some of it.
    pub left_out: Vec<(PathBuf, &'static str)>,
    /// How much was left out.
    pub left_out_count: u64,
}

/// Copies what the host has at `source`, which no link leads to, into the volume as `target`; its parent is there.
///
/// # Errors
/// `full` when there is no room; `NoEntry`, `OtherKind`, `TooLarge`, `Changed`. Where there was nothing there is nothing then; what
/// was copied into a directory that was there stays.
pub fn copy_in(
    source: &Path,
    content: &VolumeContent,
    target: &VolumePath,
    budget: TransferBudget,
    full: impl Fn() -> VolumeError,
) -> Result<TransferReport, VolumeError> {
    let owner = content.owners.outside((VolumeOwners::WORKER, VolumeOwners::WORKER));
    let into = TransferTarget {
        tree: &content.tree,
        staging: Some(&content.incoming),
        owner,
    };
    let (from, top) = open_parent(source)?;
    let transfer = Transfer::new(&from, into, budget, &full, false);
    transfer.run(&top, target.as_path())
}

/// Copies what the volume has at `source` to `target` of the host, whose parent no link leads to. Links that lead out of
/// what is copied are left out.
///
/// # Errors
/// As [`copy_in`].
pub fn copy_out(
    content: &VolumeContent,
    source: &VolumePath,
    target: &Path,
    budget: TransferBudget,
    full: impl Fn() -> VolumeError,
) -> Result<TransferReport, VolumeError> {
    let (to, top) = open_parent(target)?;
    let into = TransferTarget {
        tree: &to,
        staging: None,
        owner: None,
    };
    let transfer = Transfer::new(&content.tree, into, budget, &full, true);
    transfer.run(source.as_path(), &top)
}

/// The directory of the host that holds `path`, and the name in it.
fn open_parent(path: &Path) -> Result<(TreeRoot, PathBuf), VolumeError> {
    let (parent, name) = match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => (parent, PathBuf::from(name)),
        _ => (path, PathBuf::new()),
    };
    let tree = TreeRoot::host(parent).tried("opening", parent)?;
    Ok((tree, name))
}

/// Where copies are put.
struct TransferTarget<'a> {
    tree: &'a TreeRoot,
    /// Where files are written before they have their name; where they will be, if absent.
    staging: Option<&'a OwnedFd>,
    /// Who they belong to; whoever copies, if absent.
    owner: Option<(u32, u32)>,
}

struct Transfer<'a> {
    from: &'a TreeRoot,
    into: TransferTarget<'a>,
    budget: TransferBudget,
    full: &'a dyn Fn() -> VolumeError,
    /// Whether links that lead out are left out.
    keeps_in: bool,
    report: TransferReport,
}

impl<'a> Transfer<'a> {
    fn new(
        from: &'a TreeRoot,
        into: TransferTarget<'a>,
        budget: TransferBudget,
        full: &'a dyn Fn() -> VolumeError,
        keeps_in: bool,
    ) -> Self {
        Self {
            from,
            into,
            budget,
            full,
            keeps_in,
            report: TransferReport::default(),
        }
    }

    fn run(mut self, source: &Path, target: &Path) -> Result<TransferReport, VolumeError> {
        let shown = parsed(target)?;
        let is_new = self.into.tree.node(target).map_err(at("examining", &shown))?.is_none();
        let copied = self.copy_all(source, target);
        if copied.is_err()
            && is_new
            && let Ok((parent, name)) = self.into.tree.parent(target)
        {
            // The first failure is what is told.
            let _removed = remove_tree(&parent, name);
        }
        copied.map(|()| self.report)
    }

    fn copy_all(&mut self, source: &Path, target: &Path) -> Result<(), VolumeError> {
        let mut todo = vec![(PathBuf::new(), 0)];
        // Modes of directories that forbid to write come last.
        let mut modes = Vec::new();
        while let Some((path, depth)) = todo.pop() {
            let (from, to) = (join(source, &path), join(target, &path));
            let shown = VolumePath::parse(from.as_os_str().as_encoded_bytes())?;
            let Some(node) = self.from.node(&from).map_err(at("examining", &shown))? else {
                match depth {
                    0 => return Err(VolumeError::NoEntry { path: shown.shown() }),
                    _ => continue,
                }
            };
            self.budget.entries = self.budget.entries.checked_sub(1).ok_or_else(self.full)?;
            match node.kind {
                NodeKind::Directory if depth >= MAX_DEPTH => {
                    return Err(too_large(&shown, "directories in one another", MAX_DEPTH));
                }
                NodeKind::Directory => {
                    self.directory(&to)?;
                    modes.push((to, node.mode));
                    let opened = self.from.readable(&from).map_err(at("opening", &shown))?;
                    let names = entries_in(&opened).map_err(at("listing", &shown))?;
                    todo.extend(names.into_iter().map(|(name, _)| (path.join(name), depth + 1)));
                }
                NodeKind::File => self.file(&from, &to, &shown)?,
                NodeKind::Symlink => match node.target {
                    Some(link) if self.keeps_in && leads_out(&path, &link) => {
                        self.leave_out(from, "a symbolic link that leads out of what is copied");
                    }
                    Some(link) => self.link(&link, &to)?,
                    None => self.leave_out(from, "a symbolic link that cannot be read"),
                },
                NodeKind::Fifo => self.leave_out(from, "a named pipe"),
                NodeKind::Socket => self.leave_out(from, "a socket"),
                NodeKind::Device => self.leave_out(from, "a device"),
            }
        }
        for (path, mode) in modes.into_iter().rev() {
            let place = self.into.tree.place(&path).map_err(at("opening", &parsed(&path)?))?;
            crate::tree::chmod(&place, mode & MODE_BITS | 0o700)
                .map_err(at("changing the mode of", &parsed(&path)?))?;
        }
        Ok(())
    }

    fn leave_out(&mut self, path: PathBuf, why: &'static str) {
        self.report.left_out_count += 1;
        if self.report.left_out.len() < NAMED {
            self.report.left_out.push((path, why));
        }
    }

    /// Makes a directory, unless there is one.
    fn directory(&mut self, path: &Path) -> Result<(), VolumeError> {
        let shown = parsed(path)?;
        if path.as_os_str().is_empty() {
            return Ok(());
        }
        let (parent, name) = self.into.tree.parent(path).map_err(at("opening", &shown))?;
        match rustix::fs::mkdirat(&parent, name, Mode::RWXU) {
            Ok(()) => self.own(&parent, name, &shown)?,
            Err(Errno::EXIST) => match node_at(&parent, name).map_err(at("examining", &shown))? {
                Some(node) if node.is_directory() => {}
                Some(node) => return Err(other_kind(&shown, node.kind)),
                None => return Err(VolumeError::Changed { path: shown.shown() }),
            },
            Err(error) => return Err(at("making", &shown)(error)),
        }
        self.report.directories += 1;
        Ok(())
    }

    fn own(&self, parent: &OwnedFd, name: &OsStr, shown: &VolumePath) -> Result<(), VolumeError> {
        let Some((uid, gid)) = self.into.owner else {
            return Ok(());
        };
        let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        rustix::fs::chownat(parent, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW).map_err(at("giving away", shown))
    }

    fn file(&mut self, from: &Path, to: &Path, shown: &VolumePath) -> Result<(), VolumeError> {
        let source = match self.from.file(from) {
            // It is no file any more.
            Err(Errno::INVAL | Errno::LOOP) => return Err(VolumeError::Changed { path: shown.shown() }),
            opened => opened.map_err(at("opening", shown))?,
        };
        let stat = rustix::fs::fstat(&source).map_err(at("examining", shown))?;
        let (parent, name) = self.into.tree.parent(to).map_err(at("opening", &parsed(to)?))?;
        if let Some(there) = stat_at(&parent, name).map_err(at("examining", &parsed(to)?))?
            && crate::node::kind_of(&there) == NodeKind::Directory
        {
            return Err(other_kind(&parsed(to)?, NodeKind::Directory));
        }
        let staging = self.into.staging.unwrap_or(&parent);
        let random = super::random().tried("drawing a name for", to)?;
        let new = format!(".offleash-{random:032x}");
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = rustix::fs::openat(staging, &*new, flags, Mode::RUSR | Mode::WUSR).tried("creating", to)?;
        let made = File::from(made);
        let copied = self.contents(&source, &made, shown).and_then(|()| {
            if let Some((uid, gid)) = self.into.owner {
                let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
                rustix::fs::fchown(&made, uid, gid).tried("giving away", to)?;
            }
            let mode = Mode::from_raw_mode(stat.st_mode & MODE_BITS);
            rustix::fs::fchmod(&made, mode).tried("changing the mode of", to)?;
            Ok(rustix::fs::renameat(staging, &*new, &parent, name).tried("naming", to)?)
        });
        if copied.is_err() {
            let _removed = rustix::fs::unlinkat(staging, &*new, AtFlags::empty());
        }
        copied?;
        self.report.files += 1;
        Ok(())
    }

    /// Copies what is in a file; holes stay holes, and what is behind its end by now comes, too.
    fn contents(&mut self, from: &File, to: &File, shown: &VolumePath) -> Result<(), VolumeError> {
        let size = from.metadata().tried("examining", shown.as_path())?.len();
        to.set_len(size).tried("writing", shown.as_path())?;
        let mut done = 0;
        while done < size {
            let data = next_data(from, done, size).tried("reading", shown.as_path())?;
            let Some((start, end)) = data else { break };
            self.range(from, to, start..end, shown)?;
            done = end;
        }
        // Of files whose size says nothing this is all.
        self.range(from, to, size..u64::MAX, shown)
    }

    fn range(&mut self, from: &File, to: &File, range: Range<u64>, shown: &VolumePath) -> Result<(), VolumeError> {
        let mut buffer = vec![0; BUFFER];
        let mut place = range.start;
        while place < range.end {
            let most = usize::try_from(range.end - place).unwrap_or(BUFFER).min(BUFFER);
            let read = match from.read_at(&mut buffer[..most], place) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read.tried("reading", shown.as_path())?,
            };
            if read == 0 {
                return Ok(());
            }
            let length = u64::try_from(read).unwrap_or(u64::MAX);
            self.budget.bytes = self.budget.bytes.checked_sub(length).ok_or_else(self.full)?;
            to.write_all_at(&buffer[..read], place)
                .tried("writing", shown.as_path())?;
            self.report.bytes += length;
            place += length;
        }
        Ok(())
    }

    fn link(&mut self, target: &Path, to: &Path) -> Result<(), VolumeError> {
        let shown = parsed(to)?;
        let (parent, name) = self.into.tree.parent(to).map_err(at("opening", &shown))?;
        match rustix::fs::symlinkat(target, &parent, name) {
            Ok(()) => {}
            Err(Errno::EXIST) => {
                // A directory stays; what else has the name gives way, as with files.
                rustix::fs::unlinkat(&parent, name, AtFlags::empty()).map_err(at("removing", &shown))?;
                rustix::fs::symlinkat(target, &parent, name).map_err(at("making", &shown))?;
            }
            Err(error) => return Err(at("making", &shown)(error)),
        }
        self.own(&parent, name, &shown)?;
        self.report.links += 1;
        Ok(())
    }
}

/// Joining an empty path would leave a slash at the end.
fn join(base: &Path, path: &Path) -> PathBuf {
    match path.as_os_str().is_empty() {
        true => base.to_owned(),
        false => base.join(path),
    }
}

fn parsed(path: &Path) -> Result<VolumePath, VolumeError> {
    VolumePath::parse(path.as_os_str().as_encoded_bytes())
}

/// Whether a link at `path`, relative to the top of what is copied, leads or may lead above that top, by its text alone: after a
/// name `..` is taken for leaving, because that name may be another link.
fn leads_out(path: &Path, target: &Path) -> bool {
    let mut depth = path.components().count().saturating_sub(1);
    let mut is_named = false;
    for component in target.components() {
        match component {
            Component::RootDir | Component::Prefix(_) => return true,
            Component::ParentDir if is_named || depth == 0 => return true,
            Component::ParentDir => depth -= 1,
            Component::Normal(_) => is_named = true,
            Component::CurDir => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_stays_if_its_text_alone_says_that_it_stays() {
        for (path, target, is_out) in [
            ("a", "b/c", false),
            ("d/a", "../b", false),
            ("d/a", "./../b/c", false),
            ("a", "/etc/passwd", true),
            ("a", "..", true),
            ("d/a", "../../b", true),
            // `s` may be a link to `.`.
            ("a", "s/s/s/../../../../etc/passwd", true),
            ("a", "b/../c", true),
        ] {
            assert_eq!(
                leads_out(Path::new(path), Path::new(target)),
                is_out,
                "{path} -> {target}"
            );
        }
    }
}
