//! A directory in all of the places of a tree, as overlayfs merges them: the layer, and what lies below it.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Mode, Stat};
use rustix::io::Errno;

use super::{DIRECTORY, FileCaller, LayerOwners, LowerPart, OWNER_ENTERS, is_directory, names, open_directory};

/// A directory in all places.
#[derive(Debug)]
pub(super) struct StackedDirectory {
    pub(super) upper: Option<OwnedFd>,
    /// The topmost first.
    pub(super) lowers: Vec<LowerDirectory>,
}

/// A directory that is only read.
#[derive(Debug)]
pub(super) struct LowerDirectory {
    pub(super) directory: OwnedFd,
    pub(super) owners: LayerOwners,
    /// Whether it has marks of what is removed.
    is_layer: bool,
}

/// What a name stands for.
#[derive(Debug)]
pub(super) enum Found {
    Directory(StackedDirectory),
    /// Something else, in the layer.
    Upper(Stat),
    /// Something else, in one of the lower places, by its number.
    Lower(Stat, usize),
    Nothing,
}

/// What one place says of a name.
enum Told {
    Nothing,
    /// It was removed from what lies below.
    Gone,
    Directory {
        opened: OwnedFd,
        is_opaque: bool,
    },
    Other(Stat),
}

impl StackedDirectory {
    /// Opens the roots of all places.
    pub(super) fn open(upper: Option<&Path>, lowers: &[LowerPart<'_>]) -> Result<Self, Errno> {
        let lower = |part: &LowerPart<'_>| {
            Ok(LowerDirectory {
                directory: open_directory(part.path)?,
                owners: part.owners,
                is_layer: part.is_layer,
            })
        };
        Ok(Self {
            upper: upper.map(open_directory).transpose()?,
            lowers: lowers.iter().map(lower).collect::<Result<_, Errno>>()?,
        })
    }

    pub(super) fn try_clone(&self) -> Result<Self, Errno> {
        let again = |directory: &OwnedFd| directory.try_clone().map_err(|_| Errno::MFILE);
        let lower = |lower: &LowerDirectory| {
            Ok(LowerDirectory {
                directory: again(&lower.directory)?,
                ..*lower
            })
        };
        Ok(Self {
            upper: self.upper.as_ref().map(again).transpose()?,
            lowers: self.lowers.iter().map(lower).collect::<Result<_, Errno>>()?,
        })
    }

    /// What `name` stands for in it.
    pub(super) fn find(&self, name: &[u8]) -> Result<Found, Errno> {
        let upper = match &self.upper {
            Some(upper) => told(upper.as_fd(), name, true)?,
            None => Told::Nothing,
        };
        match upper {
            Told::Nothing => self.find_below(name, None),
            Told::Gone => Ok(Found::Nothing),
            Told::Other(stat) => Ok(Found::Upper(stat)),
            Told::Directory {
                opened,
                is_opaque: true,
            } => Ok(Found::Directory(Self {
                upper: Some(opened),
                lowers: Vec::new(),
            })),
            Told::Directory { opened, .. } => self.find_below(name, Some(opened)),
        }
    }

    /// What `name` stands for in the lower places, or, where the layer has it as a directory, what is merged with that.
    fn find_below(&self, name: &[u8], upper: Option<OwnedFd>) -> Result<Found, Errno> {
        let mut merged = Vec::new();
        for (number, lower) in self.lowers.iter().enumerate() {
            match told(lower.directory.as_fd(), name, lower.is_layer)? {
                Told::Nothing => {}
                Told::Gone => break,
                Told::Other(stat) if upper.is_none() && merged.is_empty() => return Ok(Found::Lower(stat, number)),
                Told::Other(_) => break,
                Told::Directory { opened, is_opaque } => {
                    merged.push(LowerDirectory {
                        directory: opened,
                        ..*lower
                    });
                    if is_opaque {
                        break;
                    }
                }
            }
        }
        Ok(match (upper, merged.is_empty()) {
            (None, true) => Found::Nothing,
            (upper, _) => Found::Directory(Self { upper, lowers: merged }),
        })
    }

    /// Whether the lower places have the name, whatever the layer says of it.
    pub(super) fn has_below(&self, name: &[u8]) -> Result<bool, Errno> {
        Ok(!matches!(self.find_below(name, None)?, Found::Nothing))
    }

    /// Each place, the topmost first, with whether it has marks of what is removed.
    pub(super) fn places(&self) -> impl Iterator<Item = (&OwnedFd, bool)> {
        let upper = self.upper.iter().map(|directory| (directory, true));
        let lowers = self.lowers.iter().map(|lower| (&lower.directory, lower.is_layer));
        upper.chain(lowers)
    }

    /// The directory of one lower place.
    pub(super) fn lower(&self, number: usize) -> Option<&OwnedFd> {
        self.lowers.get(number).map(|lower| &lower.directory)
    }

    /// Whose the files of that are.
    pub(super) fn owners_of(&self, number: usize, upper: LayerOwners) -> LayerOwners {
        self.lowers.get(number).map_or(upper, |lower| lower.owners)
    }

    /// The topmost, which is what is shown of it, and whose files lie there. `upper` says so of the layer.
    pub(super) fn shown(&self, upper: LayerOwners) -> Result<(Stat, LayerOwners), Errno> {
        match (&self.upper, self.lowers.first()) {
            (Some(directory), _) => Ok((rustix::fs::fstat(directory)?, upper)),
            (None, Some(lower)) => Ok((rustix::fs::fstat(&lower.directory)?, lower.owners)),
            (None, None) => Err(Errno::NOENT),
        }
    }

    /// Whether `caller` may go through it.
    pub(super) fn may_enter(&self, caller: FileCaller, upper: LayerOwners) -> Result<bool, Errno> {
        let (stat, owners) = self.shown(upper)?;
        // What is in the layer is the one user's own, and asked of the kernel.
        let is_asked = self.upper.is_none() || matches!(upper, LayerOwners::Range(_));
        let is_let = !is_asked || owners.lets(caller, &stat, OWNER_ENTERS);
        // A directory of the host that is closed stays so below one of the layer.
        let mut others = self
            .lowers
            .iter()
            .filter(|lower| matches!(lower.owners, LayerOwners::Only(_)));
        let are_let = others.try_fold(true, |are_let, lower| {
            let stat = rustix::fs::fstat(&lower.directory)?;
            Ok::<bool, Errno>(are_let && lower.owners.lets(caller, &stat, OWNER_ENTERS))
        })?;
        Ok(is_let && are_let)
    }
}

/// What one place says of a name.
fn told(directory: BorrowedFd<'_>, name: &[u8], is_layer: bool) -> Result<Told, Errno> {
    let stat = match stat_at(directory, name) {
        Ok(stat) => stat,
        Err(Errno::NOENT) => return Ok(Told::Nothing),
        Err(error) => return Err(error),
    };
    if is_directory(&stat) {
        let opened = rustix::fs::openat(directory, name, DIRECTORY, Mode::empty())?;
        let is_opaque = is_layer && names::is_opaque(&opened)?;
        return Ok(Told::Directory { opened, is_opaque });
    }
    match is_layer && names::is_whiteout(directory, name, &stat)? {
        true => Ok(Told::Gone),
        false => Ok(Told::Other(stat)),
    }
}

pub(super) fn stat_at(directory: BorrowedFd<'_>, name: &[u8]) -> Result<Stat, Errno> {
    rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)
}
