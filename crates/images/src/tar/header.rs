//! A header block and its fields.

use crate::unpack::LayerRefusal;

pub(crate) const BLOCK: usize = 512;

/// A header whose checksum is right.
#[derive(Debug, Clone)]
pub(crate) struct Block([u8; BLOCK]);

impl Block {
    pub(crate) fn checked(bytes: [u8; BLOCK]) -> Result<Self, LayerRefusal> {
        const SUM: std::ops::Range<usize> = 148..156;
        let given = number(&bytes[SUM])?;
        let counted = |index: usize, byte: u8| if SUM.contains(&index) { b' ' } else { byte };
        let bytes_in_place = bytes.iter().enumerate().map(|(index, byte)| counted(index, *byte));
        let unsigned: u64 = bytes_in_place.clone().map(u64::from).sum();
        // Of old programs, which took bytes for signed ones.
        let signed: i64 = bytes_in_place.map(|byte| i64::from(byte.cast_signed())).sum();
        match given == unsigned || i64::try_from(given) == Ok(signed) {
            true => Ok(Self(bytes)),
            false => Err(LayerRefusal::BadChecksum),
        }
    }

    pub(crate) fn bytes(&self, range: std::ops::Range<usize>) -> &[u8] {
        &self.0[range]
    }

    pub(crate) fn name(&self) -> Vec<u8> {
        let name = text(self.bytes(0..100));
        let is_posix = self.bytes(257..263) == b"ustar\0";
        match text(self.bytes(345..500)) {
            prefix if is_posix && !prefix.is_empty() => [prefix, name].join(&b'/'),
            _ => name.to_vec(),
        }
    }

    pub(crate) fn link(&self) -> Vec<u8> {
        text(self.bytes(157..257)).to_vec()
    }

    pub(crate) fn kind_flag(&self) -> u8 {
        self.0[156]
    }

    /// The permission bits; others are not believed.
    pub(crate) fn mode(&self) -> Result<u32, LayerRefusal> {
        u32::try_from(number(self.bytes(100..108))? & 0o7777).map_err(|_| LayerRefusal::BadNumber)
    }

    pub(crate) fn uid(&self) -> Result<u64, LayerRefusal> {
        number(self.bytes(108..116))
    }

    pub(crate) fn gid(&self) -> Result<u64, LayerRefusal> {
        number(self.bytes(116..124))
    }

    pub(crate) fn size(&self) -> Result<u64, LayerRefusal> {
        size(self.bytes(124..136))
    }

    pub(crate) fn modified(&self) -> Result<(i64, u32), LayerRefusal> {
        Ok((signed(self.bytes(136..148))?, 0))
    }
}

fn text(field: &[u8]) -> &[u8] {
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    &field[..end]
}

/// A number that counts bytes.
pub(crate) fn size(field: &[u8]) -> Result<u64, LayerRefusal> {
    let number = signed(field)?;
    u64::try_from(number).map_err(|_| LayerRefusal::NegativeSize)
}

fn number(field: &[u8]) -> Result<u64, LayerRefusal> {
    u64::try_from(signed(field)?).map_err(|_| LayerRefusal::BadNumber)
}

/// Octal digits between spaces and NULs, or, with the highest bit set, two's complement in base 256 (GNU, star).
fn signed(field: &[u8]) -> Result<i64, LayerRefusal> {
    match field {
        [first, rest @ ..] if first & 0x80 != 0 => {
            // Seven bits of the first byte; the highest of them is the sign.
            let is_negative = first & 0x40 != 0;
            let first = i128::from(first & 0x7f) - if is_negative { 0x80 } else { 0 };
            let value = rest.iter().try_fold(first, |value, byte| {
                value.checked_mul(256)?.checked_add(i128::from(*byte))
            });
            value
                .and_then(|value| i64::try_from(value).ok())
                .ok_or(LayerRefusal::BadNumber)
        }
        field => {
            let is_padding = |byte: &u8| *byte == b' ' || *byte == 0;
            let start = field.iter().position(|byte| !is_padding(byte)).unwrap_or(field.len());
            let digits = &field[start..];
            let end = digits.iter().position(is_padding).unwrap_or(digits.len());
            digits[..end].iter().try_fold(0_i64, |value, byte| match byte {
                b'0'..=b'7' => value
                    .checked_mul(8)
                    .and_then(|value| value.checked_add(i64::from(byte - b'0')))
                    .ok_or(LayerRefusal::BadNumber),
                _ => Err(LayerRefusal::BadNumber),
            })
        }
    }
}
