//! Words of an instruction: how they are divided, and what variables in them mean.

use super::error::DockerfileFault;

/// How deep a variable may be in the default of another.
const MAX_DEPTH: usize = 16;
/// The longest text that an expansion may make, bytes.
const MAX_EXPANDED: usize = 1 << 20;

/// What variables mean: `None` for one that is not set.
pub(super) type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Divides a text at blanks that are neither quoted nor escaped; quotes stay.
pub(super) fn split(text: &str, escape: char) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut quote = None;
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match (character, quote) {
            (blank, None) if blank.is_whitespace() => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
                continue;
            }
            ('"' | '\'', None) => quote = Some(character),
            (closing, Some(open)) if closing == open => quote = None,
            (found, None | Some('"')) if found == escape => {
                word.push(character);
                word.extend(characters.next());
                continue;
            }
            _ => {}
        }
        word.push(character);
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

/// A text without its quotes and with what its variables mean.
pub(super) fn expand(text: &str, escape: char, lookup: Lookup<'_>) -> Result<String, DockerfileFault> {
    let mut reader = WordReader {
        rest: text,
        escape,
        lookup,
        depth: 0,
    };
    reader.until(None, Quoting::Words)
}

/// The text of a here-document, of which quotes are a part.
pub(super) fn expand_text(text: &str, escape: char, lookup: Lookup<'_>) -> Result<String, DockerfileFault> {
    let mut reader = WordReader {
        rest: text,
        escape,
        lookup,
        depth: 0,
    };
    reader.until(None, Quoting::Text)
}

/// What quotes mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Quoting {
    /// They hold a word together.
    Words,
    /// Nothing.
    Text,
}

struct WordReader<'a> {
    rest: &'a str,
    escape: char,
    lookup: Lookup<'a>,
    depth: usize,
}

impl WordReader<'_> {
    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn take(&mut self) -> Option<char> {
        let character = self.peek()?;
        self.rest = &self.rest[character.len_utf8()..];
        Some(character)
    }

    /// Everything before `end`, which is taken too, expanded.
    fn until(&mut self, end: Option<char>, quoting: Quoting) -> Result<String, DockerfileFault> {
        let mut text = String::new();
        while let Some(character) = self.take() {
            match character {
                found if Some(found) == end => return Ok(text),
                '$' => self.push_variable(&mut text)?,
                '\'' if quoting == Quoting::Words => {
                    let (quoted, rest) = self.rest.split_once('\'').ok_or_else(unclosed)?;
                    text.push_str(quoted);
                    self.rest = rest;
                }
                '"' if quoting == Quoting::Words => self.double_quoted(&mut text)?,
                escape if escape == self.escape => match (self.peek(), quoting) {
                    (Some(next), Quoting::Text) if next != '$' && next != escape => text.push(escape),
                    (Some(_), _) => text.extend(self.take()),
                    (None, _) => text.push(escape),
                },
                other => text.push(other),
            }
        }
        match end {
            Some(_) => Err(DockerfileFault::malformed("`${` has no closing `}`")),
            None => Ok(text),
        }
    }

    /// Bounded while it grows: few letters can name many long values.
    fn push_variable(&mut self, text: &mut String) -> Result<(), DockerfileFault> {
        text.push_str(&self.variable()?);
        match text.len() > MAX_EXPANDED {
            true => Err(DockerfileFault::malformed("variables make it too long")),
            false => Ok(()),
        }
    }

    fn double_quoted(&mut self, text: &mut String) -> Result<(), DockerfileFault> {
        while let Some(character) = self.take() {
            match character {
                '"' => return Ok(()),
                '$' => self.push_variable(text)?,
                escape if escape == self.escape => match self.peek() {
                    Some(next) if next == '"' || next == '$' || next == escape => text.extend(self.take()),
                    _ => text.push(escape),
                },
                other => text.push(other),
            }
        }
        Err(unclosed())
    }

    /// What stands behind a `$`.
    fn variable(&mut self) -> Result<String, DockerfileFault> {
        if self.peek() != Some('{') {
            let name = self.name();
            return Ok(match name.is_empty() {
                true => "$".to_owned(),
                false => (self.lookup)(&name).unwrap_or_default(),
            });
        }
        self.take();
        let name = self.name();
        if name.is_empty() {
            return Err(DockerfileFault::malformed("`${` names no variable"));
        }
        let value = (self.lookup)(&name);
        let (value, operator) = match self.take() {
            Some('}') => return Ok(value.unwrap_or_default()),
            Some(':') => (value.filter(|value| !value.is_empty()), self.take()),
            other => (value, other),
        };
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(DockerfileFault::malformed("variables are nested too deep"));
        }
        let word = match operator {
            Some('-' | '+' | '?') => self.until(Some('}'), Quoting::Words)?,
            Some('#' | '%' | '/') => {
                return Err(DockerfileFault::Unsupported {
                    what: format!("replacing a part of a variable, as in `${{{name}#…}}`"),
                    hint: "do it in the command of a `RUN`",
                });
            }
            _ => return Err(DockerfileFault::Malformed(format!("`${{{name}` is not closed"))),
        };
        self.depth -= 1;
        match (operator, value) {
            (Some('+'), Some(_)) => Ok(word),
            (Some('+'), None) => Ok(String::new()),
            (Some('?'), None) => Err(DockerfileFault::Malformed(format!("`{name}` is not set: {word}"))),
            (_, Some(value)) => Ok(value),
            (_, None) => Ok(word),
        }
    }

    fn name(&mut self) -> String {
        let is_first_digit = self.peek().is_some_and(|first| first.is_ascii_digit());
        let is_part = |character: char| character.is_ascii_alphanumeric() || character == '_';
        let length = match is_first_digit {
            true => 1,
            false => self
                .rest
                .find(|character| !is_part(character))
                .unwrap_or(self.rest.len()),
        };
        let (name, rest) = self.rest.split_at(length);
        self.rest = rest;
        name.to_owned()
    }
}

