//! Carries out steps: a command in a sandbox over the layers so far, or files that are copied.

use std::cell::Cell;
use std::ffi::OsString;
use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use offleash_core::build::patterns::IgnoreRules;
use offleash_core::build::{BuildBase, BuildStage, BuildStep, CopySource, CopyStep, RunStep, StepAction};
use offleash_core::limits::Limits;
use offleash_core::spec::{IdChoice, ImageSpec, RootChoice, SandboxSpec};
use offleash_core::template::TemplateName;
use offleash_core::text;
use offleash_core::units::{Bytes, CpuCount};
use offleash_images::{
    CaptureOrder, CapturedOwner, ComposeOrder, CopyOrder, CopySelection, CopyTarget, ExcludedFile, ImageConfig,
    ImageDigest, ImageError, ImageRoot, ImageStore, KeptName, LayerArchive, LayerOwnership, LayerTree, NoProgress,
};
use offleash_store::TemplateStore;
use offleash_sys::signals::SignalQueue;

use super::ImageBuild;
use super::secret_mark::mark_of;
use super::stage::StageState;
use super::uploads::UnpackedUploads;
use crate::images::{Accounts, CallerIds, ownership_of, spec_of, usual_ownership};
use crate::templates::{MAX_FILES, Progress, StepCommand, StepSandbox, TemplateError, signals};
use offleash_planner::base::remove_layer;
use offleash_planner::git_system;
use offleash_planner::image::own_accounts;
use offleash_planner::recipes::steps::missing_in_image;

/// Files that every sandbox has of its own.
const OF_THE_SANDBOX: [&str; 3] = ["etc/hosts", "etc/hostname", "etc/resolv.conf"];
/// How much longer than its contents an archive may be: headers of many small files.
const MAX_OVERHEAD: u64 = 2 << 30;

/// What was built.
#[derive(Debug)]
pub(super) struct BuiltImage {
    pub(super) digest: ImageDigest,
    pub(super) ids: IdChoice,
    /// The steps of the last stage, a line each.
    pub(super) steps: Vec<String>,
}

/// A build under way.
pub(super) struct BuildExecutor<'a> {
    state: &'a Path,
    store: &'a ImageStore,
    build: &'a ImageBuild,
    /// Where layers are that steps write to.
    scratch: PathBuf,
    signals: SignalQueue,
    /// How many ids sandboxes of the build have, once that is known.
    ids: Option<IdChoice>,
    /// Keeps bases in place.
    bases: Vec<ImageRoot>,
    stages: Vec<StageState>,
    /// Steps that were begun.
    begun: usize,
    uploads: UnpackedUploads,
    /// Bytes of the layers that were made.
    layered: Cell<u64>,
}

/// The image that a template is, by its digest.
///
/// # Errors
/// `Missing`, `OverHost`.
pub(super) fn digest_of_template(templates: &TemplateStore, name: &TemplateName) -> Result<String, TemplateError> {
    let held = templates
        .hold(name)?
        .ok_or_else(|| TemplateError::Missing { name: name.clone() })?;
    let image = held.record().image.as_ref();
    image
        .map(|image| image.digest.clone())
        .ok_or_else(|| TemplateError::OverHost { name: name.clone() })
}

impl<'a> BuildExecutor<'a> {
    pub(super) fn new(
        state: &'a Path,
        store: &'a ImageStore,
        build: &'a ImageBuild,
        scratch: PathBuf,
    ) -> Result<Self, TemplateError> {
        Ok(Self {
            state,
            store,
            build,
            scratch,
            signals: signals().map_err(|source| TemplateError::Host {
                action: "queue signals",
                source,
            })?,
            ids: None,
            bases: Vec::new(),
            stages: Vec::new(),
            begun: 0,
            uploads: UnpackedUploads::within(build.disk),
            layered: Cell::new(0),
        })
    }

