//! Copies a layer of a sandbox that may be running, and copies again what has changed since.
//!
//! Rounds: each walks the whole layer and brings the copy up to date. What a round saw of a file is in a [`LayerIndex`]; the
//! next one copies what is seen to have changed, and what cannot be told to be the same. A file is the same if its inode,
//! size and time of change are, and if that time is before the file system was last written out (`syncfs`): from then on
//! also a write through a mapping sets it. Only the last round, for which the sandbox stands still, is of one moment.
//!
//! Files may be linked from another copy whose index says that they are the same; no name of a copy is ever written
//! through, so that copies can share files. Deliberately not here: stopping the sandbox.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, Stat};
use rustix::io::Errno;

use super::attributes::{OwnerShift, copy_attributes, copy_owner_and_times, prune_attributes};
use super::contents::copy_contents;
use super::index::{DirectoryNumber, EntryStamp, IndexEntry, LayerIndex, ROOT};
use super::{CopyBudget, CopyError, TreeCopy, changed, identity, open, path_of, reopen, stat_of};
use crate::failure::FailedCall;
use crate::node::{NodeKind, kind_of};
use crate::overlay::is_whiteout_device;
use crate::removal::remove_tree;
use crate::tree::open_below;

/// How deep directories are looked into one by one; what is deeper is copied as a whole in the last round.
const MAX_DEPTH: usize = 200;
/// Directories in which what a copy is linked from lies beside it, as for [`super::copy_layer`].
const LINKS: &str = ".links";

/// Whether the layer changes while it is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyRound {
    /// Its sandbox runs: what goes away meanwhile is left out.
    Running,
    /// Nobody writes to it.
    Still,
}

/// A copy that is linked from where its files are the same.
#[derive(Debug)]
pub struct SharedLayer {
    /// The directory of the copy.
    pub directory: PathBuf,
    /// What was seen when it was made.
    pub index: LayerIndex,
}

/// What a copy is made of.
#[derive(Debug)]
pub struct LayerRefresh {
    name: String,
    source: PathBuf,
    target: PathBuf,
    shared: Option<SharedLayer>,
    shift: OwnerShift,
    seen: LayerIndex,
    /// Until then times of change say whether a file is the same: seconds and nanoseconds.
    settled: (i64, i64),
}

impl LayerRefresh {
    /// Copies the part `name` of a layer, `source`, to `target`, which may hold what lies below it. Owners are moved as `shift` says.
    pub fn new(name: String, source: PathBuf, target: PathBuf, shift: OwnerShift, shared: Option<SharedLayer>) -> Self {
        Self {
            name,
            source,
            target,
            shared,
            shift,
            seen: LayerIndex::default(),
            settled: (i64::MIN, 0),
        }
    }

    /// What the part is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Files that were changed before this time, and were written out since, are told by their times from now on.
    pub fn settle(&mut self, before: (i64, i64)) {
        self.settled = before;
    }

    /// Brings the copy up to date; takes from `budget` what it takes.
    ///
    /// # Errors
    /// `TooLarge`, `File`; `Changed` in a round that is [`CopyRound::Still`].
    pub fn round(&mut self, round: CopyRound, budget: &mut CopyBudget) -> Result<(), CopyError> {
        let before = std::mem::take(&mut self.seen);
        let (source, target) = (open(&self.source)?, open(&self.target)?);
        let shared = self.shared.as_ref().map(|shared| open(&shared.directory)).transpose()?;
        let mut walk = RoundWalk {
            round,
            root: open(&self.target)?,
            beside: open(&self.target.join(".."))?,
            before: &before,
            shared: self.shared.as_ref().map(|shared| &shared.index).zip(shared.as_ref()),
            shift: self.shift,
            settled: self.settled,
            now: LayerIndex::default(),
            linked: HashMap::new(),
            path: PathBuf::new(),
            written: 0,
            budget,
        };
        let from = DirectoryPair {
            source: &source,
            target: &target,
            before: Some(ROOT),
            shared: Some(ROOT),
            now: ROOT,
        };
        walk.directory(&from, 0, false)?;
        self.seen = walk.now;
        Ok(())
    }

    /// What was seen in the last round of what can be told by its times.
    pub fn into_index(self) -> LayerIndex {
        self.seen
    }
}

/// A directory and its copy, and its numbers in the three indexes.
struct DirectoryPair<'fd> {
    source: &'fd OwnedFd,
    target: &'fd OwnedFd,
    before: Option<DirectoryNumber>,
    shared: Option<DirectoryNumber>,
    now: DirectoryNumber,
}

