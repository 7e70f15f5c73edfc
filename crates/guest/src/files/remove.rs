//! Removing a file, or a directory with everything in it.

use alloc::vec::Vec;

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags};
use rustix::io::Errno;

use super::failure::{FileFailure, failed};
use super::path::GuestPath;
use super::walk::TreeCursor;

/// How often a directory is looked through again because something appeared in it meanwhile.
const MAX_ROUNDS: u32 = 64;

/// Removes what is at the path, following no link. What is not there needs no removing.
pub(super) fn remove(path: &GuestPath) -> Result<(), FileFailure> {
    if path.is_root() {
        return Err(failed("remove")(Errno::BUSY));
    }
    match rustix::fs::unlinkat(CWD, path.bytes(), AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT | Errno::NOTDIR) => return Ok(()),
        Err(Errno::ISDIR) => {}
        Err(errno) => return Err(failed("remove")(errno)),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = match rustix::fs::open(path.bytes(), flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        opened => opened.map_err(failed("open"))?,
    };
    empty(TreeCursor::new(directory)).map_err(failed("remove"))?;
    match rustix::fs::unlinkat(CWD, path.bytes(), AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(failed("remove")(errno)),
    }
}

/// What looking through a directory came to.
enum DirectoryOutcome {
    /// Nothing is in it any more.
    Nothing,
    /// Files were removed, so there may be more.
    Files,
    /// A directory is to be emptied first.
    Directory(Vec<u8>),
}

/// Removes everything in the directory, going down and up without holding more than the names on the way.
fn empty(mut place: TreeCursor) -> Result<(), Errno> {
    let mut way: Vec<Vec<u8>> = Vec::new();
    let mut again = 0;
    loop {
        match look_through(&place)? {
            DirectoryOutcome::Files => {}
            DirectoryOutcome::Directory(name) => match place.down(&name) {
                Ok(()) => way.push(name),
                // Removed or replaced meanwhile; the next look tells.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => again = one_more(again)?,
                Err(errno) => return Err(errno),
            },
            DirectoryOutcome::Nothing => {
                let Some(name) = way.pop() else {
                    return Ok(());
                };
                place.up()?;
                match rustix::fs::unlinkat(place.directory(), &name[..], AtFlags::REMOVEDIR) {
                    Ok(()) => again = 0,
                    Err(Errno::NOENT | Errno::NOTEMPTY | Errno::NOTDIR) => again = one_more(again)?,
                    Err(errno) => return Err(errno),
                }
            }
        }
    }
}

/// Counts attempts that others undid.
fn one_more(again: u32) -> Result<u32, Errno> {
    match again < MAX_ROUNDS {
        true => Ok(again + 1),
        false => Err(Errno::NOTEMPTY),
    }
}

/// Removes files until there is none, or a directory is found.
fn look_through(place: &TreeCursor) -> Result<DirectoryOutcome, Errno> {
    let mut found = DirectoryOutcome::Nothing;
    let mut entries = Dir::read_from(place.directory())?;
    while let Some(entry) = entries.read() {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        match rustix::fs::unlinkat(place.directory(), name, AtFlags::empty()) {
            Ok(()) => found = DirectoryOutcome::Files,
            Err(Errno::NOENT) => {}
            Err(Errno::ISDIR) => return Ok(DirectoryOutcome::Directory(name.to_bytes().to_vec())),
            Err(errno) => return Err(errno),
        }
    }
    Ok(found)
}