    pub(super) fn carry_out(
        mut self,
        kept: &KeptName,
        progress: &mut dyn Progress,
    ) -> Result<BuiltImage, TemplateError> {
        let build = self.build;
        let of = build.plan.stages.iter().map(|stage| stage.steps.len()).sum();
        for stage in &build.plan.stages {
            self.stage(stage, of, progress)?;
        }
        let (Some(last), Some(stage)) = (self.stages.last(), build.plan.stages.last()) else {
            return Err(TemplateError::NoStage);
        };
        // Better now than when the first sandbox is made of it.
        let root = self.open_for_reading(&last.image.to_string())?;
        spec_of(&root, &last.config).map_err(|source| TemplateError::Build {
            step: "the last stage".to_owned(),
            source,
        })?;
        let order = ComposeOrder {
            base: Some(last.image),
            layer: None,
            config: &last.config,
            ownership: usual_ownership(),
            kept,
        };
        Ok(BuiltImage {
            digest: self.store.compose(order, &CallerIds)?,
            ids: self.ids.unwrap_or_default(),
            steps: stage.steps.iter().map(title_of).collect(),
        })
    }

    fn stage(&mut self, stage: &BuildStage, of: usize, progress: &mut dyn Progress) -> Result<(), TemplateError> {
        let mut state = self.begin_stage(&stage.base)?;
        for step in &stage.steps {
            self.begun += 1;
            if self.signals.next().ok().flatten().is_some() {
                return Err(TemplateError::Interrupted);
            }
            match &step.action {
                StepAction::Run(run) => {
                    let mark = mark_of(self.state, &run.secrets).map_err(|source| TemplateError::Host {
                        action: "keep the key of secrets",
                        source,
                    })?;
                    let key = state.key_of(step, &mark);
                    if !self.take_known(&mut state, step, key, of, progress)? {
                        let layer = self.run(&state, step, run, progress)?;
                        self.keep(&mut state, step, key, layer)?;
                    }
                }
                StepAction::Copy(copy) => {
                    let files = self.select(step, copy);
                    // Whoever is told of a failure is told of which step.
                    let files = files.inspect_err(|_| progress.step(self.begun, of, &title_of(step)))?;
                    let key = state.key_of(step, &files.contents);
                    if !self.take_known(&mut state, step, key, of, progress)? {
                        let layer = self.copy(&state, step, copy, &files)?;
                        self.keep(&mut state, step, key, layer)?;
                    }
                }
                _ => {
                    progress.step(self.begun, of, &title_of(step));
                    state.apply(step);
                }
            }
        }
        self.stages.push(state);
        Ok(())
    }

    /// What a stage begins with, which stays as long as the build goes on.
    fn begin_stage(&mut self, base: &BuildBase) -> Result<StageState, TemplateError> {
        if let BuildBase::Stage(number) = base {
            return self
                .stages
                .get(*number)
                .map(StageState::fork)
                .ok_or(TemplateError::NoStage);
        }
        let digest = self.digest_of(base)?;
        let root = self.open_for_reading(&digest)?;
        let ids = match self.ids {
            Some(ids) => ids,
            None => {
                let image = spec_of(&root, &root.config)?;
                *self.ids.insert(self.sandbox(image, std::iter::empty()).ids()?)
            }
        };
        let form = match ids {
            IdChoice::Range => "range",
            IdChoice::Single | IdChoice::Zero => "single",
        };
        // What commands made for one caller no other one finds.
        let form = match &self.build.caller.key {
            Some(key) => format!("{form} {key}"),
            None => form.to_owned(),
        };
        let state = StageState::new(root.digest, root.config.clone(), &form);
        self.bases.push(root);
        Ok(state)
    }

