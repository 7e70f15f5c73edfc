//! The commands of a line for a shell, as far as they can be told without running it. Pure.
//!
//! Where a line can be read in two ways, because shells differ, both are answered: whoever asks wants to miss none. What variables,
//! patterns and aliases become is not known here.

use super::braces;

/// How deep quotes and substitutions may lie in each other: they are read by recursion.
const MAX_NESTED: usize = 64;

/// What there is in a line.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ShellLine {
    /// Simple commands, in words, without quotes and redirections.
    pub(super) commands: Vec<Vec<String>>,
    /// Texts that are lines themselves, or may be: those of here-documents, and between backquotes.
    pub(super) lines: Vec<String>,
    /// Whether some of it was not read.
    pub(super) is_too_deep: bool,
}

/// Reads a line.
pub(super) fn read(line: &str) -> ShellLine {
    let mut reader = LineReader {
        characters: line.chars().collect(),
        at: 0,
        nested: 0,
        doubled: 0,
        documents: Vec::new(),
        found: ShellLine::default(),
    };
    reader.list(false);
    reader.found
}

/// A word without its quotes.
#[derive(Debug, Default)]
struct ShellWord {
    text: String,
    /// Whether none of it was quoted or substituted.
    is_plain: bool,
    has_brace: bool,
}

/// What the next word of a command is.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum NextWord {
    #[default]
    OfCommand,
    /// Where a redirection leads.
    Target,
    /// What a command reads: `<<<`.
    Input,
    /// What a here-document ends with, whether or not its lines begin with tabs.
    End { strips_tabs: bool },
}

/// A command that is being read.
#[derive(Debug, Default)]
struct SimpleCommand {
    words: Vec<String>,
    /// Whether the first word can be one of the shell's own, which no quoted one is.
    is_plain: bool,
    word: Option<ShellWord>,
    /// Whether the last character belonged to a word, also one of which nothing is left.
    is_in_word: bool,
    next: NextWord,
    /// Words before which another command may have ended.
    also_from: Vec<usize>,
}

impl SimpleCommand {
    fn word(&mut self) -> &mut ShellWord {
        self.is_in_word = true;
        self.word.get_or_insert_with(|| ShellWord {
            is_plain: true,
            ..ShellWord::default()
        })
    }

    /// An expansion of which nothing is left. What a redirection needs is a word all the same.
    fn nothing(&mut self) {
        self.is_in_word = true;
        if self.next != NextWord::OfCommand {
            self.quoted();
        }
    }

    fn quoted(&mut self) -> &mut ShellWord {
        let word = self.word();
        word.is_plain = false;
        word
    }
}

/// A here-document whose lines have not come yet.
#[derive(Debug)]
struct HereDocument {
    end: String,
    strips_tabs: bool,
}

struct LineReader {
    characters: Vec<char>,
    at: usize,
    nested: usize,
    /// How many `((` it is in: arithmetic, or subshells.
    doubled: usize,
    documents: Vec<HereDocument>,
    found: ShellLine,
}

impl LineReader {
    fn peek(&self) -> Option<char> {
        self.characters.get(self.at).copied()
    }

    fn next(&mut self) -> Option<char> {
        let next = self.peek();
        self.at += usize::from(next.is_some());
        next
    }

    fn next_if(&mut self, wanted: &[char]) -> Option<char> {
        self.peek()
            .filter(|next| wanted.contains(next))
            .inspect(|_| self.at += 1)
    }

    /// Reads something that lies in something else.
    fn within(&mut self, read: impl FnOnce(&mut Self)) {
        if self.nested >= MAX_NESTED {
            self.found.is_too_deep = true;
            return;
        }
        self.nested += 1;
        read(self);
        self.nested -= 1;
    }

    /// Commands up to the end, or up to the parenthesis that closes them.
    fn list(&mut self, is_closed: bool) {
        let mut command = SimpleCommand::default();
        let mut cases = 0_usize;
        while let Some(character) = self.next() {
            match character {
                ' ' | '\t' => self.end_word(&mut command),
                ';' | '|' => self.end_command(&mut command, &mut cases),
                '\n' => {
                    self.end_command(&mut command, &mut cases);
                    self.read_documents();
                }
                '&' => self.ampersand(&mut command, &mut cases),
                ')' => {
                    self.end_command(&mut command, &mut cases);
                    // That of a pattern closes nothing.
                    if is_closed && cases == 0 {
                        return;
                    }
                }
                '(' => self.parenthesis(&mut command, &mut cases),
                '#' if !command.is_in_word => self.comment(),
                '<' | '>' => self.redirection(character, &mut command),
                other => self.part_of_word(other, &mut command),
            }
        }
        self.end_command(&mut command, &mut cases);
        self.read_documents();
    }

