//! Memory that is filled from the front.

/// Bytes, as many as were added, in room that somebody else gave.
#[derive(Debug)]
pub struct Buffer<'a> {
    room: &'a mut [u8],
    length: usize,
    is_whole: bool,
}

impl<'a> Buffer<'a> {
    /// An empty one.
    pub const fn new(room: &'a mut [u8]) -> Self {
        Self {
            room,
            length: 0,
            is_whole: true,
        }
    }

    /// What was added; `None` if not all of it found room.
    pub fn text(&self) -> Option<&[u8]> {
        match self.is_whole {
            true => self.room.get(..self.length),
            false => None,
        }
    }

    pub(crate) fn clear(&mut self) {
        self.length = 0;
        self.is_whole = true;
    }

    pub(crate) const fn length(&self) -> usize {
        self.length
    }

    /// Adds bytes.
    pub fn add(&mut self, part: &[u8]) {
        let end = self.length.wrapping_add(part.len());
        match self.room.get_mut(self.length..end) {
            Some(room) => {
                room.iter_mut().zip(part).for_each(|(to, from)| *to = *from);
                self.length = end;
            }
            None => self.is_whole = false,
        }
    }

    /// Adds a number, least byte first.
    pub(crate) fn add_number(&mut self, number: u64) {
        self.add(&number.to_le_bytes());
    }

    /// Adds bytes behind their length, so that nothing can be taken for a part of what stands beside it.
    pub fn add_sized(&mut self, part: &[u8]) {
        self.add_number(part.len() as u64);
        self.add(part);
    }

    /// Adds what `read` writes into the room that is left, as long as it says how much that was.
    pub(crate) fn fill(&mut self, mut read: impl FnMut(&mut [u8]) -> Result<usize, i32>) -> Result<(), i32> {
        loop {
            let left = self.room.get_mut(self.length..).unwrap_or_default();
            if left.is_empty() {
                self.is_whole = false;
                return Ok(());
            }
            match read(left)? {
                0 => return Ok(()),
                read => self.length += read.min(left.len()),
            }
        }
    }

    /// Writes a number over what stands at `place`, least byte first.
    pub(crate) fn set_number(&mut self, place: usize, number: u64) {
        if let Some(room) = self.room.get_mut(place..place.wrapping_add(8)) {
            room.iter_mut()
                .zip(number.to_le_bytes())
                .for_each(|(to, from)| *to = from);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_finds_no_room_is_no_text() {
        let mut room = [0; 12];
        let mut buffer = Buffer::new(&mut room);
        buffer.add_sized(b"abcd");
        assert_eq!(buffer.text(), Some(&b"\x04\0\0\0\0\0\0\0abcd"[..]));
        buffer.set_number(0, 0x0102);
        assert_eq!(buffer.text(), Some(&b"\x02\x01\0\0\0\0\0\0abcd"[..]));
        buffer.add(b"e");
        assert_eq!(buffer.text(), None);
        buffer.clear();
        buffer.fill(|room| Ok(room.len().min(5))).unwrap();
        assert_eq!(buffer.text(), None);
    }
}
