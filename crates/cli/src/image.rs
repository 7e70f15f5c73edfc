//! `offleash image`: pulls and loads images, lists and removes them.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, BufWriter, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::ExitCode;

use offleash_core::spec::RootChoice;
use offleash_core::units::Bytes;
use offleash_images::{
    DEFAULT_REGISTRY, ImageDigest, ImageError, ImageListing, ImageReference, ImageStore, LayerOwnership, LayerReport,
    LoadOrder, LoadSource, MirrorSetting, PruneReport, PullOrder, RegistrySettings, stem_of,
};
use offleash_supervisor::images::{self, CallerIds, usual_ownership};
use offleash_supervisor::lifecycle::{open_existing_state, open_state};
use serde::Serialize;

use self::progress::ShownProgress;
use crate::args::{
    ImageCommand, ImageInspectArgs, ImageLoadArgs, ImageLsArgs, ImagePruneArgs, ImagePullArgs, ImageRmArgs,
    ImageSaveArgs, ImageTagArgs, PullArg, RegistryArgs, RunArgs,
};
use crate::failure::Failure;
use crate::remote::holders;
use crate::remote::table::Table;
use crate::terminal;
use crate::terminal::rounded;

mod progress;

/// How much of a digest lists show.
const SHORT_DIGEST: usize = 12;

pub(crate) fn image(command: &ImageCommand, state: Option<&Path>) -> Result<ExitCode, Failure> {
    match command {
        ImageCommand::Pull(arguments) => pull(arguments, state),
        ImageCommand::Load(arguments) => load(arguments, state),
        ImageCommand::Tag(arguments) => tag(arguments, state),
        ImageCommand::Save(arguments) => save(arguments, state),
        ImageCommand::Ls(arguments) => ls(arguments, state),
        ImageCommand::Inspect(arguments) => inspect(arguments, state),
        ImageCommand::Rm(arguments) => rm(arguments, state),
        ImageCommand::Prune(arguments) => prune(arguments, state),
    }
}

fn open(state: Option<&Path>) -> Result<ImageStore, Failure> {
    Ok(ImageStore::open(&open_state(state)?)?)
}

/// The images of a state directory that is there.
fn open_existing(state: Option<&Path>) -> Result<Option<ImageStore>, Failure> {
    let state = open_existing_state(state)?;
    Ok(state.as_ref().map(ImageStore::open).transpose()?)
}

/// How registries are reached.
pub(crate) fn settings(arguments: &RegistryArgs) -> Result<RegistrySettings, Failure> {
    let mirror = |text: &String| {
        let pair = text
            .split_once('=')
            .filter(|(registry, url)| !registry.is_empty() && !url.is_empty());
        let (registry, url) = pair.ok_or_else(|| {
            Failure::new(format!(
                "`--mirror {text}` is not valid: it names no registry and address"
            ))
            .with_hint("write it as `--mirror docker.io=https://mirror.example`")
        })?;
        Ok::<_, Failure>(MirrorSetting {
            registry: registry.to_owned(),
            url: url.to_owned(),
        })
    };
    Ok(RegistrySettings {
        authorities: arguments.registry_ca.clone(),
        plain_http: arguments.plain_http,
        mirrors: arguments.mirror.iter().map(mirror).collect::<Result<_, _>>()?,
        ..RegistrySettings::of_this_process()
    })
}

