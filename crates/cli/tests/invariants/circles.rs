//! Which modules of a room name each other in a circle, read from its sources.
//!
//! A file `x.rs` and the folder `x/` are one module here, that of the crate's root below which they are: within it files may
//! belong together in any way. Between them arrows go one way, as between rooms. Tests are left out.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::{is_test_file, rooms, root, rust_files};

/// How many modules each circle has that is there still, by room, the largest first. Numbers may only become smaller: whoever
/// opens a circle writes down what is left.
const CIRCLES: [(&str, &[usize]); 10] = [
    ("core", &[4]),
    ("guest", &[3]),
    ("isolation", &[5]),
    ("store", &[3, 3]),
    ("gateway", &[3]),
    ("interpreter", &[5]),
    ("images", &[2]),
    ("planner", &[4]),
    ("supervisor", &[5]),
    ("cli", &[4, 3, 3]),
];

/// The module that `lib.rs` or `main.rs` is.
const ROOT: &str = "(root)";

/// Which modules of a crate a module names, and where it does.
type Arrows = BTreeMap<String, BTreeMap<String, String>>;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Word(String),
    /// `::`
    Colons,
    /// Any other character that is none of a word.
    Sign(char),
}

/// The words and signs of a source, without comments, texts and characters.
fn tokens(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        rest = if rest.starts_with("//") {
            behind(rest, "\n")
        } else if let Some(comment) = rest.strip_prefix("/*") {
            behind(comment, "*/")
        } else if let Some(raw) = raw_text(rest) {
            raw
        } else if first == '"' {
            behind_text(&rest[1..])
        } else if first == '\'' {
            behind_quote(rest)
        } else if first.is_alphanumeric() || first == '_' {
            let end = rest
                .find(|letter: char| !letter.is_alphanumeric() && letter != '_')
                .unwrap_or(rest.len());
            tokens.push(Token::Word(rest[..end].to_owned()));
            &rest[end..]
        } else if let Some(behind) = rest.strip_prefix("::") {
            tokens.push(Token::Colons);
            behind
        } else {
            if !first.is_whitespace() {
                tokens.push(Token::Sign(first));
            }
            &rest[first.len_utf8()..]
        };
    }
    tokens
}

fn behind<'a>(text: &'a str, end: &str) -> &'a str {
    text.find(end).map_or("", |at| &text[at + end.len()..])
}

/// What is behind `r"…"` or `r#"…"#`, also of bytes, at the beginning of a text.
fn raw_text(text: &str) -> Option<&str> {
    let raw = text.strip_prefix("br").or_else(|| text.strip_prefix('r'))?;
    let content = raw.trim_start_matches('#');
    let hashes = &raw[..raw.len() - content.len()];
    let content = content.strip_prefix('"')?;
    Some(behind(content, &format!("\"{hashes}")))
}

fn behind_text(text: &str) -> &str {
    let mut is_escaped = false;
    for (at, letter) in text.char_indices() {
        match letter {
            '"' if !is_escaped => return &text[at + 1..],
            '\\' => is_escaped = !is_escaped,
            _ => is_escaped = false,
        }
    }
    ""
}

/// What is behind a character, or behind the quote of a lifetime.
fn behind_quote(text: &str) -> &str {
    let inside = &text[1..];
    let mut letters = inside.char_indices();
    match letters.next() {
        Some((_, '\\')) => {
            // An escaped quote is none that ends it.
            let from = letters
                .next()
                .map_or(inside.len(), |(at, letter)| at + letter.len_utf8());
            behind(&inside[from..], "'")
        }
        Some((_, letter)) if inside[letter.len_utf8()..].starts_with('\'') => &inside[letter.len_utf8() + 1..],
        _ => inside,
    }
}

/// Without items that are there for tests alone.
fn without_tests(tokens: &[Token]) -> Vec<Token> {
    let word = |text: &str| Token::Word(text.to_owned());
    let marks = [
        Token::Sign('#'),
        Token::Sign('['),
        word("cfg"),
        Token::Sign('('),
        word("test"),
        Token::Sign(')'),
        Token::Sign(']'),
    ];
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if tokens[at..].starts_with(&marks) {
            at = end_of_item(tokens, at + marks.len());
        } else {
            kept.push(tokens[at].clone());
            at += 1;
        }
    }
    kept
}

/// Where the item ends that begins there: behind its `;`, or behind its braces.
fn end_of_item(tokens: &[Token], from: usize) -> usize {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate().skip(from) {
        match token {
            Token::Sign('{') => depth += 1,
            Token::Sign('}') if depth == 1 => return at + 1,
            Token::Sign('}') => depth = depth.saturating_sub(1),
            Token::Sign(';') if depth == 0 => return at + 1,
            _ => {}
        }
    }
    tokens.len()
}

/// A path that stands in a source, from the crate's root on, and what its last word is called there.
#[derive(Debug, Clone, PartialEq, Eq)]
struct NamedPath {
    words: Vec<String>,
    name: String,
}

