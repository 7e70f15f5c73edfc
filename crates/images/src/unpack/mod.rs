//! Unpacks a layer into a directory of its own, as overlayfs wants it.
//!
//! Whiteouts become character devices 0/0, which anybody may make, and opaque directories get `user.overlay.opaque`:
//! overlays of sandboxes are mounted with `userxattr`. Every name is resolved below the layer's directory without
//! following a link (`openat2`), and all counts and sizes are bounded. Deliberately not here: which layers there are.

mod attributes;
pub(crate) mod beneath;
mod decompress;
pub(crate) mod entry_path;
mod error;
pub(crate) mod lower;
mod writer;

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustix::fs::{Mode, OFlags};

use self::beneath::Beneath;
pub(crate) use self::decompress::decompressed;
use self::entry_path::EntryPath;

pub(crate) use self::error::kind_of;
pub use self::error::{LayerError, LayerRefusal};
use self::lower::LowerLayers;
use self::writer::LayerWriter;
use crate::digest::{DigestHasher, ImageDigest};
use crate::tar::Archive;

/// To whom the files of an unpacked layer belong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LayerOwnership {
    /// To who unpacks it: for sandboxes with one id.
    Flat,
    /// To the ids that the image says: for sandboxes with a range of ids.
    Owned,
}

impl LayerOwnership {
    /// The name of its directory.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Flat => "flat",
            Self::Owned => "owned",
        }
    }
}

/// What a layer may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnpackLimits {
    /// Entries of the archive.
    pub entries: u64,
    /// Bytes of the names of all entries and of the targets of links.
    pub name_bytes: u64,
    /// Bytes of the archive when it is decompressed.
    pub bytes: u64,
    /// How many times larger than what was sent it may be …
    pub ratio: u64,
    /// … once it is larger than this.
    pub bytes_of_any_ratio: u64,
}

impl Default for UnpackLimits {
    fn default() -> Self {
        Self {
            entries: 1_000_000,
            name_bytes: 512 << 20,
            bytes: 64 << 30,
            ratio: 100,
            bytes_of_any_ratio: 256 << 20,
        }
    }
}

/// What was left out of a layer, or changed, and how often.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct LayerReport {
    /// Files, directories, links, and whiteouts that were made.
    pub entries: u64,
    /// Bytes of the contents of files.
    pub bytes: u64,
    /// Device nodes that were left out.
    pub devices: u64,
    /// Entries of kinds that are no files.
    pub other_kinds: u64,
    /// Files that lost the bits that give a program another user or group.
    pub setuid: u64,
    /// Files that lost the capabilities that they give a program.
    pub capabilities: u64,
    /// Other extended attributes that were left out.
    pub attributes: u64,
    /// Files that belong to who unpacked them and not to the id that the image says.
    pub flattened: u64,
    /// Files of an id that no sandbox has, which belong to `nobody`.
    pub foreign_ids: u64,
}

impl LayerReport {
    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            entries: self.entries + other.entries,
            bytes: self.bytes + other.bytes,
            devices: self.devices + other.devices,
            other_kinds: self.other_kinds + other.other_kinds,
            setuid: self.setuid + other.setuid,
            capabilities: self.capabilities + other.capabilities,
            attributes: self.attributes + other.attributes,
            flattened: self.flattened + other.flattened,
            foreign_ids: self.foreign_ids + other.foreign_ids,
        }
    }
}

/// A layer that is to be unpacked.
#[derive(Debug, Clone)]
pub(crate) struct UnpackOrder {
    /// The archive, compressed or not.
    pub(crate) archive: PathBuf,
    /// The digest of the archive without compression.
    pub(crate) diff_id: ImageDigest,
    /// An empty directory.
    pub(crate) target: PathBuf,
    /// The directories that it is to lie over, the topmost first.
    pub(crate) lowers: Vec<PathBuf>,
    pub(crate) ownership: LayerOwnership,
    pub(crate) limits: UnpackLimits,
}

