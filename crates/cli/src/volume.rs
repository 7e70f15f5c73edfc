//! `offleash volume`: makes, lists, fills, empties and removes volumes.

use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use offleash_core::bucket::BucketSpec;
use offleash_core::spec::MountAccess;
use offleash_core::text::Text;
use offleash_core::units::Bytes;
use offleash_core::volume::{VolumeId, VolumeKey, VolumeQuota};
use offleash_store::{
    HeldVolume, LOCAL_OWNER, NewVolume, StateDirectory, TransferBudget, TransferReport, VolumeContent, VolumeError,
    VolumeListing, VolumePath, VolumeRecord, copy_in, copy_out,
};
use offleash_supervisor::lifecycle::{open_existing_state, open_state};
use offleash_supervisor::volumes::{self, VolumeUsage};
use serde::Serialize;

use crate::args::{
    VolumeCommand, VolumeCpArgs, VolumeCreateArgs, VolumeInspectArgs, VolumeLsArgs, VolumePruneArgs, VolumeResizeArgs,
    VolumeRmArgs,
};
use crate::failure::Failure;
use crate::remote::holders;
use crate::remote::table::Table;
use crate::{bucket, terminal};

/// How many files and directories are copied out of a volume at most.
const MAX_ENTRIES: u64 = 10_000_000;

pub(crate) fn volume(command: &VolumeCommand, state: Option<&Path>) -> Result<ExitCode, Failure> {
    match command {
        VolumeCommand::Create(arguments) => create(arguments, state),
        VolumeCommand::Ls(arguments) => ls(arguments, state),
        VolumeCommand::Inspect(arguments) => inspect(arguments, state),
        VolumeCommand::Rm(arguments) => rm(arguments, state),
        VolumeCommand::Cp(arguments) => cp(arguments, state),
        VolumeCommand::Resize(arguments) => resize(arguments, state),
        VolumeCommand::Prune(arguments) => prune(arguments, state),
        VolumeCommand::Sync(arguments) => bucket::sync(arguments, |name| hold(state, name)),
    }
}

