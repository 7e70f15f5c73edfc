//! What the tests of several modules make up: names, and the ways to write one.

use proptest::prelude::*;

/// Names of a small world, so that rules and hosts often meet.
pub(crate) fn names() -> impl Strategy<Value = String> {
    let label = prop::sample::select(vec!["a", "b", "api", "xn--zca", "x_y", "r3---s"]);
    let base = prop::sample::select(vec!["example.com", "example.org", "ample.com"]);
    (prop::collection::vec(label, 0..4), base).prop_map(|(labels, base)| {
        let mut labels = labels;
        labels.push(base);
        labels.join(".")
    })
}

/// Another way to write `name`: other case, full-width letters, other full stops, the root's dot.
pub(crate) fn spelling_of(name: String) -> impl Strategy<Value = String> {
    let ways = prop::collection::vec(0_u8..4, name.len());
    let end = prop::sample::select(vec!["", ".", "\u{3002}", "\u{ff0e}", "\u{ff61}"]);
    (ways, end).prop_map(move |(ways, end)| {
        let spelled = name.chars().zip(ways).map(|(character, way)| match (way, character) {
            (1, letter) => letter.to_ascii_uppercase(),
            (2, '.') => '\u{3002}',
            (3, '.') => '\u{ff61}',
            (2, '!'..='~') => char::from_u32(u32::from(character) + 0xfee0).unwrap(),
            _ => character,
        });
        spelled.collect::<String>() + end
    })
}
