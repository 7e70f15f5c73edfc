//! Snapshots as archives: packed for who fetches one, and taken in from who need not be trusted.
//!
//! An archive is a layer of OCI (tar, with whiteouts as names), and says of what it is in a file of it. It is read and written
//! as a stream, in a process of its own that is the superuser of the caller's ids. The daemon is its only caller, and says
//! whose a snapshot is. Deliberately not here: what a description means.

use std::fs::{self, DirBuilder, File};
use std::io::{self, BufWriter, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::Path;

use offleash_core::error::with_causes;
use offleash_core::id::RunId;
use offleash_core::text::Text;
use offleash_images::{LayerOwnership, PackedPart, UnpackLimits, pack_layer, unpack_stream};
use offleash_isolation::process;
use offleash_planner::base::part_places;
use offleash_protocol::Dialogue;
use offleash_store::{HeldSnapshot, SnapshotDirectories};
use serde::{Deserialize, Serialize};

/// What the template of a sandbox of an image begins with; the image's name follows.
pub const IMAGE_PREFIX: &str = "image:";
/// The word of the process that packs one.
pub const PACK_ROLE: &str = "pack-snapshot";
/// The word of the process that takes one in.
pub const UNPACK_ROLE: &str = "unpack-snapshot";
/// The file in an archive that says what it is.
const DESCRIPTION: &str = ".offleash-snapshot.json";
/// Longest description, of one that is packed and of one that is taken in.
pub const MAX_DESCRIPTION: usize = 256 << 10;
/// What overlayfs shows of a part of a layer.
const UPPER: &str = "upper";
const TAKEN: &str = "description";

/// A snapshot that is to be packed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackOrder {
    /// The state directory.
    pub state: Text,
    /// The snapshot.
    pub id: RunId,
    /// What the archive says of it.
    pub description: String,
}

/// A snapshot that is to be taken in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnpackOrder {
    /// The state directory.
    pub state: Text,
    /// The new snapshot, of which there is nothing.
    pub id: RunId,
    /// Most bytes of the archive, without compression.
    pub bytes: u64,
    /// Most files, directories and links.
    pub entries: u64,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ArchiveAnswer {
    /// All of it was written.
    Packed,
    /// All of it is in place.
    Taken {
        /// What it says of itself.
        description: String,
        /// Files, directories and links.
        files: u64,
        /// Bytes on disk.
        bytes: u64,
    },
    /// It is refused, or something failed.
    Failed {
        /// Why; it may name what is in the archive.
        reason: String,
    },
}

impl Dialogue for PackOrder {
    const MAX_FRAME: usize = 2 * MAX_DESCRIPTION + 64 * 1024;
}

impl Dialogue for UnpackOrder {
    const MAX_FRAME: usize = 64 * 1024;
}

impl Dialogue for ArchiveAnswer {
    const MAX_FRAME: usize = 2 * MAX_DESCRIPTION + 64 * 1024;
}

impl ArchiveAnswer {
    fn of(result: io::Result<Self>) -> Self {
        result.unwrap_or_else(|error| Self::Failed {
            reason: with_causes(&error),
        })
    }
}

/// Packs a snapshot into `out`, as it is read, and has `told` told what came of it. The calling process must have one thread.
///
/// # Errors
/// What `told` answers.
pub fn pack(order: &PackOrder, out: &File, told: impl Fn(&ArchiveAnswer) -> io::Result<()>) -> io::Result<()> {
    let work = || told(&ArchiveAnswer::of(packed(order, out)));
    if offleash_sys::process::is_root() {
        return work();
    }
    process::as_superuser_of_own(work).or_else(|error| told(&ArchiveAnswer::of(Err(io::Error::other(error)))))
}

fn packed(order: &PackOrder, out: &File) -> io::Result<ArchiveAnswer> {
    let held = held(&order.state, &order.id)?;
    let layer = held.layer();
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
    let mut out = BufWriter::with_capacity(256 << 10, out);
    pack_layer(&parts, (DESCRIPTION, order.description.as_bytes()), &mut out)?;
    out.flush()?;
    Ok(ArchiveAnswer::Packed)
}

fn held(state: &Text, id: &RunId) -> io::Result<HeldSnapshot> {
    let held = SnapshotDirectories::of(state.as_path()).and_then(|snapshots| snapshots.hold(id));
    let held = held.map_err(io::Error::other)?;
    held.ok_or_else(|| io::Error::other(format!("snapshot `{id}` is not there any more")))
}

