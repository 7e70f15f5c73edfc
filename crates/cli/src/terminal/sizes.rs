//! Sizes as people read them.

/// Whole MiB, or KiB, are enough for people.
pub(crate) fn rounded(bytes: u64) -> u64 {
    let unit = if bytes >= 10 << 20 { 1 << 20 } else { 1 << 10 };
    (bytes / unit).max(1) * unit
}

#[cfg(test)]
mod tests {
    use offleash_core::units::Bytes;

    use super::*;

    #[test]
    fn sizes_are_of_whole_units() {
        for (bytes, shown) in [(1, "1K"), (208_896, "204K"), (537_931_776, "513M")] {
            assert_eq!(Bytes(rounded(bytes)).to_string(), shown);
        }
    }
}
