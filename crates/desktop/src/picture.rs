//! What a screen shows, as a picture that is small.
//!
//! Pure. The picture is a PNG (<https://www.w3.org/TR/png-3/>), in which text can be read: of each colour 32 levels are kept,
//! which packs to half of what 256 do, and nothing is needed for it that is not here.

use std::io::Write as _;

use flate2::write::ZlibEncoder;
use flate2::{Compression, Crc};

/// Pixels of a picture; a larger screen is shown smaller.
const MAX_PIXELS: usize = 1280 * 800;
/// What each filter does to a line: its difference to the line above.
const FILTER_UP: u8 = 2;
const SIGNATURE: [u8; 8] = *b"\x89PNG\r\n\x1a\n";

/// What a screen shows at a moment: three bytes a pixel, red, green, blue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    width: usize,
    height: usize,
    rgb: Vec<u8>,
}

impl Picture {
    /// One of that size; `None` if `rgb` is not.
    pub(crate) fn new(width: usize, height: usize, rgb: Vec<u8>) -> Option<Self> {
        let is_whole = width > 0 && height > 0 && rgb.len() == width * height * 3;
        is_whole.then_some(Self { width, height, rgb })
    }

    /// Its width and height, pixels.
    pub fn size(&self) -> (usize, usize) {
        (self.width, self.height)
    }

    /// The colour at a place; black outside.
    pub fn at(&self, x: usize, y: usize) -> [u8; 3] {
        let inside = x < self.width && y < self.height;
        let start = (y * self.width + x) * 3;
        let found = self.rgb.get(start..start + 3).filter(|_| inside);
        found.and_then(|bytes| bytes.try_into().ok()).unwrap_or_default()
    }

    /// It as a PNG of at most `max_bytes`; made smaller until it is, and `None` if it never is.
    pub fn png(&self, max_bytes: usize) -> Option<Vec<u8>> {
        let mut factor = 1;
        while (self.width / factor) * (self.height / factor) > MAX_PIXELS {
            factor += 1;
        }
        while self.width / factor > 0 && self.height / factor > 0 {
            let png = match factor {
                1 => self.encoded(),
                _ => self.smaller(factor).encoded(),
            };
            if png.len() <= max_bytes {
                return Some(png);
            }
            factor *= 2;
        }
        None
    }

    /// Each square of `factor` pixels a side becomes one: their mean.
    fn smaller(&self, factor: usize) -> Self {
        let (width, height) = (self.width / factor, self.height / factor);
        let mut rgb = Vec::with_capacity(width * height * 3);
        for y in 0..height {
            for x in 0..width {
                rgb.extend(self.mean(x * factor, y * factor, factor));
            }
        }
        Self { width, height, rgb }
    }

    fn mean(&self, left: usize, top: usize, side: usize) -> [u8; 3] {
        let mut sums = [0_usize; 3];
        for y in top..top + side {
            for x in left..left + side {
                for (sum, value) in sums.iter_mut().zip(self.at(x, y)) {
                    *sum += usize::from(value);
                }
            }
        }
        // A mean of bytes is one.
        sums.map(|sum| u8::try_from(sum / (side * side)).unwrap_or(u8::MAX))
    }

    fn encoded(&self) -> Vec<u8> {
        let side = |side: usize| u32::try_from(side).unwrap_or(u32::MAX).to_be_bytes();
        let mut head = Vec::from(side(self.width));
        head.extend(side(self.height));
        // Eight bits a colour, three colours, and the usual for all that is left.
        head.extend([8, 2, 0, 0, 0]);
        let mut png = SIGNATURE.to_vec();
        chunk(&mut png, b"IHDR", &head);
        chunk(&mut png, b"IDAT", &self.packed());
        chunk(&mut png, b"IEND", &[]);
        png
    }

    fn packed(&self) -> Vec<u8> {
        let length = self.width * 3;
        let mut packer = ZlibEncoder::new(Vec::new(), Compression::new(6));
        let mut above = vec![0; length];
        let mut line = Vec::with_capacity(length + 1);
        for row in self.rgb.chunks_exact(length) {
            line.clear();
            line.push(FILTER_UP);
            for (value, above) in row.iter().zip(&mut above) {
                let now = coarse(*value);
                line.push(now.wrapping_sub(*above));
                *above = now;
            }
            // Memory takes what is written to it.
            let _written = packer.write_all(&line);
        }
        packer.finish().unwrap_or_default()
    }
}

