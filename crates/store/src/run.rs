//! A run: its directory, its layers and its record, while it goes on and afterwards.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use offleash_core::error::{ErrorKind, Explained as _};
use offleash_core::id::RunId;
use offleash_core::text::Text;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::apply::recover;
use crate::change::{ChangeError, LayerChange, LayerTrees, changes_in_layer};
use crate::claim::RunClaim;
use crate::failure::{FailedCall, FileError};
use crate::modes;
use crate::node::TreeNode;
use crate::places::LayerPaths;
use crate::protection::ProtectionRules;
use crate::removal::remove_tree;
use crate::run_file::{RecordReading, RunFile, RunPhase};
use crate::seen;
use crate::tree::{TreeRoot, stat_at};
use crate::trusted::{LayerPath, TrustSurroundings, TrustedPaths, search};
use crate::unified::{ChangePatch, unified};
use crate::{RunError, RunState, StateDirectory};

/// What the names of layers begin with.
pub(crate) const LAYER_PREFIX: &str = "layer-";
/// The directory in a layer that holds what was changed.
pub(crate) const UPPER: &str = "upper";
const OPEN_DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// A run that is over, or that another process works on.
#[derive(Debug)]
pub struct StoredRun {
    pub(crate) state: StateDirectory,
    pub(crate) file: RunFile,
    pub(crate) directory: OwnedFd,
    pub(crate) path: PathBuf,
    /// Protected names of the host that were looked for when the run ended, for what follows at once.
    names: Mutex<Option<Vec<LayerPath>>>,
}

impl StoredRun {
    pub(crate) fn with(state: &StateDirectory, file: RunFile, directory: OwnedFd) -> Self {
        Self {
            path: state.path().join("runs").join(file.id.as_str()),
            state: state.clone(),
            file,
            directory,
            names: Mutex::new(None),
        }
    }

    /// Opens the run `id`.
    ///
    /// # Errors
    /// `NotFound`, or `Damaged` if its record cannot be understood.
    pub fn open(state: &StateDirectory, id: &RunId) -> Result<Self, RunError> {
        let failed = |source| RunError::File { id: id.clone(), source };
        let directory = match open_run(state, id) {
            Err(error) if error.errno() == Some(Errno::NOENT) => return Err(RunError::NotFound { id: id.clone() }),
            other => other.map_err(failed)?,
        };
        let file = match record(state, id, &directory).map_err(failed)? {
            Some(Ok(file)) if file.id == *id => Ok(file),
            Some(Ok(_)) => Err("it is that of another run".to_owned()),
            Some(Err(why)) => Err(why),
            None => Err("there is none".to_owned()),
        };
        match file {
            Ok(file) => Ok(Self::with(state, file, directory)),
            // It ended at this moment, and its directory serves another run by now.
            Err(_) if !is_in_place(state, id, &directory).map_err(failed)? => {
                Err(RunError::NotFound { id: id.clone() })
            }
            Err(why) => Err(RunError::Damaged { id: id.clone(), why }),
        }
    }

    /// Its id.
    pub fn id(&self) -> &RunId {
        &self.file.id
    }

    /// Program and arguments.
    pub fn command(&self) -> &[Text] {
        &self.file.command
    }

    /// When it started, RFC 3339 in UTC.
    pub fn started_at(&self) -> &str {
        &self.file.started_at
    }

    /// The host directories of its layers; the first is the workspace.
    pub fn roots(&self) -> Vec<PathBuf> {
        self.file
            .layers
            .iter()
            .map(|layer| layer.root.as_path().to_owned())
            .collect()
    }

    /// Where it is in its life.
    ///
    /// # Errors
    /// `File` if its lock cannot be looked at.
    pub fn state(&self) -> Result<RunState, RunError> {
        let held = RunClaim::is_held(&self.state, self.id()).map_err(|source| self.failed(source))?;
        Ok(RunState::of(self.file.phase, held))
    }

    /// What the run changed and was not applied yet, compared with the host as it is now; parents come before what is
    /// in them. Empty for a run that was applied or discarded.
    ///
    /// # Errors
    /// `Workspace` or `WorkspaceReplaced` if a host directory is not what it was, `Changes` if a file cannot be read.
    pub fn changes(&self) -> Result<Vec<LayerChange>, RunError> {
        self.changes_and_trusted().map(|(changes, _)| changes)
    }

    /// The same, with what protected names lead to.
    pub(crate) fn changes_and_trusted(&self) -> Result<(Vec<LayerChange>, TrustedPaths), RunError> {
        if matches!(self.file.phase, RunPhase::Applied | RunPhase::Discarded) {
            return Ok((Vec::new(), TrustedPaths::default()));
        }
        let protection = ProtectionRules::of(&self.file)?;
        let applied = self.applied()?;
        let mut all = Vec::new();
        let trees = self.all_trees()?;
        for (layer, trees) in trees.iter().enumerate() {
            let found = changes_in_layer(layer, trees, &protection, &applied, &self.file.host_paths);
            all.extend(found.map_err(|source| self.unreadable(source))?);
        }
        if let Some(modes) = modes::read(&self.directory).map_err(|source| self.failed(source))? {
            all.retain(|change| modes.may_be_changed(change));
        }
        all.sort_by(|left, right| (left.layer, &left.path).cmp(&(right.layer, &right.path)));
        let trusted = self.mark_trusted(&trees, &protection, &mut all);
        self.check_place()?;
        Ok((all, trusted))
    }

