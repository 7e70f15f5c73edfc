//! Frames of a WebSocket (RFC 6455) as a client sends them, read in whatever pieces they come, and written.

use super::ViewerError;

/// The opcode of binary data.
pub(super) const BINARY: u8 = 2;
const CONTINUATION: u8 = 0;
const TEXT: u8 = 1;
/// From this one on opcodes are of control frames: close, ping, pong.
const CLOSE: u8 = 8;
const PONG: u8 = 10;
/// The longest payload of a control frame.
const MAX_CONTROL: u64 = 125;
/// The longest head: two bytes, a length of eight, a mask of four.
const MAX_HEAD: usize = 14;

const IS_LAST: u8 = 0x80;
const RESERVED: u8 = 0x70;
const IS_MASKED: u8 = 0x80;

/// A part of what a client says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FramePart {
    /// A whole frame that is no data.
    Control {
        /// What it is.
        opcode: u8,
        /// What is in it, without the mask.
        payload: Vec<u8>,
    },
    /// Some data, without the mask: frames are nothing to the protocol within.
    Data(Vec<u8>),
}

/// What is known of the frame in which the client is.
#[derive(Debug)]
struct OpenFrame {
    opcode: u8,
    mask: [u8; 4],
    /// How much of it was read, and how much is to come.
    at: usize,
    left: u64,
    /// What there is of a control frame.
    control: Vec<u8>,
}

/// Takes a client's bytes apart.
#[derive(Debug, Default)]
pub(super) struct ClientFrames {
    head: Vec<u8>,
    frame: Option<OpenFrame>,
}

impl ClientFrames {
    /// What is in these bytes.
    ///
    /// # Errors
    /// `Frame`, after which nothing more may be taken.
    pub(super) fn take(&mut self, mut bytes: &[u8]) -> Result<Vec<FramePart>, ViewerError> {
        let mut parts = Vec::new();
        loop {
            let mut frame = match self.frame.take() {
                Some(frame) => frame,
                None => match self.open(&mut bytes)? {
                    Some(frame) => frame,
                    None => return Ok(parts),
                },
            };
            let wanted = usize::try_from(frame.left).unwrap_or(usize::MAX);
            let (now, rest) = bytes.split_at(wanted.min(bytes.len()));
            bytes = rest;
            let payload = frame.unmask(now);
            if frame.opcode < CLOSE {
                if !payload.is_empty() {
                    parts.push(FramePart::Data(payload));
                }
            } else {
                frame.control.extend_from_slice(&payload);
                if frame.left == 0 {
                    parts.push(FramePart::Control {
                        opcode: frame.opcode,
                        payload: std::mem::take(&mut frame.control),
                    });
                }
            }
            if frame.left > 0 {
                self.frame = Some(frame);
                return Ok(parts);
            }
        }
    }

    /// The next frame, once all of its head is there.
    fn open(&mut self, bytes: &mut &[u8]) -> Result<Option<OpenFrame>, ViewerError> {
        loop {
            if let Some(frame) = opened(&self.head)? {
                self.head.clear();
                return Ok(Some(frame));
            }
            let Some((first, rest)) = bytes.split_first() else {
                return Ok(None);
            };
            self.head.push(*first);
            *bytes = rest;
        }
    }
}

impl OpenFrame {
    fn unmask(&mut self, bytes: &[u8]) -> Vec<u8> {
        let from = self.at;
        let plain = bytes
            .iter()
            .enumerate()
            .map(|(place, byte)| byte ^ self.mask[(from + place) % 4]);
        let plain = plain.collect();
        // Where the mask goes on; the number itself is nobody's.
        self.at = (from + bytes.len()) % 4;
        self.left -= bytes.len() as u64;
        plain
    }
}

/// The frame of a head; `None` for one that is not whole.
fn opened(head: &[u8]) -> Result<Option<OpenFrame>, ViewerError> {
    let [first, second, rest @ ..] = head else {
        return Ok(None);
    };
    let opcode = first & 0x0f;
    let is_known = matches!(opcode, CONTINUATION | TEXT | BINARY | CLOSE..=PONG);
    // Extensions are not offered on; and clients must mask.
    if first & RESERVED != 0 || !is_known || second & IS_MASKED == 0 {
        return Err(ViewerError::Frame);
    }
    let wide = match second & !IS_MASKED {
        126 => 2,
        127 => 8,
        _ => 0,
    };
    debug_assert!(head.len() <= MAX_HEAD);
    if rest.len() < wide + 4 {
        return Ok(None);
    }
    let (length, mask) = rest.split_at(wide);
    let left = match wide {
        0 => u64::from(second & !IS_MASKED),
        _ => length.iter().fold(0, |sum: u64, byte| sum << 8 | u64::from(*byte)),
    };
    if opcode >= CLOSE && (left > MAX_CONTROL || first & IS_LAST == 0) {
        return Err(ViewerError::Frame);
    }
    let mut four = [0; 4];
    four.copy_from_slice(mask);
    Ok(Some(OpenFrame {
        opcode,
        mask: four,
        at: 0,
        left,
        control: Vec::new(),
    }))
}

/// Writes a frame as a client sends one. Its mask is zeros: it is there against caches between the two, and there are none.
pub(super) fn write(out: &mut Vec<u8>, opcode: u8, payload: &[u8]) {
    out.push(IS_LAST | opcode);
    match (u8::try_from(payload.len()), u16::try_from(payload.len())) {
        (Ok(short), _) if short < 126 => out.push(IS_MASKED | short),
        (_, Ok(wide)) => {
            out.push(IS_MASKED | 126);
            out.extend_from_slice(&wide.to_be_bytes());
        }
        _ => {
            out.push(IS_MASKED | 127);
            out.extend_from_slice(&(payload.len() as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(payload);
}
