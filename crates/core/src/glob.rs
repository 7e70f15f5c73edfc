//! Wildcards within one name: `*`, `?`, `[a-z]`, `[!a]`, and `\` before a character that means itself.
//!
//! Works on bytes, because names need not be UTF-8; `?` is one character where the name is UTF-8. What `/` and `**`
//! mean is the business of the pattern types built on this.

/// A compiled pattern for one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Glob {
    tokens: Vec<GlobToken>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum GlobToken {
    Byte(u8),
    AnyCharacter,
    AnyText,
    Class { negated: bool, ranges: Vec<(u8, u8)> },
}

/// A pattern that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum GlobError {
    #[error("`[` has no closing `]`")]
    Unclosed,
    #[error("`\\` is the last character")]
    Escape,
    #[error("`[…]` holds ASCII characters only, in ascending ranges")]
    Class,
}

impl Glob {
    pub(crate) fn parse(pattern: &[u8]) -> Result<Self, GlobError> {
        let mut tokens = Vec::with_capacity(pattern.len());
        let mut rest = pattern;
        while let Some((first, after)) = rest.split_first() {
            rest = after;
            let token = match first {
                b'*' => GlobToken::AnyText,
                b'?' => GlobToken::AnyCharacter,
                b'\\' => {
                    let (escaped, after) = rest.split_first().ok_or(GlobError::Escape)?;
                    rest = after;
                    GlobToken::Byte(*escaped)
                }
                b'[' => {
                    let (class, after) = parse_class(rest)?;
                    rest = after;
                    class
                }
                other => GlobToken::Byte(*other),
            };
            if token != GlobToken::AnyText || tokens.last() != Some(&GlobToken::AnyText) {
                tokens.push(token);
            }
        }
        Ok(Self { tokens })
    }

    /// The one name that this matches, if it has no wildcard.
    pub(crate) fn literal(&self) -> Option<Vec<u8>> {
        self.tokens
            .iter()
            .map(|token| {
                if let GlobToken::Byte(byte) = token {
                    Some(*byte)
                } else {
                    None
                }
            })
            .collect()
    }

    /// Whether the whole of `name` matches. Takes time proportional to the product of both lengths at worst.
    pub(crate) fn matches(&self, name: &[u8]) -> bool {
        let (mut token, mut position) = (0, 0);
        // Where to continue after a mismatch: behind the last `*`, which then takes one byte more.
        let mut retry: Option<(usize, usize)> = None;
        loop {
            match self.tokens.get(token) {
                Some(GlobToken::AnyText) => {
                    retry = Some((token + 1, position));
                    token += 1;
                    continue;
                }
                Some(single) => {
                    if let Some(length) = single.length_in(&name[position..]) {
                        token += 1;
                        position += length;
                        continue;
                    }
                }
                None if position == name.len() => return true,
                None => {}
            }
            match retry {
                Some((after, start)) if start < name.len() => {
                    retry = Some((after, start + 1));
                    (token, position) = (after, start + 1);
                }
                _ => return false,
            }
        }
    }
}

impl GlobToken {
    /// How many bytes at the start of `rest` this token takes, unless it does not match.
    fn length_in(&self, rest: &[u8]) -> Option<usize> {
        let first = *rest.first()?;
        let matched = match self {
            GlobToken::Byte(byte) => *byte == first,
            GlobToken::AnyCharacter | GlobToken::AnyText => return Some(character_length(rest)),
            GlobToken::Class { negated, ranges } => {
                let within = ranges.iter().any(|(low, high)| (*low..=*high).contains(&first));
                if *negated && !within {
                    return Some(character_length(rest));
                }
                within && !negated
            }
        };
        matched.then_some(1)
    }
}

fn character_length(bytes: &[u8]) -> usize {
    let head = &bytes[..bytes.len().min(4)];
    head.utf8_chunks()
        .next()
        .and_then(|chunk| chunk.valid().chars().next())
        .map_or(1, char::len_utf8)
}

fn parse_class(text: &[u8]) -> Result<(GlobToken, &[u8]), GlobError> {
    let (negated, body) = match text.split_first() {
        Some((b'!' | b'^', body)) => (true, body),
        _ => (false, text),
    };
    // A `]` that comes first is a member of the class.
    let end = body
        .iter()
        .skip(1)
        .position(|byte| *byte == b']')
        .ok_or(GlobError::Unclosed)?
        + 1;
    let mut members = &body[..end];
    let mut ranges = Vec::new();
    while let Some((low, after)) = members.split_first() {
        let (high, after) = match after {
            [b'-', high, after @ ..] => (high, after),
            _ => (low, after),
        };
        if !low.is_ascii() || !high.is_ascii() || low > high {
            return Err(GlobError::Class);
        }
        ranges.push((*low, *high));
        members = after;
    }
    Ok((GlobToken::Class { negated, ranges }, &body[end + 1..]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matches(pattern: &str, name: &str) -> bool {
        Glob::parse(pattern.as_bytes()).unwrap().matches(name.as_bytes())
    }

    #[test]
    fn wildcards_match_as_in_a_shell() {
        for (pattern, yes, no) in [
            ("a", vec!["a"], vec!["", "b", "aa"]),
            ("*.rs", vec![".rs", "a.rs", "a.rs.rs"], vec!["rs", "a.rsx"]),
            ("a*b*c", vec!["abc", "aXbYc", "abbc", "abcbc"], vec!["ab", "acb"]),
            ("?", vec!["a", "é", "日"], vec!["", "ab"]),
            ("[a-c]x", vec!["ax", "cx"], vec!["dx", "x"]),
            ("[!a]", vec!["b", "é"], vec!["a", ""]),
            ("[]a]", vec!["]", "a"], vec!["b"]),
            ("[a-]", vec!["-", "a"], vec!["b"]),
            ("\\*", vec!["*"], vec!["a"]),
            ("", vec![""], vec!["a"]),
        ] {
            for name in yes {
                assert!(matches(pattern, name), "{pattern} {name}");
            }
            for name in no {
                assert!(!matches(pattern, name), "{pattern} {name}");
            }
        }
        assert!(Glob::parse(b"?").unwrap().matches(b"\xff"));
    }

    #[test]
    fn unreadable_patterns_are_refused() {
        for pattern in ["[", "[]", "[a", "a\\", "[z-a]", "[é]"] {
            assert!(Glob::parse(pattern.as_bytes()).is_err(), "{pattern}");
        }
    }

    #[test]
    fn many_stars_do_not_take_exponential_time() {
        assert!(!matches(
            &"a*".repeat(100),
            &"a".repeat(4096).replace("aaaa", "aaab").replace('a', "c")
        ));
        assert!(!matches(&format!("{}b", "*a".repeat(50)), &"a".repeat(2000)));
    }

    proptest! {
        #[test]
        fn an_escaped_name_matches_itself_alone(name: Vec<u8>, other: Vec<u8>) {
            let escaped: Vec<u8> = name.iter().flat_map(|byte| [b'\\', *byte]).collect();
            let glob = Glob::parse(&escaped).unwrap();
            prop_assert!(glob.matches(&name));
            prop_assert_eq!(glob.matches(&other), name == other);
            prop_assert_eq!(glob.literal(), Some(name));
        }
    }
}
