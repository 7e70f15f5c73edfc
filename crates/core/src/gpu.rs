//! Which of a machine's graphics cards a sandbox is given.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// The cards that were asked for: `all`, or their numbers (`0`, `0,2`), counted from 0 as `offleash` finds them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GpuChoice {
    /// All that the machine has, of which there is one at least.
    All,
    /// Those with these numbers; one at least.
    Numbers(BTreeSet<u8>),
}

/// A text that names no cards.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("it is neither `all` nor a list of numbers from 0 to 255, such as `0` or `0,2`")]
pub struct GpuChoiceError;

impl GpuChoice {
    /// Whether the card with this number is among them.
    pub fn has(&self, number: usize) -> bool {
        match self {
            Self::All => true,
            Self::Numbers(numbers) => u8::try_from(number).is_ok_and(|number| numbers.contains(&number)),
        }
    }
}

impl FromStr for GpuChoice {
    type Err = GpuChoiceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "all" {
            return Ok(Self::All);
        }
        let number = |word: &str| {
            let is_plain = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
            is_plain.then(|| word.parse().ok()).flatten()
        };
        let numbers: Option<BTreeSet<u8>> = text.split(',').map(number).collect();
        numbers.map(Self::Numbers).ok_or(GpuChoiceError)
    }
}

impl fmt::Display for GpuChoice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => formatter.write_str("all"),
            Self::Numbers(numbers) => {
                let words: Vec<String> = numbers.iter().map(u8::to_string).collect();
                formatter.write_str(&words.join(","))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_are_all_or_named_by_their_numbers() {
        for (text, shown) in [("all", "all"), ("0", "0"), ("2,0,2", "0,2"), ("255", "255")] {
            assert_eq!(text.parse::<GpuChoice>().unwrap().to_string(), shown);
        }
        for text in ["", "none", "All", "0,", ",0", "-1", "+1", " 0", "256", "0-2"] {
            assert_eq!(text.parse::<GpuChoice>(), Err(GpuChoiceError), "{text:?}");
        }
        let some: GpuChoice = "0,2".parse().unwrap();
        assert!(some.has(2) && !some.has(1) && !some.has(256) && GpuChoice::All.has(256));
    }
}
