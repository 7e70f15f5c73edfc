//! What a registry wants of who asks it: the header `WWW-Authenticate` (RFC 9110, 11.6.1).

use std::collections::BTreeMap;

/// One way in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Challenge {
    /// In lower case.
    pub(super) scheme: String,
    pub(super) parameters: BTreeMap<String, String>,
}

const MAX_LENGTH: usize = 8 << 10;

/// All ways that a header names; what cannot be read ends them.
pub(super) fn parse(header: &str) -> Vec<Challenge> {
    let mut all: Vec<Challenge> = Vec::new();
    let mut rest = header.get(..MAX_LENGTH).unwrap_or(header).trim_start();
    while !rest.is_empty() {
        let Some((word, after)) = token(rest) else { break };
        let after = after.trim_start_matches([' ', '\t']);
        match (after.strip_prefix('='), all.last_mut()) {
            (Some(after), Some(challenge)) => {
                let Some((value, after)) = value(after.trim_start()) else {
                    break;
                };
                challenge.parameters.insert(word.to_ascii_lowercase(), value);
                rest = after;
            }
            (Some(_), None) => break,
            (None, _) => {
                all.push(Challenge {
                    scheme: word.to_ascii_lowercase(),
                    parameters: BTreeMap::new(),
                });
                rest = after;
            }
        }
        rest = rest.trim_start_matches([' ', '\t', ',']);
    }
    all
}

fn token(text: &str) -> Option<(&str, &str)> {
    let is_token = |character: char| character.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(character);
    let end = text.find(|character| !is_token(character)).unwrap_or(text.len());
    (end > 0).then(|| text.split_at(end))
}

fn value(text: &str) -> Option<(String, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find([',', ' ']).unwrap_or(text.len());
        return Some((text[..end].to_owned(), &text[end..]));
    };
    let mut value = String::new();
    let mut characters = quoted.char_indices();
    while let Some((index, character)) = characters.next() {
        match character {
            '"' => return Some((value, &quoted[index + 1..])),
            '\\' => value.push(characters.next()?.1),
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ways_in_are_read_with_their_parameters() {
        let text = r#"Bearer realm="https://auth.example/token",service="registry.example",scope="repository:a/b:pull,push", Basic realm="a \"b\"""#;
        let all = parse(text);
        assert_eq!(all.len(), 2);
        assert_eq!(all[0].scheme, "bearer");
        assert_eq!(all[0].parameters["scope"], "repository:a/b:pull,push");
        assert_eq!(all[1].parameters["realm"], "a \"b\"");
        assert_eq!(parse("Basic").len(), 1);
        assert_eq!(parse("Bearer realm=a,service=b")[0].parameters.len(), 2);
        for broken in ["", "=", "a=b", "Bearer realm=\"x", "\u{7f}"] {
            assert!(
                parse(broken).iter().all(|challenge| challenge.parameters.is_empty()),
                "{broken}"
            );
        }
    }

    proptest! {
        #[test]
        fn any_header_is_read(text in "\\PC{0,200}") {
            let _read = parse(&text);
        }
    }
}
