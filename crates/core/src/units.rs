//! Sizes, times and CPU counts: the one checked place where text becomes a number.
//!
//! Numbers are decimal and exact: no floating point is involved, so nothing wraps, rounds or becomes infinite.

use std::fmt;
use std::str::FromStr;

/// A number of bytes.
///
/// As text: a number and an optional unit. `K`, `M`, `G`, `T` (and `KiB`, `MiB`, `GiB`, `TiB`) are powers of 1024, as
/// in cgroups and `ulimit`; `KB`, `MB`, `GB`, `TB` are powers of 1000, as SI says; `B` or nothing is bytes. Letter
/// case does not matter, and a fraction is accepted where it comes to whole bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

impl Bytes {
    /// `count` mebibytes, saturating.
    pub const fn mib(count: u64) -> Self {
        Self(count.saturating_mul(1024 * 1024))
    }
}

/// A duration in milliseconds. As text: `500ms`, `30s`, `5m`, `1h`, `1.5s`; a plain number is seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Millis(pub u64);

/// A number of CPUs in thousandths: `1500` is one and a half. As text: `0.5`, `2`, from 0.01 to 4096.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct CpuCount {
    /// Thousandths of a CPU, at least 10.
    pub millis: u64,
}

/// Text that is not a size, a time or a CPU count.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// It does not begin with a decimal number.
    #[error("`{}` is not a number: expected {expected}", given.escape_debug())]
    NotANumber {
        /// What was given.
        given: String,
        /// What would have been right.
        expected: &'static str,
    },
    /// It is below zero.
    #[error("`{}` is negative: expected {expected}", given.escape_debug())]
    Negative {
        /// What was given.
        given: String,
        /// What would have been right.
        expected: &'static str,
    },
    /// What follows the number is no unit.
    #[error("`{}` in `{}` is not a unit: expected {expected}", unit.escape_debug(), given.escape_debug())]
    UnknownUnit {
        /// What was given.
        given: String,
        /// What follows the number.
        unit: String,
        /// What would have been right.
        expected: &'static str,
    },
    /// It is finer than the smallest unit.
    #[error("`{}` is not a whole number of {smallest}", given.escape_debug())]
    Fraction {
        /// What was given.
        given: String,
        /// The smallest unit.
        smallest: &'static str,
    },
    /// It is smaller or larger than anything that can be meant.
    #[error("`{}` is out of range: expected {least} to {most}", given.escape_debug())]
    OutOfRange {
        /// What was given.
        given: String,
        /// The smallest that is accepted.
        least: String,
        /// The largest that is accepted.
        most: String,
    },
}

/// One kind of quantity: its units, each as a multiple of the smallest.
struct QuantityKind {
    units: &'static [(&'static str, u64)],
    smallest: &'static str,
    expected: &'static str,
    least: u64,
    most: u64,
    show: fn(u64) -> String,
}

const SIZE: QuantityKind = QuantityKind {
    units: &[
        ("", 1),
        ("b", 1),
        ("k", 1 << 10),
        ("m", 1 << 20),
        ("g", 1 << 30),
        ("t", 1 << 40),
        ("kib", 1 << 10),
        ("mib", 1 << 20),
        ("gib", 1 << 30),
        ("tib", 1 << 40),
        ("kb", 1_000),
        ("mb", 1_000_000),
        ("gb", 1_000_000_000),
        ("tb", 1_000_000_000_000),
    ],
    smallest: "bytes",
    expected: "a size such as 512M, 1.5G or 4096 (units K, M, G, T)",
    least: 0,
    // The kernel counts sizes in signed 64 bits, and `u64::MAX` means "no limit" to setrlimit(2).
    most: i64::MAX.unsigned_abs(),
    show: |value| Bytes(value).to_string(),
};

