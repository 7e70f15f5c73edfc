//! Divides a Dockerfile into instructions: lines that go on, comments, here-documents and directives.

use super::error::{DockerfileError, DockerfileFault};

/// The largest Dockerfile, bytes.
pub const MAX_DOCKERFILE: usize = 1 << 20;
/// How many here-documents one instruction may have.
const MAX_HEREDOCS: usize = 50;

/// A Dockerfile as instructions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SourceFile {
    /// The character before which nothing means anything else than itself, and with which lines go on.
    pub(super) escape: char,
    pub(super) instructions: Vec<SourceInstruction>,
}

/// An instruction as it was written, on one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SourceInstruction {
    /// Where it begins, from 1.
    pub(super) line: usize,
    /// In capitals.
    pub(super) keyword: String,
    pub(super) rest: String,
    pub(super) heredocs: Vec<Heredoc>,
}

/// A here-document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Heredoc {
    pub(super) name: String,
    /// Whether variables in it are expanded.
    pub(super) expands: bool,
    /// Whether tabs at the beginning of its lines go.
    pub(super) strips_tabs: bool,
    /// Its lines as they were written, the last one ended.
    pub(super) text: String,
}

impl Heredoc {
    /// What the file holds.
    pub(super) fn contents(&self) -> String {
        match self.strips_tabs {
            false => self.text.clone(),
            true => self
                .text
                .split_inclusive('\n')
                .map(|line| line.trim_start_matches('\t'))
                .collect(),
        }
    }
}

