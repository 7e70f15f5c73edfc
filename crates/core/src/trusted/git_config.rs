//! Which directories, files and programs a configuration of git names (git-config(1), "Syntax" and "Variables").

/// What is named, with the key that names it as a person would write it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GitNames {
    /// The key, its section in small letters.
    pub key: String,
    /// What is named.
    pub what: NamedTarget,
}

/// What a setting names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NamedTarget {
    /// More configuration, relative to the file that names it.
    Include(Vec<u8>),
    /// A directory of hooks, relative to where hooks run.
    Hooks(Vec<u8>),
    /// A directory whose contents new repositories get, or a file of keys that are believed.
    Path(Vec<u8>),
    /// Where the working tree is, relative to the repository.
    Worktree(Vec<u8>),
    /// A command line, or the path of a program.
    Command(Vec<u8>),
}

/// What `text` names. Conditions of includes count as met.
pub fn git_names(text: &[u8]) -> Vec<GitNames> {
    let mut found = Vec::new();
    let mut section = ConfigSection::default();
    let mut lines = ConfigLines { rest: text };
    while let Some(mut line) = lines.next() {
        line = line.trim_ascii();
        // A setting may follow the section in the same line.
        while line.first() == Some(&b'[') {
            let (header, rest) = section_header(line);
            section = header;
            line = rest.trim_ascii();
        }
        if matches!(line.first(), None | Some(b'#' | b';')) {
            continue;
        }
        let (name, value) = match line.iter().position(|byte| *byte == b'=') {
            Some(equals) => (line[..equals].trim_ascii(), lines.value(&line[equals + 1..])),
            // A name alone is true.
            None => (line, Vec::new()),
        };
        let name = name.to_ascii_lowercase();
        if let Some(what) = named(&section, &name, value) {
            let key = section.key(&name);
            found.push(GitNames { key, what });
        }
    }
    found
}

#[derive(Debug, Default)]
struct ConfigSection {
    /// In small letters.
    name: Vec<u8>,
    /// As written.
    subsection: Option<Vec<u8>>,
}

impl ConfigSection {
    fn key(&self, name: &[u8]) -> String {
        let subsection = self
            .subsection
            .iter()
            .flat_map(|subsection| [b".", subsection.as_slice()]);
        let parts: Vec<&[u8]> = std::iter::once(self.name.as_slice())
            .chain(subsection)
            .chain([&b"."[..], name])
            .collect();
        String::from_utf8_lossy(&parts.concat()).into_owned()
    }
}

fn named(section: &ConfigSection, name: &[u8], value: Vec<u8>) -> Option<NamedTarget> {
    if value.is_empty() {
        return None;
    }
    let is_command = match (section.name.as_slice(), name) {
        (b"include" | b"includeif", b"path") => return Some(NamedTarget::Include(value)),
        (b"core", b"hookspath") => return Some(NamedTarget::Hooks(value)),
        (b"core", b"worktree") => return Some(NamedTarget::Worktree(value)),
        (b"init", b"templatedir") | (b"gpg", b"allowedsignersfile" | b"revocationfile") => {
            return Some(NamedTarget::Path(value));
        }
        // A name of another alias, or of a command of git's own, is none of a program.
        (b"alias", _) => value.first() == Some(&b'!') || value.windows(2).any(|two| two == b"-c"),
        (b"gc", b"recentobjectshook") | (b"tar", b"command") | (b"imap", b"tunnel") => true,
        (b"lfs", name) => matches!(name, b"path" | b"args"),
        (b"core", name) => matches!(
            name,
            b"fsmonitor" | b"editor" | b"pager" | b"sshcommand" | b"askpass" | b"gitproxy" | b"alternaterefscommand"
        ),
        (b"sequence", b"editor") | (b"interactive", b"difffilter") | (b"uploadpack", b"packobjectshook") => true,
        (b"pager", _) => !matches!(
            value.to_ascii_lowercase().as_slice(),
            b"true" | b"false" | b"yes" | b"no"
        ),
        (b"filter", name) => matches!(name, b"clean" | b"smudge" | b"process"),
        (b"diff", name) => matches!(name, b"external" | b"command" | b"textconv"),
        (b"merge", b"driver") | (b"credential", b"helper") | (b"submodule", b"update") | (b"hook", b"command") => true,
        (b"gpg", name) => matches!(name, b"program" | b"defaultkeycommand"),
        (b"difftool" | b"mergetool" | b"browser" | b"man" | b"guitool", name) => matches!(name, b"cmd" | b"path"),
        (b"trailer", name) => matches!(name, b"command" | b"cmd"),
        (b"remote", name) => matches!(name, b"uploadpack" | b"receivepack" | b"vcs") || leads_to_transport(&value),
        (b"url", b"insteadof" | b"pushinsteadof") => leads_to_transport(section.subsection.as_deref().unwrap_or(b"")),
        (b"sendemail", name) => {
            matches!(
                name,
                b"smtpserver" | b"tocmd" | b"cccmd" | b"headercmd" | b"sendmailcmd"
            )
        }
        (b"web" | b"help" | b"instaweb", b"browser" | b"httpd") => true,
        _ => false,
    };
    // What stands for the URL is a command there.
    match section.name.as_slice() {
        b"url" if is_command => section.subsection.clone().map(NamedTarget::Command),
        _ => is_command.then_some(NamedTarget::Command(value)),
    }
}