struct RoundWalk<'walk> {
    round: CopyRound,
    root: OwnedFd,
    beside: OwnedFd,
    before: &'walk LayerIndex,
    shared: Option<(&'walk LayerIndex, &'walk OwnedFd)>,
    shift: OwnerShift,
    settled: (i64, i64),
    now: LayerIndex,
    /// Where the copy of a file with several names is.
    linked: HashMap<(u64, u64), PathBuf>,
    /// From the root of the layer to the directory that is walked.
    path: PathBuf,
    /// How often something in the copy was made or removed.
    written: u64,
    budget: &'walk mut CopyBudget,
}

impl RoundWalk<'_> {
    /// `is_same` says that the directory itself is, whatever is in it.
    fn directory(&mut self, pair: &DirectoryPair<'_>, depth: usize, is_same: bool) -> Result<(), CopyError> {
        let written = self.written;
        let names = self.names(pair.source)?;
        self.drop_missing(pair, &names)?;
        for name in names {
            let stat = match stat_of(pair.source, &name) {
                Err(error) if self.round == CopyRound::Running && is_gone(&error.source) => {
                    // What an earlier round copied of it nobody would find again.
                    remove_tree(pair.target, path_of(&name).as_os_str())?;
                    continue;
                }
                stat => stat?,
            };
            self.budget.take_name()?;
            let copied = match kind_of(&stat) {
                NodeKind::Directory => self.enter(pair, &name, &stat, depth),
                _ => self.entry(pair, &name, &stat),
            };
            match copied {
                Err(error) if self.round == CopyRound::Running && is_tolerable(&error) => {
                    if kind_of(&stat) != NodeKind::Directory {
                        remove_tree(pair.target, path_of(&name).as_os_str())?;
                    }
                }
                copied => copied?,
            }
        }
        if is_same && self.written == written {
            return Ok(());
        }
        let stat = rustix::fs::fstat(pair.source).tried("examining", ".")?;
        prune_attributes((pair.source, c"."), (pair.target, c".")).tried("copying the attributes of", ".")?;
        copy_attributes((pair.source, c"."), (pair.target, c"."), self.shift)
            .tried("copying the attributes of", ".")?;
        copy_owner_and_times(&stat, pair.target, c".", self.shift).tried("copying the owner of", ".")?;
        Ok(())
    }

    fn names(&self, directory: &OwnedFd) -> Result<Vec<CString>, CopyError> {
        let listed = reopen(directory, c".")?;
        let mut buffer = Vec::with_capacity(32 * 1024);
        let mut entries = RawDir::new(&listed, buffer.spare_capacity_mut());
        let mut names = Vec::new();
        while let Some(entry) = entries.next() {
            let entry = entry.tried("listing", ".")?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            if names.len() as u64 >= self.budget.entries {
                return Err(CopyError::TooLarge { what: "files" });
            }
            names.push(name.to_owned());
        }
        Ok(names)
    }

    /// Removes what an earlier round copied and is there no more.
    fn drop_missing(&mut self, pair: &DirectoryPair<'_>, names: &[CString]) -> Result<(), CopyError> {
        let Some(before) = pair.before.filter(|_| !self.before.is_empty()) else {
            return Ok(());
        };
        let there: std::collections::HashSet<&[u8]> = names.iter().map(|name| name.to_bytes()).collect();
        let gone = self.before.names_in(before).filter(|name| !there.contains(name));
        for name in gone {
            self.written += 1;
            remove_tree(pair.target, std::ffi::OsStr::from_bytes(name))?;
        }
        Ok(())
    }

    fn enter(&mut self, pair: &DirectoryPair<'_>, name: &CString, stat: &Stat, depth: usize) -> Result<(), CopyError> {
        self.budget.take_content(stat)?;
        let source = reopen(pair.source, name)?;
        let before = pair
            .before
            .and_then(|number| self.before.entry(number, name.to_bytes()));
        let is_other = before.is_some_and(|before| before.stamp.inode != stat.st_ino);
        let is_first = before.is_none() || is_other;
        // What lay below it in the copy is hidden by it where it says so.
        let hides = is_first && is_opaque(&source).tried("examining", path_of(name))?;
        if is_other || hides || !is_directory(pair.target, name) || depth >= MAX_DEPTH {
            self.written += 1;
            remove_tree(pair.target, path_of(name).as_os_str())?;
            rustix::fs::mkdirat(pair.target, name, Mode::RWXU).tried("creating", path_of(name))?;
        }
        let target = reopen(pair.target, name)?;
        if depth >= MAX_DEPTH {
            return match self.round {
                CopyRound::Running => Ok(()),
                CopyRound::Still => self.whole(source, target),
            };
        }
        let stamp = EntryStamp::of(stat);
        let is_same = before.is_some_and(|before| before.stamp == stamp && before.is_settled);
        let shared = pair.shared.zip(self.shared);
        let below = DirectoryPair {
            source: &source,
            target: &target,
            before: before.filter(|_| !is_other).and_then(|before| before.directory),
            shared: shared.and_then(|(number, (index, _))| index.entry(number, name.to_bytes())?.directory),
            now: self
                .now
                .add_directory(pair.now, name.to_bytes(), stamp, stamp.is_before(self.settled)),
        };
        self.path.push(path_of(name));
        let copied = self.directory(&below, depth + 1, is_same);
        self.path.pop();
        copied
    }

    /// Copies all of a directory that is very deep.
    fn whole(&mut self, source: OwnedFd, target: OwnedFd) -> Result<(), CopyError> {
        rustix::fs::mkdirat(&self.beside, LINKS, Mode::RWXU).tried("creating", LINKS)?;
        let links = reopen(&self.beside, c".links")?;
        let mut copy = TreeCopy {
            source,
            target,
            links,
            above: Vec::new(),
            waiting: 0,
            shift: self.shift,
            budget: self.budget,
        };
        let copied = copy.run();
        let removed = remove_tree(&self.beside, LINKS.as_ref());
        copied.and(removed.map_err(CopyError::from))
    }

    fn entry(&mut self, pair: &DirectoryPair<'_>, name: &CString, stat: &Stat) -> Result<(), CopyError> {
        let stamp = EntryStamp::of(stat);
        let is_named_again = stat.st_nlink > 1 && self.linked.contains_key(&(stat.st_dev, stat.st_ino));
        if !is_named_again {
            self.budget.take_content(stat)?;
        }
        let before = pair
            .before
            .and_then(|number| self.before.entry(number, name.to_bytes()));
        let is_same = before.is_some_and(|before| before.stamp == stamp && before.is_settled);
        if !is_same {
            self.replace(pair, name, stat, stamp)?;
        }
        if stat.st_nlink > 1 {
            let place = self.path.join(path_of(name));
            self.linked.entry((stat.st_dev, stat.st_ino)).or_insert(place);
        }
        self.now.add(
            pair.now,
            name.to_bytes(),
            IndexEntry {
                stamp,
                directory: None,
                is_settled: stamp.is_before(self.settled),
            },
        );
        Ok(())
    }

    fn replace(
        &mut self,
        pair: &DirectoryPair<'_>,
        name: &CString,
        stat: &Stat,
        stamp: EntryStamp,
    ) -> Result<(), CopyError> {
        self.written += 1;
        remove_tree(pair.target, path_of(name).as_os_str())?;
        if stat.st_nlink > 1
            && let Some(first) = self.linked.get(&(stat.st_dev, stat.st_ino))
            && link_from(&self.root, first, pair.target, name).is_ok()
        {
            return Ok(());
        }
        let shared = pair.shared.zip(self.shared);
        if let Some((number, (index, root))) = shared
            && index
                .entry(number, name.to_bytes())
                .is_some_and(|entry| entry.stamp == stamp && entry.is_settled)
            && link_from(root, &self.path.join(path_of(name)), pair.target, name).is_ok()
        {
            return Ok(());
        }
        make_entry(pair.source, pair.target, name, name, stat, self.shift, self.round)
    }
}