/// All paths that begin with `crate`, `self` or `super` in the file of `module`, and in its root those that begin with one of
/// `children`.
fn paths(tokens: &[Token], module: &[String], children: &BTreeSet<String>) -> Vec<NamedPath> {
    let mut found = Vec::new();
    // Modules that are written in the file, each with the depth of braces at which it began.
    let mut inline: Vec<(usize, String)> = Vec::new();
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate() {
        match token {
            Token::Sign('{') => {
                if let [Token::Word(keyword), Token::Word(name)] = &tokens[at.saturating_sub(2)..at]
                    && keyword == "mod"
                {
                    inline.push((depth, name.clone()));
                }
                depth += 1;
            }
            Token::Sign('}') => {
                depth = depth.saturating_sub(1);
                inline.retain(|(began, _)| *began < depth);
            }
            Token::Word(word) if at == 0 || tokens[at - 1] != Token::Colons => {
                let own = || {
                    module
                        .iter()
                        .cloned()
                        .chain(inline.iter().map(|(_, name)| name.clone()))
                };
                let base: Option<Vec<String>> = match word.as_str() {
                    "crate" => Some(Vec::new()),
                    "self" => Some(own().collect()),
                    "super" => {
                        let mut own: Vec<String> = own().collect();
                        own.pop();
                        Some(own)
                    }
                    child if module.is_empty() && children.contains(child) => Some(vec![child.to_owned()]),
                    _ => None,
                };
                if let Some(base) = base
                    && tokens.get(at + 1) == Some(&Token::Colons)
                {
                    expand(tokens, at + 2, base, &mut found);
                }
            }
            _ => {}
        }
    }
    found
}

/// Adds the paths that go on at `at`, where `base` has been read; answers where they end.
fn expand(tokens: &[Token], at: usize, base: Vec<String>, found: &mut Vec<NamedPath>) -> usize {
    match tokens.get(at) {
        Some(Token::Sign('{')) => {
            let mut at = at + 1;
            while let Some(token) = tokens.get(at) {
                match token {
                    Token::Sign('}') => return at + 1,
                    Token::Sign(',') => at += 1,
                    _ => at = expand(tokens, at, base.clone(), found),
                }
            }
            at
        }
        Some(Token::Word(word)) => {
            let mut words = base;
            match word.as_str() {
                "super" => {
                    words.pop();
                }
                "self" => {}
                word => words.push(word.to_owned()),
            }
            if tokens.get(at + 1) == Some(&Token::Colons) && !matches!(tokens.get(at + 2), Some(Token::Sign('<'))) {
                return expand(tokens, at + 2, words, found);
            }
            let (name, end) = match (tokens.get(at + 1), tokens.get(at + 2)) {
                (Some(Token::Word(keyword)), Some(Token::Word(name))) if keyword == "as" => (name.clone(), at + 3),
                _ => (words.last().cloned().unwrap_or_default(), at + 1),
            };
            found.push(NamedPath { words, name });
            end
        }
        // `*`, or something of a macro.
        _ => {
            let name = String::new();
            found.push(NamedPath { words: base, name });
            at + 1
        }
    }
}

/// The module of a file, from the crate's root on.
fn module_of(file: &Path, source: &Path) -> Vec<String> {
    let relative = file.strip_prefix(source).unwrap().with_extension("");
    let mut words: Vec<String> = relative
        .components()
        .map(|part| part.as_os_str().to_string_lossy().into_owned())
        .collect();
    let is_root = words.len() == 1 && ["lib", "main"].contains(&words[0].as_str());
    if is_root || words.last().is_some_and(|last| last == "mod") {
        words.pop();
    }
    words
}

fn arrows_of(room: &str) -> Arrows {
    let source = root().join("crates").join(room).join("src");
    let mut files: Vec<_> = rust_files(&source)
        .into_iter()
        .filter(|file| !is_test_file(file))
        .map(|file| (module_of(&file, &source), fs::read_to_string(file).unwrap()))
        .collect();
    files.sort();
    arrows(&files)
}

/// The arrows between the modules of a crate that has these files.
fn arrows(files: &[(Vec<String>, String)]) -> Arrows {
    let modules: BTreeSet<String> = files.iter().filter_map(|(module, _)| module.first().cloned()).collect();
    let read = |text: &str| without_tests(&tokens(text));
    // What the root has from its modules is theirs.
    let mut from_modules: BTreeMap<String, String> = BTreeMap::new();
    for (_, text) in files.iter().filter(|(module, _)| module.is_empty()) {
        for path in paths(&read(text), &[], &modules) {
            if let Some(of) = path.words.first().filter(|of| modules.contains(*of)) {
                from_modules.insert(path.name, of.clone());
            }
        }
    }
    let mut arrows = Arrows::new();
    for (module, text) in files {
        let from = module.first().map_or(ROOT, String::as_str);
        for path in paths(&read(text), module, &modules) {
            let to = match path.words.first() {
                Some(word) if modules.contains(word) => word,
                Some(word) => from_modules.get(word).map_or(ROOT, String::as_str),
                None => ROOT,
            };
            if to != from {
                let of = arrows.entry(from.to_owned()).or_default();
                of.entry(to.to_owned())
                    .or_insert_with(|| format!("`{}` names `{}`", module.join("::"), path.words.join("::")));
            }
        }
    }
    arrows
}