    /// The image that a base means, by its digest.
    fn digest_of(&self, base: &BuildBase) -> Result<String, TemplateError> {
        Ok(match base {
            BuildBase::Image(name) => self.store.find(name)?.digest.to_string(),
            BuildBase::Template(name) => {
                let state = offleash_store::StateDirectory::open(
                    Some(self.state),
                    &offleash_store::HostIdentity::of_this_process(),
                )?;
                digest_of_template(&state.templates()?, name)?
            }
            BuildBase::Stage(number) => {
                let stage = self.stages.get(*number).ok_or(TemplateError::NoStage)?;
                stage.image.to_string()
            }
            BuildBase::Scratch => self.empty_image()?.to_string(),
        })
    }

    /// An image of one layer without files.
    fn empty_image(&self) -> Result<ImageDigest, TemplateError> {
        let kept = KeptName::Step(ImageDigest::of(b"scratch"));
        if let Some(known) = self.store.find_kept(&kept)? {
            return Ok(known);
        }
        let layer = self.store.new_layer(MAX_OVERHEAD)?;
        layer.fill_empty()?;
        let order = ComposeOrder {
            base: None,
            layer: Some(layer),
            config: &ImageConfig::default(),
            ownership: usual_ownership(),
            kept: &kept,
        };
        Ok(self.store.compose(order, &CallerIds)?)
    }

    /// An image in the form that the calling process can read.
    fn open_for_reading(&self, digest: &str) -> Result<ImageRoot, ImageError> {
        let form = match offleash_sys::process::is_root() {
            true => LayerOwnership::Owned,
            false => LayerOwnership::Flat,
        };
        self.store.open_image(digest, form, &CallerIds, &NoProgress)
    }

    /// Goes on with what an earlier build made of the same, if that is here.
    fn take_known(
        &self,
        state: &mut StageState,
        step: &BuildStep,
        key: ImageDigest,
        of: usize,
        progress: &mut dyn Progress,
    ) -> Result<bool, TemplateError> {
        let is_forced = self.build.caller.forced_from.is_some_and(|from| self.begun >= from);
        let known = match self.build.uses_cache && !is_forced {
            true => self.store.find_kept(&KeptName::Step(key))?,
            false => None,
        };
        let Some(image) = known else {
            progress.step(self.begun, of, &title_of(step));
            return Ok(false);
        };
        progress.step(self.begun, of, &format!("{} (unchanged)", title_of(step)));
        state.advance(key, image);
        Ok(true)
    }

    fn keep(
        &self,
        state: &mut StageState,
        step: &BuildStep,
        key: ImageDigest,
        layer: LayerArchive,
    ) -> Result<(), TemplateError> {
        let made = self.layered.get().saturating_add(layer.length()?);
        self.layered.set(made);
        // Eighty steps of a caller are not each as large as one may be.
        let disk = self.build.disk.0;
        if self.build.caller.key.is_some() && made > disk.saturating_add(disk.min(MAX_OVERHEAD)) {
            return Err(TemplateError::TooLarge {
                step: title_of(step),
                limit: self.build.disk,
            });
        }
        let order = ComposeOrder {
            base: Some(state.image),
            layer: Some(layer),
            config: &state.config,
            ownership: ownership_of(self.ids.unwrap_or_default()),
            kept: &KeptName::Step(key),
        };
        let made = self.store.compose(order, &CallerIds).map_err(of_step(step))?;
        state.advance(key, made);
        Ok(())
    }

    /// The sandbox of a step.
    fn sandbox<'v>(&self, image: ImageSpec, variables: impl Iterator<Item = (&'v str, &'v str)>) -> StepSandbox<'a> {
        let build = self.build;
        let mut spec = SandboxSpec {
            root: RootChoice::Image(Box::new(image)),
            ids: self.ids.or(build.ids),
            network: build.network.clone(),
            limits: Limits {
                workspace: Some(build.disk),
                file_size: Some(build.disk),
                inodes: Some(MAX_FILES),
                output: None,
                ..Limits::default()
            },
            ..SandboxSpec::default()
        };
        let usage = build.caller.usage;
        if let Some(cpus) = usage.cpus {
            spec.limits.cpus = Some(CpuCount {
                millis: u64::from(cpus) * 1000,
            });
        }
        if let Some(memory) = usage.memory_mib {
            spec.limits.memory = Some(Bytes::mib(memory));
        }
        let variables = variables.map(|(name, value)| (name.into(), value.into()));
        spec.env.set = variables.chain(build.env.iter().cloned()).collect();
        StepSandbox {
            spec,
            state: self.state,
        }
    }

