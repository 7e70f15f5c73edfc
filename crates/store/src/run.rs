//! A run: its directory, its layers and its record, while it goes on and afterwards.

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use offleash_core::id::RunId;
use offleash_core::text::Text;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::apply::recover;
use crate::change::{Change, ChangeError, LayerTrees, changes_in_layer};
use crate::claim::Claim;
use crate::clock::{Baseline, rfc3339_now};
use crate::failure::{FileError, Tried};
use crate::node::identity_of;
use crate::protection::{Protection, parse};
use crate::removal::remove_tree;
use crate::run_file::{LayerFile, Phase, RunFile};
use crate::state::PRIVATE;
use crate::tree::{Tree, names_in};
use crate::unified::{Diff, unified};
use crate::{RunError, RunState, StateDirectory};

const LAYERS: &str = "layers";
const UPPER: &str = "upper";
const WORK: &str = "work";
const OPEN_DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// What a run is going to be.
#[derive(Debug, Clone)]
pub struct NewRun {
    /// Its id, which no other run may have.
    pub id: RunId,
    /// Program and arguments, for lists.
    pub command: Vec<Text>,
    /// Host directories, resolved, that get a writable layer each; the first is the workspace.
    pub layers: Vec<PathBuf>,
    /// The owner's `protect` patterns.
    pub protect: Vec<Text>,
    /// What `~` in them stands for.
    pub home: Option<PathBuf>,
}

/// A run that is over, or that another process works on.
#[derive(Debug)]
pub struct Run {
    pub(crate) state: StateDirectory,
    pub(crate) file: RunFile,
    pub(crate) directory: OwnedFd,
    path: PathBuf,
}

/// A run that is going on in this process. If the process dies, [`crate::reap`] finishes it.
#[derive(Debug)]
pub struct LiveRun {
    run: Run,
    claim: Claim,
}

/// What a run left when it ended.
#[derive(Debug)]
pub struct Finished {
    /// What it changed; the same as [`Run::changes`] would say.
    pub changes: Vec<Change>,
    /// The run, unless it changed nothing: then nothing of it is kept.
    pub run: Option<Run>,
}

impl LiveRun {
    /// Creates the run's directory with a layer for each host directory, and holds its lock.
    ///
    /// The upper directories get the modes of their host directories, because a mount shows them as the root's. Who
    /// maps the sandbox to other ids must chown the layer.
    ///
    /// # Errors
    /// `Pattern` if a protect pattern is none, `Workspace` if a host directory cannot be opened, `Exists` if the id is
    /// taken, `File` if the state directory cannot be written. Nothing of the run remains then.
    pub fn create(state: &StateDirectory, new: NewRun) -> Result<Self, RunError> {
        parse(&new.protect)?;
        let id = new.id.clone();
        let failed = |source| RunError::File { id: id.clone(), source };
        let claim = Claim::take(state, &id)
            .map_err(failed)?
            .ok_or_else(|| RunError::Busy { id: id.clone() })?;
        match Run::create(state, new) {
            Ok(run) => Ok(Self { run, claim }),
            Err(error) => {
                if !matches!(error, RunError::Exists { .. }) {
                    remove_tree(&state.runs, id.as_str().as_ref()).map_err(failed)?;
                }
                claim.release().map_err(failed)?;
                Err(error)
            }
        }
    }

    /// The run's directory.
    pub fn directory(&self) -> &Path {
        &self.run.path
    }

    /// The directory of layer `index`, which holds `upper` and `work`.
    pub fn layer_directory(&self, index: usize) -> PathBuf {
        self.run.path.join(LAYERS).join(index.to_string())
    }

    /// The run, for its id and for looking at the changes so far.
    pub fn run(&self) -> &Run {
        &self.run
    }

    /// Records the cgroups of the sandbox before they are made, so that they are removed after a crash.
    ///
    /// # Errors
    /// `File` if the record cannot be written.
    pub fn record_cgroups(&mut self, paths: &[PathBuf]) -> Result<(), RunError> {
        self.run.file.cgroups = paths.iter().map(Text::from).collect();
        self.run.save()
    }