const TIME: QuantityKind = QuantityKind {
    units: &[("", 1_000), ("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)],
    smallest: "milliseconds",
    expected: "a time such as 30s, 5m, 1h or 500ms",
    least: 0,
    // Ten years: added to any present time it still fits every clock.
    most: 10 * 366 * 24 * 3_600_000,
    show: |value| Millis(value).to_string(),
};

const CPUS: QuantityKind = QuantityKind {
    units: &[("", 1_000)],
    smallest: "thousandths of a CPU",
    expected: "a number of CPUs such as 0.5 or 2",
    least: 10,
    most: 4_096_000,
    show: |millis| CpuCount { millis }.to_string(),
};

impl FromStr for Bytes {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        SIZE.parse(text).map(Self)
    }
}

impl FromStr for Millis {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        TIME.parse(text).map(Self)
    }
}

impl FromStr for CpuCount {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        CPUS.parse(text).map(|millis| Self { millis })
    }
}

impl QuantityKind {
    fn parse(&self, text: &str) -> Result<u64, UnitError> {
        let given = || text.to_owned();
        let expected = self.expected;
        if text.starts_with('-') {
            return Err(UnitError::Negative {
                given: given(),
                expected,
            });
        }
        let end = text
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
        if whole.is_empty() || fraction.is_empty() || fraction.contains('.') {
            return Err(UnitError::NotANumber {
                given: given(),
                expected,
            });
        }
        let multiple = self
            .units
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(unit))
            .map(|(_, multiple)| *multiple)
            .ok_or_else(|| UnitError::UnknownUnit {
                given: given(),
                unit: unit.to_owned(),
                expected,
            })?;
        self.total(text, whole, fraction.trim_end_matches('0'), multiple)
    }

    fn total(&self, text: &str, whole: &str, fraction: &str, multiple: u64) -> Result<u64, UnitError> {
        let out_of_range = || UnitError::OutOfRange {
            given: text.to_owned(),
            least: (self.show)(self.least),
            most: (self.show)(self.most),
        };
        let too_fine = || UnitError::Fraction {
            given: text.to_owned(),
            smallest: self.smallest,
        };
        let whole: u64 = whole.parse().map_err(|_| out_of_range())?;
        // 10^18 is the largest power of ten that keeps the product below 2^128.
        let scale = u32::try_from(fraction.len())
            .ok()
            .filter(|length| *length <= 18)
            .ok_or_else(too_fine)?;
        let scale = 10_u128.pow(scale);
        let part = if fraction.is_empty() {
            0
        } else {
            fraction.parse::<u128>().map_err(|_| too_fine())?
        };
        let scaled = part * u128::from(multiple);
        if !scaled.is_multiple_of(scale) {
            return Err(too_fine());
        }
        let part = u64::try_from(scaled / scale).map_err(|_| out_of_range())?;
        whole
            .checked_mul(multiple)
            .and_then(|total| total.checked_add(part))
            .filter(|total| (self.least..=self.most).contains(total))
            .ok_or_else(out_of_range)
    }
}