    fn part_of_word(&mut self, character: char, command: &mut SimpleCommand) {
        match character {
            '\\' => match self.next() {
                // What is on the next line goes on.
                Some('\n') | None => {}
                Some(next) => command.quoted().text.push(next),
            },
            '\'' => {
                let word = command.quoted();
                while let Some(inside) = self.next().filter(|inside| *inside != '\'') {
                    word.text.push(inside);
                }
            }
            '"' => {
                let mut text = String::new();
                self.within(|reader| reader.double_quotes(&mut text));
                command.quoted().text.push_str(&text);
            }
            '`' => {
                self.backquotes(false);
                command.quoted();
            }
            '$' => self.dollar(command),
            plain => {
                let word = command.word();
                word.has_brace |= plain == '{';
                word.text.push(plain);
            }
        }
    }

    /// A comment, up to the end of its line. In what may be arithmetic it may be none.
    fn comment(&mut self) {
        let begin = self.at;
        while self.peek().is_some_and(|next| next != '\n') {
            self.at += 1;
        }
        if self.doubled > 0 {
            let text = self.characters[begin..self.at].iter().collect();
            self.found.lines.push(text);
        }
    }

    fn ampersand(&mut self, command: &mut SimpleCommand, cases: &mut usize) {
        if self.next_if(&['>']).is_none() {
            self.end_command(command, cases);
            return;
        }
        // Bash redirects both streams; for others a command ends, and the next one begins with a redirection.
        self.next_if(&['>']);
        self.end_word(command);
        command.also_from.push(command.words.len());
        command.next = NextWord::Target;
    }

    fn parenthesis(&mut self, command: &mut SimpleCommand, cases: &mut usize) {
        let before = command.word.as_ref().and_then(|word| word.text.chars().last());
        // A pattern or an array is part of a word; to some shells it is a list of commands all the same.
        let goes_on = before.is_some_and(|before| "?*+@!=".contains(before));
        if !goes_on {
            self.end_command(command, cases);
        }
        self.parentheses();
        if goes_on {
            command.quoted();
        }
    }

    /// A list in parentheses, of which the first one was read.
    fn parentheses(&mut self) {
        let is_doubled = self.peek() == Some('(');
        self.doubled += usize::from(is_doubled);
        self.within(|reader| reader.list(true));
        self.doubled -= usize::from(is_doubled);
    }

    fn redirection(&mut self, character: char, command: &mut SimpleCommand) {
        if self.next_if(&['(']).is_some() {
            self.parentheses();
            command.quoted();
            return;
        }
        // The number of a descriptor, or the name of a variable for one, is no word of the command.
        let is_descriptor = |word: &ShellWord| {
            let name = word.text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
            word.is_plain
                && (name.is_some_and(|name| name.chars().all(is_of_name))
                    || word.text.bytes().all(|byte| byte.is_ascii_digit()))
        };
        match command.word.take_if(|word| is_descriptor(word)) {
            Some(_) => command.is_in_word = false,
            None => self.end_word(command),
        }
        command.next = match (character, self.next_if(&['<', '>', '&', '|'])) {
            ('<', Some('<')) => match self.next_if(&['<', '-']) {
                Some('<') => NextWord::Input,
                dash => NextWord::End {
                    strips_tabs: dash.is_some(),
                },
            },
            _ => NextWord::Target,
        };
    }