    /// Ends the run: nothing of it is kept if it changed nothing, else it is kept until applied or discarded.
    ///
    /// The sandbox must be gone.
    ///
    /// # Errors
    /// `Changes` if the changes cannot be read (the run is kept), `File` if the state directory cannot be written.
    pub fn finish(self) -> Result<Finished, RunError> {
        let Self { mut run, claim } = self;
        let changes = if run.is_untouched()? {
            Ok(Vec::new())
        } else {
            run.changes()
        };
        if matches!(&changes, Ok(none) if none.is_empty()) {
            run.remove()?;
            claim.release().map_err(|source| run.failed(source))?;
            return Ok(Finished {
                changes: Vec::new(),
                run: None,
            });
        }
        run.enter(Phase::Kept)?;
        claim.release().map_err(|source| run.failed(source))?;
        Ok(Finished {
            changes: changes?,
            run: Some(run),
        })
    }
}

impl Run {
    fn create(state: &StateDirectory, new: NewRun) -> Result<Self, RunError> {
        let id = new.id;
        let failed = |source| RunError::File { id: id.clone(), source };
        match rustix::fs::mkdirat(&state.runs, id.as_str(), PRIVATE) {
            Err(Errno::EXIST) => return Err(RunError::Exists { id }),
            other => other
                .tried("creating the directory of run", id.as_str())
                .map_err(failed)?,
        }
        let directory = open_run(state, &id).map_err(failed)?;
        let mut layers = Vec::with_capacity(new.layers.len());
        for (index, root) in new.layers.iter().enumerate() {
            if index == 0 {
                rustix::fs::mkdirat(&directory, LAYERS, PRIVATE)
                    .tried("creating", LAYERS)
                    .map_err(failed)?;
            }
            layers.push(create_layer(&id, &directory, index, root)?);
        }
        let stat = rustix::fs::fstat(&directory)
            .tried("examining", id.as_str())
            .map_err(failed)?;
        let file = RunFile {
            version: 1,
            command: new.command,
            started_at: rfc3339_now(),
            phase: Phase::Started,
            layers,
            protect: new.protect,
            home: new.home.map(Text::from),
            baseline: Baseline::now(identity_of(&stat).ctime),
            cgroups: Vec::new(),
            id: id.clone(),
        };
        file.create(&directory).map_err(failed)?;
        Ok(Self::with(state, file, directory))
    }

    fn with(state: &StateDirectory, file: RunFile, directory: OwnedFd) -> Self {
        Self {
            path: state.path().join("runs").join(file.id.as_str()),
            state: state.clone(),
            file,
            directory,
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
        let damaged = |why: String| RunError::Damaged { id: id.clone(), why };
        let file = RunFile::read(&directory).map_err(failed)?;
        let file = file
            .ok_or_else(|| damaged("it has no run.json".to_owned()))?
            .map_err(damaged)?;
        Ok(Self::with(state, file, directory))
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
        let held = Claim::is_held(&self.state, self.id()).map_err(|source| self.failed(source))?;
        Ok(RunState::of(self.file.phase, held))
    }

    /// What the run changed and was not applied yet, compared with the host as it is now; parents come before what is
    /// in them. Empty for a run that was applied or discarded.
    ///
    /// # Errors
    /// `Workspace` or `WorkspaceReplaced` if a host directory is not what it was, `Changes` if a file cannot be read.
    pub fn changes(&self) -> Result<Vec<Change>, RunError> {
        if matches!(self.file.phase, Phase::Applied | Phase::Discarded) {
            return Ok(Vec::new());
        }
        let protection = Protection::of(&self.file)?;
        let applied = self.applied()?;
        let mut all = Vec::new();
        for layer in 0..self.file.layers.len() {
            let found = changes_in_layer(layer, &self.trees(layer)?, &protection, &applied);
            all.extend(found.map_err(|source| self.unreadable(source))?);
        }
        all.sort_by(|left, right| (left.layer, &left.path).cmp(&(right.layer, &right.path)));
        Ok(all)
    }

    /// A change as a patch in git's form. The bytes are the sandbox's: who prints them to a terminal must escape them.
    ///
    /// # Errors
    /// As for [`Run::changes`].
    pub fn unified(&self, change: &Change) -> Result<Diff, RunError> {
        unified(&self.trees(change.layer)?, change).map_err(|source| self.unreadable(source))
    }

    /// Drops what is left of a run whose record is damaged.
    ///
    /// # Errors
    /// `Busy` if it is being worked on; `File` if it cannot be removed.
    pub fn discard_damaged(state: &StateDirectory, id: &RunId) -> Result<(), RunError> {
        let failed = |source| RunError::File { id: id.clone(), source };
        let claim = Claim::take(state, id)
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
        let claim = self.claim()?;
        recover(&self.directory).map_err(|source| self.failed(source))?;
        self.enter(Phase::Discarded)?;
        self.drop_layers()?;
        claim.release().map_err(|source| self.failed(source))?;
        crate::runs::retain(&self.state).map_err(|source| self.failed(source))
    }

    /// Claims a run that is over and has changes left, and reads its record again under the lock.
    pub(crate) fn claim(&mut self) -> Result<Claim, RunError> {
        let id = self.id().clone();
        let claim = Claim::take(&self.state, &id).map_err(|source| self.failed(source))?;
        let claim = claim.ok_or_else(|| RunError::Busy { id: id.clone() })?;
        let again = Self::open(&self.state, &id);
        let refusal = match again {
            Ok(again) => {
                *self = again;
                match self.file.phase {
                    Phase::Started | Phase::Kept | Phase::Crashed => return Ok(claim),
                    Phase::Applied => RunError::AlreadyApplied { id },
                    Phase::Discarded => RunError::Discarded { id },
                }
            }
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
        let host = Tree::host(root).tried("opening", root).map_err(workspace)?;
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
            upper: Tree::ours(self.upper(layer)?),
            host,
        })
    }