/// Takes in a snapshot that comes from `from`, and has `told` told what came of it. What was made of one that is refused stays for
/// the caller to remove. The calling process must have one thread.
///
/// # Errors
/// What `told` answers.
pub fn unpack(order: &UnpackOrder, from: &File, told: impl Fn(&ArchiveAnswer) -> io::Result<()>) -> io::Result<()> {
    let work = |ownership| told(&ArchiveAnswer::of(taken(order, from, ownership)));
    if offleash_sys::process::is_root() {
        return work(LayerOwnership::Owned);
    }
    // What is told is no error: one means that there is no range of ids, and that nothing was read.
    process::as_superuser_of_range(|| work(LayerOwnership::Owned)).or_else(|_| work(LayerOwnership::Flat))
}

fn taken(order: &UnpackOrder, from: &File, ownership: LayerOwnership) -> io::Result<ArchiveAnswer> {
    let snapshots = SnapshotDirectories::of(order.state.as_path()).map_err(io::Error::other)?;
    let held = snapshots.make(&order.id).map_err(io::Error::other)?;
    let layer = held.layer();
    let limits = UnpackLimits {
        bytes: order.bytes.min(UnpackLimits::default().bytes),
        entries: order.entries.min(UnpackLimits::default().entries),
        ..UnpackLimits::default()
    };
    let description = take_in(&layer, from.try_clone()?, ownership, limits)?;
    held.write_out().map_err(io::Error::other)?;
    let (files, bytes) = measured(&layer)?;
    Ok(ArchiveAnswer::Taken {
        description,
        files,
        bytes,
    })
}

/// Unpacks an archive into an empty directory of a layer, and answers what it says of itself.
fn take_in(
    layer: &Path,
    from: impl io::Read + 'static,
    ownership: LayerOwnership,
    limits: UnpackLimits,
) -> io::Result<String> {
    let (none, root) = (layer.join("none"), layer.join("root"));
    let target = root.join(UPPER);
    for directory in [&none, &root, &target] {
        DirBuilder::new().mode(0o700).create(directory)?;
    }
    unpack_stream(from, &target, &none, ownership, limits).map_err(io::Error::other)?;
    settle(layer)
}

/// Puts what is unpacked where the parts of a root are, and takes out what says what it is.
fn settle(layer: &Path) -> io::Result<String> {
    let root = layer.join("root").join(UPPER);
    check_places(&root)?;
    fs::remove_dir(layer.join("none"))?;
    let description = description(layer, &root)?;
    // A root of an image has one part.
    let parts = part_places().into_iter().filter(|_| !is_of_image(&description));
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
    Ok(description)
}

fn is_of_image(description: &str) -> bool {
    #[derive(Deserialize)]
    struct Origin {
        template: String,
    }
    serde_json::from_str::<Origin>(description).is_ok_and(|origin| origin.template.starts_with(IMAGE_PREFIX))
}

/// Moves the description out of the root, where no link is in its place, and reads it.
fn description(layer: &Path, root: &Path) -> io::Result<String> {
    let (inside, outside) = (root.join(DESCRIPTION), layer.join(TAKEN));
    let invalid = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why);
    if !fs::symlink_metadata(&inside).is_ok_and(|found| found.is_file()) {
        return Err(invalid("it does not say what it is of"));
    }
    fs::rename(inside, &outside)?;
    let mut bytes = Vec::new();
    let most = MAX_DESCRIPTION as u64;
    File::open(&outside)?.take(most + 1).read_to_end(&mut bytes)?;
    fs::remove_file(outside)?;
    if bytes.len() > MAX_DESCRIPTION {
        return Err(invalid("what it says of itself is too long"));
    }
    String::from_utf8(bytes).map_err(|_| invalid("what it says of itself is no text"))
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

/// Files, and bytes on disk.
fn measured(layer: &Path) -> io::Result<(u64, u64)> {
    let (mut files, mut bytes, mut left) = (0, 0, vec![layer.to_owned()]);
    while let Some(directory) = left.pop() {
        for found in fs::read_dir(directory)? {
            let found = found?;
            let metadata = found.metadata()?;
            files += 1;
            bytes += metadata.blocks().saturating_mul(512);
            if metadata.is_dir() {
                left.push(found.path());
            }
        }
    }
    Ok((files, bytes))
}

#[cfg(test)]
#[path = "snapshot_archives_tests.rs"]
mod tests;
