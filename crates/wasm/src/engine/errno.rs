//! Errors of the kernel, as each preview numbers them.

use rustix::io::Errno;

use super::preview2::ErrorCode;

/// What each error is in preview 1 (`errno` of wasi_snapshot_preview1.witx) and in preview 2 (`error-code` of wasi:filesystem).
const ERRORS: [(Errno, u16, ErrorCode); 27] = [
    (Errno::TOOBIG, 1, ErrorCode::Invalid),
    (Errno::ACCESS, 2, ErrorCode::Access),
    (Errno::AGAIN, 6, ErrorCode::WouldBlock),
    (Errno::BADF, 8, ErrorCode::BadDescriptor),
    (Errno::BUSY, 10, ErrorCode::Busy),
    (Errno::DQUOT, 19, ErrorCode::Quota),
    (Errno::EXIST, 20, ErrorCode::Exist),
    (Errno::FAULT, 21, ErrorCode::Invalid),
    (Errno::FBIG, 22, ErrorCode::FileTooLarge),
    (Errno::ILSEQ, 25, ErrorCode::IllegalByteSequence),
    (Errno::INVAL, 28, ErrorCode::Invalid),
    (Errno::ISDIR, 31, ErrorCode::IsDirectory),
    (Errno::LOOP, 32, ErrorCode::Loop),
    (Errno::MFILE, 33, ErrorCode::InsufficientMemory),
    (Errno::NAMETOOLONG, 37, ErrorCode::NameTooLong),
    (Errno::NOENT, 44, ErrorCode::NoEntry),
    (Errno::NOSPC, 51, ErrorCode::InsufficientSpace),
    (Errno::NOSYS, 52, ErrorCode::Unsupported),
    (Errno::NOTDIR, 54, ErrorCode::NotDirectory),
    (Errno::NOTEMPTY, 55, ErrorCode::NotEmpty),
    (Errno::OPNOTSUPP, 58, ErrorCode::Unsupported),
    (Errno::NXIO, 60, ErrorCode::NoSuchDevice),
    (Errno::OVERFLOW, 61, ErrorCode::Overflow),
    (Errno::PERM, 63, ErrorCode::NotPermitted),
    (Errno::ROFS, 69, ErrorCode::ReadOnly),
    (Errno::SPIPE, 70, ErrorCode::InvalidSeek),
    (Errno::XDEV, 75, ErrorCode::CrossDevice),
];
/// What everything else is.
const IO: (u16, ErrorCode) = (29, ErrorCode::Io);

fn of(errno: i32) -> (u16, ErrorCode) {
    let known = ERRORS.iter().find(|(known, ..)| known.raw_os_error() == errno);
    known.map_or(IO, |(_, first, second)| (*first, *second))
}

pub(super) fn preview1(errno: i32) -> u16 {
    of(errno).0
}

pub(super) fn preview2(errno: i32) -> ErrorCode {
    of(errno).1
}
