//! Lists of byte strings: arguments and variables, as a program is started with them or as others hold them.

/// Byte strings, one after another.
pub trait Strings {
    /// The string at `place`; `None` behind the last one.
    fn get(&self, place: usize) -> Option<&[u8]>;

    /// Whether the string at `place` begins with `start`; `None` behind the last one.
    fn begins(&self, place: usize, start: &[u8]) -> Option<bool> {
        self.get(place).map(|string| after(string, start).is_some())
    }
}

impl<T: AsRef<[u8]>> Strings for [T] {
    fn get(&self, place: usize) -> Option<&[u8]> {
        self.get(place).map(AsRef::as_ref)
    }
}

/// All of them from `first` on.
pub(crate) fn from<S: Strings + ?Sized>(strings: &S, first: usize) -> impl Iterator<Item = &[u8]> {
    (first..).map_while(|place| strings.get(place))
}

/// The value of the variable `name` in an environment of `NAME=VALUE`.
pub(crate) fn variable<'a, S: Strings + ?Sized>(env: &'a S, name: &[u8]) -> Option<&'a [u8]> {
    let mut places = (0..).map_while(|place| Some((place, env.begins(place, name)?)));
    places.find_map(|(place, begins)| match begins {
        true => after(after(env.get(place)?, name)?, b"="),
        false => None,
    })
}

/// Whether two strings are the same.
pub(crate) fn same(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| one == other)
}

/// What follows `start` in `text`, if it begins so.
pub(crate) fn after<'a>(text: &'a [u8], start: &[u8]) -> Option<&'a [u8]> {
    let (begin, rest) = text.split_at_checked(start.len())?;
    same(begin, start).then_some(rest)
}

/// Whether `one` comes before `other`.
pub(crate) fn is_before(one: &[u8], other: &[u8]) -> bool {
    let differ = one.iter().zip(other).find(|(one, other)| one != other);
    differ.map_or(one.len() < other.len(), |(one, other)| one < other)
}
