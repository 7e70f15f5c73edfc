//! Values of a file as they are written: what is wrong with one is told where it stands, and not at its list or table.
//!
//! For files of which every key is known: policies and recipes.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Display;
use std::str::FromStr;

use toml::Spanned;

use crate::env::check_variable;

/// The offset and the text of what is wrong.
pub(crate) type WrongText = (usize, String);

/// What is wrong with `value`.
pub(crate) fn wrong<T>(value: &Spanned<T>, error: &impl Display) -> WrongText {
    (value.span().start, error.to_string())
}

/// Reads one value.
pub(crate) fn one<T: FromStr<Err: Display>>(text: &Spanned<String>) -> Result<T, WrongText> {
    text.get_ref().parse().map_err(|error: T::Err| wrong(text, &error))
}

/// Reads each value of a list.
pub(crate) fn all<T: FromStr<Err: Display>>(list: &[Spanned<String>]) -> Result<Vec<T>, WrongText> {
    list.iter().map(one).collect()
}

/// Reads a table of variables.
pub(crate) fn variables<T: From<String>, C: FromIterator<(T, T)>>(
    table: &BTreeMap<Spanned<String>, Spanned<String>>,
) -> Result<C, WrongText> {
    let variable = |(name, value): (&Spanned<String>, &Spanned<String>)| {
        check_variable(OsStr::new(name.get_ref()), OsStr::new(value.get_ref())).map_err(|error| wrong(name, &error))?;
        Ok((name.get_ref().clone().into(), value.get_ref().clone().into()))
    };
    table.iter().map(variable).collect()
}
