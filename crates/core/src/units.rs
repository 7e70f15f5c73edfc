//! Sizes, times and CPU counts: the one checked place where text becomes a number.

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

impl Bytes {
    /// `count` mebibytes, saturating.
    pub const fn mib(count: u64) -> Self {
        Self(count.saturating_mul(1024 * 1024))
    }
}

/// A duration in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Millis(pub u64);

/// A number of CPUs in thousandths: `1500` is one and a half.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct CpuCount {
    /// Thousandths of a CPU, at least 10.
    pub millis: u64,
}
