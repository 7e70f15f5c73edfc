//! Names in a workspace that run code later, outside the sandbox: changes to them are not applied unless named.
//!
//! Pure: names only; what they lead to is found by [`crate::trusted`] and its caller. Letter case, and the characters that case-insensitive file systems ignore, do not matter, because
//! what is a harmless name here may be the protected one where the tree is checked out.
//!
//! Not in the table, and so said in SECURITY.md: files that a person runs by name (`Makefile`, `package.json`, sources,
//! tests); and a directory that looks like a bare repository (`HEAD`, `objects`, `refs`, `config`), in which git uses
//! `config` when it is started in that very directory (`safe.bareRepository=explicit` stops it).

use std::collections::HashMap;
use std::sync::LazyLock;

/// A name, or a row of names, and why it is protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProtectedName {
    /// Names from the outermost to the innermost, at any depth; `**` is any number of directories, `*` any text within
    /// one name. Everything beneath is protected too.
    pub pattern: &'static str,
    /// What would run it.
    pub why: &'static str,
}

macro_rules! table {
    ($($why:literal: $($pattern:literal)*;)*) => { &[$($(ProtectedName { pattern: $pattern, why: $why },)*)*] };
}

/// The protected names.
pub const PROTECTED_NAMES: &[ProtectedName] = table! {
    "git runs hooks": ".git/hooks" ".git/modules/**/hooks" ".git/worktrees/*/hooks";
    "git runs commands that its configuration names":
        ".git/config" ".git/config.worktree" ".git/modules/**/config" ".git/modules/**/config.worktree"
        ".git/worktrees/*/config.worktree" ".gitconfig" ".config/git";
    "git takes its configuration from where this points":
        ".git/commondir" ".git/modules/**/commondir" ".git/worktrees/*/commondir" ".git/worktrees/*/gitdir";
    "git runs the commands of an unfinished rebase":
        ".git/rebase-merge" ".git/rebase-apply" ".git/worktrees/*/rebase-merge" ".git/modules/**/rebase-merge";
    "git takes submodules from where this says": ".gitmodules";
    "mercurial runs hooks and commands that it names": ".hg/hgrc";
    "jj takes its configuration and its repository from it": ".jj/repo";
    "direnv runs it when the directory is entered": ".envrc" ".direnv";
    "a shell runs it when it starts":
        ".bashrc" ".bash_profile" ".bash_login" ".bash_logout" ".bash_aliases" ".profile" ".zshrc" ".zshenv" ".zprofile"
        ".zlogin" ".zlogout" ".kshrc" ".cshrc" ".tcshrc" ".login" ".inputrc" ".config/fish" ".xprofile" ".xinitrc" ".xsession";
    "an editor runs its tasks or settings":
        ".vscode" ".idea" ".zed" ".fleet" ".vimrc" ".gvimrc" ".exrc" ".nvimrc" ".nvim.lua" ".vim" ".emacs" ".emacs.d"
        ".dir-locals.el" ".helix" ".lazy.lua" ".lapce" "*.code-workspace" ".devcontainer" ".devcontainer.json";
    "it configures an agent or its tools":
        ".claude" ".claude.json" ".mcp.json" "mcp.json" ".cursor" ".cursorrules" ".cursorignore" ".codex" ".gemini" ".windsurf"
        ".windsurfrules" ".aider*" ".cline" ".clinerules" ".roo" ".roorules" ".continue" ".kiro" ".goose" ".goosehints"
        ".opencode" "opencode.json" "opencode.jsonc" ".amazonq" ".junie" ".augment" ".crush" ".crush.json" "crush.json"
        ".srt-settings.json" ".agents" ".agent" ".factory" ".qwen";
    "it instructs agents": "AGENTS.md" "AGENTS.override.md" "CLAUDE.md" "CLAUDE.local.md" "GEMINI.md"
        ".github/copilot-instructions.md" ".github/instructions";
    "continuous integration runs it":
        ".github/workflows" ".github/actions" ".gitlab-ci.yml" ".gitlab-ci.yaml" ".gitlab/ci" ".circleci" ".travis.yml"
        ".drone.yml" ".woodpecker" ".woodpecker.yml" ".buildkite" "Jenkinsfile" "azure-pipelines.yml"
        "bitbucket-pipelines.yml" ".gitea/workflows" ".forgejo/workflows" ".github/dependabot.yml";
    "a package manager takes commands or sources from it":
        ".npmrc" ".yarnrc" ".yarnrc.yml" ".yarn/releases" ".yarn/plugins" ".pnpmfile.cjs" ".pnpmfile.mjs" "bunfig.toml" ".pypirc" "pip.conf" ".pip" ".cargo/config"
        ".cargo/config.toml" ".bundle/config" ".condarc" ".m2/settings.xml" ".mvn/extensions.xml" ".mvn/jvm.config";
    "it runs at every commit": ".husky" ".pre-commit-config.yaml" ".pre-commit-config.yml" "lefthook.yml" "lefthook.yaml"
        ".lefthook.yml" ".lefthook.yaml" ".overcommit.yml" ".lefthook";
    "a version manager runs its hooks": ".mise.toml" "mise.toml" ".mise" ".config/mise" ".mise.local.toml" "mise.local.toml" ".rtx.toml";
    "it holds keys or credentials, or says where they are used": ".ssh" ".netrc" ".aws" ".kube" ".docker/config.json" ".gnupg";
    "a program runs what it names":
        ".ripgreprc" ".tmux.conf" ".screenrc" ".gdbinit" ".lldbinit" ".wgetrc" ".curlrc" ".lesskey" ".pythonrc" ".irbrc" ".pryrc"
        ".Rprofile" ".psqlrc" ".config/autostart" ".config/systemd" ".watchmanconfig";
    "it is the sandbox's own policy": "offleash.toml" ".offleash";
};