/// `ext::COMMAND` is run (git-remote-ext(1)).
fn leads_to_transport(url: &[u8]) -> bool {
    url.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"ext::"))
}

/// A section and what follows it in its line.
fn section_header(line: &[u8]) -> (ConfigSection, &[u8]) {
    let mut quoted = false;
    let mut escaped = false;
    let end = line.iter().position(|byte| {
        let ends = *byte == b']' && !quoted;
        quoted ^= *byte == b'"' && !escaped;
        escaped = *byte == b'\\' && !escaped;
        ends
    });
    let (inner, rest) = match end {
        Some(end) => (&line[1..end], &line[end + 1..]),
        None => (&line[1..], &line[line.len()..]),
    };
    let section = match inner.iter().position(|byte| *byte == b'"') {
        Some(quote) => ConfigSection {
            name: inner[..quote].trim_ascii().to_ascii_lowercase(),
            subsection: Some(unescaped_subsection(&inner[quote + 1..])),
        },
        // `[section.subsection]`, the old form, knows small letters only.
        None => match inner.iter().position(|byte| *byte == b'.') {
            Some(dot) => ConfigSection {
                name: inner[..dot].trim_ascii().to_ascii_lowercase(),
                subsection: Some(inner[dot + 1..].to_ascii_lowercase()),
            },
            None => ConfigSection {
                name: inner.trim_ascii().to_ascii_lowercase(),
                subsection: None,
            },
        },
    };
    (section, rest)
}

fn unescaped_subsection(text: &[u8]) -> Vec<u8> {
    let mut found = Vec::new();
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => break,
            b'\\' => found.extend(bytes.next()),
            byte => found.push(*byte),
        }
    }
    found
}

struct ConfigLines<'a> {
    rest: &'a [u8],
}

