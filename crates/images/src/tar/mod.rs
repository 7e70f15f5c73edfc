//! Reads tar archives that somebody hostile may have written: ustar, GNU and pax, and nothing of them is believed.
//!
//! One pass, in memory that is bounded: a header, its extended headers, and the map of a sparse file. Deliberately not
//! here: what a name means, and anything of the file system.

pub(crate) mod header;
mod pax;
mod sparse;
mod write;

use std::io::{self, Read};

use self::header::{BLOCK, Block};
use self::pax::Records;
pub(crate) use self::sparse::SparseMap;
pub(crate) use self::write::{NewEntry, TarWriter};
use crate::unpack::{LayerError, LayerRefusal};

/// The largest extended header, and the longest of GNU's names.
const MAX_EXTENDED_HEADER: u64 = 1 << 20;
/// How many of those may stand before one entry.
const MAX_HEADERS_OF_AN_ENTRY: usize = 16;

/// What an entry makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EntryKind {
    File,
    HardLink,
    Symlink,
    Directory,
    Fifo,
    Device,
    /// A volume's label and the like, of which nothing is made.
    Other,
}

/// The header of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TarEntry {
    pub(crate) path: Vec<u8>,
    /// The target of a link.
    pub(crate) link: Vec<u8>,
    pub(crate) kind: EntryKind,
    pub(crate) mode: u32,
    pub(crate) uid: u64,
    pub(crate) gid: u64,
    /// How many bytes of contents the archive holds.
    pub(crate) stored: u64,
    /// Seconds since 1970, and nanoseconds.
    pub(crate) modified: (i64, u32),
    pub(crate) attributes: Vec<(Vec<u8>, Vec<u8>)>,
    pub(crate) sparse: Option<SparseMap>,
}

/// An archive that is read from its beginning to its end.
#[derive(Debug)]
pub(crate) struct Archive<R> {
    source: R,
    /// What is left of the present entry's contents, and of the padding behind them.
    contents: u64,
    padding: u64,
    /// What global extended headers said.
    global: Records,
    /// Whether a block of zeros said that it ends.
    has_end: bool,
}

impl<R: Read> Archive<R> {
    pub(crate) fn new(source: R) -> Self {
        Self {
            source,
            contents: 0,
            padding: 0,
            global: Records::default(),
            has_end: false,
        }
    }

    /// Whether the archive has said itself that it ends: one that was cut between two entries has not.
    pub(crate) fn has_end(&self) -> bool {
        self.has_end
    }