/// The entry that is not in the table, because it depends on what is there: a `.git` that is not a directory.
pub const GIT_LINK: ProtectedName = ProtectedName {
    pattern: ".git",
    why: "git takes its repository from where this points",
};

/// The names of a pattern, from the outermost to the innermost, folded.
type NamePattern = Vec<Vec<u8>>;

/// The table with its patterns taken apart, once, and found by their first names: a sandbox can make paths of thousands
/// of names, and each of them would be compared with each pattern.
struct PatternTable {
    /// In the order of the table.
    all: Vec<(NamePattern, &'static ProtectedName)>,
    by_first_name: HashMap<Vec<u8>, Vec<usize>>,
    /// Those whose first name has a `*`.
    others: Vec<usize>,
}

static PATTERNS: LazyLock<PatternTable> = LazyLock::new(|| {
    let mut patterns = PatternTable {
        all: Vec::new(),
        by_first_name: HashMap::new(),
        others: Vec::new(),
    };
    for (index, protected) in PROTECTED_NAMES.iter().enumerate() {
        let pattern: NamePattern = protected
            .pattern
            .to_ascii_lowercase()
            .split('/')
            .map(Vec::from)
            .collect();
        match pattern.first().filter(|first| !first.contains(&b'*')) {
            Some(first) => patterns.by_first_name.entry(first.clone()).or_default().push(index),
            None => patterns.others.push(index),
        }
        patterns.all.push((pattern, protected));
    }
    patterns
});

impl PatternTable {
    /// The first pattern of the table that `names` begin with.
    fn find(&self, names: &[Vec<u8>]) -> Option<usize> {
        let of_this_name = self.by_first_name.get(names.first()?).into_iter().flatten();
        let candidates = of_this_name.chain(&self.others).copied();
        candidates.filter(|index| starts_with(&self.all[*index].0, names)).min()
    }
}

/// The protected name by which `path`, relative to the workspace, is protected: its own or that of a directory above.
pub fn protected_rule(path: &[u8]) -> Option<&'static ProtectedName> {
    let names = folded_names(path);
    let first = (0..names.len())
        .filter_map(|start| PATTERNS.find(&names[start..]))
        .min();
    first.map(|index| PATTERNS.all[index].1)
}

/// As [`protected_rule`], for something that is not a directory (a file, a link, or nothing in a directory's place):
/// such a thing is protected, too, when it is called `.git`.
pub fn protected_non_directory_rule(path: &[u8]) -> Option<&'static ProtectedName> {
    let is_git = folded_names(path).last().is_some_and(|name| name.as_slice() == b".git");
    if is_git { Some(&GIT_LINK) } else { protected_rule(path) }
}

/// Whether something beneath `path` may be protected though `path` is not: `.git`, `.config` or `.git/modules/x`.
pub fn leads_to_protected(path: &[u8]) -> bool {
    let names = folded_names(path);
    (0..names.len()).any(|start| {
        let of_this_name = PATTERNS.by_first_name.get(&names[start]).into_iter().flatten();
        let mut candidates = of_this_name.chain(&PATTERNS.others);
        candidates.any(|index| begins_with(&PATTERNS.all[*index].0, &names[start..]))
    })
}

