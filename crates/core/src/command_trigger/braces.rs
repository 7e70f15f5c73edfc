//! Words of a shell with alternatives in braces: `{rm,-rf}` is two. Pure.

/// The most words that one becomes, and what it may have for that.
const MAX_WORDS: usize = 64;
const MAX_BYTES: usize = 4096;
const MAX_BRACES: usize = 16;

/// The words that one with braces stands for; `None` if they are too many to be told. Sequences, as `{1..3}`, are left as they are.
pub(super) fn expanded(word: &str) -> Option<Vec<String>> {
    if word.len() > MAX_BYTES || word.matches('{').count() > MAX_BRACES {
        return None;
    }
    let (mut done, mut open) = (Vec::new(), vec![word.to_owned()]);
    while let Some(word) = open.pop() {
        match alternatives(&word) {
            // The first one is looked at next.
            Some(words) => open.extend(words.into_iter().rev()),
            None => done.push(word),
        }
        if done.len() + open.len() > MAX_WORDS {
            return None;
        }
    }
    Some(done)
}

/// What a word with the first of its braces stands for.
fn alternatives(word: &str) -> Option<Vec<String>> {
    let begins = word.char_indices().filter(|(_, character)| *character == '{');
    begins.map(|(begin, _)| begin).find_map(|begin| {
        let (inside, after) = closed(&word[begin + 1..])?;
        let parts = parts(inside);
        let whole = |part: &str| format!("{}{part}{after}", &word[..begin]);
        (parts.len() > 1).then(|| parts.into_iter().map(whole).collect())
    })
}

/// What stands before the brace that closes, and what behind it.
fn closed(text: &str) -> Option<(&str, &str)> {
    let mut depth = 0_usize;
    for (place, character) in text.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth == 0 => return Some((&text[..place], &text[place + 1..])),
            '}' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// The alternatives between two braces.
fn parts(inside: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut begin) = (Vec::new(), 0_usize, 0);
    for (place, character) in inside.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(&inside[begin..place]);
                begin = place + 1;
            }
            _ => {}
        }
    }
    parts.push(&inside[begin..]);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alternatives_are_words_of_their_own() {
        for (word, words) in [
            ("{rm,-rf}", &["rm", "-rf"][..]),
            ("a{b,c{d,e}}f", &["abf", "acdf", "acef"]),
            ("{a}{b,c}", &["{a}b", "{a}c"]),
            ("{", &["{"]),
            ("{}", &["{}"]),
            ("{1..3}", &["{1..3}"]),
            ("{a,b", &["{a,b"]),
            ("{,}", &["", ""]),
        ] {
            assert_eq!(expanded(word).unwrap(), words, "{word}");
        }
        for many in [
            "{a,b}".repeat(7),
            "{".repeat(17),
            format!("{{{}}}", "a,".repeat(64)),
            "{".to_owned() + &"a".repeat(MAX_BYTES),
        ] {
            assert_eq!(expanded(&many), None);
        }
    }
}
