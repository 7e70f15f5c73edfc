//! Words of a command line that may be paths.

/// What separates words in what a shell reads, with what joins an option to its value.
const SEPARATORS: &[u8] = b" \t\r\n\"'`=,;|&()<>[]{}!:";
/// The longest word that can be a path.
const MAX_LENGTH: usize = 4095;

/// The words of `text` that may be paths, without variables that they begin with: `"$GIT_DIR/x"` and
/// `"$(git rev-parse --show-toplevel)/x"` both give `/x`, which is to be looked for wherever they may stand for.
pub fn words(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let words = text.split(|byte| SEPARATORS.contains(byte));
    words.map(without_variable).filter(|word| {
        let is_path = !matches!(*word, b"" | b"." | b".." | b"/" | b"~");
        is_path && word.len() <= MAX_LENGTH && word[0] != b'-' && !word.contains(&0)
    })
}

fn without_variable(word: &[u8]) -> &[u8] {
    let Some(variable) = word.strip_prefix(b"$") else {
        return word;
    };
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let end = variable.iter().position(|byte| !is_name(byte));
    end.map_or(&[], |end| &variable[end..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_found_in_command_lines() {
        for (text, found) in [
            ("scripts/clean %f", vec!["scripts/clean", "%f"]),
            ("!sh -c 'cd x && ./run; exit'", vec!["sh", "cd", "x", "./run", "exit"]),
            (
                "\"$(git rev-parse --show-toplevel)/tools/x\"",
                vec!["git", "rev-parse", "/tools/x"],
            ),
            ("$GIT_DIR/x ${HOME}/y $ONLY", vec!["/x", "HOME", "/y"]),
            ("node --require=./a.js -r ./b.js", vec!["node", "./a.js", "./b.js"]),
            ("-javaagent:tools/agent.jar", vec!["tools/agent.jar"]),
            ("", vec![]),
        ] {
            let words: Vec<&str> = words(text.as_bytes())
                .map(|word| std::str::from_utf8(word).unwrap())
                .collect();
            assert_eq!(words, found, "{text}");
        }
    }
}