    /// Runs a command over the layers so far, and answers what it wrote.
    fn run(
        &self,
        state: &StageState,
        step: &BuildStep,
        run: &RunStep,
        progress: &mut dyn Progress,
    ) -> Result<LayerArchive, TemplateError> {
        let digest = state.image.to_string();
        let mut config = state.config.clone();
        if let Some(user) = &run.user {
            config.user.clone_from(user);
        }
        let mut image =
            spec_of(&self.open_for_reading(&digest).map_err(of_step(step))?, &config).map_err(of_step(step))?;
        let layer = self.scratch.join(self.begun.to_string());
        DirBuilder::new()
            .mode(0o700)
            .create(&layer)
            .map_err(|source| TemplateError::Host {
                action: "make the directory of a step",
                source,
            })?;
        image.layer = Some(layer.clone());
        let excluded = self.excluded(&image);
        let command = StepCommand {
            title: &title_of(step),
            argv: run.command.iter().map(OsString::from).collect(),
            cwd: image.working_directory.is_none().then_some("/"),
            user: None,
            secrets: &run.secrets,
            meaning: &|code| {
                let program = missing_in_image(&run.command, code)?;
                Some(TemplateError::Step {
                    step: title_of(step),
                    how: format!("the image has no `{program}`"),
                    last_lines: Vec::new(),
                    hint: Some("begin with an image that has it, or install it with `--apt` or `--run`".to_owned()),
                })
            },
        };
        let arguments = run
            .arguments
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()));
        let sandbox = self.sandbox(image, arguments.chain(run.secrets.iter()));
        let captured = sandbox
            .run(command, &self.signals, progress)
            .and_then(|()| self.capture(&layer, &excluded).map_err(of_step(step)));
        // What stays goes with the directory of the build.
        let removed = remove_layer(&layer);
        let captured = captured?;
        removed?;
        Ok(captured)
    }

    fn capture(&self, layer: &Path, excluded: &[ExcludedFile]) -> Result<LayerArchive, ImageError> {
        // A root of an image has one part.
        let part = layer.join("root");
        let owner = match self.ids.unwrap_or_default() {
            IdChoice::Single | IdChoice::Zero => CapturedOwner::Single,
            IdChoice::Range if !offleash_sys::process::is_root() => CapturedOwner::CallerRange,
            IdChoice::Range => {
                let found = std::fs::symlink_metadata(&part).map_err(|source| ImageError::File {
                    tried: "examining",
                    path: part.clone(),
                    source,
                })?;
                CapturedOwner::Range {
                    uid: found.uid(),
                    gid: found.gid(),
                }
            }
        };
        let archive = self.store.new_layer(self.build.disk.0.saturating_add(MAX_OVERHEAD))?;
        let order = CaptureOrder {
            upper: part.join("upper"),
            owner,
            excluded,
        };
        archive.fill_captured(&order, &CallerIds)?;
        Ok(archive)
    }

    /// What of a sandbox's files is its own and no part of what was run in it.
    fn excluded(&self, image: &ImageSpec) -> Vec<ExcludedFile> {
        let whole = |path: &str| ExcludedFile {
            path: path.trim_start_matches('/').as_bytes().to_vec(),
            contents: None,
        };
        let unless_changed = |path: &str, text: &str| ExcludedFile {
            contents: Some(text.as_bytes().to_vec()),
            ..whole(path)
        };
        let mut excluded: Vec<ExcludedFile> = OF_THE_SANDBOX.into_iter().map(whole).collect();
        excluded.push(unless_changed(
            &format!("etc/{}", git_system::NAME),
            git_system::CONTENTS,
        ));
        for (path, text) in own_accounts(image, self.ids.unwrap_or_default()) {
            excluded.push(unless_changed(&path.to_string_lossy(), &text));
        }
        if self.build.network.opens() {
            let paths = offleash_planner::trust_paths();
            excluded.extend(paths.iter().map(|path| whole(&path.to_string_lossy())));
        }
        excluded
    }

    /// Finds the files of a step, and what tells them from others.
    fn select(&self, step: &BuildStep, copy: &CopyStep) -> Result<StepFiles, TemplateError> {
        let nothing = IgnoreRules::default();
        let (root, tree, ignore, known) = match &copy.from {
            CopySource::Inline(files) => {
                let files = files.iter().map(|file| (file.name.clone(), file.text.clone()));
                return Ok(StepFiles {
                    // They are part of the step itself.
                    contents: String::new(),
                    selection: CopySelection::of_texts(files),
                    tree: None,
                    _root: None,
                });
            }
            CopySource::Context => {
                let context = self.build.context.as_ref();
                let context = context.ok_or_else(|| TemplateError::NoContext { step: title_of(step) })?;
                let tree = LayerTree::of_directory(&context.directory).map_err(of_step(step))?;
                (None, tree, &context.ignore, None)
            }
            CopySource::Upload(hash) => {
                let directory = self
                    .uploads
                    .files_of(self.build, &self.scratch, hash, &title_of(step))?;
                let tree = LayerTree::of_directory(&directory).map_err(of_step(step))?;
                (None, tree.called("the files that were uploaded"), &nothing, None)
            }
            CopySource::Base(base) => {
                let digest = self.digest_of(base)?;
                let root = self.open_for_reading(&digest).map_err(of_step(step))?;
                let tree = LayerTree::of_image(&root).map_err(of_step(step))?;
                (Some(root), tree, &nothing, Some(digest))
            }
        };
        let order = CopyOrder {
            tree: &tree,
            sources: &copy.sources,
            ignore,
            extracts: copy.extracts,
        };
        let selection = CopySelection::of(&order).map_err(of_step(step))?;
        let contents = match known {
            Some(digest) => digest,
            None => selection.digest(Some(&tree)).map_err(of_step(step))?.to_string(),
        };
        Ok(StepFiles {
            contents,
            selection,
            tree: Some(tree),
            _root: root,
        })
    }

    fn copy(
        &self,
        state: &StageState,
        step: &BuildStep,
        copy: &CopyStep,
        files: &StepFiles,
    ) -> Result<LayerArchive, TemplateError> {
        let copied = || {
            let root = self.open_for_reading(&state.image.to_string())?;
            let owner = match &copy.owner {
                Some(named) => Some(Accounts::of(&root)?.ids_of(named)?),
                None => None,
            };
            let archive = self.store.new_layer(self.build.disk.0.saturating_add(MAX_OVERHEAD))?;
            let target = CopyTarget {
                below: &LayerTree::of_image(&root)?,
                destination: &state.absolute(&copy.destination),
                owner,
                mode: copy.mode,
            };
            archive.fill_copied(files.tree.as_ref(), &files.selection, &target)?;
            Ok(archive)
        };
        copied().map_err(of_step(step))
    }
}

/// The files that a step copies.
struct StepFiles {
    contents: String,
    selection: CopySelection,
    tree: Option<LayerTree>,
    /// Keeps what they are copied from.
    _root: Option<ImageRoot>,
}

fn of_step(step: &BuildStep) -> impl Fn(ImageError) -> TemplateError + Clone + '_ {
    |source| TemplateError::Build {
        step: title_of(step),
        source,
    }
}

/// What a step is called, in a line that cannot drive a terminal.
fn title_of(step: &BuildStep) -> String {
    text::one_line(step.title.as_bytes()).into_owned()
}
