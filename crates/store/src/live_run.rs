//! A run while it goes on: how it begins and ends.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use offleash_core::id::RunId;
use offleash_core::text::Text;
use rustix::fs::AtFlags;
use rustix::io::Errno;

use crate::change::LayerChange;
use crate::claim::RunClaim;
use crate::clock::{ClockBaseline, rfc3339_now};
use crate::failure::{FailedCall, FileError};
use crate::leads_out::HostPath;
use crate::protection::parse;
use crate::removal::remove_tree;
use crate::run::{UPPER, layer_name, open_run};
use crate::run_file::{LayerFile, RunFile, RunPhase};
use crate::skeleton::{WORK, make_layer, open_below, remove_known};
use crate::state::PRIVATE;
use crate::tree::TreeRoot;
use crate::{RunError, SpareMaintenance, StateDirectory, StoredRun, spares};

/// What a run is going to be.
#[derive(Debug, Clone)]
pub struct NewRun {
    /// Its id, which no other run may have.
    pub id: RunId,
    /// Program and arguments, for lists; none of a run that waits for its command ([`LiveRun::begin`]).
    pub command: Vec<Text>,
    /// What it is part of, for lists, when no person asked for it by itself: a word or two.
    pub purpose: Option<&'static str>,
    /// Host directories, resolved, that get a writable layer each; the first is the workspace.
    pub layers: Vec<PathBuf>,
    /// The owner's `protect` patterns.
    pub protect: Vec<Text>,
    /// What `~` in them stands for.
    pub home: Option<PathBuf>,
    /// What the sandbox has of the host read-only, and what it has there instead of the host's: links to the former may
    /// be applied.
    pub host_paths: Vec<HostPath>,
}

/// A run that is going on in this process. If the process dies, [`crate::reap()`] finishes it.
#[derive(Debug)]
pub struct LiveRun {
    run: StoredRun,
    claim: RunClaim,
}

/// What a run left when it ended.
#[derive(Debug)]
pub struct FinishedRun {
    /// What it changed; the same as [`StoredRun::changes`] would say.
    pub changes: Vec<LayerChange>,
    /// The run, unless it changed nothing: then nothing of it is kept.
    pub run: Option<StoredRun>,
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
        let claim = RunClaim::take_new(state, &id)
            .map_err(failed)?
            .ok_or_else(|| RunError::Busy { id: id.clone() })?;
        match StoredRun::create(state, new, &claim) {
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
        self.run.path.join(layer_name(index))
    }

    /// The run, for its id and for looking at the changes so far.
    pub fn run(&self) -> &StoredRun {
        &self.run
    }

    /// Makes directories ready for later runs; for the time in which this one does nothing here.
    pub fn tending(&self) -> SpareMaintenance {
        SpareMaintenance::new(&self.run.state)
    }

    /// The state directory that it is in.
    pub fn state(&self) -> &StateDirectory {
        &self.run.state
    }

    /// Says what a run is for that was created without a command, and lets it begin now: what the host had before this
    /// moment is what the sandbox sees of it.
    ///
    /// # Errors
    /// `File` if the record cannot be written.
    pub fn begin(&mut self, command: Vec<Text>, home: Option<PathBuf>) -> Result<(), RunError> {
        let begun = self.claim.made_anew();
        self.run.file.baseline = ClockBaseline::now(begun.map_err(|source| self.run.failed(source))?);
        self.run.file.command = command;
        self.run.file.home = home.map(Text::from);
        self.run.file.started_at = rfc3339_now();
        let noted = self.claim.note(&self.run.file);
        noted.map_err(|source| self.run.failed(source))
    }

    /// Records the cgroups of the sandbox before they are made, so that they are removed after a crash.
    ///
    /// # Errors
    /// `File` if the record cannot be written.
    pub fn record_cgroups(&mut self, paths: &[PathBuf]) -> Result<(), RunError> {
        self.run.file.cgroups = paths.iter().map(Text::from).collect();
        let noted = self.claim.note(&self.run.file);
        noted.map_err(|source| self.run.failed(source))
    }

    /// Ends the run and keeps nothing of it, not even that it was.
    ///
    /// The sandbox must be gone.
    ///
    /// # Errors
    /// `File` if the state directory cannot be written.
    pub fn erase(self) -> Result<(), RunError> {
        let Self { run, claim } = self;
        let is_untouched = run.is_untouched().unwrap_or(false);
        if !(is_untouched && spares::keep(&run.state, run.id(), &run.directory, run.file.layers.len())) {
            run.remove()?;
        }
        claim.release().map_err(|source| run.failed(source))
    }

