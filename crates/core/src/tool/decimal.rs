//! Numbers as they are written, compared exactly.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

/// Most digits of a number that is compared.
const MAX_DIGITS: usize = 30;
/// Largest power of ten, either way.
const MAX_EXPONENT: i32 = 30;

/// A decimal number: `mantissa` × 10^`exponent`, without zeros at the end of the mantissa.
///
/// Not a float: 0.1 is a tenth, and whole numbers beyond 2^53 differ from their neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Decimal {
    mantissa: i128,
    exponent: i32,
}

/// A text that is no number, or one of more than 30 digits, or beyond 10^±30.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no number, or one of more than {MAX_DIGITS} digits")]
pub struct DecimalError;

impl FromStr for Decimal {
    type Err = DecimalError;

    fn from_str(text: &str) -> Result<Self, DecimalError> {
        let (digits, power) = match text.split_once(['e', 'E']) {
            Some((digits, power)) => (digits, power.parse::<i32>().map_err(|_| DecimalError)?),
            None => (text, 0),
        };
        let (sign, digits) = match digits.strip_prefix('-') {
            Some(rest) => (-1, rest),
            None => (1, digits),
        };
        let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
        let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let has_part = !digits.contains('.') || !part.is_empty();
        if whole.is_empty() || !has_part || !is_number(whole) || !is_number(part) || power.unsigned_abs() > 400 {
            return Err(DecimalError);
        }
        let all = [whole, part].concat();
        let kept = all.trim_start_matches('0').trim_end_matches('0');
        if kept.is_empty() {
            return Ok(Self {
                mantissa: 0,
                exponent: 0,
            });
        }
        let dropped = all.len() - all.trim_end_matches('0').len();
        let count = |length: usize| i32::try_from(length).map_err(|_| DecimalError);
        let exponent = power + count(dropped)? - count(part.len())?;
        if kept.len() > MAX_DIGITS || exponent.abs() > MAX_EXPONENT {
            return Err(DecimalError);
        }
        let mantissa: i128 = kept.parse().map_err(|_| DecimalError)?;
        Ok(Self {
            mantissa: sign * mantissa,
            exponent,
        })
    }
}

impl Decimal {
    /// The number that a JSON value is, if it is one that can be compared exactly.
    pub fn of(number: &serde_json::Number) -> Option<Self> {
        number.to_string().parse().ok()
    }

    /// Digits before the point when written out.
    fn magnitude(self) -> i64 {
        let mut digits = 0;
        let mut rest = self.mantissa.unsigned_abs();
        while rest > 0 {
            digits += 1;
            rest /= 10;
        }
        digits + i64::from(self.exponent)
    }
}

impl Ord for Decimal {
    fn cmp(&self, other: &Self) -> Ordering {
        let signs = self.mantissa.signum().cmp(&other.mantissa.signum());
        if signs != Ordering::Equal || self.mantissa == 0 {
            return signs;
        }
        let by_size = match self.magnitude().cmp(&other.magnitude()) {
            Ordering::Equal => {
                // As many digits before the point, so the exponents differ by at most the digits that one has more.
                let lowest = self.exponent.min(other.exponent);
                let scaled = |number: &Self| {
                    let steps = u32::try_from(number.exponent - lowest).unwrap_or(0);
                    10_u128
                        .checked_pow(steps)
                        .and_then(|power| number.mantissa.unsigned_abs().checked_mul(power))
                        .unwrap_or(u128::MAX)
                };
                scaled(self).cmp(&scaled(other))
            }
            unequal => unequal,
        };
        if self.mantissa < 0 { by_size.reverse() } else { by_size }
    }
}

impl PartialOrd for Decimal {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.mantissa.unsigned_abs().to_string();
        let sign = if self.mantissa < 0 { "-" } else { "" };
        let behind = usize::try_from(-self.exponent).unwrap_or(0);
        if behind == 0 {
            let zeros = usize::try_from(self.exponent).unwrap_or(0);
            return write!(f, "{sign}{digits}{}", "0".repeat(zeros));
        }
        let digits = format!("{digits:0>width$}", width = behind + 1);
        let (whole, part) = digits.split_at(digits.len() - behind);
        write!(f, "{sign}{whole}.{part}")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decimal(text: &str) -> Decimal {
        text.parse().unwrap_or_else(|_| panic!("{text} is a number"))
    }

    #[test]
    fn numbers_are_what_they_are_written_as() {
        assert_eq!(decimal("1000"), decimal("1e3"));
        assert_eq!(decimal("0.10"), decimal("0.1"));
        assert_eq!(decimal("-0"), decimal("0"));
        assert!(decimal("0.1") < decimal("0.11"));
        assert!(decimal("-2") < decimal("-1.5"));
        assert!(decimal("9007199254740993") > decimal("9007199254740992"));
        assert!(decimal("1e30") > decimal("123456789012345678901234567890"));
    }

    #[test]
    fn what_is_no_number_or_too_long_a_one_is_none() {
        for text in [
            "",
            "-",
            ".5",
            "5.",
            "1_0",
            "0x10",
            "1e",
            "1e999",
            "NaN",
            "inf",
            "+1",
            " 1",
            "1234567890123456789012345678901",
        ] {
            assert!(text.parse::<Decimal>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_number_is_written_as_it_is_read() {
        for text in ["0", "10", "-1000", "0.001", "12.5", "-0.5"] {
            assert_eq!(decimal(text).to_string(), text);
        }
        assert_eq!(decimal("2.50e2").to_string(), "250");
    }

    proptest! {
        #[test]
        fn whole_numbers_are_ordered_as_such(a in any::<i64>(), b in any::<i64>()) {
            prop_assert_eq!(decimal(&a.to_string()).cmp(&decimal(&b.to_string())), a.cmp(&b));
        }

        #[test]
        fn the_order_does_not_depend_on_how_a_number_is_written(a in -99_999_i64..99_999, b in -99_999_i64..99_999, zeros in 0_usize..9) {
            let long = format!("{a}{}e-{zeros}", "0".repeat(zeros));
            prop_assert_eq!(decimal(&long).cmp(&decimal(&b.to_string())), a.cmp(&b));
        }
    }
}