impl<'a> ConfigLines<'a> {
    fn next(&mut self) -> Option<&'a [u8]> {
        if self.rest.is_empty() {
            return None;
        }
        let end = self.rest.iter().position(|byte| *byte == b'\n');
        let (line, rest) = match end {
            Some(end) => (&self.rest[..end], &self.rest[end + 1..]),
            None => (self.rest, &self.rest[self.rest.len()..]),
        };
        self.rest = rest;
        Some(line)
    }

    /// The value that begins with `text`; a backslash at the end of a line goes on with the next.
    fn value(&mut self, text: &'a [u8]) -> Vec<u8> {
        let mut value = Vec::new();
        // Spaces at the end are none of it, unless quoted.
        let mut kept = 0;
        let mut quoted = false;
        let mut line = text.trim_ascii_start();
        loop {
            let mut bytes = line.iter();
            let mut continues = false;
            while let Some(byte) = bytes.next() {
                match byte {
                    b'"' => {
                        quoted = !quoted;
                        kept = value.len();
                    }
                    b'#' | b';' if !quoted => break,
                    b'\\' => match bytes.next() {
                        None => continues = true,
                        Some(b'\r') if bytes.as_slice().is_empty() => continues = true,
                        Some(escaped) => {
                            value.push(match escaped {
                                b'n' => b'\n',
                                b't' => b'\t',
                                b'b' => 8,
                                other => *other,
                            });
                            kept = value.len();
                        }
                    },
                    byte => {
                        value.push(*byte);
                        if quoted || !byte.is_ascii_whitespace() {
                            kept = value.len();
                        }
                    }
                }
            }
            match continues.then(|| self.next()).flatten() {
                Some(next) => line = next,
                None => break,
            }
        }
        value.truncate(kept);
        value
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(text: &str) -> Vec<String> {
        let show = |name: GitNames| {
            let (kind, value) = match name.what {
                NamedTarget::Include(value) => ("include", value),
                NamedTarget::Hooks(value) => ("hooks", value),
                NamedTarget::Path(value) => ("path", value),
                NamedTarget::Worktree(value) => ("worktree", value),
                NamedTarget::Command(value) => ("command", value),
            };
            format!("{}: {kind} {}", name.key, String::from_utf8(value).unwrap())
        };
        git_names(text.as_bytes()).into_iter().map(show).collect()
    }

    #[test]
    fn what_a_configuration_names_is_found() {
        for (text, found) in [
            ("[core]\n\thooksPath = .githooks\n", "core.hookspath: hooks .githooks"),
            ("[CORE] HOOKSPATH=\"a b\" ; x", "core.hookspath: hooks a b"),
            ("[core]\nhooksPath = a\\\nb # c", "core.hookspath: hooks ab"),
            ("[include]\npath = ../x\n", "include.path: include ../x"),
            (
                "[includeIf \"gitdir:~/w/\"]\npath=y",
                "includeif.gitdir:~/w/.path: include y",
            ),
            (
                "[filter \"a\\\"b]\"]\r\nclean = f %f\r\n",
                "filter.a\"b].clean: command f %f",
            ),
            ("[filter.lfs]\nprocess=p", "filter.lfs.process: command p"),
            ("[alias]\nx = status\ny = !scripts/y\n", "alias.y: command !scripts/y"),
            ("[core]\nworktree = ../../sub", "core.worktree: worktree ../../sub"),
            (
                "[alias]\ny = -c core.fsmonitor=./x status",
                "alias.y: command -c core.fsmonitor=./x status",
            ),
            ("[gc]\nrecentObjectsHook = s/h", "gc.recentobjectshook: command s/h"),
            ("[tar \"x\"]\ncommand = s/t", "tar.x.command: command s/t"),
            (
                "[lfs \"customtransfer.a\"]\npath = s/l",
                "lfs.customtransfer.a.path: command s/l",
            ),
            (
                "[merge \"d\"]\ndriver = tools/m %O %A %B",
                "merge.d.driver: command tools/m %O %A %B",
            ),
            ("[pager]\nlog = false\ndiff = p", "pager.diff: command p"),
            (
                "[url \"ext::sh x\"]\ninsteadOf = a",
                "url.ext::sh x.insteadof: command ext::sh x",
            ),
            (
                "[remote \"o\"]\nurl = ../elsewhere\nuploadpack = u",
                "remote.o.uploadpack: command u",
            ),
            ("[init]\ntemplateDir = t", "init.templatedir: path t"),
        ] {
            assert_eq!(shown(text), [found], "{text}");
        }
        for text in [
            "",
            "[core",
            "hooksPath = x",
            "[user]\nname = core.hooksPath",
            "[core]\nhooksPath",
            "[core]\nhooksPath=\n",
            "# [core]\n;hooksPath = x",
            "[branch \"a\"]\nremote = origin\nmerge = refs/heads/a",
            "[core]\nfsmonitorx = y",
        ] {
            assert_eq!(shown(text), [""; 0], "{text}");
        }
    }

    #[test]
    fn what_git_would_not_read_stops_nothing() {
        let text = "[core]\nx \"\\\n[\n]\n\0\n[core]\nhooksPath = found\n";
        assert_eq!(shown(text), ["core.hookspath: hooks found"]);
        let endless = format!("[core]\nhooksPath = {}", "a\\\n".repeat(10_000));
        assert_eq!(git_names(endless.as_bytes()).len(), 1);
    }

    proptest! {
        #[test]
        fn no_text_panics(text: Vec<u8>, lines in "(\\[core\\]|hooksPath ?=|\"|\\\\|\n|#|x| ){0,40}") {
            let _ = git_names(&text);
            let _ = git_names(lines.as_bytes());
        }
    }
}
