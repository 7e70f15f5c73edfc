//! Reads what the kernel sends, and believes none of its lengths.

use rustix::io::Errno;

use super::ALIGNMENT;

/// `struct nlattr`.
const ATTRIBUTE_HEADER: usize = 4;
/// The bits of an attribute's kind that are not flags.
const KIND_MASK: u16 = 0x3fff;
/// The kernel's own words for a refusal (`NLMSGERR_ATTR_MSG`).
const ERROR_TEXT: u16 = 1;
/// `struct nlmsghdr`.
const MESSAGE_HEADER: usize = 16;
/// Where it has the flags.
pub(super) const FLAGS: usize = 6;

/// One message from the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::network) struct KernelMessage<'a> {
    /// What it is, such as `RTM_NEWADDR`.
    pub(in crate::network) kind: u16,
    pub(super) flags: u16,
    /// Which request it answers.
    pub(super) number: u32,
    /// What comes behind the header.
    pub(in crate::network) payload: &'a [u8],
}

/// What a message says about its request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RequestVerdict<'a> {
    /// Not an acknowledgement but content.
    None,
    Done,
    Refused {
        errno: Errno,
        words: &'a str,
    },
}

impl<'a> KernelMessage<'a> {
    /// Whether it belongs to a list that changed while it was told, so that something may be missing.
    pub(in crate::network) fn is_of_broken_list(&self) -> bool {
        i32::from(self.flags) & libc::NLM_F_DUMP_INTR != 0
    }

    /// What it says about its request; `None` if it is broken.
    pub(super) fn verdict(&self) -> Option<RequestVerdict<'a>> {
        let errno = match i32::from(self.kind) {
            // The end of a list may carry an error too, and need not.
            libc::NLMSG_DONE if self.payload.is_empty() => 0,
            libc::NLMSG_ERROR | libc::NLMSG_DONE => i32::from_ne_bytes(field(self.payload, 0)?),
            libc::NLMSG_OVERRUN => return None,
            _ => return Some(RequestVerdict::None),
        };
        if errno == 0 {
            return Some(RequestVerdict::Done);
        }
        let errno = Errno::from_raw_os_error(errno.checked_neg().filter(|errno| *errno > 0)?);
        let words = self.words().unwrap_or_default();
        Some(RequestVerdict::Refused { errno, words })
    }

    /// The kernel's words in an `NLMSG_ERROR`: behind the errno, the header of the request, and its content, unless
    /// that was left out.
    fn words(&self) -> Option<&'a str> {
        let flag = |flag: i32| i32::from(self.flags) & flag != 0;
        if !flag(libc::NLM_F_ACK_TLVS) {
            return None;
        }
        let request = if flag(libc::NLM_F_CAPPED) {
            MESSAGE_HEADER
        } else {
            usize::try_from(u32::from_ne_bytes(field(self.payload, 4)?)).ok()?
        };
        let start = request.checked_next_multiple_of(ALIGNMENT)?.checked_add(4)?;
        let mut found = attributes(self.payload.get(start..)?);
        let text = found
            .find_map(|attribute| attribute.filter(|(kind, _)| *kind == ERROR_TEXT))?
            .1;
        std::str::from_utf8(text.strip_suffix(&[0]).unwrap_or(text)).ok()
    }
}

/// The bytes of a field of `LENGTH` bytes.
pub(in crate::network) fn field<const LENGTH: usize>(bytes: &[u8], at: usize) -> Option<[u8; LENGTH]> {
    bytes.get(at..at.checked_add(LENGTH)?)?.try_into().ok()
}

/// The messages of a datagram; `None`, and the end, where one is broken.
pub(super) fn messages(bytes: &[u8]) -> impl Iterator<Item = Option<KernelMessage<'_>>> {
    let read = |bytes: &[u8]| usize::try_from(u32::from_ne_bytes(field(bytes, 0)?)).ok();
    pieces(bytes, MESSAGE_HEADER, read).map(|piece| {
        let piece = piece?;
        Some(KernelMessage {
            kind: u16::from_ne_bytes(field(piece, 4)?),
            flags: u16::from_ne_bytes(field(piece, FLAGS)?),
            number: u32::from_ne_bytes(field(piece, 8)?),
            payload: piece.get(MESSAGE_HEADER..)?,
        })
    })
}

/// Attributes by kind; `None`, and the end, where one is broken.
pub(in crate::network) fn attributes(bytes: &[u8]) -> impl Iterator<Item = Option<(u16, &[u8])>> {
    let read = |bytes: &[u8]| Some(usize::from(u16::from_ne_bytes(field(bytes, 0)?)));
    pieces(bytes, ATTRIBUTE_HEADER, read).map(|piece| {
        let piece = piece?;
        let kind = u16::from_ne_bytes(field(piece, 2)?) & KIND_MASK;
        Some((kind, piece.get(ATTRIBUTE_HEADER..)?))
    })
}

/// Cuts `bytes` into pieces whose length, at least `least`, `read` finds in their beginning.
fn pieces(bytes: &[u8], least: usize, read: impl Fn(&[u8]) -> Option<usize>) -> impl Iterator<Item = Option<&[u8]>> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let piece = read(rest)
            .filter(|length| *length >= least)
            .and_then(|length| rest.get(..length));
        // The last piece need not be padded. Behind a broken one there is nothing to be found.
        rest = piece
            .and_then(|piece| rest.get(piece.len().next_multiple_of(ALIGNMENT)..))
            .unwrap_or_default();
        Some(piece)
    })
}