    fn upper(&self, layer: usize) -> Result<OwnedFd, RunError> {
        let path = format!("{LAYERS}/{layer}/{UPPER}");
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(&self.directory, &*path, flags, Mode::empty());
        opened.tried("opening", &path).map_err(|source| self.failed(source))
    }

    /// Whether no upper directory has any entry: the usual case, decided without comparing.
    fn is_untouched(&self) -> Result<bool, RunError> {
        for layer in 0..self.file.layers.len() {
            let upper = Tree::ours(self.upper(layer)?);
            let names = upper.readable(Path::new("")).and_then(|directory| names_in(&directory));
            if !names
                .tried("listing", UPPER)
                .map_err(|source| self.failed(source))?
                .is_empty()
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub(crate) fn applied(&self) -> Result<HashSet<(usize, PathBuf)>, RunError> {
        crate::apply::applied(&self.directory).map_err(|source| self.failed(source))
    }

    pub(crate) fn enter(&mut self, phase: Phase) -> Result<(), RunError> {
        self.file.phase = phase;
        self.save()
    }

    fn save(&self) -> Result<(), RunError> {
        self.file.replace(&self.directory).map_err(|source| self.failed(source))
    }

    pub(crate) fn drop_layers(&self) -> Result<(), RunError> {
        remove_tree(&self.directory, LAYERS.as_ref()).map_err(|source| self.failed(source))
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

pub(crate) fn open_run(state: &StateDirectory, id: &RunId) -> Result<OwnedFd, FileError> {
    rustix::fs::openat(&state.runs, id.as_str(), OPEN_DIRECTORY, Mode::empty()).tried("opening run", id.as_str())
}

fn create_layer(id: &RunId, directory: &OwnedFd, index: usize, root: &Path) -> Result<LayerFile, RunError> {
    let workspace = |source| RunError::Workspace { id: id.clone(), source };
    let failed = |source| RunError::File { id: id.clone(), source };
    let host = Tree::host(root).tried("opening", root).map_err(workspace)?;
    let stat = rustix::fs::fstat(host.root())
        .tried("examining", root)
        .map_err(workspace)?;
    let layer = format!("{LAYERS}/{index}");
    rustix::fs::mkdirat(directory, &*layer, PRIVATE)
        .tried("creating", &layer)
        .map_err(failed)?;
    for part in [UPPER, WORK] {
        let path = format!("{layer}/{part}");
        rustix::fs::mkdirat(directory, &*path, PRIVATE)
            .tried("creating", &path)
            .map_err(failed)?;
    }
    let upper = format!("{layer}/{UPPER}");
    let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
    rustix::fs::chmodat(directory, &*upper, mode, rustix::fs::AtFlags::empty())
        .tried("changing the mode of", &upper)
        .map_err(failed)?;
    Ok(LayerFile {
        root: Text::from(root),
        root_inode: stat.st_ino,
    })
}
