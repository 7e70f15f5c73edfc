//! The configuration file as it is written: what is wrong with a key is told where that key stands.

use std::ops::Range;
use std::path::{Path, PathBuf};

use offleash_core::policy::PolicyError;
use offleash_core::text::Text;
use toml::de::{DeTable, DeValue};

use super::keys::{TABLES, Tables};
use crate::failure::Failure;

/// What to do about most of what is wrong.
pub(super) const HINT: &str = "docs/serve.md has every key, with its default";

/// What is wrong with the value of a key.
#[derive(Debug)]
pub(super) struct Wrong {
    /// The key with its tables, as in `pool.templates.NAME.min`.
    key: String,
    /// Which entry of its list.
    item: Option<usize>,
    message: String,
    hint: String,
}

impl Wrong {
    pub(super) fn new(key: impl Into<String>, message: impl std::fmt::Display) -> Self {
        Self {
            key: key.into(),
            item: None,
            message: message.to_string(),
            hint: HINT.to_owned(),
        }
    }

    /// What is wrong with one entry of a list.
    pub(super) fn item(key: impl Into<String>, item: usize, message: impl std::fmt::Display) -> Self {
        Self {
            item: Some(item),
            ..Self::new(key, message)
        }
    }

    /// Whether it is about a flag or a variable, which stand in no file.
    pub(super) fn is_flag(&self) -> bool {
        self.key
            .starts_with(|first: char| first == '-' || first.is_ascii_uppercase())
    }

    pub(super) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = hint.into();
        self
    }
}

/// What is wrong where there is no file: with a flag.
impl From<&Wrong> for Failure {
    fn from(wrong: &Wrong) -> Self {
        Self::new(format!("{}: {}", wrong.key, wrong.message)).with_hint(&wrong.hint)
    }
}

/// A file that was read.
#[derive(Debug)]
pub(super) struct Written {
    path: PathBuf,
    text: String,
    places: Vec<Place>,
}

/// Where a key and its value stand, in bytes.
#[derive(Debug)]
struct Place {
    key: String,
    item: Option<usize>,
    name: Range<usize>,
    value: Range<usize>,
}

impl Written {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// When it cannot be read, is no TOML, has a key that is not known, or a value that is not what its key takes.
    pub(super) fn read(path: &Path) -> Result<(Self, Tables), Failure> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            Failure::new(format!("reading `{}`: {error}", Text::from(path)))
                .with_hint("`--config FILE` names a file that can be read")
        })?;
        Self::parse(path, text)
    }

    pub(super) fn parse(path: &Path, text: String) -> Result<(Self, Tables), Failure> {
        let mut written = Self {
            path: path.to_owned(),
            text,
            places: Vec::new(),
        };
        let text = written.text.clone();
        let root = DeTable::parse(&text).map_err(|error| written.refused(&error))?;
        places_of(root.get_ref(), "", &mut written.places);
        let tables = Tables::of(root).map_err(|error| written.refused(&error))?;
        Ok((written, tables))
    }

    /// What the parser of the file says, with the key in which it stands.
    fn refused(&self, error: &toml::de::Error) -> Failure {
        let start = error.span().map_or(0, |span| span.start);
        let within = |place: &&Place| place.name.contains(&start) || place.value.contains(&start);
        let places = self.places.iter().filter(within);
        let message = match places.max_by_key(|place| place.key.len()) {
            Some(place) if self.is_unknown_table(place) => {
                let tables = TABLES.map(|name| format!("`[{name}]`")).join(", ");
                format!(
                    "{key}: unknown field `{key}`, expected one of the tables {tables}",
                    key = place.key.escape_debug()
                )
            }
            Some(place) => format!("{}: {}", place.key, error.message()),
            None => error.message().to_owned(),
        };
        self.at(start, &message, HINT)
    }

    /// Whether a key is written as a table, and there is none of that name.
    fn is_unknown_table(&self, place: &Place) -> bool {
        let is_header = self.text[..place.name.start].trim_end().ends_with('[');
        is_header && !place.key.contains('.') && !TABLES.contains(&place.key.as_str())
    }

    /// What is wrong, where it stands; with a key that is not written, where the next table around it does.
    pub(super) fn wrong(&self, wrong: &Wrong) -> Failure {
        let message = format!("{}: {}", wrong.key, wrong.message);
        self.at(self.start(&wrong.key, wrong.item), &message, &wrong.hint)
    }

    fn start(&self, key: &str, item: Option<usize>) -> usize {
        let found = self.places.iter().find(|place| place.key == key && place.item == item);
        match (found, item, key.rsplit_once('.')) {
            (Some(place), Some(_), _) => place.value.start,
            (Some(place), None, _) => place.name.start,
            (None, Some(_), _) => self.start(key, None),
            (None, None, Some((around, _))) => self.start(around, None),
            (None, None, None) => 0,
        }
    }

    fn at(&self, offset: usize, message: &str, hint: &str) -> Failure {
        Failure::at(&self.path, &PolicyError::at(&self.text, offset, message)).with_hint(hint)
    }
}

fn places_of(table: &DeTable<'_>, around: &str, places: &mut Vec<Place>) {
    for (name, value) in table {
        let key = match around {
            "" => name.get_ref().to_string(),
            around => format!("{around}.{}", name.get_ref()),
        };
        let items = match value.get_ref() {
            DeValue::Table(below) => {
                places_of(below, &key, places);
                None
            }
            DeValue::Array(items) => Some(items),
            _ => None,
        };
        for (number, item) in items.into_iter().flatten().enumerate() {
            places.push(Place {
                key: key.clone(),
                item: Some(number),
                name: item.span(),
                value: item.span(),
            });
        }
        places.push(Place {
            key,
            item: None,
            name: name.span(),
            value: value.span(),
        });
    }
}