    /// Ends the run: nothing of it is kept if it changed nothing, else it is kept until applied or discarded.
    ///
    /// The sandbox must be gone.
    ///
    /// # Errors
    /// `Changes` if the changes cannot be read (the run is kept), `File` if the state directory cannot be written.
    pub fn finish(self) -> Result<FinishedRun, RunError> {
        let Self { mut run, claim } = self;
        // If that cannot be told, reading the changes says why, and the run is kept.
        if run.is_untouched().unwrap_or(false) {
            if !spares::keep(&run.state, run.id(), &run.directory, run.file.layers.len()) {
                run.remove_untouched()?;
            }
            claim.release().map_err(|source| run.failed(source))?;
            return Ok(FinishedRun {
                changes: Vec::new(),
                run: None,
            });
        }
        let changes = run.changes();
        if matches!(&changes, Ok(none) if none.is_empty()) {
            run.remove()?;
            claim.release().map_err(|source| run.failed(source))?;
            return Ok(FinishedRun {
                changes: Vec::new(),
                run: None,
            });
        }
        let noted = match &changes {
            Ok(changes) => run.note_seen(changes),
            Err(_) => Ok(()),
        };
        run.remove_work();
        run.enter(RunPhase::Kept)?;
        claim.release().map_err(|source| run.failed(source))?;
        noted?;
        Ok(FinishedRun {
            changes: changes?,
            run: Some(run),
        })
    }
}

impl StoredRun {
    /// Removes what overlayfs worked in: of no use any more, and closed to everybody (mode 000), which stops whoever
    /// copies or counts what is in the state directory.
    fn remove_work(&self) {
        for layer in (0..self.file.layers.len()).map(layer_name) {
            if let Ok(layer) = open_below(&self.directory, &layer) {
                // What stays is in nobody's way here, and goes with the run.
                let _removed = remove_tree(&layer, WORK.as_ref());
            }
        }
    }

    /// The record is written when everything else is there: without one, no sandbox has run.
    fn create(state: &StateDirectory, new: NewRun, claim: &RunClaim) -> Result<Self, RunError> {
        let id = new.id;
        let failed = |source| RunError::File { id: id.clone(), source };
        let examine =
            |root: &PathBuf| LayerFile::over(root).map_err(|source| RunError::Workspace { id: id.clone(), source });
        let layers: Vec<_> = new.layers.iter().map(examine).collect::<Result<_, _>>()?;
        let spare = match layers.as_slice() {
            [layer] => spares::take(state, &id, layer.root_mode),
            _ => None,
        };
        let directory = match spare {
            Some(directory) => directory,
            None => make_directory(state, &id, &layers)?,
        };
        let file = RunFile {
            version: 1,
            command: new.command,
            purpose: new.purpose.map(Text::from),
            started_at: rfc3339_now(),
            phase: RunPhase::Started,
            layers,
            protect: new.protect,
            home: new.home.map(Text::from),
            host_paths: new.host_paths,
            baseline: ClockBaseline::now(claim.made_at().map_err(failed)?),
            cgroups: Vec::new(),
            id: id.clone(),
        };
        claim.note(&file).map_err(failed)?;
        Ok(Self::with(state, file, directory))
    }

    /// Whether no upper directory has any entry or another mode: the usual case, decided without comparing.
    fn is_untouched(&self) -> Result<bool, RunError> {
        for (layer, file) in self.file.layers.iter().enumerate() {
            let upper = TreeRoot::ours(self.upper(layer)?);
            let mode = rustix::fs::fstat(upper.root()).map(|stat| stat.st_mode & 0o7777);
            let names = upper.names(Path::new(""));
            let is_empty = names
                .tried("listing", UPPER)
                .map_err(|source| self.failed(source))?
                .is_empty();
            if !is_empty || mode != Ok(file.root_mode) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Removes a run that changed nothing: what is in it is known, so most of the looking is spared.
    fn remove_untouched(&self) -> Result<(), RunError> {
        remove_known(&self.directory, self.file.layers.len());
        match rustix::fs::unlinkat(&self.state.runs, self.id().as_str(), AtFlags::REMOVEDIR) {
            Ok(()) => Ok(()),
            // Something was left over, or in the way.
            Err(_) => self.remove(),
        }
    }
}

impl LayerFile {
    /// A layer over `root`, a resolved directory.
    fn over(root: &Path) -> Result<Self, FileError> {
        let host = TreeRoot::host(root).tried("opening", root)?;
        let stat = rustix::fs::fstat(host.root()).tried("examining", root)?;
        Ok(Self {
            root: Text::from(root),
            root_inode: stat.st_ino,
            root_mode: stat.st_mode & 0o7777,
        })
    }
}

fn make_directory(state: &StateDirectory, id: &RunId, layers: &[LayerFile]) -> Result<OwnedFd, RunError> {
    let failed = |source| RunError::File { id: id.clone(), source };
    match rustix::fs::mkdirat(&state.runs, id.as_str(), PRIVATE) {
        Err(Errno::EXIST) => return Err(RunError::Exists { id: id.clone() }),
        other => other
            .tried("creating the directory of run", id.as_str())
            .map_err(failed)?,
    }
    let directory = open_run(state, id).map_err(failed)?;
    for (index, layer) in layers.iter().enumerate() {
        make_layer(&directory, index, layer.root_mode).map_err(failed)?;
    }
    Ok(directory)
}