/// The modules that each reach each other, the largest circle first.
fn circles(arrows: &Arrows) -> Vec<BTreeSet<String>> {
    let reached = |from: &str| {
        let mut seen = BTreeSet::new();
        let mut todo = vec![from.to_owned()];
        while let Some(next) = todo.pop() {
            for to in arrows.get(&next).into_iter().flat_map(BTreeMap::keys) {
                if seen.insert(to.clone()) {
                    todo.push(to.clone());
                }
            }
        }
        seen
    };
    let all: BTreeMap<&String, BTreeSet<String>> = arrows.keys().map(|from| (from, reached(from))).collect();
    let circle = |of: &String| -> BTreeSet<String> {
        let others = all[of].iter();
        others
            .filter(|other| all.get(other).is_some_and(|reached| reached.contains(of)))
            .cloned()
            .collect()
    };
    let found: BTreeSet<BTreeSet<String>> = all.keys().map(|of| circle(of)).filter(|one| one.len() > 1).collect();
    let mut found: Vec<_> = found.into_iter().collect();
    found.sort_by_key(|one| std::cmp::Reverse(one.len()));
    found
}

/// A circle, with all arrows in it.
fn told(circle: &BTreeSet<String>, arrows: &Arrows) -> String {
    let mut lines = vec![format!("  {} modules:", circle.len())];
    for from in circle {
        for (to, place) in arrows.get(from).into_iter().flatten() {
            if circle.contains(to) {
                lines.push(format!("    {from} -> {to}: {place}"));
            }
        }
    }
    lines.join("\n")
}

#[test]
fn modules_of_a_room_name_each_other_one_way() {
    let mut wrong = Vec::new();
    for room in rooms() {
        let arrows = arrows_of(room);
        let circles = circles(&arrows);
        let sizes: Vec<usize> = circles.iter().map(BTreeSet::len).collect();
        let known = CIRCLES
            .iter()
            .find(|(known, _)| *known == room)
            .map_or(&[][..], |(_, sizes)| sizes);
        if sizes != known {
            let told: Vec<String> = circles.iter().map(|circle| told(circle, &arrows)).collect();
            wrong.push(format!(
                "{room}: circles of {sizes:?} modules, and the table says {known:?}\n{}",
                told.join("\n")
            ));
        }
    }
    assert!(
        wrong.is_empty(),
        "modules name each other in circles; where there are fewer than before, the table is to say so\n{}",
        wrong.join("\n")
    );
}

#[test]
fn a_circle_is_found_however_it_is_written() {
    let files = |texts: &[(&str, &str)]| -> Vec<(Vec<String>, String)> {
        let module = |path: &str| {
            path.split('/')
                .filter(|part| !part.is_empty())
                .map(str::to_owned)
                .collect()
        };
        texts
            .iter()
            .map(|(path, text)| (module(path), (*text).to_owned()))
            .collect()
    };
    let sizes =
        |texts: &[(&str, &str)]| -> Vec<usize> { circles(&arrows(&files(texts))).iter().map(BTreeSet::len).collect() };
    let to_b = ("a", "use crate::b::B;");
    for back in [
        "use crate::{c, a::{self, A}};",
        "fn f() { super::a::g(); }",
        "use super::{c, a};",
        "mod inner { fn f(_: &'static str) -> char { super::super::a::g(); '\\'' } }",
        "fn f() -> crate::A { '\"'; loop {} }",
    ] {
        let texts = [("", "pub use self::a::A;"), to_b, ("b", back), ("c", "")];
        assert_eq!(sizes(&texts), [2], "{back}");
    }
    for none in [
        "// crate::a::A\n/* crate::a */ fn f() { \"\\\" crate::a::A\"; r#\"\"crate::a\"#; }",
        "#[cfg(test)]\nmod tests { use crate::a::A; }\nfn f() {}",
        "#[cfg(test)]\nuse crate::a::A;",
        "use crate::c::C;",
    ] {
        let texts = [("", "pub use self::a::A;"), to_b, ("b", none), ("c", "")];
        assert_eq!(sizes(&texts), [0; 0], "{none}");
    }
    // A folder and its file are one module; the root is one, too.
    assert_eq!(sizes(&[("a", "use self::x::X;"), ("a/x", "use super::A;")]), [0; 0]);
    assert_eq!(sizes(&[("a/x", "use crate::b::B;"), ("b", "use crate::a::A;")]), [2]);
    assert_eq!(
        sizes(&[("", "use self::a::A; struct Own;"), ("a", "use crate::Own;")]),
        [2]
    );
    let three = [
        ("a", "use crate::b::B;"),
        ("b", "use crate::c::C;"),
        ("c", "use crate::a::A;"),
    ];
    assert_eq!(sizes(&three), [3]);
}