/// Gives the file at `path` below `root` another name. In a copy are links of a sandbox's, and none of them is followed.
fn link_from(root: &OwnedFd, path: &Path, target: &OwnedFd, name: &CStr) -> Result<(), Errno> {
    let last = path.file_name().ok_or(Errno::INVAL)?;
    let parent = match path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        Some(parent) => &open_below(root, parent.as_os_str().as_bytes(), OFlags::PATH | OFlags::DIRECTORY)?,
        None => root,
    };
    rustix::fs::linkat(parent, last, target, name, AtFlags::empty())
}

/// Makes `made` in `target` as the entry `name` of `source` is.
pub(super) fn make_entry(
    source: &OwnedFd,
    target: &OwnedFd,
    made: &CStr,
    name: &CStr,
    stat: &Stat,
    shift: OwnerShift,
    round: CopyRound,
) -> Result<(), CopyError> {
    let special = |kind| rustix::fs::mknodat(target, made, kind, Mode::RUSR | Mode::WUSR, 0);
    match kind_of(stat) {
        NodeKind::File => return make_file(source, target, made, name, stat, shift, round),
        NodeKind::Symlink => {
            let to = rustix::fs::readlinkat(source, name, Vec::new()).tried("reading", path_of(name))?;
            rustix::fs::symlinkat(to, target, made).tried("creating", path_of(name))?;
        }
        NodeKind::Device if is_whiteout_device(stat) => {
            special(FileType::CharacterDevice).tried("creating", path_of(name))?;
        }
        // Nobody in a sandbox can make one.
        NodeKind::Device => return Ok(()),
        _ => match FileType::from_raw_mode(stat.st_mode) {
            kind @ (FileType::Fifo | FileType::Socket) => special(kind).tried("creating", path_of(name))?,
            _ => return Ok(()),
        },
    }
    copy_attributes((source, name), (target, made), shift).tried("copying the attributes of", path_of(name))?;
    copy_owner_and_times(stat, target, made, shift).tried("copying the owner of", path_of(name))?;
    Ok(())
}