fn create(arguments: &VolumeCreateArgs, state: Option<&Path>) -> Result<ExitCode, Failure> {
    let usual = VolumeQuota::default();
    let new = NewVolume {
        name: arguments.name.clone(),
        owner: LOCAL_OWNER.to_owned(),
        quota: VolumeQuota {
            bytes: arguments.size.unwrap_or(usual.bytes),
            inodes: arguments.inodes.unwrap_or(usual.inodes),
        },
        shared: arguments.shared,
        bucket: bucket::spec(arguments)?,
    };
    let made = volumes::create(&open_state(state)?, new)?;
    terminal::print(format!("{}\n", made.name).as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// A volume as lists show it.
#[derive(Serialize)]
struct ListedVolume<'a> {
    id: &'a VolumeId,
    name: &'a str,
    owner: &'a str,
    size: u64,
    inodes: u64,
    shared: bool,
    in_use: bool,
    created_at: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    bucket: Option<&'a BucketSpec>,
}

impl<'a> ListedVolume<'a> {
    fn of(record: &'a VolumeRecord, in_use: bool) -> Self {
        Self {
            id: &record.id,
            name: record.name.as_str(),
            owner: &record.owner,
            size: record.quota.bytes.0,
            inodes: record.quota.inodes,
            shared: record.shared,
            in_use,
            created_at: &record.created_at,
            bucket: record.bucket.as_ref(),
        }
    }
}

fn ls(arguments: &VolumeLsArgs, state: Option<&Path>) -> Result<ExitCode, Failure> {
    let listed = match open_existing_state(state)? {
        Some(state) => state.volumes()?.list(None)?,
        None => Vec::new(),
    };
    if arguments.json {
        let shown = listed
            .iter()
            .map(|listing| ListedVolume::of(&listing.record, listing.in_use));
        terminal::print(&terminal::json_line(&shown.collect::<Vec<_>>())?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&["ID", "NAME", "OWNER", "SIZE", "INODES", "WRITERS", "CREATED", "STATE"]);
    for VolumeListing { record, in_use } in &listed {
        table.row([
            record.id.to_string(),
            record.name.to_string(),
            record.owner.clone(),
            record.quota.bytes.to_string(),
            record.quota.inodes.to_string(),
            if record.shared { "many" } else { "one" }.to_owned(),
            record.created_at.clone(),
            if *in_use { "used" } else { "ready" }.to_owned(),
        ]);
    }
    table.print()
}

/// All that is known of a volume.
#[derive(Serialize)]
struct VolumeDocument<'a> {
    #[serde(flatten)]
    listed: ListedVolume<'a>,
    used_bytes: u64,
    used_inodes: u64,
    data: Text,
}

fn inspect(arguments: &VolumeInspectArgs, state: Option<&Path>) -> Result<ExitCode, Failure> {
    let mut held = Vec::new();
    for name in &arguments.names {
        let state = existing(state, name)?;
        let record = state.volumes()?.find(None, name)?;
        let listed = state.volumes()?.list(Some(&record.owner))?;
        let is_it = |listing: &&VolumeListing| listing.record.id == record.id;
        let in_use = listed.iter().find(is_it).is_some_and(|listing| listing.in_use);
        let volume = state.volumes()?.hold(&VolumeKey::Id(record.id), MountAccess::Ro)?;
        let usage = volumes::usage(&volume)?;
        held.push((volume, usage, in_use));
    }
    let document = |(volume, usage, in_use): &(HeldVolume, VolumeUsage, bool)| {
        terminal::json_document(&VolumeDocument {
            listed: ListedVolume::of(volume.record(), *in_use),
            used_bytes: usage.bytes,
            used_inodes: usage.inodes,
            data: Text::from(&volume.data()),
        })
        .map_err(|error| Failure::from_error(&error))
    };
    for found in &held {
        terminal::print(&document(found)?)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn rm(arguments: &VolumeRmArgs, state: Option<&Path>) -> Result<ExitCode, Failure> {
    for name in &arguments.names {
        match name.split_once(':') {
            Some((volume, path)) => {
                let path = VolumePath::parse(path.as_bytes())?;
                hold(state, volume)?.content()?.remove(&path)?;
            }
            None => {
                let state = existing(state, name)?;
                volumes::remove(&state, None, name).map_err(|error| in_use(error, name, &state))?;
            }
        }
        terminal::print(format!("{name}\n").as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Names the sandboxes of a daemon that have a volume.
fn in_use(error: VolumeError, name: &str, state: &StateDirectory) -> Failure {
    let is_in_use = matches!(error, VolumeError::InUse { .. });
    let failure = Failure::from(error);
    let found = state.volumes().map(|volumes| volumes.find(None, name));
    let (Ok(Ok(record)), true) = (found, is_in_use) else {
        return failure;
    };
    let has_it = |sandbox: &serde_json::Value| {
        let mut mounts = sandbox["volumes"].as_array().into_iter().flatten();
        mounts.any(|mount| mount["id"] == *record.id.as_str())
    };
    holders::named(failure, "used by sandboxes", &holders::sandboxes(state.path(), has_it))
}

fn resize(arguments: &VolumeResizeArgs, state: Option<&Path>) -> Result<ExitCode, Failure> {
    let store = existing(state, &arguments.name)?.volumes()?;
    let before = store.find(None, &arguments.name)?;
    let quota = VolumeQuota {
        bytes: arguments.size.unwrap_or(before.quota.bytes),
        inodes: arguments.inodes.unwrap_or(before.quota.inodes),
    };
    let record = store.resize(None, &arguments.name, quota)?;
    let (bytes, inodes) = (record.quota.bytes, record.quota.inodes);
    terminal::print(format!("{} {bytes} {inodes}\n", record.name).as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// Removes volumes of the owner of the machine; those of keys are theirs to remove.
fn prune(arguments: &VolumePruneArgs, state: Option<&Path>) -> Result<ExitCode, Failure> {
    let Some(state) = open_existing_state(state)? else {
        return Ok(ExitCode::SUCCESS);
    };
    for VolumeListing { record, .. } in state.volumes()?.list(Some(LOCAL_OWNER))? {
        let held = state
            .volumes()?
            .hold(&VolumeKey::Id(record.id.clone()), MountAccess::Ro)?;
        let is_empty = std::fs::read_dir(held.data()).is_ok_and(|mut entries| entries.next().is_none());
        drop(held);
        if !is_empty && !arguments.all {
            continue;
        }
        match volumes::remove(&state, Some(LOCAL_OWNER), record.id.as_str()) {
            // Somebody has it, or was faster.
            Err(VolumeError::InUse { .. } | VolumeError::Missing { .. }) => {}
            removed => {
                removed?;
                terminal::print(format!("{}\n", record.name).as_bytes())?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The state directory, in which there may be a volume of this name.
fn existing(state: Option<&Path>, name: &str) -> Result<StateDirectory, Failure> {
    let missing = || VolumeError::Missing { which: name.to_owned() };
    Ok(open_existing_state(state)?.ok_or_else(missing)?)
}

/// A volume that stays as long as it is worked on; whoever writes to it goes on.
fn hold(state: Option<&Path>, name: &str) -> Result<HeldVolume, Failure> {
    let store = existing(state, name)?.volumes()?;
    let record = store.find(None, name)?;
    Ok(store.hold(&VolumeKey::Id(record.id), MountAccess::Ro)?)
}

/// One side of a copy.
enum CopySide<'a> {
    Volume(&'a str, VolumePath),
    Host(&'a Path),
}

impl<'a> CopySide<'a> {
    /// `NAME:/PATH` is in a volume; a path of the host with a colon in it is written with a slash before that.
    fn of(given: &'a Path) -> Result<Self, Failure> {
        let bytes = given.as_os_str().as_bytes();
        let Some(colon) = bytes.iter().position(|byte| *byte == b':') else {
            return Ok(Self::Host(given));
        };
        let (name, path) = (&bytes[..colon], &bytes[colon + 1..]);
        match std::str::from_utf8(name) {
            Ok(name) if !name.is_empty() && !name.contains('/') => Ok(Self::Volume(name, VolumePath::parse(path)?)),
            _ => Ok(Self::Host(given)),
        }
    }
}

fn cp(arguments: &VolumeCpArgs, state: Option<&Path>) -> Result<ExitCode, Failure> {
    let report = match (CopySide::of(&arguments.source)?, CopySide::of(&arguments.destination)?) {
        (CopySide::Host(from), CopySide::Volume(name, to)) => into_volume(from, &hold(state, name)?, to)?,
        (CopySide::Volume(name, from), CopySide::Host(to)) => {
            out_of_volume(&hold(state, name)?, &from, to, arguments.max_bytes)?
        }
        (CopySide::Volume(..), CopySide::Volume(..)) => {
            return Err(
                Failure::new("both sides are in volumes, and nothing is copied from one into another at once")
                    .with_hint("copy it to a directory here first, and from there into the other volume"),
            );
        }
        (CopySide::Host(_), CopySide::Host(_)) => {
            return Err(Failure::new("neither side is in a volume").with_hint(
                "write what is in a volume as NAME:/PATH, and a path here that has a colon in it as ./PATH",
            ));
        }
    };
    for (path, why) in &report.left_out {
        terminal::complain(&format!("left out: {} ({why})", Text::from(path)));
    }
    let named = u64::try_from(report.left_out.len()).unwrap_or(u64::MAX);
    if report.left_out_count > named {
        terminal::complain(&format!("left out: {} more", report.left_out_count - named));
    }
    Ok(ExitCode::SUCCESS)
}

fn into_volume(from: &Path, volume: &HeldVolume, to: VolumePath) -> Result<TransferReport, Failure> {
    let source = without_links(from)?;
    std::fs::symlink_metadata(&source).map_err(|error| {
        Failure::new(format!("cannot copy `{}`: {error}", Text::from(from))).with_hint("name a path that is there")
    })?;
    let content = volume.content()?;
    let target = match is_directory(&content, &to) {
        true => match source.file_name() {
            Some(name) => VolumePath::parse(to.as_path().join(name).as_os_str().as_bytes())?,
            None => to,
        },
        false => to,
    };
    let full = || volumes::full(volume.record());
    Ok(copy_in(&source, &content, &target, volumes::room(volume)?, full)?)
}

fn out_of_volume(
    volume: &HeldVolume,
    from: &VolumePath,
    to: &Path,
    max_bytes: Bytes,
) -> Result<TransferReport, Failure> {
    let content = volume.content()?;
    let name = volume.record().name.to_string();
    let target = match to.is_dir() {
        true => without_links(&to.join("."))?.join(from.as_path().file_name().unwrap_or(name.as_ref())),
        false => without_links(to)?,
    };
    let budget = TransferBudget {
        bytes: max_bytes.0,
        entries: MAX_ENTRIES,
    };
    let full = || VolumeError::TooLarge {
        path: from.shown(),
        what: "bytes to be copied (`--max-bytes`)",
        most: usize::try_from(max_bytes.0).unwrap_or(usize::MAX),
    };
    Ok(copy_out(&content, from, &target, budget, full)?)
}

fn is_directory(content: &VolumeContent, path: &VolumePath) -> bool {
    let entry = content.entry(path);
    entry.is_ok_and(|entry| entry.kind == offleash_store::NodeKind::Directory)
}

/// A path of the host, of which the last name may be a link and nothing above it is.
fn without_links(path: &Path) -> Result<PathBuf, Failure> {
    let failed = |error: io::Error| {
        Failure::new(format!("cannot use `{}`: {error}", Text::from(path))).with_hint("name a path that is there")
    };
    let path = std::path::absolute(path).map_err(failed)?;
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) if !path.ends_with(".") => {
            Ok(std::fs::canonicalize(parent).map_err(failed)?.join(name))
        }
        _ => std::fs::canonicalize(&path).map_err(failed),
    }
}