    fn mark_trusted(
        &self,
        trees: &[LayerTrees],
        protection: &ProtectionRules,
        changes: &mut [LayerChange],
    ) -> TrustedPaths {
        if !TrustedPaths::matters_to(changes) {
            return TrustedPaths::default();
        }
        // Where names lead is followed each time; the names are those of a moment ago when a run has just ended.
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let found = names.take().unwrap_or_else(|| search(trees, protection));
        let around = TrustSurroundings {
            trees,
            changes,
            protection,
            home: self.file.home.as_ref().map(Text::as_path),
        };
        let trusted = TrustedPaths::find(around, &found);
        if self.file.phase == RunPhase::Started {
            *names = Some(found);
        }
        drop(names);
        let roots = self.roots();
        for change in changes.iter_mut().filter(|change| change.protected.is_none()) {
            let becomes_directory = change.after.as_ref().is_some_and(TreeNode::is_directory);
            let place = (change.layer, change.path.as_path());
            change.protected = trusted.rule(protection, &roots, place, becomes_directory);
        }
        trusted
    }

    /// A change as a patch in git's form. The bytes are the sandbox's: who prints them to a terminal must escape them.
    ///
    /// # Errors
    /// As for [`StoredRun::changes`].
    pub fn unified(&self, change: &LayerChange) -> Result<ChangePatch, RunError> {
        let diff = unified(&self.trees(change.layer)?, change).map_err(|source| self.unreadable(source))?;
        self.check_place()?;
        Ok(diff)
    }

    /// Drops what is left of a run whose record is damaged.
    ///
    /// # Errors
    /// `Busy` if it is being worked on; `File` if it cannot be removed.
    pub fn discard_damaged(state: &StateDirectory, id: &RunId) -> Result<(), RunError> {
        let failed = |source| RunError::File { id: id.clone(), source };
        let claim = RunClaim::take(state, id)
            .map_err(failed)?
            .ok_or_else(|| RunError::Busy { id: id.clone() })?;
        remove_tree(&state.runs, id.as_str().as_ref()).map_err(failed)?;
        claim.release().map_err(failed)
    }

    /// Drops the changes; the run stays in lists as discarded.
    ///
    /// # Errors
    /// `Busy`, `AlreadyApplied` or `Discarded` if that is its state; `File` if the layers cannot be removed.
    pub fn discard(mut self) -> Result<(), RunError> {
        let claim = self.claim_as_it_is()?;
        recover(&self.directory).map_err(|source| self.failed(source))?;
        match self.enter(RunPhase::Discarded) {
            // The disk is full, perhaps of just these changes: they go first, and make the room for the note.
            Err(error) if error.kind() == ErrorKind::Exhausted => {
                self.drop_layers()?;
                self.enter(RunPhase::Discarded)?;
            }
            noted => {
                noted?;
                self.drop_layers()?;
            }
        }
        claim.release().map_err(|source| self.failed(source))?;
        crate::runs::retain(&self.state).map_err(|source| self.failed(source))
    }

    /// Claims a run that is over and has changes left.
    ///
    /// From now on it has a `run.json`: the mark, in which a crashed run's record may be, goes when the claim ends.
    pub(crate) fn claim(&mut self) -> Result<RunClaim, RunError> {
        let claim = self.claim_as_it_is()?;
        if self.file.phase == RunPhase::Started {
            self.save()?;
        }
        Ok(claim)
    }

    /// Claims a run that is over and has changes left, and reads its record again under the lock.
    fn claim_as_it_is(&mut self) -> Result<RunClaim, RunError> {
        let id = self.id().clone();
        let claim = RunClaim::take(&self.state, &id).map_err(|source| self.failed(source))?;
        let claim = claim.ok_or_else(|| RunError::Busy { id: id.clone() })?;
        let again = Self::open(&self.state, &id);
        let refusal = match again {
            Ok(again) => {
                let names = std::mem::take(&mut self.names);
                *self = Self { names, ..again };
                match self.file.phase {
                    RunPhase::Started | RunPhase::Kept | RunPhase::Crashed => return Ok(claim),
                    RunPhase::Applied => RunError::AlreadyApplied { id },
                    RunPhase::Discarded => RunError::Discarded { id },
                }
            }
            // The record may be in the mark, which therefore stays; the next start looks at it again.
            Err(error @ RunError::File { .. }) => return Err(error),
            Err(error) => error,
        };
        claim.release().map_err(|source| self.failed(source))?;
        Err(refusal)
    }