fn make_file(
    source: &OwnedFd,
    target: &OwnedFd,
    made: &CStr,
    name: &CStr,
    stat: &Stat,
    shift: OwnerShift,
    round: CopyRound,
) -> Result<(), CopyError> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let from = rustix::fs::openat(source, name, flags, Mode::empty()).tried("opening", path_of(name))?;
    let opened = rustix::fs::fstat(&from).tried("examining", path_of(name))?;
    if identity(&from)? != (stat.st_dev, stat.st_ino) || kind_of(&opened) != NodeKind::File {
        return Err(changed(name));
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let to = rustix::fs::openat(target, made, flags, Mode::RUSR | Mode::WUSR).tried("creating", path_of(name))?;
    copy_contents(&from, &to, stat.st_size).tried("copying", path_of(name))?;
    let after = rustix::fs::fstat(&from).tried("examining", path_of(name))?;
    if round == CopyRound::Still && super::written(&after) != super::written(stat) {
        return Err(changed(name));
    }
    copy_attributes((source, name), (target, made), shift).tried("copying the attributes of", path_of(name))?;
    copy_owner_and_times(&opened, target, made, shift).tried("copying the owner of", path_of(name))?;
    Ok(())
}

fn is_directory(parent: &OwnedFd, name: &CStr) -> bool {
    let found = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW);
    found.is_ok_and(|stat| kind_of(&stat) == NodeKind::Directory)
}

/// Whether overlayfs shows nothing of what is below the directory.
fn is_opaque(directory: &OwnedFd) -> Result<bool, Errno> {
    let mut value = [0; 8];
    for name in ["user.overlay.opaque", "trusted.overlay.opaque"] {
        match rustix::fs::fgetxattr(directory, name, value.as_mut_slice()) {
            Ok(length) if value[..length] == *b"y" => return Ok(true),
            Ok(_) | Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::RANGE) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

fn is_gone(error: &std::io::Error) -> bool {
    let gone = [
        Errno::NOENT,
        Errno::NOTDIR,
        Errno::ISDIR,
        Errno::LOOP,
        Errno::NXIO,
        Errno::STALE,
        Errno::INVAL,
        Errno::EXIST,
    ];
    Errno::from_io_error(error).is_some_and(|errno| gone.contains(&errno))
}

fn is_tolerable(error: &CopyError) -> bool {
    match error {
        CopyError::Changed { .. } => true,
        CopyError::File(error) => is_gone(&error.source),
        CopyError::TooLarge { .. } => false,
    }
}

/// Makes in `to`, which is empty, what is in `from`, with files linked and directories made anew. Nobody changes either.
///
/// # Errors
/// `File`, `TooLarge` where directories are deeper in one another than is kept.
pub fn link_layer(from: &Path, to: &Path) -> Result<(), CopyError> {
    link_directory(&open(from)?, &open(to)?, 0)
}

fn link_directory(from: &OwnedFd, to: &OwnedFd, depth: usize) -> Result<(), CopyError> {
    if depth > MAX_DEPTH {
        return Err(CopyError::TooLarge {
            what: "directories in one another",
        });
    }
    let listed = reopen(from, c".")?;
    let mut buffer = Vec::with_capacity(32 * 1024);
    let mut entries = RawDir::new(&listed, buffer.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        let entry = entry.tried("listing", ".")?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let stat = stat_of(from, name)?;
        if kind_of(&stat) == NodeKind::Directory {
            rustix::fs::mkdirat(to, name, Mode::RWXU).tried("creating", path_of(name))?;
            link_directory(&reopen(from, name)?, &reopen(to, name)?, depth + 1)?;
        } else if rustix::fs::linkat(from, name, to, name, AtFlags::empty()).is_err() {
            // It has as many names as a file can have, or may not be given another.
            make_entry(from, to, name, name, &stat, OwnerShift::default(), CopyRound::Still)?;
        }
    }
    let stat = rustix::fs::fstat(from).tried("examining", ".")?;
    let none = OwnerShift::default();
    copy_attributes((from, c"."), (to, c"."), none).tried("copying the attributes of", ".")?;
    copy_owner_and_times(&stat, to, c".", none).tried("copying the owner of", ".")?;
    Ok(())
}