/// One of 32 levels, black and white among them.
fn coarse(value: u8) -> u8 {
    value & 0xf8 | value >> 5
}

fn chunk(png: &mut Vec<u8>, name: &[u8; 4], data: &[u8]) {
    let mut crc = Crc::new();
    crc.update(name);
    crc.update(data);
    png.extend(u32::try_from(data.len()).unwrap_or(u32::MAX).to_be_bytes());
    png.extend(name);
    png.extend(data);
    png.extend(crc.sum().to_be_bytes());
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    /// The size and the pixels of a PNG of ours.
    fn decoded(png: &[u8]) -> Picture {
        let mut rest = png.strip_prefix(&SIGNATURE).unwrap();
        let (mut size, mut packed) = ((0, 0), Vec::new());
        while !rest.is_empty() {
            let length = usize::try_from(u32::from_be_bytes(rest[..4].try_into().unwrap())).unwrap();
            let (name, data) = (&rest[4..8], &rest[8..8 + length]);
            let mut crc = Crc::new();
            crc.update(&rest[4..8 + length]);
            assert_eq!(rest[8 + length..12 + length], crc.sum().to_be_bytes());
            match name {
                b"IHDR" => {
                    let side = |at: usize| u32::from_be_bytes(data[at..at + 4].try_into().unwrap()) as usize;
                    size = (side(0), side(4));
                    assert_eq!(data[8..], [8, 2, 0, 0, 0]);
                }
                b"IDAT" => packed.extend_from_slice(data),
                _ => assert_eq!(name, b"IEND"),
            }
            rest = &rest[12 + length..];
        }
        let mut lines = Vec::new();
        flate2::read::ZlibDecoder::new(&*packed)
            .read_to_end(&mut lines)
            .unwrap();
        let mut rgb: Vec<u8> = Vec::new();
        for line in lines.chunks_exact(size.0 * 3 + 1) {
            assert_eq!(line[0], FILTER_UP);
            let start = rgb.len();
            for (place, value) in line[1..].iter().enumerate() {
                let above = (start + place).checked_sub(size.0 * 3).map_or(0, |at| rgb[at]);
                rgb.push(value.wrapping_add(above));
            }
        }
        Picture::new(size.0, size.1, rgb).unwrap()
    }

    fn noise(width: usize, height: usize) -> Picture {
        let mut state = 1_u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            coarse(state.to_be_bytes()[0])
        };
        let rgb = (0..width * height * 3).map(|_| next()).collect();
        Picture::new(width, height, rgb).unwrap()
    }

    #[test]
    fn a_picture_is_what_the_screen_shows() {
        let picture = noise(37, 11);
        assert_eq!(decoded(&picture.png(1 << 20).unwrap()), picture);
        assert_eq!(picture.at(37, 0), [0; 3]);
        assert_eq!([0, 7, 8, 255].map(coarse), [0, 0, 8, 255]);
        assert!(Picture::new(2, 2, vec![0; 11]).is_none() && Picture::new(0, 0, Vec::new()).is_none());
    }

    #[test]
    fn a_large_screen_is_shown_smaller_by_means() {
        let mut rgb = vec![0; 1300 * 800 * 3];
        // Of a square of four, one is white.
        rgb[..3].fill(255);
        let picture = Picture::new(1300, 800, rgb).unwrap();
        let shown = decoded(&picture.png(1 << 20).unwrap());
        assert_eq!((shown.size(), shown.at(0, 0)), ((650, 400), [coarse(63); 3]));
    }

    #[test]
    fn a_picture_that_cannot_be_packed_is_made_smaller_until_it_fits() {
        let picture = noise(40, 40);
        let png = picture.png(2000).unwrap();
        assert!(png.len() <= 2000);
        assert_eq!(decoded(&png).size(), (20, 20));
        assert_eq!(picture.png(10), None);
    }
}