/// Whether a protected name may begin with `name`: quick, for whoever looks at every name of a tree.
pub fn may_begin(name: &[u8]) -> bool {
    const ROOM: usize = 64;
    let find = |folded: &[u8]| {
        let others = &PATTERNS.others;
        PATTERNS.by_first_name.contains_key(folded)
            || others
                .iter()
                .any(|index| matches_name(&PATTERNS.all[*index].0[0], folded))
    };
    let mut room = [0; ROOM];
    match room.get_mut(..name.len()) {
        Some(folded) if name.is_ascii() && !matches!(name.last(), Some(b'.' | b' ')) && !name.contains(&b'~') => {
            folded.copy_from_slice(name);
            folded.make_ascii_lowercase();
            find(folded)
        }
        _ => find(&fold(name)),
    }
}

/// Whether the names are a proper beginning of what the pattern matches.
fn begins_with(pattern: &[Vec<u8>], names: &[Vec<u8>]) -> bool {
    match (pattern.split_first(), names.split_first()) {
        (None, _) => false,
        (Some(_), None) => true,
        // Whatever the names are, the rest may follow.
        (Some((first, _)), Some(_)) if first == b"**" => true,
        (Some((first, rest)), Some((name, deeper))) => matches_name(first, name) && begins_with(rest, deeper),
    }
}

fn starts_with(pattern: &[Vec<u8>], names: &[Vec<u8>]) -> bool {
    match pattern.split_first() {
        None => true,
        Some((first, rest)) if first == b"**" => (0..=names.len()).any(|skipped| starts_with(rest, &names[skipped..])),
        Some((first, rest)) => names
            .split_first()
            .is_some_and(|(name, deeper)| matches_name(first, name) && starts_with(rest, deeper)),
    }
}

/// One `*` at most, as the table has it.
fn matches_name(pattern: &[u8], name: &[u8]) -> bool {
    match pattern.iter().position(|byte| *byte == b'*') {
        None => pattern == name,
        Some(star) => {
            let (before, after) = (&pattern[..star], &pattern[star + 1..]);
            name.len() >= before.len() + after.len() && name.starts_with(before) && name.ends_with(after)
        }
    }
}

/// The names of a path as they are compared: whatever letter case, or characters that some file systems ignore.
pub fn folded_names(path: &[u8]) -> Vec<Vec<u8>> {
    path.split(|byte| *byte == b'/')
        .filter(|name| !name.is_empty() && *name != b".")
        .map(fold)
        .collect()
}

/// What other file systems take a name for: ext4 and F2FS fold letter case by Unicode and drop ignorable characters,
/// HFS+ as well (CVE-2014-9390); FAT and NTFS drop dots and spaces at the end, and know `.git` as `git~1`, too.
fn fold(name: &[u8]) -> Vec<u8> {
    let mut folded = fold_case(name);
    let end = folded.iter().rposition(|byte| !matches!(byte, b'.' | b' '));
    folded.truncate(end.map_or(0, |last| last + 1));
    if folded == b"git~1" { b".git".to_vec() } else { folded }
}

fn fold_case(name: &[u8]) -> Vec<u8> {
    let Some(text) = std::str::from_utf8(name).ok().filter(|text| !text.is_ascii()) else {
        return name.to_ascii_lowercase();
    };
    // Upper case first, because some lower-case letters (the long s) differ from the letter that both belong to.
    let upper = text
        .chars()
        .filter(|character| !is_ignorable(*character))
        .flat_map(char::to_uppercase);
    upper.flat_map(char::to_lowercase).collect::<String>().into_bytes()
}

