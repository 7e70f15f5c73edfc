//! Snapshots in files: written, and taken in from who need not be trusted.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufWriter, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use offleash_api::client::Client;
use offleash_core::id::{RunId, SandboxName};
use offleash_core::text::Text;
use offleash_daemon::IMAGE_PREFIX;
use offleash_images::{LayerOwnership, PackedPart, UnpackLimits, pack_layer, unpack_archive};
use offleash_isolation::process::{as_superuser_of_own, as_superuser_of_range};
use offleash_planner::base::{part_places, remove_snapshot};
use offleash_store::{HeldSnapshot, HostIdentity, SnapshotDirectories, StateDirectory};
use serde_json::{Value, json};

use super::snapshots::path_of;
use super::{line, text};
use crate::args::{SnapshotExportArgs, SnapshotImportArgs};
use crate::failure::Failure;

/// The file in an archive that says what it is.
const ABOUT: &str = ".offleash-snapshot.json";
const MAX_ABOUT: u64 = 1 << 20;
const UPPER: &str = "upper";

fn state_path(state: Option<&Path>) -> Result<PathBuf, Failure> {
    let host = HostIdentity::of_this_process();
    let found = StateDirectory::open_existing(state, &host)?;
    Ok(found.map_or_else(|| host.default_state(), |state| state.path().to_owned()))
}

fn failed(tried: &str, path: &Path, error: impl std::fmt::Display) -> Failure {
    Failure::new(format!("cannot {tried} `{}`: {error}", Text::from(path)))
}

/// Writes a snapshot of the daemon's to a file.
pub(super) fn export(
    client: &Client,
    arguments: &SnapshotExportArgs,
    state: Option<&Path>,
) -> Result<ExitCode, Failure> {
    let about = client.get(&path_of(&arguments.id))?;
    let id: RunId = text(&about, "id")
        .parse()
        .map_err(|error| Failure::new(format!("{error}")))?;
    let snapshots = SnapshotDirectories::of(&state_path(state)?)?;
    let held = snapshots.hold(&id)?;
    let held = held.ok_or_else(|| Failure::new(format!("snapshot `{id}` is not in this state directory")))?;
    let description = serde_json::to_vec(&about).map_err(|error| Failure::from_error(&error))?;
    let path = &arguments.file;
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let file = made.map_err(|error| failed("write", path, error))?;
    let packed = pack(&held, &description, &file);
    if let Err(error) = packed {
        // Half of one is none.
        let _removed = fs::remove_file(path);
        return Err(failed("write the snapshot to", path, error));
    }
    Ok(ExitCode::SUCCESS)
}

/// Packs it as the superuser of the ids that its files have.
fn pack(held: &HeldSnapshot, description: &[u8], file: &File) -> io::Result<()> {
    let layer = held.layer();
    let work = || {
        let mut parts = Vec::new();
        for (name, place) in part_places() {
            let part = layer.join(name);
            let directory = part.join(UPPER);
            if !directory.is_dir() {
                continue;
            }
            let found = fs::symlink_metadata(&part)?;
            let place = place.strip_prefix("/").unwrap_or(&place);
            parts.push(PackedPart {
                place: place.as_os_str().as_encoded_bytes().to_vec(),
                directory,
                superuser: (found.uid(), found.gid()),
            });
        }
        let mut out = BufWriter::with_capacity(1 << 20, file);
        pack_layer(&parts, (ABOUT, description), &mut out)?;
        out.flush()?;
        file.sync_all()
    };
    match offleash_sys::process::is_root() {
        true => work(),
        false => as_superuser_of_own(work).map_err(io::Error::other),
    }
}

/// Makes a snapshot of the daemon's of a file.
pub(super) fn import(
    client: &Client,
    arguments: &SnapshotImportArgs,
    state: Option<&Path>,
) -> Result<ExitCode, Failure> {
    let state = state_path(state)?;
    let snapshots = SnapshotDirectories::of(&state)?;
    let id = new_id()?;
    let held = snapshots.make(&id)?;
    let taken = take_in(&held, &arguments.file).and_then(|about| {
        let (files, bytes) = measured(&held);
        let body = json!({
            "id": id.as_str(),
            // Never what the file says: it would take the name of one that is trusted.
            "name": arguments.name.as_ref().map(SandboxName::as_str),
            "template": about["template"],
            // Of a template it is another one here.
            "build": about["build"].as_str().filter(|_| is_of_image(&about)),
            "env": about["env"],
            "limits": about["limits"],
            "files": files,
            "bytes": bytes,
        });
        Ok(client.post("/v1/snapshots", &body)?)
    });
    drop(held);
    match taken {
        Ok(made) => line(text(&made, "id")),
        Err(failure) => {
            // The failure is what is told; what stays goes when the daemon is started again.
            let _removed = remove_snapshot(&state, &id);
            Err(failure)
        }
    }
}

fn is_of_image(about: &Value) -> bool {
    about["template"]
        .as_str()
        .is_some_and(|template| template.starts_with(IMAGE_PREFIX))
}

/// As the daemon names them.
fn new_id() -> Result<RunId, Failure> {
    let mut bytes = [0; 9];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| Failure::from_error(&error))?;
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("s{digits}0")
        .parse()
        .map_err(|error| Failure::from_error(&error))
}

