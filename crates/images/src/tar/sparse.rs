//! Maps of sparse files: where the bytes that an archive holds belong.

use std::fs::File;
use std::io;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use super::header::{BLOCK, Block, size};
use crate::unpack::LayerRefusal;

/// How many pieces a sparse file may have.
const MAX_PIECES: usize = 1 << 16;
/// How large a file with holes may be.
const MAX_SPARSE_SIZE: u64 = 1 << 40;

/// Pieces of a file, in order, and its size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SparseMap {
    /// Offset and length.
    pub(crate) pieces: Vec<(u64, u64)>,
    pub(crate) size: u64,
}

impl SparseMap {
    /// What is in a file of that size between its holes; `None` for one without, which is written as it is.
    ///
    /// # Errors
    /// `FileTooLarge` for more than is read again.
    pub(crate) fn of_file(file: &File, size: u64) -> io::Result<Option<Self>> {
        let mut map = Self {
            pieces: Vec::new(),
            size,
        };
        let mut at = 0;
        while at < size {
            let start = match seek(file, SeekFrom::Data(at)) {
                Ok(start) => start,
                Err(Errno::NXIO) => break,
                // This file system knows no holes.
                Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(None),
                Err(error) => return Err(error.into()),
            };
            let end = seek(file, SeekFrom::Hole(start))?.min(size);
            if start >= end {
                break;
            }
            map.push(start, end - start)
                .map_err(|_| too_large("has too many holes"))?;
            at = end;
        }
        if map.pieces.as_slice() == [(0, size)] || size == 0 {
            return Ok(None);
        }
        match size > MAX_SPARSE_SIZE {
            true => Err(too_large("is too large with its holes")),
            false => Ok(Some(map)),
        }
    }

    /// As it stands before contents: how many pieces, then offset and length of each, in whole blocks.
    pub(super) fn written(&self) -> Vec<u8> {
        let mut text = format!("{}\n", self.pieces.len()).into_bytes();
        for (offset, length) in &self.pieces {
            text.extend_from_slice(format!("{offset}\n{length}\n").as_bytes());
        }
        text.resize(text.len().next_multiple_of(BLOCK), 0);
        text
    }

    /// The first pieces, of a header of GNU's own kind; whether more follow.
    pub(super) fn of_header(block: &Block) -> Result<(Self, bool), LayerRefusal> {
        let mut map = Self {
            pieces: Vec::new(),
            size: size(block.bytes(483..495))?,
        };
        map.add(block.bytes(386..482))?;
        Ok((map, block.bytes(482..483) != b"\0"))
    }

    /// The pieces of a block that follows; whether more do.
    pub(super) fn extend(&mut self, block: &[u8; BLOCK]) -> Result<bool, LayerRefusal> {
        self.add(&block[..504])?;
        Ok(block[504] != 0)
    }

    fn add(&mut self, fields: &[u8]) -> Result<(), LayerRefusal> {
        for piece in fields.chunks_exact(24) {
            if piece[12] == 0 {
                continue;
            }
            self.push(size(&piece[..12])?, size(&piece[12..])?)?;
        }
        Ok(())
    }

    /// Pairs of offset and length.
    pub(super) fn of_numbers(numbers: &[u64], size: u64) -> Result<Self, LayerRefusal> {
        let (pairs, rest) = numbers.as_chunks::<2>();
        if !rest.is_empty() {
            return Err(LayerRefusal::BadSparseMap);
        }
        let mut map = Self {
            pieces: Vec::new(),
            size,
        };
        for [offset, length] in pairs {
            map.push(*offset, *length)?;
        }
        Ok(map)
    }

    fn push(&mut self, offset: u64, length: u64) -> Result<(), LayerRefusal> {
        if self.pieces.len() >= MAX_PIECES {
            return Err(LayerRefusal::BadSparseMap);
        }
        self.pieces.push((offset, length));
        Ok(())
    }

    /// Whether it is in order and takes just the bytes that there are.
    pub(super) fn check(&self, stored: u64) -> Result<(), LayerRefusal> {
        let (mut end, mut sum) = (0_u64, 0_u64);
        for (offset, length) in &self.pieces {
            let is_behind = *offset >= end;
            end = offset.checked_add(*length).ok_or(LayerRefusal::BadSparseMap)?;
            sum = sum.checked_add(*length).ok_or(LayerRefusal::BadSparseMap)?;
            if !is_behind || end > self.size {
                return Err(LayerRefusal::BadSparseMap);
            }
        }
        if self.size > MAX_SPARSE_SIZE {
            return Err(LayerRefusal::TooLarge { limit: MAX_SPARSE_SIZE });
        }
        match sum == stored {
            true => Ok(()),
            false => Err(LayerRefusal::BadSparseMap),
        }
    }
}

fn too_large(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::FileTooLarge, format!("a file {why} for an archive"))
}

/// The map at the beginning of contents: how many pieces there are, and their numbers, each in a line.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    count: Option<u64>,
    numbers: Vec<u64>,
    digits: Vec<u8>,
}

impl Numbers {
    pub(super) fn wants_more(&self) -> bool {
        self.count
            .is_none_or(|count| (self.numbers.len() as u64) < count.saturating_mul(2))
    }

    pub(super) fn read(&mut self, block: &[u8]) -> Result<(), LayerRefusal> {
        for byte in block {
            match byte {
                _ if !self.wants_more() => break,
                b'\n' => {
                    let number = decimal(&std::mem::take(&mut self.digits))?;
                    match self.count {
                        None if number > MAX_PIECES as u64 => return Err(LayerRefusal::BadSparseMap),
                        None => self.count = Some(number),
                        Some(_) => self.numbers.push(number),
                    }
                }
                _ if self.digits.len() >= 20 => return Err(LayerRefusal::BadSparseMap),
                digit => self.digits.push(*digit),
            }
        }
        Ok(())
    }

    pub(super) fn into_map(self, size: u64) -> Result<SparseMap, LayerRefusal> {
        SparseMap::of_numbers(&self.numbers, size)
    }
}

/// A number of decimal digits and nothing else.
pub(super) fn decimal(text: &[u8]) -> Result<u64, LayerRefusal> {
    if text.first() == Some(&b'-') {
        return Err(LayerRefusal::NegativeSize);
    }
    let is_number = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    let number = str::from_utf8(text).ok().filter(|_| is_number);
    number.and_then(|text| text.parse().ok()).ok_or(LayerRefusal::BadNumber)
}
