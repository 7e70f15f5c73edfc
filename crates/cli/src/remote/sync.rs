//! `offleash sync`: a directory here and one in a sandbox are brought to the same, one way.
//!
//! Files of the same size are compared by their digests. Nothing is removed unless that is said, and what is left out is neither
//! brought over nor removed. A sandbox does not decide what that is: files that say it are not taken from one. Names that come from a sandbox are only names, and are made in directories that are held open
//! ([`super::arrival`]); links are followed nowhere.

mod here;
mod ignore;
mod inside;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use offleash_api::client::{Client, FileEntry, Kind};
use offleash_core::text::Text;

use self::here::{HereEntry, HereTree};
use self::inside::Inside;
use super::arrival::{Budget, Directory};
use super::copy::{EXIT_PARTIAL, Place, place};
use crate::args::SyncArgs;
use crate::failure::Failure;
use crate::terminal;

/// How often a directory that is watched is looked at.
const EVERY: Duration = Duration::from_secs(1);

/// Why a file is not brought from a sandbox that is a stranger's word for what goes there the next time.
const DECIDES: &str = "it says what is left out here, and `--replace-ignore-files` is not said";

/// What was done, or would be.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Tally {
    brought: usize,
    removed: usize,
    same: usize,
    left_out: usize,
}

pub(super) fn sync(client: &Client, arguments: &SyncArgs) -> Result<ExitCode, Failure> {
    let (id, path, here, is_up) = match (place(&arguments.source)?, place(&arguments.destination)?) {
        (Place::Here(here), Place::Inside { id, path }) => (id, path, here, true),
        (Place::Inside { id, path }, Place::Here(here)) => (id, path, here, false),
        _ => {
            return Err(
                Failure::new("one of the directories is here and the other one in a sandbox")
                    .with_hint("write the one in the sandbox as ID:PATH; `offleash sync . ID:/home/user/work`"),
            );
        }
    };
    if arguments.watch && !is_up {
        return Err(
            Failure::new("`--watch` goes to a sandbox: what changes in one is not told")
                .with_hint("sync it from time to time, without `--watch`"),
        );
    }
    let id = client.id_of(&id)?;
    let inside = Inside::new(
        client.services(&id, arguments.user.as_deref())?,
        path.trim_end_matches('/'),
    )?;
    let mut sync = Sync {
        inside,
        here: HereTree::new(&here, &arguments.ignore_file, !arguments.no_ignore),
        arguments,
        tally: Tally::default(),
    };
    if !is_up {
        sync.down()?;
        return sync.told();
    }
    let mut known = sync.up()?;
    let code = sync.told()?;
    if !arguments.watch {
        return Ok(code);
    }
    // Until a signal ends it.
    loop {
        std::thread::sleep(EVERY);
        let now = sync.here.read()?;
        if now != known {
            sync.tally = Tally::default();
            sync.changed(&known, &now)?;
            known = now;
            sync.told()?;
        }
    }
}

struct Sync<'a> {
    inside: Inside,
    here: HereTree,
    arguments: &'a SyncArgs,
    tally: Tally,
}