fn unclosed() -> DockerfileFault {
    DockerfileFault::malformed("a quote is not closed")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn known(name: &str) -> Option<String> {
        match name {
            "A" => Some("one two".to_owned()),
            "E" => Some(String::new()),
            _ => None,
        }
    }

    #[test]
    fn variables_mean_what_docker_says() {
        for (text, expected) in [
            ("a$A-b", "aone two-b"),
            ("${A}x", "one twox"),
            ("$NONE.", "."),
            ("${NONE:-d}${E:-e}${E-f}", "de"),
            ("${A:+set}${E:+x}${E+y}${NONE+z}", "sety"),
            ("${NONE:-${A}$}", "one two$"),
            ("'$A' \"$A\"", "$A one two"),
            (r#"\$A "\$A\n" a\ b"#, r"$A $A\n a b"),
            ("$", "$"),
            ("a$ b", "a$ b"),
            ("$1x", "x"),
            ("it's'", "its"),
            (r"C:\\x", r"C:\x"),
        ] {
            assert_eq!(expand(text, '\\', &known).as_deref(), Ok(expected), "{text}");
        }
        assert_eq!(expand("`$A\\x", '`', &known).as_deref(), Ok("$A\\x"));
        for wrong in ["${A", "${}", "${A:", "'a", "\"a", "${A#x}", "${NONE:?no}", "${A!}"] {
            assert!(expand(wrong, '\\', &known).is_err(), "{wrong}");
        }
        assert_eq!(
            expand_text("'$A' \\$A \\n \"", '\\', &known).as_deref(),
            Ok("'one two' $A \\n \"")
        );
        assert!(expand(&"${B:-".repeat(100), '\\', &known).is_err());
    }

    #[test]
    fn words_are_divided_at_blanks_that_mean_it() {
        for (text, words) in [
            ("a  b\tc", vec!["a", "b", "c"]),
            (r#"a="x y" b=z\ w"#, vec![r#"a="x y""#, r"b=z\ w"]),
            (r"'a b'c \'d e", vec!["'a b'c", r"\'d", "e"]),
            ("", vec![]),
        ] {
            assert_eq!(split(text, '\\'), words, "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_text_without_marks_is_itself(text in "[a-zA-Z0-9 /=:.]{0,40}") {
            prop_assert_eq!(expand(&text, '\\', &known), Ok(text));
        }

        #[test]
        fn no_text_is_a_panic_and_words_lose_nothing(text in "[a$\\\\{}:+'\" é-]{0,40}") {
            let _expanded = expand(&text, '\\', &known);
            let kept: String = split(&text, '\\').concat();
            let without = |text: &str| text.chars().filter(|found| !found.is_whitespace()).collect::<String>();
            prop_assert_eq!(without(&kept), without(&text));
        }
    }
}