/// Unpacks a layer; what it made when it fails is for the caller to remove.
pub(crate) fn unpack(order: &UnpackOrder) -> Result<LayerReport, LayerError> {
    match unpack_any(order)? {
        (report, digest) if digest == order.diff_id => Ok(report),
        _ => Err(LayerRefusal::OtherContents.whole()),
    }
}

/// As [`unpack`], whatever the digest is; answers that.
fn unpack_any(order: &UnpackOrder) -> Result<(LayerReport, ImageDigest), LayerError> {
    let opened = |path: &Path, flags| {
        rustix::fs::open(path, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
            .map_err(|error| LayerRefusal::kernel("opening the layer", error).whole())
    };
    let file = File::from(opened(&order.archive, OFlags::RDONLY)?);
    let sent = file
        .metadata()
        .map_err(|error| LayerRefusal::kernel("examining the layer", error).whole())?
        .len();
    unpack_from(file, SentBytes::Known(sent), order)
}

/// As [`unpack_any`], of what `from` gives; the order's archive is not looked at.
fn unpack_from<R: Read + 'static>(
    from: R,
    sent: SentBytes,
    order: &UnpackOrder,
) -> Result<(LayerReport, ImageDigest), LayerError> {
    let opened = |path: &Path| {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::open(path, flags, Mode::empty())
            .map_err(|error| LayerRefusal::kernel("opening the layer", error).whole())
    };
    let mut lowers = Vec::with_capacity(order.lowers.len());
    for lower in &order.lowers {
        lowers.push(Beneath::new(opened(lower)?));
    }
    let target = Beneath::new(opened(&order.target)?);
    let is_stream = matches!(sent, SentBytes::Counted(_));
    let source = decompressed(from).map_err(|error| LayerRefusal::of_reading(error).whole())?;
    let mut archive = Archive::new(Bounded {
        source,
        hasher: DigestHasher::default(),
        read: 0,
        limits: order.limits,
        sent,
    });
    let mut writer = LayerWriter::new(target, LowerLayers::new(lowers), order.ownership);
    let (mut entries, mut name_bytes) = (0, 0);
    while let Some(entry) = archive.next()? {
        entries += 1;
        name_bytes += (entry.path.len() + entry.link.len()) as u64;
        if entries > order.limits.entries {
            let limit = order.limits.entries;
            return Err(LayerRefusal::TooManyEntries { limit }.whole());
        }
        if name_bytes > order.limits.name_bytes {
            let limit = order.limits.name_bytes;
            return Err(LayerRefusal::TooManyNames { limit }.whole());
        }
        let added = writer.add(&entry, &mut archive);
        added.map_err(|refusal| refusal.at(&entry.path))?;
    }
    // One that was cut between two entries; those of images come with a digest.
    if is_stream && !archive.has_end() {
        return Err(LayerRefusal::Truncated.whole());
    }
    let read = archive
        .finish()
        .map_err(|error| LayerRefusal::of_reading(error).whole())?;
    let digest = read.hasher.finish();
    Ok((writer.finish()?, digest))
}

/// The digest of an archive without compression.
pub(crate) fn diff_id_of(archive: &Path, limits: UnpackLimits) -> Result<ImageDigest, LayerError> {
    let failed = |error| LayerRefusal::of_reading(error).whole();
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(archive, flags, Mode::empty());
    let file = File::from(file.map_err(|error| LayerRefusal::kernel("opening the layer", error).whole())?);
    let sent = file.metadata().map_err(failed)?.len();
    let mut source = Bounded {
        source: decompressed(file).map_err(failed)?,
        hasher: DigestHasher::default(),
        read: 0,
        limits,
        sent: SentBytes::Known(sent),
    };
    let mut buffer = vec![0; 128 << 10];
    while source.read(&mut buffer).map_err(failed)? > 0 {}
    Ok(source.hasher.finish())
}

