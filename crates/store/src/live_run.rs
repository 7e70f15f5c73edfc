//! A run while it goes on: how it begins and ends.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use offleash_core::id::RunId;
use offleash_core::text::Text;
use rustix::fs::{AtFlags, Mode};
use rustix::io::Errno;

use crate::change::Change;
use crate::claim::Claim;
use crate::clock::{Baseline, rfc3339_now};
use crate::failure::Tried;
use crate::node::identity_of;
use crate::protection::parse;
use crate::removal::remove_tree;
use crate::run::{UPPER, layer_name, open_run};
use crate::run_file::{LayerFile, Phase, RUN_FILE, RunFile};
use crate::state::PRIVATE;
use crate::tree::Tree;
use crate::{Run, RunError, StateDirectory};

/// What overlayfs works in, beside [`UPPER`].
const WORK: &str = "work";

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

/// A run that is going on in this process. If the process dies, [`crate::reap()`] finishes it.
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
        self.run.path.join(layer_name(index))
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
        if run.is_untouched()? {
            run.remove_untouched()?;
            claim.release().map_err(|source| run.failed(source))?;
            return Ok(Finished {
                changes: Vec::new(),
                run: None,
            });
        }
        let changes = run.changes();
        if matches!(&changes, Ok(none) if none.is_empty()) {
            run.remove()?;
            claim.release().map_err(|source| run.failed(source))?;
            return Ok(Finished {
                changes: Vec::new(),
                run: None,
            });
        }
        let noted = match &changes {
            Ok(changes) => run.note_seen(changes),
            Err(_) => Ok(()),
        };
        run.enter(Phase::Kept)?;
        claim.release().map_err(|source| run.failed(source))?;
        noted?;
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

    /// Whether no upper directory has any entry or another mode: the usual case, decided without comparing.
    fn is_untouched(&self) -> Result<bool, RunError> {
        for (layer, file) in self.file.layers.iter().enumerate() {
            let upper = Tree::ours(self.upper(layer)?);
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
        // Made by overlayfs: `work/work`, and in it the mark of a volatile mount.
        const DIRECTORIES: [&str; 6] = [
            "/work/work/incompat/volatile",
            "/work/work/incompat",
            "/work/work",
            "/work",
            "/upper",
            "",
        ];
        for layer in (0..self.file.layers.len()).map(layer_name) {
            // What is left over, or in the way, is found by the removal below.
            let mark = format!("{layer}/work/work/incompat/volatile/dirty");
            let _ = rustix::fs::unlinkat(&self.directory, mark.as_str(), AtFlags::empty());
            for part in DIRECTORIES {
                let name = format!("{layer}{part}");
                let _ = rustix::fs::unlinkat(&self.directory, name.as_str(), AtFlags::REMOVEDIR);
            }
        }
        let _ = rustix::fs::unlinkat(&self.directory, RUN_FILE, AtFlags::empty());
        match rustix::fs::unlinkat(&self.state.runs, self.id().as_str(), AtFlags::REMOVEDIR) {
            Ok(()) => Ok(()),
            Err(_) => self.remove(),
        }
    }
}

fn create_layer(id: &RunId, directory: &OwnedFd, index: usize, root: &Path) -> Result<LayerFile, RunError> {
    let workspace = |source| RunError::Workspace { id: id.clone(), source };
    let failed = |source| RunError::File { id: id.clone(), source };
    let host = Tree::host(root).tried("opening", root).map_err(workspace)?;
    let stat = rustix::fs::fstat(host.root())
        .tried("examining", root)
        .map_err(workspace)?;
    let layer = layer_name(index);
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
    rustix::fs::chmodat(directory, &*upper, mode, AtFlags::empty())
        .tried("changing the mode of", &upper)
        .map_err(failed)?;
    Ok(LayerFile {
        root: Text::from(root),
        root_inode: stat.st_ino,
        root_mode: stat.st_mode & 0o7777,
    })
}