    pub(crate) fn trees(&self, layer: usize) -> Result<LayerTrees, RunError> {
        let file = &self.file.layers[layer];
        let root = file.root.as_path();
        let workspace = |source| RunError::Workspace {
            id: self.id().clone(),
            source,
        };
        let host = TreeRoot::host(root).tried("opening", root).map_err(workspace)?;
        let found = rustix::fs::fstat(host.root())
            .tried("examining", root)
            .map_err(workspace)?;
        if found.st_ino != file.root_inode {
            return Err(RunError::WorkspaceReplaced {
                id: self.id().clone(),
                root: file.root.clone(),
            });
        }
        Ok(LayerTrees {
            root: root.to_owned(),
            upper: TreeRoot::ours(self.upper(layer)?),
            host,
        })
    }

    pub(crate) fn all_trees(&self) -> Result<Vec<LayerTrees>, RunError> {
        (0..self.file.layers.len()).map(|layer| self.trees(layer)).collect()
    }

    /// Notes what the host has now at the changed paths.
    pub(crate) fn note_seen(&self, changes: &[LayerChange]) -> Result<(), RunError> {
        let latest_untouched = self.file.baseline.latest_untouched();
        let noted = seen::note(&self.directory, &self.all_trees()?, changes, latest_untouched)
            .and_then(|()| modes::note(&self.directory, changes, latest_untouched));
        noted.map_err(|source| self.failed(source))
    }

    pub(crate) fn upper(&self, layer: usize) -> Result<OwnedFd, RunError> {
        let path = format!("{}/{UPPER}", layer_name(layer));
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(&self.directory, &*path, flags, Mode::empty());
        opened.tried("opening", &path).map_err(|source| self.failed(source))
    }

    /// The directory of a run that ends without changes is used for another, whose changes are not this run's.
    fn check_place(&self) -> Result<(), RunError> {
        let id = self.id();
        if self.file.phase != RunPhase::Started {
            return Ok(());
        }
        match is_in_place(&self.state, id, &self.directory) {
            Ok(true) => Ok(()),
            Ok(false) => Err(RunError::NotFound { id: id.clone() }),
            Err(source) => Err(self.failed(source)),
        }
    }

    pub(crate) fn applied(&self) -> Result<LayerPaths, RunError> {
        crate::apply::applied(&self.directory).map_err(|source| self.failed(source))
    }

    pub(crate) fn enter(&mut self, phase: RunPhase) -> Result<(), RunError> {
        self.file.phase = phase;
        self.save()
    }

    pub(crate) fn save(&self) -> Result<(), RunError> {
        self.file.replace(&self.directory).map_err(|source| self.failed(source))
    }

    /// Removes all but the record: the layers, and what was noted about the changes in them.
    pub(crate) fn drop_layers(&self) -> Result<(), RunError> {
        let layers = (0..self.file.layers.len()).map(layer_name);
        let notes = [seen::SEEN, modes::MODES, crate::apply::APPLIED, crate::apply::RESTORED];
        layers
            .chain(notes.map(str::to_owned))
            .try_for_each(|name| remove_tree(&self.directory, name.as_ref()).map_err(|source| self.failed(source)))
    }

    pub(crate) fn remove(&self) -> Result<(), RunError> {
        remove_tree(&self.state.runs, self.id().as_str().as_ref()).map_err(|source| self.failed(source))
    }

    pub(crate) fn failed(&self, source: FileError) -> RunError {
        RunError::File {
            id: self.id().clone(),
            source,
        }
    }

    pub(crate) fn unreadable(&self, source: ChangeError) -> RunError {
        RunError::Changes {
            id: self.id().clone(),
            source: Box::new(source),
        }
    }
}

/// The name of layer `index` in the run's directory.
pub(crate) fn layer_name(index: usize) -> String {
    format!("{LAYER_PREFIX}{index}")
}

pub(crate) fn open_run(state: &StateDirectory, id: &RunId) -> Result<OwnedFd, FileError> {
    rustix::fs::openat(&state.runs, id.as_str(), OPEN_DIRECTORY, Mode::empty()).tried("opening run", id.as_str())
}

/// The record of a run: that in its directory, or in its mark while it goes on and after a crash.
pub(crate) fn record(
    state: &StateDirectory,
    id: &RunId,
    directory: &OwnedFd,
) -> Result<Option<RecordReading>, FileError> {
    if let Some(kept) = RunFile::read(directory)? {
        return Ok(Some(kept));
    }
    match RunClaim::record(state, id)? {
        // It may have ended between the two looks.
        None => RunFile::read(directory),
        live => Ok(live),
    }
}

/// Whether `directory` is still that of the run `id`.
fn is_in_place(state: &StateDirectory, id: &RunId, directory: &OwnedFd) -> Result<bool, FileError> {
    let opened = rustix::fs::fstat(directory).tried("examining run", id.as_str())?;
    let there = stat_at(&state.runs, id.as_str().as_ref()).tried("examining run", id.as_str())?;
    Ok(there.is_some_and(|there| (there.st_dev, there.st_ino) == (opened.st_dev, opened.st_ino)))
}

#[cfg(test)]
mod tests;