/// `Default_Ignorable_Code_Point` of Unicode.
fn is_ignorable(character: char) -> bool {
    matches!(u32::from(character),
        0xad | 0x34f | 0x61c | 0x115f..=0x1160 | 0x17b4..=0x17b5 | 0x180b..=0x180f | 0x200b..=0x200f | 0x202a..=0x202e
        | 0x2060..=0x206f | 0x3164 | 0xfe00..=0xfe0f | 0xfeff | 0xffa0 | 0xfff0..=0xfff8 | 0x1bca0..=0x1bca3
        | 0x1d173..=0x1d17a | 0xe0000..=0xe0fff)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_runs_code_later_is_protected_at_any_depth() {
        for path in [
            ".git/hooks/pre-commit",
            ".git/hooks",
            ".git/config",
            "sub/.git/config",
            ".git/modules/a/b/hooks/post-checkout",
            ".git/modules/a/config",
            ".git/worktrees/x/config.worktree",
            ".git/rebase-merge/git-rebase-todo",
            ".GIT/HOOKS/pre-commit",
            ".envrc",
            "a/b/.envrc",
            ".vscode/tasks.json",
            ".claude/settings.json",
            ".mcp.json",
            "CLAUDE.md",
            "docs/agents.md",
            ".github/workflows/ci.yml",
            ".npmrc",
            ".husky/pre-commit",
            ".aider.conf.yml",
            ".config/fish/config.fish",
            "offleash.toml",
            "./.envrc",
            ".hg/hgrc",
            ".helix/config.toml",
            ".lazy.lua",
            ".lapce/run.toml",
            ".pnpmfile.mjs",
            "bunfig.toml",
            ".jj/repo/config.toml",
            ".agent/rules",
            ".factory/x",
            ".qwen/settings.json",
            ".git//hooks/x",
        ] {
            assert!(protected_rule(path.as_bytes()).is_some(), "{path}");
        }
    }

    #[test]
    fn ordinary_work_is_not_protected() {
        for path in [
            "",
            "src/main.rs",
            ".git",
            ".git/HEAD",
            ".git/index",
            ".git/objects/ab/cdef",
            ".git/refs/heads/hooks",
            ".git/logs/HEAD",
            ".git/COMMIT_EDITMSG",
            ".git/modules/sub/HEAD",
            ".git/worktrees/x/HEAD",
            ".gitignore",
            ".gitattributes",
            ".github/ISSUE_TEMPLATE.md",
            "hooks/pre-commit",
            "config",
            "envrc",
            ".cargo/registry",
            ".env",
            ".",
            "...",
            ".hg/store",
            "git~1",
            "git~2/config",
            "git/config.",
            "Makefile",
        ] {
            assert_eq!(protected_rule(path.as_bytes()), None, "{path}");
        }
    }

    #[test]
    fn names_that_other_file_systems_take_for_protected_ones_are_protected() {
        for path in [
            ".g\u{200c}it/config",
            ".GİT/config".replace('İ', "I").as_str(),
            ".hu\u{17f}ky/x",
            ".hus\u{212a}y/x",
            ".git./config",
            ".git /hooks. . /x",
            ".envrc. .",
            ".git.\u{200c}/config",
            "GIT~1/config",
            "sub/git~1./hooks/x",
        ] {
            assert!(protected_rule(path.as_bytes()).is_some(), "{path}");
        }
    }

    #[test]
    fn a_git_that_is_no_directory_is_protected() {
        assert_eq!(
            protected_non_directory_rule(b"sub/.git").map(|rule| rule.pattern),
            Some(".git")
        );
        for name in [&b"git~1"[..], b".git.", b".GIT ", b"a/Git~1"] {
            assert!(protected_non_directory_rule(name).is_some(), "{name:?}");
        }
        assert_eq!(protected_non_directory_rule(b".git/HEAD"), None);
        assert!(protected_non_directory_rule(b".git/config").is_some());
    }

    #[test]
    fn what_lies_above_protected_names_is_known() {
        for path in [
            ".git",
            "a/.GIT",
            ".config",
            ".git/modules",
            ".git/modules/a/b",
            ".git/worktrees/x",
            ".github",
            "GIT~1",
        ] {
            assert!(leads_to_protected(path.as_bytes()), "{path}");
        }
        for path in [
            "",
            "src",
            ".envrc",
            ".git/objects",
            "config",
            ".github/x",
            ".vscode/x",
            ".git/worktrees/x/y/z",
        ] {
            assert!(!leads_to_protected(path.as_bytes()), "{path}");
        }
        for name in [
            ".git",
            ".GIT",
            "git~1",
            ".envrc. ",
            ".hu\u{17f}ky",
            "x.code-workspace",
            "AGENTS.md",
            ".aider.x",
        ] {
            assert!(may_begin(name.as_bytes()), "{name}");
        }
        for name in ["", ".", "src", "hooks", "config", ".gitignore", &"a".repeat(255)] {
            assert!(!may_begin(name.as_bytes()), "{name}");
        }
    }

    proptest! {
        #[test]
        fn everything_beneath_a_protected_name_is_protected(index in 0..PROTECTED_NAMES.len(), above in "([a-z]{1,3}/){0,3}",
                                                           beneath in "(/[a-z]{1,3}){0,3}") {
            let name = PROTECTED_NAMES[index].pattern.replace("**", "x/y").replace('*', "z");
            let path = format!("{above}{name}{beneath}");
            prop_assert!(protected_rule(path.as_bytes()).is_some(), "{}", path);
            prop_assert!(protected_rule(path.to_ascii_uppercase().as_bytes()).is_some(), "{}", path);
        }

        #[test]
        fn no_path_panics(path: Vec<u8>) {
            let _ = protected_non_directory_rule(&path);
            let _ = leads_to_protected(&path);
            prop_assert_eq!(may_begin(&path), PATTERNS.by_first_name.contains_key(&fold(&path))
                || PATTERNS.others.iter().any(|index| matches_name(&PATTERNS.all[*index].0[0], &fold(&path))));
        }
    }
}