    /// What follows a `$`.
    fn dollar(&mut self, command: &mut SimpleCommand) {
        if self.next_if(&['\'']).is_some() {
            let text = self.escapes();
            command.quoted().text.push_str(&text);
            return;
        }
        if self.next_if(&['"']).is_some() {
            self.part_of_word('"', command);
            return;
        }
        // Arguments of the shell, of which there are none.
        if self
            .next_if(&['@', '*', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9'])
            .is_some()
        {
            command.nothing();
            return;
        }
        let mut text = String::new();
        self.expansion(&mut text, false);
        match text.trim_start_matches(['$', '{']).strip_prefix("IFS") {
            // Blanks.
            Some(rest) if !rest.starts_with(is_of_name) => {
                self.end_word(command);
                command.nothing();
            }
            _ => command.quoted().text.push_str(&text),
        }
    }

    /// A variable or a substitution, whose `$` was read.
    fn expansion(&mut self, text: &mut String, is_quoted: bool) {
        text.push('$');
        if self.next_if(&['(']).is_some() {
            self.parentheses();
        } else if self.next_if(&['{']).is_some() {
            text.push('{');
            self.within(|reader| reader.parameter(text, is_quoted));
        } else {
            while let Some(next) = self.peek().filter(|next| is_of_name(*next)) {
                self.at += 1;
                text.push(next);
            }
        }
    }

    /// The rest of `${…}`.
    fn parameter(&mut self, text: &mut String, is_quoted: bool) {
        while let Some(character) = self.next() {
            match character {
                '}' => {
                    text.push('}');
                    return;
                }
                '\\' => text.extend(self.next()),
                '\'' if !is_quoted => while self.next().is_some_and(|inside| inside != '\'') {},
                '"' => self.within(|reader| reader.double_quotes(text)),
                '`' => self.backquotes(is_quoted),
                '$' => self.within(|reader| reader.expansion(text, is_quoted)),
                other => text.push(other),
            }
        }
    }

    /// The rest of what stands in double quotes.
    fn double_quotes(&mut self, text: &mut String) {
        while let Some(character) = self.next() {
            match character {
                '"' => return,
                '\\' => match self.next() {
                    Some('\n') | None => {}
                    Some(next) => {
                        if !"$`\"\\".contains(next) {
                            text.push('\\');
                        }
                        text.push(next);
                    }
                },
                '`' => self.backquotes(true),
                '$' => self.expansion(text, true),
                other => text.push(other),
            }
        }
    }

    /// The rest of a command in backquotes.
    fn backquotes(&mut self, is_quoted: bool) {
        let mut line = String::new();
        while let Some(character) = self.next().filter(|next| *next != '`') {
            let escaped: &[char] = if is_quoted {
                &['`', '\\', '$', '"']
            } else {
                &['`', '\\', '$']
            };
            line.push(match character {
                '\\' => self.next_if(escaped).unwrap_or('\\'),
                other => other,
            });
        }
        self.found.lines.push(line);
    }

    /// The rest of `$'…'`.
    fn escapes(&mut self) -> String {
        let mut text = String::new();
        while let Some(character) = self.next().filter(|next| *next != '\'') {
            if character != '\\' {
                text.push(character);
                continue;
            }
            match self.next() {
                Some('n') => text.push('\n'),
                Some('t') => text.push('\t'),
                Some('x') => text.extend(self.number(16, 2)),
                Some('u') => text.extend(self.number(16, 4)),
                Some('U') => text.extend(self.number(16, 8)),
                Some('0'..='7') => {
                    self.at -= 1;
                    text.extend(self.number(8, 3));
                }
                other => text.extend(other),
            }
        }
        text
    }

    /// The character of a number.
    fn number(&mut self, radix: u32, digits: usize) -> Option<char> {
        let mut number = 0_u32;
        for _ in 0..digits {
            let Some(digit) = self.peek().and_then(|next| next.to_digit(radix)) else {
                break;
            };
            self.at += 1;
            number = number.wrapping_mul(radix).wrapping_add(digit);
        }
        char::from_u32(number)
    }

    fn end_word(&mut self, command: &mut SimpleCommand) {
        command.is_in_word = false;
        let Some(word) = command.word.take() else { return };
        match std::mem::take(&mut command.next) {
            NextWord::OfCommand => {
                if command.words.is_empty() {
                    command.is_plain = word.is_plain;
                }
                match word.has_brace.then(|| braces::expanded(&word.text)) {
                    None => command.words.push(word.text),
                    Some(Some(words)) => command.words.extend(words),
                    Some(None) => self.found.is_too_deep = true,
                }
                // What follows a word of the shell's own begins a command.
                if command.is_plain && command.words.len() == 1 && is_reserved(&command.words[0]) {
                    command.words.clear();
                }
            }
            NextWord::Target => {}
            NextWord::Input => self.found.lines.push(word.text),
            NextWord::End { strips_tabs } => self.documents.push(HereDocument {
                end: word.text,
                strips_tabs,
            }),
        }
    }

    fn end_command(&mut self, command: &mut SimpleCommand, cases: &mut usize) {
        self.end_word(command);
        let SimpleCommand {
            words,
            is_plain,
            also_from,
            ..
        } = std::mem::take(command);
        match words.first().map(String::as_str).filter(|_| is_plain) {
            Some("case") => *cases += 1,
            Some("esac") => *cases = cases.saturating_sub(1),
            _ => {}
        }
        let others = also_from.iter().filter_map(|from| words.get(*from..));
        let others: Vec<Vec<String>> = others.map(<[String]>::to_vec).collect();
        let all = std::iter::once(words).chain(others);
        self.found.commands.extend(all.filter(|words| !words.is_empty()));
    }

    /// Reads the here-documents that begin on this line.
    fn read_documents(&mut self) {
        for HereDocument { end, strips_tabs } in std::mem::take(&mut self.documents) {
            let mut text = String::new();
            while self.at < self.characters.len() {
                let mut line = String::new();
                while let Some(next) = self.next().filter(|next| *next != '\n') {
                    line.push(next);
                }
                let bare = if strips_tabs {
                    line.trim_start_matches('\t')
                } else {
                    &line
                };
                if bare == end {
                    break;
                }
                text.push_str(bare);
                text.push('\n');
            }
            // Nobody knows who reads it: a shell may.
            self.found.lines.push(text);
        }
    }
}

fn is_of_name(character: char) -> bool {
    character == '_' || character.is_ascii_alphanumeric()
}

fn is_reserved(word: &str) -> bool {
    matches!(
        word,
        "{" | "}" | "!" | "if" | "then" | "else" | "elif" | "while" | "until" | "do"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_told_apart_as_a_shell_does() {
        for (line, commands) in [
            ("a b;c&d|e&&f", &[&["a", "b"][..], &["c"], &["d"], &["e"], &["f"]][..]),
            ("if a; then b; fi", &[&["a"], &["b"], &["fi"]]),
            ("'a'\"b\"c\\ d e", &[&["abc d", "e"]]),
            ("a\\\nb 'c\nd'", &[&["ab", "c\nd"]]),
            ("a # b\nc", &[&["a"], &["c"]]),
            ("a b#c $(d)#e; f", &[&["d"], &["a", "b#c", "$#e"], &["f"]]),
            ("a \"$(b) it's # \"; c", &[&["b"], &["a", "$ it's # "], &["c"]]),
            ("a ${b:-c #d}; e", &[&["a", "${b:-c #d}"], &["e"]]),
            ("$'\\x61\\142\\u0063' $\"d\"", &[&["abc", "d"]]),
            (">x a 2>&1 b>>c d <e", &[&["a", "b", "d"]]),
            ("a &>b c", &[&["a", "c"], &["c"]]),
            ("a$IFS-b${IFS}c $IFSx", &[&["a", "-b", "c", "$IFSx"]]),
            ("$@ a$@b $1#c; d", &[&["ab", "#c"], &["d"]]),
            ("<<<$IFS a >$@ b", &[&["a", "b"]]),
            ("{a,-b,c} d", &[&["a", "-b", "c", "d"]]),
            ("a <(b) >(c)", &[&["b"], &["c"], &["a", "", ""]]),
            (
                "a=$(case b in c) d \"'\";; esac); e",
                &[&["case", "b", "in", "c"], &["d", "'"], &["esac"], &["a=$"], &["e"]],
            ),
            ("\"$(\\case)\"; a", &[&["case"], &["$"], &["a"]]),
            ("a @(b|c) -d", &[&["b"], &["c"], &["a", "@", "-d"]]),
            ("f() { a; }", &[&["f"], &["a"]]),
            ("a\u{a0}#; b\r#; c", &[&["a\u{a0}#"], &["b\r#"], &["c"]]),
        ] {
            let found = read(line);
            assert_eq!(found.commands, commands, "{line:?}");
        }
    }

    #[test]
    fn texts_that_may_be_lines_are_told() {
        for (line, commands, lines) in [
            ("a <<E b\nit's\nE\nc", &[&["a", "b"][..], &["c"]][..], &["it's\n"][..]),
            ("a <<-'E'; b\n\tx\n\tE\nc", &[&["a"], &["b"], &["c"]], &["x\n"]),
            ("a <<<'b c' d", &[&["a", "d"]], &["b c"]),
            ("a \"`b \\`c\\``\" `d`", &[&["a", "", ""]], &["b `c`", "d"]),
            // Without an end it is all the rest, and so it is where it was none.
            ("((1<<2))\na", &[], &["a\n"]),
            ("((a #))\nb", &[&["a"], &["b"]], &["))"]),
        ] {
            let found = read(line);
            assert_eq!(found.commands, commands, "{line:?}");
            assert_eq!(found.lines, lines, "{line:?}");
        }
    }

    #[test]
    fn what_lies_too_deep_is_told_and_takes_no_stack() {
        for deep in ["$(", "(", "\"$(", "${a:-", "\"${a:-", "<("] {
            assert!(read(&deep.repeat(20_000)).is_too_deep, "{deep}");
            assert!(!read(&deep.repeat(MAX_NESTED / 4)).is_too_deep, "{deep}");
        }
    }

    proptest::proptest! {
        #[test]
        fn whatever_comes_is_read(line in "[ab\\\\'\"`$(){}<>&|;#=!@,\n\t _-]{0,80}") {
            let _found = read(&line);
        }
    }
}