fn pull(arguments: &ImagePullArgs, state: Option<&Path>) -> Result<ExitCode, Failure> {
    let names = arguments
        .names
        .iter()
        .map(|name| name.parse().map_err(ImageError::from));
    let names = names.collect::<Result<Vec<ImageReference>, _>>()?;
    let order = PullOrder {
        settings: settings(&arguments.registry)?,
        ownership: usual_ownership(),
        kept: None,
    };
    let store = open(state)?;
    for name in names {
        pull_one(&store, &name, &order, arguments.quiet)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn pull_one(store: &ImageStore, name: &ImageReference, order: &PullOrder, is_quiet: bool) -> Result<(), Failure> {
    let progress = ShownProgress::new(is_quiet, &name.familiar());
    let pulled = store.pull(name, order, &CallerIds, &progress);
    progress.finish();
    let pulled = pulled.map_err(|error| not_pulled(error, name))?;
    if !is_quiet {
        tell_left_out(store, &pulled.record.digest, order.ownership)?;
    }
    terminal::print(format!("{} {}\n", pulled.record.shown_name(), pulled.record.digest).as_bytes())
}

/// How an image is come by that something is to be run of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ImageSource<'a> {
    pub(crate) pull: Option<PullArg>,
    pub(crate) registry: &'a RegistryArgs,
    /// Whether nothing is said of how a pull goes on.
    pub(crate) is_quiet: bool,
    pub(crate) state: Option<&'a Path>,
}

/// The root of sandboxes of an image, which is pulled if that was asked for.
pub(crate) fn root(name: &str, source: ImageSource<'_>) -> Result<RootChoice, Failure> {
    let store = open(source.state)?;
    ensure(&store, name, source.pull, source.registry, source.is_quiet)?;
    Ok(RootChoice::Image(Box::new(images::specify(&store, name)?)))
}

/// Pulls an image if it is not here, or if that was asked for.
pub(crate) fn ensure(
    store: &ImageStore,
    name: &str,
    pull: Option<PullArg>,
    registry: &RegistryArgs,
    is_quiet: bool,
) -> Result<(), Failure> {
    let is_pulled = match pull.unwrap_or_default() {
        PullArg::Always => true,
        PullArg::Never => false,
        PullArg::Missing => matches!(store.find(name), Err(ImageError::Missing { .. })),
    };
    if !is_pulled {
        return Ok(());
    }
    let reference = name.parse::<ImageReference>().map_err(ImageError::from)?;
    let order = PullOrder {
        settings: settings(registry)?,
        ownership: usual_ownership(),
        kept: None,
    };
    let progress = ShownProgress::new(is_quiet, &reference.familiar());
    let pulled = store.pull(&reference, &order, &CallerIds, &progress);
    progress.finish();
    pulled.map_err(|error| not_pulled(error, &reference))?;
    Ok(())
}

/// What the registry's host says of an image is nothing without its name.
fn not_pulled(error: ImageError, name: &ImageReference) -> Failure {
    let tried = format!("cannot pull image `{}`", name.familiar());
    let is_hub = name.registry() == DEFAULT_REGISTRY && matches!(error, ImageError::Unreachable { .. });
    let failure = Failure::from(error).while_trying(tried);
    match is_hub {
        true => failure.with_hint(
            "check the network, and the name: without a registry it is Docker Hub's; `offleash image ls` lists what is here",
        ),
        false => failure,
    }
}

/// What the image of a run starts where the user says nothing else.
pub(crate) fn own_command(
    arguments: &RunArgs,
    root: &RootChoice,
    state: Option<&Path>,
) -> Result<Option<Vec<OsString>>, Failure> {
    let RootChoice::Image(image) = root else {
        return Ok(None);
    };
    if arguments.shell.is_some() || !arguments.command.is_empty() {
        return Ok(None);
    }
    let (what, flag) = match image.template {
        Some(_) => ("template", "--template"),
        None => ("image", "--image"),
    };
    let config = open(state)?.inspect(&image.digest)?.config;
    let command: Vec<OsString> = config
        .entrypoint
        .into_iter()
        .chain(config.command)
        .map(OsString::from)
        .collect();
    match command.is_empty() {
        false => Ok(Some(command)),
        true => Err(
            Failure::new(format!("{what} `{}` says of no command how it is started", image.name))
                .with_hint(format!("write `offleash run {flag} NAME -- COMMAND`")),
        ),
    }
}

fn load(arguments: &ImageLoadArgs, state: Option<&Path>) -> Result<ExitCode, Failure> {
    let name = arguments
        .name
        .as_ref()
        .map(|name| name.parse::<ImageReference>().map_err(ImageError::from));
    let order = LoadOrder {
        name: name.transpose()?,
        stem: stem_of(&arguments.file),
        ownership: usual_ownership(),
    };
    let cannot_read = |error: io::Error| {
        Failure::new(format!("cannot read `{}`: {error}", arguments.file.display()))
            .with_hint("name an archive, a directory with a layout of OCI, or `-` for standard input")
    };
    let source = match arguments.file.as_os_str() == "-" {
        true => LoadSource::Archive(Box::new(terminal::input().map_err(cannot_read)?)),
        false if arguments.file.is_dir() => LoadSource::Directory(arguments.file.clone()),
        false => LoadSource::Archive(Box::new(std::fs::File::open(&arguments.file).map_err(cannot_read)?)),
    };
    let store = open(state)?;
    let progress = ShownProgress::new(arguments.quiet, &arguments.file.to_string_lossy());
    let loaded = store.load(source, &order, &CallerIds, &progress);
    progress.finish();
    for record in loaded? {
        if !arguments.quiet {
            tell_left_out(&store, &record.digest, order.ownership)?;
        }
        terminal::print(format!("{} {}\n", record.shown_name(), record.digest).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn tag(arguments: &ImageTagArgs, state: Option<&Path>) -> Result<ExitCode, Failure> {
    let name = arguments.name.parse::<ImageReference>().map_err(ImageError::from)?;
    let missing = || ImageError::Missing {
        name: arguments.source.clone(),
    };
    let store = open_existing(state)?.ok_or_else(missing)?;
    let record = store.tag(&arguments.source, &name)?;
    terminal::print(format!("{} {}\n", record.shown_name(), record.digest).as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn save(arguments: &ImageSaveArgs, state: Option<&Path>) -> Result<ExitCode, Failure> {
    let missing = || ImageError::Missing {
        name: arguments.names.first().cloned().unwrap_or_default(),
    };
    let store = open_existing(state)?.ok_or_else(missing)?;
    match &arguments.output {
        Some(path) => save_to(&store, &arguments.names, path)?,
        None => {
            if terminal::shows_to_a_person() {
                return Err(Failure::new("an archive is nothing for a terminal")
                    .with_hint("name a file with `-o FILE`, or write it into a pipe"));
            }
            let stdout = terminal::output().map_err(ImageError::writing_archive)?;
            let stdout = std::fs::File::from(stdout);
            let mut out = BufWriter::with_capacity(1 << 20, stdout);
            store.save(&arguments.names, &mut out)?;
            out.flush().map_err(ImageError::writing_archive)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn save_to(store: &ImageStore, names: &[String], path: &Path) -> Result<(), Failure> {
    let cannot_write = |error: io::Error| {
        Failure::new(format!("cannot write `{}`: {error}", path.display()))
            .with_hint("name a file that does not exist, in a directory that you may write to")
    };
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let mut out = BufWriter::with_capacity(1 << 20, made.map_err(cannot_write)?);
    let saved = store.save(names, &mut out).map_err(Failure::from).and_then(|_| {
        out.flush()
            .and_then(|()| out.get_ref().sync_all())
            .map_err(cannot_write)
    });
    if saved.is_err() {
        // Half of one is none.
        let _removed = std::fs::remove_file(path);
    }
    saved
}

/// Says what an image does not have here that it has elsewhere.
fn tell_left_out(store: &ImageStore, digest: &ImageDigest, ownership: LayerOwnership) -> Result<(), Failure> {
    let listing = store.inspect(&digest.to_string())?;
    let report = listing.unpacked.iter().find(|(form, _)| *form == ownership);
    if let Some((_, report)) = report {
        for line in left_out(report) {
            terminal::complain(&format!("  {line}"));
        }
    }
    Ok(())
}

fn left_out(report: &LayerReport) -> Vec<String> {
    let counted = [
        (report.devices, "left out: device nodes"),
        (report.other_kinds, "left out: entries that are no files"),
        (
            report.setuid,
            "without setuid and setgid, which have no effect in a sandbox: files",
        ),
        (
            report.capabilities,
            "without capabilities, which have no effect in a sandbox: files",
        ),
        (report.attributes, "left out: extended attributes"),
        (
            report.flattened,
            "belong to the one user of the sandbox, and not to who the image says: files",
        ),
        (
            report.foreign_ids,
            "belong to `nobody`, since no sandbox has their ids: files",
        ),
    ];
    let lines = counted.into_iter().filter(|(count, _)| *count > 0);
    lines.map(|(count, what)| format!("{what} ({count})")).collect()
}

fn short(digest: &ImageDigest) -> String {
    digest.hex().chars().take(SHORT_DIGEST).collect()
}

fn ls(arguments: &ImageLsArgs, state: Option<&Path>) -> Result<ExitCode, Failure> {
    let listed = match open_existing(state)? {
        Some(store) => store.list()?,
        None => Vec::new(),
    };
    if arguments.json {
        let shown: Vec<Document<'_>> = listed.iter().map(Document::of).collect();
        terminal::print(&terminal::json_line(&shown)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&["NAME", "DIGEST", "SIZE", "ADDED", "STATE"]);
    for image in &listed {
        let record = &image.record;
        table.row([
            record
                .name
                .as_ref()
                .map_or_else(|| "-".to_owned(), ImageReference::familiar),
            short(&record.digest),
            Bytes(rounded(record.bytes)).to_string(),
            record.added_at.clone(),
            if image.in_use { "used" } else { "ready" }.to_owned(),
        ]);
    }
    table.print()
}

/// An image as documents show it.
#[derive(Serialize)]
struct Document<'a> {
    name: Option<String>,
    digest: &'a ImageDigest,
    index: Option<&'a ImageDigest>,
    id: &'a ImageDigest,
    bytes: u64,
    added_at: &'a str,
    created: Option<&'a str>,
    in_use: bool,
    layers: &'a [ImageDigest],
    entrypoint: &'a [String],
    command: &'a [String],
    env: Vec<String>,
    working_directory: &'a str,
    user: &'a str,
    labels: &'a std::collections::BTreeMap<String, String>,
    unpacked: Vec<UnpackedDocument<'a>>,
}

/// A form in which an image is unpacked.
#[derive(Serialize)]
struct UnpackedDocument<'a> {
    ownership: LayerOwnership,
    #[serde(flatten)]
    report: &'a LayerReport,
}

impl<'a> Document<'a> {
    fn of(listing: &'a ImageListing) -> Self {
        let ImageListing {
            record,
            in_use,
            config,
            layers,
            unpacked,
        } = listing;
        let unpacked = unpacked.iter().map(|(ownership, report)| UnpackedDocument {
            ownership: *ownership,
            report,
        });
        Self {
            name: record.name.as_ref().map(ToString::to_string),
            digest: &record.digest,
            index: record.index.as_ref(),
            id: &record.config,
            bytes: record.bytes,
            added_at: &record.added_at,
            created: config.created.as_deref(),
            in_use: *in_use,
            layers,
            entrypoint: &config.entrypoint,
            command: &config.command,
            env: config
                .env
                .iter()
                .map(|(name, value)| format!("{name}={value}"))
                .collect(),
            working_directory: &config.working_directory,
            user: &config.user,
            labels: &config.labels,
            unpacked: unpacked.collect(),
        }
    }
}

fn inspect(arguments: &ImageInspectArgs, state: Option<&Path>) -> Result<ExitCode, Failure> {
    let store = open_existing(state)?;
    let found = arguments.names.iter().map(|name| match &store {
        Some(store) => store.inspect(name),
        None => Err(ImageError::Missing { name: name.clone() }),
    });
    let found = found.collect::<Result<Vec<ImageListing>, _>>()?;
    let shown: Vec<Document<'_>> = found.iter().map(Document::of).collect();
    let document = terminal::json_document(&shown).map_err(|error| Failure::from_error(&error))?;
    terminal::print(&document)?;
    Ok(ExitCode::SUCCESS)
}

fn rm(arguments: &ImageRmArgs, state: Option<&Path>) -> Result<ExitCode, Failure> {
    let store = open_existing(state)?;
    for name in &arguments.names {
        let removed = match &store {
            Some(store) => store
                .remove(name, &CallerIds)
                .map_err(|error| in_use(error, name, store, state))?,
            None => return Err(ImageError::Missing { name: name.clone() }.into()),
        };
        terminal::print(format!("{}\n", removed.name).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Names the sandboxes of a daemon that keep an image.
fn in_use(error: ImageError, name: &str, store: &ImageStore, state: Option<&Path>) -> Failure {
    let is_in_use = matches!(error, ImageError::InUse { .. });
    let failure = Failure::from(error);
    let (Ok(Some(state)), Ok(record), true) = (open_existing_state(state), store.find(name), is_in_use) else {
        return failure;
    };
    let digest = record.digest.to_string();
    let of_image = |sandbox: &serde_json::Value| sandbox["image_digest"] == *digest;
    let holders = holders::sandboxes(state.path(), of_image);
    holders::named(failure, "used by sandboxes", &holders)
}

fn prune(arguments: &ImagePruneArgs, state: Option<&Path>) -> Result<ExitCode, Failure> {
    let Some(store) = open_existing(state)? else {
        return Ok(ExitCode::SUCCESS);
    };
    let report = store.prune(arguments.all, &CallerIds)?;
    for name in &report.names {
        terminal::print(format!("{name}\n").as_bytes())?;
    }
    tell_removed(&report);
    Ok(ExitCode::SUCCESS)
}

/// Says what was removed, if anything.
pub(crate) fn tell_removed(report: &PruneReport) {
    if report.blobs + report.layers > 0 {
        let bytes = Bytes(rounded(report.bytes));
        let (blobs, layers) = (report.blobs, report.layers);
        terminal::complain(&format!(
            "removed: {blobs} files of {bytes}, unpacked layers ({layers})"
        ));
    }
}
