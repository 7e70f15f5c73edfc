//! Text out of bytes that come in pieces.

/// Makes text of pieces of UTF-8 that may be divided anywhere; what is no UTF-8 becomes U+FFFD.
#[derive(Debug, Default)]
pub struct Utf8Pieces {
    /// The beginning of a character that is not whole.
    begun: Vec<u8>,
}

impl Utf8Pieces {
    /// The text of all characters that are whole now.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        let mut all = std::mem::take(&mut self.begun);
        all.extend_from_slice(bytes);
        let mut text = String::with_capacity(all.len());
        let mut rest = all.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    return text;
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    text.push_str(std::str::from_utf8(valid).unwrap_or_default());
                    let Some(bad) = error.error_len() else {
                        self.begun = after.to_vec();
                        return text;
                    };
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = after.get(bad..).unwrap_or_default();
                }
            }
        }
    }

    /// What is left when no more comes.
    pub fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.begun)).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_division_gives_the_same_text(
            bytes in prop_oneof![
                proptest::collection::vec(any::<u8>(), 0..200),
                ".{0,60}".prop_map(String::into_bytes),
            ],
            cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..8),
        ) {
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            cuts.sort_unstable();
            let mut pieces = Utf8Pieces::default();
            let mut text = String::new();
            let mut from = 0;
            for cut in cuts.into_iter().chain([bytes.len()]) {
                text.push_str(&pieces.push(&bytes[from..cut]));
                from = cut;
            }
            text.push_str(&pieces.finish());
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
        }
    }
}
