//! Names in the form in which git writes them in patches.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// `prefix` and `path`, in double quotes with escapes if a byte asks for it, as git does with `core.quotePath`:
/// control characters, `"`, `\` and everything that is not ASCII.
pub(crate) fn git_quoted(prefix: &str, path: &Path) -> Vec<u8> {
    let bytes = [prefix.as_bytes(), path.as_os_str().as_bytes()].concat();
    if !bytes.iter().any(|byte| needs_escape(*byte)) {
        return bytes;
    }
    let mut out = vec![b'"'];
    for byte in bytes {
        push_escaped(&mut out, byte);
    }
    out.push(b'"');
    out
}

fn needs_escape(byte: u8) -> bool {
    !(b' '..=b'~').contains(&byte) || byte == b'"' || byte == b'\\'
}

fn push_escaped(out: &mut Vec<u8>, byte: u8) {
    let short = match byte {
        7 => b'a',
        8 => b'b',
        9 => b't',
        10 => b'n',
        11 => b'v',
        12 => b'f',
        13 => b'r',
        b'"' | b'\\' => byte,
        other if needs_escape(other) => return out.extend_from_slice(format!("\\{other:03o}").as_bytes()),
        plain => return out.push(plain),
    };
    out.extend_from_slice(&[b'\\', short]);
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    #[test]
    fn names_are_quoted_as_git_quotes_them() {
        for (name, shown) in [
            (&b"plain name.txt"[..], &b"a/plain name.txt"[..]),
            (b"new\nline", br#""a/new\nline""#),
            (b"\x1b[2J", br#""a/\033[2J""#),
            (b"\xff", br#""a/\377""#),
            ("é".as_bytes(), br#""a/\303\251""#),
            (b"quote\"back\\slash", br#""a/quote\"back\\slash""#),
            (b"\x07\x08\t\x0b\x0c\r\x7f", br#""a/\a\b\t\v\f\r\177""#),
        ] {
            assert_eq!(git_quoted("a/", Path::new(OsStr::from_bytes(name))), shown);
        }
    }
}
