//! Constraints as they are written: `amount <= 1000 and currency in [EUR, USD]`.

use std::iter::Peekable;
use std::str::{CharIndices, FromStr};

use super::constraint::{Comparison, Constraint, ParameterPath, Requirement, Scalar};
use super::decimal::Decimal;

/// Longest constraint, bytes.
pub(super) const MAX_TEXT: usize = 4096;
/// How deep parentheses may be nested.
const MAX_NESTING: usize = 16;
/// Most comparisons in one constraint.
const MAX_COMPARISONS: usize = 64;

/// A text that is no constraint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("at character {at}: {expected}")]
pub struct ConstraintError {
    /// Where, from 1.
    pub at: usize,
    /// What was expected there, or what is too much.
    pub expected: String,
}

impl FromStr for Constraint {
    type Err = ConstraintError;

    fn from_str(text: &str) -> Result<Self, ConstraintError> {
        if text.len() > MAX_TEXT {
            return Err(ConstraintError {
                at: 1,
                expected: format!("a constraint is {MAX_TEXT} bytes at most"),
            });
        }
        let words = words_of(text)?;
        let mut parser = Parser {
            words: &words,
            next: 0,
            end: text.chars().count() + 1,
            comparisons: 0,
        };
        if words.len() == 1 && parser.takes_word("always") {
            return Ok(Constraint::Always);
        }
        let constraint = parser.any(0)?;
        match parser.peek() {
            None => Ok(constraint),
            Some(_) => Err(parser.expected("`and`, `or` or the end")),
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
enum Word {
    /// Letters: a name, an operator or a string without quotes.
    Plain(String),
    Quoted(String),
    Number(Decimal),
    Symbol(&'static str),
}

/// Longest first.
const SYMBOLS: [&str; 12] = ["<=", ">=", "==", "!=", "<", ">", "=", "(", ")", "[", "]", ","];

fn words_of(text: &str) -> Result<Vec<(usize, Word)>, ConstraintError> {
    let mut words = Vec::new();
    let mut characters = text.char_indices().peekable();
    let mut place = 0;
    while let Some(&(offset, character)) = characters.peek() {
        place = text.get(..offset).map_or(place, |before| before.chars().count()) + 1;
        let rest = text.get(offset..).unwrap_or_default();
        if character.is_whitespace() {
            characters.next();
        } else if let Some(symbol) = SYMBOLS.into_iter().find(|symbol| rest.starts_with(symbol)) {
            characters.nth(symbol.len() - 1);
            words.push((place, Word::Symbol(symbol)));
        } else if matches!(character, '"' | '\'') {
            characters.next();
            words.push((place, Word::Quoted(quoted(&mut characters, character, place)?)));
        } else {
            let mut word = String::new();
            let belongs = |character: &char| character.is_alphanumeric() || "_.-+/:@".contains(*character);
            while let Some((_, character)) = characters.next_if(|(_, character)| belongs(character)) {
                word.push(character);
            }
            if word.is_empty() {
                return Err(ConstraintError {
                    at: place,
                    expected: "expected a parameter, a value or an operator".to_owned(),
                });
            }
            let is_number = word.starts_with(|first: char| first.is_ascii_digit() || first == '-');
            words.push((
                place,
                match word.parse() {
                    Ok(number) if is_number => Word::Number(number),
                    _ => Word::Plain(word),
                },
            ));
        }
    }
    Ok(words)
}

fn quoted(characters: &mut Peekable<CharIndices<'_>>, quote: char, at: usize) -> Result<String, ConstraintError> {
    let mut text = String::new();
    while let Some((_, character)) = characters.next() {
        match character {
            '\\' => text.extend(characters.next().map(|(_, escaped)| escaped)),
            end if end == quote => return Ok(text),
            other => text.push(other),
        }
    }
    Err(ConstraintError {
        at,
        expected: format!("this string has no closing {quote}"),
    })
}

struct Parser<'a> {
    words: &'a [(usize, Word)],
    next: usize,
    end: usize,
    comparisons: usize,
}

impl Parser<'_> {
    fn peek(&self) -> Option<&Word> {
        self.words.get(self.next).map(|(_, word)| word)
    }

    fn expected(&self, what: &str) -> ConstraintError {
        ConstraintError {
            at: self.words.get(self.next).map_or(self.end, |(at, _)| *at),
            expected: format!("expected {what}"),
        }
    }

    fn takes_word(&mut self, wanted: &str) -> bool {
        let is_it = matches!(self.peek(), Some(Word::Plain(word)) if word == wanted);
        self.next += usize::from(is_it);
        is_it
    }

    fn takes(&mut self, wanted: &str) -> bool {
        let is_it = matches!(self.peek(), Some(Word::Symbol(symbol)) if *symbol == wanted);
        self.next += usize::from(is_it);
        is_it
    }

    fn any(&mut self, depth: usize) -> Result<Constraint, ConstraintError> {
        let mut parts = vec![self.all(depth)?];
        while self.takes_word("or") {
            parts.push(self.all(depth)?);
        }
        Ok(joined(parts, Constraint::Any))
    }

    fn all(&mut self, depth: usize) -> Result<Constraint, ConstraintError> {
        let mut parts = vec![self.one(depth)?];
        while self.takes_word("and") {
            parts.push(self.one(depth)?);
        }
        Ok(joined(parts, Constraint::All))
    }

    fn one(&mut self, depth: usize) -> Result<Constraint, ConstraintError> {
        if self.takes("(") {
            if depth >= MAX_NESTING {
                return Err(self.expected(&format!("at most {MAX_NESTING} parentheses in one another")));
            }
            let inner = self.any(depth + 1)?;
            return match self.takes(")") {
                true => Ok(inner),
                false => Err(self.expected("`)`")),
            };
        }
        self.comparisons += 1;
        if self.comparisons > MAX_COMPARISONS {
            return Err(self.expected(&format!("at most {MAX_COMPARISONS} comparisons")));
        }
        Ok(Constraint::One(Requirement {
            parameter: self.parameter()?,
            comparison: self.comparison()?,
        }))
    }

    fn parameter(&mut self) -> Result<ParameterPath, ConstraintError> {
        let names = match self.peek() {
            Some(Word::Plain(word)) => word.split('.').map(str::to_owned).collect::<Vec<_>>(),
            _ => return Err(self.expected("the name of a parameter")),
        };
        let is_name =
            |name: &String| !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-'));
        if !names.iter().all(is_name) {
            return Err(self.expected("the name of a parameter: letters, digits, `_` and `-`, with dots between"));
        }
        self.next += 1;
        Ok(ParameterPath(names))
    }

    fn comparison(&mut self) -> Result<Comparison, ConstraintError> {
        for (symbol, of) in [
            ("<=", Comparison::AtMost as fn(Decimal) -> Comparison),
            (">=", Comparison::AtLeast),
            ("<", Comparison::Below),
            (">", Comparison::Above),
        ] {
            if self.takes(symbol) {
                return self.number().map(of);
            }
        }
        if self.takes("==") || self.takes("=") {
            return Ok(Comparison::OneOf(vec![self.scalar()?]));
        }
        if self.takes("!=") {
            return Ok(Comparison::NoneOf(vec![self.scalar()?]));
        }
        if self.takes_word("in") {
            return self.list().map(Comparison::OneOf);
        }
        if self.takes_word("not") {
            return match self.takes_word("in") {
                true => self.list().map(Comparison::NoneOf),
                false => Err(self.expected("`in` after `not`")),
            };
        }
        if self.takes_word("prefix") {
            return self.text().map(Comparison::Prefix);
        }
        if self.takes_word("below") {
            let directory = self.text()?;
            return match directory.starts_with('/') && super::constraint::is_beneath(&directory, "/") {
                true => Ok(Comparison::Beneath(directory)),
                false => {
                    self.next -= 1;
                    Err(self.expected("an absolute path without `.` and `..`"))
                }
            };
        }
        if self.takes_word("exists") {
            return Ok(Comparison::Exists);
        }
        Err(self.expected("one of < <= > >= == != in, not in, prefix, below, exists"))
    }

    fn number(&mut self) -> Result<Decimal, ConstraintError> {
        match self.peek() {
            Some(Word::Number(number)) => {
                let number = *number;
                self.next += 1;
                Ok(number)
            }
            _ => Err(self.expected("a number")),
        }
    }

    fn text(&mut self) -> Result<String, ConstraintError> {
        match self.peek() {
            Some(Word::Plain(text) | Word::Quoted(text)) => {
                let text = text.clone();
                self.next += 1;
                Ok(text)
            }
            _ => Err(self.expected("a string")),
        }
    }

    fn scalar(&mut self) -> Result<Scalar, ConstraintError> {
        let scalar = match self.peek() {
            Some(Word::Number(number)) => Scalar::Number(*number),
            Some(Word::Plain(word)) if word == "true" => Scalar::Truth(true),
            Some(Word::Plain(word)) if word == "false" => Scalar::Truth(false),
            Some(Word::Plain(text) | Word::Quoted(text)) => Scalar::Text(text.clone()),
            _ => return Err(self.expected("a value")),
        };
        self.next += 1;
        Ok(scalar)
    }

    fn list(&mut self) -> Result<Vec<Scalar>, ConstraintError> {
        if !self.takes("[") {
            return Err(self.expected("`[`"));
        }
        let mut values = vec![self.scalar()?];
        while self.takes(",") {
            values.push(self.scalar()?);
        }
        match self.takes("]") {
            true => Ok(values),
            false => Err(self.expected("`,` or `]`")),
        }
    }
}

fn joined(mut parts: Vec<Constraint>, of: fn(Vec<Constraint>) -> Constraint) -> Constraint {
    match parts.len() {
        1 => parts.remove(0),
        _ => of(parts),
    }
}