/// The largest unit of which `value` is a whole multiple.
fn in_largest_unit(value: u64, units: &[(&'static str, u64)]) -> (u64, &'static str) {
    let fits = |(_, multiple): &&(&'static str, u64)| value.is_multiple_of(*multiple);
    match units.iter().find(fits) {
        Some((unit, multiple)) if value != 0 => (value / multiple, unit),
        _ => (value, ""),
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, unit) = in_largest_unit(
            self.0,
            &[("T", 1 << 40), ("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)],
        );
        write!(f, "{count}{unit}")
    }
}

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match in_largest_unit(self.0, &[("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)]) {
            (0, _) => f.write_str("0s"),
            (count, unit) => write!(f, "{count}{unit}"),
        }
    }
}

impl fmt::Display for CpuCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}.{:03}", self.millis / 1_000, self.millis % 1_000);
        f.write_str(text.trim_end_matches('0').trim_end_matches('.'))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes_are_read_with_their_units() {
        for (text, bytes) in [
            ("4096", 4096),
            ("0", 0),
            ("512M", 512 << 20),
            ("1.5G", 3 << 29),
            ("100K", 100 << 10),
            ("100k", 100 << 10),
            ("1GiB", 1 << 30),
            ("1GB", 1_000_000_000),
            ("2T", 2 << 40),
            ("7B", 7),
            ("1.50K", 1536),
            ("9223372036854775807", i64::MAX.unsigned_abs()),
        ] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
    }

    #[test]
    fn sizes_that_mean_nothing_are_refused() {
        for (text, reason) in [
            (
                "",
                "`` is not a number: expected a size such as 512M, 1.5G or 4096 (units K, M, G, T)",
            ),
            (
                "-1",
                "`-1` is negative: expected a size such as 512M, 1.5G or 4096 (units K, M, G, T)",
            ),
            (
                "1e9G",
                "`e9G` in `1e9G` is not a unit: expected a size such as 512M, 1.5G or 4096 (units K, M, G, T)",
            ),
            (
                "18446744073709551616",
                "`18446744073709551616` is out of range: expected 0 to 9223372036854775807",
            ),
            (
                "18446744073709551615",
                "`18446744073709551615` is out of range: expected 0 to 9223372036854775807",
            ),
            (
                "16777216T",
                "`16777216T` is out of range: expected 0 to 9223372036854775807",
            ),
            ("0.5", "`0.5` is not a whole number of bytes"),
            ("1.0001K", "`1.0001K` is not a whole number of bytes"),
        ] {
            assert_eq!(text.parse::<Bytes>().unwrap_err().to_string(), reason);
        }
        let worse = [
            "NaN", "inf", "+1", " 1", "1 ", "1 G", ".5G", "1.G", "1..2", "1.2.3", "0x10", "1_000", "１", "1G\n",
        ];
        for text in worse {
            assert!(text.parse::<Bytes>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn times_are_read_with_their_units() {
        for (text, ms) in [
            ("500ms", 500),
            ("30s", 30_000),
            ("5m", 300_000),
            ("1h", 3_600_000),
            ("1.5s", 1_500),
            ("2", 2_000),
        ] {
            assert_eq!(text.parse(), Ok(Millis(ms)), "{text}");
        }
        for text in ["", "-1s", "1d", "0.5ms", "1e3", "9999999999h", "s", "1.0001s"] {
            assert!(text.parse::<Millis>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn cpu_counts_are_exact_and_bounded() {
        for (text, millis) in [
            ("0.5", 500),
            ("2", 2_000),
            ("1.5", 1_500),
            ("0.01", 10),
            ("4096", 4_096_000),
        ] {
            assert_eq!(text.parse(), Ok(CpuCount { millis }), "{text}");
        }
        for text in ["0", "0.009", "0.0155", "4096.001", "-1", "NaN", "2c", ""] {
            assert!(text.parse::<CpuCount>().is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_parses_back(bytes in 0..=SIZE.most, ms in 0..=TIME.most, millis in CPUS.least..=CPUS.most) {
            prop_assert_eq!(Bytes(bytes).to_string().parse(), Ok(Bytes(bytes)));
            prop_assert_eq!(Millis(ms).to_string().parse(), Ok(Millis(ms)));
            prop_assert_eq!(CpuCount { millis }.to_string().parse(), Ok(CpuCount { millis }));
        }

        #[test]
        fn round_sizes_are_shown_in_their_unit(count in 1_u64..1024) {
            prop_assert_eq!(Bytes(count << 30).to_string(), format!("{count}G"));
        }

        #[test]
        fn no_text_panics(text: String) {
            let _ = (text.parse::<Bytes>(), text.parse::<Millis>(), text.parse::<CpuCount>());
        }

        #[test]
        fn a_number_with_a_unit_is_never_less_than_without(number in 0_u64.., unit in "[KMGT]") {
            if let Ok(Bytes(total)) = format!("{number}{unit}").parse() {
                prop_assert!(total >= number);
            }
        }
    }
}
