//! Bytes that are usually text: names and arguments, which Linux does not require to be UTF-8.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// A path, name or argument. In JSON it is a string where it is UTF-8 and `{"base64": "…"}` where it is not;
/// displayed, it is quoted so that it cannot drive a terminal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Text(pub Vec<u8>);
