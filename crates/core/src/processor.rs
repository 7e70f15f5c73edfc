//! The processor that sandboxes are for, in the words of others.
//!
//! It is that of this program: nothing is emulated but in a virtual machine.

/// A processor, as images of OCI name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImagePlatform {
    /// System and processor: `linux/amd64`.
    pub name: &'static str,
    /// The processor alone: `amd64`.
    pub architecture: &'static str,
    /// The variant that every processor of that name is, where lists of images tell it.
    pub least_variant: &'static str,
}

impl ImagePlatform {
    /// 64-bit x86.
    pub const AMD64: Self = Self {
        name: "linux/amd64",
        architecture: "amd64",
        least_variant: "v1",
    };
    /// 64-bit Arm.
    pub const ARM64: Self = Self {
        name: "linux/arm64",
        architecture: "arm64",
        least_variant: "v8",
    };
    /// That of sandboxes here.
    pub const OURS: Self = match cfg!(target_arch = "x86_64") {
        true => Self::AMD64,
        false => Self::ARM64,
    };
}

/// A path of the directory in which Debian keeps this processor's libraries: what is before its name, and what is behind.
#[cfg(target_arch = "x86_64")]
#[macro_export]
macro_rules! debian_libraries {
    ($before:literal, $behind:literal) => {
        concat!($before, "x86_64-linux-gnu", $behind)
    };
}
/// A path of the directory in which Debian keeps this processor's libraries: what is before its name, and what is behind.
#[cfg(not(target_arch = "x86_64"))]
#[macro_export]
macro_rules! debian_libraries {
    ($before:literal, $behind:literal) => {
        concat!($before, "aarch64-linux-gnu", $behind)
    };
}