impl Sync<'_> {
    /// From here to the sandbox; answers what was here.
    fn up(&mut self) -> Result<BTreeMap<String, HereEntry>, Failure> {
        let here = self.here.read()?;
        let there = match self.inside.entry("")? {
            None => BTreeMap::new(),
            Some(entry) if entry.kind == Kind::Directory => {
                let tree = &self.here;
                self.inside
                    .tree(|path, is_directory| tree.leaves_out(path, is_directory))?
            }
            Some(_) => return Err(Failure::new("there is something in the sandbox that is no directory")),
        };
        if there.is_empty() && !self.arguments.dry_run && self.inside.entry("")?.is_none() {
            self.inside.make_directory("")?;
        }
        let same = self.same(&here, &there)?;
        if self.arguments.delete {
            self.remove_inside(&here, &there)?;
        }
        let mut modes = Vec::new();
        for (path, entry) in &here {
            if same.contains(path.as_str()) {
                self.tally.same += 1;
                let is_executable = there.get(path).is_some_and(|entry| entry.mode & 0o100 != 0);
                if entry.is_executable() != is_executable {
                    modes.push((path.as_str(), entry.is_executable()));
                }
                continue;
            }
            self.bring(path, entry, there.get(path), &mut modes)?;
        }
        self.set_modes(&modes)?;
        Ok(here)
    }

    /// What changed here since it was brought over.
    fn changed(
        &mut self,
        before: &BTreeMap<String, HereEntry>,
        now: &BTreeMap<String, HereEntry>,
    ) -> Result<(), Failure> {
        if self.arguments.delete {
            // Directories after what is in them.
            for (path, _) in before.iter().rev().filter(|(path, _)| !now.contains_key(*path)) {
                // What is left out may be below: those are not removed with what was brought over.
                let is_kept = self.is_kept_inside(path)?;
                if !is_kept && self.inside.entry(path)?.is_some() {
                    self.removed(path, |sync| sync.inside.remove(path))?;
                }
            }
        }
        let mut modes = Vec::new();
        for (path, entry) in now.iter().filter(|(path, entry)| before.get(*path) != Some(entry)) {
            let there = self.inside.entry(path)?;
            self.bring(path, entry, there.as_ref(), &mut modes)?;
        }
        self.set_modes(&modes)
    }

    /// Whether a directory inside has something that was not brought over.
    fn is_kept_inside(&self, path: &str) -> Result<bool, Failure> {
        match self.inside.entry(path)? {
            Some(entry) if entry.kind == Kind::Directory && !entry.is_link => Ok(!self.inside.is_empty(path)?),
            _ => Ok(false),
        }
    }

    fn bring<'p>(
        &mut self,
        path: &'p str,
        entry: &HereEntry,
        there: Option<&FileEntry>,
        modes: &mut Vec<(&'p str, bool)>,
    ) -> Result<(), Failure> {
        let is_directory_there = there.map(|there| there.kind == Kind::Directory && !there.is_link);
        match (entry, is_directory_there) {
            (HereEntry::Directory, Some(true)) => Ok(()),
            (HereEntry::Directory, None) => self.brought(path, |sync| sync.inside.make_directory(path)),
            (HereEntry::File(_), None | Some(false)) => {
                let is_link = there.is_some_and(|there| there.is_link);
                if is_link {
                    return self.leave_out(path, "a link is at its place in the sandbox");
                }
                let was_executable = there.is_some_and(|there| there.mode & 0o100 != 0);
                if entry.is_executable() != was_executable {
                    modes.push((path, entry.is_executable()));
                }
                self.brought(path, |sync| {
                    let file = sync.here.open(path)?;
                    sync.inside.upload(file, path)
                })
            }
            (HereEntry::Directory, Some(false)) => self.leave_out(path, "a file is at its place in the sandbox"),
            (HereEntry::File(_), Some(true)) => self.leave_out(path, "a directory is at its place in the sandbox"),
        }
    }

    fn set_modes(&mut self, modes: &[(&str, bool)]) -> Result<(), Failure> {
        if self.arguments.dry_run {
            return Ok(());
        }
        for is_executable in [true, false] {
            let names: Vec<&str> = modes
                .iter()
                .filter(|(_, is)| *is == is_executable)
                .map(|(name, _)| *name)
                .collect();
            if !names.is_empty() && !self.inside.set_executable(&names, is_executable)? {
                terminal::complain(
                    "offleash: which files can be executed is not brought over: the sandbox has no `chmod`",
                );
            }
        }
        Ok(())
    }

    /// Paths of files that hold the same on both sides.
    fn same<'p>(
        &self,
        here: &'p BTreeMap<String, HereEntry>,
        there: &BTreeMap<String, FileEntry>,
    ) -> Result<std::collections::BTreeSet<&'p str>, Failure> {
        let is_alike = |path: &str, entry: &HereEntry| match (entry, there.get(path)) {
            (HereEntry::File(stamp), Some(there)) => {
                there.kind == Kind::File && !there.is_link && there.size == stamp.size
            }
            _ => false,
        };
        let alike = here.iter().filter(|(path, entry)| is_alike(path, entry));
        let size = |path: &str| there.get(path).map_or(0, |there| there.size);
        let alike: Vec<(&str, u64)> = alike.map(|(path, _)| (path.as_str(), size(path))).collect();
        let digests = self.inside.digests(&alike)?;
        let mut same = std::collections::BTreeSet::new();
        for (path, _) in alike {
            let Some(digest) = digests.get(path) else { continue };
            let ours = inside::digest_here(self.here.open(path)?);
            let ours = ours
                .map_err(|error| Failure::from_error(&error).while_trying(format!("reading `{}`", Text::from(path))))?;
            if ours == *digest {
                same.insert(path);
            }
        }
        Ok(same)
    }

    fn remove_inside(
        &mut self,
        here: &BTreeMap<String, HereEntry>,
        there: &BTreeMap<String, FileEntry>,
    ) -> Result<(), Failure> {
        // Directories after what is in them; one that still has something has what is left out, and stays.
        for (path, entry) in there.iter().rev().filter(|(path, _)| !here.contains_key(*path)) {
            let is_directory = entry.kind == Kind::Directory && !entry.is_link;
            // What stays in it is known once the rest is gone.
            if is_directory && (self.arguments.dry_run || !self.inside.is_empty(path)?) {
                continue;
            }
            self.removed(path, |sync| sync.inside.remove(path))?;
        }
        Ok(())
    }

    /// From the sandbox to here.
    fn down(&mut self) -> Result<(), Failure> {
        match self.inside.entry("")? {
            Some(entry) if entry.kind == Kind::Directory => {}
            _ => return Err(Failure::new("there is no such directory in the sandbox")),
        }
        // What is left out here is not the sandbox's to say, once there is anything.
        let takes_ignore_files = self.arguments.replace_ignore_files || self.here.is_new()?;
        if !self.arguments.dry_run {
            self.here.make_root()?;
        }
        let tree = &self.here;
        let there = self
            .inside
            .tree(|path, is_directory| tree.leaves_out(path, is_directory))?;
        let here = self.here.read()?;
        let same: std::collections::BTreeSet<String> =
            self.same(&here, &there)?.into_iter().map(str::to_owned).collect();
        if self.arguments.delete {
            for (path, entry) in here.iter().rev().filter(|(path, _)| !there.contains_key(*path)) {
                let is_directory = *entry == HereEntry::Directory;
                if is_directory && (self.arguments.dry_run || !self.here.is_empty(path)?) {
                    continue;
                }
                if !takes_ignore_files && self.here.decides(path) {
                    self.leave_out(path, DECIDES)?;
                    continue;
                }
                self.removed(path, |sync| sync.here.remove(path, is_directory))?;
            }
        }
        let mut budget = Budget::new(self.arguments.max_bytes);
        for (path, entry) in &there {
            budget.take_entry()?;
            if same.contains(path) {
                self.tally.same += 1;
                continue;
            }
            if !takes_ignore_files && self.here.decides(path) {
                self.leave_out(path, DECIDES)?;
                continue;
            }
            match (entry.kind, entry.is_link) {
                (Kind::Directory, false) if here.get(path) == Some(&HereEntry::Directory) => {}
                (Kind::Directory, false) => self.brought(path, |sync| sync.here.directory(path).map(drop))?,
                (Kind::File, false) => self.brought(path, |sync| sync.fetch(path, entry, &mut budget))?,
                _ => self.leave_out(path, "it is a link")?,
            }
        }
        Ok(())
    }

    fn fetch(&self, path: &str, entry: &FileEntry, budget: &mut Budget) -> Result<(), Failure> {
        let (directory, name): (Directory, &str) = self.here.parent(path)?;
        directory.file(name, budget, |arriving| self.inside.download(path, arriving))?;
        directory.set_executable(name, entry.mode & 0o100 != 0)
    }

    fn brought(&mut self, path: &str, act: impl FnOnce(&Self) -> Result<(), Failure>) -> Result<(), Failure> {
        self.tally.brought += 1;
        self.act("+", path, act)
    }

    fn removed(&mut self, path: &str, act: impl FnOnce(&Self) -> Result<(), Failure>) -> Result<(), Failure> {
        self.tally.removed += 1;
        self.act("-", path, act)
    }

    fn act(&self, sign: &str, path: &str, act: impl FnOnce(&Self) -> Result<(), Failure>) -> Result<(), Failure> {
        if !self.arguments.dry_run {
            act(self)?;
        }
        terminal::print(format!("{sign} {}\n", Text::from(path)).as_bytes())
    }

    fn leave_out(&mut self, path: &str, why: &str) -> Result<(), Failure> {
        self.tally.left_out += 1;
        terminal::complain(&format!("left out, because {why}: {}", Text::from(path)));
        Ok(())
    }

    fn told(&self) -> Result<ExitCode, Failure> {
        let Tally {
            brought,
            removed,
            same,
            left_out,
        } = self.tally;
        let would = if self.arguments.dry_run { "would be " } else { "" };
        terminal::complain(&format!(
            "offleash: {brought} {would}brought over, {removed} {would}removed, {same} the same, {} left out",
            left_out + self.here.odd()
        ));
        Ok(match left_out + self.here.odd() {
            0 => ExitCode::SUCCESS,
            _ => ExitCode::from(EXIT_PARTIAL),
        })
    }
}