/// Unpacks an archive for which nobody vouches into the empty directory `target`, within `limits`; `none` is another one. What
/// it made when it fails is for the caller to remove.
///
/// # Errors
/// [`LayerRefusal`] says what is refused, and what the kernel refuses.
pub fn unpack_archive(
    archive: &Path,
    target: &Path,
    none: &Path,
    ownership: LayerOwnership,
    limits: UnpackLimits,
) -> Result<LayerReport, LayerError> {
    let unpacked = unpack_any(&UnpackOrder {
        archive: archive.to_owned(),
        // Nobody says which.
        diff_id: DigestHasher::default().finish(),
        target: target.to_owned(),
        // Over nothing whiteouts would mean nothing.
        lowers: vec![none.to_owned()],
        ownership,
        limits,
    });
    unpacked.map(|(report, _)| report)
}

/// As [`unpack_archive`], of an archive that comes as `from` gives it, and is read once.
///
/// # Errors
/// As [`unpack_archive`]; `Truncated` also for an archive that does not say that it ends.
pub fn unpack_stream(
    from: impl Read + 'static,
    target: &Path,
    none: &Path,
    ownership: LayerOwnership,
    limits: UnpackLimits,
) -> Result<LayerReport, LayerError> {
    let sent = Rc::new(Cell::new(0));
    let from = CountedRead {
        from,
        sent: Rc::clone(&sent),
    };
    let order = UnpackOrder {
        archive: PathBuf::new(),
        diff_id: DigestHasher::default().finish(),
        target: target.to_owned(),
        lowers: vec![none.to_owned()],
        ownership,
        limits,
    };
    unpack_from(from, SentBytes::Counted(sent), &order).map(|(report, _)| report)
}

/// What layers, the topmost first, have at `path`, if that is a file; no link is followed.
pub(crate) fn read_stacked(layers: &[PathBuf], path: &str, limit: u64) -> io::Result<Option<Vec<u8>>> {
    let mut opened = Vec::with_capacity(layers.len());
    for layer in layers {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        opened.push(Beneath::new(rustix::fs::open(layer, flags, Mode::empty())?));
    }
    let path = EntryPath::of(path.as_bytes()).map_err(io::Error::other)?;
    let found = LowerLayers::new(opened).find(&path)?;
    let Some(found) = found.filter(|found| found.kind() == rustix::fs::FileType::RegularFile) else {
        return Ok(None);
    };
    let mut bytes = Vec::new();
    found.file()?.take(limit + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > limit {
        true => Err(io::ErrorKind::FileTooLarge.into()),
        false => Ok(Some(bytes)),
    }
}

/// A decompressed archive that ends with an error where it is larger than it may be.
struct Bounded<R> {
    source: R,
    hasher: DigestHasher,
    read: u64,
    limits: UnpackLimits,
    sent: SentBytes,
}

/// How much was sent of an archive.
enum SentBytes {
    /// All of it, which is so long.
    Known(u64),
    /// What has come so far.
    Counted(Rc<Cell<u64>>),
}

impl SentBytes {
    fn so_far(&self) -> u64 {
        match self {
            Self::Known(sent) => *sent,
            Self::Counted(sent) => sent.get(),
        }
    }
}

/// Counts what is read.
struct CountedRead<R> {
    from: R,
    sent: Rc<Cell<u64>>,
}

impl<R: Read> Read for CountedRead<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(buffer)?;
        self.sent.set(self.sent.get().saturating_add(read as u64));
        Ok(read)
    }
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.source.read(buffer)?;
        self.hasher.update(&buffer[..read]);
        self.read += read as u64;
        let UnpackLimits {
            bytes,
            ratio,
            bytes_of_any_ratio,
            ..
        } = self.limits;
        if self.read > bytes {
            return Err(io::Error::other(LayerRefusal::TooLarge { limit: bytes }));
        }
        if self.read > bytes_of_any_ratio.max(self.sent.so_far().saturating_mul(ratio)) {
            return Err(io::Error::other(LayerRefusal::Bomb { ratio }));
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests;