/// Divides a text into instructions.
pub(super) fn divide(text: &str) -> Result<SourceFile, DockerfileError> {
    if text.len() > MAX_DOCKERFILE {
        let told = format!("it is larger than {MAX_DOCKERFILE} bytes");
        return Err(DockerfileFault::Malformed(told).at(0));
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut lines = text
        .split('\n')
        .map(|line| line.strip_suffix('\r').unwrap_or(line))
        .enumerate()
        .map(|(index, line)| (index + 1, line))
        .peekable();
    let mut escape = '\\';
    while let Some((number, line)) = lines.peek().copied() {
        let Some((name, value)) = directive(line) else { break };
        if name == "escape" {
            escape = match value {
                "\\" => '\\',
                "`" => '`',
                _ => return Err(DockerfileFault::malformed("`escape` is neither `\\` nor a backtick").at(number)),
            };
        }
        lines.next();
    }
    let mut instructions = Vec::new();
    while let Some((number, line)) = lines.next() {
        if is_blank(line) {
            continue;
        }
        let mut whole = String::new();
        let mut next = Some(line);
        while let Some(line) = next.take() {
            match goes_on(line, escape) {
                None => whole.push_str(line),
                Some(part) => {
                    whole.push_str(part);
                    // Comments and empty lines between are none of the instruction.
                    while let Some((_, line)) = lines.next_if(|(_, line)| is_blank(line)) {
                        let _skipped = line;
                    }
                    next = lines.next().map(|(_, line)| line);
                }
            }
        }
        let whole = whole.trim();
        let (keyword, rest) = whole.split_once(char::is_whitespace).unwrap_or((whole, ""));
        let mut instruction = SourceInstruction {
            line: number,
            keyword: keyword.to_ascii_uppercase(),
            rest: rest.trim().to_owned(),
            heredocs: Vec::new(),
        };
        if matches!(instruction.keyword.as_str(), "RUN" | "COPY" | "ADD") {
            for mut heredoc in heredocs(&instruction.rest) {
                if instruction.heredocs.len() == MAX_HEREDOCS {
                    let told = format!("there are more than {MAX_HEREDOCS} here-documents");
                    return Err(DockerfileFault::Malformed(told).at(number));
                }
                loop {
                    let Some((_, line)) = lines.next() else {
                        let told = format!("the here-document `{}` does not end", heredoc.name.escape_debug());
                        return Err(DockerfileFault::Malformed(told).at(number));
                    };
                    let end = if heredoc.strips_tabs {
                        line.trim_start_matches('\t')
                    } else {
                        line
                    };
                    if end == heredoc.name {
                        break;
                    }
                    heredoc.text.push_str(line);
                    heredoc.text.push('\n');
                }
                instruction.heredocs.push(heredoc);
            }
        }
        instructions.push(instruction);
    }
    Ok(SourceFile { escape, instructions })
}

fn is_blank(line: &str) -> bool {
    let line = line.trim_start();
    line.is_empty() || line.starts_with('#')
}

/// `# name=value`, one that is known.
fn directive(line: &str) -> Option<(&str, &str)> {
    let (name, value) = line.trim().strip_prefix('#')?.split_once('=')?;
    let name = name.trim();
    let known = ["escape", "syntax", "check"];
    known
        .into_iter()
        .find(|known| known.eq_ignore_ascii_case(name))
        .map(|known| (known, value.trim()))
}

/// What stands before the character with which a line goes on.
fn goes_on(line: &str, escape: char) -> Option<&str> {
    line.trim_end_matches([' ', '\t']).strip_suffix(escape)
}

/// The here-documents that words of a line begin, in their order; their text is to come.
fn heredocs(line: &str) -> Vec<Heredoc> {
    let mut found = Vec::new();
    let mut quote = None;
    // Before `<<` a descriptor may stand, and before that nothing of the word.
    let mut begins_word = true;
    let mut rest = line;
    while let Some(character) = rest.chars().next() {
        if quote.is_none()
            && begins_word
            && let Some((heredoc, after)) = heredoc_at(rest)
        {
            found.push(heredoc);
            rest = after;
            begins_word = false;
            continue;
        }
        rest = &rest[character.len_utf8()..];
        match (character, quote) {
            ('\\', None | Some('"')) => {
                let escaped = rest.chars().next().map_or(0, char::len_utf8);
                rest = &rest[escaped..];
            }
            ('"' | '\'', None) => quote = Some(character),
            (closing, Some(open)) if closing == open => quote = None,
            _ => {}
        }
        begins_word = character.is_whitespace() || (begins_word && character.is_ascii_digit());
    }
    found
}

/// `<<NAME`, `<<-NAME`, `<<"NAME"` at the beginning of a text, and what stands behind it.
fn heredoc_at(text: &str) -> Option<(Heredoc, &str)> {
    let rest = text.strip_prefix("<<")?;
    let (strips_tabs, rest) = match rest.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, rest),
    };
    let quote = rest.chars().next().filter(|first| matches!(first, '"' | '\''));
    let (name, rest) = match quote {
        Some(quote) => rest[1..].split_once(quote)?,
        None => {
            let is_end = |character: char| !(character.is_alphanumeric() || "_.-/".contains(character));
            rest.split_at(rest.find(is_end).unwrap_or(rest.len()))
        }
    };
    let heredoc = Heredoc {
        name: name.to_owned(),
        expands: quote.is_none(),
        strips_tabs,
        text: String::new(),
    };
    (!name.is_empty()).then_some((heredoc, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str) -> Vec<(usize, String)> {
        let divided = divide(text).unwrap();
        let one = |instruction: SourceInstruction| {
            let heredocs: String = instruction
                .heredocs
                .iter()
                .map(|one| format!("|{}", one.text))
                .collect();
            (
                instruction.line,
                format!("{} {}{heredocs}", instruction.keyword, instruction.rest),
            )
        };
        divided.instructions.into_iter().map(one).collect()
    }

    #[test]
    fn lines_go_on_and_comments_between_are_left_out() {
        let text =
            "# syntax=x\n# escape=\\\n\n# c\nfrom a\nRUN echo a \\\n  # comment\n\n  b \\  \n && c # d\r\nRUN x \\";
        assert_eq!(
            texts(text),
            [
                (5, "FROM a".to_owned()),
                (6, "RUN echo a   b  && c # d".to_owned()),
                (11, "RUN x".to_owned())
            ]
        );
        assert_eq!(texts("# escape=`\nRUN a `\nb\\"), [(2, "RUN a b\\".to_owned())]);
        assert_eq!(
            texts("RUN a\n# escape=`\nRUN b"),
            [(1, "RUN a".to_owned()), (3, "RUN b".to_owned())]
        );
        assert!(divide("# escape=x\nRUN a").is_err());
        assert_eq!(texts("\u{feff}\n  \n"), []);
    }

    #[test]
    fn here_documents_belong_to_their_instruction() {
        for (text, expected) in [
            ("RUN <<EOF\na\n# b\nEOF\nRUN c", "RUN <<EOF|a\n# b\n"),
            ("RUN cat <<EOF > /x\none\\\nEOF\nRUN c", "RUN cat <<EOF > /x|one\\\n"),
            (
                "RUN cat <<A >/x && cat <<'B' 3<<-C\n1\nA\n2\nB\n\t3\n\tC\nRUN c",
                "RUN cat <<A >/x && cat <<'B' 3<<-C|1\n|2\n|\t3\n",
            ),
            (
                "COPY <<a.txt <<\"b c\" /d/\n1\na.txt\nb c\nRUN c",
                "COPY <<a.txt <<\"b c\" /d/|1\n|",
            ),
            (
                "RUN echo '<<A' \"<<B\" <<<C $((1<<2)) \\<<D\nRUN c",
                "RUN echo '<<A' \"<<B\" <<<C $((1<<2)) \\<<D",
            ),
        ] {
            let found = texts(text);
            assert_eq!(found[0].1, expected, "{text}");
            assert_eq!(found[1].1, "RUN c", "{text}");
        }
        assert!(divide("RUN <<EOF\nx\n").is_err());
        let stripped = divide("RUN <<-E\n\t\ta\n\tE\n").unwrap();
        assert_eq!(stripped.instructions[0].heredocs[0].contents(), "a\n");
    }
}