/// Unpacks a file, and says what it says of itself.
fn take_in(held: &HeldSnapshot, file: &Path) -> Result<Value, Failure> {
    let layer = held.layer();
    let (none, root) = (layer.join("none"), layer.join("root"));
    for directory in [&none, &root, &root.join(UPPER)] {
        let made = DirBuilder::new().mode(0o700).create(directory);
        made.map_err(|error| failed("make", directory, error))?;
    }
    let target = root.join(UPPER);
    let owned = || {
        unpack_archive(file, &target, &none, LayerOwnership::Owned, UnpackLimits::default())
            .map_err(io::Error::other)
            .and_then(|_| settle(&layer))
    };
    let unpacked = match offleash_sys::process::is_root() {
        true => owned().map_err(|error| offleash_core::error::with_causes(&error)),
        // An archive that is refused is refused again by who has one id.
        false => as_superuser_of_range(owned)
            .or_else(|_| {
                let emptied = offleash_store::remove_directory(&target).map_err(io::Error::other);
                let made = emptied.and_then(|()| DirBuilder::new().mode(0o700).create(&target));
                made.and_then(|()| {
                    let limits = UnpackLimits::default();
                    unpack_archive(file, &target, &none, LayerOwnership::Flat, limits).map_err(io::Error::other)?;
                    settle(&layer)
                })
            })
            .map_err(|error| offleash_core::error::with_causes(&error)),
    };
    unpacked.map_err(|why| failed("import", file, why))?;
    let about = read_about(&layer).map_err(|error| failed("read what is said in", file, error))?;
    match about["template"].is_string() && about["env"].is_object() {
        true => Ok(about),
        false => Err(failed("import", file, "it does not say what it is of")),
    }
}

/// What a sandbox has of its own at the top of its root, or over which it mounts: a directory wherever there is anything.
const OWN_PLACES: [&str; 12] = [
    "dev",
    "dev/shm",
    "etc",
    "home",
    "proc",
    "sys",
    "tmp",
    "usr",
    "var",
    "var/lib",
    "var/lib/dpkg",
    "var/tmp",
];

/// Refuses what no sandbox can leave: links, files or whiteouts in the place of directories that it needs.
fn check_places(root: &Path) -> io::Result<()> {
    // Each directory comes before those in it, so that no link is followed.
    for place in OWN_PLACES {
        match fs::symlink_metadata(root.join(place)) {
            Ok(found) if found.is_dir() => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
            Ok(_) => {
                let why = format!("`/{place}` in it is no directory, and every sandbox needs one there");
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            }
        }
    }
    Ok(())
}

/// Puts what is unpacked where the parts of a root are, and takes out what says what it is.
fn settle(layer: &Path) -> io::Result<()> {
    let root = layer.join("root").join(UPPER);
    check_places(&root)?;
    fs::remove_dir(layer.join("none"))?;
    let about = root.join(ABOUT);
    if fs::symlink_metadata(&about).is_ok_and(|found| found.is_file()) {
        fs::rename(about, layer.join("about"))?;
    }
    // A root of an image has one part.
    let is_of_image = described(layer).is_ok_and(|about| is_of_image(&about));
    let parts = part_places().into_iter().filter(|_| !is_of_image);
    for (name, place) in parts.filter(|(_, place)| place != Path::new("/")) {
        let mut unpacked = root.clone();
        let mut is_there = true;
        // By names that are directories: a link leads nowhere.
        for step in place.iter().skip(1) {
            unpacked.push(step);
            is_there &= fs::symlink_metadata(&unpacked).is_ok_and(|found| found.is_dir());
        }
        if is_there {
            DirBuilder::new().mode(0o700).create(layer.join(&name))?;
            fs::rename(&unpacked, layer.join(&name).join(UPPER))?;
        }
    }
    Ok(())
}

fn read_about(layer: &Path) -> io::Result<Value> {
    let about = described(layer)?;
    fs::remove_file(layer.join("about"))?;
    Ok(about)
}

fn described(layer: &Path) -> io::Result<Value> {
    let mut bytes = Vec::new();
    File::open(layer.join("about"))?
        .take(MAX_ABOUT)
        .read_to_end(&mut bytes)?;
    Ok(serde_json::from_slice(&bytes)?)
}

/// Files, and bytes on disk.
fn measured(held: &HeldSnapshot) -> (u64, u64) {
    let (mut files, mut bytes, mut left) = (0, 0, vec![held.layer()]);
    while let Some(directory) = left.pop() {
        for found in fs::read_dir(directory).into_iter().flatten().flatten() {
            let Ok(metadata) = found.metadata() else { continue };
            files += 1;
            bytes += metadata.blocks().saturating_mul(512);
            if metadata.is_dir() {
                left.push(found.path());
            }
        }
    }
    (files, bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn what_every_sandbox_needs_is_a_directory_or_absent() {
        let made = |place: &str, make: &dyn Fn(&Path)| {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join(place);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            make(&path);
            check_places(directory.path())
        };
        let link = |path: &Path| symlink("/", path).unwrap();
        let file = |path: &Path| fs::write(path, "").unwrap();
        let directory = |path: &Path| fs::create_dir(path).unwrap();
        for place in ["usr", "etc", "dev", "proc", "tmp", "var/tmp", "dev/shm"] {
            made(place, &directory).unwrap();
            for wrong in [&link as &dyn Fn(&Path), &file] {
                let error = made(place, wrong).unwrap_err();
                assert!(error.to_string().contains(&format!("`/{place}`")), "{error}");
            }
        }
        made("bin", &link).unwrap();
        made("opt/usr", &link).unwrap();
    }
}