    /// The next entry, whose contents are then [`Self::read_contents`]; `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<TarEntry>, LayerError> {
        let mut records = Records::default();
        let (mut long_name, mut long_link) = (None, None);
        for _ in 0..MAX_HEADERS_OF_AN_ENTRY {
            self.skip_rest().map_err(LayerError::of_archive)?;
            let Some(block) = self.header().map_err(LayerError::of_archive)? else {
                return Ok(None);
            };
            let name = block.name();
            let refused = |refusal: LayerRefusal| refusal.at(&name);
            match block.kind_flag() {
                b'x' => {
                    let text = self.extended(&block).map_err(refused)?;
                    records.add(&text).map_err(refused)?;
                }
                b'g' => {
                    let text = self.extended(&block).map_err(refused)?;
                    self.global.add(&text).map_err(refused)?;
                }
                b'L' => long_name = Some(until_nul(self.extended(&block).map_err(refused)?)),
                b'K' => long_link = Some(until_nul(self.extended(&block).map_err(refused)?)),
                _ => {
                    let all = self.global.below(&records);
                    let path = all.path().or(long_name).unwrap_or_else(|| name.clone());
                    let link = all.link().or(long_link);
                    return self
                        .entry(&block, &all, path.clone(), link)
                        .map(Some)
                        .map_err(|refusal| refusal.at(&path));
                }
            }
        }
        Err(LayerRefusal::BadExtendedHeader.whole())
    }

    /// Reads of the present entry's contents; nothing is left at 0.
    pub(crate) fn read_contents(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.contents).unwrap_or(usize::MAX).min(buffer.len());
        if most == 0 {
            return Ok(0);
        }
        let read = self.source.read(&mut buffer[..most])?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.contents -= read as u64;
        Ok(read)
    }

    /// Reads whatever stands behind the end of the archive, so that all of the source has been read.
    pub(crate) fn finish(mut self) -> io::Result<R> {
        let mut buffer = vec![0; 32 << 10];
        while self.source.read(&mut buffer)? > 0 {}
        Ok(self.source)
    }

    fn skip_rest(&mut self) -> io::Result<()> {
        let mut buffer = [0; 8 << 10];
        while self.read_contents(&mut buffer)? > 0 {}
        let padding = usize::try_from(std::mem::take(&mut self.padding)).unwrap_or(0);
        self.source.read_exact(&mut buffer[..padding])
    }

    /// The next header; `None` where the archive ends, with or without the block of zeros that says so.
    fn header(&mut self) -> io::Result<Option<Block>> {
        let mut bytes = [0; BLOCK];
        let mut filled = 0;
        while filled < BLOCK {
            match self.source.read(&mut bytes[filled..])? {
                0 if filled == 0 => return Ok(None),
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => filled += read,
            }
        }
        if bytes.iter().all(|byte| *byte == 0) {
            self.has_end = true;
            return Ok(None);
        }
        Block::checked(bytes).map(Some).map_err(io::Error::other)
    }

    fn take_up(&mut self, size: u64) {
        self.contents = size;
        self.padding = size.wrapping_neg() % BLOCK as u64;
    }

    fn extended(&mut self, block: &Block) -> Result<Vec<u8>, LayerRefusal> {
        let size = block.size()?;
        if size > MAX_EXTENDED_HEADER {
            return Err(LayerRefusal::BadExtendedHeader);
        }
        self.take_up(size);
        let mut text = vec![0; usize::try_from(size).map_err(|_| LayerRefusal::BadExtendedHeader)?];
        self.source.read_exact(&mut text).map_err(LayerRefusal::of_reading)?;
        self.contents = 0;
        Ok(text)
    }

    fn entry(
        &mut self,
        block: &Block,
        records: &Records,
        path: Vec<u8>,
        link: Option<Vec<u8>>,
    ) -> Result<TarEntry, LayerRefusal> {
        let flag = block.kind_flag();
        let kind = match flag {
            0 if path.ends_with(b"/") => EntryKind::Directory,
            0 | b'0' | b'7' | b'S' => EntryKind::File,
            b'1' => EntryKind::HardLink,
            b'2' => EntryKind::Symlink,
            b'3' | b'4' => EntryKind::Device,
            b'5' => EntryKind::Directory,
            b'6' => EntryKind::Fifo,
            _ => EntryKind::Other,
        };
        let size = match records.size()? {
            Some(size) => size,
            None => block.size()?,
        };
        // Others have no contents, whatever their size says.
        let size = if matches!(kind, EntryKind::File | EntryKind::Other) {
            size
        } else {
            0
        };
        self.take_up(size);
        let sparse = match (flag, kind) {
            (b'S', _) => Some(self.old_sparse_map(block)?),
            (_, EntryKind::File) => self.pax_sparse_map(records)?,
            _ => None,
        };
        if let Some(map) = &sparse {
            map.check(self.contents)?;
        }
        Ok(TarEntry {
            path: records.sparse_name().unwrap_or(path),
            link: link.unwrap_or_else(|| block.link()),
            kind,
            mode: block.mode()?,
            uid: records.uid()?.map_or_else(|| block.uid(), Ok)?,
            gid: records.gid()?.map_or_else(|| block.gid(), Ok)?,
            stored: self.contents,
            modified: records.modified().map_or_else(|| block.modified(), Ok)?,
            attributes: records.attributes(),
            sparse,
        })
    }

    /// The map in a header of GNU's own kind, which goes on in blocks behind it.
    fn old_sparse_map(&mut self, block: &Block) -> Result<SparseMap, LayerRefusal> {
        let (mut map, mut goes_on) = SparseMap::of_header(block)?;
        while goes_on {
            let mut bytes = [0; BLOCK];
            self.source.read_exact(&mut bytes).map_err(LayerRefusal::of_reading)?;
            goes_on = map.extend(&bytes)?;
        }
        Ok(map)
    }

    /// The map in extended headers, or at the beginning of the contents (GNU tar manual, "Storing Sparse Files").
    fn pax_sparse_map(&mut self, records: &Records) -> Result<Option<SparseMap>, LayerRefusal> {
        if !records.has_map_in_contents() {
            return records.sparse_map();
        }
        let mut numbers = sparse::Numbers::default();
        while numbers.wants_more() {
            let mut bytes = [0; BLOCK];
            if self.contents < BLOCK as u64 {
                return Err(LayerRefusal::BadSparseMap);
            }
            self.source.read_exact(&mut bytes).map_err(LayerRefusal::of_reading)?;
            self.contents -= BLOCK as u64;
            numbers.read(&bytes)?;
        }
        numbers.into_map(records.real_size()?).map(Some)
    }
}

impl LayerError {
    fn of_archive(error: io::Error) -> Self {
        LayerRefusal::of_reading(error).whole()
    }
}

fn until_nul(mut text: Vec<u8>) -> Vec<u8> {
    let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
    text.truncate(end);
    text
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
