//! Messages of a viewer in the Remote Framebuffer Protocol (RFC 6143, section 7): which of them ask for pictures.

use super::ViewerError;

/// What a viewer begins with.
const VERSION_LENGTH: usize = 12;
/// The security type without a password.
const NO_PASSWORD: u8 = 1;
/// Others stay connected.
const SHARED: u8 = 1;
/// The longest head that says how long a message is.
const MAX_HEAD: usize = 8;

/// Where a viewer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ViewerStep {
    Version,
    Security,
    Init,
    Message,
}

/// A kind of message.
struct MessageKind {
    number: u8,
    /// How long the part is that says how long it is.
    head: usize,
    /// How much follows that.
    rest: fn(&[u8]) -> u64,
    /// Whether it asks for pictures, and nothing else.
    asks: bool,
}

const fn fixed(number: u8, head: usize, asks: bool) -> MessageKind {
    MessageKind {
        number,
        head,
        rest: |_| 0,
        asks,
    }
}

/// What viewers say: of the protocol itself, and of what noVNC and TigerVNC add. One that is in no line ends the connection.
const KINDS: [MessageKind; 9] = [
    // SetPixelFormat has 20 bytes, of which nothing is looked at.
    MessageKind {
        number: 0,
        head: 4,
        rest: |_| 16,
        asks: true,
    },
    // SetEncodings: how many, four bytes each.
    MessageKind {
        number: 2,
        head: 4,
        rest: |head| 4 * u64::from(u16::from_be_bytes([head[2], head[3]])),
        asks: true,
    },
    // FramebufferUpdateRequest: ten bytes.
    MessageKind {
        number: 3,
        head: 4,
        rest: |_| 6,
        asks: true,
    },
    // KeyEvent.
    fixed(4, 8, false),
    // PointerEvent.
    fixed(5, 6, false),
    // ClientCutText; a length below zero is that of the extended clipboard.
    MessageKind {
        number: 6,
        head: 8,
        rest: |head| u64::from(i32::from_be_bytes([head[4], head[5], head[6], head[7]]).unsigned_abs()),
        asks: false,
    },
    // xvp, which shuts a machine down.
    fixed(250, 4, false),
    // SetDesktopSize: how many screens, sixteen bytes each.
    MessageKind {
        number: 251,
        head: 8,
        rest: |head| 16 * u64::from(head[6]),
        asks: false,
    },
    // Keys as QEMU numbers them: twelve bytes.
    MessageKind {
        number: 255,
        head: 4,
        rest: |_| 8,
        asks: false,
    },
];

/// Judges what a viewer says, in whatever pieces it comes.
#[derive(Debug)]
pub(super) struct ScreenRequests {
    step: ViewerStep,
    /// What there is of a head.
    head: Vec<u8>,
    /// How much of the message is to come, and whether it goes on.
    left: u64,
    passes: bool,
}

impl Default for ScreenRequests {
    fn default() -> Self {
        Self {
            step: ViewerStep::Version,
            head: Vec::with_capacity(VERSION_LENGTH.max(MAX_HEAD)),
            left: 0,
            passes: false,
        }
    }
}

impl ScreenRequests {
    /// What of these bytes goes to the screen.
    ///
    /// # Errors
    /// `Message`, after which nothing more may be taken.
    pub(super) fn take(&mut self, mut bytes: &[u8]) -> Result<Vec<u8>, ViewerError> {
        let mut passed = Vec::new();
        loop {
            let wanted = usize::try_from(self.left).unwrap_or(usize::MAX);
            let (now, rest) = bytes.split_at(wanted.min(bytes.len()));
            if self.passes {
                passed.extend_from_slice(now);
            }
            self.left -= now.len() as u64;
            let Some((first, rest)) = rest.split_first() else {
                return Ok(passed);
            };
            self.head.push(*first);
            bytes = rest;
            if self.is_whole()? {
                self.judge(&mut passed)?;
            }
        }
    }

    /// Whether all of a head is there.
    fn is_whole(&self) -> Result<bool, ViewerError> {
        let wanted = match self.step {
            ViewerStep::Version => VERSION_LENGTH,
            ViewerStep::Security | ViewerStep::Init => 1,
            ViewerStep::Message => kind_of(&self.head)?.head,
        };
        Ok(self.head.len() >= wanted)
    }

    fn judge(&mut self, passed: &mut Vec<u8>) -> Result<(), ViewerError> {
        let head = std::mem::take(&mut self.head);
        self.step = match self.step {
            ViewerStep::Version => match head.as_slice() {
                // There the server says alone how somebody gets in.
                b"RFB 003.003\n" => ViewerStep::Init,
                b"RFB 003.007\n" | b"RFB 003.008\n" => ViewerStep::Security,
                _ => return Err(ViewerError::Message),
            },
            // What other types are followed by is not known here.
            ViewerStep::Security if head != [NO_PASSWORD] => return Err(ViewerError::Message),
            ViewerStep::Security => ViewerStep::Init,
            ViewerStep::Init => {
                passed.push(SHARED);
                self.step = ViewerStep::Message;
                return Ok(());
            }
            ViewerStep::Message => {
                let kind = kind_of(&head)?;
                (self.left, self.passes) = ((kind.rest)(&head), kind.asks);
                if !kind.asks {
                    return Ok(());
                }
                ViewerStep::Message
            }
        };
        passed.extend_from_slice(&head);
        Ok(())
    }
}

fn kind_of(head: &[u8]) -> Result<&'static MessageKind, ViewerError> {
    let number = head.first().ok_or(ViewerError::Message)?;
    let found = KINDS.iter().find(|kind| kind.number == *number);
    found.ok_or(ViewerError::Message)
}
